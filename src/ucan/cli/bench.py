"""`ucan bench`: measure the cost of certification on this machine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucan.cli import words
from ucan.errors import InvalidInput
from ucan.models.names import NAMES
from ucan.storage import storage, write_whole

if TYPE_CHECKING:
    from rich.table import Table

    from ucan.bench import Stopped
    from ucan.deciding import Kept, OnData, Simulated
    from ucan.runs.bench import Benched
    from ucan.targets import Judged
    from ucan.timing import Row

MODEL_HELP = (
    "The classifier to measure, several by several `--model`: `package.module:name` (a module or a function that returns "
    f"one), the folder of a trained run, or one of {', '.join(NAMES)}."
)


def bench(
    model: Annotated[list[str], typer.Option(help=MODEL_HELP)] = ["resnet20"],  # noqa: B006
    weights: words.WeightsOption = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="The input's shape, with one model. Default: that of the trained run or the built-in model, else 3,32,32."
        ),
    ] = None,
    n: Annotated[int, typer.Option(min=1000, help="Samples per certificate.")] = 10_000,
    precision: Annotated[str, typer.Option(help="Precisions to measure, from fp32, tf32, bf16.")] = "fp32",
    backend: Annotated[
        str | None,
        typer.Option(
            help="Backends to measure, from eager, compile, tuned, onnxruntime, openvino. Default: eager, compile, and on "
            "a CPU the other runtimes that are installed."
        ),
    ] = None,
    shapes: Annotated[bool, typer.Option(help="Also measure every law and every Σ.")] = True,
    art: Annotated[
        bool, typer.Option(help="Also measure the Adversarial Robustness Toolbox, if it is installed.")
    ] = True,
    decisions: Annotated[
        int,
        typer.Option(
            min=0, help="Simulated inputs over which the votes of decisions are set beside the limit; 0: not at all."
        ),
    ] = 1000,
    source: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Also decide ten radii for each of these inputs in one pass by the last model, which should be trained, and "
            "certify some of them again in bf16 from votes in pairs.",
        ),
    ] = None,
    most: words.MaxOption = None,
    before: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A checkout of an earlier version: its own `ucan bench` measures the first model with the first backend, "
            "before and after this one.",
        ),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|URL",
            help="Measure a service instead: `ucan serve` of this run, or one that runs at this address (UCAN_TOKEN is its "
            "token).",
        ),
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="With --serve: how many clients ask at once.")] = 32,
    seconds: Annotated[float, typer.Option(help="With --serve: for how long they ask.")] = 30.0,
    device: words.DeviceOption = "auto",
    trust: words.TrustOption = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Also write the numbers as JSON. Until the end they are in OUT.part; an interrupted or failed run leaves "
            "them there, and OUT as it was.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    quiet: words.QuietOption = False,
) -> None:
    """Measure the speed of certification, relative to the bare forward pass, the textbook loop and other libraries.

    The last table says what docs/speed.md wants of the rows that were measured, and what was found. With `-o OUT`, the file
    OUT.part holds what there is after every part, also if a later one fails; at the end OUT takes its place.

    Examples:
    `ucan bench --model resnet50 --n 100000 --precision bf16 --backend compile`

    `ucan bench --model resnet50 --model runs/mine --data cifar10 --n 100000 --precision bf16`
    """
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise InvalidInput(f"--out takes a file in an existing folder, got {out}.")
    if serve is not None:
        _bench_service(serve, clients, seconds, device, trust, out, as_json)
        return
    from rich.console import Console

    from ucan.runs.bench import BenchJob
    from ucan.runs.bench import bench as measured

    job = BenchJob(
        models=tuple(model), weights=weights, shape=_shape(shape), n=n, precisions=_listed(precision),
        backends=_backends(backend), shapes=shapes, art=art, decisions=decisions, data=source, most=most,
        before=before, device=device, trust=trust,
    )  # fmt: skip

    def keep(found: Benched) -> None:
        if out is not None and not found.is_empty:
            _write(_part(out), found)

    console = Console(stderr=True, quiet=quiet)
    found = measured(job, console.status, keep)
    if out is not None and found.complete:
        _write(out, found)
        _part(out).unlink(missing_ok=True)
    elif out is not None:
        console.print(f"Not complete: what was measured is in {_part(out)}")
    for line in found.left_out:
        console.print(f"Left out: {line}")
    if as_json:
        typer.echo(_record(found), nl=False)
    else:
        _show(found)
    if found.ended is not None:
        raise found.ended


def _part(out: Path) -> Path:
    return out.with_name(f"{out.name}.part")


def _write(path: Path, found: Benched) -> None:
    with storage(path):
        write_whole(path, _record(found).encode())


def _listed(words: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in words.split(",") if word.strip())


def _backends(given: str | None) -> tuple[str, ...]:
    """Those named; none, for the usual ones, if the option is not given."""
    found = _listed(given or "")
    if given is not None and not found:
        raise InvalidInput("--backend names no backend: leave it out for the usual ones.")
    return found


def _shape(given: str | None) -> tuple[int, ...] | None:
    try:
        return None if given is None else tuple(int(part) for part in given.split(","))
    except ValueError as error:
        raise InvalidInput(f"--shape takes numbers such as 3,32,32, got {given!r}.") from error


def _record(found: Benched) -> str:
    return json.dumps(found.to_dict(), indent=1) + "\n"


def _bench_service(
    target: str, clients: int, seconds: float, device: str, trust: bool, out: Path | None, as_json: bool
) -> None:
    """Load a service, and print what its clients saw."""
    from ucan.service.client import Client
    from ucan.service.load import RANDOM, Measured, generate, measure_run, random_inputs

    if target.startswith(("http://", "https://")):
        measured = Measured(generate(target, random_inputs(Client(target).about()["shape"]), clients, seconds), RANDOM)
    else:
        measured = measure_run(target, clients, seconds, device, trust=trust)
    record, load = json.dumps(measured.to_dict(), indent=1) + "\n", measured.load
    if out is not None:
        with storage(out):
            write_whole(out, record.encode())
    if as_json:
        typer.echo(record, nl=False)
        return
    typer.echo(
        f"{clients} clients for {load.seconds:.0f} s: {load.answers:,} answers, {load.abstentions:,} of them abstentions; "
        f"{load.rate:.1f} per second. Refused: {load.statuses or 'none'}. Sent: {measured.inputs}.\n"
        f"Latency: median {_ms(load.median)} ms, 99 % within {_ms(load.p99)} ms, slowest "
        f"{_ms(load.slowest)} ms. The clients took {load.client_seconds:.1f} s of processor time."
    )
    if load.server_seconds is not None and load.server_memory is not None and measured.alone is not None:
        first, last = load.server_memory
        typer.echo(
            f"The service took {load.server_seconds:.1f} s of processor time: {load.per_processor_second:.1f} certificates "
            f"per processor second, {measured.ratio:.2f} of the {measured.alone:.1f} of certify alone. Memory: {first:.0f} "
            f"MiB at the beginning, {last:.0f} MiB at the end."
        )


def _ms(seconds: float) -> str:
    """Milliseconds, rounded up: an answer came within so many."""
    return f"{math.ceil(1e3 * seconds):,}" if math.isfinite(seconds) else "–"


# --- tables ---


def _show(found: Benched) -> None:
    from rich.console import Console

    screen = Console(width=110)
    ended = {type(None): "", KeyboardInterrupt: ", interrupted"}.get(type(found.ended), ", failed")
    for network, bench in found.measured:
        screen.print(_rates(bench.rows, f"{network.title} on {found.machine['device']}{ended}"))
    if found.stopping:
        screen.print(_stopping(found.stopping))
    if found.simulated:
        screen.print(_simulated(found.simulated))
    for line in (*map(_on_data, found.data), *_recertified(found.recertified)):
        screen.print(line)
    if judged := found.judged():
        screen.print(_targets(judged))


def _rates(rows: list[Row], title: str) -> Table:
    from rich.table import Table

    table = Table("what", "samples/s", "ratio", "to", "MiB", title=title)
    for row in rows:
        table.add_row(
            str(row.what),
            f"{row.rate:,.0f}",
            "" if row.ratio is None else f"{row.ratio:.3f}",
            "" if row.against is None else str(row.against),
            "" if row.memory is None else f"{row.memory:,.0f}",
        )
    return table


def _stopping(rows: list[Stopped]) -> Table:
    from rich.table import Table

    columns = ("true p", "is the radius ≥", "fixed n", "mean with --stop", "fewer", "limit", "over it")
    table = Table(*columns, title="samples for a decision, those that choose the class included")
    for one in rows:
        limit = ("", "") if one.limit is None else (f"{one.limit:,.0f}", f"{one.mean / one.limit:.2f} ×")
        mean, fewer = f"{one.mean:,.0f}", f"{one.fixed / one.mean:.1f} ×"
        table.add_row(f"{one.probability:g}", f"{one.radius:g} λ", f"{one.fixed:,}", mean, fewer, *limit)
    return table


def _targets(rows: list[Judged]) -> Table:
    from rich.table import Table

    table = Table("what", "on", "wanted", "found", "reached", title="what docs/speed.md wants")
    for row in rows:
        reached = {True: "yes", False: "no", None: "other terms"}[row.reached]
        table.add_row(row.what, row.terms, row.wanted, row.found, reached)
    return table


def _simulated(rows: list[Simulated]) -> Table:
    from rich.table import Table

    title = f"votes over the limit, {rows[0].inputs:,} simulated inputs that reach the radius, cap {rows[0].cap:,}"
    table = Table(
        "radius", "limit", "votes", "over it", "above it (limit < 1,000)", "fixed n certifies more", title=title
    )
    for row in rows:
        counts = (
            f"{row.limit:,.0f}",
            f"{row.votes:,.0f}",
            f"{row.over:.2f} ×",
            f"{row.above:.0f} ± {row.above_error:.0f}",
        )
        table.add_row(f"{row.radius:g} λ", *counts, f"{row.lost:.2f} points")
    return table


def _on_data(row: OnData) -> str:
    over = "" if row.over is None else f", {row.over:.2f} × the limit where a radius is reached"
    radii = (
        f" ℓ2 radii {row.radii[0]:g} to {row.radii[-1]:g}, {row.law}, {row.noise or 'isotropic'}." if row.radii else ""
    )
    return (
        f"Ten radii in one pass: {row.inputs:,} inputs in {row.seconds:,.1f} s, {row.votes:,} votes{over}; 10,000 inputs "
        f"would take {row.seconds * 10_000 / row.inputs / 60:.1f} minutes.{radii}"
    )


def _recertified(rows: list[Kept]) -> list[str]:
    pairs = [row for row in rows if row.in_pairs]
    if not pairs:
        return []

    def told(shares: list[float]) -> str:
        if not shares:
            return "nothing"
        return f"{100 * sum(shares) / len(shares):.1f} % ({100 * min(shares):.1f} % at least)"

    return [
        f"From fp32 to bf16 by votes in pairs: {len(pairs)} inputs from R/λ = {min(r.radius for r in pairs):.2f} to "
        f"{max(r.radius for r in pairs):.2f}, {sum(r.m for r in pairs):,} pairs instead of {sum(r.n for r in pairs):,} votes; "
        f"{told([r.of_fresh for r in pairs if r.of_fresh is not None])} of the radius that as many fresh votes give, "
        f"{told([r.kept for r in pairs])} of that before."
    ]
