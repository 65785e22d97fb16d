"""Laplace noise, and the quantile function that it shares with exponential ℓ∞ noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ucan.laws.base import CELL, DEEPEST, RARE, UNIT, Array, DrawError, Law, along_quantiles


def laplace_quantile(p: Array) -> Array:
    """Quantile of the unit Laplace distribution, exact near p = 1/2 and near both ends."""
    tail = np.minimum(p, 1 - p)
    # log(2·tail); near tail = 1/2 the logarithm is small and needs its argument's distance from 1, which is exact there.
    size = -np.where(tail < 0.25, np.log(2 * tail), np.log1p(2 * tail - 1))
    found: Array = np.where(p < 0.5, -size, size)
    return found


def laplace_probability(radius: Array) -> Array:
    """The p at which the unit Laplace quantile reaches ``radius`` ≥ 0."""
    return 0.5 - np.expm1(-radius) / 2


def laplace_cdf(z: Array) -> Array:
    """The distribution function of the unit Laplace distribution."""
    tail = np.exp(-np.abs(z)) / 2
    return np.where(z < 0, tail, 1 - tail)


def laplace_shifted(p: Array, steps: Array) -> Array:
    """What is left of p after so many λ, where mass moves at the rate min(p, 1 − p)/λ: down the Laplace quantile."""
    return along_quantiles(p, steps, laplace_quantile, laplace_cdf)


@dataclass(frozen=True)
class Laplace(Law):
    """Density ∝ exp(−‖z‖₁/λ). Against ℓ1 the radius is λ/2 (q(p_a) − q(p_b)), q the Laplace quantile;
    −λ log(2(1−p)) in the binary form. Tight.
    """

    norms: ClassVar[tuple[float, ...]] = (1,)
    fusible: ClassVar[bool] = True

    def _draw(self, n: int, dim: int, rng: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        # An exponential size with a fair sign; inverting one uniform draw instead would cut the tail at its last bit.
        size = torch.empty(n, dim, device=rng.device, dtype=dtype).exponential_(generator=rng)
        negative = torch.randint(0, 2, (n, dim), generator=rng, device=rng.device, dtype=torch.bool)
        return torch.where(negative, -size, size).mul_(self.scale)

    def uniforms(self, dim: int) -> int:
        """One for each coordinate."""
        return dim

    def unit_parts(self, uniform: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
        """The side of t = 2u − 1 is the sign, −log|t| the size."""
        side = 2 * uniform - 1
        return (torch.copysign(side.abs().clamp_min(UNIT).log_(), side),)

    def draw_error(self, dim: int, width: int) -> DrawError:
        """Sizes end at 36.8. The sum of the sizes is Gamma(d), and ‖z‖₂² is at most their sum times the largest."""
        size = math.sqrt(DEEPEST * (dim + math.sqrt(2 * dim * RARE) + RARE))
        return DrawError(
            failure=2 * dim * CELL + math.exp(-RARE),
            drift=5 * UNIT,
            size=size,
            reach=DEEPEST,
            travel=2 * DEEPEST * math.sqrt(width),
            pieces=2,
            peak=math.sqrt(width) / 2,
        )

    def _unit_std(self, dim: int) -> float:
        return math.sqrt(2)

    def _radius(self, p_a: Array, p_b: Array, norm: float, dim: int) -> Array:
        return self.scale * (laplace_quantile(p_a) - laplace_quantile(p_b)) / 2

    def _probability(self, radius: Array, norm: float, dim: int) -> Array:
        return laplace_probability(radius / self.scale)

    def _shifted(self, p: Array, r: Array, norm: float, dim: int) -> Array:
        return laplace_shifted(p, r / self.scale)
