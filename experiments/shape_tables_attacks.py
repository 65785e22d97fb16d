"""Attack all certificates of shape_tables.py inside their boxes: two tables, two models, both noises, every fold.

    python experiments/shape_tables_attacks.py --out experiments/recorded/shape-tables-attacks.json

Every fold's models are trained again, which gives the same ones, and certified again by ``certify(budget=1)`` from the same
votes. All certificates, those of a wrong class included, are attacked by the project's auditor inside 0.999 of their boxes
and of their regions. A logistic regression is attacked by gradients: as a linear layer of its weights, in float64. A forest
has none, and is attacked by the auditor's evolution strategy. OUT.json has a record for each row of the table and each split
into folds (``seed``), with the certified shares that belong to it, and is written as they come; those in it are not made
again. Wine has only 178 rows, so it is split three times.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shape_attacks import FACTOR, add_effort, effort_of, in_a_line, record_of
from shape_tables import LEVELS, MODELS, TABLES, Fold, folds, shares
from torch import nn

import ucan
from ucan import Certificate, SmoothedClassifier
from ucan.audit import Attempt, Budget, Ledger, audit_all
from ucan.plan import CertifyPlan
from ucan.storage import write_whole

SPLITS = {"breast cancer": 1, "wine": 3}
CPU = torch.device("cpu")


def scores(model: Any) -> nn.Module:
    """A logistic regression as a layer that has gradients: the same decisions, from the same weights."""
    weights, offsets = np.atleast_2d(model.coef_), model.intercept_
    if len(weights) == 1:  # two classes: the second one's score against 0
        weights, offsets = np.concatenate([0 * weights, weights]), np.concatenate([0 * offsets, offsets])
    layer = nn.Linear(weights.shape[1], len(weights), dtype=torch.float64)
    layer.load_state_dict({"weight": torch.from_numpy(weights), "bias": torch.from_numpy(offsets)})
    return layer.eval()


class Forest:
    """The answers of a fitted forest: its ``predict`` without the checks and threads that take most of the time."""

    def __init__(self, model: Any) -> None:
        self.trees = [each.tree_ for each in model.estimators_]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        x = np.ascontiguousarray(rows.numpy(), dtype=np.float32)
        return torch.from_numpy(sum(tree.predict(x) for tree in self.trees).argmax(1))


def answering(model: Any) -> nn.Module | Forest:
    """A fitted model as it is certified and attacked."""
    return scores(model) if hasattr(model, "coef_") else Forest(model)


class Row:
    """The attempts on all certificates of one row of the table."""

    def __init__(self, about: dict[str, Any], effort: Budget, folder: Path) -> None:
        self.about, self.effort = about, effort
        name = "-".join(str(about[key]).replace(" ", "-") for key in ("data", "model", "method", "seed"))
        self.ledger = Ledger(folder / name, {"kind": "audit", **about, **vars(effort)})
        self.attempts: list[Attempt] = []
        self.reached: list[float] = []
        self.seconds = 0.0

    def attack(self, fold: Fold, law: ucan.Law, n: int) -> None:
        """Certify the rows of a fold and attack what is certified."""
        begun, cases = time.monotonic(), list[tuple[int, torch.Tensor, Certificate]]()
        g = SmoothedClassifier(answering(fold.model), law, fold.noise, num_classes=len(fold.model.classes_))
        budget = ucan.Budget.of(1.0, tuple(fold.x.shape[1:]))
        self.plan = CertifyPlan(n=n, batch_size=4096, budget=budget)
        for i, outcome in g.certify_each(fold.x.split(1), self.plan):
            sure = isinstance(outcome, Certificate) and outcome.budget_factor
            if isinstance(outcome, Certificate) and sure:
                cases.append((int(fold.rows[i]), fold.x[i][None], outcome))
            self.reached.append(float(sure) if sure and outcome.prediction == fold.y[i] else -1.0)
        self.attempts += audit_all(g, cases, self.ledger, factors=(FACTOR,), budget=self.effort)
        self.seconds += time.monotonic() - begun

    def record(self) -> dict[str, Any]:
        found = {"levels": LEVELS, "certified": shares(self.reached), "rows": len(self.reached)}
        return record_of(self.about | found, self.plan, self.effort, self.attempts, self.seconds, CPU)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ledgers", type=Path, help="a folder for every attempt; by default beside OUT.json")
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--n", type=int, default=2000)
    add_effort(parser)
    args = parser.parse_args()
    law, effort = ucan.Gaussian(args.scale), effort_of(args)
    done: list[dict[str, Any]] = json.loads(args.out.read_text()) if args.out.exists() else []
    for table, kind in ((table, kind) for table in args.tables for kind in args.models):
        for split in range(SPLITS[table]):
            if any((r["data"], r["model"], r["seed"]) == (table, kind, split) for r in done):
                continue
            about = {"data": table, "model": kind, "scale": args.scale, "seed": split, "n": args.n}
            folder = args.ledgers or args.out.with_suffix("")
            rows = {name: Row(about | {"method": name}, effort, folder) for name in ("isotropic", "shaped")}
            for fold in folds(table, kind, law, split):
                rows[fold.noise_name].attack(fold, law, args.n)
            done += [row.record() for row in rows.values()]
            write_whole(args.out, (json.dumps(done, indent=1) + "\n").encode())
            print("\n".join(map(in_a_line, done[-2:])), flush=True)


if __name__ == "__main__":
    main()
