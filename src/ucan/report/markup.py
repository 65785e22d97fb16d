"""Pages from templates: the one place that says which text is markup. All other text is escaped where it is put in."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ucan.report.paint import LIGHT


@cache
def templates(package: str) -> Environment:
    """The templates of a package (its folder ``templates``), with automatic escaping."""
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    compact = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    environment.policies["json.dumps_kwargs"] = compact
    environment.filters.update(unbroken=unbroken, strong=strong)
    environment.globals["colours"] = len(LIGHT)
    return environment


def render(template: str, **values: Any) -> Markup:
    """A template of the report, filled in."""
    return Markup(templates("ucan.report").get_template(template).render(values))


class Macros:
    """The macros of a template as functions that return markup."""

    def __init__(self, package: str, template: str) -> None:
        self._module = templates(package).get_template(template).module

    def __getattr__(self, name: str) -> Callable[..., Markup]:
        macro: Callable[..., Markup] = getattr(self._module, name)
        return macro


def unbroken(words: str) -> str:
    """The text with a number and its % on one line."""
    return words.replace(" %", "\u00a0%")


def strong(words: str) -> Markup:
    """The text with **this** in bold."""
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(words))))


def slug(name: str) -> str:
    """A name for a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
