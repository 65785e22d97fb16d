"""`ucan ask`: other questions than one class, about every input of a data set."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucan.cli import words
from ucan.cli.progress import Shown

if TYPE_CHECKING:
    from ucan.runs.ask import Summary

# Parameters that are settings of questions.
OF_QUESTIONS = ("radius", "within", "percentile", "limits", "top", "confidence", "rule")


def ask(
    question: Annotated[
        str,
        typer.Argument(
            help="`regression`, `top-k`, `confidence`, `labels` or `segmentation` (documentation page “Other questions than "
            "one class”)."
        ),
    ],
    model: words.ModelOption,
    source: words.DataOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="The run's folder; an interrupted run resumes.")],
    radius: Annotated[
        str | None,
        typer.Option(
            help="The size of changes, before Σ; for `regression` also a list (`0.1,0.2`) that holds at once."
        ),
    ] = None,
    within: Annotated[
        float | None, typer.Option(help="For `regression`: the largest change for which values stay within ± this.")
    ] = None,
    percentile: Annotated[
        float | None, typer.Option(help="For `regression`: which percentile; 0.5 is the median.")
    ] = None,
    limits: Annotated[
        str | None, typer.Option("--range", help="For `regression`: what outputs are at least and at most (`0,1`).")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="For `top-k`: k.")] = None,
    confidence: Annotated[float | None, typer.Option(help="For `confidence`: the probability to keep.")] = None,
    rule: Annotated[
        str | None, typer.Option(help="For `labels` and `segmentation`: `holm` (at a radius) or `bonferroni`.")
    ] = None,
    weights: words.WeightsOption = None,
    split: words.SplitOption = "test",
    size: words.SizeOption = None,
    channels: words.ChannelsOption = None,
    unit: words.UnitOption = None,
    law: words.LawOption = None,
    scale: words.ScaleOption = None,
    exponent: words.ExponentOption = None,
    noise: words.NoiseOption = None,
    norm: words.NormOption = None,
    budget: words.BudgetOption = None,
    n0: Annotated[int, typer.Option(help="Number of samples that choose what the others test.")] = 100,
    n: Annotated[int, typer.Option(help="Number of samples.")] = 10_000,
    alpha: words.AlphaOption = 0.001,
    stop: Annotated[
        str | None,
        typer.Option(
            help="Stop sampling an input when the question is decided at this radius (or several: `0.1,0.2`), of the size "
            "of --radius; --n is then the most. For `regression` with --within."
        ),
    ] = None,
    seed: words.NoiseSeedOption = "0",
    family: Annotated[int | None, typer.Option(min=1, help="Number of inputs that share α, fixed in advance.")] = None,
    device: words.DeviceOption = "auto",
    precision: words.PrecisionOption = None,
    arithmetic: words.ArithmeticOption = None,
    backend: words.BackendOption = words.BackendName("auto"),
    classes: words.ClassesOption = None,
    model_id: words.ModelIdOption = None,
    trust: words.TrustOption = False,
    normalise: words.NormaliseOption = None,
    batch_size: words.BatchOption = None,
    skip: words.SkipOption = 1,
    most: words.MaxOption = None,
    certificates: Annotated[
        bool, typer.Option("--certificates", help="Also write each answer as JSON into RUN/certificates.")
    ] = False,
    cluster: words.ClusterOption = None,
    workers: words.WorkersOption = None,
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Ask another question than one class about every input, with the same noise, regions and evidence.

    Each answer is stored in the run's folder at once. Stop at any time; run the same command again to resume. `ucan
    audit` attacks the answers, `ucan report` shows them.

    Examples:
    `ucan ask regression --model ucan.models.examples:diabetes --data diabetes --radius 0.1,0.2,0.4 -o runs/price`

    `ucan ask top-k --top 3 --model ucan.models.examples:digits --data digits --scale 0.5 -o runs/three`

    `ucan ask segmentation --radius 0.2 --model ucan.models.examples:shapes --data shapes -o runs/masks`
    """
    options = locals()
    from ucan.questions.catalogue import question_named, settings_of
    from ucan.runs.ask import AskJob
    from ucan.runs.ask import ask as run

    own = {
        "--radius": words.numbers_of("--radius", radius) or None,
        "--within": within,
        "--percentile": percentile,
        "--range": words.numbers_of("--range", limits) or None,
        "--top": top,
        "--confidence": confidence,
        "--rule": rule,
    }
    given = {option: value for option, value in own.items() if value is not None}
    asked = question_named(question, settings_of(question, given))
    job = words.job_of(AskJob, options, OF_QUESTIONS, question=asked)
    with words.results_apart(cluster):
        done = run(job, out, Shown("asking", quiet))
    print(json.dumps(done.to_dict(), allow_nan=False) if as_json else in_words(done))


def in_words(done: Summary) -> str:
    """Summarise the answers of a run."""
    from ucan.rounding import ceil_digits, floor_percent, floor_significant

    shares = {
        "certified": "certified",
        "certified_and_correct": "certified and correct",
        "targets_inside": "of the targets lie inside",
        "label_among_first": "of the labels stay among the first k",
        "correct": "with an answer that is correct",
    }
    told = []
    for name, value in done.figures:
        if math.isnan(value):
            continue
        if name == "median_width":
            told.append(f"median width {ceil_digits(value, 4)}")  # up: an interval is never narrower
        elif name in shares:
            told.append(f"{floor_percent(value)} % {shares[name]}")
        else:
            told.append(f"{name.replace('_', ' ')} {floor_significant(value, 4)}")
    lines = [
        f"{done.question}: {words.counted(done.inputs, 'input')}, {words.counted(done.abstained, 'abstention')}"
        f"{'; ' if told else ''}{', '.join(told)}.",
        *([] if done.stop is None else [_stopped(done)]),
        *done.first,
        words.scope_in_words(done.scope),
        f"Answers: {done.run}",
    ]
    return "\n".join(lines)


def _stopped(done: Summary) -> str:
    """Say at which radii sampling stopped, and what it cost."""
    radii = f"the radius {done.stop}" if "," not in (done.stop or "") else f"the radii {done.stop}"
    return f"Sampling stopped when decided at {radii}: {done.mean_samples:,.0f} samples an input on average."
