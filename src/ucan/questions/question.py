"""What a question is: parameters, what it needs to be told, and how it concludes from what was kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from ucan.certificate import Abstention, among_invalid
from ucan.engine import Engine, Setup
from ucan.evidence import Evidence
from ucan.generators import Generator
from ucan.guards import check_inside
from ucan.plan import CertifyPlan
from ucan.questions.looks import Look
from ucan.questions.record import Answer
from ucan.questions.shift import Shift
from ucan.stopping import Stop
from ucan.votes import Votes


@dataclass(frozen=True, eq=False)
class Asked:
    """What a question concludes from: one input, the noise held there, and what was kept of the answers of each phase.

    ``n`` answers were drawn, beside those that chose; ``looks`` are the numbers of them at which a stopping rule looks.
    """

    engine: Engine
    setup: Setup
    M: Generator
    x: torch.Tensor
    plan: CertifyPlan
    shift: Shift
    select: Any
    estimate: Any
    n: int
    looks: tuple[int, ...] = ()

    @property
    def now(self) -> Look:
        """The answers that there are, and the level of what is concluded from them."""
        return Look.at(self.n, self.looks, self.plan.level)

    @property
    def last(self) -> Look:
        """The look at the cap."""
        return Look.at(self.plan.n, self.looks, self.plan.level)

    def evidence(self, bound: str) -> Evidence:
        """The evidence: for classes the votes, else how many copies had a valid answer."""
        plan, kept = self.plan, (self.select, self.estimate)
        bound += Look.suffix(self.n, self.looks)
        return evidence_of(self.engine, self.setup, self.x, plan, *kept, self.n, bound, self.looks)

    def shared(self, bound: str, radius: float) -> dict[str, Any]:
        """The fields that all answers have; noise that changes inside the region is refused."""
        region = self.shift.region(radius)
        check_inside(self.engine.M, self.M, self.x, region, self.engine.law)
        return {
            "norm": self.plan.norm,
            "scope": self.M.scope,
            "evidence": self.evidence(bound),
            "region": region,
            "tau": self.shift.tau,
            "budget": self.plan.budget,
        }

    def abstention(self, bound: str, reason: str) -> Abstention:
        """No claim, for this reason."""
        evidence = self.evidence(bound)
        reason += among_invalid(evidence)
        return Abstention(self.plan.norm, self.M.scope, evidence, reason, budget=self.plan.budget)


def evidence_of(
    engine: Engine,
    setup: Setup,
    x: torch.Tensor,
    plan: CertifyPlan,
    select: Any,
    estimate: Any,
    n: int,
    bound: str,
    looks: tuple[int, ...] = (),
) -> Evidence:
    """The evidence of what was kept of the answers that choose and of n others, on one input (1, *event)."""
    chose = None if select is None else _votes(select, plan.n0).counts
    n0 = 0 if chose is None else plan.n0
    return engine.evidence(setup, x, _votes(estimate, n), chose, n0, n, plan, bound, looks=looks)


def _votes(kept: Any, n: int) -> Votes:
    if isinstance(kept, Votes):
        return kept
    invalid = 0 if kept is None else kept.invalid
    return Votes(torch.tensor([n - invalid]), invalid)


@dataclass(frozen=True)
class Question(ABC):
    """A question to a smoothed model, with its parameters. ``selects``: some copies choose what others test."""

    name: ClassVar[str]
    selects: ClassVar[bool] = True

    @abstractmethod
    def conclude(self, asked: Asked) -> Answer | Abstention:
        """The answer, or an abstention with its reason."""

    @abstractmethod
    def settled(self, asked: Asked, radii: tuple[float, ...]) -> bool:
        """Whether what it claims at these radii is decided: each claim holds by now, or will not hold at the cap either."""

    def check(self, f: Any, stop: Stop | None = None) -> None:
        """Refuse, before any work, a question that this model cannot be asked, or that cannot be stopped in this way."""
        return

    def settings(self) -> Mapping[str, Any]:
        """Its parameters as plain values; those that are None are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}
