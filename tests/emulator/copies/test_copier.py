"""Message copy, what goes out: bodies of the interface's table, signatures against md5sum, HTTP, group notifications."""

import json
import subprocess
from hashlib import md5

import pytest

from helpers.credentials import APP_ID, TOKEN
from helpers.emulators import box, client_of
from helpers.tables import each_row
from rbim import GroupType, InvalidRequest, NotMember, Permission, Role
from rbim.emulator import Rules
from rbim.emulator.platform.rules import DependsOnDialect, Refusal
from rbim.testing.conformance.server import RawServer, reply

START = "1767323045000"  # 2026-01-02 03:04:05 UTC in milliseconds
GROUP = "g80000049837291"


class Inbox:
    """A receiver that takes everything."""

    def __init__(self):
        self.deliveries = []

    async def receive(self, headers, body):
        self.deliveries.append((headers, body))
        return type("Reply", (), {"status": 200})

    @property
    def documents(self):
        return [json.loads(body) for _, body in self.deliveries]


def copied_box(**options):
    emulator, inbox = box(**options), Inbox()
    emulator.copy_to(inbox)
    return emulator, inbox


async def group_of(emulator, *members):
    async with client_of(emulator) as client:
        group_id = (await client.groups.create(name="a", type=GroupType.TEMPORARY, user_name="1000")).group_id
        await client.groups.invite(group_id=group_id, members=list(members))
    return group_id


# Bodies.


async def test_flags_have_both_values_and_each_message_is_in_a_conversation():
    emulator, inbox = box(), Inbox()
    group_id = await group_of(emulator, "1001", "1002")
    emulator.copy_to(inbox)
    await emulator.clock.advance(1.2345)
    emulator.say("1001", "1002", "", antispam=False)
    emulator.say("1001", group_id, "x")
    emulator.push("1002", "x", save=False, apns=True)
    emulator.push(["1002", "1003"], "x", sender="bot")
    emulator.push(group_id, "x")
    await emulator.deliver()
    said, _, pushed, *_ = sorted(inbox.documents, key=lambda document: document["msgId"])
    assert (said["body"], said["antispam"], said["msgTimestamp"]) == ("", "false", "1767323046234")
    assert (pushed["customSaveFlag"], pushed["customApnsFlag"]) == ("0", "1")
    assert [each.key for each in emulator.deliveries] == ["1001|1002", GROUP, "1002|admin", "REST|bot", GROUP]


async def test_nothing_is_copied_where_no_address_is_configured():
    emulator, inbox = box(), Inbox()
    assert emulator.say("1001", "1002", "a") == "m80000070010001"
    emulator.notify("g1", "TEAM_UPDATE")
    await emulator.deliver()
    emulator.copy_to(inbox)
    await emulator.deliver()
    assert inbox.deliveries == []
    emulator.say("1001", "1002", "b")
    emulator.copy_to(None)
    emulator.copy_to(inbox)
    await emulator.advance(hours=25)
    assert (inbox.deliveries, len(emulator.deliveries)) == ([], 0)
    emulator.say("1001", "1002", "c")
    await emulator.deliver()
    assert [document["body"] for document in inbox.documents] == ["c"]


async def test_only_members_talk_in_a_group_and_only_who_has_logged_in_talks_at_all():
    emulator, inbox = copied_box()
    group_id = await group_of(emulator, "1001")
    emulator.never_logged_in("1009")
    with pytest.raises(Refusal, match="1005 is not in g8") as refused:
        emulator.say("1005", group_id, "x")
    assert refused.value.kind is NotMember
    with pytest.raises(Refusal, match="never logged in"):
        emulator.say("1009", "1001", "x")
    emulator.say("1001", "1009", "x")
    async with client_of(emulator) as client:
        await client.groups.delete(group_id=group_id)
    for gone in (lambda: emulator.say("1001", group_id, "x"), lambda: emulator.push(group_id, "x")):
        with pytest.raises(LookupError, match="there is no group g8"):
            gone()
    await emulator.deliver()
    assert [document["to"] for document in inbox.documents if document["convType"] != "NOTIFY_TEAM"] == ["1009"]


