"""The pictures: that of the architecture is what the code says, those of terminals are what the commands print, aligned."""

import re
import unicodedata
from xml.etree import ElementTree as ET

import pytest

from helpers.pages import docs_module
from helpers.paths import ROOT

pytest.importorskip("pty", reason="pseudo-terminals are POSIX's")

PICTURES = ROOT / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
CELL = 12.2  # pixels: the width of a letter in rich's terminals


def text_of(name):
    return (PICTURES / f"{name}.svg").read_text(encoding="utf-8")


def cells(text):
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def lines(svg):
    """Return a terminal's lines, put together from where their parts stand."""
    rows = {}
    for each in ET.fromstring(svg).iter(f"{SVG}text"):
        line = rows.setdefault(float(each.get("y")), "")
        blanks = " " * (round(float(each.get("x")) / CELL) - cells(line))
        rows[float(each.get("y"))] = line + blanks + each.text.replace("\xa0", " ")
    return [rows[y] for y in sorted(rows)]


def test_the_picture_of_a_soak_is_what_was_recorded_and_stands_on_its_page():
    assert docs_module("soak_chart", PICTURES).soak() == text_of("soak"), "run: python docs/pictures/draw.py soak"
    assert "](../pictures/soak.svg)" in (ROOT / "docs" / "internals" / "reliability.md").read_text(encoding="utf-8")


def test_the_architecture_is_what_the_code_says():
    assert docs_module("architecture", PICTURES).architecture() == text_of("architecture"), (
        "run: python docs/pictures/draw.py architecture"
    )


def shape(svg):
    """Return what is the same each time: the first words, without figures."""
    return [re.sub(r"[\d,.]+|[▁-█]+", "0", " ".join(line.split()[:2])) for line in lines(svg)]


def test_a_terminals_picture_is_what_the_command_prints():
    again = docs_module("terminal", PICTURES)

    assert shape(again.demo()) == shape(text_of("demo")), "run: python docs/pictures/draw.py demo"
