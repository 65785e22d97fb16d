"""One hypothesis profile for the whole suite: repeatable, and never judged by the clock."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ucan", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ucan")
