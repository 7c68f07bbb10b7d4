"""What holds for all tests: examples are bounded in number, never by the clock of a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("tests", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
