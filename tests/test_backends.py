"""How the classifier is run: every backend answers as the model does, says what it is, or is refused."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from ucan import BasisWise, Ensemble, Fixed, Gaussian, InvalidInput, ModelError, SmoothedClassifier, scales
from ucan import backends as backends_module
from ucan.arithmetic import Grid
from ucan.backends import TOLERANCE, prepare
from ucan.generators import Generator
from ucan.runtimes import installed
from ucan.votes import Classifier, Form, Request, Stream, VoteCounter, count_requests

LAW = Gaussian(scale=0.5)
SHAPE = (1, 8, 8)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def seeded(model, seed=0):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=rng(seed)))
    return model.eval()


def cnn():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    )
    model[1].running_mean.uniform_(-0.3, 0.3, generator=rng(1))
    model[1].running_var.uniform_(0.5, 2.0, generator=rng(2))
    return seeded(model)


def linear(classes=2):
    return seeded(nn.Sequential(nn.Flatten(), nn.Linear(64, classes)))


X = torch.rand(2, *SHAPE, generator=rng(3))


def smoothed(model, backend="eager", classes=5, **more):
    return SmoothedClassifier(model, LAW, num_classes=classes, backend=backend, **more)


def certify(g, **more):
    return g.certify(X, **{"n0": 50, "n": 600, "batch_size": 128, **more})


def counts(outcomes):
    return [c.evidence.counts for c in outcomes]


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# --- names ---


@pytest.mark.parametrize("name", ("onnx", "", "Eager", None, "cuda"))
def test_unknown_backends_are_refused_by_name(name):
    with pytest.raises(InvalidInput, match='"tuned", "onnxruntime", "openvino" or "auto"'):
        certify(smoothed(linear(), backend=name, classes=2))


@pytest.mark.parametrize("precision", ("fp16", "float32", "", "int8"))
def test_unknown_precisions_are_refused_by_name(precision):
    with pytest.raises(InvalidInput, match='"fp32", "tf32" or "bf16"'):
        certify(smoothed(linear(), classes=2), precision=precision)


def function(batch):
    return (batch.flatten(1).sum(1) > 32).long()


@pytest.mark.parametrize(
    "backend, precision", [("eager", "bf16"), ("eager", "tf32"), ("compile", None), ("auto", "bf16")]
)
def test_a_plain_function_is_run_as_it_is_or_not_at_all(backend, precision):
    with pytest.raises(InvalidInput, match="plain function"):
        certify(smoothed(function, backend=backend, classes=2), precision=precision)


def test_a_plain_function_says_so_in_the_evidence():
    for backend in ("eager", "auto"):
        evidence = certify(smoothed(function, backend=backend, classes=2))[0].evidence
        assert (evidence.backend, evidence.precision, evidence.weights_hash) == ("function", "fp32", None)


# --- precision ---


class Seen(nn.Module):
    """Remembers the dtypes it was given; a copy remembers in the same place."""

    def __init__(self, inner, seen):
        super().__init__()
        self.inner, self.seen = inner, [seen]

    def __deepcopy__(self, memo):
        return Seen(copy.deepcopy(self.inner, memo), self.seen[0]).train(self.training)

    def forward(self, x):
        self.seen[0].append((x.dtype, next(self.parameters()).dtype))
        return self.inner(x)


def run_in(precision, model):
    """(what the evidence says, in which dtypes the votes were made)."""
    seen = []
    g = smoothed(Seen(model, seen).eval(), classes=5)
    g.certify(X, n0=50, n=50, batch_size=128, precision=precision)
    seen.clear()
    (c, _) = g.certify(X, n0=50, n=50, batch_size=128, precision=precision)  # prepared before: these are votes,
    return c.evidence.precision, set(seen[1:])  # save the first, which checks that the model can answer


def test_the_evidence_says_in_which_precision_the_votes_were_made():
    assert run_in(None, cnn()) == ("fp32", {(torch.float32, torch.float32)})
    assert run_in("fp32", cnn()) == ("fp32", {(torch.float32, torch.float32)})
    assert run_in("bf16", cnn()) == ("bf16", {(torch.bfloat16, torch.bfloat16)})
    assert run_in(None, cnn().bfloat16()) == ("bf16", {(torch.bfloat16, torch.bfloat16)})
    assert run_in("bf16", cnn().bfloat16()) == ("bf16", {(torch.bfloat16, torch.bfloat16)})


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float64))
def test_single_precision_asked_of_a_model_in_another_is_what_it_gets(dtype):
    assert run_in("fp32", cnn().to(dtype)) == ("fp32", {(torch.float32, torch.float32)})


def test_the_given_model_is_left_as_it_was():
    model = cnn()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    certify(smoothed(model), precision="bf16")
    assert all(torch.equal(v, before[k]) and v.dtype == before[k].dtype for k, v in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())


def test_reduced_precision_changes_few_votes():
    full, half = (torch.tensor(counts(certify(smoothed(cnn()), precision=p))) for p in (None, "bf16"))
    assert (full - half).abs().sum() / 2 < 0.02 * full.sum() and full.sum() == half.sum() == 1200


def test_asking_for_single_precision_changes_nothing():
    assert counts(certify(smoothed(cnn()), precision="fp32")) == counts(certify(smoothed(cnn())))


class Rugged(nn.Module):
    """Harmless in single precision, noise in bf16."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (1e4 * self.weight * x.flatten(1)[:, :2]).sin()


