# noqa: INP001  # a folder of pictures is no package
"""The picture of the architecture: the layers and the imports that ``tests/test_layers.py`` checks, as an SVG."""

from __future__ import annotations

import runpy
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import Any

from attrs import frozen

__all__ = ["architecture"]

TESTS = Path(__file__).resolve().parents[2] / "tests" / "test_layers.py"

NAMES = {
    "lazy": "names, when asked for",
    "errors": "errors and messages",
    "operation": "what an operation is",
    "groups": "the platform's vocabulary",
    "codec": "encoding, decisions",
    "config_keys": "configuration files",
    "callbacks.signature": "jobs, receiver: the pure half",
    "client": "what waits",
    "config": "what is configured",
    "cli": "the edges",
}
"""What each layer is, by one of its modules."""

WIDTH = 960
PAD = 12
LABEL = 210  # pixels for the name of a layer
GUTTER = 56  # pixels to the right, for what reaches upwards
CHIP, GAP, LETTER = 24, 6, 7.6  # a module's height, the room between two, the width of one letter
PURE, WAITING, EDGE, CALL = "#1f6f5c", "#2b5c94", "#6a4690", "#d9730d"


@frozen
class Band:
    """One layer as it is drawn: its rows of modules, and where it is."""

    name: str
    colour: str
    rows: list[list[str]]
    top: int

    @property
    def height(self) -> int:
        """Its height in pixels."""
        return len(self.rows) * (CHIP + GAP) - GAP + 2 * PAD

    @property
    def middle(self) -> int:
        """Where its middle is, from the top."""
        return self.top + self.height // 2


def architecture() -> str:
    """Return the picture as text."""
    tested = runpy.run_path(str(TESTS))
    bands = _bands(tested["LAYERS"], set(tested["PURE"]))
    calls = {(_of(source, bands), _of(target, bands)) for source, target in tested["COMPOSITION"]}
    marked = {name for call in calls for name in call}
    bottom = bands[-1].top + bands[-1].height
    parts = [
        '<rect width="100%" height="100%" rx="10" fill="#10161f"/>',
        *(part for band in bands for part in _drawn(band, marked)),
        *_arrows(calls, bands),
        _text(PAD + 4, bottom + 30, "Imports run downwards only.", "#e6edf3"),
        _text(PAD + 206, bottom + 30, "No module of a green layer does input or output.", "#e6edf3"),
        f'<path d="M{WIDTH - 372} {bottom + 25}h40" stroke="{CALL}" stroke-width="2" stroke-dasharray="5 4"/>',
        _text(WIDTH - 322, bottom + 30, "upwards: inside a function, listed by name", "#e6edf3"),
    ]
    height = bottom + 48
    style = "text{font:13px ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif}.m{font:12.5px ui-monospace,"
    style += "SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'role="img" aria-label="The layers of rbim, highest first">'
    )
    arrow = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{CALL}"/></marker></defs>'
    )
    return "\n".join([head, f"<style>{style}</style>", arrow, *parts, "</svg>"]) + "\n"


def _bands(layers: list[set[str]], pure: set[str]) -> list[Band]:
    """Return the layers as they are drawn, the highest on top."""
    below = len(list(takewhile(lambda layer: layer <= pure, layers)))
    bands: list[Band] = []
    top = PAD
    for number, layer in reversed(list(enumerate(layers))):
        (name,) = (NAMES[each] for each in NAMES if each in layer)  # a layer without a name, or with two, wants one here
        colour = PURE if number < below else EDGE if number == len(layers) - 1 else WAITING
        bands.append(Band(name, colour, _rows(sorted(layer)), top))
        top += bands[-1].height + GAP
    return bands


def _rows(names: list[str]) -> list[list[str]]:
    """Break a layer's modules into rows."""
    rows: list[list[str]] = [[]]
    for name in names:
        if rows[-1] and sum(map(_width, [*rows[-1], name])) > WIDTH - LABEL - GUTTER - 2 * PAD:
            rows.append([])
        rows[-1].append(name)
    return rows


def _width(name: str) -> int:
    return round(len(name) * LETTER) + 16 + GAP


def _drawn(band: Band, marked: set[str]) -> list[str]:
    """Return a band's parts; ``marked`` modules are outlined."""
    across = WIDTH - PAD - GUTTER
    parts = [
        f'<rect x="{PAD}" y="{band.top}" width="{across}" height="{band.height}" rx="7" fill="{band.colour}"/>',
        _text(PAD + 12, band.middle + 5, band.name, "#ffffff"),
    ]
    for number, row in enumerate(band.rows):
        x, y = PAD + LABEL, band.top + PAD + number * (CHIP + GAP)
        for name in row:
            wide = _width(name) - GAP
            outline = f' stroke="{CALL}" stroke-width="2"' if name in marked else ""
            parts.append(f'<rect x="{x}" y="{y}" width="{wide}" height="{CHIP}" rx="5" fill="#10161f"{outline}/>')
            length = f'textLength="{len(name) * LETTER:g}" lengthAdjust="spacingAndGlyphs"'
            parts.append(f'<text class="m" x="{x + 8}" y="{y + 16}" fill="#f0f3f6" {length}>{escape(name)}</text>')
            x += _width(name)
    return parts


def _text(x: int, y: int, words: str, colour: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}">{escape(words)}</text>'


def _of(module: str, bands: list[Band]) -> str:
    """Return the name under which a module is drawn: its own, or that of its package."""
    drawn = {name for band in bands for row in band.rows for name in row}
    return module if module in drawn else module.partition(".")[0]


def _arrows(calls: set[tuple[str, str]], bands: list[Band]) -> list[str]:
    """Return the arrows, each in a lane of its own beside the bands, the shortest inside."""
    place: dict[str, Any] = {name: band for band in bands for row in band.rows for name in row}
    parts: list[str] = []
    right = WIDTH - GUTTER
    for lane, (source, target) in enumerate(sorted(calls, key=lambda call: place[call[0]].top), start=1):
        begin, end, x = place[source].middle, place[target].middle + 18 - 12 * lane, right + 14 * lane
        path = f"M{right} {begin}H{x - 6}Q{x} {begin} {x} {begin - 6}V{end + 6}Q{x} {end} {x - 6} {end}H{right + 2}"
        parts.append(
            f'<path d="{path}" fill="none" stroke="{CALL}" stroke-width="2" stroke-dasharray="5 4" marker-end="url(#head)"/>'
        )
    return parts
