"""Σ = sI and Σ = diag(σ)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from ucan.budget import Budget
from ucan.errors import InvalidInput, SingularScale
from ucan.passes import Pass
from ucan.scales.base import RowBounds, Scale, at_least, check_positive, exact, finite_tensor, sum_of_logs
from ucan.scales.induced import diagonal_budget_norm, diagonal_norm, identity_norm


@dataclass(frozen=True, eq=False)
class Scalar(Scale):
    """Σ = sI, for an input of any dimension."""

    value: float = 1.0
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise SingularScale(f"Scalar: the scale must be finite, got {self.value!r}.")

    @property
    def dim(self) -> int | None:
        """None: a scalar fits every dimension."""
        return None

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """s·z."""
        return z if self.value == 1 else z * self.value

    def apply_(self, z: torch.Tensor) -> None:
        """s·z in place."""
        if self.value != 1:
            z.mul_(self.value)

    def apply_bounded(self, z: torch.Tensor) -> torch.Tensor:
        """s·z."""
        return z * self.value

    def row_bounds(self, dim: int) -> RowBounds:
        """One entry a row."""
        length = torch.tensor(abs(self.value), dtype=torch.float64)
        return RowBounds(length, length, 1)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """y/s."""
        return y.double() / self.value

    def log_abs_det(self, dim: int) -> float:
        """d·log s."""
        return dim * math.log(abs(self.value))

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """Exact."""
        return identity_norm(q, p, dim) / abs(self.value)

    def _budget_norm(self, budget: Budget, p: float, dim: int) -> float:
        """Exact."""
        return diagonal_budget_norm(torch.ones(dim, dtype=torch.float64), budget, p) / abs(self.value)

    def axis_norms(self, p: float, dim: int) -> torch.Tensor:
        """1/s."""
        return torch.full((dim,), 1 / abs(self.value), dtype=torch.float64)

    def regularised(self, eps: float) -> Self:
        """The scalar max(|s|, eps)."""
        return type(self)(float(at_least(torch.tensor(self.value, dtype=torch.float64), eps)))

    def largest(self) -> float:
        """|s|."""
        return abs(self.value)

    def check(self) -> None:
        """Refuse s ≤ 0."""
        if self.value <= 0:
            raise SingularScale(
                f"the scale is {self.value:g}; it must be above 0. Use scale.regularised(eps) or a positive number."
            )

    def dense(self, dim: int) -> torch.Tensor:
        """s times the identity."""
        return self.value * torch.eye(dim, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Diagonal(Scale):
    """Σ = diag(σ), σ of the input's shape (or flat): one multiplication, O(d) memory.

    A generator that works on a batch may hold one σ per input, shape (batch, *event); such a scale can be applied,
    and becomes a Σ on R^d again for a batch of one.
    """

    sigma: torch.Tensor
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # On a GPU not looked at here: the host would wait for it, and ``check`` looks in any case.
        given = self.sigma
        on_gpu = isinstance(given, torch.Tensor) and given.is_cuda and given.is_floating_point() and given.numel() > 0
        object.__setattr__(self, "sigma", given if on_gpu else finite_tensor("Diagonal", "sigma", given))

    @property
    def dim(self) -> int:
        """The number of entries of σ."""
        return self.sigma.numel()

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """σ∘z."""
        return z * self._fitted(z).to(z)

    def apply_(self, z: torch.Tensor) -> None:
        """σ∘z in place."""
        z.mul_(self._fitted(z).to(z))

    def apply_around(self, z: torch.Tensor, centre: torch.Tensor, out: torch.Tensor) -> None:
        """centre + σ∘z: on a GPU in one pass, since each costs a percent of a forward pass there."""
        if not z.is_cuda:  # on a CPU the rounding of one pass depends on where in memory an entry lies
            super().apply_around(z, centre, out)
        elif out is z:
            torch.addcmul(centre, z, self._fitted(z).to(z), out=out)
        else:
            _INTO_FORM(out.flatten(0, 1), z.flatten(0, 1), centre, self._fitted(z).to(z))

    def apply_bounded(self, z: torch.Tensor) -> torch.Tensor:
        """σ∘z."""
        return z * exact(self.sigma).to(z.device).reshape(-1)

    def row_bounds(self, dim: int) -> RowBounds:
        """One entry a row."""
        self.check_dim(dim)
        lengths = exact(self.sigma).abs().reshape(-1)
        return RowBounds(lengths, lengths, 1)

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """y⊘σ."""
        return y.double() / exact(self._fitted(y)).to(y.device)

    def log_abs_det(self, dim: int) -> float:
        """Σ log σᵢ."""
        self.check_dim(dim)
        return sum_of_logs(self.sigma)

    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """Exact: 1/min σ for q ≤ p, else ‖1/σ‖ₛ with 1/s = 1/p − 1/q."""
        self.check_dim(dim)
        return diagonal_norm(exact(self.sigma).reciprocal(), q, p)

    def _budget_norm(self, budget: Budget, p: float, dim: int) -> float:
        """Exact: ‖b/σ‖ₚ over a box; over groups ‖b_g/min σ_g‖ for ℓ2 and ℓ∞, Σ b_g‖1/σ_g‖₂ for ℓ1."""
        return diagonal_budget_norm(1 / exact(self.sigma), budget, p)

    def axis_norms(self, p: float, dim: int) -> torch.Tensor:
        """1/σᵢ."""
        self.check_dim(dim)
        return 1 / exact(self.sigma).abs().flatten().cpu()

    def regularised(self, eps: float) -> Self:
        """max(|σᵢ|, eps)."""
        return type(self)(at_least(self.sigma, eps))

    def largest(self) -> float:
        """Max |σᵢ|."""
        return float(self.sigma.detach().abs().max())

    def check(self) -> None:
        """Refuse σᵢ ≤ 0."""
        check_positive("Diagonal", "sigma", self.sigma)

    def dense(self, dim: int) -> torch.Tensor:
        """diag(σ)."""
        return torch.diag(self.sigma.double().flatten())

    def _fitted(self, z: torch.Tensor) -> torch.Tensor:
        """σ in a shape that broadcasts against z (…, *event): as it is, without a batch of one, or flat where either is.

        A σ of another shape than the event's is refused even where the number of entries fits: a map with its axes in
        another order is not the noise that was meant.
        """
        sigma = self.sigma
        while sigma.ndim > 1 and len(sigma) == 1 and z.shape[max(0, z.ndim - sigma.ndim) :] != sigma.shape:
            sigma = sigma[0]
        if z.shape[max(0, z.ndim - sigma.ndim) :] == sigma.shape:
            return sigma
        if z.ndim and z.shape[-1] == self.dim:
            return sigma.reshape(-1)
        if sigma.ndim == 1:
            for start in range(z.ndim):
                if math.prod(z.shape[start:]) == self.dim:
                    return sigma.reshape(z.shape[start:])
        raise InvalidInput(f"Diagonal: σ of shape {tuple(self.sigma.shape)} does not fit an input of {tuple(z.shape)}.")


def _into_form(out: torch.Tensor, z: torch.Tensor, centre: torch.Tensor, sigma: torch.Tensor) -> None:
    out.copy_(torch.addcmul(centre, z, sigma))


_INTO_FORM = Pass(_into_form, dynamic=(0, 1))
