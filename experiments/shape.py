"""Where shape pays: isotropic against shaped noise, certified against boxes, at the same budget, network, training and n.

    python experiments/shape.py --quick                        (digits, about a minute on two cores)
    python experiments/shape.py --data mnist --out shape.json --seconds 1500 --choose-epochs 3

Every noise is Gaussian with Σ(1/σᵢ)² = d/λ², so all of one λ certify the same ℓ∞ ball at the same p; they differ only in where
the noise is. The classifier is the deployed pipeline (scope ``pipeline``): a fixed Σ, or composed noise. The network is shown
(y − mean)·std/(std² + σ²) in every row, isotropic noise included: a fixed map, so part of the classifier. Rows:

isotropic      σ = λ everywhere
shaped-P       σᵢ ∝ (stdᵢ + 0.05·max std)^(−P), closed form (Fixed.for_budget)
mask           isotropic noise on the pixels that ever change in the training set; the others, which the network is not shown
               (their std is 0, so their gain is), get noise of 100 λ. That is sound: their noise is part of Σ, and a change
               there costs (δ/100λ)² of the budget, the same as for any other Σ. Leaving them out altogether is the limit.
mask-often     the same for the pixels whose std is above a tenth of the largest
pattern-P      the paper's patterns κ‖(a, b)‖ₚ² + ι
learned        BudgetWise: σ learned at the fixed budget, from shaped-0.5 on
two-round      σ from the gradients of the first isotropic model (harm_of)
composed       adaptive: half of the budget for a first look, whose noise is shaped-0.75, too

The best λ of every row is chosen on a tenth of the training set, held out: for each level the λ with the highest certified
accuracy there. Then each is trained on the whole training set with every seed and certified on the test set: n₀ = 100 votes
choose the class, then up to n votes decide every level by bounds that hold whenever one looks, α = 0.001. What is undecided
counts as not certified. Records are written as they come, OUT.json, and not made again. With one λ nothing is chosen:

    python experiments/shape.py --data mnist --methods learned --scales 0.75 --levels 0 0.04 0.06 --weights DIR --out OUT.json

certifies at these levels alone, which takes fewer votes; several such processes can share a GPU, each with its own OUT.json
(``shape_records.py`` puts their records together). What --weights keeps of seed 0, ``shape_attacks.py`` attacks.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import ucan
from ucan import BudgetWise, Composed, Fixed, Gaussian, Generator, Pattern, data
from ucan.bench import machine
from ucan.bounds import log_wealth
from ucan.generators import Estimate, harm_of
from ucan.generators.shape import moments_of
from ucan.giving_up import Hopes, misses_allowed
from ucan.models.resnet import resnet18_small
from ucan.storage import write_whole
from ucan.training.batches import flip_and_crop
from ucan.training.joint import Joint
from ucan.training.recipes import Augmentation

ALPHA, N0 = 0.001, 100
OFF_MASK = 100.0  # the noise of pixels that are not shown, in λ
LEVELS = {
    "digits": (0.0, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08),
    "mnist": (0.0, 0.02, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12),
    "cifar10": (0.0, 2 / 255, 4 / 255, 6 / 255, 8 / 255),
}
CHOSEN_AT = {"digits": (0.04, 0.06, 0.08), "mnist": (0.04, 0.06, 0.08), "cifar10": (2 / 255, 4 / 255, 8 / 255)}
SCALES = {"digits": (0.2, 0.3, 0.5), "mnist": (0.5, 0.75, 1.0, 1.4), "cifar10": (0.12, 0.25, 0.5)}


# --- the noise of a row ---


@dataclass(frozen=True)
class Known:
    """What a noise may be made from: the training inputs with their mean and spread, the law, and a first model."""

    x: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor
    law: Gaussian
    first: tuple[nn.Module, Generator] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.mean.shape)

    def shown(self, sigma: Any) -> Fixed:
        """Fixed noise with the estimate of the input that every row is shown."""
        sigma = torch.as_tensor(sigma).double().expand(self.shape)
        sigma = sigma * (1 / sigma).square().mean().sqrt()  # mean 1/σ² = 1: the budget of the law's λ
        below = self.std.square() + (self.law.scale * sigma).square()
        return Fixed(sigma.float(), estimate=Estimate(torch.zeros(self.shape), self.std / below, self.mean))


def shaped(power: float) -> Callable[[Known], Generator]:
    return lambda known: known.shown(Fixed.for_budget(1.0, known.x, power=power).scale.sigma)


def masked(share: float) -> Callable[[Known], Generator]:
    return lambda known: known.shown(torch.where(known.std > share * known.std.max(), 1.0, OFF_MASK))


def pattern(norm: float, kappa: float) -> Callable[[Known], Generator]:
    return lambda known: known.shown(Pattern(known.shape, norm=norm, kappa=kappa).scale.sigma)


def two_rounds(known: Known) -> Generator:
    model, noise = known.first or (None, None)
    harm = harm_of(model, known.x[:2048], known.law, noise.to(known.x.device))
    return known.shown(Fixed.for_budget(torch.ones(known.shape), harm=harm.reshape(known.shape)).scale.sigma)


def learned(known: Known) -> Generator:
    start = Fixed.for_budget(1.0, known.x, power=0.5).scale.sigma
    return BudgetWise(known.shape, start=start, signal=(known.mean, known.std), noise=known.law.scale)


def composed(known: Known) -> Generator:
    prior = Fixed.for_budget(1.0, known.x, power=0.75).scale.sigma
    signal = (known.mean, known.std)
    return Composed(known.shape[0], share=0.5, spread=16.0, features=8, growth=8, prior=prior, signal=signal)


METHODS: dict[str, Callable[[Known], Generator]] = {
    "isotropic": lambda known: known.shown(1.0),
    "shaped-0.75": shaped(0.75),
    "shaped-0.5": shaped(0.5),
    "mask": masked(0.0),
    "mask-often": masked(0.1),
    "pattern-2": pattern(2, 1.0),
    "pattern-inf": pattern(math.inf, 4.0),
    "learned": learned,
    "two-round": two_rounds,
    "composed": composed,
    "shaped-1": shaped(1.0),
    "shaped-0.25": shaped(0.25),
}
QUICK = "isotropic,shaped-0.75,shaped-0.5,mask-often,pattern-inf,learned"


# --- network and training ---


def network(name: str, shape: tuple[int, ...]) -> nn.Module:
    if name == "digits":
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(shape), 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, 10),
        )
    if name == "cifar10":
        return resnet18_small(shape[0], 10)
    side = shape[-1] // 4
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 4, 2, 1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 4, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * side * side, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def trained(
    args: argparse.Namespace, known: Known, labels: torch.Tensor, make: Any, seed: int, epochs: int
) -> tuple[nn.Module, Any]:
    """Classifier and generator after training on the inputs with their noise."""
    torch.manual_seed(seed)
    device = known.x.device
    joint = Joint(network(args.data, known.shape), make(known), known.law, Augmentation(), "none", 0.0).to(device)
    if device.type == "cuda":
        joint.classifier.to(memory_format=torch.channels_last)
    groups = [{"params": joint.classifier.parameters(), "lr": args.lr}]
    own = list(joint.generator.parameters())
    if own:
        slow = joint.generator.redrawn
        groups.append({"params": own, "lr": args.lr if slow else 10 * args.lr, "weight_decay": 0.0})
    optimiser = torch.optim.AdamW(groups, weight_decay=1e-4)
    batch = min(args.batch, len(labels))
    steps = epochs * (len(labels) // batch)
    peaks = [group["lr"] for group in groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, peaks, total_steps=steps, pct_start=0.2)
    rng = torch.Generator(device).manual_seed(seed)
    joint.train()
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=rng, device=device)
        for part in order[: len(labels) // batch * batch].split(batch):
            x = flip_and_crop(known.x[part], rng) if args.data == "cifar10" else known.x[part]
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = joint(x, labels[part], rng)["loss"]
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
    joint.eval()
    return joint.classifier, joint.generator


# --- certification: all inputs side by side, and out as soon as every level is decided ---


@torch.no_grad()
def votes(model: Any, noise: Generator, law: Gaussian, x: torch.Tensor, n: int, rng: Any, rows: int) -> torch.Tensor:
    """How often each class was answered in n noisy copies of every input: (inputs, 10)."""
    counts = []
    for part in x.split(max(1, rows // n)):
        seen = torch.zeros(len(part), 10, dtype=torch.int64, device=x.device)
        for begun in range(0, n, rows):
            copies = noise.perturb(part, law, min(rows, n - begun), rng)
            shown = noise.view(copies.flatten(0, 1))
            if shown.is_cuda and shown.ndim == 4:  # as in training: the layout in which a GPU is fastest
                shown = shown.contiguous(memory_format=torch.channels_last)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
                answers = model(shown).argmax(1).reshape(copies.shape[:2])
            seen += nn.functional.one_hot(answers, 10).sum(0)
        counts.append(seen)
    return torch.cat(counts)


def certified(
    model: nn.Module, noise: Generator, law: Gaussian, x: torch.Tensor, labels: torch.Tensor, levels: tuple[float, ...],
    cap: int, seed: int, rows: int,
) -> tuple[np.ndarray, float]:  # fmt: skip
    """How many of the rising levels each input reaches (0 for a wrong class), and the mean number of votes."""
    rng = torch.Generator(x.device).manual_seed(seed)
    chosen = votes(model, noise, law, x, N0, rng, rows).argmax(1)
    reached = np.zeros(len(x), dtype=np.int64)
    open_ = torch.nonzero(chosen == labels)[:, 0]
    hits, drawn, used = np.zeros(len(open_), dtype=np.int64), 0, 0
    p0 = level_probabilities(noise, law, x[:1], levels)
    while len(open_) and drawn < cap:
        more = min(max(128, drawn // 4), cap - drawn)
        counts = votes(model, noise, law, x[open_], more, rng, rows).gather(1, chosen[open_, None])[:, 0]
        hits, drawn, used = hits + counts.cpu().numpy(), drawn + more, used + more * len(open_)
        enough = log_wealth(hits[:, None], drawn, p0[None]) >= math.log(1 / ALPHA)
        enough = np.logical_and.accumulate(enough, axis=1)
        where = open_.cpu().numpy()
        reached[where] = np.maximum(reached[where], enough.sum(1))
        allowed = np.array([misses_allowed(cap, ALPHA, p) for p in p0.tolist()])
        given_up = Hopes(cap, allowed[None]).lost((drawn - hits)[:, None], drawn)
        keep = ~(enough | given_up).all(1)
        open_, hits = open_[torch.from_numpy(keep).to(open_.device)], hits[keep]
    return reached, used / len(x)


def level_probabilities(noise: Generator, law: Gaussian, x: torch.Tensor, levels: tuple[float, ...]) -> np.ndarray:
    """The p at which each level of ε is certified: for Gaussian noise ε is a constant times the radius at p."""
    per_radius = noise.budget_factor(law, 0.75, 1.0, x) / law.radius(0.75, 2)
    return np.asarray(law.probability(np.array(levels) / per_radius, 2))


# --- the jobs ---


class Jobs:
    """Trains and certifies what is asked for, once; keeps a record of each in one JSON file."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.path, self.begun = args, Path(args.out), time.monotonic()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        train, test = data.load(args.data, "train"), data.load(args.data, "test")
        self.parts = {"choose": data.held_out(train, 0.1, seed=0), "final": (train, test)}
        about = {
            "data": args.data,
            "epochs": args.epochs,
            "choose_epochs": args.choose_epochs or args.epochs,
            "batch": args.batch,
            "lr": args.lr,
            "n": args.n,
            "every": args.every,
            "ucan": ucan.__version__,
        }
        self.record: dict[str, Any] = {"about": about, "machine": machine(self.device), "jobs": []}
        if self.path.exists():
            self.record = json.loads(self.path.read_text())
            if self.record["about"] != about:
                raise SystemExit(f"{self.path} has other settings, {self.record['about']}: name another file.")
        self.loaded: dict[str, Any] = {}
        self.models: dict[tuple[Any, ...], Any] = {}

    def inputs(self, stage: str) -> Any:
        """Training and evaluation inputs on the device."""
        if stage not in self.loaded:
            (x, y), (u, v) = (part.batch(torch.arange(len(part))) for part in self.parts[stage])
            some = slice(0, self.args.inputs * self.args.every or len(v), self.args.every)
            self.loaded[stage] = [t.to(self.device) for t in (x, y, u[some], v[some])]
        return self.loaded[stage]

    def left(self) -> float:
        return self.args.seconds - (time.monotonic() - self.begun)

    def run(self, stage: str, method: str, scale: float, seed: int) -> dict[str, Any] | None:
        """The record of one training and certification; None where there is no time left for it."""
        levels = self.args.levels or LEVELS[self.args.data]
        key = {"stage": stage, "method": method, "scale": scale, "seed": seed, "levels": list(levels)}
        for job in self.record["jobs"]:
            if all(job[name] == value for name, value in key.items()):
                return job
        if self.left() < 0:
            return None
        start = time.monotonic()
        _, _, u, v = self.inputs(stage)
        model, noise, law = self.train(stage, method, scale, seed)
        middle = time.monotonic()
        if stage == "final" and self.args.weights:
            keep(weights_path(self.args.weights, method, scale, seed), model, noise)
        cap = self.args.n if stage == "final" else min(self.args.n, 10_000)
        reached, mean_votes = certified(model, noise, law, u, v, tuple(levels), cap, seed, self.args.rows)
        shares = [float((reached > i).mean()) for i in range(len(levels))]
        sigma = noise(u[:1])[1] if not noise.redrawn else None
        extremes = [float(f) for f in torch.aminmax(sigma.sigma.detach())] if hasattr(sigma, "sigma") else None
        job = key | {
            "certified": shares, "inputs": len(u), "n": cap, "mean_votes": mean_votes,
            "sigma": extremes, "train_seconds": middle - start, "certify_seconds": time.monotonic() - middle,
        }  # fmt: skip
        self.record["jobs"].append(job)
        write_whole(self.path, json.dumps(self.record, indent=1).encode())
        shown = " ".join(f"{100 * share:5.1f}" for share in shares)
        took = f"{job['train_seconds']:.0f} + {job['certify_seconds']:.0f} s"
        print(f"{stage:6} {method:12} λ={scale:<5g} seed {seed}: {shown}  ({took})", flush=True)
        return job

    def train(self, stage: str, method: str, scale: float, seed: int) -> tuple[nn.Module, Generator, Gaussian]:
        x, y, _, _ = self.inputs(stage)
        law, first = Gaussian(scale), None
        if method == "two-round":
            first = self.models.get((stage, scale, seed)) or self.train(stage, "isotropic", scale, seed)[:2]
        known = Known(x, *(m.double().cpu() for m in moments_of(x)), law, first)
        epochs = self.args.epochs if stage == "final" else self.args.choose_epochs or self.args.epochs
        model, noise = trained(self.args, known, y, METHODS[method], seed, epochs)
        if method == "isotropic":
            self.models[(stage, scale, seed)] = (model, noise)
        return model, noise, law

    def all(self) -> None:
        args = self.args
        methods = args.methods.split(",")
        wanted: dict[str, list[float]] = {}
        for method in methods:
            scales = args.scales or list(SCALES[args.data])
            if len(scales) == 1:
                wanted[method] = scales
                continue
            tried = [job for scale in scales if (job := self.run("choose", method, scale, 0))]
            wanted[method] = sorted({best_scale(tried, level) for level in CHOSEN_AT[args.data]} if tried else [])
        for seed in range(args.seeds):
            for method in methods:
                for scale in wanted[method]:
                    self.run("final", method, scale, seed)
        print("\n" + table(self.record, CHOSEN_AT[args.data]))


