"""What the cost of certification should be (docs/speed.md), and how far a bench on some machine came.

A target is judged on its own terms: on the hardware, the network and the number of votes that it names. Measured on other
terms, it is shown and not judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ucan.bench import PER_INPUT, TEXTBOOK_KEPT
from ucan.deciding import CAP, FEW, IN_PAIRS, STEPS, Kept, OnData, Simulated
from ucan.timing import Row, Work

# Of the rows that GPUs are measured by.
VOTES, GPU = 100_000, "H200"
# Inputs of a simulation, and pictures of a whole test set.
SIMULATED, PICTURES = 1_000, 10_000


@dataclass(frozen=True)
class Target:
    """What is wanted, on which terms: at least, or at most, this number, which is shown so."""

    what: str
    terms: str
    bound: float
    least: bool
    shown: str = "{:g}"

    @property
    def wanted(self) -> str:
        """In words, as docs/speed.md has it."""
        return f"at {'least' if self.least else 'most'} {self.shown.format(self.bound)}"

    def judged(self, value: float, told: str, same: bool) -> Judged:
        """Beside what was found, in words; ``same``: on the target's terms."""
        reached = value >= self.bound if self.least else value <= self.bound
        return Judged(self.what, self.terms, self.wanted, told, reached if same else None)


@dataclass(frozen=True)
class Judged:
    """A target, what was found, and whether it is reached; None: on other terms."""

    what: str
    terms: str
    wanted: str
    found: str
    reached: bool | None


_SIMULATED = f"{SIMULATED:,} simulated inputs that reach r, r/λ = 0.5, 1, 2, cap {CAP:,}"
_ON_GPU = f"one {GPU}, n = {VOTES:,}"
OVER = Target("votes over the limit, those that choose the class included", _SIMULATED, 1.15, False)
ABOVE = Target(f"votes above a limit below {FEW:,}, selection apart", _SIMULATED, 64, False)
LOST = Target("certified share, fewer than by a fixed n", _SIMULATED, 0.2, False, "{:g} points")
# Of a network: certify over the bare pass on inputs that are ready, in real arithmetic and on the grid.
READY = {
    kind: (
        Target(f"{name}: certify over ready bare, real", _ON_GPU, real, True),
        Target(f"{name}: certify over ready bare, on the grid", _ON_GPU, grid, True),
    )
    for kind, name, real, grid in (("resnet50", "ResNet-50", 0.95, 0.92), ("resnet110", "ResNet-110", 0.95, 0.9))
}
FASTER = Target("ResNet-50: certify over the version before", _ON_GPU, 1.15, True, "{:g} ×")
GENERATOR = Target("ResNet-110: what a generator per input adds", f"one {GPU}, n = 1,000", 3, False, "{:g} %")
ALL = Target(
    f"ResNet-18: ten radii of {PICTURES:,} CIFAR-10 pictures",
    f"one {GPU}, isotropic noise, cap {VOTES:,}, radii {STEPS[0]:g} to {STEPS[-1]:g} λ",
    10, False, "{:g} minutes",
)  # fmt: skip
ON_CPU = Target("ResNet-20: certify over the textbook loop, fp32", "a CPU", 3.5, True, "{:g} ×")
PAIRS = Target(
    f"fp32 → bf16 by a tenth of the votes in pairs, {IN_PAIRS[0]} ≤ R/λ ≤ {IN_PAIRS[1]}: of each old radius",
    f"n = {VOTES:,}", 98, True, "{:g} %",
)  # fmt: skip
TARGETS = (OVER, ABOVE, LOST, *READY["resnet50"], *READY["resnet110"], FASTER, GENERATOR, ALL, ON_CPU, PAIRS)


def of_votes(rows: Sequence[Simulated]) -> Iterator[Judged]:
    """Of simulated decisions, over all their radii."""
    if not rows:
        return
    enough = all(row.cap == CAP and row.inputs >= SIMULATED for row in rows)
    same = [row.radius for row in rows] == [0.5, 1, 2] and enough
    as_wanted = same and rows[0].inputs == SIMULATED
    for target, values, shown in (
        (OVER, [row.over for row in rows], "{:.2f}"),
        (ABOVE, [row.above for row in rows], "{:.0f}"),
        (LOST, [row.lost for row in rows], "{:.2f}"),
    ):
        yield target.judged(
            max(values), _on(", ".join(map(shown.format, values)), as_wanted, rows[0].inputs, "inputs"), same
        )


