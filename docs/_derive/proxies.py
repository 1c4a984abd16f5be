"""The tables of real proxies on the page on reliability, from ``docs/internals/proof/proxies.json``."""

from __future__ import annotations

from typing import Any

from _derive.markdown import table
from _derive.proof import recorded, run_of

__all__ = ["proxies"]

CALLS = {"calls": "calls", "unknown": "unknown", "again": "sent again", "lost": "lost", "unseen": "doubled unseen"}
COPIES = {"copies": "copies", "acknowledged": "acknowledged", "lost": "acknowledged and lost", "twice": "handled twice"}


def proxies() -> str:
    """Return the tables: calls through a proxy, and copies through one."""
    record = recorded("proxies")
    runs: list[dict[str, Any]] = record["runs"]
    parts = [
        run_of(record, "python -m tests.ci.proxies"),
        "Calls, over all transports:\n",
        _table([run for run in runs if "calls" in run], CALLS),
        "Copies from the emulator to `rbim callback serve`, in normal mode, each sent once:\n",
        _table([run for run in runs if "copies" in run], COPIES),
    ]
    return "\n" + "\n".join(parts) + "\n"


def _table(runs: list[dict[str, Any]], columns: dict[str, str]) -> str:
    """Return what happened to all proxies together, by what was done to them meanwhile."""
    rows = [
        (what, *(f"{sum(run[key] for run in runs if run['what'] == what):,}" for key in columns))
        for what in dict.fromkeys(run["what"] for run in runs)
    ]
    return table(("meanwhile", *columns.values()), rows)
