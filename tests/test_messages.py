"""What a newcomer gets wrong is refused with what to do instead, before any work."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ucan
from ucan.arithmetic import arithmetic_name, changes_in_words
from ucan.certificate import Certificate
from ucan.errors import DoesNotFollow, InvalidInput, ModelError, UcanError, first_line, in_one_line
from ucan.models import Embedded
from ucan.models.adapt import adapt
from ucan.plan import CertifyPlan
from ucan.questions.topk import TopK
from ucan.reach import Move, Reach
from ucan.results.metrics import average_radius
from ucan.runs.ask import AskJob
from ucan.runs.audit import AuditJob, _chosen
from ucan.runs.bench import BenchJob
from ucan.runs.certify import certify
from ucan.runs.jobs import Selection
from ucan.runs.predict import PredictJob
from ucan.runs.prepare import CertifyJob
from ucan.runs.read import Run
from ucan.runs.train import TrainJob
from ucan.runs.tune import TuneJob
from ucan.runs.verify import VerifyJob

ROOT = Path(__file__).parents[1]
X = torch.rand(2, 1, 2, 2, generator=torch.Generator().manual_seed(0))
LAW = ucan.Gaussian(scale=0.25)


def net(classes: int = 2) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, classes)).eval()


class Answering(nn.Module):
    """A network that answers with more than its logits."""

    def __init__(self, *others: Any) -> None:
        super().__init__()
        self.inner, self.others = net(), others
        self.eval()

    def forward(self, x: torch.Tensor) -> Any:
        more = [torch.zeros(len(x), *shape) if isinstance(shape, tuple) else torch.tensor(0.0) for shape in self.others]
        return (self.inner(x), *more)


def g(model: Any = None, **settings: Any) -> ucan.SmoothedClassifier:
    return ucan.SmoothedClassifier(net() if model is None else model, LAW, **{"num_classes": 2, **settings})


def pictures() -> ucan.SmoothedClassifier:
    """A network that takes pictures (n, 3, 4, 4) alone."""
    return g(nn.Sequential(nn.Conv2d(3, 2, 4), nn.Flatten()).eval())


REFUSED = {
    "a NumPy array": (lambda: g().certify(X.numpy(), n=100), "got ndarray: use torch.from_numpy(x)"),
    "token ids": (lambda: g().certify(torch.ones(1, 4).long(), n=100), "ucan.models.Embedded"),
    "one number after the other": (lambda: g().certify(torch.zeros(4), n=100), "got (4,): give one input as x[None]"),
    "no batch": (lambda: pictures().certify(torch.rand(3, 4, 4), n=100), "one input is given as x[None]"),
    "channels last": (lambda: pictures().certify(torch.rand(1, 5, 5, 3), n=100), "x.permute(0, 3, 1, 2)"),
    "flattened": (lambda: pictures().certify(torch.rand(1, 48), n=100), "x.reshape(-1, channels, height, width)"),
    "nobody said 10": (
        lambda: ucan.SmoothedClassifier(net(), LAW).certify(X, n=100),
        "2 logits, but num_classes is 10, the default: use num_classes=2",
    ),
    "somebody said 3": (
        lambda: g(num_classes=3).certify(X, n=100),
        "2 logits, but num_classes is 3: use num_classes=2",
    ),
    "the other norm": (
        lambda: ucan.SmoothedClassifier(net(), ucan.Laplace(scale=0.25), num_classes=2).certify(X, n=100),
        "it has one against ℓ1. Use norm=1 (on the command line --norm 1), or another law.",
    ),
    "a norm as text": (lambda: g().certify(X, n=100, norm="inf"), "math.inf, a number and no text, got 'inf'"),  # type: ignore[arg-type]
    "labels as texts": (
        lambda: ucan.data.InMemory(X.numpy(), np.array(["a", "b"])),
        "labels must be numbers, got an array of <U1: number the classes from 0",
    ),
    "normalised pixels": (lambda: ucan.data.InMemory(3 * X - 1), "on the command line --normalise"),
    "which tensor": (lambda: g(Answering((512,))).certify(X, n=100), "2 tensors that could be its logits"),
    "which tensor, on the command line": (
        lambda: adapt(Answering((512,)), X[:1]),
        "2 tensors that could be its logits",
    ),
    "a law's class": (
        lambda: certify(CertifyJob(model=net(), data=X.numpy(), classes=2, law=ucan.Gaussian)),  # type: ignore[arg-type]
        "law must be a noise law such as ucan.Gaussian(scale=0.5), got <class",
    ),
    "a generator's class": (
        lambda: PredictJob(model=net(), data=X.numpy(), noise=ucan.Fixed),  # type: ignore[arg-type]
        "generator must be a ucan.Generator such as ucan.Fixed(scale), got <class",
    ),
    "one change": (
        lambda: TrainJob(settings="mnist-fast", changes="epochs=1"),
        "changes takes a list, got 'epochs=1': give [\"epochs=1\"].",
    ),
    "one held column": (
        lambda: ucan.Table({"age": [1.0]}, hold="age"),
        "hold takes a list, got 'age': give [\"age\"].",
    ),
    "one column that varies": (lambda: CertifyJob(model="m", data="d", vary="age"), 'give ["age"].'),
    "one held column to verify": (
        lambda: VerifyJob(model="m", certificate="c", input="i", hold="age"),
        'give ["age"].',
    ),
    "one name of a class": (lambda: CertifyJob(model="m", data="d", class_names="cat"), 'give ["cat"].'),
    "one network": (lambda: BenchJob(models="lenet"), "models takes a list, got 'lenet': give [\"lenet\"]."),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_said_with_what_to_do(what: str) -> None:
    make, message = REFUSED[what]
    with pytest.raises(UcanError, match=re.escape(message)):
        make()


def test_a_tuple_in_which_only_one_can_be_the_logits_is_understood_in_python_and_by_commands() -> None:
    """Hugging Face's tuples have a loss and hidden states beside the logits."""
    model = Answering(None, (7, 3))
    plain = g(model.inner).certify(X, n=100)
    assert [c.counts.tolist() for c in g(model).certify(X, n=100)] == [c.counts.tolist() for c in plain]
    found = adapt(model, X[:1])
    assert found.num_classes == 2 and torch.equal(found.model(X), model.inner(X))


