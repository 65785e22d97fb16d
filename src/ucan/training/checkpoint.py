"""What a training run leaves on disk: a checkpoint to go on from, and in the end its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from ucan.config import read_config
from ucan.errors import TrainingError
from ucan.generators import Generator
from ucan.laws import Law
from ucan.models import build_model, load_model
from ucan.training.settings import TrainSettings

CONFIG, CHECKPOINT, WEIGHTS = "config.toml", "checkpoint.pt", "weights.safetensors"
CHECKPOINT_KEYS = {"epoch", "step", "totals", "joint", "optimisers", "ema", "noise", "layers"}


@dataclass(frozen=True)
class TrainedRun:
    """A trained classifier with the noise it was trained for."""

    folder: Path
    settings: TrainSettings
    classifier: nn.Module
    generator: Generator
    law: Law
    shape: tuple[int, ...]
    num_classes: int


def write_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{CHECKPOINT}.part"
    torch.save(state, part)
    part.replace(folder / CHECKPOINT)


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The checkpoint, if there is one; only tensors and plain values are read, no code."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load has no error type of its own
        raise TrainingError(
            f"{path} cannot be read: it is damaged or no checkpoint. Remove it to start anew."
        ) from error
    if not isinstance(state, dict) or not state.keys() >= CHECKPOINT_KEYS:
        raise TrainingError(f"{path} is no checkpoint of `ucan train`. Remove it to start anew.")
    return state


def save_run(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """Write the final weights, whole or not at all."""
    part = folder / f".{WEIGHTS}.part"
    save_file({name: t.detach().cpu().contiguous() for name, t in state.items()}, part)
    part.replace(folder / WEIGHTS)


def is_trained_run(folder: str | Path) -> bool:
    """Whether a folder holds the outcome of ``ucan train``."""
    return (Path(folder) / WEIGHTS).is_file() and (Path(folder) / CONFIG).is_file()


def build_classifier(settings: TrainSettings, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The classifier that the settings name: a built-in one, or a user's ``package.module:name``."""
    if ":" not in settings.model:
        return build_model(settings.model, shape, num_classes, seed=settings.seed)
    with torch.random.fork_rng(devices=[]):  # a class is made here and now: its first weights follow from the seed
        torch.manual_seed(settings.seed)
        model = load_model(settings.model)
    if not isinstance(model, nn.Module):
        raise TrainingError(f"{settings.model} is no torch.nn.Module, so there is nothing to train.")
    return model


def load_run(folder: str | Path) -> TrainedRun:
    """The classifier, generator and law of a finished training run, in evaluation mode on the CPU."""
    folder = Path(folder)
    if not is_trained_run(folder):
        raise TrainingError(f"{folder} holds no finished training run ({WEIGHTS} is missing): `ucan train` makes one.")
    config = read_config(folder / CONFIG)
    shape, num_classes = tuple(config["shape"]), int(config["num_classes"])
    settings = TrainSettings.from_dict(config["training"])
    classifier = build_classifier(settings, shape, num_classes)
    generator = settings.build_generator(shape, None)
    try:
        state = load_file(folder / WEIGHTS)
        for name, module in (("classifier.", classifier), ("generator.", generator)):
            module.load_state_dict({k.removeprefix(name): v for k, v in state.items() if k.startswith(name)})
    except (RuntimeError, SafetensorError) as error:
        raise TrainingError(
            f"{folder / WEIGHTS} does not fit {folder / CONFIG}: {str(error).splitlines()[0]}"
        ) from error
    law = settings.build_law(math.prod(shape))
    return TrainedRun(folder, settings, classifier.eval(), generator.eval(), law, shape, num_classes)
