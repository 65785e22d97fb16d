"""Attacks on a smoothed classifier, inside the exact region of a certificate.

No attack library fits (foolbox was considered): none searches a linear image of an ℓp ball, and none averages over noise that
a generator computes from the attacked input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ucan.audit.balls import Ball
from ucan.errors import InvalidInput
from ucan.smoothed import SmoothedClassifier
from ucan.votes import as_answer, forward_size

# Step sizes of the gradient attack relative to the ball's radius; they decrease to 0 over the attack.
STEPS = (0.5, 0.1)
# Coordinates that a chain changes at once in an ℓ1 ball, as fractions of d (at least one).
SPREADS = (0.0, 0.01, 0.1)
# A chain is considered finished when at most this share of its draws votes for the certified class.
FOOLED = 1 / 8
# Logits are scaled so that the class's margin spreads by this much over the draws: the gradient is then nearly that of the
# probability of a vote, and not that of the classifier's confidence.
SHARPNESS = 6.0
# Decay of the running mean of a chain's gradients.
MEMORY = 0.8
# Random points of the ball that are tested beside those that an evolution strategy found.
RANDOM = 3


@dataclass(frozen=True)
class Aim:
    """The target of an attack: the votes of g for class ``c_A`` near x (1, *event), inside ``ball``.

    With ``pair`` the class has to lose against one rival (a two-class certificate), else against all others together. With
    ``raises`` another class has to rise, whichever does. ``floor`` is the share of votes below which the claim is broken.
    ``enough`` is called with perturbations (batch, *event) that seem finished; the attack ends when it returns True.
    """

    g: SmoothedClassifier
    x: torch.Tensor
    c_A: int
    pair: bool
    ball: Ball
    rng: torch.Generator
    enough: Callable[[torch.Tensor], bool]
    raises: bool = False
    floor: float = 0.5

    def held(self, votes: torch.Tensor) -> torch.Tensor:
        """Which votes (draws, points) are for the claim: those of its class, or all but the strongest other's."""
        if not self.raises:
            return votes == self.c_A
        others = torch.nn.functional.one_hot(votes.clamp_min(0), max(self.g.f.num_classes, int(votes.max()) + 1)).sum(0)
        others[:, self.c_A] = -1
        return votes != others.argmax(1)

    def fooled(self, share: torch.Tensor) -> torch.Tensor:
        """At which points hardly a vote is left for the claim."""
        return share <= 2 * self.floor * FOOLED


def _answers(g: SmoothedClassifier, noisy: torch.Tensor) -> torch.Tensor:
    """The outputs of f on noisy copies (draws, batch, *event): (draws, batch, …), differentiable if f is."""
    shown = g.M.view(noisy.flatten(0, 1))
    answer = as_answer(g.f.model(shown if g.f.dtype is None else shown.to(g.f.dtype)))
    return answer.reshape(*noisy.shape[:2], *answer.shape[1:])


def has_gradient(g: SmoothedClassifier, x: torch.Tensor, rng: torch.Generator) -> bool:
    """Whether f returns logits near x (1, *event) with a gradient that is not 0 everywhere.

    A classifier that rounds its input has a gradient of 0 for autograd. One that does not support autograd (it calls
    ``.numpy()``, for example) has none.
    """
    x = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        noisy = g.M.perturb(x, g.law, 8, rng)
        try:
            answer = _answers(g, noisy)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # other errors of the classifier show up in its votes
            return False
        if not (answer.ndim == 3 and answer.is_floating_point() and answer.requires_grad):
            return False
        spread = (answer.amax(-1) - answer.mean(-1)).flatten()
        weights = torch.linspace(1, 2, len(spread), device=spread.device, dtype=spread.dtype)  # draws must not cancel
        (gradient,) = torch.autograd.grad((weights * spread).sum(), x, allow_unused=True)
    return gradient is not None and bool(gradient.nan_to_num(0.0, 0.0, 0.0).any())


