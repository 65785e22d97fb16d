"""The one contract of everything that chooses μ and Σ."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn

from ucan.certificate import Scope
from ucan.errors import InvalidInput
from ucan.laws import Law
from ucan.region import Region
from ucan.scales import Scale, as_scale


class Generator(nn.Module):
    """Maps inputs to the offset μ and the scale Σ of their noise, y = x + μ + Σε, and declares whose guarantee follows.

    ``scope`` is ``pipeline`` only if μ and Σ are the same for every input; a generator that looks at its input is
    ``frozen``: the certificate then speaks of the noise computed at this x and held there, not of a pipeline that
    would compute it anew from a perturbed input.

    Write ``forward``; the rest follows from it.
    """

    scope: ClassVar[Scope]

    @abstractmethod
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """(μ, Σ) for inputs (batch, *event). μ broadcasts against x; a diagonal Σ may hold one σ per input."""

    def view(self, y: torch.Tensor) -> torch.Tensor:
        """What the classifier is shown of noisy inputs (…, *event): by default all of it."""
        return y

    def perturb(self, x: torch.Tensor, law: Law, n: int, rng: torch.Generator) -> torch.Tensor:
        """N noisy copies of every input: (batch, *event) → (n, batch, *event), before ``view``."""
        mu, scale = self(x)
        batch, event = x.shape[0], x.shape[1:]
        eps = law.sample(n * batch, event, rng, x.dtype).reshape(n, batch, *event)
        return as_scale(scale).apply(eps).add_(x + mu)

    def region(self, law: Law, p: float, norm: float, x: torch.Tensor, p_b: float | None = None) -> Region:
        """The region certified at one input (1, *event) when its class has probability at least p."""
        _, scale = self(x)
        event = tuple(x.shape[1:])
        own = law.region_norm(norm)
        return Region(scale, law.radius(p, own, math.prod(event), p_b), own, event)

    def check(self, x: torch.Tensor, law: Law) -> None:
        """Refuse, before any work, an input (1, *event) or a law that this generator cannot serve."""
        mu, scale = self(x)
        if not torch.isfinite(mu).all():
            raise InvalidInput(f"{type(self).__name__}: μ holds a value that is not finite.")
        as_scale(scale).check()
        as_scale(scale).check_dim(math.prod(x.shape[1:]))
        try:
            torch.broadcast_shapes(mu.shape, x.shape)
        except RuntimeError as error:
            raise InvalidInput(
                f"{type(self).__name__}: μ of shape {tuple(mu.shape)} does not fit inputs of {tuple(x.shape[1:])}."
            ) from error

    def describe(self) -> str:
        """One line for certificates and tables."""
        return type(self).__name__


class Fixed(Generator):
    """Any Σ and μ of one's own, the same for every input. Scope: ``pipeline``.

    ``scale`` is a float, a tensor of the input's shape or one of ``ucan.scales``; ``mean`` a tensor of the input's
    shape, or None for 0.
    """

    scope = "pipeline"
    mean: torch.Tensor

    def __init__(self, scale: Any, mean: Any = None) -> None:
        super().__init__()
        self.scale = as_scale(scale)
        self.scale.check()
        mu = torch.zeros(()) if mean is None else torch.as_tensor(mean, dtype=torch.get_default_dtype())
        if not torch.isfinite(mu).all():
            raise InvalidInput("Fixed: mean holds a value that is not finite.")
        self.register_buffer("mean", mu)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """The given μ and Σ."""
        return self.mean.to(x), self.scale

    def _apply(self, fn: Any, recurse: bool = True) -> Fixed:
        # `.to(device)` must take Σ along: its tensors are no buffers of this module.
        super()._apply(fn, recurse)
        self.scale = self.scale.to(fn(torch.zeros(())).device)
        return self

    def describe(self) -> str:
        """The kind of Σ."""
        return f"Fixed({type(self.scale).__name__})"


class Isotropic(Fixed):
    """Σ = I and μ = 0: the classical smoothing of Cohen et al. Scope: ``pipeline``."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def describe(self) -> str:
        """Isotropic."""
        return "Isotropic"
