"""The auditor: attack each certificate inside its own region, and judge what is found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from ucan.audit.attacks import Aim, black_box_attack, chains, gradient_attack, has_gradient
from ucan.audit.balls import Ball
from ucan.audit.decide import Decision
from ucan.audit.judge import Budget, Judge, derived_seed
from ucan.audit.ledger import Ledger
from ucan.audit.stateful import Witness, copied, enrolled
from ucan.backends import PRECISIONS
from ucan.certificate import Certificate
from ucan.errors import InvalidInput
from ucan.fingerprint import weights_hash
from ucan.registry import Registry
from ucan.scales import Scalar, Scale
from ucan.sidecar import input_hash
from ucan.smoothed import SmoothedClassifier
from ucan.verify import same_noise
from ucan.votes import Stream, forward_size

Mode = Literal["live", "frozen"]
MODES: tuple[Mode, ...] = ("live", "frozen")
FACTORS = (0.5, 0.9, 0.999)
# A break is certified again with ten times the samples, up to this many.
RECERTIFY, MOST = 10, 1_000_000
STATEFUL = "stateful "  # what the name of an attack on a classifier with a memory begins with


@dataclass(frozen=True)
class Attempt:
    """One certificate attacked inside ``factor`` of its region, in one mode, and what came of it.

    ``size`` is ‖Σ⁻¹δ‖ₚ/R of the point that was tested. ``covered``: the guarantee speaks of this mode and of this point,
    so a break matters; ``bug``: it broke, and certified again with a fresh seed and ten times the samples it still claims
    that point.
    ``same_as`` names the smaller factor whose δ broke this one as well. Seeds are those of the attack and of the votes.
    ``claim`` is the hash of the input that the evidence is about: certificates that share one stand or fall together.
    For a live attack on scope ``registry`` there are no votes: ``hits`` of ``total`` is 0 or 1 of 1, what its memory says.
    """

    idx: int
    factor: float
    mode: Mode
    scope: str
    covered: bool
    prediction: int
    radius: float
    alpha: float
    broken: bool
    answer: int
    hits: int
    total: int
    p_value: float
    size: float
    attack: str
    seed: int
    votes_seed: int
    same_as: float | None = None
    recertified: float | None = None
    bug: bool = False
    claim: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def modes_of(scope: str, asked: str) -> tuple[Mode, ...]:
    """The modes to audit. Noise that does not look at its input is the same in both, so ``both`` then means live."""
    if asked not in (*MODES, "both"):
        raise InvalidInput(f"mode must be live, frozen or both, got {asked!r}.")
    if asked == "both":
        return ("live",) if scope == "pipeline" else MODES
    return tuple(mode for mode in MODES if mode == asked)


def audit(
    g: SmoothedClassifier,
    x: torch.Tensor,
    certificate: Certificate,
    mode: Mode = "live",
    factors: Iterable[float] = FACTORS,
    budget: Budget | None = None,
    idx: int = 0,
    registry: Registry | None = None,
) -> Iterator[tuple[Attempt, torch.Tensor | None]]:
    """Attack one certificate of g about x (1, *event); an attempt for each factor, smallest first, with the δ tested.

    ``live`` attacks the deployed pipeline, whose generator sees x + δ; ``frozen`` holds μ and Σ as they are at x. Every δ
    lies strictly inside the factor's share of the exact region, after rounding to the input's precision. A certificate
    that is broken at one factor is broken by the same δ at every larger one.

    For scope ``registry`` the deployed pipeline is g with its memory, ``registry``, of which a copy is attacked; frozen
    noise is held as it is at the enrolled input that the certificate came from.
    """
    factors, budget = sorted(factors), budget or Budget()
    if not all(0 < factor <= 1 for factor in factors):
        raise InvalidInput(f"a factor must lie in (0, 1], got {', '.join(map(str, factors))}.")
    with copied(registry) as memory:
        case = _case(g, idx, x, certificate, memory)
        found: tuple[Attempt, torch.Tensor | None] | None = None
        for factor in factors:
            if found is None or not found[0].broken:
                (found,) = _attempts(g, [case], mode, factor, budget, memory)
            else:
                found = inherited(found[0], factor), found[1]
            yield found


def attack(
    g: SmoothedClassifier,
    x: torch.Tensor,
    certificate: Certificate,
    mode: Mode = "live",
    factor: float = 0.9,
    budget: Budget | None = None,
    idx: int = 0,
    registry: Registry | None = None,
) -> tuple[Attempt, torch.Tensor | None]:
    """One attack within ``factor`` of the region, with the δ tested; above 1 it may leave the region.

    Out there nothing is promised: a change of the answer is then no break of the certificate, and not ``covered``.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise InvalidInput(f"a factor must be a finite number above 0, got {factor}.")
    with copied(registry) as memory:
        case = _case(g, idx, x, certificate, memory)
        return _attempts(g, [case], mode, factor, budget or Budget(), memory)[0]


