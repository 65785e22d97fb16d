"""A selector without a network of its own: the wide noise answers with a class that is probable enough, else the narrow one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ucan.bounds import lower_bound, majority_p_value, two_bounds_p_value, upper_bound
from ucan.certificate import Abstention, Certificate, Level, Prediction, Scope
from ucan.certificate.level import HALF
from ucan.engine import Setup
from ucan.errors import InvalidInput
from ucan.evidence import Evidence
from ucan.generators import Generator
from ucan.generators.base import own_ways
from ucan.laws import Law
from ucan.plan import CertifyPlan, PredictPlan
from ucan.region import Region
from ucan.rounding import floor_digits
from ucan.seating import NAMING
from ucan.smoothed import SmoothedClassifier, largest_other
from ucan.votes import Votes


@dataclass(frozen=True, eq=False)
class Threshold:
    """The rule of a router with two experts, a wide noise and a narrow one; no network chooses.

    Expert 0 answers with a class that has more than ``threshold`` under its noise, if the class has more than ``veto`` under
    that of expert 1. Otherwise expert 1 answers.

    g: expert 0 itself, with the wide noise.
    threshold: τ, at least 1/2 and below 1, so that one class at most has more.
    veto: ν, 0 or more and below 1/2; 0: expert 1 has none.

    What is certified is the router's answer, not which expert gives it (docs/router.md): class c is answered where expert 0
    surely answers it, and where expert 1 surely answers it and expert 0 surely answers no *other* class.
    """

    g: SmoothedClassifier
    threshold: float = HALF
    veto: float = 0.0

    def __post_init__(self) -> None:
        for name, low, high in (("threshold", HALF, 1.0), ("veto", 0.0, HALF)):
            value = getattr(self, name)
            if isinstance(value, bool) or not (isinstance(value, int | float) and low <= value < high):
                raise InvalidInput(f"{name} must be a number of at least {low:g} and below {high:g}, got {value!r}.")

    def check(self, experts: Sequence[SmoothedClassifier]) -> None:
        """Refuse experts that this rule says nothing about."""
        if len(experts) != 2 or experts[0] is not self.g:
            raise InvalidInput("a threshold is for two experts, and the first one is the classifier it was made of.")
        for expert in experts[: 2 if self.veto else 1]:
            # law.shifted, by which a level is certified, is not known to hold for noise with copies or regions of its own.
            if expert.M.redrawn or expert.M.own_norm is not None or own_ways(type(expert.M)):
                raise InvalidInput(f"a threshold needs noise x + μ + Σε, not {expert.M.describe()}.")

    def level_of(self, number: int) -> float:
        """The threshold that the probabilities of this expert are held against."""
        return (self.threshold, self.veto)[number]

    def floor_of(self, level: Level) -> float:
        """What the class must have under expert 0's noise beside such a level: τ where the level is about the veto."""
        return self.threshold if level.allows else HALF

    def certify_each(
        self, experts: Sequence[SmoothedClassifier], inputs: Sequence[torch.Tensor], plans: Sequence[CertifyPlan]
    ) -> Iterator[tuple[int, Certificate | Abstention]]:
        """Yield (number, outcome) for inputs (1, *event); each expert has a plan of its own, at half of α."""
        plan = plans[0]
        if plan.stop is not None or plan.bound != "binary" or plan.budget is not None:
            raise InvalidInput(
                "a router by a threshold has bounds of its own, for all of its votes: leave bound=, stop= and budget= out."
            )
        for i, sides in _counted(experts, inputs, plans, {"select": plan.n0, "estimate": plan.n}):
            ways = [
                made
                for number, level in self._ways(sides)
                if (answer := sides[number].certified(level.floor)) is not None
                and (made := replace(answer, choice=level, scope=_scope(sides))).radius > 0
            ]
            yield i, max(ways, key=lambda made: made.radius) if ways else _unsure(sides, plan.norm)

    def predict_each(
        self, experts: Sequence[SmoothedClassifier], inputs: Sequence[torch.Tensor], plans: Sequence[PredictPlan]
    ) -> Iterator[tuple[int, Prediction | Abstention]]:
        """Yield (number, outcome) for inputs (1, *event)."""
        if plans[0].stop or plans[0].test != "majority":
            raise InvalidInput(
                "a router by a threshold has tests of its own, of all of its votes: leave stop= and test= out."
            )
        for i, sides in _counted(experts, inputs, plans, {"select": NAMING, "predict": plans[0].n}):
            found = (
                replace(answer, choice=level, scope=_scope(sides))
                for number, level in self._ways(sides)
                if (answer := sides[number].predicted(level.floor)) is not None
            )
            yield i, next(found, _unsure(sides, None))

    def _ways(self, sides: Sequence[_Side]) -> Iterator[tuple[int, Level]]:
        """(expert, what must hold beside its answer) of each way to be sure of the router's answer.

        All ways are about one class, which other votes chose; then four bounds are used at most, each at α/4, and all of
        them hold at once. Where these votes name two classes, the rule applied to them says which one.
        """
        wide, narrow = sides
        allowed = not self.veto or narrow.share(wide.top) > self.veto
        takes = wide.share(wide.top) > self.threshold and allowed
        if wide.top == narrow.top or takes:
            yield from _sure(0, (narrow if self.veto else wide).level(self, True, wide.top))
        if wide.top == narrow.top or not takes:
            yield from _sure(1, wide.level(self, False, narrow.top))
            if self.veto:
                yield from _sure(1, narrow.level(self, False, narrow.top))


