"""`ucan bench`: measure the cost of certification on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucan.allocator import keep_memory
from ucan.cli import words
from ucan.errors import InvalidInput
from ucan.models.names import NAMES
from ucan.storage import storage, write_whole
from ucan.version import __version__

if TYPE_CHECKING:
    import torch
    from rich.table import Table
    from torch import nn

    from ucan.bench import Bench, Row, Stopped
    from ucan.data import Labelled
    from ucan.deciding import Kept, OnData, Simulated
    from ucan.laws import Law

MODEL_HELP = (
    "The classifier to measure: `package.module:name` (a module or a function that returns one), the folder of a "
    "trained run, or one of "
    f"{', '.join(NAMES)}."
)


@dataclass
class Found:
    """What was measured of decisions so far: where the truth is known, over a simulated data set, and on inputs given."""

    stopping: list[Stopped] = field(default_factory=list)
    simulated: list[Simulated] = field(default_factory=list)
    data: list[OnData] = field(default_factory=list)
    recertified: list[Kept] = field(default_factory=list)


def bench(
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "resnet20",
    weights: words.WeightsOption = None,
    shape: Annotated[
        str | None, typer.Option(help="The input's shape. Default: that of the trained run, else 3,32,32.")
    ] = None,
    n: Annotated[int, typer.Option(min=1000, help="Samples per certificate.")] = 10_000,
    precision: Annotated[str, typer.Option(help="Precisions to measure, from fp32, tf32, bf16.")] = "fp32",
    backend: Annotated[
        str, typer.Option(help="Backends to measure, from eager, compile, tuned, onnxruntime, openvino.")
    ] = "eager,compile",
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
            help="Also decide ten radii for each of these inputs in one pass, and certify some of them again in bf16 from "
            "votes in pairs: for a model that is trained.",
        ),
    ] = None,
    most: words.MaxOption = None,
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
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the numbers as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    quiet: words.QuietOption = False,
) -> None:
    """Measure the speed of certification, relative to the bare forward pass, the textbook loop and other libraries.

    Example: `ucan bench --model resnet50 --shape 3,224,224 --n 100000 --precision bf16 --backend compile`
    """
    from ucan.bench import Bench, machine
    from ucan.choices import BACKENDS
    from ucan.runs.jobs import device_of

    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise InvalidInput(f"--out takes a file in an existing folder, got {out}.")
    if serve is not None:
        _bench_service(serve, clients, seconds, device, out, as_json)
        return
    known = [name for name in BACKENDS if name != "auto"]
    unknown = sorted({name.strip() for name in backend.split(",")} - set(known))
    if unknown:
        raise InvalidInput(f"--backend takes {', '.join(known)}, got {', '.join(unknown)}.")
    where = device_of(device)
    network, event, classes, law = _network(model, weights, shape, where)
    inputs = None if source is None else _inputs(source, event)
    measured = Bench(network, event, classes, n)
    precisions = [None if name.strip() == "fp32" else name.strip() for name in precision.split(",")]  # None: its own
    choices = [(name.strip(), kind) for kind in precisions for name in backend.split(",")]
    about = machine(where)
    title = f"{model} at {_joined(event)} on {about['device']}"
    interrupted = False
    found = Found()
    try:
        _measure(measured, choices, shapes, art, quiet)
        _decide(measured, found, choices[-1], decisions, inputs, most, law, quiet)
    except KeyboardInterrupt:  # what was measured so far is still printed
        if not measured.rows:
            raise
        interrupted, title = True, f"{title}, interrupted"
    asked = {"ucan": __version__, "model": model, "shape": _joined(event), "n": str(n), "batch": str(measured.size)}
    rows = [asdict(row) for row in measured.rows]
    state = {"interrupted": True} if interrupted else {}
    record = json.dumps({"machine": {**about, **asked}, **state, "rows": rows, **asdict(found)}, indent=1) + "\n"
    if as_json:
        typer.echo(record, nl=False)
    else:
        _show(measured.rows, found, title)
    if out is not None:
        with storage(out):
            write_whole(out, record.encode())
    if interrupted:
        raise KeyboardInterrupt


def _bench_service(target: str, clients: int, seconds: float, device: str, out: Path | None, as_json: bool) -> None:
    """Load a service, and print what its clients saw."""
    from ucan.service.client import Client
    from ucan.service.load import Measured, generate, inputs_for, measure_run

    if target.startswith(("http://", "https://")):
        measured = Measured(generate(target, inputs_for(Client(target)), clients, seconds))
    else:
        measured = measure_run(target, clients, seconds, device)
    record, load = json.dumps(measured.to_dict(), indent=1) + "\n", measured.load
    if out is not None:
        with storage(out):
            write_whole(out, record.encode())
    if as_json:
        typer.echo(record, nl=False)
        return
    typer.echo(
        f"{clients} clients for {load.seconds:.0f} s: {load.answers:,} answers, {load.abstentions:,} of them abstentions; "
        f"{load.rate:.1f} per second. Refused: {load.statuses or 'none'}.\n"
        f"Latency: median {1e3 * load.median:.0f} ms, 99 % within {1e3 * load.p99:.0f} ms, slowest "
        f"{1e3 * load.slowest:.0f} ms. The clients took {load.client_seconds:.1f} s of processor time."
    )
    if load.server_seconds is not None and load.server_memory is not None and measured.alone is not None:
        first, last = load.server_memory
        typer.echo(
            f"The service took {load.server_seconds:.1f} s of processor time: {load.per_processor_second:.1f} certificates "
            f"per processor second, {measured.ratio:.2f} of the {measured.alone:.1f} of certify alone. Memory: {first:.0f} "
            f"MiB at the beginning, {last:.0f} MiB at the end."
        )


def _network(
    model: str, weights: Path | None, shape: str | None, where: torch.device
) -> tuple[nn.Module, tuple[int, ...], int, Law]:
    """Return the network to measure, on its device, with its input shape, its number of classes and the law of noise."""
    import torch
    from torch import nn

    from ucan.laws import Gaussian
    from ucan.models import build_model, load_model
    from ucan.models.foreign import ExportedModel
    from ucan.runs.build import classes_of
    from ucan.training import is_trained_run, load_run

    if is_trained_run(model):
        if shape is not None or weights is not None:
            raise InvalidInput(f"{model} is a trained run: leave out --shape and --weights.")
        run = load_run(model)
        return run.classifier.to(where), run.shape, run.num_classes, run.law
    try:
        event = tuple(int(part) for part in (shape or "3,32,32").split(","))
    except ValueError as error:
        raise InvalidInput(f"--shape takes numbers such as 3,32,32, got {shape!r}.") from error
    if model in NAMES and weights is None:  # the speed does not depend on the weights
        return build_model(model, event, 10).to(where), event, 10, Gaussian(0.25)
    network = load_model(model, weights, None, where, event)
    if isinstance(network, ExportedModel):
        network = network.as_module()
    if not isinstance(network, nn.Module) or next(network.parameters(), None) is None:
        raise InvalidInput(
            f"{model} has no PyTorch weights, so its bare forward pass cannot be measured. Give a PyTorch module."
        )
    return network, event, classes_of(network, None, torch.zeros(1, *event, device=where)), Gaussian(0.25)


def _inputs(source: str, event: tuple[int, ...]) -> Labelled:
    from ucan import data

    found = data.load(source)
    if tuple(found.event_shape) != event:
        raise InvalidInput(
            f"{source} has inputs of shape {_joined(found.event_shape)}, but the model takes {_joined(event)}."
        )
    return found


def _joined(event: tuple[int, ...]) -> str:
    return ",".join(map(str, event))


def _measure(bench: Bench, choices: list[tuple[str, str | None]], shapes: bool, art: bool, quiet: bool) -> None:
    """Fill the bench's rows, laws and shapes with the last backend and precision."""
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    with console.status("textbook loop"):
        bench.textbook()
    if bench.device.type == "cpu":  # as `ucan certify` does; a loop of one's own, above, has what the system gives it
        keep_memory()
    for backend, precision in choices:
        with console.status(f"{backend}, {precision or 'fp32'} (compiling takes a while)"):
            bench.ours(backend, precision)
    with console.status("generator, laws, shapes"):
        bench.generator(*choices[-1])
        if shapes:
            bench.laws_and_shapes(*choices[-1])
    if art:
        with console.status("Adversarial Robustness Toolbox"):
            if bench.art(bench.size) is None:
                console.print("Left out: pip install adversarial-robustness-toolbox statsmodels")