@pytest.mark.parametrize(
    ("bound", "alpha", "family"), [("binary", 0.001, 1), ("two-class", 0.05, 1), ("binary", 0.1, 50)]
)
def test_the_least_n_is_the_least_with_which_all_votes_prove_something(bound: Any, alpha: float, family: int) -> None:
    """By brute force: all n votes for one class, p ≥ level^(1/n); two classes have half of the level each."""
    level = alpha / family / (2 if bound == "two-class" else 1)
    least = next(n for n in range(1, 100) if level ** (1 / n) > 0.5)
    CertifyPlan(n=least, alpha=alpha, bound=bound, family=family).check_enough()
    with pytest.raises(InvalidInput, match=rf"use at least n = {least}\."):
        CertifyPlan(n=least - 1, alpha=alpha, bound=bound, family=family).check_enough()
    constant = ucan.SmoothedClassifier(lambda batch: torch.zeros(len(batch)).long(), LAW, num_classes=2)
    (c,) = constant.certify(X[:1], n=least, alpha=alpha, bound=bound, family=family)
    assert not c.abstained and c.radius > 0


def test_few_votes_are_no_mistake_where_more_may_follow() -> None:
    CertifyPlan(n=5, bound="anytime").check_enough()
    assert len(g().certify(X, n=5, bound="anytime")) == len(g().certify(X, n=5, stop=0.1)) == 2


