"""Training: losses against hand-made cases, and runs that end the same however often they are killed."""

import errno
import itertools
import json
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import tomllib
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import ucan
from ucan import Gaussian, InvalidInput, SmoothedClassifier, data
from ucan.catalogue import RECIPES
from ucan.cli import app
from ucan.cli.train import _for_a_cpu
from ucan.config import read_config, write_config
from ucan.data import InMemory
from ucan.errors import ModelError, StoreError, TrainingError
from ucan.generators import (
    BasisWise,
    BudgetWise,
    CertificationWise,
    Composed,
    DatasetWise,
    Fixed,
    Isotropic,
    Pattern,
    Splitting,
)
from ucan.laws import Laplace
from ucan.runs.train import TrainJob, changed, trainer_of
from ucan.scales import DCT, Basis, Dense, Diagonal, Scalar
from ucan.training import (
    TrainSettings,
    build_classifier,
    is_trained_run,
    load_run,
    preset_names,
    preset_text,
    read_settings,
)
from ucan.training.average import Average
from ucan.training.batches import Batches, epoch_seed, flip_and_crop
from ucan.training.checkpoint import begin, keep_settings, save_run, write_checkpoint
from ucan.training.joint import Joint, scale_entries, variance_term
from ucan.training.optimisers import schedule
from ucan.training.recipes import Augmentation, Consistency

pytest.importorskip("lightning_fabric")
from ucan.training import Trainer

CPU = torch.device("cpu")


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


# --- losses ---

LOGITS = torch.tensor([[[math.log(4), 0.0], [0.0, 0.0]], [[0.0, math.log(3)], [0.0, 0.0]]])  # 2 draws, 2 inputs
LABELS = torch.tensor([0, 1])


def test_cross_entropy_is_minus_the_mean_log_probability_of_the_label():
    expected = -(math.log(4 / 5) + math.log(1 / 2) + math.log(1 / 4) + math.log(1 / 2)) / 4
    assert float(Augmentation(draws=2).loss(LOGITS, LABELS)) == pytest.approx(expected, rel=1e-6)


def test_consistency_is_the_three_terms_by_hand():
    # First input: (4/5, 1/5) and (1/4, 3/4), mean (21/40, 19/40); second: both (1/2, 1/2).
    mean = (21 / 40, 19 / 40)
    each = ((4 / 5, 1 / 5), (1 / 4, 3 / 4))
    divergence = sum(m * math.log(m / q) for row in each for m, q in zip(mean, row, strict=True)) / 2
    entropy = -sum(m * math.log(m) for m in mean)
    cross = float(Augmentation(draws=2).loss(LOGITS, LABELS))
    for weight, eta in ((10.0, 0.5), (20.0, 0.0), (0.0, 2.0)):
        expected = cross + weight * divergence / 2 + eta * (entropy + math.log(2)) / 2
        loss = Consistency(draws=2, weight=weight, entropy=eta).loss(LOGITS, LABELS)
        assert float(loss) == pytest.approx(expected, rel=1e-6)


def test_copies_that_agree_pay_for_their_entropy_only():
    same = torch.randn(1, 5, 4, generator=rng()).expand(3, 5, 4)
    labels = torch.arange(5) % 4
    one = Consistency(draws=3, weight=100.0, entropy=0.0).loss(same, labels)
    assert float(one) == pytest.approx(float(Augmentation(draws=3).loss(same, labels)), rel=1e-5)


def test_consistency_survives_certain_copies_and_half_precision():
    logits = torch.tensor([[[200.0, -200.0]], [[-200.0, 200.0]]], requires_grad=True)
    loss = Consistency().loss(logits, torch.tensor([0]))
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()
    assert Consistency().loss(LOGITS.bfloat16(), LABELS).dtype == torch.float32


def test_recipes_have_the_published_settings():
    assert {"augmentation", "consistency"} <= set(RECIPES.names())
    assert Augmentation().draws == 1 and Consistency() == Consistency(draws=2, weight=10.0, entropy=0.5)


ENTRIES = torch.tensor([[0.5, 1.0, 2.0], [0.25, 1.0, 4.0]])


def test_variance_terms_by_hand():
    assert float(variance_term(ENTRIES, "mean")) == pytest.approx(8.75 / 6)
    assert float(variance_term(ENTRIES, "logmean")) == pytest.approx(0.0, abs=1e-7)
    assert float(variance_term(ENTRIES, "min")) == pytest.approx((0.5 + 0.25) / 2)
    for term in ("none", "max"):
        with pytest.raises(InvalidInput, match="logmean"):
            variance_term(ENTRIES, term)


def test_scales_of_all_directions_one_row_per_input():
    per_input = torch.rand(4, 1, 2, 3, generator=rng())
    inputs = torch.zeros(per_input.shape)
    assert torch.equal(scale_entries(Diagonal(per_input), inputs), per_input.reshape(4, 6))
    assert torch.equal(scale_entries(Diagonal(per_input[0]), inputs), per_input[0].reshape(1, 6))
    assert torch.equal(scale_entries(DCT(per_input[0]), inputs), per_input[0].reshape(1, 6))
    assert scale_entries(Basis(torch.eye(2), torch.tensor([0.5, 2.0])), inputs).tolist() == [[0.5, 2.0]]
    assert scale_entries(Scalar(0.5), inputs).tolist() == [[0.5]]
    assert scale_entries(Dense(torch.eye(2)), inputs) is None


def test_a_shared_sigma_is_one_row_also_for_a_batch_of_as_many_inputs_as_channels():
    shared = DatasetWise((3, 4, 4))
    _, scale = shared(torch.zeros(3, 3, 4, 4))
    assert scale_entries(scale, torch.zeros(3, 3, 4, 4)).shape == (1, 48)


def test_the_joint_loss_is_cross_entropy_minus_the_weighted_variance_term():
    generator = Pattern((1, 4, 4))
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    x, labels = torch.rand(5, 1, 4, 4, generator=rng()), torch.arange(5) % 3
    plain = Joint(classifier, generator, Gaussian(0.5), Augmentation(), "none", 7.0)(x, labels, rng(1))
    for term in ("mean", "logmean", "min"):
        out = Joint(classifier, generator, Gaussian(0.5), Augmentation(), term, 7.0)(x, labels, rng(1))
        expected = float(plain["loss"].detach()) - 7 * float(variance_term(generator.scale.sigma.reshape(1, 16), term))
        assert float(out["loss"].detach()) == pytest.approx(expected, rel=1e-5)
    noisy = generator.perturb(x, Gaussian(0.5), 1, rng(1))[0]
    assert float(plain["correct"]) == pytest.approx(float((classifier(noisy).argmax(1) == labels).float().mean()))
    assert float(plain["min_sigma"]) == pytest.approx(float(generator.scale.sigma.min()))
    with pytest.raises(InvalidInput, match="variance term"):
        Joint(classifier, generator, Gaussian(0.5), Augmentation(), "max", 1.0)


@pytest.mark.parametrize("term", ("mean", "logmean", "min"))
def test_the_variance_term_pushes_sigma_up(term):
    torch.manual_seed(0)
    generator = CertificationWise(1, features=2, growth=2)
    joint = Joint(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), generator, Gaussian(0.1), Augmentation(), term, 10.0)
    optimiser = torch.optim.Adam(generator.parameters(), lr=0.01)
    x, labels, seen = torch.rand(8, 1, 4, 4, generator=rng()), torch.arange(8) % 2, []
    for step in range(15):
        out = joint(x, labels, rng(step))
        optimiser.zero_grad()
        out["loss"].backward()
        optimiser.step()
        seen.append(float(out["min_sigma"]))
    assert seen[-1] > seen[0] + 0.05


# --- schedule, augmentation, batches ---


def test_schedules_at_their_ends():
    assert schedule("constant", 0.0) == schedule("constant", 1.0) == 1.0
    assert schedule("cosine", 0.0) == 1.0 and schedule("cosine", 1.0) == pytest.approx(0.0, abs=1e-12)
    assert schedule("cosine", 0.5) == pytest.approx(0.5)
    assert schedule("one-cycle", 0.0) == 0.04 and schedule("one-cycle", 1.0) == pytest.approx(0.0, abs=1e-12)
    assert schedule("one-cycle", 0.1) == pytest.approx(0.5) and schedule("one-cycle", 0.2) == pytest.approx(1.0)
    for name in ("constant", "cosine", "one-cycle"):
        shares = [schedule(name, done) for done in np.linspace(0, 1, 500)]
        assert min(shares) >= 0 and max(shares) <= 1 and np.abs(np.diff(shares)).max() < 0.02


@pytest.mark.parametrize("drops", [[2, 4, 6], [1, 5], [9]])
def test_the_learning_rate_falls_in_steps_as_torchs_own_schedule_does(tmp_path, drops):
    one = trainer(tmp_path / "run", epochs=7, schedule="steps", lr_drops=drops, optimiser="momentum", lr=0.05)
    seen, train_step = [], one._train_step

    def watched(batch):
        found = train_step(batch)
        seen.append([optimiser.param_groups[0]["lr"] for optimiser in one.optimisers])
        return found

    one._train_step = watched
    one.run()
    theirs = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05)
    steps = torch.optim.lr_scheduler.MultiStepLR(theirs, drops, gamma=0.1)
    for epoch in range(7):
        rate = 0.05 * 10.0 ** -sum(epoch >= drop for drop in drops)
        assert theirs.param_groups[0]["lr"] == pytest.approx(rate, rel=1e-12)
        assert seen[3 * epoch : 3 * epoch + 3] == [[pytest.approx(rate, rel=1e-12)] * 2] * 3
        theirs.step()
        steps.step()


def test_momentum_is_torchs_own_without_nesterov(tmp_path):
    made = {
        name: trainer(tmp_path / name, optimiser=name, weight_decay=0.1).optimisers[0] for name in ("momentum", "sgd")
    }
    for name, optimiser in made.items():
        (group,) = optimiser.param_groups
        assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, name == "sgd", 0.1)


def test_adam_is_refused_where_its_smallest_number_is_0(tmp_path):
    """In 16-true its first steps gave NaN, which ended the run at the end of the epoch with advice about lr."""
    for kind, optimiser in (("isotropic", "adam"), ("dataset-wise", "sgd")):
        with pytest.raises(InvalidInput, match=r"16-true.*Adam.*Set precision to 16-mixed"):
            trainer(tmp_path / "run", precision="16-true", optimiser=optimiser, generator={"kind": kind})
    plain = {"generator": {"kind": "isotropic"}, "variance_term": "none", "ema": 0.0}
    trainer(tmp_path / "run", precision="16-true", optimiser="sgd", epochs=1, **plain).run()


