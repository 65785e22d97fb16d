"""What the records of one run have in common: a scope, a norm and a budget, so that a number over them is true of each."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucan.certificate import Abstention, Certificate, budget_from_json
from ucan.choices import norm_from_json
from ucan.config import CONFIG
from ucan.errors import InvalidInput, StoreError
from ucan.results.database import in_records, read_record
from ucan.storage import storage


@dataclass(frozen=True)
class Claims:
    """The claim of all rows of a run: the scope, the norm, and the key of the budget, if any.

    With a budget, a row's ``radius`` is its factor ε: no change within less than ε times the budget changes the answer.
    """

    scope: str
    norm: float | None
    budget: str | None = None

    @classmethod
    def of(cls, outcome: Certificate | Abstention) -> Claims:
        """The claim of one outcome."""
        return cls(outcome.scope, outcome.norm, None if outcome.budget is None else outcome.budget.key)

    @classmethod
    def of_config(cls, config: dict[str, Any]) -> Claims:
        """The claim that a run's config states; what it does not state is unknown."""
        return cls._stated(config, config.get("budget_hash"))

    @classmethod
    def of_record(cls, record: dict[str, Any], folder: Path) -> Claims:
        """The claim of a stored record, whose budget may have a file in the run's folder."""
        budget = budget_from_json(record.get("budget"), folder)
        return cls._stated(record, None if budget is None else budget.key)

    @classmethod
    def _stated(cls, source: dict[str, Any], budget: str | None) -> Claims:
        return cls(str(source.get("scope", "unknown")), norm_from_json(source.get("norm")), budget)


def claims_of_records(db: sqlite3.Connection, folder: Path) -> Claims | None:
    """The claim that all records of a run share, as one of a row states it; None without records."""
    with storage(folder):
        query = "SELECT record FROM records WHERE idx IN (SELECT idx FROM outcomes) LIMIT 1"
        first = db.execute(query).fetchone()
    if first is None:
        return None
    record = read_record(first[0], folder)
    _check_one_reading(db, folder)
    _check_one_claim(db, folder)
    return Claims.of_record(record, folder)


def _check_one_reading(db: sqlite3.Connection, folder: Path) -> None:
    """Refuse a record that states something twice: SQLite, which compares the claims, takes one of them, Python the other."""
    twice = "(SELECT count(*) > count(DISTINCT key) FROM json_each(record))"
    for (record,) in in_records(db, folder, f"SELECT record FROM records WHERE {twice} LIMIT 1"):
        read_record(record, folder)  # raises an error that names the entry


def _check_one_claim(db: sqlite3.Connection, folder: Path) -> None:
    """Refuse records of several scopes, norms or budgets: no number would be true of all of them."""
    parts = ", ".join(f"json_extract(record, '$.{name}')" for name in ("scope", "norm", "budget"))
    found = in_records(db, folder, f"SELECT DISTINCT {parts} FROM records LIMIT 2")
    if len(found) > 1:
        raise StoreError(
            f"the records of {folder} are not of one scope, norm and budget ({found[0][0]} in norm {found[0][1]}, "
            f"{found[1][0]} in norm {found[1][1]}): it was put together from several runs, or changed. Certify into a new "
            "folder."
        )


def refuse_other_config(config: dict[str, Any], claims: Claims, folder: Path) -> None:
    """Refuse a config that states another scope, norm or budget than the records: pages and exports show the config, too."""
    stated = Claims.of_config(config)
    for name in ("scope", "norm", "budget"):
        said, found = getattr(stated, name), getattr(claims, name)
        if said not in ("unknown", None, found):
            raise StoreError(
                f"{folder / CONFIG} states {name} {said}, but its records have {found}: it was changed. Restore it from a "
                "copy, or certify into a new folder."
            )


def refuse_other(known: Claims, claims: Claims, folder: Path, recorded: bool) -> None:
    """Refuse an outcome that claims something other than its run; ``recorded``: the run's claim is that of its records."""
    if known.scope not in ("unknown", claims.scope) or known.norm not in (None, claims.norm):
        raise InvalidInput(
            f"{folder} holds {known.scope} results for norm {known.norm}; this outcome is {claims.scope} for norm "
            f"{claims.norm}. A run has one scope and one norm: use another folder."
        )
    if known.budget != claims.budget and (known.budget is not None or recorded):
        raise InvalidInput(
            f"{folder} holds results for {'a' if known.budget else 'no'} budget, and this outcome is for "
            f"{'another' if claims.budget and known.budget else 'none' if known.budget else 'one'}: use another folder."
        )
