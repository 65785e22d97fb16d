"""The field's training methods: every loss against a plain computation, every attack inside its bounds, each resumed."""

from __future__ import annotations

import math
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from scipy.stats import beta, norm
from torch import nn

from ucan import Ensemble, Gaussian, InvalidInput, Laplace, data
from ucan.catalogue import RECIPES
from ucan.generators import Fixed, Generator, Isotropic
from ucan.runs.train import TrainJob, changed, trainer_of
from ucan.scales import Diagonal
from ucan.training import TrainSettings, load_run, read_settings
from ucan.training.joint import Joint
from ucan.training.recipes import (
    Acr,
    CatRs,
    Consistency,
    Drt,
    Macer,
    SmoothAdv,
    SmoothMix,
    Sphere,
    Stability,
    Task,
    mean_cost,
)
from ucan.training.recipes.acr import weights_of
from ucan.training.recipes.ascent import divergences, lengths, smoothed_loss
from ucan.training.recipes.catrs import like, smallest
from ucan.training.recipes.sphere import climbed
from ucan.training.step import Progress, Twins
from ucan.training.survey import Survey

# Numbers are taken out of losses here; PyTorch warns of the first in a process.
pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
SHAPE, CLASSES, BATCH = (1, 4, 4), 5, 12


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, CLASSES))


INPUTS, LABELS = torch.rand(BATCH, *SHAPE, generator=rng(7)), torch.arange(BATCH) % CLASSES


def step_of(classifier=None, generator=None, law=None, progress=None):
    """The same step whenever it is asked for: its noise comes from one seed."""
    joint = Joint(classifier or network(), generator or Isotropic(), law or Gaussian(0.5), Consistency(), "none", 0.0)
    return joint.step_at(INPUTS, LABELS, rng(1), torch.arange(BATCH), progress or Progress(6, 10, 0.65))


