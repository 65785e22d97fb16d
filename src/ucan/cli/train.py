"""`ucan train`: a classifier and its noise, trained together."""

from __future__ import annotations

import itertools
import shutil
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucan.catalogue import GENERATORS, LAWS, RECIPES
from ucan.choices import METHODS
from ucan.cli import words
from ucan.cli.progress import duration
from ucan.errors import InvalidInput

if TYPE_CHECKING:
    from ucan.training import TrainSettings


class Claim(StrEnum):
    """The claim that a classifier is trained for."""

    linf = "linf"
    l2 = "l2"
    l1 = "l1"
    alm = "alm"
    budget = "budget"


# The options of `ucan certify` for each claim.
NEXT = {
    Claim.linf: " --norm inf",
    Claim.l2: "",
    Claim.l1: " --norm 1",
    Claim.alm: "",
    Claim.budget: " --budget trained",
}


def train(
    settings: Annotated[
        str | None,
        typer.Argument(
            help="A preset's name, or a TOML file with settings, such as the `config.toml` of a run. `list` shows the "
            "presets, `show NAME` prints one as TOML."
        ),
    ] = None,
    shown: Annotated[str | None, typer.Argument(metavar="NAME", help="The preset that `show` prints.")] = None,
    preset: Annotated[str | None, typer.Option(help="A preset's name (the same as the argument).")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run's folder. Default: runs/NAME.")] = None,
    finetune: Annotated[
        Path | None,
        typer.Option(
            help="Start from these weights of the classifier (`.safetensors`, or tensors in `.pt`), or from the "
            "classifier "
            "of a trained run (its folder)."
        ),
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change one setting: `--set epochs=5`, `--set law.scale=0.5`.")
    ] = None,
    claim: Annotated[
        Claim | None,
        typer.Option(
            "--for",
            help="What will be certified: an `linf`, `l2` or `l1` radius, `alm` (alternative Lebesgue measure, the size of "
            "the region), or the settings' own `budget`. It selects the loss term for that claim, and refuses noise made "
            "for another claim.",
        ),
    ] = None,
    device: words.DeviceOption = "auto",
    quiet: words.QuietOption = False,
) -> None:
    """Train a classifier together with the noise that it will be certified under.

    Stop at any time (Ctrl-C); run the same command again to resume at the last step. Examples:

    `ucan train list`

    `ucan train digits-basis -o runs/digits`

    `ucan train cifar10-consistency --set law.scale=0.5 --set recipe.weight=10.0 -o runs/cifar`

    `ucan train digits-dataset --for linf -o runs/linf`

    `ucan train show digits-basis > mine.toml`, then edit it and run `ucan train mine.toml`
    """
    if settings == "list" and preset is None and shown is None:
        _list(quiet)
        return
    if settings == "show" and preset is None and shown is not None:
        from ucan.training import preset_text

        typer.echo(preset_text(shown), nl=False)
        return
    from ucan.runs.jobs import device_of
    from ucan.runs.train import TrainJob, trainer_of

    job = TrainJob(
        settings=_one(settings, shown, preset),
        changes=change or [],
        claim=None if claim is None else claim.value,
        finetune=finetune,
        device=device,
    )
    chosen = job.chosen()
    if device_of(device).type == "cpu" and not quiet and (instead := _for_a_cpu(chosen)):
        print(f"These settings are meant for a GPU. On this CPU, {instead} may be faster.", file=sys.stderr)
    told_by = Training(chosen.epochs)
    trainer = trainer_of(job, out, None if quiet else told_by)
    told_by.scope, told = trainer.scope, trainer.rank == 0
    try:
        trainer.run()
    except KeyboardInterrupt:
        if told:
            again = f"the checkpoint in {trainer.folder} is kept. Run the same command again to resume"
            early = "nothing was saved yet. Run the same command again to start anew"
            print(f"\nStopped; {again if trainer.resumable else early}.", file=sys.stderr)
        raise
    if not quiet and told:
        _next(trainer.folder, chosen, "" if claim is None else NEXT[claim])


def _list(quiet: bool) -> None:
    """Print the names of the presets, and what else settings may name."""
    from ucan.training import preset_names

    for name in preset_names():
        typer.echo(name if quiet else f"{name:29}{_about(name)}")
    if quiet:
        return
    for table, catalogue in (("law", LAWS), ("generator", GENERATORS)):
        print(f"Kinds for [{table}]: {', '.join(catalogue.names())}.", file=sys.stderr)
    print("Kinds for [recipe], with their passes for each input of an epoch:", file=sys.stderr)
    for name in RECIPES.names():
        about = METHODS.get(name) or f"of the package {RECIPES.package(name)}"
        print(f"  {name:14}{about}", file=sys.stderr)
    print("To copy a preset and edit it: ucan train show NAME > mine.toml", file=sys.stderr)


def _for_a_cpu(settings: TrainSettings) -> str:
    """The options that replace what is for a GPU in these settings, and is of no use on this CPU; empty if there is nothing."""
    whole = settings.precision in ("32-true", "64-true")
    fast = settings.precision.startswith("bf16") and _has_bf16()
    precision = [] if whole or fast else ["--set precision=32-true"]
    return " ".join([*precision, *(["--set compile=false"] if settings.compile else [])])


def _has_bf16() -> bool:
    """Whether this CPU has instructions for bf16, without which it is slower than float32; False where PyTorch cannot tell."""
    import torch

    known = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(has() for has in known if has is not None)


def _next(folder: Path, settings: TrainSettings, about: str) -> None:
    """Print the command that certifies the trained run."""
    from ucan.data import NAMES
    from ucan.places import is_call

    pictures = settings.data == "imagenet" or (settings.data not in NAMES and Path(settings.data).is_dir())
    size = f" --size {settings.size}" if pictures and settings.size else ""
    if not settings.held_out:
        print(
            "\nCertified accuracy on inputs that are not trained on is shown with --set held_out=0.1.", file=sys.stderr
        )
    trust = " --trust" if is_call(settings.model) else ""
    print(
        f"\nTrained: {folder}. Next: ucan certify --model {folder} --data {settings.data}{size}{about}{trust}",
        file=sys.stderr,
    )


def _about(name: str) -> str:
    """The first sentence of a preset's comment."""
    from ucan.training import preset_text

    comment = itertools.takewhile(lambda line: line.startswith("#"), preset_text(name).splitlines())
    return " ".join(line.removeprefix("# ") for line in comment).partition(". ")[0].removesuffix(".")


def _one(settings: str | None, shown: str | None, preset: str | None) -> str:
    """The settings to train with, given in exactly one way."""
    from ucan.training import preset_names

    if settings == "show":
        raise InvalidInput("give the preset to show: ucan train show NAME. `ucan train list` lists them.")
    if shown is not None:
        raise InvalidInput(f"unexpected argument {shown!r}: only `show` takes a second name.")
    if settings is not None and preset is not None:
        raise InvalidInput(f"{settings!r} and --preset {preset!r} both give the settings: leave one of them out.")
    if preset is not None and preset not in preset_names():
        raise InvalidInput(f"there is no preset {preset!r}; presets: {', '.join(preset_names())}.")
    source = settings if preset is None else preset
    if source is None:
        raise InvalidInput("give a preset or a TOML file: ucan train NAME. `ucan train list` lists the presets.")
    return source


class Training:
    """Shows the state of training in one line: a live line on a terminal, one line per epoch elsewhere."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.start = time.monotonic()
        self.first: float | None = None
        self.certified = ""  # as it was when it was last looked at
        self.scope = ""

    def __call__(self, epoch: int, step: int, steps: int, means: dict[str, float]) -> None:
        """Show the state of training."""
        from ucan.rounding import floor_percent

        done = (epoch + step / steps) / self.epochs
        if self.first is None:
            self.first = max(0.0, done - 25 / (steps * self.epochs))
        spent = time.monotonic() - self.start
        left = duration(spent * (1 - done) / max(done - self.first, 1e-9))
        line = (
            f"epoch {epoch + 1}/{self.epochs}, step {step}/{steps}, {left} left: loss {means['loss']:.4f}, accuracy "
            f"{floor_percent(means['correct'])} %"
        )
        if "held_out_certified" in means:
            self.certified = f", certified held-out {floor_percent(means['held_out_certified'])} % ({self.scope})"
        line += self.certified
        if "min_sigma" in means:
            line += f", min σ {means['min_sigma']:.3f}, mean σ {means['mean_sigma']:.3f}"
        if sys.stderr.isatty():
            line = line[: shutil.get_terminal_size().columns - 1]  # a wrapped line cannot be overwritten
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif step == steps:
            print(line, file=sys.stderr, flush=True)
