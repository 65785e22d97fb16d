"""`ucan export` and `ucan import`: results to and from the files of the field."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ucan.cli import words
from ucan.errors import InvalidInput


class FileFormat(StrEnum):
    """The formats of an export."""

    tsv = "tsv"
    csv = "csv"
    parquet = "parquet"
    json = "json"


class ScopeName(StrEnum):
    """Whose guarantee imported results are."""

    pipeline = "pipeline"
    frozen = "frozen"
    registry = "registry"
    unknown = "unknown"


def export_run(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    kind: Annotated[FileFormat | None, typer.Option("--format", help="By the file's ending if not given.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a run's results for others: the field's TSV, CSV, Parquet or JSON.

    The TSV is the one that scripts for `certify.py` read (idx, label, predict, radius, correct, time), its radii
    rounded down. Beside a TSV or a CSV stands a `.json` that says whose guarantee the numbers are.

    Examples: `ucan export runs/ours -o ours.tsv`, `ucan export runs/ours --format parquet -o ours.parquet`
    """
    from ucan.results.formats import write
    from ucan.results.store import Store

    ending = output.suffix.lstrip(".")
    if kind is None and ending not in list(FileFormat):
        known = ", ".join(f".{name}" for name in FileFormat)
        raise InvalidInput(f"{output} ends in none of {known}: give it such an ending, or say --format.")
    chosen = kind.value if kind else ending
    with Store.open(run) as store:
        written = write(store, output, chosen, force)  # type: ignore[arg-type]
        columns, left_out = store.gapless(("idx",))
        behind = f" ({left_out} more behind an unfinished input are left out)" if left_out else ""
        count = f"{len(columns['idx'])} results{behind}"
        typer.echo(f"Wrote {' and '.join(map(str, written))}: {count}, scope {store.scope}.")


def import_results(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="The result file, or a folder of `.npy` files.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="The run folder to make.")],
    scope: Annotated[
        ScopeName | None, typer.Option(help="Whose guarantee these results are; unknown if nobody says.")
    ] = None,
    norm: Annotated[
        words.NormName | None, typer.Option(help="The norm of the radii; also picks one of rs4a's.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What tables call it; the folder's name if not given.")] = None,
    alm_cap: Annotated[float | None, typer.Option(help="The largest scale of the noise, to compare by ALM.")] = None,
    isotropic: Annotated[
        bool, typer.Option("--isotropic", help="The noise was isotropic: ALM equals the radius.")
    ] = False,
    certified_at: Annotated[
        float | None, typer.Option(help="The radius that smoothing-ensembles' adaptive mode was asked to prove.")
    ] = None,
) -> None:
    """Make a run of another codebase's results, so that they stand beside your own in `ucan compare`.

    Known by their headers: `certify.py` of Cohen et al. and its family, ANCER, data-dependent smoothing, adaptive
    randomized smoothing, smoothing-ensembles, rs4a's folder, and the `*_results_*.npy` of the paper's own code.

    Example: `ucan import cohen.tsv -o runs/cohen --scope pipeline --isotropic --alm-cap 0.5`
    """
    from ucan.laws import norm_name
    from ucan.results.formats import guarantee
    from ucan.results.imports import import_run

    which = None if norm is None else float(norm.value)
    found = import_run(source, output, scope and scope.value, which, name, alm_cap, isotropic, certified_at)
    measure = "norm not stated" if found.norm is None else f"{norm_name(found.norm)} radii"
    count = len(found.columns["idx"])
    typer.echo(f"{output}: {count} results in the format of {found.format}, {measure}, scope {found.scope}:")
    typer.echo(f"{guarantee(found.scope)}.")
    for note in found.notes:
        typer.echo(f"Note: {note}.")
