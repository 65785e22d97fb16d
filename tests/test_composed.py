"""Composed noise: the composition bound by direct simulation, the budget, who sees what, and the generator contract."""

import json
import math

import pytest
import torch
from safetensors.torch import load, save
from scipy.special import ndtr, ndtri
from torch import nn

import ucan
from ucan import Certificate, Composed, Gaussian, InvalidInput, Isotropic, Laplace, SmoothedClassifier, UnsupportedNorm
from ucan.certificate import from_dict
from ucan.generators.learned import DenseBlock
from ucan.training.joint import Joint
from ucan.training.recipes import Augmentation, Consistency
from ucan.training.settings import TrainSettings
from ucan.verify import noise_of, verify

SHAPE = (2, 3, 4)
DIM = 24
LAW = Gaussian(scale=0.7)
NORMS = (2, math.inf)

both_norms = pytest.mark.parametrize("norm", NORMS)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def rand(*shape, seed=0):
    return torch.rand(*shape, generator=rng(seed))


def made(norm=math.inf, seed=0, **parameters):
    """Composed noise as training leaves it: a network that says different things of different looks."""
    torch.manual_seed(seed)
    generator = Composed(2, norm=norm, features=3, growth=2, **parameters)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng(seed)))
    return generator.eval()


class Says(nn.Module):
    """A network of one's own: any function of the first look."""

    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, y1):
        return self.of(y1)


# --- the composition bound, by simulation ---

ADAPTIVE = {
    "loud where y1 is large": lambda y1: 3 * y1,
    "quiet where y1 is large": lambda y1: -3 * y1,
    "by the sign of the sum": lambda y1: (
        torch.where(y1.sum(1, keepdim=True) > 0, 4.0, -4.0) * torch.arange(1.0, y1.shape[1] + 1, dtype=y1.dtype)
    ),
    "one coordinate for all": lambda y1: torch.eye(y1.shape[1], dtype=y1.dtype)[y1.argmax(1)] * -20 + 10,
    "constant": lambda y1: torch.zeros_like(y1),
}


def looks(x, net, norm, n, seed):
    """Both looks at x, written out from the paper's formulas: y1, y2 and s."""
    generator = Composed(net=Says(net), norm=norm, share=0.4)
    noise = torch.randn(2, n, len(x), generator=rng(seed), dtype=torch.float64)
    y1 = x + LAW.scale / math.sqrt(0.4) * noise[0]
    s = generator.second_scale(y1, LAW)
    return y1, x + s * noise[1], s


def log_ratio(y1, y2, s, delta):
    """log of the density of (y1, y2) at x = δ over that at x = 0: the worst decision cuts along it."""
    first = (y1 * delta).sum(1) * 0.4 / LAW.scale**2 - 0.5 * delta.square().sum() * 0.4 / LAW.scale**2
    second = (y2 * delta / s**2).sum(1) - 0.5 * (delta.square() / s**2).sum(1)
    return first + second


@both_norms
@pytest.mark.parametrize("dim", (1, 2, 8))
@pytest.mark.parametrize("name", ADAPTIVE)
def test_no_decision_beats_the_composition_bound_and_the_worst_comes_near(norm, dim, name):
    """The likelihood-ratio cut is the strongest decision there is (Neyman and Pearson): it loses the most by the shift."""
    n, net = 60_000, ADAPTIVE[name]
    directions = [torch.ones(dim, dtype=torch.float64), torch.eye(dim, dtype=torch.float64)[0]]
    for i, v in enumerate(directions):
        delta = 0.6 * v / torch.linalg.vector_norm(v, ord=norm)
        mu = 0.6 / LAW.scale * (math.sqrt(dim) if norm == math.inf else 1)
        zero = torch.zeros(dim, dtype=torch.float64)
        here = log_ratio(*looks(zero, net, norm, n, 2 * i), delta)
        there = log_ratio(*looks(delta, net, norm, n, 2 * i + 1), delta)
        for p in (0.6, 0.9, 0.99):
            cut = float(here.quantile(p))  # the class: likelihood ratio below the cut, with probability p at x = 0
            kept = float((there <= cut).double().mean())
            bound = float(ndtr(ndtri(p) - mu))
            error = 5 * math.sqrt(bound * (1 - bound) / n) + 5 * math.sqrt(p * (1 - p) / n)
            assert kept >= bound - error
            if name == "constant" and i == 0:  # isotropic noise: the bound is tight
                assert kept <= bound + error


