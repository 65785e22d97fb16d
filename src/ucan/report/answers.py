"""The report on runs of questions: one page with what was asked, how large the claims are, and a picture of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucan.audit.answers import outside_range
from ucan.certificate import SCOPES, Abstention
from ucan.data import Labelled
from ucan.places import found_model
from ucan.questions.catalogue import QUESTIONS, options_of
from ucan.questions.confidence import Confident
from ucan.questions.decisions import Decided
from ucan.questions.record import Answer
from ucan.questions.regression import Interval
from ucan.report.answer_charts import boxes, confidence_chart, interval_chart, labels, masks, radii_chart, width_curve
from ucan.report.markup import render
from ucan.report.page import frame
from ucan.report.rerun import line, options, place
from ucan.results.answers import AnswerStore
from ucan.runs.ask_summary import mean_samples
from ucan.runs.asked import asked_in, targets_of
from ucan.runs.audited import tries_on
from ucan.runs.config import AskConfig
from ucan.training import is_trained_run


@dataclass(frozen=True, eq=False)
class Asked:
    """One run of a question, read for a page."""

    folder: Path
    config: AskConfig
    answers: list[tuple[int, Answer | Abstention]]
    data: Labelled | None
    base: Path | None = None

    @property
    def given(self) -> list[tuple[int, Answer]]:
        """The answers that are no abstentions."""
        return [(idx, one) for idx, one in self.answers if not isinstance(one, Abstention)]


def read_asked(folders: Sequence[Path], trust: bool = False) -> list[Asked]:
    """The runs in these folders, which all are runs of questions. ``trust``: code beside a run may read its data."""
    found = []
    for folder in folders:
        config, base = asked_in(folder)
        with AnswerStore.open(folder) as store:
            found.append(Asked(Path(folder), config, list(store.answers()), targets_of(config, base, trust), base))
    return found


def build_answers_page(runs: Sequence[Asked]) -> str:
    """The whole page."""
    return render("answers.html", **frame(), runs=[_section(run) for run in runs])


def _section(run: Asked) -> dict[str, Any]:
    """What the template shows of one run."""
    config, given = run.config, run.given
    scope = config.claim.scope or "unknown"
    intervals = [(idx, one) for idx, one in given if isinstance(one, Interval)]
    decided = [(idx, one) for idx, one in given if isinstance(one, Decided)]
    names = [run.data.name_of(idx) if run.data is not None else str(idx) for idx, _ in given]
    return {
        "name": run.folder.resolve().name,
        "question": config.question,
        "about": QUESTIONS.get(config.question or "", ""),
        "inputs": len(run.answers),
        "abstained": len(run.answers) - len(given),
        "scope": scope,
        "guarantee": SCOPES.get(scope, "unknown"),
        "alpha": config.sampling.alpha,
        "n": config.sampling.n,
        "stop": config.sampling.stop,
        "samples": mean_samples([one for _, one in run.answers]),
        "arithmetic": config.sampling.arithmetic,
        "radii": radii_chart([one.radius for _, one in given], len(run.answers)),
        "intervals": interval_chart(intervals, run.data) if intervals else None,
        "confidence": confidence_chart([one for _, one in given if isinstance(one, Confident)]),
        "curve": width_curve([one for _, one in intervals]),
        "masks": masks(decided, run.data),
        "labels": labels(decided, run.data),
        "boxes": boxes(intervals, run.data),
        "lines": [f"{name}: {one}" for name, (_, one) in list(zip(names, given, strict=True))[:8]],
        "reasons": [f"{idx}: {one.reason}" for idx, one in run.answers if isinstance(one, Abstention)][:3],
        "audit": _audit(run),
        "command": command(run),
    }


def _audit(run: Asked) -> str:
    """What an audit in the run's folder found; empty if there was none."""
    tries = tries_on(run.folder, run.config.model, run.answers)
    if not tries:
        return ""
    broken = {one.idx for one in tries if one.broken}
    attacked = {one.idx for one in tries if one.elsewhere}
    counts = f"{len(attacked)} answers were attacked inside their regions, {len(broken)} broke."
    void = len(outside_range(tries))
    return counts + (
        f" The range stated for the outputs is false for {void} of them: their intervals are void." if void else ""
    )


def command(run: Asked) -> str:
    """The command that repeats the run, after a change of directory if it was started elsewhere."""
    config = run.config
    folder, moved = place(run.folder, run.base)
    model = found_model(config.model.spec or "", run.base)
    asked = config.question or ""
    words = [asked, *options_of(asked, config.settings)]
    words += options(config, "certify", trained=bool(model) and is_trained_run(model))
    most = ["--max", len(run.answers)] if run.answers else []
    return "\n".join([*moved, line("ask", *words, *most, "-o", folder)])
