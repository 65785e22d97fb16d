"""Laws: radii against a 50-digit Neyman–Pearson route of their own, samplers against their distributions."""

import math
from dataclasses import dataclass
from typing import ClassVar

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, special, stats

from ucan import ExpInf, Gaussian, InvalidInput, Laplace, Law, PowerLaw, Uniform, UnsupportedNorm

INF = math.inf
SCALE = 0.37
DIMS = (1, 2, 8, 784, 3072, 150528)
PROBABILITIES = (0.5 + 1e-12, 0.5001, 0.6, 0.75, 0.9, 0.99, 0.9999, 1 - 1e-6, 1 - 1e-12)
ROWS = [
    ("Gaussian", 1),
    ("Gaussian", 2),
    ("Gaussian", INF),
    ("Laplace", 1),
    ("ExpInf", 1),
    ("ExpInf", INF),
    ("Uniform", 1),
    ("Uniform", INF),
    ("PowerLaw", 1),
]
TAIL = 3.5  # a − d of the power laws under test


def make(name: str, dim: int, scale: float = SCALE) -> Law:
    if name == "PowerLaw":
        return PowerLaw(scale=scale, a=dim + TAIL)
    return {"Gaussian": Gaussian, "Laplace": Laplace, "ExpInf": ExpInf, "Uniform": Uniform}[name](scale=scale)


# --- the independent route: the probability that the worst classifier keeps after a shift, in 50 digits ---


def increasing_root(f, steps: int = 190):
    """The t > 0 with f(t) = 0, f increasing: bracketed by doubling, then halved, nothing else."""
    low, high = mp.mpf(0), mp.mpf(1)
    while f(high) < 0:
        low, high = high, 2 * high
    for _ in range(steps):
        middle = (low + high) / 2
        if f(middle) < 0:
            low = middle
        else:
            high = middle
    return high


def normal_cdf(t):
    return mp.erfc(-t / mp.sqrt(2)) / 2


def laplace_cdf(t):
    return mp.exp(t) / 2 if t < 0 else 1 - mp.exp(-t) / 2


def shifted_masses(name, norm, dim, scale, p_a, p_b):
    """Two functions of the radius: what the top class keeps at least, and what another class gains at most."""
    lam, d = mp.mpf(scale), mp.mpf(dim)
    half_line = {"Gaussian": normal_cdf, "Laplace": laplace_cdf}.get(name)
    if name == "ExpInf" and (norm == INF or dim == 1):  # along (1, …, 1) only (max + min)/2 moves, and it is Laplace
        half_line = laplace_cdf
    if half_line is not None:
        stretch = (mp.sqrt(d) if name == "Gaussian" and norm == INF else 1) / lam
        below_a = quantile(half_line, p_a)
        below_b = quantile(half_line, 1 - p_b)
        return lambda r: half_line(below_a - r * stretch), lambda r: 1 - half_line(below_b - r * stretch)
    if name == "Uniform":  # e1 for ℓ1, the corner for ℓ∞: what the two cubes do not share

        def lost(r):
            return 1 - max(1 - r / (2 * lam), mp.mpf(0)) ** (1 if norm == 1 else dim)
    else:  # only the face of e1 feels the shift: its mass is 1/(2d), its slope the log-density's on average
        slope = 1 / lam if name == "ExpInf" else (mp.mpf(dim + TAIL) - d) / lam

        def lost(r):
            return r * slope / (2 * d)

    return lambda r: p_a - lost(r), lambda r: p_b + lost(r)


def quantile(cdf, p):
    """Of a distribution symmetric about 0, by inverting its distribution function."""
    if p < mp.mpf(1) / 2:
        return -quantile(cdf, 1 - p)
    return increasing_root(lambda t: cdf(t) - p)


def true_radius(name, norm, dim, scale, p_a, p_b=None):
    with mp.workdps(50):
        p_a = mp.mpf(p_a)
        p_b = 1 - p_a if p_b is None else mp.mpf(p_b)
        keeps, gains = shifted_masses(name, norm, dim, scale, p_a, p_b)
        return increasing_root(lambda r: gains(r) - keeps(r))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(("name", "norm"), ROWS)
