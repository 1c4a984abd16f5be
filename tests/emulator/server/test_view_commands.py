"""The commands that show parts of the emulator and change single entries: bounded lists, single requests, secrets."""

import asyncio
import hashlib
import json

import pytest

from helpers.credentials import TOKEN
from helpers.emulators import box
from helpers.rawclient import JSON, ask, http, signed
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.asgi import KEPT, MAX_BODY
from rbim.emulator.faults import CopyFault, Duplicate, Fault, Stale, Status
from rbim.emulator.server.page import MASK
from rbim.emulator.server.server import serve


@pytest.fixture
def own():
    """An emulator with credentials that it made itself."""
    return Emulator(clock=EmulatedClock())


async def told(server, path, method="GET", document=None):
    """Return status and document of a command."""
    body = b"" if document is None else json.dumps(document).encode()
    answer = await ask(server, http(method, f"/_emulator/{path}", body, *([] if method == "GET" else [JSON])))
    return answer.status, answer.document


async def test_a_request_is_shown_as_it_was_sent_and_answered(own):
    async with serve(own) as server:
        sent = signed(own, "CreateGroup", name="产品公告", type="1")
        made = await ask(server, sent)
        status, shown = await told(server, "requests/1")
    head, _, body = sent.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    exchange = shown["exchange"]
    assert (status, shown["number"]) == (200, 1)
    assert first == f"{exchange['method']} {exchange['path']}?{exchange['query']} HTTP/1.1"
    assert [f"{name}: {value}".lower() for name, value in exchange["headers"]] == [each.lower() for each in lines]
    assert exchange["body"] == {"text": body.decode(), "size": len(body), "cut": False}
    answer = shown["answer"]
    assert (answer["status"], answer["sent"], answer["body"]["text"]) == (200, True, made.body.decode())
    assert exchange["took"] == 0.0


async def test_the_latest_requests_are_kept_and_long_bodies_are_cut(own):
    async with serve(own) as server:
        long = http("POST", "/long", b"\xe5\x85\xac" * MAX_BODY)
        await ask(server, long)
        _, shown = await told(server, "requests/1")
        body = shown["exchange"]["body"]
        assert (body["size"], body["cut"], shown["curl"]) == (3 * MAX_BODY, True, None)
        assert set(body["text"]) == {"公"}
        assert len(body["text"]) == MAX_BODY // 3
        await ask(server, http("POST", "/binary", b"\xff\0"))
        assert (await told(server, "requests/2"))[1]["exchange"]["body"] == {"base64": "/wA=", "size": 2, "cut": False}
        for _ in range(KEPT - 1):
            await own.asgi(
                {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}, _receive, _send
            )
        status, shown = await told(server, "requests/1")
        assert (status, shown) == (200, {"number": 1, "exchange": None, "answer": None, "curl": None})
        assert (await told(server, "requests/2"))[1]["exchange"]["path"] == "/binary"
        own.requests.clear()
        for wanted in ("1", "0", "-1", "x", "²", "9" * 40):
            assert (await told(server, f"requests/{wanted}"))[0] in {400, 404}


async def _receive():
    return {"type": "http.request", "body": b""}


async def _send(_message):
    pass


async def test_signatures_of_a_configured_token_are_masked_and_no_token_is_shown():
    configured = box()
    assert not configured.own_credentials
    async with serve(configured, sign_copies=True) as server:
        await ask(server, signed(configured, "CreateGroup", name=f"has {TOKEN}", type="1"))
        _, shown = await told(server, "requests/1")
        headers = dict(shown["exchange"]["headers"])
        assert (shown["exchange"]["query"], headers["authorization"]) == (MASK, MASK)
        assert f"has {MASK}" in shown["exchange"]["body"]["text"]
        assert "sig=" in shown["curl"]
        assert TOKEN not in json.dumps(shown)
        configured.copy_to(_accepting)
        configured.say("1001", "1002", f"has {TOKEN}")
        await _until(lambda: len(configured.deliveries) == 1)
        _, messages = await told(server, "messages")
        assert messages["messages"][0]["attempts"][0]["headers"]["CheckSum"] == MASK
        assert TOKEN not in json.dumps(messages)


async def _accepting(_headers, _body):
    return 200


async def _until(true):
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0)


