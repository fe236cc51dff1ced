"""What differed between the sides besides the code, and whose doing it was: the box's or the code's.

In: a run's proofs, telemetry, canary readings and logs. Out: the result's `environment` and, where the box was not the
same for both sides, the reason why nothing may be blamed on the code.
"""

from perfgate.conditions.assess import assess_environment
from perfgate.conditions.fingerprint import Cause, Finding, Fingerprint, compare, fingerprints

__all__ = ["Cause", "Finding", "Fingerprint", "assess_environment", "compare", "fingerprints"]
