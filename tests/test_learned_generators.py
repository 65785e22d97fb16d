"""One contract for everything that chooses μ and Σ, given or learned; and what each learned generator adds to it."""

import math

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

import ucan
from ucan import (
    BasisWise,
    BudgetWise,
    Certificate,
    CertificationWise,
    DatasetWise,
    Fixed,
    Gaussian,
    InvalidInput,
    Isotropic,
    Laplace,
    Pattern,
    SmoothedClassifier,
)
from ucan.generators.basis import MAX_PCA, Cosines, PrincipalComponents
from ucan.generators.learned import bounded_offset, bounded_scale
from ucan.scales import DCT, Basis, BlockDiagonal, Dense, Diagonal, LowRank, as_scale
from ucan.sidecar import input_hash
from ucan.training.joint import Joint
from ucan.training.recipes import Augmentation, Consistency

SHAPE = (2, 3, 4)
DIM = 24
LAW = Gaussian(scale=0.7)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def rand(*shape, seed=0):
    return torch.rand(*shape, generator=rng(seed))


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def orthonormal(seed):
    return torch.linalg.qr(randn(DIM, DIM, seed=seed))[0]


def fixed(make):
    """Fixed noise with an offset, from a Σ that depends on a seed."""
    return lambda seed: Fixed(make(seed), mean=0.2 * rand(*SHAPE, seed=seed + 50))


def learned(make):
    """A learned generator as training leaves it: no parameter where the constructor put it."""

    def made(seed):
        torch.manual_seed(seed)
        generator = make(seed)
        with torch.no_grad():
            for number, parameter in enumerate(generator.parameters()):
                spread = max(0.1, 0.5 * float(parameter.std())) if parameter.numel() > 1 else 0.1
                parameter.add_(spread * torch.randn(parameter.shape, generator=rng(1000 * seed + number)))
        return generator.eval()

    return made


def pictures(seed):
    """Images whose pixels hang together, so that principal components mean something."""
    return (rand(60, 4, seed=seed) @ rand(4, DIM, seed=seed + 1)).div(4).reshape(60, *SHAPE)


CASES = {
    "isotropic": lambda seed: Isotropic(),
    "fixed scalar": fixed(lambda seed: 0.4 + 0.1 * seed),
    "fixed diagonal": fixed(lambda seed: 0.3 + rand(*SHAPE, seed=seed)),
    "fixed dense": fixed(lambda seed: Dense(randn(DIM, DIM, seed=seed) / 5 + torch.eye(DIM))),
    "fixed basis": fixed(lambda seed: Basis(orthonormal(seed), 0.3 + rand(DIM, seed=seed).double())),
    "fixed dct": fixed(lambda seed: DCT(0.3 + rand(*SHAPE, seed=seed))),
    "fixed low rank": fixed(lambda seed: LowRank(0.3 + rand(DIM, seed=seed).double(), randn(DIM, 2, seed=seed) / 3)),
    "fixed blocks": fixed(
        lambda seed: BlockDiagonal([randn(12, 12, seed=seed + i) / 5 + torch.eye(12) for i in (0, 1)])
    ),
    "pattern": lambda seed: Pattern(SHAPE, kappa=1.0 + seed),
    "fixed for a budget": lambda seed: Fixed.for_budget(0.2 + rand(*SHAPE, seed=seed), pictures(seed), show=LAW),
    "budget-wise": learned(
        lambda seed: BudgetWise(
            SHAPE, 0.2 + rand(*SHAPE, seed=seed), signal=(rand(*SHAPE, seed=3), 0.1 + rand(*SHAPE, seed=4))
        )
    ),
    "dataset-wise": learned(lambda seed: DatasetWise(SHAPE, gamma=0.9)),
    "dataset-wise without μ": learned(lambda seed: DatasetWise(SHAPE, offset=False)),
    "certification-wise": learned(lambda seed: CertificationWise(2, gamma=0.8, features=3, growth=2)),
    "certification-wise without μ": learned(lambda seed: CertificationWise(2, features=3, growth=2, offset=False)),
    "pca": lambda seed: BasisWise.pca(pictures(seed), leading=7, scale=(0.2 + 0.1 * seed, 0.9)),
    "pca, learned bands": learned(lambda seed: BasisWise.pca(pictures(seed), leading=7, bands=3)),
    "dct": lambda seed: BasisWise.dct(SHAPE, leading=6, scale=(0.2 + 0.1 * seed, 1.2)),
    "dct, learned bands": learned(lambda seed: BasisWise.dct(SHAPE, bands=2, scale=(0.5, 0.8), cap=0.8)),
}
LOOKS_AT_ITS_INPUT = ("certification-wise", "certification-wise without μ")
VIEWS = ("pca", "pca, learned bands", "dct", "dct, learned bands")

