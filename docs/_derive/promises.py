"""The table of promises on the page on reliability, from ``tests/promises.toml``."""

from __future__ import annotations

import re
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

from _derive.markdown import by_file, sentences, table

__all__ = ["promises", "promises_in_chinese"]

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "promises.toml"


def promises() -> str:
    """Return the promises, a table for each subject."""
    rows = _rows()
    tests = {test for row in rows for test in row["tests"]}
    parts = [f"{len(rows)} promises, {len(tests)} tests.\n"]
    for about, of_subject in groupby(rows, key=lambda row: row["about"]):
        parts += [f"### {about}\n", table(("promise", "where", "tests"), map(_cells, of_subject))]
    return "\n" + "\n".join(parts) + "\n"


def promises_in_chinese() -> dict[str, str]:
    """Return the Chinese of the cells: of each promise, and of the places where it is made, with links to Chinese pages."""
    said = {row["says"]: row["zh"] for row in _rows()}
    return said | {_places(row): "、".join(map(_linked_in_chinese, row["where"])) for row in _rows()}


def _rows() -> list[dict[str, Any]]:
    document: dict[str, Any] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return document["promise"]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return row["says"], _places(row), by_file(sentences(row["tests"]), "; ")


def _places(row: dict[str, Any]) -> str:
    return ", ".join(map(_linked, row["where"]))


def _linked(place: str) -> str:
    """Return a link from the folder of pages; the site of the pages has no README."""
    page, _, heading = place.partition("#")
    name = page.removeprefix("docs/").removesuffix(".md")
    shown = f"{name}: {heading.replace('-', ' ')}" if heading else name
    return shown if page == "README.md" else f"[{shown}]({place.removeprefix('docs/')})"


def _linked_in_chinese(place: str) -> str:
    """Return a link from the folder of Chinese pages: a page has the headings of the English one, in the same order.

    A page that is there in English only, or a heading that is, is linked as it is.
    """
    page, _, anchor = place.partition("#")
    chinese = "docs/README.zh.md" if page == "README.md" else page.replace("docs/", "docs/zh/")
    if not (ROOT / chinese).is_file():
        return f"[{_headings(page)[0]}]({place.replace('docs/', '../')})"
    headings, english = _headings(chinese), _headings(page)
    if anchor and len(headings) != len(english):
        return f"[{_linked(place).partition(']')[0][1:]}]({place.replace('docs/', '../')})"
    heading = headings[[_slug(each) for each in english].index(anchor)] if anchor else ""
    title = "README" if page == "README.md" else headings[0]
    shown = f"{title}\uff1a{heading}" if heading else title
    target = page.removeprefix("docs/") + (f"#{_slug(heading)}" if heading else "")
    return shown if page == "README.md" else f"[{shown}]({target})"


def _headings(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^#+ (.+)$", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)


def _slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