def _decide(
    bench: Bench,
    found: Found,
    choice: tuple[str, str | None],
    decisions: int,
    inputs: Labelled | None,
    most: int | None,
    law: Law,
    quiet: bool,
) -> None:
    """Fill in what decisions cost, on the inputs with this backend and precision."""
    from rich.console import Console

    from ucan import deciding

    console = Console(stderr=True, quiet=quiet)
    with console.status("samples used"):
        found.stopping = bench.stopping()
    for radius in (0.5, 1.0, 2.0) if decisions else ():
        with console.status(f"votes over the limit, r = {radius:g} λ"):
            found.simulated.append(deciding.simulated(radius, decisions, bench.n))
    if inputs is not None:
        count = min(len(inputs), most or len(inputs))
        with console.status(f"ten radii for {count:,} inputs"):
            outcomes, row = deciding.on_data(bench.model, bench.classes, law, inputs, count, bench.n, choice)
            found.data.append(row)
        with console.status("from fp32 to bf16"):
            found.recertified = deciding.in_bf16(bench.model, bench.classes, law, inputs, outcomes, bench.n, choice[0])


def _show(rows: list[Row], found: Found, title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "samples/s", "ratio", "to", "MiB", title=title)
    for row in rows:
        table.add_row(
            row.what,
            f"{row.rate:,.0f}",
            "" if row.ratio is None else f"{row.ratio:.3f}",
            row.against,
            "" if row.memory is None else f"{row.memory:,.0f}",
        )
    columns = ("true p", "is the radius ≥", "fixed n", "mean with --stop", "fewer", "limit", "over it")
    samples = Table(*columns, title="samples for a decision, those that choose the class included")
    for one in found.stopping:
        limit = ("", "") if one.limit is None else (f"{one.limit:,.0f}", f"{one.mean / one.limit:.2f} ×")
        mean, fewer = f"{one.mean:,.0f}", f"{one.fixed / one.mean:.1f} ×"
        samples.add_row(f"{one.probability:g}", f"{one.radius:g} λ", f"{one.fixed:,}", mean, fewer, *limit)
    screen = Console(width=110)
    screen.print(table)
    if found.stopping:
        screen.print(samples)
    if found.simulated:
        screen.print(_simulated(found.simulated))
    for line in (*map(_on_data, found.data), *_recertified(found.recertified)):
        screen.print(line)


def _simulated(rows: list[Simulated]) -> Table:
    from rich.table import Table

    title = f"votes over the limit, {rows[0].inputs:,} simulated inputs that reach the radius, cap {rows[0].cap:,}"
    table = Table(
        "radius", "limit", "votes", "over it", "above it (limit < 1,000)", "fixed n certifies more", title=title
    )
    for row in rows:
        counts = (f"{row.limit:,.0f}", f"{row.votes:,.0f}", f"{row.over:.2f} ×", f"{row.above:.0f}")
        table.add_row(f"{row.radius:g} λ", *counts, f"{row.lost:.2f} points")
    return table


def _on_data(row: OnData) -> str:
    over = "" if row.over is None else f", {row.over:.2f} × the limit where a radius is reached"
    return (
        f"Ten radii in one pass: {row.inputs:,} inputs in {row.seconds:,.1f} s, {row.votes:,} votes{over}; 10,000 inputs "
        f"would take {row.seconds * 10_000 / row.inputs / 60:.1f} minutes."
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
