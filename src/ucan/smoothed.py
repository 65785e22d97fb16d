"""The smoothed classifier g: the paper's two algorithms, a page each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ucan.bounds import majority_p_value, top_two_p_value
from ucan.budget import Budget
from ucan.certificate import Abstention, Certificate, Prediction, among_invalid
from ucan.choices import Bound, Test
from ucan.engine import Setup
from ucan.errors import InvalidInput
from ucan.estimators import as_estimator, check_classes, known_classes
from ucan.evidence import Evidence
from ucan.generators import Generator
from ucan.guards import check_inside
from ucan.held import Held
from ucan.laws import Law
from ucan.named_bounds import Ballot, bound_named
from ucan.plan import CertifyPlan, PredictPlan, Seed, given_seed
from ucan.questions.confidence import Confidence
from ucan.questions.question import Question
from ucan.questions.smoothed import AnyPlan, in_order
from ucan.questions.topk import TopK
from ucan.readiness import COMPANY as COMPANY
from ucan.rounding import ceil_digits, floor_digits
from ucan.seating import EXACT, Seating
from ucan.sizes import alm_of
from ucan.stop_option import parse_stop
from ucan.votes import ENUMERATED, Classifier, Votes

DEFAULT_CLASSES = 10  # where neither the user nor the model states their number


class SmoothedClassifier(Seating):
    """g(x) = the most probable answer of the classifier f under noise, argmax_c P(f(x + μ + Σε) = c).

    Args:
        model: f, a callable from a batch (n, *event) to logits (n, num_classes) or to class indices (n,), or a fitted
            estimator with ``predict`` (scikit-learn, XGBoost, …).
        law: the noise law, which draws ε.
        generator: the paper's M, which gives μ and Σ; isotropic noise if None.
        num_classes: the number of classes; if None, that of the model if it states one, else 10.
        backend: how f is run: "eager", "compile" (torch.compile), or "auto", the faster of the two.
        precision: what f computes in: "fp32", "tf32" or "bf16"; its own if None. Backend and precision are part of the
            classifier, so that the certified classifier is the one that predicts.
        model_id: a name for a model without PyTorch weights (a scikit-learn estimator, a function). Evidence, runs and
            registries identify the model by it; if None, by its code and the data it holds.
        step: makes the guarantee sound in floating point (docs/arithmetic.md). Inputs are whole multiples of it (1/255
            for 8-bit pictures; a tensor of the event's shape has one step per entry), noise is rounded to whole steps,
            and both are added exactly. Certificates then hold for changes by whole steps; an input off the grid is
            rounded first, which reduces its radius. If None, sums are computed in the inputs' precision, and guarantees
            hold in real arithmetic.
    """

    def __init__(
        self,
        model: Callable[[torch.Tensor], Any],
        law: Law,
        generator: Generator | None = None,
        num_classes: int | None = None,
        backend: str = "eager",
        precision: str | None = None,
        model_id: str | None = None,
        step: Any = None,
    ) -> None:
        model = as_estimator(model) or model
        check_classes(model, num_classes)
        known = known_classes(model) if num_classes is None else num_classes
        f = Classifier(model, DEFAULT_CLASSES if known is None else known, assumed=known is None)
        super().__init__(f, law, generator, backend, precision, model_id, step)

    def __repr__(self) -> str:
        """The call that makes it, with the arguments that are not the defaults; a module is shown by its class."""
        engine, model = self.engine, self.f.model
        name = getattr(model, "__qualname__", f"{type(model).__name__}(...)")
        given = [name, repr(self.law), repr(self.M), f"num_classes={self.f.num_classes}"]
        given += [f"backend={engine.backend!r}"] if engine.backend != "eager" else []
        given += [f"precision={engine.precision!r}"] if engine.precision is not None else []
        given += [f"model_id={engine.model_id!r}"] if engine.model_id is not None else []
        given += [f"step={self.step!r}"] if self.step is not None else []
        return f"{type(self).__name__}({', '.join(given)})"

    def certify(
        self,
        x: torch.Tensor,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        norm: float | None = 2,
        seed: Seed = 0,
        batch_size: int | None = None,
        bound: Bound = "binary",
        stop: Any = None,
        precision: str | None = None,
        family: int = 1,
        budget: Any = None,
        top: int | None = None,
        confidence: float | None = None,
    ) -> list[Any]:
        """Algorithm 1, UCAN-Certification, for each of a batch of inputs (batch, *event).

        With probability at least 1 − α, independently for each input, a certificate is true: the answer is its
        prediction at every x + δ with ‖Σ⁻¹δ‖ₚ < R. Its scope says which classifier this is about.

        Args:
            x: the inputs (batch, *event), in floating point.
            n0: the number of samples that choose the class.
            n: the number of samples that bound its probability.
            alpha: α, the probability with which a certificate may be false.
            norm: the norm of the radius: 1, 2 or math.inf. With a budget, noise without an ℓ2 radius uses its own norm
                unless a norm other than 2 is given.
            seed: the seed of the noise. None draws a random one and keeps it out of the certificates; "derived" computes
                it from model, noise and inputs, so that nobody can choose it.
            batch_size: noisy copies per forward pass; by the input's size if None.
            bound: "binary" bounds the top class and gives all other probability to the runner-up. "two-class" bounds the
                top class and the runner-up at α/2 each. "randomised" is "binary" with one uniform number that follows from
                the seed: never lower, and false with probability up to α. "anytime" is a little lower than "binary" and
                holds for every n at once, so that an input may be certified again with more votes. "exact" counts all draws
                of splitting noise instead of sampling: n0, n and α are not used. With ``stop`` the rule has a bound of its
                own.
            stop: ends sampling before n: a radius or several (stop when it is decided for each whether the radius
                reaches it; "0.5,linf:0.03" asks in several norms at once), or "5%" (stop when the radius is within 5% of
                what n samples could still give). The bound
                then holds at every stopping time, at the same α (docs/stopping.md); with bound="anytime", sampling can
                also be continued beyond n. With a budget, it is about ε instead of the radius.
            precision: "fp32", "tf32" or "bf16" uses a copy of the classifier in that precision; the certificate is then
                about the copy, and says so. None: the classifier itself.
            family: N, a number fixed in advance: α is shared by N certificates. Each is made at α/N, and all are true at
                once with probability at least 1 − α.
            budget: a number, a map of the input's shape or a ``ucan.Budget``. The certificate then also states the ε
                below which no change within ε·budget changes the answer (``budget_factor``; docs/shape.md).
            top: k asks another question: up to which change does each of the k most probable labels stay among the first k
                (``Among``; docs/tasks.md)? ``stop`` takes radii before Σ, in the region's own norm, without a budget.
            confidence: another question, too: up to which change does the class keep a smoothed probability of at least
                this (``Confident``)? As for ``top``.

        Returns:
            A certificate, or the answer to the other question, or an abstention, for each input, in order.
        """
        if top is not None or confidence is not None:
            settings = self.plan(n0, n, alpha, norm, batch_size, precision, family, stop, self.budget_of(budget, x))
            return self.ask(x, _question(top, confidence, bound), settings, seed)
        asked = self.budget_of(budget, x)
        plan = CertifyPlan(
            n0=n0,
            n=n,
            alpha=alpha,
            norm=self.norm_for(norm, asked),
            seed=given_seed(seed),
            batch_size=batch_size,
            bound=bound,
            stop=parse_stop(stop),
            precision=precision,
            family=family,
            budget=asked,
        )
        inputs = self.check_inputs(x, plan.norm)
        plan.check_family(len(inputs))
        return in_order(self.certify_each(inputs, self.seeded_for(inputs, plan, seed)))

    # --- Algorithm 1, from votes to a certificate: one page ---

    def certify_each(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan
    ) -> Iterator[tuple[int, Certificate | Abstention]]:
        """Yield (number, outcome) for inputs (1, *event) as each is finished; inputs may share forward passes."""
        if plan.stop is not None:
            yield from self._certify_stopping(inputs, plan)
        elif plan.bound == "exact":
            yield from self._certify_exact(inputs, self.counting(plan))
        else:
            yield from self._certify_fixed(inputs, plan)

    def _certify_fixed(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan
    ) -> Iterator[tuple[int, Certificate | Abstention]]:
        """Algorithm 1 in the paper's symbols: n0 samples choose the class, n others bound its probability."""
        phases = {"select": plan.n0, "estimate": plan.n}
        for setup, i, request, (select, votes) in self.engine.counted(inputs, plan, phases):  # μ, Σ ← M
            with self.engine.beside(request.x.device):
                outcome = self._bound(setup, request.M, request.x, select.counts, votes, plan)
            yield i, outcome

    def _bound(
        self,
        setup: Setup,
        M: Generator,
        x: torch.Tensor,
        counts_select: torch.Tensor | None,
        votes: Votes,
        plan: CertifyPlan,
    ) -> Certificate | Abstention:
        """The end of Algorithm 1: the class that n0 samples chose, its probability bounded by n others.

        Where all draws were counted no others chose the class.
        """
        n, alpha = plan.n, plan.level
        c_A = int((votes.counts if counts_select is None else counts_select).argmax())
        n_A, n_B = int(votes.counts[c_A]), largest_other(votes.counts, c_A)
        n0 = 0 if counts_select is None else plan.n0
        evidence = self.engine.evidence(setup, x, votes, counts_select, n0, n, plan, plan.bound)
        p_A, p_B = bound_named(plan.bound).probabilities(Ballot(n_A, n_B, n, alpha, uniform=evidence.uniform))
        tau = 0.0 if plan.bound == EXACT else self.arithmetic_error(M, x)
        p_A, p_B = max(0.0, p_A - tau), None if p_B is None else min(1.0, p_B + tau)
        return self.conclude(M, x, c_A, p_A, p_B, evidence, plan)

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
        norm, budget = plan.norm, plan.budget
        R = self.law.radius(p_A, norm, x.numel(), p_B)  # 0 if p_A does not beat its rival
        if R == 0:
            rival = "1/2" if p_B is None else f"the runner-up's bound {ceil_digits(p_B, 6)}"
            reason = f"the lower bound {floor_digits(p_A, 6)} on the probability of class {c_A} is not above {rival}"
            return Abstention(norm, M.scope, evidence, reason + among_invalid(evidence), p_A, budget)
        region, mu = self.sizes.region(M, x, p_A, p_B, norm), M.stated(x)[0]
        if region is None:
            reason = "the input is no whole multiple of its step, and rounding it takes all of the radius"
            return Abstention(norm, M.scope, evidence, reason, p_A, budget)
        check_inside(self.M, M, x, region, self.law)
        return Certificate(
            norm,
            M.scope,
            evidence,
            prediction=c_A,
            p_lower=p_A,
            p_upper=p_B,
            region=region,
            alm=alm_of(region, self.law, p_A, p_B, norm),
            mean=mu.detach().cpu() if mu.any() else None,
            budget=budget,
            budget_factor=None if budget is None else self.sizes.budget_factor(M, x, p_A, p_B, budget, region),
        )

    # --- Algorithm 1 by other ways to count: all draws, until a rule is satisfied, watched ---

    def _certify_exact(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan
    ) -> Iterator[tuple[int, Certificate | Abstention]]:
        """Algorithm 1 with all draws of the noise: they choose the class, too, and its probability is their share."""
        for setup, i, request, (votes,) in self.engine.counted(inputs, plan, {ENUMERATED: plan.n}):
            with self.engine.beside(request.x.device):
                outcome = self._bound(setup, request.M, request.x, None, votes, plan)
            yield i, outcome

    def _certify_stopping(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan
    ) -> Iterator[tuple[int, Certificate | Abstention]]:
        """Algorithm 1 with a bound that holds at every stopping time, many inputs side by side."""
        for setup, candidate in self.settled(inputs, plan, self):
            yield candidate.index, self.concluded(setup, candidate, plan)

    def certify_watched(self, x: torch.Tensor, plan: CertifyPlan) -> Iterator[Votes | Certificate | Abstention]:
        """Algorithm 1 for one input (1, *event), step by step: its votes so far after each pass, then its outcome.

        The outcome is that of ``certify``. The votes before the end certify nothing: the bound is for n votes, a number
        fixed in advance, and does not hold at other numbers of votes.
        """
        if plan.stop is not None:
            raise InvalidInput("sampling that stops early cannot be watched: leave stop= out.")
        inputs, plan, phase = self.check_inputs(x, plan.norm), self.counting(plan), "estimate"
        begun: Iterable[tuple[Setup, int, torch.Tensor, Generator, torch.Tensor | None]]
        if plan.bound == EXACT:  # all draws choose the class, too
            begun, phase = ((*each, None) for each in self.engine.held(inputs, plan)), ENUMERATED
        else:
            begun = self.engine.selected(inputs, plan, plan.n0)
        for setup, _, x1, M, counts_select in begun:
            for votes in setup.running_votes(M, x1, plan.n, plan.seed, phase):
                yield votes
            yield self._bound(setup, M, x1, counts_select, votes, plan)

    # --- Algorithm 2 ---

    def predict(
        self,
        x: torch.Tensor,
        n: int = 1000,
        alpha: float = 0.001,
        seed: Seed = 0,
        test: Test = "majority",
        batch_size: int | None = None,
        stop: bool = False,
        precision: str | None = None,
    ) -> list[Prediction | Abstention]:
        """Algorithm 2, UCAN-Prediction, for each of a batch of inputs: g(x), or an abstention.

        An answer differs from g(x) with probability at most α.

        Args:
            x: the inputs (batch, *event), in floating point.
            n: the number of samples.
            alpha: α, the probability with which an answer may be wrong.
            seed: the seed of the noise, as for ``certify``.
            test: "majority" is the paper's test (one-sided, so that it holds for any number of classes); "top-two" also
                answers where no class has a majority; "exact" counts all draws of splitting noise and is never wrong.
            batch_size: noisy copies per forward pass; by the input's size if None.
            stop: if True, 100 votes name the class and others test it, until it is decided, or cannot be decided with n
                votes; at most n votes.
            precision: as for ``certify``.

        Returns:
            A prediction or an abstention for each input, in order.
        """
        plan, inputs = PredictPlan(n, alpha, given_seed(seed), test, batch_size, stop, precision), self.check_inputs(x)
        return in_order(self.predict_each(inputs, self.seeded_for(inputs, plan, seed)))

    def predict_each(
        self, inputs: Iterable[torch.Tensor], plan: PredictPlan
    ) -> Iterator[tuple[int, Prediction | Abstention]]:
        """Yield (number, outcome) for inputs (1, *event) as each is finished; inputs may share forward passes."""
        if plan.stop:
            yield from self._predict_stopping(inputs, plan)
        else:
            plan, phase = self.counting(plan), ENUMERATED if plan.test == EXACT else "predict"
            for setup, i, request, (votes,) in self.engine.counted(inputs, plan, {phase: plan.n}):  # μ, Σ ← M
                yield i, self._test(setup, request.M, request.x, votes, plan)

    def _test(
        self, setup: Setup, M: Generator, x: torch.Tensor, votes: Votes, plan: PredictPlan
    ) -> Prediction | Abstention:
        """The end of Algorithm 2, in the paper's symbols: test whether the leading class is ahead."""
        n, alpha = plan.n, plan.alpha
        c_A = int(votes.counts.argmax())
        n_A, n_B = int(votes.counts[c_A]), largest_other(votes.counts, c_A)
        tau = self.arithmetic_error(M, x)
        if plan.test == EXACT:
            p_value = 0.0 if n_A > n_B else 1.0
        elif plan.test == "majority":
            p_value = majority_p_value(n_A, n, 0.5 + tau)
        else:  # each vote differs from the ideal one with probability at most τ
            p_value = min(1.0, top_two_p_value(n_A, n_B) + n * tau)

        with self.engine.beside(x.device):
            evidence = self.engine.evidence(setup, x, votes, None, 0, n, plan, plan.test)
        if p_value <= alpha:
            return Prediction(None, M.scope, evidence, prediction=c_A, p_value=p_value)
        reason = f"class {c_A} leads with {n_A} of {n} votes, too few for the {plan.test} test at alpha = {alpha:g}"
        return Abstention(None, M.scope, evidence, reason + among_invalid(evidence))

    def _predict_stopping(
        self, inputs: Iterable[torch.Tensor], plan: PredictPlan
    ) -> Iterator[tuple[int, Prediction | Abstention]]:
        """Algorithm 2 with a test that may look after every block."""
        for setup, candidate in self.settled(inputs, plan, self):
            yield candidate.index, self._tested(setup, candidate, plan)

    # --- votes alone, and the same model otherwise ---

    def votes(self, x: torch.Tensor, n: int, seed: int, phase: str, precision: str | None = None) -> Votes:
        """n votes on one input (1, *event), from their own stream of noise, named by ``phase``."""
        (x1,) = self.check_inputs(x)
        setup = self.engine.setup(x1, PredictPlan(n=n, seed=seed, precision=precision))
        return setup.classify_samples(self.held_at(x1), x1, n, seed, phase)

    def count_all(self, x: torch.Tensor, precision: str | None = None) -> Votes:
        """The votes of all draws of the noise on one input (1, *event)."""
        (x1,) = self.check_inputs(x)
        plan = self.counting(PredictPlan(test="exact", precision=precision))
        setup = self.engine.setup(x1, plan)
        return setup.classify_samples(self.held_at(x1), x1, plan.n, 0, ENUMERATED)

    def on_grid(self, step: Any) -> SmoothedClassifier:
        """The same classifier under the same noise on the grid of this step; None: in real arithmetic."""
        return self.again(step=step)

    def holding(self, held: Held | None) -> SmoothedClassifier:
        """The classifier at an input with these held values, under the same noise; itself if nothing is held.

        Its model must be a classifier of rows, which has ``at`` (``ucan.held``).
        """
        if held is None:
            return self
        at = getattr(self.f.model, "at", None)
        if at is None:
            raise InvalidInput(f"{type(self.f.model).__name__} is not a classifier of rows, so no columns can be held.")
        made = self.again(f=self.f.reading(at(held)))
        made.engine = self.engine.placed(made.engine)
        return made

    @property
    def alm_cap(self) -> float | None:
        """The largest scale that any direction of the noise can have, including λ; ALM is compared under this cap."""
        largest = self.M.cap()
        return None if largest is None else self.law.scale * largest

    # --- what runs ask of a classifier, this one or a router (``ucan.Routed``) ---

    @property
    def parts(self) -> tuple[SmoothedClassifier, ...]:
        """The smoothed classifiers that it is made of: itself."""
        return (self,)

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return self.f.num_classes

    # --- what both algorithms stand on ---

    def norm_for(self, norm: float | None, budget: Budget | None) -> Any:
        """The norm of the radius: the given one; with a budget, the noise's own norm if it has no ℓ2 radius."""
        if budget is None or norm not in (None, 2):
            return norm
        return self.M.usual_norm(self.law, budget=True)

    def counting(self, plan: AnyPlan) -> AnyPlan:
        """The plan, with the number of all draws of the noise as its n if they are all to be counted."""
        if EXACT not in (getattr(plan, "bound", None), getattr(plan, "test", None)):
            return plan
        turns = self.M.turns(self.law)
        if turns is None:
            raise InvalidInput(
                f"the draws of {self.M.describe()} noise cannot all be counted: use splitting noise (ucan.Splitting), or "
                "another bound or test."
            )
        return replace(plan, n=turns)


def largest_other(counts: torch.Tensor, c_A: int) -> int:
    """The runner-up's count: bounding it bounds the true runner-up, whose count is no larger."""
    others = counts.clone()
    others[c_A] = -1
    return int(others.max())


def _question(top: int | None, confidence: float | None, bound: str) -> Question:
    """The question that ``certify`` is asked instead of its own."""
    if top is not None and confidence is not None:
        raise InvalidInput("top= and confidence= are two questions: ask one at a time.")
    if bound != "binary":
        raise InvalidInput("top= and confidence= have a bound of their own: leave bound= out.")
    return Confidence(confidence) if confidence is not None else TopK(1 if top is None else top)