def test_radius_agrees_with_the_worst_case_in_fifty_digits(name, norm, dim):
    law = make(name, dim)
    for p in PROBABILITIES:
        truth = true_radius(name, norm, dim, SCALE, p)
        assert abs(law.radius(p, norm, dim) - truth) <= 1e-9 * truth, f"p = {p!r}"


@pytest.mark.parametrize("dim", (1, 2, 784, 150528))
@pytest.mark.parametrize(("name", "norm"), ROWS)
def test_two_class_radius_agrees_with_the_worst_pair_of_classes_in_fifty_digits(name, norm, dim):
    law = make(name, dim)
    for p_a, p_b in [(0.8, 0.1), (0.99, 0.001), (0.4, 0.3), (0.3, 1e-9), (0.5, 0.5 - 1e-9), (1 - 1e-9, 1e-12)]:
        truth = true_radius(name, norm, dim, SCALE, p_a, p_b)
        assert abs(law.radius(p_a, norm, dim, p_b) - truth) <= 1e-9 * truth, f"p_a = {p_a!r}, p_b = {p_b!r}"


@pytest.mark.parametrize(
    ("law", "norm", "radius"),
    [
        (Gaussian.from_std(1.0, dim=3072), 2, 3.811),
        (Gaussian.from_std(1.0, dim=3072), INF, 0.0688),
        (Laplace.from_std(1.0, dim=3072), 1, 6.284),
        (Uniform.from_std(1.0, dim=3072), 1, 1.732),
        (Uniform.from_std(1.0, dim=3072), INF, 0.00078),
        (ExpInf.from_std(1.0, dim=3072), 1, 1.731),
        (ExpInf.from_std(1.0, dim=3072), INF, 0.0050),
        (PowerLaw.from_std(1.0, dim=3072, a=4000), 1, 1.728),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Law) else str(v),
)
def test_largest_radii_at_unit_variance_are_the_published_ones(law, norm, radius):
    unit = 10.0 ** (math.floor(math.log10(radius)) - (1 if radius < 0.01 else 2 if radius < 1 else 3))
    assert law.radius(0.99993092, norm, 3072) == pytest.approx(radius, abs=unit)


def test_naive_uniform_radius_would_miss_the_accuracy():
    p, dim = 0.5001, 150528
    naive = 2 * SCALE * (1 - (1.5 - p) ** (1 / dim))
    truth = true_radius("Uniform", INF, dim, SCALE, p)
    assert abs(naive - truth) > 1e-9 * truth  # so the table above can tell the two apart


# --- Neyman–Pearson by brute force in two dimensions ---

DENSITIES = {
    "Gaussian": lambda z: np.exp(-(z**2).sum(0) / 2),
    "Laplace": lambda z: np.exp(-np.abs(z).sum(0)),
    "ExpInf": lambda z: np.exp(-np.abs(z).max(0)),
    "Uniform": lambda z: (np.abs(z).max(0) <= 1).astype(float),
    "PowerLaw": lambda z: (1 + np.abs(z).max(0)) ** -(2 + TAIL),
}


def kept_after(density, delta, p, half, cells=480):
    """The least probability, after the shift, of any set that has probability p before it (on a grid)."""
    axis = (np.arange(cells) + 0.5) * (2 * half / cells) - half
    z = np.stack(np.meshgrid(axis, axis, indexing="ij"))
    before = density(z).ravel()
    after = density(z - np.asarray(delta)[:, None, None]).ravel()
    total = before.sum()
    inside = before > 0
    before, after = before[inside] / total, after[inside] / total
    order = np.argsort(after / before)
    mass = np.cumsum(before[order])
    cut = int(np.searchsorted(mass, p))
    return after[order][:cut].sum() + (p - (mass[cut - 1] if cut else 0.0)) * (after / before)[order][cut]


