"""``rbim callback serve --page``: deliveries, dead letters and quarantine in a browser, as a program asks for them."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import sys
from collections import deque
from datetime import UTC, datetime

import anyio
import httpx
import pytest

from helpers.callback_process import APP, MINE, TOKEN, counts, event
from helpers.page_callbacks import LOST, WRONG, accepted, fill, filled, serving_page
from helpers.page_client import PageClient
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.inbox.protocols import Counts
from rbim.callbacks.observers import DeadLettered, Handled, HandlingEnded, HandlingFailed, HandlingStarted
from rbim.callbacks.receiver.receiver import Receiver
from rbim.callbacks.signature import Policy, sign
from rbim.cli.callback.page.page import KEPT, MOST_OF_BODY, CallbackPage, Deliveries, PageFacts
from rbim.cli.exit_codes import Exit
from rbim.page.events import Feed

COUNTERS = ("accepted", "refused", "unavailable", "gone")


def signed(body, **changes):
    return sign(body, credentials=MINE, now=datetime.now(UTC)) | changes


# ---------------------------------------------------------------- deliveries


def test_deliveries_appear_with_their_answers_and_how_they_were_handled(tmp_path):
    with serving_page(tmp_path / "events.db", "--print") as (process, page), page.events() as events:
        assert process.post(event(msgId="m1"))[0] == 200
        assert process.line()["msgId"] == "m1"
        assert process.post(event(msgId="m1", resendFlag="1"))[0] == 200
        assert process.post(event(msgId="m2"), {"CheckSum": "0" * 32, "MD5": "0" * 32, "CurTime": "1700000000000"})[0] == 401
        assert process.post(b"[1]")[0] == 200
        by_number, changes, levels = {}, {}, {}
        for each in events:
            levels = each.get("levels", levels)
            by_number |= {item["number"]: item for item in each["streams"].get("deliveries", {"items": []})["items"]}
            for change in each["streams"].get("changes", {"items": []})["items"]:
                changes[change["number"]] = change["state"]
            if len(by_number) == 4 and levels["counters"]["handled"] and (levels.get("counts") or {}).get("quarantined"):
                break
        code, out, _ = process.stop()

    shown = [(each["status"], each["type"], each["conversation"], each["resent"]) for each in by_number.values()]
    assert shown == [
        (200, "TEXT", "team/g1", False),
        (200, "TEXT", "team/g1", True),
        (401, "", "", False),
        (200, "", "", False),
    ]
    assert [by_number[number]["state"] or changes[number] for number in (1, 2)] == ["handled"] * 2
    assert by_number[3]["reason"] == "checksum_mismatch"
    assert by_number[4]["state"] == "quarantine"
    counters = levels["counters"]
    assert counters["deliveries"] == 4 == sum(counters[name] for name in COUNTERS)
    assert levels["counts"] == {"waiting": 0, "done": 1, "dead": 0, "quarantined": 1}
    assert (levels["handling"], levels["kind"], levels["mode"]) == (["print"], "file", "normal")
    assert levels["url"] == process.url
    assert (code, out) == (Exit.DONE, "")


def test_a_refused_delivery_is_explained_without_a_secret(tmp_path):
    body = event(msgId="m1")
    swapped = signed(body)
    swapped["MD5"], swapped["CheckSum"] = swapped["CheckSum"], swapped["MD5"]
    with serving_page(tmp_path / "events.db") as (process, page):
        assert process.post(body, swapped)[0] == 401
        assert process.post(b"x" * (MOST_OF_BODY + 1), swapped)[0] == 401
        answer = page.get("/refused", number=1)
        assert answer.json()["finding"].startswith("MD5 and CheckSum are swapped: each header has the value of the other.")
        assert TOKEN not in answer.text
        assert page.get("/refused", number=2).json() == page.get("/refused", number=99).json() == {"finding": None}
        assert process.stop()[0] == Exit.DONE


def test_the_end_of_the_command_reaches_those_who_watch(tmp_path):
    with serving_page(tmp_path / "events.db") as (process, page), page.events() as events:
        next(events)
        process.popen.send_signal(signal.SIGINT)
        streams = [each["streams"] for each in events]
        assert process.popen.wait(30) == Exit.DONE
    assert [item for each in streams for item in each.get("end", {"items": []})["items"]] == [{}]


def test_watchers_that_read_nothing_hold_up_nothing(tmp_path):
    with serving_page(tmp_path / "events.db") as (process, page):
        stuck = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(5)]
        for each in stuck:
            each.sendall(f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {page.token}\r\n\r\n".encode())
        for number in range(20):
            assert process.post(event(msgId=f"m{number}"))[0] == 200
        assert process.stop()[0] == Exit.DONE
        for each in stuck:
            each.close()


def test_idle_connections_to_the_page_give_way_to_those_that_ask(tmp_path):
    with serving_page(tmp_path / "events.db") as (process, page):
        idle = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(80)]
        try:
            assert page.get("/reasons", kind="dead").json()["counted"] == 0
            for each in idle[:16]:  # more than may be open at once
                each.settimeout(20)
                assert _is_closed(each)
            assert process.post(event(msgId="m1"))[0] == 200
        finally:
            for each in idle:
                each.close()
        assert process.stop()[0] == Exit.DONE


def _is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


# ---------------------------------------------------------------- dead letters and quarantine


@pytest.fixture
def letters(tmp_path):
    path = tmp_path / "events.db"
    anyio.run(filled, path, [LOST, WRONG, LOST], 2)
    return path


def test_dead_letters_are_listed_by_their_errors_and_shown_whole(letters):
    with serving_page(letters) as (process, page):
        assert page.get("/reasons", kind="dead").json() == {
            "reasons": [{"reason": LOST, "events": 2}, {"reason": WRONG, "events": 1}],
            "counted": 3,
            "others": 0,
        }
        found = page.get("/letters", kind="dead").json()
        assert [(each["conversation"], each["headline"]) for each in found["letters"]] == [
            ("team/g0", LOST),
            ("team/g1", WRONG),
            ("team/g2", LOST),
        ]
        assert found["more"] is False
        (only,) = page.get("/letters", kind="dead", reason=WRONG).json()["letters"]
        whole = page.get("/letter", kind="dead", number=only["number"]).json()
        assert whole["body"]["msgId"] == "mdead1"
        assert whole["error"].endswith(f"{WRONG}\n")
        assert [each["number"] for each in page.get("/letters", kind="dead", after=only["number"]).json()["letters"]] == [3]
        assert len(page.get("/letters", kind="quarantine").json()["letters"]) == 2
        assert process.stop()[0] == Exit.DONE


def test_a_dead_letter_is_handled_again(letters):
    with serving_page(letters, "--print") as (process, page):
        first = page.get("/letters", kind="dead").json()["letters"][0]
        assert page.post("/requeue", kind="dead", number=first["number"]).json() == {"events": 1, "left": []}
        assert process.line()["msgId"] == "mdead0"
        assert page.post("/requeue", kind="dead", number=first["number"]).json() == {"error": "it is not there any more"}
        assert process.stop()[0] == Exit.DONE
    assert (counts(letters).dead, counts(letters).done) == (2, 1)


def test_all_dead_letters_with_an_error_are_handled_again(letters):
    with serving_page(letters, "--print") as (process, page):
        assert page.post("/requeue", kind="dead", reason=LOST).json() == {"events": 2, "left": []}
        assert {process.line()["msgId"], process.line()["msgId"]} == {"mdead0", "mdead2"}
        assert page.get("/reasons", kind="dead").json()["reasons"] == [{"reason": WRONG, "events": 1}]
        assert process.stop()[0] == Exit.DONE
    assert counts(letters).dead == 1


def test_what_cannot_be_read_stays_in_quarantine(letters):
    with serving_page(letters) as (process, page):
        numbers = [each["number"] for each in page.get("/letters", kind="quarantine").json()["letters"]]
        (reason,) = page.get("/reasons", kind="quarantine").json()["reasons"]
        assert reason["events"] == 2
        assert page.post("/requeue", kind="quarantine", reason=reason["reason"]).json() == {"events": 0, "left": numbers}
        assert page.post("/requeue", kind="quarantine", number=numbers[0]).json() == {"events": 0, "left": numbers[:1]}
        assert process.stop()[0] == Exit.DONE


NUMBER = "number: must be a whole number, 0 to 9223372036854775807, not "
REASON = "reason: must be a text, not "
GONE = "it is not there any more"
WRONG_COMMANDS = [
    ({}, "give a number or a reason"),
    ({"number": 1, "reason": "x"}, "give a number or a reason"),
    ({"kind": "done", "number": 1}, "kind: use dead or quarantine"),
    ({"number": "1"}, NUMBER + "'1'"),
    ({"number": True}, NUMBER + "True"),
    ({"number": 1.0}, NUMBER + "1.0"),
    ({"number": [1]}, NUMBER + "[1]"),
    ({"number": "x" * 1000}, NUMBER + "'" + "x" * 99),
    ({"number": -1}, NUMBER + "-1"),
    ({"number": 2**63}, NUMBER + "9223372036854775808"),
    ({"reason": 1}, REASON + "1"),
    ({"reason": False}, REASON + "False"),
    ({"reason": [LOST]}, REASON + f"[{LOST!r}]"),
    ({"number": 77}, GONE),
    ({"number": 2**63 - 1}, GONE),
]


def test_a_wrong_command_is_refused_with_its_reason_and_changes_nothing(letters):
    before = counts(letters)
    with serving_page(letters) as (process, page):
        for document, wrong in WRONG_COMMANDS:
            answer = page.post("/requeue", **document)
            assert (answer.status_code, answer.json()) == (400, {"error": wrong}), document
        assert page.client.post("/requeue", json={"kind": "dead", "reason": LOST}).status_code == 404
        answer = page.client.post("/requeue", content=json.dumps({"reason": LOST}), headers=page.authorization)
        assert answer.status_code == 415
        assert process.stop()[0] == Exit.DONE
    assert counts(letters) == before


# ---------------------------------------------------------------- inboxes


def page_of(archive, **options):
    facts = PageFacts(inbox="memory", kind="file", mode="normal", handling=("print",))
    return CallbackPage(facts=facts, archive=archive, credentials=(MINE,), policy=Policy(), **options)


@pytest.mark.anyio
async def test_an_inbox_in_memory_has_a_page_too():
    inbox = MemorySink()
    await fill(inbox, [LOST], 1)
    page = page_of(inbox)
    receiver = Receiver(credentials=MINE, sink=inbox, observers=[page.deliveries.observe])
    async with receiver, page.serving("http://127.0.0.1:1/") as address:
        app = httpx.ASGITransport(page.deliveries.watched(receiver.asgi))
        body = event(msgId="m1")
        async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1") as sender:
            assert (await sender.post("/", content=body, headers=signed(body))).status_code == 200

        def ask():
            with PageClient(address) as client:
                with client.events() as events:
                    levels = next(each["levels"] for each in events if each.get("levels", {}).get("counts"))
                listed = client.get("/letters", kind="dead").json()["letters"]
                assert client.post("/requeue", kind="dead", number=listed[0]["number"]).json()["events"] == 1
                return levels

        levels = await anyio.to_thread.run_sync(ask)
    assert levels["counts"] == {"waiting": 1, "done": 0, "dead": 1, "quarantined": 1}
    assert await inbox.counts() == type(await inbox.counts())(waiting=2, done=0, dead=0, quarantined=1)


class Broken:
    """An inbox that cannot be read now."""

    async def counts(self):
        raise sqlite3.OperationalError("database is locked")

    async def dead_letters(self, *_, **__):
        raise ConnectionError("no server answers")


@pytest.mark.anyio
async def test_an_inbox_that_cannot_be_read_is_said_and_the_rest_goes_on():
    page = page_of(Broken())
    async with page.serving("http://127.0.0.1:1/") as address:

        def ask():
            with PageClient(address) as client, client.events() as events:
                levels = next(each["levels"] for each in events if each.get("levels", {}).get("problem"))
                return levels, client.get("/letters", kind="dead")

        levels, answer = await anyio.to_thread.run_sync(ask)
    assert (levels["counts"], levels["problem"]) == (None, "OperationalError: database is locked")
    assert answer.json() == {"error": "the inbox cannot be used now: no server answers"}
    assert answer.status_code == 400


class Interrupted:
    """An inbox on servers that had no leader for three seconds, at the first question."""

    def __init__(self):
        self.now, self.asked = 0.0, 0

    async def counts(self):
        self.asked += 1
        self.now += 3.0 if self.asked == 1 else 0.001
        return Counts(waiting=self.asked, done=0, dead=0, quarantined=0)

    async def lag(self):
        return 0.0


@pytest.mark.anyio
async def test_a_question_that_waited_once_does_not_make_the_next_ones_rare(monkeypatch):
    """One that takes long each time does: the inbox works for the page for a twentieth of the time."""
    monkeypatch.setattr("rbim.cli.callback.page.page.SHORTEST_PAUSE", 0.05)
    inbox = Interrupted()
    page = page_of(inbox, monotonic=lambda: inbox.now)
    async with page.serving("http://127.0.0.1:1/") as address:

        def ask():
            with PageClient(address) as client, client.events() as events:
                return next(each["levels"]["waiting"] for each in events if each.get("levels", {}).get("waiting", 0) > 2)

        with anyio.fail_after(20):
            assert await anyio.to_thread.run_sync(ask, abandon_on_cancel=True) > 2


# ---------------------------------------------------------------- what is kept


@pytest.mark.anyio
async def test_the_list_is_bounded_and_a_change_finds_its_delivery():
    feed = Feed()
    deliveries = Deliveries(feed, lambda: 5.0)

    async def app(_, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with httpx.AsyncClient(transport=httpx.ASGITransport(deliveries.watched(app)), base_url="http://x") as sender:
        for number in range(KEPT + 20):
            await sender.post("/", content=event(msgId=f"m{number}"))
        await sender.get("/")
    held = deliveries._stream.held()
    assert (len(held), held[0].number, held[-1].number) == (KEPT, 21, KEPT + 20)
    assert deliveries.counters.deliveries == KEPT + 20
    assert all(each.body is None and not each.headers for each in held)
    assert deliveries.rate() == (KEPT + 20) / 10

    held[-1].key = key = accepted(1).key
    deliveries._by_key[key] = deque([held[-1]])
    common = {"key": key, "attempt": 2}
    known = {"event": "Message", "handler": "on_text", "app_id": APP}
    deliveries.observe(HandlingStarted(**common, **known))
    assert deliveries.counters.in_work == 1
    deliveries.observe(HandlingEnded(**common, elapsed=0.1, error=None, cancelled=False))
    deliveries.observe(HandlingFailed(**common, **known, error="E" * 1000, pause=1.0))
    deliveries.observe(Handled(**common, elapsed=0.1))
    deliveries.observe(DeadLettered(key="unknown", attempt=8, error="E"))
    assert deliveries.counters.in_work == 0
    assert [(each["state"], len(each["error"])) for each in deliveries._changes.held()] == [("failed", 300), ("handled", 0)]
    assert (deliveries.counters.handled, deliveries.counters.failed, deliveries.counters.dead) == (1, 1, 1)


def test_without_the_flag_there_is_no_page(tmp_path):
    from helpers.callback_process import serving

    with serving(tmp_path / "events.db") as process:
        assert process.post(event(msgId="m1"))[0] == 200
        assert "page:" not in process.stop()[2]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is sent in another way")
def test_the_address_goes_to_standard_error_and_the_token_nowhere_else(tmp_path):
    with serving_page(tmp_path / "events.db") as (process, page):
        assert page.get("/reasons", kind="dead").status_code == 200
        assert page.client.get(f"/reasons?token={page.token}").status_code == 404
        _, out, err = process.stop()
    assert page.token not in out + err
