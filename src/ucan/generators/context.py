"""What noise is made for by its name: the inputs' shape and law, and the training inputs and the budget it is fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ucan.budget import Budget
from ucan.errors import InvalidInput
from ucan.generators.shape import moments_of
from ucan.laws import Law

# What the classifier is shown: the noisy copy, a linear estimate, or that in units of the signal's deviation.
SHOWN = ("copy", "estimate", "standard")


@dataclass(frozen=True)
class Context:
    """What a generator is made for.

    ``images`` are the training inputs (n, *event); without them, noise that is fitted to them is a placeholder, to be
    filled from saved tensors. ``budget`` is what the noise is to protect from, 1 everywhere by default. ``model`` is the
    classifier, for noise that is optimised on it.
    """

    shape: tuple[int, ...]
    law: Law
    images: torch.Tensor | None = None
    budget: Budget | None = None
    model: Any = None

    @property
    def limits(self) -> Budget:
        """The budget, or 1 everywhere."""
        return Budget.of(1.0, self.shape) if self.budget is None else self.budget

    def signal(self, show: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Mean and standard deviation of the inputs, where the classifier is shown an estimate; a placeholder without."""
        if show == "copy":
            return None
        return (torch.zeros(self.shape), torch.ones(self.shape)) if self.images is None else moments_of(self.images)


def check_shown(show: str, known: tuple[str, ...] = SHOWN) -> None:
    """Refuse what a kind of noise cannot show."""
    if show not in known:
        raise InvalidInput(f"generator.show must be one of {', '.join(known)}, got {show!r}.")


def fits(parameters: Mapping[str, Any]) -> bool:
    """Whether noise with these parameters is fitted to the training inputs: it shows an estimate, or has a power."""
    return "power" in parameters or parameters.get("show", "copy") != "copy"
