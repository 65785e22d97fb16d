"""Help, version, completion and everything refused while parsing answer without PyTorch, NumPy or SciPy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ucan

COMMANDS = (
    "demo",
    "train",
    "certify",
    "predict",
    "verify",
    "audit",
    "compare",
    "report",
    "explore",
    "bench",
    "export",
    "leaderboard",
)
# Command line → exit code, and what is said.
CASES = {
    "": (2, "Usage"),
    "--help": (0, "certify"),
    "--version": (0, "ucan 0"),
    "--show-completion bash": (0, "_UCAN_COMPLETE"),
    **{f"{command} --help": (0, f"ucan {command}") for command in (*COMMANDS, "import")},
    "certfy": (2, "certify"),
    "certify --nosuch 1": (2, "No such option"),
    "certify --model m": (2, "Missing option"),
    "certify --model m --data d --law gausian": (2, "gaussian"),
    "certify --model m --data d --n many": (2, "Invalid value for '--n'"),
    "compare run --at volume": (2, "'--at': 'volume' is not one of 'radius', 'sigma', 'alm'. See"),
    "verison": (2, "Did you mean 'verify'? See"),
    "certify --model m --data d --skip 0": (2, "Invalid value for '--skip'"),
    "verify": (2, "Missing argument"),
    "audit run --mode dead": (2, "live"),
    "train x --for linfinity": (2, "linf"),
    "compare a --at size": (2, "alm"),
    "export run": (2, "Missing option"),
}
# What is completed: words typed so far → one of the answers.
COMPLETED = {"ucan ce": "certify", "ucan certify --alp": "--alpha", "ucan certify --law ga": "gaussian"}
PROGRAM = """
import contextlib, io, json, os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "numpy", "scipy"):
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Watch())
from ucan.cli import main

found = []
for line, completed in json.load(sys.stdin):
    said = io.StringIO()
    sys.argv = ["ucan"] if completed else ["ucan", *line.split()]
    if completed:
        os.environ.update(_UCAN_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split()) - 1))
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
            code = 0
        except SystemExit as leaving:
            code = leaving.code or 0
        except AssertionError as error:
            code = str(error)
    found.append((code, said.getvalue()))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[int | str, str]]:
    """The exit code and the words of each case, all asked of one process without PyTorch."""
    lines = [(line, False) for line in CASES] + [(line, True) for line in COMPLETED]
    path = os.pathsep.join([str(Path(ucan.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "TERM": "dumb", "COLUMNS": "200", "SHELL": "/bin/bash"}
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"  # the shell is named, not looked for
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {line: tuple(found) for (line, _), found in zip(lines, json.loads(done.stdout), strict=True)}


@pytest.mark.parametrize("line", CASES)
def test_words_are_answered_without_pytorch(answers, line):
    code, said = answers[line]
    assert code == CASES[line][0] and CASES[line][1] in said, (code, said)


@pytest.mark.parametrize("line", COMPLETED)
def test_words_are_completed_without_pytorch(answers, line):
    code, said = answers[line]
    assert code == 0 and COMPLETED[line] in said.split(), (code, said)


def test_the_watch_sees_an_import():
    path = str(Path(ucan.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([["bench --n 1000", False]]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    assert "was imported" in json.loads(done.stdout)[0][0]
