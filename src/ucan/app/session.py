"""One run opened for exploring: choose an input, certify it step by step, attack the certificate. The page is in `page.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from ucan.audit import Attempt, Budget, attack, frozen_at, modes_of
from ucan.audit.judge import derived_seed
from ucan.certificate import Abstention, Certificate
from ucan.data import Labelled
from ucan.data.pictures import FORMAT_NAMES, open_untrusted
from ucan.data.single import load_picture_or_array
from ucan.data.tables import Table
from ucan.errors import InvalidInput, UcanError
from ucan.fingerprint import weights_hash
from ucan.held import Held
from ucan.plan import Bound, CertifyPlan
from ucan.report.pictures import is_picture
from ucan.results.formats import class_name
from ucan.runs.read import Run
from ucan.runs.rebuild import (
    VOTES,
    data_of,
    in_order,
    inputs_of,
    pipeline_of,
    refuse_other_model,
    shape_of,
    smoothed_as_trained,
    trained_on,
)
from ucan.runs.router import is_router
from ucan.seating import EXACT
from ucan.sidecar import input_hash
from ucan.smoothed import SmoothedClassifier
from ucan.training import is_trained_run, load_run
from ucan.votes import Votes

# The most bytes of an upload.
MOST_BYTES = 10_000_000
# The share of the region in which the attack has to fail where the guarantee covers it.
INSIDE = 0.9


@dataclass(frozen=True, eq=False)
class Attacked:
    """One attack: what was tried, the point as the classifier sees it (1, *event), and how it answers there.

    ``answer`` is None where no class has a clear majority. Without a ``delta`` there was no point to test.
    """

    attempt: Attempt
    delta: torch.Tensor | None
    point: torch.Tensor
    answer: int | None
    votes: Votes


@dataclass(frozen=True, eq=False)
class Session:
    """A run's classifier, noise and data. ``plan`` and ``scale`` (λ) are what the run itself used, to begin with."""

    name: str
    g: SmoothedClassifier
    plan: CertifyPlan
    shape: tuple[int, ...]
    dataset: Labelled | None
    numbers: tuple[int, ...]
    notes: tuple[str, ...]
    certified: bool = (
        False  # whether the run has results of its own, from the same votes, which are not counted as tries
    )
    # Of each input, by its hash and its held columns: the settings (λ, n, α) it was certified with, and by which bound.
    tries: dict[tuple[str, Held | None], dict[tuple[float, int, float], Bound]] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        run: str | Path,
        model: str | None = None,
        source: str | None = None,
        weights: Path | None = None,
        device: torch.device | None = None,
        trust: bool = False,
    ) -> Session:
        """The run in this folder: one that ``ucan train`` made, or ``ucan certify``. ``trust`` allows reading a
        pickle and importing a module beside the run.
        """
        run, device = Path(run), device or torch.device("cpu")
        if not run.is_dir():
            raise InvalidInput(f"there is no folder {run}: give the folder of a `ucan certify` or a `ucan train` run.")
        if is_trained_run(run):
            refuse_other_model(run, model, weights)
            opened = _open_trained(run, source, device, trust)
        else:
            opened = _open_certified(run, model, source, weights, device, trust)
        opened._check()
        return opened

    def _check(self) -> None:
        """Refuse, before the page opens, inputs that it cannot show and a classifier that cannot answer them."""
        if self.table is None and not is_picture(self.shape):
            raise InvalidInput(
                f"inputs of shape {self.shape} are no pictures with 1 or 3 channels and no table, and the page shows these: "
                "use `ucan certify` and `ucan audit` for others."
            )
        if self.dataset is not None and self.dataset.event_shape != self.shape:
            raise InvalidInput(
                f"{self.dataset.name} has inputs of shape {self.dataset.event_shape}, the model wants {self.shape}."
            )
        if self.table is None:
            self.g.check_inputs(torch.zeros(1, *self.shape), self.plan.norm)
        else:
            self.smoothed(self.scale, self.table.held_at(0)).check_inputs(self.item(0)[0], self.plan.norm)

    @property
    def table(self) -> Table | None:
        """The run's table; None if its inputs are pictures."""
        return self.dataset if isinstance(self.dataset, Table) else None

    @property
    def scale(self) -> float:
        """λ as the run has it."""
        return self.g.law.scale

    def smoothed(self, scale: float, held: Held | None = None) -> SmoothedClassifier:
        """The classifier under the run's noise at another λ: its certificates are true, but it was not trained for that.

        For a row of a table, ``held`` are its held columns.
        """
        if scale == self.scale:
            return self.g.holding(held)
        return self.g.again(law=replace(self.g.law, scale=float(scale))).holding(held)

    def class_name(self, number: int) -> str:
        """What the data set calls a class, or else its number."""
        return class_name(number, self.class_names)

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the data set calls the classes, in their order; empty if it has no names for them."""
        return () if self.dataset is None else tuple(self.dataset.classes or ())

    def item(self, number: int) -> tuple[torch.Tensor, int]:
        """One input of the run's data (1, *event), and its label (−1 if unknown)."""
        if self.dataset is None:
            raise InvalidInput("the run's data are not here: drop a picture instead.")
        if not 0 <= number < len(self.dataset):
            raise InvalidInput(f"{self.dataset.name} has inputs 0 to {len(self.dataset) - 1}, there is no {number}.")
        x, label = self.dataset[number]
        return self._placed(x[None]), label

    def decode(self, path: str | Path) -> torch.Tensor:
        """An uploaded picture as an input (1, *event), converted to the size and the channels of the model.

        A picture of exactly the model's size is not changed; others are resized and cropped like those of a folder.
        """
        path = Path(path)
        width, height = _check_picture(path)
        _, high, wide = self.shape
        exact = (width, height) == (wide, high)
        if not exact and high != wide:
            raise InvalidInput(f"{path.name} is {width} × {height} pixels; this model needs exactly {wide} × {high}.")
        try:
            return self._placed(load_picture_or_array(path, self.shape, None if exact else high)[None])
        except InvalidInput as error:
            raise InvalidInput(str(error).replace(str(path), path.name)) from error

    def _placed(self, x: torch.Tensor) -> torch.Tensor:
        """An input on the classifier's device."""
        return x.to(self.g.f.device or x.device)

    def certify(
        self, x: torch.Tensor, scale: float, n: int, alpha: float, held: Held | None = None
    ) -> Iterator[Votes | Certificate | Abstention]:
        """The votes on x (1, *event) as they come, which certify nothing yet, then what ``g.certify`` gives.

        The seed is the run's: another n gives the same votes, and more or fewer of them. The usual bound needs an n that was
        fixed beforehand, so each further try uses the bound that holds for every n at once.
        """
        plan, g = replace(self.plan, n=int(n), alpha=float(alpha)), self.smoothed(scale, held)
        tries = self.tries.setdefault((input_hash(x), held), {})
        first = all(law_scale != g.law.scale for law_scale, _, _ in tries)
        own = (
            plan.bound if first or plan.bound == "exact" else "anytime"
        )  # where all draws are counted, n is not chosen
        bound = tries.setdefault((g.law.scale, plan.n, plan.alpha), own)
        return g.certify_watched(x, replace(plan, bound=bound))

    def risk(self, name: str, held: Held | None = None) -> tuple[int, float]:
        """How often an input was tried, and an upper bound on the probability that any of the answers is false.

        ``name`` is its hash, ``held`` are its held columns. Each λ is another claim. At one λ the first
        try has a risk of α, and all others together have a risk of α.
        """
        tries = self.tries.get((name, held), {})
        fixed = sum(alpha for (_, _, alpha), bound in tries.items() if bound != "anytime")
        later: dict[float, float] = {}
        for (scale, _, alpha), bound in tries.items():
            if bound == "anytime":
                later[scale] = max(alpha, later.get(scale, 0.0))
        return len(tries), min(1.0, fixed + sum(later.values()))

    def attack(
        self,
        x: torch.Tensor,
        certificate: Certificate,
        multiples: Iterable[float],
        budget: Budget | None = None,
    ) -> Iterator[Attacked]:
        """Attack a certificate within each multiple of its region: the live pipeline, and where it differs the frozen one."""
        budget, g = budget or Budget(), self.smoothed(certificate.evidence.law.scale)
        for multiple in multiples:
            for mode in modes_of(certificate.scope, "both"):
                attempt, delta = attack(g, x, certificate, mode, multiple, budget)
                pipeline = g if mode == "live" else frozen_at(g, x)
                point = x if delta is None else (x.double() + delta.to(x.device)).to(x.dtype)
                # The seed of the auditor's own test: where it tested this point, these are the votes that decided.
                seed = derived_seed(attempt.votes_seed, "check")
                with g.engine.running(certificate.evidence.backend):
                    if certificate.evidence.bound == EXACT:
                        (answer,) = pipeline.predict(point, test="exact", precision=self.plan.precision)
                    else:
                        (answer,) = pipeline.predict(
                            point, n=budget.check, alpha=budget.level, seed=seed, precision=self.plan.precision
                        )
                votes = Votes(answer.counts, answer.invalid)
                yield Attacked(attempt, delta, point, answer.prediction, votes)


