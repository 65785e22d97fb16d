"""Generators that are given and not learned: Isotropic, Fixed, Pattern."""

import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

from ucan import (
    BasisWise,
    CertificationWise,
    DatasetWise,
    ExpInf,
    Fixed,
    Gaussian,
    InvalidInput,
    Isotropic,
    Pattern,
    Region,
    SingularScale,
    SmoothedClassifier,
)
from ucan.arithmetic import Grid
from ucan.generators import base
from ucan.generators.rotated import Rancer
from ucan.scales import DCT, Basis, BlockDiagonal, Dense, Diagonal, LowRank, Scalar

INF = math.inf
SHAPE = (3, 4, 4)
DIM = 48


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def positive(*shape, seed=0):
    return 0.3 + torch.rand(*shape, generator=rng(seed), dtype=torch.float64)


SCALES = {
    "float": 0.5,
    "tensor": positive(*SHAPE),
    "dense": Dense(torch.randn(DIM, DIM, generator=rng(1), dtype=torch.float64) + 10 * torch.eye(DIM)),
    "basis": Basis(torch.linalg.qr(torch.randn(DIM, DIM, generator=rng(2), dtype=torch.float64))[0], positive(DIM)),
    "dct": DCT(positive(*SHAPE)),
    "low rank": LowRank(positive(DIM), torch.randn(DIM, 2, generator=rng(3), dtype=torch.float64)),
    "blocks": BlockDiagonal([torch.eye(16, dtype=torch.float64) * k for k in (1.0, 2.0, 3.0)]),
}
GENERATORS = {
    "isotropic": Isotropic(),
    "pattern": Pattern(SHAPE),
    **{f"fixed {name}": Fixed(scale, mean=0.1 * torch.ones(SHAPE)) for name, scale in SCALES.items()},
}
LEARNED = [
    DatasetWise(SHAPE),
    CertificationWise(channels=3),
    BasisWise.dct(SHAPE, bands=2),
    BasisWise.pca(torch.rand(60, *SHAPE, generator=rng(7)), leading=6),
]
every = pytest.mark.parametrize("generator", GENERATORS.values(), ids=GENERATORS.keys())


@every
def test_noise_that_is_the_same_for_every_input_covers_the_pipeline(generator):
    assert generator.scope == "pipeline"
    mu, scale = generator(torch.zeros(1, *SHAPE))
    mu_other, scale_other = generator(torch.ones(1, *SHAPE))
    assert torch.equal(mu, mu_other) and scale is scale_other
    assert type(generator).__name__ in generator.describe()


@every
def test_perturb_is_x_plus_mu_plus_sigma_times_the_laws_draw(generator):
    law, n, x = Gaussian(scale=0.7), 6, torch.rand(2, *SHAPE, generator=rng(4))
    y = generator.perturb(x, law, n, rng(5))
    eps = law.sample(n * 2, SHAPE, rng(5)).reshape(n, 2, *SHAPE)
    mu, scale = generator(x)
    expected = x + mu + (eps.double().reshape(-1, DIM) @ scale.dense(DIM).T).reshape(eps.shape)
    assert y.shape == (n, 2, *SHAPE) and y.dtype == x.dtype
    assert y.double().numpy() == pytest.approx(expected.numpy(), abs=1e-4)
    assert torch.equal(generator.view(y), y)
    assert torch.equal(y, generator.perturb(x, law, n, rng(5)))
    assert not torch.equal(y, generator.perturb(x, law, n, rng(6)))


@pytest.mark.parametrize("generator", [*GENERATORS.values(), *LEARNED], ids=lambda g: g.describe())
def test_on_a_grid_noise_comes_in_whole_steps_of_the_same_size(generator):
    law, grid, x = Gaussian(scale=0.7), Grid.of(1 / 255), torch.full((1, *SHAPE), 51 / 255)
    held, out = generator.eval().at(x), torch.empty(3, 500, *SHAPE)
    held.perturb_on_grid(out, x, law, [rng(i) for i in range(3)], grid)
    steps = out.double() * 255
    assert torch.allclose(steps, steps.round(), atol=1e-3) and len(out[0].unique(dim=0)) == 500
    real = held.perturb(x, law, 1500, rng(9))[:, 0]
    assert out.flatten(0, 1).mean(0).numpy() == pytest.approx(
        real.mean(0).detach().numpy(), abs=0.25 * float(real.std())
    )
    assert float(out.std()) == pytest.approx(float(real.std()), rel=0.05)
    assert 0 < held.grid_error(x, law, grid) < 1e-6


