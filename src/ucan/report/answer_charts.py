"""Pictures of answers: intervals, curves, masks, boxes and labels, as values for the templates of a report and of a page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ucan.data import Labelled
from ucan.questions.confidence import Confident
from ucan.questions.decisions import Decided
from ucan.questions.regression import Interval
from ucan.questions.topk import Among
from ucan.report.axes import ticks
from ucan.report.pictures import NO_CLASS, as_classes, as_picture, is_picture
from ucan.rounding import ceil_digits, floor_digits, floor_plain

# How many inputs a chart of intervals, a chart of lines and a gallery show.
SHOWN, LINES, GALLERY = 60, 24, 6
# Size of a chart in pixels, and where its plot lies.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 300, 60, 12, 12, 44
# Points of a line.
POINTS = 60


@dataclass(frozen=True)
class Axes:
    """A chart's plane: where numbers lie in pixels, from the largest and smallest of them."""

    across: tuple[float, float]
    up: tuple[float, float]

    def x(self, value: float) -> float:
        """Where a number lies from left to right."""
        low, high = self.across
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / ((high - low) or 1.0)

    def y(self, value: float) -> float:
        """Where a number lies from top to bottom."""
        low, high = self.up
        inside = min(max(value, low), high)  # an end at ±∞ leaves the chart
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (inside - low) / ((high - low) or 1.0)

    def chart(self, **marks: Any) -> dict[str, Any]:
        """For the template: size, ticks and marks."""
        frame = {
            "width": WIDTH,
            "height": HEIGHT,
            "left": LEFT,
            "right": WIDTH - RIGHT,
            "top": TOP,
            "bottom": HEIGHT - BOTTOM,
        }
        low, high = self.up
        steps = np.linspace(low, high, 5)
        return {**frame, "rows": [(self.y(v), f"{v:.4g}") for v in steps], **marks}


def radii_chart(radii: list[float], inputs: int) -> dict[str, Any] | None:
    """The share of inputs with a claim of at least each radius, as steps; None where all have one radius."""
    if len(set(radii)) < 2:
        return None
    falling, most = sorted(radii, reverse=True), max(radii)
    axes = Axes((0.0, most), (0.0, 100.0))
    share = [100 * (i + 1) / inputs for i in range(len(falling))]
    path = "".join(
        f"{'L' if i else 'M'}{axes.x(r):.1f} {axes.y(share[i - 1] if i else 0.0):.1f}V{axes.y(share[i]):.1f}"
        for i, r in enumerate(falling)
    )
    return axes.chart(path=f"{path}H{LEFT}", columns=_columns(axes, most))


def interval_chart(intervals: list[tuple[int, Interval]], data: Labelled | None) -> dict[str, Any]:
    """The intervals of the first output at the smallest and the largest radius, in rising order of their values."""
    some = sorted(intervals[:SHOWN], key=lambda case: _value_of(case[1]) or 0.0)
    ends = [(float(one.lower.flatten()[0]), float(one.upper.flatten()[0])) for _, one in some]
    inner = [(float(one.lowers[0].flatten()[0]), float(one.uppers[0].flatten()[0])) for _, one in some]
    targets = [target_of(idx, one, data) for idx, one in some]
    values = [_value_of(one) for _, one in some]
    finite = [v for v in (*itertools.chain(*ends), *targets, *values) if v is not None and math.isfinite(v)] or [0.0]
    axes = Axes((-0.5, len(some) - 0.5), (min(finite), max(finite)))
    bars = [
        {
            "x": axes.x(i),
            "outer": (axes.y(ends[i][1]), axes.y(ends[i][0])),
            "inner": (axes.y(inner[i][1]), axes.y(inner[i][0])),
            "value": None if (value := values[i]) is None else axes.y(value),
            "target": None if (target := targets[i]) is None else axes.y(target),
            "title": f"input {idx}: [{floor_digits(ends[i][0], 3)}, {ceil_digits(ends[i][1], 3)}]"
            if all(map(math.isfinite, ends[i]))
            else f"input {idx}",
        }
        for i, (idx, _) in enumerate(some)
    ]
    first = some[0][1]
    about = {"radii": first.radii, "within": first.within, "targets": any(t is not None for t in targets)}
    return axes.chart(bars=bars, columns=[], **about)


def _value_of(one: Interval) -> float | None:
    """The percentile of the first output; None where there was no number."""
    value = float(one.value.flatten()[0])
    return value if math.isfinite(value) else None


def target_of(idx: int, one: Interval, data: Labelled | None) -> float | None:
    """The true value of the first output; None where the data do not tell."""
    if data is None or data.targets is None or data.targets[idx].shape != one.lower.shape:
        return None
    return float(data.targets[idx].flatten()[0])


def width_curve(intervals: list[Interval]) -> list[tuple[str, str]]:
    """The median width of intervals by radius, rounded up."""
    if not intervals or intervals[0].within is not None:
        return []
    widths = np.median([(one.uppers - one.lowers).flatten(1).mean(1).numpy() for one in intervals], axis=0)
    return [
        (floor_plain(r), ceil_digits(float(width), 4) if math.isfinite(width) else "∞")
        for r, width in zip(intervals[0].radii, widths, strict=True)
    ]


