"""The sections of the page below the curves: the runs, their audits, the shape of a region, chosen inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from ucan.audit import in_words
from ucan.report.basis import stopped_in_words
from ucan.report.figures import input_sheet, slice_chart, votes_chart
from ucan.report.gallery import Gallery
from ucan.report.markup import render, slug
from ucan.report.paint import PAGE, PAPER, Paint
from ucan.report.runs import Run
from ucan.results.metrics import summary
from ucan.rounding import ceil_percent, ceil_significant, floor_percent, floor_significant


def overview_section(runs: Sequence[Run]) -> Markup:
    """The section with the figures of each run in a row."""
    names = ("run", "scope", "noise", "inputs", "right, %", "abstained, %", "mean radius", "median radius", "α", "n")
    rows = [(run, _noise(run), _figures(run)) for run in runs]
    remarks = [words for run in runs for words in _remarks(run)]
    return render("runs.html", runs=runs, columns=names, rows=rows, remarks=remarks)


def _figures(run: Run) -> tuple[str, ...]:
    figure = summary(run.columns)
    return (
        f"{run.inputs:,}",
        floor_percent(figure.clean_accuracy),
        ceil_percent(figure.abstention_rate),
        _size(figure.average_radius),
        _size(figure.median_radius),
        "–" if run.alpha is None else ceil_significant(run.alpha),
        _copies(run),
    )


def _remarks(run: Run) -> list[str]:
    """What a reader must know about a run's figures."""
    said = [_refuted(run)] if run.refuted else []
    if run.left_out:
        said.append(
            f"{run.label} was interrupted: {run.left_out:,} results behind an unfinished input are left out of every figure "
            "but those of the audit. The command below goes on with it."
        )
    stopped = stopped_in_words(run.config).partition(":")[0]
    if stopped:
        said.append(
            f"{run.label}: {stopped}. Its radii and its share of right answers are lower bounds: with more samples it may "
            "abstain on fewer inputs and reach further."
        )
    return said + ([f"{run.label}: {run.unlabelled}."] if run.unlabelled else [])


def _refuted(run: Run) -> str:
    return f"{run.label}: {run.refuted}. What this page shows of it is what it claims, and not to be relied on."


def _copies(run: Run) -> str:
    """The number of noisy copies; if it differs between inputs, the largest and the mean."""
    n = run.columns["n"]
    if n.min() == n.max():
        return f"{n.max():,}" if n.max() else "–"
    return f"up to {n.max():,}, mean {n.mean():,.0f}"


def _size(value: float) -> str:
    """A radius or an ALM, three digits of it, rounded down."""
    return "–" if math.isnan(value) else floor_significant(value, 3)


def _noise(run: Run) -> str:
    law = run.config.law
    if law.name is None:
        return "–"
    kind = (run.config.noise.described or "?").split("(")[0]
    other = f", {law.name}" if law.name != "Gaussian" else ""
    return f"{kind}{other}, λ {math.nan if law.scale is None else law.scale:g}"


# --- the audit ---


def audit_section(runs: Sequence[Run]) -> Markup:
    """The section with the outcome of each audit, or the command that makes one."""
    rows = []
    for run in runs:
        untold = np.isnan(run.columns["radius"]).any()  # by an imported file
        certificates = "–" if untold else f"{run.certificates + run.certificates_left_out:,}"
        rows.append((run, certificates, "" if run.audit is None else " ".join(in_words(run.audit))))
    return render("audit.html", runs=runs, rows=rows)


# --- regions ---


def region_section(runs: Sequence[Run], galleries: Sequence[Gallery]) -> Markup:
    """The section with a slice through one region of each run; empty if none can be drawn."""
    slices = []
    for number, svg in _slices(runs, galleries, PAGE).items():
        shown = galleries[number].typical
        assert shown is not None and shown.slice is not None, "it was drawn"
        least, most = (_size(reach) for reach in shown.slice.reach)
        ball, alm = _size(shown.certificate.radius), _size(shown.certificate.alm)
        words = f"input {shown.idx}: reaches {least} across, {most} up; ball {ball}, ALM {alm}"
        slices.append((runs[number], svg, words))
    return render("regions.html", runs=runs, slices=slices) if slices else Markup()


def region_figures(runs: Sequence[Run], galleries: Sequence[Gallery]) -> dict[str, str]:
    """The same slices as stand-alone SVG, by their files' names without the ending."""
    drawn = _slices(runs, galleries, PAPER)
    return {f"slice-{number + 1}-{slug(runs[number].label)}": svg for number, svg in drawn.items()}


def _slices(runs: Sequence[Run], galleries: Sequence[Gallery], paint: Paint) -> dict[int, Markup]:
    """The slice of each run that has one, by its number; all of one norm to one scale."""
    cuts = {
        i: g.typical.slice for i, g in enumerate(galleries) if g.typical is not None and g.typical.slice is not None
    }
    drawn: dict[int, Markup] = {}
    for number, cut in cuts.items():
        run = runs[number]
        most = max(other.most for i, other in cuts.items() if runs[i].kind == run.kind)
        across, up = (_size(reach) for reach in cut.reach)
        about = f"Slice through a certified region of {run.label}: it reaches {across} across and {up} up."
        title = f"{run.label} · {run.scope}" if paint is PAPER else ""  # on the page it stands below
        drawn[number] = slice_chart(cut, most, number, run.scope, about, paint, title=title)
    return drawn


# --- the gallery ---


def gallery_section(runs: Sequence[Run], galleries: Sequence[Gallery], room: int) -> Markup:
    """The section with chosen inputs of each run, as far as they fit into ``room`` bytes."""
    parts, left_out = [], []
    for run, gallery in zip(runs, galleries, strict=True):
        if not (gallery.exhibits or gallery.missing):
            continue
        notes = (_refuted(run), *gallery.missing) if run.refuted else gallery.missing
        exhibits = [
            (one, votes_chart(one.counts, one.answer, one.truth, PAGE, names=one.voted)) for one in gallery.exhibits
        ]
        part = render("exhibits.html", runs=runs, run=run, notes=notes, exhibits=exhibits)
        size = len(part.encode())
        if size <= room:
            parts.append(part)
            room -= size
        else:
            left_out.append(run.label)
    return render("gallery.html", parts=parts, left_out=left_out) if parts or left_out else Markup()


def input_figures(runs: Sequence[Run], galleries: Sequence[Gallery]) -> dict[str, str]:
    """The chosen inputs with pictures and votes as stand-alone SVG, by their files' names without the ending."""
    return {
        f"input-{number + 1}-{slug(run.label)}-{one.idx}-{slug(one.why)}": input_sheet(
            f"{run.label} · {run.scope} · {one.why}, input {one.idx}",
            [(panel.name, panel.note, panel.uri) for panel in one.panels],
            one.counts,
            one.answer,
            one.truth,
            one.voted,
        )
        for number, (run, gallery) in enumerate(zip(runs, galleries, strict=True))
        for one in gallery.exhibits
    }
