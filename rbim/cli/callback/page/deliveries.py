"""The last deliveries of a receiver, as its page shows them: noted beside the receiver, in bounded memory.

A wrapper of the receiver's application sees each request and the status of its answer; the receiver's observers tell the
rest: why it was refused, and how its event was handled later.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from attrs import define, field

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.observers import (
    DeadLettered,
    DeliveryEnded,
    Handled,
    HandlingEnded,
    HandlingFailed,
    HandlingStarted,
    Quarantined,
    Refused,
    Spooled,
)

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.callbacks.observers import Observation
    from rbim.page.events import Feed, Stream

__all__ = ["KEPT", "Counters", "Deliveries", "Seen"]

KEPT = 500  # deliveries in the list
KEPT_RESENDS = 20  # deliveries of one event whose state is followed
KEPT_REFUSED = 50  # refused ones whose headers and body are kept, to explain them
MOST_OF_BODY = 64 * 1024  # bytes of a body that is kept to be explained
MOST_OF_TEXT = 300  # characters of an error in the list
WINDOW = 10.0  # seconds of the present rate
ACCEPTED = 200
T = TypeVar("T")

REFUSALS = (400, 401, 405, 413, 415)


@define(eq=False)
class Seen:
    """One delivery. ``state`` is what happened to its event since: see the page's texts."""

    number: int
    at: datetime
    status: int | None = None
    elapsed: float = 0.0
    key: str | None = None
    conversation: str = ""
    msg_type: str = ""
    resent: bool = False
    reason: str = ""
    detail: str = ""
    state: str = ""
    attempt: int = 0
    error: str = ""
    headers: list[tuple[bytes, bytes]] = field(factory=list[tuple[bytes, bytes]])
    body: bytes | None = None

    def document(self) -> dict[str, Any]:
        """Return it as JSON, without headers and body."""
        return {
            "number": self.number,
            "at": self.at.isoformat(),
            "status": self.status,
            "ms": round(self.elapsed * 1000, 1),
            "key": self.key,
            "conversation": self.conversation,
            "type": self.msg_type,
            "resent": self.resent,
            "reason": self.reason,
            "detail": self.detail,
            "state": self.state,
            "attempt": self.attempt,
            "error": self.error,
        }


@define(eq=False)
class Counters:
    """Counts since the command began."""

    deliveries: int = 0
    accepted: int = 0
    refused: int = 0
    unavailable: int = 0
    gone: int = 0
    handled: int = 0
    failed: int = 0
    dead: int = 0
    in_work: int = 0


_current: ContextVar[Seen | None] = ContextVar("rbim_delivery_seen", default=None)


