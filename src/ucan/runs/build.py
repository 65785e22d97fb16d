"""From what a user names to what it stands for: law, noise, budget, data, device, and the smoothed classifier.

Everything may be given by its name, as on the command line, or as an object from Python.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ucan.arithmetic import step_of
from ucan.budget import Budget, read_budget
from ucan.data import ImageFolder, Labelled, load
from ucan.errors import InvalidInput, UcanError
from ucan.fingerprint import weights_hash
from ucan.generators import Fixed, Generator
from ucan.laws import Law
from ucan.models import BUILT_IN, load_model
from ucan.plan import CertifyPlan, PredictPlan
from ucan.readiness import cannot_answer
from ucan.runs.config import ModelRef, NoiseRef
from ucan.runs.parts import law_named, noise_named
from ucan.scales import Dense
from ucan.smoothed import SmoothedClassifier
from ucan.training import is_trained_run, load_run
from ucan.votes import as_answer, forward_size

Model = str | Callable[[torch.Tensor], Any]
# An eager job shorter than this, in seconds, is over before compiling would have paid.
WORTH_COMPILING = 120.0


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A classifier under its noise, as a user asks for it.

    ``model`` is what ``--model`` takes, or the classifier itself; ``law`` and ``noise`` are names, or a law and a generator.
    A trained run brings law and noise, and only λ (``scale``) may be changed. ``arithmetic`` is "grid", "real", or None: grid
    where the data have a step. ``backend`` "auto" compiles where a long job gains by it.
    """

    model: Model
    weights: str | Path | None = None
    law: str | Law | None = None
    scale: float | None = None
    exponent: float | None = None
    noise: str | Generator | None = None
    classes: int | None = None
    model_id: str | None = None
    precision: str | None = None
    arithmetic: str | None = None
    backend: str = "auto"
    device: str | torch.device = "auto"

    @property
    def spec(self) -> str | None:
        """How the model was named; None for one given as an object."""
        return self.model if isinstance(self.model, str) else None

    def place(self) -> torch.device:
        """Where the classifier runs; a module that is given as an object stays where it is unless ``device`` names a place."""
        own = next(self.model.parameters(), None) if isinstance(self.model, nn.Module) else None
        return own.device if own is not None and self.device == "auto" else device_of(self.device)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs, as a user asks for them: what ``--data`` takes, or a data set; every ``skip``-th, ``most`` at most."""

    data: str | Path | Labelled
    split: str = "test"
    size: int | None = None
    channels: int | None = None
    skip: int = 1
    most: int | None = None

    @property
    def source(self) -> str | None:
        """How the data were named; None for a data set given as an object."""
        return None if isinstance(self.data, Labelled) else str(self.data)

    def selection(self) -> Selection:
        """The inputs chosen."""
        return Selection.of(dataset_of(self.data, self.split, self.size, self.channels), self.skip, self.most)


@dataclass(frozen=True)
class Selection:
    """The inputs that a job works on, by their number in the data set."""

    dataset: Labelled
    indices: range

    @classmethod
    def of(cls, dataset: Labelled, skip: int, most: int | None) -> Selection:
        """Every ``skip``-th input, at most ``most`` of them."""
        indices = range(0, len(dataset), skip)
        return cls(dataset, indices[:most] if most is not None else indices)

    def first(self) -> torch.Tensor:
        """One input (1, *event), to learn shapes from."""
        return self.dataset[self.indices[0]][0][None]

    @property
    def lopsided(self) -> str:
        """A warning where the first inputs are of few classes, as in a folder sorted by class; else nothing."""
        labels = self.dataset.labels
        if bool((labels.diff() < 0).any()):
            return ""
        chosen = labels[torch.tensor(self.indices)]
        there, all_there = (len(set(some[some >= 0].tolist())) for some in (chosen, labels))  # −1 is no class
        if there == all_there or len(chosen) < 2:
            return ""
        return (
            f"the {len(chosen)} inputs chosen are of {there} of the {all_there} classes, since the data are sorted by class: "
            f"their shares say little of the rest. --skip {max(2, len(labels) // len(chosen))} takes inputs from all over."
        )

    def check(self, num_classes: int) -> None:
        """Refuse, before any work, inputs that cannot be read and labels that the model does not know."""
        labels = self.dataset.labels[torch.tensor(self.indices)]
        beyond = (labels >= num_classes).nonzero()
        if len(beyond):
            index, label = self.indices[int(beyond[0])], int(labels[beyond[0]])
            raise InvalidInput(
                f"{self.dataset.name} has label {label} at index {index}, but the model has {num_classes} classes: is it "
                "the model for these data? Labels count from 0, and −1 means unknown."
            )
        self.dataset.check(self.indices)


def dataset_of(
    source: str | Path | Labelled, split: str = "test", size: int | None = None, channels: int | None = None
) -> Labelled:
    """The data that `--data` names, with `--size` and `--channels` for a folder of pictures; a data set as it is."""
    found = source
    if not isinstance(found, Labelled):
        found = load(found, split, size=size, channels=3 if channels is None else channels)
    if (size, channels) != (None, None) and not isinstance(found, ImageFolder):
        raise InvalidInput(f"--size and --channels are for folders of pictures; {found.name} is none.")
    return found


def device_of(name: str | torch.device) -> torch.device:
    """The device that `--device` names."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        known = str(name).partition(":")[0] in ("cpu", "cuda", "mps", "xpu")  # of others PyTorch lists twenty
        reason = str(error).splitlines()[0].rstrip(".") if known else "there is no such kind of device"
        raise InvalidInput(f"--device {name}: {reason}. Choose cpu, auto, or a GPU that PyTorch finds here.") from error
    return device