def gradient_attack(aims: Sequence[Aim], steps: int, draws: int, restarts: int) -> list[torch.Tensor]:
    """Projected gradient ascent through generator, noise and classifier; for each aim perturbations (candidates, *event).

    Chains start at 0 and at random points, with several step sizes, and run side by side, those of all aims in the same
    passes through the classifier. Every step draws fresh noise. The candidates are the last and the best point of every
    chain, and the edge of the ball along the mean of its last gradients.
    """
    searches = [_Search(aim, restarts) for aim in aims]
    for step in range(steps):
        going = [search for search in searches if search.found is None]
        if not going:
            break
        for search, (gain, gradient, share) in zip(going, _gains(going, draws), strict=True):
            search.step(gain, gradient, share, 1 - step / steps)
    return [search.candidates() for search in searches]


def chains(restarts: int) -> int:
    """How many points an attack follows at once."""
    return restarts * len(STEPS)


class _Search:
    """The chains of one aim."""

    def __init__(self, aim: Aim, restarts: int) -> None:
        self.aim = aim
        ball, d, count = aim.ball, aim.x.numel(), chains(restarts)
        self.size = torch.tensor([STEPS[i % len(STEPS)] for i in range(count)]).to(aim.x)[:, None] * ball.radius
        self.spread = torch.tensor([max(1, round(SPREADS[i % len(SPREADS)] * d)) for i in range(count)]).to(aim.x)
        self.u = ball.random(count, aim.x, aim.rng)
        self.u[: len(STEPS)] = 0
        # With more than two classes, some chains attack the class against all others and some against one rival.
        self.rival = torch.tensor([aim.pair or i % len(STEPS) > 0 for i in range(count)], device=self.u.device)
        self.mean = torch.zeros_like(self.u)
        self.best = self.u.clone()
        self.best_gain = torch.full((count,), -torch.inf, device=self.u.device, dtype=self.u.dtype)
        self.found: torch.Tensor | None = None

    def step(self, gain: torch.Tensor, gradient: torch.Tensor, share: torch.Tensor, left: float) -> None:
        """One ascent step for each chain that is not finished."""
        better = gain > self.best_gain
        self.best = torch.where(better[:, None], self.u, self.best)
        self.best_gain = torch.where(better, gain, self.best_gain)
        ball = self.aim.ball
        if (fooled := self.aim.fooled(share)).any() and self.aim.enough(ball.place(self.u[fooled])):
            self.found = ball.place(self.u[fooled])
            return
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        self.mean = MEMORY * self.mean + torch.nn.functional.normalize(gradient)
        self.u = ball.project(self.u + left * self.size * ball.ascent(gradient, self.spread))

    def candidates(self) -> torch.Tensor:
        """The points to test."""
        ball = self.aim.ball
        if self.found is not None:
            return self.found
        edge = ball.radius * ball.ascent(self.mean, self.spread)
        return ball.place(torch.cat([self.u, self.best, edge]))


