"""Σ with directions of its own: dense, orthonormal basis, low rank plus diagonal, block-diagonal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch

from ucan.errors import InvalidInput, SingularScale
from ucan.scales.base import Scale, at_least, check_positive, finite_tensor
from ucan.scales.induced import dense_norm, diagonal_norm, identity_norm

# A matrix whose condition number is above this cannot be inverted in float64 with any digit to trust.
MAX_CONDITION = 1e12
# Up to this dimension a structured Σ may form its inverse (128 MiB in float64) to take an exact norm.
MAX_FORMED = 4096


def rows(z: torch.Tensor, dim: int) -> torch.Tensor:
    """Z of shape (…, *event) as (rows, d)."""
    if z.numel() % dim or dim not in (_tail_sizes(z)):
        raise InvalidInput(f"an input of shape {tuple(z.shape)} does not hold events of {dim} dimensions.")
    return z.reshape(-1, dim)


def _tail_sizes(z: torch.Tensor) -> set[int]:
    sizes, size = set(), 1
    for length in reversed(z.shape):
        size *= length
        sizes.add(size)
    return sizes


def square(owner: str, name: str, value: Any) -> torch.Tensor:
    """``value`` as a finite square matrix."""
    matrix = finite_tensor(owner, name, value)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InvalidInput(f"{owner}: {name} must be a square matrix, got shape {tuple(matrix.shape)}.")
    return matrix


def check_invertible(owner: str, matrix: torch.Tensor) -> None:
    """Refuse a matrix that is singular, or so close to it that its inverse means nothing."""
    values = torch.linalg.svdvals(matrix.detach().double())
    if not values[-1] * MAX_CONDITION > values[0]:
        raise SingularScale(
            f"{owner}: singular value {len(values) - 1} is {values[-1].item():.3g} while the largest is "
            f"{values[0].item():.3g}, so Σ cannot be inverted. Use scale.regularised(eps) to get an invertible "
            "neighbour, and sample from that one."
        )


def clamp_singular_values(matrix: torch.Tensor, eps: float) -> torch.Tensor:
    """The matrix with every singular value raised to at least eps."""
    u, s, vh = torch.linalg.svd(matrix.double())
    return ((u * at_least(s, eps)) @ vh).to(matrix.dtype)


@dataclass(frozen=True, eq=False)
class Dense(Scale):
    """Σ = A, any invertible matrix; not assumed symmetric."""

    matrix: torch.Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", square("Dense", "matrix", self.matrix))

    @property
    def dim(self) -> int:
        """The number of rows of A."""
        return self.matrix.shape[0]

    @cached_property
    def inverse(self) -> torch.Tensor:
        """A⁻¹ in float64."""
        return torch.linalg.inv(self.matrix.double())

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Az."""
        return (rows(z, self.dim) @ self.matrix.to(z).T).reshape(z.shape)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """A⁻¹y."""
        a = self.matrix.to(device=y.device, dtype=torch.float64)
        return torch.linalg.solve(a, rows(y.double(), self.dim).T).T.reshape(y.shape)

    def log_abs_det(self, dim: int) -> float:
        """From a pivoted LU decomposition."""
        self.check_dim(dim)
        return float(torch.linalg.slogdet(self.matrix.double()).logabsdet)

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """Exact, or a bound from above for ∞→2, ∞→1, 2→1."""
        self.check_dim(dim)
        return dense_norm(self.inverse, q, p)

    def regularised(self, eps: float) -> Self:
        """Every singular value raised to at least eps."""
        return type(self)(clamp_singular_values(self.matrix, eps))

    def largest(self) -> float:
        """The largest singular value."""
        return float(torch.linalg.matrix_norm(self.matrix.detach().double(), ord=2))

    def check(self) -> None:
        """Refuse a singular A."""
        check_invertible("Dense", self.matrix)

    def dense(self, dim: int) -> torch.Tensor:
        """A."""
        return self.matrix.double()


