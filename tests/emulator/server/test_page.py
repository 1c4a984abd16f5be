"""The emulator's page without a browser: who gets it, on both ports, behind the guard, and what is pushed to it."""

import asyncio
import json

import pytest

from helpers.emulators import client_of
from helpers.rawclient import JSON, ask, connected, http, signed
from rbim import GroupType
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.exchanges import FEW
from rbim.emulator.faults.requests import Fault, Latency
from rbim.emulator.server.commands import ABOUT, ControlContext
from rbim.emulator.server.console import KEPT, Console
from rbim.emulator.server.server import serve
from rbim.page.assets import SECURITY_HEADERS

BROWSER = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def emulator():
    return Emulator(clock=EmulatedClock())


@pytest.fixture
async def server(emulator):
    async with serve(emulator) as server:
        yield server


class Control:
    """The control port, as an address."""

    def __init__(self, server):
        self.host = server.host
        self.port = int(server.control_url.split(":")[2].split("/")[0])


def both(server):
    return [server, Control(server)]


async def test_a_browser_gets_the_page_and_a_program_the_document_on_both_ports(server):
    for port in both(server):
        page = await ask(port, http("GET", "/_emulator/", b"", BROWSER))
        assert (page.status, page.headers["content-type"]) == (200, "text/html;charset=utf-8")
        assert page.headers["vary"] == "accept"
        assert b'<script type="module" src="static/emulator/main.js">' in page.body
        for headers in ([], ["Accept: */*"], ["Accept: application/json"], ["Accept: application/json, text/html"]):
            answer = await ask(port, http("GET", "/_emulator/", b"", *headers))
            assert (answer.document["about"], answer.headers["vary"]) == (ABOUT, "accept")


async def test_the_root_leads_a_browser_to_the_page_and_answers_a_program_as_ever(server):
    for port in both(server):
        led = await ask(port, http("GET", "/", b"", BROWSER))
        assert (led.status, led.headers["location"]) == (303, "_emulator/")
    assert (await ask(server, http("GET", "/"))).document["statusCode"] == "900400"
    assert "statusCode" in (await ask(server, http("POST", "/", b"", BROWSER))).document
    assert (await ask(Control(server), http("GET", "/"))).status == 404


async def test_every_answer_below_the_prefix_has_the_headers_that_keep_it_to_itself(server):
    asked = [
        http("GET", "/_emulator/", b"", BROWSER),
        http("GET", "/_emulator/"),
        http("GET", "/_emulator/state"),
        http("GET", "/_emulator/nothing"),
        http("DELETE", "/_emulator/state", b"", JSON),
        http("POST", "/_emulator/reset"),
        http("GET", "/_emulator/static/parts/page.css"),
        http("GET", "/_emulator/static/nothing"),
        http("POST", "/_emulator/static/parts/page.css", b"", JSON),
        http("POST", "/_emulator/events", b"", JSON),
        http("GET", "/", b"", BROWSER),
        http("GET", "/_emulator/", b"", BROWSER, "Sec-Fetch-Site: cross-site"),
        http("GET", "/favicon.ico"),
    ]
    statuses = []
    for port in both(server):
        for request in asked:
            answer = await ask(port, request)
            assert SECURITY_HEADERS.items() <= answer.headers.items(), request
            assert not [name for name in answer.headers if name.startswith("access-control")]
            statuses.append(answer.status)
    assert statuses == [200, 200, 200, 404, 405, 415, 200, 404, 405, 405, 303, 403, 404] * 2


