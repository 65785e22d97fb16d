"""Ask a question about every input of a data set, into a run's folder; every answer is stored at once."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ucan.arithmetic import arithmetic_of
from ucan.config import CONFIG, read_config
from ucan.data.tables import Table
from ucan.errors import InvalidInput
from ucan.places import started_in
from ucan.plan import CertifyPlan, Seed
from ucan.questions.catalogue import name_of
from ucan.questions.decisions import Decisions
from ucan.questions.kinds import SmoothedLabels, SmoothedRegressor, SmoothedSegmenter
from ucan.questions.looks import looks_of
from ucan.questions.question import Question
from ucan.questions.regression import Percentile
from ucan.questions.smoothed import Smoothed
from ucan.results.answers import AnswerStore
from ucan.results.database import ANSWERS
from ucan.results.folder import remove_empty, results_in
from ucan.runs.ask_summary import Summary as Summary
from ucan.runs.ask_summary import summarise
from ucan.runs.backend import settle_one
from ucan.runs.build import (
    budget_of,
    budget_word,
    generator_of,
    law_of,
    loaded,
    smoothed_of,
    smoothed_with_names,
    step_for,
)
from ucan.runs.certificates import write_certificate, write_missing
from ucan.runs.config import AskConfig, ClaimRef, LawRef, Sampling, begun_seed, changes, respelled
from ucan.runs.fields import from_table, to_table
from ucan.runs.jobs import Inputs, Pipeline, Selection, text_of
from ucan.runs.mishaps import answered
from ucan.runs.placing import check_workers, placed
from ucan.runs.prepare import check_family, check_identity
from ucan.runs.progress import SILENT, Progress
from ucan.runs.refs import data_ref, model_ref, noise_ref
from ucan.training import is_trained_run
from ucan.version import __version__


@dataclass(frozen=True, kw_only=True)
class AskJob(Pipeline, Inputs):
    """The settings of `ucan ask`: the question, and otherwise the options of those names.

    ``norm`` None means 2, or the noise's own norm where it has no ℓ2 region. ``stop`` are radii at which the question is to
    be decided, before Σ; sampling ends when it is. ``budget`` is what changes of size ε = 1
    are: answers state their ε. ``certificates`` writes each answer as JSON. ``cluster`` and ``workers``
    are those of ``ucan.cluster``.
    """

    question: Question
    norm: float | None = None
    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    seed: Seed = 0
    family: int | None = None
    batch_size: int | None = None
    stop: str | float | None = None
    budget: Any = None
    certificates: bool = False
    cluster: str | None = None
    workers: int | None = None


def names_classes(question: Question) -> bool:
    """Whether a question is about the classes of inputs, so that labels are numbered in the model's order of them."""
    return not isinstance(question, Percentile | Decisions)


def smoothed_for(
    asked: Pipeline, question: Question, first: torch.Tensor, step: Any = None, remarks: list[str] | None = None
) -> Smoothed:
    """The model under its noise as a question needs it, for inputs like ``first`` (1, *event), on its device.

    Warnings about the model are appended to ``remarks``.
    """
    if not isinstance(question, Percentile | Decisions):
        return smoothed_of(asked, first, step, remarks)
    if isinstance(asked.model, str) and is_trained_run(asked.model):
        raise InvalidInput(
            f"{asked.model} is a trained run, which answers with one class: ask top-k or confidence about it, or for "
            f"{name_of(question)} give another model (package.module:name, or a file)."
        )
    event = tuple(first.shape[1:])
    model = loaded(asked, first.device, event, remarks)
    law = law_of(asked.law, asked.scale, asked.exponent)
    noise = generator_of(asked.noise, event, law, model)
    options: dict[str, Any] = {"precision": asked.precision, "model_id": asked.model_id, "step": step}
    if isinstance(question, Percentile):
        return SmoothedRegressor(model, law, noise, **options)
    if question.what == "labels":
        return SmoothedLabels(model, law, noise, **options)
    return SmoothedSegmenter(model, law, noise, _classes(asked, model, first), **options)


def _classes(asked: Pipeline, model: Any, first: torch.Tensor) -> int:
    """The number of a segmenter's classes: as given, or as many as it has logits at each pixel."""
    if asked.classes is not None:
        return asked.classes
    with torch.inference_mode():
        output = model(first.clone())
    if not (isinstance(output, torch.Tensor) and output.is_floating_point() and output.ndim >= 3):
        raise InvalidInput("the model gives class numbers: give the number of classes (--classes).")
    return int(output.shape[1])