@each_row(
    "mistake, said",
    [
        (lambda e: e.say("1", "2", "x", msg_type="TXET"), "msg_type: 'TXET' is not one of TEXT, PICTURE"),
        (lambda e: e.say("1", "2", "x", at_user="1002"), "at_user: a list of accounts is needed"),
        (lambda e: e.say("1", "", "x"), "to: must not be empty"),
        (lambda e: e.push([""], "x"), "members: each account is a text that is not empty"),
        (lambda e: e.push([], "x"), "members: at least one account"),
        (lambda e: e.notify("g1", "TEAM_PARTY"), "notice: 'TEAM_PARTY' is not one of TEAM_APPLY"),
        (lambda e: e.copy_to("ftp://127.0.0.1/"), "target: must be an http or https URL"),
        (lambda e: e.copy_to(7), "target: must be a URL, a receiver or an async function, not int"),
        (lambda e: e.copy_to(Inbox(), "low-guarantee"), "mode: 'low-guarantee' is not one of normal, high-guarantee"),
        (lambda e: e.copy_to(Inbox(), concurrency=0), "concurrency: must be at least 1, not 0"),
    ],
)
def test_a_mistake_is_refused_in_words(mistake, said):
    emulator, _ = copied_box()
    with pytest.raises(InvalidRequest, match=said):
        mistake(emulator)
    assert len(emulator.copier.queue) == 0


# Signatures.

SCRIPT = r"""
set -eu
upper() { tr a-f A-F; }
digest=$(md5sum < "$BODY" | cut -d' ' -f1 | upper)
sum=$(printf %s "$APP_ID$TOKEN$digest$CURTIME" | md5sum | cut -d' ' -f1 | upper)
[ "$digest" = "$MD5" ] || { echo "MD5 is $digest, not $MD5"; exit 1; }
[ "$sum" = "$CHECKSUM" ] || { echo "CheckSum is $sum, not $CHECKSUM"; exit 1; }
[ "$(date -u -d "@$(printf %s "$CURTIME" | cut -c1-10)" +%FT%TZ)" = "$TIME" ] || { echo "CurTime is off"; exit 1; }
echo genuine
"""


