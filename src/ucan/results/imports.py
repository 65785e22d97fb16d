"""Import result files of other codebases, recognised by their headers or file names, as runs.

A file of numbers does not state its scope. The scope of an imported run is what the user or our own sidecar states, else
"unknown"; it is never guessed.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ucan.certificate import ABSTAINED, SCOPES
from ucan.choices import EARLIER, norm_from_json, norm_word
from ucan.errors import InvalidInput
from ucan.json_text import read_json
from ucan.region import check_norm
from ucan.results.formats import EXPORT_FORMAT, guarantee
from ucan.results.store import UNKNOWN, Store
from ucan.results.tsv import Table, read_table

SCOPE_NAMES = (*SCOPES, "unknown")
RS4A = ("preds", "labels", "prob_lb", "preds_nll", "radius_l1", "radius_l2", "radius_linf")
WRITTEN = 3  # significant digits of a radius in most formats, to the nearest
ROUNDED = "its radii have three significant digits and may have been rounded up"


@dataclass(frozen=True)
class Imported:
    """The content of a file: its columns (those of ``Store.columns``), and what is known about them."""

    format: str
    columns: dict[str, np.ndarray]
    files: tuple[Path, ...]
    norm: float | None = None
    scope: str = "unknown"
    alm_cap: float | None = None
    alpha: float | None = None
    stop: str | None = None
    notes: tuple[str, ...] = ()
    budget_hash: str | None = None


@dataclass(frozen=True)
class Layout:
    """A tab-separated format: its header, and the names of its columns."""

    format: str
    marks: tuple[str, ...]
    radius: str = "radius"
    alm: str | None = None
    p_lower: str | None = None
    norm: float | None = None
    notes: tuple[str, ...] = (ROUNDED,)


LAYOUTS = (
    Layout("ANCER", ("radius_proxy",), alm="radius_proxy"),
    Layout("smoothing-ensembles, adaptive", ("radius proved",), radius="radius proved", norm=2, notes=()),
    Layout("adaptive randomized smoothing", ("linf_radius",), radius="linf_radius", p_lower="prob_lb", norm=math.inf),
    Layout("adaptive randomized smoothing", ("l2_radius",), radius="l2_radius", p_lower="prob_lb", norm=2),
    Layout("data-dependent smoothing", ("sigma",), norm=2),
    Layout("Cohen et al.", (), norm=2),
)


def read(
    path: str | Path, norm: float | None = None, isotropic: bool = False, certified_at: float | None = None
) -> Imported:
    """Read a result file, or a folder of ``.npy`` files, of any known codebase.

    ``norm`` is the norm of its radii (it also picks one of rs4a's). ``isotropic`` states that Σ was a multiple of the
    identity, so that ALM equals the radius. ``certified_at`` is the one radius that smoothing-ensembles' adaptive
    certification tested, which its file does not state.
    """
    if norm is not None:
        check_norm(norm)
    path = Path(path)
    if not path.exists():
        raise InvalidInput(f"there is no {path}.")
    arrays = path.is_dir() or path.suffix == ".npy"
    found = _read_arrays(path, norm) if arrays else _read_text(path, norm, certified_at)
    if isotropic:
        found = replace(found, columns={**found.columns, "alm": found.columns["radius"]})
    return replace(found, norm=norm if norm is not None else found.norm)


def import_run(
    path: str | Path,
    folder: str | Path,
    scope: str | None = None,
    norm: float | None = None,
    name: str | None = None,
    alm_cap: float | None = None,
    isotropic: bool = False,
    certified_at: float | None = None,
) -> Imported:
    """Make a run folder from a result file; nothing is written unless the whole file could be read."""
    if scope is not None and scope not in SCOPE_NAMES:
        raise InvalidInput(f"scope must be one of {', '.join(SCOPE_NAMES)}, got {scope!r}.")
    found = read(path, norm, isotropic, certified_at)
    if scope is not None and found.scope not in ("unknown", scope):
        raise InvalidInput(f"the sidecar of {path} says that its scope is {found.scope}, not {scope}.")
    if alm_cap is not None and found.alm_cap not in (None, alm_cap):
        raise InvalidInput(f"the sidecar of {path} says that its ALM cap is {found.alm_cap:g}, not {alm_cap:g}.")
    found = replace(found, scope=scope or found.scope, alm_cap=found.alm_cap if alm_cap is None else alm_cap)
    config = {
        "kind": "imported",
        "name": name,
        "source": str(path),
        "format": found.format,
        "sha256": [hashlib.sha256(file.read_bytes()).hexdigest() for file in found.files],
        "scope": found.scope,
        "norm": found.norm,
        "budget_hash": found.budget_hash,
        "alm_cap": found.alm_cap,
        "alpha": found.alpha,
        "isotropic": isotropic,
        "certified_at": certified_at,
        "stop": found.stop,
        "notes": list(found.notes),
    }
    with Store.create(folder, config) as store:
        if len(store):
            raise InvalidInput(f"{folder} already holds this file's {len(store)} results; nothing was changed.")
        store.extend(found.columns)
    return found


def _read_text(path: Path, norm: float | None, certified_at: float | None) -> Imported:
    table = read_table(path)
    layout = next(layout for layout in LAYOUTS if set(layout.marks) <= set(table.header))
    if layout.format == "Cohen et al." and "radius" not in table.header and {"correct", "time"} <= set(table.header):
        raise InvalidInput(
            f"{path} has no column radius: it looks like the output of predict.py, which certifies nothing. "
            "Import the output of certify.py."
        )
    missing = [n for n in ("idx", "label", "predict", layout.radius, "correct") if n not in table.header]
    if missing:
        raise InvalidInput(f"{path} lacks the column {', '.join(missing)}; it has {', '.join(table.header)}.")
    radius, notes = table.floats(layout.radius), layout.notes
    if max(map(_digits, table.texts(layout.radius)), default=0) > WRITTEN:
        notes = tuple(note for note in notes if note != ROUNDED)
    if layout.radius == "radius proved":
        radius, notes = _proved(radius, certified_at)
    prediction = table.integers("predict")
    label, abstained = table.integers("label"), (prediction == ABSTAINED) | (radius < 0)
    correct = table.flags("correct") & ~abstained
    _check_correct(table, correct & (prediction != label))
    columns = complete(
        idx=table.integers("idx"),
        label=label,
        prediction=np.where(abstained, ABSTAINED, prediction),
        abstained=abstained,
        correct=correct,
        radius=np.where(abstained, 0.0, radius),
        alm=None if layout.alm is None else np.where(abstained, 0.0, table.floats(layout.alm)),
        p_lower=None if layout.p_lower is None else table.floats(layout.p_lower),
        seconds=table.seconds("time") if "time" in table.header else None,
    )
    _check_repeats(table, columns["idx"])
    found = _with_sidecar(Imported(layout.format, columns, (path,), layout.norm, notes=notes))
    told = found.scope != "unknown" and found.norm is not None  # only our own sidecar states a scope
    if told and norm not in (None, found.norm):
        raise InvalidInput(f"the sidecar of {path} says that its radii are in another norm: leave out --norm.")
    return found


def _digits(number: str) -> int:
    """The significant digits of a number as it is written."""
    return len(number.lower().partition("e")[0].replace(".", "").lstrip("+-0"))


def _proved(flags: np.ndarray, certified_at: float | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """The adaptive mode stores 1 if a radius was proved, −1 if not; the radius itself is not stored."""
    if not np.isin(flags, (1.0, -1.0)).all():
        return flags, ()
    if certified_at is None:
        told = "it says only whether one radius was proved, not which: give certified_at (--certified-at) to compare it"
        return np.where(flags < 0, -1.0, np.nan), (told,)
    if not (math.isfinite(certified_at) and certified_at > 0):
        raise InvalidInput(f"certified_at must be a number above 0, the radius that was tested, got {certified_at!r}.")
    return np.where(flags < 0, -1.0, certified_at), ()


def _with_sidecar(found: Imported) -> Imported:
    """Read the sidecar of our own export, if there is one; it states the scope."""
    sidecar = found.files[0].with_name(f"{found.files[0].name}.json")
    try:
        about = read_json(sidecar)
    except FileNotFoundError:
        return found
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{sidecar}, which should state the scope, cannot be read: {error}.") from error
    if not isinstance(about, dict) or "ucan_export" not in about:
        return found
    _check_claim(sidecar, about)
    if about.get("sha256") not in (None, hashlib.sha256(found.files[0].read_bytes()).hexdigest()):
        raise InvalidInput(
            f"{sidecar} is about another table than {found.files[0].name}, or that was changed: export it again, or remove the "
            f"file and state the scope with --scope."
        )
    norm, config = norm_from_json(about.get("norm")), about.get("config", {})
    cap, key = about.get("alm_cap"), about.get("budget_hash")
    if norm is not None:
        check_norm(norm)
    if not isinstance(config, dict) or not isinstance(config.get("notes", []), list):
        raise InvalidInput(f"{sidecar} cannot be read: its config is no table with a list of notes.")
    notes, alpha, stop = config.get("notes", []), config.get("alpha"), config.get("stop")  # they stay true of the table
    if not all(value is None or (type(value) in (int, float) and value > 0) for value in (cap, alpha)):
        raise InvalidInput(f"{sidecar} cannot be read: alm_cap and alpha are numbers above 0.")
    if "sha256" not in about:
        notes = [*notes, "the file beside it, of an older version, does not say of which table it is"]
    return replace(
        found,
        norm=norm,
        scope=about["scope"],
        alm_cap=cap,
        alpha=alpha,
        stop=stop,
        notes=tuple(map(str, notes)),
        budget_hash=key,
    )


def _check_claim(sidecar: Path, about: dict[str, Any]) -> None:
    """Refuse a sidecar of another format, and one whose scope is none or is not that of its guarantee and its config."""
    if about["ucan_export"] != EXPORT_FORMAT:
        raise InvalidInput(
            f"{sidecar} has export format {about['ucan_export']!r}; this version of UCAN reads format {EXPORT_FORMAT}: update "
            "it, or export the run again."
        )
    scope, config = about.get("scope"), about.get("config", {})
    if not isinstance(scope, str) or scope not in SCOPE_NAMES:
        raise InvalidInput(f"{sidecar} states the scope {scope!r}, which is none of {', '.join(SCOPE_NAMES)}.")
    own = (guarantee(scope), *EARLIER.get(scope, ()))
    if about.get("guarantee", own[0]) not in own or (isinstance(config, dict) and config.get("scope", scope) != scope):
        raise InvalidInput(
            f"{sidecar} states scope {scope}, and its guarantee or its config is of another scope: it was changed. Export the "
            "run again."
        )


def _read_arrays(path: Path, norm: float | None) -> Imported:
    folder = path if path.is_dir() else path.parent
    if (folder / "prob_lb.npy").exists() and (path.is_dir() or path.stem in RS4A):
        return _rs4a(folder, norm)
    match = re.fullmatch(r"(.*_results_)(pA|radius|varianceterm)\.npy", path.name)
    if match:
        return _paper(folder, match[1])
    prefixes = [p.name.removesuffix("pA.npy") for p in sorted(folder.glob("*_results_pA.npy"))] if path.is_dir() else []
    if len(prefixes) == 1:
        return _paper(folder, prefixes[0])
    if prefixes:
        raise InvalidInput(
            f"{path} holds {len(prefixes)} results: give one of them, such as {folder / prefixes[0]}pA.npy."
        )
    raise InvalidInput(f"{path} is not a known result: it is neither rs4a's folder nor a *_results_pA.npy file.")


def _rs4a(folder: Path, norm: float | None) -> Imported:
    norm = 2 if norm is None else norm
    files = tuple(folder / f"{part}.npy" for part in ("preds", "labels", "prob_lb", f"radius_l{norm_word(norm)}"))
    preds, labels, p_lower, radius = (_array(file) for file in files)
    rows = len(labels)
    answers = preds.argmax(1) if preds.ndim == 2 else preds  # rs4a saves the share of votes of every class
    if any(a.shape != (rows,) for a in (answers, labels, p_lower, radius)):
        raise InvalidInput(f"the arrays in {folder} do not fit together: rs4a's have one row per input.")
    abstained = ~((radius > 0) & (p_lower > 0.5))
    if not np.isfinite(radius[~abstained]).all():
        raise InvalidInput(
            f"{files[3]} has radii that are not numbers, perhaps because this noise has none in that norm: give --norm."
        )
    prediction = np.where(abstained, ABSTAINED, answers.astype(np.int64))
    columns = complete(
        idx=np.arange(rows),
        label=labels.astype(np.int64),
        prediction=prediction,
        abstained=abstained,
        correct=prediction == labels.astype(np.int64),
        radius=np.where(abstained, 0.0, radius),
        p_lower=p_lower,
    )
    return Imported("rs4a", columns, files, norm)


def _paper(folder: Path, prefix: str) -> Imported:
    """The format of the paper's code: pA = −1 marks a wrong answer (whose radius is still positive).

    With IsoMeasure it saves the ℓp radius and no variance term; else, by default, "radius" is ALM.
    """
    files = (folder / f"{prefix}pA.npy", folder / f"{prefix}radius.npy")
    p_lower, size = (_array(file) for file in files)
    terms = folder / f"{prefix}varianceterm.npy"
    is_alm = not terms.exists() or _array(terms).size > 0
    if p_lower.ndim != 1 or p_lower.shape != size.shape:
        raise InvalidInput(f"{files[0]} and {files[1]} do not fit together: {p_lower.shape} and {size.shape}.")
    correct = (p_lower > 0.5) & (size > 0)
    if not np.isfinite(size[correct]).all():
        raise InvalidInput(f"{files[1]} has radii that are not finite.")
    credited = np.where(correct, size, 0.0)
    columns = complete(
        idx=np.arange(p_lower.size),
        label=np.full(p_lower.size, UNKNOWN),
        prediction=np.full(p_lower.size, UNKNOWN),
        abstained=np.zeros(p_lower.size, bool),
        correct=correct,
        radius=None if is_alm else credited,
        alm=credited if is_alm else None,
        p_lower=np.where(correct, p_lower, np.nan),
    )
    notes = ["abstentions are not told from wrong answers"]
    if is_alm:
        notes.append("what it calls radius is ALM; it has no radius")
    return Imported("the paper's own code", columns, files, notes=tuple(notes))


def complete(**known: np.ndarray | None) -> dict[str, np.ndarray]:
    """All columns of a store, unknown ones NaN; the number of samples, which no file states, 0."""
    idx = known["idx"]
    assert idx is not None, "every reader knows its rows"
    unknown = np.full(len(idx), np.nan)
    defaults: dict[str, Any] = dict.fromkeys(("radius", "alm", "p_lower", "log_volume", "seconds"), unknown)
    defaults |= dict.fromkeys(("n0", "n"), np.zeros(len(idx), np.int64))
    return {**defaults, **{name: values for name, values in known.items() if values is not None}}


def _check_correct(table: Table, mistaken: np.ndarray) -> None:
    """Refuse a file with an answer marked as correct that differs from its label, or has none: every share would be wrong."""
    if mistaken.any():
        line, _ = table.rows[int(np.argmax(mistaken))]
        raise InvalidInput(
            f"{table.path}, line {line}: correct is 1, but predict differs from label: correct the file."
        )


def _check_repeats(table: Table, idx: np.ndarray) -> None:
    values, counts = np.unique(idx, return_counts=True)
    if (counts > 1).any():
        raise InvalidInput(f"{table.path} has more than one row for idx {values[counts > 1][0]}.")


def _array(path: Path) -> np.ndarray:
    try:
        found: np.ndarray = np.load(path, allow_pickle=False)
        return found
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} is missing.") from error
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInput(f"{path} cannot be read as a .npy array: {error}.") from error
