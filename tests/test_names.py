"""Names of inputs and classes come back in every file that a run writes, and in what follows from it."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from ucan.cli import main
from ucan.errors import InvalidInput
from ucan.results.formats import write
from ucan.results.store import Store
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.predict import PredictJob, predict
from ucan.runs.progress import Progress

SHADES = {"dark, very": 20, "höll": 230}


def shade(x):
    """1 for a bright picture, 0 for a dark one."""
    return (x.mean((1, 2, 3)) > 0.5).long()


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, grey in SHADES.items():
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for k in range(3):
            file = tmp_path / "pictures" / name / f"{k}, of «{grey}».png"
            Image.fromarray(np.full((4, 4, 3), grey + k, dtype=np.uint8)).save(file)
    return tmp_path


FILES = [f"{name}/{k}, of «{grey}».png" for name, grey in SHADES.items() for k in range(3)]
CLASSES = list(SHADES)
JOB = dict(model=shade, data="pictures", classes=2, model_id="shade", scale=0.05, n=100)


def rows_of(path, delimiter=","):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def test_every_file_of_a_run_has_the_names(pictures):
    certify(CertifyJob(**JOB, n0=20), "run")
    with Store.open("run") as store:
        assert list(store.names().values()) == FILES and list(store.class_names) == CLASSES
        for kind in ("csv", "json", "parquet", "tsv"):
            write(store, f"out.{kind}", kind)
    for row, file in zip(rows_of("out.csv"), FILES, strict=True):
        assert row["name"] == file and row["label_name"] == row["prediction_name"] == file.partition("/")[0]
    told = json.loads((pictures / "out.json").read_text("utf-8"))
    assert [row["name"] for row in told["rows"]] == FILES and told["rows"][0]["label_name"] == CLASSES[0]
    sidecar = json.loads((pictures / "out.tsv.json").read_text("utf-8"))
    assert list(sidecar["names"].values()) == FILES and sidecar["config"]["class_names"] == CLASSES
    assert [row["name"] for row in rows_of("run/answers.csv")] == FILES
    assert list(rows_of("out.tsv", "\t")[0]) == ["idx", "label", "predict", "radius", "correct", "time"]
    parquet = pytest.importorskip("pyarrow.parquet").read_table("out.parquet")
    assert parquet["name"].to_pylist() == FILES and parquet["prediction_name"].to_pylist() == [
        file.partition("/")[0] for file in FILES
    ]


def test_the_report_names_an_input_whose_file_is_gone(pictures, monkeypatch):
    certify(CertifyJob(**JOB, n0=20), "run")
    (pictures / "pictures").rename(pictures / "elsewhere")
    monkeypatch.setattr("sys.argv", ["ucan", "report", "run", "-o", "page.html", "-q"])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert not leaving.value.code
    page = (pictures / "page.html").read_text("utf-8")
    assert any(file in page for file in FILES) and ("label höll" in page or "label dark, very" in page)


def test_predictions_have_the_names(pictures):
    done = predict(PredictJob(**JOB), "p.tsv")
    rows = rows_of("p.tsv", "\t")
    assert [row["name"] for row in rows] == FILES
    assert [row["predict_name"] for row in rows] == [file.partition("/")[0] for file in FILES]
    assert done.table() == (pictures / "p.tsv").read_text("utf-8")
    assert json.loads((pictures / "p.tsv.json").read_text("utf-8"))["class_names"] == CLASSES


def test_a_finished_table_of_predictions_takes_more_inputs_and_loses_none(pictures):
    predict(PredictJob(**JOB, most=2), "p.tsv")
    first = (pictures / "p.tsv").read_text("utf-8").splitlines()
    more = predict(PredictJob(**JOB, most=5), "p.tsv")
    assert len(more.answers) == 5 and not (pictures / "p.tsv.part").exists()
    assert (pictures / "p.tsv").read_text("utf-8").splitlines()[:3] == first  # with their times: not computed again
    fewer = predict(PredictJob(**JOB, most=1), "p.tsv")
    assert len(fewer.answers) == 1 and len(rows_of("p.tsv", "\t")) == 5
    with pytest.raises(
        ValueError, match=r"p\.tsv holds a run with another config:\n  n: the run has 100, asked for 200"
    ):
        predict(PredictJob(**{**JOB, "n": 200}), "p.tsv")
    (pictures / "p.tsv").write_text("other\ttable\n")
    with pytest.raises(OSError, match=r"p\.tsv is damaged, or is not a file of `ucan predict`"):
        predict(PredictJob(**JOB), "p.tsv")


def test_a_secret_seed_is_not_published_with_the_predictions(pictures):
    predict(PredictJob(**JOB, most=2, seed=None), "p.tsv")
    assert "seed" not in json.loads((pictures / "p.tsv.json").read_text("utf-8"))
    assert len(predict(PredictJob(**JOB, most=3, seed=None), "p.tsv").answers) == 3


def test_a_name_does_not_break_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from ucan.data import InMemory

    data = InMemory(np.full((2, 1, 2, 2), 0.9, dtype=np.float32), [1, 1], names=["a\tb", "c\r\nd"])
    done = predict(PredictJob(**{**JOB, "data": data}), "p.tsv")
    assert [line.split("\t")[5] for line in done.table().splitlines()] == ["name", "a\\tb", "c\\r\\nd"]


def test_a_name_with_another_line_end_does_not_make_a_table_unreadable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from ucan.data import InMemory

    data = InMemory(np.full((3, 1, 2, 2), 0.9, dtype=np.float32), [1, 1, 1], names=["a\u2028b", "c\x0bd\x85", "e"])
    predict(PredictJob(**{**JOB, "data": data, "most": 2}), "p.tsv")
    assert len(predict(PredictJob(**{**JOB, "data": data, "most": 3}), "p.tsv").answers) == 3


def test_a_name_is_no_formula_in_a_spreadsheet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from ucan.data import InMemory

    names = ["=1+1", "@SUM(A1)", "-cmd|x", "-3", "+2.5", "plain", "a=b"]
    data = InMemory(np.full((7, 1, 2, 2), 0.9, dtype=np.float32), [1] * 7, names=names)
    shown = ["'=1+1", "'@SUM(A1)", "'-cmd|x", "-3", "+2.5", "plain", "a=b"]
    certify(CertifyJob(**{**JOB, "data": data}), "run")
    with Store.open("run") as store:
        write(store, "out.csv", "csv")
    for file in ("run/answers.csv", "out.csv"):
        assert [row["name"] for row in rows_of(file)] == shown


# --- a trained run knows what its data called the classes ---

GREYS = {"ant": 20, "bee": 128, "cat": 230}


class Heard(Progress):
    """Keeps the warnings of a job."""

    def __init__(self):
        self.told = []

    def warn(self, line):
        self.told.append(line)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A network trained on pictures of three classes, which were numbered by their names, and two of these as test data."""
    pytest.importorskip("lightning_fabric")
    from ucan.runs.train import TrainJob, trainer_of

    monkeypatch.chdir(tmp_path)
    for root, names in {"all/train": GREYS, "two": list(GREYS)[1:]}.items():
        for name in names:
            (tmp_path / root / name).mkdir(parents=True)
            for k in range(6):
                pixels = np.full((8, 8, 3), GREYS[name] + k, dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / root / name / f"{k}.png")
    changes = ("data=all", "epochs=20", "batch=6", "law.scale=0.1")
    trainer_of(TrainJob(settings="digits-isotropic", changes=changes, device="cpu"), "net").run()
    return tmp_path


