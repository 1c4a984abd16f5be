"""Reading of a report from a job's journal, while the job runs or later."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rbim.bulk.journal.journal import DIALECT
from rbim.bulk.journal.schema import JOURNAL
from rbim.bulk.report import queries as report_queries
from rbim.bulk.report.model import Report
from rbim.bulk.states import AccountState
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Generator


__all__ = ["read_report"]


PATIENCE = 10.0
"""Seconds that a reader waits for a writer that locks the file."""


def read_report(journal: str | Path | sqlite3.Connection, *, running: bool = False) -> Report:
    """Read the report of a job from its journal; ``running``: whether the job runs now (default: False).

    The file is opened read-only, and all figures are of one moment, also while the job runs. Raises InvalidRequest if the
    file does not exist or is not a job's journal.
    """
    if isinstance(journal, sqlite3.Connection):
        with _read_transaction(journal):
            return _read(journal, running=running)
    with closing(_opened(Path(journal))) as connection, _read_transaction(connection):
        return _read(connection, running=running)


def _opened(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise InvalidRequest(f"there is no journal {path}: check the path", field="journal")
    cause = "it is not a job's journal"
    try:
        connection = _reader(path)
        try:
            ((mark,),) = connection.execute("PRAGMA application_id")
            ((version,),) = connection.execute("PRAGMA user_version")
            if mark.to_bytes(4, "big", signed=True) == JOURNAL.mark and 1 <= version <= len(JOURNAL.schema):
                return connection
        except BaseException:
            connection.close()
            raise
        connection.close()
    except sqlite3.DatabaseError as error:
        cause = str(error)
    raise InvalidRequest(f"{path} cannot be read: {cause}", field="journal")


def _reader(path: Path) -> sqlite3.Connection:
    """Open a file for reading. If it may be written, closing it removes SQLite's log files beside it."""
    for mode in ("rw", "ro"):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=PATIENCE)
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException as error:
            connection.close()
            if mode == "ro" or not isinstance(error, sqlite3.OperationalError):
                raise
        else:
            return connection
    raise AssertionError  # not reached: one mode returned or raised


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


def _read(connection: sqlite3.Connection, *, running: bool) -> Report:
    facts = connection.execute("SELECT operation, options, chunk, settings, source, created, loaded FROM job").fetchone()
    if facts is None:
        raise InvalidRequest("the journal holds no job: begin one first", field="journal")
    operation, options, chunk, settings, source, created, loaded = facts
    ((done_word,),) = connection.execute("SELECT name FROM account_state WHERE id = ?", (AccountState.DONE,))
    settled = report_queries.accounts_and_reasons(connection, running=running)
    runs = report_queries.runs(connection)
    seconds = sum(run.seconds for run in runs)
    ((again,),) = connection.execute("SELECT EXISTS (SELECT 1 FROM request WHERE todo = 1)")
    complete = loaded is not None and not settled.waiting and not again
    state = "loading" if loaded is None else "running" if running else "complete" if complete else "incomplete"
    anomalies, first_anomalies = report_queries.anomalies(connection)
    return Report(
        operation=operation,
        done_word=done_word,
        options=json.loads(options),
        chunk=chunk,
        dialect=json.loads(settings).get(DIALECT, {}),
        source=json.loads(source),
        created=report_queries.utc_time(created),
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
        first_anomalies=first_anomalies,
        first_duplicates=report_queries.duplicates(connection),
        first_bad_rows=report_queries.bad_rows(connection),
    )
