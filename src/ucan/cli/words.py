"""The options that several commands share, and how they are parsed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ucan.catalogue import GENERATORS, LAWS, READERS, SCALES, check_noise, parsed
from ucan.choices import BACKENDS, NORMS, PRECISIONS, norm_word
from ucan.errors import InvalidInput
from ucan.models.names import NAMES as MODEL_NAMES

if TYPE_CHECKING:
    from ucan.plan import Seed


LOOPBACK = "127.0.0.1"  # only this machine
# Endings that say what a file is.
ENDINGS = {".html", ".htm", ".md", ".txt", ".pdf", ".json", ".csv", ".tsv", ".png", ".svg", ".tex", ".ipynb"}


# What the body of an enum puts into vars() becomes a member; a type checker takes an enum that is made by a call for no type.


class NormName(StrEnum):
    """The norms by their names on the command line."""

    vars().update({f"l{norm_word(norm)}": norm_word(norm) for norm in NORMS})


class BackendName(StrEnum):
    """The backends that run the classifier."""

    vars().update({name: name for name in BACKENDS})


class ArithmeticName(StrEnum):
    """The arithmetics in which inputs and noise are added."""

    grid = "grid"
    real = "real"


class PrecisionName(StrEnum):
    """The precisions of the classifier."""

    vars().update({name: name for name in PRECISIONS})


ModelOption = Annotated[
    str,
    typer.Option(
        help="The classifier: `package.module:name` (a module, a function that returns one, an estimator, or a "
        "function on batches), "
        "`package.module:make(depth=20)`, a `.pt2` file of torch.export, an `.onnx` file, TorchScript, an estimator's "
        "file "
        f"(`.skops`, `.json`, `.ubj`, `.txt`, `.cbm`; `.joblib` and `.pkl` with --trust), the folder of a trained run "
        f"(several with commas form an ensemble: `run1,run2`; also with `mirrored` and `consensus=K`), or with --weights "
        f"one of {', '.join(MODEL_NAMES)}."
    ),
]
WeightsOption = Annotated[
    Path | None, typer.Option(help="Weights for the model: `.safetensors`, or `.pt` with tensors only.")
]
DATA_HELP = (
    "The inputs: a folder of images (one subfolder per class, or flat), an `.npz` with `x` and `y`, an `.npy`, a table "
    "(`.csv`, "
    "`.parquet`, with --target), `package.module:dataset`, or one of "
    # Names with a dot are the endings of files that installed packages read.
    f"{', '.join(name for name in READERS.names() if not name.startswith('.'))}."
)
DataOption = Annotated[str, typer.Option("--data", help=DATA_HELP)]
MovedModelOption = Annotated[str | None, typer.Option(help="The classifier, if it has moved since the run.")]
MovedDataOption = Annotated[str | None, typer.Option("--data", help="The inputs, if they have moved since the run.")]
SizeOption = Annotated[int | None, typer.Option(help="Resize and crop the pictures of a folder to SIZE × SIZE pixels.")]
ChannelsOption = Annotated[
    int | None, typer.Option(help="Channels of the pictures of a folder: 3 (RGB, the default) or 1 (grey).")
]
UnitOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="The unit of the inputs of an array that are not pixels in [0, 1] (`dB`, `mm`): values are used "
        "unchanged, and --scale and radii are in that unit.",
    ),
]
TargetOption = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column of a table that holds the labels.")
]
IdOption = Annotated[
    str | None, typer.Option("--id", metavar="COLUMN", help="The column of a table with the names of its rows.")
]
TrainTableOption = Annotated[
    Path | None,
    typer.Option(
        "--train",
        metavar="TABLE",
        help="A table with the same columns and other rows. The noise is a quarter of each column's spread there. The "
        "rows to certify are never used for this.",
    ),
]
SigmaOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN=NUMBER,…|FILE.toml",
        help="The noise of a table's columns in their own units (`income=2000,age=1.5`), or a percentage of their "
        "spread.",
    ),
]
HoldOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN,…",
        help="Columns of a table that get no noise; certificates cover no change of them. Texts, true or false, "
        "one-hot groups "
        "and columns of 0 and 1 are always held.",
    ),
]
VaryOption = Annotated[
    str | None,
    typer.Option(metavar="COLUMN,…", help="Columns of a table that get noise although they look like categories."),
]
ClassNamesOption = Annotated[
    str | None, typer.Option(metavar="NAME,…", help="The names of the model's classes, in the model's order.")
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Run code of others: read a pickle (`.joblib`, `.pkl`), import a module beside a run, make a call that it states.",
    ),
]
NormaliseOption = Annotated[
    str | None,
    typer.Option(
        help="Normalise the network's inputs after the noise is added: `imagenet`, `cifar10`, `half`, or `model`, the "
        "one that a timm model specifies."
    ),
]


def _check_law(text: str | None) -> str | None:
    if text is not None:
        LAWS.check(parsed(text)[0], "--law")
    return text


def _laws(incomplete: str) -> list[str]:
    return [name for name in LAWS.names() if name.startswith(incomplete)]


LawOption = Annotated[
    str | None,
    typer.Option(
        callback=_check_law,
        autocompletion=_laws,
        help=f"The noise law, NAME or NAME(parameter=value,…): {', '.join(LAWS.names())}. Default: gaussian.",
    ),
]
ScaleOption = Annotated[
    float | None,
    typer.Option(
        help="λ, the scale of the noise, in pixel units ([0, 1] images); default 0.25. For a table, a factor on every "
        "column's noise; default 1."
    ),
]
ExponentOption = Annotated[
    float | None, typer.Option("--exponent", help="The exponent a of the power law; must exceed the dimension d.")
]
# The kinds of noise and of Σ from installed packages.
ADDED_NOISE = "".join(
    f", `{name}`" for parts in (GENERATORS, SCALES) for name in parts.names() if name not in parts.own
)


def _check_noise(text: str | None) -> str | None:
    if text is not None:
        check_noise(text)
    return text


NoiseOption = Annotated[
    str | None,
    typer.Option(
        callback=_check_noise,
        help=f"The shape Σ: `isotropic` (the default), `pattern-1`, `pattern-2`, `pattern-inf`{ADDED_NOISE}, NAME or "
        "NAME(parameter=value,…); or a `.npy` file with a map of the input's shape or a d×d matrix.",
    ),
]
NormOption = Annotated[
    NormName | None,
    typer.Option(help="The norm of the radius. Default: 2, or the norm that composed noise was made for."),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER|COLUMN=NUMBER,…|FILE|trained",
        help="How much each pixel may change at ε = 1: a number; a `.npy` file with a map of the input's shape; an "
        "`.npz` file "
        "with `limits`, one number per group of pixels, and `groups`, a map with the number of each pixel's group, "
        "from 0; "
        "`trained`, the budget that the run was trained for; or for a table the change of each column, in its unit or "
        "in percent of its median in the training table (`income=5%,age=1`). The results then state ε instead of a "
        "radius: no change within less than ε times the budget changes the answer.",
    ),
]
SplitOption = Annotated[str, typer.Option(help="Which part of a data set: train or test.")]
ClassesOption = Annotated[int | None, typer.Option(help="Number of classes. Default: that of the model.")]
AlphaOption = Annotated[float, typer.Option(help="α: a claim is wrong with probability at most α.")]
NoiseSeedOption = Annotated[
    str,
    typer.Option(
        help="Seed of the noise: a number; `random`, from the system, stored with the run but not in its exports; or "
        "`derived`, computed from model, noise and data, so that nobody can choose it."
    ),
]
ModelIdOption = Annotated[
    str | None,
    typer.Option(help="A name that identifies a model without PyTorch weights, and its version."),
]
SeedOption = Annotated[int, typer.Option(help="Seed of the noise; the same seed draws the same noise.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; `auto` uses a GPU if there is one.")]
BatchOption = Annotated[
    int | None,
    typer.Option(
        help="Noisy copies per forward pass. Default: by the input's size. Fewer than 128 may draw other noise."
    ),
]
BackendOption = Annotated[
    BackendName,
    typer.Option(
        help="`eager`, `compile` (torch.compile), `tuned` (also times kernels, which takes a minute or more), on a CPU "
        "`onnxruntime` or `openvino`, or `auto`, which uses the fastest one if the job is long enough."
    ),
]
PrecisionOption = Annotated[
    PrecisionName | None,
    typer.Option(
        help="Run the classifier in this precision; the claim is then about that precision. Default: the "
        "classifier's own."
    ),
]
ArithmeticOption = Annotated[
    ArithmeticName | None,
    typer.Option(
        help="`grid`: inputs and noise in whole steps (1/255 for 8-bit pictures), sound in floating point, for changes "
        "by "
        "whole steps; `real`: rounding is not accounted for. Default: grid if the data have a step, else real."
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="Count the votes on a Ray cluster: its address, `auto` for the cluster of this machine, or `local` to "
        "start one here. The results are the same as those of one process."
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of workers, with one GPU or one CPU core each. Default: all that the cluster has."
    ),
]
CertificatesOption = Annotated[
    bool, typer.Option("--certificates", help="Also write each certificate as JSON, for `ucan verify`.")
]
SkipOption = Annotated[int, typer.Option(min=1, help="Take every SKIP-th input.")]
MaxOption = Annotated[int | None, typer.Option("--max", min=1, help="Take at most MAX inputs.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no remarks.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


def results_apart(cluster: str | None) -> AbstractContextManager[Any]:
    """Keep standard output for results: Ray reports lost workers there."""
    return nullcontext() if cluster is None else redirect_stdout(sys.stderr)


def say(text: str) -> None:
    """Print a line that may hold text from a file."""
    typer.echo(printable(text))


def printable(text: str, kept: str = "") -> str:
    """The text with escapes in place of control characters: what a file says must not rewrite the reader's terminal.

    ``kept`` are characters that stay as they are.
    """
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def seconds_of(text: str | None) -> float | None:
    """Convert a time such as 30s, 10m or 2h to seconds."""
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise InvalidInput(f"--time takes a number of seconds, or 30s, 10m, 2h, got {text!r}.")
    return seconds


def names_of(text: str | None) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text is not None else ()


def norm_of(name: NormName | None) -> float | None:
    """The norm as a number."""
    return None if name is None else float(name.value)


def seed_of(text: str) -> Seed:
    """The seed that `--seed` means; None is a random one."""
    if text in ("random", "derived"):
        return None if text == "random" else "derived"
    try:
        return int(text)
    except ValueError as error:
        raise InvalidInput(f"--seed takes a whole number, random or derived, got {text!r}.") from error


def counted(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# Parameters of commands that a job calls otherwise, and options whose text is read first.
RENAMED = {"source": "data", "row_id": "id"}
READ: dict[str, Callable[[Any], Any]] = {
    "norm": norm_of,
    "seed": seed_of,
    "class_names": lambda text: names_of(text) or None,
    "hold": names_of,
    "vary": names_of,
}
# Parameters of commands about where and how results are shown, which no job has.
SHOWING = ("out", "as_json", "quiet")
Job = TypeVar("Job")


def check_ending(path: Path, what: str, *own: str) -> None:
    """Refuse a name whose ending says that the file is something else; one such as cifar-0.25 has no such ending."""
    if path.suffix.lower() in ENDINGS - {*own}:
        raise InvalidInput(f"{what}: give {path.with_suffix(own[0])} instead of {path}.")


def numbers_of(option: str, text: str | None) -> tuple[float, ...]:
    """The numbers of a comma-separated list; none if the option is not given."""
    try:
        return () if text is None else tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InvalidInput(f"{option} takes numbers separated by commas, such as 0.25,0.5, got {text!r}.") from error


def job_of(kind: type[Job], options: Mapping[str, Any], only: Collection[str] = (), **settled: Any) -> Job:
    """A job from the parameters of a command (its ``locals()``): those that are fields of the job, read where they are text.

    ``settled`` are fields that the command has worked out itself, ``only`` the parameters that it uses itself and the job does
    not have; others that are no fields are an error of the command, whose option would do nothing.
    """
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    unused = [name for name in options if RENAMED.get(name, name) not in known and name not in {*SHOWING, *only}]
    if unused:
        raise TypeError(f"{kind.__name__} has no field for {', '.join(unused)}: name what only the command uses.")
    named = {RENAMED.get(name, name): value for name, value in options.items()}
    given = {
        name: READ[name](value) if name in READ else value
        for name, value in named.items()
        if name in known - set(settled)
    }
    return kind(**given, **settled)


def scope_in_words(scope: str) -> str:
    """Whose guarantee a scope is, in one line."""
    from ucan.certificate import SCOPES

    return f"Scope {scope}: the guarantee is about {SCOPES[scope]}."
