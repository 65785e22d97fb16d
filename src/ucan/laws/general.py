"""General normal noise: independent coordinates between Laplace and Gaussian noise, and flatter than both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np
import torch
from scipy import special

from ucan.errors import InvalidInput
from ucan.laws.base import SHAVE, Array, Law
from ucan.laws.radial import standard_gamma

# How far scipy's inverses of the incomplete gamma functions are taken to be off, relative to their values.
INVERTED = 1e-11
# Where |z|^β is below this, the density is that at 0 to the last digit; the incomplete gamma functions underflow there.
LEVEL = 1e-100


@dataclass(frozen=True)
class GeneralNormal(Law):
    """Density ∝ exp(−Σ|zᵢ/λ|^β), β ≥ 1: Laplace noise at β = 1, Gaussian with standard deviation λ/√2 at β = 2.

    Against ℓ1 the radius is (F⁻¹(p_a) − F⁻¹(p_b))/2, F the distribution function of one coordinate; F⁻¹(p) in the binary form.
    Tight (docs/theory/laws.md). β below 1 is refused: its density is not log-concave, and half-spaces are not the worst case.
    """

    beta: float = 2.0
    norms: ClassVar[tuple[float, ...]] = (1,)

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.beta, Real) and not isinstance(self.beta, bool)
        if not (number and math.isfinite(self.beta) and self.beta >= 1):
            raise InvalidInput(f"GeneralNormal: beta must be a finite number of at least 1, got {self.beta!r}.")

    @property
    def spherical(self) -> bool:
        """At β = 2, where it is Gaussian."""
        return self.beta == 2

    def _draw(self, n: int, dim: int, rng: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        # |z|^β has the law Gamma(1/β), that of Gamma(1 + 1/β)·U^β: in this form a large β leaves no hole around 0.
        size = standard_gamma(1 + 1 / self.beta, n * dim, rng) ** (1 / self.beta)
        size *= torch.rand(n * dim, generator=rng, device=rng.device, dtype=torch.float64)
        negative = torch.randint(0, 2, (n * dim,), generator=rng, device=rng.device, dtype=torch.bool)
        return (self.scale * torch.where(negative, -size, size)).to(dtype).reshape(n, dim)

    def _unit_std(self, dim: int) -> float:
        return math.sqrt(math.gamma(3 / self.beta) / math.gamma(1 / self.beta))

    @property
    def _half_width(self) -> float:
        """½ over the density at 0, at λ = 1."""
        return math.gamma(1 + 1 / self.beta)

    def _quantile(self, p: Array) -> Array:
        """F⁻¹(p) at λ = 1, to a relative ``INVERTED``; by the tail where p is far from 1/2, which is exact there."""
        tail = np.minimum(p, 1 - p)
        near = special.gammaincinv(1 / self.beta, 1 - 2 * tail)
        far = special.gammainccinv(1 / self.beta, 2 * tail)
        size = np.where(tail < 0.25, far, near) ** (1 / self.beta)
        even = (1 - 2 * tail) * self._half_width
        size = np.where(even**self.beta < LEVEL, even, size)
        found: Array = np.where(p < 0.5, -size, size)
        return found

    def _cdf(self, z: Array) -> Array:
        power = np.abs(z) ** self.beta
        tail = special.gammaincc(1 / self.beta, power) / 2
        tail = np.where(power < LEVEL, (1 - np.abs(z) / self._half_width) / 2, tail)
        found: Array = np.where(z < 0, tail, 1 - tail)
        return found

    def _radius(self, p_a: Array, p_b: Array, norm: float, dim: int) -> Array:
        a, b = self._quantile(p_a), self._quantile(p_b)
        with np.errstate(invalid="ignore"):  # p = 1: nothing limits the radius
            lower = (a - b) - INVERTED * (np.abs(a) + np.abs(b))
        return self.scale * np.where(np.isinf(a), np.inf, lower) / 2

    def _shifted(self, p: Array, r: Array, norm: float, dim: int) -> Array:
        inside = (p > 0) & (p < 1)
        start, steps = self._quantile(np.where(inside, p, 0.5)), r / self.scale
        end = start - steps - INVERTED * (np.abs(start) + steps)
        return np.where(inside, self._cdf(end) * (1 - SHAVE), p)
