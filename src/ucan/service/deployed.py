"""The classifier that a service answers with: a run's, rebuilt from its folder, and refused if it is another one now."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ucan.arithmetic import arithmetic_of
from ucan.choices import norm_to_json
from ucan.data import Labelled
from ucan.errors import InvalidInput, UcanError
from ucan.evidence import Evidence
from ucan.fingerprint import weights_hash
from ucan.plan import CertifyPlan
from ucan.questions.catalogue import name_of, question_named
from ucan.questions.looks import question_stop
from ucan.questions.question import Question
from ucan.questions.record import Answer
from ucan.questions.regression import Percentile
from ucan.questions.smoothed import Smoothed
from ucan.results.answers import AnswerStore
from ucan.runs.asked import asked_in, is_ask_run, pipeline_again
from ucan.runs.backend import settle_backend, settle_one
from ucan.runs.config import DataRef
from ucan.runs.read import Run
from ucan.runs.rebuild import data_of, pipeline_of, refuse_other_model, shape_of, smoothed_as_trained, trained_on
from ucan.runs.router import is_router
from ucan.service.inputs import Form
from ucan.smoothed import SmoothedClassifier
from ucan.training import is_trained_run, load_run

NORMS = (1, 2, math.inf)


@dataclass(frozen=True, eq=False)
class Deployed:
    """A smoothed classifier, the inputs that it takes, and the settings that its run was certified with.

    ``remembers``: its run answered through a registry. ``question``: its run asked another question than one class, and so
    does every request.
    """

    name: str
    g: Smoothed
    form: Form
    plan: CertifyPlan
    norms: tuple[float, ...]
    class_names: tuple[str, ...]
    remembers: str | None
    question: Question | None = None

    @property
    def classifier(self) -> SmoothedClassifier:
        """The classifier of a run about one class."""
        if not isinstance(self.g, SmoothedClassifier) or self.question is not None:
            raise InvalidInput(f"{self.name} asks another question than one class: give a run of `ucan certify`.")
        return self.g

    @property
    def algorithm(self) -> Any:
        """What begins and ends an input: the classifier's own two algorithms, or the question."""
        return self.g if self.question is None else self.g.enquirer(self.question)

    @classmethod
    def open(
        cls,
        run: str | Path,
        model: str | None = None,
        weights: str | Path | None = None,
        source: str | None = None,
        device: torch.device | None = None,
        trust: bool = False,
    ) -> Deployed:
        """The run in this folder: one that ``ucan certify`` made, ``ucan train`` or ``ucan ask``."""
        run, device = Path(run), device or torch.device("cpu")
        if not run.is_dir():
            raise InvalidInput(
                f"there is no folder {run}: give that of a `ucan certify`, `ucan train` or `ucan ask` run."
            )
        if is_ask_run(run):
            return _asked(run, model, weights, source, device, trust)
        if is_trained_run(run):
            refuse_other_model(run, model, weights)
            return _trained(run, source, device, trust)
        return _certified(run, model, weights, source, device, trust)

    def about(self) -> dict[str, Any]:
        """What a client may want to know, as plain JSON values."""
        plan = self.plan
        return {
            "name": self.name,
            "shape": list(self.form.shape),
            "classes": None if isinstance(self.question, Percentile) else self.g.f.num_classes,
            "question": None if self.question is None else told_of(self.question),
            "class_names": list(self.class_names) or None,
            "norms": [norm_to_json(norm) for norm in self.norms],
            "law": repr(self.g.law),
            "noise": self.g.M.describe(),
            "arithmetic": arithmetic_of(self.g.grid),
            "defaults": {
                "n": plan.n,
                "alpha": plan.alpha,
                "norm": norm_to_json(plan.norm),
                "stop": plan.rule,
            },
        }


def told_of(question: Question) -> dict[str, Any]:
    """A question's name and settings as plain JSON values."""
    settings = {name: value for name, value in question.settings().items() if name != "what"}
    return {"name": name_of(question), **settings}


