"""Verify a certificate from someone else: compare it with what is deployed, and test it with fresh samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ucan.arithmetic import REAL, ROUNDED_DOWN
from ucan.backends import precision_name
from ucan.bounds import BY_NAME, at_most_p_value, check_alpha, majority_p_value
from ucan.certificate import Abstention, Certificate, Level
from ucan.choices import PRECISIONS, SCOPES, Scope, norm_name
from ucan.errors import InvalidInput, UcanError
from ucan.evidence import Evidence, Noise
from ucan.fingerprint import weights_hash
from ucan.generators import Context, Fixed, Generator, kind_of, rebuilt
from ucan.held import Held, held_of
from ucan.plan import CertifyPlan, random_seed
from ucan.region import Region
from ucan.registry import Registry
from ucan.rounding import ceil_digits, floor_digits, floor_significant
from ucan.routed import Deployed, Routed
from ucan.scales import as_scale
from ucan.scales.base import same_map
from ucan.sidecar import exact_hash, input_hash
from ucan.sizes import alm_of
from ucan.smoothed import EXACT, SmoothedClassifier, largest_other
from ucan.stopping import parse_stop
from ucan.threshold import Threshold, level_bound, level_region
from ucan.votes import Stream, Votes

ARE, FOLLOWS = ("are", "are not"), ("follows", "does not follow")
DEPLOYED = "the classifier and the noise that were given"
STATED = "the noise as the certificate states it"
# The most that rounding can add to a recomputed number.
SLACK = 1 + 1e-9
# The least number of fresh votes, unless one is given: fewer could not reject a false claim.
LEAST = 100


@dataclass(frozen=True)
class Check:
    """One check: its name, whether it passed, and details. ``confirmed`` False: nothing was found wrong, nor right."""

    name: str
    passed: bool
    detail: str
    confirmed: bool = True


@dataclass(frozen=True)
class Verdict:
    """All checks, with n fresh votes at level α. A claim stands if no check failed; this is not a proof.

    ``about`` is what the certificate was compared with: the given classifier and noise, or, if the deployed noise was not
    given, the noise as the certificate states it. ``confirms`` is the scope in which the claim stands: None if a check
    failed, and if the claim is about the pipeline but the pipeline's noise was not given.
    """

    checks: tuple[Check, ...]
    n: int
    alpha: float
    about: str = DEPLOYED
    confirms: Scope | None = None

    @property
    def stands(self) -> bool:
        """True if no check failed."""
        return all(check.passed for check in self.checks)


class Stated(Fixed):
    """Noise as a certificate states it: its own Σ and μ. It is not known that a pipeline has this noise."""

    def __init__(self, certificate: Certificate, source: Generator | None = None) -> None:
        super().__init__(certificate.region.scale, certificate.mean)
        self.scope = "pipeline" if source is None else source.scope  # type: ignore[misc, assignment]
        self._noise = certificate.evidence.noise
        self._view = (source,)  # in a tuple: not a part of this module

    def view(self, y: torch.Tensor) -> torch.Tensor:
        """The view of the certificate's generator, if that is known."""
        source = self._view[0]
        return y if source is None else source.view(y)

    def record(self) -> Noise:
        """The certificate's record of its noise."""
        return self._noise

    def describe(self) -> str:
        """The certificate's line."""
        return self._noise.line


