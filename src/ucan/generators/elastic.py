"""Isotropic noise whose σ changes slowly with the input, and the radius that this leaves: sound for the deployed pipeline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy import special

from ucan.catalogue import call
from ucan.errors import InvalidInput, UnsupportedNorm
from ucan.generators.base import Generator
from ucan.generators.composed import Redrawn
from ucan.generators.context import Context
from ucan.laws import Gaussian, Law, norm_name
from ucan.region import Region
from ucan.scales import Scalar, Scale

# Taken off a radius that was found by halving with scipy's incomplete gamma functions, relative to it.
FOUND = 1e-9
# Of a set under noise that is stretched by e to this power nothing is claimed: its square is near the end of float64.
STRETCHED = 300.0
# The most reference inputs that a certificate's noise is computed from by default.
REFERENCES = 5000


def rescaled(q: float, stretch: float, dim: int) -> float:
    """The least probability under N(0, s²I) of a set that has q under N(0, I), for every |log s| ≤ stretch.

    By Neyman–Pearson the worst set is a ball for s > 1 and the outside of one for s < 1, and both values fall as s leaves 1.
    """
    if not 0 < q < 1:
        return q
    if stretch > STRETCHED:
        return 0.0
    half = dim / 2
    wider = special.gammainc(half, special.gammaincinv(half, q) * math.exp(-2 * stretch))
    narrower = special.gammaincc(half, special.gammainccinv(half, q) * math.exp(2 * stretch))
    return float(min(wider, narrower))


def kept(p: float, a: float, sigma: float, rate: float, dim: int) -> float:
    """The least probability that a set of probability p under N(x, σ²I) has under N(x′, σ′²I), for every x′ within a of x and
    every |log σ′ − log σ| ≤ rate·a: first the centre moves, then the noise is stretched. It falls as a grows.
    """
    if not 0 < p < 1:
        return p
    return rescaled(float(special.ndtr(special.ndtri(p) - a / sigma)), rate * a, dim)


def elastic_radius(p: float, p_b: float, sigma: float, rate: float, dim: int) -> float:
    """The largest known a such that a class of probability p keeps its lead over any of at most p_b, within a."""
    if not p > p_b:
        return 0.0
    if p >= 1:
        return (
            math.inf if rate == 0 else 0.0
        )  # never bounded so by votes; a set of probability 1 may have any other size

    def leads(a: float) -> bool:
        return kept(p, a, sigma, rate, dim) >= 1 - kept(1 - p_b, a, sigma, rate, dim)

    low, high = 0.0, sigma * float(special.ndtri(p) - special.ndtri(p_b))  # beyond what a fixed σ certifies
    while low < (middle := (low + high) / 2) < high and high - low > 1e-13 * high:
        low, high = (middle, high) if leads(middle) else (low, middle)
    return low * (1 - FOUND)


class InputDependent(Generator):
    """σ(x) = exp(rate·(m(x) − middle)), m(x) the mean distance of x to its k nearest references. Scope: ``pipeline``.

    The variance function of Súkeník et al. (2022), with a radius that is derived here (docs/theory/input-dependent.md). A
    distance changes by at most ‖δ‖₂ when x moves by δ, hence so does the mean of the k smallest, and log σ by at most
    rate·‖δ‖₂. So at every x + δ the pipeline, which computes σ anew there, has noise N(x + δ, σ′²) with |log σ′ − log σ| ≤
    rate·‖δ‖₂, and ``kept`` bounds what is left of p. Gaussian noise, ℓ2.

    In d dimensions a stretch by rate·a costs about rate·a·√(2d) standard deviations, so the radius is about
    Φ⁻¹(p)/(1/σ + rate·√(2d)): a rate must be small beside 1/(σ√(2d)).

    references: inputs (n, *event), in the usual case of the training set.
    k: how many nearest ones.
    rate: r, how fast log σ may change, for each unit of ℓ2 distance; 0 is isotropic noise.
    middle: the mean distance at which σ = 1; that of the references among each other if None.
    """

    scope = "pipeline"
    redrawn = True
    proven = ("sigma", "_nearest")
    references: torch.Tensor
    middle: torch.Tensor

    def __init__(self, references: torch.Tensor, k: int = 20, rate: float = 0.01, middle: float | None = None) -> None:
        super().__init__()
        if not (isinstance(references, torch.Tensor) and references.ndim >= 2 and bool(references.isfinite().all())):
            raise InvalidInput("references must be a tensor (n, *event) of finite numbers.")
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k < len(references):
            raise InvalidInput(f"k must be a whole number from 1 to below the {len(references)} references, got {k!r}.")
        if not (math.isfinite(rate) and rate >= 0):
            raise InvalidInput(f"rate must be 0 or more, got {rate!r}.")
        self.register_buffer("references", references.detach().clone())
        self.k, self.rate = k, float(rate)
        self.register_buffer("middle", torch.tensor(self._among() if middle is None else middle, dtype=torch.float64))

    @classmethod
    def fitted(cls, context: Context, most: int = REFERENCES, **parameters: Any) -> Generator:
        """Made by its name: the references are the first training inputs; without any, a placeholder for saved ones."""
        images = context.images
        if images is None:
            images, parameters = torch.zeros(parameters.get("k", 20) + 1, *context.shape), {"middle": 0.0, **parameters}
        made: Generator = call("generator", cls, {"references": images[:most], **parameters})
        return made

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Saved references take the place of those that it was made with, however many they are."""
        saved = state_dict.get(prefix + "references")
        if saved is not None:
            self.references = torch.empty_like(saved, device=self.references.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @classmethod
    def needs_inputs(cls, parameters: Mapping[str, Any]) -> bool:
        """Always: they are the references."""
        return True

    @classmethod
    def purposes(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """ℓ2 alone."""
        return ("l2",)

    @classmethod
    def tells(cls, settings: Mapping[str, Any]) -> bool:
        """No: what a certificate says is its region."""
        return False

    @property
    def own_norm(self) -> float:
        """ℓ2."""
        return 2

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """μ = 0 and Σ = I: the region is a ball. The noise is σ(x)ε, which ``place`` adds."""
        return x.new_zeros(()), Scalar(1.0)

    def sigma(self, x: torch.Tensor) -> torch.Tensor:
        """σ(x), one for each input (batch, *event), in their precision; differentiable."""
        return (self.rate * (self._nearest(x) - self.middle.to(x))).exp()

    def _nearest(self, x: torch.Tensor) -> torch.Tensor:
        known = self.references.to(x).flatten(1)
        apart = torch.cdist(x.flatten(1), known, compute_mode="donot_use_mm_for_euclid_dist")
        return apart.topk(self.k, largest=False).values.mean(1)

    def _among(self) -> float:
        """The mean distance of references to their k nearest others."""
        known = self.references.flatten(1).double()
        some = torch.cdist(known[:1000], known).topk(self.k + 1, largest=False).values[:, 1:]
        return float(some.mean())

    def place(
        self, x: torch.Tensor, eps: torch.Tensor, law: Law, noise: tuple[torch.Tensor, Scale] | None = None
    ) -> torch.Tensor:
        """x + σ(x)ε: every input has the σ of where it is. Of which law ε is, ``check_claim`` asks before any work."""
        return x + self.sigma(x).reshape(-1, *[1] * (x.ndim - 1)) * eps

    def noise_size(self, x: torch.Tensor, law: Law, n: int, rng: torch.Generator) -> torch.Tensor:
        """With the σ of x itself: at the 0 where other noise is measured, it is another one."""
        draws = law.sample(n, tuple(x.shape[1:]), rng, x.dtype)
        return draws.abs().mean(0) * self.sigma(x.double())[0].to(x.dtype)

    def region(self, law: Law, p: float, norm: float, x: torch.Tensor, p_b: float | None = None) -> Region:
        """The ball in which the class keeps its lead, whatever σ is there."""
        self.check_claim(law, norm)
        sigma = law.scale * float(np.exp(self.rate * (float(self._nearest(x.double())[0]) - float(self.middle))))
        rival = 1 - p if p_b is None else min(p_b, 1 - p)
        return Region(1.0, elastic_radius(p, rival, sigma, self.rate, x.numel()), 2, tuple(x.shape[1:]))

    def budget_factor(self, law: Law, p: float, budget: Any, x: torch.Tensor, p_b: float | None = None) -> float:
        """That of its ball."""
        return self.region(law, p, 2, x, p_b).budget_factor(budget)

    def at(self, x: torch.Tensor) -> Generator:
        """The same noise, for one input. Nothing is held: the pipeline computes σ wherever it is."""
        return Redrawn(self)

    def looks(self) -> bool:
        """No: what the certificate says of Σ is the same at every input, and σ has a theorem of its own."""
        return type(self).forward is not InputDependent.forward

    def check_claim(self, law: Law, norm: float | None = None) -> None:
        """Refuse a law other than the Gaussian, and a norm other than ℓ2."""
        if type(law) is not Gaussian:
            raise InvalidInput(f"input-dependent noise needs the Gaussian law, got {type(law).__name__}.")
        if norm is not None and norm != 2:
            raise UnsupportedNorm(f"input-dependent noise has a radius against ℓ2, and none against {norm_name(norm)}.")

    def describe(self) -> str:
        """The rate, and the neighbours."""
        return f"InputDependent(rate {self.rate:g}, {self.k} of {len(self.references)} references)"
