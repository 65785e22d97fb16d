"""Adversaries against the deployed pipeline: does a claimed guarantee survive one?"""

from ucan.audit.auditor import FACTORS, Attempt, audit, audit_all, replay
from ucan.audit.decide import Decision, allowed_breaks, decide
from ucan.audit.judge import Budget
from ucan.audit.ledger import Ledger, load_break
from ucan.audit.summary import Summary, in_words, summarise

__all__ = [
    "FACTORS",
    "Attempt",
    "Budget",
    "Decision",
    "Ledger",
    "Summary",
    "allowed_breaks",
    "audit",
    "audit_all",
    "decide",
    "in_words",
    "load_break",
    "replay",
    "summarise",
]
