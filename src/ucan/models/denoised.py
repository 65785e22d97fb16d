"""A denoiser in front of a classifier (Salman et al., 2020; Carlini et al., 2023): together they form the classifier f."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ucan.errors import ModelError
from ucan.models.ensemble import as_module


class Denoised(nn.Module):
    """classifier(denoiser(y)): smoothing for a classifier that was never trained with noise.

    denoiser: a network, or a function, from a noisy batch (n, *event) to a clean one of the same shape.
    classifier: any classifier on clean batches.

    The guarantee is about both together, as deployed; nothing is assumed about the denoiser. A classifier none of whose
    weights are trained stays in evaluation mode.
    """

    def __init__(self, denoiser: Any, classifier: Any) -> None:
        super().__init__()
        self.denoiser = as_module(denoiser, "the denoiser")
        self.classifier = as_module(classifier, "the classifier")
        self.eval()

    @classmethod
    def training_for(cls, classifier: nn.Module, channels: int, width: int = 64, depth: int = 17) -> Denoised:
        """A fresh DnCNN in front of a classifier whose weights stay as they are: what ``ucan train`` trains."""
        made = cls(DnCNN(channels, width, depth), classifier)
        made.classifier.requires_grad_(False)
        return made

    def train(self, mode: bool = True) -> Denoised:
        """Both in training mode, or in evaluation mode; a fixed classifier in evaluation mode always."""
        super().train(mode)
        if not any(weight.requires_grad for weight in self.classifier.parameters()):
            self.classifier.eval()
        return self

    def cleaned(self, y: torch.Tensor) -> torch.Tensor:
        """The denoised batch."""
        clean = self.denoiser(y)
        if not isinstance(clean, torch.Tensor) or clean.shape != y.shape:
            got = tuple(clean.shape) if isinstance(clean, torch.Tensor) else type(clean).__name__
            raise ModelError(f"the denoiser must return a batch of shape {tuple(y.shape)}, got {got}.")
        return clean

    def forward(self, y: torch.Tensor) -> Any:
        """The classifier's output on the denoised batch."""
        return self.classifier(self.cleaned(y))


class DnCNN(nn.Module):
    """A residual denoiser (Zhang et al., 2017): y minus the noise that ``depth`` convolutions find in it."""

    def __init__(self, channels: int = 3, width: int = 64, depth: int = 17) -> None:
        super().__init__()
        if depth < 3 or width < 1 or channels < 1:
            raise ModelError(f"DnCNN needs at least 3 layers and 1 channel, got depth {depth}, width {width}.")
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers.append(nn.Conv2d(width, channels, 3, padding=1))
        self.noise = nn.Sequential(*layers)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """The batch without the predicted noise."""
        noise: torch.Tensor = self.noise(y)
        return y - noise


class DiffusionStep(nn.Module):
    """One step of a diffusion model as a denoiser (Carlini et al., 2023), for pixels in [0, 1].

    unet: a network that takes (batch, step number of each) and predicts the noise; further output channels (a learned
    variance) are ignored.
    alphas_bar: ᾱ of every step, falling.
    scale: λ of the Gaussian noise, in pixel units.

    The step is the one with the noise level of the copies: with pixels mapped to [−1, 1] noise of 2λ, so
    (2λ)² = (1 − ᾱ)/ᾱ; √ᾱ·y then has the distribution of the diffusion's pictures at that step.
    """

    alpha_bar: torch.Tensor

    def __init__(self, unet: Any, alphas_bar: Sequence[float] | torch.Tensor, scale: float) -> None:
        super().__init__()
        known = torch.as_tensor(alphas_bar, dtype=torch.float64)
        if (
            known.ndim != 1
            or len(known) < 2
            or not bool((known[1:] < known[:-1]).all())
            or not (float(known[-1]) > 0 and float(known[0]) <= 1)
        ):
            raise ModelError("alphas_bar must be a falling sequence of numbers between 1 and 0.")
        if not (math.isfinite(scale) and scale > 0):
            raise ModelError(f"scale must be a number above 0, the λ of the noise, got {scale!r}.")
        ratio = (1 - known) / known
        if (2 * scale) ** 2 > float(ratio[-1]):
            raise ModelError(f"no step of this diffusion has as much noise as scale={scale:g}: use a smaller scale.")
        self.unet = as_module(unet, "the diffusion's network")
        self.step = int((ratio - (2 * scale) ** 2).abs().argmin())
        self.register_buffer("alpha_bar", known[self.step].float())

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """The denoised picture, clipped to [0, 1]."""
        root = self.alpha_bar.to(y).sqrt()
        at_step = root * (2 * y - 1)
        noise = self.unet(at_step, torch.full((len(y),), self.step, device=y.device))[:, : y.shape[1]]
        clean = (at_step - (1 - self.alpha_bar.to(y)).sqrt() * noise) / root
        found: torch.Tensor = ((clean + 1) / 2).clamp(0, 1)
        return found
