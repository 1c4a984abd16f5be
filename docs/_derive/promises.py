"""The table of promises on the page on reliability, from ``tests/promises.toml``."""

from __future__ import annotations

import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

from _derive.markdown import by_file, sentences, table

__all__ = ["promises"]

TABLE = Path(__file__).resolve().parents[2] / "tests" / "promises.toml"


def promises() -> str:
    """Return the promises, a table for each subject."""
    document: dict[str, Any] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = document["promise"]
    tests = {test for row in rows for test in row["tests"]}
    parts = [f"{len(rows)} promises, {len(tests)} tests.\n"]
    for about, of_subject in groupby(rows, key=lambda row: row["about"]):
        parts += [f"### {about}\n", table(("promise", "where", "tests"), map(_cells, of_subject))]
    return "\n" + "\n".join(parts) + "\n"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return row["says"], ", ".join(map(_linked, row["where"])), by_file(sentences(row["tests"]), "; ")


def _linked(place: str) -> str:
    """Return a link from the folder of pages; the site of the pages has no README."""
    page, _, heading = place.partition("#")
    name = page.removeprefix("docs/").removesuffix(".md")
    shown = f"{name}: {heading.replace('-', ' ')}" if heading else name
    return shown if page == "README.md" else f"[{shown}]({place.removeprefix('docs/')})"
