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
# The options of `ucan ask` that are a question's own, and the settings that their values are.
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "regression": {
        "--radius": ("radii",),
        "--within": ("within",),
        "--percentile": ("p",),
        "--range": ("least", "most"),
    },
    "top-k": {"--top": ("k",)},
    "confidence": {"--confidence": ("level",)},
    "labels": {"--radius": ("radius",), "--rule": ("rule",)},
    "segmentation": {"--radius": ("radius",), "--rule": ("rule",)},
}
NEEDED = {"top-k": "--top", "confidence": "--confidence"}
MANY = "radii"  # the setting that takes any number of values
ENDLESS = {"least": "-inf", "most": "inf"}  # how an option spells that there is no such end


def question_named(name: str, settings: Mapping[str, Any]) -> Question:
    """The question of this name with these settings."""
    _check_name(name)
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


def settings_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A question's settings from the values of its options, of which a list is a tuple; one of another question is refused."""
    _check_name(name)
    takes = OPTIONS[name]
    unused = next((option for option in given if option not in takes), None)
    if unused is not None:
        raise InvalidInput(f"{unused} is not an option of {name}, which takes {', '.join(takes)}.")
    if name in NEEDED and NEEDED[name] not in given:
        raise InvalidInput(f"{name} needs {NEEDED[name]}.")
    settings: dict[str, Any] = {}
    for option, value in given.items():
        keys, values = takes[option], value if isinstance(value, tuple) else (value,)
        if keys == (MANY,):
            settings[MANY] = values
        elif len(values) == len(keys):
            settings |= dict(zip(keys, values, strict=True))
        elif len(keys) == 1:
            raise InvalidInput(f"{option} takes one number for {name}; without it every place has a radius of its own.")
        else:
            raise InvalidInput(f"{option} takes two numbers such as 0,1, got {len(values)}.")
    return settings


def options_of(name: str, settings: Mapping[str, Any]) -> list[str]:
    """The options that give a question these settings, as words of a command."""
    words: list[str] = []
    for option, keys in OPTIONS.get(name, {}).items():
        if keys == (MANY,):
            values = [_word(value) for value in settings.get(MANY, ())]
        elif any(settings.get(key) is not None for key in keys):
            values = [_word(settings.get(key, ENDLESS.get(key))) for key in keys]
        else:
            values = []
        words += [option, ",".join(values)] if values else []
    return words


def _word(value: Any) -> str:
    """A value as a command takes it, with all of its digits."""
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _check_name(name: str) -> None:
    if name not in QUESTIONS:
        raise InvalidInput(f"the question must be {one_of(QUESTIONS)}, got {name!r}.")


def name_of(question: Question) -> str:
    """The name of a question."""
    return question.what if isinstance(question, Decisions) else question.name
