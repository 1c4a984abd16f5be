"""Rows of a job's input with their results, in the input's order: as CSV, or in the input's format to be sent again."""

from __future__ import annotations

import csv
import json
import re
from codecs import getwriter
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from rbim._support.text import one_line
from rbim.bulk.input.rows import ADDED, Format, no_formula
from rbim.bulk.work import MAX_REASON, AccountState, RequestState
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["NOT_DONE", "NUMBERS", "REACHED", "UNUSABLE", "ReportRow", "format_of", "rows_of", "write_csv", "write_rows"]

NOT_DONE = ("refused", "failed", "unknown", "skipped")
"""States of accounts that are not done; ``skipped`` ones were not sent."""

UNUSABLE = "unusable"
"""To choose rows that cannot be used, whose state is ``skipped``, too."""

NUMBERS = {f"state_{each.name.lower()}": int(each) for each in AccountState} | {
    f"sent_{each.name.lower()}": int(each) for each in RequestState
}
"""The numbers of the states, as parameters of statements."""

REACHED = """
    SELECT sender_group, chunk, max(outcome = :sent_open) AS open FROM request
    WHERE outcome = :sent_open OR retry = 1 AND (outcome = :sent_unknown OR resent = 1) GROUP BY sender_group, chunk
"""
"""Chunks of waiting accounts that a request may have reached: it is open, or a resend after an unknown outcome."""

_ROWS = f"""
    WITH reached AS MATERIALIZED ({REACHED})
    SELECT seq, name, account, user_name, iif(state = 'unusable', 'skipped', state), reason, code, error, request FROM (
        SELECT each.seq AS seq, target_group.name AS name, each.account AS account, sender_group.user_name AS user_name,
            CASE WHEN each.state = :state_again OR reached.chunk IS NOT NULL THEN 'unknown'
                WHEN each.state = :state_waiting THEN 'skipped' ELSE account_state.name END AS state,
            CASE WHEN each.state = :state_waiting AND reached.chunk IS NULL THEN 'not sent'
                WHEN each.state = :state_waiting OR each.reason IS NULL AND each.state = :state_again
                THEN 'no answer is known' ELSE coalesce(reason.text, '') END AS reason,
            iif(each.state = :state_waiting, '', coalesce(reason.code, '')) AS code,
            iif(each.state = :state_waiting, '', coalesce(reason.error, '')) AS error, each.request AS request
        FROM result AS each CROSS JOIN sender_group ON sender_group.id = each.sender_group
        CROSS JOIN target_group ON target_group.id = sender_group.target_group
        CROSS JOIN account_state ON account_state.id = each.state LEFT JOIN reason ON reason.id = each.reason
        LEFT JOIN reached ON each.state <= 0 AND reached.sender_group = each.sender_group AND reached.chunk = each.chunk
        UNION ALL SELECT duplicate.seq, target_group.name, duplicate.account, '', 'duplicate',
            'the same as line ' || duplicate.first, '', '', NULL
            FROM duplicate JOIN target_group ON target_group.id = duplicate.target_group
        UNION ALL SELECT line, '', '', '', 'unusable', reason || ': ' || raw, '', '', NULL FROM bad_row
    ) WHERE seq > :after AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
        AND (:reason IS NULL OR reason = :reason) AND (:code IS NULL OR code = :code)
        AND (:text = '' OR instr(lower(account), lower(:text)) OR instr(lower(name), lower(:text)))
    ORDER BY seq LIMIT :most
"""  # noqa: S608  # a constant


class ReportRow(NamedTuple):
    """A row of the input with its result; the fields are the columns of a report in CSV, with the exact texts.

    ``row``: the line of the input where the row begins, or its place in an iterable, from 1. ``state``: ``invited`` (or the
    job's other word for done), ``refused``, ``failed``, ``unknown``, ``skipped`` (not sent, or a row that cannot be used:
    then without group and account) or ``duplicate``. ``request``: the number of the request that settled it.
    """

    row: int
    group: str
    account: str
    user_name: str
    state: str
    reason: str
    code: str = ""
    error: str = ""
    request: int | None = None


