"""What can be attacked, and the changes that it covers: a region, and the changes within a budget."""

from __future__ import annotations

from typing import Protocol

import torch

from ucan.certificate import Certificate, Level
from ucan.certificate.level import HALF

# A certificate, or what a router claims of a probability.
Claim = Certificate | Level


def of_the_answer(certificate: Certificate) -> Claim:
    """What the answer of a router's certificate must keep: the lead, or more than the floor that the choice states."""
    answer, choice = certificate.answer, certificate.choice
    if not isinstance(choice, Level) or choice.floor == HALF:
        return answer
    own = (answer.norm, answer.scope, answer.evidence, choice.floor, True, answer.prediction, answer.p_lower)
    return Level(*own, answer.region)


class Sized(Protocol):
    """A set around 0 given by a size function: a change is inside if its size is below a limit."""

    def size(self, delta: torch.Tensor) -> torch.Tensor:
        """The size of each change of a batch (batch, *event), in float64."""

    def reach(self) -> torch.Tensor:
        """How far each coordinate can change alone, of the event's shape, in float64."""


class Both:
    """The union of a region and a budget; a size is the smaller of the two fractions of what is claimed."""

    def __init__(self, certificate: Claim) -> None:
        assert certificate.budget is not None and certificate.budget_factor, "there is a claim about the budget"
        self.region, self.budget, self.factor = certificate.region, certificate.budget, certificate.budget_factor

    def size(self, delta: torch.Tensor) -> torch.Tensor:
        """Below 1 where the region or the budget's factor covers the change."""
        inside = self.region.size(delta).cpu() / self.region.radius
        return torch.minimum(inside, self.budget.size(delta) / self.factor)

    def reach(self) -> torch.Tensor:
        """As far as the region or the budget's factor covers a change of the coordinate alone."""
        return torch.maximum(self.region.reach().cpu(), self.factor * self.budget.box.cpu())


def claimed(certificate: Claim) -> tuple[Sized, float]:
    """The set that a claim covers, and its limit."""
    if certificate.budget is None or not certificate.budget_factor:
        return certificate.region, certificate.region.radius
    return Both(certificate), 1.0


def share(certificate: Claim, delta: torch.Tensor) -> float:
    """The size of a change (1, *event) as a fraction of what is claimed; inside if below 1."""
    inside, limit = claimed(certificate)
    return float(inside.size(delta)[0]) / limit
