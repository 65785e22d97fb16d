"""Regression and boxes: percentiles of the model's numbers under noise, and how far a change can move them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ucan.bounds import lower_bounds, majority_p_values
from ucan.certificate import Abstention, check_numbers
from ucan.errors import DoesNotFollow, InvalidInput, ModelError
from ucan.questions.looks import Look, all_decided
from ucan.questions.question import Asked, Question
from ucan.questions.ranks import beyond, lower_percentile, lower_rank, middle, rest, upper_percentile
from ucan.questions.readers import ENDLESS, Sample
from ucan.questions.record import SLACK, Answer, Where
from ucan.questions.shift import Shift
from ucan.rounding import ceil_digits, floor_digits
from ucan.sidecar import tensors_from_json, tensors_to_json
from ucan.stopping import Stop
from ucan.votes import as_answer

BOUND = "order statistics"
# Up to so many ends are shown to readers of a file.
SHOWN = 64


@dataclass(frozen=True, eq=False)
class Interval(Answer):
    """The smoothed percentile of every output stays within its interval, for every change of each size in ``radii``.

    Radii rise, are before Σ, and hold at once. ``lowers`` and ``uppers`` are (radii, *outputs); ``value`` is the percentile
    of the noisy answers, an estimate of the one at the input itself, NaN where there was no number. ``below`` and ``above``
    are what the claim rests on: at the input itself an answer is below ``lowers`` with at most that probability, and above
    ``uppers`` likewise. With ``within`` = t the interval is ``value`` ± t, and the radius is what was looked for.
    ``limits`` are the range of the outputs that was stated; the claim rests on it (``assumed``) where it is an end.
    ``under`` and ``over``, int64 (radii, *outputs), are the votes that this follows from: how many answers are below
    ``lowers``, and above ``uppers``; a missing number is both. None in a record that was written without them.
    """

    p: float
    radii: tuple[float, ...]
    value: torch.Tensor
    lowers: torch.Tensor
    uppers: torch.Tensor
    below: torch.Tensor
    above: torch.Tensor
    within: float | None = None
    limits: tuple[float | None, float | None] = (None, None)
    under: torch.Tensor | None = None
    over: torch.Tensor | None = None
    kind: ClassVar[str] = "interval"
    task: ClassVar[str] = "regression"
    votes: ClassVar[tuple[str, ...]] = ("under", "over")

    def __post_init__(self) -> None:
        check_numbers("an answer's radii", self.radii, math.inf)
        if len(self.limits) != 2:
            raise InvalidInput(f"an answer's limits must be two, each a number or none, got {self.limits!r}.")
        super().__post_init__()

    @property
    def lower(self) -> torch.Tensor:
        """The lower ends (*outputs) at the largest radius."""
        return self.lowers[-1]

    @property
    def upper(self) -> torch.Tensor:
        """The upper ends (*outputs) at the largest radius."""
        return self.uppers[-1]

    @property
    def assumed(self) -> tuple[float | None, float | None] | None:
        """The stated range, if an end is its end: then no answers were needed for it. None otherwise, and with ``within``."""
        low, high = self.limits
        at_low = low is not None and bool((self.lowers <= low).any())
        at_high = high is not None and bool((self.uppers >= high).any())
        return self.limits if self.within is None and (at_low or at_high) else None

    def at(self, radius: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Lower and upper ends for every change of at most this size: those of the next larger radius of the list."""
        place = next((i for i, r in enumerate(self.radii) if r >= radius), None)
        if place is None:
            raise InvalidInput(f"this answer covers radii up to {self.radii[-1]}, not {radius}.")
        return self.lowers[place], self.uppers[place]

    def follows(self, shift: Shift) -> bool:
        """What may be outside at each radius is no more than T_r allows; ± t is where it was asked for.

        The value is an order statistic of the same numbers between those of its ends: outside of them it is a DoesNotFollow.
        """
        # NaN, where there was no number, is neither below nor above.
        if bool(((self.value < self.lowers) | (self.value > self.uppers)).any()):
            raise DoesNotFollow("a value lies outside of its own interval: it was changed or is damaged.", "value")
        if not (self.region.radius <= self.radii[-1] * (1 + SLACK) and len(self.lowers) == len(self.radii)):
            return False
        if self.within is None:
            levels = [(shift.least(self.p, r), shift.least(rest(self.p), r)) for r in self.radii]
            rows = zip(levels, self.below, self.above, strict=True)
            return all(
                bool((below <= s * (1 + SLACK)).all() and (above <= u * (1 + SLACK)).all())
                for (s, u), below, above in rows
            )
        ends = torch.stack([self.value - self.within, self.value + self.within])
        same = torch.equal(torch.cat([self.lowers, self.uppers]), ends)
        sides = self.below.flatten().numpy(), self.above.flatten().numpy()
        return same and self.question().stays(shift, *sides, self.radii[-1] * (1 - SLACK))

    @property
    def bound(self) -> str:
        """Order statistics, or counts beside value ± t."""
        return BOUND

    def bounded(self, look: Look) -> bool:
        """So few answers are beyond each end that it is an order statistic of its level; ± t has bounds by these counts."""
        if self.under is None or self.over is None:
            return True
        if not self.countable(self.lowers, look.n):
            return False
        if self.within is not None:
            sides = [side.flatten().numpy() for side in (self.under, self.over)]
            allowed = self.question().limits(sides, look, self.tau)
            claimed = (side.flatten().numpy() for side in (self.below, self.above))
            return all(bool((mine >= true * (1 - SLACK)).all()) for mine, true in zip(claimed, allowed, strict=True))
        alpha, (low, high) = look.alpha / (2 * self.lowers.numel()), self.question().range
        for counts, levels, claims in (
            (self.under, self.below, self.lowers > low),
            (self.over, self.above, self.uppers < high),
        ):
            for level in levels[claims].unique().tolist():
                most = int(counts[claims & (levels == level)].max())
                if not most < lower_rank(look.n, level - self.tau, alpha):
                    return False
        return True

    def redrawn(self, select: Sample | None, estimate: Sample, room: float) -> Interval:
        """With how many of these numbers lie beyond its ends; the value is its own where it is theirs, too."""
        values = estimate.values
        gap = room * (values.nan_to_num().abs().mean(0) + values.nan_to_num().std(0, correction=0))
        sides = [beyond(values, low - gap, high + gap) for low, high in zip(self.lowers, self.uppers, strict=True)]
        under, over = (torch.stack(side) for side in zip(*sides, strict=True))
        found = middle(values if select is None else select.values, self.p)
        near = ((self.value - found).abs() <= gap) | (self.value.isnan() & found.isnan())
        evidence = self.tallied(estimate.invalid)
        return replace(self, evidence=evidence, value=torch.where(near, self.value, found), under=under, over=over)

    def moved(self, drawn: Interval) -> int:
        """The most numbers beyond an end; all of them if the value is another one."""
        if not torch.allclose(self.value, drawn.value, rtol=0, atol=0, equal_nan=True):
            return self.evidence.n
        assert self.counted() and drawn.counted(), "it holds its votes"
        beyond = (int((mine - drawn.counted()[side]).abs().max()) for side, mine in self.counted().items())
        return max(super().moved(drawn), *beyond)

    def p_value(self, kept: Sample, where: Where) -> float:
        """By how many answers lie outside: at the input itself for every radius, inside for the largest. Ends are corrected
        for being many. At the input itself one answer outside a range that the claim rests on refutes it.
        """
        values, n, here = kept.values, kept.n, where == "here"
        if here and self.outside(kept):
            return 0.0
        lowers, uppers = (self.lowers, self.uppers) if here else (self.lowers[-1:], self.uppers[-1:])
        hits = [(values < end).sum(0) for end in lowers] + [(values > end).sum(0) for end in uppers]
        if here:
            limits = torch.cat([self.below, self.above])
        else:
            limits = torch.cat([torch.full_like(lowers, self.p), torch.full_like(uppers, 1 - self.p)])
        found = [
            majority_p_values(count, n, min(1.0, float(limit) + self.tau))
            for count, limit in zip(torch.stack(hits).flatten().tolist(), limits.flatten(), strict=True)
        ]
        return min(1.0, len(found) * float(np.min(found)))

    def least_p_value(self, n: int) -> float:
        """If all answers were outside of one end."""
        limits = torch.cat([self.below, self.above]).flatten().tolist()
        return min(1.0, len(limits) * min(float(majority_p_values(n, n, min(1.0, one + self.tau))) for one in limits))

    def outside(self, kept: Sample) -> int:
        """Answers with a number outside the stated range; 0 where no end of the interval is an end of that range."""
        if self.assumed is None:
            return 0
        low, high = self.question().range
        beyond_it = (kept.values < low) | (kept.values > high)
        return int(beyond_it.reshape(len(beyond_it), -1).any(1).sum())

    def pushes(self, f: Any, output: torch.Tensor) -> torch.Tensor:
        """How far every output is below its interval, and above it."""
        flat = as_answer(output).reshape(len(output), -1)
        low, high = (torch.nan_to_num(end.flatten()).to(flat) for end in (self.lower, self.upper))
        return torch.cat([low - flat, flat - high], dim=1)

    def content(self, folder: Path | None) -> dict[str, Any]:
        """The percentile, the radii and the ends."""
        ends = {name: getattr(self, name) for name in ("value", "lowers", "uppers", "below", "above")}
        finite = {name: torch.nan_to_num(end, ENDLESS, ENDLESS, -ENDLESS) for name, end in ends.items()}
        return {
            "p": self.p,
            "radii": list(self.radii),
            "limits": list(self.limits),
            **({} if self.within is None else {"within": self.within}),
            **(self.shown() if self.lower.numel() <= SHOWN else {}),
            "ends": tensors_to_json({**finite, **self.counted()}, folder),
        }

    def shown(self) -> dict[str, Any]:
        """The ends at the largest radius; of many outputs a file shows none."""
        return {"lower": _plain(self.lower), "upper": _plain(self.upper)}

    @classmethod
    def restored(cls, shared: Mapping[str, Any], content: Mapping[str, Any], folder: Path | None) -> Interval:
        """From JSON's values."""
        ends: dict[str, Any] = {
            name: torch.where(end.abs() >= ENDLESS, end.sign() * math.inf, end) if end.is_floating_point() else end
            for name, end in tensors_from_json(content["ends"], folder).items()
        }
        ends["value"] = torch.where(ends["value"].isinf(), math.nan, ends["value"])
        within, limits = content.get("within"), tuple(content["limits"])
        return cls(**shared, p=content["p"], radii=tuple(content["radii"]), within=within, limits=limits, **ends)

    def question(self) -> Percentile:
        """The same percentile and radii, or the same t; with the same range."""
        return Percentile(self.p, self.radii if self.within is None else (), self.within, *self.limits)

    def summary(self) -> str:
        """Up to four outputs, with their ends rounded outwards."""
        lower, upper = self.lower.flatten().tolist(), self.upper.flatten().tolist()
        ends = ", ".join(f"[{_down(a)}, {_up(b)}]" for a, b in zip(lower[:4], upper[:4], strict=True))
        more = f" and {len(lower) - 4} more" if len(lower) > 4 else ""
        what = "the smoothed median" if self.p == 0.5 else f"the smoothed percentile at {self.p:g}"
        given = "" if self.assumed is None else f", given that the outputs are {range_in_words(self.assumed)}"
        return f"{what} stays within {ends}{more}{given}"


