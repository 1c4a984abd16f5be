"""The spool: a local overflow file for deliveries that the sink did not store in time, forwarded to it later."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.sqlite import WEEK, SqliteInbox
from rbim.callbacks.inbox.tables import SPOOL
from rbim.callbacks.observers import Observers
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

FOREVER = Backoff(attempts=sys.maxsize, crashes=sys.maxsize, first=0.5, factor=2.0, most=5.0)
MOST_CONVERSATIONS = 10_000  # that are tracked one by one
POLL = 0.25  # seconds of real time between two reads of the file's conversations


class _SpoolInbox(SqliteInbox):
    """An inbox file with another mark, so that no other code opens it as an inbox."""

    kind = SPOOL


class Spool:
    """Keeps deliveries in its own file until ``sink`` has stored them, in order within a conversation.

    It never drops a delivery. If the sink was only slow and has the delivery already, it recognises the key. While a
    conversation has deliveries here, :meth:`holds` returns True, and later ones must come here too. Deliveries that other
    processes add to the same file are seen within 0.25 seconds. ``budget`` is the sink's limit for one try, in seconds.
    """

    def __init__(self, path: Path, sink: Sink, *, clock: Clock, budget: float, receiver: str = "") -> None:
        # forwarded deliveries are known to the sink: keep them no longer than the sink does
        self._inbox = _SpoolInbox(path, retention=min(sink.retention or WEEK, WEEK), clock=clock)
        self._sink = sink
        self._clock = clock
        self._budget = budget
        self._observers = Observers(receiver=receiver)
        self._held: set[str] = set()
        self._all_held = False  # too many conversations to track each
        self._writing: Counter[str] = Counter()
        self._changes = 0
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._inbox)
            await self._refresh()
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(self._keep_refreshing)
            await stack.enter_async_context(WorkerTask(self._forwarding()))
            self._entered = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._entered.__aexit__(None, None, None)  # a task group would wrap the error

    def _forwarding(self) -> Worker:
        # drain=0 loses nothing: deliveries that the sink has not stored stay here
        forward = _ForwardToSink(self._sink)
        return Worker(
            self._inbox,
            forward,
            clock=self._clock,
            timeout=self._budget,
            backoff=FOREVER,
            observers=self._observers,
            drain=0,
        )

    def holds(self, conversation: str) -> bool:
        """Whether deliveries of the conversation wait here."""
        return self._all_held or conversation in self._held or conversation in self._writing

    async def accept(self, delivery: Delivery) -> None:
        """Return once the delivery is durable."""
        conversation = delivery.conversation
        self._writing[conversation] += 1
        try:
            await self._inbox.accept(delivery._replace(problem=None))  # the sink determines the problem again
        finally:
            self._changes += 1
            self._held.add(conversation)
            self._writing[conversation] -= 1
            if not self._writing[conversation]:
                del self._writing[conversation]

    async def _refresh(self) -> None:
        changes = self._changes
        found = await self._inbox.conversations(MOST_CONVERSATIONS + 1)
        self._all_held = len(found) > MOST_CONVERSATIONS
        self._held = found if changes == self._changes else found | self._held

    async def _keep_refreshing(self) -> None:
        """Keep the set of held conversations current."""
        while True:
            await anyio.sleep(POLL)
            try:
                await self._refresh()
            except Exception:  # until the next read succeeds, the last known conversations count as held
                self._observers.log.warning("the spool cannot be read; next try in %g s", POLL, exc_info=True)


class _ForwardToSink:
    """The handler of the spool's worker: passes each claimed delivery to the sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def check(self) -> None:
        pass

    def handler_call(self, claim: Claim, resource: object = None, /) -> HandlerCall:
        del resource
        delivery = delivery_of(claim.body, app_id=claim.app_id, received=claim.received)
        return HandlerCall(run=lambda _: self._sink.accept(delivery), handler=f"{type(self._sink).__name__}.accept")
