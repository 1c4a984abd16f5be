"""Deliveries with a known msgId and other content: kept apart, and reported."""

import json

import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving import body, post
from rbim.callbacks import Quarantined, Receiver, SqliteInbox


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
    assert caplog.text.count("in quarantine: ") == 2


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
