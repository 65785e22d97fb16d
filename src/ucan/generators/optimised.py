"""Noise optimised for each input by gradient ascent on its own radius: data-dependent smoothing and ANCER."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from scipy import special
from torch import nn

from ucan.bounds import lower_bound
from ucan.catalogue import call
from ucan.errors import InvalidInput, ModelError, UnsupportedNorm
from ucan.generators.base import Generator
from ucan.generators.context import Context
from ucan.laws import Gaussian, Law
from ucan.scales import Diagonal, Scale
from ucan.sidecar import input_hash

# The probabilities that the radius is optimised at stay inside: at 0 and 1 it has no gradient.
LEAST, MOST = 0.02, 0.98
# Of the scales on the way, the start included, this many are compared by votes, each with VOTES times the draws of a step.
STOPS, VOTES = 10, 10
# The level of the lower bound on p that they are compared by.
COMPARED = 0.05

# Noisy copies (count, *event) with given scales, and a size of the scales.
Copies = Callable[[torch.Tensor, int], torch.Tensor]
Size = Callable[[torch.Tensor], torch.Tensor]


class DataDependent(Generator):
    """σ chosen for each input by gradient ascent on its radius (Alfarra et al., 2022). Scope: ``frozen``.

    The radius that is climbed, σ/2·(Φ⁻¹(p₁) − Φ⁻¹(p₂)) with p from softmax outputs, is an estimate, and grows with σ where
    votes no longer do. So of eleven σ on the way, the start included, the one with the largest radius by votes is taken (this
    is ours; the authors take the last). What a certificate says is computed from other votes, as for any noise. It speaks of
    the noise held at this input: **a pipeline that optimises σ anew at a perturbed input is not covered** (docs/scopes.md); a
    registry makes it a guarantee (docs/registry.md).

    model: the classifier f, a network that answers with logits; its gradient is used.
    law: Gaussian noise; the ascent starts at its scale, σ = 1.
    draws: noisy copies in each step.
    steps: steps of the ascent.
    rate: length of a step, times the gradient, in units of σ.
    smallest: the least σ, as a share of the law's scale.
    """

    scope = "frozen"
    on_model = True

    def __init__(
        self, model: Any, law: Law, draws: int = 100, steps: int = 900, rate: float = 0.04, smallest: float = 0.01
    ) -> None:
        super().__init__()
        _check_model(model)
        check_gaussian(law)
        for name, value in (("draws", draws), ("steps", steps)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} must be a whole number of at least 1, got {value!r}.")
        if not (math.isfinite(rate) and rate > 0 and 0 < smallest <= 1):
            raise InvalidInput("rate must be above 0, and smallest in (0, 1].")
        self.model, self.noise_scale = model, law.scale
        self.draws, self.steps, self.rate, self.smallest = draws, steps, float(rate), float(smallest)

    @classmethod
    def fitted(cls, context: Context, **parameters: Any) -> Generator:
        """Made by its name, for a classifier and its law."""
        if context.model is None:
            raise InvalidInput(
                "noise optimised for each input needs a classifier that is there: certify with it (--noise), it is not trained."
            )
        made: Generator = call("generator", functools.partial(cls, context.model, context.law), parameters)
        return made

    def check_claim(self, law: Law, norm: float | None = None) -> None:
        """Gaussian noise of the scale that σ was optimised for."""
        check_gaussian(law)
        if law.scale != self.noise_scale:
            raise InvalidInput(f"this noise is optimised for the scale {self.noise_scale:g}, not {law.scale:g}.")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """μ = 0 and one σ for each input, the same for all its coordinates."""
        sigmas = [self._optimised(one) for one in x.split(1)]
        return x.new_zeros(()), Diagonal(torch.cat(sigmas).to(x.dtype).expand_as(x).contiguous())

    def _optimised(self, x: torch.Tensor) -> torch.Tensor:
        """The scales for one input (1, *event), of a shape that broadcasts against it."""
        with torch.inference_mode(False), torch.enable_grad():
            return self._isotropic(x.clone().float(), source_of(x))

    def _isotropic(self, x: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        sigma = torch.ones((1,) * x.ndim, device=x.device, requires_grad=True)
        way, copies = [sigma], functools.partial(self._copies, x, rng)
        for step in range(self.steps):
            radius = sigma * self._gap(copies, sigma) * (self.noise_scale / 2)
            (slope,) = torch.autograd.grad(radius.sum(), sigma)
            with torch.no_grad():
                sigma = (sigma + self.rate * slope / self.noise_scale).clamp_min(self.smallest)
            sigma.requires_grad_()
            way += [sigma] if compared(step, self.steps) else []
        return self._best(copies, way, torch.amin)

    @torch.no_grad()
    def _best(self, copies: Copies, way: Sequence[torch.Tensor], size: Size) -> torch.Tensor:
        """Of these scales the one with the largest size(σ)·Φ⁻¹(p), p bounded from below by votes; the first one of equals."""
        votes = VOTES * self.draws
        worth = []
        for sigma in way:
            hits = int(self.model(copies(sigma, votes)).argmax(-1).bincount().max())
            worth.append(float(size(sigma)) * float(special.ndtri(lower_bound(hits, votes, COMPARED))))
        return way[max(range(len(way)), key=worth.__getitem__)].detach()

    def _copies(self, x: torch.Tensor, rng: torch.Generator, sigma: torch.Tensor, count: int) -> torch.Tensor:
        """Noisy copies (count, *event) of one input (1, *event) with these scales."""
        eps = torch.randn(count, *x.shape[1:], generator=rng, device=x.device)
        return self.view(x + self.noise_scale * sigma * eps)

    def _gap(self, copies: Copies, sigma: torch.Tensor) -> torch.Tensor:
        """Φ⁻¹(p₁) − Φ⁻¹(p₂) of the mean softmax over noisy copies; differentiable in σ."""
        p = torch.softmax(self.model(copies(sigma, self.draws)).float(), -1).mean(0).topk(2).values.clamp(LEAST, MOST)
        quantiles = torch.special.ndtri(p)
        found: torch.Tensor = quantiles[0] - quantiles[1]
        return found

    def _climbed(self, copies: Copies, start: torch.Tensor, size: Size, steps: int, rate: float) -> torch.Tensor:
        """Scales from ``start`` on, by Adam on size(σ)·gap, none below where it began; the best on the way by votes."""
        sigma = start.clone().requires_grad_()
        way, optimiser = [start.clone()], torch.optim.Adam([sigma], lr=rate)
        for step in range(steps):
            (sigma.grad,) = torch.autograd.grad(-size(sigma) * self._gap(copies, sigma), sigma)
            optimiser.step()
            with torch.no_grad():
                sigma.copy_(torch.maximum(sigma, start))
            way += [sigma.detach().clone()] if compared(step, steps) else []
        return self._best(copies, way, size)


class Ancer(DataDependent):
    """A diagonal Σ chosen for each input (ANCER, Eiras et al., 2022). Scope: ``frozen``; see ``DataDependent``.

    From the data-dependent σ on, Adam maximises (geometric mean of σᵢ + weight·min σᵢ)·(Φ⁻¹(p₁) − Φ⁻¹(p₂)) with no σᵢ below
    where it began. Of the Σ on the way the best by votes is taken, as there.

    model, law, draws, steps, rate, smallest: as for ``DataDependent``, which is the start.
    shape_steps: steps of the second ascent.
    shape_rate: Adam's learning rate there.
    weight: κ, how much the smallest scale counts.
    """

    def __init__(
        self,
        model: Any,
        law: Law,
        draws: int = 100,
        steps: int = 900,
        rate: float = 0.04,
        smallest: float = 0.01,
        shape_steps: int = 100,
        shape_rate: float = 0.04,
        weight: float = 2.0,
    ) -> None:
        super().__init__(model, law, draws, steps, rate, smallest)
        if isinstance(shape_steps, bool) or not isinstance(shape_steps, int) or shape_steps < 1:
            raise InvalidInput(f"shape_steps must be a whole number of at least 1, got {shape_steps!r}.")
        if not (math.isfinite(shape_rate) and shape_rate > 0 and math.isfinite(weight) and weight >= 0):
            raise InvalidInput("shape_rate must be above 0, and weight 0 or more.")
        self.shape_steps, self.shape_rate, self.weight = shape_steps, float(shape_rate), float(weight)

    def _optimised(self, x: torch.Tensor) -> torch.Tensor:
        """The scales for one input (1, *event)."""
        with torch.inference_mode(False), torch.enable_grad():
            inner, rng = x.clone().float(), source_of(x)
            start = self._isotropic(inner, rng).expand_as(inner)
            copies = functools.partial(self._copies, inner, rng)
            return self._climbed(copies, start, self._size, self.shape_steps, self.shape_rate)

    def _size(self, sigma: torch.Tensor) -> torch.Tensor:
        """The geometric mean, and the smallest scale by its weight."""
        return sigma.log().mean().exp() + self.weight * sigma.amin()


def compared(step: int, steps: int) -> bool:
    """Whether the scales after this step are among those that are compared; the last ones are."""
    return (step + 1) * STOPS // steps > step * STOPS // steps


def check_gaussian(law: Law) -> None:
    """Refuse a law whose radius is not Φ⁻¹."""
    if type(law) is not Gaussian:
        raise UnsupportedNorm(f"noise optimised for each input is Gaussian, not {type(law).__name__}: use Gaussian.")


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ModelError("optimised noise needs the gradient of a torch.nn.Module: give the network itself.")


def source_of(x: torch.Tensor) -> torch.Generator:
    """Draws that follow from the input: the same noise is found at it whenever it is asked for.

    The hash is of another text than those of the streams that votes are drawn from (``ucan.votes.Stream``): a bound on p
    holds because, Σ once chosen, its votes are independent of the draws that chose it.
    """
    seed = hashlib.sha256(f"optimised/{input_hash(x)}".encode()).hexdigest()[:8]
    return torch.Generator(x.device).manual_seed(int(seed, 16))