every = pytest.mark.parametrize("name", CASES)


def model(classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, classes)).eval()


def sigma_at(generator, x):
    """Σ at one input as a matrix."""
    return as_scale(generator(x)[1]).dense(DIM).detach()


# --- the contract ---


@every
@torch.no_grad()
def test_shapes(name):
    generator, x = CASES[name](0), rand(5, *SHAPE)
    mu, scale = generator(x)
    assert torch.broadcast_shapes(mu.shape, x.shape) == x.shape
    for n in (1, 3):
        noisy = generator.perturb(x, LAW, n, rng())
        assert noisy.shape == (n, 5, *SHAPE) and noisy.dtype == x.dtype and noisy.isfinite().all()
        assert generator.view(noisy).shape == noisy.shape
        assert generator.view(noisy.flatten(0, 1)).shape == (n * 5, *SHAPE)
    assert as_scale(scale).apply(x).shape == x.shape
    region = generator.region(LAW, 0.9, 2, x[:1])
    assert region.shape == SHAPE and region.radius == LAW.radius(0.9) and region.dim == DIM


@every
@torch.no_grad()
def test_every_scale_is_positive_invertible_and_below_the_cap(name):
    generator = CASES[name](0)
    for x in rand(4, 1, *SHAPE):
        scale = as_scale(generator(x)[1])
        scale.check()
        singular = torch.linalg.svdvals(scale.dense(DIM))
        assert 0 < float(singular.min()) <= float(singular.max()) <= generator.cap() * (1 + 1e-6)
        entries = getattr(scale, "sigma", getattr(scale, "s", None))
        assert entries is None or (entries > 0).all()


@pytest.mark.parametrize("name", [name for name in CASES if list(CASES[name](0).parameters())])
@pytest.mark.parametrize("pull", (-1e4, 1e4))
@torch.no_grad()
def test_no_parameters_whatever_lead_out_of_the_bounds(name, pull):
    generator = CASES[name](0)
    for parameter in generator.parameters():
        parameter.fill_(pull)
    x = rand(1, *SHAPE)
    generator.at(x)  # refuses what is singular or not finite
    singular = torch.linalg.svdvals(sigma_at(generator, x))
    cap = generator.cap()
    assert cap * 9e-4 < float(singular.min()) <= float(singular.max()) <= cap * (1 + 1e-6)
    assert float(generator(x)[0].abs().max()) <= cap * (1 + 1e-6)


@pytest.mark.parametrize("gamma", (0.1, 0.3, 1.0, 2.5))
def test_bounds_of_the_learned_ranges(gamma):
    raw = torch.linspace(-30, 30, 601, dtype=torch.float64)
    sigma, mu = bounded_scale(raw, gamma), bounded_offset(raw, gamma)
    assert float(sigma.min()) == pytest.approx(gamma / 1000) and float(sigma.max()) == pytest.approx(gamma)
    assert sigma.min() > 0 and (sigma.diff() >= 0).all() and mu.abs().max() <= gamma
    middle = (1000 + 1) / 2000 * gamma
    assert float(bounded_scale(torch.zeros((), dtype=torch.float64), gamma)) == pytest.approx(middle)
    assert torch.autograd.gradcheck(lambda r: bounded_scale(r, gamma), raw[280:320:4].clone().requires_grad_())