def test_a_precision_that_disagrees_with_the_model_is_refused_and_not_used():
    g = smoothed(Rugged().eval(), classes=2)
    with pytest.raises(ModelError, match=r"eager backend in bf16 disagrees .*spread"):
        certify(g, precision="bf16")
    assert len(certify(g)) == 2


def test_a_backend_whose_copy_of_the_model_differs_is_refused(monkeypatch):
    def other(model):
        twin = cnn()
        with torch.no_grad():
            twin[5].weight.neg_()
        return twin

    monkeypatch.setattr(backends_module.copy, "deepcopy", other)
    with pytest.raises(ModelError, match="disagrees"):
        certify(smoothed(cnn()), precision="bf16")


def test_a_backend_whose_votes_differ_from_its_own_logits_is_refused(monkeypatch):
    """As a compiler could err: the logits are right, the compiled votes are not."""
    monkeypatch.setattr(backends_module, "_compiled", lambda vote, options: lambda noisy: (vote(noisy) + 1) % 5)
    with pytest.raises(ModelError, match=r"compile backend in fp32 disagrees .* clear votes differ"):
        certify(smoothed(cnn(), backend="compile"))


@pytest.mark.parametrize("scale", (1e-6, 1.0, 1e6))
def test_tolerance_is_relative_to_the_logits(scale):
    model = cnn()
    with torch.no_grad():
        model[5].weight.mul_(scale)
        model[5].bias.mul_(scale)
    assert sum(counts(certify(smoothed(model), precision="bf16"))[0]) == 600
    assert TOLERANCE["fp32"] < TOLERANCE["tf32"] < TOLERANCE["bf16"] < 0.5


class Holes(nn.Module):
    """NaN logits on a part of the noise: invalid votes, which count for no class."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return torch.where(x.flatten(1)[:, :1] > 1.2, torch.nan, self.inner(x))


def test_invalid_votes_are_no_disagreement():
    plain, half = (
        certify(smoothed(Holes().eval(), classes=2)),
        certify(smoothed(Holes().eval(), classes=2), precision="bf16"),
    )
    assert plain[0].invalid > 0 and abs(plain[0].invalid - half[0].invalid) < 20


class Indices(nn.Module):
    """A module that answers with classes."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return self.inner(x).argmax(1)


def test_a_module_that_answers_with_classes_can_be_run_in_another_precision():
    (c, _) = certify(smoothed(Indices().eval(), classes=2), precision="bf16")
    assert c.evidence.precision == "bf16" and sum(c.evidence.counts) == 600


