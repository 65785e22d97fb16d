"""Rows of a table as their model means them: the types of the training table's columns, and all classes by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

import ucan
from ucan.errors import InvalidInput, ModelError
from ucan.report.gallery import in_words
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.progress import Progress

KINDS = ("bird", "cat", "dog")


def animals() -> tuple[pd.DataFrame, torch.nn.Module]:
    """Rows of three classes by one number, and a network whose classes are in alphabetical order."""
    a = np.linspace(-3, 3, 240)
    frame = pd.DataFrame({"a": a, "b": np.cos(7 * a), "q": np.where(a < -1, "bird", np.where(a < 1, "cat", "dog"))})
    fitted = LogisticRegression().fit(frame[["a", "b"]], frame.q)
    net = torch.nn.Linear(2, 3).double().eval()
    with torch.no_grad():
        net.weight.copy_(torch.tensor(fitted.coef_))
        net.bias.copy_(torch.tensor(fitted.intercept_))
    return frame, net


def test_rows_that_do_not_show_all_classes_need_their_names() -> None:
    frame, net = animals()
    table = ucan.Table(frame[frame.q != "bird"].iloc[10:14], target="q", train=frame)
    with pytest.raises(ModelError, match=r"has 3 classes, and the labels of .* show 1 \(cat\): name all"):
        ucan.SmoothedTable(net, table, num_classes=3)
    named = ucan.SmoothedTable(net, table, class_names=KINDS)
    for row in named.certify(n=300, n0=30):
        assert row.label == "cat" and "The answer stays cat" in row.words()


def test_labels_that_are_numbers_of_classes_need_not_show_all() -> None:
    frame, net = animals()
    frame["q"] = frame.q.map({kind: number for number, kind in enumerate(KINDS)})
    table = ucan.Table(frame[frame.q != 1].iloc[[70, 150]], target="q", train=frame)
    rows = ucan.SmoothedTable(net, table, num_classes=3).certify(n=300, n0=30)
    assert [row.label for row in rows] == ["0", "2"]
    assert ["class 0" in rows[0].words(), "class 2" in rows[1].words()] == [True, True]


def test_classes_whose_names_are_numbers_are_called_by_them() -> None:
    frame, _ = animals()
    frame["q"] = frame.q.map({"bird": 3, "cat": 4, "dog": 5})
    model = LogisticRegression().fit(frame[["a", "b"]], frame.q)
    table = ucan.Table(frame.iloc[[120]], target="q", train=frame)
    (row,) = ucan.SmoothedTable(model, table).certify(n=300, n0=30)
    assert row.label == "4" and "The answer stays class 4 while" in row.words()


def codes(folder: Path, rows: str) -> ucan.Table:
    """A training table with a column of codes, of which some look like numbers, and rows of it."""
    lines = [f"{k / 10},{'AB12'[k % 4]},{'yes' if k % 4 == 2 else 'no'}" for k in range(80)]
    (folder / "train.csv").write_text("\n".join(["a,g,y", *lines]) + "\n")
    (folder / "rows.csv").write_text(f"a,g,y\n{rows}\n")
    return ucan.Table(folder / "rows.csv", target="y", train=folder / "train.csv")


def test_codes_that_look_like_numbers_are_texts_as_in_the_training_table(tmp_path: Path) -> None:
    table = codes(tmp_path, "0.2,1,yes\n0.6,1,yes")
    assert table.held_at(0).to_dict() == {"g": "1"}
    train = pd.read_csv(tmp_path / "train.csv", dtype={"g": str})
    known = {"A": 0, "B": 1, "1": 5, "2": 3}
    mapped = FunctionTransformer(lambda rows: rows.assign(g=rows.g.map(known).fillna(-1)))
    model = make_pipeline(mapped, DecisionTreeClassifier(max_depth=4)).fit(train[["a", "g"]], train.y)
    for row in ucan.SmoothedTable(model, table, model_id="by code").certify(n=300, n0=30):
        assert "The answer stays yes" in row.words()


def test_texts_where_the_training_table_has_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"column 'a' holds texts in .* and numbers in train.csv"):
        codes(tmp_path, "low,A,no\nhigh,B,no")
    train = pd.DataFrame({"a": [0.5, 1.5], "g": ["A", "1"]})
    with pytest.raises(InvalidInput, match=r"column 'g' holds numbers in .* and texts in"):
        ucan.Table(pd.DataFrame({"a": [0.5], "g": [1]}), train=train)


def test_a_decimal_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match="column 'a'"):
        ucan.Table(pd.DataFrame({"a": [Decimal("1.5"), Decimal("Infinity")], "b": [1.0, 2.0]}))


def test_an_abstention_names_the_class_that_it_numbers():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    labels = np.where(rows[:, 0] > 0, 7, 5)
    model = LogisticRegression().fit(rows, labels)
    columns = {"a": [0.0, 3.0], "b": [0.0, 0.0], "answer": [5, 7]}
    table = ucan.Table(columns, target="answer", train={"a": rows[:, 0], "b": rows[:, 1], "answer": labels})
    near, far = ucan.SmoothedTable(model, table, sigma="a=1,b=1", step=False).certify(n=200)
    assert near.reach is None and "No answer is certified" in near.words()
    number = int(np.argmax(near.outcome.evidence.selection))
    assert near.words().endswith(f" (class {number}, counted from 0, is {(5, 7)[number]}).")
    assert "counted from 0" not in far.words() and far.answer is not None
    assert in_words(near.outcome, 0, near.names) == [
        f"No claim: {near.words().partition('certified: ')[2]}"
    ]  # in reports


# --- rows that a model refuses as they are ---


@dataclass
class Kept(Progress):
    """Keeps the warnings of a job."""

    warnings: list[str] = field(default_factory=list)

    def warn(self, line: str) -> None:
        self.warnings.append(line)


def jobs(first: str = "pilot") -> tuple[Any, dict[str, list[Any]], pd.DataFrame]:
    """A pipeline that knows three jobs, and rows of which the first has another one."""
    train = pd.DataFrame({"age": np.linspace(20, 70, 90), "job": ["clerk", "cook", "nurse"] * 30})
    coded = make_column_transformer((OneHotEncoder(), ["job"]), ("passthrough", ["age"]))
    model = make_pipeline(coded, LogisticRegression(max_iter=1000)).fit(train, train.age > 45)
    return model, {"age": [30.0, 25.0, 60.0], "job": [first, "cook", "clerk"]}, train


def test_a_row_that_the_model_refuses_first_keeps_no_other_from_its_answer() -> None:
    model, rows, train = jobs()
    table = ucan.Table(rows, train=train)
    refused, *others = ucan.SmoothedTable(model, table, sigma="age=2").certify(n0=10, n=60)
    assert refused.answer is None and refused.outcome.evidence.invalid == 60
    assert [other.answer for other in others] == ["False", "True"]
    with pytest.raises(ModelError, match=r"LogisticRegression|Pipeline cannot answer these rows: .*Found unknown cat"):
        ucan.SmoothedTable(model, table, sigma="age=2").certify([0], n0=10, n=60)


def test_rows_that_the_model_refuses_are_named_before_any_work(tmp_path: Path) -> None:
    model, rows, train = jobs()
    job = CertifyJob(model=model, data=rows, train=train, sigma="age=2", n0=10, n=60, model_id="jobs")
    told = Kept()
    certify(job, tmp_path / "run", told)
    assert any(
        re.search(r"refuses 1 of 3 rows .* row 0 \(from 0\): ValueError: Found unknown categories \['pilot'\]", one)
        for one in told.warnings
    )
    model, rows, train = jobs("cook")
    certify(replace(job, data=rows), tmp_path / "other", told := Kept())
    assert not any("refuses" in one for one in told.warnings)


def test_a_row_on_which_the_model_breaks_is_named_before_any_work(tmp_path: Path) -> None:
    coded = FunctionTransformer(lambda x: np.array([[{"a": 0, "b": 1}[g], n] for g, n in x.to_numpy()]))
    train = pd.DataFrame({"g": ["a", "b"] * 30, "n": np.linspace(-1, 1, 60)})
    model = make_pipeline(coded, LogisticRegression()).fit(train, train.n > 0)
    rows = {"g": ["a", "b", "c"], "n": [0.5, -0.5, 0.2]}
    job = CertifyJob(model=model, data=rows, train=train, sigma="n=0.2", n0=10, n=60, model_id="coded")
    with pytest.raises(ModelError, match=r"Pipeline fails on row 2 \(from 0\) of the table: KeyError: 'c'"):
        certify(job, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_that_takes_the_target_is_told_so() -> None:
    model, rows, train = jobs("cook")
    with pytest.raises(InvalidInput, match=r"the model takes age, which is the target or the id: name another column"):
        ucan.SmoothedTable(
            model, ucan.Table({**rows, "pay": [1.0, 2.0, 3.5]}, target="age", train=train.assign(pay=train.age))
        )
