"""Recipes: what a step gives them holds, and any published method is trained, resumed and shared among processes."""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import ucan
from ucan import Gaussian, InvalidInput, Laplace, Uniform, data
from ucan.catalogue import RECIPES
from ucan.errors import TrainingError
from ucan.generators import CertificationWise, Composed, Fixed, InputDependent, Isotropic, Pattern
from ucan.models import Denoised
from ucan.scales import Dense
from ucan.training import TrainSettings, build_classifier
from ucan.training.batches import Batches
from ucan.training.joint import Joint
from ucan.training.recipes import Augmentation, Consistency, OfLogits, Recipe, mean_cost
from ucan.training.share import Share
from ucan.training.step import Network, Outcome, Progress, Twins

pytest.importorskip("lightning_fabric")
from ucan.training import Trainer

# The methods that draw, weigh, drop, attack, remember and use several networks, in small.
METHODS = {
    "smoothadv": {"draws": 2, "steps": 2, "size": 0.5, "warm": 1.0},
    "smoothmix": {"steps": 2, "warm": 1.0},
    "catrs": {"draws": 3, "steps": 2, "start": 0.3, "votes": 8, "every": 1},
    "drt": {},
    "acr": {"draws": 2, "start": 0.3, "drop": 0.1, "votes": 8, "every": 1, "steps": 2},
    "sphere": {"start": 0.3},
    "stability": {},
    "macer": {"draws": 4, "weight": 1.0},
    "denoise": {"stability": 0.5},
    "distilled": {},
}


@dataclass(frozen=True)
class Distilled(Recipe):
    """The answers of the classifier as it was when training began: a teacher in the recipe's state."""

    teacher: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def step(self, step):
        if not self.teacher:
            self.teacher.update({k: v.detach().clone() for k, v in step.model.module.state_dict().items()})
        noisy = step.noise.copies(1)[0]
        with torch.no_grad(), step.model.aside():
            taught = torch.func.functional_call(step.model.module, self.teacher, (noisy,)).softmax(-1)
        logits = step.model(noisy)
        apart = -(taught * logits.log_softmax(-1)).sum(-1).mean()
        loss = nn.functional.cross_entropy(logits, step.labels) + apart
        return Outcome.of(loss, logits, step.labels, apart=apart)

    def cost(self, progress):
        return 4 / 3

    def state(self):
        return dict(self.teacher)

    def load_state(self, state):
        self.teacher.update(state)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


class Pair(nn.Module):
    """Two networks, with batch norm, whose logits are averaged."""

    def __init__(self, features=64, classes=10):
        super().__init__()
        torch.manual_seed(5)
        parts = [(nn.Flatten(), nn.Linear(features, 16), nn.BatchNorm1d(16), nn.ReLU()) for _ in range(2)]
        self.members = nn.ModuleList(nn.Sequential(*part, nn.Linear(16, classes)) for part in parts)

    def forward(self, x):
        return torch.stack([network(x) for network in self.members]).mean(0)


def train(folder, kind, changes=None, count=150, stop_at=None):
    """Train a pair of small networks on some digits by a recipe of this name, in as many processes as were launched."""
    RECIPES.own["distilled"] = f"{__name__}:Distilled"
    recipe = {"kind": kind, **METHODS.get(kind, {})}
    given = {"model": "given:here", "denoiser": {"width": 4, "depth": 3}} if kind == "denoise" else {}
    settings = TrainSettings.from_dict({"epochs": 3, "batch": 31, "recipe": recipe, **given, **(changes or {})})
    dataset = data.load("digits", "train").subset(torch.arange(count))

    def told(epoch, step, steps, means):
        if stop_at is not None and (epoch, step) >= stop_at:
            one._stop = True

    model = Denoised.training_for(Pair(), 1, 4, 3) if kind == "denoise" else Pair()
    one = Trainer(settings, dataset, model, folder, "cpu", told)
    try:
        one.run()
    except KeyboardInterrupt:
        assert stop_at is not None
    return one


@pytest.fixture(autouse=True)
def known_recipes(monkeypatch):
    monkeypatch.setitem(RECIPES.own, "distilled", f"{__name__}:Distilled")