def test_the_bound_would_fail_for_scales_beyond_the_budget():
    """The check above can fail: with s a fifth smaller than the budget allows, the worst cut loses too much."""
    zero, delta = torch.zeros(8, dtype=torch.float64), torch.full((8,), 0.6, dtype=torch.float64)
    mu, n = 0.6 / LAW.scale * math.sqrt(8), 60_000

    def small(x, seed):
        y1, y2, s = looks(x, ADAPTIVE["constant"], math.inf, n, seed)
        return y1, x + 0.8 * (y2 - x), 0.8 * s

    cut = log_ratio(*small(zero, 0), delta).quantile(0.99)
    kept = float((log_ratio(*small(delta, 1), delta) <= cut).double().mean())
    assert kept < float(ndtr(ndtri(0.99) - mu)) - 0.02


@both_norms
@pytest.mark.parametrize("dim", (1, 2, 8))
@pytest.mark.parametrize("name", ADAPTIVE)
def test_no_region_of_the_shown_mean_beats_the_bound(norm, dim, name):
    """The same from the outside: copies as ``perturb`` makes them, and the worst set that a fit can find in them.

    A quadratic discriminant fitted to copies at 0 and at δ stands for the attacker's classifier; it is judged on others.
    """
    n, r, law = 40_000, 0.6, Gaussian(scale=0.7)
    generator = Composed(net=Says(ADAPTIVE[name]), norm=norm, share=0.4).double()
    v = torch.ones(1, dim, dtype=torch.float64)
    delta = r * v / torch.linalg.vector_norm(v, ord=norm)
    region = generator.region(law, 0.9, norm, delta)
    mu = ndtri(0.9) * r / region.radius  # what the certificate says a shift of this size costs

    def features(x, seed):
        with torch.no_grad():
            y = generator.perturb(x, law, n, rng(seed))[:, 0]
        return torch.cat([torch.ones(n, 1, dtype=torch.float64), y, y * y, y * y.sum(1, keepdim=True), y.abs()], 1)

    here, there = (features(x, seed) for x, seed in ((0 * delta, 0), (delta, 1)))
    weights = torch.linalg.lstsq(
        torch.cat([here, there]), torch.cat([torch.zeros(n), torch.ones(n)]).double()[:, None], driver="gelsd"
    ).solution
    a, b = ((features(x, seed) @ weights)[:, 0] for x, seed in ((0 * delta, 2), (delta, 3)))
    for p in (0.6, 0.9, 0.99):
        kept, bound = float((b <= a.quantile(p)).double().mean()), float(ndtr(ndtri(p) - mu))
        error = 5 * math.sqrt(bound * (1 - bound) / n) + 5 * math.sqrt(p * (1 - p) / n)
        assert kept >= bound - error
        if name == "constant":
            assert kept <= bound + error  # isotropic noise against a half-space: nothing is given away


# --- the budget, and who sees what ---

EXTREME = (-math.inf, -1e30, -50.0, -1.0, 0.0, 1.0, 50.0, 1e30, math.inf)


@both_norms
@pytest.mark.parametrize("spread", (1.0, 7.0, 100.0, 1e6))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_the_budget_is_met_from_the_sound_side_whatever_the_network_says(norm, spread, dtype):
    raw = torch.cat(
        [
            torch.tensor(EXTREME)[:, None].expand(-1, 3072),
            torch.tensor(EXTREME)[torch.randint(len(EXTREME), (20, 3072), generator=rng())],
            10 * torch.randn(20, 3072, generator=rng(1)),
        ]
    ).to(dtype)
    for share in (0.01, 0.5, 0.99):
        generator = Composed(net=Says(lambda y1: raw), norm=norm, share=share, spread=spread)
        s = generator.second_scale(torch.zeros(len(raw), 3072), LAW).double()
        sigma_2 = LAW.scale / math.sqrt(1 - share)
        if norm == 2:
            assert (s >= sigma_2).all() and torch.allclose(s.amin(1), torch.tensor(sigma_2).double(), rtol=1e-5)
        else:
            used = s.pow(-2).sum(1) * sigma_2**2 / 3072
            assert (used <= 1).all() and (used > 1 - 2e-5).all()
        assert (s.amax(1) <= s.amin(1) * spread * (1 + 1e-5)).all()


