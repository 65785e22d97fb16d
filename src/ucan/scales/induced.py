"""Induced norms ‖A‖_(q→p) = max ‖Aδ‖ₚ over ‖δ‖_q ≤ 1: what turns a region into the largest ball inside it.

Six of the nine pairs have closed forms. For ∞→2, ∞→1 and 2→1 the exact value is exponentially hard; there the smaller of
two upper bounds is taken. An upper bound on the norm is a lower bound on the inscribed radius, so it errs on the sound
side. The smallest singular value alone is a valid factor for p = q = 2 only.
"""

from __future__ import annotations

import math

import torch

NORMS = (1, 2, math.inf)


def identity_norm(q: float, p: float, dim: int) -> float:
    """‖I‖_(q→p) in R^dim, exact."""
    return dim ** max(0.0, 1 / p - 1 / q)


def diagonal_norm(entries: torch.Tensor, q: float, p: float) -> float:
    """‖diag(entries)‖_(q→p), exact: the largest entry for q ≤ p, else the s-norm with 1/s = 1/p − 1/q.

    Also the norm of a block-diagonal matrix, when the entries are its blocks' norms.
    """
    sizes = entries.double().abs().flatten()
    if q <= p:
        return float(sizes.max())
    return float(torch.linalg.vector_norm(sizes, ord=1 / (1 / p - 1 / q)))


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
