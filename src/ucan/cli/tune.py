"""`ucan tune`: find the noise that certifies the most held-out inputs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ucan.cli import words
from ucan.cli.progress import Shown

if TYPE_CHECKING:
    from ucan.runs.tune import Tuned

# Characters of the longest bar.
BAR = 40


def tune(
    model: words.ModelOption,
    source: words.DataOption,
    radius: Annotated[float | None, typer.Option(help="The radius to certify.")] = None,
    budget: words.BudgetOption = None,
    scales: Annotated[
        str | None, typer.Option(metavar="NUMBER,…", help="The λ to try. Default: seven around the usual one.")
    ] = None,
    weights: words.WeightsOption = None,
    split: words.SplitOption = "train",
    size: words.SizeOption = None,
    channels: words.ChannelsOption = None,
    unit: words.UnitOption = None,
    target: words.TargetOption = None,
    train: words.TrainTableOption = None,
    sigma: words.SigmaOption = None,
    hold: words.HoldOption = None,
    vary: words.VaryOption = None,
    law: words.LawOption = None,
    exponent: words.ExponentOption = None,
    noise: words.NoiseOption = None,
    norm: words.NormOption = None,
    n: Annotated[
        int, typer.Option(help="Maximum number of samples per input; sampling stops when the target is decided.")
    ] = 2000,
    alpha: words.AlphaOption = 0.001,
    classes: words.ClassesOption = None,
    class_names: words.ClassNamesOption = None,
    trust: words.TrustOption = False,
    normalise: words.NormaliseOption = None,
    arithmetic: words.ArithmeticOption = None,
    device: words.DeviceOption = "auto",
    skip: words.SkipOption = 1,
    most: words.MaxOption = 100,
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Choose the scale of the noise for a radius or a budget. For a table, some shapes are tried as well.

    Every candidate certifies the same inputs, with sampling that stops as soon as the target is decided. Use inputs
    other than those you will certify: the share of the best candidate is biased upwards on the inputs that selected it.

    Examples:
    `ucan tune --model mymodels:resnet --data images/ --size 224 --radius 0.5`

    `ucan tune --model credit.skops --data held-out.csv --target approved --train train.csv --budget "income=5%,age=1"`
    """
    options = locals()
    from ucan.runs.tune import TuneJob
    from ucan.runs.tune import tune as run

    job = words.job_of(TuneJob, options, scales=words.numbers_of("--scales", scales))
    done = run(job, Shown("tuning", quiet, "candidate", ""))
    print(json.dumps(done.to_dict()) if as_json else in_words(done))


def in_words(done: Tuned) -> str:
    """Make a table with a bar for every candidate, and a recommendation."""
    from ucan.rounding import floor_percent

    shaped = len({candidate.shape for candidate in done.candidates}) > 1
    lines = [f"Inputs certified for {done.target}, by the scale of the noise:"]
    for candidate in done.candidates:
        name = f"λ = {candidate.scale:<6g}" + (f" {candidate.shape:<10}" if shaped else "")
        bar = "█" * round(BAR * candidate.share)
        mark = "  ← best" if candidate is done.best else ""
        lines.append(f"  {name} {floor_percent(candidate.share):>6} %  {bar}{mark}")
    best = done.best
    given = "" if done.sigma is None or best.shape == "as given" else f' --sigma "{_sigma(done.sigma)}"'
    lines.append(
        f"Use --scale {best.scale:g}{given}, on other inputs: the share above is biased upwards, since these "
        f"inputs selected it."
    )
    if best.reached == 0:
        lines[-1] = (
            "No candidate certifies any input: choose a smaller target, or train the model under noise (`ucan train`)."
        )
    return "\n".join(lines)


def _sigma(sigma: dict[str, float]) -> str:
    return ",".join(f"{name}={value:g}" for name, value in sigma.items())
