"""What every result of certify and predict has, and the two results without a region: abstentions and predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import torch

from ucan.arithmetic import changes_in_words
from ucan.budget import Budget
from ucan.certificate.entries import budget_to_json
from ucan.choices import EARLIER, SCOPES, Scope, check_choice, check_norm, norm_to_json
from ucan.errors import DoesNotFollow, InvalidInput
from ucan.evidence import Evidence
from ucan.json_text import check_text
from ucan.region import Region
from ucan.rounding import ceil_significant

FORMAT = 2
ROUTED = 3  # of an outcome with a choice, whose claim an older reader would take for a larger one
# The class of an abstention where a number is needed: in tables and in files.
ABSTAINED = -1


@dataclass(frozen=True, eq=False)
class Outcome:
    """The common part of all results.

    ``choice``: the outcome by which a router (``ucan.Routed``) chose the classifier that answers; None of a single
    classifier.
    """

    norm: float | None
    scope: Scope
    evidence: Evidence
    choice: Any = field(default=None, kw_only=True)
    abstained: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_choice("the scope", self.scope, SCOPES)
        if self.norm is not None:
            check_norm(self.norm)
        answer, classes = getattr(self, "prediction", None), len(self.evidence.counts)
        names = hasattr(self, "prediction") and not self.abstained
        if names and not (type(answer) is int and 0 <= answer < classes):  # −1 would count from the end
            raise InvalidInput(f"the prediction must be one of the {classes} classes, got {answer!r}.")
        if answer is not None and getattr(self.choice, "top", answer) != answer:
            raise InvalidInput(f"the choice is about class {self.choice.top}, and the answer is {answer!r}.")
        if self.choice is not None:
            self._check_choice(self.choice)

    def _check_choice(self, choice: Outcome) -> None:
        """Refuse a choice that was not made, or is about something other than this outcome."""
        mine, other = self.evidence.exact_hash, choice.evidence.exact_hash
        if choice.abstained or mine is None or mine != other or self.norm != choice.norm:
            raise InvalidInput("a choice must be sure, and about the input and the norm of the answer.")
        if choice.choice is not None:
            raise InvalidInput("a choice is made by one classifier: it cannot have a choice of its own.")
        if self.scope == "registry" or (self.scope == "pipeline" and choice.scope != "pipeline"):
            raise InvalidInput("the scope of a router is pipeline only if that of the choice is, and never registry.")

    @property
    def counts(self) -> torch.Tensor:
        """Estimation votes by class, int64; with ``invalid`` they add up to n."""
        return torch.tensor(self.evidence.counts, dtype=torch.int64)

    @property
    def invalid(self) -> int:
        """Votes for no class: NaN logits or a class out of range."""
        return self.evidence.invalid

    def to_dict(self, folder: str | Path | None = None) -> dict[str, Any]:
        """Plain JSON values; every kind of result has its own."""
        raise NotImplementedError

    @property
    def alpha(self) -> float:
        """The claim is false with probability at most this: the level of the answer and that of the choice."""
        return self.evidence.alpha + (0.0 if self.choice is None else self.choice.alpha)

    @property
    def chosen(self) -> int | None:
        """Of a choice: the number of the classifier that it names."""
        return getattr(self, "prediction", None)

    @property
    def expert(self) -> int | None:
        """The number of the classifier that a router's choice names; None of a single classifier."""
        return None if self.choice is None else self.choice.chosen

    @property
    def _claim(self) -> str:
        """The scope and the level of the claim."""
        evidence = self.evidence
        family = (
            f", one of {evidence.family:,} at {ceil_significant(self.alpha * evidence.family)} together"
            if evidence.family > 1
            else ""
        )
        copy = f", of a copy in {evidence.precision}" if evidence.copy else ""
        held = f", {evidence.held.words()}" if evidence.held is not None else ""
        bound = ", by a randomised bound" if evidence.bound == "randomised" else ""
        routed = "" if self.choice is None else f", by expert {self.expert}"
        return f"scope {self.scope}, α = {ceil_significant(self.alpha)}{family}{bound}{copy}{held}{routed}"


def among_invalid(evidence: Evidence) -> str:
    """What follows the reason of an abstention: how many votes were invalid; empty if none were."""
    return f" ({evidence.invalid} of {evidence.n} votes were invalid)" if evidence.invalid else ""


