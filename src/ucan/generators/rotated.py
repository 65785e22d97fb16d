"""Noise optimised for each input along the directions in which its loss curves most: RANCER, in low rank."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.nn import functional as F

from ucan.errors import InvalidInput
from ucan.generators.found import check_whole, source_of
from ucan.generators.optimised import Ancer
from ucan.laws import Law
from ucan.scales import Scale, Spiked


class Rancer(Ancer):
    """Σ = s(I − VVᵀ) + V diag(θ) Vᵀ for each input (RANCER, Eiras et al., 2022, in low rank). Scope: ``frozen``.

    V are the ``rank`` leading eigenvectors, by absolute value, of the input Hessian of the cross-entropy towards the class that
    is answered, the mean over noisy copies (the authors take it at the input itself, and all d directions, which is a d×d
    matrix for each input). From the data-dependent σ on, s and θ are optimised as the σᵢ of ``Ancer``: none falls below it.
    So all directions but a few may grow together, and the few where the classifier is sensitive need not.

    model, law, draws, steps, rate, smallest, shape_steps, shape_rate, weight: as for ``Ancer``.
    rank: the number of directions with a scale of their own.
    rounds: rounds of the power iteration; each takes ``rank`` products with the Hessian.
    """

    one_at_a_time = True

    def __init__(
        self, model: Any, law: Law, draws: int = 100, steps: int = 900, rate: float = 0.04, smallest: float = 0.01,
        shape_steps: int = 100, shape_rate: float = 0.04, weight: float = 2.0, rank: int = 8, rounds: int = 8,
    ) -> None:  # fmt: skip
        super().__init__(model, law, draws, steps, rate, smallest, shape_steps, shape_rate, weight)
        check_whole(rank=rank, rounds=rounds)
        self.rank, self.rounds = rank, rounds

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """μ = 0 and Σ of one input (1, *event)."""
        if len(x) != 1:
            raise InvalidInput(f"Rancer has a matrix for each input: give one input at a time, not {len(x)}.")
        with torch.inference_mode(False), torch.enable_grad():
            inner, rng = x.clone().float(), source_of(x)
            dim = inner.numel()
            if self.rank >= dim:
                raise InvalidInput(f"rank must be below the {dim} dimensions of an input, got {self.rank}.")
            start = self._isotropic(inner, rng).flatten()
            v = self.directions(inner, float(start), rng)
            copies = functools.partial(self._turned, inner, v, rng)
            found = self._climbed(copies, start.expand(1 + self.rank), functools.partial(self._sized, dim=dim),
                                  self.shape_steps, self.shape_rate)  # fmt: skip
        return x.new_zeros(()), Spiked(found[:1], v, found[1:] - found[0])

    def _turned(
        self, x: torch.Tensor, v: torch.Tensor, rng: torch.Generator, scales: torch.Tensor, count: int
    ) -> torch.Tensor:
        """Noisy copies with scales (s, θ₁, …) beside and along the directions."""
        eps = torch.randn(count, x.numel(), generator=rng, device=x.device)
        moved = scales[0] * eps + ((eps @ v) * (scales[1:] - scales[0])) @ v.T
        return self.view(x + self.noise_scale * moved.reshape(count, *x.shape[1:]))

    def _sized(self, scales: torch.Tensor, dim: int) -> torch.Tensor:
        """The geometric mean over all directions, and the smallest scale by its weight."""
        logs = scales.log()
        mean = ((dim - len(scales) + 1) * logs[0] + logs[1:].sum()) / dim
        return mean.exp() + self.weight * scales.amin()

    def directions(self, x: torch.Tensor, sigma: float, rng: torch.Generator) -> torch.Tensor:
        """V (d, rank): the Hessian's leading eigenvectors at x (1, *event) under noise of scale σ, by subspace iteration."""
        eps = torch.randn(self.draws, *x.shape[1:], generator=rng, device=x.device)
        with torch.no_grad():
            shown = self.view(x + self.noise_scale * sigma * eps)
            top = self.model(shown).softmax(-1).mean(0).argmax()
        leaf = x.detach().clone().requires_grad_()
        answers = self.model(self.view(leaf + self.noise_scale * sigma * eps)).float()
        loss = F.cross_entropy(answers, top.expand(self.draws))
        (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
        v = torch.linalg.qr(torch.randn(x.numel(), self.rank, generator=rng, device=x.device))[0]
        for _ in range(self.rounds):
            columns = [self._product(gradient, leaf, column.reshape(x.shape)) for column in v.T]
            product = torch.stack(columns, 1)
            size = float(torch.linalg.matrix_norm(product))
            if not (math.isfinite(size) and size > 0):  # a loss without curvature: any directions are as good
                break
            # A Hessian of low rank leaves columns of 0: a little of the old ones keeps the basis whole.
            v = torch.linalg.qr(product / size + 1e-6 * v)[0]
        found: torch.Tensor = v.detach()
        return found

    @staticmethod
    def _product(gradient: torch.Tensor, leaf: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        """The Hessian times one direction, flattened; 0 where the gradient is constant."""
        (found,) = torch.autograd.grad(gradient, leaf, column, retain_graph=True, allow_unused=True)
        return torch.zeros_like(leaf).flatten() if found is None else found.flatten()
