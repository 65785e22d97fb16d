"""The command line with what people bring: tables, estimators' files, names; what it says is true and of use."""

import csv
import json
import pickle
import sys
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ucan.catalogue import LAWS
from ucan.certificate import load_json
from ucan.cli import main
from ucan.report.rerun import commands
from ucan.runs.audit import AuditJob, audit
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.read import Run, read_runs
from ucan.runs.verify import VerifyJob, verify

pandas = pytest.importorskip("pandas")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def credit(tmp_path_factory):
    """A folder with train.csv, test.csv and a fitted pipeline that encodes a category and scales two numbers."""
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    place = tmp_path_factory.mktemp("credit")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "customer": [f"C-{i:04d}" for i in range(400)],
            "income": rng.normal(50_000, 12_000, 400).round(),
            "age": rng.integers(18, 80, 400),
            "job": rng.choice(["clerk", "nurse"], 400),
        }
    )
    score = (frame["income"] - 50_000) / 12_000 + (frame["age"] - 49) / 60 + (frame["job"] == "nurse")
    frame["decision"] = np.where(score > 0.3, "approved", "refused")
    frame.iloc[:350].to_csv(place / "train.csv", index=False)
    frame.iloc[350:].to_csv(place / "test.csv", index=False)
    encode = make_column_transformer((OneHotEncoder(), ["job"]), (StandardScaler(), ["income", "age"]))
    train = frame.iloc[:350]
    model = make_pipeline(encode, LogisticRegression()).fit(train[["income", "age", "job"]], train["decision"])
    (place / "credit.pkl").write_bytes(pickle.dumps(model))
    return place


@pytest.fixture
def here(credit, tmp_path, monkeypatch):
    for file in credit.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


TABLE = ("--data", "test.csv", "--target", "decision", "--id", "customer", "--train", "train.csv")
MODEL = ("--model", "credit.pkl", "--trust")


def ran(capsys, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["ucan", *map(str, words)])
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code or 0
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def certified(capsys, monkeypatch, *words, n=400):
    code, out, err = ran(capsys, monkeypatch, "certify", *words, "--n", n, "--n0", "50", "-q")
    assert code == 0, err
    return out


