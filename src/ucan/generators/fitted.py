"""Noise in closed form, fitted to a budget and to the training inputs, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from ucan.generators.context import SHOWN, Context, check_shown
from ucan.generators.fixed import Fixed
from ucan.generators.shape import Estimate


class ForBudget:
    """The kind ``budget``: the closed form for a budget, ``Fixed.for_budget``, from the spread of the training inputs."""

    learns_size: ClassVar[bool] = False

    @classmethod
    def fitted(cls, context: Context, show: str = "copy", **parameters: Any) -> Fixed:
        """Fitted to the inputs; ``show`` is what the classifier sees."""
        check_shown(show)
        law = None if show == "copy" else context.law
        if context.images is None:
            estimate = None if law is None else Estimate.placeholder(context.shape)
            return Fixed(torch.ones(context.shape), estimate=estimate)
        return Fixed.for_budget(context.limits, context.images, show=law, standard=show == SHOWN[-1], **parameters)

    @classmethod
    def needs_inputs(cls, parameters: Mapping[str, Any]) -> bool:
        """Always."""
        return True

    @classmethod
    def purposes(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """A budget; 1 everywhere is ℓ∞."""
        return ("linf", "budget")


def closed_form(context: Context, power: float) -> torch.Tensor:
    """The σ of ``Fixed.for_budget`` from the training inputs; a placeholder of ones without them."""
    if context.images is None:
        return torch.ones(context.shape)
    scale: Any = Fixed.for_budget(context.limits, context.images, power=power).scale
    sigma: torch.Tensor = scale.sigma
    return sigma