@torch.no_grad()
def test_stability_is_clean_cross_entropy_and_that_of_the_noisy_answer():
    net = network()
    noisy = step_of(net).noise.copies(3)
    expected = 0.0
    for i in range(BATCH):
        p = F.softmax(net(INPUTS[i : i + 1])[0], 0)
        expected += -math.log(float(p[LABELS[i]])) / BATCH
        for copy in noisy:
            q = F.softmax(net(copy[i : i + 1])[0], 0)
            expected += 0.7 * float(-(p * q.log()).sum()) / (3 * BATCH)
    assert float(Stability(draws=3, weight=0.7).step(step_of(net)).loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", (0.1, 0.6))
def test_smoothadv_stays_in_its_ball_and_in_the_range_and_raises_the_loss(size):
    recipe, step = SmoothAdv(draws=3, steps=5, size=size, warm=0.0), step_of()
    eps = step.noise.draw(3)
    moved = recipe.attacked(step, eps)
    assert bool(((moved - INPUTS).flatten(1).norm(dim=1) <= size + 1e-5).all())
    assert moved.min() >= 0 and moved.max() <= 1 and not torch.equal(moved, INPUTS)
    before, after = (smoothed_loss(step.model(step.noise.place(eps, at)), LABELS) for at in (INPUTS, moved))
    assert (after > before).float().mean() > 0.9
    expected = np.mean([float(F.cross_entropy(step.model(copy), LABELS)) for copy in step.noise.place(eps, moved)])
    assert float(recipe.step(step_of()).loss) == pytest.approx(expected, rel=1e-5)


def test_smoothadv_grows_from_nothing():
    step = step_of(progress=Progress(0, 10, 0.0))
    assert torch.equal(SmoothAdv(draws=2, steps=3, warm=5.0).attacked(step, step.noise.draw(2)), INPUTS)
    with_terms = SmoothAdv(draws=2, steps=1, weight=3.0, warm=5.0).step(step_of(progress=Progress(0, 10, 0.0))).loss
    plain = Consistency(draws=2, weight=3.0).step(step_of(progress=Progress(0, 10, 0.0))).loss
    assert float(with_terms) == pytest.approx(float(plain), rel=1e-5)


def test_the_smoothed_loss_is_that_of_the_mean_probability():
    logits = torch.randn(4, 3, 5, generator=rng())
    mean = logits.softmax(-1).mean(0)
    torch.testing.assert_close(smoothed_loss(logits, torch.tensor([1, 4, 0])), -mean[range(3), [1, 4, 0]].log())


def test_divergences_know_zero():
    wanted = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    logits = torch.randn(3, 2, 2, generator=rng())
    for k in range(3):
        for i in range(2):
            q = logits[k, i].softmax(0)
            expected = sum(float(w * (w / q[j]).log()) for j, w in enumerate(wanted[i]) if w > 0)
            assert float(divergences(wanted, logits)[k, i]) == pytest.approx(expected, abs=1e-6)


def test_macer_against_a_loop():
    recipe = Macer(draws=6, weight=1.5, margin=3.0, sharpness=4.0)
    net = network()
    logits = torch.stack([net(copy) for copy in step_of(net).noise.copies(6)])
    expected = 0.0
    for i in range(BATCH):
        expected += -math.log(float(logits[:, i].softmax(-1).mean(0)[LABELS[i]])) / BATCH
        p = (4 * logits[:, i]).softmax(-1).mean(0).clamp(1e-6, 1 - 1e-6).detach().numpy()
        order = np.argsort(-p)
        gap = norm.ppf(p[order[0]]) - norm.ppf(p[order[1]])
        if order[0] == int(LABELS[i]) and gap <= 3.0:
            expected += 1.5 * 0.5 / 2 * (3.0 - gap) / BATCH
    outcome = recipe.step(step_of(net))
    assert float(outcome.loss) == pytest.approx(expected, rel=1e-4) and float(outcome.shown["radius"]) > 0
    warm = Macer(draws=6, warm=9.0).step(step_of(net))
    assert float(warm.shown["radius"]) == 0


def test_macer_is_for_gaussian_noise():
    with pytest.raises(InvalidInput, match="Gaussian"):
        Macer().prepare(Task(10, SHAPE, CLASSES, Laplace(0.5), Isotropic(), torch.device("cpu")))


@pytest.mark.parametrize("one_step", (0, 1))
def test_smoothmix_against_a_loop(one_step):
    recipe = SmoothMix(draws=2, steps=3, length=0.4, weight=2.0, warm=0.0, one_step=one_step)
    net = network()
    outcome = recipe.step(step_of(net))
    step = step_of(net)  # the same noise and the same shares again
    eps = step.noise.draw(2)
    near, far = recipe.ends(step, eps, 1.0)
    share = step.uniform()[0] / 2
    assert bool((share <= 0.5).all()) and far.min() >= 0 and far.max() <= 1
    assert bool(((far - INPUTS).flatten(1).norm(dim=1) <= 3 * 0.4 + 1e-5).all())
    assert torch.equal(near, INPUTS) != bool(one_step)
    assert bool(((near - INPUTS).flatten(1).norm(dim=1) <= 0.4 + 1e-5).all())
    clean = [net(copy) for copy in step.noise.place(eps, near)]
    expected, smoothed = (
        float(sum(F.cross_entropy(c, LABELS) for c in clean)) / 2,
        sum(c.softmax(-1) for c in clean) / 2,
    )
    for i in range(BATCH):
        u = float(share[i])
        wanted = (1 - u) * smoothed[i] + u / CLASSES
        if int(smoothed[i].argmax()) != int(LABELS[i]):
            continue
        mixed = (1 - u) * near[i] + u * far[i]
        for k in range(2):
            copy = step.noise.place(eps, mixed.expand_as(near))[k, i]
            q = net(copy[None])[0].log_softmax(-1)
            expected += 2.0 * float((wanted * (wanted.log() - q)).sum()) / (2 * BATCH)
    assert float(outcome.loss) == pytest.approx(expected, rel=1e-4)


def test_catrs_takes_the_smallest_and_restores_mean_and_spread():
    losses = torch.tensor([[3.0, 1.0], [1.0, 5.0], [2.0, 4.0]])
    assert smallest(losses, torch.tensor([2, 3])).tolist() == pytest.approx([1.0, 10 / 3])
    eps, moved = torch.randn(2, 3, 1, 4, 4, generator=rng(1)), torch.randn(2, 3, 1, 4, 4, generator=rng(2)) + 1
    restored = like(moved, eps)
    flat, own = restored.flatten(2), eps.flatten(2)
    torch.testing.assert_close(flat.mean(2), own.mean(2), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mask", (0, 1))
def test_catrs_against_a_loop(mask):
    recipe, net = CatRs(draws=3, steps=2, size=0.8, weight=1.3, start=0.0, mask=mask), network()
    recipe.prepare(Task(BATCH, SHAPE, CLASSES, Gaussian(0.5), Isotropic(), torch.device("cpu")))
    answers = torch.rand(BATCH, CLASSES, generator=rng(5))
    answers[:, 0] = 0
    answers /= answers.sum(1, keepdim=True)
    recipe.load_state({"answers": answers})
    outcome = recipe.step(step_of(net))
    step = step_of(net)
    eps = step.noise.draw(3)
    logits = torch.stack([net(copy) for copy in step.noise.place(eps)])
    right = answers[range(BATCH), LABELS] if mask else (logits.argmax(-1) == LABELS).float().mean(0)
    coins = step.uniform(3)
    hard = torch.stack([net(copy) for copy in step.noise.place(recipe.attacked(step, eps, answers))])
    expected = 0.0
    for i in range(BATCH):
        taken = max(1, int((coins[:, i] < right[i]).sum()))
        each = sorted(float(F.cross_entropy(logits[k, i : i + 1], LABELS[i : i + 1])) for k in range(3))
        expected += sum(each[:taken]) / 3 / BATCH
        if taken == 3:
            far = [float(F.kl_div(hard[k, i].log_softmax(-1), answers[i], reduction="sum")) for k in range(3)]
            expected += 1.3 * max(far) / BATCH
    assert float(outcome.loss) == pytest.approx(expected, rel=1e-4)


def test_the_size_of_catrs_doubles_from_its_epoch_on():
    wanted = F.one_hot(LABELS, CLASSES).float()

    def moved(epoch, **parameters):
        step = step_of(progress=Progress(epoch, 10, epoch / 10))
        return CatRs(draws=3, steps=2, **parameters).attacked(step, step.noise.draw(3), wanted)

    for epoch, size in ((4, 0.4), (5, 0.8), (9, 0.8)):
        assert torch.equal(moved(epoch, size=0.4, double=5), moved(epoch, size=size))
    assert not torch.equal(moved(9, size=0.4), moved(9, size=0.8))


@pytest.mark.parametrize(
    "noise", [Isotropic(), Fixed(torch.linspace(0.2, 3.0, 16).reshape(SHAPE))], ids=["isotropic", "shaped"]
)
def test_moved_noise_stays_on_its_sphere_and_the_loss_goes_up(noise):
    step = step_of(generator=noise)
    eps = step.noise.draw(4)
    moved = climbed(step, eps, 3, 0.3)
    torch.testing.assert_close(lengths(moved, 2), lengths(eps, 2), rtol=1e-5, atol=1e-5)
    before, after = (
        F.cross_entropy(step.model(step.noise.place(e)).flatten(0, 1), LABELS.repeat(4)) for e in (eps, moved)
    )
    assert after > before + 0.05


def test_a_draw_is_kept_where_the_answer_first_changes():
    step = step_of()
    eps = step.noise.draw(5)
    wrong = step.model(step.noise.place(eps)).argmax(-1) != LABELS
    moved = climbed(step, eps, 3, 0.5, first_flip=True)
    stayed = (moved == eps).flatten(2).all(2)
    assert torch.equal(stayed, wrong) and 0 < int(wrong.sum()) < wrong.numel()


def climbed_alone(net, x, label, eps, steps, length, flip):
    """One draw moved by plain gradients: the mover of sphere and acr, for a single copy."""
    own, moved = eps.norm(), eps.clone()
    for _ in range(steps):
        place = moved.clone().requires_grad_(True)
        logits = net((x + place)[None])
        if flip and int(logits.argmax()) != int(label):
            break
        (up,) = torch.autograd.grad(F.cross_entropy(logits, label[None]), place)
        moved = moved + length * up / up.norm()
        moved = moved * (own / moved.norm())
    return moved


@pytest.mark.parametrize(
    "recipe", [Acr(draws=3, steps=3, length=0.4), Sphere(draws=3, weight=2.0, steps=3, length=0.4)]
)
def test_losses_under_moved_noise_against_a_loop(recipe):
    net = network()
    eps = step_of(net).noise.draw(3)
    flip, expected = isinstance(recipe, Acr), 0.0
    for i in range(BATCH):
        moved = [climbed_alone(net, INPUTS[i], LABELS[i], e[i], 3, 0.4, flip) for e in eps]
        p = np.array([net((INPUTS[i] + e)[None])[0].softmax(0).detach().numpy() for e in moved])
        assert all(
            float(e.norm()) == pytest.approx(float(own[i].norm()), rel=1e-5) for e, own in zip(moved, eps, strict=True)
        )
        expected += float(np.mean(-np.log(p[:, LABELS[i]]))) / BATCH
        if not flip:
            mean = p.mean(0)
            expected += float(2.0 * (mean * np.log(mean / p)).sum(1).mean() - 0.5 * (mean * np.log(mean)).sum()) / BATCH
    assert float(recipe.step(step_of(net)).loss) == pytest.approx(expected, rel=1e-4)


def test_the_noise_of_catrs_keeps_its_mean_and_spreads_no_further_and_the_divergence_goes_up():
    recipe, step = CatRs(draws=3, steps=4, size=0.8), step_of()
    eps, wanted = step.noise.draw(3), torch.eye(CLASSES)[LABELS]
    moved = recipe.attacked(step, eps, wanted)
    flat, own = moved.flatten(2), eps.flatten(2)
    torch.testing.assert_close(flat.mean(2), own.mean(2), atol=1e-5, rtol=1e-4)
    assert bool(((flat - flat.mean(2, keepdim=True)).norm(dim=2) <= own.norm(dim=2) + 1e-4).all())
    assert not torch.equal(moved, eps)
    before, after = (divergences(wanted, step.model(step.noise.place(e))).mean() for e in (eps, moved))
    assert after > before


@pytest.mark.parametrize("size", [0.1, 0.8, 1.5, 5.0])
def test_the_noise_of_catrs_ends_where_its_docstring_says(size):
    """Beyond ``size``, since it is re-scaled after the projection."""
    step = step_of()
    eps = step.noise.draw(40)
    moved = CatRs(steps=4, size=size).attacked(step, eps, torch.eye(CLASSES)[LABELS])
    own, far = eps.flatten(2).norm(dim=2), (moved - eps).flatten(2).norm(dim=2)
    most = torch.where(own > size, size / torch.cos(torch.asin((size / own).clamp_max(1)) / 2), 2 * own)
    assert bool((far <= most * 1.0001).all()) and bool((far <= 2 * own).all())
    assert bool((far[own > size] < math.sqrt(2) * size).all())
    assert float(far.max()) > size or size > float(own.max())


def test_sphere_is_consistency_before_its_start():
    early = Progress(1, 10, 0.15)
    ours = Sphere(weight=4.0).step(step_of(progress=early)).loss
    plain = Consistency(weight=4.0).step(step_of(progress=early)).loss
    assert torch.equal(ours, plain)
    assert float(Sphere(weight=4.0).step(step_of()).loss) > float(Consistency(weight=4.0).step(step_of()).loss)
    assert mean_cost(Sphere(), 10) == pytest.approx(2 * (1 + 2 * 0.6))


def test_weights_are_quantiles_of_lower_bounds():
    shares = torch.tensor([0.0, 0.5, 0.75, 0.875, 1.0])
    for share, weight in zip(shares, weights_of(shares, 16), strict=True):
        k = int(max(0.75, float(share)) * 16)
        expected = norm.ppf(0.1 ** (1 / 16) if k == 16 else beta.ppf(0.1, k, 17 - k))
        assert float(weight) == pytest.approx(expected, abs=1e-5)


def test_weights_count_the_votes_whatever_their_number():
    for votes, k in ((41, 32), (67, 55), (16, 13)):
        (weight,) = weights_of(torch.tensor([float(k)]) / votes, votes)
        assert float(weight) == pytest.approx(norm.ppf(beta.ppf(0.1, k, votes + 1 - k)), abs=1e-5)


def test_drt_against_jacobians_and_alone_refused():
    both = Ensemble([network(1), network(2)])
    recipe = Drt(draws=1, diversity=0.6, margins=1.2)
    outcome = recipe.step(step_of(both))
    noisy = step_of(both).noise.copies(1)[0]
    expected = 0.0
    for i in range(BATCH):
        y = int(LABELS[i])
        logits = [m(noisy[i : i + 1])[0] for m in both.members]
        expected += sum(float(F.cross_entropy(z[None], LABELS[i : i + 1])) for z in logits) / BATCH
        mean = (logits[0] + logits[1]) / 2
        order = mean.argsort(descending=True).tolist()
        if order[0] != y:
            continue
        rival = order[1]
        slopes, margins = [], []
        for member in both.members:
            place = noisy[i : i + 1].detach().requires_grad_(True)
            p = member(place).softmax(-1)[0]
            margins.append(float(p[y] - p[rival]))
            (g,) = torch.autograd.grad(p[y] - p[rival], place)
            slopes.append(g.flatten())
        expected += (0.6 * float((slopes[0] + slopes[1]).norm()) - 1.2 * sum(margins)) / BATCH
    assert float(outcome.loss) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(InvalidInput, match="at least two"):
        recipe.step(step_of())


def convolutions(seed):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Tanh(), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES))


