"""Attack the answers of a run of a question inside their regions; every finished attempt is stored at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ucan.arithmetic import step_of
from ucan.audit import Ledger, allowed_breaks
from ucan.audit.answers import Try, attack_answers
from ucan.certificate import Abstention
from ucan.config import CONFIG, read_config
from ucan.data import Labelled
from ucan.errors import InvalidInput
from ucan.fingerprint import weights_hash
from ucan.questions.catalogue import question_named
from ucan.questions.record import Answer
from ucan.questions.smoothed import Smoothed
from ucan.results.answers import AnswerStore
from ucan.runs.ask import begun, smoothed_for
from ucan.runs.audit import AuditJob
from ucan.runs.audited import AUDIT
from ucan.runs.config import AskConfig, AuditConfig
from ucan.runs.fields import to_table
from ucan.runs.jobs import Pipeline, device_of
from ucan.runs.progress import SILENT, Progress
from ucan.runs.rebuild import data_of
from ucan.training import is_trained_run
from ucan.version import __version__


@dataclass(frozen=True)
class Tried:
    """How many answers were attacked and how many claims broke; ``bug`` if these are more than α allows."""

    attacked: int
    broken: int
    allowed: int
    folder: Path
    tries: tuple[Try, ...]

    @property
    def bug(self) -> bool:
        """Whether more claims are false than chance explains."""
        return self.broken > self.allowed

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        counts = {"attacked": self.attacked, "broken": self.broken, "allowed": self.allowed, "bug": self.bug}
        return {**counts, "audit": str(self.folder), "attempts": [one.to_dict() for one in self.tries]}


def is_ask_run(folder: str | Path) -> bool:
    """Whether a folder holds a run of a question."""
    path = Path(folder) / CONFIG
    return path.is_file() and read_config(path).get("kind") == "ask"


def audit_answers(job: AuditJob, out: str | Path | None = None, progress: Progress = SILENT) -> Tried:
    """Attack the answers of a run and store the attempts in a folder; an interrupted audit resumes."""
    run = Path(job.run)
    config = begun(run)
    if config is None:
        raise InvalidInput(f"{run} is not the folder of a `ucan ask` run.")
    where, data = device_of(job.device), data_of(config.data, job.data)
    with AnswerStore.open(run) as store:
        chosen = list(_chosen(store, job.min_radius, job.most))
        if not chosen:
            raise InvalidInput(f"{run} has no answer with radius {job.min_radius:g} or more: nothing to audit.")
        g = pipeline_again(
            config, chosen[0][1], data[chosen[0][0]][0][None].to(where), job.model, job.weights, job.trust
        )
        about = AuditConfig(ucan=__version__, weights_hash=weights_hash(g.f.model), **asdict(job.budget))
        ledger = Ledger(run / AUDIT if out is None else Path(out), to_table(about))
        factors, tries = sorted(job.factors), list[Try]()
        known = {
            (idx, factor): Try(**record)
            for idx, answer in chosen
            for factor in factors
            if (record := ledger.get(idx, factor, "frozen" if answer.scope == "frozen" else "live")) is not None
        }
        cases = ((idx, data[idx][0][None].to(where), answer) for idx, answer in chosen)
        with progress.working(len(chosen) * len(factors) - len(known), len(known), job.budget.check):
            for found, x, delta in attack_answers(g, cases, factors, job.budget, known):
                ledger.add(found.to_dict())
                if found.broken and delta is not None:
                    ledger.keep(found.to_dict(), x, delta)
                tries.append(found)
                progress.finished(f"{sum(one.broken for one in tries)} broken")
    tries = [*known.values(), *tries]
    broken = len({one.idx for one in tries if one.broken})
    alpha = max(answer.evidence.alpha for _, answer in chosen)
    return Tried(len(chosen), broken, allowed_breaks(len(chosen), alpha), ledger.folder, tuple(tries))


def _chosen(store: AnswerStore, least: float, most: int | None) -> Iterator[tuple[int, Answer]]:
    """The answers to attack: those of at least this radius, at most so many."""
    count = 0
    for idx, answer in store.answers():
        if isinstance(answer, Abstention) or not answer.radius > 0 or answer.radius < least:
            continue
        if most is not None and count >= most:
            return
        count += 1
        yield idx, answer


def pipeline_again(
    config: AskConfig,
    answer: Answer | Abstention,
    first: torch.Tensor,
    model: str | None = None,
    weights: str | Path | None = None,
    trust: bool = False,
) -> Smoothed:
    """The model under its noise behind a run's answers, from the run's config; for inputs like ``first``."""
    known = config.model
    spec = model or known.spec
    if spec is None:
        raise InvalidInput("this run does not state its model: give it with --model.")
    trained = is_trained_run(spec)
    if config.noise.given is None and not trained and "Isotropic" not in (config.noise.described or ""):
        raise InvalidInput("this run's noise was made in Python and cannot be made again from its folder.")
    evidence = answer.evidence
    asked = Pipeline(
        model=spec,
        weights=weights or (known.weights if model is None else None),
        law=None if trained else evidence.law,
        scale=evidence.law.scale if trained else None,
        noise=None if trained else config.noise.given,
        classes=known.classes,
        model_id=known.model_id,
        precision=config.sampling.precision,
        trust=trust,
        normalise=known.normalise,
    )
    question = question_named(config.question or "", config.settings)
    return smoothed_for(asked, question, first, step_of(evidence.arithmetic))


def targets_of(config: AskConfig) -> Labelled | None:
    """The data of a run, if they are still there."""
    try:
        return data_of(config.data)
    except (InvalidInput, OSError):
        return None
