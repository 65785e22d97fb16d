"""Held coordinates: those of an input that get no noise, so that no certificate covers a change of them.

Smoothing then happens in the other coordinates alone. The classifier that is smoothed is the given one at these held values,
a fixed function of the rest, and all of the theory applies to it as it stands: dimension, radius, ALM and volume are those of
the coordinates that vary. An input with other held values meets another classifier, about which nothing is said.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ucan.errors import InvalidInput, ModelError
from ucan.fingerprint import identity

Value = float | str
# Names of columns in a sentence.
SHOWN = 4


@dataclass(frozen=True)
class Held:
    """The held columns of one input with the values that they have: numbers, or the text of a category."""

    columns: tuple[str, ...]
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if len(self.columns) != len(self.values) or len(set(self.columns)) != len(self.columns) or not self.columns:
            raise InvalidInput("held columns must have distinct names and one value each.")
        for column, value in zip(self.columns, self.values, strict=True):
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not isinstance(column, str) or not (isinstance(value, str) or number):
                raise InvalidInput(f"the held column {column!r} must have a finite number or a text, got {value!r}.")

    def to_dict(self) -> dict[str, Value]:
        """Plain JSON values: column to value, in the columns' order."""
        return dict(zip(self.columns, self.values, strict=True))

    @classmethod
    def from_dict(cls, record: Mapping[str, Value]) -> Held:
        """The inverse of ``to_dict``."""
        if not isinstance(record, Mapping):
            raise InvalidInput(f"held columns must be a mapping of names to values, got {record!r}.")
        return cls(tuple(record), tuple(record.values()))

    def words(self) -> str:
        """That no change of them is covered, as the end of a sentence."""
        shown = ", ".join(self.columns[:SHOWN])
        more = len(self.columns) - SHOWN
        return f"with {shown}{f' and {more} more columns' if more > 0 else ''} held: no change of them is covered"


class Rows(ABC):
    """A classifier of whole rows, some of whose columns are held: a classifier of the others at every choice of those.

    ``held_columns`` are the names of the held ones. By itself it can be asked only where that is none.
    """

    model: Any
    num_classes: int
    held_columns: tuple[str, ...]

    @property
    @abstractmethod
    def layout(self) -> str:
        """Which columns vary, in which order, and what else its answers depend on beside the model: for a hash."""

    @property
    @abstractmethod
    def base(self) -> str | None:
        """The model's identity; None if it has none."""

    @abstractmethod
    def answer(self, varying: torch.Tensor, held: Held | None) -> Any:
        """Its answers to rows: the columns that vary (n, m), the held ones the same in all of them."""

    @property
    def weights_hash(self) -> str | None:
        """Of the model and the layout of its rows, whatever the held columns hold."""
        return None if self.base is None else hashlib.sha256(f"{self.base} {self.layout}".encode()).hexdigest()

    def __call__(self, batch: torch.Tensor) -> Any:
        """The answers where nothing is held."""
        if self.held_columns:
            raise ModelError(f"this classifier needs values for the held columns {', '.join(self.held_columns)}.")
        return self.answer(batch, None)

    def at(self, held: Held) -> AtHeld:
        """The classifier at these held values."""
        check_evaluating(self.model)
        if held.columns != self.held_columns:
            raise InvalidInput(f"the held columns {', '.join(held.columns)} are not this classifier's.")
        return AtHeld(self, held)

    def _asked(self, whole: torch.Tensor) -> Any:
        """The model's answers to whole inputs, which a module gets on its device and in its precision."""
        first = next(self.model.parameters(), None) if isinstance(self.model, nn.Module) else None
        return self.model(whole if first is None else whole.to(first.device, first.dtype))


class AtHeld:
    """A classifier of rows at one input's held values: a function of the columns that vary, (n, m) to answers.

    ``weights_hash`` tells it from the same classifier at other held values, so that a certificate is about this one alone.
    """

    def __init__(self, rows: Rows, held: Held) -> None:
        self.rows, self.held = rows, held
        self.num_classes = rows.num_classes
        plain = json.dumps([held.columns, held.values])
        known = rows.weights_hash
        self.weights_hash = None if known is None else hashlib.sha256(f"{known} {plain}".encode()).hexdigest()

    def __call__(self, batch: torch.Tensor) -> Any:
        """The answers of the whole rows."""
        return self.rows.answer(batch, self.held)


class Coordinates(Rows):
    """A classifier of tensors (n, *event) as one of rows: some coordinates of the flattened event are held.

    ``names`` are those of all coordinates; their numbers, where there are none. For tables see ``ucan.data.Table``.
    """

    def __init__(
        self,
        model: Any,
        event: Sequence[int],
        held: Sequence[int],
        num_classes: int,
        names: Sequence[str] | None = None,
        model_id: str | None = None,
    ) -> None:
        self.model, self.event, self.num_classes, self.model_id = model, tuple(event), num_classes, model_id
        dim = math.prod(self.event)
        self.names = tuple(names) if names is not None else tuple(map(str, range(dim)))
        if len(self.names) != dim:
            raise InvalidInput(
                f"{len(self.names)} names were given for {dim} coordinates: give one name per coordinate."
            )
        self.places = tuple(sorted(set(held)))
        if not self.places or self.places[0] < 0 or self.places[-1] >= dim or len(self.places) == dim:
            raise InvalidInput(f"held must be some, but not all, of the coordinates 0 to {dim - 1}, got {list(held)}.")
        self.held_columns = tuple(self.names[i] for i in self.places)
        self.varying = tuple(i for i in range(dim) if i not in set(self.places))

    @property
    def layout(self) -> str:
        """The event and the coordinates that vary."""
        return json.dumps([self.event, self.varying, self.names])

    @property
    def base(self) -> str | None:
        """The model's own identity."""
        return identity(self.model, self.model_id)

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, Held]:
        """One input (1, *event) as the coordinates that vary (1, m), and the held ones."""
        if tuple(x.shape) != (1, *self.event):
            raise InvalidInput(
                f"one input of shape (1, {', '.join(map(str, self.event))}) is needed, got {tuple(x.shape)}."
            )
        flat = x.reshape(1, -1)
        values = tuple(float(flat[0, i]) for i in self.places)
        return flat[:, list(self.varying)], Held(self.held_columns, values)

    def answer(self, varying: torch.Tensor, held: Held | None) -> Any:
        """The model's answers to whole inputs."""
        assert held is not None, "at() gives it"
        whole = varying.new_empty(len(varying), len(self.names))
        whole[:, list(self.varying)] = varying
        whole[:, list(self.places)] = torch.tensor(held.values, dtype=varying.dtype, device=varying.device)
        return self._asked(whole.reshape(-1, *self.event))


def check_evaluating(model: Any) -> None:
    """Refuse a module in training mode, whose answers would depend on the batch; what wraps it hides that from others."""
    if isinstance(model, nn.Module) and any(part.training for part in model.modules()):
        raise ModelError("the model is in training mode: call model.eval() first.")


def held_of(model: Any) -> Held | None:
    """The held values at which a model is a classifier of the rest; None for any other model."""
    found = getattr(model, "held", None)
    return found if isinstance(found, Held) else None
