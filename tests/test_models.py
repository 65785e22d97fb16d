"""Models: the architectures are what they claim to be, and every way to name a model gives the same answers."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ucan
from ucan.data import load
from ucan.errors import MissingExtra, ModelError
from ucan.fingerprint import identity, weights_hash
from ucan.models import BUILT_IN, CNN, CifarResNet, LeNet, Normalise, build_model, load_model, load_weights
from ucan.models.names import NAMES

REAL = os.environ.get("UCAN_DATA_DIR")
needs_real_data = pytest.mark.skipif(not REAL, reason="UCAN_DATA_DIR does not name the real data")
SHAPES = {
    "cnn": (1, 28, 28),
    "cnn_hidden": (1, 28, 28),
    "lenet": (1, 28, 28),
    "resnet50": (3, 64, 64),
    "mobilenet_v2": (3, 64, 64),
    "mobilenet_v2_rotated": (3, 64, 64),
}
# Stored certificates name their model by its identity: these may not change. All weights are 1 here.
IDENTITIES = {
    "cnn": "module:76680f6181cb9822b65f3e7c223ff8b8c7f5cce8c5a0e25dcb210f7cd5d78a08",
    "cnn_hidden": "module:0727f6935c9f92ec96b1c8a105f65b0c23bc95f9c5a14869695b9982de476552",
    "lenet": "module:294f0c20e9ac3b3209994e8f31af06993c1bb564cf4a66215155b2f7a6f09645",
    "resnet20": "module:9b45d11d048d680637caa3ecdb1c1e85a6f32f70491732c7c77e2cfc3db887a2",
    "resnet56": "module:792576ecdf12ecab4654782a445c193e586567a6114a1d3d27a2083a2d4e9bf7",
    "resnet110": "module:95c1c143cb0de3358e00c5fc36dba1448aff5762c660cd95b6f2cf347add1dee",
    "resnet18": "module:74110c65f6f952a05a0240b18d334609e6b100355503246758955e8b08c03df7",
    "resnet50": "module:792673ccc032351f4ce2021c55d0d50496ceac072a08d2ce62af6ab28d280d7d",
    "mobilenet_v2": "module:148f00ef9a1e1f78e72a559ddbbc13cb312b62d6c0b56ac24d37bba7c190b271",
    "mobilenet_v2_rotated": "module:c04cdf6a955f2605ac39a28c8b2e766eba0cdb6ec503ecfbb1107c68f275be0d",
}


@pytest.fixture(autouse=True)
def import_state() -> Iterator[None]:
    """Loading by name makes the current directory importable: undo that, and forget what was imported."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("probe"):
            del sys.modules[name]


def _tiny(num_classes: int = 10) -> nn.Module:
    """The built-in cnn for 8 x 8 digits, in evaluation mode."""
    return build_model("cnn", (1, 8, 8), num_classes).eval()


def _rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def _counts(model: Callable[[torch.Tensor], Any], x: torch.Tensor) -> list[list[int]]:
    """The votes for each input of the classifier smoothed by a little noise."""
    certificates = ucan.SmoothedClassifier(model, ucan.Gaussian(0.1)).certify(x, 10, 100)
    return [[int(count) for count in c.counts] for c in certificates]


# --- architectures ---


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lenet", 431_080),
        ("resnet20", 269_722),
        ("resnet56", 853_018),
        ("resnet110", 1_727_962),
        ("resnet18", 11_173_962),
        ("resnet50", 25_557_032),
        ("mobilenet_v2", 3_504_872),
    ],
)
def test_number_of_parameters(name: str, parameters: int) -> None:
    assert sum(p.numel() for p in build_model(name).parameters()) == parameters


def test_help_texts_name_all_models():
    assert tuple(BUILT_IN) == NAMES


