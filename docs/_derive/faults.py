"""The fault matrix on the page on reliability, from ``docs/proof/faults.json``."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from _derive.markdown import code, table
from _derive.proof import recorded, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["faults"]

KINDS = ["safe", "idempotent", "never"]
NAMES = {
    "asyncio": "AsyncioTransport",
    "httpx": "HttpxTransport",
    "httpx2": "Httpx2Transport",
    "aiohttp": "AiohttpTransport",
    "pyreqwest": "PyreqwestTransport",
}


def faults() -> str:
    """Return the matrix: faults of a phase with the same result stand in one row."""
    record = recorded("faults")
    rows: list[tuple[str, ...]] = []
    for phase, of_phase in groupby(record["cells"], key=lambda cell: cell["phase"]):
        together: dict[tuple[str, ...], list[str]] = {}
        for cell in of_phase:
            for fault, told in _told(cell):
                together.setdefault(_result(told), []).append(fault)
        rows += [(phase, "; ".join(of_result), *result) for result, of_result in together.items()]
    without = sum(len(cell.get("without", ())) for cell in record["cells"])
    calls = (len(record["cells"]) * len(record["transports"]) - without) * len(KINDS)
    names = ", ".join(code(NAMES[name]) for name in record["transports"])
    about = (
        f"{len(record['cells'])} faults, {len(record['transports'])} transports ({names}), three kinds of operation: "
        f"{calls:,} calls. Where no transport is named, all agree.\n"
    )
    head = ("phase", "fault", "error", "outcome", "sent again")
    return f"\n{run_of(record, 'python -m tests.faults')}\n{about}\n{table(head, rows)}\n"


def _told(cell: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    but = ", ".join(code(NAMES[name]) for name in cell.get("without", ()))
    yield f"{cell['fault']} (not tested with {but})" if but else cell["fault"], cell
    for name, told in cell.get("but", {}).items():
        yield f"{cell['fault']}, with {code(NAMES[name])}", told


def _result(told: dict[str, Any]) -> tuple[str, ...]:
    again = "every kind" if told["again"] == KINDS else ", ".join(told["again"]) or "no"
    if told["error"] == "TimestampExpired" and told["again"]:
        again += ", once"
    if not told["error"]:
        return "none: it is answered", "", "no"
    named = told["error"] if told["error"].startswith("the ") else code(told["error"])
    return named, told["outcome"], again
