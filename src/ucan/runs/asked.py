"""A run of a question from its folder: its data, and its model under its noise, made again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from ucan.arithmetic import step_of
from ucan.certificate import Abstention
from ucan.config import CONFIG, read_config
from ucan.data import Labelled
from ucan.errors import InvalidInput
from ucan.generators import Context, Fixed, Generator, kind_of, rebuilt
from ucan.places import base_of, found
from ucan.questions.catalogue import question_named
from ucan.questions.record import Answer
from ucan.questions.smoothed import Smoothed
from ucan.runs.ask import begun, smoothed_for
from ucan.runs.build import generator_of
from ucan.runs.config import AskConfig
from ucan.runs.jobs import Pipeline
from ucan.runs.rebuild import inputs_of, located
from ucan.training import is_trained_run


def is_ask_run(folder: str | Path) -> bool:
    """Whether a folder holds a run of a question."""
    path = Path(folder) / CONFIG
    return path.is_file() and read_config(path).get("kind") == "ask"


def asked_in(folder: str | Path) -> tuple[AskConfig, Path | None]:
    """The config of the run of a question in a folder, and the directory that its paths are relative to, if known."""
    config = begun(Path(folder))
    if config is None:
        raise InvalidInput(f"{folder} is not the folder of a `ucan ask` run.")
    return config, base_of(Path(folder), config.started_in)


def pipeline_again(
    config: AskConfig,
    answer: Answer | Abstention,
    first: torch.Tensor,
    model: str | None = None,
    weights: str | Path | None = None,
    trust: bool = False,
    base: Path | None = None,
) -> Smoothed:
    """The model under its noise behind a run's answers, from its config and the evidence; for inputs like ``first``.

    ``model`` and ``weights`` are their paths, if they have moved; another model has its own weights. ``base`` is the
    directory that the run was started in.
    """
    known, evidence = config.model, answer.evidence
    model, weights = located(known, model, weights, base, trust)
    trained = is_trained_run(model)
    asked = Pipeline(
        model=model,
        weights=weights,
        law=None if trained else evidence.law,
        scale=evidence.law.scale if trained else None,
        classes=known.classes,
        model_id=known.model_id,
        precision=config.sampling.precision,
        trust=trust,
        normalise=known.normalise,
    )
    question = question_named(config.question or "", config.settings)
    g = smoothed_for(asked, question, first, step_of(evidence.arithmetic))
    if trained and not getattr(kind_of(evidence.noise), "on_model", False):
        return g  # under the noise that it was trained with
    return g.again(generator=_noise_again(config, answer, first, g, base))


def _noise_again(
    config: AskConfig, answer: Answer | Abstention, first: torch.Tensor, g: Smoothed, base: Path | None
) -> Generator:
    """The noise of an answer: the first of what its evidence and its run tell that is what the evidence records."""
    noise = answer.evidence.noise
    for made in _candidates(config, answer, first, g, base):
        if not noise.differences(made.record()):
            return made
    raise InvalidInput(
        f"{noise.line} noise was made in Python, or its file has changed: it cannot be made again from the run's folder."
    )


def _candidates(
    config: AskConfig, answer: Answer | Abstention, first: torch.Tensor, g: Smoothed, base: Path | None
) -> Iterator[Generator]:
    """The noise by its registered name and parameters; as it was given; and with the Σ of an answer's region."""
    evidence, event = answer.evidence, tuple(first.shape[1:])
    named = rebuilt(evidence.noise, Context(event, evidence.law, model=g.f.model))
    if named is not None:
        yield named
    given = config.noise.given
    if given is not None:
        with suppress(InvalidInput):  # a file that is no longer there
            yield generator_of(found(given, base), event, evidence.law, g.f.model)
    if isinstance(answer, Answer):
        yield Fixed(answer.region.scale)


def targets_of(config: AskConfig, base: Path | None = None, trust: bool = False) -> Labelled | None:
    """The data of a run, if they are still there; ``base`` is the directory that it was started in."""
    try:
        return inputs_of(config, None, base, trust)
    except (InvalidInput, OSError):
        return None