@pytest.mark.parametrize("name", BUILT_IN)
def test_identities_of_built_in_models_do_not_change(name: str) -> None:
    model = build_model(name).eval()
    for weights in model.state_dict().values():
        weights.fill_(1)
    assert identity(model) == IDENTITIES[name]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_model_answers_in_evaluation_mode_and_trains(name: str) -> None:
    shape = SHAPES.get(name, (3, 32, 32))
    model = load_model(name, num_classes=7, event_shape=shape)
    assert isinstance(model, nn.Module) and not any(m.training for m in model.modules())
    x = _rand(2, *shape)
    logits = model(x)
    assert logits.shape == (2, 7)
    assert torch.allclose(model(x[:1]), logits[:1], atol=1e-4)  # one input's answer does not depend on the others
    logits.logsumexp(1).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (2, 9, 9)])
def test_cnn_fits_any_square_picture(shape: tuple[int, int, int]) -> None:
    assert build_model("cnn", shape, 4)(_rand(3, *shape)).shape == (3, 4)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 16, 16), (3, 32, 32), (2, 29, 29)])
def test_lenet_is_two_convolutions_with_pooling_and_two_linear_layers(shape: tuple[int, int, int]) -> None:
    net, x = build_model("lenet", shape, 4, normalise="none").network, _rand(3, *shape)
    conv1, conv2, hidden, linear = net.conv1, net.conv2, net.hidden, net.linear
    assert (
        isinstance(net, LeNet) and conv1.weight.shape == (20, shape[0], 5, 5) and conv2.weight.shape == (50, 20, 5, 5)
    )
    plain = nn.Sequential(
        conv1, nn.ReLU(), nn.MaxPool2d(2), conv2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), hidden, nn.ReLU(), linear
    )
    torch.testing.assert_close(net(x), plain(x))


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    a, b, c = build_model("cnn", seed=5), build_model("cnn", seed=5), build_model("cnn", seed=6)
    assert torch.equal(torch.get_rng_state(), state)
    x = _rand(2, 1, 28, 28)
    assert torch.equal(a(x), b(x)) and not torch.equal(a(x), c(x))


def test_parameter_free_shortcut() -> None:
    """With the residual branch silenced a strided block is every second pixel between zero channels."""
    block = CifarResNet(20).eval().layer2[0]  # type: ignore[index]
    nn.init.zeros_(block.bn2.weight)
    x = _rand(2, 16, 8, 8)
    out = block(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2]) and not out[:, :8].any() and not out[:, 24:].any()
    with pytest.raises(ModelError, match="6n"):
        CifarResNet(21)


def test_resnet50_has_torchvisions_names() -> None:
    state = build_model("resnet50").network.state_dict()
    assert len(state) == 320
    shapes = {
        "conv1.weight": (64, 3, 7, 7),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer2.0.conv2.weight": (128, 128, 3, 3),
        "layer3.5.bn3.running_var": (1024,),
        "layer4.2.conv3.weight": (2048, 512, 1, 1),
        "fc.weight": (1000, 2048),
    }
    assert {key: tuple(state[key].shape) for key in shapes} == shapes


# --- normalisation ---


def test_normalise() -> None:
    layer = Normalise((0.5, 0.25), (0.5, 0.125))
    assert layer(torch.full((1, 2, 1, 1), 0.75)).flatten().tolist() == [0.5, 4.0]
    assert set(layer.state_dict()) == {"mean", "std"}
    with pytest.raises(ModelError, match="normalises 2 channels"):
        layer(_rand(1, 1, 4, 4))
    for mean, std in [((0.5,), (0.5, 0.5)), ((), ()), ((0.5,), (0.0,))]:
        with pytest.raises(ModelError, match="std > 0"):
            Normalise(mean, std)


