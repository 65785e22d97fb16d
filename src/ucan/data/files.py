"""Readers of common file formats: idx, CIFAR-10 batches, npz, scikit-learn's digits. None of them executes file contents."""

from __future__ import annotations

import gzip
import math
import pickle
import re
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile, is_zipfile

import numpy as np

from ucan.data.arrays import InMemory
from ucan.data.pictures import open_picture
from ucan.errors import InvalidInput, MissingExtra

SPLITS = ("train", "test")
FASHION_CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TEN_DIGITS = tuple("0123456789")

MNIST_FOLDERS = {
    "mnist": ("mnist", "MNIST/raw", "MNIST"),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
}
CIFAR10_FOLDERS = (
    ".",
    "cifar10",
    "cifar-10-batches-py",
    "cifar-10-batches-bin",
    "cifar10/cifar-10-batches-py",
    "cifar10/cifar-10-batches-bin",
)
IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


# --- idx: MNIST and Fashion-MNIST ---


def read_idx(path: str | Path) -> np.ndarray:
    """The array in an idx file, gzipped or not, in native byte order."""
    path = Path(path)
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path} cannot be read ({error}): download it again.") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES or data[3] == 0:
        raise InvalidInput(
            f"{path} is not an idx file (it starts with {data[:4].hex() or 'nothing'}): download it again."
        )
    kind, start = np.dtype(IDX_TYPES[data[2]]), 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    expected = start + math.prod(shape) * kind.itemsize
    if len(data) != expected:
        raise InvalidInput(f"{path} is damaged: {len(data)} bytes instead of the {expected} stated in its header.")
    return np.frombuffer(data, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def load_mnist(root: str | Path, split: str = "test", name: str = "mnist") -> InMemory:
    """MNIST, or Fashion-MNIST as ``name="fashion-mnist"``, from its idx files, gzipped or not; pictures (1, 28, 28)."""
    check_split(split)
    folders = [Path(root, folder) for folder in MNIST_FOLDERS[name]]
    # The two sets have the same file names; the folder's name distinguishes them.
    others = {Path(f).parts[0].lower() for other, fs in MNIST_FOLDERS.items() if other != name for f in fs}
    if not others & {part.lower() for part in Path(root).parts[-2:]}:
        folders.append(Path(root))
    start = "train" if split == "train" else "t10k"
    found: list[np.ndarray] = []
    for content in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        names = [f"{start}-{content}", f"{start}-{content.replace('-', '.', 1)}"]
        found.append(read_idx(find_file(folders, [n + suffix for n in names for suffix in ("", ".gz")], name)))
    images, labels = found
    if images.dtype != np.uint8 or images.ndim != 3 or labels.dtype != np.uint8 or labels.ndim != 1:
        raise InvalidInput(
            f"{name}: the idx files hold images {images.shape} and labels {labels.shape}, not (N, height, width) and "
            "(N,) bytes: download them again."
        )
    return InMemory(images[:, None], labels, TEN_DIGITS if name == "mnist" else FASHION_CLASSES, f"{name}-{split}")


# --- CIFAR-10: pickled batches, binary batches, lossless sheets ---


def load_cifar10(root: str | Path, split: str = "test") -> InMemory:
    """CIFAR-10 from pickled batches, binary batches, or lossless sheets of tiles; pictures (3, 32, 32)."""
    check_split(split)
    train = split == "train"
    batches = [f"data_batch_{i}" for i in range(1, 6)] if train else ["test_batch"]
    sheets = [f"train-{i}.webp" for i in range(5)] if train else ["test.webp"]
    layouts: list[tuple[list[str], Callable[[list[Path]], tuple[np.ndarray, np.ndarray]]]] = [
        (batches, _read_pickled_batches),
        ([f"{batch}.bin" for batch in batches], _read_binary_batches),
        ([*sheets, f"{split}_labels.npy"], _read_sheets),
    ]
    for folder in CIFAR10_FOLDERS:
        for names, read in layouts:
            files = [Path(root, folder, name) for name in names]
            if all(file.is_file() for file in files):
                images, labels = read(files)
                return InMemory(images.reshape(-1, 3, 32, 32), labels, CIFAR10_CLASSES, f"cifar10-{split}")
            if any(file.is_file() for file in files):
                missing = next(file for file in files if not file.is_file())
                raise InvalidInput(f"cifar10 is incomplete: {missing} is missing; add it to the other files.")
    sought = "; or ".join(", ".join(names) for names, _ in layouts)
    raise _not_found("cifar10", sought, [Path(root, folder) for folder in CIFAR10_FOLDERS])


def _read_pickled_batches(files: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = [], []
    for file in files:
        with file.open("rb") as opened:
            batch = read_plain_pickle(opened, file)
        content = {k.decode() if isinstance(k, bytes) else k: v for k, v in batch.items()} if batch else {}
        data, numbers = content.get("data"), content.get("labels")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,):
            raise InvalidInput(f"{file} is not a CIFAR-10 batch: it has no byte array 'data' of rows of 3072.")
        labels.append(_check_cifar_labels(numbers, len(data), file))
        images.append(data)
    return np.concatenate(images), np.concatenate(labels)


def _read_binary_batches(files: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    rows = []
    for file in files:
        data = np.fromfile(file, np.uint8)
        if not len(data) or len(data) % 3073:
            raise InvalidInput(
                f"{file} is damaged: {len(data)} bytes, which is not a multiple of 3073; download it again."
            )
        rows.append(data.reshape(-1, 3073))
        _check_cifar_labels(rows[-1][:, 0], len(rows[-1]), file)
    whole = np.concatenate(rows)
    return whole[:, 1:], whole[:, 0]


def _read_sheets(files: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Sheets of 32 x 32 tiles, row by row; the last file holds the labels."""
    tiles = []
    for file in files[:-1]:
        sheet = np.asarray(open_picture(file, "RGB"))
        if sheet.shape[0] % 32 or sheet.shape[1] % 32:
            raise InvalidInput(f"{file} is not a sheet of 32 x 32 tiles: {sheet.shape[1]} x {sheet.shape[0]} pixels.")
        high, wide = sheet.shape[0] // 32, sheet.shape[1] // 32
        tiles.append(sheet.reshape(high, 32, wide, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3072))
    images = np.concatenate(tiles)
    try:
        numbers = np.load(files[-1], allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InvalidInput(f"{files[-1]} cannot be read ({error}): download it again.") from error
    return images, _check_cifar_labels(numbers, len(images), files[-1])


def _check_cifar_labels(numbers: Any, count: int, file: Path) -> np.ndarray:
    labels = np.asarray(numbers)
    if labels.dtype.kind not in "ui" or labels.shape != (count,) or labels.min() < 0 or labels.max() > 9:
        raise InvalidInput(f"{file} is damaged: it should hold {count} labels from 0 to 9; download it again.")
    return labels.astype(np.int64)


# --- restricted pickles ---


def _array(*_: object) -> np.ndarray:
    return np.empty(0, np.uint8)  # its content is set by the pickled state


def _dtype(name: str | bytes, *_: object) -> np.dtype:
    text = name.decode("ascii") if isinstance(name, bytes) else name
    if not re.fullmatch(r"[|<>=]?[biuf]\d", text):
        raise pickle.UnpicklingError(f"arrays of {text!r} are not read")
    return np.dtype(text, copy=True)  # a copy, since the pickled state is written into it


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r} is not read")
    return text.encode("latin1")


# The names that a pickle may use, and our replacements, which can only build arrays of numbers.
ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _latin1,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it needs {module}.{name}, which is neither an array nor a container"
            ) from None


def read_plain_pickle(opened: BinaryIO, path: Path) -> dict[Any, Any]:
    """The dictionary in a pickle of containers, numbers, text and arrays; anything else is refused, never executed."""
    try:
        content = _PlainUnpickler(opened, encoding="bytes").load()
    except Exception as error:  # a damaged pickle makes the unpickler raise almost anything
        raise InvalidInput(f"{path} is not a plain pickle ({error}); no code was run. Download it again.") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} holds a {type(content).__name__} instead of a dictionary: download it again.")
    return content


# --- npz and digits ---


def load_npz(path: str | Path, split: str | None = None, unit: str | None = None) -> InMemory:
    """An .npz file with arrays x (or images, data) and, if known, y (or labels, targets).

    The images keep their shape, (N, *event), channels first. With a split, names such as ``x_test`` or ``test_images`` are
    tried first.
    """
    path = Path(path)
    try:
        with path.open("rb") as opened:
            if not is_zipfile(opened):  # of which NumPy would say that it holds a pickle to be trusted
                raise BadZipFile("it is another kind of file, or only a part of one")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as archive:
                keys = list(archive.keys())
                x = _find_key(keys, ("x", "images", "data"), split)
                y = _find_key(keys, ("y", "labels", "targets"), split)
                images, labels = archive[x] if x else None, archive[y] if y else None
    except (OSError, ValueError, EOFError, KeyError, AttributeError, TypeError, BadZipFile, zlib.error) as error:
        raise InvalidInput(
            f"{path} cannot be read as .npz ({error}): copy it again, or write it with numpy.savez."
        ) from error
    if split not in (None, *SPLITS) and split not in (x or "").split("_"):
        raise InvalidInput(
            f"{path} holds {', '.join(keys)}, but no split {split!r}: give a split that it has, or leave it out."
        )
    if images is None:
        raise InvalidInput(
            f"{path} holds {', '.join(keys) or 'nothing'}: name the images x, images or data, the labels y, labels or "
            "targets."
        )
    if labels is not None and labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    return InMemory(images, labels, None, path.stem, unit=unit)


def load_npy(path: Path, unit: str | None = None) -> InMemory:
    """An .npy file with inputs (N, *event), whose labels are unknown."""
    try:
        images = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInput(f"{path} cannot be read as a numeric .npy file: {error}.") from error
    return InMemory(images, name=path.stem, unit=unit)


def _find_key(keys: list[str], names: tuple[str, ...], split: str | None) -> str | None:
    wanted = [f"{name}_{split}" for name in names] + [f"{split}_{name}" for name in names] if split else []
    return next((key for key in [*wanted, *names] if key in keys), None)


def load_digits(split: str = "test") -> InMemory:
    """scikit-learn's 1797 digits, (1, 8, 8), sixteenths in [0, 1]; every fourth of each class is a test picture."""
    check_split(split)
    try:
        from sklearn.datasets import load_digits as read
    except ImportError as error:
        raise MissingExtra("The digits come with scikit-learn: pip install scikit-learn.") from error
    digits = read()
    labels = np.asarray(digits.target, dtype=np.int64)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[3::4]] = True
    part = test if split == "test" else ~test
    images = (np.asarray(digits.images)[part, None] / 16).astype(np.float32)
    return InMemory(images, labels[part], TEN_DIGITS, f"digits-{split}", step=1 / 16)


# --- finding files ---


def check_split(split: str) -> None:
    """Refuse a split other than train and test."""
    if split not in SPLITS:
        raise InvalidInput(f"split must be train or test, got {split!r}; for validation use ucan.data.held_out.")


def find_file(folders: Iterable[Path], names: list[str], what: str) -> Path:
    """The first of the names in the first of the folders that has one."""
    folders = list(folders)
    found = next((f / n for f in folders for n in names if (f / n).is_file()), None)
    if found is None:
        raise _not_found(what, " or ".join(names), folders)
    return found


def _not_found(what: str, sought: str, folders: list[Path]) -> InvalidInput:
    places = ", ".join(str(folder) for folder in folders)
    return InvalidInput(
        f"{what} was not found. Expected {sought} in {places}. Put the files there, or set UCAN_DATA_DIR to their folder."
    )
