"""`ucan demo`: the whole of it in a minute, on data that needs no download."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ucan import __version__, data
from ucan.certificate import SCOPES
from ucan.cli import words
from ucan.cli.progress import Progress
from ucan.cli.train import settle
from ucan.plan import CertifyPlan
from ucan.results import Store
from ucan.results.metrics import Columns, Measure, certified_accuracy, floor_digits, floor_percent
from ucan.scales import as_scale
from ucan.smoothed import SmoothedClassifier
from ucan.training import Trainer, TrainSettings, build_classifier, is_trained_run, load_run

LAMBDA = 0.25
# The two noises have the same mean scale; the pattern puts less of it in the middle of the picture, more at its border.
NOISES: dict[str, dict[str, Any]] = {"isotropic": {"kind": "isotropic"}, "pattern": {"kind": "pattern", "norm": 2}}
RADII = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
READ_AT = 0.3
EPOCHS = 15


@dataclass(frozen=True)
class Certified:
    """What the table shows of one run: its rows, its scope, and the least and the largest scale of its noise."""

    columns: Columns
    scope: str
    least: float
    most: float

    def shares(self, by: Measure) -> list[str]:
        """Certified accuracy at the table's radii, in percent, rounded down."""
        return [floor_percent(share) for share in certified_accuracy(self.columns, RADII, by).tolist()]

    def share(self, by: Measure) -> str:
        """Certified accuracy at the radius that the sentences speak of."""
        return self.shares(by)[RADII.index(READ_AT)]


def demo(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Keep the runs in this folder; a temporary one if not given.")
    ] = None,
    digits: Annotated[int, typer.Option(min=1, max=445, help="How many test digits are certified.")] = 40,
    n: Annotated[int, typer.Option(help="Noisy copies of each digit.")] = 2000,
    quiet: words.QuietOption = False,
) -> None:
    """Train, certify and compare on scikit-learn's digits: isotropic beside pattern-shaped noise. About a minute.

    Examples: `ucan demo`, `ucan demo --n 10000 --out runs/demo`
    """
    plan = CertifyPlan(n=n)
    results = {}
    try:
        with _workplace(out) as folder:
            for name in NOISES:
                _train(name, folder / f"{name}-model", quiet)
                results[name] = _certify(name, folder, digits, plan, quiet)
    except KeyboardInterrupt:
        left = "nothing is kept" if out is None else "the same command goes on from there"
        print(f"\nStopped; {left}.", file=sys.stderr)
        raise
    _show(results, plan)
    if out is not None:
        runs = " ".join(str(out / name) for name in NOISES)
        typer.echo(f"\nThe runs are kept. Next: ucan compare {runs}")


@contextmanager
def _workplace(out: Path | None) -> Iterator[Path]:
    """The folder to keep, or one that goes away, however the demo ends."""
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="ucan-demo-") as folder:
        yield Path(folder)


def _train(name: str, folder: Path, quiet: bool) -> None:
    """A small network for digits under this noise; one that was trained before is taken as it is."""
    settings = TrainSettings(
        epochs=EPOCHS,
        batch=64,
        lr=2e-3,
        schedule="one-cycle",
        law={"kind": "gaussian", "scale": LAMBDA},
        generator=NOISES[name],
    )
    dataset = data.load(settings.data, "train")
    shape, classes = dataset.event_shape, dataset.num_classes
    config = {"kind": "train", "ucan": __version__, "shape": list(shape), "num_classes": classes}
    settle(folder, {**config, "training": settings.to_dict()})
    if is_trained_run(folder):
        return
    with Progress(f"training ({name})", EPOCHS, len(dataset), quiet) as progress:

        def show(epoch: int, step: int, steps: int, means: dict[str, float]) -> None:
            if step == steps:
                progress.sampled(len(dataset))
                progress.finished(f"right under noise {floor_percent(means['correct'])} %")

        Trainer(settings, dataset, build_classifier(settings, shape, classes), folder, "cpu", show).run()


