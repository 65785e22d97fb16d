"""Σ in a given orthonormal basis."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Self

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ucan.budget import Budget
from ucan.errors import InvalidInput, SingularScale
from ucan.scales.base import (
    SOLVING,
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
from ucan.scales.induced import dense_budget_norm, dense_norm, identity_norm
from ucan.scales.matrix import square

# How far QᵀQ may be from I, in the spectral norm, for Q to count as orthonormal; float32 stays well below.
ORTHONORMAL = 1e-4
# How far Σ⁻¹ may be off, relative to itself.
INVERSE_ERROR = 1e-6
# Measuring Q takes a good part of a second at d = 3072, and generators build Σ anew for every batch.
_DEFECTS = WeakTensorKeyDictionary()


def defect(basis: torch.Tensor) -> float:
    """‖QᵀQ − I‖₂ from above, measured once per state of Q."""
    if basis.is_inference():  # such a tensor does not tell its state
        return measured_defect(basis)
    version, known = _DEFECTS.get(basis, (None, 0.0))
    if version != basis._version:
        version, known = _DEFECTS[basis] = basis._version, measured_defect(basis)
    return float(known)


def measured_defect(basis: torch.Tensor, power: int = 8, vectors: int = 8) -> float:
    """‖QᵀQ − I‖₂ from above, but for a probability of 10^(−vectors) over random vectors.

    With E = QᵀQ − I, ‖E‖₂ = ‖Eᵏ‖₂^(1/k); and of r Gaussian v one has ‖A‖₂ ≤ 10 √(2/π) ‖Av‖ but for a probability of
    10^(−r) (Halko, Martinsson and Tropp, 2011, lemma 4.1). In O(d²), where forming QᵀQ would cost O(d³). The vectors are
    always the same, so that a radius is; a Q that was made to pass them is found by others, which nobody knows beforehand.
    """
    sure = _stretch(basis, torch.Generator().manual_seed(0), power, vectors)
    bound = math.exp(math.log(10 * math.sqrt(2 / math.pi)) / power) * sure
    other = _stretch(basis, torch.Generator().manual_seed(secrets.randbits(32)), power, vectors)
    seen = other / math.exp(math.log(math.sqrt(len(basis)) + 8) / power)  # ‖v‖ ≤ √d + 8: from below
    if seen > max(bound, 2.0**-50):
        raise InvalidInput(f"Basis: the columns of Q are not orthonormal (QᵀQ is off by {seen:.2g} or more).")
    return bound


def _stretch(basis: torch.Tensor, rng: torch.Generator, power: int, vectors: int) -> float:
    """The largest ‖Eᵏv‖^(1/k) of some Gaussian vectors v."""
    q = exact(basis)
    v = torch.randn(vectors, len(q), generator=rng, dtype=torch.float64).to(q.device)
    log_size = torch.zeros(vectors, dtype=torch.float64, device=q.device)
    for _ in range(power):
        v = (v @ q.T) @ q - v
        length = torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(1e-300)
        v, log_size = v / length, log_size + length[:, 0].log()
    return math.exp(float(log_size.max()) / power)


def check_orthonormal(basis: torch.Tensor) -> None:
    """Refuse a Q whose columns are not orthonormal."""
    off = defect(basis)
    if not off <= ORTHONORMAL:
        raise InvalidInput(f"Basis: the columns of Q are not orthonormal (QᵀQ is off by up to {off:.2g}).")


@dataclass(frozen=True, eq=False)
class Basis(Scale):
    """Σ = Q diag(s): the columns of a square orthonormal Q are directions, s their scales.

    Q⁻¹ is Qᵀ up to E = QᵀQ − I, ‖E‖₂ ≤ 1e-4. One Newton step, (I − E)Qᵀ, leaves an error of ‖E‖₂². In Σ⁻¹ that is
    multiplied by max s/min s: a little of a direction of large scale, taken for one of small scale, counts for much.
    ``check`` refuses a Q that is not orthonormal enough for the spread of its scales, and norms of Σ⁻¹ carry the rest.
    """

    basis: torch.Tensor
    s: torch.Tensor

    def __post_init__(self) -> None:
        basis = square("Basis", "Q", self.basis)
        s = finite_tensor("Basis", "s", self.s).flatten()
        if len(s) != len(basis):
            raise InvalidInput(f"Basis: Q has {len(basis)} columns and s {len(s)} entries; give one scale per column.")
        if not basis.requires_grad:
            check_orthonormal(basis)
        object.__setattr__(self, "basis", basis)
        object.__setattr__(self, "s", s)

    @property
    def dim(self) -> int:
        """The number of directions."""
        return len(self.s)

    @property
    def inverse(self) -> torch.Tensor:
        """diag(1/s) Q⁻¹ in float64."""
        return self.known("inverse", self._inverted)

    def _inverted(self) -> torch.Tensor:
        q = exact(self.basis)
        return (2 * q.T - (q.T @ q) @ q.T) / exact(self.s)[:, None]

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Q(s∘z)."""
        return ((rows(z, self.dim) * self.s.to(z)) @ self.basis.to(z).T).reshape(z.shape)

    def apply_bounded(self, z: torch.Tensor) -> torch.Tensor:
        """(Q diag(s))z, by ``contract``; the entries of Q diag(s) are rounded once."""
        return contract(z, (exact(self.basis) * exact(self.s)).to(z.device))

    def row_bounds(self, dim: int) -> RowBounds:
        """From the rows of Q diag(s)."""
        self.check_dim(dim)
        lengths = torch.linalg.vector_norm(exact(self.basis) * exact(self.s), dim=1)
        return RowBounds(lengths, (contract_error(dim) + 1.1) * lengths, dim)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """(Q⁻¹y)⊘s."""
        q, s = exact(self.basis).to(y.device), exact(self.s).to(y.device)
        z = rows(y.double(), self.dim) @ q
        return ((2 * z - (z @ q.T) @ q) / s).reshape(y.shape)

    def log_abs_det(self, dim: int) -> float:
        """Σ log sₖ."""
        self.check_dim(dim)
        return sum_of_logs(self.s)

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """Exact, or a bound from above for ∞→2, ∞→1, 2→1."""
        self.check_dim(dim)
        if q == p == 2:  # ‖Q⁻¹‖₂ ≤ 1/√(1 − ‖E‖₂)
            return 1 / (float(exact(self.s).min()) * math.sqrt(1 - defect(self.basis)))
        return dense_norm(self.inverse, q, p) + self._left(p, dim) * identity_norm(q, 2, dim)

    def _left(self, p: float, dim: int) -> float:
        """What one Newton step leaves of E, for a change of length 1 in ℓ2: ‖E‖₂²‖Σ⁻¹‖₂, in ℓp; and what rounding adds."""
        return (defect(self.basis) ** 2 + SOLVING * dim) * self.inverse_norm(2, 2, dim) * identity_norm(2, p, dim)

    def solved_norm(self, y: torch.Tensor, p: float, dim: int) -> torch.Tensor:
        """‖Σ⁻¹y‖ₚ; what one Newton step leaves of E is added, and what rounding does."""
        found: torch.Tensor = torch.linalg.vector_norm(self.solve(y), ord=p, dim=1)
        lengths: torch.Tensor = torch.linalg.vector_norm(y.double(), dim=1)
        return found + self._left(p, dim) * lengths

    @property
    def inverse_error(self) -> float:
        """How far Σ⁻¹ as computed may be off, relative to itself: ‖E‖₂² max s/min s."""
        s = exact(self.s)
        return defect(self.basis) ** 2 * float(s.max() / s.min())

    @property
    def doubt(self) -> float:
        """As of any Σ: earlier versions took off ``inverse_error``, and what is taken off now is at most d‖E‖₂²."""
        return 4 * max(self.inverse_error, self.dim * defect(self.basis) ** 2)

    def budget_norm(self, budget: Budget, p: float, dim: int) -> float:
        """As of any Σ; what one Newton step leaves of E, ‖E‖₂²‖δ‖₂/min s, is added."""
        return super().budget_norm(budget, p, dim) + self._left(p, dim) * budget.length(2)

    def _budget_norm(self, budget: Budget, p: float, dim: int) -> float:
        """From diag(1/s) Q⁻¹, and from the smallest scale: ‖Σ⁻¹δ‖₂ ≤ ‖δ‖₂/min s."""
        spectral = self.inverse_norm(2, 2, dim) * identity_norm(2, p, dim) * budget.length(2)
        return min(spectral, dense_budget_norm(self.inverse, budget, p))

    def axis_norms(self, p: float, dim: int) -> torch.Tensor:
        """The columns of diag(1/s) Q⁻¹; what one Newton step leaves of E, ‖E‖₂²/min s, is added."""
        self.check_dim(dim)
        found: torch.Tensor = torch.linalg.vector_norm(self.inverse, ord=p, dim=0).cpu() + self._left(p, dim)
        return found

    def regularised(self, eps: float) -> Self:
        """max(|sₖ|, eps)."""
        return type(self)(self.basis, at_least(self.s, eps))

    def largest(self) -> float:
        """Max |sₖ|."""
        return float(self.s.detach().abs().max())

    def check(self) -> None:
        """Refuse sₖ ≤ 0, and a learned Q that is no longer orthonormal."""
        check_positive("Basis", "s", self.s)
        check_finite("Basis", "Q", self.basis)
        if self.basis.requires_grad:
            check_orthonormal(self.basis)
        if not self.inverse_error <= INVERSE_ERROR:
            spread = float(exact(self.s).max() / exact(self.s).min())
            raise SingularScale(
                f"Basis: the columns of Q are orthonormal up to {defect(self.basis):.2g}, which is not enough for scales "
                f"that "
                f"differ by a factor of {spread:.2g}: regions would be wrong by {self.inverse_error:.2g}. Give Q in float64 "
                "(torch.linalg.qr makes one), or scales that differ less."
            )

    def dense(self, dim: int) -> torch.Tensor:
        """Q diag(s)."""
        return self.basis.double() * self.s.double()
