"""Noise that is found at each input by trying the classifier there: the common part, and σ from a list by votes."""

from __future__ import annotations

import abc
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from scipy import special
from torch import nn

from ucan.bounds import lower_bound
from ucan.catalogue import call
from ucan.errors import InvalidInput, ModelError, UnsupportedNorm
from ucan.generators.base import Generator
from ucan.generators.context import Context
from ucan.laws import Gaussian, Law
from ucan.scales import Diagonal, Scale
from ucan.sidecar import input_hash

# The level of the lower bound on p by which scales are compared.
COMPARED = 0.05

# Noisy copies (count, *event) with given scales, and a size of the scales.
Copies = Callable[[torch.Tensor, int], torch.Tensor]
Size = Callable[[torch.Tensor], torch.Tensor]


class Found(Generator, abc.ABC):
    """Gaussian noise whose scales are found at each input by trying the classifier there. Scope: ``frozen``.

    What a certificate says is computed from other votes than those that chose the scales. It speaks of the noise held at
    this input: **a pipeline that looks for its noise anew at a perturbed input is not covered** (docs/scopes.md); a registry
    makes it a guarantee (docs/registry.md).
    """

    scope = "frozen"
    on_model = True

    def __init__(self, model: Any, law: Law) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ModelError(
                "optimised noise needs a torch.nn.Module, and most kinds its gradient: give the network itself."
            )
        check_gaussian(law)
        self.model, self.noise_scale = model, law.scale

    @classmethod
    def fitted(cls, context: Context, **parameters: Any) -> Generator:
        """Made by its name, for a classifier and its law."""
        if context.model is None:
            raise InvalidInput(
                "noise optimised for each input needs a classifier that is there: certify with it (--noise), it is not trained."
            )
        made: Generator = call("generator", functools.partial(cls, context.model, context.law), parameters)
        return made

    def check_claim(self, law: Law, norm: float | None = None) -> None:
        """Gaussian noise of the scale that it was found for."""
        check_gaussian(law)
        if law.scale != self.noise_scale:
            raise InvalidInput(f"this noise is optimised for the scale {self.noise_scale:g}, not {law.scale:g}.")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """μ = 0 and the scales of each input."""
        sigmas = [self._optimised(one) for one in x.split(1)]
        return x.new_zeros(()), Diagonal(torch.cat(sigmas).to(x.dtype).expand_as(x).contiguous())

    @abc.abstractmethod
    def _optimised(self, x: torch.Tensor) -> torch.Tensor:
        """The scales for one input (1, *event), of a shape that broadcasts against it."""

    @torch.no_grad()
    def _best(
        self, copies: Copies, way: Sequence[torch.Tensor], size: Size, votes: int, label: int | None = None
    ) -> torch.Tensor:
        """Of these scales the one with the largest size(σ)·Φ⁻¹(p), p bounded from below by votes; the first one of equals.

        p is that of one class, or of the class that each has the most votes for.
        """
        worth = []
        for sigma in way:
            answers = self._answers(copies(sigma, votes))
            hits = int(answers.bincount().max() if label is None else (answers == label).sum())
            worth.append(float(size(sigma)) * float(special.ndtri(lower_bound(hits, votes, COMPARED))))
        return way[max(range(len(way)), key=worth.__getitem__)].detach()

    def _answers(self, copies: torch.Tensor) -> torch.Tensor:
        """The class that the network answers with at each copy."""
        logits: torch.Tensor = self.model(copies)
        if logits.ndim != 2:
            raise ModelError(
                f"optimised noise needs logits (n, classes) of the network, and it answers {tuple(logits.shape)}."
            )
        return logits.argmax(-1)

    def _copies(self, x: torch.Tensor, rng: torch.Generator, sigma: torch.Tensor, count: int) -> torch.Tensor:
        """Noisy copies (count, *event) of one input (1, *event) with these scales."""
        eps = torch.randn(count, *x.shape[1:], generator=rng, device=x.device)
        return self.view(x + self.noise_scale * sigma * eps)


class SampleWise(Found):
    """σ chosen for each input from a list, the one with the largest radius by votes. Scope: ``frozen``; see ``Found``.

    The radius is that of the class which the law's own scale has the most votes for: noise so large that another class wins
    everywhere has large radii, too. Choosing a noise level for each sample is due to Wang et al. (2020), who also train for
    it; here it is the choice alone, for a classifier that is there. No gradient is used.

    model: the classifier f, a network that answers with logits.
    law: Gaussian noise; every σ is a multiple of its scale.
    sigmas: the multiples that are tried.
    votes: how many noisy copies are classified for each of them.
    """

    def __init__(
        self, model: Any, law: Law, sigmas: Sequence[float] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0), votes: int = 1000
    ) -> None:
        super().__init__(model, law)
        if not isinstance(sigmas, list | tuple) or not sigmas or not all(_positive(s) for s in sigmas):
            raise InvalidInput(f"sigmas must be a list of numbers above 0, got {sigmas!r}.")
        check_whole(votes=votes)
        self.sigmas, self.votes = tuple(float(s) for s in sigmas), votes

    def _optimised(self, x: torch.Tensor) -> torch.Tensor:
        """The best of the list for one input (1, *event)."""
        inner = x.float()
        copies = functools.partial(self._copies, inner, source_of(x))
        own, *tried = (torch.full((1,) * x.ndim, sigma, device=x.device) for sigma in (1.0, *self.sigmas))
        with torch.no_grad():
            label = int(self._answers(copies(own, self.votes)).bincount().argmax())
        return self._best(copies, tried, torch.amin, self.votes, label)


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def check_whole(**counts: Any) -> None:
    """Refuse anything but whole numbers of at least 1."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidInput(f"{name} must be a whole number of at least 1, got {value!r}.")


def check_numbers(**values: Any) -> None:
    """Refuse anything but finite numbers."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidInput(f"{name} must be a finite number, got {value!r}.")


def check_gaussian(law: Law) -> None:
    """Refuse a law whose radius is not Φ⁻¹."""
    if type(law) is not Gaussian:
        raise UnsupportedNorm(f"noise optimised for each input is Gaussian, not {type(law).__name__}: use Gaussian.")


def source_of(x: torch.Tensor) -> torch.Generator:
    """Draws that follow from the input: the same noise is found at it whenever it is asked for.

    The hash is of another text than those of the streams that votes are drawn from (``ucan.votes.Stream``): a bound on p
    holds because, Σ once chosen, its votes are independent of the draws that chose it.
    """
    seed = hashlib.sha256(f"optimised/{input_hash(x)}".encode()).hexdigest()[:8]
    return torch.Generator(x.device).manual_seed(int(seed, 16))
