"""Certify a data set into a run's folder; every result is stored at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucan.arithmetic import arithmetic_of
from ucan.budget import Budget
from ucan.certificate import SCOPES, Abstention, Certificate
from ucan.choices import norm_to_json
from ucan.continuing import can_go_on, certify_more
from ucan.data.tables import Table, by_held
from ucan.errors import InvalidInput
from ucan.evidence import Evidence
from ucan.plan import CertifyPlan
from ucan.registry import Registry, region_norm
from ucan.results.confusion import other_order
from ucan.results.database import OUTCOMES
from ucan.results.folder import remove_empty
from ucan.results.formats import class_name, write
from ucan.results.metrics import NO_LABEL, labelled
from ucan.results.store import Store
from ucan.rounding import floor_percent, floor_share
from ucan.routed import Deployed, single
from ucan.runs.certificates import CERTIFICATES, write_certificate, write_missing
from ucan.runs.mishaps import answered
from ucan.runs.placing import placed
from ucan.runs.prepare import CertifyJob as CertifyJob
from ucan.runs.prepare import Prepared, compared, config_of, grows, prepared
from ucan.runs.progress import SILENT, Progress
from ucan.runs.sheet import SHEET, has_sheet, row_answers, write_sheet
from ucan.tabular import RowAnswer

# Number of a table's rows that a summary describes.
SHOWN = 3


@dataclass(frozen=True)
class Certified:
    """The results for the selected inputs. ``accuracy`` is rounded down; it is None if no label is known.

    ``at_ceiling`` is the number of certificates that had all n votes and could be larger with more. ``sheet`` is the
    file with names and columns; ``rows`` are the first answers of a table.

    ``run`` is the run's folder and ``tsv`` the file of radii. Of ``inputs`` inputs ``labelled`` have a known class and
    ``abstained`` got no certificate. ``median_correct_radius`` is that of the correct certificates. ``scope``,
    ``arithmetic``, ``norm`` and ``budget`` say what the radii mean; ``stop`` is the stopping rule and ``mean_samples`` what
    it used of ``n`` on average. ``class_names`` are the classes in the model's order. ``certificates`` is the folder of the
    certificates' files, if they were asked for.
    """

    run: Path
    tsv: Path
    inputs: int
    labelled: int
    accuracy: float | None
    abstained: int
    median_correct_radius: float | None
    scope: str
    arithmetic: str
    norm: float
    budget: Budget | None
    stop: str | None
    mean_samples: float | None
    n: int
    at_ceiling: int = 0
    class_names: tuple[str, ...] | None = None
    sheet: Path | None = None
    rows: tuple[RowAnswer, ...] = ()
    certificates: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        about = {} if self.budget is None else {"budget": self.budget.words(), "budget_hash": self.budget.key}
        return {
            "run": str(self.run),
            "tsv": str(self.tsv),
            "inputs": self.inputs,
            "labelled": self.labelled,
            "accuracy": self.accuracy,
            "abstained": self.abstained,
            "median_correct_radius": self.median_correct_radius,
            "scope": self.scope,
            "guarantee": SCOPES[self.scope],
            "arithmetic": self.arithmetic,
            "norm": norm_to_json(self.norm),
            **about,
            "stop": self.stop,
            "mean_samples": self.mean_samples,
            "at_ceiling": self.at_ceiling,
            **({} if self.class_names is None else {"class_names": list(self.class_names)}),
            **({} if self.sheet is None else {"answers": str(self.sheet)}),
            **({} if self.certificates is None else {"certificates": str(self.certificates)}),
            **({"rows": [_row_to_dict(row) for row in self.rows]} if self.rows else {}),
        }


def _row_to_dict(row: RowAnswer) -> dict[str, Any]:
    """A row's answer as plain JSON values."""
    told = {} if row.reach is None else row.reach.to_dict()
    return {"idx": row.index, "name": row.name, "label": row.label, **told, "words": row.words()}


