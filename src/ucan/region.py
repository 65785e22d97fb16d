"""The certified region {δ : ‖Σ⁻¹δ‖ₚ < R}: membership, the balls inside it, and its size."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from scipy.special import gammaln

from ucan.budget import MOST, Budget, as_limits, as_numbers
from ucan.choices import check_norm as check_norm
from ucan.choices import norm_name
from ucan.errors import InvalidInput
from ucan.laws.base import LEAST_SIZE, SHAVE
from ucan.rounding import floor_significant
from ucan.scales import Scale, as_scale

# A budget's size under one Σ, cached as long as both exist: many regions share them, and it is costly for a matrix.
_SIZES: WeakKeyDictionary[Scale, WeakKeyDictionary[Budget, dict[float, float]]] = WeakKeyDictionary()
# The relative rounding error of a computed norm: membership is decided with the norm rounded up.
ROUNDED_UP = 1 + 2.0**-40
# How far a number in a file may be from what it follows from, relative to it: as a rule, and at most.
TOLD, TOLD_AT_MOST = 1e-9, 0.01


class Region:
    """All δ with ‖Σ⁻¹δ‖ₚ < R. ``radius`` is R, before Σ; membership is strict.

    ``scale`` is Σ: a float, a tensor of the input's shape (a diagonal), or one of ``ucan.scales``. A float has no
    dimension of its own, so it needs ``shape``. The region copies Σ, so the caller may change its own.
    """

    def __init__(self, scale: Any, radius: float, norm: float, shape: Sequence[int] | None = None) -> None:
        given = as_scale(scale)
        self._settle(given.copied(), radius, norm, tuple(shape) if shape is not None else _event_shape(scale, given))

    @classmethod
    def sharing(cls, scale: Scale, radius: float, norm: float, shape: Sequence[int]) -> Region:
        """Make a region without copying Σ, which must not be changed: the regions of one noise share one matrix and its
        inverse.
        """
        made = cls.__new__(cls)
        made._settle(scale.detached(), radius, norm, tuple(shape))
        return made

    def _settle(self, scale: Scale, radius: float, norm: float, shape: tuple[int, ...]) -> None:
        check_norm(norm)
        if not radius >= 0:
            raise InvalidInput(f"a region's radius must be 0 or more, got {radius!r}.")
        if math.prod(shape) < 1:
            raise InvalidInput(f"a region needs inputs of at least one dimension, got the shape {shape}.")
        scale.known("check", scale.check)
        scale.check_dim(math.prod(shape))
        self.scale, self.radius, self.norm = scale, float(radius), norm
        self.shape, self.dim = shape, math.prod(shape)

    def __repr__(self) -> str:
        radius = floor_significant(self.radius)
        return (
            f"Region({type(self.scale).__name__} Σ in R^{self.dim}, {norm_name(self.norm)}, R = {radius} in units of Σ)"
        )

    def contains(self, delta: torch.Tensor) -> torch.Tensor:
        """Which of the perturbations, shape (batch, *event), lie inside: a bool tensor of shape (batch,)."""
        delta = as_numbers(delta)
        if delta.ndim == 0 or math.prod(delta.shape[1:]) != self.dim:
            raise InvalidInput(
                f"contains takes perturbations of shape (batch, {', '.join(map(str, self.shape))}), "
                f"got {tuple(delta.shape)}."
            )
        return self.size(delta) * ROUNDED_UP < self.radius

    def size(self, delta: torch.Tensor) -> torch.Tensor:
        """‖Σ⁻¹δ‖ₚ for each perturbation of a batch, in float64, from above."""
        return self.scale.solved_norm(delta.reshape(len(delta), self.dim), self.norm, self.dim)

    def inscribed_radius(self, norm: float | None = None) -> float:
        """The largest r such that every ‖δ‖_q < r is inside: R/‖Σ⁻¹‖_(q→p). Default q: the region's own norm.

        Exact for a scalar and a diagonal Σ. For the others exact too, except for an ℓ∞ ball in an ℓ2 or ℓ1 region and
        an ℓ2 ball in an ℓ1 region, where it is the best of the known lower bounds.
        """
        q = self.norm if norm is None else norm
        check_norm(q)
        norm_of_inverse = functools.partial(self.scale.inverse_norm, q, self.norm, self.dim)
        size = self.scale.known(("inverse_norm", q, self.norm, self.dim), norm_of_inverse)
        self._check_size(size)
        return self.radius / size

    def covers(self, box: Any) -> bool:
        """Whether every change of at most box[i] in coordinate i is inside; False if it is not certain.

        ``box`` is a map of the input's shape, a number for all coordinates, or a ``Budget``, which may be over groups.
        Exact up to rounding for a scalar and a diagonal Σ, in an ℓ∞ region, and if at most 12 coordinates change. Otherwise
        True is certain, and False may be conservative.
        """
        if not isinstance(box, Budget):
            limits = as_numbers(box).double()
            if bool((limits > MOST).any()):
                return False
            limits = as_limits("a box", limits)
            if not limits.any():
                return self.radius > 0
            box = limits
        budget = Budget.of(box, self.shape)
        return self.budget_size(budget) < self.radius * (1 - SHAVE)

    def budget_factor(self, budget: Any) -> float:
        """The largest known ε such that ε′·budget is inside for every ε′ < ε; never too large.

        ``budget`` is a number, a map of the input's shape, or a ``Budget``. R/max ‖Σ⁻¹δ‖ₚ over the budget: for a diagonal Σ
        R/√Σ(bᵢ/σᵢ)² in an ℓ2 region, R/Σ(bᵢ/σᵢ) in an ℓ1 region, R·min(σᵢ/bᵢ) in an ℓ∞ region. Exact where ``covers`` is.
        """
        return self.radius * (1 - SHAVE) / self.budget_size(Budget.of(budget, self.shape))

    def reach(self) -> torch.Tensor:
        """How far each coordinate can change alone: R/‖Σ⁻¹eᵢ‖ₚ, of the input's shape, in float64; never too large.

        Every change of coordinate i alone by strictly less is inside; for a diagonal Σ that is R·σᵢ. If m coordinates change
        together, each can change by its reach/m^(1/p), where p is the region's norm (``reach_together``).
        """
        sizes = self.scale.axis_norms(self.norm, self.dim)
        self._check_size(float(sizes.min()))
        return (self.radius * (1 - SHAVE) / sizes).reshape(self.shape)

    def _check_size(self, size: float) -> None:
        """Refuse a size under a Σ that mixes coordinates that is too small for the squares which it is made of."""
        if not (self.scale.elementwise or size >= LEAST_SIZE):
            raise InvalidInput(
                "the noise is more than 1e150 times larger than a change of 1: give inputs in other units."
            )

    def reach_together(self, coordinates: Any) -> torch.Tensor:
        """How far some coordinates, numbered in the flattened input, can all change at once, each by less than this.

        The same share of each one's reach: 1/m^(1/p) of it for an elementwise Σ and m coordinates. For a Σ that mixes
        coordinates their effects may add up, to at most their number.
        """
        chosen = torch.as_tensor(coordinates, dtype=torch.int64).flatten()
        if not len(chosen) or len(chosen.unique()) != len(chosen):
            raise InvalidInput("reach_together takes at least one coordinate, without repetition.")
        if int(chosen.min()) < 0 or int(chosen.max()) >= self.dim:
            raise InvalidInput(f"the coordinates of this region are numbered from 0 to {self.dim - 1}.")
        alone = self.reach().flatten()[chosen]
        most = float(alone.max())
        if most in (0.0, math.inf):
            return alone
        limits = torch.zeros(self.dim, dtype=torch.float64)
        limits[chosen] = alone / most  # as a budget it has to be of an ordinary size
        share = max(self.budget_factor(limits.reshape(self.shape)) / most, (1 - SHAVE) / len(chosen))
        return alone * min(share, 1.0)

    def budget_size(self, budget: Budget) -> float:
        """The largest ‖Σ⁻¹δ‖ₚ over a budget, exact or from above."""
        known = _SIZES.setdefault(self.scale, WeakKeyDictionary()).setdefault(budget, {})
        if self.norm not in known:
            known[self.norm] = self.scale.budget_norm(budget, self.norm, self.dim)
        return known[self.norm]

    @property
    def tolerance(self) -> float:
        """How far what a file says of this region may be from what is computed, relative to it."""
        return min(max(TOLD, self.scale.doubt), TOLD_AT_MOST)

    @property
    def mean_scale(self) -> float:
        """|det Σ|^(1/d), the geometric mean of the scales."""
        return math.exp(self._log_abs_det / self.dim)

    @property
    def _log_abs_det(self) -> float:
        return self.scale.known(("log_abs_det", self.dim), functools.partial(self.scale.log_abs_det, self.dim))

    @property
    def alm(self) -> float:
        """|det Σ|^(1/d) · R, the paper's alternative Lebesgue measure. It measures size; it is not the radius of a certified
        ball.
        """
        return self.mean_scale * self.radius

    @property
    def log_volume(self) -> float:
        """Natural logarithm of the region's volume; −∞ for an empty one."""
        if self.radius == 0:
            return -math.inf
        ball = self.dim * math.log(2 * self.radius)
        if self.norm != math.inf:
            ball += self.dim * gammaln(1 + 1 / self.norm) - gammaln(1 + self.dim / self.norm)
        return float(ball + self._log_abs_det)


