"""A selector without a network of its own: the widest noise answers where its top probability is above τ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ucan.bounds import lower_bound, upper_bound
from ucan.certificate import Abstention, Level
from ucan.engine import Setup
from ucan.errors import InvalidInput
from ucan.generators import Generator
from ucan.laws import Law
from ucan.plan import CertifyPlan, PredictPlan
from ucan.region import Region
from ucan.rounding import ceil_digits, floor_digits
from ucan.smoothed import NAMING, SmoothedClassifier
from ucan.votes import Votes


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


class Threshold(SmoothedClassifier):
    """The selector of a router with two experts: expert 0 where g's most probable class has more than τ, else expert 1.

    g: a smoothed classifier, in the usual case expert 0 itself, with the widest noise; it is taken over as it is.
    threshold: τ, at least 1/2 and below 1.

    n0 votes say which side is tested, n others decide: above, if the lower bound on that class exceeds τ; below, if the upper
    bound on the most voted class, which bounds every class (docs/router.md), is under τ. An outcome is a ``Level``.
    """

    def __init__(self, g: SmoothedClassifier, threshold: float) -> None:
        if isinstance(threshold, bool) or not (isinstance(threshold, int | float) and 0.5 <= threshold < 1):
            raise InvalidInput(f"threshold must be a number of at least 1/2 and below 1, got {threshold!r}.")
        e = g.engine
        super().__init__(g.f.model, g.law, g.M, g.f.num_classes, e.backend, e.precision, e.model_id, g.step)
        if g.M.redrawn or g.M.own_norm is not None:
            raise InvalidInput(f"a threshold needs noise x + μ + Σε, not {g.M.describe()}.")
        self.threshold = float(threshold)

    def __repr__(self) -> str:
        return f"Threshold({super().__repr__()}, {self.threshold!r})"

    @property
    def num_classes(self) -> int:
        """The number of experts that it chooses among."""
        return 2

    def on_grid(self, step: Any) -> Threshold:
        """The same selector on the grid of this step."""
        return Threshold(super().on_grid(step), self.threshold)

    def certify_each(  # type: ignore[override]
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan
    ) -> Iterator[tuple[int, Level | Abstention]]:
        """Yield (number, outcome) for inputs (1, *event)."""
        if plan.stop is not None or plan.bound != "binary" or plan.budget is not None:
            raise InvalidInput(
                "a threshold is certified by the binary bound, without stop= and budget=: leave them out."
            )
        phases = {"select": plan.n0, "estimate": plan.n}
        for setup, i, request, (select, votes) in self.engine.counted(inputs, plan, phases):
            yield i, self._level(setup, request.M, request.x, select.counts, votes, plan, plan.norm, plan.n0)

    def predict_each(  # type: ignore[override]
        self, inputs: Iterable[torch.Tensor], plan: PredictPlan
    ) -> Iterator[tuple[int, Level | Abstention]]:
        """Yield (number, outcome) for inputs (1, *event)."""
        if plan.stop:
            raise InvalidInput("a threshold takes all of its votes: leave stop= out.")
        for setup, i, request, (select, votes) in self.engine.counted(
            inputs, plan, {"select": NAMING, "predict": plan.n}
        ):
            yield i, self._level(setup, request.M, request.x, select.counts, votes, plan, None, NAMING)

    def _level(
        self, setup: Setup, M: Generator, x: torch.Tensor, select: torch.Tensor, votes: Votes,
        plan: CertifyPlan | PredictPlan, norm: float | None, n0: int,
    ) -> Level | Abstention:  # fmt: skip
        """Which side of τ the top probability is on, and how far that stays so."""
        evidence = self.engine.evidence(setup, x, votes, select, n0, plan.n, plan, "binary")
        c_A, tau = int(select.argmax()), self.arithmetic_error(M, x)
        above = int(select[c_A]) > self.threshold * n0
        p = level_bound(evidence.counts, c_A, above, plan.n, plan.level, tau)
        if not (p > self.threshold if above else p < self.threshold):
            side = (
                f"the lower bound {floor_digits(p, 6)} on class {c_A}"
                if above
                else f"the upper bound {ceil_digits(p, 6)}"
            )
            reason = f"{side} is not {'above' if above else 'below'} the threshold {self.threshold:g}"
            return Abstention(norm, M.scope, evidence, reason)
        region = self.level_region(M, x, p, above, 2 if norm is None else norm)
        if region is None:
            return Abstention(norm, M.scope, evidence, "rounding the input to its step takes all of the radius")
        return Level(norm, M.scope, evidence, self.threshold, above, c_A, p, region)

    def level_region(self, M: Generator, x: torch.Tensor, p: float, above: bool, norm: float) -> Region | None:
        """Where the top probability stays on this side, rounding paid; None if nothing is left."""
        sample = M.region(self.law, 0.75, norm, x)
        have, floor = (p, self.threshold) if above else (1 - p, 1 - self.threshold)
        radius = crossing(self.law, have, floor, sample.norm, x.numel())
        region = Region.sharing(sample.scale, radius, sample.norm, sample.shape)
        return region if self.grid is None else self.grid.region(region, x)


def level_bound(counts: Any, c_A: int, above: bool, n: int, alpha: float, tau: float) -> float:
    """Above: a lower bound on the class's probability. Below: an upper bound on every class's, by the most voted one.

    The most voted class has at least as many votes as the truly most probable one, c*, which is no random choice; so with
    probability at least 1 − α its bound is not below P(c*), and P(c*) is the largest of all.
    """
    if above:
        return max(0.0, lower_bound(int(counts[c_A]), n, alpha) - tau)
    return min(1.0, upper_bound(int(max(counts)), n, alpha) + tau)
