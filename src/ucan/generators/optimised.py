"""Noise optimised for each input by gradient ascent on its own radius: data-dependent smoothing and ANCER."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ucan.errors import InvalidInput
from ucan.generators.found import Copies, Found, Size, check_numbers, check_whole, source_of
from ucan.laws import Law

# The probabilities that the radius is optimised at stay inside: at 0 and 1 it has no gradient.
LEAST, MOST = 0.02, 0.98
# Of the scales on the way, the start included, this many are compared by votes, each with VOTES times the draws of a step.
STOPS, VOTES = 10, 10


class DataDependent(Found):
    """σ chosen for each input by gradient ascent on its radius (Alfarra et al., 2022). Scope: ``frozen``; see ``Found``.

    The radius that is climbed, σ/2·(Φ⁻¹(p₁) − Φ⁻¹(p₂)) with p from softmax outputs, is an estimate, and grows with σ where
    votes no longer do. So of eleven σ on the way, the start included, the one with the largest radius by votes is taken (this
    is ours; the authors take the last).

    model: the classifier f, a network that answers with logits; its gradient is used.
    law: Gaussian noise; the ascent starts at its scale, σ = 1.
    draws: noisy copies in each step.
    steps: steps of the ascent.
    rate: length of a step, times the gradient, in units of σ.
    smallest: the least σ, as a share of the law's scale.
    """

    def __init__(
        self, model: Any, law: Law, draws: int = 100, steps: int = 900, rate: float = 0.04, smallest: float = 0.01
    ) -> None:
        super().__init__(model, law)
        check_whole(draws=draws, steps=steps)
        check_numbers(rate=rate, smallest=smallest)
        if not (rate > 0 and 0 < smallest <= 1):
            raise InvalidInput("rate must be above 0, and smallest in (0, 1].")
        self.draws, self.steps, self.rate, self.smallest = draws, steps, float(rate), float(smallest)

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
        return self._best(copies, way, torch.amin, VOTES * self.draws)

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
        return self._best(copies, way, size, VOTES * self.draws)


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
        check_whole(shape_steps=shape_steps)
        check_numbers(shape_rate=shape_rate, weight=weight)
        if not (shape_rate > 0 and weight >= 0):
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
