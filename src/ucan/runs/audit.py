"""Attack the certificates of a run inside their regions; every finished attempt is stored at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ucan.arithmetic import step_of
from ucan.audit import FACTORS, Attempt, Budget, Ledger, Summary, audit_all, modes_of, summarise
from ucan.audit.claims import Claim, of_the_answer
from ucan.audit.images import save_images
from ucan.certificate import Certificate
from ucan.config import MANIFEST
from ucan.data import Labelled
from ucan.data.tables import by_held
from ucan.errors import InvalidInput
from ucan.fingerprint import weights_hash
from ucan.lock import LOCK, WriterLock
from ucan.places import found, found_model
from ucan.questions.smoothed import Smoothed
from ucan.registry import Registry
from ucan.routed import Deployed
from ucan.runs.audited import AUDIT
from ucan.runs.build import routed_of
from ucan.runs.config import AuditConfig, DataRef, ModelRef
from ucan.runs.fields import to_table
from ucan.runs.jobs import Pipeline, check_taken, device_of
from ucan.runs.progress import SILENT, Progress
from ucan.runs.read import Run
from ucan.runs.rebuild import data_of, pipeline_of
from ucan.runs.router import is_router, refuse_calls
from ucan.smoothed import SmoothedClassifier
from ucan.storage import storage
from ucan.version import __version__

# What is attacked of a router's certificate.
PARTS = ("choice", "answer")


@dataclass(frozen=True, kw_only=True)
class AuditJob:
    """The settings of an audit: the run, the paths of its parts if they have moved, and the attack."""

    run: str | Path
    model: str | None = None
    data: str | None = None
    weights: str | Path | None = None
    registry: str | Path | None = None
    most: int | None = None
    min_radius: float = 0.0
    factors: Sequence[float] = FACTORS
    mode: str = "both"
    budget: Budget = field(default_factory=Budget)
    device: str | torch.device = "auto"
    trust: bool = False

    def __post_init__(self) -> None:
        check_taken(1, self.most)


@dataclass(frozen=True, eq=False)
class Audited:
    """The result of an audit.

    ``certified`` is the number of certificates of the run, ``attempts`` are the attacks on them, ``summary`` counts their
    breaks against chance, ``ledger`` has them on disk, and ``pictures`` are the paths of pictures of breaks.
    """

    certified: int
    summary: Summary
    attempts: tuple[Attempt, ...]
    ledger: Ledger
    pictures: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        places = {"audit": str(self.ledger.folder), "pictures": [str(path) for path in self.pictures]}
        return {"certified": self.certified, **self.summary.to_dict(), "attack": self.attempts[0].attack_name, **places}


def audit(job: AuditJob, out: str | Path | None = None, progress: Progress = SILENT) -> Audited:
    """Attack the certificates of a run and store the attempts in a folder; an interrupted audit resumes.

    Args:
        job: the run, the attack and its budget.
        out: the audit's folder; ``RUN/audit`` if None, except of a published run, which needs one.
        progress: receives progress and messages; silent by default.

    Returns:
        The attempts and a summary of what broke.
    """
    where = device_of(job.device)
    run = Run.open(job.run)
    if run.config.is_imported:
        raise InvalidInput(f"{run.folder} was imported and has no certificates to attack.")
    chosen = _chosen(run, job.min_radius, job.most)
    dataset = attacked_data(run.config.data, job.data, run.base, chosen[-1], job.trust)
    first = next((c for _, c in _certificates(run, chosen)), None)
    if first is None:
        raise InvalidInput(f"{run.folder} has no certificates to attack.")
    g = _deployed(job, run, first, dataset, where)
    weights = weights_hash(g.f.model) if isinstance(g, SmoothedClassifier) else g.identity()
    config = AuditConfig(ucan=__version__, weights_hash=weights, run=run.config_hash, **asdict(job.budget))
    modes, factors = modes_of(first.scope, job.mode), list(job.factors)
    own = run.config.claim.registry
    registry = job.registry or (None if own is None else found(own, run.base))
    folder = _folder(run) if out is None else Path(out)
    with locked(folder), _memory(registry, first) as memory:
        ledger = Ledger(folder, to_table(config))
        kinds = _kinds(g)
        todo = sum(_open(ledger.get(i, f, m, k)) for i in chosen for m in modes for f in factors for k in kinds)
        told = _Told(progress)
        with progress.working(todo, len(ledger), job.budget.check):
            attempts = []
            for some in _targets(g, run, dataset, chosen):
                cases = ((idx, dataset[idx][0][None].to(where), c) for idx, c in some.cases)
                attempts += audit_all(
                    some.g, cases, ledger, job.mode, factors, job.budget, told, memory, some.part, some.alpha
                )
        pictures = save_images(ledger, attempts)
    summary = summarise(attempts, run.config.data.skip or 1)
    return Audited(len(_chosen(run, 0.0, None)), summary, tuple(attempts), ledger, tuple(pictures))


def _folder(run: Run) -> Path:
    """The audit's folder inside the run's; a published run, which may hold its author's audit, is left as it was published."""
    if (run.folder / MANIFEST).is_file():
        raise InvalidInput(
            f"{run.folder} is a published run (it has a {MANIFEST}), and an audit of yours is no part of it: give the audit a "
            "folder of its own with --out."
        )
    return run.folder / AUDIT


