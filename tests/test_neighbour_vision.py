"""Models of timm and torchvision as they are, with their normalisation behind the noise. Skipped where these do not import."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ucan
from ucan.models.adapt import adapt, normalised
from ucan.models.build import STATISTICS


def imported(name: str) -> Any:
    """The package; the test is skipped if it is absent, or cannot be imported beside this PyTorch."""
    try:
        return __import__(name, fromlist=["models"])
    except Exception as error:  # built for another PyTorch, it raises a RuntimeError
        pytest.skip(f"{name} cannot be imported here: {error}")


def check(model: torch.nn.Module, how: Any, mean: Any, std: Any) -> None:
    """Certified in pixels: the classifier is the model on (x − mean) / std, and votes are its own."""
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    found = adapt(normalised(model.eval(), how, 3), x[:1])
    shape = (1, 3, 1, 1)
    with torch.no_grad():
        by_hand = model((x - torch.tensor(mean).reshape(shape)) / torch.tensor(std).reshape(shape))
        assert torch.allclose(found.model(x), by_hand, atol=1e-4)
    assert found.num_classes == 4
    g = ucan.SmoothedClassifier(found.model, ucan.Gaussian(0.1), num_classes=4)
    outcomes = g.certify(x, n0=10, n=32)
    assert [sum(c.evidence.counts) for c in outcomes] == [32, 32]
    assert all(c.scope == "pipeline" for c in outcomes)


@pytest.mark.filterwarnings("ignore")
def test_torchvision() -> None:
    models = imported("torchvision.models")
    torch.manual_seed(0)
    check(models.resnet18(weights=None, num_classes=4), "imagenet", *STATISTICS["imagenet"])


@pytest.mark.filterwarnings("ignore")
def test_timm() -> None:
    timm = imported("timm")
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", pretrained=False, num_classes=4)
    check(model, "model", model.default_cfg["mean"], model.default_cfg["std"])
