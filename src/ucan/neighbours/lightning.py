"""PyTorch Lightning: a callback that logs the certified accuracy of the module under noise after each validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ucan.certificate import Certificate
from ucan.errors import InvalidInput, MissingExtra
from ucan.generators import Generator
from ucan.laws import Law
from ucan.plan import check_count
from ucan.smoothed import SmoothedClassifier

try:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback
except ImportError as error:
    raise MissingExtra("this needs PyTorch Lightning: pip install 'ucan[lightning]'.") from error


class CertifiedAccuracy(Callback):  # type: ignore[misc, unused-ignore]
    """Logs the share of the first validation inputs whose label is certified, under noise of this law and shape.

    It is a number to watch: few inputs, few votes. `ucan certify` measures the result of a training. It uses random numbers
    of its own, so the trained weights are the same with and without it.

    The metrics are ``certified_accuracy`` (any positive radius), ``certified_accuracy_at_R`` for each of ``radii``, and
    ``certified_radius``, the mean, where a wrong answer and an abstention count 0. Where the noise depends on the input, the
    guarantee has the scope ``frozen`` and the names end in ``_frozen``.

    Args:
        law: the noise law.
        generator: μ and Σ; isotropic noise if None.
        radii: the radii of ``certified_accuracy_at_R``.
        inputs: how many of the first validation inputs are certified, in each process.
        n: votes for each of them.
        alpha: α of each certificate.
        norm: the norm of the radii.
        every: every so many epochs.
        num_classes: the number of classes; if None, that of the module if it states one, else the width of its logits.
        classifier: takes the Lightning module, gives the classifier; the module itself, by its ``forward``, if None.
    """

    def __init__(
        self,
        law: Law,
        generator: Generator | None = None,
        radii: Sequence[float] = (),
        inputs: int = 100,
        n: int = 200,
        alpha: float = 0.001,
        norm: float = 2,
        every: int = 1,
        num_classes: int | None = None,
        classifier: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("inputs", inputs), ("n", n), ("every", every)):
            check_count(name, value)
        self.law, self.generator, self.radii, self.inputs = law, generator, tuple(radii), inputs
        self.n, self.alpha, self.norm, self.every = n, alpha, norm, every
        self.num_classes, self.classifier = num_classes, classifier
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Forget the inputs of the last validation."""
        self._kept = []

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Keep the first inputs of the first loader.

        Lightning calls it with its ``trainer``, the module, the module's ``outputs``, the ``batch`` and its number
        ``batch_idx``, and the loader's number ``dataloader_idx``.
        """
        room = self.inputs - sum(len(y) for _, y in self._kept)
        if dataloader_idx or room <= 0 or not self._due(trainer):
            return
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise InvalidInput(f"CertifiedAccuracy needs batches (inputs, labels), got a {type(batch).__name__}.")
        self._kept.append((batch[0][:room].clone(), batch[1][:room].clone()))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Certify them, and log."""
        if not self._kept:
            return
        x, labels = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
        self._kept = []
        pl_module.log_dict(self.measured(pl_module, x, labels), sync_dist=True, batch_size=len(x))

    def measured(self, pl_module: Any, x: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        """The metrics of these inputs with the module as it is now."""
        model = pl_module if self.classifier is None else self.classifier(pl_module)
        with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]):
            x = x.clone()
            classes = self.num_classes or getattr(model, "num_classes", None) or int(model(x[:1]).shape[-1])
            g = SmoothedClassifier(model, self.law, self.generator, classes)
            outcomes = g.certify(x, n=self.n, alpha=self.alpha, norm=self.norm)
        pairs = zip(outcomes, labels.tolist(), strict=True)
        radii = [c.radius if isinstance(c, Certificate) and c.prediction == label else 0.0 for c, label in pairs]
        end = "" if outcomes[0].scope == "pipeline" else f"_{outcomes[0].scope}"
        found = {f"certified_accuracy{end}": _share(radii, 0.0), f"certified_radius{end}": sum(radii) / len(radii)}
        return found | {f"certified_accuracy_at_{r:g}{end}": _share(radii, r) for r in self.radii}

    def _due(self, trainer: Any) -> bool:
        if trainer.sanity_checking:
            return False
        epoch = trainer.current_epoch + 1
        return bool(trainer.state.fn != "fit" or epoch % self.every == 0 or epoch == trainer.max_epochs)


def _share(radii: Sequence[float], at: float) -> float:
    """The certified accuracy at a radius, as ``ucan.results.metrics`` has it; at 0, any positive radius."""
    return sum(radius >= at and radius > 0 for radius in radii) / len(radii)
