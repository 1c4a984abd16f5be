"""An inbox in memory: for tests, and for events that may be lost with the process."""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
from attrs import define, frozen

from rbim._support.event_loops import waker
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.arguments import classes, epoch, msg_type_of, page_limit, since_epoch
from rbim.callbacks.inbox.content import OTHER_CONTENT, apart, is_resend
from rbim.callbacks.inbox.protocols import Claim, Counts, DeadLetter, LeaseLost, OtherContent
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.events.types import Event
    from rbim.callbacks.inbox.protocols import Backlog
    from rbim.clock import Clock
    from rbim.dialect import Dialect

    T = TypeVar("T")

MOST_OF_BODY = 4096  # bytes of a body that is remembered with its key

__all__ = ["ConversationQueues", "DeadEvent", "MemorySink", "QueuedEvent"]


@frozen
class DeadEvent:
    """A dead letter in memory: the claim of its last attempt, and the traceback."""

    claim: Claim
    error: str


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
        self._quarantined: deque[QueuedEvent] = deque(maxlen=kept)
        self.dead: deque[DeadEvent] = deque(maxlen=kept)
        self._lock = Lock()
        self._queues = ConversationQueues(capacity, remember, clock or SystemClock())
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
            return Counts(waiting=self._queues.count, done=0, dead=len(self.dead), quarantined=len(self._quarantined))

    async def lag(self) -> float:
        """Return the age of the oldest waiting event in seconds; 0 if none waits."""
        with self._lock:
            entries = self._queues.entries()
        now = self._queues.clock.now()
        return max(0.0, (now - entries[0].delivery.received).total_seconds()) if entries else 0.0

    async def dead_letters(self, limit: int = 100, after: int = 0) -> list[DeadLetter]:
        """Return the oldest dead letters: at most ``limit``, with numbers above ``after`` (next page: the last number)."""
        return _page(map(_dead_letter, self._snapshot(self.dead)), limit, after)

    async def quarantined(self, limit: int = 100, after: int = 0) -> list[DeadLetter]:
        """Return the oldest events in quarantine; ``limit`` and ``after`` as in :meth:`dead_letters`."""
        return _page(map(_quarantined, self._snapshot(self._quarantined)), limit, after)

    async def event(self, number: int) -> DeadLetter | None:
        """Return a dead letter or an event in quarantine; None if there is none with this number."""
        letters = (*await self.dead_letters(1, number - 1), *await self.quarantined(1, number - 1))
        return next((letter for letter in letters if letter.number == number), None)

    async def requeue(self, numbers: Iterable[int]) -> int:
        """Make dead letters, and events in quarantine that can be read now, wait again; return their number.

        Attempts count from 1 again, and the capacity does not hold them up. An event keeps its place in the order of its
        conversation, before all that wait behind it.
        """
        wanted = set(numbers)
        return self._requeue(lambda letter, _delivery: letter.number in wanted)

    async def discard(self, numbers: Iterable[int]) -> int:
        """Delete dead letters and events in quarantine; return their number."""
        wanted = set(numbers)
        return self._remove(lambda letter: letter.number in wanted)

    async def purge(self, *, dead: bool = True, quarantined: bool = True, before: datetime | None = None) -> int:
        """Delete all dead letters and events in quarantine, or one kind of them; return their number.

        ``before``: only those received before this time (with a time zone; default: all).
        """
        limit = inf if before is None else epoch(before, "before")
        return self._remove(lambda letter: letter.received.timestamp() < limit, dead=dead, quarantined=quarantined)

    async def replay(
        self, since: datetime | None = None, kind: type[Event] | str | None = None, *, dead_only: bool = False
    ) -> int:
        """Make dead letters wait again, and readable events in quarantine; return their number.

        ``since``: only those received since then (with a time zone; default: all). ``kind``: a class of events, including
        its subclasses, or the text of a ``msgType`` (default: any). ``dead_only``: no events in quarantine. Other content
        of a known event stays there.
        """
        first, names, msg_type = since_epoch(since), classes(kind), msg_type_of(kind)

        def wanted(letter: DeadLetter, delivery: Delivery) -> bool:
            name = "" if delivery.kind is None else delivery.kind.__name__
            return (
                letter.received.timestamp() >= first
                and not letter.error.startswith(OTHER_CONTENT)
                and (names is None or name in names)
                and (msg_type is None or delivery.msg_type == msg_type)
            )

        return self._requeue(wanted, quarantined=not dead_only)

    def _snapshot(self, kept: deque[T]) -> tuple[T, ...]:
        with self._lock:
            return tuple(kept)

    def _requeue(self, wanted: Callable[[DeadLetter, Delivery], bool], *, quarantined: bool = True) -> int:
        with self._lock:
            letters = [_dead_letter(each) for each in self.dead]
            letters += [_quarantined(each) for each in self._quarantined] if quarantined else []
            chosen: dict[int, Delivery] = {}
            for letter in letters:
                delivery = delivery_of(letter.body, app_id=letter.app_id, received=letter.received)
                if wanted(letter, delivery) and delivery.problem is None:
                    chosen[letter.number] = delivery
            for number in sorted(chosen):
                self._queues.put_back(number, chosen[number])
            self._forget(chosen)
        return len(chosen)

    def _remove(self, wanted: Callable[[DeadLetter], bool], *, dead: bool = True, quarantined: bool = True) -> int:
        with self._lock:
            letters = [_dead_letter(each) for each in self.dead] if dead else []
            letters += [_quarantined(each) for each in self._quarantined] if quarantined else []
            numbers = {letter.number for letter in letters if wanted(letter)}
            self._forget(numbers)
        return len(numbers)

    def _forget(self, numbers: Collection[int]) -> None:
        for each in tuple(self.dead):
            if each.claim.number in numbers:
                self.dead.remove(each)
        for entry in tuple(self._quarantined):
            if entry.number in numbers:
                self._quarantined.remove(entry)

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
        known = queues.keys.get(delivery.key)
        if known is not None:
            return self._other_content(delivery, known)
        if delivery.problem is not None:
            self._quarantined.append(queues.numbered(delivery))
        elif first and queues.count < queues.capacity:
            queues.add(delivery)
        else:
            return None
        queues.remember_key(delivery.key, delivery.body)
        return True

    def _other_content(self, delivery: Delivery, known: bytes) -> OtherContent | Literal[False]:
        """Keep a delivery with a known key in quarantine if its content differs."""
        if not known or is_resend(delivery.body, known):
            return False
        other = apart(delivery, delivery.key)
        if other.key in self._queues.keys:
            return False
        self._quarantined.append(self._queues.numbered(other))
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


