"""The base class of recipes: one training step of a method, from inputs, labels and noise to a loss."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass

import torch

from ucan.errors import InvalidInput
from ucan.generators import Generator
from ucan.laws import Law
from ucan.training.step import Outcome, Progress, Step
from ucan.training.survey import Survey


@dataclass(frozen=True)
class Task:
    """The training task of a recipe: number and shape of the inputs, noise, and device."""

    inputs: int
    shape: tuple[int, ...]
    num_classes: int
    law: Law
    generator: Generator
    device: torch.device


class Recipe(ABC):
    """A way to train a classifier for smoothing.

    Implement ``step``. It may call the network any number of times, attack it (``step.model.aside``), weight or drop inputs,
    and keep state between steps: then implement ``state`` and ``load_state``, which store it in the checkpoint. A recipe is
    usually a frozen dataclass; its fields are the parameters in ``[recipe]`` of the settings.
    """

    def __post_init__(self) -> None:
        """Check the parameters: ``draws`` is a number of copies, and what has a number as its default stays one.

        A parameter that is declared as ``int`` stays a whole number.
        """
        parameters: tuple[Field[object], ...] = fields(self) if is_dataclass(self) else ()
        for each in parameters:
            value = getattr(self, each.name)
            if each.name == "draws" and (not _number(value) or not isinstance(value, int) or value < 1):
                raise InvalidInput(f"[recipe] draws must be a whole number, 1 or above, got {value!r}.")
            if _number(each.default) and not _number(value):
                raise InvalidInput(f"[recipe] {each.name} must be a finite number, got {value!r}.")
            # By its declaration, not by its default: a default of 1 may be that of any number.
            if each.type in (int, "int") and _number(each.default) and not isinstance(value, int):
                raise InvalidInput(f"[recipe] {each.name} must be a whole number, got {value!r}.")

    def prepare(self, task: Task) -> None:  # noqa: B027
        """Before the first step: refuse noise that the method is not defined for, make room for what is remembered."""

    def before_epoch(self, survey: Survey) -> None:  # noqa: B027
        """Before every epoch: a look at all training inputs, where a method needs one; not again where one is resumed."""

    @property
    def asks_first(self) -> bool:
        """Whether it asks the network about its inputs before the first step, so that the network must have learned by then."""
        return False

    def sampling(self) -> torch.Tensor | None:
        """How the next epoch's inputs are drawn: None, each once; or weights (inputs,), drawn with replacement.

        It is asked when an epoch begins and when one is resumed, so it must follow from the parameters and the state.
        """
        return None

    @abstractmethod
    def step(self, step: Step) -> Outcome:
        """The loss of one step, and what to show of it."""

    @abstractmethod
    def cost(self, progress: Progress) -> float:
        """Forward-backward passes of one input in one step; a forward pass alone is a third of one."""

    def state(self) -> dict[str, torch.Tensor]:
        """What is remembered from step to step; the same in all processes."""
        return {}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up what ``state`` gave, on whichever device it lies."""
        if state:
            raise InvalidInput(f"{type(self).__name__} has no state, and cannot load {', '.join(sorted(state))}.")


@dataclass(frozen=True)
class Remembering(Recipe):
    """A recipe that remembers something about every training input: tensors by name, for which ``prepare`` makes room."""

    memory: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def state(self) -> dict[str, torch.Tensor]:
        """What is remembered."""
        return dict(self.memory)

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take it up again."""
        for name, tensor in self.memory.items():
            tensor.copy_(state[name])


class OfLogits(Recipe):
    """A recipe whose loss is a function of the logits of ``draws`` fresh noisy copies of every input, and the labels."""

    draws: int

    @abstractmethod
    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss from logits (draws, batch, classes) and labels (batch,)."""

    def step(self, step: Step) -> Outcome:
        """One pass over all copies."""
        logits = step.model(step.noise.copies(self.draws))
        return Outcome.of(self.loss(logits, step.labels), logits, step.labels)

    def cost(self, progress: Progress) -> float:
        """One pass per copy."""
        return self.draws


def check_spherical(task: Task, recipe: str) -> None:
    """Refuse noise whose draws become other noise when they are moved with their ℓ2 norm kept, as this recipe does.

    Uniform draws leave the support; draws of the other laws that are not spherical become more or less probable.
    """
    if not task.law.spherical:
        raise InvalidInput(
            f"{recipe} moves noise on its own sphere, on which {type(task.law).__name__} noise is not the same everywhere: "
            "use Gaussian noise (law.kind gaussian), or a recipe for any noise, such as consistency or smoothadv."
        )


def check_terms(recipe: Recipe, *names: str) -> None:
    """Refuse a negative weight of a term of the loss: the network would learn the opposite of what the term is for."""
    for name in names:
        if getattr(recipe, name) < 0:
            raise InvalidInput(f"[recipe] {name} weighs a term of the loss: 0 or more, got {getattr(recipe, name)!r}.")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def mean_cost(recipe: Recipe, epochs: int) -> float:
    """The recipe's forward-backward passes of one input in one epoch, the mean over a training of so many."""
    return sum(recipe.cost(Progress(e, epochs, e / epochs)) for e in range(epochs)) / epochs


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all noisy copies: the paper's smoothing loss (−Σ y log ŷ; it prints the wrong sign)."""
    draws, batch, classes = logits.shape
    flat = logits.float().reshape(draws * batch, classes)
    return torch.nn.functional.cross_entropy(flat, labels.expand(draws, batch).reshape(-1))
