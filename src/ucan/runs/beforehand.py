"""What is fixed before the first vote of a run: does each record keep to it?

The number of votes, the rule that ends them, the bound and the seed may not be chosen for an input after its votes are seen:
the best of several choices is false more often than α. So the config states them, and they are those of every record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ucan.evidence import is_first_version
from ucan.plan import CertifyPlan
from ucan.runs.config import RunConfig, Sampling
from ucan.seating import EXACT
from ucan.stopping import AtRadii, Stop, leading
from ucan.votes import Stream

IN_PAIRS = ("paired", "joint")  # the bounds on votes in pairs
BY_A_LEVEL = ("binary", "two-class")  # of a router by a threshold: each expert's answer has a bound of its own
# A logarithm may be rounded otherwise elsewhere, and with it up to the next whole lead.
ROUNDING = 1e-9


def unstated(config: RunConfig) -> str:
    """The first setting of the votes that a config leaves open, in words; empty if none. An import has no votes."""
    sampling = config.sampling
    needed: dict[str, Any] = {"n": sampling.n, "n0": sampling.n0, "alpha": sampling.alpha}
    if config.kind != "recertify":  # which has a bound for votes in pairs, and another for others
        needed["bound"] = sampling.bound
    if sampling.seed_source != "random":  # a secret seed is not published
        needed["seed"] = sampling.seed
    missing = [] if config.is_imported else [key for key, value in needed.items() if value is None]
    return f"the config states no {missing[0]}: it could be another one for each input" if missing else ""


def chosen_afterwards(config: RunConfig, record: Mapping[str, Any]) -> Iterator[str]:
    """How a record differs from the config in what is fixed before the first vote."""
    certified, choice = record.get("kind") == "certificate", record.get("choice")
    registry = record.get("scope") == "registry"  # which may have had an answer from a run of other settings
    for evidence in evidences(record):
        yield from _other_rule(config.sampling, evidence, registry)
        yield from _other_number(config.sampling, evidence, choice is not None)
        if certified:  # votes that were cut off claim nothing
            yield from _other_bound(config, evidence, choice is not None and choice.get("kind") == "level")
            yield from _other_selection(config, evidence)
    if certified and choice is None:  # a router's experts have seeds of their own, which follow from the run's
        yield from _other_seed(config.sampling, record.get("evidence", {}), registry)


def evidences(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The evidence of a record, and of a router's that of its choice."""
    return [one.get("evidence", {}) for one in (record, record.get("choice")) if one is not None]


def _rule(sampling: Sampling) -> Stop | None:
    """The stopping rule, as the bound that was asked for has it."""
    rule = sampling.rule
    return rule.anytime() if rule is not None and sampling.bound == "anytime" else rule


def _other_rule(sampling: Sampling, evidence: Mapping[str, Any], registry: bool) -> Iterator[str]:
    """Another stopping rule than the config's, or none; version 0.1 did not record it."""
    found, either = evidence.get("stop"), sampling.stop is not None and evidence.get("stop") is not None
    if found != sampling.stop and (either or not (registry or is_first_version(evidence))):
        yield f"the config states stop {sampling.stop}, its record {found}"


def _other_number(sampling: Sampling, evidence: Mapping[str, Any], routed: bool) -> Iterator[str]:
    """Another number of votes than was planned; by a bound that holds at every number there may be fewer."""
    bound, n = evidence.get("bound"), sampling.n or 0
    # A record without a cap, as version 0.1 wrote them, says no more than how many votes there were.
    planned: Any = evidence.get("n") if evidence.get("cap") is None else evidence.get("cap")
    if routed and bound == EXACT:
        return  # each part counts all draws of its own noise
    if not planned <= n or (planned < n and not (sampling.can_grow or bound == "anytime")):  # NaN is no number
        yield f"the config states n {n}, its record {planned}"


def _other_bound(config: RunConfig, evidence: Mapping[str, Any], by_level: bool) -> Iterator[str]:
    """Another bound than that of the config, of its rule, or of the kind of run."""
    rule, found = _rule(config.sampling), evidence.get("bound")
    own = config.sampling.bound if rule is None else rule.bound
    allowed: tuple[str | None, ...] = (own,)
    if evidence.get("pairs") is not None:
        if config.kind != "recertify":
            yield "its votes are in pairs with those of another classifier, and the run was not recertified"
        own, allowed = "paired", IN_PAIRS
    elif config.kind == "recertify":
        own, allowed = CertifyPlan.bound, (CertifyPlan.bound,)
    elif by_level:
        allowed = BY_A_LEVEL
    elif rule is not None and is_first_version(evidence):
        allowed = ("anytime",)  # by which all its rules were certified
    if found not in allowed:
        yield f"the config states the bound {own}, its record {found}"


def _other_selection(config: RunConfig, evidence: Mapping[str, Any]) -> Iterator[str]:
    """Another number of votes that choose the class. Votes in pairs, and all draws of a noise, need no others."""
    n0, drawn = config.sampling.n0 or 0, evidence.get("n0") or 0
    if evidence.get("bound") == EXACT or evidence.get("pairs") is not None:
        return
    rule = None if is_first_version(evidence) else _rule(config.sampling)
    if rule is not None and drawn <= n0 and type(rule).lead is not Stop.lead:
        yield from _not_ended(rule, evidence, n0, drawn)
    elif drawn != n0 and not (config.kind == "recertify" and _as_before(config.sampling, drawn)):
        yield f"the config states n0 {n0}, its record {drawn}"


def _as_before(sampling: Sampling, drawn: int) -> bool:
    """Whether the first run may have had so many: there a rule may have ended them early, or all draws have chosen the class.

    This is not known here, but of a secret seed nobody can check anything that was chosen.
    """
    return sampling.seed_source == "random" and drawn <= max(sampling.n0 or 0, CertifyPlan.n0)


def _not_ended(rule: Stop, evidence: Mapping[str, Any], n0: int, drawn: int) -> Iterator[str]:
    """Votes that choose the class and end neither at n0 nor as soon as a class leads by as much as the rule asks for."""
    if type(rule).lead is not AtRadii.lead:
        return  # a rule of another package, whose lead depends on the input
    highest = max(evidence.get("thresholds") or (0.5,))
    leads = [leading(highest, evidence["alpha"] * (1 + by), n0) for by in (-ROUNDING, ROUNDING)]
    second, first = sorted([0, 0, *(evidence.get("selection") or ())])[-2:]
    ahead = first - second
    if ahead not in leads if drawn < n0 else ahead > max(leads):
        told = f"{drawn}, with a lead of {ahead} votes where the rule asks for {leads[0]}"
        yield f"the config states n0 {n0}, its record {told}"


def _other_seed(sampling: Sampling, evidence: Mapping[str, Any], registry: bool) -> Iterator[str]:
    """Another seed than the config's, streams of noise that do not follow from it, or neither seed nor streams."""
    seed, streams, pairs = evidence.get("seed"), evidence.get("streams") or {}, evidence.get("pairs") is not None
    phase = evidence.get("phase", "estimate")
    if phase != ("pairs" if pairs else "estimate"):  # else there would be many streams to choose from
        yield f"its votes are of the phase {phase}, which no run has"
    if sampling.seed is None or (registry and seed is None):
        return
    own = {each: Stream(sampling.number, str(evidence.get("input_hash")), each).key for each in streams}
    if (seed is not None and int(str(seed), 0) != sampling.number) or streams != own:
        yield "its votes have another seed than the config states"
    elif seed is None and phase not in streams and evidence.get("bound") != EXACT:
        yield "the config states a seed, and its record states neither a seed nor the key of its noise"
