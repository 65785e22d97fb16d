"""`ucan predict`: the smoothed classifier's answers."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from ucan import data
from ucan.cli import words
from ucan.cli.progress import Progress
from ucan.config import write_whole
from ucan.errors import InvalidInput
from ucan.results.metrics import floor_percent


def predict(
    model: words.ModelOption,
    source: words.DataOption,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The TSV to write; standard output if not given.")
    ] = None,
    weights: words.WeightsOption = None,
    split: words.SplitOption = "test",
    law: words.LawOption = None,
    scale: words.ScaleOption = None,
    exponent: words.ExponentOption = None,
    noise: words.NoiseOption = None,
    n: Annotated[int, typer.Option(help="Noisy copies per input.")] = 1000,
    alpha: words.AlphaOption = 0.001,
    test: Annotated[
        str, typer.Option(help="`majority`, or `top-two`, which also answers where no class has a majority.")
    ] = "majority",
    seed: words.SeedOption = 0,
    device: words.DeviceOption = "auto",
    classes: words.ClassesOption = None,
    batch_size: words.BatchOption = None,
    skip: words.SkipOption = 1,
    most: words.MaxOption = None,
    quiet: words.QuietOption = False,
) -> None:
    """Answer with the smoothed classifier, or abstain (−1): wrong with probability at most α.

    Example: `ucan predict --model mymodels:resnet --data images/ --scale 0.25 -o predictions.tsv`
    """
    if out is not None and out.exists():
        raise InvalidInput(f"{out} exists already; name another file, or remove it first.")
    if out is not None and not out.parent.is_dir():
        raise InvalidInput(f"there is no folder {out.parent} to write {out.name} to: make it first.")
    where = words.device_of(device)
    selection = words.Selection.of(data.load(source, split), skip, most)
    first = selection.first().to(where)
    g = words.smoothed_of(model, weights, law, scale, exponent, noise, classes, first)
    lines = ["idx\tlabel\tpredict\tcorrect\ttime"]
    right = 0
    with Progress("predicting", len(selection.indices), n, quiet) as progress:
        g.on_votes = progress.sampled
        for index in selection.indices:
            x, label = selection.dataset[index]
            start = time.perf_counter()
            answer = g.predict(x[None], n, alpha, seed, _test(test), batch_size)[0].prediction
            correct = int(answer is not None and answer == label)
            right += correct
            lines.append(
                f"{index}\t{label}\t{-1 if answer is None else answer}\t{correct}\t{time.perf_counter() - start:.3f}"
            )
            progress.finished(f"accuracy {floor_percent(right / (progress.items + 1))} %")
    text = "\n".join(lines) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        write_whole(out, text.encode())


def _test(name: str) -> Literal["majority", "top-two"]:
    if name not in ("majority", "top-two"):
        raise InvalidInput(f"--test must be majority or top-two, got {name!r}.")
    return "majority" if name == "majority" else "top-two"
