"""Where a run may be: a folder or an archive here, a URL, or a name on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ucan.errors import InvalidInput

HUB = "hf:"
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


def hub_name(text: str) -> tuple[str, str | None]:
    """The repository and the revision of ``hf:owner/name@revision``; ``hf:`` and the revision may be left out."""
    name, _, revision = text.removeprefix(HUB).removeprefix("//").partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise InvalidInput(f"{text!r} is no name on the hub: write hf:owner/name, or hf:owner/name@revision.")
    return name, revision or None


def is_url(text: str) -> bool:
    """Whether a text is an address that is read over HTTP."""
    return text.startswith(("https://", "http://"))


def is_archive(text: str) -> bool:
    """Whether a path or an address is that of a zip or tar file, by its name."""
    return text.lower().endswith(ARCHIVES)


def cache_folder() -> Path:
    """Where runs from elsewhere are kept: UCAN_CACHE_DIR, or the user's folder for such things."""
    own = os.environ.get("UCAN_CACHE_DIR")
    usual = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(usual) / "ucan"
