"""Diversity-regularised training (Yang et al., 2022): networks of an ensemble that fail in different directions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch
from torch.nn import functional as F

from ucan.errors import InvalidInput
from ucan.training.recipes.base import Recipe, check_terms
from ucan.training.step import Network, Outcome, Progress, Step


@dataclass(frozen=True)
class Drt(Recipe):
    """Σ cross-entropy of each network + diversity·Σ over pairs ‖∇marginᵢ + ∇marginⱼ‖₂ − margins·Σ marginᵢ.

    A network's margin is the probability that it gives the label, less the one for the ensemble's first other class; the last
    two terms count where the ensemble is right. It needs an ensemble: ``networks = 3`` in the settings, or a model with its
    networks in ``members`` (``ucan.Ensemble``). It goes with any noise.

    Written from the paper's description. A public program of the method, taken to be its authors', differs in four points:

    - it takes the square of the norm;
    - a margin is that between the two largest probabilities of the network itself, whatever the ensemble's next class is;
    - a network's margin counts where this network is right, and a pair's gradients count where both are, not where the
      ensemble is;
    - each term is the mean over what counts, of all networks or pairs and all noisy inputs; here it is the sum over networks or
      pairs, and the mean over all noisy inputs, of which those that do not count add 0.

    So its weights ρ₁ and ρ₂ are not those of this recipe.

    draws: noisy copies of every input.
    diversity: ρ₁.
    margins: ρ₂.
    """

    draws: int = 1
    diversity: float = 0.5
    margins: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_terms(self, "diversity", "margins")

    def step(self, step: Step) -> Outcome:
        """A pass through every network, and the gradients of its margin with respect to the noisy inputs."""
        if len(step.model.members) < 2:
            raise InvalidInput(
                "drt trains several networks together: give it an ensemble of at least two (networks = 3, or ucan.Ensemble)."
            )
        # Not detached: noise that is learned with the networks has its gradient through these copies.
        noisy, labels = step.noise.copies(self.draws).flatten(0, 1), step.labels.repeat(self.draws)
        terms = _by_tangents(step.model, noisy, labels) or _by_gradients(step.model, noisy, labels)
        loss = torch.stack([F.cross_entropy(each, labels) for each in terms.answers]).sum()
        loss = loss + self.diversity * terms.apart - self.margins * terms.wide
        mean = torch.stack(terms.answers).mean(0).reshape(self.draws, len(step.labels), -1)
        return Outcome.of(loss, mean, step.labels, diversity=terms.apart, margin=terms.wide)

    def cost(self, progress: Progress) -> float:
        """A pass of each network, and about as much again for the gradients of gradients."""
        return 3 * self.draws


@dataclass(frozen=True)
class Terms:
    """Of one step: each network's logits (n, classes), and the means of the two terms over noisy inputs."""

    answers: list[torch.Tensor]
    apart: torch.Tensor  # Σ ‖∇marginᵢ + ∇marginⱼ‖₂ over pairs
    wide: torch.Tensor  # Σ marginᵢ


def _by_gradients(model: Network, noisy: torch.Tensor, labels: torch.Tensor) -> Terms:
    """As defined, with gradients that are differentiated again."""
    places = noisy.requires_grad_(True)
    # Separately: through a stack of all answers, each margin's gradient would go backward through all networks.
    answers = [network(places).float() for network in model.members]
    rival, right = _ahead(answers, labels)
    margins = [_margin(each, labels, rival) for each in answers]
    slopes = [torch.autograd.grad(m.sum(), places, create_graph=True)[0].flatten(1) for m in margins]
    alike = torch.stack([(a + b).norm(dim=1) for a, b in combinations(slopes, 2)]).sum(0)
    return Terms(answers, (right * alike).mean(), (right * torch.stack(margins).sum(0)).mean())


def _by_tangents(model: Network, noisy: torch.Tensor, labels: torch.Tensor) -> Terms | None:
    """The same numbers and the same gradients with passes that can be compiled; None where they are not.

    With gᵢ = ∇marginᵢ and uᵢⱼ = (gᵢ + gⱼ)/‖gᵢ + gⱼ‖, held, Σ‖gᵢ + gⱼ‖ = Σᵢ⟨vᵢ, gᵢ⟩ for vᵢ = Σⱼuᵢⱼ, and both sides have the
    same gradient, since that of a norm is its direction. ⟨vᵢ, gᵢ⟩ is the derivative of marginᵢ along vᵢ.
    """
    networks = model.compiled
    if not networks:
        return None
    with model.held():
        places = noisy.detach().requires_grad_(True)
        answers = [network(places).float() for network in networks]
        rival, right = _ahead(answers, labels)
        slopes = [torch.autograd.grad(_margin(each, labels, rival).sum(), places)[0].clone() for each in answers]
    found = [each.along(noisy, v) for each, v in zip(networks, _directions(slopes, right), strict=True)]
    duals = [(logits.float(), change.float()) for logits, change in (one for one in found if one is not None)]
    if len(duals) < len(networks):
        return None
    apart = torch.stack([_margin_along(*dual, labels, rival) for dual in duals]).sum(0)
    wide = torch.stack([_margin(logits, labels, rival) for logits, _ in duals]).sum(0)
    return Terms([logits for logits, _ in duals], apart.mean(), (right * wide).mean())


def _ahead(answers: list[torch.Tensor], labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The ensemble's first class beside the label, and where it answers the label (1, else 0)."""
    mean = torch.stack([each.detach() for each in answers]).mean(0)
    rival = mean.scatter(1, labels[:, None], -torch.inf).argmax(1)
    return rival, (mean.argmax(1) == labels).float()


def _directions(slopes: list[torch.Tensor], right: torch.Tensor) -> list[torch.Tensor]:
    """vᵢ for every network; 0 where the ensemble is wrong, and where two gradients cancel."""
    found = [torch.zeros_like(each) for each in slopes]
    for i, j in combinations(range(len(slopes)), 2):
        both = slopes[i] + slopes[j]
        size = both.flatten(1).norm(dim=1)
        share = torch.where(size > 0, right / size, 0.0).reshape(-1, *[1] * (both.ndim - 1))
        found[i] = found[i] + share * both
        found[j] = found[j] + share * both
    return found


def _margin(logits: torch.Tensor, labels: torch.Tensor, rival: torch.Tensor) -> torch.Tensor:
    p = logits.softmax(-1)
    return p.gather(1, labels[:, None])[:, 0] - p.gather(1, rival[:, None])[:, 0]


def _margin_along(
    logits: torch.Tensor, change: torch.Tensor, labels: torch.Tensor, rival: torch.Tensor
) -> torch.Tensor:
    """The derivative of the margin where the logits change so: ṗ = p(ż − ⟨p, ż⟩)."""
    p = logits.softmax(-1)
    moved = p * (change - (p * change).sum(-1, keepdim=True))
    return moved.gather(1, labels[:, None])[:, 0] - moved.gather(1, rival[:, None])[:, 0]
