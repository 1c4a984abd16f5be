"""The events of a page: exact counts, bounded memory, watchers that leave, stop reading, or come back."""

import json
from types import SimpleNamespace

import anyio
import pytest

from helpers.tables import each_row
from rbim.page.events import Cursor, Feed, Stream, cursor_of

KEPT = 5
SOON = 0.01  # seconds between two ticks
ENOUGH = 5.0  # seconds: a test that waits longer has failed


@pytest.fixture
def made():
    encoded = []

    def encode(item):
        encoded.append(item)
        return {"item": item}

    levels = SimpleNamespace(value=None, calls=0)

    def read():
        levels.calls += 1
        return levels.value

    feed, stream = Feed(read, interval=SOON), Stream("calls", KEPT, encode)
    feed.attach(stream)
    return SimpleNamespace(feed=feed, stream=stream, encoded=encoded, levels=levels)


def taken(feed, cursor, number):
    """The document that a watcher at this cursor gets at a tick, and the cursor after it."""
    feed.tick(number)
    batch = feed.since(cursor, levels=False)
    return (None, cursor) if batch is None else (json.loads(batch.data), batch.cursor)


def items_of(document):
    return [each["item"] for each in document["streams"]["calls"]["items"]]


class Browser:
    """One watcher of a feed: it reads events until it leaves, or stops reading."""

    def __init__(self, feed, query="", headers=()):
        self.scope = {"type": "http", "method": "GET", "query_string": query.encode(), "headers": list(headers)}
        self.feed = feed
        self.events = []
        self.head = None
        self.ended = anyio.Event()
        self.leaves = anyio.Event()
        self.reads = anyio.Event()
        self.reads.set()
        self.came = anyio.Event()

    async def run(self):
        await self.feed.serve(self.scope, self.receive, self.send, [(b"x-of", b"page")])
        self.ended.set()

    async def receive(self):
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.head = message
        for block in message.get("body", b"").split(b"\n\n"):
            lines = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
            if b"data" in lines:
                self.events.append((lines[b"id"].decode(), json.loads(lines[b"data"])))
        came, self.came = self.came, anyio.Event()
        came.set()

    async def until(self, done):
        with anyio.fail_after(ENOUGH):
            while not done(self.events):
                await self.came.wait()


def test_nothing_is_encoded_or_read_while_no_one_watches(made):
    for number in range(1000):
        made.stream.add(number)
    assert (made.encoded, made.levels.calls, made.stream.count) == ([], 0, 1000)
    assert made.stream.between(0, 1000) == [995, 996, 997, 998, 999]


def test_a_new_watcher_gets_what_is_held_and_how_many_are_not(made):
    for number in range(1, 13):
        made.stream.add(number)
    document, cursor = taken(made.feed, None, 1)
    assert document["streams"]["calls"]["start"] is True
    assert items_of(document) == [8, 9, 10, 11, 12]
    assert {name: document["streams"]["calls"][name] for name in ("first", "missed", "count")} == {
        "first": 8,
        "missed": 7,
        "count": 12,
    }
    assert taken(made.feed, cursor, 2) == (None, cursor)


def test_a_watcher_that_comes_back_gets_the_rest_without_a_gap(made):
    made.stream.add(1)
    _, cursor = taken(made.feed, None, 1)
    made.stream.add(2)
    made.stream.add(3)
    again = cursor_of({"headers": [], "query_string": f"after={cursor}".encode()})
    document, cursor = taken(made.feed, again, 2)
    assert document == {
        "streams": {"calls": {"start": False, "first": 2, "missed": 0, "count": 3, "items": [{"item": 2}, {"item": 3}]}},
    }
    for number in range(4, 14):
        made.stream.add(number)
    document, _ = taken(made.feed, cursor, 3)
    assert (items_of(document), document["streams"]["calls"]["missed"]) == ([9, 10, 11, 12, 13], 5)


@pytest.mark.parametrize("other", ["feed", "ahead", "streams", "cleared"])
def test_a_cursor_that_is_not_a_position_starts_anew(made, other):
    made.stream.add(1)
    _, cursor = taken(made.feed, None, 1)
    if other == "cleared":
        made.stream.clear()
        made.stream.add(2)
    wrong = {
        "feed": Cursor("elsewhere", cursor.positions),
        "ahead": Cursor(cursor.feed, ((0, 2),)),
        "streams": Cursor(cursor.feed, ((0, 1), (0, 1))),
        "cleared": cursor,
    }[other]
    document, _ = taken(made.feed, wrong, 2)
    assert (document["streams"]["calls"]["start"], items_of(document)) == (True, [2 if other == "cleared" else 1])


