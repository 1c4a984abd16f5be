"""The emulator's page without a browser: who gets it, on both ports, behind the guard, and what is pushed to it."""

import json

import pytest

from helpers.emulators import client_of
from helpers.rawclient import JSON, ask, http, signed
from rbim import GroupType
from rbim.emulator.exchanges import FEW
from rbim.emulator.server.commands import ABOUT, ControlContext
from rbim.emulator.server.console import Console
from rbim.emulator.server.server import serve
from rbim.page.assets import SECURITY_HEADERS

BROWSER = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


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


async def test_nothing_is_computed_before_someone_watches_and_nothing_afterwards(emulator):
    console = Console(ControlContext(emulator, None, sign_copies=False, remote_copies=False))
    encoded = []
    encode = console._requests.encode
    console._requests.encode = lambda record: encoded.append(record) or encode(record)
    async with client_of(emulator) as client:
        for _ in range(3):
            await client.groups.create(name="a", type=GroupType.TEMPORARY)
    assert (encoded, console._requests.count, console.feed._tick) == ([], 0, None)
    assert len(emulator.asgi.exchanges.slots) == FEW
    assert [each for each in emulator.asgi.exchanges.slots if each] == []  # its transport keeps none
    console.feed.tick(1)
    batch = console.feed.since(None)
    assert (len(encoded), json.loads(batch.data)["streams"]["requests"]["count"]) == (3, 3)


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
