"""Choose the noise on held-out data: which λ, and which shape, certifies the most inputs at a radius or for a budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ucan.budget import Budget
from ucan.certificate import Certificate
from ucan.data import Labelled
from ucan.data.tables import Table, by_held
from ucan.errors import InvalidInput
from ucan.generators import Fixed, Generator
from ucan.laws import norm_name
from ucan.plan import CertifyPlan
from ucan.rounding import floor_percent
from ucan.routed import single
from ucan.runs.build import Settled, budget_of, norm_of, settle, step_for
from ucan.runs.jobs import Inputs, Pipeline, Selection
from ucan.runs.progress import SILENT, Progress
from ucan.smoothed import SmoothedClassifier
from ucan.stopping import AtRadii

# The default λ to try, as factors of the usual one.
FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
USUAL = {True: 1.0, False: 0.25}  # of a table, and of pixels


@dataclass(frozen=True, kw_only=True)
class TuneJob(Pipeline, Inputs):
    """The settings of `ucan tune`. ``scales`` are the λ to try; ``radius`` or ``budget`` is the target."""

    scales: Sequence[float] = ()
    radius: float | None = None
    norm: float | None = None
    budget: Any = None
    n0: int = 100
    n: int = 2000
    alpha: float = 0.001
    seed: int = 0


@dataclass(frozen=True)
class Candidate:
    """One candidate: how many inputs it certifies at the target (correctly, if labels are known)."""

    scale: float
    shape: str
    reached: int
    answered: int
    inputs: int
    samples: float

    @property
    def share(self) -> float:
        """The share of inputs that reach the target."""
        return self.reached / self.inputs


@dataclass(frozen=True)
class Tuned:
    """All candidates in order, the best one, and a description of the target."""

    candidates: tuple[Candidate, ...]
    best: Candidate
    sigma: dict[str, float] | None
    target: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        tried = [{**vars(candidate), "share": candidate.share} for candidate in self.candidates]
        sigma = {} if self.sigma is None else {"sigma": self.sigma}
        return {"target": self.target, "scale": self.best.scale, "shape": self.best.shape, **sigma, "candidates": tried}


def tune(job: TuneJob, progress: Progress = SILENT) -> Tuned:
    """Try every λ, and for a table with a budget some shapes, on the inputs of a job; sampling stops when the target is
    decided.

    The share of the best candidate is biased upwards, since these inputs selected it: certify other inputs.

    Args:
        job: the classifier, the inputs, the candidates and the target; the options of ``ucan tune``.
        progress: receives progress and messages; silent by default.

    Returns:
        All candidates with their shares, and the best one.
    """
    where = job.place()
    settled = settle(replace(job, scale=None), job.selection(), where)
    data, is_table = settled.selection.dataset, isinstance(settled.selection.dataset, Table)
    budget = budget_of(job.budget, data, job.model, job.trust)
    if (job.radius is None) == (budget is None):
        raise InvalidInput("give a target: --radius with a number, or --budget (for a table, by column).")
    if is_table and budget is None:
        raise InvalidInput(
            'a radius over columns with different units is meaningless: give --budget "column=number,…".'
        )
    scales = tuple(dict.fromkeys(job.scales)) or tuple(factor * USUAL[is_table] for factor in FACTORS)
    if any(not scale > 0 for scale in scales):
        raise InvalidInput("--scales must be numbers above 0.")
    g = single(settled.g, "ucan tune")
    norm = norm_of(job.norm, g) if budget is None else g.norm_for(job.norm, budget)
    shapes = _shapes(settled, budget)
    tried: list[Candidate] = []
    with progress.working(len(scales) * len(shapes), 0, job.n0 + job.n):
        for shape, noise in shapes.items():
            for scale in scales:
                tried.append(_tried(job, settled, shape, noise, scale, norm, budget, progress))
                progress.finished(f"λ = {scale:g}: {floor_percent(tried[-1].share)} %")
    best = max(tried, key=lambda candidate: (candidate.reached, candidate.answered, -candidate.scale))
    if budget is None:
        target = f"an {norm_name(norm)} radius of {job.radius:g}"
    else:
        target = f"every change within {budget.name}" if is_table else f"{budget.words()} at ε = 1"
    return Tuned(tuple(tried), best, _sigma(data, shapes[best.shape]), target)


def _shapes(settled: Settled, budget: Budget | None) -> dict[str, Generator]:
    """The shapes to try: the given one; for a table with a budget for all columns, also shapes derived from the budget."""
    given = {"as given": single(settled.g, "ucan tune").M}
    data = settled.selection.dataset
    if not isinstance(data, Table) or budget is None or not bool((budget.limits > 0).all()):
        return given
    spread = torch.tensor(list(settled.sigma.values()), dtype=torch.float64)
    limits = budget.limits.double()
    limits = limits * (spread.log().mean() - limits.log().mean()).exp()  # of the same geometric mean
    return {**given, "by budget": Fixed(limits), "between": Fixed((limits * spread).sqrt())}


def _tried(
    job: TuneJob,
    settled: Settled,
    shape: str,
    noise: Generator,
    scale: float,
    norm: float,
    budget: Budget | None,
    progress: Progress,
) -> Candidate:
    g = single(settled.g, "ucan tune")
    law, step = replace(g.law, scale=scale), step_for(job.arithmetic, settled.selection.dataset, None)
    made = g.again(law=law, generator=noise, step=step)
    made.on_votes(progress.sampled)
    target = 1.0 if budget is not None else float(job.radius or 0.0)
    plan = CertifyPlan(job.n0, job.n, job.alpha, norm, job.seed, stop=AtRadii((target,)), budget=budget)
    reached = answered = samples = 0
    for label, outcome in _outcomes(made, settled.selection, plan):
        right = isinstance(outcome, Certificate) and label in (-1, outcome.prediction)
        answered += right
        reached += right and outcome.size >= target
        samples += outcome.evidence.n
    count = len(settled.selection.indices)
    return Candidate(scale, shape, reached, answered, count, samples / count)


def _outcomes(g: SmoothedClassifier, selection: Selection, plan: CertifyPlan) -> Iterator[tuple[int, Any]]:
    data: Labelled = selection.dataset
    for held, group in by_held(data, selection.indices):
        for number, outcome in g.holding(held).certify_each((data[i][0][None] for i in group), plan):
            yield int(data.labels[group[number]]), outcome


def _sigma(data: Labelled, noise: Generator) -> dict[str, float] | None:
    """The columns' noise of a table, as `--sigma` takes it."""
    if not isinstance(data, Table) or not isinstance(noise, Fixed):
        return None
    values = noise.scale.dense(len(data.varying)).diagonal().tolist()
    return {column.name: float(f"{value:.6g}") for column, value in zip(data.varying, values, strict=True)}
