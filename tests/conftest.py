"""For all tests: a busy box is no reason to fail a property."""

from hypothesis import HealthCheck, settings

settings.register_profile("perfgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perfgate")
