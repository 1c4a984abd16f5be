"""A local file for deliveries that the sink did not take in time; each is handed to the sink as soon as that takes it."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import anyio

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.inbox.statements import SPOOL
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.router import HandlerCall
from rbim.callbacks.worker.runner import WorkerTask
from rbim.callbacks.worker.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.protocols import Claim, Sink
    from rbim.clock import Clock

__all__ = ["Spool"]

logger = logging.getLogger("rbim.callbacks")

FOR_EVER = Backoff(attempts=sys.maxsize, first=0.5, factor=2.0, most=5.0)
KNOWN = 10_000
GLANCE = 0.25  # seconds, of real time, between two looks at what the file holds


class _SpoolInbox(SqliteInbox):
    """An inbox that is no inbox to anybody else."""

    kind = SPOOL


class Spool:
    """Keeps deliveries in a file of its own until ``sink`` has taken them, those of a conversation in their order.

    It never gives one up. What the sink has already (it was slow and not absent) the sink knows by its key. While a
    conversation has something here, :meth:`holds` says so, and what follows in it belongs here as well; what other processes
    put into the same file is seen within a quarter of a second. ``budget`` is the seconds that the sink has each time.
    """

    def __init__(self, path: Path, sink: Sink, *, clock: Clock, budget: float) -> None:
        self._inbox = _SpoolInbox(path, clock=clock)
        self._sink = sink
        self._clock = clock
        self._budget = budget
        self._held: set[str] = set()
        self._all_held = False  # there are too many to know each
        self._writing: Counter[str] = Counter()
        self._changes = 0
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._inbox)
            await self._look()
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(self._keep_looking)
            await stack.enter_async_context(WorkerTask(self._forwarding()))
            self._entered = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._entered.__aexit__(None, None, None)  # a task group would wrap the error

    def _forwarding(self) -> Worker:
        # nothing is lost where it ends at once: what the sink has not taken stays here
        calls = _ForwardToSink(self._sink)
        return Worker(self._inbox, calls, clock=self._clock, timeout=self._budget, backoff=FOR_EVER, drain=0)

    def holds(self, conversation: str) -> bool:
        """Whether something of the conversation waits here."""
        return self._all_held or conversation in self._held or conversation in self._writing

    async def accept(self, delivery: Delivery) -> None:
        """Return once the delivery is safe."""
        conversation = delivery.conversation
        self._writing[conversation] += 1
        try:
            await self._inbox.accept(delivery._replace(problem=None))  # what is wrong with it is for the sink to keep
        finally:
            self._changes += 1
            self._held.add(conversation)
            self._writing[conversation] -= 1
            if not self._writing[conversation]:
                del self._writing[conversation]

    async def _look(self) -> None:
        changes = self._changes
        found = await self._inbox.conversations(KNOWN + 1)
        self._all_held = len(found) > KNOWN
        self._held = found if changes == self._changes else found | self._held

    async def _keep_looking(self) -> None:
        """Keep up with what the file holds."""
        while True:
            await anyio.sleep(GLANCE)
            try:
                await self._look()
            except Exception:  # what was held is taken to be held until the file can be read again
                logger.warning("the spool cannot be read", exc_info=True)


class _ForwardToSink:
    """Has a worker hand what it claims to a sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def check(self) -> None:
        pass

    def call(self, claim: Claim, /) -> HandlerCall:
        delivery = delivery_of(claim.body, app_id=claim.app_id, received=claim.received)
        return HandlerCall(run=partial(self._sink.accept, delivery))
