"""The field's comparison table: certified accuracy by radius or by ALM, for any set of runs.

Every row names its scope and its ALM cap. The best of a column is marked among rows that claim the same: within one
scope, on the same inputs and, by ALM, under one cap; and only where sampling decided it. Shares are rounded down.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from ucan.choices import ALM
from ucan.errors import InvalidInput
from ucan.laws import norm_name
from ucan.report.axes import ticks
from ucan.report.basis import decided, idle_in_words, inputs_in_words, same_inputs, stopped_in_words
from ucan.results.formats import UNKNOWN_SCOPE, guarantee
from ucan.results.metrics import Measure, certified_accuracy, certified_band
from ucan.rounding import ceil_percent, ceil_significant, floor_percent, floor_plain
from ucan.runs.read import BUDGET_AXIS, IN_UNITS, SIGMA_AXIS, Run, distinct

# An axis that ends below this shows nothing but 0: another one is offered first.
SMALLEST = 1e-3
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25)
SEE = "; see the documentation page “Whose guarantee it is”"
SCOPE_NOTES = {
    "frozen": f"frozen: holds for the noise frozen at each input, not for a deployed pipeline that recomputes it{SEE}",
    "registry": f"registry: holds for {guarantee('registry')}{SEE}",
    "unknown": f"unknown: {UNKNOWN_SCOPE}{SEE}",
}
MEASURES = {
    "alm": f"{ALM}: the radius of a ball as large as the region. It is a size, not a radius that is guaranteed, and "
    "compares only under a common cap on the scales of the noise",
    "sigma": "no change δ with ‖Σ⁻¹δ‖ below R changes the answer: in feature i alone, R·σᵢ in that feature's own unit "
    "(`region.reach()`)",
}


@dataclass(frozen=True)
class Row:
    """One line: shares of certified inputs, or (``kind`` "improvement") changes relative to the best baseline.

    ``data`` tells its inputs from others (None: unknown); ``decided`` are the columns in which sampling did not stop before
    the share was known; ``remarks`` are what a reader must know about it; ``alphas`` are the probabilities with
    which its claims may be false (none: unknown).
    """

    name: str
    scope: str
    alm_cap: float | None
    values: tuple[float, ...]
    kind: Literal["run", "envelope", "improvement"] = "run"
    best: tuple[bool, ...] = ()
    bands: tuple[tuple[float, float], ...] = ()
    inputs: int = 0
    norm: float | None = None
    budget: str | None = None
    left_out: int = 0
    data: Hashable | None = None
    data_words: str = ""
    decided: tuple[bool, ...] = ()
    remarks: tuple[str, ...] = ()
    alphas: frozenset[float] = frozenset()
    in_units: bool = False
    units: Hashable | None = None

    def cells(self, digits: int) -> tuple[str, ...]:
        """What is shown: percent, rounded down; a band's upper limit rounded up; "–" for unknown."""
        shown = [floor_percent(v, digits) for v in self.values]
        if self.kind == "improvement":
            shown = [f"+{s}" if v >= 0 else s for v, s in zip(self.values, shown, strict=True)]
        if self.bands:
            ends = [(floor_percent(low, digits), ceil_percent(high, digits)) for low, high in self.bands]
            shown = [s if s == "–" else f"{s} [{a}, {b}]" for s, (a, b) in zip(shown, ends, strict=True)]
        return tuple(shown)