def weights(folder):
    return load_file(Path(folder) / "weights.safetensors")


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# --- the same numbers as before recipes were given whole steps ---


PINNED = {
    "augmentation": ({}, 9.898975450927349, (2.2658613522847495, 2.1632132530212402)),
    "two draws": (
        {
            "recipe": {"kind": "augmentation", "draws": 2},
            "law": {"kind": "laplace", "std": 0.3},
            "generator": {"kind": "pattern"},
        },
        9.769087649788341,
        (2.2651009559631348, 2.1561930974324546),
    ),
    "consistency": (
        {
            "recipe": {"kind": "consistency", "weight": 5.0},
            "variance_term": "min",
            "variance_weight": 0.2,
            "generator": {"kind": "certification-wise", "features": 3, "growth": 2},
            "augment": True,
            "ema": 0.9,
        },
        9.124255584950815,
        (3.3783817291259766, 3.374090830485026),
    ),
    "composed": (
        {"generator": {"kind": "composed", "features": 3, "growth": 2}, "recipe": {"kind": "consistency", "draws": 3}},
        9.97743448812064,
        (3.4138898849487305, 3.305450439453125),
    ),
}


@pytest.mark.parametrize("case", PINNED)
def test_training_gives_the_numbers_of_version_0_1(tmp_path, case):
    """Six steps on digits: a fingerprint of the weights and both epochs' losses, as that version printed them."""
    changes, fingerprint, losses = PINNED[case]
    settings = TrainSettings.from_dict({"epochs": 2, "batch": 64, **changes})
    dataset = data.load("digits", "train").subset(torch.arange(200))
    classifier = build_classifier(settings, dataset.event_shape, dataset.num_classes)
    Trainer(settings, dataset, classifier, tmp_path / "run", "cpu").run()
    parts = [v.double().flatten() for k, v in sorted(weights(tmp_path / "run").items()) if k.startswith("classifier.")]
    mixed = sum(float((v * torch.cos(torch.arange(v.numel(), dtype=torch.float64))).sum()) for v in parts)
    assert mixed == pytest.approx(fingerprint, rel=1e-5)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("recipe", [Augmentation(), Augmentation(draws=3), Consistency()], ids=repr)
def test_a_step_is_what_it_was_bit_for_bit(recipe):
    """Against the old step, written out: μ and Σ, copies, view, logits, loss."""
    generator, law = Pattern((1, 8, 8)), Gaussian(0.4)
    x, labels = torch.rand(12, 1, 8, 8, generator=rng()), torch.arange(12) % 10
    ours, old = Pair(), Pair()
    Joint(ours, generator, law, recipe, "none", 0.0)(x, labels, rng(3))["loss"].backward()
    mu, scale = generator(x)
    eps = law.sample(recipe.draws * 12, (1, 8, 8), rng(3)).reshape(recipe.draws, 12, 1, 8, 8)
    logits = old(scale.apply(eps).add_(x + mu).flatten(0, 1)).reshape(recipe.draws, 12, -1)
    recipe.loss(logits, labels).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours.parameters(), old.parameters(), strict=True))


# --- what a step gives ---


def step_of(classifier=None, generator=None, law=None, x=None, share=None, answer=None):
    x = torch.rand(6, 1, 4, 4, generator=rng()) if x is None else x
    joint = Joint(classifier or Pair(16), generator or Isotropic(), law or Gaussian(0.5), Augmentation(), "none", 0.0)
    joint.share = share
    if answer is not None:
        joint.use_for_answers(Twins(joint.classifier, answer))
    return joint.step_at(x, torch.arange(len(x)) % 10, rng(1), None, Progress(2, 10, 0.25))


