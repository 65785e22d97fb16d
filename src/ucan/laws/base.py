"""The base class of noise laws: a sampler, its standard deviation, and its radius functions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
import torch

from ucan.choices import check_norm, norm_code, norm_word
from ucan.choices import norm_name as norm_name
from ucan.errors import InvalidInput, UnsupportedNorm

Array = np.ndarray[Any, np.dtype[np.float64]]
# Taken off what is computed in float64 and must not be too large: more than rounding can have added.
SHAVE = 1e-12
# The same for quantile and distribution functions, whose relative errors are below 1e-15.
SHAVE_QUANTILE = 1e-14

# Half a unit in the last place of a float64: what one correct rounding changes, relative to the number.
UNIT = 2.0**-53
# A float64 uniform number stands for a cell of the unit interval of at most this length (docs/arithmetic.md).
CELL = 2.0**-52
# Below this the squares that a norm adds up are no longer numbers of full precision.
LEAST_SIZE = 1e-150
# Exceptions as rare as e^-46 = 1e-20 are counted as failures.
RARE = 46.0
# −log of the smallest number that a draw takes the logarithm of, rounded up.
DEEPEST = 36.8


@dataclass(frozen=True)
class DrawError:
    """How far ``Law.units`` is from the ideal law, for rows of Σ with so many entries (docs/arithmetic.md). All for λ = 1.

    Outside an event of probability ``failure`` z is no longer than ``size`` in ℓ2, and the computed z differs from the
    exact function of the same uniform numbers by at most ``drift`` times that. No entry exceeds ``reach``. For a row a of Σ:
    while the uniform numbers pass through the unit interval, one at a time, a·z moves by ``travel``·‖a‖₂ at most, in
    expectation and summed over them; ``pieces`` counts monotone stretches for which the density of the rest is of no
    help; and that density never exceeds ``peak``/‖a‖₂.
    """

    failure: float
    drift: float
    size: float
    reach: float
    travel: float
    pieces: float
    peak: float


@dataclass(frozen=True)
class Law(ABC):
    """Isotropic noise ε with scale λ on R^d, as certificates use it. ``scale`` is λ, above 0.

    A subclass declares the norms it can certify, and implements three hooks (``_draw``, ``_unit_std``, ``_radius``);
    ``_probability``, the inverse of ``_radius``, has a default by bisection.

    The guarantee behind ``radius``: if a class has probability at least p (and, in the two-class form, every other
    class at most p_b) under ε added to x, then it stays the most probable class under ε added to x + δ, for every
    ‖δ‖ < R. Radii are computed in float64 and hold for p from 1/2 + 1e-12 to 1 − 1e-12 with a relative error
    below 1e-9.
    """

    scale: float
    norms: ClassVar[tuple[float, ...]] = ()
    fusible: ClassVar[bool] = False  # whether ``unit_parts`` is made of elementwise operations alone

    def __post_init__(self) -> None:
        number = isinstance(self.scale, Real) and not isinstance(self.scale, bool)
        if not (number and math.isfinite(self.scale) and self.scale > 0):
            raise InvalidInput(f"{type(self).__name__}: scale must be a finite number above 0, got {self.scale!r}.")
        if not isinstance(self.scale, int | float):  # numpy's: records and comparisons want a plain one
            object.__setattr__(self, "scale", float(self.scale))

    # --- the public, final methods: they check, convert and call a hook ---

    def radius(self, p: Any, norm: float = 2, dim: int | None = None, p_b: Any = None) -> Any:
        """Certified radius R at top-class probability p; 0 where nothing is certified, never negative.

        ``p`` and ``p_b`` are floats or arrays in [0, 1]. Without ``p_b`` the bound is the binary one, in which all
        other classes together have at most 1 − p; a given ``p_b`` bounds every single other class. The dimension may
        be left out only where the radius is the same in all of them.
        """
        dim = self._checked(norm, dim)
        p_a = _probabilities("p", p)
        # 1 − p is exact in floating point for p ≥ 1/2, so the binary bound loses nothing by going this way.
        others = 1.0 - p_a
        p_b_array = others if p_b is None else np.minimum(_probabilities("p_b", p_b), others)
        p_a, p_b_array = np.broadcast_arrays(p_a, p_b_array)
        certified = p_a > p_b_array
        # Where nothing is certified the hook sees the harmless pair (1/2, 1/2).
        safe_a, safe_b = np.where(certified, p_a, 0.5), np.where(certified, p_b_array, 0.5)
        with np.errstate(divide="ignore"):
            result = np.where(certified, np.maximum(self._radius(safe_a, safe_b, norm, dim), 0.0), 0.0)
        return float(result) if result.ndim == 0 else result

    def probability(self, radius: Any, norm: float = 2, dim: int | None = None) -> Any:
        """The p at which ``radius(p)`` reaches the given radius: its inverse. NaN where no p ≤ 1 reaches it."""
        dim = self._checked(norm, dim)
        r = np.asarray(radius, dtype=np.float64)
        if not (r >= 0).all():
            raise InvalidInput("radius must be 0 or more, and not NaN.")
        result = np.asarray(self._probability(r, norm, dim), dtype=np.float64)
        return float(result) if result.ndim == 0 else result

    def shifted(self, p: Any, r: Any, norm: float = 2, dim: int | None = None) -> Any:
        """The least probability that a set of probability p can still have after a move of size r; never above the truth.

        The guarantee: if P(x + ε ∈ A) ≥ p, then P(x + δ + ε ∈ A) ≥ shifted(p, r) for every ‖δ‖ ≤ r in the norm, whatever
        A is. ``p`` and ``r`` are floats or arrays, p in [0, 1] and r of at least 0. By symmetry a set of probability at
        most p has at most 1 − shifted(1 − p, r) afterwards. A law without ``_shifted`` raises an error.
        """
        dim = self._checked(norm, dim)
        before, size = np.broadcast_arrays(_probabilities("p", p), np.asarray(r, dtype=np.float64))
        if not ((size >= 0) & np.isfinite(size)).all():
            raise InvalidInput(f"r must be finite and at least 0, got {r!r}.")
        with np.errstate(divide="ignore", over="ignore"):
            after = np.asarray(self._shifted(before, size, norm, dim), dtype=np.float64)
        result = np.where(size == 0, before, np.clip(after, 0.0, before))
        return float(result) if result.ndim == 0 else result

    def sample(
        self, n: int, shape: Sequence[int], rng: torch.Generator, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """n independent draws of ε over one event, shape ``(n, *shape)``, on the generator's device."""
        if n < 0:
            raise InvalidInput(f"the number of samples must be 0 or more, got {n}.")
        dim = math.prod(shape)
        self._check_dim(dim)
        return self._draw(n, dim, rng, dtype).reshape(n, *shape)

    def sample_into(self, out: torch.Tensor, rng: torch.Generator) -> None:
        """Fill ``out`` (n, *event) with n draws, the same as ``sample`` gives from the same generator."""
        out.copy_(self.sample(len(out), out.shape[1:], rng, out.dtype))

    def sample_blocks(self, out: torch.Tensor, rngs: Sequence[torch.Generator]) -> None:
        """Fill blocks ``out`` (blocks, n, *event), each from its own generator; a CPU draws several at a time."""
        threads = 1 if out.is_cuda else min(len(rngs), torch.get_num_threads())
        if threads == 1:
            for block, rng in zip(out, rngs, strict=True):
                self.sample_into(block, rng)
            return
        inference = torch.is_inference_mode_enabled()  # every thread has a mode of its own

        def fill(block: torch.Tensor, rng: torch.Generator) -> None:
            with torch.inference_mode(inference):
                self.sample_into(block, rng)

        with ThreadPoolExecutor(threads) as pool:
            deque(pool.map(fill, out, rngs), maxlen=0)

    @classmethod
    def from_std(cls, std: float, dim: int, **parameters: float) -> Self:
        """The law whose every coordinate has this standard deviation in dimension ``dim``."""
        try:
            unit = cls(scale=1.0, **parameters)
        except TypeError as error:  # a parameter is missing, or there is no such one
            wanted = ", ".join(f"{f.name}=" for f in fields(cls) if f.name != "scale") or "none"
            raise InvalidInput(f"{cls.__name__}.from_std: its parameters besides std and dim are {wanted}.") from error
        if not (math.isfinite(std) and std > 0):
            raise InvalidInput(f"{cls.__name__}.from_std: std must be a finite number above 0, got {std!r}.")
        return cls(scale=std / unit.std(dim), **parameters)

    def std(self, dim: int) -> float:
        """Standard deviation of one coordinate in dimension ``dim``."""
        self._check_dim(dim)
        return self.scale * self._unit_std(dim)

    @property
    def spherical(self) -> bool:
        """Whether the density depends on the ℓ2 norm alone, so that a draw moved on its own sphere is as probable as it was."""
        return False

    def region_norm(self, norm: float) -> float:
        """The norm of the region that carries a guarantee against ``norm``: itself, unless a larger one is known."""
        return norm

    def region_norms(self) -> tuple[float, ...]:
        """The norms of the regions that this law can certify, each once."""
        return tuple(dict.fromkeys(self.region_norm(norm) for norm in self.norms))

    def box_factor(self, p: float, scaled_budget: Any, p_b: float | None = None) -> float:
        """The largest known ε such that no change with |δᵢ| ≤ ε′bᵢ, for any ε′ < ε, takes the class's lead; never too large.

        For the noise σ∘ε; ``scaled_budget`` is b/σ, finite entries of at least 0, not all 0, one a coordinate. ``p`` and
        ``p_b`` as for ``radius``. By default R/‖b/σ‖ in the norm of the region, the best of the law's regions; a law whose
        exact region is larger (Uniform) overrides ``_box_factor``.
        """
        u = np.asarray(scaled_budget, dtype=np.float64).ravel()
        if not (u.size and (u >= 0).all() and np.isfinite(u).all() and u.any()):
            raise InvalidInput("a scaled budget b/σ must hold finite numbers of at least 0, not all of them 0.")
        check_size(float(u.max()))
        self._check_dim(u.size)
        p_a = float(_probabilities("p", p))
        other = 1.0 - p_a if p_b is None else min(float(_probabilities("p_b", p_b)), 1.0 - p_a)
        return (1 - SHAVE) * max(0.0, self._box_factor(p_a, other, u)) if p_a > other else 0.0

    # --- draws in float64 whose distance from the ideal law is bounded; for sound arithmetic ---

    def uniforms(self, dim: int) -> int:
        """How many uniform numbers ``units`` makes a draw of."""
        raise self._unbounded()

    def units(self, uniform: torch.Tensor, dim: int) -> torch.Tensor:
        """Draws at λ = 1 of shape (…, dim), each from float64 uniform numbers in [0, 1) of its own (…, uniforms(dim))."""
        parts = self.unit_parts(uniform, dim)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def unit_parts(self, uniform: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
        """The same as consecutive coordinates, in one tensor or several; ``uniform`` is left as it is."""
        raise self._unbounded()

    def draw_error(self, dim: int, width: int) -> DrawError:
        """How far ``units`` is from the ideal law, where rows of Σ have ``width`` entries that are not 0."""
        raise self._unbounded()

    def _unbounded(self) -> InvalidInput:
        return InvalidInput(
            f"{type(self).__name__} has no draws in float64 with a proven error, which a step needs: implement uniforms, "
            "unit_parts and draw_error for it (documentation page “Sound arithmetic”), or leave step= out (on the "
            "command line --arithmetic real)."
        )

    # --- the hooks ---

    @abstractmethod
    def _draw(self, n: int, dim: int, rng: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        """n draws, shape (n, dim), on ``rng.device``."""

    @abstractmethod
    def _unit_std(self, dim: int) -> float:
        """Standard deviation of a coordinate at λ = 1."""

    @abstractmethod
    def _radius(self, p_a: Array, p_b: Array, norm: float, dim: int) -> Array:
        """The two-class radius; p_a ≥ p_b, and p_b = 1 − p_a is the binary bound. Must never exceed the truth."""

    def _probability(self, radius: Array, norm: float, dim: int) -> Array:
        """Inverse by bisection, from above: radius(result) ≥ the given radius."""
        low, high = np.full_like(radius, 0.5), np.ones_like(radius)
        reachable = self.radius(high, norm, dim) >= radius
        for _ in range(60):
            middle = (low + high) / 2
            enough = self.radius(middle, norm, dim) >= radius
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(reachable, np.where(radius == 0, 0.5, high), np.nan)

    def _shifted(self, p: Array, r: Array, norm: float, dim: int) -> Array:
        """``shifted`` before it is clipped to [0, p]. Must never exceed the truth, rounding included."""
        raise InvalidInput(
            f"{type(self).__name__} noise has no known bound on the probability of a set after a shift, which is needed "
            f"here: implement _shifted for it (documentation page “Adding a noise law”), or use another law."
        )

    def _box_factor(self, p_a: float, p_b: float, scaled_budget: Array) -> float:
        """``box_factor`` for p_a > p_b, before rounding down."""
        return max(
            float(self.radius(p_a, norm, scaled_budget.size, p_b)) / float(np.linalg.norm(scaled_budget, ord=norm))
            for norm in self.region_norms()
        )

    # --- checks ---

    def _checked(self, norm: float, dim: int | None) -> int:
        """The dimension, checked with the norm; without one any, if that makes no difference."""
        if norm not in self.norms:
            if not isinstance(norm, Real):
                check_norm(norm)
            known = ", ".join(norm_name(q) for q in self.norms)
            first = self.norms[0]
            raise UnsupportedNorm(
                f"{type(self).__name__} noise has no known radius against {norm_name(norm)}; it has one against {known}. Use "
                f"norm={norm_code(first)} (on the command line --norm {norm_word(first)}), or another law."
            )
        if dim is None:
            high, low = np.array(0.75), np.array(0.25)
            self._check_dim(2)
            if self._radius(high, low, norm, 1) != self._radius(high, low, norm, 2):
                raise InvalidInput(
                    f"the radius of {type(self).__name__} noise against {norm_name(norm)} depends on the dimension: give "
                    f"dim=."
                )
            return 1
        self._check_dim(dim)
        return int(dim)

    def _check_dim(self, dim: int) -> None:
        if not (isinstance(dim, Real) and math.isfinite(dim) and dim == int(dim) and dim >= 1):
            raise InvalidInput(f"dim must be a whole number of at least 1, got {dim!r}.")


def check_size(size: float) -> None:
    """Refuse a budget whose size in units of the noise cannot be computed: NaN, or too small for its square."""
    if not size >= LEAST_SIZE:
        raise InvalidInput("the budget is more than 1e150 times smaller than the noise: give both in other units.")


def along_quantiles(p: Array, steps: Array, quantile: Callable[[Array], Array], cdf: Callable[[Array], Array]) -> Array:
    """F(F⁻¹(p) − steps) from below: how mass moves where half-spaces, or what is like them, lose most.

    The quantile, the step and F are each taken to be off by a relative ``SHAVE_QUANTILE``; p = 1 stays 1, and 0 stays 0.
    """
    inside = (p > 0) & (p < 1)
    start = quantile(np.where(inside, p, 0.5))
    end = start - steps - SHAVE_QUANTILE * (np.abs(start) + steps)
    return np.where(inside, cdf(end) * (1 - SHAVE_QUANTILE), p)


def exponentials(uniform: torch.Tensor) -> torch.Tensor:
    """Unit exponential numbers −log(1 − u), from u in [0, 1); 1 − u is exact and above 0."""
    return (1 - uniform).log_().neg_()


def _probabilities(name: str, value: Any) -> Array:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be a number, or an array of numbers, in [0, 1], got {value!r}.") from error
    if not ((array >= 0) & (array <= 1)).all():
        raise InvalidInput(f"{name} must lie in [0, 1], got {value!r}.")
    return array
