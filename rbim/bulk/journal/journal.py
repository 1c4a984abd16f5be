"""Journal of a job: its facts, its runs, each sending before and after, and the recovery after an ended run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from attrs import evolve

from rbim.bulk.journal.facts import facts_in
from rbim.bulk.journal.loading import Loader
from rbim.bulk.journal.marks import Mark, Marks, RunKey, read_marks
from rbim.bulk.journal.packing import pack
from rbim.bulk.journal.parts import halve, wait_again
from rbim.bulk.journal.planning import Planner
from rbim.bulk.journal.schema import JOURNAL
from rbim.bulk.work import AccountState, FailureReason, RequestState
from rbim.storage.in_place import InPlace
from rbim.storage.sqlite import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rbim.bulk.journal.facts import JobFacts
    from rbim.bulk.journal.parts import Selection
    from rbim.bulk.work import Chunk, Settlement
    from rbim.clock import Clock

__all__ = ["Ended", "Journal", "OnUnknown", "Sample"]

OnUnknown = Literal["auto", "resend", "report"]

RUN_ENDED = FailureReason("the run ended before an answer came")

END = """UPDATE request SET begun = ?, ended = ?, elapsed = ?, waited = ?, outcome = ?, reason = ?, todo = ?, split = ?
    WHERE id = ?"""
SETTLE = "UPDATE chunk SET state = ?, request = ?, reason = ? WHERE id = ? AND state <= 0"
EXCEPT = "INSERT INTO exception (chunk, place, state, reason) VALUES (?, ?, ?, ?)"
ANOMALY = "INSERT INTO anomaly (request, account, reason) VALUES (?, ?, ?)"
LEFT_OPEN = """SELECT id, chunk, begun, 4 FROM request WHERE outcome = 0
    UNION ALL SELECT id, chunk, begun, outcome FROM request WHERE todo = 1 AND (outcome = 4 OR resent = 1)"""
SEND_AGAIN = "UPDATE request SET outcome = ?, todo = 1 WHERE id = ?"
GIVE_UP = "UPDATE request SET outcome = ?, reason = coalesce(reason, ?), todo = 0 WHERE id = ?"
LAST_RUN = """SELECT run.id, run.began, coalesce(max(sample.at), run.began) FROM run LEFT JOIN sample ON sample.run = run.id
    WHERE run.id = (SELECT max(id) FROM run) GROUP BY run.id"""
SAMPLE = """INSERT INTO sample (run, at, seconds, requests, accounts, throttled, failed, in_flight, concurrency, rate)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
COUNTS = """SELECT state, total(count) FROM (
        SELECT state, sum(size) AS count FROM chunk GROUP BY state
        UNION ALL SELECT state, count(*) FROM exception GROUP BY state
        UNION ALL SELECT chunk.state, -count(*) FROM exception JOIN chunk ON chunk.id = chunk GROUP BY chunk.state
    ) GROUP BY state"""
OPEN_CHUNKS = """SELECT id, size, state FROM chunk WHERE state <= 0
    AND sender_group IN (SELECT id FROM sender_group WHERE target_group = (SELECT id FROM target_group WHERE name = ?))
    AND id NOT IN (SELECT value FROM json_each(?))"""
MAY_BE_REACHED = """SELECT 1 FROM request WHERE todo = 1 AND chunk = :chunk AND (outcome = 4 OR resent = 1)
    UNION ALL SELECT 1 FROM request WHERE outcome = 5 AND chunk = :chunk AND resent = 1"""
MAX_REASONS = 10_000  # reasons whose numbers are kept in memory


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


class Ended(NamedTuple):
    """The end of a request: its chunk, its outcome, when it left (epoch seconds), and the seconds that it took.

    ``again``: the same chunk as it is to be sent again.
    """

    chunk: Chunk
    settlement: Settlement
    begun: float | None
    elapsed: float
    again: Chunk | None = None


