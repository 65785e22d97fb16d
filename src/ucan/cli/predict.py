"""`ucan predict`: the smoothed classifier's answers, kept as they come."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ucan import __version__
from ucan.arithmetic import REAL, arithmetic_of
from ucan.cli import words
from ucan.cli.answers import Answer, Answers
from ucan.cli.progress import Progress
from ucan.errors import InvalidInput
from ucan.evidence import law_to_json
from ucan.fingerprint import weights_hash
from ucan.plan import PredictPlan, to_config
from ucan.results.metrics import NO_LABEL
from ucan.rounding import floor_percent
from ucan.smoothed import SmoothedClassifier


def predict(
    model: words.ModelOption,
    source: words.DataOption,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The TSV to write (it resumes where it stopped); standard output if not given."
        ),
    ] = None,
    weights: words.WeightsOption = None,
    split: words.SplitOption = "test",
    size: words.SizeOption = None,
    channels: words.ChannelsOption = None,
    law: words.LawOption = None,
    scale: words.ScaleOption = None,
    exponent: words.ExponentOption = None,
    noise: words.NoiseOption = None,
    n: Annotated[int, typer.Option(help="Noisy copies per input.")] = 1000,
    alpha: words.AlphaOption = 0.001,
    test: Annotated[
        str, typer.Option(help="`majority`, or `top-two`, which also answers where no class has a majority.")
    ] = "majority",
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop sampling an input as soon as its answer is clear, or hopeless.")
    ] = False,
    seed: words.NoiseSeedOption = "0",
    device: words.DeviceOption = "auto",
    precision: words.PrecisionOption = None,
    arithmetic: words.ArithmeticOption = None,
    backend: words.BackendOption = words.BackendName.auto,
    classes: words.ClassesOption = None,
    model_id: words.ModelIdOption = None,
    batch_size: words.BatchOption = None,
    skip: words.SkipOption = 1,
    most: words.MaxOption = None,
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Answer with the smoothed classifier, or abstain (−1): wrong with probability at most α.

    With `-o FILE` answers are kept one by one in `FILE.part`: stop it at any time, and the same command goes on where it
    stopped. FILE itself is written when it is whole.

    Example: `ucan predict --model mymodels:resnet --data images/ --scale 0.25 -o predictions.tsv`
    """
    if as_json and out is None:
        raise InvalidInput("--json prints a summary where the answers would go: name a file for those with -o.")
    if out is not None and out.exists():
        raise InvalidInput(f"{out} exists already; name another file, or remove it first.")
    if out is not None and not out.parent.is_dir():
        raise InvalidInput(f"there is no folder {out.parent} to write {out.name} to: make it first.")
    if out is not None and not os.access(out.parent, os.W_OK):
        raise InvalidInput(f"nothing may be written to the folder {out.parent}: name another file.")
    where = words.device_of(device)
    plan = PredictPlan(n, alpha, 0, test, batch_size, stop)  # type: ignore[arg-type]
    selection = words.Selection.of(words.dataset_of(source, split, size, channels), skip, most)
    first = selection.first().to(where)
    g = words.smoothed_of(model, weights, law, scale, exponent, noise, classes, first, precision, model_id)
    selection.check(g.f.num_classes)
    with Answers(out) as answers, _told(answers):
        begun_in = answers.about.get("arithmetic", REAL) if answers.about else None
        g = g.on_grid(words.step_for(arithmetic, selection.dataset, begun_in))
        g.check_inputs(first)
        plan = g.seeded(plan, words.seed_of(seed, answers.about), selection.dataset.fingerprint())
        # The backend of another model's answers does not matter: that the model is another is said below.
        begun = answers.about.get("backend") if answers.about.get("model") == model else None
        answers.begin(
            {
                "ucan": __version__,
                "model": model,
                "weights": weights,
                "data": source,
                "split": split,
                "size": size,
                "channels": channels,
                "skip": skip,
                "max": most,
                **_settings(g, plan, selection, answers.about),
                # Answers from before this was kept are in real arithmetic, and go on without the word.
                "arithmetic": arithmetic_of(g.grid)
                if "arithmetic" in answers.about or not answers.about or g.grid
                else None,
                "backend": words.settle_backend(g, backend, plan, first, len(selection.indices), begun),
            }
        )
        _answer_all(g, selection, answers, plan, quiet)
        if out is not None:
            answers.finish(selection.indices)
    if out is None:
        sys.stdout.write(answers.text(selection.indices))
        return
    summary = _summary(answers.done.values(), out, alpha)
    print(json.dumps(summary) if as_json else _in_words(summary))


