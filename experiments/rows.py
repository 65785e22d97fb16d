"""What is trained and what is asked of it, for every table and figure of the paper: one list, most important first.

A row is one training run (a preset with changes) and the claims to decide on the test set: "is the radius (or the ALM) in
this norm at least …?". One set of votes decides all claims of a row, so Gaussian noise, whose one region carries a radius
in every norm, fills the ℓ2, the ℓ1 and the ℓ∞ table at once. What ``CHOICES`` lists is chosen on a held-out part of the
training set; all else is set here by hand, before a row is run. Seeds are those of the presets, 0, unless a row says another.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from ucan.runs.levels import Claim

INF = math.inf
GRID = tuple(i / 4 for i in range(10))  # 0 … 2.25: the ℓ2 tables
L1 = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
LINF = tuple(i / 255 for i in (0, 2, 4, 6, 8, 10, 12, 14, 16))


@dataclass(frozen=True)
class Row:
    """One line of our tables."""

    name: str
    feeds: str  # the paper's table or figure
    preset: str
    changes: tuple[str, ...]
    claims: tuple[Claim, ...]
    inputs: int = 10_000  # how many test inputs are asked for at most
    n: int = 100_000  # votes an input may use at most
    choice: str | None = None  # whose outcome adds to the changes
    members: int = 1  # networks whose logits are averaged, trained alike from the seeds 0, 1, …
    mirrored: bool = False  # whether the logits at the picture and at its mirror image are averaged
    onto: str | None = None  # the row whose network (of the same seed) training begins with, instead of random weights

    @property
    def data(self) -> str:
        """The data set, the first word of every preset's name."""
        return self.preset.split("-")[0]

    @property
    def begins_with(self) -> dict[str, str]:
        """What a record says of the network that training begins with: nothing, if that is a random one."""
        return {} if self.onto is None else {"onto": self.onto}


@dataclass(frozen=True)
class Choice:
    """Options between which a held-out part of the training set decides, by mean certified accuracy over the levels above 0.

    Trained on the rest of the training set with fewer epochs; the first option is used until it is decided.
    """

    name: str
    preset: str
    changes: tuple[str, ...]
    options: tuple[tuple[str, ...], ...]
    claim: Claim
    held_out: float = 0.1
    inputs: int = 500
    n: int = 5_000


def run_name(preset: str, changes: tuple[str, ...] | list[str]) -> str:
    """The folder of a training run: rows that train alike share it."""
    return f"{preset}-{hashlib.sha256(repr(sorted(changes)).encode()).hexdigest()[:8]}" if changes else preset


def radius(*levels: float, norm: float = 2) -> Claim:
    """A claim on the radius."""
    return Claim(norm, "radius", (0.0, *(r for r in levels if r)))


def alm(*levels: float, norm: float = 2) -> Claim:
    """A claim on the ALM."""
    return Claim(norm, "alm", (0.0, *(r for r in levels if r)))


BOTH = (radius(*GRID), alm(*GRID))

# --- what must be reached: few levels, all of the test set ---

MNIST_GPU = ("model=resnet18", "epochs=12", "batch=256", "optimiser=sgd", "lr=0.1", "weight_decay=0.0005",
             "precision=bf16-mixed", "compile=true", "ema=0.99")  # fmt: skip
