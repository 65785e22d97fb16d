"""`ucan audit`: do a run's certificates survive an adversary?"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ucan import __version__
from ucan.audit import FACTORS, Attempt, Budget, Ledger, Summary, audit_all, in_words, modes_of, summarise
from ucan.audit.images import save_images
from ucan.catalogue import ATTACKS
from ucan.certificate import Certificate
from ucan.cli import words
from ucan.cli.progress import Progress
from ucan.data import Labelled
from ucan.errors import InvalidInput, StoreError
from ucan.fingerprint import weights_hash
from ucan.registry import Registry
from ucan.results import Store
from ucan.results.lock import WriterLock
from ucan.results.rebuild import data_of, pipeline_of
from ucan.rounding import ceil_percent
from ucan.smoothed import SmoothedClassifier


class ModeName(StrEnum):
    """What is attacked."""

    live = "live"
    frozen = "frozen"
    both = "both"


def audit(
    run: Annotated[Path, typer.Argument(help="The folder of a `ucan certify` run.")],
    model: Annotated[str | None, typer.Option(help="The classifier, if not where the run says.")] = None,
    source: Annotated[str | None, typer.Option("--data", help="The inputs, if not where the run says.")] = None,
    weights: words.WeightsOption = None,
    registry: Annotated[
        Path | None,
        typer.Option(help="The registry that the run was made with, if not where it says; a copy of it is attacked."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The audit's folder; RUN/audit if not given.")] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Attack at most MAX certificates.")] = None,
    min_radius: Annotated[float, typer.Option(help="Attack only certificates of at least this radius.")] = 0.0,
    factors: Annotated[str, typer.Option(help="Shares of the certified region to attack in.")] = ",".join(
        map(str, FACTORS)
    ),
    mode: Annotated[
        ModeName,
        typer.Option(help="`live`: the deployed pipeline; `frozen`: its noise held at the clean input; `both`."),
    ] = ModeName.both,
    steps: Annotated[int, typer.Option(help="Steps of an attack.")] = Budget.steps,
    draws: Annotated[int, typer.Option(help="Noise draws that each step averages over.")] = Budget.draws,
    restarts: Annotated[int, typer.Option(help="Starting points of an attack.")] = Budget.restarts,
    check: Annotated[
        int,
        typer.Option(
            help="Fresh votes that decide whether a certificate is broken; up to 100 times as many if it is close."
        ),
    ] = Budget.check,
    level: Annotated[
        float,
        typer.Option(help="Probability of calling a true claim broken, in the first test."),
    ] = Budget.level,
    attack: Annotated[
        str | None,
        typer.Option(
            help=f"The attack: {', '.join(ATTACKS.names())}; if not given, gradient where the classifier has one, else "
            "black-box."
        ),
    ] = None,
    seed: words.SeedOption = 0,
    device: words.DeviceOption = "auto",
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Attack the certificates of a run inside their own regions, as an adversary who knows everything would.

    Finished attempts are kept in the audit's folder: the same command goes on where it stopped. Breaks are kept with all
    that replays them, the worst also as pictures. Exit code 0: no bug. 1: a guarantee does not hold. 2: wrong use.

    Example: `ucan audit runs/mine --max 100 --min-radius 0.5`
    """
    shares, budget = _factors(factors), Budget(steps, draws, restarts, check, level, seed, attack)
    where = words.device_of(device)
    with Store.open(run) as store:
        certificates = _chosen(store, min_radius, most)
        settings = store.config
        dataset = _dataset(settings, source, certificates[-1])
        first = next((c for _, c in _outcomes(store, certificates)), None)
        if first is None:
            raise InvalidInput(f"{run} was imported and holds numbers only: there are no certificates to attack.")
        g = pipeline_of(settings, first, where, model, weights)
        if settings.get("weights_hash") not in (None, weights_hash(g.f.model)):  # before the audit's folder is settled
            raise InvalidInput(
                f"{run} is about other weights: give those that were certified, with --model or --weights."
            )
        config = {"kind": "audit", "ucan": __version__, "weights_hash": weights_hash(g.f.model), **asdict(budget)}
        config["run"] = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        modes = modes_of(first.scope, mode.value)
        with _locked(out or run / "audit") as folder, _memory(registry or settings.get("registry"), first) as memory:
            ledger = Ledger(folder, config)
            cases = ((idx, dataset[idx][0][None].to(where), c) for idx, c in _outcomes(store, certificates))
            todo = sum(_open(ledger.get(i, f, m)) for i in certificates for m in modes for f in shares)
            attempts = _attack(g, cases, ledger, mode.value, shares, budget, memory, todo, quiet)
            pictures = save_images(ledger, attempts)
        certified = len(_chosen(store, 0.0, None))
    summary = summarise(attempts, settings.get("skip") or 1)
    places = {"audit": str(folder), "pictures": [str(path) for path in pictures]}
    if as_json:
        print(json.dumps({"certified": certified, **summary.to_dict(), "attack": attempts[0].attack, **places}))
    else:
        print(f"{certified} certificates in {run}, {summary.attacked} of them attacked.")
        _show(summary, attempts, budget, ledger, len(pictures))
    if summary.is_bug:
        raise typer.Exit(1)


