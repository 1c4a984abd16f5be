"""The derived part of the page on reliability about fuzzing: what the recorded runs have done.

``python -m tests.ci.fuzz run --all --record`` writes the record.
"""

from __future__ import annotations

import json
from pathlib import Path

from _derive.markdown import table

__all__ = ["RECORDED", "fuzz"]

RECORDED = Path(__file__).resolve().parent.parent / "internals" / "proof" / "fuzz.json"


def fuzz() -> str:
    """Return the table of the targets and their runs, and a line on the runs."""
    record = json.loads(RECORDED.read_text(encoding="utf-8"))
    targets = record["targets"]
    columns = ("target", "compared with", "inputs tried", "branches", "found and cured", "open")
    rows = [
        (
            f"`{name}`",
            each["oracle"],
            f"{each['executions']:,}",
            f"{each['edges']:,}",
            str(each["cured"] or ""),
            str(len(each["open"]) or ""),
        )
        for name, each in targets.items()
    ]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    minutes = sum(each["seconds"] for each in targets.values()) / 60
    place = f"Recorded on {record['date']} at commit `{record['commit']}`, on {record['machine']}"
    line = f"{place}: {minutes:,.0f} minutes in all, with {versions}."
    return f"\n{table(columns, rows)}\n{line}\n"
