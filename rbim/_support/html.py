"""Tables in HTML, as notebooks show a value by its ``_repr_html_``: escaped, and bounded in rows and characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from html import escape
from itertools import islice
from reprlib import repr as short_repr
from typing import TYPE_CHECKING, Any, cast

import attrs

from rbim._support.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MOST_ROWS", "record_html", "table_html"]

MOST_ROWS = 50
MOST_INSIDE = 5
"""Rows of a table that is deeper than the list of an answer."""

MOST_CHARACTERS = 300
DEEPEST = 2
"""Tables inside tables; below, a value is text."""

_CELL = ' style="text-align:left;vertical-align:top"'


def table_html(
    rows: Iterable[Sequence[object]], *, total: int, heading: Sequence[str] = (), caption: str = "", depth: int = 0
) -> str:
    """Return a table of the first rows of ``total``, and a row with the number of the others.

    ``depth``: the number of tables around it.
    """
    parts, most = ["<table>"], MOST_ROWS if depth <= 1 else MOST_INSIDE
    if caption:
        parts.append(f'<caption style="text-align:left;white-space:nowrap">{_text(caption)}</caption>')
    if heading:
        parts.append(f"<thead><tr>{''.join(f'<th{_CELL}>{_text(each)}</th>' for each in heading)}</tr></thead>")
    parts.append("<tbody>")
    columns = len(heading)
    for row in islice(rows, most):
        columns = max(columns, len(row))
        parts.append(f"<tr>{''.join(f'<td{_CELL}>{_value(each, depth + 1)}</td>' for each in row)}</tr>")
    if total > most:
        parts.append(f'<tr><td colspan="{columns}"{_CELL}>… and {total - most:,} more</td></tr>')
    return "".join([*parts, "</tbody></table>"])


def record_html(record: object) -> str:
    """Return an attrs value as a table of its fields; the fields that its repr leaves out are left out here, too."""
    fields = _shown(record)
    return table_html(fields.items(), caption=type(record).__name__, total=len(fields))


def _shown(record: object) -> dict[str, Any]:
    declared = attrs.fields(cast("type[attrs.AttrsInstance]", type(record)))
    return {each.name: getattr(record, each.name) for each in declared if each.repr}


def _value(value: object, depth: int) -> str:
    try:
        return _cell(value, depth)
    except Exception:  # a class of one's own whose text cannot be made, or a number with thousands of digits
        return _text(f"<{type(value).__name__}>")


def _cell(value: object, depth: int) -> str:
    if value is None:
        return ""
    if isinstance(value, Enum):
        return _text(value.name)
    if not isinstance(value, (Mapping, list, tuple)) and not attrs.has(type(value)):
        return _text(str(value))
    if depth > DEEPEST:
        return _text(short_repr(cast("Any", value)))
    if isinstance(value, (list, tuple)):
        return _several(cast("Sequence[object]", value), depth)
    entries = cast("Mapping[object, object]", value) if isinstance(value, Mapping) else _shown(cast("Any", value))
    return table_html(entries.items(), total=len(entries), depth=depth) if entries else ""


def _several(values: Sequence[object], depth: int) -> str:
    """Return a table with a row for each value, and a column for each field if all are of one attrs class."""
    if not values:
        return ""
    kinds = {type(value) for value in values}
    if len(kinds) == 1 and attrs.has(next(iter(kinds))):
        rows = (tuple(_shown(value).values()) for value in values)
        return table_html(rows, heading=tuple(_shown(values[0])), total=len(values), depth=depth)
    return table_html(((value,) for value in values), total=len(values), depth=depth)


def _text(text: str) -> str:
    return escape(one_line(text, MOST_CHARACTERS))
