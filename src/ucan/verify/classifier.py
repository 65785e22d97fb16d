"""Whether a certificate stands for one smoothed classifier: all checks, one after another."""

from __future__ import annotations

import torch

from ucan.certificate import Certificate
from ucan.errors import InvalidInput
from ucan.registry import Registry
from ucan.seating import EXACT
from ucan.smoothed import SmoothedClassifier
from ucan.verify.follows import follow_checks, votes_behind
from ucan.verify.fresh import claimed_precision, counted_checks, fresh_checks, fresh_number, fresh_seed
from ucan.verify.same import same_checks
from ucan.verify.scope import concluded, scope_check
from ucan.verify.verdict import Verdict


def verify_classifier(
    certificate: Certificate,
    g: SmoothedClassifier,
    x: torch.Tensor,
    n: int | None,
    alpha: float,
    seed: int | None,
    registry: Registry | None = None,
) -> Verdict:
    """Check a certificate about input x (1, *event) against g; ``ucan.verify.verify`` says what is checked."""
    if certificate.choice is not None:
        raise InvalidInput("this certificate is a router's: give the router that is deployed.")
    seed = fresh_seed(seed, certificate.evidence)
    scope, x = scope_check(certificate, g, g.as_certified(x), registry)
    n = fresh_number(n, *(one.n for one in votes_behind(certificate.evidence)))
    same, follows = same_checks(certificate, g, x), follow_checks(certificate, g, x)
    checks = (scope, *same, *follows)
    if certificate.evidence.bound == EXACT:
        checks = (*checks, *counted_checks(certificate, g, x))
    elif len(certificate.evidence.counts) == g.f.num_classes:  # else the votes cannot be compared
        votes = g.votes(x, n, seed, "verify", claimed_precision(certificate, g, x))
        checks = (*checks, *fresh_checks(certificate, votes, n, alpha, g.arithmetic_error(g.M.at(x), x)))
    return concluded(checks, certificate, g, x, n, alpha)
