"""Noise optimised for each input: larger `frozen` radii, and no other claim."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ucan
from ucan.errors import InvalidInput, ModelError, UnsupportedNorm
from ucan.generators.optimised import Ancer, DataDependent

LAW = ucan.Gaussian(0.3)


def linear(weights: list[list[float]]) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(len(weights[0]), len(weights), bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor(weights))
    return net.eval()


def curved() -> nn.Module:
    """Two classes: inside a sphere of radius 2 around 0, and outside."""

    class Sphere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steepness = nn.Parameter(torch.tensor(8.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside = self.steepness * (4 - x.flatten(1).square().sum(1))
            return torch.stack((inside, -inside), 1)

    return Sphere().eval()


def test_sigma_climbs_its_own_radius() -> None:
    """At the centre of a ball the best σ is neither tiny nor huge; at an input near its border it is smaller."""
    noise = DataDependent(curved(), ucan.Gaussian(0.3), draws=200, steps=150)
    x = torch.zeros(2, 1, 2, 2)
    x[1, 0, 0, 0] = 1.7
    _, scale = noise(x)
    middle, border = scale.sigma[0, 0, 0, 0], scale.sigma[1, 0, 0, 0]
    assert 1.5 < middle < 8 and border < middle
    g, iso = (ucan.SmoothedClassifier(noise.model, ucan.Gaussian(0.3), m, num_classes=2) for m in (noise, None))
    mine, plain = (s.certify(x[:1], n=2000)[0] for s in (g, iso))
    assert mine.scope == "frozen" and mine.radius > 1.3 * plain.radius


def test_ancer_never_below_its_start_and_larger_where_nothing_is_looked_at() -> None:
    net = linear([[4.0, 0, 0, 0], [-4.0, 0, 0, 0]])
    x = torch.tensor([[[[1.0, 0.2, 0.3, 0.1]]]])
    start = DataDependent(net, LAW, draws=100, steps=10)
    ancer = Ancer(net, LAW, draws=100, steps=10, shape_steps=60)
    before, after = start(x)[1].sigma, ancer(x)[1].sigma
    assert (after >= before - 1e-6).all()
    assert (after[..., 1:] > 1.5 * before[..., 1:]).all()  # coordinates that the classifier ignores
    g, iso = (ucan.SmoothedClassifier(net, LAW, m, num_classes=2) for m in (ancer, start))
    assert g.certify(x, n=1000)[0].alm > iso.certify(x, n=1000)[0].alm


def test_the_same_input_gets_the_same_noise() -> None:
    noise = Ancer(curved(), LAW, draws=20, steps=5, shape_steps=3)
    x = torch.rand(3, 1, 2, 2)
    whole, alone = noise(x)[1].sigma, noise(x[1:2])[1].sigma
    torch.testing.assert_close(whole[1:2], alone, rtol=0, atol=0)
    assert noise.record().state != Ancer(linear([[1.0] * 4, [2.0] * 4]), LAW, 20, 5, shape_steps=3).record().state


def test_what_it_has_no_radius_for_is_refused() -> None:
    with pytest.raises(ModelError, match="gradient"):
        DataDependent(lambda x: x, LAW)
    with pytest.raises(UnsupportedNorm, match="Gaussian"):
        DataDependent(curved(), ucan.Laplace(0.3))
    with pytest.raises(InvalidInput, match="optimised for the scale"):
        g = ucan.SmoothedClassifier(curved(), ucan.Gaussian(1.0), DataDependent(curved(), LAW), num_classes=2)
        g.certify(torch.zeros(1, 1, 2, 2), n=100)
    with pytest.raises(InvalidInput, match="shape_steps"):
        Ancer(curved(), LAW, shape_steps=0)
