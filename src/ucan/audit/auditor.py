"""The auditor: attack each certificate inside its own region, and judge what is found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from ucan.audit.attacks import Aim, black_box_attack, gradient_attack, has_gradient
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
from ucan.votes import Stream

Mode = Literal["live", "frozen"]
MODES: tuple[Mode, ...] = ("live", "frozen")
FACTORS = (0.5, 0.9, 0.999)
# A break is certified again with ten times the samples, up to this many.
RECERTIFY, MOST = 10, 1_000_000
STATEFUL = ", stateful"  # what the name of an attack on a classifier with a memory ends with


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
    with copied(registry) as memory:
        yield from _audit(g, x, certificate, mode, factors, budget or Budget(), idx, memory)


def _audit(
    g: SmoothedClassifier,
    x: torch.Tensor,
    certificate: Certificate,
    mode: Mode,
    factors: Iterable[float],
    budget: Budget,
    idx: int,
    memory: Registry | None,
) -> Iterator[tuple[Attempt, torch.Tensor | None]]:
    x = x.to(g.f.device or x.device)
    origin = _check_case(g, x, certificate, memory)
    found: tuple[Attempt, torch.Tensor | None] | None = None
    for factor in sorted(factors):
        if not 0 < factor <= 1:
            raise InvalidInput(f"a factor must lie in (0, 1], got {factor}.")
        if found is None or not found[0].broken:
            found = _attempt(g, x, origin, certificate, mode, factor, budget, idx, memory)
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
        x = x.to(g.f.device or x.device)
        origin = _check_case(g, x, certificate, memory)
        return _attempt(g, x, origin, certificate, mode, factor, budget or Budget(), idx, memory)


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

    Every attempt is in the ledger before the next begins, a break with its input, its δ, and the registry as it was.
    """
    factors, attempts = sorted(factors), []
    with copied(registry) as memory:
        for idx, x, certificate in cases:
            for each in modes_of(certificate.scope, mode):
                known = _known(ledger, idx, factors, each, certificate)
                todo = [f for f in factors if f not in known and f < _smallest_broken(known)]
                made = _audit(g, x, certificate, each, todo, budget or Budget(), idx, memory) if todo else ()
                for attempt, delta in made:
                    if attempt.broken and attempt.same_as is None and delta is not None:
                        path = ledger.keep(attempt.to_dict(), x, delta)
                        if memory is not None and attempt.attack.endswith(STATEFUL):
                            memory.copy(path.with_suffix(".sqlite")).close()
                    _finish(attempt, known, ledger, on_attempt)
                smallest = _smallest_broken(known)
                for f in factors:  # whatever was found there before, the smaller break holds there as well
                    if f > smallest and (f not in known or known[f].same_as != smallest):
                        _finish(inherited(known[smallest], f), known, ledger, None if f in known else on_attempt)
                attempts += [known[f] for f in factors]
    return attempts


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
        origin = _check_case(g, x, certificate, memory)
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


# --- one attempt ---


def _attempt(
    g: SmoothedClassifier,
    x: torch.Tensor,
    origin: torch.Tensor,
    certificate: Certificate,
    mode: Mode,
    factor: float,
    budget: Budget,
    idx: int,
    memory: Registry | None,
) -> tuple[Attempt, torch.Tensor | None]:
    """``origin`` is the input that the evidence is about: x, or the enrolled one whose region x lies in."""
    seed, votes_seed = (derived_seed(budget.seed, idx, factor, mode, what) for what in ("attack", "votes"))
    attacked = g if mode == "live" else frozen_at(g, origin)
    stateful = mode == "live" and memory is not None
    judge: Judge | Witness
    if mode == "live" and memory is not None:
        judge = Witness(g, memory, x, certificate, factor, budget)
        name = _search(attacked, x, certificate, factor, budget, seed, judge) + STATEFUL
        judge.crowd()
    else:
        judge = Judge(attacked, x, certificate, factor, budget, votes_seed)
        name = _search(attacked, x, certificate, factor, budget, seed, judge)
    decision, delta = judge.verdict()
    size = 0.0 if delta is None else float(certificate.region.size(delta)[0]) / certificate.region.radius
    covered = (certificate.scope != "frozen" or mode == "frozen") and size < 1
    again = None
    if decision.broken and covered and not stateful:
        again = _recertify(g, origin, certificate, budget, idx)
    stays = (
        again is not None
        and delta is not None
        and bool(again.region.contains(x.double() + delta.to(x.device) - origin.double())[0])
    )
    attempt = Attempt(
        idx,
        factor,
        mode,
        certificate.scope,
        covered,
        certificate.prediction,
        certificate.radius,
        certificate.evidence.alpha,
        **asdict(decision),
        size=size,
        attack=name,
        seed=seed,
        votes_seed=votes_seed,
        recertified=None if again is None else again.radius,
        # A memory is not a matter of chance: if it does not keep to its answer, α is no excuse.
        bug=(stays and again is not None and again.prediction == certificate.prediction)
        or (stateful and covered and decision.broken),
        claim=certificate.evidence.input_hash,
    )
    return attempt, delta


def _search(
    g: SmoothedClassifier,
    x: torch.Tensor,
    certificate: Certificate,
    factor: float,
    budget: Budget,
    seed: int,
    judge: Judge | Witness,
) -> str:
    """Show the judge every candidate; the name of the attack."""
    rng = Stream(seed, input_hash(x), "attack").block(0, x.device)
    region, pair = certificate.region, certificate.p_upper is not None
    whole = Ball(_on(region.scale, x.device), region.norm, factor * region.radius, region.shape)
    if not has_gradient(g, x, rng):
        aim = Aim(g, x, certificate.prediction, pair, whole, rng, judge.enough)
        judge.look(black_box_attack(aim, budget.steps, budget.draws))
        return "black-box"
    balls = [whole]
    if certificate.norm is not None and certificate.norm != region.norm:
        balls.append(Ball(Scalar(1.0), certificate.norm, factor * certificate.radius, region.shape))
    for ball in balls:
        aim = Aim(g, x, certificate.prediction, pair, ball, rng, judge.enough)
        judge.look(gradient_attack(aim, budget.steps, budget.draws, budget.restarts))
    return "gradient"


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


def _check_case(
    g: SmoothedClassifier, x: torch.Tensor, certificate: Certificate, memory: Registry | None
) -> torch.Tensor:
    """Refuse a certificate that is about another input, weights, law or noise; the input that its evidence is about."""
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
    return origin