def _open_trained(run: Path, source: str | None, device: torch.device, trust: bool) -> Session:
    trained = load_run(run, trust=trust)
    dataset, notes = _data(partial(data_of, trained_on(trained), source, trained.base, trust), source)
    dataset = None if dataset is None else in_order(dataset, trained.classes or ())
    g, plan = smoothed_as_trained(trained, dataset, device)
    numbers = () if dataset is None else tuple(range(len(dataset)))
    return Session(run.resolve().name, g, plan, trained.shape, dataset, numbers, notes)


def _open_certified(
    run: Path, model: str | None, source: str | None, weights: Path | None, device: torch.device, trust: bool
) -> Session:
    opened = Run.open(run)
    config, columns = opened.config, opened.columns
    if not opened.inputs:
        raise InvalidInput(f"{run} has no results yet: `ucan certify` writes them; then come back.")
    first = opened.telling()
    if is_router(config.model.spec):
        raise InvalidInput(f"{run} is of a router, which has several smoothed classifiers; this page shows one.")
    dataset, notes = (
        _table(opened, source, trust)
        if config.data.columns
        else _data(partial(inputs_of, config, source, opened.base, trust), source)
    )
    g = pipeline_of(config.model, first, device, model, weights, dataset, trust, opened.base)
    # The classifier has the precision.
    plan = replace(config.sampling.plan(opened.norm), precision=None, budget=first.budget)
    shape = shape_of(opened, first, dataset)
    if config.model.weights_hash not in (None, weights_hash(g.f.model)):
        notes += ("The model has changed since this run: what you see here is about the model as it is now.",)
    if config.claim.registry is not None:
        notes += (
            "This run answered through a registry. The page does not ask it: what you see is the classifier without "
            "that memory.",
        )
    numbers = tuple(i for i in columns["idx"].tolist() if dataset is not None and i < len(dataset))
    return Session(opened.label, g, replace(plan, n=min(plan.n, VOTES)), shape, dataset, numbers, notes, certified=True)


