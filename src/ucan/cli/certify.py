"""`ucan certify`: certify a classifier on a data set; each result is stored at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucan.cli import words
from ucan.cli.progress import Shown
from ucan.errors import InvalidInput

if TYPE_CHECKING:
    from ucan.runs.certify import Certified
    from ucan.runs.forecast import Planned


def certify(
    model: words.ModelOption,
    source: words.DataOption,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The run's folder (an interrupted run resumes), or a `.tsv` file next to it."),
    ] = None,
    weights: words.WeightsOption = None,
    split: words.SplitOption = "test",
    size: words.SizeOption = None,
    channels: words.ChannelsOption = None,
    unit: words.UnitOption = None,
    target: words.TargetOption = None,
    row_id: words.IdOption = None,
    train: words.TrainTableOption = None,
    sigma: words.SigmaOption = None,
    hold: words.HoldOption = None,
    vary: words.VaryOption = None,
    law: words.LawOption = None,
    scale: words.ScaleOption = None,
    exponent: words.ExponentOption = None,
    noise: words.NoiseOption = None,
    norm: words.NormOption = None,
    budget: words.BudgetOption = None,
    n0: Annotated[int, typer.Option(help="Number of samples that choose the class.")] = 100,
    n: Annotated[
        int,
        typer.Option(
            help="Number of samples that bound its probability. A run with `--bound anytime`, or with --stop in "
            "percent, can be continued with a larger N and keeps its samples."
        ),
    ] = 100_000,
    alpha: words.AlphaOption = 0.001,
    bound: Annotated[
        str | None,
        typer.Option(
            help="`binary`, the default; `randomised`, which gains a little by a random number that follows from the "
            "seed; `two-class`, which also bounds the runner-up; or `anytime`, which holds for every n at once, so that an "
            "input may be certified again with more samples; for splitting noise `exact`, which counts all draws. With "
            "--stop only `anytime`: the rule has its own."
        ),
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option(
            help="Stop sampling an input early: when it is decided whether its radius reaches each of these radii "
            "(`0.5,1.0`; in several norms at once `0.5,linf:0.03`), or when its radius is within this percentage of what "
            "more samples could give (`5%`)."
        ),
    ] = None,
    seed: words.NoiseSeedOption = "0",
    family: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of certificates that share α, fixed in advance: each is made at α/FAMILY, and all of the "
            "run's certificates are true at once with probability at least 1 − α.",
        ),
    ] = None,
    device: words.DeviceOption = "auto",
    precision: words.PrecisionOption = None,
    arithmetic: words.ArithmeticOption = None,
    backend: words.BackendOption = words.BackendName("auto"),
    classes: words.ClassesOption = None,
    class_names: words.ClassNamesOption = None,
    model_id: words.ModelIdOption = None,
    trust: words.TrustOption = False,
    normalise: words.NormaliseOption = None,
    batch_size: words.BatchOption = None,
    skip: words.SkipOption = 1,
    most: words.MaxOption = None,
    certificates: words.CertificatesOption = False,
    registry: Annotated[
        Path | None,
        typer.Option(
            help="A file that stores answers and their regions (scope `registry`): an input inside a stored region "
            "gets that region's answer, and a new region never overlaps a region with another answer."
        ),
    ] = None,
    cluster: words.ClusterOption = None,
    workers: words.WorkersOption = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="30s|10m|2h", help="Start no new input after this time. Run the same command again to continue."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and estimate the time; write nothing.")
    ] = False,
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Certify every input: a prediction and a region in which it provably does not change.

    Each result is stored in the run's folder at once. Stop at any time; run the same command again to resume.
    `results.tsv` in that folder is the usual table of the field (idx, label, predict, radius, correct, time; −1 is an
    abstention).

    Examples:
    `ucan certify --model mymodels:resnet --data images/ --scale 0.25`

    `ucan certify --model net.onnx --data test.npz --law laplace --norm 1 --n 10000 --max 100 -o run.tsv`

    `ucan certify --model mymodels:resnet --data images/ --size 224 --stop 0.5,1.0 --precision bf16`

    `ucan certify --model mymodels:resnet --data images/ --size 224 --cluster auto`

    `ucan certify --model runs/digits-budget --data digits --budget 1`

    `ucan certify --model credit.skops --data loans.csv --target approved --id customer --train train.csv`
    """
    options = locals()
    from ucan.runs.certify import CertifyJob
    from ucan.runs.certify import certify as run

    job = words.job_of(CertifyJob, options, ("dry_run",), bound=_bound(bound, stop), time=words.seconds_of(time))
    if dry_run:
        from ucan.runs.forecast import forecast

        print(planned_in_words(forecast(job, out, Shown("certifying", quiet))))
        return
    with words.results_apart(cluster):
        done = run(job, out, Shown("certifying", quiet))
    print(json.dumps(done.to_dict()) if as_json else in_words(done))


