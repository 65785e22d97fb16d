"""Whether votes that are drawn anew, or all of them counted again, contradict a certificate's probabilities."""

from __future__ import annotations

import torch
from torch import nn

from ucan.bounds import at_most_p_value
from ucan.certificate import Certificate
from ucan.choices import PRECISIONS
from ucan.errors import InvalidInput
from ucan.evidence import Evidence
from ucan.plan import random_seed
from ucan.rounding import ceil_digits, floor_digits
from ucan.smoothed import SmoothedClassifier, largest_other
from ucan.verify.same import own_precision
from ucan.verify.verdict import SLACK, Check
from ucan.votes import Votes

# The least number of fresh votes, unless one is given: with few votes even a claim that is far too large is not rejected.
LEAST = 100
# The largest, unless one is given: what a file says of its votes must not decide how long its reader works.
MOST = 1_000_000
# The names of the checks that fresh votes make.
FRESH = ("votes", "runner-up")


def fresh_checks(certificate: Certificate, votes: Votes, n: int, alpha: float, tau: float = 0.0) -> tuple[Check, ...]:
    """Whether n fresh votes reject the claimed probabilities; true ones are rejected with probability at most α.

    A two-class claim has two parts, tested at α/2 each: the class has at least p_lower, and every other class has at most
    p_upper. The most voted of the others has the smallest p-value of them, so it may be selected on the same votes if that
    p-value is multiplied by the number of the others. The claims are about ideal noise; the noise of the votes may differ
    from it by ``tau`` in total variation.
    """
    c_A, p_a, p_b = certificate.prediction, certificate.p_lower, certificate.p_upper
    level, precision = alpha if p_b is None else alpha / 2, certificate.evidence.precision
    hits = int(votes.counts[c_A])
    surprise = at_most_p_value(hits, n, max(0.0, p_a - tau))
    own = tested(
        "votes",
        f"{hits:,} of {n:,} fresh votes in {precision} for class {c_A}; claimed: p of at least {floor_digits(p_a, 6)}",
        surprise,
        at_most_p_value(0, n, max(0.0, p_a - tau)),
        level,
    )
    if p_b is None:
        return (own,)
    others = votes.counts.clone()
    others[c_A] = -1
    rival, rivals = int(others.argmax()), len(others) - 1
    count = int(votes.counts[rival])
    surprise, least = (
        min(1.0, rivals * at_most_p_value(n - votes_of, n, max(0.0, 1 - p_b - tau))) for votes_of in (count, n)
    )
    runner_up = tested(
        "runner-up",
        f"{count:,} of {n:,} fresh votes in {precision} for class {rival}, the most of the others; claimed: p of at most "
        f"{ceil_digits(p_b, 6)} for each",
        surprise,
        least,
        level,
        f" over {rivals}",
    )
    return own, runner_up


def tested(name: str, detail: str, surprise: float, least: float, level: float, over: str = "") -> Check:
    """A check by a p-value, ``surprise``; it confirms nothing if even ``least``, that of the worst votes, is not rejected."""
    decides = least <= level
    told = f"{detail} (p-value {surprise:.3g}{over}, rejected if at most {level:g})"
    if not decides:
        told += "; no votes of this number could reject it: give a larger n"
    return Check(name, surprise > level, told, decides)


def counted_checks(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether all draws of g's noise, counted again, bear a claim that was made by counting them."""
    evidence, turns = certificate.evidence, g.M.turns(g.law)
    if turns is None or turns != evidence.n or len(evidence.counts) != g.f.num_classes:
        found = "cannot all be counted" if turns is None else f"are {turns:,}"
        return (
            Check("votes", False, f"{evidence.n:,} votes are stated to be all draws of the noise, but these {found}"),
        )
    with g.engine.running(evidence.backend):
        again = g.count_all(x, claimed_precision(certificate, g, x))
    hits, others = int(again.counts[certificate.prediction]), largest_other(again.counts, certificate.prediction)
    p_b = certificate.p_upper
    bears = certificate.p_lower <= hits / turns * SLACK and p_b is not None and p_b * SLACK >= others / turns
    told = (
        f"{hits:,} of all {turns:,} draws give class {certificate.prediction}, and {others:,} the most frequent other"
    )
    return (Check.worded("votes", told, bears, ("which bears", "which does not bear"), "the claim"),)


def claimed_precision(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> str | None:
    """The precision in which g's classifier is the one of the certificate; None: its own."""
    claimed, own = certificate.evidence.precision, own_precision(g, x)
    if claimed == own:
        return None
    if claimed not in PRECISIONS or not isinstance(g.f.model, nn.Module):
        raise InvalidInput(
            f"the certificate's classifier ran in {claimed}; this one runs in {own} and cannot be changed, so its votes "
            f"cannot test the claim: give the classifier in that precision."
        )
    return claimed


def fresh_number(n: int | None, *told: int) -> int:
    """The number of fresh samples: the one given, or as many as the claim has, from ``LEAST`` to ``MOST``."""
    return min(MOST, max(LEAST, *told)) if n is None else n


def fresh_seed(seed: int | None, evidence: Evidence, whose: str = "certificate") -> int:
    """The seed of fresh samples: a random one, or the one given, which must not be that of the evidence."""
    if seed is not None and seed == evidence.seed:
        raise InvalidInput(f"seed {seed} is the {whose}'s own: fresh samples need another one.")
    return random_seed() if seed is None else seed
