"""A model under noise, whatever it is asked: the common part of the smoothed classifier, regressor and segmenter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Self, TypeVar

import torch

from ucan.arithmetic import Grid
from ucan.certificate import Abstention
from ucan.choices import PRECISIONS, check_choice
from ucan.engine import Engine
from ucan.errors import InvalidInput
from ucan.fingerprint import has_weights
from ucan.generators import Generator, Isotropic
from ucan.guards import check_lost
from ucan.laws import Law
from ucan.plan import CertifyPlan, DerivedSeed, PredictPlan, Seed, given_seed, random_seed
from ucan.questions.decisions import Decided, Decisions, Rule
from ucan.questions.numbers import as_numbers
from ucan.questions.question import Asked, Question
from ucan.questions.readers import Labels, Numbers, Places
from ucan.questions.record import Answer
from ucan.questions.regression import Interval, Percentile
from ucan.questions.shift import Shift
from ucan.readiness import Readiness
from ucan.sidecar import batch_hash
from ucan.sizes import Sizes
from ucan.votes import Classifier

AnyPlan = TypeVar("AnyPlan", CertifyPlan, PredictPlan)


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
        if not isinstance(law, Law):
            raise InvalidInput(f"law must be a noise law such as ucan.Gaussian(scale=0.5), got {law!r}.")
        if generator is not None and not isinstance(generator, Generator):
            raise InvalidInput(f"generator must be a ucan.Generator such as ucan.Fixed(scale), got {generator!r}.")
        if generator is not None and getattr(generator, "scope", None) not in ("pipeline", "frozen"):
            raise InvalidInput(f"{type(generator).__name__} must declare its scope, pipeline or frozen.")
        if precision is not None:
            check_choice("precision", precision, PRECISIONS)
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
        question.check(self.f)
        inputs = self.check_inputs(x, plan.norm)
        if 1 < plan.family < len(inputs):
            raise InvalidInput(f"family is {plan.family}, but there are {len(inputs)} inputs: give at least that many.")
        outcomes = dict(self.ask_each(inputs, self.seeded(plan, seed, batch_hash(inputs)), question))
        return [outcomes[i] for i in range(len(outcomes))]

    def ask_each(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan, question: Question
    ) -> Iterator[tuple[int, Answer | Abstention]]:
        """Yield (number, answer) for inputs (1, *event) as each is finished; inputs share forward passes."""
        if self.M.turns(self.law) is not None:
            raise InvalidInput(
                f"{self.M.describe()} noise is not added to its input, and only certificates of one class are known for it."
            )
        phases = {**({"select": plan.n0} if question.selects else {}), "estimate": plan.n}
        for setup, i, request, kept in self.engine.counted(inputs, plan, phases):  # μ, Σ ← M
            with self.engine.beside(request.x.device):
                shift = Shift.at(request.M, request.x, self.sizes, plan.norm)
                select = kept[0] if question.selects else None
                asked = Asked(self.engine, setup, request.M, request.x, plan, shift, select, kept[-1])
                answer = question.conclude(asked)
            yield i, answer

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

    def arithmetic_error(self, M: Generator, x: torch.Tensor) -> float:
        """τ: how far the votes on x (1, *event) may be from votes under ideal noise, in total variation; 0 if real."""
        with self.engine.beside(x.device):
            return self.sizes.error(M, x)

    def check_inputs(self, x: torch.Tensor, norm: float | None = None) -> list[torch.Tensor]:
        """The inputs as a list, each (1, *event) on the model's device; raises an error before any work."""
        return self.readiness.inputs(x, norm)

    def again(self, generator: Generator | None = None, step: Any = ...) -> Self:
        """The same model under other noise, or with another step."""
        made = object.__new__(type(self))
        engine = self.engine
        used = self.step if step is ... else step
        Smoothed.__init__(
            made, self.f, self.law, generator or self.M, engine.backend, engine.precision, engine.model_id, used
        )
        made.engine.on_votes = engine.on_votes
        return made


class SmoothedRegressor(Smoothed):
    """g(x) = the percentile of the numbers that a model f gives under noise: of f(x + μ + Σε), for each output.

    Args:
        model: f, a callable from a batch (n, *event) to numbers (n,) or (n, *outputs), or a fitted regressor with
            ``predict`` (scikit-learn, XGBoost, …).
        law: the noise law, which draws ε; any with ``shifted``.
        generator: gives μ and Σ; isotropic noise if None.
        backend: how f is run, as for ``SmoothedClassifier``; so are ``precision``, ``model_id`` and ``step``.
        precision: what f computes in.
        model_id: a name for a model without PyTorch weights.
        step: the step of inputs on a grid.
    """

    def __init__(
        self,
        model: Callable[[torch.Tensor], Any],
        law: Law,
        generator: Generator | None = None,
        backend: str = "eager",
        precision: str | None = None,
        model_id: str | None = None,
        step: Any = None,
    ) -> None:
        super().__init__(Numbers(as_numbers(model)), law, generator, backend, precision, model_id, step)

    def certify(
        self,
        x: torch.Tensor,
        radius: Any = None,
        p: float = 0.5,
        within: float | None = None,
        n: int = 100_000,
        alpha: float = 0.001,
        norm: float | None = None,
        range: tuple[float | None, float | None] = (None, None),
        n0: int = 1000,
        seed: Seed = 0,
        batch_size: int | None = None,
        precision: str | None = None,
        family: int = 1,
    ) -> list[Interval | Abstention]:
        """Intervals that the smoothed percentile of every output stays in, for each of a batch of inputs.

        With probability at least 1 − α, independently for each input: for every change ‖Σ⁻¹δ‖ ≤ r and every output, the
        percentile at p of f(x + δ + μ + Σε) is between ``lower`` and ``upper``. So it is for each r of a list, at once.

        Args:
            x: the inputs (batch, *event), in floating point.
            radius: r, the size of changes in the region's own norm, before Σ; or a rising list of them.
            p: which percentile; 0.5 is the median.
            within: instead of a radius: the largest r for which the percentile stays within ± this of its value.
            n: the number of samples.
            alpha: α, shared over outputs, sides and radii.
            norm: the norm of changes: 1, 2 or math.inf. By default 2, or the law's own where it has no ℓ2 radius.
            range: what the outputs have by their nature at least and at most, in place of ±∞.
            n0: the number of samples that give the value, with ``within``.
            seed: the seed of the noise, as for ``SmoothedClassifier.certify``.
            batch_size: noisy copies per forward pass; by the input's size if None.
            precision: "fp32", "tf32" or "bf16" uses a copy of the model in that precision.
            family: N, a number fixed in advance: α is shared by the answers to N inputs.

        Returns:
            An ``Interval`` for each input; with ``within`` an abstention where no radius will do.
        """
        question = Percentile(p, _rising(radius), within, *range)
        plan = CertifyPlan(n0, n, alpha, own_norm(self, norm), 0, batch_size, precision=precision, family=family)
        return self.ask(x, question, plan, seed)


