"""A classifier takes the place of another (quantised, compiled, fine-tuned): its certificate from few votes in pairs.

Both classifiers vote on the same noise. The new one answers c wherever the old one did and this vote was not lost:

    p_new = p_old − P(the old one says c, the new one does not) + P(the new one says c, the old one does not).

The votes of the old certificate tell the first, the votes in pairs the rest. Where the old votes were a fixed number, one test
of both together bounds the difference at α (``ucan.named_bounds.Joint``). Otherwise each has a bound of its own, at α/2
(``ucan.named_bounds.Paired``). Where few votes change, few pairs do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from ucan.arithmetic import arithmetic_of
from ucan.bounds import at_most_p_value
from ucan.certificate import Abstention, Certificate
from ucan.engine import Setup
from ucan.errors import InvalidInput
from ucan.evidence import Evidence, Pairs
from ucan.named_bounds import AFTER_ABSTENTION, BY_NAME, COUNTS, IN_PAIRS, bound_named
from ucan.plan import CertifyPlan, Seed, check_count, given_seed, random_seed
from ucan.rounding import floor_digits
from ucan.sidecar import input_hash
from ucan.smoothed import SmoothedClassifier
from ucan.votes import Job, Stream, VoteCounter, Votes, blocks

# Below this α the probabilities of a joint test are no longer computed to the digits that it needs.
LEAST_ALPHA = 1e-8
# Votes in pairs for each vote of the old certificate, if no number is given.
SHARE = 0.1
# The level of the test of the old classifier's votes in pairs against its certificate: a true one is refused no more often.
CONTRADICTED = 1e-8


@dataclass(frozen=True)
class Way:
    """How the votes of an old certificate are gone on from: the name of the bound that joins them to votes in pairs, of α what
    fresh votes have where the class is nearly sure, and what they have where the old classifier abstained.

    Pairs pay up to the p_lower ``pays(m)``. Both shares are such that all ways together are wrong with probability at most α
    (docs/recertify.md).
    """

    bound: str
    fresh: float
    abstained: float

    @classmethod
    def after(cls, evidence: Evidence) -> Way:
        """The way that goes on from this evidence: fixed before its first vote."""
        if evidence.bound in COUNTS and evidence.planned and evidence.alpha >= LEAST_ALPHA:
            return cls("joint", 1 - AFTER_ABSTENTION, AFTER_ABSTENTION)
        return cls("paired", 1 - IN_PAIRS, 1 - IN_PAIRS)

    def pays(self, m: int) -> float:
        """Above this p_lower, what m pairs cannot exclude is more than what there is to lose: fresh votes are as good."""
        return 1 - 20 / m if self.bound == "joint" else 0.992


def selecting(evidence: Evidence) -> int:
    """How many votes choose the class of fresh ones: as many as chose it for the first classifier, else the usual number.

    Votes in pairs choose none.
    """
    *_, first = lineage(evidence)
    return first.n0 or CertifyPlan.n0


def lineage(evidence: Evidence) -> Iterator[Evidence]:
    """The evidence, and all that it goes on from, back to the first classifier's."""
    yield evidence
    while evidence.pairs is not None:
        evidence = evidence.pairs.before
        yield evidence


def recertify(
    certificate: Certificate,
    old: SmoothedClassifier,
    new: SmoothedClassifier,
    x: torch.Tensor,
    m: int | None = None,
    seed: Seed = None,
) -> Certificate | Abstention:
    """A certificate of ``new`` at the input x (1, *event), at the level of ``certificate``, which is about ``old`` there.

    ``m`` votes are drawn, by default a tenth of the old certificate's. Up to a p_lower (``Way.pays``) they are cast by both
    classifiers, in pairs; above, by the new one alone, whose class is then chosen anew. Which of the two it is follows
    from the old certificate, before any vote. ``seed`` as for ``certify``, by default one that nobody knows; it must not
    be that of the old certificate, or of one that this goes on from. Law, noise, classes and arithmetic of both
    classifiers are the same. If the old classifier's votes in pairs reject its own certificate, at the level 1e-8, that
    is an error.
    """
    evidence = certificate.evidence
    m = max(100, math.ceil(SHARE * evidence.n)) if m is None else m
    check_count("m", m)
    (x,) = new.check_inputs(x, certificate.norm)
    check_replaceable(certificate)
    _check_same(certificate, old, new, x)
    _check_follows(certificate, old, x)
    if seed == "derived":
        raise InvalidInput("recertify takes no derived seed: give a number, or None for one that nobody knows.")
    number = random_seed() if seed is None else given_seed(seed)
    if number in {before.seed for before in lineage(evidence)}:
        raise InvalidInput(
            f"seed {number} is that of the certificate, or of one that it goes on from: votes in pairs need another one."
        )
    plan = CertifyPlan(
        n0=selecting(evidence),
        n=m,
        alpha=evidence.alpha * evidence.family,
        norm=certificate.radius_norm,
        seed=number,
        family=evidence.family,
        budget=certificate.budget,
    )
    way = Way.after(evidence)
    if certificate.p_lower > way.pays(m):
        ((_, fresh),) = new.certify_each([x], replace(plan, alpha=way.fresh * plan.alpha))
        return fresh
    return _paired(certificate, old, new, x, plan, way.bound)


