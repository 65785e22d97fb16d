"""Draws docs/images/regions.png, the README's picture: `pip install matplotlib`, then `python docs/picture.py`.

Nothing in it is drawn by eye: both regions are certificates of a toy classifier in the plane.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Ellipse

import ucan
from ucan.rounding import floor_digits

SCALE = 0.5
STRETCH = torch.tensor([4.0, 1.0])
X = torch.tensor([[0.0, 1.15]])
BLUE, ORANGE, INK = "#2f6fb3", "#d9772b", "#222222"


def boundary(a: torch.Tensor) -> torch.Tensor:
    """Where the classifier changes its answer: a wavy line, so the vertical direction matters most."""
    return -0.12 * torch.cos(1.3 * a)


def classify(points: torch.Tensor) -> torch.Tensor:
    """Class 1 above the line, 0 below."""
    return (points[:, 1] > boundary(points[:, 0])).long()


def panel(axes: plt.Axes, title: str, generator: ucan.Generator) -> None:
    """One noise: a few noisy copies, and the region that they certify."""
    (c,) = ucan.SmoothedClassifier(classify, ucan.Gaussian(SCALE), generator, num_classes=2).certify(X)
    copies = generator.perturb(X, ucan.Gaussian(SCALE), 300, torch.Generator().manual_seed(1))[:, 0]
    a = np.linspace(-8, 8, 400)
    line = boundary(torch.from_numpy(a)).numpy()
    axes.fill_between(a, line, 5, color=BLUE, alpha=0.10, lw=0)
    axes.fill_between(a, -3, line, color=ORANGE, alpha=0.12, lw=0)
    axes.plot(a, line, color=INK, lw=1.5)
    axes.scatter(copies[:, 0], copies[:, 1], s=5, color="#777777", alpha=0.55, lw=0)
    sigma = c.region.scale.dense(2).diagonal().numpy()
    width, height = 2 * c.region.radius * sigma
    axes.add_patch(Ellipse(X[0].tolist(), width, height, facecolor=BLUE, alpha=0.35, lw=0))
    axes.add_patch(Ellipse(X[0].tolist(), width, height, fill=False, edgecolor=BLUE, lw=2))
    axes.plot(*X[0].tolist(), "o", color=INK, ms=5)
    axes.set_title(
        f"{title}\nradius {floor_digits(c.radius, 2)}, area {floor_digits(np.pi * width * height / 4, 1)}",
        fontsize=11,
        color=INK,
    )
    axes.set(xlim=(-6, 6), ylim=(-1.7, 3.3), aspect="equal", anchor="S", xticks=[], yticks=[])
    axes.text(-5.8, 2.85, "class 1", color=BLUE, fontsize=10)
    axes.text(-5.8, -1.5, "class 0", color=ORANGE, fontsize=10)


def main() -> None:
    """Two panels side by side."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 2.6), layout="constrained")
    panel(left, "the same noise in every direction", ucan.Isotropic())
    panel(right, "noise shaped to the classifier", ucan.Fixed(STRETCH))
    target = Path(__file__).parent / "images" / "regions.png"
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
