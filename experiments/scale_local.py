"""What a local Ray cluster costs beside plain processes: `python experiments/scale_local.py OUT.json [--model cnn]`.

Two things are measured, in turn and several times, since a shared machine is never quiet for long:

- `processes`: as many independent processes as there are workers, one thread each, every one certifying inputs of its own;
- `cluster`: one local cluster with as many workers, certifying the same number of inputs.

Both are warm when the clock starts; which is first changes from round to round, and the ratio of a round is of two
measurements seconds apart. Two further numbers
depend less on what else the machine does: `busy`, the part of the time in which workers counted votes, and
`per_cpu_second`, the ratio of samples per second of processor time, everything that Ray runs included (Linux).

Then what a work unit costs: how long a worker waits for the next one, and the driver's own time for it; and what an
ImageNet-size input costs the driver, and the network. `scale_cost.py` makes an estimate of these.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import platform
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ucan import Gaussian, SmoothedClassifier, data
from ucan.allocator import keep_memory
from ucan.cluster import engine as cluster_engine
from ucan.cluster import spread
from ucan.models import build_model
from ucan.plan import CertifyPlan
from ucan.sequential import Candidate
from ucan.stop_option import parse_stop
from ucan.stopping import Case
from ucan.votes import Stream

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
        start, cpu = time.perf_counter(), time.process_time()
        g.certify(xs, n=n, **OPTIONS)
        pipe.send((time.perf_counter() - start, time.process_time() - cpu))


def processor_seconds(without: set[int]) -> float:
    """What this process and all below it have used so far, except some."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below - without:
        below |= more
    return sum(used[pid] for pid in below)


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
    others = {process.pid or 0 for process in processes}
    xs = inputs(model, workers * count, 9)
    with spread(smoothed(model), "local", workers=workers) as h:
        counted = watched(h)
        h.certify(xs, n=n, **OPTIONS)  # warm, and units of the right length
        for number in range(rounds):
            load = os.getloadavg()[0]
            for turn in ("apart", "together") if number % 2 == 0 else ("together", "apart"):
                if turn == "apart":
                    for pipe in pipes:
                        pipe.send(True)
                    answers = [pipe.recv() for pipe in pipes]
                    apart, apart_cpu = max(wall for wall, _ in answers), sum(cpu for _, cpu in answers)
                else:
                    cpu = processor_seconds(others)
                    counted.clear()
                    start = time.perf_counter()
                    h.certify(xs, n=n, **OPTIONS)
                    together, together_cpu = time.perf_counter() - start, processor_seconds(others) - cpu
            found.append(
                {
                    "load": round(load, 2),
                    "processes": samples / apart,
                    "cluster": samples / together,
                    "ratio": apart / together,
                    "per_cpu_second": apart_cpu / together_cpu,
                    "busy": sum(counted) / (workers * together),
                }
            )
            print(found[-1], flush=True)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(False)
        process.join()
    return found


def watched(h: SmoothedClassifier) -> list[float]:
    """The seconds of every unit that is counted from now on."""
    pool, counted = h.engine.pool, list[float]()  # type: ignore[attr-defined]
    submit = pool.submit

    def submitted(unit: Any, then: Any, urgent: bool = False) -> None:
        submit(unit, lambda rows, seconds: (counted.append(seconds), then(rows, seconds)), urgent)

    pool.submit = submitted
    return counted


def unit_costs(model: str, workers: int, count: int, n: int) -> list[dict[str, float]]:
    """Units of several lengths: how long a worker waits for the next, and the driver's own time for one."""
    rows = []
    xs = inputs(model, workers * count, 9)
    with spread(smoothed(model), "local", workers=workers) as h:
        h.certify(xs[:2], n=n, **OPTIONS)
        counted = watched(h)
        for seconds in (0.02, 0.05, 0.1, 0.2, 0.5):
            cluster_engine.UNIT_SECONDS = seconds
            h.certify(xs[:2], n=n, **OPTIONS)  # to that length
            counted.clear()
            start, cpu = time.perf_counter(), time.process_time()
            h.certify(xs, n=n, **OPTIONS)
            wall, own = time.perf_counter() - start, time.process_time() - cpu
            rows.append(
                {
                    "wanted_seconds": seconds,
                    "mean_seconds": statistics.mean(counted),
                    "units": len(counted),
                    "idle_seconds_per_unit": (workers * wall - sum(counted)) / len(counted),
                    "driver_cpu_seconds_per_unit": own / len(counted),
                }
            )
            print(rows[-1], flush=True)
    return rows


