"""The results of the benchmarks: tables and goals, as text or JSON."""

from __future__ import annotations

import platform
import statistics
from importlib import metadata
from typing import TYPE_CHECKING, Any

from attrs import asdict, field, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Goal", "Options", "Part", "Result", "Table", "interleaved", "ratio", "shown", "shown_cell", "versions"]


@frozen(kw_only=True)
class Options:
    """How thoroughly to measure.

    ``rounds``: interleaved rounds. ``quick``: only check that everything runs. ``full``: also what takes minutes.
    ``against``: the revision with which instructions are compared, ``tolerance``: the share by which they may grow.
    """

    rounds: int = 5
    quick: bool = False
    full: bool = False
    against: str = ""
    tolerance: float = 0.05


@frozen(kw_only=True)
class Table:
    """Figures side by side: the name of each row and its cells, in the order of ``columns`` (the first names the rows).

    A cell is a number (shown with ``digits`` digits), a text, or None if there is no figure.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    digits: int = 1
    note: str = ""


@frozen(kw_only=True)
class Goal:
    """One figure and its goal: at most ``at_most``, or at least ``at_least``; with neither, a figure without a goal."""

    name: str
    value: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the figure meets the goal; None without a goal."""
        if self.at_most is None and self.at_least is None:
            return None
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    @property
    def bound(self) -> str:
        """The goal as text, empty without a goal."""
        if self.at_most is not None:
            return f"at most {self.at_most:.3g}"
        return "" if self.at_least is None else f"at least {self.at_least:g}"


@frozen
class Part:
    """One table of a result, with its goals and notes."""

    table: Table
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = ()


@frozen(kw_only=True)
class Result:
    """The result of one part."""

    part: str
    tables: tuple[Table, ...] = ()
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def met(self) -> bool:
        """Whether all goals are met."""
        return all(goal.met is not False for goal in self.goals)

    def document(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        document = asdict(self)
        for goal, row in zip(self.goals, document["goals"], strict=True):
            row["met"] = goal.met
        return document


def interleaved(measures: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run each measure once per round, in turn, so that a ratio compares two figures that are near in time."""
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            figures[name].append(measure())
    return figures


def ratio(figures: dict[str, list[float]], ours: str, theirs: str) -> float:
    """Return the median, over the rounds, of the ratio of two figures of the same round."""
    return statistics.median(a / b for a, b in zip(figures[ours], figures[theirs], strict=True))


def versions(*packages: str) -> str:
    """Return the versions of Python and of the installed packages, in one line."""
    found = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def shown(result: Result) -> str:
    """Return the result as text: its tables, its notes, its goals."""
    parts = [f"== {result.part}"]
    parts += [_table(table) for table in result.tables]
    parts += result.notes
    if result.goals:
        met = {True: "yes", False: "NO", None: "-"}
        rows = [(goal.name, f"{goal.value:,.2f}", goal.bound or "-", met[goal.met]) for goal in result.goals]
        parts.append(_columns([("", "measured", "goal", "met"), *rows]))
    return "\n\n".join(parts)


def _table(table: Table) -> str:
    rows = [table.columns, *(tuple(shown_cell(cell, table.digits) for cell in row) for row in table.rows)]
    return "\n".join(filter(None, (table.title, _columns(rows), table.note)))


def shown_cell(cell: str | float | None, digits: int) -> str:
    """Return a cell of a table as text."""
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else f"{cell:,.{digits}f}"


def _columns(rows: Sequence[Iterable[str]]) -> str:
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.ljust(width) if not number else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