def _attack(
    g: SmoothedClassifier,
    cases: Iterable[tuple[int, torch.Tensor, Certificate]],
    ledger: Ledger,
    mode: str,
    factors: list[float],
    budget: Budget,
    memory: Registry | None,
    todo: int,
    quiet: bool,
) -> list[Attempt]:
    if len(ledger) and not quiet:
        print(f"{len(ledger)} attempts are done already, {todo} to go.", file=sys.stderr)
    broken = 0
    with Progress("auditing", todo, budget.check, quiet) as progress:

        def finished(attempt: Attempt) -> None:
            nonlocal broken
            broken += attempt.broken
            progress.sampled(attempt.total + attempt.again_total)
            progress.finished(f"{broken} broken")

        try:
            return audit_all(g, cases, ledger, mode, factors, budget, finished, memory)
        except KeyboardInterrupt:
            print(f"\nStopped; {len(ledger)} attempts are kept. The same command goes on from there.", file=sys.stderr)
            raise


def _open(record: dict[str, Any] | None) -> bool:
    """Whether an attempt has yet to be made, or to be made again."""
    return record is None or Attempt(**record).tested_once


@contextmanager
def _memory(path: str | Path | None, certificate: Certificate) -> Iterator[Registry | None]:
    """The registry behind a run of scope registry."""
    if certificate.scope != "registry":
        yield None
        return
    if path is None or not Path(path).is_file():
        raise InvalidInput(f"this run was made with a registry, and there is none at {path}: name it with --registry.")
    with Registry(path) as registry:
        yield registry


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """The audit's folder, with no other audit at work in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(folder / ".lock")
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error}. Name another folder with --out.") from error
    try:
        yield folder
    finally:
        lock.release()


def _factors(text: str) -> list[float]:
    try:
        factors = sorted({float(f"{float(part):g}") for part in text.split(",")})  # breaks are kept under six digits
    except ValueError:
        factors = []
    if not factors or not all(0 < factor <= 1 for factor in factors):
        raise InvalidInput(f"--factors wants numbers above 0 and up to 1 with commas between, got {text!r}.")
    return factors


def _chosen(store: Store, min_radius: float, most: int | None) -> list[int]:
    """The numbers of the inputs whose certificates are attacked."""
    columns = store.columns(("idx", "abstained", "radius"))
    large = ~columns["abstained"] & (columns["radius"] > 0) & (columns["radius"] >= min_radius)
    chosen = columns["idx"][large].tolist()[:most]
    if not chosen:
        raise InvalidInput(f"{store.folder} holds no certificate of radius {min_radius:g} or more: nothing to audit.")
    return chosen


def _outcomes(store: Store, indices: list[int]) -> Iterator[tuple[int, Certificate]]:
    for idx in indices:
        outcome = store.outcome(idx)
        if isinstance(outcome, Certificate):
            yield idx, outcome


def _dataset(settings: dict[str, Any], source: str | None, last: int) -> Labelled:
    found = data_of(settings, source)
    if last >= len(found):
        raise InvalidInput(
            f"{found.name} has {len(found)} inputs, but input {last} was certified: are these the same data?"
        )
    return found


def _show(summary: Summary, attempts: list[Attempt], budget: Budget, ledger: Ledger, pictures: int) -> None:
    from rich.console import Console
    from rich.table import Table

    attacks = " and ".join(sorted({attempt.attack for attempt in attempts}))
    title = f"{attacks} attack, {budget.steps} steps, {budget.draws} draws each; broken at level {budget.level:g}"
    table = Table(title=title, title_justify="left")
    for name in ("pipeline", "share of the region", "attacked", "broken", "broken, %"):
        table.add_column(name, justify="left" if name == "pipeline" else "right")
    for tally in summary.tallies:
        percent = ceil_percent(tally.broken / tally.attacked)
        table.add_row(tally.mode, f"{tally.factor:g}", str(tally.attacked), str(tally.broken), percent)
    console = Console(width=None if sys.stdout.isatty() else 120)
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