class Deliveries:
    """The deliveries that :meth:`watched` sees, and what :meth:`observe` hears of them, as streams of a feed.

    The stream ``deliveries`` has each at the end of its request, ``changes`` each change of its event after that.
    """

    def __init__(
        self, feed: Feed, monotonic: Callable[[], float], now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.counters = Counters()
        self._monotonic = monotonic
        self._now = now
        self._stream: Stream[Seen] = feed.stream("deliveries", KEPT, Seen.document)
        self._changes: Stream[dict[str, Any]] = feed.stream("changes", KEPT, dict)
        self._by_key: OrderedDict[str, deque[Seen]] = OrderedDict()  # an event may be delivered again
        self._results: OrderedDict[str, _Result] = OrderedDict()  # a handler may end before the answer to the delivery
        self._refused: deque[Seen] = deque(maxlen=KEPT_REFUSED)
        self._recent: deque[float] = deque()

    def rate(self) -> float:
        """Return the deliveries per second of the last ten seconds."""
        now = self._monotonic()
        while self._recent and self._recent[0] < now - WINDOW:
            self._recent.popleft()
        return len(self._recent) / WINDOW

    def refused(self, number: int) -> Seen | None:
        """Return a refused delivery, with its headers and its body, if it is still kept."""
        return next((each for each in self._refused if each.number == number), None)

    def watched(self, app: Callable[[Scope, Receive, Send], Any]) -> Callable[[Scope, Receive, Send], Any]:
        """Return the receiver's application that notes each POST."""

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["method"] != "POST":
                await app(scope, receive, send)
                return
            self.counters.deliveries += 1
            self._recent.append(self._monotonic())
            if len(self._recent) > MOST_RECENT:
                self.rate()
            seen, began, parts = Seen(self.counters.deliveries, self._now()), self._monotonic(), _Parts()

            async def received() -> MutableMapping[str, Any]:
                return parts.add(await receive())

            async def sent(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    seen.status = message["status"]
                await send(message)

            before = _current.set(seen)
            try:
                await app(scope, received, sent)
            finally:
                _current.reset(before)
                seen.elapsed = self._monotonic() - began
                self._ended(seen, scope, parts.body)

        return noted

    def _ended(self, seen: Seen, scope: Scope, body: bytes | None) -> None:
        counters = self.counters
        if seen.status == ACCEPTED:
            counters.accepted += 1
            if body is not None:
                delivery = delivery_of(body, app_id="", received=seen.at)
                seen.conversation = "" if delivery.conversation == delivery.key else delivery.conversation[1:]
                seen.msg_type, seen.resent = delivery.msg_type[:MOST_OF_TEXT], delivery.resent
        elif seen.status is None:
            counters.gone += 1
        elif seen.status in REFUSALS:
            counters.refused += 1
            seen.headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
            seen.body = body
            self._refused.append(seen)
        else:
            counters.unavailable += 1
        if seen.key is not None and seen.status == ACCEPTED:
            _keep(self._by_key, seen.key, self._by_key.get(seen.key) or deque(maxlen=KEPT_RESENDS)).append(seen)
            if not seen.state and seen.key in self._results:
                seen.state, seen.attempt, seen.error = self._results[seen.key]
        self._stream.add(seen)

    def observe(self, observation: Observation) -> None:
        """Note an observation of the receiver or its worker."""
        seen = _current.get()
        counters = self.counters
        match observation:
            case Refused(reason=reason, detail=detail) if seen is not None:
                seen.reason, seen.detail = reason, detail[:MOST_OF_TEXT]
            case DeliveryEnded(key=key) if seen is not None:
                seen.key = key
            case Quarantined(problem=problem) if seen is not None:
                seen.state, seen.error = "quarantine", problem[:MOST_OF_TEXT]
            case Spooled(why=why, kept=kept) if seen is not None:
                seen.state, seen.error = "overflow" if kept else "", why[:MOST_OF_TEXT]
            case HandlingStarted():
                counters.in_work += 1
            case HandlingEnded():
                counters.in_work -= 1
            case Handled(key=key, attempt=attempt):
                counters.handled += 1
                self._changed(key, "handled", attempt, "")
            case HandlingFailed(key=key, attempt=attempt, error=error):
                counters.failed += 1
                self._changed(key, "failed", attempt, error)
            case DeadLettered(key=key, attempt=attempt, error=error):
                counters.dead += 1
                self._changed(key, "dead", attempt, error)
            case _:
                pass

    def _changed(self, key: str, state: str, attempt: int, error: str) -> None:
        result = _keep(self._results, key, _Result(state, attempt, error[:MOST_OF_TEXT]))
        for seen in self._by_key.get(key, ()):
            seen.state, seen.attempt, seen.error = result
            self._changes.add({"number": seen.number, **result._asdict()})


class _Result(NamedTuple):
    """What has become of an event so far."""

    state: str
    attempt: int
    error: str


def _keep(kept: OrderedDict[str, T], key: str, value: T) -> T:
    """Put a value at the end of those that are kept, of which the oldest give way; return it."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > KEPT:
        kept.popitem(last=False)
    return value


MOST_RECENT = 100_000  # times of the last deliveries that wait to be forgotten


class _Parts:
    """The body of a request as it comes; None if it is longer than what is kept."""

    def __init__(self) -> None:
        self.body: bytes | None = b""

    def add(self, message: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Note a message of the server, and return it."""
        if message["type"] == "http.request" and self.body is not None:
            body: bytes = self.body + message.get("body", b"")
            self.body = body if len(body) <= MOST_OF_BODY else None
        return message
