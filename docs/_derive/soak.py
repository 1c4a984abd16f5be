"""The derived part of the page on reliability about soaks: the figures of the recorded run.

``python -m tests.ci.soak --record FILE`` writes the run, ``python docs/pictures/draw.py soak`` draws it.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .markdown import table

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["recorded", "soak"]

RECORDED = Path(__file__).resolve().parent.parent / "internals" / "proof" / "soak.json"
SHARED = {
    "memory": "RSS, KiB",
    "heap": "malloc, KiB",
    "blocks": "objects",
    "descriptors": "descriptors",
    "connections": "connections",
    "threads": "threads",
    "tasks": "tasks",
}


def recorded() -> dict[str, Any]:
    """Return the recorded run."""
    document: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return document


def soak() -> str:
    """Return the table of the figures, and a sentence on the run."""
    document = recorded()
    runs = document["runs"]
    rows = [[name, *(_trend(run, figure) for run in runs)] for figure, name in SHARED.items()]
    figures = dict.fromkeys(each["figure"] for run in runs for each in run["verdicts"])
    rows += [[f"{name}, KiB", *(_trend(run, name) for run in runs)] for name in figures if name not in SHARED]
    rows.append(["requests", *(f"{run['counts'].get('requests', 0):,}" for run in runs)])
    minutes = " or ".join(sorted({f"{run['minutes']:g}" for run in runs}))
    rates = " or ".join(sorted({f"{run['rate']:g}" for run in runs}))
    said = (
        f"Recorded on {document['date']} at commit `{document['commit']}`: {minutes} minutes, {rates} requests a second"
        f" each, on {document['machine']}.\n"
    )
    wrapped = textwrap.fill(said, 130, break_long_words=False, break_on_hyphens=False)
    return f"\n{wrapped}\n\n{table(['growth/bound', *(run['scenario'] for run in runs)], rows)}\n"


def _trend(run: Mapping[str, Any], figure: str) -> str:
    found = next((each for each in run["verdicts"] if each["figure"] == figure), None)
    if found is None:
        return ""
    return f"{found['growth']:+,.0f}/{found['allowed']:,.0f}" + ("" if found["flat"] else " **grows**")