@pytest.mark.parametrize("generator", [*GENERATORS.values(), *LEARNED], ids=lambda g: g.describe())
def test_a_generator_survives_pickling(generator):
    again = pickle.loads(pickle.dumps(generator))
    x = torch.rand(1, *SHAPE, generator=rng(4))
    law = Gaussian(scale=0.7)
    assert torch.equal(again.perturb(x, law, 3, rng(5)), generator.perturb(x, law, 3, rng(5)))
    again.load_state_dict(generator.state_dict())
    assert torch.equal(again.perturb(x, law, 3, rng(5)), generator.perturb(x, law, 3, rng(5)))


@every
def test_perturb_leaves_its_input_alone_and_keeps_its_precision(generator):
    x = torch.rand(1, *SHAPE, generator=rng(4), dtype=torch.float64)
    before = x.clone()
    y = generator.perturb(x, Gaussian(scale=0.7), 3, rng(5))
    assert y.dtype == torch.float64 and torch.equal(x, before)
    assert (y != y.float().double()).any()


@every
@pytest.mark.parametrize("law", [Gaussian(scale=0.7), ExpInf(scale=0.1)], ids=["Gaussian", "ExpInf"])
@pytest.mark.parametrize("n", (1, 5, 33))
def test_noise_held_at_an_input_and_written_in_place_is_the_same_noise(generator, law, n):
    x = torch.rand(1, *SHAPE, generator=rng(4))
    held = generator.at(x)
    out = torch.full((n, *SHAPE), math.nan)
    held.perturb_into((out)[None], x, law, [rng(5)])
    expected = generator.perturb(x, law, n, rng(5))[:, 0]
    assert torch.equal(out, expected)
    assert torch.equal(held.perturb(x, law, n, rng(5))[:, 0], expected)
    generator.perturb_into((again := torch.empty_like(out))[None], x, law, [rng(5)])
    assert torch.equal(again, expected)
    assert held.scope == generator.scope and held.describe() == generator.describe()
    assert held.region(law, 0.9, INF, x).radius == generator.region(law, 0.9, INF, x).radius


def test_copies_are_independent_across_the_batch():
    y = Isotropic().perturb(torch.zeros(2, 1), Gaussian(scale=1.0), 5000, rng(7))
    assert stats.pearsonr(y[:, 0, 0].numpy(), y[:, 1, 0].numpy()).pvalue > 1e-3


@every
@pytest.mark.parametrize("norm", (1, 2, INF))
def test_gaussian_region_is_the_euclidean_one_whatever_the_norm_asked_for(generator, norm):
    law, x = Gaussian(scale=0.7), torch.zeros(1, *SHAPE)
    region = generator.region(law, 0.9, norm, x)
    assert region.norm == 2 and region.shape == SHAPE
    assert region.radius == pytest.approx(0.7 * stats.norm.ppf(0.9))
    assert region.scale is generator(x)[1]


def test_other_laws_give_a_region_in_the_norm_asked_for_and_two_class_bounds_enlarge_it():
    law, x = ExpInf(scale=0.7), torch.zeros(1, *SHAPE)
    region = Pattern(SHAPE).region(law, 0.9, INF, x)
    assert region.norm == INF and region.radius == law.radius(0.9, INF, DIM)
    assert Pattern(SHAPE).region(law, 0.9, 1, x).radius == law.radius(0.9, 1, DIM)
    assert Pattern(SHAPE).region(law, 0.9, INF, x, p_b=0.01).radius == law.radius(0.9, INF, DIM, 0.01) > region.radius


