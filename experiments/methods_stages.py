"""The passes over test inputs that a row of methods.py came to the end of, with what was certified then."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from suite import looked_at, undecided


@dataclass(frozen=True)
class Stage:
    """One pass: the first ``inputs`` inputs (in the order of suite.py) with up to ``votes`` votes each.

    ``most`` are the votes that any of them had at most, from earlier passes too; ``reached`` has one digit an input: how many
    levels are certified.
    """

    inputs: int
    votes: int
    most: int
    reached: str


def stages_of(record: dict[str, Any]) -> list[Stage]:
    """Those that are on record; an older record has the last only."""
    if "stages" in record:
        return [Stage(**one) for one in record["stages"]]
    if not record.get("passed"):
        return []
    (claim,) = record["claims"].values()
    return [Stage(record["inputs"], record["passed"], record["passed"], claim["reached"])]


def unfinished(record: dict[str, Any]) -> Stage:
    """What a record shows before the end of its first pass."""
    (claim,) = record["claims"].values()
    votes = undecided(record)["votes"]
    return Stage(len(looked_at(claim["reached"])), votes, votes, claim["reached"])


def passed(stages: list[Stage], inputs: int) -> int:
    """The votes that the first so many inputs could have, in passes that came to their end; 0 if none did."""
    return max((one.votes for one in stages if one.inputs >= inputs), default=0)


def added(stages: list[Stage], inputs: int, votes: int, reached: str) -> list[dict[str, Any]]:
    """With one more, as plain values."""
    most = max([votes, *(one.most for one in stages)])
    return [asdict(one) for one in [*stages, Stage(inputs, votes, most, reached[:inputs])]]
