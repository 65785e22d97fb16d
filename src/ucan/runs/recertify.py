"""Certify the classifier that takes the place of a run's, from few votes in pairs, into a new run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ucan.certificate import Abstention, Certificate
from ucan.config import CONFIG
from ucan.data import Labelled
from ucan.data.tables import Table
from ucan.errors import InvalidInput
from ucan.evidence import Evidence
from ucan.fingerprint import weights_hash
from ucan.places import respelled, respelled_model, started_in
from ucan.plan import CertifyPlan, random_seed
from ucan.recertify import SHARE, Way, check_replaceable, selecting
from ucan.recertify import recertify as certified_again
from ucan.results.formats import write
from ucan.results.store import Store
from ucan.runs.backend import settle_one
from ucan.runs.certificates import write_missing
from ucan.runs.config import RunConfig, changes, kept_seed, read_run_config
from ucan.runs.jobs import device_of
from ucan.runs.progress import SILENT, Progress
from ucan.runs.read import Run
from ucan.runs.rebuild import inputs_of, pipeline_of
from ucan.smoothed import SmoothedClassifier
from ucan.version import __version__

LEAST = 100  # votes in pairs, unless a number is given


@dataclass(frozen=True, kw_only=True)
class RecertifyJob:
    """The settings of a recertification: a run, and what takes the place of its classifier.

    ``model`` (with ``weights``) is the new classifier, the run's own if None; ``precision`` and ``backend`` are how it is run,
    as in the run if None ("auto": the fastest, which the new run's config then names).
    ``n`` is the number of votes in pairs for each input, a tenth of the run's if None. ``certificates``: each is also written
    as a file. ``data`` is where the inputs are if they have moved.
    """

    run: str | Path
    model: str | None = None
    weights: str | Path | None = None
    precision: str | None = None
    backend: str | None = None
    n: int | None = None
    certificates: bool = False
    data: str | None = None
    device: str | torch.device = "auto"
    trust: bool = False


@dataclass(frozen=True)
class Recertified:
    """The result: how many inputs had a certificate, how many still have one, what is left of their radii, and the votes."""

    run: Path
    inputs: int
    before: int
    now: int
    radii_kept: float | None
    votes_before: int
    votes_now: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "run": str(self.run),
            "inputs": self.inputs,
            "certified_before": self.before,
            "certified_now": self.now,
            "radii_kept": self.radii_kept,
            "votes_before": self.votes_before,
            "votes_now": self.votes_now,
        }


def recertify(job: RecertifyJob, out: str | Path | None = None, progress: Progress = SILENT) -> Recertified:
    """Certify a new classifier at every input of a run, and store the outcomes in a new run; interrupted work resumes.

    Args:
        job: the run, and what replaces its classifier.
        out: the new run's folder; the run's with ``-recertified`` appended if None.
        progress: receives progress and messages; silent by default.

    Returns:
        The number of certificates before and now, and the votes that each took.
    """
    run, where = Run.open(job.run), device_of(job.device)
    folder = Path(out) if out is not None else run.folder.with_name(f"{run.folder.name}-recertified")
    first = _first(run)
    dataset = _inputs(run, job.data, job.trust)
    old = pipeline_of(run.config.model, first, where, dataset=dataset, trust=job.trust, base=run.base)
    new = _successor(job, run, first, where, dataset)
    known = read_run_config(folder, ("recertify",))
    if known is not None and new.engine.identity() is None:
        raise InvalidInput(
            f"{folder} holds a run, and the new model cannot be identified, so resuming could mix two: give a new folder."
        )
    n = job.n if job.n is not None else max(LEAST, math.ceil(SHARE * (run.config.sampling.n or 0)))
    _check_enough(n, first)
    backend = _settled(job, run, new, dataset, n, None if known is None else known.sampling.backend)
    seed = random_seed() if known is None else known.sampling.number
    config = _config(job, run, folder, new, CertifyPlan(n=n, seed=seed), backend)
    with Store.create(folder, config.to_table(), _compared) as store:
        try:
            _all(run, dataset, old, new, config, store, progress)
        finally:
            if len(store):
                write(store, folder / "results.tsv", overwrite=True)
            if job.certificates:
                write_missing(store.folder, sorted(store.done()), store.outcome)
        return _summary(run, store)


def _first(run: Run) -> Certificate:
    """A certificate of the run, which says what its noise is; a run without one that can be replaced is refused."""
    if run.config.is_imported:
        raise InvalidInput(f"{run.folder} was imported: there is no classifier to draw votes from.")
    if run.scope == "registry":
        raise InvalidInput(f"{run.folder} belongs to a registry: certify the new classifier with its registry instead.")
    for idx in run.rows(("idx",))["idx"].tolist():
        outcome = run.outcome(idx)
        if isinstance(outcome, Certificate):
            check_replaceable(outcome)
            _check_level(run, outcome.evidence)
            return outcome
    raise InvalidInput(f"{run.folder} has no certificate: certify the new classifier with `ucan certify` instead.")


def _check_level(run: Run, evidence: Evidence) -> None:
    """Refuse evidence whose α is not that of the run's config, which the new run takes over.

    In a run that was itself recertified, fresh votes have a part of α.
    """
    stated, sampling = evidence.alpha * evidence.family, run.config.sampling
    if sampling.alpha is None:
        return
    same = math.isclose(stated, sampling.alpha, rel_tol=1e-9)
    part = run.config.kind == "recertify" and stated < sampling.alpha
    if evidence.family != (sampling.family or 1) or not (same or part):
        raise InvalidInput(
            f"{run.folder / CONFIG} states α = {sampling.alpha:g} for a family of {sampling.family or 1}, but the evidence has "
            f"α = {stated:g} for {evidence.family}: the run was changed. Restore it from a copy, or certify again."
        )


def _check_labels(run: Run, dataset: Labelled) -> None:
    """Refuse a run whose labels, or number of inputs, are not those of the data."""
    rows = run.rows(("idx", "label"))
    for idx, label in zip(rows["idx"].tolist(), rows["label"].tolist(), strict=True):
        if not 0 <= idx < len(dataset):
            raise InvalidInput(
                f"{run.folder} has a result for input {idx}, but {dataset.name} has {len(dataset)} inputs: name its own data "
                "with --data, or certify again."
            )
        if label != int(dataset.labels[idx]):
            raise InvalidInput(
                f"{run.folder} has the label {label} for input {idx}, but {dataset.name} has {int(dataset.labels[idx])}: the "
                "run was changed, or these are not its data. Restore it from a copy, or certify again."
            )


def _check_enough(n: int, first: Certificate) -> None:
    """Refuse an n with which no input can be certified, be they fresh votes or, which certify less, votes in pairs."""
    evidence = first.evidence
    alpha = Way.after(evidence).fresh * evidence.alpha * evidence.family
    CertifyPlan(n=n, alpha=alpha, family=evidence.family).check_enough()


def _inputs(run: Run, source: str | None, trust: bool) -> Labelled:
    dataset = inputs_of(run.config, source, run.base, trust)
    if isinstance(dataset, Table):
        raise InvalidInput("recertify does not support tables yet: certify the new model with `ucan certify`.")
    if run.config.data.fingerprint not in (None, dataset.fingerprint()):
        raise InvalidInput(f"{dataset.name} is not the data that {run.folder} certified: name them with --data.")
    _check_labels(run, dataset)
    return dataset


def _successor(
    job: RecertifyJob, run: Run, first: Certificate, where: torch.device, dataset: Labelled
) -> SmoothedClassifier:
    """The new classifier under the run's noise."""
    if job.model is None and job.precision is None and job.backend is None:
        raise InvalidInput("say what replaces the run's classifier: --model, --precision or --backend.")
    g = pipeline_of(run.config.model, first, where, job.model, job.weights, dataset, job.trust, run.base)
    named = None if job.model is not None else g.engine.model_id  # the old one's name is not the new one's
    return g.again(precision=job.precision or g.precision, model_id=named)


def _settled(job: RecertifyJob, run: Run, new: SmoothedClassifier, dataset: Labelled, n: int, known: str | None) -> str:
    """Set how the new classifier is run, and return its name: as asked for, else as before.

    ``known`` is how a new run that goes on began.
    """
    choice = job.backend or known or run.config.sampling.backend or "eager"
    rows = run.rows(("idx",))["idx"].tolist()
    (x,) = new.check_inputs(dataset[int(rows[0])][0][None], run.config.claim.norm or 2)
    return settle_one(new, "eager" if choice == "function" else choice, CertifyPlan(n=n), x, len(rows), known)


def _config(
    job: RecertifyJob, run: Run, folder: Path, new: SmoothedClassifier, plan: CertifyPlan, backend: str
) -> RunConfig:
    """The config of the new run. Its votes come from a seed that nobody knew beforehand."""
    old = run.config
    kept, source = kept_seed(plan)
    moved = job.model is not None
    model = replace(
        old.model,
        spec=respelled_model(str(job.model), run.base) if moved else old.model.spec,
        weights=(None if job.weights is None else respelled(str(job.weights), run.base))
        if moved
        else old.model.weights,
        weights_hash=weights_hash(new.f.model),
        identity=new.engine.identity(),
        model_id=None if moved else old.model.model_id,
    )
    sampling = replace(
        old.sampling, n=plan.n, bound=None, stop=None, stop_package=None, seed=kept, seed_source=source,
        precision=new.engine.precision, backend=backend,
    )  # fmt: skip
    data = old.data if job.data is None else replace(old.data, source=respelled(job.data, run.base))
    return replace(
        old, kind="recertify", ucan=__version__, before=respelled(str(run.folder), run.base), model=model, data=data,
        sampling=sampling, started_in=started_in(folder, run.base),
    )  # fmt: skip


def _compared(begun: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    return changes(RunConfig.of(begun), RunConfig.of(asked))


def _all(
    run: Run, dataset: Labelled, old: SmoothedClassifier, new: SmoothedClassifier, config: RunConfig, store: Store,
    progress: Progress,
) -> None:  # fmt: skip
    """Every input of the run that has no outcome in the store yet."""
    n, seed, done = config.sampling.n or LEAST, config.sampling.number, store.done()
    todo = [idx for idx in run.rows(("idx",))["idx"].tolist() if idx not in done]
    with progress.working(len(todo), len(done), n):
        last = time.perf_counter()
        for idx, outcome in _outcomes(run, dataset, old, new, todo, n, seed):
            now = time.perf_counter()
            named = None if dataset.names is None else dataset.name_of(idx)
            store.add(idx, int(dataset.labels[idx]), outcome, now - last, name=named)
            last = now
            progress.sampled(outcome.evidence.n)
            progress.finished("")


def _outcomes(
    run: Run, dataset: Labelled, old: SmoothedClassifier, new: SmoothedClassifier, todo: list[int], n: int, seed: int
) -> Iterator[tuple[int, Certificate | Abstention]]:
    """The new classifier's outcome at each input; an error names the input."""
    for idx in todo:
        before, x = run.outcome(idx), dataset[idx][0][None]
        _check_level(run, before.evidence)
        if isinstance(before, Abstention):
            yield idx, _after_abstention(before, new, x, n, seed)
            continue
        try:
            yield idx, certified_again(before, old, new, x, n, seed)
        except InvalidInput as error:
            raise InvalidInput(f"input {idx} of {run.folder}: {error}") from error


def _after_abstention(
    before: Abstention, new: SmoothedClassifier, x: torch.Tensor, n: int, seed: int
) -> Certificate | Abstention:
    """The outcome of fresh votes, at a part of α: that the old classifier abstained is known from votes that pairs go on from
    with the rest.
    """
    evidence, norm = before.evidence, before.norm if before.norm is not None else 2
    alpha = Way.after(evidence).abstained * evidence.alpha * evidence.family
    plan = CertifyPlan(
        selecting(evidence), n, alpha, norm, seed, family=evidence.family,
        budget=before.budget,
    )  # fmt: skip
    ((_, outcome),) = new.certify_each(new.check_inputs(x, norm), plan)
    return outcome


def _summary(run: Run, store: Store) -> Recertified:
    old, new = run.rows(("idx", "abstained", "radius", "n")), store.columns(("idx", "abstained", "radius", "n"))
    both = ~old["abstained"] & ~new["abstained"]
    kept = float(new["radius"][both].sum() / old["radius"][both].sum()) if both.any() else None
    return Recertified(
        store.folder,
        len(new["idx"]),
        int((~old["abstained"]).sum()),
        int((~new["abstained"]).sum()),
        kept,
        int(old["n"].sum()),
        int(new["n"].sum()),
    )
