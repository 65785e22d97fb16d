"""Measure the cost of certification on this machine in one run: networks, decisions, inputs, an earlier version."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ucan import data, deciding, targets
from ucan.bench import Bench, Stopped, machine
from ucan.choices import BACKENDS, PRECISIONS, check_list
from ucan.data import Labelled
from ucan.deciding import Kept, OnData, Simulated
from ucan.errors import InvalidInput
from ucan.generators import Generator
from ucan.guards import check_theorem
from ucan.laws import Gaussian, Law
from ucan.models import Denoised, Ensemble, build_model, load_model
from ucan.models.adapt import adapt
from ucan.models.build import BUILT_IN
from ucan.models.foreign import ExportedModel
from ucan.runs.earlier import Before, Earlier, source_of
from ucan.runs.jobs import check_taken, device_of
from ucan.runtimes import RUNTIMES, check_usable, installed
from ucan.timing import Row, Subject, Work, set_beside
from ucan.training import is_trained_run, load_run
from ucan.version import __version__

Choice = tuple[str, str | None]  # backend, and precision: None for the network's own
RADII = (0.5, 1.0, 2.0)  # of simulated decisions, in multiples of λ


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """What is measured.

    ``models``: built-in names, `package.module:name` or folders of trained runs; ``weights`` and ``shape`` are for one alone.
    ``backends``: all that are usual on the device if empty. ``data``: inputs for the last model, which is to be trained, and
    ``most`` of them. ``before``: a checkout of an earlier version, by which the first model is measured, too,
    with the first backend and precision. ``trust`` allows a trained run to import a module beside it, and to make a call
    that it states.
    """

    models: tuple[str, ...] = ("resnet20",)
    weights: str | Path | None = None
    shape: tuple[int, ...] | None = None
    n: int = 10_000
    precisions: tuple[str, ...] = ("fp32",)
    backends: tuple[str, ...] = ()
    shapes: bool = True
    art: bool = True
    decisions: int = 1000
    data: str | None = None
    most: int | None = None
    before: str | Path | None = None
    device: str | torch.device = "auto"
    trust: bool = False

    def __post_init__(self) -> None:
        check_taken(1, self.most)
        for name in ("models", "precisions", "backends"):
            check_list(name, getattr(self, name))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; the earlier version by its folder's name."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        if self.before is not None:
            given["before"] = Path(self.before).resolve().name
        return {
            name: list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path | torch.device) else value
            for name, value in given.items()
        }  # fmt: skip


@dataclass(frozen=True)
class Network:
    """A network to be measured: as it was named, its architecture, and its noise (isotropic if there is no generator).

    Speed is measured under isotropic noise; the noise is for inputs of one's own.
    """

    name: str
    kind: str
    model: nn.Module
    shape: tuple[int, ...]
    classes: int
    law: Law
    generator: Generator | None = None

    @property
    def title(self) -> str:
        """Name and shape."""
        return f"{self.name} at {','.join(map(str, self.shape))}"


@dataclass
class Benched:
    """What was measured, so far or, if ``complete``, in all, and when that began.

    ``ended`` is what ended it early: an error or an interruption.
    """

    job: BenchJob
    machine: dict[str, str]
    sources: dict[str, str] = field(default_factory=dict)  # the code's SHA-256, this version's and an earlier one's
    measured: list[tuple[Network, Bench]] = field(default_factory=list)
    stopping: list[Stopped] = field(default_factory=list)
    simulated: list[Simulated] = field(default_factory=list)
    data: list[OnData] = field(default_factory=list)
    recertified: list[Kept] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    ended: BaseException | None = None
    complete: bool = False
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured."""
        return not any(bench.rows for _, bench in self.measured)

    def judged(self) -> list[targets.Judged]:
        """The targets that were measured."""
        job, found = self.job, [*targets.of_votes(self.simulated)]
        for network, bench in self.measured:
            found += targets.of_speed(network.kind, bench.rows, self.machine, job.n)
        last = self.measured[-1][0].kind if self.measured else ""
        found += [targets.of_inputs(last, job.data or "", row, self.machine, job.n) for row in self.data]
        return [*found, *targets.of_pairs(self.recertified)]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        state: dict[str, Any] = {}
        if isinstance(self.ended, KeyboardInterrupt):
            state = {"interrupted": True}
        elif self.ended is not None:
            state = {"failed": "".join(traceback.format_exception_only(self.ended)).strip()}
        return {
            "complete": self.complete,
            "date": self.date,
            "job": self.job.to_dict(),
            "machine": {**self.machine, "ucan": __version__, "n": str(self.job.n)},
            "sources": self.sources,
            "networks": [
                {"model": one.name, "kind": one.kind, "shape": list(one.shape), "batch": b.size, "inputs": len(b.inputs)}
                for one, b in self.measured
            ],
            **state,
            "rows": [{"model": one.name, **row.to_dict()} for one, bench in self.measured for row in bench.rows],
            **{name: [asdict(row) for row in getattr(self, name)] for name in KINDS},
            "left_out": self.left_out,
            "targets": [asdict(row) for row in self.judged()],
        }  # fmt: skip