class SmoothedSegmenter(Smoothed):
    """g(x) = at every pixel the most probable class of a model f under noise.

    Args:
        model: f, a callable from a batch (n, *event) to logits (n, num_classes, height, width) or whole class numbers
            (n, height, width).
        law: the noise law, which draws ε.
        generator: gives μ and Σ; isotropic noise if None.
        num_classes: the number of classes.
        backend: how f is run, as for ``SmoothedClassifier``; so are ``precision``, ``model_id`` and ``step``.
        precision: what f computes in.
        model_id: a name for a model without PyTorch weights.
        step: the step of inputs on a grid.
    """

    what = "segmentation"

    def __init__(
        self,
        model: Callable[[torch.Tensor], Any],
        law: Law,
        generator: Generator | None = None,
        num_classes: int = 2,
        backend: str = "eager",
        precision: str | None = None,
        model_id: str | None = None,
        step: Any = None,
    ) -> None:
        super().__init__(self.reader(model, num_classes), law, generator, backend, precision, model_id, step)

    def reader(self, model: Callable[[torch.Tensor], Any], num_classes: int) -> Places:
        """How the model's answers are read."""
        return Places(model, num_classes)

    def certify(
        self,
        x: torch.Tensor,
        radius: float | None = None,
        n0: int = 100,
        n: int = 1000,
        alpha: float = 0.001,
        norm: float | None = None,
        rule: Rule | None = None,
        seed: Seed = 0,
        batch_size: int | None = None,
        precision: str | None = None,
        family: int = 1,
    ) -> list[Decided | Abstention]:
        """The answer at every place where it provably does not change, for each of a batch of inputs.

        With probability at least 1 − α, independently for each input: at no place with an answer does the smoothed model
        answer another one, for every change ‖Σ⁻¹δ‖ < r. At the other places nothing is claimed.

        Args:
            x: the inputs (batch, *event), in floating point.
            radius: r, the size of changes in the region's own norm, before Σ. If None, every place has its own.
            n0: the number of samples that choose the answers.
            n: the number of samples that test them.
            alpha: α, for all places of an input together.
            norm: the norm of changes: 1, 2 or math.inf. By default 2, or the law's own where it has no ℓ2 radius.
            rule: "holm" or "bonferroni"; by default Holm's at a radius, and Bonferroni's for radii.
            seed: the seed of the noise, as for ``SmoothedClassifier.certify``.
            batch_size: noisy copies per forward pass; by the input's size if None.
            precision: "fp32", "tf32" or "bf16" uses a copy of the model in that precision.
            family: N, a number fixed in advance: α is shared by the answers to N inputs.

        Returns:
            A ``Decided`` for each input, or an abstention where no place has an answer.
        """
        plan = CertifyPlan(n0, n, alpha, own_norm(self, norm), 0, batch_size, precision=precision, family=family)
        return self.ask(x, Decisions(self.what, radius, rule), plan, seed)


class SmoothedLabels(SmoothedSegmenter):
    """g(x) = for every label whether it is more probably there than not, under noise.

    As ``SmoothedSegmenter``, with labels in place of pixels: f maps a batch to logits (n, labels), above 0 where a label is
    there, or to whole 0 and 1.
    """

    what = "labels"

    def __init__(
        self,
        model: Callable[[torch.Tensor], Any],
        law: Law,
        generator: Generator | None = None,
        backend: str = "eager",
        precision: str | None = None,
        model_id: str | None = None,
        step: Any = None,
    ) -> None:
        super().__init__(model, law, generator, 2, backend, precision, model_id, step)

    def reader(self, model: Callable[[torch.Tensor], Any], num_classes: int) -> Places:
        """One yes or no for each label."""
        return Labels(model)


def own_norm(g: Smoothed, norm: float | None) -> float:
    """The norm asked for; else ℓ2, or the noise's own where it has no ℓ2 region."""
    if norm is not None:
        return norm
    norms = g.M.norms(g.law)
    return 2 if 2 in norms else norms[0]


def _rising(radius: Any) -> tuple[float, ...]:
    """The radii asked for."""
    if radius is None:
        return ()
    try:
        return (float(radius),)
    except (TypeError, ValueError):
        return tuple(float(r) for r in radius)
