"""Answers to JSON and back, by their kind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ucan.certificate import (
    Abstention,
    Certificate,
    Level,
    Prediction,
    budget_from_json,
    check_guarantee,
    region_from_json,
)
from ucan.certificate import from_dict as class_from_dict
from ucan.choices import norm_from_json
from ucan.errors import DoesNotFollow, InvalidInput, UcanError
from ucan.evidence import Evidence
from ucan.json_text import read_json
from ucan.questions.confidence import Confident
from ucan.questions.decisions import Decided
from ucan.questions.record import FORMAT, Answer
from ucan.questions.regression import Interval
from ucan.questions.topk import Among

KINDS: dict[str, type[Answer]] = {kind.kind: kind for kind in (Interval, Among, Confident, Decided)}


def from_dict(
    record: dict[str, Any], folder: str | Path | None = None
) -> Answer | Abstention | Certificate | Prediction | Level:
    """Rebuild an answer from its ``to_dict``; certificates of one class, too."""
    if record.get("format") != FORMAT:
        return class_from_dict(record, folder)
    where = Path(folder) if folder is not None else None
    kind = KINDS.get(str(record.get("kind")))
    if kind is None:
        raise InvalidInput(f"this record answers a question that this version does not know: {record.get('kind')!r}.")
    try:
        shared = {
            "norm": norm_from_json(record["norm"]),
            "scope": record["scope"],
            "evidence": Evidence.from_dict(record["evidence"]),
            "region": region_from_json(record["region"], where),
            "tau": record["tau"],
            "budget": budget_from_json(record.get("budget"), where),
        }
        found = kind.restored(shared, record, where)
        tolerance = found.region.tolerance
        if found.budget_factor is not None and not record["budget_factor"] <= found.budget_factor * (1 + tolerance):
            raise DoesNotFollow(
                "this record's budget_factor does not follow from its region: it was changed or is damaged.",
                "budget_factor",
            )
        check_guarantee(record, found.scope)
        _check_shown(found, record)
        return found
    except UcanError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise InvalidInput(f"this is not a complete record of an answer: {error}.") from error


def _check_shown(answer: Answer, record: dict[str, Any]) -> None:
    """Refuse a record that shows its readers something other than its content; a value that is not shown is not missed."""
    for name, value in answer.shown().items():
        told = record.get(name, value)
        same = math.isclose(told, value, rel_tol=answer.region.tolerance) if isinstance(value, float) else told == value
        if not same or isinstance(told, bool):
            raise DoesNotFollow(
                f"this record's {name} does not follow from the rest of it: it is {told!r}, and the rest gives "
                f"{value!r}. It was changed or is damaged: ask for the file again where it was issued.",
                name,
            )


def load_json(path: str | Path) -> Answer | Abstention | Certificate | Prediction | Level:
    """Read an answer or a certificate from a file that ``ucan.certificate.save_json`` wrote."""
    path = Path(path)
    try:
        record = read_json(path)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read as a certificate: {error}.") from error
    if not isinstance(record, dict):
        raise InvalidInput(f"{path} cannot be read as a certificate: it holds no JSON object.")
    return from_dict(record, path.parent)
