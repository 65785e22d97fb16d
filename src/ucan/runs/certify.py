"""Certify a data set into a run's folder: everything is checked first, and every result is kept as it comes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucan.allocator import keep_memory
from ucan.arithmetic import arithmetic_of
from ucan.budget import Budget
from ucan.certificate import SCOPES, Abstention, Certificate, save_json
from ucan.cluster import spread
from ucan.config import CONFIG
from ucan.continuing import can_go_on, certify_more
from ucan.data.tables import Table, by_held
from ucan.errors import InvalidInput, ModelError, UcanError
from ucan.evidence import Evidence
from ucan.plan import Bound, CertifyPlan, Seed
from ucan.registry import Registry, region_norm
from ucan.results.formats import write
from ucan.results.metrics import NO_LABEL, labelled
from ucan.results.store import RESULTS, Store
from ucan.rounding import floor_percent
from ucan.runs.build import (
    Inputs,
    Pipeline,
    Selection,
    budget_of,
    data_ref,
    model_ref,
    noise_ref,
    norm_of,
    settle,
    settle_backend,
    step_for,
)
from ucan.runs.config import ClaimRef, LawRef, RunConfig, Sampling, begun_seed, changes, read_run_config
from ucan.runs.progress import SILENT, Progress
from ucan.runs.sheet import SHEET, has_sheet, row_answers, write_sheet
from ucan.smoothed import SmoothedClassifier
from ucan.stopping import parse_stop
from ucan.tabular import RowAnswer
from ucan.version import __version__

# Answers of a table that a summary tells in words.
SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class CertifyJob(Pipeline, Inputs):
    """What `ucan certify` is asked for; each field is the option of that name.

    ``norm`` None is 2, or the norm for which composed noise was made. ``seed`` None is a random one, which stays with the run.
    ``time``: after so many seconds no further input is begun; the same job goes on from there.
    """

    norm: float | None = None
    budget: Any = None
    n0: int = 100
    n: int = 100_000
    alpha: float = 0.001
    bound: Bound = "binary"
    stop: Any = None
    seed: Seed = 0
    family: int | None = None
    batch_size: int | None = None
    certificates: bool = False
    registry: str | Path | None = None
    cluster: str | None = None
    workers: int | None = None
    time: float | None = None


@dataclass(frozen=True)
class Certified:
    """What is there of the inputs asked for. ``accuracy`` is rounded down, and None where no label is known.

    ``at_ceiling``: so many certificates had all n votes, and could be larger with more. ``sheet`` is the file with names and
    columns, ``rows`` are the first answers of a table.
    """

    run: Path
    tsv: Path
    inputs: int
    labelled: int
    accuracy: float | None
    abstained: int
    median_correct_radius: float | None
    scope: str
    arithmetic: str
    norm: float
    budget: Budget | None
    stop: str | None
    mean_samples: float | None
    n: int
    at_ceiling: int = 0
    class_names: tuple[str, ...] | None = None
    sheet: Path | None = None
    rows: tuple[RowAnswer, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        about = {} if self.budget is None else {"budget": self.budget.words(), "budget_hash": self.budget.key}
        return {
            "run": str(self.run),
            "tsv": str(self.tsv),
            "inputs": self.inputs,
            "labelled": self.labelled,
            "accuracy": self.accuracy,
            "abstained": self.abstained,
            "median_correct_radius": self.median_correct_radius,
            "scope": self.scope,
            "guarantee": SCOPES[self.scope],
            "arithmetic": self.arithmetic,
            "norm": "inf" if self.norm == math.inf else self.norm,
            **about,
            "stop": self.stop,
            "mean_samples": self.mean_samples,
            "at_ceiling": self.at_ceiling,
            **({} if self.class_names is None else {"class_names": list(self.class_names)}),
            **({} if self.sheet is None else {"answers": str(self.sheet)}),
            **({"rows": [_row_to_dict(row) for row in self.rows]} if self.rows else {}),
        }


def _row_to_dict(row: RowAnswer) -> dict[str, Any]:
    """A row's answer as plain JSON values."""
    told = {} if row.reach is None else row.reach.to_dict()
    return {"idx": row.index, "name": row.name, "label": row.label, **told, "words": row.words()}