def test_a_drop_within_a_stopped_run_comes_when_it_would_have_come(tmp_path):
    chosen = {"schedule": "steps", "lr_drops": [1, 3], "optimiser": "momentum", "lr": 0.05}
    trainer(tmp_path / "whole", **chosen).run()
    for last in (2, 3, 5):  # of three steps an epoch: before the first drop, right before it, after it
        one = trainer(tmp_path / f"run-{last}", **chosen)
        steps, train_step = [], one._train_step

        def interrupted(batch, one=one, steps=steps, train_step=train_step, last=last):
            steps.append(1)
            one._stop = len(steps) == last
            return train_step(batch)

        one._train_step = interrupted
        with pytest.raises(KeyboardInterrupt):
            one.run()
        trainer(tmp_path / f"run-{last}", **chosen).run()
        assert same(weights(tmp_path / f"run-{last}"), weights(tmp_path / "whole"))
    trainer(tmp_path / "other", **{**chosen, "lr_drops": [1, 2]}).run()
    assert not same(weights(tmp_path / "other"), weights(tmp_path / "whole"))


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (2, 5, 9)])
def test_flip_and_crop_is_a_crop_of_the_padded_perhaps_flipped_image(shape, flip):
    x, pad = torch.rand(40, *shape, generator=rng()) + 0.1, 4
    out = flip_and_crop(x, rng(1), pad, flip=flip)
    channels, height, width = shape
    assert out.shape == x.shape
    found = []
    for image, cropped in zip(x, out, strict=True):
        places = []
        for flipped in (False, True):
            padded = torch.zeros(channels, height + 2 * pad, width + 2 * pad)
            padded[:, pad : pad + height, pad : pad + width] = image.flip(2) if flipped else image
            for top in range(2 * pad + 1):
                for left in range(2 * pad + 1):
                    if torch.equal(padded[:, top : top + height, left : left + width], cropped):
                        places.append((flipped, top, left))
        assert len(places) == 1
        found += places
    assert {f for f, _, _ in found} == ({True, False} if flip else {False}) and len({t for _, t, _ in found}) > 5
    assert len({left for _, _, left in found}) > 5 and len(set(found)) > 20
    again, other = (flip_and_crop(x, rng(seed), pad, flip=flip) for seed in (1, 2))
    assert torch.equal(out, again) and not torch.equal(out, other)


@pytest.mark.parametrize(("name", "usual", "other"), [("flip", True, False), ("shift", 4, 2), ("shift", 4, 0)])
def test_flips_and_shifts_as_set_and_augment_alone_has_the_usual_ones(tmp_path, name, usual, other):
    for folder, chosen in {"with": {}, "said": {name: usual}, "other": {name: other}}.items():
        trainer(tmp_path / folder, augment=True, **chosen).run()
    assert same(weights(tmp_path / "with"), weights(tmp_path / "said"))
    assert not same(weights(tmp_path / "with"), weights(tmp_path / "other"))


def test_pictures_alone_are_augmented_and_a_spread_is_a_number(tmp_path):
    rows = InMemory(torch.rand(20, 5, generator=rng()), torch.arange(20) % 2, ["a", "b"])
    with pytest.raises(InvalidInput, match=r"augment moves and flips pictures.*shape \(5,\)"):
        Trainer(TrainSettings(augment=True), rows, nn.Linear(5, 2), tmp_path / "run", "cpu")
    for spread in ("wide", True, None):
        with pytest.raises(InvalidInput, match=r"spread in .* must be a number"):
            TrainSettings(budget={"spread": spread})


def numbered(count):
    return InMemory(
        torch.arange(count).float().reshape(count, 1, 1, 1) / count, torch.arange(count) % 3, ["a", "b", "c"]
    )


def items(batches, epoch, first=0):
    return [torch.round(x.flatten() * len(batches.dataset)).long().tolist() for x, *_ in batches.epoch(epoch, first)]


def flat(lists):
    return list(itertools.chain(*lists))


def test_batches_cover_everything_once_in_an_order_of_seed_and_epoch_alone():
    dataset = numbered(30)
    batches = Batches(dataset, 6, seed=3, device=CPU)
    first = items(batches, 0)
    assert len(batches) == len(first) == 5 and sorted(flat(first)) == list(range(30))
    torch.manual_seed(99)
    list(batches.epoch(4))
    assert items(batches, 0) == items(Batches(dataset, 6, seed=3, device=CPU), 0) == first
    assert items(batches, 1) != first and items(Batches(dataset, 6, seed=4, device=CPU), 0) != first
    assert items(batches, 0, first=3) == first[3:] and items(batches, 0, first=5) == []
    assert flat(items(Batches(dataset, 10, seed=3, device=CPU), 0)) == flat(first)


def test_a_short_last_batch_is_dropped_and_labels_go_with_their_images():
    batches = Batches(numbered(10), 4, seed=0, device=CPU)
    seen = items(batches, 0)
    assert len(batches) == len(seen) == 2 and len(set(flat(seen))) == 8
    for x, labels, _ in batches.epoch(0):
        assert (torch.round(x.flatten() * 10).long() % 3).tolist() == labels.tolist()
    small = Batches(numbered(3), 128, seed=0, device=CPU)
    assert len(small) == 1 and sorted(items(small, 0)[0]) == [0, 1, 2]


def test_bytes_stay_bytes_until_they_are_needed():
    pixels = torch.arange(12, dtype=torch.uint8).reshape(3, 1, 2, 2) * 20
    batches = Batches(InMemory(pixels, torch.zeros(3, dtype=torch.int64), ["a", "b"]), 3, seed=0, device=CPU)
    assert batches._resident[0].dtype == torch.uint8
    ((x, *_),) = batches.epoch(0)
    assert x.dtype == torch.float32 and torch.allclose(x.sum(), pixels.float().sum() / 255)


def test_epoch_seeds_differ_by_seed_epoch_and_purpose():
    seeds = {epoch_seed(s, e, p) for s in range(4) for e in range(10) for p in ("order", "noise", "layers")}
    assert len(seeds) == 120 and all(0 <= s < 2**32 for s in seeds)


# --- settings ---

SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "cifar10": (3, 32, 32), "imagenet": (3, 224, 224)}
KINDS = {
    "isotropic": Isotropic,
    "pattern": Pattern,
    "dataset": DatasetWise,
    "certification": CertificationWise,
    "basis": BasisWise,
    "composed": Composed,
    "consistency": Isotropic,
    "budget": Fixed,
    "budget-learned": BudgetWise,
    "budget-composed": Composed,
    "splitting": Splitting,
    "best": Isotropic,
    "ensemble": Isotropic,
    "gaussian": Isotropic,
}
METHODS = (
    "stability",
    "smoothadv",
    "macer",
    "smoothmix",
    "catrs",
    "drt",
    "acr",
    "sphere",
)  # presets named after their recipe
KINDS |= dict.fromkeys((*METHODS, "clean", "denoised"), Isotropic)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_builds_what_its_name_says(name):
    settings = read_settings(name)
    of, kind, *more = name.split("-")
    kind = "-".join([kind, *more]) if kind == "budget" else kind
    shape = SHAPES[of]
    assert of in settings.data
    assert TrainSettings.from_dict(settings.to_dict()) == settings
    law, generator = settings.build_law(math.prod(shape)), settings.build_generator(shape, None)
    assert type(generator) is KINDS[kind] and generator.cap() is not None
    assert isinstance(settings.build_recipe(), Consistency) == (settings.recipe["kind"] == "consistency")
    assert kind not in METHODS or settings.recipe["kind"] == kind
    x = torch.zeros(1, *shape)
    with torch.no_grad():
        mu, scale = generator(x)
    scale.check_dim(x.numel())
    assert (
        torch.broadcast_shapes(mu.shape, x.shape) == x.shape and law.radius(0.9, generator.own_norm or 2, x.numel()) > 0
    )
    if settings.variance_term != "none":
        assert variance_term(scale_entries(scale, x), settings.variance_term).isfinite()
    classes = 1000 if of == "imagenet" else 10
    with torch.device("meta"):
        classifier = build_classifier(settings, shape, classes)
    assert sum(p.numel() for p in classifier.parameters()) > 1000


def test_the_papers_presets_have_the_papers_settings():
    for name in ("mnist-certification", "cifar10-certification"):
        settings = read_settings(name)
        assert (settings.optimiser, settings.lr, settings.batch, settings.epochs) == ("adam", 1e-2, 128, 200)
        assert settings.law["scale"] == 1.0 and settings.generator["gamma"] == 1.0


@pytest.mark.parametrize(
    ("name", "batch", "recipe"),
    [
        ("mnist-consistency", 128, {"draws": 2, "weight": 5.0, "entropy": 0.5}),
        ("mnist-smoothadv", 64, {"draws": 4, "steps": 10, "size": 255 / 256, "warm": 10}),
        ("mnist-macer", 64, {"draws": 16, "weight": 16.0, "margin": 8.0, "sharpness": 16.0, "warm": 30}),
        ("mnist-smoothmix", 64, {"draws": 4, "steps": 4, "length": 1.0, "weight": 5.0, "one_step": 1}),
        ("imagenet-consistency", 128, {"draws": 2, "weight": 5.0, "entropy": 0.5}),
        ("imagenet-catrs", 128, {"draws": 2, "steps": 1, "size": 1.0, "weight": 2.0}),
        ("imagenet-acr", 256, {"draws": 1, "drop": 0.2, "steps": 2, "length": 1.0}),
    ],
)
def test_methods_have_their_authors_settings(name, batch, recipe):
    settings = read_settings(name)
    assert settings.batch == batch and settings.epochs == 90 and settings.optimiser == "sgd"
    assert settings.lr == (0.01 if name.startswith("mnist") else 0.1)
    assert recipe.items() <= settings.recipe.items()
    assert settings.batch * settings.recipe["draws"] in (256, 1024)  # copies in a step; MACER's authors take more


