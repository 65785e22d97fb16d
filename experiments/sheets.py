"""Small figures side by side in one picture."""

from __future__ import annotations

import io
from html import escape
from pathlib import Path

from ucan.report.paint import FONT, PAPER


def sheet(cells: list[tuple[str, str]], columns: int, side: int) -> str:
    """Small figures with a line of text above each, side by side in one SVG."""
    wide, high = columns * (side + 24) + 24, -(-len(cells) // columns) * (side + 52) + 12
    parts = [f'<rect width="{wide}" height="{high}" fill="{PAPER.ground}"/>']
    for i, (title, figure) in enumerate(cells):
        x, y = 24 + i % columns * (side + 24), 12 + i // columns * (side + 52)
        parts.append(f'<text x="{x}" y="{y + 14}" font-size="14" fill="{PAPER.ink}">{escape(title)}</text>')
        parts.append(f'<g transform="translate({x} {y + 22})">{figure}</g>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" '
            f'font-family="{escape(FONT)}">{"".join(parts)}</svg>')  # fmt: skip


def draw(svg: str, path: Path) -> None:
    """An SVG as a small PNG."""
    import vl_convert
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.open(io.BytesIO(vl_convert.svg_to_png(svg, scale=1.25)))
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
