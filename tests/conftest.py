"""For all tests: a busy box is no reason to fail a property."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("perfgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perfgate")

# Before any test module imports it: others than the gate's own use it, too.
pytest.register_assert_rewrite("tests.integration.gate.harness")
