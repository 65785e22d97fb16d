"""Σ = a·I but for a few directions, which have scales of their own, larger or smaller."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch

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
)
from ucan.scales.contract import contract, contract_error
from ucan.scales.induced import dense_norm, identity_norm
from ucan.scales.matrix import INVERTING, MAX_CONDITION, beyond_rounding, check_lost


@dataclass(frozen=True, eq=False)
class Spiked(Scale):
    """Σ = a·I + F diag(g) Fᵀ with a > 0 and F of shape (d, r), g of any sign: symmetric, positive definite, O(dr) memory.

    With orthonormal columns F the scales are a + gᵢ along column i and a elsewhere: what ``LowRank`` cannot say where a
    direction has less than the others.
    """

    base: torch.Tensor
    factor: torch.Tensor
    gains: torch.Tensor

    def __post_init__(self) -> None:
        base, gains = finite_tensor("Spiked", "base", self.base), finite_tensor("Spiked", "gains", self.gains).flatten()
        factor = finite_tensor("Spiked", "factor", self.factor)
        if base.numel() != 1 or factor.ndim != 2 or factor.shape[1] != len(gains) or len(gains) > len(factor):
            raise InvalidInput(
                f"Spiked: base must be one number and factor (d, r) with r ≤ d and one gain for each column, got base "
                f"{tuple(base.shape)}, factor {tuple(factor.shape)}, gains {tuple(gains.shape)}."
            )
        for name, value in (("base", base.reshape(1)), ("factor", factor), ("gains", gains)):
            object.__setattr__(self, name, value)

    @property
    def dim(self) -> int:
        """The number of rows of the factor."""
        return len(self.factor)

    @property
    def _split(self) -> tuple[float, torch.Tensor, torch.Tensor]:
        """a, and orthonormal directions V (d, r) with the scales along them: Σ is a beside their span."""
        return self.known("split", self._decomposed)

    def _decomposed(self) -> tuple[float, torch.Tensor, torch.Tensor]:
        a = float(exact(self.base)[0])
        q, r = torch.linalg.qr(exact(self.factor))
        values, turn = torch.linalg.eigh((r * exact(self.gains)) @ r.T)
        return a, q @ turn, a + values

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """a·z + F(g∘(Fᵀz))."""
        flat, factor = rows(z, self.dim), self.factor.to(z)
        return (flat * self.base.to(z) + ((flat @ factor) * self.gains.to(z)) @ factor.T).reshape(z.shape)

    def apply_bounded(self, z: torch.Tensor) -> torch.Tensor:
        """The same, by ``contract``."""
        base, factor, gains = (exact(t).to(z.device) for t in (self.base, self.factor, self.gains))
        return z * base + contract(contract(z, factor.mT.contiguous()), factor * gains)

    def row_bounds(self, dim: int) -> RowBounds:
        """As for ``LowRank``, with F∘g on the one side."""
        self.check_dim(dim)
        a, f = float(exact(self.base)[0]), exact(self.factor)
        scaled = f * exact(self.gains)
        lengths = (a * a + 2 * a * (f * scaled).sum(1) + ((scaled @ (f.T @ f)) * scaled).sum(1)).clamp_min(0).sqrt()
        first, second = contract_error(dim), contract_error(f.shape[1])
        whole, sizes = torch.linalg.vector_norm(f), torch.linalg.vector_norm(scaled, dim=1)
        carried = first * (scaled.abs() @ torch.linalg.vector_norm(f, dim=0))
        return RowBounds(lengths, 2 * a + carried + (second + 2) * sizes * whole, dim)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """Beside the directions and along them."""
        a, v, scales = self._split
        v, scales = v.to(y.device), scales.to(y.device)
        flat = rows(y.double(), self.dim)
        along = flat @ v
        beside = flat - along @ v.T
        beside = beside - (beside @ v) @ v.T  # twice, or rounding would leave more on the span than belongs there
        return (beside / a + (along / scales) @ v.T).reshape(y.shape)

    def stretch(self, dim: int) -> float:
        """1 over the smallest scale."""
        a, _, scales = self._split
        return (max(1 / a, float((1 / scales).max())) if len(scales) else 1 / a) * (1 + self.lost)

    def log_abs_det(self, dim: int) -> float:
        """The logarithms of all scales."""
        self.check_dim(dim)
        a, _, scales = self._split
        base = torch.tensor(a, dtype=torch.float64)
        return float((dim - len(scales)) * base.log() + scales.log().sum())

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """Exact where the d×d inverse may be formed (d ≤ 4096), and for 2→2 at any d; otherwise from above, by ‖Σ⁻¹‖₂.

        What inverting Σ in float64 may have lost is added.
        """
        self.check_dim(dim)
        if dim <= MAX_FORMED:
            formed = self.solve(torch.eye(dim, dtype=torch.float64, device=self.factor.device))
            return dense_norm(formed, q, p) * (1 + self.lost)
        return identity_norm(q, 2, dim) * self.stretch(dim) * identity_norm(2, p, dim)

    @property
    def lost(self) -> float:
        """What the decomposition may have changed of Σ⁻¹, relative to what it gives.

        a and F diag(g) Fᵀ may nearly cancel: the scales are off by some last digits of the larger of the two, beside the
        smallest scale. Between norms √d comes on top.
        """
        return self.known("lost", self._bounded_loss)

    def _bounded_loss(self) -> float:
        a, _, scales = self._split
        added = float((exact(self.factor).square().sum(0) * exact(self.gains).abs()).sum())
        least = min(a, float(scales.min())) if len(scales) else a
        return beyond_rounding(INVERTING * math.sqrt(self.dim) * (a + added) / least) if least > 0 else math.inf

    def regularised(self, eps: float) -> Self:
        """Every scale raised to at least eps."""
        _, v, scales = self._split
        base = at_least(exact(self.base), eps)
        return type(self)(base, v, at_least(scales, eps) - base)

    def largest(self) -> float:
        """The largest of the scales."""
        a, _, scales = self._split
        return max(a, float(scales.max())) if len(scales) else a

    def check(self) -> None:
        """Refuse a scale that is not above 0, or so small beside the others that Σ cannot be inverted."""
        check_positive("Spiked", "base", self.base)
        for name in ("factor", "gains"):
            check_finite("Spiked", name, getattr(self, name))
        a, _, scales = self._split
        least, most = (min(a, float(scales.min())), max(a, float(scales.max()))) if len(scales) else (a, a)
        if not least * MAX_CONDITION > most:
            raise SingularScale(
                f"Spiked: along one direction the scale is {least:.3g}, while the largest is {most:.3g}, so Σ cannot be "
                "inverted. Use scale.regularised(eps), and sample from that one."
            )
        check_lost("Spiked", self.lost)

    def dense(self, dim: int) -> torch.Tensor:
        """The d×d matrix."""
        self.check_dim(dim)
        f = exact(self.factor)
        return exact(self.base) * torch.eye(dim, dtype=torch.float64, device=f.device) + (f * exact(self.gains)) @ f.T
