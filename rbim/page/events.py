"""Server-sent events for any number of watchers of a page, in bounded memory.

**Theory of operation.** Sources append items to streams, and nothing else happens. Each watcher has a cursor: how many items
of each stream it has received. At every tick (default: each 0.2 seconds) the watchers that are connected wake together and
get what has been added since their cursor, in one event. All of them share the work: items and levels of one tick are
encoded once.

A stream holds its last ``kept`` items. A watcher that is slow, or was away, gets what is still held and the number of items
that it missed; the counters stay exact. A watcher that does not read holds up no other one: its own task waits, and it has
at most one event in memory.

The ``id`` of an event is the cursor after it, ``FEED.EPOCH-COUNT.EPOCH-COUNT...``, with one pair for each stream. A watcher
that comes back with it, as the header ``Last-Event-ID`` or as ``?after=``, resumes. A stream that was cleared has another
epoch: it starts anew, the others go on. With an id of another feed (of another process) all streams start anew. Each
event says which of its streams do.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import parse_qs

import anyio
from attrs import define, frozen

from rbim._support import json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rbim._support.asgi import Receive, Send

__all__ = ["Batch", "Cursor", "Feed", "Source", "Stream", "cursor_of"]

INTERVAL = 0.2
KEEP_ALIVE = 15.0
"""Seconds without an event after which a comment is sent, so that a connection whose other end has gone is noticed."""

RETRY = 1000  # milliseconds after which a browser connects again

_POSITION = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")  # within 64 bits

T = TypeVar("T")


class Stream(Generic[T]):
    """The last items of one kind. ``count`` is the exact number of all items so far; they are numbered from 1."""

    def __init__(self, name: str, kept: int, encode: Callable[[T], Any]) -> None:
        self.name = name
        self.count = 0
        self.epoch = 0
        self.encode = encode
        self._items: deque[T] = deque(maxlen=kept)

    def add(self, item: T) -> None:
        """Append an item. It is kept as it is; it is encoded later, and only if someone watches."""
        self.count += 1
        self._items.append(item)

    def clear(self) -> None:
        """Forget all items and restart the count: watchers start anew with this stream."""
        self.count = 0
        self.epoch += 1
        self._items.clear()

    def between(self, after: int, until: int) -> list[T]:
        """Return the items with numbers above ``after``, up to ``until``, as far as they are held."""
        first = self.count - len(self._items) + 1
        return list(islice(self._items, max(0, after + 1 - first), max(0, until + 1 - first)))


class Source(Protocol):
    """A stream as a feed sees it; :class:`Stream` is one."""

    name: str
    count: int
    epoch: int
    """It changes when the items so far are void."""

    @property
    def encode(self) -> Callable[[Any], Any]:
        """A function from an item to JSON."""
        ...

    def between(self, after: int, until: int) -> list[Any]:
        """Return the items with numbers above ``after``, up to ``until``, as far as they are held."""
        ...


Position = tuple[int, int]  # where a watcher is in one stream: the epoch, and the number of items since it began


@frozen
class Cursor:
    """The position of a watcher in each stream of a feed, in the order in which the streams were made."""

    feed: str
    positions: tuple[Position, ...]

    def __str__(self) -> str:
        return ".".join((self.feed, *(f"{epoch}-{count}" for epoch, count in self.positions)))


@frozen
class Batch:
    """What a watcher gets at one tick: the document of the event, and the cursor after it."""

    cursor: Cursor
    data: bytes


@define
class _Tick:
    """The state of all streams at one tick, which all watchers share, and the events that were encoded for it."""

    number: int
    cursor: Cursor
    levels: bytes
    events: dict[tuple[Cursor | None, bool], Batch]


class Feed:
    """Everything that the watchers of one page receive; see the module.

    ``levels`` returns the present values as JSON. ``interval`` is in seconds (default: 0.2).
    """

    def __init__(self, levels: Callable[[], Any], *, interval: float = INTERVAL) -> None:
        self.watchers = 0
        self._levels = levels
        self._interval = interval
        self._name = secrets.token_hex(4)
        self._streams: list[Source] = []
        self._tick: _Tick | None = None

    def attach(self, stream: Source) -> None:
        """Add a stream, before the first watcher comes. Its count and epoch are read after the levels."""
        self._streams.append(stream)

    # From a cursor to an event.

    def tick(self, number: int) -> None:
        """Fix what watchers receive until the next number: the positions of all streams, and the levels."""
        if self._tick is None or self._tick.number != number:
            levels = json.dumps(self._levels())
            positions = tuple((stream.epoch, stream.count) for stream in self._streams)
            self._tick = _Tick(number, Cursor(self._name, positions), levels, {})

    def levels(self) -> bytes | None:
        """Return the levels of the present tick, encoded."""
        return None if self._tick is None else self._tick.levels

    def since(self, cursor: Cursor | None, *, levels: bool = True) -> Batch | None:
        """Return the event for a watcher at this cursor (None: it has nothing), or None if there is nothing new.

        ``levels`` is whether it gets the levels, too.
        """
        tick = self._tick
        if tick is None:
            return None
        if cursor == tick.cursor and not levels:
            return None
        found = tick.events.get((cursor, levels))
        if found is None:
            found = tick.events[cursor, levels] = Batch(tick.cursor, self._document(tick, cursor, levels=levels))
        return found

    def _document(self, tick: _Tick, cursor: Cursor | None, *, levels: bool) -> bytes:
        parts = [b'"levels":%s,' % tick.levels] if levels else []
        streams: list[bytes] = []
        before: Sequence[Position | None] = [None] * len(self._streams)
        if cursor is not None and cursor.feed == self._name and len(cursor.positions) == len(self._streams):
            before = cursor.positions  # otherwise it is a cursor of another feed
        for stream, position, (epoch, until) in zip(self._streams, before, tick.cursor.positions, strict=True):
            # a cursor came from outside: it may be ahead
            resumed = position is not None and position[0] == epoch and position[1] <= until
            after = position[1] if position is not None and resumed else 0
            if until > after or not resumed:
                # one by one: hundreds of documents at once would keep the garbage collector busy
                items = [json.dumps(stream.encode(item)) for item in stream.between(after, until)]
                first = until - len(items) + 1
                head = b'%s:{"start":%s,"first":%d,"missed":%d,"count":%d,"items":['
                start = b"false" if resumed else b"true"
                numbers = (json.dumps(stream.name), start, first, first - 1 - after, until)
                streams.append(b"".join([head % numbers, b",".join(items), b"]}"]))
        return b"".join([b"{", *parts, b'"streams":{', b",".join(streams), b"}}"])

    # One watcher.

    async def serve(self, scope: Any, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        """Answer a request for the events until the watcher leaves; ``headers`` are added to the answer's."""
        start = [(b"content-type", b"text/event-stream;charset=utf-8"), (b"cache-control", b"no-store"), *headers]
        await send({"type": "http.response.start", "status": 200, "headers": start})
        if scope["method"] != "HEAD":
            self.watchers += 1
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                    await self._push(cursor_of(scope), send)
            finally:
                self.watchers -= 1
                if not self.watchers:
                    self._tick = None
        await send({"type": "http.response.body", "body": b""})

    async def _push(self, cursor: Cursor | None, send: Send) -> None:
        """Send each tick's event, from the first tick on. Watchers of one feed wake at the same moments."""
        await send({"type": "http.response.body", "body": b"retry: %d\n\n" % RETRY, "more_body": True})
        seen: bytes | None = None
        quiet = 0.0
        self.tick(self._number())
        while True:
            levels = self.levels()
            batch = self.since(cursor, levels=levels != seen)
            if batch is not None:
                event = b"id: %s\ndata: %s\n\n" % (str(batch.cursor).encode(), batch.data)
                cursor, seen, quiet = batch.cursor, levels, 0.0
                await send({"type": "http.response.body", "body": event, "more_body": True})
            elif quiet >= KEEP_ALIVE:
                quiet = 0.0
                await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
            pause = self._interval - anyio.current_time() % self._interval
            await anyio.sleep(pause)
            quiet += pause
            self.tick(self._number())

    def _number(self) -> int:
        return round(anyio.current_time() / self._interval)


async def _until_gone(receive: Receive, ends: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    ends.cancel()


def cursor_of(scope: Any) -> Cursor | None:
    """Return the cursor that a request names: its ``Last-Event-ID``, or else ``?after=``; None if it has none."""
    named = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"last-event-id"), None)
    if named is None:
        named = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("after", [""])[0]
    feed, *positions = named.split(".")
    found = [_POSITION.fullmatch(each) for each in positions]
    if not found or None in found:
        return None
    return Cursor(feed, tuple((int(each[1]), int(each[2])) for each in found if each is not None))
