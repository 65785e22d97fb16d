"""Writes docs/results.md from what is recorded: the paper's numbers, ours, their scope, inputs and audit side by side.

    python experiments/results.py
    python experiments/results.py --recorded OUT --page my-results.md      one's own records; the sentences are still about ours

Nothing is typed in here that was measured. What is not recorded yet is shown as such.
"""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rows import CHOICES, LAWS, ROWS
from suite import DIGITS, looked_at, undecided

from ucan.rounding import ceil_digits, floor_digits, floor_percent

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
PAGE = HERE.parent / "docs" / "results.md"
MISSING = "not measured yet"
TEST_SET = 10_000
# Audits of the same kind of noise in another training, some of a smaller network on other data.
SAME_NOISE = {
    "cifar10-certification": "cifar10-certification-wise",
    "cifar10-certification-laplace": "digits-certification-laplace-l1",
    "cifar10-certification-uniform": "digits-certification-uniform-l1",
    "mnist-certification": "mnist-versus-certification",
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
                self.rows[row.name] = _of_suite(row.name, found)
        for before in self.earlier_files():
            now = self.json(f"suite/{before['row']}.json") or {}
            why = "with fewer votes" if before["weights"] == now.get("weights") else "an earlier training"
            self.earlier[before["row"]] = _of_suite(f"{before['row']} ({why})", before)

    def json(self, path: str) -> Any:
        """A file's content, or None where it is not there."""
        file = self.folder / path
        return json.loads(file.read_text()) if file.exists() else None

    def earlier_files(self) -> list[Any]:
        """The records that others have taken the place of."""
        return [json.loads(path.read_text()) for path in sorted((self.folder / "suite" / "earlier").glob("*.json"))]

    def audit(self, rows: Sequence[str]) -> str:
        """The auditor's verdict on each of these rows, in a few words."""
        words = {row: self._verdict(row) for row in rows}
        if len(set(words.values())) == 1:
            return next(iter(words.values()))
        return "; ".join(f"{row}: {said}" for row, said in words.items()) or MISSING

    def _verdict(self, row: str) -> str:
        attacked = next((n for n in (row, SAME_NOISE.get(row)) if n and self.json(f"audits/{n}.json")), None)
        if attacked is None:
            return MISSING
        summary = self.json(f"audits/{attacked}.json")["summary"]
        broken = summary["broken"]
        words = [f"{broken['live']} of {summary['attacked']} broken live"]
        if "frozen" in broken:
            words.append(f"{broken['frozen']} with frozen noise")
        where = "" if attacked == row else f" ({attacked})"
        return f"{', '.join(words)}: {'BUG' if summary['bug'] else 'no bug'}{where}"


def reaches(found: Any, key: str, level: float) -> list[bool]:
    """Whether each input of a record reached a level, in the suite's order."""
    claim = found["claims"][key]
    return [DIGITS.index(c) > claim["levels"].index(level) for c in looked_at(claim["reached"])]


def _of_suite(name: str, found: dict[str, Any]) -> Measured:
    left = undecided(found)
    many = 8 * left["inputs"] > found["inputs"]
    shares = {
        # Where nothing is certified and much is undecided there were too few votes for this level: nothing is known.
        key: {float(r): s for r, s in claim.items() if s != "0.0" or not many}
        for key, claim in found["accuracy"].items()
    }
    return Measured(name, found["scope"], found["cap"], found["inputs"], left["votes"], shares, left["inputs"])


# --- what was to be reached ---


@dataclass(frozen=True)
class Target:
    """One line of what must be reached: by these rows, the best of them at each level."""

    what: str
    paper: str
    goal: tuple[float, ...]
    key: str
    levels: tuple[float, ...]
    rows: tuple[str, ...]
    above: bool = False  # the goal is to be passed, not only reached


FIFTHS = (0.0, 0.5, 1.0, 1.5, 2.25)
CONSISTENT = (*(f"cifar10-consistency-{sigma}" for sigma in (0.15, 0.21, 0.32, 0.42)),
              *(f"cifar10-ensemble-{sigma}" for sigma in (0.32, 0.42)))  # fmt: skip
TARGETS = (
    Target("CIFAR-10, ℓ2 radius 0 / 0.5 / 1.0 / 1.5 / 2.25, certification-wise, γ = λ = 1", "85 / 81 / 77 / 73 / 65",
           (85, 81, 77, 73, 65), "l2 radius", FIFTHS, ("cifar10-certification",)),
    Target("CIFAR-10, ALM (σ ≤ 1) 0.5 / 1.0 / 1.5 / 2.25, basis-wise", "82 / 74 / 68 / 57 (`frozen`)",
           (69, 62, 57, 47), "l2 alm", FIFTHS[1:], ("cifar10-alm",), above=True),
    Target("MNIST, ℓ2 radius 1.0 / 2.25, certification-wise", "99 / 97", (99, 97), "l2 radius", (1.0, 2.25),
           ("mnist-certification",)),
    Target("MNIST, ALM (σ ≤ 1) 1.0 / 2.25, basis-wise", "97 / 94 (`frozen`)", (97, 94), "l2 alm", (1.0, 2.25),
           ("mnist-basis",)),
    Target("CIFAR-10, ℓ∞ 2/255 / 8/255, Gaussian, certification-wise", "81 / 70", (78, 67), "linf radius",
           (2 / 255, 8 / 255), ("cifar10-certification",)),
    Target("CIFAR-10, ℓ1 0.5, Uniform, certification-wise", "84", (81,), "l1 radius", (0.5,),
           ("cifar10-certification-uniform",)),
    Target("CIFAR-10, ℓ1 2.0, Gaussian, certification-wise", "66", (63,), "l1 radius", (2.0,), ("cifar10-certification",)),
    Target("CIFAR-10, ℓ1 4.0, Laplace, certification-wise", "46", (43,), "l1 radius", (4.0,),
           ("cifar10-certification-laplace",)),
    Target("CIFAR-10, isotropic σ = 0.25, ℓ2 0.25 / 0.5", "60 / 43 (Cohen's own runs)", (60, 43), "l2 radius", (0.25, 0.5),
           ("cifar10-isotropic-0.25",)),
    Target("CIFAR-10, isotropic σ = 0.5, ℓ2 0.5 / 1.0", "41 / 23 (Cohen's own runs)", (41, 23), "l2 radius", (0.5, 1.0),
           ("cifar10-isotropic-0.5",)),
    Target("CIFAR-10, isotropic σ = 1.0, ℓ2 0.5 / 1.0", "34 / 22 (Cohen's own runs)", (34, 22), "l2 radius", (0.5, 1.0),
           ("cifar10-isotropic-1",)),
    Target("CIFAR-10, ℓ2 0.25 / 0.5 / 0.75 / 1.0, scope `pipeline`, best over σ, no extra data",
           "71 / 60 / 52 / 40 (best published with fixed noise, no extra data)", (71, 60, 52, 40), "l2 radius",
           (0.25, 0.5, 0.75, 1.0), CONSISTENT),
)  # fmt: skip


def best_of(rows: Sequence[Measured], key: str, level: float) -> str | None:
    """The largest share among the rows that were asked at this level."""
    found = [share for row in rows if (share := row.at(key, level)) is not None]
    return max(found, key=float, default=None)


def verdict(target: Target, ours: Sequence[str | None], rows: Sequence[Measured]) -> str:
    """Reached or not, and on how much of the test set."""
    if not rows:
        return MISSING
    pairs = list(zip(target.levels, ours, target.goal, strict=True))
    missing = [f"{r:.4g}" for r, share, _ in pairs if share is None]
    known = [(r, float(share) - goal) for r, share, goal in pairs if share is not None]
    below = [f"{r:.4g}" for r, ahead in known if ahead < 0 or (target.above and ahead == 0)]
    words = [f"below at {', '.join(below)}"] if below else ["reached"] if not missing else []
    words += [f"{MISSING} at {', '.join(missing)}"] if missing else []
    if all(row.inputs >= TEST_SET for row in rows):
        return "; ".join(words)
    unsure = [f"{r:.4g}" for r, ahead in known if abs(ahead) <= _chance(rows, target.key, r)]
    unsure_at = f"; too few inputs to be sure at {', '.join(unsure)}" if unsure else ""
    return f"{'; '.join(words)}, on a part of the test set{unsure_at}"


def _chance(rows: Sequence[Measured], key: str, level: float) -> float:
    """How far, in points, the best share at a level may be from that of the whole test set: a 95 % interval's half."""
    found = [(float(share), row.inputs) for row in rows if (share := row.at(key, level)) is not None]
    share, inputs = max(found)
    return 1.96 * math.sqrt(share * (100 - share) / inputs * max(0.0, 1 - inputs / TEST_SET))


def targets(recorded: Recorded, bench: Any) -> list[str]:
    """The table of what was to be reached."""
    lines = ["| what | paper | to reach | ours | scope | on | verdict | audit |", "|---|---|---|---|---|---|---|---|"]
    for target in TARGETS:
        rows = [recorded.rows[name] for name in target.rows if name in recorded.rows]
        ours = [best_of(rows, target.key, level) for level in target.levels]
        best = [(level, share) for level, share in zip(target.levels, ours, strict=True) if share is not None]
        rows = [row for row in rows if any(row.at(target.key, level) == share for level, share in best)]
        scopes = sorted({row.scope for row in rows})
        cells = [
            target.what, target.paper, ("above " if target.above else "") + " / ".join(f"{g:g}" for g in target.goal),
            " / ".join(share or "–" for share in ours) if rows else MISSING,
            ", ".join(f"`{scope}`" for scope in scopes) or "–",
            "; ".join(dict.fromkeys(row.part for row in rows)) or "–",
            verdict(target, ours, rows), recorded.audit([row.name for row in rows]),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    found = [json.loads(path.read_text())["summary"] for path in sorted((recorded.folder / "audits").glob("*.json"))]
    held = [summary for summary in found if summary["scope"] == "pipeline"]
    bugs = f"{sum(s['bug'] for s in held)} of {len(held)} audits" if held else MISSING
    lines.append(
        f"| every `pipeline` row: bugs by the audit's rule | – | 0 | {bugs} | `pipeline` | – | "
        f"{len(unattacked(recorded))} rows not attacked yet | see below |"
    )
    own, _, where = certificate_seconds(recorded, bench)
    reached = MISSING if own is None else "reached" if own < 5 else "too slow"
    lines.append(
        "| seconds for one ImageNet-size certificate, ResNet-50, n = 100,000, certification-wise, one H200 "
        f"| 27.43 (four V100) | under 5 | {MISSING if own is None else _up(own)} | `frozen` | {where} | {reached} | – |"
    )
    return lines


def more_networks(recorded: Recorded, one: str, several: str) -> list[str]:
    """What they add at the largest radius asked, on the inputs that both rows have."""
    if one not in recorded.rows or several not in recorded.rows:
        return []
    records = [recorded.json(f"suite/{name}.json") for name in (one, several)]
    level = records[0]["claims"]["l2 radius"]["levels"][-1]
    before, after = (reaches(found, "l2 radius", level) for found in records)
    both = min(len(before), len(after))
    shares = [floor_percent(sum(inputs[:both]) / both) for inputs in (before, after)]
    gained, lost = (sum(a > b for a, b in zip(x, y, strict=False)) for x, y in ((after, before), (before, after)))
    return [f"On the {both:,} inputs that {one} and {several} share, the share at {level:g} goes from {shares[0]} to "
            f"{shares[1]}: {gained} inputs are gained and {lost} are lost."]  # fmt: skip


def tried(recorded: Recorded) -> list[str]:
    """Every run that was made for the largest radii of a pipeline, and those that have no place in the list any more."""
    levels = (0.0, 0.25, 0.5, 0.75, 1.0)
    listed = {row.name for row in ROWS}
    left = [found for found in recorded.earlier_files() if found["row"] not in listed]
    made = [(recorded.rows[name], recorded.json(f"suite/{name}.json")) for name in CONSISTENT if name in recorded.rows]
    made += [(_of_suite(f"{found['row']} (left: neither attacked nor gone on with)", found), found) for found in left]
    lines = ["| run | networks | mirrored | " + " | ".join(f"{r:g}" for r in levels) + " | on |",
             "|---|--:|---|" + "--:|" * len(levels) + "---|"]  # fmt: skip
    for row, found in made:
        shares = " | ".join(row.at("l2 radius", r) or "–" for r in levels)
        mirrored = "yes" if found.get("mirrored") else "no"
        lines.append(f"| {row.name} | {found.get('members', 1)} | {mirrored} | {shares} | {row.part} |")
    pairs = [(name.replace("ensemble", "consistency"), name) for name in CONSISTENT if "ensemble" in name]
    lines += ["", *(said for pair in pairs for said in more_networks(recorded, *pair))]
    return lines if made else [MISSING]


def unattacked(recorded: Recorded) -> list[str]:
    """The rows of scope pipeline that no audit has attacked."""
    held = [name for name, row in recorded.rows.items() if row.scope == "pipeline"]
    return [name for name in held if not recorded.json(f"audits/{name}.json")]


def missing(recorded: Recorded) -> list[str]:
    """The rows of the list that have no record, the pipeline rows that were not attacked, and the rows that are final."""
    unknown = [row.name for row in ROWS if row.name not in recorded.rows]
    closed = [name for name in recorded.rows if "undecided" in recorded.json(f"suite/{name}.json")]
    lists = [
        ("Not measured yet", unknown),
        ("Scope `pipeline`, certified and not attacked yet", unattacked(recorded)),
        ("With undecided inputs whose votes were not kept, so that more votes mean the whole row again", closed),
    ]
    return [f"- {what}: {', '.join(f'`{name}`' for name in names) or 'none'}." for what, names in lists]


# --- tables beside the paper's ---

SHOWN = {
    "mnist-l2": ("mnist-certification", "mnist-basis", "mnist-versus-*"),
    "cifar10-l2": ("cifar10-certification", "cifar10-alm", "cifar10-bands", "cifar10-ensemble-*", "cifar10-consistency-*",
                   "cifar10-isotropic-*", "cifar10-versus-*"),
    "cifar10-l1": ("cifar10-certification*",),
    "cifar10-linf": ("cifar10-certification",),
}  # fmt: skip


def matching(recorded: Recorded, globs: Iterable[str]) -> list[Measured]:
    """The recorded rows whose names match, in the order of the list."""
    names = [row.name for row in ROWS if any(fnmatch(row.name, glob) for glob in globs)]
    return [found[name] for name in names for found in (recorded.rows, recorded.earlier) if name in found]


def beside(table: dict[str, Any], recorded: Recorded) -> list[str]:
    """The paper's table with our rows below it."""
    levels = [_number(level) for level in table["levels"]]
    norm = "linf" if table["norm"] == math.inf else f"l{table['norm']}"
    lines = ["| | scope or kind of noise | " + " | ".join(map(str, table["levels"])) + " | on |",
             "|---|---|" + "--:|" * len(levels) + "---|"]  # fmt: skip
    for row in table["rows"]:
        note = f" ({row['erratum']})" if "erratum" in row else ""
        lines.append(
            f"| {row['name']}{note} | {row['kind']} | " + " | ".join(map(_printed, row["values"])) + " | paper |"
        )
    for row in table["ours"]:
        by = "ALM" if row["by"] == "alm" else "radius"
        name = f"the paper's method, by {by}" + (f", {row['law']}" if "law" in row else "")
        lines.append(f"| **{name}** | `frozen` | " + " | ".join(map(_printed, row["values"])) + " | paper |")
    rows = matching(recorded, SHOWN.get(table["id"], ()))
    before = len(lines)
    for measured in rows:
        for by in ("radius", "alm"):
            cells = [measured.at(f"{norm} {by}", level) for level in levels]
            same = by == "alm" and cells == [measured.at(f"{norm} radius", level) for level in levels]
            if any(cell is not None for cell in cells) and not same:
                name = f"ours: {measured.name}, by {'ALM' if by == 'alm' else 'radius'}"
                cap = f", {measured.capped}" if by == "alm" and measured.capped else ""
                shown = " | ".join(cell or "–" for cell in cells)
                lines.append(f"| {name} | `{measured.scope}`{cap} | {shown} | {measured.part} |")
    if len(lines) == before and table["id"] != "imagenet-l2":
        lines.append(f"| ours | – | {' | '.join('–' for _ in levels)} | {MISSING} |")
    return lines


def _number(level: Any) -> float:
    top, _, bottom = str(level).partition("/")
    return float(top) / float(bottom or 1)


def _printed(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:g}"


KINDS = ("isotropic", "pattern", "dataset", "certification")


def universality(recorded: Recorded) -> list[str]:
    """Every law under every generator, by norm."""
    found = {(kind, law): recorded.rows.get(f"cifar10-universal-{kind}-{law}") for kind in KINDS for law in LAWS}
    unknown = [f"{kind} with {law}" for (kind, law), row in found.items() if row is None]
    about = f"{MISSING[0].upper()}{MISSING[1:]}: {', '.join(unknown)}."
    lines = [
        "| noise | law | scope | claim | certified accuracy in % at each level | on |",
        "|---|---|---|---|---|---|",
    ]
    for (kind, law), row in found.items():
        claims = dict[str, list[str]]()  # by their shares: radius and ALM often have the same
        for key, shares in row.shares.items() if row is not None else ():
            cells = ", ".join(f"{level:.4g}: {share}" for level, share in shares.items())
            claims.setdefault(cells, []).append(key.replace("linf", "ℓ∞").replace("l1", "ℓ1").replace("alm", "ALM"))
        for cells, keys in claims.items():
            cap = f", {row.capped}" if row.capped and any("ALM" in key for key in keys) else ""
            lines.append(f"| {kind} | {law} | `{row.scope}`{cap} | {', '.join(keys)} | {cells} | {row.part} |")
    return [*(lines if len(lines) > 2 else []), *(["", about] if unknown else [])]


# --- the formulas, ImageNet's size, and the rest ---


def formulas(recorded: Recorded) -> list[str]:
    """Table I and the ALM formulas."""
    found = recorded.json("table1.json")
    if found is None:
        return [MISSING]
    lines = [
        f"Over {found['points']} points of p, λ and d up to {max(found['grid']['d']):,}; printed formulas in 50 digits, "
        "ours in float64 (`python experiments/table1.py`). The last column is our radius under a diagonal σ over the printed "
        "min(σ)·R.",
        "", "| law | norm | printed radius | largest relative difference | … of the ALM | our radius / printed, diagonal σ |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for line in found["lines"]:
        low, high = line["radius_over_printed"]
        ratio = "1" if abs(low - 1) + abs(high - 1) < 1e-12 else f"{floor_digits(low, 2)} to {ceil_digits(high, 2)}"
        lines.append(
            f"| {line['law']} | {line['norm']} | {line['formula']} | {_tiny(line['isotropic']['difference'])} | "
            f"{_tiny(line['alm_difference'])} | {ratio} |"
        )
    return lines


def certificate_seconds(recorded: Recorded, bench: Any) -> tuple[float | None, float | None, str]:
    """Of one certificate with n = 100,000 of ResNet-50: certification-wise, isotropic; and where it was measured."""
    speed = recorded.json("imagenet-speed.json")
    if speed is not None:
        seconds = {name: s * 100_000 / speed["n"] for name, s in speed["seconds_a_certificate"].items()}
        return seconds["certification-wise"], seconds["isotropic"], f"{speed['device']}, n = {speed['n']:,}"
    if bench is None:
        return None, None, "–"
    rates = {row["what"]: row["rate"] for row in bench["resnet50 at 224 px"]["rows"]}
    plain = 100_000 / rates["certify, compile, bf16"]
    share = rates["n = 1,000, isotropic"] / rates["n = 1,000, certification-wise"]  # its generator's, at n = 1,000
    return (
        plain * share,
        plain,
        f"{bench['machine']['device']}, bf16, by the rate of {bench['resnet50 at 224 px']['n']:,} votes under isotropic noise "
        "and the generator's part of the time at n = 1,000",
    )


def imagenet(recorded: Recorded, paper: dict[str, Any], bench: Any) -> list[str]:
    """Function and speed at 224 px."""
    times = paper["times"]
    lines = ["| | paper | ours |", "|---|---|---|"]
    seconds = certificate_seconds(recorded, bench)
    own, plain = (MISSING if one is None else _up(one) for one in seconds[:2])
    where = seconds[2]
    train = recorded.json("imagenet-train.json")
    trained = (
        MISSING if train is None else f"{train['pictures_a_second']:,} pictures/s ({train['model']}, {train['device']})"
    )
    lines += [
        "| seconds a certificate, ResNet-50, n = 100,000, certification-wise "
        f"| {times['certify_seconds']} (four V100) | {own} ({where}) |",
        f"| … isotropic | {times['certify_isotropic_seconds']} | {plain} |",
        "| training a certification-wise generator, 200 epochs "
        f"| {times['train_generator_minutes']} min (one H100; data set not stated) | {generator_minutes(recorded)} |",
        f"| … at 224 px | – | {trained} |",
        "",
    ]
    function = recorded.json("imagenet-function.json")
    if function is None:
        return [*lines, f"Every generator at 224 px: {MISSING}."]
    slow = f" ({function['note']})" if "note" in function else ""
    lines += [
        f"{function['model']}, clean-trained, under {function['law']}, n = {function['n']:,}, {function['device']}{slow}. The "
        "generators are untrained: this shows that each works at this size and what it costs, nothing about accuracy. "
        "Regions hold if a random change just inside the certified radius lies in the region and a hundred times as large a "
        "one does not.",
        "", "| noise | scope | norm | pictures | with a certificate | regions hold | seconds a picture |",
        "|---|---|---|--:|--:|---|--:|",
    ]  # fmt: skip
    for name, row in function["rows"].items():
        norm, holds = row["norm"].replace("linf", "ℓ∞").replace("l", "ℓ"), "yes" if row["regions_hold"] else "NO"
        lines.append(
            f"| {name} | `{row['scope']}` | {norm} | {row['pictures']} | {row['certified']} | {holds} | "
            f"{_up(row['seconds_a_picture'])} |"
        )
    return lines


def generator_minutes(recorded: Recorded) -> str:
    """200 epochs on CIFAR-10, from the seconds of a training that had the GPU to itself."""
    kinds = recorded.json("cifar10-kinds.json")
    if kinds is None:
        return MISSING
    seconds = kinds["runs"]["certification-wise"]["train_seconds"]
    measured = f"40 epochs measured: {seconds} s, {kinds['hardware']}"
    return f"{_up(seconds / 40 * 200 / 60)} min with its ResNet-18 on CIFAR-10 ({measured})"


def _up(value: float) -> str:
    """A time, or a distance, rounded up to two decimals."""
    return f"{math.ceil(round(value * 100, 6)) / 100:.2f}"


def _tiny(value: float) -> str:
    """A largest difference with one digit, rounded up."""
    power = math.floor(math.log10(value)) if value else 0
    return f"{float(ceil_digits(value, -power)):.0e}"


def control(recorded: Recorded) -> list[str]:
    """What the control γ = 5 and the ablation without μ show, for each data set."""
    names = ("certification", "certification-no-offset", "isotropic", "certification-gamma-5")
    lines = [
        "| certified accuracy in % | certification-wise, at 1.0 | … without μ | isotropic | with γ = 5, at 10 "
        "| pictures with one of another class within 10 | median distance to it |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for data, title in (("mnist", "MNIST"), ("cifar10", "CIFAR-10")):
        rows = [recorded.rows.get(f"{data}-versus-{name}") for name in names]
        near = recorded.json(f"{data}-neighbours.json")
        levels = (1.0, 1.0, 1.0, 10.0)
        cells = [(row and row.at("l2 radius", r)) or MISSING for row, r in zip(rows, levels, strict=True)]
        far = [MISSING] * 2 if near is None else [floor_digits(100 * near["within"]["10"], 1), _up(near["median"])]
        lines.append(f"| {title} | {' | '.join([*cells, *far])} |")
    return lines


def beside_alm(recorded: Recorded) -> list[str]:
    """The radii of the rows that are made for ALM."""
    said = []
    for name in ("mnist-basis", "cifar10-alm"):
        if name in recorded.rows:
            radii = recorded.rows[name].shares["l2 radius"]
            said.append(f"`{name}` " + ", ".join(f"{share} at {r:g}" for r, share in radii.items() if r))
    lines = [f"By radius: {'; '.join(said)}."] if said else [MISSING]
    rivals = [recorded.json(f"suite/{name}.json") for name in ("cifar10-bands", "cifar10-alm")]
    if all(rivals):
        levels = (0.5, 1.0, 1.5, 2.25)
        both = min(found["inputs"] for found in rivals)
        at = [[floor_percent(sum(reaches(found, "l2 alm", r)[:both]) / both) for r in levels] for found in rivals]
        lines += [
            "", "`cifar10-bands` learns its scales instead: eight bands of principal components, trained with the network for "
            f"a large mean log σ. On the {both:,} inputs that both have it certifies {' / '.join(at[0])} at ALM "
            f"{' / '.join(f'{r:g}' for r in levels)}, where `cifar10-alm` has {' / '.join(at[1])}. By radius it certifies "
            f"{rivals[0]['accuracy']['l2 radius']['0.1']} at 0.1 with the votes so far.",
        ]  # fmt: skip
    return lines


def canvas(recorded: Recorded) -> list[str]:
    """Composed noise."""
    found = recorded.json("canvas.json")
    if found is None:
        return [MISSING]
    lines = [
        "A task made so that it should pay: CIFAR-10 pictures at random places of a black "
        f"{found['size']} px canvas, ℓ∞, σ = {found['sigma']}, "
        f"{found['inputs']} inputs, n ≤ {found['n']:,}, {found['hardware']} (`experiments/canvas.py`). Both rows have the "
        "scope `pipeline`; the interval is for the inputs, with one training each.",
        "", "| certified accuracy in % at | " + " | ".join(found["difference"]) + " |",
        "|---|" + "--:|" * len(found["difference"]),
    ]  # fmt: skip
    for name, run in found["runs"].items():
        lines.append(f"| {name} | " + " | ".join(floor_digits(v, 1) for v in run["certified"].values()) + " |")
    gains = [f"{d['points']:+.1f} ± {d['half_width_95']}" for d in found["difference"].values()]
    return [*lines, "| difference, 95 % interval | " + " | ".join(gains) + " |"]


def audits(recorded: Recorded) -> list[str]:
    """Every recorded audit."""
    lines = ["| run | scope | against | changes | attacked | broken | bug by the audit's rule |",
             "|---|---|---|---|--:|---|---|"]  # fmt: skip
    for path in sorted((recorded.folder / "audits").glob("*.json")):
        found = json.loads(path.read_text())
        summary = found["summary"]
        broken = ", ".join(f"{count} {mode}" for mode, count in summary["broken"].items())
        partly = "" if found["complete"] else " (stopped early)"
        against = "ℓ" + found["norm"].removesuffix(".0").replace("inf", "∞")
        lines.append(
            f"| {path.stem} | `{summary['scope']}` | {against} | {', '.join(found['changes']) or '–'} | "
            f"{summary['attacked']}{partly} | {broken} | {'YES' if summary['bug'] else 'no'} |"
        )
    return lines if len(lines) > 2 else [MISSING]


def choices(recorded: Recorded) -> list[str]:
    """What was chosen on held-out training data."""
    lines = []
    for choice in CHOICES:
        found = recorded.json(f"suite/choice-{choice.name}.json")
        about = f"- `{choice.name}` (mean certified accuracy, {choice.claim.key}, {choice.inputs} held-out inputs): "
        options = " or ".join(f"`{' '.join(option)}`" for option in choice.options)
        if found is None:
            lines.append(f"{about}{options}: {MISSING}; the first is used.")
        else:
            scores = "; ".join(
                f"`{' '.join(o['changes'])}` {' / '.join(o['accuracy'].values())}" for o in found["options"]
            )
            lines.append(f"{about}{scores}. Chosen: `{' '.join(found['chosen'])}`.")
    return lines


def page(folder: Path = RECORDED) -> str:
    """The whole page."""
    recorded = Recorded(folder)
    paper = tomllib.loads((HERE / "paper.toml").read_text(encoding="utf-8"))
    tables = {table["id"]: table for table in paper["table"]}
    file = HERE.parent / "benchmarks" / "2026-11-15-h200-packed.json"
    bench = json.loads(file.read_text()) if file.exists() else None
    filled = {
        "targets": targets(recorded, bench), "tried": tried(recorded), "missing": missing(recorded),
        "formulas": formulas(recorded), "universality": universality(recorded), "beside alm": beside_alm(recorded),
        "imagenet": imagenet(recorded, paper, bench), "canvas": canvas(recorded), "control": control(recorded),
        "audits": audits(recorded), "choices": choices(recorded),
        "errata": [f"- *{e['where']}.* {e['text']}" for e in paper["erratum"]],
        **{f"table {key}": beside(table, recorded) for key, table in tables.items()},
    }  # fmt: skip
    text = (HERE / "results.template.md").read_text(encoding="utf-8")
    for name, lines in filled.items():
        text = text.replace(f"<!-- {name} -->", "\n".join(lines))
    return text


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="the folder with suite/ and audits/")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    args.page.write_text(page(args.recorded), encoding="utf-8")


if __name__ == "__main__":
    main()
