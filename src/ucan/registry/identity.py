"""The identity of a registry's classifier, from a smoothed classifier or from evidence."""

from __future__ import annotations

from typing import Any

import torch

from ucan.arithmetic import ROUNDED, arithmetic_of
from ucan.evidence import Evidence, Noise, law_to_json
from ucan.fingerprint import weights_hash
from ucan.plan import CertifyPlan
from ucan.registry.separation import check_kind
from ucan.smoothed import SmoothedClassifier


def region_norm(g: SmoothedClassifier, x: torch.Tensor, norm: float) -> float:
    """The norm of the regions that g makes against ``norm`` at inputs like x (1, *event); refuses regions that cannot be
    stored.
    """
    region = g.M.at(x).region(g.law, 0.75, norm, x)
    check_kind(region.scale, region.norm)
    return region.norm


def known_by(g: SmoothedClassifier, x: torch.Tensor, plan: CertifyPlan) -> dict[str, Any]:
    """The identity of g, as it is run on inputs like x (1, *event) at this α."""
    setup = g.engine.setup(x, plan)
    return {
        "weights": setup.weights,
        "model": setup.model,
        "classes": g.f.num_classes,
        "law": law_to_json(g.law),
        **_noise(setup.noise),
        "noise weights": weights_hash(g.M),
        "alpha": plan.level,
        "family": plan.family,
        "precision": setup.backend.precision,
        "arithmetic": arithmetic_of(g.grid),
    }


def told_by(evidence: Evidence) -> dict[str, Any]:
    """The identity of the classifier that evidence is about."""
    return {
        "weights": evidence.weights_hash,
        "model": evidence.model,
        "classes": len(evidence.counts),
        "law": law_to_json(evidence.law),
        **_noise(evidence.noise),
        "alpha": evidence.alpha,
        "family": evidence.family,
        "precision": evidence.precision,
        "arithmetic": evidence.arithmetic.removesuffix(ROUNDED),
    }


def _noise(noise: Noise) -> dict[str, Any]:
    """Plain JSON values. Settings and state are included, since a line of text does not distinguish Σ = 0.25 from Σ = 4."""
    settings = {"noise settings": dict(noise.settings), "noise state": noise.state} if noise.complete else {}
    return {"noise": noise.line, **settings}
