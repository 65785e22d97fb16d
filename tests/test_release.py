"""What is published with the project is whole: metadata, extras, citation, templates, container, wheel and sdist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ucan
from ucan.cli import app

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ADAPTERS = sorted(p.stem for p in (ROOT / "src/ucan/neighbours").glob("*.py") if p.stem not in ("__init__", "attacked"))


def test_pythons_that_are_promised_are_tested() -> None:
    versions = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert versions == ["3.11", "3.12", "3.13"] and PROJECT["requires-python"] == ">=3.11"
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    test = workflow["jobs"]["test"]
    assert test["strategy"]["matrix"]["python"] == versions
    assert any(step.get("run") == ".ci/run" for step in test["steps"]) and (ROOT / ".ci/run").is_file()


def test_every_extra_that_a_message_names_exists() -> None:
    named = set()
    for path in (ROOT / "src").rglob("*.py"):
        named |= set(re.findall(r"ucan\[([\w,-]+)\]", path.read_text(encoding="utf-8")))
    extras = {extra for names in named for extra in names.split(",")}
    assert extras <= set(EXTRAS) and len(extras) > 8
    installed = set(re.search(r"ucan\[([\w,-]+)\]", " ".join(EXTRAS["dev"]))[1].split(","))  # type: ignore[index]
    assert installed <= set(EXTRAS)
    assert set(EXTRAS) - installed == {"dev", "openvino", "torchattacks"}  # too large; its requests are too old


def test_an_adapter_without_its_package_says_what_to_install() -> None:
    """In a process where none of the other packages can be imported."""
    packages = ("sklearn", "art", "foolbox", "lightning", "pytorch_lightning", "transformers")
    code = f"""
import sys
for name in {packages!r}: sys.modules[name] = None
import importlib, json
said = {{}}
for name in {ADAPTERS!r}:
    try: importlib.import_module("ucan.neighbours." + name)
    except ImportError as error: said[name] = [type(error).__name__, str(error)]
print(json.dumps(said))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert set(said) == set(ADAPTERS)
    for name, (kind, text) in said.items():
        assert kind == "MissingExtra" and f"pip install 'ucan[{name}]'" in text
        assert name in EXTRAS


def test_the_citation_and_the_templates_can_be_read() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(cited)
    assert cited["version"] == ucan.__version__ and cited["license"] == PROJECT["license"]
    for reference in cited["references"]:
        assert reference["type"] and reference["title"] and all("family-names" in a for a in reference["authors"])
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    for form in forms:
        read = yaml.safe_load(form.read_text(encoding="utf-8"))
        if form.stem != "config":
            assert {"name", "description", "body"} <= set(read)
            fields = [field for field in read["body"] if field["type"] != "markdown"]
            assert all(field["attributes"]["label"] for field in fields) and len({f["id"] for f in fields}) == len(
                fields
            )
    assert len(forms) >= 3


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_the_pages_at_the_top_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert "://" in target or (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^    make ([\w-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_container_names_what_exists() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    for names in re.findall(r"\.whl\)\[([\w,-]+)\]", text):
        assert set(names.split(",")) <= set(EXTRAS)
    for line in re.findall(r"^COPY (?!--)(.+)$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split()[:-1])
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    assert all(f"!{name}\n" in kept for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "src"))
    commands = [json.loads(found) for found in re.findall(r"^CMD (\[.+\])$", text, re.MULTILINE)]
    (serve,) = (words for words in commands if words[:2] == ["ucan", "serve"])
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    assert all(word in shown for word in serve if word.startswith("--"))


@pytest.mark.slow
def test_wheel_and_sdist_pass_the_check_of_twine(tmp_path: Path) -> None:
    pytest.importorskip("build", reason="build is not installed")
    pytest.importorskip("twine", reason="twine is not installed")
    source = tmp_path / "source"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    for name in filter(None, listed):
        if name.startswith("src/") or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "-o", "dist"], cwd=source, check=True)
    files = sorted((source / "dist").iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], check=True)
    wheel, sdist = zipfile.ZipFile(files[0]), tarfile.open(files[1])  # noqa: SIM115
    inside = {name for name in wheel.namelist() if name.startswith("ucan/")}
    assert inside == {name.removeprefix("src/") for name in listed if name.startswith("src/ucan/")}
    assert any(name.endswith("/CHANGELOG.md") for name in sdist.getnames())