def _settings(
    g: SmoothedClassifier, plan: PredictPlan, selection: words.Selection, known: dict[str, Any]
) -> dict[str, Any]:
    """What tells the weights, data and noise of these answers from others, beside the words that were given."""
    if known and g.engine.identity() is None:
        raise InvalidInput("nothing tells this model from others: name it with --model-id, and begin another file.")
    new = not known or "identity" in known  # answers from before these were kept go on without them
    return {
        "weights_hash": weights_hash(g.f.model),
        "data_hash": selection.dataset.fingerprint(),
        "law": law_to_json(g.law),
        "noise": g.M.describe(),
        "noise_hash": weights_hash(g.M),
        "identity": g.engine.identity() if new else None,
        "noise_settings": dict(g.M.settings()) if new else None,
        "classes": g.f.num_classes,
        **to_config(plan),
        "precision": g.engine.precision,
    }


@contextmanager
def _told(answers: Answers) -> Iterator[None]:
    """Who stops the work is told how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"{len(answers.done)} answers are kept. The same command goes on from there"
        if answers.part is None:
            kept = "nothing was written: with -o FILE answers are kept as they come, and the same command goes on from there"
        elif not answers.done:
            kept = "no input had its answer yet, and nothing was written"
        print(f"\nStopped; {kept}.", file=sys.stderr)
        raise


def _answer_all(
    g: SmoothedClassifier, selection: words.Selection, answers: Answers, plan: PredictPlan, quiet: bool
) -> None:
    todo = [index for index in selection.indices if index not in answers.done]
    if answers.done and not quiet:
        print(f"{len(answers.done)} inputs are done already, {len(todo)} to go.", file=sys.stderr)
    if not todo:
        return
    right, known = _tally(answers.done.values())
    with Progress("predicting", len(todo), plan.n, quiet) as progress:
        g.engine.on_votes = progress.sampled
        last = time.perf_counter()
        for number, outcome in g.predict_each((selection.dataset[i][0][None] for i in todo), plan):
            index, now = todo[number], time.perf_counter()
            label, found = int(selection.dataset.labels[index]), outcome.prediction
            correct = int(found is not None and found == label)
            answers.add(Answer(index, label, -1 if found is None else found, correct, now - last))
            right, known, last = right + correct, known + (label != NO_LABEL), now
            # Sampling that stops early finishes the sure inputs first: a share of those would promise too much.
            unknown = plan.stop or not known
            progress.finished("" if unknown else f"accuracy {floor_percent(right / known)} %")


def _tally(answers: Iterable[Answer]) -> tuple[int, int]:
    """How many are right, and of how many that is known."""
    known = [answer.correct for answer in answers if answer.label != NO_LABEL]
    return sum(known), len(known)


def _summary(answers: Iterable[Answer], tsv: Path, alpha: float) -> dict[str, Any]:
    answers = list(answers)
    right, known = _tally(answers)
    return {
        "tsv": str(tsv),
        "inputs": len(answers),
        "labelled": known,
        "accuracy": 10**6 * right // known / 1e6 if known else None,
        "abstained": sum(answer.predict == -1 for answer in answers),
        "alpha": alpha,
    }


def _in_words(summary: dict[str, Any]) -> str:
    of = "" if summary["labelled"] == summary["inputs"] else f" of the {summary['labelled']} whose label is known"
    share = "" if summary["accuracy"] is None else f" {floor_percent(summary['accuracy'])} %{of} answered correctly,"
    inputs = "1 input" if summary["inputs"] == 1 else f"{summary['inputs']} inputs"
    return f"{inputs}:{share} {summary['abstained']} abstained. Answers: {summary['tsv']}"
