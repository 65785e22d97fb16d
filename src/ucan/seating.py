"""Inputs side by side on the engine, for both algorithms: how each begins, when its votes end, and its outcome then."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from ucan.certificate import Abstention, Certificate, Prediction, among_invalid
from ucan.engine import Setup
from ucan.evidence import Evidence
from ucan.generators import Generator
from ucan.named_bounds import bound_named
from ucan.plan import CertifyPlan, PredictPlan
from ucan.questions.smoothed import AnyPlan, Smoothed
from ucan.sequential import AllVotes, Candidate, Selecting
from ucan.sidecar import input_hash
from ucan.stopping import AnytimeRadii, Case, Radius, Stop
from ucan.votes import ENUMERATED, Stream, Votes, stream_of

EXACT = "exact"  # the bound, and the test, by counting all draws of the noise
# Number of votes that name the class of a prediction that may stop early.
NAMING = 100


class Seating(Smoothed, ABC):
    """A smoothed classifier whose inputs share forward passes, each with a rule that ends its votes, or with all n of them.

    ``begun`` makes an input a candidate, and ``ended`` makes an outcome of its votes; ``unfinished`` is the abstention for
    votes that were cut off. How votes after a fixed n become an outcome is written with the algorithms.
    """

    def rule(self, plan: CertifyPlan | PredictPlan) -> Stop:
        """The rule that ends the votes of a plan; without one all of its n votes are used."""
        if isinstance(plan, CertifyPlan):
            return plan.stop or AllVotes()
        return AnytimeRadii((0.0,)) if plan.stop else AllVotes()

    def begun(self, setup: Setup, i: int, x: torch.Tensor, M: Generator, plan: CertifyPlan | PredictPlan) -> Candidate:
        """One input (1, *event) before its first vote, for either algorithm, with a stopping rule or without."""
        name, counter, stop = input_hash(x), setup.counter, self.rule(plan)
        if EXACT in (getattr(plan, "bound", None), getattr(plan, "test", None)):  # all draws name the class, too
            return Candidate(i, x, M, stream_of(plan.seed, name, ENUMERATED), 0, _majority(0.0))
        if isinstance(plan, CertifyPlan):
            n0, phase, radius = plan.n0, "estimate", self.decided(M, x, plan)
        else:
            n0, phase, radius = NAMING, "predict", _majority(self.arithmetic_error(M, x))
            if not plan.stop:  # the paper's test names the class by the votes that it looks at
                return Candidate(i, x, M, Stream(plan.seed, name, phase), 0, radius)
        lead = stop.lead(Case(plan.n, plan.level, radius, counter.block), n0)
        tally = np.zeros(counter.num_classes + 1, dtype=np.int64)
        selecting = Selecting(Stream(plan.seed, name, "select"), n0, lead, tally)
        return Candidate(i, x, M, Stream(plan.seed, name, phase), 0, radius, selecting)

    def ended(
        self, setup: Setup, candidate: Candidate, plan: CertifyPlan | PredictPlan
    ) -> Certificate | Abstention | Prediction:
        """The outcome for a candidate that ``begun`` made, when its rule or its cap has ended its votes."""
        if isinstance(plan, PredictPlan):
            if plan.stop:
                return self._tested(setup, candidate, plan)
            return self._test(setup, candidate.M, candidate.x, Votes.of(candidate.tally), plan)
        if plan.stop is not None:
            return self.concluded(setup, candidate, plan)
        selection = None if candidate.chosen is None else torch.from_numpy(candidate.chosen.tally[:-1])
        votes = Votes.of(candidate.tally)
        with self.engine.beside(candidate.x.device):
            return self._bound(setup, candidate.M, candidate.x, selection, votes, plan)

    def concluded(self, setup: Setup, candidate: Candidate, plan: CertifyPlan) -> Certificate | Abstention:
        """The outcome for a candidate's votes, by the bound of its stopping rule."""
        M, x, rule = candidate.M, candidate.x, plan.stop or AllVotes()
        with self.engine.beside(x.device):
            evidence = self._stopped(setup, candidate, plan, rule.bound, rule.thresholds(candidate.radius))
            p_A, _ = bound_named(rule.bound).probabilities(evidence.ballot(candidate.c_A))
            p_A = max(0.0, p_A - self.arithmetic_error(M, x))
            return self.conclude(M, x, candidate.c_A, p_A, None, evidence, plan)

    def _tested(self, setup: Setup, candidate: Candidate, plan: PredictPlan) -> Prediction | Abstention:
        """The answer for a candidate's votes: whether the class that was named has a majority."""
        hits, drawn, c_A, M, rule = candidate.hits, candidate.drawn, candidate.c_A, candidate.M, self.rule(plan)
        tau = self.arithmetic_error(M, candidate.x)
        with self.engine.beside(candidate.x.device):
            evidence = self._stopped(setup, candidate, plan, rule.bound)
        p_value = bound_named(rule.bound).p_value(evidence.ballot(c_A), tau)
        if p_value <= plan.alpha:
            return Prediction(None, M.scope, evidence, prediction=c_A, p_value=p_value)
        reason = f"class {c_A} has {hits} of {drawn} votes, too few to be sure of a majority"
        return Abstention(None, M.scope, evidence, reason + among_invalid(evidence))

    def unfinished(
        self,
        setup: Setup,
        x: torch.Tensor,
        candidate: Candidate | None,
        plan: CertifyPlan | PredictPlan,
        reason: str,
    ) -> Abstention:
        """The abstention for an input (1, *event) whose votes were cut off, with those there are; None: there are none.

        They prove nothing, since no rule ended them, and nothing is claimed.
        """
        votes = torch.zeros(setup.counter.num_classes + 1, dtype=torch.int64)
        selection, n0, n = None, 0, 0
        if candidate is not None:
            choosing = candidate.chosen or candidate.selecting
            if choosing is not None:
                selection, n0 = torch.from_numpy(choosing.tally[:-1]), choosing.drawn
            if candidate.drawn:
                votes, n = candidate.tally, candidate.drawn
        norm, budget, bound = (
            (plan.norm, plan.budget, plan.bound) if isinstance(plan, CertifyPlan) else (None, None, plan.test)
        )
        named = bound if plan.rule is None else self.rule(plan).bound
        with self.engine.beside(x.device):
            evidence = self.engine.evidence(setup, x, Votes.of(votes), selection, n0, n, plan, named)
        return Abstention(norm, self.M.scope, evidence, reason, budget=budget)

    def decided(self, M: Generator, x: torch.Tensor, plan: CertifyPlan) -> Radius:
        """The map from p to what a stopping rule decides at x, and its inverse."""
        with self.engine.beside(x.device):
            return self.sizes.decided(M, x, plan)

    def _stopped(
        self, setup: Setup, candidate: Candidate, plan: AnyPlan, bound: str, thresholds: tuple[float, ...] = ()
    ) -> Evidence:
        """The evidence of votes that a rule ended."""
        chosen = candidate.chosen
        assert chosen is not None, "its class was chosen before its first vote"
        selection, votes = torch.from_numpy(chosen.tally[:-1]), Votes.of(candidate.tally)
        n0, n = chosen.drawn, candidate.drawn
        return self.engine.evidence(setup, candidate.x, votes, selection, n0, n, plan, bound, thresholds)

    # --- the algorithms ---

    @abstractmethod
    def _bound(
        self,
        setup: Setup,
        M: Generator,
        x: torch.Tensor,
        counts_select: torch.Tensor | None,
        votes: Votes,
        plan: CertifyPlan,
    ) -> Certificate | Abstention:
        """The end of Algorithm 1, after n votes; ``counts_select`` chose the class, None where all draws were counted."""

    @abstractmethod
    def conclude(
        self,
        M: Generator,
        x: torch.Tensor,
        c_A: int,
        p_A: float,
        p_B: float | None,
        evidence: Evidence,
        plan: CertifyPlan,
    ) -> Certificate | Abstention:
        """From bounds on the probabilities to a certificate, or to an abstention with its reason."""

    @abstractmethod
    def _test(
        self, setup: Setup, M: Generator, x: torch.Tensor, votes: Votes, plan: PredictPlan
    ) -> Prediction | Abstention:
        """The end of Algorithm 2, after n votes."""


def _majority(tau: float) -> Radius:
    """The target of a prediction: more than half of the votes; a share τ of them may be due to the arithmetic."""
    return Radius(of=lambda p: p - 0.5 - tau, probability=lambda r: 0.5 + tau + r)