# The compiler's own, some of them on Python 3.13 only.
@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore::DeprecationWarning", "ignore:Guards may run slower")
def test_compiled_drt_has_the_same_loss_gradients_and_statistics():
    found = []
    for twins in (False, True):
        three = Ensemble([convolutions(k) for k in range(3)]).double().train()
        joint = Joint(three, Isotropic(), Gaussian(0.5), Consistency(), "none", 0.0)
        if twins:
            joint.use_for_answers(Twins.compiled(three, lambda f: torch.compile(f, backend="aot_eager"), apart=True))
        step = joint.step_at(INPUTS.double(), LABELS, rng(1), torch.arange(BATCH), Progress())
        outcome = Drt(draws=2, diversity=0.6, margins=1.2).step(step)
        outcome.loss.backward()
        assert not any(one.tangent.failed for one in joint.twins.members) and bool(joint.twins.members) == twins
        found.append(
            [outcome.loss, *outcome.shown.values(), *(p.grad for p in three.parameters()), *three.state_dict().values()]
        )
        assert all(p.requires_grad for p in three.parameters())
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6, check_dtype=False)


class Learned(Generator):
    """Noise with one μ and one σ for all coordinates, which training may change."""

    scope = "pipeline"

    def __init__(self):
        super().__init__()
        self.both = nn.Parameter(torch.tensor([0.1, 0.8], dtype=torch.float64))

    def forward(self, x):
        return self.both[0], Diagonal(self.both[1].expand(x.shape[1:]))


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore::DeprecationWarning", "ignore:Guards may run slower")
@pytest.mark.parametrize("compiled", [False, True])
def test_drt_teaches_the_noise_too(compiled):
    """By smooth networks: a difference tells nothing of a gradient of gradients that jumps."""

    def loss(noise):
        three = Ensemble([network(k) for k in range(3)]).double().train()
        joint = Joint(three, noise, Gaussian(0.5), Consistency(), "none", 0.0)
        if compiled:
            joint.use_for_answers(Twins.compiled(three, lambda f: torch.compile(f, backend="aot_eager"), apart=True))
        step = joint.step_at(INPUTS.double(), LABELS, rng(1), torch.arange(BATCH), Progress())
        found = Drt(draws=2, diversity=0.6, margins=1.2).step(step).loss
        assert not any(one.tangent.failed for one in joint.twins.members)
        return found

    noise = Learned()
    loss(noise).backward()
    for i in range(2):
        ends = []
        for change in (-1e-3, 1e-3):
            moved = Learned()
            with torch.no_grad():
                moved.both[i] += change
            ends.append(float(loss(moved)))
        assert float(noise.both.grad[i]) == pytest.approx((ends[1] - ends[0]) / 2e-3, rel=1e-2)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # PyTorch's own, on Python 3.13
