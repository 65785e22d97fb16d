"""Replay the answer to another question than one class: draw its own noise again, and compare what follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ucan.errors import ModelError, UcanError
from ucan.plan import CertifyPlan
from ucan.questions.looks import Look, question_stop
from ucan.questions.record import Answer
from ucan.questions.smoothed import Smoothed
from ucan.replay import FEW, LARGEST_BLOCK, ROUNDED, WAYS, moved_votes, obstacle
from ucan.verify import Check
from ucan.votes import replayed_size

NAME = "replay"
# What rounding may change a number of a model by, relative to its size and to how much it spreads.
ROOM = 1e-5


def replayed(answer: Answer, g: Smoothed, x: torch.Tensor) -> list[Check]:
    """Whether an answer's own noise leads to the same claim again; no check if its seed is secret.

    As with a certificate, some votes may fall elsewhere by rounding, if those drawn here support the claim as well. Nothing is
    confirmed where this machine draws other noise from the same seed, or cannot run the model as it was run.
    """
    evidence = answer.evidence
    if evidence.seed is None:
        return []
    if evidence.block > LARGEST_BLOCK:
        return [Check(NAME, False, f"no noise is drawn in blocks of {evidence.block:,} copies, as this answer states")]
    if other := obstacle(evidence, x):
        return [_not_here(other)]
    plan = _plan(answer, x)
    inputs = g.check_inputs(x, plan.norm)
    with g.engine.running(evidence.backend):
        try:
            backend = g.engine.setup(inputs[0], plan).backend.name
        except UcanError as error:
            return [_not_here(f"the model ran {evidence.backend} then, which it does not here: {error}")]
        try:
            ((_, found),) = g.ask_each(inputs, plan, answer.question())
            if _same(found, answer):
                return [Check(NAME, True, "its own noise, drawn again, leads to this answer")]
            return [_by_rounding(answer, g, inputs, plan, backend)]
        except ModelError as error:  # a number outside the stated range
            return [Check(NAME, False, f"its own noise, drawn again, leads to no answer: {error}")]


def _not_here(reason: str) -> Check:
    """Nothing wrong was found, and nothing right: whoever wrote the file could see to it."""
    return Check(NAME, True, f"not replayable here: {reason}", False)


def _plan(answer: Answer, x: torch.Tensor) -> CertifyPlan:
    """The settings that it was found with."""
    evidence = answer.evidence
    return CertifyPlan(
        max(1, evidence.n0),
        evidence.n if evidence.cap is None else evidence.cap,
        min(1 - 1e-12, evidence.alpha * evidence.family),
        answer.radius_norm,
        evidence.seed or 0,
        replayed_size(evidence.batch_size, x.numel(), x.device),
        stop=question_stop(evidence.stop),
        precision=evidence.precision if evidence.copy else None,
        family=evidence.family,
        block=evidence.block,
    )


def _same(found: Any, answer: Answer) -> bool:
    """Whether two answers state the same, from the same votes; of an older file, which holds none, by the rest."""
    if not isinstance(found, type(answer)):
        return False
    if not answer.complete:
        absent: dict[str, Any] = dict.fromkeys(answer.votes)
        found = replace(found, **absent)
    mine, theirs = ((e.counts, e.invalid, e.selection, e.n, e.bound) for e in (found.evidence, answer.evidence))
    return mine == theirs and found.content(None) == answer.content(None)


def _by_rounding(answer: Answer, g: Smoothed, inputs: list[torch.Tensor], plan: CertifyPlan, backend: str) -> Check:
    """What the votes drawn here say, where they are not all the answer's: as many as it rests on, whenever a rule would end."""
    evidence, question = answer.evidence, answer.question()
    other = Check(NAME, False, "its own noise, drawn again, does not lead to this answer")
    if not answer.complete:  # an older file: there are no votes to compare
        return other
    phases = {**({"select": plan.n0} if question.selects else {}), "estimate": evidence.n}
    ((*_, kept),) = g.engine.counted(inputs, replace(plan, n=evidence.n, stop=None), phases)
    drawn, loose = (answer.redrawn(kept[0], kept[-1], room) for room in (0.0, ROOM))
    moved, turned = answer.moved(loose), moved_votes(drawn.evidence.selection, evidence.selection)
    if moved > max(1, ROUNDED * evidence.n) or turned > max(FEW, ROUNDED * evidence.n0):
        return other
    look = Look.at(evidence.n, evidence.looks, evidence.alpha)
    otherwise = evidence.backend != backend and evidence.backend in WAYS
    ways = f"rounding (the model ran {evidence.backend} then and {backend} here)" if otherwise else "rounding"
    fell = f"its own noise, drawn again, leads to this answer but for {moved:,} of {evidence.n:,} votes and {ways}"
    if drawn.bounded(look):
        return Check(NAME, True, f"{fell}; the votes drawn here support the claim as well")
    # Ends are numbers that the model gave: its last digit decides whether a number is beyond its own end. And votes are counted
    # until they just suffice, so that one that another backend rounds otherwise can be one too few.
    if loose.bounded(look) or (otherwise and turned <= max(1, ROUNDED * evidence.n0)):
        return Check(NAME, True, f"{fell}, which decides whether the claim follows", False)
    return Check(NAME, False, f"{fell}; the votes drawn here do not support the claim")
