"""Do a run's rows, its records and its config say the same? Tables and pages are made from rows and config, guarantees are in
the records; nothing is drawn again here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import Any

from ucan.arithmetic import REAL, ROUNDED
from ucan.certificate import ABSTAINED, leads, no_lead
from ucan.choices import norm_from_json
from ucan.evidence import is_first_version
from ucan.results.claims import Claims
from ucan.runs.beforehand import chosen_afterwards, evidences, unstated
from ucan.runs.config import LawRef, RunConfig
from ucan.runs.read import Run

# Of numbers that were written as decimals and read again.
ROUNDING = 1e-9
UNREADABLE = (TypeError, ValueError, AttributeError, KeyError, ArithmeticError)  # of a text in place of a number, say
RECORDED = ("certificate", "abstention")  # the kinds that `ucan certify` records; a prediction claims no region


def contradiction(run: Run) -> str:
    """The first contradiction between an input's row, its record and the config, in words; empty if there is none."""
    if said := unstated(run.config):
        return said
    rows = {name: column.tolist() for name, column in run.columns.items()}
    places = {idx: at for at, idx in enumerate(rows["idx"])}
    recorded, shared = set(), dict[str, Any]()
    for idx, record in run.records():
        recorded.add(idx)
        if idx not in places:
            continue
        row = {name: column[places[idx]] for name, column in rows.items()}
        try:
            found = [*_of_row(row, record, run.in_units), *_of_run(run, record)]
            found += [*_of_others(run.config, record, shared), *_of_config(run.config, record)]
        except UNREADABLE as error:
            found = [f"its record cannot be read ({error})"]
        if found:
            return f"input {idx}: {found[0]}"
    missing = [idx for idx in rows["idx"] if idx not in recorded]
    if missing:
        return f"input {missing[0]} has a row and no record"
    # An interrupted run has rows behind an input that it has not finished, with their records.
    alone = sorted(recorded - set(run.rows(("idx",))["idx"].tolist()))
    return f"input {alone[0]} has a record and no row" if alone else ""


def _of_row(row: Mapping[str, Any], record: Mapping[str, Any], in_units: bool) -> Iterator[str]:
    """How a row differs from its record."""
    abstains = record.get("kind") == "abstention"
    if record.get("kind") not in RECORDED:
        yield f"its record is of the kind {record.get('kind')!r}, neither a certificate nor an abstention"
    if bool(row["abstained"]) != abstains:
        yield f"the row says that it {'has a certificate' if abstains else 'abstains'}, its record the contrary"
    said = ABSTAINED if abstains else record.get("prediction")
    if not abstains and row["prediction"] != said:
        yield f"the row states the answer {row['prediction']}, its record {said}"
    if bool(row["correct"]) != (not abstains and said == row["label"]):
        yield "whether the answer is right does not follow from answer and label"
    if record.get("kind") == "certificate":
        p_lower, p_upper = record.get("p_lower"), record.get("p_upper")
        known = isinstance(p_lower, int | float) and isinstance(p_upper, int | float | None)
        if not known or not leads(float(p_lower or 0), p_upper):
            yield no_lead(p_lower, p_upper)
    evidence = record.get("evidence", {})
    sizes = {"n": evidence.get("n"), "n0": evidence.get("n0"), "p_lower": record.get("p_lower")}
    if not abstains:
        sizes["alm"] = record.get("alm")
        if record.get("budget") is None and not in_units:
            sizes["radius"] = record.get("radius")
    for name, found in sizes.items():
        if found is not None and not _same(row[name], found):
            yield f"the row states {name} {row[name]}, its record {found}"
    if abstains and row["radius"] > 0:
        yield f"the row states radius {row['radius']}, its record abstains"


def _of_run(run: Run, record: Mapping[str, Any]) -> Iterator[str]:
    """How a record differs from what the run is shown as: its scope, norm and budget, and its α."""
    shown, found = Claims(run.scope, run.norm, run.budget), Claims.of_record(dict(record), run.folder)
    if found != shown:
        names = ("scope", "norm", "budget")
        name, said, own = next(
            (n, a, b) for n, a, b in zip(names, astuple(shown), astuple(found), strict=True) if a != b
        )
        yield f"the run is shown with {name} {said}, its record states {own}"
    parts = evidences(record)  # a router's choice has a part of α
    shares: list[Any] = [part.get("alpha") for part in parts]
    family = parts[0].get("family", 1)
    known = all(isinstance(number, int | float) for number in (*shares, family))
    level = math.fsum(shares) * family if known else math.nan
    if run.alpha is not None and not level <= run.alpha * (1 + ROUNDING):
        yield f"the config states α = {run.alpha:g}, its record {level:g}"


