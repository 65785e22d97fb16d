"""One object to read a run: its config, its rows, its records and its audit, each loaded once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ucan.audit import Attempt, Summary, summarise
from ucan.certificate import SCOPES, Abstention, Certificate
from ucan.config import CONFIG
from ucan.errors import InvalidInput, NoSuchName, StoreError
from ucan.laws import norm_name
from ucan.places import base_of
from ucan.results.curves import Curve, certified_curve
from ucan.results.metrics import Columns, Measure, labelled
from ucan.results.store import Store
from ucan.runs.audited import attempts_on, config_hash
from ucan.runs.config import RunConfig

BUDGET_AXIS = "ε of the budget"
IN_UNITS = " in units of each column's σ"
SIGMA_AXIS = "R, the radius in units of Σ"


class NamedColumns(dict[str, np.ndarray]):
    """Columns by name; another name is refused with the names that there are."""

    def __missing__(self, name: str) -> np.ndarray:
        raise NoSuchName(f"a run has no column {name!r}; its columns are {', '.join(self)}.")


@dataclass(frozen=True, eq=False)
class Run:
    """A run's rows and claims. ``label`` is its name, made distinct; ``attempts`` are those of its audit, if any.

    ``columns`` are the numbers of all rows by name, ``config`` is what was run, in ``folder``. ``scope`` says whose guarantee
    the radii are, ``norm`` which change they measure; ``cap`` is the largest scale, under which ALM may be compared. With
    ``budget``, its key, the sizes are factors ε of it instead of radii; with ``in_units``, for a table, radii are in units of
    σ. ``left_out`` is the number of results behind an input that an interrupted run has not finished, of which
    ``certificates_left_out`` are certificates. ``store`` reads single records.

    The database stays open for reading single records until the object is deleted.
    """

    label: str
    folder: Path
    scope: str
    norm: float | None
    cap: float | None
    config: RunConfig
    columns: Columns
    attempts: tuple[Attempt, ...] = ()
    left_out: int = 0  # results after an input that the interrupted run has not finished
    certificates_left_out: int = 0  # how many of those are certificates; an audit attacks them as well
    budget: str | None = None  # the key of the budget, if the sizes are its factors ε instead of radii
    in_units: bool = False  # for a table: radii are in units of σ, since its columns have different units
    store: Store | None = None
    _curves: dict[Measure, Curve | None] = field(init=False, default_factory=dict, repr=False)

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """Open the run in this folder. It may still be written by another process; then its current state is read.

        An audit in the folder that is of another run is refused.
        """
        folder = Path(folder)
        store = Store.open(folder)
        config = RunConfig.of(store.config, str(folder / CONFIG))
        columns, left_out = store.gapless()
        store.check_alpha()
        _check_settings(config, store, columns)
        in_units = bool(config.noise.sigma) and store.budget is None
        if in_units:
            _check_sigma(config, folder)
            columns["radius"] = _in_units(columns["alm"], config.noise.sigma)
        behind = _certificates(store.columns(("abstained", "radius"))) - _certificates(columns) if left_out else 0
        return cls(
            label=store.name,
            folder=folder,
            scope=store.scope if store.scope in SCOPES else "unknown",
            norm=store.norm,
            cap=config.claim.alm_cap,
            config=config,
            columns=NamedColumns(columns),
            attempts=attempts_on(store, config),
            left_out=left_out,
            certificates_left_out=behind,
            budget=store.budget,
            in_units=in_units,
            store=store,
        )

    def outcome(self, idx: int) -> Certificate | Abstention:
        """The full record of one input, as it was certified."""
        return self._opened().outcome(idx)

    def telling(self) -> Certificate | Abstention:
        """An outcome to rebuild the noise from: a certificate, which tells Σ, or else an abstention, which tells the law."""
        return self.outcome(int(self.columns["idx"][self.columns["abstained"].argmin()]))

    def record(self, idx: int) -> dict[str, Any] | None:
        """The record of one input as plain JSON values; None for an imported row."""
        return self._opened().record(idx)

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and record of every input, in order; an imported run has none."""
        return self._opened().records()

    def rows(self, names: Sequence[str]) -> Columns:
        """Columns of all rows, including those after an unfinished input."""
        return self._opened().columns(names)

    @property
    def config_hash(self) -> str:
        """A hash of the config, by which an audit identifies the run."""
        return config_hash(self._opened().config)

    def label_of(self, idx: int) -> int:
        """The label of one input, also after an unfinished input."""
        rows = self.columns if idx <= self.columns["idx"][-1] else self.rows(("idx", "label"))
        return int(rows["label"][rows["idx"].searchsorted(idx)])

    @property
    def base(self) -> Path | None:
        """The directory that the paths of its config are relative to; None if it does not state that."""
        return base_of(self.folder, self.config.started_in)

    @cached_property
    def names(self) -> dict[int, str]:
        """The names of the inputs by their numbers; empty if they have none."""
        return self._opened().names()

    def measured(self, by: Measure) -> Columns:
        """The columns, with the one that this measure reads."""
        return self.columns if by != "sigma" else {**self.columns, "sigma": self._before_sigma[0]}

    @property
    def units(self) -> Hashable:
        """A key that is equal for runs whose R is known to be in the same units: the same Σ, and the same norm of regions."""
        noise = self.config.noise
        return tuple(sorted(noise.sigma.items())) or noise.state or self.folder, self._before_sigma[1]

    @cached_property
    def _before_sigma(self) -> tuple[np.ndarray, float | None]:
        """R of every row, before Σ; NaN where it is unknown. And the norm of the regions, if it is one."""
        if self.in_units:
            return self.columns["radius"], self.norm
        if self.config.is_imported:
            known = self.config.imported.isotropic and self.budget is None
            return (self.columns["radius"] if known else np.full(self.inputs, np.nan)), self.norm
        radii, norm = ({}, None) if self.store is None else self.store.region_radii()
        return np.array([radii.get(idx, math.nan) for idx in self.columns["idx"].tolist()]), norm

    @cached_property
    def shaped(self) -> bool:
        """Whether R says something other than the radius: Σ is not 1 in all directions."""
        certified = self.columns["radius"] > 0
        found, radius = self._before_sigma[0][certified], self.columns["radius"][certified]
        return self.budget is None and bool((np.abs(found - radius) > 1e-3 * found).any())

    def curve(self, by: Measure = "radius") -> Curve | None:
        """The certified accuracy by radius, by ALM or in units of Σ; None if there are no sizes or no labels."""
        if by not in self._curves:
            self._curves[by] = certified_curve(self.measured(by), by)
        return self._curves[by]

    @property
    def inputs(self) -> int:
        """How many inputs were certified or abstained on."""
        return len(self.columns["idx"])

    @property
    def labelled(self) -> int:
        """How many of them have a label; shares are over these."""
        return int(labelled(self.columns).sum())

    @property
    def data(self) -> Hashable | None:
        """The identity of its inputs; None if unknown, as for an imported file."""
        data = self.config.data
        if data.fingerprint is None:
            return None
        return data.fingerprint, data.size, data.channels, data.skip, self.inputs

    @property
    def alpha(self) -> float | None:
        """α; None if an imported file does not state it."""
        return self.config.sampling.alpha

    @property
    def certificates(self) -> int:
        """How many inputs have a certificate with a positive radius; these an audit can attack."""
        return _certificates(self.columns)

    @property
    def kind(self) -> Hashable:
        """A key that is equal for runs with comparable sizes: radii in the same norm, or factors of the same budget."""
        if self.in_units:
            return self.norm, IN_UNITS
        return self.norm if self.budget is None else self.budget

    @cached_property
    def audit(self) -> Summary | None:
        """The audit's summary; None if there is no audit."""
        return summarise(self.attempts, self.config.data.skip or 1) if self.attempts else None

    def attacked(self, mode: str) -> int:
        """How many certificates the audit attacked in this mode."""
        return len({attempt.idx for attempt in self.attempts if attempt.mode == mode and attempt.elsewhere})

    @property
    def uncovered(self) -> bool:
        """Whether the audit attacked a live pipeline that the guarantee does not cover: frozen noise that is recomputed."""
        return any(attempt.mode == "live" and not attempt.covered for attempt in self.attempts)

    @property
    def covered(self) -> tuple[int, int]:
        """How many certificates the audit broke where the guarantee covers them, and how many it attacked there."""
        attempts = [attempt for attempt in self.attempts if attempt.covered and attempt.elsewhere]
        return len({a.idx for a in attempts if a.refuted}), len({a.idx for a in attempts})

    @property
    def refuted(self) -> str:
        """How the audit refuted this run; empty if it did not."""
        if self.audit is None or not self.audit.is_bug:
            return ""
        broken, attacked = self.covered
        return (
            f"the audit broke {broken} of {attacked} certificates where the guarantee covers them, and chance does not "
            "explain it"
        )

    @property
    def measure(self) -> str:
        """The radius with its norm, or the factor of the budget, as axes and sentences call it."""
        if self.budget is not None:
            return BUDGET_AXIS
        own = IN_UNITS if self.in_units else ""
        return "radius (norm not stated)" if self.norm is None else f"{norm_name(self.norm)} radius{own}"

    @property
    def unlabelled(self) -> str:
        """A note about inputs without labels; empty if all have one."""
        count, known = self.inputs, self.labelled
        if known == count:
            return ""
        if known:
            return (
                f"the labels of {count - known:,} of {count:,} inputs are unknown: shares are over the other {known:,}"
            )
        certified = count - int(self.columns["abstained"].sum())
        return f"the labels are unknown: {certified:,} of {count:,} inputs have a certificate, right or wrong"

    def _opened(self) -> Store:
        if self.store is None:
            raise InvalidInput(f"{self.folder} was not opened: Run.open reads it.")
        return self.store


