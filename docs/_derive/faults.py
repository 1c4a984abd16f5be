"""The fault matrix on the page on reliability, from ``docs/internals/proof/faults.json``."""

from __future__ import annotations

from typing import Any

from _derive.markdown import code, table
from _derive.proof import recorded, run_of

__all__ = ["faults"]

KINDS = ["safe", "idempotent", "never"]
NAMES = {
    "asyncio": "AsyncioTransport",
    "httpx": "HttpxTransport",
    "httpx2": "Httpx2Transport",
    "aiohttp": "AiohttpTransport",
}


def faults() -> str:
    """Return the matrix: all faults with the same result stand in one row, by their phases."""
    record = recorded("faults")
    by_result: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for cell in record["cells"]:
        by_result.setdefault(_result(cell), {}).setdefault(cell["phase"], []).append(cell["fault"])
    rows = [
        (*result, "<br>".join(f"*{phase}:* {'; '.join(found)}" for phase, found in phases.items()))
        for result, phases in by_result.items()
    ]
    calls = len(record["cells"]) * len(record["transports"]) * len(KINDS)
    names = ", ".join(code(NAMES[name]) for name in record["transports"])
    about = (
        f"{len(record['cells'])} faults, {len(record['transports'])} transports ({names}), three kinds of operation: "
        f"{calls:,} calls. All transports agree.\n"
    )
    head = ("error", "outcome", "sent again", "faults, by the phase of the call")
    return f"\n{run_of(record, 'python -m tests.ci.faults')}\n{about}\n{table(head, rows)}\n"


def _result(told: dict[str, Any]) -> tuple[str, ...]:
    again = "every kind" if told["again"] == KINDS else ", ".join(told["again"]) or "no"
    if told["error"] == "TimestampExpired" and told["again"]:
        again += ", once"
    if not told["error"]:
        return "none: it is answered", "", "no"
    named = told["error"] if told["error"].startswith("the ") else code(told["error"])
    return named, told["outcome"], again
