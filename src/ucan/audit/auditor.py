"""The auditor: attack each certificate inside its region, and test what is found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch

from ucan.audit.attacks import chains
from ucan.audit.claims import Claim, claimed, share
from ucan.audit.decide import Decision
from ucan.audit.inputs import another_inside, covered_step
from ucan.audit.judge import Budget, Judge, check_factor
from ucan.audit.ledger import Ledger
from ucan.audit.stakes import Stake
from ucan.audit.stateful import Witness, copied
from ucan.audit.trials import MODES, Attempt, Case, Mode, attempts_on, case_of, frozen_at, promises
from ucan.certificate import Certificate
from ucan.errors import InvalidInput
from ucan.registry import Registry
from ucan.smoothed import SmoothedClassifier
from ucan.votes import forward_size

FACTORS = (0.5, 0.9, 0.999)


def modes_of(scope: str, asked: str) -> tuple[Mode, ...]:
    """The modes to audit. Noise that does not depend on the input is the same in both modes, so ``both`` then means live."""
    if asked not in (*MODES, "both"):
        raise InvalidInput(f"mode must be live, frozen or both, got {asked!r}.")
    if asked == "both":
        return ("live",) if scope == "pipeline" else MODES
    return tuple(mode for mode in MODES if mode == asked)


def audit(
    g: SmoothedClassifier,
    x: torch.Tensor,
    certificate: Claim,
    mode: Mode = "live",
    factors: Iterable[float] = FACTORS,
    budget: Budget | None = None,
    idx: int = 0,
    registry: Registry | None = None,
) -> Iterator[tuple[Attempt, torch.Tensor | None]]:
    """Attack one certificate of g about x (1, *event); an attempt for each factor, smallest first, with the δ tested.

    ``live`` attacks the deployed pipeline, whose generator sees x + δ; ``frozen`` keeps μ and Σ as computed at x. Every δ
    lies strictly inside the factor's share of the exact region, after rounding to the input's precision. A certificate
    that is broken at one factor is broken by the same δ at every larger one.

    For scope ``registry`` the deployed pipeline is g with its memory, ``registry``, of which a copy is attacked; frozen
    noise is held as it is at the enrolled input that the certificate came from.
    """
    factors, budget = sorted(factors), budget or Budget()
    if not all(0 < factor <= 1 for factor in factors):
        raise InvalidInput(f"a factor must lie in (0, 1], got {', '.join(map(str, factors))}.")
    with copied(registry) as memory:
        case = case_of(g, idx, x, certificate, memory)
        found: tuple[Attempt, torch.Tensor | None] | None = None
        for factor in factors:
            if found is None or not found[0].broken:
                (found,) = attempts_on(g, [case], mode, factor, budget, memory)
            else:
                found = inherited(found[0], factor), found[1]
            yield found


def attack(
    g: SmoothedClassifier,
    x: torch.Tensor,
    certificate: Claim,
    mode: Mode = "live",
    factor: float = 0.9,
    budget: Budget | None = None,
    idx: int = 0,
    registry: Registry | None = None,
) -> tuple[Attempt, torch.Tensor | None]:
    """One attack within ``factor`` of the region, with the δ tested; above 1 it may leave the region.

    Outside the region nothing is guaranteed: a changed answer is then not a break of the certificate, and not ``covered``.
    """
    check_factor(factor)
    with copied(registry) as memory:
        case = case_of(g, idx, x, certificate, memory)
        return attempts_on(g, [case], mode, factor, budget or Budget(), memory)[0]


def audit_all(
    g: SmoothedClassifier,
    cases: Iterable[tuple[int, torch.Tensor, Claim]],
    ledger: Ledger,
    mode: str = "both",
    factors: Iterable[float] = FACTORS,
    budget: Budget | None = None,
    on_attempt: Callable[[Attempt], None] | None = None,
    registry: Registry | None = None,
    part: str = "",
    alpha: float | None = None,
) -> list[Attempt]:
    """Attack many certificates (number, input, certificate); attempts in the ledger are not repeated.

    Exceptions are those of an older ledger that are made otherwise now: breaks that were not tested a second time, and
    attempts that tested the input itself although another one lies inside.

    Certificates are attacked side by side, as many as fill the device, at the smallest factor first; every attempt is in the
    ledger before the next ones start, a break with its input, its δ, and the state of the registry. ``part`` and ``alpha`` are
    of a router's certificates, as for ``Case``; g is then the classifier of that part.
    """
    factors, budget, attempts = sorted(factors), budget or Budget(), list[Attempt]()
    waiting = iter(cases)
    with copied(registry) as memory:
        for first in waiting:
            together = (
                1 if memory is not None else _side_by_side(first[1].numel(), g.f.device or first[1].device, budget)
            )
            group = [first, *itertools.islice(waiting, together - 1)]
            for each in MODES:
                members = [case for case in group if each in modes_of(case[2].scope, mode)]
                attempts += _audit_group(g, members, ledger, each, factors, budget, on_attempt, memory, part, alpha)
    return attempts


def _side_by_side(dim: int, device: torch.device, budget: Budget) -> int:
    """How many certificates to attack at once so that their copies fill the device."""
    return max(1, forward_size(dim, device) // (chains(budget.restarts) * budget.draws))


def _audit_group(
    g: SmoothedClassifier,
    members: list[tuple[int, torch.Tensor, Claim]],
    ledger: Ledger,
    mode: Mode,
    factors: list[float],
    budget: Budget,
    on_attempt: Callable[[Attempt], None] | None,
    memory: Registry | None,
    part: str,
    alpha: float | None,
) -> Iterator[Attempt]:
    """Attack some certificates in one mode, factor by factor."""
    known = {member[0]: _known(g, ledger, member, factors, mode, part) for member in members}
    made: dict[int, Case] = {}
    for factor in factors:
        todo = [m for m in members if factor not in known[m[0]] and factor < _smallest_broken(known[m[0]])]
        for idx, x, certificate in todo:
            made[idx] = made.get(idx) or replace(case_of(g, idx, x, certificate, memory), part=part, alpha=alpha)
        found = attempts_on(g, [made[idx] for idx, *_ in todo], mode, factor, budget, memory) if todo else []
        for attempt, delta in found:
            if attempt.broken and delta is not None:
                path = ledger.keep(attempt.to_dict(), made[attempt.idx].x, delta)
                if memory is not None and attempt.stateful:
                    memory.copy(path.with_suffix(".sqlite")).close()
            _finish(attempt, known[attempt.idx], ledger, on_attempt)
    for idx, *_ in members:
        mine = known[idx]
        smallest = _smallest_broken(mine)
        for f in factors:  # a break at a smaller factor is also a break here
            if f > smallest and (f not in mine or mine[f].same_as != smallest):
                _finish(inherited(mine[smallest], f), mine, ledger, None if f in mine else on_attempt)
        yield from (mine[f] for f in factors)


def _known(
    g: SmoothedClassifier,
    ledger: Ledger,
    member: tuple[int, torch.Tensor, Claim],
    factors: Iterable[float],
    mode: Mode,
    part: str,
) -> dict[float, Attempt]:
    """The finished attempts on this certificate; attempts on another certificate are refused.

    Those of an older ledger that the auditor would make otherwise now are not finished.
    """
    idx, x, certificate = member
    known = {f: Attempt.of(record) for f in factors if (record := ledger.get(idx, f, mode, part)) is not None}
    claim = Stake(certificate, True).c_A, certificate.size, certificate.scope, certificate.evidence.input_hash
    if any((a.prediction, a.radius, a.scope, a.claim) != claim for a in known.values()):
        raise InvalidInput(
            f"{ledger.folder} holds attacks on another certificate of input {idx}: give another folder with --out."
        )
    # Older attempts tested a counted claim by random votes, and allowed for α: such a claim is attacked again.
    counted = Stake(certificate, True).counted
    known = {f: attempt for f, attempt in known.items() if not attempt.tested_once and not (counted and attempt.alpha)}
    # And they tested x itself where the search led to no other input, though one may lie inside.
    (inside, limit), step = claimed(certificate), covered_step(g, certificate)
    return {
        f: attempt
        for f, attempt in known.items()
        if attempt.elsewhere or not another_inside(x, inside, f * limit, step)
    }


def _smallest_broken(known: dict[float, Attempt]) -> float:
    return min((factor for factor, attempt in known.items() if attempt.broken), default=math.inf)


def _finish(
    attempt: Attempt, known: dict[float, Attempt], ledger: Ledger, on_attempt: Callable[[Attempt], None] | None
) -> None:
    ledger.add(attempt.to_dict())
    known[attempt.factor] = attempt
    if on_attempt is not None:
        on_attempt(attempt)


def replay(
    g: SmoothedClassifier,
    x: torch.Tensor,
    certificate: Claim,
    delta: torch.Tensor,
    mode: Mode = "live",
    budget: Budget | None = None,
    registry: Registry | None = None,
) -> Decision:
    """Test one δ (1, *event) again: whether it is strictly inside the region, and what fresh votes there decide.

    With the budget and the ``votes_seed`` of a stored break as the seed, the votes are exactly those that broke it.
    """
    budget = budget or Budget()
    x = x.to(g.f.device or x.device)
    if not bool(certificate.region.contains(delta)[0]) and not share(certificate, delta) < 1:
        raise InvalidInput("this δ is not inside the certificate's region, so it refutes nothing.")
    with copied(registry) as memory, g.engine.running(certificate.evidence.backend):
        origin = case_of(g, 0, x, certificate, memory).origin
        if mode == "live" and memory is not None and isinstance(certificate, Certificate):
            witness = Witness(g, memory, x, certificate, 1.0, budget)
            witness.look(delta.to(x.device))
            return witness.verdict()[0]
        attacked = g if mode == "live" else frozen_at(g, origin)
        judge = Judge(attacked, x, certificate, 1.0, budget, budget.seed, promises(certificate, mode))
        return judge.at(delta.to(x.device))


def inherited(attempt: Attempt, factor: float) -> Attempt:
    """The same break, recorded at a larger factor."""
    same = attempt.factor if attempt.same_as is None else attempt.same_as
    return replace(attempt, factor=factor, same_as=same)