def certify(job: CertifyJob, out: str | Path | None = None, progress: Progress = SILENT) -> Certified:
    """Certify a data set into a folder, and summarise the results.

    An existing run with the same config is resumed; a different config is refused, and the error lists each difference.
    Each result is stored with its evidence before the next one starts, so the work can be stopped at any time.

    Args:
        job: the classifier, its noise, the inputs and the sampling; the options of ``ucan certify``.
        out: the run's folder, or a ``.tsv`` file next to which the folder is created; by the data and the norm if None.
        progress: receives progress and messages; silent by default.

    Returns:
        The counts, the accuracy and the paths of the run.
    """
    work = prepared(job, out, progress)
    try:
        return _certify(work, job, progress)
    except Exception:
        if work.known is None:
            remove_empty(work.folder, OUTCOMES)
        raise


def _certify(work: Prepared, job: CertifyJob, progress: Progress) -> Certified:
    config = config_of(work)
    with (
        _memory(job.registry, work.g, work.first, work.plan) as memory,
        Store.create(work.folder, config.to_table(), partial(compared, work.folder)) as store,
    ):
        if work.known is not None and grows(work.known, config):
            if job.cluster is not None:
                raise InvalidInput("a run can be continued with more votes only in one process: leave --cluster out.")
            store.adopt(replace(work.known, sampling=replace(work.known.sampling, n=job.n)).to_table())
        try:
            _certify_all(work, memory, store, progress)
        finally:  # the table is written also after an error or an interruption
            if len(store):
                write(store, work.tsv, overwrite=True)
                if has_sheet(work.selection.dataset):
                    write_sheet(store, work.selection.dataset, work.class_names or (), work.folder)
        _check_order(store, work, progress)
        return _summary(store, work)


def _check_order(store: Store, work: Prepared, progress: Progress) -> None:
    """Warn if the labels seem to be numbered in another order than the model's classes."""
    columns = store.columns(("label", "prediction"))
    found = other_order(columns["label"], columns["prediction"])
    if found is None:
        return
    names = work.class_names or ()
    told = ", ".join(f"{class_name(a, names)} as {class_name(b, names)}" for a, b in list(found.items())[:3])
    progress.warn(
        f"the classes of the data and of the model seem to be in different orders: most answers are wrong in the same "
        f"way ({told}). Give the class names in the model's order (--class-names), or name the folders as the model "
        f"names its classes."
    )


@contextmanager
def _memory(path: str | Path | None, g: Deployed, first: torch.Tensor, plan: CertifyPlan) -> Iterator[Registry | None]:
    """Open the registry, if one is given, and check that it belongs to this classifier."""
    if path is None:
        yield None
        return
    one = single(g, "a registry")
    with Registry(path, region_norm(one, first, plan.norm)) as registry:
        registry.check(one, first, plan)
        yield registry


def _certify_all(work: Prepared, memory: Registry | None, store: Store, progress: Progress) -> None:
    """Certify every input without a result, and those that can get more votes."""
    done, plan, data = store.done(), work.plan, work.selection.dataset
    todo = [index for index in work.selection.indices if index not in done]
    more = _unfinished(work, store, done)
    if work.job.certificates:
        write_missing(store.folder, sorted(done), store.outcome)
    tally = _Tally.of(store)
    with progress.working(len(todo) + len(more), len(done) - len(more), plan.n0 + plan.n):
        if not todo and not more:
            return
        with _placed(work, progress) as g:
            g.on_votes(progress.sampled)
            begin = last = time.perf_counter()
            for index, outcome in answered(_outcomes(g, work, memory, todo, more), store.__len__, store.folder):
                label, now = int(data.labels[index]), time.perf_counter()
                named = None if data.names is None else data.name_of(index)
                store.add(index, label, outcome, now - last, again=index in done, name=named)
                last = now
                if work.job.certificates:
                    write_certificate(store.folder, index, outcome)
                tally.add(label, outcome)
                # Under a stopping rule the easy inputs finish first, so a share of the finished ones would be too high.
                progress.finished("" if plan.stop is not None or more else tally.words)
                if work.job.time is not None and now - begin > work.job.time:
                    break
    if tally.invalid:
        progress.warn(
            f"{tally.invalid:,} of {tally.votes:,} votes were invalid: the model failed, or returned NaN or a class "
            f"number out of range. They count against every class."
        )