@both_norms
@torch.no_grad()
def test_what_is_not_a_number_stays_so_and_tells_nothing(norm):
    """Where the network answers NaN no second look is shown at all: a function of the first look, which is paid for."""
    generator = Composed(net=Says(lambda y1: torch.where(y1 > 1, math.nan, y1)), norm=norm)
    y = generator.perturb(torch.zeros(1, 8), LAW, 2000, rng())
    lost = y.isnan()
    assert 0 < lost.any(-1).double().mean() < 1 and torch.equal(lost.any(-1), lost.all(-1))
    assert generator.at(torch.zeros(1, 8)) is not None  # NaN in the same places, alone or in company


@torch.no_grad()
def test_the_network_sees_the_first_look_and_nothing_else():
    """Two inputs and two draws that give the same first look give the same s; the look is x + ε₁/√t."""
    seen = []
    generator = Composed(net=Says(lambda y1: seen.append(y1) or torch.sin(9 * y1)), share=0.3)
    x = rand(2, *SHAPE)
    generator.perturb(x, LAW, 3, rng(5))
    first = LAW.sample(12, SHAPE, rng(5))[:6].reshape(3, 2, *SHAPE)
    (y1,) = seen
    assert torch.allclose(y1.reshape(3, 2, *SHAPE), x + first / math.sqrt(0.3), atol=1e-6)

    class Echo(Gaussian):
        """Draws whose first look is the same picture whatever x is."""

        def _draw(self, n, dim, rng, dtype):
            draws = super()._draw(n, dim, rng, dtype).reshape(2, -1, dim)
            return torch.stack([(0.5 - here.flatten()) * math.sqrt(0.3) + 0 * draws[0], draws[1]]).reshape(n, dim)

    scales = []
    original = generator.second_scale
    generator.second_scale = lambda y, law: scales.append(original(y, law)) or scales[-1]
    for here in (rand(1, *SHAPE, seed=1), rand(1, *SHAPE, seed=2)):
        generator.perturb(here, Echo(scale=0.7), 2, rng(0))
    assert torch.allclose(scales[0], scales[1], atol=1e-5) and scales[0].shape == (2, *SHAPE)


@both_norms
@torch.no_grad()
def test_the_classifier_is_shown_the_precision_weighted_mean(norm):
    generator, x = made(norm), rand(1, *SHAPE).double()
    generator = generator.double()
    y = generator.perturb(x, LAW, 4, rng(2))[:, 0]
    first, second = LAW.sample(8, SHAPE, rng(2), torch.float64).reshape(2, 4, *SHAPE)
    sigma_1 = LAW.scale / math.sqrt(0.5)
    y1 = x + math.sqrt(2) * first
    s = generator.second_scale(y1, LAW)
    y2 = x + s * second / LAW.scale
    assert torch.allclose(y, (y1 / sigma_1**2 + y2 / s**2) / (1 / sigma_1**2 + 1 / s**2))


@both_norms
@torch.no_grad()
def test_without_a_shape_it_is_isotropic_noise(norm):
    generator = Composed(net=Says(torch.zeros_like), norm=norm, share=0.3)
    noise = generator.perturb(torch.zeros(1, 50), LAW, 20_000, rng(0)).double()
    assert float(noise.std()) == pytest.approx(LAW.scale, rel=0.005) and abs(float(noise.mean())) < 0.005


# --- the certificate never exceeds the truth ---


@both_norms
def test_a_linear_classifiers_certificate_never_exceeds_the_truth(norm):
    """The pipeline, run at the worst point of the region: it still answers as certified."""
    dim = 6
    weights = torch.linspace(0.2, 1.5, dim)
    net = Says(lambda y1: 4 * torch.sin(3 * y1))
    g = SmoothedClassifier(lambda y: (y @ weights > 0).long(), Gaussian(scale=0.5), Composed(net=net, norm=norm), 2)
    x = torch.full((1, dim), 0.3)
    (c,) = g.certify(x, n=20_000, norm=norm)
    assert isinstance(c, Certificate) and c.prediction == 1 and c.scope == "pipeline" and c.region.norm == norm
    assert c.radius == pytest.approx(0.5 * ndtri(c.p_lower) / (math.sqrt(dim) if norm == math.inf else 1))
    worst = torch.sign(weights) if norm == math.inf else weights / weights.norm()
    moved = x - 0.999 * c.radius * worst
    assert c.region.contains(moved - x).all()
    votes = g.votes(moved, 40_000, 7, "attack")
    assert int(votes.counts[1]) > 20_000 - 5 * 100


# --- the contract ---


