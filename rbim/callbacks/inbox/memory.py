"""An inbox in memory: for tests, and for events that may be lost with the process."""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Literal

import anyio
from attrs import define

from rbim._support.event_loops import waker
from rbim.callbacks.inbox.arguments import epoch, event_filter, page
from rbim.callbacks.inbox.content import OTHER_CONTENT, apart, is_resend
from rbim.callbacks.inbox.letters import DeadEvent, Letters
from rbim.callbacks.inbox.protocols import Counts, LeaseLost, OtherContent
from rbim.callbacks.inbox.queues import ConversationQueues
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.events.types import Event
    from rbim.callbacks.inbox.arguments import EventFilter
    from rbim.callbacks.inbox.protocols import Backlog, Claim, DeadLetter
    from rbim.clock import Clock
    from rbim.dialect import Dialect

__all__ = ["MemorySink"]


@define(eq=False)
class _WaitingDelivery:
    """A delivery that waits for capacity; ``new`` is None until it is accepted or known."""

    delivery: Delivery
    notify: Callable[[], None]
    new: bool | OtherContent | None = None


class MemorySink:
    """An inbox in memory, with at most ``capacity`` unsettled events (default: 1000); ``accept`` waits while it is full.

    It remembers the last ``remember`` keys (default: 10,000), and bodies of at most 4096 bytes: a known key with other
    content goes into quarantine. It keeps the last ``kept`` deliveries that cannot be handled (default: 1000,
    :meth:`quarantined`) and as many dead letters (``dead``). ``clock`` measures the pauses before retries; ``dialect`` has
    the unit of ``msgTimestamp`` in ``events``. Nothing survives the process: a receiver that must not lose deliveries
    answered with 200 needs another sink.
    """

    durable = False
    retention = 0.0
    lease = inf
    """Leases do not expire: a holder gives them back when it leaves its backlog, or ends with the process."""

    def __init__(
        self,
        *,
        capacity: int = 1000,
        remember: int = 10_000,
        kept: int = 1000,
        clock: Clock | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        for name, value in (("capacity", capacity), ("remember", remember), ("kept", kept)):
            if value < 1:
                raise InvalidRequest(f"{name}: use at least 1, not {value!r}", field=name, limit=1)
        self._lock = Lock()
        self._queues = ConversationQueues(capacity, remember, clock or SystemClock())
        self._letters = Letters(kept, self._lock, self._queues)
        self.dead: deque[DeadEvent] = self._letters.dead
        self._waiting: deque[_WaitingDelivery] = deque()
        self._dialect = dialect

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Do nothing: all events stay."""

    @property
    def events(self) -> tuple[Event, ...]:
        """The events that wait or are being handled, in the order of acceptance."""
        with self._lock:
            entries = self._queues.entries()
        found = (entry.delivery.event_by(self._dialect) for entry in entries)
        return tuple(event for event in found if event is not None)

    def accept_now(self, delivery: Delivery, /) -> bool | OtherContent | None:
        """Store a delivery if there is capacity; return whether it is new, or None if it must wait."""
        with self._lock:
            return self._admit(delivery, first=not self._waiting)

    async def accept(self, delivery: Delivery, /) -> bool | OtherContent:
        """Store a delivery as soon as there is capacity; return False if its key is known."""
        with self._lock:
            new = self._admit(delivery, first=not self._waiting)
            if new is not None:
                return new
            call_soon, decided = waker(), anyio.Event()
            waiting = _WaitingDelivery(delivery, lambda: call_soon(decided.set))
            self._waiting.append(waiting)
        try:
            await decided.wait()
        except BaseException:
            with self._lock:
                if waiting.new is None:
                    self._waiting.remove(waiting)
            raise
        return waiting.new or False

    async def counts(self) -> Counts:
        """Return the numbers of waiting, dead and quarantined events; none is kept when it is done."""
        with self._lock:
            return Counts(waiting=self._queues.count, done=0, dead=len(self.dead), quarantined=len(self._letters.held))

    async def lag(self) -> float:
        """Return the age of the oldest waiting event in seconds; 0 if none waits."""
        with self._lock:
            entries = self._queues.entries()
        now = self._queues.clock.now()
        return max(0.0, (now - entries[0].delivery.received).total_seconds()) if entries else 0.0

    async def dead_letters(
        self,
        limit: int = 100,
        after: int = 0,
        *,
        since: datetime | None = None,
        kind: type[Event] | str | None = None,
        conversation: str | None = None,
    ) -> list[DeadLetter]:
        """Return the oldest dead letters: at most ``limit``, with numbers above ``after`` (next page: the last number).

        ``since``: only those received since then (with a time zone). ``kind``: a class of events, including its subclasses,
        or the text of a ``msgType``. ``conversation``: its name, with or without ``app_id`` and ``/`` in front. (Default of
        each: any.) Raises InvalidRequest for an invalid argument.
        """
        return self._letters.dead_letters(event_filter(since, kind, conversation), *page(limit, after))

    async def quarantined(
        self,
        limit: int = 100,
        after: int = 0,
        *,
        since: datetime | None = None,
        kind: type[Event] | str | None = None,
        conversation: str | None = None,
    ) -> list[DeadLetter]:
        """Return the oldest events in quarantine; the arguments as in :meth:`dead_letters`."""
        return self._letters.quarantined(event_filter(since, kind, conversation), *page(limit, after))

    async def event(self, number: int) -> DeadLetter | None:
        """Return a dead letter or an event in quarantine; None if there is none with this number."""
        letters = (*await self.dead_letters(1, number - 1), *await self.quarantined(1, number - 1))
        return next((letter for letter in letters if letter.number == number), None)

    async def requeue(self, numbers: Iterable[int], *, dead: bool = True, quarantined: bool = True) -> int:
        """Make dead letters, and events in quarantine that can be read now, wait again; return their number.

        Attempts count from 1 again, and the capacity does not hold them up. An event keeps its place in the order of its
        conversation, before all that wait behind it.
        With False for ``dead`` or ``quarantined``, numbers of that kind are left out.
        """
        wanted = set(numbers)
        return self._letters.requeue(lambda letter, _: letter.number in wanted, dead=dead, quarantined=quarantined)

    async def discard(self, numbers: Iterable[int], *, dead: bool = True, quarantined: bool = True) -> int:
        """Delete dead letters and events in quarantine; return their number. A resend would be accepted as a new event.

        With False for ``dead`` or ``quarantined``, numbers of that kind are left out.
        """
        wanted = set(numbers)
        return self._letters.remove(lambda letter: letter.number in wanted, dead=dead, quarantined=quarantined)

    async def purge(self, *, dead: bool = True, quarantined: bool = True, before: datetime | None = None) -> int:
        """Delete all dead letters and events in quarantine, or one kind of them; return their number.

        ``before``: only those received before this time (with a time zone; default: all).
        """
        limit = inf if before is None else epoch(before, "before")
        return self._letters.remove(lambda letter: letter.received.timestamp() < limit, dead=dead, quarantined=quarantined)

    async def replay(
        self, since: datetime | None = None, kind: type[Event] | str | None = None, *, dead_only: bool = False
    ) -> int:
        """Make dead letters wait again, and readable events in quarantine; return their number.

        ``since``: only those received since then (with a time zone; default: all). ``kind``: a class of events, including
        its subclasses, or the text of a ``msgType`` (default: any). ``dead_only``: no events in quarantine. Other content
        of a known event stays there.
        """
        wanted = event_filter(since, kind, dead_only=dead_only)
        return self._letters.requeue(partial(_replayed, wanted), quarantined=not dead_only)

    async def replayable(
        self, since: datetime | None = None, kind: type[Event] | str | None = None, *, dead_only: bool = False
    ) -> dict[str, int]:
        """Return how many events :meth:`replay` would make wait again, by ``msgType``, the most first. Changes nothing."""
        wanted = event_filter(since, kind, dead_only=dead_only)
        chosen = self._letters.readable(partial(_replayed, wanted), quarantined=not dead_only)
        return dict(Counter(delivery.msg_type for delivery in chosen.values()).most_common())

    def backlog(self) -> AbstractAsyncContextManager[Backlog]:
        """Return a backlog for the event loop that enters it. On leaving, its claims are released."""
        return _Backlog(self._lock, self._queues, self.dead, self._admit_waiting)

    def _admit_waiting(self) -> None:
        """Store deliveries that wait for capacity, in the order of their arrival."""
        while self._waiting:
            waiting = self._waiting[0]
            waiting.new = self._admit(waiting.delivery, first=True)
            if waiting.new is None:
                return
            self._waiting.popleft()
            waiting.notify()

    def _admit(self, delivery: Delivery, *, first: bool) -> bool | OtherContent | None:
        """Store a delivery if it is new, and return whether it is; None if there is no capacity or others wait first."""
        queues = self._queues
        key, body = delivery.key, delivery.body
        known = queues.keys.get(key)
        if known is not None:
            return self._other_content(delivery, known)
        if delivery.problem is not None:
            self._letters.held.append(queues.numbered(delivery))
        elif first and queues.count < queues.capacity:
            queues.add(delivery)
        else:
            return None
        queues.remember_key(key, body)
        return True

    def _other_content(self, delivery: Delivery, known: bytes) -> OtherContent | Literal[False]:
        """Keep a delivery with a known key in quarantine if its content differs."""
        if not known or is_resend(delivery.body, known):
            return False
        other = apart(delivery, delivery.key)
        if other.key in self._queues.keys:
            return False
        self._letters.held.append(self._queues.numbered(other))
        self._queues.remember_key(other.key, other.body)
        return OtherContent(key=other.key, problem=other.problem or "")


class _Backlog:
    """The waiting events of a MemorySink, for one worker."""

    def __init__(
        self, lock: Lock, queues: ConversationQueues, dead: deque[DeadEvent], admit_waiting: Callable[[], None]
    ) -> None:
        self._lock = lock
        self._queues = queues
        self._dead = dead
        self._admit_waiting = admit_waiting
        self._held: dict[str, Claim] = {}

    async def __aenter__(self) -> Self:
        self._call_soon = waker()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        with self._lock:
            for claim in tuple(self._held.values()):
                self._queues.release(claim)
            self._held.clear()

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        with self._lock:
            self._queues.due()
            names = [self._queues.lease() for _ in range(min(limit, len(self._queues.ready)))]
            found = [self._queues.oldest(name, limit // len(names)) for name in names]
            self._held.update((claims[0].conversation, claims[0]) for claims in found)
        return [claim for claims in found for claim in claims]

    async def begin(self, claim: Claim, /) -> None:
        with self._lock:  # never called: events do not survive the process, so none is suspected
            self._check(claim)

    async def absolve(self, claims: Sequence[Claim], /) -> None:
        del claims

    async def clear(self, claim: Claim, /) -> None:
        del claim

    async def done(self, claims: Sequence[Claim], /, *, more: int) -> Sequence[Claim]:
        with self._lock:
            self._check(claims[0])
            return self._settle(claims, more=more)

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        del error
        with self._lock:
            self._check(claim)
            self._queues.pause(claim, pause)
            del self._held[claim.conversation]

    async def dead_letter(self, claim: Claim, /, *, error: str, more: int) -> Sequence[Claim]:
        with self._lock:
            self._check(claim)
            self._dead.append(DeadEvent(claim, error))
            return self._settle((claim,), more=more)

    async def release(self, claim: Claim, /) -> None:
        with self._lock:
            if self._queues.is_leased(claim):
                self._queues.release(claim)
                del self._held[claim.conversation]

    async def renew(self, claims: Sequence[Claim], /) -> Sequence[Claim]:
        with self._lock:
            return [claim for claim in claims if self._queues.leased.get(claim.conversation) != claim.fence]

    async def wait(self) -> None:
        with anyio.CancelScope() as scope:
            with self._lock:
                due = self._queues.due()
                if self._queues.ready:
                    return
                notify = partial(self._call_soon, scope.cancel)
                self._queues.waiting.add(notify)
            try:
                await (anyio.sleep_forever() if due is None else self._queues.clock.sleep(due))
            finally:
                with self._lock:
                    self._queues.waiting.discard(notify)

    def _check(self, claim: Claim) -> None:
        if not self._queues.is_leased(claim):
            raise LeaseLost

    def _settle(self, claims: Sequence[Claim], *, more: int) -> Sequence[Claim]:
        for claim in claims:
            self._queues.remove(claim)
        self._admit_waiting()
        following = self._queues.oldest_or_end(claims[0].conversation, more)
        if not following:
            del self._held[claims[0].conversation]
        return following


def _replayed(wanted: EventFilter, letter: DeadLetter, delivery: Delivery) -> bool:
    return wanted.matches(delivery) and not letter.error.startswith(OTHER_CONTENT)
