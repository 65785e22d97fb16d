"""Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.special import ndtr, ndtri

from ucan.laws.base import CELL, RARE, UNIT, Array, DrawError, Law, along_quantiles


@dataclass(frozen=True)
class Gaussian(Law):
    """N(0, λ²I). With Φ the normal distribution function, the radius is

        ℓ2 and ℓ1:  λ/2 (Φ⁻¹(p_a) − Φ⁻¹(p_b)),  which is λ Φ⁻¹(p) in the binary form
        ℓ∞:         the same over √d

    All three are tight, and all three are balls inside one ℓ2 region, which is therefore the region of every norm.
    """

    norms: ClassVar[tuple[float, ...]] = (1, 2, math.inf)
    fusible: ClassVar[bool] = True

    @property
    def spherical(self) -> bool:
        """True: the density depends on the ℓ2 norm alone."""
        return True

    def region_norm(self, norm: float) -> float:
        """ℓ2, whatever the norm asked for: the ℓ1 and ℓ∞ balls of the table are inscribed in it."""
        return 2

    def sample_into(self, out: torch.Tensor, rng: torch.Generator) -> None:
        """In place: on a GPU every further pass over the noise costs a percent of the forward pass."""
        out.normal_(0, self.scale, generator=rng)

    def _draw(self, n: int, dim: int, rng: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(n, dim, device=rng.device, dtype=dtype).normal_(0, self.scale, generator=rng)

    def uniforms(self, dim: int) -> int:
        """Two for each pair of coordinates."""
        return 2 * _pairs(dim)

    def unit_parts(self, uniform: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
        """Box and Muller's pairs, both of them in the same draw: the cosines first, then the sines."""
        pairs = _pairs(dim)
        length = (1 - uniform[..., :pairs]).log_().mul_(-2).sqrt_()
        angle = (2 * uniform[..., pairs:]).sub_(1).mul_(math.pi)
        return angle.cos().mul_(length), angle.sin_().mul_(length)[..., : dim - pairs]

    def draw_error(self, dim: int, width: int) -> DrawError:
        """Lengths end at 8.6; the logarithm, the angle and the functions of it are off by 13 units at most."""
        pairs = _pairs(dim)
        touched = min(width, pairs)
        size = math.sqrt(2 * pairs + 2 * math.sqrt(2 * pairs * RARE) + 2 * RARE)
        return DrawError(
            failure=pairs * CELL + math.exp(-RARE),
            drift=13 * UNIT,
            size=size,
            reach=8.6,
            travel=11.2 * math.sqrt(touched),
            pieces=4,
            peak=1 / math.sqrt(2 * math.pi),
        )

    def _unit_std(self, dim: int) -> float:
        return 1.0

    def _radius(self, p_a: Array, p_b: Array, norm: float, dim: int) -> Array:
        found: Array = self._factor(norm, dim) * (ndtri(p_a) - ndtri(p_b)) / 2
        return found

    def _probability(self, radius: Array, norm: float, dim: int) -> Array:
        return np.asarray(ndtr(radius / self._factor(norm, dim)))

    def _shifted(self, p: Array, r: Array, norm: float, dim: int) -> Array:
        """Φ(Φ⁻¹(p) − r/λ), which half-spaces come down to (in ℓ∞ by r√d/λ)."""
        return along_quantiles(p, r / self._factor(norm, dim), ndtri, ndtr)

    def _factor(self, norm: float, dim: int) -> float:
        return self.scale / math.sqrt(dim) if norm == math.inf else self.scale


def _pairs(dim: int) -> int:
    return (dim + 1) // 2