def audit_all(
    g: SmoothedClassifier,
    cases: Iterable[tuple[int, torch.Tensor, Certificate]],
    ledger: Ledger,
    mode: str = "both",
    factors: Iterable[float] = FACTORS,
    budget: Budget | None = None,
    on_attempt: Callable[[Attempt], None] | None = None,
    registry: Registry | None = None,
) -> list[Attempt]:
    """Attack many certificates (number, input, certificate); what the ledger has already is not done again.

    Certificates are attacked side by side, as many as fill the device, at the smallest factor first; every attempt is in
    the ledger before the next ones begin, a break with its input, its δ, and the registry as it was.
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
                attempts += _audit_group(g, members, ledger, each, factors, budget, on_attempt, memory)
    return attempts


def _side_by_side(dim: int, device: torch.device, budget: Budget) -> int:
    """How many certificates it takes for the copies of an attack to fill the device."""
    return max(1, forward_size(dim, device) // (chains(budget.restarts) * budget.draws))


def _audit_group(
    g: SmoothedClassifier,
    members: list[tuple[int, torch.Tensor, Certificate]],
    ledger: Ledger,
    mode: Mode,
    factors: list[float],
    budget: Budget,
    on_attempt: Callable[[Attempt], None] | None,
    memory: Registry | None,
) -> Iterator[Attempt]:
    """Attack some certificates in one mode, factor by factor."""
    known = {idx: _known(ledger, idx, factors, mode, certificate) for idx, _, certificate in members}
    made: dict[int, Case] = {}
    for factor in factors:
        todo = [m for m in members if factor not in known[m[0]] and factor < _smallest_broken(known[m[0]])]
        for idx, x, certificate in todo:
            made[idx] = made.get(idx) or _case(g, idx, x, certificate, memory)
        found = _attempts(g, [made[idx] for idx, *_ in todo], mode, factor, budget, memory) if todo else []
        for attempt, delta in found:
            if attempt.broken and delta is not None:
                path = ledger.keep(attempt.to_dict(), made[attempt.idx].x, delta)
                if memory is not None and attempt.attack.startswith(STATEFUL):
                    memory.copy(path.with_suffix(".sqlite")).close()
            _finish(attempt, known[attempt.idx], ledger, on_attempt)
    for idx, *_ in members:
        mine = known[idx]
        smallest = _smallest_broken(mine)
        for f in factors:  # whatever was found there before, the smaller break holds there as well
            if f > smallest and (f not in mine or mine[f].same_as != smallest):
                _finish(inherited(mine[smallest], f), mine, ledger, None if f in mine else on_attempt)
        yield from (mine[f] for f in factors)


def _known(
    ledger: Ledger, idx: int, factors: Iterable[float], mode: Mode, certificate: Certificate
) -> dict[float, Attempt]:
    """The attempts on this certificate that are finished; those on another one are not mistaken for them."""
    known = {f: Attempt(**record) for f in factors if (record := ledger.get(idx, f, mode)) is not None}
    claim = certificate.prediction, certificate.radius, certificate.scope, certificate.evidence.input_hash
    if any((a.prediction, a.radius, a.scope, a.claim) != claim for a in known.values()):
        raise InvalidInput(
            f"{ledger.folder} holds attacks on another certificate of input {idx}: name another folder with --out."
        )
    return known


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
    certificate: Certificate,
    delta: torch.Tensor,
    mode: Mode = "live",
    budget: Budget | None = None,
    registry: Registry | None = None,
) -> Decision:
    """Put one δ (1, *event) to the test again: is it strictly inside the region, and what do fresh votes there say?

    With the budget and the ``votes_seed`` of a kept break as its seed, the votes are those that broke it, one by one.
    """
    budget = budget or Budget()
    x = x.to(g.f.device or x.device)
    if not bool(certificate.region.contains(delta)[0]):
        raise InvalidInput("this δ does not lie in the certificate's region: it refutes nothing.")
    with copied(registry) as memory:
        origin = _case(g, 0, x, certificate, memory).origin
        judge: Judge | Witness
        if mode == "live" and memory is not None:
            judge = Witness(g, memory, x, certificate, 1.0, budget)
        else:
            judge = Judge(g if mode == "live" else frozen_at(g, origin), x, certificate, 1.0, budget, budget.seed)
        judge.look(delta.to(x.device))
        return judge.verdict()[0]


def inherited(attempt: Attempt, factor: float) -> Attempt:
    """The same break, seen from a larger factor."""
    same = attempt.factor if attempt.same_as is None else attempt.same_as
    return Attempt(**{**attempt.to_dict(), "factor": factor, "same_as": same})


# --- attempts ---


@dataclass(frozen=True)
class Case:
    """One certificate to attack. ``origin`` is the input its evidence is about: x, or the enrolled one whose region has x."""

    idx: int
    x: torch.Tensor
    origin: torch.Tensor
    certificate: Certificate


class _Trial:
    """One attempt on one case: who is attacked, who judges, and the search's own randomness."""

    def __init__(
        self, g: SmoothedClassifier, case: Case, mode: Mode, factor: float, budget: Budget, memory: Registry | None
    ) -> None:
        self.g, self.case, self.mode, self.factor, self.budget = g, case, mode, factor, budget
        self.seed, self.votes_seed = (
            derived_seed(budget.seed, case.idx, factor, mode, what) for what in ("attack", "votes")
        )
        self.attacked = g if mode == "live" else frozen_at(g, case.origin)
        self.stateful = mode == "live" and memory is not None
        self.judge: Judge | Witness
        if mode == "live" and memory is not None:
            self.judge = Witness(g, memory, case.x, case.certificate, factor, budget)
        else:
            self.judge = Judge(self.attacked, case.x, case.certificate, factor, budget, self.votes_seed)
        self.rng = Stream(self.seed, input_hash(case.x), "attack").block(0, case.x.device)

    def aims(self) -> list[Aim]:
        """The whole region, and the ball of the requested norm in it where that is another one."""
        x, certificate, region = self.case.x, self.case.certificate, self.case.certificate.region
        balls = [Ball(_on(region.scale, x.device), region.norm, self.factor * region.radius, region.shape)]
        if certificate.norm is not None and certificate.norm != region.norm:
            balls.append(Ball(Scalar(1.0), certificate.norm, self.factor * certificate.radius, region.shape))
        pair, judge = certificate.p_upper is not None, self.judge
        return [Aim(self.attacked, x, certificate.prediction, pair, ball, self.rng, judge.enough) for ball in balls]

    def finish(self, attack: str) -> tuple[Attempt, torch.Tensor | None]:
        """The verdict; a break where the guarantee holds is certified again."""
        case, certificate = self.case, self.case.certificate
        if isinstance(self.judge, Witness):
            self.judge.crowd()
        decision, delta = self.judge.verdict()
        size = 0.0 if delta is None else float(certificate.region.size(delta)[0]) / certificate.region.radius
        covered = (certificate.scope != "frozen" or self.mode == "frozen") and size < 1
        again = None
        if decision.broken and covered and not self.stateful:
            again = _recertify(self.g, case.origin, certificate, self.budget, case.idx)
        stays = (
            again is not None
            and delta is not None
            and bool(again.region.contains(case.x.double() + delta.to(case.x.device) - case.origin.double())[0])
        )
        attempt = Attempt(
            case.idx,
            self.factor,
            self.mode,
            certificate.scope,
            covered,
            certificate.prediction,
            certificate.radius,
            certificate.evidence.alpha,
            **asdict(decision),
            size=size,
            attack=STATEFUL + attack if self.stateful else attack,
            seed=self.seed,
            votes_seed=self.votes_seed,
            recertified=None if again is None else again.radius,
            # A memory is not a matter of chance: if it does not keep to its answer, α is no excuse.
            bug=(stays and again is not None and again.prediction == certificate.prediction)
            or (self.stateful and covered and decision.broken),
            claim=certificate.evidence.input_hash,
        )
        return attempt, delta


