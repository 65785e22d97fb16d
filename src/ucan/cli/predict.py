"""`ucan predict`: the smoothed classifier's answers."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ucan.cli import words
from ucan.cli.progress import Progress
from ucan.config import write_whole
from ucan.errors import InvalidInput
from ucan.plan import PredictPlan
from ucan.results.metrics import NO_LABEL
from ucan.rounding import floor_percent
from ucan.smoothed import SmoothedClassifier


def predict(
    model: words.ModelOption,
    source: words.DataOption,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The TSV to write; standard output if not given.")
    ] = None,
    weights: words.WeightsOption = None,
    split: words.SplitOption = "test",
    size: words.SizeOption = None,
    channels: words.ChannelsOption = None,
    law: words.LawOption = None,
    scale: words.ScaleOption = None,
    exponent: words.ExponentOption = None,
    noise: words.NoiseOption = None,
    n: Annotated[int, typer.Option(help="Noisy copies per input.")] = 1000,
    alpha: words.AlphaOption = 0.001,
    test: Annotated[
        str, typer.Option(help="`majority`, or `top-two`, which also answers where no class has a majority.")
    ] = "majority",
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop sampling an input as soon as its answer is clear.")
    ] = False,
    seed: words.SeedOption = 0,
    device: words.DeviceOption = "auto",
    precision: words.PrecisionOption = None,
    backend: words.BackendOption = words.BackendName.auto,
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
    if out is not None and not os.access(out.parent, os.W_OK):
        raise InvalidInput(f"nothing may be written to the folder {out.parent}: name another file.")
    where = words.device_of(device)
    plan = PredictPlan(
        n,
        alpha,
        seed,
        test,  # type: ignore[arg-type]
        batch_size,
        stop,
        precision and precision.value,
    )
    selection = words.Selection.of(words.dataset_of(source, split, size, channels), skip, most)
    first = selection.first().to(where)
    g = words.smoothed_of(model, weights, law, scale, exponent, noise, classes, first)
    g.check_inputs(first)
    selection.check(g.f.num_classes)
    words.settle_backend(g, backend, plan, first, len(selection.indices))
    try:
        lines = _answers(g, selection, plan, quiet)
    except KeyboardInterrupt:
        print("\nStopped; nothing was written, since not every input has its answer.", file=sys.stderr)
        raise
    text = "\n".join(["idx\tlabel\tpredict\tcorrect\ttime", *lines]) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        write_whole(out, text.encode())


def _answers(g: SmoothedClassifier, selection: words.Selection, plan: PredictPlan, quiet: bool) -> list[str]:
    """One line per input, in the order of the data."""
    lines = [""] * len(selection.indices)
    right = known = 0
    with Progress("predicting", len(lines), plan.n, quiet) as progress:
        g.engine.on_votes = progress.sampled
        last = time.perf_counter()
        for number, outcome in g.predict_each((selection.dataset[i][0][None] for i in selection.indices), plan):
            index, answer, now = selection.indices[number], outcome.prediction, time.perf_counter()
            label = int(selection.dataset.labels[index])
            correct = int(answer is not None and answer == label)
            right, known = right + correct, known + (label != NO_LABEL)
            lines[number] = f"{index}\t{label}\t{-1 if answer is None else answer}\t{correct}\t{now - last:.3f}"
            last = now
            # Sampling that stops early finishes the sure inputs first: a share of those would promise too much.
            unknown = plan.stop or not known
            progress.finished("" if unknown else f"accuracy {floor_percent(right / known)} %")
    return lines
