"""Sound arithmetic: noise in whole steps against its ideal law, claims against exact enumeration, errors against mpmath."""

import functools
import itertools
import math

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import special, stats

import ucan
from ucan import (
    ExpInf,
    Fixed,
    Gaussian,
    InvalidInput,
    Laplace,
    Law,
    PowerLaw,
    SmoothedClassifier,
    Uniform,
    data,
    scales,
)
from ucan.arithmetic import Grid, changes_in_words, step_of, unit_draws
from ucan.bounds import lower_bound, upper_bound
from ucan.generators.base import Held
from ucan.laws.radial import tree_sum
from ucan.scales.contract import contract, contract_error
from ucan.scales.dct import exact_cosine_matrix

INF = math.inf
STEP = 0.25


def law_of(name: str, dim: int, std: float = 0.5) -> Law:
    kind = getattr(ucan, name)
    return kind.from_std(std, dim, a=dim + 4.5) if name == "PowerLaw" else kind.from_std(std, dim)


LAWS = ("Gaussian", "Laplace", "Uniform", "ExpInf", "PowerLaw")
NORM = {"Gaussian": 2, "Laplace": 1, "Uniform": 1, "ExpInf": 1, "PowerLaw": 1}


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def copies(g: SmoothedClassifier, x: torch.Tensor, blocks: int, n: int) -> torch.Tensor:
    """Noisy copies (blocks·n, *event) of one input (1, *event), as the votes see them."""
    out = x.new_empty(blocks, n, *x.shape[1:])
    assert g.grid is not None
    g.M.at(x).perturb_on_grid(out, x, g.law, [rng(i) for i in range(blocks)], g.grid)
    return out.flatten(0, 1)


# --- ideal rounded noise, by integration ---


def density(law: Law, z: np.ndarray) -> np.ndarray:
    """Of the law at points (d, …), written down from its definition."""
    dim, lam = len(z), law.scale
    if isinstance(law, Gaussian):
        return np.exp(-(z**2).sum(0) / (2 * lam**2)) / (lam * math.sqrt(2 * math.pi)) ** dim
    if isinstance(law, Laplace):
        return np.exp(-np.abs(z).sum(0) / lam) / (2 * lam) ** dim
    size = np.abs(z).max(0)
    if isinstance(law, Uniform):
        return (size <= lam) / (2 * lam) ** dim
    if isinstance(law, ExpInf):
        return np.exp(-size / lam) / ((2 * lam) ** dim * math.gamma(dim + 1))
    assert isinstance(law, PowerLaw)
    a = law.a
    return (1 + size / lam) ** -a / ((2 * lam) ** dim * dim * special.beta(dim, a - dim))


def cell_masses(law: Law, matrix: np.ndarray, mean: np.ndarray, reach: int) -> np.ndarray:
    """P(round((μ + Σε)/step) = k) for all k in [−reach, reach]^d, by the midpoint rule."""
    dim = len(mean)
    fine = 4000 if dim == 1 else 48
    points = (np.arange((2 * reach + 1) * fine) + 0.5) / fine - reach - 0.5  # in steps
    away = [points * STEP - m for m in mean]
    mesh = np.stack([sum(np.ix_(*(a * w for a, w in zip(away, row, strict=True)))) for row in np.linalg.inv(matrix)])
    values = density(law, mesh) / abs(np.linalg.det(matrix)) * (STEP / fine) ** dim
    shape = [n for _ in range(dim) for n in (2 * reach + 1, fine)]
    return values.reshape(shape).sum(tuple(range(1, 2 * dim, 2)))


MATRICES = {
    "scalar": lambda dim: (1.0, np.eye(dim)),
    "diagonal": lambda dim: (torch.tensor([0.7, 1.3][:dim]), np.diag(np.float32([0.7, 1.3][:dim]).astype(float))),
    "dense": lambda dim: (
        scales.Dense(torch.tensor([[1.0, 0.5], [-0.25, 0.75]])[:dim, :dim]),
        np.array([[1.0, 0.5], [-0.25, 0.75]])[:dim, :dim],
    ),
}
CASES = [(name, shape, dim) for name in LAWS for shape in MATRICES for dim in (1, 2)]


