"""Attack the answers of a run of a question inside their regions; every finished attempt is stored at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ucan.audit import Ledger
from ucan.audit.answers import Try, attack_answers, leaves_others, mode_of, outside_range
from ucan.audit.summary import allowed_by_chance
from ucan.certificate import Abstention
from ucan.config import differences
from ucan.errors import InvalidInput
from ucan.fingerprint import weights_hash
from ucan.questions.record import Answer
from ucan.results.answers import AnswerStore
from ucan.runs.asked import asked_in, pipeline_again
from ucan.runs.audit import AuditJob, attacked_data, locked, refuse_other_weights
from ucan.runs.audited import AUDIT, config_hash, on_another
from ucan.runs.config import AuditConfig
from ucan.runs.fields import to_table
from ucan.runs.jobs import device_of
from ucan.runs.progress import SILENT, Progress
from ucan.version import __version__


@dataclass(frozen=True)
class Tried:
    """How many answers were attacked and how many claims broke; ``bug`` if these are more than α allows.

    ``outside_range`` counts the answers that rest on a stated range of the outputs, of which the attack found outputs outside:
    they are void, with which chance has nothing to do.
    """

    attacked: int
    broken: int
    allowed: int
    outside_range: int
    folder: Path
    tries: tuple[Try, ...]

    @property
    def bug(self) -> bool:
        """Whether more claims are false than chance explains, or any rests on a range that is false."""
        return self.broken > self.allowed or self.outside_range > 0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        counts = {name: getattr(self, name) for name in ("attacked", "broken", "allowed", "outside_range", "bug")}
        return {**counts, "audit": str(self.folder), "attempts": [one.to_dict() for one in self.tries]}


def audit_answers(job: AuditJob, out: str | Path | None = None, progress: Progress = SILENT) -> Tried:
    """Attack the answers of a run and store the attempts in a folder; an interrupted audit resumes.

    Args:
        job: the run, the attack and its budget.
        out: the audit's folder; ``RUN/audit`` if None.
        progress: receives progress and messages; silent by default.

    Returns:
        The attempts, and how many claims broke.
    """
    _check_options(job)
    run, where = Path(job.run), device_of(job.device)
    config, base = asked_in(run)
    with AnswerStore.open(run) as store:
        chosen, about = _chosen(store, job.min_radius, job.most), store.config
    data = attacked_data(config.data, job.data, base, chosen[-1][0], job.trust)
    first = data[chosen[0][0]][0][None].to(where)
    g = pipeline_again(config, chosen[0][1], first, job.model, job.weights, job.trust, base)
    refuse_other_weights(run, config.model, g)
    told = AuditConfig(
        ucan=__version__, weights_hash=weights_hash(g.f.model), run=config_hash(about), **asdict(job.budget)
    )
    folder = run / AUDIT if out is None else Path(out)
    with locked(folder):
        ledger = Ledger(folder, to_table(told), _compared)
        factors = sorted(job.factors)
        asked = dict(chosen)
        known = {
            key: one
            for key, one in _known(ledger, chosen, factors).items()
            if one.elsewhere or not leaves_others(g, data[one.idx][0][None], asked[one.idx], one.factor)
        }
        cases = ((idx, data[idx][0][None].to(where), answer) for idx, answer in chosen)
        tries = list(known.values())
        with progress.working(len(chosen) * len(factors) - len(known), len(known), job.budget.check):
            for found, x, delta in attack_answers(g, cases, factors, job.budget, known):
                ledger.add(found.to_dict())
                if found.broken and delta is not None:
                    ledger.keep(found.to_dict(), x, delta)
                tries.append(found)
                progress.sampled(found.votes)
                progress.finished(f"{sum(one.broken for one in tries)} broken")
    alpha = max(answer.alpha for _, answer in chosen)
    return counted(tries, folder, alpha, config.data.skip or 1)


def counted(tries: Sequence[Try], folder: Path, alpha: float, skip: int = 1) -> Tried:
    """Count the attempts of an audit, of a run that asked about every ``skip``-th input at level ``alpha``.

    Answers about the same input are made from the same votes: they are true or false together, and count once.
    """
    tests = Counter(one.claim for one in tries)
    broken = {one.claim for one in tries if one.broken}
    allowed = allowed_by_chance(tests, max(one.idx for one in tries), skip, alpha)
    attacked, outside = len({one.idx for one in tries if one.elsewhere}), len(outside_range(tries))
    return Tried(attacked, len(broken), allowed, outside, folder, tuple(tries))


def _check_options(job: AuditJob) -> None:
    """Refuse options that are about certificates of one class."""
    if job.mode != "both":
        raise InvalidInput(
            "--mode is for runs of `ucan certify`: an answer is attacked as its scope says, frozen ones with their noise "
            "frozen and all others live. Leave it out."
        )
    if job.registry is not None:
        raise InvalidInput(
            "--registry is for runs of `ucan certify`: answers to questions have no registry. Leave it out."
        )


def _chosen(store: AnswerStore, least: float, most: int | None) -> list[tuple[int, Answer]]:
    """The answers to attack: those of at least this radius, at most so many."""
    answers = ((idx, one) for idx, one in store.answers() if isinstance(one, Answer))
    large = ((idx, one) for idx, one in answers if one.radius > 0 and one.radius >= least)
    chosen = list(islice(large, most))  # a record may be large: no more than these are read
    if not chosen:
        if all(isinstance(one, Abstention) for _, one in store.answers()):
            raise InvalidInput(
                f"all {len(store)} inputs of {store.folder} abstained: there is no answer to audit. Ask with more samples "
                "(--n), or with less noise."
            )
        raise InvalidInput(f"{store.folder} has no answer with radius {least:g} or more: nothing to audit.")
    return chosen


def _known(
    ledger: Ledger, chosen: Sequence[tuple[int, Answer]], factors: Sequence[float]
) -> dict[tuple[int, float], Try]:
    """The finished attempts on these answers; attempts on other answers are refused."""
    known = {
        (idx, factor): Try(**record)
        for idx, answer in chosen
        for factor in factors
        if (record := ledger.get(idx, factor, mode_of(answer))) is not None
    }
    other = on_another(known.values(), chosen)
    if other is not None:
        raise InvalidInput(
            f"{ledger.folder} holds attacks on another answer about input {other.idx}: give another folder with --out."
        )
    return known


def _compared(begun: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """The differences of two audits; one of an earlier version does not name its run, only its attempts tell it."""
    return differences(begun, {name: value for name, value in asked.items() if name != "run" or "run" in begun})