@both_norms
@torch.no_grad()
def test_shapes_and_dtypes(norm):
    generator, x = made(norm), rand(5, *SHAPE)
    mu, scale = generator(x)
    assert not mu.any() and scale.value == 1.0 and generator.cap() == 1.0
    for n in (1, 3):
        noisy = generator.perturb(x, LAW, n, rng())
        assert noisy.shape == (n, 5, *SHAPE) and noisy.dtype == x.dtype and noisy.isfinite().all()
    region = generator.region(LAW, 0.9, norm, x[:1])
    assert region.shape == SHAPE and region.norm == norm and region.radius == LAW.radius(0.9, norm, DIM)
    assert generator.region(LAW, 0.6, norm, x[:1], 0.1).radius == LAW.radius(0.6, norm, DIM, 0.1)


@both_norms
@torch.no_grad()
def test_perturb_perturb_into_and_at_agree_and_every_copy_is_drawn_anew(norm):
    generator, x = made(norm), rand(1, *SHAPE)
    expected = generator.perturb(x, LAW, 5, rng(3))[:, 0]
    held = generator.at(x)
    assert held is not generator.at(x) and held.scope == generator.scope == "pipeline"
    assert type(generator).__name__ in generator.describe() == held.describe()
    assert torch.equal(held.perturb(x, LAW, 5, rng(3))[:, 0], expected)
    for one in (generator, held):
        out = torch.full((5, *SHAPE), math.nan)
        one.perturb_into(out[None], x, LAW, [rng(3)])
        assert torch.equal(out, expected)
    scales = generator.second_scale(x + torch.randn(4, *SHAPE, generator=rng()), LAW)
    assert not any(torch.allclose(scales[i], scales[j], rtol=1e-3) for i in range(4) for j in range(i))


@torch.no_grad()
def test_weights_round_trip_through_safetensors():
    source, target = made(seed=0), made(seed=1)
    x = rand(2, *SHAPE)
    expected = source.perturb(x, LAW, 4, rng(3))
    assert not torch.equal(target.perturb(x, LAW, 4, rng(3)), expected)
    target.load_state_dict(load(save({k: v.contiguous() for k, v in source.state_dict().items()})))
    assert torch.equal(target.perturb(x, LAW, 4, rng(3)), expected)


@both_norms
@pytest.mark.parametrize("recipe", [Augmentation(), Consistency()], ids=lambda r: type(r).__name__)
def test_every_parameter_of_the_network_learns(norm, recipe):
    generator = made(norm).train()
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(DIM, 3))
    loss = Joint(classifier, generator, LAW, recipe, "none", 1.0)(rand(6, *SHAPE), torch.arange(6) % 3, rng())["loss"]
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in generator.parameters())


def test_the_gradient_through_the_budget_is_right():
    for norm in NORMS:
        generator = Composed(net=Says(lambda raw: raw), norm=norm).double()
        raw = torch.randn(2, 5, generator=rng(), dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(lambda r, g=generator: g.second_scale(r, LAW), raw)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)).eval()


@both_norms
def test_certify_verify_and_json(norm, tmp_path):
    generator = made(norm)
    g = SmoothedClassifier(model(), Gaussian(scale=0.05), generator, num_classes=3)
    x = rand(3, *SHAPE)
    outcomes = g.certify(x, n0=20, n=300, alpha=0.01, norm=norm)
    assert [c.evidence for c in outcomes] == [
        g.certify(x[i : i + 1], n0=20, n=300, alpha=0.01, norm=norm)[0].evidence for i in range(3)
    ]
    c = next(c for c in outcomes if isinstance(c, Certificate))
    assert c.scope == "pipeline" and c.mean is None and c.evidence.generator == generator.describe()
    assert c.radius == c.region.radius == c.alm == pytest.approx(LAW.radius(c.p_lower, norm, DIM) * 0.05 / 0.7)
    again = from_dict(json.loads(json.dumps(c.to_dict())))
    assert again.to_dict() == c.to_dict()
    i = outcomes.index(c)
    noise = noise_of(again, generator)
    assert noise is generator
    assert verify(again, SmoothedClassifier(g.f.model, g.law, noise, 3), x[i : i + 1], n=500).stands
    with pytest.raises(InvalidInput, match="needs its network"):
        noise_of(again)