@functools.cache
def ideal(name: str, shape: str, dim: int, reach: int = 24) -> tuple[Law, Fixed, np.ndarray]:
    law, (scale, matrix) = law_of(name, dim), MATRICES[shape](dim)
    mean = torch.tensor([0.1, -0.05][:dim])
    return law, Fixed(scale, mean), cell_masses(law, matrix, mean.double().numpy(), reach)


@pytest.mark.parametrize(("name", "shape", "dim"), CASES)
def test_noise_in_whole_steps_has_the_probabilities_of_ideal_rounded_noise(name, shape, dim):
    reach, n = 24, 60_000
    law, generator, masses = ideal(name, shape, dim, reach)
    g = SmoothedClassifier(lambda y: y, law, generator, 2, step=STEP)
    x = torch.full((1, dim), 3 * STEP)
    k = (copies(g, x, 1, n) / STEP).round().long() - 3
    inside = (k.abs() <= reach).all(1)
    seen = np.zeros_like(masses)
    np.add.at(seen, tuple((k[inside] + reach).numpy().T), 1)
    expected = n * masses
    often = expected >= 10
    observed = np.append(seen[often], n - seen[often].sum())
    wanted = np.append(expected[often], max(n - expected[often].sum(), 1e-9))
    if wanted[-1] < 5:
        observed, wanted = observed[:-1], wanted[:-1] * observed[:-1].sum() / wanted[:-1].sum()
    assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4


# --- claims on a coarse grid, against exact enumeration ---


