"""The tables of mutation testing on the page on reliability: one recorded run.

``python -m tests.ci.mutants --record`` writes the record.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from _derive.markdown import table

__all__ = ["RECORDED", "areas"]

RECORDED = Path(__file__).resolve().parent.parent / "internals" / "proof" / "mutants.json"


def areas() -> str:
    """Return the counts of each area, and what they were measured with."""
    record = _recorded()
    rows = [[name, *_row(area)] for name, area in record["areas"].items()]
    total = {key: sum(area[key] for area in record["areas"].values()) for key in COUNTS}
    every = [area["survivors"] for area in record["areas"].values()]
    rows.append(["**all**", *_row({**total, "survivors": [row for each in every for row in each]})])
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    head = [
        "area",
        "possible mutants",
        "tried",
        "noticed",
        "noticed of all",
        "of those that a test can notice",
    ]
    return f"{table(head, rows)}\nCommit {record['commit']}, {record['date']}; {versions}; {record['machine']}.\n"


COUNTS = ("possible", "mutants", "noticed")
HIDDEN = {"equivalent", "speed"}
"""Kinds of survivors that a test of behaviour cannot notice."""


def _row(area: dict[str, Any]) -> list[str]:
    can = area["mutants"] - sum(row["kind"] in HIDDEN for row in area["survivors"])
    return [*(str(area[key]) for key in COUNTS), _share(area["noticed"], area["mutants"]), _share(area["noticed"], can)]


def _share(some: int, all_of_them: int) -> str:
    return f"{100 * some / all_of_them:.0f} %" if all_of_them else "-"


def _recorded() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return document
