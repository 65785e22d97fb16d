"""The page about routers shows what is on record, rounded down."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from test_routed import cascade

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "experiments"))

import router  # noqa: E402

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
        ("sigma 0.5 alone, two-class bound", "σ = 0.5 alone, two-class bound"),
        ("sigma 0.25 alone, two-class bound", "σ = 0.25 alone, two-class bound"),
        ("levels chosen", "router, τ = 1/2 (also what was chosen)"),
        ("level and veto chosen", "router, τ = 1/2, veto ν = 0.4 (chosen)"),
    ):
        assert f"| {shown} | {cells(rows[name]['accuracy'])} |" in PAGE
    assert rows["levels chosen"]["levels"] == [0.5] == rows["level and veto chosen"]["levels"]
    assert rows["level and veto chosen"]["veto"] == 0.4
    router_, best = (
        rows["levels chosen"]["accuracy"],
        [max(pair) for pair in zip(*(rows[f"sigma {s} alone"]["accuracy"] for s in ("0.5", "0.25")), strict=True)],
    )
    assert all(mine > other for mine, other in zip(router_[:4], best, strict=False)) and router_[4] == best[4]
    assert (
        min(rows["levels chosen"]["distance"]) == rows["levels chosen"]["distance"][3]
        and "by 9.0 points at 0.75" in PAGE
    )
    assert -9.0 < rows["levels chosen"]["distance"][3] < -8.9


@pytest.mark.parametrize(("tau", "veto", "experts"), [(0.5, 0.2, {0}), (0.8, 0.0, {1}), (0.7, 0.2, {0, 1})])
def test_the_script_computes_what_a_router_certifies(tau: float, veto: float, experts: set[int]) -> None:
    """From the votes in the certificates of a router alone, by another route, the same radii."""
    system, x = cascade(tau=tau, veto=veto), 0.6 * torch.randn(40, 3, generator=torch.Generator().manual_seed(3))
    made = [
        c for c in system.certify(x, n=5000) if not c.abstained and c.choice.of != c.expert
    ]  # votes of both experts
    sides = [(c.answer, c.choice)[:: 1 if c.expert == 0 else -1] for c in made]
    votes = [
        router.Counted(
            g.law.scale,
            *(np.array([getattr(side[k].evidence, name) for side in sides]) for name in ("selection", "counts")),
            5000,
        )
        for k, g in enumerate(system.experts)
    ]
    found = router.radii(votes, router.Rule((tau,), veto), np.array([c.prediction for c in made]), router.ALPHA / 4)
    assert len(made) > 10 and {c.expert for c in made} == experts
    np.testing.assert_allclose(found, [c.radius for c in made], rtol=1e-6)
