"""The page of a receiver while it is served: its state twice a second, letters on request, and the command to requeue.

Everything runs in the event loop of the receiver, and is bounded: the inbox is asked for its numbers only while someone
watches, and less often if that takes long; one refused delivery at a time is explained, in a thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import Factory, asdict, field, frozen

from rbim.callbacks.diagnosis import explain
from rbim.cli.callback.letters import (
    Choice,
    headline,
    letter_body,
    letter_document,
    requeue_all,
    requeue_each,
    short_conversation,
)
from rbim.cli.callback.page.deliveries import Deliveries
from rbim.cli.page.app import Answer, LocalPageApp, new_token
from rbim.cli.page.points import PointHistory
from rbim.cli.page.server import LocalPageServer
from rbim.errors import InvalidRequest
from rbim.page.assets import Page
from rbim.page.events import Feed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping

    from rbim.callbacks.inbox.protocols import Archive, DeadLetter
    from rbim.callbacks.signature import Policy
    from rbim.cli.page.app import Call
    from rbim.credentials import Credentials
    from rbim.page.events import Stream

__all__ = ["CallbackPage", "PageFacts"]

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
