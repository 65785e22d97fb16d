"""The summary of a report: three sentences that say which run to trust, which not, and how certain that is.

They are written for readers who do not know randomized smoothing. Every number is rounded down, and the limits of a
frozen or an unknown claim are stated before its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ucan.arithmetic import OWN_STEPS, step_name
from ucan.generators import Isotropic
from ucan.laws import norm_name
from ucan.report.basis import idle, same_inputs, stopped_in_words
from ucan.report.runs import Run, by_norm
from ucan.results.metrics import (
    average_radius,
    certified_accuracy,
    certified_band,
    clean_accuracy,
    median_radius,
)
from ucan.rounding import ceil_percent, ceil_significant, floor_digits, floor_percent, floor_plain, floor_significant


@dataclass(frozen=True)
class Sentence:
    """A sentence of the summary with its heading."""

    heading: str
    text: str


def sentences(runs: Sequence[Run]) -> list[Sentence]:
    """The three sentences on these runs."""
    trusted = most_trusted(runs)
    return [_trust(runs, trusted), _doubt(runs, trusted), _certainty(runs, trusted)]


def most_trusted(runs: Sequence[Run]) -> Run | None:
    """The run with the largest average radius whose guarantee covers what is deployed; None if there is none.

    Scope `pipeline` comes before `registry`, which needs its memory kept. Radii compare within one norm, on the same
    inputs and at one α, so it is the best of the first that have any, at the smallest α. A run whose audit found a bug is
    out, and so is one that certifies nothing.
    """
    for scope in ("pipeline", "registry"):
        for group in by_norm(runs):
            sound = [run for run in group if run.scope == scope and not run.refuted and average_radius(run.columns) > 0]
            if sound:
                sound.sort(key=lambda run: math.inf if run.alpha is None else run.alpha)
                first = next((run for run in sound if run.data is not None), sound[0])
                alike = [run for run in sound if _comparable(run, first)]
                return max(alike, key=lambda run: average_radius(run.columns))
    return None


def typical_size(run: Run) -> float:
    """A radius that many inputs reach, as it is shown: the median over all inputs, or half the mean if that is 0."""
    size = median_radius(run.columns) or average_radius(run.columns) / 2
    if not math.isfinite(size):  # an imported file need not tell its radii
        return 0.0
    size = float(floor_significant(size))  # no more digits than a sentence writes
    return next((shown for d in (2, 3, 4, 6) if (shown := float(floor_digits(size, d))) > 0), 0.0)


def _trust(runs: Sequence[Run], run: Run | None) -> Sentence:
    heading = "Which run to trust"
    if run is None:
        return Sentence(heading, _unlabelled(runs))
    size = typical_size(run)
    share = floor_percent(float(certified_accuracy(run.columns, size)))
    memory = " together with its registry" if run.scope == "registry" else ""
    peers = [other for other in runs if (other.scope, other.kind) == (run.scope, run.kind) and not other.refuted]
    peers = [other for other in peers if not math.isnan(average_radius(other.columns))]
    alike = [other for other in peers if _comparable(other, run)]
    # With a stopping rule the size is a lower bound: such a run can lead, but no other run can be said to lead over it.
    rivals = sum(other is run or not stopped_in_words(other.config) for other in alike)
    best = f", which of the {rivals} runs with a guarantee for the classifier as deployed reaches furthest on average"
    known = f"{run.labelled:,} inputs{'' if run.labelled == run.inputs else ' whose label is known'}"
    text = (
        f"Trust {run.label}{memory}{best if rivals > 1 else ''}: it answers {floor_percent(clean_accuracy(run.columns))} % of "
        f"{known} correctly, and for {share} % it is proved that no change {_within(run, size)}, whoever makes "
        "it, alters the right answer."
    )
    stopped = stopped_in_words(run.config)
    text += f" {stopped[0].upper()}{stopped[1:]}." if stopped else ""
    text += _shaped(runs)
    others = [other.label for other in peers if other not in alike]
    return Sentence(
        heading,
        f"{text} On other inputs or at another α, and not to be compared with it: {_and(others)}." if others else text,
    )


def _shaped(runs: Sequence[Run]) -> str:
    """Says that shaped noise certifies more than isotropic noise against ℓ∞ or a budget, for the classifier as deployed.

    Empty unless the confidence intervals over the inputs are apart.
    """
    for group in by_norm(runs):
        sound = [r for r in group if r.scope == "pipeline" and not r.refuted and not stopped_in_words(r.config)]
        plain = [r for r in sound if r.config.noise.described == Isotropic().describe()]
        shaped = [r for r in sound if r not in plain and r.config.noise.described and average_radius(r.columns) > 0]
        if group[0].kind in (1, 2, None) or not (plain and shaped):
            continue
        run = max(shaped, key=lambda r: average_radius(r.columns))
        size, rivals = typical_size(run), [r for r in plain if r.data is not None and _comparable(r, run)]
        low = float(certified_band(run.columns, size)[0])
        if (
            rivals
            and not idle(run.config, size)
            and all(float(certified_band(r.columns, size)[1]) < low for r in rivals)
        ):
            share, other = (max(float(certified_accuracy(r.columns, size)) for r in some) for some in ([run], rivals))
            return (
                f" Against every change {_within(run, size)} the shape of the noise pays: {run.label} is proved right for "
                f"{floor_percent(share)} %, the classifier under noise that is the same everywhere for {ceil_percent(other)} %."
            )
    return ""


def _comparable(one: Run, other: Run) -> bool:
    """True unless two runs are known to use different inputs or different α."""
    return same_inputs(one.data, other.data) and (None in (one.alpha, other.alpha) or one.alpha == other.alpha)


def _unlabelled(runs: Sequence[Run]) -> str:
    """The sentence for runs of which none is known to be right: one has no labels, or nothing is proved."""
    run = _claiming(runs)
    if run is None:
        return "None of these runs proves anything about a classifier as it would be deployed."
    memory = ", together with its registry," if run.scope == "registry" else ""
    return (
        f"The labels are unknown, so it is unknown how often {run.label} is right: {run.certificates:,} of {run.inputs:,} "
        f"inputs have a certificate, which proves{memory} that no change {_within(run)} alters the answer."
    )


def _claiming(runs: Sequence[Run]) -> Run | None:
    """The first run with certificates for the classifier as deployed and without any label."""
    sound = (run for run in runs if run.scope in ("pipeline", "registry") and not run.refuted)
    return next((run for run in sound if run.certificates and not run.labelled), None)


def _doubt(runs: Sequence[Run], trusted: Run | None) -> Sentence:
    wrong = next((run for run in runs if run.refuted), None)
    if wrong is not None:
        text = f"Do not trust {wrong.label}: {wrong.refuted}, so something in it is wrong."
        return Sentence("What not to trust", text)
    frozen = [run for run in runs if run.scope == "frozen"]
    if frozen:
        run = max(frozen, key=lambda run: np.nan_to_num(average_radius(run.columns), nan=-1.0))
        return Sentence("What not to trust", _frozen(run, trusted))
    unknown = [run.label for run in runs if run.scope == "unknown"]
    if unknown:
        text = (
            f"Which classifier the numbers of {_and(unknown)} are guaranteed for was never stated: do not rely on them."
        )
        return Sentence("What not to trust", text)
    return Sentence("What an attack did", _attacked(runs))


def _frozen(run: Run, trusted: Run | None) -> str:
    size = typical_size(run)
    numbers = f"{floor_percent(clean_accuracy(run.columns))} % right" if run.labelled else run.unlabelled
    if size > 0:
        numbers += f", {floor_percent(float(certified_accuracy(run.columns, size)))} % up to {size:g}"
    other = (
        trusted if trusted is not None and trusted.kind == run.kind and same_inputs(trusted.data, run.data) else None
    )
    bigger = (
        other is not None
        and not stopped_in_words(other.config)
        and average_radius(run.columns) > average_radius(other.columns)
    )
    which = "larger numbers" if bigger else "numbers"
    audit = run.audit
    if audit is not None and "live" in audit.broken:
        count = f"{audit.broken['live']} of {run.attacked('live')}"
        found = f"attacked as it would be used, {count} certificates broke"
    else:
        found = f"this use was not attacked here (ucan audit {run.folder} does)"
    return (
        f"Do not rely on {run.label}, whatever its {which} ({numbers}): they hold only while the noise stays frozen as "
        f"computed at each clean input, not for a classifier that computes it anew from what it is given; {found}."
    )


def _attacked(runs: Sequence[Run]) -> str:
    audits = [run for run in runs if run.audit is not None and run.audit.attacked]
    if not audits:
        return "These guarantees were not attacked here; ucan audit RUN attacks them inside their certified regions."
    broken, attacked = (sum(counts) for counts in zip(*(run.covered for run in audits), strict=True))
    names = _and([run.label for run in audits])
    if broken:
        return f"An attack with full knowledge broke {broken} of {attacked} certificates of {names}, within chance."
    return (
        f"An attack with full knowledge tried {attacked} certificates of {names} inside their own regions and broke "
        "none, as the proof says; the attack itself proves nothing."
    )


def _certainty(runs: Sequence[Run], trusted: Run | None) -> Sentence:
    heading = "How sure that is"
    run = trusted or _claiming(runs) or runs[0]
    alpha = (
        "with a probability that was not stated"
        if run.alpha is None
        else f"with probability at most {ceil_significant(run.alpha)}"
    )
    text = f"Each single guarantee is false {alpha} and ends at the edge of its region"
    if trusted is None or not _is_sample(run):
        return Sentence(heading, f"{text}.")
    size = typical_size(run)
    low, high = certified_band(run.columns, size)
    return Sentence(
        heading,
        f"{text}; and since {run.labelled:,} inputs are a sample, the share for {run.label} at {size:g} would lie between "
        f"{floor_percent(float(low), 0)} and {ceil_percent(float(high), 0)} % on all inputs of this kind (95 % "
        "confidence).",
    )


def _is_sample(run: Run) -> bool:
    """Whether the rows can be treated as independent: not those of a registry, nor the first of data sorted by class."""
    labels, answers = run.columns["label"], run.columns["prediction"]
    lacking = len(np.unique(labels[labels >= 0])) <= max(labels.max(), answers.max())
    is_sorted = len(labels) > 1 and labels[0] >= 0 and bool((np.diff(labels) >= 0).all())
    return run.scope != "registry" and not (lacking and is_sorted)


def _within(run: Run, size: float | None = None) -> str:
    """The changes that are covered: up to a size, or up to the size of each certificate."""
    if run.budget is None:
        return f"of {_length(run)} below {'its radius' if size is None else f'{size:g}'}"
    limit = run.config.claim.budget
    below = f"less than {'its ε' if size is None else f'{size:g}'}"
    if isinstance(limit, int | float):  # one number for every coordinate
        return f"of {below}{'' if limit == 1 else f' times {floor_plain(limit)}'} in each coordinate{_units(run)}"
    return f"within {below} times the budget{_units(run)}"


def _length(run: Run) -> str:
    norm = "length" if run.norm is None else f"{norm_name(run.norm)} length"
    return f"{norm}{_units(run)}"


def _units(run: Run) -> str:
    data = run.config.data
    source = data.source or ".npz"  # the units of an array or of an imported file are unknown
    pixels = not source.endswith((".npz", ".npy")) and not data.columns and data.unit is None
    units = ["pixels run from 0 to 1"] if pixels else []
    units += ["each column in units of its σ"] if run.in_units else [f"in {data.unit}"] if data.unit else []
    step = step_name(run.config.sampling.arithmetic)
    units += ["in whole steps of each"] if step == OWN_STEPS else [f"in steps of {step}"] if step else []
    return f" ({', '.join(units)})" if units else ""


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
