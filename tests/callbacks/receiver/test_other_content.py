"""Deliveries with a known msgId and other content: kept apart, and reported."""

import json
from contextlib import asynccontextmanager

import anyio
import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving import body, post
from rbim.callbacks import MemorySink, Quarantined, Receiver, SqliteInbox


@pytest.mark.parametrize("mode", ["normal", "high-guarantee"])
async def test_other_content_under_a_known_key_is_kept_in_quarantine(tmp_path, mode, caplog):
    facts = []
    inbox = SqliteInbox(tmp_path / "events.db")
    async with Receiver(sink=inbox, credentials=CREDENTIALS, mode=mode, observers=[facts.append]) as receiver:
        for said in ("first", "second", "third", "second", "first"):
            assert (await post(receiver, body(msgId="1", body=said))).status == 200
            assert (await post(receiver, body(msgId="1", body=said, resendFlag="1"))).status == 200
        counts = await inbox.counts()
        assert (counts.waiting, counts.quarantined) == (1, 2)
        letters = await inbox.quarantined()
        assert [letter.error for letter in letters] == ["other content under the msgId of event 1"] * 2
        assert [b"second" in letters[0].body, b"third" in letters[1].body] == [True, True]
        assert len({letter.key for letter in letters}) == 2
        assert await inbox.replay() == 0
        assert (await inbox.counts()).quarantined == 2
    found = [each for each in facts if isinstance(each, Quarantined)]
    assert [each.key for each in found] == [letter.key for letter in letters]
    assert all("other content" in each.problem for each in found)
    assert caplog.text.count("Quarantined") == 2


async def test_notices_with_one_id_and_other_members_are_all_kept(tmp_path):
    """Three TEAM_KICK under one msgId: what they say must not get lost."""
    inbox = SqliteInbox(tmp_path / "events.db")
    notice = {"convType": "NOTIFY_TEAM", "msgType": "TEAM_KICK", "msgId": "1"}
    async with Receiver(sink=inbox, credentials=CREDENTIALS) as receiver:
        for member in ("1001", "1002", "1003"):
            assert (await post(receiver, body(**notice, tMembers=[member]))).status == 200
        counts = await inbox.counts()
        assert (counts.waiting, counts.quarantined) == (1, 2)
        letters = await inbox.quarantined()
        assert [json.loads(letter.body)["tMembers"] for letter in letters] == [["1002"], ["1003"]]
        assert await inbox.requeue([letter.number for letter in letters]) == 2  # events of their own, by hand
        async with inbox.backlog() as backlog:
            claims = await backlog.claim(9)
    assert [json.loads(claim.body)["tMembers"] for claim in claims] == [["1001"], ["1002"], ["1003"]]


async def test_the_overflow_file_keeps_and_forwards_it(tmp_path):
    class Failing(SqliteInbox):
        fails = True

        async def accept(self, delivery, /):
            if self.fails:
                reason = "not now"
                raise OSError(reason)
            return await super().accept(delivery)

    class Working(Failing):
        fails = False

    path = tmp_path / "events.db"
    async with Receiver(sink=Failing(path), credentials=CREDENTIALS) as receiver:
        for said in ("first", "second"):
            assert (await post(receiver, body(msgId="1", body=said))).status == 200
    inbox = Working(path)
    async with Receiver(sink=inbox, credentials=CREDENTIALS), inbox_counts(inbox) as counts:
        assert (counts.waiting, counts.quarantined) == (1, 1)


@asynccontextmanager
async def inbox_counts(inbox):
    with anyio.fail_after(10):
        while (counts := await inbox.counts()).waiting + counts.quarantined < 2:
            await anyio.sleep(0.02)
    yield counts


async def test_memory_keeps_it_apart_too():
    sink = MemorySink()
    async with Receiver(sink=sink, credentials=CREDENTIALS) as receiver:
        for said in ("first", "second", "second", "x" * 5000):
            assert (await post(receiver, body(msgId="1", body=said))).status == 200
        assert [b"second" in each.body for each in await sink.quarantined()] == [True, False]
        assert len(sink.events) == 1
        assert await sink.replay() == 0  # they stay there
        assert len(await sink.quarantined()) == 2


async def test_order_and_white_space_of_a_document_are_not_content(tmp_path):
    inbox = SqliteInbox(tmp_path / "events.db")
    async with Receiver(sink=inbox, credentials=CREDENTIALS) as receiver:
        await post(receiver, body(msgId="1"))
        await post(receiver, body(msgId="1").replace(b", ", b" ,  "))
        assert (await inbox.counts()).quarantined == 0
