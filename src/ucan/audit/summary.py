"""The summary of an audit: counts, the rule that distinguishes a bug from chance, and the text for both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucan.audit.decide import SURE, allowed_breaks
from ucan.audit.ledger import ATTEMPTS, read_records
from ucan.audit.trials import MODES, Attempt
from ucan.errors import StoreError
from ucan.storage import Journal


@dataclass(frozen=True)
class Tally:
    """Attempts of one mode at one factor; of a router, on one part of its certificates."""

    mode: str
    factor: float
    attacked: int
    broken: int
    part: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; the part only of a router."""
        return {name: value for name, value in vars(self).items() if name != "part" or value}


@dataclass(frozen=True)
class Summary:
    """``attacked`` certificates; ``broken`` of them by mode, at any factor, and where another class led by ``changed``.

    ``alone`` are further certificates in whose region no other input was found, so that there was nothing to attack.

    ``covered_breaks`` are those in a mode that the guarantee covers, twice tested; chance allows ``allowed`` of them.
    Certificates on the same evidence, as a registry gives them, count once. ``bugs`` are breaks that were certified again,
    and registry answers that changed.
    """

    scope: str
    attacked: int
    broken: dict[str, int]
    changed: dict[str, int]
    tallies: tuple[Tally, ...]
    covered_breaks: int
    allowed: int
    bugs: tuple[Attempt, ...]
    alone: int = 0

    @property
    def is_bug(self) -> bool:
        """A break still certifies, or there are more of them than chance can explain."""
        return bool(self.bugs) or self.covered_breaks > self.allowed

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "scope": self.scope,
            "attacked": self.attacked,
            "alone": self.alone,
            "broken": self.broken,
            "changed": self.changed,
            "by_factor": [tally.to_dict() for tally in self.tallies],
            "covered_breaks": self.covered_breaks,
            "allowed_by_chance": self.allowed,
            "bug": self.is_bug,
            "bugs": [attempt.to_dict() for attempt in self.bugs],
        }


def read_attempts(folder: str | Path) -> list[Attempt]:
    """The finished attempts of the audit in a folder, also while it runs; empty if there is no audit."""
    path = Path(folder) / ATTEMPTS
    try:
        return [Attempt.of(record) for record in read_records(Journal(path)).values()]
    except (OSError, TypeError) as error:  # TypeError: attempts on the answers to a question
        raise StoreError(f"{path} cannot be read as an audit: {error}. Remove the folder to audit again.") from error


def summarise(attempts: Sequence[Attempt], skip: int = 1) -> Summary:
    """Counts over all attempts of one run, which certified every ``skip``-th input.

    What chance allows is ``allowed_by_chance``.
    """
    scope, every = attempts[0].scope if attempts else "unknown", {a.idx for a in attempts}
    attempts = [a for a in attempts if a.elsewhere]
    covered = [a for a in attempts if a.covered]
    tests = Counter(a.claim or a.idx for a in covered)  # certificates with the same evidence are true or false together
    breaks = {a.claim or a.idx for a in covered if a.refuted}
    last, alpha = max((a.idx for a in covered), default=0), max((a.alpha for a in covered), default=0.001)
    modes = [mode for mode in MODES if any(a.mode == mode for a in attempts)]
    return Summary(
        scope=scope,
        attacked=len({a.idx for a in attempts}),
        broken={mode: len({a.idx for a in attempts if a.mode == mode and a.broken}) for mode in modes},
        changed={mode: len({a.idx for a in attempts if a.mode == mode and a.changed}) for mode in modes},
        tallies=tuple(
            Tally(mode, factor, len(some), sum(a.broken for a in some), part)
            for mode in modes
            for part in sorted({a.part for a in attempts})
            for factor in sorted({a.factor for a in attempts})
            if (some := [a for a in attempts if (a.mode, a.factor, a.part) == (mode, factor, part)])
        ),
        covered_breaks=len(breaks),
        allowed=allowed_by_chance(tests, last, skip, alpha),
        bugs=tuple(a for a in covered if a.bug and a.refuted and a.same_as is None),
        alone=len(every - {a.idx for a in attempts}),
    )


def allowed_by_chance(tests: Counter[Any], last: int, skip: int, alpha: float) -> int:
    """How many claims may break by chance, of a run that claims something about every ``skip``-th input.

    A claim is false with probability at most α for each input of the run, abstentions included. Among claims chosen by their
    radius the share of false ones may be larger; their number is not. So the number is computed over all inputs up to
    ``last``, the last one attacked. ``tests`` counts how often each claim was tested: each test may also be wrong.
    """
    inputs = max(len(tests), last // skip + 1)
    return allowed_breaks(inputs, alpha + SURE * max(tests.values(), default=0))


def _unchanged(count: int) -> str:
    """A note on breaks at which the class still leads."""
    return f" ({count} of them by the loss of the majority alone: the class still leads)" if count else ""


def in_words(summary: Summary) -> list[str]:
    """Explain the counts, one or two sentences per line."""
    memory = summary.scope == "registry"
    names = {
        "live": "on the classifier with its memory" if memory else "on the live pipeline",
        "frozen": "with the noise held frozen",
    }
    counts = ", ".join(
        f"{count} broken {names[mode]}{_unchanged(count - summary.changed[mode])}"
        for mode, count in summary.broken.items()
    )
    lines = [f"{summary.attacked} certificate{'s' if summary.attacked != 1 else ''} attacked: {counts}."]
    if not summary.attacked and summary.alone:
        return ["Nothing was attacked: no other input was found inside the region of any certificate."]
    if summary.alone:
        lines.append(f"{summary.alone} more could not be attacked: no other input was found inside their regions.")
    if memory and "live" in summary.broken:
        lines.append(
            "Scope registry: the guarantee is about the classifier with its registry, and a copy of it was attacked, also by "
            "enrolling inputs around each region; nothing was enrolled in the registry itself. Without "
            "the registry the pipeline has no such guarantee (documentation page “A classifier with a memory”)."
        )
    elif summary.scope == "frozen" and "live" in summary.broken:
        lines.append(
            "Scope frozen: each certificate is about the classifier whose noise was computed at its input and frozen. Breaks "
            "on the live pipeline, which recomputes the noise from the attacked input, are not a bug: the guarantee does not "
            "cover it. Do not rely on these radii for a deployed pipeline "
            "(documentation page “Whose guarantee it is”)."
        )
    if summary.is_bug:
        kept = sum(a.recertified is None for a in summary.bugs)
        why = f"{len(summary.bugs) - kept} breaks were certified again with a fresh seed and ten times the samples"
        why += f"; {kept} answers changed inside a stored region" if kept else ""
        lines.append(
            f"BUG: {why}; {summary.covered_breaks} claims broke where the guarantee covers them, and chance explains at "
            f"most {summary.allowed}. The radius, the noise, the votes or the registry is wrong "
            f"(documentation page “The auditor”)."
        )
    elif summary.covered_breaks:
        lines.append(
            f"{summary.covered_breaks} broke where the guarantee covers them; none certified again, and chance allows up to "
            f"{summary.allowed}: no bug."
        )
    elif any(tally.mode == "frozen" or summary.scope != "frozen" for tally in summary.tallies):
        lines.append("None broke where the guarantee covers them. An attack is a search: a better one may find more.")
    return lines
