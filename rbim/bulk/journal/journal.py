"""Journal of a job: its runs, each request before and after it is sent, and the recovery after an ended run."""

# Theory of operation
#
# A chunk, and an account in it with a state of its own (AccountState):
#   WAITING          to be sent
#   WAITING -> AGAIN                               its request has an unknown outcome, and is to be sent again
#   WAITING | AGAIN -> DONE | REFUSED | FAILED | UNKNOWN     by the outcome of a request, `recover` or `close_group`
#   FAILED | REFUSED -> WAITING, UNKNOWN -> AGAIN  only by `retry`, between two runs: the accounts move to new chunks
# An account gets a state of its own when an answer names it, and loses it by `retry`. A chunk that waits has none of these.
#
# A request (RequestState): one sending of a chunk, that is of the accounts of the chunk that wait.
#   (new) -> OPEN                                  its intent: committed before it leaves
#   OPEN -> ANSWERED | REFUSED | NOT_SENT | UNKNOWN     by its outcome, or UNKNOWN by the next run's `recover`
# `retry` is 1 from the outcome until the intent of the next sending of the same chunk, or until it is given up.
#
# A kill leaves OPEN the requests that were in flight, those that were about to leave, and those whose outcome was not
# committed yet. Their accounts, and those that are AGAIN because of a request, not by `retry`, are UNKNOWN unless `recover`
# lets them be sent again. All other accounts are as the tables say.
#
# Always true: each account is in one chunk; at most one request of a chunk is OPEN. What waits for a run is in its plan, or
# in a chunk that the run has made.

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from attrs import evolve

from rbim.bulk.journal.facts import Loaded, facts_in
from rbim.bulk.journal.schema import JOURNAL
from rbim.bulk.work import AccountState, Chunk, FailureReason, RequestState
from rbim.clock import epoch_of
from rbim.errors import InvalidRequest
from rbim.storage.sqlite import Database, InPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rbim.bulk.journal.facts import JobFacts
    from rbim.bulk.work import Settlement
    from rbim.clock import Clock

__all__ = ["Ended", "Journal", "OnUnknown", "RetryFilter", "Sample"]

OnUnknown = Literal["auto", "resend", "report"]

RUN_ENDED = FailureReason("the run ended before an answer came")

PLAN = (
    "DROP TABLE IF EXISTS temp.plan",
    """CREATE TEMP TABLE plan AS SELECT chunk.sender_group AS sender_group, chunk.id AS chunk,
            state = -1 AS resent, request.id AS repeats, coalesce(request.attempt, 0) + 1 AS attempt
        FROM chunk JOIN sender_group ON sender_group.id = chunk.sender_group
        LEFT JOIN request ON request.retry = 1 AND request.sender_group = chunk.sender_group AND request.chunk = chunk.id
        WHERE state <= 0
        ORDER BY request.id IS NULL,
            row_number() OVER (PARTITION BY target_group ORDER BY chunk.sender_group, chunk.id), target_group""",
)
"""The chunks that wait at the beginning of a run, in the order of sending: repeats, then one of each group, and again."""

NEXT = """SELECT plan.sender_group, plan.chunk, target_group.name, user_name, resent, repeats, attempt,
        (SELECT group_concat(account, '\n') FROM account
            WHERE account.sender_group = plan.sender_group AND account.chunk = plan.chunk)
    FROM temp.plan JOIN chunk ON chunk.sender_group = plan.sender_group AND chunk.id = plan.chunk
    JOIN sender_group ON sender_group.id = plan.sender_group JOIN target_group ON target_group.id = target_group
    WHERE plan.rowid BETWEEN ? AND ? AND chunk.state <= 0 ORDER BY plan.rowid"""
COUNTS = ", ".join(f"count(*) FILTER (WHERE state = {state:d})" for state in AccountState)  # in less time than GROUP BY
NEW_NUMBER = "SELECT max(id) + 1 FROM chunk WHERE sender_group = ?"
DIVIDE = """UPDATE account SET chunk = ? WHERE sender_group = ? AND chunk = ?
    AND account IN (SELECT value FROM json_each(?))"""
NEW_CHUNK = "INSERT INTO chunk SELECT sender_group, ?, state, request, reason FROM chunk WHERE sender_group = ? AND id = ?"

