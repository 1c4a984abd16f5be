"""Reading of a report from a job's journal, while the job runs or later.

The queries give aggregates only, with the same memory for ten accounts and for ten million. Each list of a report is one
statement, whose columns are the fields of its entries.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
from rbim.bulk.report.rows import NOT_DONE, NUMBERS, REACHED, UNUSABLE, rows_of
from rbim.bulk.work import AccountState
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from rbim.bulk.report.rows import ReportRow

__all__ = ["first_not_done", "read_report"]

R = TypeVar("R")

LISTED = 10
"""Rows that were not done, anomalies, duplicates and bad rows that a report lists."""

REASONS = 30
"""Reasons, and codes, that a report lists."""

INTERVALS = 120
"""Intervals to which the samples are condensed, at most."""

MIN_SAMPLE = 0.5
"""Seconds; a shorter sample is added to the one before it, because its figures per second mean nothing."""

_REACHED = f"""
    SELECT count(*) FILTER (WHERE reached.open), count(*) FILTER (WHERE result.state = :state_waiting)
    FROM ({REACHED}) AS reached CROSS JOIN result ON result.sender_group = reached.sender_group
        AND result.chunk = reached.chunk WHERE result.state IN (:state_waiting, :state_again)
"""  # noqa: S608  # a constant

# accounts that wait again keep the reason of their last failure, which is that of their last request, too
_REASONS = """
    SELECT state, text, code, error, accounts, count(*) OVER () AS of_reasons, sum(accounts) OVER () AS of_accounts
    FROM (
        SELECT iif(state = :state_again, 'unknown', name) AS state, reason, count(*) AS accounts
            FROM result JOIN account_state ON account_state.id = state
            WHERE reason IS NOT NULL AND state <> :state_waiting GROUP BY 1, 2
        UNION ALL SELECT 'waiting', reason, sum(members) FROM request WHERE retry = 1 AND reason IS NOT NULL GROUP BY reason
    ) JOIN reason ON reason.id = reason ORDER BY accounts DESC, reason.id LIMIT :reasons
"""

_CODES = """
    SELECT code, sum(accounts) AS accounts, sum(requests) AS requests
    FROM (
        SELECT reason, count(*) AS accounts, 0 AS requests FROM result
            WHERE reason IS NOT NULL AND state <> :state_waiting GROUP BY reason
        UNION ALL SELECT reason, 0, count(*) FROM request WHERE reason IS NOT NULL GROUP BY reason
    ) JOIN reason ON reason.id = reason WHERE code <> '' GROUP BY code
    ORDER BY sum(requests) DESC, sum(accounts) DESC, code LIMIT :reasons
"""

_REQUESTS = """
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

# a run lasted as long as its samples: a monotonic clock measures them
_RUNS = """
    SELECT id, began, ended, why, total(seconds) AS seconds FROM run LEFT JOIN sample ON sample.run = run.id
    GROUP BY run.id ORDER BY run.id
"""

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


def read_report(journal: str | Path, *, running: bool = False) -> Report:
    """Read the report of a job from its journal; ``running``: whether the job runs now (default: False).

    The file is opened read-only, and all figures are of one moment, also while the job runs. Raises InvalidRequest if the
    file does not exist or is not a job's journal.
    """
    path = Path(journal)
    with closing(open_to_read(path)) as connection, reading(path):
        connection.execute("BEGIN")
        return _read(connection, path, running=running)


def first_not_done(journal: Path, report: Report) -> list[ReportRow]:
    """Return the first rows that were not done, of those that do not wait; none if the accounts were erased."""
    accounts = report.accounts
    if report.erased or not accounts.refused + accounts.failed + accounts.unknown + accounts.bad:
        return []
    with closing(open_to_read(journal)) as connection, reading(journal):
        return list(rows_of(connection, (*NOT_DONE[:3], UNUSABLE), limit=LISTED))


