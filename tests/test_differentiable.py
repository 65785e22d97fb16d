"""The smoothed classifier as a module: values and gradients against closed forms and differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import ucan


class Bump(nn.Module):
    """Two classes with logits (0, w·x), w so small that the sigmoid is nearly linear and the mean is known."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.02, -0.01, 0.03]))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """(0, w·y)."""
        return torch.stack([torch.zeros(len(y)), y @ self.w], 1)


def test_value_and_gradient_of_a_nearly_linear_classifier() -> None:
    model = Bump().eval()
    g = ucan.SmoothedClassifier(model, ucan.Gaussian(0.5), ucan.Fixed(torch.tensor([1.0, 2.0, 0.5])), 2)
    soft = ucan.Differentiable(g, draws=4000, seed=1)
    x = torch.tensor([[1.0, 2.0, -1.0]], requires_grad=True)
    p = soft(x).exp()[0, 1]
    assert p.item() == pytest.approx(torch.sigmoid((x @ model.w)[0]).item(), abs=1e-3)
    p.backward()
    slope = 0.25 * model.w.detach()
    assert x.grad is not None and torch.allclose(x.grad[0], slope, rtol=0.02)
    assert model.w.grad is not None and torch.allclose(model.w.grad, 0.25 * x.detach()[0], atol=0.02)


def test_noise_that_depends_on_its_input_passes_its_gradient_on() -> None:
    torch.manual_seed(0)
    noise = ucan.CertificationWise(channels=1)
    g = ucan.SmoothedClassifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval(), ucan.Gaussian(0.5), noise, 3)
    soft = ucan.Differentiable(g, draws=8, seed=3)
    x = torch.rand(1, 1, 4, 4, dtype=torch.float32, requires_grad=True)
    out = soft(x)[0, 0]
    (grad,) = torch.autograd.grad(out, x)
    direction = torch.randn(1, 1, 4, 4)
    h = 1e-2
    with torch.no_grad():
        numeric = (soft(x + h * direction)[0, 0] - soft(x - h * direction)[0, 0]) / (2 * h)
    assert float((grad * direction).sum()) == pytest.approx(float(numeric), rel=0.05, abs=1e-3)


def test_seed_makes_it_a_function_and_none_does_not() -> None:
    g = ucan.SmoothedClassifier(nn.Linear(4, 3).eval(), ucan.Gaussian(0.5), num_classes=3)
    x = torch.rand(2, 4)
    fixed, fresh = ucan.Differentiable(g, seed=0), ucan.Differentiable(g)
    assert torch.equal(fixed(x), fixed(x))
    assert not torch.equal(fresh(x), fresh(x))
    assert torch.allclose(fixed(x).exp().sum(1), torch.ones(2))
    assert {name for name, _ in fixed.named_parameters()} == {"model.weight", "model.bias"}


def test_an_attack_finds_the_border_that_the_certificate_keeps_away_from() -> None:
    model = nn.Linear(2, 2, bias=False).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[4.0, 0.0], [-4.0, 0.0]]))
    g = ucan.SmoothedClassifier(model, ucan.Gaussian(0.5), num_classes=2)
    x = torch.tensor([[0.6, 0.3]])
    (c,) = g.certify(x, n=10_000)
    soft, y = ucan.Differentiable(g, draws=64, seed=0), x.clone()
    for _ in range(100):
        y.requires_grad_(True)
        (step,) = torch.autograd.grad(soft(y)[0, 0], y)
        y = (y - 0.02 * step / step.norm()).detach()
        if g.predict(y, n=400)[0].prediction == 1:
            break
    length = float((y - x).norm())
    assert c.radius <= length <= 1.3 * 0.6 and math.isclose(float(y[0, 1]), 0.3, abs_tol=0.05)


def test_class_numbers_are_refused() -> None:
    g = ucan.SmoothedClassifier(lambda y: (y.sum(1) > 0).long(), ucan.Gaussian(0.5), num_classes=2)
    with pytest.raises(ucan.ModelError, match="no gradient"):
        ucan.Differentiable(g)(torch.rand(1, 3))
    with pytest.raises(ucan.InvalidInput, match="draws"):
        ucan.Differentiable(g, draws=0)
