"""Certified accuracy on the page: a chart and a table for each norm, by radius first, then by ALM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from ucan.report.basis import stopped_in_words
from ucan.report.figures import LIGHT, PAGE, PAPER, Line, accuracy_chart, ticks
from ucan.report.markup import embedded, row_head, table
from ucan.report.runs import Run, by_norm, norm_slug
from ucan.report.tables import comparison
from ucan.results.metrics import Measure

TABLE_COLUMNS = 8
MEASURES: tuple[Measure, ...] = ("radius", "alm")


def accuracy_section(runs: Sequence[Run]) -> str:
    """Every chart with its table below."""
    parts = [
        f'<p class="missing">{escape(run.label)} has no curve: {escape(run.unlabelled)}.</p>'
        for run in runs
        if not run.labelled
    ]
    for by in MEASURES:  # what is guaranteed first, in every norm; sizes after
        for group in by_norm(runs):
            lines = lines_of(runs, group, by)
            if lines:
                parts += [_chart(lines, group, by), _table(runs, group, by)]
    return (
        '<section id="accuracy"><h2>Certified accuracy</h2>'
        "<p>How many of the inputs are answered correctly with a guarantee of at least the size on the horizontal axis. "
        "A solid line is a guarantee for the classifier as deployed; a dashed one is "
        '<a href="#scope-frozen">frozen</a> and is not. Move over the chart, or use the arrow keys, to read it.</p>'
        f"{''.join(parts)}</section>\n"
    )


def accuracy_figures(runs: Sequence[Run]) -> dict[str, str]:
    """The same charts as stand-alone SVG, by their files' names without the ending."""
    drawn = {}
    for group in by_norm(runs):
        for by in MEASURES:
            lines = lines_of(runs, group, by)
            if lines:
                drawn[f"{by}-{norm_slug(group[0])}"] = accuracy_chart(lines, *_axis(group, by), PAPER)
    return drawn


def lines_of(runs: Sequence[Run], group: Sequence[Run], by: Measure) -> list[Line]:
    """The curves of a group of one norm, each in its run's colour; runs that tell no sizes or no labels are left out."""
    caps = {run.cap for run in group}
    lines = []
    for run in group:
        curve = run.curve(by)
        if curve is not None:
            cap = f" (cap {run.cap:g})" if run.cap is not None else " (no cap stated)"
            label = run.label + (cap if by == "alm" and len(caps) > 1 else "")
            lines.append(Line(label, run.scope, runs.index(run), curve, _found(run)))
    return lines


def _found(run: Run) -> str:
    """For the legend: that sampling stopped, and what an attack left of a claim that is wrong or does not cover live use."""
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
    caps = {run.cap for run in group}
    cap = next(iter(caps)) if len(caps) == 1 else None
    said = f"scales at most {cap:g}" if cap is not None else "caps differ" if len(caps) > 1 else "no cap stated"
    return f"ALM ({said})", f"Certified accuracy in percent against ALM, the size of the region; {said}."


def _each(group: Sequence[Run]) -> str:
    return (
        "radius" if group[0].budget is None else "ε (no change within less than ε times the budget alters the answer)"
    )


def _chart(lines: Sequence[Line], group: Sequence[Run], by: Measure) -> str:
    axis, about = _axis(group, by)
    wide = accuracy_chart(lines, axis, about, PAGE).replace("<svg ", '<svg class="wide" ', 1)
    narrow = accuracy_chart(lines, axis, about, PAGE, width=360).replace("<svg ", '<svg class="narrow" ', 1)
    most = max(line.curve.end for line in lines)
    note = (
        "ALM is the radius of a ball as large as the region: a size, not a radius that is guaranteed. It grows with the "
        "noise in directions that a classifier ignores, so it compares only under a common cap on the scales."
        if by == "alm"
        else f"Shaded: 95 % confidence limits over the inputs, for each {_each(group)} on its own."
    )
    if any(line.scope == "registry" for line in lines):
        note += " Answers of a registry depend on each other: there the limits are only a guide."
    data = {
        "unit": "ALM" if by == "alm" else "radius" if group[0].budget is None else "ε",
        "digits": max(0, 2 - math.floor(math.log10(most))) if most > 0 else 3,
        "lines": [_values(line) for line in lines],
    }
    return (
        f'<figure class="card"><div class="plot" tabindex="0" role="slider" aria-valuemin="0" aria-valuenow="0" '
        f'aria-valuemax="{1.04 * most:.4g}" aria-label="{escape(about)} Arrow keys read the values.">'
        f'{wide}{narrow}<div class="tip" hidden></div><script type="application/json">{embedded(data)}</script></div>'
        f"<figcaption>{note}</figcaption></figure>"
    )


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


def _table(runs: Sequence[Run], group: Sequence[Run], by: Measure) -> str:
    """The field's table, its columns chosen for these runs."""
    ends = [curve.end for run in group if (curve := run.curve(by)) is not None]
    compared = comparison(group, ticks(max(*ends, 1e-3), TABLE_COLUMNS), by)
    compared = replace(
        compared, rows=tuple(replace(row, name=run.label) for row, run in zip(compared.rows, group, strict=True))
    )
    rows = []
    for (cells, best), run in zip(compared.lines(), group, strict=True):
        rest = "".join(
            f'<td class="n{" best" if mark and not run.refuted else ""}">{escape(cell)}</td>'
            for cell, mark in zip(cells[2:], best[2:], strict=True)
        )
        rows.append(f"<tr>{row_head(run, runs)}{rest}</tr>")
    notes = "".join(f"<li>{escape(note.replace('; see docs/scopes.md', ''))}</li>" for note in compared.notes)
    shown = table(compared.header, rows, f"{compared.title}; the best of each scope in bold, where runs compare")
    return shown + (f'<ul class="notes">{notes}</ul>' if notes else "")
