"""Replay a certificate: draw its own noise again and compare the counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from ucan.certificate import Certificate
from ucan.choices import BACKENDS
from ucan.engine import device_name
from ucan.errors import UcanError
from ucan.evidence import Evidence
from ucan.plan import CertifyPlan
from ucan.seating import EXACT
from ucan.sidecar import batch_hash
from ucan.smoothed import SmoothedClassifier
from ucan.verify import SLACK, claimable
from ucan.votes import Stream, Votes, block_size, classify_samples, replayed_size

# The backends that evidence names; "auto" is one of the others by then.
WAYS = frozenset(BACKENDS) - {"auto"}
# The largest share of votes that rounding may change, by another backend too; seen: 0.2 % in bf16 on a GPU.
ROUNDED = 0.02
FEW = 5  # of the votes that choose the class, which are usually 100: a share of them is too coarse
# No version of UCAN drew more copies of an input together.
LARGEST_BLOCK = 1024
Outcome = Literal["same", "bears", "differs", "not replayable here"]


@dataclass(frozen=True)
class Replay:
    """The result of drawing a certificate's votes again; ``detail`` explains it.

    ``same``: the counts are equal. ``bears``: some votes differ, as another backend or rounding may change borderline votes,
    and the votes drawn here support the claim as well. ``differs``: they do not, although the network ran as it did then, or
    more votes differ than rounding explains. A replay proves that the counts belong to their stream; ``not replayable here``
    proves nothing, and whoever wrote the certificate could see to it. It does not prove that seed and n were chosen in
    advance: see ``derived``, which is True if the seed follows from model, noise and data, and None if it is not stated to be
    derived or the data are not available. Other blocks are other noise, so with a derived seed only those of the input's
    dimension count: ``differs`` otherwise. That n was chosen in advance is never proved.
    """

    outcome: Outcome
    detail: str
    counts: tuple[int, ...] | None = None
    derived: bool | None = None

    @property
    def drawn(self) -> bool:
        """Whether the noise could be drawn again here."""
        return self.outcome != "not replayable here"

    @property
    def stands(self) -> bool:
        """Whether the replay did not contradict the certificate's counts."""
        return self.outcome != "differs" and self.derived is not False


def replay(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, data_hash: str | None = None) -> Replay:
    """Draw the votes of a certificate of g about x (1, *event) again, from its own streams, and compare the counts.

    The classifier must be the certified one (``verify`` checks this). For scope ``registry`` x is the enrolled input.
    ``data_hash`` is that of the data set that x is from, against which a derived seed is checked.
    """
    evidence = certificate.evidence
    if evidence.pairs is not None:
        return Replay("not replayable here", "paired votes belong to two classifiers, and only one of them is given")
    (x,) = g.check_inputs(x)
    if evidence.bound == EXACT:
        return _counted(certificate, g, x)
    keys = _keys(certificate)
    if (wrong := _misstated(certificate, keys, x.numel())) is not None:
        return wrong
    derived = _derived(certificate, g, x, data_hash)
    absent = [phase for phase in ("select", evidence.phase) if phase not in keys]
    reason = obstacle(evidence, x) or (
        f"the certificate states neither the seed nor the keys of its noise ({', '.join(absent)})" if absent else ""
    )
    if reason:
        return Replay("not replayable here", reason, derived=derived)
    copy = evidence.precision if evidence.copy else None
    size = replayed_size(evidence.batch_size, x.numel(), x.device)
    plan = CertifyPlan(evidence.n0, evidence.n, batch_size=size, precision=copy, block=evidence.block)
    try:
        with g.engine.running(evidence.backend):
            setup = g.engine.setup(x, plan)
    except UcanError as error:
        reason = f"the network ran {evidence.backend} then, which it does not here: {error}"
        return Replay("not replayable here", reason, derived=derived)
    M = g.held_at(x)

    def votes(phase: str, n: int) -> Votes:
        return classify_samples(setup.counter, M, x, n, Stream(None, evidence.input_hash, phase, keys[phase]))

    selected = tuple(votes("select", evidence.n0).counts.tolist())
    if max(range(len(selected)), key=lambda c: selected[c]) != certificate.prediction:
        detail = f"of the {evidence.n0} votes that choose the class, most are for another one: {list(selected)}"
        return Replay("differs", detail, selected, derived)
    again = votes(evidence.phase, evidence.n)
    return replace(_compared(certificate, again, setup.backend.name, selected), derived=derived)


def _counted(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor) -> Replay:
    """All draws of the noise counted again."""
    evidence = certificate.evidence
    if g.M.turns(g.law) != evidence.n:
        return Replay("differs", f"{evidence.n:,} votes are not all draws of this noise")
    with g.engine.running(evidence.backend):
        again = g.count_all(x, evidence.precision if evidence.copy else None)
    return _compared(certificate, again, evidence.backend)


