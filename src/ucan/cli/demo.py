"""`ucan demo`: the whole tour on data that need no download: train, certify, audit, compare, report."""

from __future__ import annotations

import io
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ucan.cli import words
from ucan.cli.audit import audit
from ucan.cli.certify import certify
from ucan.cli.report import check_output, write_page
from ucan.cli.train import train
from ucan.errors import StoreError
from ucan.report.page import build_page, galleries_of
from ucan.report.render import terminal
from ucan.report.runs import read_runs
from ucan.report.sentences import sentences
from ucan.report.tables import comparison

REPORT = "report.html"
TEST_DIGITS = 445
COMPARED_AT = {None: (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), words.NormName.linf: (0.0, 0.02, 0.04, 0.06, 0.08, 0.1)}


@dataclass(frozen=True)
class Kind:
    """One stop of the tour: a name, the preset it is trained by, and what its noise does.

    ``norm`` is that of its radii, ℓ2 if not given; ``model`` is the stop whose trained model it takes, its own if not given.
    """

    name: str
    preset: str
    about: str
    norm: words.NormName | None = None
    model: str | None = None


KINDS = (
    Kind("isotropic", "digits-isotropic", "the same noise in every pixel"),
    Kind("dataset-wise", "digits-dataset", "a scale and an offset per pixel, learned once for all pictures"),
    Kind("certification-wise", "digits-certification", "a scale and an offset computed from each picture"),
    Kind("basis-wise", "digits-basis", "less noise along what the pictures have in common, more elsewhere"),
    Kind(
        "isotropic-linf",
        "digits-isotropic",
        "the first classifier again, now against changes of every pixel by a little (ℓ∞)",
        words.NormName.linf,
        "isotropic",
    ),
    Kind(
        "fitted-linf",
        "digits-budget",
        "less noise where the pictures differ and more elsewhere, with the same guarantee against ℓ∞ at the same p",
        words.NormName.linf,
    ),
)
# Twenty steps on the tenth of the certificates show what a full audit shows; `ucan audit` has more of both.
ATTACK: dict[str, Any] = {"factors": "0.999", "steps": 20, "draws": 8}


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the runs and the report.")] = Path(
        "runs/demo"
    ),
    digits: Annotated[int, typer.Option(min=1, max=TEST_DIGITS, help="How many test digits are certified.")] = 100,
    n: Annotated[int, typer.Option(min=1, help="Noisy copies of each digit.")] = 2000,
    attacked: Annotated[int, typer.Option(min=1, help="How many certificates of each run are attacked.")] = 10,
    quiet: words.QuietOption = False,
) -> None:
    """Train five small classifiers under five kinds of noise, certify, attack and compare them, and make the report.

    Two minutes or so on scikit-learn's digits. Every step is a command of its own, and is shown. Stop it at any time
    (Ctrl-C): the same command goes on from there, and what is done is not done again.

    Examples: `ucan demo`, `ucan demo --digits 445 --n 10000 --out runs/long`
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{out} cannot be made: {error}. Name another folder with --out.") from error
    check_output(out / REPORT)
    try:
        with _one_thread():
            for kind in KINDS:
                _visit(kind, out, digits, n, attacked, quiet)
    except KeyboardInterrupt:
        print(f"\nThe demo stopped; what is done is kept in {out}, and ucan demo goes on from there.", file=sys.stderr)
        raise
    folders = [out / kind.name for kind in KINDS]
    runs = read_runs(folders)
    for norm, radii in COMPARED_AT.items():
        _compare([out / kind.name for kind in KINDS if kind.norm == norm], radii, quiet)
    if not quiet:
        typer.echo(f"$ ucan report {' '.join(map(str, folders))} -o {out / REPORT}\n")
    write_page(out / REPORT, build_page(runs, galleries_of(runs)))
    for sentence in sentences(runs):
        typer.echo(f"{sentence.heading}. {sentence.text}\n")
    typer.echo(f"The report: {out / REPORT}")


def _compare(folders: list[Path], radii: tuple[float, ...], quiet: bool) -> None:
    """The table of the runs of one norm."""
    if not quiet:
        columns = "" if radii == COMPARED_AT[None] else f" --radii {','.join(f'{r:g}' for r in radii)}"
        typer.echo(f"\n$ ucan compare {' '.join(map(str, folders))}{columns}")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    typer.echo(terminal(comparison(folders, radii), width))


def _visit(kind: Kind, out: Path, digits: int, n: int, attacked: int, quiet: bool) -> None:
    """Train, certify and attack one kind of noise; each step goes on where an earlier demo stopped."""
    model, run = out / f"{kind.model or kind.name}-model", out / kind.name
    if not quiet:
        typer.echo(f"\n{kind.name}: {kind.about}")
    if kind.model is None:
        _step(quiet, train, kind.preset, out=model)
    chosen: dict[str, Any] = {"skip": TEST_DIGITS // digits, "most": digits}
    if kind.norm is not None:  # below one step of 1/16, whole steps would say nothing: any change counts here
        chosen |= {"norm": kind.norm, "arithmetic": words.ArithmeticName.real}
    _step(quiet, certify, model=str(model), source="digits", out=run, n=n, **chosen)
    (done,) = read_runs([run])
    if done.certificates:  # else there is nothing to attack
        with suppress(typer.Exit):  # a claim that does not stand: the report says so
            _step(quiet, audit, run, most=attacked, **ATTACK)
        (done,) = read_runs([run])
    if not quiet:
        found = {} if done.audit is None else done.audit.broken
        broken = "".join(f"; {count} of {done.attacked(mode)} broken {mode}" for mode, count in found.items())
        typer.echo(f"  scope {done.scope}: {done.certificates} of {done.inputs} digits certified{broken}")


def _step(quiet: bool, command: Callable[..., None], *arguments: Any, **options: Any) -> None:
    """Show a command as one would type it, and run it; what it says itself is left to those who do."""
    if not quiet:
        names = {"source": "--data", "out": "-o", "most": "--max"}
        flags = [part for key, value in options.items() for part in (names.get(key, f"--{key}"), str(value))]
        typer.echo(f"$ ucan {command.__name__} {shlex.join([*map(str, arguments), *flags])}")
        sys.stdout.flush()  # before the progress, which goes to standard error
    with redirect_stdout(io.StringIO()):
        command(*arguments, **options, quiet=quiet)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for these small networks: more gain little, and lose a lot where others use the machine as well."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