def directions(norm):
    for t in np.linspace(-1, 1, 5):
        yield {1: (t, 1 - abs(t)), 2: (t, math.sqrt(1 - t * t)), INF: (t, 1.0)}[norm]


@pytest.mark.parametrize("p", (0.7, 0.9))
@pytest.mark.parametrize(("name", "norm"), ROWS)
def test_no_classifier_loses_the_class_within_the_radius_and_tight_rows_lose_it_beyond(name, norm, p):
    half = {"Gaussian": 7.0, "Uniform": 2.5, "PowerLaw": 12.0}.get(name, 12.0)
    radius = make(name, 2, scale=1.0).radius(p, norm, 2)

    def worst(r):
        return min(kept_after(DENSITIES[name], (r * v[0], r * v[1]), p, half) for v in directions(norm))

    assert worst(radius) >= 0.5 - 0.006
    if norm == INF or name not in ("ExpInf", "PowerLaw"):
        assert worst(1.1 * radius) < 0.5 - 0.006


def test_laplace_in_one_dimension_is_tight_by_brute_force():
    cells, p = 200_001, 0.9
    z = np.linspace(-30, 30, cells)
    radius = Laplace(scale=1.0).radius(p, 1, 1)

    def kept(r):
        before, after = np.exp(-np.abs(z)), np.exp(-np.abs(z - r))
        order = np.argsort(after / before)
        mass = np.cumsum(before[order]) / before.sum()
        return after[order][mass <= p].sum() / before.sum()

    assert optimize.brentq(lambda r: kept(r) - 0.5, 0.1, 5) == pytest.approx(radius, rel=2e-3)
    assert ExpInf(scale=1.0).radius(p, 1, 1) == Laplace(scale=1.0).radius(p, 1, 1)


@pytest.mark.parametrize("dim", (1, 2, 5))
@pytest.mark.parametrize("norm", (1, INF))
def test_uniform_radius_is_where_the_cubes_share_three_halves_minus_p(norm, dim):
    p, lam = 0.8, 0.7
    radius = Uniform(scale=lam).radius(p, norm, dim)
    rng = np.random.default_rng(0)
    worst = 1.0
    for _ in range(400):
        v = rng.normal(size=dim) * (rng.random(dim) < 0.7) + 1e-9
        v = np.abs(v) / np.linalg.norm(v, ord=norm)
        worst = min(worst, float(np.prod(1 - radius * v / (2 * lam))))
    extremal = np.eye(dim)[0] if norm == 1 else np.ones(dim)
    assert worst >= 1.5 - p - 1e-12
    assert float(np.prod(1 - radius * extremal / (2 * lam))) == pytest.approx(1.5 - p, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "dim", "tail", "p", "ratio"),
    [
        ("ExpInf", 2, None, 0.75, 1.036),
        ("ExpInf", 3, None, 0.8, 1.019),
        ("ExpInf", 8, None, 0.9, 1.0026),
        ("ExpInf", 50, None, 0.98, 1.0000),
        ("PowerLaw", 2, 3.5, 0.75, 1.065),
        ("PowerLaw", 50, 3.5, 0.99, 1.026),
        ("PowerLaw", 50, 1.5, 0.99, 1.127),
    ],
)
def test_l1_radius_of_radial_laws_is_sound_and_as_close_to_the_exact_one_as_theory_says(name, dim, tail, p, ratio):
    law = ExpInf(scale=1.0) if name == "ExpInf" else PowerLaw(scale=1.0, a=dim + tail)

    def density(u):  # of one coordinate
        if name == "ExpInf":
            return special.gammaincc(dim, u) / (2 * dim)
        return tail / (2 * dim) * stats.betaprime.sf(u, dim, tail + 1)

    def excess(r):
        return 2 * integrate.quad(density, 0, r / 2, epsabs=1e-12)[0] - (p - 0.5)

    exact = optimize.brentq(excess, 1e-9, 40 * dim, xtol=1e-12)
    table = law.radius(p, 1, dim)
    assert table <= exact * (1 + 1e-9)
    assert exact / table == pytest.approx(ratio, abs=6e-4)


