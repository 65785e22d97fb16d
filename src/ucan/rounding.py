"""Numbers for display that stay true: what is at least so much is rounded down, what is at most so much is rounded up."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_EXACT = Context(prec=800)  # enough for any float64 written out


def floor_digits(value: float, digits: int) -> str:
    """A number for display with so many decimals, rounded down (towards −∞); "–" for NaN.

    It rounds the number that Python prints, so 0.57 shows as 0.57 although its binary neighbour is a little less.

    >>> floor_digits(0.99951, 3), floor_digits(0.57, 2)
    ('0.999', '0.57')
    """
    return _round(Decimal(repr(float(value))), digits, ROUND_FLOOR)


def ceil_digits(value: float, digits: int) -> str:
    """The same, rounded up: for an upper bound, which rounding down would make untrue."""
    return _round(Decimal(repr(float(value))), digits, ROUND_CEILING)


def floor_share(count: int, of: int) -> float | None:
    """count / of with six decimals, rounded down in whole numbers, where 157 of 10,000 are 0.0157; None of none."""
    return 10**6 * count // of / 1e6 if of else None


def floor_percent(share: float, digits: int = 1) -> str:
    """A share in percent, rounded down: the product is taken in decimals, where 0.57 · 100 is 57."""
    return _round(Decimal(repr(float(share))) * 100, digits, ROUND_FLOOR)


def ceil_percent(share: float, digits: int = 1) -> str:
    """A share in percent, rounded up: for the upper limit of a band, which rounding down would make untrue."""
    return _round(Decimal(repr(float(share))) * 100, digits, ROUND_CEILING)


def floor_sure(alpha: float) -> str:
    """1 − α in percent, rounded down to at most three decimals: below 100 for every α above 0.

    >>> floor_sure(0.001), floor_sure(0.1), floor_sure(1e-17)
    ('99.9', '90', '99.999')
    """
    share = _EXACT.multiply(_EXACT.subtract(Decimal(1), Decimal(repr(float(alpha)))), Decimal(100))
    return _round(share, 3, ROUND_FLOOR).rstrip("0").rstrip(".")


def floor_significant(value: float, digits: int = 6) -> str:
    """A number for a file with at most so many significant digits, rounded down. So r ≤ value stays true when read."""
    exact = Decimal(repr(float(value)))
    if not exact.is_finite() or len(exact.as_tuple().digits) <= digits:
        return repr(float(value))
    return repr(float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), ROUND_FLOOR, _EXACT)))


def floor_plain(value: float) -> str:
    """The same for a number that somebody chose, without a decimal point where none is needed: 2/255 is 0.00784313."""
    return f"{float(floor_significant(value)):g}"


def ceil_significant(value: float, digits: int = 6) -> str:
    """A number for a sentence with at most so many significant digits, rounded up: for a level such as α.

    The last digit of a float64 does not count, which α · 3 may have changed.

    >>> ceil_significant(0.001), ceil_significant(0.001 / 3), ceil_significant(3 * (0.001 / 3 + 1e-19))
    ('0.001', '0.000333334', '0.001')
    """
    exact = Decimal(f"{float(value):.15g}")
    if exact.is_finite() and len(exact.normalize().as_tuple().digits) > digits:
        exact = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), ROUND_CEILING, _EXACT)
    return f"{float(exact):.{digits}g}"


def floor_grouped(value: float, digits: int = 3) -> str:
    """A number for a sentence with so many significant digits, rounded down, thousands apart.

    >>> floor_grouped(2489.7), floor_grouped(1.69999), floor_grouped(0.000123456)
    ('2,480', '1.69', '0.000123')
    """
    exact = Decimal(repr(float(value)))
    if not exact.is_finite() or exact == 0:
        return _round(exact, 0, ROUND_FLOOR)
    shown = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), ROUND_FLOOR, _EXACT)
    text = f"{shown:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _round(exact: Decimal, digits: int, rounding: str) -> str:
    if exact.is_nan():
        return "–"
    if exact.is_infinite():
        return "∞" if exact > 0 else "-∞"
    shown = exact.quantize(Decimal(1).scaleb(-digits), rounding, _EXACT)
    return f"{abs(shown) if shown == 0 else shown:f}"
