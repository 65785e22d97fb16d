"""Ask a question about every input of a data set, into a run's folder; every answer is stored at once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ucan.arithmetic import arithmetic_of
from ucan.certificate import SCOPES, Abstention, save_json
from ucan.cluster import spread
from ucan.config import CONFIG, read_config
from ucan.data import Labelled
from ucan.data.tables import Table
from ucan.errors import InvalidInput
from ucan.plan import CertifyPlan, Seed
from ucan.questions.catalogue import name_of
from ucan.questions.decisions import Decided, Decisions
from ucan.questions.kinds import SmoothedLabels, SmoothedRegressor, SmoothedSegmenter
from ucan.questions.looks import looks_of
from ucan.questions.question import Question
from ucan.questions.record import Answer
from ucan.questions.regression import Interval, Percentile
from ucan.questions.smoothed import Smoothed
from ucan.questions.topk import Among
from ucan.results.answers import AnswerStore
from ucan.results.metrics import NO_LABEL
from ucan.runs.backend import settle_one
from ucan.runs.build import budget_of, budget_word, generator_of, law_of, loaded, smoothed_of, step_for
from ucan.runs.config import AskConfig, ClaimRef, LawRef, Sampling, begun_seed
from ucan.runs.fields import from_table, to_table
from ucan.runs.jobs import Inputs, Pipeline, Selection
from ucan.runs.progress import SILENT, Progress
from ucan.runs.refs import data_ref, model_ref, noise_ref
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


@dataclass(frozen=True)
class Summary:
    """What a run's answers come to. ``figures`` are numbers by name, shares rounded down; NaN if nothing is known."""

    run: Path
    question: str
    inputs: int
    abstained: int
    scope: str
    norm: float
    arithmetic: str
    figures: tuple[tuple[str, float], ...]
    stop: str | None
    mean_samples: float
    first: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "run": str(self.run),
            "question": self.question,
            "inputs": self.inputs,
            "abstained": self.abstained,
            "scope": self.scope,
            "guarantee": SCOPES[self.scope],
            "norm": "inf" if self.norm == math.inf else self.norm,
            "arithmetic": self.arithmetic,
            "stop": self.stop,
            "mean_samples": None if math.isnan(self.mean_samples) else self.mean_samples,
            **{name: None if math.isnan(value) else value for name, value in self.figures},
        }


def smoothed_for(asked: Pipeline, question: Question, first: torch.Tensor, step: Any = None) -> Smoothed:
    """The model under its noise as a question needs it, for inputs like ``first`` (1, *event), on its device."""
    if not isinstance(question, Percentile | Decisions):
        return smoothed_of(asked, first, step)
    event = tuple(first.shape[1:])
    model = loaded(asked, first.device, event)
    law = law_of(asked.law, asked.scale, asked.exponent)
    noise = generator_of(asked.noise, event, law)
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
    if job.workers is not None and job.cluster is None:
        raise InvalidInput("--workers needs a cluster: add --cluster local, or a cluster's address.")
    where, selection, folder = job.place(), job.selection(), Path(out)
    if isinstance(selection.dataset, Table):
        raise InvalidInput("tables can be asked about classes only (`ucan certify`): give arrays (.npz, .npy) here.")
    known = begun(folder)
    first = selection.first().to(where)
    step = step_for(job.arithmetic, selection.dataset, None if known is None else known.sampling.arithmetic)
    g = smoothed_for(job, job.question, first, step)
    budget = budget_of(job.budget, selection.dataset, job.model)
    plan = g.plan(job.n0, job.n, job.alpha, job.norm, job.batch_size, None, job.family or 1, job.stop, budget)
    job.question.check(g.f, plan.stop)
    g.check_inputs(first, plan.norm)
    selection.dataset.check(selection.indices)
    if job.family is not None and len(selection.indices) > job.family:
        raise InvalidInput(f"--family {job.family} is smaller than the number of inputs, {len(selection.indices)}.")
    if known is not None and g.engine.identity() is None:
        raise InvalidInput(f"{folder} holds a run, and this model cannot be identified: give it a --model-id.")
    started = None if known is None else known.sampling
    plan = g.seeded(plan, begun_seed(job.seed, started), selection.dataset.fingerprint())
    config = _config(job, g, plan, selection, first, known)
    with AnswerStore.create(folder, to_table(config)) as store:
        _ask_all(job, g, plan, selection, store, progress)
    return summarise(folder, selection.dataset, selection)


def begun(folder: Path) -> AskConfig | None:
    """The config of the run in a folder; None if there is none."""
    if not (folder / CONFIG).is_file():
        return None
    table = read_config(folder / CONFIG)
    if table.get("kind") != "ask":
        raise InvalidInput(f"{folder} holds a run of another kind ({table.get('kind', 'certify')}). Give a new folder.")
    return from_table(AskConfig, table, str(folder / CONFIG))


