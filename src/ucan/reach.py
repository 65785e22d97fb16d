"""How far each column can change, as a record and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ucan.arithmetic import REAL
from ucan.certificate import SCOPES, Certificate
from ucan.errors import InvalidInput
from ucan.rounding import floor_grouped, floor_percent

# Number of columns that a sentence names; the others are counted.
NAMED = 5


@dataclass(frozen=True)
class Move:
    """How far one column may move: strictly less than ``alone`` by itself, than ``together`` when all of them move.

    ``step``: what its changes are whole multiples of, where the certificate is about such and somebody knows.
    """

    column: str
    alone: float
    together: float
    unit: str = ""
    step: float | None = None


@dataclass(frozen=True)
class Reach:
    """What one certificate says of every column that varies, in the columns' own units; its numbers are never too large.

    ``held`` are the columns of which it covers no change; ``on_grid``: it is about changes by whole steps.
    """

    answer: str
    moves: tuple[Move, ...]
    held: tuple[str, ...]
    on_grid: bool
    scope: str
    alpha: float

    @classmethod
    def of(
        cls,
        certificate: Certificate,
        columns: Sequence[str],
        answer: str | None = None,
        units: Mapping[str, str] | None = None,
        steps: Sequence[float | None] | None = None,
    ) -> Reach:
        """Of a certificate about inputs with these columns; ``answer`` is the name of its class, ``steps`` are the
        columns'.
        """
        region = certificate.region
        if len(columns) != region.dim:
            raise InvalidInput(f"the certificate is about {region.dim} columns, but {len(columns)} names were given.")
        alone = region.reach().flatten().tolist()
        together = region.reach_together(range(region.dim)).tolist()
        evidence = certificate.evidence
        on_grid = evidence.arithmetic != REAL
        known = steps if on_grid and steps is not None else [None] * len(columns)
        moves = tuple(
            Move(column, a, t, (units or {}).get(column, ""), step)
            for column, a, t, step in zip(columns, alone, together, known, strict=True)
        )
        return cls(
            f"class {certificate.prediction}" if answer is None else answer,
            moves,
            () if evidence.held is None else evidence.held.columns,
            on_grid,
            certificate.scope,
            evidence.alpha,
        )

    def words(self, named: int = NAMED) -> str:
        """One sentence for the columns that vary, one for the held ones; every number is rounded down."""
        shown, more = self.moves[:named], len(self.moves) - named
        alone = [f"{move.column} alone moves by less than {_amount(move.alone, move.unit)}" for move in shown[:1]]
        alone += [f"{move.column} alone by less than {_amount(move.alone, move.unit)}" for move in shown[1:]]
        rest = f", and likewise for {more} more columns" if more > 0 else ""
        parts = [f"The answer stays {self.answer} while {', '.join(alone)}{rest}{self._together(named)}."]
        if self.on_grid:
            steps = ", ".join(f"{move.column} {move.step:g}" for move in shown if move.step is not None)
            stuck = [move.column for move in self.moves if move.step is not None and move.alone <= move.step]
            none = f", so that no change of {_listed(stuck, named)} is covered" if stuck else ""
            parts.append(f"This is about changes by whole steps{f' ({steps}{_etc(more)})' if steps else ''}{none}.")
        if self.held:
            parts.append(f"Nothing is said of changes of {_listed(self.held, named)}: {_held_words(len(self.held))}.")
        if self.scope != "pipeline":
            parts.append(f"It holds for {SCOPES[self.scope]}.")
        return " ".join(parts)

    def _together(self, named: int) -> str:
        if len(self.moves) == 1:
            return ""
        every = "both" if len(self.moves) == 2 else f"all {len(self.moves)}"
        if len(self.moves) <= named:
            each = ", ".join(f"{move.column} by less than {_amount(move.together, move.unit)}" for move in self.moves)
            return f"; or while {every} move together, {each}"
        share = min((move.together / move.alone for move in self.moves if move.alone > 0), default=0.0)
        return f"; or while {every} move together, each by less than {floor_percent(share)} % of that"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "answer": self.answer,
            "alone": {move.column: move.alone for move in self.moves},
            "together": {move.column: move.together for move in self.moves},
            "steps": {move.column: move.step for move in self.moves if move.step is not None},
            "held": list(self.held),
        }


def _etc(more: int) -> str:
    return ", …" if more > 0 else ""


def _amount(value: float, unit: str) -> str:
    return f"{floor_grouped(value)}{f' {unit}' if unit else ''}"


def _listed(names: Sequence[str], most: int) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _held_words(count: int) -> str:
    return "it was held, without noise" if count == 1 else "they were held, without noise"
