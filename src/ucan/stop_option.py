"""What is given as ``stop``, read as a stopping rule: radii, a percentage, or a rule by its name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ucan.catalogue import STOPS, call, parsed
from ucan.choices import NORMS, norm_word
from ucan.errors import InvalidInput
from ucan.stopping import AtRadii, Stop, Within

# How the norm of a radius is written before it, as in linf:0.03.
NORM_NAMES = {f"l{norm_word(norm)}": norm for norm in NORMS}


def parse_stop(value: Any, package: str | None = None) -> Stop | None:
    """None, a radius, several radii, or a fraction written as text ("5%"), or a rule by its name.

    ``package`` is where a record says that the rule came from.
    """
    if value is None or isinstance(value, Stop):
        return value
    if isinstance(value, str):
        return _parse_text(value, package)
    try:
        if isinstance(value, bool):
            raise ValueError
        return _at_radii([value] if isinstance(value, int | float) else value)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            f'stop takes a radius, several radii of 0 or more, or a percentage such as "5%", got {value!r}.'
        ) from error


def package_of(stop: Stop | None) -> str | None:
    """The package that brought a rule; None for ours, and for one that was handed in as an object without a name."""
    name = None if stop is None else STOPS.name_of(type(stop))
    return None if name is None else STOPS.package(name)


def _parse_text(text: str, package: str | None = None) -> Stop:
    if text.strip()[:1].isalpha() and text.partition(":")[0].strip().lower() not in NORM_NAMES:  # a rule by its name
        name, parameters = parsed(text)
        if name not in STOPS.names() and package is None:
            raise InvalidInput(
                f"stop takes radii such as 0.5,1.0 or a percentage such as 5%, or the name of a rule "
                f"({', '.join(STOPS.names())}; packages add others in the group {STOPS.group}), got {text!r}."
            )
        made = call("stop", STOPS.load(name, package=package), parameters)
        if not isinstance(made, Stop):
            raise InvalidInput(f"[stop] {name!r} made a {type(made).__name__}, which is no ucan.stopping.Stop.")
        return made
    try:
        if text.strip().endswith("%"):
            fraction = float(text.strip()[:-1]) / 100
            if not 0 < fraction < 1:
                raise ValueError
            return Within(fraction)
        return _at_radii(text.split(","))
    except (KeyError, ValueError) as error:
        raise InvalidInput(
            f"stop takes radii such as 0.5,1.0 (in another norm linf:0.03) or a percentage such as 5%, got {text!r}."
        ) from error


def _at_radii(values: Iterable[Any]) -> AtRadii:
    named = [str(value).partition(":") if ":" in str(value) else ("", "", value) for value in values]
    radii = tuple(sorted(float(r) for norm, _, r in named if not norm))
    others = tuple(sorted((NORM_NAMES[norm.strip().lower()], float(r)) for norm, _, r in named if norm))
    sizes = [*radii, *(r for _, r in others)]
    if not sizes or any(not (math.isfinite(r) and r >= 0) for r in sizes):
        raise ValueError
    return AtRadii(radii, others)
