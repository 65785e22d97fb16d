"""Every parameter in the reference has a meaning: its docstring's, or the one that its name has everywhere.

A parameter that a docstring does not mention is added to it when the site is built, with the text of
docs/reference/parameters.md, or for a job the text of the command's option. tests/test_site.py fails where there is none.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import griffe

PAGES = Path(__file__).parent / "reference"
SHOWN = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
SECTION = re.compile(r"^## .*?(?:\(`(ucan[\w.]*)`\))?$", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
SETTING = re.compile(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", re.MULTILINE)
# Records of a command's settings: their fields are its options.
COMMANDS = {"CertifyJob": ("certify",), "AuditJob": ("audit",), "AskJob": ("ask", "certify")}
RENAMED = {"most": "max"}


@dataclass(frozen=True)
class Entry:
    """A function or class of the reference, and its parameters that no docstring mentions."""

    path: str  # where it is defined
    missing: tuple[str, ...]


def shown() -> list[str]:
    """The names on the pages of the reference."""
    return [name for page in sorted(PAGES.glob("*.md")) for name in SHOWN.findall(page.read_text(encoding="utf-8"))]


@cache
def meanings() -> list[tuple[str, dict[str, str]]]:
    """(package, name → meaning) of each section, the longest package first; the first section has none."""
    _, first, *parts = SECTION.split((PAGES / "parameters.md").read_text(encoding="utf-8"))
    sections = zip([first, *parts[1::2]], parts[::2], strict=True)
    return sorted(((package or "", dict(ROW.findall(text))) for package, text in sections), key=lambda s: -len(s[0]))


@cache
def options(command: str) -> dict[str, str]:
    """The help of a command's options and arguments, by the names of the job's fields."""
    from typer.main import get_command

    from ucan.cli import app

    found: Any = get_command(app)
    parts = found.commands[command].params
    return {part.opts[0].strip("-").replace("-", "_").lower(): " ".join((part.help or "").split()) for part in parts}


@cache
def settings() -> dict[str, str]:
    """The settings of a training run, as docs/training.md explains them, without its links."""
    page = (PAGES.parent / "training.md").read_text(encoding="utf-8")
    return {name: re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text) for name, text in SETTING.findall(page)}


def meaning(path: str, name: str) -> str | None:
    """What a parameter without words of its own means."""
    record = path.rpartition(".")[2]
    for command in COMMANDS.get(record, ()):
        if RENAMED.get(name, name) in options(command):
            return options(command)[RENAMED.get(name, name)]
    if record == "TrainSettings":
        return settings()[name]
    said = (section[name] for package, section in meanings() if path.startswith(package) and name in section)
    return next(said, None)


def entries(name: str) -> Iterator[Entry]:
    """A name of the reference and, for a class, its public methods; nothing if its package is not installed."""
    try:
        thing = _found(name)
    except ImportError:
        return
    path = f"{thing.__module__}.{thing.__qualname__}"
    own = inspect.getdoc(thing) or ""
    yield Entry(path, _missing(thing, own))
    for word, member in vars(thing).items() if inspect.isclass(thing) else ():
        function = getattr(member, "__func__", member)
        if not word.startswith("_") and inspect.isfunction(function):
            yield Entry(f"{path}.{word}", _missing(function, f"{own} {inspect.getdoc(function) or ''}"))


def _found(name: str) -> Any:
    """The object of this name."""
    thing: Any = importlib.import_module("ucan")
    for part in name.split(".")[1:]:
        if inspect.ismodule(thing) and not hasattr(thing, part):
            thing = importlib.import_module(f"{thing.__name__}.{part}")
        else:
            thing = getattr(thing, part)
    return thing


def _missing(thing: Any, text: str) -> tuple[str, ...]:
    if inspect.isclass(thing) and not str(getattr(thing.__init__, "__module__", "")).startswith("ucan"):
        return ()  # nothing of its own
    try:
        taken = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return ()
    return tuple(name for name in taken if name not in ("self", "cls") and not re.search(rf"\b{name}\b", text))


class Meanings(griffe.Extension):
    """Adds the meanings to the docstrings that mkdocstrings shows."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Every entry of the reference in this package."""
        for name in shown() if pkg.name == "ucan" else ():
            for entry in entries(name):
                self._add(pkg, entry)

    def _add(self, pkg: griffe.Module, entry: Entry) -> None:
        found = pkg[entry.path.removeprefix("ucan.")]
        names = entry.missing
        if isinstance(found, griffe.Function):  # as it is written: ART replaces methods by others of (*args, **kwargs)
            names = tuple(name for name in names if name in found.parameters)
        said = [(name, meaning(entry.path, name)) for name in names]
        lines = [f"    {name}: {text}" for name, text in said if text is not None]
        docstring = found.docstring if lines else None
        if docstring is None:
            return
        head, heading, rest = docstring.value.partition("\nArgs:\n")
        docstring.value = "\n".join([head.rstrip("\n"), "", "Args:", *lines, *([rest] if heading else [])])
