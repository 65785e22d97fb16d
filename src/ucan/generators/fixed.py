"""Given noise: a Σ and μ that are the same for every input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ucan.budget import Budget
from ucan.errors import InvalidInput
from ucan.generators.base import Generator, issued, own_ways
from ucan.generators.context import Context
from ucan.generators.sampled import as_sampled, same
from ucan.generators.shape import FLOOR, Estimate, fitted_scales
from ucan.laws import Law
from ucan.scales import Scalar, Scale, as_scale, make_scale


class Fixed(Generator):
    """A given Σ and μ, the same for every input. Scope: ``pipeline``.

    ``scale`` is a float, a tensor of the input's shape or one of ``ucan.scales``; ``mean`` a tensor of the input's
    shape, or None for 0. With ``estimate`` the classifier gets that linear estimate of the input instead of the noisy copy;
    it is part of the classifier, and the guarantee covers it.
    """

    scope = "pipeline"
    mean: torch.Tensor
    estimate: Estimate | None

    def __init__(self, scale: Any, mean: Any = None, estimate: Estimate | None = None) -> None:
        super().__init__()
        given = as_scale(scale)
        self.scale = given.copied()
        self.scale.known("check", self.scale.check)
        mu = torch.zeros(()) if mean is None else torch.as_tensor(mean).detach().clone()
        if not torch.isfinite(mu).all():
            raise InvalidInput("Fixed: mean holds a value that is not finite.")
        self.register_buffer("mean", mu)
        for name, tensor in given.tensors().items():
            self.register_buffer(_buffer_name(name), tensor.detach().clone())
        self.register_module("estimate", estimate)
        self.register_load_state_dict_post_hook(_rebuild)  # type: ignore[no-untyped-call]

    @classmethod
    def fitted(cls, context: Context, **parameters: Any) -> Generator:
        """Made by its name; ``scale`` may be a kind of Σ by name, as text or as a table with ``kind`` and its parameters."""
        scale = parameters.get("scale")
        if isinstance(scale, str | Mapping):
            parameters = {**parameters, "scale": make_scale(scale, context.shape)}
        return super().fitted(context, **parameters)

    @classmethod
    def tells(cls, settings: Mapping[str, Any]) -> bool:
        """Yes, unless an estimate is shown, or a subclass makes its copies or regions itself."""
        given = cls.forward is Fixed.forward and cls.view is Fixed.view and "estimate" not in settings
        return given and not own_ways(cls)

    @staticmethod
    def for_budget(
        budget: Any,
        data: Any = None,
        scale: float = 1.0,
        harm: Any = None,
        power: float | None = None,
        floor: float = FLOOR,
        unit: Any = None,
        show: Law | None = None,
        standard: bool = False,
    ) -> Fixed:
        """Noise fitted to a budget: σᵢ ∝ √bᵢ·wᵢ^(−1/4), mean (bᵢ/σᵢ)² that of isotropic noise of this ``scale``.

        So at the same p both certify the same box (Gaussian law), and this one has its noise where it costs the least: among
        all σ with this mean it has the smallest Σ wᵢσᵢ² (docs/shape.md). ``budget`` is a number, a map of the input's shape
        or a ``Budget``; the harm wᵢ is

        - 1 everywhere, without data and harm: σᵢ ∝ √bᵢ, and for an equal budget isotropic noise;
        - the variance of coordinate i over ``data`` (n, *event): σᵢ ∝ √bᵢ/√stdᵢ;
        - ``harm``, where it is given: from ``harm_of``, or the squares of a model's importances.

        ``power`` replaces the 1/2 in σᵢ ∝ √bᵢ·√wᵢ^(−power): 0 ignores the harm, 3/4 was better than 1/2 on digits, and 1 is
        the largest useful value. ``floor`` is added to every √wᵢ, as a share of the largest, so that every σ stays bounded.
        Coordinates of different units need ``unit``, the size of one step in each (their standard deviations, say): all is
        then computed in these. Where the budget is 0 nothing may change: there σ is a thousandth of the smallest other.

        With ``show``, the law that the noise will be drawn from, the classifier gets the linear estimate of the input, (y −
        m)·v/(v + σ²) + m with mean and variance from ``data``; ``standard`` shows it as (y − m)·√v/(v + σ²).
        """
        if data is None and harm is None and not isinstance(budget, Budget) and torch.as_tensor(budget).ndim == 0:
            Budget.of(budget, ())
            return Fixed(float(scale))
        asked, sigma = fitted_scales(budget, data, scale, harm, 0.5 if power is None else power, floor, unit)
        if show is None:
            return Fixed(sigma)
        if data is None:
            raise InvalidInput("the linear estimate needs data for its mean and variance: give data=.")
        return Fixed(sigma, estimate=Estimate.of(data, sigma * show.std(asked.dim), standard))

    def view(self, y: torch.Tensor) -> torch.Tensor:
        """The noisy inputs, or the linear estimate from them."""
        return y if self.estimate is None else self.estimate(y)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """The given μ and Σ."""
        return self.mean.to(x), self.scale

    def at(self, x: torch.Tensor) -> Generator:
        """The same noise as at every input; Σ was checked when this was made."""
        return issued(self, x, self.mean.to(x), as_sampled(self.scale, x.dtype))

    def looks(self) -> bool:
        """Not unless a subclass does."""
        return type(self).forward is not Fixed.forward or type(self).at is not Fixed.at

    def settings(self) -> dict[str, Any]:
        """The kind of Σ, a scalar's value, and whether an estimate is shown; tensors are part of the state."""
        scalar = {"scale": self.scale.value} if isinstance(self.scale, Scalar) else {}
        shown = {} if self.estimate is None else {"estimate": True}
        return {**super().settings(), "sigma": type(self.scale).__name__, **scalar, **shown}

    def cap(self) -> float:
        """Σ's largest factor."""
        return self.scale.largest()

    def describe(self) -> str:
        """The kind of Σ, and whether the classifier is shown an estimate."""
        return f"Fixed({type(self.scale).__name__}{'' if self.estimate is None else ', estimate'})"

    def _apply(self, fn: Any, recurse: bool = True) -> Fixed:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._rebuild()
        return self

    def _rebuild(self) -> None:
        """Σ from copies of its buffers, where they were moved or loaded: existing certificates keep their Σ."""
        mine = self.scale.tensors()
        now = {name: getattr(self, _buffer_name(name)) for name in mine}
        if not all(same(mine[name], tensor) for name, tensor in now.items()):
            self.scale = self.scale.with_tensors({name: tensor.clone() for name, tensor in now.items()})


class Isotropic(Fixed):
    """Σ = I and μ = 0: the classical smoothing of Cohen et al. Scope: ``pipeline``."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def describe(self) -> str:
        """Isotropic."""
        return "Isotropic"


def _rebuild(module: Fixed, keys: Any) -> None:
    """After loading a state: a function of the module, since a lambda could not be pickled."""
    module._rebuild()


def _buffer_name(name: str) -> str:
    return "scale_" + name.replace(".", "_")
