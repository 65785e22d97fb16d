"""Certificates of a run drawn at random, and checked one by one: its seed, their replay, and attacks inside their regions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from ucan.audit import Attempt, Summary, summarise
from ucan.audit.auditor import audit as attack
from ucan.audit.decide import SURE, allowed_breaks
from ucan.certificate import Certificate
from ucan.data import Labelled, is_known
from ucan.errors import InvalidInput, UcanError
from ucan.leaderboard.checks import Attacks, Check, CheckJob, Outcome, Replayed
from ucan.replay import Replay, replay
from ucan.rounding import ceil_percent
from ucan.runs.jobs import device_of
from ucan.runs.progress import Progress
from ucan.runs.read import Run
from ucan.runs.rebuild import inputs_of, pipeline_of
from ucan.seating import EXACT
from ucan.smoothed import SmoothedClassifier
from ucan.verify import Verdict, of_a_copy, verify

FACTORS = (0.9, 0.999)
ALONE = ("pipeline", "frozen")  # the scopes that hold without a registry, which is not part of an entry


def drawn_inputs(job: CheckJob, run: Run) -> tuple[list[int], int]:
    """Inputs drawn at random from those that count as right and certified, and how many there are."""
    rows = run.columns
    counted = rows["idx"][rows["correct"] & ~rows["abstained"]]
    drawn = np.random.default_rng(job.seed).permutation(counted)[: job.inputs]
    return [int(idx) for idx in drawn], len(counted)


@dataclass(frozen=True, eq=False)
class Sample:
    """The deployed classifier, its data, and the certificates that were drawn, ``of`` so many.

    That rows, records and labels say the same is checked for all inputs, not here (``checking.py``).
    """

    g: SmoothedClassifier
    dataset: Labelled
    run: Run
    certificates: dict[int, Certificate]
    of: int
    device: torch.device

    @classmethod
    def of_run(cls, job: CheckJob, run: Run, certificates: dict[int, Certificate], of: int) -> Sample:
        """Rebuild what the certificates are checked against."""
        where = device_of(job.device)
        stated = run.config.data.source
        known = stated if stated is not None and is_known(stated) else None  # as it is here, not beside the run
        dataset = inputs_of(run.config, job.data or known, run.base, job.trust)
        outcome = next(iter(certificates.values()), None) or run.telling()
        g = pipeline_of(run.config.model, outcome, where, job.model, job.weights, dataset, job.trust, run.base)
        own = run.config.sampling.precision  # a derived seed follows from it, too
        return cls(g.again(precision=own), dataset, run, certificates, of, where)

    @property
    def derives(self) -> bool:
        """Whether the run states that its seed is derived."""
        return self.run.config.sampling.seed_source == "derived"

    def cases(self, most: int) -> Iterator[tuple[int, torch.Tensor, Certificate]]:
        """The sampled inputs with their certificates."""
        for idx, certificate in list(self.certificates.items())[:most]:
            yield idx, self.dataset[idx][0][None].to(self.device), certificate

    def power(self, drawn: int) -> str:
        """How many of how many, and how large a share of wrong ones could still have been missed."""
        if drawn >= self.of:
            return f"all {self.of:,} certificates that count"
        missed = ceil_percent(1 - 0.05 ** (1 / drawn))
        return f"{drawn:,} of {self.of:,} certificates; were {missed} % of them wrong, one would be found with 95 % probability"


def check_seed(run: Run, sample: Sample) -> Check:
    """Whether the seed could be chosen freely."""
    known = run.config.sampling
    if known.seed_source != "derived":
        how = (
            "drawn by the system and kept secret"
            if known.seed_source == "random"
            else "a number of the submitter's choice"
        )
        return Check(
            "seed", "not checked", f"it is {how}, not derived: that it was not chosen by its results is not checked"
        )
    data = sample.dataset.fingerprint()
    if sample.g.engine.derived_seed(data) == known.number:
        return Check("seed", "ok", "it follows from model, noise and data")
    return Check("seed", "failed", "it is stated to be derived, and does not follow from model, noise and data")


def replay_sample(job: CheckJob, sample: Sample, progress: Progress) -> Check:
    """Recompute sampled certificates, test them with fresh votes, and draw their own noise again."""
    if sample.run.scope not in ALONE:
        return Check(
            "replay",
            "not checked",
            f"scope {sample.run.scope}: `ucan verify --registry` checks a certificate with its registry",
        )
    failed: list[str] = []
    undrawn: list[str] = []
    unsure: list[str] = []
    data, drawn, redrawn, moved, ended = sample.dataset.fingerprint(), 0, 0, 0, False
    try:
        for idx, x, certificate in sample.cases(job.inputs):
            wrong, again, unconfirmed = _replayed(job, sample, x, certificate, data)
            progress.finished("")  # raises an interrupt that was lost: what it may have broken does not count
            failed += [f"input {idx}: {wrong}"] if wrong else []
            unsure += [f"input {idx}: {unconfirmed}"] if unconfirmed else []
            drawn += 1
            if again is not None:
                undrawn += [] if again.drawn else [again.detail]
                redrawn += again.drawn
                moved += not wrong and again.outcome == "bears"
    except KeyboardInterrupt:
        ended = True
    told = _told(sample, Replayed(sample.of, drawn, redrawn, moved, len(failed)), failed, undrawn, unsure)
    return _so_far(told, drawn, len(sample.certificates)) if ended else told


def _replayed(
    job: CheckJob, sample: Sample, x: torch.Tensor, certificate: Certificate, data: str
) -> tuple[str, Replay | None, str]:
    """What is wrong with a certificate, empty if nothing is; its replay, if it came to that; and why it confirms no scope."""
    if certificate.scope != sample.run.scope:
        return f"its scope is {certificate.scope}, not {sample.run.scope}", None, ""
    own = certificate.evidence
    if of_a_copy(own, sample.g, x):
        return f"it is about a copy in {own.precision}, not about the run's classifier", None, ""
    try:
        verdict = verify(certificate, sample.g, x, None, job.alpha / job.inputs)
    except UcanError as error:  # it states what nobody can test, such as another precision
        return str(error), None, ""
    if wrong := "; ".join(f"{c.name}: {c.detail}" for c in verdict.checks if not c.passed):
        return wrong, None, ""
    again, unsure = replay(certificate, sample.g, x, data), _unconfirmed(verdict)
    if not again.stands:
        return _refuted(again), again, ""
    follows = again.derived is True and own.data_hash == data  # the run's data, not this input alone
    if sample.derives and not follows and own.bound != EXACT:
        return "the run's seed is stated to be derived, and this certificate's noise does not follow from it", again, ""
    return "", again, unsure


def _unconfirmed(verdict: Verdict) -> str:
    """Why a verdict in which no check failed confirms no scope; empty if it confirms one."""
    if verdict.confirms is not None:
        return ""
    why = [f"{check.name}: {check.detail}" for check in verdict.checks if not check.confirmed]
    return "; ".join(why) or f"it was compared with {verdict.about}"


def _told(sample: Sample, counted: Replayed, failed: list[str], undrawn: list[str], unsure: list[str]) -> Check:
    """The check of certificates that were replayed, in words."""
    drawn = counted.certificates or 0
    if not drawn:
        return Check("replay", "not checked", "no certificate counts as right", counted)
    if failed:
        return Check("replay", "failed", f"{len(failed)} of {drawn} certificates fail; {failed[0]}", counted)
    if undrawn:
        which = f"{len(undrawn)} of {drawn} were not drawn again from their own noise ({undrawn[0]})"
        rest = f"Only recomputed and tested with fresh votes: {sample.power(drawn)}"
        return Check("replay", "not checked", f"{which}. {rest}", counted)
    if unsure:
        which = f"{len(unsure)} of {drawn} certificates, which no check refutes, are not confirmed either"
        return Check("replay", "not checked", f"{which}; {unsure[0]}", counted)
    some = f"; {counted.moved} with some votes moved by rounding" if counted.moved else ""
    said = f"recomputed, tested with fresh votes and drawn again: {sample.power(drawn)}{some}"
    return Check("replay", "ok", said, counted)


def _refuted(again: Replay) -> str:
    """Why a replay does not stand."""
    return again.detail if again.outcome == "differs" else "its seed does not follow from model, noise and data"


def _allowed(sample: Sample, found: Summary, alpha: float) -> int:
    """How many certificates may break by chance among those that were drawn.

    ``summarise`` allows for an audit that chose all the false ones of the run. Here nobody chose: each input has a false
    certificate with probability at most α, which is then drawn with that of any other.
    """
    drawn = (found.attacked + found.alone) / sample.of
    return allowed_breaks(sample.run.inputs, (alpha + SURE * len(FACTORS)) * drawn)


def attack_sample(job: CheckJob, run: Run, sample: Sample, progress: Progress) -> Check:
    """Attack sampled certificates inside their regions, where the guarantee covers it."""
    if run.scope not in ALONE:
        return Check(
            "audit", "not checked", f"scope {run.scope}: `ucan audit` attacks the classifier with its registry"
        )
    mode: Literal["live", "frozen"] = "live" if run.scope == "pipeline" else "frozen"
    attempts: list[Attempt] = []
    done, ended = 0, False
    try:
        for idx, x, certificate in sample.cases(job.attacks):
            if certificate.size <= 0:
                continue
            made = [one for one, _ in attack(sample.g, x, certificate, mode, FACTORS, job.budget, idx)]
            progress.finished("")  # as in the replay
            attempts += made
            done += 1
    except InvalidInput as error:  # it is of another classifier, which fails the replay
        return Check("audit", "not checked", f"input {idx}: {error}")
    except KeyboardInterrupt:
        ended = True
    told = _broken(sample, attempts, mode)
    return _so_far(told, done, min(job.attacks, len(sample.certificates))) if ended else told


def _broken(sample: Sample, attempts: list[Attempt], mode: str) -> Check:
    """The check of certificates that were attacked, in words."""
    if not attempts:
        return Check("audit", "not checked", "no certificate was attacked")
    found = summarise(attempts, sample.run.config.data.skip or 1)
    if not found.attacked:
        return Check(
            "audit", "not checked", "no other input lies inside the regions of the certificates that were drawn"
        )
    counted = Attacks(found.attacked, found.covered_breaks)
    said = f"{found.covered_breaks} of {found.attacked} attacked certificates broken, {mode}"
    if found.is_bug or found.covered_breaks > _allowed(sample, found, max(one.alpha for one in attempts)):
        return Check("audit", "failed", f"{said}: more than chance explains", counted)
    return Check("audit", "ok", said, counted)


def _so_far(told: Check, done: int, asked: int) -> Check:
    """An interrupted check: it failed if a certificate did, and otherwise is not made, whatever it found."""
    outcome: Outcome = "failed" if told.outcome == "failed" else "not checked"
    found = f": {told.detail}" if done else ""
    return replace(
        told, outcome=outcome, detail=f"interrupted after {done} of {asked} certificates{found}", interrupted=True
    )
