"""The cost model of large runs: it finds the numbers that a record was made of, and extrapolates as it says."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "experiments"))

import scale_cost  # noqa: E402

SIZES = {"bytes_per_input": 600_000, "bytes_out_per_unit": 200, "bytes_back_per_unit": 4000}


def record(a: float, b: float, w: float) -> dict:
    inputs = 20
    rows = [
        {
            "units": units,
            "driver_cpu_seconds_per_unit": (b * units + a * inputs) / units,
            "idle_seconds_per_unit": (w * units + 0.1) / units,
        }
        for units in (800, 400, 200, 100, 50)
    ]
    costs = {"driver_cpu_seconds_per_input": 0.01, "decode_cpu_seconds_per_input": 0.005}
    return {"units": rows, "workers": 2, "inputs_per_worker": 10, "imagenet_input": {**SIZES, **costs}}


def test_the_fit_finds_what_the_record_was_made_of():
    costs = scale_cost.fit(record(0.004, 0.002, 0.003))
    assert costs["b"] == pytest.approx(0.002) and costs["w"] == pytest.approx(0.003)
    assert costs["a"] == pytest.approx(0.015) and costs["a of a small input"] == pytest.approx(0.004)


def test_few_gpus_are_the_limit_themselves_and_many_wait_for_the_driver():
    costs = {"a": 0.015, "b": 0.002, "w": 0.0}
    few, many = (scale_cost.estimate(gpus, 20_000.0, costs, SIZES) for gpus in (8, 512))
    assert few["seconds"] == few["workers"] == pytest.approx(50_000 * 100_100 / (8 * 20_000))
    assert many["unit"] == pytest.approx(2.56) and many["seconds"] == many["driver"] > many["workers"]
    assert many["driver"] == pytest.approx(50_000 * 0.015 + 0.002 * 50_000 * 100_100 / (20_000 * 2.56))
    assert few["bytes per certificate"] == pytest.approx(600_000 + few["units per input"] * 4200)


def test_waiting_costs_in_proportion_to_the_length_of_a_unit():
    idle = {"a": 0.0, "b": 0.0, "w": 0.05}
    slow, fast = (scale_cost.estimate(8, 20_000.0, {**idle, "w": w}, SIZES)["seconds"] for w in (0.05, 0.0))
    assert slow / fast == pytest.approx(1.1)