def test_isotropic_is_the_identity():
    mu, scale = Isotropic()(torch.zeros(1, *SHAPE))
    assert not mu.any() and isinstance(scale, Scalar) and scale.value == 1.0
    assert Isotropic().describe() == "Isotropic"


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())
def test_fixed_keeps_its_scale_through_state_dict_dtype_and_device(scale):
    source = Fixed(scale, mean=torch.full(SHAPE, 0.25))
    dense = source.scale.dense(DIM)
    target = Fixed(scale if isinstance(scale, float) else source.scale.regularised(20.0))
    target.mean = torch.zeros(SHAPE)
    target.load_state_dict(source.state_dict())
    assert torch.equal(target.scale.dense(DIM), dense)
    assert torch.equal(target.mean, source.mean)
    assert torch.allclose(source.float().scale.dense(DIM), dense, atol=1e-5)
    assert torch.allclose(source.to("cpu").double().scale.dense(DIM), dense, atol=1e-5)


@pytest.mark.parametrize("norm", (1, 2, INF))
@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 7), (6, 6)])
def test_pattern_is_the_formula_at_pixel_centres_rescaled_to_its_mean(norm, shape):
    kappa, iota, mean = 2.0, 0.5, 0.8
    sigma = Pattern(shape, norm=norm, kappa=kappa, iota=iota, mean=mean).scale.sigma
    height, width = shape[-2:]
    expected = np.empty((height, width))
    for i in range(height):
        for j in range(width):
            centre = (-1 + (2 * i + 1) / height, -1 + (2 * j + 1) / width)
            expected[i, j] = kappa * np.linalg.norm(centre, ord=norm) ** 2 + iota
    expected *= mean / expected.mean()
    assert sigma.shape == shape
    assert sigma.double().numpy() == pytest.approx(np.broadcast_to(expected, shape), rel=1e-6)
    assert float(sigma.mean()) == pytest.approx(mean, rel=1e-6)


def test_pattern_defaults_are_those_of_the_design():
    assert torch.equal(Pattern(SHAPE).scale.sigma, Pattern(SHAPE, norm=2, kappa=1.0, iota=1.0, mean=1.0).scale.sigma)
    assert isinstance(Pattern(SHAPE).scale, Diagonal) and not Pattern(SHAPE).mean.any()
    assert torch.equal(Pattern(SHAPE, kappa=0.0, mean=0.3).scale.sigma, torch.full(SHAPE, 0.3))


def test_pattern_grows_from_the_middle_to_the_border():
    sigma = Pattern((1, 9, 9)).scale.sigma[0]
    assert sigma.argmin() == 40 and sigma.argmax() == 0
    assert torch.allclose(sigma, sigma.T) and torch.allclose(sigma, sigma.flip(0))