def _check_settings(config: RunConfig, store: Store, rows: Columns) -> None:
    """Refuse settings of the noise that its own record does not have: which ones there are, only the record says.

    They are the last table of most configs, where a line lands that somebody adds at the end.
    """
    found: Any = store.record(int(rows["idx"][0])) if config.noise.settings and len(rows["idx"]) else None
    for name in ("evidence", "noise", "settings"):
        found = found.get(name) if isinstance(found, dict) else None
    for name in config.noise.settings if isinstance(found, dict) else ():
        if name not in found:
            raise StoreError(
                f"{store.folder / CONFIG} has the key 'noise_settings.{name}', which the noise of this run does not have: "
                "remove it, if you added it."
            )


def _check_sigma(config: RunConfig, folder: Path) -> None:
    """Refuse a σ of no column, and one that is no size: every radius that is shown is in units of them."""
    for name, value in config.noise.sigma.items():
        if name not in config.data.columns or not 0 < value < math.inf:
            known = ", ".join(config.data.columns)
            raise StoreError(
                f"{folder / CONFIG} has 'sigma.{name}' = {value:g}; it is a positive number for each column that varies, of "
                f"{known}: restore it from a copy, or certify again."
            )


def _in_units(alm: np.ndarray, sigma: Mapping[str, float]) -> np.ndarray:
    """The radius before Σ, |det Σ|^(-1/d) times ALM: the same for every row in every column's own unit; rounded down."""
    mean = math.exp(sum(math.log(value) for value in sigma.values()) / len(sigma))
    return alm / (mean * (1 + 1e-12))


def read_runs(folders: Sequence[str | Path]) -> list[Run]:
    """Open the runs in these folders, each once, in the given order; a run without results is refused."""
    places = list({Path(folder).resolve(): Path(folder) for folder in folders}.values())
    if not places:
        raise InvalidInput("a report needs at least one run: give the folders of `ucan certify` runs.")
    runs = [Run.open(folder) for folder in places]
    for run in runs:
        if not run.inputs:
            raise StoreError(
                f"{run.folder} has no certificates yet: let `ucan certify` finish at least one input first."
            )
    labels = distinct([run.label for run in runs])
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def distinct(names: Sequence[str]) -> list[str]:
    """The names, numbered where several are the same, so that no two runs look alike."""
    return [f"{n} ({names[: i + 1].count(n)})" if names.count(n) > 1 else n for i, n in enumerate(names)]


def _certificates(columns: Columns) -> int:
    return int((~columns["abstained"] & (columns["radius"] > 0)).sum())
