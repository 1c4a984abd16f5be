"""Rows of a job's input with their results, in the input's order: as CSV, and those to be sent again."""

from __future__ import annotations

import csv
import json
import re
from heapq import merge
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from attrs import frozen

from rbim._support.text import no_formula
from rbim.bulk.input.format import NotDone
from rbim.bulk.work import AccountState, RequestState
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator

__all__ = [
    "COLUMNS",
    "NOT_DONE",
    "NUMBERS",
    "REACHED",
    "ReportRow",
    "RowChoice",
    "chosen_rows",
    "done",
    "not_done",
    "unsuccessful",
    "write_report_csv",
]

COLUMNS = ("row", "group", "account", "user_name", "state", "reason", "code", "error", "request")
"""The columns of a report in CSV."""

SKIPPED = "skipped"

NOT_DONE = ("refused", "failed", "unknown", SKIPPED)
"""States of accounts that are not done; ``skipped`` ones were not sent."""

NUMBERS = {f"state_{each.name.lower()}": int(each) for each in AccountState} | {
    f"sent_{each.name.lower()}": int(each) for each in RequestState
}
"""The numbers of the states, as parameters of statements."""

REACHED = """
    SELECT sender_group, chunk, max(outcome = :sent_open) AS open FROM request
    WHERE outcome = :sent_open OR retry = 1 AND (outcome = :sent_unknown OR resent = 1) GROUP BY sender_group, chunk
"""
"""Chunks of waiting accounts that a request may have reached: it is open, or a resend after an unknown outcome."""

_SETTLED = f"""
    WITH reached AS MATERIALIZED ({REACHED})
    SELECT each.seq AS place, target_group.name, each.account, sender_group.user_name,
        CASE WHEN each.state = :state_again OR reached.chunk IS NOT NULL THEN 'unknown'
            WHEN each.state = :state_waiting THEN 'skipped' ELSE account_state.name END AS state,
        CASE WHEN each.state = :state_waiting AND reached.chunk IS NULL THEN 'not sent'
            WHEN each.state = :state_waiting OR each.reason IS NULL AND each.state = :state_again
            THEN 'no answer is known' ELSE coalesce(reason.text, '') END AS reason_text,
        iif(each.state = :state_waiting, '', coalesce(reason.code, '')) AS reason_code,
        iif(each.state = :state_waiting, '', coalesce(reason.error, '')), each.request
    FROM account AS each CROSS JOIN sender_group ON sender_group.id = each.sender_group
    CROSS JOIN target_group ON target_group.id = sender_group.target_group
    CROSS JOIN account_state ON account_state.id = each.state LEFT JOIN reason ON reason.id = each.reason
    LEFT JOIN reached ON each.state <= 0 AND reached.sender_group = each.sender_group AND reached.chunk = each.chunk
"""  # noqa: S608  # a constant

_CHOSEN = f"""
    SELECT * FROM (
        SELECT * FROM ({_SETTLED})
        UNION ALL SELECT duplicate.seq, target_group.name, duplicate.account, '', 'duplicate',
            'the same as line ' || duplicate.first, '', '', NULL
            FROM duplicate JOIN target_group ON target_group.id = duplicate.target_group
    ) WHERE place > :after AND (:of_state IS NULL OR state = :of_state)
        AND (:of_reason IS NULL OR reason_text = :of_reason) AND (:of_code IS NULL OR reason_code = :of_code)
        AND (:text = '' OR instr(lower(account), lower(:text)) OR instr(lower(name), lower(:text)))
    ORDER BY place LIMIT :most
"""  # noqa: S608  # a constant


@frozen(kw_only=True)
class RowChoice:
    """A choice among the rows with an account (None, or an empty text: any).

    ``state`` is a word of the column ``state``, ``reason`` and ``code`` are the whole texts of these columns, ``text`` is a
    part of the account or of the group, in any case of ASCII letters.
    """

    state: str | None = None
    reason: str | None = None
    code: str | None = None
    text: str = ""


_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[- ]?[0-9]{1,4}"
_NUMBER = re.compile(rf"[+-]?[0-9][0-9.,:/ %+-]*(?:[Ee][+-]?[0-9]+)?|(?i:true|false|{_MONTH})")
_SAFE_NUMBER = re.compile(r"0|[1-9][0-9]{0,10}")
"""Texts that a spreadsheet takes for a number, a date or a truth value, and those of them that it does not change."""


def _kept(text: str) -> str:
    """Return an account or a group as a cell that a spreadsheet keeps, and does not evaluate."""
    return f'="{text}"' if _NUMBER.fullmatch(text) and not _SAFE_NUMBER.fullmatch(text) else no_formula(text)


