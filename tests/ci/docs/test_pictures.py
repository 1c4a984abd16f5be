"""The pictures: that of the architecture is what the code says, those of terminals are what the commands print, aligned."""

import importlib
import re
import sys
import unicodedata
from xml.etree import ElementTree as ET

import pytest

from helpers.paths import ROOT

pytest.importorskip("pty", reason="pseudo-terminals are POSIX's")

PICTURES = ROOT / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
CELL = 12.2  # pixels: the width of a letter in rich's terminals


def load(name):
    sys.path.insert(0, str(PICTURES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(PICTURES))


def text_of(name):
    return (PICTURES / f"{name}.svg").read_text(encoding="utf-8")


def cells(text):
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def texts(svg):
    found = ET.fromstring(svg).iter(f"{SVG}text")
    return [(float(each.get("x")), float(each.get("y")), each.text.replace("\xa0", " "), each) for each in found]


def lines(svg):
    rows = {}
    for x, y, text, _ in texts(svg):
        line = rows.setdefault(y, "")
        rows[y] = line + " " * (round(x / CELL) - cells(line)) + text
    return [rows[y] for y in sorted(rows)]


def test_the_picture_of_a_soak_is_what_was_recorded_and_stands_on_its_page():
    assert load("soak_chart").soak() == text_of("soak"), "run: python docs/pictures/draw.py soak"
    assert "](../pictures/soak.svg)" in (ROOT / "docs" / "internals" / "reliability.md").read_text(encoding="utf-8")


def test_the_architecture_is_what_the_code_says():
    assert load("architecture").architecture() == text_of("architecture"), "run: python docs/pictures/draw.py architecture"


def shape(svg):
    """Return what is the same each time: the first words, without figures."""
    return [re.sub(r"[\d,.]+|[▁-█]+", "0", " ".join(line.split()[:2])) for line in lines(svg)]


def test_a_terminals_picture_is_what_the_command_prints():
    again = load("terminal")

    assert shape(again.demo()) == shape(text_of("demo")), "run: python docs/pictures/draw.py demo"
