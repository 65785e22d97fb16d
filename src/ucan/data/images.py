"""A folder of pictures as a data set, decoded on access."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from ucan.data.labelled import BYTE, UNKNOWN, Labelled, as_pixels, sort_key
from ucan.data.pictures import SUFFIXES, check_picture, decoded
from ucan.errors import InvalidInput

# At most this many pictures are checked before the work starts; this takes seconds.
LOOKED_AT = 5000


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
            width, height = check_picture(self.files[index])
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


def _names(files: Sequence[Path], folder: Path) -> tuple[str, ...]:
    return tuple(file.relative_to(folder).as_posix() for file in files)


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


def _pictures(folder: Path) -> list[Path]:
    return sorted(
        f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES and not f.name.startswith(".") and f.is_file()
    )
