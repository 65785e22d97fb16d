"""Noise for a budget as settings describe it: fitted to the training inputs, or a placeholder that saved tensors fill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ucan.budget import Budget
from ucan.errors import InvalidInput
from ucan.generators import BudgetWise, Composed, Estimate, Fixed
from ucan.generators.shape import moments_of
from ucan.laws import Law

SHOWN = ("copy", "estimate", "standard")
BUDGET_KEYS = ("limit", "limits", "spread")


def check_budget(table: dict[str, Any] | None) -> None:
    """Refuse a budget table that says nothing, or more than one thing."""
    if table is not None and (len(table) != 1 or not set(table) <= set(BUDGET_KEYS)):
        raise InvalidInput(f"the budget is a table with one of {', '.join(BUDGET_KEYS)}, got {table!r}.")


def build_budget(table: dict[str, Any], shape: Sequence[int], images: torch.Tensor | None) -> Budget:
    """``limit``, one number for all; ``limits``, nested lists; or ``spread``, so many standard deviations of each coordinate.

    The last needs the training inputs; without them it is a placeholder of ones.
    """
    if "spread" not in table:
        return Budget.of(table.get("limit", table.get("limits")), shape)
    if images is None:
        return Budget.of(1.0, shape)
    return Budget.of(
        float(table["spread"]) * moments_of(images)[1], shape, name=f"{table['spread']:g} standard deviations"
    )


@dataclass(frozen=True)
class Fitted:
    """What noise for a budget is made from; ``images`` are the training inputs, None where saved tensors will follow."""

    shape: tuple[int, ...]
    budget: Budget
    law: Law
    images: torch.Tensor | None

    def fixed(self, show: str = "copy", **parameters: Any) -> Fixed:
        """The closed form, ``Fixed.for_budget``, from the data's spread; ``show`` is what the classifier sees."""
        _check_shown(show)
        law = None if show == "copy" else self.law
        if self.images is not None:
            return Fixed.for_budget(self.budget, self.images, show=law, standard=show == "standard", **parameters)
        return Fixed(torch.ones(self.shape), estimate=None if law is None else Estimate.placeholder(self.shape))

    def learned(self, show: str = "copy", power: float = 0.5, **parameters: Any) -> BudgetWise:
        """``BudgetWise``, learned from the closed form on."""
        _check_shown(show, SHOWN[::2])
        noise = self.law.std(self.budget.dim)
        return BudgetWise(
            self.shape, self.budget, start=self._shape(power), signal=self._signal(show), noise=noise, **parameters
        )

    def composed(self, show: str = "copy", power: float | None = None, **parameters: Any) -> Composed:
        """``Composed`` for the budget; with a power, both looks have the closed form's shape to start from."""
        _check_shown(show, SHOWN[::2])
        prior = None if power is None else self._shape(power)
        return Composed(self.shape[0], budget=self.budget.limits, prior=prior, signal=self._signal(show), **parameters)

    def _shape(self, power: float) -> torch.Tensor:
        if self.images is None:
            return torch.ones(self.shape)
        scale: Any = Fixed.for_budget(self.budget, self.images, power=power).scale
        sigma: torch.Tensor = scale.sigma
        return sigma

    def _signal(self, show: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        if show == "copy":
            return None
        return (torch.zeros(self.shape), torch.ones(self.shape)) if self.images is None else moments_of(self.images)


def _check_shown(show: str, known: tuple[str, ...] = SHOWN) -> None:
    if show not in known:
        raise InvalidInput(f"generator.show must be one of {', '.join(known)}, got {show!r}.")
