"""A training that begins with the weights of another: which they were stays on record, and others never take their place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ucan import data
from ucan.config import CONFIG, read_config, write_config
from ucan.errors import TrainingError
from ucan.fingerprint import weights_hash
from ucan.report.rerun import commands
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.read import Run
from ucan.runs.train import TrainJob, trainer_of
from ucan.sharing import push
from ucan.training import Trainer, load_run
from ucan.training.checkpoint import CHECKPOINT, WEIGHTS


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a trained run, from the working directory."""
    monkeypatch.chdir(tmp_path)
    made("first").run()
    return "first"


def made(out: str, finetune: str | None = None, settings: str = "digits-isotropic", epochs: int = 1) -> Trainer:
    few = data.load("digits", "train").subset(range(100))
    changes = (f"epochs={epochs}", "batch=50")
    return trainer_of(TrainJob(settings=settings, changes=changes, finetune=finetune, data=few, device="cpu"), out)


def known(folder: str) -> str | None:
    """The hash of the weights that a training began with, as its folder states it."""
    return read_config(Path(folder, CONFIG)).get("finetune_hash")


def hash_of(folder: str) -> str | None:
    return weights_hash(load_run(folder).classifier)


def moved(folder: str) -> None:
    """Change the weights of a run a little."""
    state = load_file(Path(folder, WEIGHTS))
    save_file({name: t + 0.01 if t.is_floating_point() else t for name, t in state.items()}, Path(folder, WEIGHTS))


def stopped(trainer: Trainer) -> None:
    """Run a training until its first checkpoint."""
    write = trainer._checkpoint

    def stop() -> None:
        write()
        raise KeyboardInterrupt

    trainer._checkpoint = stop  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        trainer.run()


def test_a_run_keeps_the_hash_of_the_weights_that_it_began_with(first: str) -> None:
    made("second", first).run()
    assert known(first) is None and known("second") == hash_of(first) is not None
    assert hash_of("second") != hash_of(first)
    done = certify(CertifyJob(model=first, data="digits", most=1, n=100, device="cpu"), "certified")
    assert done.inputs == 1
    assert Run.open("certified").outcome(0).evidence.weights_hash == known("second")  # certificates name them so, too
    made("third", f"{first}/{WEIGHTS}").run()
    assert known("third") == known("second")


def test_a_denoiser_states_the_classifier_behind_it(first: str) -> None:
    made("clean", settings="digits-clean").run()
    made("denoised", "clean", "digits-denoised").run()
    assert known("denoised") == weights_hash(load_run("clean").classifier)
    made("on", "denoised", "digits-denoised").run()
    assert known("on") == hash_of("denoised")


def test_a_run_goes_on_from_its_own_checkpoint_and_keeps_the_hash(first: str) -> None:
    begun_with = hash_of(first)
    made("whole", first, epochs=2).run()
    stopped(made("parts", first, epochs=2))
    moved(first)
    assert hash_of(first) != begun_with
    made("parts", first, epochs=2).run()
    assert known("parts") == begun_with
    one, other = (load_file(Path(folder, WEIGHTS)) for folder in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_other_weights_are_refused_where_they_are_needed_again(first: str) -> None:
    made("second", first).run()
    Path("second", CHECKPOINT).unlink()
    before = Path("second", WEIGHTS).read_bytes()
    made("second", first).run()  # the same weights: the same result
    assert Path("second", WEIGHTS).read_bytes() == before
    Path("second", CHECKPOINT).unlink()
    moved(first)
    with pytest.raises(TrainingError, match="the weights in first, which its training began with, have changed since"):
        made("second", first).run()
    assert Path("second", WEIGHTS).read_bytes() == before and known("second") != hash_of(first)


def test_a_start_that_left_nothing_is_begun_anew_with_the_new_weights(first: str) -> None:
    made("second", first).run()
    for name in (CHECKPOINT, WEIGHTS):
        Path("second", name).unlink()
    moved(first)
    made("second", first).run()
    assert known("second") == hash_of(first)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_an_older_run_without_the_hash_goes_on(first: str, checkpoint: bool) -> None:
    made("second", first).run()
    config = read_config(Path("second", CONFIG))
    write_config(Path("second", CONFIG), {key: value for key, value in config.items() if key != "finetune_hash"})
    moved(first)
    if not checkpoint:
        Path("second", CHECKPOINT).unlink()
    made("second", first).run()
    assert known("second") is None  # nobody knows which they were


def test_settings_stored_next_to_an_older_checkpoint_state_no_hash(first: str) -> None:
    made("second", first).run()
    Path("second", CONFIG).unlink()
    made("second", first).run()
    assert read_config(Path("second", CONFIG))["finetune"] == first and known("second") is None


def test_the_card_and_the_report_say_what_a_training_began_with(first: str) -> None:
    made("second", first).run()
    certify(CertifyJob(model="second", data="digits", most=2, n=100, device="cpu"), "certified")
    for run in ("second", "certified"):
        push(run, f"published-{run}")
        card = Path(f"published-{run}", "README.md").read_text(encoding="utf-8")
        assert f"| began with | the weights in `first`, SHA-256 `{known('second')}` |" in card
    push(first, "published-first")
    assert "began with" not in Path("published-first", "README.md").read_text(encoding="utf-8")
    lines = commands(Run.open("certified"))
    assert f"# second: began with the weights in first, SHA-256 {known('second')}" in lines


def test_the_command_of_a_preset_names_the_weights(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made("second", first).run()
    certify(CertifyJob(model="second", data="digits", most=2, n=100, device="cpu"), "certified")
    monkeypatch.setattr("ucan.report.rerun.read_settings", lambda name: load_run("second").settings)
    monkeypatch.setattr("ucan.report.rerun.preset_names", lambda: ["a-preset"])
    assert "ucan train a-preset --finetune first -o second" in commands(Run.open("certified"))
