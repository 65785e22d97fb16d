"""Check an entry against the results that it states: hashes, counts, replay and attack of sampled certificates.

Every check ends in one of three ways: ok, failed, or not checked, with the reason. An entry stands if nothing failed; that
is no proof, and what was not checked is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ucan.audit import Attempt, Budget, summarise
from ucan.audit.auditor import audit as attack
from ucan.certificate import Abstention, Certificate
from ucan.data import Labelled
from ucan.errors import UcanError
from ucan.fingerprint import weights_hash
from ucan.leaderboard.entry import Entry, problems, read_entry
from ucan.leaderboard.making import config_hash, counts_of, results_hash
from ucan.replay import Replay, replay
from ucan.rounding import ceil_percent
from ucan.runs.agreement import contradiction
from ucan.runs.jobs import device_of
from ucan.runs.progress import SILENT, Progress
from ucan.runs.read import Run
from ucan.runs.rebuild import data_of, pipeline_of
from ucan.smoothed import EXACT, SmoothedClassifier
from ucan.training.together import Together
from ucan.verify import verify

Outcome = Literal["ok", "failed", "not checked"]
NO_RESULTS = "the results are not at hand: give the run folder, or the file, with --results"
NO_CERTIFICATES = "the entry has no certificates: {}"
FACTORS = (0.9, 0.999)


@dataclass(frozen=True)
class Check:
    """One check, its outcome, and the reason or what was found."""

    name: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True)
class Checked:
    """All checks of an entry."""

    entry: Entry
    checks: tuple[Check, ...]

    @property
    def stands(self) -> bool:
        """Whether nothing failed; this is not a proof of the entry."""
        return all(check.outcome != "failed" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"entry": self.entry.name, "stands": self.stands, "checks": [asdict(check) for check in self.checks]}


@dataclass(frozen=True, kw_only=True)
class CheckJob:
    """The settings of a check. ``inputs`` certificates are drawn at random and replayed; ``attacks`` of them attacked.

    ``results`` is the run folder, or the file that the entry's hash is of; ``model``, ``weights`` and ``data`` are the
    paths of the run's parts if they have moved. ``seed`` draws the sample: a submitter must not know it in advance.
    """

    entry: str | Path
    results: str | Path | None = None
    model: str | None = None
    weights: str | Path | None = None
    data: str | None = None
    inputs: int = 20
    attacks: int = 10
    alpha: float = 0.001
    seed: int | None = None
    budget: Budget = field(default_factory=Budget)
    device: str | torch.device = "auto"
    trust: bool = False


def check(job: CheckJob, progress: Progress = SILENT) -> Checked:
    """Check an entry of a leaderboard.

    Args:
        job: the entry, its results, and how many certificates are sampled.
        progress: receives progress; silent by default.

    Returns:
        The entry with its checks; those that could not be made say why.
    """
    one = read_entry(job.entry)
    wrong = problems(one)
    checks = [Check("stated", "failed" if wrong else "ok", "; ".join(wrong) or "nothing is missing, counts never rise")]
    place = _place(job, one)
    if place is None or not place.is_dir():
        checks += _of_file(one, place)
    elif one.origin == "imported":
        checks += _of_import(one, Run.open(place))
    else:
        checks += _of_run(job, one, Run.open(place), progress)
    return Checked(one, tuple(checks))


def _place(job: CheckJob, one: Entry) -> Path | None:
    """Where the results are: as given, or as the entry says, seen from its folder or from here."""
    if job.results is not None:
        return Path(job.results)
    named = [] if one.run is None else [Path(job.entry).parent / one.run, Path(one.run)]
    return next((path for path in named if path.is_dir()), None)


def _same(name: str, stated: str | None, found: str | None, what: str) -> Check:
    """Compare a hash with the one that the entry states."""
    if stated is None or found is None:
        return Check(name, "not checked", f"the {'entry' if stated is None else 'run'} has no hash of {what}")
    if stated == found:
        return Check(name, "ok", f"{what} as stated, sha256 {found[:12]}…")
    return Check(name, "failed", f"{what}: the entry states sha256 {stated[:12]}…, found {found[:12]}…")


def _recounted(one: Entry, found: dict[str, int]) -> Check:
    """Compare the entry's counts with those of the rows."""
    pairs = [(key, count, found.get(key)) for key, count in one.certified.items()]
    other = [f"{key}: {count} stated, {now} found" for key, count, now in pairs if now != count]
    if other:
        return Check("counts", "failed", f"certified at {'; '.join(other)}")
    return Check("counts", "ok", f"all {len(one.certified)} numbers of certified inputs follow from the rows")