class Intersection(Region):
    """The part of a region that lies in other regions as well; what is said of it is never too much.

    Σ, ``radius`` and ``norm`` are the first region's. It has no ALM and no volume: those of one ellipsoid say nothing of what
    several cut out.
    """

    parts: tuple[Region, ...]

    @classmethod
    def of(cls, region: Region, *others: Region) -> Intersection:
        """All δ that lie in every one of these regions."""
        if any(other.shape != region.shape for other in others):
            raise InvalidInput("an intersection is of regions for inputs of one shape.")
        made = cls.__new__(cls)
        made._settle(region.scale, region.radius, region.norm, region.shape)
        made.parts = (*getattr(region, "parts", (region,)), *others)
        return made

    def __repr__(self) -> str:
        return f"Intersection({', '.join(map(repr, self.parts))})"

    def size(self, delta: torch.Tensor) -> torch.Tensor:
        """The largest share of a part's radius that each perturbation takes, times the first part's: below R inside all."""
        shares = [part.size(delta).cpu() / part.radius for part in self.parts]  # an empty part: ∞, or NaN at 0
        return torch.stack(shares).nan_to_num(nan=math.inf, posinf=math.inf).amax(0) * self.radius

    def inscribed_radius(self, norm: float | None = None) -> float:
        """The largest known r such that every ‖δ‖_q < r is inside: the smallest of the parts'."""
        q = self.norm if norm is None else norm
        return min(part.inscribed_radius(q) for part in self.parts)

    def covers(self, box: Any) -> bool:
        """Whether every part covers it."""
        return all(part.covers(box) for part in self.parts)

    def budget_factor(self, budget: Any) -> float:
        """The smallest of the parts'."""
        return min(part.budget_factor(budget) for part in self.parts)

    def reach(self) -> torch.Tensor:
        """The smallest of the parts', for each coordinate."""
        return torch.stack([part.reach() for part in self.parts]).amin(0)

    @property
    def tolerance(self) -> float:
        """The largest of the parts'."""
        return max(part.tolerance for part in self.parts)

    @property
    def alm(self) -> float:
        """NaN: there is none."""
        return math.nan

    @property
    def log_volume(self) -> float:
        """NaN: it is not known."""
        return math.nan


def _event_shape(given: Any, scale: Scale) -> tuple[int, ...]:
    if scale.dim is None:
        raise InvalidInput("a scalar scale has no dimension: give Region the input's shape=.")
    return tuple(given.shape) if isinstance(given, torch.Tensor) else (scale.dim,)