@every
@torch.no_grad()
def test_scope_says_whether_the_noise_depends_on_the_input(name):
    generator, (a, b) = CASES[name](0), rand(2, 1, *SHAPE)
    same = torch.equal(sigma_at(generator, a), sigma_at(generator, b)) and torch.equal(generator(a)[0], generator(b)[0])
    assert generator.scope == ("pipeline" if same else "frozen")
    assert generator.scope == ("frozen" if name in LOOKS_AT_ITS_INPUT else "pipeline")
    assert generator.at(a).scope == generator.scope
    assert type(generator).__name__ in generator.describe() == generator.at(a).describe()


SHAPELESS = ("fixed dense", "fixed low rank", "fixed blocks")  # Σ without one scale per direction


@pytest.mark.parametrize("name", [name for name in CASES if name not in SHAPELESS])
@pytest.mark.parametrize("term", ("none", "mean", "logmean", "min"))
def test_gradients_of_the_joint_loss_reach_every_parameter(name, term):
    generator, classifier = CASES[name](0).train(), model().train()
    joint = Joint(classifier, generator, LAW, Consistency(draws=2), term, 1.0)
    out = joint(rand(6, *SHAPE), torch.arange(6) % 3, rng())
    out["loss"].backward()
    for where, parameter in joint.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), where
    assert 0 < float(out["min_sigma"]) <= float(out["mean_sigma"]) <= generator.cap() * (1 + 1e-6)
    assert 0 <= float(out["correct"]) <= 1


@pytest.mark.parametrize("name", SHAPELESS)
def test_a_variance_term_of_a_sigma_without_scales_is_refused_by_its_kind(name):
    joint = Joint(model(), CASES[name](0), LAW, Augmentation(), "min", 1.0)
    with pytest.raises(InvalidInput, match=r"Dense|LowRank|BlockDiagonal"):
        joint(rand(6, *SHAPE), torch.arange(6) % 3, rng())


@every
@torch.no_grad()
def test_saved_and_loaded_noise_is_the_same_bit_for_bit(name):
    source, target, x = CASES[name](0), CASES[name](1), rand(3, *SHAPE)
    expected = source.perturb(x, LAW, 4, rng(3))
    if name != "isotropic":
        assert not torch.equal(target.perturb(x, LAW, 4, rng(3)), expected)  # the state must make the difference
    if name == "fixed scalar":
        target.scale = source.scale  # a number lives in no buffer: it is part of the construction
    target.load_state_dict(load(save({k: v.contiguous() for k, v in source.state_dict().items()})))
    assert torch.equal(target.perturb(x, LAW, 4, rng(3)), expected)
    assert torch.equal(target.view(expected), source.view(expected))


@every
@pytest.mark.parametrize("law", [LAW, Laplace(scale=0.2)], ids=["Gaussian", "Laplace"])
@torch.no_grad()
def test_perturb_perturb_into_and_noise_held_at_an_input_agree_bit_for_bit(name, law):
    generator, x = CASES[name](0), rand(1, *SHAPE)
    expected = generator.perturb(x, law, 5, rng(3))[:, 0]
    held = generator.at(x)
    assert torch.equal(held.perturb(x, law, 5, rng(3))[:, 0], expected)
    for one in (generator, held):
        out = torch.full((5, *SHAPE), math.nan)
        one.perturb_into(out[None], x, law, [rng(3)])
        assert torch.equal(out, expected)
    assert torch.equal(held.view(expected), generator.view(expected))


