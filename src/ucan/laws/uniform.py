"""Uniform noise on a cube."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ucan.laws.base import CELL, SHAVE, UNIT, Array, DrawError, Law


@dataclass(frozen=True)
class Uniform(Law):
    """Uniform on [−λ, λ]^d. With the gap g = p_a − p_b (2p − 1 in the binary form) the radius is

        ℓ1:  λ g
        ℓ∞:  2λ (1 − (1 − g/2)^(1/d))

    Both tight: all that a shift can change is the volume that the two cubes do not share. Neither exceeds its value
    at p = 1, so a larger radius has no ``probability``.

    With the half-widths λσᵢ that volume is 1 − Π(1 − |δᵢ|/(2λσᵢ)), so the exact region is a product, larger than both
    the ℓ1 and the ℓ∞ region; ``box_factor`` is exact in it.
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

    def _shifted(self, p: Array, r: Array, norm: float, dim: int) -> Array:
        """p less the volume that the moved cube does not share: r/(2λ) at most in ℓ1, 1 − (1 − r/(2λ))^d in ℓ∞."""
        half = np.minimum(r / (2 * self.scale), 1.0)
        lost = half if norm == 1 else -np.expm1(dim * np.log1p(-half))
        return p - lost * (1 + SHAVE) - UNIT

    def _box_factor(self, p_a: float, p_b: float, scaled_budget: Array) -> float:
        """The root of Π(1 − εuᵢ/(2λ)) = 1 − g/2, from below.

        The logarithm of the product is 0 at ε = 0 and concave, so a relative error in it moves the root by no more.
        """
        shares = scaled_budget / (2 * self.scale)
        target = np.log1p(-(p_a - p_b) / 2)
        low, high = 0.0, 1 / float(shares.max())  # at high the product is 0
        while low < (middle := (low + high) / 2) < high:
            enough = float(np.log1p(-np.minimum(middle * shares, 1 - 2**-53)).sum()) >= target
            low, high = (middle, high) if enough else (low, middle)
        return low
