"""The two figures of docs/results.md, as SVG: certified accuracy by radius beside others', and what attacks broke."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from results_claims import CLAIMS
from results_front import TITLES, Place, places
from results_records import between

from ucan.leaderboard.entry import Entry
from ucan.report.paint import FONT, PAPER

OURS, THEIRS, BROKEN = PAPER.run(0), PAPER.run(1), PAPER.run(9)


def _sheet(width: int, height: int, about: str, body: str) -> str:
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="{escape(FONT)}" font-size="13" role="img" aria-label="{escape(about)}"><rect width="{width}" '
            f'height="{height}" fill="{PAPER.ground}"/>{body}</svg>\n')  # fmt: skip


def text(x: float, y: float, words: str, colour: str = PAPER.ink, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(words)}</text>'


def holds(folder: Path) -> str:
    """CIFAR-10 by ℓ2 radius, in points against the others' best released file: discs one network, squares several.

    Several networks are drawn where they certify more than one.
    """
    left, top, wide, point = 84.0, 76.0, 680.0, 36.0
    found = places(folder, "cifar10")
    step, (lowest, highest) = wide / len(found), _range(found)
    high = point * (highest - lowest)

    def up(points: float) -> float:
        return top + point * (highest - points)

    title = "certified accuracy on CIFAR-10, all 10,000 test pictures, scope pipeline: points ahead of the others’ best file"
    parts = [text(16, 22, title)]
    for tick in range(lowest, highest + 1):
        line = f'stroke="{THEIRS}" stroke-width="2"' if tick == 0 else f'stroke="{PAPER.grid}"'
        parts.append(f'<path d="M{left} {up(tick):.1f}h{wide}" {line}/>')
        parts.append(text(left - 8, up(tick) + 4, f"{tick:+d}".replace("-", "−") if tick else "0", PAPER.soft, "end"))
    for k, place in enumerate(found):
        parts += _column(place, left + step * (k + 0.5), up, top + high)
    for row, words in enumerate(("ℓ2 radius", "others")):
        parts.append(text(left - 8, top + high + 20 + 18 * row, words, PAPER.soft, "end"))
    legend = [(_disc, "ours, one network"), (_rule, "others’ best file, one network (unchecked)")]
    if any(place.several in place.best for place in found):
        networks = between(one.claim.networks for place in found for one in place.best if one is place.several)
        legend.insert(1, (_square, f"ours, {networks} networks"))
        if any(not one.audit.certificates for place in found for one in place.best):
            legend.insert(2, (_dashed, "not attacked"))
    x = 16
    for drawn, words in legend:
        parts += [drawn(x + 8, 48), text(x + 24, 52, words)]
        x += 40 + 7 * len(words)
    return _sheet(780, round(top + high + 54), f"{title}, by ℓ2 radius", "".join(parts))


def _range(found: list[Place]) -> tuple[int, int]:
    """Whole points between which all marks lie, one at least below the others and three above."""
    shares = [(_share(place, place.others), _share(place, ours)) for place in found for ours in place.best]
    ahead = [ours - theirs for theirs, ours in shares if theirs is not None and ours is not None]
    return min(-1, math.floor(min(ahead, default=0))), max(3, math.ceil(max(ahead, default=0)))


def _column(place: Place, x: float, up: Callable[[float], float], bottom: float) -> list[str]:
    """One radius: our marks with their shares, and the others' share below."""
    theirs = _share(place, place.others)
    parts = [text(x, bottom + 20, f"{place.level:g}", PAPER.ink, "middle")]
    if theirs is None:
        return parts
    parts.append(text(x, bottom + 38, place.others.share(place.level) or "–", THEIRS, "middle"))  # type: ignore[union-attr]
    if place.one is None:
        return [*parts, text(x, up(0) - 8, "no row", PAPER.soft, "middle")]
    for entry in place.best:
        share, label = _share(place, entry), entry.share(place.level)
        if share is not None and label is not None:
            y, single = up(share - theirs), entry is place.one
            drawn, side, anchor = (_disc, 10, "start") if single else (_square, -10, "end")
            drawn = drawn if entry.audit.certificates else _dashed
            # Where two marks are close, so would be their shares; just under the others' line it would be crossed by it.
            below = (single and len(place.best) > 1) or up(0) < y < up(0) + 16
            parts += [drawn(x, y), text(x + side, y + 16 if below else y - 6, label, OURS, anchor)]
    return parts


