"""By what is classified: the built-in models, and classifiers loaded from modules and files."""

from ucan.models.build import BUILT_IN, build_model
from ucan.models.cnn import CNN
from ucan.models.denoised import Denoised, DiffusionStep, DnCNN
from ucan.models.ensemble import Ensemble
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
    "Ensemble",
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
