"""Data and models as objects: whatever holds inputs and labels, and modules as their libraries make them."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ucan import Gaussian, InvalidInput, ModelError, SmoothedClassifier
from ucan.data import as_dataset, load
from ucan.models.adapt import adapt, normalised
from ucan.models.factory import split_call
from ucan.models.files import load_estimator
from ucan.runs.certify import CertifyJob, certify

X, Y = torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1, 0])


class Streamed(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize(
    "source",
    [
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=4),
        Streamed(),
        (X, Y),
        (X.numpy(), Y.numpy()),
        list(zip(X, Y.tolist(), strict=True)),
        [{"image": x, "label": int(y)} for x, y in zip(X, Y, strict=True)],
        [{"x": x.tolist(), "y": int(y)} for x, y in zip(X, Y, strict=True)],
    ],
    ids=["dataset", "loader", "iterable", "tensors", "arrays", "pairs", "mappings", "lists"],
)
def test_whatever_holds_inputs_and_labels(source):
    made = as_dataset(source)
    inputs, labels = made.batch(range(6))
    assert torch.allclose(inputs, X) and torch.equal(labels, Y)


def test_inputs_without_labels_are_neither_right_nor_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X.numpy())
    for source in ("x.npy", X.numpy(), X, [x for x in X]):
        made = load(source) if isinstance(source, str) else as_dataset(source)
        assert (made.labels == -1).all() and torch.allclose(made.batch(range(6))[0], X)
    job = CertifyJob(model=lambda x: (x.mean((1, 2, 3)) > 0.5).long(), data="x.npy", classes=2, n=50, n0=10)
    done = certify(job, "run")
    assert done.accuracy is None and done.labelled == 0


def test_a_data_set_of_a_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_data.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        "data = TensorDataset(torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0]))\n"
        "def make(): return data\n"
    )
    assert len(load("mine_data:data")) == 3 and len(load("mine_data:make")) == 3
    with pytest.raises(InvalidInput, match="mine_data:gone"):
        load("mine_data:gone")


def test_pictures_and_class_names_of_a_hugging_face_set():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    pictures = [Image.fromarray(np.full((3, 4, 3), 60 * k, dtype=np.uint8)) for k in range(3)]
    made = as_dataset(datasets.Dataset.from_dict({"image": pictures, "label": [0, 1, 1]}, features=features))
    assert made.classes == ("cat", "dog") and made.event_shape == (3, 3, 4) and made.step == 1 / 255
    assert float(made.batch([1])[0].max()) == pytest.approx(60 / 255)


def test_another_range_needs_its_unit():
    loud = np.array([[-60.0, 3.0], [-20.0, 0.5]])
    with pytest.raises(InvalidInput, match="unit"):
        as_dataset(loud)
    made = as_dataset(loud, unit="dB")
    assert made.batch([0])[0].dtype == torch.float64 and made.batch([0])[0].tolist() == [[-60.0, 3.0]]
    assert as_dataset(np.array([[-3, 4]]), unit="steps").step == 1.0
    short = as_dataset(loud.astype(np.float16), unit="dB")
    assert short.batch([0])[0].dtype == torch.float32 and short.batch([1])[0].tolist() == [[-20.0, 0.5]]
    with pytest.raises(InvalidInput, match="finite"):
        as_dataset(np.array([[np.nan, 1.0]]), unit="dB")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ([(X[0], torch.tensor([0.0, 1.0]))], r"label.argmax\(\)"),
        ((X, torch.eye(2)[Y]), r"labels.argmax\(1\)"),
        ([(X[0], 0.5)], "whole class number"),
        ([(X[0], 0), (X[0, :, :1], 1)], "different shapes"),
        ([], "empty"),
        ([{"sound": 1}], "the input should be one of"),
        (7, "cannot be used as data"),
        ([("text", 1)], "not numbers|must be"),
    ],
)
def test_what_is_no_data_is_told_what_would_be(source, says):
    with pytest.raises(InvalidInput, match=says):
        as_dataset(source)


# --- models ---


class Record:
    def __init__(self, logits):
        self.logits = logits


class Answering(nn.Module):
    def __init__(self, kind, width=3):
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(4, width)

    def forward(self, x):
        logits = self.layer(x.flatten(1))
        made = {"record": lambda: Record(logits), "dict": lambda: {"logits": logits}, "tuple": lambda: (logits, x)}
        return made.get(self.kind, lambda: logits)()


@pytest.mark.parametrize("kind", ["record", "dict", "tuple", "plain"])
def test_a_module_that_answers_with_a_record(kind):
    model = Answering(kind).eval()
    found = adapt(model, X[:1])
    assert found.num_classes == 3 and found.model(X).shape == (6, 3)
    (c,) = SmoothedClassifier(found.model, Gaussian(scale=0.1), num_classes=3).certify(X[:1], n0=10, n=50)
    assert len(c.evidence.counts) == 3
    assert found.model is model if kind == "plain" else not found.model.training


def test_one_logit_is_two_classes_with_the_border_at_zero():
    model = Answering("plain", width=1).eval()
    found = adapt(model, X[:1])
    expected = (model(X)[:, 0] > 0).long()
    assert found.num_classes == 2 and torch.equal(found.model(X).argmax(1), expected)
    with pytest.raises(ModelError, match="adapt"):
        SmoothedClassifier(model, Gaussian(scale=0.1), num_classes=2).certify(X[:1], n0=10, n=50)
    with pytest.raises(ModelError, match="seems to be a probability"):
        adapt(nn.Sequential(model, nn.Sigmoid()).eval(), X[:1])


def test_a_hugging_face_classifier_from_its_configuration():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        id2label={0: "cat", 1: "dog", 2: "cow"},
        label2id={"cat": 0, "dog": 1, "cow": 2},
    )
    model = transformers.ViTForImageClassification(config).eval()
    x = torch.rand(1, 3, 8, 8)
    found = adapt(model, x)
    assert found.num_classes == 3 and found.classes == ("cat", "dog", "cow")
    (c,) = SmoothedClassifier(model, Gaussian(scale=0.1)).certify(
        x, n0=10, n=50
    )  # by itself, too: three classes are known
    assert len(c.evidence.counts) == 3


def test_a_timm_model_behind_its_own_normalisation():
    try:
        import timm
    except Exception as error:  # without torchvision, or with one that is not for this PyTorch, timm does not import
        pytest.skip(f"timm cannot be imported: {error}")
    model = timm.create_model("resnet10t", pretrained=False, num_classes=5).eval()
    x = torch.rand(1, 3, 32, 32)
    front = normalised(model, "model", 3)
    assert adapt(front, x).num_classes == 5
    mean, std = (torch.tensor(model.pretrained_cfg[k]).reshape(3, 1, 1) for k in ("mean", "std"))
    assert torch.allclose(front(x), model((x - mean) / std), atol=1e-5)


def test_normalisation_is_behind_the_noise_and_fits_the_channels():
    model = Answering("plain").eval()
    with pytest.raises(ModelError, match="does not state"):
        normalised(model, "model", 1)
    with pytest.raises(ModelError, match="channels"):
        normalised(model, "imagenet", 1)
    with pytest.raises(ModelError, match="normalise must be"):
        normalised(model, "best", 3)
    assert torch.allclose(normalised(model, ((0.5,), (0.5,)), 1)(X), model((X - 0.5) / 0.5), atol=1e-6)


def test_makers_take_plain_values_only():
    name, call = split_call("pkg:make(20, name='wide', sizes=[1, 2], ratio=-0.5, on=None)")
    assert name == "pkg:make" and call.positional == (20,)
    assert call.named == {"name": "wide", "sizes": [1, 2], "ratio": -0.5, "on": None}
    assert split_call("pkg:net") == ("pkg:net", None)
    for wrong in ("pkg:make(os.system('x'))", "pkg:make(", "pkg:make(*[1])", "pkg:make(a=b)", "pkg:make()()"):
        with pytest.raises(ModelError, match="literal values"):
            split_call(wrong)


@pytest.fixture(scope="module")
def tree():
    tree = pytest.importorskip("sklearn.tree").DecisionTreeClassifier(random_state=0)
    x = np.random.default_rng(0).normal(size=(80, 2))
    return tree.fit(x, np.where(x[:, 0] > 0, "up", "down"))


def test_skops_files_need_no_trust_and_pickles_do(tree, tmp_path):
    joblib = pytest.importorskip("joblib")
    joblib.dump(tree, tmp_path / "tree.joblib")
    with pytest.raises(ModelError, match="--trust"):
        load_estimator(tmp_path / "tree.joblib")
    found = load_estimator(tmp_path / "tree.joblib", trust=True)
    assert found.classes == ("down", "up") and len(found.weights_hash) == 64
    skops = pytest.importorskip("skops.io")
    from sklearn.linear_model import LogisticRegression

    linear = LogisticRegression().fit([[-1.0, 0.0], [1.0, 0.0]], ["down", "up"])
    skops.dump(linear, tmp_path / "linear.skops")
    assert load_estimator(tmp_path / "linear.skops")(torch.tensor([[1.0, 0.0]])).tolist() == [1]
    skops.dump(tree, tmp_path / "tree.skops")  # its own code reads the nodes of a tree, which skops does not vouch for
    if skops.get_untrusted_types(file=tmp_path / "tree.skops"):
        with pytest.raises(ModelError, match="--trust"):
            load_estimator(tmp_path / "tree.skops")
    assert load_estimator(tmp_path / "tree.skops", trust=True)(torch.tensor([[1.0, 0.0]])).tolist() == [1]


@pytest.mark.parametrize("kind", ["xgboost.json", "xgboost.ubj", "lightgbm.txt", "catboost.cbm"])
def test_the_boosters_own_files(kind, tmp_path):
    package, _, suffix = kind.partition(".")
    library = pytest.importorskip(package)
    x = np.random.default_rng(0).normal(size=(200, 2))
    y = (x[:, 0] > 0).astype(int)
    path = tmp_path / f"model.{suffix}"
    if package == "xgboost":
        library.XGBClassifier(n_estimators=5, n_jobs=1).fit(x, y).save_model(path)
    elif package == "lightgbm":
        library.LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1).fit(x, y).booster_.save_model(str(path))
    else:
        library.CatBoostClassifier(iterations=5, verbose=0, train_dir=str(tmp_path)).fit(x, y).save_model(str(path))
    found = load_estimator(path)
    assert found.num_classes == 2 and found(torch.tensor([[-1.5, 0.0], [1.5, 0.0]])).tolist() == [0, 1]


@pytest.mark.parametrize("name", ["m.json", "m.txt", "m.skops", "m.cbm", "m.ubj"])
def test_files_that_hold_no_model_are_refused(name, tmp_path):
    (tmp_path / name).write_text("{}" if name == "m.json" else "nothing")
    with pytest.raises(Exception, match=r"m\."):
        load_estimator(tmp_path / name)
