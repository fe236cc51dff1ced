"""For all tests: a busy box is no reason to fail a property, and no examples are tried that were not tried before."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("perfgate", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("random", settings.get_profile("perfgate"), derandomize=False)
settings.load_profile("perfgate")

# Before any test module imports it: others than the gate's own use it, too.
pytest.register_assert_rewrite("tests.integration.gate.harness")
