"""Hugging Face transformers: an image-classification pipeline as a classifier of pixels, normalised behind the noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ucan.errors import InvalidInput, MissingExtra, ModelError
from ucan.laws import Law
from ucan.models.adapt import adapt, normalised
from ucan.smoothed import SmoothedClassifier

try:
    import transformers as _transformers  # noqa: F401  (whoever has a pipeline has it)
except ImportError as error:
    raise MissingExtra("this needs transformers: pip install 'ucan[transformers]'.") from error


def smoothed_pipeline(pipe: Any, law: Law, **options: Any) -> SmoothedClassifier:
    """The smoothed classifier of an image-classification pipeline, on pixels in [0, 1] of the size that its model takes.

    Noise is added to these pixels, before the pipeline's normalisation: radii are in units of pixels. ``inputs_of`` makes
    pictures into such pixels by the pipeline's own processor; its resizing and cropping come before, so a certificate is
    about changes of the picture as it was resized.

    Args:
        pipe: ``transformers.pipeline("image-classification", …)``.
        law: the noise law.
        options: those of ``ucan.SmoothedClassifier``.
    """
    processor, model = _processor(pipe), pipe.model.eval()
    module = normalised(model, _statistics(processor), len(_statistics(processor)[0]))
    example = torch.zeros(1, *_shape(pipe), device=pipe.device)
    found = adapt(module.eval(), example, options.pop("num_classes", None))
    return SmoothedClassifier(found.model, law, num_classes=found.num_classes, **options)


def inputs_of(pipe: Any, pictures: Sequence[Any]) -> torch.Tensor:
    """The ``pictures`` (PIL, or arrays of bytes) as pixels in [0, 1], (n, c, h, w).

    They are resized and cropped as the pipeline ``pipe`` does it.
    """
    processor = _processor(pipe)
    made = processor(images=list(pictures), do_normalize=False, return_tensors="pt")["pixel_values"]
    pixels = torch.as_tensor(np.asarray(made)) if not isinstance(made, torch.Tensor) else made
    if float(pixels.min()) < 0 or float(pixels.max()) > 1:
        raise InvalidInput(
            f"{type(processor).__name__} gives numbers from {float(pixels.min()):g} to {float(pixels.max()):g}, not pixels in "
            "[0, 1]: set its do_rescale."
        )
    return pixels.to(pipe.device)


def class_names(pipe: Any) -> tuple[str, ...]:
    """The labels of a pipeline's model, in the order of class numbers."""
    labels = pipe.model.config.id2label
    return tuple(str(labels[key]) for key in sorted(labels, key=int))


def _processor(pipe: Any) -> Any:
    if getattr(pipe, "task", None) != "image-classification" or not isinstance(pipe.model, nn.Module):
        raise ModelError(
            f"a pipeline of the task {getattr(pipe, 'task', type(pipe).__name__)!r} cannot be smoothed by noise on its input: "
            "give one of image-classification. No noise can be added to the tokens of a text, but to their embeddings: "
            "ucan.models.Embedded(pipe.model)."
        )
    return pipe.image_processor


def _statistics(processor: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What the pipeline subtracts from the pixels and divides them by."""
    if (
        not getattr(processor, "do_rescale", True)
        or abs(getattr(processor, "rescale_factor", 1 / 255) * 255 - 1) > 1e-6
    ):
        raise ModelError(
            f"{type(processor).__name__} does not scale bytes to [0, 1]: build the normalisation by hand, with "
            "ucan.models.adapt.normalised."
        )
    mean, std = processor.image_mean or (), processor.image_std or ()
    if not processor.do_normalize:
        return (0.0,) * max(1, len(mean)), (1.0,) * max(1, len(mean))
    return tuple(map(float, mean)), tuple(map(float, std))


def _shape(pipe: Any) -> tuple[int, int, int]:
    """The shape of an input, as the processor makes it from any picture."""
    picture = np.zeros((64, 64, 3), np.uint8)
    _, channels, height, width = inputs_of(pipe, [picture]).shape
    return channels, height, width
