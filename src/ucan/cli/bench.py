"""`ucan bench`: measure the cost of certification on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
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
    from torch import nn

    from ucan.bench import Bench, Row, Stopped

MODEL_HELP = (
    "The classifier to measure: `package.module:name` (a module or a function that returns one), the folder of a "
    "trained run, or one of "
    f"{', '.join(NAMES)}."
)


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
    network, event, classes = _network(model, weights, shape, where)
    measured = Bench(network, event, classes, n)
    precisions = [None if name.strip() == "fp32" else name.strip() for name in precision.split(",")]  # None: its own
    choices = [(name.strip(), kind) for kind in precisions for name in backend.split(",")]
    about = machine(where)
    title = f"{model} at {_joined(event)} on {about['device']}"
    interrupted = False
    stopped: list[Stopped] = []
    try:
        stopped = _measure(measured, choices, shapes, art, quiet)
    except KeyboardInterrupt:  # what was measured so far is still printed
        if not measured.rows:
            raise
        interrupted, title = True, f"{title}, interrupted"
    asked = {"ucan": __version__, "model": model, "shape": _joined(event), "n": str(n), "batch": str(measured.size)}
    rows, samples = [asdict(row) for row in measured.rows], [asdict(row) for row in stopped]
    state = {"interrupted": True} if interrupted else {}
    record = json.dumps({"machine": {**about, **asked}, **state, "rows": rows, "stopping": samples}, indent=1) + "\n"
    if as_json:
        typer.echo(record, nl=False)
    else:
        _show(measured.rows, stopped, title)
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
) -> tuple[nn.Module, tuple[int, ...], int]:
    """Return the network to measure, on its device, with its input shape and its number of classes."""
    import torch
    from torch import nn

    from ucan.models import build_model, load_model
    from ucan.runs.build import classes_of
    from ucan.training import is_trained_run, load_run

    if is_trained_run(model):
        if shape is not None or weights is not None:
            raise InvalidInput(f"{model} is a trained run: leave out --shape and --weights.")
        run = load_run(model)
        return run.classifier.to(where), run.shape, run.num_classes
    try:
        event = tuple(int(part) for part in (shape or "3,32,32").split(","))
    except ValueError as error:
        raise InvalidInput(f"--shape takes numbers such as 3,32,32, got {shape!r}.") from error
    if model in NAMES and weights is None:  # the speed does not depend on the weights
        return build_model(model, event, 10).to(where), event, 10
    network = load_model(model, weights, None, where, event)
    if not isinstance(network, nn.Module) or next(network.parameters(), None) is None:
        raise InvalidInput(
            f"{model} has no PyTorch weights, so its bare forward pass cannot be measured. Give a PyTorch module."
        )
    return network, event, classes_of(network, None, torch.zeros(1, *event, device=where))


def _joined(event: tuple[int, ...]) -> str:
    return ",".join(map(str, event))


def _measure(
    bench: Bench, choices: list[tuple[str, str | None]], shapes: bool, art: bool, quiet: bool
) -> list[Stopped]:
    """Fill the bench's rows, laws and shapes with the last backend and precision; the samples that stopping early
    uses.
    """
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
    with console.status("samples used"):
        return bench.stopping()


def _show(rows: list[Row], stopped: list[Stopped], title: str) -> None:
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
    for one in stopped:
        limit = ("", "") if one.limit is None else (f"{one.limit:,.0f}", f"{one.mean / one.limit:.2f} ×")
        mean, fewer = f"{one.mean:,.0f}", f"{one.fixed / one.mean:.1f} ×"
        samples.add_row(f"{one.probability:g}", f"{one.radius:g} λ", f"{one.fixed:,}", mean, fewer, *limit)
    screen = Console(width=110)
    screen.print(table)
    if stopped:
        screen.print(samples)
