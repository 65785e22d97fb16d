"""Predict a data set with the smoothed classifier; every answer is stored at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ucan.arithmetic import arithmetic_of
from ucan.certificate import ABSTAINED, Abstention, Prediction
from ucan.choices import Test
from ucan.data import Labelled
from ucan.data.tables import by_held
from ucan.errors import InvalidInput
from ucan.places import started_in
from ucan.plan import PredictPlan, Seed
from ucan.results.metrics import NO_LABEL
from ucan.rounding import floor_percent, floor_share
from ucan.routed import Deployed
from ucan.runs.answers import Answer, Answers, Named
from ucan.runs.backend import settle_backend
from ucan.runs.build import Settled, settle, step_for
from ucan.runs.config import PredictConfig, begun_seed, kept_seed
from ucan.runs.jobs import Inputs, Pipeline, Selection
from ucan.runs.mishaps import answered
from ucan.runs.progress import SILENT, Progress
from ucan.runs.refs import data_ref, law_ref, model_ref, noise_ref
from ucan.version import __version__


@dataclass(frozen=True, kw_only=True)
class PredictJob(Pipeline, Inputs):
    """The settings of `ucan predict`; each field is the option of that name. ``seed`` None means a random seed."""

    n: int = 1000
    alpha: float = 0.001
    test: Test = "majority"
    stop: bool = False
    seed: Seed = 0
    batch_size: int | None = None


@dataclass(frozen=True)
class Predicted:
    """The answers in the order of the data, and the path of their table, if any. ``accuracy`` is rounded down."""

    answers: tuple[Answer, ...]
    tsv: Path | None
    alpha: float
    named: Named

    def table(self) -> str:
        """The answers as a table, with the names of inputs and classes."""
        return self.named.table(self.answers)

    @property
    def labelled(self) -> int:
        """How many have a label."""
        return _tally(self.answers)[1]

    @property
    def accuracy(self) -> float | None:
        """The share of correct answers among those with a known label, rounded down."""
        return floor_share(*_tally(self.answers))

    @property
    def abstained(self) -> int:
        """How many abstain."""
        return sum(answer.predict == ABSTAINED for answer in self.answers)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "tsv": None if self.tsv is None else str(self.tsv),
            "inputs": len(self.answers),
            "labelled": self.labelled,
            "accuracy": self.accuracy,
            "abstained": self.abstained,
            "alpha": self.alpha,
        }


def predict(job: PredictJob, out: str | Path | None = None, progress: Progress = SILENT) -> Predicted:
    """Predict the inputs of a job, and write a table if ``out`` is given.

    Until the table is complete, answers are stored in ``out.part``. The same job resumes from there, also with more inputs;
    a different job is refused, and the error lists each difference.

    Args:
        job: the classifier, its noise, the inputs and the sampling; the options of ``ucan predict``.
        out: the TSV to write; None keeps the answers in memory only.
        progress: receives progress and messages; silent by default.

    Returns:
        The answers, in the order of the data.
    """
    table = _checked(out)
    answers = Answers(table)
    where, plan = job.place(), PredictPlan(job.n, job.alpha, 0, job.test, job.batch_size, job.stop)
    settled = settle(job, job.selection(), where)
    g, selection = settled.g, settled.selection
    for remark in settled.remarks:
        progress.warn(remark)
    first = selection.first().to(where)
    selection.check(g.num_classes)
    begun = answers.about
    g = g.on_grid(step_for(job.arithmetic, selection.dataset, None if begun is None else begun.arithmetic))
    g.holding(selection.held()).check_inputs(first)
    plan = g.seeded(g.counting(plan), begun_seed(job.seed, begun), selection.dataset.fingerprint())
    answers.begin(_config(job, settled, g, plan, first, table, begun))
    named = Named(selection.dataset.names or (), settled.class_names or ())
    _answer_all(g, selection, answers, plan, progress)
    if table is not None:
        answers.finish(named)
    return Predicted(tuple(answers.done[i] for i in selection.indices), table, job.alpha, named)


def _checked(out: str | Path | None) -> Path | None:
    """The path of the table; raises an error before any work if it cannot be written."""
    if out is None:
        return None
    table = Path(out)
    if table.is_dir():
        raise InvalidInput(f"{table} is a folder: give the file to write.")
    if not table.parent.is_dir():
        raise InvalidInput(f"there is no folder {table.parent} to write {table.name} to: create it first.")
    if not os.access(table.parent, os.W_OK):
        raise InvalidInput(f"the folder {table.parent} is not writable: give another file.")
    return table


def _config(
    job: PredictJob,
    settled: Settled,
    g: Deployed,
    plan: PredictPlan,
    first: torch.Tensor,
    table: Path | None,
    begun: PredictConfig | None,
) -> PredictConfig:
    """Make the config of the answers; this also chooses the backend."""
    if begun is not None and g.identity() is None:
        raise InvalidInput("this model cannot be identified: give it a name with --model-id, and start another file.")
    # The backend of another model's answers does not matter: comparing the configs reports that the model differs.
    known = begun.backend if begun is not None and begun.model.spec == job.spec else None
    seed, source = kept_seed(plan)
    selection = settled.selection
    return PredictConfig(
        ucan=__version__,
        model=model_ref(job, g, class_names=settled.class_names),
        data=data_ref(job, selection.dataset),
        most=job.most,
        started_in=None if table is None else started_in(table.parent),
        law=law_ref(g),
        noise=noise_ref(g),
        num_classes=g.num_classes,
        n=plan.n,
        alpha=plan.alpha,
        seed=seed,
        seed_source=source,
        test=plan.test,
        batch_size=plan.batch_size,
        stop=plan.stop,
        precision=g.precision,
        arithmetic=arithmetic_of(g.grid),
        backend=settle_backend(g.holding(selection.held()), job.backend, plan, first, len(selection.indices), known),
    )


def _answer_all(g: Deployed, selection: Selection, answers: Answers, plan: PredictPlan, progress: Progress) -> None:
    """Predict every input that has no answer yet."""
    todo = [index for index in selection.indices if index not in answers.done]
    right, known = _tally(answers.done.values())
    with progress.working(len(todo), len(answers.done), plan.n):
        g.on_votes(progress.sampled)
        last = time.perf_counter()
        where = None if answers.table is None else answers.table.with_name(f"{answers.table.name}.part")
        outcomes = _outcomes(g, selection.dataset, todo, plan)
        for index, outcome in answered(outcomes, lambda: len(answers.done), where):
            now = time.perf_counter()
            label, found = int(selection.dataset.labels[index]), outcome.prediction
            correct = int(found is not None and found == label)
            answers.add(Answer(index, label, ABSTAINED if found is None else found, correct, now - last))
            right, known, last = right + correct, known + (label != NO_LABEL), now
            # With early stopping the easy inputs finish first, so a share of the finished ones would be too high.
            unknown = plan.stop or not known
            progress.finished("" if unknown else f"accuracy {floor_percent(right / known)} %")


def _outcomes(
    g: Deployed, data: Labelled, todo: Sequence[int], plan: PredictPlan
) -> Iterator[tuple[int, Prediction | Abstention]]:
    """Yield (index, outcome) pairs; inputs with the same held columns share a classifier and its forward passes."""
    for held, group in by_held(data, todo):
        for number, outcome in g.holding(held).predict_each((data[i][0][None] for i in group), plan):
            yield group[number], outcome


def _tally(answers: Iterable[Answer]) -> tuple[int, int]:
    """The number of correct answers, and of known labels."""
    known = [answer.correct for answer in answers if answer.label != NO_LABEL]
    return sum(known), len(known)