def _of_file(one: Entry, file: Path | None) -> list[Check]:
    """The checks without a run folder: the file's hash, if there is one."""
    why = {
        "run": NO_RESULTS,
        "record": NO_CERTIFICATES.format("it was made from a record, which keeps what each input reached"),
        "imported": NO_CERTIFICATES.format("it was counted in a released file; who made it has not given any"),
    }[one.origin or "run"]
    if file is None:
        results = Check("results", "not checked", NO_RESULTS)
    elif not file.is_file():
        results = Check("results", "failed", f"there is no run folder and no file {file}")
    else:
        results = _same("results", one.hashes.results, sha256(file.read_bytes()).hexdigest(), file.name)
    return [results, *(Check(name, "not checked", why) for name in ("weights", "seed", "replay", "audit"))]


def _of_import(one: Entry, run: Run) -> list[Check]:
    """The checks of an imported run: its file's hash, the counts, and what the import was told about the file."""
    files = run.config.imported.sha256
    counts = counts_of(run.columns, one.levels)
    why = NO_CERTIFICATES.format("it was imported")
    return [
        _same("results", one.hashes.results, files[0] if files else None, "the released file"),
        _recounted(one, counts),
        _as_imported(one, run),
        *(Check(name, "not checked", why) for name in ("weights", "seed", "replay", "audit")),
    ]


def _of_run(job: CheckJob, one: Entry, run: Run, progress: Progress) -> list[Check]:
    """The checks of a run: hashes, counts, claim, and the sampled certificates."""
    checks = [
        _same("config", one.hashes.config, config_hash(run.folder), "the run's config"),
        _same("results", one.hashes.results, results_hash(run.columns), "the run's rows"),
        _recounted(one, counts_of(run.columns, one.levels)),
        _claimed(one, run),
        _audited(one, run),
        _agreeing(run),
    ]
    chosen, counted = _drawn(job, run)
    try:
        records = {idx: run.outcome(idx) for idx in chosen}
    except UcanError as error:
        return [*checks[:-1], Check("records", "failed", str(error))]
    try:
        sample = Sample.of_run(job, run, records, counted)
    except UcanError as error:  # the model or the data are not here: the rest is checked all the same
        left = ("data", "weights", "seed", "replay", "audit")
        return [*checks, *(Check(name, "not checked", str(error)) for name in left)]
    checks += [
        _data(one, run, sample.dataset),
        _same("weights", one.hashes.weights, weights_hash(sample.g.f.model), "the weights"),
        _seed(run, sample),
    ]
    with progress.working(len(chosen) + min(job.attacks, len(chosen)), 0, job.budget.check):
        checks.append(_replayed(job, sample, progress))
        checks.append(_attacked(job, run, sample, progress))
    return checks


def _claimed(one: Entry, run: Run) -> Check:
    """Compare what the entry claims with what the run is about."""
    config, claim = run.config, one.claim
    found = {
        "data": (claim.data, config.data.source),
        "split": (claim.split, config.data.split),
        "inputs": (claim.inputs, run.inputs),
        "norm": (claim.norm, run.norm),
        "scope": (claim.scope, run.scope),
        "n": (claim.n, int(run.columns["n"].max())),
        "alpha": (claim.alpha, run.alpha),
    }
    other = [f"{name}: {said!r} stated, {is_!r} found" for name, (said, is_) in found.items() if said != is_]
    least = len(Together.of(config.model.spec or "").folders)
    if claim.networks is not None and claim.networks < least:
        other.append(f"networks: {claim.networks} stated, --model names {least}")
    if other:
        return Check("claim", "failed", "; ".join(other))
    return Check("claim", "ok", f"{run.inputs:,} inputs, scope {run.scope}, n and α are those of the run")