def rows_of(  # noqa: PLR0913  # a choice, each by keyword and with a default
    connection: sqlite3.Connection,
    states: Collection[str] | None = None,
    *,
    reason: str | None = None,
    code: str | None = None,
    text: str = "",
    after: int = 0,
    limit: int | None = None,
) -> Iterator[ReportRow]:
    """Yield rows with numbers above ``after``, at most ``limit`` (default: all), in the input's order.

    Rows may be chosen by their ``states``, by the whole text of their ``reason`` or ``code``, or by a ``text`` in the
    account or the group, in any case of ASCII letters. Rows that cannot be used are chosen by the state ``unusable``.
    """
    values = {
        "states": None if states is None else json.dumps(list(states)),
        "reason": reason,
        "code": code,
        "text": text,
        "after": after,
        "most": -1 if limit is None else limit,
    }
    return map(ReportRow._make, connection.execute(_ROWS, NUMBERS | values))


# ------------------------------------------------------------------------------ CSV, for people

_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[- ]?[0-9]{1,4}"
_NUMBER = re.compile(rf"[+-]?[0-9][0-9.,:/ %+-]*(?:[Ee][+-]?[0-9]+)?|(?i:true|false|{_MONTH})")
_SAFE_NUMBER = re.compile(r"0|[1-9][0-9]{0,10}")
"""Texts that a spreadsheet takes for a number, a date or a truth value, and those of them that it does not change."""


def _kept(text: str) -> str:
    """Return an account or a group as a cell that a spreadsheet keeps, and does not evaluate."""
    return f'="{text}"' if _NUMBER.fullmatch(text) and not _SAFE_NUMBER.fullmatch(text) else no_formula(text)


def write_csv(stream: IO[bytes], rows: Iterable[ReportRow], *, mark: bool) -> None:
    r"""Write rows as CSV in UTF-8 below the names of their columns; ``mark``: with a byte order mark, for spreadsheets.

    The file is for people, who may open it in a spreadsheet: a cell that would be a formula gets an apostrophe
    (:func:`~rbim.bulk.input.rows.no_formula`), an account or a group that would become another number is written as
    ``="0138"``. :class:`~rbim.bulk.RowFile` reads the exact values of both. Lines end with ``\r\n``, as usual for CSV.
    """
    write = csv.writer(getwriter("utf-8-sig" if mark else "utf-8")(stream)).writerow
    write(ReportRow._fields)
    for row in rows:
        write((row.row, *map(_kept, row[1:4]), *map(no_formula, row[4:8]), row.request))


# ------------------------------------------------------------------------------ the input's format, to be read again


def format_of(journal: Path, source: Mapping[str, Any]) -> Format:
    """Return the format of a job's input. Raises InvalidRequest if the input was not read completely."""
    if "format" not in source:
        raise InvalidRequest(f"{journal}: the input was not read completely: there are no rows to write", field="journal")
    return Format(**source["format"])


def write_rows(stream: IO[bytes], form: Format, rows: Iterable[ReportRow]) -> None:
    """Write rows in the format of their input, with two more columns, state and reason.

    RowFile can read the file with the options of the input; CSV always has a header. Accounts and groups are never altered:
    also those that begin with ``= + - @`` are cells of the user's own input, and with an apostrophe an account would be
    another one for other programs. A reason that a spreadsheet would evaluate gets an apostrophe (not in JSONL).
    """
    text = getwriter(form.encoding)(stream)
    write = csv.writer(text, delimiter=form.delimiter, lineterminator=form.line_end).writerow

    @lru_cache(maxsize=1000)
    def shown(reason: str) -> str:
        line = one_line(reason, MAX_REASON)
        return no_formula(line) if form.kind == "csv" else line

    if form.bom:
        text.write("\ufeff")
    if form.kind == "csv":
        write([*form.columns.values(), *ADDED])
    for row in rows:
        values = [(column, getattr(row, role)) for role, column in form.columns.items()]
        document = {column: value for column, value in values if value or form.kind == "csv"}
        document |= zip(ADDED, (row.state, shown(row.reason)), strict=True)
        if form.kind == "csv":
            write(document.values())
        else:
            text.write(json.dumps(document, ensure_ascii=False) + form.line_end)
