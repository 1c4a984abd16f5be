"""Dispatcher of one run: sends planned chunks as fast as the pace allows and records each sending.

What is sent next is decided in one place (``_take``), without waiting, so halts, rates and the number in flight need no
coordination between tasks.
"""

# Theory of operation
#
# A chunk in memory is READY (planned), HELD (its group's own rate is used up, or another chunk of its group waits for its
# turn), SCHEDULED (to be sent at a given time: a resend, a half, or the first held chunk of a group), with a WORKER that
# waits for its turn in the sender's limits, or IN FLIGHT. After IN FLIGHT it is settled, scheduled again or split. A run
# that stops drops what is not in flight.
#
# A request in the journal (RequestState):
#   (new)   -> PLANNED            its intent is committed, some time before it can leave; it is marked when it leaves
#   PLANNED -> ANSWERED | REFUSED | NOT_SENT | UNKNOWN      the settlement is committed; NOT_SENT also when it is
#                                                           interrupted before the platform may have acted
#   PLANNED -> OPEN               it is marked, and the run ended before its outcome was recorded
#   PLANNED -> (removed)          it is not marked at the end of the run
#   OPEN    -> UNKNOWN            by the next run's `recover`, or it is sent again
# A request to be sent again is marked `todo` unless the intent of the resend, a new request, is recorded.
#
# An account (AccountState):
#   WAITING | AGAIN -> DONE | REFUSED | FAILED | UNKNOWN    by one settlement, or `recover`; unchanged while it is resent
#   FAILED | REFUSED -> WAITING, UNKNOWN -> AGAIN           only by `Journal.retry`, between two runs
#
# A worker is a task that sends one chunk after another; it ends when there is nothing to send now. The main task starts
# workers and sleeps until something is due.
#
# Always true: each account is in one chunk, and a chunk is sent by one worker at a time. No request leaves before its intent
# is durable and it is marked. A mark is kept until the outcome is durable. Outcomes that wait for that count as in flight,
# except those that the mark has as well: all accounts done.

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint
from attrs import evolve

from rbim._support.task_errors import is_being_cancelled
from rbim.bulk.chunk_queue import ChunkQueue
from rbim.bulk.failure_policy import Decision, Signal, Step, failed, judge
from rbim.bulk.journal.journal import Ended
from rbim.bulk.stop_rules import StopRules
from rbim.bulk.work import ALL_DONE, FailureReason, RequestState, Settlement
from rbim.client.senders import in_background, prepare
from rbim.errors import InvalidRequest, RbimError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from rbim.bulk.journal.journal import Journal
    from rbim.bulk.pace.controller import PaceController
    from rbim.bulk.progress import Phase, RunCounts
    from rbim.bulk.settings import JobSettings
    from rbim.bulk.work import Chunk, Work
    from rbim.client.senders import PreparedRequest
    from rbim.clock import Clock
    from rbim.operations.namespace import Sender
    from rbim.storage.group_commit import GroupCommit

__all__ = ["Dispatcher"]

NOT_SENT = Settlement(
    outcome=RequestState.NOT_SENT, reason=FailureReason("the job was interrupted before it was sent"), again=True
)

DONE = Decision(step=Step.SETTLED, signal=Signal.ANSWERED, settlement=ALL_DONE)

FIRST_BATCH = 32  # chunks whose intents are recorded together; twice as many each time that they do not last
LONGEST_BATCH = 8  # chunks of a batch at most, for each request that may be in flight
SAMPLE_INTERVAL = 1.0  # seconds


class _Ending(Exception):
    """The run ends, or the group is closed: the request does not leave."""


class _Worker:
    """A task that sends chunks; ``chunk`` is the one that it sends, ``scope`` ends it."""

    __slots__ = ("chunk", "scope")

    def __init__(self, chunk: Chunk) -> None:
        self.chunk: Chunk | None = chunk
        self.scope = anyio.CancelScope()