@dataclass(frozen=True, eq=False)
class Prepared:
    """A job that was checked: what is certified, how, and where it goes."""

    job: CertifyJob
    g: SmoothedClassifier
    plan: CertifyPlan
    selection: Selection
    first: torch.Tensor
    folder: Path
    tsv: Path
    scope: str
    known: RunConfig | None
    class_names: tuple[str, ...] | None
    sigma: Mapping[str, float]

    @property
    def here(self) -> SmoothedClassifier:
        """The classifier at the first input, with its held columns as they are."""
        return self.g.holding(self.selection.held())


def certify(job: CertifyJob, out: str | Path | None = None, progress: Progress = SILENT) -> Certified:
    """Certify the inputs that a job names, into the folder ``out``, or beside it into a ``.tsv``; then say what is there.

    A run with the same config goes on where it stopped; another config is refused, with each difference. Each result is
    kept, with all of its evidence, before the next is begun, so the work may be stopped at any time.
    """
    work = prepared(job, out, progress)
    config = _config(work)
    with (
        _memory(job.registry, work.g, work.first, work.plan) as memory,
        Store.create(work.folder, config.to_table(), _compared) as store,
    ):
        if work.known is not None and _grows(work.known, config):
            if job.cluster is not None:
                raise InvalidInput("going on with more votes is done in one process: leave --cluster out.")
            store.adopt(replace(work.known, sampling=replace(work.known.sampling, n=job.n)).to_table())
        try:
            _certify_all(work, memory, store, progress)
        finally:  # however the work ends, the table holds what is stored
            if len(store):
                write(store, work.tsv, overwrite=True)
                if has_sheet(work.selection.dataset):
                    write_sheet(store, work.selection.dataset, work.class_names, work.folder)
        return _summary(store, work)


def prepared(job: CertifyJob, out: str | Path | None, progress: Progress) -> Prepared:
    """Everything that can be refused before any work is."""
    if job.workers is not None and job.cluster is None:
        raise InvalidInput("--workers are those of a cluster: add --cluster local, or a cluster's address.")
    where = job.place()
    settled = settle(job, job.selection(), where)
    g, selection = settled.g, settled.selection
    for remark in settled.remarks:
        progress.warn(remark)
    first = selection.first().to(where)
    _check_held(job, selection)
    # Where the run is depends on the norm, and that on the noise; in which arithmetic, on what was begun there.
    budget = budget_of(job.budget, selection.dataset, job.model)
    norm = g.norm_for(None, budget) if job.norm is None and budget is not None else norm_of(job.norm, g.M)
    folder, tsv = _places(out, job, f"l{norm:g}" if budget is None else "budget")
    known = read_run_config(folder)
    g = g.on_grid(step_for(job.arithmetic, selection.dataset, None if known is None else known.sampling.arithmetic))
    stop, family = parse_stop(job.stop), job.family or 1
    plan = CertifyPlan(job.n0, job.n, job.alpha, norm, 0, job.batch_size, job.bound, stop, family=family, budget=budget)
    g.holding(selection.held()).check_inputs(first, plan.norm)
    selection.check(g.f.num_classes)
    if selection.lopsided:
        progress.remark(selection.lopsided)
    if tsv.exists() and not (folder / CONFIG).exists():
        raise InvalidInput(f"{tsv} exists already and belongs to no run here; name another file, or remove it first.")
    plan = g.seeded(
        plan, begun_seed(job.seed, None if known is None else known.sampling), selection.dataset.fingerprint()
    )
    if job.family is not None and len(selection.indices) > job.family:
        raise InvalidInput(
            f"--family {job.family} is for fewer certificates than the {len(selection.indices)} inputs chosen."
        )
    if known is not None and g.engine.identity() is None:
        raise InvalidInput(
            f"{folder} holds a run, and nothing tells this model from others, so that going on with it could mix two: name "
            "the model with --model-id, in a new folder."
        )
    scope = g.M.scope if job.registry is None else "registry"
    return Prepared(job, g, plan, selection, first, folder, tsv, scope, known, settled.class_names, settled.sigma)


