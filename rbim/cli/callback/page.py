"""The page of a receiver while it is served: its state twice a second, letters on request, and the command to requeue.

Everything runs in the event loop of the receiver, and is bounded: the inbox is asked for its numbers only while someone
watches, and less often if that takes long; one refused delivery at a time is explained, in a thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter, OrderedDict, deque
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from attrs import Factory, asdict, define, field, frozen

from rbim._support.json_values import json_values
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.diagnosis import explain
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
from rbim.cli.callback.letters import (
    Choice,
    headline,
    letter_body,
    letter_document,
    requeue_all,
    requeue_each,
    short_conversation,
)
from rbim.cli.page.app import Answer, LocalPageApp, new_token
from rbim.cli.page.points import PointHistory
from rbim.cli.page.server import LocalPageServer
from rbim.errors import InvalidRequest
from rbim.page.assets import Page
from rbim.page.events import Feed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping, MutableMapping

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.callbacks.inbox.protocols import Archive, DeadLetter
    from rbim.callbacks.signature import Policy
    from rbim.cli.page.app import Call
    from rbim.credentials import Credentials
    from rbim.observers import Observation
    from rbim.page.events import Stream

__all__ = ["KEPT", "CallbackPage", "Deliveries", "PageFacts"]

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
class _Seen:
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
    headers: list[tuple[bytes, bytes]] = field(factory=list[tuple[bytes, bytes]], eq=False)
    body: bytes | None = field(default=None, eq=False)

    def document(self) -> dict[str, Any]:
        """Return it as JSON, without headers and body."""
        found: dict[str, Any] = json_values(self)
        found["ms"], found["type"] = round(found.pop("elapsed") * 1000, 1), found.pop("msg_type")
        return found


@define(eq=False)
class _Counters:
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


_current: ContextVar[_Seen | None] = ContextVar("rbim_delivery_seen", default=None)


class Deliveries:
    """The deliveries that :meth:`watched` sees, and what :meth:`observe` hears of them, as streams of a feed.

    :meth:`watched` wraps the receiver's application, and sees each request and the status of its answer; the observations
    tell the rest: why it was refused, and how its event was handled later. All is in bounded memory.
    The stream ``deliveries`` has each at the end of its request, ``changes`` each change of its event after that.
    """

    def __init__(
        self, feed: Feed, monotonic: Callable[[], float], now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.counters = _Counters()
        self._monotonic = monotonic
        self._now = now
        self._stream: Stream[_Seen] = feed.stream("deliveries", KEPT, _Seen.document)
        self._changes: Stream[dict[str, Any]] = feed.stream("changes", KEPT, dict)
        self._by_key: OrderedDict[str, deque[_Seen]] = OrderedDict()  # an event may be delivered again
        self._results: OrderedDict[str, _Result] = OrderedDict()  # a handler may end before the answer to the delivery
        self._refused: deque[_Seen] = deque(maxlen=KEPT_REFUSED)
        self._recent: deque[float] = deque()

    def rate(self) -> float:
        """Return the deliveries per second of the last ten seconds."""
        now = self._monotonic()
        while self._recent and self._recent[0] < now - WINDOW:
            self._recent.popleft()
        return len(self._recent) / WINDOW

    def refused(self, number: int) -> _Seen | None:
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
            seen, began, parts = _Seen(self.counters.deliveries, self._now()), self._monotonic(), _Parts()

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

    def _ended(self, seen: _Seen, scope: Scope, body: bytes | None) -> None:
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


POINTS = 600
DRAWN = ("accepted", "refused", "unavailable", "handled", "failed")
EVERY = 1.0  # seconds between two points of the charts
SHORTEST_PAUSE = 2.0  # seconds between two questions to the inbox
SHARE = 20  # the inbox is asked for at most one part in so many of the time
LETTERS = 100  # on one page of the list
MOST_COUNTED = 20_000  # letters of which the reasons are counted
MOST_OF_PROBLEM = 300  # characters
LARGEST = 2**63 - 1  # what an inbox can hold as the number of a letter
GRACE = 0.5  # seconds that watchers have to receive the end
UNREADABLE = (sqlite3.Error, OSError, RuntimeError)
"""What an inbox raises that cannot be read now: a locked file, servers that are not there, a sink that restarts."""


@frozen(kw_only=True)
class PageFacts:
    """What the page shows of the command: the inbox and its kind, the address, and by what events are handled."""

    inbox: str
    kind: str
    url: str = ""
    mode: str
    handling: tuple[str, ...]


@frozen(kw_only=True, eq=False)
class CallbackPage:
    """The page of one receiver. ``archive`` is its inbox, which the receiver has entered."""

    facts: PageFacts
    archive: Archive
    credentials: tuple[Credentials, ...]
    policy: Policy
    monotonic: Callable[[], float] = time.monotonic
    _levels: dict[str, Any] = field(init=False, factory=dict[str, Any])
    _feed: Feed = field(init=False, default=Factory(lambda self: Feed(self._present), takes_self=True))
    deliveries: Deliveries = field(
        init=False, default=Factory(lambda self: Deliveries(self._feed, self.monotonic), takes_self=True)
    )
    _explaining: asyncio.Lock = field(init=False, factory=asyncio.Lock)

    def _present(self) -> dict[str, Any]:
        counters = asdict(self.deliveries.counters)
        return {**asdict(self.facts), **self._levels, "counters": counters, "rate": self.deliveries.rate()}

    @asynccontextmanager
    async def serving(self, url: str) -> AsyncGenerator[str]:
        """Serve the page while the block runs, for a receiver at ``url``; gives its address, with the token."""
        token = new_token()
        points = PointHistory(self._feed.stream("points", POINTS + 1, dict), POINTS)
        end: Stream[dict[str, Any]] = self._feed.stream("end", 1, dict)
        self._levels["url"] = url
        routes = {
            ("GET", "/letters"): self._letters,
            ("GET", "/letter"): self._letter,
            ("GET", "/reasons"): self._reasons,
            ("GET", "/refused"): self._refused,
            ("POST", "/requeue"): self._requeue,
        }
        app = LocalPageApp(Page("callback", self._feed), token, routes=routes)
        async with LocalPageServer(app) as server:
            tasks = [asyncio.create_task(self._draw(points)), asyncio.create_task(self._ask())]
            try:
                yield f"http://127.0.0.1:{server.port}/#{token}"
            finally:
                for task in tasks:
                    task.cancel()
                end.add({})
                if self._feed.watchers:
                    await asyncio.sleep(GRACE)
                self._feed.close()

    async def _draw(self, points: PointHistory) -> None:
        before = asdict(self.deliveries.counters)
        while True:
            await asyncio.sleep(EVERY)
            now = asdict(self.deliveries.counters)
            changed = {name: now[name] - before[name] for name in DRAWN}
            before = now
            points.add({**changed, "in_work": now["in_work"], "waiting": self._levels.get("waiting")})

    async def _ask(self) -> None:
        """Ask the inbox for its numbers, while someone watches; less often if twice in a row that takes long."""
        before = 0.0
        while True:
            began, pause = self.monotonic(), SHORTEST_PAUSE
            if self._feed.watchers:
                try:
                    counts, lag = await self.archive.counts(), round(await self.archive.lag(), 1)
                    self._levels.update(counts=asdict(counts), waiting=counts.waiting, lag=lag, problem="")
                    took = self.monotonic() - began
                    pause = max(pause, (SHARE - 1) * min(before, took))  # one alone may have waited for a server
                    before = took
                except UNREADABLE as error:
                    problem = f"{type(error).__name__}: {error}"[:MOST_OF_PROBLEM]
                    self._levels.update(counts=None, waiting=None, lag=None, problem=problem)
            await asyncio.sleep(pause if self._feed.watchers else EVERY / 4)

    # Answers to requests.

    async def _letters(self, call: Call) -> Answer:
        """Return the next dead letters, or events in quarantine; ``reason``: only those with this first line of an error."""
        choice, reason, at = _choice(call.query), call.query.get("reason"), call.whole_number("after")
        found: list[DeadLetter] = []
        with _readable():
            while len(found) <= LETTERS and (page := await choice.page(self.archive, at)):
                found += [each for each in page if reason is None or headline(each.error) == reason]
                at = page[-1].number
        return Answer.of({"letters": [_shown(each) for each in found[:LETTERS]], "more": len(found) > LETTERS})

    async def _letter(self, call: Call) -> Answer:
        """Return one letter, with its whole error and its body."""
        with _readable():
            letter = await self.archive.event(call.whole_number("number"))
        if letter is None:
            raise InvalidRequest("it is not there any more", field="number")
        body = letter_body(letter.body)
        text = None if body is not None else letter.body.decode("utf-8", "backslashreplace")
        return Answer.of({**_shown(letter), "body": body, "text": text})

    async def _reasons(self, call: Call) -> Answer:
        """Return how many letters have which first line of an error, the most first; of the oldest 20,000."""
        choice, counts, at = _choice(call.query), Counter[str](), 0
        with _readable():
            while counts.total() < MOST_COUNTED and (page := await choice.page(self.archive, at)):
                counts.update(headline(each.error) for each in page)
                at = page[-1].number
        return Answer.of(
            {
                "reasons": [{"reason": reason, "events": count} for reason, count in counts.most_common(50)],
                "counted": counts.total(),
                "others": len(counts) - min(50, len(counts)),
            }
        )

    async def _refused(self, call: Call) -> Answer:
        """Return why a delivery was refused."""
        seen = self.deliveries.refused(call.whole_number("number"))
        if seen is None or seen.body is None:
            return Answer.of({"finding": None})
        look = partial(explain, seen.headers, seen.body, credentials=self.credentials, now=seen.at, policy=self.policy)
        async with self._explaining:
            finding = await asyncio.to_thread(look)
        return Answer.of({"finding": finding.text})

    async def _requeue(self, call: Call) -> Answer:
        """Let one letter, or all with a reason, be handled again."""
        choice, number, reason = _choice(call.document), call.document.get("number"), call.document.get("reason")
        if (number is None) == (reason is None):
            raise InvalidRequest("give a number or a reason", field="number")
        if not (number is None or (type(number) is int and 0 <= number <= LARGEST)):  # True is an int, too
            raise InvalidRequest(f"number: must be a whole number, 0 to {LARGEST}, not {number!r:.100}", field="number")
        if not (reason is None or isinstance(reason, str)):
            raise InvalidRequest(f"reason: must be a text, not {reason!r:.100}", field="reason")
        with _readable():
            if number is None:
                count, left = await requeue_all(choice, self.archive, lambda each: headline(each.error) == reason)
            elif (letter := await self.archive.event(number)) is not None:
                count, left = await requeue_each(choice, self.archive, [letter])
            else:
                raise InvalidRequest("it is not there any more", field="number")
        return Answer.of({"events": count, "left": list(left)})


def _choice(values: Mapping[str, Any]) -> Choice:
    kind = str(values.get("kind", "dead"))
    if kind not in {"dead", "quarantine"}:
        raise InvalidRequest("kind: use dead or quarantine", field="kind")
    return Choice(quarantine=kind == "quarantine")


def _shown(letter: DeadLetter) -> dict[str, Any]:
    return {**letter_document(letter), "conversation": short_conversation(letter), "headline": headline(letter.error)}


@contextmanager
def _readable() -> Generator[None]:
    """Raise InvalidRequest if the inbox cannot be read or written in the block."""
    try:
        yield
    except UNREADABLE as error:
        raise InvalidRequest(f"the inbox cannot be used now: {error}", field="inbox") from None
