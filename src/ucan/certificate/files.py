"""Results from JSON and as files: read again without loss, and refused where a number does not follow from the rest."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ucan.certificate.certified import Certificate
from ucan.certificate.entries import budget_from_json, region_from_json
from ucan.certificate.level import Level
from ucan.certificate.outcome import ROUTED, Abstention, Outcome, Prediction, check_guarantee
from ucan.choices import norm_from_json
from ucan.errors import DoesNotFollow, InvalidInput, UcanError
from ucan.evidence import Evidence
from ucan.json_text import read_json
from ucan.sidecar import tensors_from_json
from ucan.storage import storage, write_whole

WHERE = "Give one of the files RUN/certificates/*.json, which `ucan certify --certificates` writes."
READABLE = (1, 2, 3)  # 1: version 0.1, with less evidence
KINDS = ("certificate", "abstention", "prediction", "level")


def from_dict(
    record: dict[str, Any], folder: str | Path | None = None
) -> Certificate | Abstention | Prediction | Level:
    """Rebuild a result from its ``to_dict``, without loss; ``folder`` holds the file of a large Σ."""
    _check_readable(record)
    where = Path(folder) if folder is not None else None
    try:
        found = _restored(record, folder, where)
        check_guarantee(record, found.scope)
        return found
    except UcanError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise InvalidInput(f"this is not a complete certificate record: {error}.") from error


def _restored(
    record: dict[str, Any], folder: str | Path | None, where: Path | None
) -> Certificate | Abstention | Prediction | Level:
    """The result of a record whose format and kind can be read."""
    shared = {
        "norm": norm_from_json(record["norm"]),
        "scope": record["scope"],
        "evidence": Evidence.from_dict(record["evidence"]),
        "choice": None if record.get("choice") is None else from_dict(record["choice"], folder),
    }
    if record["kind"] == "abstention":
        return Abstention(
            **shared,
            reason=record["reason"],
            p_lower=record["p_lower"],
            budget=budget_from_json(record.get("budget"), where),
        )
    if record["kind"] == "prediction":
        return Prediction(**shared, prediction=record["prediction"], p_value=record["p_value"])
    region = region_from_json(record["region"], where)
    if record["kind"] == "level":
        told = {name: record[name] for name in ("threshold", "above", "top", "p", "of")}
        told |= {"floor": record["floor"]} if "floor" in record else {}  # not before there was τ with a veto
        level = Level(**shared, **told, region=region)
        _check_sizes(level, record, ("radius",))
        return level
    mean = None if record["mean"] is None else tensors_from_json(record["mean"], where)["mean"]
    certificate = Certificate(
        **shared,
        prediction=record["prediction"],
        p_lower=record["p_lower"],
        p_upper=record["p_upper"],
        region=region,
        alm=math.nan if record["alm"] is None else record["alm"],
        mean=mean,
        budget=budget_from_json(record.get("budget"), where),
        budget_factor=record.get("budget_factor"),
    )
    _check_budget_factor(certificate)
    _check_sizes(certificate, record, ("radius", "log_volume") if certificate.choice is None else ("radius",))
    return certificate


def _check_readable(record: dict[str, Any]) -> None:
    """Refuse a record of a format or of a kind that this version does not read."""
    if record.get("format") not in READABLE:
        known = ", ".join(map(str, READABLE))
        raise InvalidInput(f"this record has format {record.get('format')!r}; this version reads formats {known}.")
    if record.get("kind") not in KINDS:
        raise InvalidInput(f"this record is of the kind {record.get('kind')!r}; this version reads {', '.join(KINDS)}.")
    if record["kind"] != "level" and (record["format"] == ROUTED) != (record.get("choice") is not None):
        raise InvalidInput(
            f"this record has format {record['format']}, but format {ROUTED} is that of a router, with a choice."
        )


def save_json(outcome: Outcome, path: str | Path) -> None:
    """Write a result as JSON, atomically; large tensors are written to files next to it."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InvalidInput(f"there is no folder {path.parent} to write {path.name} to: create it first.")
    with storage(path):
        text = json.dumps(outcome.to_dict(path.parent), indent=1, ensure_ascii=False, allow_nan=False)
        write_whole(path, text.encode())


def load_json(path: str | Path) -> Certificate | Abstention | Prediction | Level:
    """Read a result that ``save_json`` wrote."""
    path = Path(path)
    try:
        record = read_json(path)
    except (OSError, ValueError) as error:
        if path.is_dir():
            raise InvalidInput(f"{path} is a folder, and a certificate is a file. {WHERE}") from error
        if path.is_file() and not path.stat().st_size:
            raise InvalidInput(f"{path} is empty. {WHERE}") from error
        if path.suffix in (".tsv", ".csv", ".sqlite"):
            raise InvalidInput(f"{path} holds the results of many inputs, not a certificate. {WHERE}") from error
        raise InvalidInput(f"{path} cannot be read as a certificate: {error}. {WHERE}") from error
    if not isinstance(record, dict):
        raise InvalidInput(f"{path} cannot be read as a certificate: it holds no JSON object.")
    if "format" not in record:
        raise InvalidInput(f"{path} is not a certificate. {WHERE}")
    return from_dict(record, path.parent)


def _check_sizes(claim: Certificate | Level, record: dict[str, Any], names: tuple[str, ...]) -> None:
    """Refuse a record whose radius or volume is not that of its region."""
    for name in names:
        stored = -math.inf if record[name] is None else record[name]  # the log-volume of an empty region
        if not math.isclose(stored, getattr(claim, name), rel_tol=claim.region.tolerance, abs_tol=1e-12):
            raise DoesNotFollow(
                f"this record's {name} does not follow from its region: it is {stored!r}, and the region gives "
                f"{getattr(claim, name)!r}. It was changed or is damaged.",
                name,
            )


def _check_budget_factor(certificate: Certificate) -> None:
    """Refuse a factor of the budget that is larger than what p, the law and Σ allow."""
    claimed = certificate.budget_factor
    if claimed is None:
        return
    most = certificate.most_budget_factor * (1 + certificate.region.tolerance)
    if type(claimed) not in (int, float) or not 0 <= claimed <= most:
        raise DoesNotFollow(
            "this record's budget_factor does not follow from its region, law and budget: it was changed or is damaged.",
            "budget_factor",
        )
