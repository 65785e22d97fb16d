"""The first k labels: up to which change does a label stay among the k most probable ones?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ucan.bounds import at_most_p_value, lower_bound, majority_p_value, upper_bound
from ucan.certificate import Abstention, check_numbers
from ucan.errors import InvalidInput
from ucan.plan import check_count
from ucan.questions.looks import Look, all_decided
from ucan.questions.question import Asked, Question
from ucan.questions.record import SLACK, Answer, Where
from ucan.questions.shift import Shift
from ucan.rounding import floor_digits
from ucan.stopping import Stop
from ucan.votes import Votes, as_answer

BOUND = "simultaneous"


def stays_among(p: float, others: np.ndarray, k: int, shift: Shift, r: float) -> bool:
    """Whether a label of probability at least p stays among the first k after every move of size r.

    ``others`` are upper bounds for every other label. To fall out, k others must reach it. Then any t of them together reach
    t times its probability; the weakest case for it is that these are the t smallest of the k largest others, S:

        T_r(p) > min over t of (1 − T_r(1 − p_S))/t,   p_S ≤ 1 − p

    rules that out.
    """
    if len(others) < k:
        return True
    strongest = np.sort(others)[::-1][:k]
    sums = np.minimum(np.cumsum(strongest[::-1]), 1 - p)  # of the t smallest, t = 1 … k
    reached = np.asarray(shift.most(sums, r)) / np.arange(1, k + 1)
    return float(shift.least(p, r)) > float(reached.min())


def ahead(output: Any, label: int, k: int) -> torch.Tensor:
    """How far the k-th of the other classes is ahead of a label, (n, 1), by logits; ±1 for class numbers."""
    logits = as_answer(output)
    if logits.ndim != 2:
        return torch.where(logits == label, -1.0, 1.0)[:, None]
    others = torch.cat([logits[:, :label], logits[:, label + 1 :]], 1)
    return others.topk(min(k, others.shape[1]), dim=1).values[:, -1:] - logits[:, label : label + 1]


@dataclass(frozen=True, eq=False)
class Among(Answer):
    """Each of ``labels`` is among the ``k`` most probable ones for every change of size below its radius in ``radii``.

    The labels are the k most voted ones, in falling order, of votes of their own; radii are before Σ, and 0 where nothing is
    claimed. ``region`` is that of ``prediction``, the first label. All claims hold at once: ``p_lowers`` bound the labels,
    ``p_uppers`` every class.
    """

    k: int
    labels: tuple[int, ...]
    radii: tuple[float, ...]
    p_lowers: tuple[float, ...]
    p_uppers: tuple[float, ...]
    kind: ClassVar[str] = "top-k"
    task: ClassVar[str] = "top-k"

    def __post_init__(self) -> None:
        for name, most in (("radii", math.inf), ("p_lowers", 1.0), ("p_uppers", 1.0)):
            check_numbers(f"an answer's {name}", getattr(self, name), most)
        classes = len(self.evidence.counts)
        if not self.labels or any(type(label) is not int or not 0 <= label < classes for label in self.labels):
            raise InvalidInput(f"an answer's labels must be some of the {classes} classes, got {self.labels!r}.")
        super().__post_init__()

    @property
    def prediction(self) -> int:
        """The first label."""
        return self.labels[0]

    def radius_of(self, label: int) -> float:
        """The radius of this label in the norm asked for; 0 if it is not among those certified."""
        if label not in self.labels:
            return 0.0
        share = self.radii[self.labels.index(label)] / self.region.radius
        return self.radius * share

    def follows(self, shift: Shift) -> bool:
        """Each label stays among the first k up to its radius, by the bounds on all classes."""
        highs = np.array(self.p_uppers)
        if not 0 < self.region.radius <= self.radii[0] * (1 + SLACK):
            return False
        return all(
            r == 0 or stays_among(low, np.delete(highs, label), self.k, shift, r * (1 - SLACK))
            for label, low, r in zip(self.labels, self.p_lowers, self.radii, strict=True)
        )

    @property
    def bound(self) -> str:
        """Bounds on all classes at once."""
        return BOUND

    def bounded(self, look: Look) -> bool:
        """The labels have most of the votes that chose, in falling order, and all bounds are those of the votes."""
        evidence, question = self.evidence, self.question()
        if evidence.selection is None or question.labels(torch.tensor(evidence.selection)) != self.labels:
            return False
        lows, highs = question.bounds(np.array(evidence.counts), self.labels, look, self.tau)
        below = all(mine <= low * (1 + SLACK) for mine, low in zip(self.p_lowers, lows, strict=True))
        return below and all(mine >= high * (1 - SLACK) for mine, high in zip(self.p_uppers, highs, strict=True))

    def p_value(self, kept: Votes, where: Where) -> float:
        """Here: of all bounds. Inside: that fewer than k others are ahead of the first label, by pairs of counts."""
        counts, n = kept.counts.tolist(), int(kept.counts.sum()) + kept.invalid
        if where == "here":
            lows = [
                at_most_p_value(counts[c], n, max(0.0, p - self.tau))
                for c, p in zip(self.labels, self.p_lowers, strict=True)
            ]
            highs = [majority_p_value(count, n, p + self.tau) for count, p in zip(counts, self.p_uppers, strict=True)]
            return min(1.0, (len(lows) + len(highs)) * min(*lows, *highs))
        own = counts[self.prediction]
        ahead = sorted(
            majority_p_value(count, count + own, 0.5) if count + own else 1.0
            for c, count in enumerate(counts)
            if c != self.prediction
        )
        # At least k of them are ahead: the k-th smallest, corrected for which k these are.
        found = (len(ahead) - self.k + 1) * ahead[self.k - 1] if len(ahead) >= self.k else 1.0
        return min(1.0, found + (n * self.tau if self.tau else 0.0))

    def least_p_value(self, n: int) -> float:
        """If a label had no vote, or another class all of them."""
        lows = [at_most_p_value(0, n, max(0.0, p - self.tau)) for p in self.p_lowers]
        highs = [majority_p_value(n, n, p + self.tau) for p in self.p_uppers]
        return min(1.0, (len(lows) + len(highs)) * min(*lows, *highs))

    def pushes(self, f: Any, output: torch.Tensor) -> torch.Tensor:
        """How far the k-th of the others is ahead of the first label."""
        return ahead(output, self.prediction, self.k)

    def content(self, folder: Path | None) -> dict[str, Any]:
        """The number k, labels, radii and bounds."""
        lists = {name: list(getattr(self, name)) for name in ("labels", "radii", "p_lowers", "p_uppers")}
        return {"k": self.k, **self.shown(), **lists}

    def shown(self) -> dict[str, Any]:
        """The first label."""
        return {"prediction": self.prediction}

    @classmethod
    def restored(cls, shared: Mapping[str, Any], content: Mapping[str, Any], folder: Path | None) -> Among:
        """From JSON's values."""
        lists: dict[str, Any] = {name: tuple(content[name]) for name in ("labels", "radii", "p_lowers", "p_uppers")}
        return cls(**shared, k=content["k"], **lists)

    def question(self) -> TopK:
        """The same k."""
        return TopK(self.k)

    def summary(self) -> str:
        """The first label."""
        return f"class {self.prediction} stays among the first {self.k}"


