"""Budgets of answers to questions: ε times the budget lies in the region, and hardly more would."""

import itertools
import json

import numpy as np
import pytest
import torch

import ucan
from test_ask import records, run
from test_checker_answers import KINDS, answered, checker, failed, record_of
from test_checker_answers import ROOT as HERE
from ucan.errors import InvalidInput
from ucan.questions.records import from_dict
from ucan.scales import Dense

B = 0.1 + torch.arange(12.0).reshape(2, 2, 3) / 10
GROUPS = ucan.Budget.of([0.5, 1.0, 2.0], (2, 2, 3), groups=torch.arange(12).reshape(2, 2, 3) // 4)
LAWS = [(ucan.Gaussian(0.3), 2), (ucan.Laplace(0.2), 1), (ucan.Uniform(0.5), np.inf), (ucan.ExpInf(0.03), np.inf)]


@pytest.mark.parametrize(("law", "norm"), LAWS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [0.5, B, GROUPS], ids=["number", "box", "groups"])
def test_the_factor_is_what_fits_into_the_region(kind, law, norm, budget):
    one = answered(kind, law, norm, budget=budget)
    assert one.budget_factor > 0 and "ε = " in str(one)
    corners = (1 - 2 * torch.randint(0, 2, (64, 12), generator=torch.Generator().manual_seed(0))).double()
    limits = torch.full((12,), 0.5) if isinstance(budget, float) else B.flatten() if budget is B else None
    if limits is not None:  # all corners of a box are alike under a scalar Σ
        inside, outside = ((corners * limits * one.budget_factor * f).reshape(64, 2, 2, 3) for f in (0.999, 1.001))
        assert bool(one.region.contains(inside).all()) and not bool(one.region.contains(outside).any())
    record = record_of(one)
    again = from_dict(record)
    assert again.budget_factor == one.budget_factor and again.to_dict() == one.to_dict()
    wrong = [name for verdict, name, _ in checker.check(record, HERE) if verdict != "ok"]
    assert not wrong
    record["budget_factor"] *= 1.0001
    assert failed(record) == {"budget"}
    with pytest.raises(InvalidInput, match="budget_factor does not follow"):
        from_dict(record)


def test_an_interval_holds_at_the_corners_of_its_budget():
    """f = w·x: the median moves by w·δ, and at the worst corner of ε·b it stays inside its interval."""
    w, b = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.1, 0.3, 0.2])
    sigma = Dense(torch.tensor([[0.5, 0.1, 0.0], [0.1, 0.4, 0.0], [0.0, 0.2, 0.3]]))
    g = ucan.SmoothedRegressor(lambda x: x @ w, ucan.Gaussian(0.5), ucan.Fixed(sigma))
    (one,) = g.certify(torch.zeros(1, 3), radius=0.4, n=20_000, budget=b)
    reach = max(abs(float((torch.tensor(signs) * b) @ w)) for signs in itertools.product((-1.0, 1.0), repeat=3))
    assert float(one.upper) >= reach * one.budget_factor > 0 and float(one.lower) <= -reach * one.budget_factor


def test_a_budget_is_refused_where_it_means_nothing():
    with pytest.raises(InvalidInput, match="leave out stop"):
        answered("top", budget=0.5, stop=0.1)
    with pytest.raises(InvalidInput, match="shape"):
        answered("pixels", budget=torch.ones(3))
    none = answered("confidence", x=torch.zeros(1, 2, 2, 3), budget=0.5)
    assert none.abstained and none.budget is not None and none.budget_factor == 0


def test_a_run_with_a_budget_says_its_factors_and_keeps_to_it(tmp_path):
    words = ["ask", "top-k", "--top", 2, "--model", "ucan.models.examples:digits", "--data", "digits", "--scale", 0.5]
    words += ["--n", 500, "--max", 3, "-o", tmp_path / "run"]
    told = json.loads(run(*words, "--budget", 0.5, "--json", "-q").stdout)
    factors = [one.get("budget_factor", 0.0) for one in records(tmp_path / "run").values()]
    assert (
        told["median_budget_factor"] in factors and 'budget_hash = "' in (tmp_path / "run" / "config.toml").read_text()
    )
    with pytest.raises(InvalidInput, match="budget: the run has"):
        run(*words, "--budget", 0.25, "-q")
