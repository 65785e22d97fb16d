"""`ucan demo`: the whole of it in a minute, on data that needs no download."""

from __future__ import annotations


def demo() -> None:
    """Train, certify and compare on scikit-learn's digits: isotropic beside pattern-shaped noise. About a minute."""