def _sure(number: int, level: Level | None) -> Iterator[tuple[int, Level]]:
    if level is not None:
        yield number, level


@dataclass(frozen=True)
class _Side:
    """The votes of one expert on one input: those that name its class, and n others, which bound probabilities."""

    number: int
    g: SmoothedClassifier
    M: Generator
    x: torch.Tensor
    selection: torch.Tensor
    votes: Votes
    setup: Setup
    plan: CertifyPlan | PredictPlan

    @property
    def top(self) -> int:
        """The class that it names."""
        return int(self.selection.argmax())

    @property
    def norm(self) -> float | None:
        """The norm asked for."""
        return self.plan.norm if isinstance(self.plan, CertifyPlan) else None

    def share(self, c: int) -> float:
        """The share of a class among the votes that name one."""
        return float(self.selection[c]) / float(self.selection.sum().clamp_min(1))

    def evidence(self, bound: str) -> Evidence:
        """The record of these votes."""
        n0 = self.plan.n0 if isinstance(self.plan, CertifyPlan) else NAMING
        return self.g.engine.evidence(self.setup, self.x, self.votes, self.selection, n0, self.plan.n, self.plan, bound)

    def level(self, rule: Threshold, above: bool, c: int) -> Level | None:
        """What is sure of a class, or of all others, against this expert's threshold; None if nothing is."""
        made = level_at(
            self.g, self.M, self.x, self.evidence("binary"), rule.level_of(self.number), above, c, self.norm
        )
        if made is None:
            return None
        made = replace(made, of=self.number)
        return replace(made, floor=rule.floor_of(made))

    def certified(self, floor: float) -> Certificate | None:
        """The certificate of the class that it names, by its two bounds; None if nothing is certified.

        Expert 0 answers a class that has more than ``floor``, so its region is where the class keeps that. Expert 1 answers
        the most probable class: the bound on every other one, which is paid for, makes its region larger.
        """
        assert isinstance(self.plan, CertifyPlan), "there is a norm to certify in"
        first, p = self.number == 0, self.bounded(True)
        evidence = self.evidence("binary" if first else "two-class")
        rival = None if first else self.bounded(False)
        made = self.g.conclude(self.M, self.x, self.top, p, rival, evidence, self.plan)
        if not isinstance(made, Certificate) or (first and not p > floor):
            return None
        region = level_region(self.g, self.M, self.x, p, True, floor, self.plan.norm) if floor > HALF else made.region
        return None if region is None else replace(made, region=min(made.region, region, key=lambda each: each.radius))

    def predicted(self, floor: float) -> Prediction | None:
        """The class that it names, if it surely answers that; None if not.

        Expert 0's has more than ``floor``. Expert 1's is above every other one by the two bounds of its certificates, and the
        p-value is the smallest level at which it is.
        """
        tau, hits, n = self.g.arithmetic_error(self.M, self.x), int(self.votes.counts[self.top]), self.plan.n
        if self.number == 0:
            test, p_value = "majority", majority_p_value(hits, n, floor + tau)
            sure = p_value <= self.plan.level / 2
        else:
            test, p_value = "two-class", two_bounds_p_value(hits, largest_other(self.votes.counts, self.top), n, tau)
            sure, p_value = self.bounded(True) > self.bounded(False), min(p_value, self.plan.level)
        if not sure:
            return None
        return Prediction(None, self.M.scope, self.evidence(test), prediction=self.top, p_value=p_value)

    def bounded(self, above: bool) -> float:
        """A lower bound on its class, or an upper one on every other, at half of the plan's level."""
        tau = self.g.arithmetic_error(self.M, self.x)
        return level_bound(self.votes.counts, self.top, above, self.plan.n, self.plan.level, tau)


