"""Uniform noise on a cube."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ucan.laws.base import CELL, UNIT, Array, DrawError, Law


@dataclass(frozen=True)
class Uniform(Law):
    """Uniform on [−λ, λ]^d. With the gap g = p_a − p_b (2p − 1 in the binary form) the radius is

        ℓ1:  λ g
        ℓ∞:  2λ (1 − (1 − g/2)^(1/d))

    Both tight: all that a shift can change is the volume that the two cubes do not share. Neither exceeds its value
    at p = 1, so a larger radius has no ``probability``.
    """

    norms: ClassVar[tuple[float, ...]] = (1, math.inf)
    fusible: ClassVar[bool] = True

    def _draw(self, n: int, dim: int, rng: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        return torch.rand(n, dim, generator=rng, device=rng.device, dtype=dtype).mul_(2).sub_(1).mul_(self.scale)

    def uniforms(self, dim: int) -> int:
        """One for each coordinate."""
        return dim

    def unit_parts(self, uniform: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
        """2u − 1, which is exact."""
        return (2 * uniform - 1,)

    def draw_error(self, dim: int, width: int) -> DrawError:
        """Nothing is rounded; what is left is that u stands for a cell."""
        return DrawError(
            failure=dim * CELL,
            drift=UNIT,
            size=math.sqrt(dim),
            reach=1.0,
            travel=2 * math.sqrt(width),
            pieces=1,
            peak=math.sqrt(width) / 2,
        )

    def _unit_std(self, dim: int) -> float:
        return 1 / math.sqrt(3)

    def _radius(self, p_a: Array, p_b: Array, norm: float, dim: int) -> Array:
        gap = p_a - p_b
        if norm == 1:
            return self.scale * gap
        # (1 − g/2)^(1/d) is 1 to the last digits when d is large: take 1 minus it without forming it.
        return -2 * self.scale * np.expm1(np.log1p(-gap / 2) / dim)

    def _probability(self, radius: Array, norm: float, dim: int) -> Array:
        half = radius / (2 * self.scale)
        excess = half if norm == 1 else -np.expm1(dim * np.log1p(-np.minimum(half, 1 - 2**-53)))
        return np.where(excess <= 0.5, 0.5 + excess, np.nan)
