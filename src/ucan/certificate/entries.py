"""Regions, their Σ, and budgets as entries of a record in JSON, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ucan import scales
from ucan.budget import Budget
from ucan.choices import norm_from_json, norm_to_json
from ucan.region import Region
from ucan.sidecar import INLINE, is_small, tensors_from_json, tensors_to_json


def budget_to_json(budget: Budget | None, folder: Path | None) -> dict[str, Any]:
    """The JSON entry of a budget, if there is one; large maps are written to a file, like a large Σ."""
    if budget is None:
        return {}
    record = budget.to_dict()
    large = {name: record.pop(name) for name in ("limits", "groups") if isinstance(record.get(name), list)}
    if sum(map(len, large.values())) <= INLINE:
        return {"budget": {**record, **large}}
    maps = {"limits": budget.limits, **({} if budget.groups is None else {"groups": budget.groups})}
    return {"budget": {**record, "tensors": tensors_to_json({n: maps[n].flatten() for n in large}, folder)}}


def budget_from_json(entry: dict[str, Any] | None, folder: Path | None) -> Budget | None:
    """The inverse of ``budget_to_json``."""
    if entry is None:
        return None
    plain = {name: value for name, value in entry.items() if name != "tensors"}
    return Budget.from_dict({**plain, **(tensors_from_json(entry["tensors"], folder) if "tensors" in entry else {})})


def region_to_json(region: Region, folder: Path | None) -> dict[str, Any]:
    """The JSON entry of a region; a large Σ is written to a file."""
    return {
        "norm": norm_to_json(region.norm),
        "radius": region.radius,
        "shape": list(region.shape),
        "scale": _scale_to_json(region.scale, folder),
    }


def region_from_json(entry: dict[str, Any], folder: Path | None) -> Region:
    """The inverse of ``region_to_json``."""
    scale = _scale_from_json(entry["scale"], folder)
    return Region(scale, entry["radius"], norm_from_json(entry["norm"]), entry["shape"])


def _scale_to_json(scale: scales.Scale, folder: Path | None) -> dict[str, Any]:
    if isinstance(scale, scales.Scalar):
        return {"kind": "Scalar", "value": scale.value}
    kind, tensors = scales.kind_name(scale), scale.tensors()
    if "@" in kind:  # a kind from another package may have plain numbers besides tensors
        tensors = scale.content()
    if is_small(tensors):
        return {"kind": kind, "tensors": tensors_to_json(tensors, folder)}
    # Many certificates share one Σ: its hash is taken once, and its file is written where it is missing.
    entry = scale.known("file", lambda: tensors_to_json(tensors, None))
    if folder is not None and not (folder / entry["file"]).exists():
        tensors_to_json(tensors, folder)
    return {"kind": kind, "tensors": entry}


def _scale_from_json(entry: dict[str, Any], folder: Path | None) -> scales.Scale:
    if "value" in entry:
        return scales.restored(entry["kind"], {"value": entry["value"]})
    return scales.restored(entry["kind"], tensors_from_json(entry["tensors"], folder))