def _counted(
    experts: Sequence[SmoothedClassifier],
    inputs: Sequence[torch.Tensor],
    plans: Sequence[Any],
    phases: dict[str, int],
) -> Iterator[tuple[int, list[_Side]]]:
    """The votes of every expert on each input."""
    streams = (g.engine.counted(inputs, plan, phases) for g, plan in zip(experts, plans, strict=True))
    for each in zip(*streams, strict=True):
        yield (
            each[0][1],
            [
                _Side(k, experts[k], request.M, request.x, select.counts, votes, setup, plans[k])
                for k, (setup, _, request, (select, votes)) in enumerate(each)
            ],
        )


def _scope(sides: Iterable[_Side]) -> Scope:
    return "pipeline" if all(side.M.scope == "pipeline" for side in sides) else "frozen"


def _unsure(sides: Iterable[_Side], norm: float | None) -> Abstention:
    """The outcome where no way is sure."""
    shown = [
        f"class {side.top} has at least {floor_digits(side.bounded(True), 4)} for expert {side.number}"
        for side in sides
    ]
    first = next(iter(sides))
    reason = f"neither expert surely answers: {', '.join(shown)}"
    return Abstention(norm, first.M.scope, first.evidence("binary"), reason)


def level_at(
    g: SmoothedClassifier, M: Generator, x: torch.Tensor, evidence: Evidence, threshold: float, above: bool, c: int,
    norm: float | None,
) -> Level | None:  # fmt: skip
    """The level that this evidence bears at x (1, *event), under the noise M that is held there; None if it bears none."""
    p = level_bound(evidence.counts, c, above, evidence.n, evidence.alpha, g.arithmetic_error(M, x))
    if (p > threshold) != above:
        return None
    region = level_region(g, M, x, p, above, threshold, norm)
    return None if region is None else Level(norm, M.scope, evidence, threshold, above, c, p, region)


def level_bound(counts: Any, c: int, above: bool, n: int, alpha: float, tau: float) -> float:
    """Above: a lower bound on a class's probability. Below: an upper bound on every other class's, by the most voted of them.

    Each at α/2. Of the other classes, the most voted one has at least as many votes as the truly most probable, c*, which is
    no random choice; so with probability at least 1 − α/2 its bound is not below P(c*), the largest of all.
    """
    if above:
        return max(0.0, lower_bound(int(counts[c]), n, alpha / 2) - tau)
    return min(1.0, upper_bound(largest_other(torch.as_tensor(counts), c), n, alpha / 2) + tau)


def level_region(
    g: SmoothedClassifier, M: Generator, x: torch.Tensor, p: float, above: bool, threshold: float, norm: float | None
) -> Region | None:
    """Where a probability that is bounded by p stays on its side of a threshold, rounding paid; None if nothing is left.

    Without a norm asked for: in ℓ2, or in the law's first norm where it has no ℓ2 radius.
    """
    sample = M.region(g.law, 0.75, M.usual_norm(g.law) if norm is None else norm, x)
    have, floor = (p, threshold) if above else (1 - p, 1 - threshold)
    radius = crossing(g.law, have, floor, sample.norm, x.numel())
    region = Region.sharing(sample.scale, radius, sample.norm, sample.shape)
    return region if g.grid is None else g.grid.region(region, x)


def crossing(law: Law, p: float, floor: float, norm: float, dim: int) -> float:
    """The largest known r such that a set of probability p keeps more than ``floor`` after every move below r.

    For Gaussian noise λ(Φ⁻¹(p) − Φ⁻¹(floor)); by halving, with the law's own ``shifted``, so never too large.
    """
    if not p > floor:
        return 0.0

    def stays(r: float) -> bool:
        return float(law.shifted(p, r, norm, dim)) >= floor

    high = law.scale
    while stays(high) and high < 1e6 * law.scale:
        high *= 2
    low = 0.0
    while low < (middle := (low + high) / 2) < high and high - low > 1e-14 * high:
        low, high = (middle, high) if stays(middle) else (low, middle)
    return low
