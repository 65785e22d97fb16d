"""Certified accuracy on the page: a chart and a table for each norm, by radius first, then in units of Σ, then by ALM.

An axis on which everything would be 0 comes last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ucan.choices import ALM
from ucan.report.axes import ticks
from ucan.report.basis import stopped_in_words
from ucan.report.figures import Line, accuracy_chart
from ucan.report.markup import render
from ucan.report.paint import LIGHT, PAGE, PAPER
from ucan.report.runs import Run, by_norm, norm_slug
from ucan.report.tables import SEE, SMALLEST, Table, comparison
from ucan.results.metrics import Measure
from ucan.rounding import ceil_significant
from ucan.runs.read import SIGMA_AXIS

TABLE_COLUMNS = 8
MEASURES: tuple[Measure, ...] = ("radius", "sigma", "alm")
NOTES: dict[str, str] = {
    "alm": f"{ALM} is the radius of a ball as large as the region: a size, not a radius that is guaranteed. It grows with "
    "the noise in directions that a classifier ignores, so it compares only under a common cap on the scales.",
    "sigma": "R counts in units of each run's own noise Σ: no change δ with ‖Σ⁻¹δ‖ below R changes the answer, which in "
    "feature i alone is R·σᵢ, in that feature's own unit. Less noise makes R larger, so it compares runs under the same Σ.",
}


@dataclass(frozen=True)
class Chart:
    """A chart of one norm by one measure for the page, and the table below it.

    ``data`` is what the page's script reads; ``rows`` are the runs with their cells, each marked where it is the best.
    """

    about: str
    wide: Markup
    narrow: Markup
    most: str
    note: str
    data: dict[str, Any]
    table: Table
    rows: list[tuple[Run, list[tuple[str, bool]]]]
    notes: list[str]


def accuracy_section(runs: Sequence[Run]) -> Markup:
    """Every chart with its table below: first what is guaranteed, in every norm; then sizes."""
    drawn = [(by, group, lines_of(runs, group, by)) for by in MEASURES for group in by_norm(runs)]
    shown = sorted((one for one in drawn if one[-1]), key=lambda one: _empty(one[-1]))
    return render("accuracy.html", runs=runs, charts=[_chart(*one) for one in shown])


def _empty(lines: Sequence[Line]) -> bool:
    """Whether every curve ends before the first number that the axis can show."""
    return max(line.curve.end for line in lines) < SMALLEST


def accuracy_figures(runs: Sequence[Run]) -> dict[str, str]:
    """The same charts as stand-alone SVG, by their files' names without the ending."""
    drawn: dict[str, str] = {}
    for group in by_norm(runs):
        for by in MEASURES:
            lines = lines_of(runs, group, by)
            if lines:
                drawn[f"{by}-{norm_slug(group[0])}"] = accuracy_chart(lines, *_axis(group, by), PAPER)
    return drawn


def lines_of(runs: Sequence[Run], group: Sequence[Run], by: Measure) -> list[Line]:
    """The curves of a group of one norm, each in its run's colour; runs without sizes or labels are left out."""
    caps = {run.cap for run in group}
    lines = []
    if by == "sigma" and not _has_units(group):
        return []
    for run in group:
        curve = run.curve(by)
        if curve is not None:
            cap = f" (cap {ceil_significant(run.cap)})" if run.cap is not None else " (no cap stated)"
            label = run.label + (cap if by == "alm" and len(caps) > 1 else "")
            lines.append(Line(label, run.scope, runs.index(run), curve, _found(run)))
    return lines


def _has_units(group: Sequence[Run]) -> bool:
    """Whether the axis in units of Σ says more than the radius, and compares these runs, or the radius says nothing."""
    if any(run.in_units for run in group) or not any(run.shaped for run in group):
        return False
    radii = [curve.end for run in group if (curve := run.curve()) is not None]
    return len({run.units for run in group}) == 1 or max(radii, default=0.0) < SMALLEST


def _found(run: Run) -> str:
    """The note in the legend: sampling stopped early, or an audit refuted the claim or broke what it does not cover."""
    notes = ["sampling stopped early"] if stopped_in_words(run.config) else []
    if run.refuted:
        notes.append("refuted by audit")
    elif run.audit is not None and run.uncovered:
        notes.append(f"{run.audit.broken['live']} of {run.attacked('live')} broken when attacked")
    return ", ".join(notes)


def _axis(group: Sequence[Run], by: Measure) -> tuple[str, str]:
    """The horizontal axis's title, and what the chart is about in words."""
    if by == "radius":
        return group[0].measure, f"Certified accuracy in percent against the {group[0].measure}."
    if by == "sigma":
        return SIGMA_AXIS, f"Certified accuracy in percent against {SIGMA_AXIS}."
    caps = {run.cap for run in group}
    cap = next(iter(caps)) if len(caps) == 1 else None
    said = "caps differ" if len(caps) > 1 else "no cap stated"
    said = said if cap is None else f"scales at most {ceil_significant(cap)}"
    return f"ALM ({said})", f"Certified accuracy in percent against {ALM}, the size of the region; {said}."


def _each(group: Sequence[Run]) -> str:
    return (
        "radius" if group[0].budget is None else "ε (no change within less than ε times the budget alters the answer)"
    )


def _chart(by: Measure, group: Sequence[Run], lines: Sequence[Line]) -> Chart:
    axis, about = _axis(group, by)
    wide = accuracy_chart(lines, axis, about, PAGE, css="wide")
    narrow = accuracy_chart(lines, axis, about, PAGE, width=360, css="narrow")
    most = max(line.curve.end for line in lines)
    note = NOTES.get(by) or f"Shaded: 95 % confidence limits over the inputs, for each {_each(group)} on its own."
    if any(line.scope == "registry" for line in lines):
        note += " Answers of a registry depend on each other: there the limits are only a guide."
    data = {
        "unit": {"alm": "ALM", "sigma": "R"}.get(by, "radius" if group[0].budget is None else "ε"),
        "digits": max(0, 2 - math.floor(math.log10(most))) if most > 0 else 3,
        "lines": [_values(line) for line in lines],
    }
    # The field's table, its columns chosen for these runs.
    table = comparison(group, ticks(most if most > 0 else SMALLEST, TABLE_COLUMNS), by)
    rows = [
        (run, [(cell, mark and not run.refuted) for cell, mark in zip(cells[2:], best[2:], strict=True)])
        for run, (cells, best) in zip(group, table.lines(), strict=True)
    ]
    notes = [words.replace(SEE, "") for words in table.notes]
    return Chart(about, wide, narrow, f"{1.04 * most:.4g}", note, data, table, rows, notes)


def _values(line: Line) -> dict[str, object]:
    """A curve for the page's script; beyond the last step, the last value holds."""
    curve = line.curve
    return {
        "label": line.label,
        "scope": line.scope,
        "colour": line.number % len(LIGHT),
        "at": curve.at[:-1].tolist(),
        "percent": curve.percent.tolist(),
        "low": curve.low.tolist(),
        "high": curve.high.tolist(),
    }
