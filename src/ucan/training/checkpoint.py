"""The files of a training run: a checkpoint to resume from, and the final weights."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from ucan.budget import Budget
from ucan.config import CONFIG, differences, frozen, read_config, refuse_changes, write_config
from ucan.errors import StoreError, TrainingError, UcanError, first_line
from ucan.generators import Generator
from ucan.laws import Law
from ucan.lock import LOCK, WriterLock
from ucan.places import base_of, loadable, same_place
from ucan.storage import unfinished, whole, write_whole
from ucan.training.classifier import build_classifier
from ucan.training.settings import TrainSettings

CHECKPOINT, WEIGHTS, METRICS = "checkpoint.pt", "weights.safetensors", "metrics.jsonl"
FAILED = "failed.txt"  # why the training in this folder came to an end that resuming does not mend
START = "finetune_hash"  # in the config: the SHA-256 of the weights that the training began with, those of ``finetune``
NAMES = "class_names"  # in the config: what the training data call the classes, in the order of the network's outputs
# Settings that change no weight, so that a run may be resumed with another value.
FREE = ("certify_every",)
CHECKPOINT_KEYS = {"epoch", "step", "totals", "joint", "optimisers", "ema", "noise", "layers"}


@dataclass(frozen=True)
class TrainedRun:
    """A trained classifier with the noise it was trained for."""

    folder: Path
    settings: TrainSettings
    classifier: nn.Module
    generator: Generator
    law: Law
    shape: tuple[int, ...]
    num_classes: int
    budget: Budget | None = None
    base: Path | None = None  # the directory that its paths are relative to
    classes: tuple[str, ...] | None = None  # their names, if the training data have any; older runs do not state them


def begin(folder: Path, config: dict[str, Any]) -> WriterLock:
    """Make the folder of a training, or take up one with the same settings and data; others are refused.

    The folder is the caller's alone until the lock is released: two trainings in it would mix their weights.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        new = not (folder / LOCK).exists()
        lock = WriterLock(folder / LOCK)
    try:
        aside = _check_settings(folder, config)
        if aside is None:
            _remove_unfinished(folder)
    except BaseException:
        if new:
            lock.remove()
        else:
            lock.release()
        raise
    if aside is None:
        return lock
    lock.release()  # it is of the folder that was renamed
    return begin(folder, config)


def _remove_unfinished(folder: Path) -> None:
    """Remove what a training that was killed has left half-written: each kill would leave another copy of the weights."""
    for name in (CONFIG, CHECKPOINT, WEIGHTS):
        for part in unfinished(folder / name):
            part.unlink(missing_ok=True)


def _check_settings(folder: Path, config: dict[str, Any]) -> Path | None:
    """Refuse a folder that holds other files, or a run with other settings, data or first weights; where a failed one is
    now.
    """
    path = folder / CONFIG
    if not path.exists():
        # An older run without stored settings has a checkpoint, and is resumed.
        own = {folder / LOCK, *unfinished(path)}
        if set(folder.iterdir()) - own and not (folder / CHECKPOINT).exists():
            raise TrainingError(f"{folder} holds files that are not a run: give another folder (--out).")
        return None
    begun = read_config(path)
    if begun.get("kind") != config.get("kind"):
        raise TrainingError(f"{folder} holds a run of another kind ({begun.get('kind')}): give another folder (--out).")
    # An older run without data_hash, or without the names of its classes, is resumed without it.
    asked = {key: value for key, value in config.items() if key not in ("data_hash", NAMES) or key in begun}
    changed = differences(_compared(begun), _compared(_respelled(begun, frozen(asked), folder)))
    # A checkpoint has the run's own weights: then those that it began with are not needed again, and may have changed.
    resumed = (folder / CHECKPOINT).exists()
    others = not resumed and begun.get(START) != config.get(START)
    if (changed or others) and not resumed and not (folder / WEIGHTS).exists():
        path.unlink()  # it was started and left nothing: there is nothing to resume, and nothing to lose
    elif changed and (folder / FAILED).exists():
        return set_aside(folder)
    else:
        refuse_changes(folder, changed, TrainingError)
        if others and START in begun:  # older runs do not state them
            raise TrainingError(
                f"{folder} has no checkpoint to go on from, and the weights in {config['finetune']}, which its training began "
                f"with, have changed since (their SHA-256 was {begun[START]}). Give those again, or another --out."
            )
    return None


def _compared(config: dict[str, Any]) -> dict[str, Any]:
    """The config without what changes no weight; a setting that is newer than the run has its usual value."""
    training = {**frozen(TrainSettings().to_dict()), **config.get("training", {})}
    kept = {key: value for key, value in config.items() if key not in ("started_in", START)}
    return {**kept, "training": {key: value for key, value in training.items() if key not in FREE}}


