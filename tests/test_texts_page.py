"""The blocks of docs/texts.md run where transformers is installed; they assert that the labels are right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "texts.md"


@pytest.mark.filterwarnings("ignore")  # those of transformers
def test_the_blocks_run() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed", exc_type=ImportError)
    names: dict[str, Any] = {"__name__": "texts"}
    blocks = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) == 3
    for code in blocks:
        exec(compile(code, str(PAGE), "exec"), names)
