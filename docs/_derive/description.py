"""The page on the interface description: each statement with its place in rbim and its tests, from ``tests/description``."""

from __future__ import annotations

import tomllib
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from _derive.markdown import code, node_ids, table

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["TABLE", "Row", "description_page", "rows"]

TABLE = Path(__file__).resolve().parents[2] / "tests" / "description"


def _texts(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value)


@frozen(kw_only=True)
class Row:
    """One statement of the interface description, in our own words, or one gap: a fact that it says it does not show.

    ``where`` are places in the package, ``rbim/....py:Name``. ``tests`` are pytest's node ids; brackets, if any, have one or
    more adjoining parameters, and select the cases with these. ``fields`` are the fields of ``Dialect`` or ``Rules`` that
    the statement leaves open; ``no_field`` is the reason why a gap needs none.
    """

    number: int
    gap: bool
    section: str
    part: str = ""
    says: str
    where: tuple[str, ...] = field(converter=_texts)
    tests: tuple[str, ...] = field(converter=_texts)
    fields: tuple[str, ...] = field(default=(), converter=_texts)
    no_field: str = ""

    @property
    def name(self) -> str:
        """The number as the page shows it: ``17``, or ``G3`` for a gap."""
        return f"G{self.number}" if self.gap else str(self.number)


def rows() -> list[Row]:
    """Return the rows of the table, in the order of the description. Raises TypeError for an unknown or missing key."""
    found: list[Row] = []
    for path in sorted(TABLE.glob("*.toml")):
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        for key in ("statement", "gap"):
            found += [Row(gap=key == "gap", section=document["section"], **row) for row in document.get(key, ())]
    return found


INTRO = """# The interface description, statement by statement

<!-- This page is made by `python docs/derive.py` from `tests/description/*.toml`: change those files, not the page. -->

The {statements} statements of the interface description in our own words, and {gaps} facts that it does not show.
Each has its place in `rbim/` and the tests in `tests/` that fail if it does not hold. A statement that leaves a
choice names the fields of the [dialect or of the emulator's rules](../dialect.md) that make it. All shapes are in
`tests/description/test_shapes.py`, as bytes that were written by hand.
"""


def description_page() -> str:
    """Return the page."""
    every = rows()
    gaps = sum(row.gap for row in every)
    parts = [INTRO.format(statements=len(every) - gaps, gaps=gaps)]
    for section, of_section in groupby(every, attrgetter("section")):
        parts.append(f"## {section}\n")
        # statements and gaps of one part together, in the order in which the parts first occur
        by_part: dict[str, list[Row]] = {}
        for row in of_section:
            by_part.setdefault(row.part, []).append(row)
        for part, of_part in by_part.items():
            parts += [f"### {part}\n"] if part else []
            parts.append(table(("statement", "proof"), map(_cells, of_part)))
    return "\n".join(parts)


def _says(row: Row) -> str:
    says = f"*Not shown:* {row.says}" if row.gap else row.says
    if row.fields:
        says += f" Dialect: {', '.join(map(code, row.fields))}."
    return f"{says} {row.no_field}" if row.no_field else says


def _cells(row: Row) -> tuple[str, ...]:
    places = "<br>".join(code(place.removeprefix("rbim/")) for place in row.where)
    return f"{row.name}: {_says(row)}", f"{places}<br>{node_ids(row.tests)}"