@every
@torch.no_grad()
def test_held_noise_stays_what_it_was_when_its_input_moves(name):
    generator, (a, b) = CASES[name](0), rand(2, 1, *SHAPE)
    held = generator.at(a)
    shift = held.perturb(b, LAW, 3, rng(3)) - held.perturb(a, LAW, 3, rng(3))
    assert torch.allclose(shift, (b - a).expand_as(shift), atol=1e-5)


@every
@torch.no_grad()
def test_covariance_of_the_noise_is_sigma_sigma_transposed_lambda_squared(name):
    generator, x, n = CASES[name](0), rand(2, *SHAPE), 30_000
    noisy = generator.perturb(x, LAW, n, rng(4)).double().reshape(n, 2, DIM)
    for i in (0, 1):
        sigma = sigma_at(generator, x[i : i + 1])
        truth = LAW.scale**2 * sigma @ sigma.T
        centre = (x[i : i + 1] + generator(x[i : i + 1])[0]).double().flatten()
        deviation = noisy[:, i] - centre
        variances = truth.diag()
        errors = (deviation.T @ deviation / n - truth) / ((variances[:, None] * variances + truth**2) / n).sqrt()
        assert float(errors.abs().max()) < 5  # standard errors, of 300 entries
        assert float((deviation.mean(0) / (variances / n).sqrt()).abs().max()) < 5


@every
def test_certify_works_and_says_the_scope(name):
    generator = CASES[name](0)
    g = SmoothedClassifier(model(), Gaussian(scale=0.05), generator, num_classes=3)
    x = rand(3, *SHAPE)
    outcomes = g.certify(x, n0=20, n=300, alpha=0.01)
    certificates = [c for c in outcomes if isinstance(c, Certificate)]
    assert certificates
    for i, c in enumerate(outcomes):
        assert c.scope == generator.scope and int(c.counts.sum()) == 300
        if isinstance(c, Certificate):
            mu, _ = generator(x[i : i + 1])
            assert c.evidence.generator == generator.describe()
            assert torch.equal(c.region.scale.dense(DIM), sigma_at(generator.at(x[i : i + 1]), x[i : i + 1]))
            assert (c.mean is None) == (not mu.any())
            assert c.mean is None or torch.equal(c.mean, mu.detach())
            assert 0 < c.radius <= generator.cap() * c.region.radius * (1 + 1e-6)
            assert c.alm <= generator.cap() * c.region.radius * (1 + 1e-6)


@every
def test_a_batch_is_certified_as_its_inputs_one_by_one(name):
    g = SmoothedClassifier(model(), Gaussian(scale=0.3), CASES[name](0), num_classes=3)
    x = rand(3, *SHAPE)
    together = [c.evidence for c in g.certify(x, n0=20, n=300)]
    assert together == [g.certify(x[i : i + 1], n0=20, n=300)[0].evidence for i in range(3)]


# --- each one's own ---


@torch.no_grad()
def test_certification_wise_noise_differs_between_inputs_and_is_the_same_in_any_batch():
    generator, x = CASES["certification-wise"](0), rand(4, *SHAPE)
    mu, scale = generator(x)
    assert mu.shape == scale.sigma.shape == x.shape
    for i in range(4):
        one_mu, one_scale = generator(x[i : i + 1])
        assert torch.allclose(mu[i], one_mu[0], atol=1e-6) and torch.allclose(scale.sigma[i], one_scale.sigma[0])
        assert not any(torch.allclose(scale.sigma[i], scale.sigma[j], atol=1e-4) for j in range(i))
        assert not any(torch.allclose(mu[i], mu[j], atol=1e-4) for j in range(i))


@torch.no_grad()
def test_certification_wise_sigma_is_computed_from_x_plus_mu():
    generator, x = CASES["certification-wise"](0), rand(2, *SHAPE)
    mu, scale = generator(x)
    assert torch.equal(mu, bounded_offset(generator.mu_net(x), 0.8))
    assert torch.equal(scale.sigma, bounded_scale(generator.sigma_net(x + mu), 0.8))
    assert not torch.equal(scale.sigma, bounded_scale(generator.sigma_net(x), 0.8))


