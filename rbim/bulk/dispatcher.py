"""One run of a job: sends what is planned as fast as the pace allows, records each sending before and after, and ends.

One task decides what goes next, so that halts, rates and the number in flight need no agreement between several.
"""

from __future__ import annotations

import heapq
from collections import deque
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from attrs import evolve

from rbim.bulk.failure_policy import Decision, Signal, Step, failed, judge
from rbim.bulk.states import RequestState
from rbim.bulk.work import FailureReason, Settlement
from rbim.errors import InvalidRequest, RbimError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from rbim.bulk.journal.journal import Journal
    from rbim.bulk.pace.controller import PaceController
    from rbim.bulk.progress import Phase, RunCounts
    from rbim.bulk.settings import JobSettings
    from rbim.bulk.work import Chunk, Work
    from rbim.clock import Clock
    from rbim.operations.namespace import Sender
    from rbim.storage.group_commit import GroupCommit

__all__ = ["Dispatcher"]

T = TypeVar("T")

NOT_SENT = Settlement(
    outcome=RequestState.NOT_SENT, why=FailureReason("the job was interrupted before it was sent"), again=True
)

AHEAD = 4  # chunks that are planned ahead, for each request that may be in flight
SAMPLE = 1.0  # seconds
MANY = 1000
"""Chunks that wait to be sent again, beyond which nothing new is sent."""


