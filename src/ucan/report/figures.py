"""The figures, as SVG text: certified accuracy with its bands, a slice through a region, the votes of one input.

Nothing here needs a browser or a plotting library. A figure is drawn with a ``Paint``: on the page its colours are CSS
variables, so that the theme and the printer choose them; in a file they are the colours themselves.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np

from ucan.report.slices import Slice
from ucan.results.curves import Curve

# For people who see few colours, too: each pair also differs in lightness or is told apart by its line.
LIGHT = ("#0b62a8", "#c4500a", "#00805e", "#9a2a6f", "#8a6d00", "#3f3aa3", "#0f8f9c", "#7a3e1d", "#5c6670", "#a3123a")
DARK = ("#62b5f0", "#ff9d57", "#3ecf9f", "#ea8cc0", "#e5c451", "#a5a1ff", "#5fd9e4", "#d39b76", "#aab4bf", "#ff7d96")
DASHES = {"pipeline": "", "frozen": "7 4", "registry": "1.5 4.5", "unknown": "10 4 2 4"}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Paint:
    """Colours by their part in a figure."""

    ink: str
    soft: str
    grid: str
    ground: str
    runs: tuple[str, ...]

    def run(self, number: int) -> str:
        """The colour of a report's run by its number; they repeat after the tenth."""
        return self.runs[number % len(self.runs)]


PAPER = Paint("#1b2330", "#5a6675", "#e4e8ed", "#ffffff", LIGHT)
PAGE = Paint("var(--ink)", "var(--soft)", "var(--grid)", "none", tuple(f"var(--run-{i})" for i in range(len(LIGHT))))


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


def accuracy_chart(lines: Sequence[Line], axis: str, about: str, paint: Paint = PAPER, width: int = 760) -> str:
    """Certified accuracy of several runs: colour by run, line by scope, bands around, the legend below."""
    narrow = width < 500
    frame = Frame(width, 44, width - 12, 14, 230 if narrow else 340, _most(lines))
    legend, height = _legend(lines, frame, frame.bottom + 62, paint)
    parts = [_axes(frame, axis, paint, 4 if narrow else 8)]
    parts += [
        f'<path d="{_band(line.curve, frame)}" fill="{paint.run(line.number)}" opacity="0.11"/>' for line in lines
    ]
    parts += [
        f'<path d="{_steps(line.curve, frame)}" fill="none" stroke="{paint.run(line.number)}" stroke-width="2.2" '
        f'stroke-linejoin="round"{_dash(line.scope)}><title>{escape(line.label)}</title></path>'
        for line in lines
    ]
    place = f'data-left="{frame.left}" data-right="{frame.right}" data-top="{frame.top}" data-bottom="{frame.bottom}"'
    return _svg(width, height, about, [*parts, legend], paint, f'{place} data-most="{frame.most:.6g}"')


def slice_chart(
    cut: Slice,
    most: float,
    number: int,
    scope: str,
    about: str,
    paint: Paint = PAPER,
    width: int = 250,
    title: str = "",
) -> str:
    """A two-dimensional slice through a certified region, and the ball inside it; ``most`` is the plot's half width.

    As in the curves, the region's outline tells the scope. A figure that stands alone has it in words, too: ``title``.
    """
    middle, half = width / 2, width / 2 - 14
    unit, foot = half / most, width - 4

    def shape(points: np.ndarray) -> str:
        return "M" + "L".join(f"{middle + unit * x:.1f} {middle - unit * y:.1f}" for x, y in points) + "Z"

    colour = paint.run(number)
    places = [t for t in ticks(most, 3) if 0 < t <= most]
    marks = "".join(f"M{middle + unit * t:.1f} {foot}v-5" for t in (0, *places))
    numbers = "".join(
        f'<text x="{middle + unit * t:.1f}" y="{foot + 13}" text-anchor="middle">{t:g}</text>' for t in (0, *places)
    )
    parts = [
        f'<path d="M14 {middle}H{width - 14}M{middle} 14V{width - 14}" stroke="{paint.grid}"/>',
        f'<path d="{shape(cut.region)}" fill="{colour}" fill-opacity="0.16" stroke="{colour}" stroke-width="2"'
        f"{_dash(scope)}/>",
        f'<path d="{shape(cut.ball)}" fill="none" stroke="{paint.ink}" stroke-width="0.9"/>',
        f'<circle cx="{middle}" cy="{middle}" r="2.4" fill="{paint.ink}"/>',
        f'<path d="M{middle} {foot}H{width - 14}{marks}" stroke="{paint.soft}" fill="none"/>',
        f'<g font-size="10.5" fill="{paint.soft}">{numbers}</g>',
    ]
    below = f'<text x="{middle}" y="{width + 28}" text-anchor="middle" font-size="12" fill="{paint.ink}">{escape(title)}</text>'
    return _svg(width, width + (36 if title else 14), about, [*parts, below if title else ""], paint)


