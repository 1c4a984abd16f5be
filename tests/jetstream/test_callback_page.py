"""``rbim callback serve --page`` over an inbox on NATS servers, which end and begin again under it."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from helpers.callback_process import event
from helpers.page_callbacks import LOST, fill, serving_page
from rbim.jetstream import JetStreamInbox
from rbim.jetstream.connection import EngineAway
from rbim.jetstream.nats_py import api_error

PATIENCE = 30.0


def levels_with(events, wanted):
    """The levels of the first events of which ``wanted`` is true."""
    levels, end = {}, time.monotonic() + PATIENCE
    for each in events:
        levels = each.get("levels", levels)
        if wanted(levels):
            return levels
        assert time.monotonic() < end, json.dumps(levels)
    raise AssertionError(levels)


def test_the_page_shows_an_inbox_on_servers_and_says_when_they_are_away(own_nats, name, tmp_path):
    async def prepare():
        async with JetStreamInbox(own_nats.urls, name=name, replicas=1) as inbox:
            await fill(inbox, [LOST], 1)

    anyio.run(prepare)
    spool = ("--spool", tmp_path / "events.spool")
    with serving_page(f"{own_nats.urls[0]}/{name}", "--print", *spool) as (process, page), page.events() as events:
        assert process.post(event(msgId="m1"))[0] == 200
        assert process.line()["msgId"] == "m1"
        levels = levels_with(events, lambda levels: (levels.get("counts") or {}).get("done") == 1)
        assert (levels["kind"], levels["problem"]) == ("servers", "")
        assert (levels["counts"]["dead"], levels["counts"]["quarantined"]) == (1, 1)
        (letter,) = page.get("/letters", kind="dead").json()["letters"]
        assert letter["headline"] == LOST

        own_nats.kill()
        levels = levels_with(events, lambda levels: levels.get("problem"))
        assert levels["counts"] is None
        assert own_nats.urls[0] in levels["problem"]
        began = time.monotonic()
        with ThreadPoolExecutor() as threads:
            asked = [
                threads.submit(page.get, "/letters", kind="dead"),
                threads.submit(page.get, "/letter", kind="dead", number=letter["number"]),
                threads.submit(page.post, "/requeue", kind="dead", number=letter["number"]),
            ]
        for answer in (each.result() for each in asked):
            assert answer.status_code == 400
            assert own_nats.urls[0] in answer.json()["error"]
        assert time.monotonic() - began < PATIENCE  # five seconds, in which a new leader may come
        assert process.post(event(msgId="m2"))[0] == 200
        assert levels_with(events, lambda levels: levels.get("counters", {}).get("accepted") == 2)["counts"] is None

        own_nats.start()
        levels = levels_with(events, lambda levels: (levels.get("counts") or {}).get("done") == 2)
        assert levels["problem"] == ""
        assert page.post("/requeue", kind="dead", number=letter["number"]).json() == {"events": 1, "left": []}
        assert [process.line()["msgId"] for _ in range(2)] == ["m2", "mdead0"]
        assert process.stop()[0] == 0


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("counts", ()),
        ("lag", ()),
        ("dead_letters", ()),
        ("quarantined", ()),
        ("event", ("NUMBER",)),
        ("requeue", (["NUMBER"],)),
        ("discard", (["NUMBER"],)),
        ("purge", ()),
        ("replay", ()),
    ],
)
async def test_servers_that_answer_with_an_error_are_away(nats, name, monkeypatch, method, arguments):
    """Such as a stream without a leader. Commands and pages expect an OSError, not an error of nats-py."""
    async with JetStreamInbox(nats.urls, name=name, replicas=1) as inbox:
        await fill(inbox, [LOST])
        (letter,) = await inbox.dead_letters()
        given = [letter.number if each == "NUMBER" else [letter.number] if each else each for each in arguments]

        async def refused(*_, **__):
            raise api_error({"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"})

        jetstream = await inbox._open.jetstream()
        for call in ("_api_request", "stream_info", "get_msg", "get_last_msg", "delete_msg", "purge_stream"):
            monkeypatch.setattr(jetstream, call, refused)
        with pytest.raises(EngineAway, match="temporarily unavailable"):
            await getattr(inbox, method)(*given)
