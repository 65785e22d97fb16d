"""Labelled inputs as arrays in memory, checked when they are given."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from ucan.data.labelled import BYTE, UNKNOWN, Labelled, as_pixels
from ucan.errors import InvalidInput


class InMemory(Labelled):
    """Inputs held as one tensor: ``images`` (N, *event), uint8 (0 to 255) or floats within [0, 1].

    Numpy arrays are accepted as well; without ``labels`` every label is −1. Bytes have the step 1/255; for floats, ``step``
    is the number that they are whole multiples of, if known. Numbers outside [0, 1] are accepted if ``unit`` names their unit
    (decibels, metres); noise, radii and steps are then in that unit.
    """

    def __init__(
        self,
        images: torch.Tensor | np.ndarray,
        labels: torch.Tensor | np.ndarray | Sequence[int] | None = None,
        classes: Sequence[str] | None = None,
        name: str = "data",
        step: float | None = None,
        names: Sequence[str] | None = None,
        unit: str | None = None,
    ) -> None:
        self.name, self.unit = name, unit
        self.names = None if names is None else tuple(map(str, names))
        self.images = _check_images(_as_tensor(images, name, "images"), name, unit)
        whole = unit is not None and not self.images.is_floating_point()
        self.step = 1.0 if whole else BYTE if self.images.dtype == torch.uint8 else step
        count = len(self.images)
        self.labels = (
            torch.full((count,), UNKNOWN) if labels is None else _check_labels(_as_tensor(labels, name, "labels"), name)
        )
        self.classes = None if classes is None else tuple(classes)
        if self.names is not None and len(self.names) != count:
            raise InvalidInput(f"{name} has {count} inputs but {len(self.names)} names: give one name per input.")
        if count != len(self.labels):
            raise InvalidInput(f"{name} has {count} images but {len(self.labels)} labels: give one label per image.")
        largest = int(self.labels.max())
        if self.classes is not None and largest >= len(self.classes):
            raise InvalidInput(
                f"{name}: label {largest} has no name: there are {len(self.classes)} class names, and labels count from 0."
            )

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.images.shape[1:])

    def batch(self, indices: Sequence[int] | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The items at these indices: float32 (b, *event) within [0, 1], with a unit float32 or float64, and int64 (b,)."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        chosen = self.images[index]
        if self.unit is not None:
            wide = torch.promote_types(chosen.dtype, torch.float32) if chosen.is_floating_point() else torch.float64
            return chosen.to(wide), self.labels[index]
        return as_pixels(chosen), self.labels[index]

    def fingerprint(self) -> str:
        """SHA-256 of images and labels."""
        digest = hashlib.sha256(str((tuple(self.images.shape), self.images.dtype)).encode())
        for tensor in (self.images, self.labels):
            digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def subset(self, indices: Sequence[int] | torch.Tensor) -> InMemory:
        """The items at these indices, in this order, with the same classes."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        names = None if self.names is None else [self.names[i] for i in index.tolist()]
        return InMemory(self.images[index], self.labels[index], self.classes, self.name, self.step, names, self.unit)

    def __repr__(self) -> str:
        return f"InMemory({self.name!r}, {len(self)} of shape {self.event_shape})"


def _as_tensor(values: torch.Tensor | np.ndarray | Sequence[int], name: str, what: str) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.detach()
    if np.ma.is_masked(values):
        raise InvalidInput(
            f"{name}: some of the {what} are masked: leave these inputs out, or fill them in with .filled()."
        )
    array = np.asarray(values)
    if array.dtype.kind not in "uif" or array.dtype.itemsize > 8:
        raise InvalidInput(f"{name}: {what} must be numbers, got an array of {array.dtype}{_as_numbers(array, what)}.")
    # torch needs native byte order, positive strides and writable memory.
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _as_numbers(array: np.ndarray, what: str) -> str:
    """How an array of something else is made one of numbers, as the end of a message; empty if nobody knows."""
    kind, labels = array.dtype.kind, what == "labels"
    if kind in "US" and labels:
        return ": number the classes from 0, names, labels = numpy.unique(labels, return_inverse=True)"
    if kind == "b":
        return ": give labels.astype(int)" if labels else ": give 255 * images.astype(numpy.uint8)"
    return ": give .astype(numpy.float64)" if kind == "f" else ""


def _check_labels(labels: torch.Tensor, name: str) -> torch.Tensor:
    """The labels as int64 (N,)."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise InvalidInput(
            f"{name}: labels have shape {tuple(labels.shape)} and seem to be one-hot: give labels.argmax(1)."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InvalidInput(f"{name}: labels must be whole numbers, got {labels.dtype}: use labels.long().")
    if labels.ndim != 1:
        raise InvalidInput(f"{name}: labels must have shape (N,), got {tuple(labels.shape)}.")
    labels = labels.long()
    if (labels < UNKNOWN).any():
        first = int((labels < UNKNOWN).nonzero()[0])
        raise InvalidInput(
            f"{name}: labels[{first}] is {int(labels[first])}; labels count from 0, and {UNKNOWN} means unknown."
        )
    return labels


def _check_images(images: torch.Tensor, name: str, unit: str | None = None) -> torch.Tensor:
    """Check that images are bytes, or finite floats within [0, 1]; with a unit, any finite numbers."""
    if images.ndim < 2 or images.numel() == 0:
        raise InvalidInput(f"{name}: images must be non-empty, (N, *event); got shape {tuple(images.shape)}.")
    if unit is not None and bool(images.isfinite().all()):
        return images
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise InvalidInput(
            f"{name}: images must be uint8 or floats within [0, 1], got {images.dtype}: give bytes (0 to 255) as uint8, other "
            "whole numbers divided by the largest possible one. If they are no pixels, name their unit "
            '(unit="mm", on the command line --unit mm).'
        )
    if bool(images.amin() >= 0) and bool(images.amax() <= 1):  # false for NaN
        return images
    wrong = ~((images >= 0) & (images <= 1)) if unit is None else ~images.isfinite()
    first = tuple(wrong.nonzero()[0].tolist())
    if not bool(images[first].isfinite()):
        raise InvalidInput(
            f"{name}: images{list(first)} is {images[first].item():g}, and inputs must be finite numbers."
        )
    raise InvalidInput(
        f"{name}: images{list(first)} is {images[first].item():g}, but pixels must be finite and within [0, 1]: "
        "divide by the largest possible value (such as 255). If they were normalised for the model, give the pixels and put "
        "the normalisation into the model (on the command line --normalise). If they are no pixels, name their unit "
        '(unit="mm", on the command line --unit mm).'
    )
