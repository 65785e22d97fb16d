"""One attempt on one certificate: the target, the judge, and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, TypeVar

import torch

from ucan.arithmetic import ROUNDED, arithmetic_of
from ucan.audit.attacks import RANDOM, Aim, has_gradient
from ucan.audit.balls import Ball, budget_ball
from ucan.audit.claims import Claim, share
from ucan.audit.decide import SURE
from ucan.audit.inputs import least_changes
from ucan.audit.judge import Budget, Judge, derived_seed, precision_of
from ucan.audit.methods import Attack
from ucan.audit.stakes import Stake
from ucan.audit.stateful import Witness, enrolled
from ucan.catalogue import ATTACKS
from ucan.certificate import Certificate, Level
from ucan.errors import InvalidInput
from ucan.fingerprint import weights_hash
from ucan.questions.smoothed import Smoothed
from ucan.registry import Registry
from ucan.scales import Scalar, Scale
from ucan.sidecar import input_hash
from ucan.smoothed import SmoothedClassifier
from ucan.threshold import level_bound, level_region
from ucan.verify import same_noise
from ucan.votes import Stream

AnySmoothed = TypeVar("AnySmoothed", bound=Smoothed)
Mode = Literal["live", "frozen"]
MODES: tuple[Mode, ...] = ("live", "frozen")
RECERTIFY = 10  # a break is certified again with this many times the samples
# In the lines of a journal: prefix of the name of an attack on a classifier with a registry, which its readers show.
STATEFUL = "stateful "


@dataclass(frozen=True)
class Attempt:
    """One certificate attacked inside ``factor`` of its region, in one mode, and the result.

    ``size`` is ‖Σ⁻¹δ‖ₚ/R of the point that was tested (or its share of the budget's factor, where that is smaller), and
    ``answer`` the class that led there. ``covered``: the guarantee covers this mode and this point, so a break matters: it is
    ``broken`` only if a second test, in which ``again_hits`` of ``again_total`` votes were for the class, confirms it. A
    binary claim is also broken where the class has lost its majority and still leads (not ``changed``). ``bug``: certified
    again with a fresh seed and ten times the samples it still claims that point. ``same_as`` names the smaller factor whose δ
    broke this one as well. ``alpha`` is 0 where all draws of the noise were counted. Seeds are those of the attack and of the
    votes. ``claim`` is the hash of the input that the evidence is about: certificates that share one are true or false
    together. For a live attack on scope ``registry`` there are no votes: ``hits`` of ``total`` is 0 or 1 of 1, by its registry.
    ``part`` is what was attacked of a router's certificate, its "choice" or its "answer"; α is then that of both, and the
    classes of a choice are the experts. ``stateful``: a classifier with a registry was attacked, which answers without a vote.
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
    again_hits: int = 0
    again_total: int = 0
    part: str = ""
    stateful: bool = False

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``."""
        made = cls(**line)
        if not made.attack.startswith(STATEFUL):
            return made
        return replace(made, attack=made.attack.removeprefix(STATEFUL), stateful=True)

    @property
    def attack_name(self) -> str:
        """The attack as it is shown: "gradient", or "stateful gradient"."""
        return STATEFUL + self.attack if self.stateful else self.attack

    @property
    def tested_once(self) -> bool:
        """A break that the guarantee covers, from an older ledger without a second test."""
        return self.broken and self.covered and not self.again_total and not self.stateful

    @property
    def refuted(self) -> bool:
        """Whether this is a break by the auditor's rule: covered by the guarantee, and confirmed by the second test."""
        return self.broken and self.covered and (not self.tested_once or self.p_value <= SURE)

    @property
    def elsewhere(self) -> bool:
        """Whether another point than the input itself was tested: on a grid a small region may hold no other."""
        return self.size > 0 or self.broken or self.stateful

    @property
    def changed(self) -> bool:
        """Whether another class leads at the point that broke the claim."""
        return self.broken and self.answer != self.prediction

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as a journal's line has them: ``stateful`` stands in the name of the attack."""
        line = {**asdict(self), "attack": self.attack_name}
        del line["stateful"]
        return line


@dataclass(frozen=True)
class Case:
    """One certificate to attack. ``origin`` is the input its evidence is about: x, or the enrolled input whose region
    contains x. Of a router, ``certificate`` is that of one ``part``, and ``alpha`` that of both together.
    """

    idx: int
    x: torch.Tensor
    origin: torch.Tensor
    certificate: Claim
    part: str = ""
    alpha: float | None = None


class _Trial:
    """One attempt on one case: the target, the judge, and the random generator of the search."""

    def __init__(
        self, g: SmoothedClassifier, case: Case, mode: Mode, factor: float, budget: Budget, memory: Registry | None
    ) -> None:
        self.g, self.case, self.mode, self.factor, self.budget = g, case, mode, factor, budget
        self.seed, self.votes_seed = (
            derived_seed(budget.seed, case.idx, factor, mode, what, *([case.part] if case.part else []))
            for what in ("attack", "votes")
        )
        self.attacked = g if mode == "live" else frozen_at(g, case.origin)
        self.stateful = mode == "live" and memory is not None
        self.judge: Judge | Witness
        if mode == "live" and memory is not None and isinstance(case.certificate, Certificate):
            self.judge = Witness(g, memory, case.x, case.certificate, factor, budget)
        else:
            promised = promises(case.certificate, mode) and factor <= 1
            self.judge = Judge(self.attacked, case.x, case.certificate, factor, budget, self.votes_seed, promised)
        self.rng = Stream(self.seed, input_hash(case.x), "attack").block(0, case.x.device)

    def aims(self) -> list[Aim]:
        """The whole region, all changes within the budget, and the ball of the requested norm if that differs."""
        x, certificate, region = self.case.x, self.case.certificate, self.case.certificate.region
        balls = [Ball(_on(region.scale, x.device), region.norm, self.factor * region.radius, region.shape)]
        if certificate.budget is not None and certificate.budget_factor:
            balls.append(budget_ball(certificate.budget, self.factor * certificate.budget_factor, x))
        if certificate.norm is not None and certificate.norm != region.norm:
            balls.append(Ball(Scalar(1.0), certificate.norm, self.factor * certificate.radius, region.shape))
        judge, stake = self.judge, Stake(certificate, True)
        if isinstance(certificate, Level):
            floor = certificate.threshold if certificate.above else 1 - certificate.threshold
            kind: dict[str, Any] = {"pair": False, "raises": not certificate.above, "floor": floor}
        else:
            kind = {"pair": certificate.p_upper is not None}
        return [Aim(self.attacked, x, stake.c_A, ball=b, rng=self.rng, enough=judge.enough, **kind) for b in balls]

    def look_beside(self) -> None:
        """Where an attack led to no other input (a gradient of 0, say), try random ones, and the least changes there are."""
        judge = self.judge
        if isinstance(judge, Judge) and not judge.points:
            ball, x = self.aims()[0].ball, self.case.x
            judge.look(ball.place(ball.random(RANDOM, x, self.rng)))
        if isinstance(judge, Judge) and not judge.points:
            judge.look(least_changes(self.case.x, judge.inside, judge.step))

    def _alpha(self) -> float:
        """The probability with which the claim may be false by chance."""
        certificate, alpha = self.case.certificate, self.case.alpha
        if Stake(certificate, True).counted:
            return 0.0
        return certificate.evidence.alpha if alpha is None else alpha

    def finish(self, attack: str) -> tuple[Attempt, torch.Tensor | None]:
        """The verdict; a break where the guarantee holds is tested again, and if that confirms it, certified again."""
        case, certificate = self.case, self.case.certificate
        if isinstance(self.judge, Witness):
            self.judge.crowd()
        decision, delta = self.judge.verdict()
        size = 0.0 if delta is None else share(certificate, delta)
        covered = promises(certificate, self.mode) and size < 1
        second, again = None, None
        if decision.broken and covered and isinstance(self.judge, Judge):
            second = self.judge.again()
            decision = replace(decision, broken=second.broken)
            if second.broken:
                again = _recertify(self.g, case.origin, certificate, self.budget, case.idx)
        stays = (
            again is not None
            and delta is not None
            and share(again, case.x.double() + delta.to(case.x.device) - case.origin.double()) < 1
        )
        attempt = Attempt(
            case.idx,
            self.factor,
            self.mode,
            certificate.scope,
            covered,
            Stake(certificate, True).c_A,
            certificate.size,
            self._alpha(),
            **asdict(decision),
            size=size,
            attack=attack,
            seed=self.seed,
            votes_seed=self.votes_seed,
            recertified=None if again is None else again.size,
            # A registry is not random: if its answer changes, that is a bug, whatever α is.
            bug=(stays and again is not None and Stake(again, True).c_A == Stake(certificate, True).c_A)
            or (self.stateful and covered and decision.broken),
            claim=certificate.evidence.input_hash,
            again_hits=0 if second is None else second.hits,
            again_total=0 if second is None else second.total,
            part=case.part,
            stateful=self.stateful,
        )
        return attempt, delta


def attempts_on(
    g: SmoothedClassifier, cases: Sequence[Case], mode: Mode, factor: float, budget: Budget, memory: Registry | None
) -> list[tuple[Attempt, torch.Tensor | None]]:
    """Attempt all cases side by side, each with f run as its certificate says: rounding makes another classifier of it."""
    found: dict[int, tuple[Attempt, torch.Tensor | None]] = {}
    for backend in dict.fromkeys(case.certificate.evidence.backend for case in cases):
        some = [i for i, case in enumerate(cases) if case.certificate.evidence.backend == backend]
        with g.engine.running(backend):
            made = _attempted(g, [cases[i] for i in some], mode, factor, budget, memory)
        found |= dict(zip(some, made, strict=True))
    return [found[i] for i in range(len(cases))]


def _attempted(
    g: SmoothedClassifier, cases: Sequence[Case], mode: Mode, factor: float, budget: Budget, memory: Registry | None
) -> list[tuple[Attempt, torch.Tensor | None]]:
    """Attempt cases of one backend; every judge gets all its candidates."""
    trials = [_Trial(g, case, mode, factor, budget, memory) for case in cases]
    names = [_attack_on(trial, budget) for trial in trials]
    aims = [trial.aims() for trial in trials]
    for name in dict.fromkeys(names):
        attack: Attack = ATTACKS.load(name, "audit: attack")
        for kind in range(max(map(len, aims))):
            some = [
                (trial, own[kind])
                for trial, own, chosen in zip(trials, aims, names, strict=True)
                if chosen == name and kind < _aimed(trial, own, name)
            ]
            if some:
                found = attack([aim for _, aim in some], budget)
                for (trial, _), candidates in zip(some, found, strict=True):
                    trial.judge.look(candidates)
    for trial in trials:
        trial.look_beside()
    return [trial.finish(name) for trial, name in zip(trials, names, strict=True)]


def _attack_on(trial: _Trial, budget: Budget) -> str:
    """The requested attack; by default gradients, if the classifier has them here and the noise is not searched for."""
    if budget.attack is not None:
        return budget.attack
    if trial.mode == "live" and trial.g.M.on_model:
        return "rescaled"
    return "gradient" if has_gradient(trial.attacked, trial.case.x, torch.Generator(trial.rng.device)) else "black-box"


def _aimed(trial: _Trial, aims: Sequence[Aim], name: str) -> int:
    """How many of the aims are attacked: without gradients each is expensive, and only the first ones are."""
    if name != "black-box":
        return len(aims)
    return min(len(aims), 1 if trial.case.certificate.budget is None else 2)


def _recertify(g: SmoothedClassifier, x: torch.Tensor, certificate: Claim, budget: Budget, idx: int) -> Claim | None:
    """The certificate of the same input with a fresh seed and ten times the samples; None if it abstains.

    Its α is so small that a claim that was false by chance is not certified again by chance, in an audit of any size.
    """
    evidence, seed = certificate.evidence, derived_seed(budget.seed, idx, "recertify")
    if isinstance(certificate, Level):
        return _again(g, x, certificate, seed)
    (again,) = g.certify(
        x,
        n0=max(1, evidence.n0),  # where all draws were counted none chose the class
        n=RECERTIFY * evidence.n,
        alpha=min(evidence.alpha, SURE),
        norm=certificate.norm if certificate.norm is not None else certificate.region.norm,
        seed=seed,
        bound="exact" if evidence.bound == "exact" else "two-class" if evidence.bound == "two-class" else "binary",
        precision=precision_of(certificate),
        budget=certificate.budget,
    )
    return again if isinstance(again, Certificate) else None


def _again(g: SmoothedClassifier, x: torch.Tensor, level: Level, seed: int) -> Level | None:
    """What ten times the votes say of the same class and threshold; None if the claim cannot be made."""
    n, M = RECERTIFY * level.evidence.n, g.M.at(x)
    votes = g.votes(x, n, seed, "estimate", precision_of(level))
    alpha = min(level.evidence.alpha, SURE)
    p = level_bound(votes.counts, level.top, level.above, n, alpha, g.arithmetic_error(M, x))
    if (p > level.threshold) != level.above:
        return None
    region = level_region(g, M, x, p, level.above, level.threshold, level.radius_norm)
    return None if region is None else replace(level, p=p, region=region)


def promises(certificate: Claim, mode: Mode) -> bool:
    """Whether the guarantee covers what this mode attacks."""
    return certificate.scope != "frozen" or mode == "frozen"


def frozen_at(g: AnySmoothed, x: torch.Tensor) -> AnySmoothed:
    """What a frozen certificate, or a frozen answer, is about: g with its noise computed at x and frozen."""
    held = g.M.at(x)
    return g if held is g.M else g.again(generator=held, backend="eager")  # for one input: nothing is compiled


def _on(scale: Scale, device: torch.device) -> Scale:
    there = all(tensor.device == device for tensor in scale.tensors().values())
    return scale if there else scale.to(device)


def case_of(g: SmoothedClassifier, idx: int, x: torch.Tensor, certificate: Claim, memory: Registry | None) -> Case:
    """The case to attack; a certificate about another input, weights, law or noise is refused."""
    x = x.to(g.f.device or x.device)
    evidence = certificate.evidence
    g.check_inputs(x)
    mine = weights_hash(g.f.model) if evidence.model is None else g.engine.identity()
    if evidence.identity is not None and mine != evidence.identity:
        raise InvalidInput("this certificate is about other weights: give the model that was certified.")
    if g.law != evidence.law:
        raise InvalidInput(f"this certificate is about {evidence.law} noise, but the classifier has {g.law}.")
    if evidence.arithmetic.removesuffix(ROUNDED) != arithmetic_of(g.grid):
        raise InvalidInput(
            f"this certificate's arithmetic is {evidence.arithmetic}: give the classifier the same step."
        )
    if isinstance(certificate, Certificate) and certificate.scope == "registry":
        origin = enrolled(memory, x, certificate)
    else:
        origin = x
        if not evidence.is_about(x):
            raise InvalidInput("this certificate is about another input: give the data that were certified.")
    if not same_noise(certificate, g, origin, tolerance=1e-2):
        raise InvalidInput("this certificate is about other noise: the generator's μ or Σ at its input differs.")
    return Case(idx, x, origin, certificate)