def answer(kind: str, k: np.ndarray) -> np.ndarray:
    """Classifiers of grid points (…, d): a half-space, stripes, a hash of the point."""
    if kind == "half-space":
        return (k.sum(-1) > 1).astype(int)
    if kind == "stripes":
        return ((k[..., 0] // 5) % 2 == 0).astype(int)
    return ((k * np.array([73, 19][: k.shape[-1]])).sum(-1) % 7 < 5).astype(int)


@pytest.mark.parametrize(("name", "shape", "dim"), CASES)
@pytest.mark.parametrize("kind", ["half-space", "stripes", "hash"])
def test_no_grid_point_inside_a_claimed_region_loses_the_class(name, shape, dim, kind):
    reach, span = 24, 6
    law, generator, masses = ideal(name, shape, dim, reach)
    lost = 1 - masses.sum()  # beyond the table, and what the midpoint rule is off by: counted against every claim
    noise = np.stack(np.meshgrid(*[np.arange(-reach, reach + 1)] * dim, indexing="ij"), -1)
    places = list(itertools.product(range(-span, span + 1), repeat=dim))
    first = {at: float((masses * (answer(kind, noise + at) == 1)).sum()) for at in places}

    def model(y: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(answer(kind, (y / STEP).round().long().numpy()))

    g = SmoothedClassifier(model, law, generator, 2, step=STEP)
    starts = [at for at in places if max(map(abs, at)) <= 3]
    x = STEP * torch.tensor(starts, dtype=torch.float32)
    outcomes = g.certify(x, n0=50, n=1000, norm=NORM[name], alpha=1e-5)
    certified = 0
    for at, c in zip(starts, outcomes, strict=True):
        if c.abstained:
            continue
        certified += 1
        p = first[at] if c.prediction == 1 else 1 - first[at]
        assert c.p_lower <= p + lost + 1e-3  # α = 1e-5, and the midpoint rule
        deltas = STEP * (torch.tensor(places, dtype=torch.float64) - torch.tensor(at, dtype=torch.float64))
        for place, inside in zip(places, c.region.contains(deltas).tolist(), strict=True):
            there = first[place] if c.prediction == 1 else 1 - first[place]
            assert not inside or there > 0.5 - abs(lost) - 1e-3
    assert certified > 0


# --- the attack that floating point allows ---


def test_a_classifier_that_reads_which_floats_occur_has_a_false_certificate_in_real_arithmetic_and_none_on_the_grid():
    level = torch.tensor(1 / 255)

    def reader(y: torch.Tensor) -> torch.Tensor:
        """Class 1 if every pixel could be float32 noise added to one grey level, class 0 if some could not."""
        return ((y - level) + level == y).flatten(1).all(1).long()

    black, grey = torch.zeros(1, 784), torch.full((1, 784), 1 / 255)
    change = (grey - black).double()
    real = SmoothedClassifier(reader, Gaussian(0.25), num_classes=2)
    (claim,) = real.certify(black, n=2000)
    assert claim.prediction == 0 and bool(claim.region.contains(change)[0])
    assert real.predict(grey)[0].prediction == 1  # the real certificate is false
    grid = SmoothedClassifier(reader, Gaussian(0.25), num_classes=2, step=1 / 255)
    (sound,) = grid.certify(black, n=2000)
    assert not sound.abstained and bool(sound.region.contains(change)[0])
    assert grid.predict(grey)[0].prediction == sound.prediction


def test_what_the_classifier_sees_is_the_same_set_of_floats_wherever_the_input_is():
    g = SmoothedClassifier(lambda y: y, Gaussian(0.25), num_classes=2, step=1 / 255)
    table = {float(v) for v in g.grid.floats(torch.arange(-2000, 2000, dtype=torch.float64), torch.float32)}
    for k in (0, 1, 17, 255):
        seen = copies(g, torch.full((1, 3), k / 255), 2, 500)
        assert {float(v) for v in seen.flatten()} <= table


def test_sums_are_exact_whole_numbers_and_do_not_look_at_the_input():
    step = 1 / 255
    g = SmoothedClassifier(lambda y: y, Gaussian(0.25), num_classes=2, step=step)
    noise = [(copies(g, torch.full((1, 5), k / 255), 2, 64).double() / step).round() - k for k in (0, 3, 200)]
    assert torch.equal(noise[0], noise[1]) and torch.equal(noise[0], noise[2])


# --- errors, against mpmath from the same uniform numbers ---


def exact_units(law: Law, u: list[float], dim: int) -> list[mp.mpf]:
    """``law.units`` in exact arithmetic."""
    u = [mp.mpf(v) for v in u]
    if isinstance(law, Gaussian):
        pairs = (dim + 1) // 2
        r = [mp.sqrt(-2 * mp.log(1 - v)) for v in u[:pairs]]
        angle = [mp.pi * (2 * v - 1) for v in u[pairs:]]
        cosines = [a * mp.cos(b) for a, b in zip(r, angle, strict=True)]
        return (cosines + [a * mp.sin(b) for a, b in zip(r, angle, strict=True)])[:dim]
    if isinstance(law, Laplace):
        return [mp.sign(2 * v - 1) * -mp.log(abs(2 * v - 1)) for v in u]
    if isinstance(law, Uniform):
        return [2 * v - 1 for v in u]
    z = [2 * v - 1 for v in u[:dim]]
    z[int(u[dim] * dim)] = mp.mpf(-1 if u[dim + 1] < 0.5 else 1)
    tail = u[dim + 2 :]
    rho = sum(-mp.log(1 - v) for v in tail[:dim])
    if isinstance(law, PowerLaw):
        whole, part = law._tail(dim)
        below = sum((-mp.log(1 - v) for v in tail[dim : dim + whole]), mp.mpf(0))
        if part:
            start = special.gammaincinv(part, float(tail[-1]))
            below += mp.findroot(lambda t: mp.gammainc(part, 0, t, regularized=True) - tail[-1], start)
        rho = rho / below
    return [rho * v for v in z]


EVENT = (2, 2, 3)
DIM = 12


def every_scale() -> dict[str, scales.Scale]:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng(5))

    positive = 0.2 + torch.rand(DIM, generator=rng(6))
    return {
        "Scalar": scales.Scalar(0.7),
        "Diagonal": scales.Diagonal(positive),
        "Dense": scales.Dense(random(DIM, DIM)),
        "Basis": scales.Basis(torch.linalg.qr(random(DIM, DIM).double())[0], positive.double()),
        "DCT": scales.DCT(positive.reshape(EVENT)),
        "LowRank": scales.LowRank(positive, random(DIM, 3)),
        "BlockDiagonal": scales.BlockDiagonal([random(5, 5), random(7, 7)]),
    }


def exact_matrix(scale: scales.Scale) -> mp.matrix:
    """Σ as its stored numbers say, to 60 digits."""
    if not isinstance(scale, scales.DCT):
        if isinstance(scale, scales.LowRank):
            f = mp.matrix(scale.factor.double().tolist())
            return mp.diag(scale.diag.double().tolist()) + f * f.T
        if isinstance(scale, scales.Basis):
            return mp.matrix(scale.basis.double().tolist()) * mp.diag(scale.s.double().tolist())
        return mp.matrix(scale.dense(DIM).tolist())
    c, high, wide = EVENT
    out = mp.matrix(DIM, DIM)

    def cosine(k: int, i: int, size: int) -> mp.mpf:
        return mp.cos(mp.pi * (i + mp.mpf(1) / 2) * k / size) * mp.sqrt(mp.mpf(1 if k == 0 else 2) / size)

    for ch, i, j, k, m in itertools.product(range(c), range(high), range(wide), range(high), range(wide)):
        row, column = (ch * high + i) * wide + j, (ch * high + k) * wide + m
        out[row, column] = cosine(k, i, high) * cosine(m, j, wide) * mp.mpf(float(scale.s[ch, k, m]))
    return out


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("kind", list(every_scale()))
def test_computed_noise_is_within_its_bound_of_exact_noise_from_the_same_uniform_numbers(name, kind):
    with mp.workdps(60):
        law, scale, grid = law_of(name, DIM), every_scale()[kind], Grid.of(1 / 255)
        assert grid is not None
        mean = torch.linspace(-0.5, 0.5, DIM)
        uniform = torch.empty(8, law.uniforms(DIM), dtype=torch.float64).uniform_(generator=rng(1))
        z = law.units(uniform.clone(), DIM)
        step = grid.steps(torch.device("cpu"))
        computed = (scale.apply_bounded(z * law.scale) + mean.double()) / step
        bound = grid.row_errors(law, scale.row_bounds(DIM), mean.double(), DIM)
        matrix, worst = exact_matrix(scale), 0.0
        for row, u in zip(computed, uniform, strict=True):
            ideal_z = mp.matrix([mp.mpf(law.scale) * v for v in exact_units(law, u.tolist(), DIM)])
            v = [
                (a + mp.mpf(m)) / mp.mpf(1 / 255) for a, m in zip(matrix * ideal_z, mean.double().tolist(), strict=True)
            ]
            errors = [abs(mp.mpf(c) - e) for c, e in zip(row.tolist(), v, strict=True)]
            worst = max(worst, *(float(e) / b for e, b in zip(errors, bound.tolist(), strict=True)))
        assert 0 < worst <= 1


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("kind", ["Scalar", "Dense", "BlockDiagonal"])
def test_cells_are_left_as_seldom_as_the_proof_says(name, kind):
    """The same noise from uniform numbers of ten bits, and of all bits: how often they round to different whole numbers."""
    cell, n = 2.0**-10, 20_000
    law, scale = law_of(name, DIM), every_scale()[kind]
    rows = scale.row_bounds(DIM)
    fine = torch.empty(n, law.uniforms(DIM), dtype=torch.float64).uniform_(generator=rng(2))
    coarse = (fine / cell).floor() * cell
    parts = [scale.apply_bounded(law.units(u, DIM) * law.scale) / STEP for u in (fine, coarse)]
    often = (parts[0].round() != parts[1].round()).double().mean(0)
    drawn = law.draw_error(DIM, rows.width)
    lengths = law.scale * rows.lengths.expand(DIM) / STEP
    failure = drawn.failure / 2.0**-52 * cell  # its cells are larger, too
    bound = cell * (drawn.travel * lengths * (1 + 2 * drawn.peak / lengths) + drawn.pieces) + failure
    assert bool((often <= bound + 3 * (often / n).sqrt()).all())
    assert float(often.max()) > 0


def test_products_lose_a_few_units_however_long_they_are():
    with mp.workdps(60):
        for terms in (7, 224, 5000):
            x = torch.randn(2, terms, generator=rng(3), dtype=torch.float64)
            a = torch.randn(3, terms, generator=rng(4), dtype=torch.float64)
            found = contract(x, a)
            for i, j in itertools.product(range(2), range(3)):
                true = mp.fdot(map(mp.mpf, x[i].tolist()), map(mp.mpf, a[j].tolist()))
                allowed = contract_error(terms) * 2.0**-53 * float(x[i].norm() * a[j].norm())
                assert abs(mp.mpf(float(found[i, j])) - true) <= allowed


def test_cosines_are_rounded_correctly():
    with mp.workdps(60):
        for size in (1, 2, 5, 28):
            c = exact_cosine_matrix(size)
            for k, i in itertools.product(range(size), repeat=2):
                true = mp.cos(mp.pi * (i + mp.mpf(1) / 2) * k / size) * mp.sqrt(mp.mpf(1 if k == 0 else 2) / size)
                assert abs(mp.mpf(float(c[k, i])) - true) <= 1.01 * 2.0**-53 * abs(true) + mp.mpf(10) ** -50


def test_sums_by_halves_take_every_term_once():
    for count in (1, 2, 3, 7, 64, 100):
        terms = torch.rand(2, count, generator=rng(0), dtype=torch.float64)
        assert torch.allclose(tree_sum(terms.clone()), terms.sum(-1))


def test_uniform_numbers_are_whole_multiples_of_two_to_the_minus_53_and_below_one():
    u = torch.empty(100_000, dtype=torch.float64).uniform_(generator=rng(0)) * 2.0**53
    assert torch.equal(u, u.floor()) and float(u.max()) < 2.0**53


@pytest.mark.parametrize("name", LAWS)
def test_draws_in_float64_have_the_laws_distribution_in_many_dimensions(name):
    law, dim = law_of(name, 50, 1.0), 50
    z = unit_draws(law, 4000, dim, rng(0)) * law.scale
    assert float(z.mean()) == pytest.approx(0, abs=0.02)
    sizes = z.abs().amax(1)
    theirs = law.sample(4000, (dim,), rng(1), torch.float64).abs().amax(1)
    assert stats.ks_2samp(sizes.numpy(), theirs.numpy()).pvalue > 1e-3
    assert float(z.std()) == pytest.approx(1, rel=0.1 if name == "PowerLaw" else 0.03)


# --- what bounds and radii pay ---


def pixel(threshold: float):
    """Class 1 where the first pixel exceeds a threshold."""
    return lambda y: (y.flatten(1)[:, 0] > threshold).long()


def test_probabilities_pay_the_error_and_radii_round_down():
    law, x = Gaussian(0.25), torch.full((1, 4), 0.5)
    g = SmoothedClassifier(pixel(0.4), law, num_classes=2, step=1 / 16)
    (c,) = g.certify(x, n=1000)
    tau = g.arithmetic_error(g.M.at(x), x)
    assert 2.0**-40 < tau < 1e-9 and c.evidence.arithmetic == "grid(1/16)"
    assert c.p_lower == lower_bound(int(c.counts[1]), 1000, 0.001) - tau
    assert 0 < law.radius(c.p_lower) - c.region.radius < 1e-8 * c.region.radius
    assert "whole multiples of 1/16" in str(c)
    (two,) = g.certify(x, n=1000, bound="two-class")
    assert two.p_upper == upper_bound(int(two.counts[0]), 1000, 0.0005) + tau
    (anytime,) = g.certify(x, n=1000, bound="anytime")
    (stopped,) = g.certify(x, n=1000, stop=0.05)
    assert 0 < anytime.p_lower < c.p_lower and stopped.evidence.n < 1000
    assert stopped.radius >= 0.05


def test_an_input_beside_the_grid_is_rounded_and_pays_twice():
    step, law = 1 / 16, Gaussian(0.25)
    g = SmoothedClassifier(pixel(0.3), law, Fixed(torch.tensor([1.0, 0.5])), 2, step=step)
    x = torch.tensor([[0.5, 0.5]])
    off = x + torch.tensor([[0.01, -0.02]])
    (on_grid,), (rounded,) = g.certify(x, n=2000), g.certify(off, n=2000)
    assert rounded.evidence.arithmetic == "grid(1/16), rounded"
    R = law.radius(rounded.p_lower)
    there = math.hypot(0.01 / 1.0, 0.02 / 0.5)
    others = math.hypot(step / 2 / 1.0, step / 2 / 0.5)
    assert rounded.region.radius == pytest.approx(R - there - others, rel=1e-5)
    assert rounded.region.radius < R - there - others
    assert on_grid.region.radius > rounded.region.radius
    (nothing,) = g.certify(torch.tensor([[0.32, 0.5]]), n=2000)
    assert nothing.abstained and "rounding" in nothing.reason
    assert "any change" in str(rounded)


def test_a_rounded_inputs_region_holds_for_changes_of_any_kind():
    step, threshold = 1 / 4, 0.375  # 0.375 rounds to 0.5, below it to 0.25
    g = SmoothedClassifier(pixel(threshold), Gaussian(0.5), num_classes=2, step=step)
    for start in torch.linspace(0.5, 2.5, 23):
        x = start.reshape(1, 1)
        (c,) = g.certify(x, n=4000)
        if c.abstained:
            continue
        edge = x.double() - 0.999 * c.region.radius
        assert float(g.grid.integers(edge)[0]) * step > threshold


def test_steps_of_their_own_for_every_feature():
    steps = torch.tensor([0.5, 0.125, 1.0])
    g = SmoothedClassifier(pixel(0.2), Gaussian(1.0), num_classes=2, step=steps)
    x = torch.tensor([[1.5, 0.375, -2.0]])
    (c,) = g.certify(x, n=500)
    assert c.evidence.arithmetic == f"grid({g.grid.name})" and len(g.grid.name) == 12
    seen = copies(g, x, 1, 200).double() / steps.double()
    assert torch.equal(seen, seen.round())
    off = torch.tensor([[1.5, 0.4, -2.0]])
    (paid,) = g.certify(off, n=500)
    assert paid.region.radius < Gaussian(1.0).radius(paid.p_lower) - math.sqrt(0.25**2 + 0.0625**2 + 0.5**2)
    with pytest.raises(InvalidInput, match="shape"):
        g.certify(torch.zeros(1, 2), n=10)
    with pytest.raises(InvalidInput, match="does not state its steps"):
        step_of(c.evidence.arithmetic)


def test_predictions_pay_too():
    g = SmoothedClassifier(pixel(0.4), Gaussian(0.25), num_classes=2, step=1 / 16)
    h = SmoothedClassifier(pixel(0.4), Gaussian(0.25), num_classes=2)
    x = torch.full((1, 4), 0.5)
    for options in ({}, {"test": "top-two"}, {"stop": True}):
        (mine,), (theirs,) = g.predict(x, **options), h.predict(x, **options)
        assert mine.prediction == theirs.prediction == 1 and mine.evidence.arithmetic == "grid(1/16)"
    tau = g.arithmetic_error(g.M.at(x), x)
    (c,) = g.predict(x, n=100, test="top-two", alpha=0.9)
    assert c.p_value >= 100 * tau


class Sharp(torch.nn.Module):
    """A network for composed noise: little noise where the first look is bright."""

    def forward(self, y):
        return 0.5 - y


@pytest.mark.parametrize("norm", [2, INF])
def test_composed_noise_puts_both_looks_on_the_grid(norm):
    step = 1 / 64
    generator = ucan.Composed(norm=norm, net=Sharp())
    g = SmoothedClassifier(pixel(0.4), Gaussian(0.25), generator, 2, step=step)
    h = SmoothedClassifier(pixel(0.4), Gaussian(0.25), generator, 2)
    x = torch.full((1, 4), 0.5)
    (c,), (real,) = g.certify(x, n=20_000, norm=norm), h.certify(x, n=20_000, norm=norm)
    assert c.evidence.arithmetic == "grid(1/64)" and c.radius == pytest.approx(real.radius, rel=0.06)
    # What is shown depends on two whole numbers alone: far fewer values than draws.
    coarse = SmoothedClassifier(pixel(0.4), Gaussian(0.25), generator, 2, step=0.5)
    shown = copies(coarse, torch.full((1, 1), 0.5), 4, 500)
    assert len(shown.unique()) < 60
    assert g.arithmetic_error(g.M.at(x), x) < 1e-6


def test_noise_of_another_making_is_refused():
    class Own(ucan.Generator):
        scope = "pipeline"

        def forward(self, x):
            return x.new_zeros(()), scales.Scalar(1.0)

    class Strange(Own):
        def at(self, x):
            return self

        def perturb(self, x, law, n, rng, noise=None):
            return x.expand(n, *x.shape)

    x = torch.full((1, 2), 0.5)
    assert not SmoothedClassifier(pixel(0.1), Gaussian(0.1), Own(), 2, step=0.25).certify(x, n=200)[0].abstained
    with pytest.raises(InvalidInput, match="perturb_on_grid"):
        SmoothedClassifier(pixel(0.4), Gaussian(0.1), Strange(), 2, step=0.25).certify(x, n=200)


def test_a_law_from_outside_without_bounded_draws_is_refused():
    class Other(Gaussian):
        def unit_parts(self, uniform, dim):
            return Law.unit_parts(self, uniform, dim)

        def uniforms(self, dim):
            return Law.uniforms(self, dim)

        def draw_error(self, dim, width):
            return Law.draw_error(self, dim, width)

    g = SmoothedClassifier(pixel(0.4), Other(0.25), num_classes=2, step=1 / 16)
    with pytest.raises(InvalidInput, match="Other has no draws in float64"):
        g.certify(torch.full((1, 2), 0.5), n=100)


@pytest.mark.parametrize("step", [0, -1.0, math.nan, INF, "1/255", True, torch.tensor([0.1, 0.0]), torch.zeros(0)])
def test_a_step_that_is_none_is_refused(step):
    with pytest.raises(InvalidInput, match="step"):
        SmoothedClassifier(pixel(0.4), Gaussian(0.25), num_classes=2, step=step)


def test_noise_that_cannot_be_drawn_soundly_is_refused():
    x = torch.full((1, 4), 0.5)
    with pytest.raises(InvalidInput, match=r"too many to be added exactly|too much to certify"):
        SmoothedClassifier(pixel(0.4), Gaussian(1.0), num_classes=2, step=1e-17).certify(x, n=100)
    with pytest.raises(InvalidInput, match="too much to certify"):
        SmoothedClassifier(pixel(0.4), Gaussian(1.0), num_classes=2, step=1e-12).certify(x, n=100)
    with pytest.raises(InvalidInput, match="larger step"):
        SmoothedClassifier(pixel(0.4), Gaussian(1e18), num_classes=2, step=1.0).certify(x, n=100)


@pytest.mark.parametrize(
    ("step", "name"), [(1 / 255, "1/255"), (0.0625, "1/16"), (1.0, "1/1"), (2.0, "2.0"), (0.3, "0.3"), (0.1, "1/10")]
)
def test_the_steps_name_and_back(step, name):
    grid = Grid.of(step)
    assert grid is not None and grid.name == name
    for word in (f"grid({name})", f"grid({name}), rounded"):
        assert step_of(word) == step
        assert name in changes_in_words(word)
    assert step_of("real") is None and changes_in_words("real") == ""


def test_which_inputs_are_on_the_grid():
    grid = Grid.of(1 / 255)
    assert grid is not None
    bytes_ = torch.arange(256)
    assert grid.holds((bytes_.float() / 255)[None]) and grid.holds((bytes_.double() / 255)[None])
    assert grid.holds((bytes_.float() * (1 / 255))[None])
    assert not grid.holds(torch.tensor([[0.5]])) and not grid.holds(torch.tensor([[1e-9]]))
    assert not grid.holds((bytes_.float() / 256)[None])
    assert torch.equal(grid.integers((bytes_.float() / 255)[None]), bytes_.double())


def test_the_same_seed_gives_the_same_votes_whatever_the_packing():
    sigma = 0.5 + torch.rand(6, generator=rng(0))
    for generator in (None, Fixed(sigma), Fixed(scales.Dense(torch.randn(6, 6, generator=rng(1))))):
        x = torch.randint(0, 17, (3, 6), generator=rng(2)).float() / 16
        g = SmoothedClassifier(pixel(0.5), Gaussian(0.25), generator, 2, step=1 / 16)
        together = g.certify(x, n=1000, batch_size=512)
        apart = [g.certify(one[None], n=1000, batch_size=128)[0] for one in x]
        assert [c.evidence.counts for c in together] == [c.evidence.counts for c in apart]


def test_held_noise_is_put_on_the_grid_by_any_generator_that_writes_forward_alone():
    class Halves(ucan.Generator):
        scope = "frozen"

        def forward(self, x):
            return 0.25 * x, scales.Diagonal(0.5 + x.abs())

    g = SmoothedClassifier(pixel(0.3), Gaussian(0.25), Halves(), 2, step=1 / 16)
    x = torch.full((1, 4), 0.5)
    (c,) = g.certify(x, n=500)
    assert c.scope == "frozen" and isinstance(g.M.at(x), Held) and c.evidence.arithmetic == "grid(1/16)"


def test_two_thousand_certificates_of_a_threshold_are_as_true_as_their_level():
    """The threshold lies half-way between two grid points, so that its radius on the grid is its distance, exactly."""
    step, alpha = 1 / 16, 0.01
    g = SmoothedClassifier(pixel(0.5 + step / 2), Gaussian(0.25), num_classes=2, step=step)
    x = torch.randint(0, 17, (2000, 2), generator=rng(0)).float() / 16
    outcomes = g.certify(x, n=300, alpha=alpha)
    false = 0
    for one, c in zip(x, outcomes, strict=True):
        distance = float(one[0]) - 0.5 - step / 2
        right = c.abstained or (c.prediction == (distance > 0) and c.radius <= abs(distance))
        false += not right
    assert false <= 2000 * alpha + 4 * math.sqrt(2000 * alpha)
    assert sum(not c.abstained for c in outcomes) > 1500


def test_radii_on_the_grid_are_those_of_real_arithmetic_to_a_percent():
    digits = data.load("digits")
    train = data.load("digits", "train")
    x, y = train.batch(range(len(train)))
    centres = torch.stack([x[y == c].mean(0).flatten() for c in range(10)])

    def nearest(batch: torch.Tensor) -> torch.Tensor:
        return batch.flatten(1) @ centres.T - (centres**2).sum(1) / 2

    inputs, _ = digits.batch(range(0, 440, 8))
    grid = SmoothedClassifier(nearest, Gaussian(0.25), num_classes=10, step=digits.step)
    real = SmoothedClassifier(nearest, Gaussian(0.25), num_classes=10)
    mine, theirs = (np.array([c.radius for c in g.certify(inputs, n=20_000)]) for g in (grid, real))
    assert mine.mean() == pytest.approx(theirs.mean(), rel=0.01)


def test_verify_knows_the_arithmetic():
    from ucan.verify import verify

    g = SmoothedClassifier(pixel(0.4), Gaussian(0.25), num_classes=2, step=1 / 16)
    h = SmoothedClassifier(pixel(0.4), Gaussian(0.25), num_classes=2)
    x = torch.full((1, 4), 0.5)
    for at in (x, x + 0.3):
        (c,) = g.certify(at, n=2000)
        assert verify(c, g, at).stands
        assert not verify(c, h, at).stands
    (c,) = h.certify(x, n=2000)
    assert not verify(c, g, x).stands


def test_an_audit_on_the_grid_moves_in_whole_steps():
    from ucan.audit.inputs import reachable

    g = SmoothedClassifier(pixel(0.4), Gaussian(0.25), num_classes=2, step=1 / 16)
    x = torch.full((1, 4), 0.5)
    (c,) = g.certify(x, n=2000)
    deltas = torch.randn(20, 4, generator=rng(0), dtype=torch.float64)
    deltas = 0.9 * c.region.radius * deltas / deltas.norm(dim=1, keepdim=True)
    inputs, actual = reachable(x, deltas, c.region, c.region.radius, g.step)
    assert len(inputs) > 10 and bool(c.region.contains(actual).all())
    assert torch.equal(inputs * 16, (inputs * 16).round()) and torch.equal(inputs.double(), x.double() + actual)


@pytest.mark.parametrize("name", ("log", "sin", "cos"))
def test_the_functions_that_draws_are_made_of_are_within_two_units(name: str) -> None:
    """The assumption of docs/arithmetic.md, measured where this runs: against 50 digits, at the arguments that occur."""
    u = torch.rand(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (1 - u).clamp_min(2.0**-53) if name == "log" else (2 * u - 1) * math.pi
    if name == "log":
        x = torch.cat([x, 1 - 2.0**-30 * u[:500], 2.0 ** (-53 * u[:500])])
    found = getattr(torch, name)(x)
    with mp.workdps(50):
        for value, shown in zip(x.tolist(), found.tolist(), strict=True):
            exact = getattr(mp, name)(mp.mpf(value))
            assert abs(mp.mpf(shown) - exact) <= 2 * math.ulp(float(exact)), (name, value)