def verify(
    certificate: Certificate,
    g: Deployed,
    x: torch.Tensor,
    n: int | None = None,
    alpha: float = 0.001,
    seed: int | None = None,
    registry: Registry | None = None,
) -> Verdict:
    """Check whether a certificate's claim about input x (1, *event) stands for g, the deployed classifier.

    Model, law, kind of noise, its settings and weights, μ and Σ at this input, number of classes, norm, view and the rule
    from p to the region are all taken from g; a difference is reported, and that check fails. Its numbers are recomputed from
    its own evidence, and n fresh samples (as many as its own, and at least 100) are drawn with a fresh random seed, or the
    one given, in the precision that the evidence names. A true claim is rejected with probability at most α; a claimed
    probability that is wrong by much more than 1/√n is rejected. A claim of scope ``registry`` is checked against its
    registry, and its samples are about the enrolled input.

    If g's noise comes from the certificate itself (``noise_of``), the verdict says so and confirms no pipeline.

    Of a router, the choice is checked against its selector and the answer against the chosen expert, at α/2 each.

    Args:
        certificate: the certificate to check.
        g: the deployed smoothed classifier, or router.
        x: the input (1, *event).
        n: the number of fresh samples; as many as the certificate has, and at least 100, if None.
        alpha: the level of the test with fresh samples.
        seed: the seed of the fresh samples; random if None. It must not be the certificate's own.
        registry: the registry that issued the certificate, for scope ``registry``.
    """
    check_alpha(alpha)
    if isinstance(g, Routed):
        return _verify_routed(certificate, g, x, n, alpha, seed)
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
    scope, x = _scope(certificate, g, x, registry)
    n = max(LEAST, *(one.n for one in _votes_behind(certificate.evidence))) if n is None else n
    x = x.to(g.f.device or x.device)
    same, follows = _same_checks(certificate, g, x), _follow_checks(certificate, g, x)
    checks = (scope, *same, *follows)
    if certificate.evidence.bound == EXACT:
        checks = (*checks, *_counted_checks(certificate, g, x))
    elif len(certificate.evidence.counts) == g.f.num_classes:  # else the votes cannot be compared
        votes = g.votes(x, n, seed, "verify", _precision(certificate, g, x))
        checks = (*checks, *fresh_checks(certificate, votes, n, alpha, g.arithmetic_error(g.M.at(x), x)))
    verdict = Verdict(checks, n, alpha, STATED if stated else DEPLOYED)
    confirms = verdict.stands and not (stated and certificate.scope == "pipeline") and not _of_a_copy(certificate, g, x)
    return Verdict(checks, n, alpha, verdict.about, certificate.scope if confirms else None)


