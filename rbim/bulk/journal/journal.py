"""Journal of a job: its facts, its runs, each sending before and after, and the recovery after an ended run."""

from __future__ import annotations

import json
import time
from errno import ENOENT
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from rbim.bulk.journal.facts import facts_in
from rbim.bulk.journal.loading import Loader
from rbim.bulk.journal.planning import Planner
from rbim.bulk.journal.schema import JOURNAL
from rbim.bulk.states import AccountState
from rbim.bulk.work import FailureReason
from rbim.storage.sqlite import Database

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rbim.bulk.journal.facts import JobFacts
    from rbim.bulk.work import Chunk, Settlement
    from rbim.clock import Clock

__all__ = ["Journal", "OnUnknown", "Sample"]

LOOK_EVERY = 1.0
"""Seconds between two looks whether the file is still in its place."""

OnUnknown = Literal["auto", "resend", "report"]

RUN_ENDED = FailureReason("the run ended before an answer came")

BEGIN = """INSERT INTO request (lane, first, last, members, attempt, repeats, resent, begun, waited, outcome)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"""
BEGIN_PLANNED = "UPDATE request SET begun = ?, waited = ?, outcome = 0, todo = 0 WHERE id = ?"
END = "UPDATE request SET ended = ?, elapsed = ?, outcome = ?, reason = ?, todo = ? WHERE id = ?"
SETTLE = """UPDATE account SET state = ?, request = ?, reason = ?
    WHERE lane = ? AND seq BETWEEN ? AND ? AND state <= 0"""
SETTLE_ONE = """UPDATE account SET state = ?, reason = ?
    WHERE party = (SELECT party FROM lane WHERE id = ?) AND account = ?"""
INSERT_HALF = """INSERT INTO request (lane, first, last, members, attempt, repeats, resent, outcome, todo)
    VALUES (?, ?, ?, ?, 1, ?, ?, 5, 1)"""
LEFT_OPEN = """SELECT id, lane, first, last, begun, 4 FROM request WHERE outcome = 0
    UNION ALL SELECT id, lane, first, last, begun, outcome FROM request
    WHERE todo = 1 AND (outcome = 4 OR resent = 1 AND outcome <> 5)"""
