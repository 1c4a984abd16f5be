"""Pages of other servers in a browser can neither change nor read an emulator, nor cause a copy.

``chromium.jsonl`` has the requests that Chromium 150 (Debian's, headless) sent to a server in the place of the emulator,
while ``chromium_page.html`` tried all that a page can: fetch with and without CORS, forms, beacons, elements, frames,
links, a WebSocket, and a sandboxed frame. ``record_chromium.py`` made it. The page was at another site
(``http://localhost`` and ``http://evil.test`` to ``http://127.0.0.1``), at another port of the same host, at a name that
was rebound to the server, and at the server itself. ``{page}`` is the origin of the page, ``{target}`` the Host of the
server; the first line has the headers that all requests have. Here each request is sent by a plain socket.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from helpers.emulators import client_of
from helpers.rawclient import ask
from rbim import GroupType
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.server.server import serve

FIRST, *RECORDED = map(json.loads, Path(__file__).with_name("chromium.jsonl").read_text(encoding="utf-8").splitlines())
# What a page of the emulator itself may not do, either: commands that are not JSON. By the name of the attempt.
NOT_JSON = {
    *("fetch-post-text", "fetch-post-empty", "fetch-post-json-no-cors", "beacon-text", "beacon-form", "form-post"),
    *("form-post-text", "form-post-multipart"),
}
SANDBOXED = {"sandboxed-fetch", "sandboxed-form"}
PAGES = {
    "another site": ["http://evil.test:35503", "http://localhost:1", "https://evil.test"],
    "another port": ["http://127.0.0.1:1", "http://127.0.0.1"],
}


def sent_from(*places):
    return [each for each in RECORDED if each["from"] in places]


def attempt(recorded):
    return recorded["target"].partition("?")[2]


def bytes_of(recorded, page, target):
    headers = recorded["headers"] | FIRST["headers"]
    lines = [f"{name}: {text}".replace("{page}", page).replace("{target}", target) for name, text in headers.items()]
    head = "\r\n".join([f"{recorded['method']} {recorded['target']} HTTP/1.1", *lines, "", ""])
    return (head + recorded["body"]).encode()


class Watched:
    """An emulator with a group, a request and a target of copies, all of which show what a request does."""

    def __init__(self):
        self.emulator = Emulator(clock=EmulatedClock())
        self.copies = []
        self.server = serve(self.emulator)

    async def receive(self, _, body):
        self.copies.append(body)
        return 200

    async def __aenter__(self):
        async with client_of(self.emulator) as client:
            self.secret = (await client.groups.create(name="secret", type=GroupType.VIP)).group_id
        self.emulator.copy_to(self.receive)
        await self.server.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self.server.__aexit__(*error)

    @property
    def doors(self):
        port = urlsplit(self.server.control_url).port
        return [SimpleNamespace(host="127.0.0.1", port=each) for each in (self.server.port, port)]

    async def state(self):
        emulator, copier = self.emulator, self.emulator.copier
        await emulator.deliver()
        return (
            emulator.snapshot(),
            [(record.operation, record.path) for record in emulator.requests],
            list(emulator.faults),
            list(emulator.copy_faults),
            copier.destination,
            len(emulator.deliveries),
            list(self.copies),
            emulator.clock.monotonic(),
            self.server.listening,
        )


def test_all_that_a_page_can_try_was_recorded():
    tried = {place: {attempt(each) for each in sent_from(place)} for place in {each["from"] for each in RECORDED}}
    assert {place: len(names) for place, names in tried.items()} == {
        "another site": 30,
        "another port": 30,
        "a rebound name": 31,
        "its own page": 31,
        "the address bar": 1,
    }
    assert tried["another site"] == tried["another port"] == tried["its own page"] - {"worker"}
    assert tried["its own page"] > NOT_JSON | SANDBOXED


@pytest.mark.parametrize("page", [page for pages in PAGES.values() for page in pages])
async def test_a_page_of_another_server_changes_reads_and_copies_nothing(page):
    (place,) = (place for place, pages in PAGES.items() if page in pages)
    async with Watched() as watched:
        before = await watched.state()
        for door in watched.doors:
            for recorded in sent_from(place):
                answer = await ask(door, bytes_of(recorded, page, f"127.0.0.1:{door.port}"))
                assert (attempt(recorded), answer.status) == (attempt(recorded), 403)
                assert watched.secret.encode() not in answer.body
                assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert await watched.state() == before


async def test_a_name_that_was_rebound_to_the_emulator_changes_reads_and_copies_nothing():
    async with Watched() as watched:
        before = await watched.state()
        for door in watched.doors:
            for recorded in sent_from("a rebound name"):
                name = f"evil.test:{door.port}"
                answer = await ask(door, bytes_of(recorded, f"http://{name}", name))
                assert (attempt(recorded), answer.status) == (attempt(recorded), 403)
                assert answer.document["error"].startswith(f"Host: '{name}' is not a name of this server: ")
                assert watched.secret.encode() not in answer.body
        assert await watched.state() == before


async def test_a_page_of_the_emulator_may_read_and_may_send_commands_in_json():
    for recorded in sent_from("its own page", "the address bar"):
        async with Watched() as watched:
            expected = 403 if attempt(recorded) in SANDBOXED else 415 if attempt(recorded) in NOT_JSON else 200
            before = await watched.state()
            door = watched.doors[0]
            target = f"127.0.0.1:{door.port}"
            answer = await ask(door, bytes_of(recorded, f"http://{target}", target))
            assert (attempt(recorded), answer.status) == (attempt(recorded), expected)
            changed = await watched.state() != before
            assert changed == (expected == 200 and recorded["method"] != "GET"), attempt(recorded)
            if expected == 200 and recorded["target"].startswith("/_emulator/state"):
                assert watched.secret.encode() in answer.body
