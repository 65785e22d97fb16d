"""`ucan predict`: predict a data set with the smoothed classifier; each answer is stored at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucan.cli import words
from ucan.cli.progress import Shown
from ucan.errors import InvalidInput

if TYPE_CHECKING:
    from ucan.runs.predict import Predicted


def predict(
    model: words.ModelOption,
    source: words.DataOption,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The TSV to write (an interrupted call resumes). Default: standard output."),
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
        bool,
        typer.Option(
            "--stop", help="Stop sampling an input as soon as it is decided, or cannot be decided with n samples."
        ),
    ] = False,
    seed: words.NoiseSeedOption = "0",
    device: words.DeviceOption = "auto",
    precision: words.PrecisionOption = None,
    arithmetic: words.ArithmeticOption = None,
    backend: words.BackendOption = words.BackendName("auto"),
    classes: words.ClassesOption = None,
    unit: words.UnitOption = None,
    target: words.TargetOption = None,
    row_id: words.IdOption = None,
    train: words.TrainTableOption = None,
    sigma: words.SigmaOption = None,
    hold: words.HoldOption = None,
    vary: words.VaryOption = None,
    class_names: words.ClassNamesOption = None,
    trust: words.TrustOption = False,
    normalise: words.NormaliseOption = None,
    model_id: words.ModelIdOption = None,
    batch_size: words.BatchOption = None,
    skip: words.SkipOption = 1,
    most: words.MaxOption = None,
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Predict with the smoothed classifier, or abstain (−1). An answer is wrong with probability at most α.

    With `-o FILE`, each answer is stored in `FILE.part` at once. Stop at any time; run the same command again to
    resume. FILE itself is written when all answers are there, with the names of inputs and classes where they have any.
    A larger --max then adds inputs to it.

    Example: `ucan predict --model mymodels:resnet --data images/ --scale 0.25 -o predictions.tsv`
    """
    options = locals()
    if as_json and out is None:
        raise InvalidInput("--json prints a summary to standard output: give a file for the answers with -o.")
    from ucan.runs.predict import PredictJob
    from ucan.runs.predict import predict as run

    job = words.job_of(PredictJob, options)
    done = run(job, out, _Kept("predicting", quiet, kept="answer") if out else _Lost("predicting", quiet))
    if out is None:
        sys.stdout.write(done.table())
    else:
        print(json.dumps(done.to_dict()) if as_json else _in_words(done))


class _Kept(Shown):
    """On interruption, says that answers are kept, if there are any."""

    def stopped(self) -> str:
        """Say that the finished answers are kept, or that there are none."""
        return super().stopped() if self.done else "no answer was finished, and nothing was written"


class _Lost(Shown):
    """On interruption, says that nothing is kept."""

    def stopped(self) -> str:
        """Say how to keep answers next time."""
        return "nothing was written: with -o FILE, answers are kept and the same command resumes"


def _in_words(done: Predicted) -> str:
    from ucan.rounding import floor_percent

    count = len(done.answers)
    of = "" if done.labelled == count else f" of the {done.labelled} whose label is known"
    share = "" if done.accuracy is None else f" {floor_percent(done.accuracy)} %{of} answered correctly,"
    return f"{words.counted(count, 'input')}:{share} {done.abstained} abstained. Answers: {done.tsv}"