def _as_imported(one: Entry, run: Run) -> Check:
    """Compare what the entry claims of a released file with what the import was told, as far as it was."""
    claim, data = one.claim, run.config.data.source
    told = {"inputs": (claim.inputs, run.inputs), "norm": (claim.norm, run.norm), "scope": (claim.scope, run.scope)}
    told |= {"data": (claim.data, data)} if data is not None else {}
    told |= {"alpha": (claim.alpha, run.alpha)} if run.alpha is not None else {}
    other = [f"{name}: {said!r} stated, {is_!r} imported" for name, (said, is_) in told.items() if said != is_]
    if other:
        return Check("claim", "failed", f"{'; '.join(other)}. Import the file again with what is true of it")
    unknown = [name for name in ("data", "n", "alpha") if name not in told]
    return Check(
        "claim", "not checked", f"{', '.join(told)} as imported; {', '.join(unknown)}: the import does not know"
    )


def _audited(one: Entry, run: Run) -> Check:
    """Compare the audit that the entry states with that in the run's folder."""
    said = (one.audit.certificates, one.audit.broken, one.audit.bug)
    broken, attacked = run.covered
    found = (attacked, broken, run.audit.is_bug if run.audit else None) if run.attempts else (None, None, None)
    if said == found:
        return Check(
            "attacked", "ok", "as in the run's folder" if run.attempts else "no audit is stated, and there is none"
        )
    stated, there = (
        "no audit" if one[0] is None else f"an audit of {one[0]} certificates, {one[1]} broken" for one in (said, found)
    )
    return Check(
        "attacked", "failed", f"the entry states {stated}, the run's folder has {there}: export the entry again"
    )


def _agreeing(run: Run) -> Check:
    """Whether rows, records and config say the same of every input."""
    wrong = contradiction(run)
    if wrong:
        return Check("records", "failed", wrong)
    return Check("records", "ok", f"rows, records and config say the same of all {run.inputs:,} inputs")


def _data(one: Entry, run: Run, dataset: Labelled) -> Check:
    """Compare the data's hash and every label, and say which of its inputs these are."""
    rows, skip = run.columns, run.config.data.skip or 1
    found = _same("data", one.hashes.data, dataset.fingerprint(), "the data")
    if found.outcome == "failed":
        return found
    outside = rows["idx"] >= len(dataset)
    labels = dataset.labels.numpy()[np.minimum(rows["idx"], len(dataset) - 1)]
    wrong = rows["idx"][outside | (labels != rows["label"])]
    if len(wrong):
        return Check("data", "failed", f"input {int(wrong[0])}: the row's label is not that of the data")
    which = f"one of every {skip}" if skip > 1 else "from the first on"
    return Check("data", found.outcome, f"{found.detail}; {run.inputs:,} of its {len(dataset):,} inputs, {which}")


def _drawn(job: CheckJob, run: Run) -> tuple[list[int], int]:
    """Inputs drawn at random from those that count as right and certified, and how many there are."""
    rows = run.columns
    counted = rows["idx"][rows["correct"] & ~rows["abstained"]]
    drawn = np.random.default_rng(job.seed).permutation(counted)[: job.inputs]
    return [int(idx) for idx in drawn], len(counted)


@dataclass(frozen=True, eq=False)
class Sample:
    """The deployed classifier, its data, and the records that were drawn, ``of`` so many."""

    g: SmoothedClassifier
    dataset: Labelled
    run: Run
    records: dict[int, Certificate | Abstention]
    of: int
    device: torch.device

    @classmethod
    def of_run(cls, job: CheckJob, run: Run, records: dict[int, Certificate | Abstention], of: int) -> Sample:
        """Rebuild what the records are checked against."""
        where = device_of(job.device)
        dataset = data_of(run.config.data, job.data, run.base)
        outcome = next(iter(records.values()), None) or run.outcome(int(run.columns["idx"][0]))
        g = pipeline_of(run.config.model, outcome, where, job.model, job.weights, dataset, job.trust, run.base)
        own = run.config.sampling.precision  # a derived seed follows from it, too
        g = SmoothedClassifier(
            g.f.model, g.law, g.M, g.f.num_classes, precision=own, model_id=g.engine.model_id, step=g.step
        )
        return cls(g, dataset, run, records, of, where)

    @property
    def derives(self) -> bool:
        """Whether the run states that its seed is derived."""
        return self.run.config.sampling.seed_source == "derived"

    def cases(self, most: int) -> Iterator[tuple[int, torch.Tensor, Certificate | Abstention]]:
        """The sampled inputs with their records."""
        for idx, outcome in list(self.records.items())[:most]:
            yield idx, self.dataset[idx][0][None].to(self.device), outcome

    def power(self, drawn: int) -> str:
        """How many of how many, and how large a share of wrong ones could still have been missed."""
        if drawn >= self.of:
            return f"all {self.of:,} certificates that count"
        missed = ceil_percent(1 - 0.05 ** (1 / drawn))
        return f"{drawn:,} of {self.of:,} certificates; were {missed} % of them wrong, one would be found with 95 % probability"


