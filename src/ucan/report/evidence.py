"""What lies behind the curves, on the page: the runs, what an attack did, the shape of a region, chosen inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from ucan.audit import in_words
from ucan.report.basis import stopped_in_words
from ucan.report.figures import PAGE, PAPER, Paint, input_sheet, slice_chart, votes_chart
from ucan.report.gallery import Exhibit, Gallery
from ucan.report.markup import chip, row_head, slug, strong, swatch, table, unbroken
from ucan.report.runs import Run
from ucan.results.metrics import summary
from ucan.rounding import ceil_percent, floor_percent, floor_significant


def overview_section(runs: Sequence[Run]) -> str:
    """The figures of each run in a row."""
    names = ("run", "scope", "noise", "inputs", "right, %", "abstained, %", "mean radius", "median radius", "α", "n")
    rows = []
    for run in runs:
        figure = summary(run.columns)
        cells = (
            f"{run.inputs:,}",
            floor_percent(figure.clean_accuracy),
            ceil_percent(figure.abstention_rate),
            _size(figure.average_radius),
            _size(figure.median_radius),
            "–" if run.alpha is None else f"{run.alpha:g}",
            _copies(run),
        )
        numbers = "".join(f'<td class="n">{cell}</td>' for cell in cells)
        rows.append(f"<tr>{row_head(run, runs)}<td>{escape(_noise(run))}</td>{numbers}</tr>")
    remarks = "".join(f"<p>{escape(words)}</p>" for run in runs for words in _remarks(run))
    return (
        '<section id="runs"><h2>The runs</h2><p>Radii count 0 for wrong answers and abstentions. Each guarantee is false '
        "with probability at most α over the noise drawn; n is the number of noisy copies that the guarantee of an input "
        f"rests on, Gaussian ones unless another law is named.</p>{remarks}"
        f"{table(names, rows, 'Each run in figures', ('noise',))}</section>\n"
    )


def _remarks(run: Run) -> list[str]:
    """What one must know to read a run's figures."""
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
    """The number of noisy copies; where it differs between inputs, the most and the mean."""
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


def audit_section(runs: Sequence[Run]) -> str:
    """What an attack did to each run, or how to attack it."""
    names = ("run", "scope", "certificates", "attacked", "broken, live", "broken, frozen", "what it means")
    rows = [_audit_row(run, runs) for run in runs]
    return (
        '<section id="audit"><h2>What an attack did</h2><p>The audit attacks certificates inside their own regions, as an '
        "adversary would who knows the weights and the noise. <em>Live</em> is the classifier as it would be deployed, "
        "<em>frozen</em> the one whose noise is held as it was computed at the clean input. That nothing broke proves "
        "nothing; that something broke tells what a guarantee does not cover.</p>"
        f"{table(names, rows, 'Certificates attacked and broken', names[4:])}</section>\n"
    )


def _audit_row(run: Run, runs: Sequence[Run]) -> str:
    untold = np.isnan(run.columns["radius"]).any()  # by an imported file
    count = "–" if untold else f"{run.certificates + run.certificates_left_out:,}"
    first = f'{row_head(run, runs)}<td class="n">{count}</td>'
    audit = run.audit
    if audit is None:
        how = f"not audited: <code>ucan audit {escape(str(run.folder))}</code>"
        what = "imported results cannot be attacked" if run.config.is_imported else how
        return f'<tr>{first}<td class="n">0</td><td>–</td><td>–</td><td class="words">{what}</td></tr>'
    meaning = {
        "bug": "<strong>a bug</strong>: chance does not explain what broke where the guarantee covers it",
        "held": "held, as the proof says" if not audit.covered_breaks else "within what chance allows",
        "uncovered": "held, but nothing was guaranteed: the classifier with frozen noise was not attacked",
        "frozen": "allowed: the guarantee never covered the live classifier",
    }
    allowed = run.uncovered and audit.broken.get("live", 0)
    kind = "frozen" if allowed else "held" if any(attempt.covered for attempt in run.attempts) else "uncovered"
    verdict = meaning["bug" if audit.is_bug else kind]
    counts = f'<td class="n">{audit.attacked:,}</td>{_broken(run, "live")}{_broken(run, "frozen")}'
    return f'<tr>{first}{counts}<td class="words" title="{escape(" ".join(in_words(audit)))}">{verdict}</td></tr>'


def _broken(run: Run, mode: str) -> str:
    attacked = run.attacked(mode)
    if run.audit is None or not attacked:
        return "<td>–</td>"
    broken = run.audit.broken.get(mode, 0)
    bar = f'<span class="bar" aria-hidden="true"><i style="width:{100 * broken / attacked:.1f}%"></i></span>'
    return f'<td style="white-space:nowrap">{bar}{broken} of {attacked}</td>'


# --- regions ---


