"""Every block of docs/neighbours.md runs, section by section, where the package that it is about is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "neighbours.md"
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.S | re.M))
NEEDS = {
    "scikit-learn": (),
    "Attacks: ART, foolbox, torchattacks": ("art", "foolbox"),
    "PyTorch Lightning": ("pytorch_lightning",),
    "Hugging Face": ("transformers",),
    "Runs that travel": ("lightning_fabric",),
}


def blocks(section: str) -> list[str]:
    return re.findall(r"^```py\n(.*?)^```$", SECTIONS[section], re.S | re.M)


def test_every_section_with_code_is_run() -> None:
    assert {name for name in SECTIONS if blocks(name)} == set(NEEDS)


@pytest.mark.filterwarnings("ignore")  # those of other packages
@pytest.mark.parametrize("section", NEEDS)
def test_the_blocks_run(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS[section]:
        pytest.importorskip(package, reason=f"{package} is not installed", exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "neighbours"}
    for code in blocks(section):
        exec(compile(code, str(PAGE), "exec"), names)