def _seed(run: Run, sample: Sample) -> Check:
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


def _replayed(job: CheckJob, sample: Sample, progress: Progress) -> Check:
    """Recompute sampled certificates, test them with fresh votes, and draw their own noise again."""
    data, drawn, bears = sample.dataset.fingerprint(), 0, 0
    undrawn: list[str] = []
    for idx, x, certificate in sample.cases(job.inputs):
        if not isinstance(certificate, Certificate):
            return Check("replay", "failed", f"input {idx} counts as certified, and its record abstains")
        wrong = _row_differs(sample, idx, certificate)
        if not wrong:
            verdict = verify(certificate, sample.g, x, None, job.alpha / job.inputs)
            wrong = "; ".join(f"{c.name}: {c.detail}" for c in verdict.checks if not c.passed)
        if not wrong:
            again = replay(certificate, sample.g, x, data)
            wrong = "" if again.stands else _refuted(again)
            if not wrong and sample.derives and again.derived is not True and certificate.evidence.bound != EXACT:
                wrong = "the run's seed is stated to be derived, and this certificate's noise does not follow from it"
            undrawn += [] if again.drawn else [again.detail]
            bears += again.outcome == "bears"
        if wrong:
            return Check("replay", "failed", f"input {idx}: {wrong}")
        drawn += 1
        progress.finished("")
    if not drawn:
        return Check("replay", "not checked", "no certificate counts as right")
    if undrawn:
        which = f"{len(undrawn)} of {drawn} were not drawn again from their own noise ({undrawn[0]})"
        return Check(
            "replay", "not checked", f"{which}. Only recomputed and tested with fresh votes: {sample.power(drawn)}"
        )
    some = f"; {bears} with some votes moved by rounding" if bears else ""
    return Check("replay", "ok", f"recomputed, tested with fresh votes and drawn again: {sample.power(drawn)}{some}")


def _refuted(again: Replay) -> str:
    """Why a replay does not stand."""
    return again.detail if again.outcome == "differs" else "its seed does not follow from model, noise and data"


def _row_differs(sample: Sample, idx: int, certificate: Certificate) -> str:
    """How a row differs from its certificate and its label; empty if it does not."""
    rows, at = sample.run.columns, int(sample.run.columns["idx"].searchsorted(idx))
    label = int(sample.dataset[idx][1])
    if int(rows["label"][at]) != label:
        return "the row's label is not that of the data"
    if certificate.prediction != label:
        return "the row counts as right, and its certificate's answer is not the label"
    if certificate.prediction != int(rows["prediction"][at]) or not math.isclose(certificate.size, rows["radius"][at]):
        return "the row states another answer or radius than its certificate"
    return ""


def _attacked(job: CheckJob, run: Run, sample: Sample, progress: Progress) -> Check:
    """Attack sampled certificates inside their regions, where the guarantee covers it."""
    if run.scope not in ("pipeline", "frozen"):
        return Check(
            "audit", "not checked", f"scope {run.scope}: `ucan audit` attacks the classifier with its registry"
        )
    mode: Literal["live", "frozen"] = "live" if run.scope == "pipeline" else "frozen"
    attempts: list[Attempt] = []
    for idx, x, certificate in sample.cases(job.attacks):
        if not isinstance(certificate, Certificate) or certificate.size <= 0:
            continue
        attempts += [made for made, _ in attack(sample.g, x, certificate, mode, FACTORS, job.budget, idx)]
        progress.finished("")
    if not attempts:
        return Check("audit", "not checked", "no certificate was attacked")
    found = summarise(attempts, run.config.data.skip or 1)
    said = f"{found.covered_breaks} of {found.attacked} attacked certificates broken, {mode}"
    if found.is_bug:
        return Check("audit", "failed", f"{said}: more than chance explains")
    return Check("audit", "ok", said)