def test_an_embedded_model_states_its_classes() -> None:
    class Text(nn.Module):
        num_classes = 3

        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.words(tokens).mean(1))

    text = Text().eval()
    texts, tokens = Embedded(text, text.words), torch.tensor([[1, 2]])
    smoothed = ucan.SmoothedClassifier(texts.at(tokens), LAW)
    assert smoothed.num_classes == 3 and len(smoothed.certify(texts.embed(tokens), n=20)[0].counts) == 3


JOBS: dict[str, Any] = {
    "certify": lambda **taken: CertifyJob(model="m", data="d", **taken),
    "predict": lambda **taken: PredictJob(model="m", data="d", **taken),
    "ask": lambda **taken: AskJob(model="m", data="d", question=TopK(1), **taken),
    "tune": lambda **taken: TuneJob(model="m", data="d", **taken),
    "audit": lambda **taken: AuditJob(run="r", **taken),
    "bench": lambda **taken: BenchJob(**taken),
}


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "5", True])
@pytest.mark.parametrize("command", JOBS)
def test_how_many_inputs_are_taken_is_a_whole_number(command: str, wrong: Any) -> None:
    for name in ("most", "skip") if command not in ("audit", "bench") else ("most",):
        with pytest.raises(InvalidInput, match=f"{name} must be a whole number of at least 1, got {wrong!r}"):
            JOBS[command](**{name: wrong})
    JOBS[command](most=None)
    JOBS[command](most=np.int64(2))


def test_a_selection_by_hand_is_checked_too() -> None:
    data = ucan.data.InMemory(X.numpy())
    assert list(Selection.of(data, 1, 1).indices) == [0] and list(Selection.of(data, 2, None).indices) == [0]
    for taken in ((0, None), (1, -1)):
        with pytest.raises(InvalidInput, match="must be a whole number of at least 1"):
            Selection.of(data, *taken)


