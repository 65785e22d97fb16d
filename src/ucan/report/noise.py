"""The noise at an input of a run, as maps and as a noisy copy, from the certificates themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ucan.certificate import Certificate
from ucan.errors import UcanError
from ucan.fingerprint import weights_hash
from ucan.generators import Generator
from ucan.laws import Law
from ucan.places import found_model
from ucan.report.runs import Run
from ucan.runs.router import is_router
from ucan.scales import Scale, as_scale
from ucan.training import is_trained_run, load_run
from ucan.verify import noise_of

LARGEST = 4096  # dimensions up to which the scale in each pixel is worked out for a full Σ


@dataclass(frozen=True, eq=False)
class NoiseAt:
    """μ and λσ as maps (H, W), averaged over channels; a noisy copy (C, H, W), and what a classifier is shown of it.

    ``scale`` is None for a full Σ of more than 4096 dimensions and where every copy has its own Σ; ``seen`` is None where
    the classifier sees the whole copy.
    """

    offset: np.ndarray
    scale: np.ndarray | None
    copy: torch.Tensor
    seen: torch.Tensor | None


class Noise:
    """The noise of a run at any of its inputs.

    A certificate carries its own μ and Σ, and under scope `pipeline` all share them. The trained model adds what the
    classifier is shown of a noisy copy, and the noise of an abstention that was computed from its input; a model that
    has changed since is not asked.
    """

    def __init__(self, run: Run, typical: Certificate | None, missing: list[str], trust: bool = False) -> None:
        self.shared = run.scope == "pipeline" and not is_router(run.config.model.spec)  # experts have their own
        self.run = run
        self.typical = typical
        self.source = _source(run, missing, trust)
        self._held: Generator | None = None
        self._scale: np.ndarray | None = None

    def at(self, x: torch.Tensor, number: int, law: Law) -> NoiseAt | None:
        """The noise at one picture (1, C, H, W), the ``number``-th input; None if it is unknown."""
        held = self._of(x, number)
        if held is None:
            return None
        with torch.no_grad():
            mean, scale = held(x)
            copy = held.perturb(x, law, 1, torch.Generator().manual_seed(0))[0]
            seen = held.view(copy)
        if self.source is not None and self.source.redrawn:
            self._scale = None  # its Σ is that of the certificate's ball, not of the noise
        elif self._scale is None or not self.shared:
            self._scale = pixel_scale(as_scale(scale), tuple(x.shape[1:]))
        offset = mean.expand_as(x)[0].double().mean(0).numpy()
        shown = None if self._scale is None else law.scale * self._scale
        return NoiseAt(offset, shown, copy[0], None if torch.equal(seen, copy) else seen[0])

    def _of(self, x: torch.Tensor, number: int) -> Generator | None:
        if self.shared and self._held is not None:
            return self._held
        try:
            certificate = self.typical if self.shared else self.run.outcome(number)
            if isinstance(certificate, Certificate):
                self._held = noise_of(certificate, self.source)
            else:
                self._held = None if self.source is None else self.source.at(x)
        except UcanError:
            self._held = None
        return self._held


def pixel_scale(scale: Scale, shape: tuple[int, ...]) -> np.ndarray | None:
    """The scale of the noise in each pixel, averaged over channels: the lengths of Σ's rows. None beyond 4096 of them."""
    dim = int(np.prod(shape))
    if scale.elementwise:
        each = scale.apply(torch.ones(1, *shape, dtype=torch.float64))[0]
    elif dim <= LARGEST:
        each = torch.linalg.vector_norm(scale.dense(dim), dim=1).reshape(shape)
    else:
        return None
    return each.double().mean(0).numpy()


def _source(run: Run, missing: list[str], trust: bool) -> Generator | None:
    """The generator of the trained run that was certified, if it is there and still the same."""
    model = None if run.config.model.spec is None else found_model(run.config.model.spec, run.base)
    if model is None or not is_trained_run(model) or run.config.noise.given is not None:  # optimised in its place
        return None
    try:
        trained = load_run(model, trust=trust)
    except (UcanError, OSError) as error:
        missing.append(f"The trained noise of {model} cannot be loaded: {error}")
        return None
    if run.config.model.weights_hash not in (None, weights_hash(trained.classifier)):
        missing.append(f"{model} was trained anew since: what follows is from the certificates alone.")
        return None
    return trained.generator
