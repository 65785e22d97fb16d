"""What a certificate claims, as one set to be inside of: its region, and with a budget the changes within it as well."""

from __future__ import annotations

from typing import Protocol

import torch

from ucan.certificate import Certificate


class Sized(Protocol):
    """A set around 0 that is told by a size: a change is inside where that is below a limit."""

    def size(self, delta: torch.Tensor) -> torch.Tensor:
        """The size of each change of a batch (batch, *event), in float64."""


class Both:
    """A region and a budget together; sizes are shares of what is claimed, the smaller of the two."""

    def __init__(self, certificate: Certificate) -> None:
        assert certificate.budget is not None and certificate.budget_factor, "there is a claim about the budget"
        self.region, self.budget, self.factor = certificate.region, certificate.budget, certificate.budget_factor

    def size(self, delta: torch.Tensor) -> torch.Tensor:
        """Below 1 where the region or the budget's factor covers the change."""
        inside = self.region.size(delta).cpu() / self.region.radius
        return torch.minimum(inside, self.budget.size(delta) / self.factor)


def claimed(certificate: Certificate) -> tuple[Sized, float]:
    """The set that a certificate is about, and the size at which it ends."""
    if certificate.budget is None or not certificate.budget_factor:
        return certificate.region, certificate.region.radius
    return Both(certificate), 1.0


def share(certificate: Certificate, delta: torch.Tensor) -> float:
    """How far out a change (1, *event) lies, as a share of what is claimed: inside below 1."""
    inside, limit = claimed(certificate)
    return float(inside.size(delta)[0]) / limit