def check_replaceable(certificate: Certificate) -> None:
    """Refuse a certificate that votes in pairs cannot go on from, whatever the classifiers are."""
    evidence = certificate.evidence
    _refuse(
        {
            "the certificate is a router's: certify the new router by itself": certificate.choice is not None,
            "its scope is registry: certify in the registry itself": certificate.scope == "registry",
            f"its bound, {evidence.bound}, is unknown": evidence.bound not in BY_NAME,
            "the certificate is about a copy of the old classifier in another precision": evidence.copy,
            # A model without an identity never matches another: the votes may be of any.
            "the certificate does not identify its model: give the old classifier a model_id (--model-id), and certify it "
            "again": evidence.identity is None,
        }
    )


def _check_same(certificate: Certificate, old: SmoothedClassifier, new: SmoothedClassifier, x: torch.Tensor) -> None:
    """Refuse a certificate that is not the old classifier's at x, and classifiers that differ in more than the model."""
    evidence = certificate.evidence
    _refuse(
        {
            "the certificate is about another input": not evidence.is_about(x),
            "the certificate is not of the old classifier": old.engine.identity() != evidence.identity,
            "the certificate is about another law or another noise": old.law != evidence.law
            or bool(evidence.noise.differences(old.M.record())),
            "the classifiers have different laws": old.law != new.law,
            "the classifiers have different noise": bool(old.M.record().differences(new.M.record())),
            "the classifiers have different numbers of classes": not (
                old.f.num_classes == new.f.num_classes == len(evidence.counts)
            ),
            "the classifiers have different arithmetics": arithmetic_of(old.grid) != arithmetic_of(new.grid),
        }
    )


def _refuse(found: Mapping[str, bool]) -> None:
    """Raise an error with the first of these sentences that is true."""
    for what, wrong in found.items():
        if wrong:
            raise InvalidInput(f"recertify: {what}.")


def _check_follows(certificate: Certificate, old: SmoothedClassifier, x: torch.Tensor) -> None:
    """Refuse a certificate whose p_lower is not that of its votes: one of the two was changed since."""
    evidence = certificate.evidence
    tau = 0.0 if evidence.bound == "exact" else old.arithmetic_error(old.held_at(x), x)
    p_A, _ = bound_named(evidence.bound).probabilities(evidence.ballot(certificate.prediction))
    if not math.isclose(max(0.0, p_A - tau), certificate.p_lower, rel_tol=1e-6):
        raise InvalidInput(
            f"recertify: the certificate's p_lower is {certificate.p_lower:.6g}, but its votes give {max(0.0, p_A - tau):.6g}: "
            "the record was changed or is damaged. Certify the input again."
        )


def _check_supported(certificate: Certificate, hits: int, m: int) -> None:
    """Refuse a certificate that the old classifier's own votes in pairs reject: ``hits`` of m were for its class."""
    if at_most_p_value(hits, m, certificate.p_lower) <= CONTRADICTED:
        raise InvalidInput(
            f"recertify: {hits:,} of {m:,} new votes of the old classifier are for class {certificate.prediction}, but its "
            f"certificate claims a probability of at least {floor_digits(certificate.p_lower, 6)}: the record was "
            "changed, or its votes are of another classifier. Certify the new classifier with `ucan certify`."
        )


def _paired(
    certificate: Certificate,
    old: SmoothedClassifier,
    new: SmoothedClassifier,
    x: torch.Tensor,
    plan: CertifyPlan,
    bound: str,
) -> Certificate | Abstention:
    """The claim of the new classifier from votes of both on the same noise, by the bound of this name."""
    c_A, M, stream = certificate.prediction, new.held_at(x), Stream(plan.seed, input_hash(x), "pairs")
    setup = new.engine.setup(x, plan)
    before, now = (
        _in_order(ready.counter, Job(g.held_at(x), x, stream, 0, 0), plan.n)
        for g, ready in ((old, _as_then(certificate.evidence, old, x, plan)), (new, setup))
    )
    _check_supported(certificate, int((before == c_A).sum()), plan.n)
    lost, gained = (int(((one == c_A) & (other != c_A)).sum()) for one, other in ((before, now), (now, before)))
    votes = Votes.of(torch.bincount(now, minlength=new.f.num_classes + 1))
    made = new.engine.evidence(setup, x, votes, None, 0, plan.n, plan, bound)
    evidence = replace(
        made, phase=stream.phase, streams={stream.phase: stream.key}, pairs=Pairs(certificate.evidence, lost, gained)
    )
    p_A, _ = bound_named(bound).probabilities(evidence.ballot(c_A))
    p_A = max(0.0, p_A - new.arithmetic_error(M, x))
    return new.conclude(M, x, c_A, p_A, None, evidence, plan)


def _as_then(evidence: Evidence, old: SmoothedClassifier, x: torch.Tensor, plan: CertifyPlan) -> Setup:
    """The old classifier, run as it was for its certificate: run otherwise it rounds otherwise, and has another p."""
    with old.engine.running(evidence.backend):
        setup = old.engine.setup(x, plan)
    then, here = (evidence.backend, evidence.precision), (setup.backend.name, setup.backend.precision)
    if then != here:
        ran, runs = (f"{backend} in {precision}" for backend, precision in (then, here))
        raise InvalidInput(
            f"recertify: the old classifier ran {ran} for its certificate, and runs {runs} here: give it as it was, or "
            "certify the new one by itself."
        )
    return setup


def _in_order(counter: VoteCounter, first: Job, n: int) -> torch.Tensor:
    """The n votes of a stream in their order, on the host; ``first`` says of what."""
    jobs = [replace(first, number=number, take=take) for number, take in blocks(n, counter.block)]
    turns = (jobs[i : i + counter.slots] for i in range(0, len(jobs), counter.slots))
    rows = torch.cat([counter.answers(turn).cpu() for turn in turns])
    return rows.flatten()[:n]
