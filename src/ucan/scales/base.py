"""The base class of Σ: a linear map on flattened events, with its inverse, its determinant and its inverse's norms."""

from __future__ import annotations

import functools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import torch

from ucan.budget import Budget
from ucan.errors import InvalidInput, SingularScale
from ucan.fingerprint import checksums
from ucan.laws.base import check_size
from ucan.passes import Pass
from ucan.scales.induced import NORMS, corner_norm, dense_budget_norm, has_few_corners, identity_norm, lengths

# Up to this dimension a structured Σ may form its inverse (128 MiB in float64) to take an exact norm.
MAX_FORMED = 4096
# Times d, ``stretch`` and ‖y‖₂: what rounding may change of Σ⁻¹y, with room to spare.
SOLVING = 2.0**-50
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RowBounds:
    """What ``Scale.apply_bounded`` promises, row by row of Σ, in float64 (d,) or one number for all rows.

    Of row a: its length ‖a‖₂ (to a relative 1e-9), and ``lost``: for every z the computed entry is off by at most
    2^-53·lost·‖z‖₂. No row has more than ``width`` entries that are not 0.
    """

    lengths: torch.Tensor
    lost: torch.Tensor
    width: int


@dataclass(frozen=True, eq=False)
class Scale(ABC):
    """An invertible Σ acting on flattened events; final classes below.

    Σ is a factor, not a covariance: noise is Σε, its covariance is ΣΣᵀ times that of ε. It need not be symmetric.
    Construction checks shapes and finiteness; ``check`` refuses a singular Σ, and is called wherever a guarantee is made, so
    that ``regularised`` can still be called on a singular one.
    """

    elementwise: ClassVar[bool] = False  # whether Σz is a product entry by entry, the same whatever else is in a batch

    @property
    @abstractmethod
    def dim(self) -> int | None:
        """d, or None for a scalar, which fits every d."""

    @property
    def lost(self) -> float:
        """How far Σ⁻¹ as it is computed may be off, relative to what it gives, where that is more than the last digits."""
        return 0.0

    @property
    def doubt(self) -> float:
        """How far apart versions may be in what they compute from Σ⁻¹, relative to it: they bound what is lost differently."""
        return 4 * self.lost

    @abstractmethod
    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Σz for z of shape (…, *event); differentiable."""

    def apply_bounded(self, z: torch.Tensor) -> torch.Tensor:
        """Σz for z of shape (n, d) in float64, with a proven error; Σ is what its stored numbers say, exactly."""
        raise self._unbounded()

    def row_bounds(self, dim: int) -> RowBounds:
        """How long the rows of Σ are, and how far ``apply_bounded`` may be off."""
        raise self._unbounded()

    def _unbounded(self) -> InvalidInput:
        return InvalidInput(
            f"{type(self).__name__} cannot be applied with a proven error, which a step needs: implement apply_bounded and "
            "row_bounds for it (documentation page “Sound arithmetic”), or leave step= out (on the command line "
            "--arithmetic real)."
        )

    def apply_(self, z: torch.Tensor) -> None:
        """Replace z by Σz, without a copy where the kind of Σ allows it."""
        z.copy_(self.apply(z))

    def apply_around(self, z: torch.Tensor, centre: torch.Tensor, out: torch.Tensor) -> None:
        """Write centre + Σz into ``out``: z itself, or memory of another precision or layout. Of z nothing is kept."""
        self.apply_(z)
        if out.is_cuda and out is not z:
            _INTO_FORM(out.flatten(0, 1), z.flatten(0, 1), centre)
        else:
            torch.add(z, centre, out=out)

    @abstractmethod
    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """Σ⁻¹y for y of shape (…, *event), in float64."""

    def solved_norm(self, y: torch.Tensor, p: float, dim: int) -> torch.Tensor:
        """‖Σ⁻¹y‖ₚ of each row of y (n, d), in float64, from above.

        A Σ that mixes coordinates rounds Σ⁻¹y by some last digits of ‖Σ⁻¹‖₂‖y‖₂, which may be much beside Σ⁻¹y.
        """
        found: torch.Tensor = lengths(self._undone(y), p) * (1 + self.lost)
        if self.elementwise:
            return found
        rounded = SOLVING * dim * self.stretch(dim) * identity_norm(2, p, dim)
        return found + rounded * lengths(y, 2)

    def _undone(self, y: torch.Tensor) -> torch.Tensor:
        """Σ⁻¹y as claims are made of it: what ``lost`` is about."""
        return self.solve(y)

    def stretch(self, dim: int) -> float:
        """How long a change of length 1 may become while it is solved for: rounding is a share of that."""
        return self.known(("inverse_norm", 2, 2, dim), functools.partial(self.inverse_norm, 2, 2, dim))

    @abstractmethod
    def log_abs_det(self, dim: int) -> float:
        """log|det Σ|, in float64."""

    @abstractmethod
    def inverse_norm(self, q: float, p: float, dim: int) -> float:
        """‖Σ⁻¹‖_(q→p), exact or from above (see ``ucan.scales.induced``)."""

    def budget_norm(self, budget: Budget, p: float, dim: int) -> float:
        """The largest ‖Σ⁻¹δ‖ₚ of a change δ within the budget, exact or from above; what inverting Σ may have lost is added.

        Exact for a scalar and a diagonal Σ, for p = ∞ (budgets over groups: where Σ⁻¹ may be formed), and for boxes in
        which at most 12 coordinates change.
        """
        self.check_dim(dim)
        if budget.dim != dim:
            raise InvalidInput(f"the budget has {budget.dim} dimensions, but the input has {dim}.")
        if has_few_corners(budget) and dim <= MAX_FORMED:
            found = corner_norm(self._undone, budget, p)
        else:
            found = self._budget_norm(budget, p, dim)
        check_size(found)
        return found * (1 + self.lost)

    def _budget_norm(self, budget: Budget, p: float, dim: int) -> float:
        """The hook of ``budget_norm``: by default from the formed inverse, and from its norms over balls."""
        by_balls = self._over_balls(budget, p, dim)
        if dim > MAX_FORMED:
            return by_balls
        inverse = self.solve(torch.eye(dim, dtype=torch.float64)).T
        return min(by_balls, dense_budget_norm(inverse, budget, p))

    def _over_balls(self, budget: Budget, p: float, dim: int) -> float:
        """From above, by the balls around the budget: each ‖δ‖_q is at most the budget's length in ℓ_q."""
        return min(self.inverse_norm(q, p, dim) * budget.length(q) for q in NORMS)

    def axis_norms(self, p: float, dim: int) -> torch.Tensor:
        """‖Σ⁻¹eᵢ‖ₚ of every coordinate's own direction, shape (d,), in float64 on the CPU: exact or from above.

        What inverting Σ may have lost is added.
        """
        self.check_dim(dim)
        where = next((tensor.device for tensor in self.tensors().values()), torch.device("cpu"))
        found = []
        for start in range(0, dim, MAX_FORMED):  # a d×d matrix need not fit
            units = torch.eye(min(MAX_FORMED, dim - start), dim - start, dtype=torch.float64, device=where)
            units = torch.nn.functional.pad(units, (start, 0))
            found.append(torch.linalg.vector_norm(self.solve(units), ord=p, dim=1).cpu())
        return torch.cat(found) * (1 + self.lost)

    @abstractmethod
    def regularised(self, eps: float) -> Self:
        """An invertible neighbour; sample from it and certify it, never the original."""

    @abstractmethod
    def check(self) -> None:
        """Raise ``SingularScale`` naming the offending entry if Σ is not safely invertible."""

    @abstractmethod
    def dense(self, dim: int) -> torch.Tensor:
        """The d×d matrix in float64: for tests, and for dimensions where it fits."""

    @abstractmethod
    def largest(self) -> float:
        """The largest factor by which Σ stretches any direction (‖Σ‖₂), or a bound on it from above."""

    def check_dim(self, dim: int) -> None:
        """Raise unless Σ acts on R^dim."""
        if self.dim is not None and self.dim != dim:
            raise InvalidInput(f"{type(self).__name__} scale acts on {self.dim} dimensions, but the input has {dim}.")

    def content(self) -> dict[str, torch.Tensor]:
        """All that Σ is made of, by name: its tensors, and its plain numbers as tensors in float64."""
        plain = {name: value for name in _names(type(self)) if isinstance(value := getattr(self, name), int | float)}
        return {**self.tensors(), **{name: torch.tensor(value, dtype=torch.float64) for name, value in plain.items()}}

    def same_as(self, other: Scale, equal: Callable[[torch.Tensor, torch.Tensor], bool] = torch.equal) -> bool:
        """Whether another Σ is of the same kind and made of the same numbers, as ``equal`` compares tensors."""
        mine, theirs = self.content(), other.content()
        if type(self) is not type(other) or mine.keys() != theirs.keys():
            return False
        return all(equal(tensor, theirs[name]) for name, tensor in mine.items())

    def known(self, name: Hashable, measure: Callable[[], T]) -> T:
        """What ``measure`` gives for Σ as it is now, measured once: of a large matrix all regions share the cost.

        A change of a tensor in place is a new state, and is measured anew; one through ``.data`` PyTorch does not count, so
        that whoever keeps a Σ for good keeps a copy (``copied``).
        """
        state = self._now()
        if state is None:
            return measure()
        if self.__dict__.get("_state") != state:
            self.__dict__.update(_state=state, _known={}, _sum=self._checksum())
        found: dict[Hashable, Any] = self.__dict__["_known"]
        if name not in found:
            found[name] = measure()
        return cast(T, found[name])

    def __getstate__(self) -> dict[str, Any]:
        """Without what is known: it can be measured again, and the same Σ is the same bytes whatever was asked of it."""
        return {name: value for name, value in vars(self).items() if name not in ("_state", "_known", "_sum")}

    def _now(self) -> tuple[int, ...] | None:
        """How often each tensor was changed in place; None where tensors of inference mode do not tell."""
        tensors = self.tensors().values()
        return None if any(t.is_inference() for t in tensors) else tuple(t._version for t in tensors)

    def copied(self) -> Self:
        """The same Σ as a constant in memory of its own.

        What is known of a matrix is known of its copy, if its numbers are still those that were measured: a change through
        ``.data`` shows in their checksum.
        """
        own = self.with_tensors({name: t.detach().clone() for name, t in self.tensors().items()})
        known = self.__dict__.get("_sum")
        if known is not None and self.__dict__["_state"] == self._now() and known == own._checksum():
            own.__dict__.update(_state=own._now(), _known=dict(self.__dict__["_known"]), _sum=known)
        return own

    def _checksum(self) -> tuple[int, ...] | None:
        """Of the numbers of a matrix; None where measuring again costs nothing."""
        return None if self.elementwise else checksums(self.tensors().values())

    def tensors(self) -> dict[str, torch.Tensor]:
        """The defining tensors by field name, for saving."""
        found = ((name, getattr(self, name)) for name in _names(type(self)))
        return {name: value for name, value in found if isinstance(value, torch.Tensor)}

    @classmethod
    def of_tensors(cls, tensors: dict[str, torch.Tensor]) -> Self:
        """A Σ of this kind from its defining tensors: the inverse of ``tensors``."""
        return cls(**tensors)

    def with_tensors(self, tensors: dict[str, torch.Tensor]) -> Self:
        """The same kind of Σ made of other tensors, named as ``tensors`` names them."""
        if "__dataclass_params__" in vars(type(self)):
            return replace(self, **tensors)
        made = object.__new__(
            type(self)
        )  # a subclass with an __init__ of its own may take other arguments than the fields
        for each in fields(self):
            object.__setattr__(made, each.name, tensors.get(each.name, getattr(self, each.name)))
        return made

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The same Σ on another device or in another dtype."""
        return self.with_tensors({name: t.to(*args, **kwargs) for name, t in self.tensors().items()})

    def detached(self) -> Self:
        """The same Σ as a constant: itself, unless it is being learned."""
        tensors = self.tensors()
        learned = any(t.requires_grad for t in tensors.values())
        return self.with_tensors({name: t.detach() for name, t in tensors.items()}) if learned else self


@functools.cache
def _names(kind: type[Scale]) -> tuple[str, ...]:
    """The fields of a kind of Σ: asked for at every input."""
    return tuple(each.name for each in fields(kind))


def _into_form(out: torch.Tensor, z: torch.Tensor, centre: torch.Tensor) -> None:
    out.copy_(z + centre)


_INTO_FORM = Pass(_into_form, dynamic=(0, 1))


def same_map(one: Scale, other: Scale, shape: Sequence[int], tolerance: float) -> bool:
    """Whether two Σ are the same map on events of this shape, up to a relative tolerance.

    One is multiplied by the inverse of the other, and tested on fresh random vectors. In this way, a direction of little
    noise counts as much as any other: comparing Σv and Σ'v would lose a difference between two small scales next to large
    ones.
    """
    rng = torch.Generator().manual_seed(secrets.randbits(32))
    z = torch.randn(4, *shape, generator=rng, dtype=torch.float64)
    one, other = one.to("cpu"), other.to("cpu")
    undone = (one.solve(other.apply(z)), other.solve(one.apply(z)))
    return all(torch.allclose(back, z, rtol=tolerance, atol=tolerance) for back in undone)


def rows(z: torch.Tensor, dim: int) -> torch.Tensor:
    """Return z of shape (…, *event) as (rows, d)."""
    if dim not in _tail_sizes(z):
        raise InvalidInput(f"an input of shape {tuple(z.shape)} does not hold events of {dim} dimensions.")
    return z.reshape(-1, dim)


def _tail_sizes(z: torch.Tensor) -> set[int]:
    sizes, size = set(), 1
    for length in reversed(z.shape):
        size *= length
        sizes.add(size)
    return sizes


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """A constant in float64: what guarantees are computed from."""
    return tensor.detach().double()


def sum_of_logs(values: torch.Tensor) -> float:
    """Σ log vᵢ of positive numbers, in float64 on the host.

    NumPy's logarithm: PyTorch's wakes up every thread of the host even for the few thousand entries of one input, which takes
    a hundred times as long as the numbers do.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # of 0 it is −∞ and of a negative number NaN, without a word
        logs = np.log(exact(values).cpu().numpy())
    return float(torch.from_numpy(logs).sum()) if logs.ndim else float(logs)


