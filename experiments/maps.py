"""The noise of trained runs as pictures: μ and λσ in every pixel, noisy copies, and what the classifier is shown of one.

    python experiments/maps.py isotropic=runs/a dataset-wise=runs/b --index 3 --out docs/images/noise-mnist.png

The runs are folders of `ucan train` or of suite.py, all of one data set; one line each, at the same test input.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from sheets import draw, sheet

from ucan import SmoothedClassifier, data
from ucan.app.noise import noise_maps, noisy_copies
from ucan.report.pictures import DIVERGING, as_map, as_picture
from ucan.training import load_run

SIDE = 124


def image(uri: str) -> str:
    """A picture, its pixels left as they are."""
    return f'<image href="{uri}" width="{SIDE}" height="{SIDE}" style="image-rendering: pixelated"/>'


def ends(values: np.ndarray) -> str:
    """From the least to the most."""
    low, high = float(values.min()), float(values.max())
    return f"{high:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"


def line(name: str, folder: Path, index: int) -> list[tuple[str, str]]:
    """One run: the input, μ, λσ, a noisy copy; and another, or what the classifier is shown of the first."""
    run = load_run(folder)
    g = SmoothedClassifier(run.classifier, run.law, run.generator, run.num_classes)
    x = data.load(run.settings.data)[index][0][None]
    mu, sigma, _ = noise_maps(g, x)
    copies, seen = noisy_copies(g, x, 2, seed=0)
    most = max(float(np.abs(mu).max()), 1e-9)
    cells = [
        (name, as_picture(x[0])),
        (f"μ: {ends(mu)}", as_map(mu, -most, most, DIVERGING)),
        (f"λσ: {ends(sigma)}", as_map(sigma, 0.0, max(1.0, float(sigma.max())))),
        ("a noisy copy", as_picture(copies[0])),
        ("another", as_picture(copies[1])) if torch.equal(copies, seen) else ("what is shown", as_picture(seen[0])),
    ]
    return [(title, image(uri)) for title, uri in cells]


def main() -> None:
    """One picture of all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    cells = []
    for one in args.runs:
        name, _, folder = one.partition("=")
        cells += line(name, Path(folder), args.index)
    draw(sheet(cells, 5, SIDE), args.out)


if __name__ == "__main__":
    main()
