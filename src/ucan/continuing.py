"""Add votes to inputs that have some: the same stream, the same claim, no vote drawn twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from ucan.certificate import Abstention, Certificate
from ucan.engine import Setup, device_name
from ucan.errors import InvalidInput
from ucan.evidence import Evidence
from ucan.generators import Generator
from ucan.plan import CertifyPlan
from ucan.sequential import AllVotes, Candidate, Selecting
from ucan.sidecar import input_hash
from ucan.smoothed import SmoothedClassifier
from ucan.votes import Stream


def certify_more(
    g: SmoothedClassifier, begun: Iterable[tuple[torch.Tensor, Evidence]], plan: CertifyPlan
) -> Iterator[tuple[int, Certificate | Abstention]]:
    """Yield (number, outcome) for inputs (1, *event) that already have votes: their streams continue, up to ``plan.n`` votes.

    The bound that holds at every number of votes ("anytime") allows this, and is the only one that does: what was
    certified with fewer votes and what is certified now are all true at once with probability at least 1 − α. The class
    stays the one that was chosen first. An input that the plan's stopping rule has decided is left out.
    """
    stop, known = plan.stop or AllVotes(), list[Evidence]()
    if stop.bound != "anytime":
        raise InvalidInput(
            f'votes go on by the anytime bound alone, and the rule {stop} has another, {stop.bound}: give bound="anytime".'
        )

    def inputs() -> Iterator[torch.Tensor]:
        for x, evidence in begun:
            known.append(evidence)
            yield x

    held = g.engine.held(inputs(), plan)
    for first in held:  # none, or the first, to learn how votes are counted
        setup = first[0]
        candidates = (_candidate(g, known[i], i, x, setup, plan, M) for _, i, x, M in itertools.chain([first], held))
        unsettled = (
            one
            for one in candidates
            if one.drawn < plan.n and not stop.settled(one.hits, one.drawn, plan.n, plan.level, one.radius)
        )
        for candidate in g.engine.settled(setup, unsettled, stop, plan):
            yield candidate.index, g.concluded(setup, candidate, plan)


def can_go_on(evidence: Evidence) -> bool:
    """Whether votes can be added to those of an outcome: only their bound allows it, and the choice of the class is kept."""
    return evidence.bound == "anytime" and evidence.selection is not None


def _candidate(
    g: SmoothedClassifier,
    evidence: Evidence,
    i: int,
    x: torch.Tensor,
    setup: Setup,
    plan: CertifyPlan,
    M: Generator,
) -> Candidate:
    """An input with the votes that it has; refused where more would not be of the same stream and the same claim."""
    if not can_go_on(evidence):
        raise InvalidInput("only what was certified by the anytime bound, or with a stopping rule, can be continued.")
    stream, block = Stream(plan.seed, input_hash(x), "estimate"), setup.counter.block
    same = {
        "another input or another seed": evidence.streams.get("estimate") == stream.key and evidence.is_about(x),
        "a model without an identity (give it a model_id, and certify again)": evidence.model is not None,
        "another model": evidence.model == setup.model,
        "another law": evidence.law == g.law,
        "another noise": not evidence.noise.differences(setup.noise),
        "another α": evidence.alpha == plan.level,
        "another arithmetic": evidence.arithmetic == g.engine.arithmetic(x),
        "another precision": evidence.precision == setup.backend.precision,
        "blocks of another size": evidence.block == block,
        "another device, which draws other noise": evidence.device == device_name(x.device),
    }
    wrong = [what for what, alike in same.items() if not alike]
    if wrong:
        raise InvalidInput(f"input {i} cannot be continued from its votes: they are from {', '.join(wrong)}.")
    assert evidence.selection is not None, "can_go_on says so"
    chosen = Selecting.done(replace(stream, phase="select"), evidence.selection, evidence.n0)
    c_A = int(chosen.tally[:-1].argmax())
    candidate = Candidate(i, x, M, stream, c_A, g.decided(M, x, plan), chosen=chosen)
    candidate.goes_on(torch.tensor([*evidence.counts, evidence.invalid]), evidence.n)
    return candidate