def range_in_words(limits: tuple[float | None, float | None]) -> str:
    """A range of numbers that may be open to one side."""
    low, high = limits
    if low is None or high is None:
        return f"at most {high:.12g}" if low is None else f"at least {low:.12g}"
    return f"from {low:.12g} to {high:.12g}"


def _plain(ends: torch.Tensor) -> list[float | None]:
    """Ends for readers of the file; None for no bound."""
    return [end if math.isfinite(end) else None for end in ends.flatten().tolist()]


def _down(value: float) -> str:
    return floor_digits(value, 4) if math.isfinite(value) else "−∞"


def _up(value: float) -> str:
    return ceil_digits(value, 4) if math.isfinite(value) else "∞"


@dataclass(frozen=True)
class Percentile(Question):
    """Where does the percentile at ``p`` of the model's numbers stay, for every change of each size in ``radii``?

    With ``within`` = t instead: how far can the input move so that it stays within ± t of its value? ``least`` and ``most``
    are the range that the outputs have by their nature, in place of ±∞.
    """

    p: float = 0.5
    radii: tuple[float, ...] = ()
    within: float | None = None
    least: float | None = None
    most: float | None = None
    name: ClassVar[str] = "regression"

    def __post_init__(self) -> None:
        if not 0 < self.p < 1:
            raise InvalidInput(f"p must lie strictly between 0 and 1, got {self.p!r}; 0.5 is the median.")
        if bool(self.radii) == (self.within is not None):
            raise InvalidInput("give either radius= (--radius; one or several) or within= (--within).")
        rising = list(self.radii) == sorted(set(self.radii))
        if not (rising and all(math.isfinite(r) and r >= 0 for r in self.radii)):
            raise InvalidInput(f"radii must be finite, at least 0, and rise, got {self.radii}.")
        if self.within is not None and not (math.isfinite(self.within) and self.within > 0):
            raise InvalidInput(f"within must be a finite number above 0, got {self.within!r}.")
        for name, endless in (("least", -math.inf), ("most", math.inf)):
            stated = getattr(self, name)
            if stated == endless:
                object.__setattr__(self, name, None)  # no limit
            elif stated is not None and not abs(stated) < ENDLESS:
                raise InvalidInput(
                    f"the range of an output must be of finite numbers, or None for no limit, got {stated!r}."
                )
        if self.least is not None and self.most is not None and not self.least < self.most:
            raise InvalidInput(f"the range of an output must rise, got {self.least} to {self.most}.")

    @property
    def range(self) -> tuple[float, float]:
        """What the outputs are at least and at most: as stated, or ±∞."""
        return -math.inf if self.least is None else self.least, math.inf if self.most is None else self.most

    @property
    def selects(self) -> bool:  # type: ignore[override]
        """With ``within`` some copies give the value that others are compared with."""
        return self.within is not None

    def conclude(self, asked: Asked) -> Interval | Abstention:
        """By order statistics at the shifted levels, or by counts beside value ± t; α is shared by outputs, sides, radii."""
        values = asked.estimate.values
        low, high = self.range
        if bool(((values < low) | (values > high)).any()):
            raise ModelError(
                f"the model answered {float(values.nan_to_num(low).amin()):g} to {float(values.nan_to_num(high).amax()):g}, "
                f"outside the stated range from {low:g} to {high:g}: correct the range, or clip the model's output."
            )
        if self.within is not None:
            return self._steady(asked, self.within)
        count, shift = values[0].numel(), asked.shift
        alpha = asked.now.alpha / (2 * count * len(self.radii))
        # A missing number may be anything: it counts against both ends.
        rising, falling = (values.nan_to_num(at).sort(0).values for at in (low, high))
        levels = [(float(shift.least(self.p, r)), float(shift.least(rest(self.p), r))) for r in self.radii]
        lowers = torch.stack([lower_percentile(rising, s - shift.tau, alpha, low) for s, _ in levels])
        uppers = torch.stack([upper_percentile(falling, u - shift.tau, alpha, high) for _, u in levels])
        under, over = (torch.stack(side) for side in zip(*map(partial(beyond, values), lowers, uppers), strict=True))
        below = [torch.full_like(values[0], s) for s, _ in levels]
        above = [torch.full_like(values[0], u) for _, u in levels]
        return Interval(
            **asked.shared(BOUND, self.radii[-1]),
            p=self.p,
            radii=self.radii,
            value=middle(values, self.p),
            lowers=lowers,
            uppers=uppers,
            below=torch.stack(below),
            above=torch.stack(above),
            limits=(self.least, self.most),
            under=under,
            over=over,
        )

    def check(self, f: Any, stop: Stop | None = None) -> None:
        """Intervals are not decided at any number of samples; whether a value stays within ± t is."""
        if stop is not None and self.within is None:
            raise InvalidInput(
                "an interval only becomes narrower with more samples, so there is nothing to stop at: ask whether the value "
                "stays within ± t up to a radius (within=t with stop=r; --within t --stop r)."
            )

    def settled(self, asked: Asked, radii: tuple[float, ...]) -> bool:
        """Whether every value stays within ± t up to each radius, or cannot be shown to."""
        assert self.within is not None, "checked before"
        value, tau = middle(asked.select.values, self.p), asked.shift.tau
        sides = [
            side.flatten().numpy() for side in beyond(asked.estimate.values, value - self.within, value + self.within)
        ]
        hoped = [asked.last.feared(side, asked.n) for side in sides]
        now, best = (self.limits(found, look, tau) for found, look in ((sides, asked.now), (hoped, asked.last)))
        return all_decided(
            radii, lambda r: self.stays(asked.shift, *now, r), lambda r: self.stays(asked.shift, *best, r)
        )

    @staticmethod
    def limits(sides: list[np.ndarray], look: Look, tau: float) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds on the probabilities of so many answers on either side."""
        alpha = look.alpha / (2 * sides[0].size)
        below, above = (1 - lower_bounds(look.n - side, look.n, alpha) + tau for side in sides)
        return np.minimum(1.0, below), np.minimum(1.0, above)

    def stays(self, shift: Shift, below: np.ndarray, above: np.ndarray, r: float) -> bool:
        """Whether the percentile stays where these are the probabilities to be outside, for every move of size r."""
        under, over = np.asarray(shift.least(1 - below, r)), np.asarray(shift.least(1 - above, r))
        return bool((under > 1 - self.p).all() and (over >= self.p).all())

    def _steady(self, asked: Asked, t: float) -> Interval | Abstention:
        """The largest radius: the value comes from copies of its own, so that its two neighbours are fixed numbers."""
        value = middle(asked.select.values, self.p)
        under, over = beyond(asked.estimate.values, value - t, value + t)
        sides = [side.flatten().numpy() for side in (under, over)]
        below, above = self.limits(sides, asked.now, asked.shift.tau)
        radius = asked.shift.largest(lambda r: self.stays(asked.shift, below, above, r))
        if not radius > 0 or not bool(value.isfinite().all()):
            reason = f"the answers to noisy copies spread by more than ± {t:g}: no radius keeps the value within it"
            return asked.abstention(BOUND, reason)
        claimed: dict[str, Any] = {
            name: torch.from_numpy(side).reshape(1, *value.shape) for name, side in (("below", below), ("above", above))
        }
        return Interval(
            **asked.shared(BOUND, radius),
            p=self.p,
            radii=(radius,),
            value=value,
            lowers=(value - t)[None],
            uppers=(value + t)[None],
            within=t,
            limits=(self.least, self.most),
            under=under[None],
            over=over[None],
            **claimed,
        )
