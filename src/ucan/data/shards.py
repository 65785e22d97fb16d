"""Shards of pictures: WebDataset's tar files, and Parquet files with encoded pictures; decoded when they are asked for."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ucan.data.labelled import BYTE, UNKNOWN, Labelled, as_pixels
from ucan.data.pictures import SUFFIXES, decoded
from ucan.errors import InvalidInput, MissingExtra

IMAGE_COLUMNS = ("image", "img", "picture", "jpg", "png")
LABEL_COLUMNS = ("label", "labels", "cls", "target", "fine_label")


@dataclass(frozen=True)
class Encoded:
    """One picture as it lies in a shard."""

    name: str
    data: bytes
    label: int


class _File(io.BytesIO):
    """An encoded picture as Pillow wants it; messages know it by its name."""

    def __init__(self, one: Encoded) -> None:
        super().__init__(one.data)
        self.called: str = one.name

    def __str__(self) -> str:
        return self.called


class Shards(Labelled):
    """Pictures of one or several shards, in their order; names, labels and, if a shard tells them, class names.

    All pictures must have the size of the first one, unless ``size`` is given, as in a folder of pictures.
    """

    step = BYTE

    def __init__(
        self,
        name: str,
        items: Sequence[Encoded],
        classes: Sequence[str] | None = None,
        size: int | None = None,
        channels: int = 3,
    ) -> None:
        if not items:
            raise InvalidInput(f"{name} holds no pictures.")
        self.name, self.items, self.size, self.channels = name, tuple(items), size, channels
        self.names = tuple(one.name for one in items)
        self.labels = torch.tensor([one.label for one in items], dtype=torch.int64)
        self.classes = None if classes is None else tuple(classes)
        self._shape = tuple(self._decode(items[0]).shape)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """(channels, height, width) of the first picture."""
        return self._shape

    def batch(self, indices: Sequence[int] | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The pictures at these indices: float32 (b, channels, height, width) within [0, 1] and int64 (b,)."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        made = [self._checked(self.items[i]) for i in index.tolist()]
        return as_pixels(torch.stack(made)), self.labels[index]

    def fingerprint(self) -> str:
        """SHA-256 of names, encoded pictures and labels."""
        digest = hashlib.sha256()
        for one in self.items:
            digest.update(f"{one.name} {one.label} {len(one.data)}".encode())
            digest.update(one.data)
        return digest.hexdigest()

    def subset(self, indices: Sequence[int] | torch.Tensor) -> Shards:
        """The pictures at these indices, in this order."""
        chosen = [self.items[i] for i in torch.as_tensor(indices, dtype=torch.int64).tolist()]
        return Shards(self.name, chosen, self.classes, self.size, self.channels)

    def _checked(self, one: Encoded) -> torch.Tensor:
        pixels = self._decode(one)
        if tuple(pixels.shape) != self._shape:
            shown = " x ".join(map(str, reversed(pixels.shape[1:])))
            raise InvalidInput(f"{one.name} is {shown} pixels, others than the first: give a size (--size).")
        return pixels

    def _decode(self, one: Encoded) -> torch.Tensor:
        return decoded(_File(one), self.size, self.channels)

    def __repr__(self) -> str:
        return f"Shards({self.name!r}, {len(self)} pictures)"


def load_shards(paths: Sequence[Path], name: str, size: int | None = None, channels: int = 3) -> Shards:
    """The pictures of these .tar and .parquet files."""
    items: list[Encoded] = []
    classes: tuple[str, ...] | None = None
    for path in paths:
        if path.suffix.lower() == ".tar":
            items += _of_tar(path)
        else:
            found, told = _of_parquet(path)
            items, classes = items + found, classes or told
    return Shards(name, items, classes, size, channels)


def shards_in(path: Path) -> list[Path]:
    """The shards that a path names: a .tar file, a Parquet file of pictures, or a folder of such and nothing else."""
    if path.is_file():
        is_shard = path.suffix.lower() == ".tar" or (path.suffix.lower() == ".parquet" and _has_pictures(path))
        return [path] if is_shard else []
    if not path.is_dir():
        return []
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    kinds = {file.suffix.lower() for file in files}
    if not files or not kinds <= {".tar", ".parquet"}:
        return []
    return [file for file in files if shards_in(file)]


def _of_tar(path: Path) -> Iterator[Encoded]:
    """WebDataset: files of one sample share their name up to the first dot; a picture, and .cls or .json with the label."""
    samples: dict[str, dict[str, bytes]] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and (opened := archive.extractfile(member)) is not None:
                    folder, _, base = member.name.rpartition("/")
                    key, _, suffix = base.partition(".")
                    samples.setdefault(f"{folder}/{key}" if folder else key, {})[f".{suffix.lower()}"] = opened.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InvalidInput(f"{path} cannot be read as a tar file: {error}.") from error
    for key, parts in samples.items():
        picture = next((suffix for suffix in SUFFIXES if suffix in parts), None)
        if picture is not None:
            yield Encoded(key, parts[picture], _label_of(parts, key))


def _label_of(parts: dict[str, bytes], key: str) -> int:
    try:
        if ".cls" in parts:
            return int(parts[".cls"].decode())
        told = json.loads(parts[".json"]) if ".json" in parts else {}
        return int(next((told[name] for name in LABEL_COLUMNS if name in told), UNKNOWN))
    except (ValueError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the label of {key} is no class number: {error}.") from error


def _of_parquet(path: Path) -> tuple[list[Encoded], tuple[str, ...] | None]:
    table = _parquet(path).read_table(path)
    image = next(name for name in IMAGE_COLUMNS if name in table.column_names)
    label = next((name for name in LABEL_COLUMNS if name in table.column_names), None)
    labels = [UNKNOWN] * len(table) if label is None else table.column(label).to_pylist()
    items = []
    for i, (value, number) in enumerate(zip(table.column(image).to_pylist(), labels, strict=True)):
        told = value if isinstance(value, dict) else {"bytes": value}
        name = Path(told["path"]).name if told.get("path") else f"{path.stem}/{i}"
        items.append(Encoded(name, told["bytes"], UNKNOWN if number is None else int(number)))
    return items, _class_names(table, label)


def _class_names(table: Any, label: str | None) -> tuple[str, ...] | None:
    """What Hugging Face writes beside the columns."""
    try:
        told = json.loads((table.schema.metadata or {})[b"huggingface"])
        return tuple(map(str, told["info"]["features"][label]["names"]))
    except (KeyError, ValueError, TypeError):
        return None


def _has_pictures(path: Path) -> bool:
    """Whether a Parquet file has a column of encoded pictures; by its schema alone."""
    try:
        parquet = _parquet(path)
        schema = parquet.read_schema(path)
    except (MissingExtra, OSError, ValueError):
        return False
    found = next((schema.field(name).type for name in IMAGE_COLUMNS if name in schema.names), None)
    return found is not None and str(found).startswith(("struct<bytes: binary", "binary", "large_binary"))


def _parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(f"{path} needs pyarrow: pip install 'ucan[results]'.") from error
    return pyarrow.parquet
