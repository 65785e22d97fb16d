"""Which classifier a registry's answers are: what a smoothed classifier, or evidence of one, is known by."""

from __future__ import annotations

from typing import Any

import torch

from ucan.arithmetic import ROUNDED, arithmetic_of
from ucan.evidence import Evidence, Noise, law_to_json
from ucan.fingerprint import weights_hash
from ucan.laws import Law
from ucan.plan import CertifyPlan
from ucan.registry.separation import check_kind
from ucan.smoothed import SmoothedClassifier


def region_norm(g: SmoothedClassifier, x: torch.Tensor, norm: float) -> float:
    """The norm of the regions that g makes against ``norm`` at inputs like x (1, *event); refuses what cannot be kept."""
    region = g.M.at(x).region(g.law, 0.75, norm, x)
    check_kind(region.scale, region.norm)
    return region.norm


def known_by(g: SmoothedClassifier, x: torch.Tensor, plan: CertifyPlan) -> dict[str, Any]:
    """What tells g, as it is run on inputs like x (1, *event) at this α, from other classifiers."""
    setup = g.engine.setup(x, plan)
    return {
        **_told(setup.model, g.f.num_classes, g.law, setup.noise, plan.level, setup.backend.precision),
        "noise weights": weights_hash(g.M),
        "arithmetic": arithmetic_of(g.grid),
    }


def told_by(evidence: Evidence) -> dict[str, Any]:
    """What evidence tells of the classifier that it is about."""
    told = _told(
        evidence.identity, len(evidence.counts), evidence.law, evidence.noise, evidence.alpha, evidence.precision
    )
    return {**told, "arithmetic": evidence.arithmetic.removesuffix(ROUNDED)}


def _told(model: str | None, classes: int, law: Law, noise: Noise, alpha: float, precision: str) -> dict[str, Any]:
    """Plain JSON values. Settings and state of the noise belong to it: a line of text does not tell Σ = 0.25 from Σ = 4."""
    settings = {"noise settings": dict(noise.settings), "noise state": noise.state} if noise.complete else {}
    return {
        "weights": model,
        "classes": classes,
        "law": law_to_json(law),
        "noise": noise.line,
        **settings,
        "alpha": alpha,
        "precision": precision,
    }
