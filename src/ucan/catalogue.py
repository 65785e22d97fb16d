"""Catalogues of named parts: UCAN's own, and those that installed packages add by entry points.

Nothing is imported before it is used: names can be listed without PyTorch, and without running code of other packages.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ucan.errors import InvalidInput, UcanError


@dataclass(frozen=True)
class Made:
    """How a part was made: its name in a catalogue, the package that adds it (None for ours), and its parameters.

    Parameters are plain values: numbers, text, true or false, lists and tables of those. Infinity is the text "inf".
    """

    name: str
    package: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"name": self.name, "package": self.package, "parameters": dict(self.parameters)}

    def __str__(self) -> str:
        """As the command line takes it: NAME, or NAME(parameter=value,…)."""
        if not self.parameters:
            return self.name
        return f"{self.name}({','.join(f'{name}={_word(value)}' for name, value in self.parameters.items())})"


class Catalogue:
    """The named kinds of one sort of part.

    Args:
        group: the entry points' group, such as ``ucan.laws``.
        what: one such part, for messages.
        own: our names, each with ``module:object``, where that object is defined.

    A package that is installed beside ours adds a name in its ``pyproject.toml``::

        [project.entry-points."ucan.laws"]
        cauchy = "my_package:Cauchy"

    Our names are reserved: an entry point with one of them is ignored, with a warning when it would have been used.
    """

    def __init__(self, group: str, what: str, own: Mapping[str, str]) -> None:
        self.group = group
        self.what = what
        self.own = dict(own)

    def names(self) -> tuple[str, ...]:
        """All names: ours, then those of installed packages; nothing is imported."""
        return (*self.own, *sorted({entry.name for entry in self._entries()} - self.own.keys()))

    def package(self, name: str) -> str | None:
        """The package that adds this name; None for ours and for unknown ones."""
        if name in self.own:
            return None
        return next((_package(entry) for entry in self._entries() if entry.name == name), None)

    def check(self, name: Any, where: str | None = None) -> None:
        """Refuse an unknown name, without importing anything; ``where`` as for ``load``."""
        if name not in self.names():
            raise self._unknown(name, where, None)

    def load(self, name: str, where: str | None = None, package: str | None = None) -> Any:
        """The class (or function) of this name.

        Args:
            name: a name of ours or of an installed package.
            where: what the name was given for, for the message if it is unknown; "the law" for a law by default.
            package: the package that a record says it is of.
        """
        found = [entry for entry in self._entries() if entry.name == name]
        if name in self.own:
            if found:
                warnings.warn(
                    f"the package {_package(found[0])} adds {self.what} {name!r}, a name that UCAN uses itself: it is "
                    f"ignored.",
                    stacklevel=2,
                )
            return _resolved(self.own[name])
        if not found:
            raise self._unknown(name, where, package)
        if len({entry.value for entry in found}) > 1:
            packages = ", ".join(sorted({_package(entry) for entry in found}))
            raise InvalidInput(
                f"{self.what} {name!r} is added by several packages ({packages}): uninstall all but one."
            )
        try:
            return found[0].load()
        except Exception as error:  # any error of the package's import
            raise InvalidInput(
                f"{self.what} {name!r} of the package {_package(found[0])} cannot be loaded from {found[0].value}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def name_of(self, kind: Any) -> str | None:
        """The name of a class or function; None if it has none."""
        target = f"{kind.__module__}:{kind.__qualname__}"
        for name, known in self.own.items():
            if known == target:
                return name
        top = kind.__module__.partition(".")[0]
        for entry in self._entries():
            if entry.name in self.own:
                continue
            if entry.value == target or (entry.module.partition(".")[0] == top and self.load(entry.name) is kind):
                return entry.name
        return None

    def made(self, kind: Any, parameters: Mapping[str, Any]) -> Made | None:
        """The record of something made from this class with these parameters; None where it has no name here."""
        name = self.name_of(kind)
        return None if name is None else Made(name, self.package(name), parameters)

    def _entries(self) -> tuple[EntryPoint, ...]:
        return _entry_points(self.group, tuple(sys.path))

    def _unknown(self, name: Any, where: str | None, package: str | None) -> InvalidInput:
        if package is not None:
            return InvalidInput(
                f"this record's {self.what} is {name!r} of the package {package}, which is not installed or no longer "
                f"provides it (entry points of the group {self.group}): install {package}."
            )
        return InvalidInput(
            f"{where or 'the ' + self.what} must be one of {', '.join(self.names())}, got {name!r}. Other names come with "
            f"packages that have entry points in the group {self.group}."
        )


def parsed(text: str) -> tuple[str, dict[str, Any]]:
    """A name and its parameters from ``NAME`` or ``NAME(parameter=value,…)``: numbers, words, lists, true or false."""
    name, bracket, rest = text.strip().partition("(")
    if not bracket:
        return name, {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError
        return name.strip(), {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise InvalidInput(
            f"{text!r} cannot be read: write NAME or NAME(parameter=value,…), where a value is a number, a word, a list, "
            "true or false."
        ) from error


def call(what: str, kind: Any, parameters: Mapping[str, Any], **offered: Any) -> Any:
    """Make a part: its parameters, and of what is offered (``shape``, ``channels``) the arguments that it names.

    The text "inf" stands for infinity. An unknown or a missing parameter raises InvalidInput.
    """
    given = {name: math.inf if value == "inf" else value for name, value in parameters.items()}
    try:
        signature = inspect.signature(kind)
        named = {name: value for name, value in offered.items() if name in signature.parameters and name not in given}
        try:
            signature.bind(**given, **named)
        except TypeError as error:
            own = [n for n, p in signature.parameters.items() if n not in offered and p.kind is not p.VAR_KEYWORD]
            raise InvalidInput(f"[{what}] {error}. Its parameters are {', '.join(own) or 'none'}.") from error
        return kind(**given, **named)
    except UcanError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"[{what}] {error}.") from error


@functools.lru_cache(maxsize=256)
def _signature(kind: type) -> inspect.Signature:
    return inspect.signature(kind.__init__)  # type: ignore[misc]


def arguments_of(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, plain ones as they are, ``...`` for others; nothing of a call that will fail."""
    if not args and not kwargs:
        return {}
    try:
        given = _signature(kind).bind(None, *args, **kwargs).arguments
    except TypeError:
        return {}
    return {name: value if plain(value) else ... for name, value in list(given.items())[1:]}