def sheet(run):
    with (run / "answers.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_certify_a_csv_with_names_classes_and_columns(here, capsys, monkeypatch):
    out = certified(capsys, monkeypatch, *MODEL, *TABLE, "--max", "6", "-o", "run", "--certificates")
    assert "C-0350: The answer stays " in out and "income alone moves by less than " in out
    assert "Nothing is said of changes of job: it was held, without noise." in out
    rows = sheet(here / "run")
    assert [row["name"] for row in rows] == [f"C-0{i}" for i in range(350, 356)]
    assert {row["label"] for row in rows} <= {"approved", "refused"}
    config = tomllib.loads((here / "run" / "config.toml").read_text(encoding="utf-8"))
    assert config["class_names"] == ["approved", "refused"] and config["columns"] == ["income", "age", "job"]
    assert set(config["sigma"]) == {"income", "age"} and config["arithmetic"].startswith("grid(")
    assert config["steps"] == {"income": 1.0, "age": 1.0} and "by whole steps (income 1, age 1)." in out
    record = load_json(here / "run" / "certificates" / "0.json")
    assert record.evidence.held.columns == ("job",)
    for row in rows:
        if row["answer"]:
            outcome = load_json(here / "run" / "certificates" / f"{row['idx']}.json")
            assert float(row["± income"]) <= float(outcome.region.reach()[0])


def test_a_table_run_goes_on_and_refuses_other_noise(here, capsys, monkeypatch):
    certified(capsys, monkeypatch, *MODEL, *TABLE, "--max", "2", "-o", "run")
    certified(capsys, monkeypatch, *MODEL, *TABLE, "--max", "4", "-o", "run")
    assert Run.open("run").inputs == 4
    again = ("certify", *MODEL, *TABLE, "--n", "400", "--n0", "50", "-o", "run")
    code, _, err = ran(capsys, monkeypatch, *again, "--sigma", "age=3")
    assert code == 2 and "sigma.age" in err
    with (here / "train.csv").open("a", encoding="utf-8") as file:
        file.writelines(f"X,{200000 + i},40,clerk,approved\n" for i in range(300))
    code, _, err = ran(capsys, monkeypatch, *again)
    assert code == 2 and "sigma.income" in err  # frozen when the run began


@pytest.mark.parametrize(("law", "scale"), [("gaussian", 1), ("gaussian(scale=0.5)", 0.5), ("rescaled", 1)])
def test_the_noise_of_a_table_has_scale_1_unless_the_law_states_one(here, capsys, monkeypatch, law, scale):
    monkeypatch.setitem(LAWS.own, "rescaled", "ucan.laws.gaussian:Gaussian")  # a name that states none
    certified(capsys, monkeypatch, *MODEL, *TABLE, "--max", "1", "-o", "run", "--law", law, n=100)
    assert tomllib.loads((here / "run" / "config.toml").read_text(encoding="utf-8"))["law"]["scale"] == scale


def test_the_rows_to_certify_are_no_training_table(here, capsys, monkeypatch):
    (here / "link.csv").symlink_to(here / "test.csv")
    for train in ("test.csv", "./test.csv", "link.csv"):
        code, _, err = ran(capsys, monkeypatch, "certify", *MODEL, "--data", "test.csv", "--train", train)
        assert code == 2 and "--train is the table of --data itself" in err and "--sigma" in err


def test_the_command_to_run_it_again_names_the_table(here, capsys, monkeypatch):
    certified(capsys, monkeypatch, *MODEL, *TABLE, "--max", "3", "-o", "run", "--hold", "age")
    line = next(line for line in commands(read_runs(["run"])[0]) if " certify " in line)
    for word in ("--target decision", "--id customer", "--train train.csv", "--hold age", "--trust"):
        assert word in line
    assert "--noise" not in line and "--sigma" not in line


def test_a_budget_by_column(here, capsys, monkeypatch):
    out = certified(capsys, monkeypatch, *MODEL, *TABLE, "--max", "4", "-o", "run", "--budget", "income=2%,age=1")
    assert "ε = " in out
    rows = sheet(here / "run")
    assert "budget factor" in rows[0]
    median = pandas.read_csv("train.csv")["income"].abs().median()
    (first,) = [row for row in rows if row["answer"]][:1]
    outcome = Run.open("run").outcome(int(first["idx"]))
    assert outcome.budget.limits.tolist() == [pytest.approx(0.02 * median), 1.0]


def test_verification_at_the_row_and_nowhere_else(here, capsys, monkeypatch):
    certified(capsys, monkeypatch, *MODEL, *TABLE, "--max", "6", "-o", "run", "--certificates")
    frame = pandas.read_csv("test.csv")
    base = dict(certificate="run/certificates/0.json", model="credit.pkl", trust=True, target="decision", id="customer")
    deployed = verify(VerifyJob(input="test.csv", index=0, train="train.csv", n=300, **base))
    assert deployed.stands and deployed.verdict.confirms == "pipeline"
    assert deployed.answer == sheet(Path("run"))[0]["answer"]
    words = [
        "verify",
        base["certificate"],
        "--model",
        "credit.pkl",
        "--trust",
        "--target",
        "decision",
        "--input",
        "test.csv",
    ]
    code, out = ran(capsys, monkeypatch, *words, "--index", "0", "--n", "300")[:2]
    assert code == 0 and f"class {deployed.certificate.prediction} (counted from 0), which is {deployed.answer}," in out
    stated = verify(VerifyJob(input="test.csv", index=0, n=300, **base))
    assert stated.stands and stated.verdict.confirms is None
    frame.loc[0, "job"] = "clerk" if frame.loc[0, "job"] == "nurse" else "nurse"
    frame.to_csv("other.csv", index=False)
    other = verify(VerifyJob(input="other.csv", index=0, train="train.csv", n=300, **base))
    assert {check.name for check in other.verdict.checks if not check.passed} >= {"held", "weights"}


def test_an_audit_attacks_rows_at_their_own_categories(here, capsys, monkeypatch):
    certified(capsys, monkeypatch, *MODEL, *TABLE, "--max", "6", "-o", "run")
    done = audit(AuditJob(run="run", trust=True, most=3, factors=(0.999,)))
    assert done.summary.attacked + done.summary.alone == 3 and not done.summary.is_bug


def test_the_report_of_a_table_is_made(here, capsys, monkeypatch):
    certified(capsys, monkeypatch, *MODEL, *TABLE, "--max", "4", "-o", "run")
    code, _, err = ran(capsys, monkeypatch, "report", "run", "-o", "page.html", "-q")
    assert code == 0, err
    page = (here / "page.html").read_text(encoding="utf-8")
    assert "(C-03" in page and ("label refused" in page or "label approved" in page)
    assert "income alone moves by less than" in page and "in units of each column" in page
    assert "The shape of a guarantee" not in page  # a slice through columns of different units has no scale


def test_radii_of_a_table_are_compared_in_units_of_sigma(here, capsys, monkeypatch):
    certified(capsys, monkeypatch, *MODEL, *TABLE, "--max", "4", "-o", "run")
    run = Run.open("run")
    assert run.in_units and run.measure == "ℓ2 radius in units of each column's σ"
    for idx, radius in zip(run.columns["idx"].tolist(), run.columns["radius"].tolist(), strict=True):
        outcome = run.outcome(idx)
        assert radius <= getattr(outcome.region, "radius", 0.0) and radius == pytest.approx(
            getattr(outcome.region, "radius", 0.0)
        )
    code, out, _ = ran(capsys, monkeypatch, "compare", "run")
    assert code == 0 and "in units of each column's σ" in out
    code, _, err = ran(capsys, monkeypatch, "certify", *MODEL, *TABLE, "--stop", "0.5", "-o", "other")
    assert code == 2 and "columns with different units" in err
    written = Path("run/config.toml").read_text()
    for wrong in (
        "n = 1e-9",
        "age = 0.0",
        "age = -1.0",
        "age = nan",
    ):  # a line at the end would make every radius larger
        head, _, sigma = written.partition("[sigma]\n")
        kept = "".join(line for line in sigma.splitlines(True) if line.split()[:1] != wrong.split()[:1])
        Path("run/config.toml").write_text(f"{head}[sigma]\n{wrong}\n{kept}")
        code, out, err = ran(capsys, monkeypatch, "compare", "run")
        assert code == 2 and f"config.toml has 'sigma.{wrong.partition(' ')[0]}'" in err, out + err


def test_predict_answers_rows(here, capsys, monkeypatch):
    words = ("predict", *MODEL, *TABLE, "--max", "5", "--n", "100", "-o", "p.tsv", "-q")
    code, out, err = ran(capsys, monkeypatch, *words)
    assert code == 0, err
    assert "answered correctly" in out and len((here / "p.tsv").read_text().splitlines()) == 6


WRONG = {
    "no trust": (("--model", "credit.pkl", *TABLE), "--trust"),
    "no noise": ((*MODEL, "--data", "test.csv", "--target", "decision", "--id", "customer"), "--train"),
    "no target": ((*MODEL, "--data", "test.csv", "--target", "choice", "--train", "train.csv"), "no column 'choice'"),
    "no id": ((*MODEL, "--data", "test.csv", "--target", "decision", "--id", "key"), "no column 'key'"),
    "strange labels": ((*MODEL, "--data", "test.csv", "--target", "customer", "--train", "train.csv"), "has the label"),
    "sigma of a category": ((*MODEL, *TABLE, "--sigma", "job=1"), "job is held (text)"),
    "sigma of nothing": ((*MODEL, *TABLE, "--sigma", "wage=1"), "no column 'wage'"),
    "sigma is no number": ((*MODEL, *TABLE, "--sigma", "age=old"), "age needs a number"),
    "sigma is zero": ((*MODEL, *TABLE, "--sigma", "age=0"), "hold the column"),
    "vary a category": ((*MODEL, *TABLE, "--vary", "job"), "holds texts"),
    "hold everything": ((*MODEL, *TABLE, "--hold", "income,age"), "nothing is left to certify"),
    "budget of a category": ((*MODEL, *TABLE, "--budget", "job=1"), "no certificate covers a change"),
    "noise by name": ((*MODEL, *TABLE, "--noise", "pattern-2"), "--sigma"),
    "precision": ((*MODEL, *TABLE, "--precision", "bf16"), "--precision"),
    "class names": ((*MODEL, *TABLE, "--class-names", "a,b,c"), "3 class names"),
    "normalise": ((*MODEL, *TABLE, "--normalise", "imagenet"), "--normalise"),
    "no file": (("--model", "gone.pkl", "--trust", *TABLE), "gone.pkl"),
    "no table": ((*MODEL, "--data", "gone.csv", "--target", "decision"), "gone.csv"),
    "weights": ((*MODEL, *TABLE, "--weights", "w.pt"), "contains its own weights"),
    "size": ((*MODEL, *TABLE, "--size", "8"), "--size"),
    "target of pictures": (("--model", "credit.pkl", "--trust", "--data", "digits", "--target", "x"), "--target"),
    "sigma of pictures": (("--model", "credit.pkl", "--trust", "--data", "digits", "--sigma", "x=1"), "--sigma"),
    "registry": ((*MODEL, *TABLE, "--registry", "r.sqlite"), "--registry"),
    "arithmetic": ((*MODEL, "--data", "fine.csv", "--train", "train.csv", "--arithmetic", "grid"), "--arithmetic"),
    "empty pickle": (("--model", "empty.pkl", "--trust", *TABLE), "cannot be read"),
    "no estimator": (("--model", "list.pkl", "--trust", *TABLE), "no predict"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_use_ends_in_one_line_that_says_what_to_do(what, here, capsys, monkeypatch):
    (here / "empty.pkl").write_bytes(b"")
    (here / "list.pkl").write_bytes(pickle.dumps([1]))
    rows = [f"{i / 7!r},{i},clerk" for i in range(1, 20)]
    (here / "fine.csv").write_text("income,age,job\n" + "\n".join(rows) + "\n", encoding="utf-8")
    words, message = WRONG[what]
    code, out, err = ran(capsys, monkeypatch, "certify", *words, "--n", "100", "-o", "run", "-q")
    assert code == 2 and out == "" and message in err, err
    assert err.startswith("ucan: ") and len(err.strip().splitlines()) == 1
    assert not (here / "run").exists()


def test_names_of_pictures_and_the_order_of_numbered_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for label in ("0", "1", "10", "2"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for k in range(2):
            pixels = np.full((4, 4, 3), 20 * int(label) + 10 * k, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / label / f"{k}.png")
    model = lambda x: (x.mean((1, 2, 3)) * 255 / 20).round().clamp(0, 2).long()  # noqa: E731
    done = certify(CertifyJob(model=model, data="pictures", classes=4, n=100, n0=20, scale=0.01), "run")
    assert done.class_names == ("0", "1", "2", "10")
    rows = sheet(tmp_path / "run")
    assert [row["name"] for row in rows][:3] == ["0/0.png", "0/1.png", "1/0.png"]
    assert [row["label"] for row in rows][-2:] == ["10", "10"]


def test_a_wrong_order_of_classes_is_said_and_can_be_set_right(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for k, name in enumerate(("dark", "bright", "mean")):  # the alphabet has bright, dark, mean
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(8):
            Image.fromarray(np.full((4, 4, 3), (20, 230, 120)[k] + i, dtype=np.uint8)).save(f"pictures/{name}/{i}.png")
    (tmp_path / "shades.py").write_text(
        "import torch\n"
        "def net(x):\n"
        "    m = x.mean((1, 2, 3))\n"
        "    return torch.where(m < 0.3, 0, torch.where(m > 0.7, 1, 2))\n"
    )
    words = ("certify", "--model", "shades:net", "--classes", "3", "--data", "pictures", "--n", "60", "--n0", "20")
    code, out, err = ran(capsys, monkeypatch, *words, "--scale", "0.05", "-o", "a", "--json")
    assert code == 0 and json.loads(out)["accuracy"] < 0.4
    assert "seem to be in different orders" in err and "bright as dark" in err
    names = ("--class-names", "dark,bright,mean")
    code, out, err = ran(capsys, monkeypatch, *words, *names, "--scale", "0.05", "-o", "b", "--json")
    assert code == 0 and json.loads(out)["accuracy"] == 1.0 and "different orders" not in err
    assert {row["answer"] for row in sheet(tmp_path / "b")} == {"dark", "bright", "mean"}


def test_the_ceiling_of_n_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=np.full((3, 1, 2, 2), 255, dtype=np.uint8), y=np.ones(3, dtype=int))
    (tmp_path / "sure.py").write_text("import torch\ndef net(x): return torch.ones(len(x), dtype=torch.long)\n")
    out = certified(capsys, monkeypatch, "--model", "sure:net", "--classes", "2", "--data", "data.npz", "-o", "run")
    assert "All 3 radii are the largest that n = 400 can prove: use more samples" in out


def test_a_maker_with_arguments_and_one_that_is_random(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=np.full((2, 1, 2, 2), 9, dtype=np.uint8))
    (tmp_path / "makers.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make(width=2, seed=None):\n"
        "    if seed is not None: torch.manual_seed(seed)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(4, width))\n"
    )
    words = ("certify", "--data", "data.npz", "--n", "50", "--n0", "20")
    code, _, err = ran(capsys, monkeypatch, *words, "--model", "makers:make(width=3, seed=1)", "-o", "a")
    assert code == 0 and "different weights each time" not in err
    assert len(Run.open("a").outcome(0).evidence.counts) == 3
    code, _, err = ran(capsys, monkeypatch, *words, "--model", "makers:make(width=3)", "-o", "b")
    assert code == 0 and "different weights each time" in err
    for wrong in ("makers:make(open('x'))", "makers:make(width=", "makers:make(**{})", "makers:make(3).eval()"):
        code, _, err = ran(capsys, monkeypatch, *words, "--model", wrong, "-o", "c")
        assert code == 2 and "literal values" in err


def test_one_logit_heads_and_torchscript(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=np.full((2, 1, 2, 2), 200, dtype=np.uint8), y=np.ones(2, dtype=int))
    (tmp_path / "heads.py").write_text(
        "import torch\nfrom torch import nn\n"
        "torch.manual_seed(0)\n"
        "net = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))\n"
        "net[1].weight.data.fill_(1.0); net[1].bias.data.fill_(-2.0)\n"
        "sure = nn.Sequential(nn.Flatten(), nn.Linear(4, 1), nn.Sigmoid())\n"
    )
    words = ("certify", "--data", "data.npz", "--n", "100", "--n0", "20", "--scale", "0.1", "--json", "-q")
    code, out, err = ran(capsys, monkeypatch, *words, "--model", "heads:net", "-o", "a")
    assert code == 0 and json.loads(out)["accuracy"] == 1.0, err
    code, _, err = ran(capsys, monkeypatch, *words, "--model", "heads:sure", "-o", "b")
    assert code == 2 and "seems to be a probability" in err
    monkeypatch.syspath_prepend(tmp_path)
    import heads

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(heads.net.eval(), torch.zeros(1, 1, 2, 2)).save(str(tmp_path / "net.pt"))
    code, out, err = ran(capsys, monkeypatch, *words, "--model", "net.pt", "-o", "c")
    assert code == 0 and json.loads(out)["accuracy"] == 1.0, err


def test_a_dry_run_checks_everything_and_writes_nothing(here, capsys, monkeypatch):
    words = ("certify", *MODEL, *TABLE, "--max", "5", "--n", "200", "-o", "run", "--dry-run")
    code, out, err = ran(capsys, monkeypatch, *words)
    assert code == 0, err
    assert "5 inputs left, 300 samples each" in out and "Classes: approved, refused." in out
    assert "whose changes are not covered: job." in out and not (here / "run").exists()
    code, _, err = ran(capsys, monkeypatch, *words, "--sigma", "job=1")
    assert code == 2 and "held" in err


def test_a_time_ends_the_run_early_and_the_same_command_goes_on(here, capsys, monkeypatch):
    words = ("certify", *MODEL, *TABLE, "--max", "5", "--n", "200", "--n0", "20", "-o", "run", "-q")
    code, _, err = ran(capsys, monkeypatch, *words, "--time", "0.000001s")
    assert code == 0, err
    assert Run.open("run").inputs < 5
    assert ran(capsys, monkeypatch, *words)[0] == 0 and Run.open("run").inputs == 5
    code, _, err = ran(capsys, monkeypatch, *words, "--time", "soon")
    assert code == 2 and "--time" in err


def test_a_model_that_fails_in_the_midst_keeps_what_is_done(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.zeros((4, 1, 2, 2), dtype=np.uint8)
    x[2] = 255
    np.savez("data.npz", x=x)
    (tmp_path / "fragile.py").write_text(
        "import torch\n"
        "def net(x):\n"
        "    if bool((x.mean((1, 2, 3)) > 0.9).any()): raise ZeroDivisionError('too bright')\n"
        "    return torch.ones(len(x), dtype=torch.long)\n"
    )
    words = ("certify", "--model", "fragile:net", "--classes", "2", "--data", "data.npz", "--scale", "0.01", "-q")
    code, _, err = ran(capsys, monkeypatch, *words, "--n", "600", "--n0", "20", "--batch-size", "128", "-o", "run")
    assert code == 2 and "too bright" in err and "run the same command again to resume" in err


def test_tuning_finds_a_scale_for_a_budget_and_for_a_radius(here, capsys, monkeypatch):
    held_out = ("--data", "test.csv", "--target", "decision", "--train", "train.csv", "--max", "10", "--n", "300", "-q")
    words = ("tune", *MODEL, *held_out, "--budget", "income=3%,age=1", "--scales", "0.1,0.7")
    code, out, err = ran(capsys, monkeypatch, *words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert len(found["candidates"]) == 6 and found["scale"] in (0.1, 0.7) and set(found["sigma"]) == {"income", "age"}
    assert max(c["share"] for c in found["candidates"]) == next(
        c["share"] for c in found["candidates"] if (c["scale"], c["shape"]) == (found["scale"], found["shape"])
    )
    code, out, _ = ran(capsys, monkeypatch, *words)
    assert code == 0 and "← best" in out and "Use --scale" in out
    for wrong in (
        ("--radius", "1"),
        (),
        ("--radius", "1", "--budget", "age=1"),
        ("--budget", "age=1", "--scales", "0"),
    ):
        code, _, err = ran(capsys, monkeypatch, "tune", *MODEL, *held_out, *wrong)
        assert code == 2 and "--" in err


def test_tuning_names_the_norm_that_it_certifies(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("tune", "--model", "ucan.models.examples:digits", "--data", "digits", "--max", "3", "--n", "200", "-q")
    words = (*words, "--radius", "0.02", "--scales", "0.5")
    code, out, err = ran(capsys, monkeypatch, *words, "--law", "uniform", "--noise", "splitting(steps=16)", "--json")
    assert code == 0, err
    assert json.loads(out)["target"] == "an ℓ1 radius of 0.02"
    code, out, _ = ran(capsys, monkeypatch, *words, "--json")
    assert code == 0 and json.loads(out)["target"] == "an ℓ2 radius of 0.02"


@pytest.mark.slow
def test_the_demos_about_tables_and_audio_end_in_sentences(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = ran(capsys, monkeypatch, "demo", "audio", "-o", "d", "--n", "100", "-q")
    assert code == 0 and out.count("The answer stays “low tone” while a hum at 600 Hz") == 2, err
    code, out, err = ran(capsys, monkeypatch, "demo", "tables", "-o", "d", "--n", "50", "-q")
    assert code == 0 and "The answer stays malignant while mean radius alone moves by less than" in out, err
    assert (tmp_path / "d" / "wine" / "answers.csv").is_file()
