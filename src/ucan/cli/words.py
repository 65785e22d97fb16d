"""The words that several commands share: options, and what they stand for."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import nn

from ucan import data, laws
from ucan.arithmetic import step_of
from ucan.budget import Budget
from ucan.errors import InvalidInput, UcanError
from ucan.generators import Composed, Fixed, Generator, Isotropic, Pattern
from ucan.laws import Law
from ucan.models import BUILT_IN, load_model
from ucan.plan import CertifyPlan, PredictPlan, Seed, seed_from_config
from ucan.readiness import cannot_answer
from ucan.scales import Dense
from ucan.smoothed import SmoothedClassifier
from ucan.training import is_trained_run, load_run
from ucan.votes import as_answer, forward_size


class LawName(StrEnum):
    """The laws by their names on the command line."""

    gaussian = "gaussian"
    laplace = "laplace"
    uniform = "uniform"
    expinf = "expinf"
    powerlaw = "powerlaw"


class NormName(StrEnum):
    """The norms by their names on the command line."""

    l1 = "1"
    l2 = "2"
    linf = "inf"


class BackendName(StrEnum):
    """How the classifier is run."""

    auto = "auto"
    eager = "eager"
    compile = "compile"
    tuned = "tuned"
    onnxruntime = "onnxruntime"
    openvino = "openvino"


class ArithmeticName(StrEnum):
    """How inputs and noise are added."""

    grid = "grid"
    real = "real"


class PrecisionName(StrEnum):
    """What the classifier computes in."""

    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"


# An eager job shorter than this, in seconds, is over before compiling would have paid.
WORTH_COMPILING = 120.0

ModelOption = Annotated[
    str,
    typer.Option(
        help="The classifier: `package.module:name` (a module, what makes one, or a function on batches), a `.pt2` file "
        f"of torch.export, an `.onnx` file, the folder of a trained run, or with --weights one of {', '.join(BUILT_IN)}."
    ),
]
WeightsOption = Annotated[
    Path | None, typer.Option(help="Weights for the model: `.safetensors`, or `.pt` with tensors only.")
]
DATA_HELP = (
    "The inputs: a folder of images (one subfolder a class, or flat), an `.npz` with `x` and `y`, or one of "
    "digits, mnist, fashion-mnist, cifar10, imagenet."
)
DataOption = Annotated[str, typer.Option("--data", help=DATA_HELP)]
SizeOption = Annotated[int | None, typer.Option(help="Resize and crop the pictures of a folder to SIZE × SIZE pixels.")]
ChannelsOption = Annotated[
    int | None, typer.Option(help="Channels of the pictures of a folder: 3 (RGB, if not given) or 1 (grey).")
]
LawOption = Annotated[LawName | None, typer.Option(help="The noise law; gaussian if not given.")]
ScaleOption = Annotated[
    float | None, typer.Option(help="λ, the scale of the noise, in pixel units ([0, 1] images); 0.25 if not given.")
]
ExponentOption = Annotated[
    float | None, typer.Option("--exponent", help="The exponent a of the power law; must exceed the dimension d.")
]
NoiseOption = Annotated[
    str | None,
    typer.Option(
        help="The shape Σ: `isotropic` (if not given), `pattern-1`, `pattern-2`, `pattern-inf`, or a `.npy` file with a "
        "map of the input's shape or a d×d matrix."
    ),
]
NormOption = Annotated[
    NormName | None,
    typer.Option(help="The norm of the radius; if not given 2, or that for which composed noise was made."),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER|FILE.npy|trained",
        help="How much each pixel may change at ε = 1: a number, a `.npy` file with a map of the input's shape, or `trained`, "
        "the budget that the trained run was made for. The results are then about ε, in place of the radius: no change "
        "within less than ε times the budget alters the answer.",
    ),
]
SplitOption = Annotated[str, typer.Option(help="Which part of a data set: train or test.")]
ClassesOption = Annotated[int | None, typer.Option(help="Number of classes; asked of the model if not given.")]
AlphaOption = Annotated[float, typer.Option(help="α: a claim is wrong with at most this probability.")]
NoiseSeedOption = Annotated[
    str,
    typer.Option(
        help="Seed of the noise: a number; `random`, from the system's entropy, which stays with the run and out of what "
        "is handed out; or `derived`, made from model, noise and data, so that nobody chose it."
    ),
]
ModelIdOption = Annotated[
    str | None,
    typer.Option(
        help="A name that tells a model without PyTorch weights from others, and its versions from each other."
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of the noise; the same seed draws the same noise.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; `auto` takes a GPU where there is one.")]
BatchOption = Annotated[
    int | None,
    typer.Option(
        help="Noisy copies per forward pass; by the input's size if not given. Fewer than 128 may draw other noise."
    ),
]
BackendOption = Annotated[
    BackendName,
    typer.Option(
        help="`eager`, `compile` (torch.compile), `tuned` (also times kernels, for a minute or more), on a CPU "
        "`onnxruntime` or `openvino`, or `auto`, which takes the fastest where a long job gains by it."
    ),
]
PrecisionOption = Annotated[
    PrecisionName | None,
    typer.Option(help="Run the classifier in this precision (the claim is then about that one); its own if not given."),
]
ArithmeticOption = Annotated[
    ArithmeticName | None,
    typer.Option(
        help="`grid`: inputs and noise in whole steps (1/255 for 8-bit pictures), sound in floating point, for changes by "
        "whole steps; `real`: rounding is not accounted for. If not given, grid where the data have a step, else real."
    ),
]
SkipOption = Annotated[int, typer.Option(min=1, help="Take every SKIP-th input.")]
MaxOption = Annotated[int | None, typer.Option("--max", min=1, help="Take at most MAX inputs.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no remarks.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


def norm_of(name: NormName | None, generator: Generator) -> float:
    """The norm as a number; if none is named, the generator's own if it has but one, else 2."""
    if name is None:
        return generator.norm if isinstance(generator, Composed) else 2.0
    return math.inf if name is NormName.linf else float(name.value)


