"""Σ in an orthonormal basis of one's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ucan.errors import InvalidInput
from ucan.scales.base import Scale, at_least, check_finite, check_positive, exact, finite_tensor, rows
from ucan.scales.induced import dense_norm
from ucan.scales.matrix import square

# How far QᵀQ may be from I, in the spectral norm, for Q to count as orthonormal; float32 stays well below.
ORTHONORMAL = 1e-4
# Measuring Q takes a good part of a second at d = 3072, and generators build Σ anew for every batch.
_DEFECTS = WeakTensorKeyDictionary()


def defect(basis: torch.Tensor) -> float:
    """‖QᵀQ − I‖₂ from above, measured once per state of Q."""
    if basis.is_inference():  # such a tensor does not tell its state
        return measured_defect(basis)
    version, known = _DEFECTS.get(basis, (None, 0.0))
    if version != basis._version:
        version, known = _DEFECTS[basis] = basis._version, measured_defect(basis)
    return known


def measured_defect(basis: torch.Tensor, power: int = 8, vectors: int = 8) -> float:
    """‖QᵀQ − I‖₂ from above, but for a probability of 10^(−vectors) over random vectors (which are always the same).

    With E = QᵀQ − I, ‖E‖₂ = ‖Eᵏ‖₂^(1/k); and of r Gaussian v one has ‖A‖₂ ≤ 10 √(2/π) ‖Av‖ but for a probability of
    10^(−r) (Halko, Martinsson and Tropp, 2011, lemma 4.1). In O(d²), where forming QᵀQ would cost O(d³).
    """
    q = exact(basis)
    v = torch.randn(vectors, len(q), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(q.device)
    log_size = torch.zeros(vectors, dtype=torch.float64, device=q.device)
    for _ in range(power):
        v = (v @ q.T) @ q - v
        length = torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(1e-300)
        v, log_size = v / length, log_size + length[:, 0].log()
    return math.exp((float(log_size.max()) + math.log(10 * math.sqrt(2 / math.pi))) / power)


def check_orthonormal(basis: torch.Tensor) -> None:
    """Refuse a Q whose columns are not orthonormal."""
    off = defect(basis)
    if not off <= ORTHONORMAL:
        raise InvalidInput(f"Basis: the columns of Q are not orthonormal (QᵀQ is off by up to {off:.2g}).")


@dataclass(frozen=True, eq=False)
class Basis(Scale):
    """Σ = Q diag(s): the columns of a square orthonormal Q are directions, s their scales.

    Q⁻¹ is Qᵀ up to E = QᵀQ − I, ‖E‖₂ ≤ 1e-4. One Newton step, (I − E)Qᵀ, leaves an error of ‖E‖₂² in what follows.
    """

    basis: torch.Tensor
    s: torch.Tensor

    def __post_init__(self) -> None:
        basis = square("Basis", "Q", self.basis)
        s = finite_tensor("Basis", "s", self.s).flatten()
        if len(s) != len(basis):
            raise InvalidInput(f"Basis: Q has {len(basis)} columns and s {len(s)} entries; give one scale a column.")
        if not basis.requires_grad:
            check_orthonormal(basis)
        object.__setattr__(self, "basis", basis)
        object.__setattr__(self, "s", s)

    @property
    def dim(self) -> int:
        """The number of directions."""
        return len(self.s)

    @cached_property
    def inverse(self) -> torch.Tensor:
        """diag(1/s) Q⁻¹ in float64."""
        q = exact(self.basis)
        return (2 * q.T - (q.T @ q) @ q.T) / exact(self.s)[:, None]

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Q(s∘z)."""
        return ((rows(z, self.dim) * self.s.to(z)) @ self.basis.to(z).T).reshape(z.shape)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """(Q⁻¹y)⊘s."""
        q, s = exact(self.basis).to(y.device), exact(self.s).to(y.device)
        z = rows(y.double(), self.dim) @ q
        return ((2 * z - (z @ q.T) @ q) / s).reshape(y.shape)

    def log_abs_det(self, dim: int) -> float:
        """Σ log sₖ."""
        self.check_dim(dim)
        return float(exact(self.s).log().sum())

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """Exact, or a bound from above for ∞→2, ∞→1, 2→1."""
        self.check_dim(dim)
        if q == p == 2:  # ‖Q⁻¹‖₂ ≤ 1/√(1 − ‖E‖₂)
            return 1 / (float(exact(self.s).min()) * math.sqrt(1 - defect(self.basis)))
        return dense_norm(self.inverse, q, p)

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

    def dense(self, dim: int) -> torch.Tensor:
        """Q diag(s)."""
        return self.basis.double() * self.s.double()
