"""How far a new region may reach before it meets a stored one: exact up to rounding, and never too far.

The stored region is {x + Δ + δ : ‖Σᵢ⁻¹δ‖ₚ < Rᵢ}, the new one {x + δ : ‖Σⱼ⁻¹δ‖ₚ < r}. Any vector u proves a bound: on the
stored region ⟨u, ·⟩ exceeds ⟨u, Δ⟩ − Rᵢ‖Σᵢᵀu‖_q, on the new one it stays below r‖Σⱼᵀu‖_q (q dual to p), so they are
disjoint for

    r ≤ (⟨u, Δ⟩ − Rᵢ‖Σᵢᵀu‖_q) / ‖Σⱼᵀu‖_q.

The best u is found from the optimality conditions of each norm, and only this inequality is trusted: a u that is slightly
off gives a smaller r, never a larger one. Its own rounding is bounded and taken off.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import torch

from ucan.errors import UnsupportedNorm
from ucan.laws import norm_name
from ucan.scales import Basis, Scalar, Scale
from ucan.scales.base import MAX_FORMED, exact

Vector = np.ndarray[Any, np.dtype[np.float64]]

# A stored region is kept clear of by this much more than its radius: more than rounding can add to who is inside it.
RIM = 1e-11
MARGIN = 1e-9
# ‖Q‖₂ of a basis that counts as orthonormal, from above.
ORTHONORMAL = 1 + 1e-4
_STRETCHES: weakref.WeakKeyDictionary[Scale, tuple[float, float]] = weakref.WeakKeyDictionary()


def check_kind(scale: Scale, norm: float) -> None:
    """Refuse a Σ for which no rule is known: a full one, against ℓ1 or ℓ∞."""
    if not scale.elementwise and norm != 2:
        raise UnsupportedNorm(
            f"a registry keeps regions of a {type(scale).__name__} Σ apart in ℓ2 only, not in {norm_name(norm)}: use a "
            "scalar or a diagonal Σ, or an ℓ2 registry."
        )


def allowed_radius(norm: float, offset: Vector, own: Scale, other: Scale, radius: float) -> float:
    """A radius up to which the region of Σ = ``own`` at 0 is disjoint from ``other``'s of this radius at ``offset``.

    With Σ elementwise, or both full and at most 4096 dimensions (ℓ2), or both the same, the largest such radius times
    1 − 1e-9; otherwise less. 0 if 0 itself is inside the stored region.
    """
    check_kind(own, norm)
    check_kind(other, norm)
    if radius == 0:  # a point
        low, high = size_bounds(own, norm, offset)
        return max(0.0, low - (high - low)) * (1 - MARGIN)
    radius *= 1 + 10 * RIM
    if own.elementwise and other.elementwise:
        entries = sigma_of(own, len(offset)), sigma_of(other, len(offset))
        u = _direction(norm, offset, *entries, radius)
        return 0.0 if u is None else _proven(norm, u, offset, entries[0] * u, entries[1] * u, radius)
    if own is not other and len(offset) <= MAX_FORMED:
        return _allowed_dense(offset, own, other, radius)
    reach = 1.0 if own is other else stretches(own, len(offset))[0] * stretches(other, len(offset))[1]
    low, high = size_bounds(own, norm, offset)
    return max(0.0, low - (high - low) - radius * reach) * (1 - MARGIN)


def size_bounds(scale: Scale, norm: float, offset: Vector) -> tuple[float, float]:
    """‖Σ⁻¹Δ‖ₚ from below and from above: rounding is bounded, for a full Σ by what is left of ΣΣ⁻¹Δ − Δ."""
    delta = torch.from_numpy(offset)[None]
    z = scale.solve(delta)
    size = float(torch.linalg.vector_norm(z, ord=norm))
    error = RIM * size
    if not scale.elementwise:
        inverse, forward = stretches(scale, len(offset))
        left = float(torch.linalg.vector_norm(scale.apply(z) - delta))
        error += inverse * (left + len(offset) * 2.0**-50 * forward * size)
    return size - error, size + error


def may_contain(scale: Scale, norm: float, radius: float, offset: Vector) -> bool:
    """Whether Δ lies in {‖Σ⁻¹δ‖ₚ < R}; in doubt, which is a matter of the last digits, it does."""
    if isinstance(scale, Basis):  # one product decides all but close cases: ‖QᵀΔ − Q⁻¹Δ‖₂ ≤ ‖QᵀQ − I‖₂‖Q⁻¹Δ‖₂
        z = (torch.from_numpy(offset) @ exact(scale.basis)) / exact(scale.s)
        size = float(torch.linalg.vector_norm(z))
        doubt = 2 * (ORTHONORMAL - 1) * stretches(scale, len(offset))[0] * float(np.linalg.norm(offset))
        if abs(size - radius) > doubt:
            return size < radius
    return size_bounds(scale, norm, offset)[0] < radius * (1 + RIM)


def stretches(scale: Scale, dim: int) -> tuple[float, float]:
    """(‖Σ⁻¹‖₂, ‖Σ‖₂) from above: a decomposition of a full Σ, once per Σ for as long as it is kept."""
    if scale not in _STRETCHES:
        _STRETCHES[scale] = scale.inverse_norm(2, 2, dim), scale.largest() * ORTHONORMAL
    return _STRETCHES[scale]


def outer_radius(scale: Scale, norm: float, radius: float, dim: int) -> float:
    """The smallest ℓ2 ball around the region {‖Σ⁻¹δ‖ₚ < R}, or a larger one: R‖Σ‖_(p→2) from above."""
    if not scale.elementwise:
        return radius * stretches(scale, dim)[1]
    sigma = sigma_of(scale, dim)
    stretch = float(np.linalg.norm(sigma)) if norm == math.inf else float(sigma.max())
    return radius * stretch * (1 + MARGIN)


def sigma_of(scale: Scale, dim: int) -> Vector:
    """The entries of an elementwise Σ."""
    if isinstance(scale, Scalar):
        return np.full(dim, scale.value)
    (entries,) = scale.tensors().values()
    return np.asarray(entries.detach().double().cpu().flatten().numpy())


def _direction(norm: float, offset: Vector, own: Vector, other: Vector, radius: float) -> Vector | None:
    """The best u for elementwise Σ; None if 0 is inside the stored region."""
    distance = np.abs(offset)
    if norm == math.inf:  # the coordinate in which the two lie furthest apart
        u = np.zeros_like(offset)
        best = int(np.argmax((distance - radius * other) / own))
        u[best] = np.copysign(1.0, offset[best])
        return u
    if norm == 1:  # spend the stored radius where it brings the regions together fastest; the last place sets the price
        order = np.argsort(-other / own)
        spent = np.cumsum((distance / other)[order]) > radius
        if not spent.any():
            return None
        last = order[int(np.argmax(spent))]
        found: Vector = np.copysign(np.minimum(1 / own, other[last] / own[last] / other), offset)
        return found
    nu = _multiplier(offset * other / own**2, (other / own) ** 2, radius)
    return None if nu is None else offset * (nu / (nu + (other / own) ** 2)) / own**2


def _multiplier(c: Vector, e: Vector, radius: float) -> float | None:
    """The ν > 0 with ‖c/(ν + e)‖₂ = R, or one close to it from below; None if ‖c/e‖₂ ≤ R.

    1/‖c/(ν + e)‖ is concave in ν, so Newton's steps from 0 rise towards the root and never pass it.
    """
    nu = 0.0
    for _ in range(100):
        p = c / (nu + e)
        size = float(np.linalg.norm(p))
        if size <= radius * (1 + 1e-15):
            break
        step = (size / radius - 1) * size**2 / float(np.sum(p * p / (nu + e)))
        if nu + step == nu:
            break
        nu += step
    return nu if nu > 0 else None


def _allowed_dense(offset: Vector, own: Scale, other: Scale, radius: float) -> float:
    """Both Σ as matrices, in ℓ2: by the singular values of Σⱼ⁻¹Σᵢ the problem becomes an elementwise one."""
    a_own, a_other = (s.dense(len(offset)).cpu().numpy() for s in (own, other))
    left, values, _ = np.linalg.svd(np.linalg.solve(a_own, a_other))
    b = left.T @ np.linalg.solve(a_own, offset)
    nu = _multiplier(values * b, values**2, radius)
    if nu is None:
        return 0.0
    u = np.linalg.solve(a_own.T, left @ (b * (nu / (nu + values**2))))
    return _proven(2, u, offset, a_own.T @ u, a_other.T @ u, radius, own_scale=a_own, other_scale=a_other)


def _proven(
    norm: float,
    u: Vector,
    offset: Vector,
    own_u: Vector,
    other_u: Vector,
    radius: float,
    own_scale: Vector | None = None,
    other_scale: Vector | None = None,
) -> float:
    """What u proves, less what rounding may have added (sums of d terms, each off by at most d units)."""
    dual = {1: np.inf, 2: 2, math.inf: 1}[norm]
    unit = (len(u) + 16) * 2.0**-52
    own, other = float(np.linalg.norm(own_u, dual)), float(np.linalg.norm(other_u, dual))
    size = float(np.linalg.norm(u))
    # a product with a full matrix is off by its size, not by the result's
    own += 0.0 if own_scale is None else unit * float(np.linalg.norm(own_scale)) * size
    other += 0.0 if other_scale is None else unit * float(np.linalg.norm(other_scale)) * size
    gain = float(u @ offset) - radius * other
    gain -= unit * (float(np.abs(u) @ np.abs(offset)) + radius * other)
    return max(0.0, gain / own) * (1 - MARGIN) if own > 0 else 0.0