def test_normalisation_of_built_in_models() -> None:
    x = _rand(2, 3, 32, 32)
    model = build_model("resnet20", normalise="cifar10").eval()
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    by_hand = model.network((x - mean[:, None, None]) / std[:, None, None])
    assert torch.allclose(model(x), by_hand, atol=1e-5)
    assert torch.equal(build_model("resnet20", normalise="none").eval()(x), model.network(x))
    assert "normalise" in dict(build_model("resnet20").named_children())
    assert "normalise" not in dict(build_model("cnn").named_children())
    assert "normalise" in dict(build_model("cnn", normalise=((0.13,), (0.3,))).named_children())
    with pytest.raises(ModelError, match="normalise must be"):
        build_model("cnn", normalise="mnist")
    with pytest.raises(ModelError, match="3 channels, but the pictures have 1"):
        build_model("cnn", normalise="cifar10")


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("resnet21", None, None, "choose one of cnn, cnn_hidden, lenet, resnet20"),
        ("cnn", (28, 28), None, r"\(channels, height, width\)"),
        ("cnn", (1, 8, 9), None, "square"),
        ("cnn", (1, 3, 3), None, "at least 4"),
        ("lenet", (1, 28, 30), None, "square"),
        ("lenet", (1, 15, 15), None, "at least 16"),
        ("cnn", None, 1, "at least 2"),
    ],
)
def test_wrong_built_in_models(name: str, shape: tuple[int, ...] | None, classes: int | None, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_model(name, shape, classes)


# --- weights ---


@pytest.mark.parametrize("kind", ["safetensors", "pt", "state_dict", "model", "parallel", "network"])
def test_weights_round_trip(tmp_path: Path, kind: str) -> None:
    trained = build_model("cnn", (3, 8, 8), seed=1).eval()
    state = {k: v.clone() for k, v in (trained.network if kind == "network" else trained).state_dict().items()}
    file = tmp_path / ("w.safetensors" if kind in ("safetensors", "network") else "w.pt")
    if kind in ("safetensors", "network"):
        save_file(state, file)
    elif kind == "pt":
        torch.save(state, file)
    elif kind in ("state_dict", "model"):
        torch.save({"epoch": 3, kind: state}, file)
    else:
        torch.save({f"module.{k}": v for k, v in state.items()}, file)
    model = load_model("cnn", file, 10, event_shape=(3, 8, 8))
    x = _rand(4, 3, 8, 8)
    assert torch.equal(model(x), trained(x)) and not torch.equal(model(x), build_model("cnn", (3, 8, 8)).eval()(x))


@pytest.mark.parametrize("before", ["_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model.", "net._orig_mod."])
@pytest.mark.parametrize("alone", [False, True])
def test_weights_of_a_wrapped_model_fit_the_model(tmp_path: Path, before: str, alone: bool) -> None:
    """As torch.compile, DataParallel and Lightning save them."""
    trained = build_model("cnn", (3, 8, 8), seed=1).eval()
    state = (trained.network if alone else trained).state_dict()
    torch.save({before + name: value for name, value in state.items()}, tmp_path / "w.pt")
    model, x = load_model("cnn", tmp_path / "w.pt", 10, event_shape=(3, 8, 8)), _rand(4, 3, 8, 8)
    assert torch.equal(model(x), trained(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, of its compiler
def test_weights_of_a_compiled_part_fit_and_a_compiled_model_takes_both(tmp_path: Path) -> None:
    parts = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    names = {"1._orig_mod.weight": torch.ones(2, 4), "1._orig_mod.bias": torch.ones(2)}
    torch.save(names, tmp_path / "w.pt")
    load_weights(parts, tmp_path / "w.pt")
    assert bool((parts[1].weight == 1).all())
    torch.save({"1.weight": torch.zeros(2, 4), "1.bias": torch.zeros(2)}, tmp_path / "w.pt")
    load_weights(torch.compile(parts), tmp_path / "w.pt")
    assert bool((parts[1].weight == 0).all())
    torch.save({"other.1.weight": torch.zeros(2, 4), "other.2.bias": torch.zeros(2)}, tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"unexpected \(other.1.weight, other.2.bias\)"):
        load_weights(torch.nn.Linear(4, 2), tmp_path / "w.pt")  # in the names that the file has


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    state = build_model("cnn", (1, 8, 8), 5).network.state_dict()
    save_file(state, file)
    with pytest.raises(ModelError, match=r"2 misshaped \(linear.weight \(5, 512\) instead of \(10, 512\), linear.bias"):
        load_model("cnn", file, 10, event_shape=(1, 8, 8))
    with pytest.raises(ModelError, match=r"missing \(bn1.weight, .*…\); 3 unexpected \(conv1.bias, conv2"):
        load_model("resnet20", file)
    save_file({k: v for k, v in state.items() if k != "conv2.bias"} | {"extra": torch.zeros(1)}, file)
    model = build_model("cnn", (1, 8, 8), 5)
    before = model.network.state_dict()["conv1.weight"].clone()
    with pytest.raises(ModelError, match=r"1 missing \(conv2.bias\); 1 unexpected \(extra\)"):
        load_weights(model, file)
    assert torch.equal(model.network.state_dict()["conv1.weight"], before)


class _Hostile:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (os.environ["UCAN_TEST_TRACE"],)


def test_damaged_and_hostile_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCAN_TEST_TRACE", str(tmp_path / "executed"))
    for name in ("w.safetensors", "w.pt"):
        (save_file if name.endswith("tensors") else torch.save)(_tiny().state_dict(), tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        for content in (b"", b"nonsense", whole[: len(whole) // 2], whole[:7]):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ModelError, match=r"cannot be read as weights"):
                load_model("cnn", tmp_path / name)
    torch.save({"state_dict": {"a": _Hostile()}}, tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"cannot be read as weights"):
        load_model("cnn", tmp_path / "w.pt")
    (tmp_path / "w.pt").write_bytes(pickle.dumps(_Hostile()))
    with pytest.raises(ModelError, match=r"cannot be read as weights"):
        load_model("cnn", tmp_path / "w.pt")
    assert not (tmp_path / "executed").exists()
    torch.save(_tiny(), tmp_path / "whole.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is on its way out, its files are not
        torch.jit.trace(_tiny(), _rand(1, 1, 8, 8)).save(tmp_path / "script.pt")
    for name in ("whole.pt", "script.pt"):  # without PyTorch's advice to trust the file, and without its warnings
        with pytest.raises(
            ModelError, match=r"cannot be read as weights: .*A file with a whole pickled model"
        ) as caught:
            load_model("cnn", tmp_path / name)
        assert "weights_only" not in str(caught.value) and "\x1b" not in str(caught.value)
    torch.save({"epoch": 3, "lr": 0.1}, tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"holds a dict with epoch, lr, not weights by name"):
        load_model("cnn", tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"no weights file"):
        load_model("cnn", tmp_path / "nowhere.pt")


# --- package.module:attribute ---

PROBE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        return self.layer(self.drop(x))

class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()

class Plain: pass

net = Net()
number = 7
def first(x):
    return x.argmax(1)
class Holder:
    inner = net
def make(scale=1.0, **more):
    return Net()
def anything(*batch):
    return batch[0].argmax(1)
def seven():
    return 7
def fails():
    raise OSError("no such weights")
def leaves():
    raise SystemExit
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a module of the user's."""
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "probe_broken.py").write_text("1 / 0")
    (tmp_path / "probe_exits.py").write_text("raise SystemExit(3)")
    (tmp_path / "probe_needs.py").write_text("import surely_not_installed")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_models_by_name(probe: Path) -> None:
    x = _rand(5, 4)
    net = load_model("probe:net")
    assert isinstance(net, nn.Module) and net is sys.modules["probe"].net
    assert not any(m.training for m in net.modules())
    assert load_model("probe:Holder.inner") is net
    made = load_model("probe:Net")
    assert isinstance(made, nn.Module) and not made.training and made(x).shape == (5, 3)
    assert load_model("probe:first")(x).tolist() == x.argmax(1).tolist()
    assert load_model("probe:anything")(x).tolist() == x.argmax(1).tolist()
    save_file(net.state_dict(), probe / "w.safetensors")
    assert torch.equal(load_model("probe:Net", "w.safetensors")(x), net(x))
    made = load_model("probe:make", "w.safetensors")  # a function that needs no argument makes the model
    assert isinstance(made, nn.Module) and not made.training and torch.equal(made(x), net(x))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nothing_here:net", "no module 'nothing_here'.*was searched"),
        ("probe.inner:net", "no module 'probe.inner'"),
        ("probe:nett", r"probe has no 'nett'; it has net, Net, "),
        ("probe:seven", "called to make the model, but it returned a int"),
        ("probe:leaves", "called to make the model, and failed: SystemExit"),
        ("probe:fails", "called to make the model, and failed: OSError: no such weights"),
        ("model.pt", "the network as --model .* and this file as --weights"),
        (".", "is a folder, but not of a finished `ucan train` run"),
        ("probe:number", "is a int, which cannot be called"),
        ("probe:Wide", "cannot be made without arguments"),
        ("probe:Plain", "not a torch.nn.Module"),
        ("probe.py:net", "such as probe:net"),
        ("probe:", "incomplete"),
        (":net", "incomplete"),
        ("probe_broken:net", "ZeroDivisionError"),
        ("probe_exits:net", "SystemExit"),
        ("probe_needs:net", "surely_not_installed.*Install what it needs"),
        ("resnet", "package.module:attribute.*cnn, cnn_hidden, lenet, resnet20"),
        ("nowhere.pt2", "no model file"),
        ("nowhere.onnx", "no model file"),
    ],
)
def test_names_that_lead_nowhere(probe: Path, spec: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_model(spec)
    if spec.startswith("probe_"):
        assert caught.value.__cause__ is not None


def test_weights_and_devices_that_make_no_sense(probe: Path) -> None:
    with pytest.raises(ModelError, match="leave the weights out"):
        load_model("probe:first", weights="w.pt")
    with pytest.raises(ModelError, match="contains its own weights"):
        load_model("a.onnx", weights="w.pt")
    for device in ("nonsense", "cuda:99"):
        with pytest.raises(ModelError, match="cannot be used"):
            load_model("cnn", device=device)


# --- torch.export ---


def _export(model: nn.Module, path: Path, batch: int, dynamic: object = None) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = None if dynamic is None else ({0: dynamic},)
        torch.export.save(torch.export.export(model, (_rand(batch, 1, 8, 8),), dynamic_shapes=shapes), path)
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["dynamic", "bounded", "static"])
def test_exported_models_answer_as_the_eager_one(tmp_path: Path, kind: str) -> None:
    dims = {"dynamic": torch.export.Dim("batch"), "bounded": torch.export.Dim("batch", min=2, max=16), "static": None}
    model = _tiny()
    loaded = load_model(str(_export(model, tmp_path / "m.pt2", 4, dims[kind])))
    for n in (1, 2, 4, 7, 40):  # a static or bounded batch size is no obstacle: batches are cut and filled up
        x = _rand(n, 1, 8, 8)
        assert torch.allclose(loaded(x), model(x), atol=1e-5)
    assert _counts(loaded, x[:2]) == _counts(model, x[:2])
    assert weights_hash(loaded) == hashlib.sha256((tmp_path / "m.pt2").read_bytes()).hexdigest()
    with pytest.raises(ModelError, match=r"m\.pt2 failed on a batch of shape .*--batch-size"):
        loaded(_rand(4, 1, 9, 9))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_models_exported_while_training_are_refused(tmp_path: Path) -> None:
    for layer in (nn.BatchNorm2d(1), nn.Dropout(0.5)):
        model = nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 3))
        with pytest.raises(ModelError, match=r"training mode.*model\.eval\(\)"):
            load_model(str(_export(model.train(), tmp_path / "m.pt2", 4)))
        assert load_model(str(_export(model.eval(), tmp_path / "m.pt2", 4)))(_rand(3, 1, 8, 8)).shape == (3, 3)
    (tmp_path / "m.pt2").write_bytes((tmp_path / "m.pt2").read_bytes()[:500])
    with pytest.raises(ModelError, match=r"m\.pt2 cannot be read"):
        load_model(str(tmp_path / "m.pt2"))


# --- ONNX ---


def _write_onnx(model: CNN, path: Path, batch: int | str) -> str:
    """The built-in cnn as an ONNX graph, written by hand."""
    onnx = pytest.importorskip("onnx")
    make, kinds = onnx.helper.make_node, onnx.TensorProto
    weights = [onnx.numpy_helper.from_array(v.numpy(), k) for k, v in model.state_dict().items()]
    nodes = []
    for i, source in ((1, "x"), (2, "r1")):
        inputs = [source, f"conv{i}.weight", f"conv{i}.bias"]
        nodes.append(make("Conv", inputs, [f"c{i}"], kernel_shape=[4, 4], strides=[2, 2], pads=[1, 1, 1, 1]))
        nodes.append(make("Relu", [f"c{i}"], [f"r{i}"]))
    nodes.append(make("Flatten", ["r2"], ["f"]))
    nodes.append(make("Gemm", ["f", "linear.weight", "linear.bias"], ["y"], transB=1))
    x = onnx.helper.make_tensor_value_info("x", kinds.FLOAT, [batch, 1, 8, 8])
    y = onnx.helper.make_tensor_value_info("y", kinds.FLOAT, [batch, 10])
    graph = onnx.helper.make_graph(nodes, "cnn", [x], [y], weights)
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return str(path)


@pytest.mark.parametrize("batch", ["n", 4, 1])
def test_onnx_models_answer_as_the_eager_one(tmp_path: Path, batch: int | str) -> None:
    pytest.importorskip("onnxruntime")
    model = build_model("cnn", (1, 8, 8)).eval().network
    assert isinstance(model, CNN)
    loaded = load_model(_write_onnx(model, tmp_path / "m.onnx", batch))
    for n in (1, 4, 7):
        x = _rand(n, 1, 8, 8)
        assert torch.allclose(loaded(x), model(x), atol=1e-5)
    assert loaded(x.double()).dtype == torch.float32
    assert _counts(loaded, x[:2]) == _counts(model, x[:2])
    assert weights_hash(loaded) == hashlib.sha256((tmp_path / "m.onnx").read_bytes()).hexdigest()
    with pytest.raises(ModelError, match=r"m\.onnx failed on a batch"):
        loaded(_rand(4, 3, 8, 8))


def test_onnx_with_its_weights_in_another_file_claims_no_hash(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    model = build_model("cnn", (1, 8, 8)).eval().network
    assert isinstance(model, CNN)
    path = _write_onnx(model, tmp_path / "m.onnx", "n")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert weights_hash(load_model(path)) is None


def test_damaged_onnx_and_missing_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "m.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelError, match=r"m\.onnx cannot be read as ONNX"):
        load_model(str(tmp_path / "m.onnx"))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ucan\[onnx\]'"):
        load_model(str(tmp_path / "m.onnx"))


# --- the real weights ---


@needs_real_data
@torch.inference_mode()
def test_real_resnet20_on_cifar10() -> None:
    model = load_model("resnet20", Path(str(REAL), "weights", "cifar10_resnet20.safetensors"))
    x, y = load("cifar10").batch(range(500))
    assert float((model(x).argmax(1) == y).float().mean()) >= 0.89


@needs_real_data
def test_real_resnet56_loads() -> None:
    model = load_model("resnet56", Path(str(REAL), "weights", "cifar10_resnet56.safetensors"))
    x, y = load("cifar10").batch(range(32))
    assert float((model(x).argmax(1) == y).float().mean()) >= 0.85


@needs_real_data
@torch.inference_mode()
def test_real_mobilenet_on_imagenet_pictures(tmp_path: Path) -> None:
    with tarfile.open(Path(str(REAL), "imagenet-sample", "val200.tar")) as archive:
        archive.extractall(tmp_path, filter="data")
    data = load(tmp_path)
    assert len(data) == data.num_classes == 200 and data.event_shape == (3, 224, 224)
    model = load_model("mobilenet_v2_rotated", Path(str(REAL), "weights", "mobilenet_v2_imagenet.safetensors"))
    x, y = data.batch(np.arange(0, 200, 10))  # type: ignore[arg-type]
    assert float((model(x).argmax(1) == 5 * y).float().mean()) >= 0.7
