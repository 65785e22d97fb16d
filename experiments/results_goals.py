"""What was to be reached, what was tried for it, what is missing, and what was chosen on held-out data: docs/goals.md."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from results_records import MISSING, TEST_SET, Measured, Recorded, of_suite, reaches, up
from rows import CHOICES, ROWS

from ucan.rounding import floor_percent


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
SMALL_NOISE = (*(f"cifar10-sphere-{sigma}" for sigma in (0.19, 0.3, 0.42, "drop-0.42", "on-0.42")),
               *(f"cifar10-consistency-{sigma}" for sigma in (0.12, 0.15, 0.21, 0.32, 0.42)),
               *(f"cifar10-ensemble-{sigma}" for sigma in (0.32, 0.42, "on-0.3", "on-0.42")))  # fmt: skip
ONE_OF = {  # of a row of several networks, the row of one that is trained most alike
    "cifar10-ensemble-0.32": "cifar10-consistency-0.32",
    "cifar10-ensemble-0.42": "cifar10-consistency-0.42",
    "cifar10-ensemble-on-0.3": "cifar10-sphere-0.3",
    "cifar10-ensemble-on-0.42": "cifar10-sphere-on-0.42",
}
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
    Target("CIFAR-10, ℓ2 0.25 / 0.5 / 0.75 / 1.0, scope `pipeline`, best over σ, no extra data; four networks at 0.75 and 1.0",
           "71 / 60 / 52 / 40 (the best fixed noise in its table, no extra data)", (71, 60, 52, 40), "l2 radius",
           (0.25, 0.5, 0.75, 1.0), SMALL_NOISE),
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
            verdict(target, ours, rows), recorded.audit([row.name for row in rows], target.key),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    found = [json.loads(path.read_text())["summary"] for path in sorted((recorded.folder / "audits").glob("*.json"))]
    held = [summary for summary in found if summary["scope"] == "pipeline"]
    bugs = f"{sum(s['bug'] for s in held)} of {len(held)} audits" if held else MISSING
    lines.append(
        f"| every `pipeline` row: bugs by the audit's rule | – | 0 | {bugs} | `pipeline` | – | "
        f"rows not attacked yet: {len(unattacked(recorded))} | [all audits](results-audits.md) |"
    )
    own, _, where = certificate_seconds(recorded, bench)
    reached = MISSING if own is None else "reached" if own < 5 else "too slow"
    lines.append(
        "| seconds for one ImageNet-size certificate, ResNet-50, n = 100,000, certification-wise, one H200 "
        f"| 27.43 (four V100) | under 5 | {MISSING if own is None else up(own)} | `frozen` | {where} | {reached} | – |"
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
    made = [(recorded.rows[name], recorded.json(f"suite/{name}.json")) for name in SMALL_NOISE if name in recorded.rows]
    made += [(of_suite(f"{found['row']} (left: neither attacked nor gone on with)", found), found) for found in left]
    lines = ["| run | networks | mirrored | " + " | ".join(f"{r:g}" for r in levels) + " | on |",
             "|---|--:|---|" + "--:|" * len(levels) + "---|"]  # fmt: skip
    for row, found in made:
        shares = " | ".join(row.at("l2 radius", r) or "–" for r in levels)
        mirrored = "yes" if found.get("mirrored") else "no"
        lines.append(f"| {row.name} | {found.get('members', 1)} | {mirrored} | {shares} | {row.part} |")
    lines += ["", *(said for several, one in ONE_OF.items() for said in more_networks(recorded, one, several))]
    return lines if made else [MISSING]


def unattacked(recorded: Recorded) -> list[str]:
    """The rows of scope pipeline that no audit has attacked."""
    held = [name for name, row in recorded.rows.items() if row.scope == "pipeline"]
    counted = (json.loads(path.read_text()) for path in sorted((recorded.folder / "counted").glob("*.json")))
    held += [found["row"] for found in counted if found["inputs"] == TEST_SET]
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
