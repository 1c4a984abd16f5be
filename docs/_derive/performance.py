"""The derived parts of the page on performance: the tables and sentences of one recorded run of the benchmarks.

``python -m benchmarks --json benchmarks/measured.json`` writes the run. A part that was not measured leaves its region
empty.
"""

from __future__ import annotations

import json
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Cell = str | float | None

__all__ = ["RECORDED", "TABLES", "goals", "regions"]

RECORDED = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "measured.json"
WIDTH = 130
AT = "100"
PLAIN, TLS, PER_CALL = "CPU ms per 1000 calls, no latency", "CPU ms per 1000 calls, TLS 1.3", "CPU ms per 1000 calls"
PEER, OURS = "aiohttp by hand", "rbim over "

TABLES = {
    "instructions": ("instructions", "Thousand instructions"),
    "start": ("import_time", "CPU ms"),
    "memory": ("memory", "Resident memory"),
    "tenants": ("tenants", "Tenants"),
    "pace": ("bulk", "Pace of a job"),
    "loading": ("loading", "A whole job"),
    "deliveries": ("callbacks", "CPU us"),
    "deliveries per second": ("callbacks", "Deliveries per second over"),
    "conversations": ("callbacks", "Events per second"),
}
"""The part and the beginning of the title of each table, by its region."""


def regions() -> dict[str, Callable[[], str]]:
    """Return the functions that make the regions of the page for users, by name."""
    tables = {name: partial(_region, *where) for name, where in TABLES.items() if name != "instructions"}
    return {"run": _run, "in short": _short, **tables}


def goals() -> dict[str, Callable[[], str]]:
    """Return the functions that make the regions of the page on how performance is measured."""
    return {"goals in short": _goals_in_short, "goals": _goals, "instructions": partial(_region, *TABLES["instructions"])}


def _recorded() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return document


def _result(part: str) -> dict[str, Any]:
    return next((result for result in _recorded()["results"] if result["part"] == part), {})


def _table(part: str, title: str) -> dict[str, Any]:
    return next((table for table in _result(part).get("tables", ()) if table["title"].startswith(title)), {})


def _region(part: str, title: str) -> str:
    """Return a table of the run as Markdown, below its title."""
    found = _table(part, title)
    if not found:
        return "\n"
    rows = [[_cell(cell, found["digits"]) for cell in row] for row in found["rows"]]
    note = f"\n{_wrapped(found['note'])}" if found["note"] else ""
    return f"\n{_wrapped(found['title'] + ':')}\n{_markdown(found['columns'], rows)}{note}\n"


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [[column or " " for column in columns], ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cell(cell: Cell, digits: int) -> str:
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else f"{cell:,.{digits}f}"


def _wrapped(text: str) -> str:
    return f"{textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)}\n"


# Sentences and tables that more than one table gives.


def _run() -> str:
    """Return where and how the run was made."""
    document = _recorded()
    rounds = {result["rounds"] for result in document["results"]}
    minutes = sum(result["seconds"] for result in document["results"]) / 60
    many = " or ".join(map(str, sorted(rounds)))
    how = "in one round" if rounds == {1} else f"as medians of {many} interleaved rounds"
    where = f"on one shared virtual machine ({document['machine']})"
    text = f"It took {minutes:.0f} minutes to measure them, {where}, {how}: {document['versions']}."
    return f"\n{_wrapped(text)}\n"


def _costs(title: str) -> dict[str, float]:
    """Return the cost of each client with a hundred calls in flight."""
    found = _table("throughput", title)
    if AT not in found.get("columns", ()):
        return {}
    column = found["columns"].index(AT)
    return {row[0]: row[column] for row in found["rows"] if row[column] is not None}


def _short() -> str:
    """Return the cost of each transport beside a client written by hand, the lowest first."""
    plain, tls = _costs(PLAIN), _costs(TLS)
    if PEER not in plain:
        return "\n"
    names = sorted((name for name in plain if name.startswith(OURS) or name.endswith("by hand")), key=plain.__getitem__)
    rows: list[list[str]] = []
    for name in names:
        encrypted = (tls.get(name), tls[name] / tls[PEER] if name in tls and PEER in tls else None)
        cells: tuple[Cell, ...] = (plain[name], plain[name] / plain[PEER], *encrypted)
        rows.append([name, *(_cell(cell, digits) for cell, digits in zip(cells, (0, 2, 0, 2), strict=True))])
    columns = ("client", "CPU ms per 1000 calls", "/ aiohttp", "TLS 1.3", "TLS 1.3, / aiohttp")
    return f"\n{_markdown(columns, rows)}\n"


def _judged() -> dict[bool, list[dict[str, Any]]]:
    """Return the goals that are missed (False) or met (True)."""
    goals = [goal for result in _recorded()["results"] for goal in result["goals"]]
    return {judged: [goal for goal in goals if goal["met"] is judged] for judged in (False, True)}


def _goals_in_short() -> str:
    """Return how many goals are met."""
    judged = _judged()
    met, missed = len(judged[True]), len(judged[False])
    return f"\n{_wrapped(f'{met} of {met + missed} goals are met, {missed} are missed.')}\n"


def _goals() -> str:
    """Return all goals: those that are missed first, then those that are met."""
    titles = {False: "Missed", True: "Met"}
    parts: list[str] = []
    for judged, found in _judged().items():
        rows = [[goal["name"], f"{goal['value']:,.2f}", _bound(goal)] for goal in found]
        parts += [_markdown((titles[judged], "measured", "goal"), rows)] if rows else []
    return "\n" + "\n".join(parts) + "\n"


def _bound(goal: dict[str, Any]) -> str:
    if goal["at_most"] is not None:
        return f"at most {goal['at_most']:.3g}"
    return "" if goal["at_least"] is None else f"at least {goal['at_least']:g}"
