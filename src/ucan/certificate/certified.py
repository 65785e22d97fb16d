"""A certificate: one class on a whole region, with the evidence that it follows from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ucan.budget import Budget
from ucan.certificate.entries import budget_to_json, region_to_json
from ucan.certificate.outcome import FORMAT, ROUTED, Claimed, check_number, choice_to_json
from ucan.choices import SCOPES, norm_name, norm_to_json
from ucan.errors import DoesNotFollow, InvalidInput
from ucan.region import Intersection, Region
from ucan.rounding import floor_digits
from ucan.sidecar import tensors_to_json


@dataclass(frozen=True, eq=False)
class Certificate(Claimed):
    """With probability at least 1 − α over the noise drawn, the answer is ``prediction`` on the whole ``region``.

    ``scope`` says which classifier this is about (``ucan.choices.SCOPES``). ``radius`` is the largest ball of the requested
    ``norm`` inside the region. ``mean`` is the offset μ of the noise, None for 0. ``p_lower`` bounds the probability of the
    answer from below, ``p_upper`` that of every other class from above (None: 1 − p_lower); they show that the answer leads,
    also where the region has shrunk to its centre. ``alm`` is the alternative Lebesgue measure of the region, and
    ``evidence`` is what all of it follows from.

    With a ``budget``, no change within ε·budget changes the answer either, for every ε strictly below
    ``budget_factor``. That set can be larger than what fits into the region (Uniform noise, docs/shape.md).

    Of a router, ``choice`` is the certificate of the choice. The region is then where both hold, the radius the smaller of
    the two, and there is no ALM (NaN). Evidence and ``p_lower`` are the answer's; ``alpha`` is that of both together.
    """

    prediction: int
    p_lower: float
    p_upper: float | None
    region: Region
    alm: float
    mean: torch.Tensor | None = None
    budget: Budget | None = None
    budget_factor: float | None = None
    radius: float = field(init=False)
    log_volume: float = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.budget is None) != (self.budget_factor is None):
            raise InvalidInput("a certificate has a budget and its factor, or neither.")
        if self.choice is not None:
            self._settle_choice(self.choice)
        check_number("a certificate's p_lower", self.p_lower, 1.0)
        if self.choice is None:
            check_number("a certificate's alm", self.alm, math.inf)
        if self.p_upper is not None:
            check_number("a certificate's p_upper", self.p_upper, 1.0)
        if not leads(self.p_lower, self.p_upper):
            raise DoesNotFollow(no_lead(self.p_lower, self.p_upper), "p_lower")
        if self.mean is not None and not fits(self.mean.shape, (1, *self.region.shape)):
            raise InvalidInput(
                f"the offset μ of shape {tuple(self.mean.shape)} does not fit inputs of {self.region.shape}."
            )
        object.__setattr__(self, "radius", self.region.inscribed_radius(self.norm))
        object.__setattr__(self, "log_volume", self.region.log_volume)

    def _settle_choice(self, choice: Any) -> None:
        """Cut the region to where the choice holds, too; both must be about one budget, or about none."""
        if getattr(choice, "region", None) is None:
            raise InvalidInput("the choice of a certificate must be certified as well: a prediction has no region.")
        if getattr(choice, "allows", False) and not self.p_lower > choice.floor:
            raise InvalidInput(
                f"the choice says that the answer has more than {choice.floor:g}, and p is {self.p_lower}."
            )
        if choice.evidence.arithmetic != self.evidence.arithmetic:
            raise InvalidInput("a choice and its answer are about the same inputs: both on one grid, or both real.")
        mine, other = self.budget, choice.budget
        if mine is not other and (mine is None or other is None or mine.key != other.key):
            raise InvalidInput("a choice and its answer are certified for the same budget, or both without one.")
        own = getattr(self.region, "parts", (self.region,))[0]
        object.__setattr__(self, "region", Intersection.of(own, choice.region))
        object.__setattr__(self, "alm", math.nan)
        if self.budget_factor is not None:
            object.__setattr__(self, "budget_factor", min(self.budget_factor, choice.budget_factor))

    def __str__(self) -> str:
        """The claim in one line; its radius or its factor is rounded down."""
        if self.budget is not None and self.budget_factor is not None:
            factor = floor_digits(self.budget_factor, 4)
            return f"class {self.prediction} under {self.budget.words()}, ε = {factor} ({self._about})"
        norm, radius = norm_name(self.radius_norm), floor_digits(self.radius, 4)
        return f"class {self.prediction} within an {norm} radius of {radius} ({self._about})"

    @property
    def size(self) -> float:
        """The factor of the budget if there is one, else the radius."""
        return self.radius if self.budget_factor is None else self.budget_factor

    @property
    def answer(self) -> Certificate:
        """The certificate of the answer alone: itself, or of a router what the chosen classifier certifies."""
        if self.choice is None:
            return self
        own = self.region.parts[0]  # type: ignore[attr-defined]
        return replace(self, choice=None, region=own, alm=0.0)  # no ALM is claimed

    @property
    def most_budget_factor(self) -> float:
        """The largest ε that p, the law and Σ of this record allow, in exact arithmetic; 0 without a budget."""
        if self.budget is None:
            return 0.0
        if self.choice is not None:
            return min(self.answer.most_budget_factor, float(self.choice.most_budget_factor))
        law, region, best = self.evidence.law, self.region, self.region.budget_factor(self.budget)
        if region.norm not in law.region_norms():  # composed noise has its own kind of region
            return best
        for norm in law.region_norms():
            radius = law.radius(self.p_lower, norm, region.dim, self.p_upper)
            other = Region.sharing(region.scale, radius, norm, region.shape)
            best = max(best, other.budget_factor(self.budget))
        if region.scale.elementwise and self.budget.groups is None:
            scaled = region.scale.solve(self.budget.limits[None])[0].cpu()
            best = max(best, law.box_factor(self.p_lower, scaled, self.p_upper))
        return best

    def to_dict(self, folder: str | Path | None = None) -> dict[str, Any]:
        """Plain JSON values. A large Σ or μ is stored as a file in ``folder`` and referred to by name."""
        where = Path(folder) if folder is not None else None
        routed = self.choice is not None
        return {
            "format": ROUTED if routed else FORMAT,
            "kind": "certificate",
            "prediction": self.prediction,
            "p_lower": self.p_lower,
            "p_upper": self.p_upper,
            "radius": self.radius,
            "alm": None if routed else self.alm,
            "log_volume": self.log_volume if self.radius > 0 and not routed else None,
            "norm": norm_to_json(self.norm),
            "scope": self.scope,
            "guarantee": SCOPES[self.scope],
            "region": region_to_json(self.region, where),
            "mean": None if self.mean is None else tensors_to_json({"mean": self.mean}, where),
            **budget_to_json(self.budget, where),
            **({} if self.budget_factor is None else {"budget_factor": self.budget_factor}),
            **choice_to_json(self.choice, folder),
            "evidence": self.evidence.to_dict(),
        }


def leads(p_lower: float, p_upper: float | None) -> bool:
    """Whether these bounds put a class above every other: above 1/2, or above the bound on each of the others.

    Otherwise nothing is certified, not even at the input itself: ``certify`` abstains.
    """
    return p_lower > 0.5 or (p_upper is not None and p_lower > p_upper)


def no_lead(p_lower: Any, p_upper: Any) -> str:
    """The message for a certificate whose bounds show no lead."""
    rival = "" if p_upper is None else f", nor above {p_upper!r}, the bound on every other class"
    return (
        f"this certificate's p_lower, {p_lower!r}, is not above 1/2{rival}: nothing follows from it, and certify abstains "
        f"there. It was changed or is damaged."
    )


def fits(offset: Sequence[int], inputs: Sequence[int]) -> bool:
    """Whether a tensor of the first shape, an offset μ, can be added to one of the second and leaves it its shape.

    By hand: ``torch.broadcast_shapes`` takes longer than all else that a certificate checks.
    """
    there = inputs[len(inputs) - len(offset) :] if len(offset) <= len(inputs) else ()
    return len(there) == len(offset) and all(own in (1, length) for own, length in zip(offset, there, strict=True))
