"""Verify an answer to another question than one class: compare it with what is deployed, and test it with fresh samples."""

from __future__ import annotations

import torch

from ucan.bounds import check_alpha
from ucan.errors import InvalidInput, UcanError
from ucan.held import held_of
from ucan.questions.looks import Look, looks_of
from ucan.questions.record import SLACK, Answer
from ucan.questions.regression import range_in_words
from ucan.questions.shift import Shift
from ucan.questions.smoothed import Smoothed
from ucan.region import Region
from ucan.replay_answer import replayed
from ucan.scales import as_scale
from ucan.scales.base import same_map
from ucan.sidecar import batch_hash
from ucan.verify import Check, Verdict
from ucan.verify.fresh import fresh_number, fresh_seed
from ucan.verify.same import held_check, of_a_copy
from ucan.votes import block_size

# Σ may differ by this share from the one that was certified.
TOLERANCE = 1e-5
RANGE = "range"
NEEDED = (RANGE, "model", "votes")  # what must be confirmed for a scope to be


def verify_answer(
    answer: Answer,
    g: Smoothed,
    x: torch.Tensor,
    n: int | None = None,
    alpha: float = 0.001,
    seed: int | None = None,
    replay: bool = True,
    data_hash: str | None = None,
    range: tuple[float, float] | None = None,
) -> Verdict:
    """Check whether an answer about input x (1, *event) stands for g, the deployed model under its noise.

    Input, model, law, noise, Σ and arithmetic must be g's, and n fresh samples (as many as its own, from 100 to 1,000,000)
    must not reject what the claim says of the input itself; a true claim is rejected with probability at most α. With
    ``replay`` its own noise is drawn again as well, and must lead to the same claim; with a secret seed there is no such check,
    and on another kind of device or release of PyTorch that check confirms nothing.
    A seed that is stated to be derived must follow; ``data_hash`` is that of the data set that x is from.

    Nothing is confirmed of an answer about a copy in another precision than g's, nor of an interval that rests on the range
    which its record states for the outputs; unless ``range``, what the outputs of g are at least and at most, lies in it.
    """
    check_alpha(alpha)
    evidence = answer.evidence
    seed = fresh_seed(seed, evidence, "answer")
    if tuple(x.shape[1:]) != answer.region.shape:
        raise InvalidInput(f"the answer is about inputs of shape {answer.region.shape}, not {tuple(x.shape[1:])}.")
    x = g.as_certified(x)
    n = fresh_number(n, evidence.n)
    checks = [
        *_same(answer, g, x),
        *_named(answer),
        *_looks(answer),
        *_derived(answer, g, x, data_hash),
        *_assumed(answer, range),
    ]
    if all(check.passed for check in checks):
        checks.append(_follows(answer, g, x))
    tested = False  # where its numbers do not fit together, nobody can say what could reject it
    if all(check.passed for check in checks):
        precision = evidence.precision if evidence.copy else None
        (kept,) = g.kept(x, n, seed, "verify", precision)
        surprise = answer.p_value(kept, "here")
        told = f"{n:,} fresh samples (p-value {surprise:.3g}, rejected if at most {alpha:g})"
        tested = answer.least_p_value(n) <= alpha
        if not tested:
            told += ", too few to reject anything"
        checks.append(Check("votes", surprise > alpha, told, tested))
        if replay:
            checks += replayed(answer, g, x)
    stands = all(check.passed for check in checks)
    known = not of_a_copy(answer.evidence, g, x) and all(check.confirmed for check in checks if check.name in NEEDED)
    return Verdict(tuple(checks), n, alpha, confirms=answer.scope if stands and known else None, tested=tested)


def _same(answer: Answer, g: Smoothed, x: torch.Tensor) -> list[Check]:
    """Whether input, model, law, noise, Σ, scope and arithmetic are g's."""
    evidence = answer.evidence
    right = evidence.is_about(x)
    noise = evidence.noise.differences(g.M.record())
    if not noise:
        try:
            sample = g.M.at(x).region(g.law, 0.75, answer.radius_norm, x)
            if not same_map(answer.region.scale.to("cpu"), as_scale(sample.scale).to("cpu"), x.shape[1:], TOLERANCE):
                noise = ["Σ at this input differs"]
            elif sample.norm != answer.region.norm:
                noise = ["its regions have another norm"]
        except UcanError as error:
            noise = [str(error)]
    arithmetic, precision = g.engine.arithmetic(x), []
    if of_a_copy(answer.evidence, g, x):
        told = f"about a copy in {evidence.precision}, not about the model that is deployed"
        precision.append(Check("precision", evidence.copy, told))
    claimed, mine = evidence.identity, g.engine.identity()
    return [
        Check("input", right, "this is the input that was certified" if right else "this is another input"),
        _model(claimed, mine),
        *held_check(evidence.held, held_of(g.f.model)),
        *precision,
        Check("law", evidence.law == g.law, f"the law here is {g.law}, in the answer {evidence.law}"),
        Check("noise", not noise, "; ".join(noise) or "kind, settings, weights and Σ are the answer's"),
        Check("scope", answer.scope == g.M.scope, f"the scope here is {g.M.scope}, in the answer {answer.scope}"),
        Check("arithmetic", arithmetic == evidence.arithmetic, f"{arithmetic} here, {evidence.arithmetic} claimed"),
    ]


