"""Estimators and pipelines on tables: noise in raw units, names of classes, per-column answers, none too large."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from ucan import Fixed, Gaussian, InvalidInput, ModelError, SmoothedClassifier
from ucan.data.columns import Amount
from ucan.data.tables import Table, by_held
from ucan.estimators import Estimator, as_estimator
from ucan.models.rows import TableModel
from ucan.reach import Reach
from ucan.verify import verify

pandas = pytest.importorskip("pandas")
pytest.importorskip("sklearn")


def smoothed(model, table, scales=None, step=True, **options):
    rows, table = TableModel.of(model, table, **options)
    sigma = torch.tensor(list(table.scales(scales).values()), dtype=torch.float64)
    grid = table.step if step else None
    return SmoothedClassifier(rows, Gaussian(scale=1.0), Fixed(sigma), rows.num_classes, step=grid), table


def certified(model, table, count=4, n=1000, **options):
    g, table = smoothed(model, table, **options)
    found = {}
    for held, indices in by_held(table, range(count)):
        x = table.batch(indices)[0]
        found |= dict(zip(indices, g.holding(held).certify(x, n0=50, n=n), strict=True))
    return g, table, [found[i] for i in range(count)]


@pytest.fixture(scope="module")
def cancer():
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    return frame.iloc[::2], frame.iloc[1::2]


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    n = 600
    frame = pandas.DataFrame(
        {
            "income": rng.normal(50_000, 12_000, n).round(),
            "age": rng.integers(18, 80, n),
            "job": rng.choice(["clerk", "nurse", "smith"], n),
        }
    )
    score = (frame["income"] - 50_000) / 12_000 + (frame["age"] - 49) / 60 + (frame["job"] == "nurse")
    frame["decision"] = np.where(score > 0.3, "approved", "refused")
    return frame.iloc[:500], frame.iloc[500:].reset_index(drop=True)


@pytest.fixture(scope="module")
def pipeline(people):
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    encode = make_column_transformer((OneHotEncoder(), ["job"]), (numbers, ["income", "age"]))
    train, _ = people
    return make_pipeline(encode, LogisticRegression()).fit(train.drop(columns="decision"), train["decision"])


def test_a_linear_model_on_a_table_against_the_closed_form_in_raw_units(cancer):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, test = cancer
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(train.drop(columns="target"), train["target"])
    _, table, found = certified(model, Table(test, target="target", train=train), count=12, n=2000)
    scaler, linear = model[0], model[1]
    w = linear.coef_[0] / scaler.scale_
    margins = table.rows.numpy() @ w + linear.intercept_ - (scaler.mean_ / scaler.scale_) @ linear.coef_[0]
    sigma = np.array(list(table.scales().values()))
    certificates = [(i, c) for i, c in enumerate(found) if not c.abstained]
    assert len(certificates) >= 8
    for i, c in certificates:
        assert c.prediction == int(margins[i] > 0)
        assert c.region.radius <= abs(margins[i]) / np.linalg.norm(sigma * w)
        assert (c.region.reach().numpy() <= abs(margins[i]) / np.abs(w)).all()


def test_a_random_forest_gives_per_feature_answers_in_words(cancer):
    from sklearn.ensemble import RandomForestClassifier

    train, test = cancer
    forest = RandomForestClassifier(20, random_state=0).fit(train.drop(columns="target"), train["target"])
    _, table, (c, *_) = certified(forest, Table(test, target="target", train=train), count=2)
    reach = Reach.of(c, [column.name for column in table.varying], table.classes[c.prediction])
    words = reach.words()
    assert words.startswith("The answer stays 0 while mean radius alone moves by less than ")
    assert "likewise for 25 more columns; or while all 30 move together, each by less than 18.2 % of that" in words
    assert reach.to_dict()["alone"]["mean radius"] == pytest.approx(c.region.radius * table.scales()["mean radius"])


def test_a_pipeline_with_categories_takes_noise_before_its_own_scaling_and_encoding(pipeline, people):
    train, test = people
    g, table, found = certified(pipeline, Table(test, target="decision", train=train), count=8)
    assert table.classes == ("approved", "refused") and [c.name for c in table.varying] == ["income", "age"]
    assert g.f.num_classes == 2
    certificates = [(i, c) for i, c in enumerate(found) if not c.abstained]
    assert certificates
    for i, c in certificates:
        assert c.evidence.held.to_dict() == {"job": test["job"][i]}
        row = test.drop(columns="decision").iloc[[i]].astype({"income": float, "age": float})
        assert pipeline.classes_[c.prediction] == pipeline.predict(row)[0]
        for column, far in zip(("income", "age"), c.region.reach().tolist(), strict=True):
            for sign in (-1, 1):
                moved = row.copy()
                moved[column] += sign * far * 0.999
                assert pipeline.predict(moved)[0] == table.classes[c.prediction]
        words = Reach.of(c, ("income", "age"), table.classes[c.prediction], {"income": "$"}).words()
        assert "Nothing is said of changes of job: it was held, without noise." in words


def test_a_certificate_of_a_row_is_verified_at_its_own_category_only(pipeline, people):
    train, test = people
    g, table, found = certified(pipeline, Table(test, target="decision", train=train), count=3)
    c, x = found[0], table.batch([0])[0]
    here = table.held_at(0)
    assert verify(c, g.holding(here), x, n=300).stands
    other = type(here)(here.columns, ("smith" if here.values[0] != "smith" else "clerk",))
    assert not verify(c, g.holding(other), x, n=300).stands


def test_words_name_numbers_rounded_down_and_what_moves_together():
    model = lambda rows: (rows[:, 0] > 0).long()  # noqa: E731
    g = SmoothedClassifier(model, Gaussian(scale=1.0), Fixed(torch.tensor([2000.0, 1.5]).double()), num_classes=2)
    (c,) = g.certify(torch.tensor([[5000.0, 1.0]]).double(), n0=50, n=1000)
    words = Reach.of(c, ("income", "age"), "approved", {"income": "$"}).words()
    assert words == (
        "The answer stays approved while income alone moves by less than 4,000 $, age alone by less than 3; or while both "
        "move together, income by less than 2,830 $, age by less than 2.12."
    ), c.region.radius
    with pytest.raises(InvalidInput, match="2 columns, but 1 names"):
        Reach.of(c, ("income",))


def test_a_row_that_an_estimator_refuses_is_a_vote_for_no_class():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    x = np.linspace(0.5, 8, 60)[:, None]
    model = make_pipeline(FunctionTransformer(np.log), LogisticRegression()).fit(x, x[:, 0] > 2)
    g, table = smoothed(model, Table(x[:3]), {"column 0": Amount(0.5)})
    (c,) = g.certify(table.batch([0])[0], n0=50, n=400)
    assert 0 < c.invalid < 200 and (c.abstained or c.prediction == 0)
    broken = make_pipeline(FunctionTransformer(lambda v: v * np.nan), LogisticRegression())
    broken.steps[1][1].fit(x, x[:, 0] > 2)
    g, table = smoothed(broken, Table(x[:3]), {"column 0": Amount(0.5)})
    with pytest.raises(ModelError, match="cannot answer these rows"):
        g.certify(table.batch([0])[0], n0=50, n=400)


def test_arrays_go_to_estimators_that_were_fitted_on_arrays():
    from sklearn.tree import DecisionTreeClassifier

    x = np.random.default_rng(0).normal(size=(80, 3))
    tree = DecisionTreeClassifier(random_state=0).fit(x, np.where(x[:, 0] > 0, "up", "down"))
    found = as_estimator(tree)
    assert isinstance(found, Estimator) and found.classes == ("down", "up") and found.features is None
    g = SmoothedClassifier(found, Gaussian(scale=0.1), num_classes=found.num_classes)
    (c,) = g.certify(torch.tensor([[1.5, 0.0, 0.0]]), n0=20, n=200)
    assert c.prediction == 1 and c.evidence.model is not None
    with pytest.raises(ModelError, match="fitted on 3 columns"):
        TableModel.of(tree, Table(np.zeros((2, 2)) + 0.5))


def test_what_is_no_classifier_is_said_so():
    from sklearn.linear_model import LinearRegression, LogisticRegression

    x, y = np.arange(10.0)[:, None], np.arange(10.0)
    with pytest.raises(ModelError, match="regressor"):
        as_estimator(LinearRegression().fit(x, y))
    with pytest.raises(ModelError, match="not fitted"):
        as_estimator(LogisticRegression())
    assert as_estimator(nn.Linear(2, 2)) is None and as_estimator(len) is None
    with pytest.raises(ModelError, match="column 'job' holds texts"):
        TableModel(nn.Linear(2, 2).eval(), Table({"job": ["a", "b"], "x": [1.5, 2.5]}).columns, 2)


def test_a_network_on_a_table_is_given_all_columns_in_order():
    net = nn.Linear(3, 2, bias=False).eval()
    net.weight.data = torch.tensor([[1.0, 0.0, 0.0], [0.0, 10.0, 1.0]])
    table = Table({"a": [1.5, 9.5], "flag": [1, 0], "b": [0.5, 1.5]})
    rows, table = TableModel.of(net, table, num_classes=2)
    assert [c.name for c in table.held] == ["flag"]
    answers = rows.at(table.held_at(0))(table.batch([0])[0])
    assert answers.tolist() == [[1.5, 10.5]]
    with pytest.raises(ModelError, match="held columns flag"):
        rows(table.batch([0])[0])


def test_an_estimator_that_was_fitted_anew_is_another_model(cancer):
    from sklearn.linear_model import LogisticRegression

    train, test = cancer
    x, y = train[["mean radius", "mean texture"]], train["target"]
    model = LogisticRegression().fit(x, y)
    rows, _ = TableModel.of(model, Table(test, target="target", train=train))
    before = rows.weights_hash
    assert before == rows.weights_hash
    model.fit(x.iloc[:100], y.iloc[:100])
    assert rows.weights_hash != before


BOOSTERS = {
    "xgboost": "XGBClassifier",
    "lightgbm": "LGBMClassifier",
    "catboost": "CatBoostClassifier",
}


@pytest.mark.parametrize(("package", "kind"), BOOSTERS.items())
@pytest.mark.parametrize("named", [True, False], ids=["frame", "array"])
def test_boosted_trees(package, kind, named, cancer):
    made = getattr(pytest.importorskip(package), kind)
    options = {"verbose": 0, "iterations": 20} if package == "catboost" else {"n_estimators": 20, "n_jobs": 1}
    if package == "lightgbm":
        options["verbose"] = -1
    train, test = cancer
    x = train.drop(columns="target")
    model = made(**options).fit(x if named else x.to_numpy(), train["target"].to_numpy())
    _, table, found = certified(model, Table(test, target="target", train=train), count=3, n=400)
    assert table.classes == ("0", "1") and not all(c.abstained for c in found)
    first = test.drop(columns="target").iloc[:3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected = np.asarray(model.predict(first if named else first.to_numpy())).reshape(-1)
    assert all(c.abstained or c.prediction == int(e) for c, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("package", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("classes", [2, 3])
def test_boosters_by_themselves(package, classes):
    library = pytest.importorskip(package)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = (x[:, 0] > 0).astype(int) + (x[:, 0] > 1 if classes == 3 else 0)
    many = {"num_class": 3} if classes == 3 else {}
    if package == "xgboost":
        objective = "multi:softprob" if classes == 3 else "binary:logistic"
        booster = library.train({"objective": objective, "nthread": 1, **many}, library.DMatrix(x, label=y), 5)
    else:
        objective = "multiclass" if classes == 3 else "binary"
        settings = {"objective": objective, "verbose": -1, "num_threads": 1, **many}
        booster = library.train(settings, library.Dataset(x, label=y), 5)
    found = as_estimator(booster)
    assert found.num_classes == classes
    answers = found(torch.tensor([[-1.5, 0.0], [0.5, 0.0], [2.0, 0.0]]))
    assert answers.tolist() == [0, 1, classes - 1]


@pytest.mark.parametrize("names", [["f1", "f2", "f3"], ["f0", "f1", "f2"], ["0", "1", "2"]], ids=str)
def test_columns_that_are_called_like_made_up_names_are_found_by_name(names):
    """They were taken in the table's order: certificates were about a model whose columns had changed places."""
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    rng = np.random.default_rng(0)
    train = pandas.DataFrame(dict(zip(names, rng.normal(size=(3, 200)), strict=True)))
    labels = np.where(train[names[0]] > 0, "up", "down")
    turned = train[names[::-1]]
    by_name = make_pipeline(make_column_transformer(("passthrough", names)), LogisticRegression())
    for model in (LogisticRegression(), by_name):
        model.fit(train, labels)
        _, table, found = certified(model, Table(turned.iloc[:6], train=turned), count=6)
        assert [column.name for column in table.varying] == names
        wanted = model.predict(train.iloc[:6])
        assert all(c.abstained or table.classes[c.prediction] == w for c, w in zip(found, wanted, strict=True))
        assert sum(not c.abstained for c in found) > 2
    other = Table(turned.iloc[:6].to_numpy(), train=turned.to_numpy())
    if names[0] == "f1":
        with pytest.raises(InvalidInput, match="the model takes f1"):
            TableModel.of(model, other)
