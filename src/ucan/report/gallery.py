"""The gallery of a run: chosen inputs with their noise, their votes and their certificate in words.

Everything comes from the run's own records; the inputs themselves from its data, checked against the certificate's
hash. The classifier is never run, and only noise that is computed from an input needs its trained model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ucan.audit import Attempt, load_break
from ucan.audit.ledger import BREAKS
from ucan.certificate import Abstention, Certificate
from ucan.data import Labelled
from ucan.errors import InvalidInput, UcanError
from ucan.generators import Generator
from ucan.laws import norm_name
from ucan.report import pictures
from ucan.report.runs import AUDIT, Run
from ucan.report.slices import Slice, cut
from ucan.results.metrics import floor_digits
from ucan.results.rebuild import data_of
from ucan.results.store import Store
from ucan.scales import Scale
from ucan.sidecar import input_hash
from ucan.training import is_trained_run, load_run
from ucan.verify import noise_of

LARGEST = 4096  # dimensions up to which the scale in each pixel is worked out for a full Σ
DATA_KEYS = ("data", "split", "size", "channels")


@dataclass(frozen=True)
class Panel:
    """A picture with what it shows, and the numbers behind its colours."""

    name: str
    note: str
    uri: str


@dataclass(frozen=True)
class Exhibit:
    """One input of the gallery: why it was chosen, what was certified, and its pictures."""

    why: str
    idx: int
    truth: int
    answer: int | None
    counts: tuple[int, ...]
    words: tuple[str, ...]
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Typical:
    """The certificate of median radius among the right ones, and the slice through its region."""

    idx: int
    certificate: Certificate
    slice: Slice | None


@dataclass(frozen=True)
class Gallery:
    """What a run has to show; ``missing`` says in words what could not be shown, and why."""

    exhibits: tuple[Exhibit, ...] = ()
    typical: Typical | None = None
    missing: tuple[str, ...] = ()


def chosen(run: Run) -> dict[int, str]:
    """The inputs to show, by number, with the reason: broken, best, worst, wrong, abstained; each at most once."""
    c = run.columns
    idx, radius = c["idx"], c["radius"]
    claimed = ~c["abstained"] & (radius > 0)
    right, wrong = claimed & c["correct"], claimed & ~c["correct"]
    picks: list[tuple[str, int]] = []
    broken = worst_break(run)
    if broken is not None:
        picks.append(("broken by the audit", broken.idx))
    if right.any():
        picks.append(("largest radius", int(idx[right][np.argmax(radius[right])])))
        picks.append(("smallest radius", int(idx[right][np.argmin(radius[right])])))
    if wrong.any():
        picks.append(("certified, but wrong", int(idx[wrong][np.argmax(radius[wrong])])))
    if c["abstained"].any():
        picks.append(("abstained", int(idx[c["abstained"]][0])))
    reasons: dict[int, str] = {}
    for why, number in picks:
        reasons.setdefault(number, why)
    return reasons


def worst_break(run: Run) -> Attempt | None:
    """The break inside the smallest share of its region; on the live pipeline rather than on the frozen one."""
    breaks = [a for a in run.attempts if a.broken and a.same_as is None]
    return min(breaks, key=lambda a: (a.mode != "live", a.size, a.hits), default=None)


def exhibit_run(run: Run, datasets: dict[Any, Labelled | str]) -> Gallery:
    """The gallery of one run. ``datasets`` keeps what was loaded (or why it was not) for the runs that follow."""
    if run.config.get("kind") == "imported":
        return Gallery(missing=("These results were imported: there are no certificates to look into.",))
    missing: list[str] = []
    with Store.open(run.folder) as store:
        typical = _typical(run, store, missing)
        dataset = _dataset(run, datasets, missing)
        noise = _Noise(run, None if typical is None else typical.certificate, missing)
        outcomes = {number: _outcome(store, number, missing) for number in chosen(run)}
        exhibits = tuple(
            _exhibit(run, number, why, outcome, dataset, noise, missing)
            for number, why in chosen(run).items()
            if (outcome := outcomes[number]) is not None
        )
    return Gallery(exhibits, typical, tuple(dict.fromkeys(missing)))


def in_words(run: Run, outcome: Certificate | Abstention, truth: int) -> list[str]:
    """What was certified, as one would say it; every number rounds down."""
    evidence = outcome.evidence
    if isinstance(outcome, Abstention):
        return [f"No claim: {outcome.reason.rstrip('.')}."]
    verdict = "" if truth < 0 else ", which is right" if outcome.prediction == truth else f", but the label is {truth}"
    norm = "" if outcome.norm is None else f" {norm_name(outcome.norm)}"
    said = [
        f"The answer is class {outcome.prediction}{verdict}.",
        f"No change of{norm} length below {floor_digits(outcome.radius, 3)} can alter it"
        + {
            "pipeline": ".",
            "registry": ", as long as the registry is kept.",
        }.get(run.scope, ", **if the noise stays as it was computed at this very input**."),
        f"Class {outcome.prediction} got {evidence.counts[outcome.prediction]:,} of {evidence.n:,} votes, so its "
        f"probability is at least {floor_digits(outcome.p_lower, 3)}, but for a chance of {evidence.alpha:g}.",
    ]
    return said


@dataclass
class _Noise:
    """The noise at any input of a run: from its trained model, or else from the certificates themselves."""

    run: Run
    typical: Certificate | None
    missing: list[str]

    def __post_init__(self) -> None:
        self.source: Generator | None = None
        model = str(self.run.config.get("model", ""))
        if model and is_trained_run(model):
            try:
                self.source = load_run(model).generator
            except (UcanError, OSError) as error:
                self.missing.append(f"The trained noise of {model} cannot be loaded: {error}")

    def at(self, x: torch.Tensor, outcome: Certificate | Abstention) -> Generator | None:
        """The noise held at one input (1, *event); None where nobody can tell."""
        if isinstance(outcome, Certificate):
            return _or_none(lambda: noise_of(outcome, self.source))
        if self.source is not None:
            return _or_none(lambda: self.source.at(x))
        if self.run.scope == "pipeline" and self.typical is not None:  # the same for every input
            return _or_none(lambda: noise_of(self.typical))
        return None


def _exhibit(
    run: Run,
    number: int,
    why: str,
    outcome: Certificate | Abstention,
    dataset: Labelled | None,
    noise: _Noise,
    missing: list[str],
) -> Exhibit:
    row = int(np.flatnonzero(run.columns["idx"] == number)[0])
    truth = int(run.columns["label"][row])
    x = None if dataset is None else _input(dataset, number, outcome, missing)
    said = in_words(run, outcome, truth)
    panels: list[Panel] = []
    if x is not None:
        panels += noise_panels(x, outcome, noise)
    if why.startswith("broken"):
        attempt = worst_break(run)
        assert attempt is not None, "chosen named its input"
        said.append(_break_in_words(attempt, outcome))
        panels += _break_panels(run, attempt)
    counts = outcome.evidence.counts
    return Exhibit(why, number, truth, outcome.prediction, counts, tuple(said), tuple(panels))


def noise_panels(x: torch.Tensor, outcome: Certificate | Abstention, noise: _Noise) -> list[Panel]:
    """The input (1, *event), μ, λσ, and one noisy copy; where the classifier is shown less than that, what it sees."""
    if not pictures.is_picture(tuple(x.shape[1:])):
        return []
    panels = [Panel("input", "", pictures.as_picture(x[0]))]
    held = noise.at(x, outcome)
    if held is None:
        return panels
    law = outcome.evidence.law
    with torch.no_grad():
        mean, scale = held(x)
        rng = torch.Generator().manual_seed(0)
        noisy = held.perturb(x, law, 1, rng)[0]
        seen = held.view(noisy)
    offset = mean.expand_as(x)[0].double().mean(0).numpy()
    most = float(np.abs(offset).max())
    note = "0 everywhere" if most == 0 else f"{_signed(float(offset.min()))} to {_signed(float(offset.max()))}"
    panels.append(
        Panel("offset μ", note, pictures.as_map(offset, -max(most, 1e-9), max(most, 1e-9), pictures.DIVERGING))
    )
    sigma = pixel_scale(scale, tuple(x.shape[1:]))
    if sigma is not None:
        shown = law.scale * sigma
        low, high = float(shown.min()), float(shown.max())
        note = f"{low:.3g} everywhere" if high - low < 1e-3 * high else f"{low:.3g} to {high:.3g}"
        panels.append(Panel("scale λσ", note, pictures.as_map(shown, 0.0, max(high, 1e-12))))
    panels.append(Panel("a noisy copy", "", pictures.as_picture(noisy[0])))
    if not torch.equal(seen, noisy):
        panels.append(Panel("what it looks at", "leading directions", pictures.as_picture(seen[0])))
    return panels


def pixel_scale(scale: Scale, shape: tuple[int, ...]) -> np.ndarray | None:
    """The scale of the noise in each pixel, averaged over channels: the lengths of Σ's rows. None beyond 4096 dims."""
    dim = int(np.prod(shape))
    if scale.elementwise:
        each = scale.apply(torch.ones(1, *shape, dtype=torch.float64))[0]
    elif dim <= LARGEST:
        each = torch.linalg.vector_norm(scale.dense(dim), dim=1).reshape(shape)
    else:
        return None
    return each.double().mean(0).numpy()