def _share(place: Place, one: Entry | None) -> float | None:
    count = None if one is None else one.count(place.level)
    return None if one is None or count is None else 100 * count / (one.claim.inputs or 1)


def _rule(x: float, y: float) -> str:
    return f'<path d="M{x - 10:.1f} {y:.1f}h20" stroke="{THEIRS}" stroke-width="2"/>'


def _disc(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{OURS}"/>'


def _square(x: float, y: float) -> str:
    return f'<path d="M{x - 5:.1f} {y - 5:.1f}h10v10h-10z" fill="none" stroke="{OURS}" stroke-width="2"/>'


def _dashed(x: float, y: float) -> str:
    return _square(x, y).replace("/>", ' stroke-dasharray="3 2"/>')


@dataclass(frozen=True)
class Attack:
    """One audit: what was attacked, and how many certificates broke in the deployed pipeline."""

    name: str
    scope: str
    attacked: int
    broken: int


def attacks(folder: Path) -> list[Attack]:
    """Every audit of scope frozen, those of the runs of what holds and of fixed noise by ALM, and all others together.

    Those of frozen scope first, most broken first.
    """
    best = {str(one.name) for data in TITLES for place in places(folder, data) for one in place.best}
    shown = best | {name for target in CLAIMS for name in target.rows}
    found, rest = [], Attack("all other runs together", "pipeline", 0, 0)
    for path in sorted((folder / "audits").glob("*.json")):
        summary = json.loads(path.read_text())["summary"]
        one = Attack(path.stem, summary["scope"], summary["attacked"], summary["broken"].get("live", 0))
        if one.scope == "frozen" or path.stem in shown:
            found.append(one)
        elif one.scope == "pipeline":
            rest = replace(rest, attacked=rest.attacked + one.attacked, broken=rest.broken + one.broken)
    found.sort(key=lambda a: (a.scope != "frozen", -a.broken / max(1, a.attacked), a.name))
    return [*found, *([rest] if rest.attacked else [])]


def broken(folder: Path) -> str:
    """A bar for each audit: the share of attacked certificates that broke in the deployed pipeline."""
    found, left, top, row, wide = attacks(folder), 300.0, 58.0, 21.0, 330.0
    parts = [
        text(16, 22, "attacked certificates that broke in the deployed pipeline, by run; inside the certified region")
    ]
    y, scope = top, ""
    for attack in found:
        if attack.scope != scope:
            y, scope = y + (12 if scope else 0), attack.scope
            what = (
                "the guarantee does not cover this"
                if scope == "frozen"
                else "the guarantee covers this, so none should break"
            )
            parts.append(text(16, y - 2, f"scope {scope}: {what}", PAPER.soft))
            y += row
        share = attack.broken / max(1, attack.attacked)
        parts.append(text(left - 10, y, attack.name, anchor="end"))
        parts.append(f'<path d="M{left} {y - 11:.1f}h{wide}v14h-{wide}z" fill="{PAPER.grid}"/>')
        if attack.broken:
            parts.append(f'<path d="M{left} {y - 11:.1f}h{wide * share:.1f}v14h-{wide * share:.1f}z" fill="{BROKEN}"/>')
        parts.append(text(left + wide + 10, y, f"{attack.broken} of {attack.attacked:,}"))
        y += row
    return _sheet(
        780, round(y + 8), "Attacked certificates that broke in the deployed pipeline, by run", "".join(parts)
    )
