"""What is recorded: our rows with their shares, audits, dates and hardware; read by everything that makes a page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rows import ROWS
from suite import DIGITS, looked_at, undecided

from ucan.rounding import ceil_digits

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
MISSING = "not measured yet"
TEST_SET = 10_000
# Audits of the same kind of noise in another training, some of a smaller network on other data.
SAME_NOISE = {
    "cifar10-certification": (
        "cifar10-certification-wise",
        "cifar10-universal-certification-gaussian",
        "digits-certification-linf",
    ),
    "cifar10-certification-laplace": ("digits-certification-laplace-l1",),
    "cifar10-certification-uniform": ("digits-certification-uniform-l1",),
    "mnist-certification": ("mnist-versus-certification",),
}


@dataclass(frozen=True)
class Measured:
    """One row of ours: shares in percent, rounded down, by claim ("l2 radius") and level."""

    name: str
    scope: str
    cap: float | None
    inputs: int
    n: int
    shares: dict[str, dict[float, str]]
    open: int = 0

    def at(self, key: str, level: float) -> str | None:
        """The share at a level, or None if that was not asked."""
        return next((s for at, s in self.shares.get(key, {}).items() if math.isclose(at, level, abs_tol=1e-5)), None)

    @property
    def capped(self) -> str:
        """The cap on every scale, λ included, rounded up to three digits; without it no ALM says anything."""
        if self.cap is None:
            return ""
        digits = 2 - math.floor(math.log10(self.cap))
        return f"σ ≤ {float(ceil_digits(round(self.cap, digits + 6), digits)):g}"  # 1 + 1e-9 is 1

    @property
    def part(self) -> str:
        """How many inputs and votes."""
        undecided = f", {self.open} undecided" if self.open else ""
        return f"{self.inputs:,} inputs, n ≤ {self.n:,}{undecided}"


class Recorded:
    """All that is recorded: rows of the suite by name, and what they were recorded as earlier."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[str, Measured] = {}
        self.earlier: dict[str, Measured] = {}
        for row in ROWS:
            found = self.json(f"suite/{row.name}.json")
            if found is not None:
                self.rows[row.name] = of_suite(row.name, found)
        for before in self.earlier_files():
            now = self.json(f"suite/{before['row']}.json") or {}
            why = "with fewer votes" if before["weights"] == now.get("weights") else "an earlier training"
            self.earlier[before["row"]] = of_suite(f"{before['row']} ({why})", before)

    def json(self, path: str) -> Any:
        """A file's content, or None where it is not there."""
        file = self.folder / path
        return json.loads(file.read_text()) if file.exists() else None

    def earlier_files(self) -> list[Any]:
        """The records that others have taken the place of."""
        return [json.loads(path.read_text()) for path in sorted((self.folder / "suite" / "earlier").glob("*.json"))]

    def audit(self, rows: Sequence[str], key: str = "") -> str:
        """The auditor's verdict on each of these rows, in a few words; ``key`` is the claim, "linf radius"."""
        words = {row: self._verdict(row, key) for row in rows}
        if len(set(words.values())) == 1:
            return next(iter(words.values())) + (f", each of {', '.join(words)}" if len(words) > 1 else "")
        return "; ".join(f"{row}: {said}" for row, said in words.items()) or MISSING

    def attacked(self, row: str, key: str) -> Attacked | None:
        """The audit of a row, else of the same kind of noise; of several the first against the claim's norm."""
        found = [
            Attacked(name, audit["summary"], not key or _norm(audit) == key.partition(" ")[0])
            for name in (row, *SAME_NOISE.get(row, ()))
            if (audit := self.json(f"audits/{name}.json"))
        ]
        return next((one for one in found if one.in_norm), found[0] if found else None)

    def _verdict(self, row: str, key: str) -> str:
        one = self.attacked(row, key)
        if one is None:
            return "not attacked yet"
        summary, broken = one.summary, one.summary["broken"]
        words = [f"{broken['live']} of {summary['attacked']} broken live"]
        if "frozen" in broken:
            words.append(f"{broken['frozen']} with frozen noise")
        if summary["covered_breaks"] and not summary["bug"]:
            words.append("where the guarantee covers it no more than α explains")
        if not one.in_norm:
            words.append("attacked in another norm")
        return f"{_whose(one.name, row)}{', '.join(words)}{': BUG' if summary['bug'] else ''}"


@dataclass(frozen=True)
class Attacked:
    """An audit: of which run, its summary, and whether it was against the norm of the claim."""

    name: str
    summary: dict[str, Any]
    in_norm: bool


def _norm(audit: dict[str, Any]) -> str:
    """The norm of an audit as claims name it: l1, l2, linf."""
    return f"l{audit['norm']}"


def _whose(attacked: str, row: str) -> str:
    """A mark before an audit that is not of this row's network."""
    if attacked == row:
        return ""
    data = attacked.partition("-")[0]
    what = "another training" if row.startswith(f"{data}-") else f"a small network on {data}, not of this one"
    return f"of {what} ({attacked}): "


def between(values: Iterable[Any]) -> str:
    """One value, or the smallest and the largest."""
    known = sorted({value for value in values if value is not None})
    return " to ".join(
        f"{value:,}" if isinstance(value, int) else str(value) for value in (*known[:1], *known[1:][-1:])
    )


def made_on(when: str | None, hardware: str | None) -> str:
    """When and on what, in few letters: the tables are wide."""
    return ", ".join(one.removeprefix("NVIDIA ") for one in (when, hardware) if one) or "–"


def reaches(found: Any, key: str, level: float) -> list[bool]:
    """Whether each input of a record reached a level, in the suite's order."""
    claim = found["claims"][key]
    return [DIGITS.index(c) > claim["levels"].index(level) for c in looked_at(claim["reached"])]


def of_suite(name: str, found: dict[str, Any]) -> Measured:
    left = undecided(found)
    many = 8 * left["inputs"] > found["inputs"]
    shares = {
        # Where nothing is certified and much is undecided there were too few votes for this level: nothing is known.
        key: {float(r): s for r, s in claim.items() if s != "0.0" or not many}
        for key, claim in found["accuracy"].items()
    }
    return Measured(name, found["scope"], found["cap"], found["inputs"], left["votes"], shares, left["inputs"])


def matching(recorded: Recorded, globs: Iterable[str]) -> list[Measured]:
    """The recorded rows whose names match, in the order of the list."""
    names = [row.name for row in ROWS if any(fnmatch(row.name, glob) for glob in globs)]
    return [found[name] for name in names for found in (recorded.rows, recorded.earlier) if name in found]


def up(value: float) -> str:
    """A time, or a distance, rounded up to two decimals."""
    return f"{math.ceil(round(value * 100, 6)) / 100:.2f}"
