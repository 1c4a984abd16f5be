"""The emulator's page in a browser: its files, and what is pushed to it.

Nothing is computed or copied for it while no one watches, but the latest exchanges are kept by reference. What is pushed is
the list of requests, and the levels: counters, the clock, and numbers that change when groups or deliveries do. The page
then asks the control interface for what it shows of them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

from rbim.emulator.clock import EmulatedClock
from rbim.emulator.exchanges import ExchangeLog
from rbim.emulator.server.commands import PREFIX, ControlContext, without_token
from rbim.operations.base import fields_of
from rbim.page.assets import Page, prefers_html
from rbim.page.events import Feed, Stream

if TYPE_CHECKING:
    from collections.abc import Hashable

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.emulator.request_log import RecordedRequest, RequestLog

__all__ = ["Console", "RequestStream"]

KEPT = 400  # requests that are pushed at once: up to 2,000 per second without a gap
MAX_VALUE = 160  # characters of a value in the list
FEW = 3  # entries of a list in the list
READING = ("GET", "HEAD")


class RequestStream:
    """The requests of a log as a stream of the page. The log does not know of it."""

    def __init__(self, log: RequestLog, encode: Any) -> None:
        self.name = "requests"
        self.encode = encode
        self.count = 0
        self.epoch = 0
        self._log = log

    def look(self) -> None:
        """Note how many requests there are by now, and how often the log was cleared."""
        self.count = self._log.count
        self.epoch = self._log.clears

    def between(self, after: int, until: int) -> list[RecordedRequest]:
        """Return the requests with numbers above ``after``, up to ``until``, of the latest."""
        records, dropped = self._log.records, self._log.count - len(self._log.records)
        first = max(after, until - KEPT, dropped)
        return records[first - dropped : max(until, dropped) - dropped]


class Console:
    """The page of one emulator, for all ports of its server."""

    def __init__(self, context: ControlContext) -> None:
        emulator = context.emulator
        if emulator.asgi.exchanges is None:
            emulator.asgi.exchanges = ExchangeLog()
        self._exchanges = emulator.asgi.exchanges
        self._context = context
        self._unanswered: list[RecordedRequest] = []
        self.feed = Feed(self._levels)
        self._requests = RequestStream(emulator.requests, self._encoded)
        self.feed.attach(self._requests)
        self._answers = Stream[tuple[int, float]]("answers", KEPT, list)
        self.feed.attach(self._answers)
        self._answers_of = self._requests.epoch  # the log as of which clearing
        self._page = Page("emulator", self.feed, prefix=PREFIX)

    def serves(self, scope: Scope, path: str) -> bool:
        """Return whether a request is for the page: at the prefix only that of a browser."""
        if path == PREFIX:
            return scope["method"] in READING and prefers_html(scope)
        return self._page.serves(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request for the page."""
        await self._page(scope, receive, send)

    def _levels(self) -> dict[str, Any]:
        """Return the counters and states that the page shows always."""
        self._exchanges.expand()
        self._requests.look()
        self._look_at_answers()
        context, emulator = self._context, self._context.emulator
        clock, state, copier = emulator.clock, emulator.state, emulator.copier
        emulated = isinstance(clock, EmulatedClock)
        counts = {
            "requests": emulator.requests.count,
            "groups": len(state.groups),
            "tasks": len(state.tasks),
            "deliveries": len(emulator.deliveries),
            "waiting": len(copier.queue),
            "faults": len(emulator.faults.counts),
            "copy_faults": len(emulator.copy_faults.counts),
        }
        target = copier.destination
        return {
            "counts": counts,
            "clock": clock.now().isoformat() if emulated else None,
            "copied": target is not None,
            "listening": context.listening,
            "control": context.control_url,
            "changes": [*counts.values(), context.changes, clock.monotonic() if emulated else 0, copier.changes],
        }

    def _look_at_answers(self) -> None:
        """Push the times of answers that were not there yet when their requests were."""
        if self._answers_of != self._requests.epoch:  # the numbers begin anew
            self._answers_of = self._requests.epoch
            self._unanswered.clear()
            self._answers.clear()
        waiting: list[RecordedRequest] = []
        for record in self._unanswered[-KEPT:]:
            exchange = self._exchanges.of(record)
            if exchange is None or exchange.took is None:
                waiting.append(record)
            else:
                self._answers.add((record.number, exchange.took))
        self._unanswered = waiting

    def _encoded(self, record: RecordedRequest) -> dict[str, Any]:
        """Return one request for the list; the page asks for the rest (``GET requests/{number}``)."""
        exchange = self._exchanges.of(record)
        took, response = (None, None) if exchange is None else (exchange.took, exchange.response)
        if took is None and response is not None:
            self._unanswered.append(record)
        op = record.operation
        item: dict[str, Any] = {
            "number": record.number,
            "at": record.at,
            "code": record.code,
            "effect": record.effect,
            "trouble": record.trouble,
            "attempt": record.attempt,
            "took": took,
            "status": None if response is None else response.status,
            "kept": exchange is not None,
        }
        if op is None:
            texts = [record.path[:MAX_VALUE]]
            item["path"] = texts[0]
        else:
            account = getattr(op, "user_name", None) or self._context.emulator.world.administrator
            values = [
                (name, _short(value))
                for name in _names_of(cast("Hashable", type(op)))
                if (value := getattr(op, name)) is not None
            ]
            item["operation"], item["account"], item["values"] = op.spec.name, account, values
            texts = [account, *[text for _, text in values]]
        token = self._context.emulator.credentials.app_token.reveal()
        if any(token in text for text in texts):
            item = without_token(self._context, item)
        return item


@cache
def _names_of(kind: Hashable) -> tuple[str, ...]:  # a class: mypy takes no attrs class for hashable
    """Return the names of the values of an operation."""
    return tuple(a.name for a in fields_of(cast("type[Any]", kind)) if a.name != "user_name")


def _short(value: object) -> str:
    if value.__class__ is str:  # nearly always
        whole: Any = value
        return whole if len(whole) <= MAX_VALUE else f"{whole[:MAX_VALUE]}…"
    if isinstance(value, tuple):
        several = cast("tuple[object, ...]", value)
        more = f" … ({len(several)})" if len(several) > FEW else ""
        return ", ".join(_short(each) for each in several[:FEW]) + more
    text = str(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"