def test_stopping_early_works_on_it():
    g = SmoothedClassifier(model(), Gaussian(scale=0.05), made(2), num_classes=3)
    (c,) = g.certify(rand(1, *SHAPE), n=20_000, stop=[0.01])
    assert isinstance(c, Certificate) and c.evidence.n < 20_000 and c.evidence.bound == "sequential"
    assert g.predict(rand(1, *SHAPE), n=300)[0].prediction == c.prediction


def test_it_pays_under_linf_where_only_few_pixels_matter():
    """64 pixels, of which the classifier reads four: a network that quiets those certifies more than isotropic noise."""
    weights = torch.zeros(64)
    weights[:4] = 1.0
    model_ = lambda y: (y @ weights > 0).long()  # noqa: E731
    quiet = Says(lambda y1: torch.where(weights > 0, -5.0, 5.0).expand_as(y1))
    x, law = torch.full((1, 64), 0.05), Gaussian(scale=0.5)
    (plain,) = SmoothedClassifier(model_, law, Isotropic(), 2).certify(x, n=20_000, norm=math.inf)
    (shaped,) = SmoothedClassifier(model_, law, Composed(net=quiet, share=0.1), 2).certify(x, n=20_000, norm=math.inf)
    assert shaped.radius > 2 * plain.radius


def test_training_settings_make_it():
    generator = TrainSettings(generator={"kind": "composed", "norm": "inf", "share": 0.25}).build_generator(SHAPE, None)
    assert isinstance(generator, Composed) and generator.norm == math.inf and generator.share == 0.25
    assert isinstance(generator.net, DenseBlock)
    assert TrainSettings(generator={"kind": "composed", "norm": 2}).build_generator(SHAPE, None).norm == 2


INVALID = {
    "norm 1": (lambda: Composed(2, norm=1), UnsupportedNorm),
    "share 0": (lambda: Composed(2, share=0.0), InvalidInput),
    "share 1": (lambda: Composed(2, share=1.0), InvalidInput),
    "share nan": (lambda: Composed(2, share=math.nan), InvalidInput),
    "spread below 1": (lambda: Composed(2, spread=0.5), InvalidInput),
    "spread infinite": (lambda: Composed(2, spread=math.inf), InvalidInput),
    "no network": (lambda: Composed(), InvalidInput),
    "two networks": (lambda: Composed(2, net=nn.Identity()), InvalidInput),
    "a net of another shape": (
        lambda: Composed(net=nn.Flatten()).perturb(rand(1, *SHAPE), LAW, 2, rng()),
        InvalidInput,
    ),
    "a net that mixes its batch": (
        lambda: Composed(net=Says(lambda y1: y1 - y1.mean(0, keepdim=True))).at(rand(1, *SHAPE)),
        InvalidInput,
    ),
    "a net in training mode": (
        lambda: Composed(net=nn.BatchNorm2d(2).train()).at(rand(1, *SHAPE)),
        InvalidInput,
    ),
    "another law": (lambda: made().perturb(rand(1, *SHAPE), Laplace(scale=1.0), 2, rng()), InvalidInput),
    "another law's region": (lambda: made().region(Laplace(scale=1.0), 0.9, math.inf, rand(1, *SHAPE)), InvalidInput),
    "another norm's region": (lambda: made().region(LAW, 0.9, 2, rand(1, *SHAPE)), UnsupportedNorm),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_use_is_refused(case):
    make, error = INVALID[case]
    with pytest.raises(error):
        make()


def test_a_wrong_norm_or_law_is_refused_before_any_vote():
    calls = []
    model_ = lambda y: calls.append(1) or torch.zeros(len(y), dtype=torch.long)  # noqa: E731
    with pytest.raises(UnsupportedNorm, match="composed for ℓ∞"):
        SmoothedClassifier(model_, LAW, made(), 2).certify(rand(1, *SHAPE), norm=2)
    with pytest.raises(ucan.UcanError, match="Gaussian"):
        SmoothedClassifier(model_, Laplace(scale=1.0), made(), 2).certify(rand(1, *SHAPE), norm=1)
    assert not calls


@pytest.mark.parametrize("norm", (2, math.inf))
def test_a_prediction_that_stops_early_needs_no_norm(norm):
    g = SmoothedClassifier(lambda y: (y.flatten(1).mean(1) > 0).long(), Gaussian(0.25), made(norm=norm), 2)
    x = torch.full((1, 2, 6, 6), 0.5)
    (early,), (whole,) = g.predict(x, n=2000, stop=True), g.predict(x, n=2000)
    assert early.prediction == whole.prediction == 1 and early.evidence.n < 2000