@pytest.mark.parametrize("path", ["/", "/_emulator/", "/_emulator/events", "/_emulator/static/emulator/main.js"])
@pytest.mark.parametrize(
    "header", ["Origin: http://evil.test", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: null"]
)
async def test_pages_of_other_servers_get_nothing_of_the_page(server, path, header):
    for port in both(server):
        assert (await ask(port, http("GET", path, b"", BROWSER, header))).status == 403
        foreign = http("GET", path, b"", BROWSER).replace(b"localhost", b"evil.test")
        assert (await ask(port, foreign)).status == 403


async def test_without_control_there_is_no_page(emulator):
    async with serve(emulator, control=False) as server:
        assert (await ask(server, http("GET", "/", b"", BROWSER))).document["statusCode"] == "900400"
        assert (await ask(server, http("GET", "/_emulator/", b"", BROWSER))).document["statusCode"] == "900400"
    assert emulator.asgi.exchanges is None


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


def answers_of(events):
    return [item for _, document in events for item in document["streams"].get("answers", {}).get("items", [])]


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


async def test_the_time_of_a_late_answer_is_pushed_when_it_is_there(emulator, server):
    emulator.faults.add(Fault(effect=Latency(90)))
    async with connected(server) as raw, connected(server) as client:
        watcher = await watch(raw)
        await client.send(signed(emulator, "SearchPublicGroups"))
        seen = await watcher.until(lambda document: document["streams"].get("requests", {}).get("count") == 1)
        assert requests_of(seen)[0]["took"] is None
        await emulator.advance(90)
        seen = await watcher.until(lambda document: "answers" in document["streams"])
        assert seen[-1][1]["streams"]["answers"]["items"] == [[1, 90.0]]


@pytest.mark.parametrize("answered", [True, False])
async def test_answers_of_a_log_that_was_cleared_are_not_those_of_new_requests(emulator, server, answered):
    emulator.faults.add(Fault(effect=Latency(90)))
    async with connected(server) as raw, connected(server) as client:
        watcher = await watch(raw)
        await client.send(signed(emulator, "SearchPublicGroups"))
        await watcher.until(lambda document: document["streams"].get("requests", {}).get("count") == 1)
        if answered:
            await emulator.advance(90)
            await watcher.until(lambda document: "answers" in document["streams"])
        await ask(server, http("POST", "/_emulator/reset", b"", JSON))
        if not answered:
            await emulator.advance(90)
            assert (await client.head())[0] == 200  # the old answer leaves now
        await emulator.advance(1)
        now = emulator.clock.now().isoformat()
        seen = await watcher.until(lambda document: document.get("levels", {}).get("clock") == now)
        assert answers_of(seen) == []
        emulator.faults.clear()
        await ask(server, signed(emulator, "SearchPublicGroups"))
        seen = await watcher.until(lambda document: document["streams"].get("requests", {}).get("count") == 1)
        assert answers_of(seen) == []
        async with connected(server) as other:
            seen = await (await watch(other)).until(lambda document: "requests" in document["streams"])
            assert [item["number"] for item in requests_of(seen)] == [1]
            assert answers_of(seen) == []


async def test_a_watcher_that_reads_nothing_holds_up_no_one_and_keeps_no_memory(emulator, server):
    async with connected(server) as stuck, connected(server) as client:
        await stuck.send(http("GET", "/_emulator/events"))
        for _ in range(3 * KEPT):
            assert (await client.ask(signed(emulator, "SearchPublicGroups"))).status == 200
        assert emulator.requests.count == 3 * KEPT
        async with connected(server) as other:
            all_of_them = lambda document: document["streams"].get("requests", {}).get("count") == 3 * KEPT  # noqa: E731
            parts = [each["streams"]["requests"] for _, each in await (await watch(other)).until(all_of_them)]
            assert all(len(part["items"]) <= KEPT for part in parts)
            assert sum(len(part["items"]) + part["missed"] for part in parts) == 3 * KEPT
            assert parts[0]["missed"] > 0


async def test_nothing_is_computed_before_someone_watches_and_nothing_afterwards(emulator):
    console = Console(ControlContext(emulator, None, sign_copies=False, remote_copies=False))
    encoded = []
    encode = console._requests.encode
    console._requests.encode = lambda record: encoded.append(record) or encode(record)
    async with client_of(emulator) as client:
        for _ in range(3):
            await client.groups.create(name="a", type=GroupType.TEMPORARY)
    assert (encoded, console._requests.count, console.feed._tick) == ([], 0, None)
    assert len(emulator.asgi.exchanges._slots) == FEW
    assert [each for each in emulator.asgi.exchanges._slots if each] == []  # its transport keeps none
    console.feed.tick(1)
    batch = console.feed.since(None)
    assert (len(encoded), json.loads(batch.data)["streams"]["requests"]["count"]) == (3, 3)


@pytest.mark.parametrize("limit", [None, 20])
async def test_a_cleared_log_is_noticed_however_many_requests_followed(emulator, limit):
    emulator.requests.limit = limit
    console = Console(ControlContext(emulator, None, sign_copies=False, remote_copies=False))
    starts = []
    cursor = None
    for number, count in enumerate((5, 3, 30, 60, 60)):
        for _ in range(count):
            emulator.platform.serve("POST", "/", {}, {}, b"")
        console.feed.tick(number)
        batch = console.feed.since(cursor)
        starts.append(json.loads(batch.data)["streams"]["requests"]["start"])
        cursor = batch.cursor
        if number < 3:
            emulator.requests.clear()
    assert starts == [True, True, True, True, False]  # the last ones follow without a clearing
    assert cursor.positions[0] == (3, 120)


async def test_values_in_the_list_are_short_and_without_the_token():
    from helpers.credentials import TOKEN
    from helpers.emulators import box

    emulator = box()
    console = Console(ControlContext(emulator, None, sign_copies=False, remote_copies=False))
    members = [f"{number:032}" for number in range(40)]
    async with serve(emulator) as server:
        await ask(server, signed(emulator, "InviteJoinGroup", groupId=TOKEN, members=members, confirm="0"))
        await ask(server, http("POST", f"/{TOKEN}/{'x' * 5000}"))
    console.feed.tick(1)
    data = console.feed.since(None).data
    assert TOKEN.encode() not in data
    assert len(data) < 2500
    invite, unknown = json.loads(data)["streams"]["requests"]["items"]
    assert dict(invite["values"])["members"] == f"{', '.join(members[:3])} … (40)"
    assert "operation" not in unknown
    assert unknown["path"].startswith("/•••/xxx")


async def test_the_server_ends_while_pages_are_open(emulator):
    async with serve(emulator) as server, connected(server) as raw:
        await (await watch(raw)).event()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and "serve" in repr(task)]