def _bound(name: str | None, stop: str | None) -> Any:
    """The bound asked for; one that a stopping rule would not use is refused."""
    if stop is not None and name not in (None, "anytime"):
        raise InvalidInput(
            f"--stop has a bound of its own, so that --bound {name} would not be used: leave it out, or give `anytime`, with "
            "which sampling can be continued beyond n."
        )
    return name or "binary"


def planned_in_words(planned: Planned) -> str:
    """Describe a dry run: inputs, samples and time."""
    from ucan.arithmetic import arithmetic_name
    from ucan.cli.progress import duration

    left = planned.inputs - planned.done
    lines = [
        f"All checks passed. {words.counted(left, 'input')} left, {planned.samples:,} samples each, about "
        f"{planned.rate:,.0f} samples a second: {duration(planned.seconds)}, less if sampling stops early.",
        f"Results would go to {planned.run}. Arithmetic {arithmetic_name(planned.arithmetic)}.",
    ]
    if planned.class_names:
        lines.append(f"Classes: {', '.join(planned.class_names[:10])}{', …' if len(planned.class_names) > 10 else ''}.")
    if planned.varying:
        noise = ", ".join(f"{name} {value:g}" for name, value in planned.varying.items())
        lines.append(f"Noise: {noise}.")
    if planned.held:
        lines.append(f"Held columns, whose changes are not covered: {', '.join(planned.held)}.")
    return "\n".join(lines)


def in_words(done: Certified) -> str:
    """Summarise the results of a certification."""
    from ucan.laws import norm_name
    from ucan.report.basis import rule_in_words
    from ucan.rounding import floor_percent, floor_significant
    from ucan.stop_option import parse_stop

    if not done.inputs:
        return "No input was certified."
    radius = done.median_correct_radius
    claim = f"with an {norm_name(done.norm)} radius of"
    if done.budget is not None:
        claim = f"under ε times {done.budget.name}, ε =" if done.rows else f"under {done.budget.words()}, ε ="
    # A ball over columns with different units is meaningless, so tables are described column by column.
    middle = f", half of them {claim} {floor_significant(radius, 4)} or more" if radius is not None else ""
    middle = "" if done.rows and done.budget is None else middle
    of = "" if done.labelled == done.inputs else f" of the {done.labelled} whose label is known"
    share = (
        f"{done.inputs - done.abstained} with a certificate, right or wrong (the labels are unknown)"
        if done.accuracy is None
        else f"{floor_percent(done.accuracy)} %{of} certified correctly{middle}"
    )
    stopped = rule_in_words(parse_stop(done.stop), done.budget is not None)
    samples = f"{done.mean_samples:,.0f} samples an input on average"
    early = f"{stopped[0].upper()}{stopped[1:]}. {samples}.\n" if stopped else ""
    return (
        f"{words.counted(done.inputs, 'input')}: {share}; {words.counted(done.abstained, 'abstention')}.\n{early}"
        f"{_rows(done)}{_ceiling(done)}"
        f"{words.scope_in_words(done.scope)}\n{_changes(done.arithmetic)}"
        f"Results: {done.tsv} (run folder {done.run}){_files(done)}"
    )


def _files(done: Certified) -> str:
    """Name the folder of the certificates' files, if they were asked for."""
    return "" if done.certificates is None else f"\nCertificates, one file an input: {done.certificates}"


def _rows(done: Certified) -> str:
    """Describe the first rows of a table, one line each, and name the file with all of them, or with all inputs by name."""
    told = "".join(f"{row.words()}\n" for row in done.rows)
    listed = "Every row and column" if done.rows else "Every input by its name"
    more = f"{listed}: {done.sheet}\n" if done.sheet is not None else ""
    return f"{told}{more}"


def _ceiling(done: Certified) -> str:
    """Say that more samples would give larger radii, if most certificates have all n votes."""
    certified = done.inputs - done.abstained
    if certified == 0 or 2 * done.at_ceiling < certified or done.stop is not None:
        return ""
    which = (
        f"{done.at_ceiling} of {certified} radii are" if done.at_ceiling < certified else f"All {certified} radii are"
    )
    which = "The radius is" if certified == 1 else which
    return f"{which} the largest that n = {done.n:,} can prove: use more samples (--n) for larger ones.\n"


def _changes(arithmetic: str) -> str:
    """Say for which changes the guarantee holds, if not for all; one line."""
    from ucan.arithmetic import arithmetic_name, changes_in_words

    said = changes_in_words(arithmetic)
    return (
        f"Arithmetic {arithmetic_name(arithmetic)}: it holds {said}, and is sound in floating point.\n" if said else ""
    )