def _certify(name: str, folder: Path, digits: int, plan: CertifyPlan, quiet: bool) -> Certified:
    """The trained network certified on some test digits, evenly spread over the test set."""
    run = load_run(folder / f"{name}-model")
    g = SmoothedClassifier(run.classifier, run.law, run.generator, run.num_classes)
    dataset = data.load(run.settings.data, "test")
    selection = words.Selection.of(dataset, len(dataset) // digits, digits)
    first = selection.first()
    config = {
        "kind": "certify",
        "ucan": __version__,
        "data": run.settings.data,
        "digits": digits,
        "law": {"name": type(run.law).__name__, **vars(run.law)},
        "noise": g.M.describe(),
        "alm_cap": words.alm_cap(g, first),
        "scope": g.M.scope,
        **asdict(plan),
    }
    with Store.create(folder / name, config) as store:
        todo = [index for index in selection.indices if index not in store.done()]
        with Progress(f"certifying ({name})", len(todo), plan.n0 + plan.n, quiet) as progress:
            g.engine.on_votes = progress.sampled
            for index in todo:
                _certify_one(g, store, index, *dataset[index], plan)
                progress.finished(f"right so far {floor_percent(certified_accuracy(store.columns(), 0).item())} %")
        sigma = as_scale(g.M(first)[1])
        least = 1 / sigma.inverse_norm(2, 2, first.numel())
        return Certified(store.columns(), store.scope, run.law.scale * least, run.law.scale * sigma.largest())


def _certify_one(g: SmoothedClassifier, store: Store, index: int, x: Any, label: int, plan: CertifyPlan) -> None:
    start = time.perf_counter()
    outcome = g.certify(x[None], **asdict(plan))[0]
    store.add(index, label, outcome, time.perf_counter() - start)


def _show(results: dict[str, Certified], plan: CertifyPlan) -> None:
    """The table, and what it says."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    count = len(results["isotropic"].columns["idx"])
    title = f"Digits certified at this size or more, in % of {count}; {plan.n:,} copies each"
    table = Table(title=title, box=SIMPLE, title_justify="left", padding=0)
    for name in ("noise", "its scale", "scope", "size by"):
        table.add_column(name, no_wrap=True)
    for radius in RADII:
        table.add_column(f"{radius:g}", justify="right", no_wrap=True)
    for name, result in results.items():
        scale = "–".join(dict.fromkeys((floor_digits(result.least, 2), floor_digits(result.most, 2))))
        table.add_row(name, scale, result.scope, "radius", *result.shares("radius"))
        table.add_row("", "", "", "ALM", *result.shares("alm"))
    console = Console()
    console.print()
    console.print(table)
    for sentence in _sentences(results, plan):
        console.print(sentence, highlight=False, markup=False)


def _sentences(results: dict[str, Certified], plan: CertifyPlan) -> list[str]:
    """What the numbers mean, in plain words."""
    isotropic, pattern = results["isotropic"], results["pattern"]
    return [
        f"Radius: under isotropic noise {isotropic.share('radius')} % of the digits are answered correctly, and provably "
        f"still are after any change of ℓ2 length below {READ_AT:g} (pixels run from 0 to 1); under pattern noise of the "
        f"same mean scale it is {pattern.share('radius')} %.",
        "ALM: pattern noise certifies a stretched region, narrow in the middle of the picture and wide at its border, "
        f"where its scale is {floor_digits(pattern.most, 2)} instead of {floor_digits(isotropic.most, 2)}; "
        f"{pattern.share('alm')} % of the regions are as large as a ball of radius {READ_AT:g} or larger (isotropic: "
        f"{isotropic.share('alm')} %), but ALM is a size, and no ball of that radius is guaranteed.",
        f"Scope {pattern.scope}: each guarantee is about {SCOPES[pattern.scope]}; it is false with probability at most "
        f"{plan.alpha:g}.",
    ]