def _asked(
    run: Path, model: str | None, weights: str | Path | None, source: str | None, device: torch.device, trust: bool
) -> Deployed:
    config, base = asked_in(run)
    question = question_named(config.question or "", config.settings)
    with AnswerStore.open(run) as store:  # an answer tells Σ and the shape of inputs, an abstention only the law
        first = next((answer for _, answer in store.answers() if isinstance(answer, Answer)), None)
    if first is None:
        raise InvalidInput(f"{run} has no answers yet: let `ucan ask` find at least one that is no abstention first.")
    shape, dataset = tuple(first.region.shape), _data(config.data, source, base, trust)
    form = Form(shape, _dtype(dataset), config.data.size)
    example = torch.zeros(1, *shape, dtype=form.dtype, device=device)
    g = pipeline_again(config, first, example, model, weights, trust, base)
    _check_same(run, g, first.evidence, config.model.weights_hash)
    plan = replace(config.sampling.plan(config.claim.norm), precision=None, family=1, block=first.evidence.block)
    plan = replace(plan, stop=question_stop(config.sampling.stop), budget=first.budget)
    (x,) = g.check_inputs(example, plan.norm)
    backend = config.sampling.backend or "eager"
    settle_one(g, backend, plan, x, 1, backend)
    return Deployed(
        run.resolve().name, g, form, plan, _norms(g, example), tuple(config.model.class_names), None, question
    )


def _check_same(run: Path, g: Smoothed, evidence: Evidence, weights: str | None) -> None:
    """Refuse a model or a noise that is not the one that the run is about."""
    if weights not in (None, weights_hash(g.f.model)) or evidence.model not in (None, g.engine.identity()):
        raise InvalidInput(
            f"the model is not the one that {run} certified: certify it again, then serve that run. (If it has moved, give "
            f"--model and --weights.)"
        )
    noise, own = evidence.noise, g.M.record()
    if noise.state is not None and noise.kind == own.kind and noise.state != own.state:
        raise InvalidInput(f"the noise is not that which {run} certified: its weights or settings have changed.")


def _certified(
    run: Path, model: str | None, weights: str | Path | None, source: str | None, device: torch.device, trust: bool
) -> Deployed:
    opened = Run.open(run)
    config = opened.config
    if not opened.inputs:
        raise InvalidInput(f"{run} has no results yet: let `ucan certify` finish at least one input first.")
    if config.data.columns:
        raise InvalidInput(f"{run} is about a table; a service answers about arrays and pictures.")
    if is_router(config.model.spec):
        raise InvalidInput(f"{run} is of a router, which has several smoothed classifiers; a service has one.")
    first = opened.telling()
    dataset = _data(config.data, source, opened.base, trust)
    g = pipeline_of(config.model, first, device, model, weights, dataset, trust, opened.base)
    shape = shape_of(opened, first, dataset)
    _check_same(run, g, first.evidence, config.model.weights_hash)
    stop = config.sampling.rule
    plan = config.sampling.plan(opened.norm)
    plan = replace(plan, precision=None, family=1, budget=first.budget, stop=stop, block=first.evidence.block)
    form = Form(shape, _dtype(dataset), config.data.size)
    known = config.sampling.backend
    return _checked(
        opened.label, g, form, plan, tuple(config.model.class_names), config.claim.registry, known or "eager"
    )


def _trained(run: Path, source: str | None, device: torch.device, trust: bool) -> Deployed:
    trained = load_run(run, trust=trust)
    settings = trained.settings
    dataset = _data(trained_on(trained), source, trained.base, trust)
    g, plan = smoothed_as_trained(trained, dataset, device)
    names = trained.classes or (() if dataset is None else tuple(dataset.classes or ()))
    form = Form(tuple(trained.shape), _dtype(dataset), settings.size)
    return _checked(run.resolve().name, g, form, plan, names, None, "eager")


def _checked(
    name: str,
    g: SmoothedClassifier,
    form: Form,
    plan: CertifyPlan,
    class_names: tuple[str, ...],
    remembers: str | None,
    backend: str,
) -> Deployed:
    """Refuse, before the service opens, a classifier that cannot answer its inputs; find out which norms it supports."""
    example = torch.zeros(1, *form.shape, dtype=form.dtype)
    (x,) = g.check_inputs(example, plan.norm)
    settle_backend(g, backend, plan, x, 1, backend)
    return Deployed(name, g, form, g.counting(plan), _norms(g, example), class_names, remembers)


def _norms(g: Smoothed, example: torch.Tensor) -> tuple[float, ...]:
    """The norms that it can certify against."""
    found = []
    for norm in NORMS:
        with suppress(UcanError):
            g.check_inputs(example, norm)
            found.append(norm)
    return tuple(found)


def _data(data: DataRef, source: str | None, base: Path | None, trust: bool) -> Labelled | None:
    """The run's data, if they are here: they tell the step and the precision of inputs. A service needs no more of them."""
    try:
        return data_of(data, source, base, trust)
    except UcanError:
        if source is not None:
            raise
        return None


def _dtype(dataset: Labelled | None) -> torch.dtype:
    return torch.float32 if dataset is None or not len(dataset) else dataset[0][0].dtype
