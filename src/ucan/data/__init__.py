"""Data sets: by name, from .npz files, from folders of pictures. Pixels are in [0, 1] and not normalised."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import torch

from ucan.catalogue import READERS, call
from ucan.data.arrays import InMemory
from ucan.data.files import check_split, load_npy, load_npz
from ucan.data.images import ImageFolder
from ucan.data.labelled import Labelled
from ucan.data.objects import as_dataset, is_named, named_dataset
from ucan.data.shards import Shards, load_shards, shards_in
from ucan.errors import InvalidInput

NAMES = tuple(READERS.own)

__all__ = ["NAMES", "ImageFolder", "InMemory", "Labelled", "Shards", "as_dataset", "held_out", "is_known", "load"]


def is_known(source: str) -> bool:
    """Whether a text is the name of a data set, which no file or folder of that name replaces."""
    return source.lower() in READERS.names()


def load(
    source: str | Path,
    split: str = "test",
    root: str | Path | None = None,
    size: int | None = None,
    channels: int = 3,
    unit: str | None = None,
) -> Labelled:
    """Load a data set by name or from a path.

    A name (``ucan.catalogue.READERS``: digits, cifar10, …) is looked up under ``root``, by default the folder in the
    environment variable UCAN_DATA_DIR, or ./data; imagenet is a folder there with train and val, each with one folder of
    pictures per class. A path is an .npz file or a folder of pictures (``size`` and ``channels`` as in ImageFolder): its
    subfolder named after the split if there is one (val also works for test), else the folder itself. If a folder has the
    name of a data set, write ./name. Installed packages can add names, and suffixes of files such as ``.h5``, by entry points
    of the group ``ucan.readers``.

    ``package.module:name`` is a data set of a module, importable also from the current directory: anything that
    ``as_dataset`` accepts. A ``.tar`` file of WebDataset, a Parquet file with encoded pictures, or a folder of either is a
    set of pictures. ``unit`` is the unit of an array's inputs if they are not pixels in [0, 1].
    """
    if source == "":  # as a path it would be the working directory
        raise InvalidInput("the data have no name: give a name, a path, or package.module:dataset.")
    path, known_names = Path(source), READERS.names()
    offered = {"split": split, "size": size, "channels": channels}
    if isinstance(source, str) and is_known(source):
        place = Path(root or os.environ.get("UCAN_DATA_DIR") or "data")
        return _read(source.lower(), root=place, name=source.lower(), **offered)
    if path.is_file() and path.suffix.lower() in known_names:
        return _read(path.suffix.lower(), path=path, **offered)
    if isinstance(source, str) and is_named(source):
        return _of_size(named_dataset(source, unit), size, source)
    if shards := shards_in(path):
        return load_shards(shards, path.stem, size, channels)
    if path.is_dir():
        return ImageFolder(_split_folder(path, split), size, channels)
    if path.is_file() and path.suffix.lower() in (".npz", ".npy"):
        found = load_npz(path, split, unit) if path.suffix.lower() == ".npz" else load_npy(path, unit)
        return _of_size(found, size, path)
    known = f"a name ({', '.join(known_names)}), an .npz or .npy file, package.module:dataset, a table or a folder"
    if path.is_file():
        raise InvalidInput(f"{path} is not an .npz or .npy file, a table or a folder: give {known}.")
    raise InvalidInput(
        f"there is no data set {str(source)!r}, and no such file or folder: give {known}. "
        "Installed packages add other names (entry points of the group ucan.readers)."
    )


def _read(reader: str, **offered: Any) -> Labelled:
    """Call a reader of the catalogue; it returns a ``Labelled``, or any torch Dataset of (pixels, label) that fits in
    memory.
    """
    make = READERS.load(reader)
    found = call("data", make, {}, **offered)
    found = found if isinstance(found, Labelled) else as_dataset(found)
    takes_size = "size" in inspect.signature(make).parameters
    return found if takes_size else _of_size(found, offered["size"], offered.get("path", reader))


def _of_size(found: Labelled, size: int | None, source: str | Path) -> Labelled:
    """Refuse another size than that of inputs which nobody resizes: they would keep theirs without a word."""
    if size is not None and found.event_shape[-2:] != (size, size):
        raise InvalidInput(
            f"size (--size) is for pictures in files: the inputs of {source} keep their shape {found.event_shape}. Leave it "
            "out."
        )
    return found


def read_imagenet(root: Path, split: str, size: int | None, channels: int) -> ImageFolder:
    """The folder imagenet under ``root``, with train and val, each of one folder of pictures per class."""
    return ImageFolder(_imagenet_folder(root, split), size, channels)


def _imagenet_folder(root: Path, split: str) -> Path:
    check_split(split)
    found = [root / "imagenet" / name for name in (("train",) if split == "train" else ("val", "test"))]
    place = next((folder for folder in found if folder.is_dir()), None)
    if place is None:
        raise InvalidInput(
            f"imagenet was not found. It should be in {found[0]}, with one folder of pictures per class. Put it there, set "
            "UCAN_DATA_DIR to the folder that holds imagenet, or give the path of the folder with train and val as data."
        )
    return place


def _split_folder(path: Path, split: str) -> Path:
    """The folder of the split; a folder without splits is returned unchanged."""
    wanted = [split, "val"] if split == "test" else [split]
    found = next((path / name for name in wanted if (path / name).is_dir()), None)
    if found is not None:
        return found
    others = [name for name in ("train", "val", "test") if (path / name).is_dir()]
    if others:
        raise InvalidInput(
            f"{path} has {', '.join(others)} but no {split}: use one of those splits, or give the folder itself."
        )
    return path


def held_out(dataset: Labelled, fraction: float, seed: int = 0) -> tuple[Labelled, Labelled]:
    """Split a data set into (train, validation): round(fraction·N) items, selected by the seed only, are held out.

    Every item is in exactly one part; each part keeps the original order.
    """
    if not isinstance(dataset, Labelled):
        raise InvalidInput(
            f"held_out takes a data set as returned by ucan.data.load, got {type(dataset).__name__}: wrap it as "
            f"ucan.data.InMemory."
        )
    count = round(fraction * len(dataset)) if 0 < fraction < 1 else 0
    if not 0 < count < len(dataset):
        raise InvalidInput(
            f"fraction {fraction!r} of {len(dataset)} leaves a part empty: choose a fraction within (0, 1)."
        )
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))
    return dataset.subset(order[count:].sort().values), dataset.subset(order[:count].sort().values)
