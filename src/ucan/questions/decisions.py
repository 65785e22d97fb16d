"""Many decisions about one input: which labels are there, and the class of every pixel of a mask."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from scipy import special

from ucan.bounds import holm, lower_bounds, majority_p_values
from ucan.certificate import Abstention
from ucan.errors import InvalidInput
from ucan.questions.looks import Look, all_decided
from ucan.questions.question import Asked, Question
from ucan.questions.readers import Counts
from ucan.questions.record import SLACK, Answer, Where
from ucan.questions.shift import Shift
from ucan.rounding import floor_digits
from ucan.sidecar import tensors_from_json, tensors_to_json
from ucan.stopping import Radii, Stop

NOTHING = -1  # at a place where nothing is claimed

Rule = Literal["holm", "bonferroni"]


def bound_over(rule: Rule, places: int) -> str:
    """The name of bounds that share α over so many places by a rule."""
    return f"{rule} over {places}"


@dataclass(frozen=True, eq=False)
class Decided(Answer):
    """At every place with an answer, the smoothed model's class is that one for every change of size below its radius.

    ``answers`` is int64 (*places), −1 where nothing is claimed. All claims of one input hold at once, with probability at
    least 1 − α. ``radii`` (*places) are before Σ, 0 where nothing is claimed; by Holm's rule they are all the radius that was
    asked for. ``region`` is the smallest of them, where all claims hold. ``p_lowers`` bound the classes' probabilities at the
    input itself. ``asked`` is the radius that was asked for, if one was. ``selected`` are the classes that votes of their own
    chose, also where nothing is claimed about them. ``hits``, int64 (*places), are the votes that this follows from: how many
    of n others each of them had. None in a record that was written without them.
    """

    what: str
    rule: Rule
    answers: torch.Tensor
    selected: torch.Tensor
    radii: torch.Tensor
    p_lowers: torch.Tensor
    asked: float | None = None
    hits: torch.Tensor | None = None
    kind: ClassVar[str] = "decisions"
    votes: ClassVar[tuple[str, ...]] = ("hits",)

    @property
    def task(self) -> str:  # type: ignore[override]
        """Segmentation, or labels."""
        return self.what

    @property
    def certified(self) -> torch.Tensor:
        """Where there is an answer, bool (*places)."""
        return self.answers != NOTHING

    @property
    def share(self) -> float:
        """The share of places with an answer."""
        return float(self.certified.double().mean())

    def follows(self, shift: Shift) -> bool:
        """Each bound bears its radius: by Holm's rule it is the threshold of the one radius, else its radius is the bound's.

        Then an answer without a majority is none, whatever its radius.
        """
        held = self.certified.numpy()
        radii, lows, smallest = self.radii.numpy(), self.p_lowers.numpy()[held], self.region.radius
        if not held.any() or radii[~held].any() or not smallest <= radii[held].min() * (1 + SLACK):
            return False
        if self.rule == "holm":
            return self.asked is not None and bool(
                (radii[held] <= self.asked).all() and (lows >= shift.threshold(self.asked) * (1 - SLACK)).all()
            )
        return bool((lows > 0.5).all() and (radii[held] <= shift.radii(lows) * (1 + SLACK)).all())

    @property
    def bound(self) -> str:
        """The rule that shares α, and the number of places."""
        return bound_over(self.rule, self.answers.numel())

    def bounded(self, look: Look) -> bool:
        """The votes of each place bear its answer, by the rule that shares α, and its bound."""
        if self.hits is None:
            return True
        if not self.countable(self.answers, look.n):
            return False
        held, lows = self.certified.numpy(), self.p_lowers.numpy()
        tests = self.question()
        if self.rule == "holm":
            kept = tests.rejected(self.hits.numpy(), look, float(lows[held].max()) + self.tau)
            return bool(kept[held].all())
        return bool((lows[held] <= tests.bounds(self.hits.numpy(), look, self.tau)[held] * (1 + SLACK)).all())

    def redrawn(self, select: Counts, estimate: Counts, room: float) -> Decided:
        """With the classes that are chosen here; a claim about another one has no votes."""
        chosen = select.chosen
        hits = torch.from_numpy(estimate.of(chosen)).masked_fill(self.certified & (chosen != self.answers), 0)
        return replace(self, evidence=self.tallied(estimate.invalid), selected=chosen, hits=hits)

    def moved(self, drawn: Decided) -> int:
        """Where something is claimed, since elsewhere other classes may have been chosen; or of the invalid votes, if more."""
        assert self.hits is not None and drawn.hits is not None, "it holds its votes"
        return max(super().moved(drawn), int((self.hits - drawn.hits)[self.certified].abs().max()))

    def p_value(self, kept: Counts, where: Where) -> float:
        """By the place with the fewest votes for its class, corrected for how many places there are."""
        held = self.certified
        hits = kept.of(self.answers.clamp_min(0))[held.numpy()].astype(np.float64)
        claimed = self.p_lowers[held].numpy() if where == "here" else np.full(len(hits), 0.5)
        claimed = np.clip(claimed - self.tau, 0.0, 1.0)
        n = kept.n
        few = np.where(hits < n, special.betaincc(hits + 1, np.maximum(n - hits, 1), claimed), 1.0)
        return min(1.0, len(few) * float(few.min()))

    def least_p_value(self, n: int) -> float:
        """If one place had no vote for its class."""
        claimed = np.clip(self.p_lowers[self.certified].numpy() - self.tau, 0.0, 1.0)
        return min(1.0, len(claimed) * float(special.betaincc(1.0, n, claimed).min(initial=1.0)))

    def pushes(self, f: Any, output: torch.Tensor) -> torch.Tensor:
        """How far the answers are behind: on average, and at each place."""
        margins = -f.margins(output, self.answers.clamp_min(0))[:, self.certified.flatten().to(output.device)]
        return torch.cat([margins.mean(1, keepdim=True), margins], 1)

    def content(self, folder: Path | None) -> dict[str, Any]:
        """The rule, and the maps."""
        maps = {name: getattr(self, name) for name in ("answers", "selected", "radii", "p_lowers")}
        about = {"what": self.what, "rule": self.rule, "asked": self.asked, **self.shown()}
        return {**about, "maps": tensors_to_json({**maps, **self.counted()}, folder)}

    def shown(self) -> dict[str, Any]:
        """The share of places with an answer."""
        return {"share": self.share}

    @classmethod
    def restored(cls, shared: Mapping[str, Any], content: Mapping[str, Any], folder: Path | None) -> Decided:
        """From JSON's values."""
        maps: dict[str, Any] = dict(tensors_from_json(content["maps"], folder))
        about = {name: content[name] for name in ("what", "rule", "asked")}
        return cls(**shared, **about, **maps)

    def question(self) -> Decisions:
        """The same rule, at the same radius."""
        return Decisions(self.what, self.asked, self.rule)

    def summary(self) -> str:
        """How many decisions stand; of few labels, which."""
        count, places = int(self.certified.sum()), self.answers.numel()
        if self.what == "labels" and places <= 20:
            there, absent = ((self.answers == value).nonzero().flatten().tolist() for value in (1, 0))
            return f"labels {there} stay present and {absent} absent ({count} of {places} decided)"
        return f"{count:,} of {places:,} {'labels' if self.what == 'labels' else 'pixels'} keep their answer"