def _check_held(job: CertifyJob, selection: Selection) -> None:
    """Refuse what works with one classifier for all inputs, where every row has its own: its held columns are part of it."""
    if selection.held() is None:
        return
    option = "--cluster" if job.cluster is not None else "--registry" if job.registry is not None else None
    if option is not None:
        raise InvalidInput(f"{option} does not go with held columns yet: leave it out, or let every column vary.")


def _begun_block(folder: Path) -> int | None:
    """The size of the blocks of noise of the run in this folder, if it has results; an older version may have chosen others."""
    if not (folder / RESULTS).is_file():
        return None
    with Store.open(folder) as store:
        return next((store.outcome(index).evidence.block for index in sorted(store.done())[:1]), None)


def _config(work: Prepared) -> RunConfig:
    """What the run is frozen with; its backend is settled here."""
    job, g, plan, data = work.job, work.g, work.plan, work.selection.dataset
    known = work.known
    # The backend of another model's run does not matter: that the model is another is said when configs are compared.
    begun = known.sampling.backend if known is not None and known.model.spec == job.spec else None
    backend = settle_backend(work.here, job.backend, plan, work.first, len(work.selection.indices), begun)
    noise = job.noise if isinstance(job.noise, str) else None
    registry = None if job.registry is None else str(job.registry)
    key = None if plan.budget is None else plan.budget.key
    return RunConfig(
        ucan=__version__,
        model=model_ref(job, g, given=True, class_names=work.class_names),
        data=data_ref(job, data),
        law=replace(LawRef.of(g.law), given=job.law if isinstance(job.law, str) else None),
        noise=replace(noise_ref(g), given=noise, sigma_given=_sigma_word(job.sigma), sigma=work.sigma),
        claim=ClaimRef(work.scope, plan.norm, g.alm_cap, _budget_word(job.budget), key, registry),
        sampling=Sampling.of(plan, arithmetic_of(g.grid), backend, g.engine.precision),
    )


