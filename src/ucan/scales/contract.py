"""Sums of products in float64 with an error of a few units, however many terms they have.

A plain product of matrices may lose as many units as there are terms. Here both factors are cut into a leading part of few
bits and a rest. The leading parts are whole multiples of powers of two, so small that every product and every partial
sum of them is exact, in whatever order a device adds them; the rests are 2^-bits times smaller, and so is what they lose.
"""

from __future__ import annotations

import math

import torch

# Terms in one exact sum; longer ones are cut, since more terms leave fewer bits to each.
LONGEST = 4096


def leading_bits(terms: int) -> int:
    """Bits of the leading parts, such that so many products of two of them add up to at most 2^53."""
    return (53 - math.ceil(math.log2(max(2, terms)))) // 2


def split(factor: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (…, K) as leading part and rest, both exact: the first of ``bits`` bits below the row's largest entry."""
    largest = factor.abs().amax(-1, keepdim=True).clamp_min(2.0**-900)
    unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - bits)
    leading = (factor / unit).round_().mul_(unit)
    return leading, factor - leading


def contract(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """X·Aᵀ of x (n, K) and A (m, K), both float64; an entry is off by ``contract_error(K)`` units of ‖x‖₂‖a‖₂ at most."""
    total = None
    for start in range(0, x.shape[-1], LONGEST):
        part, rows = x[..., start : start + LONGEST], matrix[..., start : start + LONGEST]
        bits = leading_bits(part.shape[-1])
        (x_lead, x_rest), (a_lead, a_rest) = split(part, bits), split(rows, bits)
        found = x_lead @ a_lead.mT + (x_lead @ a_rest.mT + x_rest @ rows.mT)
        total = found if total is None else total + found
    assert total is not None
    return total


def contract_error(terms: int) -> float:
    """Units of 2^-53 that ``contract`` may lose, relative to ‖x‖₂‖a‖₂ (docs/arithmetic.md)."""
    longest, parts = min(terms, LONGEST), math.ceil(terms / LONGEST)
    return float(3 + 2.1 * longest**1.5 * 2.0 ** -leading_bits(longest) + (parts if parts > 1 else 0))
