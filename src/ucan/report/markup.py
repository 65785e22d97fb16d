"""The small things that every part of the page is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from ucan.report.figures import LIGHT
from ucan.report.runs import Run

NUMBERS = ' class="n"'


def swatch(run: Run, runs: Sequence[Run]) -> str:
    """A sample of a run's line: its colour, and its scope's style."""
    colour = f"var(--run-{runs.index(run) % len(LIGHT)})"
    return f'<span class="swatch {run.scope}" style="--c:{colour}" aria-hidden="true"></span>'


def chip(scope: str) -> str:
    """A scope, as a link to what it means."""
    return f'<a class="chip {scope}" href="#scope-{scope}">{scope}</a>'


def row_head(run: Run, runs: Sequence[Run]) -> str:
    """The first two cells of a run's row: its name and its scope."""
    return f'<th scope="row">{swatch(run, runs)}{escape(run.label)}</th><td>{chip(run.scope)}</td>'


def table(columns: Sequence[str], rows: Sequence[str], caption: str, words: Sequence[str] = ()) -> str:
    """A table that scrolls by itself where the window is narrow; columns hold numbers, but for two and ``words``."""
    head = "".join(
        f'<th scope="col"{"" if i < 2 or name in words else NUMBERS}>{escape(name)}</th>'
        for i, name in enumerate(columns)
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption><span>{escape(caption)}'
        f"</span></caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def unbroken(words: str) -> str:
    """Text for the page, with a number and its % on one line."""
    return escape(words).replace(" %", "\u00a0%")


def strong(words: str) -> str:
    """Escaped text with **this** in bold."""
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", words)


def embedded(data: Any) -> str:
    """JSON that cannot end its script element."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def slug(name: str) -> str:
    """A name for a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
