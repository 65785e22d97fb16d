"""Composed noise where it should pay: CIFAR-10 pictures at random places of a larger black canvas, against ℓ∞.

    python experiments/canvas.py --out OUT --only isotropic      (and composed: two processes can share a GPU)
    python experiments/canvas.py --out OUT --compare

The same network, σ, epochs and seed for both; only the noise differs. Certified at 2/255 and 4/255 by decisions that stop
when they are sure; what is undecided at n samples counts as not certified. ``--compare`` sets the two recorded runs side
by side, input by input, with the 95 % interval of the paired difference.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch

from ucan import Certificate, SmoothedClassifier, __version__, data
from ucan.data import InMemory
from ucan.plan import CertifyPlan
from ucan.runs.train import changed
from ucan.stopping import AtRadii
from ucan.training import Trainer, build_classifier, read_settings

RADII = (2 / 255, 4 / 255)
RUNS = {
    "isotropic": [],
    "composed": ["generator.kind=composed", "generator.norm=inf", "generator.share=0.25", "generator_lr=0.002"],
}


def on_canvas(pictures: InMemory, size: int, seed: int) -> InMemory:
    """Every picture at a place of its own, fixed by the seed, on a black canvas."""
    images = pictures.images
    count, channels, height, width = images.shape
    rng = torch.Generator().manual_seed(seed)
    top, left = torch.randint(0, size - height + 1, (2, count), generator=rng)
    canvas = images.new_zeros(count, channels, size, size)
    for i in range(count):
        canvas[i, :, top[i] : top[i] + height, left[i] : left[i] + width] = images[i]
    return InMemory(canvas, pictures.labels, pictures.classes)


def run(name: str, args: argparse.Namespace) -> dict[str, object]:
    """Train, and decide both radii for a part of the test set."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    common = [f"law.scale={args.sigma}", f"epochs={args.epochs}"]
    settings = changed(read_settings("cifar10-isotropic-fast"), common + RUNS[name] + args.set)
    train_set = on_canvas(data.load("cifar10", "train"), args.size, 0)
    test_set = on_canvas(data.load("cifar10", "test"), args.size, 1)
    start = time.perf_counter()
    classifier = build_classifier(settings, train_set.event_shape, train_set.num_classes)
    trainer = Trainer(settings, train_set, classifier, args.runs / f"canvas-{name}", device)
    trainer.run()
    trainer.joint.load_state_dict(trainer.final_state())
    joint = trainer.joint.eval()
    trained = time.perf_counter() - start
    print(f"{name}: trained in {trained:.0f} s", flush=True)
    g = SmoothedClassifier(joint.classifier, trainer.law, joint.generator, train_set.num_classes)
    plan = CertifyPlan(n=args.n, norm=math.inf, stop=AtRadii(RADII), precision="bf16" if device == "cuda" else None)
    chosen = list(range(0, len(test_set), args.skip))
    inputs = (test_set[i][0][None].to(device) for i in chosen)
    g.check_inputs(test_set[0][0][None].to(device), math.inf)
    start = time.perf_counter()
    outcomes = dict(g.certify_each(inputs, plan))
    radius = [o.radius if isinstance(o, Certificate) and o.prediction == test_set[i][1] else 0.0
              for i, o in ((i, outcomes[j]) for j, i in enumerate(chosen))]  # fmt: skip
    right = [outcomes[j].prediction == test_set[i][1] for j, i in enumerate(chosen)]
    record: dict[str, object] = {
        "sigma": args.sigma, "size": args.size, "epochs": args.epochs, "changes": RUNS[name] + args.set,
        "seed": settings.seed, "n": args.n, "alpha": plan.alpha, "inputs": len(chosen), "radii": list(RADII),
        "certified": {f"{round(255 * r)}/255": [bool(v >= r) for v in radius] for r in RADII},
        "right": right, "mean_samples": float(np.mean([o.evidence.n for o in outcomes.values()])),
        "train_seconds": round(trained, 1), "certify_seconds": round(time.perf_counter() - start, 1),
        "ucan": __version__, "torch": torch.__version__,
        "hardware": torch.cuda.get_device_name() if device == "cuda" else "CPU",
    }  # fmt: skip
    shares = {r: round(100 * float(np.mean(v)), 2) for r, v in record["certified"].items()}  # type: ignore[attr-defined]
    print(f"{name}: certified {shares}, right {100 * float(np.mean(right)):.1f} %", flush=True)
    return record


def compare(out: Path) -> None:
    """The paired difference, composed − isotropic, in points."""
    runs = {name: json.loads((out / f"canvas-{name}.json").read_text()) for name in RUNS}
    for radius in runs["isotropic"]["certified"]:
        a, b = (np.array(runs[name]["certified"][radius], dtype=float) for name in ("isotropic", "composed"))
        gain, half = (b - a).mean(), 1.96 * (b - a).std(ddof=1) / math.sqrt(len(a))
        print(f"{radius}: isotropic {100 * a.mean():.1f} %, composed {100 * b.mean():.1f} %, "
              f"difference {100 * gain:+.1f} ± {100 * half:.1f} points over {len(a)} inputs")  # fmt: skip


def main() -> None:
    """Run what is asked for and not yet recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the trained weights go")
    parser.add_argument("--only", nargs="*", choices=list(RUNS))
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--sigma", type=float, default=0.75)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--skip", type=int, default=10)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument(
        "--set", nargs="*", action="extend", default=[], help="settings to change in every run, key=value"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.compare:
        return compare(args.out)
    for name in args.only or RUNS:
        path = args.out / f"canvas-{name}.json"
        if not path.exists():
            path.write_text(json.dumps(run(name, args)) + "\n")
    return None


if __name__ == "__main__":
    main()