LAWS = [Gaussian(0.5), Laplace(0.5), Uniform(0.5), ucan.ExpInf(0.5), ucan.PowerLaw(0.5, a=30.0)]
NOISES = {
    "isotropic": lambda: Isotropic(),
    "a pattern with an offset": lambda: Fixed(Pattern((1, 4, 4)).scale, mean=torch.full((1, 4, 4), 0.1)),
    "a full matrix": lambda: Fixed(Dense(torch.eye(16) + 0.1 * torch.rand(16, 16, generator=rng(4)))),
    "per input": lambda: CertificationWise(1, features=2, growth=2),
    "composed": lambda: Composed(1, features=2, growth=2),
}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
@pytest.mark.parametrize("noise", NOISES)
def test_draws_that_are_placed_are_the_copies_of_the_same_stream(law, noise):
    if noise == "composed" and not isinstance(law, Gaussian):
        pytest.skip("composed noise is Gaussian")
    torch.manual_seed(0)
    generator = NOISES[noise]()
    fresh = step_of(generator=generator, law=law).noise.copies(3)
    kept = step_of(generator=generator, law=law).noise
    eps = kept.draw(3)
    before = eps.clone()
    assert fresh.shape == (3, 6, 1, 4, 4) and torch.equal(kept.place(eps), fresh)
    assert torch.equal(kept.place(eps), fresh) and torch.equal(eps, before)  # as often as one likes
    moved = eps.clone().requires_grad_(True)
    (g,) = torch.autograd.grad(kept.place(moved).square().sum(), moved)
    assert g.shape == eps.shape and bool((g != 0).any())


def test_other_inputs_get_the_noise_of_the_step_unless_it_is_to_follow_them():
    torch.manual_seed(0)
    step = step_of(generator=CertificationWise(1, features=2, growth=2))
    eps, other = step.noise.draw(1), step.inputs + 0.5
    held = step.noise.place(eps, other) - other
    assert torch.allclose(held, step.noise.place(eps) - step.inputs, atol=1e-6)
    live = step.noise.place(eps, other, held=False)
    assert torch.equal(live, step.noise.generator.place(other, eps, step.noise.law)) and not torch.allclose(
        live - other, held
    )


def test_noise_that_makes_its_copies_itself_cannot_be_placed():
    class Own(Isotropic):
        def perturb(self, x, law, n, rng, noise=None):
            return x + law.sample(n, x.shape, rng)

    step = step_of(generator=Own())
    assert step.noise.copies(2).shape == (2, 6, 1, 4, 4)
    with pytest.raises(InvalidInput, match="draw and place"):
        step.noise.draw(2)


def test_the_network_shows_what_the_generator_shows():
    class Half(Isotropic):
        def view(self, y):
            return y / 2

    model = Pair(16).eval()
    step = step_of(model, Half())
    noisy = step.noise.copies(2)
    assert step.model(noisy).shape == (2, 6, 10) and step.model(noisy[0]).shape == (6, 10)
    assert torch.allclose(step.model(noisy)[1], model(noisy[1] / 2), atol=1e-6)
    asked = []
    step_of(model, answer=lambda y: asked.append(y) or model(y)).model(noisy)
    assert len(asked) == 1  # the (compiled) twin answers
    first, second = step.model.members
    assert torch.allclose((first(noisy) + second(noisy)) / 2, step.model(noisy), atol=1e-6)
    lone = Network(model.members[0], Isotropic(), 3)
    assert lone.members == (lone,)


@pytest.mark.parametrize("statistics", ("running", "batch"))
def test_passes_aside_leave_no_trace(statistics):
    model = Pair(16).train()
    model.members[0][2].eval()  # a layer that somebody froze stays frozen
    model.members[1][1].weight.requires_grad_(False)
    step = step_of(model)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes, learning = [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]
    noisy = step.noise.copies(2).requires_grad_(True)
    with step.model.aside(statistics):
        logits = step.model(noisy)
        logits.square().sum().backward()
        assert model.members[1].training == (statistics == "batch")
    assert bool((noisy.grad != 0).any()) and all(p.grad is None for p in model.parameters())
    assert same(before, model.state_dict())
    assert modes == [m.training for m in model.modules()]
    assert learning == [p.requires_grad for p in model.parameters()]
    assert all(m.track_running_stats for m in model.modules() if isinstance(m, nn.BatchNorm1d))
    step.model(noisy)
    assert not same(before, model.state_dict())
    with pytest.raises(RuntimeError), step.model.aside(statistics):
        raise RuntimeError
    assert modes == [m.training for m in model.modules()]
    with pytest.raises(InvalidInput, match="statistics"), step.model.aside("none"):
        pass