def test_drt_goes_the_slower_way_where_a_network_has_no_tangent():
    class Bend(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0].cos()

    class Bent(nn.Module):
        def forward(self, x):
            return Bend.apply(x)

    both = Ensemble([nn.Sequential(convolutions(k), Bent()) for k in range(2)]).train()
    joint = Joint(both, Isotropic(), Gaussian(0.5), Consistency(), "none", 0.0)
    plain = Drt().step(step_of(both)).loss
    joint.use_for_answers(Twins.compiled(both, lambda f: f, apart=True))
    with pytest.warns(UserWarning, match="slower way"):
        slower = Drt().step(joint.step_at(INPUTS, LABELS, rng(1), torch.arange(BATCH), Progress())).loss
    assert torch.equal(plain, slower)
    seen = int(both.members[0][0][1].num_batches_tracked)
    Drt().step(joint.step_at(INPUTS, LABELS, rng(1), torch.arange(BATCH), Progress()))
    assert int(both.members[0][0][1].num_batches_tracked) == seen + 1  # no pass is made in vain


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.LayerNorm(CLASSES)], ids=repr)
def test_drt_is_the_same_where_a_layer_draws_at_random_or_has_statistics_of_its_own(layer):
    found = []
    for compiler in (None, lambda f: f):
        both = Ensemble([nn.Sequential(convolutions(k), deepcopy(layer)) for k in range(2)]).train()
        joint = Joint(both, Isotropic(), Gaussian(0.5), Consistency(), "none", 0.0)
        if compiler is not None:
            with pytest.warns(UserWarning, match=f"slower way.*{type(layer).__name__}"):
                joint.use_for_answers(Twins.compiled(both, compiler, apart=True))
        torch.manual_seed(3)
        loss = Drt().step(joint.step_at(INPUTS, LABELS, rng(1), torch.arange(BATCH), Progress())).loss
        loss.backward()
        found.append([loss, *(p.grad for p in both.parameters()), *both.state_dict().values()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


QUICK = {
    "augmentation": {},
    "consistency": {},
    "stability": {},
    "smoothadv": {"draws": 2, "steps": 2, "size": 0.3, "warm": 1.0},
    "macer": {"draws": 4, "weight": 1.0},
    "smoothmix": {"steps": 2, "warm": 1.0},
    "catrs": {"draws": 3, "steps": 2, "start": 0.3, "votes": 8, "every": 1},
    "drt": {},
    "acr": {"draws": 2, "start": 0.3, "drop": 0.1, "votes": 8, "every": 1, "steps": 2},
    "sphere": {"start": 0.3, "drop": 0.1},
}


def trained(folder: Path, kind: str, epochs: int, stop_at=None):
    trainer = pytest.importorskip("ucan.training.loop").Trainer
    settings = TrainSettings.from_dict(
        {
            "epochs": epochs,
            "lr": 0.01,
            "batch": 64,
            "law": {"kind": "gaussian", "scale": 0.2},
            "recipe": {"kind": kind, **QUICK[kind]},
        }
    )
    dataset = data.load("digits", "train").subset(torch.arange(400))
    torch.manual_seed(3)
    nets = [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)) for _ in "ab"
    ]

    def told(epoch, step, steps, means):
        if stop_at is not None and (epoch, step) >= stop_at:
            one._stop = True

    one = trainer(settings, dataset, Ensemble(nets), folder, "cpu", told)
    try:
        one.run()
    except KeyboardInterrupt:
        assert stop_at is not None
    return one


