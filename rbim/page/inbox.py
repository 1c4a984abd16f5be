"""The page of an inbox, while it is used or long after: it only reads, but for requeue and discard."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import asdict

from rbim._support.text import headline
from rbim.callbacks.events import document_of
from rbim.errors import CallbackRejected, InvalidRequest
from rbim.page.server import FilePage, PageResponse, RestingAnswer

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from rbim.callbacks.inbox.protocols import StoredEvent
    from rbim.callbacks.inbox.stored import Archive
    from rbim.page.server import Handler, PageRequest

__all__ = ["inbox_page"]

SLOTS = 60  # points of the chart
LISTED = 100  # events that one answer lists
STEP = 500  # events that one question to the inbox reads
SEARCH_LASTS = 2.0  # seconds, after which the list goes on with another request
MOST_COUNTED = 20_000  # letters of which the errors are counted
REASONS = 50
MOST_OF_ERROR = 300  # characters
STATES = ("waiting", "done", "dead", "quarantined")
LETTERS = ("dead", "quarantined")
LARGEST = 2**63 - 1  # the largest number of an event
UNREADABLE = (sqlite3.Error, OSError, RuntimeError)
"""What an inbox raises that cannot be read now: a locked or deleted file, a database that is not there."""


def inbox_page(inbox: Archive, name: str) -> FilePage:
    """Return the page of an inbox, which must be entered while it is served; ``name`` is what its user calls it."""
    answers = _InboxAnswers(inbox, name)
    routes: dict[tuple[str, str], Handler] = {
        ("GET", "/state"): answers.state,
        ("GET", "/events"): answers.events,
        ("GET", "/event"): answers.event,
        ("GET", "/reasons"): answers.reasons,
        ("POST", "/requeue"): answers.requeue,
        ("POST", "/discard"): answers.discard,
    }
    return FilePage("inbox", routes)


class _InboxAnswers:
    def __init__(self, inbox: Archive, name: str) -> None:
        self._inbox = inbox
        self._name = name
        self.state = RestingAnswer(self._state)

    async def _state(self) -> PageResponse:
        """Return the numbers of events by state, how old the oldest waiting one is, and the deliveries over time."""
        with _readable():
            counts, lag = asdict(await self._inbox.counts()), await self._inbox.lag()
            received = await self._inbox.received()
        return PageResponse.of({"inbox": self._name, "counts": counts, "lag": round(lag, 1), "chart": _chart(received)})

    async def events(self, call: PageRequest) -> PageResponse:
        """Return events, the newest first: of one state, with one headline of their error, or with a text anywhere."""
        state, reason = call.query.get("state") or None, call.query.get("reason")
        if state not in {None, *STATES}:
            raise InvalidRequest(f"state: use {', '.join(STATES)}", field="state")
        text = call.query.get("text", "").strip().lower().encode()
        before, found = call.number("before") or LARGEST, list[dict[str, Any]]()
        more, latest = True, time.monotonic() + SEARCH_LASTS
        with _readable():
            while more and len(found) < LISTED and time.monotonic() < latest:
                page = await self._inbox.newest(STEP if text or reason is not None else LISTED, before, state=state)
                more = bool(page)
                for event in page:
                    before = event.number
                    if (reason is None or headline(event.error) == reason) and text in _searched(event):
                        found.append(_shown(event))
                        if len(found) == LISTED:
                            break
        return PageResponse.of({"rows": found, "more": more and before > 1, "before": before})

    async def event(self, call: PageRequest) -> PageResponse:
        """Return one event, with its whole error and its body."""
        event = await self._numbered(call.number("number"))
        body = _document(event.body)
        text = None if body is not None else event.body.decode("utf-8", "backslashreplace")
        return PageResponse.of({**_shown(event), "error": event.error, "body": body, "text": text})

    async def _numbered(self, number: int) -> StoredEvent:
        with _readable():
            found = await self._inbox.newest(1, number + 1)
        if not found or found[0].number != number:
            raise InvalidRequest("it is not there any more", field="number")
        return found[0]

    async def reasons(self, call: PageRequest) -> PageResponse:
        """Return how many dead letters, or events in quarantine, have which headline of an error, the most first.

        They are counted among the newest 20,000.
        """
        state, counts, before = _letters_of(call.query), Counter[str](), LARGEST
        page: list[StoredEvent] = []
        with _readable():
            while counts.total() < MOST_COUNTED and (page := await self._inbox.newest(STEP, before, state=state)):
                counts.update(headline(each.error) for each in page)
                before = page[-1].number
        listed = [{"reason": reason, "events": count} for reason, count in counts.most_common(REASONS)]
        return PageResponse.of(
            {"reasons": listed, "counted": counts.total(), "others": len(counts) - len(listed), "more": bool(page)}
        )

    async def requeue(self, call: PageRequest) -> PageResponse:
        """Let one letter, or all with an error, be handled again; return how many, and how many cannot be."""
        return await self._act(call, discard=False)

    async def discard(self, call: PageRequest) -> PageResponse:
        """Delete one letter, or all with an error; return how many."""
        return await self._act(call, discard=True)

    async def _act(self, call: PageRequest, *, discard: bool) -> PageResponse:
        state, number, reason = _letters_of(call.document), call.document.get("number"), call.document.get("reason")
        if (number is None) == (reason is None):
            raise InvalidRequest("give a number or a reason", field="number")
        if not (number is None or (type(number) is int and 0 <= number < LARGEST)):  # True is an int, too
            raise InvalidRequest(f"number: must be a whole number, not {number!r:.100}", field="number")
        if not (reason is None or isinstance(reason, str)):
            raise InvalidRequest(f"reason: must be a text, not {reason!r:.100}", field="reason")
        act = self._inbox.discard if discard else self._inbox.requeue
        asked = done = 0
        if number is not None:
            asked = 1
            if (await self._numbered(number)).state == state:
                with _readable():
                    done = await act([number])
        else:
            before = LARGEST
            with _readable():
                while page := await self._inbox.newest(STEP, before, state=state):
                    before = page[-1].number
                    numbers = [each.number for each in page if headline(each.error) == reason]
                    asked, done = asked + len(numbers), done + await act(numbers)
        self.state.rest_until = 0.0  # the next answer about the state has these
        return PageResponse.of({"events": done, "left": asked - done})


def _letters_of(values: Mapping[str, Any]) -> str:
    state: Any = values.get("state")
    if state not in LETTERS:
        raise InvalidRequest(f"state: use {' or '.join(LETTERS)}", field="state")
    return str(state)


def _document(body: bytes) -> dict[str, Any] | None:
    try:
        return document_of(body)
    except CallbackRejected:
        return None


def _searched(event: StoredEvent) -> bytes:
    """Return all text of an event in which a search looks, in lower case."""
    about = f"\n{event.number}\n{event.key}\n{event.conversation}\n{event.msg_type}\n{event.error}"
    return (event.body + about.encode("utf-8", "surrogatepass")).lower()


def _shown(event: StoredEvent) -> dict[str, Any]:
    """Return what a list shows of an event."""
    document = _document(event.body) or {}
    fields = {name: document.get(name) for name in ("msgId", "fromAccount", "to")}
    alone = event.conversation == event.key
    return {
        **{name: getattr(event, name) for name in ("number", "key", "app_id", "attempts", "msg_type", "state")},
        **{name: "" if value is None else str(value)[:MOST_OF_ERROR] for name, value in fields.items()},
        "received": event.received.isoformat(),
        "conversation": "" if alone else event.conversation.removeprefix(f"{event.app_id}/"),
        "headline": headline(event.error)[:MOST_OF_ERROR],
        "size": len(event.body),
    }


def _chart(received: list[tuple[float, str]]) -> dict[str, Any] | None:
    """Return the numbers of events by state in equal parts of the time in which they were received; None without any."""
    if not received:
        return None
    times = [at for at, _ in received]
    first, last = min(times), max(times)
    step = max((last - first) / SLOTS, 0.1)
    points = [dict.fromkeys(map(str, STATES), 0) for _ in range(int((last - first) / step) + 1)]
    for at, state in received:
        points[int((at - first) / step)][state] += 1
    return {"first": first, "step": step, "events": len(received), "points": points}


@contextmanager
def _readable() -> Generator[None]:
    """Raise InvalidRequest if the inbox cannot be read or written in the block."""
    try:
        yield
    except UNREADABLE as error:
        raise InvalidRequest(f"the inbox cannot be used now: {error}", field="inbox") from None
