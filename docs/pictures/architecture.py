# noqa: INP001  # a folder of pictures is no package
"""The picture of the architecture: the layers that ``lint-imports`` checks, as an SVG."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS))

from _derive.architecture import PACKAGE, layer_names, pure, summary  # noqa: E402  # the path comes first

__all__ = ["architecture"]

WIDTH = 860
PAD, GAP = 12, 6
ROW = 26  # pixels of a row: a folder or a module, and its purpose
CHIP, LETTER = 20, 7.6  # the height of a name's box, the width of one of its letters
WORDS = 150  # pixels from the left to the purpose of a name
PURE, OTHER = "#1f6f5c", "#2b5c94"


def architecture() -> str:
    """Return the picture as text."""
    parts = ['<rect width="100%" height="100%" rx="10" fill="#10161f"/>']
    top, nothing_waits = PAD, pure()
    for layer in layer_names():
        height = len(layer) * ROW + GAP
        colour = PURE if set(layer) <= nothing_waits else OTHER
        parts.append(f'<rect x="{PAD}" y="{top}" width="{WIDTH - 2 * PAD}" height="{height}" rx="7" fill="{colour}"/>')
        for number, name in enumerate(layer):
            parts += _row(name, top + GAP // 2 + number * ROW)
        top += height + GAP
    parts += [
        _text(PAD + 4, top + 20, "A folder imports only from layers below its own.", "#e6edf3"),
        _text(PAD + 300, top + 20, "No module of a green layer does input or output.", "#e6edf3"),
    ]
    style = "text{font:13px ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif}.m{font:12.5px ui-monospace,"
    style += "SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 36}" viewBox="0 0 {WIDTH} {top + 36}" '
        'role="img" aria-label="The folders of rbim in their layers, highest first">'
    )
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>"]) + "\n"


def _row(name: str, y: int) -> list[str]:
    folder = PACKAGE / name
    shown = f"{name}/" if folder.is_dir() else name
    words = summary(folder if folder.is_dir() else folder.with_suffix(".py")).replace("``", "")
    x, wide = PAD + 10, round(len(shown) * LETTER) + 16
    length = f'textLength="{len(shown) * LETTER:g}" lengthAdjust="spacingAndGlyphs"'
    return [
        f'<rect x="{x}" y="{y + 3}" width="{wide}" height="{CHIP}" rx="5" fill="#10161f"/>',
        f'<text class="m" x="{x + 8}" y="{y + 17}" fill="#f0f3f6" {length}>{escape(shown)}</text>',
        _text(PAD + WORDS, y + 17, words, "#ffffff"),
    ]


def _text(x: int, y: int, words: str, colour: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}">{escape(words)}</text>'
