"""What is refused before any work because votes would prove nothing, and copies of a model that must not go stale."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ucan
from ucan.fingerprint import identity, plain_state
from ucan.votes import Classifier, Job, Stream, VoteCounter

X = torch.full((1, 4), 0.1)


def line(sign: float = 1.0) -> nn.Linear:
    """Class 1 where the entries add up to more than 0."""
    made = nn.Linear(4, 2).eval()
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[0.0] * 4, [sign] * 4]))
        made.bias.zero_()
    return made


def certified(model, x=X, M=None, law=None, n=500, **options):
    g = ucan.SmoothedClassifier(model, law or ucan.Gaussian(0.1), M, num_classes=2, **options)
    return g.certify(x, n=n)[0]


class Plain(ucan.Generator):
    """Isotropic noise, as the base of kinds that go wrong."""

    scope = "pipeline"

    def forward(self, x):
        return x.new_zeros(()), ucan.scales.Scalar(1.0)


# --- precision ---


def test_votes_are_not_counted_in_another_precision_than_the_evidence_says():
    g = ucan.SmoothedClassifier(line(), ucan.Gaussian(0.1), num_classes=2)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ucan.InvalidInput, match=r"torch\.autocast.*'bf16'"),
    ):
        g.certify(X, n=100)
    assert g.certify(X, n=100)[0].evidence.precision == "fp32"


def test_a_block_that_is_entered_later_is_noticed_at_the_next_pass():
    f = Classifier(line(), 2)
    counter = VoteCounter(f, 2, ucan.Gaussian(0.1), block=50, size=50)
    job = Job(ucan.Isotropic().at(X), X, Stream(0, "x", "estimate"), 0, 50)
    counter.count([job])
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ucan.InvalidInput, match=r"torch\.autocast"):
        counter.count([job])


# --- company ---


class Averages(Plain):
    def view(self, y):
        return y.mean(0, keepdim=True).expand_as(y)


class Centres(Plain):
    def view(self, y):
        return y - y.mean(0, keepdim=True)


class Crops(Plain):
    def view(self, y):
        return y[:, :2].repeat(1, 2)


@pytest.mark.parametrize("kind", [Averages, Centres])
def test_a_view_that_mixes_a_batch_is_refused(kind):
    with pytest.raises(ucan.InvalidInput, match="in other company"):
        certified(line(), M=kind())
    assert certified(line(), M=Crops()).scope == "pipeline"


class Normalises(Plain):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def view(self, y):
        return self.norm(y)


def test_a_generator_in_training_mode_is_refused():
    M = Normalises()
    g = ucan.SmoothedClassifier(line(), ucan.Gaussian(0.1), M, num_classes=2)
    assert g.certify(X, n=200)[0].scope == "pipeline"
    M.train()
    with pytest.raises(ucan.InvalidInput, match="training mode"):
        g.certify(X, n=200)


def test_a_model_is_looked_at_again_when_its_switches_change():
    norm = nn.BatchNorm2d(1)
    model = nn.Sequential(norm, nn.Flatten(), line()).eval()
    g = ucan.SmoothedClassifier(model, ucan.Gaussian(0.1), num_classes=2)
    x = X.reshape(1, 1, 2, 2)
    assert g.certify(x, n=200)[0].prediction == 1
    norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    with pytest.raises(ucan.ModelError, match="in other company"):
        g.certify(x, n=200)


# --- models that change, or draw for a whole batch ---


class Adapts(nn.Module):
    """Test-time adaptation: what was asked before moves the answer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, y):
        self.mean.mul_(0.5).add_(0.5 * y.mean())
        return torch.stack([-self.mean.expand(len(y)), self.mean.expand(len(y)) + 0.05], 1)


def test_a_model_that_changes_itself_is_refused():
    with pytest.raises(ucan.ModelError, match=r"changes its own weights or buffers|in other company|whole batch"):
        certified(Adapts().eval())


class Counts(nn.Module):
    """Counts in a buffer what it was asked, and answers by each input alone."""

    def __init__(self):
        super().__init__()
        self.inner = line()
        self.register_buffer("asked", torch.zeros(()))

    def forward(self, y):
        self.asked += len(y)
        return self.inner(y)


def test_a_buffer_that_counts_is_a_change():
    with pytest.raises(ucan.ModelError, match="changes its own weights or buffers"):
        certified(Counts().eval())


