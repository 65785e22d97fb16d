"""When enough samples are enough: stopping rules, each valid however often it looks."""

from __future__ import annotations

import bisect
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import special

from ucan.bounds import anytime_lower_bound, anytime_upper_bound, log_wealth
from ucan.catalogue import STOPS, call, parsed
from ucan.errors import InvalidInput

# Giving up on a radius that could have been certified costs no soundness, only that radius. One is given up when of the ways
# to come to it at the cap fewer than this share lead through so many misses. Looking after every block, that takes about 1
# point at most from the probability to be certified (computed exactly: 0.1 with a cap of 1,000, 1.1 with 100,000), and
# less the further p is from what the cap can just certify.
GIVE_UP = 0.001


@dataclass(frozen=True)
class Stop(ABC):
    """A stopping rule for one certificate; it looks after every block of votes, or after each growth of their number."""

    growth: ClassVar[float] = 1.0

    @abstractmethod
    def settled(self, hits: int, drawn: int, cap: int, alpha: float, radius: Radius) -> bool:
        """Whether further samples (up to ``cap``) can no longer change what this rule asks."""

    @abstractmethod
    def __str__(self) -> str:
        """The text that ``parse_stop`` reads back as this rule."""


@dataclass(frozen=True)
class Radius:
    """How the certified radius follows from p, and back: what the rules need to know of law, Σ and norm."""

    of: Callable[[float], float]
    probability: Callable[[float], float]


@functools.lru_cache(maxsize=65_536)
def misses_allowed(cap: int, alpha: float, p0: float) -> int:
    """How many misses ``cap`` votes may have and still certify "p > p0" at level α; −1 if none."""
    return (
        bisect.bisect_left(range(cap + 1), True, key=lambda m: log_wealth(cap - m, cap, p0) < math.log(1 / alpha)) - 1
    )


def hopeless(misses: int, drawn: int, cap: int, allowed: np.ndarray) -> np.ndarray:
    """Whether so many misses by now are too many to end with those ``allowed`` at the cap.

    In whatever order the votes up to the cap come, those allowed fall among the first ``drawn`` as a hypergeometric law has
    it; its quantile is that of Cornish and Fisher, by mean, variance and skewness.
    """
    done, share, z = drawn / cap, np.maximum(allowed, 0) / cap, special.ndtri(1 - GIVE_UP)
    spread = np.sqrt(cap * share * (1 - share) * done * (1 - done))
    skew = np.maximum(0, (1 - 2 * share) * (1 - 2 * done)) * (z * z - 1) / 6
    found: np.ndarray = (misses > allowed) | (misses - 0.5 > allowed * done + z * spread + skew)
    return found


@dataclass(frozen=True)
class AtRadii(Stop):
    """Decide "is the radius at least r?" for each of some radii, and stop as soon as all are decided."""

    radii: tuple[float, ...]

    def settled(self, hits: int, drawn: int, cap: int, alpha: float, radius: Radius) -> bool:
        """Every radius is either certified at level α or given up, because the cap will come first."""
        p0 = np.array([radius.probability(r) for r in self.radii])
        # A radius that no p below 1 reaches (NaN where none does at all) is decided before the first draw.
        p0 = p0[p0 < 1]
        certified = log_wealth(hits, drawn, p0) >= math.log(1 / alpha)
        most = max(cap, drawn)
        given_up = hopeless(drawn - hits, drawn, most, np.array([misses_allowed(most, alpha, p) for p in p0.tolist()]))
        # A larger radius counts as certified only if every smaller one is: only then do their errors not add up.
        certified = np.logical_and.accumulate(certified)
        return bool((certified | given_up).all())

    def __str__(self) -> str:
        return ",".join(map(repr, self.radii))


@dataclass(frozen=True)
class Within(Stop):
    """Stop when the radius is within a fraction of what more samples, up to the cap, could still give."""

    fraction: float
    growth: ClassVar[float] = 1.05

    def settled(self, hits: int, drawn: int, cap: int, alpha: float, radius: Radius) -> bool:
        """R(now) ≥ (1 − fraction) · R(at the cap, if the rest hits as often as p can still be believed to)."""
        upper = anytime_upper_bound(hits, drawn, alpha)
        most = hits + math.ceil(upper * (cap - drawn))
        reachable = radius.of(anytime_lower_bound(most, cap, alpha))
        return radius.of(anytime_lower_bound(hits, drawn, alpha)) >= (1 - self.fraction) * reachable

    def __str__(self) -> str:
        return f"{100 * self.fraction:.12g}%"


def parse_stop(value: Any) -> Stop | None:
    """None, a radius, several radii, or a fraction written as text ("5%")."""
    if value is None or isinstance(value, Stop):
        return value
    if isinstance(value, str):
        return _parse_text(value)
    try:
        if isinstance(value, bool):
            raise ValueError
        return _at_radii([value] if isinstance(value, int | float) else value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f'stop takes a radius, several radii of 0 or more, or a percentage such as "5%", got {value!r}.'
        ) from error


def _parse_text(text: str) -> Stop:
    if text.strip()[:1].isalpha():  # a rule by its name
        name, parameters = parsed(text)
        made = call("stop", STOPS.load(name, "stop"), parameters)
        if not isinstance(made, Stop):
            raise InvalidInput(f"[stop] {name!r} made a {type(made).__name__}, which is no ucan.stopping.Stop.")
        return made
    try:
        if text.strip().endswith("%"):
            fraction = float(text.strip()[:-1]) / 100
            if not 0 < fraction < 1:
                raise ValueError
            return Within(fraction)
        return _at_radii(text.split(","))
    except ValueError as error:
        raise InvalidInput(f"stop takes radii such as 0.5,1.0 or a percentage such as 5%, got {text!r}.") from error


def _at_radii(values: Iterable[Any]) -> AtRadii:
    radii = tuple(sorted(float(r) for r in values))
    if not radii or any(not (math.isfinite(r) and r >= 0) for r in radii):
        raise ValueError
    return AtRadii(radii)