class Constant(torch.nn.Module):
    """An ImageNet-size classifier that costs nothing: what is left is what the driver does for each input."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.zeros(len(batch), dtype=torch.int64), 1000).float()


def input_costs(workers: int, count: int = 24) -> dict[str, float]:
    """What an input of 3 x 224 x 224 costs the driver (checks, hashes, sending, certificate), and what travels for it."""
    xs = torch.rand(count, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    g = SmoothedClassifier(Constant().eval(), Gaussian(0.25), num_classes=1000)
    with spread(g, "local", workers=workers) as h:
        h.certify(xs[:2], n=64, **OPTIONS)
        put, sizes = h.engine.pool.ray.put, list[int]()  # type: ignore[attr-defined]
        h.engine.pool.ray.put = lambda thing: (sizes.append(len(thing)), put(thing))[1]  # type: ignore[attr-defined]
        cpu = time.process_time()
        h.certify(xs, n=64, **OPTIONS)
        own = time.process_time() - cpu
        h.engine.pool.ray.put = put  # type: ignore[attr-defined]
        unit = h.engine.setup(xs[:1], CertifyPlan()).counter  # type: ignore[attr-defined]
    stream = Stream(0, "0" * 64, "estimate")
    with tempfile.TemporaryDirectory() as folder:
        pixels = torch.rand(375, 500, 3, generator=torch.Generator().manual_seed(1)).mul(255).byte().numpy()
        Image.fromarray(pixels).save(Path(folder) / "noise.jpg", quality=90)
        pictures = data.load(folder, size=224)
        cpu = time.process_time()
        for _ in range(20):
            pictures[0]
        decode = (time.process_time() - cpu) / 20
    plain = pickle.dumps([(stream, 0, 100, 64, bytes(28), bytes(28))])
    return {
        "driver_cpu_seconds_per_input": own / count,
        "decode_cpu_seconds_per_input": decode,
        "bytes_per_input": statistics.mean(size for size in sizes if size > 10_000),
        "bytes_out_per_unit": len(plain),
        "bytes_back_per_unit": 4 * (unit.num_classes + 1),
    }


def rule_costs(draws: int = 20_000, block: int = 64) -> float:
    """The driver's time for a look at one block of votes by a stopping rule, in seconds."""
    g = SmoothedClassifier(Constant().eval(), Gaussian(0.25), num_classes=1000)
    x = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    M, stop = g.M.at(x), parse_stop(0.25)
    assert stop is not None
    radius = g.sizes.decided(M, x, CertifyPlan(stop=stop))
    candidate = Candidate(0, x, M, Stream(0, "", "estimate"), 0, radius)
    votes, case = (torch.arange(block) >= 54).long(), Case(10**9, 0.001, radius, block)  # undecided for long
    cpu = time.process_time()
    for _ in range(draws // block):
        candidate.add(votes, 1000, stop, case)
    return (time.process_time() - cpu) / (draws // block)


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


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
            "cpu": processor(),
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
    apart, together = (sum(1 / one[what] for one in record["rounds"]) for what in ("processes", "cluster"))
    record["ratio_of_all_rounds"] = apart / together
    for what in ("ratio", "per_cpu_second", "busy"):
        record[f"median_{what}"] = statistics.median(one[what] for one in record["rounds"])
    record["units"] = unit_costs(words.model, words.workers, words.inputs, words.n)
    record["imagenet_input"] = input_costs(words.workers)
    record["rule_cpu_seconds_per_block"] = rule_costs()
    words.out.write_text(json.dumps(record, indent=1) + "\n")
    print(
        json.dumps({"median_ratio": record["median_ratio"], **record["imagenet_input"]}, indent=1),
        record["rule_cpu_seconds_per_block"],
    )


if __name__ == "__main__":
    main()
