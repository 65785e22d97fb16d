"""The paper's claims under attack, and noise that is shaped for boxes: the second table of docs/results.md, and budgets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from entries import day
from results_front import places
from results_goals import TARGETS, best_of
from results_records import MISSING, Recorded, between, made_on
from shape_records import NAMES, attacked, mnist_rows, shown

CLAIMS = tuple(target for target in TARGETS if "certification-wise" in target.what or "ALM" in target.what)
KINDS = ("certification-wise", "basis-wise")
FOOTNOTES = {
    "¹": "The attack was on another, smaller or shorter training with the same kind of noise: on CIFAR-10 10 or 12 epochs "
    "instead of 40, on MNIST a smaller network.",
    "²": "The attack was on a small network for digits of 8 × 8 pixels, with the same kind of noise.",
    "³": "The attack was on the ℓ2 claim, not on the one in this norm.",
}


def claims(recorded: Recorded) -> list[str]:
    """The paper's claims, ours by which noise, whose guarantee each is, and what an attack made of it; footnotes."""
    head = ("claim", "the paper, `frozen`", "ours", "noise and scope of ours", "broken in the deployed pipeline", "n ≤",
            "undecided", "made")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---|--:|--:|---|--:|--:|--:|---|"]
    networks, pictures, real = set[int](), set[int](), set[bool]()
    for target in CLAIMS:
        rows = [recorded.rows[name] for name in target.rows if name in recorded.rows]
        kind = next(kind for kind in KINDS if kind in target.what)
        what, paper = target.what.replace(f", {kind}", ""), target.paper.removesuffix(" (`frozen`)")
        if not rows:
            lines.append(f"| {what} | {paper} | {MISSING} |" + " – |" * 5)
            continue
        row = rows[0]
        found = recorded.json(f"suite/{row.name}.json")
        ours = " / ".join(best_of(rows, target.key, level) or "–" for level in target.levels)
        when = day(recorded.folder / "suite" / f"{row.name}.json", found, recorded.folder)
        cells = [what, paper, ours, f"{kind}, `{row.scope}`", _broken(recorded, row.name, target.key), f"{row.n:,}",
                 f"{row.open:,}", made_on(when, found.get("hardware"))]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
        networks.add(found.get("members", 1))
        pictures.add(row.inputs)
        real.add(not found.get("arithmetic"))
    told = [f"{mark} {text}" for mark, text in FOOTNOTES.items() if any(mark in line for line in lines)]
    if pictures:
        about = "; for all real changes, with rounding not accounted for" if real == {True} else ""
        told.insert(0, f"Each row of ours: {between(networks)} network, {between(pictures)} test pictures{about}.")
    return [*lines, *(["", " ".join(told)] if told else [])]


def _broken(recorded: Recorded, row: str, key: str) -> str:
    """How many attacked certificates broke live, with the marks of the footnotes: whose they are, and in which norm."""
    one = recorded.attacked(row, key)
    if one is None:
        return "not attacked yet"
    own, data = one.name == row, one.name.partition("-")[0] == row.partition("-")[0]
    marks = ("" if own else "¹" if data else "²") + ("" if one.in_norm else "³")
    return f"{one.summary['broken']['live']} of {one.summary['attacked']}{marks}"


# ε of the boxes that are shown.
BOXES = (0.04, 0.06, 0.08)
# Which methods are shown: isotropic noise, the closed form, and learned noise.
SHOWN = ("isotropic", "shaped-0.75", "learned")


def budgets(recorded: Recorded) -> list[str]:
    """Noise shaped for boxes beside isotropic noise trained alike, on MNIST."""
    found, attacks = _shares(recorded), recorded.json("shape-mnist-attacks.json")
    if not found or attacks is None:
        return [MISSING]
    final = recorded.json("shape-mnist.json")
    lines = [f"| noise | {' | '.join(map(str, BOXES))} | scope | attacked | broken | networks | pictures, n ≤ | made |",
             "|---|--:|--:|--:|---|--:|--:|--:|--:|---|"]  # fmt: skip
    made = made_on(day(recorded.folder / "shape-mnist.json", final, recorded.folder), final["machine"]["device"])
    for method in SHOWN:
        jobs = [job for job in final["jobs"] if job["method"] == method]
        about = f"1 | {jobs[0]['inputs']:,}, {max(job['n'] for job in jobs):,} | {made}"
        cells = " | ".join(shown(share) or "–" for share in found[method])
        lines.append(f"| {NAMES[method]} | {cells} | `pipeline` | {attacked(attacks, method)} | {about} |")
    return lines


def boxes(recorded: Recorded) -> list[str]:
    """The same in a sentence, at the largest ε."""
    found = _shares(recorded)
    if not found:
        return [MISSING]
    isotropic, learned = (shown(found[method][-1]) for method in ("isotropic", "learned"))
    *_, (_, share, _) = _by_length(recorded)
    return [
        f"on MNIST at ε = 0.08 learned noise certifies {learned}, isotropic noise trained alike {isotropic} (our best "
        f"isotropic row at least {share})."
    ]


def lengths(recorded: Recorded) -> list[str]:
    """What our ℓ2 rows of isotropic noise say of the same boxes."""
    known = list(_by_length(recorded))
    told = ", ".join(f"{share} (`{row}`)" for _, share, row in known)
    return [f"at least {told} at ε = {', '.join(f'{size:g}' for size, *_ in known)}"]


def _by_length(recorded: Recorded) -> Iterator[tuple[float, str, str]]:
    """For each box of ε in 784 pixels the row at the next larger ℓ2 radius: no change in the box is longer than 28ε."""
    known = places(recorded.folder, "mnist")
    for size in BOXES:
        place = min((p for p in known if p.level >= size * math.sqrt(784)), key=lambda p: p.level)
        if place.one is not None:
            yield size, place.one.share(place.level) or MISSING, place.one.name or ""


def _shares(recorded: Recorded) -> dict[str, Any]:
    """The shares of each method at ε = 0.04, 0.06 and 0.08; empty if they are not recorded."""
    final, held_out = (recorded.json(f"{name}.json") for name in ("shape-mnist", "shape-mnist-held-out"))
    return {} if final is None or held_out is None else dict(mnist_rows(final, held_out))
