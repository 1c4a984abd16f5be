"""The emulator's page without a browser: who gets it, on both ports, behind the guard, and what it asks for."""

import json

import pytest

from helpers.credentials import TOKEN
from helpers.emulators import box, client_of
from helpers.rawclient import JSON, ask, connected, http, signed
from rbim.emulator.faults import Fault, Latency
from rbim.emulator.server import page
from rbim.emulator.server.control import ABOUT
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
        http("POST", "/_emulator/live/0", b"", JSON),
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


async def live(server, position="0"):
    """Return the answer to what the page asks again and again, and the requests in it."""
    document = (await ask(server, http("GET", f"/_emulator/live/{position}"))).document
    return document, document["requests"]


async def test_a_page_gets_each_request_once_and_after_a_clearing_a_fresh_start(emulator, server):
    for number in range(30):
        await ask(server, signed(emulator, "CreateGroup", name=f"n{number}", type="1"))
    for port in both(server):
        document, found = await live(port)
        assert (document["counts"]["requests"], document["counts"]["groups"]) == (30, 30)
        assert (found["start"], found["missed"], [each["number"] for each in found["items"]]) == (True, 0, [*range(1, 31)])
        item = found["items"][7]
        assert (item["operation"], item["account"], item["code"]) == ("CreateGroup", "admin", "000000")
        assert dict(item["values"])["name"] == "n7"
    position = found["position"]
    await ask(server, signed(emulator, "SearchPublicGroups"))
    document, found = await live(server, position)
    assert (found["start"], [each["number"] for each in found["items"]]) == (False, [31])
    assert (await live(server))[0]["changes"] == document["changes"]
    emulator.never_logged_in("1009")
    await ask(server, http("POST", "/_emulator/logins", b'{"account": "1009"}', JSON))
    assert (await live(server))[0]["changes"] != document["changes"]
    emulator.requests.clear()
    await ask(server, signed(emulator, "SearchPublicGroups"))
    for old in (position, "nonsense", f"{emulator.requests.epoch}-x"):
        _, found = await live(server, old)
        assert (found["start"], found["missed"], [each["number"] for each in found["items"]]) == (True, 0, [1])
    _, found = await live(server, f"{emulator.requests.epoch}-{9**18}")  # ahead
    assert (found["start"], found["missed"], found["items"]) == (False, 0, [])


async def test_the_time_of_an_answer_comes_later_if_the_request_was_listed_without_it(emulator, server):
    emulator.faults.add(Fault(effect=Latency(5)))
    async with connected(server) as raw:
        await raw.send(signed(emulator, "SearchPublicGroups"))
        while not (found := (await live(server))[1])["items"]:
            pass
        assert (found["items"][0]["took"], found["items"][0]["kept"], found["took"]) == (None, True, [])
        await emulator.advance(5)
        await raw.head()
        assert (await live(server, found["position"]))[1]["took"] == [[1, 5.0]]


async def test_of_very_many_requests_the_page_gets_the_latest(emulator, server, monkeypatch):
    monkeypatch.setattr(page, "MOST_REQUESTS", 10)
    emulator.requests.limit = 50
    async with client_of(emulator) as client:  # its transport keeps no exchange
        for _ in range(60):
            await client.groups.search()
    _, found = await live(server)
    assert (found["missed"], [each["number"] for each in found["items"]]) == (50, [*range(51, 61)])
    assert not any(each["kept"] for each in found["items"])
    dropped = emulator.requests.count - len(emulator.requests)
    monkeypatch.setattr(page, "MOST_REQUESTS", 100)
    assert (await live(server))[1]["missed"] == dropped > 0


async def test_values_in_the_list_are_short_and_without_the_token():
    emulator = box()
    members = [f"{number:032}" for number in range(40)]
    async with serve(emulator) as server:
        await ask(server, signed(emulator, "InviteJoinGroup", groupId=TOKEN, members=members, confirm="0"))
        await ask(server, http("POST", f"/{TOKEN}/{'x' * 5000}"))
        _, found = await live(server)
    data = json.dumps(found, ensure_ascii=False)
    assert TOKEN not in data
    assert len(data) < 2500
    invite, unknown = found["items"]
    assert dict(invite["values"])["members"] == f"{', '.join(members[:3])} … (40)"
    assert "operation" not in unknown
    assert unknown["path"].startswith("/•••/xxx")
