"""A denoiser trained in front of a fixed classifier: its loss, its training by command, and a one-step diffusion."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import ucan
from ucan import Gaussian, InvalidInput, choices
from ucan.catalogue import RECIPES
from ucan.data import load
from ucan.errors import TrainingError
from ucan.generators import Isotropic
from ucan.models import CNN, Denoised, DiffusionStep
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.train import TrainJob, trainer_of
from ucan.training import load_run
from ucan.training.joint import Joint
from ucan.training.recipes import Denoise
from ucan.training.step import Progress

X, Y = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


def system() -> Denoised:
    torch.manual_seed(0)
    return Denoised.training_for(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), 1, width=4, depth=3)


@torch.no_grad()
def test_the_loss_is_squared_error_and_the_clean_answer() -> None:
    net, recipe = system(), Denoise(draws=2, mse=0.5, stability=2.0)
    joint = Joint(net, Isotropic(), Gaussian(0.5), recipe, "none", 0.0)
    step, again = (joint.step_at(X, Y, torch.Generator().manual_seed(1), None, Progress()) for _ in range(2))
    noisy, mse, far = again.noise.copies(2), 0.0, 0.0
    for copy in noisy:
        for i in range(6):
            clean = net.denoiser(copy[i : i + 1])[0]
            mse += float((clean - X[i]).square().sum()) / (2 * 6 * 16)
            p = F.softmax(net.classifier(clean[None])[0], 0)
            far -= math.log(float(p[net.classifier(X[i : i + 1]).argmax()])) / 12
    found = recipe.step(step)
    assert float(found.loss) == pytest.approx(0.5 * mse + 2 * far, rel=1e-5)
    assert float(found.shown["mse"]) == pytest.approx(mse, rel=1e-5) and recipe.cost(Progress()) == pytest.approx(7 / 3)


def test_the_classifier_stays_as_it_is() -> None:
    net = system().train()
    assert net.denoiser.training and not net.classifier.training
    before = {name: value.clone() for name, value in net.state_dict().items()}
    joint = Joint(net, Isotropic(), Gaussian(0.5), Denoise(stability=1.0), "none", 0.0)
    joint(X, Y, torch.Generator().manual_seed(1))["loss"].backward()
    moved = [name for name, weight in net.named_parameters() if weight.grad is not None and bool(weight.grad.any())]
    assert moved and all(name.startswith("denoiser.") for name in moved)
    assert all(torch.equal(before[n], v) for n, v in net.state_dict().items() if n.startswith("classifier."))


def trained(settings: str, out: Path, *changes: str, finetune: Path | None = None) -> Path:
    trainer_of(TrainJob(settings=settings, changes=changes, device="cpu", finetune=finetune), out).run()
    return out


def test_trained_by_its_preset_it_helps_and_is_a_model(tmp_path: Path) -> None:
    clean = trained("digits-clean", tmp_path / "clean", "epochs=8")
    with pytest.raises(TrainingError, match="--finetune"):
        trained("digits-denoised", tmp_path / "no")
    changes = ("epochs=8", "law.scale=0.5")
    one = trained("digits-denoised", tmp_path / "one", *changes, finetune=clean)
    run, start = load_run(one), load_run(clean)
    for name, weight in start.classifier.state_dict().items():
        assert torch.equal(run.classifier.state_dict()[f"classifier.{name}"], weight)
    both = (
        certify(CertifyJob(model=str(model), data="digits", scale=0.5, skip=10, n=300), tmp_path / f"run-{model.name}")
        for model in (clean, one)
    )
    plain, better = (done.accuracy for done in both)
    assert plain is not None and better is not None and better > plain + 0.05
    on = trained("digits-denoised", tmp_path / "on", "epochs=1", "recipe.mse=0.0", "recipe.stability=1.0", finetune=one)
    assert load_run(on).settings.recipe["stability"] == 1.0


def test_it_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    clean = trained("digits-clean", tmp_path / "clean", "epochs=1")
    whole = trained("digits-denoised", tmp_path / "whole", "epochs=2", finetune=clean)
    trainer = trainer_of(
        TrainJob(settings="digits-denoised", changes=["epochs=2"], device="cpu", finetune=clean), tmp_path / "parts"
    )
    stop, trainer._checkpoint = trainer._checkpoint, lambda: (stop(), _stopped())  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    parts = trained("digits-denoised", tmp_path / "parts", "epochs=2", finetune=clean)
    a, b = (load_file(folder / "weights.safetensors") for folder in (whole, parts))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _stopped() -> None:
    raise KeyboardInterrupt


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not both 0"):
        Denoise(mse=0.0)
    with pytest.raises(InvalidInput, match="trains nothing else"):
        TrainJob(settings="digits-isotropic", changes=["recipe.kind=denoise"]).chosen()
    joint = Joint(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), Isotropic(), Gaussian(0.5), Denoise(), "none", 0.0)
    with pytest.raises(InvalidInput, match=r"\[denoiser\]"):
        joint(X, Y, torch.Generator())


class Unet(nn.Module):
    """A small network that predicts the noise in a picture at a step of a diffusion; two channels, the second is ignored."""

    def __init__(self, width: int = 16, steps: int = 100) -> None:
        super().__init__()
        self.level = nn.Embedding(steps, width)
        self.first, self.second = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.third, self.last = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = F.silu(self.first(x) + self.level(t)[..., None, None])
        h = h + F.silu(self.second(h))
        return self.last(h + F.silu(self.third(h)))


@pytest.mark.slow
def test_one_step_of_a_diffusion_trained_on_digits_denoises() -> None:
    """Trained at all noise levels; at λ the step with (2λ)² = (1 − ᾱ)/ᾱ stands in front of a classifier without noise."""
    digits, law = load("digits", "train"), Gaussian(0.7)
    x, y = torch.stack([digits[i][0] for i in range(len(digits))]), digits.labels
    torch.manual_seed(0)
    alphas_bar = torch.linspace(0.999, 0.2, 100)
    unet, net = Unet(), CNN(1, 8, 10)
    optimiser = torch.optim.Adam([*unet.parameters(), *net.parameters()], lr=3e-3)
    for _ in range(200):
        rows = torch.randint(len(x), (128,))
        t, eps = torch.randint(100, (128,)), torch.randn(128, 1, 8, 8)
        root = alphas_bar[t].sqrt()[:, None, None, None]
        at_step = root * (2 * x[rows] - 1) + (1 - root**2).sqrt() * eps
        loss = F.mse_loss(unet(at_step, t)[:, :1], eps) + F.cross_entropy(net(x[rows]), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    test = load("digits", "test")
    some = torch.stack([test[i][0] for i in range(0, 445, 12)])
    labels = test.labels[::12]
    step = DiffusionStep(unet, alphas_bar, law.scale)
    right = {}
    for name, model in (("alone", net.eval()), ("denoised", Denoised(step, net))):
        outcomes = ucan.SmoothedClassifier(model, law, num_classes=10).certify(some, n=200, seed=0)
        right[name] = sum(c.prediction == int(label) for c, label in zip(outcomes, labels, strict=True)) / len(some)
    assert right["denoised"] > right["alone"] + 0.1, right


def test_every_recipe_has_its_line() -> None:
    assert choices.METHODS.keys() == RECIPES.own.keys()
