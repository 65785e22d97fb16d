"""What `make docs` does beside mkdocs: it runs the tutorials, and brings in the files outside docs/ that pages link to.

A tutorial is a page under docs/tutorials. Its Python blocks are executed in their order, in a folder of their own; what a
block prints stands below it, and a picture that a block saves can be shown by its name. An error ends the build.
"""

import contextlib
import io
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages that are files outside docs/.
OUTSIDE = {"changes.md": ROOT / "CHANGELOG.md", "board.md": ROOT / "leaderboard" / "README.md"}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s:]+)(#[^)\s]*)?\)")
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)/\s]+\.(?:svg|png))\)")


@dataclass(frozen=True)
class Executed:
    """A tutorial after it was run: its text with what it printed, and the pictures it saved."""

    text: str
    pictures: dict[str, bytes]


def run_page(text: str, name: str) -> Executed:
    """Run the Python blocks of a page one after the other, in a new folder."""
    names: dict[str, Any] = {"__name__": f"docs_{Path(name).stem}"}
    parts, end = [], 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start(1))
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * line + found.group(1), name, "exec"), names)
            parts.append(text[end : found.end()])
            end = found.end()
            if printed.getvalue().strip():
                parts.append(f"\n\n```{{ .text .printed }}\n{printed.getvalue().rstrip()}\n```\n")
        pictures = {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.suffix in (".svg", ".png")}
    return Executed("".join(parts) + text[end:], pictures)


def shown_pictures(text: str) -> list[str]:
    """The names of the pictures beside the page that it shows."""
    return PICTURE.findall(text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Some pages are made here, and pages that the navigation does not name are added to it."""
    for name, path in OUTSIDE.items():
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference/options.md", content=options_page()))
    named = set(_leaves(config.nav))
    others = [file.src_uri for file in files.documentation_pages() if file.src_uri not in named]
    (guides,) = (section["How-to"] for section in config.nav if "How-to" in section)
    guides.extend(others)
    return files


def _leaves(nav: Any) -> list[str]:
    """The pages that a navigation names."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in _leaves(part)]


def options_page() -> str:
    """Every command with its options, as `ucan COMMAND --help` has them."""
    from typer.main import get_command

    from ucan.cli import app

    lines = ["# Options of the commands", "", "What `ucan COMMAND --help` says.", ""]
    lines += _command("ucan", get_command(app))
    return "\n".join(lines)


def _command(name: str, command: Any) -> list[str]:
    """One command and those below it."""
    subcommands = getattr(command, "commands", {})
    shown = [part for part in command.params if not getattr(part, "hidden", False) and part.name != "help"]
    lines = [f"## {name}", "", _plain(command.help or ""), ""]
    if shown and not subcommands:
        lines += ["| | meaning | default |", "|---|---|---|", *map(_option, shown), ""]
    for word, below in subcommands.items():
        lines += [] if below.hidden else _command(f"{name} {word}", below)
    return lines


def _option(option: Any) -> str:
    words = (
        " ".join(f"`{word}`" for word in option.opts)
        if option.param_type_name == "option"
        else f"`{option.name.upper()}`"
    )
    default = option.default if isinstance(option.default, str | int | float) and option.default is not False else ""
    return f"| {words} | {_plain(getattr(option, 'help', '') or '')} | {default} |"


def _plain(text: str) -> str:
    """Help in one paragraph, with what a table or HTML would misread made safe."""
    return " ".join(text.replace("\b", " ").split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Run a tutorial; bring in what lies outside the pages."""
    source = page.file.src_uri
    if source.startswith("tutorials/"):
        try:
            done = run_page(markdown, source)
        except Exception as error:
            raise PluginError(f"{source}: a block failed: {type(error).__name__}: {error}") from error
        markdown = done.text
        for name in shown_pictures(markdown):
            if name not in done.pictures:
                raise PluginError(f"{source}: no block saves {name}")
            files.append(File.generated(config, f"tutorials/{name}", content=done.pictures[name]))
    return LINK.sub(lambda found: _brought_in(found, source, config, files), markdown)


def _brought_in(found: re.Match[str], source: str, config: MkDocsConfig, files: Files) -> str:
    """A link to a file of the project that is no page, turned to a copy of it in the site."""
    target, anchor = found.group(1), found.group(2) or ""
    docs = ROOT / "docs"
    here = OUTSIDE.get(source, docs / source).parent
    path = (here / target).resolve()
    up = "../" * source.count("/")
    if not path.is_file() or not path.is_relative_to(ROOT):
        return found.group(0)  # mkdocs says what is wrong with it, or a block makes it
    for name, outside in OUTSIDE.items():
        if path == outside:
            return f"]({up}{name}{anchor})"
    if path.is_relative_to(docs) and path.suffix != ".py":
        return f"]({up}{path.relative_to(docs).as_posix()}{anchor})"
    # Text under another name, so that a browser shows it and mkdocs does not take it for a page.
    name = f"files/{path.relative_to(ROOT).as_posix()}.txt"
    if files.get_file_from_path(name) is None:
        files.append(File.generated(config, name, content=path.read_bytes()))
    return f"]({up}{name})"