class Claimed(Outcome):
    """A result whose claim is about every input in a ``region``."""

    region: Region

    @property
    def radius_norm(self) -> float:
        """The norm that the radius is in: the requested one, else the region's own."""
        return self.region.norm if self.norm is None else self.norm

    @property
    def _about(self) -> str:
        """The scope and the level of the claim, and on a grid which changes it is about."""
        changes = changes_in_words(self.evidence.arithmetic)
        return f"{self._claim}, {changes}" if changes else self._claim


@dataclass(frozen=True, eq=False)
class Abstention(Outcome):
    """No claim is made, for the stated ``reason``: radius 0, no region, and budget factor 0.

    ``p_lower`` is the bound on the probability of the most voted class, too low for a claim. ``norm``, ``scope``, ``budget``,
    ``evidence`` and ``choice`` are those that a certificate would have had.
    """

    reason: str
    p_lower: float = 0.0
    budget: Budget | None = None
    abstained: ClassVar[bool] = True
    prediction: ClassVar[None] = None
    region: ClassVar[None] = None
    radius: ClassVar[float] = 0.0
    size: ClassVar[float] = 0.0
    budget_factor: ClassVar[float] = 0.0
    alm: ClassVar[float] = 0.0
    log_volume: ClassVar[float] = -math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("an abstention's p_lower", self.p_lower, 1.0)
        check_text("an abstention's reason", self.reason)

    def __str__(self) -> str:
        """The reason in one line."""
        return f"abstained: {self.reason}"

    def reason_with(self, names: Sequence[str]) -> str:
        """The reason, which numbers the classes from 0, with the name of the class that most votes chose."""
        votes = self.evidence.selection
        chosen = votes.index(max(votes)) if votes is not None and any(votes) else len(names)
        if chosen >= len(names) or names[chosen] in ("", str(chosen)):
            return self.reason
        return f"{self.reason} (class {chosen}, counted from 0, is {names[chosen]})"

    def to_dict(self, folder: str | Path | None = None) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "format": FORMAT if self.choice is None else ROUTED,
            "kind": "abstention",
            "reason": self.reason,
            "p_lower": self.p_lower,
            "norm": norm_to_json(self.norm),
            "scope": self.scope,
            **budget_to_json(self.budget, Path(folder) if folder is not None else None),
            **choice_to_json(self.choice, folder),
            "evidence": self.evidence.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Prediction(Outcome):
    """The smoothed classifier's answer, ``prediction``; wrong with probability at most α over the noise drawn.

    ``p_value`` is that of the test which found the votes too clear for chance. ``scope``, ``evidence`` and ``choice`` are as
    in a certificate; ``norm`` is None.
    """

    prediction: int
    p_value: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("a prediction's p_value", self.p_value, 1.0)

    def __str__(self) -> str:
        """The answer in one line."""
        return f"class {self.prediction} ({self._claim})"

    def to_dict(self, folder: str | Path | None = None) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "format": FORMAT if self.choice is None else ROUTED,
            "kind": "prediction",
            "prediction": self.prediction,
            "p_value": self.p_value,
            "norm": norm_to_json(self.norm),
            "scope": self.scope,
            **choice_to_json(self.choice, folder),
            "evidence": self.evidence.to_dict(),
        }


def check_number(name: str, value: Any, most: float) -> None:
    """Refuse anything but a number from 0 to ``most``."""
    if isinstance(value, bool) or not (isinstance(value, Real) and 0 <= float(value) <= most):
        raise InvalidInput(f"{name} must be a number of at least 0, and at most {most:g}, got {value!r}.")


def check_numbers(name: str, values: Any, most: float) -> None:
    """Refuse anything but numbers from 0 to ``most``, one at least."""
    if not isinstance(values, tuple) or not values:
        raise InvalidInput(f"{name} must be a list of numbers, got {values!r}.")
    for value in values:
        check_number(name, value, most)


def choice_to_json(choice: Outcome | None, folder: str | Path | None) -> dict[str, Any]:
    """The JSON entry of the choice of a router, if there is one."""
    return {} if choice is None else {"choice": choice.to_dict(folder)}


def check_guarantee(record: Mapping[str, Any], scope: Scope) -> None:
    """Refuse a record whose words about its guarantee are not the sentence of its scope; a record may have no words."""
    if "guarantee" in record and record["guarantee"] not in (SCOPES[scope], *EARLIER[scope]):
        raise DoesNotFollow(
            f"this record's guarantee is not that of its scope, {scope}: it says {record['guarantee']!r}, and the scope "
            f"gives {SCOPES[scope]!r}. It was changed or is damaged: ask for the file again where it was issued.",
            "guarantee",
        )