async def test_groups_and_accounts_are_listed_the_newest_first_and_bounded(own):
    own.never_logged_in("1009")
    async with serve(own) as server:
        for number in range(205):
            await ask(server, signed(own, "CreateGroup", name=f"Team {number}", type="1", permission="1"))
        group_id = list(own.state.groups)[-1]
        await ask(server, signed(own, "InviteJoinGroup", groupId=group_id, members=["1001"], confirm="0"))
        await ask(server, signed(own, "JoinGroup", groupId=group_id, userName="1002"))
        _, listed = await told(server, "groups")
        assert (listed["total"], len(listed["groups"])) == (205, 200)
        assert [each["name"] for each in listed["groups"][:2]] == ["Team 204", "Team 203"]
        assert (listed["groups"][0]["invited"], listed["groups"][0]["applied"]) == (1, 1)
        _, one = await told(server, f"groups/{group_id}")
        assert one["accounts"] == [{"account": "admin", "role": "0"}]
        assert (one["invitations"], one["applications"]) == (["1001"], ["1002"])
        assert (await told(server, "groups/g1"))[0] == 404
        _, found = await told(server, "groups/with/TEAM%2010")
        assert [each["name"] for each in found["groups"]] == [f"Team {n}" for n in [*range(109, 99, -1), 10]]
        _, found = await told(server, f"groups/with/{group_id[-4:]}")
        assert group_id in [each["group_id"] for each in found["groups"]]
        _, listed = await told(server, "accounts")
        assert {each["account"]: (each["groups"], each["logged_in"]) for each in listed["accounts"]} == {
            "admin": (205, True),
            "1001": (0, True),
            "1002": (0, True),
            "1009": (0, False),
        }


async def test_single_faults_are_added_counted_and_removed_while_the_others_go_on(own):
    async with serve(own) as server:
        document = {"effect": {"kind": "status", "status": 503}, "every": 2}
        assert (await told(server, "faults", "POST", document))[0] == 200
        assert await told(server, "faults/counts") == (200, [{"matched": 0, "happened": 0}])
        for _ in range(3):
            await ask(server, signed(own, "SearchPublicGroups"))
        assert (await told(server, "faults", "POST", {"effect": {"kind": "refuse"}, "times": 0}))[0] == 200
        assert (await told(server, "faults/counts"))[1] == [{"matched": 3, "happened": 1}, {"matched": 0, "happened": 0}]
        assert await told(server, "faults/2", "DELETE") == (200, [{"matched": 3, "happened": 1}])
        assert await told(server, "faults/counts") == (200, [{"matched": 3, "happened": 1}])
        assert list(own.faults) == [Fault(effect=Status(503), every=2)]
        for number, status in (("2", 404), ("0", 404), ("x", 400), ("9" * 30, 400)):
            assert (await told(server, f"faults/{number}", "DELETE"))[0] == status
        assert (await told(server, "faults", "POST", [document]))[0] == 400
        assert (await told(server, "copy-faults", "POST", {"effect": {"kind": "duplicate"}}))[0] == 200
        assert list(own.copy_faults) == [CopyFault(effect=Duplicate())]
        assert await told(server, "copy-faults/counts") == (200, [{"matched": 0, "happened": 0}])
        assert await told(server, "copy-faults/1", "DELETE") == (200, [])


async def test_a_message_is_delivered_again_as_a_resend_and_without_its_faults(own):
    received = []

    async def receiver(headers, body):
        received.append((headers, body))
        return 500

    async with serve(own) as server:
        assert (await told(server, "deliveries/again", "POST", {"number": 1}))[0] == 409  # no target
        own.copy_to(receiver)
        assert (await told(server, "deliveries/again", "POST", {"number": 1}))[0] == 404
        for wrong in (True, 1.9, "1"):
            assert (await told(server, "deliveries/again", "POST", {"number": wrong}))[0] == 400
        own.copy_faults.add(CopyFault(effect=Stale(60), nth=(1,), attempts=()))
        for text in ("first", "second"):
            own.say("1001", "1002", text)
            await _until(lambda: len(own.deliveries) == len(received) > 0)
        await _until(lambda: len(received) == 2)
        await _until(lambda: len(own.deliveries) == 2)
        own.clock.elapsed += 60
        for number, count in ((2, 3), (2, 4), (1, 5)):
            assert await told(server, "deliveries/again", "POST", {"number": number}) == (200, {"number": number})
            await _until(lambda count=count: len(own.deliveries) == count)
        again = json.loads(received[2][1])
        assert again == {**json.loads(received[1][1]), "resendFlag": "1"}
        headers, body = received[2]
        digest = hashlib.md5(body).hexdigest().upper()
        token = own.credentials.app_token.reveal()
        signed_text = own.credentials.app_id + token + digest + headers["CurTime"]
        assert headers["CheckSum"] == hashlib.md5(signed_text.encode()).hexdigest().upper()
        assert int(headers["CurTime"]) - int(received[1][0]["CurTime"]) == 60_000
        _, listed = await told(server, "messages")
        assert [each["number"] for each in listed["messages"]] == [2, 1]
        assert [each["attempt"] for each in listed["messages"][0]["attempts"]] == [1, 2, 3]
        stamps = [int(headers["CurTime"]) for headers, _ in received]
        assert stamps[4] - stamps[0] == 120_000  # the fault of the first delivery does not apply