def test_all_methods_are_tried_here():
    assert set(QUICK) | {"denoise"} == set(RECIPES.own)  # that one: test_denoiser.py


# DRT's gradients are differentiated again; see its two ways.
@pytest.mark.parametrize("kind", sorted(set(QUICK) - {"drt"}))
def test_gradients_for_attacks_are_taken_before_the_passes_that_are_learnt_from(kind, monkeypatch):
    """On a GPU a gradient ends what CUDA graphs keep for a pass before it, and its backward pass fails."""
    told, gradient = [], torch.autograd.grad

    def noted(*args, **named):
        told.append("gradient")
        return gradient(*args, **named)

    monkeypatch.setattr(torch.autograd, "grad", noted)
    net, settings = network(), TrainSettings.from_dict({"recipe": {"kind": kind, **QUICK[kind]}})
    net.register_forward_hook(lambda *_: told.append("pass") if net[1].weight.requires_grad else None)
    recipe = settings.build_recipe()
    recipe.prepare(Task(BATCH, SHAPE, CLASSES, Gaussian(0.5), Isotropic(), torch.device("cpu")))
    assert recipe.step(step_of(net)).loss.isfinite()
    assert "pass" in told and "gradient" not in told[told.index("pass") :]


@pytest.mark.parametrize("kind", QUICK)
def test_each_learns_digits(tmp_path, kind):
    one = trained(tmp_path / "run", kind, 20)
    test = data.load("digits", "test")
    x, labels = test.batch(torch.arange(len(test)))
    noisy = x + 0.2 * torch.randn(x.shape, generator=rng(2))
    assert (one.joint.classifier.eval()(noisy).argmax(1) == labels).float().mean() > 0.8
    assert mean_cost(one.recipe, 20) >= 1


