"""What every data set is: inputs with their labels, in an order. Pixels are always in [0, 1]."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from ucan.errors import InvalidInput
from ucan.held import Held

UNKNOWN = -1
# The step of 8-bit pixels in [0, 1].
BYTE = 1 / 255


class Labelled(Dataset[tuple[torch.Tensor, int]], ABC):
    """Inputs with their labels: item i is (float32 tensor of the event's shape, within [0, 1]; class number).

    ``labels`` is int64 of shape (N,), −1 where the label is unknown; ``classes`` names the classes, or is None. ``step``
    is the number that every pixel is a whole multiple of, if the source states it (1/255 for 8-bit pictures); it is never
    guessed. ``names`` are the names of the items, in order; None if they have numbers only.
    """

    name: str
    labels: torch.Tensor
    classes: tuple[str, ...] | None
    step: Any = None  # float | torch.Tensor | None: tables have one step per column
    names: tuple[str, ...] | None = None
    targets: torch.Tensor | None = None  # what a question other than one class asks for, (N, …): numbers, labels, masks

    def held_at(self, index: int) -> Held | None:
        """The columns of an item that get no noise, with their values (tables have some); None where there are none."""
        return None

    def name_of(self, index: int) -> str:
        """The name of an item: the file's name, the row's identifier, or its number."""
        return str(index) if self.names is None else self.names[index]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name} has no item {index}, only 0 to {len(self) - 1}.")
        images, labels = self.batch([index % len(self)])
        return images[0], int(labels[0])

    @property
    def num_classes(self) -> int:
        """How many classes there are: as many as are named, or else the largest label + 1."""
        if self.classes is not None:
            return len(self.classes)
        largest = int(self.labels.max())
        if largest < 0:
            raise InvalidInput(f"{self.name} has no labels, so the number of classes is unknown: give it explicitly.")
        return largest + 1

    def in_order(self, classes: Sequence[str]) -> Labelled:
        """The same items with their labels numbered in this order of the classes, which has all of their names."""
        if self.classes is None or tuple(classes) == self.classes:
            return self
        place = {name: i for i, name in enumerate(classes)}
        numbers = torch.tensor([*(place[name] for name in self.classes), UNKNOWN])  # the last is for −1
        other = copy.copy(self)
        other.classes, other.labels = tuple(classes), numbers[self.labels]
        return other

    @property
    @abstractmethod
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one input, (channels, height, width) for pictures."""

    @abstractmethod
    def batch(self, indices: Sequence[int] | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The items at these indices: float32 (b, *event) within [0, 1] and int64 (b,)."""

    def check(self, indices: Sequence[int]) -> None:
        """Refuse, before any work, items that are known to fail later; by default none are."""
        return

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that identifies the data."""

    @abstractmethod
    def subset(self, indices: Sequence[int] | torch.Tensor) -> Labelled:
        """The items at these indices, in this order, as a data set of the same kind and with the same classes."""


def as_pixels(images: torch.Tensor) -> torch.Tensor:
    """Bytes (0 to 255), or floats within [0, 1], as float32 within [0, 1]."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def sort_key(text: str) -> tuple[int, float, str]:
    """Numbers by size and before texts: 0, 1, 2, 10."""
    try:
        number = float(text)
        return (0, number, text) if math.isfinite(number) else (1, 0.0, text)
    except ValueError:
        return (1, 0.0, text)
