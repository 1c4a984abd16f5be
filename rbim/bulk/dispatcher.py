"""Dispatcher of one run: sends planned chunks as fast as the pace allows and records each sending.

One task decides what is sent next, so halts, rates and the number in flight need no coordination between tasks.
"""

# Theory of operation
#
# A chunk in memory is READY (planned), HELD (its group's own rate is used up), SCHEDULED (to be sent at a given time: a
# resend, a half, or the first held chunk of a group), RESERVED (it waits for its place in the sender's limits) or IN FLIGHT.
# After IN FLIGHT it is settled, scheduled again or split. A run that stops drops what is not in flight.
#
# A request in the journal (RequestState):
#   PLANNED -> OPEN               a half of a refused request is sent
#   (new)   -> OPEN               it has its place, and the intent is committed; only then does the request leave
#   OPEN    -> ANSWERED | REFUSED | NOT_SENT | UNKNOWN      the settlement is committed; NOT_SENT also when it is
#                                                           interrupted before the platform may have acted
#   OPEN stays OPEN               the run was interrupted or killed; the next run's `recover` makes it UNKNOWN
# A request to be sent again is marked `todo` until the intent of the resend, a new request, is recorded.
#
# An account (AccountState):
#   WAITING | AGAIN -> DONE | REFUSED | FAILED | UNKNOWN    by one settlement, or `recover`; unchanged while it is resent
#   FAILED -> WAITING, UNKNOWN -> AGAIN                     only by `Journal.retry`, between two runs
#
# Always true: intents of one group are committed in the order of dispatch. No two requests that are open or to be sent share
# an account.
# New chunks of a group leave in the order in which they were planned; the journal's cursors depend on it.

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from attrs import evolve

from rbim._support.task_errors import is_being_cancelled
from rbim.bulk.chunk_queue import ChunkQueue
from rbim.bulk.failure_policy import Decision, Signal, Step, failed, judge
from rbim.bulk.states import RequestState
from rbim.bulk.work import FailureReason, Settlement
from rbim.client.senders import in_background, reserve
from rbim.errors import InvalidRequest, RbimError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from rbim.bulk.journal.journal import Journal
    from rbim.bulk.pace.controller import PaceController
    from rbim.bulk.progress import Phase, RunCounts
    from rbim.bulk.settings import JobSettings
    from rbim.bulk.work import Chunk, Work
    from rbim.client.senders import Reserved
    from rbim.clock import Clock
    from rbim.operations.namespace import Sender
    from rbim.storage.group_commit import GroupCommit

__all__ = ["Dispatcher"]

T = TypeVar("T")

NOT_SENT = Settlement(
    outcome=RequestState.NOT_SENT, reason=FailureReason("the job was interrupted before it was sent"), again=True
)

PLAN_AHEAD = 4  # chunks planned ahead for each request that may be in flight
SAMPLE_INTERVAL = 1.0  # seconds
SLOW_COMMIT = 0.5  # seconds
LEAD = 2.0  # times the smoothed time that intents take to be durable, before a request can leave
LONGEST_LEAD = 0.25  # seconds
NEWEST = 0.25  # share of the newest in the smoothed time


class _Sending:
    """The sending of a chunk: since when it could leave but for rates and halts, and what it holds.

    ``invalid``: the error of its values, if it cannot be sent; then nothing is ``reserved``. ``intent`` waits until the
    intent is durable; None until the chunk has its place.
    """

    __slots__ = ("begun", "chunk", "intent", "invalid", "ready_since", "reserved")

    def __init__(self, chunk: Chunk, ready_since: float, invalid: InvalidRequest | None) -> None:
        self.chunk = chunk
        self.ready_since = self.begun = ready_since
        self.invalid = invalid
        self.intent: Callable[[], Awaitable[None]] | None = None
        self.reserved: Reserved[Any] | None = None