@pytest.mark.parametrize("kind", QUICK)
def test_each_is_resumed_bit_for_bit(tmp_path, kind):
    trained(tmp_path / "whole", kind, 3)
    for stop_at in ((0, 0), (1, 0)):
        trained(tmp_path / "parts", kind, 3, stop_at)
    trained(tmp_path / "parts", kind, 3)
    whole, parts = (load_file(tmp_path / n / "weights.safetensors") for n in ("whole", "parts"))
    assert whole.keys() == parts.keys() and all(torch.equal(whole[k], parts[k]) for k in whole)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("acr", {"start": 2.0}),
        ("acr", {"votes": 0}),
        ("sphere", {"length": -1.0}),
        ("sphere", {"drop": 1.0}),
        ("acr", {"every": -1}),
        ("catrs", {"every": 0}),
        ("catrs", {"mask": 2}),
        ("catrs", {"double": -1}),
        ("catrs", {"votes": 2.5}),
        ("acr", {"steps": 1.5}),
        ("acr", {"length": -0.1}),
        ("sphere", {"steps": 2.5}),
        ("smoothadv", {"steps": 2.5}),
        ("smoothadv", {"steps": -1}),
        ("smoothadv", {"size": -1.0}),
        ("smoothadv", {"low": 1.0}),
        ("smoothmix", {"steps": 1.5}),
        ("smoothmix", {"one_step": 2}),
        ("smoothmix", {"length": -1.0}),
        ("macer", {"warm": -1.0}),
        ("macer", {"sharpness": 0.0}),
    ],
)
def test_parameters_that_make_no_sense_are_refused(kind, wrong):
    with pytest.raises(InvalidInput, match="recipe"):
        RECIPES.load(kind)(**wrong)


