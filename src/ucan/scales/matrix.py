"""Σ as a matrix: dense, low rank plus diagonal, block-diagonal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch

from ucan.budget import Budget
from ucan.errors import InvalidInput, SingularScale
from ucan.scales.base import (
    MAX_FORMED,
    RowBounds,
    Scale,
    at_least,
    check_finite,
    check_positive,
    exact,
    finite_tensor,
    rows,
    sum_of_logs,
)
from ucan.scales.contract import contract, contract_error
from ucan.scales.induced import dense_budget_norm, dense_norm, diagonal_norm, identity_norm

# A matrix whose condition number is above this cannot be inverted in float64 with any digit to trust.
MAX_CONDITION = 1e12
# Rounding in float64, with room to spare: added where a difference of nearly equal numbers must not come out too small.
ROUNDING = 2.0**-48
# Times √d and the condition number: what decomposing a matrix in float64 may change of its inverse, with room to spare.
INVERTING = 2.0**-50
# An error of an inverse, relative to it, up to which it counts as rounding: SHAVE and ROUNDED_UP are twice as much.
NEGLIGIBLE = 2.0**-41
# Rows of XA that are looked at together.
ROWS = 512
# The error of an inverse by LU decomposition above which singular values are tried.
LU_LOST = 2.0**-10
# The largest error of an inverse, relative to it, that regions make up for; with more Σ is refused.
MAX_LOST = 0.05


def square(owner: str, name: str, value: Any) -> torch.Tensor:
    """``value`` as a finite square matrix."""
    matrix = finite_tensor(owner, name, value)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InvalidInput(f"{owner}: {name} must be a square matrix, got shape {tuple(matrix.shape)}.")
    return matrix


def check_invertible(owner: str, name: str, matrix: torch.Tensor) -> None:
    """Refuse a matrix that is not finite or singular, or so close to it that its inverse means nothing."""
    check_finite(owner, name, matrix)
    values = torch.linalg.svdvals(exact(matrix))
    if not values[-1] * MAX_CONDITION > values[0]:
        raise SingularScale(
            f"{owner}: singular value {len(values) - 1} is {values[-1].item():.3g} while the largest is "
            f"{values[0].item():.3g}, so Σ cannot be inverted. Use scale.regularised(eps) to get an invertible "
            "neighbour, and sample from that one."
        )


def inverse_error(a: torch.Tensor, x: torch.Tensor) -> float:
    """How far X may be from A⁻¹: ‖A⁻¹y‖ₚ ≤ (1 + error)‖Xy‖ₚ for every y and p = 1, 2, ∞.

    A⁻¹ is (I + F)⁻¹X with F = XA − I, and ‖F‖ in ℓ1 and ℓ∞, which bound it in ℓ2, is the largest sum of |F|. What rounding
    may hide of F is added: by ``contract`` little, where that of a plain product would be d times as much.
    """
    lost = contract_error(len(a)) * 2.0**-53 * torch.linalg.vector_norm(a, dim=0)
    across, down = [], torch.zeros_like(lost)
    for start in range(0, len(a), ROWS):  # or the memory would be that of several more matrices
        some = x[start : start + ROWS]
        off = contract(some, a.mT)
        off.diagonal(start).sub_(1)
        off.abs_().add_(torch.outer(torch.linalg.vector_norm(some, dim=1), lost))
        across.append(off.sum(1))
        down += off.sum(0)
    most = float(torch.cat([down, *across]).max())  # NaN if one of them is
    return beyond_rounding(most / (1 - most)) if most < 1 else math.inf


def spectral_bound(x: torch.Tensor) -> float:
    """√(‖X‖₁‖X‖_∞), which is at least the spectral norm of X and of |X|."""
    sizes = x.abs()
    return math.sqrt(float(sizes.sum(0).max()) * float(sizes.sum(1).max()))


def beyond_rounding(lost: float) -> float:
    """An error of an inverse; 0 where it is in the last digits, as of any other number here."""
    return lost if lost > NEGLIGIBLE else 0.0


def check_lost(owner: str, lost: float) -> None:
    """Refuse a Σ whose inverse, computed in float64, may be far from the true one."""
    if not lost <= MAX_LOST:
        raise SingularScale(
            f"{owner}: Σ cannot be inverted accurately in float64 (regions might be off by {min(lost, 1):.2g} of their size). "
            "Use scales that differ less, or scale.regularised(eps), and sample from that one."
        )


def clamp_singular_values(matrix: torch.Tensor, eps: float) -> torch.Tensor:
    """The matrix with every singular value raised to at least eps; in float64 where its dtype would undo that."""
    u, s, vh = torch.linalg.svd(matrix.double())
    raised = (u * at_least(s, eps)) @ vh
    rounded = raised.to(matrix.dtype)
    found: torch.Tensor = (
        rounded if float(torch.linalg.matrix_norm(exact(rounded) - exact(raised))) <= eps / 1000 else raised
    )
    return found


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

    @property
    def inverse(self) -> torch.Tensor:
        """A⁻¹ in float64."""
        return self.known("inverse", self._inverted)[0]

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Az."""
        return (rows(z, self.dim) @ self.matrix.to(z).T).reshape(z.shape)

    def apply_bounded(self, z: torch.Tensor) -> torch.Tensor:
        """Az, by ``contract``."""
        return contract(z, exact(self.matrix).to(z.device))

    def row_bounds(self, dim: int) -> RowBounds:
        """From the rows of A."""
        self.check_dim(dim)
        lengths = torch.linalg.vector_norm(exact(self.matrix), dim=1)
        return RowBounds(lengths, contract_error(dim) * lengths, dim)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """A⁻¹y by X, and what that leaves of y once more: as accurate as an LU decomposition of A, without one each time."""
        a, flat = exact(self.matrix).to(y.device), rows(y.double(), self.dim)
        found = self._undone(flat)
        return (found + self._undone(flat - found @ a.T)).reshape(y.shape)

    def _undone(self, y: torch.Tensor) -> torch.Tensor:
        """Xy: of X it is known how far it is off."""
        return (rows(y.double(), self.dim) @ self.inverse.to(y.device).T).reshape(y.shape)

    def stretch(self, dim: int) -> float:
        """‖|X|‖₂ from above, of the entries' sizes: what sums of products lose is a share of these."""
        return self.known("stretch", lambda: spectral_bound(self.inverse))

    def log_abs_det(self, dim: int) -> float:
        """From a pivoted LU decomposition."""
        self.check_dim(dim)
        return float(torch.linalg.slogdet(exact(self.matrix)).logabsdet)

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """Exact, or a bound from above for ∞→2, ∞→1, 2→1; what inverting A in float64 may have lost is added."""
        self.check_dim(dim)
        return dense_norm(self.inverse, q, p) * (1 + self.lost)

    def _budget_norm(self, budget: Budget, p: float, dim: int) -> float:
        """From A⁻¹, and from its norms over balls."""
        return min(self._over_balls(budget, p, dim), dense_budget_norm(self.inverse, budget, p))

    def axis_norms(self, p: float, dim: int) -> torch.Tensor:
        """The columns of A⁻¹; what inverting A in float64 may have lost is added."""
        self.check_dim(dim)
        found: torch.Tensor = torch.linalg.vector_norm(self.inverse, ord=p, dim=0).cpu() * (1 + self.lost)
        return found

    @property
    def lost(self) -> float:
        """How far the computed inverse X may be off: ‖A⁻¹y‖ₚ ≤ (1 + lost)‖Xy‖ₚ for every y and p = 1, 2, ∞."""
        return self.known("inverse", self._inverted)[1]

    def _inverted(self) -> tuple[torch.Tensor, float]:
        """X and how far it is off. By an LU decomposition; where its pivots grow, which no condition number tells, by singular
        values, which take longer.
        """
        a = exact(self.matrix)
        solved, failed = torch.linalg.inv_ex(a.mT)
        if bool(failed):  # singular; ``check`` says what is wrong with such a matrix
            return torch.full_like(a, math.nan), math.inf
        found = solved.mT  # of Aᵀ, since what an LU decomposition makes small of A is AX − I, and here XA − I counts
        lost = inverse_error(a, found)
        if lost <= LU_LOST:
            return found, lost
        u, s, vh = torch.linalg.svd(a)
        other = (vh.mT / s) @ u.mT
        return min(((found, lost), (other, inverse_error(a, other))), key=lambda pair: pair[1])

    def regularised(self, eps: float) -> Self:
        """Every singular value raised to at least eps."""
        return type(self)(clamp_singular_values(self.matrix, eps))

    def largest(self) -> float:
        """The largest singular value."""
        return float(torch.linalg.matrix_norm(exact(self.matrix), ord=2))

    def check(self) -> None:
        """Refuse a singular A."""
        check_invertible("Dense", "matrix", self.matrix)
        check_lost("Dense", self.lost)

    def dense(self, dim: int) -> torch.Tensor:
        """A."""
        return self.matrix.double()


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

    @property
    def _scaled(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """√a, U and t, where Σ = √a∘(I + U diag(t) Uᵀ)∘√a: from the singular values √t of F⊘√a.

        (I + U diag(t) Uᵀ)⁻¹ is the identity beside the span of U and 1/(1 + t) on it. Woodbury's identity, which
        subtracts one from the other, loses every digit where FFᵀ dwarfs a.
        """
        return self.known("scaled", self._decomposed)

    def _decomposed(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        root = exact(self.diag).sqrt()
        u, sizes, _ = torch.linalg.svd(exact(self.factor) / root[:, None], full_matrices=False)
        return root, u, sizes**2

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """a∘z + F(Fᵀz)."""
        flat, factor = rows(z, self.dim), self.factor.to(z)
        return (flat * self.diag.to(z) + (flat @ factor) @ factor.T).reshape(z.shape)

    def apply_bounded(self, z: torch.Tensor) -> torch.Tensor:
        """a∘z + F(Fᵀz), by ``contract``."""
        diag, factor = exact(self.diag).to(z.device), exact(self.factor).to(z.device)
        return z * diag + contract(contract(z, factor.mT.contiguous()), factor)

    def row_bounds(self, dim: int) -> RowBounds:
        """Fᵀz is off by c‖F_k‖‖z‖ in entry k, and no longer than ‖F‖‖z‖; rows of F carry that on, and add their own."""
        self.check_dim(dim)
        a, f = exact(self.diag).abs(), exact(self.factor)
        squares = (f * f).sum(1)
        lengths = (a * a + 2 * a * squares + ((f @ (f.T @ f)) * f).sum(1)).clamp_min(0).sqrt()
        first, second = contract_error(dim), contract_error(f.shape[1])
        whole = torch.linalg.vector_norm(f)
        carried = first * (f.abs() @ torch.linalg.vector_norm(f, dim=0))
        return RowBounds(lengths, 2 * a + carried + (second + 2) * squares.sqrt() * whole, dim)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """In the scaled coordinates y⊘√a, beside the span of U and on it."""
        root, u, t = (tensor.to(y.device) for tensor in self._scaled)
        flat = rows(y.double(), self.dim) / root
        found = ((flat @ u) / (1 + t)) @ u.T
        if u.shape[1] < self.dim:  # else nothing lies beside the span, and rounding would be taken for it
            beside = flat - (flat @ u) @ u.T
            found = beside - (beside @ u) @ u.T + found  # twice, or more is left on the span than belongs there
        return (found / root).reshape(y.shape)

    def stretch(self, dim: int) -> float:
        """1/min a, of both divisions by √a."""
        return 1 / float(exact(self.diag).min())

    def log_abs_det(self, dim: int) -> float:
        """By the matrix determinant lemma."""
        self.check_dim(dim)
        return sum_of_logs(self.diag) + float(self._scaled[2].log1p().sum())

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """Exact where the d×d inverse may be formed (d ≤ 4096), and for 1→2, 2→∞, 1→∞ at any d.

        Otherwise from above, by ‖Σ⁻¹‖₂ ≤ 1/min a and by the exact column norms, each rounded up. What inverting Σ in float64
        may have lost is added.
        """
        self.check_dim(dim)
        if dim <= MAX_FORMED:
            formed = self.solve(torch.eye(dim, dtype=torch.float64, device=self.diag.device))
            return dense_norm(formed, q, p) * (1 + self.lost)
        return self._norm_from_above(q, p, dim) * (1 + self.lost)

    def _norm_from_above(self, q: float, p: float, dim: int) -> float:
        """The same where no d×d matrix may be formed."""
        root, u, t = self._scaled
        inverse, kept = root**-2, u * (t / (1 + t))  # Σ⁻¹ = (I − kept Uᵀ), scaled by 1/√a from both sides
        shared = (kept * u).sum(1)
        if (q, p) == (1, math.inf):  # Σ⁻¹ is positive definite: its largest entry is on the diagonal
            return float((inverse * ((1 - shared).clamp_min(0) + ROUNDING)).max())
        cross = ((kept @ (u.T @ (u * inverse[:, None]))) * kept).sum(1)
        squares = inverse * (inverse * (1 - 2 * shared) + cross) + ROUNDING * inverse * (3 * inverse + cross)
        columns = squares.clamp_min(0).sqrt()
        spectral = float(inverse.max())
        by_spectrum = identity_norm(q, 2, dim) * spectral * identity_norm(2, p, dim)
        if q == 1 or p == math.inf:  # symmetric: rows are columns
            stretch = identity_norm(2, p, dim) if q == 1 else identity_norm(q, 2, dim)
            return min(by_spectrum, float(columns.max()) * stretch)
        return by_spectrum

    @property
    def lost(self) -> float:
        """What the decomposition may have changed of Σ⁻¹, relative to what it gives.

        It is exact for a matrix I + GGᵀ that is off by some last digits of ‖G‖₂² = max t, beside its smallest eigenvalue; that
        is carried from the coordinates of the largest aᵢ to those of the smallest, by √(max a/min a), and between norms by √d.
        """
        return self.known("lost", self._bounded_loss)

    def _bounded_loss(self) -> float:
        root, _, t = self._scaled
        most, least = 1 + float(t[0]), 1 + float(t[-1]) if len(t) == self.dim else 1.0
        return beyond_rounding(INVERTING * math.sqrt(self.dim) * most / least * float(root.max() / root.min()))

    def regularised(self, eps: float) -> Self:
        """The diagonal raised to at least eps."""
        return type(self)(at_least(self.diag, eps), self.factor)

    def largest(self) -> float:
        """At most max aᵢ + ‖F‖₂²."""
        return float(exact(self.diag).abs().max()) + float(torch.linalg.matrix_norm(exact(self.factor), ord=2)) ** 2

    def check(self) -> None:
        """Refuse aᵢ ≤ 0 (only without is Σ positive definite whatever F is), and an F beside which a is nothing."""
        check_positive("LowRank", "diag", self.diag)
        check_finite("LowRank", "factor", self.factor)
        stretch = 1 + self._scaled[2]
        least = float(stretch[-1]) if len(stretch) == self.dim else 1.0
        if not float(stretch[0]) <= MAX_CONDITION * least:
            raise SingularScale(
                f"LowRank: along one direction F Fᵀ is {float(stretch[0]):.3g} times diag, along another not, so Σ "
                "cannot be inverted. Use scale.regularised(eps) with an eps that raises diag, and sample from that one."
            )
        check_lost("LowRank", self.lost)

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

    def apply_bounded(self, z: torch.Tensor) -> torch.Tensor:
        """Each block on its own slice, by ``contract``."""
        return torch.cat([d.apply_bounded(p) for d, p in self._slices(z)], dim=1)

    def row_bounds(self, dim: int) -> RowBounds:
        """Those of the blocks."""
        self.check_dim(dim)
        bounds = [d.row_bounds(d.dim) for d in self.parts]
        return RowBounds(
            torch.cat([b.lengths for b in bounds]),
            torch.cat([b.lost for b in bounds]),
            max(b.width for b in bounds),
        )

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """Each block's inverse on its own slice."""
        return torch.cat([d.solve(p) for d, p in self._slices(y)], dim=1).reshape(y.shape)

    def _undone(self, y: torch.Tensor) -> torch.Tensor:
        """As the blocks do it."""
        return torch.cat([d._undone(p) for d, p in self._slices(y)], dim=1).reshape(y.shape)

    def stretch(self, dim: int) -> float:
        """The most that a block may make of a change."""
        return max(part.stretch(part.dim) for part in self.parts)

    @property
    def lost(self) -> float:
        """The most that a block lost."""
        return max(part.lost for part in self.parts)

    def log_abs_det(self, dim: int) -> float:
        """The sum over blocks."""
        self.check_dim(dim)
        return sum(d.log_abs_det(d.dim) for d in self.parts)

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """From the blocks' norms as from a diagonal's entries; exact where the blocks' are."""
        self.check_dim(dim)
        norms = torch.tensor([d.inverse_norm(q, p, d.dim) for d in self.parts], dtype=torch.float64)
        return diagonal_norm(norms, q, p)

    def _budget_norm(self, budget: Budget, p: float, dim: int) -> float:
        """Of a box, from the blocks' as the norm of a vector; exact where they are."""
        if budget.groups is not None:
            return super()._budget_norm(budget, p, dim)
        pieces = budget.limits.flatten().split([d.dim for d in self.parts])
        sizes = [
            d.budget_norm(Budget(b), p, d.dim) if b.any() else 0.0 for d, b in zip(self.parts, pieces, strict=True)
        ]
        return float(torch.linalg.vector_norm(torch.tensor(sizes, dtype=torch.float64), ord=p))

    def axis_norms(self, p: float, dim: int) -> torch.Tensor:
        """Those of the blocks."""
        self.check_dim(dim)
        return torch.cat([d.axis_norms(p, d.dim) for d in self.parts])

    def regularised(self, eps: float) -> Self:
        """Every block's singular values raised to at least eps."""
        return type(self)(tuple(clamp_singular_values(b, eps) for b in self.blocks))

    def largest(self) -> float:
        """The largest of the blocks'."""
        return max(part.largest() for part in self.parts)

    def check(self) -> None:
        """Refuse a singular block."""
        for i, block in enumerate(self.blocks):
            check_invertible(f"BlockDiagonal: blocks[{i}]", "", block)
        check_lost("BlockDiagonal", self.lost)

    def dense(self, dim: int) -> torch.Tensor:
        """The whole matrix."""
        found: torch.Tensor = torch.block_diag(*(b.double() for b in self.blocks))
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        """The blocks, numbered."""
        return {f"blocks.{i}": b for i, b in enumerate(self.blocks)}

    @classmethod
    def of_tensors(cls, tensors: dict[str, torch.Tensor]) -> Self:
        """From numbered blocks."""
        return cls(tuple(tensors[f"blocks.{i}"] for i in range(len(tensors))))

    def with_tensors(self, tensors: dict[str, torch.Tensor]) -> Self:
        """From numbered blocks."""
        return self.of_tensors(tensors)

    def _slices(self, z: torch.Tensor) -> list[tuple[Dense, torch.Tensor]]:
        pieces = rows(z, self.dim).split([d.dim for d in self.parts], dim=1)
        return list(zip(self.parts, pieces, strict=True))