LIGHTER = ("epochs=40", "ema=0.998", 'recipe={kind="consistency", weight=10.0}')
PLAIN = ('recipe={kind="augmentation"}',)
REACH = [
    Row("cifar10-certification", "CIFAR-10 ℓ2, ℓ1, ℓ∞", "cifar10-certification-fast", (),
        (radius(0.5, 1.0, 1.5, 2.25), radius(0.5, 2.0, norm=1), radius(2 / 255, 8 / 255, norm=INF))),
    Row("cifar10-alm", "CIFAR-10 ℓ2", "cifar10-basis", (*PLAIN, "epochs=40", "batch=512", "lr=0.2", "ema=0.99"),
        (alm(0.5, 1.0, 1.5, 2.25), radius(0.1, 0.25)), choice="cifar10-alm"),
    Row("mnist-certification", "MNIST ℓ2", "mnist-certification-fast",
        (*MNIST_GPU, "generator.features=16", "generator.growth=16"), (radius(1.0, 2.25),), choice="mnist-certification"),
    Row("mnist-basis", "MNIST ℓ2", "mnist-basis-fast", MNIST_GPU, (alm(1.0, 2.25), radius(0.25, 0.5)), choice="mnist-basis"),
    Row("cifar10-certification-laplace", "CIFAR-10 ℓ1", "cifar10-certification-fast", ('law={kind="laplace", std=1.0}',),
        (radius(0.5, 1.0, 2.0, 4.0, norm=1),)),
    Row("cifar10-certification-uniform", "CIFAR-10 ℓ1", "cifar10-certification-fast", ('law={kind="uniform", std=1.0}',),
        (radius(0.5, 1.0, 1.5, norm=1),)),
    Row("cifar10-isotropic-0.25", "CIFAR-10 ℓ2", "cifar10-isotropic-fast", ("law.scale=0.25",), (radius(0.25, 0.5),)),
    Row("cifar10-isotropic-0.5", "CIFAR-10 ℓ2", "cifar10-isotropic-fast", ("law.scale=0.5",), (radius(0.5, 1.0),)),
    Row("cifar10-isotropic-1", "CIFAR-10 ℓ2", "cifar10-isotropic-fast", ("epochs=60", "ema=0.99"), (radius(0.5, 1.0),)),
    *(Row(f"cifar10-consistency-{sigma}", "CIFAR-10 ℓ2", "cifar10-consistency", (*LIGHTER, f"law.scale={sigma}"),
          (radius(level),), mirrored=True)
      for sigma, level in ((0.15, 0.25), (0.21, 0.5), (0.32, 0.75), (0.42, 1.0))),
    *(Row(f"cifar10-ensemble-{sigma}", "CIFAR-10 ℓ2", "cifar10-consistency", (*LIGHTER, f"law.scale={sigma}"),
          (radius(level),), members=4)
      for sigma, level in ((0.32, 0.75), (0.42, 1.0))),
    Row("cifar10-gaussian-0.08", "CIFAR-10 ℓ2", "cifar10-best-0", (), (radius(),), mirrored=True),
    Row("cifar10-consistency-0.12", "CIFAR-10 ℓ2", "cifar10-best-0.25", (), (radius(0.25),), mirrored=True),
    Row("cifar10-sphere-0.19", "CIFAR-10 ℓ2", "cifar10-best-0.5", (), (Claim(2, "radius", (0.5,)),), mirrored=True),
    Row("cifar10-sphere-0.3", "CIFAR-10 ℓ2", "cifar10-best-0.75", (), (Claim(2, "radius", (0.75,)),), mirrored=True),
    Row("cifar10-sphere-0.42", "CIFAR-10 ℓ2", "cifar10-sphere", ("epochs=45", "recipe.weight=8.0", "recipe.length=0.42"),
        (Claim(2, "radius", (1.0,)),), mirrored=True),
    Row("cifar10-sphere-drop-0.42", "CIFAR-10 ℓ2", "cifar10-sphere",
        ("epochs=60", "recipe.weight=8.0", "recipe.length=0.42", "recipe.drop=0.3"), (Claim(2, "radius", (1.0,)),),
        mirrored=True),
    Row("cifar10-sphere-on-0.42", "CIFAR-10 ℓ2", "cifar10-best-1.0", (), (Claim(2, "radius", (1.0,)),), mirrored=True,
        onto="cifar10-sphere-0.3"),
    Row("cifar10-ensemble-on-0.3", "CIFAR-10 ℓ2", "cifar10-ensemble-0.75", (), (Claim(2, "radius", (0.75,)),), members=4,
        onto="cifar10-consistency-0.21"),
    Row("cifar10-ensemble-on-0.42", "CIFAR-10 ℓ2", "cifar10-ensemble-1.0", (), (Claim(2, "radius", (1.0,)),), members=4,
        onto="cifar10-ensemble-on-0.3"),
    Row("cifar10-sphere-0.52", "CIFAR-10 ℓ2", "cifar10-sphere",
        ("law.scale=0.52", "epochs=56", "recipe.weight=8.0", "recipe.length=0.5", "recipe.drop=0.3"),
        (Claim(2, "radius", (1.25, 1.5)),), mirrored=True),
    Row("cifar10-sphere-0.54", "CIFAR-10 ℓ2", "cifar10-best-1.25", (), (Claim(2, "radius", (1.25, 1.5)),), mirrored=True,
        onto="cifar10-sphere-drop-0.42"),
    Row("cifar10-sphere-far-0.54", "CIFAR-10 ℓ2", "cifar10-best-1.25", (), (Claim(2, "radius", (1.739, 1.75)),),
        mirrored=True, onto="cifar10-sphere-drop-0.42"),  # the same network; 1.739 is 8/255 against ℓ∞
    Row("cifar10-sphere-far-0.57", "CIFAR-10 ℓ2", "cifar10-best-1.75", ("seed=2",),
        (Claim(2, "radius", (1.3042, 1.739, 1.75)),), mirrored=True, onto="cifar10-sphere-on-0.42"),  # 1.3042 is 6/255
    Row("cifar10-sphere-0.75", "CIFAR-10 ℓ2", "cifar10-best-2.0", (), (Claim(2, "radius", (1.75, 2.0, 2.25)),),
        mirrored=True, onto="cifar10-sphere-drop-0.42"),
    Row("cifar10-sphere-0.5", "CIFAR-10 ℓ2", "cifar10-sphere", ("law.scale=0.5", "epochs=50"), (radius(*GRID[:8]),)),
    Row("cifar10-sphere-1", "CIFAR-10 ℓ2", "cifar10-sphere",
        ("law.scale=1.0", "recipe.length=0.5", "recipe.drop=0.4", "epochs=70"), (radius(*GRID),)),
    Row("mnist-sphere-0.4", "MNIST ℓ2", "mnist-sphere", (), (radius(0.25, 0.5, 0.75, 1.0),), n=10_000),
    Row("mnist-sphere-0.55", "MNIST ℓ2", "mnist-sphere", ("law.scale=0.55", "recipe.length=0.35"), (radius(1.25, 1.5),),
        n=20_000),
    Row("mnist-sphere-0.75", "MNIST ℓ2", "mnist-sphere", ("law.scale=0.75", "recipe.length=0.5"),
        (radius(1.75, 2.0, 2.25),), n=20_000),
    Row("mnist-consistency-0.25", "MNIST ℓ2", "mnist-best-0.25", (), (radius(0.25, 0.5, 0.75),)),
    Row("mnist-consistency-0.37", "MNIST ℓ2", "mnist-best-0.25", ("law.scale=0.37", "shift=1"),
        (radius(0.25, 0.5, 0.75, 1.0),)),  # one network for all these radii
    Row("mnist-consistency-0.3", "MNIST ℓ2", "mnist-best-1.0",
        ("law.scale=0.3", 'recipe={kind="consistency", weight=10.0}', "epochs=50", "ema=0.999"),
        (Claim(2, "radius", (0.75,)),)),
    Row("mnist-smoothmix-0.25", "MNIST ℓ2", "mnist-best-0.75", (), (radius(0.25, 0.5, 0.75),)),
    Row("mnist-lenet-0.25", "MNIST ℓ2", "mnist-best-1.0", ("law.scale=0.25", "recipe.length=0.1"),
        (Claim(2, "radius", (0.25, 0.5, 0.75)),)),
    *(Row(f"mnist-lenet-{sigma}", "MNIST ℓ2", preset, (), (Claim(2, "radius", levels),))
      for sigma, preset, levels in ((0.4, "mnist-best-1.0", (1.0, 1.25)),
                                    (0.52, "mnist-best-1.5", (1.5, 1.75)), (0.68, "mnist-best-2.0", (2.0, 2.25)))),
    Row("mnist-catrs-0.57", "MNIST ℓ2", "mnist-best-1.75", (), (Claim(2, "radius", (1.5, 1.75)),)),
]  # fmt: skip