def _of_config(config: RunConfig, record: Mapping[str, Any]) -> Iterator[str]:
    """How a record differs from what the config says of all of them."""
    evidence = record.get("evidence", {})
    stated = {
        "scope": (config.claim.scope, record.get("scope")),
        "norm": (config.claim.norm, norm_from_json(record.get("norm"))),
        "arithmetic": (
            config.sampling.arithmetic,
            str(evidence.get("arithmetic", REAL)).removesuffix(ROUNDED),
        ),
    }
    for name, (said, found) in stated.items():
        if said is not None and found is not None and not _same(said, found):
            yield f"the config states {name} {said}, its record {found}"
    if config.is_imported:
        return
    yield from _of_classifier(config, record)
    yield from chosen_afterwards(config, record)


def _of_classifier(config: RunConfig, record: Mapping[str, Any]) -> Iterator[str]:
    """How a record differs from the config in what was certified: network, precision, law and noise."""
    for own in evidences(record):
        family = config.sampling.family or 1
        if own.get("family", 1) != family:
            yield f"the config states a family of {family}, its record one of {own.get('family', 1)}"
        said, found = config.sampling.precision, own.get("precision")
        if said not in (None, found):
            yield f"the config states the precision {said}, its record {found}"
        if own.get("copy", False) and said is None:  # what is deployed is the classifier, and no copy of it
            yield f"it is of a copy in {found}, and the config asks for no precision"
    routed, evidence = record.get("choice") is not None, record.get("evidence", {})
    if config.law.name is None:  # a router's parts have laws and noises of their own
        if not routed and record.get("kind") == "certificate":
            yield "the config states no law, as that of a router does, and its record is not a router's"
        return
    if routed:
        yield "its record is a router's, and the config states one law"
    hashes = config.model.weights_hash, evidence.get("weights_hash")
    if not config.data.columns and hashes[0] not in (None, hashes[1]):
        yield "it is of other weights than the config states"
    yield from _of_law(config.law, evidence.get("law", {}))
    yield from _of_noise(config, evidence)


def _of_law(law: LawRef, found: Mapping[str, Any]) -> Iterator[str]:
    """How a record's law differs from the config's, in its name or in any parameter."""
    said: dict[str, Any] = {"name": law.name, "module": law.module, "scale": law.scale, "a": law.exponent, **law.others}
    for name in {**said, **found}:
        if not _same(said.get(name), found.get(name)):
            what = {"name": "law", "scale": "scale"}.get(name, f"law.{name}")
            yield f"the config states {what} {said.get(name)}, its record {found.get(name)}"


def _of_noise(config: RunConfig, evidence: Mapping[str, Any]) -> Iterator[str]:
    """How a record's noise differs from the config's: its line, and its settings, which version 0.1 did not keep."""
    first = is_first_version(evidence)
    own: Mapping[str, Any] = {"line": evidence.get("generator")} if first else evidence.get("noise", {})
    if config.noise.described not in (None, own.get("line")):
        yield f"the config states the noise {config.noise.described}, its record {own.get('line')}"
    said, found = dict(config.noise.settings), dict(own.get("settings", {}))
    for name in {**said, **found} if said and not first else ():
        if not _same(said.get(name), found.get(name)):
            yield f"the config states noise_settings.{name} {said.get(name)}, its record {found.get(name)}"


def _of_others(config: RunConfig, record: Mapping[str, Any], shared: dict[str, Any]) -> Iterator[str]:
    """How a record differs from those before in what all have: the best of two classifiers or noises for each input is none.

    ``shared`` is what they have. A router's answers are from several experts.
    """
    if record.get("choice") is not None or config.law.name is None:
        return
    evidence, registry = record.get("evidence", {}), record.get("scope") == "registry"
    noise = evidence.get("noise")
    own = {
        "noise": noise and (noise.get("kind"), noise.get("settings"), noise.get("state")),
        "precision": evidence.get("precision"),
        # Answers that a registry had stored were certified by a call of another run, or of another version.
        "precision as asked for": None if registry else evidence.get("copy", False),
        "block of noise": None if registry else evidence.get("block"),
        "network": None if config.data.columns else evidence.get("weights_hash"),
        "model": None if config.data.columns else evidence.get("model"),
    }
    for name, found in own.items():
        if found is not None and shared.setdefault(name, found) != found:
            yield f"its {name} is not that of the inputs before"


def _same(said: Any, found: Any) -> bool:
    if isinstance(said, int | float) and isinstance(found, int | float):
        return said == found or math.isclose(said, found, rel_tol=ROUNDING) or (math.isnan(said) and math.isnan(found))
    return bool(said == found)
