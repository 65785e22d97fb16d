"""Draws docs/images/versus-DATA-BY.png and universal-NORM-BY.png: certified accuracy of every kind of noise and every law.

    python experiments/curves.py
    python experiments/curves.py --recorded OUT --images FOLDER      the figures of one's own records

From the records of the suite. Between two levels a curve (and its band) is that of the next level, so it is never above the
truth; it ends where nothing more was asked or decided.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from results_records import RECORDED, Measured, Recorded, matching
from results_tables import KINDS
from rows import LAWS
from sheets import draw, sheet

from ucan.report.figures import Line, accuracy_chart
from ucan.results.curves import Curve
from ucan.results.metrics import clopper_pearson

# Ablations and the control have a section of their own; on one axis with γ = 5 the rest could not be seen.
APART = ("no-offset", "gamma-5")
PANEL = 390
IMAGES = Path(__file__).parent.parent / "docs" / "images"

CAPPED = "ALM under each row's cap on σ"


def curve(measured: Measured, key: str) -> Curve | None:
    """The recorded levels as steps, with the 95 % band of the inputs; None where fewer than three are known.

    Behind the last level nothing is known: the curve ends there, unless it has come down to 0.
    """
    levels = sorted(measured.shares.get(key, {}))
    if len(levels) < 3:
        return None
    shares = [float(measured.shares[key][level]) for level in levels]
    percent = np.array([*shares, shares[-1]])
    low, high = clopper_pearson(np.round(percent / 100 * measured.inputs), measured.inputs)
    at = np.array([*levels, levels[-1] if shares[-1] else math.inf])
    return Curve(at, percent, np.floor(low * 1000) / 10, np.ceil(high * 1000) / 10)


def chart(rows: list[Measured], by: str, data: str) -> str | None:
    """All rows of one data set, by radius or by ALM; None where nothing is recorded."""
    lines = [
        Line(row.name.removeprefix(f"{data}-versus-"), row.scope, i, made, row.capped if by == "alm" else "")
        for i, row in enumerate(rows)  # a row has the same colour in both figures
        if (made := curve(row, f"l2 {by}")) is not None
    ]
    if not lines:
        return None
    axis = "ℓ2 radius" if by == "radius" else CAPPED
    return accuracy_chart(lines, axis, f"Certified accuracy of {len(lines)} kinds of noise on {data} by {by}")


def universal(recorded: Recorded, norm: str, by: str) -> str | None:
    """Every law against one norm, one chart for each kind of noise; a law has the same colour in all of them."""
    cells = []
    for kind in KINDS:
        rows = {law: recorded.rows.get(f"cifar10-universal-{kind}-{law}") for law in LAWS}
        lines = [
            Line(law, row.scope, i, made, row.capped if by == "alm" else "")
            for i, (law, row) in enumerate(rows.items())
            if row is not None and (made := curve(row, f"{norm} {by}")) is not None
        ]
        if lines:
            axis = f"{'ℓ1' if norm == 'l1' else 'ℓ∞'} radius" if by == "radius" else CAPPED
            about = f"Certified accuracy under {kind} noise by {axis}, {len(lines)} laws"
            cells.append((kind, accuracy_chart(lines, axis, about, width=PANEL)))
    return sheet(cells, 2, PANEL) if cells else None


def main() -> None:
    """Two figures for each data set, and three for all laws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="the folder with suite/")
    parser.add_argument("--images", type=Path, default=IMAGES)
    args = parser.parse_args()
    recorded = Recorded(args.recorded)
    figures = {}
    for data in ("mnist", "cifar10"):
        rows = [row for row in matching(recorded, [f"{data}-versus-*"]) if not row.name.endswith(APART)]
        for by in ("radius", "alm"):
            figures[f"versus-{data}-{by}.png"] = chart(rows, by, data)
    for norm, by in (("l1", "radius"), ("l1", "alm"), ("linf", "radius")):
        figures[f"universal-{norm}-{by}.png"] = universal(recorded, norm, by)
    for name, figure in figures.items():
        if figure is not None:
            draw(figure, args.images / name)


if __name__ == "__main__":
    main()
