"""A model under noise, whatever it is asked: the common part of the smoothed classifier, regressor and segmenter."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Self, TypedDict, TypeVar, Unpack

import torch

from ucan.arithmetic import Grid
from ucan.budget import Budget
from ucan.certificate import Abstention, Scope
from ucan.choices import PRECISIONS, check_choice
from ucan.engine import Engine, Setup
from ucan.errors import InvalidInput
from ucan.fingerprint import has_weights
from ucan.generators import Generator, Isotropic
from ucan.guards import as_drawn, check_lost
from ucan.json_text import check_text
from ucan.laws import Law
from ucan.plan import CertifyPlan, DerivedSeed, PredictPlan, Seed, given_seed, random_seed
from ucan.questions.enquiry import Enquirer
from ucan.questions.looks import question_stop
from ucan.questions.question import Asked, Question
from ucan.questions.record import Answer
from ucan.questions.shift import Shift
from ucan.readiness import Readiness
from ucan.sidecar import batch_hash
from ucan.sizes import Sizes
from ucan.votes import Classifier

AnyPlan = TypeVar("AnyPlan", CertifyPlan, PredictPlan)


class Parts(TypedDict, total=False):
    """What a smoothed model is made of."""

    f: Classifier
    law: Law
    generator: Generator | None
    backend: str
    precision: str | None
    model_id: str | None
    step: Any


class Smoothed:
    """A model f under the noise of a law and a generator; ``f`` reads the model's answers."""

    def __init__(
        self,
        f: Classifier,
        law: Law,
        generator: Generator | None,
        backend: str,
        precision: str | None,
        model_id: str | None,
        step: Any,
    ) -> None:
        check_law(law)
        if generator is not None:
            check_generator(generator)
        if generator is not None and getattr(generator, "scope", None) not in ("pipeline", "frozen"):
            raise InvalidInput(f"{type(generator).__name__} must declare its scope, pipeline or frozen.")
        if precision is not None:
            check_choice("precision", precision, PRECISIONS)
        check_text("model_id", model_id, needed=False)
        if model_id is not None and has_weights(f.model):
            raise InvalidInput("this model is identified by its weights: leave model_id out.")
        self.f, self.law = f, law
        self.M = (Isotropic() if generator is None else generator).eval()
        self.grid = Grid.of(step)
        self.engine = Engine(self.f, self.M, law, backend, precision, model_id, self.grid)
        self.sizes = Sizes(law, self.grid)
        self.readiness = Readiness(self.f, self.M, self.sizes)

    def __repr__(self) -> str:
        """The model by its name or class, its law and its noise."""
        model = getattr(self.f.model, "__qualname__", f"{type(self.f.model).__name__}(...)")
        return f"{type(self).__name__}({model}, {self.law!r}, {self.M!r})"

    def ask(self, x: torch.Tensor, question: Question, plan: CertifyPlan, seed: Seed = 0) -> list[Any]:
        """The answer to a question, or an abstention, for each of a batch of inputs (batch, *event), in order."""
        question.check(self.f, plan.stop)
        inputs = self.check_inputs(x, plan.norm)
        plan.check_family(len(inputs))
        return in_order(self.ask_each(inputs, self.seeded_for(inputs, plan, seed), question))

    def ask_each(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan, question: Question
    ) -> Iterator[tuple[int, Answer | Abstention]]:
        """Yield (number, answer) for inputs (1, *event) as each is finished; inputs share forward passes."""
        if self.M.turns(self.law) is not None:
            raise InvalidInput(
                f"{self.M.describe()} noise is not added to its input, and only certificates of one class are known for it."
            )
        if plan.stop is not None:
            enquirer = self.enquirer(question)
            for setup, enquiry in self.settled(inputs, plan, enquirer):
                yield enquiry.index, enquirer.ended(setup, enquiry, plan)
            return
        phases = {**({"select": plan.n0} if question.selects else {}), "estimate": plan.n}
        for setup, i, request, kept in self.engine.counted(inputs, plan, phases):  # μ, Σ ← M
            with self.engine.beside(request.x.device):
                shift = Shift.at(request.M, request.x, self.sizes, plan.norm)
                select = kept[0] if question.selects else None
                asked = Asked(self.engine, setup, request.M, request.x, plan, shift, select, kept[-1], plan.n)
                answer = question.conclude(asked)
            yield i, answer

    def settled(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan | PredictPlan, algorithm: Any
    ) -> Iterator[tuple[Setup, Any]]:
        """Each input, begun by an algorithm (its ``begun``), when the rule of the plan (its ``rule``) has ended its votes."""
        held = self.engine.held(inputs, plan)
        for first in held:  # none, or the first, to learn how votes are counted
            setup = first[0]
            begun = (algorithm.begun(setup, i, x, M, plan) for _, i, x, M in itertools.chain([first], held))
            for seated in self.engine.settled(setup, begun, algorithm.rule(plan), plan):
                yield setup, seated

    def enquirer(self, question: Question) -> Enquirer:
        """The model with a question, input by input."""
        return Enquirer(self.engine, self.sizes, question)

    def plan(
        self,
        n0: int,
        n: int,
        alpha: float,
        norm: float | None,
        batch_size: int | None,
        precision: str | None,
        family: int,
        stop: Any,
        budget: Budget | None = None,
    ) -> CertifyPlan:
        """The settings of a question: its norm is ℓ2 if none is given, or the noise's own where it has no ℓ2 region."""
        rule = question_stop(stop)
        if budget is not None and rule is not None:
            raise InvalidInput(
                "a question is stopped at radii, which are no factors of a budget: leave out stop= (--stop) or budget= "
                "(--budget)."
            )
        against = self.M.usual_norm(self.law, budget is not None) if norm is None else norm
        return CertifyPlan(n0, n, alpha, against, 0, batch_size, "binary", rule, precision, family, budget)

    def budget_of(self, value: Any, x: torch.Tensor) -> Budget | None:
        """The budget that ``certify`` is given, for inputs like x (batch, *event)."""
        if value is None:
            return None
        if not isinstance(x, torch.Tensor) or x.ndim < 2:
            raise InvalidInput("x must be a torch tensor of shape (batch, *event).")
        return Budget.of(value, x.shape[1:])

    def kept(self, x: torch.Tensor, n: int, seed: int, phase: str, precision: str | None = None) -> list[Any]:
        """What is kept of n answers to each of some inputs (batch, *event), from streams of their own."""
        plan = PredictPlan(n=n, seed=seed, precision=precision)
        return [found for *_, (found,) in self.engine.counted(self.check_inputs(x), plan, {phase: n})]

    def seeded(self, plan: AnyPlan, seed: Seed, data_hash: str) -> AnyPlan:
        """The plan with its seed: the given one; for None a random one; for "derived" one computed from model, noise and
        the data with this hash.
        """
        if seed is None:
            return replace(plan, seed=random_seed())
        if seed != "derived":
            return replace(plan, seed=given_seed(seed))
        if self.engine.identity() is None:
            raise InvalidInput(
                "this model cannot be identified, so no seed can be derived from it: give it a model_id."
            )
        return replace(plan, seed=DerivedSeed(self.engine.derived_seed(data_hash), data_hash))

    def seeded_for(self, inputs: list[torch.Tensor], plan: AnyPlan, seed: Seed) -> AnyPlan:
        """The plan with its seed, which may follow from these inputs."""
        return self.seeded(plan, seed, batch_hash(inputs) if seed == "derived" else "")

    def identity(self) -> str | None:
        """The model's identity."""
        return self.engine.identity()

    def held_at(self, x: torch.Tensor) -> Generator:
        """μ, Σ ← M at one input (1, *event); refused if the noise would be lost in rounding."""
        held = self.M.at(x)
        if self.grid is None:
            check_lost(held, x, self.law)
        return held

    def backend_for(self, x: torch.Tensor, plan: CertifyPlan | PredictPlan) -> str:
        """The name of the backend that will run f on inputs like x (1, *event): what ``auto`` chooses."""
        return self.engine.setup(x, plan).backend.name

    @property
    def step(self) -> float | torch.Tensor | None:
        """The step of the grid that inputs and noise lie on; None in real arithmetic."""
        return None if self.grid is None else self.grid.step

    @property
    def scope(self) -> Scope:
        """The scope of its guarantees without a registry."""
        return self.M.scope

    @property
    def own_norm(self) -> float | None:
        """The only norm that its noise was made for; None if the law decides."""
        return self.M.own_norm

    @property
    def precision(self) -> str | None:
        """What f computes in, where it was chosen."""
        return self.engine.precision

    def on_votes(self, tell: Callable[[int], None] | None) -> None:
        """Call this after every pass with the number of its votes."""
        self.engine.on_votes = tell

    def arithmetic_error(self, M: Generator, x: torch.Tensor) -> float:
        """τ: how far the votes on x (1, *event) may be from votes under ideal noise, in total variation; 0 if real."""
        with self.engine.beside(x.device):
            return self.sizes.error(M, x)

    def check_inputs(self, x: torch.Tensor, norm: float | None = None) -> list[torch.Tensor]:
        """The inputs as a list, each (1, *event) on the model's device; raises an error before any work."""
        return self.readiness.inputs(x, norm)

    def as_certified(self, x: torch.Tensor) -> torch.Tensor:
        """An input (1, *event) as its votes are counted, for who has not checked it."""
        return as_drawn(x, self.f.device or x.device)

    def again(self, **changed: Unpack[Parts]) -> Self:
        """The same with these parts changed: g.again(law=…), g.again(step=None)."""
        engine = self.engine
        own: Parts = {
            "f": self.f,
            "law": self.law,
            "generator": self.M,
            "backend": engine.backend,
            "precision": engine.precision,
            "model_id": engine.model_id,
            "step": self.step,
        }
        made = object.__new__(type(self))
        Smoothed.__init__(made, **(own | changed))
        made.on_votes(engine.on_votes)
        return made


def in_order(outcomes: Iterable[tuple[int, Any]]) -> list[Any]:
    """Outcomes by their numbers, from 0."""
    found = dict(outcomes)
    return [found[i] for i in range(len(found))]


def check_law(law: Any) -> None:
    """Refuse what is no noise law, such as its class."""
    if not isinstance(law, Law):
        raise InvalidInput(f"law must be a noise law such as ucan.Gaussian(scale=0.5), got {law!r}.")


def check_generator(generator: Any) -> None:
    """Refuse what is no generator, such as its class."""
    if not isinstance(generator, Generator):
        raise InvalidInput(f"generator must be a ucan.Generator such as ucan.Fixed(scale), got {generator!r}.")
