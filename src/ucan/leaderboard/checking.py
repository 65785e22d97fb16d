"""Check an entry against the results that it states: hashes, counts, claim, audit, data; then the sampled certificates."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from ucan.certificate import Certificate
from ucan.data import Labelled
from ucan.errors import UcanError
from ucan.fingerprint import weights_hash
from ucan.leaderboard.checks import Check, Checked, CheckJob
from ucan.leaderboard.entry import Entry, is_radius, problems, read_entry
from ucan.leaderboard.making import config_file_hash, config_hash, counts_of, results_hash
from ucan.leaderboard.sampled import Sample, attack_sample, check_seed, drawn_inputs, replay_sample
from ucan.models.ensemble import networks_in
from ucan.runs.agreement import contradiction
from ucan.runs.jobs import device_of
from ucan.runs.progress import SILENT, Progress
from ucan.runs.read import Run
from ucan.smoothed import SmoothedClassifier
from ucan.training.together import Together
from ucan.verify import Stated

NO_RESULTS = "the results are not at hand: give the run folder, or the file, with --results"
NO_CERTIFICATES = "the entry has no certificates: {}"


def check(job: CheckJob, progress: Progress = SILENT) -> Checked:
    """Check an entry of a leaderboard. An interruption while certificates are checked ends it, with what was found until then.

    Args:
        job: the entry, its results, and how many certificates are sampled.
        progress: receives progress; silent by default.

    Returns:
        The entry with its checks; those that could not be made say why.
    """
    device_of(job.device)  # one that is not there is the caller's error, and not a failed check
    one = read_entry(job.entry)
    wrong = problems(one)
    checks = [Check("stated", "failed" if wrong else "ok", "; ".join(wrong) or "nothing is missing, counts never rise")]
    place = _place(job, one)
    if any(not is_radius(key) for key in one.certified):
        checks += [Check("results", "not checked", "the entry's radii cannot be read"), *_left("as above")]
    elif place is None or not place.is_dir():
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
    return next((path for path in named if os.path.isdir(path)), None)  # False for what no path can be


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


def _left(why: str, names: Sequence[str] = ("weights", "seed", "replay", "audit")) -> list[Check]:
    """The checks that need data and model, which cannot be made."""
    return [Check(name, "not checked", why) for name in names]


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
    return [results, *_left(why)]


def _of_import(one: Entry, run: Run) -> list[Check]:
    """The checks of an imported run: its file's hash, the counts, and what the import was told about the file."""
    files = run.config.imported.sha256
    counts = counts_of(run.columns, one.levels)
    why = NO_CERTIFICATES.format("it was imported")
    return [
        _same("results", one.hashes.results, files[0] if files else None, "the released file"),
        _recounted(one, counts),
        _as_imported(one, run),
        *_left(why),
    ]


def _of_run(job: CheckJob, one: Entry, run: Run, progress: Progress) -> list[Check]:
    """The checks of a run: hashes, counts, claim, and the sampled certificates."""
    checks = [
        _same("config", one.hashes.config, _config_hash(one, run), "the run's config"),
        _same("results", one.hashes.results, results_hash(run.columns), "the run's rows"),
        _recounted(one, counts_of(run.columns, one.levels)),
        _claimed(one, run),
        _audited(one, run),
        _agreeing(run),
    ]
    if not run.inputs:
        return [*checks, *_left("the run has no results")]
    chosen, counted = drawn_inputs(job, run)
    try:
        records = {idx: run.outcome(idx) for idx in chosen}
        certificates = {idx: found for idx, found in records.items() if isinstance(found, Certificate)}
    except UcanError as error:
        return [*checks[:-1], Check("records", "failed", str(error))]
    try:
        sample = Sample.of_run(job, run, certificates, counted)
    except UcanError as error:  # the model or the data are not here: the rest is checked all the same
        return [*checks, Check("data", "not checked", str(error)), *_left(str(error))]
    checks.append(_data(one, run, sample.dataset))
    if checks[-1].outcome == "failed":
        return [*checks, *_left("the data are not those of the rows")]
    weights = _weights(one, run, sample.g)
    checks.append(weights)
    if weights.outcome == "failed":
        return [*checks, *_left("the model is not the one that the entry is about", ("seed", "replay", "audit"))]
    checks.append(check_seed(run, sample))
    with progress.working(len(chosen) + min(job.attacks, len(chosen)), 0, job.budget.check):
        checks.append(replay_sample(job, sample, progress))
        stopped = checks[-1].interrupted
        checks += _left("interrupted", ("audit",)) if stopped else [attack_sample(job, run, sample, progress)]
    return checks