INVALID = {
    "scale zero": (SingularScale, lambda: Fixed(0.0)),
    "scale negative": (SingularScale, lambda: Fixed(-1.0)),
    "scale singular": (SingularScale, lambda: Fixed(Dense(torch.ones(2, 2)))),
    "scale nan": (SingularScale, lambda: Fixed(torch.tensor([1.0, math.nan]))),
    "scale None": (InvalidInput, lambda: Fixed(None)),
    "mean nan": (InvalidInput, lambda: Fixed(1.0, mean=torch.tensor([math.nan]))),
    "mean infinite": (InvalidInput, lambda: Fixed(1.0, mean=[INF, 0.0])),
    "pattern of a vector": (InvalidInput, lambda: Pattern((3,))),
    "pattern norm": (InvalidInput, lambda: Pattern(SHAPE, norm=3)),
    "pattern kappa": (InvalidInput, lambda: Pattern(SHAPE, kappa=-1.0)),
    "pattern iota": (InvalidInput, lambda: Pattern(SHAPE, iota=0.0)),
    "pattern mean": (InvalidInput, lambda: Pattern(SHAPE, mean=0.0)),
    "pattern nan": (InvalidInput, lambda: Pattern(SHAPE, kappa=math.nan)),
    "pattern infinite": (InvalidInput, lambda: Pattern(SHAPE, iota=INF)),
    "pattern empty": (InvalidInput, lambda: Pattern((3, 0, 4))),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_arguments_are_refused(case):
    error, call = INVALID[case]
    with pytest.raises(error):
        call()


def test_region_of_a_generator_agrees_with_one_made_by_hand():
    sigma = SCALES["tensor"]
    made = Fixed(sigma).region(Gaussian(scale=0.5), 0.9, 2, torch.zeros(1, *SHAPE))
    hand = Region(sigma, Gaussian(scale=0.5).radius(0.9), 2)
    assert made.inscribed_radius(INF) == hand.inscribed_radius(INF) and made.log_volume == hand.log_volume


def test_loading_other_weights_does_not_change_a_region_that_was_issued():
    generator, other = Fixed(positive(*SHAPE)), Fixed(positive(*SHAPE, seed=1))
    region = generator.region(Gaussian(scale=1.0), 0.9, 2, torch.zeros(1, *SHAPE))
    before = region.scale.tensors()["sigma"].clone()
    generator.load_state_dict(other.state_dict())
    assert torch.equal(region.scale.tensors()["sigma"], before)
    assert torch.equal(generator.scale.tensors()["sigma"], positive(*SHAPE, seed=1))


def test_a_matrix_is_decomposed_once_however_often_its_noise_is_moved():
    generator = Fixed(SCALES["dense"])
    before = generator.scale
    assert generator.to("cpu").scale is before and generator.float().scale is not before


def sign(batch):
    return (batch[:, 0] > 0).long()


def test_records_name_given_noise_as_they_always_did():
    """A file that moves changes no record and no derived seed: both name the class by its module."""

    class Mine(Fixed):
        """A kind of one's own is named by its own module."""

    assert {Isotropic().record().module, Fixed(2.0).record().module} == {"ucan.generators.base"}
    assert Mine(1.0).record().module == __name__
    g = SmoothedClassifier(sign, Gaussian(scale=0.5), num_classes=2, model_id="sign")
    assert g.engine.derived_seed("data") == 168315737831126268051566497365639379821


@pytest.mark.parametrize("noise", (Isotropic(), Fixed(torch.tensor([1.0, 2.0]))), ids=repr)
def test_whole_pickles_from_before_given_noise_had_a_file_of_its_own_load(noise):
    pickled = pickle.dumps(noise, protocol=0)  # which names classes as text
    before = pickled.replace(b"cucan.generators.fixed\n", b"cucan.generators.base\n")
    assert before != pickled and pickle.loads(before).record() == noise.record()
    assert not hasattr(base, "Elsewhere")


class Doubled(Isotropic):
    def place(self, x, eps, law, noise=None):
        return x + 2 * eps


class Careful(Isotropic):
    def region(self, law, p, norm, x, p_b=None):
        whole = super().region(law, p, norm, x, p_b)
        return Region(whole.scale, whole.radius / 2, whole.norm, whole.shape)


class Own(Isotropic):
    def perturb(self, x, law, n, rng, noise=None):
        return x + 2 * law.sample(n, x.shape, rng)


@pytest.mark.parametrize(("kind", "own"), [(Doubled, "place"), (Careful, "region"), (Own, "perturb")])
def test_noise_of_its_own_making_is_not_held_as_plain_noise(kind, own):
    """Held as x + μ + Σε, other noise would be certified than it draws, or a larger region than it claims."""
    g = SmoothedClassifier(sign, Gaussian(scale=0.5), kind(), num_classes=2)
    with pytest.raises(InvalidInput, match=f"{own} of its own, .* override at"):
        g.certify(torch.ones(1, 2), n=200)


def test_sigma_and_mu_do_not_tell_noise_that_makes_its_copies_itself():
    class Turned(Rancer):
        place = Doubled.place

    assert all(kind.tells({}) for kind in (Fixed, Isotropic, Pattern, Rancer)) and not Turned.tells({})
    assert not any(kind.tells({}) for kind in (Own, Doubled, Careful)) and not Fixed.tells({"estimate": True})
