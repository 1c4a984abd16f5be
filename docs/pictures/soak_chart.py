# noqa: INP001  # a folder of pictures is no package
"""The picture of the recorded soak: the course of each figure of each part, as an SVG."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS))

from _derive.soak import recorded  # noqa: E402  # the path comes first

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["soak"]

COLUMNS = {
    "memory": "memory, MiB",
    "descriptors": "files",
    "connections": "connections",
    "threads": "threads",
    "tasks": "tasks",
}
WIDTH, PAD, NAMES = 860, 14, 76
ROW, HEAD, PLOT = 78, 30, 44  # pixels: of a row, of the titles, of a course
KIB = 1024
INK, PALE, LINE = "#e6edf3", "#8b98a5", "#4c9be8"


def soak() -> str:
    """Return the picture as text."""
    runs: list[dict[str, Any]] = recorded()["runs"]
    wide = (WIDTH - 2 * PAD - NAMES) / len(COLUMNS)
    height = HEAD + ROW * len(runs) + PAD
    parts = ['<rect width="100%" height="100%" rx="10" fill="#10161f"/>']
    parts += [_text(PAD + NAMES + number * wide, 20, title, PALE) for number, title in enumerate(COLUMNS.values())]
    for row, run in enumerate(runs):
        top = HEAD + row * ROW
        parts.append(_text(PAD, top + PLOT / 2 + 6, run["scenario"], INK))
        for number, name in enumerate(COLUMNS):
            scale = KIB if name == "memory" else 1
            parts += _course(PAD + NAMES + number * wide, top, wide - 24, [each / scale for each in run["courses"][name]])
    style = "text{font:13px ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif}"
    words = "The memory, files, connections, threads and tasks of parts of rbim over the minutes of a soak"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{words}">'
    )
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>"]) + "\n"


def _course(x: float, y: float, wide: float, values: Sequence[float]) -> list[str]:
    """Return a course from zero to its highest value, and these two in words."""
    most = max(*values, 1)
    step = wide / max(1, len(values) - 1)
    points = " ".join(f"{x + number * step:.1f},{y + PLOT - each / most * PLOT:.1f}" for number, each in enumerate(values))
    return [
        f'<line x1="{x:.1f}" y1="{y + PLOT}" x2="{x + wide:.1f}" y2="{y + PLOT}" stroke="#30363d"/>',
        f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="1.5"/>',
        _text(x, y + PLOT + 16, f"{min(values):,.0f} to {max(values):,.0f}", PALE),
    ]


def _text(x: float, y: float, words: str, colour: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{escape(words)}</text>'