def test_aside_by_the_batch_answers_as_training_does_and_by_running_statistics_as_evaluation_does():
    model = Pair(16).train()
    step = step_of(model)
    noisy = step.noise.copies(2)
    with step.model.aside("batch"):
        batch = step.model(noisy)
    with step.model.aside():
        running = step.model(noisy)
    twin = Pair(16)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(running, twin.eval()(noisy.flatten(0, 1)).reshape(running.shape))
    assert torch.equal(batch, step.model(noisy))


def test_gradients_are_whole_after_a_pass_without_them_in_mixed_precision():
    step = step_of()
    noisy = step.noise.copies(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            step.model(noisy)
        step.model(noisy).float().square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in step.model.module.members[0][1].parameters())


def test_means_over_the_batch_with_weights():
    step = step_of()
    values, w = torch.arange(6.0), torch.tensor([0.0, 1, 0, 2, 0, 1])
    assert float(step.mean(values)) == 2.5 and float(step.mean(values, w)) == pytest.approx((1 + 6 + 5) / 4)
    assert float(step.mean(values, torch.zeros(6))) == 0
    assert torch.equal(step.together(values), values)


def test_a_share_draws_the_random_numbers_of_its_places():
    whole = step_of(share=Share(6)).uniform(3)
    assert whole.shape == (3, 6) and bool(((whole >= 0) & (whole < 1)).all())
    for rank in range(2):
        part = step_of(share=Share(6, rank, 2), x=torch.zeros(3, 1, 4, 4)).uniform(3)
        assert torch.equal(part, whole[:, rank::2])


@pytest.mark.parametrize("noise", [*NOISES, "input-dependent"])
def test_a_share_has_the_noise_of_its_places(noise):
    torch.manual_seed(0)
    x, law = torch.rand(6, 1, 4, 4, generator=rng()), Gaussian(0.5)
    own = {"input-dependent": lambda: InputDependent(torch.rand(9, 1, 4, 4, generator=rng(2)), k=2)}
    generator = (NOISES | own)[noise]()
    with torch.no_grad():
        whole = generator.perturb(x, law, 3, rng(1))
        for rank in range(2):
            part = generator.perturb(x[rank::2], Share(6, rank, 2).law(law), 3, rng(1))
            assert torch.allclose(part, whole[:, rank::2], atol=1e-5)


def test_a_share_of_the_epochs_is_one_of_them_at_least():
    assert [Progress(0, epochs, 0.0).epoch_at(0.4) for epochs in (1, 2, 3, 10)] == [1, 1, 1, 4]
    assert Progress(0, 1, 0.0).epoch_at(0.0) == 0 and Progress(0, 4, 0.0).epoch_at(1.0) == 4


def test_a_warm_up_is_a_straight_line():
    assert [Progress(0, 20, done).ramp(10) for done in (0.0, 0.25, 0.5, 0.9)] == [0.0, 0.5, 1.0, 1.0]
    assert Progress().ramp(0) == 1.0


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (lambda v: Outcome(v, v.mean()), r"loss .*\(2,\)"),
        (lambda v: Outcome(v.mean(), 0.5), "correct .*float"),
        (lambda v: Outcome(v.mean(), v.mean(), {"gap": v}), "gap"),
    ],
)
def test_what_a_recipe_gives_back_is_checked(outcome, word):
    class Wrong(OfLogits):
        draws = 1

        def step(self, step):
            return outcome(torch.ones(2))

        def loss(self, logits, labels):
            return logits.mean()

    joint = Joint(Pair(16), Isotropic(), Gaussian(0.5), Wrong(), "none", 0.0)
    with pytest.raises(InvalidInput, match=word):
        joint(torch.rand(4, 1, 4, 4), torch.arange(4), rng())


