"""`ucan compare`: the field's tables for any set of runs."""

from __future__ import annotations

import itertools
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ucan.choices import ALM
from ucan.cli import words
from ucan.errors import InvalidInput
from ucan.storage import storage, write_whole


class At(StrEnum):
    """The measure that certified accuracy is a function of."""

    radius = "radius"
    sigma = "sigma"
    alm = "alm"


class Look(StrEnum):
    """The table's formats."""

    terminal = "terminal"
    markdown = "markdown"
    latex = "latex"


ENDINGS = {".md": Look.markdown, ".tex": Look.latex}


def compare(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Run folders, certified or imported.")
    ] = None,
    at: Annotated[
        At | None,
        typer.Option(
            "--at",
            help=f"Certified accuracy by `radius`; by `sigma`, R, the radius in units of Σ; or by `alm`, {ALM}, the size of "
            "the region. Default: the first of these on which not everything is 0.",
        ),
    ] = None,
    radii: Annotated[
        str | None,
        typer.Option(
            help="The columns, separated by commas. Default: 0 to 2.25 in steps of 0.25, or as far as it goes."
        ),
    ] = None,
    look: Annotated[
        Look | None,
        typer.Option(
            "--format",
            help="The table's format. Default: by the file extension (`.md`, `.tex`), else terminal.",
        ),
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="A run to measure the improvement against. Can be repeated."),
    ] = None,
    envelope: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=RUN,RUN", help="A row with the best of several runs. Can be repeated."),
    ] = None,
    bands: Annotated[bool, typer.Option("--bands", help="Add 95 % confidence limits over the inputs.")] = False,
    digits: Annotated[int, typer.Option(min=0, max=6, help="Decimals of a percentage.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Compare runs: certified accuracy in %, rounded down, by radius, in units of Σ or by ALM.

    The scope and the ALM cap have their own columns. The best value within a scope is bold (or marked with a star).

    Examples: `ucan compare runs/ours runs/cohen`,
    `ucan compare runs/ours --baseline runs/cohen --at alm --format latex -o table.tex`,
    `ucan compare --envelope "Cohen=runs/s025,runs/s050,runs/s100" runs/ours`
    """
    from ucan.report.render import render
    from ucan.report.tables import RADII, comparison, first_axis
    from ucan.runs.read import Run

    ours, base = [Run.open(run) for run in runs or []], [Run.open(run) for run in baseline or []]
    best_of = {name: [Run.open(run) for run in some] for name, some in map(parse_envelope, envelope or [])}
    metric, fitting = first_axis([*ours, *base, *itertools.chain.from_iterable(best_of.values())])
    if at is not None:
        metric, fitting = at.value, fitting if at.value == metric else RADII
    if metric != "radius" and at is None:
        shown = "in units of Σ" if metric == "sigma" else "by ALM"
        print(f"By radius everything beyond 0 is 0 %: shown {shown} instead (--at radius).", file=sys.stderr)
    table = comparison(
        ours,
        fitting if radii is None else list(words.numbers_of("--radii", radii)),
        metric,
        baselines=base,
        envelopes=best_of,
        bands=bands,
        digits=digits,
    )
    look = look or ENDINGS.get("" if output is None else output.suffix.lower(), Look.terminal)
    width = shutil.get_terminal_size().columns if output is None and sys.stdout.isatty() else None
    text = render(table, look.value, width)
    if output is None:
        typer.echo(text, nl=False)
        return
    if output.exists() and not force:
        raise InvalidInput(f"{output} already exists; nothing was written. Use --force to overwrite it.")
    with storage(output):
        write_whole(output, text.encode())
    typer.echo(f"Wrote {output}, as {look.value}.")


def parse_envelope(text: str) -> tuple[str, list[str | Path]]:
    """NAME and the runs of NAME=RUN,RUN."""
    name, equals, runs = text.partition("=")
    folders: list[str | Path] = [part.strip() for part in runs.split(",") if part.strip()]
    if not (name.strip() and equals and folders):
        raise InvalidInput(f"--envelope takes NAME=RUN,RUN, got {text!r}.")
    return name.strip(), folders