def _misstated(certificate: Certificate, keys: dict[str, str], dim: int) -> Replay | None:
    """Streams or blocks that cannot be a certificate's, whatever they give; None if they can."""
    evidence, usual = certificate.evidence, block_size(dim)
    if evidence.data_hash is not None and evidence.block != usual:
        return Replay(
            "differs",
            f"the seed is stated to be derived, and the noise to be drawn in blocks of {evidence.block:,} copies: noise of a "
            f"derived seed has blocks of {usual} at {dim:,} dimensions, so that nobody can try others and keep the luckiest",
        )
    if evidence.block > LARGEST_BLOCK:
        return Replay(
            "differs", f"the noise is stated to be drawn in blocks of {evidence.block:,} copies, and none are as large"
        )
    if evidence.phase != "estimate":
        return Replay(
            "differs", f"the votes that bound p are stated to be from the phase {evidence.phase}, not from estimation"
        )
    if len(set(keys.values())) < len(keys):
        return Replay("differs", "the votes that chose the class are counted twice: both streams have the same key")
    if evidence.seed is not None:
        own = {phase: Stream(evidence.seed, evidence.input_hash, phase).key for phase in keys}
        if own != keys:
            return Replay("differs", "the keys of the streams do not follow from the stated seed")
    return None


def _compared(certificate: Certificate, again: Votes, backend: str, selected: tuple[int, ...] | None = None) -> Replay:
    """Compare the counts drawn here with the certificate's, and the votes that chose the class, if others did."""
    evidence, counts = certificate.evidence, tuple(again.counts.tolist())
    moved = moved_votes((*counts, again.invalid), (*evidence.counts, evidence.invalid))
    turned = moved_votes(selected, evidence.selection)
    # A bound may depend on the votes that chose the class; version 0.1 did not keep them, and had no such bound.
    drawn = replace(evidence, counts=counts, invalid=again.invalid, selection=selected)
    enough = _supports(certificate, drawn)
    fell = f"{moved:,} of {evidence.n:,} votes differ"
    if not moved:
        fell = f"all {evidence.n:,} votes are as the certificate states"
        if selected == evidence.selection or (enough and evidence.selection is None):
            return Replay("same", fell, counts)
    if evidence.selection not in (None, selected):
        fell += "; some of the votes that chose the class differ"
    # Of a name that no backend has, nobody could say how much it rounds: it excuses nothing.
    otherwise = evidence.backend != backend and evidence.backend in WAYS
    ways = f"the network ran {evidence.backend} then and {backend} here" if otherwise else "rounding"
    if moved > max(1, ROUNDED * evidence.n) or turned > max(FEW, ROUNDED * evidence.n0):
        return Replay(
            "differs", f"{fell}, more than rounding explains: the stated counts are not those of this noise", counts
        )
    if enough:
        return Replay("bears", f"{fell} ({ways}); the votes drawn here support the claim as well", counts)
    # Votes are counted until they just suffice, so that one that is rounded otherwise can be one too few.
    if otherwise and turned <= max(1, ROUNDED * evidence.n0):
        return Replay("not replayable here", f"{fell}, as {ways}", counts)
    return Replay("differs", f"{fell}; the votes drawn here do not support the claim", counts)


def moved_votes(here: tuple[int, ...] | None, then: tuple[int, ...] | None) -> int:
    """How many votes went to another class, or became invalid; 0 where there are none to compare."""
    return 0 if here is None or then is None else sum(abs(a - b) for a, b in zip(here, then, strict=True)) // 2


def _supports(certificate: Certificate, drawn: Evidence) -> bool:
    """Whether these votes allow what the certificate claims."""
    p_a, p_b = claimable(replace(certificate, evidence=drawn))
    return certificate.p_lower <= p_a * SLACK and (
        certificate.p_upper is None or (p_b is not None and certificate.p_upper * SLACK >= p_b)
    )


def _keys(certificate: Certificate) -> dict[str, str]:
    """The keys of the streams; those that are not stated, as of version 0.1, follow from its seed."""
    evidence = certificate.evidence
    if evidence.seed is None:
        return dict(evidence.streams)
    own = {phase: Stream(evidence.seed, evidence.input_hash, phase).key for phase in ("select", evidence.phase)}
    return {**own, **evidence.streams}


def obstacle(evidence: Evidence, x: torch.Tensor) -> str:
    """Why this machine cannot draw the noise of this evidence; empty if it can."""
    here = device_name(x.device)
    if evidence.device is not None and evidence.device != here:
        return f"the noise was drawn on {evidence.device}, and {here} draws other numbers from the same key"
    then = evidence.versions.get("torch")
    if then is not None and _release(then) != _release(torch.__version__):
        return f"the noise was drawn by torch {then}, and {torch.__version__} may draw other numbers from the same key"
    return ""


def _release(version: str) -> str:
    return version.partition("+")[0]


def _derived(certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, data_hash: str | None) -> bool | None:
    """Whether a seed that is stated to be derived follows from what is certified; None if the data are not available."""
    evidence = certificate.evidence
    if evidence.data_hash is None:
        return None
    if g.engine.derived_seed(evidence.data_hash) != evidence.seed:
        return False
    return True if evidence.data_hash in (data_hash, batch_hash([x])) else None