def law_of(law: str | Law | None, scale: float | None, exponent: float | None) -> Law:
    """The law of this name, Gaussian if there is none, or the one given, at another λ if ``scale`` says so."""
    if isinstance(law, Law):
        if exponent is not None:
            raise InvalidInput("a law that is given as an object has its own parameters: leave exponent out.")
        return law if scale is None else replace(law, scale=scale)
    return law_named(law, scale, exponent)


def generator_of(noise: str | Generator | None, event: tuple[int, ...], law: Law) -> Generator:
    """The generator that `--noise` describes, for inputs of this shape; a generator as it is."""
    if isinstance(noise, Generator):
        return noise
    path = Path(noise or "")
    if path.suffix != ".npy":
        return noise_named(noise or "isotropic", event, law)
    sigma = _array("--noise", path).float()
    dim = math.prod(event)
    if sigma.shape == (dim, dim) and sigma.shape != event:
        return Fixed(Dense(sigma))
    if sigma.ndim and sigma.numel() != dim:
        raise InvalidInput(
            f"--noise: {path} has shape {tuple(sigma.shape)}; inputs have {event}, so give that or {dim}×{dim}."
        )
    return Fixed(sigma.reshape(event) if sigma.ndim else float(sigma))


def budget_of(budget: Any, event: tuple[int, ...], model: Model) -> Budget | None:
    """The budget that `--budget` describes, for inputs of this shape; one given as numbers as it is."""
    if budget is None or not isinstance(budget, str):
        return None if budget is None else Budget.of(budget, event)
    if budget == "trained":
        own = load_run(model).budget if isinstance(model, str) and is_trained_run(model) else None
        if own is None:
            raise InvalidInput(f"--budget trained: {model} is no run that was trained for a budget.")
        return Budget.of(own, event)
    if Path(budget).suffix in (".npy", ".npz"):
        try:
            return read_budget(budget, event)
        except InvalidInput as error:
            raise InvalidInput(f"--budget: {error}") from error
    try:
        return Budget.of(float(budget), event)
    except ValueError as error:
        raise InvalidInput(
            f"--budget takes a number above 0, a .npy or .npz file, or trained; got {budget!r}."
        ) from error


def _array(option: str, path: Path) -> torch.Tensor:
    try:
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(f"{option}: {path} cannot be read as a numeric .npy file: {error}.") from error


def norm_of(norm: float | None, generator: Generator) -> float:
    """The norm; if none is named, the generator's own if it has but one, else 2."""
    if norm is not None:
        return norm
    return generator.own_norm or 2.0


def step_for(arithmetic: str | None, dataset: Labelled, known: str | None) -> float | None:
    """The step of the inputs that a job works with; ``known`` is the arithmetic of what it goes on with, if anything."""
    if arithmetic is None and known is not None:
        return step_of(known)
    if arithmetic == "grid" and dataset.step is None:
        raise InvalidInput(
            f"--arithmetic grid: nothing says of what the pixels of {dataset.name} are whole multiples. Save them as bytes (an "
            ".npz with x of type uint8, or 8-bit pictures), or say --arithmetic real."
        )
    return None if arithmetic == "real" else dataset.step


def classes_of(model: Any, given: int | None, x: torch.Tensor) -> int:
    """The number of classes: given, or the width of the model's logits on one clean input."""
    if given is not None:
        return given
    try:
        with torch.inference_mode():
            output = as_answer(model(x))
    except UcanError:
        raise
    except Exception as error:  # whatever the user's model raises
        raise cannot_answer(x, error) from error
    if output.ndim != 2:
        raise InvalidInput(
            "the model answers with class numbers, not logits: say how many classes there are (--classes)."
        )
    return int(output.shape[1])


