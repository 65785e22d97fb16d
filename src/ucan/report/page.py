"""The report: one HTML page that needs nothing beside it, from the runs' stored results."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from markupsafe import Markup

from ucan.arithmetic import REAL, changes_in_words
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
from ucan.report.gallery import Gallery, exhibit_run
from ucan.report.markup import render
from ucan.report.paint import DARK, LIGHT
from ucan.report.rerun import commands
from ucan.report.runs import Run
from ucan.report.sentences import sentences
from ucan.results.formats import UNKNOWN_SCOPE

GENERATOR = '<meta name="generator" content="ucan report">'
LIMIT = 2_800_000  # bytes of a page; galleries beyond it are left out, and the page says so
COLOURS = {
    "light": "--paper:#fafaf8;--card:#ffffff;--ink:#1b2330;--soft:#5a6675;--grid:#e6e9ee;--edge:#d5dae1;"
    "--link:#0b5ea0;--good:#00734f;--bad:#b03a06;color-scheme:light;"
    + "".join(f"--run-{i}:{colour};" for i, colour in enumerate(LIGHT)),
    "dark": "--paper:#11151b;--card:#181d25;--ink:#e9edf2;--soft:#9ba7b5;--grid:#2a313b;--edge:#343d49;"
    "--link:#7cbcf2;--good:#4fd0a4;--bad:#ff9a66;color-scheme:dark;"
    + "".join(f"--run-{i}:{colour};" for i, colour in enumerate(DARK)),
}
CONTENTS = {
    "accuracy": "Certified accuracy",
    "runs": "The runs",
    "audit": "Audit",
    "regions": "Regions",
    "gallery": "Gallery",
    "scopes": "What is guaranteed",
    "again": "Run it again",
}


def galleries_of(runs: Sequence[Run], wanted: bool = True, trust: bool = False) -> list[Gallery]:
    """The gallery of each run; empty ones if none are wanted. ``trust``: code is run that whoever made a run has chosen."""
    datasets: dict[Any, Labelled | str] = {}
    return [exhibit_run(run, datasets, trust) if wanted else Gallery() for run in runs]


def figure_files(runs: Sequence[Run], galleries: Sequence[Gallery]) -> dict[str, str]:
    """Every figure as stand-alone SVG, by its file's name without the ending."""
    return {**accuracy_figures(runs), **region_figures(runs, galleries), **input_figures(runs, galleries)}


def frame() -> dict[str, Any]:
    """What the templates of all pages need: the generator, the colours, the style sheet and the script."""
    folder = resources.files("ucan.report")
    style, script = (Markup((folder / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    return {"generator": Markup(GENERATOR), **COLOURS, "style": style, "script": script}


def build_page(runs: Sequence[Run], galleries: Sequence[Gallery]) -> str:
    """The whole page."""
    around = frame()
    sections = {
        "accuracy": accuracy_section(runs),
        "runs": overview_section(runs),
        "audit": audit_section(runs),
        "regions": region_section(runs, galleries),
        "scopes": render("scopes.html", scopes={run.scope for run in runs}, unknown=UNKNOWN_SCOPE),
        "again": render("again.html", runs=runs, rows=[(run, commands(run), run.config.shown()) for run in runs]),
    }
    room = LIMIT - sum(len(part.encode()) for part in [*sections.values(), around["style"], around["script"]])
    sections["gallery"] = gallery_section(runs, galleries, room)
    contents = {anchor: words for anchor, words in CONTENTS.items() if sections[anchor]}
    return render(
        "page.html",
        runs=runs,
        **around,
        inputs=_inputs(runs),
        contents=contents,
        sentences=sentences(runs),
        sections=[sections[anchor] for anchor in contents],
        arithmetic=_arithmetic(runs),
    )


def _inputs(runs: Sequence[Run]) -> str:
    """How many inputs the runs have."""
    sizes = sorted({run.inputs for run in runs})
    if len(sizes) > 1:
        return f"{sizes[0]:,} to {sizes[-1]:,} inputs"
    return f"{sizes[0]:,} inputs{' each' if len(runs) > 1 else ''}"


def _arithmetic(runs: Sequence[Run]) -> str:
    """In which arithmetic the certificates hold, and for which changes."""
    kinds = {run.config.sampling.arithmetic for run in runs}
    said = [
        "A certificate holds in real arithmetic; floating-point rounding is not accounted for."
        if kind == REAL
        else f"A certificate of arithmetic {kind} holds {changes_in_words(kind)}, and is sound in floating point."
        for kind in sorted(kinds)
    ]
    return " ".join(said)