INTENT = """INSERT INTO request (id, sender_group, chunk, members, attempt, repeats, resent, begun)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
OUTCOME = """UPDATE request SET begun = ?, ended = ?, elapsed = ?, waited = ?, outcome = ?, reason = ?, retry = ?, split = ?
    WHERE id = ?"""
SETTLE = "UPDATE chunk SET state = ?, request = ?, reason = ? WHERE sender_group = ? AND id = ? AND state <= 0"
SETTLE_ONE = "UPDATE account SET state = ?, reason = ? WHERE sender_group = ? AND chunk = ? AND account = ?"

UNDECIDED = """SELECT id, sender_group, chunk, begun, outcome = 0 FROM request WHERE outcome = 0
    UNION ALL SELECT request.id, chunk.sender_group, chunk.id, begun, 0
    FROM chunk JOIN request ON request.id = chunk.request
    WHERE state = -1 AND (chunk.sender_group, chunk.id) NOT IN (SELECT sender_group, chunk FROM request WHERE outcome = 0)"""
ENDED = "UPDATE request SET outcome = 4, reason = ?, retry = ? WHERE id = ?"
GIVE_UP = "UPDATE request SET retry = 0 WHERE retry = 1 AND sender_group = ? AND chunk = ?"
CLOSE = """UPDATE chunk SET state = :after, request = NULL, reason = :reason WHERE state = :state
    AND sender_group IN (SELECT sender_group.id FROM sender_group
        JOIN target_group ON target_group.id = target_group WHERE target_group.name = :group)
    AND (sender_group, id) NOT IN (SELECT sender_group, chunk FROM request WHERE outcome = 0)
    RETURNING (SELECT count(*) FROM account WHERE account.sender_group = chunk.sender_group AND account.chunk = chunk.id)"""
RETRY_NO_MORE = """UPDATE request SET retry = 0 WHERE retry = 1 AND sender_group IN (SELECT sender_group.id FROM sender_group
    JOIN target_group ON target_group.id = target_group WHERE target_group.name = ?)"""

MOVE = """UPDATE account SET chunk = chosen.its_chunk, state = NULL, reason = NULL FROM (
        SELECT sender_group AS of_group, chunk AS before, seq AS its_seq,
            (SELECT max(id) FROM chunk AS last WHERE last.sender_group = result.sender_group) + 1
                + (row_number() OVER (PARTITION BY sender_group ORDER BY seq) - 1) / :size AS its_chunk
        FROM result WHERE state IN (SELECT value FROM json_each(:states))
        AND (:reasons = '[]' OR reason IN (SELECT id FROM reason WHERE text IN (SELECT value FROM json_each(:reasons))
            OR code <> '' AND code IN (SELECT value FROM json_each(:reasons))))
        AND (:groups = '[]' OR sender_group IN (SELECT sender_group.id FROM sender_group JOIN target_group
            ON target_group.id = target_group WHERE target_group.name IN (SELECT value FROM json_each(:groups))))) AS chosen
    WHERE sender_group = of_group AND chunk = before AND seq = its_seq"""
MOVED = """INSERT INTO chunk (sender_group, id, state) SELECT DISTINCT sender_group, chunk, ? FROM account
    WHERE (sender_group, chunk) NOT IN (SELECT sender_group, id FROM chunk)"""
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
    """The end of a request: its chunk, its outcome, the seconds that it took, and whether its halves are sent."""

    chunk: Chunk
    settlement: Settlement
    elapsed: float
    split: bool = False


class RetryFilter(NamedTuple):
    """The accounts to send again: in one of the states, and with one of the reasons and groups unless these are empty.

    A reason is the whole text or the code of the reason of an account.
    """

    states: tuple[AccountState, ...]
    reasons: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class Journal:
    """The file of one job, between ``open`` and ``close``. Methods that write are commands for ``commit``."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self.path = path
        self.database = Database(path, JOURNAL, clock=epoch_of(clock))
        self._run = 0
        self._planned = self._plan_ends = 0  # the chunk of the plan that was read last, and the last one
        self._last_request = 0
        self._reason_id = lru_cache(MAX_REASONS)(self._insert_reason)
        self._failed: Exception | None = None
        self._in_place = InPlace(path, "the journal", during="during the run", grows=True)

    def open(self) -> None:
        """Open the file, create it if needed. Raises InvalidRequest if it is something else or of another version."""
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
            self._in_place.require()
            return self.database.commit(commands, hurried=hurried, apart=False)
        except Exception as error:
            self._failed = error
            raise

    # The job and its input.

    def facts(self) -> JobFacts | None:
        """Return the facts of the job, or None if the file is new."""
        return self.database.read(partial(facts_in, self.database))

    def set_fast_writes(self, *, loading: bool) -> None:
        """Do not wait for the disk while the input is loaded (``loading`` True), and wait again afterwards.

        A loading that is not complete is worthless after a power failure anyway.
        """
        mode = "NORMAL" if loading else "FULL"
        self.database.read(partial(self.database.execute, f"PRAGMA synchronous = {mode}"))

    # Runs.

    def begin_run(self, settings: dict[str, Any]) -> tuple[Loaded, dict[AccountState, int]]:
        """Record the beginning of a run, and plan what it sends; return the counts of the input and of the accounts."""
        text = json.dumps(settings)
        self.database.execute("UPDATE job SET settings = ?", (text,))
        cursor = self.database.execute("INSERT INTO run (began, settings) VALUES (?, ?)", (self.database.now, text))
        self._run = cast("int", cursor.lastrowid)
        ((self._last_request,),) = self.database.execute("SELECT coalesce(max(id), 0) FROM request")
        for statement in PLAN:
            self.database.execute(statement)
        self._planned = 0
        ((self._plan_ends,),) = self.database.execute("SELECT count(*) FROM temp.plan")
        (loaded,) = self.database.execute("SELECT rows, bad, duplicates, digest FROM job")
        (counts,) = self.database.execute(f"SELECT {COUNTS} FROM result")  # noqa: S608  # a constant
        return Loaded(*loaded), dict(zip(AccountState, counts, strict=True))

    def end_run(self, reason: str) -> None:
        """Record the end of the run and its reason."""
        self.database.execute("UPDATE run SET ended = ?, why = ? WHERE id = ?", (self.database.now, reason, self._run))

    def sample(self, sample: Sample) -> None:
        """Record a sample."""
        self.database.execute("INSERT INTO sample VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (self._run, *sample))

    def recover(self, on_unknown: OnUnknown, resend_within: float) -> None:
        """Settle the requests that an ended run left open, and what is to be sent again of those of unknown outcome.

        ``on_unknown``: ``resend``, ``report`` (as unknown), or ``auto``: send again those younger than ``resend_within``
        seconds.
        """
        for number, sender_group, chunk, begun, is_open in self.database.execute(UNDECIDED).fetchall():
            # after a clock was set back the age is unknown
            young = 0 <= self.database.now - begun < resend_within
            again = on_unknown == "resend" or (on_unknown == "auto" and young)
            reason = None if again else self._reason_id(RUN_ENDED)
            if not again:
                self.database.execute(GIVE_UP, (sender_group, chunk))
            if is_open:
                self.database.execute(ENDED, (reason, again, number))
            if is_open or not again:
                state = AccountState.AGAIN if again else AccountState.UNKNOWN
                self.database.execute(SETTLE, (state, number, reason, sender_group, chunk))

    def retry(self, selection: RetryFilter) -> int:
        """Let the accounts of a selection wait again, in new chunks; return their number.

        Raises InvalidRequest if other accounts wait, or if no account has one of the reasons and groups.
        """
        ((waiting,),) = self.database.execute("SELECT count(*) FROM result WHERE state <= 0")
        if waiting:
            raise InvalidRequest(
                f"{self.path}: {waiting:,} accounts were not sent yet: resume the job first", field="journal"
            )
        ((size,),) = self.database.execute("SELECT chunk FROM job")
        chosen = {"reasons": json.dumps(selection.reasons), "groups": json.dumps(selection.groups), "size": size}
        number, unknown = 0, AccountState.UNKNOWN
        for after, states in (
            (AccountState.WAITING, [each for each in selection.states if each != unknown]),
            (AccountState.AGAIN, [unknown] if unknown in selection.states else []),
        ):
            number += self.database.execute(MOVE, {**chosen, "states": json.dumps(states)}).rowcount
            self.database.execute(MOVED, (after,))
        if not number and (selection.reasons or selection.groups):
            cause = "no account to retry has one of these reasons and groups: compare them with its report"
            raise InvalidRequest(f"{self.path}: {cause}", field="journal")
        return number

    def planned(self) -> tuple[dict[str, int], int]:
        """Return the number of accounts of each group, and of requests for all accounts."""
        sizes = self._rows(
            """SELECT target_group.name, count(*) FROM account JOIN sender_group ON sender_group.id = sender_group
            JOIN target_group ON target_group.id = target_group GROUP BY target_group"""
        )
        ((requests,),) = self._rows("SELECT count(*) FROM chunk")
        return dict(sizes), requests

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self.database.read(lambda: self.database.execute(statement, values).fetchall())

    # Requests.

    def next_chunks(self, limit: int) -> list[Chunk]:
        """Return the next chunks of the plan, at most ``limit``; an empty list at the end. No command."""
        chunks: list[Chunk] = []
        while not chunks and self._planned < self._plan_ends:
            found = self._rows(NEXT, (self._planned + 1, self._planned + limit))
            self._planned += limit
            for sender_group, number, group, user_name, resent, repeats, attempt, accounts in found:
                chunk = Chunk(
                    sender_group=sender_group, id=number, group=group, user_name=user_name or None,
                    accounts=tuple(accounts.split("\n")), resent=bool(resent), repeats=repeats, attempt=attempt,
                )  # fmt: skip
                chunks.append(chunk)
        return chunks

    def divide(self, whole: Chunk, place: int) -> list[Chunk]:
        """Divide a waiting chunk before the account at a place, from 0; return both parts. The second gets a new number."""
        ((number,),) = self.database.execute(NEW_NUMBER, (whole.sender_group,)).fetchall()
        first, second = whole.accounts[:place], whole.accounts[place:]
        self.database.execute(NEW_CHUNK, (number, whole.sender_group, whole.id))
        self.database.execute(DIVIDE, (number, whole.sender_group, whole.id, json.dumps(second)))
        return [
            evolve(whole, accounts=first, operation=None),
            evolve(whole, id=number, accounts=second, operation=None),
        ]

    def split(self, ended: Ended) -> list[Chunk]:
        """Record that a request was refused and that its halves are to be sent; return the halves."""
        whole = ended.chunk
        self._record_outcomes([ended._replace(split=True)])
        half = Chunk(
            sender_group=whole.sender_group, id=whole.id, group=whole.group, user_name=whole.user_name,
            accounts=whole.accounts, resent=whole.resent, repeats=whole.number,
        )  # fmt: skip
        return self.divide(half, (len(whole.accounts) + 1) // 2)

    def record(
        self, ended: Sequence[Ended], intents: Sequence[Chunk], closed: Sequence[tuple[str, FailureReason]]
    ) -> dict[AccountState, int]:
        """Record outcomes, then intents of requests that leave when this is durable, then groups that are closed.

        Return the numbers of accounts that closed groups have settled, by their new states.
        """
        if ended:
            self._record_outcomes(ended)
        if intents:
            self._record_intents(intents)
        settled = Counter[AccountState]()
        for group, reason in closed:
            settled.update(self._close_group(group, self._reason_id(reason)))
        return settled

    def _close_group(self, group: str, reason: int | None) -> dict[AccountState, int]:
        """Settle the accounts of a group that wait and are not in a request that is under way."""
        self.database.execute(RETRY_NO_MORE, (group,))
        settled: dict[AccountState, int] = {}
        for state, after in ((AccountState.WAITING, AccountState.FAILED), (AccountState.AGAIN, AccountState.UNKNOWN)):
            values = {"after": after, "reason": reason, "state": state, "group": group}
            settled[after] = sum(number for (number,) in self.database.execute(CLOSE, values))
        return settled

    def _record_intents(self, chunks: Sequence[Chunk]) -> None:
        values: list[tuple[Any, ...]] = []
        for chunk in chunks:
            self._last_request += 1
            chunk.number = self._last_request
            ids = (chunk.number, chunk.sender_group, chunk.id, len(chunk.accounts))
            values.append((*ids, chunk.attempt, chunk.repeats, chunk.resent, chunk.begun))
        self.database.executemany(INTENT, values)
        if repeats := [(chunk.repeats,) for chunk in chunks if chunk.attempt > 1]:
            self.database.executemany("UPDATE request SET retry = 0 WHERE id = ?", repeats)

    def _record_outcomes(self, several: Sequence[Ended]) -> None:
        if could_not_leave := [each.chunk for each in several if not each.chunk.number]:
            self._record_intents(could_not_leave)
        outcomes: list[tuple[Any, ...]] = []
        states: list[tuple[Any, ...]] = []
        for chunk, settlement, elapsed, split in several:
            number, state, reason = chunk.number, settlement.state, self._reason_id(settlement.reason)
            begun = None if chunk.left is None else chunk.begun
            ended = self.database.now if begun is None else begun + elapsed
            values = (begun, ended, elapsed, chunk.waited, settlement.outcome, reason)
            outcomes.append((*values, settlement.again, split, number))
            where = (chunk.sender_group, chunk.id)
            for place, its_state, its_reason in settlement.individual:
                its = (its_state, self._reason_id(its_reason))
                self.database.execute(SETTLE_ONE, (*its, *where, chunk.accounts[place]))
            if state is None and settlement.outcome is RequestState.UNKNOWN:
                state = AccountState.AGAIN
            if state is not None:
                states.append((state, number, reason, *where))
            for account, its_reason in settlement.anomalies:
                anomaly = (number, account, self._reason_id(its_reason))
                self.database.execute("INSERT INTO anomaly (request, account, reason) VALUES (?, ?, ?)", anomaly)
        self.database.executemany(OUTCOME, outcomes)
        self.database.executemany(SETTLE, states)

    def _insert_reason(self, reason: FailureReason | None) -> int | None:
        if reason is None:
            return None
        self.database.execute("INSERT OR IGNORE INTO reason (text, code, error) VALUES (?, ?, ?)", reason)
        ((number,),) = self.database.execute("SELECT id FROM reason WHERE text = ? AND code = ? AND error = ?", reason)
        return cast("int", number)