def _read(connection: sqlite3.Connection, path: Path, *, running: bool) -> Report:
    facts = facts_in(connection)
    if facts is None:
        raise InvalidRequest(f"{path}: the journal holds no job: begin one first", field="journal")
    facts.require_erased_completely(path)
    ((done_word,),) = connection.execute("SELECT name FROM account_state WHERE id = ?", (AccountState.DONE,))
    states = Counter(dict(connection.execute("SELECT state, count(*) FROM result GROUP BY state")))
    if facts.loaded is None:  # the accounts come when the input was read completely
        states[AccountState.WAITING] = facts.input.rows - facts.input.bad
    ((under_way, reached),) = connection.execute(_REACHED, NUMBERS)
    accounts = AccountCounts(
        total=facts.input.rows,
        done=states[AccountState.DONE],
        refused=states[AccountState.REFUSED],
        failed=states[AccountState.FAILED],
        unknown=states[AccountState.UNKNOWN] + states[AccountState.AGAIN] + reached,
        bad=facts.input.bad,
        not_sent=states[AccountState.WAITING] - reached,
        duplicate=facts.input.duplicates,
        in_flight=under_way if running else 0,
    )
    ((again,),) = connection.execute("SELECT EXISTS (SELECT 1 FROM request WHERE retry = 1)")
    waiting = states[AccountState.WAITING] + states[AccountState.AGAIN]
    complete = facts.loaded is not None and not waiting and not again
    reasons = _entries(connection, _REASONS, dict[str, Any])
    totals = [(each.pop("of_reasons"), each.pop("of_accounts")) for each in reasons]  # the same in each row
    left_off = None
    if totals and totals[0][0] > len(reasons):
        listed = sum(each["accounts"] for each in reasons)
        left_off = ReasonsLeftOff(reasons=totals[0][0] - len(reasons), accounts=totals[0][1] - listed)
    runs = _entries(connection, _RUNS, RunFigures)
    seconds = sum(run.seconds for run in runs)
    (figures,) = _entries(connection, _REQUESTS, dict[str, Any], running=running)
    ((anomalies,),) = connection.execute("SELECT count(*) FROM anomaly")
    return Report(
        operation=facts.operation,
        done_word=done_word,
        options=facts.options,
        chunk=facts.chunk,
        dialect=facts.settings.get(DIALECT, {}),
        source=facts.source,
        created=_utc(facts.created),
        state="loading" if facts.loaded is None else "running" if running else "complete" if complete else "incomplete",
        complete=complete,
        seconds=seconds,
        accounts=accounts,
        requests=RequestFigures(
            **figures, per_second=figures["answered"] / seconds if seconds else 0.0, latency=_latency(connection)
        ),
        reasons=tuple(ReasonCount(**each) for each in reasons),
        reasons_left_off=left_off,
        codes=_entries(connection, _CODES, CodeCount),
        runs=runs,
        over_time=_intervals(connection),
        anomalies=anomalies,
        first_anomalies=() if facts.erased else _entries(connection, _ANOMALIES, Anomaly),
        first_duplicates=_entries(connection, _DUPLICATES, DuplicateRow),
        first_bad_rows=_entries(connection, _BAD_ROWS, BadRow),
        erased=None if facts.erased is None else _utc(facts.erased),
    )


def _utc(seconds: float) -> datetime:
    """Return a time of the journal (epoch seconds) as a datetime in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def _entries(connection: sqlite3.Connection, statement: str, kind: Callable[..., R], **values: float) -> tuple[R, ...]:
    """Return the rows of a statement as values of a kind; times, which are epoch seconds, become datetimes."""
    cursor = connection.execute(statement, NUMBERS | {"listed": LISTED, "reasons": REASONS} | values)
    names = [name for name, *_ in cursor.description]
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in cursor]
    for row in rows:
        row |= {name: _utc(row[name]) for name in ("began", "ended", "time") if row.get(name) is not None}
    return tuple(kind(**row) for row in rows)


def _latency(connection: sqlite3.Connection) -> Latency | None:
    ((count,),) = connection.execute(f"SELECT count(*) FROM ({_TIMES})", NUMBERS)  # noqa: S608  # a constant
    if not count:
        return None
    # nearest rank: the first value with this share of all at or below it
    ranks = {name: -(-count * percent // 100) for name, percent in (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100))}
    ordered = enumerate(connection.execute(f"{_TIMES} ORDER BY elapsed", NUMBERS), 1)
    by_rank = {rank: elapsed for rank, (elapsed,) in ordered if rank in ranks.values()}
    return Latency(**{name: by_rank[rank] for name, rank in ranks.items()})


def _intervals(connection: sqlite3.Connection) -> tuple[Interval, ...]:
    """Return the samples, condensed; each interval belongs to one run unless there are too many runs."""
    statement = "SELECT max(1, sum(seconds >= ?)) FROM sample WHERE seconds > 0 GROUP BY run"
    lengths: list[int] = [length for (length,) in connection.execute(statement, (MIN_SAMPLE,))]
    separate = len(lengths) <= INTERVALS // 2
    spare = INTERVALS - len(lengths) if separate else INTERVALS
    each = 1 if sum(lengths) <= INTERVALS else -(-sum(lengths) // spare)
    return _entries(connection, _CONDENSED, Interval, apart=separate, short=MIN_SAMPLE, each=each)
