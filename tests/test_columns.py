"""Tables as people bring them: files and frames, what varies and what is held, steps, scales and budgets in raw units."""

import math
import re

import numpy as np
import pytest
import torch

from ucan import InvalidInput
from ucan.data.columns import Amount, parse_amounts
from ucan.data.frames import read_frame
from ucan.data.tables import Table, by_held

LOANS = """customer,income,age,sex,color_red,color_blue,member,approved
A-1,52000,41.5,f,1,0,true,yes
A-2,38000.50,29,m,0,1,false,no
A-3,61000,35,f,0,1,true,yes
A-4,41000,52,f,1,0,false,no
"""


@pytest.fixture
def loans(tmp_path):
    path = tmp_path / "loans.csv"
    path.write_text(LOANS, encoding="utf-8")
    return path


def table(loans, **options):
    return Table(loans, target="approved", id="customer", **options)


def test_a_csv_with_numbers_texts_one_hot_groups_and_truth_values(loans):
    made = table(loans)
    assert [c.name for c in made.varying] == ["income", "age"]
    assert {c.name: c.held for c in made.held} == {
        "sex": "text",
        "color_red": "one-hot group",
        "color_blue": "one-hot group",
        "member": "true or false",
    }
    assert made.rows.dtype == torch.float64 and made.rows[1].tolist() == [38000.5, 29.0]
    assert made.step.tolist() == [0.1, 0.1]  # 38000.50 has one decimal that counts
    assert made.classes == ("no", "yes") and made.labels.tolist() == [1, 0, 1, 0]
    assert made.name_of(2) == "A-3" and made.event_shape == (2,)
    assert made.held_at(0).to_dict() == {"sex": "f", "color_red": 1.0, "color_blue": 0.0, "member": 1.0}


def test_what_the_user_says_of_a_column_comes_first(loans):
    made = table(loans, hold=["age"], vary=["member"])
    assert [c.name for c in made.varying] == ["income", "member"]
    assert next(c for c in made.held if c.name == "age").held == "asked for"
    with pytest.raises(InvalidInput, match="texts"):
        table(loans, vary=["sex"])
    with pytest.raises(InvalidInput, match="no column 'wage'"):
        Table(loans, target="wage")
    with pytest.raises(InvalidInput, match="choose one"):
        table(loans, hold=["age"], vary=["age"])
    with pytest.raises(InvalidInput, match="every column"):
        table(loans, hold=["age", "income"])


def test_rows_with_the_same_held_values_share_a_classifier(loans):
    groups = by_held(table(loans, hold=[]), range(4))
    assert [indices for _, indices in groups] == [[0], [1], [2], [3]]
    plain = Table({"a": [1.5, 2.5], "flag": [1, 0]}, vary=["flag"])
    assert by_held(plain, range(2)) == [(None, [0, 1])]
    two = Table({"a": [1.5, 2.5, 3.5], "kind": ["x", "y", "x"]})
    assert [(held.values, at) for held, at in by_held(two, range(3))] == [(("x",), [0, 2]), (("y",), [1])]


