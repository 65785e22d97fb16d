"""`ucan demo`: train, certify, audit, compare and report on data that need no download."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucan.choices import norm_word
from ucan.cli import words
from ucan.cli.demos import demo_audio, demo_tables, say
from ucan.cli.progress import Shown
from ucan.cli.report import check_output, write_page
from ucan.cli.train import Training
from ucan.storage import storage

if TYPE_CHECKING:
    from ucan.runs.read import Run

REPORT = "report.html"
TEST_DIGITS = 445
COMPARED_AT = {None: (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), math.inf: (0.0, 0.02, 0.04, 0.06, 0.08, 0.1)}


@dataclass(frozen=True)
class Kind:
    """One step of the demo: its name, the preset it is trained with, and a description of its noise.

    ``norm`` is the norm of its radii (default ℓ2). ``model`` is the step whose trained model it uses (default: its
    own).
    """

    name: str
    preset: str
    about: str
    norm: float | None = None
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
        math.inf,
        "isotropic",
    ),
    Kind(
        "fitted-linf",
        "digits-budget",
        "less noise where the pictures differ and more elsewhere, with the same guarantee against ℓ∞ at the same p",
        math.inf,
    ),
)
# Twenty steps on a tenth of the certificates are enough here; `ucan audit` does more of both by default.
STEPS, DRAWS = 20, 8


class About(StrEnum):
    """The kind of data of a demo."""

    pictures = "pictures"
    tables = "tables"
    audio = "audio"


def demo(
    about: Annotated[About, typer.Argument(help="The kind of data.")] = About.pictures,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the runs and the report.")] = Path(
        "runs/demo"
    ),
    digits: Annotated[int, typer.Option(min=1, max=TEST_DIGITS, help="How many test digits are certified.")] = 100,
    n: Annotated[int, typer.Option(min=1, help="Noisy copies of each digit.")] = 2000,
    attacked: Annotated[int, typer.Option(min=1, help="How many certificates of each run are attacked.")] = 10,
    quiet: words.QuietOption = False,
) -> None:
    """Train five small classifiers under five kinds of noise, certify, attack and compare them, and write a report.

    `ucan demo tables` certifies two tables with noise in each column's own unit. `ucan demo audio` certifies tones with
    noise shaped over frequencies. Both print the results as sentences. The demo with pictures takes about two minutes
    on scikit-learn's digits. The command for each step is printed. Stop at any time (Ctrl-C); run the same command
    again to resume.

    Examples: `ucan demo`, `ucan demo tables`, `ucan demo audio`, `ucan demo --digits 445 --n 10000 --out runs/long`
    """
    from ucan.report.page import build_page, galleries_of
    from ucan.report.sentences import sentences
    from ucan.runs.read import read_runs

    with storage(out):
        out.mkdir(parents=True, exist_ok=True)
    if about is not About.pictures:
        with _one_thread():
            (demo_tables if about is About.tables else demo_audio)(out, n, quiet)
        return
    check_output(out / REPORT)
    try:
        with _one_thread():
            for kind in KINDS:
                _visit(kind, out, digits, n, attacked, quiet)
    except KeyboardInterrupt:
        print(
            f"\nInterrupted; finished work is kept in {out}. Run the same command again to resume.",
            file=sys.stderr,
        )
        raise
    folders = [out / kind.name for kind in KINDS]
    runs = read_runs(folders)
    for norm, radii in COMPARED_AT.items():
        _compare([run for run, kind in zip(runs, KINDS, strict=True) if kind.norm == norm], radii, quiet)
    if not quiet:
        typer.echo(f"$ ucan report {' '.join(map(str, folders))} -o {out / REPORT}\n")
    write_page(out / REPORT, build_page(runs, galleries_of(runs)))
    for sentence in sentences(runs):
        typer.echo(f"{sentence.heading}. {sentence.text}\n")
    typer.echo(f"The report: {out / REPORT}")


def _compare(runs: list[Run], radii: tuple[float, ...], quiet: bool) -> None:
    """Print the table of the runs in one norm."""
    from ucan.report.render import terminal
    from ucan.report.tables import comparison

    if not quiet:
        columns = "" if radii == COMPARED_AT[None] else f" --radii {','.join(f'{r:g}' for r in radii)}"
        typer.echo(f"\n$ ucan compare {' '.join(str(run.folder) for run in runs)}{columns}")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    typer.echo(terminal(comparison(runs, radii), width))


def _visit(kind: Kind, out: Path, digits: int, n: int, attacked: int, quiet: bool) -> None:
    """Train, certify and attack one kind of noise; each step resumes an earlier demo."""
    from ucan.audit import Budget
    from ucan.runs.audit import AuditJob, audit
    from ucan.runs.certify import CertifyJob, certify
    from ucan.runs.read import Run
    from ucan.runs.train import TrainJob, trainer_of

    model, folder = out / f"{kind.model or kind.name}-model", out / kind.name
    say(quiet, f"\n{kind.name}: {kind.about}")
    if kind.model is None:
        say(quiet, f"$ ucan train {kind.preset} -o {shlex.quote(str(model))}")
        job = TrainJob(settings=kind.preset)
        trainer_of(job, model, None if quiet else Training(job.chosen().epochs)).run()
    skip = TEST_DIGITS // digits
    # The ℓ∞ radii are below one step of 1/16, so only real arithmetic gives a useful claim here.
    arithmetic = None if kind.norm is None else "real"
    chosen = "" if kind.norm is None else f" --norm {norm_word(kind.norm)} --arithmetic {arithmetic}"
    places = f"--model {shlex.quote(str(model))} --data digits -o {shlex.quote(str(folder))}"
    say(quiet, f"$ ucan certify {places} --n {n} --skip {skip} --max {digits}{chosen}")
    certify(
        CertifyJob(model=str(model), data="digits", n=n, skip=skip, most=digits, norm=kind.norm, arithmetic=arithmetic),
        folder,
        Shown("certifying", quiet),
    )
    if Run.open(folder).certificates:  # else there is nothing to attack; the report shows a claim that does not hold
        options = f"--max {attacked} --factors 0.999 --steps {STEPS} --draws {DRAWS}"
        say(quiet, f"$ ucan audit {shlex.quote(str(folder))} {options}")
        attack = AuditJob(run=folder, most=attacked, factors=(0.999,), budget=Budget(steps=STEPS, draws=DRAWS))
        audit(attack, progress=Shown("auditing", quiet, "attempt", "attempt"))
    done = Run.open(folder)
    found = {} if done.audit is None else done.audit.broken
    broken = "".join(f"; {count} of {done.attacked(mode)} broken {mode}" for mode, count in found.items())
    say(quiet, f"  scope {done.scope}: {done.certificates} of {done.inputs} digits certified{broken}")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: these networks are small, and more threads are slow on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
