"""The gallery of a run: chosen inputs with their noise, their votes and their certificate in words.

Everything comes from the run's own records; the inputs themselves from its data, checked against the certificate's
hash. The classifier is never run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ucan.audit import Attempt, load_break
from ucan.audit.ledger import break_path
from ucan.certificate import Abstention, Certificate, Level
from ucan.data import Labelled
from ucan.data.tables import Table
from ucan.errors import InvalidInput, UcanError
from ucan.evidence import Evidence
from ucan.laws import norm_name
from ucan.report import pictures
from ucan.report.noise import Noise, NoiseAt
from ucan.report.runs import Run
from ucan.report.slices import Slice, cut
from ucan.results.formats import class_name
from ucan.results.metrics import labelled
from ucan.rounding import ceil_significant, floor_digits, floor_significant
from ucan.runs.audited import AUDIT
from ucan.runs.rebuild import inputs_of
from ucan.runs.router import is_router
from ucan.tabular import row_answer


@dataclass(frozen=True)
class Panel:
    """A picture with what it shows, and the numbers behind its colours."""

    name: str
    note: str
    uri: str


@dataclass(frozen=True)
class Exhibit:
    """One input of the gallery: why it was chosen, what was certified, and its pictures.

    ``voted`` are the names of what the votes are for: the classes, where they have names.
    """

    why: str
    idx: int
    truth: int
    answer: int | None
    counts: tuple[int, ...]
    words: tuple[str, ...]
    panels: tuple[Panel, ...]
    name: str = ""
    label: str = ""
    voted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Typical:
    """The certificate of median radius among those not known to be wrong, and the slice through its region.

    There is no slice for a table, and none where ``cut`` has none.
    """

    idx: int
    certificate: Certificate
    slice: Slice | None


@dataclass(frozen=True)
class Gallery:
    """What is shown of a run; ``missing`` says what could not be shown, and why."""

    exhibits: tuple[Exhibit, ...] = ()
    typical: Typical | None = None
    missing: tuple[str, ...] = ()


def chosen(run: Run) -> dict[int, str]:
    """The inputs to show, by number, with the reason: broken, best, worst, wrong, abstained; each at most once."""
    c = run.columns
    idx, radius = c["idx"], c["radius"]
    claimed = ~c["abstained"] & (radius > 0)
    wrong = claimed & ~c["correct"] & labelled(c)
    right = claimed & ~wrong  # or without a label
    picks: list[tuple[str, int]] = []
    broken = worst_break(run)
    if broken is not None:
        picks.append(("broken by the audit", broken.idx))
    if right.any():
        picks.append(("largest radius", int(idx[right][np.argmax(radius[right])])))
        picks.append(("smallest radius", int(idx[right][np.argmin(radius[right])])))
    if wrong.any():
        picks.append(("certified, but wrong", int(idx[wrong][np.argmax(radius[wrong])])))
    if c["abstained"].any():
        picks.append(("abstained", int(idx[c["abstained"]][0])))
    reasons: dict[int, str] = {}
    for why, number in picks:
        reasons.setdefault(number, why)
    return reasons


def worst_break(run: Run) -> Attempt | None:
    """The break inside the smallest share of its region; on the live pipeline rather than on the frozen one."""
    breaks = [a for a in run.attempts if a.broken and a.same_as is None]
    return min(breaks, key=lambda a: (a.mode != "live", a.size, a.hits), default=None)


def exhibit_run(run: Run, datasets: dict[Any, Labelled | str], trust: bool = False) -> Gallery:
    """The gallery of one run. ``datasets`` keeps what was loaded (or why it was not) for the runs that follow.

    With ``trust`` the run's data and its trained noise are loaded by code that whoever made the run has chosen.
    """
    if run.config.is_imported:
        return Gallery(missing=("These results were imported: there are no certificates to look into.",))
    missing: list[str] = []
    exhibits = []
    typical = _typical(run, missing)
    dataset = _dataset(run, datasets, missing, trust)
    noise = Noise(run, None if typical is None else typical.certificate, missing, trust)
    for number, why in chosen(run).items():
        try:
            exhibits.append(_exhibit(run, number, why, dataset, noise, missing))
        except UcanError as error:
            missing.append(f"Input {number} cannot be shown: {error}")
    return Gallery(tuple(exhibits), typical, tuple(dict.fromkeys(missing)))


def in_words(outcome: Certificate | Abstention, truth: int, names: Sequence[str] = ()) -> list[str]:
    """What was certified, in sentences, with the classes' names if they have any; every number is rounded down."""
    if isinstance(outcome, Abstention):
        return [f"No claim: {outcome.reason_with(names).rstrip('.')}."]
    evidence, answer, norm = outcome.evidence, outcome.prediction, outcome.norm
    called, label = (class_name(number, names) or str(number) for number in (answer, truth))
    called = f"class {called}" if called.isdigit() else called
    verdict = "" if truth < 0 else ", which is right" if answer == truth else f", but the label is {label}"
    length = "length" if norm is None else f"{norm_name(norm)} length"
    within = (
        f"of {length} below {floor_significant(outcome.radius, 3)}"
        if outcome.budget_factor is None
        else f"within less than {floor_significant(outcome.budget_factor, 3)} times the budget"
    )
    condition = {"pipeline": ".", "registry": ", as long as the registry is kept."}
    return [
        f"The answer is {called}{verdict}.",
        f"No change {within} can alter it"
        + condition.get(outcome.scope, ", **if the noise stays as it was computed at this input**."),
        f"{called[0].upper()}{called[1:]} got {_votes_in_words(evidence, answer)}, so its probability is at least "
        f"{floor_digits(outcome.p_lower, 3)}, except with probability {ceil_significant(evidence.alpha)}.",
        *_choice_in_words(outcome.choice),
    ]


