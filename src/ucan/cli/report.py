"""`ucan report`: one page with the guarantees of some runs, their sizes and their scopes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ucan.cli import words
from ucan.errors import InvalidInput, MissingExtra
from ucan.storage import storage, write_whole

MARK_WITHIN = 1000  # characters of a page among which a report of ours has its generator tag


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, certified or imported.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write every figure to this folder, as SVG and as PNG.")
    ] = None,
    gallery: Annotated[
        bool, typer.Option("--gallery/--no-gallery", help="Show selected inputs with their noise and their votes.")
    ] = True,
    trust: words.TrustOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is not a report, and existing figures.")
    ] = False,
    quiet: words.QuietOption = False,
) -> None:
    """Write one self-contained page about any set of runs: curves, tables, audits, regions, inputs, and their meaning.

    The page needs no network and no other file. An existing report is replaced; any other file only with --force. An
    audit is shown if it is in the run's folder (RUN/audit).

    Examples: `ucan report runs/ours runs/cohen -o report.html`, `ucan report runs/ours --figures figures`
    """
    from ucan.report.page import build_page, figure_files, galleries_of
    from ucan.report.runs import read_runs
    from ucan.runs.asked import is_ask_run

    check_output(output, force)
    if any(map(is_ask_run, runs)):
        _report_answers(runs, output, figures, trust, quiet)
        return
    if figures is not None:
        check_figures(figures)
    found = read_runs(runs)
    galleries = galleries_of(found, gallery, trust)
    drawn = figure_files(found, galleries) if figures is not None else {}
    if figures is not None:
        _refuse_existing(figures, drawn, force)
    page = build_page(found, galleries)
    write_page(output, page)
    if figures is not None:
        write_figures(figures, drawn)
    if quiet:
        return
    more = f", and {len(drawn)} figures in {figures}" if figures is not None else ""
    typer.echo(f"Report: {output}{more}")


def _report_answers(runs: list[Path], output: Path, figures: Path | None, trust: bool, quiet: bool) -> None:
    """The page on runs of questions."""
    from ucan.report.answers import build_answers_page, read_asked
    from ucan.runs.asked import is_ask_run

    if not all(map(is_ask_run, runs)):
        raise InvalidInput("runs of `ucan ask` and of `ucan certify` need a page each: give one kind at a time.")
    if figures is not None:
        raise InvalidInput("--figures is for runs of `ucan certify`: leave it out.")
    write_page(output, build_answers_page(read_asked(runs, trust)))
    if not quiet:
        typer.echo(f"Report: {output}")


def check_output(path: Path, force: bool = False) -> None:
    """Refuse, before any work, a path that cannot be written or that holds something other than a report."""
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder: give the page's file name, such as {path / 'report.html'}.")
    words.check_ending(path, "a report is an HTML page", ".html", ".htm")
    if not path.parent.is_dir():
        raise InvalidInput(f"the folder {path.parent} does not exist: create it, or give another path with -o.")
    _check_writable(path.parent)
    if path.exists() and not force and not is_report(path):
        raise InvalidInput(
            f"{path} already exists and is not a UCAN report; nothing was written. Use --force to overwrite it."
        )


def is_report(path: Path) -> bool:
    """Whether a file is a page that this command wrote."""
    from ucan.report.page import GENERATOR

    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return GENERATOR in file.read(MARK_WITHIN)
    except OSError:
        return False


def check_figures(folder: Path) -> None:
    """Raise an error, before any work, if the folder cannot be written or the converter is missing."""
    try:
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingExtra("figures as PNG need vl-convert: pip install 'ucan[report]'.") from error
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file: --figures takes a folder.")
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _check_writable(folder)


def write_page(path: Path, page: str) -> None:
    """Write the page atomically."""
    with storage(path):
        write_whole(path, page.encode())


def write_figures(folder: Path, drawn: dict[str, str]) -> None:
    """Every figure as SVG and as PNG, twice as large."""
    import vl_convert

    with storage(folder):
        for name, svg in drawn.items():
            write_whole(folder / f"{name}.svg", svg.encode())
            write_whole(folder / f"{name}.png", vl_convert.svg_to_png(svg, scale=2))


def _refuse_existing(folder: Path, names: dict[str, str], force: bool) -> None:
    there = [f"{name}.{kind}" for name in names for kind in ("svg", "png") if (folder / f"{name}.{kind}").exists()]
    if there and not force:
        raise InvalidInput(
            f"{folder} already holds {', '.join(there[:3])}; nothing was written. Use --force to overwrite."
        )


def _check_writable(folder: Path) -> None:
    with storage(folder), tempfile.TemporaryFile(dir=folder):
        pass