@dataclass(frozen=True)
class Table:
    """A comparison, ready to be rendered by ``ucan.report.render``."""

    title: str
    radii: tuple[float, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    digits: int = 1

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns; a radius rounds down, so that the shares below it are true of what is shown."""
        return ("run", "scope", "ALM cap", *(floor_plain(r) for r in self.radii))

    def lines(self) -> list[tuple[tuple[str, ...], tuple[bool, ...]]]:
        """Each row as text, and which of its cells are the best."""
        lines = []
        for row in self.rows:
            first = (row.name, row.scope, "–" if row.alm_cap is None else ceil_significant(row.alm_cap))
            lines.append(((*first, *row.cells(self.digits)), (False,) * 3 + (row.best or (False,) * len(self.radii))))
        return lines


def first_axis(runs: Sequence[Run]) -> tuple[Measure, tuple[float, ...]]:
    """The measure and the columns to begin with: by radius, unless everything is 0 % there beyond the column 0.

    Radii that are only small get columns of their own size.
    """
    by_kind: tuple[Measure, ...] = ("radius", "sigma", "alm")
    for by in by_kind:
        ends = [curve.end for run in runs if (curve := run.curve(by)) is not None and math.isfinite(curve.end)]
        most = max(ends, default=0.0)
        if most >= RADII[1]:
            return by, RADII
        if most >= SMALLEST:
            return by, tuple(ticks(most, len(RADII) - 1))
    return "radius", RADII


def comparison(
    runs: Sequence[str | Path | Run],
    radii: Sequence[float] = RADII,
    metric: Measure = "radius",
    baselines: Sequence[str | Path | Run] = (),
    envelopes: Mapping[str, Sequence[str | Path | Run]] | None = None,
    bands: bool = False,
    digits: int = 1,
) -> Table:
    """Compare runs at the given radii, by ``metric`` "radius", "alm" or "sigma" (R, the radius in units of Σ).

    ``baselines`` come first; every other row is then followed by its improvement over the best of them, (ours − best) /
    best. An envelope is a row of its own, the best over its runs at each radius, labelled so: its runs share one scope
    and, by ALM, one cap.
    """
    points = tuple(float(r) for r in radii)
    if not points:
        raise InvalidInput("a comparison needs at least one radius.")
    base = [_row(run, points, metric, bands) for run in baselines]
    known = {_place(run) for run in baselines}
    ours = [_row(run, points, metric, bands) for run in runs if _place(run) not in known]
    best_of = [_envelope(name, some, points, metric) for name, some in (envelopes or {}).items()]
    if not (base or ours or best_of):
        raise InvalidInput("there is nothing to compare: name at least one run.")
    norm = _one_norm([*base, *ours, *best_of])
    marked = _marked([*base, *ours, *best_of], metric, digits)
    names = distinct([row.name for row in marked])
    shares = [replace(row, name=name) for row, name in zip(marked, names, strict=True)]
    rows = list(shares[: len(base)])
    for row in shares[len(base) :]:
        rows += [row, _improvement(row, shares[: len(base)], metric)] if base else [row]
    radius = "radius" if norm is None else f"{norm_name(norm)} radius"
    radius += IN_UNITS if shares[0].in_units else ""
    radius = radius if shares[0].budget is None else BUDGET_AXIS
    what = {"alm": ALM, "sigma": SIGMA_AXIS}.get(metric, radius)
    counts = {row.inputs for row in shares}
    of = f", {counts.pop()} inputs" if len(counts) == 1 and counts != {0} else ""  # else the notes say how many
    return Table(f"Certified accuracy in % by {what}{of}", points, tuple(rows), _notes(rows, metric, bands), digits)


def _place(run: str | Path | Run) -> Path:
    return (run.folder if isinstance(run, Run) else Path(run)).resolve()


def _row(run: str | Path | Run, radii: tuple[float, ...], metric: Measure, bands: bool) -> Row:
    run = run if isinstance(run, Run) else Run.open(run)
    config, columns = run.config, run.measured(metric)
    shares = tuple(map(float, certified_accuracy(columns, radii, metric)))
    limits: tuple[tuple[float, float], ...] = ()
    if bands:
        low, high = certified_band(columns, radii, metric)
        limits = tuple(zip(map(float, low), map(float, high), strict=True))
    empty = idle_in_words(config, radii) if metric == "radius" else ""
    remarks = (stopped_in_words(config, metric), run.unlabelled, empty, *config.imported.notes)
    return Row(
        run.label,
        run.scope,
        run.cap,
        shares,
        bands=limits,
        inputs=run.inputs,
        norm=run.norm,
        budget=run.budget,
        left_out=run.left_out,
        data=run.data,
        data_words=inputs_in_words(config.data, run.inputs),
        decided=tuple(decided(config, r, metric) for r in radii),
        remarks=tuple(filter(None, remarks)),
        alphas=frozenset() if run.alpha is None else frozenset({run.alpha}),
        in_units=run.in_units,
        units=run.units if metric == "sigma" or run.in_units else None,
    )


def _envelope(name: str, runs: Sequence[str | Path | Run], radii: tuple[float, ...], metric: Measure) -> Row:
    """The best over several runs at each radius: what published rows usually are."""
    rows = [_row(run, radii, metric, bands=False) for run in runs]
    if not rows:
        raise InvalidInput(f"the envelope {name!r} names no run.")
    scopes, caps = sorted({r.scope for r in rows}), {r.alm_cap for r in rows}
    if len(scopes) > 1:
        raise InvalidInput(f"the envelope {name!r} mixes the scopes {', '.join(scopes)}: take runs of one scope.")
    if metric == "alm" and len(caps) > 1:
        raise InvalidInput(f"the envelope {name!r} mixes ALM caps, under which ALM does not compare.")
    if len({r.units for r in rows}) > 1:
        raise InvalidInput(f"the envelope {name!r} mixes runs under other Σ, whose units of σ do not compare.")
    norm = _one_norm(rows)
    values = np.array([r.values for r in rows])
    known = ~np.isnan(values).all(axis=0)
    best = np.where(known, np.max(np.where(np.isnan(values), -np.inf, values), axis=0), np.nan)
    label = f"{name} (best of {', '.join(r.name for r in rows)})"
    cap = caps.pop() if len(caps) == 1 else None
    sizes = {r.inputs for r in rows}
    data = {r.data for r in rows} - {None}
    return Row(
        label,
        scopes[0],
        cap,
        tuple(best.tolist()),
        "envelope",
        inputs=sizes.pop() if len(sizes) == 1 else 0,
        norm=norm,
        budget=rows[0].budget,
        left_out=sum(r.left_out for r in rows),
        data=frozenset(data)
        if len(data) > 1
        else next(iter(data), None),  # several data sets: comparable with no other row
        data_words=" and ".join(dict.fromkeys(r.data_words for r in rows)),
        decided=tuple(map(all, zip(*(r.decided for r in rows), strict=True))),
        remarks=tuple(dict.fromkeys(remark for r in rows for remark in r.remarks)),
        alphas=frozenset().union(*(r.alphas for r in rows)),
        in_units=rows[0].in_units,
        units=rows[0].units,
    )


def _marked(rows: list[Row], metric: Measure, digits: int) -> list[Row]:
    """The rows with their best cells marked. Cells that look equal are equally good, and 0 % is never the best.

    Where a stopping rule left a share open, that cell is a lower bound: it is not marked, but it can keep others from it.
    """

    def group(row: Row) -> tuple[str, float | None, Hashable | None]:
        return row.scope, row.alm_cap if metric == "alm" else None, row.units

    def shown(value: float) -> Decimal:
        return Decimal("-1") if math.isnan(value) else Decimal(floor_percent(value, digits))

    marked = []
    for row in rows:
        rivals = [r for r in rows if group(r) == group(row) and same_inputs(r.data, row.data) and _same_alpha(r, row)]
        tops = [max(shown(r.values[i]) for r in rivals) for i in range(len(row.values))]
        comparable = metric != "alm" or row.alm_cap is not None
        best = tuple(
            comparable and known and shown(v) == t and t > 0
            for v, t, known in zip(row.values, tops, row.decided, strict=True)
        )
        marked.append(replace(row, best=best))
    return marked


def _improvement(row: Row, baselines: Sequence[Row], metric: Measure) -> Row:
    values = np.array([r.values for r in baselines])
    best = np.max(np.where(np.isnan(values), -np.inf, values), axis=0)
    known = map(all, zip(*(r.decided for r in baselines), strict=True))  # an improvement over a lower bound is unknown
    change = [_relative(v, b) if k else math.nan for v, b, k in zip(row.values, best.tolist(), known, strict=True)]
    across = ["across scopes"] if {r.scope for r in baselines} != {row.scope} else []
    across += ["across caps"] if metric == "alm" and {r.alm_cap for r in baselines} != {row.alm_cap} else []
    across += ["at another α"] if not all(_same_alpha(r, row) for r in baselines) else []
    across += ["on other inputs"] if not all(same_inputs(r.data, row.data) for r in baselines) else []
    kind = ", ".join(["relative", *across])
    return Row(f"  improvement over the best baseline ({kind})", "", None, tuple(change), "improvement")


def _same_alpha(one: Row, other: Row) -> bool:
    """True unless the claims of two rows are known to be false with different probabilities."""
    return not one.alphas or not other.alphas or one.alphas == other.alphas


def _relative(ours: float, best: float) -> float:
    """(ours − best) / best, from the fractions k/n themselves: in floats, 57 over 50 would show as +13.9 %."""
    if math.isnan(ours) or not best > 0:
        return math.nan
    return float(Fraction(ours).limit_denominator(10**7) / Fraction(best).limit_denominator(10**7) - 1)


def _one_norm(rows: Sequence[Row]) -> float | None:
    if len({row.budget for row in rows}) > 1:
        kinds = ", ".join(f"{r.name} {'radii' if r.budget is None else f'budget {r.budget[:8]}'}" for r in rows)
        raise InvalidInput(f"factors of a budget compare with those of the same budget alone, not with radii: {kinds}.")
    if len({row.in_units for row in rows}) > 1:
        raise InvalidInput("radii of tables are in units of σ, and do not compare with those of other inputs.")
    if rows[0].budget is not None:  # each has a radius besides, which this is not about
        return None
    norms = {row.norm for row in rows} - {None}
    if len(norms) > 1:
        names = ", ".join(f"{r.name} {norm_name(r.norm)}" for r in rows if r.norm is not None)
        raise InvalidInput(f"radii in different norms do not compare: {names}.")
    return norms.pop() if norms else None


def _notes(rows: Sequence[Row], metric: Measure, bands: bool) -> tuple[str, ...]:
    shares = [row for row in rows if row.kind != "improvement"]
    scopes = [row.scope if row.scope in SCOPE_NOTES or row.scope == "pipeline" else "unknown" for row in shares]
    notes = [SCOPE_NOTES[s] for s in dict.fromkeys(scopes) if s in SCOPE_NOTES]
    if len(shares) < len(rows) and len(set(scopes)) > 1:
        notes.append("an improvement across scopes compares different guarantees")
    notes += [MEASURES[metric]] if metric in MEASURES else []
    notes += _differences(shares)
    notes += [
        f"{row.name} was interrupted: {row.left_out} results behind an unfinished input are left out; `ucan certify` goes on"
        for row in shares
        if row.left_out
    ]
    for remark in dict.fromkeys(remark for row in shares for remark in row.remarks):
        notes.append(f"{', '.join(row.name for row in shares if remark in row.remarks)}: {remark}")
    if bands:
        kept = "; of scope registry, whose inputs depend on each other, they are only a guide"
        notes.append(f"in brackets: 95 % Clopper–Pearson limits over the inputs{kept if 'registry' in scopes else ''}")
    return tuple(notes)


def _differences(shares: Sequence[Row]) -> list[str]:
    """In what the rows differ, or may, so that they do not all compare: noise, α, norm, inputs."""
    notes = []
    if len({row.units for row in shares}) > 1:
        notes.append(
            "not the same Σ: R counts units of each run's own noise, and less noise makes it larger, so only rows under "
            "the same Σ compare"
        )
    if len(frozenset().union(*(row.alphas for row in shares))) > 1:
        levels = ((row.name, " and ".join(f"{a:g}" for a in sorted(row.alphas)) or "unknown") for row in shares)
        notes.append(
            "not the same α, the probability with which a claim may be false, so only rows of the same one compare: "
            + ", ".join(f"{name} {alpha}" for name, alpha in levels)
        )
    if any(row.norm is None and row.budget is None for row in shares):
        notes.append("norm not stated: " + ", ".join(row.name for row in shares if row.norm is None))
    if len({row.data for row in shares} - {None}) > 1 or any(isinstance(row.data, frozenset) for row in shares):
        sets = dict.fromkeys((row.data, row.data_words) for row in shares)
        which = (", ".join(row.name for row in shares if (row.data, row.data_words) == one) for one in sets)
        listed = "; ".join(f"{names}: {words}" for names, (_, words) in zip(which, sets, strict=True))
        notes.append(f"not the same inputs, so only rows on the same ones compare: {listed}")
    elif len({row.inputs for row in shares}) > 1:
        counts = (f"{row.name} {row.inputs or 'different numbers'}" for row in shares)
        notes.append("not the same number of inputs: " + ", ".join(counts))
    return notes
