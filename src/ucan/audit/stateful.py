"""Attacks on a classifier with a registry: a copy of the registry is attacked, and the attacker may enrol inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ucan.audit.balls import Ball
from ucan.audit.decide import Decision
from ucan.audit.inputs import covered_step, reachable
from ucan.audit.judge import Budget, precision_of
from ucan.certificate import Certificate
from ucan.errors import InvalidInput
from ucan.registry import Registry
from ucan.seating import EXACT
from ucan.smoothed import SmoothedClassifier

# Where the attacker enrols inputs, relative to the region: just outside it, and further out.
OUTSIDE = (1.01, 1.3)
RIVALS = 8  # stored regions of another answer towards which points are tried


@contextmanager
def copied(registry: Registry | None) -> Iterator[Registry | None]:
    """A copy to attack, so that nothing is enrolled in the registry itself."""
    if registry is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="ucan-audit-") as folder, registry.copy(Path(folder) / "copy") as copy:
        yield copy


def enrolled(registry: Registry | None, x: torch.Tensor, certificate: Certificate) -> torch.Tensor:
    """The enrolled input (1, *event) that a certificate about x came from."""
    if registry is None:
        raise InvalidInput("a guarantee of scope registry is about a classifier with its registry: give the registry.")
    found = registry.issuer(x, certificate)
    if found is None:
        raise InvalidInput(
            "this registry did not issue that certificate: give the registry that the run was made with."
        )
    return found.centre[None].to(x)


class Witness:
    """Queries the classifier with its registry, and keeps a point with a different answer, or else the outermost point.

    Unlike votes, a registry's answers are not random.
    """

    def __init__(
        self, g: SmoothedClassifier, registry: Registry, x: torch.Tensor, c: Certificate, factor: float, budget: Budget
    ) -> None:
        self.g, self.registry, self.x, self.c, self.budget = g, registry, x, c, budget
        self.limit = factor * c.region.radius
        self.best: tuple[bool, float, int, torch.Tensor] | None = None
        self.tried: torch.Tensor | None = None

    def look(self, delta: torch.Tensor) -> None:
        """Query x + δ for perturbations (batch, *event); those that are not strictly inside do not count."""
        inputs, deltas = reachable(self.x, delta, self.c.region, self.limit, covered_step(self.g, self.c))
        for z, actual in zip(inputs.split(1), deltas.split(1), strict=True):
            answer = self._answer(z)
            size = float(self.c.region.size(actual)[0])
            if self.best is None or (answer != self.c.prediction, size) > self.best[:2]:
                self.best = answer != self.c.prediction, size, -1 if answer is None else answer, actual
        self.tried = delta

    def enough(self, delta: torch.Tensor) -> bool:
        """Whether the search may end."""
        self.look(delta)
        return self.best is not None and self.best[0]

    def crowd(self) -> None:
        """Enrol inputs around the region, where the search went, then try points towards the regions of other answers."""
        region = self.c.region
        for delta in () if self.tried is None else self.tried[: self.budget.restarts].split(1):
            size = float(region.size(delta)[0])
            for share in OUTSIDE if size > 0 else ():
                self._ask((self.x.double() + share * region.radius / size * delta.double()).to(self.x.dtype))
        rivals = self.registry.rivals(self.x, self.c.prediction, RIVALS)
        if rivals:
            ball = Ball(region.scale.to(self.x.device), region.norm, self.limit, region.shape)
            towards = torch.stack([entry.centre for entry in rivals]).to(self.x.device).double() - self.x.double()
            u = region.scale.to(self.x.device).solve(towards).flatten(1)
            length = torch.linalg.vector_norm(u, ord=region.norm, dim=1, keepdim=True)
            self.look(torch.cat([ball.place(ball.project(u)), ball.place(u * (self.limit / length).clamp(max=1))]))

    def verdict(self) -> tuple[Decision, torch.Tensor | None]:
        """The decision on the point that was kept."""
        if self.best is None:
            return Decision(False, self.c.prediction, 1, 1, 1.0), None
        broken, _, answer, delta = self.best
        return Decision(broken, answer, int(not broken), 1, float(not broken)), delta

    def _answer(self, z: torch.Tensor) -> int | None:
        found = self.registry.lookup(z)
        return self._ask(z) if found is None else found.answer

    def _ask(self, z: torch.Tensor) -> int | None:
        """The classifier's answer, which the registry then stores."""
        evidence = self.c.evidence
        (outcome,) = self.registry.certify(
            self.g,
            z,
            n0=max(1, evidence.n0),  # where all draws were counted none chose the class
            n=self.budget.check,
            bound=EXACT if evidence.bound == EXACT else "binary",
            alpha=evidence.alpha,
            norm=self.c.radius_norm,
            precision=precision_of(self.c),
        )
        return outcome.prediction
