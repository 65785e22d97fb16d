"""Questions by name, from plain settings and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ucan.choices import one_of
from ucan.errors import InvalidInput
from ucan.questions.confidence import Confidence
from ucan.questions.decisions import Decisions
from ucan.questions.question import Question
from ucan.questions.regression import Percentile
from ucan.questions.topk import TopK

# What the command line calls them, and what they are about.
QUESTIONS = {
    "regression": "where the percentile of each number stays, or how far it may move",
    "top-k": "up to which change the first k labels stay among the first k",
    "confidence": "up to which change the class keeps a smoothed probability",
    "labels": "which labels stay present or absent",
    "segmentation": "which pixels keep their class",
}


def question_named(name: str, settings: Mapping[str, Any]) -> Question:
    """The question of this name with these settings."""
    if name not in QUESTIONS:
        raise InvalidInput(f"the question must be {one_of(QUESTIONS)}, got {name!r}.")
    kinds: dict[str, Any] = {"regression": Percentile, "top-k": TopK, "confidence": Confidence}
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    try:
        if name in kinds:
            found: Question = kinds[name](**given)
            return found
        settled: dict[str, Any] = {**given, "what": name}
        return Decisions(**settled)
    except TypeError as error:
        raise InvalidInput(f"{name} does not take these settings: {', '.join(given)} ({error}).") from error


def name_of(question: Question) -> str:
    """The name of a question."""
    return question.what if isinstance(question, Decisions) else question.name
