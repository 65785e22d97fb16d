"""A comparison table as text: for the terminal, for Markdown and for LaTeX."""

from __future__ import annotations

import io
import re
import sys
from typing import Literal

from ucan.errors import InvalidInput
from ucan.report.tables import Table

Look = Literal["terminal", "markdown", "latex"]
_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "“": "``",
    "”": "''",
    "ℓ1": r"$\ell_1$",
    "ℓ2": r"$\ell_2$",
    "ℓ∞": r"$\ell_\infty$",
    "ℓ": r"$\ell$",
    "∞": r"$\infty$",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
    "Σ": r"$\Sigma$",
}
# As entities, which are never markup; a pipe needs its backslash to stay in a cell.
_MARKDOWN = {c: f"&#{ord(c)};" for c in "\\`*[]~$"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|"}
# The least width of the run's column, in characters with its frame, before a table is split into several grids.
NARROWEST_NAME = 15


def render(table: Table, look: Look = "terminal", width: int | None = None) -> str:
    """The table as text; ``width`` is the terminal's (None: as wide as it needs)."""
    looks = {"markdown": markdown, "latex": latex}
    if look == "terminal":
        return terminal(table, width)
    if look not in looks:
        raise InvalidInput(f"the formats are terminal, markdown and latex, got {look!r}.")
    return looks[look](table)


def terminal(table: Table, width: int | None = None) -> str:
    """A table of box lines; bold where the output is a terminal, else a star for the best.

    A table wider than ``width`` is split into several grids, each with run, scope and cap: no cell is ever cut.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    styled = sys.stdout.isatty()
    rows = [
        [Text(c + ("" if styled else "*"), "bold") if b else Text(c) for c, b in zip(cells, best, strict=True)]
        for cells, best in table.lines()
    ]
    sizes = [max(cell_len(name), *(row[i].cell_len for row in rows)) + 3 for i, name in enumerate(table.header)]
    if width is not None and sum(sizes) >= width:
        sizes[0] = min(sizes[0], max(NARROWEST_NAME, width // 3))
    parts = _parts(sizes, width)
    needed = 1 + max(sum(sizes[i] for i in part) for part in parts)
    out = io.StringIO()
    console = Console(
        file=out, width=max(width or 0, needed), force_terminal=styled, no_color=not styled, legacy_windows=False
    )
    for number, part in enumerate(parts):
        grid = Grid(title=None if number else table.title, title_justify="left")
        for i in part:
            grid.add_column(table.header[i], justify="left" if i < 2 else "right", width=sizes[i] - 3, overflow="fold")
        for row in rows:
            grid.add_row(*(row[i] for i in part))
        console.print(grid)
    for note in table.notes:
        console.print(Text(note), soft_wrap=width is None)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _parts(sizes: list[int], width: int | None) -> list[list[int]]:
    """The columns of each grid: the first three in each, and as many of the others as fit beside them."""
    parts: list[list[int]] = [[]]
    for i in range(3, len(sizes)):
        beside = 1 + sum(sizes[:3]) + sum(sizes[j] for j in parts[-1])
        if width is not None and parts[-1] and beside + sizes[i] > width:
            parts.append([])
        parts[-1].append(i)
    return [[0, 1, 2, *part] for part in parts]


def in_markdown(text: str) -> str:
    """Text that others wrote, within a line or a table's cell of Markdown: it ends neither, and is no markup but `code`."""
    parts = re.split(r"`([^`|\\]+)`", " ".join(text.split()))  # every second one is code
    return "".join(f"`{part}`" if at % 2 else _plain(part) for at, part in enumerate(parts))


def _plain(text: str) -> str:
    safe = "".join(_MARKDOWN.get(symbol, symbol) for symbol in text)
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", "&#95;", safe)  # one within a word is no markup


def markdown(table: Table) -> str:
    """A pipe table with the best in bold and the notes below."""

    def cell(text: str, bold: bool) -> str:
        return f"**{text.strip()}**" if bold else text.strip()

    lines = [f"{table.title}:", "", "| " + " | ".join(table.header) + " |"]
    lines.append("|" + "|".join(["---", "---"] + ["--:"] * (len(table.header) - 2)) + "|")
    for cells, best in table.lines():
        shown = [in_markdown(cells[0]), *cells[1:]]  # the name of a run is whatever its config says
        lines.append("| " + " | ".join(map(cell, shown, best)) + " |")
    lines += [line for note in table.notes for line in ("", in_markdown(note))]
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """A plain ``tabular`` that needs no package, with the best in bold and the notes below."""

    def cell(text: str, bold: bool) -> str:
        safe = escape(text.strip())
        return f"\\textbf{{{safe}}}" if bold else safe

    lines = [r"\begin{table}", r"\centering", f"\\caption{{{escape(table.title)}}}"]
    lines += [f"\\begin{{tabular}}{{ll{'r' * (len(table.header) - 2)}}}", r"\hline"]
    lines += [" & ".join(map(escape, table.header)) + r" \\", r"\hline"]
    lines += [" & ".join(map(cell, cells, best)) + r" \\" for cells, best in table.lines()]
    lines += [r"\hline", r"\end{tabular}"]
    lines += [f"\\par{{\\footnotesize {escape(note)}.}}" for note in table.notes]
    lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Text for LaTeX: special characters and the few symbols that our tables use are replaced."""
    return "".join(_LATEX.get(symbol, symbol) for symbol in re.findall("ℓ[12∞]|.", text.replace("\n", " ")))
