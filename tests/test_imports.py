"""One-way imports: each module may use only what comes before it, and `import ucan` stays light."""

import ast
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
    "errors",
    "rounding",
    "allocator",
    "config",
    "storage",
    "fingerprint",
    "laws",
    "budget",
    "scales",
    "bounds",
    "region",
    "arithmetic",
    "sidecar",
    "evidence",
    "certificate",
    "generators",
    "guards",
    "votes",
    "stopping",
    "plan",
    "sizes",
    "readiness",
    "sequential",
    "runtimes",
    "backends",
    "engine",
    "smoothed",
    "cluster",
    "bench",
    "registry",
    "verify",
    "replay",
    "data",
    "models",
    "training",
    "audit",
    "results",
    "report",
    "app",
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
    "scipy.stats",
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
)


def test_import_ucan_is_light():
    """Only what every user needs: no command line, no training, no plots."""
    code = f"import sys, ucan; print([m for m in {HEAVY!r} if m in sys.modules])"
    path = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_public_names_are_all_there():
    assert sorted(ucan.__all__) == sorted(set(ucan.__all__))
    assert all(hasattr(ucan, name) for name in ucan.__all__)
    promised = {"Gaussian", "Laplace", "Uniform", "ExpInf", "PowerLaw", "Region", "scales", "SmoothedClassifier"}
    promised |= {"Isotropic", "Fixed", "Pattern", "Certificate", "Abstention"}
    assert promised <= set(ucan.__all__)
