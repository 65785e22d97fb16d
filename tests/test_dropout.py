"""A training with dropout that is stopped within an epoch: the masks go on as they would have, from whichever generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ucan import data
from ucan.training import Trainer, TrainSettings
from ucan.training.checkpoint import CHECKPOINT, WEIGHTS
from ucan.training.layers import layers_state, restore_layers

GPU = torch.device("cuda", 0)


class Dropping(nn.Module):
    """Drops features by a generator of its own, in place of a GPU's."""

    def __init__(self, rng: torch.Generator) -> None:
        super().__init__()
        self.rng = rng

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x * (torch.rand(x.shape, generator=self.rng) < 0.5) if self.training else x


def trained(
    folder: Path, drop: nn.Module, stop_after: int | None = None, device: str = "cpu"
) -> dict[str, torch.Tensor]:
    """The weights after two epochs of four steps; the training is stopped after a step and resumed, if one is given."""
    for last in (stop_after, None) if stop_after else (None,):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), drop, nn.Linear(32, 10))
        settings = TrainSettings.from_dict({"data": "digits", "epochs": 2, "batch": 25, "lr": 1e-2, "augment": False})
        one = Trainer(settings, data.load("digits", "train").subset(range(100)), net, folder, device)
        if last is None:
            one.run()
            break
        steps, step = list[int](), one._train_step

        def counted(
            batch: Any, one: Trainer = one, steps: list[int] = steps, step: Any = step, last: int = last
        ) -> Any:
            steps.append(1)
            one._stop = len(steps) == last
            return step(batch)

        one._train_step = counted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            one.run()
    return load_file(folder / WEIGHTS)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], atol: float = 0.0) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=0, atol=atol) for name in one)


@pytest.mark.parametrize("stop_after", [2, 7])
def test_masks_go_on_within_an_epoch(tmp_path: Path, stop_after: int) -> None:
    whole = trained(tmp_path / "whole", nn.Dropout(0.5))
    assert same(trained(tmp_path / "parts", nn.Dropout(0.5), stop_after), whole)
    assert not same(trained(tmp_path / "other", nn.Dropout(0.6)), whole)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> torch.Generator:
    """PyTorch's generator of a GPU, as far as the loop knows; seeded and read as that is."""
    rng = torch.Generator()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", rng.manual_seed)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: rng.get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: rng.set_state(state))
    return rng


@pytest.mark.parametrize("stop_after", [2, 7])
def test_masks_of_a_gpu_go_on_from_its_own_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretended: torch.Generator, stop_after: int
) -> None:
    """Layers that draw from a generator of their own, which stands for a GPU's: no GPU is needed."""
    monkeypatch.setattr("ucan.training.loop.layers_state", lambda device: layers_state(GPU))
    monkeypatch.setattr("ucan.training.loop.restore_layers", lambda state, device: restore_layers(state, GPU))
    drop = Dropping(pretended)
    whole = trained(tmp_path / "whole", drop)
    assert same(trained(tmp_path / "parts", drop, stop_after), whole)


def test_the_state_of_a_gpu_is_kept_for_a_gpu_alone(tmp_path: Path, pretended: torch.Generator) -> None:
    cpu, gpu = layers_state(torch.device("cpu")), layers_state(GPU)
    assert set(cpu) == {"layers"} and set(gpu) == {"layers", "layers_cuda"}
    first = torch.rand(3, generator=pretended)
    restore_layers(gpu, torch.device("cpu"))
    assert not torch.equal(torch.rand(3, generator=pretended), first)
    restore_layers(cpu, GPU)  # an older checkpoint, or one of a CPU
    restore_layers(gpu, GPU)
    assert torch.equal(torch.rand(3, generator=pretended), first)
    trained(tmp_path / "run", nn.Dropout(0.5))
    assert "layers_cuda" not in torch.load(tmp_path / "run" / CHECKPOINT, weights_only=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the generator of a real GPU: no CUDA device is here")
@pytest.mark.parametrize("stop_after", [2, 7])
def test_masks_go_on_within_an_epoch_on_a_gpu(tmp_path: Path, stop_after: int) -> None:
    whole = trained(tmp_path / "whole", nn.Dropout(0.5), device="cuda")
    # Other masks change the weights by far more than the order of a GPU's sums does.
    assert same(trained(tmp_path / "parts", nn.Dropout(0.5), stop_after, "cuda"), whole, 1e-5)
    assert not same(trained(tmp_path / "other", nn.Dropout(0.6), device="cuda"), whole, 1e-3)