class ReportRow(NamedTuple):
    """A row of a report; its fields are those of :data:`COLUMNS`, with the exact texts."""

    row: int
    group: str
    account: str
    user_name: str
    state: str
    reason: str
    code: str
    error: str
    request: int | None


def chosen_rows(
    connection: sqlite3.Connection, choice: RowChoice, *, after: int = 0, limit: int | None = None
) -> Iterator[ReportRow]:
    """Yield chosen rows in the input's order, with numbers above ``after``, at most ``limit``; without bad rows."""
    values = {
        "of_state": choice.state,
        "of_reason": choice.reason,
        "of_code": choice.code,
        "text": choice.text,
        "after": after,
        "most": -1 if limit is None else limit,
    }
    return map(ReportRow._make, connection.execute(_CHOSEN, NUMBERS | values))


ALL = RowChoice()


def write_report_csv(stream: IO[str], connection: sqlite3.Connection, choice: RowChoice = ALL) -> None:
    r"""Write one line per row of the input, in its order, after a line of :data:`COLUMNS`.

    ``choice``: only these rows (default: all), without those that cannot be used if a text, a reason or a code is chosen.
    The stream must keep line ends (``open(..., newline="")``): they are ``\r\n``, as usual for CSV.

    ``row``: the line of the input where the row begins, or its place in an iterable, from 1. ``state``: ``invited`` (or the
    job's other word for done), ``refused``, ``failed``, ``unknown``, ``skipped`` (not sent, or a row that cannot be used:
    then without group and account) or ``duplicate``. ``request``: the number of the request that settled it.

    The file is for people, who may open it in a spreadsheet: a cell that would be a formula gets an apostrophe
    (:func:`~rbim._support.text.no_formula`), an account or a group that would become another number is written as
    ``="0138"``. :class:`~rbim.bulk.RowFile` reads the exact values of both. For other programs, :func:`not_done` and the
    journal have the exact values.
    """
    write = csv.writer(stream).writerow
    write(COLUMNS)
    rows = chosen_rows(connection, choice)
    if choice.reason is None and choice.code is None and not choice.text:
        rows = merge(rows, _bad_rows(connection), key=itemgetter(0))
    for row in rows:
        if choice.state in {None, row.state}:
            write((row.row, *map(_kept, row[1:4]), *map(no_formula, row[4:8]), row.request))


def _bad_rows(connection: sqlite3.Connection) -> Iterator[ReportRow]:
    for line, reason, raw in connection.execute("SELECT line, reason, raw FROM bad_row ORDER BY rowid"):
        yield ReportRow(line, "", "", "", SKIPPED, f"{reason}: {raw}", "", "", None)


def unsuccessful(connection: sqlite3.Connection) -> Iterator[ReportRow]:
    """Yield the rows that were refused, failed or are unknown, and those that cannot be used, in the input's order."""
    return merge(map(ReportRow._make, _settled(connection, NOT_DONE[:3])), _bad_rows(connection), key=itemgetter(0))


def not_done(connection: sqlite3.Connection, states: Collection[str] = NOT_DONE) -> Iterator[NotDone]:
    """Yield the rows whose accounts are in one of the states, in the input's order, without duplicates and bad rows.

    Raises InvalidRequest for a state that is not in :data:`NOT_DONE`.
    """
    if wrong := sorted(set(states) - set(NOT_DONE)):
        raise InvalidRequest(f"states: invalid {', '.join(wrong)}: use {', '.join(NOT_DONE)}", field="states")
    return _to_write(connection, states)


def done(connection: sqlite3.Connection) -> Iterator[NotDone]:
    """Yield the rows that were done, in the input's order; ``state`` is the job's word for it, such as ``invited``."""
    ((word,),) = connection.execute("SELECT name FROM account_state WHERE id = ?", (AccountState.DONE,))
    return _to_write(connection, (word,))


def _to_write(connection: sqlite3.Connection, states: Collection[str]) -> Iterator[NotDone]:
    for _, group, account, user_name, state, reason, *_ in _settled(connection, states):
        yield NotDone(group, account, user_name or None, state, reason)


def _settled(connection: sqlite3.Connection, states: Collection[str]) -> Iterator[Any]:
    statement = f"SELECT * FROM ({_SETTLED}) WHERE state IN (SELECT value FROM json_each(:states)) ORDER BY place"  # noqa: S608
    return connection.execute(statement, NUMBERS | {"states": json.dumps(list(states))})
