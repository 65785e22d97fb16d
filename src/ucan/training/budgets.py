"""The budget in the settings: the changes that the noise should protect against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ucan.budget import Budget
from ucan.errors import InvalidInput
from ucan.generators.shape import moments_of

BUDGET_KEYS = ("limit", "limits", "spread")


def check_budget(table: dict[str, Any] | None) -> None:
    """Refuse a budget table that does not have exactly one key."""
    if table is not None and (len(table) != 1 or not set(table) <= set(BUDGET_KEYS)):
        raise InvalidInput(f"budget must be a table with one of {', '.join(BUDGET_KEYS)}, got {table!r}.")
    spread = (table or {}).get("spread", 1.0)
    if not isinstance(spread, int | float) or isinstance(spread, bool):
        raise InvalidInput(f"spread in [budget] must be a number of standard deviations, got {spread!r}.")


def build_budget(table: dict[str, Any], shape: Sequence[int], images: torch.Tensor | None) -> Budget:
    """``limit``, one number for all; ``limits``, nested lists; or ``spread``, a number of standard deviations of each
    coordinate.

    The last needs the training inputs; without them it is a placeholder of ones.
    """
    if "spread" not in table:
        return Budget.of(table.get("limit", table.get("limits")), shape)
    if images is None:
        return Budget.of(1.0, shape)
    return Budget.of(
        float(table["spread"]) * moments_of(images)[1], shape, name=f"{table['spread']:g} standard deviations"
    )