# --- conventions ---


@pytest.mark.parametrize(("name", "norm"), ROWS)
def test_no_majority_certifies_nothing(name, norm):
    law = make(name, 8)
    assert law.radius(0.5, norm, 8) == 0.0
    assert law.radius(0.3, norm, 8) == 0.0
    assert law.radius(0.0, norm, 8) == 0.0
    assert law.radius(0.6, norm, 8, p_b=0.6) > 0  # p_b cannot exceed 1 − p
    assert law.radius(0.3, norm, 8, p_b=0.4) == 0.0
    assert law.radius(0.3, norm, 8, p_b=0.3) == 0.0


@pytest.mark.parametrize(("name", "norm"), ROWS)
def test_certainty_gives_the_radius_that_theory_states(name, norm):
    dim = 8
    bounded = {
        ("Uniform", 1): SCALE,
        ("Uniform", INF): 2 * SCALE * (1 - 2 ** (-1 / dim)),
        ("ExpInf", 1): dim * SCALE,
        ("PowerLaw", 1): dim * SCALE / TAIL,
    }
    assert make(name, dim).radius(1.0, norm, dim) == pytest.approx(bounded.get((name, norm), INF))


@pytest.mark.parametrize(("name", "norm"), ROWS)
@given(p=st.floats(0.5, 1.0), p_b=st.floats(0.0, 1.0), dim=st.sampled_from((1, 2, 50, 3072)))
def test_two_class_radius_is_never_below_the_binary_one_and_equals_it_when_clipped(name, norm, p, p_b, dim):
    law = make(name, dim)
    binary, two = law.radius(p, norm, dim), law.radius(p, norm, dim, p_b)
    assert two >= binary * (1 - 1e-12)
    if p_b >= 1 - p:
        assert two == binary


@pytest.mark.parametrize(("name", "norm"), ROWS)
@given(p=st.floats(0.5, 1 - 1e-12), q=st.floats(0.5, 1 - 1e-12), scale=st.floats(1e-3, 1e3))
def test_radius_grows_with_p_and_in_proportion_to_the_scale(name, norm, p, q, scale):
    low, high = sorted((p, q))
    law = make(name, 8)
    assert law.radius(low, norm, 8) <= law.radius(high, norm, 8) * (1 + 1e-12)
    assert make(name, 8, scale).radius(p, norm, 8) == pytest.approx(law.radius(p, norm, 8) * scale / SCALE, rel=1e-12)


@pytest.mark.parametrize(("name", "norm"), ROWS)
def test_arrays_are_taken_entry_by_entry(name, norm):
    law = make(name, 8)
    p = np.array([[0.2, 0.5, 0.6], [0.9, 0.99, 1 - 1e-9]])
    radii = law.radius(p, norm, 8)
    assert radii.shape == p.shape and radii.dtype == np.float64
    assert radii.tolist() == [[law.radius(float(v), norm, 8) for v in row] for row in p]
    assert isinstance(law.radius(0.9, norm, 8), float)
    assert law.radius(p[:, :1], norm, 8, p_b=np.array([0.0, 0.05])).shape == (2, 2)
    assert law.probability(radii, norm, 8).shape == p.shape


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(("name", "norm"), ROWS)
def test_probability_inverts_radius(name, norm, dim):
    law = make(name, dim)
    for p in PROBABILITIES:
        assert law.probability(law.radius(p, norm, dim), norm, dim) == pytest.approx(p, rel=0, abs=2e-15)
    assert law.probability(0.0, norm, dim) == 0.5


BOUNDED = [("Uniform", 1), ("Uniform", INF), ("ExpInf", 1), ("PowerLaw", 1)]