KINDS = ("stopping", "simulated", "data", "recertified")
Doing = Callable[[str], AbstractContextManager[Any]]


def bench(
    job: BenchJob, doing: Doing = lambda what: nullcontext(), keep: Callable[[Benched], None] = lambda found: None
) -> Benched:
    """Measure all that the job names.

    An error or an interruption after the first measurement is not raised but kept in ``ended``, beside what was measured
    until then; whoever calls raises it when that is safe.

    Args:
        job: what is measured.
        doing: makes the context in which a part, named in words, is measured.
        keep: gets what there is after every part.

    Returns:
        Rows, decisions, and the targets that they speak of.
    """
    where = device_of(job.device)
    choices = _choices(job, where)
    networks = _networks(job, where)
    inputs = None if job.data is None else _inputs(job.data, networks[-1])
    earlier = None if job.before is None else Earlier(Path(job.before), job.device, job.trust)
    sources = {"this": source_of(Path(__file__).parents[1])}
    if earlier is not None:
        sources["before"] = earlier.source
    found = Benched(job, machine(where), sources)

    @contextmanager
    def part(what: str) -> Iterator[None]:
        with doing(what):
            yield
        keep(found)

    try:
        for i, network in enumerate(networks):
            _speed(found, network, choices, part, None if i else earlier)
        _decisions(found, part)
        if inputs is not None:
            _on_inputs(found, inputs, choices, part)
        found.complete = True
    except (Exception, KeyboardInterrupt) as error:
        if found.is_empty:
            raise
        found.ended = error
        keep(found)
    return found


def _choices(job: BenchJob, where: torch.device) -> list[Choice]:
    """Every backend in every precision that it computes in; refused before any work if none does."""
    _check_names("--backend", job.backends, [name for name in BACKENDS if name != "auto"])
    _check_names("--precision", job.precisions, list(PRECISIONS))
    if not job.precisions:
        raise InvalidInput(f"--precision takes one or more of {', '.join(PRECISIONS)}, got none.")
    others = installed("fp32") if where.type == "cpu" else ()
    # The compiler last: laws, shapes and inputs are measured by the last one, and it computes in every precision.
    names = job.backends or ("eager", *others, "compile")
    pairs = [(name, kind) for kind in job.precisions for name in names]
    able = [(name, kind) for name, kind in pairs if kind in RUNTIMES.get(name, (kind,))]
    for name, kind in able or pairs:
        if name in RUNTIMES:
            check_usable(name, where, kind)
    return [(name, None if kind == "fp32" else kind) for name, kind in able]


def _check_names(option: str, given: tuple[str, ...], known: list[str]) -> None:
    if unknown := sorted(set(given) - set(known)):
        raise InvalidInput(f"{option} takes {', '.join(known)}, got {', '.join(unknown)}.")


# --- what is measured, and on what ---


def _networks(job: BenchJob, where: torch.device) -> list[Network]:
    if len(job.models) > 1 and (job.shape is not None or job.weights is not None):
        raise InvalidInput(
            "--shape and --weights are for one model. Of several, a built-in model and a trained run have their own shape, "
            "any other takes 3,32,32: measure it by itself."
        )
    return [_network(name, job, where) for name in job.models]


def _network(name: str, job: BenchJob, where: torch.device) -> Network:
    if is_trained_run(name):
        if job.shape is not None or job.weights is not None:
            raise InvalidInput(f"{name} is a trained run: leave out --shape and --weights.")
        run = load_run(name, trust=job.trust)
        kind = _kind(str(run.settings.model), run.classifier)
        return Network(name, kind, run.classifier.to(where), run.shape, run.num_classes, run.law, run.generator)
    own = BUILT_IN[name].event_shape if name in BUILT_IN else (3, 32, 32)
    event = job.shape or own
    if name in BUILT_IN and job.weights is None:  # the speed does not depend on the weights
        return Network(name, name, build_model(name, event, 10).to(where), event, 10, Gaussian(0.25))
    network = load_model(name, job.weights, None, where, event, trust=job.trust)
    if isinstance(network, ExportedModel):
        network = network.as_module()
    if not isinstance(network, nn.Module) or next(network.parameters(), None) is None:
        raise InvalidInput(
            f"{name} has no PyTorch weights, so its bare forward pass cannot be measured. Give a PyTorch module."
        )
    classes = adapt(network, torch.zeros(1, *event, device=where)).num_classes
    return Network(name, name, network, event, classes, Gaussian(0.25))