@pytest.mark.parametrize("kind", ["pandas", "polars", "parquet", "tsv", "mapping"])
def test_the_same_table_from_everywhere(kind, loans, tmp_path):
    first = table(loans)
    if kind == "tsv":
        path = tmp_path / "loans.tsv"
        path.write_text(LOANS.replace(",", "\t"), encoding="utf-8")
        source = path
    else:
        pandas = pytest.importorskip("pandas")
        frame = pandas.read_csv(loans)
        if kind == "polars":
            source = pytest.importorskip("polars").read_csv(loans)
        elif kind == "parquet":
            pytest.importorskip("pyarrow")
            source = tmp_path / "loans.parquet"
            frame.to_parquet(source)
        else:
            source = frame if kind == "pandas" else {c: frame[c].tolist() for c in frame.columns}
    second = table(source)
    assert torch.equal(first.rows, second.rows) and torch.equal(first.labels, second.labels)
    assert first.columns == second.columns and first.names == second.names
    assert first.held_at(3) == second.held_at(3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n3,\n", "row 1 (from 0) has no value in column 'b'"),
        ("a,b\n1,2\n3,NA\n4,?\n", "row 1 (from 0) has 'NA', which means no value, in column 'b', like 1 other row"),
        ("a,b\n1,x\n3,None\n", "row 1 (from 0) has 'None', which means no value, in column 'b': fill it in"),
        ("a,b\n1,2\n3\n", "row 1 (from 0) has 1 cells"),
        ("a,a\n1,2\n", "two columns named 'a'"),
        ("1,2\n3,4\n", "instead of column names"),
        ("a,b\n", "at least one row"),
        ("a,\n1,2\n", "column 2 has no name"),
        ("a\n1\n2\n3\n4\n12k\n", "'12k' in row 4 (from 0)"),
        ("a,b\n1,-inf\n", "is infinite in column 'b'"),
        ("a,b\n1,1e999\n", "is infinite in column 'b'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_row_and_column(text, says, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=re.escape(says)):
        Table(path)


def test_none_in_small_letters_is_a_text(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("debt,age\nnone,20\nhouse,30\n", encoding="utf-8")
    assert read_frame(path).column("debt", "target").texts == ("none", "house")


def test_a_column_that_the_training_table_lacks_is_left_out_unless_the_model_takes_it(loans, tmp_path):
    more = tmp_path / "more.csv"
    lines = loans.read_text(encoding="utf-8").splitlines()
    more.write_text(
        "\n".join([lines[0] + ",extra", *(f"{line},{i}" for i, line in enumerate(lines[1:]))]), encoding="utf-8"
    )
    made = table(more, train=loans)
    assert "extra" not in made.given.names and made.given.names == table(loans, train=loans).given.names
    assert made.for_model(made.given.names, None).given.names == made.given.names
    with pytest.raises(InvalidInput, match="the model takes extra"):
        made.for_model([*made.given.names, "extra"], None)


def test_missing_values_of_frames_are_refused_too():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidInput, match=r"row 1 \(from 0\) has no value in column 'x'"):
        read_frame(pandas.DataFrame({"x": [1.0, None]}))
    with pytest.raises(InvalidInput, match=r"row 0 \(from 0\) has no value in column 's'"):
        read_frame(pandas.DataFrame({"s": [None, "a"]}))
    with pytest.raises(InvalidInput, match=r"row 1 \(from 0\) has no value in column 'whole'"):
        read_frame(pandas.DataFrame({"whole": pandas.array([1, None], dtype="Int64")}))
    with pytest.raises(InvalidInput, match=r"'large' has whole numbers beyond 2\^53"):
        read_frame({"large": [1, 2**70]})
    with pytest.raises(InvalidInput, match="holds dates"):
        read_frame(pandas.DataFrame({"when": pandas.to_datetime(["2020-01-01", "2020-01-02"])}))


def test_codes_with_leading_zeros_are_texts_and_whole_numbers_have_step_one(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("zip,n,price,rate\n01234,3,9.99,0.12345678901\n98765,7,10.5,1.5\n", encoding="utf-8")
    columns = {c.name: c for c in Table(path).columns}
    assert columns["zip"].held == "text" and columns["n"].step == 1.0 and columns["price"].step == 0.01
    assert columns["rate"].step is None and Table(path).step is None  # on no grid: real arithmetic for the table
    assert Table(path, hold=["rate"]).step.tolist() == [1.0, 0.01]


def test_a_column_of_zeros_and_ones_is_held_but_not_one_that_has_more_in_training():
    rows = {"children": [0, 1, 1], "flag": [0, 1, 0], "x": [1.5, 2.5, 3.5]}
    assert [c.name for c in Table(rows).varying] == ["x"]
    train = {"children": [0, 3, 1], "flag": [1, 1, 0], "x": [1.25, 2.5, 3.5]}
    made = Table(rows, train=train)
    assert [c.name for c in made.varying] == ["children", "x"]
    assert made.step.tolist() == [1.0, 0.01]  # the training table has two decimals


def test_scales_come_from_the_training_table_or_from_the_user_and_never_from_the_certified_rows(loans):
    with pytest.raises(InvalidInput, match="never taken from the rows"):
        table(loans).scales()
    assert table(loans).scales({"income": Amount(2000), "age": Amount(1.5)}) == {"income": 2000.0, "age": 1.5}
    rng = np.random.default_rng(0)
    train = _train(rng.normal(50_000, 10_000, 4000).round(), rng.normal(40, 8, 4000).round(1))
    found = table(loans, train=train).scales({"age": Amount(50, percent=True)})
    assert found["income"] == pytest.approx(0.25 * 10_000, rel=0.05) and found["age"] == pytest.approx(4, rel=0.05)
    outlier = _train(np.append(rng.normal(50_000, 10_000, 3999), 1e12), rng.normal(40, 8, 4000))
    assert table(loans, train=outlier).scales()["income"] == pytest.approx(2500, rel=0.05)  # quantiles, no moments


def _train(income, age):
    n = len(income)
    return {
        "income": income,
        "age": age,
        "sex": ["f"] * n,
        "color_red": [1] * n,
        "color_blue": [0] * n,
        "member": [True] * n,
    }


def test_what_cannot_be_a_scale_is_said(loans):
    made = table(loans)
    with pytest.raises(InvalidInput, match="no column 'wage'"):
        made.scales({"wage": Amount(1)})
    with pytest.raises(InvalidInput, match=r"sex is held \(text\)"):
        made.scales({"sex": Amount(1)})
    with pytest.raises(InvalidInput, match="hold the column"):
        made.scales({"income": Amount(0), "age": Amount(1)})
    with pytest.raises(InvalidInput, match="the same in every row"):
        table(loans, train=_train(np.full(10, 5.0), np.arange(10.0))).scales()


def test_a_budget_in_units_and_in_percent_of_what_is_usual(loans):
    train = _train(np.array([40_000.0, 50_000.0, 90_000.0]), np.array([20.0, 40.0, 60.0]))
    budget = table(loans, train=train).budget(parse_amounts("income=5%, age=1", "--budget"))
    assert budget.limits.tolist() == [2500.0, 1.0]
    assert table(loans).budget({"age": Amount(2)}).limits.tolist() == [0.0, 2.0]
    with pytest.raises(InvalidInput, match="training table"):
        table(loans).budget({"income": Amount(5, percent=True)})


@pytest.mark.parametrize("text", ["income", "income=", "=3", "income=-1", "income=nan", "a=1,a=2", ",", "income=five"])
def test_amounts_that_are_none(text):
    with pytest.raises(InvalidInput, match="--sigma"):
        parse_amounts(text, "--sigma")


def test_amounts_from_a_file(tmp_path):
    path = tmp_path / "sigma.toml"
    path.write_text('income = 2000\n"mean radius" = "5%"\n', encoding="utf-8")
    assert parse_amounts(str(path), "--sigma") == {"income": Amount(2000.0), "mean radius": Amount(5.0, True)}
    with pytest.raises(InvalidInput, match="cannot be read"):
        parse_amounts(str(tmp_path / "none.toml"), "--sigma")


def test_a_part_of_a_table_keeps_what_the_whole_told(loans):
    part = table(loans).subset([2, 0])
    assert part.names == ("A-3", "A-1") and part.rows[0].tolist() == [61000.0, 35.0]
    assert part.step.tolist() == [0.1, 0.1] and part.held_at(0).to_dict()["color_blue"] == 1.0
    assert part.fingerprint() != table(loans).fingerprint() and len(part) == 2


def test_labels_in_the_order_that_the_model_knows(loans):
    made = table(loans).for_model(["age", "income"], ["yes", "no"])
    assert made.classes == ("yes", "no") and made.labels.tolist() == [0, 1, 0, 1]
    assert [c.name for c in made.columns] == ["age", "income"]
    with pytest.raises(InvalidInput, match=r"row 1 \(from 0\) has the label 'no'"):
        table(loans).for_model(None, ["yes", "maybe"])
    with pytest.raises(InvalidInput, match="the model takes wage"):
        table(loans).for_model(["wage"], None)


def test_numeric_classes_are_in_the_order_of_numbers_and_arrays_are_tables():
    made = Table({"x": [1.5, 2.5, 3.5], "y": [10, 2, 1]}, target="y")
    assert made.classes == ("1", "2", "10") and made.labels.tolist() == [2, 1, 0]
    array = Table(np.arange(6.0).reshape(3, 2) / 2)
    assert [c.name for c in array.columns] == ["column 0", "column 1"] and (array.labels == -1).all()
    with pytest.raises(InvalidInput, match="a table is"):
        Table(np.zeros(3))
    assert math.isclose(float(array.rows[2, 1]), 2.5)


def test_rows_are_named_as_the_file_names_them(tmp_path):
    """Numbers of accounts beyond 2^53 lost their last digits, and 1.10 was 1.1: several rows had one name."""
    for names in (["90071992547409931", "90071992547409932", "7"], ["1.1", "1.10", "2"]):
        rows = [f"{name},{i}.5,{10**17 + i}" for i, name in enumerate(names)]
        (tmp_path / "rows.csv").write_text("\n".join(["account,a,code", *rows]))
        table = Table(tmp_path / "rows.csv", id="account")
        assert table.names == tuple(names)
        assert table.held_at(2).to_dict() == {"code": f"{10**17 + 2}"}