def _counted_checks(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether all draws of g's noise, counted again, bear a claim that was made by counting them."""
    evidence, turns = certificate.evidence, g.M.turns(g.law)
    if turns is None or turns != evidence.n or len(evidence.counts) != g.f.num_classes:
        found = "cannot all be counted" if turns is None else f"are {turns:,}"
        return (
            Check("votes", False, f"{evidence.n:,} votes are stated to be all draws of the noise, but these {found}"),
        )
    with g.engine.running(evidence.backend):
        again = g.count_all(x, _precision(certificate, g, x))
    hits, others = int(again.counts[certificate.prediction]), largest_other(again.counts, certificate.prediction)
    p_b = certificate.p_upper
    bears = certificate.p_lower <= hits / turns * SLACK and p_b is not None and p_b * SLACK >= others / turns
    told = (
        f"{hits:,} of all {turns:,} draws give class {certificate.prediction}, and {others:,} the most frequent other"
    )
    return (_check("votes", told, bears, ("which bears", "which does not bear"), "the claim"),)


def _verify_routed(
    certificate: Certificate, g: Routed, x: torch.Tensor, n: int | None, alpha: float, seed: int | None
) -> Verdict:
    """The checks of the choice and of the answer, each under its own name."""
    choice, expert = certificate.choice, certificate.expert
    if choice is None or expert is None or not 0 <= expert < len(g.experts):
        raise InvalidInput(f"this certificate names none of the router's {len(g.experts)} experts.")
    rule = g.selector
    if isinstance(rule, Threshold) != isinstance(choice, Level):
        by = "a selector" if isinstance(choice, Certificate) else "a threshold"
        raise InvalidInput(f"the certificate's choice is by {by}, and that of the router is not.")
    parts = {
        "choice": _verify_level(choice, rule, g.experts[choice.of], x, n, alpha / 2, seed)
        if isinstance(rule, Threshold)
        else verify(choice, rule, x, n, alpha / 2, seed),
        "answer": verify(certificate.answer, g.experts[expert], x, n, alpha / 2, seed),
    }
    checks = tuple(
        replace(check, name=f"{part} {check.name}") for part, verdict in parts.items() for check in verdict.checks
    )
    smaller = min(choice.radius, certificate.answer.radius)
    size = _check(
        "radius",
        f"the radius {floor_significant(certificate.radius)}",
        certificate.radius <= smaller * SLACK,
        ("is", "is not"),
        f"at most the smaller of the two ({floor_significant(smaller)})",
    )
    confirmed = all(verdict.confirms is not None for verdict in parts.values()) and size.passed
    votes = sum(verdict.n for verdict in parts.values())
    return Verdict((*checks, size), votes, alpha, DEPLOYED, certificate.scope if confirmed else None)


def _verify_level(
    level: Level, rule: Threshold, g: SmoothedClassifier, x: torch.Tensor, n: int | None, alpha: float, seed: int | None
) -> Verdict:
    """Whether a claim about a threshold stands for this rule and for g, the expert that the claim is about."""
    n, x, evidence = max(LEAST, level.evidence.n) if n is None else n, x.to(g.f.device or x.device), level.evidence
    held = g.M.at(x)
    like = Certificate(level.norm, level.scope, evidence, level.top, 0.0, None, level.region, 0.0, held(x)[0].cpu())
    tau = g.arithmetic_error(held, x)
    allowed = level_bound(evidence.counts, level.top, level.above, evidence.n, evidence.alpha, tau)
    fixed = evidence.bound == "binary" and evidence.ballot(level.top).fixed  # Clopper–Pearson holds for no other n
    enough = fixed and (level.p <= allowed * SLACK if level.above else level.p * SLACK >= allowed)
    norm = 2 if level.norm is None else level.norm
    most = level_region(g, held, x, level.p, level.above, level.threshold, norm)
    fits = most is not None and level.region.radius <= most.radius * SLACK and level.region.norm == most.norm
    votes = g.votes(x, n, random_seed() if seed is None else seed, "verify", _precision(like, g, x))
    scope, _ = _scope(like, g, x, None)
    mine = rule.level_of(level.of)
    # Where expert 1 has a veto, that expert 0 is above its threshold says too little.
    asked = mine == level.threshold and (not level.above or level.of == (1 if rule.veto else 0))
    checks = (
        scope,
        *_same_checks(like, g, x),
        _check("threshold", f"{mine:g} of expert {level.of}", asked, ("is", "is not"), "what the claim must be about"),
        _check("bound", f"p = {_shown(level)}", enough, FOLLOWS, f"from the counts at alpha = {evidence.alpha / 2:g}"),
        _check("radius", f"the region's radius {floor_significant(level.region.radius)}", fits, FOLLOWS, "from p"),
        _level_votes(level, votes, n, alpha, tau),
    )
    stands = all(check.passed for check in checks)
    return Verdict(checks, n, alpha, DEPLOYED, level.scope if stands else None)


def _shown(level: Level) -> str:
    """The bound on p, rounded to its safe side."""
    return floor_digits(level.p, 6) if level.above else ceil_digits(level.p, 6)


def _level_votes(level: Level, votes: Votes, n: int, alpha: float, tau: float) -> Check:
    """Whether fresh votes reject the claimed p: of the class from below, or of the most voted other class from above."""
    if level.above:
        hits = int(votes.counts[level.top])
        surprise = at_most_p_value(hits, n, max(0.0, level.p - tau))
    else:  # over all other classes
        hits = largest_other(votes.counts, level.top)
        surprise = min(1.0, len(votes.counts) * majority_p_value(hits, n, min(1.0, level.p + tau)))
    side = "at least" if level.above else "at most"
    return Check(
        "votes",
        surprise > alpha,
        f"{hits:,} of {n:,} fresh votes; claimed: p of {side} {_shown(level)} (p-value {surprise:.3g}, rejected if at most "
        f"{alpha:g})",
    )


def _votes_behind(evidence: Evidence) -> list[Evidence]:
    """The evidence, and that of the earlier classifiers whose votes the claim rests on."""
    earlier = [] if evidence.pairs is None else _votes_behind(evidence.pairs.before)
    return [evidence, *earlier]


def _same_checks(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether input, model, classes and noise are those of the certificate."""
    evidence, mine, classes = certificate.evidence, g.engine.identity(), len(certificate.evidence.counts)
    noise = _noise_differences(certificate, g, x)
    law = evidence.law == g.law
    return (
        _check("input", "this", _same_input(evidence, x), ("is", "is not"), "the input that was certified"),
        _model_check(
            evidence.model or evidence.weights_hash, mine if evidence.model else weights_hash(g.f.model) or mine
        ),
        *_precision_check(certificate, g, x),
        *_held_check(evidence.held, held_of(g.f.model)),
        Check("classes", classes == g.f.num_classes, f"{g.f.num_classes} classes here, {classes} in the certificate"),
        _check("law", f"the noise law, {g.law},", law, ("is", "is not"), f"the certificate's, {evidence.law}"),
        Check(
            "noise", not noise, "; ".join(noise) if noise else "kind, settings, weights, μ and Σ are the certificate's"
        ),
        *_arithmetic_check(certificate, g, x),
    )


def _arithmetic_check(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether g adds its noise in the certificate's arithmetic; no check if both are real."""
    mine, claimed = REAL if g.grid is None else g.grid.arithmetic(x), certificate.evidence.arithmetic
    if mine == claimed == REAL:
        return ()
    return (
        _check("arithmetic", f"the arithmetic {mine}", mine == claimed, ("is", "is not"), f"the claimed {claimed}"),
    )


def _same_input(evidence: Evidence, x: torch.Tensor) -> bool:
    """Whether x (1, *event) is exactly the certified input; evidence of version 0.1 only has its float32 values."""
    return input_hash(x) == evidence.input_hash and evidence.exact_hash in (None, exact_hash(x))


def _of_a_copy(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> bool:
    """Whether the certificate is about the classifier in another precision than the deployed one."""
    return certificate.evidence.precision != (g.engine.precision or precision_name(g.f.dtype or x.dtype))


def _held_check(claimed: Held | None, mine: Held | None) -> tuple[Check, ...]:
    """Whether the held columns and their values are those of the certificate; no check if there are none."""
    if claimed is None and mine is None:
        return ()
    what = mine.words() if mine is not None else "no columns are held"
    return (_check("held", what, claimed == mine, ("is", "is not"), "what the certificate says, with the same values"),)


def _precision_check(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether the certificate is about the deployed precision, or states that it is about a copy; version 0.1 could not state
    it.
    """
    if not _of_a_copy(certificate, g, x):
        return ()
    evidence = certificate.evidence
    told = evidence.copy or not evidence.noise.complete
    about = f"about a copy in {evidence.precision}, not about the classifier that is deployed"
    return (Check("precision", told, about),)


def _model_check(claimed: str | None, mine: str | None) -> Check:
    """Whether the model is the certified one; a model without an identity never matches."""
    if claimed is None and mine is None:
        return Check("weights", True, "neither the certificate nor this classifier identifies its model", False)
    if claimed is None:
        return Check("weights", False, "the certificate does not identify its model")
    if mine is None:
        return Check("weights", False, "this model cannot be identified: give the model_id that it was certified under")
    return _check("weights", "the model", claimed == mine, ("is", "is not"), "the one that was certified")


def _noise_differences(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> list[str]:
    """The differences between g's noise at x and the certificate's, as text."""
    evidence = certificate.evidence
    found = evidence.noise.differences(g.M.record())
    if evidence.versions and not evidence.noise.complete:  # only version 0.1 stored no more than a line
        found.append("the certificate does not state its noise")
    if not same_noise(certificate, g, x):
        found.append("μ or Σ at this input differs")
    return found


def _follow_checks(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether the region follows from the claimed probabilities by g's own rule, and those from the counts."""
    evidence, p_a, p_b = certificate.evidence, certificate.p_lower, certificate.p_upper
    most, rival = claimable(certificate)
    tau = 0.0 if evidence.bound == EXACT else g.arithmetic_error(g.M.at(x), x)
    most, rival = most - tau, None if rival is None else rival + tau
    shown = f"p = {floor_digits(p_a, 6)}" + ("" if p_b is None else f" and {ceil_digits(p_b, 6)} for every other class")
    return (
        _region_check(certificate, g, x, shown),
        *_budget_check(certificate, g, x, shown),
        *_thresholds_check(certificate, g, x),
        *(check for each in _votes_behind(evidence) for check in _uniform_check(each)),
        *(_counted_before(each, g) for each in _votes_behind(evidence)[1:] if each.bound == EXACT),
        _check(
            "bound",
            shown,
            p_a <= most * SLACK and (p_b is None or (rival is not None and p_b * SLACK >= rival)),
            FOLLOWS,
            f"from the counts by the {evidence.bound} bound at alpha = {evidence.alpha:g}",
        ),
    )


def _uniform_check(evidence: Evidence) -> tuple[Check, ...]:
    """Whether the uniform number of a randomised bound follows from the seed; of a secret seed nobody can tell."""
    if evidence.bound != "randomised":
        return ()
    number = f"the uniform number {evidence.uniform:.6f} of the bound"
    if evidence.seed is None:
        return (Check("uniform", True, f"{number} is from a secret seed, so that it could be chosen", False),)
    key = Stream(
        evidence.seed, evidence.input_hash, "estimate"
    ).key  # of another phase there would be many to choose from
    own = evidence.phase == "estimate" and evidence.streams.get(evidence.phase) == key
    return (_check("uniform", number, own, FOLLOWS, "from the stated seed"),)


def _counted_before(evidence: Evidence, g: SmoothedClassifier) -> Check:
    """Whether the votes of an earlier classifier can be all draws of the noise, as they are stated to be."""
    turns = g.M.turns(g.law)
    found = "cannot all be counted" if turns is None else f"are {turns:,}"
    return Check(
        "votes before",
        turns == evidence.n,
        f"{evidence.n:,} votes of an earlier classifier are stated to be all draws of the noise; these {found}",
    )


def _thresholds_check(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> tuple[Check, ...]:
    """Whether the thresholds of a rule about radii follow from g's noise; no check if there are none."""
    evidence = certificate.evidence
    if not evidence.thresholds:
        return ()
    norm = certificate.region.norm if certificate.norm is None else certificate.norm
    try:
        stop = parse_stop(evidence.stop)
        radius = g.sizes.decided(g.M.at(x), x, CertifyPlan(norm=norm, budget=certificate.budget))
        expected = () if stop is None else stop.thresholds(radius)
    except UcanError as error:
        return (Check("thresholds", False, f"the rule {evidence.stop!r} has no thresholds here: {error}"),)
    same = len(expected) == len(evidence.thresholds) and all(
        math.isclose(a, b, rel_tol=1e-9) for a, b in zip(expected, evidence.thresholds, strict=True)
    )
    return (
        _check("thresholds", "the probabilities asked for", same, ("follow", "do not follow"), f"from {evidence.stop}"),
    )


def _region_check(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, shown: str) -> Check:
    """Whether g, at these probabilities, certifies a region of this norm that is at least as large."""
    region, p_a, p_b = certificate.region, certificate.p_lower, certificate.p_upper
    norm = region.norm if certificate.norm is None else certificate.norm
    try:
        g.M.check_claim(g.law, norm)
        expected = g.M.at(x).region(g.law, p_a, norm, x, p_b)
        alm = alm_of(expected, g.law, p_a, p_b, norm)
    except UcanError as error:
        return Check("radius", False, f"this noise certifies no such region: {error}")
    most = expected.radius
    if g.grid is not None:
        most = max(0.0, most * ROUNDED_DOWN - g.grid.payment(expected, x))
    if region.norm != expected.norm:
        kinds = f"an {norm_name(region.norm)} region, but this noise gives {norm_name(expected.norm)} regions"
        return Check("radius", False, f"the certificate claims {kinds} against {norm_name(norm)}")
    return _check(
        "radius",
        f"the region's radius {floor_significant(region.radius)}",
        region.radius <= most * SLACK
        and certificate.alm <= alm * SLACK
        # Σ is compared with some tolerance, which must not make a radius larger.
        and certificate.radius
        <= Region.sharing(expected.scale, region.radius, expected.norm, region.shape).inscribed_radius(norm) * SLACK,
        FOLLOWS,
        f"from {shown} ({floor_significant(most)})",
    )


def _budget_check(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, shown: str) -> tuple[Check, ...]:
    """Whether g, at these probabilities, certifies the claimed factor of the budget; no check if there is no budget."""
    budget, claimed, p_a, p_b = (
        certificate.budget,
        certificate.budget_factor,
        certificate.p_lower,
        certificate.p_upper,
    )
    if budget is None or claimed is None:
        return ()
    norm, held = certificate.region.norm if certificate.norm is None else certificate.norm, g.M.at(x)
    try:
        region = g.sizes.region(held, x, p_a, p_b, norm)
        most = 0.0 if region is None else g.sizes.budget_factor(held, x, p_a, p_b, budget, region)
    except UcanError as error:
        return (Check("budget", False, f"this noise certifies nothing within this budget: {error}"),)
    return (
        _check(
            "budget",
            f"the budget's factor {floor_significant(claimed)}",
            claimed <= most * SLACK,
            FOLLOWS,
            f"from {shown} ({floor_significant(most)})",
        ),
    )


def _check(name: str, subject: str, passed: bool, verbs: tuple[str, str], rest: str) -> Check:
    """A check with a sentence for its result: the first verb if it passed, else the second."""
    return Check(name, passed, f"{subject} {verbs[0] if passed else verbs[1]} {rest}")


def fresh_checks(certificate: Certificate, votes: Votes, n: int, alpha: float, tau: float = 0.0) -> tuple[Check, ...]:
    """Whether n fresh votes reject the claimed probabilities; true ones are rejected with probability at most α.

    A two-class claim has two parts, tested at α/2 each: the class has at least p_lower, and every other class has at most
    p_upper. The most voted of the others has the smallest p-value of them, so it may be selected on the same votes if that
    p-value is multiplied by the number of the others. The claims are about ideal noise; the noise of the votes may differ
    from it by ``tau`` in total variation.
    """
    c_A, p_a, p_b = certificate.prediction, certificate.p_lower, certificate.p_upper
    level, precision = alpha if p_b is None else alpha / 2, certificate.evidence.precision
    hits = int(votes.counts[c_A])
    surprise = at_most_p_value(hits, n, max(0.0, p_a - tau))
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
    surprise = min(1.0, rivals * at_most_p_value(n - count, n, max(0.0, 1 - p_b - tau)))
    runner_up = Check(
        "runner-up",
        surprise > level,
        f"{count:,} of {n:,} fresh votes in {precision} for class {rival}, the most of the others; claimed: p of at most "
        f"{ceil_digits(p_b, 6)} for each (p-value {surprise:.3g} over {rivals}, rejected if at most {level:g})",
    )
    return own, runner_up


def _precision(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> str | None:
    """The precision in which g's classifier is the one of the certificate; None: its own."""
    claimed, own = certificate.evidence.precision, precision_name(g.f.dtype or x.dtype)
    if claimed == own:
        return None
    if claimed not in PRECISIONS or not isinstance(g.f.model, nn.Module):
        raise InvalidInput(
            f"the certificate's classifier ran in {claimed}; this one runs in {own} and cannot be changed, so its votes "
            f"cannot test the claim: give the classifier in that precision."
        )
    return claimed


def _scope(
    certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, registry: Registry | None
) -> tuple[Check, torch.Tensor]:
    """Whether the certificate's scope is justified, and the input that its evidence is about."""
    if certificate.scope == "registry":
        if registry is None:
            raise InvalidInput(
                "this certificate's scope is registry: give the registry that issued it (on the command line --registry)."
            )
        found = registry.issuer(x, certificate)
        issued = "the registry holds this region" if found else "the registry holds no such region around this input"
        return Check("scope", found is not None, issued), x if found is None else found.centre[None].to(x)
    noise, stated = certificate.evidence.noise, isinstance(g.M, Stated)
    constant = noise.constant if noise.complete else constant_line(noise)
    # A record of version 0.1 with a user's generator does not state this; the generator itself does.
    honest = certificate.scope == "frozen" or (
        g.M.scope == "pipeline" and (bool(constant) or (not stated and not noise.complete))
    )
    if not honest:
        refusal = f"{noise.line} noise is not known to be the same for every input: the scope is frozen, not pipeline"
        return Check("scope", False, refusal), x
    if stated and certificate.scope == "pipeline":
        return Check("scope", True, f"this is about {STATED}, and the pipeline's noise was not given", False), x
    return Check("scope", True, SCOPES[certificate.scope]), x


def claimable(certificate: Certificate) -> tuple[float, float | None]:
    """The bounds on the class and on its runner-up that the counts allow, by the bound that the evidence names."""
    bound = BY_NAME.get(certificate.evidence.bound)
    if bound is None:  # an unknown bound allows nothing
        return 0.0, None
    return bound.probabilities(certificate.evidence.ballot(certificate.prediction))


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


def constant_line(noise: Noise) -> bool:
    """Whether a record of version 0.1, whose noise is a line of text, names a kind that may claim the pipeline."""
    return getattr(kind_of(noise), "scope", None) == "pipeline"


def told(noise: Noise) -> bool:
    """Whether a certificate's Σ and μ determine its noise, if its kind is known here."""
    kind = kind_of(noise)
    return kind is None or kind is Stated or kind.tells(noise.settings)


def noise_of(certificate: Certificate, source: Generator | None = None) -> Generator:
    """The noise that a certificate states: its own Σ and μ, fixed, with the view of its source.

    A verdict against this noise relies on the certificate's own statement, and says so.
    """
    if source is not None and source.redrawn:  # drawn for every copy: there is no Σ to fix
        return source
    noise = certificate.evidence.noise
    if source is None and not told(noise):  # a view is part of the classifier, not of Σ
        raise InvalidInput(
            f"this certificate is about {noise.line} noise, which needs its network: give the trained run."
        )
    return Stated(certificate, source)


def noise_again(outcome: Certificate | Abstention, model: Any = None) -> Generator:
    """The noise of an outcome without its trained run: rebuilt by name, or as the certificate states it.

    Noise rebuilt by name must have the recorded state; a certificate's Σ and μ must determine its noise. ``model`` is the
    classifier, for noise that is optimised on it.
    """
    noise, shape = outcome.evidence.noise, None if isinstance(outcome, Abstention) else outcome.region.shape
    again = rebuilt(noise, Context(() if shape is None else shape, outcome.evidence.law, model=model))
    if again is not None:
        return again
    kind = kind_of(noise)
    if kind is None or not (told(noise) and (noise.constant if noise.complete else constant_line(noise))):
        raise InvalidInput(f"{noise.line} noise needs its generator: give the trained run's folder as --model.")
    if isinstance(outcome, Abstention):
        raise InvalidInput("every input of this run abstained, and only a certificate stores Σ.")
    return noise_of(outcome)
