"""Several trained runs as one classifier, given as a list of folders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from ucan.errors import InvalidInput
from ucan.models import Ensemble
from ucan.places import parts_of
from ucan.training import checkpoint
from ucan.training.checkpoint import TrainedRun

MIRRORED, CONSENSUS = "mirrored", "consensus="


@dataclass(frozen=True)
class Together:
    """Folders of trained runs, and how their networks are combined.

    As text: the folders separated by commas, then optionally ``mirrored`` (each network also sees the mirror image) and
    ``consensus=K`` (the first K are evaluated first, the others only if these disagree).
    """

    folders: tuple[str, ...]
    mirrored: bool = False
    consensus: int | None = None

    @classmethod
    def of(cls, text: str | Path) -> Together:
        """What a text names: one folder, or several with commas."""
        whole = str(text)
        words = parts_of(whole)
        if words == [whole]:
            return cls((whole,))
        options = [word for word in words if word == MIRRORED or word.startswith(CONSENSUS)]
        agreeing = [word.removeprefix(CONSENSUS) for word in options if word != MIRRORED]
        if len(agreeing) > 1 or any(not number.isdecimal() for number in agreeing):
            raise InvalidInput(f"{whole!r}: consensus takes one whole number, such as consensus=2.")
        folders = tuple(word for word in words if word not in options and word)
        if not folders:
            raise InvalidInput(f"{whole!r} names no run: give the folders of trained runs, with commas between them.")
        if len(set(map(_place, folders))) < len(folders):
            raise InvalidInput(f"{whole!r} names a run twice: an ensemble needs different networks.")
        return cls(folders, MIRRORED in options, int(agreeing[0]) if agreeing else None)

    @property
    def options(self) -> tuple[str, ...]:
        """How the networks are combined, as text."""
        consensus = () if self.consensus is None else (f"{CONSENSUS}{self.consensus}",)
        return (*((MIRRORED,) if self.mirrored else ()), *consensus)

    @property
    def alone(self) -> bool:
        """Whether it is one run as it is."""
        return len(self.folders) == 1 and not self.mirrored and self.consensus is None


def is_trained_run(named: str | Path) -> bool:
    """Whether a text names a finished run of ``ucan train``, or several of them with commas."""
    try:
        folders = Together.of(named).folders
    except InvalidInput:
        return True  # loading it then raises the error
    found = [checkpoint.is_trained_run(folder) for folder in folders]
    # Where only some of several are trained runs, loading them says which are not.
    return any(found)


def load_run(named: str | Path, classifier: nn.Module | None = None, trust: bool = False) -> TrainedRun:
    """The run in a folder, or several runs as one (``ucan.Ensemble``), in evaluation mode on the CPU.

    Runs in an ensemble must have the same noise, input shape and classes.

    Args:
        named: the run's folder, or several separated by commas (with ``mirrored`` and ``consensus=K``).
        classifier: for one run whose Trainer was given a model object: a new model of the same kind, into which the weights
            are loaded.
        trust: whether a module beside the run may be imported, and called with the values that the run states.
    """
    asked = Together.of(named)
    if classifier is not None:
        return checkpoint.load_run(named, classifier, trust)
    runs = [checkpoint.load_run(folder, trust=trust) for folder in asked.folders]
    first = runs[0]
    if asked.alone:
        return first
    for run in runs[1:]:
        for what, mine, other in (
            ("input shape", first.shape, run.shape),
            ("number of classes", first.num_classes, run.num_classes),
            ("classes", first.classes or run.classes, run.classes or first.classes),  # older runs do not state them
            ("noise law", first.law, run.law),
            ("noise", _noise(first), _noise(run)),
            ("budget", _limits(first), _limits(run)),
        ):
            if mine != other:
                raise InvalidInput(
                    f"{run.folder} differs from {first.folder} in its {what}, so they cannot be combined: train them with "
                    f"the same settings and other seeds."
                )
    networks = Ensemble([run.classifier for run in runs], asked.mirrored, asked.consensus)
    names = next((run.classes for run in runs if run.classes), None)
    return replace(first, folder=Path(str(named)), classifier=networks, classes=names)


def _noise(run: TrainedRun) -> tuple[object, ...]:
    record = run.generator.record()
    return record.kind, record.module, dict(record.settings), record.state


def _limits(run: TrainedRun) -> tuple[object, ...] | None:
    if run.budget is None:
        return None
    groups = run.budget.groups
    return run.budget.limits.flatten().tolist(), None if groups is None else groups.flatten().tolist()


def _place(folder: str) -> Path:
    return Path(folder).resolve()
