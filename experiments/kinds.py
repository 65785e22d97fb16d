"""Every kind of noise on one data set: train from presets, certify a part of the test set, record what came.

    python experiments/kinds.py cifar10 --out experiments/recorded/cifar10-kinds.json --skip 20 --n 10000
    python experiments/kinds.py mnist --out experiments/recorded/mnist-kinds.json --max 200 --skip 50 --n 10000

The record holds, for every run: preset, changes, seed, scope, certified accuracy by radius and by ALM (with the cap on
every scale), the share of the wall time, the hardware and the versions. A run that is recorded already is not run again.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch

from ucan import SmoothedClassifier, __version__, data
from ucan.cli.train import changed
from ucan.plan import CertifyPlan
from ucan.training import Trainer, build_classifier, read_settings

RADII = [0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25]
RUNS: dict[str, dict[str, tuple[str, list[str]]]] = {
    "cifar10": {
        "isotropic, 1": ("cifar10-isotropic-fast", []),
        "pattern, 1": ("cifar10-pattern-fast", []),
        "dataset-wise": ("cifar10-dataset-fast", []),
        "certification-wise": ("cifar10-certification-fast", []),
        "basis-wise, consistency": ("cifar10-basis", []),
        "isotropic, 0.25, consistency": ("cifar10-consistency", []),
        "isotropic, 0.5, consistency": ("cifar10-consistency", ["law.scale=0.5", "recipe.weight=10.0"]),
    },
    "mnist": {
        "isotropic, 1": ("mnist-isotropic-fast", []),
        "isotropic, 0.5": ("mnist-isotropic-fast", ["law.scale=0.5"]),
        "isotropic, 0.25": ("mnist-isotropic-fast", ["law.scale=0.25"]),
        "pattern, 1": ("mnist-pattern-fast", []),
        "dataset-wise": ("mnist-dataset-fast", []),
        "certification-wise": ("mnist-certification-fast", []),
        "basis-wise": ("mnist-basis-fast", []),
    },
}


def run(name: str, preset: str, changes: list[str], args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Train one run and certify it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = changed(read_settings(preset), changes + args.set)
    train_set, test_set = data.load(settings.data, "train"), data.load(settings.data, "test")
    classifier = build_classifier(settings, train_set.event_shape, train_set.num_classes)
    start = time.perf_counter()
    trainer = Trainer(settings, train_set, classifier, folder / name.replace(" ", "-"), device)
    trainer.run()
    trained = time.perf_counter() - start
    trainer.joint.load_state_dict(trainer.final_state())
    joint = trainer.joint.eval()
    g = SmoothedClassifier(joint.classifier, trainer.law, joint.generator, train_set.num_classes, backend=args.backend)
    plan = CertifyPlan(n=args.n, precision=args.precision, seed=settings.seed)
    chosen = list(range(0, len(test_set), args.skip))[: args.max]
    inputs = (test_set[i][0][None].to(device) for i in chosen)
    g.check_inputs(test_set[0][0][None], plan.norm)
    start = time.perf_counter()
    outcomes = dict(g.certify_each(inputs, plan))
    spent = time.perf_counter() - start
    right = np.array([outcomes[j].prediction == test_set[i][1] for j, i in enumerate(chosen)])
    radius, alm = (np.array([getattr(outcomes[j], k) for j in range(len(chosen))]) for k in ("radius", "alm"))
    _, scale = joint.generator(test_set[0][0][None].to(device))
    record: dict[str, object] = {
        "preset": preset, "changes": changes + args.set, "seed": settings.seed, "scope": joint.generator.scope,
        "cap": trainer.law.scale * (joint.generator.cap() or 0), "inputs": len(chosen), "n": args.n, "alpha": plan.alpha,
        "radius": {str(r): round(100 * float((right & (radius >= r)).mean()), 2) for r in RADII},
        "alm": {str(r): round(100 * float((right & (alm >= r)).mean()), 2) for r in RADII},
        "mean_scale": float(np.exp(scale.log_abs_det(test_set[0][0].numel()) / test_set[0][0].numel()))
        if scale.dim in (None, test_set[0][0].numel()) else None,
        "train_seconds": round(trained, 1), "certify_seconds": round(spent, 1),
        "precision": outcomes[0].evidence.precision, "backend": outcomes[0].evidence.backend,
    }  # fmt: skip
    print(f"{name}: {trained:.0f} s + {spent:.0f} s", record["radius"], record["alm"], flush=True)
    return record


def main() -> None:
    """Run what is asked for and not yet recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=sorted(RUNS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the trained weights go")
    parser.add_argument("--only", nargs="*", help="names of the runs to do")
    parser.add_argument("--skip", type=int, default=20)
    parser.add_argument("--max", type=int)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--precision")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--preset", nargs="*", help="run these presets instead of the list, all with --set")
    parser.add_argument("--set", nargs="*", default=[], help="settings to change in every run, key=value")
    args = parser.parse_args()
    done = json.loads(args.out.read_text()) if args.out.exists() else {"runs": {}}
    done |= {
        "ucan": __version__,
        "torch": torch.__version__,
        "hardware": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} threads",
        "python": platform.python_version(),
        "command": f"python experiments/kinds.py {args.data} --skip {args.skip} --n {args.n}",
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    chosen = {f"{p} {' '.join(args.set)}".strip(): (p, []) for p in args.preset} if args.preset else RUNS[args.data]
    for name, (preset, changes) in chosen.items():
        if name not in done["runs"] and (not args.only or name in args.only):
            done["runs"][name] = run(name, preset, changes, args, args.runs)
            args.out.write_text(json.dumps(done, indent=1) + "\n")


if __name__ == "__main__":
    main()
