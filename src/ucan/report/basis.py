"""On what a run's numbers rest: which inputs, with which labels, and how long each was sampled.

Two runs compare where these agree; where they do not, tables and sentences say so.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ucan.arithmetic import REAL, step_name, step_of
from ucan.errors import UcanError
from ucan.results.metrics import Measure
from ucan.stopping import AtRadii, parse_stop


def inputs_of(config: dict[str, Any], count: int) -> Hashable | None:
    """What tells the inputs of a run from others; None where nobody knows, as of an imported file."""
    if "data_hash" not in config:
        return None
    return (*(config.get(name) for name in ("data_hash", "size", "channels", "skip")), count)


def same_inputs(one: Hashable | None, other: Hashable | None) -> bool:
    """Whether nothing speaks against it that two runs are on the same inputs."""
    return one is None or other is None or one == other


def inputs_in_words(config: dict[str, Any], count: int) -> str:
    """How many inputs, of what."""
    how = [str(config["split"])] if "split" in config else []
    how += [f"one in {config['skip']}"] if config.get("skip", 1) > 1 else []
    how += [f"size {config['size']}"] if "size" in config else []
    detail = f" ({', '.join(how)})" if how else ""
    return f"{count:,} of {config.get('data', 'unknown data')}{detail}"


def decided(config: dict[str, Any], at: float, by: Measure = "radius") -> bool:
    """Whether the share at this size is about what all samples would give: a stopping rule decides only the radii it names."""
    rule = parse_stop(config.get("stop"))
    return rule is None or (isinstance(rule, AtRadii) and by == "radius" and at in rule.radii)


def stopped_in_words(config: dict[str, Any], by: Measure = "radius") -> str:
    """What a stopping rule makes of the numbers; nothing where there was none."""
    rule = parse_stop(config.get("stop"))
    if rule is None:
        return ""
    if not isinstance(rule, AtRadii):
        return (
            f"sampling stopped within {rule} of what more samples could give by the same bound: these are lower bounds"
        )
    *others, last = (f"{r:g}" for r in rule.radii)
    one, some = ("radius ", "the radii ") if config.get("budget_hash") is None else ("ε = ", "ε = ")
    what = f"{some}{', '.join(others)} and {last} were" if others else f"{one}{last} was"
    where = "elsewhere" if by == "radius" else "by ALM"
    return f"sampling stopped once {what} decided, by a bound a little below that of a fixed n: {where} these are lower bounds"


def idle(config: dict[str, Any], size: float) -> bool:
    """Whether a guarantee of this size allows no change at all: it is for whole steps, and smaller than one."""
    limit = config.get("budget", 1.0)
    if not isinstance(limit, int | float) or size <= 0:  # of a map of limits the config does not tell the largest
        return False
    try:
        step = step_of(str(config.get("arithmetic", REAL)))
    except UcanError:  # one step per entry
        return False
    return step is not None and size * limit <= step


def idle_in_words(config: dict[str, Any], sizes: Sequence[float]) -> str:
    """At which of these sizes a guarantee for whole steps allows no change; nothing where it allows some."""
    empty = [f"{size:g}" for size in sizes if idle(config, size)]
    if not empty:
        return ""
    step = step_name(str(config.get("arithmetic", REAL)))
    return f"its guarantee is for changes by whole steps of {step}, and no such change is below {', '.join(empty)}"


def unlabelled_in_words(known: np.ndarray, abstained: np.ndarray) -> str:
    """How many inputs have no label, and what is left to say of them; nothing where all have one."""
    count, missing = len(known), int((~known).sum())
    if not missing:
        return ""
    if missing < count:
        return (
            f"the labels of {missing:,} of {count:,} inputs are unknown: shares are over the other {count - missing:,}"
        )
    certified = count - int(abstained.sum())
    return f"the labels are unknown: {certified:,} of {count:,} inputs have a certificate, right or wrong"
