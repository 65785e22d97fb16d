"""`ucan verify`: does a certificate that someone hands you stand?"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from ucan import verify as verification
from ucan.certificate import Certificate, load_json
from ucan.cli import words
from ucan.cli.progress import Progress
from ucan.data.single import is_single, load_picture_or_array
from ucan.errors import InvalidInput
from ucan.models import load_model
from ucan.registry import Registry
from ucan.smoothed import SmoothedClassifier
from ucan.training import is_trained_run, load_run


def verify(
    certificate: Annotated[Path, typer.Argument(help="The certificate, a JSON file.")],
    model: words.ModelOption,
    source: Annotated[
        str, typer.Option("--input", help="The input: an image, an `.npy` array, or any `--data` source with --index.")
    ],
    weights: words.WeightsOption = None,
    registry: Annotated[
        Path | None, typer.Option(help="The registry that issued the certificate, if its scope is `registry`.")
    ] = None,
    size: words.SizeOption = None,
    split: words.SplitOption = "test",
    index: Annotated[int | None, typer.Option(help="The input's number in a data source.")] = None,
    n: Annotated[int | None, typer.Option(help="Fresh samples; as many as the certificate's if not given.")] = None,
    alpha: words.AlphaOption = 0.001,
    seed: Annotated[int, typer.Option(help="Seed of the fresh samples; must differ from the certificate's.")] = 1,
    device: words.DeviceOption = "auto",
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Recompute what a certificate claims, and draw fresh samples against it.

    Exit code 0: nothing speaks against the claim, which is no proof of it. 1: something does. 2: it could not be checked.
    Fresh samples speak against a true claim with probability at most α.

    Example: `ucan verify 17.json --model mymodels:resnet --input digit.png`
    """
    record = load_json(certificate)
    if not isinstance(record, Certificate):
        raise InvalidInput(f"{certificate} is no certificate but an abstention or a prediction: it claims no region.")
    where = words.device_of(device)
    x = _input(source, index, record.region.shape, split, size)[None].to(where)
    run = load_run(model) if is_trained_run(model) else None
    f = (
        run.classifier.to(where)
        if run is not None
        else load_model(model, weights, len(record.evidence.counts), where, record.region.shape)
    )
    noise = verification.noise_of(record, run.generator if run is not None else None)
    g = SmoothedClassifier(f, record.evidence.law, noise, len(record.evidence.counts))
    if registry is not None and not registry.is_file():
        raise InvalidInput(f"there is no registry {registry}.")
    with (
        Registry(registry) if registry is not None else nullcontext() as memory,
        Progress("verifying", 1, record.evidence.n if n is None else n, quiet) as progress,
    ):
        g.engine.on_votes = progress.sampled
        verdict = verification.verify(record, g, x, n, alpha, seed, memory)
        progress.finished("")
    if as_json:
        claim = {"certificate": str(certificate), "prediction": record.prediction, "scope": record.scope}
        typer.echo(json.dumps({**claim, "stands": verdict.stands, **asdict(verdict)}))
    else:
        _show(record, verdict)
    if not verdict.stands:
        raise typer.Exit(1)


def _show(record: Certificate, verdict: verification.Verdict) -> None:
    for check in verdict.checks:
        typer.echo(f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.detail}")
    tested = f"{verdict.n:,} fresh votes at level {verdict.alpha:g}"
    if verdict.stands:
        typer.echo(
            f"The claim stands against {tested}: class {record.prediction} on the whole region, scope {record.scope}. That "
            "is no proof: claims that are false by little can stand, too."
        )
    else:
        failed = ", ".join(check.name for check in verdict.checks if not check.passed)
        typer.echo(f"The claim does not stand ({failed}), tested with {tested}.")


def _input(source: str, index: int | None, shape: tuple[int, ...], split: str, size: int | None) -> torch.Tensor:
    if is_single(Path(source)):
        return load_picture_or_array(Path(source), shape, size)
    if index is None:
        raise InvalidInput(f"{source} is no single picture or array: say with --index which of its inputs is meant.")
    channels = shape[0] if Path(source).is_dir() and shape[0] in (1, 3) else None
    dataset = words.dataset_of(source, split, size, channels)
    if not 0 <= index < len(dataset):
        raise InvalidInput(f"--index {index}: {source} has inputs 0 to {len(dataset) - 1}.")
    return dataset[index][0]
