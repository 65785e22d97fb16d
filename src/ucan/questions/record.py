"""The common part of what questions are answered with: frozen records with a region, a scope and evidence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch

from ucan.budget import Budget
from ucan.certificate import SCOPES, Claimed, budget_to_json, check_number, region_to_json
from ucan.choices import norm_name, norm_to_json
from ucan.evidence import Evidence
from ucan.questions.looks import Look
from ucan.questions.shift import Shift
from ucan.region import Region
from ucan.rounding import floor_digits

# Certificates of one class have format 2 or 3; a reader of these refuses what answers another question.
FORMAT = 4
# What rounding may add to a number that is computed again, relative to it.
SLACK = 1e-9
Where = Literal["here", "inside"]


@dataclass(frozen=True, eq=False)
class Answer(Claimed, ABC):
    """A claim about every input in ``region``, true with probability at least 1 − α over the noise drawn.

    ``tau`` is what the arithmetic may change a probability by, 0 in real arithmetic; the claim has paid for it. With a
    ``budget``, the claim stands under every change within ε·budget, for every ε strictly below ``budget_factor``.
    """

    region: Region
    tau: float
    budget: Budget | None = field(default=None, kw_only=True)
    kind: ClassVar[str]
    task: ClassVar[str]
    votes: ClassVar[
        tuple[str, ...]
    ] = ()  # fields with the votes that its bounds follow from, where its evidence has none

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("an answer's tau", self.tau, 1.0)
        self.question()  # which refuses settings that no question has

    @property
    def radius(self) -> float:
        """The largest ball of the requested norm inside the region."""
        return self.region.inscribed_radius(self.norm)

    @property
    def budget_factor(self) -> float | None:
        """The largest known ε such that ε·budget lies in the region; None without a budget."""
        return None if self.budget is None else self.region.budget_factor(self.budget)

    @property
    @abstractmethod
    def bound(self) -> str:
        """The name of the bounds that an answer of its kind follows by; evidence adds the look, if there is one."""

    @property
    def assumed(self) -> tuple[float | None, float | None] | None:
        """The range of the model's numbers that the claim rests on, and that no votes can show; None if it rests on none."""
        return None

    @property
    def complete(self) -> bool:
        """Whether it holds the votes that its bounds follow from; records that were written without them still count."""
        return all(getattr(self, name) is not None for name in self.votes)

    def counted(self) -> dict[str, torch.Tensor]:
        """The votes that its bounds follow from, by name, where evidence has none; nothing in a record without them."""
        return {name: getattr(self, name) for name in self.votes} if self.complete else {}

    def countable(self, like: torch.Tensor, n: int) -> bool:
        """Whether its votes are whole numbers of n, one for each place of ``like``."""
        return all(
            votes.shape == like.shape and votes.dtype == torch.int64 and not bool(((votes < 0) | (votes > n)).any())
            for votes in self.counted().values()
        )

    @abstractmethod
    def follows(self, shift: Shift) -> bool:
        """Whether its radii follow from the bounds that it states, up to rounding; ``shift`` is T_r at its input."""

    def bounded(self, look: Look) -> bool:
        """Whether its bounds follow from its votes, which a look concludes from; True if they are not there."""
        return True

    def redrawn(self, select: Any, estimate: Any, room: float) -> Self:
        """The same claim on votes that were drawn again; numbers may be off by this share of their size."""
        counts, selection = (tuple(votes.counts.tolist()) for votes in (estimate, select))
        drawn = replace(self.evidence, counts=counts, invalid=estimate.invalid, selection=selection)
        return replace(self, evidence=drawn)

    def tallied(self, invalid: int) -> Evidence:
        """The evidence with so many invalid answers of all, as of what keeps no votes for classes of the whole input."""
        return replace(self.evidence, counts=(self.evidence.n - invalid,), invalid=invalid)

    def moved(self, drawn: Self) -> int:
        """How many votes fell elsewhere when they were drawn again (``redrawn``): of many places, at that with the most."""
        mine, theirs = ((*e.counts, e.invalid) for e in (self.evidence, drawn.evidence))
        return sum(abs(a - b) for a, b in zip(mine, theirs, strict=True)) // 2

    @abstractmethod
    def p_value(self, kept: Any, where: Where) -> float:
        """How surprising fresh answers are if the claim is true: at its own input ("here"), or at one in its region.

        A true claim gets a value of at most a with probability at most a. ``kept`` is what the reader keeps of them.
        """

    def least_p_value(self, n: int) -> float:
        """The smallest ``p_value`` at its own input that n fresh answers could have: above α they could reject nothing."""
        return 0.0

    def outside(self, kept: Any) -> int:
        """How many of fresh answers, anywhere, are outside the range that the claim rests on: a single one makes it void."""
        return 0

    @abstractmethod
    def pushes(self, f: Any, output: torch.Tensor) -> torch.Tensor:
        """Numbers (n, goals) that an adversary raises to break the claim, from the model's output; differentiable if it is."""

    @abstractmethod
    def content(self, folder: Path | None) -> dict[str, Any]:
        """The record's own fields as JSON values."""

    def shown(self) -> dict[str, Any]:
        """What ``content`` states besides, for readers of the file: it follows from the other fields."""
        return {}

    @classmethod
    @abstractmethod
    def restored(cls, shared: Mapping[str, Any], content: Mapping[str, Any], folder: Path | None) -> Answer:
        """The inverse of ``content``, with the fields that all answers have."""

    @abstractmethod
    def question(self) -> Any:
        """The question that this answers, with its settings."""

    @abstractmethod
    def summary(self) -> str:
        """The claim, without region, scope and level."""

    def __str__(self) -> str:
        """The claim in one line; the radius is rounded down."""
        if self.budget is not None and self.budget_factor is not None:
            factor = floor_digits(self.budget_factor, 4)
            return f"{self.summary()}, under {self.budget.words()}, ε = {factor} ({self._about})"
        norm, radius = norm_name(self.radius_norm), floor_digits(self.radius, 4)
        return f"{self.summary()}, for every change within an {norm} radius of {radius} ({self._about})"

    def to_dict(self, folder: str | Path | None = None) -> dict[str, Any]:
        """Plain JSON values. Large tensors are stored as files in ``folder`` and referred to by name."""
        where = Path(folder) if folder is not None else None
        return {
            "format": FORMAT,
            "kind": self.kind,
            "norm": norm_to_json(self.norm),
            "scope": self.scope,
            "guarantee": SCOPES[self.scope],
            "region": region_to_json(self.region, where),
            "tau": self.tau,
            **self.content(where),
            **budget_to_json(self.budget, where),
            **({} if self.budget is None else {"budget_factor": self.budget_factor}),
            "evidence": self.evidence.to_dict(),
        }
