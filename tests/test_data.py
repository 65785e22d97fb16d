"""Data: what is read back is what was written, and damaged or hostile files are refused with a message that helps."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from ucan.data import ImageFolder, InMemory, as_dataset, held_out, load
from ucan.data.files import load_cifar10, load_digits, load_mnist, load_npz, read_idx
from ucan.errors import InvalidInput, MissingExtra

REAL = os.environ.get("UCAN_DATA_DIR")
needs_real_data = pytest.mark.skipif(not REAL, reason="UCAN_DATA_DIR does not name the real data")
rng = np.random.default_rng(0)
PICTURES = rng.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
LABELS = np.array([3, 8, 8, 0, 6, 6, 1, 6, 3, 1, 9, 5], dtype=np.uint8)


# --- InMemory ---


def test_bytes_and_floats_come_out_as_float32_within_0_and_1() -> None:
    data = InMemory(torch.from_numpy(PICTURES), torch.from_numpy(LABELS), name="bytes")
    image, label = data[1]
    assert image.dtype == torch.float32 and image.shape == data.event_shape == (3, 32, 32)
    assert label == 8 and isinstance(label, int)
    assert torch.equal(image, torch.from_numpy(PICTURES[1]).float() / 255)
    images, labels = data.batch([5, 0, 5])
    assert images.dtype == torch.float32 and labels.dtype == torch.int64
    assert labels.tolist() == [6, 3, 6] and torch.equal(images[1], data[0][0])
    floats = InMemory(PICTURES.astype(np.float64) / 255, LABELS)
    assert torch.allclose(floats.batch(range(12))[0], data.batch(range(12))[0])
    assert len(data) == 12 and data.num_classes == 10 and data[-1][1] == 5
    with pytest.raises(IndexError):
        data[12]


def test_data_loader_takes_it() -> None:
    images, labels = next(iter(DataLoader(InMemory(PICTURES, LABELS), batch_size=5)))
    assert images.shape == (5, 3, 32, 32) and labels.tolist() == [3, 8, 8, 0, 6]


def test_unknown_labels() -> None:
    data = InMemory(PICTURES)
    assert data.labels.tolist() == [-1] * 12
    with pytest.raises(InvalidInput, match="number of classes is unknown"):
        _ = data.num_classes
    assert InMemory(PICTURES, classes=("a", "b")).num_classes == 2


def _with(value: float) -> torch.Tensor:
    images = torch.rand(4, 1, 2, 2)
    images[2, 0, 1, 0] = value
    return images


@pytest.mark.parametrize(
    ("images", "labels", "classes", "message"),
    [
        (_with(float("nan")), [0] * 4, None, r"images\[2, 0, 1, 0\] is nan"),
        (_with(float("inf")), [0] * 4, None, r"images\[2, 0, 1, 0\] is inf"),
        (_with(1.5), [0] * 4, None, r"images\[2, 0, 1, 0\] is 1.5.*divide"),
        (_with(-0.1), [0] * 4, None, r"images\[2, 0, 1, 0\] is -0.1"),
        (torch.zeros(4, 2, dtype=torch.int32), [0] * 4, None, "uint8 or floats"),
        (torch.zeros(4, 2), [0] * 3, None, "4 images but 3 labels"),
        (torch.zeros(4, 2), torch.zeros(4), None, "whole numbers"),
        (torch.zeros(4, 2), torch.zeros(4, 1, dtype=torch.int64), None, r"shape \(N,\)"),
        (torch.zeros(4, 2), [0, 1, -2, 0], None, r"labels\[2\] is -2"),
        (torch.zeros(4, 2), [0, 1, 2, 0], ("a", "b"), "label 2 has no name"),
        (torch.zeros(0, 2), [], None, "non-empty"),
        (torch.zeros(4), [0] * 4, None, "non-empty"),
        (np.array([["a"]]), [0], None, "must be numbers"),
        (np.zeros((4, 2), dtype="u2"), [0] * 4, None, "give bytes .* as uint8.*name their unit"),
        (np.zeros((4, 2), dtype=bool), [0] * 4, None, r"array of bool: give 255 \* images.astype"),
        (torch.zeros(4, 2), np.zeros(4, dtype=bool), None, r"array of bool: give labels.astype\(int\)"),
        (np.zeros((4, 2), dtype=np.longdouble), [0] * 4, None, r"give .astype\(numpy.float64\)"),
        (np.ma.masked_array(np.zeros((4, 2)), [[1, 0]] * 4), [0] * 4, None, "some of the images are masked"),
    ],
)
def test_wrong_arrays_are_refused(images: object, labels: object, classes: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        InMemory(images, labels, classes)  # type: ignore[arg-type]


def test_inputs_keep_no_gradients_of_where_they_come_from() -> None:
    images, _ = InMemory(torch.rand(4, 2, requires_grad=True), [0] * 4).batch([0, 1])
    assert not images.requires_grad


def test_a_mapping_is_no_data_set() -> None:
    with pytest.raises(InvalidInput, match=r"a mapping \(x, y\) is no data set: give the pair"):
        as_dataset({"x": PICTURES, "y": LABELS})


def test_held_out_parts_are_complete_disjoint_and_fixed_by_the_seed() -> None:
    data = InMemory(torch.arange(100, dtype=torch.uint8)[:, None], torch.arange(100) % 7, name="numbers")
    train, validation = held_out(data, 0.2, seed=3)
    assert len(train) == 80 and len(validation) == 20
    assert isinstance(train, InMemory) and isinstance(validation, InMemory)
    both = torch.cat([train.images, validation.images])[:, 0]
    assert sorted(both.tolist()) == list(range(100))
    assert torch.equal(validation.labels, validation.images[:, 0].long() % 7)
    again, other = held_out(data, 0.2, seed=3)[1], held_out(data, 0.2, seed=4)[1]
    assert isinstance(again, InMemory) and isinstance(other, InMemory)
    assert torch.equal(validation.images, again.images) and not torch.equal(validation.images, other.images)
    for fraction in (0.0, 1.0, -1.0, 0.001, float("nan")):
        with pytest.raises(InvalidInput, match="fraction"):
            held_out(data, fraction)
    with pytest.raises(InvalidInput, match="InMemory"):
        held_out([1, 2], 0.5)  # type: ignore[arg-type]


# --- folders of pictures ---


def _save(file: Path, pixels: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, three pictures of 6 x 4 pixels, and files that are no pictures."""
    for i, name in enumerate(("dog/b.png", "cat/z.PNG", "dog/a.bmp")):
        _save(tmp_path / name, np.full((4, 6, 3), 51 * (i + 1), dtype=np.uint8))
    (tmp_path / "dog" / "notes.txt").write_text("no picture")
    (tmp_path / "dog" / ".hidden.png").write_bytes(b"no picture")
    (tmp_path / "README").write_text("no picture")
    return tmp_path


