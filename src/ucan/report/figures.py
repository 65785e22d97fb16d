"""The figures, as SVG: certified accuracy with its bands, a slice through a region, the votes of one input.

Nothing here needs a browser or a plotting library: geometry is worked out here and drawn by the template `figures.svg`. A
figure is drawn with a ``Paint``: on the page its colours are CSS variables, so that the theme and the printer choose them;
in a file they are the colours themselves.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup

from ucan.report.axes import ticks
from ucan.report.markup import Macros
from ucan.report.paint import DASHES, FONT, PAPER, Paint
from ucan.report.slices import Slice
from ucan.results.curves import Curve

_DRAW = Macros("ucan.report", "figures.svg")
# The width of a letter below a bar, at most.
LETTER = 7
# Classes in a chart of votes, at most.
BARS = 10


@dataclass(frozen=True)
class Line:
    """One run in a chart of curves; ``note`` stands beside its name and scope."""

    label: str
    scope: str
    number: int
    curve: Curve
    note: str = ""

    @property
    def about(self) -> str:
        """What the legend says after the name."""
        # No plain space: some drawing programs leave it out at the start of a <tspan>.
        return f"\u00a0· {self.scope}{', ' if self.note else ''}{self.note}"

    @property
    def style(self) -> dict[str, str]:
        """The line's attributes in SVG: its dashes tell the scope."""
        return stroke(self.scope)


@dataclass(frozen=True)
class Frame:
    """Where a chart's plot lies, in pixels, and what its width stands for."""

    width: int
    left: float
    right: float
    top: float
    bottom: float
    most: float

    def places(self, sizes: Any) -> Any:
        """Where radii lie across."""
        return self.left + (self.right - self.left) * np.minimum(sizes, self.most) / self.most

    def heights(self, percent: Any) -> Any:
        """Where shares in percent lie up and down."""
        return self.bottom - (self.bottom - self.top) * percent / 100


def accuracy_chart(
    lines: Sequence[Line], axis: str, about: str, paint: Paint = PAPER, width: int = 760, css: str | None = None
) -> Markup:
    """Certified accuracy of several runs: colour by run, line by scope, bands around, the legend below.

    ``css`` is the class of the element, for a page that shows one of several widths.
    """
    narrow = width < 500
    frame = Frame(width, 44, width - 12, 14, 230 if narrow else 340, _most(lines))
    entries, height = _legend(lines, frame, frame.bottom + 62)
    return _DRAW.accuracy(
        _sheet(width, height, about, paint),
        frame,
        f"{frame.most:.6g}",
        css,
        axis,
        [(line, _steps(line.curve, frame), _band(line.curve, frame)) for line in lines],
        ticks(frame.most, 4 if narrow else 8),
        entries,
    )


def slice_chart(
    cut: Slice,
    most: float,
    number: int,
    scope: str,
    about: str,
    paint: Paint = PAPER,
    width: int = 250,
    title: str = "",
) -> Markup:
    """A two-dimensional slice through a certified region, and the ball inside it; ``most`` is the plot's half width.

    As in the curves, the region's outline tells the scope. A figure that stands alone has it in words, too: ``title``.
    """
    middle, unit = width / 2, (width / 2 - 14) / most

    def shape(points: np.ndarray) -> str:
        return "M" + "L".join(f"{middle + unit * x:.1f} {middle - unit * y:.1f}" for x, y in points) + "Z"

    places = [(middle + unit * t, t) for t in ticks(most, 3) if t <= most]
    sheet = _sheet(width, width + (36 if title else 14), about, paint)
    return _DRAW.slice(sheet, paint.run(number), stroke(scope), shape(cut.region), shape(cut.ball), places, title)


def votes_chart(
    counts: Sequence[int],
    answer: int | None,
    truth: int,
    paint: Paint = PAPER,
    at: tuple[int, int] | None = None,
    names: Sequence[str] = (),
) -> Markup:
    """The votes of one input by class: the answer's bar filled, the true class underlined; of many classes the largest.

    ``at`` is the place of the figure inside another one. Classes have their names, below a bar as far as there is room.
    """
    order = sorted(range(len(counts)), key=lambda k: -counts[k])[:BARS] if len(counts) > BARS else range(len(counts))
    classes, total = sorted(order), max(1, *counts)
    called = {k: names[k] if k < len(names) else f"class {k}" for k in classes}
    said = ", ".join(f"{called[k]}: {counts[k]:,}" for k in sorted(classes, key=lambda k: -counts[k])[:3] if counts[k])
    gap = 172 / max(1, len(classes))
    bars = [
        (k, counts[k], 66 * counts[k] / total, called[k], _below(names[k], gap, k) if k < len(names) else str(k))
        for k in classes
    ]
    sheet = _sheet(180, 92, f"Votes by class. {said or 'None is valid'}.", paint)
    return _DRAW.votes(sheet, bars, gap, answer, truth, at)