def votes_chart(counts: Sequence[int], answer: int | None, truth: int, paint: Paint = PAPER, most: int = 10) -> str:
    """The votes of one input by class: the answer's bar filled, the true class underlined; of many classes the largest."""
    order = sorted(range(len(counts)), key=lambda k: -counts[k])[:most] if len(counts) > most else range(len(counts))
    classes, total = sorted(order), max(1, *counts)
    width, height, gap = 180, 92, 172 / max(1, len(classes))
    parts = [f'<path d="M4 {height - 18.5}H{width - 4}" stroke="{paint.grid}"/>']
    for i, k in enumerate(classes):
        x, tall = 4 + i * gap, 66 * counts[k] / total
        strong, true = k == answer, ' font-weight="700" text-decoration="underline"' if k == truth else ""
        parts.append(
            f'<rect x="{x + 2:.1f}" y="{height - 19 - tall:.1f}" width="{gap - 4:.1f}" height="{tall:.1f}" rx="1.5" '
            f'fill="{paint.ink if strong else paint.soft}" opacity="{0.9 if strong else 0.45}">'
            f"<title>class {k}: {counts[k]:,} votes</title></rect>"
            f'<text x="{x + gap / 2:.1f}" y="{height - 5}" text-anchor="middle" font-size="11" '
            f'fill="{paint.ink if true else paint.soft}"{true}>{k}</text>'
        )
    said = ", ".join(f"class {k}: {counts[k]:,}" for k in sorted(classes, key=lambda k: -counts[k])[:3] if counts[k])
    return _svg(width, height, f"Votes by class. {said}.", parts, paint)


def input_sheet(title: str, panels: Sequence[tuple[str, str, str]], votes: str, paint: Paint = PAPER) -> str:
    """One input as a figure that stands alone: its pictures (name, note, address) in a row, and its votes behind them."""
    side, step = 96, 112
    parts = [f'<text x="8" y="20" font-size="13" fill="{paint.ink}">{escape(title)}</text>']
    for i, (name, note, address) in enumerate(panels):
        x = 8 + step * i
        parts.append(
            f'<image x="{x}" y="32" width="{side}" height="{side}" image-rendering="optimizeSpeed" href="{escape(address)}"/>'
            f'<text x="{x}" y="{32 + side + 15}" font-size="11" font-weight="600" fill="{paint.ink}">{escape(name)}</text>'
            f'<text x="{x}" y="{32 + side + 29}" font-size="11" fill="{paint.soft}">{escape(note)}</text>'
        )
    x = 8 + step * len(panels)
    parts.append(votes.replace("<svg ", f'<svg x="{x}" y="36" ', 1))
    parts.append(
        f'<text x="{x}" y="{32 + side + 15}" font-size="11" font-weight="600" fill="{paint.ink}">votes by class</text>'
    )
    wide = max(x + 188, 16 + 6.9 * len(title))
    return _svg(wide, 32 + side + 38, title, parts, paint)


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


