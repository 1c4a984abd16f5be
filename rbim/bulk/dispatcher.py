"""Dispatcher of one run: sends the planned chunks as fast as the pace allows, and records each request.

What is sent next is decided in one place (``_take``), without waiting, so rates and the number in flight need no
coordination between tasks.
"""

# Theory of operation
#
# A chunk in memory
#   QUEUED      in the queue of its group; groups take turns, and a group pauses while its own rate is used up
#   SCHEDULED   to be sent again at a time; then it is the first one of its group
#   NEXT        taken, and held until a rate of all groups lets it leave
#   AT THE GATE a worker has it, and waits for its turn in the client's limits; its group is leased, so that no other chunk
#               of the group waits there
#   RECORDING   it has its place; its intent is being committed, in a batch with others
#   IN FLIGHT   its intent is durable, and its request has left
# QUEUED -> NEXT -> AT THE GATE -> RECORDING -> IN FLIGHT -> settled | SCHEDULED | split: its halves are QUEUED
# RECORDING -> QUEUED   the disk is late: place and tokens are given back, so that a stall of the disk holds up no call and
#                       no rate is exceeded after it. The intent counts when it is durable
# A run that stops, and a group that is closed, drop what is not in flight. The states of requests and accounts in the
# journal: rbim.bulk.journal.journal.
#
# A worker is a task that sends one chunk after another; it ends when there is nothing to send now. The main task starts
# workers and sleeps until something is due. One task commits batches: outcomes, then intents, then groups that are closed.
#
# Always true: each account is in one chunk, and a chunk is sent by one worker at a time. No request leaves before its intent
# is durable. At most as many outcomes wait to be recorded as requests may be in flight. A closed group is settled in the
# journal after everything that was decided before.

from __future__ import annotations

import heapq
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint
from attrs import define, evolve, field

from rbim._support.task_errors import is_being_cancelled
from rbim.bulk.failure_policy import Decision, Signal, Step, failed, judge
from rbim.bulk.journal.journal import Ended
from rbim.bulk.stop_rules import StopRules
from rbim.bulk.work import ALL_DONE, AccountState, Chunk, FailureReason, RequestState, Settlement
from rbim.client.client import in_background, prepare
from rbim.client.limits import Demands, ready_at
from rbim.errors import InvalidRequest, RbimError
from rbim.queues import KeyedQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rbim.bulk.journal.journal import Journal
    from rbim.bulk.pace import Pace
    from rbim.bulk.progress import Phase, RunCounts
    from rbim.bulk.settings import RunParts
    from rbim.client.client import PreparedRequest
    from rbim.storage.group_commit import GroupCommit

__all__ = ["Dispatcher"]

INTERRUPTED = FailureReason("the job was interrupted before it was sent")
DONE = Decision(step=Step.SETTLED, signal=Signal.ANSWERED, settlement=ALL_DONE)

FEW_QUEUED = 64
MOST_QUEUED = 5000
"""Chunks in memory: at least those, or twice as many as may be in flight; at most these, when groups pause."""

LATE = 0.1
"""Seconds for which a request holds its place while its intent is committed."""

SAMPLE_INTERVAL = 1.0  # seconds


class _Ending(Exception):
    """The run ends, or the group is closed: the request does not leave."""


class _Late(Exception):
    """The disk is late: the request gives its place back."""


@define(eq=False)
class _JobWorker:
    """A task that sends ``chunk``; ``scope`` ends it. ``has_lease``: that of the chunk's group, until the chunk leaves."""

    chunk: Chunk | None
    has_lease: bool = True
    scope: anyio.CancelScope = field(factory=anyio.CancelScope)


@define(eq=False)
class _Commit:
    """What one transaction records. ``written`` is set when it is durable, or earlier if it is ``late``."""

    ended: list[Ended] = field(factory=list[Ended])
    intents: list[Chunk] = field(factory=list[Chunk])
    closed: list[tuple[str, FailureReason]] = field(factory=list[tuple[str, FailureReason]])
    written: anyio.Event = field(factory=anyio.Event)
    late: bool = False


