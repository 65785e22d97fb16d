"""The page of a leaderboard, in Markdown: the best at each radius, then every entry, grouped by data set and norm."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ucan.data import is_known
from ucan.laws import norm_name
from ucan.leaderboard.entry import ORIGINS, Entry, level_key
from ucan.leaderboard.kept import Kept, entry_hash
from ucan.plan import USUAL_ALPHA
from ucan.report.render import in_markdown

HEAD = """# {title}

Certified accuracy in %, rounded down: the share of test inputs whose answer is right and certified at the radius. Every
line is one entry of this folder. `scope` says what the guarantee is about: `pipeline` holds for the classifier as it is
deployed, `frozen` for noise held as it was at the input. "n ≤" is the most votes that an input used.

{origins}

An imported entry is **unchecked**: nobody here has its weights. So is a record: its counts are what its author states.
Made by `ucan leaderboard page`; do not edit.
"""


# Folded up, where a page shows HTML in Markdown: the table is long and wide.
FOLDED = "<details markdown>\n<summary>All entries: {count}</summary>\n"
CHECKED = """
"checked" is what `ucan leaderboard check --keep` found, as whoever ran it states: how many certificates were replayed and
attacked. An entry that failed it leads no table.
"""


def page(entries: Mapping[Path, Entry], title: str = "Leaderboard", kept: Mapping[Path, Kept] | None = None) -> str:
    """The whole page; ``kept`` are the checks that were kept, by the path of the entry."""
    kept = kept or {}
    origins = "\n".join(f"- `{name}`: {text}." for name, text in ORIGINS.items())
    parts = [HEAD.format(title=title, origins=origins) + (CHECKED if kept else "")]
    items = sorted(entries.items(), key=lambda item: (_group(item[1]), _place(item[1]), str(item[0])))
    for (data, split, norm, own), group in itertools.groupby(items, key=lambda item: _group(item[1])):
        some = list(group)
        levels = sorted({level for _, one in some for level in one.levels})
        part = "" if split == "test" else f" ({in_markdown(split)} split, not the test set)"
        part += f" (sha256 {in_markdown(own[:12])}…)" if own else ""
        parts.append(f"## {in_markdown(data)}{part}, {norm_name(norm)}\n")
        if best := best_table([one for path, one in some if not _fails(one, kept.get(path))], levels):
            parts.append("\n".join(best) + "\n")
        parts.append("\n".join([FOLDED.format(count=len(some)), *_table(some, levels, kept), "\n</details>"]) + "\n")
    return "\n".join(parts)


def _fails(one: Entry, kept: Kept | None) -> bool:
    """Whether a check of this entry, as it is now, was kept and failed."""
    return kept is not None and kept.of == entry_hash(one) and not kept.stands


def _checked(one: Entry, kept: Kept | None) -> str:
    """A check that was kept, as a cell."""
    if kept is None:
        return "–"
    if kept.of != entry_hash(one):
        return "before the entry was changed"
    replayed, attacked = kept.replayed, kept.attacked
    said = [] if replayed.certificates else ["none replayed"]
    if replayed.certificates:
        fresh = replayed.certificates - (replayed.redrawn or 0)
        said.append(f"{replayed.redrawn or 0} of {replayed.of or 0:,} replayed")
        said += [f"{count} {what}" for count, what in ((replayed.moved, "moved"), (replayed.failed, "failed")) if count]
        said += [f"{fresh} not drawn again"] if fresh else []
    said.append(
        f"{attacked.certificates} attacked / {attacked.broken} broken" if attacked.certificates else "none attacked"
    )
    said += [part for part in (kept.date, kept.device) if part]
    said += [] if kept.seed is None else [f"sample of seed {kept.seed}"]
    said += [f"not checked: {', '.join(kept.unchecked)}"] if kept.unchecked else []
    failed = "" if kept.stands else f"**FAILED: {in_markdown(', '.join(kept.failed))}**; "
    return failed + in_markdown(", ".join(said))


def _group(one: Entry) -> tuple[str, str, float, str]:
    """What is compared: a known data set however its name is spelled, any other by the hash of its content as well."""
    data, known = one.claim.data or "", is_known(one.claim.data or "")
    own = "" if known else one.hashes.data or ""
    return data.lower() if known else data, one.claim.split or "test", one.claim.norm or 0.0, own


def _place(one: Entry) -> tuple[bool, bool, str]:
    """What holds for a pipeline first; imported ones after the others."""
    return one.claim.scope != "pipeline", one.origin == "imported", one.name or ""


def _radius(level: float, norm: float | None) -> str:
    """A radius as it is shown; against ℓ∞ in steps of a picture's grey levels, where it is a whole number of them."""
    steps = round(255 * level)
    return f"{steps}/255" if norm == math.inf and steps and level_key(steps / 255) == level_key(level) else f"{level:g}"


