"""A run of a question opened for exploring: its stored answers, checked with fresh samples and attacked; with their panels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from markupsafe import Markup

from ucan.app import panels
from ucan.arithmetic import changes_in_words
from ucan.audit import Budget
from ucan.audit.answers import Try, attack_answer
from ucan.certificate import SCOPES, Abstention
from ucan.data import Labelled
from ucan.errors import InvalidInput, UcanError
from ucan.laws import norm_name
from ucan.questions.catalogue import QUESTIONS
from ucan.questions.confidence import Confident
from ucan.questions.decisions import Decided
from ucan.questions.record import Answer
from ucan.questions.regression import Interval
from ucan.questions.smoothed import Smoothed
from ucan.questions.topk import Among
from ucan.report.answer_charts import (
    boxes,
    confidence_chart,
    first_labels,
    interval_curve,
    labels,
    masks,
    outputs,
    target_of,
)
from ucan.report.markup import Macros
from ucan.report.pictures import as_picture, is_picture
from ucan.results.answers import AnswerStore
from ucan.results.formats import class_name
from ucan.results.metrics import NO_LABEL
from ucan.rounding import floor_digits, floor_plain, floor_sure
from ucan.runs.asked import asked_in, pipeline_again
from ucan.runs.config import AskConfig
from ucan.runs.rebuild import inputs_of
from ucan.verify import Verdict
from ucan.verify_answer import verify_answer

_ANSWERS = Macros("ucan.app", "answers.html")
_CHARTS = Macros("ucan.report", "answer_charts.html")
# What a scope means for the answer to a question, for readers who do not know the term.
PLAINLY = {
    "pipeline": "The noise is the same for every input, or is drawn in a way that the proof covers, so the claim is about the "
    "model as you would deploy it: it holds for any change of the input inside the region.",
    "frozen": "The noise was computed from this input, and the claim is about a model that keeps using exactly this noise. A "
    "deployed pipeline computes new noise from each input it is given: for that nothing is guaranteed here.",
}
# Numbers of an input that is no picture, and fresh samples of a check at most.
NUMBERS, FRESH = 40, 10_000


@dataclass(frozen=True, eq=False)
class AnswersSession:
    """The answers of a run of a question, its data, and its model under noise where they are here. ``notes`` say what is not.

    Answers are read from the folder one by one, so that a run under way shows what it has by now.
    """

    folder: Path
    config: AskConfig
    numbers: tuple[int, ...]
    dataset: Labelled | None
    g: Smoothed | None
    notes: tuple[str, ...]

    @classmethod
    def open(
        cls,
        run: str | Path,
        model: str | None = None,
        source: str | None = None,
        weights: Path | None = None,
        device: torch.device | None = None,
        trust: bool = False,
    ) -> AnswersSession:
        """The run in this folder, which ``ucan ask`` made. Without its data or its model answers can still be looked at."""
        folder = Path(run)
        config, base = asked_in(folder)
        with AnswerStore.open(folder) as store:
            numbers = tuple(sorted(store.done()))
            if not numbers:
                raise InvalidInput(f"{run} has no answers yet: let `ucan ask` finish at least one input first.")
            # An answer tells Σ, an abstention only the law: prefer the former.
            told = (one for _, one in store.answers() if isinstance(one, Answer))
            first, notes = next(told, store.answer(numbers[0])), list[str]()
        dataset, g = None, None
        try:
            dataset = inputs_of(config, source, base, trust)
        except UcanError as error:
            if source is not None:
                raise
            notes.append(f"The run's data are not here ({error}) Its answers cannot be checked or attacked.")
        if dataset is not None:
            try:
                x = dataset[numbers[0]][0][None].to(device or "cpu")
                g = pipeline_again(config, first, x, model, weights, trust, base)
            except UcanError as error:
                if model is not None:
                    raise
                notes.append(f"The run's model is not here ({error}) Its answers cannot be checked or attacked.")
        return cls(folder, config, numbers, dataset, g, tuple(notes))

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.folder.resolve().name

    def answer(self, number: int) -> Answer | Abstention:
        """The stored answer about one input."""
        with AnswerStore.open(self.folder) as store:
            return store.answer(number)

    def title(self, number: int) -> str:
        """What an input is called."""
        return f"input {number}" if self.dataset is None or self.dataset.names is None else self.dataset.name_of(number)

    def number_of(self, chosen: int | str | None) -> int:
        """The input of this number or of this name, among those that have an answer."""
        found = [i for i in self.numbers if chosen == i or str(chosen).strip() in (str(i), self.title(i))]
        if not found:
            raise InvalidInput(f"{self.name} has no answer about {str(chosen)[:60]!r}: choose an input of the list.")
        return found[0]

    def class_name(self, number: int) -> str:
        """What the data set calls a class, or else its number."""
        return class_name(number, () if self.dataset is None else self.dataset.classes or ())

    def check(self, number: int) -> Verdict:
        """Whether the answer stands against the model, by fresh samples at α = 0.001."""
        x, answer, g = self._claim(number)
        return verify_answer(answer, g, x, n=min(answer.evidence.n, FRESH), replay=False)

    def attack(self, number: int, multiple: float, budget: Budget | None = None) -> Try:
        """Search for a point within this multiple of the region where the claim fails."""
        x, answer, g = self._claim(number)
        return attack_answer(g, x, answer, multiple, budget, number)[0]

    def _claim(self, number: int) -> tuple[torch.Tensor, Answer, Smoothed]:
        answer = self.answer(number)
        if isinstance(answer, Abstention):
            raise InvalidInput("it abstained: nothing is claimed, so there is nothing to check or to attack.")
        if self.g is None or self.dataset is None:
            raise InvalidInput(self.notes[-1])
        return self.dataset[number][0][None], answer, self.g


# --- the panels ---


def header(session: AnswersSession) -> Markup:
    """The question, and the facts about the run."""
    config = session.config
    facts = (
        ("run", session.name),
        ("question", config.question or ""),
        ("noise", f"{config.noise.described} · {config.law.name}, λ = {config.law.scale:g}"),
        ("answers", f"{len(session.numbers):,}"),
    )
    return _ANSWERS.header(facts, QUESTIONS.get(config.question or "", ""), config.claim.scope, session.notes)


def input_panel(session: AnswersSession, number: int) -> Markup:
    """One input as a picture, or as its numbers."""
    data = session.dataset
    if data is None:
        return panels.hint("The run's data are not here.")
    x, label = data[number]
    shown = "" if label == NO_LABEL or data.targets is not None else f"label {session.class_name(label)}"
    picture = as_picture(x) if is_picture(tuple(x.shape)) else None
    values = [] if picture else [f"{v:.4g}" for v in x.flatten()[:NUMBERS].tolist()]
    return _ANSWERS.input(session.title(number), shown, picture, values, max(0, x.numel() - NUMBERS))


def answer_panel(session: AnswersSession, number: int) -> Markup:
    """The claim, its picture, its size and its scope; or why nothing is claimed."""
    answer = session.answer(number)
    settings = _ANSWERS.settings(answer.evidence)
    if isinstance(answer, Abstention):
        return _ANSWERS.abstention(answer.reason) + settings
    card = _ANSWERS.card(
        claim=f"{answer.summary()[0].upper()}{answer.summary()[1:]}",
        norm=norm_name(answer.radius_norm),
        radius=floor_digits(answer.radius, 4),
        sure=floor_sure(answer.evidence.alpha),
        pictures=_pictures(session, number, answer),
        scope=answer.scope,
        whose=SCOPES[answer.scope],
        changes=changes_in_words(answer.evidence.arithmetic),
        plainly=PLAINLY[answer.scope],
    )
    return card + settings


def _pictures(session: AnswersSession, number: int, answer: Answer) -> Markup:
    """What belongs to the kind of claim."""
    data, found = session.dataset, Markup("")
    if isinstance(answer, Interval):
        curve = interval_curve(answer, target_of(number, answer, data))
        found += _CHARTS.curve(curve) if curve else ""
        drawn = boxes([(number, answer)], data)
        found += _CHARTS.boxes(drawn) if drawn else ""
        return found + _ANSWERS.outputs(outputs(answer), floor_plain(answer.radii[-1]), answer.within is not None)
    if isinstance(answer, Among):
        return _ANSWERS.first(first_labels(answer, session.class_name), answer.k)
    if isinstance(answer, Confident):
        return _CHARTS.confidence(confidence_chart([answer]))
    if isinstance(answer, Decided):
        for one in masks([(number, answer)], data):
            found += _CHARTS.mask(one)
        rows = labels([(number, answer)], data)
        return found + (_ANSWERS.labels(rows[0][1]) if rows else "")
    return found


def verdict_panel(verdict: Verdict) -> Markup:
    """What was compared and tested, line by line."""
    return _ANSWERS.verdict(verdict.stands, verdict.checks)


def attack_panel(found: Try) -> Markup:
    """Whether the attack broke the claim, and whether it was allowed to."""
    inside = found.factor <= 1
    size = "no point to test" if math.isnan(found.size) else f"{floor_digits(found.size, 3)} of the region's size"
    frozen, outside = found.mode == "frozen", f"{found.outside:,}" if found.outside else ""
    return _ANSWERS.attack(found.broken, inside, f"{found.factor:g}", size, f"{found.votes:,}", frozen, outside)