@pytest.mark.parametrize("scale", (1.0, 0.37, 0.1))
@pytest.mark.parametrize(
    ("name", "norm", "dim"),
    # in one dimension ExpInf is Laplace noise, whose radius has no bound
    [(*row, dim) for row in BOUNDED for dim in DIMS if (row[0], dim) != ("ExpInf", 1)],
)
def test_a_bounded_radius_is_reached_at_certainty_and_nan_beyond(name, norm, dim, scale):
    law = make(name, dim, scale)
    largest = law.radius(1.0, norm, dim)
    assert law.probability(largest * (1 - 1e-12), norm, dim) == pytest.approx(1.0, abs=1e-11)
    assert math.isnan(law.probability(largest * (1 + 1e-6), norm, dim))
    assert math.isnan(law.probability(largest * 10, norm, dim))
    assert math.isnan(law.probability(INF, norm, dim))


@pytest.mark.parametrize(("name", "norm"), [row for row in ROWS if row[0] in ("Gaussian", "Laplace")])
def test_an_infinite_radius_needs_certainty(name, norm):
    assert make(name, 8).probability(INF, norm, 8) == 1.0


@pytest.mark.parametrize(
    ("law", "norm", "known"),
    [
        (Laplace(scale=1.0), 2, ["ℓ1"]),
        (Laplace(scale=1.0), INF, ["ℓ1"]),
        (Uniform(scale=1.0), 2, ["ℓ1", "ℓ∞"]),
        (ExpInf(scale=1.0), 2, ["ℓ1", "ℓ∞"]),
        (PowerLaw(scale=1.0, a=20), INF, ["ℓ1"]),
        (Gaussian(scale=1.0), 3, ["ℓ1", "ℓ2", "ℓ∞"]),
    ],
    ids=str,
)
def test_a_norm_without_radius_is_refused_naming_those_with_one(law, norm, known):
    for call in (lambda: law.radius(0.9, norm, 8), lambda: law.probability(0.1, norm, 8)):
        with pytest.raises(UnsupportedNorm) as error:
            call()
        assert all(name in str(error.value).split("against", 2)[2] for name in known)
        assert type(law).__name__ in str(error.value)


