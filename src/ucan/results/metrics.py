"""The metrics of a run as pure functions of its columns. docs/metrics.md defines them.

Columns are those of ``Store.columns``. A row is *certified at r* if its prediction is the label, it did not abstain,
and its radius (or ALM) is at least r. Shares are over the rows whose label is known: an abstention counts as a failure.
A share that needs a number missing from an imported file is NaN, never a guess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from scipy import special

from ucan.choices import check_choice
from ucan.errors import InvalidInput
from ucan.results.store import UNKNOWN

Columns = dict[str, np.ndarray]
# The radius, or the factor of a budget; ALM; or R, the radius in units of Σ (column "sigma", which `Run.measured` adds).
Measure = Literal["radius", "alm", "sigma"]
# In the column label. −2 in an imported run means: no label, but the file states which rows are correct.
NO_LABEL = -1
# The share of each tail beyond a band of 95 %.
TAIL = 0.025


@dataclass(frozen=True)
class Summary:
    """The figures of a run in one record; each field is the function of that name."""

    inputs: int
    clean_accuracy: float
    abstention_rate: float
    average_radius: float
    median_radius: float
    mean_log_volume: float
    samples: int
    seconds: float


def labelled(columns: Columns) -> np.ndarray:
    """A mask of the rows that are known to be correct or wrong."""
    return np.not_equal(columns["label"], NO_LABEL)


def right_rows(columns: Columns) -> np.ndarray:
    """A mask of the rows with a certificate of the right answer; none without a label, whatever a changed row says."""
    right: np.ndarray = columns["correct"] & ~columns["abstained"] & labelled(columns)
    return right


def certified_count(columns: Columns, at: Any, by: Measure = "radius") -> np.ndarray:
    """How many rows are certified at each threshold; NaN if unknown.

    At 0 only ``correct`` and ``abstained`` matter, so that is known even if the radii are not.
    """
    check_choice("by", by, get_args(Measure))
    thresholds = np.asarray(at, dtype=np.float64)
    if not (np.isfinite(thresholds) & (thresholds >= 0)).all():
        raise InvalidInput(f"a radius to certify at must be a finite number of at least 0, got {at!r}.")
    right = right_rows(columns)
    sizes = np.sort(columns[by][right])  # NaN sorts to the end
    if sizes.size and np.isnan(sizes[-1]):
        return np.where(thresholds == 0, float(right.sum()), np.nan)
    return (sizes.size - np.searchsorted(sizes, thresholds, side="left")).astype(np.float64)


def certified_accuracy(columns: Columns, at: Any, by: Measure = "radius") -> np.ndarray:
    """The share of labelled rows with correct ∧ ¬abstained ∧ (radius ≥ r), for each r of ``at``; NaN without any."""
    count, rows = certified_count(columns, at, by), int(labelled(columns).sum())
    return count / rows if rows else np.full_like(count, np.nan)


def certified_band(columns: Columns, at: Any, by: Measure = "radius") -> tuple[Any, Any]:
    """Two-sided 95 % Clopper–Pearson limits of the certified accuracy, for each r on its own.

    They describe the sampling of the inputs from their distribution, not the randomness of the noise.
    """
    return clopper_pearson(certified_count(columns, at, by), int(labelled(columns).sum()))


def clopper_pearson(count: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """95 % limits for a probability after ``count`` of ``rows`` hits: 2.5 % in each tail, exact and conservative."""
    k = np.asarray(count, dtype=np.float64)
    if rows == 0:
        return np.full_like(k, np.nan), np.full_like(k, np.nan)
    low = np.where(k == 0, 0.0, special.betaincinv(np.maximum(k, 1), rows - k + 1, TAIL))
    high = np.where(k == rows, 1.0, special.betaincinv(k + 1, np.maximum(rows - k, 1), 1 - TAIL))
    return np.where(np.isnan(k), np.nan, low), np.where(np.isnan(k), np.nan, high)


def clean_accuracy(columns: Columns) -> float:
    """The share of labelled rows with the correct answer; an abstention is not correct. Equals the certified accuracy at
    0.
    """
    return float(certified_accuracy(columns, 0.0))


def abstention_rate(columns: Columns) -> float:
    """The share of rows without a claim; it needs no labels. NaN if a file does not distinguish them from wrong answers."""
    return math.nan if (columns["prediction"] == UNKNOWN).any() else _mean(columns["abstained"])


def credited(columns: Columns, by: Measure = "radius") -> np.ndarray:
    """Each labelled row's radius (or ALM) where it is certified, 0 where it is wrong or abstains."""
    check_choice("by", by, get_args(Measure))
    sizes: np.ndarray = np.where(right_rows(columns), columns[by], 0.0)[labelled(columns)]
    return sizes


def average_radius(columns: Columns, by: Measure = "radius") -> float:
    """The average certified radius: the mean of correct · radius over the labelled rows."""
    return _mean(credited(columns, by))


def median_radius(columns: Columns, by: Measure = "radius") -> float:
    """The median of correct · radius over the labelled rows; the mean of the middle two for an even number."""
    sizes = credited(columns, by)
    return float(np.median(sizes)) if sizes.size else math.nan


def mean_log_volume(columns: Columns) -> float:
    """The mean natural logarithm of the regions' volumes, over the rows that are certified and right."""
    return _mean(columns["log_volume"][right_rows(columns)])


def summary(columns: Columns) -> Summary:
    """All figures of a run. Samples are n₀ + n, added up over the rows; seconds likewise."""
    return Summary(
        inputs=len(columns["correct"]),
        clean_accuracy=clean_accuracy(columns),
        abstention_rate=abstention_rate(columns),
        average_radius=average_radius(columns),
        median_radius=median_radius(columns),
        mean_log_volume=mean_log_volume(columns),
        samples=int(columns["n0"].sum() + columns["n"].sum()),
        seconds=float(columns["seconds"].sum()),
    )


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else math.nan
