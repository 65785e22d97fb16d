"""`ucan bench`: what certification costs on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ucan import __version__
from ucan.allocator import keep_memory
from ucan.cli import words
from ucan.errors import InvalidInput


def bench(
    model: Annotated[str, typer.Option(help="A built-in model: cnn, resnet20, resnet110, resnet50, …")] = "resnet20",
    shape: Annotated[str, typer.Option(help="The input's shape.")] = "3,32,32",
    n: Annotated[int, typer.Option(min=1000, help="Samples per certificate.")] = 10_000,
    precision: Annotated[str, typer.Option(help="Precisions to measure, of fp32, tf32, bf16.")] = "fp32",
    backend: Annotated[str, typer.Option(help="Backends to measure, of eager, compile, tuned.")] = "eager,compile",
    shapes: Annotated[bool, typer.Option(help="Also measure every law and every Σ.")] = True,
    art: Annotated[
        bool, typer.Option(help="Also measure the Adversarial Robustness Toolbox, if it is installed.")
    ] = True,
    device: words.DeviceOption = "auto",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the numbers as JSON.")] = None,
) -> None:
    """Measure certification beside the bare forward pass, the textbook loop and others: ratios within this one run.

    Example: `ucan bench --model resnet50 --shape 3,224,224 --n 100000 --precision bf16 --backend compile`
    """
    from rich.console import Console
    from rich.table import Table

    from ucan.backends import OPTIONS
    from ucan.bench import Bench, machine
    from ucan.models import build_model

    try:
        event = tuple(int(part) for part in shape.split(","))
    except ValueError as error:
        raise InvalidInput(f"--shape takes numbers such as 3,32,32, got {shape!r}.") from error
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise InvalidInput(f"--out takes a file in a folder that is there, got {out}.")
    unknown = sorted({name.strip() for name in backend.split(",")} - {"eager", *OPTIONS})
    if unknown:
        raise InvalidInput(f"--backend takes eager, {', '.join(OPTIONS)}, got {', '.join(unknown)}.")
    where = words.device_of(device)
    bench = Bench(build_model(model, event, 10).to(where), event, 10, n)
    console = Console(stderr=True)
    with console.status("textbook loop"):
        bench.textbook()
    if where.type == "cpu":  # as `ucan certify` does; a loop of one's own, above, has what the system gives it
        keep_memory()
    choices = [(b.strip(), p.strip()) for p in precision.split(",") for b in backend.split(",")]
    for name, kind in choices:
        with console.status(f"{name}, {kind} (compiling takes a while)"):
            bench.ours(name, None if kind == "fp32" else kind)
    last_backend, last_precision = choices[-1]
    kept = None if last_precision == "fp32" else last_precision
    with console.status("generator, laws, shapes"):
        bench.generator(last_backend, kept)
        if shapes:
            bench.laws_and_shapes(last_backend, kept)
    if art:
        with console.status("Adversarial Robustness Toolbox"):
            if bench.art(bench.size) is None:
                console.print("Left out: pip install adversarial-robustness-toolbox statsmodels")
    with console.status("samples used"):
        stopped = bench.stopping()
    info = {
        **machine(where),
        "ucan": __version__,
        "model": model,
        "shape": shape,
        "n": str(n),
        "batch": str(bench.size),
    }
    table = Table("what", "samples/s", "ratio", "to", "MiB", title=f"{model} at {shape} on {info['device']}")
    for measured in bench.rows:
        table.add_row(
            measured.what,
            f"{measured.rate:,.0f}",
            "" if measured.ratio is None else f"{measured.ratio:.3f}",
            measured.against,
            "" if measured.memory is None else f"{measured.memory:,.0f}",
        )
    screen = Console(width=110)
    screen.print(table)
    samples = Table("true p", "is the radius ≥", "fixed n", "mean with --stop", "fewer", title="samples for a decision")
    for row in stopped:
        fewer = f"{row.fixed / row.mean:.1f} ×"
        samples.add_row(f"{row.probability:g}", f"{row.radius:g} λ", f"{row.fixed:,}", f"{row.mean:,.0f}", fewer)
    screen.print(samples)
    if out is not None:
        record = {"machine": info, "rows": [asdict(r) for r in bench.rows], "stopping": [asdict(r) for r in stopped]}
        out.write_text(json.dumps(record, indent=1) + "\n")