def test_a_full_matrix_is_trained_with_and_has_no_sigma_to_show():
    noise = NOISES["a full matrix"]()
    out = Joint(Pair(16), noise, Gaussian(0.5), Augmentation(), "none", 0.0)(
        torch.rand(4, 1, 4, 4), torch.arange(4), rng()
    )
    assert out.keys() == {"loss", "correct"}
    with pytest.raises(InvalidInput, match="Dense"):
        Joint(Pair(16), noise, Gaussian(0.5), Augmentation(), "min", 1.0)(
            torch.rand(4, 1, 4, 4), torch.arange(4), rng()
        )


# --- batches that a recipe asks for ---


def numbered(count):
    return data.InMemory(
        torch.arange(count).float().reshape(count, 1, 1, 1) / count, torch.arange(count) % 3, ["a", "b", "c"]
    )


def test_batches_know_the_places_of_their_inputs():
    batches = Batches(numbered(20), 6, 0, torch.device("cpu"))
    for x, _, places in batches.epoch(1):
        assert torch.equal(torch.round(x.flatten() * 20).long(), places)
    in_order = [places.tolist() for *_, places in batches.in_order()]
    assert [place for part in in_order for place in part] == [*range(20), 0, 1, 2, 3] and {
        len(part) for part in in_order
    } == {6}


def test_weights_decide_what_is_drawn():
    weights = torch.zeros(20)
    weights[3], weights[7] = 3.0, 1.0
    batches = Batches(numbered(20), 5, 0, torch.device("cpu"))
    seen = torch.cat([b.places for epoch in range(50) for b in batches.epoch(epoch, 0, weights)])
    assert len(seen) == 50 * 20 and set(seen.tolist()) == {3, 7}
    assert (seen == 3).float().mean() == pytest.approx(0.75, abs=0.05)
    again = torch.cat([b.places for b in batches.epoch(4, 2, weights)])
    assert torch.equal(again, torch.cat([b.places for b in batches.epoch(4, 0, weights)])[10:])
    for wrong in (torch.ones(19), torch.zeros(20), -torch.ones(20), torch.full((20,), math.nan)):
        with pytest.raises(InvalidInput, match="20 finite weights"):
            list(batches.epoch(0, 0, wrong))


# --- whole runs ---


def test_what_a_recipe_remembers_is_kept_and_the_run_goes_on_bit_for_bit(tmp_path):
    for kind in ("distilled", "acr"):
        whole = train(tmp_path / kind / "whole", kind)
        for stop_at in ((0, 0), (1, 0)):  # each after the first step of the next epoch
            train(tmp_path / kind / "parts", kind, stop_at=stop_at)
        train(tmp_path / kind / "parts", kind)
        assert same(weights(tmp_path / kind / "whole"), weights(tmp_path / kind / "parts"))
        assert {name.split(".")[0] for name in weights(tmp_path / kind / "whole")} == {"classifier", "generator"}
        kept = torch.load(tmp_path / kind / "parts" / "checkpoint.pt", weights_only=True)["recipe"]
        assert kept and same(kept, whole.recipe.state())


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    train(tmp_path / "run", "distilled", stop_at=(0, 0))
    (tmp_path / "run" / "config.toml").unlink()
    with pytest.raises(TrainingError, match="another model, generator or recipe"):
        train(tmp_path / "run", "augmentation")


def test_a_method_refuses_noise_that_it_is_not_for(tmp_path):
    with pytest.raises(InvalidInput, match="Gaussian"):
        train(tmp_path / "run", "macer", {"law": {"kind": "laplace", "scale": 0.5}})


def test_what_a_recipe_shows_is_logged(tmp_path):
    run = train(tmp_path / "run", "distilled", {"epochs": 1})
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["apart"] > 0 and mean_cost(run.recipe, 1) == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"generator": {"kind": "pattern"}},
        {"generator": {"kind": "composed", "features": 2, "growth": 2}},
        {"generator": {"kind": "certification-wise", "features": 2, "growth": 2}},
        {"generator": {"kind": "basis-wise", "leading": 20}},
        {"precision": "bf16-mixed"},
    ],
    ids=str,
)
def test_an_attack_works_with_every_noise_and_in_mixed_precision(tmp_path, changes):
    for kind in ("smoothadv", "acr"):
        train(tmp_path / kind, kind, {"epochs": 2, **changes})
        assert all(bool(v.isfinite().all()) for v in weights(tmp_path / kind).values())


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_recipes_that_ask_the_network_or_mix_inputs_train_in_every_precision(tmp_path, precision):
    """Looks at all inputs, and random shares, came in another type than the weights."""
    for kind in ("acr", "catrs", "smoothmix"):
        train(tmp_path / kind, kind, {"epochs": 2, "precision": precision}, count=62)
        assert all(bool(v.isfinite().all()) for v in weights(tmp_path / kind).values())


