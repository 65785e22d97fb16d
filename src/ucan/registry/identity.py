"""Which classifier a registry's answers are: what a smoothed classifier, or evidence of one, is known by."""

from __future__ import annotations

from typing import Any

import torch

from ucan.certificate import Evidence, law_to_json
from ucan.fingerprint import weights_hash
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
        "weights": setup.weights,
        "classes": g.f.num_classes,
        "law": law_to_json(g.law),
        "noise": g.M.describe(),
        "noise weights": weights_hash(g.M),
        "alpha": plan.alpha,
        "precision": setup.backend.precision,
    }


def told_by(evidence: Evidence) -> dict[str, Any]:
    """What evidence tells of the classifier that it is about."""
    return {
        "weights": evidence.weights_hash,
        "classes": len(evidence.counts),
        "law": law_to_json(evidence.law),
        "noise": evidence.generator,
        "alpha": evidence.alpha,
        "precision": evidence.precision,
    }
