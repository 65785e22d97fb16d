"""The page about routers shows what is on record, rounded down."""

from __future__ import annotations

import json
import math
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "router.md").read_text(encoding="utf-8")


def cells(values: list[float]) -> str:
    return " | ".join(f"{math.floor(10 * value + 1e-9) / 10:.1f}" for value in values)


def recorded(name: str) -> dict:
    return json.loads((ROOT / "experiments" / "recorded" / name).read_text(encoding="utf-8"))


def test_the_table_of_routers_on_digits_is_the_record() -> None:
    record = recorded("router-digits.json")
    names = {
        "sigma 0.5": "wide alone",
        "sigma 0.25": "narrow alone",
        "selector": "router with a selector",
        "threshold 0.5": "threshold, τ = 1/2",
        "threshold 0.5, veto 0.2": "threshold, τ = 1/2, veto ν = 0.2",
    }
    assert record["complete"] and set(record["accuracy"]) == set(names)
    for name, shown in names.items():
        assert f"| {shown} | {cells(record['accuracy'][name])} |" in PAGE
    best = [max(pair) for pair in zip(*(record["accuracy"][name] for name in list(names)[:2]), strict=True)]
    apart = [mine - other for mine, other in zip(record["accuracy"]["threshold 0.5"], best, strict=True)]
    assert -2.75 < min(apart) < -2.6 and "within 2.7 points" in PAGE and apart[5] > 0


def test_none_of_the_attacked_certificates_broke() -> None:
    attacked = recorded("router-digits.json")["attacked"]
    assert len(attacked) == 3 and "3,000 attacks, none broken" in PAGE
    for told in attacked.values():
        assert told["certificates"] == 500 and told["attempts"] == 1000 and not told["bug"]
        assert told["broken"] == {"choice": 0, "answer": 0}


def test_the_distances_are_the_record() -> None:
    rows = recorded("router-digits-distance.json")["rows"]
    for name, shown in (
        ("sigma 0.5 alone", "σ = 0.5 alone"),
        ("sigma 0.25 alone", "σ = 0.25 alone"),
        ("levels chosen", "router, τ = 1/2 (also what was chosen)"),
        ("veto chosen", "router, veto ν = 0.4 (chosen)"),
    ):
        assert f"| {shown} | {cells(rows[name]['accuracy'])} |" in PAGE
    assert rows["levels chosen"]["levels"] == [0.5] and rows["veto chosen"]["veto"] == 0.4
    assert min(rows["levels chosen"]["distance"]) >= 0
