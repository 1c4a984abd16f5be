"""Reading of a report from a job's journal, while the job runs or later."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rbim.bulk.journal.facts import DIALECT, facts_in, open_to_read, reading
from rbim.bulk.report import queries as report_queries
from rbim.bulk.report.model import Report
from rbim.bulk.report.rows import unsuccessful
from rbim.bulk.work import AccountState
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Generator

    from rbim.bulk.report.rows import ReportRow


__all__ = ["FIRST", "first_not_done", "read_report"]

FIRST = 10
"""Rows that were not done that a report shows."""


def read_report(journal: str | Path | sqlite3.Connection, *, running: bool = False) -> Report:
    """Read the report of a job from its journal; ``running``: whether the job runs now (default: False).

    The file is opened read-only, and all figures are of one moment, also while the job runs. Raises InvalidRequest if the
    file does not exist or is not a job's journal.
    """
    if isinstance(journal, sqlite3.Connection):
        with _read_transaction(journal):
            return _read(journal, Path("the journal"), running=running)
    path = Path(journal)
    with closing(open_to_read(path)) as connection, reading(path), _read_transaction(connection):
        return _read(connection, path, running=running)


def first_not_done(journal: Path, report: Report) -> list[ReportRow]:
    """Return the first rows that were not done, of those that do not wait; none if the accounts were erased."""
    accounts = report.accounts
    if report.erased or not accounts.refused + accounts.failed + accounts.unknown + accounts.bad:
        return []
    with closing(open_to_read(journal)) as connection, reading(journal):
        return list(islice(unsuccessful(connection), FIRST))


@contextmanager
def _read_transaction(connection: sqlite3.Connection) -> Generator[None]:
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")  # nothing was written


def _read(connection: sqlite3.Connection, path: Path, *, running: bool) -> Report:
    facts = facts_in(connection)
    if facts is None:
        raise InvalidRequest("the journal holds no job: begin one first", field="journal")
    facts.require_erased_completely(path)
    ((done_word,),) = connection.execute("SELECT name FROM account_state WHERE id = ?", (AccountState.DONE,))
    settled = report_queries.accounts_and_reasons(connection, running=running)
    runs = report_queries.runs(connection)
    seconds = sum(run.seconds for run in runs)
    ((again,),) = connection.execute("SELECT EXISTS (SELECT 1 FROM request WHERE retry = 1)")
    complete = facts.loaded is not None and not settled.waiting and not again
    state = "loading" if facts.loaded is None else "running" if running else "complete" if complete else "incomplete"
    anomalies, first_anomalies = report_queries.anomalies(connection)
    return Report(
        operation=facts.operation,
        done_word=done_word,
        options=facts.options,
        chunk=facts.chunk,
        dialect=facts.settings.get(DIALECT, {}),
        source=facts.source,
        created=report_queries.utc_time(facts.created),
        state=state,
        complete=complete,
        seconds=seconds,
        accounts=settled.accounts,
        requests=report_queries.request_figures(connection, seconds=seconds, running=running),
        reasons=settled.reasons,
        reasons_left_off=settled.left_off,
        codes=report_queries.codes(connection, settled.codes),
        runs=runs,
        over_time=report_queries.over_time(connection),
        anomalies=anomalies,
        first_anomalies=() if facts.erased else first_anomalies,
        first_duplicates=() if facts.erased else report_queries.duplicates(connection),
        first_bad_rows=() if facts.erased else report_queries.bad_rows(connection),
        erased=None if facts.erased is None else report_queries.utc_time(facts.erased),
    )
