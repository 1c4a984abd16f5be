"""The derived part of the page on reliability about simulation: a table of recorded runs, and one of planted faults.

``python -m tests.simulation SCENARIO --seeds A-B --record`` and ``--planted --record`` write ``simulation.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _derive.markdown import code, table

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["runs"]

RECORDED = Path(__file__).resolve().parents[1] / "internals" / "proof" / "simulation.json"

HEAD = ("scenario", "seeds run", "seeds that failed", "steps of tasks", "hours simulated", "requests or deliveries")
HEAD += ("planted faults found", "at the latest at seed")


def runs() -> str:
    """Return the table of scenarios, with the code and the time of their runs below it."""
    content: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    scenarios = sorted({*content["pieces"], *(each["scenario"] for each in content["faults"].values())})
    faults = {name: [each for each in content["faults"].values() if each["scenario"] == name] for name in scenarios}
    rows = [_row(name, content["pieces"].get(name, {}), faults[name]) for name in scenarios]
    told = [*(piece for pieces in content["pieces"].values() for piece in pieces.values()), *content["faults"].values()]
    return f"\n{table(HEAD, rows)}\n{_missed(content['faults'])}{_when(told)}\n"


def _row(name: str, pieces: dict[str, Any], faults: list[dict[str, Any]]) -> tuple[str, ...]:
    counts = [int(last) - int(first) + 1 for first, last in (seeds.split("-") for seeds in pieces)]
    failed = sorted(int(seed) for piece in pieces.values() for seed in piece["failures"])
    found = [each["seed"] for each in faults if each["broke"]]
    return (
        code(name),
        f"{sum(counts):,}",
        ", ".join(map(str, failed)) or "none",
        f"{sum(piece['steps'] for piece in pieces.values()):,}",
        f"{sum(piece['hours'] for piece in pieces.values()):,.0f}",
        f"{sum(piece['served'] for piece in pieces.values()):,}",
        f"{len(found)} of {len(faults)}",
        str(max(found, default="")),
    )


def _missed(faults: dict[str, Any]) -> str:
    missed = sorted(name for name, each in faults.items() if not each["broke"])
    return f"Not found: {', '.join(map(code, missed))}.\n\n" if missed else ""


def _when(told: Iterable[dict[str, Any]]) -> str:
    """Return when, with what, and with which code these were run."""
    records = list(told)
    days = sorted({each["date"] for each in records})
    commits = sorted({each["commit"] for each in records}, key=[each["commit"] for each in records].index)
    pythons = sorted({each["python"] for each in records})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"Run {when} with Python {', '.join(pythons)}, at the commits {', '.join(map(code, commits))}."