AUTHORS = [name for name in preset_names() if name.endswith("-authors")]
# batch, lr, epochs, lr_drops, weight decay and loss, as the programs that the presets name have them
PUBLISHED = {
    "cifar10-gaussian": (400, 0.1, 90, [30, 60], 1e-4, {}),
    "cifar10-stability": (256, 0.1, 150, [50, 100], 1e-4, {"weight": 2.0}),
    "cifar10-smoothadv": (32, 0.1, 150, [50, 100], 1e-4, {"draws": 8, "steps": 2, "size": 512 / 256, "warm": 10}),
    "cifar10-macer": (64, 0.01, 440, [200, 400], 5e-4, {"draws": 16, "weight": 4.0, "margin": 8.0, "sharpness": 16.0}),
    "cifar10-consistency": (128, 0.1, 150, [50, 100], 1e-4, {"draws": 2, "weight": 10.0, "entropy": 0.5}),
    "cifar10-smoothmix": (128, 0.1, 150, [50, 100], 1e-4, {"draws": 2, "steps": 4, "length": 1.0, "weight": 5.0}),
    "cifar10-catrs": (64, 0.1, 150, [50, 100], 1e-4, {"draws": 4, "steps": 4, "size": 1.0, "weight": 1.0}),
    "cifar10-acr": (64, 0.1, 150, [50, 100], 1e-4, {"draws": 4, "drop": 0.4, "steps": 6, "length": 0.25, "every": 10}),
    "mnist-gaussian": (256, 0.01, 90, [30, 60], 1e-4, {}),
    "mnist-stability": (256, 0.01, 90, [30, 60], 1e-4, {"weight": 2.0}),
    "mnist-smoothadv": (64, 0.01, 90, [30, 60], 1e-4, {"draws": 4, "steps": 10, "size": 255 / 256, "warm": 10}),
    "mnist-macer": (256, 0.01, 90, [30, 60], 1e-4, {"draws": 16, "weight": 16.0, "warm": 30}),
    "mnist-consistency": (128, 0.01, 90, [30, 60], 1e-4, {"draws": 2, "weight": 5.0, "entropy": 0.5}),
    "mnist-smoothmix": (64, 0.01, 90, [30, 60], 1e-4, {"draws": 4, "steps": 4, "length": 1.0, "weight": 5.0}),
    "mnist-catrs": (64, 0.01, 150, [50, 100], 1e-4, {"draws": 4, "steps": 4, "size": 1.0, "weight": 1.0}),
    "imagenet-gaussian": (400, 0.1, 90, [30, 60], 1e-4, {}),
    "imagenet-smoothadv": (256, 0.1, 90, [30, 60], 1e-4, {"draws": 1, "steps": 1, "size": 255 / 256}),
    "imagenet-consistency": (128, 0.1, 90, [30, 60], 1e-4, {"draws": 2, "weight": 5.0, "entropy": 0.5}),
    "imagenet-catrs": (128, 0.1, 90, [30, 60, 85], 1e-4, {"draws": 2, "steps": 1, "mask": 1, "double": 80}),
    "imagenet-acr": (256, 0.1, 90, [50], 1e-4, {"draws": 1, "steps": 2, "length": 1.0, "every": 0}),
}


def test_the_authors_settings_are_those_of_their_programs():
    assert [name.removesuffix("-authors") for name in AUTHORS] == sorted(PUBLISHED)
    models = {"cifar10": "resnet110", "mnist": "lenet", "imagenet": "resnet50"}
    for name in AUTHORS:
        s = read_settings(name)
        batch, lr, epochs, drops, decay, recipe = PUBLISHED[name.removesuffix("-authors")]
        assert (s.batch, s.lr, s.epochs, s.lr_drops, s.weight_decay) == (batch, lr, epochs, drops, decay), name
        assert recipe.items() <= s.recipe.items(), name
        assert (s.optimiser, s.schedule, s.model, s.ema) == ("momentum", "steps", models[s.data], 0.0), name
        assert s.augment == (s.data != "mnist") and s.law["kind"] == "gaussian", name
        assert re.search(r"# Source: github\.com/[\w.-]+/[\w.-]+, commit [0-9a-f]{7}\b", preset_text(name)), name
    starts = {"cifar10-catrs": 50, "cifar10-acr": 70, "mnist-catrs": 50, "imagenet-catrs": 30, "imagenet-acr": 0}
    for name, first in starts.items():
        s = read_settings(f"{name}-authors")
        assert round(s.recipe["start"] * s.epochs) == first


@pytest.mark.parametrize("name", [name for name in AUTHORS if not name.startswith("imagenet")])
def test_the_authors_presets_train(tmp_path, name):
    """Two steps of each, for methods with a start one before it and one after it; of a ResNet with fewer blocks."""
    few = ["recipe.votes=4"] if "votes" in read_settings(name).recipe else []
    few += ["model=resnet20"] if read_settings(name).model == "resnet110" else []
    settings = changed(read_settings(name), ["epochs=2", "batch=2", "lr_drops=[1]", *few])
    shape = SHAPES[settings.data]
    pixels = torch.rand(2, *shape, generator=rng())
    tiny = InMemory(pixels, torch.tensor([0, 9]), [str(digit) for digit in range(10)])
    trainer_of(TrainJob(settings=settings, data=tiny, device="cpu"), tmp_path / "run").run()
    assert [line["epoch"] for line in metrics(tmp_path / "run")] == [0, 1]
    assert all(math.isfinite(line["loss"]) for line in metrics(tmp_path / "run"))
    assert load_run(tmp_path / "run").classifier(pixels).shape == (2, 10)


def test_the_page_on_training_has_every_setting_with_its_default():
    page = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    (table,) = (part for part in page.split("\n\n") if "| `epochs` |" in part)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE))
    shown = {
        name: None if text == "none" else tomllib.loads(f"v = {text.strip('`')}")["v"] for name, text in rows.items()
    }
    assert shown == TrainSettings().to_dict()


