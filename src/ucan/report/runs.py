"""The runs of a report, in the groups that compare with each other."""

from __future__ import annotations

from collections.abc import Sequence

from ucan.choices import norm_word
from ucan.runs.read import BUDGET_AXIS as BUDGET_AXIS
from ucan.runs.read import Run as Run
from ucan.runs.read import distinct as distinct
from ucan.runs.read import read_runs as read_runs


def by_norm(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs in groups of one norm or one budget each, since sizes of different ones do not compare."""
    kinds = dict.fromkeys(run.kind for run in runs)
    return [[run for run in runs if run.kind == kind] for kind in kinds]


def norm_slug(run: Run) -> str:
    """The norm, or the budget, in a file's name."""
    norm = run.norm
    if run.budget is not None:
        return f"budget-{run.budget[:8]}"
    return "unknown-norm" if norm is None else f"l{norm_word(norm)}"
