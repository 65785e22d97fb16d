"""Whether a claim about a threshold (``ucan.certificate.Level``) stands for the expert that it is about."""

from __future__ import annotations

import torch

from ucan.bounds import at_most_p_value, majority_p_value
from ucan.certificate import Certificate, Level
from ucan.plan import random_seed
from ucan.rounding import ceil_digits, floor_digits, floor_significant
from ucan.smoothed import SmoothedClassifier, largest_other
from ucan.threshold import Threshold, level_bound, level_region
from ucan.verify.fresh import LEAST, claimed_precision
from ucan.verify.same import same_checks
from ucan.verify.scope import scope_check
from ucan.verify.verdict import DEPLOYED, FOLLOWS, IS, SLACK, Check, Verdict
from ucan.votes import Votes


def verify_level(
    level: Level, rule: Threshold, g: SmoothedClassifier, x: torch.Tensor, n: int | None, alpha: float, seed: int | None
) -> Verdict:
    """Whether a claim about a threshold stands for this rule and for g, the expert that the claim is about."""
    n, x, evidence = max(LEAST, level.evidence.n) if n is None else n, x.to(g.f.device or x.device), level.evidence
    held = g.M.at(x)
    like = Certificate(level.norm, level.scope, evidence, level.top, 0.0, None, level.region, 0.0, held(x)[0].cpu())
    tau = g.arithmetic_error(held, x)
    allowed = level_bound(evidence.counts, level.top, level.above, evidence.n, evidence.alpha, tau)
    fixed = evidence.bound == "binary" and evidence.ballot(level.top).fixed  # Clopper–Pearson holds for no other n
    enough = fixed and (level.p <= allowed * SLACK if level.above else level.p * SLACK >= allowed)
    norm = 2 if level.norm is None else level.norm
    most = level_region(g, held, x, level.p, level.above, level.threshold, norm)
    fits = most is not None and level.region.radius <= most.radius * SLACK and level.region.norm == most.norm
    votes = g.votes(x, n, random_seed() if seed is None else seed, "verify", claimed_precision(like, g, x))
    scope, _ = scope_check(like, g, x, None)
    mine = rule.level_of(level.of)
    # Where expert 1 has a veto, that expert 0 is above its threshold says too little.
    asked = mine == level.threshold and (not level.above or level.of == (1 if rule.veto else 0))
    checks = (
        scope,
        *same_checks(like, g, x),
        Check.worded("threshold", f"{mine:g} of expert {level.of}", asked, IS, "what the claim must be about"),
        Check.worded(
            "bound", f"p = {_shown(level)}", enough, FOLLOWS, f"from the counts at alpha = {evidence.alpha / 2:g}"
        ),
        Check.worded(
            "radius", f"the region's radius {floor_significant(level.region.radius)}", fits, FOLLOWS, "from p"
        ),
        _level_votes(level, votes, n, alpha, tau),
    )
    stands = all(check.passed for check in checks)
    return Verdict(checks, n, alpha, DEPLOYED, level.scope if stands else None)


def _shown(level: Level) -> str:
    """The bound on p, rounded to its safe side."""
    return floor_digits(level.p, 6) if level.above else ceil_digits(level.p, 6)


def _level_votes(level: Level, votes: Votes, n: int, alpha: float, tau: float) -> Check:
    """Whether fresh votes reject the claimed p: of the class from below, or of the most voted other class from above."""
    if level.above:
        hits = int(votes.counts[level.top])
        surprise = at_most_p_value(hits, n, max(0.0, level.p - tau))
    else:  # over all other classes
        hits = largest_other(votes.counts, level.top)
        surprise = min(1.0, len(votes.counts) * majority_p_value(hits, n, min(1.0, level.p + tau)))
    side = "at least" if level.above else "at most"
    return Check(
        "votes",
        surprise > alpha,
        f"{hits:,} of {n:,} fresh votes; claimed: p of {side} {_shown(level)} (p-value {surprise:.3g}, rejected if at most "
        f"{alpha:g})",
    )