def _outcomes(
    g: Deployed, work: Prepared, memory: Registry | None, todo: list[int], more: dict[int, Evidence]
) -> Iterator[tuple[int, Certificate | Abstention]]:
    """Yield each outcome with its input's index: first the new inputs, then those that already have votes.

    Inputs with the same held columns share a classifier and its forward passes.
    """
    data, plan = work.selection.dataset, work.plan
    for held, group in by_held(data, todo):
        inputs, at = (data[index][0][None] for index in group), g.holding(held)
        answers = (
            at.certify_each(inputs, plan)
            if memory is None
            else memory.certify_each(single(at, "a registry"), inputs, plan)
        )
        for number, outcome in answers:
            yield group[number], outcome
    for held, group in by_held(data, more):
        begun = ((data[index][0][None], more[index]) for index in group)
        for number, outcome in certify_more(single(g.holding(held), "a run with more votes"), begun, plan):
            yield group[number], outcome


def _unfinished(work: Prepared, store: Store, done: set[int]) -> dict[int, Evidence]:
    """The votes of results made with a smaller n; empty unless the bound allows more votes."""
    if not done or not work.plan.can_grow or work.scope == "registry":
        return {}
    columns = store.columns(("idx", "n"))
    fewer = set(columns["idx"][columns["n"] < work.plan.n].tolist()) & set(work.selection.indices)
    found = {index: store.outcome(index).evidence for index in sorted(fewer)}
    return {i: one for i, one in found.items() if (one.cap or one.n) < work.plan.n and can_go_on(one)}


@dataclass
class _Tally:
    """Counts: correct answers and known labels of all results; votes and invalid votes of those added here."""

    right: int
    known: int
    invalid: int = 0
    votes: int = 0

    @classmethod
    def of(cls, store: Store) -> _Tally:
        """Count the results so far."""
        earlier = store.columns(("label", "correct"))
        return cls(int(earlier["correct"].sum()), int(labelled(earlier).sum()))

    def add(self, label: int, outcome: Certificate | Abstention) -> None:
        """One more."""
        self.right += outcome.prediction == label
        self.known += label != NO_LABEL
        self.invalid += outcome.invalid
        self.votes += outcome.evidence.n

    @property
    def words(self) -> str:
        """The share of correct answers, rounded down, as text."""
        return f"accuracy {floor_percent(self.right / self.known)} %" if self.known else ""


@contextmanager
def _placed(work: Prepared, progress: Progress) -> Iterator[Deployed]:
    """The classifier with its votes counted here, or on the workers of a cluster, which take one classifier."""
    job = work.job
    g = work.g if job.cluster is None else single(work.g, "a cluster")
    with placed(g, job.cluster, job.workers, work.first.device, progress) as served:
        yield served


def _summary(store: Store, work: Prepared) -> Certified:
    """Summarise the selected inputs; the store may hold more, from an earlier call."""
    columns = {name: column[: len(work.selection.indices)] for name, column in store.gapless()[0].items()}
    count, known = len(columns["idx"]), labelled(columns)
    radii, data = columns["radius"][columns["correct"]], work.selection.dataset
    return Certified(
        run=work.folder,
        tsv=work.tsv,
        inputs=count,
        labelled=int(known.sum()),
        accuracy=floor_share(int(columns["correct"][known].sum()), int(known.sum())),
        abstained=int(columns["abstained"].sum()),
        median_correct_radius=float(torch.tensor(radii).median()) if len(radii) else None,
        scope=work.scope,
        arithmetic=arithmetic_of(work.g.grid),
        norm=work.plan.norm,
        budget=work.plan.budget,
        stop=work.plan.rule,
        mean_samples=float(columns["n"].mean()) if count else None,
        n=work.plan.n,
        at_ceiling=_at_ceiling(store, columns),
        class_names=work.class_names,
        sheet=work.folder / SHEET if has_sheet(data) else None,
        rows=tuple(row_answers(store, data, SHOWN)) if isinstance(data, Table) else (),
        certificates=work.folder / CERTIFICATES if work.job.certificates else None,
    )


def _at_ceiling(store: Store, columns: dict[str, np.ndarray]) -> int:
    """The number of certificates with all votes for the class: the largest that so many votes can give."""
    certified = ~columns["abstained"]
    if not certified.any():
        return 0
    largest = columns["p_lower"][certified].max()
    best = store.outcome(int(columns["idx"][certified][columns["p_lower"][certified].argmax()]))
    full = isinstance(best, Certificate) and best.evidence.counts[best.prediction] == best.evidence.n
    return int((columns["p_lower"][certified] == largest).sum()) if full else 0