@pytest.mark.parametrize("each", [False, True], ids=["for a batch", "for each input"])
def test_a_model_that_draws_once_for_a_batch_is_refused(each):
    inner = line()

    def draws(y):
        return inner(y) + 50 * torch.randn(len(y) if each else 1, 1) * torch.tensor([-1.0, 1.0])

    if each:
        assert certified(draws, model_id="draws").evidence.n == 500
    else:
        with pytest.raises(ucan.ModelError, match="draws once for a whole batch"):
            certified(draws, model_id="draws")


# --- noise that makes copies in its own way ---


class Itself(Plain):
    def at(self, x):
        return self


class Grows(Itself):
    """Wider noise at larger inputs: no shift of one distribution."""

    def place(self, x, eps, law, noise=None):
        return x + eps * (0.05 + x.abs())


class Steeper(Itself):
    def place(self, x, eps, law, noise=None):
        return 5 * x + eps


class Same(Itself):
    """x + ε, computed in another order."""

    def place(self, x, eps, law, noise=None):
        return eps + x


@pytest.mark.parametrize("kind", [Grows, Steeper])
def test_noise_of_its_own_way_needs_regions_of_its_own(kind):
    with pytest.raises(ucan.InvalidInput, match="does not move as its input does"):
        certified(line(), M=kind())
    assert certified(line(), M=Same()).radius == certified(line()).radius


# --- copies that were made of a model ---


class Shifted(nn.Module):
    """With a tensor that is neither a weight nor a buffer, and one that every pass leaves behind."""

    def __init__(self):
        super().__init__()
        self.inner, self.shift = line(), torch.tensor(0.0)

    def forward(self, y):
        self.seen = y - self.shift
        return self.inner(self.seen)


@pytest.mark.parametrize(
    "way", [{}, {"precision": "bf16"}, {"backend": "compile"}], ids=["as it is", "bf16", "compile"]
)
def test_a_copy_follows_tensors_that_are_no_weights(way):
    model = Shifted().eval()
    g = ucan.SmoothedClassifier(model, ucan.Gaussian(0.1), num_classes=2, **way)
    found = []
    for shift in (0.0, 1.0, 0.0):
        model.shift = torch.tensor(shift)
        found.append(g.certify(X, n=300)[0].prediction)
    assert found == [1, 0, 1]


def test_the_identity_of_a_model_has_its_tensors_and_not_what_a_pass_left():
    one, other = Shifted().eval(), Shifted().eval()
    other.load_state_dict(one.state_dict())
    assert identity(one) == identity(other)
    with torch.inference_mode():
        one(X)
    assert identity(one) == identity(other) and plain_state(one) == plain_state(other)
    other.shift = torch.tensor(0.3)
    assert identity(one) != identity(other) and plain_state(one) != plain_state(other)
    other.shift = one.shift
    other.many = [torch.zeros(2), torch.ones(2)]
    before = plain_state(other)
    other.many[1][0] = 7.0
    assert plain_state(other) != before


class Shows(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("sign", torch.tensor(1.0))

    def view(self, y):
        return y * self.sign


@pytest.mark.parametrize("backend", ["eager", "compile"])
def test_a_copy_follows_the_view(backend):
    M = Shows()
    g = ucan.SmoothedClassifier(line(), ucan.Gaussian(0.1), M, num_classes=2, backend=backend)
    assert g.certify(X, n=300)[0].prediction == 1
    M.sign.fill_(-1.0)
    assert g.certify(X, n=300)[0].prediction == 0


# --- memory ---


class Fits(nn.Module):
    """As many copies in one forward pass as fit into a device's memory."""

    def __init__(self, copies):
        super().__init__()
        self.copies, self.inner = copies, line()

    def forward(self, y):
        if len(y) > self.copies:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.inner(y)


def test_a_model_that_does_not_fit_is_refused_for_that():
    with pytest.raises(ucan.ModelError, match="not even a forward pass of one copy fits"):
        certified(Fits(0).eval())
    with pytest.raises(ucan.ModelError, match=r"of a few copies does not fit.*votes are independent"):
        certified(Fits(3).eval())
    with pytest.warns(RuntimeWarning, match="forward passes of"):
        assert certified(Fits(200).eval()).evidence.batch_size == 128
