"""The input and the result of one training step of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from ucan.errors import InvalidInput
from ucan.generators import Generator
from ucan.laws import Law
from ucan.scales import Scale
from ucan.training.share import Share, gathered, summed
from ucan.training.tangent import Tangent, along


@dataclass(frozen=True)
class Progress:
    """How far training is: the epoch, counted from 0, of how many, and the share of all steps that are done."""

    epoch: int = 0
    epochs: int = 1
    done: float = 0.0

    def ramp(self, epochs: float) -> float:
        """From 0 at the start to 1 after so many epochs, in a straight line: for a warm-up."""
        return 1.0 if epochs <= 0 else min(1.0, self.done * self.epochs / epochs)

    def epoch_at(self, share: float) -> int:
        """The number of the epoch that begins when this share of the epochs is over; not the first one, unless the share is 0.

        What begins then asks the network about its inputs, and one that has learned nothing yet would drop all classes but one.
        """
        return max(1, round(share * self.epochs)) if share > 0 else 0


@dataclass(frozen=True)
class Twins:
    """A network and how it is called in training, perhaps compiled.

    ``members`` are compiled networks of an ensemble, each with its ``tangent``: logits and their derivative along a direction.
    """

    network: nn.Module
    answer: Any
    members: tuple[Twins, ...] = ()
    tangent: Tangent | None = None

    @classmethod
    def compiled(cls, classifier: nn.Module, compiler: Callable[[Any], Any], apart: bool) -> Twins:
        """By this compiler; with ``apart`` also the networks of an ensemble, each by itself."""
        networks, slope = getattr(classifier, "members", ()) if apart else (), compiler(along)
        members = tuple(cls(each, compiler(each), tangent=Tangent(each, slope)) for each in networks)
        return cls(classifier, compiler(classifier), members)


class Network:
    """The classifier as a recipe calls it: raw noisy inputs in, logits out.

    The generator's ``view`` and the memory layout of pictures are handled here.
    """

    def __init__(
        self,
        module: nn.Module,
        generator: Generator,
        dims: int,
        twins: Twins | None = None,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.module = module
        self._layout = layout
        self._twins = Twins(module, module) if twins is None else twins
        self._generator = generator
        self._dims = dims

    def __call__(self, noisy: torch.Tensor) -> torch.Tensor:
        """Logits (…, classes) of noisy inputs (…, *event), any number of dimensions before the event."""
        lead = noisy.shape[: noisy.ndim - self._dims]
        logits: torch.Tensor = self._twins.answer(self._shown(noisy.reshape(-1, *noisy.shape[len(lead) :])))
        if not torch.is_grad_enabled():
            torch.clear_autocast_cache()  # weights cast without a gradient would be used again where one is wanted
        return logits.reshape(*lead, -1)

    def _shown(self, noisy: torch.Tensor) -> torch.Tensor:
        shown = self._generator.view(noisy)
        return shown.contiguous(memory_format=self._layout) if shown.ndim == 4 else shown

    def along(self, noisy: torch.Tensor, direction: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Logits of noisy inputs (n, *event) and their derivative along a direction (n, *event) of these.

        Both can be differentiated by the weights, in one backward pass; running statistics stay as they are. Only for what is
        in ``compiled``; None where the network, or the view, has a part that cannot be compiled so.
        """
        tangent = self._twins.tangent
        return None if tangent is None else tangent(self._shown, noisy, direction)

    @property
    def members(self) -> tuple[Network, ...]:
        """The networks of an ensemble, each by itself; of any other classifier, that one.

        An ensemble is a module with its networks in ``members``. They answer uncompiled, so that a gradient can be
        differentiated again.
        """
        networks = getattr(self.module, "members", None)
        if networks is None:
            return (self,)
        return tuple(Network(each, self._generator, self._dims, layout=self._layout) for each in networks)

    @property
    def compiled(self) -> tuple[Network, ...]:
        """``members`` in their compiled form, for passes that are differentiated once, with ``along``.

        None are there if the training is not compiled, if several processes train as one, or if one of them has no ``along``.
        """
        if any(each.tangent is None or each.tangent.failed for each in self._twins.members):
            return ()
        return tuple(
            Network(each.network, self._generator, self._dims, each, self._layout) for each in self._twins.members
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which the weights get no gradients."""
        learning = [p for p in self.module.parameters() if p.requires_grad]
        torch.clear_autocast_cache()
        try:
            for p in learning:
                p.requires_grad_(False)
            yield
        finally:
            for p in learning:
                p.requires_grad_(True)
            torch.clear_autocast_cache()

    @contextmanager
    def aside(self, statistics: Literal["running", "batch"] = "running") -> Iterator[None]:
        """A context for passes that are not part of the training, such as an attack: they do not change the classifier.

        Inside, its weights get no gradients. With "running" it is in evaluation mode (batch norm by its running
        statistics, no dropout); with "batch" it stays in training mode, and batch norm normalises by the batch without
        remembering it.
        """
        if statistics not in ("running", "batch"):
            raise InvalidInput(f"statistics must be 'running' or 'batch', got {statistics!r}.")
        modules = list(self.module.modules())
        modes = [each.training for each in modules]
        tracking: list[Any] = [each for each in modules if getattr(each, "track_running_stats", False)]
        with self.held():
            try:
                for each in modules if statistics == "running" else ():
                    each.training = False
                for each in tracking if statistics == "batch" else ():
                    each.track_running_stats = not each.training
                yield
            finally:
                for each, mode in zip(modules, modes, strict=True):
                    each.training = mode
                for each in tracking:
                    each.track_running_stats = True


@dataclass(frozen=True)
class NoiseSource:
    """The noise of a step: y = x + μ + Σε with ε from the law.

    ``mean`` and ``scale`` are μ and Σ at the step's inputs. Copies of other inputs in their places (x + δ under an attack)
    are made with the same μ and Σ; with ``held=False`` they are recomputed at those inputs, like a deployed pipeline whose
    noise depends on its input.
    """

    generator: Generator
    law: Law
    inputs: torch.Tensor
    mean: torch.Tensor
    scale: Scale
    rng: torch.Generator

    def copies(self, n: int, inputs: torch.Tensor | None = None, held: bool = True) -> torch.Tensor:
        """n fresh noisy copies of every input (n, batch, *event); differentiable in the inputs and in learned noise."""
        x = self.inputs if inputs is None else inputs
        return self.generator.perturb(x, self.law, n, self.rng, self._noise(held))

    def draw(self, n: int) -> torch.Tensor:
        """n draws of ε for every input (n, batch, …), which can be kept, changed and placed repeatedly."""
        self._check_placed()
        return self.generator.draw(self.inputs, self.law, n, self.rng)

    def place(self, eps: torch.Tensor, inputs: torch.Tensor | None = None, held: bool = True) -> torch.Tensor:
        """The noisy copies (n, batch, *event) that these draws make; differentiable in the draws and in the inputs.

        A change of ε is one of the noise in units of Σ and before it: a draw moved on its own sphere in ε is as probable
        as it was, whatever Σ is.
        """
        self._check_placed()
        x = self.inputs if inputs is None else inputs
        return self.generator.place(x, eps, self.law, self._noise(held))

    def _noise(self, held: bool) -> tuple[torch.Tensor, Scale] | None:
        return (self.mean, self.scale) if held else None

    def _check_placed(self) -> None:
        if type(self.generator).perturb is not Generator.perturb:
            raise InvalidInput(
                f"{self.generator.describe()} implements perturb, so its draws cannot be kept: implement draw and place "
                f"instead (documentation page “Extending UCAN”)."
            )


@dataclass(frozen=True)
class Step:
    """One training step as a recipe sees it.

    ``inputs`` (batch, *event) are pixels as augmented, ``labels`` (batch,) their classes, ``places`` (batch,) their numbers
    in the training set. Several processes train as one: each has its share of the batch here, so computations per input need
    no change. Means over the batch must use ``mean`` and ``together``, random numbers must come from ``noise`` and
    ``uniform``, and all processes must call the network equally often.
    """

    model: Network
    inputs: torch.Tensor
    labels: torch.Tensor
    noise: NoiseSource
    rng: torch.Generator
    places: torch.Tensor
    progress: Progress
    share: Share

    def uniform(self, n: int = 1) -> torch.Tensor:
        """Uniform random numbers in [0, 1): (n, batch)."""
        # Not in the default type: Fabric sets it to that of the weights.
        whole = torch.rand(n, self.share.batch, generator=self.rng, device=self.inputs.device, dtype=torch.float32)
        return whole[:, self.share.part]

    def mean(self, values: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """The mean of values (batch,) over the whole batch, weighted by (batch,) of at least 0; 0 where all weights are.

        In one of several processes it is what this one adds to it: their average by shares is the mean.
        """
        if weights is None:
            return values.mean()
        total = summed(weights.detach().sum()) if self.share.world > 1 else weights.detach().sum()
        return (weights * values).sum() / (total * self.share.fraction).clamp_min(torch.finfo(torch.float32).tiny)

    def together(self, values: torch.Tensor) -> torch.Tensor:
        """Values (batch, …) of the whole batch, from all processes and in its order, without gradients: for state."""
        return gathered(values.detach(), self.share)


@dataclass(frozen=True)
class Outcome:
    """The result of a step: a scalar loss, the share of noisy copies answered correctly, and further metrics."""

    loss: torch.Tensor
    correct: torch.Tensor
    shown: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, **shown: torch.Tensor) -> Outcome:
        """With the share of logits (…, batch, classes) that have their largest entry at the label."""
        return cls(loss, (logits.argmax(-1) == labels).float().mean().detach(), shown)

    def metrics(self) -> dict[str, torch.Tensor]:
        """loss, correct, and what else is shown, each one number."""
        named = {"loss": self.loss, "correct": self.correct, **self.shown}
        for name, value in named.items():
            if not isinstance(value, torch.Tensor) or value.ndim != 0:
                what = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
                raise InvalidInput(f"a recipe's {name} must be one number in a tensor, got {what}.")
        return {name: value if name == "loss" else value.detach() for name, value in named.items()}
