"""Packages whose public names are imported on first use, so that `import ucan` and `ucan --help` load no PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` (PEP 562) of a package.

    Args:
        package: the package's ``__name__``.
        modules: for each module of the package, the names that the package takes from it, separated by spaces.

    Submodules can be reached as attributes, too. For type checkers the package repeats the imports below
    ``if TYPE_CHECKING``; `tests/test_imports.py` compares the two.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name in homes:
            value = getattr(import_module(f"{package}.{homes[name]}"), name)
            setattr(sys.modules[package], name, value)  # found without this function from now on
            return value
        if not name.startswith("__") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *sys.modules[package].__all__})

    return __getattr__, __dir__
