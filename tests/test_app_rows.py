"""Exploring a run on a table, without a browser: the run's own certificates, its columns in words, changes by hand."""

import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import ucan
from ucan.app import panels
from ucan.app.rows import RowClaim, changed_row, choices, row_at, row_named, row_outcome, row_panel
from ucan.app.session import Session
from ucan.certificate import Abstention, Certificate
from ucan.cli import app
from ucan.errors import InvalidInput, UcanError
from ucan.results import Store
from ucan.rounding import floor_grouped
from ucan.tabular import row_answer

pandas = pytest.importorskip("pandas")
pytest.importorskip("sklearn")


def ucan_says(*words: object) -> None:
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exit_code == 0, (result.output, result.exception)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Certificates of six customers, whose job is held; income and age are whole numbers."""
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    place, rng = tmp_path_factory.mktemp("credit"), np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "customer": [f"C-{i:04d}" for i in range(300)],
            "income": rng.normal(50_000, 12_000, 300).round(),
            "age": rng.integers(18, 80, 300),
            "job": rng.choice(["clerk", "<b>nurse"], 300),
        }
    )
    score = (frame["income"] - 50_000) / 12_000 + (frame["age"] - 49) / 60 + (frame["job"] == "<b>nurse")
    frame["decision"] = np.where(score > 0.3, "approved", "refused")
    frame.iloc[:280].to_csv(place / "train.csv", index=False)
    frame.iloc[280:].to_csv(place / "test.csv", index=False)
    encode = make_column_transformer((OneHotEncoder(), ["job"]), (StandardScaler(), ["income", "age"]))
    model = make_pipeline(encode, LogisticRegression()).fit(frame[["income", "age", "job"]], frame["decision"])
    (place / "credit.pkl").write_bytes(pickle.dumps(model))
    words = ("--model", place / "credit.pkl", "--trust", "--data", place / "test.csv", "--target", "decision")
    more = ("--id", "customer", "--train", place / "train.csv", "--n", 500, "--max", 6, "--seed", 3)
    ucan_says("certify", *words, *more, "-q", "-o", place / "run")
    return place / "run"


@pytest.fixture
def some(run):
    return Session.open(run, trust=True)


def certified(some, row, scale=None, n=500, alpha=0.001):
    *_, outcome = some.certify(row.x, scale or some.scale, n, alpha, row.held)
    return outcome


def sure_of(some):
    """A row with a certificate, and the certificate."""
    for number in some.numbers:
        row = row_at(some, number)
        outcome = certified(some, row)
        if isinstance(outcome, Certificate):
            return row, outcome
    raise AssertionError("all abstain")


def test_a_row_gets_the_runs_own_certificate_again(some, run):
    assert len(some.numbers) == 6 and some.plan.seed == 3 and not some.notes
    with Store.open(run) as store:
        for number in some.numbers:
            outcome = certified(some, row_at(some, number))
            assert outcome.to_dict() == store.outcome(number).to_dict()
            assert outcome.evidence.held == some.table.held_at(number)


def test_the_answer_is_in_words_with_every_column(some):
    row, certificate = sure_of(some)
    text = " ".join(row_outcome(some, row, certificate).unescape().split())
    reach = row_answer(some.table, row.number, certificate).reach
    assert reach is not None and reach.words() in text
    assert reach.answer in ("approved", "refused") and f"The answer stays {reach.answer} while income alone" in text
    for column, move in zip(("income", "age"), reach.moves, strict=True):
        line = f'<th scope="row">{column}</th><td>± {floor_grouped(move.alone)}</td>'
        assert f"{line}<td>± {floor_grouped(move.together)}</td>" in text
    assert "held: no change is covered" in text and "Scope pipeline." in text and "picture" not in text
    assert "at least 99.9 %" in text and "whole steps" in text


def test_values_noise_and_held_columns_are_shown(some):
    row = row_at(some, some.numbers[0])
    text = row_panel(some, row, 2 * some.scale)
    income, age = (int(v) for v in row.x[0].tolist())
    assert f"<td>{income:,}</td>" in text and f"<td>{age}</td>" in text and row.name in text
    assert text.count("u-held") == 1 and "held (text)" in text and "<b>nurse" not in text
    _, sigma = some.g.M(row.x)
    shown = [float(found) for found in re.findall(r"<td>([\d.e+]+)</td></tr>", text)]
    assert shown == pytest.approx([2 * some.scale * float(v) for v in sigma.apply(row.x * 0 + 1)[0]], rel=1e-3)
    head = panels.header(some)
    assert "2 columns that vary, 1 held, 2 classes" in head and "picture" not in head and "attacker" not in head


def test_rows_are_found_by_name(some):
    names = choices(some, 4)
    assert [name for name, _ in names] == ["C-0280", "C-0281", "C-0282", "C-0283"]
    assert row_named(some, " C-0283 ").number == names[3][1]
    assert row_named(some, "C-0299").number == 19, "any row of the table, not only those of the run"
    with pytest.raises(InvalidInput, match="no row called 'C-1'"):
        row_named(some, "C-1")
    twice = ucan.Table({"a": [1.5, 2.5], "id": ["x", "x"]}, id="id")
    double = replace(some, dataset=twice, numbers=(0, 1))
    assert choices(double, 9) == [("x (row 0)", 0), ("x (row 1)", 1)]
    with pytest.raises(InvalidInput, match="2 rows called 'x'"):
        row_named(double, "x")
    plain = replace(some, dataset=ucan.Table({"a": [1.5, 2.5]}), numbers=(0, 1))
    assert choices(plain, 9) == [("0", 0), ("1", 1)] and row_named(plain, "1").name == "row 1"


def test_a_changed_row_is_certified_as_itself_and_says_whether_it_is_covered(some):
    row, certificate = sure_of(some)
    claim, age = RowClaim(row, certificate), int(row.x[0, 1])
    reach = row_answer(some.table, row.number, certificate).reach
    income, far = int(row.x[0, 0]), int(reach.moves[0].alone)
    near = changed_row(some, row.number, f"income={income + far - 1}")
    beyond = changed_row(some, row.number, f"income = {income + far + 2}, age={age}")
    assert near.changed == beyond.changed == ("income",) and near.label == -1 and near.held == row.held
    assert "covers this change" in row_panel(some, near, some.scale, claim)
    assert f"was {income:,}" in row_panel(some, near, some.scale, claim)
    assert "does not cover this change" in row_panel(some, beyond, some.scale, claim)
    other = row_at(some, 0 if row.number else 1)
    assert "this change" not in row_panel(some, near, some.scale, RowClaim(other, certificate))
    assert "this change" not in row_panel(some, near, some.scale)
    outcome = certified(some, near)
    (wanted,) = some.g.holding(row.held).certify(near.x, n=500, seed=3)
    assert outcome.to_dict() == wanted.to_dict() and "label is" not in row_outcome(some, near, outcome)
    assert "by its label" not in row_outcome(some, near, outcome)
    assert changed_row(some, row.number, "").changed == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job=clerk", "job is held"),
        ("height=3", "no column 'height'"),
        ("income=much", "income takes a number"),
        ("income=nan", "income takes a number"),
        ("income=41,000", "'000' is no change"),
        ("other.toml", "is no change"),
        ("income=41000.5", r"whole steps \(income 1\)"),
    ],
)
def test_changes_that_make_no_sense_are_refused(some, text, said):
    with pytest.raises(UcanError, match=said):
        changed_row(some, 0, text)


def test_the_same_numbers_with_other_held_values_are_another_claim(some):
    row, first = sure_of(some)
    again = certified(some, row, n=700)
    assert again.evidence.bound == "anytime" and "Try 2 on this row" in row_outcome(some, row, again)
    other = next(r for r in map(lambda i: row_at(some, i), range(20)) if r.held != row.held)
    moved = replace(row, held=other.held)
    assert certified(some, moved, n=700).evidence.bound == first.evidence.bound != "anytime"


def test_an_abstention_is_about_the_row(some):
    row = row_at(some, 0)
    outcome = certified(some, row, n=2)
    assert isinstance(outcome, Abstention)
    text = " ".join(row_outcome(some, row, outcome).split())
    assert "It abstains" in text and "Nothing is claimed about this row" in text and "alone" not in text


def test_what_is_missing_is_said(run, tmp_path):
    with pytest.raises(UcanError, match="--trust"):
        Session.open(run)
    with pytest.raises(UcanError, match="is none: give the table"):
        Session.open(run, source="digits", trust=True)
    frame = pandas.read_csv(run.parent / "test.csv")
    frame.loc[0, "income"] += 1
    frame.to_csv(tmp_path / "other.csv", index=False)
    assert "has changed since this run" in Session.open(run, source=str(tmp_path / "other.csv"), trust=True).notes[0]