def test_a_mask_is_no_list_of_rows() -> None:
    """True is a whole number in Python: a mask would be answered for rows 0 and 1."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [0.0, 1.0, 2.0], "b": [1.0, 0.5, 2.0]})
    model = lambda rows: (rows[:, 0] > 0.5).long()  # noqa: E731
    table = ucan.SmoothedTable(model, ucan.Table(frame), sigma={"a": 1, "b": 1}, num_classes=2)
    mask = frame["a"] > 0.5
    masks = (mask, mask.to_numpy(), mask.tolist(), list(mask.to_numpy()), torch.tensor(mask), mask.astype("boolean"))
    for given in masks:
        with pytest.raises(InvalidInput, match=r"numpy\.flatnonzero\(mask\)"):
            table.certify(given, n=20)
    for single in (3, np.int64(3), 1.5, torch.tensor(1)):
        with pytest.raises(InvalidInput, match=r"a list of numbers of rows, got .*\[3\]"):
            table.certify(single, n=20)
    rows = np.flatnonzero(mask)
    lists = (rows, rows.tolist(), torch.tensor(rows), pandas.Series(rows), range(1, 3), (i for i in rows))
    for given in lists:
        assert [answer.index for answer in table.certify(given, n=20)] == [1, 2]


@pytest.mark.parametrize("bound", ["binary", "two-class"])
def test_invalid_votes_are_said_where_nothing_is_certified(bound: Any) -> None:
    outside = ucan.SmoothedClassifier(lambda batch: torch.full((len(batch),), 5), LAW, num_classes=3)
    (nothing,) = outside.certify(X[:1], n=100, bound=bound)
    assert nothing.abstained and nothing.reason.endswith(" (100 of 100 votes were invalid)")
    for answers in (
        outside.predict(X[:1], n=100),
        outside.predict(X[:1], n=100, stop=True),
        outside.certify(X[:1], n=100, stop=0.1),
        outside.certify(X[:1], n=100, confidence=0.9),
        outside.certify(X[:1], n=100, top=2),
    ):
        assert answers[0].abstained and " votes were invalid)" in answers[0].reason
    coin = ucan.SmoothedClassifier(lambda batch: (batch[:, 0, 0, 0] > 0).long(), LAW, num_classes=2)
    (valid,) = coin.certify(torch.zeros(1, 1, 2, 2), n=100)
    assert valid.abstained and "invalid" not in valid.reason


def test_an_estimator_has_the_number_of_its_own_classes() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    model = linear.LogisticRegression().fit(np.arange(6.0)[:, None], [0, 1, 2, 0, 1, 2])
    said = (
        r"the model answers with 3 classes, but num_classes is 2: use num_classes=3 \(on the command line --classes\)"
    )
    for make in (
        lambda: ucan.SmoothedClassifier(model, LAW, num_classes=2),
        lambda: adapt(model, torch.zeros(1, 1), 2),
        lambda: ucan.SmoothedTable(model, ucan.Table({"a": [0.5, 1.5]}), sigma={"a": 1}, num_classes=2),
    ):
        with pytest.raises(ModelError, match=said):
            make()
    assert ucan.SmoothedClassifier(model, LAW, num_classes=3).num_classes == 3
    assert ucan.SmoothedClassifier(model, LAW).num_classes == 3


def test_a_column_or_a_measure_that_a_run_does_not_have_is_said_with_those_it_has(tmp_path: Path) -> None:
    certify(CertifyJob(model=net(), data=ucan.data.InMemory(X.numpy()), n=100, model_id=None), out=tmp_path / "run")
    run = Run.open(tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"^a run has no column 'radii'; its columns are idx, .*radius"):
        run.columns["radii"]
    with pytest.raises(KeyError):
        run.columns["radii"]
    assert run.columns.get("radii") is None and "radii" not in run.columns
    for measured in (run.curve, lambda by: average_radius(run.columns, by)):
        with pytest.raises(InvalidInput, match='by must be "radius", "alm" or "sigma", got \'radii\''):
            measured("radii")  # type: ignore[arg-type]


def test_the_rows_of_a_table_are_numbers_and_there() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [0.0, 1.0, 2.0], "b": [1.0, 0.5, 2.0]})
    model = lambda rows: (rows[:, 0] > 0.5).long()  # noqa: E731
    table = ucan.SmoothedTable(model, ucan.Table(frame), sigma={"a": 1, "b": 1}, num_classes=2)
    with pytest.raises(InvalidInput, match=r"row 99: the table has rows 0 to 2\."):
        table.certify([99], n=20)
    with pytest.raises(InvalidInput, match=r"certify takes numbers of rows .* another SmoothedTable"):
        table.certify(frame, n=20)
    with pytest.raises(
        InvalidInput, match=r"ucan.Table's train=, on the command line --train.*sigma=, on the command line"
    ):
        ucan.SmoothedTable(model, ucan.Table(frame), num_classes=2)
    with pytest.raises(InvalidInput, match=r"for a table, use ucan\.SmoothedTable"):
        g().certify(frame, n=20)


def test_a_table_answers_its_own_question_for_all_rows_together() -> None:
    rows = {"age, in years": [0.0, 1.0, 2.0], "b": [1.0, 0.5, 2.0], "kind": [0.0, 1.0, 2.0]}
    sigma = {"age, in years": 1, "b": "2"}  # a name of any characters, as a mapping
    table = ucan.SmoothedTable(lambda r: (r[:, 0] > 0.5).long(), ucan.Table(rows, hold=["kind"]), sigma, num_classes=2)
    assert list(table.sigma.values()) == [1.0, 2.0]
    for question in ({"top": 1}, {"confidence": 0.6}):
        with pytest.raises(InvalidInput, match=r"table\.at\(index\)"):
            table.certify([0], n=20, **question)
    with pytest.raises(InvalidInput, match="family is 2, but there are 3 inputs"):  # each held value is asked apart
        table.certify(n=200, family=2)
    assert len(table.certify(n=200, family=3)) == 3


@pytest.mark.parametrize("x", [torch.eye(3).to_sparse(), torch.rand(2, 3).to(torch.float8_e4m3fn)])
def test_inputs_that_noise_cannot_be_added_to_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(InvalidInput, match=r"x\.to_dense\(\), x\.float\(\)"):
        g().certify(x, n=20)


def test_radii_that_are_no_numbers_are_refused() -> None:
    line = ucan.SmoothedRegressor(lambda b: b[:, 0], LAW)
    for radius in ("a", [0.1, "b"], [None]):
        with pytest.raises(InvalidInput, match="radius takes a number or several"):
            line.certify(X, radius=radius, n=200)


def test_a_reach_of_less_than_a_step_is_no_reach() -> None:
    moves = (Move("income", 40.0, 20.0, "", 1.0), Move("age", 0.415, 0.2, "", 1.0))
    words = Reach("approved", moves, (), True, "pipeline", 0.001).words()
    assert "while both move together" in words
    assert "This is about changes by whole steps (income 1, age 1), so that no change of age is covered." in words
    enough = (moves[0], Move("age", 1.01, 0.2, "", 1.0))
    assert "no change of" not in Reach("approved", enough, (), True, "pipeline", 0.001).words()


def test_a_ball_and_a_region_have_two_names() -> None:
    (c,) = g(generator=ucan.Fixed(torch.tensor([[[1.0, 2], [3, 4]]]))).certify(X[:1] + 9, n=100)
    assert isinstance(c, Certificate) and "within an ℓ2 radius of" in str(c)
    assert "in units of Σ" in repr(c.region) and "radius" not in repr(c.region)


def test_a_run_of_abstentions_has_nothing_to_audit() -> None:
    columns = {"idx": np.arange(3), "abstained": np.ones(3, dtype=bool), "radius": np.zeros(3)}
    run: Any = SimpleNamespace(folder="runs/mine", rows=lambda names: columns)
    with pytest.raises(InvalidInput, match="all 3 inputs of runs/mine abstained"):
        _chosen(run, 0.0, None)


def test_a_grid_with_a_step_per_column_is_shown_without_its_hash() -> None:
    assert arithmetic_name("grid(5f07eef034c5)") == "grid" and "the steps given" in changes_in_words(
        "grid(5f07eef034c5)"
    )
    assert arithmetic_name("grid(1/255)") == "grid(1/255)" and arithmetic_name("real") == "real"


def test_a_changed_record_names_the_field() -> None:
    (c,) = g().certify(X[:1] + 9, n=100)
    for name in ("radius", "log_volume"):
        record = c.to_dict()
        record[name] += 1
        with pytest.raises(DoesNotFollow, match=f"{name} does not follow from its region") as told:
            ucan.certificate.from_dict(record)
        assert told.value.field == name


def test_pages_that_messages_name_exist() -> None:
    """A message names a page of the documentation by its title, since those who installed the package have no docs/."""
    titles = {re.search(r"^# (.*)$", page.read_text(), re.M)[1] for page in (ROOT / "docs").glob("*.md")}  # type: ignore[index]
    sources = [path.read_text() for path in (ROOT / "src" / "ucan").rglob("*.py")]
    joined = [re.sub(r'"\s*\n\s*f?"', "", text) for text in sources]
    named = {title for text in joined for title in re.findall(r"documentation page “([^”]+)”", text)}
    assert len(named) >= 8 and named <= titles
    assert not [scope for scope in ucan.choices.SCOPES.values() if "docs/" in scope]


def test_a_refused_pipeline_of_texts_names_the_way() -> None:
    transformers = pytest.importorskip("ucan.neighbours.transformers")

    class Pipe:
        task, model = "text-classification", net()

    with pytest.raises(ModelError, match=r"ucan\.models\.Embedded\(pipe\.model\)"):
        transformers._processor(Pipe())


def test_one_line_is_told_of_errors_of_others():
    said, silent = RuntimeError("\n first\nsecond"), KeyError()
    assert first_line(said) == "first" and in_one_line(said) == "RuntimeError: first"
    assert first_line(silent) == "KeyError" and first_line(silent, "nothing") == "nothing"
    assert in_one_line(silent) == "KeyError: no message"
