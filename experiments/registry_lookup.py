"""How long a look-up takes among 100,000 regions of 3,072 dimensions.

    python experiments/registry_lookup.py --out registry.sqlite            # CIFAR-10 (UCAN_DATA_DIR) and its mirror images
    python experiments/registry_lookup.py --out registry.sqlite --centres noise

The centres are pictures, or uniform noise, which the filter can tell apart least. Nine regions in ten have a diagonal Σ
of their own, one in ten shares one of four full ones, and radii go up to 3.8 (all that n = 100,000 samples can certify
at σ = 1). The rows are written as ``Registry.enrol`` writes them, but in one transaction and without looking for regions
of another answer, which a look-up does not need: one by one, each on disk before the next, they would take hours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch

import ucan
from ucan import data
from ucan.certificate import Certificate
from ucan.evidence import Evidence, Noise
from ucan.region import Region
from ucan.registry import Registry
from ucan.registry.database import Row
from ucan.registry.separation import outer_radius
from ucan.registry.sketch import Cells
from ucan.scales import Basis, Diagonal, Scale

SHAPE, DIM = (3, 32, 32), 3072
EVIDENCE = Evidence(
    (90_000, 10_000),
    0,
    100,
    100_000,
    0.001,
    0,
    ucan.Gaussian(1.0),
    Noise("made up"),
    "binary",
    128,
    128,
    "fp32",
    "eager",
    None,
    "0",
)


def centres(kind: str, count: int) -> torch.Tensor:
    """(count, 3, 32, 32) in [0, 1]."""
    if kind == "noise":
        return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(0))
    pictures, _ = data.load("cifar10", "train").batch(range(min(count, 50_000)))
    return torch.cat([pictures, pictures.flip(3)])[:count]


def full_scales(count: int) -> list[Scale]:
    """Noise in a random basis: a quarter on the leading 512 directions, one on the rest."""
    s = torch.cat([torch.full((512,), 0.25), torch.ones(DIM - 512)])
    rngs = (torch.Generator().manual_seed(i) for i in range(count))
    return [Basis(torch.linalg.qr(torch.randn(DIM, DIM, generator=rng))[0], s) for rng in rngs]


def build(registry: Registry, x: torch.Tensor, full: list[Scale]) -> None:
    """Enrol all centres in one transaction."""
    rng, cells, store = torch.Generator().manual_seed(1), Cells(SHAPE), registry._store
    record = {"p_lower": 0.9, "p_upper": None, "alm": 1.0, "evidence": EVIDENCE.to_dict()}
    with store.transaction():
        store.settle_shape(SHAPE)
        store.settle_norm(2)
        shared = [(scale, store.scale_id(scale)) for scale in full]
        for i, centre in enumerate(x):
            if shared and i % 10 == 0:
                scale, number = shared[i // 10 % len(shared)]
            else:
                scale = Diagonal(0.3 + 0.7 * torch.rand(SHAPE, generator=rng))
                number = store.scale_id(scale)
            radius = 3.8 * float(torch.rand((), generator=rng))
            sketch = cells.sketch(centre.double().flatten().numpy()).astype("<f4").tobytes()
            reach = outer_radius(scale, 2, radius, DIM)
            store.add(Row(i % 10, radius, number, {"centre": centre}, record), reach, sketch)


def measure(registry: Registry, queries: torch.Tensor) -> tuple[list[float], int]:
    """Milliseconds of each look-up, and how many found a region."""
    times, hits = [], 0
    for i in range(len(queries)):
        start = time.perf_counter()
        found = registry.lookup(queries[i : i + 1])
        times.append(1e3 * (time.perf_counter() - start))
        hits += found is not None
    return times, hits


def queries(registry: Registry, x: torch.Tensor, held_out: torch.Tensor, count: int) -> dict[str, torch.Tensor]:
    """Inside a stored region, far from all, and just beyond the border of one."""
    rng = np.random.default_rng(2)
    inside, beyond = [], []
    for number in rng.choice(len(x), count, replace=False):
        entry = registry._entry(int(number) + 1)
        step = torch.from_numpy(rng.normal(size=(1, DIM)))
        step = entry.scale.apply(step / step.norm()) * entry.radius
        inside.append(entry.centre[None] + (0.9 * step).reshape(1, *SHAPE).float())
        beyond.append(entry.centre[None] + (1.05 * step).reshape(1, *SHAPE).float())
    return {
        "hit": torch.cat(inside),
        "near miss": torch.cat(beyond),
        "miss": held_out,
    }


def main() -> None:
    """Build the registry if the file is new, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the registry's file")
    parser.add_argument("--centres", choices=("cifar10", "noise"), default="cifar10")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--full", type=int, default=4, help="how many full Σ there are")
    parser.add_argument("--queries", type=int, default=100, help="look-ups of each kind")
    options = parser.parse_args()
    x = centres(options.centres, options.count)
    if options.centres == "noise":
        held_out = torch.rand(2 * options.queries, *SHAPE, generator=torch.Generator().manual_seed(3))
    else:
        held_out, _ = data.load("cifar10", "test").batch(range(2 * options.queries))
    result = {"centres": options.centres, "regions": options.count, "threads": torch.get_num_threads()}
    if not options.out.exists():
        start = time.perf_counter()
        with Registry(options.out) as registry:
            build(registry, x, full_scales(options.full))
        result["build, s"] = round(time.perf_counter() - start, 1)
    result["file, GB"] = round(options.out.stat().st_size / 1e9, 2)
    with Registry(options.out) as registry:
        asked = queries(registry, x, held_out[: options.queries], options.queries)
    with Registry(options.out) as registry:
        result["first look-up, ms"] = round(measure(registry, asked["miss"][:1])[0][0], 1)  # reads all sketches
        first_of_full = [measure(registry, x[10 * i : 10 * i + 1] + 0.001)[0][0] for i in range(options.full)]
        result["first use of a full Σ, ms"] = round(max(first_of_full, default=0.0), 1)
        for kind, points in asked.items():
            times, hits = measure(registry, points)
            middle, high, most = (round(float(q), 1) for q in np.quantile(times, [0.5, 0.95, 1.0]))
            result[kind] = {"median, ms": middle, "p95, ms": high, "max, ms": most, "found": hits}
        start = time.perf_counter()
        for i in range(options.queries):
            enrolled = Certificate(2, "frozen", EVIDENCE, 0, 0.9, None, Region(1.0, 0.5, 2, SHAPE), 0.5)
            registry.enrol(held_out[options.queries + i][None], enrolled)
        result["enrolment, mean ms"] = round(1e3 * (time.perf_counter() - start) / options.queries, 1)
    result["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