def _choice_in_words(choice: Certificate | Level | None) -> list[str]:
    """Of a router: which expert was chosen, and how surely; no sentence of a single classifier."""
    if choice is None:
        return []
    alpha, radius = ceil_significant(choice.evidence.alpha), floor_significant(choice.radius, 3)
    if isinstance(choice, Level):
        who = "this class has" if choice.above else "no other class has"
        return [
            f"A router of two experts gives this answer, since {who} more than {choice.threshold!r} under the noise of "
            f"expert {choice.of}, except with probability {alpha}; that stays so within a radius of {radius}."
        ]
    expert = choice.prediction
    return [
        f"A router chose expert {expert}, with {_votes_in_words(choice.evidence, expert)}, except with probability "
        f"{alpha}; the choice stays within a radius of {radius}."
    ]


def _votes_in_words(evidence: Evidence, answer: int) -> str:
    """The votes that a bound follows from; of votes in pairs, those of the classifier that was there before, too."""
    pairs, n = evidence.pairs, f"{evidence.n:,}"
    if pairs is None:
        return f"{evidence.counts[answer]:,} of {n} votes"
    before = pairs.before
    return (
        f"{before.counts[answer]:,} of {before.n:,} votes of the earlier classifier, and this classifier lost "
        f"{pairs.lost:,} of {n} votes on the same noise"
    )


def _exhibit(run: Run, number: int, why: str, dataset: Labelled | None, noise: Noise, missing: list[str]) -> Exhibit:
    outcome = run.outcome(number)  # refused unless its numbers follow from each other: a page shows nothing else
    evidence, certified = outcome.evidence, isinstance(outcome, Certificate)
    truth = run.label_of(number)
    classes = run.config.model.class_names
    of_experts = is_router(run.config.model.spec) and not certified and outcome.choice is None
    voted = () if of_experts else classes
    said = in_words(outcome, truth, voted)
    if of_experts:
        said.append("The votes are those of the choice, among the experts.")
    if isinstance(dataset, Table) and certified and run.in_units:
        found_reach = row_answer(dataset.for_model(None, classes), number, outcome).reach
        said[1] = said[1] if found_reach is None else found_reach.words()
    panels: list[Panel] = []
    x = None if dataset is None else _input(dataset, number, missing)
    if x is not None and not evidence.is_about(x):
        if run.scope == "registry":  # the answer is that of an input enrolled before
            said.append(
                "It lies in the region of an input that was enrolled before; these are the votes of that input."
            )
        else:
            missing.append(f"Input {number} has no pictures: the data are no longer those that were certified.")
            x = None
    if x is not None and pictures.is_picture(tuple(x.shape[1:])):
        panels.append(Panel("input", "", pictures.as_picture(x[0])))
        found = noise.at(x, number, evidence.law)
        panels += [] if found is None else _noise_panels(found)
    attempt = worst_break(run)
    if attempt is not None and attempt.idx == number:
        said.append(_break_in_words(attempt, getattr(outcome, "p_upper", None) is not None))
        panels += _break_panels(run, attempt)
    name = run.names.get(number) or (
        dataset.name_of(number) if dataset is not None and dataset.names is not None else ""
    )
    label = class_name(truth, classes)
    return Exhibit(
        why, number, truth, outcome.prediction, evidence.counts, tuple(said), tuple(panels), name, label, voted
    )