SEND_AGAIN = "UPDATE request SET outcome = ?, todo = 1 WHERE id = ?"
GIVE_UP = "UPDATE request SET outcome = ?, reason = coalesce(reason, ?), todo = 0 WHERE id = ?"
SAMPLE = """INSERT INTO sample (run, at, seconds, requests, accounts, throttled, failed, in_flight, concurrency, rate)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


class Sample(NamedTuple):
    """Activity in about one second of a run; the fields are the columns of the table."""

    at: float
    seconds: float
    requests: int
    accounts: int
    throttled: int
    failed: int
    in_flight: float
    concurrency: int
    rate: float | None


class Journal:
    """The file of one job, between ``open`` and ``close``. Methods that write are commands for ``commit``."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self.path = path
        self.database = Database(path, JOURNAL, clock=lambda: clock.now().timestamp())
        self._planner: Planner | None = None
        self._run = 0
        self._failed: Exception | None = None
        self._seen: os.stat_result | None = None
        self._seen_log: tuple[int, int] | None = None
        self._seen_at = -LOOK_EVERY

    def open(self) -> None:
        """Open the file, create it if needed. Raises InvalidRequest if it is something else or of a newer rbim."""
        self.database.open()

    def close(self) -> None:
        """Undo one ``open``."""
        self.database.close()

    def commit(self, commands: Sequence[Callable[[], Any]], *, hurried: Callable[[], bool] = bool) -> list[Any]:
        """Run commands in one durable transaction, all or none. After a failed one, every later commit raises its error.

        A later record would otherwise hide the gap before it.
        """
        if self._failed is not None:
            raise self._failed
        try:
            self._require_in_place()
            return self.database.commit(commands, hurried=hurried, apart=False)
        except Exception as error:
            self._failed = error
            raise

    def _require_in_place(self) -> None:
        """Raise FileNotFoundError, within a second, if the file was deleted, replaced or cut, or if its log was deleted.

        The same command would begin the job anew beside this run, which writes into a file without a name.
        """
        if time.monotonic() - self._seen_at < LOOK_EVERY:
            return
        self._seen_at = time.monotonic()
        try:
            found = self.path.stat()
        except FileNotFoundError:
            found = None
        before, self._seen = self._seen, found
        if found is None or (
            before is not None
            and ((found.st_dev, found.st_ino) != (before.st_dev, before.st_ino) or found.st_size < before.st_size)
        ):
            raise FileNotFoundError(ENOENT, "the journal was deleted, replaced or cut during the run", str(self.path))
        log = self._log_of()
        before_log, self._seen_log = self._seen_log, log
        if before_log is not None and log != before_log:
            raise FileNotFoundError(
                ENOENT, "the journal's log (-wal) was deleted or replaced during the run", str(self.path)
            )

    def _log_of(self) -> tuple[int, int] | None:
        """Return device and inode of the log, or None before the first transaction."""
        real = self.path.resolve()
        try:
            found = real.with_name(f"{real.name}-wal").stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    # The job and its input.

    def facts(self) -> JobFacts | None:
        """Return the facts of the job, or None if the file is new."""
        return self.database.read(lambda: facts_in(self.database))

    def create(self, facts: JobFacts, done: str) -> Loader:
        """Make this the journal of a job whose input is loaded next; remove the rest of an unfinished loading."""
        for table in ("job", "party", "lane", "account", "bad_row", "duplicate"):
            self.database.execute(f"DELETE FROM {table}")  # noqa: S608  # a constant
        self.database.execute("UPDATE account_state SET name = ? WHERE id = ?", (done, AccountState.DONE))
        texts = [json.dumps(each) for each in (facts.options, facts.settings, facts.source)]
        self.database.execute(
            "INSERT INTO job (operation, options, chunk, settings, source, created) VALUES (?, ?, ?, ?, ?, ?)",
            (facts.operation, texts[0], facts.chunk, texts[1], texts[2], self.database.now),
        )
        return Loader(self.database)

    def set_fast_writes(self, *, loading: bool) -> None:
        """Do not wait for the disk while the input is loaded (``loading`` True), and wait again afterwards.

        A loading that is not complete is worthless after a power failure anyway.
        """
        mode = "NORMAL" if loading else "FULL"
        self.database.read(lambda: self.database.execute(f"PRAGMA synchronous = {mode}"))

    def loaded(self, loader: Loader, source: dict[str, Any]) -> None:
        """Record that the input was read completely."""
        found = loader.loaded
        self.database.execute(
            "UPDATE job SET loaded = ?, rows = ?, bad = ?, duplicates = ?, digest = ?, source = ?",
            (
                self.database.now,
                found.rows,
                found.bad,
                found.duplicates,
                found.digest,
                json.dumps(source),
            ),
        )

    # Runs.

    def begin_run(self, settings: dict[str, Any]) -> None:
        """Record the beginning of a run."""
        text = json.dumps(settings)
        self.database.execute("UPDATE job SET settings = ?", (text,))
        cursor = self.database.execute("INSERT INTO run (began, settings) VALUES (?, ?)", (self.database.now, text))
        self._run = cast("int", cursor.lastrowid)
        ((chunk,),) = self.database.execute("SELECT chunk FROM job")
        self._planner = Planner(self.database, chunk)

    def end_run(self, reason: str) -> None:
        """Record the end of the run and its reason."""
        self.database.execute("UPDATE run SET ended = ?, why = ? WHERE id = ?", (self.database.now, reason, self._run))

    def sample(self, sample: Sample) -> None:
        """Record a sample."""
        self.database.execute(SAMPLE, (self._run, *sample))

    def recover(self, on_unknown: OnUnknown, resend_within: float) -> None:
        """Settle the requests that an ended run left open.

        ``on_unknown``: ``resend``, ``report`` (as unknown), or ``auto``: send again those younger than ``resend_within``
        seconds.
        """
        for number, sender_group, first, last, begun, outcome in self.database.execute(LEFT_OPEN).fetchall():
            young = 0 <= self.database.now - begun < resend_within  # after a clock was set back, the age is unknown
            if on_unknown == "resend" or (on_unknown == "auto" and young):
                self.database.execute(SEND_AGAIN, (outcome, number))
                continue
            reason_id = self._reason_id(RUN_ENDED)
            self.database.execute(GIVE_UP, (outcome, reason_id, number))
            self.database.execute(SETTLE, (AccountState.UNKNOWN, number, reason_id, sender_group, first, last))

    def retry(self, states: Sequence[AccountState]) -> int:
        """Let accounts in these states wait again; return their number."""
        marks = ", ".join("?" * len(states))
        cursor = self.database.execute(
            f"UPDATE account SET state = CASE state WHEN {AccountState.UNKNOWN:d} THEN {AccountState.AGAIN:d}"  # noqa: S608  # constants
            f" ELSE {AccountState.WAITING:d} END"
            f" WHERE state IN ({marks})",
            tuple(states),
        )
        self.database.execute("UPDATE lane SET cursor = 0 WHERE id IN (SELECT DISTINCT lane FROM account WHERE state <= 0)")
        return cursor.rowcount

    def counts(self) -> dict[AccountState, int]:
        """Return the number of accounts in each state."""
        statement = "SELECT state, count(*) FROM account GROUP BY state"
        found = dict(self.database.read(lambda: self.database.execute(statement).fetchall()))
        return {state: found.get(state, 0) for state in AccountState}

    def planned(self, chunk: int) -> tuple[int, int]:
        """Return the number of groups, and of requests of ``chunk`` accounts for all waiting accounts."""
        statement = """SELECT (SELECT count(*) FROM party), coalesce(sum((waiting + ?) / ?), 0) FROM
            (SELECT count(*) AS waiting FROM account WHERE state <= 0 GROUP BY lane)"""
        ((groups, requests),) = self.database.read(lambda: self.database.execute(statement, (chunk - 1, chunk)).fetchall())
        return groups, requests

    # Sendings.

    def plan(self, limit: int) -> list[Chunk]:
        """Return the next chunks, at most ``limit``; an empty list if nothing is left to plan."""
        planner = self._planner
        assert planner is not None  # noqa: S101  # a run has begun
        return self.database.read(lambda: planner.plan(limit))

    def begin(self, chunk: Chunk) -> None:
        """Record that a chunk is sent now, and give it the request's number."""
        database, now = self.database, self.database.now
        assert self._planner is not None  # noqa: S101  # a run has begun
        if chunk.planned is not None:
            database.execute(BEGIN_PLANNED, (now, chunk.waited, chunk.planned))
            chunk.number = chunk.planned
            return
        values = (
            chunk.sender_group,
            chunk.first,
            chunk.last,
            len(chunk.accounts),
            chunk.attempt,
            chunk.repeats,
            chunk.resent,
            now,
            chunk.waited,
        )
        chunk.number = cast("int", database.execute(BEGIN, values).lastrowid)
        if chunk.repeats is not None:
            database.execute("UPDATE request SET todo = 0 WHERE id = ?", (chunk.repeats,))
        self._planner.sent(chunk)

    def settle(self, chunk: Chunk, settlement: Settlement, elapsed: float) -> None:
        """Record the outcome of a request and its accounts."""
        database, number, reason_id = self.database, chunk.number, self._reason_id(settlement.reason)
        again = settlement.again
        database.execute(END, (database.now, elapsed, settlement.outcome, reason_id, again, number))
        if settlement.state is not None:
            database.execute(SETTLE, (settlement.state, number, reason_id, chunk.sender_group, chunk.first, chunk.last))
        for index, state, reason in settlement.individual:
            database.execute(SETTLE_ONE, (state, self._reason_id(reason), chunk.sender_group, chunk.accounts[index]))
        for account, reason in settlement.anomalies:
            values = (number, account, self._reason_id(reason))
            database.execute("INSERT INTO anomaly (request, account, reason) VALUES (?, ?, ?)", values)

    def split(self, chunk: Chunk, settlement: Settlement, elapsed: float) -> list[Chunk]:
        """Record that a request was refused and that its halves are to be sent; return the halves."""
        assert self._planner is not None  # noqa: S101  # a run has begun
        self.settle(chunk, settlement, elapsed)
        halves = self._planner.halves(chunk)
        for half in halves:
            values = (half.sender_group, half.first, half.last, len(half.accounts), chunk.number, half.resent)
            half.repeats, half.planned = chunk.number, cast("int", self.database.execute(INSERT_HALF, values).lastrowid)
        return halves

    def _reason_id(self, reason: FailureReason | None) -> int | None:
        if reason is None:
            return None
        self.database.execute("INSERT OR IGNORE INTO reason (text, code, error) VALUES (?, ?, ?)", reason)
        ((number,),) = self.database.execute("SELECT id FROM reason WHERE text = ? AND code = ? AND error = ?", reason)
        return cast("int", number)