@pytest.mark.parametrize("cleared", ["calls", "points"])
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_stream_that_is_cleared_starts_anew_and_the_other_goes_on(made, cleared, comes_back):
    points = Stream("points", KEPT, lambda item: {"item": item})
    made.feed.attach(points)
    streams = {"calls": made.stream, "points": points}
    for stream in streams.values():
        stream.add(1)
        stream.add(2)
    _, cursor = taken(made.feed, None, 1)
    kept = streams.pop(cleared)
    kept.clear()
    kept.add(7)
    (other, stream), *_ = streams.items()
    if comes_back:
        stream.add(3)
        cursor = cursor_of({"headers": [(b"last-event-id", str(cursor).encode())], "query_string": b""})
    document, cursor = taken(made.feed, cursor, 2)
    anew = {"start": True, "first": 1, "missed": 0, "count": 1, "items": [{"item": 7}]}
    on = {"start": False, "first": 3, "missed": 0, "count": 3, "items": [{"item": 3}]}
    assert document["streams"] == {cleared: anew} | ({other: on} if comes_back else {})
    assert taken(made.feed, cursor, 3) == (None, cursor)
    kept.clear()  # also a start without items is told
    document, _ = taken(made.feed, cursor, 4)
    assert document["streams"] == {cleared: {"start": True, "first": 1, "missed": 0, "count": 0, "items": []}}


@each_row(
    "text",
    [
        *("", "x", "abc.", "abc.1", "abc.-1", "abc.1-", "abc.0-1.x", "abc.0-²", "abc.0-9999999999999999999999"),
        *("abc.9999999999999999999999-0", "a" * 10_000, ".", "abc.0-1 ", "abc.0-1-2", "abc.0--1"),
    ],
)
def test_an_id_that_is_none_is_no_cursor(text):
    assert cursor_of({"headers": [(b"last-event-id", text.encode("latin-1", "replace"))], "query_string": b""}) is None


async def test_items_arrive_in_order_and_exactly_once_with_the_levels_when_they_change(made):
    made.levels.value = {"rate": 1}
    browser = Browser(made.feed)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(browser.run)
        await browser.until(lambda events: len(events) == 1)
        for number in range(1, 4):
            made.stream.add(number)
            await browser.until(lambda events, number=number: len(events) == 1 + number)
        made.levels.value = {"rate": 2}
        await browser.until(lambda events: len(events) == 5)
        browser.leaves.set()
        with anyio.fail_after(ENOUGH):
            await browser.ended.wait()
    documents = [document for _, document in browser.events]
    assert [items_of(each) for each in documents[1:4]] == [[1], [2], [3]]
    assert [each.get("levels") for each in documents] == [{"rate": 1}, None, None, None, {"rate": 2}]
    assert [each["streams"].get("calls", {}).get("start") for each in documents] == [True, False, False, False, None]
    assert dict(browser.head["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert dict(browser.head["headers"])[b"x-of"] == b"page"
    assert made.feed.watchers == 0
    assert browser.events[1][0].endswith(".0-1")


async def test_a_watcher_that_does_not_read_costs_the_others_nothing_and_is_told_what_it_missed(made):
    stuck, other = Browser(made.feed), Browser(made.feed)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stuck.run)
        tasks.start_soon(other.run)
        await stuck.until(lambda events: len(events) == 1)
        await other.until(lambda events: len(events) == 1)
        stuck.reads = anyio.Event()
        sent = 0
        while sent < 10 * KEPT:
            sent += 1
            made.stream.add(sent)
            await other.until(lambda events, sent=sent: events[-1][1]["streams"].get("calls", {}).get("count") == sent)
        assert len(stuck.events) == 1
        assert len(made.stream.between(0, sent)) == KEPT
        assert len(made.feed._tick.events) <= 2
        stuck.reads.set()
        await stuck.until(lambda events: events[-1][1]["streams"]["calls"]["count"] == sent)
        stuck.leaves.set()
        other.leaves.set()
    seen = [number for _, document in stuck.events[1:] for number in items_of(document)]
    missed = sum(document["streams"]["calls"]["missed"] for _, document in stuck.events)
    assert len(seen) + missed == sent
    assert missed > 0
    assert seen == sorted(set(seen))
    assert [number for _, document in other.events for number in items_of(document)] == list(range(1, sent + 1))