def smoothed_of(asked: Pipeline, first: torch.Tensor, step: float | None = None) -> SmoothedClassifier:
    """The smoothed classifier that is asked for, for inputs like ``first`` (1, *event) on its device."""
    model, weights = asked.model, asked.weights
    if isinstance(model, str) and is_trained_run(model):
        return _trained(asked, model, first, step)
    f: Any = model
    if not isinstance(model, str):
        if weights is not None:
            raise InvalidInput("a model that is given as an object has its weights: leave weights out.")
    elif model in BUILT_IN and weights is None:
        raise InvalidInput(f"{model} has no trained weights: give its --weights, or train one (`ucan train list`).")
    else:
        f = load_model(model, weights, asked.classes, first.device, tuple(first.shape[1:]))
    law = law_of(asked.law, asked.scale, asked.exponent)
    generator = generator_of(asked.noise, tuple(first.shape[1:]), law)
    classes = classes_of(f, asked.classes, first)
    return SmoothedClassifier(f, law, generator, classes, precision=asked.precision, model_id=asked.model_id, step=step)


def _trained(asked: Pipeline, folder: str, first: torch.Tensor, step: float | None) -> SmoothedClassifier:
    """A trained run, under the noise it was trained for; only λ may be changed."""
    options = {
        "--law": asked.law,
        "--exponent": asked.exponent,
        "--noise": asked.noise,
        "--weights": asked.weights,
        "--model-id": asked.model_id,
    }
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InvalidInput(f"{folder} is a trained run and brings its own noise: leave out {', '.join(given)}.")
    run = load_run(folder)
    if run.shape != tuple(first.shape[1:]):
        raise InvalidInput(f"{folder} was trained on inputs of shape {run.shape}, these have {tuple(first.shape[1:])}.")
    law = run.law if asked.scale is None else replace(run.law, scale=asked.scale)
    return SmoothedClassifier(
        run.classifier.to(first.device), law, run.generator, run.num_classes, precision=asked.precision, step=step
    )


def model_ref(asked: Pipeline, g: SmoothedClassifier, given: bool = False) -> ModelRef:
    """What a config says of the model; ``given``: also how its number of classes and its name were given."""
    weights = None if asked.weights is None else str(asked.weights)
    spelled = (asked.classes, asked.model_id) if given else (None, None)
    return ModelRef(asked.spec, weights, *spelled, weights_hash(g.f.model), g.engine.identity())


def noise_ref(g: SmoothedClassifier) -> NoiseRef:
    """What a config says of the noise."""
    return NoiseRef(None, g.M.describe(), dict(g.M.settings()), weights_hash(g.M))


def settle_backend(
    g: SmoothedClassifier,
    choice: str,
    plan: CertifyPlan | PredictPlan,
    first: torch.Tensor,
    inputs: int,
    known: str | None = None,
) -> str:
    """Set how g runs its classifier, and say its name; ``known`` is what a run that exists already has settled on."""
    if known is not None and choice in ("auto", known):
        g.engine.backend = "eager" if known == "function" else known
        if (found := g.backend_for(first, plan)) != known:
            raise InvalidInput(
                f"this run was begun with backend {known}, but here the model runs with {found}: start a new folder, or go "
                "on where it was begun."
            )
        return known
    g.engine.backend = choice
    if choice == "auto" and not _worth_compiling(g, plan, first, inputs):
        g.engine.backend = "eager"
    return g.backend_for(first, plan)


def _worth_compiling(g: SmoothedClassifier, plan: CertifyPlan | PredictPlan, first: torch.Tensor, inputs: int) -> bool:
    """Whether the whole job, if no input stops early, would take long enough eagerly; from one or two forward passes."""
    if not isinstance(g.f.model, nn.Module):
        return False
    size = plan.batch_size or forward_size(first.numel(), first.device)
    samples = inputs * (plan.n + (plan.n0 if isinstance(plan, CertifyPlan) else 0))
    batch = g.M.view(first.expand(size, *first.shape[1:]).contiguous())
    for _ in range(2):  # the first pass may owe its time to warming up
        start = time.perf_counter()
        try:
            with torch.inference_mode():
                int(g.f(batch)[0])  # waits for the device
        except torch.OutOfMemoryError:  # smaller passes will be tried; they need no compiler
            return False
        if (time.perf_counter() - start) * samples / size < WORTH_COMPILING:
            return False
    return True