class OnTheEdge(nn.Module):
    """Classes by a number that bf16 cannot tell from its neighbour."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return ((1000 + x.flatten(1).mean(1) * self.weight) > 1000.49).long()


def test_classes_that_another_precision_changes_are_refused():
    g = SmoothedClassifier(OnTheEdge().eval(), Gaussian(0.1), num_classes=2)
    x = torch.full((1, 1, 8, 8), 0.6)
    assert g.certify(x, n=200)[0].prediction == 1
    with pytest.raises(ModelError, match="disagrees with the model in"):
        g.certify(x, n=200, precision="bf16")


class Switched(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.flipped, self.settings = linear(), False, {"signs": [1, 1]}

    def forward(self, x):
        sign = math.prod(self.settings["signs"])
        return sign * (-self.inner(x) if self.flipped else self.inner(x))


def flip(model):
    model.flipped = True


def flip_inside(model):
    model.settings["signs"][1] = -1


def hook(model):
    model.register_forward_hook(lambda module, given, answer: -answer)


@pytest.mark.parametrize("change", (flip, flip_inside, hook))
@pytest.mark.parametrize("precision", (None, "bf16"))
def test_votes_follow_a_switch_inside_the_model(precision, change):
    model = Switched().eval()
    g = smoothed(model, classes=2)
    before = counts(certify(g, precision=precision))
    change(model)
    now = counts(certify(g, precision=precision))
    assert now == counts(certify(smoothed(model, classes=2), precision=precision)) != before
    for k in range(10):
        model.scale = k
        certify(g, precision=precision)
    assert len(g.engine.prepared) <= 4  # copies of the model are not kept for ever


class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return self.inner(x.float())


def test_a_model_that_insists_on_its_dtype_is_told_so():
    with pytest.raises(ModelError, match=r"cannot run in bf16 .*leave precision out"):
        certify(smoothed(Stubborn().eval(), classes=2), precision="bf16")


def test_a_model_that_cannot_be_copied_is_told_so():
    model = linear()
    model.held = (i for i in range(3))
    with pytest.raises(ModelError, match="cannot be copied"):
        certify(smoothed(model, classes=2), precision="bf16")


def test_the_view_is_part_of_every_backend():
    g = smoothed(cnn(), generator=BasisWise.dct(SHAPE, leading=10))
    full, half = certify(g), certify(g, precision="bf16")
    other = counts(certify(smoothed(cnn(), generator=BasisWise.dct(SHAPE, leading=40)), precision="bf16"))
    assert counts(half) != other
    assert abs(full[0].evidence.counts[0] - half[0].evidence.counts[0]) < 15


# --- weights that change ---


def flip(model):
    with torch.no_grad():
        model[1].weight.neg_()
        model[1].bias.neg_()


def flip_behind_autograd(model):
    model[1].weight.data.neg_()
    model[1].bias.data.neg_()


@pytest.mark.parametrize("precision", (None, "bf16"))
@pytest.mark.parametrize("change", (flip, flip_behind_autograd))
def test_votes_follow_the_weights_as_they_are_now(precision, change):
    model = linear()
    g = smoothed(model, classes=2)
    before = certify(g, precision=precision)
    change(model)
    after = certify(g, precision=precision)
    assert counts(after) == counts(certify(smoothed(model, classes=2), precision=precision)) != counts(before)
    assert after[0].evidence.weights_hash != before[0].evidence.weights_hash
    change(model)
    assert counts(certify(g, precision=precision)) == counts(before)


class Tuned(nn.Module):
    """Has a buffer that no state dictionary shows."""

    def __init__(self):
        super().__init__()
        self.inner = linear()
        self.register_buffer("sign", torch.ones(()), persistent=False)

    def forward(self, x):
        return self.sign * self.inner(x)


@pytest.mark.parametrize("precision", (None, "bf16"))
def test_votes_follow_buffers_that_are_not_saved(precision):
    model = Tuned().eval()
    g = smoothed(model, classes=2)
    before = counts(certify(g, precision=precision))
    model.sign.neg_()
    assert counts(certify(g, precision=precision)) != before
    assert counts(certify(g, precision=precision)) == counts(certify(smoothed(model, classes=2), precision=precision))


# --- compiling ---


class Refuses(nn.Module):
    """A model that cannot be compiled."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        if torch.compiler.is_compiling():
            raise RuntimeError("not with me")
        return self.inner(x)