def _axes(frame: Frame, axis: str, paint: Paint, count: int) -> str:
    levels = "".join(
        f'<path d="M{frame.left} {frame.heights(p):.1f}H{frame.right}" stroke="{paint.grid}"/>'
        f'<text x="{frame.left - 8}" y="{frame.heights(p) + 4:.1f}" text-anchor="end">{p}</text>'
        for p in range(0, 101, 20)
    )
    places = "".join(
        f'<path d="M{frame.places(t):.1f} {frame.bottom}v5" stroke="{paint.soft}"/>'
        f'<text x="{frame.places(t):.1f}" y="{frame.bottom + 19}" text-anchor="middle">{t:g}</text>'
        for t in ticks(frame.most, count)
    )
    middle = (frame.left + frame.right) / 2
    titles = (
        f'<text x="{middle}" y="{frame.bottom + 40}" text-anchor="middle" fill="{paint.ink}">{escape(axis)}</text>'
        f'<text transform="translate(11 {(frame.top + frame.bottom) / 2}) rotate(-90)" text-anchor="middle" '
        f'fill="{paint.ink}">certified accuracy in %</text>'
    )
    return f'<g font-size="12" fill="{paint.soft}">{levels}{places}{titles}</g>'


def ticks(most: float, count: int) -> list[float]:
    """Round numbers from 0 to ``most``, about so many."""
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.floor(most / step) + 1)]


def _legend(lines: Sequence[Line], frame: Frame, top: float, paint: Paint) -> tuple[str, float]:
    """A sample of each line beside its name; and the height at which the figure ends."""
    longest = max(len(line.label) + len(line.about) for line in lines)
    columns = max(1, min(len(lines), int((frame.right - frame.left) // (44 + 6.6 * longest))))
    wide = (frame.right - frame.left) / columns
    room = int((wide - 44) / 6.4)  # letters that fit
    parts = []
    y = top
    for start in range(0, len(lines), columns):
        below = 0
        for i, line in enumerate(lines[start : start + columns]):
            x = frame.left + wide * i
            name, about, *notes = _words(line, room)
            parts.append(
                f'<path d="M{x:.1f} {y - 4}h30" stroke="{paint.run(line.number)}" stroke-width="2.6"{_dash(line.scope)}/>'
                f'<text x="{x + 38:.1f}" y="{y}" fill="{paint.ink}">{escape(name)}'
                f'<tspan fill="{paint.soft}">{escape(about)}</tspan></text>'
            )
            parts += [
                f'<text x="{x + 38:.1f}" y="{y + 16 * k}" fill="{paint.soft}">{escape(note)}</text>'
                for k, note in enumerate(notes, 1)
            ]
            below = max(below, 16 * len(notes))
        y += 20 + below
    return f'<g font-size="12.5">{"".join(parts)}</g>', y - 8


def _words(line: Line, room: int) -> list[str]:
    """A name, cut if it must be, its scope, and its note: beside them where there is room, else below, never left out."""
    if len(line.label) + len(line.about) <= room:
        return [line.label, line.about]
    about = replace(line, note="").about
    name = line.label
    if len(name) + len(about) > room:
        name = name[: max(4, room - len(about) - 1)] + "…"
    return [name, about, *textwrap.wrap(line.note, room)]


def _dash(scope: str) -> str:
    pattern = DASHES.get(scope, DASHES["unknown"])
    round_ends = ' stroke-linecap="round"' if scope == "registry" else ""
    return f' stroke-dasharray="{pattern}"{round_ends}' if pattern else ""


def _svg(width: float, height: float, about: str, parts: Sequence[str], paint: Paint, data: str = "") -> str:
    ground = "" if paint.ground == "none" else f'<rect width="{width}" height="{height}" fill="{paint.ground}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="{escape(FONT)}" role="img" aria-label="{escape(about)}" {data}>'
        f"{ground}{''.join(parts)}</svg>"
    )