RNG = torch.Generator()
INVALID = {
    "scale zero": lambda: Gaussian(scale=0.0),
    "scale negative": lambda: Laplace(scale=-1.0),
    "scale nan": lambda: Uniform(scale=math.nan),
    "scale infinite": lambda: ExpInf(scale=INF),
    "scale text": lambda: Gaussian(scale="1"),
    "a not above 1": lambda: PowerLaw(scale=1.0, a=1.0),
    "a nan": lambda: PowerLaw(scale=1.0, a=math.nan),
    "a infinite": lambda: PowerLaw(scale=1.0, a=INF),
    "a equal to d, radius": lambda: PowerLaw(scale=1.0, a=8).radius(0.9, 1, 8),
    "a below d, radius": lambda: PowerLaw(scale=1.0, a=7.5).radius(0.9, 1, 8),
    "a below d, probability": lambda: PowerLaw(scale=1.0, a=7.5).probability(0.1, 1, 8),
    "a below d, sample": lambda: PowerLaw(scale=1.0, a=7.5).sample(3, (2, 4), RNG),
    "a without variance, std": lambda: PowerLaw(scale=1.0, a=10).std(8),
    "a without variance, from_std": lambda: PowerLaw.from_std(1.0, dim=8, a=10.0),
    "std zero": lambda: Gaussian.from_std(0.0, dim=8),
    "std nan": lambda: Gaussian.from_std(math.nan, dim=8),
    "std infinite": lambda: Laplace.from_std(INF, dim=8),
    "p above 1": lambda: Gaussian(scale=1.0).radius(1.01),
    "p negative": lambda: Gaussian(scale=1.0).radius([-0.1, 0.9]),
    "p nan": lambda: Gaussian(scale=1.0).radius(math.nan),
    "p_b above 1": lambda: Gaussian(scale=1.0).radius(0.9, p_b=1.5),
    "p_b nan": lambda: Gaussian(scale=1.0).radius(0.9, p_b=math.nan),
    "dim zero": lambda: Gaussian(scale=1.0).radius(0.9, 2, 0),
    "dim fractional": lambda: Gaussian(scale=1.0).radius(0.9, 2, 2.5),
    "dim nan": lambda: Gaussian(scale=1.0).radius(0.9, 2, math.nan),
    "dim infinite": lambda: Gaussian(scale=1.0).radius(0.9, 2, INF),
    "radius negative": lambda: Gaussian(scale=1.0).probability(-0.1),
    "radius nan": lambda: Gaussian(scale=1.0).probability([0.1, math.nan]),
    "samples negative": lambda: Gaussian(scale=1.0).sample(-1, (3,), RNG),
    "empty event": lambda: Gaussian(scale=1.0).sample(3, (3, 0), RNG),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_arguments_are_refused(case):
    with pytest.raises(InvalidInput):
        INVALID[case]()


def test_a_norm_written_as_text_is_a_typed_error():
    with pytest.raises((UnsupportedNorm, InvalidInput)):
        Gaussian(scale=1.0).radius(0.9, norm="inf")


# --- a law of the user's own: one class, the inverse comes by bisection ---


@dataclass(frozen=True)
class Toy(Law):
    """Gaussian noise under another name; against ℓ∞ a made-up radius that ends at λ."""

    norms: ClassVar[tuple[float, ...]] = (2, INF)

    def _draw(self, n, dim, rng, dtype):
        return self.scale * torch.randn(n, dim, generator=rng, dtype=dtype)

    def _unit_std(self, dim):
        return 1.0

    def _radius(self, p_a, p_b, norm, dim):
        if norm == INF:
            return self.scale * (p_a - p_b)
        return self.scale * (special.ndtri(p_a) - special.ndtri(p_b)) / 2


def test_default_inverse_bisects_to_the_smallest_p_that_reaches_the_radius():
    law = Toy(scale=SCALE)
    radii = np.array([1e-9, 0.01, 0.5, 2.0])
    p = law.probability(radii, 2, 8)
    assert p == pytest.approx(special.ndtr(radii / SCALE), abs=1e-15)
    assert (law.radius(p, 2, 8) >= radii).all()
    assert (law.radius(p - 1e-12, 2, 8) < radii).all()
    assert law.probability(0.0, 2, 8) == 0.5
    assert law.probability(0.5 * SCALE, INF, 8) == pytest.approx(0.75)


def test_default_inverse_is_nan_where_no_p_reaches_the_radius():
    result = Toy(scale=SCALE).probability(np.array([SCALE, SCALE * 1.001]), INF, 8)
    assert result[0] == 1.0 and math.isnan(result[1])
    assert isinstance(Toy(scale=SCALE).probability(0.1, INF, 8), float)


# --- samplers ---

SAMPLERS = ("Gaussian", "Laplace", "Uniform", "ExpInf", "PowerLaw")
SAMPLE_DIMS = (1, 2, 8, 784)
DRAWS = {1: 20_000, 2: 20_000, 8: 20_000, 784: 4_000}


def sampler(name, dim):
    return PowerLaw(scale=SCALE, a=dim + 9.5) if name == "PowerLaw" else make(name, dim)


def draw(name, dim, seed=1, n=None, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    return sampler(name, dim).sample(n or DRAWS[dim], (dim,), rng, dtype)


def coordinate_cdf(name, dim):
    """Distribution function of one coordinate at λ = 1."""

    def radial(mass_below):
        return lambda z: 0.5 + np.sign(z) * mass_below(np.abs(z)) / 2

    if name == "ExpInf":  # the integral of Q(d, u)/d
        return radial(lambda u: u * special.gammaincc(dim, u) / dim + special.gammainc(dim + 1, u))
    if name == "PowerLaw":  # the integral of (a−d)/d · P(BetaPrime(d, a+1−d) > u)
        tail = 9.5
        return radial(
            lambda u: tail / dim * u * stats.betaprime.sf(u, dim, tail + 1) + stats.betaprime.cdf(u, dim + 1, tail)
        )
    return {"Gaussian": stats.norm.cdf, "Laplace": stats.laplace.cdf, "Uniform": stats.uniform(-1, 2).cdf}[name]


def size_and_cdf(name, dim, z):
    """A norm of the whole draw, and its distribution: this is where dependence between coordinates shows."""
    match name:
        case "Gaussian":
            return (z**2).sum(1), stats.chi2(dim).cdf
        case "Laplace":
            return z.abs().sum(1), stats.gamma(dim).cdf
        case "Uniform":
            return z.abs().amax(1), stats.beta(dim, 1).cdf
        case "ExpInf":
            return z.abs().amax(1), stats.gamma(dim).cdf
        case _:
            return z.abs().amax(1), stats.betaprime(dim, 9.5).cdf


@pytest.mark.parametrize("dim", SAMPLE_DIMS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_coordinate_follows_its_marginal(name, dim):
    z = draw(name, dim).numpy() / SCALE
    for i in sorted({0, dim // 2, dim - 1}):
        assert stats.kstest(z[:, i], coordinate_cdf(name, dim)).pvalue > 1e-3


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("dim", SAMPLE_DIMS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_norm_of_a_draw_follows_its_distribution(name, dim, dtype):
    size, cdf = size_and_cdf(name, dim, draw(name, dim, seed=2, dtype=dtype).double() / SCALE)
    assert stats.kstest(size.numpy(), cdf).pvalue > 1e-3


@pytest.mark.parametrize("dim", SAMPLE_DIMS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_with_a_bounded_error_follow_the_same_distributions(name, dim):
    law, rng = sampler(name, dim), torch.Generator().manual_seed(6)
    uniform = torch.empty(DRAWS[dim], law.uniforms(dim), dtype=torch.float64).uniform_(generator=rng)
    before = uniform.clone()
    z = law.units(uniform, dim)
    assert torch.equal(uniform, before)
    assert stats.kstest(z[:, dim // 2].numpy(), coordinate_cdf(name, dim)).pvalue > 1e-3
    size, cdf = size_and_cdf(name, dim, z)
    assert stats.kstest(size.numpy(), cdf).pvalue > 1e-3
    assert float(z.abs().max()) <= law.draw_error(dim, 1).reach


@pytest.mark.parametrize("dim", SAMPLE_DIMS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_std_is_that_of_the_draws_and_from_std_meets_it(name, dim):
    law = sampler(name, dim)
    squares = (draw(name, dim, seed=3) ** 2).mean(1)  # one independent number a draw, whatever binds its coordinates
    error = float(squares.std()) / math.sqrt(len(squares))
    assert abs(float(squares.mean()) - law.std(dim) ** 2) < 4 * error
    assert error < 0.05 * law.std(dim) ** 2
    parameters = {"a": law.a} if isinstance(law, PowerLaw) else {}
    unit = type(law).from_std(1.0, dim=dim, **parameters)
    assert unit.std(dim) == pytest.approx(1.0, rel=1e-12)
    z = unit.sample(DRAWS[dim], (dim,), torch.Generator().manual_seed(4), torch.float64)
    assert float((z**2).mean()) == pytest.approx(1.0, abs=6 * error / law.std(dim) ** 2)


def test_from_std_names_the_parameters_that_a_law_has():
    with pytest.raises(InvalidInput, match=r"PowerLaw.from_std: .* are a="):
        PowerLaw.from_std(1.0, dim=10)
    with pytest.raises(InvalidInput, match=r"Gaussian.from_std: .* are none"):
        Gaussian.from_std(1.0, dim=10, a=3.0)


@pytest.mark.parametrize(
    ("law", "scale"),
    [
        (Gaussian.from_std(2.0, dim=10), 2.0),
        (Laplace.from_std(2.0, dim=10), 2 / math.sqrt(2)),
        (Uniform.from_std(2.0, dim=10), 2 * math.sqrt(3)),
        (ExpInf.from_std(2.0, dim=10), 2 * math.sqrt(3 / (11 * 12))),
        (PowerLaw.from_std(2.0, dim=10, a=20.0), 2 * math.sqrt(3 * 9 * 8 / (11 * 12))),
    ],
    ids=lambda v: type(v).__name__,
)
def test_unit_variance_scales_are_the_closed_forms(law, scale):
    assert law.scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("dim", (2, 8))
@pytest.mark.parametrize("name", SAMPLERS)
def test_signs_and_coordinates_are_symmetric(name, dim):
    z = draw(name, dim, seed=5)
    n = len(z)
    for i in range(dim):
        assert stats.binomtest(int((z[:, i] > 0).sum()), n, 0.5).pvalue > 1e-3
    largest = z.abs().argmax(1)
    assert stats.chisquare(torch.bincount(largest, minlength=dim).numpy()).pvalue > 1e-3
    positive = int((z[torch.arange(n), largest] > 0).sum())
    assert stats.binomtest(positive, n, 0.5).pvalue > 1e-3
    agree = int((z[:, 0].sign() == z[:, 1].sign()).sum())
    assert stats.binomtest(agree, n, 0.5).pvalue > 1e-3


def test_middle_of_exponential_noise_is_laplace():
    """(max + min)/2 is Laplace in every dimension: what makes the ℓ∞ radius exact."""
    z = draw("ExpInf", 8, seed=6) / SCALE
    assert stats.kstest(((z.amax(1) + z.amin(1)) / 2).numpy(), stats.laplace.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_have_the_shape_and_dtype_asked_for_and_repeat_with_their_seed(name):
    law = sampler(name, 12)
    first, again, other = (law.sample(5, (3, 2, 2), torch.Generator().manual_seed(s)) for s in (7, 7, 8))
    assert first.shape == (5, 3, 2, 2) and first.dtype == torch.float32
    assert torch.equal(first, again) and not torch.equal(first, other)
    fine = law.sample(200, (3, 2, 2), torch.Generator().manual_seed(7), torch.float64)
    assert fine.dtype == torch.float64
    assert (fine != fine.float().double()).float().mean() > 0.9  # float64 all the way, not widened float32
    assert law.sample(0, (3, 2, 2), torch.Generator()).shape == (0, 3, 2, 2)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("n", (1, 3, 50))
@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_written_in_place_are_the_same_draws(name, n, dtype):
    law = sampler(name, 12)
    out = torch.full((2, n, 3, 2, 2), math.nan, dtype=dtype)
    law.sample_into(out[1], torch.Generator().manual_seed(7))
    assert torch.equal(out[1], law.sample(n, (3, 2, 2), torch.Generator().manual_seed(7), dtype))
    assert out[0].isnan().all()


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampling_leaves_the_global_generator_alone(name):
    before = torch.get_rng_state()
    draw(name, 8, n=10)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "law, norm, free",
    [
        (Gaussian(0.5), 2, True),
        (Gaussian(0.5), 1, True),
        (Gaussian(0.5), math.inf, False),
        (Laplace(0.5), 1, True),
        (Uniform(0.5), 1, True),
        (Uniform(0.5), math.inf, False),
        (ExpInf(0.5), 1, False),
        (ExpInf(0.5), math.inf, True),
        (PowerLaw(0.5, a=5000.0), 1, False),
    ],
)
def test_a_dimension_may_be_left_out_only_where_it_makes_no_difference(law: Law, norm: float, free: bool) -> None:
    if free:
        assert law.radius(0.9, norm) == law.radius(0.9, norm, 3072)
        assert law.probability(0.1, norm) == law.probability(0.1, norm, 3072)
    else:
        for ask in (law.radius, law.probability):
            with pytest.raises(InvalidInput, match="depends on the dimension: give dim="):
                ask(0.6, norm)


def test_numbers_of_numpy_are_numbers() -> None:
    law = Gaussian(np.float32(0.5))
    assert law == Gaussian(0.5) and type(law.scale) is float
    with pytest.raises(InvalidInput, match="scale must be"):
        Gaussian(True)
