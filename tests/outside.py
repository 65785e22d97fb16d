"""A package beside ours, made in a folder: the code of docs/extending.md, and the entry points that installing it leaves."""

import re
import tomllib
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


def written(language: str) -> str:
    """The page's blocks in this language, one after the other."""
    return "\n\n".join(re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M))


def entries() -> str:
    """The page's entry points, as an installed package has them."""
    groups = tomllib.loads(written("toml"))["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in own.items())
        for group, own in groups.items()
    ]
    return "\n".join(lines)


def install(folder: Path, code: str, points: str, name: str) -> Path:
    """What `pip install` would leave of a package: its module, and its metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    return folder


def install_toy(folder: Path) -> Path:
    """The package of docs/extending.md."""
    return install(folder, written("python"), entries(), "toy-parts")
