"""`ucan verify`: does a certificate that someone hands you stand?"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import torch
import typer

from ucan import verify as verification
from ucan.arithmetic import REAL, changes_in_words, step_of
from ucan.certificate import Certificate, load_json
from ucan.cli import words
from ucan.cli.progress import Progress
from ucan.data.single import is_single, load_picture_or_array
from ucan.errors import InvalidInput
from ucan.models import load_model
from ucan.registry import Registry
from ucan.replay import Replay, replay
from ucan.rounding import floor_significant
from ucan.smoothed import SmoothedClassifier
from ucan.training import is_trained_run


def verify(
    certificate: Annotated[Path, typer.Argument(help="The certificate, a JSON file.")],
    model: words.ModelOption,
    source: Annotated[
        str, typer.Option("--input", help="The input: an image, an `.npy` array, or any `--data` source with --index.")
    ],
    weights: words.WeightsOption = None,
    law: words.LawOption = None,
    scale: words.ScaleOption = None,
    exponent: words.ExponentOption = None,
    noise: words.NoiseOption = None,
    model_id: words.ModelIdOption = None,
    arithmetic: Annotated[
        words.ArithmeticName | None,
        typer.Option(
            help="The arithmetic of the pipeline that is deployed: `grid`, in the steps of the input's source or of --step, "
            "or `real`. If not given, real for a certificate of real arithmetic, else grid."
        ),
    ] = None,
    given_step: Annotated[
        str | None,
        typer.Option("--step", help="The step of the deployed pipeline's grid, if the source does not say: 1/255."),
    ] = None,
    precision: words.PrecisionOption = None,
    registry: Annotated[
        Path | None, typer.Option(help="The registry that issued the certificate, if its scope is `registry`.")
    ] = None,
    size: words.SizeOption = None,
    split: words.SplitOption = "test",
    index: Annotated[int | None, typer.Option(help="The input's number in a data source.")] = None,
    n: Annotated[int | None, typer.Option(help="Fresh samples; as many as the certificate's if not given.")] = None,
    alpha: words.AlphaOption = 0.001,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the fresh samples; from the system's entropy if not given.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--replay", help="Also draw the certificate's own noise again, and compare the counts."),
    ] = False,
    device: words.DeviceOption = "auto",
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Hold a certificate against the classifier that is deployed, and draw fresh samples against it.

    The noise is that of the trained run, or the one that --law, --scale, --exponent and --noise state. If neither says
    what it is, the verdict is about the noise as the certificate states it, and confirms no pipeline.

    Exit code 0: nothing speaks against the claim, which is no proof of it. 1: something does. 2: it could not be checked.
    Fresh samples speak against a true claim with probability at most α. A replay proves that the counts belong to their
    noise, not that seed and n were chosen beforehand.

    Examples:
    `ucan verify 17.json --model runs/mine --input digits --index 17`

    `ucan verify 17.json --model mymodels:resnet --scale 0.25 --input digit.png --replay`
    """
    record = load_json(certificate)
    if not isinstance(record, Certificate):
        raise InvalidInput(f"{certificate} is no certificate but an abstention or a prediction: it claims no region.")
    where = words.device_of(device)
    x, declared, data_hash = _input(source, index, record.region.shape, split, size)
    x = x[None].to(where)
    stated = any(option is not None for option in (law, scale, exponent, noise))
    if is_trained_run(model) or stated:  # what is deployed, whatever the certificate says
        classes = None if is_trained_run(model) else len(record.evidence.counts)
        step = _deployed_step(arithmetic, given_step, declared, record)
        g = words.smoothed_of(model, weights, law, scale, exponent, noise, classes, x, precision, model_id, step)
    else:
        g = _as_stated(record, model, weights, where, model_id)
    if registry is not None and not registry.is_file():
        raise InvalidInput(f"there is no registry {registry}.")
    with (
        Registry(registry) if registry is not None else nullcontext() as memory,
        Progress("verifying", 1, record.evidence.n if n is None else n, quiet) as progress,
    ):
        g.engine.on_votes = progress.sampled
        verdict = verification.verify(record, g, x, n, alpha, seed, memory)
        origin = _origin(record, x, memory)
        redrawn = replay(record, g, origin, data_hash) if again else None
        progress.finished("")
    stands = verdict.stands and (redrawn is None or redrawn.stands)
    if as_json:
        claim = {"certificate": str(certificate), "prediction": record.prediction, "scope": record.scope}
        counts = None if redrawn is None else asdict(redrawn)
        typer.echo(json.dumps({**claim, "stands": stands, **asdict(verdict), "replay": counts}))
    else:
        _show(record, verdict, redrawn)
    if not stands:
        raise typer.Exit(1)