def _dead_letter(dead: DeadEvent) -> DeadLetter:
    claim = dead.claim
    delivery = delivery_of(claim.body, app_id=claim.app_id, received=claim.received)
    return _letter(claim.number, delivery, dead.error, attempts=claim.attempt)


def _quarantined(entry: QueuedEvent) -> DeadLetter:
    return _letter(entry.number, entry.delivery, entry.delivery.problem or "")


def _letter(number: int, delivery: Delivery, error: str, attempts: int = 0) -> DeadLetter:
    return DeadLetter(
        number=number,
        key=delivery.key,
        conversation=delivery.conversation,
        app_id=delivery.app_id,
        body=delivery.body,
        received=delivery.received,
        attempts=attempts,
        error=error,
        msg_type=delivery.msg_type,
    )


def _page(letters: Iterable[DeadLetter], limit: int, after: int) -> list[DeadLetter]:
    found = sorted((letter for letter in letters if letter.number > after), key=lambda letter: letter.number)
    return found[: page_limit(limit)]


@define(eq=False)
class QueuedEvent:
    """An event that waits or is being handled."""

    number: int
    delivery: Delivery
    failures: int = 0


class ConversationQueues:
    """The queue of each conversation, and the sets of conversations that are ready, leased or pausing."""

    def __init__(self, capacity: int, remember: int, clock: Clock) -> None:
        self.capacity = capacity
        self.remember = remember
        self.clock = clock
        self.keys: dict[str, bytes] = {}  # with the body, or nothing for a long one
        self._in_order: deque[str] = deque()  # the same keys, the oldest first
        self.count = 0
        self.ready: OrderedDict[str, None] = OrderedDict()
        self.leased: dict[str, int] = {}
        self.waiting: set[Callable[[], None]] = set()
        self._events: dict[str, deque[QueuedEvent]] = {}
        self._pausing: list[tuple[float, int, str]] = []
        self._numbers = count(1)
        self._fences = count(1)

    def entries(self) -> list[QueuedEvent]:
        """Return all events, in the order of acceptance."""
        entries = (entry for queue in self._events.values() for entry in queue)
        return sorted(entries, key=lambda entry: entry.number)

    def remember_key(self, key: str, body: bytes) -> None:
        """Remember a key; forget the oldest one beyond the limit."""
        self.keys[key] = body if len(body) <= MOST_OF_BODY else b""
        self._in_order.append(key)
        if len(self._in_order) > self.remember:
            del self.keys[self._in_order.popleft()]

    def numbered(self, delivery: Delivery) -> QueuedEvent:
        """Return an event with the next number, in no queue."""
        return QueuedEvent(next(self._numbers), delivery)

    def add(self, delivery: Delivery) -> None:
        """Append an event to the queue of its conversation."""
        self.count += 1
        entry, conversation = QueuedEvent(next(self._numbers), delivery), delivery.conversation
        queue = self._events.get(conversation)
        if queue is None:
            self._events[conversation] = deque((entry,))
            self.make_ready(conversation)
        else:
            queue.append(entry)

    def put_back(self, number: int, delivery: Delivery) -> None:
        """Put an event into the queue of its conversation, in the order of the numbers."""
        self.count += 1
        entry, conversation = QueuedEvent(number, delivery), delivery.conversation
        queue = self._events.get(conversation)
        if queue is None:
            self._events[conversation] = deque((entry,))
            self.make_ready(conversation)
        else:
            place = len(queue)
            while place and queue[place - 1].number > number:
                place -= 1
            queue.insert(place, entry)

    def make_ready(self, conversation: str, *, first: bool = False) -> None:
        """Make a conversation ready for a lease, after all others or (``first``) before them."""
        self.ready[conversation] = None
        if first:
            self.ready.move_to_end(conversation, last=False)
        if self.waiting:
            self.notify()

    def notify(self) -> None:
        """Make every ``wait`` of a backlog check again."""
        while self.waiting:
            self.waiting.pop()()

    def due(self) -> float | None:
        """Make conversations ready whose pause is over; return the seconds until the next one, or None if none pauses."""
        while self._pausing:
            left = self._pausing[0][0] - self.clock.monotonic()
            if left > 0:
                return left
            self.make_ready(heappop(self._pausing)[2])
        return None

    def lease(self) -> str:
        """Lease the conversation that has been ready longest, and return its name."""
        conversation, _ = self.ready.popitem(last=False)
        self.leased[conversation] = next(self._fences)
        return conversation

    def oldest(self, conversation: str, limit: int) -> list[Claim]:
        """Return claims of the oldest events of a leased conversation."""
        fence = self.leased[conversation]
        return [
            Claim(
                number=entry.number,
                key=entry.delivery.key,
                conversation=conversation,
                app_id=entry.delivery.app_id,
                body=entry.delivery.body,
                received=entry.delivery.received,
                attempt=entry.failures + 1,
                fence=fence,
            )
            for entry in islice(self._events[conversation], limit)
        ]

    def is_leased(self, claim: Claim) -> bool:
        """Return whether a claim's lease is still valid and its event not settled."""
        return self.leased.get(claim.conversation) == claim.fence and self._entry(claim) is not None

    def _entry(self, claim: Claim) -> QueuedEvent | None:
        waiting = self._events.get(claim.conversation, ())
        return next((entry for entry in waiting if entry.number == claim.number), None)

    def remove(self, claim: Claim) -> None:
        """Remove a settled event."""
        queue = self._events[claim.conversation]
        queue.remove(next(entry for entry in queue if entry.number == claim.number))
        self.count -= 1

    def oldest_or_end(self, conversation: str, more: int) -> list[Claim]:
        """Claim the oldest ``more`` events of a leased conversation; without any, end its lease."""
        waiting = self._events[conversation]
        if waiting and more:
            return self.oldest(conversation, more)
        del self.leased[conversation]
        if waiting:
            self.make_ready(conversation)
        else:
            del self._events[conversation]
        return []

    def pause(self, claim: Claim, pause: float) -> None:
        """Count a failure, end the lease, and pause the conversation for ``pause`` seconds."""
        entry = self._entry(claim)
        assert entry is not None  # noqa: S101  # it is leased
        entry.failures += 1
        del self.leased[claim.conversation]
        heappush(self._pausing, (self.clock.monotonic() + pause, claim.fence, claim.conversation))
        self.notify()  # this conversation may be due before the one that a backlog waits for

    def release(self, claim: Claim) -> None:
        """End a lease."""
        del self.leased[claim.conversation]
        self.make_ready(claim.conversation, first=True)