def test_networks_are_the_papers():
    linear = [m for m in DatasetWise((3, 32, 32)).sigma_net if isinstance(m, nn.Linear)]
    assert [m.out_features for m in linear] == [128, 256, 512, 1024, 3072] and linear[0].in_features == 1
    generator = CertificationWise(channels=3)
    convolutions = [m for m in generator.sigma_net.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 5 and [c.in_channels for c in convolutions] == [3, 19, 35, 51, 67]
    with torch.no_grad():
        assert generator(torch.rand(2, 3, 9, 11, generator=rng()))[0].shape == (2, 3, 9, 11)


def flat(y):
    return y.reshape(-1, DIM)


@pytest.mark.parametrize("name", VIEWS)
@torch.no_grad()
def test_a_basis_wise_view_is_the_affine_projection_onto_its_leading_directions(name):
    generator, y = CASES[name](0), rand(9, *SHAPE).double()
    leading = generator.leading
    ones = torch.ones(DIM)
    matrix = generator.directions.scale(ones).dense(DIM)  # Q, in the matrix's own order of columns
    order = generator.directions.order if isinstance(generator.directions, Cosines) else torch.arange(DIM)
    q = matrix[:, order[:leading]]
    centre = generator.directions.centre.double() if hasattr(generator.directions, "centre") else torch.zeros(DIM)
    expected = centre + (flat(y) - centre) @ q @ q.T
    seen = generator.view(y)
    assert torch.allclose(flat(seen), expected, atol=1e-5)
    assert torch.allclose(generator.view(seen), seen, atol=1e-5)
    mixed = generator.view(0.3 * y[:4] + 0.7 * y[4:8])
    assert torch.allclose(mixed, 0.3 * seen[:4] + 0.7 * seen[4:8], atol=1e-5)
    assert float((flat(seen) - flat(y)).norm()) > 0.1
    assert torch.allclose(generator.view(y.float()).double(), seen, atol=1e-5)


@pytest.mark.parametrize("name", VIEWS)
@torch.no_grad()
def test_noise_in_the_directions_a_view_drops_does_not_reach_the_classifier(name):
    generator = CASES[name](0)
    x, zeros = rand(1, *SHAPE), torch.zeros(())
    s = generator.scales()
    louder = torch.cat([s[: generator.leading], 100 * s[generator.leading :]])
    loud = Fixed(generator.directions.scale(louder), mean=zeros)
    quiet = Fixed(generator.directions.scale(s), mean=zeros)
    a, b = (generator.view(one.perturb(x, LAW, 4, rng(3))) for one in (loud, quiet))
    assert torch.allclose(a, b, atol=2e-4)


@pytest.mark.parametrize("name", VIEWS)
@torch.no_grad()
def test_the_first_scales_belong_to_the_leading_directions(name):
    generator = CASES[name](0)
    s = generator.scales()
    leading = flat(generator.view(torch.eye(DIM).reshape(DIM, *SHAPE)) - generator.view(torch.zeros(1, *SHAPE)))
    sigma = sigma_at(generator, torch.zeros(1, *SHAPE))
    through = torch.linalg.svdvals(leading.double() @ sigma)[: generator.leading]  # Σ as the classifier sees it
    expected = s[: generator.leading].double().sort(descending=True).values
    assert torch.allclose(through, expected, atol=1e-5)


def test_principal_components_are_those_of_the_images():
    images = pictures(0)
    components = PrincipalComponents.of(images)
    centred = (images - images.mean(0)).reshape(60, DIM).double()
    spread = (centred @ components.components.double()).square().sum(0)
    assert (spread.diff() <= 1e-9).all()
    truth = torch.linalg.svdvals(centred)[:4].square()
    assert torch.allclose(spread[:4], truth, rtol=1e-5)
    eye = torch.eye(DIM, dtype=torch.float64)
    assert torch.allclose(components.components.double().T @ components.components.double(), eye, atol=1e-6)
    shown = BasisWise.pca(images, leading=4).view(images)
    assert torch.allclose(shown, images, atol=1e-5)  # rank 4: nothing is lost


def test_cosines_go_from_low_frequencies_to_high_through_all_channels():
    order = Cosines((3, 8, 8)).order
    assert set(order[:3].tolist()) == {0, 64, 128}  # the channels' means lead
    frequency = (torch.arange(8)[:, None] ** 2 + torch.arange(8) ** 2).expand(3, 8, 8).flatten()[order]
    assert (frequency.diff() >= 0).all()
    constant = torch.full((1, 3, 8, 8), 0.4)
    assert torch.allclose(BasisWise.dct((3, 8, 8), leading=3).view(constant), constant, atol=1e-5)


@pytest.mark.parametrize("bands", (1, 2, 5, 7))
def test_learned_bands_start_near_the_given_scale_and_only_touch_the_leading_directions(bands):
    generator = BasisWise.pca(pictures(0), leading=7, scale=(0.25, 0.9), bands=bands)
    s = generator.scales()
    assert s.shape == (DIM,) and torch.allclose(s[:7], torch.full((7,), 0.25), atol=1e-3)
    assert torch.equal(s[7:].detach(), torch.full((17,), 0.9))
    assert generator.raw.shape == (bands,) and generator.cap() == 1.0
    s.sum().backward()
    assert (generator.raw.grad != 0).all()


@pytest.mark.parametrize("leading, bands", [(6, 3), (7, 3), (24, 24), (7, 5)])
def test_learned_bands_start_from_the_mean_of_the_scales_given_to_their_directions(leading, bands):
    given = torch.linspace(0.1, 0.9, DIM)
    generator = BasisWise.dct(SHAPE, leading=leading, scale=given, bands=bands)
    s = generator.scales().detach()
    for number in range(bands):
        band = (generator.band == number).nonzero()[:, 0]
        assert len(band) in (leading // bands, leading // bands + 1)
        assert torch.allclose(s[band], given[band].mean().expand(len(band)), atol=2e-3)


def test_one_scale_per_direction_is_taken_as_it_is():
    given = torch.linspace(0.1, 0.9, DIM)
    assert torch.equal(BasisWise.dct(SHAPE, scale=given).scales(), given)


def test_imagenet_sized_cosine_noise_needs_no_matrix():
    shape = (3, 224, 224)
    dim = math.prod(shape)
    generator = BasisWise.dct(shape, scale=(0.25, 1.0), bands=4)
    assert sum(t.numel() for t in generator.state_dict().values()) <= 4 * dim
    assert generator.leading == dim // 6
    x = rand(1, *shape)
    with torch.no_grad():
        noisy = generator.perturb(x, Gaussian(scale=0.5), 2, rng())
        assert noisy.shape == (2, 1, *shape) and generator.view(noisy[0]).shape == x.shape
        spread = (noisy - x).square().mean() / 0.25
        assert float(spread) == pytest.approx(float(generator.scales().square().mean()), rel=0.02)
        region = generator.region(Gaussian(scale=0.5), 0.9, 2, x)
        smallest = float(generator.scales().min())
    assert region.inscribed_radius(2) == pytest.approx(smallest * region.radius, rel=1e-4)
    assert region.contains(torch.zeros(1, *shape)).all() and math.isfinite(region.log_volume)
    g = SmoothedClassifier(lambda b: (b.mean((1, 2, 3)) > 0.2).long(), Gaussian(scale=0.5), generator, 2)
    (c,) = g.certify(x, n0=8, n=32)
    assert c.prediction == 1 and c.scope == "pipeline"


def test_every_public_generator_is_under_contract():
    public = {
        getattr(ucan, name)
        for name in ucan.__all__
        if isinstance(getattr(ucan, name), type) and issubclass(getattr(ucan, name), ucan.Generator)
    }
    # No x + μ + Σε, or a pipeline whose Σ depends on the input: contracts of their own, in test_composed, _splitting, _elastic.
    apart = {ucan.Composed, ucan.Splitting, ucan.InputDependent}
    assert public - {ucan.Generator} - apart == {type(make(0)) for make in CASES.values()}


class Loud(ucan.Generator):
    """A user's own: one-dimensional, louder where the signal is."""

    scope = "frozen"

    def forward(self, x):
        return x.new_zeros(()), as_scale(0.1 + x.abs())


def test_a_generator_of_ones_own_needs_a_forward_and_a_scope():
    x = torch.tensor([[0.5, -1.0, 2.0]])
    g = SmoothedClassifier(lambda b: (b.sum(1) > 0).long(), Gaussian(scale=0.3), Loud(), 2)
    (c,) = g.certify(x, n0=20, n=1000)
    assert c.scope == "frozen" and torch.allclose(c.region.scale.sigma, 0.1 + x.abs()) and g.M.cap() is None


class Boasting(Loud):
    """The same noise, which looks at its input, under a scope that it does not have."""

    scope = "pipeline"


def test_a_scope_that_the_noise_does_not_have_is_refused():
    g = SmoothedClassifier(lambda b: (b.sum(1) > 0).long(), Gaussian(scale=0.3), Boasting(), 2)
    with pytest.raises(InvalidInput, match="depends on the input"):
        g.certify(torch.tensor([[0.5, -1.0, 2.0]]), n=100)
    Boasting.scope = "registry"  # that is what a registry gives
    with pytest.raises(InvalidInput, match="pipeline or frozen"):
        SmoothedClassifier(lambda b: (b.sum(1) > 0).long(), Gaussian(scale=0.3), Boasting(), 2)


class Sly(ucan.Generator):
    """Noise that is the same for most inputs, or differs by little: what its σ makes of the inputs' mean."""

    scope = "pipeline"

    def __init__(self, sigma):
        super().__init__()
        self.sigma = sigma

    def forward(self, x):
        return torch.zeros(()), Diagonal(self.sigma(x.mean()).expand(x.shape[1:]).clone())


@pytest.mark.parametrize(
    "sigma",
    (lambda mean: torch.where(mean < 0.5, 0.1, 1.0), lambda mean: 1e-7 * (1 + mean.abs())),
    ids=("the same at many inputs", "tiny"),
)
def test_a_scope_is_held_against_every_input_and_every_scale(sigma):
    g = SmoothedClassifier(lambda b: (b.sum(1) > 0).long(), Gaussian(scale=0.3), Sly(sigma), 2)
    dark, bright = torch.full((1, 4), 0.2), torch.full((1, 4), 0.8)
    for ask in (g.certify, g.predict):
        with pytest.raises(InvalidInput, match="depends on the input"):
            [ask(x, n=100) for x in (dark, bright)]
        with pytest.raises(InvalidInput, match="depends on the input"):
            ask(torch.cat([dark, bright]), n=100)
    with pytest.raises(InvalidInput, match="depends on the input"):
        g.certify(torch.cat([dark, bright]), n=100, stop=0.1)


def test_a_network_that_works_in_place_does_not_reach_the_input():
    class InPlace(Loud):
        def forward(self, x):
            return super().forward(x.mul_(-1))

    x = torch.tensor([[3.0, 2.0, 1.0]])
    g = SmoothedClassifier(lambda b: (b.sum(1) > 0).long(), Gaussian(scale=0.1), InPlace(), 2)
    (c,) = g.certify(x, n=200)
    assert c.prediction == 1 and c.evidence.input_hash == input_hash(x)


def test_a_view_that_remembers_the_clean_input_is_refused():
    class Leaking(Sly):
        def forward(self, x):
            self.clean = x
            return super().forward(x)

        def view(self, y):
            return self.clean.expand_as(y)

    for scope in ("pipeline", "frozen"):
        Leaking.scope = scope
        leaking = Leaking(lambda mean: torch.ones(()))
        g = SmoothedClassifier(lambda b: (b.sum(1) > 0).long(), Gaussian(scale=1.0), leaking, 2)
        with pytest.raises(InvalidInput, match="depends on the clean input"):
            g.certify(torch.full((1, 4), 0.2), n=100)


class Broken(ucan.Generator):
    scope = "pipeline"

    def __init__(self, mu, sigma):
        super().__init__()
        self.mu, self.sigma = mu, sigma

    def forward(self, x):
        return self.mu, as_scale(self.sigma)


INVALID = {
    "gamma zero": lambda: DatasetWise(SHAPE, gamma=0.0),
    "gamma infinite": lambda: CertificationWise(3, gamma=math.inf),
    "gamma nan": lambda: CertificationWise(3, gamma=math.nan),
    "no channels": lambda: CertificationWise(channels=0),
    "no features": lambda: CertificationWise(3, features=0),
    "no growth": lambda: ucan.Composed(3, growth=0),
    "leading zero, dct": lambda: BasisWise.dct(SHAPE, leading=0),
    "leading zero": lambda: BasisWise.pca(pictures(0), leading=0),
    "leading beyond d": lambda: BasisWise.pca(pictures(0), leading=DIM + 1),
    "default leading beyond d": lambda: BasisWise.pca(pictures(0)),
    "scale of another length": lambda: BasisWise.dct(SHAPE, scale=(1.0, 1.0, 1.0)),
    "scale zero": lambda: BasisWise.dct(SHAPE, scale=(0.0, 1.0)),
    "scale negative": lambda: BasisWise.pca(pictures(0), leading=3, scale=(0.5, -1.0)),
    "scale nan": lambda: BasisWise.dct(SHAPE, scale=(math.nan, 1.0)),
    "bands beyond leading": lambda: BasisWise.dct(SHAPE, leading=3, bands=4),
    "no bands": lambda: BasisWise.dct(SHAPE, leading=3, bands=0),
    "start above the cap": lambda: BasisWise.dct(SHAPE, bands=1, scale=(0.5, 2.0)),
    "cap zero": lambda: BasisWise.dct(SHAPE, cap=0.0),
    "dct of a vector": lambda: BasisWise.dct((9,)),
    "too large for pca": lambda: BasisWise.pca(torch.zeros(1, MAX_PCA + 1)),
    "mu not finite": lambda: Broken(torch.tensor(math.nan), 1.0).at(rand(1, *SHAPE)),
    "sigma zero": lambda: Broken(torch.zeros(()), torch.zeros(SHAPE)).at(rand(1, *SHAPE)),
    "sigma of another size": lambda: Broken(torch.zeros(()), torch.ones(5)).at(rand(1, *SHAPE)),
    "mu of another size": lambda: Broken(torch.zeros(5), 1.0).at(rand(1, *SHAPE)),
    "mu of a batch": lambda: Broken(torch.zeros(2, *SHAPE), 1.0).at(rand(1, *SHAPE)),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_generators_are_refused(case):
    with pytest.raises((InvalidInput, ucan.SingularScale)):
        INVALID[case]()


@pytest.mark.parametrize("kind", ["certification-wise", "composed"])
def test_inputs_in_double_precision_are_taken_with_a_network_in_single(kind):
    """As a message about noise lost in rounding advises."""
    if kind == "composed":
        noise = ucan.Composed(1, norm=2, features=2, growth=2)
    else:
        noise = ucan.CertificationWise(1, features=2, growth=2)
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)).eval()
    g = ucan.SmoothedClassifier(net, ucan.Gaussian(0.25), noise, num_classes=3)
    single, double = g.certify(x, n=200), g.certify(x.double(), n=200)
    assert [c.evidence.n for c in single] == [c.evidence.n for c in double] == [200, 200]