def _below(name: str, room: float, number: int) -> str:
    """A class's name as it fits below its bar, cut short if need be; its number where not even that fits."""
    letters = int(room / LETTER)
    if len(name) <= letters:
        return name
    return f"{name[: letters - 1]}…" if letters > 4 else str(number)


def input_sheet(
    title: str,
    panels: Sequence[tuple[str, str, str]],
    counts: Sequence[int],
    answer: int | None,
    truth: int,
    names: Sequence[str] = (),
) -> Markup:
    """One input as a figure that stands alone: its pictures (name, note, address) in a row, and its votes behind them."""
    right = 8 + 112 * len(panels)
    votes = votes_chart(counts, answer, truth, PAPER, at=(right, 36), names=names)
    return _DRAW.input(_sheet(max(right + 188, 16 + 6.9 * len(title)), 166, title, PAPER), panels, votes, right)


def stroke(scope: str) -> dict[str, str]:
    """The attributes of a line whose dashes tell the scope."""
    pattern = DASHES.get(scope, DASHES["unknown"])
    round_ends = {"stroke-linecap": "round"} if scope == "registry" else {}
    return {"stroke-dasharray": pattern, **round_ends} if pattern else {}


def _sheet(width: float, height: float, about: str, paint: Paint) -> dict[str, Any]:
    """What every figure has: its size, what it shows in words, and its colours."""
    return {"width": width, "height": height, "about": about, "paint": paint, "font": FONT}


def _most(lines: Sequence[Line]) -> float:
    """The right end of the axis: a little beyond the last step."""
    return max(1.04 * max(line.curve.end for line in lines), 1e-3)


def _steps(curve: Curve, frame: Frame) -> str:
    """The curve as a path: down at each step, then on to the next; it ends where it has come down to 0."""
    x, y = frame.places(curve.at), frame.heights(curve.percent)
    moves = [f"V{b:.1f}H{a:.1f}" for a, b in zip(x[1:], y[1:], strict=True)]
    if curve.percent[-1] == 0:
        moves[-1] = f"V{y[-1]:.1f}"
    return f"M{x[0]:.1f} {y[0]:.1f}{''.join(moves)}"


def _band(curve: Curve, frame: Frame) -> str:
    """The band up to the last step: along its upper limit, and back along the lower."""
    x, high, low = frame.places(curve.at), frame.heights(curve.high), frame.heights(curve.low)
    last = -1 if curve.percent[-1] == 0 else len(x)
    there = "".join(f"V{b:.1f}H{a:.1f}" for a, b in zip(x[1:last], high[1:last], strict=True))
    back = "".join(f"V{b:.1f}H{a:.1f}" for a, b in zip(x[:last][-2::-1], low[:last][:0:-1], strict=True))
    return f"M{x[0]:.1f} {high[0]:.1f}{there}{back}Z"


def _legend(
    lines: Sequence[Line], frame: Frame, top: float
) -> tuple[list[tuple[Line, float, float, list[str]]], float]:
    """(line, x, y, its words) for each line; and the height at which the figure ends."""
    longest = max(len(line.label) + len(line.about) for line in lines)
    columns = max(1, min(len(lines), int((frame.right - frame.left) // (44 + 6.6 * longest))))
    wide = (frame.right - frame.left) / columns
    entries, y = [], top
    for start in range(0, len(lines), columns):
        row = [(line, _words(line, int((wide - 44) / 6.4))) for line in lines[start : start + columns]]
        entries += [(line, frame.left + wide * i, y, words) for i, (line, words) in enumerate(row)]
        y += 20 + 16 * max(len(words) - 2 for _, words in row)
    return entries, y - 8


def _words(line: Line, room: int) -> list[str]:
    """The name (cut if it is too long), the scope, and the note: beside them if there is room, else in lines below."""
    if len(line.label) + len(line.about) <= room:
        return [line.label, line.about]
    about = replace(line, note="").about
    name = line.label
    if len(name) + len(about) > room:
        name = name[: max(4, room - len(about) - 1)] + "…"
    return [name, about, *textwrap.wrap(line.note, room)]