def _data(read: Callable[[], Labelled], source: str | None) -> tuple[Labelled | None, tuple[str, ...]]:
    """The run's data, if they can be found; without them pictures can still be uploaded."""
    try:
        dataset = read()
    except UcanError as error:
        if source is not None:
            raise
        return None, (f"The run's data are not here ({error}) Drop a picture instead.",)
    if isinstance(dataset, Table):
        raise InvalidInput(f"{dataset.name} is a table, and the run is about pictures: give them with --data.")
    return dataset, ()


def _table(run: Run, source: str | None, trust: bool) -> tuple[Labelled, tuple[str, ...]]:
    """The run's table with the classes as its model orders them; without it there are no rows to choose."""
    config = run.config
    try:
        dataset = data_of(config.data, source, run.base, trust)
    except UcanError as error:
        if source is not None:
            raise
        raise InvalidInput(f"the table of {run.folder} is not here ({error}) Give its path with --data.") from error
    if not isinstance(dataset, Table):
        raise InvalidInput(f"{run.folder} is about a table, and {dataset.name} is none: give the table with --data.")
    table = dataset.for_model(None, config.model.class_names or None)
    if config.data.fingerprint in (None, table.fingerprint()):
        return table, ()
    return table, ("The table has changed since this run: what you see here is about the table as it is now.",)


def _check_picture(path: Path) -> tuple[int, int]:
    """Width and height, from the header alone; refuses a file that would be unsafe or useless to decode."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise InvalidInput(f"{path.name} has {size:,} bytes; at most {MOST_BYTES:,} are taken: scale it down.")
    if path.suffix.lower() == ".npy":
        raise InvalidInput(f"{path.name} is an array: drop a picture ({FORMAT_NAMES}).")
    with open_untrusted(path, path.name) as picture:
        return picture.size