def masks(decided: list[tuple[int, Decided]], data: Labelled | None) -> list[dict[str, Any]]:
    """Picture, mask, certified mask with abstentions in grey, and the target, of the first inputs."""
    found = []
    for idx, one in decided[:GALLERY]:
        if one.what != "segmentation" or one.answers.ndim != 2:
            continue
        panels = []
        if data is not None and is_picture(tuple(data.event_shape)):
            panels.append(("input", as_picture(data[idx][0])))
        panels.append(("mask", as_classes(one.selected.numpy())))
        panels.append(("certified; grey: left open", as_classes(one.answers.numpy())))
        if data is not None and data.targets is not None and data.targets[idx].shape == one.answers.shape:
            panels.append(("target", as_classes(data.targets[idx].numpy())))
        found.append({"idx": idx, "share": floor_digits(100 * one.share, 1), "panels": panels})
    return found


def labels(decided: list[tuple[int, Decided]], data: Labelled | None) -> list[tuple[str, list[str]]]:
    """For the first inputs whether each label stays present or absent, or is left open."""
    words = {1: "present", 0: "absent", NO_CLASS: "open"}
    return [
        (
            str(idx) if data is None else data.name_of(idx),
            [words.get(int(v), str(int(v))) for v in one.answers.flatten()[:12]],
        )
        for idx, one in decided[:12]
        if one.what == "labels"
    ]


def boxes(intervals: list[tuple[int, Interval]], data: Labelled | None) -> list[dict[str, Any]]:
    """Pictures with the innermost and the outermost box, where each input has four numbers: top, left, bottom, right."""
    if data is None or not is_picture(tuple(data.event_shape)):
        return []
    side, found = 96 / max(data.event_shape[1:]), []
    for idx, one in intervals[:GALLERY]:
        low, high = one.lower.flatten().tolist(), one.upper.flatten().tolist()
        if len(low) != 4 or not all(map(math.isfinite, low + high)):
            return []
        outer, inner = (low[0], low[1], high[2], high[3]), (high[0], high[1], low[2], low[3])
        frames = [
            [side * left, side * top, max(0.0, side * (right - left)), max(0.0, side * (bottom - top))]
            for top, left, bottom, right in (outer, inner)
        ]
        found.append({"idx": idx, "picture": as_picture(data[idx][0]), "outer": frames[0], "inner": frames[1]})
    return found


def interval_curve(one: Interval, target: float | None) -> dict[str, Any] | None:
    """Where the first output stays, by the size of changes; None where there is only one size."""
    if len(one.radii) < 2:
        return None
    lows, highs = (ends.flatten(1)[:, 0].tolist() for ends in (one.lowers, one.uppers))
    value = _value_of(one)
    finite = [v for v in (*lows, *highs, value, target) if v is not None and math.isfinite(v)] or [0.0]
    axes = Axes((0.0, one.radii[-1] or 1.0), (min(finite), max(finite)))
    starts = (0.0, *one.radii)
    steps = [
        {
            "x": axes.x(start),
            "width": axes.x(r) - axes.x(start),
            "y": axes.y(high),
            "height": axes.y(low) - axes.y(high),
        }
        for start, r, low, high in zip(starts, one.radii, lows, highs, strict=False)
    ]
    goal = None if target is None else axes.y(target)
    middle = None if value is None else axes.y(value)
    return axes.chart(steps=steps, value=middle, target=goal, columns=_columns(axes, one.radii[-1]))


def confidence_chart(answers: Sequence[Confident]) -> dict[str, Any] | None:
    """The least probability of the class by the size of changes, a line for each of the first inputs; None without any."""
    some = answers[:LINES]
    if not some:
        return None
    end = 1.25 * max(one.region.radius for one in some)
    axes, sizes = Axes((0.0, end), (0.0, 1.0)), np.linspace(0.0, end, POINTS).tolist()
    lines = [
        "".join(f"{'L' if i else 'M'}{axes.x(r):.1f} {axes.y(one.at(r)):.1f}" for i, r in enumerate(sizes))
        for one in some
    ]
    level = some[0].confidence
    ends = [axes.x(one.region.radius) for one in some]
    return axes.chart(lines=lines, ends=ends, level=axes.y(level), confidence=f"{level:g}", columns=_columns(axes, end))


def _columns(axes: Axes, most: float) -> list[tuple[float, str]]:
    return [(axes.x(tick), f"{tick:g}") for tick in ticks(most, 6) if tick <= most]


def first_labels(one: Among, class_name: Any) -> list[tuple[str, str, str]]:
    """Each of the k labels with its radius before Σ and the bound on its probability, rounded down."""
    rows = zip(one.labels, one.radii, one.p_lowers, strict=True)
    return [(class_name(c), floor_digits(r, 4) if r > 0 else "–", floor_digits(p, 4)) for c, r, p in rows]


def outputs(one: Interval, most: int = 16) -> list[tuple[str, str, str]]:
    """Value, lower and upper end of each output at the largest radius, ends rounded outwards."""
    ends = zip(*(end.flatten().tolist()[:most] for end in (one.value, one.lower, one.upper)), strict=True)
    return [
        (
            f"{value:.4g}",
            floor_digits(low, 4) if math.isfinite(low) else "−∞",
            ceil_digits(high, 4) if math.isfinite(high) else "∞",
        )
        for value, low, high in ends
    ]