def _deployed(job: AuditJob, run: Run, first: Certificate, dataset: Labelled, where: torch.device) -> Deployed:
    """The classifier of the run, or its router; refused, before the audit's folder is created, if it is another one."""
    known = run.config.model
    spec = job.model or (None if known.spec is None else found_model(known.spec, run.base))
    if not is_router(spec):
        g = pipeline_of(known, first, where, job.model, job.weights, dataset, job.trust, run.base)
        refuse_other_weights(run.folder, known, g)
        return g
    if spec is not None and not (job.model or job.trust):
        refuse_calls(spec)
    asked = Pipeline(model=spec, classes=len(first.evidence.counts), device=where, trust=job.trust)
    router = routed_of(asked, torch.zeros(1, *first.region.shape, device=where), step_of(first.evidence.arithmetic))
    if router.identity() != known.identity:
        raise InvalidInput(f"{run.folder} was made with another router: give the certified one with --model.")
    return router


@dataclass(frozen=True)
class _Target:
    """Certificates to attack and the classifier that they are about; of a router, a part of each."""

    g: SmoothedClassifier
    cases: Iterable[tuple[int, Claim]]
    part: str = ""
    alpha: float | None = None


def _targets(g: Deployed, run: Run, dataset: Labelled, chosen: list[int]) -> Iterator[_Target]:
    """What is attacked, of a router first all choices, then the answers of each expert."""
    if isinstance(g, SmoothedClassifier):
        for held, group in by_held(dataset, chosen):
            yield _Target(g.holding(held), _certificates(run, group))
        return
    whole = list(_certificates(run, chosen))
    alpha = max(c.alpha for _, c in whole)
    if isinstance(g.selector, SmoothedClassifier):
        yield _Target(g.selector, [(idx, c.choice) for idx, c in whole], PARTS[0], alpha)
    else:
        for k, expert in enumerate(g.experts):
            yield _Target(expert, [(idx, c.choice) for idx, c in whole if c.choice.of == k], PARTS[0], alpha)
    for k, expert in enumerate(g.experts):
        yield _Target(expert, [(idx, of_the_answer(c)) for idx, c in whole if c.expert == k], PARTS[1], alpha)


def _kinds(g: Deployed) -> tuple[str, ...]:
    """The parts that are attacked."""
    return ("",) if isinstance(g, SmoothedClassifier) else PARTS


class _Told:
    """Shows how many attempts broke."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.broken = 0

    def __call__(self, attempt: Attempt) -> None:
        self.broken += attempt.broken
        self.progress.sampled(attempt.total + attempt.again_total)
        self.progress.finished(f"{self.broken} broken")


def _open(record: dict[str, Any] | None) -> bool:
    """Whether an attempt still has to be made, or made again."""
    return record is None or Attempt.of(record).tested_once


@contextmanager
def _memory(path: str | Path | None, certificate: Certificate) -> Iterator[Registry | None]:
    """Open a copy of the registry of a run with scope registry."""
    if certificate.scope != "registry":
        yield None
        return
    if path is None or not Path(path).is_file():
        raise InvalidInput(
            f"this run was made with a registry, but there is none at {path}: give its path with --registry."
        )
    with Registry(path) as registry:
        yield registry


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make sure that no other audit writes to this folder."""
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(folder / LOCK)
    try:
        yield
    finally:
        lock.release()


def _chosen(run: Run, min_radius: float, most: int | None) -> list[int]:
    """The indices of the inputs whose certificates are attacked."""
    columns = run.rows(("idx", "abstained", "radius"))
    large = ~columns["abstained"] & (columns["radius"] > 0) & (columns["radius"] >= min_radius)
    chosen: list[int] = columns["idx"][large].tolist()[:most]
    if not chosen:
        if bool(columns["abstained"].all()):
            raise InvalidInput(
                f"all {len(columns['idx'])} inputs of {run.folder} abstained: there is no certificate to audit. Certify with "
                "more samples (--n), or with less noise."
            )
        raise InvalidInput(f"{run.folder} has no certificate with radius {min_radius:g} or more: nothing to audit.")
    return chosen


def _certificates(run: Run, indices: list[int]) -> Iterator[tuple[int, Certificate]]:
    for idx in indices:
        outcome = run.outcome(idx)
        if isinstance(outcome, Certificate):
            yield idx, outcome


def attacked_data(data: DataRef, source: str | None, base: Path | None, last: int, trust: bool) -> Labelled:
    """The inputs of a run, or those at ``source``; refused if input ``last``, which is attacked, is not among them."""
    dataset = data_of(data, source, base, trust)
    if last >= len(dataset):
        raise InvalidInput(
            f"{dataset.name} has {len(dataset)} inputs, but input {last} was certified: are these the same data?"
        )
    return dataset


def refuse_other_weights(folder: Path, known: ModelRef, g: Smoothed) -> None:
    """Refuse a model with other weights than those of the run in ``folder``."""
    if known.weights_hash not in (None, weights_hash(g.f.model)):
        raise InvalidInput(
            f"{folder} was made with other weights: give the certified weights with --model or --weights."
        )