class DataDependent(nn.Module):
    """Python that depends on the numbers: half of it would run outside of what was compiled."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return self.inner(x) if x.sum().item() > -1e9 else self.inner(-x)


def compiler_that_fails(vote, options):
    def fail(noisy):
        raise RuntimeError("no kernel for this layer\nand much more")

    return fail


@pytest.mark.parametrize("backend", ("compile", "auto"))
def test_a_model_that_cannot_be_compiled_runs_eagerly_after_one_warning_that_says_why(monkeypatch, backend):
    monkeypatch.setattr(backends_module, "_compiled", compiler_that_fails)
    monkeypatch.setattr(backends_module, "installed", lambda precision: ())
    g = smoothed(cnn(), backend=backend)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        outcomes = certify(g)
        assert counts(certify(g)) == counts(outcomes)
    assert [(w.category, "no kernel for this layer" in str(w.message)) for w in seen] == [(RuntimeWarning, True)]
    assert {c.evidence.backend for c in outcomes} == {"eager"} and counts(outcomes) == counts(certify(smoothed(cnn())))


@pytest.mark.parametrize("kind", (Refuses, pytest.param(DataDependent, marks=pytest.mark.slow)))
@pytest.mark.usefixtures("fresh_compiler")
def test_falling_back_to_eager_within_the_compiler_is_not_silent(kind):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        outcomes = certify(smoothed(kind().eval(), backend="compile", classes=2))
    assert [w.category for w in seen if "compiled" in str(w.message)] == [RuntimeWarning]
    assert {c.evidence.backend for c in outcomes} == {"eager"}


def test_a_double_model_can_be_asked_for_any_backend(monkeypatch):
    monkeypatch.setattr(backends_module, "_compiled", lambda vote, options: vote)
    assert len(certify(smoothed(cnn().double(), backend="compile"))) == 2


def test_auto_takes_the_faster_one(monkeypatch):
    for faster in ("eager", "compile", *installed("fp32")):
        monkeypatch.setattr(backends_module, "_compiled", lambda vote, options: lambda noisy: vote(noisy))
        monkeypatch.setattr(backends_module, "_seconds", lambda backend, example, f=faster: float(backend.name != f))
        assert prepare(Classifier(cnn(), 5), lambda y: y, X, "auto", None).name == faster


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend, precision", (("compile", None), ("compile", "bf16"), ("tuned", None)))
def test_compiled_votes_are_the_eager_votes(backend, precision):
    model = cnn()
    g = smoothed(model, backend=backend)
    compiled, eager = certify(g, precision=precision), certify(smoothed(model), precision=precision)
    assert {c.evidence.backend for c in compiled} == {backend}
    if precision is None:
        assert counts(compiled) == counts(eager)
    assert (
        max(abs(a - b) for c, e in zip(counts(compiled), counts(eager), strict=True) for a, b in zip(c, e, strict=True))
        < 12
    )
    with torch.no_grad():
        model[5].weight.neg_()
        model[5].bias.neg_()
    assert counts(certify(g)) == counts(certify(smoothed(model)))  # new weights, not the frozen ones


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_linear_model_gives_the_eager_votes():
    """The smallest real compilation; the network is in the slow part."""
    compiled = certify(smoothed(linear(), backend="compile", classes=2))
    assert {c.evidence.backend for c in compiled} == {"compile"}
    assert counts(compiled) == counts(certify(smoothed(linear(), classes=2)))


@pytest.mark.usefixtures("fresh_compiler")
def test_weights_are_constants_of_what_is_compiled():
    """Then batch norm is a part of the convolution before it: no square root is left in the code, and one argument."""
    from torch._inductor.utils import run_and_get_code

    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 2)).eval()
    _, code = run_and_get_code(lambda: prepare(Classifier(model, 2), lambda y: y, X, "compile", None))
    assert code and not any("sqrt" in part for part in code)
    assert any("_frozen_param" in part for part in code)


# --- other runtimes ---


@pytest.fixture(params=("onnxruntime", "openvino"))
def runtime(request):
    pytest.importorskip(request.param)
    return request.param


WAYS = {
    "bool": lambda y: bool((y > 0).any()),
    "item": lambda y: y.sum().item() > 0,
    "float": lambda y: float(y[0, 0]) > 0,
    "equal": lambda y: torch.equal(y, y.abs()),
    "list": lambda y: y.tolist()[0][0] > 0,
    "array": lambda y: y.numpy().sum() > 0,
    "buffer": lambda y: np.from_dlpack(y).sum() > 0,
    "how many": lambda y: len((y > 0).nonzero()) > 3,
    "how many of a mask": lambda y: y[y > 0].shape[0] > 3,
    "how many different": lambda y: y.round().unique().numel() > 3,
}


class Decides(nn.Module):
    """Does with a batch what one number of it says, read in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.way, self.linear = WAYS[way], nn.Linear(64, 2)

    def forward(self, x):
        y = self.linear(x.flatten(1))
        return y.clone() if self.way(y) else y


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_decides_by_values_is_not_recorded_for_one_batch(runtime, way):
    model = seeded(Decides(way))
    with pytest.warns(RuntimeWarning, match="reads values of tensors in Python"):
        there = certify(smoothed(model, backend=runtime, classes=2))
    assert {c.evidence.backend for c in there} == {"eager"}
    assert counts(there) == counts(certify(smoothed(model, classes=2)))