def _noise_panels(noise: NoiseAt) -> list[Panel]:
    """μ, λσ, and one noisy copy; where the classifier is shown less than that, what it sees."""
    low, high = float(noise.offset.min()), float(noise.offset.max())
    note = "0 everywhere" if low == high == 0 else f"{_signed(low)} to {_signed(high)}"
    panels = [Panel("offset μ", note, pictures.as_map_around_0(noise.offset))]
    if noise.scale is not None:
        low, high = float(noise.scale.min()), float(noise.scale.max())
        note = f"{high:.3g} everywhere" if high - low < 1e-3 * high else f"{low:.3g} to {high:.3g}"
        panels.append(Panel("scale λσ", note, pictures.as_map(noise.scale, 0.0, high)))
    panels.append(Panel("a noisy copy", "", pictures.as_picture(noise.copy)))
    if noise.seen is not None:
        panels.append(Panel("what it looks at", "leading directions", pictures.as_picture(noise.seen)))
    return panels


def _typical(run: Run, missing: list[str]) -> Typical | None:
    c = run.columns
    right = (c["correct"] | ~labelled(c)) & ~c["abstained"] & (c["radius"] > 0)
    if not right.any():
        return None
    order = np.argsort(c["radius"][right], kind="stable")
    number = int(c["idx"][right][order[(len(order) - 1) // 2]])
    try:
        outcome = run.outcome(number)
    except UcanError as error:
        missing.append(f"The region of input {number} cannot be shown: {error}")
        return None
    if not isinstance(outcome, Certificate):
        return None
    # The columns of a table have different units: a plane of two of them has no scale, and a ball in it means nothing.
    return Typical(number, outcome, None if run.config.noise.sigma else cut(outcome))


def _dataset(run: Run, known: dict[Any, Labelled | str], missing: list[str], trust: bool) -> Labelled | None:
    key = replace(run.config.data, skip=None, fingerprint=None), run.config.model.class_names, run.base
    if key not in known:
        try:
            known[key] = inputs_of(run.config, base=run.base, trust=trust)
        except (UcanError, OSError) as error:
            known[key] = f"The pictures are not shown, since the data cannot be read: {error}"
    found = known[key]
    if isinstance(found, str):
        missing.append(found)
        return None
    # Under a registry a record may be about another input than its row, so only the data as a whole can be checked.
    if run.scope == "registry" and run.config.data.fingerprint not in (None, found.fingerprint()):
        missing.append("The pictures are not shown, since the data are no longer those that were certified.")
        return None
    return found


def _input(dataset: Labelled, number: int, missing: list[str]) -> torch.Tensor | None:
    """One input (1, *event) of the data."""
    try:
        if number >= len(dataset):
            raise InvalidInput(f"{dataset.name} has only {len(dataset)} inputs.")
        return dataset[number][0][None]
    except (UcanError, OSError) as error:
        missing.append(f"Input {number} has no pictures: {error}")
        return None


def _break_in_words(attempt: Attempt, pair: bool) -> str:
    """``pair``: the claim is about two classes, and only the votes for those were counted."""
    live = {"pipeline": "the pipeline", "registry": "the classifier with its memory"}
    where = live.get(attempt.scope, "the pipeline that computes its noise anew")
    if attempt.mode == "frozen" and attempt.scope != "pipeline":
        where = "the classifier with frozen noise"
    share = floor_digits(100 * attempt.size, 1)
    votes = f"{attempt.hits:,} of {attempt.total:,} votes{' for it or its rival' if pair else ''}"
    said = (
        f"answers class {attempt.answer}"
        if attempt.changed
        else f"no longer gives class {attempt.prediction} a majority"
    )
    return f"**The audit found a change at {share} % of the way to the region's edge after which {where} {said}**" + (
        "." if attempt.stateful else f": class {attempt.prediction} is left with {votes}."
    )


def _break_panels(run: Run, attempt: Attempt) -> list[Panel]:
    try:
        _, x, delta = load_break(break_path(run.folder / AUDIT, attempt.to_dict()))
    except UcanError:
        return []
    if not pictures.is_picture(tuple(x.shape[1:])):
        return []
    length = float(delta.double().norm())
    return [
        Panel("the change δ", f"ℓ2 length {length:.3g}", pictures.as_delta(delta[0])),
        Panel(
            "changed input",
            f"answer: {attempt.answer}" if attempt.changed else "no majority",
            pictures.as_picture((x.double() + delta)[0]),
        ),
    ]


def _signed(value: float) -> str:
    return f"{value:.2g}".replace("-", "−")
