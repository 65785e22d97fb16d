"""When a radius is given up: the misses that a cap of votes allows, and when too many of them have come.

Nothing here bears on whether a certificate is true.
"""

from __future__ import annotations

import bisect
import functools
import math

import numpy as np
from scipy import special

from ucan.betting import Bettor
from ucan.bounds import log_wealth, majority_p_value
from ucan.named_bounds import AT_THE_CAP, Sequential

# Giving up on a radius that could have been certified costs no soundness, only that radius. One is given up when of the ways
# to come to it at the cap fewer than this share lead through so many misses. Looking after every block, that takes 0.12
# points at most from the probability to be certified with a cap of 1,280 (computed exactly), more with a larger cap, and less
# the further p is from what the cap can just certify: in all, 0.05 points of a data set's inputs (docs/stopping.md).
GIVE_UP = 0.001


@functools.lru_cache(maxsize=65_536)
def misses_allowed(cap: int, alpha: float, p0: float) -> int:
    """How many misses ``cap`` votes may have and still certify "p > p0" at level α; −1 if none."""
    return (
        bisect.bisect_left(range(cap + 1), True, key=lambda m: log_wealth(cap - m, cap, p0) < math.log(1 / alpha)) - 1
    )


@functools.lru_cache(maxsize=65_536)
def misses_left(threshold: float, cap: int, alpha: float, chose: tuple[int, int]) -> int:
    """How many misses ``cap`` votes may have and still certify "p ≥ threshold", at the cap or by betting; −1 if none."""
    bettor, goal = Bettor.against(threshold, cap, alpha, chose), Sequential.goal(alpha)

    def fails(misses: int) -> bool:
        by_betting = float(bettor.log_wealth(cap - misses, misses)) >= goal
        return not (by_betting or majority_p_value(cap - misses, cap, threshold) <= AT_THE_CAP * alpha)

    return bisect.bisect_left(range(cap + 1), True, key=fails) - 1


class Hopes:
    """Which of some radii votes can still come to: with those ``allowed`` of ``cap`` votes as misses at the most.

    In whatever order the votes up to the cap come, the misses allowed fall among the first ones as a hypergeometric law has
    it; its quantile is that of Cornish and Fisher, by mean, variance and skewness.
    """

    def __init__(self, cap: int, allowed: np.ndarray) -> None:
        self.cap, self.allowed, self.z = cap, allowed, special.ndtri(1 - GIVE_UP)
        share = np.maximum(allowed, 0) / cap
        self._variance, self._skew = cap * share * (1 - share), 1 - 2 * share

    def lost(self, misses: int | np.ndarray, drawn: int) -> np.ndarray:
        """Whether so many misses by now are too many to end with those allowed at the cap."""
        done, z = drawn / self.cap, self.z
        spread = np.sqrt(self._variance * done * (1 - done))
        skew = np.maximum(0, self._skew * (1 - 2 * done)) * (z * z - 1) / 6
        found: np.ndarray = (misses > self.allowed) | (misses - 0.5 > self.allowed * done + z * spread + skew)
        return found
