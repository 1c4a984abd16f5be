"""The page of a file: who may ask it, and how it answers."""

from __future__ import annotations

import httpx
import pytest

from rbim.page.assets import SECURITY_HEADERS
from rbim.page.server import FilePage, PageResponse

SITE = "http://127.0.0.1:4321"
NOT_FOUND = (404, "not found\n")


@pytest.fixture
def page():
    asked = []

    async def echo(call):
        asked.append(call)
        return PageResponse.of({"query": dict(call.query), "document": dict(call.document), "number": call.number("number")})

    async def parts(_):
        async def parted():
            for each in (b"a", b"b", b"c"):
                yield each

        return PageResponse(content_type="text/csv", body=parted())

    page = FilePage("journal", {("GET", "/echo"): echo, ("POST", "/echo"): echo, ("GET", "/parts"): parts})
    page.asked, page.right = asked, {"authorization": f"Bearer {page.token}"}
    return page


@pytest.fixture
async def http(page):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url=SITE) as client:
        yield client


async def test_without_the_token_everything_is_missing(http, page):
    token = page.token
    wrong = ("", token, f"bearer {token}", f"Bearer {token}x", f"Bearer {token[:-1]}", "Bearer " + "x" * len(token))
    others = [{}, {"cookie": f"token={token}"}, [("authorization", f"Bearer {token}")] * 2]
    for headers in [*({"authorization": each} for each in wrong), *others]:
        paths = ("/echo", "/events", f"/echo?token={token}", "/missing")
        answers = [
            await http.post("/echo", json={}, headers=headers),
            *[await http.get(path, headers=headers) for path in paths],
        ]
        assert [(each.status_code, each.text) for each in answers] == [NOT_FOUND] * 5, headers
    assert page.asked == []


async def test_with_the_token_it_answers(http, page):
    answer = await http.get("/echo?number=7&text=&text=second", headers=page.right)
    assert answer.json() == {"query": {"number": "7", "text": ""}, "document": {}, "number": 7}
    answer = await http.post("/echo", json={"kind": "dead"}, headers=page.right)
    assert answer.json()["document"] == {"kind": "dead"}
    assert (await http.get("/parts", headers=page.right)).content == b"abc"


async def test_the_files_are_the_same_for_everyone_and_have_no_token(http, page):
    index = await http.get("/")
    script = await http.get("/static/parts/request.js")
    assert (index.status_code, script.status_code) == (200, 200)
    assert page.token not in index.text + script.text


async def test_every_answer_has_the_headers_that_keep_the_page_to_itself(http, page):
    for path in ("/", "/static/parts/page.css", "/echo", "/missing", "/parts", "/static/../app.py"):
        for headers in ({}, page.right, page.right | {"host": "evil.example"}):
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
            await http.get("/", headers=page.right | headers),
            await http.get("/echo", headers=page.right | headers),
            await http.post("/echo", json={}, headers=page.right | headers),
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
        answer = await http.post("/echo", content=b"{}", headers=page.right | {"content-type": kind})
        assert (answer.status_code, kind) == (415, kind)
    for body in (b"[1]", b"{", b"\xff", b'{"a": "' + b"x" * 70_000 + b'"}'):
        answer = await http.post("/echo", content=body, headers=page.right | {"content-type": "application/json"})
        assert (answer.status_code, bool(answer.json()["error"])) == (400, True)
    assert page.asked == []
    for number in ("-1", "1.5", "x", "1" * 19, "\u0661", ""):
        answer = await http.get("/echo", params={"number": number}, headers=page.right)
        assert (answer.status_code, answer.json()) == (400, {"error": "number: use a whole number"})
