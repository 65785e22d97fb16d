"""Noise whose density depends on ‖z‖∞ alone: exponential and power law."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy import special

from ucan.errors import InvalidInput
from ucan.laws.base import CELL, DEEPEST, RARE, SHAVE, UNIT, Array, DrawError, Law, exponentials
from ucan.laws.laplace import laplace_probability, laplace_quantile, laplace_shifted


def standard_gamma(shape: float, n: int, rng: torch.Generator) -> torch.Tensor:
    """n draws of Gamma(shape, 1) in float64. The one place that knows torch's name for it."""
    return torch._standard_gamma(torch.full((n,), shape, device=rng.device, dtype=torch.float64), generator=rng)


# A radius of power-law noise beyond which its draws are cut off has this probability.
CUT = 1e-9
# How far scipy's inverse of the incomplete gamma function is taken to be off, relative to its value.
INVERTED = 2.0**-40


def tree_sum(terms: torch.Tensor) -> torch.Tensor:
    """The sum over the last axis, in halves: of positive terms it is off by ``tree_depth`` units at most."""
    while (count := terms.shape[-1]) > 1:
        half = (count + 1) // 2
        folded = terms[..., :half].clone()
        folded[..., : count - half] += terms[..., half:]
        terms = folded
    return terms[..., 0]


