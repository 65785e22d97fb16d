"""ℓp balls and their linear images: steps of steepest ascent, projections, random points."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ucan.budget import Budget
from ucan.scales import Diagonal, Scale


@dataclass(frozen=True)
class Ball:
    """All δ = Σu with ‖u‖ₚ ≤ radius: a certified region, or with Σ = I a ball inside it. Search happens in u."""

    scale: Scale
    norm: float
    radius: float
    shape: tuple[int, ...]

    def place(self, u: torch.Tensor) -> torch.Tensor:
        """The perturbations δ = Σu, (batch, d) → (batch, *event); differentiable."""
        return self.scale.apply(u.reshape(len(u), *self.shape))

    def project(self, u: torch.Tensor) -> torch.Tensor:
        """The nearest points of the ball (in ℓ2) to the rows of u."""
        return project(u, self.norm, self.radius)

    def random(self, count: int, like: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        """Points u (count, d) on the ball's surface, in random directions."""
        u = torch.randn(count, math.prod(self.shape), generator=rng, device=like.device, dtype=like.dtype)
        found: torch.Tensor = self.radius * u / torch.linalg.vector_norm(u, ord=self.norm, dim=1, keepdim=True)
        return found

    def ascent(self, gradient: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        """Directions on the surface of the unit ball along which a function with these gradients rises fast."""
        return ascent(gradient, self.norm, spread)


@dataclass(frozen=True)
class GroupBall(Ball):
    """All δ = Σu with ‖u_g‖₂ ≤ radius in every group g of coordinates; ``groups`` (d,) has the group of each."""

    groups: torch.Tensor

    def project(self, u: torch.Tensor) -> torch.Tensor:
        """The nearest points: every group by itself is drawn in."""
        return u * (self.radius / self._lengths(u)).clamp(max=1)

    def random(self, count: int, like: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        """Points whose groups all lie on their surface, in random directions."""
        u = torch.randn(count, math.prod(self.shape), generator=rng, device=like.device, dtype=like.dtype)
        return self.radius * u / self._lengths(u)

    def ascent(self, gradient: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        """The steepest: every group along its own gradient."""
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        return gradient / self._lengths(gradient)

    def _lengths(self, u: torch.Tensor) -> torch.Tensor:
        """The ℓ2 norm of each coordinate's group, (batch, d)."""
        squares = u.new_zeros(len(u), int(self.groups.max()) + 1).index_add_(1, self.groups, u.square())
        return squares.sqrt().clamp_min(torch.finfo(u.dtype).tiny)[:, self.groups]


def budget_ball(budget: Budget, factor: float, like: torch.Tensor) -> Ball:
    """All changes within factor·budget, for inputs like this one."""
    scale = Diagonal(budget.box.to(like))
    if budget.groups is None:
        return Ball(scale, math.inf, factor, budget.shape)
    return GroupBall(scale, math.inf, factor, budget.shape, budget.groups.flatten().to(like.device))


def project(u: torch.Tensor, norm: float, radius: float) -> torch.Tensor:
    """The point of {‖·‖ₚ ≤ radius} nearest in ℓ2 to each row of u (batch, d)."""
    if norm == math.inf:
        return u.clamp(-radius, radius)
    if norm == 2:
        length = torch.linalg.vector_norm(u, dim=1, keepdim=True)
        found: torch.Tensor = u * (radius / length.clamp_min(torch.finfo(u.dtype).tiny)).clamp(max=1)
        return found
    size = u.abs()
    falling = size.sort(dim=1, descending=True).values  # soft threshold: the one at which the ℓ1 norm is the radius
    excess = falling.cumsum(1) - radius
    ranks = torch.arange(1, u.shape[1] + 1, device=u.device, dtype=u.dtype)
    kept = (falling * ranks > excess).sum(1, keepdim=True).clamp_min(1)
    threshold = (excess.gather(1, kept - 1) / kept).clamp_min(0)
    return u.sign() * (size - threshold).clamp_min(0)


def ascent(gradient: torch.Tensor, norm: float, spread: torch.Tensor) -> torch.Tensor:
    """Directions of unit ℓp norm along which a function with these gradients (batch, d) rises fast.

    Steepest for ℓ2 and ℓ∞. For ℓ1 the steepest direction moves one coordinate at a time; each row moves its ``spread``
    (batch,) largest coordinates instead, equally far, which for spread = 1 is the steepest.
    """
    gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
    if norm == math.inf:
        return gradient.sign()
    if norm == 2:
        length = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        found: torch.Tensor = gradient / length.clamp_min(torch.finfo(gradient.dtype).tiny)
        return found
    rank = gradient.abs().argsort(dim=1, descending=True).argsort(dim=1)
    return gradient.sign() * (rank < spread[:, None]) / spread[:, None]
