"""The paper's table of radii and its ALM formulas, as printed, against what our laws compute.

    python experiments/table1.py            writes recorded/table1.json and two figures into docs/images

Each printed formula is written down anew below, in 50 digits of mpmath and from the paper's page alone; nothing of ucan is
used for it. Over a grid of p, λ and d the largest relative difference to ours is recorded, for the isotropic radius, for
the radius under a diagonal σ and for the ALM. What the page gets wrong is in paper.toml; the Laplace ALM is taken with
the sign it must have.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch
from sheets import draw, sheet

from ucan import ExpInf, Gaussian, Laplace, Pattern, PowerLaw, Region, Uniform, __version__
from ucan.laws import Law, norm_name
from ucan.report import pictures
from ucan.report.figures import slice_chart
from ucan.report.paint import PAPER
from ucan.report.slices import Slice

HERE = Path(__file__).parent
INF = math.inf
P = ("0.5001", "0.51", "0.6", "0.75", "0.9", "0.99", "0.999", "0.9999", "0.999999")
SCALES = (0.25, 1.0, 3.0)
DIMS = (2, 10, 784, 3072, 150_528)
mpmath.mp.dps = 50
HALF = mpmath.mpf(1) / 2

Printed = Callable[[Any, Any, int, float], Any]  # p, λ, d, a → R


@dataclass(frozen=True)
class Line:
    """One line of the table: ``formula`` as it is printed, ``printed`` the same to compute with."""

    law: type[Law]
    norm: float
    formula: str
    printed: Printed


def _quantile(p: Any) -> Any:
    return mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)


LINES = (
    Line(Gaussian, 2, "λΦ⁻¹(p)", lambda p, lam, d, a: lam * _quantile(p)),
    Line(Gaussian, 1, "λΦ⁻¹(p)", lambda p, lam, d, a: lam * _quantile(p)),
    Line(Gaussian, INF, "λΦ⁻¹(p)/√d", lambda p, lam, d, a: lam * _quantile(p) / mpmath.sqrt(d)),
    Line(Laplace, 1, "−λ log(2(1−p))", lambda p, lam, d, a: -lam * mpmath.log(2 * (1 - p))),
    Line(ExpInf, 1, "2dλ(p−½)", lambda p, lam, d, a: 2 * d * lam * (p - HALF)),
    Line(ExpInf, INF, "λ log(1/(2(1−p)))", lambda p, lam, d, a: lam * mpmath.log(1 / (2 * (1 - p)))),
    Line(Uniform, 1, "2λ(p−½)", lambda p, lam, d, a: 2 * lam * (p - HALF)),
    Line(Uniform, INF, "2λ(1−(3/2−p)^(1/d))", lambda p, lam, d, a: 2 * lam * (1 - mpmath.root(3 * HALF - p, d))),
    Line(PowerLaw, 1, "2dλ/(a−d)·(p−½)", lambda p, lam, d, a: 2 * d * lam / (a - d) * (p - HALF)),
)


def made(line: Line, lam: float, d: int) -> tuple[Law, float]:
    """Our law, and its exponent a where it has one (d + 3 or more: a variance must exist)."""
    a = float(d + 3 + d // 3)
    return (PowerLaw(lam, a) if line.law is PowerLaw else line.law(lam)), a


def difference(ours: float, printed: Any) -> float:
    """|ours − printed| / printed."""
    return float(abs(mpmath.mpf(ours) - printed) / abs(printed))


def isotropic(line: Line) -> dict[str, Any]:
    """The largest relative difference over the grid, and where it is."""
    worst: dict[str, Any] = {"difference": -1.0}
    for d in DIMS:
        for lam in SCALES:
            law, a = made(line, lam, d)
            for p in P:
                exact = line.printed(mpmath.mpf(float(p)), mpmath.mpf(lam), d, a)
                found = difference(law.radius(float(p), line.norm, d), exact)
                if found > worst["difference"]:
                    worst = {"difference": found, "p": float(p), "scale": lam, "d": d}
    return worst


def anisotropic(line: Line) -> dict[str, Any]:
    """Under a diagonal σ: our radius over the printed min(σ)·R (1 or more), and the difference in ALM."""
    ratios, alm = [], 0.0
    for d in DIMS[:-1]:
        sigma = 0.2 + torch.rand(d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
        for p in ("0.6", "0.9", "0.999"):
            law, a = made(line, 1.0, d)
            exact = line.printed(mpmath.mpf(float(p)), mpmath.mpf(1), d, a)
            own = law.region_norm(line.norm)
            region = Region(sigma, law.radius(float(p), own, d), own)
            ratios.append(float(region.inscribed_radius(line.norm) / (mpmath.mpf(float(sigma.min())) * exact)))
            mean = mpmath.exp(mpmath.fsum(mpmath.log(mpmath.mpf(s)) for s in sigma.tolist()) / d)
            ours = region.mean_scale * law.radius(float(p), line.norm, d)
            alm = max(alm, difference(ours, mean * exact))
    return {"radius_over_printed": [min(ratios), max(ratios)], "alm_difference": alm}


def record() -> dict[str, Any]:
    """Every line of the table."""
    lines = []
    for line in LINES:
        lines.append(
            {
                "law": line.law.__name__,
                "norm": norm_name(line.norm),
                "formula": line.formula,
                "isotropic": isotropic(line),
                **anisotropic(line),
            }
        )
        print(
            line.law.__name__,
            norm_name(line.norm),
            lines[-1]["isotropic"],
            lines[-1]["radius_over_printed"],
            flush=True,
        )
    grid = {"p": [float(p) for p in P], "scale": list(SCALES), "d": list(DIMS)}
    return {"ucan": __version__, "grid": grid, "points": len(P) * len(SCALES) * len(DIMS), "lines": lines}


# --- figures ---


def outline(sigma: tuple[float, float], law: Law, norm: float, p: float) -> Slice:
    """The certified region in the plane, and the ball inside it."""
    region = Region(torch.tensor(sigma, dtype=torch.float64), law.radius(p, norm, 2), norm)
    angle = np.linspace(0, 2 * np.pi, 3000)
    circle = torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)], axis=1))
    edge = circle * (region.radius / region.size(circle))[:, None]
    ball = circle * (region.inscribed_radius() / torch.linalg.vector_norm(circle, ord=norm, dim=1))[:, None]
    return Slice(edge.numpy(), ball.numpy(), tuple(region.radius * s for s in sigma))  # type: ignore[arg-type]


def regions() -> str:
    """Isotropic above, anisotropic below: ℓ1, ℓ2 and ℓ∞ at the same p; the ball of the certified radius inside."""
    laws = {1: Laplace(0.5), 2: Gaussian(0.5), INF: ExpInf(0.5)}
    shapes = {"σ = (1, 1)": (1.0, 1.0), "σ = (0.6, 1.4)": (0.6, 1.4)}
    cells = []
    for name, sigma in shapes.items():
        for k, (norm, law) in enumerate(laws.items()):
            cut = outline(sigma, law, norm, 0.95)
            title = f"{type(law).__name__}, {norm_name(norm)}, {name}"
            cells.append((title, slice_chart(cut, 1.7, k, "pipeline", title, PAPER, 250)))
    return sheet(cells, 3, 264)


def patterns() -> str:
    """σ(a, b) = ‖(a, b)‖ₚ² + 1 for p = 1, 2, ∞, rescaled to mean 1."""
    cells = []
    for norm in (1, 2, INF):
        sigma = Pattern((1, 96, 96), norm).scale.tensors()["sigma"][0].double().numpy()
        image = pictures.as_map(sigma, 0.0, 2.2)
        title = f"p = {'∞' if norm == INF else f'{norm:g}'}: σ from {sigma.min():.2f} to {sigma.max():.2f}"
        cells.append((title, f'<image href="{image}" width="220" height="220"/>'))
    return sheet(cells, 3, 220)


def main() -> None:
    """The record and the figures."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    path = HERE / "recorded" / "table1.json"
    path.write_text(json.dumps(record(), indent=1, ensure_ascii=False) + "\n")
    images = HERE.parent / "docs" / "images"
    draw(regions(), images / "regions-by-norm.png")
    draw(patterns(), images / "patterns.png")


if __name__ == "__main__":
    main()
