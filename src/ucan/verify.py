"""Checking a certificate that someone else made: recompute what follows from it, and draw fresh samples against it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ucan.backends import PRECISIONS, precision_name
from ucan.bounds import anytime_lower_bound, at_most_p_value, check_alpha, lower_bound, upper_bound
from ucan.certificate import SCOPES, Certificate
from ucan.errors import InvalidInput
from ucan.fingerprint import weights_hash
from ucan.generators import BasisWise, Composed, DatasetWise, Fixed, Generator, Isotropic, Pattern
from ucan.generators.base import Held
from ucan.laws import Law
from ucan.registry import Registry
from ucan.rounding import ceil_digits, floor_digits, floor_significant
from ucan.scales import as_scale
from ucan.sidecar import input_hash
from ucan.smoothed import SmoothedClassifier
from ucan.votes import Votes

ARE, FOLLOWS = ("are", "are not"), ("follows", "does not follow")
# What rounding may add to a recomputed number.
SLACK = 1 + 1e-9
# Noise that is the same for every input, or composed: what may claim the pipeline, by the name in the evidence.
CONSTANT = tuple(kind.__name__ for kind in (Isotropic, Fixed, Pattern, DatasetWise, BasisWise, Composed))


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Verdict:
    """All that was looked at, with n fresh votes at level α. A claim stands if nothing spoke against it: that is no proof."""

    checks: tuple[Check, ...]
    n: int
    alpha: float

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

    Its numbers are recomputed from its own evidence, and n fresh samples are drawn with another seed, in the precision
    that the evidence names. A true claim is rejected with probability at most α; a claimed probability that is wrong by
    much more than 1/√n is rejected. A claim of scope ``registry`` is checked against its registry, and its samples are
    about the enrolled input.
    """
    check_alpha(alpha)
    if seed == certificate.evidence.seed:
        raise InvalidInput(f"seed {seed} is the certificate's own: fresh samples need another one.")
    shape = certificate.region.shape
    if tuple(x.shape[1:]) != shape:
        raise InvalidInput(f"the certificate is about inputs of shape {shape}, this one has {tuple(x.shape[1:])}.")
    scope, x = _scope(certificate, g, x, registry)
    n = certificate.evidence.n if n is None else n
    device = g.f.device or x.device
    votes = g.votes(x.to(device), n, seed, "verify", _precision(certificate, g, x))
    same, follows = _same_checks(certificate, g, x), _follow_checks(certificate, g.law)
    return Verdict((scope, *same, *follows, *fresh_checks(certificate, votes, n, alpha)), n, alpha)