def _attempts(
    g: SmoothedClassifier, cases: Sequence[Case], mode: Mode, factor: float, budget: Budget, memory: Registry | None
) -> list[tuple[Attempt, torch.Tensor | None]]:
    """An attempt on each of the cases, side by side; every judge is shown all its candidates."""
    trials = [_Trial(g, case, mode, factor, budget, memory) for case in cases]
    first = trials[0]
    name = "gradient" if has_gradient(first.attacked, first.case.x, torch.Generator(first.rng.device)) else "black-box"
    aims = [trial.aims() for trial in trials]
    if name == "black-box":
        for trial, (whole, *_) in zip(trials, aims, strict=True):
            trial.judge.look(black_box_attack(whole, budget.steps, budget.draws))
    else:
        for kind in range(max(map(len, aims))):
            some = [(trial, own[kind]) for trial, own in zip(trials, aims, strict=True) if kind < len(own)]
            found = gradient_attack([aim for _, aim in some], budget.steps, budget.draws, budget.restarts)
            for (trial, _), candidates in zip(some, found, strict=True):
                trial.judge.look(candidates)
    return [trial.finish(name) for trial in trials]


def _recertify(
    g: SmoothedClassifier, x: torch.Tensor, certificate: Certificate, budget: Budget, idx: int
) -> Certificate | None:
    """The certificate of the same input with a fresh seed and ten times the samples; None if it abstains."""
    evidence = certificate.evidence
    (again,) = g.certify(
        x,
        n0=evidence.n0,
        n=max(evidence.n, min(RECERTIFY * evidence.n, MOST)),
        alpha=evidence.alpha,
        norm=certificate.norm if certificate.norm is not None else certificate.region.norm,
        seed=derived_seed(budget.seed, idx, "recertify"),
        bound="two-class" if evidence.bound == "two-class" else "binary",
        precision=evidence.precision if evidence.precision in PRECISIONS else None,
    )
    return again if isinstance(again, Certificate) else None