def _as_stated(
    record: Certificate, model: str, weights: Path | None, where: torch.device, model_id: str | None
) -> SmoothedClassifier:
    """The model under the noise as the certificate states it."""
    classes = len(record.evidence.counts)
    f = load_model(model, weights, classes, where, record.region.shape)
    evidence, step = record.evidence, step_of(record.evidence.arithmetic)
    return SmoothedClassifier(f, evidence.law, verification.noise_of(record), classes, model_id=model_id, step=step)


def _deployed_step(
    arithmetic: words.ArithmeticName | None, given: str | None, declared: float | None, record: Certificate
) -> float | None:
    """The step of the pipeline that is deployed: never the certificate's own word for it."""
    real = arithmetic is None and record.evidence.arithmetic == REAL and given is None
    if real or arithmetic is words.ArithmeticName.real:
        return None
    if given is None:
        return declared
    try:
        return float(Fraction(given))
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidInput(f"--step takes a number above 0 such as 1/255, got {given!r}.") from error


def _origin(record: Certificate, x: torch.Tensor, memory: Registry | None) -> torch.Tensor:
    """The input that the evidence is about: for scope registry the enrolled one."""
    found = memory.issuer(x, record) if memory is not None and record.scope == "registry" else None
    return x if found is None else found.centre[None].to(x)


def _show(record: Certificate, verdict: verification.Verdict, redrawn: Replay | None) -> None:
    for check in verdict.checks:
        typer.echo(f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.detail}")
    if redrawn is not None:
        typer.echo(
            f"{'ok  ' if redrawn.stands else 'FAIL'} replay: {redrawn.outcome}: {redrawn.detail}{_chosen(redrawn)}"
        )
    tested = f"{verdict.n:,} fresh votes at level {verdict.alpha:g}"
    about = f"The claim stands against {tested}: class {record.prediction} on the whole region"
    if record.budget is not None and record.budget_factor is not None:
        about += f" and under {record.budget.words()}, ε = {floor_significant(record.budget_factor)}"
    weak = "That is no proof: claims that are false by little can stand, too."
    if redrawn is not None and not redrawn.stands:
        typer.echo("The claim does not stand (replay): its counts are not those of its own noise.")
    elif verdict.confirms is not None:
        own = f", for {verdict.about}" if verdict.about == verification.STATED else ""
        typer.echo(f"{about}, scope {verdict.confirms}{own}{_steps(record)}. {weak}")
    elif verdict.stands:
        typer.echo(
            f"{about}, for {verdict.about}. Scope {record.scope} is not confirmed, since nobody said which noise the pipeline "
            f"has: give the trained run as --model, or --law, --scale and --noise. {weak}"
        )
    else:
        failed = ", ".join(check.name for check in verdict.checks if not check.passed)
        typer.echo(f"The claim does not stand ({failed}), tested with {tested}.")


def _steps(record: Certificate) -> str:
    """For which changes of the input that is."""
    changes = changes_in_words(record.evidence.arithmetic)
    return f", {changes}" if changes else ""


def _chosen(redrawn: Replay) -> str:
    """Whether the seed was anyone's choice."""
    if redrawn.derived is None:
        return ". That seed and n were chosen beforehand this does not prove"
    follows = "follows" if redrawn.derived else "does not follow"
    return f". The seed {follows} from model, noise and data"


def _input(
    source: str, index: int | None, shape: tuple[int, ...], split: str, size: int | None
) -> tuple[torch.Tensor, float | None, str | None]:
    """The input, the step that its source declares, and the hash of the data set that it is from."""
    path = Path(source)
    if is_single(path):
        return load_picture_or_array(path, shape, size), None if path.suffix.lower() == ".npy" else 1 / 255, None
    if index is None:
        raise InvalidInput(f"{source} is no single picture or array: say with --index which of its inputs is meant.")
    channels = shape[0] if path.is_dir() and shape[0] in (1, 3) else None
    dataset = words.dataset_of(source, split, size, channels)
    if not 0 <= index < len(dataset):
        raise InvalidInput(f"--index {index}: {source} has inputs 0 to {len(dataset) - 1}.")
    return dataset[index][0], dataset.step, dataset.fingerprint()