# --- anisotropic against isotropic: Gaussian, ℓ2, by radius and by ALM; the curves of the figure ---

CURVES = {"mnist": ("epochs=6",), "cifar10": ("epochs=10",)}  # enough to compare kinds of noise trained alike


def _versus(data: str) -> list[Row]:
    """One row for every kind of noise, the ablations without μ, and γ = 5 as the control."""
    plain = (*PLAIN, "ema=0.0", "batch=512", "lr=0.2") if data == "cifar10" else ()
    kinds = {
        "isotropic": ("isotropic", ()),
        "pattern-1": ("pattern", ("generator.norm=1",)),
        "pattern-2": ("pattern", ()),
        "pattern-inf": ("pattern", ("generator.norm=inf",)),
        "dataset": ("dataset", ()),
        "certification": ("certification", ()),
        "basis": ("basis", plain),
        "certification-alm-loss": ("certification", ("variance_term=logmean",)),
        "certification-no-offset": ("certification", ("generator.offset=false",)),
        "certification-gamma-5": ("certification", ("generator.gamma=5.0",)),
        "dataset-no-offset": ("dataset", ("generator.offset=false",)),
    }
    large = ("generator.features=8", "generator.growth=8") if data == "mnist" else ()
    return [
        Row(f"{data}-versus-{name}", "figure, anisotropic against isotropic",
            "cifar10-basis" if (data, kind) == ("cifar10", "basis") else f"{data}-{kind}-fast",
            (*CURVES[data], *(large if kind == "certification" else ()), *changes),
            (radius(0.5, 1.0, 2.25, 5.0, 10.0),) if name.endswith("gamma-5") else BOTH,
            1_000, 10_000, f"{data}-dataset" if kind == "dataset" else None)
        for name, (kind, changes) in kinds.items()
    ]  # fmt: skip


