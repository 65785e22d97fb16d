"""Shaped noise on tables: two data sets of scikit-learn, two models, every feature at once within ±ε standard deviations.

    python experiments/shape_tables.py --out experiments/recorded/shape-tables.json      (some minutes on one core)

Columns are standardised by the training part. A first model, trained under isotropic noise, says what matters (the weights of
a logistic regression, the importances of a forest); the noise is then shaped by the squares of these, with mean 1/σ² as before,
and a model of the same kind is trained under it. Both are certified on the parts of a five-fold split that they were not
trained on, so every row counts once. Scope ``pipeline``; what is certified is the deployed classifier.
``shape_tables_attacks.py`` attacks these certificates.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

import ucan
from ucan.storage import write_whole

LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
COPIES = 10  # noisy copies of a row to train on
TABLES = {"breast cancer": load_breast_cancer, "wine": load_wine}
MODELS = {
    "logistic": lambda: LogisticRegression(max_iter=1000),
    "forest": lambda: RandomForestClassifier(50, min_samples_leaf=3, random_state=0),
}


def trained(kind: str, x: torch.Tensor, y: np.ndarray, noise: ucan.Generator, law: ucan.Law) -> Any:
    """A model that has seen noisy copies of every row."""
    copies = noise.perturb(x, law, COPIES, torch.Generator().manual_seed(0)).flatten(0, 1)
    return MODELS[kind]().fit(copies.numpy(), np.tile(y, COPIES))


def importances(model: Any) -> torch.Tensor:
    """How much each column matters to a model."""
    values = np.abs(model.coef_).mean(0) if hasattr(model, "coef_") else model.feature_importances_
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


@dataclass(frozen=True)
class Fold:
    """A model with the noise that it was trained under, and the part of the table that it was not trained on.

    ``rows`` are the numbers of that part in the table, ``x`` its standardised columns, ``y`` its classes.
    """

    noise_name: str
    model: Any
    noise: ucan.Generator
    rows: np.ndarray
    x: torch.Tensor
    y: np.ndarray


def folds(table: str, kind: str, law: ucan.Law, split: int = 0) -> Iterator[Fold]:
    """Both noises on every fold of one table and one kind of model; ``split`` is the seed of the folds."""
    values, labels = TABLES[table](return_X_y=True)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=split).split(values, labels):
        mean, std = values[train].mean(0), values[train].std(0)
        x, u = (torch.from_numpy((values[part] - mean) / std).float() for part in (train, test))
        plain = ucan.Isotropic()
        first = trained(kind, x, labels[train], plain, law)
        fitted = ucan.Fixed.for_budget(1.0, harm=importances(first).square())
        second = trained(kind, x, labels[train], fitted, law)
        yield Fold("isotropic", first, plain, test, u, labels[test])
        yield Fold("shaped", second, fitted, test, u, labels[test])


def boxes(fold: Fold, law: ucan.Law, n: int) -> list[float]:
    """The certified ε of every row, −1 where the class is wrong or nothing is certified."""
    answer = lambda rows: torch.from_numpy(fold.model.predict(rows.numpy()).astype(np.int64))  # noqa: E731
    g = ucan.SmoothedClassifier(answer, law, fold.noise, num_classes=len(fold.model.classes_))
    found = g.certify(fold.x, n=n, norm=math.inf, batch_size=4096)
    return [c.radius if c.prediction == label else -1.0 for c, label in zip(found, fold.y.tolist(), strict=True)]


def compared(table: str, kind: str, scale: float, n: int) -> dict[str, Any]:
    """Certified shares of one table and one model under both noises."""
    law = ucan.Gaussian(scale)
    found: dict[str, list[float]] = {"isotropic": [], "shaped": []}
    for fold in folds(table, kind, law):
        found[fold.noise_name] += boxes(fold, law, n)
    return {
        "table": table,
        "model": kind,
        "scale": scale,
        "n": n,
        "rows": len(found["isotropic"]),
        "levels": LEVELS,
        "certified": {name: shares(radii) for name, radii in found.items()},
    }


def shares(radii: list[float]) -> list[float]:
    """The share of rows that reach each level, of their certified ε."""
    return [float(np.mean([r > 0 and r >= e for r in radii])) for e in LEVELS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="shape-tables.json")
    parser.add_argument("--scale", type=float, default=1.0, help="λ of the Gaussian law, in standard deviations")
    parser.add_argument("--n", type=int, default=2000)
    args = parser.parse_args()
    done = []
    for table in TABLES:
        for kind in MODELS:
            done.append(compared(table, kind, args.scale, args.n))
            write_whole(Path(args.out), json.dumps(done, indent=1).encode())
            for name, row in done[-1]["certified"].items():
                print(f"{table:14} {kind:9} {name:10}", " ".join(f"{100 * s:5.1f}" for s in row), flush=True)


if __name__ == "__main__":
    main()
