"""Held coordinates: no noise on them, and no certificate that covers a change of them."""

import json
import math

import pytest
import torch
from torch import nn

from ucan import ExpInf, Fixed, Gaussian, InvalidInput, ModelError, SmoothedClassifier
from ucan.certificate import from_dict
from ucan.held import Coordinates, Held
from ucan.verify import verify

NAMES = ("income", "sex", "age", "region")


def rule(rows):
    """Class 1 where income is high for the region; the region decides where the border lies."""
    return (rows[:, 0] + 0.5 * rows[:, 2] > 4 * rows[:, 3]).long()


def coordinates(model=rule, held=(1, 3)):
    return Coordinates(model, (4,), held, num_classes=2, names=NAMES)


def certified(row, law=None, norm=2, **options):
    rows = coordinates()
    x, held = rows.split(torch.tensor([row], dtype=torch.float64))
    g = SmoothedClassifier(rows.at(held), law or Gaussian(scale=0.5), Fixed(torch.tensor([2.0, 1.0])), num_classes=2)
    (c,) = g.certify(x, n0=50, n=1000, norm=norm, **options)
    return c, g, x


def test_a_certificate_names_what_was_held_and_has_the_dimension_of_the_rest():
    c, _, x = certified([6.0, 1.0, 2.0, 0.5])
    assert x.tolist() == [[6.0, 2.0]]
    assert c.region.shape == (2,) and c.region.reach().shape == (2,)
    assert c.evidence.held == Held(("sex", "region"), (1.0, 0.5))
    assert "with sex, region held: no change of them is covered" in str(c)


def test_no_certificate_covers_a_change_of_a_held_column():
    c, _, _ = certified([6.0, 1.0, 2.0, 0.5])
    assert c.prediction == 1 and c.radius > 0
    with pytest.raises(InvalidInput, match="shape"):
        c.region.contains(torch.tensor([[0.0, 0.0, 0.0, 0.1]]))  # there is no such change
    with pytest.raises(InvalidInput, match="shape"):
        c.region.covers(torch.tensor([0.0, 0.0, 0.0, 0.1]))
    # and rightly so: the least change of a held column that the data know of changes the answer
    moved, _, _ = certified([6.0, 1.0, 2.0, 3.0])
    assert moved.prediction == 0


@pytest.mark.parametrize(("law", "norm"), [(Gaussian(scale=0.5), math.inf), (ExpInf(scale=0.5), math.inf)])
def test_radius_alm_and_volume_are_those_of_the_columns_that_vary(law, norm):
    c, _, x = certified([6.0, 1.0, 2.0, 0.5], law, norm)
    alone = SmoothedClassifier(
        lambda u: (u[:, 0] + 0.5 * u[:, 1] > 2.0).long(), law, Fixed(torch.tensor([2.0, 1.0])), num_classes=2
    )
    (twin,) = alone.certify(x, n0=50, n=1000, norm=norm)
    assert (c.p_lower, c.radius, c.alm, c.log_volume) == (twin.p_lower, twin.radius, twin.alm, twin.log_volume)


def test_what_was_held_goes_to_json_and_back():
    c, _, _ = certified([6.0, 1.0, 2.0, 0.5])
    record = json.loads(json.dumps(c.to_dict()))
    assert record["evidence"]["held"] == {"sex": 1.0, "region": 0.5}
    assert from_dict(record).evidence.held == c.evidence.held
    plain = SmoothedClassifier(lambda u: (u[:, 0] > 0).long(), Gaussian(scale=1.0), num_classes=2)
    assert "held" not in plain.certify(torch.ones(1, 2), n0=20, n=100)[0].to_dict()["evidence"]


def test_a_record_that_follows_the_schema():
    jsonschema = pytest.importorskip("jsonschema")
    from importlib.resources import files

    schema = json.loads(files("ucan").joinpath("certificate.schema.json").read_text(encoding="utf-8"))
    c, _, _ = certified([6.0, 1.0, 2.0, 0.5])
    jsonschema.validate(json.loads(json.dumps(c.to_dict())), schema)


def test_verification_holds_the_same_values_and_no_others():
    c, g, x = certified([6.0, 1.0, 2.0, 0.5])
    assert verify(c, g, x, n=200).stands
    other = SmoothedClassifier(
        coordinates().at(Held(("sex", "region"), (0.0, 0.5))), g.law, g.M, num_classes=2
    )  # the answers are the same for both: the claim is still about the first alone
    verdict = verify(c, other, x, n=200)
    assert {check.name for check in verdict.checks if not check.passed} == {"held", "weights"}


def test_a_record_that_forgets_what_was_held_falls():
    c, g, x = certified([6.0, 1.0, 2.0, 0.5])
    record = c.to_dict()
    del record["evidence"]["held"]
    assert not verify(from_dict(record), g, x, n=200).stands


def test_holding_gives_the_classifier_at_these_values_under_the_same_noise():
    rows = coordinates()
    g = SmoothedClassifier(rows, Gaussian(scale=0.5), Fixed(torch.tensor([2.0, 1.0])), num_classes=2)
    x, held = rows.split(torch.tensor([[6.0, 1.0, 2.0, 0.5]]).double())
    (one,) = g.holding(held).certify(x, n0=50, n=500)
    assert one.evidence.held == held and one.prediction == 1
    assert g.holding(None) is g
    with pytest.raises(InvalidInput, match="not a classifier of rows"):
        SmoothedClassifier(rule, Gaussian(scale=1.0), num_classes=2).holding(held)


def test_a_module_is_asked_in_its_own_precision_and_never_in_training_mode():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    rows = Coordinates(net, (2, 2), [0], num_classes=3)
    x, held = rows.split(torch.rand(1, 2, 2, dtype=torch.float64))
    g = SmoothedClassifier(rows.at(held), Gaussian(scale=0.1), num_classes=3)
    (c,) = g.certify(x, n0=20, n=100)
    assert c.evidence.held.columns == ("0",)
    net.train()
    with pytest.raises(ModelError, match="training mode"):
        rows.at(held)


@pytest.mark.parametrize("held", [[], [0, 1, 2, 3], [4], [-1]], ids=str)
def test_something_is_held_and_something_varies(held):
    with pytest.raises(InvalidInput):
        coordinates(held=held)


@pytest.mark.parametrize(
    "columns,values",
    [((), ()), (("a",), ()), (("a", "a"), (1.0, 2.0)), (("a",), (math.nan,)), (("a",), (True,)), (("a",), (None,))],
)
def test_held_values_are_finite_numbers_or_texts_of_different_columns(columns, values):
    with pytest.raises(InvalidInput):
        Held(columns, values)


def test_the_checker_says_what_was_held(tmp_path):
    import subprocess
    import sys
    from pathlib import Path

    from ucan.certificate import save_json

    c, _, _ = certified([6.0, 1.0, 2.0, 0.5])
    save_json(c, tmp_path / "c.json")
    checker = Path(__file__).parents[1] / "checker" / "check_certificate.py"
    done = subprocess.run([sys.executable, str(checker), str(tmp_path / "c.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sex, region had no noise, and no change of them is covered" in done.stdout