VERSUS = [*_versus("mnist"), *_versus("cifar10")]

# --- universality: every law at unit standard deviation against ℓ1 and ℓ∞, isotropic and each generator ---

LAWS = {
    "gaussian": (1, INF),
    "laplace": (1,),
    "expinf": (1, INF),
    "uniform": (1, INF),
    "powerlaw": (1,),
}
SMALL_LINF = (0.0, 2e-4, 5e-4, 1e-3, 2e-3, 4e-3)  # all that ExpInf and Uniform noise reach in 3,072 dimensions


def _universal() -> list[Row]:
    generators = {
        "isotropic": "cifar10-isotropic-fast",
        "certification": "cifar10-certification-fast",
        "pattern": "cifar10-pattern-fast",
        "dataset": "cifar10-dataset-fast",
    }
    rows = []
    for generator, preset in generators.items():
        for law, norms in LAWS.items():
            a = ", a=4000" if law == "powerlaw" else ""
            table = () if law == "gaussian" else (f'law={{kind="{law}", std=1.0{a}}}',)
            levels = {1: L1, INF: LINF if law == "gaussian" else SMALL_LINF}
            claims = tuple(Claim(q, by, levels[q]) for q in norms for by in ("radius", "alm"))
            choice = "cifar10-dataset" if generator == "dataset" else None
            name = f"cifar10-universal-{generator}-{law}"
            feeds = "figure, universality"
            rows.append(Row(name, feeds, preset, (*CURVES["cifar10"], *table), claims, 500, 10_000, choice))
    return rows


UNIVERSAL = _universal()

# --- beyond: what a pipeline can really hold ---

BEYOND = [
    Row("cifar10-bands", "beyond", "cifar10-basis",
        (*PLAIN, "epochs=40", "batch=512", "lr=0.2", "ema=0.99", "generator.leading=256", "generator.scale=[0.1, 1.0]",
         "generator.bands=8", "generator_lr=0.002", "variance_term=logmean", "variance_weight=0.3"),
        (alm(0.5, 1.0, 1.5, 2.25), radius(0.1, 0.25))),
]  # fmt: skip

ROWS = [*REACH, *VERSUS, *BEYOND, *UNIVERSAL]

# Splitting noise, all of whose draws are counted: by `ucan certify --bound exact` and keep.py, not by the suite.
COUNTED = [
    Row("cifar10-splitting-2", "CIFAR-10 ℓ1", "cifar10-splitting", ("law.scale=2.0", "epochs=40"),
        (radius(0.5, 1.0, 1.5, norm=1),)),
    Row("cifar10-splitting-plain-2", "CIFAR-10 ℓ1", "cifar10-splitting", ("law.scale=2.0", *PLAIN, "epochs=90"),
        (radius(0.5, 1.0, 1.5, norm=1),)),
    Row("cifar10-splitting-mirrored-1.3", "CIFAR-10 ℓ1", "cifar10-splitting", ("law.scale=1.3", *PLAIN, "epochs=80"),
        (radius(0.5, 1.0, norm=1),), mirrored=True),
    Row("cifar10-splitting-mirrored-2.2", "CIFAR-10 ℓ1", "cifar10-splitting", ("law.scale=2.2", *PLAIN, "epochs=80"),
        (radius(0.5, 1.0, 1.5, 2.0, norm=1),), mirrored=True),
]  # fmt: skip


def _leading(*pairs: tuple[int, float]) -> tuple[tuple[str, ...], ...]:
    return tuple((f"generator.leading={k}", f"generator.scale=[{s}, 1.0]") for k, s in pairs)


