"""The pictures: that of the architecture is what the code says, those of terminals are what the commands print, aligned."""

import importlib
import re
import sys
import tomllib
import unicodedata
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from helpers.paths import ROOT

pytest.importorskip("pty", reason="pseudo-terminals are POSIX's")

PICTURES = ROOT / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
COMMITTED = ["architecture", "demo", "invite"]
TERMINALS = ["demo", "invite"]
CELL = 12.2  # pixels: the width of a letter in rich's terminals
READABLE = 4.5  # the contrast that WCAG 2 asks for


def load(name):
    """Import a module of the pictures' folder, which is no package."""
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
    """Return the texts of a picture, each with its place."""
    found = ET.fromstring(svg).iter(f"{SVG}text")
    return [(float(each.get("x")), float(each.get("y")), each.text.replace("\xa0", " "), each) for each in found]


def lines(svg):
    """Return a terminal's lines, put together from where their parts stand."""
    rows = {}
    for x, y, text, _ in texts(svg):
        line = rows.setdefault(y, "")
        rows[y] = line + " " * (round(x / CELL) - cells(line)) + text
    return [rows[y] for y in sorted(rows)]


def test_every_picture_has_its_command_and_its_place_in_both_readmes():
    assert list(load("draw").PICTURES) == [*COMMITTED, "soak"]
    for page, folder in (("README.md", "docs/pictures"), ("docs/README.zh.md", "pictures")):
        text = (ROOT / page).read_text(encoding="utf-8")
        shown = re.findall(rf"!\[[^\]]+\]\({folder}/([\w-]+)\.svg\)", text)
        assert set(COMMITTED) <= set(shown)
        assert [name for name in shown if not (PICTURES / f"{name}.svg").exists()] == []


def test_a_picture_that_there_is_not_is_said(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["draw.py", "nothing"])

    assert load("draw").main() == 2
    assert "there are architecture, demo, invite, soak" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*COMMITTED, "soak"])
def test_a_picture_needs_nothing_from_elsewhere(name):
    svg = text_of(name)
    assert set(re.findall(r"https?://[^\s\"<]+", svg)) - {"http://www.w3.org/2000/svg"} <= {
        "https://www.textualize.io",  # a comment of rich's
        *re.findall(r"http://127\.0\.0\.1:\d+\.?", svg),
    }
    for banned in ("@font-face", "<script", "<image", str(Path.home()), "tmp"):
        assert banned not in svg


def test_the_picture_of_a_soak_is_what_was_recorded_and_stands_on_its_page():
    assert load("soak_chart").soak() == text_of("soak"), "run: python docs/pictures/draw.py soak"
    assert "](pictures/soak.svg)" in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


# ----------------------------------------------------------------------------- the architecture


def test_the_architecture_is_what_the_code_says():
    assert load("architecture").architecture() == text_of("architecture"), "run: python docs/pictures/draw.py architecture"


def test_every_module_of_every_layer_is_drawn_the_highest_on_top():
    drawn = {text.rstrip("/"): y for _, y, text, _ in texts(text_of("architecture"))}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    floors = [floor.split(" | ") for floor in contract["layers"]]
    for upper, lower in pairwise(floors):
        assert max(drawn[name] for name in upper) < min(drawn[name] for name in lower)
    inside = {path.stem for path in (ROOT / "rbim").iterdir()} - {"__init__", "__main__", "__pycache__", "py"}
    assert inside == {name for floor in floors for name in floor}


def luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_architecture_is_legible_on_any_page():
    """It brings its own background, and each text contrasts with, and stays inside, what it stands on."""
    root = ET.fromstring(text_of("architecture"))
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = [
        (float(each.get("x", 0)), float(each.get("y", 0)), float(each.get("width")), float(each.get("height")), each)
        for each in root.iter(f"{SVG}rect")
        if each.get("width") != "100%"
    ]
    (behind,) = (each for each in root.iter(f"{SVG}rect") if each.get("width") == "100%")
    assert (behind.get("height"), behind.get("opacity")) == ("100%", None)
    for x, y, text, element in texts(text_of("architecture")):
        # in a font that is wide, where the picture does not say how long a text is
        long = float(element.get("textLength") or 7.3 * len(text))
        under = [box for box in boxes if box[0] <= x < box[0] + box[2] and box[1] <= y < box[1] + box[3]]
        surface = under[-1][4] if under else behind
        assert contrast(element.get("fill"), surface.get("fill")) >= READABLE, text
        assert x + long <= (under[-1][0] + under[-1][2] if under else width), text
        assert y < height


# --------------------------------------------------------------------------------- the terminals


@pytest.mark.parametrize("name", TERMINALS)
def test_a_terminals_texts_have_the_width_of_their_cells_and_none_covers_another(name):
    svg = text_of(name)
    ends = {}
    for x, y, text, element in texts(svg):
        assert float(element.get("textLength")) == pytest.approx(cells(text) * CELL, abs=0.1)
        assert x + 0.1 >= ends.get(y, 0)
        ends[y] = x + cells(text) * CELL
    assert max(ends.values()) <= 100 * CELL + 0.1
    (width,) = re.findall(r'viewBox="0 0 ([\d.]+) ', svg)
    assert float(width) >= 100 * CELL


@pytest.mark.parametrize("name", TERMINALS)
def test_a_terminals_chinese_stands_alone_so_that_what_follows_is_aligned(name):
    mixed = [text for _, _, text, _ in texts(text_of(name)) if cells(text) not in {len(text), 2 * len(text)}]
    assert mixed == []
    assert any(cells(text) > len(text) for _, _, text, _ in texts(text_of(name)))


def test_the_columns_of_the_demo_are_aligned():
    shown = lines(text_of("demo"))
    heading = next(line for line in shown if line.startswith("group"))
    rows = [line for line in shown if line.startswith(("产品公告", "客户交流", "内部测试"))][:3]
    assert [cells(row) for row in rows] == [len(heading)] * 3
    assert [row.split()[3:5] for row in rows] == [["1,900", "1,885"], ["1,700", "1,687"], ["1,400", "1,388"]]


def shape(svg):
    """Return what is the same each time: the first words, without figures."""
    return [re.sub(r"[\d,.]+|[▁-█]+", "0", " ".join(line.split()[:2])) for line in lines(svg)]


@pytest.mark.parametrize("name", ["demo", pytest.param("invite", marks=pytest.mark.slow)])
def test_a_terminals_picture_is_what_the_command_prints(name):
    again = load("terminal")

    assert shape(getattr(again, name)()) == shape(text_of(name)), f"run: python docs/pictures/draw.py {name}"


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("a\r\nb\r\n", "a\nb"),
        ("10%\r\x1b[2K20%\r\n", "20%"),
        ("one\r\ntwo\r\x1b[2K\x1b[1A\x1b[2K1\r\n2\r\n", "1\n2"),
        ("\x1b[?25l\x1b[32mgreen\x1b[0m\x1b[?25h", "\x1b[32mgreen\x1b[0m"),
    ],
)
def test_the_screen_is_what_a_terminal_shows_at_the_end(written, seen):
    assert load("terminal")._screen(written) == seen


def test_a_line_that_is_too_long_goes_on_in_the_next():
    svg = load("terminal").drawn("long", "公" * 51 + "\n" + "a" * 250)

    assert [cells(line) for line in lines(svg)] == [6, 100, 2, 100, 100, 50]
