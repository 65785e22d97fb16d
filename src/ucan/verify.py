"""Checking a certificate that someone else made: recompute what follows from it, and draw fresh samples against it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ucan.bounds import at_most_p_value, lower_bound
from ucan.certificate import Certificate
from ucan.errors import InvalidInput
from ucan.generators import Fixed, Generator
from ucan.generators.base import Held
from ucan.sidecar import input_hash
from ucan.smoothed import SmoothedClassifier, weights_hash


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Verdict:
    """All that was looked at; the claim stands if nothing failed."""

    checks: tuple[Check, ...]

    @property
    def stands(self) -> bool:
        """True if no check failed."""
        return all(check.passed for check in self.checks)


def verify(
    certificate: Certificate,
    g: SmoothedClassifier,
    x: torch.Tensor,
    n: int | None = None,
    alpha: float = 0.001,
    seed: int = 1,
) -> Verdict:
    """Whether the certificate's claim about input x (1, *event) stands.

    Its numbers are recomputed from its own evidence, and n fresh samples are drawn with another seed. A true claim is
    rejected with probability at most α; a claimed probability that is too high by much more than 1/√n is rejected.
    """
    if seed == certificate.evidence.seed:
        raise InvalidInput(f"seed {seed} is the certificate's own: fresh samples need another one.")
    evidence, region = certificate.evidence, certificate.region
    if tuple(x.shape[1:]) != region.shape:
        raise InvalidInput(
            f"the certificate is about inputs of shape {region.shape}, this one has {tuple(x.shape[1:])}."
        )
    n = evidence.n if n is None else n
    device = g.f.device or x.device
    votes = g.votes(x.to(device), n, seed, "verify")
    hits = int(votes.counts[certificate.prediction])
    surprise = at_most_p_value(hits, n, certificate.p_lower)
    expected = evidence.law.radius(certificate.p_lower, region.norm, region.dim, certificate.p_upper)
    weights = weights_hash(g.f.model)
    return Verdict(
        (
            Check("input", input_hash(x) == evidence.input_hash, "the same input as in the certificate"),
            Check(
                "weights",
                None in (weights, evidence.weights_hash) or weights == evidence.weights_hash,
                "the same weights" if weights and evidence.weights_hash else "no weights to compare: a plain function",
            ),
            Check(
                "radius",
                region.radius <= expected * (1 + 1e-12),
                f"the region's radius {region.radius:.6g} follows from p = {certificate.p_lower:.6f} ({expected:.6g})",
            ),
            Check(
                "bound",
                certificate.p_lower <= _claimable(certificate) * (1 + 1e-12),
                f"p = {certificate.p_lower:.6f} follows from the counts",
            ),
            Check(
                "votes",
                surprise > alpha,
                f"{hits} of {n} fresh votes for class {certificate.prediction} (claimed: at least "
                f"{certificate.p_lower:.6f}; p-value {surprise:.3g})",
            ),
        )
    )


def _claimable(certificate: Certificate) -> float:
    evidence = certificate.evidence
    alpha = evidence.alpha / 2 if evidence.bound == "two-class" else evidence.alpha
    return lower_bound(evidence.counts[certificate.prediction], evidence.n, alpha)


def noise_of(certificate: Certificate, source: Generator | None = None) -> Generator:
    """The noise that the certificate speaks of: its own Σ and μ, held fixed, with the view of the source it came from."""
    scale, mean = certificate.region.scale, certificate.mean
    return Fixed(scale, mean) if source is None else Held(source, torch.zeros(()) if mean is None else mean, scale)
