"""`ucan train`: a classifier and its noise, trained together."""

from __future__ import annotations

import shutil
import sys
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from ucan import data
from ucan.cli import words
from ucan.cli.progress import duration
from ucan.errors import InvalidInput
from ucan.rounding import floor_percent
from ucan.training import Trainer, TrainSettings, build_classifier, preset_names, read_settings


def train(
    settings: Annotated[
        str, typer.Argument(help="A preset's name, or a TOML file with settings. `list` shows the presets.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run's folder; runs/NAME if not given.")] = None,
    finetune: Annotated[
        Path | None,
        typer.Option(help="Start from these weights of the classifier (`.safetensors`, or tensors in `.pt`)."),
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change one setting: `--set epochs=5`, `--set law.scale=0.5`.")
    ] = None,
    device: words.DeviceOption = "auto",
    quiet: words.QuietOption = False,
) -> None:
    """Train a classifier together with the noise that it will be certified under.

    Stop it at any time (Ctrl-C): the same command goes on from the last step. Examples:

    `ucan train list`

    `ucan train digits-basis -o runs/digits`

    `ucan train cifar10-consistency --set law.scale=0.5 -o runs/cifar`
    """
    if settings == "list":
        typer.echo("\n".join(preset_names()))
        return
    chosen = changed(read_settings(settings), change or [])
    folder = out or Path("runs") / Path(settings).stem
    dataset = data.load(chosen.data, "train", size=chosen.size)
    classifier = build_classifier(chosen, dataset.event_shape, dataset.num_classes)
    show = None if quiet else _Shown(chosen.epochs)
    place = words.device_of(device).type
    trainer = Trainer(chosen, dataset, classifier, folder, place, show, finetune)
    try:
        trainer.run()
    except KeyboardInterrupt:
        if trainer.rank == 0:
            print(
                f"\nStopped; the checkpoint in {folder} is kept. The same command goes on from there.", file=sys.stderr
            )
        raise
    if not quiet and trainer.rank == 0:
        print(f"\nTrained: {folder}. Next: ucan certify --model {folder} --data {chosen.data}", file=sys.stderr)


def changed(settings: TrainSettings, changes: list[str]) -> TrainSettings:
    """The settings with ``key=value`` (or ``table.key=value``) changes, values as TOML writes them."""
    values = settings.to_dict()
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise InvalidInput(f"--set takes key=value, got {change!r}.")
        try:
            value = tomllib.loads(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            value = text
        table: Any = values
        *path, last = key.strip().split(".")
        for name in path:
            table = table.get(name) if isinstance(table, dict) else None
        if not isinstance(table, dict) or (not path and last not in values):
            raise InvalidInput(f"there is no setting {key!r}; there are {', '.join(sorted(values))}.")
        table[last] = value
    return TrainSettings.from_dict(values)


class _Shown:
    """The state of training on one line: a live one on a terminal, one an epoch elsewhere."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.start = time.monotonic()
        self.first: float | None = None

    def __call__(self, epoch: int, step: int, steps: int, means: dict[str, float]) -> None:
        done = (epoch + step / steps) / self.epochs
        if self.first is None:
            self.first = max(0.0, done - 25 / (steps * self.epochs))
        spent = time.monotonic() - self.start
        left = duration(spent * (1 - done) / max(done - self.first, 1e-9))
        line = (
            f"epoch {epoch + 1}/{self.epochs}, step {step}/{steps}, {left} to go: loss {means['loss']:.4f}, accuracy "
            f"{floor_percent(means['correct'])} %, min σ {means['min_sigma']:.3f}, mean σ {means['mean_sigma']:.3f}"
        )
        if sys.stderr.isatty():
            line = line[: shutil.get_terminal_size().columns - 1]  # what wraps cannot be written over
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif step == steps:
            print(line, file=sys.stderr, flush=True)
