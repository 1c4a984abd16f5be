"""Rows back into a file: what a job did not do, in its input's own format and with the reason, ready to be fed back."""

from __future__ import annotations

import csv
import json
from functools import lru_cache
from typing import IO, TYPE_CHECKING, NamedTuple

from rbim.bulk.formats import ADDED
from rbim.bulk.reading_cells import checked, cleaned
from rbim.bulk.rows import Row
from rbim.errors import InvalidRequest
from rbim.message import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rbim.bulk.formats import Format

__all__ = ["Rejected", "write_rows"]

REASON = 500
"""Characters of a reason that are written."""

_AT_ONCE = 1000


class Rejected(NamedTuple):
    """A row that was not done: its ``state`` (refused, failed, unknown, skipped) and why."""

    group: str
    account: str
    user_name: str | None
    state: str
    reason: str


class _Echo:
    """A file for csv.writer, whose rows are then what it returns."""

    @staticmethod
    def write(text: str) -> str:
        return text


def _as_csv(shape: Format) -> Callable[[list[str]], str]:
    # Cells that begin with = + - @ stay as they are: the file is to be fed back, and an apostrophe before an account would
    # make it another account. Whoever opens it in a spreadsheet imports its columns as text.
    plain = csv.writer(_Echo(), delimiter=shape.delimiter, lineterminator=shape.line_end)
    quoting = csv.writer(_Echo(), delimiter=shape.delimiter, lineterminator=shape.line_end, quoting=csv.QUOTE_ALL)

    def line(cells: list[str]) -> str:
        text = "".join(cells)
        usual = text.isprintable() and all(cell == cleaned(cell) for cell in cells)
        written: str = (plain if usual else quoting).writerow(cells)
        return written

    return line


def _csv_lines(shape: Format, rows: Iterable[Rejected]) -> Iterator[str]:
    line = _as_csv(shape)
    yield line([*shape.columns(), *ADDED])
    for group, account, user_name, *added in rows:
        before = [] if shape.group is not None else [group]
        after = [] if shape.user_name_column is None else [user_name or ""]
        yield line([*before, account, *after, *added])


def _json_lines(shape: Format, rows: Iterable[Rejected]) -> Iterator[str]:
    for group, account, user_name, *added in rows:
        document = {} if shape.group is not None else {shape.group_column: group}
        document[shape.account_column] = account
        if user_name and shape.user_name_column is not None:
            document[shape.user_name_column] = user_name
        document |= zip(ADDED, added, strict=True)
        text = json.dumps(document, ensure_ascii=False)
        try:
            text.encode(shape.encoding)
        except UnicodeError:
            text = json.dumps(document)
        yield text + shape.line_end


def _text_lines(shape: Format, rows: Iterable[Rejected]) -> Iterator[str]:
    for group, account, _, *added in rows:
        if checked(group, account, None, None) != Row(group, account):
            reason = f"account: {account!r} cannot be written as a line of text that is read back as it is"
            raise InvalidRequest(reason, field="account")
        yield "\t".join((account, *added)) + shape.line_end


def _fitting(shape: Format, rows: Iterable[Rejected]) -> Iterator[Rejected]:
    """Yield rows that the format has places for, with reasons of one line that it can encode."""

    @lru_cache(maxsize=1000)
    def shown(reason: str) -> str:
        line = one_line(reason, REASON)
        return line.encode(shape.encoding, "backslashreplace").decode(shape.encoding)

    for row in rows:
        if shape.group is not None and row.group != shape.group:
            reason = f"group: {row.group!r} in a file without a column of groups, all of whose rows are for {shape.group!r}"
            raise InvalidRequest(reason, field="group")
        if row.user_name and (shape.user_name_column is None or shape.kind == "text"):
            reason = f"user_name: {row.user_name!r} in a file without a column of acting accounts"
            raise InvalidRequest(reason, field="user_name")
        yield row._replace(reason=shown(row.reason))


def write_rows(stream: IO[bytes], shape: Format, rows: Iterable[Rejected]) -> int:
    """Write rows as their input was written, with their state and reason in two more columns, and return their number.

    RowFile reads the file again, with the options that the input was read with. CSV always has a header; text has the
    account, a tab, the state, a tab and the reason. Accounts are never altered. Raises InvalidRequest where a row does not
    fit: another group or acting account than the format has a column for, an account that the encoding (or a line of text)
    has no characters for. In a reason, these become escapes.
    """
    writers = {"csv": _csv_lines, "jsonl": _json_lines, "text": _text_lines}
    count = 0
    waiting: list[bytes] = ["\ufeff".encode(shape.encoding)] if shape.bom else []
    for line in writers[shape.kind](shape, _fitting(shape, rows)):
        try:
            waiting.append(line.encode(shape.encoding))
        except UnicodeError as error:
            reason = f"account: {shape.encoding} has no characters for a part of {line!r}"
            raise InvalidRequest(reason, field="account") from error
        count += 1
        if len(waiting) >= _AT_ONCE:
            stream.write(b"".join(waiting))
            waiting.clear()
    stream.write(b"".join(waiting))
    return count - (shape.kind == "csv")