def finite_tensor(owner: str, name: str, value: Any) -> torch.Tensor:
    """``value`` as a floating tensor; NaN and infinity are refused, in training not before ``check``."""
    tensor = torch.as_tensor(value)
    if not tensor.is_floating_point():
        if tensor.is_complex() or tensor.dtype == torch.bool:
            raise InvalidInput(f"{owner}: {name} must hold real numbers, got {tensor.dtype}.")
        tensor = tensor.double()
    if tensor.numel() == 0:
        raise InvalidInput(f"{owner}: {name} is empty.")
    if not tensor.requires_grad:  # in training, looking at it would stall the device; ``check`` looks in any case
        check_finite(owner, name, tensor)
    return tensor


def all_finite(values: torch.Tensor) -> bool:
    """Whether no entry is NaN or infinite; the smallest and the largest tell, in one pass."""
    if values.numel() == 0:
        return True
    least, most = torch.aminmax(values.detach())
    return bool((least > -torch.inf) & (most < torch.inf))  # a NaN is neither


def check_finite(owner: str, name: str, values: torch.Tensor) -> None:
    """Refuse NaN and infinity, naming the first such entry."""
    if not all_finite(values):
        fine = torch.isfinite(values.detach())
        index = tuple((~fine).nonzero()[0].tolist())
        raise SingularScale(
            f"{owner}: {name}{list(index)} is {values[index].item()}; every entry must be finite. Fix its cause, for example "
            f"with a lower learning rate: scale.regularised(eps) only raises entries that are too small."
        )


def check_positive(owner: str, name: str, values: torch.Tensor) -> None:
    """Refuse an entry that is not finite or ≤ 0, naming the first."""
    least, most = torch.aminmax(values.detach())
    if bool((least > 0) & (most < torch.inf)):  # the device is asked once; a NaN is neither
        return
    check_finite(owner, name, values)
    bad = values.detach() <= 0
    if bad.any():
        index = tuple(bad.nonzero()[0].tolist())
        raise SingularScale(
            f"{owner}: {name}{list(index)} is {values[index].item():g}, and Σ is invertible only if every entry is "
            "above 0. Use scale.regularised(eps) to get an invertible neighbour, and sample from that one."
        )


def at_least(values: torch.Tensor, eps: float) -> torch.Tensor:
    """Entrywise max(|v|, eps): how diagonal-like scales are regularised."""
    if not eps > 0:
        raise InvalidInput(f"regularised: eps must be above 0, got {eps!r}.")
    return values.abs().clamp_min(eps)