def of_speed(kind: str, rows: Sequence[Row], machine: Mapping[str, str], n: int) -> Iterator[Judged]:
    """Of one network's rows: ``kind`` is its architecture by its built-in name."""
    on_gpu = "cpu" not in machine["device"].lower()
    same = GPU in machine["device"] and n == VOTES
    best = max((r for r in rows if _certifies_beside(r, Work.BARE)), key=lambda row: row.rate, default=None)
    if on_gpu and kind in READY and best is not None:
        real, grid = READY[kind]
        yield _ratio(real, best, same, n)
        on_grid = replace(best.what, work=Work.GRID)
        yield from (_ratio(grid, row, same, n) for row in rows if row.what == on_grid)
    if on_gpu and kind == "resnet50":
        yield from (_ratio(FASTER, row, same, n, " ×") for row in rows if _certifies_beside(row, Work.BEFORE))
    if on_gpu and kind == "resnet110":
        own = GPU in machine["device"]
        yield from (_added(row, own) for row in rows if row.what == PER_INPUT)
    if not on_gpu and kind == "resnet20":
        yield from _on_cpu(rows, n)


def _on_cpu(rows: Sequence[Row], n: int) -> Iterator[Judged]:
    """The fastest backend; beside it, what is left if the loop keeps its memory, too."""
    loops = [row for row in rows if _certifies_beside(row, Work.TEXTBOOK) and row.what.precision == "fp32"]
    if not loops:
        return
    best = max(loops, key=lambda row: row.ratio or 0)
    kept = [row.ratio for row in rows if row.what == best.what and row.against == TEXTBOOK_KEPT]
    judged = _ratio(ON_CPU, best, True, n, " ×")
    told = "".join(f"; {ratio or 0:.2f} × if that loop keeps its memory, too" for ratio in kept)
    yield replace(judged, found=judged.found + told)


def of_inputs(kind: str, source: str, row: OnData, machine: Mapping[str, str], cap: int) -> Judged:
    """Of ten radii decided for inputs; of another number by their share, which is shown and not judged."""
    minutes = row.seconds * PICTURES / row.inputs / 60
    named = kind == "resnet18" and source == "cifar10" and cap == VOTES and GPU in machine["device"]
    named = named and row.noise is None
    told = f"{minutes:.1f}" if row.inputs == PICTURES else f"{minutes:.1f}, from {row.inputs:,}"
    noise = "" if row.noise is None else f", {row.noise}"
    told = told if named else f"{told} ({kind}, {source}, cap {cap:,}{noise})"
    return ALL.judged(minutes, told, named and row.inputs == PICTURES)


def of_pairs(rows: Sequence[Kept]) -> Iterator[Judged]:
    """Of certificates in another precision by votes in pairs, where these are to pay."""
    inside = [row for row in rows if row.in_pairs and IN_PAIRS[0] <= row.radius <= IN_PAIRS[1]]
    if not inside:
        return
    kept, n = [100 * row.kept for row in inside], inside[0].n
    below = sum(share < PAIRS.bound for share in kept)
    told = f"{min(kept):.1f} at least, {statistics.fmean(kept):.1f} on average, "
    told += f"less than {PAIRS.bound:g} at {below} of {len(kept)}"
    yield PAIRS.judged(min(kept), _on(told, n == VOTES, n, "votes"), n == VOTES)


def _certifies_beside(row: Row, work: Work) -> bool:
    return row.what.work is Work.CERTIFY and row.against is not None and row.against.work is work


def _ratio(target: Target, row: Row, same: bool, n: int, unit: str = "") -> Judged:
    value = row.ratio or 0.0
    told = f"{value:.2f} ×" if unit else f"{value:.3f}"
    told = f"{told} ({row.what.by if row.what.work is Work.CERTIFY else row.what})"
    return target.judged(value, _on(told, same, n, "votes"), same)


def _added(row: Row, same: bool) -> Judged:
    """By the median of the turns; the ratio of the two medians is told beside it."""
    turns = sorted(100 * (1 / ratio - 1) for ratio in row.turns)
    value = statistics.median(turns)
    spread = f"{turns[0]:.1f} to {turns[-1]:.1f} in {len(turns)} turns; of the medians {100 * (1 / (row.ratio or 1) - 1):.1f}"
    return GENERATOR.judged(value, f"{value:.1f} ({spread})", same)


def _on(told: str, same: bool, count: int, unit: str) -> str:
    return told if same else f"{told}, with {count:,} {unit}"
