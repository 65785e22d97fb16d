"""Networks rewritten for a GPU answer as before; passes over the noise are compiled, or run as they are."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from ucan.backends import _folded
from ucan.folding import folded
from ucan.laws import ExpInf, Gaussian, Laplace, PowerLaw, Uniform
from ucan.passes import Pass

ADD, RELU = "ucan.conv_add_relu.default", "ucan.conv_relu.default"


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


class Residual(nn.Module):
    """A strided stem of few channels, a block with a plain shortcut and one with a projection, as in a ResNet."""

    def __init__(self, kernel=7, stride=2, padding=3, channels=3):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(channels, 8, kernel, stride, padding, bias=False), nn.BatchNorm2d(8)
        self.first, self.first_norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.second_norm = nn.Conv2d(8, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12)
        self.beside, self.beside_norm = nn.Conv2d(8, 12, 1, 2, bias=False), nn.BatchNorm2d(12)
        self.last = nn.Linear(12, 5)

    def forward(self, x):
        x = self.norm(self.stem(x)).relu()
        x = (self.first_norm(self.first(x)) + x).relu()
        x = torch.relu(self.second_norm(self.second(x)) + self.beside_norm(self.beside(x)))
        return self.last(x.mean((2, 3)))


def network(**settings):
    model = Residual(**settings).eval()
    for seed, (_, tensor) in enumerate([*model.named_parameters(), *model.named_buffers()]):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.4, 1.6, generator=rng(seed))
            if tensor.ndim != 1:
                tensor.data.sub_(1)
    return model


def calls(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def same(model, size, **more):
    x = torch.rand(4, *size, generator=rng(9))
    found = folded(model, model, x, **more)
    with torch.inference_mode():
        torch.testing.assert_close(found(x), model(x), rtol=1e-4, atol=1e-4)
    return found


@pytest.mark.parametrize(
    "kernel, stride, padding, size",
    [
        (7, 2, 3, (3, 16, 16)),
        (7, 2, 3, (3, 19, 22)),
        (3, 2, 1, (3, 15, 16)),
        (4, 4, 0, (3, 18, 16)),
        (5, 3, 2, (3, 19, 20)),
        (2, 2, 1, (3, 16, 17)),
    ],
)
def test_a_folded_network_answers_as_before(kernel, stride, padding, size):
    made = calls(same(network(kernel=kernel, stride=stride, padding=padding), size))
    assert "aten.batch_norm.default" not in made and "aten.relu.default" not in made
    assert made.count(RELU) == 1 and made.count(ADD) == 2
    assert made.count("aten.conv2d.default") == 1  # the projection; its bias went into the sum


def test_narrow_convolutions_are_left_to_the_compiler():
    made = calls(same(network(stride=1), (3, 16, 16), narrow=8))
    assert made.count(ADD) == 1 and RELU not in made and "aten.batch_norm.default" not in made


@pytest.mark.parametrize("channels", (1, 4, 5))
def test_only_a_stem_of_few_channels_gathers_its_neighbours(channels):
    gathered = "aten.permute.default" in calls(same(network(channels=channels), (channels, 16, 16)))
    assert gathered == (channels <= 4)


def test_a_convolution_without_a_stride_gathers_nothing():
    assert "aten.permute.default" not in calls(same(network(stride=1), (3, 16, 16)))


def test_constants_come_from_the_weights_before_they_were_rounded():
    """They are rounded once, at the end."""
    model = network(stride=1)
    found = folded(copy.deepcopy(model).bfloat16(), model, torch.rand(2, 3, 8, 8).bfloat16())
    norm = model.norm
    factor = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    exact = model.stem.weight.double() * factor[:, None, None, None], norm.bias - norm.running_mean * factor
    for name, wanted in zip(("folded_0", "folded_1"), exact, strict=True):
        assert torch.equal(found.get_buffer(name), wanted.bfloat16())


def test_the_models_are_left_as_they_were():
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    same(model, (3, 16, 16))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Twice(nn.Module):
    """What a convolution gives is used twice; a sum that broadcasts; a batch norm on the batch's own statistics."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.other, self.other_norm = nn.Conv2d(6, 6, 3, padding=1, groups=2), nn.BatchNorm2d(6)

    def forward(self, x):
        raw = self.conv(x)
        x = (self.norm(raw) + raw.mean((2, 3), keepdim=True)).relu()
        return (self.other_norm(self.other(x)) + x[:1]).relu().mean((2, 3))


def test_what_does_not_fit_the_pattern_stays():
    model, x = Twice().eval(), torch.rand(2, 3, 8, 8, generator=rng())
    assert folded(model, model, x) is None


@pytest.mark.parametrize("model", (nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), nn.Conv2d(3, 2, 3)))
def test_a_network_without_batch_norm_is_not_folded(model):
    assert folded(model.eval(), model, torch.rand(2, 3, 8, 8)) is None