def fair(one: Entry, inputs: int) -> bool:
    """Whether an entry counts in the first table: scope pipeline, all of the test set, no extra data, α at most that of the
    field, and no audit that refutes it.
    """
    return one.claim.inputs == inputs and _alike(one)


def _alike(one: Entry) -> bool:
    """The same, whatever part of the test set it is about."""
    claim, alpha = one.claim, one.claim.alpha
    alike = claim.scope == "pipeline" and claim.extra_data is False
    return alike and alpha is not None and alpha <= USUAL_ALPHA and not one.audit.bug


def leader(entries: Sequence[Entry], level: float) -> Entry | None:
    """The entry with the most certified inputs at a radius; of equal ones the first. One with none there leads nothing."""
    reaching = [one for one in entries if one.count(level)]
    return max(reaching, key=lambda one: one.count(level) or 0, default=None)


def best_table(entries: Sequence[Entry], levels: Sequence[float]) -> list[str]:
    """At each radius the best entry of scope pipeline on the largest test set without extra data, by networks and origin,
    with who states it.

    Empty where there is none.
    """
    inputs = max((one.claim.inputs or 0 for one in entries if _alike(one)), default=0)
    known = [one for one in entries if fair(one, inputs)]
    kinds: dict[str, list[Entry]] = {}
    for several, origin in itertools.product((False, True), ORIGINS):
        some = [
            one for one in known if one.origin == origin and one.claim.networks and (one.claim.networks > 1) == several
        ]
        if some:
            kinds[f"{'several networks' if several else 'one network'}, `{origin}`"] = some
    if not kinds:
        return []
    terms = (
        f"The best at each radius: scope `pipeline`, {inputs:,} inputs, no extra data, α ≤ {USUAL_ALPHA:g}, not refuted by an "
        "audit."
    )
    lines = [terms, "", "| radius | " + " | ".join(kinds) + " |"]
    lines.append("|--:|" + "---|" * len(kinds))
    for level in levels:
        cells = []
        for some in kinds.values():
            best = leader(some, level)
            cells.append("–" if best is None else f"**{best.share(level)}** ({in_markdown(_signed(best))})")
        if any(cell != "–" for cell in cells):
            lines.append(f"| {_radius(level, known[0].claim.norm)} | " + " | ".join(cells) + " |")
    return lines


def _signed(one: Entry) -> str:
    """An entry's name, and who states it."""
    return "; ".join(part for part in (one.name, one.by) if part)


def _table(some: Sequence[tuple[Path, Entry]], levels: Sequence[float], kept: Mapping[Path, Kept]) -> list[str]:
    head = [
        "entry",
        "by",
        "origin",
        "scope",
        "networks",
        *(_radius(level, some[0][1].claim.norm) for level in levels),
        "inputs",
        "n ≤",
        "α",
        "extra data",
    ]
    head += [
        "attacked / broken",
        *(["checked"] if kept else []),
        "date",
        "hardware",
        "minutes: train, certify",
        "about",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    checks = [[_checked(one, kept.get(path))] if kept else [] for path, one in some]
    cells = [_cells(path, one, levels, own) for (path, one), own in zip(some, checks, strict=True)]
    return [*lines, *("| " + " | ".join(line) + " |" for line in cells)]


def _cells(path: Path, one: Entry, levels: Sequence[float], checked: Sequence[str]) -> list[str]:
    claim, made, audit = one.claim, one.made, one.audit
    attacked = "–" if audit.certificates is None else f"{audit.certificates} / {audit.broken}"
    minutes = ", ".join("–" if m is None else f"{m:g}" for m in (made.train_minutes, made.certify_minutes))
    return [
        f"[{in_markdown(one.name or '')}]({quote(os.fsencode(path.as_posix()))})",
        in_markdown(one.by or "–"),
        f"`{one.origin}`",
        f"`{claim.scope}`",
        str(claim.networks or "–"),
        *(one.share(level) or "–" for level in levels),
        f"{claim.inputs:,}",
        "–" if claim.n is None else f"{claim.n:,}",
        "–" if claim.alpha is None else f"{claim.alpha:g}",
        {True: "yes", False: "no", None: "–"}[claim.extra_data],
        f"**{attacked}: BUG**" if audit.bug else attacked,
        *checked,
        in_markdown(made.date or "–"),
        in_markdown(made.hardware or "–"),
        minutes,
        in_markdown(one.about or "–"),
    ]