def seed_of(text: str, known: dict[str, Any]) -> Seed:
    """The seed that `--seed` means; a run that was begun with a random one goes on with it."""
    if text == "derived":
        return "derived"
    if text == "random":
        return seed_from_config(known) if known.get("seed_source") == "random" else None
    try:
        return int(text)
    except ValueError as error:
        raise InvalidInput(f"--seed takes a whole number, random or derived, got {text!r}.") from error


def law_of(name: LawName | None, scale: float | None, exponent: float | None) -> Law:
    """The law that the options describe."""
    name, scale = name or LawName.gaussian, 0.25 if scale is None else scale
    if name is LawName.powerlaw:
        if exponent is None:
            raise InvalidInput("the power law needs --exponent, a number above the dimension of the input.")
        return laws.PowerLaw(scale=scale, a=exponent)
    if exponent is not None:
        raise InvalidInput(f"--exponent belongs to the power law, not to {name.value} noise.")
    return laws.BY_NAME[name.value](scale=scale)


def generator_of(noise: str | None, event: tuple[int, ...]) -> Generator:
    """The generator that `--noise` describes, for inputs of this shape."""
    if noise is None or noise == "isotropic":
        return Isotropic()
    patterns = {"pattern-1": 1, "pattern-2": 2, "pattern-inf": math.inf}
    if noise in patterns:
        return Pattern(event, norm=patterns[noise])
    path = Path(noise)
    if path.suffix != ".npy":
        raise InvalidInput(f"--noise {noise!r} is neither isotropic, {', '.join(patterns)} nor a .npy file.")
    try:
        sigma = torch.from_numpy(np.load(path, allow_pickle=False)).float()
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(f"--noise: {path} cannot be read as a numeric .npy file: {error}.") from error
    dim = math.prod(event)
    if sigma.shape == (dim, dim) and sigma.shape != event:
        return Fixed(Dense(sigma))
    if sigma.ndim and sigma.numel() != dim:
        raise InvalidInput(
            f"--noise: {path} has shape {tuple(sigma.shape)}; inputs have {event}, so give that or {dim}×{dim}."
        )
    return Fixed(sigma.reshape(event) if sigma.ndim else float(sigma))


def budget_of(text: str | None, event: tuple[int, ...], model: str) -> Budget | None:
    """The budget that `--budget` describes, for inputs of this shape."""
    if text is None:
        return None
    if text == "trained":
        own = load_run(model).budget if is_trained_run(model) else None
        if own is None:
            raise InvalidInput(f"--budget trained: {model} is no run that was trained for a budget.")
        return Budget.of(own, event)
    if Path(text).suffix != ".npy":
        try:
            return Budget.of(float(text), event)
        except ValueError as error:
            raise InvalidInput(f"--budget takes a number above 0, a .npy file, or trained; got {text!r}.") from error
    try:
        limits = torch.from_numpy(np.load(text, allow_pickle=False))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(f"--budget: {text} cannot be read as a numeric .npy file: {error}.") from error
    return Budget.of(limits, event, name=Path(text).stem)


