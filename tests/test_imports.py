"""One-way imports: each module may use only what comes before it, and `import ucan` stays light."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ucan

PACKAGE = Path(ucan.__file__).parent
# From what knows nothing to what knows everything. A module may import those before it, and itself.
ORDER = (
    "version",
    "lazy",
    "errors",
    "json_text",
    "catalogue",
    "choices",
    "rounding",
    "allocator",
    "memory",
    "timing",
    "storage",
    "lock",
    "config",
    "places",
    "fingerprint",
    "passes",
    "estimators",
    "laws",
    "budget",
    "scales",
    "betting",
    "pairs",
    "bounds",
    "named_bounds",
    "region",
    "arithmetic",
    "sidecar",
    "held",
    "evidence",
    "certificate",
    "reach",
    "generators",
    "guards",
    "votes",
    "giving_up",
    "stopping",
    "stop_option",
    "plan",
    "sizes",
    "readiness",
    "sequential",
    "runtimes",
    "folding",
    "backends",
    "engine",
    "questions",
    "seating",
    "smoothed",
    "differentiable",
    "continuing",
    "threshold",
    "routed",
    "cluster",
    "bench",
    "registry",
    "verify",
    "replay",
    "replay_answer",
    "verify_answer",
    "recertify",
    "deciding",
    "targets",
    "data",
    "models",
    "tabular",
    "training",
    "audit",
    "results",
    "runs",
    "report",
    "leaderboard",
    "app",
    "service",
    "sharing",
    "neighbours",
    "cli",
    "__main__",
    "__init__",
)
MAY_IMPORT_THE_PACKAGE = ("cli", "__init__")
FILES = sorted(PACKAGE.rglob("*.py"))


def owner(file: Path) -> str:
    """The name under ucan that a file belongs to: a module, a folder, or the package itself."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_submodule(name: str) -> bool:
    return name in ORDER[:-1] or (PACKAGE / f"{name}.py").is_file() or (PACKAGE / name).is_dir()