def verified(headers, body, path, time):
    """Verify a delivery with md5sum alone."""
    path.write_bytes(body)
    environment = {
        "APP_ID": APP_ID,
        "TOKEN": TOKEN,
        "BODY": str(path),
        "MD5": headers["MD5"],
        "CURTIME": headers["CurTime"],
        "CHECKSUM": headers["CheckSum"],
        "TIME": time,
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(["bash", "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip()


def expected_headers(body, milliseconds):
    digest = md5(body).hexdigest().upper()
    return {
        "Content-Type": "application/json",
        "CurTime": milliseconds,
        "MD5": digest,
        "CheckSum": md5(f"{APP_ID}{TOKEN}{digest}{milliseconds}".encode()).hexdigest().upper(),
    }


async def test_a_delivery_is_verified_by_md5sum_alone(tmp_path):
    emulator, inbox = copied_box()
    emulator.say("1001", "1002", "你好")
    await emulator.advance(60)
    emulator.say("1001", "1002", "再见", at_user=["1002"])
    await emulator.deliver()
    (first, second) = inbox.deliveries
    assert verified(*first, tmp_path / "1", "2026-01-02T03:04:05Z") == "genuine"
    assert verified(*second, tmp_path / "2", "2026-01-02T03:05:05Z") == "genuine"
    assert "MD5 is" in verified(first[0], second[1], tmp_path / "3", "2026-01-02T03:04:05Z")
    assert "CheckSum is" in verified(first[0] | {"CurTime": START[:-1] + "1"}, first[1], tmp_path / "4", "")
    assert first[0] == expected_headers(first[1], START)
    assert second[0] == expected_headers(second[1], "1767323105000")


# HTTP.


BUSY = reply(b"", "503 Busy")


async def test_over_http_a_delivery_is_a_post_with_the_interfaces_headers(tmp_path):
    emulator = box()
    with RawServer(reply(), BUSY, reply()) as receiver:
        emulator.copy_to(f"{receiver.url()}/copies?tenant=a%20b&empty=", "high-guarantee")
        emulator.say("1001", "1002", "一")
        emulator.say("1001", "1002", "二")
        await emulator.deliver()
        assert [(each.status, each.reason) for each in emulator.deliveries] == [(200, ""), (503, "status 503")]
        await emulator.advance(10)
    got = receiver.requests
    assert [each.line for each in got] == ["POST /copies?tenant=a%20b&empty= HTTP/1.1"] * 3
    assert [json.loads(each.body)["body"] for each in got] == ["一", "二", "二"]
    for each in got:
        values = {name.lower(): value for name, value in each.headers}
        sent = {name: values[name.lower()] for name in ("Content-Type", "CurTime", "MD5", "CheckSum")}
        assert sent == expected_headers(each.body, values["curtime"])
        assert len(values) == len(each.headers)  # each once
        assert int(values["content-length"]) == len(each.body)
    assert verified(sent, got[-1].body, tmp_path / "body", "2026-01-02T03:04:10Z") == "genuine"
    assert [each.at for each in emulator.deliveries] == [0, 0, 5]


async def test_over_http_refusals_and_silence_are_failures():
    emulator = box()
    with RawServer(BUSY, lambda peer, _: peer.reset()) as receiver:
        emulator.copy_to(receiver.url())
        for text in "xy":
            emulator.say("1001", "1002", text)
        await emulator.deliver()
    emulator.say("1001", "1002", "nobody listens any more")
    await emulator.deliver()
    assert [each.status for each in emulator.deliveries] == [503, None, None]
    assert [each.reason.partition(":")[0] for each in emulator.deliveries] == ["status 503", "no answer", "refused"]


async def test_over_http_copies_use_no_proxy_and_follow_no_redirect(monkeypatch):
    emulator = box()
    with RawServer(reply()) as proxy, RawServer(reply()) as elsewhere:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for status in ("301 Moved", "307 Temporary"):
            with RawServer(reply(b"", status, f"Location: {elsewhere.url()}/")) as receiver:
                emulator.copy_to(f"http://localhost:{receiver.port}/copy")
                emulator.say("1001", "1002", status)
                await emulator.deliver()
                assert len(receiver.requests) == 1
    assert [each.reason for each in emulator.deliveries] == [f"status {code}" for code in (301, 307)]
    assert (proxy.requests, elsewhere.requests) == ([], [])


async def test_over_http_no_copy_meets_a_connection_that_the_receiver_is_closing():
    """As a server or a proxy in front of it does with a kept connection when it reloads: the copy would be lost, as it is
    sent once."""
    used = set()

    def answers_once(peer, received):
        if received.connection in used:
            peer.reset()
        else:
            used.add(received.connection)
            peer.send(reply())

    with RawServer(answers_once) as receiver:
        emulator = box()
        emulator.copy_to(receiver.url())
        for number in range(3):
            emulator.say("1001", "1002", str(number))
        await emulator.deliver()
    assert [(each.ok, each.reason) for each in emulator.deliveries] == [(True, "")] * 3


# What a group's change causes.


async def told(emulator, inbox):
    """Deliver, and return kind, sender and members of the notifications that came since the last time."""
    await emulator.deliver()
    documents = [(document["msgType"], document["fromAccount"], document["tMembers"]) for document in inbox.documents]
    inbox.deliveries.clear()
    return [
        (kind, sender.removeprefix(f"{APP_ID}#"), [member.removeprefix(f"{APP_ID}#") for member in members])
        for kind, sender, members in documents
    ]


async def test_which_notification_each_operation_causes():
    emulator, inbox = copied_box()
    async with client_of(emulator, user_name="1000") as client:
        groups = client.groups
        group_id = (await groups.create(name="a", type=GroupType.TEMPORARY)).group_id
        assert await told(emulator, inbox) == []
        await groups.search()
        await groups.detail(group_id=group_id)
        assert await told(emulator, inbox) == []
        await groups.invite(group_id=group_id, members=["1001", "1002"])
        assert await told(emulator, inbox) == [("TEAM_JOIN", "1000", ["1001", "1002"])]
        await groups.invite(group_id=group_id, members=["1003"], needs_confirmation=True)
        assert await told(emulator, inbox) == [("TEAM_INVITE", "1000", ["1003"])]
        emulator.confirm(group_id, "1003")
        assert await told(emulator, inbox) == [("TEAM_INVITE_ACCEPT", "1003", ["1003"])]
        await client.acting_as("1004").groups.join(group_id=group_id)
        assert await told(emulator, inbox) == [("TEAM_JOIN", "1004", ["1004"])]
        await groups.modify(group_id=group_id, name="b", permission=Permission.VERIFIED)
        assert await told(emulator, inbox) == [("TEAM_UPDATE", "1000", ["1000", "1001", "1002", "1003", "1004"])]
        for account, settle, notice in (
            ("1005", emulator.approve, "TEAM_APPLY_ACCEPT"),
            ("1006", emulator.reject, "TEAM_APPLY_REJECT"),
        ):
            await client.acting_as(account).groups.join(group_id=group_id)
            settle(group_id, account)
            assert await told(emulator, inbox) == [("TEAM_APPLY", account, ["1000"]), (notice, "1000", [account])]
        await groups.invite(group_id=group_id, members=["1007"], needs_confirmation=True)
        emulator.decline(group_id, "1007")
        assert await told(emulator, inbox) == [("TEAM_INVITE", "1000", ["1007"]), ("TEAM_INVITE_REJECT", "1007", ["1007"])]
        await groups.set_role(group_id=group_id, member="1002", role=Role.ADMINISTRATOR)
        assert await told(emulator, inbox) == [("TEAM_ROLE_UPDATE", "1000", ["1002"])]
        await groups.remove(group_id=group_id, members=["1004", "1005"])
        assert await told(emulator, inbox) == [("TEAM_KICK", "1000", ["1004", "1005"])]
        await client.acting_as("1002").groups.leave(group_id=group_id)
        assert await told(emulator, inbox) == [("TEAM_QUIT", "1002", ["1002"]), ("TEAM_ADD_ADMIN", "1002", ["1001"])]
        await groups.delete(group_id=group_id)
        assert await told(emulator, inbox) == [("TEAM_DISMISS", "1000", ["1000", "1001", "1003"])]
    assert {each.key for each in emulator.deliveries} == {group_id}


async def test_what_the_rules_do_not_name_is_not_told():
    emulator, inbox = copied_box(rules=Rules(notifications={"add": "TEAM_WELCOME"}))
    group_id = await group_of(emulator, "1001")
    async with client_of(emulator) as client:
        await client.groups.delete(group_id=group_id)
    assert await told(emulator, inbox) == [("TEAM_WELCOME", "admin", ["1001"])]


async def test_a_strict_test_fails_where_a_guess_would_be_copied():
    emulator, inbox = copied_box(strict_dialect=True)
    with pytest.raises(DependsOnDialect, match="notifications"):
        await group_of(emulator, "1001")
    with pytest.raises(DependsOnDialect, match="resend_after"):
        emulator.copy_to(inbox, "high-guarantee")
    emulator.say("1001", "1002", "x")
    await emulator.deliver()
    assert len(inbox.deliveries) == 1
    emulator.copy_to(None)
    await group_of(emulator, "1001")
