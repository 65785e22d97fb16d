"""Labelled images: in memory, or decoded from a folder on access. Pixels are always in [0, 1]."""

from __future__ import annotations

import copy
import hashlib
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ucan.errors import InvalidInput
from ucan.held import Held

if TYPE_CHECKING:
    from PIL.Image import Image

# At most this many pictures are checked before the work starts; this takes seconds.
LOOKED_AT = 5000
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
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
        """The items at these indices: float32 (b, *event) within [0, 1] and int64 (b,)."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        chosen = self.images[index]
        if self.unit is not None:
            return (chosen if chosen.is_floating_point() else chosen.double()), self.labels[index]
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


class ImageFolder(Labelled):
    """Pictures in a folder, decoded on access.

    Either ``class_name/picture.png``, where the class folders in order (numbers by size: 0, 1, 2, 10) give the labels
    0, 1, …, or a flat folder of pictures, whose labels are unknown. All pictures must have the size of the first one, unless
    ``size`` is given: then the shortest side is resized to round(size·256/224) and the central size × size pixels are taken,
    as is usual for ImageNet. ``channels``: 3 for RGB, 1 for grey.
    """

    step = BYTE

    def __init__(self, path: str | Path, size: int | None = None, channels: int = 3) -> None:
        if channels not in (1, 3):
            raise InvalidInput(f"channels must be 3 (RGB) or 1 (grey), got {channels!r}.")
        if size is not None and size < 1:
            raise InvalidInput(f"size must be a number of pixels, at least 1, got {size!r}.")
        self.path, self.size, self.channels = Path(path), size, channels
        self.name = self.path.resolve().name
        self.files, labels, self.classes = _scan(self.path)
        self.labels = torch.tensor(labels, dtype=torch.int64)
        self.names = _names(self.files, self.path)
        self._shape: tuple[int, ...] | None = None

    @property
    def event_shape(self) -> tuple[int, ...]:
        """(channels, height, width): of the first picture, or given by ``size``."""
        if self._shape is None:
            side = self.size
            self._shape = (self.channels, side, side) if side else tuple(self._decode(self.files[0]).shape)
        return self._shape

    def batch(self, indices: Sequence[int] | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The items at these indices: float32 (b, *event) within [0, 1] and int64 (b,)."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        pictures = [self._picture(self.files[i]) for i in index.tolist()]
        images = torch.stack(pictures) if pictures else torch.empty((0, *self.event_shape), dtype=torch.uint8)
        return as_pixels(images), self.labels[index]

    def fingerprint(self) -> str:
        """SHA-256 of the pictures' names, sizes in bytes and labels; no picture is decoded."""
        lines = (
            f"{file.relative_to(self.path)}\t{file.stat().st_size}\t{label}"
            for file, label in zip(self.files, self.labels.tolist(), strict=True)
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def subset(self, indices: Sequence[int] | torch.Tensor) -> ImageFolder:
        """The pictures at these indices, in this order, with the same classes and the same size."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        part = object.__new__(ImageFolder)
        part.__dict__.update(self.__dict__, _shape=self.event_shape)
        part.files, part.labels = [self.files[i] for i in index.tolist()], self.labels[index]
        part.names = _names(part.files, self.path)
        return part

    def check(self, indices: Sequence[int]) -> None:
        """Refuse damaged pictures and, without a ``size``, those of another size; only headers, ends and checksums are
        read.
        """
        for index in list(indices)[:LOOKED_AT]:
            with _opened(self.files[index]) as picture:
                width, height = picture.size
                jpeg = picture.format == "JPEG"
                picture.verify()
            if jpeg and not _has_end(self.files[index]):  # it has no checksums, so it is decoded
                open_picture(self.files[index], "RGB")
            if self.size is None:
                self._check_size(self.files[index], width, height)

    def _picture(self, file: Path) -> torch.Tensor:
        pixels = self._decode(file)
        self._check_size(file, pixels.shape[2], pixels.shape[1])
        return pixels

    def _check_size(self, file: Path, width: int, height: int) -> None:
        _, high, wide = self.event_shape
        if (width, height) != (wide, high):
            raise InvalidInput(
                f"{file} is {width} x {height} pixels, but {self.name} has {wide} x {high}: give a size (on the command "
                "line --size) to have all pictures resized and cropped."
            )

    def _decode(self, file: Path) -> torch.Tensor:
        return decoded(file, self.size, self.channels)

    def __repr__(self) -> str:
        return f"ImageFolder({str(self.path)!r}, size={self.size}, channels={self.channels})"


def decoded(file: Any, size: int | None, channels: int) -> torch.Tensor:
    """The pixels of one picture, uint8 (channels, height, width), resized and cropped if a size is given."""
    picture = open_picture(file, "RGB" if channels == 3 else "L")
    if size is not None:
        picture = resize_and_crop(picture, size)
    pixels = np.array(picture, dtype=np.uint8)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1).contiguous()


def _names(files: Sequence[Path], folder: Path) -> tuple[str, ...]:
    return tuple(file.relative_to(folder).as_posix() for file in files)


def as_pixels(images: torch.Tensor) -> torch.Tensor:
    """Bytes (0 to 255), or floats within [0, 1], as float32 within [0, 1]."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _has_end(jpeg: Path) -> bool:
    """Whether the end marker of a JPEG is near the end of the file; pixel data cannot contain it."""
    with open(jpeg, "rb") as file:
        file.seek(max(0, jpeg.stat().st_size - 1024))
        return b"\xff\xd9" in file.read()


def open_picture(file: Path, mode: str) -> Image:
    """The decoded picture in that mode; InvalidInput, naming the file, if it is damaged, too large or not 8-bit."""
    with _opened(file) as picture:
        picture.load()
        # Converting a palette with transparency through RGBA avoids a warning.
        return (picture.convert("RGBA") if "transparency" in picture.info else picture).convert(mode)


@contextmanager
def _opened(file: Path) -> Iterator[Image]:
    """Open a picture and read its header only; any failure becomes InvalidInput with the file's name."""
    from PIL import Image as pillow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(file) as picture:
                if picture.mode[0] in "IF":
                    raise InvalidInput(f"{file} has more than 8 bits per channel: save it with 8 bits.")
                yield picture
    except InvalidInput:
        raise
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as error:
        raise InvalidInput(f"{file} has too many pixels to be safe to decode ({error}): scale it down.") from error
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        raise InvalidInput(f"{file} cannot be decoded ({error}): replace or remove it.") from error


def resize_and_crop(picture: Image, size: int) -> Image:
    """The shortest side resized to round(size·256/224), then the central size × size pixels."""
    from PIL import Image as pillow

    factor = round(size * 256 / 224) / min(picture.size)
    # Extreme aspect ratios and tiny sizes must still cover the crop.
    width, height = (max(size, round(side * factor)) for side in picture.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return picture.resize((width, height), pillow.Resampling.BILINEAR).crop((left, top, left + size, top + size))


def _scan(path: Path) -> tuple[list[Path], list[int], tuple[str, ...] | None]:
    """The pictures of a folder with their labels, and the names of the classes if there are class folders."""
    if not path.is_dir():
        raise InvalidInput(f"{path} is not a folder: give a folder of pictures, or of one folder per class.")
    loose = _pictures(path)
    found_folders = (f for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))
    folders = sorted(found_folders, key=lambda folder: sort_key(folder.name))
    found = [(file, label) for label, folder in enumerate(folders) for file in _pictures(folder)]
    if found and loose:
        raise InvalidInput(
            f"{path} holds class folders and loose pictures ({loose[0].name}): move the pictures into their classes."
        )
    if found:
        return [file for file, _ in found], [label for _, label in found], tuple(f.name for f in folders)
    if not loose:
        raise InvalidInput(
            f"{path} holds no pictures: put them there, or into one folder per class, as {', '.join(SUFFIXES)}."
        )
    return loose, [UNKNOWN] * len(loose), None


def sort_key(text: str) -> tuple[int, float, str]:
    """Numbers by size and before texts: 0, 1, 2, 10."""
    try:
        number = float(text)
        return (0, number, text) if math.isfinite(number) else (1, 0.0, text)
    except ValueError:
        return (1, 0.0, text)


def _pictures(folder: Path) -> list[Path]:
    return sorted(
        f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES and not f.name.startswith(".") and f.is_file()
    )


def _as_tensor(values: torch.Tensor | np.ndarray | Sequence[int], name: str, what: str) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "uif":
        texts = array.dtype.kind in "US" and what == "labels"
        advice = (
            ": number the classes from 0, names, labels = numpy.unique(labels, return_inverse=True)" if texts else ""
        )
        raise InvalidInput(f"{name}: {what} must be numbers, got an array of {array.dtype}{advice}.")
    # torch needs native byte order, positive strides and writable memory.
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


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
        raise InvalidInput(f"{name}: images must be uint8 or floats within [0, 1], got {images.dtype}.")
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
