"""Whether a certificate stands for one smoothed classifier: all checks, one after another."""

from __future__ import annotations

import torch

from ucan.certificate import Certificate
from ucan.errors import InvalidInput
from ucan.plan import random_seed
from ucan.registry import Registry
from ucan.smoothed import EXACT, SmoothedClassifier
from ucan.verify.follows import follow_checks, votes_behind
from ucan.verify.fresh import LEAST, claimed_precision, counted_checks, fresh_checks
from ucan.verify.same import of_a_copy, same_checks
from ucan.verify.scope import scope_check
from ucan.verify.stated import Stated
from ucan.verify.verdict import DEPLOYED, STATED, Verdict


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
    if seed is not None and seed == certificate.evidence.seed:
        raise InvalidInput(f"seed {seed} is the certificate's own: fresh samples need another one.")
    seed = random_seed() if seed is None else seed
    shape = certificate.region.shape
    if tuple(x.shape[1:]) != shape:
        raise InvalidInput(
            f"the certificate is about inputs of shape {shape}, but this one has shape {tuple(x.shape[1:])}."
        )
    stated = isinstance(g.M, Stated)
    scope, x = scope_check(certificate, g, x, registry)
    n = max(LEAST, *(one.n for one in votes_behind(certificate.evidence))) if n is None else n
    x = x.to(g.f.device or x.device)
    same, follows = same_checks(certificate, g, x), follow_checks(certificate, g, x)
    checks = (scope, *same, *follows)
    if certificate.evidence.bound == EXACT:
        checks = (*checks, *counted_checks(certificate, g, x))
    elif len(certificate.evidence.counts) == g.f.num_classes:  # else the votes cannot be compared
        votes = g.votes(x, n, seed, "verify", claimed_precision(certificate, g, x))
        checks = (*checks, *fresh_checks(certificate, votes, n, alpha, g.arithmetic_error(g.M.at(x), x)))
    verdict = Verdict(checks, n, alpha, STATED if stated else DEPLOYED)
    confirms = verdict.stands and not (stated and certificate.scope == "pipeline") and not of_a_copy(certificate, g, x)
    return Verdict(checks, n, alpha, verdict.about, certificate.scope if confirms else None)
