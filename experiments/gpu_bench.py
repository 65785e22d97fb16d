"""The GPU rows of the speed targets, in one run: `python experiments/gpu_bench.py OUT_FOLDER [PART …]`.

ResNet-50 at 224 px and ResNet-110 at 32 px in bf16: certify beside the bare compiled network and the textbook loop; what
a diagonal Σ, a DCT Σ and a per-input generator add. Then fixed n against early stopping on a part of CIFAR-10's test set
with the clean-trained ResNet-20, whose weights lie in UCAN_DATA_DIR/weights.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from ucan import Gaussian, SmoothedClassifier, data
from ucan.bench import Bench, machine
from ucan.models import build_model, load_model
from ucan.plan import CertifyPlan
from ucan.stopping import AtRadii


def speed(name: str, shape: tuple[int, ...], n: int, backend: str, inputs: int) -> Iterator[dict[str, object]]:
    """One network's rows so far, after every few of them: certificates of n samples beside the bare pass, what a per-input
    generator adds, then, with fewer samples, what Σ adds.
    """
    start = time.perf_counter()
    bench = Bench(build_model(name, shape, 10).cuda(), shape, 10, n, repeats=2, inputs=inputs)

    def shapes() -> None:
        bench.n = n // 4
        bench.laws_and_shapes(backend, "bf16", {"gaussian, isotropic", "gaussian, diagonal Σ", "gaussian, DCT Σ"})

    for part in (
        lambda: bench.ours(backend, "bf16"),
        lambda: bench.generator(backend, "bf16"),
        shapes,
    ):
        shown = len(bench.rows)
        part()
        for row in bench.rows[shown:]:
            ratio = f"{row.ratio or 0:.3f} of {row.against or ''}"
            print(f"{name}: {row.what}: {row.rate:,.0f}/s", ratio, row.memory, flush=True)
        yield {
            "n": n,
            "inputs": inputs,
            "backend": backend,
            "batch": bench.size,
            "seconds": time.perf_counter() - start,
            "rows": [r.to_dict() for r in bench.rows],
        }


def stopping(scale: float, inputs: int, cap: int) -> dict[str, object]:
    """Samples that decisions at fixed radii need, and what is certified, against a fixed n (for which a CPU has no time)."""
    on_gpu = torch.cuda.is_available()
    device, precision, backend = ("cuda", "bf16", "eager") if on_gpu else ("cpu", None, "compile")
    weights = Path(os.environ["UCAN_DATA_DIR"]) / "weights" / "cifar10_resnet20.safetensors"
    model = load_model(
        "resnet20", weights, device=device, event_shape=(3, 32, 32), num_classes=10, normalise="imagenet"
    )
    test = data.load("cifar10")
    chosen = list(range(0, len(test), len(test) // inputs))[:inputs]
    labels = np.array([test[i][1] for i in chosen])
    g = SmoothedClassifier(model, Gaussian(scale), num_classes=10, backend=backend)

    def certified(stop: AtRadii | None) -> tuple[np.ndarray, np.ndarray]:
        """The radius that is certified for the right class, −1 where there is none, and the samples, of every input."""
        plan = CertifyPlan(n=cap, precision=precision, stop=stop)
        found = dict(g.certify_each((test[i][0][None].to(device) for i in chosen), plan))
        radii = [o.radius if o.radius > 0 and o.prediction == labels[i] else -1.0 for i, o in sorted(found.items())]
        return np.array(radii), np.array([found[i].evidence.n for i in range(inputs)])

    result: dict[str, object] = {"scale": scale, "inputs": inputs, "cap": cap}
    fixed = certified(None)[0] if on_gpu else None
    for multiple in (0.0, 0.5, 1.0, 2.0):
        r = multiple * scale
        radii, used = certified(AtRadii((r,)))
        result[str(multiple)] = {
            "mean_samples": float(used.mean()),
            "saving": cap / float(used.mean()),
            **({} if fixed is None else {"certified_fixed": float((fixed >= r).mean())}),
            "certified_stopping": float((radii >= r).mean()),
            "undecided": float((used >= cap).mean()),
        }
        print(multiple, result[str(multiple)], flush=True)
    return result


def main() -> None:
    """All of it; what is measured is written as soon as it is there."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)  # before anything is measured
    record: dict[str, object] = {"machine": machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))}
    parts: dict[str, Callable[[], Iterable[dict[str, object]]]] = {
        "resnet50 at 224 px": lambda: speed("resnet50", (3, 224, 224), 100_000, "compile", 2),
        "resnet110 at 32 px": lambda: speed("resnet110", (3, 32, 32), 100_000, "tuned", 8),
        "stopping": lambda: [stopping(0.08, 200, 100_000)],
    }
    for name, part in parts.items():
        if len(sys.argv) > 2 and name.split()[0] not in sys.argv[2:]:
            continue
        for record[name] in part():
            (out / "gpu.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
