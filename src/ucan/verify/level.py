"""Whether a claim about a threshold (``ucan.certificate.Level``) stands for the expert that it is about."""

from __future__ import annotations

import torch

from ucan.bounds import at_most_p_value, majority_p_value
from ucan.certificate import Certificate, Level
from ucan.region import Region
from ucan.rounding import ceil_digits, floor_digits, floor_significant
from ucan.smoothed import SmoothedClassifier, largest_other
from ucan.threshold import Threshold, level_bound, level_region
from ucan.verify.fresh import claimed_precision, fresh_number, fresh_seed, tested
from ucan.verify.same import same_checks
from ucan.verify.scope import concluded, scope_check
from ucan.verify.verdict import FOLLOWS, IS, SLACK, Check, Verdict
from ucan.votes import Votes


def verify_level(
    level: Level, rule: Threshold, g: SmoothedClassifier, x: torch.Tensor, n: int | None, alpha: float, seed: int | None
) -> Verdict:
    """Whether a claim about a threshold stands for this rule and for g, the expert that the claim is about."""
    seed, n = fresh_seed(seed, level.evidence), fresh_number(n, level.evidence.n)
    x = g.as_certified(x)
    held, evidence = g.M.at(x), level.evidence
    # For the checks that do not look at p: 1 stands for it.
    like = Certificate(level.norm, level.scope, evidence, level.top, 1.0, None, level.region, 0.0, held(x)[0].cpu())
    tau = g.arithmetic_error(held, x)
    scope, _ = scope_check(like, g, x, None)
    mine = rule.level_of(level.of)
    # Where expert 1 has a veto, that expert 0 is above its threshold says too little; and beside the veto there is τ.
    asked = mine == level.threshold and (not level.above or level.of == (1 if rule.veto else 0))
    asked = asked and level.floor == rule.floor_of(level)
    checks: tuple[Check, ...] = (
        scope,
        *same_checks(like, g, x),
        Check.worded("threshold", f"{mine:g} of expert {level.of}", asked, IS, "what the claim must be about"),
        _bound_check(level, tau),
        _region_check(level, g, x),
    )
    if len(evidence.counts) == g.f.num_classes:  # else the votes cannot be compared
        votes = g.votes(x, n, seed, "verify", claimed_precision(like, g, x))
        checks = (*checks, _votes_check(level, votes, n, alpha, tau))
    return concluded(checks, like, g, x, n, alpha)


def floor_check(answer: Certificate, level: Level, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether expert 0's class keeps more than the level's floor where it answers; no check where a level says that itself.

    That its class leads is too little: the rule asks for more than τ, which is at least 1/2.
    """
    if not level.allows:
        return ()
    x = g.as_certified(x)
    most = level_region(g, g.M.at(x), x, answer.p_lower, True, level.floor, answer.norm)
    fits = most is not None and answer.region.radius <= most.radius * SLACK and answer.region.norm == most.norm
    shown = f"that class {level.top} has more than {level.floor:g} within {floor_significant(answer.region.radius)}"
    return (Check.worded("answer floor", shown, fits, FOLLOWS, f"from p = {floor_digits(answer.p_lower, 6)}"),)


def _bound_check(level: Level, tau: float) -> Check:
    """Whether p follows from the counts."""
    evidence = level.evidence
    allowed = level_bound(evidence.counts, level.top, level.above, evidence.n, evidence.alpha, tau)
    fixed = evidence.bound == "binary" and evidence.ballot(level.top).fixed  # Clopper–Pearson holds for no other n
    enough = fixed and (level.p <= allowed * SLACK if level.above else level.p * SLACK >= allowed)
    from_counts = f"from the counts at alpha = {evidence.alpha / 2:g}"
    return Check.worded("bound", f"p = {_shown(level)}", enough, FOLLOWS, from_counts)


def _region_check(level: Level, g: SmoothedClassifier, x: torch.Tensor) -> Check:
    """Whether g's noise keeps a probability of p on its side of the threshold in a region that is at least as large."""
    region = level.region
    most = level_region(g, g.M.at(x), x, level.p, level.above, level.threshold, level.norm)
    fits = False
    if most is not None and region.radius <= most.radius * SLACK and region.norm == most.norm:
        # Σ is compared with some tolerance, which must not make a radius larger.
        own = Region.sharing(most.scale, region.radius, most.norm, region.shape)
        fits = level.radius <= own.inscribed_radius(level.norm) * SLACK
    shown = f"the region's radius {floor_significant(region.radius)}"
    return Check.worded("radius", shown, fits, FOLLOWS, "from p")


def _shown(level: Level) -> str:
    """The bound on p, rounded to its safe side."""
    return floor_digits(level.p, 6) if level.above else ceil_digits(level.p, 6)


def _votes_check(level: Level, votes: Votes, n: int, alpha: float, tau: float) -> Check:
    """Whether fresh votes reject the claimed p: of the class from below, or of the most voted other class from above."""
    if level.above:
        hits = int(votes.counts[level.top])
        surprise, least = (at_most_p_value(count, n, max(0.0, level.p - tau)) for count in (hits, 0))
    else:  # over all other classes
        hits = largest_other(votes.counts, level.top)
        surprise, least = (
            min(1.0, len(votes.counts) * majority_p_value(count, n, min(1.0, level.p + tau))) for count in (hits, n)
        )
    side = "at least" if level.above else "at most"
    claimed = f"{hits:,} of {n:,} fresh votes; claimed: p of {side} {_shown(level)}"
    return tested("votes", claimed, surprise, least, alpha)
