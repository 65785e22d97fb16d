"""`ucan audit`: attack a run's certificates."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucan.catalogue import ATTACKS
from ucan.cli import words
from ucan.cli.progress import Shown
from ucan.errors import InvalidInput

if TYPE_CHECKING:
    from ucan.audit import Attempt, Budget, Ledger, Summary
    from ucan.runs.ask_audit import Tried


class ModeName(StrEnum):
    """What is attacked."""

    live = "live"
    frozen = "frozen"
    both = "both"


def audit(
    run: Annotated[Path, typer.Argument(help="The folder of a `ucan certify` or `ucan ask` run.")],
    model: words.MovedModelOption = None,
    source: words.MovedDataOption = None,
    weights: words.WeightsOption = None,
    registry: Annotated[
        Path | None,
        typer.Option(help="The run's registry, if it has moved since the run. A copy of it is attacked."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The audit's folder. Default: RUN/audit; a published run needs one."),
    ] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Attack at most MAX certificates.")] = None,
    min_radius: Annotated[float, typer.Option(help="Attack only certificates of at least this radius.")] = 0.0,
    factors: Annotated[str, typer.Option(help="Fractions of the certified region to attack at.")] = "0.5,0.9,0.999",
    mode: Annotated[
        ModeName,
        typer.Option(
            help="`live`: the deployed pipeline; `frozen`: the classifier with its noise frozen at the clean "
            "input; `both`."
        ),
    ] = ModeName.both,
    steps: Annotated[int, typer.Option(help="Steps per attack.")] = 40,
    draws: Annotated[int, typer.Option(help="Noise draws that each step averages over.")] = 16,
    restarts: Annotated[int, typer.Option(help="Starting points per attack.")] = 2,
    check: Annotated[
        int,
        typer.Option(
            help="Fresh votes that decide whether a certificate is broken. Up to 100 times as many are drawn if it is "
            "close."
        ),
    ] = 2000,
    level: Annotated[
        float,
        typer.Option(help="Probability that the first test calls a true claim broken."),
    ] = 0.001,
    method: Annotated[
        str | None,
        typer.Option(
            "--attack",
            help=f"The attack: {', '.join(ATTACKS.names())}. Default: gradient if the classifier has gradients, else "
            f"black-box.",
        ),
    ] = None,
    seed: words.SeedOption = 0,
    trust: words.TrustOption = False,
    device: words.DeviceOption = "auto",
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Attack the certificates of a run inside their certified regions, as an adversary with full knowledge would.

    Finished attempts are stored in the audit's folder. If it is interrupted, run the same command again to resume.
    Breaks are stored with everything needed to replay them; the worst are also saved as pictures. Exit codes: 0, no
    bug; 1, a guarantee does not hold; 2, wrong usage.

    Example: `ucan audit runs/mine --max 100 --min-radius 0.5`
    """
    from ucan.audit import Budget
    from ucan.runs.audit import AuditJob
    from ucan.runs.audit import audit as attack

    job = AuditJob(
        run=run,
        model=model,
        data=source,
        weights=weights,
        registry=registry,
        most=most,
        min_radius=min_radius,
        factors=_factors(factors),
        mode=mode.value,
        budget=Budget(steps, draws, restarts, check, level, seed, method),
        device=device,
        trust=trust,
    )
    from ucan.runs.ask_audit import audit_answers
    from ucan.runs.asked import is_ask_run

    if is_ask_run(run):
        tried = audit_answers(job, out, Shown("auditing", quiet, "attempt", "attempt"))
        print(json.dumps(tried.to_dict()) if as_json else _tried_in_words(tried))
        if tried.bug:
            raise typer.Exit(1)
        return
    done = attack(job, out, Shown("auditing", quiet, "attempt", "attempt"))
    if as_json:
        print(json.dumps(done.to_dict()))
    else:
        print(f"{done.certified} certificates in {run}, {done.summary.attacked} of them attacked.")
        _show(done.summary, done.attempts, job.budget, done.ledger, len(done.pictures))
    if done.summary.is_bug:
        raise typer.Exit(1)


def _tried_in_words(tried: Tried) -> str:
    """What was found about the answers of a run of a question."""
    counts = (
        f"{words.counted(tried.attacked, 'answer')} attacked, {tried.broken} broken, {tried.allowed} allowed by chance."
    )
    alone = len({one.idx for one in tried.tries}) - tried.attacked
    if alone:
        counts += (
            f" {words.counted(alone, 'answer')} could not be attacked: no other input was found inside the region."
        )
    void = (
        f"The stated range of the outputs is false for {words.counted(tried.outside_range, 'answer')}: the model gave numbers "
        "outside of it. Intervals that end where the range ends are void: ask again with the true --range, or clip the "
        "model's output."
    )
    return "\n".join([counts, *([void] if tried.outside_range else []), f"Attempts and breaks: {tried.folder}"])


def _factors(text: str) -> list[float]:
    try:
        factors = sorted({float(f"{float(part):g}") for part in text.split(",")})  # breaks are stored under six digits
    except ValueError:
        factors = []
    if not factors or not all(0 < factor <= 1 for factor in factors):
        raise InvalidInput(f"--factors takes comma-separated numbers above 0 and up to 1, got {text!r}.")
    return factors


def _show(summary: Summary, attempts: Sequence[Attempt], budget: Budget, ledger: Ledger, pictures: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from ucan.audit import in_words
    from ucan.rounding import ceil_percent

    attacks = " and ".join(sorted({attempt.attack_name for attempt in attempts}))
    title = f"{attacks} attack, {budget.steps} steps, {budget.draws} draws each; broken at level {budget.level:g}"
    table = Table(title=title, title_justify="left")
    for name in ("pipeline", "share of the region", "attacked", "broken", "broken, %"):
        table.add_column(name, justify="left" if name == "pipeline" else "right")
    for tally in summary.tallies:
        percent = ceil_percent(tally.broken / tally.attacked)
        table.add_row(
            f"{tally.mode} {tally.part}".strip(), f"{tally.factor:g}", str(tally.attacked), str(tally.broken), percent
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    if summary.tallies:
        console.print(table)
    for line in in_words(summary):
        console.print(line, highlight=False, soft_wrap=True)
    for attempt in summary.bugs[:5]:
        path = ledger.path_of(attempt.to_dict())
        console.print(
            f"  input {attempt.idx}: class {attempt.prediction} has {attempt.hits} of {attempt.total} votes at "
            f"{attempt.size:.4f} of its region; replay: {path}",
            highlight=False,
            soft_wrap=True,
        )
    kept = f", the worst {pictures} as pictures" if pictures else ""
    console.print(f"Attempts and breaks{kept}: {ledger.folder}", highlight=False, soft_wrap=True)
