"""Joint training of a classifier and its noise."""

from ucan.training.checkpoint import TrainedRun
from ucan.training.claims import for_claim
from ucan.training.classifier import build_classifier
from ucan.training.loop import Trainer
from ucan.training.settings import TrainSettings, preset_names, preset_text, read_settings
from ucan.training.together import Together, is_trained_run, load_run

__all__ = [
    "Together",
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