def test_acr_drops_the_hopeless_and_draws_the_rest_by_weight(tmp_path):
    recipe = Acr(draws=2, start=0.0, drop=0.5, votes=4, every=1, steps=1)
    recipe.prepare(Task(6, SHAPE, CLASSES, Gaussian(0.5), Isotropic(), torch.device("cpu")))
    assert recipe.sampling() is None

    class Told:
        progress = Progress(0, 4, 0.0)
        shares = iter((torch.tensor([0.1, 0.5, 0.9, 1.0, 0.0, 0.7]), torch.tensor([1.0, 1.0, 0.75, 1.0, 1.0, 0.75])))

        def each(self, answer):
            return next(self.shares)

    recipe.before_epoch(Told())
    drawn = recipe.sampling()
    assert (drawn > 0).tolist() == [False, True, False, True, False, False]  # 3 of 4 votes bound p by less than a half
    assert recipe.state().keys() == {"kept", "weights"}


@pytest.mark.parametrize("kind", ["acr", "catrs", "sphere"])
def test_a_network_that_has_learned_nothing_is_not_asked_which_inputs_are_hopeless(kind):
    """Not even in a training of one epoch, a share of which is less than one: it answers with one class for all."""
    recipe = RECIPES.load(kind)(**({} if kind == "catrs" else {"drop": 0.5}))
    recipe.prepare(Task(4, SHAPE, CLASSES, Gaussian(0.5), Isotropic(), torch.device("cpu")))
    recipe.before_epoch(Survey(Progress(0, 1, 0.0), 4, lambda: pytest.fail("asked"), nullcontext))
    assert recipe.sampling() is None


