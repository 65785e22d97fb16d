"""What stopping saves: each question on data that come with the package, with a fixed n and with a stopping rule.

    python experiments/questions_stop.py [--inputs 100] [--n 10000] [--out experiments/recorded/questions-stop.json]

Both ways decide the same statements at the same α. ``decided`` is the share of inputs whose statement is shown (of pixels and
labels: the share of those), ``samples`` the mean number of samples of an input, those that choose included.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ucan
from ucan.data import load
from ucan.models import examples
from ucan.questions.decisions import Decided
from ucan.storage import write_whole


@dataclass(frozen=True)
class Task:
    """A question to a smoothed model about a data set, decided at a radius."""

    g: Any
    data: str
    radius: float
    options: dict[str, Any]


def tasks() -> dict[str, Task]:
    """The questions by name."""
    digits = ucan.SmoothedClassifier(examples.digits(), ucan.Gaussian(0.5), num_classes=10)
    regressor = ucan.SmoothedRegressor(examples.diabetes(), ucan.Gaussian(0.25))
    labels = ucan.SmoothedLabels(examples.breast_cancer(), ucan.Gaussian(0.25))
    segmenter = ucan.SmoothedSegmenter(examples.shapes(), ucan.Gaussian(0.25), num_classes=3)
    return {
        "top-k, k = 3": Task(digits, "digits", 0.5, {"top": 3}),
        "confidence 0.5": Task(digits, "digits", 0.25, {"confidence": 0.5}),
        "within ± 30": Task(regressor, "diabetes", 0.4, {"within": 30.0, "n0": 100}),
        "labels": Task(labels, "breast-cancer", 0.2, {"radius": 0.2}),
        "segmentation": Task(segmenter, "shapes", 0.2, {"radius": 0.2}),
    }


def shown(answer: Any, radius: float) -> float:
    """How much of the statement is shown."""
    if answer.abstained:
        return 0.0
    return answer.share if isinstance(answer, Decided) else float(answer.region.radius >= radius)


def main() -> None:
    """Ask every question in both ways, and write what came of it."""
    options = argparse.ArgumentParser()
    options.add_argument("--inputs", type=int, default=100)
    options.add_argument("--n", type=int, default=10_000)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "recorded" / "questions-stop.json")
    asked = options.parse_args()
    rows = {}
    for name, task in tasks().items():
        data = load(task.data)
        most = min(len(data), asked.inputs if name != "segmentation" else asked.inputs // 5)
        x, n = data.batch(range(most))[0], asked.n if name != "segmentation" else asked.n // 10
        row: dict[str, Any] = {"data": task.data, "inputs": most, "radius": task.radius, "n": n}
        for way, stop in (("fixed", None), ("stopped", task.radius)):
            answers = task.g.certify(x, n=n, stop=stop, **task.options)
            samples = sum(one.evidence.n0 + one.evidence.n for one in answers) / most
            row[way] = {"decided": sum(shown(one, task.radius) for one in answers) / most, "samples": samples}
        rows[name] = row
        print(name, row, flush=True)
    write_whole(
        asked.out, json.dumps({"ucan": ucan.__version__, "alpha": 0.001, "tasks": rows}, indent=1).encode() + b"\n"
    )


if __name__ == "__main__":
    main()
