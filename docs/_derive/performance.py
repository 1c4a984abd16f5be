"""The derived parts of the pages on performance: the tables and sentences of one recorded run of the benchmarks.

``python -m benchmarks --json benchmarks/measured.json`` writes the run. A part that was not measured leaves its region
empty.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Cell = str | float | None

__all__ = ["RECORDED", "goals", "regions"]

RECORDED = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "measured.json"
WIDTH = 130
AT = "100"
PLAIN, TLS, PER_CALL = "CPU ms per 1000 calls, no latency", "CPU ms per 1000 calls, TLS 1.3", "CPU ms per 1000 calls"
PEER, OURS = "aiohttp by hand", "rbim over "

BY_HAND = ("receiver", "FastAPI")
"""How the rows of servers on the page begin: receivers, and endpoints written by hand."""


def regions() -> dict[str, Callable[[], str]]:
    """Return the functions that make the regions of the page for users, by name."""
    return {"in short": _short, "deliveries": _deliveries, "tenants": _tenants}


def goals() -> dict[str, Callable[[], str]]:
    """Return the functions that make the regions of the page on how performance is measured."""
    return {"run": _run, "goals": _goals, "instructions": _instructions}


def _recorded() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return document


def _result(part: str) -> dict[str, Any]:
    return next((result for result in _recorded()["results"] if result["part"] == part), {})


def _table(part: str, title: str) -> dict[str, Any]:
    return next((table for table in _result(part).get("tables", ()) if table["title"].startswith(title)), {})


def _some(part: str, title: str, columns: dict[str, int]) -> list[list[str]]:
    """Return the rows of a table, each with its name and these columns only, in so many digits."""
    found = _table(part, title)
    if not found:
        return []
    places = {found["columns"].index(column): digits for column, digits in columns.items()}
    return [[row[0], *(_cell(row[place], digits) for place, digits in places.items())] for row in found["rows"]]


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [[column or " " for column in columns], ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cell(cell: Cell, digits: int) -> str:
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else f"{cell:,.{digits}f}"


def _wrapped(text: str) -> str:
    return f"{textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)}\n"


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
        cells: tuple[Cell, ...] = (plain[name], plain[name] / plain[PEER], tls.get(name))
        rows.append([name, *(_cell(cell, digits) for cell, digits in zip(cells, (0, 2, 0), strict=True))])
    columns = ("client", "CPU ms per 1000 calls", "/ aiohttp", "TLS 1.3")
    return f"\n{_markdown(columns, rows)}\n"


def _deliveries() -> str:
    """Return the cost of a delivery, and how many a second are accepted, for receivers and endpoints written by hand."""
    costs = _some("callbacks", "CPU us", {"CPU us per event": 0})
    speeds = _some("callbacks", "Deliveries per second over", {"per second": 0, "p99 ms": 0})
    rows = [[*cost, *speed[1:]] for cost, speed in zip(costs, speeds, strict=True) if cost[0].startswith(BY_HAND)]
    return f"\n{_markdown(('server', 'CPU us per event', 'events per second', 'p99 ms'), rows)}\n"


def _tenants() -> str:
    """Return what one client and many add to a process, with a transport for each and with one for all."""
    rows = _some("tenants", "Tenants", {"MiB": 0, "sockets": 0})
    some = [row for row in rows if row[0].startswith(("1 client", "1,000 clients"))]
    return f"\n{_markdown(('clients over TLS', 'MiB', 'sockets'), some)}\n"


def _instructions() -> str:
    """Return the instructions of a call and of its parts."""
    column = "thousand instructions"
    return f"\n{_markdown(('', column), _some('instructions', 'Thousand', {column: 0}))}\n"


def _goals() -> str:
    """Return how many goals are met, and all that are missed."""
    goals = [goal for result in _recorded()["results"] for goal in result["goals"] if goal["met"] is not None]
    missed = [goal for goal in goals if not goal["met"]]
    told = _wrapped(f"{len(goals) - len(missed)} of {len(goals)} goals are met. These are missed:")
    rows = [[goal["name"], f"{goal['value']:,.2f}", _bound(goal)] for goal in missed]
    return f"\n{told}\n{_markdown(('goal', 'measured', 'asked'), rows)}\n"


def _bound(goal: dict[str, Any]) -> str:
    if goal["at_most"] is not None:
        return f"at most {goal['at_most']:.3g}"
    return "" if goal["at_least"] is None else f"at least {goal['at_least']:g}"