def _compared(begun: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    old, new = RunConfig.of(begun), RunConfig.of(asked)
    return changes(replace(old, sampling=replace(old.sampling, n=new.sampling.n)) if _grows(old, new) else old, new)


def _grows(old: RunConfig, new: RunConfig) -> bool:
    """Whether a run is asked to go on with more votes, and may: a registry has given its answers already."""
    fewer = (old.sampling.n or 0) < (new.sampling.n or 0)
    return fewer and old.sampling.can_grow and old.claim.registry is None


def _sigma_word(sigma: Any) -> str | None:
    """The columns' noise as it was given, if that was a text."""
    return sigma if isinstance(sigma, str) else None


def _budget_word(budget: Any) -> float | str | None:
    """A budget as it was given, if that was a word or a number."""
    if not isinstance(budget, str):
        return float(budget) if isinstance(budget, int | float) else None
    try:
        return float(budget)
    except ValueError:
        return budget


@contextmanager
def _memory(
    path: str | Path | None, g: SmoothedClassifier, first: torch.Tensor, plan: CertifyPlan
) -> Iterator[Registry | None]:
    """The registry, if one is asked for and the classifier belongs to it."""
    if path is None:
        yield None
        return
    with Registry(path, region_norm(g, first, plan.norm)) as registry:
        registry.check(g, first, plan)
        yield registry


def _certify_all(work: Prepared, memory: Registry | None, store: Store, progress: Progress) -> None:
    """Every input that has no result yet, and those that may have more votes."""
    done, plan = store.done(), work.plan
    todo = [index for index in work.selection.indices if index not in done]
    more = _unfinished(work, store, done)
    if work.job.certificates:
        _write_certificates(store, sorted(done))
    tally = _Tally.of(store)
    with progress.working(len(todo) + len(more), len(done) - len(more), plan.n0 + plan.n):
        if not todo and not more:
            return
        with _placed(work, progress) as g:
            g.engine.on_votes = progress.sampled
            begin = last = time.perf_counter()
            for index, outcome in _answered(_outcomes(g, work, memory, todo, more), store):
                label, now = int(work.selection.dataset.labels[index]), time.perf_counter()
                store.add(index, label, outcome, now - last, again=index in done)
                last = now
                if work.job.certificates:
                    save_json(outcome, _certificate_path(store, index))
                tally.add(label, outcome)
                # Under a stopping rule the sure inputs come first: a share of those would promise too much.
                progress.finished("" if plan.stop is not None or more else tally.words)
                if work.job.time is not None and now - begin > work.job.time:
                    break
    if tally.invalid:
        progress.warn(
            f"{tally.invalid:,} of {tally.votes:,} votes were for no class, since the model answered with NaN or a class "
            "number out of range; they count against every answer."
        )


def _answered(
    outcomes: Iterator[tuple[int, Certificate | Abstention]], store: Store
) -> Iterator[tuple[int, Certificate | Abstention]]:
    """The outcomes; where the model fails in the midst of them, what is kept is said."""
    try:
        yield from outcomes
    except (UcanError, OSError):
        raise
    except Exception as error:  # whatever the user's model raises
        said = str(error).strip().splitlines() or ["no message"]
        raise ModelError(
            f"the model failed in the midst of the run: {type(error).__name__}: {said[0].rstrip('.')}. {len(store)} results "
            f"are kept in {store.folder}; the same command goes on from there."
        ) from error


def _outcomes(
    g: SmoothedClassifier, work: Prepared, memory: Registry | None, todo: list[int], more: dict[int, Evidence]
) -> Iterator[tuple[int, Certificate | Abstention]]:
    """Each input's outcome as it is there, by its number in the data: of new inputs, then of those that have votes.

    Inputs with the same held columns share a classifier and its forward passes.
    """
    data, plan = work.selection.dataset, work.plan
    for held, group in by_held(data, todo):
        inputs, at = (data[index][0][None] for index in group), g.holding(held)
        answers = at.certify_each(inputs, plan) if memory is None else memory.certify_each(at, inputs, plan)
        for number, outcome in answers:
            yield group[number], outcome
    for held, group in by_held(data, more):
        begun = ((data[index][0][None], more[index]) for index in group)
        for number, outcome in certify_more(g.holding(held), begun, plan):
            yield group[number], outcome


def _unfinished(work: Prepared, store: Store, done: set[int]) -> dict[int, Evidence]:
    """The results that were made with a smaller n in mind, with their votes; none unless the bound allows to go on."""
    sampling = Sampling.of(work.plan, "", None, None)
    if not done or not sampling.can_grow or work.scope == "registry":
        return {}
    columns = store.columns(("idx", "n"))
    fewer = set(columns["idx"][columns["n"] < work.plan.n].tolist()) & set(work.selection.indices)
    found = {index: store.outcome(index).evidence for index in sorted(fewer)}
    return {i: one for i, one in found.items() if (one.cap or one.n) < work.plan.n and can_go_on(one)}


@dataclass
class _Tally:
    """How the results stand: right answers and known labels of all, votes and invalid ones of those added here."""

    right: int
    known: int
    invalid: int = 0
    votes: int = 0

    @classmethod
    def of(cls, store: Store) -> _Tally:
        """The results so far."""
        earlier = store.columns(("label", "correct"))
        return cls(int(earlier["correct"].sum()), int(labelled(earlier).sum()))

    def add(self, label: int, outcome: Certificate | Abstention) -> None:
        """One more."""
        self.right += outcome.prediction == label
        self.known += label != NO_LABEL
        self.invalid += outcome.invalid
        self.votes += outcome.evidence.n

    @property
    def words(self) -> str:
        """The share of right answers, rounded down."""
        return f"accuracy {floor_percent(self.right / self.known)} %" if self.known else ""


@contextmanager
def _placed(work: Prepared, progress: Progress) -> Iterator[SmoothedClassifier]:
    """Where the votes are counted: in this process, or by the workers of a cluster."""
    device = work.first.device.type
    if work.job.cluster is None:
        if device == "cpu":
            keep_memory()
        yield work.g
        return
    with spread(work.g, work.job.cluster, work.job.workers, progress.say, device) as served:
        yield served


def _write_certificates(store: Store, indices: Sequence[int]) -> None:
    """Certificates of an earlier call that are not there: it was stopped, or did not ask for them."""
    (store.folder / "certificates").mkdir(exist_ok=True)
    for index in indices:
        if not _certificate_path(store, index).exists():
            save_json(store.outcome(index), _certificate_path(store, index))


def _certificate_path(store: Store, index: int) -> Path:
    return store.folder / "certificates" / f"{index}.json"


def _places(out: str | Path | None, job: CertifyJob, claim: str) -> tuple[Path, Path]:
    """The run's folder and its TSV."""
    if out is None:
        stem = Path(job.spec or type(job.model).__name__).name.removesuffix(".onnx").removesuffix(".pt2")
        out = Path("runs") / f"{''.join(c if c.isalnum() else '-' for c in stem)}-{claim}"
    out = Path(out)
    if out.suffix in (".csv", ".json", ".parquet"):
        raise InvalidInput(
            f"{out} is no name for a run's folder: give a folder or a .tsv, then `ucan export FOLDER -o {out}`."
        )
    if out.suffix == ".tsv":
        return out.with_suffix(""), out
    return out, out / "results.tsv"


def _summary(store: Store, work: Prepared) -> Certified:
    """Of the inputs asked for; an earlier, longer call may have left more."""
    columns = {name: column[: len(work.selection.indices)] for name, column in store.gapless()[0].items()}
    count, known = len(columns["idx"]), labelled(columns)
    radii, data = columns["radius"][columns["correct"]], work.selection.dataset
    return Certified(
        run=work.folder,
        tsv=work.tsv,
        inputs=count,
        labelled=int(known.sum()),
        accuracy=math.floor(1e6 * columns["correct"][known].mean()) / 1e6 if known.any() else None,
        abstained=int(columns["abstained"].sum()),
        median_correct_radius=float(torch.tensor(radii).median()) if len(radii) else None,
        scope=work.scope,
        arithmetic=arithmetic_of(work.g.grid),
        norm=work.plan.norm,
        budget=work.plan.budget,
        stop=work.plan.rule,
        mean_samples=float(columns["n"].mean()) if count else None,
        n=work.plan.n,
        at_ceiling=_at_ceiling(store, columns),
        class_names=work.class_names,
        sheet=work.folder / SHEET if has_sheet(data) else None,
        rows=tuple(row_answers(store, data, SHOWN)) if isinstance(data, Table) else (),
    )


def _at_ceiling(store: Store, columns: dict[str, np.ndarray]) -> int:
    """How many certificates had every vote: no certificate from so many votes is larger."""
    certified = ~columns["abstained"]
    if not certified.any():
        return 0
    largest = columns["p_lower"][certified].max()
    best = store.outcome(int(columns["idx"][certified][columns["p_lower"][certified].argmax()]))
    full = isinstance(best, Certificate) and best.evidence.counts[best.prediction] == best.evidence.n
    return int((columns["p_lower"][certified] == largest).sum()) if full else 0
