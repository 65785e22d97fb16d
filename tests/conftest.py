"""One hypothesis profile for the whole suite: repeatable, and never judged by the clock. And one browser."""

import gc
import signal
from functools import cache

import typer.main
from hypothesis import HealthCheck, settings

from browser import browser, chromium  # noqa: F401  (fixtures)

settings.register_profile(
    "ucan", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ucan")

# Typer's test runner builds all commands anew whenever it is called, which takes longer than most of them run.
typer.main.get_command = cache(typer.main.get_command)  # before anyone imports typer.testing

# A shell starts what runs in its background deaf to Ctrl-C, and children inherit that: the tests that send one would fail.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Read the digits from their file once; look for garbage among what the tests make, not among all modules and tests."""
    import sklearn.datasets  # here, since the process that hands out the tests needs none of it

    sklearn.datasets.load_digits = cache(sklearn.datasets.load_digits)
    gc.collect()
    gc.freeze()
