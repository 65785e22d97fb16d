"""A comparison table as text: for the terminal, for Markdown and for LaTeX."""

from __future__ import annotations

import io
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
    "ℓ": r"$\ell$",
    "∞": r"$\infty$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
    "Σ": r"$\Sigma$",
}


def render(table: Table, look: Look = "terminal", width: int | None = None) -> str:
    """The table as text; ``width`` is the terminal's (None: as wide as it needs)."""
    looks = {"markdown": markdown, "latex": latex}
    if look == "terminal":
        return terminal(table, width)
    if look not in looks:
        raise InvalidInput(f"the formats are terminal, markdown and latex, got {look!r}.")
    return looks[look](table)


def terminal(table: Table, width: int | None = None) -> str:
    """A table of box lines; bold where the output is a terminal, else a star for the best."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    styled = sys.stdout.isatty()
    grid = Grid(title=table.title, title_justify="left")
    for i, name in enumerate(table.header):
        grid.add_column(name, justify="left" if i < 2 else "right", no_wrap=i > 1, overflow="fold")
    for cells, best in table.lines():
        mark = "" if styled else "*"
        row = [Text(c + mark, "bold") if b else Text(c) for c, b in zip(cells, best, strict=True)]
        grid.add_row(*row)
    out = io.StringIO()
    console = Console(file=out, width=width or 400, force_terminal=styled, no_color=not styled, legacy_windows=False)
    console.print(grid)
    for note in table.notes:
        console.print(Text(note), soft_wrap=width is None)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def markdown(table: Table) -> str:
    """A pipe table with the best in bold and the notes below."""

    def cell(text: str, bold: bool) -> str:
        safe = text.strip().replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("\n", " ")
        return f"**{safe}**" if bold else safe

    lines = [f"{table.title}:", "", "| " + " | ".join(table.header) + " |"]
    lines.append("|" + "|".join(["---", "---"] + ["--:"] * (len(table.header) - 2)) + "|")
    for cells, best in table.lines():
        lines.append("| " + " | ".join(map(cell, cells, best)) + " |")
    lines += [line for note in table.notes for line in ("", note)]
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
    """Text for LaTeX: its special characters, and the few symbols that our tables use."""
    return "".join(_LATEX.get(c, c) for c in text.replace("\n", " "))