class Dispatcher:
    """The sending loop of one run, from its first request to its end. ``limit``: accounts to be sent at most."""

    def __init__(  # noqa: PLR0913  # the parts of a run, by keyword
        self,
        *,
        work: Work[Any],
        sender: Sender,
        journal: Journal,
        commits: GroupCommit,
        pace: PaceController,
        counts: RunCounts,
        settings: JobSettings,
        clock: Clock,
        limit: int | None = None,
    ) -> None:
        self._work = work
        self._sender = in_background(sender)
        self._journal = journal
        self._commits = commits
        self._pace = pace
        self._counts = counts
        self._settings = settings
        self._clock = clock
        self._limit = limit
        self._rules = StopRules(
            limit=settings.failure_limit,
            patience=settings.patience,
            now=clock.monotonic(),
            known=work.dialect.already_reasons,
        )
        self._queue = ChunkQueue()
        self._under_way = set[int]()  # chunks that have left and are not settled for good
        self._next: Chunk | None = None  # the chunk that waits until any may be sent
        self._due: float | None = None  # when something may be sent if nothing else changes
        self._idle = True  # nothing could be sent for want of chunks or places
        self._ready_since = clock.monotonic()  # when the next chunk could have left but for rates and halts
        self._workers = set[_Worker]()
        self._batch = FIRST_BATCH
        self._starved = False
        self._all_planned = False
        self._end_reason = ""  # set when the run is to end early
        self._error: Exception | None = None
        self._ended: list[Ended] = []  # whose outcomes are to be recorded
        self._unrecorded = 0  # outcomes that would be lost if the process were killed now
        self._returning = 0  # chunks to be sent again when that is recorded
        self._isolate_left = settings.isolate
        self._cancelled = anyio.get_cancelled_exc_class()
        self._changed = anyio.Event()
        self._more_wanted = anyio.Event()
        self._more_wanted.set()
        self._outcomes = anyio.Event()

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
                for keeping in (self._keep_planned, self._keep_sampling, self._keep_settling):
                    tasks.start_soon(self._stop_on_error, keeping)
                await self._dispatch(tasks)
                while self._workers:
                    await self._wait_for_change(None)
                tasks.cancel_scope.cancel()
        finally:
            self._record(partial(self._journal.settle, self._ended))
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

    async def _dispatch(self, tasks: TaskGroup) -> None:
        while not self._end_reason:
            while (chunk := self._take()) is not None:
                worker = _Worker(chunk)
                self._workers.add(worker)
                tasks.start_soon(self._work_on, worker)
            if self._is_over:
                return
            await self._wait_for_change(self._due)

    def _take(self) -> Chunk | None:
        """Return the chunk to be sent now; None if there is none, and then ``_due`` is the time of the next one."""
        pace, queue, self._due = self._pace, self._queue, None
        now = self._clock.monotonic()
        if self._idle:
            self._idle, self._ready_since = False, now
        while not self._end_reason:
            if len(self._workers) >= min(pace.concurrency(now), self._settings.concurrency - self._unrecorded):
                self._idle = True
                return None
            chunk = self._next or self._next_chunk(now)
            self._next = None
            if chunk is None:
                self._idle, self._due = True, queue.due
                return None
            if self._is_dropped(chunk):
                continue
            if self._has_operation(chunk):
                at = pace.earliest_any_group(chunk.operation, now)
                if at > now:
                    self._next, self._due = chunk, at
                    return None
                at = pace.earliest(chunk.operation, now)
                if at > now:  # only its group is held back: send others first
                    queue.put_first(chunk, at)
                    continue
                pace.reserved(chunk.operation, now)
            chunk.ready_since, chunk.left, self._ready_since = self._ready_since, None, now
            return chunk
        return None

    def _is_dropped(self, chunk: Chunk) -> bool:
        """Return whether the chunk's group is closed and no request of the chunk has left: the journal has settled it."""
        return self._rules.is_closed(chunk.group) and chunk.id not in self._under_way

    def _has_operation(self, chunk: Chunk) -> bool:
        """Make the chunk's operation; return False if its values are invalid (``chunk.invalid``)."""
        if chunk.operation is None:
            try:
                chunk.operation = self._work.make(chunk)
            except InvalidRequest as error:
                chunk.invalid = error
        return chunk.operation is not None

    def _next_chunk(self, now: float) -> Chunk | None:
        """Return the next chunk that is due, if there is one, and let more be planned in time."""
        if len(self._queue.ready) <= self._batch // 2 and not self._all_planned:
            self._more_wanted.set()
        chunk = self._queue.next(now)
        if chunk is None:
            self._starved = not self._queue.ready
        return chunk

    @property
    def _is_over(self) -> bool:
        return self._all_planned and not (self._queue or self._workers or self._next or self._returning)

    async def _wait_for_change(self, until: float | None) -> None:
        """Wait until something changes, or until that time (None: without a limit)."""
        if not self._changed.is_set():
            if until is None:
                await self._changed.wait()
            else:
                with self._clock.scope(max(0.0, until - self._clock.monotonic())):
                    await self._changed.wait()
        if self._changed.is_set():
            self._changed = anyio.Event()

    def _notify(self) -> None:
        self._changed.set()

    async def _keep_planned(self) -> None:
        """Keep planned chunks ready whose intents are durable, no more than last while the next ones are recorded."""
        most = max(LONGEST_BATCH * self._settings.concurrency, 1)
        self._batch = min(self._batch, most)
        while True:
            await self._more_wanted.wait()
            self._more_wanted = anyio.Event()
            if self._starved:
                self._batch = min(2 * self._batch, most)
            room = self._batch - len(self._queue.ready)
            if room < 1:  # it was requested twice
                continue
            self._starved = False
            chunks = await self._commits.run(partial(self._journal.plan, room, self._limit))
            if self._limit is not None:
                self._limit -= sum(len(chunk.accounts) for chunk in chunks)
            self._queue.ready.extend(chunks)
            self._all_planned = not chunks
            self._notify()
            if not chunks:
                return

    async def _keep_sampling(self) -> None:
        while True:
            await self._clock.sleep(SAMPLE_INTERVAL)
            self._sample()
            if (reason := self._rules.tick(self._clock.monotonic())) is not None:
                self.stop(reason)

    def _sample(self) -> None:
        now = self._clock.monotonic()
        sample = self._counts.sample(self._clock.now().timestamp(), now, self._pace.concurrency(now), self._pace.rate)
        self._record(partial(self._journal.sample, sample))

    # One request.

    async def _work_on(self, worker: _Worker) -> None:
        try:
            with worker.scope:
                await self._stop_on_error(partial(self._send_all, worker))
        finally:
            self._workers.discard(worker)
            self._notify()

    async def _send_all(self, worker: _Worker) -> None:
        """Send the worker's chunk, and others, until there is nothing to send now."""
        chunk = worker.chunk
        while chunk is not None:
            if self._queue.is_blocked(chunk.group):  # one chunk of a group waits for its turn
                self._pace.withdrawn(chunk.operation, self._clock.monotonic(), left=False)
                self._queue.hold_back(chunk, self._clock.monotonic())
            else:
                worker.chunk = chunk
                if anyio.current_effective_deadline() == -inf:
                    await checkpoint()  # it is being cancelled: nothing more leaves
                await self._send(chunk)
            worker.chunk = None
            self._workers.discard(worker)  # its place is free
            chunk = self._take()
            self._workers.add(worker)

    async def _send(self, chunk: Chunk) -> None:
        """Send a chunk when it is its turn, and settle it."""
        clock = self._clock
        failure: RbimError | None = None
        sending: PreparedRequest[Any] | None = None
        try:
            if chunk.invalid is not None:
                failure, decision = chunk.invalid, self._judge(chunk, chunk.invalid)
            else:
                self._queue.block(chunk.group)
                sending = prepare(self._sender, chunk.operation, partial(self._leaves, chunk))
                try:
                    answer = await sending.send()
                    decision = self._answered(chunk, answer)
                except RbimError as error:
                    failure, decision = error, self._judge(chunk, error)
        except BaseException as error:
            if chunk.mark is not None and (sending is None or not sending.may_have_acted):
                self._settled(chunk, NOT_SENT, 0.0)
            if isinstance(error, _Ending):
                return
            raise
        finally:
            now = clock.monotonic()
            if chunk.left is not None:
                self._counts.change_in_flight(-1, now)
            elif chunk.invalid is None:
                self._queue.release(chunk.group, now)
                self._pace.withdrawn(chunk.operation, now, left=False)
        elapsed = 0.0 if chunk.left is None else now - chunk.left
        if chunk.left is not None:
            self._update_pace(chunk, decision, now, elapsed)
        await self._settle(chunk, decision, elapsed)
        if decision.step is Step.STOP and failure is not None:
            raise failure

    def _leaves(self, chunk: Chunk) -> None:
        """Mark a chunk that leaves now."""
        if self._end_reason or self._is_dropped(chunk):
            raise _Ending
        now = self._clock.monotonic()
        chunk.begun = self._clock.now().timestamp()
        self._journal.mark(chunk, chunk.begun)
        chunk.left, chunk.waited = now, now - chunk.ready_since
        self._under_way.add(chunk.id)
        self._pace.left(chunk.operation, now)
        self._counts.change_in_flight(1, now)
        self._queue.release(chunk.group, now)

    def _answered(self, chunk: Chunk, answer: object) -> Decision:
        settlement = self._work.answered(chunk, answer)
        return DONE if settlement is ALL_DONE else evolve(DONE, settlement=settlement)

    def _judge(self, chunk: Chunk, error: RbimError) -> Decision:
        decision = judge(chunk.operation, chunk, error, retry=self._settings.retry, dialect=self._work.dialect)
        if decision.step is Step.SPLIT and decision.settlement is not None:
            if self._isolate_left > 1 and not self._rules.is_closed(chunk.group):
                self._isolate_left -= 2
                return decision
            settlement = evolve(decision.settlement, state=failed(chunk))
            return evolve(decision, step=Step.SETTLED, settlement=settlement, final=True)
        return decision

    def _update_pace(self, chunk: Chunk, decision: Decision, now: float, elapsed: float) -> None:
        """Report the result to the pace."""
        pace, op = self._pace, chunk.operation
        if decision.signal is Signal.ANSWERED:
            pace.answered(op, now, elapsed)
        elif decision.signal is Signal.THROTTLED:
            pace.throttled(op, now, decision.retry_after, elapsed)
        elif decision.signal is Signal.LOST:
            pace.lost(op, now, elapsed)
        else:
            pace.withdrawn(op, now, left=True)

    async def _settle(self, chunk: Chunk, decision: Decision, elapsed: float) -> None:
        """Record and count the outcome; schedule the resend or the halves, if any."""
        settlement = decision.settlement
        throttled = decision.signal is Signal.THROTTLED
        self._counts.ended(settlement, len(chunk.accounts), throttled=throttled, final=decision.final)
        verdict = self._rules.ended(chunk, decision, self._clock.monotonic(), elapsed)
        if verdict.stop is not None:
            self.stop(verdict.stop)
        if verdict.close is not None:
            under_way = tuple(self._under_way)
            close = partial(self._journal.close_group, chunk.group, verdict.close, under_way)
            self._counts.closed(await self._recorded(close))
        if settlement is None:
            return
        if decision.step is Step.SPLIT:
            closed = self._rules.is_closed(chunk.group)  # then the halves are sent all the same
            halves = await self._recorded(partial(self._journal.split, Ended(chunk, settlement, chunk.begun, elapsed)))
            if closed:
                self._under_way.add(halves[-1].id)
            now = self._clock.monotonic()
            for half in halves:  # the first one has the number of the whole, and is under way
                self._queue.schedule(half, now)
            self._journal.forget_mark(chunk)
        elif decision.step is Step.AGAIN:
            again = evolve(
                chunk,
                repeats=chunk.number,
                attempt=chunk.attempt + 1,
                unknown_attempts=chunk.unknown_attempts + (settlement.outcome is RequestState.UNKNOWN),
                resent=chunk.resent or settlement.outcome is RequestState.UNKNOWN,
                expired=chunk.expired or decision.expired,
                due=self._clock.monotonic() + decision.pause,
                begun=None,
                left=None,
                mark=None,
            )
            self._returning += 1
            self._settled(chunk, settlement, elapsed, again)
        else:
            self._settled(chunk, settlement, elapsed)
        self._notify()

    # Recording.

    def _settled(self, chunk: Chunk, settlement: Settlement, elapsed: float, again: Chunk | None = None) -> None:
        self._ended.append(Ended(chunk, settlement, chunk.begun, elapsed, again))
        if settlement is ALL_DONE:
            self._journal.mark_done(chunk, elapsed)
        else:
            self._unrecorded += 1
        self._outcomes.set()

    async def _keep_settling(self) -> None:
        """Record outcomes, all that are known at a time together."""
        while True:
            await self._outcomes.wait()
            self._outcomes = anyio.Event()
            ended, self._ended = self._ended, []
            await self._commits.begin(partial(self._journal.settle, ended))()
            for each in ended:
                self._unrecorded -= each.settlement is not ALL_DONE
                self._journal.forget_mark(each.chunk)
                if each.again is None:
                    self._under_way.discard(each.chunk.id)
                else:
                    self._returning -= 1
                    self._queue.schedule(each.again, each.again.due)
            self._notify()

    async def _recorded(self, command: Callable[[], Any]) -> Any:  # the command's result
        """Return the result of a journal command once it is durable, also if the run is cancelled meanwhile."""
        with anyio.CancelScope(shield=True):
            return await self._commits.run(command)

    def _record(self, command: Callable[[], object]) -> None:
        """Queue a journal command without waiting for it. If it fails, every later command fails too."""
        self._commits.begin(command)
