"""One hypothesis profile for the whole suite: repeatable, and never judged by the clock. And one browser."""

import signal

from hypothesis import HealthCheck, settings

from browser import browser, chromium  # noqa: F401  (fixtures)

settings.register_profile(
    "ucan", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ucan")

# A shell starts what runs in its background deaf to Ctrl-C, and children inherit that: the tests that send one would fail.
signal.signal(signal.SIGINT, signal.default_int_handler)
