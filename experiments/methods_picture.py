"""The figure of docs/methods.md: certified accuracy of training methods against what the training cost, as SVG."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ucan.report.figures import ticks
from ucan.report.paint import FONT, PAPER

WORD = 85.0  # the width of a name


@dataclass(frozen=True)
class Point:
    """A method at its cost: passes for each training picture, and certified accuracy in percent."""

    label: str
    passes: float
    percent: float
    ours: bool
    number: int


def panel(level: float, chosen: list[Point], left: float, top: float = 44, wide: float = 420, high: float = 330) -> str:
    """One radius: cost across (logarithmic), accuracy up; ours filled, the authors' open."""
    low, most = 20.0, 60_000.0
    peak = max((point.percent for point in chosen), default=1.0)
    floor, ceil = 5 * math.floor(min((p.percent for p in chosen), default=0.0) / 5), 5 * math.ceil((peak + 1) / 5)

    def across(passes: float) -> float:
        return left + wide * math.log(passes / low) / math.log(most / low)

    def up(percent: float) -> float:
        return top + high * (1 - (percent - floor) / (ceil - floor))

    ink, soft, grid = PAPER.ink, PAPER.soft, PAPER.grid
    parts = [f'<text x="{left}" y="{top - 18}" font-size="14" fill="{ink}">certified at radius {level:g}, in %</text>']
    for tick in (t + floor for t in ticks(ceil - floor, 5)):
        parts.append(f'<path d="M{left} {up(tick):.1f}h{wide}" stroke="{grid}"/><text x="{left - 8}" y="{up(tick) + 4:.1f}" '
                     f'text-anchor="end" fill="{soft}">{tick:g}</text>')  # fmt: skip
    for cost in (100, 300, 1_000, 3_000, 10_000):
        parts.append(f'<path d="M{across(cost):.1f} {top + high}v5" stroke="{soft}"/><text x="{across(cost):.1f}" '
                     f'y="{top + high + 19}" text-anchor="middle" fill="{soft}">{cost:,}</text>')  # fmt: skip
    parts.append(f'<text x="{left + wide / 2}" y="{top + high + 40}" text-anchor="middle" fill="{ink}">'
                 "forward-backward passes for each training picture</text>")  # fmt: skip
    places = [(across(point.passes), up(point.percent)) for point in chosen]
    sides = [-1 if point.ours or crowded(place, places) else 1 for point, place in zip(chosen, places, strict=True)]
    named = apart([(x + side * WORD / 2, y) for side, (x, y) in zip(sides, places, strict=True)])
    parts += [mark(*one) for one in zip(chosen, places, sides, named, strict=True)]
    return "".join(parts)


def crowded(place: tuple[float, float], others: list[tuple[float, float]], line: float = 14.0) -> bool:
    """Whether there are marks where a name on the right would be, and none on the left."""
    beside = [other[0] - place[0] for other in others if other != place and abs(other[1] - place[1]) < line]
    return any(0 < dx < WORD for dx in beside) and not any(-WORD < dx < 0 for dx in beside)


def mark(point: Point, place: tuple[float, float], side: int, label: float) -> str:
    """A point with its name on one side: a filled disc for ours, a ring for the authors'."""
    (x, y), colour = place, PAPER.run(point.number)
    fill, anchor = colour if point.ours else PAPER.ground, "start" if side > 0 else "end"
    return (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{x + 10 * side:.1f}" y="{label + 4:.1f}" text-anchor="{anchor}" fill="{colour}">'
            f"{point.label}</text>")  # fmt: skip


def apart(places: list[tuple[float, float]], gap: float = 14.0) -> list[float]:
    """Heights for labels, near to those of their places; labels that lie beside each other are at least a line apart."""
    order = sorted(range(len(places)), key=lambda i: places[i][1])
    heights = [y for _, y in places]
    for _ in range(200):
        for above, below in itertools.combinations(order, 2):
            short = gap - (heights[below] - heights[above])
            if abs(places[above][0] - places[below][0]) < WORD and short > 0:
                heights[above], heights[below] = heights[above] - short / 2, heights[below] + short / 2
    return heights


def drawn(panels: dict[float, list[Point]], ours: float) -> str:
    """Radii side by side; ``ours`` are the passes for each training picture that our rows had."""
    width, height = 1040, 450
    about = (
        f"Certified accuracy of training methods at radius {' and '.join(map(str, panels))} against their training cost"
    )
    parts = [panel(level, chosen, 60 + 500 * i) for i, (level, chosen) in enumerate(panels.items())]
    words = (
        f"discs: ours, ResNet-18, {ours:.0f} passes; rings: the authors’ released files, ResNet-110, on the same 2,000 test "
        "pictures; σ = 0.5"
    )
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="{FONT}" font-size="12.5" role="img" aria-label="{about}"><rect width="{width}" height="{height}" '
            f'fill="{PAPER.ground}"/>{"".join(parts)}<text x="60" y="{height - 12}" fill="{PAPER.soft}">{words}</text>'
            "</svg>\n")  # fmt: skip