@dataclass(frozen=True)
class TopK(Question):
    """Up to which change do the ``k`` most probable labels stay among the first k?"""

    k: int = 1
    name: ClassVar[str] = "top-k"

    def __post_init__(self) -> None:
        check_count("top", self.k)

    def check(self, f: Any, stop: Stop | None = None) -> None:
        """Refuse a k that is not smaller than the number of classes."""
        if self.k >= f.num_classes:
            raise InvalidInput(
                f"top is {self.k}, but there are only {f.num_classes} classes: nothing could leave them."
            )

    def settled(self, asked: Asked, radii: tuple[float, ...]) -> bool:
        """Whether the first label stays among the first k up to each radius, or cannot be shown to."""
        counts, last, k, tau = asked.estimate.counts.numpy(), asked.last, self.k, asked.shift.tau
        first = self.labels(asked.select.counts)[0]
        hoped = last.feared(counts, asked.n)
        hoped[first] = int(last.hoped(counts[first], asked.n))
        (lows, highs), (best, worst) = (
            self.bounds(found, (first,), look, tau) for found, look in ((counts, asked.now), (hoped, last))
        )
        now, later = np.delete(highs, first), np.delete(worst, first)
        return all_decided(
            radii,
            lambda r: stays_among(lows[0], now, k, asked.shift, r),
            lambda r: stays_among(best[0], later, k, asked.shift, r),
        )

    def labels(self, select: torch.Tensor) -> tuple[int, ...]:
        """The k most voted labels of the votes that choose, in falling order."""
        order = select.sort(descending=True, stable=True).indices
        return tuple(order[: self.k].tolist())

    def bounds(
        self, counts: np.ndarray, labels: tuple[int, ...], look: Look, tau: float
    ) -> tuple[list[float], np.ndarray]:
        """Bounds on these labels from below and on all classes from above; α is shared by k of the one and all of the other."""
        alpha = look.alpha / (self.k + len(counts))
        lows = [max(0.0, lower_bound(int(counts[label]), look.n, alpha) - tau) for label in labels]
        highs = [min(1.0, upper_bound(int(count), look.n, alpha) + tau) for count in counts]
        return lows, np.array(highs)

    def conclude(self, asked: Asked) -> Among | Abstention:
        """Simultaneous bounds: k labels from below, all classes from above, α shared by all of them."""
        shift, k, labels = asked.shift, self.k, self.labels(asked.select.counts)
        lows, highs = self.bounds(asked.estimate.counts.numpy(), labels, asked.now, shift.tau)
        radii = []
        for label, low in zip(labels, lows, strict=True):
            others = np.delete(highs, label)
            radii.append(shift.largest(lambda r, low=low, others=others: stays_among(low, others, k, shift, r)))  # type: ignore[misc]
        if not radii[0] > 0 or math.isinf(radii[0]):
            least = floor_digits(lows[0], 6)
            reason = f"the bounds leave open whether class {labels[0]}, of probability at least {least}, is among the first {k}"
            return asked.abstention(BOUND, reason)
        shared = asked.shared(BOUND, radii[0])
        return Among(
            **shared, k=k, labels=labels, radii=tuple(radii), p_lowers=tuple(lows), p_uppers=tuple(highs.tolist())
        )
