"""A bettor against "p ≤ p0" that is made for one question: does p exceed p0? Pure functions, in float64.

Before the first vote he spreads his money over alternatives q > p0. On each of them wealth is the likelihood ratio of q
against p0, which for every p ≤ p0 is a nonnegative supermartingale starting at 1; so is the mixture, and it ever reaches
1/α with probability at most α: one may look after every vote and stop when one likes. The proof, what follows from it,
and why the alternatives lie where they lie, are in docs/stopping.md.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

Array = np.ndarray[Any, np.dtype[np.float64]]

# Alternatives are spread evenly over the logarithm of their distance from p0, in the angle asin √p: what takes ten times as
# many votes to tell from p0 is √10 times nearer.
ALTERNATIVES = 16
# The nearest is one that takes about cap/1.5 votes: what is nearer is left to the test at the cap.
NEAREST = 0.75
# The farthest is this share of the way to p = 1, and gets this share of the money: votes of a sure class all agree.
FARTHEST, SURE = 0.95, 0.25
# The others get money in proportion to this power of their distance: near ones would cost the sure inputs too much.
POWER = 0.5
# This share of the money is moved to where the votes that chose the class point; the rest stays, in case they mislead.
TRUST = 0.7


@dataclass(frozen=True, eq=False)
class Bettor:
    """Money on alternatives ``q`` (rising, all above p0) in shares exp(``log_shares``), which add up to 1."""

    p0: float
    q: Array
    log_shares: Array

    @classmethod
    @functools.lru_cache(maxsize=4096)
    def against(cls, p0: float, cap: int, alpha: float, chose: tuple[int, int] = (0, 0)) -> Bettor:
        """The bettor against p ≤ p0 for up to ``cap`` votes; ``chose``: hits and number of the votes that chose the class.

        Those are other votes than he bets on, so that his shares are fixed before his first one.
        """
        start = math.asin(math.sqrt(p0))
        far = FARTHEST * (math.pi / 2 - start)
        near = min(math.sqrt(NEAREST * math.log(1 / alpha) / cap), far / 2)
        distance = np.geomspace(near, far, ALTERNATIVES)
        q = np.minimum(np.sin(start + distance) ** 2, math.nextafter(1, 0))  # with q = 1 no miss would be a NaN
        shares = (1 - SURE) * distance**POWER / (distance**POWER).sum()
        shares[-1] += SURE
        hits, votes = chose
        likely = np.log(shares) + hits * np.log(q) + (votes - hits) * np.log1p(-q)
        shares = (1 - TRUST) * shares + TRUST * np.exp(likely - special.logsumexp(likely))
        return cls(p0, q, np.log(shares))

    def log_wealth(self, hits: Any, misses: Any, p: float | None = None) -> Any:
        """Log wealth after so many votes (arrays of one shape); with ``p``, of the bettor against p ≤ ``p`` instead of p0.

        That one bets on the same alternatives as far as they exceed p, with the same shares: the rest he keeps to himself.
        At fixed votes his wealth falls as p rises, as long as p is below the share of hits; from there on it is below 1.
        """
        win, lose, shares = self._own if p is None else self._against(min(p, 1.0))
        if not len(win):
            return np.full(np.shape(hits), -math.inf)
        hits, misses = np.asarray(hits, dtype=np.float64), np.asarray(misses, dtype=np.float64)
        growth = np.multiply.outer(win, hits) + np.multiply.outer(lose, misses)
        growth += shares.reshape(-1, *[1] * hits.ndim)
        top = growth.max(0)
        return top + np.log(np.exp(growth - top).sum(0))

    @functools.cached_property
    def _own(self) -> tuple[Array, Array, Array]:
        return self._against(self.p0)

    def _against(self, p: float) -> tuple[Array, Array, Array]:
        """By how much a hit and a miss raise the log wealth on each alternative above p, and the shares on these."""
        above = self.q > p
        q = self.q[above]
        with np.errstate(divide="ignore"):
            return np.log(q) - np.log(p), np.log1p(-q) - np.log1p(-p), self.log_shares[above]

    def needed(self, hits: int, misses: int, goal: float) -> int:
        """How many hits in a row it takes at least from here until the log wealth reaches ``goal``."""
        return self.hits_until(goal, float(self.log_wealth(hits, misses)))

    def hits_until(self, goal: float, wealth: float) -> int:
        """How many hits it takes at least from this log wealth to ``goal``: one multiplies wealth by 1/p0 at most."""
        return max(0, math.ceil((goal - wealth) / -math.log(self.p0) - 1e-9))


def votes_at_least(p: float, p0: float, alpha: float) -> float:
    """log(1/α)/KL(p‖p0): about how many votes any test at level α needs that is sure to find p > p0; ∞ for p ≤ p0."""
    if p <= p0:
        return math.inf
    divergence = float(special.xlogy(p, p / p0) + special.xlogy(1 - p, (1 - p) / (1 - p0)))
    return math.log(1 / alpha) / divergence
