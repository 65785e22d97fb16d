"""Do a run's rows, its records and its config say the same? Tables and pages are made from rows and config, guarantees are in
the records; nothing is drawn again here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import Any

from ucan.arithmetic import REAL, ROUNDED
from ucan.certificate import leads, no_lead
from ucan.choices import norm_from_json
from ucan.plan import CertifyPlan
from ucan.results.claims import Claims
from ucan.results.store import ABSTAINED
from ucan.runs.config import RunConfig
from ucan.runs.read import Run
from ucan.seating import EXACT

# Of numbers that were written as decimals and read again.
ROUNDING = 1e-9
RECORDED = ("certificate", "abstention")  # the kinds that `ucan certify` records; a prediction claims no region


def contradiction(run: Run) -> str:
    """The first contradiction between an input's row, its record and the config, in words; empty if there is none."""
    rows = {name: column.tolist() for name, column in run.columns.items()}
    places = {idx: at for at, idx in enumerate(rows["idx"])}
    recorded, noise = set(), None
    for idx, record in run.records():
        recorded.add(idx)
        if idx not in places:
            continue
        row = {name: column[places[idx]] for name, column in rows.items()}
        try:
            found = [*_of_row(row, record, run.in_units), *_of_run(run, record), *_of_config(run.config, record)]
            own = _noise(record)
            found += ["its noise is not that of the inputs before"] if None not in (noise, own) and own != noise else []
            noise = noise if own is None else own
        except (TypeError, ValueError, AttributeError) as error:  # a text in place of a number or of a table
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
    evidence = record.get("evidence", {})
    parts = evidence.get("alpha"), evidence.get("family", 1)
    level = math.prod(parts) if all(isinstance(part, int | float) for part in parts) else math.nan
    if run.alpha is not None and not level <= run.alpha * (1 + ROUNDING):
        yield f"the config states α = {run.alpha:g}, its record {level:g}"


def _of_config(config: RunConfig, record: Mapping[str, Any]) -> Iterator[str]:
    """How a record differs from what the config says of all of them."""
    evidence, sampling = record.get("evidence", {}), config.sampling
    stated = {
        "scope": (config.claim.scope, record.get("scope")),
        "norm": (config.claim.norm, norm_from_json(record.get("norm"))),
        "stop": (sampling.stop, evidence.get("stop")),
        "law": (config.law.name, evidence.get("law", {}).get("name")),
        "scale": (config.law.scale, evidence.get("law", {}).get("scale")),
        "arithmetic": (sampling.arithmetic, str(evidence.get("arithmetic", REAL)).removesuffix(ROUNDED)),
    }
    for name, (said, found) in stated.items():
        if said is not None and found is not None and not _same(said, found):
            yield f"the config states {name} {said}, its record {found}"
    # Older records of a stopping rule do not say how many votes were planned.
    planned = evidence.get("cap") or (None if sampling.stop else evidence.get("n"))
    if config.is_imported or sampling.n is None or planned is None:
        return
    if planned > sampling.n or (planned < sampling.n and not sampling.can_grow):
        yield f"the config states n {sampling.n}, its record {planned}"
    if not config.data.columns and config.model.weights_hash not in (None, evidence.get("weights_hash")):
        yield "it is of other weights than the config states"
    yield from _chosen_afterwards(config, record)


def _chosen_afterwards(config: RunConfig, record: Mapping[str, Any]) -> Iterator[str]:
    """How a record differs from the config in what may not be chosen for each input after its votes are seen."""
    evidence, sampling = record.get("evidence", {}), config.sampling
    if record.get("kind") != "certificate" or record.get("choice") is not None:
        return  # votes that were cut off claim nothing; a router has bounds of its own
    rule, again = sampling.rule, config.kind == "recertify"  # which states no bound, and takes n0 from the old votes
    bound, found = (rule.bound if rule else sampling.bound), evidence.get("bound")
    if again and evidence.get("pairs") is None:
        bound = CertifyPlan.bound
    if bound is not None and found is not None and found != bound:
        yield f"the config states the bound {bound}, its record {found}"
    n0, drawn = None if again else sampling.n0, evidence.get("n0")
    if n0 is not None and drawn is not None and found != EXACT and not (drawn == n0 or (rule and drawn < n0)):
        yield f"the config states n0 {n0}, its record {drawn}"
    seed = evidence.get("seed")
    if seed is not None and sampling.seed is not None and int(str(seed), 0) != sampling.number:
        yield "its votes have another seed than the config states"


def _noise(record: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The generator of a record: the best one for each input would be no pipeline. None for a router, which has several."""
    own = record.get("evidence", {}).get("noise")
    if record.get("choice") is not None or own is None:
        return None
    return own.get("kind"), own.get("settings"), own.get("state")


def _same(said: Any, found: Any) -> bool:
    if isinstance(said, int | float) and isinstance(found, int | float):
        return said == found or math.isclose(said, found, rel_tol=ROUNDING) or (math.isnan(said) and math.isnan(found))
    return bool(said == found)
