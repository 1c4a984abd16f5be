"""The application of a command's page: who may ask it, and how it answers."""

from __future__ import annotations

import httpx
import pytest

from rbim.cli.page.app import MOST_TICKETS, Answer, LocalPageApp, Tickets, new_token
from rbim.page.assets import SECURITY_HEADERS, Page
from rbim.page.events import Feed

TOKEN = new_token()
RIGHT = {"authorization": f"Bearer {TOKEN}"}
SITE = "http://127.0.0.1:4321"
NOT_FOUND = (404, "not found\n")


class Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def page():
    asked = []
    time = Time()
    tickets = Tickets(time)

    async def echo(call):
        asked.append(call)
        return Answer.of({"query": dict(call.query), "document": dict(call.document), "number": call.whole_number("number")})

    async def parts(_):
        async def parted():
            for each in (b"a", b"b", b"c"):
                yield each

        return Answer(content_type="text/csv", body=parted())

    feed = Feed(lambda: {"level": 1})
    app = LocalPageApp(
        Page("job", feed),
        TOKEN,
        routes={("GET", "/echo"): echo, ("POST", "/echo"): echo, ("GET", "/parts"): parts},
        tickets=tickets,
    )
    app.asked, app.time, app.tickets, app.feed, app.echo = asked, time, tickets, feed, echo
    return app


@pytest.fixture
async def http(page):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url=SITE) as client:
        yield client


WRONG = [
    {},
    {"authorization": ""},
    {"authorization": TOKEN},
    {"authorization": f"bearer {TOKEN}"},
    {"authorization": f"Bearer {TOKEN}x"},
    {"authorization": f"Bearer {TOKEN[:-1]}"},
    {"authorization": f"Bearer {new_token()}"},
    {"cookie": f"token={TOKEN}"},
]


async def test_without_the_token_everything_is_missing(http, page):
    twice = [("authorization", f"Bearer {TOKEN}")] * 2
    for headers in [*WRONG, twice]:
        paths = ("/echo", "/events", "/echo?token=TOKEN", "/missing")
        answers = [
            await http.post("/echo", json={}, headers=headers),
            *[await http.get(path, headers=headers) for path in paths],
        ]
        assert [(each.status_code, each.text) for each in answers] == [NOT_FOUND] * 5, headers
    assert page.asked == []


async def test_with_the_token_it_answers(http):
    answer = await http.get("/echo?number=7&text=&text=second", headers=RIGHT)
    assert answer.json() == {"query": {"number": "7", "text": ""}, "document": {}, "number": 7}
    answer = await http.post("/echo", json={"kind": "dead"}, headers=RIGHT)
    assert answer.json()["document"] == {"kind": "dead"}
    assert (await http.get("/parts", headers=RIGHT)).content == b"abc"
    head = await http.head("/parts", headers=RIGHT)
    assert (head.status_code, head.content) == (200, b"")


async def test_the_files_are_the_same_for_everyone_and_have_no_token(http):
    index = await http.get("/")
    script = await http.get("/static/parts/access.js")
    assert (index.status_code, script.status_code) == (200, 200)
    assert TOKEN not in index.text + script.text


async def test_every_answer_has_the_headers_that_keep_the_page_to_itself(http):
    for path in ("/", "/static/parts/page.css", "/echo", "/missing", "/parts", "/static/../app.py"):
        for headers in ({}, RIGHT, RIGHT | {"host": "evil.example"}):
            found = (await http.get(path, headers=headers)).headers
            for name, value in SECURITY_HEADERS.items():
                assert found[name] == value, (path, headers)
            assert not [name for name in found if name.startswith("access-control")]


FOREIGN = [
    {"host": "evil.example"},
    {"host": "127.0.0.1.evil.example"},
    {"origin": "http://evil.example"},
    {"origin": "http://127.0.0.1:9"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


async def test_a_page_of_another_server_gets_nothing_even_with_the_token(http, page):
    for headers in FOREIGN:
        for answer in (
            await http.get("/", headers=RIGHT | headers),
            await http.get("/echo", headers=RIGHT | headers),
            await http.get(page.tickets.path(page.echo), headers=headers),
            await http.post("/echo", json={}, headers=RIGHT | headers),
        ):
            assert (answer.status_code, headers) == (403, headers)
    assert page.asked == []


async def test_who_uses_another_name_is_told_what_helps(http):
    answer = await http.get("/", headers={"host": "box:80"})
    said = "Host: 'box:80' is not a name of this server: open the address that the command printed\n"
    assert (answer.status_code, answer.text) == (403, said)


async def test_what_is_no_command_of_the_page_is_refused(http, page):
    """What a form could send, a body that is no short object, a number that is none."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = await http.post("/echo", content=b"{}", headers=RIGHT | {"content-type": kind})
        assert (answer.status_code, kind) == (415, kind)
    for body in (b"[1]", b"{", b"\xff", b'{"a": "' + b"x" * 70_000 + b'"}'):
        answer = await http.post("/echo", content=body, headers=RIGHT | {"content-type": "application/json"})
        assert (answer.status_code, bool(answer.json()["error"])) == (400, True)
    assert page.asked == []
    for number in ("-1", "1.5", "x", "1" * 19, "\u0661", ""):
        answer = await http.get("/echo", params={"number": number}, headers=RIGHT)
        assert (answer.status_code, answer.json()) == (400, {"error": "number: use a whole number"})


async def test_a_ticket_serves_once_without_the_token(http, page):
    path = page.tickets.path(page.echo)
    assert TOKEN not in path
    assert (await http.get(path)).status_code == 200
    assert (await http.get(path)).status_code == 404
    assert (await http.post(page.tickets.path(page.echo), json={})).status_code == 404


async def test_a_ticket_is_not_used_up_by_a_request_for_its_head(http, page):
    path = page.tickets.path(page.echo)
    for asked in (path, "/download/unknown"):
        answer = await http.head(asked)
        assert (answer.status_code, answer.headers["allow"], answer.content) == (405, "GET", b"")
    assert page.asked == []
    assert (await http.get(path)).status_code == 200


async def test_a_ticket_expires_and_old_ones_give_way(http, page):
    path = page.tickets.path(page.echo)
    page.time.now += 59.9
    assert (await http.get(path)).status_code == 200
    path = page.tickets.path(page.echo)
    page.time.now += 60.0
    assert (await http.get(path)).status_code == 404
    paths = [page.tickets.path(page.echo) for _ in range(MOST_TICKETS + 1)]
    assert [(await http.get(path)).status_code for path in paths] == [404] + [200] * MOST_TICKETS