def _respelled(begun: dict[str, Any], asked: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The requested config with the run's own paths where they lead to the same files from here."""
    base, moved = base_of(folder, begun.get("started_in")), dict(asked)
    if same_place(begun.get("finetune"), base, asked.get("finetune")):
        moved["finetune"] = begun["finetune"]
    if same_place(begun["training"].get("data"), base, asked["training"].get("data")):
        moved["training"] = {**asked["training"], "data": begun["training"]["data"]}
    return moved


def set_aside(folder: Path) -> Path:
    """Rename the folder of a failed training, so that another attempt can have its name."""
    number = next(n for n in itertools.count(1) if not folder.with_name(f"{folder.name}-failed-{n}").exists())
    return folder.rename(folder.with_name(f"{folder.name}-failed-{number}"))


def clear_failed(folder: Path, error: BaseException) -> None:
    """After an error: what was written before the first checkpoint is removed; after it, the folder is marked as failed if
    resuming would fail again. So a corrected attempt is not blocked, and nothing that is worth anything is lost.
    """
    if (folder / CHECKPOINT).exists():
        if isinstance(error, TrainingError):
            with suppress(OSError):  # it would hide the error
                write_whole(folder / FAILED, f"{error}\n".encode())
        return
    with suppress(OSError):
        for name in (CONFIG, METRICS):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        # Last, and while it is held: who locks the next one begins in a folder that is done with.
        (folder / LOCK).unlink(missing_ok=True)
        folder.rmdir()  # only if nothing else is in it


def keep_settings(folder: Path, config: dict[str, Any]) -> None:
    """Store the settings with the run, if they are not there yet."""
    if not (folder / CONFIG).exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Which weights an older run without stored settings began with is not known.
        known = {**config, START: None} if (folder / CHECKPOINT).exists() else config
        with writing(folder / CONFIG):
            write_config(folder / CONFIG, known)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Put what goes wrong in writing this file of a training, or its folder, into words: of a full disk PyTorch and
    safetensors raise no OSError.
    """
    try:
        yield
    except UcanError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        checkpoint = ((path if path.is_dir() else path.parent) / CHECKPOINT).exists()
        raise StoreError(
            f"{path} cannot be written ({first_line(error)}): check that there is space left and that you may write there, "
            f"then run the same command again. {'The checkpoint before it is kept' if checkpoint else 'Nothing was saved yet'}."
        ) from error


def write_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    with writing(folder / CHECKPOINT), whole(folder / CHECKPOINT) as (part,):
        torch.save(state, part)


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The checkpoint, if there is one; only tensors and plain values are read, no code."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load has no error type of its own
        raise TrainingError(
            f"{path} cannot be read: it is damaged or not a checkpoint. Remove it to start again."
        ) from error
    if not isinstance(state, dict) or not state.keys() >= CHECKPOINT_KEYS:
        raise TrainingError(f"{path} is not a checkpoint of `ucan train`. Remove it to start again.")
    return state


def save_run(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """Write the final weights atomically."""
    with writing(folder / WEIGHTS), whole(folder / WEIGHTS) as (part,):
        # Copies, since layers may share weights, which safetensors does not write.
        kept = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in state.items()}
        save_file(kept, part)
    (folder / FAILED).unlink(missing_ok=True)


def is_trained_run(folder: str | Path) -> bool:
    """Whether a folder holds a finished run of ``ucan train``."""
    return (Path(folder) / WEIGHTS).is_file() and (Path(folder) / CONFIG).is_file()


def check_finished(folder: Path) -> None:
    """Refuse a folder that holds no finished training run; say what is missing, and what to do."""
    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if missing == [WEIGHTS] and (folder / CHECKPOINT).is_file():
        what = "start the same training again to resume from its checkpoint"
    elif missing == [CONFIG]:
        what = "run its Trainer again with the same settings and data"
    else:
        what = "`ucan train` creates one"
    if missing:
        raise TrainingError(f"{folder} holds no finished training run ({' and '.join(missing)} missing): {what}.")


def weights_file(start: str | Path) -> Path:
    """The file with the weights to start from: the given file, or that of the finished run in that folder."""
    path = Path(start)
    if not path.is_dir():
        return path
    check_finished(path)
    return path / WEIGHTS


def _stated(config: Mapping[str, Any], path: Path) -> tuple[tuple[int, ...], int, TrainSettings]:
    """The shape of the inputs, the number of classes and the settings, as the config of a training run has them."""
    shape, classes, training = (config.get(key) for key in ("shape", "num_classes", "training"))
    whole = [size for size in (*(shape if isinstance(shape, list) else ()), classes) if type(size) is int and size > 0]
    if not (isinstance(shape, list) and len(whole) == len(shape) + 1 > 1 and isinstance(training, dict)):
        raise TrainingError(
            f"{path} does not state the shape of the inputs, num_classes and [training] of a run of `ucan train`: it was "
            "changed, or is the config of something else."
        )
    return tuple(shape), int(whole[-1]), TrainSettings.from_dict(training)


def load_run(folder: str | Path, classifier: nn.Module | None = None, trust: bool = False) -> TrainedRun:
    """The classifier, generator and law of a finished training run, in evaluation mode on the CPU.

    Args:
        folder: the run's folder.
        classifier: for a run whose Trainer was given a model object: a new model of the same kind, into which the weights are
            loaded.
        trust: whether a module beside the run may be imported, and called with the values that the run states.
    """
    folder = Path(folder)
    check_finished(folder)
    config = read_config(folder / CONFIG)
    shape, num_classes, settings = _stated(config, folder / CONFIG)
    base = base_of(folder, config.get("started_in"))
    if classifier is None:
        loadable(settings.model, base, trust)  # then a module beside the run can be imported from anywhere
    classifier = classifier or build_classifier(settings, shape, num_classes)
    generator = settings.build_generator(shape, None)
    try:
        state = load_file(folder / WEIGHTS)
        for name, module in (("classifier.", classifier), ("generator.", generator)):
            module.load_state_dict({k.removeprefix(name): v for k, v in state.items() if k.startswith(name)})
    except (RuntimeError, SafetensorError) as error:
        raise TrainingError(
            f"{folder / WEIGHTS} does not fit {folder / CONFIG}: {' '.join(str(error).split())[:300]} "
            "If the Trainer was given your own model, pass one to load_run as well: load_run(folder, model)."
        ) from error
    law = settings.build_law(math.prod(shape))
    budget = Budget(state["budget"]) if "budget" in state else None
    names = tuple(map(str, config.get(NAMES, ()))) or None
    return TrainedRun(
        folder, settings, classifier.eval(), generator.eval(), law, shape, num_classes, budget, base, names
    )
