"""The page of an inbox: what it shows of events, and what it does with dead letters and events in quarantine."""

from __future__ import annotations

import json
import sqlite3

import httpx
import pytest

from helpers.callback_process import APP
from helpers.page_inbox import LOST, WRONG, fill
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.inbox.protocols import Counts
from rbim.page.inbox import inbox_page

ERRORS = (LOST, WRONG, LOST)


@pytest.fixture
async def inbox():
    inbox = MemorySink()
    await fill(inbox, ERRORS, quarantined=2, handled=3, waiting=1)
    return inbox


@pytest.fixture
async def http(inbox):
    page = inbox_page(inbox, "the inbox")
    token = {"authorization": f"Bearer {page.token}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url="http://127.0.0.1", headers=token) as client:
        yield client


async def asked(http, path, **query):
    answer = await http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def numbers(http, **query):
    return [each["number"] for each in (await asked(http, "/events", **query))["rows"]]


async def test_the_state_has_the_numbers_and_a_chart_that_adds_up(http):
    state = await asked(http, "/state")
    assert (state["inbox"], state["counts"]) == ("the inbox", {"waiting": 1, "done": 3, "dead": 3, "quarantined": 2})
    chart = state["chart"]
    assert {name: sum(point[name] for point in chart["points"]) for name in state["counts"]} == state["counts"]
    assert len(chart["points"]) <= 61


async def test_an_empty_inbox_has_no_chart():
    page = inbox_page(MemorySink(), "empty")
    token = {"authorization": f"Bearer {page.token}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url="http://127.0.0.1", headers=token) as http:
        assert (await asked(http, "/state"))["chart"] is None
        assert (await asked(http, "/events"))["rows"] == []


async def test_events_are_listed_by_state_error_and_text_the_newest_first(http):
    assert await numbers(http) == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    for query, expected in [
        ({"state": "waiting"}, [9]),
        ({"state": "done"}, [6, 5, 4]),
        ({"state": "dead"}, [3, 2, 1]),
        ({"state": "quarantined"}, [8, 7]),
        ({"state": "dead", "reason": LOST}, [3, 1]),
        ({"text": "MDONE1"}, [5]),
        ({"text": "team/g1"}, [2, 8, 7]),
        ({"text": "onerror"}, [2]),
        ({"text": "nowhere"}, []),
        ({"before": "3"}, [2, 1]),
    ]:
        assert sorted(await numbers(http, **query)) == sorted(expected), query
    assert (await http.get("/events", params={"state": "gone"})).json() == {
        "error": "state: use waiting, done, dead, quarantined"
    }


async def test_an_event_is_shown_whole(http):
    found = await asked(http, "/event", number=2)
    assert (found["msgId"], found["state"], found["app_id"], found["headline"]) == ("mdead1", "dead", APP, WRONG)
    assert found["error"].startswith("Traceback (most recent call last)")
    assert found["body"]["to"] == "g1"
    answer = await http.get("/event", params={"number": 77})
    assert (answer.status_code, answer.json()) == (400, {"error": "it is not there any more"})


async def test_errors_are_counted(http):
    found = await asked(http, "/reasons", state="dead")
    assert found["reasons"] == [{"reason": LOST, "events": 2}, {"reason": WRONG, "events": 1}]
    assert (found["counted"], found["others"], found["more"]) == (3, 0, False)


async def test_letters_are_handled_again_or_deleted_one_or_all_with_an_error(http, inbox):
    for path, wanted, expected, counts in [
        ("/requeue", {"state": "dead", "number": 2}, {"events": 1, "left": 0}, (2, 3, 2, 2)),
        ("/requeue", {"state": "dead", "reason": LOST}, {"events": 2, "left": 0}, (4, 3, 0, 2)),
        ("/requeue", {"state": "quarantined", "number": 8}, {"events": 0, "left": 1}, (4, 3, 0, 2)),
        ("/discard", {"state": "dead", "number": 8}, {"events": 0, "left": 1}, (4, 3, 0, 2)),
        ("/discard", {"state": "quarantined", "number": 8}, {"events": 1, "left": 0}, (4, 3, 0, 1)),
    ]:
        answer = await http.post(path, json=wanted)
        assert (path, answer.json()) == (path, expected)
        waiting, done, dead, quarantined = counts
        assert await inbox.counts() == Counts(waiting=waiting, done=done, dead=dead, quarantined=quarantined)
        assert (await asked(http, "/state"))["counts"]["dead"] == dead


async def test_a_wrong_command_is_refused_with_its_reason_and_changes_nothing(http, inbox):
    before = await inbox.counts()
    for document, wrong in [
        ({"state": "dead"}, "give a number or a reason"),
        ({"state": "done", "number": 1}, "state: use dead or quarantined"),
        ({"state": "dead", "number": True}, "number: must be a whole number, not True"),
        ({"state": "dead", "number": "x" * 1000}, "number: must be a whole number, not '" + "x" * 99),
        ({"state": "dead", "number": 2**63}, "number: must be a whole number, not 9223372036854775808"),
        ({"state": "dead", "reason": [LOST]}, f"reason: must be a text, not [{LOST!r}]"),
        ({"state": "dead", "number": 77}, "it is not there any more"),
    ]:
        for path in ("/requeue", "/discard"):
            answer = await http.post(path, json=document)
            assert (answer.status_code, answer.json()) == (400, {"error": wrong}), document
    assert (await http.post("/discard", content=json.dumps({"state": "dead", "number": 1}))).status_code == 415
    assert await inbox.counts() == before


async def test_an_inbox_that_cannot_be_read_is_said(http, inbox, monkeypatch):
    async def locked(*_, **__):
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(inbox, "counts", locked)
    monkeypatch.setattr(inbox, "newest", locked)
    for path in ("/state", "/events", "/reasons?state=dead"):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()) == (400, {"error": "the inbox cannot be used now: database is locked"})
