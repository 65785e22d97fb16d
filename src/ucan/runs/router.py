"""A router as a file: which selector chooses among which experts, each with its own noise."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucan.errors import InvalidInput
from ucan.places import found, found_model, refuse_call
from ucan.routed import Routed
from ucan.smoothed import SmoothedClassifier
from ucan.threshold import Threshold

# The settings of a part; each is the option of that name.
SETTINGS = ("model", "weights", "law", "scale", "exponent", "noise", "model_id", "precision", "normalise")
EXAMPLE = (
    "a router is a [selector] with a model, or threshold = τ (and veto = ν), and two or more [[expert]] tables, each with "
    "a model and its noise (documentation page “A certified router”)"
)


@dataclass(frozen=True)
class RouterFile:
    """The settings of each part: those of the selector, and of the experts in their order.

    With a ``threshold`` there is no selector, but a rule about the experts' probabilities (``ucan.Threshold``).
    """

    selector: Mapping[str, Any] | None
    experts: tuple[Mapping[str, Any], ...]
    threshold: float | None = None
    veto: float = 0.0

    @property
    def parts(self) -> tuple[Mapping[str, Any], ...]:
        """All parts, in the order in which ``of`` takes them."""
        return self.experts if self.selector is None else (self.selector, *self.experts)

    def of(self, parts: Sequence[SmoothedClassifier]) -> Routed:
        """The router of these classifiers."""
        if self.threshold is not None:
            return Routed(Threshold(parts[0], self.threshold, self.veto), parts)
        return Routed(parts[0], parts[1:])


def is_router(spec: str | None) -> bool:
    """Whether ``--model`` names a router's file."""
    return spec is not None and Path(spec).suffix == ".toml"


def read_router(path: str | Path) -> RouterFile:
    """Read a router's file. A model that lies beside the file, as a path from there, is found there."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as a router: {error}.") from error
    unknown = sorted(table.keys() - {"selector", "threshold", "veto", "expert"})
    experts, selector, threshold = table.get("expert"), table.get("selector"), table.get("threshold")
    one = (selector is None) != (threshold is None) and not (selector is not None and "veto" in table)
    if unknown or not one or not isinstance(experts, list) or len(experts) < 2:
        raise InvalidInput(f"{path} is not a router, since {_missing(table, unknown)}: {EXAMPLE}.")
    return RouterFile(
        None if selector is None else _part(path, "selector", selector),
        tuple(_part(path, f"expert {k}", expert) for k, expert in enumerate(experts)),
        threshold,
        table.get("veto", 0.0),
    )


def refuse_calls(path: str | Path) -> None:
    """Refuse a router that a run, not the user, names, if a part of it says to make a call."""
    for part in read_router(path).parts:
        refuse_call(part["model"])


def _missing(table: Mapping[str, Any], unknown: Sequence[str]) -> str:
    """Why a table is not that of a router."""
    if unknown:
        return f"it has {', '.join(unknown)}"
    if "selector" in table and "threshold" in table:
        return "it has both a selector and a threshold"
    if "selector" in table and "veto" in table:
        return "it has a veto, which goes with a threshold, and a selector"
    experts = table.get("expert")
    if isinstance(experts, list) and len(experts) == 1:
        return "it has one expert"
    if "veto" in table and "threshold" not in table:
        return "it has a veto without a threshold"
    return "a table is missing"


def _part(path: Path, name: str, table: Any) -> Mapping[str, Any]:
    if not isinstance(table, dict) or not isinstance(table.get("model"), str):
        raise InvalidInput(f"{path}: {name} must be a table with a model.")
    unknown = sorted(table.keys() - set(SETTINGS))
    if unknown:
        raise InvalidInput(f"{path}: {name} has {', '.join(unknown)}; its settings are {', '.join(SETTINGS)}.")
    folder = path.parent.resolve()
    weights = {"weights": found(str(table["weights"]), folder)} if "weights" in table else {}
    return {**table, "model": found_model(table["model"], folder), **weights}
