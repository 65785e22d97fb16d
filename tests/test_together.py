"""Several trained runs as one classifier, from the command line to the report."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from ucan import InvalidInput, UcanError, data
from ucan.cli import app
from ucan.training import Together, TrainSettings, is_trained_run, load_run

pytest.importorskip("lightning_fabric")
from ucan.training import Trainer, build_classifier


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three networks trained alike but for their seed, and one for other noise."""
    folder = tmp_path_factory.mktemp("runs")
    digits = data.load("digits", "train").subset(torch.arange(300))
    for name, seed, scale in (("a", 0, 0.3), ("b", 1, 0.3), ("c", 2, 0.3), ("other", 0, 0.5)):
        settings = TrainSettings.from_dict({"epochs": 2, "seed": seed, "law": {"kind": "gaussian", "scale": scale}})
        model = build_classifier(settings, digits.event_shape, digits.num_classes)
        Trainer(settings, digits, model, folder / name, "cpu").run()
    return folder


def test_what_a_text_names(tmp_path):
    assert Together.of("runs/a") == Together(("runs/a",))
    assert Together.of("a, b,c") == Together(("a", "b", "c"))
    assert Together.of("a,b,c,consensus=2,mirrored") == Together(("a", "b", "c"), True, 2)
    (tmp_path / "odd,name").mkdir()
    assert Together.of(tmp_path / "odd,name").alone
    for wrong in ("a,b,consensus=two", "a,b,c,consensus=2,consensus=3"):
        with pytest.raises(InvalidInput, match="whole number"):
            Together.of(wrong)
    with pytest.raises(InvalidInput, match="twice"):
        Together.of("a,b,./a")


def test_the_logits_are_averaged(runs):
    x = torch.rand(5, 1, 8, 8)
    names = [str(runs / name) for name in "abc"]
    each = [load_run(name).classifier(x) for name in names]
    together = load_run(",".join(names))
    torch.testing.assert_close(together.classifier(x), torch.stack(each).mean(0))
    assert is_trained_run(",".join(names))
    with pytest.raises(UcanError, match="nowhere"):
        load_run(f"{names[0]},{runs / 'nowhere'}")
    mirrored = load_run(f"{names[0]},mirrored").classifier(x)
    torch.testing.assert_close(mirrored, (each[0] + load_run(names[0]).classifier(x.flip(-1))) / 2)


def test_other_noise_does_not_go_together(runs):
    with pytest.raises(InvalidInput, match="noise law"):
        load_run(f"{runs / 'a'},{runs / 'other'}")


def told(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_by_consensus_is_verified_and_is_another_classifier(runs, tmp_path):
    plain = ",".join(str(runs / name) for name in "abc")
    model, folder = f"{plain},consensus=2", tmp_path / "run"
    common = ("--data", "digits", "--n", 500, "--max", 4, "--quiet", "-o", folder)
    told("certify", "--model", model, *common, "--certificates")
    asked = ("--input", "digits", "--index", 0)
    certificate = next(path for path in sorted((folder / "certificates").glob("*.json")) if path.stem == "0")
    told("verify", certificate, "--model", model, *asked)
    assert json.loads(told("certify", "--model", model, *common, "--json"))["inputs"] == 4
    for other in (plain, f"{model},mirrored"):
        refused = CliRunner().invoke(app, [str(word) for word in ("certify", "--model", other, *common)])
        assert isinstance(refused.exception, InvalidInput)
        assert all(f"{name!r}" in str(refused.exception) for name in (model, other)), refused.exception
        false = CliRunner().invoke(app, [str(word) for word in ("verify", certificate, "--model", other, *asked)])
        assert false.exit_code == 1 and "model" in false.output


def test_from_certify_to_the_report(runs, tmp_path):
    model = ",".join(str(runs / name) for name in "abc")
    common = ("--data", "digits", "--n", 500, "--max", 6, "--quiet")
    told("certify", "--model", model, *common, "--certificates", "-o", tmp_path / "run")
    again = json.loads(told("certify", "--model", model, *common, "-o", tmp_path / "run", "--json"))
    assert again["inputs"] == 6 and again["scope"] == "pipeline"
    told("verify", tmp_path / "run" / "certificates" / "0.json", "--model", model, "--input", "digits", "--index", 0)
    told("audit", tmp_path / "run", "--max", 1, "--steps", 2, "--draws", 4, "--check", 100)
    told("report", tmp_path / "run", "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert model in page and page.count("ucan train") + page.count("trained with the settings") >= 3
    told(
        "predict",
        "--model",
        f"{model},consensus=2",
        "--data",
        "digits",
        "--n",
        200,
        "--max",
        3,
        "-o",
        tmp_path / "p.tsv",
    )
