"""Routers on scikit-learn's digits: certified accuracy beside their experts', and 500 certificates of each attacked.

    python experiments/router_audits.py --out experiments/recorded/router-digits.json        # an hour on one CPU core

Experts: a small CNN at σ = 0.5 and one at σ = 0.25. Three routers: a smoothed selector at σ = 0.5 that learned which of the two
has the larger radius on each training digit; ``Threshold`` with τ = 1/2; and the same with a veto at ν = 0.2. All test digits
are certified for the table. Attacked are certificates of test and then of training digits, choice and answer each in 0.999 of
its own region with the auditor's default budget. The record grows as it goes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ucan import Certificate, Routed, SmoothedClassifier, Threshold, __version__, data
from ucan.audit import Attempt, Budget, Ledger, audit_all, summarise
from ucan.models.cnn import CNN
from ucan.plan import CertifyPlan
from ucan.runs.train import changed
from ucan.storage import write_whole
from ucan.training import Trainer, read_settings

WIDE, NARROW, VETO, RADII = 0.5, 0.25, 0.2, (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75)


def trained(folder: Path, train_set: data.Labelled, classes: int, sigma: float) -> SmoothedClassifier:
    """The preset digits-isotropic with a small network, at this σ."""
    settings = changed(read_settings("digits-isotropic"), [f"law.scale={sigma}"])
    trainer = Trainer(settings, train_set, CNN(1, 8, classes, width=8), folder, "cpu")
    trainer.run()
    trainer.joint.load_state_dict(trainer.final_state())
    return SmoothedClassifier(trainer.joint.eval().classifier, trainer.law, num_classes=classes)


def inputs_of(source: data.Labelled, most: int | None = None) -> torch.Tensor:
    """The first inputs of a data set, (batch, *event)."""
    return torch.stack([source[i][0] for i in range(len(source) if most is None else min(most, len(source)))])


def selector_of(folder: Path, train_set: data.Labelled, experts: list[SmoothedClassifier]) -> SmoothedClassifier:
    """A selector that learned which expert certifies the right class with the larger radius."""
    x, y = inputs_of(train_set), [int(train_set[i][1]) for i in range(len(train_set))]
    radii = [
        [
            c.radius if c.prediction == label else -1.0
            for c, label in zip(g.certify(x, n=200, alpha=0.05), y, strict=True)
        ]
        for g in experts
    ]
    better = torch.tensor([int(narrow > wide) for wide, narrow in zip(*radii, strict=True)])
    return trained(folder, data.InMemory(x, better), 2, WIDE)


def accuracy(outcomes: list[Any], labels: list[int]) -> list[float]:
    """Certified accuracy in % at the radii."""
    right = [0.0 if c.abstained or c.prediction != y else c.radius for c, y in zip(outcomes, labels, strict=True)]
    return [100 * sum(r >= at and r > 0 for r in right) / len(right) for at in RADII]


def parts(
    g: Routed, cases: list[tuple[int, torch.Tensor, Certificate]]
) -> Iterator[tuple[SmoothedClassifier, str, list]]:
    """What is attacked: every choice and every answer, with the classifier that each is about."""
    for k, expert in enumerate(g.experts):
        yield expert, "answer", [(i, x, c.answer) for i, x, c in cases if c.expert == k]
        if isinstance(g.selector, Threshold):
            yield expert, "choice", [(i, x, c.choice) for i, x, c in cases if c.choice.of == k]
    if isinstance(g.selector, SmoothedClassifier):
        yield g.selector, "choice", [(i, x, c.choice) for i, x, c in cases]


def attacked(g: Routed, x: torch.Tensor, args: argparse.Namespace, name: str) -> Iterator[dict[str, Any]]:
    """The summary after every fifty certificates."""
    budget, attempts, done, start = Budget(), list[Attempt](), 0, time.perf_counter()
    ledger = Ledger(args.runs / f"audit-{name}", {"kind": "audit", "n": args.n, **vars(budget)})
    plan = CertifyPlan(n=args.n)
    made = ((i, x[i : i + 1], c) for i, c in g.certify_each(list(x.split(1)), plan) if not c.abstained and c.radius > 0)
    while some := list(itertools.islice(made, min(50, args.certificates - done))):
        for expert, part, cases in parts(g, some):
            attempts += audit_all(
                expert, cases, ledger, factors=(0.999,), budget=budget, part=part, alpha=plan.alpha
            )  # fmt: skip
        done += len(some)
        broken = {part: sum(a.refuted for a in attempts if a.part == part) for part in ("choice", "answer")}
        yield {
            "certificates": done, "attempts": len(attempts), "broken": broken, "bug": summarise(attempts).is_bug,
            "seconds": round(time.perf_counter() - start),
        }  # fmt: skip


def main() -> None:
    """Train, certify, attack; keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/router-digits"), help="where the trained weights go")
    parser.add_argument("--certificates", type=int, default=500)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--inputs", type=int, help="so many test digits only")
    args = parser.parse_args()
    train_set, test_set = data.load("digits", "train"), data.load("digits", "test")
    test = inputs_of(test_set, args.inputs)
    labels = [int(test_set[i][1]) for i in range(len(test))]
    experts = [trained(args.runs / f"sigma-{sigma:g}", train_set, 10, sigma) for sigma in (WIDE, NARROW)]
    selector = selector_of(args.runs / "selector", train_set, experts)
    systems: dict[str, SmoothedClassifier | Routed] = {f"sigma {WIDE:g}": experts[0], f"sigma {NARROW:g}": experts[1]}
    systems["selector"] = Routed(selector, experts)
    systems["threshold 0.5"] = Routed(Threshold(experts[0], 0.5), experts)
    systems[f"threshold 0.5, veto {VETO:g}"] = Routed(Threshold(experts[0], 0.5, VETO), experts)
    record: dict[str, Any] = {"complete": False, "data": "digits", "seed": 0, "n": args.n, "alpha": 0.001, "norm": "2"}
    record |= {"radii": RADII, "inputs": len(test), "factor": 0.999, "budget": vars(Budget()), "ucan": __version__}
    record |= {"torch": torch.__version__, "hardware": "CPU", "accuracy": {}, "attacked": {}}

    def keep() -> None:
        write_whole(args.out, (json.dumps(record, indent=1) + "\n").encode())

    for name, g in systems.items():
        record["accuracy"][name] = accuracy(g.certify(test, n=args.n), labels)
        print(name, *(f"{value:.1f}" for value in record["accuracy"][name]), flush=True)
        keep()
    more = torch.cat([test, inputs_of(train_set, 2 * args.certificates)])
    for name, g in systems.items():
        for told in attacked(g, more, args, name.replace(" ", "-")) if isinstance(g, Routed) else ():
            record["attacked"][name] = told
            print(name, told, flush=True)
            keep()
    record["complete"] = True
    keep()


if __name__ == "__main__":
    main()
