"""Models: the built-in ones, and classifiers loaded from modules and files."""

from typing import TYPE_CHECKING

from ucan.lazy import lazy_names

if TYPE_CHECKING:
    from ucan.models.build import BUILT_IN, build_model
    from ucan.models.cnn import CNN
    from ucan.models.denoised import Denoised, DiffusionStep, DnCNN
    from ucan.models.embedded import Embedded
    from ucan.models.ensemble import Ensemble
    from ucan.models.lenet import LeNet
    from ucan.models.load import load_model
    from ucan.models.mobilenet import MobileNetV2
    from ucan.models.normalise import CIFAR10, IMAGENET, Normalise
    from ucan.models.resnet import CifarResNet, ResNet, resnet18_small, resnet50
    from ucan.models.weights import load_weights, read_weights

__all__ = [
    "BUILT_IN",
    "CIFAR10",
    "CNN",
    "IMAGENET",
    "CifarResNet",
    "Denoised",
    "DiffusionStep",
    "DnCNN",
    "Embedded",
    "Ensemble",
    "LeNet",
    "MobileNetV2",
    "Normalise",
    "ResNet",
    "build_model",
    "load_model",
    "load_weights",
    "read_weights",
    "resnet18_small",
    "resnet50",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "build": "BUILT_IN build_model",
        "cnn": "CNN",
        "denoised": "Denoised DiffusionStep DnCNN",
        "embedded": "Embedded",
        "ensemble": "Ensemble",
        "lenet": "LeNet",
        "load": "load_model",
        "mobilenet": "MobileNetV2",
        "normalise": "CIFAR10 IMAGENET Normalise",
        "resnet": "CifarResNet ResNet resnet18_small resnet50",
        "weights": "load_weights read_weights",
    },
)