class Constants(nn.Module):
    """Reads numbers that follow from no input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 2)
        self.register_buffer("temperature", torch.tensor(2.0))

    def forward(self, x):
        weights = [value.item() for value in torch.linspace(0.5, 1.0, 2)]
        return self.linear(x.flatten(1)) * sum(weights) / float(self.temperature)


def test_constants_may_be_read(runtime):
    model = seeded(Constants())
    with torch.no_grad():
        model.temperature.fill_(2.0)
    there = certify(smoothed(model, backend=runtime, classes=2))
    assert {c.evidence.backend for c in there} == {runtime}
    assert counts(there) == counts(certify(smoothed(model, classes=2)))


class Remembers(Constants):
    """Writes what it sees into a buffer and decides by that."""

    def forward(self, x):
        y = self.linear(x.flatten(1))
        self.temperature.copy_(y.abs().max())
        return y.clone() if float(self.temperature) > 1 else y


def test_what_was_written_from_inputs_is_no_constant(runtime):
    f = Classifier(seeded(Remembers()).eval(), 2)
    with pytest.warns(RuntimeWarning, match="reads values of tensors in Python"):
        assert prepare(f, lambda y: y, X, runtime, None).name == "eager"


def test_an_ensemble_with_consensus_is_not_recorded_for_one_batch(runtime):
    """The first input's batch decides nothing about the second's: a recording certified the other class there."""

    def line(w, b):
        made = nn.Linear(2, 2).eval()
        with torch.no_grad():
            made.weight.copy_(torch.tensor([[-w, 0.0], [w, 0.0]]))
            made.bias.copy_(torch.tensor([-b, b]))
        return made

    e = Ensemble([line(1.0, 0.0), line(3.0, -1.5), line(0.0, -50.0)], consensus=2)
    x = torch.tensor([[3.0, 0.0], [0.4, 0.0]])
    for backend in (runtime, "auto"):
        with pytest.warns(RuntimeWarning, match="another backend runs it"):
            found = SmoothedClassifier(e, Gaussian(0.04), num_classes=2, backend=backend).certify(x, n=500)
        assert [c.prediction for c in found] == [1, 0]


def test_votes_of_another_runtime_are_the_eager_votes(runtime):
    model = cnn()
    g = smoothed(model, backend=runtime)
    there, eager = certify(g), certify(smoothed(model))
    assert {(c.evidence.backend, c.evidence.precision) for c in there} == {(runtime, "fp32")}
    assert counts(there) == counts(eager)
    with torch.no_grad():
        model[5].weight.neg_()
        model[5].bias.neg_()
    assert counts(certify(g)) == counts(certify(smoothed(model))) != counts(eager)  # the weights as they are now


def test_another_runtime_sees_the_view(runtime):
    generator = BasisWise.dct(SHAPE, leading=10)
    there = certify(smoothed(cnn(), backend=runtime, generator=generator))
    assert counts(there) == counts(certify(smoothed(cnn(), generator=generator))) != counts(certify(smoothed(cnn())))


def test_another_runtime_that_disagrees_is_refused(monkeypatch, runtime):
    monkeypatch.setattr(backends_module, "loaded", lambda *_: lambda batch: torch.zeros(len(batch), 5))
    with pytest.raises(ModelError, match=f"{runtime} backend in fp32 disagrees"):
        certify(smoothed(cnn(), backend=runtime))


def test_a_model_that_a_runtime_cannot_take_runs_eagerly_after_one_warning(monkeypatch, runtime):
    def fail(*_):
        raise RuntimeError("no such operator\nand much more")

    monkeypatch.setattr(backends_module, "loaded", fail)
    with pytest.warns(RuntimeWarning, match="no such operator"):
        outcomes = certify(smoothed(cnn(), backend=runtime))
    assert {c.evidence.backend for c in outcomes} == {"eager"}


@pytest.mark.parametrize("precision", ("tf32", "bf16"))
def test_a_runtime_is_not_asked_for_a_precision_that_it_does_not_have(monkeypatch, precision):
    monkeypatch.setattr("ucan.runtimes.find_spec", lambda name: name)
    with pytest.raises(InvalidInput, match="onnxruntime' computes in fp32, not in"):
        certify(smoothed(cnn(), backend="onnxruntime"), precision=precision)


def test_a_runtime_that_is_not_there_is_told_so(monkeypatch):
    monkeypatch.setattr("ucan.runtimes.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="pip install openvino"):
        certify(smoothed(cnn(), backend="openvino"))
    assert installed("fp32") == ()


# --- the form of inputs ---


@pytest.mark.parametrize("form", (Form(torch.bfloat16, True), Form(torch.float32, True), Form(torch.float64)))
@pytest.mark.parametrize("scale", (1.0, torch.rand(3, 8, 8, generator=rng(4)) + 0.5, scales.DCT(torch.ones(3, 8, 8))))
@pytest.mark.parametrize("step", (None, 1 / 255))
def test_noise_is_the_same_in_every_form(form, scale, step):
    """Written at once in the precision and layout of the network, or cast afterwards: the same numbers."""
    x = (torch.rand(1, 3, 8, 8, generator=rng(5)) * 255).round() / 255
    M, grid = Fixed(scale, mean=torch.full((3, 8, 8), 0.25)).at(x), Grid.of(step)

    def noisy(out):
        rngs = [rng(seed) for seed in (7, 8)]
        if grid is None:
            M.perturb_into(out, x, LAW, rngs)
        else:
            M.perturb_on_grid(out, x, LAW, rngs, grid)
        return out.flatten(0, 1)

    plain, formed = noisy(torch.empty(2, 4, 3, 8, 8)), noisy(form.empty(2, 4, x))
    assert formed.dtype == form.dtype and torch.equal(formed, plain.to(form.dtype))
    layout = torch.channels_last if form.channels_last else torch.contiguous_format
    assert formed.is_contiguous(memory_format=layout) and form.of(formed) is formed


def test_noise_of_a_kind_of_its_own_is_written_in_every_form():
    class Doubled(Generator):
        scope = "pipeline"

        def forward(self, x):
            return torch.zeros(()), 2.0

    x, form = X[:1], Form(torch.bfloat16, True)
    out, plain = form.empty(1, 4, x), torch.empty(1, 4, *SHAPE)
    Doubled().perturb_into(out, x, LAW, [rng(1)])
    Doubled().perturb_into(plain, x, LAW, [rng(1)])
    assert torch.equal(out, plain.bfloat16())


@pytest.mark.parametrize("size", (64, 8))  # several blocks in a pass, and a block in parts
@pytest.mark.parametrize("step", (None, 1 / 255))
def test_votes_on_inputs_in_the_networks_form_are_the_same(step, size):
    x = (torch.rand(1, 3, 8, 8, generator=rng(5)) * 255).round() / 255
    weights, M = torch.randn(192, 5, generator=rng(6)), Fixed(1.5).at(x)

    def vote(noisy):
        if noisy.dtype == torch.bfloat16:
            assert noisy.is_contiguous(memory_format=torch.channels_last)
        return (noisy.bfloat16().float().flatten(1) @ weights).argmax(1)

    def counted(form):
        counter = VoteCounter(vote, 5, LAW, 16, size, Grid.of(step), form)
        request = Request(M, x, ((Stream(0, "x", "select"), 20), (Stream(0, "x", "estimate"), 100)))
        return [votes.counts.tolist() for _, found in count_requests(counter, [request]) for votes in found]

    assert counted(Form(torch.bfloat16, True)) == counted(None)
