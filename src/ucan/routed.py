"""A certified router: a smoothed selector chooses, for each input, which of several smoothed classifiers answers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ucan.bounds import check_alpha
from ucan.certificate import FORMAT, Abstention, Certificate, Prediction, Scope, from_dict
from ucan.errors import InvalidInput
from ucan.plan import Seed
from ucan.region import Region
from ucan.rounding import floor_digits
from ucan.smoothed import SmoothedClassifier


class Intersection:
    """All δ that lie in every one of several regions; what is said of it is never too much.

    It has no ALM: the geometric mean of the scales of one ellipsoid says nothing of a set that two of them cut out.
    """

    def __init__(self, parts: Sequence[Region]) -> None:
        if not parts or any(part.shape != parts[0].shape for part in parts):
            raise InvalidInput("an intersection is of at least one region, all for inputs of one shape.")
        self.parts, self.shape, self.dim = tuple(parts), parts[0].shape, parts[0].dim

    def __repr__(self) -> str:
        return f"Intersection({', '.join(map(repr, self.parts))})"

    def contains(self, delta: torch.Tensor) -> torch.Tensor:
        """Which of the perturbations (batch, *event) lie inside."""
        return torch.stack([part.contains(delta).cpu() for part in self.parts]).all(0)

    def inscribed_radius(self, norm: float) -> float:
        """The largest known r such that every ‖δ‖_q < r is inside: the smallest of the parts'."""
        return min(part.inscribed_radius(norm) for part in self.parts)

    def covers(self, box: Any) -> bool:
        """Whether every change of at most box[i] in coordinate i is inside; False where that is in doubt."""
        return all(part.covers(box) for part in self.parts)

    def budget_factor(self, budget: Any) -> float:
        """The largest known ε such that ε′·budget is inside for every ε′ < ε."""
        return min(part.budget_factor(budget) for part in self.parts)


@dataclass(frozen=True, eq=False)
class RoutedCertificate:
    """Two certificates that hold together with probability at least 1 − α: of the choice, and of the chosen one's answer.

    Inside both regions the selector keeps choosing the expert ``choice.prediction``, whose answer stays
    ``answer.prediction``; so the router's answer does. Each part is a certificate of a smoothed classifier like any other:
    it is verified and attacked as such.
    """

    choice: Certificate
    answer: Certificate
    abstained: ClassVar[bool] = False

    def __post_init__(self) -> None:
        mine, other = self.choice.evidence, self.answer.evidence
        if mine.exact_hash != other.exact_hash or self.choice.norm != self.answer.norm:
            raise InvalidInput("the two parts of a routed certificate must be about one input and one norm.")

    @property
    def prediction(self) -> int:
        """The class that the router answers with."""
        return self.answer.prediction

    @property
    def expert(self) -> int:
        """The number of the classifier that answers."""
        return self.choice.prediction

    @property
    def norm(self) -> float | None:
        """The norm of the radius."""
        return self.answer.norm

    @property
    def alpha(self) -> float:
        """The probability that the claim is wrong is at most this: the parts' together."""
        return self.choice.evidence.alpha + self.answer.evidence.alpha

    @property
    def scope(self) -> Scope:
        """``pipeline`` only if both parts are."""
        return "pipeline" if self.choice.scope == self.answer.scope == "pipeline" else "frozen"

    @property
    def region(self) -> Intersection:
        """Where both hold."""
        return Intersection((self.choice.region, self.answer.region))

    @property
    def radius(self) -> float:
        """The smaller of the two radii."""
        return min(self.choice.radius, self.answer.radius)

    @property
    def budget_factor(self) -> float | None:
        """The smaller of the two factors of the budget; None without one."""
        mine, other = self.choice.budget_factor, self.answer.budget_factor
        return None if mine is None or other is None else min(mine, other)

    def __str__(self) -> str:
        radius = floor_digits(self.radius, 4)
        return (
            f"class {self.prediction} by expert {self.expert}, radius {radius} (scope {self.scope}, α = {self.alpha:g})"
        )

    def to_dict(self, folder: Any = None) -> dict[str, Any]:
        """Plain JSON values: both certificates; large tensors go to ``folder``."""
        parts = {"choice": self.choice.to_dict(folder), "answer": self.answer.to_dict(folder)}
        return {"format": FORMAT, "kind": "routed", "radius": self.radius, "scope": self.scope, **parts}

    @classmethod
    def from_dict(cls, record: dict[str, Any], folder: Any = None) -> RoutedCertificate:
        """The inverse of ``to_dict``; what does not follow from its parts is refused."""
        try:
            choice, answer = (from_dict(record[name], folder) for name in ("choice", "answer"))
            stated = record["radius"], record["scope"]
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"this is not a complete routed certificate: {error}.") from error
        if not (isinstance(choice, Certificate) and isinstance(answer, Certificate)):
            raise InvalidInput("a routed certificate has two certificates as its parts.")
        made = cls(choice, answer)
        if not math.isclose(stated[0], made.radius, rel_tol=1e-9) or stated[1] != made.scope:
            raise InvalidInput(
                "this record's radius or scope does not follow from its parts: it was changed or is damaged."
            )
        return made