def _model(claimed: str | None, mine: str | None) -> Check:
    """Whether the model is the certified one; one without an identity never matches."""
    if claimed is None and mine is None:
        return Check("model", True, "neither the answer nor this classifier identifies its model", False)
    same = claimed == mine
    return Check("model", same, "the model is the certified one" if same else "it is another model")


def _assumed(answer: Answer, own: tuple[float, float] | None) -> list[Check]:
    """Whether the range that the claim rests on holds of the outputs, by what the verifier says of them; no check if none."""
    if answer.assumed is None:
        return []
    rests = f"rests on the stated range of the outputs, {range_in_words(answer.assumed)}"
    if own is None:
        return [Check(RANGE, True, f"{rests}, which was not checked", False)]
    low, high = answer.assumed
    holds = (low is None or low <= own[0]) and (high is None or own[1] <= high)
    given = f"the given one, {range_in_words(own)}"
    return [Check(RANGE, holds, f"{rests}, which {'covers' if holds else 'does not cover'} {given}")]


def _derived(answer: Answer, g: Smoothed, x: torch.Tensor, data_hash: str | None) -> list[Check]:
    """Whether a seed that is stated to be derived is, and its blocks are the usual ones; no check of another seed."""
    evidence, usual = answer.evidence, block_size(x.numel())
    if evidence.data_hash is None:
        return []
    if evidence.block != usual:
        told = f"its noise is drawn in blocks of {evidence.block:,} copies, and that of a derived seed in blocks of {usual}"
        return [Check("seed", False, told)]
    if g.engine.derived_seed(evidence.data_hash) != evidence.seed:
        return [Check("seed", False, "it is stated to follow from model, noise and data, and does not")]
    known = evidence.data_hash in (data_hash, batch_hash([x]))
    told = "" if known else "; that the data are those with the stated hash is not checked"
    return [Check("seed", True, f"it follows from model, noise and data{told}", known)]


def _named(answer: Answer) -> list[Check]:
    """Whether the bound that evidence names is one that gives such an answer; no check if it is."""
    stated = answer.evidence.bound.partition(", look ")[0]
    if stated == answer.bound:
        return []
    return [Check("bound", False, f"it is said to be {stated!r}, and such an answer follows by {answer.bound!r}")]


def _looks(answer: Answer) -> list[Check]:
    """Whether the answers were looked at as the rule has it, and the bound's name says so; no check without a rule."""
    evidence = answer.evidence
    if (
        " look " not in evidence.bound
        and evidence.stop is None
        and not evidence.looks
        and evidence.cap in (None, evidence.n)
    ):
        return []
    same = evidence.stop is not None and evidence.cap is not None and evidence.looks == looks_of(evidence.cap)
    same = same and evidence.bound.endswith(Look.suffix(evidence.n, evidence.looks))
    told = "those of the rule" if same else "not those of the rule"
    return [Check("looks", same, f"the numbers of answers at which they were looked at are {told}")]


def _reaches(answer: Answer, own: Region) -> bool:
    """Whether the deployed Σ gives as much: it is compared with some tolerance, which must not make a radius larger."""
    factor = answer.budget_factor
    within = answer.budget is None or factor is None or factor <= own.budget_factor(answer.budget) * (1 + SLACK)
    return within and answer.radius <= own.inscribed_radius(answer.norm) * (1 + SLACK)


def _follows(answer: Answer, g: Smoothed, x: torch.Tensor) -> Check:
    """Whether the claim follows: its bounds from the counts that the evidence has, its radii from its bounds."""
    evidence = answer.evidence
    try:
        shift = Shift.at(g.M.at(x), x, g.sizes, answer.radius_norm)
        if abs(answer.tau - shift.tau) > SLACK * shift.tau:
            return Check(
                "claim", False, f"the arithmetic costs {shift.tau:.3g} here, and {answer.tau:.3g} in the answer"
            )
        bounded = answer.bounded(Look.at(evidence.n, evidence.looks, evidence.alpha))
        follows = bounded and answer.follows(shift) and _reaches(answer, shift.region(answer.region.radius))
    # Lists of other lengths, classes that are none.
    except (UcanError, IndexError, ValueError, RuntimeError, TypeError) as error:
        return Check("claim", False, f"the answer's numbers do not fit together: {error}")
    about = "its bounds do not follow from its votes" if not bounded else "its radii do not follow from its bounds"
    told = "its bounds and radii follow"
    if not answer.complete:
        told = (
            "its radii follow from its bounds; the bounds are not checked, since the file was written without its votes"
        )
    return Check("claim", follows, told if follows else about)
