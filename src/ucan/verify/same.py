"""Whether input, model, classes and noise of a certificate are those of the deployed classifier."""

from __future__ import annotations

import torch

from ucan.arithmetic import REAL
from ucan.backends import precision_name
from ucan.certificate import Certificate, Level
from ucan.evidence import Evidence
from ucan.fingerprint import weights_hash
from ucan.held import Held, held_of
from ucan.questions.smoothed import Smoothed
from ucan.scales import as_scale
from ucan.scales.base import same_map
from ucan.smoothed import SmoothedClassifier
from ucan.verify.verdict import IS, Check


def same_checks(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether input, model, classes and noise are those of the certificate."""
    evidence, classes = certificate.evidence, len(certificate.evidence.counts)
    noise = _noise_differences(certificate, g, x)
    law = evidence.law == g.law
    return (
        Check.worded("input", "this", evidence.is_about(x), IS, "the input that was certified"),
        _same_model(evidence, g),
        *_precision_check(certificate, g, x),
        *held_check(evidence.held, held_of(g.f.model)),
        Check("classes", classes == g.f.num_classes, f"{g.f.num_classes} classes here, {classes} in the certificate"),
        Check.worded("law", f"the noise law, {g.law},", law, IS, f"the certificate's, {evidence.law}"),
        Check(
            "noise", not noise, "; ".join(noise) if noise else "kind, settings, weights, μ and Σ are the certificate's"
        ),
        *_arithmetic_check(certificate, g, x),
    )


def _arithmetic_check(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether g adds its noise in the certificate's arithmetic; no check if both are real."""
    mine, claimed = g.engine.arithmetic(x), certificate.evidence.arithmetic
    if mine == claimed == REAL:
        return ()
    return (Check.worded("arithmetic", f"the arithmetic {mine}", mine == claimed, IS, f"the claimed {claimed}"),)


def of_a_copy(evidence: Evidence, g: Smoothed, x: torch.Tensor) -> bool:
    """Whether a claim is about the model in another precision than the deployed one."""
    return evidence.precision != own_precision(g, x)


def own_precision(g: Smoothed, x: torch.Tensor) -> str:
    """The precision of the deployed classifier: the one that it was given, else that of its model or of its inputs."""
    return g.engine.precision or precision_name(g.f.dtype or x.dtype)


def held_check(claimed: Held | None, mine: Held | None) -> tuple[Check, ...]:
    """Whether the held columns and their values are those of the certificate; no check if there are none."""
    if claimed is None and mine is None:
        return ()
    what = mine.words() if mine is not None else "no columns are held"
    return (Check.worded("held", what, claimed == mine, IS, "what the certificate says, with the same values"),)


def _precision_check(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether the certificate is about the deployed precision, or states that it is about a copy; version 0.1 could not state
    it.
    """
    if not of_a_copy(certificate.evidence, g, x):
        return ()
    evidence = certificate.evidence
    told = evidence.copy or not evidence.noise.complete
    about = f"about a copy in {evidence.precision}, not about the classifier that is deployed"
    return (Check("precision", told, about),)


def _same_model(evidence: Evidence, g: SmoothedClassifier) -> Check:
    """By the model's identity, and by the hash of its weights where that is stated beside an identity that is a hash, too."""
    identity, weights = g.engine.identity(), weights_hash(g.f.model)
    if not evidence.model:
        return _model_check(evidence.weights_hash, weights or identity)
    found = _model_check(evidence.model, identity)
    stated = None if evidence.model.startswith("id:") else evidence.weights_hash
    if found.passed and None not in (stated, weights) and stated != weights:
        return Check("weights", False, "the certificate states another hash of the weights than this model's")
    return found


def _model_check(claimed: str | None, mine: str | None) -> Check:
    """Whether the model is the certified one; a model without an identity never matches."""
    if claimed is None and mine is None:
        return Check("weights", True, "neither the certificate nor this classifier identifies its model", False)
    if claimed is None:
        return Check("weights", False, "the certificate does not identify its model")
    if mine is None:
        return Check("weights", False, "this model cannot be identified: give the model_id that it was certified under")
    return Check.worded("weights", "the model", claimed == mine, IS, "the one that was certified")


def _noise_differences(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> list[str]:
    """The differences between g's noise at x and the certificate's, as text."""
    evidence = certificate.evidence
    found = evidence.noise.differences(g.M.record())
    if evidence.versions and not evidence.noise.complete:  # only version 0.1 stored no more than a line
        found.append("the certificate does not state its noise")
    if not same_noise(certificate, g, x):
        found.append("μ or Σ at this input differs")
    return found


def same_noise(
    certificate: Certificate | Level, g: SmoothedClassifier, x: torch.Tensor, tolerance: float = 1e-5
) -> bool:
    """Whether Σ and μ of the certificate are those of g at x (1, *event), up to a relative tolerance.

    μ is compared relative to the noise: a difference that is small compared with Σε changes no vote.
    """
    mu, scale = g.M.at(x)(x)
    real = as_scale(scale).to("cpu")
    stated = certificate.mean if isinstance(certificate, Certificate) else mu.cpu()  # a level does not state its μ
    mean = torch.zeros(()) if stated is None else stated
    apart = mean.double().expand(x.shape).cpu() - mu.cpu().double().expand(x.shape)
    beside = real.solve(apart).abs().max() / g.law.scale
    return same_map(certificate.region.scale, real, x.shape[1:], tolerance) and float(beside) <= tolerance