def tree_depth(count: int) -> int:
    """How often a term of ``tree_sum`` is added to another."""
    return max(0, count - 1).bit_length()


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

    def uniforms(self, dim: int) -> int:
        """One a coordinate, one for the face, one for its side, and those of ρ."""
        return dim + 2 + self._rho_uniforms(dim)

    def unit_parts(self, uniform: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
        """ρ times a point of the cube's surface; ⌊u·d⌋ is the face, u < 1/2 its side."""
        self._check_dim(dim)
        z = 2 * uniform[..., :dim] - 1
        face = (uniform[..., dim : dim + 1] * dim).long().clamp_max(dim - 1)
        side = torch.where(uniform[..., dim + 1 : dim + 2] < 0.5, -1.0, 1.0).to(z)
        z.scatter_(-1, face, side)
        return (z.mul_(self._rho(uniform[..., dim + 2 :], dim)[..., None]),)

    def _surface_failure(self, dim: int) -> float:
        """Faces that are a few cells too likely or too unlikely, and the ends of d + 2 uniform numbers."""
        return (4 * dim + 2) * CELL

    @abstractmethod
    def _rho_uniforms(self, dim: int) -> int:
        """How many uniform numbers ``_rho`` takes."""

    @abstractmethod
    def _rho(self, uniform: torch.Tensor, dim: int) -> torch.Tensor:
        """ρ from uniform numbers (…, _rho_uniforms(dim))."""

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

    def _rho_uniforms(self, dim: int) -> int:
        return dim

    def _rho(self, uniform: torch.Tensor, dim: int) -> torch.Tensor:
        """Gamma(d): the sum of d exponentials."""
        return tree_sum(exponentials(uniform))

    def draw_error(self, dim: int, width: int) -> DrawError:
        """ρ is a sum of d logarithms; each of them moves a·z by what E|a·w| ≤ ‖a‖₂ allows."""
        size = (dim + math.sqrt(2 * dim * RARE) + RARE) * math.sqrt(dim)
        return DrawError(
            failure=self._surface_failure(dim) + dim * CELL + math.exp(-RARE),
            drift=(tree_depth(dim) + 6) * UNIT,
            size=size,
            reach=DEEPEST * dim,
            travel=2 * dim * math.sqrt(width) + DEEPEST * dim,
            pieces=width + dim,
            peak=math.sqrt(width) / (2 * dim),
        )

    def _rho_second_moment(self, dim: int) -> float:
        return dim * (dim + 1)

    def _radius(self, p_a: Array, p_b: Array, norm: float, dim: int) -> Array:
        if norm == math.inf or dim == 1:
            return self.scale * (laplace_quantile(p_a) - laplace_quantile(p_b)) / 2
        return dim * self.scale * (p_a - p_b)

    def _shifted(self, p: Array, r: Array, norm: float, dim: int) -> Array:
        """Down the Laplace quantile in ℓ∞; in ℓ1 mass moves at the rate 1/(2dλ) at most."""
        if norm == math.inf or dim == 1:
            return laplace_shifted(p, r / self.scale)
        return p - r / (2 * dim * self.scale) * (1 + SHAVE) - UNIT

    def _probability(self, radius: Array, norm: float, dim: int) -> Array:
        if norm == math.inf or dim == 1:
            return laplace_probability(radius / self.scale)
        p = 0.5 + radius / (2 * dim * self.scale)
        return np.where(p <= 1, p, np.nan)


@dataclass(frozen=True)
class PowerLaw(RadialInf):
    """Density ∝ (1 + ‖z‖∞/λ)^−a; the exponent ``a`` must exceed d (and d + 2 for a finite variance).

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
                f"PowerLaw with a = {self.a:g} is not a distribution in dimension {dim}: its exponent must exceed d. "
                f"Use a > {dim} (a > {dim + 2} for a finite variance)."
            )

    def _draw_rho(self, n: int, dim: int, rng: torch.Generator) -> torch.Tensor:
        return standard_gamma(dim, n, rng) / standard_gamma(self.a - dim, n, rng)

    def _rho_uniforms(self, dim: int) -> int:
        return dim + math.ceil(self.a - dim)

    def _rho(self, uniform: torch.Tensor, dim: int) -> torch.Tensor:
        """Gamma(d)/Gamma(a − d), cut off where it is hardly ever: sums of exponentials, and for what a − d has beyond a whole
        number the inverse of the incomplete gamma function.
        """
        whole, part = self._tail(dim)
        below = tree_sum(exponentials(uniform[..., dim : dim + whole])) if whole else uniform.new_zeros(())
        if part:
            last = special.gammaincinv(part, uniform[..., -1].cpu().numpy())
            below = below + torch.from_numpy(np.asarray(last)).to(uniform)
        above = tree_sum(exponentials(uniform[..., :dim]))
        return torch.minimum(above / below, above.new_full((), self._cut(dim)))

    def _tail(self, dim: int) -> tuple[int, float]:
        """The whole number in a − d, and what is beyond it."""
        whole = math.floor(self.a - dim)
        return whole, self.a - dim - whole

    def _cut(self, dim: int) -> float:
        """The ρ that is exceeded with probability ``CUT`` at most: of a Beta number's odds."""
        least = float(special.betaincinv(self.a - dim, dim, CUT / 2))
        return (1 - least) / least

    def draw_error(self, dim: int, width: int) -> DrawError:
        """As for ExpInf, with the logarithms of the divisor; without a variance the cut is so far out that little is left."""
        (whole, part), cut, excess = self._tail(dim), self._cut(dim), self.a - dim
        sources = whole + (part > 0)
        mean = dim / (excess - 1) if excess > 1 else cut
        divided = min(cut, dim / (whole - 2)) if whole > 2 else cut
        size = cut * math.sqrt(dim)
        units = tree_depth(dim) + tree_depth(max(1, whole)) + 13
        return DrawError(
            failure=self._surface_failure(dim) + 2 * (dim + sources) * CELL + CUT,
            drift=units * UNIT + (INVERTED if part else 0.0),
            size=size,
            reach=cut,
            travel=2 * min(mean, cut) * math.sqrt(width) + min(DEEPEST * mean, dim * cut) + sources * divided,
            pieces=width + dim + sources,
            peak=math.sqrt(width) * excess / (2 * dim),
        )

    def _rho_second_moment(self, dim: int) -> float:
        if self.a <= dim + 2:
            raise InvalidInput(
                f"PowerLaw with a = {self.a:g} has no finite variance in dimension {dim}: use a > {dim + 2}."
            )
        return dim * (dim + 1) / ((self.a - dim - 1) * (self.a - dim - 2))

    def _radius(self, p_a: Array, p_b: Array, norm: float, dim: int) -> Array:
        return dim * self.scale / (self.a - dim) * (p_a - p_b)

    def _shifted(self, p: Array, r: Array, norm: float, dim: int) -> Array:
        """Mass moves at the rate (a − d)/(2dλ) at most."""
        return p - r * (self.a - dim) / (2 * dim * self.scale) * (1 + SHAVE) - UNIT

    def _probability(self, radius: Array, norm: float, dim: int) -> Array:
        p = 0.5 + radius * (self.a - dim) / (2 * dim * self.scale)
        return np.where(p <= 1, p, np.nan)
