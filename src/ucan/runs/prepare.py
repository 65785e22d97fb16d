"""Prepare a certification: build and check everything, and make the run's config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ucan.arithmetic import arithmetic_of
from ucan.choices import norm_word
from ucan.config import CONFIG
from ucan.data.tables import Table
from ucan.errors import InvalidInput
from ucan.places import parts_of, started_in
from ucan.plan import Bound, CertifyPlan, Seed
from ucan.results.database import OUTCOMES
from ucan.results.folder import results_in
from ucan.results.store import Store
from ucan.routed import Deployed, Routed
from ucan.runs.backend import settle_backend
from ucan.runs.build import budget_of, budget_word, norm_of, settle, step_for
from ucan.runs.config import ClaimRef, RunConfig, Sampling, begun_seed, changes, read_run_config, respelled
from ucan.runs.jobs import Inputs, Pipeline, Selection, text_of
from ucan.runs.placing import check_workers
from ucan.runs.progress import Progress
from ucan.runs.refs import data_ref, law_ref, model_ref, noise_ref
from ucan.stop_option import parse_stop
from ucan.stopping import AtRadii
from ucan.version import __version__


@dataclass(frozen=True, kw_only=True)
class CertifyJob(Pipeline, Inputs):
    """The settings of `ucan certify`; each field is the option of that name.

    ``norm`` None means 2, or the norm that composed noise was made for. ``seed`` None means a random seed, stored with the
    run. ``time``: after this many seconds no new input is started; the same job continues from there.
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


@dataclass(frozen=True, eq=False)
class Prepared:
    """A checked job: the classifier, the plan, and the output paths."""

    job: CertifyJob
    g: Deployed
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
    def here(self) -> Deployed:
        """The classifier at the first input, with that input's held columns."""
        return self.g.holding(self.selection.held())


def prepared(job: CertifyJob, out: str | Path | None, progress: Progress) -> Prepared:
    """Build and check a job; whatever can be refused is refused here, before any work."""
    check_workers(job.cluster, job.workers)
    where = job.place()
    settled = settle(job, job.selection(), where)
    g, selection = settled.g, settled.selection
    for remark in settled.remarks:
        progress.warn(remark)
    first = selection.first().to(where)
    _check_held(job, selection)
    _check_routed(job, g)
    # The run's folder depends on the norm, which depends on the noise; the arithmetic depends on the existing run.
    budget = budget_of(job.budget, selection.dataset, job.model, job.trust)
    norm = g.norm_for(None, budget) if job.norm is None and budget is not None else norm_of(job.norm, g)
    folder, tsv = _places(out, job, f"l{norm_word(norm)}" if budget is None else "budget")
    known = read_run_config(folder)
    g = g.on_grid(step_for(job.arithmetic, selection.dataset, None if known is None else known.sampling.arithmetic))
    stop, family = parse_stop(job.stop), job.family or 1
    if isinstance(selection.dataset, Table) and budget is None and isinstance(stop, AtRadii):
        raise InvalidInput(
            "a radius over columns with different units is meaningless: stop at a percentage, or give a --budget."
        )
    plan = CertifyPlan(job.n0, job.n, job.alpha, norm, 0, job.batch_size, job.bound, stop, family=family, budget=budget)
    plan.check_enough(g.shares if isinstance(g, Routed) else 1)
    plan = replace(g.counting(plan), block=_begun_block(folder))
    g.holding(selection.held()).check_inputs(first, plan.norm)
    selection.check(g.num_classes)
    if selection.lopsided:
        progress.remark(selection.lopsided)
    if tsv.exists() and not (folder / CONFIG).exists():
        raise InvalidInput(f"{tsv} already exists and belongs to no run here: give another file, or remove it first.")
    plan = g.seeded(
        plan, begun_seed(job.seed, None if known is None else known.sampling), selection.dataset.fingerprint()
    )
    check_family(job.family, selection)
    if known is not None:
        check_identity(folder, g.identity())
    scope = g.scope if job.registry is None else "registry"
    return Prepared(job, g, plan, selection, first, folder, tsv, scope, known, settled.class_names, settled.sigma)


