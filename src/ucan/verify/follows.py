"""Whether a certificate's numbers follow: its probabilities from its votes, its sizes from its probabilities."""

from __future__ import annotations

import math

import torch

from ucan.arithmetic import ROUNDED_DOWN
from ucan.certificate import Certificate
from ucan.choices import norm_name
from ucan.errors import UcanError
from ucan.evidence import Evidence
from ucan.named_bounds import BY_NAME
from ucan.plan import CertifyPlan
from ucan.region import Region
from ucan.rounding import ceil_digits, floor_digits, floor_significant
from ucan.seating import EXACT
from ucan.sizes import alm_of
from ucan.smoothed import SmoothedClassifier
from ucan.stop_option import parse_stop
from ucan.verify.verdict import FOLLOWS, IS, SLACK, Check
from ucan.votes import Stream


def follow_checks(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether the region follows from the claimed probabilities by g's own rule, and those from the counts."""
    evidence, p_a, p_b = certificate.evidence, certificate.p_lower, certificate.p_upper
    behind = votes_behind(evidence)
    most, rival = claimable(certificate)
    tau = 0.0 if evidence.bound == EXACT else g.arithmetic_error(g.M.at(x), x)
    most, rival = most - tau, None if rival is None else rival + tau
    shown = f"p = {floor_digits(p_a, 6)}" + ("" if p_b is None else f" and {ceil_digits(p_b, 6)} for every other class")
    return (
        _region_check(certificate, g, x, shown),
        *_budget_check(certificate, g, x, shown),
        *(check for each in behind for check in _thresholds_check(certificate, each, g, x)),
        *(check for each in behind for check in _uniform_check(each)),
        *(check for each in behind for check in _pairs_check(each, certificate.prediction)),
        *(_counted_before(each, g) for each in behind[1:] if each.bound == EXACT),
        _class_check(behind[-1], certificate.prediction),
        Check.worded(
            "bound",
            shown,
            p_a <= most * SLACK and (p_b is None or (rival is not None and p_b * SLACK >= rival)),
            FOLLOWS,
            f"from the counts by the {evidence.bound} bound at alpha = {evidence.alpha:g}",
        ),
    )


def _uniform_check(evidence: Evidence) -> tuple[Check, ...]:
    """Whether the uniform number of a randomised bound follows from the seed; of a secret seed nobody can tell."""
    if evidence.bound != "randomised":
        return ()
    number = f"the uniform number {evidence.uniform:.6f} of the bound"
    if evidence.seed is None:
        return (Check("uniform", True, f"{number} is from a secret seed, so that it could be chosen", False),)
    key = Stream(
        evidence.seed, evidence.input_hash, "estimate"
    ).key  # of another phase there would be many to choose from
    own = evidence.phase == "estimate" and evidence.streams.get(evidence.phase) == key
    return (Check.worded("uniform", number, own, FOLLOWS, "from the stated seed"),)


def _counted_before(evidence: Evidence, g: SmoothedClassifier) -> Check:
    """Whether the votes of an earlier classifier can be all draws of the noise, as they are stated to be."""
    turns = g.M.turns(g.law)
    found = "cannot all be counted" if turns is None else f"are {turns:,}"
    return Check(
        "votes before",
        turns == evidence.n,
        f"{evidence.n:,} votes of an earlier classifier are stated to be all draws of the noise; these {found}",
    )


def _pairs_check(evidence: Evidence, answer: int) -> tuple[Check, ...]:
    """Whether lost votes went to other classes and gained ones to the class, which has them; no check without pairs."""
    pairs = evidence.pairs
    if pairs is None:
        return ()
    hits, gained = evidence.counts[answer], 0 if pairs.gained is None else pairs.gained
    told = f"{pairs.lost:,} votes in pairs lost and {gained:,} gained"
    fits = pairs.lost <= evidence.n - hits and gained <= hits
    among = f"among {evidence.n:,}, of which {hits:,} are for class {answer}"
    return (Check.worded("pairs", told, fits, ("can be", "cannot be"), among),)


def _class_check(evidence: Evidence, answer: int) -> Check:
    """Whether the class is the one that other votes chose, or all draws of the noise; version 0.1 did not keep them.

    The votes in pairs choose none: the evidence is that of the first of several classifiers.
    """
    votes = evidence.counts if evidence.bound == EXACT else evidence.selection
    if votes is None or not any(votes):
        return Check("class", True, f"the votes that chose class {answer} are missing", False)
    told = f"class {answer}, with {votes[answer]:,} of the {sum(votes):,} votes that chose it,"
    return Check.worded("class", told, votes[answer] == max(votes), IS, "the one with most of them")


def _thresholds_check(
    certificate: Certificate, evidence: Evidence, g: SmoothedClassifier, x: torch.Tensor
) -> tuple[Check, ...]:
    """Whether the thresholds of a rule about radii follow from g's noise; no check if there are none."""
    if not evidence.thresholds:
        return ()
    try:
        stop = parse_stop(evidence.stop)
        radius = g.sizes.decided(g.M.at(x), x, CertifyPlan(norm=certificate.radius_norm, budget=certificate.budget))
        expected = () if stop is None else stop.thresholds(radius)
    except UcanError as error:
        return (Check("thresholds", False, f"the rule {evidence.stop!r} has no thresholds here: {error}"),)
    same = len(expected) == len(evidence.thresholds) and all(
        math.isclose(a, b, rel_tol=1e-9) for a, b in zip(expected, evidence.thresholds, strict=True)
    )
    return (
        Check.worded(
            "thresholds", "the probabilities asked for", same, ("follow", "do not follow"), f"from {evidence.stop}"
        ),
    )


def _region_check(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, shown: str) -> Check:
    """Whether g, at these probabilities, certifies a region of this norm that is at least as large."""
    region, p_a, p_b = certificate.region, certificate.p_lower, certificate.p_upper
    norm = certificate.radius_norm
    try:
        g.M.check_claim(g.law, norm)
        expected = g.M.at(x).region(g.law, p_a, norm, x, p_b)
        most = expected.radius
        if g.grid is not None:
            most = max(0.0, most * ROUNDED_DOWN - g.grid.payment(expected, x))
        alm = alm_of(Region.sharing(expected.scale, most, expected.norm, expected.shape), g.law, p_a, p_b, norm)
    except UcanError as error:
        return Check("radius", False, f"this noise certifies no such region: {error}")
    if region.norm != expected.norm:
        kinds = f"an {norm_name(region.norm)} region, but this noise gives {norm_name(expected.norm)} regions"
        return Check("radius", False, f"the certificate claims {kinds} against {norm_name(norm)}")
    return Check.worded(
        "radius",
        f"the region's radius {floor_significant(region.radius)}",
        region.radius <= most * SLACK
        and certificate.alm <= alm * SLACK
        # Σ is compared with some tolerance, which must not make a radius larger.
        and certificate.radius
        <= Region.sharing(expected.scale, region.radius, expected.norm, region.shape).inscribed_radius(norm) * SLACK,
        FOLLOWS,
        f"from {shown} ({floor_significant(most)})",
    )


def _budget_check(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, shown: str) -> tuple[Check, ...]:
    """Whether g, at these probabilities, certifies the claimed factor of the budget; no check if there is no budget."""
    budget, claimed, p_a, p_b = (
        certificate.budget,
        certificate.budget_factor,
        certificate.p_lower,
        certificate.p_upper,
    )
    if budget is None or claimed is None:
        return ()
    norm, held = certificate.radius_norm, g.M.at(x)
    try:
        region = g.sizes.region(held, x, p_a, p_b, norm)
        most = 0.0 if region is None else g.sizes.budget_factor(held, x, p_a, p_b, budget, region)
    except UcanError as error:
        return (Check("budget", False, f"this noise certifies nothing within this budget: {error}"),)
    return (
        Check.worded(
            "budget",
            f"the budget's factor {floor_significant(claimed)}",
            claimed <= most * SLACK,
            FOLLOWS,
            f"from {shown} ({floor_significant(most)})",
        ),
    )


def claimable(certificate: Certificate) -> tuple[float, float | None]:
    """The bounds on the class and on its runner-up that the counts allow, by the bound that the evidence names."""
    bound = BY_NAME.get(certificate.evidence.bound)
    if bound is None:  # an unknown bound allows nothing
        return 0.0, None
    return bound.probabilities(certificate.evidence.ballot(certificate.prediction))


def votes_behind(evidence: Evidence) -> list[Evidence]:
    """The evidence, and that of the earlier classifiers whose votes the claim rests on."""
    earlier = [] if evidence.pairs is None else votes_behind(evidence.pairs.before)
    return [evidence, *earlier]