CHOICES = [
    Choice("mnist-certification", "mnist-certification-fast",
           (*MNIST_GPU, "generator.features=16", "generator.growth=16", "epochs=4"),
           (PLAIN, ('recipe={kind="consistency", weight=5.0}',)), radius(1.0, 2.25)),
    Choice("mnist-basis", "mnist-basis-fast", (*MNIST_GPU, "epochs=3"), _leading((60, 0.4), (60, 0.2), (60, 0.1)),
           alm(1.0, 2.25)),
    Choice("cifar10-alm", "cifar10-basis", (*PLAIN, "epochs=10", "batch=512", "lr=0.2", "ema=0.99"),
           _leading((256, 0.06), (256, 0.12), (512, 0.12)), alm(0.5, 1.0, 1.5, 2.25), n=10_000),
    Choice("mnist-dataset", "mnist-dataset-fast", CURVES["mnist"], (("variance_weight=0.3",), ("variance_weight=0.1",)),
           alm(1.0, 2.25)),
    Choice("cifar10-dataset", "cifar10-dataset-fast", ("epochs=6",), (("variance_weight=0.3",), ("variance_weight=0.1",)),
           alm(0.5, 1.0, 1.5, 2.25)),
]  # fmt: skip

# --- what a row costs, by what was measured on one H200 ---

EPOCH = {
    "isotropic": 1.4,
    "pattern": 1.4,
    "basis-wise": 1.4,
    "dataset-wise": 2.2,
    "certification-wise": 2.4,
    "composed": 3.2,
}
SECOND_DRAW = 2.3  # an epoch of consistency training, against one of plain noise training
VOTES = {"resnet18": 120_000, "cnn": 200_000}  # a second, bf16, not compiled; the cnn waits for the host
START = 35.0  # the first compilation, in every process
CNN_EPOCH = 1.0
INPUT = 0.004  # what is done for one input beside its votes
# p of the top class over the inputs of a smoothed classifier, as weights of Beta distributions: most are sure.
MIXTURE = ((0.35, 40, 0.4), (0.40, 5, 1.5), (0.25, 1, 3))


def train_seconds(model: str, generator: str, epochs: int, draws: int) -> float:
    """How long training should take."""
    each = CNN_EPOCH if model.startswith("cnn") else EPOCH[generator]
    return epochs * each * (SECOND_DRAW if draws > 1 else 1.0)


def certify_seconds(model: str, inputs: int, samples: float) -> float:
    """How long so many inputs should take, with so many votes each on average."""
    return inputs * (samples / VOTES.get(model, min(VOTES.values())) + INPUT)


def expected_samples(p0: np.ndarray, cap: int, alpha: float = 0.001, give_up: float = 0.001) -> float:
    """Votes an input needs on average until "p ≥ p₀" is decided for every p₀, if p is spread as ``MIXTURE`` says.

    To certify takes about (log 1/α + ½ log n + 1)/KL(p, p₀) votes. A p below the least that the cap certifies is given up
    when the votes tell it from that one, after about ½ z²/KL(p, least) of them.
    """
    if not len(p0):
        return 0.0
    price = math.log(1 / alpha) + 1
    low, high = p0, np.ones_like(p0)
    for _ in range(50):
        least = (low + high) / 2
        enough = _divergence(least, p0) * cap >= price + 0.5 * math.log(cap)
        low, high = np.where(enough, low, least), np.where(enough, least, high)
    steps = 200
    at = (np.arange(steps) + 0.5) / steps
    p = np.concatenate([stats.beta(a, b).ppf(at) for _, a, b in MIXTURE]).clip(1e-9, 1 - 1e-9)[:, None]
    weights = np.concatenate([np.full(steps, share / steps) for share, *_ in MIXTURE])
    to_certify = (price + 0.5 * np.log(np.maximum(price / _divergence(p, p0), 1))) / _divergence(p, p0)
    to_give_up = stats.norm.isf(give_up) ** 2 / 2 / _divergence(p, least)
    need = np.where(p > least, to_certify, to_give_up)
    return float(weights @ np.minimum(cap, need.max(1)))


def _divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p, q) of two coins, never 0."""
    found: np.ndarray = np.maximum(special.rel_entr(p, q) + special.rel_entr(1 - p, 1 - q), 1e-12)
    return found
