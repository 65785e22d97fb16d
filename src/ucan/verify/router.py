"""Whether a router's certificate stands: its choice, its answer, and that its radius is at most either's."""

from __future__ import annotations

from dataclasses import replace

import torch

from ucan.certificate import Certificate, Level
from ucan.errors import InvalidInput
from ucan.rounding import floor_significant
from ucan.routed import Routed
from ucan.threshold import Threshold
from ucan.verify.classifier import verify_classifier
from ucan.verify.level import floor_check, verify_level
from ucan.verify.verdict import DEPLOYED, IS, SLACK, STATED, Check, Verdict


def verify_router(
    certificate: Certificate, g: Routed, x: torch.Tensor, n: int | None, alpha: float, seed: int | None
) -> Verdict:
    """The checks of the choice and of the answer, each under its own name."""
    choice, expert = certificate.choice, certificate.expert
    if choice is None or expert is None or not 0 <= expert < len(g.experts):
        raise InvalidInput(
            f"this certificate names none of the router's {len(g.experts)} experts: give the classifier or the router that "
            f"it was issued for."
        )
    rule = g.selector
    if isinstance(rule, Threshold) != isinstance(choice, Level):
        by = "a selector" if isinstance(choice, Certificate) else "a threshold"
        raise InvalidInput(
            f"the certificate's choice is by {by}, and that of the router is not: give the router that it was issued for."
        )
    answer = certificate.answer
    # Two bounds on each expert share its level, and the answer is one of them; by the two-class bound it is both.
    if isinstance(choice, Level) and answer.evidence.bound != "two-class":
        answer = replace(answer, evidence=replace(answer.evidence, alpha=answer.evidence.alpha / 2))
    parts = {
        "choice": verify_level(choice, rule, g.experts[choice.of], x, n, alpha / 2, seed)
        if isinstance(rule, Threshold)
        else verify_classifier(choice, rule, x, n, alpha / 2, seed),
        "answer": verify_classifier(answer, g.experts[expert], x, n, alpha / 2, seed),
    }
    checks = tuple(
        replace(check, name=f"{part} {check.name}") for part, verdict in parts.items() for check in verdict.checks
    )
    if isinstance(choice, Level):
        checks = (*checks, *floor_check(answer, choice, g.experts[0], x))
    smaller = min(choice.radius, answer.radius)
    size = Check.worded(
        "radius",
        f"the radius {floor_significant(certificate.radius)}",
        certificate.radius <= smaller * SLACK,
        IS,
        f"at most the smaller of the two ({floor_significant(smaller)})",
    )
    confirmed = all(verdict.confirms is not None for verdict in parts.values()) and all(
        c.passed for c in (*checks, size)
    )
    votes = sum(verdict.n for verdict in parts.values())
    about = STATED if any(verdict.about == STATED for verdict in parts.values()) else DEPLOYED
    tested = all(verdict.tested for verdict in parts.values())
    return Verdict((*checks, size), votes, alpha, about, certificate.scope if confirmed else None, tested)