def imported(source: str, package: str) -> list[tuple[int, str]]:
    """(line, name under ucan) of every import in the source, wherever it stands; "" is the package itself."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: counted from the file's own package
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            names = (
                [f"ucan.{a.name}" if is_submodule(a.name) else "ucan" for a in node.names] if base == "ucan" else [base]
            )
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "ucan":
                found.append((node.lineno, parts[1] if len(parts) > 1 else ""))
    return found


def violations(source: str, own: str, package: str = "ucan") -> list[str]:
    wrong = []
    for line, name in imported(source, package):
        if name == "":
            if own not in MAY_IMPORT_THE_PACKAGE:
                wrong.append(f"line {line}: {own} imports the package ucan itself; import the submodule that it needs")
        elif name not in ORDER:
            wrong.append(f"line {line}: {own} imports ucan.{name}, which has no rank: add it to ORDER in this test")
        elif ORDER.index(name) > ORDER.index(own):
            wrong.append(f"line {line}: {own} imports ucan.{name}, which comes after it")
    return wrong


@pytest.mark.parametrize("file", FILES, ids=[str(f.relative_to(PACKAGE)) for f in FILES])
def test_imports_go_one_way(file):
    own = owner(file)
    assert own in ORDER, f"ucan.{own} has no rank: give it one in ORDER, after everything that it imports"
    package = ".".join(["ucan", *file.relative_to(PACKAGE).parts[:-1]])
    assert violations(file.read_text(encoding="utf-8"), own, package) == []


@pytest.mark.parametrize(
    ("own", "source", "count"),
    [
        ("laws", "from ucan.errors import InvalidInput", 0),
        ("laws", "from ucan.laws.base import Law", 0),
        ("laws", "from ucan.scales import Scale", 1),
        ("laws", "import ucan.scales.base", 1),
        ("laws", "from ucan import errors, scales", 1),
        ("laws", "from ucan import Gaussian", 1),
        ("laws", "import ucan", 1),
        ("laws", "def f():\n    from ucan.region import Region", 1),
        ("laws", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ucan.smoothed import X", 1),
        ("laws", "from ..scales import Scale", 1),
        ("laws", "from .. import region", 1),
        ("laws", "from .base import Law", 0),
        ("laws", "from ucan.brandnew import X", 1),
        ("cli", "import ucan\nfrom ucan import __version__", 0),
        ("smoothed", "import torch, ucanny\nfrom ucanny.cli import x", 0),
    ],
)
def test_the_check_itself_sees_what_it_should(own, source, count):
    assert len(violations(source, own, "ucan.laws" if own == "laws" else "ucan")) == count


def module_of(file: Path) -> str:
    parts = ("ucan", *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def at_import(tree: ast.Module, modules: set[str]) -> set[str]:
    """The modules that are imported when a file is: not inside functions, and not for type checkers alone."""
    found, waiting = set(), list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in modules else str(node.module) for name in names}
        elif (
            not isinstance(node, ast.FunctionDef) and getattr(getattr(node, "test", None), "id", "") != "TYPE_CHECKING"
        ):
            waiting += [inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)]
    return found & modules


def cycles(imports: dict[str, set[str]]) -> list[str]:
    """The modules that are left when those that import nothing else are taken away, again and again."""
    left = {name: names - {name} for name, names in imports.items()}
    while free := {name for name, names in left.items() if not names & left.keys()}:
        left = {name: names for name, names in left.items() if name not in free}
    return sorted(left)


def test_no_file_imports_itself_by_way_of_others():
    """Inside a package as well: its files import from each other, never from the package."""
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    modules = {module_of(file) for file in FILES}
    imports = {module_of(file): at_import(ast.parse(file.read_text(encoding="utf-8")), modules) for file in FILES}
    assert imports["ucan.verify.router"] >= {"ucan.verify.level", "ucan.certificate"}
    assert cycles(imports) == []


def test_every_file_of_the_core_was_looked_at():
    assert {"errors", "laws", "scales", "bounds", "region", "certificate", "votes", "smoothed"} <= {
        owner(f) for f in FILES
    }


def test_the_architecture_page_lists_every_module_in_this_order():
    page = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`[^|]*)\|", page, re.MULTILINE)
    listed = [name for cell in first_cells for name in re.findall(r"`(\w+)(?:\.py|/)`", cell)]
    assert listed == list(ORDER[:-1])


HEAVY = (
    "torch",
    "numpy",
    "scipy",
    "typer",
    "rich",
    "sklearn",
    "PIL",
    "lightning",
    "lightning_fabric",
    "onnxruntime",
    "torchvision",
    "matplotlib",
    "gradio",
    "ray",
    "uvicorn",
    "transformers",
    "huggingface_hub",
    "pytorch_lightning",
    "art",
    "foolbox",
)


def in_a_new_process(code: str, **environment: str) -> str:
    """What a new interpreter prints when it runs this code; it must not fail."""
    path = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_ucan_is_light():
    """PyTorch, the command line, training and plots are imported by those who use them."""
    assert in_a_new_process(f"import sys, ucan; print([m for m in {HEAVY!r} if m in sys.modules])") == "[]"


def test_names_are_imported_on_first_use():
    names = "print(set(ucan.__all__) <= set(dir(ucan)))"
    law = "print(ucan.Gaussian(0.5), ucan.laws.Gaussian is ucan.Gaussian)"
    listed, said = in_a_new_process(f"import ucan; {names}; {law}").splitlines()
    assert listed == "True" and said.endswith("True")
    assert in_a_new_process("from ucan import *; print(scales.Dense.__name__, __version__)").startswith("Dense 0")
    with pytest.raises(AttributeError, match="module 'ucan' has no attribute 'Gausian'"):
        _ = ucan.Gausian


LAZY = [file for file in FILES if file.name == "__init__.py" and "lazy_names(" in file.read_text(encoding="utf-8")]


@pytest.mark.parametrize("file", LAZY, ids=[file.parent.name for file in LAZY])
def test_type_checkers_see_what_is_imported_on_first_use(file):
    """The imports below ``if TYPE_CHECKING``, the table of lazy names and ``__all__`` say the same."""
    package = ".".join(["ucan", *file.relative_to(PACKAGE).parts[:-1]])
    tree = ast.parse(file.read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        f"{node.module}.{alias.name}" for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    (call,) = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "lazy_names")
    lazy = {
        f"{package}.{module}.{name}"
        for module, names in ast.literal_eval(call.args[1]).items()
        for name in names.split()
    }
    submodules = {name for name in seen - lazy if importlib.util.find_spec(name)}
    assert seen - submodules == lazy
    public = importlib.import_module(package).__all__
    assert {name.rpartition(".")[2] for name in seen} == set(public) - {"__version__"}
    assert not {name.rpartition(".")[2] for name in lazy} & {f.stem for f in file.parent.iterdir()}, "a module's name"


def test_public_names_are_all_there():
    assert sorted(ucan.__all__) == sorted(set(ucan.__all__))
    assert all(hasattr(ucan, name) for name in ucan.__all__)
    promised = {"Gaussian", "Laplace", "Uniform", "ExpInf", "PowerLaw", "Region", "scales", "SmoothedClassifier"}
    promised |= {"Isotropic", "Fixed", "Pattern", "Certificate", "Abstention"}
    assert promised <= set(ucan.__all__)