def frozen_at(g: SmoothedClassifier, x: torch.Tensor) -> SmoothedClassifier:
    """The classifier that a frozen certificate speaks of: g with its noise computed at x and held there."""
    return SmoothedClassifier(g.f.model, g.law, g.M.at(x), g.f.num_classes)


def _on(scale: Scale, device: torch.device) -> Scale:
    there = all(tensor.device == device for tensor in scale.tensors().values())
    return scale if there else scale.to(device)


def _case(g: SmoothedClassifier, idx: int, x: torch.Tensor, certificate: Certificate, memory: Registry | None) -> Case:
    """What is to be attacked; a certificate that is about another input, weights, law or noise is refused."""
    x = x.to(g.f.device or x.device)
    evidence, weights = certificate.evidence, weights_hash(g.f.model)
    g.check_inputs(x)
    if None not in (weights, evidence.weights_hash) and weights != evidence.weights_hash:
        raise InvalidInput("this certificate is about other weights: give the model that was certified.")
    if g.law != evidence.law:
        raise InvalidInput(f"this certificate is about {evidence.law} noise, the classifier has {g.law}.")
    if certificate.scope == "registry":
        origin = enrolled(memory, x, certificate)
    else:
        origin = x
        if input_hash(x) != evidence.input_hash:
            raise InvalidInput("this certificate is about another input: are these the data that were certified?")
    if not same_noise(certificate, g, origin, tolerance=1e-2):
        raise InvalidInput("this certificate is about other noise: the generator's μ or Σ at its input is another one.")
    return Case(idx, x, origin, certificate)
