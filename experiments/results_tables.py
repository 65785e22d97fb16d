"""The long tables: the paper's beside ours, every law, formulas, ImageNet's size, composed noise, audits."""

from __future__ import annotations

import json
import math
from typing import Any

from results_goals import certificate_seconds
from results_records import MISSING, Recorded, matching, reaches, up
from rows import LAWS

from ucan.rounding import ceil_digits, floor_digits, floor_percent

SHOWN = {
    "mnist-l2": ("mnist-certification", "mnist-basis", "mnist-lenet-*", "mnist-smoothmix-*", "mnist-consistency-*",
                 "mnist-sphere-*", "mnist-versus-*"),
    "cifar10-l2": ("cifar10-certification", "cifar10-alm", "cifar10-bands", "cifar10-ensemble-*", "cifar10-gaussian-*",
                   "cifar10-consistency-*", "cifar10-sphere-*",
                   "cifar10-isotropic-*", "cifar10-versus-*"),
    "cifar10-l1": ("cifar10-certification*",),
    "cifar10-linf": ("cifar10-certification",),
}  # fmt: skip


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


def imagenet(recorded: Recorded, paper: dict[str, Any], bench: Any) -> list[str]:
    """Function and speed at 224 px."""
    times = paper["times"]
    lines = ["| | paper | ours |", "|---|---|---|"]
    seconds = certificate_seconds(recorded, bench)
    own, plain = (MISSING if one is None else up(one) for one in seconds[:2])
    where = seconds[2]
    train = recorded.json("imagenet-train.json")
    trained = (
        MISSING if train is None else f"{train['pictures_a_second']:,} pictures/s ({train['model']}, {train['device']})"
    )
    lines += [
        "| seconds a certificate, ResNet-50, n = 100,000, certification-wise "
        f"| {times['certify_seconds']} (four V100) | {own} ({where}) |",
        f"| … isotropic | {times['certify_isotropic_seconds']} | {plain} (on 15 November; faster since, [speed](speed.md)) |",
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
            f"{up(row['seconds_a_picture'])} |"
        )
    return lines


def generator_minutes(recorded: Recorded) -> str:
    """200 epochs on CIFAR-10, from the seconds of a training that had the GPU to itself."""
    kinds = recorded.json("cifar10-kinds.json")
    if kinds is None:
        return MISSING
    seconds = kinds["runs"]["certification-wise"]["train_seconds"]
    measured = f"40 epochs measured: {seconds} s, {kinds['hardware']}"
    return f"{up(seconds / 40 * 200 / 60)} min with its ResNet-18 on CIFAR-10 ({measured})"


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
        far = [MISSING] * 2 if near is None else [floor_digits(100 * near["within"]["10"], 1), up(near["median"])]
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
