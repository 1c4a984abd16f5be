"""Rows of a job's input with their results, in the input's order: as CSV, and those to be sent again."""

from __future__ import annotations

import csv
from typing import IO, TYPE_CHECKING, NamedTuple

from attrs import frozen

from rbim._support.text import no_formula
from rbim.bulk.input.format import NotDone
from rbim.bulk.input.rows import BadRow
from rbim.bulk.report.queries import NUMBERS, REACHED, STATE, marked_requests
from rbim.bulk.work import AccountState
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator

__all__ = [
    "COLUMNS",
    "NOT_DONE",
    "ReportRow",
    "RowChoice",
    "chosen_rows",
    "done",
    "every_bad_row",
    "not_done",
    "write_chosen_csv",
    "write_report_csv",
]

COLUMNS = ("row", "group", "account", "user_name", "state", "reason", "code", "error", "request")
"""The columns of a report in CSV."""

SKIPPED = "skipped"

NOT_DONE = ("refused", "failed", "unknown", SKIPPED)
"""States of accounts that are not done; ``skipped`` ones were not sent."""

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
    FROM (
        SELECT chunk.id AS chunk, chunk.sender_group AS sender_group, chunk.request AS request, one.value AS account,
            coalesce(json_extract(content.rows, '$[' || one.key || ']'), content.first + content.step * one.key) AS seq,
            coalesce(exception.state, {STATE}) AS state,
            iif(exception.state IS NULL, chunk.reason, exception.reason) AS reason
        FROM chunk CROSS JOIN content ON content.id = chunk.content CROSS JOIN json_each(content.accounts) AS one
        LEFT JOIN exception ON exception.chunk = chunk.id AND exception.place = one.key
    ) AS each CROSS JOIN sender_group ON sender_group.id = each.sender_group
    CROSS JOIN target_group ON target_group.id = sender_group.target_group
    CROSS JOIN account_state ON account_state.id = each.state LEFT JOIN reason ON reason.id = each.reason
    LEFT JOIN reached ON reached.chunk = each.chunk
"""  # noqa: S608  # a constant

_EVERY = f"""
    SELECT * FROM ({_SETTLED})
    UNION ALL SELECT duplicate.seq, target_group.name, duplicate.account, '', 'duplicate',
        'the same as row ' || duplicate.first, '', '', NULL
        FROM duplicate JOIN target_group ON target_group.id = duplicate.target_group
    ORDER BY place
"""  # noqa: S608  # constants


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


_CHOSEN = f"""
    SELECT * FROM ({_EVERY.replace("ORDER BY place", "")})
    WHERE place > :after AND (:of_state IS NULL OR state = :of_state)
        AND (:of_reason IS NULL OR reason_text = :of_reason) AND (:of_code IS NULL OR reason_code = :of_code)
        AND (:text = '' OR instr(lower(account), lower(:text)) OR instr(lower(name), lower(:text)))
    ORDER BY place LIMIT :most
"""  # noqa: S608  # constants


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
    return map(ReportRow._make, connection.execute(_CHOSEN, NUMBERS | marked_requests(connection) | values))


def write_report_csv(stream: IO[str], connection: sqlite3.Connection, *, state: str | None = None) -> None:
    r"""Write one line per row of the input, in its order, after a line of :data:`COLUMNS`.

    ``state``: only the rows in it (default: all). The stream must keep line ends (``open(..., newline="")``): they are
    ``\r\n``, as usual for CSV.

    ``row`` counts from 1. ``state``: ``invited`` (or the job's other word for done), ``refused``, ``failed``, ``unknown``,
    ``skipped`` (not sent, or a row that cannot be used: then without group and account) or ``duplicate``. ``request``: the
    number of the request that settled it.

    The file is for people, who may open it in a spreadsheet: a cell that would be a formula gets an apostrophe
    (:func:`~rbim._support.text.no_formula`). Accounts like ``+8613800138000`` stay as they are. For other programs,
    :func:`not_done` and the journal have the exact values.
    """
    write = csv.writer(stream).writerow
    write(COLUMNS)
    rows = connection.execute(_EVERY, NUMBERS | marked_requests(connection))
    bad = every_bad_row(connection)
    expected = 1
    for row in rows:
        number, group, account, user_name, found, reason, code, error, request = row
        while expected < number and (each := next(bad, None)) is not None:  # bad rows have numbers too
            if state in {None, SKIPPED}:
                write(_bad_row_line(expected, each))
            expected += 1
        if state in {None, found}:
            write((number, *map(no_formula, (group, account, user_name, found, reason, code, error)), request))
        expected = number + 1
    if state in {None, SKIPPED}:
        for number, each in enumerate(bad, expected):
            write(_bad_row_line(number, each))


def write_chosen_csv(stream: IO[str], connection: sqlite3.Connection, choice: RowChoice) -> None:
    """Write one line for each chosen row, as :func:`write_report_csv` does; bad rows only if no text or reason is chosen."""
    if choice.reason is None and choice.code is None and not choice.text:
        write_report_csv(stream, connection, state=choice.state)
        return
    write = csv.writer(stream).writerow
    write(COLUMNS)
    for number, *texts, request in chosen_rows(connection, choice):
        write((number, *map(no_formula, map(str, texts)), request))


def _bad_row_line(number: int, row: BadRow) -> tuple[object, ...]:
    return (number, "", "", "", SKIPPED, no_formula(f"line {row.line}: {row.reason}: {row.raw}"), "", "", "")


def not_done(connection: sqlite3.Connection, states: Collection[str] = NOT_DONE) -> Iterator[NotDone]:
    """Yield the rows whose accounts are in one of the states, in the input's order, without duplicates and bad rows.

    Raises InvalidRequest for a state that is not in :data:`NOT_DONE`.
    """
    if wrong := sorted(set(states) - set(NOT_DONE)):
        raise InvalidRequest(f"states: invalid {', '.join(wrong)}: use {', '.join(NOT_DONE)}", field="states")
    return _not_done(connection, {f"shown_{number}": state for number, state in enumerate(states)})


def done(connection: sqlite3.Connection) -> Iterator[NotDone]:
    """Yield the rows that were done, in the input's order; ``state`` is the job's word for it, such as ``invited``."""
    ((word,),) = connection.execute("SELECT name FROM account_state WHERE id = ?", (AccountState.DONE,))
    return _not_done(connection, {"shown_0": word})


def _not_done(connection: sqlite3.Connection, states: dict[str, str]) -> Iterator[NotDone]:
    marks = ", ".join(f":{name}" for name in states)
    statement = f"SELECT * FROM ({_SETTLED}) WHERE state IN ({marks}) ORDER BY place"  # noqa: S608  # constants
    values = NUMBERS | states | marked_requests(connection)
    for _, group, account, user_name, state, reason, *_ in connection.execute(statement, values):
        yield NotDone(group, account, user_name or None, state, reason)


def every_bad_row(connection: sqlite3.Connection) -> Iterator[BadRow]:
    """Yield the rows that cannot be used, in the input's order."""
    for line, reason, raw in connection.execute("SELECT line, reason, raw FROM bad_row ORDER BY rowid"):
        yield BadRow(line, reason, raw)