class Computed(nn.Module):
    """A block, then a convolution whose weights are computed, as weight norm does, and a sum of something with itself."""

    def __init__(self, stride):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.stem = weight_norm(nn.Conv2d(3, 8, 3, stride, 1))
        self.other, self.other_norm = weight_norm(nn.Conv2d(8, 8, 3)), nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, 5, 1)

    def forward(self, x):
        wide = self.norm(self.conv(x)).relu()
        x = self.other_norm(self.other(wide)).relu().mean((2, 3)) + self.stem(x).relu().mean((2, 3))
        twice = self.last(wide)
        return (twice + twice).relu().mean((2, 3)) + x[:, :5]


@pytest.mark.parametrize("stride", (1, 2))
def test_a_convolution_with_computed_weights_stays_and_the_others_are_folded(stride):
    """It left the whole network as it was; so did a sum of something with itself."""
    made = calls(same(Computed(stride).eval(), (3, 16, 16)))
    assert made.count(RELU) == 1 and made.count("aten.batch_norm.default") == 1 and ADD not in made


def test_a_network_that_cannot_be_exported_is_not_folded():
    class Branching(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)) if x.sum() > 0 else -x.mean((2, 3))

    assert folded(Branching(), Branching(), torch.rand(2, 3, 8, 8)) is None


def as_on_a_gpu(monkeypatch, function):
    """What the compiling backends run where ``folded`` is this function."""
    monkeypatch.setattr("ucan.folding.folded", function)
    ready = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, ndim=4)
    return _folded(TWIN, TWIN, ready, "compile")


TWIN = nn.Conv2d(3, 2, 3)


def test_a_fault_in_folding_is_told_and_the_network_runs_as_it_is(monkeypatch):
    def faulty(*_):
        raise KeyError("weight")

    with pytest.warns(RuntimeWarning, match=r"could not be folded \(KeyError: 'weight'\)"):
        assert as_on_a_gpu(monkeypatch, faulty) is TWIN


def test_a_folded_network_without_kernels_is_run_as_it_is_and_other_errors_are_not_hidden(monkeypatch):
    def failing(error):
        def run(_):
            raise error

        return lambda *_: run

    assert as_on_a_gpu(monkeypatch, failing(RuntimeError("no engine to execute this"))) is TWIN
    assert as_on_a_gpu(monkeypatch, lambda *_: None) is TWIN
    for error in (torch.OutOfMemoryError("full"), TypeError("a fault")):
        with pytest.raises(type(error)):
            as_on_a_gpu(monkeypatch, failing(error))


# --- passes ---


def test_a_pass_that_cannot_be_compiled_runs_as_it_is_after_one_warning(monkeypatch):
    def fails(function):
        def run(*_):
            raise RuntimeError("no compiler here")

        return run

    monkeypatch.setattr(torch, "compile", fails)
    doubled = Pass(lambda x: 2 * x)
    with pytest.warns(RuntimeWarning, match="without a compiler"):
        assert torch.equal(doubled(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(doubled(torch.ones(4)), torch.full((4,), 2.0))  # without another warning


@pytest.mark.slow
def test_the_compiled_passes_write_what_the_plain_ones_do():
    from ucan.arithmetic import _fill_fused, _put, _uniform
    from ucan.scales.base import _INTO_FORM
    from ucan.votes import Form

    x = (torch.rand(1, 3, 8, 8, generator=rng()) * 255).round() / 255
    with torch.inference_mode():
        for blocks in (2, 3, 5):
            all_of_it = Form(torch.bfloat16, True).empty(6, 4, x).zero_()
            out, z = all_of_it[1 : 1 + blocks], torch.randn(blocks, 4, 3, 8, 8, generator=rng(blocks))
            _INTO_FORM(out.flatten(0, 1), z.flatten(0, 1), x)
            assert torch.equal(out, (z + x).bfloat16()) and not all_of_it[0].any() and not all_of_it[1 + blocks :].any()
            for law in (Gaussian(0.25), Laplace(0.25), Uniform(0.25)):
                rows = [row.double().flatten().expand(192) for row in (x + 60, x, x * 255, torch.tensor([1 / 255]))]
                _fill_fused(out, torch.float32, law, rows, [rng(i) for i in range(blocks)])
                plain = torch.empty(blocks, 4, 192)
                for i, block in enumerate(plain):
                    _put(block, law.unit_parts(_uniform(law, 4, 192, rng(i)), 192), rows)
                assert torch.equal(out.flatten(2), plain.bfloat16())


@pytest.mark.parametrize("law", (Gaussian(1.0), Laplace(1.0), Uniform(1.0), ExpInf(1.0), PowerLaw(1.0, a=100.0)))
def test_several_threads_draw_what_one_does(law):
    blocks, threads = [], torch.get_num_threads()
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            with torch.inference_mode():
                out = torch.empty(5, 16, 3, 4, 4)
                law.sample_blocks(out, [rng(i) for i in range(5)])
            blocks.append(out)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*blocks) and not torch.equal(blocks[0][0], blocks[0][1])
