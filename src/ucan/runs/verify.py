"""Check a certificate against a classifier and its noise, by recomputation and fresh samples."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import torch

from ucan import verify as verification
from ucan.arithmetic import REAL, step_of
from ucan.certificate import Certificate, load_json
from ucan.choices import check_list
from ucan.data import is_known
from ucan.data.frames import is_table
from ucan.data.labelled import BYTE, Labelled
from ucan.data.single import is_single, load_picture_or_array
from ucan.data.tables import Table
from ucan.errors import InvalidInput, ModelError, OtherClasses
from ucan.models.adapt import adapt
from ucan.models.rows import TableModel
from ucan.registry import Registry
from ucan.replay import Replay, replay
from ucan.results.folder import RESULTS
from ucan.routed import Deployed, single
from ucan.runs.build import class_order, loaded, routed_of, settle, smoothed_with_names
from ucan.runs.jobs import Pipeline, Selection, TableOptions, dataset_of
from ucan.runs.progress import SILENT, Progress
from ucan.runs.read import Run
from ucan.runs.rebuild import located
from ucan.runs.router import is_router, refuse_calls
from ucan.smoothed import SmoothedClassifier
from ucan.training import is_trained_run


@dataclass(frozen=True, kw_only=True)
class VerifyJob(Pipeline):
    """The settings of `ucan verify`; each field is the option of that name.

    ``certificate`` is a JSON file; ``input`` a picture, an array, or a data source with ``index``. ``replay`` also redraws
    the certificate's own noise. ``range`` is what the outputs of a regressor are at least and at most.
    """

    certificate: str | Path
    input: str | Path
    step: str | float | None = None
    registry: str | Path | None = None
    split: str = "test"
    size: int | None = None
    index: int | None = None
    n: int | None = None
    alpha: float = 0.001
    seed: int | None = None
    replay: bool = False
    range: tuple[float, float] | None = None
    target: str | None = None
    id: str | None = None
    train: str | Path | None = None
    hold: Sequence[str] = ()
    vary: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_list("hold", self.hold)
        check_list("vary", self.vary)

    @property
    def states_noise(self) -> bool:
        """Whether the job states the deployed noise; a trained run does."""
        given = (self.law, self.scale, self.exponent, self.noise, self.sigma, self.train)
        return self._trained or is_router(self.spec) or any(option is not None for option in given)

    @property
    def _trained(self) -> bool:
        return self.spec is not None and is_trained_run(self.spec)


@dataclass(frozen=True)
class Verified:
    """A certificate, the verdict, and the result of the replay, if requested; ``answer`` is the name of its class, if known."""

    certificate: Certificate
    verdict: verification.Verdict
    replay: Replay | None
    answer: str | None = None

    @property
    def stands(self) -> bool:
        """Whether no check failed; this is not a proof of the claim."""
        return self.verdict.stands and (self.replay is None or self.replay.stands)

    @property
    def undrawn(self) -> bool:
        """Whether a replay was asked for, and could not be made here."""
        return self.replay is not None and not self.replay.drawn

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        redrawn = None if self.replay is None else asdict(self.replay)
        claim = {"prediction": self.certificate.prediction, "scope": self.certificate.scope}
        return {**claim, "stands": self.stands, **asdict(self.verdict), "replay": redrawn}


def verify(job: VerifyJob, progress: Progress = SILENT) -> Verified:
    """Recompute what follows from the certificate's evidence, and test its probabilities with fresh samples.

    Args:
        job: the certificate, the classifier, its noise and the input; the options of ``ucan verify``.
        progress: receives progress and messages; silent by default.

    Returns:
        The certificate with the verdict, and the replay if requested.
    """
    record, job = load_json(job.certificate), with_model(job)
    if not isinstance(record, Certificate):
        raise InvalidInput(
            f"{job.certificate} is an abstention or a prediction, not a certificate: it has no region to verify."
        )
    if job.range is not None:
        raise InvalidInput("--range is for answers about numbers, and this is a certificate of a class: leave it out.")
    where = job.place()
    g: Deployed
    if is_table(job.input):
        g, x, data_hash, names = _of_table(job, record, where)
    else:
        given = input_of(job, record.region.shape)
        x = given.x[None].to(where)
        try:
            g, own = _deployed(job, record, x, given.step) if job.states_noise else _as_stated(job, record, x)
        except OtherClasses as error:
            raise ModelError(
                f"the model has {error.found} classes, but {job.certificate} is about one with "
                f"{len(record.evidence.counts)}: give the model that was certified, with its weights."
            ) from error
        names = class_order(job, own, g.num_classes)
        data_hash = given.data_hash(names)
    if job.registry is not None and not Path(job.registry).is_file():
        raise InvalidInput(f"there is no registry {job.registry}.")
    samples = verification.fresh_number(job.n, record.evidence.n)
    with (
        Registry(job.registry) if job.registry is not None else nullcontext() as memory,
        progress.working(1, 0, samples),
    ):
        g.on_votes(progress.sampled)
        verdict = verification.verify(record, g, x, job.n, job.alpha, job.seed, memory)
        redrawn = replay(record, single(g, "a replay"), _origin(record, x, memory), data_hash) if job.replay else None
        progress.finished("")
    known = names is not None and record.prediction < len(names)
    return Verified(record, verdict, redrawn, names[record.prediction] if known and names else None)


def _of_table(
    job: VerifyJob, record: Certificate, where: torch.device
) -> tuple[SmoothedClassifier, torch.Tensor, str | None, Sequence[str] | None]:
    """The classifier at a row of a table, the row, the hash of the table, and the names of the model's classes, if known.

    Without --sigma and --train, the noise is as stated.
    """
    if job.index is None:
        raise InvalidInput(f"{job.input} is a table: give the row with --index, counted from 0.")
    options = TableOptions(job.target, job.id, job.train, tuple(job.hold), tuple(job.vary))
    selection = Selection.of(dataset_of(job.input, table=options), 1, None)
    if job.states_noise:
        settled = settle(job, selection, where)
        g, table = single(settled.g, "a table"), settled.selection.dataset
    else:
        f = loaded(job, where, selection.dataset.event_shape)
        counts, table = len(record.evidence.counts), cast(Table, selection.dataset)
        rows, table = TableModel.of(f, table, counts, job.model_id, job.class_names)
        g = SmoothedClassifier(rows, record.evidence.law, verification.noise_of(record), rows.num_classes)
    if not 0 <= job.index < len(table):
        raise InvalidInput(f"--index {job.index}: {job.input} has rows 0 to {len(table) - 1}.")
    real = job.arithmetic == "real" or record.evidence.arithmetic == REAL
    estimator = g.f.model.estimator if isinstance(g.f.model, TableModel) else None
    names = job.class_names or (None if estimator is None else estimator.classes)  # what the data have is a guess
    g = g.on_grid(None if real else table.step).holding(table.held_at(job.index))
    return g, table[job.index][0][None].to(where), table.fingerprint(), names


def _deployed(
    job: VerifyJob, record: Certificate, x: torch.Tensor, declared: float | None
) -> tuple[Deployed, tuple[str, ...] | None]:
    """The classifier under the deployed noise, independent of what the certificate states; how the model names its classes."""
    step = deployed_step(job, declared, record.evidence.arithmetic)
    if is_router(job.spec):
        return routed_of(job, x, step), None
    classes = None if job._trained else len(record.evidence.counts)
    return smoothed_with_names(replace(job, classes=classes), x, step, [])


def with_model(job: VerifyJob) -> VerifyJob:
    """The job, with the model of a run of ``ucan certify`` in place of the run, if that is what was given as the model.

    Only its model is taken, with the names of its classes: the noise that such a run states is that of whoever issued the
    certificate.
    """
    folder = Path(job.spec or "")
    if job.spec is None or is_trained_run(job.spec) or not (folder / RESULTS).is_file():
        return job
    run = Run.open(folder)
    known = run.config.model
    if known.spec is None:
        raise InvalidInput(f"{folder} was made in Python and does not name its model: give the model with --model.")
    model, weights = located(known, None, job.weights, run.base, job.trust)
    if is_router(model) and not job.trust:
        refuse_calls(model)
    return replace(
        job,
        model=model,
        weights=weights,
        model_id=known.model_id if job.model_id is None else job.model_id,
        normalise=known.normalise if job.normalise is None else job.normalise,
        class_names=(known.named or None) if job.class_names is None else job.class_names,
    )


def _as_stated(
    job: VerifyJob, record: Certificate, x: torch.Tensor
) -> tuple[SmoothedClassifier, tuple[str, ...] | None]:
    """The model under the noise as the certificate states it, and how the model names its classes."""
    evidence, classes = record.evidence, len(record.evidence.counts)
    f = adapt(loaded(replace(job, classes=classes), x.device, record.region.shape), x, classes)
    noise, step = verification.noise_of(record), step_of(evidence.arithmetic)
    g = SmoothedClassifier(
        f.model, evidence.law, noise, classes, precision=job.precision, model_id=job.model_id, step=step
    )
    return g, f.classes


def deployed_step(job: VerifyJob, declared: float | None, claimed: str) -> float | None:
    """The step of the deployed pipeline; never taken from the certificate."""
    real = job.arithmetic is None and claimed == REAL and job.step is None
    if real or job.arithmetic == "real":
        return None
    if job.step is None:
        return declared
    try:
        return float(Fraction(job.step))
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidInput(f"--step takes a number above 0 such as 1/255, got {job.step!r}.") from error


def _origin(record: Certificate, x: torch.Tensor, memory: Registry | None) -> torch.Tensor:
    """The input that the evidence is about: for scope registry the enrolled one."""
    found = memory.issuer(x, record) if memory is not None and record.scope == "registry" else None
    return x if found is None else found.centre[None].to(x)


@dataclass(frozen=True, eq=False)
class GivenInput:
    """An input, the step that its source declares, and the data set that it is from, if any."""

    x: torch.Tensor
    step: float | None
    dataset: Labelled | None = None

    def data_hash(self, order: Sequence[str] | None) -> str | None:
        """The hash of the data set, whose labels are numbered in the model's order of the classes, as when it was certified."""
        if self.dataset is None:
            return None
        return Selection.of(self.dataset, 1, None).in_order(order).dataset.fingerprint()


def input_of(job: VerifyJob, shape: tuple[int, ...]) -> GivenInput:
    """The input that the job names."""
    path = Path(job.input)
    if is_single(path):
        step = None if path.suffix.lower() == ".npy" else BYTE
        return GivenInput(load_picture_or_array(path, shape, job.size), step)
    if job.index is None:
        if not (path.exists() or is_known(str(job.input)) or ":" in str(job.input)):
            raise InvalidInput(f"there is no {job.input}: give a picture, an array, or a data set with --index.")
        raise InvalidInput(f"{job.input} is not a single picture or array: give the input's number with --index.")
    pictures = path.is_dir() and not is_known(str(job.input))  # a folder may have the name of a data set
    channels = shape[0] if pictures and shape[0] in (1, 3) else None
    dataset = dataset_of(job.input, job.split, job.size, channels)
    if not 0 <= job.index < len(dataset):
        raise InvalidInput(f"--index {job.index}: {job.input} has inputs 0 to {len(dataset) - 1}.")
    return GivenInput(dataset[job.index][0], dataset.step, dataset)
