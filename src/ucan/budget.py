"""A budget: how much an attacker may change each coordinate, or each group of coordinates."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from ucan.errors import InvalidInput
from ucan.rounding import floor_plain

# Limits are 0 or between these, so that their squares are finite. A smaller limit is raised, which is sound.
LEAST, MOST = 1e-100, 1e100


@dataclass(frozen=True, eq=False)
class Budget:
    """The changes δ of size ε = 1 in a box, |δᵢ| ≤ bᵢ, or in groups of coordinates, ‖δ_g‖₂ ≤ b_g.

    ``limits`` holds b: a map of the input's shape, or with ``groups`` one number per group. ``groups`` is a map of the
    input's shape with the number of each coordinate's group, counted from 0, so every coordinate is in one group.
    Limits are finite and at least 0, and not all 0; a limit of 0 allows no change. ``name`` is for display.

    A claim "the budget holds at ε" says that no change in ε·budget, the same set with limits ε·b, changes the answer.
    """

    limits: torch.Tensor
    groups: torch.Tensor | None = None
    name: str = ""

    def __post_init__(self) -> None:
        limits = as_limits("a budget", self.limits)
        if not limits.any():
            raise InvalidInput("a budget must allow some change: every limit is 0.")
        object.__setattr__(self, "limits", limits)
        if self.groups is not None:
            object.__setattr__(self, "groups", _as_groups(self.groups, limits))

    @classmethod
    def of(cls, value: Any, shape: Sequence[int], groups: Any = None, name: str = "") -> Budget:
        """A budget for inputs of this shape: from a number (the same everywhere), a map, a list, or another budget.

        With ``groups``, a number is every group's limit.
        """
        shape = tuple(int(side) for side in shape)
        if isinstance(value, Budget):
            if value.shape != shape:
                raise InvalidInput(f"the budget is for inputs of shape {value.shape}, not {shape}.")
            return value
        limits = as_limits("a budget", value)
        if groups is not None:
            group_map = torch.as_tensor(groups)
            if tuple(group_map.shape) != shape:
                raise InvalidInput(f"groups of shape {tuple(group_map.shape)} do not fit inputs of {shape}.")
            return cls(limits.expand(int(group_map.max()) + 1) if limits.ndim == 0 else limits, group_map, name)
        if limits.ndim and tuple(limits.shape) != shape:
            raise InvalidInput(f"a budget of shape {tuple(limits.shape)} does not fit inputs of {shape}.")
        return cls(limits.expand(shape) if limits.ndim == 0 else limits, None, name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The input's shape."""
        return tuple((self.limits if self.groups is None else self.groups).shape)

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return math.prod(self.shape)

    @property
    def box(self) -> torch.Tensor:
        """The largest change of each coordinate alone, of the input's shape: the smallest box around the set."""
        return self.limits if self.groups is None else self.limits[self.groups]

    @property
    def uniform(self) -> bool:
        """Whether it is the same limit for every coordinate by itself."""
        return self.groups is None and bool((self.limits == self.limits.flatten()[0]).all())

    def length(self, norm: float) -> float:
        """The largest ‖δ‖ of a change within the budget, exact in ℓ1, ℓ2 and ℓ∞."""
        sizes = self.limits.flatten()
        if self.groups is not None and norm == 1:
            sizes = sizes * torch.bincount(self.groups.flatten(), minlength=len(sizes)).double().sqrt()
        return float(torch.linalg.vector_norm(sizes, ord=norm))

    def size(self, delta: torch.Tensor) -> torch.Tensor:
        """The smallest ε whose budget ε·b holds each change of a batch (batch, *event); ∞ where nothing may change."""
        flat = as_numbers(delta).double().cpu().reshape(-1, self.dim).abs()
        if self.groups is not None:
            squares = flat.new_zeros(len(flat), len(self.limits))
            flat = squares.index_add_(1, self.groups.flatten(), flat.square()).sqrt()
        limits = self.limits.flatten()
        shares = torch.where(flat == 0, 0.0, flat / limits)  # no change where none is allowed
        return shares.amax(1)

    def times(self, factor: float) -> Budget:
        """The budget with every limit times a factor above 0."""
        return Budget(self.limits * factor, self.groups, self.name)

    @cached_property
    def key(self) -> str:
        """A SHA-256 of the limits and the groups, not of the name; it identifies the budget."""
        plain = {name: value for name, value in self.to_dict().items() if name != "name"}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def words(self) -> str:
        """A claim at ε, as text."""
        if self.groups is not None:
            return f"every change of at most ε·b in the ℓ2 norm of each of {len(self.limits)} groups of coordinates"
        if self.uniform:
            limit = float(self.limits.flatten()[0])
            return f"every change of at most {'ε' if limit == 1 else f'{floor_plain(limit)}·ε'} in each coordinate"
        return "every change of at most ε·bᵢ in coordinate i"

    def __repr__(self) -> str:
        kind = f"{len(self.limits)} groups" if self.groups is not None else "box"
        low, high = float(self.limits.min()), float(self.limits.max())
        limits = f"{low:g}" if low == high else f"{low:g} … {high:g}"
        return f"Budget({self.name + ': ' if self.name else ''}{kind} of {limits} in R^{self.dim})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: numbers in full precision; one number where all limits are the same."""
        flat = self.limits.flatten().tolist()
        record: dict[str, Any] = {"shape": list(self.shape), "limits": flat[0] if len(set(flat)) == 1 else flat}
        if self.groups is not None:
            record |= {"groups": self.groups.flatten().tolist(), "count": len(flat)}
        return record | ({"name": self.name} if self.name else {})

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Budget:
        """The inverse of ``to_dict``."""
        try:
            shape, limits = tuple(record["shape"]), torch.as_tensor(record["limits"], dtype=torch.float64)
            name = str(record.get("name", ""))
            if "groups" in record:
                return cls(limits.expand(record["count"]), torch.as_tensor(record["groups"]).reshape(shape), name)
            return cls(limits.expand(shape) if limits.ndim == 0 else limits.reshape(shape), None, name)
        except (KeyError, TypeError, RuntimeError) as error:
            raise InvalidInput(f"this is not a budget record: {error}.") from error


