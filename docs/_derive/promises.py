"""The table of promises on the page on reliability, from ``tests/promises.toml``."""

from __future__ import annotations

import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

from _derive.markdown import node_ids, table

__all__ = ["promises"]

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "promises.toml"


def promises() -> str:
    """Return the promises, a table for each subject."""
    rows = _rows()
    tests = {test for row in rows for test in row["tests"]}
    parts = [f"{len(rows)} promises, {len(tests)} tests.\n"]
    for about, of_subject in groupby(rows, key=lambda row: row["about"]):
        parts += [f"### {about}\n", table(("promise, and where it is made", "tests"), map(_cells, of_subject))]
    return "\n" + "\n".join(parts) + "\n"


def _rows() -> list[dict[str, Any]]:
    document: dict[str, Any] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return document["promise"]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return f"{row['says']} ({_places(row)})", node_ids(row["tests"])


def _places(row: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(map(_linked, row["where"])))


def _linked(place: str) -> str:
    """Return a link from the folder of these pages; the site has no README."""
    name = place.partition("#")[0].removeprefix("docs/").removesuffix(".md")
    if name == "README":
        return name
    inside = place.startswith("docs/internals/")
    link = place.removeprefix("docs/internals/") if inside else place.replace("docs/", "../")
    return f"[{name.removeprefix('internals/')}]({link})"
