"""Noise without the pipeline that made it: as a certificate states it, or rebuilt by the name in its evidence."""

from __future__ import annotations

from typing import Any

import torch

from ucan.certificate import Abstention, Certificate
from ucan.errors import InvalidInput
from ucan.evidence import Noise
from ucan.generators import Context, Fixed, Generator, kind_of, rebuilt


class Stated(Fixed):
    """Noise as a certificate states it: its own Σ and μ. It is not known that a pipeline has this noise."""

    def __init__(self, certificate: Certificate, source: Generator | None = None) -> None:
        super().__init__(certificate.region.scale, certificate.mean)
        self.scope = "pipeline" if source is None else source.scope  # type: ignore[misc, assignment]
        self._noise = certificate.evidence.noise
        self._view = (source,)  # in a tuple: not a part of this module

    def view(self, y: torch.Tensor) -> torch.Tensor:
        """The view of the certificate's generator, if that is known."""
        source = self._view[0]
        return y if source is None else source.view(y)

    def record(self) -> Noise:
        """The certificate's record of its noise."""
        return self._noise

    def describe(self) -> str:
        """The certificate's line."""
        return self._noise.line


def noise_of(certificate: Certificate, source: Generator | None = None) -> Generator:
    """The noise that a certificate states: its own Σ and μ, fixed, with the view of its source.

    A verdict against this noise relies on the certificate's own statement, and says so.
    """
    if source is not None and source.redrawn:  # drawn for every copy: there is no Σ to fix
        return source
    noise = certificate.evidence.noise
    if source is None and not _told(noise):  # a view is part of the classifier, not of Σ
        raise InvalidInput(
            f"this certificate is about {noise.line} noise, which needs its network: give the trained run."
        )
    return Stated(certificate, source)


def noise_again(
    outcome: Certificate | Abstention, model: Any = None, shape: tuple[int, ...] | None = None
) -> Generator:
    """The noise of an outcome without its trained run: rebuilt by name, or as the certificate states it.

    Noise rebuilt by name must have the recorded state; a certificate's Σ and μ must determine its noise. ``model`` is the
    classifier, for noise that is optimised on it. ``shape`` is that of the inputs, which an abstention does not tell.
    """
    noise, event = outcome.evidence.noise, shape if isinstance(outcome, Abstention) else outcome.region.shape
    if noise.made is not None and event is None:
        raise InvalidInput(
            "every input of this run abstained, so that only its data tell the shape of its inputs, and they are not here: put "
            "them where the run names them, or give them with --data."
        )
    again = rebuilt(noise, Context(tuple(event or ()), outcome.evidence.law, model=model))
    if again is not None:
        return again
    kind = kind_of(noise)
    if kind is None or not (_told(noise) and (noise.constant if noise.complete else constant_line(noise))):
        raise InvalidInput(f"{noise.line} noise needs its generator: give the trained run's folder as --model.")
    if isinstance(outcome, Abstention):
        raise InvalidInput("every input of this run abstained, and only a certificate stores Σ.")
    return noise_of(outcome)


def constant_line(noise: Noise) -> bool:
    """Whether a record of version 0.1, whose noise is a line of text, names a kind that may claim the pipeline."""
    return getattr(kind_of(noise), "scope", None) == "pipeline"


def _told(noise: Noise) -> bool:
    """Whether a certificate's Σ and μ determine its noise, if its kind is known here."""
    kind = kind_of(noise)
    return kind is None or kind is Stated or kind.tells(noise.settings)
