"""How near the next picture of another class is: what a radius would have to stay below to mean anything.

    python experiments/neighbours.py mnist
    python experiments/neighbours.py cifar10

Writes recorded/DATA-neighbours.json: the ℓ2 distance from every tenth test picture to the nearest training picture of
another class, as shares of the pictures that have one within each radius.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from ucan import data
from ucan.rounding import ceil_digits

RADII = (2.25, 5.0, 10.0)


def nearest_of_another_class(name: str, step: int = 10) -> torch.Tensor:
    """One distance for every ``step``-th test picture."""
    test, train = data.load(name, "test"), data.load(name, "train")
    x, labels = test.batch(range(0, len(test), step))
    pictures, classes = train.batch(range(len(train)))
    nearest = torch.full((len(x),), torch.inf)
    for some, theirs in zip(pictures.split(5_000), classes.split(5_000), strict=True):
        distance = torch.cdist(x.flatten(1), some.flatten(1))
        nearest = nearest.minimum(distance.masked_fill(labels[:, None] == theirs[None], torch.inf).amin(1))
    return nearest


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=("mnist", "cifar10"))
    name = parser.parse_args().data
    nearest = nearest_of_another_class(name)
    record = {"pictures": len(nearest), "median": float(ceil_digits(float(nearest.median()), 2)),
              "within": {f"{r:g}": round(float((nearest <= r).float().mean()), 4) for r in RADII}}  # fmt: skip
    (Path(__file__).parent / "recorded" / f"{name}-neighbours.json").write_text(json.dumps(record, indent=1) + "\n")
    print(record)


if __name__ == "__main__":
    main()