BAD = {
    "unknown key": ({"epoch": 3}, "epoch"),
    "unknown law": ({"law": {"kind": "cauchy"}}, "law.kind"),
    "unknown generator": ({"generator": {"kind": "whatever"}}, "generator.kind"),
    "unknown recipe": ({"recipe": {"kind": "mace"}}, "recipe.kind"),
    "unknown optimiser": ({"optimiser": "lion"}, "optimiser"),
    "unknown schedule": ({"schedule": "step"}, "schedule"),
    "steps without drops": ({"schedule": "steps"}, "lr_drops = "),
    "steps with no drop": ({"schedule": "steps", "lr_drops": []}, "lr_drops = "),
    "drops without steps": ({"lr_drops": [3]}, "lr_drops = "),
    "drops that are no list": ({"schedule": "steps", "lr_drops": 30}, "lr_drops must be a list"),
    "drops that fall": ({"schedule": "steps", "lr_drops": [60, 30]}, "rising"),
    "a drop before the start": ({"schedule": "steps", "lr_drops": [0, 30]}, "rising"),
    "a drop within an epoch": ({"schedule": "steps", "lr_drops": [1.5]}, "whole numbers"),
    "a drop that is text": ({"schedule": "steps", "lr_drops": ["soon"]}, "whole numbers"),
    "no epochs": ({"epochs": 0}, "epochs"),
    "no batch": ({"batch": 0}, "batch"),
    "an ensemble of one": ({"networks": 1}, "networks"),
    "ema of one": ({"ema": 1.0}, "ema"),
    "negative lr": ({"lr": -1.0}, "lr"),
    "all held out": ({"held_out": 1.0}, "held_out"),
    "lr that is no number": ({"lr": math.nan}, "lr"),
    "endless lr": ({"lr": math.inf}, "lr"),
    "negative generator_lr": ({"generator_lr": -0.1}, "generator_lr"),
    "generator_lr that is no number": ({"generator_lr": math.nan}, "generator_lr"),
    "negative weight_decay": ({"weight_decay": -1e-4}, "weight_decay"),
    "weight_decay that is no number": ({"weight_decay": math.nan}, "weight_decay"),
    "variance_weight that is no number": ({"variance_weight": math.nan}, "variance_weight"),
    "seed too large": ({"seed": 2**64}, "seed"),
    "seed too small": ({"seed": -(2**63) - 1}, "seed"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_settings_are_refused_by_name(case):
    values, word = BAD[case]
    with pytest.raises(InvalidInput, match=word):
        TrainSettings.from_dict(values)


@pytest.mark.parametrize(
    "values",
    [
        {"law": {"kind": "gaussian", "sigma": 1.0}},
        {"generator": {"kind": "pattern", "curl": 1.0}},
        {"generator": {"kind": "basis-wise", "basis": "wavelet"}},
        {"generator": {"kind": "certification-wise", "gamma": -1.0}},
        {"recipe": {"kind": "consistency", "lam": 20.0}},
        {"recipe": {"kind": "augmentation", "draws": 0}},
        {"recipe": {"kind": "augmentation", "draws": 2.5}},
        {"recipe": {"kind": "consistency", "weight": "much"}},
        {"recipe": {"kind": "consistency", "entropy": math.nan}},
        {"generator": {"kind": "certification-wise", "features": 2.5}},
        {"generator": {"kind": "composed", "growth": 2.5}},
        {"generator": {"kind": "basis-wise", "leading": 2.5}},
        {"generator": {"kind": "basis-wise", "leading": 20, "bands": 2.5}},
        {"generator": {"kind": "basis-wise", "leading": 20, "scale": ["a", "b"]}},
        {"law": {"kind": "gaussian", "std": "wide"}},
    ],
    ids=str,
)
def test_wrong_parameters_of_a_table_are_refused(values):
    settings = TrainSettings.from_dict(values)
    with pytest.raises(InvalidInput):
        settings.build_law(64), settings.build_generator((1, 8, 8), None), settings.build_recipe()


def test_a_law_may_be_given_by_its_standard_deviation():
    law = TrainSettings(law={"kind": "laplace", "std": 0.5}).build_law(64)
    assert isinstance(law, Laplace) and law.std(64) == pytest.approx(0.5)


def test_settings_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidInput, match="presets"):
        read_settings("no-such-preset")
    (tmp_path / "a.toml").write_text("epochs = ")
    with pytest.raises(InvalidInput, match=r"a\.toml"):
        read_settings(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text('epochs = "many"')
    with pytest.raises(InvalidInput):
        read_settings(tmp_path / "b.toml")


def test_settings_that_are_no_utf_8_are_refused(tmp_path):
    (tmp_path / "a.toml").write_bytes('model = "größer"'.encode("latin1"))
    with pytest.raises(InvalidInput, match=r"a\.toml.*UTF-8"):
        read_settings(tmp_path / "a.toml")


def test_every_seed_that_torch_takes_is_taken():
    for seed in (-(2**63), 2**64 - 1):
        build_classifier(TrainSettings(seed=seed), (1, 8, 8), 10)


def test_a_generator_without_a_learning_rate_stays_as_it_was(tmp_path):
    one = trainer(tmp_path / "run", generator_lr=0.0, epochs=1, ema=0.0)
    before = {k: v.clone() for k, v in one.joint.state_dict().items()}
    one.run()
    moved = {k for k, v in one.joint.state_dict().items() if not torch.equal(v, before[k])}
    assert moved and all(name.startswith("classifier.") for name in moved)


def test_std_beside_scale_says_what_to_do():
    with pytest.raises(InvalidInput, match="both scale and std") as refused:
        changed(TrainSettings(), ["law.std=0.3"])
    (advice,) = str(refused.value).split("--set '")[1].split("'")[:1]
    assert changed(TrainSettings(), [advice]).law == {"kind": "gaussian", "std": 0.3}


def test_set_changes_one_setting():
    base = TrainSettings()
    new = changed(base, ["epochs=3", "law.scale=0.5", "model=my.module:Net", "generator.kind=pattern", "augment=true"])
    assert (new.epochs, new.law, new.model) == (3, {"kind": "gaussian", "scale": 0.5}, "my.module:Net")
    assert new.generator == {"kind": "pattern"} and new.augment is True and base == TrainSettings()
    assert changed(base, ["law.a=5.0"]).law["a"] == 5.0


@pytest.mark.parametrize(
    "change",
    [
        "epochs",
        "epoch=1",
        "optimiser=lion",
        "laws.scale=0.5",
        "epochs.x=1",
        "epochs=many",
        "law=gaussian",
    ],
)
def test_set_refuses_what_would_change_nothing_or_too_much(change):
    with pytest.raises(InvalidInput):
        changed(TrainSettings(), [change])


# --- runs ---

SMALL = {
    "data": "digits",
    "epochs": 4,
    "batch": 64,
    "lr": 2e-3,
    "ema": 0.9,
    "augment": True,
    "variance_term": "min",
    "variance_weight": 0.2,
    "generator": {"kind": "certification-wise", "features": 3, "growth": 2},
}


def few(count=200):
    """Some digits; the same in every process."""
    return data.load("digits", "train").subset(torch.arange(count))


def trainer(folder, on_progress=None, dataset=None, classifier=None, **changes):
    settings = TrainSettings.from_dict({**SMALL, **changes})
    dataset = dataset or few()
    classifier = classifier or build_classifier(settings, dataset.event_shape, dataset.num_classes)
    return Trainer(settings, dataset, classifier, folder, "cpu", on_progress)


def weights(folder):
    return load_file(Path(folder) / "weights.safetensors")


def metrics(folder):
    """Each epoch's means; the seconds are nobody's to repeat."""
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def environment(threads):
    """For processes that run elsewhere: this very ucan, and a number of threads (sums depend on it)."""
    path = os.pathsep.join([str(Path(ucan.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}


def script(tmp_path, text):
    """Run a program in a process of its own, with as many threads as this one."""
    path = tmp_path / "program.py"
    here = str(Path(__file__).parent)
    light = "sys.modules['torch.utils.tensorboard'] = sys.modules['torchmetrics'] = None  # seconds to import"
    path.write_text(f"import sys; sys.path.insert(0, {here!r})\n{light}\n" + textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env=environment(torch.get_num_threads()),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    told = []
    trainer(folder, lambda *args: told.append(args)).run()
    return folder, told


def test_training_learns(tmp_path):
    told = []
    one = trainer(
        tmp_path / "run",
        lambda epoch, step, steps, means: told.append((epoch, means)),
        dataset=few(600),
        generator={"kind": "isotropic"},
        variance_term="none",
        augment=False,
        ema=0.0,
        lr=1e-2,
        epochs=6,
        law={"kind": "gaussian", "scale": 0.1},
    )
    one.run()
    assert told[-1][1]["loss"] < 0.4 * told[0][1]["loss"] and told[-1][1]["correct"] > 0.85
    x, y = data.load("digits", "test").batch(torch.arange(0, 400, 8))
    answers = SmoothedClassifier(one.joint.classifier.eval(), one.law, None, 10).predict(x, n=200)
    assert np.mean([c.prediction == int(label) for c, label in zip(answers, y, strict=True)]) > 0.7


def test_what_a_run_writes_and_tells(uninterrupted):
    folder, told = uninterrupted
    assert {p.name for p in folder.iterdir()} == {
        "checkpoint.pt",
        "config.toml",
        "metrics.jsonl",
        "tensorboard",
        "weights.safetensors",
        ".lock",
    }
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 2, 3]
    for line in lines:
        assert line.keys() == {"epoch", "loss", "correct", "min_sigma", "mean_sigma", "seconds"}
        assert 0 < line["min_sigma"] <= line["mean_sigma"] <= 1 and 0 <= line["correct"] <= 1 and line["seconds"] > 0
    assert [(epoch, step, steps) for epoch, step, steps, _ in told] == [(e, 3, 3) for e in range(4)]
    assert list((folder / "tensorboard").iterdir())
    names = weights(folder).keys()
    assert {name.split(".")[0] for name in names} == {"classifier", "generator"}


def test_a_run_is_repeated_bit_for_bit_whatever_the_global_state(uninterrupted, tmp_path):
    torch.manual_seed(1234)
    trainer(tmp_path / "again").run()
    assert same(weights(tmp_path / "again"), weights(uninterrupted[0]))
    trainer(tmp_path / "other", seed=1, epochs=1).run()
    assert not same(weights(tmp_path / "other"), weights(uninterrupted[0]))


def test_a_training_leaves_the_random_numbers_of_its_process_as_they_were(tmp_path):
    torch.manual_seed(1234)
    expected = torch.rand(6)
    torch.manual_seed(1234)
    found = [torch.rand(2)]
    for stopped in (True, False):  # the second one resumes
        one = trainer(tmp_path / "run", epochs=1)
        found.append(torch.rand(1))
        one._stop = stopped
        with pytest.raises(KeyboardInterrupt) if stopped else nullcontext():
            one.run()
        found.append(torch.rand(1))
    assert torch.equal(torch.cat(found), expected)


def test_the_weights_kept_are_the_moving_average(tmp_path):
    one = trainer(tmp_path / "run", epochs=1, ema=0.5, dataset=few(64))  # a single step
    start = {k: v.clone() for k, v in one.joint.state_dict().items()}
    one.run()
    end, kept = one.joint.state_dict(), weights(tmp_path / "run")
    assert all(torch.allclose(kept[k], 0.1 * start[k] + 0.9 * end[k], atol=1e-6) for k in kept)  # young: 1/10, not 1/2
    assert any(not torch.equal(start[k], end[k]) for k in kept)


def test_a_long_average_over_a_short_training_is_as_good_as_the_weights(tmp_path):
    """With a memory of 1,000 steps from the first of these 105 on it would guess: batch norm's statistics are averaged too."""
    made = trainer(tmp_path / "run", dataset=data.load("digits", "train"), model="resnet20", epochs=5, optimiser="sgd",
                   lr=0.1, ema=0.999, augment=False, variance_term="none", generator={"kind": "isotropic"})  # fmt: skip
    made.run()
    x, labels = data.load("digits").batch(range(400))

    def right():
        with torch.no_grad():
            return float((made.joint.eval().classifier(x).argmax(1) == labels).float().mean())

    last = right()
    made.joint.load_state_dict(made.final_state())
    assert last > 0.8 and right() > last - 0.05


@pytest.mark.parametrize("killed", [1, 2])
def test_killed_at_an_epochs_end_and_again_while_a_checkpoint_is_written(uninterrupted, tmp_path, killed):
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    first = script(
        tmp_path,
        f"""
        from test_training import trainer
        def on_progress(epoch, *_):
            if epoch == {killed}:  # its checkpoint is not written yet
                {kill}
        trainer("run", on_progress).run()
        """,
    )
    out, _ = first.communicate(timeout=120)
    assert first.returncode == -signal.SIGKILL, out
    second = script(
        tmp_path,
        f"""
        import io, torch
        from test_training import trainer
        from ucan.training import loop
        loop.SLOW_WRITE = float("inf")  # on a slow disk, too, one after every epoch
        save = torch.save
        def half(state, path):
            buffer = io.BytesIO()
            save(state, buffer)
            if state["epoch"] == 3:
                path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
                {kill}
            save(state, path)
        torch.save = half
        trainer("run").run()
        """,
    )
    out, _ = second.communicate(timeout=120)
    assert second.returncode == -signal.SIGKILL, out
    assert not (tmp_path / "run" / "weights.safetensors").exists()
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["epoch"] == 2
    resumed = trainer(tmp_path / "run")
    resumed.run()
    assert same(weights(tmp_path / "run"), weights(uninterrupted[0]))
    plain = torch.load(uninterrupted[0] / "checkpoint.pt", weights_only=True)["joint"]
    assert all(torch.equal(v, plain[k]) for k, v in resumed.joint.state_dict().items())
    assert metrics(tmp_path / "run") == metrics(uninterrupted[0])  # an epoch that was trained twice is told once


def test_killed_between_checkpoints_that_are_written_less_often(uninterrupted, tmp_path, monkeypatch):
    monkeypatch.setattr("ucan.training.loop.SLOW_WRITE", 0.0)
    monkeypatch.setattr("ucan.training.loop.WRITING", 1e-9)  # after the first, none is due before the last
    epochs = []

    def killed(epoch, *_):
        if epoch == 2:
            raise SystemExit

    def written(folder, state):
        epochs.append(state["epoch"])
        write_checkpoint(folder, state)

    monkeypatch.setattr("ucan.training.loop.write_checkpoint", written)
    with pytest.raises(SystemExit):
        trainer(tmp_path / "run", killed).run()
    assert epochs == [1] and [line["epoch"] for line in metrics(tmp_path / "run")] == [0, 1]
    told = []
    trainer(tmp_path / "run", lambda epoch, *_: told.append(epoch)).run()
    assert epochs == [1, 2, 4] and told == [1, 2, 3]  # the first after a start is written; the last, always
    assert same(weights(tmp_path / "run"), weights(uninterrupted[0]))
    assert metrics(tmp_path / "run") == metrics(uninterrupted[0])


def test_a_stop_between_checkpoints_is_kept_at_once(uninterrupted, tmp_path, monkeypatch):
    monkeypatch.setattr("ucan.training.loop.SLOW_WRITE", 0.0)
    monkeypatch.setattr("ucan.training.loop.WRITING", 1e-9)
    one = trainer(tmp_path / "run", lambda epoch, *_: setattr(one, "_stop", epoch >= 2))
    with pytest.raises(KeyboardInterrupt):
        one.run()
    kept = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert (kept["epoch"], kept["step"]) == (3, 1)
    trainer(tmp_path / "run").run()
    assert same(weights(tmp_path / "run"), weights(uninterrupted[0]))


class Restless(nn.Module):
    """A module that puts other tensors in the place of its own, in every way that modules do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.twin = self.linear  # under two names
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self._register_state_dict_hook(self._added)

    @staticmethod
    def _added(module, state, prefix, _):
        state[f"{prefix}made"] = module.linear.weight.detach().square()  # of the state alone

    def forward(self, x):
        y = self.norm(self.twin(self.linear(x)))
        self.seen = self.seen + y.detach().sum()
        self.steps = self.steps + 1
        return y


def test_an_average_follows_a_module_that_exchanges_its_tensors():
    torch.manual_seed(0)
    one = Restless()
    kept = {name: value.detach().clone() for name, value in one.state_dict().items()}
    plain = {name: value.clone() for name, value in kept.items()}
    average = Average(kept, one)
    optimiser = torch.optim.SGD(one.parameters(), lr=0.1)
    for step in range(8):
        one(torch.randn(5, 3)).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        if step == 3:  # as where the average is tried out
            own = {name: value.clone() for name, value in one.state_dict().items() if name != "made"}
            one.load_state_dict({name: value for name, value in kept.items() if name != "made"})
            one.load_state_dict(own)
        if step == 5:  # as .to() does
            one.linear.weight.data = one.linear.weight.data.clone()
        average.update(0.7)
        for name, value in one.state_dict().items():
            plain[name] = torch.lerp(plain[name], value, 0.3) if value.is_floating_point() else value.clone()
        assert all(torch.allclose(kept[name], plain[name]) for name in plain)
    assert int(kept["steps"]) == 8 and kept["made"].std() > 0
    assert not kept["seen"].requires_grad and kept["linear.weight"].grad_fn is None


def test_an_optimisers_one_kernel_goes_by_the_device_of_the_run_that_goes_on(tmp_path):
    """On a GPU SGD is one kernel: what such a run kept goes on elsewhere, and what another kept goes on there."""
    one = trainer(tmp_path / "run", optimiser="sgd", epochs=1, dataset=few(64))
    one.run()
    path = tmp_path / "run" / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    for group in state["optimisers"][0]["param_groups"]:
        group["fused"] = True
    torch.save(state, path)
    again = trainer(tmp_path / "run", optimiser="sgd", epochs=1, dataset=few(64))
    again.run()
    assert not again.optimisers[0].param_groups[0]["fused"]
    assert all("momentum_buffer" in kept for kept in again.optimisers[0].state_dict()["state"].values())


@pytest.mark.slow
def test_killed_at_random_times_again_and_again(tmp_path):
    trainer(tmp_path / "undisturbed", epochs=60).run()
    chance = np.random.default_rng()
    kills = 0
    for _ in range(40):
        process = script(
            tmp_path,
            """
            from test_training import trainer
            one = trainer("run", epochs=60)
            print("go", flush=True)
            one.run()
            """,
        )
        assert process.stdout.readline() == "go\n"
        try:
            out, _ = process.communicate(timeout=chance.uniform(0.2, 2.5))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            continue
        assert process.returncode == 0, out
        break
    assert kills and same(weights(tmp_path / "run"), weights(tmp_path / "undisturbed"))


@pytest.mark.parametrize("last", (4, 5, 6, 12), ids="after step {}".format)  # of three an epoch, in four epochs
@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM), ids=("SIGINT", "SIGTERM"))
def test_stopped_after_any_step_and_resumed(uninterrupted, tmp_path, number, last):
    """The signal comes within a step; the run ends after it, with a checkpoint, and goes on from there."""
    one = trainer(tmp_path / "run")
    steps = []
    train_step = one._train_step

    def interrupted(batch):
        steps.append(1)
        if len(steps) == last:
            os.kill(os.getpid(), number)
        return train_step(batch)

    one._train_step = interrupted
    with pytest.raises(KeyboardInterrupt):
        one.run()
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert 3 * state["epoch"] + state["step"] == len(steps) == last and state["step"] > 0
    assert not is_trained_run(tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    trainer(tmp_path / "run").run()
    assert same(weights(tmp_path / "run"), weights(uninterrupted[0]))
    assert metrics(tmp_path / "run") == metrics(uninterrupted[0])


WORDS = ["train", "settings.toml", "-o", "run", "-q", "--device", "cpu"]
TOML = """
epochs = 1
batch = 128
augment = true
ema = 0.9
[generator]
kind = "certification-wise"
features = 2
growth = 2
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_and_the_earlier_checkpoint_is_kept(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, {"epoch": 1})
    (tmp_path / ".part").symlink_to("/dev/full")
    with monkeypatch.context() as patched:
        patched.setattr("ucan.storage._part", lambda _: tmp_path / ".part")
        said = r"checkpoint.pt cannot be written .* check that there is space left.* checkpoint before it is kept"
        with pytest.raises(StoreError, match=said):
            write_checkpoint(tmp_path, {"epoch": 2, "joint": torch.zeros(100_000)})
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True) == {"epoch": 1}

    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("ucan.training.checkpoint.save_file", full)
    with pytest.raises(StoreError, match=r"weights.safetensors cannot be written .* check that there is space left"):
        save_run(tmp_path, {"w": torch.zeros(100_000)})


@pytest.mark.parametrize("writer", ["write_config", "Journal.append", "WriterLock", "torch.save"])
def test_a_disk_that_is_full_before_the_first_checkpoint_is_said(tmp_path, monkeypatch, writer):
    """It ended in "[Errno 28] No space left on device.", or in words about a checkpoint that was not there."""

    def full(*_: object) -> None:
        raise (
            RuntimeError("enforce fail") if writer == "torch.save" else OSError(errno.ENOSPC, "No space left on device")
        )

    one = trainer(tmp_path / "run", epochs=1, dataset=few(64))
    of = {"torch.save": "", "Journal.append": "ucan.training.loop."}.get(writer, "ucan.training.checkpoint.")
    monkeypatch.setattr(of + writer, full)
    said = r"run.* cannot be written \(.*check that there is space.* Nothing was saved yet"
    with pytest.raises(StoreError, match=said):
        one.run()
    assert not (tmp_path / "run" / "config.toml").exists()
    monkeypatch.undo()
    trainer(tmp_path / "run", epochs=1, dataset=few(64)).run()


def test_a_disk_that_is_full_does_not_mark_a_training_as_failed(tmp_path, monkeypatch):
    """Resuming mends it; of a training that failed another attempt would move the folder away."""
    save, saved = torch.save, []

    def full_from_the_second_on(*args: object) -> None:
        saved.append(args)
        if len(saved) > 1:
            raise RuntimeError("enforce fail")
        save(*args)

    with monkeypatch.context() as patched, pytest.raises(StoreError, match="checkpoint before it is kept"):
        patched.setattr("torch.save", full_from_the_second_on)
        trainer(tmp_path / "run", epochs=2, dataset=few(64)).run()
    assert (tmp_path / "run" / "checkpoint.pt").exists() and not (tmp_path / "run" / "failed.txt").exists()


def test_ctrl_c_on_the_command_line_ends_with_130_and_the_same_command_goes_on(tmp_path, monkeypatch):
    (tmp_path / "settings.toml").write_text(TOML)
    process = script(
        tmp_path,
        f"""
        import os, signal
        from ucan.cli import main
        from ucan.training import Trainer
        step, count = Trainer._train_step, []
        def counted(self, batch):
            count.append(1)
            if len(count) == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return step(self, batch)
        Trainer._train_step = counted
        sys.argv = ["ucan", *{WORDS!r}]
        main()
        """,
    )
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "again to resume" in out and "Traceback" not in out
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (0, 4)
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "undisturbed"):
        words = [folder if word == "run" else word for word in WORDS]
        assert CliRunner().invoke(app, words).exit_code == 0
    assert same(weights("run"), weights("undisturbed"))


# --- what goes wrong ---


def test_a_loss_that_is_not_a_number_ends_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    def leave(epoch, *_):
        if epoch == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        trainer(tmp_path / "run", leave).run()
    before = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    wild = trainer(tmp_path / "run")
    resume = wild._resume

    def with_a_wild_rate():
        resume()
        for optimiser in wild.optimisers:
            for group in optimiser.param_groups:
                group["peak"] = 1e38

    wild._resume = with_a_wild_rate
    with pytest.raises(TrainingError, match=r"loss became .* epoch 2.* is kept"):
        wild.run()
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == before
    assert not is_trained_run(tmp_path / "run")


def test_a_loss_that_is_not_a_number_from_the_start_saves_nothing(tmp_path):
    with pytest.raises(TrainingError, match=r"loss became .* nothing was saved.*lower lr"):
        trainer(tmp_path / "run", lr=1e9, epochs=3, schedule="constant").run()
    assert not (tmp_path / "run" / "checkpoint.pt").exists() and not is_trained_run(tmp_path / "run")


def test_weights_that_broke_in_the_last_step_are_not_saved_as_good_ones(tmp_path):
    one = trainer(tmp_path / "run", epochs=1, dataset=few(64), ema=0.0)  # a single step
    next(one.joint.classifier.parameters()).register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(TrainingError):
        one.run()
    assert not (tmp_path / "run" / "checkpoint.pt").exists() and not is_trained_run(tmp_path / "run")


def checkpointed(folder, **changes):
    trainer(folder, epochs=1, dataset=few(64), **changes).run()
    return folder / "checkpoint.pt"


OTHERS = {
    "another generator": {"generator": {"kind": "isotropic"}, "variance_term": "none"},
    "another width": {"generator": {"kind": "certification-wise", "features": 4, "growth": 2}},
    "another model": {"model": "resnet20"},
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_checkpoint_of_another_architecture_is_refused(tmp_path, case):
    path = checkpointed(tmp_path / "run")
    before = path.read_bytes()
    with pytest.raises(TrainingError, match=r"holds a run with another config:\n.*training"):
        trainer(tmp_path / "run", epochs=1, dataset=few(64), **OTHERS[case]).run()
    (tmp_path / "run" / "config.toml").unlink()  # a run from before settings were kept
    with pytest.raises(TrainingError, match="another model, generator or recipe"):
        trainer(tmp_path / "run", epochs=1, dataset=few(64), **OTHERS[case]).run()
    assert path.read_bytes() == before and not (tmp_path / "run" / "config.toml").exists()


def stopped(folder, **changes):
    """A run that ends in its second epoch."""

    def leave(epoch, *_):
        if epoch == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        trainer(folder, leave, **changes).run()


def test_a_run_goes_on_with_its_own_settings_and_data_alone(tmp_path, uninterrupted):
    stopped(tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    whole = few()
    brighter = InMemory((0.5 + whole.images / 2), whole.labels, whole.classes)
    relabelled = InMemory(whole.images, whole.labels.flip(0), whole.classes)
    for changes, word in (
        ({"lr": 1e-2}, "training.lr: the run has 0.002, asked for 0.01"),
        ({"dataset": brighter}, "data_hash: the run has"),
        ({"dataset": relabelled}, "data_hash: the run has"),
    ):
        with pytest.raises(TrainingError, match=f"holds a run with another config:\n  {word}"):
            trainer(tmp_path / "run", **changes).run()
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == before
    trainer(tmp_path / "run").run()
    assert same(weights(tmp_path / "run"), weights(uninterrupted[0]))


@pytest.mark.parametrize("kept", ("without data_hash", "without later settings", "nothing"))
def test_a_run_from_before_all_this_was_kept_goes_on(tmp_path, uninterrupted, kept):
    stopped(tmp_path / "run")
    config = read_config(tmp_path / "run" / "config.toml")
    (tmp_path / "run" / "config.toml").unlink()
    if kept == "without data_hash":
        del config["data_hash"]
    if kept == "without later settings":
        del config["training"]["flip"], config["training"]["shift"]
    if kept != "nothing":
        write_config(tmp_path / "run" / "config.toml", config)
    trainer(tmp_path / "run").run()
    assert same(weights(tmp_path / "run"), weights(uninterrupted[0])) and load_run(tmp_path / "run")


def test_other_pictures_under_the_same_name_are_refused(place):
    pixels = np.random.default_rng(0).random((40, 1, 8, 8))
    np.savez("a.npz", x=pixels, y=np.arange(40) % 4)
    words = ["digits-isotropic", "--set", "data=a.npz", "--set", "epochs=1", "-o", "run"]
    train(*words)
    train(*words)
    np.savez("a.npz", x=1 - pixels, y=np.arange(40) % 4)
    result = CliRunner().invoke(app, ["train", *words, "-q", "--device", "cpu"])
    assert isinstance(result.exception, TrainingError) and "data_hash: the run has" in str(result.exception)


def test_load_run_says_what_is_missing(tmp_path):
    folder = tmp_path / "run"
    stopped(folder)
    with pytest.raises(TrainingError, match=r"\(weights.safetensors missing\): start the same training again"):
        load_run(folder)
    trainer(folder).run()
    (folder / "config.toml").unlink()
    with pytest.raises(TrainingError, match=r"\(config.toml missing\): run its Trainer again"):
        load_run(folder)
    trainer(folder).run()
    assert load_run(folder).num_classes == 10


def test_a_run_of_a_model_that_has_no_name_is_loaded_with_one_of_its_kind(tmp_path):
    made = [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2)]
    trainer(tmp_path / "run", epochs=1, ema=0.0, classifier=made[0]).run()
    with pytest.raises(TrainingError, match=r"load_run\(folder, model\)"):
        load_run(tmp_path / "run")
    assert torch.equal(load_run(tmp_path / "run", made[1]).classifier[1].weight, made[0][1].weight)


DAMAGE = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "empty": lambda whole: b"",
    "noise": lambda whole: bytes(range(256)) * 20,
    "text": lambda whole: b"not a checkpoint",
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_left_alone(tmp_path, case):
    path = tmp_path / "run" / "checkpoint.pt"
    path.parent.mkdir()
    torch.save({"epoch": 1, "joint": {"w": torch.zeros(1000)}}, path)
    path.write_bytes(DAMAGE[case](path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(TrainingError, match=r"checkpoint\.pt"):
        trainer(tmp_path / "run").run()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        {"joint": {}},
        {"model": torch.zeros(1)},
        [1, 2],
        torch.zeros(3),
    ],
    ids=str,
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    (tmp_path / "run").mkdir()
    torch.save(content, tmp_path / "run" / "checkpoint.pt")
    with pytest.raises(TrainingError):
        trainer(tmp_path / "run").run()


class Hostile:
    """Executed by a careless reader."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.system, (f"touch {self.mark}",))


@pytest.mark.parametrize("how", ("pickle", "torch"))
def test_code_in_a_checkpoint_is_not_executed(tmp_path, how):
    path, mark = tmp_path / "run" / "checkpoint.pt", tmp_path / "executed"
    path.parent.mkdir()
    if how == "pickle":
        path.write_bytes(pickle.dumps(Hostile(mark)))
    else:
        torch.save({"joint": Hostile(mark)}, path)
    with pytest.raises(TrainingError, match="cannot be read"):
        trainer(tmp_path / "run").run()
    assert not mark.exists()


def test_an_empty_training_set_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="empty"):
        trainer(tmp_path / "run", dataset=few(0), classifier=nn.Linear(1, 1))


def test_the_held_out_part_is_not_trained_on(tmp_path):
    one = trainer(tmp_path / "run", held_out=0.25)
    assert len(one.batches.dataset) == 150


# --- from the command line to a run that others load ---


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def train(*words):
    result = CliRunner().invoke(app, ["train", *words, "-q", "--device", "cpu"], catch_exceptions=False)
    assert result.exit_code == 0, result.output


GENERATOR_TABLES = {
    "isotropic": {"kind": "isotropic"},
    "pattern": {"kind": "pattern", "norm": "inf"},
    "dataset-wise": {"kind": "dataset-wise", "gamma": 0.8},
    "certification-wise": {"kind": "certification-wise", "features": 2, "growth": 2},
    "pca": {"kind": "basis-wise", "leading": 20, "bands": 4, "scale": [0.3, 0.9]},
    "dct": {"kind": "basis-wise", "basis": "dct", "leading": 20, "scale": [0.3, 0.9]},
}


@pytest.mark.parametrize("kind", GENERATOR_TABLES)
def test_a_loaded_run_answers_as_the_trainer_does(tmp_path, kind):
    one = trainer(tmp_path / "run", epochs=1, ema=0.0, generator=GENERATOR_TABLES[kind], dataset=few(128))
    one.run()
    run = load_run(tmp_path / "run")
    x = few(3).batch(torch.arange(3))[0]
    assert run.law == one.law and run.settings == one.settings and not run.classifier.training
    joint = one.joint.eval()
    with torch.no_grad():
        noise = [m.perturb(x, run.law, 2, rng()) for m in (run.generator, joint.generator)]
    assert torch.equal(*noise) and torch.equal(run.generator.view(noise[0]), joint.generator.view(noise[1]))
    loaded, trained = (
        SmoothedClassifier(f, run.law, m, 10).certify(x, n0=20, n=200)
        for f, m in ((run.classifier, run.generator), (joint.classifier, joint.generator))
    )
    assert [c.evidence for c in loaded] == [c.evidence for c in trained]
    assert [c.radius for c in loaded] == [c.radius for c in trained]


@pytest.mark.parametrize("change", [{"shape": None}, {"shape": [1, "8"]}, {"num_classes": 0}, {"training": "x"}])
def test_a_config_of_something_else_is_refused_in_words(tmp_path, change):
    folder = tmp_path / "run"
    shutil.copytree(Path(__file__).parent / "fixtures" / "version-0.1" / "isotropic", folder)
    config = {**read_config(folder / "config.toml"), **change}
    write_config(folder / "config.toml", {key: value for key, value in config.items() if value is not None})
    with pytest.raises(TrainingError, match="does not state the shape of the inputs"):
        load_run(folder)


def test_what_load_run_refuses(tmp_path, uninterrupted):
    with pytest.raises(TrainingError, match=r"\(config.toml and weights.safetensors missing\): `ucan train`"):
        load_run(tmp_path)
    other = TrainSettings.from_dict({**SMALL, "generator": {"kind": "dataset-wise"}})
    folder = tmp_path / "run"
    folder.mkdir()
    write_config(folder / "config.toml", {"shape": [1, 8, 8], "num_classes": 10, "training": other.to_dict()})
    save_file(weights(uninterrupted[0]), folder / "weights.safetensors")
    with pytest.raises(TrainingError, match="does not fit"):
        load_run(folder)
    (folder / "weights.safetensors").write_bytes(b"garbage")
    with pytest.raises(TrainingError, match="does not fit"):
        load_run(folder)


NET = '''
from torch import nn

class Net(nn.Module):
    """A user's own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.layers(x))

def function(x):
    return x
'''


def test_a_users_own_model_is_trained_saved_and_loaded(place):
    (place / "own_net.py").write_text(NET)
    train("digits-isotropic", "--set", "model=own_net:Net", "--set", "epochs=1", "-o", "run")
    run = load_run("run")
    assert type(run.classifier).__name__ == "Net" and not run.classifier.training
    kept = weights("run")
    state = run.classifier.state_dict()
    assert all(torch.equal(kept[f"classifier.{k}"], v) for k, v in state.items())
    assert int(state["layers.2.num_batches_tracked"]) > 0
    result = CliRunner().invoke(app, ["train", "digits-isotropic", "--set", "model=own_net:function", "-o", "other"])
    assert isinstance(result.exception, TrainingError) and "cannot be trained" in str(result.exception)


class Tied(nn.Module):
    """Two layers with one weight, as embeddings and outputs of language models have."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(self.second(self.first(x.flatten(1)).relu()).relu())


def test_a_model_whose_layers_share_weights_is_saved(tmp_path):
    """It was trained to the end, and then could not be written."""
    one = trainer(tmp_path / "run", classifier=Tied(), epochs=1, ema=0.0)
    one.run()
    found = load_run(tmp_path / "run", Tied()).classifier
    assert torch.equal(found.first.weight, found.second.weight)
    assert torch.equal(found.first.weight, one.joint.classifier.first.weight)


def test_a_model_without_a_weight_to_train_is_refused_before_the_first_step(tmp_path):
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False)
    plain = {"generator": {"kind": "isotropic"}, "variance_term": "none"}
    with pytest.raises(TrainingError, match=r"no weights to train: all of them are frozen \(requires_grad\)"):
        trainer(tmp_path / "run", classifier=frozen, **plain)
    trainer(tmp_path / "run", classifier=frozen, epochs=1).run()  # the noise is learned


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
def test_weights_in_another_precision_are_refused_before_the_first_step(tmp_path, precision):
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    if precision == "64-true":
        trainer(tmp_path / "run", classifier=wide, epochs=1, precision=precision).run()
        return
    with pytest.raises(TrainingError, match=r"fails with .*dtype.*weights are torch\.float64, and precision"):
        trainer(tmp_path / "run", classifier=wide, precision=precision)


def test_labels_that_count_from_1_are_told(tmp_path):
    x, labels = few().batch(range(64))
    with pytest.warns(UserWarning, match=r"no input has the label 0, and the largest is 10: labels count from 0"):
        trainer(tmp_path / "run", dataset=InMemory(x, labels + 1))


def test_pictures_whose_channels_come_last_are_told(tmp_path):
    pictures = InMemory(torch.rand(20, 16, 16, 3, generator=rng()), torch.arange(20) % 10)
    with pytest.raises(ModelError, match=r"square pictures, got \(16, 16, 3\)\. Channels come first: .*transpose"):
        build_classifier(TrainSettings(), pictures.event_shape, 10)
    with pytest.warns(
        UserWarning, match=r"inputs of shape \(16, 16, 3\) are taken for pictures of 16 channels.*transpose"
    ):
        trainer(
            tmp_path / "run", dataset=pictures, model="resnet20", generator={"kind": "isotropic"}, variance_term="none"
        )


@pytest.mark.parametrize("shape", [(64, 1, 1), (16, 16, 3)])
def test_inputs_that_may_be_meant_so_are_taken_as_they_are(tmp_path, shape):
    """Few numbers high or wide, or in the order that a model of the user's own asks for."""
    vectors = InMemory(torch.rand(20, *shape, generator=rng()), torch.arange(20) % 10)
    own = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 10))
    plain = {"dataset": vectors, "generator": {"kind": "isotropic"}, "variance_term": "none"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(tmp_path / "run", **plain, **({"model": "resnet20"} if shape[-1] == 1 else {"classifier": own}))


UNFIT = {
    "too few outputs": (nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), "has only 4 outputs"),
    "another input shape": (nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), "mat1 and mat2"),
    "pictures instead of logits": (nn.Conv2d(1, 10, 3), r"\(2, 10, 6, 6\) instead of logits"),
    "a tuple": (nn.LSTM(8, 10), "Expected|expected|tuple"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_model_that_does_not_fit_the_data_is_refused_before_the_first_step(tmp_path, case):
    model, word = UNFIT[case]
    said = rf"{type(model).__name__} does not fit data of shape \(1, 8, 8\) with 10 classes: .*({word})"
    with pytest.raises(TrainingError, match=said):
        trainer(tmp_path / "run", classifier=model)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_trained_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="no weights"):
        trainer(tmp_path / "run", classifier=nn.Flatten())
    whole = few()
    unlabelled = InMemory(whole.images, [-1, *whole.labels[1:].tolist()], whole.classes)
    with pytest.raises(InvalidInput, match="without a label"):
        trainer(tmp_path / "run", dataset=unlabelled)


VIEW = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 6, 3), nn.Linear(6 * 36, 10)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).view(-1, 6 * 36))
"""


@pytest.mark.parametrize(
    ("name", "net"),
    [
        ("own_view", VIEW),
        (
            "own_volume",
            VIEW.replace("nn.Conv2d(1, 6, 3)", "nn.Conv3d(1, 6, (1, 3, 3))").replace("conv(x)", "conv(x[:, None])"),
        ),
    ],
)
def test_a_model_that_takes_pictures_in_one_layout_alone_is_trained(place, name, net):
    """``view`` of what a convolution gives, and weights of five dimensions, do not go with channels_last."""
    (place / f"{name}.py").write_text(net)
    train("digits-isotropic", "--set", f"model={name}:Net", "--set", "epochs=1", "-o", "run")
    assert load_run("run").num_classes == 10


def test_a_model_may_know_more_classes_than_the_data_show(place):
    (place / "own_wide.py").write_text(NET)
    pixels = np.random.default_rng(0).random((40, 1, 8, 8))
    np.savez("a.npz", x=pixels, y=np.arange(40) % 4)
    train("digits-isotropic", "--set", "data=a.npz", "--set", "model=own_wide:Net", "--set", "epochs=1", "-o", "run")
    assert load_run("run").num_classes == 10
    result = CliRunner().invoke(app, ["certify", "--model", "run", "--data", "a.npz", "--max", "2", "--n", "100", "-q"])
    assert result.exit_code == 0


def test_the_seed_decides_the_initial_weights_of_a_users_own_model(place):
    (place / "own_seeded.py").write_text(NET)
    one, again, other = (
        build_classifier(TrainSettings(model="own_seeded:Net", seed=seed), (1, 8, 8), 10).head.weight
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_finetuning_starts_from_the_given_weights(place):
    settings = ["--set", "epochs=1", "--set", "schedule=constant"]
    train("digits-isotropic", *settings, "-o", "first")
    classifier = {k.removeprefix("classifier."): v for k, v in weights("first").items() if k.startswith("classifier.")}
    save_file(classifier, "start.safetensors")
    train("digits-isotropic", *settings, "--set", "lr=1e-12", "--finetune", "start.safetensors", "-o", "second")
    second = weights("second")
    assert all(torch.allclose(second[f"classifier.{k}"], v, atol=1e-7) for k, v in classifier.items())
    config = tomllib.loads((place / "second" / "config.toml").read_text())
    assert config["finetune"] == "start.safetensors" and config["kind"] == "train"
    assert config["training"]["lr"] == 1e-12 and config["shape"] == [1, 8, 8]
    lines = (place / "second" / "metrics.jsonl").read_text().splitlines()
    first = (place / "first" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 1 and json.loads(lines[0])["loss"] < json.loads(first[0])["loss"]


@pytest.mark.parametrize("start", ("first", "first/weights.safetensors"))
def test_finetuning_starts_from_the_classifier_of_a_run(place, start):
    settings = ["--set", "epochs=1", "--set", "schedule=constant", "-o"]
    train("digits-certification", *settings, "first")
    train("digits-isotropic", *settings, "second", "--set", "lr=1e-12", "--finetune", start)
    first, second = weights("first"), weights("second")
    names = [name for name in first if name.startswith("classifier.")]
    assert names and all(torch.allclose(first[name], second[name], atol=1e-7) for name in names)
    words = ["train", "digits-isotropic", "--set", "model=resnet20", "--finetune", start, "-o", "other"]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ModelError) and "Choose the architecture" in str(result.exception)
    assert not (place / "other").exists()


@pytest.mark.parametrize("kind", ["sphere", "acr"])
def test_inputs_are_dropped_at_once_by_a_trained_network_alone(place, kind):
    words = [
        "digits-isotropic",
        "--set",
        f'recipe={{kind="{kind}", start=0.0, drop=0.4}}',
        "--set",
        "epochs=1",
        "-o",
        "on",
    ]
    result = CliRunner().invoke(app, ["train", *words])
    assert isinstance(result.exception, TrainingError) and not (place / "on").exists()
    assert "before its first step, and cnn has no weights yet: give them with --finetune" in str(result.exception)
    train("digits-isotropic", "--set", "epochs=8", "-o", "first")
    train(*words, "--finetune", "first")
    kept = torch.load("on/checkpoint.pt", weights_only=True)["recipe"]["kept"]
    assert 0.5 < kept.float().mean() < 1  # by what it had learned: an untrained network has a tenth right


def test_finetuning_from_a_folder_without_a_finished_run_is_refused(place):
    (place / "empty").mkdir()
    result = CliRunner().invoke(app, ["train", "digits-isotropic", "--finetune", "empty", "-o", "run"])
    assert isinstance(result.exception, TrainingError) and "no finished training run" in str(result.exception)


def test_the_settings_that_a_run_keeps_can_be_used_again(place):
    train("digits-isotropic", "--set", "epochs=1", "-o", "first")
    train("first/config.toml", "-o", "second")
    assert same(weights("first"), weights("second"))
    write_config(place / "first" / "config.toml", {"kind": "certify", "alpha": 0.001})
    with pytest.raises(InvalidInput, match=r"another kind \(certify\)"):
        read_settings("first/config.toml")


def test_a_preset_is_named_by_either_way_but_once(place):
    train("--preset", "digits-isotropic", "--set", "epochs=1")
    assert is_trained_run("runs/digits-isotropic")
    for words, said in (
        ((), "give a preset"),
        (("digits-basis", "--preset", "digits-isotropic"), "leave one of them out"),
        (("--preset", "no-such"), "there is no preset 'no-such'"),
        (("show",), "ucan train show NAME"),
        (("show", "no-such"), "there is no preset 'no-such'"),
        (("digits-basis", "digits-isotropic"), "unexpected argument"),
    ):
        result = CliRunner().invoke(app, ["train", *words])
        assert isinstance(result.exception, InvalidInput) and said in str(result.exception)


def test_a_preset_is_shown_with_its_comments_and_can_be_copied(place):
    listed = CliRunner().invoke(app, ["train", "list"])
    assert [line.split()[0] for line in listed.stdout.splitlines()] == preset_names()
    assert all(len(line.split()) > 4 and len(line) < 140 for line in listed.stdout.splitlines())  # what each trains
    assert "ucan train show NAME > mine.toml" in listed.stderr
    quiet = CliRunner().invoke(app, ["train", "list", "--quiet"])
    assert quiet.stdout.split() == preset_names() and not quiet.stderr
    for name in preset_names():
        text = CliRunner().invoke(app, ["train", "show", name]).stdout
        (place / "mine.toml").write_text(text)
        assert text.startswith("# ") and read_settings("mine.toml") == read_settings(name)


@pytest.mark.parametrize("has_bf16", (False, True))
def test_settings_for_a_gpu_are_told_from_those_for_a_cpu(place, monkeypatch, has_bf16):
    """With instructions for bf16 a CPU trains faster in it than in float32."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: has_bf16, raising=False)
    words = ["train", "digits-isotropic", "--set", "epochs=1", "--device", "cpu"]
    plain = CliRunner().invoke(app, [*words, "-o", "plain"])
    told = CliRunner().invoke(app, [*words, "--set", "precision=bf16-mixed", "-o", "told"])
    assert plain.exit_code == told.exit_code == 0
    advice = "On this CPU, --set precision=32-true may be faster."
    assert [advice in run.stderr for run in (plain, told)] == [False, not has_bf16]


def test_compiling_is_told_to_be_for_a_gpu():
    settings = read_settings("digits-isotropic")
    assert _for_a_cpu(replace(settings, compile=True)) == "--set compile=false"
    assert _for_a_cpu(replace(settings, precision="64-true")) == _for_a_cpu(settings) == ""
    assert _for_a_cpu(replace(settings, precision="16-mixed")) == "--set precision=32-true"


def test_composed_noise_tells_no_scale_that_it_has_not(tmp_path, place):
    result = CliRunner().invoke(app, ["train", "digits-composed", "--set", "epochs=1", "--device", "cpu", "-o", "run"])
    assert result.exit_code == 0 and "accuracy" in result.stderr and "σ" not in result.stderr
    (line,) = metrics("run")
    assert line.keys() == {"epoch", "loss", "correct"}


def test_a_folder_with_other_things_is_left_alone(place):
    (place / "full").mkdir()
    (place / "full" / "thesis.txt").write_text("precious")
    result = CliRunner().invoke(app, ["train", "digits-isotropic", "-o", "full", "-q"])
    assert isinstance(result.exception, TrainingError) and "files that are not a run" in str(result.exception)
    assert [p.name for p in (place / "full").iterdir()] == ["thesis.txt"]


@pytest.mark.slow
def test_two_processes_train_together_and_only_the_first_writes(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import os, sys
            from pathlib import Path
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            rank = os.environ["RANK"]
            writes = []
            sys.addaudithook(lambda event, args: event == "open" and isinstance(args[0], (str, os.PathLike))
                and "run" in Path(os.fspath(args[0])).parts and isinstance(args[2], int)
                and args[2] & (os.O_WRONLY | os.O_RDWR) and writes.append(str(args[0])))
            from test_training import trainer
            one = trainer(Path("run").absolute(), epochs=2)
            one.run()
            import torch
            state = torch.cat([v.flatten().float() for v in one.joint.state_dict().values()])
            torch.save(state, f"rank{{rank}}.pt")
            Path(f"writes{{rank}}.txt").write_text("\\n".join(writes))
            """
        )
    )
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29517"]
    done = subprocess.run(
        [*words, str(program)],
        cwd=tmp_path,
        env=environment(1),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run" / "weights.safetensors").is_file()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1]
    assert (tmp_path / "writes0.txt").read_text() and not (tmp_path / "writes1.txt").read_text()
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    assert torch.equal(first, second)


@pytest.mark.slow
def test_the_train_command_runs_under_torchrun(tmp_path):
    (tmp_path / "settings.toml").write_text(TOML)
    (tmp_path / "program.py").write_text("from ucan.cli import main\nmain()\n")
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29518"]
    done = subprocess.run(
        [*words, "program.py", *WORDS],
        cwd=tmp_path,
        env=environment(1),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert load_run(tmp_path / "run").settings.epochs == 1


def test_any_torch_dataset_can_be_trained_on(tmp_path):
    pairs = [(torch.full((1, 8, 8), 0.1 * (i % 4)), i % 4) for i in range(64)]
    settings = TrainSettings(epochs=1, batch=16)
    Trainer(settings, pairs, build_classifier(settings, (1, 8, 8), 4), tmp_path / "run", "cpu").run()
    assert (tmp_path / "run" / "weights.safetensors").exists()


def test_imagenet_is_sought_where_the_data_are(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setenv("UCAN_DATA_DIR", str(tmp_path))
    with pytest.raises(InvalidInput, match=f"It should be in {tmp_path}/imagenet/train, .*UCAN_DATA_DIR"):
        data.load(read_settings("imagenet-isotropic").data, "train")
    for split in ("train", "val"):
        for label in ("n01440764", "n01443537"):
            (tmp_path / "imagenet" / split / label).mkdir(parents=True)
            Image.new("RGB", (20, 12)).save(tmp_path / "imagenet" / split / label / "0.JPEG")
    for split, folder in (("train", "train"), ("test", "val")):
        found = data.load("imagenet", split, size=8)
        assert (
            found.path == tmp_path / "imagenet" / folder and found.event_shape == (3, 8, 8) and found.num_classes == 2
        )


@pytest.mark.parametrize("images", (torch.zeros(0, 1, 4, 4), torch.full((3, 1, 4, 4), math.nan)), ids=("none", "nan"))
def test_principal_components_of_nothing_are_refused(images):
    with pytest.raises(InvalidInput, match="PCA needs images"):
        BasisWise.pca(images, leading=2)


def test_pictures_are_decoded_ahead_in_the_order_of_seed_and_epoch(tmp_path):
    from PIL import Image

    from ucan import data
    from ucan.training.batches import Batches

    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for i in range(6):
            Image.new("RGB", (8, 8), (20 * i, 0, 100 * (label == "b"))).save(tmp_path / label / f"{i}.png")
    folder = data.load(tmp_path)
    lazy = Batches(folder, 4, 7, torch.device("cpu"))
    held = Batches(data.as_dataset([folder[i] for i in range(len(folder))]), 4, 7, torch.device("cpu"))
    for epoch, first in ((0, 0), (1, 0), (1, 2), (1, 3)):
        pairs = list(zip(lazy.epoch(epoch, first), held.epoch(epoch, first), strict=True))
        assert len(pairs) == 3 - first
        assert all(torch.equal(x, y) and torch.equal(a, b) for (x, a, _), (y, b, _) in pairs)


# --- what is certified while it is trained ---


def test_certified_accuracy_of_the_held_out_part_is_reported_and_changes_no_weight(tmp_path):
    told = []
    changes = dict(epochs=3, dataset=few(160), held_out=0.25, certify_every=2)
    one = trainer(tmp_path / "watched", lambda *words: told.append(words), **changes)
    one.run()
    lines = [json.loads(line) for line in (tmp_path / "watched" / "metrics.jsonl").read_text().splitlines()]
    assert ["held_out_certified" in line for line in lines] == [False, True, True]  # every second, and the last
    last = lines[-1]
    assert last["held_out_scope"] == one.scope and last["held_out_inputs"] == 40 and last["held_out_n"] == 100
    assert told[-1][3]["held_out_certified"] == last["held_out_certified"]
    trainer(tmp_path / "unwatched", **changes | {"certify_every": 0}).run()
    assert same(weights(tmp_path / "watched"), weights(tmp_path / "unwatched"))
    run, (_, apart) = load_run(tmp_path / "watched"), ucan.data.held_out(few(160), 0.25, 0)
    g = ucan.SmoothedClassifier(run.classifier, run.law, run.generator, run.num_classes)
    x, labels = apart.batch(range(40))
    found = g.certify(x, n0=20, n=100, seed=0)
    right = [c.radius for c, label in zip(found, labels.tolist(), strict=True) if c.prediction == label and c.radius]
    assert last["held_out_certified"] == len(right) / 40
    assert last["held_out_radius"] == pytest.approx(sum(right) / 40)


def test_the_progress_line_names_the_scope_of_what_is_certified(place):
    words = ["train", "digits-certification", "--set", "epochs=1", "--set", "held_out=0.1", "-o", "run"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and re.search(r"certified held-out \d+\.\d % \(frozen\)", done.stderr), done.stderr


# --- an attempt that failed does not block the next ---


def test_a_failed_start_leaves_no_folder(tmp_path):
    with pytest.raises(TrainingError, match="nothing was saved"):
        trainer(tmp_path / "run", lr=1e9, epochs=3, schedule="constant").run()
    assert not (tmp_path / "run").exists()
    trainer(tmp_path / "run", epochs=1, dataset=few(64)).run()
    assert is_trained_run(tmp_path / "run")


def test_a_start_that_was_killed_before_its_first_checkpoint_does_not_block_other_settings(tmp_path):
    one = trainer(tmp_path / "run", epochs=1, dataset=few(64), lr=0.5)
    keep_settings(one.folder, one.config)  # and then the power went
    trainer(tmp_path / "run", epochs=1, dataset=few(64)).run()
    assert is_trained_run(tmp_path / "run")


def test_a_failed_attempt_is_set_aside_when_other_settings_are_tried(tmp_path):
    folder = tmp_path / "run"
    one = trainer(folder, epochs=2, dataset=few(64))
    look = one._look

    def fails(checked=None):
        if one.epoch == 1:
            one.totals["loss"] = one.totals["loss"] * math.nan
        return look(checked)

    one._look = fails
    with pytest.raises(TrainingError, match="run it again with --set, in the same folder"):
        one.run()
    before = (folder / "checkpoint.pt").read_bytes()
    trainer(folder, epochs=2, dataset=few(64), lr=1e-4).run()
    assert is_trained_run(folder) and (tmp_path / "run-failed-1" / "checkpoint.pt").read_bytes() == before


def test_two_trainings_in_one_folder_do_not_mix(tmp_path):
    """The second is refused while the first runs; afterwards the folder is free, and a third with other settings is told so."""
    digits = data.load("digits", "train").subset(torch.arange(200))
    wide, narrow = (TrainSettings.from_dict({"epochs": 1, "law": {"kind": "gaussian", "scale": s}}) for s in (0.9, 0.1))

    def trainer(settings):
        return Trainer(settings, digits, build_classifier(settings, digits.event_shape, 10), tmp_path / "run", "cpu")

    first = trainer(wide)
    lock = begin(tmp_path / "run", first.config)
    for settings in (wide, narrow):
        with pytest.raises(StoreError, match="one writer at a time"):
            trainer(settings).run()
    lock.release()
    first.run()
    assert load_run(tmp_path / "run").law.scale == 0.9
    with pytest.raises(TrainingError, match="law"):
        trainer(narrow).run()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(TrainingError, match="not a run"):
        begin(tmp_path / "mine", first.config)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]  # no lock is left behind


def test_what_a_killed_training_left_half_written_is_removed_and_blocks_nothing(tmp_path):
    config = {"kind": "train", "training": TrainSettings().to_dict()}
    for left in (".config.toml.17-0a1b2c3d.part", ".checkpoint.pt.17-0a1b2c3d.part", ".weights.safetensors.part"):
        (tmp_path / left).write_bytes(b"half")
        (tmp_path / "checkpoint.pt").touch(exist_ok=True)
        if left.startswith(".config"):
            (tmp_path / "checkpoint.pt").unlink()
        begin(tmp_path, config).release()
        assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]
