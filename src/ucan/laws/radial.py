"""Noise whose density depends on ‖z‖∞ alone: exponential and power law."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ucan.errors import InvalidInput
from ucan.laws.base import Array, Law
from ucan.laws.laplace import laplace_probability, laplace_quantile


def standard_gamma(shape: float, n: int, rng: torch.Generator) -> torch.Tensor:
    """n draws of Gamma(shape, 1) in float64. The one place that knows torch's name for it."""
    return torch._standard_gamma(torch.full((n,), shape, device=rng.device, dtype=torch.float64), generator=rng)


@dataclass(frozen=True)
class RadialInf(Law):
    """A point on the surface of the unit ℓ∞ ball, uniform by surface, times λ times an independent radius ρ.

    Coordinates are uncorrelated but not independent: one ρ belongs to a whole sample.
    """

    def _draw(self, n: int, dim: int, rng: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        z = torch.rand(n, dim, generator=rng, device=rng.device, dtype=dtype).mul_(2).sub_(1)
        face = torch.randint(0, dim, (n, 1), generator=rng, device=rng.device)
        side = torch.randint(0, 2, (n, 1), generator=rng, device=rng.device).mul_(2).sub_(1)
        z.scatter_(1, face, side.to(dtype))
        return z.mul_((self.scale * self._draw_rho(n, dim, rng)).to(dtype)[:, None])

    def _unit_std(self, dim: int) -> float:
        return math.sqrt(self._rho_second_moment(dim) * (dim + 2) / (3 * dim))

    @abstractmethod
    def _draw_rho(self, n: int, dim: int, rng: torch.Generator) -> torch.Tensor:
        """n draws of ρ = ‖z‖∞/λ, float64."""

    @abstractmethod
    def _rho_second_moment(self, dim: int) -> float:
        """E ρ²."""


@dataclass(frozen=True)
class ExpInf(RadialInf):
    """Density ∝ exp(−‖z‖∞/λ). The radius is

    ℓ∞:  λ/2 (q(p_a) − q(p_b)), q the Laplace quantile; λ log(1/(2(1−p))) in the binary form. Tight.
    ℓ1:  d λ (p_a − p_b); 2dλ(p − 1/2) in the binary form. Sound; tight to 1e-4 for d ≥ 50. In d = 1 this noise
         is Laplace noise and takes its (larger, tight) radius.
    """

    norms: ClassVar[tuple[float, ...]] = (1, math.inf)

    def _draw_rho(self, n: int, dim: int, rng: torch.Generator) -> torch.Tensor:
        return standard_gamma(dim, n, rng)

    def _rho_second_moment(self, dim: int) -> float:
        return dim * (dim + 1)

    def _radius(self, p_a: Array, p_b: Array, norm: float, dim: int) -> Array:
        if norm == math.inf or dim == 1:
            return self.scale * (laplace_quantile(p_a) - laplace_quantile(p_b)) / 2
        return dim * self.scale * (p_a - p_b)

    def _probability(self, radius: Array, norm: float, dim: int) -> Array:
        if norm == math.inf or dim == 1:
            return laplace_probability(radius / self.scale)
        p = 0.5 + radius / (2 * dim * self.scale)
        return np.where(p <= 1, p, np.nan)


@dataclass(frozen=True)
class PowerLaw(RadialInf):
    """Density ∝ (1 + ‖z‖∞/λ)^−a, which needs a > d (and a > d + 2 for a variance).

    Against ℓ1 the radius is dλ/(a−d) · (p_a − p_b); 2dλ/(a−d) · (p − 1/2) in the binary form. Sound.
    """

    a: float
    norms: ClassVar[tuple[float, ...]] = (1,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.a, int | float) and math.isfinite(self.a) and self.a > 1):
            raise InvalidInput(f"PowerLaw: the exponent a must be a finite number above 1, got {self.a!r}.")

    def _check_dim(self, dim: int) -> None:
        super()._check_dim(dim)
        if self.a <= dim:
            raise InvalidInput(
                f"PowerLaw with a = {self.a:g} is no distribution in dimension {dim}: its exponent must exceed d. "
                f"Use a > {dim} (a > {dim + 2} for a finite variance)."
            )

    def _draw_rho(self, n: int, dim: int, rng: torch.Generator) -> torch.Tensor:
        return standard_gamma(dim, n, rng) / standard_gamma(self.a - dim, n, rng)

    def _rho_second_moment(self, dim: int) -> float:
        if self.a <= dim + 2:
            raise InvalidInput(
                f"PowerLaw with a = {self.a:g} has no finite variance in dimension {dim}: use a > {dim + 2}."
            )
        return dim * (dim + 1) / ((self.a - dim - 1) * (self.a - dim - 2))

    def _radius(self, p_a: Array, p_b: Array, norm: float, dim: int) -> Array:
        return dim * self.scale / (self.a - dim) * (p_a - p_b)

    def _probability(self, radius: Array, norm: float, dim: int) -> Array:
        p = 0.5 + radius * (self.a - dim) / (2 * dim * self.scale)
        return np.where(p <= 1, p, np.nan)
