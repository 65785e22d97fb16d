"""What a local Ray cluster costs beside plain processes: `python experiments/scale_local.py OUT.json [--model cnn]`.

Two things are measured, in turn and several times, since a shared machine is never quiet for long:

- `processes`: as many independent processes as there are workers, one thread each, every one certifying inputs of its own;
- `cluster`: one local cluster with as many workers, certifying the same number of inputs.

Both are warm when the clock starts, and the ratio of a round is of two measurements seconds apart. `busy` is the part of
the time in which a worker counted votes, which other work on the machine does not change. Then what a work unit costs:
bytes each way, and the driver's own time for one, from units that hold nearly no work.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import platform
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ucan import Gaussian, SmoothedClassifier
from ucan.allocator import keep_memory
from ucan.cluster import engine as cluster_engine
from ucan.cluster import spread
from ucan.models import build_model

SHAPES = {"cnn": (1, 28, 28), "resnet20": (3, 32, 32)}
OPTIONS: dict[str, Any] = {"n0": 100, "alpha": 0.001, "seed": 0}


def smoothed(model: str) -> SmoothedClassifier:
    return SmoothedClassifier(build_model(model, SHAPES[model], 10).eval(), Gaussian(0.25), num_classes=10)


def inputs(model: str, count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, *SHAPES[model], generator=torch.Generator().manual_seed(seed))


def independent(pipe: Connection, model: str, count: int, n: int, seed: int) -> None:
    """One process: says when it is warm, starts when told, and answers with its seconds."""
    torch.set_num_threads(1)
    keep_memory()  # as workers do, and as the command does in one process
    g, xs = smoothed(model), inputs(model, count, seed)
    g.certify(xs[:1], n=n, **OPTIONS)
    while pipe.recv():
        start = time.perf_counter()
        g.certify(xs, n=n, **OPTIONS)
        pipe.send(time.perf_counter() - start)


def certify_samples(count: int, n: int) -> int:
    return count * (n + OPTIONS["n0"])


def throughput(model: str, workers: int, count: int, n: int, rounds: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for seed in range(workers):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=independent, args=(theirs, model, count, n, seed)))
        processes[-1].start()
        pipes.append(ours)
    samples, found = workers * certify_samples(count, n), []
    xs = inputs(model, workers * count, 9)
    with spread(smoothed(model), "local", workers=workers) as h:
        counted: list[float] = []
        submit = h.engine.pool.submit
        h.engine.pool.submit = lambda unit, then, urgent=False: submit(
            unit, lambda rows, seconds: (counted.append(seconds), then(rows, seconds)), urgent
        )
        h.certify(xs, n=n, **OPTIONS)  # warm, and units of the right length
        for _ in range(rounds):
            load = os.getloadavg()[0]
            for pipe in pipes:
                pipe.send(True)
            apart = max(pipe.recv() for pipe in pipes)
            counted.clear()
            start = time.perf_counter()
            h.certify(xs, n=n, **OPTIONS)
            together = time.perf_counter() - start
            found.append(
                {
                    "load": round(load, 2),
                    "processes": samples / apart,
                    "cluster": samples / together,
                    "ratio": apart / together,
                    "busy": sum(counted) / (workers * together),
                }
            )
            print(found[-1], flush=True)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(False)
        process.join()
    return found


def unit_costs(workers: int) -> dict[str, Any]:
    """The driver's time for a unit, and what travels for it; from units of one forward pass of one copy each."""
    cluster_engine.UNIT_SECONDS = 0.0
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 1000)).eval()
    g = SmoothedClassifier(model, Gaussian(0.25), num_classes=1000)
    x, n = torch.rand(1, 1, 4, 4), 4000
    with spread(g, "local", workers=workers) as h:
        h.certify(x, n=200, n0=1, batch_size=1)
        sizes: list[int] = []
        submit = h.engine.pool.submit

        def measured(unit: Any, then: Any, urgent: bool = False) -> None:
            plain = [(p.stream, p.first, p.count, p.take, bytes(28), bytes(28)) for p in unit.pieces]
            sizes.append(len(pickle.dumps(plain)))
            submit(unit, lambda rows, seconds: (sizes.append(-rows.nbytes), then(rows, seconds)), urgent)

        start, cpu = time.perf_counter(), time.process_time()
        h.certify(x, n=n, n0=1, batch_size=1)
        seconds, own = time.perf_counter() - start, time.process_time() - cpu
        h.engine.pool.submit = measured
        h.certify(x, n=100, n0=1, batch_size=1)
    out, back = [s for s in sizes if s > 0], [-s for s in sizes if s < 0]
    return {
        "units": n + 1,
        "units_per_second": (n + 1) / seconds,
        "driver_cpu_seconds_per_unit": own / (n + 1),
        "bytes_out_per_unit": statistics.mean(out),
        "bytes_back_per_unit_of_1000_classes": statistics.mean(back),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", choices=SHAPES, default="cnn")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--inputs", type=int, default=10)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    torch.set_num_threads(1)
    record = {
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
        },
        "model": words.model,
        "shape": SHAPES[words.model],
        "workers": words.workers,
        "inputs_per_worker": words.inputs,
        "n": words.n,
        "rounds": throughput(words.model, words.workers, words.inputs, words.n, words.rounds),
    }
    record["median_ratio"] = statistics.median(one["ratio"] for one in record["rounds"])
    record["unit"] = unit_costs(words.workers)
    words.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({"median_ratio": record["median_ratio"], **record["unit"]}, indent=1))


if __name__ == "__main__":
    main()