def test_acr_may_draw_all_that_is_left_alike():
    recipe = Acr(start=0.5, drop=0.5, every=0)
    recipe.prepare(Task(3, SHAPE, CLASSES, Gaussian(0.5), Isotropic(), torch.device("cpu")))

    class Told:
        def __init__(self, epoch):
            self.progress, self.asked = Progress(epoch, 4, epoch / 4), 0

        def each(self, answer):
            self.asked += 1
            return torch.tensor([0.1, 0.5, 1.0])

    told = [Told(epoch) for epoch in range(4)]
    for each in told:
        recipe.before_epoch(each)
        assert (recipe.sampling() is None) == (each.progress.epoch < 2)
    assert recipe.sampling().tolist() == [0, 1, 1] and [each.asked for each in told] == [0, 0, 1, 0]
    costs = [recipe.cost(each.progress) for each in told]
    assert costs == pytest.approx([4, 4, 16 + 100 / 3, 16])
    keeping = Acr(start=0.0, drop=0.0, every=0)
    keeping.prepare(Task(3, SHAPE, CLASSES, Gaussian(0.5), Isotropic(), torch.device("cpu")))
    keeping.before_epoch(told[0])
    assert keeping.sampling().tolist() == [1, 1, 1] and told[0].asked == 0


def test_sphere_leaves_out_the_hopeless_from_its_start_on():
    recipe = Sphere(start=0.5, drop=0.5)
    recipe.prepare(Task(4, SHAPE, CLASSES, Gaussian(0.5), Isotropic(), torch.device("cpu")))

    class Told:
        def __init__(self, epoch, shares):
            self.progress, self.shares = Progress(epoch, 4, epoch / 4), torch.tensor(shares)

        def each(self, answer):
            return self.shares

    recipe.before_epoch(Told(1, [0.0, 0.0, 0.0, 1.0]))
    assert recipe.sampling() is None
    recipe.before_epoch(Told(2, [0.1, 0.5, 0.9, 0.0]))
    recipe.before_epoch(Told(3, [1.0, 1.0, 1.0, 1.0]))  # once
    assert recipe.sampling().tolist() == [0, 1, 1, 0]
    assert mean_cost(Sphere(start=0.5, drop=0.5), 4) == pytest.approx(mean_cost(Sphere(start=0.5), 4) + 100 / 3 / 4)
    recipe.prepare(Task(4, SHAPE, CLASSES, Gaussian(0.5), Isotropic(), torch.device("cpu")))
    recipe.before_epoch(Told(2, [0.1, 0.2, 0.3, 0.0]))  # none is left: all are kept
    assert recipe.sampling() is None
    with pytest.raises(InvalidInput, match="drop"):
        recipe.load_state({})
    assert Sphere().state() == {}


def test_drt_by_name_trains_an_ensemble_that_is_loaded_again(tmp_path):
    settings = changed(
        read_settings("cifar10-drt"), ["data=digits", "model=cnn", "epochs=1", "batch=256", "networks=2"]
    )
    settings = replace(settings, precision="32-true", compile=False, augment=False)
    trainer_of(TrainJob(settings=settings), tmp_path / "run").run()
    found = load_run(tmp_path / "run").classifier
    assert isinstance(found, Ensemble) and len(found.members) == 2
    first, second = (member.network.state_dict() for member in found.members)
    assert not all(torch.equal(first[name], second[name]) for name in first)
    x = data.load("digits", "test").batch(torch.arange(5))[0]
    torch.testing.assert_close(found(x), (found.members[0](x) + found.members[1](x)) / 2)
