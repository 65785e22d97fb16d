"""A Lightning trainer logs certified accuracy, and what it logs is what the library certifies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ucan

try:
    import lightning.pytorch as pl
except ImportError:
    pl = pytest.importorskip("pytorch_lightning", reason="PyTorch Lightning is not installed")

from ucan.neighbours.lightning import CertifiedAccuracy

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers and loggers


class Net(pl.LightningModule):
    """Two classes of points on a plane."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("clean", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.05)


def points(count: int, seed: int) -> TensorDataset:
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] > 0).long())


def trained(*callbacks: Any, epochs: int = 2) -> tuple[Net, dict[str, torch.Tensor]]:
    pl.seed_everything(0, verbose=False)
    net = Net()
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    trainer.fit(net, DataLoader(points(256, 0), 32, shuffle=True), DataLoader(points(60, 1), 16))
    return net.eval(), trainer.callback_metrics


def test_a_trainer_logs_certified_accuracy() -> None:
    law = ucan.Gaussian(0.25)
    net, logged = trained(CertifiedAccuracy(law, radii=(0.25, 9.0), inputs=40, n=100))
    x, y = points(60, 1).tensors
    outcomes = ucan.SmoothedClassifier(net, law, num_classes=2).certify(x[:40], n=100)
    radii = torch.tensor(
        [c.radius if c.prediction == int(label) else 0.0 for c, label in zip(outcomes, y, strict=False)]
    )
    assert (
        float(logged["certified_accuracy"]) == pytest.approx(float((radii > 0).float().mean())) and radii.max() > 0.25
    )
    assert float(logged["certified_accuracy_at_0.25"]) == pytest.approx(float((radii > 0.25).float().mean()))
    assert float(logged["certified_radius"]) == pytest.approx(float(radii.mean()), rel=1e-5)
    assert float(logged["certified_accuracy_at_9"]) == 0
    assert float(logged["certified_accuracy"]) <= float(logged["clean"]) + 0.1

    plain, _ = trained()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))


def test_it_measures_every_so_many_epochs_and_names_its_scope() -> None:
    asked: list[int] = []

    class Counted(CertifiedAccuracy):
        def measured(self, pl_module: Any, x: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
            asked.append(pl_module.current_epoch)
            return super().measured(pl_module, x, labels)

    trained(Counted(ucan.Gaussian(0.25), every=2, inputs=5, n=20), epochs=3)
    assert asked == [1, 2]  # the second and the last

    watch = CertifiedAccuracy(ucan.Gaussian(0.25), ucan.CertificationWise(channels=1), inputs=2, n=20, num_classes=2)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    found = watch.measured(flat, torch.rand(2, 1, 4, 4), torch.zeros(2, dtype=torch.long))
    assert set(found) == {"certified_accuracy_frozen", "certified_radius_frozen"}


def test_batches_without_labels_are_refused() -> None:
    watch = CertifiedAccuracy(ucan.Gaussian(0.25))
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(ucan.InvalidInput, match=r"batches \(inputs, labels\), got a Tensor"):
        watch.on_validation_batch_end(trainer, None, None, torch.zeros(3, 2), 0)
    with pytest.raises(ucan.InvalidInput, match="every"):
        CertifiedAccuracy(ucan.Gaussian(0.25), every=0)