def weights_path(folder: Path, method: str, scale: float, seed: int) -> Path:
    """Where the weights of a final job are kept."""
    return folder / f"{method}-{scale:g}-{seed}.pt"


def keep(path: Path, model: nn.Module, noise: Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"classifier": model.state_dict(), "generator": noise.state_dict()}, path)


def best_scale(jobs: list[dict[str, Any]], level: float) -> float:
    """The λ with the highest certified accuracy at a level."""
    return max(jobs, key=lambda job: job["certified"][job["levels"].index(level)])["scale"]


def table(record: dict[str, Any], chosen_at: tuple[float, ...]) -> str:
    """Certified accuracy in % by method and λ, the mean over seeds; * marks the λ chosen on held-out data for that level."""
    finals = [job for job in record["jobs"] if job["stage"] == "final"]
    if not finals:
        return "nothing is certified yet."
    levels = finals[0]["levels"]
    lines = [
        f"| noise | λ | σ | seeds |{'|'.join(f' {level:.3g} ' for level in levels)}|",
        "|---" * (4 + len(levels)) + "|",
    ]
    for method, scale in dict.fromkeys((job["method"], job["scale"]) for job in finals):
        jobs = [job for job in finals if (job["method"], job["scale"]) == (method, scale)]
        tried = [job for job in record["jobs"] if job["stage"] == "choose" and job["method"] == method]
        marks = ["*" if tried and level in chosen_at and best_scale(tried, level) == scale else "" for level in levels]
        means = 100 * np.mean([job["certified"] for job in jobs], axis=0)
        sigma = jobs[0]["sigma"]
        reach = "per copy" if sigma is None else f"{scale * sigma[0]:.2g} … {scale * sigma[1]:.2g}"
        cells = "|".join(f" {mean:.1f}{mark} " for mean, mark in zip(means, marks, strict=True))
        lines.append(f"| {method} | {scale:g} | {reach} | {len(jobs)} |{cells}|")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="digits, one λ, two seeds, few rows, n = 2,000")
    parser.add_argument("--data", default="mnist", choices=sorted(LEVELS))
    parser.add_argument("--out", default="shape.json")
    parser.add_argument("--methods", help="names with commas; by default all")
    parser.add_argument("--scales", type=float, nargs="*", help="λ to try; one alone is used without a choice")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--choose-epochs", type=int, help="for the choice of λ; by default as many")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--n", type=int, default=100_000, help="the most votes an input may use")
    parser.add_argument("--every", type=int, default=1, help="only every so-many-th input is certified")
    parser.add_argument("--inputs", type=int, default=0, help="only the first so many of these are certified")
    parser.add_argument("--levels", type=float, nargs="*", help="rising levels of ε; by default all of the data set's")
    parser.add_argument("--weights", type=Path, help="a folder to keep the weights of the final jobs in")
    parser.add_argument("--rows", type=int, default=65_536, help="noisy copies in one forward pass")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no job is begun after so many seconds")
    args = parser.parse_args()
    if args.quick:
        args.data, args.scales, args.seeds, args.n, args.rows = "digits", args.scales or [0.3], 2, 2_000, 8_192
        args.epochs, args.batch, args.methods = 100, 128, args.methods or QUICK
    args.methods = args.methods or ",".join(METHODS)
    torch.set_float32_matmul_precision("high")
    Jobs(args).all()


if __name__ == "__main__":
    main()
