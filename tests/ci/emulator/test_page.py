"""What is pushed to the emulator's page, by plain sockets."""

import asyncio
import json

import pytest

from helpers.rawclient import ask, connected, http, signed
from rbim.emulator.server.server import serve
from rbim.page.assets import SECURITY_HEADERS


@pytest.fixture
async def server(emulator):
    async with serve(emulator) as server:
        yield server


class Control:
    """The control port, as an address."""

    def __init__(self, server):
        self.host = server.host
        self.port = int(server.control_url.split(":")[2].split("/")[0])


class Watcher:
    """A connection that reads events."""

    def __init__(self, raw):
        self.raw = raw
        self.text = b""

    async def event(self):
        """Return the next event's id and document."""
        while True:
            block, end, rest = self.text.partition(b"\n\n")
            if end:
                self.text = rest
                lines = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
                if b"data" in lines:
                    return lines[b"id"].decode(), json.loads(lines[b"data"])
                continue
            size = int(await self._line(), 16)
            self.text += await self.raw.body(size)
            await self._line()

    async def _line(self):
        line = b""
        while not line.endswith(b"\r\n"):
            part = await self.raw.body(1)
            assert part, "the events ended"
            line += part
        return line

    async def until(self, true):
        """Read events until one fulfils a condition; return all of them."""
        seen = []
        while not seen or not true(seen[-1][1]):
            seen.append(await self.event())
        return seen


async def watch(raw, query="", *headers):
    await raw.send(http("GET", f"/_emulator/events{query}", b"", *headers))
    status, head = await raw.head()
    assert (status, head["content-type"]) == (200, "text/event-stream;charset=utf-8")
    assert SECURITY_HEADERS.items() <= head.items()
    return Watcher(raw)


def requests_of(events):
    return [item for _, document in events for item in document["streams"].get("requests", {}).get("items", [])]


async def test_requests_are_pushed_on_both_ports_with_exact_counts(emulator, server):
    async with connected(server) as one, connected(Control(server)) as other:
        watchers = [await watch(one), await watch(other)]
        firsts = [await each.event() for each in watchers]
        assert [document["streams"]["requests"]["start"] for _, document in firsts] == [True, True]
        for number in range(30):
            await ask(server, signed(emulator, "CreateGroup", name=f"n{number}", type="1"))
        for each in watchers:
            seen = await each.until(lambda document: document.get("levels", {}).get("counts", {}).get("requests") == 30)
            items = requests_of(seen)
            assert [item["number"] for item in items] == list(range(1, 31))
            assert dict(items[7]["values"])["name"] == "n7"
            assert (items[0]["operation"], items[0]["account"], items[0]["code"]) == ("CreateGroup", "admin", "000000")


async def test_a_watcher_that_comes_back_gets_the_rest_and_after_a_clearing_a_fresh_start(emulator, server):
    async with connected(server) as raw:
        await ask(server, signed(emulator, "SearchPublicGroups"))
        last, document = await (await watch(raw)).event()
        assert document["streams"]["requests"]["count"] == 1
    await ask(server, signed(emulator, "SearchPublicGroups"))
    for query, headers in ((f"?after={last}", []), ("", [f"Last-Event-ID: {last}"])):
        async with connected(server) as raw:
            seen = await (await watch(raw, query, *headers)).until(lambda document: "requests" in document["streams"])
            assert not [each for _, document in seen for each in document["streams"].values() if each["start"]]
            assert [item["number"] for item in requests_of(seen)] == [2]
    emulator.requests.clear()
    for _ in range(5):
        await ask(server, signed(emulator, "SearchPublicGroups"))
    async with connected(server) as raw:
        seen = await (await watch(raw, f"?after={last}")).until(
            lambda document: document["streams"].get("requests", {}).get("start")
        )
        assert [item["number"] for item in requests_of(seen[-1:])] == [1, 2, 3, 4, 5]


async def test_the_server_ends_while_pages_are_open(emulator):
    async with serve(emulator) as server, connected(server) as raw:
        await (await watch(raw)).event()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and "serve" in repr(task)]