def test_class_folders(folder: Path) -> None:
    data = load(folder)
    assert isinstance(data, ImageFolder)
    assert data.classes == ("cat", "dog") and data.num_classes == 2
    assert data.labels.tolist() == [0, 1, 1] and data.event_shape == (3, 4, 6)
    images, labels = data.batch([0, 1, 2])  # cat/z, dog/a, dog/b
    assert images[:, 0, 0, 0].tolist() == pytest.approx([0.4, 0.6, 0.2]) and labels.tolist() == [0, 1, 1]
    assert images.dtype == torch.float32
    assert ImageFolder(folder, channels=1)[0][0].shape == (1, 4, 6)
    part = data.subset([2, 0])
    assert len(part) == 2 and part.classes == data.classes and part[0][1] == 1 and float(part[0][0][0, 0, 0]) < 0.21
    assert sum(len(p) for p in held_out(data, 0.4)) == 3
    loaded = next(iter(DataLoader(data, batch_size=3, num_workers=0)))
    assert torch.equal(loaded[0], images)


def test_flat_folder_has_unknown_labels(tmp_path: Path) -> None:
    _save(tmp_path / "b.png", np.zeros((4, 4), dtype=np.uint8))
    _save(tmp_path / "a.png", np.full((4, 4), 255, dtype=np.uint8))
    data = load(tmp_path)
    assert data.labels.tolist() == [-1, -1] and data.classes is None
    assert float(data[0][0].min()) == 1.0 and data[1][0].shape == (3, 4, 4)


def test_splits_of_a_folder(tmp_path: Path) -> None:
    _save(tmp_path / "train" / "a" / "1.png", np.zeros((4, 4), dtype=np.uint8))
    with pytest.raises(InvalidInput, match="has train but no test"):
        load(tmp_path, "test")
    _save(tmp_path / "val" / "a" / "2.png", np.zeros((4, 4), dtype=np.uint8))
    assert load(tmp_path, "test").files[0].name == "2.png"  # type: ignore[attr-defined]
    assert load(tmp_path, "train").files[0].name == "1.png"  # type: ignore[attr-defined]
    _save(tmp_path / "test" / "a" / "3.png", np.zeros((4, 4), dtype=np.uint8))
    assert load(tmp_path).files[0].name == "3.png"  # type: ignore[attr-defined]