def test_a_trained_run_keeps_the_names_of_its_classes_for_data_with_fewer(trained):
    from ucan.app.session import Session
    from ucan.service.deployed import Deployed

    found = predict(PredictJob(model="net", data="two", n=200))
    assert found.accuracy == 1.0 and {row.label for row in found.answers} == {1, 2}
    certify(CertifyJob(model="net", data="two", n=200), "run")
    assert {row["answer"] for row in rows_of("run/answers.csv")} == {"bee", "cat"}
    assert Deployed.open("net", source="two").about()["class_names"] == list(GREYS)
    session = Session.open("net", source="two")
    assert session.class_name(1) == "bee" and session.item(0)[1] == 1


def test_a_run_of_before_is_resumed_without_the_names_of_its_classes(trained):
    from ucan.runs.train import TrainJob, trainer_of
    from ucan.training import load_run

    config = trained / "net" / "config.toml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("class_names")]
    config.write_text("\n".join(lines) + "\n")
    changes = ("data=all", "epochs=20", "batch=6", "law.scale=0.1")
    trainer_of(TrainJob(settings="digits-isotropic", changes=changes, device="cpu"), "net").run()
    assert load_run("net").classes is None
    heard = Heard()
    predict(PredictJob(model="net", data="two", n=50), None, heard)
    assert "and the model has 3 without names: they are taken for the first ones" in heard.told[0]


def test_runs_whose_classes_have_other_names_are_no_ensemble(trained):
    from ucan.training import load_run

    shutil.copytree("net", "other")
    config = trained / "other" / "config.toml"
    config.write_text(config.read_text().replace('"ant"', '"dog"'))
    with pytest.raises(InvalidInput, match="differs from net in its classes"):
        load_run("net,other")
    config.write_text("\n".join(line for line in config.read_text().splitlines() if "class_names" not in line) + "\n")
    assert load_run("other,net").classes == tuple(GREYS)  # an older run does not state them


def test_classes_that_a_model_has_only_in_part_are_remarked(pictures):
    (pictures / "pictures" / "new").mkdir()
    Image.fromarray(np.full((4, 4, 3), 128, dtype=np.uint8)).save(pictures / "pictures" / "new" / "0.png")
    job, heard = {**JOB, "classes": 3, "class_names": ["höll", "dark, very", "old"], "n": 20}, Heard()
    predict(PredictJob(**job), None, heard)
    assert "has 3 classes" in heard.told[0] and "whose names the model does not have" in heard.told[0]
