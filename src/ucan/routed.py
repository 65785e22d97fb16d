"""A certified router: a smoothed selector, or a rule about probabilities, says which smoothed classifier answers."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ucan.arithmetic import Grid, arithmetic_of
from ucan.budget import Budget
from ucan.certificate import Abstention, Certificate, Prediction, Scope
from ucan.errors import InvalidInput
from ucan.held import Held
from ucan.plan import CertifyPlan, PredictPlan, SecretSeed, Seed, check_options, derived_from, given_seed, is_secret
from ucan.sidecar import batch_hash
from ucan.smoothed import SmoothedClassifier
from ucan.stop_option import parse_stop
from ucan.threshold import Threshold

AnyPlan = TypeVar("AnyPlan", CertifyPlan, PredictPlan)
# Inputs whose choices are made together, so that experts share forward passes; results are stored after each group.
GROUP = 64


class Routed:
    """g(x) = the answer of the expert that the smoothed selector chooses at x, if one has a majority there.

    selector: a smoothed classifier whose classes are the experts, by number, under noise of any law and any shape; or a
        ``Threshold``, a rule about the probabilities of two experts.
    experts: smoothed classifiers of the same classes, each with its own noise and, if one likes, its own network.

    The selector decides, at the perturbed input too, so nothing is held at an input: with noise of scope ``pipeline`` in all
    parts a certificate covers the system as deployed. The choice is certified at α/2 and the answer at α/2; the region is
    where both hold (docs/router.md has the proof). An outcome is that of the expert, with the outcome of the selector as its
    ``choice``.
    """

    def __init__(self, selector: SmoothedClassifier | Threshold, experts: Sequence[SmoothedClassifier]) -> None:
        parts = [*experts] if isinstance(selector, Threshold) else [selector, *experts]
        for part in parts:
            if not isinstance(part, SmoothedClassifier):
                raise InvalidInput(
                    f"a router is made of smoothed classifiers, and this part is a {type(part).__name__}: make it a "
                    "ucan.SmoothedClassifier. Routers cannot be parts of routers."
                )
            if arithmetic_of(part.grid) != arithmetic_of(parts[0].grid):
                raise InvalidInput(
                    f"all parts of a router must take inputs on the same grid: the arithmetic of one is "
                    f"{arithmetic_of(part.grid)}, of another {arithmetic_of(parts[0].grid)}. Give all the same step, or none."
                )
        if isinstance(selector, Threshold):
            selector.check(experts)
        elif len(experts) < 2 or selector.num_classes != len(experts):
            raise InvalidInput(
                f"a router needs at least two experts and a selector with a class for each: there are {len(experts)} "
                f"experts, and the selector has {selector.num_classes} classes."
            )
        if len({expert.num_classes for expert in experts}) > 1:
            raise InvalidInput("all experts of a router must have the same classes.")
        self.selector, self.experts = selector, tuple(experts)

    def __repr__(self) -> str:
        return f"Routed({self.selector!r}, [{', '.join(map(repr, self.experts))}])"

    def certify(
        self, x: torch.Tensor, n0: int = 100, n: int = 100_000, alpha: float = 0.001, norm: float | None = 2,
        seed: Seed = 0, stop: Any = None, budget: Any = None, **options: Any,
    ) -> list[Certificate | Abstention]:  # fmt: skip
        """For each of a batch of inputs (batch, *event), as ``SmoothedClassifier.certify``; n votes each for choice and answer.

        ``options`` are those of ``SmoothedClassifier.certify`` (bound, batch_size, precision, family), for both parts.
        With probability at least 1 − α a certificate is true.
        """
        check_options("a router's certify", options, CertifyPlan)
        asked = self.parts[0].budget_of(budget, x)
        plan = CertifyPlan(
            n0, n, alpha, self.norm_for(norm, asked), given_seed(seed), stop=parse_stop(stop), budget=asked, **options
        )
        inputs = self.check_inputs(x, plan.norm)
        plan.check_family(len(inputs))
        outcomes = dict(self.certify_each(inputs, self.seeded(plan, seed, batch_hash(inputs))))
        return [outcomes[i] for i in range(len(outcomes))]

    def predict(
        self, x: torch.Tensor, n: int = 1000, alpha: float = 0.001, seed: Seed = 0, **options: Any
    ) -> list[Prediction | Abstention]:
        """The answer for each of a batch of inputs, wrong with probability at most α; abstains if the choice does."""
        check_options("a router's predict", options, PredictPlan)
        plan = PredictPlan(n, alpha, given_seed(seed), **options)
        inputs = self.check_inputs(x)
        outcomes = dict(self.predict_each(inputs, self.seeded(plan, seed, batch_hash(inputs))))
        return [outcomes[i] for i in range(len(outcomes))]

    def certify_each(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan
    ) -> Iterator[tuple[int, Certificate | Abstention]]:
        """Yield (number, outcome) for inputs (1, *event)."""
        return self._each(inputs, plan, lambda g, some, own: g.certify_each(some, own))

    def predict_each(
        self, inputs: Iterable[torch.Tensor], plan: PredictPlan
    ) -> Iterator[tuple[int, Prediction | Abstention]]:
        """Yield (number, outcome) for inputs (1, *event)."""
        return self._each(inputs, plan, lambda g, some, own: g.predict_each(some, own))

    def _each(
        self,
        inputs: Iterable[torch.Tensor],
        plan: AnyPlan,
        ask: Callable[[Any, Any, AnyPlan], Iterable[tuple[int, Any]]],
    ) -> Iterator[tuple[int, Any]]:
        """(number, outcome), α/2 for each of two claims; groups of inputs, so that experts share forward passes."""
        half = replace(plan, alpha=plan.alpha / 2)
        waiting, first = iter(inputs), 0
        while group := list(itertools.islice(waiting, GROUP)):
            settled = self._by_rule(self.selector, group, half) if isinstance(self.selector, Threshold) else (
                self._by_choice(self.selector, group, half, ask)
            )  # fmt: skip
            yield from ((first + i, replace(outcome, scope=self.scope)) for i, outcome in settled)
            first += len(group)

    def _by_rule(self, rule: Threshold, group: list[torch.Tensor], half: Any) -> Iterator[tuple[int, Any]]:
        """Both experts' votes at once; the rule says what follows from them."""
        plans = [_apart(expert, half, k) for k, expert in enumerate(self.experts)]
        each = rule.certify_each if isinstance(half, CertifyPlan) else rule.predict_each
        return each(self.experts, group, plans)

    def _by_choice(
        self,
        selector: SmoothedClassifier,
        group: list[torch.Tensor],
        half: AnyPlan,
        ask: Callable[[Any, Any, AnyPlan], Iterable[tuple[int, Any]]],
    ) -> Iterator[tuple[int, Any]]:
        """The choice at α/2; then the chosen experts at α/2, each asked about all of its inputs together."""
        rows: dict[int, list[int]] = {}
        choices = dict(ask(selector, group, half))
        for i, choice in choices.items():
            if choice.abstained:
                yield i, replace(choice, reason=f"the choice abstained: {choice.reason}")
            else:
                rows.setdefault(choice.chosen, []).append(i)
        for k, mine in sorted(rows.items()):
            own = _apart(self.experts[k], half, k)
            for number, answer in ask(self.experts[k], [group[i] for i in mine], own):
                changed = {"choice": choices[mine[number]], "scope": self.scope}
                if answer.abstained:
                    changed["reason"] = f"expert {k}, which was chosen, abstained: {answer.reason}"
                yield mine[number], replace(answer, **changed)

    # --- what runs ask of a classifier ---

    @property
    def parts(self) -> tuple[SmoothedClassifier, ...]:
        """The smoothed classifiers that it is made of, a selector first."""
        return self.experts if isinstance(self.selector, Threshold) else (self.selector, *self.experts)

    @property
    def num_classes(self) -> int:
        """The number of classes of the answers."""
        return self.experts[0].num_classes

    @property
    def scope(self) -> Scope:
        """``pipeline`` only if all parts are."""
        return "pipeline" if all(part.scope == "pipeline" for part in self.parts) else "frozen"

    @property
    def own_norm(self) -> float | None:
        """The only norm that a part's noise was made for; None if the laws decide."""
        return next((part.own_norm for part in self.parts if part.own_norm is not None), None)

    @property
    def grid(self) -> Grid | None:
        """The grid of inputs and noise, the same for all parts; None in real arithmetic."""
        return self.parts[0].grid

    @property
    def precision(self) -> str | None:
        """What the networks compute in, where it was chosen and is the same for all."""
        known = {part.precision for part in self.parts}
        return known.pop() if len(known) == 1 else None

    @property
    def shares(self) -> int:
        """Into how many equal parts α is cut: choice and answer, or two bounds on each of two experts."""
        return 4 if isinstance(self.selector, Threshold) else 2

    @property
    def alm_cap(self) -> None:
        """None: a router's certificates have no ALM."""
        return None

    def describe(self) -> str:
        """One line for tables."""
        return f"Routed({len(self.experts)} experts)"

    def identity(self) -> str | None:
        """A hash of every part with its law and noise; None if a part cannot be identified."""
        known = [(part.identity(), repr(part.law), part.M.record().state) for part in self.parts]
        how = ("Threshold", self.selector.threshold, self.selector.veto) if isinstance(self.selector, Threshold) else ()
        if any(model is None for model, *_ in known):
            return None
        return "routed:" + hashlib.sha256(repr((how, known)).encode()).hexdigest()

    def seeded(self, plan: AnyPlan, seed: Seed, data_hash: str) -> AnyPlan:
        """The plan with its seed, as the first part makes it."""
        return self.parts[0].seeded(plan, seed, data_hash)

    def counting(self, plan: AnyPlan) -> AnyPlan:
        """The plan as it is; each part counts all draws of its own noise, or refuses to."""
        for part in self.parts:
            part.counting(plan)
        return plan

    def norm_for(self, norm: float | None, budget: Budget | None) -> Any:
        """The norm of the radius."""
        return self.parts[0].norm_for(norm, budget)

    def check_inputs(self, x: torch.Tensor, norm: float | None = None) -> list[torch.Tensor]:
        """The inputs as a list, each (1, *event) on the models' device; raises an error before any work."""
        checked = [part.check_inputs(x, norm) for part in self.parts]
        return checked[0]

    def on_grid(self, step: Any) -> Routed:
        """The same router on the grid of this step; None: in real arithmetic."""
        experts = [expert.on_grid(step) for expert in self.experts]
        if isinstance(self.selector, Threshold):
            return Routed(replace(self.selector, g=experts[0]), experts)
        return Routed(self.selector.on_grid(step), experts)

    def holding(self, held: Held | None) -> Routed:
        """Itself: there are no held columns."""
        if held is not None:
            raise InvalidInput("a router does not take tables with held columns: let every column vary.")
        return self

    def on_votes(self, tell: Callable[[int], None] | None) -> None:
        """Let every part report its votes."""
        for part in self.parts:
            part.on_votes(tell)


# What a run can certify and deploy.
Deployed = SmoothedClassifier | Routed


def single(g: Deployed, what: str) -> SmoothedClassifier:
    """One smoothed classifier; a router is refused, since ``what`` takes none."""
    if not isinstance(g, SmoothedClassifier):
        raise InvalidInput(f"{what} takes one smoothed classifier, and this is a router.")
    return g


def _apart(expert: SmoothedClassifier, plan: AnyPlan, number: int) -> AnyPlan:
    """The plan with another seed for each expert, so that its noise is not the selector's."""
    data = derived_from(plan.seed)
    if data is not None:
        return expert.seeded(plan, "derived", data)
    digest = hashlib.sha256(f"{int(plan.seed)}/expert {number}".encode()).hexdigest()
    return replace(plan, seed=SecretSeed(int(digest[:32], 16)) if is_secret(plan.seed) else int(digest[:16], 16))
