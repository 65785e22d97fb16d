"""What a run on many GPUs would take: `python experiments/scale_cost.py SCALE_LOCAL.json H200.json`.

The model, and where its numbers come from:

    unit length     u = max(0.5 s, G/200)                   what the driver aims at
    workers         T_w = N (n + n0) / (r G) · (1 + w/u)    r samples/s of one device; w s of waiting per unit
    driver          T_d = a · N + b · N (n + n0) / (r u)    a s per input, b s per unit, of one core
    the run         T = max(T_w, T_d)                       without starting and compiling
    network         N · (units of an input, at most once per machine) · input's bytes + units · (bytes out and back)

b and w are fitted to `scale_local.py`'s record by least squares over units of several lengths; a is what it measured for
ImageNet-size pictures, decoding included; r is the rate of a certificate on one H200, from `gpu_bench.py`. Everything
beyond two workers is extrapolation: nothing here was run on more.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

INPUTS, N0, N = 50_000, 100, 100_000
GPUS, PER_MACHINE = (8, 64, 512), 8
UNIT_SECONDS, UNITS_PER_SECOND = 0.5, 200
BLOCK = 64  # votes of a block at 224 px


def fit(record: dict[str, Any]) -> dict[str, float]:
    """Seconds of the driver per unit and per input, and of a worker's waiting per unit."""
    rows, inputs = record["units"], record["workers"] * record["inputs_per_worker"]
    units = np.array([row["units"] for row in rows], dtype=float)
    cpu = units * [row["driver_cpu_seconds_per_unit"] for row in rows]
    b, fixed = np.linalg.lstsq(np.stack([units, np.ones_like(units)], 1), cpu, rcond=None)[0]
    idle = units * [row["idle_seconds_per_unit"] for row in rows]
    w, _ = np.linalg.lstsq(np.stack([units, np.ones_like(units)], 1), idle, rcond=None)[0]
    imagenet = record["imagenet_input"]
    a = imagenet["driver_cpu_seconds_per_input"] + imagenet["decode_cpu_seconds_per_input"]
    return {"a": a, "b": b, "w": max(0.0, w), "a of a small input": fixed / inputs}


def rate(record: dict[str, Any]) -> float:
    part = next(value for name, value in record.items() if name.startswith("resnet50"))
    return max(row["rate"] for row in part["rows"] if row["what"].startswith("certify"))


def estimate(gpus: int, r: float, costs: dict[str, float], sizes: dict[str, float]) -> dict[str, float]:
    u = max(UNIT_SECONDS, gpus / UNITS_PER_SECOND)
    samples = INPUTS * (N + N0)
    units = samples / (r * u)
    workers = samples / (r * gpus) * (1 + costs["w"] / u)
    driver = costs["a"] * INPUTS + costs["b"] * units
    machines = max(1, gpus // PER_MACHINE)
    copies = min(machines, 1 + units / INPUTS)
    traffic = INPUTS * copies * sizes["bytes_per_input"]
    traffic += units * (sizes["bytes_out_per_unit"] + sizes["bytes_back_per_unit"])
    seconds = max(workers, driver)
    return {
        "gpus": gpus,
        "unit": u,
        "units per input": units / INPUTS,
        "workers": workers,
        "driver": driver,
        "seconds": seconds,
        "bytes per certificate": traffic / INPUTS,
        "bytes per second": traffic / seconds,
    }


def main() -> None:
    local, h200 = (json.loads(Path(path).read_text()) for path in sys.argv[1:3])
    costs, r = fit(local), rate(h200)
    follows = BLOCK / local["rule_cpu_seconds_per_block"] / r
    print(f"r = {r:,.0f} samples/s; fitted: {json.dumps({k: round(v, 5) for k, v in costs.items()})}")
    print(f"Under a stopping rule that looks at every block, one driver can follow about {follows:.0f} such GPUs.")
    print(
        "| GPUs | a unit | units an input | workers' time | driver's time | the run | a certificate moves | network |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for gpus in GPUS:
        e = estimate(gpus, r, costs, local["imagenet_input"])
        print(
            f"| {gpus} | {e['unit']:.2f} s | {e['units per input']:.1f} | {e['workers'] / 60:,.0f} min | "
            f"{e['driver'] / 60:,.0f} min | {e['seconds'] / 60:,.0f} min | {e['bytes per certificate'] / 1e6:.1f} MB | "
            f"{e['bytes per second'] / 1e6:,.0f} MB/s |"
        )


if __name__ == "__main__":
    main()
