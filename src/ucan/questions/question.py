"""What a question is: parameters, what it needs to be told, and how it concludes from what was kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from ucan.certificate import Abstention
from ucan.engine import Engine, Setup
from ucan.evidence import Evidence
from ucan.generators import Generator
from ucan.guards import check_inside
from ucan.plan import CertifyPlan
from ucan.questions.record import Answer
from ucan.questions.shift import Shift
from ucan.votes import Votes


@dataclass(frozen=True, eq=False)
class Asked:
    """What a question concludes from: one input, the noise held there, and what was kept of the answers of each phase."""

    engine: Engine
    setup: Setup
    M: Generator
    x: torch.Tensor
    plan: CertifyPlan
    shift: Shift
    select: Any
    estimate: Any

    def evidence(self, bound: str) -> Evidence:
        """The evidence: for classes the votes, else how many copies had a valid answer."""
        plan, chose = self.plan, None if self.select is None else _votes(self.select, self.plan.n0).counts
        n0 = 0 if chose is None else plan.n0
        return self.engine.evidence(self.setup, self.x, _votes(self.estimate, plan.n), chose, n0, plan.n, plan, bound)

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
        }

    def abstention(self, bound: str, reason: str) -> Abstention:
        """No claim, for this reason."""
        return Abstention(self.plan.norm, self.M.scope, self.evidence(bound), reason)


def _votes(kept: Any, n: int) -> Votes:
    if isinstance(kept, Votes):
        return kept
    return Votes(torch.tensor([n - kept.invalid]), kept.invalid)


@dataclass(frozen=True)
class Question(ABC):
    """A question to a smoothed model, with its parameters. ``selects``: some copies choose what others test."""

    name: ClassVar[str]
    selects: ClassVar[bool] = True

    @abstractmethod
    def conclude(self, asked: Asked) -> Answer | Abstention:
        """The answer, or an abstention with its reason."""

    def check(self, f: Any) -> None:
        """Refuse, before any work, a question that this model cannot be asked; by default none is."""
        return

    def settings(self) -> Mapping[str, Any]:
        """Its parameters as plain values; those that are None are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}
