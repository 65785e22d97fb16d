"""Choose which point of an attack to test, and test it with votes that the attack never saw."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ucan.audit.claims import Claim, claimed
from ucan.audit.decide import SURE, Decision
from ucan.audit.inputs import covered_step, reachable
from ucan.audit.stakes import Stake, Tally
from ucan.backends import PRECISIONS
from ucan.catalogue import ATTACKS
from ucan.errors import InvalidInput
from ucan.smoothed import SmoothedClassifier

# Candidates are screened in rounds: votes per round, and how many of the best remain after each round.
ROUNDS, KEPT = (256, 1024, 4096), (4, 2)
# A break is tested again on at least AGAIN times the votes; no test takes more than MOST times ``check``.
AGAIN, MOST = 10, 100
# Where all draws are counted, candidates are screened by them too, if these are not more.
FEW_DRAWS = 4096


@dataclass(frozen=True)
class Budget:
    """How hard to attack: steps, noise draws a step and restarts; ``check`` fresh votes or more decide at ``level``.

    A test draws more votes, up to a hundred times ``check``, while the class's share is too close to one half to decide.
    ``attack`` is the name of an attack in the catalogue; None: by gradients if the classifier has them, else black-box.
    """

    steps: int = 40
    draws: int = 16
    restarts: int = 2
    check: int = 2000
    level: float = 0.001
    seed: int = 0
    attack: str | None = None

    def __post_init__(self) -> None:
        if self.attack is not None:
            ATTACKS.check(self.attack, "audit: attack")
        for name in ("steps", "draws", "restarts", "check"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"audit: {name} must be at least 1, got {getattr(self, name)}.")
        if not 0 < self.level < 1:
            raise InvalidInput(f"audit: level must lie strictly between 0 and 1, got {self.level}.")

    @property
    def most(self) -> int:
        """The most votes that one test may take."""
        return MOST * self.check

    def looks(self, first: int) -> list[int]:
        """The numbers of votes at which a test is evaluated: each twice the last, from ``first`` to the most."""
        doubled = itertools.takewhile(lambda n: n < self.most, (first * 2**i for i in itertools.count()))
        return [*doubled, self.most]


def check_factor(factor: float) -> None:
    """Refuse a multiple of a region that is not a finite number above 0."""
    if not (math.isfinite(factor) and factor > 0):
        raise InvalidInput(f"a factor must be a finite number above 0, got {factor}.")


def derived_seed(seed: int, *purpose: Any) -> int:
    """A seed for one purpose, in 32 bits."""
    text = "/".join(map(str, ("audit", seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def precision_of(certificate: Claim) -> str | None:
    """The precision to request so that the classifier runs as certified; None for its own."""
    own = certificate.evidence.precision
    return own if own in PRECISIONS else None


@dataclass(frozen=True, eq=False)
class Point:
    """A point inside the region, and the votes of the screening rounds that it has been through."""

    z: torch.Tensor
    delta: torch.Tensor
    first: Tally
    seen: Tally


class Judge:
    """Keeps the best points so far, by its own votes, and finally tests one of them.

    ``promised``: the claim covers what is attacked; what breaks it depends on that (``Stake``).
    """

    def __init__(
        self,
        g: SmoothedClassifier,
        x: torch.Tensor,
        c: Claim,
        factor: float,
        budget: Budget,
        seed: int,
        promised: bool,
    ) -> None:
        self.g, self.x, self.c, self.budget, self.seed = g, x, c, budget, seed
        self.inside, whole = claimed(c)
        self.limit = factor * whole
        self.precision, self.step = precision_of(c), covered_step(g, c)
        self.stake = Stake(c, promised)
        self.strictest = min(budget.level, SURE) if promised else budget.level
        self.screened_by_all = self.stake.counted and c.evidence.n <= FEW_DRAWS
        self.points: list[Point] = []
        self.tested: Point | None = None

    def look(self, delta: torch.Tensor) -> None:
        """Screen perturbations (batch, *event); those that are not strictly inside do not count.

        Nor does x itself, which would win where no point loses a vote: nothing would have been attacked.
        """
        inputs, deltas = self.reachable(delta)
        moved = deltas.flatten(1).any(1)
        self.points = self._leading([*self.points, *self._screened(inputs[moved], deltas[moved])], KEPT[0])

    def enough(self, delta: torch.Tensor) -> bool:
        """Whether the search may end: one of these points is clearly lost."""
        self.look(delta)
        if self.screened_by_all:
            return any(not self._hopeless(point.seen) for point in self.points)
        return any(self.stake.share(point.seen).far_below() for point in self.points)

    def verdict(self) -> tuple[Decision, torch.Tensor | None]:
        """The decision on the best point, by fresh votes; hopeless points are decided by the screening alone.

        Without another input inside it is that on x itself: a claim may be false there, too.
        """
        self.points = self.points or self._screened(*self.reachable(torch.zeros_like(self.x)))
        if not self.points:  # an empty region
            return Decision(False, self.stake.c_A, 0, 0, 1.0), None
        point = self._chosen()
        if self._hopeless(point.seen):
            shown = self.stake.decide(point.seen, self.budget.level, self.stake.rival(point.first))
            return Decision(False, shown.answer, shown.hits, shown.total, shown.p_value), point.delta
        return self._check(point), point.delta

    def at(self, delta: torch.Tensor) -> Decision:
        """The decision on one perturbation (1, *event), independent of the screening."""
        points = self._screened(*self.reachable(delta))
        return self._check(points[0]) if points else Decision(False, self.stake.c_A, 0, 0, 1.0)

    def again(self) -> Decision:
        """The decision on the same point by at least ten times as many votes of another stream, at a much smaller level."""
        assert self.tested is not None, "there was a verdict to test again"
        looks = self.budget.looks(AGAIN * self.budget.check)
        return self._test(self.tested, looks, min(self.budget.level, SURE), "again")

    def reachable(self, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs that perturbations lead to inside, and what they are then."""
        return reachable(self.x, delta, self.inside, self.limit, self.step)

    def _screened(self, inputs: torch.Tensor, deltas: torch.Tensor) -> list[Point]:
        """Points with the votes of the first round."""
        tallies = self._votes(inputs, ROUNDS[0], "screen")  # all at once: they share forward passes
        found = zip(inputs.split(1), deltas.split(1), tallies, strict=False)
        return [Point(z, actual, tally, tally) for z, actual, tally in found]

    def _chosen(self) -> Point:
        """The point to test: fewer and fewer candidates get more and more votes, until the best one is hopeless."""
        points = self.points
        for size, kept in zip(ROUNDS[1:], KEPT, strict=True):
            points = self._leading(points, kept)
            if self._hopeless(self._best(points).seen):
                break
            more = self._votes(torch.cat([point.z for point in points]), size, "screen", size)
            points = [replace(p, seen=p.seen + tally) for p, tally in zip(points, more, strict=True)]
        return self._best(points)

    def _hopeless(self, tally: Tally) -> bool:
        if self.stake.counted:  # random votes decide nothing: the point that they leave is counted
            return self.screened_by_all and not self.stake.decide(tally, self.strictest, None).broken
        return self.stake.share(tally).hopeless(self.strictest, self.budget.most)

    def _leading(self, points: list[Point], count: int) -> list[Point]:
        """The best of some points, by what breaks the claim; half of them by what changes the answer, too."""
        best = sorted(points, key=lambda point: self.stake.share(point.seen).value)
        if not self.stake.majority or count == 1:
            return best[:count]
        changing = sorted(points, key=lambda point: point.seen.duel(self.stake.c_A).value)[: count // 2]
        return [*changing, *(point for point in best if point not in changing)][:count]

    def _best(self, points: list[Point]) -> Point:
        """Of points where the answer has clearly changed the surest break, else of all."""
        lost = [point for point in points if self.stake.share(point.seen).clearly_lost()]
        changed = [point for point in lost if point.seen.duel(self.stake.c_A).clearly_lost()]
        return min(changed or points, key=lambda point: self.stake.share(point.seen).value)

    def _check(self, point: Point) -> Decision:
        self.tested = point
        return self._test(point, self.budget.looks(self.budget.check), self.budget.level, "check")

    def _test(self, point: Point, looks: Sequence[int], level: float, purpose: str) -> Decision:
        """Test the claim on fresh votes at several numbers of votes; stop when it rejects or will not reject.

        Each look rejects a true claim with probability at most level/looks, so all of them together keep the level; the
        p-value is multiplied by their number. Stopping without a rejection only loses power.
        """
        rival = self.stake.rival(point.first)
        seen: Tally | None = None
        for number, total in enumerate(looks):
            (fresh,) = self._votes(point.z, total - (0 if seen is None else seen.total), purpose, number)
            seen = fresh if seen is None else seen + fresh
            found = self.stake.decide(seen, level / len(looks), rival)
            if found.broken or self.stake.counted or self._hopeless(seen):
                break
        return replace(found, p_value=min(1.0, len(looks) * found.p_value))

    def _votes(self, z: torch.Tensor, n: int, purpose: str, number: int = 0) -> list[Tally]:
        """n votes at each point; each purpose and number has its own stream. All draws, where these were counted."""
        if not len(z):
            return []
        if self.screened_by_all or (self.stake.counted and purpose != "screen"):
            return self._all_draws(z)
        name = (purpose, number) if number else (purpose,)
        outcomes = self.g.predict(z, n=n, seed=derived_seed(self.seed, *name), precision=self.precision)
        return [Tally(tuple(outcome.counts.tolist()), outcome.invalid) for outcome in outcomes]

    def _all_draws(self, z: torch.Tensor) -> list[Tally]:
        """The votes of all draws at each point; refused where the network does not run as it did for the certificate."""
        outcomes, then = self.g.predict(z, test="exact", precision=self.precision), self.c.evidence.backend
        if (here := outcomes[0].evidence.backend) != then:
            raise InvalidInput(
                f"the network ran {then} when its votes were counted, and runs {here} here, which rounds otherwise: a vote "
                f"more or less would be taken for a break. Attack this certificate where the network runs {then}."
            )
        return [Tally(tuple(outcome.counts.tolist()), outcome.invalid) for outcome in outcomes]
