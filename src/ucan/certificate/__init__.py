"""The results of certify and predict: frozen records with their scope and their evidence."""

from ucan.certificate.certified import Certificate, fits, leads, no_lead
from ucan.certificate.entries import budget_from_json, budget_to_json, region_from_json, region_to_json
from ucan.certificate.files import from_dict, load_json, save_json
from ucan.certificate.level import Level
from ucan.certificate.outcome import (
    ABSTAINED,
    Abstention,
    Claimed,
    Outcome,
    Prediction,
    among_invalid,
    check_guarantee,
    check_number,
    check_numbers,
)
from ucan.choices import SCOPES, Scope

__all__ = [
    "ABSTAINED",
    "SCOPES",
    "Abstention",
    "Certificate",
    "Claimed",
    "Level",
    "Outcome",
    "Prediction",
    "Scope",
    "among_invalid",
    "budget_from_json",
    "budget_to_json",
    "check_guarantee",
    "check_number",
    "check_numbers",
    "fits",
    "from_dict",
    "leads",
    "load_json",
    "no_lead",
    "region_from_json",
    "region_to_json",
    "save_json",
]
