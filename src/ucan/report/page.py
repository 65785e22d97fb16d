"""The report: one HTML page that needs nothing beside it, from the runs' stored results."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from ucan.arithmetic import REAL, changes_in_words
from ucan.certificate import SCOPES
from ucan.data import Labelled
from ucan.report.accuracy import accuracy_figures, accuracy_section
from ucan.report.evidence import (
    audit_section,
    gallery_section,
    input_figures,
    overview_section,
    region_figures,
    region_section,
)
from ucan.report.figures import DARK, LIGHT
from ucan.report.gallery import Gallery, exhibit_run
from ucan.report.markup import chip, swatch, unbroken
from ucan.report.rerun import commands
from ucan.report.runs import Run
from ucan.report.sentences import sentences
from ucan.results.formats import UNKNOWN_SCOPE

GENERATOR = '<meta name="generator" content="ucan report">'
LIMIT = 2_800_000  # bytes of a page; galleries beyond it are left out, and the page says so
# Nothing may be asked of the network, whatever a run's name or data hold.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
COLOURS = {
    "light": "--paper:#fafaf8;--card:#ffffff;--ink:#1b2330;--soft:#5a6675;--grid:#e6e9ee;--edge:#d5dae1;"
    "--link:#0b5ea0;--good:#00734f;--bad:#b03a06;color-scheme:light;"
    + "".join(f"--run-{i}:{colour};" for i, colour in enumerate(LIGHT)),
    "dark": "--paper:#11151b;--card:#181d25;--ink:#e9edf2;--soft:#9ba7b5;--grid:#2a313b;--edge:#343d49;"
    "--link:#7cbcf2;--good:#4fd0a4;--bad:#ff9a66;color-scheme:dark;"
    + "".join(f"--run-{i}:{colour};" for i, colour in enumerate(DARK)),
}
MEANING = {
    "pipeline": "The noise is the same for every input, or is drawn anew in a way that the proof covers. The guarantee is "
    "about the classifier as you deploy it, at every input in the region. This is the kind to rely on.",
    "frozen": "The noise (its offset μ and scale σ) was computed from the input, and the proof holds it there. It says "
    "that <em>this</em> classifier, with <em>this</em> noise, does not change its answer nearby. A deployed classifier "
    "computes its noise anew from whatever it is given, also from an attacker’s input, and is then another classifier, "
    "of which nothing was proved.",
    "registry": "Any noise, under a registry that remembers the regions it has issued and keeps to its answers inside "
    "them. The guarantee is about the classifier with that memory, in the order in which its inputs were enrolled.",
    "unknown": f"{UNKNOWN_SCOPE[0].upper()}{UNKNOWN_SCOPE[1:]}.",
}
# The numbers are those of docs/scopes.md.
MEASURED = (
    "<p>It happens in practice. A certification-wise model on CIFAR-10 (a ResNet-18, μ and σ computed from each picture) "
    "certified 81.6 % of 500 pictures at an ℓ2 radius of 1.0: 408 certificates. A 40-step attack of that size on the "
    "classifier that recomputes its noise broke <strong>407 of the 408</strong>, and none while the noise was held "
    "frozen. The certificates are true; they are about another classifier than the one in use.</p>"
    "<p>There is a control for every frozen number: raise γ, the bound on μ and σ, and certify again. If the radii grow "
    "with γ while the classifier is no better for it, they measure γ, not robustness.</p>"
)


def galleries_of(runs: Sequence[Run], wanted: bool = True) -> list[Gallery]:
    """What each run has to show, or nothing where none is wanted."""
    datasets: dict[Any, Labelled | str] = {}
    return [exhibit_run(run, datasets) if wanted else Gallery() for run in runs]


def figure_files(runs: Sequence[Run], galleries: Sequence[Gallery]) -> dict[str, str]:
    """Every figure as stand-alone SVG, by its file's name without the ending."""
    return {**accuracy_figures(runs), **region_figures(runs, galleries), **input_figures(runs, galleries)}


