"""The tour: every step shown, a report at its end, and a second run that only goes on."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ucan
from ucan.cli import app, main
from ucan.cli.demo import KINDS
from ucan.report.runs import read_runs
from ucan.report.sentences import sentences
from ucan.training import read_settings

pytest.importorskip("lightning_fabric")
pytest.importorskip("sklearn")

SMALL = ("--digits", 4, "--n", 100, "--attacked", 1, "--out", "kept")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, we are in it; the kinds of noise are trained for one epoch."""
    monkeypatch.chdir(tmp_path)
    short = []
    for kind in KINDS:
        preset = tmp_path / f"{kind.preset}.toml"
        text = next(Path(ucan.__file__).parent.glob(f"training/presets/{kind.preset}.toml")).read_text()
        preset.write_text(text.replace("epochs = 30", "epochs = 1"))
        assert read_settings(preset).epochs == 1
        short.append(replace(kind, preset=str(preset)))
    monkeypatch.setattr(sys.modules["ucan.cli.demo"], "KINDS", tuple(short))
    return tmp_path


def ok(*words):
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_the_tour_ends_with_three_sentences_and_a_report(place):
    said = ok("demo", *SMALL)
    for kind in KINDS:
        assert f"{kind.name}: {kind.about}" in said
        assert (
            f"$ ucan certify --model kept/{kind.model or kind.name}-model --data digits -o kept/{kind.name} --n 100"
            in said
        )
        assert f"$ ucan audit kept/{kind.name} --max 1" in said
    assert "$ ucan compare kept/isotropic" in said and "│ certification-wise │ frozen" in said
    runs = read_runs([f"kept/{kind.name}" for kind in KINDS])
    assert [run.scope for run in runs] == ["pipeline", "pipeline", "frozen", "pipeline", "pipeline", "pipeline"]
    assert "$ ucan compare kept/isotropic-linf kept/fitted-linf --radii 0,0.02" in said and "by ℓ∞ radius" in said
    assert not (place / "kept" / "isotropic-linf-model").exists()
    assert all(run.inputs == 4 and (run.audit is not None or run.certificates == 0) for run in runs)
    for sentence in sentences(runs):
        assert f"{sentence.heading}. {sentence.text}" in said
    assert said.endswith("The report: kept/report.html\n")
    assert sentences(runs)[0].heading in (place / "kept" / "report.html").read_text()

    before = {path: path.stat().st_mtime_ns for path in place.glob("kept/*/results.sqlite")}
    assert len(before) == 6
    again = ok("demo", *SMALL, "-q")
    tables, report = again.split("\n\nWhich run")[0].split("\n\nCertified"), again.split("\n\nWhich run")[1]
    assert "$" not in again and len(tables) == 2 and all(table in said for table in tables) and said.endswith(report)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_what_is_in_the_way_is_refused_before_any_work(place, capsys, monkeypatch):
    (place / "file").write_text("mine")
    (place / "other").mkdir()
    (place / "other" / "report.html").write_text("mine")
    for out, message in (("file", "cannot be read or written"), ("other", "is not a UCAN report")):
        monkeypatch.setattr(sys, "argv", ["ucan", "demo", "--out", out])
        with pytest.raises(SystemExit) as leaving:
            main()
        assert leaving.value.code == 2 and message in capsys.readouterr().err
    assert (place / "file").read_text() == "mine" and len(list((place / "other").iterdir())) == 1


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_keeps_what_is_done(tmp_path):
    path = os.pathsep.join([str(Path(ucan.__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, "-m", "ucan", "demo", "-q"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    checkpoint = tmp_path / "runs" / "demo" / "isotropic-model" / "checkpoint.pt"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "") and "again to resume" in err and "Traceback" not in err
    assert checkpoint.exists() and not list(tmp_path.rglob("*.part"))
