"""What the auditor finds: radii that are too large by a known factor, and how many of their certificates it breaks.

    python experiments/audit_power.py --out OUT --classifiers linear mlp
    python experiments/audit_power.py --out OUT --classifiers mnist --device cuda       # MNIST is sought in UCAN_DATA_DIR

The fault is planted: a Gaussian law whose radius is ``times`` as large as it should be. The inputs are those whose honest
radius lies between 0.5λ and 2.5λ, the attack has the default budget and all three factors. OUT/NAME.json has one row for
each inflation and is written after each; rows that are there are not made again, and a row that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ucan
from ucan import data
from ucan.audit import Budget, Ledger, audit_all, summarise
from ucan.certificate import Certificate
from ucan.training import Trainer, build_classifier, is_trained_run, load_run, read_settings

HERE = Path(__file__).parent
INFLATIONS = (1.0, 1.05, 1.1, 1.2, 1.3, 1.6)
LOW, HIGH = 0.5, 2.5  # honest radii, in λ


@dataclass(frozen=True)
class Inflated(ucan.Gaussian):
    """The planted fault: every radius ``times`` as large as it should be."""

    times: float = 1.0

    def _radius(self, p_a: Any, p_b: Any, norm: float, dim: int) -> Any:
        return self.times * super()._radius(p_a, p_b, norm, dim)


@dataclass(frozen=True)
class Subject:
    """A classifier, the λ of its noise, inputs (count, *event), and how many votes certify each."""

    model: nn.Module
    scale: float
    inputs: torch.Tensor
    classes: int
    n: int
    about: str


def linear(args: argparse.Namespace) -> Subject:
    """Two classes in 20 dimensions, inputs at 0.4λ to 2.6λ from the border; n = 100,000."""
    rng = torch.Generator().manual_seed(args.seed)
    normal = nn.functional.normalize(torch.randn(20, generator=rng), dim=0)
    model = nn.Linear(20, 2, bias=False).eval()
    with torch.no_grad():
        model.weight.copy_(torch.stack([-3 * normal, 3 * normal]))
    x = torch.randn(2 * args.sound, 20, generator=rng)
    distance = 0.4 + 2.2 * torch.rand(len(x), generator=rng)
    x = x + (distance - x @ normal)[:, None] * normal
    return Subject(model, 1.0, x, 2, 100_000, "linear, 2 classes, 20 dimensions, λ = 1")


def mlp(args: argparse.Namespace) -> Subject:
    """Two hidden layers of 128 on scikit-learn's digits, trained under noise of λ = 0.5; n = 10,000."""
    rng = torch.Generator().manual_seed(args.seed)
    torch.manual_seed(args.seed)
    train_set, test_set = data.load("digits", "train"), data.load("digits", "test")
    x, y = train_set.batch(range(len(train_set)))
    layers = [nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    model = nn.Sequential(*layers)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(60):
        for some in torch.randperm(len(x), generator=rng).split(64):
            noisy = x[some] + 0.5 * torch.randn(x[some].shape, generator=rng)
            loss = nn.functional.cross_entropy(model(noisy), y[some])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    inputs = torch.cat([test_set.batch(range(len(test_set)))[0], x])  # the test set is soon used up
    return Subject(model.eval(), 0.5, inputs, 10, 10_000, "MLP 64-128-128-10 on digits, λ = 0.5")


def mnist(args: argparse.Namespace) -> Subject:
    """The CNN of the preset mnist-isotropic-fast, trained here; n = 10,000."""
    folder = args.runs / f"power-mnist-{args.seed}"
    settings = read_settings("mnist-isotropic-fast")
    if not is_trained_run(folder):
        train_set = data.load("mnist", "train")
        model = build_classifier(settings, train_set.event_shape, train_set.num_classes)
        Trainer(settings, train_set, model, folder, args.device).run()
    trained, test_set = load_run(folder), data.load("mnist", "test")
    inputs, _ = test_set.batch(range(min(len(test_set), 4 * args.sound)))
    return Subject(trained.classifier, trained.law.scale, inputs, 10, 10_000, "CNN, preset mnist-isotropic-fast, λ = 1")


CLASSIFIERS: dict[str, Callable[[argparse.Namespace], Subject]] = {"linear": linear, "mlp": mlp, "mnist": mnist}


def chosen(subject: Subject, count: int, device: torch.device) -> torch.Tensor:
    """The first inputs whose honest radius is neither small nor large."""
    g = ucan.SmoothedClassifier(subject.model, ucan.Gaussian(subject.scale), num_classes=subject.classes)
    found: list[torch.Tensor] = []
    for some in subject.inputs.split(64):
        outcomes = g.certify(some.to(device), n=subject.n)
        pairs = zip(some, outcomes, strict=True)
        found += [x for x, c in pairs if LOW * subject.scale <= c.radius <= HIGH * subject.scale]
        if len(found) >= count:
            break
    return torch.stack(found[:count]).to(device)


def measured(subject: Subject, x: torch.Tensor, times: float, ledger: Ledger, budget: Budget) -> dict[str, Any]:
    """One row: the certificates of a law that is wrong by ``times``, attacked."""
    law = Inflated(subject.scale, times=times)
    g = ucan.SmoothedClassifier(subject.model, law, num_classes=subject.classes)
    outcomes = g.certify(x, n=subject.n, seed=budget.seed + 1)  # other votes than those that chose the inputs
    cases = [(i, x[i : i + 1], c) for i, c in enumerate(outcomes) if isinstance(c, Certificate)]
    start = time.perf_counter()
    summary = summarise(audit_all(g, cases, ledger, budget=budget))
    return {
        "times": times,
        "attacked": summary.attacked,
        "broken": summary.broken["live"],
        "answer_changed": summary.changed["live"],
        "certified_again": len(summary.bugs),
        "allowed_by_chance": summary.allowed,
        "bug": summary.is_bug,
        "seconds": round(time.perf_counter() - start, 1),
    }


def record(name: str, args: argparse.Namespace) -> None:
    """The rows of one classifier, each written when it is there."""
    path = args.out / f"{name}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    missing = [times for times in args.inflations if times not in [row["times"] for row in rows]]
    if not missing:
        return
    device, budget = torch.device(args.device), Budget(seed=args.seed)
    subject = CLASSIFIERS[name](args)
    subject.model.to(device)
    x = chosen(subject, max(args.certificates, args.sound), device)
    about = {
        "classifier": subject.about, "n": subject.n, "alpha": 0.001, "seed": args.seed, "budget": vars(budget),
        "command": " ".join(["python", *sys.argv]), "hardware": _hardware(device), "ucan": ucan.__version__,
        "torch": torch.__version__,
    }  # fmt: skip
    for times in missing:
        ledger = Ledger(
            args.runs / f"power-{name}-{times:g}-{args.seed}", {"times": times, "n": subject.n, **vars(budget)}
        )
        row = measured(subject, x[: args.sound if times == 1 else args.certificates], times, ledger, budget)
        rows = sorted([*rows, row], key=lambda row: row["times"])
        path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
        print(f"{name}: {row}", flush=True)


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} CPU cores ({platform.machine()}), {torch.get_num_threads()} of them used"


def main() -> None:
    """Measure what is asked for and not yet recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "recorded" / "audits" / "power")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where trained weights and ledgers go")
    parser.add_argument("--classifiers", nargs="*", choices=sorted(CLASSIFIERS), default=["linear", "mlp"])
    parser.add_argument("--inflations", nargs="*", type=float, default=list(INFLATIONS))
    parser.add_argument("--certificates", type=int, default=40, help="certificates that are attacked at each inflation")
    parser.add_argument("--sound", type=int, default=250, help="certificates that are attacked where nothing is wrong")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for folder in (args.out, args.runs):
        folder.mkdir(parents=True, exist_ok=True)
    for name in args.classifiers:
        record(name, args)


if __name__ == "__main__":
    main()
