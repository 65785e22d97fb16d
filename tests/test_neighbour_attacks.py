"""Attacks of other packages against the smoothed classifier. On a linear one its border, and so their success, is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import ucan
from ucan.neighbours.attacked import Attacked, attacked

W = torch.tensor([3.0, -1.0, 2.0, 0.0]) / math.sqrt(14)  # class 1 where W·(x − 1/2) > 0
X = torch.tensor([[0.6, 0.5, 0.6, 0.5], [0.8, 0.4, 0.7, 0.1], [0.3, 0.6, 0.4, 0.9], [0.45, 0.5, 0.4, 0.2]])
X = X.reshape(4, 1, 2, 2)  # pictures, as torchattacks wants them


@pytest.fixture(scope="module")
def g() -> ucan.SmoothedClassifier:
    line = nn.Linear(4, 2)
    with torch.no_grad():
        line.weight.copy_(torch.stack([-W, W]) * 3)
        line.bias.copy_(torch.stack([W.sum(), -W.sum()]) * 1.5)
    return ucan.SmoothedClassifier(nn.Sequential(nn.Flatten(), line).eval(), ucan.Gaussian(0.25), num_classes=2)


SIGNED = (X.flatten(1) - 0.5) @ W
DISTANCES, LABELS = SIGNED.abs(), (SIGNED > 0).long()


def check(found: list[Attacked], size: float) -> None:
    """An ℓ2 attack of this size changes g exactly at inputs nearer to the border, and refutes no certificate."""
    assert not any(a.refutes for a in found)
    assert all(a.size <= size * (1 + 1e-5) for a in found)
    for a, distance in zip(found, DISTANCES.tolist(), strict=True):
        assert a.changed == (distance < size), (a.size, distance)
        assert a.before.radius <= distance
        assert a.inside == (a.size < a.before.radius)


def test_an_attack_of_art_runs_against_it(g: ucan.SmoothedClassifier) -> None:
    pytest.importorskip("art", reason="the Adversarial Robustness Toolbox is not installed")
    from art.attacks.evasion import ProjectedGradientDescentPyTorch

    from ucan.neighbours.art import ArtClassifier

    model = ArtClassifier(g, (1, 2, 2), draws=32)
    shares = model.predict(X.numpy())
    true = [0.5 * math.erfc(-s / 0.25 / math.sqrt(2)) for s in SIGNED.tolist()]
    assert np.allclose(shares.sum(1), 1) and np.abs(shares[:, 1] - true).max() < 0.2
    one_hot = np.eye(2, dtype=np.float32)[LABELS]
    gradient = torch.from_numpy(model.loss_gradient(X.numpy(), one_hot)).flatten(1)
    directions = gradient @ W / gradient.norm(dim=1)
    assert torch.allclose(directions, 1 - 2.0 * LABELS, atol=1e-4)  # away from the class, straight to the border

    attack = ProjectedGradientDescentPyTorch(model, norm=2, eps=0.3, eps_step=0.1, max_iter=10, verbose=False)
    moved = torch.from_numpy(attack.generate(X.numpy(), one_hot))
    check(attacked(g, X, moved), 0.3)
    with pytest.raises(ucan.InvalidInput, match="is not trained"):
        model.fit(X.numpy(), one_hot)


def test_its_own_smoothing_agrees_and_costs_its_own_way(g: ucan.SmoothedClassifier) -> None:
    """Cohen's bound for both: the radii differ as two samples of votes do. Its abstention is −1, ours a record."""
    pytest.importorskip("art", reason="the Adversarial Robustness Toolbox is not installed")
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    from ucan.neighbours.art import ArtClassifier

    np.random.seed(0)
    theirs = PyTorchRandomizedSmoothing(
        g.f.model, nn.CrossEntropyLoss(), (1, 2, 2), 2, device_type="cpu", sample_size=100, scale=0.25, alpha=0.001
    )
    classes, radii = theirs.certify(X.numpy(), n=2000, batch_size=2000)
    ours = ArtClassifier(g, (1, 2, 2)).certify(X.numpy(), n=2000)
    assert [-1 if c.prediction is None else c.prediction for c in ours] == classes.tolist()
    for c, radius, distance in zip(ours, radii.tolist(), DISTANCES.tolist(), strict=True):
        p = 0.5 * math.erfc(-distance / 0.25 / math.sqrt(2))
        density = math.exp(-((distance / 0.25) ** 2) / 2) / math.sqrt(2 * math.pi)
        spread = 0.25 * math.sqrt(2 * p * (1 - p) / 2000) / density
        assert abs(c.radius - radius) < 4 * spread + 1e-3
        assert c.radius <= distance


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_attack_of_foolbox_runs_against_it(g: ucan.SmoothedClassifier) -> None:
    pytest.importorskip("foolbox", reason="foolbox is not installed", exc_type=ImportError)
    from foolbox.attacks import L2PGD

    from ucan.neighbours.foolbox import foolbox_model

    torch.manual_seed(0)  # its attacks start at random
    model = foolbox_model(g, draws=256, seed=0)
    attack = L2PGD(abs_stepsize=0.1, steps=10)
    _, moved, success = attack(model, X, LABELS, epsilons=0.3)
    check(attacked(g, X, moved), 0.3)
    assert success.tolist() == (DISTANCES < 0.3).tolist()