def _same_checks(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether input, weights and noise are those that the certificate is about."""
    evidence, weights = certificate.evidence, weights_hash(g.f.model)
    same_input = input_hash(x) == evidence.input_hash
    noise = evidence.law == g.law and same_noise(certificate, g, x)
    return (
        _check("input", "this", same_input, ("is", "is not"), "the input that was certified"),
        Check("weights", True, "no weights to compare: a plain function")
        if weights is None or evidence.weights_hash is None
        else _check("weights", "the weights", weights == evidence.weights_hash, ARE, "those that were certified"),
        _check("noise", "law, μ and Σ", noise, ARE, "the certificate's"),
    )


def _follow_checks(certificate: Certificate, law: Law) -> tuple[Check, ...]:
    """Whether radius and ALM follow from the claimed probabilities, and those from the counts."""
    evidence, region, p_a, p_b = certificate.evidence, certificate.region, certificate.p_lower, certificate.p_upper
    expected = law.radius(p_a, region.norm, region.dim, p_b)
    alm = region.mean_scale * law.radius(p_a, certificate.norm or region.norm, region.dim, p_b)
    claimable, rival = _claimable(certificate)
    shown = f"p = {floor_digits(p_a, 6)}" + ("" if p_b is None else f" and {ceil_digits(p_b, 6)} for every other class")
    return (
        _check(
            "radius",
            f"the region's radius {floor_significant(region.radius)}",
            region.radius <= expected * SLACK and certificate.alm <= alm * SLACK,
            FOLLOWS,
            f"from {shown} ({floor_significant(expected)})",
        ),
        _check(
            "bound",
            shown,
            p_a <= claimable * SLACK and (p_b is None or (rival is not None and p_b * SLACK >= rival)),
            FOLLOWS,
            f"from the counts by the {evidence.bound} bound at alpha = {evidence.alpha:g}",
        ),
    )


def _check(name: str, subject: str, passed: bool, verbs: tuple[str, str], rest: str) -> Check:
    """A check whose sentence says how it came out: the first verb if it passed, else the second."""
    return Check(name, passed, f"{subject} {verbs[0] if passed else verbs[1]} {rest}")


def fresh_checks(certificate: Certificate, votes: Votes, n: int, alpha: float) -> tuple[Check, ...]:
    """Whether n fresh votes speak against the claimed probabilities; against true ones with probability at most α.

    A two-class claim has two parts, tested at α/2 each: the class has at least p_lower, and every other class has at most
    p_upper. The most voted of the others has the smallest p-value of them, so it may be chosen on these very votes if
    that p-value is multiplied by the number of the others.
    """
    c_A, p_a, p_b = certificate.prediction, certificate.p_lower, certificate.p_upper
    level, precision = alpha if p_b is None else alpha / 2, certificate.evidence.precision
    hits = int(votes.counts[c_A])
    surprise = at_most_p_value(hits, n, p_a)
    own = Check(
        "votes",
        surprise > level,
        f"{hits:,} of {n:,} fresh votes in {precision} for class {c_A}; claimed: p of at least {floor_digits(p_a, 6)} "
        f"(p-value {surprise:.3g}, rejected if at most {level:g})",
    )
    if p_b is None:
        return (own,)
    others = votes.counts.clone()
    others[c_A] = -1
    rival, rivals = int(others.argmax()), len(others) - 1
    count = int(votes.counts[rival])
    surprise = min(1.0, rivals * at_most_p_value(n - count, n, 1 - p_b))
    runner_up = Check(
        "runner-up",
        surprise > level,
        f"{count:,} of {n:,} fresh votes in {precision} for class {rival}, the most of the others; claimed: p of at most "
        f"{ceil_digits(p_b, 6)} for each (p-value {surprise:.3g} over {rivals}, rejected if at most {level:g})",
    )
    return own, runner_up


def _precision(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> str | None:
    """The precision to run g's classifier in, so that it is the one that the certificate is about; None: its own."""
    claimed, own = certificate.evidence.precision, precision_name(g.f.dtype or x.dtype)
    if claimed == own:
        return None
    if claimed not in PRECISIONS or not isinstance(g.f.model, nn.Module):
        raise InvalidInput(
            f"the certificate's classifier ran in {claimed}; this one runs in {own} and cannot be run otherwise, so its "
            "votes say nothing about the claim: give the classifier as it was run."
        )
    return claimed


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
    made_by = certificate.evidence.generator
    # Of a generator that neither comes with UCAN nor is at hand, nobody knows whether it looks at its input.
    known = made_by.startswith(CONSTANT) or made_by == g.M.describe()
    honest = certificate.scope == "frozen" or (g.M.scope == "pipeline" and known)
    refusal = f"nothing shows that {made_by} noise is the same for every input: the scope is frozen, not pipeline"
    detail = SCOPES[certificate.scope] if honest else refusal
    return Check("scope", honest, detail), x


def _claimable(certificate: Certificate) -> tuple[float, float | None]:
    """The bounds on the class and on its runner-up that the counts allow, by the bound that the evidence names."""
    evidence, c_A = certificate.evidence, certificate.prediction
    hits = evidence.counts[c_A]
    if evidence.bound == "anytime":
        return anytime_lower_bound(hits, evidence.n, evidence.alpha), None
    if evidence.bound == "binary":
        return lower_bound(hits, evidence.n, evidence.alpha), None
    if evidence.bound != "two-class":  # nobody knows what it allows
        return 0.0, None
    others = max(count for c, count in enumerate(evidence.counts) if c != c_A)
    half = evidence.alpha / 2
    return lower_bound(hits, evidence.n, half), upper_bound(others, evidence.n, half)


def same_noise(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """Whether Σ and μ of the certificate are those of g at x (1, *event), up to a relative tolerance.

    Two linear maps are the same if one undoes the other, and random vectors tell. It is this way round that a direction
    of little noise counts as much as any other: where Σ and another Σ' are compared by what they make of a vector, the
    difference between two small scales is lost beside the large ones.
    """
    mu, scale = g.M.at(x)(x)
    z = torch.randn(4, *x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    claimed, real = certificate.region.scale.to("cpu"), as_scale(scale).to("cpu")
    undone = (claimed.solve(real.apply(z)), real.solve(claimed.apply(z)))
    mean = torch.zeros(()) if certificate.mean is None else certificate.mean
    return all(torch.allclose(back, z, rtol=tolerance, atol=tolerance) for back in undone) and torch.allclose(
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
