"""Joint training of a classifier and the noise that protects it."""

from ucan.training.checkpoint import TrainedRun, is_trained_run, load_run
from ucan.training.claims import for_claim
from ucan.training.classifier import build_classifier
from ucan.training.loop import Trainer
from ucan.training.settings import TrainSettings, preset_names, preset_text, read_settings

__all__ = [
    "TrainSettings",
    "TrainedRun",
    "Trainer",
    "build_classifier",
    "for_claim",
    "is_trained_run",
    "load_run",
    "preset_names",
    "preset_text",
    "read_settings",
]
