"""What is classified: named data sets, .npz files, folders of pictures. Pixels in [0, 1], nothing normalised."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from ucan.catalogue import READERS, call
from ucan.data.files import check_split, load_npy, load_npz
from ucan.data.images import ImageFolder, InMemory, Labelled
from ucan.data.objects import as_dataset, is_named, named_dataset
from ucan.data.shards import Shards, load_shards, shards_in
from ucan.errors import InvalidInput

NAMES = tuple(READERS.own)

__all__ = ["NAMES", "ImageFolder", "InMemory", "Labelled", "Shards", "as_dataset", "held_out", "load"]


def load(
    source: str | Path,
    split: str = "test",
    root: str | Path | None = None,
    size: int | None = None,
    channels: int = 3,
    unit: str | None = None,
) -> Labelled:
    """The data set of that name, or at that path.

    A name (digits, mnist, fashion-mnist, cifar10, imagenet) is sought under ``root``, by default the folder in the
    environment variable UCAN_DATA_DIR, or ./data; imagenet is a folder there with train and val, each of one folder of
    pictures per class. A path is an .npz file or a folder of pictures (``size`` and ``channels`` as in ImageFolder): its
    subfolder named after the split if there is one (for test, val will do), or else itself. Where a folder has the name of
    a data set, write ./name. Installed packages add names, and suffixes of files such as ``.h5``, by entry points of the
    group ``ucan.readers``.

    ``package.module:name`` is a data set of a module, importable also from the current directory: anything that ``as_dataset``
    takes. A ``.tar`` file of WebDataset, a Parquet file with encoded pictures, or a folder of either is a set of pictures, too.
    ``unit`` names the unit of an array's inputs that are no pixels in [0, 1].
    """
    path, known_names = Path(source), READERS.names()
    offered = {"split": split, "size": size, "channels": channels}
    if isinstance(source, str) and source.lower() in known_names:
        place = Path(root or os.environ.get("UCAN_DATA_DIR") or "data")
        return _read(source.lower(), root=place, name=source.lower(), **offered)
    if path.is_file() and path.suffix.lower() in known_names:
        return _read(path.suffix.lower(), path=path, **offered)
    if isinstance(source, str) and is_named(source):
        return named_dataset(source, unit)
    if shards := shards_in(path):
        return load_shards(shards, path.stem, size, channels)
    if path.is_dir():
        return ImageFolder(_split_folder(path, split), size, channels)
    if path.is_file() and path.suffix.lower() == ".npz":
        return load_npz(path, split, unit)
    if path.is_file() and path.suffix.lower() == ".npy":
        return load_npy(path, unit)
    known = f"a name ({', '.join(known_names)}), an .npz or .npy file, package.module:dataset, a table or a folder"
    if path.is_file():
        raise InvalidInput(f"{path} is neither .npz, .npy, a table nor a folder: the data must be {known}.")
    raise InvalidInput(
        f"there is no data set {str(source)!r}, and no such file or folder: give {known}. "
        "Installed packages add other names (entry points of the group ucan.readers)."
    )


def _read(reader: str, **offered: Any) -> Labelled:
    """What a reader of the catalogue gives: a ``Labelled``, or any torch Dataset of (pixels, label) that fits in memory."""
    found = call("data", READERS.load(reader), {}, **offered)
    return found if isinstance(found, Labelled) else as_dataset(found)


def read_imagenet(root: Path, split: str, size: int | None, channels: int) -> ImageFolder:
    """The folder imagenet under ``root``, with train and val, each of one folder of pictures per class."""
    return ImageFolder(_imagenet_folder(root, split), size, channels)


def _imagenet_folder(root: Path, split: str) -> Path:
    check_split(split)
    found = [root / "imagenet" / name for name in (("train",) if split == "train" else ("val", "test"))]
    place = next((folder for folder in found if folder.is_dir()), None)
    if place is None:
        raise InvalidInput(
            f"imagenet was not found. Sought: {found[0]}, with one folder of pictures per class. Put it there, set "
            "UCAN_DATA_DIR to the folder that holds imagenet, or give the path of the folder with train and val as data."
        )
    return place


def _split_folder(path: Path, split: str) -> Path:
    """The split's own folder; a folder without any splits is its own."""
    wanted = [split, "val"] if split == "test" else [split]
    found = next((path / name for name in wanted if (path / name).is_dir()), None)
    if found is not None:
        return found
    others = [name for name in ("train", "val", "test") if (path / name).is_dir()]
    if others:
        raise InvalidInput(f"{path} has {', '.join(others)} but no {split}: ask for one of those, or name it.")
    return path


def held_out(dataset: Labelled, fraction: float, seed: int = 0) -> tuple[Labelled, Labelled]:
    """The data set cut in two, (train, validation): round(fraction·N) items, chosen by the seed alone, are held out.

    Together the parts hold every item once, each part in the original order.
    """
    if not isinstance(dataset, Labelled):
        raise InvalidInput(
            f"held_out takes what ucan.data.load gives, got {type(dataset).__name__}: wrap it as ucan.data.InMemory."
        )
    count = round(fraction * len(dataset)) if 0 < fraction < 1 else 0
    if not 0 < count < len(dataset):
        raise InvalidInput(f"fraction {fraction!r} of {len(dataset)} leaves a part empty: choose one within (0, 1).")
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))
    return dataset.subset(order[count:].sort().values), dataset.subset(order[:count].sort().values)