@dataclass(frozen=True, eq=False)
class RoutedAbstention:
    """No claim: the choice, or the chosen expert's answer, is not sure. ``parts`` are the outcomes that were made."""

    parts: tuple[Certificate | Prediction | Abstention, ...]
    abstained: ClassVar[bool] = True
    prediction: ClassVar[None] = None
    region: ClassVar[None] = None
    radius: ClassVar[float] = 0.0

    @property
    def reason(self) -> str:
        """Which part abstained, and why."""
        last = self.parts[-1]
        assert isinstance(last, Abstention)
        return f"{'the choice' if len(self.parts) == 1 else 'the chosen expert'} abstained: {last.reason}"


@dataclass(frozen=True, eq=False)
class RoutedPrediction:
    """The router's answer; wrong with probability at most α."""

    choice: Prediction
    answer: Prediction
    abstained: ClassVar[bool] = False

    @property
    def prediction(self) -> int:
        """The class."""
        return self.answer.prediction

    @property
    def expert(self) -> int:
        """The number of the classifier that answered."""
        return self.choice.prediction


class Routed:
    """g(x) = the answer of the expert that the smoothed selector chooses at x, if one has a majority there.

    selector: a smoothed classifier whose classes are the experts, by number. Its noise may have any law and any shape.
    experts: smoothed classifiers of the same classes, each with its own noise and, if one likes, its own network.

    The selector decides, at the perturbed input too, so nothing is held at an input: with noise of scope ``pipeline`` in all
    parts a certificate covers the system as deployed. The choice is certified at α/2 and the answer at α/2, from independent
    noise; the region is where both hold.
    """

    def __init__(self, selector: SmoothedClassifier, experts: Sequence[SmoothedClassifier]) -> None:
        if len(experts) < 2 or selector.f.num_classes != len(experts):
            raise InvalidInput(
                f"a router needs at least two experts and a selector with a class for each: there are {len(experts)} "
                f"experts, and the selector has {selector.f.num_classes} classes."
            )
        if len({expert.f.num_classes for expert in experts}) > 1:
            raise InvalidInput("all experts of a router must have the same classes.")
        self.selector, self.experts = selector, tuple(experts)

    def certify(
        self, x: torch.Tensor, n0: int = 100, n: int = 100_000, alpha: float = 0.001, norm: float | None = 2,
        seed: Seed = 0, **options: Any,
    ) -> list[RoutedCertificate | RoutedAbstention]:  # fmt: skip
        """For each of a batch of inputs (batch, *event), as ``SmoothedClassifier.certify``; n votes each for choice and answer.

        ``options`` are those of ``SmoothedClassifier.certify`` (bound, stop, budget, batch_size, family, …), for both parts.
        With probability at least 1 − α a certificate is true.
        """
        check_alpha(alpha)
        choices = self.selector.certify(x, n0, n, alpha / 2, norm, seed, **options)
        answers = self._asked(
            choices,
            lambda k, rows: self.experts[k].certify(x[rows], n0, n, alpha / 2, norm, _apart(seed, k), **options),
        )
        return [
            RoutedCertificate(choice, answer)
            if isinstance(choice, Certificate) and isinstance(answer, Certificate)
            else RoutedAbstention((choice,) if answer is None else (choice, answer))
            for choice, answer in zip(choices, answers, strict=True)
        ]

    def predict(
        self, x: torch.Tensor, n: int = 1000, alpha: float = 0.001, seed: Seed = 0, **options: Any
    ) -> list[RoutedPrediction | RoutedAbstention]:
        """The answer for each of a batch of inputs, wrong with probability at most α; abstains if the choice does."""
        check_alpha(alpha)
        choices = self.selector.predict(x, n, alpha / 2, seed, **options)
        answers = self._asked(
            choices, lambda k, rows: self.experts[k].predict(x[rows], n, alpha / 2, _apart(seed, k), **options)
        )
        return [
            RoutedPrediction(choice, answer)
            if isinstance(choice, Prediction) and isinstance(answer, Prediction)
            else RoutedAbstention((choice,) if answer is None else (choice, answer))
            for choice, answer in zip(choices, answers, strict=True)
        ]

    def _asked(self, choices: Sequence[Any], ask: Any) -> list[Any]:
        """What the chosen experts say, each asked about all of its inputs together; None where nobody was chosen."""
        answers: list[Any] = [None] * len(choices)
        for k in sorted({choice.prediction for choice in choices if not choice.abstained}):
            rows = [i for i, choice in enumerate(choices) if choice.prediction == k]
            for row, answer in zip(rows, ask(k, rows), strict=True):
                answers[row] = answer
        return answers


def _apart(seed: Seed, expert: int) -> Seed:
    """Another seed for each expert: the noise that chose it must not be the noise that it is tested with."""
    if seed is None or seed == "derived":
        return seed
    return int(hashlib.sha256(f"{int(seed)}/expert {expert}".encode()).hexdigest()[:16], 16)