def _config_hash(one: Entry, run: Run) -> str:
    """The hash of the run's config, in the way that the entry states it."""
    file = config_file_hash(run.folder)
    return file if one.hashes.config == file else config_hash(run.folder)


def _claimed(one: Entry, run: Run) -> Check:
    """Compare what the entry claims with what the run is about."""
    config, claim = run.config, one.claim
    found = {
        "data": (claim.data, config.data.source),
        "split": (claim.split, config.data.split),
        "inputs": (claim.inputs, run.inputs),
        "norm": (claim.norm, run.norm),
        "scope": (claim.scope, run.scope),
        "n": (claim.n, int(run.columns["n"].max(initial=0))),
        "alpha": (claim.alpha, run.alpha),
    }
    other = [f"{name}: {said!r} stated, {is_!r} found" for name, (said, is_) in found.items() if said != is_]
    other += _not_of_a_leaderboard(run)
    least = len(Together.of(config.model.spec or "").folders)
    if claim.networks is not None and claim.networks < least:
        other.append(f"networks: {claim.networks} stated, --model names {least}")
    if other:
        return Check("claim", "failed", "; ".join(other))
    return Check("claim", "ok", f"{run.inputs:,} inputs, scope {run.scope}, n and α are those of the run")


def _not_of_a_leaderboard(run: Run) -> list[str]:
    """What a run is that ``entry_of`` makes no entry of, whoever wrote this one; and inputs that were chosen or repeated."""
    wrong, skip = [], 1 if run.config.data.skip is None else run.config.data.skip
    if run.budget is not None or run.in_units or run.config.data.columns:
        wrong.append("the run certifies a budget or a table's columns, no radii in a norm")
    if run.config.is_imported:
        wrong.append("the run was imported, and the entry's origin is run")
    if run.left_out:
        wrong.append(f"the run is not finished: {run.left_out:,} results are behind an input without one")
    if skip < 1 or not np.array_equal(run.columns["idx"], skip * np.arange(run.inputs)):
        wrong.append(f"its rows are not one of every {skip} inputs from the first on: some are missing or repeated")
    return wrong


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
        "no audit" if count is None else f"an audit of {count} certificates, {broken_of} broken"
        for count, broken_of, _ in (said, found)
    )
    return Check(
        "attacked", "failed", f"the entry states {stated}, the run's folder has {there}: export the entry again"
    )


def _agreeing(run: Run) -> Check:
    """Whether rows, records and config say the same of every input."""
    try:
        wrong = contradiction(run)
    except UcanError as error:
        wrong = str(error)
    if wrong:
        return Check("records", "failed", wrong)
    return Check("records", "ok", f"rows, records and config say the same of all {run.inputs:,} inputs")


def _weights(one: Entry, run: Run, g: SmoothedClassifier) -> Check:
    """Compare the hash of the weights, and the number of networks that they are of; and that of the noise's own weights."""
    found = _same("weights", one.hashes.weights, weights_hash(g.f.model), "the weights")
    stated, several, noise = one.claim.networks, networks_in(g.f.model), run.config.noise.state
    if found.outcome != "failed" and stated is not None and stated < several:
        return Check("weights", "failed", f"networks: {stated} stated, the weights are those of {several}")
    # Noise that only a certificate tells has no weights of its own.
    if found.outcome == "failed" or noise is None or isinstance(g.M, Stated) or noise == weights_hash(g.M):
        return found
    own = str(weights_hash(g.M))
    return Check("weights", "failed", f"the noise: the config states noise_hash {noise[:12]}…, and it has {own[:12]}…")


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
    whole = -(-len(dataset) // skip)
    which += f", only the first {run.inputs:,} of {whole:,}" if run.inputs < whole and skip > 1 else ""
    return Check("data", found.outcome, f"{found.detail}; {run.inputs:,} of its {len(dataset):,} inputs, {which}")
