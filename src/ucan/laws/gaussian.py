"""Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.special import ndtr, ndtri

from ucan.laws.base import Array, Law


@dataclass(frozen=True)
class Gaussian(Law):
    """N(0, λ²I). With Φ the normal distribution function, the radius is

        ℓ2 and ℓ1:  λ/2 (Φ⁻¹(p_a) − Φ⁻¹(p_b)),  which is λ Φ⁻¹(p) in the binary form
        ℓ∞:         the same over √d

    All three are tight, and all three are balls inside one ℓ2 region, which is therefore the region of every norm.
    """

    norms: ClassVar[tuple[float, ...]] = (1, 2, math.inf)

    def region_norm(self, norm: float) -> float:
        """ℓ2, whatever the norm asked for: the ℓ1 and ℓ∞ balls of the table are inscribed in it."""
        return 2

    def sample_into(self, out: torch.Tensor, rng: torch.Generator) -> None:
        """In place: on a GPU every further pass over the noise costs a percent of the forward pass."""
        out.normal_(0, self.scale, generator=rng)

    def _draw(self, n: int, dim: int, rng: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(n, dim, device=rng.device, dtype=dtype).normal_(0, self.scale, generator=rng)

    def _unit_std(self, dim: int) -> float:
        return 1.0

    def _radius(self, p_a: Array, p_b: Array, norm: float, dim: int) -> Array:
        return self._factor(norm, dim) * (ndtri(p_a) - ndtri(p_b)) / 2

    def _probability(self, radius: Array, norm: float, dim: int) -> Array:
        return np.asarray(ndtr(radius / self._factor(norm, dim)))

    def _factor(self, norm: float, dim: int) -> float:
        return self.scale / math.sqrt(dim) if norm == math.inf else self.scale