class Journal:
    """The file of one job, between ``open`` and ``close``. Methods that write are commands for ``commit``."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self.path = path
        self.database = Database(path, JOURNAL, clock=lambda: clock.now().timestamp())
        self._planner: Planner | None = None
        self._marks: Marks | None = None
        self._run = 0
        self._run_ended = False
        self._reasons: dict[FailureReason, int] = {}
        self._failed: Exception | None = None
        self._in_place = InPlace(path, "the journal", during="during the run", grows=True)

    def open(self) -> None:
        """Open the file, create it if needed. Raises InvalidRequest if it is something else or of a newer rbim."""
        self.database.open()

    def close(self) -> None:
        """Undo one ``open``."""
        if self._marks is not None:
            self._marks.close(remove=self._run_ended)
            self._marks = None
        self.database.close()

    def commit(self, commands: Sequence[Callable[[], Any]], *, hurried: Callable[[], bool] = bool) -> list[Any]:
        """Run commands in one durable transaction, all or none. After a failed one, every later commit raises its error.

        A later record would otherwise hide the gap before it.
        """
        if self._failed is not None:
            raise self._failed
        try:
            self._in_place.require()
            return self.database.commit(commands, hurried=hurried, apart=False)
        except Exception as error:
            self._failed = error
            self._run_ended = False
            raise

    # The job and its input.

    def facts(self) -> JobFacts | None:
        """Return the facts of the job, or None if the file is new."""
        return self.database.read(lambda: facts_in(self.database))

    def create(self, facts: JobFacts, done: str) -> Loader:
        """Make this the journal of a job whose input is loaded next; remove the rest of an unfinished loading."""
        for table in ("job", "target_group", "sender_group", "content", "chunk", "exception", "bad_row", "duplicate"):
            self.database.execute(f"DELETE FROM {table}")  # noqa: S608  # a constant
        self.database.execute("UPDATE account_state SET name = ? WHERE id = ?", (done, AccountState.DONE))
        texts = [json.dumps(each) for each in (facts.options, facts.settings, facts.source)]
        self.database.execute(
            "INSERT INTO job (operation, options, chunk, settings, source, created) VALUES (?, ?, ?, ?, ?, ?)",
            (facts.operation, texts[0], facts.chunk, texts[1], texts[2], self.database.now),
        )
        return Loader(self.database, facts.chunk, self.path.parent)

    def set_fast_writes(self, *, loading: bool) -> None:
        """Do not wait for the disk while the input is loaded (``loading`` True), and wait again afterwards.

        A loading that is not complete is worthless after a power failure anyway.
        """
        mode = "NORMAL" if loading else "FULL"
        self.database.read(lambda: self.database.execute(f"PRAGMA synchronous = {mode}"))

    def loaded(self, loader: Loader, source: dict[str, Any]) -> None:
        """Make the chunks, and record that the input was read completely."""
        loader.end()
        ((size,),) = self.database.execute("SELECT chunk FROM job")
        pack(self.database, loader, size)
        loader.close()
        found = loader.loaded
        values = (found.rows, found.bad, found.duplicates, found.digest, json.dumps(source))
        self.database.execute(
            "UPDATE job SET loaded = ?, rows = ?, bad = ?, duplicates = ?, digest = ?, source = ?",
            (self.database.now, *values),
        )

    # Runs.

    def begin_run(self, settings: dict[str, Any]) -> None:
        """Record the beginning of a run."""
        text = json.dumps(settings)
        self.database.execute("UPDATE job SET settings = ?", (text,))
        cursor = self.database.execute("INSERT INTO run (began, settings) VALUES (?, ?)", (self.database.now, text))
        self._run = cast("int", cursor.lastrowid)
        self._planner = Planner(self.database)
        self._marks = Marks(self.path, RunKey(self._run, self.database.now))

    def end_run(self, reason: str) -> None:
        """Record the end of the run and its reason."""
        self.adopt_marks()
        self.database.execute("UPDATE run SET ended = ?, why = ? WHERE id = ?", (self.database.now, reason, self._run))
        self._run_ended = True

    def sample(self, sample: Sample) -> None:
        """Record a sample."""
        self.database.execute(SAMPLE, (self._run, *sample))

    def recover(self, on_unknown: OnUnknown, resend_within: float) -> None:
        """Settle the requests that an ended run left open.

        ``on_unknown``: ``resend``, ``report`` (as unknown), or ``auto``: send again those younger than ``resend_within``
        seconds.
        """
        self.adopt_marks()
        for number, chunk, begun, outcome in self.database.execute(LEFT_OPEN).fetchall():
            # after a clock was set back the age is unknown, and what never left has none
            young = begun is not None and 0 <= self.database.now - begun < resend_within
            if on_unknown == "resend" or (on_unknown == "auto" and young):
                self.database.execute(SEND_AGAIN, (outcome, number))
                continue
            reason_id = self._reason_id(RUN_ENDED)
            self.database.execute(GIVE_UP, (outcome, reason_id, number))
            self.database.execute(SETTLE, (AccountState.UNKNOWN, number, reason_id, chunk))

    def adopt_marks(self) -> None:
        """Turn the intents of the last run whose requests have left into open requests, and take the others back."""
        if not self.database.execute("SELECT 1 FROM request WHERE outcome = 5 LIMIT 1").fetchall():
            return
        ((number, began, last_seen),) = self.database.execute(LAST_RUN)
        marks = read_marks(self.path, RunKey(number, began))
        columns = "id, chunk, repeats, attempt"
        for request, chunk, repeats, attempt in self.database.execute(
            f"SELECT {columns} FROM request WHERE outcome = 5"  # noqa: S608  # a constant
        ).fetchall():
            mark = Mark(last_seen) if marks is None else marks.get(request)
            if mark is None:
                self.database.execute("DELETE FROM request WHERE id = ?", (request,))
                if repeats is not None and attempt > 1:
                    self.database.execute("UPDATE request SET todo = 1 WHERE id = ?", (repeats,))
                continue
            if mark.done_after is None:
                self.database.execute("UPDATE request SET outcome = 0, begun = ? WHERE id = ?", (mark.at, request))
                continue
            ended = (mark.at, mark.at + mark.done_after, mark.done_after, 0.0)
            self.database.execute(END, (*ended, RequestState.ANSWERED, None, False, False, request))
            self.database.execute(SETTLE, (AccountState.DONE, request, None, chunk))

    def retry(self, selection: Selection) -> int:
        """Let the accounts of a selection wait again; return their number."""
        return wait_again(self.database, selection)

    def counts(self) -> dict[AccountState, int]:
        """Return the number of accounts in each state."""
        found = dict(self.database.read(lambda: self.database.execute(COUNTS).fetchall()))
        return {state: int(found.get(state, 0)) for state in AccountState}

    def planned(self) -> tuple[int, int]:
        """Return the number of groups, and of requests for all accounts."""
        statement = "SELECT (SELECT count(*) FROM target_group), (SELECT count(*) FROM chunk)"
        ((groups, requests),) = self.database.read(lambda: self.database.execute(statement).fetchall())
        return groups, requests

    def group_sizes(self) -> dict[str, int]:
        """Return the number of accounts of each group."""
        statement = """SELECT target_group.name, sum(size) FROM chunk JOIN sender_group ON sender_group.id = sender_group
            JOIN target_group ON target_group.id = target_group GROUP BY target_group"""
        return dict(self.database.read(lambda: self.database.execute(statement).fetchall()))

    # Sendings.

    @property
    def _running(self) -> tuple[Planner, Marks]:
        assert self._planner is not None  # noqa: S101  # a run has begun
        assert self._marks is not None  # noqa: S101
        return self._planner, self._marks

    def plan(self, limit: int, accounts: int | None = None) -> list[Chunk]:
        """Return the next chunks, which can be sent when this is durable; an empty list at the end.

        They are at most ``limit``, with at most ``accounts`` accounts (None: without a limit).
        """
        return self._running[0].plan(limit, accounts)

    def mark(self, chunk: Chunk, at: float) -> None:
        """Note at once, without waiting for the disk, that a chunk leaves now (epoch seconds). No command."""
        chunk.mark = self._running[1].set(chunk.number, at)

    def mark_done(self, chunk: Chunk, elapsed: float) -> None:
        """Note at once that all accounts of a chunk are done, which :meth:`settle` records later. No command."""
        if chunk.mark is not None and chunk.begun is not None:
            self._running[1].set_done(chunk.mark, chunk.number, Mark(chunk.begun, elapsed))

    def forget_mark(self, chunk: Chunk) -> None:
        """Note that the outcome of a chunk is durable. No command."""
        if chunk.mark is not None:
            self._running[1].release(chunk.mark)
            chunk.mark = None

    def settle(self, several: Sequence[Ended]) -> None:
        """Record the outcomes of requests and of their accounts, and the intents of chunks to be sent again."""
        database, now = self.database, self.database.now
        ends: list[tuple[Any, ...]] = []
        states: list[tuple[Any, ...]] = []
        for chunk, settlement, begun, elapsed, again in several:
            number, state, reason = chunk.number, settlement.state, self._reason_id(settlement.reason)
            ended = now if begun is None else begun + elapsed
            values = (begun, ended, elapsed, chunk.waited, settlement.outcome, reason)
            ends.append((*values, settlement.again and again is None, settlement.split, number))
            if state is not None:
                states.append((state, number, reason, chunk.id))
                for place, its_state, its_reason in settlement.individual:
                    database.execute(EXCEPT, (chunk.id, place, its_state, self._reason_id(its_reason)))
            for account, its_reason in settlement.anomalies:
                database.execute(ANOMALY, (number, account, self._reason_id(its_reason)))
        database.executemany(END, ends)
        database.executemany(SETTLE, states)
        if returning := [each.again for each in several if each.again is not None]:
            self._running[0].record_intents(returning)

    def split(self, ended: Ended) -> list[Chunk]:
        """Record that a request was refused and that its halves are to be sent; return the halves."""
        whole = ended.chunk
        self.settle([ended._replace(settlement=evolve(ended.settlement, split=True))])
        halves = halve(self.database, whole)
        self._running[0].record_intents(halves)
        return halves

    def close_group(self, group: str, reason: FailureReason, under_way: Sequence[int]) -> dict[AccountState, int]:
        """Settle the accounts of a group that wait, except those of the chunks ``under_way``; return how many by state.

        They have failed with the reason; those that an earlier request may have reached are unknown.
        """
        number = self._reason_id(reason)
        found = {AccountState.FAILED: 0, AccountState.UNKNOWN: 0}
        for chunk, size, state in self.database.execute(OPEN_CHUNKS, (group, json.dumps(list(under_way)))).fetchall():
            again = state == AccountState.AGAIN or self.database.execute(MAY_BE_REACHED, {"chunk": chunk}).fetchall()
            after = AccountState.UNKNOWN if again else AccountState.FAILED
            found[after] += size
            self.database.execute("DELETE FROM request WHERE outcome = 5 AND chunk = ?", (chunk,))
            self.database.execute("UPDATE request SET todo = 0 WHERE todo = 1 AND chunk = ?", (chunk,))
            self.database.execute(SETTLE, (after, None, number, chunk))
        return found

    def _reason_id(self, reason: FailureReason | None) -> int | None:
        if reason is None:
            return None
        number = self._reasons.get(reason)
        if number is None:
            self.database.execute("INSERT OR IGNORE INTO reason (text, code, error) VALUES (?, ?, ?)", reason)
            ((number,),) = self.database.execute("SELECT id FROM reason WHERE text = ? AND code = ? AND error = ?", reason)
            if len(self._reasons) >= MAX_REASONS:
                self._reasons.clear()
            self._reasons[reason] = number
        return number