def read_budget(path: str | Path, shape: Sequence[int]) -> Budget:
    """The budget in a file, for inputs of this shape.

    A `.npy` file holds a map of the input's shape. An `.npz` file holds `limits`, one number per group, and `groups`, a map
    of the input's shape with the number of each coordinate's group, counted from 0; without `groups` the limits are a map.
    """
    path = Path(path)
    try:
        content = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
        arrays = {"limits": content} if isinstance(content, np.ndarray) else dict(content)
    except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
        raise InvalidInput(f"{path} cannot be read as a numeric {path.suffix} file: {error}.") from error
    if "limits" not in arrays or arrays.keys() - {"limits", "groups"}:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise InvalidInput(f"{path} must hold `limits`, and may hold `groups`; it holds {found}.")
    for name, array in arrays.items():
        if array.dtype.kind not in "iuf":
            raise InvalidInput(f"{path}: {name} must be numbers, not {array.dtype}.")
    groups = arrays.get("groups")
    if groups is not None and groups.dtype.kind in "iu":
        groups = groups.astype(np.int64)
    try:
        return Budget.of(arrays["limits"].astype(np.float64), shape, groups, path.stem)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def as_numbers(value: Any) -> torch.Tensor:
    """Numbers as a tensor. Plain ones in float64: PyTorch would round them to float32, and 0.7 to less than 0.7."""
    plain = not isinstance(value, torch.Tensor | np.ndarray | np.generic)
    return (torch.as_tensor(value, dtype=torch.float64) if plain else torch.as_tensor(value)).detach()


def as_limits(what: str, value: Any) -> torch.Tensor:
    """``value`` as finite numbers of at least 0, in float64 on the CPU; a copy."""
    if isinstance(value, bool | str) or value is None:
        raise InvalidInput(f"{what} must be a number or a map of the input's shape, got {value!r}.")
    try:
        limits = as_numbers(value).to("cpu", torch.float64, copy=True)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{what} must be a number or a map of the input's shape, got a {type(value).__name__}."
        ) from error
    if limits.numel() == 0 or not bool(((limits >= 0) & (limits <= MOST)).all()):
        raise InvalidInput(f"{what} must hold finite numbers from 0 to {MOST:g}.")
    return torch.where(limits > 0, limits.clamp_min(LEAST), 0.0)


def _as_groups(groups: Any, limits: torch.Tensor) -> torch.Tensor:
    made = torch.as_tensor(groups).detach().to("cpu", copy=True)
    if made.is_floating_point() or made.is_complex() or made.dtype == torch.bool:
        raise InvalidInput(f"groups must be whole numbers from 0, got {made.dtype}.")
    if limits.ndim != 1 or made.numel() == 0 or int(made.min()) < 0 or int(made.max()) >= len(limits):
        raise InvalidInput(
            f"groups are numbered from 0 to {max(0, limits.numel() - 1)}, one limit each: got limits of shape "
            f"{tuple(limits.shape)} and numbers from {int(made.min())} to {int(made.max())}."
        )
    return made.long()
