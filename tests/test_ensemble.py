"""Several networks, or a denoiser and a network, as one classifier."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ucan
from ucan.errors import ModelError
from ucan.fingerprint import identity
from ucan.models import Denoised, DiffusionStep, DnCNN, Ensemble


def nets(count: int, classes: int = 4) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Flatten(), nn.Linear(12, classes)) for _ in range(count)]


X = torch.randn(50, 1, 3, 4, generator=torch.Generator().manual_seed(1))


def test_the_logits_are_averaged() -> None:
    members = nets(3)
    expected = sum(member(X) for member in members) / 3
    torch.testing.assert_close(Ensemble(members)(X), expected)
    both = sum(member(view) for member in members for view in (X, X.flip(-1))) / 6
    torch.testing.assert_close(Ensemble(members, mirrored=True)(X), both)


def test_consensus_asks_the_others_only_where_the_first_disagree() -> None:
    members = nets(4)
    asked: list[int] = []
    members[3].register_forward_pre_hook(lambda _, args: asked.append(len(args[0])))
    answers = Ensemble(members, consensus=2)(X)
    for i in range(len(X)):  # one input at a time, by the definition
        logits = [member(X[i : i + 1])[0] for member in members]
        agree = logits[0].argmax() == logits[1].argmax()
        expected = torch.stack(logits[:2] if agree else logits).mean(0)
        torch.testing.assert_close(answers[i], expected)
    assert 0 < asked[0] < len(X)


def test_consensus_is_another_classifier() -> None:
    names = {identity(Ensemble(nets(4), consensus=k)) for k in (None, 2, 3)} | {
        identity(Ensemble(nets(4), mirrored=True))
    }
    assert len(names) == 4 and None not in names
    assert identity(Ensemble(nets(4))) != identity(Ensemble(nets(3)))


def test_an_ensemble_is_certified_like_any_network() -> None:
    g = ucan.SmoothedClassifier(Ensemble(nets(3)), ucan.Gaussian(0.2), num_classes=4)
    whole = nets(3)
    weight = torch.stack([m[1].weight for m in whole]).mean(0)
    bias = torch.stack([m[1].bias for m in whole]).mean(0)
    mean = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).eval()
    with torch.no_grad():
        mean[1].weight.copy_(weight)
        mean[1].bias.copy_(bias)
    h = ucan.SmoothedClassifier(mean, ucan.Gaussian(0.2), num_classes=4)
    for mine, same in zip(g.certify(X[:3], n=500), h.certify(X[:3], n=500), strict=True):
        assert abs(mine.counts - same.counts).max() <= 1  # the same noise; rounding may turn a copy on the border


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "at least one network"),
        (([3],), "must be a torch.nn.Module"),
        ((nets(2), False, 2), "three members and more, .* here are 2"),
        ((nets(4), False, 2.5), "a whole number from 2 to 3"),
        ((nets(4), False, "2"), "a whole number from 2 to 3"),
        ((nets(3), False, 1), "consensus must be"),
    ],
)
def test_what_is_no_ensemble_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Ensemble(*arguments)


def test_members_of_other_classes_are_refused() -> None:
    with pytest.raises(ModelError, match="same classes"):
        Ensemble([*nets(1), *nets(1, classes=5)])(X)
    with pytest.raises(ModelError, match="cannot be averaged"):
        Ensemble([lambda x: x.flatten(1).argmax(1)])(X)


def test_a_denoiser_stands_in_front() -> None:
    net = nets(1)[0]
    torch.testing.assert_close(Denoised(lambda y: y / 2, net)(X), net(X / 2))
    with pytest.raises(ModelError, match="must return a batch"):
        Denoised(lambda y: y[:, :, :2], net)(X)
    clean = DnCNN(1, width=8, depth=4)
    assert Denoised(clean, net)(X).shape == (50, 4)
    assert not clean.training  # batch norm must not look at the company of a copy


def test_a_diffusion_step_undoes_noise_that_is_predicted_exactly() -> None:
    clean, noise = torch.rand(5, 3, 4, 4), torch.randn(5, 3, 4, 4)
    alphas_bar = torch.linspace(0.999, 0.01, 500)
    step = DiffusionStep(lambda x, t: torch.cat((noise, noise), 1), alphas_bar, scale=0.25)
    ratio = float((1 - step.alpha_bar) / step.alpha_bar)
    assert ratio**0.5 == pytest.approx(0.5, rel=0.01)
    noisy = clean + ratio**0.5 / 2 * noise
    torch.testing.assert_close(step(noisy), clean, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("alphas", "scale"), [([0.1, 0.5], 0.1), ([0.9, 0.5], 5.0), ([0.9, 0.5], 0.0), ([1.5, 0.5], 0.1)]
)
def test_a_diffusion_that_does_not_fit_is_refused(alphas: list[float], scale: float) -> None:
    with pytest.raises(ModelError):
        DiffusionStep(nn.Identity(), alphas, scale)