class Dispatcher:
    """The sending loop of one run, from its first request to its end. ``limit``: accounts to be sent at most."""

    def __init__(  # noqa: PLR0913  # the parts of a run, by keyword
        self,
        parts: RunParts,
        *,
        journal: Journal,
        commits: GroupCommit,
        pace: Pace,
        counts: RunCounts,
        limit: int | None = None,
    ) -> None:
        self._work, self._settings, self._clock = parts.work, parts.settings, parts.clock
        self._sender = in_background(parts.sender)
        self._journal = journal
        self._commits = commits
        self._pace = pace
        self._counts = counts
        self._limit = limit
        self._rules = StopRules(
            max_failures=parts.settings.max_failures,
            patience=parts.settings.patience,
            now=parts.clock.monotonic(),
            known=parts.work.dialect.already_reasons,
        )
        self._least = max(FEW_QUEUED, 2 * parts.settings.concurrency)
        self._queue = KeyedQueue[str, Chunk]()
        self._scheduled: list[tuple[float, int, Chunk]] = []  # a heap
        self._next: Chunk | None = None  # its group is leased
        self._order = count()
        self._due: float | None = None  # when something may be sent if nothing else changes
        self._workers = set[_JobWorker]()
        self._all_planned = False
        self._end_reason = ""  # set when the run is to end early
        self._error: Exception | None = None
        self._batch = _Commit()
        self._leaving = Demands(parts.settings.rates, {})  # what leaves after its commit
        self._recording = set[Chunk]()  # with an intent, recorded or in a batch, that have not left
        self._unrecorded = 0  # outcomes that would be lost if the process were killed now
        self._is_late = False
        self._isolate_left = parts.settings.isolate
        self._cancelled = anyio.get_cancelled_exc_class()
        self._changed = anyio.Event()
        self._more_wanted = anyio.Event()
        self._more_wanted.set()
        self._news = anyio.Event()

    @property
    def phase(self) -> Phase:
        """``running``, ``halted`` (the platform wants a pause, or an outage) or ``draining`` (the run ends)."""
        if self._end_reason:
            return "draining"
        running = self._pace.state(self._clock.monotonic()) == "running" and not self._rules.is_unreachable
        return "running" if running else "halted"

    @property
    def cause(self) -> str:
        """The last failure of a request since accounts were settled, as text."""
        return self._rules.cause

    def stop(self, reason: str = "stopped") -> None:
        """Send nothing more; the run ends when the requests in flight have ended."""
        self._end_reason = self._end_reason or reason
        for worker in self._workers:
            if worker.chunk is not None and worker.chunk.left is None:
                worker.scope.cancel()
        self._notify()

    async def run(self) -> str:
        """Run to the end and return the reason for it: ``done``, ``limit``, ``stopped`` or a StopReason.

        Raises the errors that end a job at once: AuthenticationError, ClientClosed, and any exception of the sender that is
        not an RbimError.
        """
        try:
            async with anyio.create_task_group() as tasks:
                for keeping in (self._keep_planned, self._keep_sampling, self._keep_recording):
                    tasks.start_soon(self._stop_on_error, keeping)
                while not self._end_reason:
                    while (chunk := self._take()) is not None:
                        worker = _JobWorker(chunk)
                        self._workers.add(worker)
                        tasks.start_soon(self._work_on, worker)
                    left = self._workers or self._recording or self._scheduled or self._next or self._queue
                    if self._all_planned and not left:
                        break
                    await self._wait_for_change(self._due)
                while self._workers:
                    await self._wait_for_change(None)
                tasks.cancel_scope.cancel()
        finally:
            not_sent = Settlement(outcome=RequestState.NOT_SENT, reason=INTERRUPTED, again=True)
            left_over = [Ended(chunk, not_sent, 0.0) for chunk in self._recording.difference(self._batch.intents)]
            batch = self._batch
            durable = self._commits.begin(partial(self._journal.record, [*batch.ended, *left_over], (), batch.closed))
            with anyio.CancelScope(shield=True):
                self._counts.closed(await durable())
            self._sample()
        if self._error is not None:
            raise self._error
        return self._end_reason or ("limit" if self._limit == 0 and self._counts.waiting else "done")

    async def _stop_on_error(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task; if it fails, stop in good order, because requests in flight may take effect."""
        try:
            await work()
        except Exception as error:
            self._error = self._error or error
            self.stop("error")
        except self._cancelled as error:
            if is_being_cancelled():
                raise
            self._error = self._error or RuntimeError("a request was cancelled by its sender")
            self._error.__cause__ = error
            self.stop("error")

    # Choice of the next chunk.

    def _take(self) -> Chunk | None:  # noqa: C901  # one decision, from top to bottom
        """Return the chunk to be sent now, with the lease of its group; None if there is none before ``_due``."""
        pace, most, self._due = self._pace, self._settings.concurrency, None
        now = self._clock.monotonic()
        while not self._end_reason:
            if len(self._workers) >= min(pace.concurrency(), most) or self._unrecorded >= most or self._is_late:
                return None
            chunk, self._next = self._next, None
            if chunk is None:
                while self._scheduled and self._scheduled[0][0] <= now:
                    self._put_back(heapq.heappop(self._scheduled)[2])
                leased = self._queue.lease(now)
                if len(self._queue) < (self._least // 2 if leased is not None else MOST_QUEUED):
                    self._more_wanted.set()
                if leased is None:
                    self._due = self._queue.next_at(now)
                    if self._scheduled:
                        self._due = min(self._scheduled[0][0], inf if self._due is None else self._due)
                    return None
                chunk = leased[1]
                chunk.ready_since = now
            if chunk.operation is None and chunk.invalid is None:
                try:
                    chunk.operation = self._work.make(chunk)
                except InvalidRequest as error:
                    chunk.invalid = error
            if chunk.operation is not None:
                if (at := pace.earliest(chunk.operation, now)) > now:
                    if (of_all := pace.earliest_any_group(chunk.operation, now)) > now:
                        self._next, self._due = chunk, of_all
                        return None
                    self._put_back(chunk)  # only its group is held back: send others first
                    self._queue.pause(chunk.group, at)
                    self._queue.release(chunk.group)
                    continue
                pace.reserved(chunk.operation, now)
            return chunk
        return None

    def _put_back(self, chunk: Chunk) -> None:
        self._queue.put(chunk.group, chunk, first=True)

    async def _wait_for_change(self, until: float | None) -> None:
        """Wait until something changes, or until that time (None: without a limit)."""
        if until is None:
            await self._changed.wait()
        elif not self._changed.is_set():
            with self._clock.scope(max(0.0, until - self._clock.monotonic())):
                await self._changed.wait()
        if self._changed.is_set():
            self._changed = anyio.Event()

    def _notify(self) -> None:
        self._changed.set()

    async def _keep_planned(self) -> None:
        """Read chunks of the plan until it ends, or until ``limit`` accounts are to be sent."""
        while not self._all_planned:
            await self._more_wanted.wait()
            self._more_wanted = anyio.Event()
            chunks = await self._commits.read(partial(self._journal.next_chunks, self._least))
            self._all_planned = not chunks
            for whole in chunks:
                chunk = whole
                if self._limit is not None:
                    if self._limit < len(whole.accounts):
                        chunk, _ = await self._recorded(partial(self._journal.divide, whole, self._limit))
                    self._limit -= len(chunk.accounts)
                self._queue.put(chunk.group, chunk)
                if self._limit == 0:
                    self._all_planned = True
                    break
            self._notify()

    async def _keep_sampling(self) -> None:
        while True:
            await self._clock.sleep(SAMPLE_INTERVAL)
            self._sample()
            if (reason := self._rules.tick(self._clock.monotonic())) is not None:
                self.stop(reason)

    def _sample(self) -> None:
        now = self._clock.monotonic()
        sample = self._counts.sample(self._clock.now().timestamp(), now, self._pace.concurrency(), self._pace.rate)
        self._commits.begin(partial(self._journal.sample, sample))  # if it fails, every later command fails too

    # One request.

    async def _work_on(self, worker: _JobWorker) -> None:
        try:
            with worker.scope:
                await self._stop_on_error(partial(self._send_all, worker))
        finally:
            self._workers.discard(worker)
            self._notify()

    async def _send_all(self, worker: _JobWorker) -> None:
        """Send the worker's chunk, and others, until there is nothing to send now."""
        chunk = worker.chunk
        while chunk is not None:
            if anyio.current_effective_deadline() == -inf:
                await checkpoint()  # it is being cancelled: nothing more leaves
            await self._send(worker, chunk)
            self._workers.discard(worker)  # its place is free
            worker.chunk = chunk = self._take()
            worker.has_lease = chunk is not None
            self._workers.add(worker)

    async def _send(self, worker: _JobWorker, chunk: Chunk) -> None:  # noqa: C901, PLR0912  # one request, in order
        """Send a chunk: wait for its place, record the intent, send it, and decide what is next."""
        pace = self._pace
        op: Any = chunk.operation
        failure: RbimError | None = chunk.invalid
        sending: PreparedRequest[Any] | None = None
        decision = DONE
        try:
            if failure is None:
                sending = prepare(self._sender, op, partial(self._leaves, worker, chunk))
                answer = await sending.send()
                settlement = self._work.answered(chunk, answer)
                decision = DONE if settlement is ALL_DONE else evolve(DONE, settlement=settlement)
        except RbimError as error:
            failure = error
        except _Late:
            return
        except BaseException as error:
            if chunk.left is not None and sending is not None and not sending.may_have_acted:
                self._recording.add(chunk)
            if isinstance(error, _Ending):
                return
            raise
        finally:
            now = self._clock.monotonic()
            if chunk.left is not None:
                self._counts.change_in_flight(-1, now)
            elif chunk.invalid is None:
                pace.withdrawn(op, now, left=not worker.has_lease)
            if worker.has_lease:
                self._release(worker, chunk)
        if failure is not None:
            decision = self._judge(chunk, failure)
        elapsed = 0.0 if chunk.left is None else now - chunk.left
        if chunk.left is None:
            self._recording.discard(chunk)
        elif decision.signal is Signal.ANSWERED:
            pace.answered(op, now, elapsed)
        elif decision.signal is Signal.THROTTLED:
            pace.throttled(op, now, decision.retry_after, elapsed)
        elif decision.signal is Signal.LOST:
            pace.lost(now, elapsed)
        else:
            pace.withdrawn(op, now, left=True)
        await self._settle(chunk, decision, now, elapsed)
        if decision.step is Step.STOP and failure is not None:
            raise failure

    def _release(self, worker: _JobWorker, chunk: Chunk) -> None:
        worker.has_lease = False
        self._queue.release(chunk.group)
        if chunk.group in self._queue:
            self._notify()

    async def _leaves(self, worker: _JobWorker, chunk: Chunk) -> None:
        """Record the intent of a chunk that has its place, and return when it may leave."""
        now = self._clock.monotonic()
        if chunk.group in self._rules.closed and chunk in self._recording:
            self._give_up(chunk)
        if self._end_reason or chunk.group in self._rules.closed:
            raise _Ending
        if self._is_late:
            self._put_back(chunk)
            raise _Late
        self._pace.left(chunk.operation, now)
        chunk.begun, chunk.waited = self._clock.now().timestamp(), now - chunk.ready_since
        self._release(worker, chunk)
        if chunk not in self._recording:
            batch = self._batch
            self._recording.add(chunk)
            batch.intents.append(chunk)
            self._news.set()
            await batch.written.wait()
            if batch.late:
                raise _Late
        if self._settings.rates:  # the commit lets several leave together: keep them from leaving faster than the rates
            now = self._clock.monotonic()
            demand = self._leaving.of(chunk.operation, now)
            while (at := ready_at(demand.buckets, now)) > now:
                await self._clock.sleep(at - now)
                now = self._clock.monotonic()
            demand.take(now)
        if self._end_reason:
            raise _Ending
        self._recording.discard(chunk)
        chunk.left = self._clock.monotonic()
        self._counts.change_in_flight(1, chunk.left)

    def _judge(self, chunk: Chunk, error: RbimError) -> Decision:
        decision = judge(chunk.operation, chunk, error, retry=self._settings.retry, dialect=self._work.dialect)
        settlement, closed = decision.settlement, chunk.group in self._rules.closed
        if decision.step is Step.SPLIT and not closed and self._isolate_left > 1:
            self._isolate_left -= 2
            return decision
        if settlement is None or not (decision.step is Step.SPLIT or (decision.step is Step.AGAIN and closed)):
            return decision
        unknown = settlement.outcome is RequestState.UNKNOWN
        settlement = evolve(settlement, state=AccountState.UNKNOWN if unknown else failed(chunk), again=False)
        return evolve(decision, step=Step.SETTLED, settlement=settlement)

    async def _settle(self, chunk: Chunk, decision: Decision, now: float, elapsed: float) -> None:
        """Record and count the outcome; schedule the resend or the halves, if any."""
        settlement, throttled = decision.settlement, decision.signal is Signal.THROTTLED
        self._counts.ended(settlement, len(chunk.accounts), throttled=throttled, final=decision.final)
        verdict = self._rules.ended(chunk, decision, now, elapsed)
        if verdict.stop is not None:
            self.stop(verdict.stop)
        if settlement is not None and decision.step is not Step.SPLIT:
            self._record(Ended(chunk, settlement, elapsed))
        if verdict.close is not None:
            self._close(chunk.group, verdict.close)
        if settlement is None:
            return
        if decision.step is Step.SPLIT:
            for half in await self._recorded(partial(self._journal.split, Ended(chunk, settlement, elapsed))):
                if half.group not in self._rules.closed:  # else it was settled with its group
                    self._queue.put(half.group, half)
        elif decision.step is Step.AGAIN:
            unknown = settlement.outcome is RequestState.UNKNOWN
            again = evolve(
                chunk,
                number=0,
                repeats=chunk.number,
                attempt=chunk.attempt + 1,
                unknown_attempts=chunk.unknown_attempts + unknown,
                resent=chunk.resent or unknown,
                expired=chunk.expired or decision.expired,
                begun=None,
                left=None,
            )
            heapq.heappush(self._scheduled, (now + decision.pause, next(self._order), again))
        self._notify()

    def _close(self, group: str, reason: FailureReason) -> None:
        """Drop what waits for a group; the journal settles it, but for late requests, whose intents it has."""
        dropped = self._queue.drop(group) + [each[2] for each in self._scheduled if each[2].group == group]
        self._scheduled = [each for each in self._scheduled if each[2].group != group]
        heapq.heapify(self._scheduled)
        if self._next is not None and self._next.group == group:
            dropped.append(self._next)
            self._next = None
            self._queue.release(group)
        self._batch.closed.append((group, reason))
        self._news.set()
        for chunk in self._recording.intersection(dropped):
            self._give_up(chunk)

    def _give_up(self, chunk: Chunk) -> None:
        """Settle a late request of a closed group, which has not left."""
        settlement = Settlement(outcome=RequestState.NOT_SENT, state=failed(chunk), reason=self._rules.closed[chunk.group])
        self._recording.discard(chunk)
        self._counts.closed({failed(chunk): len(chunk.accounts)})
        self._record(Ended(chunk, settlement, 0.0))

    # Recording.

    def _record(self, ended: Ended) -> None:
        self._batch.ended.append(ended)
        self._unrecorded += 1
        self._news.set()

    async def _keep_recording(self) -> None:
        """Commit batches, one after another; what comes meanwhile is in the next one."""
        while True:
            await self._news.wait()
            batch, self._batch, self._news = self._batch, _Commit(), anyio.Event()
            durable = self._commits.begin(partial(self._journal.record, batch.ended, batch.intents, batch.closed))
            closed: dict[AccountState, int] = {}
            with anyio.CancelScope(shield=True):  # a run that ends counts it, too
                with self._clock.scope(LATE) as scope:
                    closed = await durable()
                if scope.cancelled_caught:
                    self._is_late = batch.late = True
                    batch.written.set()
                    closed = await durable()
                    self._is_late = False
            if batch.late:
                for chunk in batch.intents:
                    if chunk in self._recording and chunk.group in self._rules.closed:
                        self._give_up(chunk)
                    elif chunk in self._recording:
                        self._put_back(chunk)
            batch.written.set()
            self._unrecorded -= len(batch.ended)
            self._counts.closed(closed)
            self._notify()

    async def _recorded(self, command: Callable[[], Any]) -> Any:  # the command's result
        """Return the result of a journal command once it is durable, also if the run is cancelled meanwhile."""
        with anyio.CancelScope(shield=True):
            return await self._commits.run(command)
