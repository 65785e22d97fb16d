"""Whether an audit in a run's folder is of that run: one that was copied from another run is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ucan.audit import Attempt, read_attempts
from ucan.audit.answers import Try
from ucan.audit.ledger import ATTEMPTS
from ucan.certificate import ABSTAINED, Abstention
from ucan.config import CONFIG, read_config
from ucan.errors import StoreError
from ucan.questions.record import Answer
from ucan.results.store import Store
from ucan.runs.config import AuditConfig, ModelRef, RunConfig
from ucan.runs.fields import from_table
from ucan.storage import Journal

AUDIT = "audit"  # the folder of a run's audit, inside the run's


def config_hash(config: Mapping[str, Any]) -> str:
    """A hash of a run's config as it was read, by which an audit identifies the run."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def attempts_on(store: Store, config: RunConfig) -> tuple[Attempt, ...]:
    """The finished attempts of the audit in a run's folder, empty if there is none; those on another run are refused.

    The audit has the hash of the run's config. That changes if the run is published, or continued with more votes; then the
    audit is the run's if it attacked the same weights and these very certificates. (More votes change their radii.) Of an
    audit without the hash, weights and scope are compared.
    """
    folder = store.folder / AUDIT
    attempts = tuple(read_attempts(folder))
    if not attempts:
        return ()
    about = _about(folder)
    if about.run == config_hash(store.config):
        return attempts
    _check_weights(folder, about, config.model)
    for attempt in attempts:
        if attempt.scope != store.scope:
            raise _foreign(folder, f"it attacked scope {attempt.scope}, and this run has scope {store.scope}")
    if about.run is not None:
        _check_certificates(folder, attempts, store, config.sampling.can_grow)
    return attempts


def tries_on(folder: Path, model: ModelRef, answers: Iterable[tuple[int, Answer | Abstention]]) -> list[Try]:
    """The same of a run of a question: the attempts on its answers, empty if there is no audit."""
    folder = folder / AUDIT
    try:
        tries = [Try(**json.loads(line)) for line in Journal(folder / ATTEMPTS).lines()]
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{folder} cannot be read as an audit: {error}. Remove the folder to audit again.") from error
    if not tries:
        return []
    _check_weights(folder, _about(folder), model)
    other = on_another(tries, answers)
    if other is not None:
        raise _foreign(folder, f"its attack on input {other.idx} is not on this run's answer")
    return tries


def on_another(tries: Iterable[Try], answers: Iterable[tuple[int, Answer | Abstention]]) -> Try | None:
    """The first of these attempts that is not on one of these answers; None if all are."""
    claims = {
        idx: (one.radius, one.scope, one.evidence.input_hash) for idx, one in answers if not isinstance(one, Abstention)
    }
    return next((one for one in tries if claims.get(one.idx) != (one.radius, one.scope, one.claim)), None)


def _about(folder: Path) -> AuditConfig:
    """The config of an audit; empty if the folder has none."""
    path = folder / CONFIG
    return from_table(AuditConfig, read_config(path), str(path)) if path.is_file() else AuditConfig()


def _check_weights(folder: Path, about: AuditConfig, model: ModelRef) -> None:
    """Refuse an audit of other weights, or of another router, which has an identity instead."""
    known = {model.weights_hash, model.identity} - {None}
    if model.weights_hash is not None and about.weights_hash is not None and about.weights_hash not in known:
        raise _foreign(folder, "it attacked other weights")


def _check_certificates(folder: Path, attempts: Iterable[Attempt], store: Store, grown: bool) -> None:
    """Refuse attempts on certificates that the run does not have; with ``grown``, these may have had fewer votes."""
    rows = store.columns(("idx", "prediction", "radius"))
    claims = {idx: claim for idx, *claim in zip(*(column.tolist() for column in rows.values()), strict=True)}
    for attempt in attempts:
        answer, radius = claims.get(attempt.idx, (None, 0.0))
        same = answer is not None
        if same and not attempt.part:  # the parts of a router's certificate have classes and radii of their own
            decided = answer == attempt.prediction or (grown and answer == ABSTAINED)
            same = decided and (grown or radius == attempt.radius)
        if not same:
            raise _foreign(folder, f"its attack on input {attempt.idx} is not on this run's certificate")


def _foreign(folder: Path, why: str) -> StoreError:
    return StoreError(
        f"{folder} is the audit of another run: {why}. Remove that folder, and audit this run with "
        f"`ucan audit {folder.parent}`."
    )