def device_of(name: str) -> torch.device:
    """The device that `--device` names."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        known = name.partition(":")[0] in ("cpu", "cuda", "mps", "xpu")  # of others PyTorch lists twenty
        reason = str(error).splitlines()[0].rstrip(".") if known else "there is no such kind of device"
        raise InvalidInput(f"--device {name}: {reason}. Choose cpu, auto, or a GPU that PyTorch finds here.") from error
    return device


@dataclass(frozen=True)
class Selection:
    """The inputs that a command works on, by their number in the data set."""

    dataset: data.Labelled
    indices: range

    @classmethod
    def of(cls, dataset: data.Labelled, skip: int, most: int | None) -> Selection:
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
        there, all_there = (len(some[some >= 0].unique()) for some in (chosen, labels))  # −1 is no class
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


def dataset_of(source: str, split: str, size: int | None, channels: int | None) -> data.Labelled:
    """The data that `--data` names, with `--size` and `--channels` for a folder of pictures."""
    found = data.load(source, split, size=size, channels=3 if channels is None else channels)
    if (size, channels) != (None, None) and not isinstance(found, data.ImageFolder):
        raise InvalidInput(f"--size and --channels are for folders of pictures; {source} is none.")
    return found


def step_for(choice: ArithmeticName | None, dataset: data.Labelled, known: str | None) -> float | None:
    """The step of the inputs that a command works with; ``known`` is the arithmetic of what it goes on with, if anything."""
    if choice is None and known is not None:
        return step_of(known)
    if choice is ArithmeticName.grid and dataset.step is None:
        raise InvalidInput(
            f"--arithmetic grid: nothing says of what the pixels of {dataset.name} are whole multiples. Save them as bytes (an "
            ".npz with x of type uint8, or 8-bit pictures), or say --arithmetic real."
        )
    return None if choice is ArithmeticName.real else dataset.step


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


def smoothed_of(
    model: str,
    weights: Path | None,
    law: LawName | None,
    scale: float | None,
    exponent: float | None,
    noise: str | None,
    classes: int | None,
    first: torch.Tensor,
    precision: PrecisionName | None = None,
    model_id: str | None = None,
    step: float | None = None,
) -> SmoothedClassifier:
    """The smoothed classifier that the options describe, for inputs like ``first`` (1, *event) on its device."""
    wanted = None if precision is None else precision.value
    if is_trained_run(model):
        given = {"--law": law, "--exponent": exponent, "--noise": noise, "--weights": weights, "--model-id": model_id}
        return _trained(model, first, given, scale, wanted, step)
    if model in BUILT_IN and weights is None:
        raise InvalidInput(f"{model} knows nothing yet: give its --weights, or train one (`ucan train list`).")
    f = load_model(model, weights, classes, first.device, tuple(first.shape[1:]))
    noise_law = law_of(law, scale, exponent)
    generator = generator_of(noise, tuple(first.shape[1:]))
    num_classes = classes_of(f, classes, first)
    return SmoothedClassifier(f, noise_law, generator, num_classes, precision=wanted, model_id=model_id, step=step)


def _trained(
    folder: str,
    first: torch.Tensor,
    options: dict[str, Any],
    scale: float | None,
    precision: str | None,
    step: float | None,
) -> SmoothedClassifier:
    """A trained run, under the noise it was trained for; only λ may be changed."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InvalidInput(f"{folder} is a trained run and brings its own noise: leave out {', '.join(given)}.")
    run = load_run(folder)
    if run.shape != tuple(first.shape[1:]):
        raise InvalidInput(f"{folder} was trained on inputs of shape {run.shape}, these have {tuple(first.shape[1:])}.")
    law = run.law if scale is None else replace(run.law, scale=scale)
    return SmoothedClassifier(
        run.classifier.to(first.device), law, run.generator, run.num_classes, precision=precision, step=step
    )


def settle_backend(
    g: SmoothedClassifier,
    choice: BackendName,
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
    g.engine.backend = choice.value
    if choice is BackendName.auto and not _worth_compiling(g, plan, first, inputs):
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
