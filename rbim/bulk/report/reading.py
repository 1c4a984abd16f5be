"""Reading of a report from a job's journal, while the job runs or later.

The queries give aggregates only, with the same memory for ten accounts and for ten million.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from heapq import nlargest
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rbim.bulk.input.rows import BadRow
from rbim.bulk.journal.facts import DIALECT, facts_in, open_to_read, reading
from rbim.bulk.report.model import (
    AccountCounts,
    Anomaly,
    CodeCount,
    DuplicateRow,
    Interval,
    Latency,
    ReasonCount,
    ReasonsLeftOff,
    Report,
    RequestFigures,
    RunFigures,
)
from rbim.bulk.report.rows import NUMBERS, REACHED, unsuccessful
from rbim.bulk.work import AccountState
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from rbim.bulk.report.rows import ReportRow

__all__ = ["FIRST", "first_not_done", "read_report"]

FIRST = 10
"""Rows that were not done that a report shows."""


LISTED = 20
"""Anomalies, duplicates and bad rows that a report lists."""

REASONS = 50
"""Reasons, and codes, that a report lists."""

INTERVALS = 120
"""Intervals to which the samples are condensed, at most."""

MIN_SAMPLE = 0.5
"""Seconds; a shorter sample is added to the one before it, because its figures per second mean nothing."""


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
    settled = _read_accounts(connection, running=running)
    runs = _read_runs(connection)
    seconds = sum(run.seconds for run in runs)
    ((again,),) = connection.execute("SELECT EXISTS (SELECT 1 FROM request WHERE retry = 1)")
    complete = facts.loaded is not None and not settled.waiting and not again
    state = "loading" if facts.loaded is None else "running" if running else "complete" if complete else "incomplete"
    ((anomalies,),) = connection.execute("SELECT count(*) FROM anomaly")
    return Report(
        operation=facts.operation,
        done_word=done_word,
        options=facts.options,
        chunk=facts.chunk,
        dialect=facts.settings.get(DIALECT, {}),
        source=facts.source,
        created=_utc(facts.created),
        state=state,
        complete=complete,
        seconds=seconds,
        accounts=settled.accounts,
        requests=_read_requests(connection, seconds=seconds, running=running),
        reasons=settled.reasons,
        reasons_left_off=settled.left_off,
        codes=_read_codes(connection, settled.codes),
        runs=runs,
        over_time=_read_intervals(connection),
        anomalies=anomalies,
        first_anomalies=() if facts.erased else tuple(Anomaly(**each) for each in _rows(connection, _ANOMALIES)),
        first_duplicates=tuple(DuplicateRow(**each) for each in _rows(connection, _DUPLICATES)),
        first_bad_rows=tuple(BadRow(**each) for each in _rows(connection, _BAD_ROWS)),
        erased=None if facts.erased is None else _utc(facts.erased),
    )


def _utc(seconds: float) -> datetime:
    """Return a time of the journal (epoch seconds) as a datetime in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def _rows(connection: sqlite3.Connection, statement: str, **values: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of a statement by the names of its columns, which are those of the fields that they fill."""
    cursor = connection.execute(statement, NUMBERS | {"listed": LISTED} | values)
    names = [name for name, *_ in cursor.description]
    return (dict(zip(names, row, strict=True)) for row in cursor)


# ------------------------------------------------------------------------------ accounts

_SETTLED = """
    SELECT found.state, name.name, found.count, reason.id, reason.text, reason.code, reason.error
    FROM (SELECT state, reason, count(*) AS count FROM account GROUP BY state, reason) AS found
    LEFT JOIN account_state AS name ON name.id = found.state
    LEFT JOIN reason ON reason.id = found.reason
"""

_REACHED = f"""SELECT count(*) FILTER (WHERE reached.open), count(*) FILTER (WHERE account.state = :state_waiting)
    FROM ({REACHED}) AS reached CROSS JOIN account ON account.sender_group = reached.sender_group
        AND account.chunk = reached.chunk WHERE account.state IN (:state_waiting, :state_again)"""  # noqa: S608  # a constant


_WAITING = """SELECT sum(members), reason.text, reason.code, reason.error
    FROM request JOIN reason ON reason.id = request.reason WHERE request.retry = 1 GROUP BY reason.id"""
"""Accounts that wait to be sent again, by the failure of their last request."""


class _Settled(NamedTuple):
    """Counts of the rows, their reasons, accounts by code, and the accounts that wait or may be under way."""

    accounts: AccountCounts
    reasons: tuple[ReasonCount, ...]
    left_off: ReasonsLeftOff | None
    codes: Mapping[str, int]
    waiting: int


def _read_accounts(connection: sqlite3.Connection, *, running: bool) -> _Settled:
    """Return the counts of the rows and their reasons, the most frequent first."""
    states, of_codes, numbers = Counter[int](), Counter[str](), Counter[str]()

    def reasons_found() -> Iterator[ReasonCount]:
        for state, name, count, reason, text, code, error in connection.execute(_SETTLED):
            states[state] += count
            if reason is None or state == AccountState.WAITING:  # accounts that wait again keep their last reason
                continue
            if code:
                of_codes[code] += count
            shown = AccountState.UNKNOWN.name.lower() if state == AccountState.AGAIN else name
            yield ReasonCount(state=shown, text=text, code=code, error=error, accounts=count)
        for count, text, code, error in connection.execute(_WAITING):
            yield ReasonCount(state="waiting", text=text, code=code, error=error, accounts=count)

    def counted(reasons: Iterator[ReasonCount]) -> Iterator[ReasonCount]:
        for each in reasons:
            numbers.update(reasons=1, accounts=each.accounts)
            yield each

    listed = tuple(nlargest(REASONS, counted(reasons_found()), key=lambda each: each.accounts))
    rest = numbers["reasons"] - len(listed)
    left_off = ReasonsLeftOff(reasons=rest, accounts=numbers["accounts"] - sum(each.accounts for each in listed))
    ((under_way, waiting),) = connection.execute(_REACHED, NUMBERS)
    ((loaded, rows, bad, repeated),) = connection.execute("SELECT loaded, rows, bad, duplicates FROM job")
    if loaded is None:  # the accounts come when the input was read completely
        states[AccountState.WAITING] = rows - bad
    accounts = AccountCounts(
        total=rows,
        done=states[AccountState.DONE],
        refused=states[AccountState.REFUSED],
        failed=states[AccountState.FAILED],
        unknown=states[AccountState.UNKNOWN] + states[AccountState.AGAIN] + waiting,
        bad=bad,
        not_sent=states[AccountState.WAITING] - waiting,
        duplicate=repeated,
        in_flight=under_way if running else 0,
    )
    return _Settled(
        accounts=accounts,
        reasons=listed,
        left_off=left_off if rest else None,
        codes=of_codes,
        waiting=states[AccountState.WAITING] + states[AccountState.AGAIN],
    )


def _read_codes(connection: sqlite3.Connection, settled: Mapping[str, int]) -> tuple[CodeCount, ...]:
    """Return the platform's codes by frequency in requests; ``settled`` is the number of accounts by code."""
    statement = """SELECT reason.code, sum(found.count) FROM
        (SELECT reason, count(*) AS count FROM request WHERE reason IS NOT NULL GROUP BY reason) AS found
        JOIN reason ON reason.id = found.reason WHERE reason.code <> '' GROUP BY reason.code"""
    requests, accounts = Counter(dict(connection.execute(statement))), Counter(settled)
    by_frequency = sorted(requests | accounts, key=lambda code: (-requests[code], -accounts[code], code))
    return tuple(CodeCount(code=each, accounts=accounts[each], requests=requests[each]) for each in by_frequency[:REASONS])


# ------------------------------------------------------------------------------ requests


_SENDINGS = """
    SELECT count(*) AS sent,
        count(*) FILTER (WHERE outcome = :sent_answered) AS answered,
        count(*) FILTER (WHERE outcome = :sent_refused) AS refused,
        count(*) FILTER (WHERE outcome = :sent_not_sent) AS not_sent,
        count(*) FILTER (WHERE outcome IN (:sent_unknown, :sent_open)) AS unknown,
        count(*) FILTER (WHERE outcome = :sent_open AND :running) AS in_flight,
        count(*) FILTER (WHERE outcome = :sent_refused AND reason IN
            (SELECT id FROM reason WHERE error = 'Throttled')) AS throttled,
        count(*) FILTER (WHERE attempt > 1 AND NOT resent) AS repeated,
        count(*) FILTER (WHERE resent) AS resent,
        count(*) FILTER (WHERE split) AS split,
        total(waited) AS waited
    FROM request
"""

_TIMES = "SELECT elapsed FROM request WHERE outcome IN (:sent_answered, :sent_refused) AND elapsed IS NOT NULL"


def _read_requests(connection: sqlite3.Connection, *, seconds: float, running: bool) -> RequestFigures:
    """Return the figures of the requests; ``seconds``: the job's running time."""
    (figures,) = _rows(connection, _SENDINGS, running=running)
    per_second = figures["answered"] / seconds if seconds else 0.0
    return RequestFigures(**figures, per_second=per_second, latency=_latency(connection))


def _latency(connection: sqlite3.Connection) -> Latency | None:
    ((count,),) = connection.execute(f"SELECT count(*) FROM ({_TIMES})", NUMBERS)  # noqa: S608  # a constant
    if not count:
        return None
    ordered = connection.execute(f"{_TIMES} ORDER BY elapsed", NUMBERS)
    values: list[float] = []
    passed, value = 0, 0.0
    for percent in (50, 95, 99, 100):
        rank = -(-count * percent // 100)  # nearest rank: the first value with this share at or below it
        if rank > passed:
            ((value,),) = islice(ordered, rank - passed - 1, rank - passed)
            passed = rank
        values.append(value)
    return Latency(p50=values[0], p95=values[1], p99=values[2], max=values[3])


# ------------------------------------------------------------------------------ time


def _read_runs(connection: sqlite3.Connection) -> tuple[RunFigures, ...]:
    """Return the runs in order. A run lasted as long as its samples: a monotonic clock measures them."""
    seconds: dict[int, float] = dict(connection.execute("SELECT run, sum(seconds) FROM sample GROUP BY run"))
    return tuple(
        RunFigures(
            id=key,
            began=_utc(began),
            ended=None if ended is None else _utc(ended),
            why=why,
            seconds=seconds.get(key, 0.0),
        )
        for key, began, ended, why in connection.execute("SELECT id, began, ended, why FROM run ORDER BY id")
    )


_CONDENSED = """
    SELECT min(run) AS run, min(at - seconds) AS time,
        sum(sum(seconds)) OVER (ORDER BY min(place)) - sum(seconds) AS at, sum(seconds) AS seconds,
        sum(requests) / sum(seconds) AS requests, sum(accounts) / sum(seconds) AS accounts,
        sum(in_flight * seconds) / sum(seconds) AS in_flight, sum(concurrency * seconds) / sum(seconds) AS concurrency,
        sum(rate * seconds) / sum(CASE WHEN rate IS NOT NULL THEN seconds END) AS rate,
        sum(throttled) AS throttled, sum(failed) AS failed
    FROM (
        SELECT *, rowid AS place, run * :apart AS part,
            max(1, sum(seconds >= :short) OVER (PARTITION BY run * :apart ORDER BY rowid)) - 1 AS number
        FROM sample WHERE seconds > 0
    ) GROUP BY part, number / :each ORDER BY min(place)
"""


def _read_intervals(connection: sqlite3.Connection) -> tuple[Interval, ...]:
    """Return the samples, condensed; each interval belongs to one run unless there are too many runs."""
    statement = "SELECT max(1, sum(seconds >= ?)) FROM sample WHERE seconds > 0 GROUP BY run"
    lengths: list[int] = [length for (length,) in connection.execute(statement, (MIN_SAMPLE,))]
    separate = len(lengths) <= INTERVALS // 2
    spare = INTERVALS - len(lengths) if separate else INTERVALS
    each = 1 if sum(lengths) <= INTERVALS else -(-sum(lengths) // spare)
    found = [*_rows(connection, _CONDENSED, apart=separate, short=MIN_SAMPLE, each=each)]
    for values in found:
        values["time"] = _utc(values["time"])
    return tuple(Interval(**values) for values in found)


# ------------------------------------------------------------------------------ rows


_ANOMALIES = """
    SELECT coalesce(target_group.name, '') AS "group", anomaly.account AS account, coalesce(reason.text, '') AS reason,
        anomaly.request AS request
    FROM anomaly LEFT JOIN request ON request.id = anomaly.request
    LEFT JOIN sender_group ON sender_group.id = request.sender_group
    LEFT JOIN target_group ON target_group.id = sender_group.target_group
    LEFT JOIN reason ON reason.id = anomaly.reason ORDER BY anomaly.rowid LIMIT :listed
"""

_DUPLICATES = """
    SELECT target_group.name AS "group", duplicate.account AS account, duplicate.seq AS row, duplicate.first AS first_row
    FROM duplicate JOIN target_group ON target_group.id = duplicate.target_group ORDER BY duplicate.seq LIMIT :listed
"""

_BAD_ROWS = "SELECT line, reason, raw FROM bad_row ORDER BY rowid LIMIT :listed"