class Dispatcher:
    """The sending loop of one run, from its first request to its end."""

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
    ) -> None:
        self._work = work
        self._sender = in_background(sender)
        self._journal = journal
        self._commits = commits
        self._pace = pace
        self._counts = counts
        self._settings = settings
        self._clock = clock
        self._queue = ChunkQueue()
        self._all_planned = False
        self._end_reason = ""  # set when the run is to end early
        self._error: Exception | None = None
        self._tasks = 0
        self._places = 0  # chunks that are reserved or in flight
        self._interrupted = False
        self._written: set[_Sending] = set()  # those whose intent is not durable yet
        self._stalled = False  # an intent takes long: nothing more is reserved, and other jobs of the client go on
        self._lead = 0.0  # seconds before a request can leave at which its intent is written
        self._reserved: set[anyio.CancelScope] = set()
        self._isolate_left = settings.isolate
        self._cancelled = anyio.get_cancelled_exc_class()
        self._changed = anyio.Event()
        self._more_wanted = anyio.Event()
        self._more_wanted.set()

    @property
    def phase(self) -> Phase:
        """``running``, ``halted`` (the platform wants a pause, or an outage) or ``draining`` (the run ends)."""
        if self._end_reason:
            return "draining"
        return "running" if self._pace.state(self._clock.monotonic()) == "running" else "halted"

    def stop(self, reason: str = "stopped") -> None:
        """Send nothing more; the run ends when the requests in flight have ended."""
        self._end_reason = self._end_reason or reason
        for scope in self._reserved:
            scope.cancel()
        self._notify()

    async def run(self) -> str:
        """Run to the end and return the reason for it: ``done``, ``stopped``, ``fuse``, ``no answer``.

        ``fuse`` is the failure limit. Raises the errors that end a job at once: AuthenticationError, ClientClosed, and any
        exception of the sender that is not an RbimError.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop_on_error, self._keep_planned)
            tasks.start_soon(self._stop_on_error, self._keep_sampling)
            await self._dispatch(tasks)
            while self._tasks:
                await self._wait_for_change(None)
            tasks.cancel_scope.cancel()
        if self._error is not None:
            raise self._error
        self._sample()
        return self._end_reason or "done"

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
        pace, clock = self._pace, self._clock
        chunk: Chunk | None = None
        ready_since = clock.monotonic()  # when the next chunk could have left but for rates and halts
        while not self._end_reason:
            now = clock.monotonic()
            if self._stalled or self._places >= pace.concurrency(now):
                await self._wait_for_change(None)
                ready_since = clock.monotonic()
                continue
            if chunk is None and (chunk := self._next_chunk(now)) is None:
                if self._is_over:
                    return
                await self._wait_for_change(None if (due := self._queue.due) is None else due - now)
                ready_since = clock.monotonic()
                continue
            if self._queue.is_behind(chunk):
                self._queue.hold_back(chunk, now)
                chunk = None
                continue
            invalid = self._make_operation(chunk)
            if invalid is None:
                at = pace.earliest_any_group(chunk.operation, now)
                if at > now:
                    await self._wait_for_change(at - now)
                    continue
                at = pace.earliest(chunk.operation, now)
                if at > now:  # only its group is held back: send others first
                    self._queue.hold_back(chunk, at)
                    chunk = None
                    continue
                pace.reserved(chunk.operation, now)
            self._places += 1
            self._tasks += 1
            sending = _Sending(chunk, ready_since, invalid)
            ready_since = now
            self._reserve(sending)
            self._queue.leaves(chunk, now)
            tasks.start_soon(self._run_request, sending)
            chunk = None

    def _make_operation(self, chunk: Chunk) -> InvalidRequest | None:
        """Make the chunk's operation; return the error if its values are invalid."""
        if chunk.operation is None:
            try:
                chunk.operation = self._work.make(chunk)
            except InvalidRequest as error:
                return error
        return None

    def _next_chunk(self, now: float) -> Chunk | None:
        """Return the next chunk that is due, if there is one, and let more be planned in time."""
        if len(self._queue.ready) <= self._low_mark and not self._all_planned:
            self._more_wanted.set()
        return self._queue.next(now)

    @property
    def _low_mark(self) -> int:
        return PLAN_AHEAD * self._settings.concurrency // 2

    @property
    def _is_over(self) -> bool:
        return self._all_planned and not (self._queue or self._tasks)

    async def _wait_for_change(self, seconds: float | None) -> None:
        """Wait until something changes, at most ``seconds`` (None: without a limit)."""
        if not self._changed.is_set():
            if seconds is None:
                await self._changed.wait()
            else:
                with self._clock.scope(seconds):
                    await self._changed.wait()
        if self._changed.is_set():
            self._changed = anyio.Event()

    def _notify(self) -> None:
        self._changed.set()

    async def _keep_planned(self) -> None:
        """Keep a bounded number of planned chunks ready."""
        window = PLAN_AHEAD * self._settings.concurrency
        while True:
            await self._more_wanted.wait()
            self._more_wanted = anyio.Event()
            room = window - len(self._queue.ready)
            if room < 1:  # it was requested twice
                continue
            chunks = await self._commits.read(partial(self._journal.plan, room))
            self._queue.ready.extend(chunks)
            self._all_planned = not chunks
            self._notify()
            if not chunks:
                return

    async def _keep_sampling(self) -> None:
        while True:
            await self._clock.sleep(SAMPLE_INTERVAL)
            self._sample()
            before = self._clock.monotonic() - SLOW_COMMIT
            for sending in self._written:
                if sending.begun < before and sending.reserved is not None:
                    self._stalled = True
                    sending.reserved.lapse()

    def _sample(self) -> None:
        now = self._clock.monotonic()
        sample = self._counts.sample(self._clock.now().timestamp(), now, self._pace.concurrency(now), self._pace.rate)
        self._record(partial(self._journal.sample, sample))

    # One request.

    def _reserve(self, sending: _Sending) -> None:
        """Let a chunk wait for its turn in the sender's limits; what cannot be sent has it at once."""
        chunk = sending.chunk
        if sending.invalid is None:
            sending.reserved = reserve(self._sender, chunk.operation, partial(self._begin, sending), lead=self._lead)
        else:
            self._begin(sending)
        if sending.intent is None:
            self._queue.block(chunk.group)  # the others of its group may not overtake it

    def _begin(self, sending: _Sending) -> None:
        """Record the intent of a chunk that has its place. Called at that moment: intents of a group keep their order."""
        if self._interrupted or self._end_reason:
            return
        now = self._clock.monotonic()
        sending.chunk.waited = now - sending.ready_since
        sending.begun, sending.intent = now, self._commits.begin(partial(self._journal.begin, sending.chunk))
        self._counts.change_in_flight(1, now)
        self._queue.release(sending.chunk.group, now)
        self._notify()

    async def _run_request(self, sending: _Sending) -> None:
        try:
            await self._stop_on_error(partial(self._send, sending))
        finally:
            self._tasks -= 1
            self._notify()

    async def _send(self, sending: _Sending) -> None:
        """Send a chunk once it has its place and its intent is durable.

        If the run is interrupted after the request has left, the request stays OPEN.
        """
        clock, chunk, failure = self._clock, sending.chunk, None
        try:
            if not await self._has_place(sending):
                return
            await self._wait_for_intent(sending)
            began = clock.monotonic()
            self._lead += NEWEST * (min(LEAD * (began - sending.begun), LONGEST_LEAD) - self._lead)
            if sending.invalid is None:
                self._pace.left(began)
            try:
                decision = await self._call_sender(sending)
            except RbimError as error:
                failure, decision = error, self._judge(chunk, error)
            elapsed = clock.monotonic() - began
            if sending.invalid is None:
                self._update_pace(decision, elapsed)
        except BaseException:
            if sending.intent is not None and (sending.reserved is None or not sending.reserved.may_have_acted):
                self._record(partial(self._journal.settle, chunk, NOT_SENT, 0.0))
            raise
        finally:
            if sending.reserved is not None:
                sending.reserved.withdraw()
            if sending.intent is not None:
                self._counts.change_in_flight(-1, clock.monotonic())
            self._places -= 1
            self._notify()
        await self._settle(chunk, decision, elapsed)
        if decision.step is Step.STOP and failure is not None:
            raise failure

    async def _has_place(self, sending: _Sending) -> bool:
        """Wait for the place in the sender's limits; return False if the run is to stop before."""
        if self._end_reason and sending.intent is None:
            self._pace.withdrawn(left=False)
            return False
        if sending.intent is None and sending.reserved is not None:
            with anyio.CancelScope() as scope:
                self._reserved.add(scope)
                try:
                    await sending.reserved.granted()
                except BaseException:
                    self._interrupted = True  # no chunk behind this one begins: intents of a group keep their order
                    raise
                finally:
                    self._reserved.discard(scope)
        if sending.intent is None:
            self._pace.withdrawn(left=False)
        return sending.intent is not None

    async def _wait_for_intent(self, sending: _Sending) -> None:
        """Return when the intent is durable."""
        assert sending.intent is not None  # noqa: S101  # it has its place
        self._written.add(sending)
        try:
            await sending.intent()
        finally:
            self._written.discard(sending)
            if self._stalled:
                self._stalled = False
                self._notify()
        if anyio.current_effective_deadline() == -inf:
            await checkpoint()

    async def _call_sender(self, sending: _Sending) -> Decision:
        chunk, reserved = sending.chunk, sending.reserved
        if reserved is None:
            assert sending.invalid is not None  # noqa: S101  # all others are reserved
            raise sending.invalid
        answer = await reserved.send()
        return Decision(step=Step.SETTLED, signal=Signal.ANSWERED, settlement=self._work.answered(chunk, answer))

    def _judge(self, chunk: Chunk, error: RbimError) -> Decision:
        decision = judge(chunk.operation, chunk, error, retry=self._settings.retry, dialect=self._work.dialect)
        if decision.step is Step.SPLIT and decision.settlement is not None:
            if self._isolate_left > 1:
                self._isolate_left -= 2
                return decision
            settlement = evolve(decision.settlement, state=failed(chunk))
            return evolve(decision, step=Step.SETTLED, settlement=settlement, final=True)
        return decision

    def _update_pace(self, decision: Decision, elapsed: float) -> None:
        """Report the result to the pace; stop the run if there was no answer for ``patience`` seconds."""
        pace, now = self._pace, self._clock.monotonic()
        if decision.signal is Signal.ANSWERED:
            pace.answered(now, elapsed)
        elif decision.signal is Signal.THROTTLED:
            pace.throttled(now, decision.retry_after, elapsed)
        elif decision.signal is Signal.LOST:
            pace.lost(now, elapsed)
            silent = pace.silent_since
            if silent is not None and now - silent > self._settings.patience:
                self.stop("no answer")
        else:
            pace.withdrawn()

    async def _settle(self, chunk: Chunk, decision: Decision, elapsed: float) -> None:
        """Record and count the outcome; schedule the resend or the halves, if any."""
        settlement = decision.settlement
        halves: list[Chunk] = []
        if settlement is not None and decision.step is Step.SPLIT:
            with anyio.CancelScope(shield=True):
                halves = await self._commits.run(partial(self._journal.split, chunk, settlement, elapsed))
        elif settlement is not None:
            self._record(partial(self._journal.settle, chunk, settlement, elapsed))
        throttled = decision.signal is Signal.THROTTLED
        self._counts.ended(settlement, len(chunk.accounts), throttled=throttled, final=decision.final)
        if decision.final and self._settings.failure_limit.exceeded(self._counts.failures, self._counts.settled):
            self.stop("fuse")
        now = self._clock.monotonic()
        for half in halves:
            self._queue.schedule(half, now)
        if decision.step is Step.AGAIN and settlement is not None:
            chunk.resent = chunk.resent or settlement.outcome is RequestState.UNKNOWN
            chunk.expired = chunk.expired or decision.expired
            chunk.repeats, chunk.planned, chunk.attempt = chunk.number, None, chunk.attempt + 1
            chunk.unknown_attempts += settlement.outcome is RequestState.UNKNOWN
            self._queue.schedule(chunk, now + decision.pause)

    def _record(self, command: Callable[[], object]) -> None:
        """Queue a journal command without waiting for it. If it fails, every later command fails too."""
        self._commits.begin(command)