def _kind(name: str, classifier: nn.Module) -> str:
    """The architecture; an ensemble of it, or one behind a denoiser, is another one."""
    outer = type(classifier).__name__
    return f"{outer} of {name}" if isinstance(classifier, Ensemble | Denoised) else name


def _inputs(source: str, network: Network) -> Labelled:
    """Inputs for a network whose noise has ℓ2 radii; anything else is refused before any work."""
    law, generator = network.law, network.generator
    if 2 not in (law.norms if generator is None else generator.norms(law)):
        noise = "" if generator is None else f" ({generator.describe()})"
        raise InvalidInput(
            f"--data decides ℓ2 radii, which the noise of {network.name}, {law!r}{noise}, has none of: leave out --data."
        )
    if generator is not None:
        check_theorem(generator)
        generator.check_claim(law, 2)
    found = data.load(source)
    if tuple(found.event_shape) != network.shape:
        shape = ",".join(map(str, found.event_shape))
        raise InvalidInput(f"{source} has inputs of shape {shape}, but the last model is {network.title}.")
    return found


# --- the parts ---


def _speed(found: Benched, network: Network, choices: list[Choice], part: Doing, earlier: Earlier | None) -> None:
    """The rows of one network: the earlier version with the first backend; generator, laws and shapes with the last."""
    job, before = found.job, list[Before]()

    def measured_before(earlier: Earlier, when: str) -> None:
        with part(f"{network.title} by {earlier.folder}, {when}"):
            shape = None if is_trained_run(network.name) else network.shape
            before.append(earlier.measured(network.name, shape, job.weights, job.n, choices[0]))

    if earlier is not None:
        measured_before(earlier, "first")
    # What is done once in a call weighs less with more inputs: as many as the earlier version has taken.
    inputs = before[0].inputs if before else None
    bench = Bench(network.model, network.shape, network.classes, job.n, inputs=inputs)
    found.measured.append((network, bench))
    bench.keep_memory()
    for backend, precision in choices:
        with part(f"{network.title}: {backend}, {precision or 'fp32'} (compiling takes a while)"):
            bench.ours(backend, precision)
    if earlier is not None:
        measured_before(earlier, "again")
        bench.rows += _over(bench.rows, [one.rate for one in before], choices[0])
    _beside(found, network, bench, choices[-1], part)


def _beside(found: Benched, network: Network, bench: Bench, choice: Choice, part: Doing) -> None:
    """A generator for every input, laws and shapes, and another library."""
    with part(f"{network.title}: generator, laws, shapes"):
        bench.generator(*choice)
        if found.job.shapes:
            bench.laws_and_shapes(*choice)
    if found.job.art:
        with part(f"{network.title}: Adversarial Robustness Toolbox"):
            if bench.art(bench.size) is None:
                found.left_out.append("pip install adversarial-robustness-toolbox statsmodels")


def _over(rows: list[Row], rates: list[float], choice: Choice) -> list[Row]:
    """The earlier version before and after, and our row beside their mean."""
    what = Subject(Work.CERTIFY, choice[0], choice[1] or "fp32")
    ours = next((row for row in rows if row.what == what), None)
    if ours is None:  # it could not be compiled: the warning has been given
        return []
    turns = (Work.BEFORE_FIRST, Work.BEFORE_AGAIN)
    theirs = [Row(replace(what, work=turn), rate) for turn, rate in zip(turns, rates, strict=True)]
    mean = Row(replace(what, work=Work.BEFORE), sum(rates) / len(rates))
    return [*theirs, set_beside(ours, mean)]


def _decisions(found: Benched, part: Doing) -> None:
    """Votes for a decision: where the truth is known, and over a simulated data set."""
    with part("samples used"):
        found.stopping = found.measured[0][1].stopping()
    for radius in RADII if found.job.decisions else ():
        with part(f"votes over the limit, r = {radius:g} λ"):
            found.simulated.append(deciding.simulated(radius, found.job.decisions, deciding.CAP))


def _on_inputs(found: Benched, inputs: Labelled, choices: list[Choice], part: Doing) -> None:
    """The last network on inputs of one's own: ten radii in one pass, then from fp32 to bf16."""
    network, bench = found.measured[-1]
    count = min(len(inputs), found.job.most or len(inputs))
    with part(f"ten radii for {count:,} inputs"):
        outcomes, row = deciding.on_data(
            network.model, network.classes, network.law, network.generator, inputs, count, bench.n, choices[-1]
        )
        found.data.append(row)
    able = [backend for backend, _ in choices if "bf16" in RUNTIMES.get(backend, ("bf16",))]
    if not able:
        found.left_out.append("from fp32 to bf16: give a --backend that computes in both, such as eager or compile")
        return
    with part("from fp32 to bf16"):
        found.recertified = deciding.in_bf16(
            network.model, network.classes, network.law, network.generator, inputs, outcomes, bench.n, able[-1]
        )
