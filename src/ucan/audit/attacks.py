"""Adversaries against a smoothed classifier, inside the exact region of a certificate.

No attack library serves here (foolbox was looked at): none searches a linear image of an ℓp ball, and none averages over
the noise that a generator shapes anew from the attacker's own input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ucan.audit.balls import Ball, ascent
from ucan.region import Region
from ucan.smoothed import SmoothedClassifier
from ucan.votes import as_answer, forward_size

# Step sizes of the gradient attack as shares of the ball's radius; they fall to nothing over the attack.
STEPS = (0.5, 0.1)
# Coordinates that a chain moves at once in an ℓ1 ball, as shares of d (at least one).
SPREADS = (0.0, 0.01, 0.1)
# A chain looks finished when at most this share of its draws still votes for the certified class.
FOOLED = 1 / 8


@dataclass(frozen=True)
class Aim:
    """What is attacked: the votes of g for class ``c_A`` near x (1, *event), inside ``ball``.

    With ``pair`` the class has to lose against one rival (a two-class certificate), else against all others together.
    ``enough`` is asked about perturbations (batch, *event) that look finished; the attack ends when it says yes.
    """

    g: SmoothedClassifier
    x: torch.Tensor
    c_A: int
    pair: bool
    ball: Ball
    rng: torch.Generator
    enough: Callable[[torch.Tensor], bool]


def reachable(x: torch.Tensor, delta: torch.Tensor, region: Region, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The perturbed inputs as the classifier sees them, and the perturbations that they really are, in float64.

    x + δ is rounded to the input's precision; what counts is fl(x + δ) − x, and only where ‖Σ⁻¹(fl(x + δ) − x)‖ₚ < limit.
    A δ that rounding carried outside is drawn in by up to a thousandth; one that stays outside is left out.
    """
    left, inputs, deltas = delta.double(), [x[:0]], [x[:0].double()]
    for shrink in (1.0, 1 - 1e-6, 1 - 1e-5, 1 - 1e-4, 1 - 1e-3):
        z = (x.double() + shrink * left).to(x.dtype)
        actual = z.double() - x.double()
        inside = torch.isfinite(z).flatten(1).all(1) & (region.size(actual) < limit).to(z.device)
        inputs.append(z[inside])
        deltas.append(actual[inside])
        left = left[~inside]
        if not len(left):
            break
    return torch.cat(inputs), torch.cat(deltas)


def logits(g: SmoothedClassifier, z: torch.Tensor, draws: int, rng: torch.Generator) -> torch.Tensor:
    """What f answers to ``draws`` noisy copies of each z (batch, *event): (draws, batch, …), differentiable if f is."""
    noisy = g.M.perturb(z, g.law, draws, rng)
    shown = g.M.view(noisy.flatten(0, 1))
    answer = as_answer(g.f.model(shown if g.f.dtype is None else shown.to(g.f.dtype)))
    return answer.reshape(draws, len(z), *answer.shape[1:])


def has_gradient(g: SmoothedClassifier, x: torch.Tensor, rng: torch.Generator) -> bool:
    """Whether f's answer at x (1, *event) tells how it would change: logits with a gradient."""
    with torch.enable_grad():
        answer = logits(g, x.detach().clone().requires_grad_(), 1, rng)
    return answer.ndim == 3 and answer.is_floating_point() and answer.requires_grad


def gradient_attack(aim: Aim, steps: int, draws: int, restarts: int) -> torch.Tensor:
    """Projected gradient ascent through generator, noise and classifier; perturbations (candidates, *event) to try.

    Chains start at 0 and at random points, with several step sizes, and run side by side. Every step draws fresh noise.
    The last point of every chain and the best of its way are the candidates.
    """
    ball, d = aim.ball, aim.x.numel()
    chains = restarts * len(STEPS)
    size = torch.tensor([STEPS[i % len(STEPS)] for i in range(chains)]).to(aim.x)[:, None] * ball.radius
    spread = torch.tensor([max(1, round(SPREADS[i % len(SPREADS)] * d)) for i in range(chains)]).to(aim.x)
    u = ball.random(chains, aim.x, aim.rng)
    u[: len(STEPS)] = 0
    best, best_gain = u.clone(), torch.full((chains,), -torch.inf, device=u.device, dtype=u.dtype)
    for step in range(steps):
        gain, gradient, share = _gain(aim, u, draws)
        better = gain > best_gain
        best, best_gain = torch.where(better[:, None], u, best), torch.where(better, gain, best_gain)
        if (fooled := share <= FOOLED).any() and aim.enough(ball.place(u[fooled])):
            return ball.place(u[fooled])
        u = ball.project(u + (1 - step / steps) * size * ascent(gradient, ball.norm, spread))
    return ball.place(torch.cat([u, best]))


def _gain(aim: Aim, u: torch.Tensor, draws: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How far the class has lost at each point, its gradient in u, and the class's share of the votes.

    The gain is log(1 − p) − log p for p the class's mean softmax over the draws. Its gradient has the direction of the
    cross-entropy's, and does not vanish where p is 1 to the last digit.
    """
    u = u.detach().requires_grad_()
    with torch.enable_grad():
        output = logits(aim.g, aim.x + aim.ball.place(u), draws, aim.rng).to(u.dtype)
        logp = output.log_softmax(-1).logsumexp(0)  # (batch, classes), up to the constant log(draws)
        others = logp.index_fill(1, torch.tensor([aim.c_A], device=u.device), -torch.inf)
        gain = (others.amax(1) if aim.pair else others.logsumexp(1)) - logp[:, aim.c_A]
        (gradient,) = torch.autograd.grad(gain.sum(), u)
    share = (output.argmax(-1) == aim.c_A).to(u.dtype).mean(0)
    return gain.detach().nan_to_num(-torch.inf), gradient, share


def black_box_attack(aim: Aim, steps: int, draws: int) -> torch.Tensor:
    """An evolution strategy on vote shares, for classifiers that only answer; perturbations (candidates, *event).

    Each generation tries random steps from the parent, and steps towards the noise that fooled the classifier: where the
    noise of the votes against the class differs from that of the votes for it, there the class is weak.
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
        if share.min() <= FOOLED and aim.enough(ball.place(parent)):
            return ball.place(parent)
        left = 1 - step / steps
        towards = ascent(drift, ball.norm, wide)
        guided = [parent + left * s * ball.radius * towards for s in (0.1, 0.5)] + [ball.radius * towards]
        wild = parent + 0.5 * left * ball.random(6, aim.x, aim.rng)
        u = torch.cat([parent, ball.project(torch.cat([*guided, wild]))])
    return ball.place(torch.cat([*parents[-3:], u[1:4]]))


@torch.no_grad()
def _shares(aim: Aim, u: torch.Tensor, votes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The class's share of the votes at each point (batch,), and the mean noise against it minus that for it, in u."""
    g, z = aim.g, aim.x + aim.ball.place(u)
    part = max(1, forward_size(aim.x.numel(), aim.x.device) // votes)
    shares, scores = [], []
    for some in z.split(part):
        noisy = g.M.perturb(some, g.law, votes, aim.rng)
        held = g.f(g.M.view(noisy.flatten(0, 1))).reshape(votes, len(some)) == aim.c_A
        weight = held.to(u.dtype) - held.to(u.dtype).mean(0)
        pull = -torch.einsum("nb,nbd->bd", weight, noisy.flatten(2)) / votes
        shares.append(held.to(u.dtype).mean(0))
        scores.append(aim.ball.scale.solve(pull.reshape(some.shape)).reshape(len(some), -1).to(u.dtype))
    return torch.cat(shares), torch.cat(scores)