def check_family(family: int | None, selection: Selection) -> None:
    """Refuse more inputs than share α."""
    if family is not None and len(selection.indices) > family:
        raise InvalidInput(
            f"--family {family} is smaller than the number of selected inputs, {len(selection.indices)}."
        )


def check_identity(folder: Path, identity: str | None) -> None:
    """Refuse to resume the run in a folder with a model that nothing identifies."""
    if identity is None:
        raise InvalidInput(
            f"{folder} holds a run, and this model cannot be identified, so resuming could mix two models: give the model a "
            f"name with --model-id, in a new folder."
        )


def _check_held(job: CertifyJob, selection: Selection) -> None:
    """Refuse a registry, which belongs to one classifier: with held columns, every row has its own."""
    if selection.held() is not None and job.registry is not None:
        raise InvalidInput("--registry is not supported with held columns: leave it out, or let every column vary.")


def _check_routed(job: CertifyJob, g: Deployed) -> None:
    """Refuse options that need one smoothed classifier: a router has several."""
    option = "--cluster" if job.cluster is not None else "--registry" if job.registry is not None else None
    if len(g.parts) > 1 and option is not None:
        raise InvalidInput(f"{option} is not supported with a router: leave it out.")


def _begun_block(folder: Path) -> int | None:
    """The block size of the run in this folder, if it has results; an older version may have used another."""
    if not results_in(folder, OUTCOMES):
        return None
    with Store.open(folder) as store:
        return next((store.outcome(index).evidence.block for index in sorted(store.done())[:1]), None)


def config_of(work: Prepared) -> RunConfig:
    """Make the run's config; this also chooses the backend."""
    job, g, plan, data = work.job, work.g, work.plan, work.selection.dataset
    known = work.known
    # The backend of another model's run does not matter: comparing the configs reports that the model differs.
    begun = known.sampling.backend if known is not None and known.model.spec == job.spec else None
    backend = settle_backend(work.here, job.backend, plan, work.first, len(work.selection.indices), begun)
    registry = None if job.registry is None else str(job.registry)
    key = None if plan.budget is None else plan.budget.key
    return RunConfig(
        ucan=__version__,
        started_in=started_in(work.folder),
        model=model_ref(job, g, given=True, class_names=work.class_names),
        data=data_ref(job, data),
        law=replace(law_ref(g), given=text_of(job.law)),
        noise=replace(
            noise_ref(g),
            given=text_of(job.noise),
            sigma_given=text_of(job.sigma),
            sigma=work.sigma,
            steps=data.steps if isinstance(data, Table) else {},
        ),
        claim=ClaimRef(work.scope, plan.norm, g.alm_cap, budget_word(job.budget), key, registry),
        sampling=Sampling.of(plan, arithmetic_of(g.grid), backend, g.precision),
    )


def compared(folder: Path, begun: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """The differences between the requested config and that of the run in this folder.

    A larger n is not one where it is allowed, and neither is the path of the same file from another working directory.
    """
    old = RunConfig.of(begun)
    new = respelled(old, RunConfig.of(asked), folder)
    return changes(replace(old, sampling=replace(old.sampling, n=new.sampling.n)) if grows(old, new) else old, new)


def grows(old: RunConfig, new: RunConfig) -> bool:
    """Whether more votes are requested and allowed; not with a registry, whose answers are already given."""
    fewer = (old.sampling.n or 0) < (new.sampling.n or 0) and old.law.name is not None  # a router has several laws
    return fewer and old.sampling.can_grow and old.claim.registry is None


def _places(out: str | Path | None, job: CertifyJob, claim: str) -> tuple[Path, Path]:
    """The run's folder and its TSV."""
    if out is None:
        named = "-".join(Path(part).name for part in parts_of(job.spec)) if job.spec else type(job.model).__name__
        stem = named.removesuffix(".onnx").removesuffix(".pt2")
        out = Path("runs") / f"{''.join(c if c.isalnum() else '-' for c in stem)}-{claim}"
    out = Path(out)
    if out.suffix in (".csv", ".json", ".parquet"):
        raise InvalidInput(f"{out} is not a run's folder: give a folder or a .tsv, then `ucan export FOLDER -o {out}`.")
    if out.suffix == ".tsv":
        return out.with_suffix(""), out
    return out, out / "results.tsv"