def region_section(runs: Sequence[Run], galleries: Sequence[Gallery]) -> str:
    """A slice through one region of each run; nothing where none can be drawn."""
    items = []
    for number, svg in _slices(runs, galleries, PAGE).items():
        run, shown = runs[number], galleries[number].typical
        assert shown is not None and shown.slice is not None, "it was drawn"
        least, most = (_size(reach) for reach in shown.slice.reach)
        items.append(
            f"<figure>{svg}<figcaption>{swatch(run, runs)}<b>{escape(run.label)}</b> {chip(run.scope)}<br>input "
            f"{shown.idx}: reaches {least} across, {most} up; ball {_size(shown.certificate.radius)}, "
            f"ALM {_size(shown.certificate.alm)}{'; refuted by the audit' if run.refuted else ''}</figcaption></figure>"
        )
    if not items:
        return ""
    return (
        '<section id="regions"><h2>The shape of a guarantee</h2><p>Slices through one certified region of each run, at the '
        "input of median radius, those of one norm to one scale: across, the direction in which the noise is least; up, the "
        "one in which it is most. Nothing inside the coloured region changes the answer (where its outline is dashed: while "
        "the noise stays frozen). The thin line is the largest ball inside, which is what the radius counts.</p>"
        f'<div class="slices">{"".join(items)}</div></section>\n'
    )


def region_figures(runs: Sequence[Run], galleries: Sequence[Gallery]) -> dict[str, str]:
    """The same slices as stand-alone SVG, by their files' names without the ending."""
    drawn = _slices(runs, galleries, PAPER)
    return {f"slice-{number + 1}-{slug(runs[number].label)}": svg for number, svg in drawn.items()}


def _slices(runs: Sequence[Run], galleries: Sequence[Gallery], paint: Paint) -> dict[int, str]:
    """The slice of each run that has one, by its number; all of one norm to one scale."""
    cuts = {
        i: g.typical.slice for i, g in enumerate(galleries) if g.typical is not None and g.typical.slice is not None
    }
    drawn: dict[int, str] = {}
    for number, cut in cuts.items():
        run = runs[number]
        most = max(other.most for i, other in cuts.items() if runs[i].kind == run.kind)
        across, up = (_size(reach) for reach in cut.reach)
        about = f"Slice through a certified region of {run.label}: it reaches {across} across and {up} up."
        title = f"{run.label} · {run.scope}" if paint is PAPER else ""  # on the page it stands below
        drawn[number] = slice_chart(cut, most, number, run.scope, about, paint, title=title)
    return drawn


# --- the gallery ---


def gallery_section(runs: Sequence[Run], galleries: Sequence[Gallery], room: int) -> str:
    """Chosen inputs of each run, as long as there is ``room`` (bytes) for them."""
    parts, left_out = [], []
    for run, gallery in zip(runs, galleries, strict=True):
        if not (gallery.exhibits or gallery.missing):
            continue
        said = (_refuted(run), *gallery.missing) if run.refuted else gallery.missing
        notes = "".join(f'<p class="missing">{escape(note)}</p>' for note in said)
        shown = "".join(_exhibit(one) for one in gallery.exhibits)
        part = f'<div class="run"><h3>{swatch(run, runs)}{escape(run.label)} {chip(run.scope)}</h3>{notes}{shown}</div>'
        size = len(part.encode())
        if size <= room:
            parts.append(part)
            room -= size
        else:
            left_out.append(run.label)
    if left_out:
        parts.append(
            f'<p class="missing">Left out, to keep this page small: {escape(", ".join(left_out))}. A report on fewer runs '
            "shows them.</p>"
        )
    if not parts:
        return ""
    return (
        '<section id="gallery"><h2>Inputs, and what was asked about them</h2><p>The answer comes from a vote: the classifier '
        "is asked about many noisy copies of an input, each moved by μ and blurred with the scale λσ. The true class is "
        f"underlined in the votes.</p>{''.join(parts)}</section>\n"
    )


def input_figures(runs: Sequence[Run], galleries: Sequence[Gallery]) -> dict[str, str]:
    """The chosen inputs with pictures and votes as stand-alone SVG, by their files' names without the ending."""
    return {
        f"input-{number + 1}-{slug(run.label)}-{one.idx}-{slug(one.why)}": input_sheet(
            f"{run.label} · {run.scope} · {one.why}, input {one.idx}",
            [(panel.name, panel.note, panel.uri) for panel in one.panels],
            votes_chart(one.counts, one.answer, one.truth, PAPER),
        )
        for number, (run, gallery) in enumerate(zip(runs, galleries, strict=True))
        for one in gallery.exhibits
    }


def _exhibit(one: Exhibit) -> str:
    panels = "".join(
        f'<figure><img src="{panel.uri}" alt="{escape(panel.name)}{", " + escape(panel.note) if panel.note else ""}">'
        f"<figcaption><b>{escape(panel.name)}</b>{escape(panel.note)}</figcaption></figure>"
        for panel in one.panels
    )
    votes = votes_chart(one.counts, one.answer, one.truth, PAGE)
    said = "".join(f"<p>{strong(unbroken(words))}</p>" for words in one.words)
    label = f", label {one.truth}" if one.truth >= 0 else ""
    return (
        f'<article class="exhibit"><h4>{escape(one.why.capitalize())} <span>· input {one.idx}{label}</span></h4>'
        f'<div class="panels">{panels}<figure class="votes">{votes}<figcaption><b>votes by class</b></figcaption></figure>'
        f"</div><div>{said}</div></article>"
    )