def _config(
    job: AskJob, g: Smoothed, plan: CertifyPlan, selection: Selection, first: torch.Tensor, known: AskConfig | None
) -> AskConfig:
    """Make the run's config; this also chooses the backend."""
    before = known.sampling.backend if known is not None and known.model.spec == job.spec else None
    backend = settle_one(g, job.backend, plan, first, len(selection.indices), before)
    return AskConfig(
        ucan=__version__,
        question=name_of(job.question),
        settings={name: value for name, value in job.question.settings().items() if name != "what"},
        model=replace(model_ref(job, g, given=True)),
        data=data_ref(job, selection.dataset),
        law=replace(LawRef.of(g.law), given=job.law if isinstance(job.law, str) else None),
        noise=replace(noise_ref(g), given=job.noise if isinstance(job.noise, str) else None),
        claim=ClaimRef(
            g.M.scope,
            plan.norm,
            budget=budget_word(job.budget),
            budget_hash=None if plan.budget is None else plan.budget.key,
        ),
        sampling=Sampling.of(plan, arithmetic_of(g.grid), backend, g.engine.precision),
        looks=() if plan.stop is None else looks_of(plan.n),
    )


def _ask_all(
    job: AskJob, g: Smoothed, plan: CertifyPlan, selection: Selection, store: AnswerStore, progress: Progress
) -> None:
    """Ask about every input without an answer."""
    done, data = store.done(), selection.dataset
    todo = [index for index in selection.indices if index not in done]
    folder = store.folder / "certificates"
    if job.certificates:
        folder.mkdir(exist_ok=True)
    with progress.working(len(todo), len(done), plan.n), _placed(job, g, bool(todo), progress) as g:
        g.on_votes(progress.sampled)
        last = time.perf_counter()
        for number, answer in g.ask_each((data[i][0][None] for i in todo), plan, job.question):
            now = time.perf_counter()
            store.add(todo[number], answer, now - last)
            if job.certificates:
                save_json(answer, folder / f"{todo[number]}.json")
            last = now
            progress.finished("")


@contextmanager
def _placed(job: AskJob, g: Smoothed, needed: bool, progress: Progress) -> Iterator[Smoothed]:
    """Where the votes are counted: in this process, or, if any are needed, on the workers of a cluster."""
    if job.cluster is None or not needed:
        yield g
        return
    with spread(g, job.cluster, job.workers, progress.say, job.place().type) as served:
        yield served


def summarise(folder: Path, data: Labelled, selection: Selection) -> Summary:
    """What the answers in a folder come to, beside the labels and targets that the data have."""
    config = begun(folder)
    assert config is not None and config.claim.scope is not None and config.claim.norm is not None, "just written"
    with AnswerStore.open(folder) as store:
        wanted = set(selection.indices)
        answers = [(idx, answer) for idx, answer in store.answers() if idx in wanted]
    given = [(idx, answer) for idx, answer in answers if not isinstance(answer, Abstention)]
    return Summary(
        run=folder,
        question=config.question or "",
        inputs=len(answers),
        abstained=len(answers) - len(given),
        scope=config.claim.scope,
        norm=config.claim.norm,
        arithmetic=config.sampling.arithmetic,
        figures=tuple(figures(given, len(answers), data)),
        stop=config.sampling.stop,
        mean_samples=mean_samples([answer for _, answer in answers]),
        first=tuple(f"{data.name_of(idx)}: {answer}" for idx, answer in answers[:3]),
    )


def mean_samples(answers: list[Answer | Abstention]) -> float:
    """The mean number of samples of an input, those that choose included; NaN without answers."""
    return sum(one.evidence.n0 + one.evidence.n for one in answers) / len(answers) if answers else math.nan


def figures(given: list[tuple[int, Answer]], inputs: int, data: Labelled) -> list[tuple[str, float]]:
    """Numbers about answers, by name; shares are of all inputs, and of all pixels or labels."""
    radii = [answer.radius for _, answer in given]
    found = [("median_radius", _median(radii))]
    factors = [answer.budget_factor for _, answer in given if answer.budget_factor is not None]
    if factors:
        found.append(("median_budget_factor", _median(factors)))
    targets = data.targets
    if given and isinstance(given[0][1], Interval):
        ends = [(idx, a.lower, a.upper) for idx, a in given if isinstance(a, Interval)]
        found.append(("median_width", _median([float((high - low).mean()) for _, low, high in ends])))
        if targets is not None and targets[0].shape == ends[0][1].shape:
            inside = [bool(((low <= targets[i]) & (targets[i] <= high)).all()) for i, low, high in ends]
            found.append(("targets_inside", sum(inside) / inputs))
    if given and isinstance(given[0][1], Decided):
        maps = [(idx, a) for idx, a in given if isinstance(a, Decided)]
        found.append(("certified", sum(a.share for _, a in maps) / inputs))
        if targets is not None and targets[0].shape == maps[0][1].answers.shape:
            right = [float((a.answers == targets[i]).double().mean()) for i, a in maps]
            found.append(("certified_and_correct", sum(right) / inputs))
    labels = data.labels
    if given and isinstance(given[0][1], Among):
        known = [(int(labels[i]), a) for i, a in given if isinstance(a, Among)]
        right = [a.radius_of(label) > 0 for label, a in known if label != NO_LABEL]
        found.append(("label_among_first", sum(right) / inputs if inputs else math.nan))
    elif given and hasattr(given[0][1], "prediction"):
        found.append(("correct", sum(int(labels[i]) == a.prediction for i, a in given) / inputs))  # type: ignore[attr-defined]
    return found


def _median(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).median()) if values else math.nan
