"""What TensorBoard is told of a training run."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch

from ucan import data
from ucan.training import Trainer, TrainSettings, build_classifier

pytest.importorskip("lightning_fabric")


def train(folder: Path, epochs: int) -> None:
    """Five epochs, or as many as told."""

    def leave(epoch: int, *_: object) -> None:
        if epoch == epochs:
            raise InterruptedError

    settings = TrainSettings(epochs=5, batch=64)
    dataset = data.load("digits", "train").subset(torch.arange(128))
    trainer = Trainer(settings, dataset, build_classifier(settings, (1, 8, 8), 10), folder, "cpu", leave)
    with suppress(InterruptedError):
        trainer.run()


def scalars(folder: Path) -> dict[int, float]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    seen = accumulator.EventAccumulator(str(folder))
    seen.Reload()
    return {event.step: event.value for event in seen.Scalars("loss")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_writes_one_file_each_time_it_is_started(tmp_path: Path) -> None:
    train(tmp_path, 3)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    first = scalars(tmp_path / "tensorboard")
    assert list(first) == [0, 1, 2]
    train(tmp_path, 5)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    again = scalars(tmp_path / "tensorboard")
    assert sorted(again) == [0, 1, 2, 3, 4] and all(again[epoch] == first[epoch] for epoch in first)
    train(tmp_path, 5)  # nothing left to do: nothing written
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
