"""Colours, lines and letters of figures and pages."""

from __future__ import annotations

from dataclasses import dataclass

# For people who see few colours, too: each pair also differs in lightness or is told apart by its line.
LIGHT = ("#0b62a8", "#c4500a", "#00805e", "#9a2a6f", "#8a6d00", "#3f3aa3", "#0f8f9c", "#7a3e1d", "#5c6670", "#a3123a")
DARK = ("#62b5f0", "#ff9d57", "#3ecf9f", "#ea8cc0", "#e5c451", "#a5a1ff", "#5fd9e4", "#d39b76", "#aab4bf", "#ff7d96")
DASHES = {"pipeline": "", "frozen": "7 4", "registry": "1.5 4.5", "unknown": "10 4 2 4"}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Paint:
    """Colours by their part in a figure."""

    ink: str
    soft: str
    grid: str
    ground: str
    runs: tuple[str, ...]

    def run(self, number: int) -> str:
        """The colour of a report's run by its number; they repeat after the tenth."""
        return self.runs[number % len(self.runs)]


PAPER = Paint("#1b2330", "#5a6675", "#e4e8ed", "#ffffff", LIGHT)
PAGE = Paint("var(--ink)", "var(--soft)", "var(--grid)", "none", tuple(f"var(--run-{i})" for i in range(len(LIGHT))))
