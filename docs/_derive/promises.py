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
        parts += [f"### {about}\n", table(("promise", "tests"), map(_cells, of_subject))]
    return "\n" + "\n".join(parts) + "\n"


def _rows() -> list[dict[str, Any]]:
    document: dict[str, Any] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return document["promise"]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return row["says"], node_ids(row["tests"])
