"""Certified accuracy as a step curve of few points, never above the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np

from ucan.choices import check_choice
from ucan.results.metrics import Columns, Measure, certified_count, clopper_pearson, labelled, right_rows

MOST = 300  # points of a curve: about the resolution of a chart


@dataclass(frozen=True, eq=False)
class Curve:
    """On (at[i − 1], at[i]] the curve is at ``percent[i]``; at[0] is 0, and the last is ∞.

    ``percent`` and ``low`` round down, ``high`` (the band's upper limit) rounds up.
    """

    at: np.ndarray
    percent: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def end(self) -> float:
        """The largest certified size."""
        return float(self.at[-2])

    def __call__(self, size: float) -> float:
        """The value of the curve at this radius or ALM."""
        return float(self.percent[np.searchsorted(self.at, size, side="left")])


def certified_curve(columns: Columns, by: Measure = "radius", most: int = MOST) -> Curve | None:
    """The certified accuracy in percent with its 95 % band; None if there are no sizes or no labels.

    With fewer than ``most`` different sizes, every step is kept. With more, some are dropped: each interval between two kept
    steps then shows its lowest value and its widest band.
    """
    check_choice("by", by, get_args(Measure))
    right = right_rows(columns)
    sizes = np.unique(columns[by][right])
    rows = int(labelled(columns).sum())
    if np.isnan(sizes).any() or not rows:
        return None
    steps = np.union1d([0.0], sizes[np.isfinite(sizes)])
    counts = np.append(certified_count(columns, steps, by), np.isinf(columns[by][right]).sum())
    kept = np.unique(np.linspace(0, len(steps) - 1, min(most - 1, len(steps))).round().astype(int))
    lowest = counts[np.append(kept, len(steps))]
    highest = counts[np.append(0, kept + 1)]  # just above the kept step before
    low, _ = clopper_pearson(lowest, rows)
    _, high = clopper_pearson(highest, rows)
    percent = (lowest.astype(np.int64) * 1000 // rows) / 10
    at = np.append(steps[kept], math.inf)
    return Curve(at, percent, np.floor(low * 1000) / 10, np.ceil(high * 1000) / 10)
