"""Attacks on the deployed pipeline, to test a claimed guarantee."""

from ucan.audit.auditor import FACTORS, attack, audit, audit_all, modes_of, replay
from ucan.audit.decide import allowed_breaks, decide
from ucan.audit.judge import Budget
from ucan.audit.ledger import Ledger, load_break
from ucan.audit.summary import Summary, in_words, read_attempts, summarise
from ucan.audit.trials import Attempt, frozen_at

__all__ = [
    "FACTORS",
    "Attempt",
    "Budget",
    "Ledger",
    "Summary",
    "allowed_breaks",
    "attack",
    "audit",
    "audit_all",
    "decide",
    "frozen_at",
    "in_words",
    "load_break",
    "modes_of",
    "read_attempts",
    "replay",
    "summarise",
]
