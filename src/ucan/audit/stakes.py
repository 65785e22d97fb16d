"""What a claim says of the votes at every point of its region: which share of them must not fall below which floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

from ucan.audit.claims import Claim
from ucan.audit.decide import Decision, decide, decide_counted, decide_level, rival_of
from ucan.certificate import Level
from ucan.seating import EXACT

# Number of standard deviations to give a point up, and to call it clearly lost.
GIVE_UP, CLEAR = 3.0, 2.0
# A search may end at a point where the share is below this part of its floor.
LOST = 0.8


@dataclass(frozen=True)
class Tally:
    """Votes at one point: for each class, and those for none."""

    counts: tuple[int, ...]
    invalid: int

    def __add__(self, other: Tally) -> Tally:
        return Tally(tuple(map(sum, zip(self.counts, other.counts, strict=True))), self.invalid + other.invalid)

    @property
    def total(self) -> int:
        """All votes."""
        return sum(self.counts) + self.invalid

    def own(self, c_A: int, floor: float = 0.5) -> Share:
        """The class against all others."""
        return Share(self.counts[c_A], self.total, self.total, floor)

    def duel(self, c_A: int) -> Share:
        """The class against the strongest of the others."""
        pair = self.counts[c_A] + self.counts[rival_of(self.counts, c_A)]
        return Share(self.counts[c_A], pair, self.total)

    def lead(self, c_A: int) -> Share:
        """The class's lead over the strongest of the others among all votes; one half at a tie."""
        rival = self.counts[rival_of(self.counts, c_A)]
        return Share(self.total + self.counts[c_A] - rival, 2 * self.total, 2 * self.total)

    def beside(self, c_A: int, floor: float) -> Share:
        """All votes but those of the strongest of the other classes."""
        return Share(self.total - self.counts[rival_of(self.counts, c_A)], self.total, self.total, floor)


@dataclass(frozen=True)
class Share:
    """``hits`` of the ``votes`` that matter, out of ``total``; the question is whether this is at least ``floor``."""

    hits: int
    votes: int
    total: int
    floor: float = 0.5

    @property
    def value(self) -> float:
        """The share; 1 if no vote matters."""
        return self.hits / self.votes if self.votes else 1.0

    @property
    def deviation(self) -> float:
        """The standard deviation of the share where it is at its floor."""
        return self._deviation(self.votes)

    def clearly_lost(self) -> bool:
        """Whether these votes alone make it likely that the share is below its floor."""
        return self.value + CLEAR * self.deviation < self.floor

    def far_below(self) -> bool:
        """Whether a search may end here."""
        return self.value < LOST * self.floor

    def hopeless(self, level: float, most: int) -> bool:
        """Whether a test on ``most`` votes at this level is not expected to reject, within the error of the votes so far."""
        left = most * max(self.votes, 1) / max(self.total, 1)
        fewest = self.floor - (float(-special.ndtri(level)) + 1) * self._deviation(left)
        return self.value - GIVE_UP * self.deviation > fewest

    def _deviation(self, votes: float) -> float:
        return math.sqrt(self.floor * (1 - self.floor) / max(votes, 1))


@dataclass(frozen=True)
class Stake:
    """What breaks a claim. ``promised``: the claim covers what is attacked.

    Of a certificate: that its class loses its majority, or, with a bound on the runner-up too or where nothing is promised,
    that another one leads. Of a level (``ucan.Threshold``): that its class has less than the threshold, or another one more.
    Where a claim was made by counting all draws of the noise (``counted``), they are counted at every point.
    """

    claim: Claim
    promised: bool

    @property
    def c_A(self) -> int:
        """The class that the claim is about."""
        return self.claim.top if isinstance(self.claim, Level) else self.claim.prediction

    @property
    def counted(self) -> bool:
        """Whether the claim is about counts of all draws, so that it is never false by chance."""
        return self.claim.evidence.bound == EXACT

    @property
    def majority(self) -> bool:
        """Whether a class without a majority breaks the claim, even if it leads."""
        return not isinstance(self.claim, Level) and self.promised and self.claim.p_upper is None

    def share(self, tally: Tally) -> Share:
        """The share of votes that must fall below its floor for a break."""
        if isinstance(self.claim, Level):
            if self.claim.above:
                return tally.own(self.c_A, self.claim.threshold)
            return tally.beside(self.c_A, 1 - self.claim.threshold)
        if self.counted:
            return tally.lead(self.c_A)
        return tally.own(self.c_A) if self.majority else tally.duel(self.c_A)

    def rival(self, tally: Tally) -> int | None:
        """The other class that the claim is tested against, by votes that do not test it; None: against all others."""
        against_one = not self.claim.above if isinstance(self.claim, Level) else self.claim.p_upper is not None
        return rival_of(tally.counts, self.c_A) if against_one else None

    def decide(self, tally: Tally, level: float, rival: int | None) -> Decision:
        """Whether these votes refute the claim."""
        if self.counted:
            return decide_counted(tally.counts, tally.invalid, self.c_A, self.promised)
        if isinstance(self.claim, Level):
            return decide_level(tally.counts, tally.invalid, self.c_A, self.claim.threshold, level, rival)
        return decide(tally.counts, tally.invalid, self.c_A, level, rival, not self.majority)
