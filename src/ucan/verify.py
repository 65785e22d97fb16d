"""Checking a certificate that someone else made: recompute what follows from it, and draw fresh samples against it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ucan.bounds import anytime_lower_bound, at_most_p_value, lower_bound, upper_bound
from ucan.certificate import SCOPES, Certificate
from ucan.errors import InvalidInput
from ucan.fingerprint import weights_hash
from ucan.generators import BasisWise, CertificationWise, Composed, Fixed, Generator
from ucan.generators.base import Held
from ucan.registry import Registry
from ucan.scales import as_scale
from ucan.sidecar import input_hash
from ucan.smoothed import SmoothedClassifier

# What rounding may add to a recomputed number.
SLACK = 1 + 1e-9


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
    registry: Registry | None = None,
) -> Verdict:
    """Whether the certificate's claim about input x (1, *event) stands.

    Its numbers are recomputed from its own evidence, and n fresh samples are drawn with another seed. A true claim is
    rejected with probability at most α; a claimed probability that is too high by much more than 1/√n is rejected.
    A claim of scope ``registry`` is checked against its registry, and its samples are about the enrolled input.
    """
    if seed == certificate.evidence.seed:
        raise InvalidInput(f"seed {seed} is the certificate's own: fresh samples need another one.")
    evidence, region = certificate.evidence, certificate.region
    if tuple(x.shape[1:]) != region.shape:
        raise InvalidInput(
            f"the certificate is about inputs of shape {region.shape}, this one has {tuple(x.shape[1:])}."
        )
    scope, x = _scope(certificate, g, x, registry)
    n = evidence.n if n is None else n
    device = g.f.device or x.device
    votes = g.votes(x.to(device), n, seed, "verify")
    hits = int(votes.counts[certificate.prediction])
    surprise = at_most_p_value(hits, n, certificate.p_lower)
    p_a, p_b = certificate.p_lower, certificate.p_upper
    expected = g.law.radius(p_a, region.norm, region.dim, p_b)
    alm = region.mean_scale * g.law.radius(p_a, certificate.norm or region.norm, region.dim, p_b)
    claimable, rival = _claimable(certificate)
    weights = weights_hash(g.f.model)
    return Verdict(
        (
            scope,
            Check("input", input_hash(x) == evidence.input_hash, "the same input as in the certificate"),
            Check(
                "weights",
                None in (weights, evidence.weights_hash) or weights == evidence.weights_hash,
                "the same weights" if weights and evidence.weights_hash else "no weights to compare: a plain function",
            ),
            Check("noise", evidence.law == g.law and same_noise(certificate, g, x), "the same law, μ and Σ"),
            Check(
                "radius",
                region.radius <= expected * SLACK and certificate.alm <= alm * SLACK,
                f"the region's radius {region.radius:.6g} follows from p = {p_a:.6f} ({expected:.6g})",
            ),
            Check(
                "bound",
                p_a <= claimable * SLACK and (p_b is None or (rival is not None and p_b * SLACK >= rival)),
                f"p = {p_a:.6f} follows from the counts",
            ),
            Check(
                "votes",
                surprise > alpha,
                f"{hits} of {n} fresh votes for class {certificate.prediction} (claimed: at least "
                f"{certificate.p_lower:.6f}; p-value {surprise:.3g})",
            ),
        )
    )


def _scope(
    certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, registry: Registry | None
) -> tuple[Check, torch.Tensor]:
    """Whether the guarantee may be called what the certificate calls it, and the input that its evidence is about."""
    if certificate.scope == "registry":
        if registry is None:
            raise InvalidInput(
                "this certificate's scope is registry: give the registry that issued it (on the command line --registry)."
            )
        found = registry.issuer(x, certificate)
        issued = "the registry holds this region" if found else "the registry holds no such region around this input"
        return Check("scope", found is not None, issued), x if found is None else found.centre[None].to(x)
    learned = certificate.evidence.generator.startswith(CertificationWise.__name__)
    honest = certificate.scope == "frozen" or (g.M.scope == "pipeline" and not learned)
    detail = SCOPES[certificate.scope] if honest else "noise computed from the input: the scope is frozen, not pipeline"
    return Check("scope", honest, detail), x


def _claimable(certificate: Certificate) -> tuple[float, float | None]:
    """The bounds on the class and on its runner-up that the counts allow, by the bound that the evidence names."""
    evidence, c_A = certificate.evidence, certificate.prediction
    hits = evidence.counts[c_A]
    if evidence.bound == "anytime":
        return anytime_lower_bound(hits, evidence.n, evidence.alpha), None
    if evidence.bound != "two-class":
        return lower_bound(hits, evidence.n, evidence.alpha), None
    others = max(count for c, count in enumerate(evidence.counts) if c != c_A)
    half = evidence.alpha / 2
    return lower_bound(hits, evidence.n, half), upper_bound(others, evidence.n, half)


def same_noise(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """Whether Σ and μ of the certificate are those of g at x (1, *event), up to a relative tolerance.

    Two linear maps that agree on random vectors are the same.
    """
    mu, scale = g.M.at(x)(x)
    z = torch.randn(4, *x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    claimed, real = certificate.region.scale.to("cpu").apply(z), as_scale(scale).to("cpu").apply(z)
    mean = torch.zeros(()) if certificate.mean is None else certificate.mean
    return torch.allclose(claimed, real, rtol=tolerance, atol=1e-4 * tolerance) and torch.allclose(
        mean.double().expand(x.shape), mu.cpu().double().expand(x.shape), rtol=tolerance, atol=1e-2 * tolerance
    )


def noise_of(certificate: Certificate, source: Generator | None = None) -> Generator:
    """The noise that the certificate speaks of: its own Σ and μ, held fixed, with the view of the source it came from."""
    scale, mean = certificate.region.scale, certificate.mean
    if isinstance(source, Composed):  # redrawn for every copy: there is nothing to hold
        return source
    made_by = certificate.evidence.generator
    if source is None and made_by.startswith((Composed.__name__, BasisWise.__name__)):
        raise InvalidInput(f"this certificate is about {made_by} noise, which needs its network: give the trained run.")
    return Fixed(scale, mean) if source is None else Held(source, torch.zeros(()) if mean is None else mean, scale)
