"""Generators by name: made from settings and words, and made again from what a record says."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ucan.catalogue import GENERATORS, Made, as_plain, call, plain
from ucan.errors import InvalidInput, UcanError
from ucan.evidence import Noise, subclasses
from ucan.generators.base import Generator
from ucan.generators.context import Context

OURS = "ucan"


def make_generator(name: str, parameters: Mapping[str, Any], context: Context) -> Generator:
    """The generator of this name in the catalogue, with these parameters, for these inputs."""
    kind = GENERATORS.load(name)
    made: Generator = call("generator", functools.partial(kind.fitted, context), parameters)
    if not isinstance(made, Generator):
        raise InvalidInput(f"[generator] {name!r} made a {type(made).__name__}, which is no ucan.Generator.")
    if plain(parameters):
        made.__dict__["_made"] = Made(name, GENERATORS.package(name), as_plain(parameters))
    return made


def kind_of(noise: Noise) -> type[Generator] | None:
    """The class of a record's noise: one of ours, or one of a package that is installed; None where nobody here has it.

    A record of version 0.1 has nothing but a line, which begins with the name of the class.
    """
    if noise.made is not None and noise.made.package is not None:
        named = GENERATORS.load(noise.made.name, package=noise.made.package)
        return named if isinstance(named, type) and issubclass(named, Generator) else None
    name, module = noise.kind or noise.line.partition("(")[0], noise.module
    for kind in subclasses(Generator):
        ours = {kind.__module__.split(".")[0], (module or OURS).split(".")[0]} == {OURS}
        if ours and kind.__qualname__ == name:
            found: type[Generator] = kind
            return found
    return None


def rebuilt(noise: Noise, context: Context) -> Generator | None:
    """The noise of a record, made again from its name and parameters; None where these do not make it.

    Learned weights and what was fitted to data are not in a record: what is made must have the state that it names.
    """
    if noise.made is None:
        return None
    GENERATORS.load(noise.made.name, package=noise.made.package)  # an error where the package is missing
    try:
        made = make_generator(noise.made.name, noise.made.parameters, context).eval()
    except UcanError:  # it was made in code, from other things than its name and parameters
        return None
    return made if made.record().state == noise.state else None
