"""The commands of README and docs: each is one that the program understands; and all examples run in a bare installation."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest
import typer

from examples import PAGES, ROOT, commands, named, shortened
from ucan.cli import app

COMMANDS = [(named(page), line) for page in PAGES for line in commands(page) if "…" not in line]


@pytest.mark.parametrize("page, line", COMMANDS, ids=[f"{page}: {line}" for page, line in COMMANDS])
def test_a_command_of_the_pages_is_understood(page: str, line: str) -> None:
    """Its name, its options and their values; nothing is run."""
    name, *words = shortened(line.partition(" > ")[0])[1:]
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, words)


def test_the_pages_have_commands() -> None:
    assert {page for page, _ in COMMANDS} >= {"commands", "tables", "training", "audit", "scale"} and len(COMMANDS) > 40


@pytest.mark.slow
@pytest.mark.parametrize("extra, pages", [("", []), ("[train]", ["training"])], ids=["bare", "train"])
def test_every_example_runs_after_an_installation_without_the_development_extras(
    tmp_path: Path, extra: str, pages: list[str]
) -> None:
    """In a virtual environment of its own: the package as a user installs it, and nothing else."""
    place = tmp_path / "venv"
    venv.create(place, with_pip=True)
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", f"{ROOT}{extra}"]
    installed = subprocess.run(install, capture_output=True, text=True, cwd=tmp_path)
    if installed.returncode:
        pytest.skip(f"pip cannot install here: {installed.stderr[-200:]}")
    done = subprocess.run(
        [python, ROOT / "tests" / "examples.py", tmp_path / "work", *pages], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