class Dispatcher:
    """A run, from its first sending to its end."""

    def __init__(  # noqa: PLR0913  # the parts that a job puts together
        self,
        *,
        work: Work[Any],
        sender: Sender,
        journal: Journal,
        commits: GroupCommit,
        steering: PaceController,
        tally: RunCounts,
        settings: JobSettings,
        clock: Clock,
    ) -> None:
        self._work = work
        self._sender = sender
        self._journal = journal
        self._commits = commits
        self._steering = steering
        self._tally = tally
        self._settings = settings
        self._clock = clock
        self._ready: deque[Chunk] = deque()
        self._later: list[tuple[float, int, Chunk | str]] = []  # a heap: what is sent again, and groups to look after
        self._held: dict[str, deque[Chunk]] = {}  # by group: what its own rate holds back, in order
        self._holding = 0
        self._order = count()
        self._all_planned = False
        self._why = ""  # once it is to end early
        self._error: Exception | None = None
        self._tasks = 0
        self._halvings = settings.isolate
        self._cancelled = anyio.get_cancelled_exc_class()
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        self._wanted.set()

    @property
    def phase(self) -> Phase:
        """What it is doing."""
        if self._why:
            return "draining"
        return "running" if self._steering.state(self._clock.monotonic()) == "running" else "halted"

    def stop(self, why: str = "stopped") -> None:
        """Send nothing more, and end when what is in flight is over."""
        self._why = self._why or why
        self._nudge()

    async def run(self) -> str:
        """Run to the end and return why it came: ``done``, ``stopped``, ``fuse``, ``no answer``.

        Raises what ends a job at once: AuthenticationError, ClientClosed, and whatever a sender raises that is no RbimError.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._guarded, self._keep_planned)
            tasks.start_soon(self._guarded, self._keep_sampling)
            await self._dispatch(tasks)
            while self._tasks:
                await self._pause(None)
            tasks.cancel_scope.cancel()
        if self._error is not None:
            raise self._error
        self._sample()
        return self._why or "done"

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something; if it fails, end the run in good order, for what is in flight may have its effect."""
        try:
            await work()
        except Exception as error:
            self._error = self._error or error
            self.stop("error")

    # What goes next.

    async def _dispatch(self, tasks: TaskGroup) -> None:
        steering, clock = self._steering, self._clock
        chunk: Chunk | None = None
        held = clock.monotonic()  # since when the next one might go, if rates and halts let it
        while not self._why:
            now = clock.monotonic()
            if self._tally.in_flight >= steering.concurrency(now):
                await self._pause(None)
                held = clock.monotonic()
                continue
            if chunk is None and (chunk := self._take(now)) is None:
                if self._is_over:
                    return
                await self._pause(self._later[0][0] - now if self._later else None)
                held = clock.monotonic()
                continue
            refusal = self._prepare(chunk)
            if refusal is not None and self._is_behind(chunk):
                self._hold(chunk, now)
                chunk = None
                continue
            if refusal is None:
                at = steering.general(chunk.operation, now)
                if at > now:
                    await self._pause(at - now)
                    continue
                at = steering.earliest(chunk.operation, now)
                if at > now or self._is_behind(chunk):  # its group alone is held back: others go first
                    self._hold(chunk, at)
                    chunk = None
                    continue
                steering.sent(chunk.operation, now)
            self._release(chunk, now)
            chunk.waited, held = now - held, now
            self._tally.flies(1, now)
            self._tasks += 1
            intent = self._commits.begin(partial(self._journal.begin, chunk))  # here, so that intents keep their order
            tasks.start_soon(self._carry_out, chunk, intent, refusal)
            chunk = None

    def _prepare(self, chunk: Chunk) -> InvalidRequest | None:
        """Make the operation, or return why none can be made."""
        if chunk.operation is None:
            try:
                chunk.operation = self._work.make(chunk)
            except InvalidRequest as error:
                return error
        return None

    def _take(self, now: float) -> Chunk | None:
        """Return what is due: what is sent again before anything new."""
        if self._later and self._later[0][0] <= now:
            due = heapq.heappop(self._later)[2]
            return self._held[due][0] if isinstance(due, str) else due
        if len(self._ready) <= self._low and not self._all_planned:
            self._wanted.set()
        return self._ready.popleft() if self._ready and len(self._later) + self._holding < MANY else None

    @property
    def _low(self) -> int:
        return AHEAD * self._settings.concurrency // 2

    @property
    def _is_over(self) -> bool:
        return self._all_planned and not (self._ready or self._later or self._tasks)

    def _put_off(self, chunk: Chunk | str, until: float) -> None:
        heapq.heappush(self._later, (until, next(self._order), chunk))

    # What a group's own rate holds back goes in the order in which it was planned: the journal's cursors rely on it.

    def _is_behind(self, chunk: Chunk) -> bool:
        held = self._held.get(chunk.group)
        return held is not None and held[0] is not chunk

    def _hold(self, chunk: Chunk, until: float) -> None:
        if self._is_behind(chunk):
            held = self._held[chunk.group]
            held.insert(1 if chunk.repeats or chunk.planned else len(held), chunk)  # what is sent again before anything new
            self._holding += 1
            return
        if chunk.group not in self._held:
            self._held[chunk.group] = deque([chunk])
            self._holding += 1
        self._put_off(chunk.group, until)

    def _release(self, chunk: Chunk, now: float) -> None:
        """Have the next one looked after that was held back behind this one."""
        held = self._held.get(chunk.group)
        if held is None or held[0] is not chunk:
            return
        held.popleft()
        self._holding -= 1
        if held:
            self._put_off(chunk.group, now)
        else:
            del self._held[chunk.group]

    async def _pause(self, seconds: float | None) -> None:
        """Wait until something changes, or so long."""
        if not self._changed.is_set():
            if seconds is None:
                await self._changed.wait()
            else:
                with self._clock.scope(seconds):
                    await self._changed.wait()
        if self._changed.is_set():
            self._changed = anyio.Event()

    def _nudge(self) -> None:
        self._changed.set()

    async def _keep_planned(self) -> None:
        """Keep chunks ready, a bounded window ahead."""
        most = AHEAD * self._settings.concurrency
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            room = most - len(self._ready)
            if room < 1:  # it was wanted twice
                continue
            chunks = await self._commits.read(partial(self._journal.plan, room))
            self._ready.extend(chunks)
            self._all_planned = not chunks
            self._nudge()
            if not chunks:
                return

    async def _keep_sampling(self) -> None:
        while True:
            await self._clock.sleep(SAMPLE)
            self._sample()

    def _sample(self) -> None:
        now = self._clock.monotonic()
        sample = self._tally.sample(self._clock.now().timestamp(), now, self._steering.concurrency(now), self._steering.rate)
        self._record(partial(self._journal.sample, sample))

    # One request.

    async def _carry_out(self, chunk: Chunk, intent: Callable[[], Awaitable[None]], refusal: InvalidRequest | None) -> None:
        try:
            await self._guarded(partial(self._send, chunk, intent, refusal))
        finally:
            self._tasks -= 1
            self._nudge()

    async def _send(self, chunk: Chunk, intent: Callable[[], Awaitable[None]], refusal: InvalidRequest | None) -> None:
        """Send a chunk once its intent is recorded. Interrupted in between, it stays open."""
        clock, failure = self._clock, None
        try:
            await self._begun(chunk, intent)
            began = clock.monotonic()
            try:
                verdict = await self._ask(chunk, refusal)
            except RbimError as error:
                failure, verdict = error, self._judge(chunk, error)
            elapsed = clock.monotonic() - began
            if refusal is None:
                self._steer(verdict, elapsed)
        finally:
            self._tally.flies(-1, clock.monotonic())
            self._nudge()
        await self._settle(chunk, verdict, elapsed)
        if verdict.step is Step.STOP and failure is not None:
            raise failure

    async def _begun(self, chunk: Chunk, intent: Callable[[], Awaitable[None]]) -> None:
        """Return when the intent is durable; if the run is interrupted meanwhile, record that the chunk does not leave."""
        try:
            await intent()
            if anyio.current_effective_deadline() == -inf:
                await checkpoint()
        except self._cancelled:
            self._record(partial(self._journal.settle, chunk, NOT_SENT, 0.0))
            raise

    async def _ask(self, chunk: Chunk, refusal: InvalidRequest | None) -> Decision:
        if refusal is not None:
            raise refusal
        answer = await self._sender.send(chunk.operation)
        return Decision(step=Step.SETTLED, signal=Signal.ANSWERED, settlement=self._work.answered(chunk, answer))

    def _judge(self, chunk: Chunk, error: RbimError) -> Decision:
        verdict = judge(chunk.operation, chunk, error, retry=self._settings.retry, dialect=self._work.dialect)
        if verdict.step is Step.SPLIT and verdict.settlement is not None:
            if self._halvings > 1:
                self._halvings -= 2
                return verdict
            settlement = evolve(verdict.settlement, state=failed(chunk))
            return evolve(verdict, step=Step.SETTLED, settlement=settlement, final=True)
        return verdict

    def _steer(self, verdict: Decision, elapsed: float) -> None:
        """Tell the pace, and see whether it is time to give up."""
        steering, now = self._steering, self._clock.monotonic()
        if verdict.signal is Signal.ANSWERED:
            steering.answered(now, elapsed)
        elif verdict.signal is Signal.THROTTLED:
            steering.throttled(now, verdict.retry_after, elapsed)
        elif verdict.signal is Signal.LOST:
            steering.lost(now, elapsed)
            silent = steering.silent_since
            if silent is not None and now - silent > self._settings.patience:
                self.stop("no answer")
        else:
            steering.withdrawn()

    async def _settle(self, chunk: Chunk, verdict: Decision, elapsed: float) -> None:
        """Record the outcome, count it, and see to what comes of it."""
        settlement = verdict.settlement
        halves: list[Chunk] = []
        if settlement is not None and verdict.step is Step.SPLIT:
            with anyio.CancelScope(shield=True):
                halves = await self._commits.run(partial(self._journal.split, chunk, settlement, elapsed))
        elif settlement is not None:
            self._record(partial(self._journal.settle, chunk, settlement, elapsed))
        throttled = verdict.signal is Signal.THROTTLED
        self._tally.ended(settlement, len(chunk.accounts), throttled=throttled, final=verdict.final)
        if verdict.final and self._settings.fuse.blown(self._tally.failures, self._tally.settled):
            self.stop("fuse")
        now = self._clock.monotonic()
        for half in halves:
            self._put_off(half, now)
        if verdict.step is Step.AGAIN and settlement is not None:
            chunk.resent = chunk.resent or settlement.outcome is RequestState.UNKNOWN
            chunk.expired = chunk.expired or verdict.anew
            chunk.repeats, chunk.planned, chunk.attempt = chunk.number, None, chunk.attempt + 1
            chunk.lost += settlement.outcome is RequestState.UNKNOWN
            self._put_off(chunk, now + verdict.pause)

    def _record(self, command: Callable[[], object]) -> None:
        """Have the journal carry out a command soon. Nobody waits: if it fails, so does whatever comes after it."""
        self._commits.begin(command)
