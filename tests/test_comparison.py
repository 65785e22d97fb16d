"""The comparison of training methods: equal budgets, and a page that says what the records say."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ucan import Ensemble, data
from ucan.catalogue import RECIPES
from ucan.choices import METHODS
from ucan.cli.train import train
from ucan.models import Denoised
from ucan.training import Trainer, TrainSettings
from ucan.training.recipes import Augmentation
from ucan.training.step import Outcome, Step

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "experiments"))

import methods  # noqa: E402
import methods_picture  # noqa: E402
import methods_records  # noqa: E402
import methods_rows  # noqa: E402


def test_every_recipe_has_a_line_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert METHODS.keys() == RECIPES.own.keys()
    assert all(";" not in text for one in METHODS.values() for text in (one.what, one.cost))
    train("list")
    listed = capsys.readouterr().err.splitlines()
    for name, one in METHODS.items():
        assert f"  {name:14}{one}" in listed


@pytest.mark.parametrize("name", methods.METHODS)
def test_every_method_gets_the_same_number_of_passes(name: str) -> None:
    method, inputs = methods.METHODS[name], methods_records.TRAINING_SET
    settings, changes = methods.settings_for(method, methods.PASSES, inputs)
    assert methods.spent(method, settings, inputs) == pytest.approx(methods.PASSES, rel=0.035)
    assert settings.law == {"kind": "gaussian", "scale": 0.5} and settings.optimiser == "sgd"
    assert f"epochs={settings.epochs}" in changes
    window = 1 / (1 - settings.ema)
    assert window == pytest.approx(settings.epochs * (inputs // settings.batch) / 20, rel=0.01)


def test_sixty_epochs_of_consistency_are_the_unit() -> None:
    settings, _ = methods.settings_for(methods.METHODS["consistency"], methods.PASSES, methods_records.TRAINING_SET)
    assert settings.epochs == 60 and settings.recipe["draws"] == 2
    assert methods.spent(methods.METHODS["consistency"], settings, methods_records.TRAINING_SET) == methods.PASSES


def test_the_page_and_its_figure_show_what_is_recorded() -> None:
    page, rows = methods_records.PAGE.read_text(encoding="utf-8"), methods_rows.recorded()
    assert page == methods_records.written(page, rows), "run experiments/methods_records.py"
    assert methods_records.IMAGE.read_text(encoding="utf-8") == methods_records.figure(rows)
    for row in rows.values():
        assert row.record["audit"] is None or row.record["audit"]["weights"] == row.record["weights"]
        assert row.record["passes"] == pytest.approx(methods.PASSES, rel=0.035)


def record(reached: str, **more: object) -> dict:
    levels = [k / 4 for k in range(10)]
    about = {
        "epochs": 60,
        "passes": 6_000_000,
        "scope": "pipeline",
        "batch": 128,
        "of": 10_000,
        "n": 100_000,
        "passed": 10_000,
    }
    claims = {"l2 radius": {"levels": levels, "reached": reached}}
    recipe = {"kind": "consistency", "draws": 2}
    return {**about, "claims": claims, "recipe": recipe, "inputs": len(reached), "open": {}, "audit": None, **more}


def test_shares_are_counted_from_the_levels_that_inputs_reached() -> None:
    row = methods_rows.Ours(methods.METHODS["consistency"], record("0123"))
    assert [row.share(level) for level in (0.0, 0.25, 0.5, 0.75)] == [0.75, 0.5, 0.25, 0.0]
    assert methods_rows.Ours(row.method, record("33.3")).share(0.5) == 1.0  # what lies behind a gap does not count
    lines = methods_records.ours_table({"consistency": row})
    assert "| **75.0** | **50.0** | **25.0** | 0.0 | 0.0 | 0.0 | 0.0 | 60 |" in lines[2] and lines[2].endswith(
        "| 10,000 | 0 |"
    )
    assert lines[4].startswith("Not measured: Gaussian, Stability, SmoothAdv") and "40 passes" in lines[-1]


def stage(inputs: int, votes: int, reached: str, most: int | None = None) -> dict:
    return {"inputs": inputs, "votes": votes, "most": most or votes, "reached": reached}


def test_the_most_votes_for_the_pictures_of_all_rows_are_compared() -> None:
    fifth, all_ = methods.FIFTH, methods.ALL
    stages = [stage(fifth, 10_000, "01"), stage(fifth, 100_000, "09"), stage(all_, 10_000, "0900", 100_000)]
    row = methods_rows.Ours(methods.METHODS["consistency"], record("0900", stages=stages, open={"0": [1, 2]}))
    assert (row.share(0.5), row.votes, row.open) == (0.5, 100_000, "0")
    fewer = row.with_votes(10_000)
    assert fewer is not None and (fewer.share(0.5), fewer.open) == (0.0, "–") and row.with_votes(30_000) is None
    assert row.beyond_fifth == []  # not all pictures had the same votes, and not all were looked at
    assert methods_records.further_table({"consistency": row}) == ["Not measured."]
    beside = methods_rows.Ours(row.method, record("01", stages=[stage(fifth, 10_000, "01")]))
    lines = methods_records.differences_table({"consistency": row, "drt": beside})
    assert lines[2] == "| Consistency (2 pictures) |" + " +0.0 ± 0.0 |" * 4  # after as many votes


def test_all_pictures_are_shown_as_they_are() -> None:
    reached = "09" * (methods.ALL // 2)
    first, waiting = [stage(methods.FIFTH, 100_000, reached[: methods.FIFTH])], {"3": [9, 50_000], "7": [8, 60_000]}
    row = methods_rows.Ours(methods.METHODS["sphere"], record(reached, stages=first, open=waiting))
    whole = [*methods_records.further_table({"sphere": row})[2:]]
    assert whole == ["| sphere (ours) |" + " 50.0 |" * 8 + " 10,000 | 100,000 | 2 |"]
    ended = [stage(methods.ALL, 100_000, reached)]
    row = methods_rows.Ours(row.method, record(reached, stages=ended))
    assert methods_records.further_table({"sphere": row})[2:] == [whole[0].replace("| 2 |", "| 0 |")]


def test_radii_that_were_not_asked_for_are_not_shown() -> None:
    few = record("2")
    few["claims"]["l2 radius"]["levels"] = [0.0, 0.25]
    row = methods_rows.Ours(methods.METHODS["sphere"], few)
    assert [row.shown(level) for level in (0.0, 0.25, 0.5)] == ["100.0", "100.0", "–"]
    assert methods_records.shown_by([row]) == (0.0, 0.25)


def test_rows_at_other_noise_show_what_their_votes_can_certify(tmp_path: Path) -> None:
    path = tmp_path / "methods.json"
    path.write_text(
        json.dumps({"rows": {}, "elsewhere": {"consistency-0.25": record("0444"), "sphere-1": record("099A")}})
    )
    rows = methods_rows.recorded_elsewhere(path)
    assert [name for name, row in rows.items() if row is None] == [
        "smoothadv-0.25",
        "sphere-0.25",
        "consistency-1",
        "smoothadv-1",
    ]
    lines = methods_records.elsewhere_table(rows)
    assert "| Consistency | 75.0 | 75.0 | 75.0 | 75.0 | 4 | 10,000 | – |" in lines  # 0.75 is three times σ
    assert "| sphere (ours) | " + " | ".join(["75.0"] * 9) + " | 25.0 | 4 | 10,000 | – |" in lines
    assert lines.count("Not measured: Consistency, SmoothAdv.") == 1 and lines[0] == "σ = 0.25:" and "σ = 1:" in lines
    nothing = methods_records.elsewhere_table(methods_rows.recorded_elsewhere(tmp_path / "none.json"))
    assert nothing.count("Not measured: Consistency, SmoothAdv, sphere (ours).") == 2


def test_the_router_is_shown_with_its_distance_rounded_down(tmp_path: Path) -> None:
    rows = {
        "sigma 0.5 alone": {"accuracy": [60.0, 40.09]},
        "a half for every level": {"accuracy": [62.0, 38.0], "levels": [0.5], "veto": 0.0, "distance": [-0.51, 0.2]},
        "veto chosen": {"accuracy": [62.0, 38.0], "levels": [0.5], "veto": 0.05, "distance": [0.0, 0.1]},
    }
    told = {
        "radii": [0.0, 0.5],
        "chosen_on": 1000,
        "measured_on": 1000,
        "n": [10_000, 10_000],
        "alpha": 0.001,
        "rows": rows,
    }
    path = tmp_path / "router.json"
    path.write_text(json.dumps(told))
    lines = methods_records.router_table(path)
    assert "| σ = 0.5 alone | 60.0 | 40.0 | – |" in lines and "| router, τ = 1/2 | 62.0 | 38.0 | −0.6 |" in lines
    assert "| router, veto ν = 0.05 (chosen) | 62.0 | 38.0 | +0.0 |" in lines
    assert methods_records.router_table(tmp_path / "none.json")[0].startswith("Not measured on CIFAR-10")


def test_new_rows_come_into_the_record_and_a_poorer_one_takes_no_place() -> None:
    whole, part = record("0123", passed=10_000), record("01", passed=0)
    old = {"passes": 1, "rows": {"consistency": whole, "smoothmix": part}}
    new = {"passes": 1, "rows": {"consistency": part, "smoothmix": whole, "drt": part}, "elsewhere": {"sphere-1": part}}
    found = methods_rows.kept(old, new)
    assert found["rows"] == {"consistency": whole, "smoothmix": whole, "drt": part}
    assert found["elsewhere"] == {"sphere-1": part} and methods_rows.kept({}, new)["rows"] == new["rows"]


def test_rows_are_compared_input_by_input() -> None:
    one, two = (methods_rows.Ours(methods.METHODS["consistency"], record(text)) for text in ("2222", "2202"))
    assert one.beyond(two, 0.25) == (25.0, 25.0) and two.beyond(one, 0.25)[0] == -25.0
    assert "| +25.0 ± 25.0 |" in methods_records.differences_table({"consistency": two, "sphere": one})[2]


def test_open_inputs_are_closed_with_their_number() -> None:
    merged = {"rows": {"consistency": record("01", open={"0": [90, 100], "7": [5, 9]})}}
    row = methods_rows.closed(merged)["rows"]["consistency"]
    assert row["undecided"] == {"inputs": 1, "votes": 100} and row["open"] == {}


def test_released_files_are_counted() -> None:
    text = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t3\t3\t0.6\t1\t0:00\n1\t8\t8\t2.0\t1\t0\n5\t0\t1\t1.0\t0\t0\n"
    whole, fifth = methods_rows.counted(text + "10\t1\t1\t0.0\t1\t0\n15\t1\t-1\t0.0\t0\t0\n")
    assert whole == [3, 2, 2, 1, 1, 1, 1, 1] and fifth == [2, 1, 1, 0, 0, 0, 0, 0]
    for one in methods_rows.released()[1]:
        assert one.method in methods_rows.NAMES and one.source in methods_rows.released()[0]
        assert one.whole == sorted(one.whole, reverse=True) and abs(one.whole[4] / 5 - one.fifth[4]) < 40


def test_labels_beside_each_other_are_a_line_apart() -> None:
    placed = methods_picture.apart([(0, 50.0), (0, 10.0), (20, 52.0), (0, 51.0), (300, 51.0)])
    assert np.diff(sorted(placed[:4])).min() >= 13.9 and np.argsort(placed[:4]).tolist() == [1, 0, 3, 2]
    assert placed[4] == 51.0


class Looks(Augmentation):
    """Remembers the precision that it is given."""

    def step(self, step: Step) -> Outcome:
        seen.append((step.inputs.dtype, step.noise.draw(1).dtype))
        return super().step(step)


seen: list[tuple[torch.dtype, torch.dtype]] = []


def test_mixed_precision_leaves_inputs_and_noise_in_float32(tmp_path: Path) -> None:
    """In bf16 pixels and noise are rounded to 8 bits, and SmoothMix fails."""
    settings = TrainSettings(epochs=1, batch=256, precision="bf16-mixed")
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    trainer = Trainer(settings, data.load("digits", "train"), classifier, tmp_path / "run", "cpu")
    trainer.joint.recipe = Looks()
    trainer.run()
    assert set(seen) == {(torch.float32, torch.float32)}


@pytest.mark.parametrize("kind", RECIPES.own)
def test_every_recipe_trains_in_mixed_precision(kind: str, tmp_path: Path) -> None:
    recipe = {"kind": kind, **({"steps": 1} if kind in ("smoothadv", "smoothmix", "catrs", "acr", "sphere") else {})}
    denoiser = {"width": 4, "depth": 3} if kind == "denoise" else None
    settings = TrainSettings(
        model="given:here", epochs=2, batch=64, precision="bf16-mixed", recipe=recipe, denoiser=denoiser
    )
    classifier: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    if kind == "drt":
        classifier = Ensemble([classifier, nn.Sequential(nn.Flatten(), nn.Linear(64, 10))])
    if kind == "denoise":
        classifier = Denoised.training_for(classifier, 1, 4, 3)
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    trainer = Trainer(settings, data.load("digits", "train").subset(range(128)), classifier, tmp_path / "run", "cpu")
    trainer.run()
    after = trainer.final_state()
    assert all(bool(value.isfinite().all()) for value in after.values())
    assert any(not torch.equal(value, after[f"classifier.{name}"]) for name, value in before.items())


@pytest.mark.slow
def test_a_small_comparison_goes_on_where_it_stopped(tmp_path: Path) -> None:
    rows, folder = (
        np.random.default_rng(0).integers(0, 256, (128, 3073), dtype=np.uint8),
        tmp_path / "cifar-10-batches-bin",
    )
    rows[:, 0] %= 10
    folder.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        rows[:64].tofile(folder / f"{name}.bin")
    command = [sys.executable, str(ROOT / "experiments" / "methods.py"), "--out", str(tmp_path / "out")]
    small = ["--passes", "700", "--inputs", "8", "--votes", "300", "--audit-n", "50"]
    more = ["--runs", str(tmp_path / "runs"), "--backend", "eager", "--set", "model=cnn", "batch=32", "lr=0.001"]
    environment = {"UCAN_DATA_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    for names, caps, attacked in (
        (["sphere", "drt"], ["100"], "0"),
        (["sphere", "drt"], ["100", "300"], "0"),
        (["gaussian", "consistency-0.25"], ["300"], "1"),
        (["gaussian", "--all"], ["300"], "1"),
    ):
        words = [*command, *names, "--mirrored", *small, "--certificates", attacked, "--caps", *caps, *more]
        subprocess.run(words, check=True, env=environment)
    subprocess.run([*command, "--merge", str(tmp_path / "all.json")], check=True, env=environment)
    merged = json.loads((tmp_path / "all.json").read_text())
    assert list(merged["rows"]) == ["sphere", "gaussian", "drt"]
    assert (
        list(merged["elsewhere"]) == ["consistency-0.25"] and "0.25" in merged["elsewhere"]["consistency-0.25"]["law"]
    )
    found = [(one["inputs"], one["votes"], len(one["reached"])) for one in merged["rows"]["gaussian"]["stages"]]
    assert found == [(8, 300, 8), (10_000, 300, 64)] and merged["rows"]["gaussian"]["inputs"] == 64
    for row in merged["rows"].values():
        assert row["inputs"] in (8, 64) and row["passed"] == 300 and row["scope"] == "pipeline"
        assert row["train_seconds"] > 0
    assert merged["rows"]["gaussian"]["audit"]["summary"]["attacked"] <= 1
    assert merged["rows"]["drt"]["members"] == 3 and merged["rows"]["drt"]["mirrored"]
