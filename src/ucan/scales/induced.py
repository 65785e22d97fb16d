"""Induced norms ‖A‖_(q→p) = max ‖Aδ‖ₚ over ‖δ‖_q ≤ 1: what turns a region into the largest ball inside it.

Six of the nine pairs have closed forms. For ∞→2, ∞→1 and 2→1 the exact value is exponentially hard; there the smaller of
two upper bounds is taken. An upper bound on the norm is a lower bound on the inscribed radius, so it errs on the sound
side. The smallest singular value alone is a valid factor for p = q = 2 only.

The same over a budget, max ‖Aδ‖ₚ over |δᵢ| ≤ bᵢ or ‖δ_g‖₂ ≤ b_g: exact for a diagonal A, for p = ∞, and for a box with few
coordinates that change; else the smallest of several upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ucan.budget import Budget
from ucan.choices import NORMS as NORMS

# Up to so many coordinates that change, a box's corners (half of them, since signs come in pairs) are all looked at.
MAX_CORNERS = 12


def identity_norm(q: float, p: float, dim: int) -> float:
    """‖I‖_(q→p) in R^dim, exact."""
    return float(dim ** max(0.0, 1 / p - 1 / q))


def diagonal_norm(entries: torch.Tensor, q: float, p: float) -> float:
    """‖diag(entries)‖_(q→p), exact: the largest entry for q ≤ p, else the s-norm with 1/s = 1/p − 1/q.

    Also the norm of a block-diagonal matrix, when the entries are its blocks' norms.
    """
    sizes = entries.double().abs().flatten()
    most = float(sizes.max())
    if q <= p or most in (0.0, math.inf):
        return most
    return most * float(torch.linalg.vector_norm(sizes / most, ord=1 / (1 / p - 1 / q)))  # squares may not be finite


def dense_norm(matrix: torch.Tensor, q: float, p: float) -> float:
    """‖A‖_(q→p) of a matrix: exact, or for ∞→2, ∞→1, 2→1 the smaller of two upper bounds."""
    a = matrix.double()
    if q == 1:
        return float(torch.linalg.vector_norm(a, ord=p, dim=0).max())
    if p == math.inf:
        dual = 1 if q == math.inf else 2
        return float(torch.linalg.vector_norm(a, ord=dual, dim=1).max())
    spectral = float(torch.linalg.matrix_norm(a, ord=2))
    if q == p:
        return spectral
    return hard_bound(spectral, a.abs().sum(1), a.abs().sum(0), q, p)


def hard_bound(spectral: float, row_sums: torch.Tensor, column_sums: torch.Tensor, q: float, p: float) -> float:
    """The smaller of the two known upper bounds for ∞→2, ∞→1 and 2→1, from ‖A‖₂ and the sums of |A|."""
    by_spectrum = identity_norm(q, 2, len(column_sums)) * spectral * identity_norm(2, p, len(row_sums))
    sums = row_sums if q == math.inf else column_sums
    by_sums = float(torch.linalg.vector_norm(sums.double(), ord=p if q == math.inf else 2))
    return min(by_spectrum, by_sums)


def lengths(rows: torch.Tensor, p: float) -> torch.Tensor:
    """‖row‖ₚ of each row of (n, d), in float64; squares of very large and of very small entries are numbers, too.

    The rows are divided by a power of two, which changes no digit.
    """
    found = rows.double()
    most = found.abs().amax(1, keepdim=True)
    unit = most / (2 * torch.frexp(most).mantissa)
    unit = torch.where((unit > 0) & unit.isfinite(), unit, 1.0)
    sizes: torch.Tensor = torch.linalg.vector_norm(found / unit, ord=p, dim=1)
    return sizes * unit[:, 0]


def diagonal_budget_norm(entries: torch.Tensor, budget: Budget, p: float) -> float:
    """max ‖diag(entries)·δ‖ₚ over a budget, exact: each coordinate, or each group, has its worst case by itself."""
    sizes, limits = entries.detach().double().abs().flatten().cpu(), budget.limits.flatten()
    if budget.groups is not None:
        groups = budget.groups.flatten()
        if p == 1:  # the largest ‖diag·δ_g‖₁ over ‖δ_g‖₂ ≤ 1 is ‖entries_g‖₂
            most = torch.zeros_like(limits).scatter_reduce_(0, groups, sizes, "amax")
            shares = (sizes / most[groups]).square()  # of the group's largest, whose own square may not be a number
            sizes = most * torch.zeros_like(limits).index_add_(0, groups, shares).sqrt()
        else:
            sizes = torch.zeros_like(limits).scatter_reduce_(0, groups, sizes, "amax")
    return float(lengths((sizes * limits)[None], p))


def dense_budget_norm(matrix: torch.Tensor, budget: Budget, p: float) -> float:
    """max ‖Aδ‖ₚ over a budget, for a matrix: exact for p = ∞, else the smaller of two upper bounds.

    Row k of A takes at most rₖ = Σ bᵢ|Aₖᵢ|, or Σ b_g‖Aₖ_g‖₂: that bounds Aδ entry by entry. And δ = diag(b)v with ‖v‖₂ at
    most the root of the number of coordinates or groups that change.
    """
    a = matrix.double().cpu()
    rows = row_reach(a, budget)
    by_rows = float(torch.linalg.vector_norm(rows, ord=p))
    if p == math.inf or budget.uniform:  # of a uniform budget the spectral norm of A says as much, and may be known
        return by_rows
    spectral = float(torch.linalg.matrix_norm(a * budget.box.flatten(), ord=2))
    changing = int((budget.limits > 0).sum())
    return min(by_rows, spectral * math.sqrt(changing) * identity_norm(2, p, len(a)))


def row_reach(a: torch.Tensor, budget: Budget) -> torch.Tensor:
    """How far each entry of Aδ can get over a budget, exact."""
    if budget.groups is None:
        return a.abs() @ budget.limits.flatten()
    groups, none = budget.groups.flatten(), a.new_zeros(len(a), len(budget.limits))
    most = none.scatter_reduce(1, groups.expand(len(a), -1), a.abs(), "amax")
    shares = torch.where(a == 0, 0.0, a / most[:, groups])  # the square of an entry itself may be no number
    return (most * none.index_add(1, groups, shares.square()).sqrt()) @ budget.limits


def has_few_corners(budget: Budget) -> bool:
    """Whether ``corner_norm`` may be asked: a box in which few coordinates change."""
    return budget.groups is None and int((budget.limits > 0).sum()) <= MAX_CORNERS


def corner_norm(linear: Callable[[torch.Tensor], torch.Tensor], budget: Budget, p: float) -> float:
    """max ‖Aδ‖ₚ over a box, exact: a convex function is largest at a corner. ``linear`` maps rows δ to rows Aδ."""
    limits = budget.limits.flatten()
    free = limits.nonzero()[:, 0]
    signs = 1 - 2 * ((torch.arange(2 ** (len(free) - 1))[:, None] >> torch.arange(len(free))) & 1)  # the last is +1
    corners = limits.new_zeros(len(signs), len(limits))
    corners[:, free] = signs * limits[free]
    return float(torch.linalg.vector_norm(linear(corners), ord=p, dim=1).max())
