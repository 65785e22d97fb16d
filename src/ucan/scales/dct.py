"""Σ in the basis of the two-dimensional cosine transform, without ever forming the d×d matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Self

import torch

from ucan.budget import Budget
from ucan.errors import InvalidInput, SingularScale
from ucan.scales.base import RowBounds, Scale, at_least, check_positive, exact, finite_tensor, rows, sum_of_logs
from ucan.scales.contract import contract, contract_error
from ucan.scales.induced import hard_bound, identity_norm
from ucan.scales.matrix import MAX_CONDITION

# Of the numbers that exact cosines are computed in.
BITS = 160
PI_DIGITS, PI_PLACES = 3141592653589793238462643383279502884197169399375105820974944, 60
# Units of 2^-53 by which an entry of ``exact_cosine_matrix`` may be off, relative to the entry.
COSINES = 1.1


def cosine_matrix(size: int) -> torch.Tensor:
    """The orthonormal DCT-II matrix C (float64): row k is frequency k, C @ v the transform of v."""
    k = torch.arange(size, dtype=torch.float64)[:, None]
    i = torch.arange(size, dtype=torch.float64)[None]
    c = torch.cos(math.pi * (i + 0.5) * k / size) * math.sqrt(2 / size)
    c[0] /= math.sqrt(2)
    return c


@lru_cache(maxsize=32)
def _constant(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):  # kept for training as well
        return cosine_matrix(size).to(device, dtype)


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # kept for gradients as well
def exact_cosine_matrix(size: int) -> torch.Tensor:
    """The same matrix with every entry rounded correctly, from whole numbers of ``BITS`` bits.

    ``cosine_matrix`` is off by up to 1e-13, since its angles grow with the frequency. It stays as it is: noise that
    was drawn with it is drawn again bit for bit. What is claimed of Σ⁻¹ is computed from this one.
    """
    k, i = torch.arange(size)[:, None], torch.arange(size)[None]
    turn = (2 * i + 1) * k % (4 * size)  # the angle in units of π/(2·size), below one full turn
    turn = torch.where(turn > 2 * size, 4 * size - turn, turn)  # cos(2π − t) = cos t
    root = math.isqrt((2 << 2 * BITS) // size)
    quarter = [_rounded(_cosine(j, size) * root, 2 * BITS) for j in range(size)]
    values = torch.tensor([*quarter, 0.0, *(-c for c in reversed(quarter))], dtype=torch.float64)  # cos(π − t) = −cos t
    c = values[turn]
    c[0] = _rounded(math.isqrt((1 << 2 * BITS) // size), BITS)
    return c


def _cosine(j: int, size: int) -> int:
    """cos(π j/(2·size))·2^BITS by its series, j < size; off by less than 2^10."""
    angle = PI_DIGITS * j * 2**BITS // (2 * size * 10**PI_PLACES)
    square, term, total, m = angle * angle >> BITS, 1 << BITS, 1 << BITS, 0
    while term:
        m += 2
        term = (
            -((term * square >> BITS) // ((m - 1) * m)) if m % 4 == 2 else abs(term * square >> BITS) // ((m - 1) * m)
        )
        total += term
    return total


def _rounded(numerator: int, bits: int) -> float:
    return float(Fraction(numerator, 2**bits))


@dataclass(frozen=True, eq=False)
class DCT(Scale):
    """Σ = Q diag(s), Q the orthonormal inverse 2-D DCT of every channel; s of shape (…, H, W), one scale a frequency.

    s[…, 0, 0] is the mean of a channel. Memory O(d), time O(d(H + W)).
    """

    s: torch.Tensor

    def __post_init__(self) -> None:
        s = finite_tensor("DCT", "s", self.s)
        if s.ndim < 2:
            raise InvalidInput(f"DCT: s must have the image's shape (…, H, W), got {tuple(s.shape)}.")
        object.__setattr__(self, "s", s)

    @property
    def dim(self) -> int:
        """The number of frequencies, over all channels."""
        return self.s.numel()

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Q(s∘z)."""
        high, wide = self._cosines(z)
        return (high.T @ ((self._images(z) * self.s.to(z)) @ wide)).reshape(z.shape)

    def apply_(self, z: torch.Tensor) -> None:
        """Q(s∘z) in place, with one more tensor of z's size."""
        if not z.is_contiguous():
            return super().apply_(z)
        high, wide = self._cosines(z)
        images = self._images(z)  # the same memory as z
        images.mul_(self.s.to(z))
        torch.matmul(high.T, images @ wide, out=images)
        return None

    def apply_bounded(self, z: torch.Tensor) -> torch.Tensor:
        """Q(s∘z), axis by axis by ``contract``, with cosines that are off in their last digit only."""
        height, width = self.s.shape[-2:]
        high, wide = (cosines.T.contiguous() for cosines in self._exact_cosines(z.device))
        images = self._images(z * exact(self.s).to(z.device).reshape(-1))
        across = contract(images.reshape(-1, width), wide).reshape(images.shape)
        down = contract(across.mT.reshape(-1, height), high).reshape(across.mT.shape)
        return down.mT.reshape(z.shape)

    def row_bounds(self, dim: int) -> RowBounds:
        """Q∘Q factors into its axes. What either axis loses, of columns of length 1, is at most c·max s·‖z‖."""
        self.check_dim(dim)
        height, width = self.s.shape[-2:]
        s = exact(self.s)
        high, wide = (cosines**2 for cosines in self._exact_cosines(s.device))
        lengths = (high.T @ (s * s) @ wide).sqrt().reshape(-1)
        lost = (contract_error(width) + contract_error(height) + 2 * COSINES + 1.1) * s.abs().max()
        return RowBounds(lengths, lost.expand(dim), dim)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """(Qᵀy)⊘s."""
        y = y.double()
        high, wide = self._exact_cosines(y.device)
        return ((high @ self._images(y) @ wide.T) / exact(self.s).to(y.device)).reshape(y.shape)

    def log_abs_det(self, dim: int) -> float:
        """Σ log sₖ."""
        self.check_dim(dim)
        return sum_of_logs(self.s)

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """Exact, or a bound from above for ∞→2, ∞→1, 2→1.

        |Q| and Q∘Q factor into their axes as Q does, so the column norms of Σ⁻¹ = diag(1/s) Qᵀ cost no more than Σ.
        """
        self.check_dim(dim)
        weights = 1 / exact(self.s).cpu()
        high, wide = (c.abs() for c in self._exact_cosines(weights.device))
        if q == 1 and p == math.inf:
            return float((weights * (high.amax(1)[:, None] * wide.amax(1))).max())
        if q == 1:  # the p-norm of column j is Σ_k (|Q_jk|/s_k)^p, to the 1/p
            return float((high.T**p @ weights**p @ wide**p).max() ** (1 / p))
        spectral = float(weights.max())
        if q == 2 and p >= 2:  # rows of Qᵀ have length 1
            return spectral
        row_sums = weights * (high.sum(1)[:, None] * wide.sum(1))
        if p == math.inf:
            return float(row_sums.max())
        return hard_bound(spectral, row_sums.flatten(), (high.T @ weights @ wide).flatten(), q, p)

    def _budget_norm(self, budget: Budget, p: float, dim: int) -> float:
        """Exact for a box and p = ∞, else from above: by the rows of |Σ⁻¹|, and by the smallest scale.

        Row k of |Σ⁻¹| times b is (|Qᵀ|b)ₖ/sₖ, and |Q| factors over the axes: O(d(H + W)), no matrix. Over groups the rows
        are bounded by the box around them.
        """
        weights = 1 / exact(self.s).cpu()
        high, wide = (c.abs() for c in self._exact_cosines(weights.device))
        reach = weights * (high @ budget.box.reshape(self.s.shape) @ wide.T)
        by_rows = float(torch.linalg.vector_norm(reach, ord=p))
        return min(by_rows, float(weights.max()) * identity_norm(2, p, dim) * budget.length(2))

    def axis_norms(self, p: float, dim: int) -> torch.Tensor:
        """Column j of |Σ⁻¹| is |Q_jk|/s_k, and |Q| factors over the axes: O(d(H + W)), no matrix."""
        self.check_dim(dim)
        weights = 1 / exact(self.s).cpu()
        high, wide = (c.abs() for c in self._exact_cosines(weights.device))
        if p == math.inf:
            return _largest_products(_largest_products(weights, wide).mT, high).mT.flatten()
        return (high.T**p @ weights**p @ wide**p).flatten() ** (1 / p)

    def regularised(self, eps: float) -> Self:
        """max(|sₖ|, eps)."""
        return type(self)(at_least(self.s, eps))

    def largest(self) -> float:
        """Max |sₖ|."""
        return float(self.s.detach().abs().max())

    def check(self) -> None:
        """Refuse sₖ ≤ 0, and scales that differ by more than float64 can undo."""
        check_positive("DCT", "s", self.s)
        least, most = torch.aminmax(exact(self.s))
        if not float(least) * MAX_CONDITION > float(most):
            raise SingularScale(
                f"DCT: one scale is {float(least):.3g} while the largest is {float(most):.3g}, so Σ cannot be inverted. Use "
                "scale.regularised(eps), and sample from that one."
            )

    def dense(self, dim: int) -> torch.Tensor:
        """Q diag(s), by transforming every unit vector."""
        eye = torch.eye(dim, dtype=torch.float64)
        return self.apply(eye).reshape(dim, dim).T

    def _cosines(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The transforms of the two axes, as constants of this tensor's dtype and device."""
        height, width = self.s.shape[-2:]
        return _constant(height, like.dtype, like.device), _constant(width, like.dtype, like.device)

    def _exact_cosines(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The same in float64, each entry rounded correctly."""
        height, width = self.s.shape[-2:]
        return exact_cosine_matrix(height).to(device), exact_cosine_matrix(width).to(device)

    def _images(self, z: torch.Tensor) -> torch.Tensor:
        """Return z of shape (…, *event) as (rows, *s.shape)."""
        return rows(z, self.dim).reshape(-1, *self.s.shape)


def _largest_products(weights: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """max_k w[…, k]·f[k, j], for every j: as a matrix product, with the largest term in place of the sum; all are ≥ 0."""
    largest = torch.zeros_like(weights)
    for k, row in enumerate(factors):
        largest = torch.maximum(largest, weights[..., k, None] * row)
    return largest
