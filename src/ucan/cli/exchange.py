"""`ucan export` and `ucan import`: write and read results in the usual file formats."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ucan.choices import ALM, SCOPES
from ucan.cli import words
from ucan.errors import InvalidInput


class FileFormat(StrEnum):
    """The formats of an export."""

    tsv = "tsv"
    csv = "csv"
    parquet = "parquet"
    json = "json"
    leaderboard = "leaderboard"


class ScopeName(StrEnum):
    """The scope of imported results."""

    vars().update({name: name for name in (*SCOPES, "unknown")})  # members, as in words.py


def export_run(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    kind: Annotated[
        FileFormat | None, typer.Option("--format", help="The format. Default: by the file extension.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a run's results as TSV, CSV, Parquet or JSON, or its entry for a leaderboard.

    The TSV has the format of `certify.py` (idx, label, predict, radius, correct, time), with radii rounded down. A
    `.json` file next to a TSV or a CSV states the scope of the guarantee. An entry (`--format leaderboard`) has the
    counts at the usual radii and the hashes of weights, config and results; `ucan leaderboard check` checks it.

    Examples: `ucan export runs/ours -o ours.tsv`, `ucan export runs/ours --format leaderboard -o ours.json`
    """
    from ucan.results.formats import write
    from ucan.results.store import Store

    if kind is FileFormat.leaderboard:
        _export_entry(run, output, force)
        return
    ending = output.suffix.lstrip(".")
    extensions = [name.value for name in FileFormat if name is not FileFormat.leaderboard]
    if kind is None and ending not in extensions:
        known = ", ".join(f".{name}" for name in extensions)
        raise InvalidInput(f"{output} has none of the extensions {known}: use one of them, or give --format.")
    chosen = kind.value if kind else ending
    with Store.open(run) as store:
        written = write(store, output, chosen, force)  # type: ignore[arg-type]
        columns, left_out = store.gapless(("idx",))
        behind = f" ({left_out} more after an unfinished input are left out)" if left_out else ""
        count = f"{len(columns['idx'])} results{behind}"
        typer.echo(f"Wrote {' and '.join(map(str, written))}: {count}, scope {store.scope}.")


def _export_entry(run: Path, output: Path, force: bool) -> None:
    """Write the entry of a run, and say what it leaves to the submitter."""
    import os

    from ucan.leaderboard.entry import problems, write_entry
    from ucan.leaderboard.making import entry_of

    if output.exists() and not force:
        raise InvalidInput(f"{output} exists already; nothing was written. Use --force to overwrite.")
    if not output.parent.is_dir():
        raise InvalidInput(f"there is no folder {output.parent} to write {output.name} to: create it first.")
    entry = entry_of(run, Path(os.path.relpath(run, output.parent)).as_posix())
    write_entry(entry, output)
    typer.echo(f"Wrote {output}: {entry.claim.inputs} inputs, scope {entry.claim.scope}.")
    if left := problems(entry):
        typer.echo(f"For you to write into it: {'; '.join(left)}.")


def import_results(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="The result file, or a folder of `.npy` files.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="The run folder to create.")],
    scope: Annotated[
        ScopeName | None, typer.Option(help="The scope of the guarantee. Default: unknown, unless the file states it.")
    ] = None,
    norm: Annotated[
        words.NormName | None, typer.Option(help="The norm of the radii. For rs4a, also selects which radii to read.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run's name in tables. Default: the folder's name.")] = None,
    alm_cap: Annotated[float | None, typer.Option(help=f"The largest scale of the noise, to compare by {ALM}.")] = None,
    isotropic: Annotated[
        bool, typer.Option("--isotropic", help="The noise was isotropic: ALM equals the radius.")
    ] = False,
    certified_at: Annotated[
        float | None, typer.Option(help="The radius that was tested, for the adaptive mode of smoothing-ensembles.")
    ] = None,
) -> None:
    """Create a run folder from another codebase's results, to use it with `ucan compare`.

    Formats are recognised by their headers: `certify.py` of Cohen et al. and its derivatives, ANCER, data-dependent
    smoothing, adaptive randomized smoothing, smoothing-ensembles, rs4a's folder, and the `*_results_*.npy` of the
    paper's own code.

    Example: `ucan import cohen.tsv -o runs/cohen --scope pipeline --isotropic --alm-cap 0.5`
    """
    from ucan.laws import norm_name
    from ucan.results.formats import guarantee
    from ucan.results.imports import import_run

    which = None if norm is None else float(norm.value)
    found = import_run(source, output, scope and scope.value, which, name, alm_cap, isotropic, certified_at)
    measure = "norm not stated" if found.norm is None else f"{norm_name(found.norm)} radii"
    measure = measure if found.budget_hash is None else "factors ε of a budget"
    count = len(found.columns["idx"])
    typer.echo(f"{output}: {count} results in the format of {found.format}, {measure}, scope {found.scope}:")
    typer.echo(f"{guarantee(found.scope)}.")
    for note in found.notes:
        typer.echo(f"Note: {note}.")
