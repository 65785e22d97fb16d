"""Verify a certificate from someone else: compare it with what is deployed, and test it with fresh samples."""

from ucan.verify.deployed import verify
from ucan.verify.follows import claimable
from ucan.verify.fresh import MOST, fresh_checks, fresh_number
from ucan.verify.same import of_a_copy, same_noise
from ucan.verify.stated import Stated, constant_line, noise_again, noise_of
from ucan.verify.verdict import SLACK, STATED, Check, Verdict

__all__ = [
    "MOST",
    "SLACK",
    "STATED",
    "Check",
    "Stated",
    "Verdict",
    "claimable",
    "constant_line",
    "fresh_checks",
    "fresh_number",
    "noise_again",
    "noise_of",
    "of_a_copy",
    "same_noise",
    "verify",
]
