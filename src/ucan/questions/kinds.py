"""The smoothed regressor, the smoothed segmenter and smoothed labels: a model, how its answers are read, and its question."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from ucan.certificate import Abstention
from ucan.errors import InvalidInput
from ucan.generators import Generator
from ucan.laws import Law
from ucan.plan import Seed
from ucan.questions.decisions import Decided, Decisions, Rule
from ucan.questions.numbers import as_numbers
from ucan.questions.readers import Labels, Numbers, Places
from ucan.questions.regression import Interval, Percentile
from ucan.questions.smoothed import Smoothed


class SmoothedRegressor(Smoothed):
    """g(x) = the percentile of the numbers that a model f gives under noise: of f(x + μ + Σε), for each output.

    Args:
        model: f, a callable from a batch (n, *event) to numbers (n,) or (n, *outputs), or a fitted regressor with
            ``predict`` (scikit-learn, XGBoost, …).
        law: the noise law, which draws ε; any with ``shifted``.
        generator: gives μ and Σ; isotropic noise if None.
        backend: how f is run, as for ``SmoothedClassifier``; so are ``precision``, ``model_id`` and ``step``.
        precision: what f computes in.
        model_id: a name for a model without PyTorch weights.
        step: the step of inputs on a grid.
    """

    def __init__(
        self,
        model: Callable[[torch.Tensor], Any],
        law: Law,
        generator: Generator | None = None,
        backend: str = "eager",
        precision: str | None = None,
        model_id: str | None = None,
        step: Any = None,
    ) -> None:
        super().__init__(Numbers(as_numbers(model)), law, generator, backend, precision, model_id, step)

    def certify(
        self,
        x: torch.Tensor,
        radius: Any = None,
        p: float = 0.5,
        within: float | None = None,
        n: int = 100_000,
        alpha: float = 0.001,
        norm: float | None = None,
        range: tuple[float | None, float | None] = (None, None),
        n0: int = 1000,
        seed: Seed = 0,
        batch_size: int | None = None,
        precision: str | None = None,
        family: int = 1,
        stop: Any = None,
        budget: Any = None,
    ) -> list[Interval | Abstention]:
        """Intervals that the smoothed percentile of every output stays in, for each of a batch of inputs.

        With probability at least 1 − α, independently for each input: for every change ‖Σ⁻¹δ‖ ≤ r and every output, the
        percentile at p of f(x + δ + μ + Σε) is between ``lower`` and ``upper``. So it is for each r of a list, at once.

        Args:
            x: the inputs (batch, *event), in floating point.
            radius: r, the size of changes in the region's own norm, before Σ; or a rising list of them.
            p: which percentile; 0.5 is the median.
            within: instead of a radius: the largest r for which the percentile stays within ± this of its value.
            n: the number of samples.
            alpha: α, shared over outputs, sides and radii.
            norm: the norm of changes: 1, 2 or math.inf. By default 2, or the law's own where it has no ℓ2 radius.
            range: what the outputs have by their nature at least and at most, in place of ±∞.
            n0: the number of samples that give the value, with ``within``.
            seed: the seed of the noise, as for ``SmoothedClassifier.certify``.
            batch_size: noisy copies per forward pass; by the input's size if None.
            precision: "fp32", "tf32" or "bf16" uses a copy of the model in that precision.
            family: N, a number fixed in advance: α is shared by the answers to N inputs.
            stop: with ``within``: end sampling when "the value stays within ± t up to this radius" is decided (or several
                radii); n is then the most (docs/stopping.md).
            budget: a number, a map of the input's shape or a ``ucan.Budget``. The answer then also states the ε below which it
                stands under every change within ε·budget (``budget_factor``; docs/shape.md). Without ``stop``.

        Returns:
            An ``Interval`` for each input; with ``within`` an abstention where no radius will do.
        """
        question = Percentile(p, _rising(radius), within, *range)
        asked = self.budget_of(budget, x)
        return self.ask(x, question, self.plan(n0, n, alpha, norm, batch_size, precision, family, stop, asked), seed)


class SmoothedSegmenter(Smoothed):
    """g(x) = at every pixel the most probable class of a model f under noise.

    Args:
        model: f, a callable from a batch (n, *event) to logits (n, num_classes, height, width) or whole class numbers
            (n, height, width).
        law: the noise law, which draws ε.
        generator: gives μ and Σ; isotropic noise if None.
        num_classes: the number of classes.
        backend: how f is run, as for ``SmoothedClassifier``; so are ``precision``, ``model_id`` and ``step``.
        precision: what f computes in.
        model_id: a name for a model without PyTorch weights.
        step: the step of inputs on a grid.
    """

    what = "segmentation"

    def __init__(
        self,
        model: Callable[[torch.Tensor], Any],
        law: Law,
        generator: Generator | None = None,
        num_classes: int = 2,
        backend: str = "eager",
        precision: str | None = None,
        model_id: str | None = None,
        step: Any = None,
    ) -> None:
        super().__init__(self.reader(model, num_classes), law, generator, backend, precision, model_id, step)

    def reader(self, model: Callable[[torch.Tensor], Any], num_classes: int) -> Places:
        """How the model's answers are read."""
        return Places(model, num_classes)

    def certify(
        self,
        x: torch.Tensor,
        radius: float | None = None,
        n0: int = 100,
        n: int = 1000,
        alpha: float = 0.001,
        norm: float | None = None,
        rule: Rule | None = None,
        seed: Seed = 0,
        batch_size: int | None = None,
        precision: str | None = None,
        family: int = 1,
        stop: Any = None,
        budget: Any = None,
    ) -> list[Decided | Abstention]:
        """The answer at every place where it provably does not change, for each of a batch of inputs.

        With probability at least 1 − α, independently for each input: at no place with an answer does the smoothed model
        answer another one, for every change ‖Σ⁻¹δ‖ < r. At the other places nothing is claimed.

        Args:
            x: the inputs (batch, *event), in floating point.
            radius: r, the size of changes in the region's own norm, before Σ. If None, every place has its own.
            n0: the number of samples that choose the answers.
            n: the number of samples that test them.
            alpha: α, for all places of an input together.
            norm: the norm of changes: 1, 2 or math.inf. By default 2, or the law's own where it has no ℓ2 radius.
            rule: "holm" or "bonferroni"; by default Holm's at a radius, and Bonferroni's for radii.
            seed: the seed of the noise, as for ``SmoothedClassifier.certify``.
            batch_size: noisy copies per forward pass; by the input's size if None.
            precision: "fp32", "tf32" or "bf16" uses a copy of the model in that precision.
            family: N, a number fixed in advance: α is shared by the answers to N inputs.
            stop: end sampling when all places are decided at this radius (or several; with ``radius``, at that one); n is
                then the most (docs/stopping.md).
            budget: as for ``SmoothedRegressor``.

        Returns:
            A ``Decided`` for each input, or an abstention where no place has an answer.
        """
        plan = self.plan(n0, n, alpha, norm, batch_size, precision, family, stop, self.budget_of(budget, x))
        return self.ask(x, Decisions(self.what, radius, rule), plan, seed)


class SmoothedLabels(SmoothedSegmenter):
    """g(x) = for every label whether it is more probably there than not, under noise.

    As ``SmoothedSegmenter``, with labels in place of pixels: f maps a batch to logits (n, labels), above 0 where a label is
    there, or to whole 0 and 1.
    """

    what = "labels"

    def __init__(
        self,
        model: Callable[[torch.Tensor], Any],
        law: Law,
        generator: Generator | None = None,
        backend: str = "eager",
        precision: str | None = None,
        model_id: str | None = None,
        step: Any = None,
    ) -> None:
        super().__init__(model, law, generator, 2, backend, precision, model_id, step)

    def reader(self, model: Callable[[torch.Tensor], Any], num_classes: int) -> Places:
        """One yes or no for each label."""
        return Labels(model)


def _rising(radius: Any) -> tuple[float, ...]:
    """The radii asked for."""
    if radius is None:
        return ()
    with suppress(TypeError, ValueError):
        return (float(radius),)
    try:
        return tuple(float(r) for r in radius)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"radius takes a number or several, got {radius!r}.") from error