def build_page(runs: Sequence[Run], galleries: Sequence[Gallery]) -> str:
    """The whole page."""
    title = f"{', '.join(run.label for run in runs[:4])}{' and others' if len(runs) > 4 else ''}"
    folder = resources.files("ucan.report")
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    parts = [_summary(runs), accuracy_section(runs), overview_section(runs), audit_section(runs)]
    parts.append(region_section(runs, galleries))
    rest = [_scopes(runs), _again(runs)]
    room = LIMIT - sum(len(part.encode()) for part in [*parts, *rest, style, script])
    body = "".join([*parts, gallery_section(runs, galleries, room), *rest])
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{GENERATOR}\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>UCAN report: {escape(title)}</title>\n'
        f"<style>\n{_themes()}\n{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#summary">To the summary</a>\n'
        f"{_header(runs, galleries)}\n<main>\n{body}</main>\n"
        f"<footer><p>Numbers round down, abstentions and upper ends of bands round up. {_arithmetic(runs)} "
        "Made by <code>ucan report</code> from the runs’ own records; this page asks nothing of the network.</p></footer>\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _arithmetic(runs: Sequence[Run]) -> str:
    """In which arithmetic the certificates hold, and for which changes."""
    kinds = {run.config.sampling.arithmetic for run in runs}
    said = [
        "A certificate holds in real arithmetic; floating-point rounding is not accounted for."
        if kind == REAL
        else f"A certificate of arithmetic {escape(kind)} holds {changes_in_words(kind)}, and is sound in floating point."
        for kind in sorted(kinds)
    ]
    return " ".join(said)


def _themes() -> str:
    """The colours: as the system prefers, as the button says, and light on paper."""
    light, dark = COLOURS["light"], COLOURS["dark"]
    return (
        f":root{{{light}}}\n"
        f"@media (prefers-color-scheme: dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n@media print{{:root:root:root{{{light}}}}}"
    )


def _header(runs: Sequence[Run], galleries: Sequence[Gallery]) -> str:
    count = f"{len(runs)} runs" if len(runs) > 1 else "one run"
    sizes = sorted({run.inputs for run in runs})
    each = " each" if len(runs) > 1 else ""
    size = f"{sizes[0]:,} inputs{each}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,} inputs"
    links = {"accuracy": "Certified accuracy", "runs": "The runs", "audit": "Audit"}
    if any(g.typical is not None and g.typical.slice is not None for g in galleries):
        links["regions"] = "Regions"
    if any(g.exhibits or g.missing for g in galleries):
        links["gallery"] = "Gallery"
    links |= {"scopes": "What is guaranteed", "again": "Run it again"}
    contents = "".join(f'<a href="#{anchor}">{words}</a>' for anchor, words in links.items())
    return (
        '<header class="top"><div><h1>How far these classifiers can be trusted</h1>'
        f'<p class="soft">A UCAN report on {count}, {size}</p><nav class="contents" aria-label="Contents">{contents}</nav>'
        '</div><button class="theme" type="button" hidden>Theme</button></header>'
    )


def _summary(runs: Sequence[Run]) -> str:
    kinds = {"Which run to trust": "good", "What not to trust": "bad"}
    items = "".join(
        f'<li class="{kinds.get(one.heading, "note")}"><h2>{escape(one.heading)}</h2><p>{unbroken(one.text)}</p></li>'
        for one in sentences(runs)
    )
    return f'<ol id="summary" class="three">{items}</ol>\n'


def _scopes(runs: Sequence[Run]) -> str:
    """What the scopes mean: those that occur, and the two that everybody should know."""
    known = {run.scope for run in runs} | {"pipeline", "frozen"}
    items = "".join(
        f'<dt id="scope-{scope}">{chip(scope)}</dt><dd><p>{MEANING[scope]}</p>{MEASURED if scope == "frozen" else ""}</dd>'
        for scope in (*SCOPES, "unknown")
        if scope in known
    )
    return (
        '<section id="scopes"><h2>What is guaranteed, and for whom</h2><p>The proof behind every number here speaks of one '
        "fixed noise distribution. Whose guarantee that makes it depends on where the noise came from, and is called its "
        f"scope.</p><dl>{items}</dl></section>\n"
    )


def _again(runs: Sequence[Run]) -> str:
    parts = [
        f'<div class="run"><h3>{swatch(run, runs)}{escape(run.label)}</h3><pre>{escape(chr(10).join(commands(run)))}</pre>'
        f"<details><summary>Settings of {escape(run.label)}</summary><pre>{escape(run.config.shown())}</pre></details></div>"
        for run in runs
    ]
    page = escape(f"ucan report {' '.join(str(run.folder) for run in runs)} -o report.html")
    return (
        '<section id="again"><h2>What was run, and how to run it again</h2><p>The same seed gives the same noise, and the '
        f'same votes on the same kind of device.</p>{"".join(parts)}<div class="run"><h3>This page</h3><pre>{page}</pre>'
        "</div></section>\n"
    )