def _typical(run: Run, store: Store, missing: list[str]) -> Typical | None:
    c = run.columns
    right = c["correct"] & ~c["abstained"] & (c["radius"] > 0)
    if not right.any():
        return None
    order = np.argsort(c["radius"][right], kind="stable")
    number = int(c["idx"][right][order[(len(order) - 1) // 2]])
    outcome = _outcome(store, number, missing)
    return Typical(number, outcome, cut(outcome)) if isinstance(outcome, Certificate) else None


def _outcome(store: Store, number: int, missing: list[str]) -> Certificate | Abstention | None:
    try:
        return store.outcome(number)
    except UcanError as error:
        missing.append(f"Input {number} cannot be shown: {error}")
        return None


def _dataset(run: Run, known: dict[Any, Labelled | str], missing: list[str]) -> Labelled | None:
    key = tuple(run.config.get(name) for name in DATA_KEYS)
    if key not in known:
        try:
            known[key] = data_of(run.config)
        except (UcanError, OSError) as error:
            known[key] = f"The pictures are not shown, since the data cannot be read: {error}"
    found = known[key]
    if isinstance(found, str):
        missing.append(found)
        return None
    return found


def _input(
    dataset: Labelled, number: int, outcome: Certificate | Abstention, missing: list[str]
) -> torch.Tensor | None:
    """The input (1, *event), if it is the one that was certified."""
    try:
        if number >= len(dataset):
            raise InvalidInput(f"{dataset.name} has only {len(dataset)} inputs.")
        x = dataset[number][0][None]
        if input_hash(x) != outcome.evidence.input_hash:
            raise InvalidInput("the data are no longer those that were certified.")
    except (UcanError, OSError) as error:
        missing.append(f"Input {number} has no pictures: {error}")
        return None
    return x


def _break_in_words(attempt: Attempt, outcome: Certificate | Abstention) -> str:
    where = (
        "the pipeline that computes its noise anew" if attempt.mode == "live" else "the classifier with frozen noise"
    )
    if outcome.scope == "pipeline":
        where = "the pipeline"
    share = floor_digits(100 * attempt.size, 1)
    return (
        f"**The audit found a change at {share} % of the way to the region's edge after which {where} answers class "
        f"{attempt.answer}**: class {attempt.prediction} is left with {attempt.hits:,} of {attempt.total:,} votes."
    )


def _break_panels(run: Run, attempt: Attempt) -> list[Panel]:
    path = run.folder / AUDIT / BREAKS / f"{attempt.idx}-{attempt.mode}-{attempt.factor:g}.safetensors"
    try:
        _, x, delta = load_break(path)
    except UcanError:
        return []
    if not pictures.is_picture(tuple(x.shape[1:])):
        return []
    length = float(delta.double().norm())
    return [
        Panel("the change δ", f"ℓ2 length {length:.3g}", pictures.as_delta(delta[0])),
        Panel("changed input", f"answer: {attempt.answer}", pictures.as_picture((x.double() + delta)[0])),
    ]


def _or_none(make: Any) -> Generator | None:
    try:
        return make()
    except UcanError:
        return None


def _signed(value: float) -> str:
    return f"{value:.2g}".replace("-", "−")