SEVERAL = """
import sys
sys.modules["torch.utils.tensorboard"] = None  # seconds to import
from test_recipes import train
for kind in sys.argv[2:]:
    train(sys.argv[1] + "/" + kind, kind, {"optimiser": "sgd", "lr": 0.05})
"""


def torchrun(folder, program, *words):
    """The program in two processes."""
    (folder / "program.py").write_text(program)
    path = os.pathsep.join([str(Path(ucan.__file__).parents[1]), str(Path(__file__).parent)])
    given = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py", *words]
    return subprocess.run(
        [sys.executable, *given],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_two_processes_train_any_method_as_one_does(tmp_path):
    """An odd batch, so that shares differ."""
    kinds = list(METHODS)
    done = torchrun(tmp_path, SEVERAL, "two", *kinds)
    assert done.returncode == 0, done.stderr[-4000:]
    for kind in kinds:
        train(tmp_path / "one" / kind, kind, {"optimiser": "sgd", "lr": 0.05})
        a, b = weights(tmp_path / "one" / kind), weights(tmp_path / "two" / kind)
        assert a.keys() == b.keys() and all(torch.allclose(a[k], b[k], atol=1e-5) for k in a), kind
        one, two = (
            torch.load(tmp_path / n / kind / "checkpoint.pt", weights_only=True)["recipe"] for n in ("one", "two")
        )
        assert one.keys() == two.keys() and all(torch.allclose(one[k], two[k], atol=1e-5) for k in one)


LEAVING = """
import atexit, os, sys, time
sys.modules["torch.utils.tensorboard"] = None
import torch
from test_recipes import train

class Slow:
    def __del__(self):
        time.sleep(1)  # while the thread that gives it back needs Python

def left():  # registered first, so called last
    tasks = os.listdir("/proc/self/task")
    names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in tasks]
    print([name for name in names if "gloo" in name], flush=True)

atexit.register(left)
kept = [train(sys.argv[1] + str(i), "augmentation", {"epochs": 1}, count=31) for i in range(2)]
tensor = torch.zeros(1000)
tensor.slow = Slow()
torch.distributed.all_reduce(tensor, async_op=True)
del tensor
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads by name")
@pytest.mark.slow
def test_processes_end_the_threads_between_them_before_python_exits(tmp_path):
    """Also while Trainers are still there; a thread that gives back a tensor after that would abort its process."""
    done = torchrun(tmp_path, LEAVING, "run")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("[]") == 2, done.stdout


def test_recipes_check_their_parameters():
    for wrong in ({"draws": True}, {"weight": True}, {"weight": math.inf}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            Consistency(**wrong)


TERMS = {"weight", "entropy", "diversity", "margins", "mse", "stability"}


@pytest.mark.parametrize(
    ("kind", "name"), [(k, f.name) for k in RECIPES.names() for f in fields(RECIPES.load(k)) if f.name in TERMS]
)
def test_no_term_of_a_loss_has_a_negative_weight(kind, name):
    with pytest.raises(InvalidInput, match=f"{name}.* 0 or "):
        RECIPES.load(kind)(**{name: -0.5})


def test_a_whole_number_is_asked_for_where_one_is_declared():
    @dataclass(frozen=True)
    class Twice(Consistency):
        times: int = 2
        share: float = 1

    assert Twice(share=0.5).share == 0.5
    with pytest.raises(InvalidInput, match=r"times must be a whole number, got 2\.5"):
        Twice(times=2.5)
