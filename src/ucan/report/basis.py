"""What a run's numbers depend on: which inputs, with which labels, and how long each was sampled.

Two runs can be compared where these agree; where they do not, tables and sentences say so.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ucan.arithmetic import step_name, step_of
from ucan.choices import norm_name
from ucan.errors import UcanError
from ucan.results.metrics import Measure
from ucan.runs.config import DataRef, RunConfig
from ucan.stopping import AtRadii, Stop, Within


def same_inputs(one: Hashable | None, other: Hashable | None) -> bool:
    """True unless two runs are known to use different inputs."""
    return one is None or other is None or one == other


def inputs_in_words(data: DataRef, count: int) -> str:
    """The number of inputs, and the data they are from."""
    how = [] if data.split is None else [data.split]
    how += [f"one in {data.skip}"] if (data.skip or 1) > 1 else []
    how += [] if data.size is None else [f"size {data.size}"]
    detail = f" ({', '.join(how)})" if how else ""
    return f"{count:,} of {data.source or 'unknown data'}{detail}"


def decided(config: RunConfig, at: float, by: Measure = "radius") -> bool:
    """Whether the share at this size is final: a stopping rule settles only the radii it names."""
    rule = config.sampling.rule
    return rule is None or (isinstance(rule, AtRadii) and by == "radius" and at in rule.radii)


def stopped_in_words(config: RunConfig, by: Measure = "radius") -> str:
    """How a run's stopping rule affects its numbers; empty if it has none."""
    return rule_in_words(config.sampling.rule, config.claim.budget_hash is not None, by)


def rule_in_words(rule: Stop | None, budget: bool, by: Measure = "radius") -> str:
    """How a stopping rule affects the numbers, which may be factors of a budget; empty if there is none."""
    if rule is None:
        return ""
    if isinstance(rule, Within):
        return (
            f"sampling stopped within {rule} of what more samples could give by the same bound: these are lower bounds"
        )
    if not isinstance(rule, AtRadii):  # a rule from outside
        return f"sampling stopped by the rule {rule}: these are lower bounds"
    named = [f"{r:g}" for r in rule.radii] + [f"{norm_name(norm)} {r:g}" for norm, r in rule.others]
    *others, last = named
    one, some = ("radius ", "the radii ") if not budget else ("ε = ", "ε = ")
    what = f"{some}{', '.join(others)} and {last} were" if others else f"{one}{last} was"
    where = {"radius": "elsewhere", "alm": "by ALM", "sigma": "in units of Σ"}[by]
    return f"sampling stopped once {what} decided, by a bound a little below that of a fixed n: {where} these are lower bounds"


def idle(config: RunConfig, size: float) -> bool:
    """Whether a guarantee of this size covers no change at all: it is for whole steps, and smaller than one step."""
    limit = 1.0 if config.claim.budget is None else config.claim.budget
    if isinstance(limit, str) or size <= 0:  # the config does not hold the largest entry of a map
        return False
    try:
        step = step_of(config.sampling.arithmetic)
    except UcanError:  # one step per entry
        return False
    return step is not None and size * limit <= step


def idle_in_words(config: RunConfig, sizes: Sequence[float]) -> str:
    """At which of these sizes a guarantee for whole steps covers no change; empty if each covers some."""
    empty = [f"{size:g}" for size in sizes if idle(config, size)]
    if not empty:
        return ""
    step = step_name(config.sampling.arithmetic)
    return f"its guarantee is for changes by whole steps of {step}, and no such change is below {', '.join(empty)}"