def check_orthonormal(basis: torch.Tensor) -> None:
    """Refuse a Q whose columns are not orthonormal (to the precision of float32).

    ‖(QᵀQ − I)v‖ for random v estimates the defect in O(d²), where forming QᵀQ would cost O(d³).
    """
    q = basis.detach().double()
    v = torch.randn(len(q), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(q.device)
    defect = float((q.T @ (q @ v) - v).abs().max())
    if defect > 1e-4 * math.sqrt(len(q)):
        raise InvalidInput(f"Basis: the columns of Q are not orthonormal (QᵀQv is off by {defect:.2g}).")


@dataclass(frozen=True, eq=False)
class Basis(Scale):
    """Σ = Q diag(s): the columns of a square orthonormal Q are directions, s their scales."""

    basis: torch.Tensor
    s: torch.Tensor

    def __post_init__(self) -> None:
        basis = square("Basis", "Q", self.basis)
        s = finite_tensor("Basis", "s", self.s).flatten()
        if len(s) != len(basis):
            raise InvalidInput(f"Basis: Q has {len(basis)} columns and s {len(s)} entries; give one scale a column.")
        check_orthonormal(basis)
        object.__setattr__(self, "basis", basis)
        object.__setattr__(self, "s", s)

    @property
    def dim(self) -> int:
        """The number of directions."""
        return len(self.s)

    @cached_property
    def inverse(self) -> torch.Tensor:
        """diag(1/s) Qᵀ in float64."""
        return self.basis.double().T / self.s.double()[:, None]

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Q(s∘z)."""
        return ((rows(z, self.dim) * self.s.to(z)) @ self.basis.to(z).T).reshape(z.shape)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """(Qᵀy)⊘s."""
        return (rows(y.double(), self.dim) @ self.inverse.to(y.device).T).reshape(y.shape)

    def log_abs_det(self, dim: int) -> float:
        """Σ log sₖ."""
        self.check_dim(dim)
        return float(self.s.double().log().sum())

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """Exact, or a bound from above for ∞→2, ∞→1, 2→1."""
        self.check_dim(dim)
        return float(1 / self.s.double().min()) if q == p == 2 else dense_norm(self.inverse, q, p)

    def regularised(self, eps: float) -> Self:
        """max(|sₖ|, eps)."""
        return type(self)(self.basis, at_least(self.s, eps))

    def largest(self) -> float:
        """Max |sₖ|."""
        return float(self.s.detach().abs().max())

    def check(self) -> None:
        """Refuse sₖ ≤ 0."""
        check_positive("Basis", "s", self.s)

    def dense(self, dim: int) -> torch.Tensor:
        """Q diag(s)."""
        return self.basis.double() * self.s.double()


@dataclass(frozen=True, eq=False)
class LowRank(Scale):
    """Σ = diag(a) + F Fᵀ with a > 0 and F of shape (d, r): symmetric, O(dr) memory."""

    diag: torch.Tensor
    factor: torch.Tensor

    def __post_init__(self) -> None:
        diag = finite_tensor("LowRank", "diag", self.diag).flatten()
        factor = finite_tensor("LowRank", "factor", self.factor)
        if factor.ndim != 2 or len(factor) != len(diag):
            raise InvalidInput(
                f"LowRank: factor must have shape ({len(diag)}, r) to match diag, got {tuple(factor.shape)}."
            )
        object.__setattr__(self, "diag", diag)
        object.__setattr__(self, "factor", factor)

    @property
    def dim(self) -> int:
        """The number of entries of the diagonal."""
        return len(self.diag)

    @cached_property
    def _woodbury(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """1/a, G = F⊘a and the small inverse M = (I + FᵀG)⁻¹, so that Σ⁻¹ = diag(1/a) − G M Gᵀ."""
        inverse, factor = 1 / self.diag.double(), self.factor.double()
        g = factor * inverse[:, None]
        return (
            inverse,
            g,
            torch.linalg.inv(torch.eye(factor.shape[1], dtype=torch.float64, device=g.device) + factor.T @ g),
        )

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """a∘z + F(Fᵀz)."""
        flat, factor = rows(z, self.dim), self.factor.to(z)
        return (flat * self.diag.to(z) + (flat @ factor) @ factor.T).reshape(z.shape)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """By Woodbury's identity."""
        inverse, g, m = (t.to(y.device) for t in self._woodbury)
        flat = rows(y.double(), self.dim)
        return (flat * inverse - ((flat @ g) @ m) @ g.T).reshape(y.shape)

    def log_abs_det(self, dim: int) -> float:
        """By the matrix determinant lemma."""
        self.check_dim(dim)
        return float(self.diag.double().log().sum() - torch.linalg.slogdet(self._woodbury[2]).logabsdet)

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """Exact where the d×d inverse may be formed (d ≤ 4096), and for 1→2, 2→∞, 1→∞ at any d.

        Otherwise from above, by ‖Σ⁻¹‖₂ ≤ 1/min a and by the exact column norms.
        """
        self.check_dim(dim)
        if dim <= MAX_FORMED:
            return dense_norm(self.solve(torch.eye(dim, dtype=torch.float64, device=self.diag.device)), q, p)
        inverse, g, m = self._woodbury
        shared = ((g @ m) * g).sum(1)  # the diagonal of G M Gᵀ
        if (q, p) == (1, math.inf):
            return float((inverse - shared).max())  # Σ⁻¹ is positive definite: its largest entry is on the diagonal
        columns = (inverse**2 - 2 * inverse * shared + ((g @ (m @ (g.T @ g) @ m)) * g).sum(1)).clamp_min(0).sqrt()
        spectral = float(inverse.max())
        by_spectrum = identity_norm(q, 2, dim) * spectral * identity_norm(2, p, dim)
        if q == 1 or p == math.inf:  # symmetric: rows are columns
            stretch = identity_norm(2, p, dim) if q == 1 else identity_norm(q, 2, dim)
            return min(by_spectrum, float(columns.max()) * stretch)
        return by_spectrum

    def regularised(self, eps: float) -> Self:
        """The diagonal raised to at least eps."""
        return type(self)(at_least(self.diag, eps), self.factor)

    def largest(self) -> float:
        """At most max aᵢ + ‖F‖₂²."""
        return float(self.diag.abs().max()) + float(torch.linalg.matrix_norm(self.factor.detach().double(), ord=2)) ** 2

    def check(self) -> None:
        """Refuse aᵢ ≤ 0: only then is Σ positive definite whatever F is."""
        check_positive("LowRank", "diag", self.diag)

    def dense(self, dim: int) -> torch.Tensor:
        """diag(a) + F Fᵀ."""
        return torch.diag(self.diag.double()) + self.factor.double() @ self.factor.double().T


@dataclass(frozen=True, eq=False)
class BlockDiagonal(Scale):
    """Σ made of square blocks along the diagonal, in the order of the flattened event; sizes may differ."""

    blocks: Sequence[torch.Tensor]

    def __post_init__(self) -> None:
        blocks = tuple(square("BlockDiagonal", f"blocks[{i}]", b) for i, b in enumerate(self.blocks))
        if not blocks:
            raise InvalidInput("BlockDiagonal: give at least one block.")
        object.__setattr__(self, "blocks", blocks)

    @property
    def dim(self) -> int:
        """The sum of the blocks' sizes."""
        return sum(len(b) for b in self.blocks)

    @cached_property
    def parts(self) -> tuple[Dense, ...]:
        """Each block as a Σ of its own."""
        return tuple(Dense(b) for b in self.blocks)

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Each block on its own slice."""
        return torch.cat([d.apply(p) for d, p in self._slices(z)], dim=1).reshape(z.shape)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """Each block's inverse on its own slice."""
        return torch.cat([d.solve(p) for d, p in self._slices(y)], dim=1).reshape(y.shape)

    def log_abs_det(self, dim: int) -> float:
        """The sum over blocks."""
        self.check_dim(dim)
        return sum(d.log_abs_det(d.dim) for d in self.parts)

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """From the blocks' norms as from a diagonal's entries; exact where the blocks' are."""
        self.check_dim(dim)
        norms = torch.tensor([d.inverse_norm(q, p, d.dim) for d in self.parts], dtype=torch.float64)
        return diagonal_norm(norms, q, p)

    def regularised(self, eps: float) -> Self:
        """Every block's singular values raised to at least eps."""
        return type(self)(tuple(clamp_singular_values(b, eps) for b in self.blocks))

    def largest(self) -> float:
        """The largest of the blocks'."""
        return max(part.largest() for part in self.parts)

    def check(self) -> None:
        """Refuse a singular block."""
        for i, block in enumerate(self.blocks):
            check_invertible(f"BlockDiagonal: blocks[{i}]", block)

    def dense(self, dim: int) -> torch.Tensor:
        """The whole matrix."""
        return torch.block_diag(*(b.double() for b in self.blocks))

    def tensors(self) -> dict[str, torch.Tensor]:
        """The blocks, numbered."""
        return {f"blocks.{i}": b for i, b in enumerate(self.blocks)}

    def with_tensors(self, tensors: dict[str, torch.Tensor]) -> Self:
        """From numbered blocks."""
        return type(self)(tuple(tensors[f"blocks.{i}"] for i in range(len(tensors))))

    def _slices(self, z: torch.Tensor) -> list[tuple[Dense, torch.Tensor]]:
        pieces = rows(z, self.dim).split([d.dim for d in self.parts], dim=1)
        return list(zip(self.parts, pieces, strict=True))
