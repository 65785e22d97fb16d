"""Draws docs/images/shape-boxes.svg and shape-digits.svg, the pictures of docs/shape.md: `python docs/shape_pictures.py`.

Nothing in them is drawn by eye: the boxes are certificates of a toy classifier in the plane, the maps are computed from
scikit-learn's digits, and the curves are read from experiments/recorded/shape-digits.json.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch

import ucan
from ucan import data
from ucan.generators.shape import moments_of
from ucan.rounding import floor_digits

ROOT = Path(__file__).parents[1]
BLUE, ORANGE, GREEN, PURPLE, INK, GREY = "#2f6fb3", "#d9772b", "#3a8f4d", "#8a5fb0", "#222222", "#777777"
SCALE, BUDGET = 0.5, torch.tensor([1.0, 1.0])
X = torch.tensor([[0.0, 0.75]])


def classify(points: torch.Tensor) -> torch.Tensor:
    """Class 1 above a line that is nearly level, so the vertical coordinate decides."""
    return (points[:, 1] > 0.08 * points[:, 0]).long()


class Canvas:
    """An SVG file, line by line, in its own coordinates."""

    def __init__(self, width: int, height: int) -> None:
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="Helvetica, Arial, sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def add(self, line: str) -> None:
        """One element."""
        self.lines.append(line)

    def text(self, x: float, y: float, words: str, colour: str = INK, anchor: str = "start", size: int = 13) -> None:
        """A line of text."""
        self.add(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">{words}</text>'
        )

    def save(self, name: str) -> None:
        """Into docs/images."""
        path = ROOT / "docs" / "images" / name
        path.write_text("\n".join([*self.lines, "</svg>"]) + "\n", encoding="utf-8")


def boxes_panel(canvas: Canvas, left: float, title: str, noise: ucan.Generator) -> None:
    """One noise: noisy copies, the region that they certify, and the largest box in it."""
    (c,) = ucan.SmoothedClassifier(classify, ucan.Gaussian(SCALE), noise, num_classes=2).certify(X)
    copies = noise.perturb(X, ucan.Gaussian(SCALE), 250, torch.Generator().manual_seed(1))[:, 0]
    wide, high, unit = 430, 250, 62.0
    at = lambda p: (left + wide / 2 + unit * float(p[0]), 40 + high * 0.62 - unit * float(p[1]))  # noqa: E731
    canvas.add(f'<clipPath id="c{left:g}"><rect x="{left}" y="40" width="{wide}" height="{high}"/></clipPath>')
    canvas.add(f'<g clip-path="url(#c{left:g})">')
    (x0, y0), (x1, y1) = at((-4, -0.32)), at((4, 0.32))
    canvas.add(f'<polygon points="{x0},{y0} {x1},{y1} {x1},0 {x0},0" fill="{BLUE}" fill-opacity="0.09"/>')
    canvas.add(f'<polygon points="{x0},{y0} {x1},{y1} {x1},400 {x0},400" fill="{ORANGE}" fill-opacity="0.12"/>')
    canvas.add(f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" stroke="{INK}" stroke-width="1.5"/>')
    for point in copies:
        px, py = at(point)
        canvas.add(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="1.6" fill="{GREY}" fill-opacity="0.6"/>')
    cx, cy = at(X[0])
    rx, ry = (unit * c.region.radius * c.region.scale.dense(2).diagonal()).tolist()
    canvas.add(
        f'<ellipse cx="{cx}" cy="{cy}" rx="{rx:.1f}" ry="{ry:.1f}" fill="{BLUE}" fill-opacity="0.25" stroke="{BLUE}"/>'
    )
    half = c.region.budget_factor(BUDGET)
    bx, by = (unit * half * BUDGET).tolist()
    canvas.add(
        f'<rect x="{cx - bx:.1f}" y="{cy - by:.1f}" width="{2 * bx:.1f}" height="{2 * by:.1f}" fill="none" '
        f'stroke="{INK}" stroke-width="2"/>'
    )
    canvas.add(f'<circle cx="{cx}" cy="{cy}" r="3.5" fill="{INK}"/></g>')
    canvas.add(f'<rect x="{left}" y="40" width="{wide}" height="{high}" fill="none" stroke="#cccccc"/>')
    canvas.text(left + wide / 2, 26, f"{title}: the box of ±{floor_digits(half, 2)}", anchor="middle", size=15)


def heatmap(canvas: Canvas, left: float, title: str, values: np.ndarray, low: float, high: float) -> None:
    """A map of numbers, light where they are small; by their logarithm where none is 0."""
    side, top = 150, 48
    cell = side / len(values)
    for i, j in np.ndindex(values.shape):
        share = math.log(values[i, j] / low) / math.log(high / low) if low > 0 else values[i, j] / high
        shade = "#" + "".join(f"{round(255 + share * (c - 255)):02x}" for c in (0x1D, 0x4F, 0x86))
        canvas.add(
            f'<rect x="{left + j * cell:.2f}" y="{top + i * cell:.2f}" width="{cell + 0.3:.2f}" height="{cell + 0.3:.2f}" '
            f'fill="{shade}"/>'
        )
    canvas.add(f'<rect x="{left}" y="{top}" width="{side}" height="{side}" fill="none" stroke="#cccccc"/>')
    canvas.text(left + side / 2, 26, title, anchor="middle", size=14)
    canvas.text(left + side / 2, top + side + 20, f"{low:.2g} … {high:.2g}", GREY, "middle")


def curves(canvas: Canvas, left: float, record: dict) -> None:
    """Certified accuracy by ε, the mean over seeds."""
    wide, high, top, most = 300, 190, 40, 0.08
    at = lambda e, share: (left + wide * e / most, top + high * (1 - share))  # noqa: E731
    for share in (0, 0.25, 0.5, 0.75, 1):
        (x0, y), (x1, _) = at(0, share), at(most, share)
        canvas.add(f'<line x1="{x0}" y1="{y}" x2="{x1}" y2="{y}" stroke="#e2e2e2"/>')
        canvas.text(left - 8, y + 4, f"{100 * share:.0f}", GREY, "end", 11)
    names = {"isotropic": ORANGE, "shaped-0.75": BLUE, "learned": GREEN, "composed": PURPLE}
    for number, (method, colour) in enumerate(names.items()):
        jobs = [job for job in record["jobs"] if job["method"] == method and job["stage"] == "final"]
        means = np.mean([job["certified"] for job in jobs], axis=0)
        points = " ".join("{:.1f},{:.1f}".format(*at(e, s)) for e, s in zip(jobs[0]["levels"], means, strict=True))
        canvas.add(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.2"/>')
        canvas.text(left + wide + 10, top + 16 + 20 * number, method, colour)
    for e in (0, 0.02, 0.04, 0.06, 0.08):
        canvas.text(at(e, 0)[0], top + high + 16, f"{e:g}", GREY, "middle", 11)
    canvas.text(left + wide / 2, 26, "certified accuracy in % by ε against ℓ∞", anchor="middle", size=14)


def main() -> None:
    """Both pictures."""
    canvas = Canvas(900, 310)
    boxes_panel(canvas, 10, "the same noise everywhere", ucan.Isotropic())
    fitted = ucan.Fixed.for_budget(BUDGET, harm=torch.tensor([0.08**2, 1.0]), floor=0.0)
    boxes_panel(canvas, 460, "fitted noise, the same Σ(b/σ)²", fitted)
    canvas.save("shape-boxes.svg")

    x, _ = (train := data.load("digits", "train")).batch(torch.arange(len(train)))
    std = moments_of(x)[1][0].numpy()
    sigma = 0.3 * ucan.Fixed.for_budget(1.0, x, power=0.75).scale.sigma[0].numpy()
    canvas = Canvas(900, 265)
    heatmap(canvas, 20, "spread of the pixels", std, 0.0, float(std.max()))
    heatmap(canvas, 200, "fitted σ", sigma, float(sigma.min()), float(sigma.max()))
    curves(canvas, 430, json.loads((ROOT / "experiments" / "recorded" / "shape-digits.json").read_text()))
    canvas.save("shape-digits.svg")


if __name__ == "__main__":
    main()