def test_an_attack_of_torchattacks_runs_against_it(g: ucan.SmoothedClassifier) -> None:
    torchattacks = pytest.importorskip("torchattacks", reason="torchattacks is not installed")
    soft = ucan.Differentiable(g, draws=32).eval()
    moved = torchattacks.PGDL2(soft, eps=0.3, alpha=0.1, steps=10)(X, LABELS)
    check(attacked(g, X, moved), 0.3)


def test_what_an_attack_did_is_told_by_the_region(g: ucan.SmoothedClassifier) -> None:
    far = X + torch.tensor([0.0, 0.0, 0.0, 0.5]).reshape(
        1, 2, 2
    )  # along the border: nothing changes, and the regions are left
    for a in attacked(g, X, far):
        assert not a.changed and not a.inside and not a.refutes and a.size == pytest.approx(0.5)
    (c, *_) = certificates = g.certify(X, n=1000)
    wrong = ucan.SmoothedClassifier(g.f.model, ucan.Gaussian(0.25), num_classes=2).certify(1 - X, n=1000)
    found = attacked(g, X, X, wrong)  # certificates of other inputs, whose answers are the opposite
    assert [a.refutes for a in found] == [not w.abstained for w in wrong]
    assert attacked(g, X, X, certificates)[0].before is c
    with pytest.raises(ucan.InvalidInput, match="give pairs"):
        attacked(g, X, X[:2])


def test_on_a_grid_the_change_counts_that_the_classifier_sees() -> None:
    line = nn.Linear(64, 2)
    with torch.no_grad():
        line.weight.copy_(torch.tensor([[-3.0], [3.0]]).expand(2, 64) / 8)
        line.bias.copy_(torch.tensor([-0.15, 0.15]))  # class 1 where the sum of the entries is above −0.4
    g = ucan.SmoothedClassifier(
        nn.Sequential(nn.Flatten(), line).eval(), ucan.Gaussian(0.5), num_classes=2, step=1 / 16
    )
    x = torch.full((2, 1, 8, 8), -1 / 16)
    certificates = g.certify(x, n=20_000)
    moved = x + torch.tensor([0.035, 0.02]).reshape(2, 1, 1, 1)  # rounded, these are a whole step and none
    found = attacked(g, x, moved, certificates, n=20_000)
    assert all(a.size < a.before.radius for a in found) and 0.27 < found[0].size < 0.29
    assert [a.changed for a in found] == [True, False] and [a.inside for a in found] == [False, True]
    assert not any(a.refutes for a in found)  # the certificate is about whole steps