def _gains(searches: Sequence[_Search], draws: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each search: how far its class has lost at each point, the gradient of that in u, the class's share of votes.

    The gain is log(1 − p) − log p for p the class's mean softmax over the draws, of sharpened logits. Its gradient has the
    direction of the cross-entropy's, and does not vanish where p is 1 to the last digit.
    """
    us = [search.u.detach().requires_grad_() for search in searches]
    with torch.enable_grad():
        noisy = [
            s.aim.g.M.perturb(s.aim.x + s.aim.ball.place(u), s.aim.g.law, draws, s.aim.rng)
            for s, u in zip(searches, us, strict=True)
        ]
        answers = _answers(searches[0].aim.g, torch.cat(noisy, dim=1))
        if answers.ndim != 3 or not answers.requires_grad:
            raise InvalidInput(
                "this classifier has no gradient to attack by: use the attack black-box (--attack), or leave it out."
            )
        outputs = answers.to(us[0].dtype).split([len(u) for u in us], dim=1)
        gains = [_gain(output, s) for output, s in zip(outputs, searches, strict=True)]
        gradients = torch.autograd.grad(torch.cat(gains).sum(), us)
    for search, gain, gradient, output in zip(searches, gains, gradients, outputs, strict=True):
        share = search.aim.held(output.argmax(-1)).to(gain.dtype).mean(0)
        yield gain.detach().nan_to_num(-torch.inf), gradient, share


def _gain(output: torch.Tensor, search: _Search) -> torch.Tensor:
    c_A = torch.tensor([search.aim.c_A], device=output.device)
    logp = _sharpened(output, c_A).log_softmax(-1).logsumexp(0)  # (batch, classes), up to the constant log(draws)
    others = logp.index_fill(1, c_A, -torch.inf)
    if search.aim.raises:
        best = others.argmax(1, keepdim=True)
        return logp.gather(1, best)[:, 0] - logp.scatter(1, best, -torch.inf).logsumexp(1)
    return torch.where(search.rival, others.amax(1), others.logsumexp(1)) - logp[:, search.aim.c_A]


def _sharpened(output: torch.Tensor, c_A: torch.Tensor) -> torch.Tensor:
    """Logits (draws, batch, classes), scaled for each point by the spread of the class's margin over the draws."""
    fixed = output.detach()
    margin = fixed.index_select(-1, c_A)[..., 0] - fixed.index_fill(-1, c_A, -torch.inf).amax(-1)
    spread = margin.std(0, correction=0)
    factor = torch.where(torch.isfinite(spread) & (spread > 0), SHARPNESS / spread, 1.0)
    return output * factor[:, None]


def black_box_attack(aim: Aim, steps: int, draws: int) -> torch.Tensor:
    """An evolution strategy on vote shares, for classifiers without gradients; perturbations (candidates, *event).

    Each generation tries random steps from the parent, and steps towards the noise that fooled the classifier: the mean noise
    of the votes against the class minus that of the votes for it.
    """
    ball, wide = aim.ball, aim.x.new_ones(1)
    u = torch.cat([torch.zeros_like(aim.x).reshape(1, -1), ball.random(15, aim.x, aim.rng)])
    drift = torch.zeros_like(u[:1])
    parents = []
    for step in range(steps):
        share, score = _shares(aim, u, 4 * draws)
        drift = drift + score.sum(0, keepdim=True)
        parent = u[share.argmin()][None]
        parents.append(parent)
        if aim.fooled(share.min()) and aim.enough(ball.place(parent)):
            return ball.place(parent)
        left = 1 - step / steps
        towards = ball.ascent(drift, wide)
        guided = [parent + left * s * ball.radius * towards for s in (0.1, 0.5)] + [ball.radius * towards]
        wild = parent + 0.5 * left * ball.random(6, aim.x, aim.rng)
        u = torch.cat([parent, ball.project(torch.cat([*guided, wild]))])
    # Where no point loses a vote the search stays at x, and has nowhere to go from there.
    return ball.place(torch.cat([*parents[-3:], u[1:4], ball.random(RANDOM, aim.x, aim.rng)]))


@torch.no_grad()
def _shares(aim: Aim, u: torch.Tensor, votes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The class's share of the votes at each point (batch,), and the mean noise against it minus that for it, in u."""
    g, z = aim.g, aim.x + aim.ball.place(u)
    part = max(1, forward_size(aim.x.numel(), aim.x.device) // votes)
    shares, scores = [], []
    for some in z.split(part):
        noisy = g.M.perturb(some, g.law, votes, aim.rng)
        held = aim.held(g.f(g.M.view(noisy.flatten(0, 1))).reshape(votes, len(some)))
        weight = held.to(u.dtype) - held.to(u.dtype).mean(0)
        pull = -torch.einsum("nb,nbd->bd", weight, noisy.flatten(2)) / votes
        shares.append(held.to(u.dtype).mean(0))
        scores.append(aim.ball.scale.solve(pull.reshape(some.shape)).reshape(len(some), -1).to(u.dtype))
    return torch.cat(shares), torch.cat(scores)
