"""What the check of an entry is asked for, and what it finds: a job, and the checks with their outcomes.

Every check ends in one of three ways: ok, failed, or not checked, with the reason. An entry stands if nothing failed; that
is no proof, and what was not checked is said.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from ucan.audit import Budget
from ucan.bounds import check_alpha
from ucan.errors import InvalidInput
from ucan.leaderboard.entry import Entry
from ucan.runs.fields import entry

Outcome = Literal["ok", "failed", "not checked"]


@dataclass(frozen=True)
class Replayed:
    """Certificates drawn at random, ``certificates`` ``of`` all that count, and checked one by one; ``failed`` do not stand.

    The noise of ``redrawn`` could be drawn again here; of these ``moved`` stand with some votes moved by rounding.
    """

    of: int | None = entry("replay.of")
    certificates: int | None = entry("replay.certificates")
    redrawn: int | None = entry("replay.redrawn")
    moved: int | None = entry("replay.moved")
    failed: int | None = entry("replay.failed")


@dataclass(frozen=True)
class Attacks:
    """How many of them were attacked inside their regions, and broken."""

    certificates: int | None = entry("attack.certificates")
    broken: int | None = entry("attack.broken")


@dataclass(frozen=True)
class Check:
    """One check, its outcome, and the reason or what was found; of the sampled certificates also how many.

    One that was interrupted counts what was done until then.
    """

    name: str
    outcome: Outcome
    detail: str
    counted: Replayed | Attacks | None = None
    interrupted: bool = False


@dataclass(frozen=True)
class Checked:
    """All checks of an entry."""

    entry: Entry
    checks: tuple[Check, ...]

    @property
    def stands(self) -> bool:
        """Whether nothing failed; this is not a proof of the entry."""
        return all(check.outcome != "failed" for check in self.checks)

    @property
    def interrupted(self) -> bool:
        """Whether it was ended before all sampled certificates were looked at."""
        return any(check.interrupted for check in self.checks)

    @property
    def replayed(self) -> Replayed | None:
        """How many certificates were replayed; None if that was not tried."""
        return next((one.counted for one in self.checks if isinstance(one.counted, Replayed)), None)

    @property
    def attacked(self) -> Attacks | None:
        """How many certificates were attacked; None if that was not tried."""
        return next((one.counted for one in self.checks if isinstance(one.counted, Attacks)), None)

    def named(self, outcome: Outcome) -> tuple[str, ...]:
        """The checks with this outcome."""
        return tuple(one.name for one in self.checks if one.outcome == outcome)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        checks = [
            {key: value for key, value in asdict(one).items() if value not in (None, False)} for one in self.checks
        ]
        return {"entry": self.entry.name, "stands": self.stands, "checks": checks}


@dataclass(frozen=True, kw_only=True)
class CheckJob:
    """The settings of a check. ``inputs`` certificates are drawn at random and replayed; ``attacks`` of them attacked.

    ``results`` is the run folder, or the file that the entry's hash is of; ``model``, ``weights`` and ``data`` are the
    paths of the run's parts if they have moved. ``seed`` draws the sample: a submitter must not know it in advance.
    """

    entry: str | Path
    results: str | Path | None = None
    model: str | None = None
    weights: str | Path | None = None
    data: str | None = None
    inputs: int = 20
    attacks: int = 10
    alpha: float = 0.001
    seed: int | None = None
    budget: Budget = field(default_factory=Budget)
    device: str | torch.device = "auto"
    trust: bool = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.inputs < 1 or self.attacks < 0:
            raise InvalidInput(
                f"inputs must be at least 1 and attacks at least 0, got {self.inputs} and {self.attacks}."
            )
        if self.seed is not None and self.seed < 0:
            raise InvalidInput(f"the seed of the sample must be at least 0, got {self.seed}.")
