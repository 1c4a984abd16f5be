"""What became of a job: read from its journal, while it runs or at any time later."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from rbim.bulk import report_queries
from rbim.bulk.schema import JOURNAL, State
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from datetime import datetime

    from rbim.bulk.report_parts import (
        AccountCounts,
        Anomaly,
        CodeCount,
        DuplicateRow,
        Interval,
        ReasonCount,
        ReasonsLeftOff,
        RequestFigures,
        RunFigures,
    )
    from rbim.bulk.rows import BadRow

__all__ = ["Report", "read_report"]

PATIENCE = 10.0
"""Seconds that a reader waits for a writer who changes the file's form."""


@frozen(kw_only=True)
class Report:
    """What became of a job.

    ``state`` is ``"loading"`` (its input was not read to its end, nothing was sent), ``"running"``, ``"complete"`` or
    ``"incomplete"``; ``done_word`` what the job calls an account that is done (``invited``). ``options``, ``chunk`` and
    ``source`` say what was sent and where the rows came from. ``reasons`` and ``codes`` are the 50 most frequent,
    ``reasons_left_off`` tells of the others. ``over_time`` has at most 120 intervals. ``seconds`` is the running time
    of all runs. ``anomalies`` counts them all; the lists of the first ones (``first_bad_rows``) have 20 at most.
    """

    operation: str
    done_word: str
    options: Mapping[str, Any]
    chunk: int
    source: Mapping[str, Any]
    created: datetime
    state: str
    complete: bool
    seconds: float
    accounts: AccountCounts
    requests: RequestFigures
    reasons: tuple[ReasonCount, ...]
    reasons_left_off: ReasonsLeftOff | None
    codes: tuple[CodeCount, ...]
    runs: tuple[RunFigures, ...]
    over_time: tuple[Interval, ...]
    anomalies: int
    first_anomalies: tuple[Anomaly, ...]
    first_duplicates: tuple[DuplicateRow, ...]
    first_bad_rows: tuple[BadRow, ...]

    @property
    def source_name(self) -> str:
        """The name of the input, empty where it has none."""
        return str(self.source.get("name") or "")

    @property
    def adds_up(self) -> bool:
        """Whether every row of the input is accounted for, once."""
        return self.accounts.adds_up

    @property
    def accounts_per_second(self) -> float:
        """Accounts that an answer settled per second of running time."""
        return (self.accounts.done + self.accounts.refused) / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON: times in ISO 8601 (UTC), durations in seconds.

        The figures of ``accounts`` add up to its ``total``; those done are called as the operation calls them: ``invited``.
        """
        accounts, requests = self.accounts, self.requests
        left_off = self.reasons_left_off
        figures = _plain(requests)
        del figures["waited"], figures["latency"]
        return {
            "accounts": {
                "total": accounts.total,
                self.done_word: accounts.done,
                "refused": accounts.refused,
                "failed": accounts.failed,
                "unknown": accounts.unknown,
                "skipped": accounts.skipped,
                "duplicate": accounts.duplicate,
            },
            "requests": {
                **figures,
                "latency": _plain(requests.latency) if requests.latency else None,
                "waited": {"total": _sensible(requests.waited), "mean": _sensible(requests.mean_wait)},
            },
            "state": self.state,
            "complete": self.complete,
            "adds_up": self.adds_up,
            "skipped": {"bad_rows": accounts.bad, "not_sent": accounts.not_sent},
            "in_flight": accounts.in_flight,
            "seconds": _sensible(self.seconds),
            "accounts_per_second": _sensible(self.accounts_per_second),
            "job": {
                "operation": self.operation,
                "options": dict(self.options),
                "chunk": self.chunk,
                "source": dict(self.source),
                "created": self.created.isoformat(),
            },
            "reasons": [_plain(each) for each in self.reasons],
            "reasons_left_off": _plain(left_off) if left_off else None,
            "codes": [_plain(each) for each in self.codes],
            "runs": [_plain(each) for each in self.runs],
            "over_time": [_plain(each) for each in self.over_time],
            "anomalies": {"count": self.anomalies, "first": [_plain(each) for each in self.first_anomalies]},
            "duplicates": [_plain(each) for each in self.first_duplicates],
            "bad_rows": [each._asdict() for each in self.first_bad_rows],
        }


def _plain(value: attrs.AttrsInstance) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, each in attrs.asdict(value, recurse=False).items():
        found[name] = (
            _sensible(each) if isinstance(each, float) else each.isoformat() if hasattr(each, "isoformat") else each
        )
    return found


def _sensible(number: float) -> float:
    """Return a number to a thousandth, or to three digits where it is small."""
    return round(number, 3) if abs(number) >= 1 else float(f"{number:.3g}")


def read_report(journal: str | Path | sqlite3.Connection, *, running: bool = False) -> Report:
    """Read the report of a job from its journal; ``running`` says that the job runs right now.

    The file is opened for reading only. Everything is of one moment, also where the job goes on meanwhile. Raises
    InvalidRequest where the file is not there or is no journal of a job.
    """
    if isinstance(journal, sqlite3.Connection):
        with _one_moment(journal):
            return _read(journal, running=running)
    with closing(_opened(Path(journal))) as connection, _one_moment(connection):
        return _read(connection, running=running)


def _opened(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        reason = f"there is no journal {path}"
        raise InvalidRequest(reason, field="journal")
    why = "it is no journal of a job"
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
        why = str(error)
    reason = f"{path} cannot be read: {why}"
    raise InvalidRequest(reason, field="journal")


def _reader(path: Path) -> sqlite3.Connection:
    """Open a file to read it. Where it may be written, leaving it leaves no log of SQLite's beside it."""
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
    raise AssertionError  # one of both was returned, or has raised


@contextmanager
def _one_moment(connection: sqlite3.Connection) -> Generator[None]:
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")  # nothing was written


def _read(connection: sqlite3.Connection, *, running: bool) -> Report:
    facts = connection.execute("SELECT operation, options, chunk, source, created, loaded FROM job").fetchone()
    if facts is None:
        reason = "no job was begun in the journal"
        raise InvalidRequest(reason, field="journal")
    operation, options, chunk, source, created, loaded = facts
    ((done_word,),) = connection.execute("SELECT name FROM account_state WHERE id = ?", (State.DONE,))
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
        source=json.loads(source),
        created=report_queries.moment(created),
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
