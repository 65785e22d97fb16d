"""What a report says of a run, read from its folder once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ucan.audit import Attempt, Summary, read_attempts, summarise
from ucan.certificate import SCOPES
from ucan.errors import InvalidInput, StoreError
from ucan.laws import norm_name
from ucan.report.basis import inputs_of, unlabelled_in_words
from ucan.results.metrics import Columns, labelled
from ucan.results.store import Store

BUDGET_AXIS = "ε of the budget"
AUDIT = "audit"  # the folder of a run's audit, inside the run's


@dataclass(frozen=True, eq=False)
class Run:
    """A run's rows and claims. ``label`` is its name, made distinct; ``attempts`` are those of its audit, if any."""

    label: str
    folder: Path
    scope: str
    norm: float | None
    cap: float | None
    config: dict[str, Any]
    columns: Columns
    attempts: tuple[Attempt, ...] = ()
    left_out: int = 0  # results behind an input that the interrupted run has not finished
    certificates_left_out: int = 0  # how many of those are certificates; an audit attacks them as well
    budget: str | None = None  # the key of the budget whose factors ε stand in place of radii

    @property
    def inputs(self) -> int:
        """How many inputs were certified or abstained on."""
        return len(self.columns["idx"])

    @property
    def labelled(self) -> int:
        """How many of them have a label: those that shares are over."""
        return int(labelled(self.columns).sum())

    @property
    def unlabelled(self) -> str:
        """What unknown labels leave to say; nothing where all are known."""
        return unlabelled_in_words(labelled(self.columns), self.columns["abstained"])

    @property
    def data(self) -> Hashable | None:
        """What tells its inputs from others; None where nobody knows."""
        return inputs_of(self.config, self.inputs)

    @property
    def alpha(self) -> float | None:
        """α; None where an imported file does not tell."""
        return self.config.get("alpha")

    @property
    def certificates(self) -> int:
        """How many inputs have a certificate of a positive radius: what an audit can attack."""
        return _certificates(self.columns)

    def attacked(self, mode: str) -> int:
        """How many certificates the audit attacked in this mode."""
        return len({attempt.idx for attempt in self.attempts if attempt.mode == mode})

    @property
    def uncovered(self) -> bool:
        """Whether the audit attacked something live that the guarantee does not cover: frozen noise computed anew."""
        return any(attempt.mode == "live" and not attempt.covered for attempt in self.attempts)

    @property
    def covered(self) -> tuple[int, int]:
        """How many certificates the audit broke where the guarantee covers them, and how many it attacked there."""
        attempts = [attempt for attempt in self.attempts if attempt.covered]
        return len({a.idx for a in attempts if a.refuted}), len({a.idx for a in attempts})

    @property
    def refuted(self) -> str:
        """How the audit showed that something in this run is wrong; nothing where it did not."""
        if self.audit is None or not self.audit.is_bug:
            return ""
        broken, attacked = self.covered
        return (
            f"the audit broke {broken} of {attacked} certificates where the guarantee covers them, and chance does not "
            "explain it"
        )

    @cached_property
    def audit(self) -> Summary | None:
        """What the audit found; None if there was none."""
        return summarise(self.attempts, self.config.get("skip") or 1) if self.attempts else None

    @property
    def kind(self) -> Hashable:
        """What its sizes compare with: radii of the same norm, or factors of the same budget."""
        return self.norm if self.budget is None else self.budget

    @property
    def measure(self) -> str:
        """The radius with its norm, or the factor of the budget, as axes and sentences call it."""
        if self.budget is not None:
            return BUDGET_AXIS
        return "radius (norm not stated)" if self.norm is None else f"{norm_name(self.norm)} radius"


def read_runs(folders: Sequence[str | Path]) -> list[Run]:
    """The runs in these folders, each once, in the order given; a run without results is refused."""
    places = list({Path(folder).resolve(): Path(folder) for folder in folders}.values())
    if not places:
        raise InvalidInput("a report needs at least one run: name the folders of `ucan certify` runs.")
    runs = [_read(folder) for folder in places]
    labels = distinct([run.label for run in runs])
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def distinct(names: Sequence[str]) -> list[str]:
    """The names, numbered where several are the same, so that no two runs look alike."""
    return [f"{n} ({names[: i + 1].count(n)})" if names.count(n) > 1 else n for i, n in enumerate(names)]


def by_norm(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs in groups of one norm or one budget each, since sizes of different ones do not compare."""
    kinds = dict.fromkeys(run.kind for run in runs)
    return [[run for run in runs if run.kind == kind] for kind in kinds]


def norm_slug(run: Run) -> str:
    """The norm, or the budget, in a file's name."""
    norm = run.norm
    if run.budget is not None:
        return f"budget-{run.budget[:8]}"
    return "unknown-norm" if norm is None else "linf" if norm == math.inf else f"l{norm:g}"


def _read(folder: Path) -> Run:
    if not folder.is_dir():
        raise StoreError(f"{folder} is no folder: name the folder of a `ucan certify` run.")
    with Store.open(folder) as store:
        columns, left_out = store.gapless()
        if not len(columns["idx"]):
            raise StoreError(f"{folder} has no certificates yet: let `ucan certify` finish at least one input first.")
        scope = store.scope if store.scope in SCOPES else "unknown"
        cap = store.config.get("alm_cap")
        attempts = tuple(read_attempts(folder / AUDIT))
        behind = _certificates(store.columns(("abstained", "radius"))) - _certificates(columns) if left_out else 0
        claims = store.norm, cap, store.config, columns, attempts, left_out, behind, store.budget
        return Run(store.name, folder, scope, *claims)


def _certificates(columns: Columns) -> int:
    return int((~columns["abstained"] & (columns["radius"] > 0)).sum())