@dataclass(frozen=True)
class Decisions(Question):
    """Which decisions stand for every change of size ``radius``; or, without one, up to which change does each stand?

    At one radius Holm's rule shares α over the places; for radii of their own it is Bonferroni's. ``what`` is "segmentation"
    or "labels".
    """

    what: str = "segmentation"
    radius: float | None = None
    rule: Rule | None = None
    name: ClassVar[str] = "decisions"

    def __post_init__(self) -> None:
        if self.radius is not None and not (math.isfinite(self.radius) and self.radius >= 0):
            raise InvalidInput(f"radius must be finite and at least 0, got {self.radius!r}.")
        if self.what not in ("segmentation", "labels"):
            raise InvalidInput(f"what must be segmentation or labels, got {self.what!r}.")
        if self.rule not in (None, "holm", "bonferroni"):
            raise InvalidInput(f"rule must be holm or bonferroni, got {self.rule!r}.")
        if self.rule == "holm" and self.radius is None:
            raise InvalidInput("Holm's rule decides at one radius: give radius=, or leave rule= out.")

    def check(self, f: Any, stop: Stop | None = None) -> None:
        """With a radius, a stopping rule can be about that one only."""
        if self.radius is not None and isinstance(stop, Radii) and stop.radii != (self.radius,):
            raise InvalidInput(f"this question is decided at its radius: give stop={self.radius!r} (--stop).")

    def settled(self, asked: Asked, radii: tuple[float, ...]) -> bool:
        """Whether each place keeps its answer up to each radius, or cannot be shown to."""
        hits, now, last = asked.estimate.of(asked.select.chosen), asked.now, asked.last
        hoped = last.hoped(hits, asked.n)
        return all_decided(
            radii,
            lambda r: self._standing(asked, hits, now, r)[0],
            lambda r: self._standing(asked, hoped, last, r)[0],
        )

    def _standing(
        self, asked: Asked, hits: np.ndarray, look: Look, radius: float | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where so many votes bear an answer up to a radius (or any, if None), by which bounds, and how far each reaches."""
        shift = asked.shift
        if self.sharing == "holm":
            assert radius is not None, "checked before"
            p = shift.threshold(radius)
            kept = self.rejected(hits, look, p + shift.tau)
            lows, radii = np.full(hits.shape, p), np.full(hits.shape, float(radius))
        else:
            lows = self.bounds(hits, look, shift.tau)
            radii = shift.radii(lows)
            kept = (radii > 0) & (radii >= (radius or 0.0))
        return kept, np.where(kept, lows, 0.0), np.where(kept, radii, 0.0)

    @staticmethod
    def rejected(hits: np.ndarray, look: Look, p: float) -> np.ndarray:
        """Where so many votes show a probability above p, by Holm's rule over all places; nowhere if p is NaN."""
        return holm(majority_p_values(hits, look.n, p), look.alpha) if p <= 1 else np.zeros(hits.shape, bool)

    @staticmethod
    def bounds(hits: np.ndarray, look: Look, tau: float) -> np.ndarray:
        """Lower bounds on the probabilities of so many votes, which hold at once by Bonferroni's rule over all places."""
        return np.maximum(0.0, lower_bounds(hits, look.n, look.alpha / hits.size) - tau)

    @property
    def sharing(self) -> Rule:
        """The rule that shares α over places: as given, or Holm's at a radius and Bonferroni's for radii."""
        return self.rule or ("bonferroni" if self.radius is None else "holm")

    def conclude(self, asked: Asked) -> Decided | Abstention:
        """The class that n0 votes chose at each place, and whether n others bear it."""
        classes, rule = asked.select.chosen, self.sharing
        hits = asked.estimate.of(classes)
        kept, lows, radii = self._standing(asked, hits, asked.now, self.radius)
        smallest = float(radii[kept].min()) if kept.any() else 0.0
        bound = bound_over(rule, hits.size)
        if not kept.any():
            least = "" if self.radius is None else f" of at least {floor_digits(self.radius, 4)}"
            return asked.abstention(bound, f"no place keeps its answer for a radius{least}")
        answers = torch.where(torch.from_numpy(kept), classes, NOTHING)
        maps: dict[str, Any] = {"radii": torch.from_numpy(radii), "p_lowers": torch.from_numpy(lows)}
        shared = asked.shared(bound, smallest)
        about: dict[str, Any] = {"what": self.what, "rule": rule, "asked": self.radius}
        return Decided(**shared, **about, answers=answers, selected=classes, hits=torch.from_numpy(hits), **maps)
