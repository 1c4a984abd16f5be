"""Rows of a job's input with their results, in the input's order: as CSV, and those to be sent again."""

from __future__ import annotations

import csv
from typing import IO, TYPE_CHECKING

from rbim._support.text import no_formula
from rbim.bulk.input.format import NotDone
from rbim.bulk.input.rows import BadRow
from rbim.bulk.report.queries import NUMBERS, REACHED
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator

__all__ = ["COLUMNS", "NOT_DONE", "every_bad_row", "not_done", "write_report_csv"]

COLUMNS = ("row", "group", "account", "user_name", "state", "reason", "code", "error", "request")
"""The columns of a report in CSV."""

NOT_DONE = ("refused", "failed", "unknown", "skipped")
"""States of accounts that are not done; ``skipped`` ones were not sent."""

_SETTLED = f"""
    WITH reached AS MATERIALIZED ({REACHED})
    SELECT account.seq AS place, party.name, account.account, lane.user_name,
        CASE WHEN account.state = :state_again OR reached.seq IS NOT NULL THEN 'unknown'
            WHEN account.state = :state_waiting THEN 'skipped' ELSE account_state.name END AS state,
        CASE WHEN account.state = :state_waiting AND reached.seq IS NULL THEN 'not sent'
            WHEN account.state = :state_waiting OR account.reason IS NULL AND account.state = :state_again
            THEN 'no answer is known' ELSE coalesce(reason.text, '') END,
        iif(account.state = :state_waiting, '', coalesce(reason.code, '')),
        iif(account.state = :state_waiting, '', coalesce(reason.error, '')), account.request
    FROM account CROSS JOIN party ON party.id = account.party CROSS JOIN lane ON lane.id = account.lane
    CROSS JOIN account_state ON account_state.id = account.state LEFT JOIN reason ON reason.id = account.reason
    LEFT JOIN reached ON reached.lane = account.lane AND reached.seq = account.seq
"""  # noqa: S608  # a constant

_EVERY = f"""
    SELECT * FROM ({_SETTLED})
    UNION ALL SELECT duplicate.seq, party.name, duplicate.account, '', 'duplicate', 'the same as row ' || duplicate.first,
        '', '', NULL FROM duplicate JOIN party ON party.id = duplicate.party
    ORDER BY place
"""  # noqa: S608  # constants


def write_report_csv(stream: IO[str], connection: sqlite3.Connection) -> None:
    r"""Write one line per row of the input, in its order, after a line of :data:`COLUMNS`.

    The stream must keep line ends (``open(..., newline="")``): they are ``\r\n``, as usual for CSV.

    ``row`` counts from 1. ``state``: ``invited`` (or the job's other word for done), ``refused``, ``failed``, ``unknown``,
    ``skipped`` (not sent, or a row that cannot be used: then without group and account) or ``duplicate``. ``request``: the
    number of the request that settled it.

    The file is for people, who may open it in a spreadsheet: a cell that would be a formula gets an apostrophe
    (:func:`~rbim._support.text.no_formula`). Accounts like ``+8613800138000`` stay as they are. For other programs,
    :func:`not_done` and the journal have the exact values.
    """
    write = csv.writer(stream).writerow
    write(COLUMNS)
    rows = connection.execute(_EVERY, NUMBERS)
    bad = every_bad_row(connection)
    expected = 1
    for row in rows:
        number, group, account, user_name, state, reason, code, error, request = row
        while expected < number and (each := next(bad, None)) is not None:  # bad rows have numbers too
            write(_bad_row_line(expected, each))
            expected += 1
        write((number, *map(no_formula, (group, account, user_name, state, reason, code, error)), request))
        expected = number + 1
    for number, each in enumerate(bad, expected):
        write(_bad_row_line(number, each))


def _bad_row_line(number: int, row: BadRow) -> tuple[object, ...]:
    return (number, "", "", "", "skipped", no_formula(f"line {row.line}: {row.reason}: {row.raw}"), "", "", "")


def not_done(connection: sqlite3.Connection, states: Collection[str] = NOT_DONE) -> Iterator[NotDone]:
    """Yield the rows whose accounts are in one of the states, in the input's order, without duplicates and bad rows.

    Raises InvalidRequest for a state that is not in :data:`NOT_DONE`.
    """
    if wrong := sorted(set(states) - set(NOT_DONE)):
        raise InvalidRequest(f"states: invalid {', '.join(wrong)}: use {', '.join(NOT_DONE)}", field="states")
    return _not_done(connection, {f"shown_{number}": state for number, state in enumerate(states)})


def _not_done(connection: sqlite3.Connection, states: dict[str, str]) -> Iterator[NotDone]:
    marks = ", ".join(f":{name}" for name in states)
    statement = f"SELECT * FROM ({_SETTLED}) WHERE state IN ({marks}) ORDER BY place"  # noqa: S608  # constants
    for _, group, account, user_name, state, reason, *_ in connection.execute(statement, NUMBERS | states):
        yield NotDone(group, account, user_name or None, state, reason)


def every_bad_row(connection: sqlite3.Connection) -> Iterator[BadRow]:
    """Yield the rows that cannot be used, in the input's order."""
    for line, reason, raw in connection.execute("SELECT line, reason, raw FROM bad_row ORDER BY rowid"):
        yield BadRow(line, reason, raw)