def plain(value: Any) -> bool:
    """Whether a value can stand in a record: numbers, text, true or false, None, lists and tables of those."""
    if isinstance(value, list | tuple):
        return all(plain(each) for each in value)
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and plain(each) for name, each in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def as_plain(value: Any) -> Any:
    """A plain value as JSON and TOML have it: lists for tuples, "inf" for infinity."""
    if isinstance(value, list | tuple):
        return [as_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {name: as_plain(each) for name, each in value.items()}
    return "inf" if isinstance(value, float) and value == math.inf else value


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):  # a bare word
        return {"true": True, "false": False}.get(node.id, node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    return ast.literal_eval(node)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{','.join(_word(each) for each in value)}]"
    return value if isinstance(value, str) and value.isidentifier() else repr(value)


def _resolved(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module.partition(".")[0]


@functools.lru_cache(maxsize=64)
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The group's entry points, looked up once for each search path."""
    return tuple(entry_points(group=group))


LAWS = Catalogue(
    "ucan.laws",
    "law",
    {
        "gaussian": "ucan.laws.gaussian:Gaussian",
        "laplace": "ucan.laws.laplace:Laplace",
        "uniform": "ucan.laws.uniform:Uniform",
        "expinf": "ucan.laws.radial:ExpInf",
        "powerlaw": "ucan.laws.radial:PowerLaw",
        "general-normal": "ucan.laws.general:GeneralNormal",
    },
)
SCALES = Catalogue(
    "ucan.scales",
    "scale",
    {
        "scalar": "ucan.scales.diagonal:Scalar",
        "diagonal": "ucan.scales.diagonal:Diagonal",
        "dense": "ucan.scales.matrix:Dense",
        "low-rank": "ucan.scales.matrix:LowRank",
        "spiked": "ucan.scales.spiked:Spiked",
        "block-diagonal": "ucan.scales.matrix:BlockDiagonal",
        "basis": "ucan.scales.basis:Basis",
        "dct": "ucan.scales.dct:DCT",
    },
)
GENERATORS = Catalogue(
    "ucan.generators",
    "generator",
    {
        "isotropic": "ucan.generators.fixed:Isotropic",
        "fixed": "ucan.generators.fixed:Fixed",
        "pattern": "ucan.generators.pattern:Pattern",
        "dataset-wise": "ucan.generators.learned:DatasetWise",
        "certification-wise": "ucan.generators.learned:CertificationWise",
        "basis-wise": "ucan.generators.basis:BasisWise",
        "composed": "ucan.generators.composed:Composed",
        "splitting": "ucan.generators.splitting:Splitting",
        "budget": "ucan.generators.fitted:ForBudget",
        "budget-wise": "ucan.generators.learned:BudgetWise",
        "sample-wise": "ucan.generators.found:SampleWise",
        "data-dependent": "ucan.generators.optimised:DataDependent",
        "ancer": "ucan.generators.optimised:Ancer",
        "rancer": "ucan.generators.rotated:Rancer",
        "input-dependent": "ucan.generators.elastic:InputDependent",
    },
)
RECIPES = Catalogue(
    "ucan.recipes",
    "recipe",
    {
        "augmentation": "ucan.training.recipes.augmentation:Augmentation",
        "consistency": "ucan.training.recipes.consistency:Consistency",
        "stability": "ucan.training.recipes.stability:Stability",
        "smoothadv": "ucan.training.recipes.smoothadv:SmoothAdv",
        "macer": "ucan.training.recipes.macer:Macer",
        "smoothmix": "ucan.training.recipes.smoothmix:SmoothMix",
        "catrs": "ucan.training.recipes.catrs:CatRs",
        "drt": "ucan.training.recipes.drt:Drt",
        "acr": "ucan.training.recipes.acr:Acr",
        "sphere": "ucan.training.recipes.sphere:Sphere",
        "denoise": "ucan.training.recipes.denoise:Denoise",
    },
)
ATTACKS = Catalogue(
    "ucan.attacks",
    "attack",
    {
        "gradient": "ucan.audit.methods:gradient",
        "black-box": "ucan.audit.methods:black_box",
        "rescaled": "ucan.audit.methods:rescaled",
    },
)
# Our own are written as radii ("0.5,1.0") and as a percentage ("5%"); others by name.
STOPS = Catalogue("ucan.stops", "stopping rule", {"radii": "ucan.stopping:AtRadii", "within": "ucan.stopping:Within"})
READERS = Catalogue(
    "ucan.readers",
    "data reader",
    {
        "digits": "ucan.data.files:load_digits",
        "mnist": "ucan.data.files:load_mnist",
        "fashion-mnist": "ucan.data.files:load_mnist",
        "cifar10": "ucan.data.files:load_cifar10",
        "imagenet": "ucan.data:read_imagenet",
        "diabetes": "ucan.data.examples:load_diabetes",
        "breast-cancer": "ucan.data.examples:load_breast_cancer",
        "shapes": "ucan.data.examples:load_shapes",
    },
)
# Names of noise on the command line, besides those of generators and of Σ: a pattern with its norm.
PATTERNS = {"pattern-1": 1, "pattern-2": 2, "pattern-inf": "inf"}


def check_noise(text: str) -> None:
    """Refuse a text that names no noise; only the name is checked, nothing is imported."""
    name = text if text in PATTERNS else parsed(text)[0]
    if text.lower().endswith(".npy") or name in (*PATTERNS, *GENERATORS.names(), *SCALES.names()):
        return
    raise InvalidInput(
        f"--noise {text!r} is neither a .npy file nor the name of a kind of noise "
        f"({', '.join((*GENERATORS.names(), *PATTERNS))}) or of Σ ({', '.join(SCALES.names())})."
    )
