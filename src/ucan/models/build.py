"""The built-in models by name, each with its normalisation in front."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ucan.errors import ModelError
from ucan.models.cnn import CNN
from ucan.models.lenet import LeNet
from ucan.models.mobilenet import MobileNetV2, Rotate
from ucan.models.normalise import CIFAR10, HALF, IMAGENET, Normalise, Statistics
from ucan.models.resnet import CifarResNet, resnet18_small, resnet50
from ucan.readiness import TRANSPOSED, channels_last

STATISTICS: dict[str, Statistics] = {"imagenet": IMAGENET, "cifar10": CIFAR10, "half": HALF}


@dataclass(frozen=True)
class _BuiltIn:
    """How a model is made from (channels, size, classes), and its defaults."""

    make: Callable[[int, int, int], nn.Module]
    event_shape: tuple[int, int, int]
    num_classes: int
    statistics: Statistics = IMAGENET
    rotate: bool = False


def _cifar(depth: int) -> _BuiltIn:
    return _BuiltIn(lambda channels, _, classes: CifarResNet(depth, channels, classes), (3, 32, 32), 10)


BUILT_IN: dict[str, _BuiltIn] = {
    "cnn": _BuiltIn(CNN, (1, 28, 28), 10),
    "cnn_hidden": _BuiltIn(lambda channels, size, classes: CNN(channels, size, classes, hidden=256), (1, 28, 28), 10),
    "lenet": _BuiltIn(LeNet, (1, 28, 28), 10),
    "resnet20": _cifar(20),
    "resnet56": _cifar(56),
    "resnet110": _cifar(110),
    "resnet18": _BuiltIn(lambda channels, _, classes: resnet18_small(channels, classes), (3, 32, 32), 10),
    "resnet50": _BuiltIn(lambda channels, _, classes: resnet50(channels, classes), (3, 224, 224), 1000),
    "mobilenet_v2": _BuiltIn(lambda channels, _, classes: MobileNetV2(channels, classes), (3, 224, 224), 1000),
    "mobilenet_v2_rotated": _BuiltIn(
        lambda channels, _, classes: MobileNetV2(channels, classes), (3, 224, 224), 1000, HALF, rotate=True
    ),
}


class BuiltIn(nn.Sequential):
    """Normalisation, if any, then ``network``, whose own weights can be loaded without the rest."""

    network: nn.Module


def build_model(
    name: str,
    event_shape: Sequence[int] | None = None,
    num_classes: int | None = None,
    normalise: str | Statistics = "auto",
    seed: int = 0,
) -> BuiltIn:
    """Make a built-in model, freshly initialised, in training mode; it takes pixels in [0, 1].

    ``normalise`` is (mean, std) per channel, "imagenet", "cifar10", "half", "none", or "auto": what the model's public
    weights expect for three channels, nothing for any other number. The initial weights depend only on ``seed``.
    """
    if name not in BUILT_IN:
        raise ModelError(f"there is no built-in model {name!r}: choose one of {', '.join(BUILT_IN)}.")
    kind = BUILT_IN[name]
    shape = tuple(kind.event_shape if event_shape is None else event_shape)
    classes = kind.num_classes if num_classes is None else num_classes
    if len(shape) != 3 or min(shape) < 1:
        raise ModelError(f"{name} takes pictures of shape (channels, height, width), got {shape}.")
    if name in ("cnn", "cnn_hidden", "lenet") and shape[1] != shape[2]:
        advice = f". {TRANSPOSED}" if channels_last(shape) else ": crop them, or use resnet20."
        raise ModelError(f"the {name} takes square pictures, got {shape}{advice}")
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
        raise ModelError(f"num_classes must be a whole number of at least 2, got {classes!r}.")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    statistics = _statistics(normalise, kind, shape[0])
    if statistics is not None:
        layers["normalise"] = Normalise(*statistics)
    if kind.rotate:
        layers["rotate"] = Rotate()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers["network"] = kind.make(shape[0], shape[1], classes)
    return BuiltIn(layers)


def _statistics(normalise: str | Statistics, kind: _BuiltIn, channels: int) -> Statistics | None:
    if not isinstance(normalise, str):
        chosen: Statistics | None = normalise
    elif normalise == "auto":
        return kind.statistics if channels == 3 else None
    elif normalise in ("none", *STATISTICS):
        chosen = STATISTICS.get(normalise)
    else:
        raise ModelError(f"normalise must be auto, none, {', '.join(STATISTICS)} or (mean, std), got {normalise!r}.")
    if chosen is not None and len(chosen[0]) != channels:
        raise ModelError(
            f"normalise has {len(chosen[0])} channels, but the pictures have {channels}: give one value per channel."
        )
    return chosen