def test_pictures_of_different_sizes_need_a_size(folder: Path) -> None:
    _save(folder / "dog" / "c.png", np.zeros((9, 30, 3), dtype=np.uint8))
    with pytest.raises(InvalidInput, match=r"c\.png is 30 x 9 pixels.*give a size"):
        ImageFolder(folder).batch(range(4))
    data = ImageFolder(folder, size=8)
    assert data.batch(range(4))[0].shape == (4, 3, 8, 8) and data.event_shape == (3, 8, 8)


def test_resize_keeps_the_centre(tmp_path: Path) -> None:
    """A 512 x 256 picture at size 224 is cropped, not scaled: columns 144 to 367, rows 16 to 239."""
    pixels = rng.integers(0, 256, (256, 512, 3), dtype=np.uint8)
    _save(tmp_path / "a.png", pixels)
    crop = torch.from_numpy(pixels[16:240, 144:368].copy()).permute(2, 0, 1).float() / 255
    assert torch.equal(ImageFolder(tmp_path, size=224)[0][0], crop)


def test_damaged_pictures_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = (folder / "dog" / "b.png").read_bytes()
    bad = folder / "cat" / "z.PNG"
    for content in (b"", b"no picture", good[: len(good) // 2], good[:40]):
        bad.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"z\.PNG cannot be decoded"):
            ImageFolder(folder)[0]
    _save(bad, np.zeros((4, 6), dtype=np.uint16))
    with pytest.raises(InvalidInput, match=r"z\.PNG has more than 8 bits"):
        ImageFolder(folder)[0]
    for limit in (10, 20):  # an error above twice the limit, only a warning of Pillow's below
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(InvalidInput, match=r"a\.bmp has too many pixels"):
            ImageFolder(folder).batch([1])


def test_transparency_is_dropped(tmp_path: Path) -> None:
    picture = Image.fromarray(np.full((4, 4), 1, dtype=np.uint8), "L").convert("P")
    picture.save(tmp_path / "a.png", transparency=bytes([0, 128]))
    assert ImageFolder(tmp_path)[0][0].shape == (3, 4, 4)


def test_folders_without_pictures(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="holds no pictures"):
        load(tmp_path / "empty")
    with pytest.raises(InvalidInput, match="is not a folder"):
        ImageFolder(tmp_path / "nowhere")
    _save(folder / "loose.png", np.zeros((4, 6), dtype=np.uint8))
    with pytest.raises(InvalidInput, match=r"loose pictures \(loose.png\)"):
        load(folder)
    with pytest.raises(InvalidInput, match="channels"):
        ImageFolder(folder, channels=4)


# --- idx ---


def _idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def _write_mnist(folder: Path, suffix: str = "", start: str = "t10k") -> np.ndarray:
    images = PICTURES[:, 0, :28, :28]
    pack = gzip.compress if suffix else bytes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{start}-images-idx3-ubyte{suffix}").write_bytes(pack(_idx(images)))
    (folder / f"{start}-labels-idx1-ubyte{suffix}").write_bytes(pack(_idx(LABELS)))
    return images


@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_round_trip(tmp_path: Path, place: str, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = _write_mnist(tmp_path / place, suffix)
    monkeypatch.setenv("UCAN_DATA_DIR", str(tmp_path))
    data = load("mnist")
    assert isinstance(data, InMemory)
    assert np.array_equal(data.images.numpy()[:, 0], images) and data.labels.tolist() == LABELS.tolist()
    assert data.num_classes == 10 and data.event_shape == (1, 28, 28)


def test_fashion_mnist_is_never_taken_for_mnist(tmp_path: Path) -> None:
    _write_mnist(tmp_path / "fashion-mnist", ".gz", "train")
    data = load_mnist(tmp_path, "train", "fashion-mnist")
    assert data.classes is not None and data.classes[9] == "Boot"
    with pytest.raises(InvalidInput, match=r"mnist was not found.*train-images-idx3-ubyte.*UCAN_DATA_DIR"):
        load_mnist(tmp_path, "train")
    _write_mnist(tmp_path / "mnist")
    with pytest.raises(InvalidInput, match="fashion-mnist was not found"):
        load_mnist(tmp_path / "mnist", "test", "fashion-mnist")


def test_idx_types_and_byte_order(tmp_path: Path) -> None:
    (tmp_path / "i").write_bytes(struct.pack(">BBBBI3i", 0, 0, 0x0C, 1, 3, 1, -2, 70000))
    assert read_idx(tmp_path / "i").tolist() == [1, -2, 70000] and read_idx(tmp_path / "i").dtype.isnative


def test_damaged_idx_files_are_refused(tmp_path: Path) -> None:
    whole = _idx(PICTURES[:2, 0])
    file = tmp_path / "x"
    packed = gzip.compress(whole)
    flipped = bytearray(packed)
    flipped[-6] ^= 0xFF  # the checksum
    cut = [whole[:n] for n in (0, 3, 4, 10, 16, len(whole) - 1)] + [packed[:n] for n in (3, 20, len(packed) - 1)]
    for content in [*cut, whole + b"\0", b"PK\3\4 no idx", bytes(flipped)]:
        file.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"/x "):
            read_idx(file)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_idx(tmp_path / "nowhere")


@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_a_picture_that_was_cut_off_is_found_before_any_work(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    for i in range(3):
        (tmp_path / "cat").mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "cat" / f"{i}.{kind}")
    folder = ImageFolder(tmp_path)
    folder.check(range(3))
    whole = (tmp_path / "cat" / f"2.{kind}").read_bytes()
    (tmp_path / "cat" / f"2.{kind}").write_bytes(whole + bytes(5000))  # something behind the end does no harm
    folder.check(range(3))
    (tmp_path / "cat" / f"2.{kind}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput, match=rf"2\.{kind}"):
        folder.check(range(3))


# --- CIFAR-10 ---


def _rows() -> np.ndarray:
    return PICTURES.reshape(12, 3072)


def _python2_batch() -> bytes:
    """A batch as the original files were pickled: Python 2 strings, numpy's old module names."""
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    data = b"T" + struct.pack("<I", 12 * 3072) + _rows().tobytes()
    state = b"(K\x01K\x0cM\x00\x0c\x86" + kind + b"\x89" + data + b"tb"
    labels = b"(" + b"".join(b"K" + bytes([n]) for n in LABELS) + b"l"
    return b"\x80\x02}(U\x04data" + array + state + b"U\x06labels" + labels + b"u."


def _write_cifar(folder: Path, layout: str, train: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data_batch_{i}" for i in range(1, 6)] if train else ["test_batch"]
    if layout == "sheets":
        sheet = PICTURES.reshape(3, 4, 3, 32, 32).transpose(0, 3, 1, 4, 2).reshape(96, 128, 3)
        for name in [f"train-{i}" for i in range(5)] if train else ["test"]:
            Image.fromarray(sheet).save(folder / f"{name}.webp", lossless=True)
        np.save(folder / ("train_labels.npy" if train else "test_labels.npy"), np.tile(LABELS, 5 if train else 1))
    for name in names:
        if layout == "bin":
            (folder / f"{name}.bin").write_bytes(np.concatenate([LABELS[:, None], _rows()], 1).tobytes())
        elif layout == "python2":
            (folder / name).write_bytes(_python2_batch())
        elif layout == "pickle":
            content = {b"batch_label": b"x", b"labels": LABELS.tolist(), b"data": _rows(), b"filenames": [b"a.png"]}
            (folder / name).write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize("place", ["", "cifar10", "cifar-10-batches-py", "cifar-10-batches-bin"])
@pytest.mark.parametrize("layout", ["pickle", "python2", "bin", "sheets"])
def test_cifar10_round_trip(tmp_path: Path, layout: str, place: str) -> None:
    _write_cifar(tmp_path / place, layout)
    data = load("cifar10", root=tmp_path)
    assert isinstance(data, InMemory)
    assert np.array_equal(data.images.numpy(), PICTURES) and data.labels.tolist() == LABELS.tolist()
    assert data.classes is not None and data.classes[3] == "cat"


@pytest.mark.parametrize("layout", ["pickle", "bin", "sheets"])
def test_cifar10_training_batches_come_in_order_and_complete(tmp_path: Path, layout: str) -> None:
    _write_cifar(tmp_path, layout, train=True)
    data = load_cifar10(tmp_path, "train")
    assert np.array_equal(data.images.numpy(), np.tile(PICTURES, (5, 1, 1, 1)))
    third = next(f for f in tmp_path.iterdir() if f.stem in ("data_batch_3", "train-2"))
    third.unlink()
    with pytest.raises(InvalidInput, match=rf"incomplete: .*{third.name} is missing"):
        load_cifar10(tmp_path, "train")


@pytest.mark.parametrize("layout", ["pickle", "python2", "bin", "sheets"])
def test_truncated_cifar10_is_refused(tmp_path: Path, layout: str) -> None:
    _write_cifar(tmp_path, layout)
    file = next(f for f in tmp_path.iterdir() if f.stem in ("test_batch", "test"))
    whole = file.read_bytes()
    for length in (0, 1, 30, len(whole) // 2 + 1, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match=file.name):
            load_cifar10(tmp_path)


def test_wrong_cifar10_content_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "test_batch"
    wrong: list[object] = [
        [1, 2],
        {b"labels": [1], b"data": np.zeros((1, 100), np.uint8)},
        {b"labels": [1]},
        {b"labels": [1, 2], b"data": np.zeros((1, 3072), np.uint8)},
        {b"labels": [11], b"data": np.zeros((1, 3072), np.uint8)},
        {b"labels": ["a"], b"data": np.zeros((1, 3072), np.uint8)},
        {b"labels": [1], b"data": np.zeros((1, 3072), object)},
        {},
    ]
    for content in wrong:
        file.write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(InvalidInput, match="test_batch"):
            load_cifar10(tmp_path)
    file.unlink()
    (tmp_path / "test_batch.bin").write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(InvalidInput, match="labels from 0 to 9"):
        load_cifar10(tmp_path)


class _Hostile:
    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


def test_a_hostile_pickle_is_not_executed(tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    code = f"open({str(trace)!r}, 'w').close()"
    attacks = [_Hostile(os.system, f"touch {trace}"), _Hostile(exec, code), _Hostile(eval, code)]
    attacks += [_Hostile(subprocess.call, ["touch", str(trace)]), _Hostile(getattr, "", "join")]
    for attack in attacks:
        for protocol in (0, 2, 4):
            content = {b"labels": LABELS.tolist(), b"data": _rows(), b"extra": attack}
            (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol=protocol))
            with pytest.raises(InvalidInput, match=r"needs .*, which is neither an array nor a container"):
                load_cifar10(tmp_path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(attacks[1]))  # the same attack does work on an ordinary unpickler
    assert trace.exists()


# --- npz ---


@pytest.mark.parametrize(("x", "y"), [("x", "y"), ("images", "labels"), ("data", "targets"), ("x_test", "y_test")])
def test_npz_round_trip(tmp_path: Path, x: str, y: str) -> None:
    np.savez(tmp_path / "a.npz", **{x: PICTURES, y: LABELS.astype(np.int32)[:, None]})  # type: ignore[arg-type]
    data = load(tmp_path / "a.npz")
    assert isinstance(data, InMemory) and data.name == "a"
    assert np.array_equal(data.images.numpy(), PICTURES) and data.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_a_size_of_arrays_is_refused(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "a.npz", x=PICTURES)
    np.save(tmp_path / "a.npy", PICTURES)
    with pytest.raises(InvalidInput, match="keep their shape"):
        load(tmp_path / name, size=8)


def test_no_name_at_all_is_not_the_working_directory() -> None:
    with pytest.raises(InvalidInput, match="the data have no name: give a name"):
        load("")


@pytest.mark.parametrize("source", ["digits", "tests.test_data:PICTURES"])
def test_a_size_of_data_that_cannot_be_resized_is_refused(source: str) -> None:
    with pytest.raises(InvalidInput, match=rf"pictures in files: the inputs of {source} keep their shape \("):
        load(source, size=16)
    own = load(source)
    assert load(source, size=own.event_shape[-1]).event_shape == own.event_shape


def test_npz_without_labels_and_with_other_arrays(tmp_path: Path) -> None:
    big_endian = np.linspace(0, 1, 24).reshape(4, 6).astype(">f4")
    np.savez_compressed(tmp_path / "a.npz", x=big_endian)
    data = load(str(tmp_path / "a.npz"))
    assert data.labels.tolist() == [-1] * 4
    assert np.allclose(data.batch(range(4))[0].numpy(), big_endian)
    np.savez(tmp_path / "b.npz", pixels=big_endian, x_train=big_endian)
    with pytest.raises(InvalidInput, match=r"holds pixels, x_train: name the images x"):
        load(tmp_path / "b.npz", "test")
    assert len(load(tmp_path / "b.npz", "train")) == 4
    np.savez(tmp_path / "d.npz", x=big_endian, x_val=big_endian[:3], images_extra=big_endian[:2])
    assert [len(load(tmp_path / "d.npz", split)) for split in ("test", "train", "val", "extra")] == [4, 4, 3, 2]
    with pytest.raises(InvalidInput, match=r"d.npz holds x, x_val, images_extra, but no split 'tset': give a split"):
        load(tmp_path / "d.npz", "tset")
    with pytest.raises(InvalidInput, match=r"b.npz holds pixels, x_train, but no split 'tset'"):
        load(tmp_path / "b.npz", "tset")
    np.savez(tmp_path / "c.npz", x=big_endian * 255)
    with pytest.raises(InvalidInput, match=r"c: images\[0, 1\] is .*divide"):
        load(tmp_path / "c.npz")


def test_damaged_and_pickled_npz_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, x=PICTURES, y=LABELS)
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[2000] ^= 0xFF
    for content in (b"", b"no archive", whole[:100], whole[: len(whole) // 2], bytes(flipped)):
        file.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"a\.npz cannot be read") as raised:
            load_npz(file)
        assert "trust" not in str(raised.value)  # NumPy advises to trust a file that is no archive
    np.savez(file, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InvalidInput, match=r"a\.npz cannot be read"):
        load_npz(file)


# --- load ---


def test_digits_split_is_stratified_and_complete() -> None:
    train, test = load_digits("train"), load_digits("test")
    assert len(train) + len(test) == 1797 and train.event_shape == (1, 8, 8)
    for label in range(10):
        held, total = int((test.labels == label).sum()), int((train.labels == label).sum())
        assert held == (held + total) // 4
    assert float(train.images.max()) == 1.0 and torch.equal(train.images * 16, (train.images * 16).round())
    assert len({image.numpy().tobytes() for image in torch.cat([train.images, test.images])}) > 1790


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match="pip install scikit-learn"):
        load("digits")


def test_missing_and_unknown_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="digits, mnist, fashion-mnist, cifar10"):
        load("imagenette")
    (tmp_path / "a.csv").write_text("1")
    with pytest.raises(InvalidInput, match=r"not an \.npz or \.npy file, a table or a folder"):
        load(tmp_path / "a.csv")
    with pytest.raises(InvalidInput, match="train or test"):
        load("digits", "val")
    monkeypatch.delenv("UCAN_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"test_batch; .*in data, data/cifar10.*UCAN_DATA_DIR"):
        load("cifar10")
    _write_cifar(tmp_path / "data" / "cifar10", "bin")
    assert len(load("cifar10")) == 12


def test_imports_stay_light() -> None:
    loaded = "print([m for m in ('PIL', 'sklearn', 'ucan.data', 'ucan.models') if m in sys.modules])"
    code = f"import sys, ucan; {loaded}; import ucan.data; {loaded}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "['ucan.data']"]


# --- the real files ---


@needs_real_data
def test_real_mnist() -> None:
    data = load("mnist")
    assert len(data) == 10000 and data.labels[:4].tolist() == [7, 2, 1, 0]
    assert float(data.batch(range(10000))[0].mean()) == pytest.approx(0.1325, abs=1e-3)


@needs_real_data
def test_real_cifar10() -> None:
    data = load("cifar10")
    assert len(data) == 10000 and data.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    train = load("cifar10", "train")
    assert len(train) == 50000 and train.labels[:5].tolist() == [6, 9, 9, 4, 1]
    assert torch.bincount(train.labels).tolist() == [5000] * 10
    mean = train.batch(range(0, 50000, 10))[0].mean((0, 2, 3))
    assert mean.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-3)


# --- steps ---


def test_only_sources_that_declare_whole_numbers_have_a_step(tmp_path):
    assert load("digits").step == load("digits", "train").step == 1 / 16
    whole, floats = np.zeros((2, 1, 2, 2), dtype=np.uint8), np.zeros((2, 1, 2, 2), dtype=np.float32)
    np.savez(tmp_path / "whole.npz", x=whole)
    np.savez(tmp_path / "floats.npz", x=floats)
    assert load(tmp_path / "whole.npz").step == 1 / 255
    assert load(tmp_path / "floats.npz").step is None  # whatever its values are
    assert load(tmp_path / "whole.npz").subset([0]).step == 1 / 255
    assert load("digits").subset([1, 2]).step == 1 / 16
