"""Adapt a training run to the claim that will be certified: the loss term, and the noise."""

from __future__ import annotations

from dataclasses import replace

from ucan.catalogue import GENERATORS
from ucan.errors import InvalidInput
from ucan.training.settings import TrainSettings

# The variance term that raises each claim: the largest ℓ1 and ℓ2 balls in a region under a diagonal Σ both go by min σ.
TERMS = {"linf": "budget", "l2": "min", "l1": "min", "alm": "logmean", "budget": "budget"}


def for_claim(settings: TrainSettings, claim: str, given: str | None = None) -> TrainSettings:
    """The settings with the loss term for the claim: linf, l2, l1, alm, or budget (the settings' own).

    ``given`` is a term that the user chose. Contradictions are refused: a term for another claim, noise made for another
    claim, a claim about a budget without a budget, and ``linf`` with a budget that is not the same everywhere.
    """
    if claim not in TERMS:
        raise InvalidInput(f"--for must be one of {', '.join(TERMS)}, got {claim!r}.")
    kind, term = GENERATORS.load(settings.generator["kind"]), TERMS[claim]
    purposes = kind.purposes(settings.generator)
    if given is not None and given != term:
        raise InvalidInput(f"the variance term {given!r} is not the one for {claim}, which is {term!r}: leave one out.")
    if term != "budget" and settings.budget is not None:
        raise InvalidInput(f"this noise is fitted to a budget, not to {claim}: train for budget, or use other noise.")
    if purposes is not None and claim not in purposes:
        raise InvalidInput(
            f"{settings.generator['kind']} noise with these parameters is made for {' or '.join(purposes)}, not for {claim}: "
            f"train for that, or change [generator]."
        )
    if claim == "budget" and settings.budget is None:
        raise InvalidInput(
            "these settings have no budget: give one, as in --set 'budget={limit=1.0}', or train for linf."
        )
    if claim == "linf" and "limit" not in (settings.budget or {"limit": 1.0}):
        raise InvalidInput(
            "linf needs a budget that is the same everywhere, and these settings have another one: leave one "
            "of them out."
        )
    if not kind.learns_size:  # noise of a fixed size needs no variance term
        return settings
    budget = {"limit": 1.0} if claim == "linf" and settings.budget is None else settings.budget
    return replace(settings, variance_term=term, budget=budget)