def ask(job: AskJob, out: str | Path, progress: Progress = SILENT) -> Summary:
    """Ask a question about every input, and summarise the answers. The same job again resumes the work.

    Args:
        job: the question, the model, its noise, the inputs and the sampling; the options of ``ucan ask``.
        out: the run's folder.
        progress: receives progress and messages; silent by default.

    Returns:
        How many inputs have an answer, and what the answers come to.
    """
    work = _prepared(job, Path(out), progress)
    try:
        config = _config(work)
        with AnswerStore.create(work.folder, to_table(config), partial(compared, work.folder)) as store:
            _ask_all(work, store, progress)
    except Exception:
        if work.known is None:
            remove_empty(work.folder, ANSWERS)
        raise
    return summarise(work.folder, work.selection.dataset, work.selection)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A checked job: the model under its noise, the plan, the inputs, and the config of a run that is resumed."""

    job: AskJob
    g: Smoothed
    plan: CertifyPlan
    selection: Selection
    first: torch.Tensor
    folder: Path
    known: AskConfig | None
    names: tuple[str, ...]


def _prepared(job: AskJob, folder: Path, progress: Progress) -> _Prepared:
    """Build and check a job; whatever can be refused is refused here, before any work."""
    check_workers(job.cluster, job.workers)
    where, selection = job.place(), job.selection()
    if isinstance(selection.dataset, Table):
        raise InvalidInput("tables can be asked about classes only (`ucan certify`): give arrays (.npz, .npy) here.")
    known = begun(folder)
    first, remarks = selection.first().to(where), list[str]()
    step = step_for(job.arithmetic, selection.dataset, None if known is None else known.sampling.arithmetic)
    g: Smoothed
    if names_classes(job.question):
        g, own = smoothed_with_names(job, first, step, remarks)
        selection = selection.in_order(job.class_names or own)
        selection.check(g.num_classes)
        names = tuple(job.class_names or own or selection.dataset.classes or ())
    else:
        g, names = smoothed_for(job, job.question, first, step, remarks), ()
    for remark in remarks:
        progress.warn(remark)
    budget = budget_of(job.budget, selection.dataset, job.model, job.trust)
    plan = g.plan(job.n0, job.n, job.alpha, job.norm, job.batch_size, None, job.family or 1, job.stop, budget)
    plan = replace(plan, block=_begun_block(folder))
    job.question.check(g.f, plan.stop)
    g.check_inputs(first, plan.norm)
    selection.dataset.check(selection.indices)
    check_family(job.family, selection)
    if known is not None:
        check_identity(folder, g.engine.identity())
    started = None if known is None else known.sampling
    plan = g.seeded(plan, begun_seed(job.seed, started), selection.dataset.fingerprint())
    return _Prepared(job, g, plan, selection, first, folder, known, names)


def _begun_block(folder: Path) -> int | None:
    """The block size of the run in this folder, if it has answers; an older version may have used another."""
    if not results_in(folder, ANSWERS):
        return None
    with AnswerStore.open(folder) as store:
        return next((store.answer(index).evidence.block for index in sorted(store.done())[:1]), None)


def begun(folder: Path) -> AskConfig | None:
    """The config of the run in a folder; None if there is none."""
    if not (folder / CONFIG).is_file():
        return None
    table = read_config(folder / CONFIG)
    if table.get("kind") != "ask":
        kind = table.get("kind", "certify")
        raise InvalidInput(f"{folder} holds a run of another kind ({kind}); nothing was changed. Give a new folder.")
    return from_table(AskConfig, table, str(folder / CONFIG))


def compared(folder: Path, begun: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """The differences between the requested config and that of the run in this folder.

    The path of the same file from another working directory is not one.
    """
    old, new = (from_table(AskConfig, table, str(folder / CONFIG)) for table in (begun, asked))
    return changes(old, respelled(old, new, folder))


def _config(work: _Prepared) -> AskConfig:
    """Make the run's config; this also chooses the backend."""
    job, g, plan, known = work.job, work.g, work.plan, work.known
    before = known.sampling.backend if known is not None and known.model.spec == job.spec else None
    backend = settle_one(g, job.backend, plan, work.first, len(work.selection.indices), before)
    return AskConfig(
        ucan=__version__,
        started_in=started_in(work.folder),
        question=name_of(job.question),
        settings={name: value for name, value in job.question.settings().items() if name != "what"},
        model=model_ref(job, g, given=True, class_names=work.names),
        data=data_ref(job, work.selection.dataset),
        law=replace(LawRef.of(g.law), given=text_of(job.law)),
        noise=replace(noise_ref(g), given=text_of(job.noise)),
        claim=ClaimRef(
            g.M.scope,
            plan.norm,
            budget=budget_word(job.budget),
            budget_hash=None if plan.budget is None else plan.budget.key,
        ),
        sampling=Sampling.of(plan, arithmetic_of(g.grid), backend, g.engine.precision),
        looks=() if plan.stop is None else looks_of(plan.n),
    )


def _ask_all(work: _Prepared, store: AnswerStore, progress: Progress) -> None:
    """Ask about every input without an answer."""
    job, plan, data, done = work.job, work.plan, work.selection.dataset, store.done()
    todo = [index for index in work.selection.indices if index not in done]
    if job.certificates:
        write_missing(store.folder, sorted(done), store.answer)
    with progress.working(len(todo), len(done), plan.n):
        if not todo:
            return
        with placed(work.g, job.cluster, job.workers, work.first.device, progress) as g:
            g.on_votes(progress.sampled)
            answers = g.ask_each((data[i][0][None] for i in todo), plan, job.question)
            last = time.perf_counter()
            for number, answer in answered(answers, store.__len__, store.folder):
                now = time.perf_counter()
                store.add(todo[number], answer, now - last)
                if job.certificates:
                    write_certificate(store.folder, todo[number], answer)
                last = now
                progress.finished("")
