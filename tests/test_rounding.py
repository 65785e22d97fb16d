"""Rounding that never claims more than was proved."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucan import rounding


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (0.99951, 3, "0.999"),
        (0.57, 2, "0.57"),
        (0.29, 2, "0.29"),
        (1.0, 1, "1.0"),
        (0.0, 1, "0.0"),
        (-0.05, 1, "-0.1"),
        (-0.0, 1, "0.0"),
        (1e30, 1, "1" + "0" * 30 + ".0"),
        (1e-30, 2, "0.00"),
        (12.999, 0, "12"),
        (math.nan, 1, "–"),
        (math.inf, 1, "∞"),
        (np.float64(0.57), 2, "0.57"),
    ],
)
def test_floor_digits(value: float, digits: int, shown: str) -> None:
    assert rounding.floor_digits(value, digits) == shown


def test_percent() -> None:
    assert rounding.floor_percent(0.57) == "57.0" and rounding.floor_percent(0.29, 0) == "29"
    assert rounding.floor_percent(2 / 3) == "66.6" and rounding.ceil_percent(2 / 3) == "66.7"
    assert rounding.floor_percent(1.0) == "100.0" and rounding.ceil_percent(0.57) == "57.0"
    assert all(rounding.floor_percent(k / 1000) == f"{k // 10}.{k % 10}" for k in range(1001))


@given(st.floats(min_value=0, max_value=1e6), st.integers(min_value=0, max_value=9))
def test_rounding_is_down_and_by_less_than_a_digit(value: float, digits: int) -> None:
    shown, exact = Fraction(rounding.floor_digits(value, digits)), Fraction(repr(value))
    assert shown <= exact < shown + Fraction(1, 10**digits)


@given(st.floats(min_value=0, max_value=1e6), st.integers(min_value=0, max_value=9))
def test_upper_bounds_are_rounded_up_and_by_less_than_a_digit(value: float, digits: int) -> None:
    shown, exact = Fraction(rounding.ceil_digits(value, digits)), Fraction(repr(value))
    assert shown - Fraction(1, 10**digits) < exact <= shown


@given(st.floats(min_value=1e-300, max_value=1e300), st.integers(min_value=0, max_value=999_999), st.integers(-6, 0))
def test_significant_digits_keep_every_comparison_with_a_short_number(value: float, mantissa: int, power: int) -> None:
    written = float(rounding.floor_significant(value, 6))
    assert written <= value and written > value * (1 - 1.01e-5)
    for r in (float(f"{mantissa}e{power}"), written):
        assert (written >= r) == (value >= r)


def test_a_share_of_a_count_is_exact_where_six_decimals_are() -> None:
    assert [rounding.floor_share(k, 10_000) for k in range(10_001)] == [
        float(f"{k / 10_000:.4f}") for k in range(10_001)
    ]
    assert rounding.floor_share(2, 3) == 0.666666 and rounding.floor_share(0, 0) is None


@given(st.floats(min_value=1e-300, max_value=0.999), st.integers(min_value=1, max_value=9))
def test_a_level_is_rounded_up_and_by_less_than_a_digit(value: float, digits: int) -> None:
    shown = float(rounding.ceil_significant(value, digits))
    assert value * (1 - 1e-14) <= shown <= value * (1 + 1.01 * 10.0 ** (1 - digits))


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_a_number_that_somebody_chose_is_shown_rounded_down(value):
    assert value * (1 - 1e-5) <= float(rounding.floor_plain(value)) <= value
