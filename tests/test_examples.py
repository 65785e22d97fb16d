"""The commands of README and docs: each is one that the program understands; and all examples run in a bare installation."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import typer

from examples import PAGES, ROOT, commands, named, run_blocks, shortened
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


PAGE = """
```python
a = 1
```

```py
import not_there

b, c = 2, open("made/by-b.txt", "w")
```

```python
print(b + 1)
```

```python
print(open("made/by-b.txt").read())
```

```python
b = a + 1
print(1 / (b - 2))
```
"""


@pytest.mark.parametrize("text, wrong", [(PAGE, [7, 13, 17, 21]), (PAGE + "pip install not-there", [21])])
def test_a_block_is_left_only_for_want_of_a_package(text: str, wrong: list[int], tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    found, files = run_blocks(tmp_path / "page.md", tmp_path)
    assert [line.partition(":")[0] for line in found] == [f"page.md, line {number}" for number in wrong]
    assert files == ({"made/by-b.txt"} if wrong == [21] else set())


TRAINED = ["training", "tutorials/train", "tutorials/paper", "generators", "registry", "neighbours"]


@pytest.mark.slow
@pytest.mark.parametrize("extra, pages", [("", []), ("[train]", TRAINED)], ids=["bare", "train"])
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
    program = [python, ROOT / "tests" / "examples.py", tmp_path / "work", *pages]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(program, capture_output=True, text=True, env=bare)
    assert done.returncode == 0, done.stdout
