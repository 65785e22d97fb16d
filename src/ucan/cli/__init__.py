"""The command line: a thin layer that parses arguments and calls the library."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

import typer
from typer.core import TyperGroup

from ucan.cli.ask import ask
from ucan.cli.audit import audit
from ucan.cli.bench import bench
from ucan.cli.certify import certify
from ucan.cli.compare import compare
from ucan.cli.demo import demo
from ucan.cli.exchange import export_run, import_results
from ucan.cli.explore import explore
from ucan.cli.interrupts import INTERRUPTS
from ucan.cli.leaderboard import leaderboard
from ucan.cli.predict import predict
from ucan.cli.recertify import recertify
from ucan.cli.report import report
from ucan.cli.serve import serve
from ucan.cli.train import train
from ucan.cli.tune import tune
from ucan.cli.verify import verify
from ucan.cli.words import printable
from ucan.errors import InvalidInput, UcanError
from ucan.version import __version__


class OneLine(TyperGroup):
    """The commands; wrong usage is an error of ours, in one line, like every other."""

    def make_context(self, *words: Any, **more: Any) -> Any:
        """Parse the options before the command."""
        with _usage():
            return super().make_context(*words, **more)

    def invoke(self, ctx: Any) -> Any:
        """Parse the rest, and run the command."""
        with _usage():
            return super().invoke(ctx)


@contextmanager
def _usage() -> Iterator[None]:
    """Turn a usage error into an InvalidInput. It is recognised by what it has, since some versions of Typer bring Click."""
    try:
        yield
    except Exception as error:
        context = getattr(error, "ctx", None)
        if getattr(error, "exit_code", None) != 2 or context is None or "Help" in type(error).__name__:
            raise
        said = " ".join(error.format_message().split()).replace(": Value error, ", ": ")  # type: ignore[attr-defined]
        said = said.rstrip(".") + _meant(getattr(error, "option_name", None), context)
        end = "" if said.endswith("?") else "."
        raise InvalidInput(f"{said}{end} See `{context.command_path} --help`.") from error


def _meant(tried: str | None, context: Any) -> str:
    """For an unknown option with one dash too few: the one that was meant, as the end of the message."""
    known = {name for parameter in context.command.params for name in parameter.opts}
    return f", but there is -{tried}" if f"-{tried}" in known else ""


app = typer.Typer(
    name="ucan",
    cls=OneLine,
    help="Certified robustness by randomized smoothing, with noise of any law and any shape.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    demo,
    train,
    tune,
    certify,
    ask,
    recertify,
    predict,
    verify,
    audit,
    compare,
    report,
    explore,
    serve,
    bench,
):
    app.command()(command)
app.command("export")(export_run)
app.command("import")(import_results)
app.add_typer(leaderboard, name="leaderboard")


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Options that every command shares."""
    if version:
        typer.echo(f"ucan {__version__}")
        raise typer.Exit()


def main() -> None:
    """Run a command. Exit codes: 0 success, 1 a claim does not hold, 2 wrong usage or input, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without the character λ shows "?" instead
    # PyTorch's idle OpenMP threads sleep instead of spinning on cores that ONNX Runtime needs; read when PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with INTERRUPTS.heard():
            app(prog_name="ucan")
    except UcanError as error:
        print(f"ucan: {printable(str(error), kept=chr(10))}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full or missing disk, not a bug
        print(f"ucan: {printable(str(error))}.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        INTERRUPTS.over()
        print("ucan: interrupted.", file=sys.stderr)
        sys.exit(130)
    except SystemExit as leaving:
        if leaving.code == 130:  # Ctrl-C inside a command, which has printed its own message
            INTERRUPTS.over()
            print("ucan: interrupted.", file=sys.stderr)
        raise
