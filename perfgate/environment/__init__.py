"""What is the box's and what is the code's: fingerprints compared, the canary judged, the run's conditions told."""

from perfgate.environment.assess import assess_environment
from perfgate.environment.fingerprint import Cause, Finding, Fingerprint, compare, fingerprints

__all__ = ["Cause", "Finding", "Fingerprint", "assess_environment", "compare", "fingerprints"]
