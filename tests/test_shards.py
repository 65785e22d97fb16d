"""Shards of pictures: WebDataset's tar files and Parquet files, with names, labels and class names."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from ucan import InvalidInput
from ucan.data import load
from ucan.data.frames import is_table
from ucan.runs.certify import certify
from ucan.runs.prepare import CertifyJob


def png(value, side=4):
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, dtype=np.uint8)).save(file, "png")
    return file.getvalue()


def write_tar(path, members):
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def test_a_web_dataset_with_labels_in_cls_or_json(tmp_path):
    members = {"a/0001.png": png(10), "a/0001.cls": b"1", "a/0002.png": png(200), "a/0002.json": b'{"label": 0}'}
    write_tar(tmp_path / "one.tar", members | {"a/0003.png": png(30), "notes.txt": b"hello"})
    found = load(tmp_path / "one.tar")
    assert found.names == ("a/0001", "a/0002", "a/0003") and found.labels.tolist() == [1, 0, -1]
    assert found.event_shape == (3, 4, 4) and found.step == 1 / 255
    assert float(found.batch([1])[0].max()) == pytest.approx(200 / 255)
    assert found.subset([2, 0]).names == ("a/0003", "a/0001") and len(found.fingerprint()) == 64


def test_a_folder_of_shards_is_read_in_order_and_certified_with_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").mkdir()
    for k in range(2):
        write_tar(tmp_path / "shards" / f"{k}.tar", {f"{k}.png": png(200 * k), f"{k}.cls": str(k).encode()})
    model = lambda x: (x.mean((1, 2, 3)) > 0.5).long()  # noqa: E731
    done = certify(CertifyJob(model=model, data="shards", classes=2, n=50, n0=10, scale=0.05), "run")
    assert done.accuracy == 1.0
    assert "0,0,0,0,1," in (tmp_path / "run" / "answers.csv").read_text(encoding="utf-8")


def test_a_parquet_file_of_pictures_is_no_table(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pictures = pyarrow.array([{"bytes": png(9), "path": "x/cat.png"}, {"bytes": png(99), "path": None}])
    table = pyarrow.table({"image": pictures, "label": [1, 0]})
    names = {"info": {"features": {"label": {"names": ["cat", "dog"]}}}}
    table = table.replace_schema_metadata({b"huggingface": json.dumps(names).encode()})
    parquet.write_table(table, tmp_path / "p.parquet")
    assert not is_table(tmp_path / "p.parquet")
    found = load(tmp_path / "p.parquet")
    assert found.names == ("cat.png", "p/1") and found.labels.tolist() == [1, 0] and found.classes == ("cat", "dog")


def test_damaged_shards_and_pictures_of_another_size_are_named(tmp_path):
    (tmp_path / "bad.tar").write_bytes(b"no tar at all")
    with pytest.raises(InvalidInput, match=r"bad\.tar"):
        load(tmp_path / "bad.tar")
    write_tar(tmp_path / "two.tar", {"a.png": png(1), "b.png": png(1, side=6)})
    with pytest.raises(InvalidInput, match="b is 6 x 6"):
        load(tmp_path / "two.tar").batch([0, 1])
    assert load(tmp_path / "two.tar", size=3).batch([0, 1])[0].shape == (2, 3, 3, 3)
    write_tar(tmp_path / "broken.tar", {"a.png": b"nothing"})
    with pytest.raises(InvalidInput, match="a cannot be decoded"):
        load(tmp_path / "broken.tar")
    write_tar(tmp_path / "label.tar", {"a.png": png(1), "a.cls": b"cat"})
    with pytest.raises(InvalidInput, match="label of a"):
        load(tmp_path / "label.tar")
    write_tar(tmp_path / "empty.tar", {"a.txt": b"x"})
    with pytest.raises(InvalidInput, match="no pictures"):
        load(tmp_path / "empty.tar")
