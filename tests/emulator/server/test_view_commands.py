"""The commands that show parts of the emulator and change single entries: bounded lists, single requests, secrets."""

import asyncio
import hashlib
import json
import subprocess
from datetime import timedelta, timezone

import pytest

from helpers.credentials import APP_ID, TOKEN
from helpers.emulators import box, client_of
from helpers.rawclient import JSON, ask, http, signed
from rbim import Credentials, GroupType
from rbim.dialect import Dialect
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.exchanges import FEW, KEPT, LONGEST
from rbim.emulator.faults.copies import CopyFault, Duplicate, Stale
from rbim.emulator.faults.requests import Fault, Latency, ResetBefore, Status
from rbim.emulator.server.control import Control
from rbim.emulator.server.server import serve
from rbim.emulator.server.view_commands import MASK, as_curl


@pytest.fixture
def anyio_backend():
    return "asyncio"


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


async def test_a_request_shows_what_was_not_sent_and_how_long_an_answer_took(own):
    own.faults.add(Fault(effect=ResetBefore(), nth=(1,)), Fault(effect=Latency(90), nth=(2,)))
    async with serve(own) as server:
        with pytest.raises((ConnectionResetError, EOFError)):
            await ask(server, signed(own, "SearchPublicGroups"))
        assert (await told(server, "requests/1"))[1]["answer"]["sent"] is False
        waiting = asyncio.ensure_future(ask(server, signed(own, "SearchPublicGroups")))
        while len(own.requests) < 2:
            await asyncio.sleep(0)
        assert (await told(server, "requests/2"))[1]["exchange"]["took"] is None
        await own.advance(90)
        await waiting
        assert (await told(server, "requests/2"))[1]["exchange"]["took"] == 90.0


async def test_a_request_that_the_emulator_cannot_answer_is_shown_without_an_answer():
    strict = Emulator(clock=EmulatedClock(), strict_dialect=True)
    async with serve(strict) as server:
        made = await ask(server, signed(strict, "CreateGroup", name="a", type="1", permission="1"))
        assert (await ask(server, signed(strict, "ModifyGroup", groupId=made.document["groupId"], name="b"))).status == 500
        status, shown = await told(server, "requests/2")
        assert (status, shown["answer"], shown["exchange"]["took"]) == (200, None, None)
        assert shown["exchange"]["path"].endswith("/ModifyGroup")


async def test_the_latest_requests_are_kept_and_long_bodies_are_cut(own):
    async with serve(own) as server:
        long = http("POST", "/long", b"\xe5\x85\xac" * LONGEST)
        await ask(server, long)
        _, shown = await told(server, "requests/1")
        body = shown["exchange"]["body"]
        assert (body["size"], body["cut"], shown["curl"]) == (3 * LONGEST, True, None)
        assert set(body["text"]) == {"公"}
        assert len(body["text"]) == LONGEST // 3
        await ask(server, http("POST", "/binary", b"\xff\0"))
        assert (await told(server, "requests/2"))[1]["exchange"]["body"] == {"base64": "/wA=", "size": 2, "cut": False}
        for _ in range(FEW - 1):
            await ask(server, http("POST", "/next"))
        status, shown = await told(server, "requests/1")
        assert (status, shown) == (200, {"number": 1, "exchange": None, "answer": None, "curl": None})
        own.asgi.exchanges.expand()
        for _ in range(KEPT - FEW):
            await own.asgi(
                {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}, _receive, _send
            )
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


async def test_newest_tasks_are_listed_with_whether_they_may_call(own):
    async with serve(own) as server:
        today = (own.clock.now() + timedelta(hours=8)).date().isoformat()
        assert await told(server, "tasks/newest") == (200, {"total": 0, "tasks": []})
        document = own.export()
        assert own.may_call is not None
        document["tasks"] = [
            {
                "task_id": "7",
                "created": own.clock.now().isoformat(),
                "request": {
                    "bot_id": 1,
                    "task_name": "回访",
                    "start_date": today,
                    "end_date": today,
                    "max_concurrent": 2,
                    "min_concurrent": 1,
                    "caller": "01012345678",
                },
            }
        ]
        own.load(document)
        _, listed = await told(server, "tasks/newest")
        (task,) = listed["tasks"]
        assert (task["task_id"], task["name"], task["may_call"]) == ("7", "回访", own.may_call("7"))


# Requests as commands.

PATH = f"/2013-12-26/Application/{APP_ID}/IM/Group/CreateGroup"


def run(command, **variables):
    """Run a command in a shell with a curl that prints its arguments, each in a line of its own, and its input."""
    fake = 'curl() { printf "%s\\0" "$@"; if printf %s "$*" | grep -q "binary @-"; then cat; fi; }; '
    environment = {"PATH": "/usr/bin:/bin", "RBIM_BASE_URL": "http://h:1", "RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN}
    ran = subprocess.run(["bash", "-c", fake + command], env=environment | variables, capture_output=True, check=True)
    return ran.stdout.split(b"\0")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"name": "it\'s"}',
        '{"name": "公告 $HOME `id` \\\\ ! \n\t"}'.encode(),
        b"@/etc/passwd",
        b"\0\xff binary",
        "\u202eabc".encode(),
        b"\x1b[31m",
    ],
)
def test_a_body_reaches_curl_byte_for_byte(body):
    command = as_curl(PATH, body, app_id=APP_ID, zone=timezone(timedelta(hours=8)))
    arguments = run(command)
    assert arguments[1].startswith(f"http://h:1{PATH}?sig=".encode())
    if b"--data-raw" in arguments:
        assert arguments[arguments.index(b"--data-raw") + 1] == body
    else:
        at = arguments.index(b"--data-binary")
        assert arguments[at + 1] == b"@-"
        assert b"\0".join(arguments[at + 2 :]) == body
    assert command.isprintable() or all(each.isprintable() or each in "\n\t" for each in command)
    assert TOKEN not in command


@pytest.mark.parametrize("path", ["/a b/$HOME/`id`", '/"quoted"/!x', "/公告", "/", "//x", "/%41"])
def test_a_path_reaches_curl_percent_encoded(path):
    from urllib.parse import unquote

    address = run(as_curl(path, b"{}", app_id=APP_ID, zone=timezone(timedelta(hours=8))))[1].decode()
    sent = address.removeprefix("http://h:1/").partition("?sig=")[0]
    assert unquote(sent) == path.lstrip("/")
    assert not set(sent) & set("$`\"'! ")


def test_the_method_and_the_zone_are_those_of_the_request():
    assert " -X DELETE " in as_curl("/x", b"", app_id=APP_ID, method="DELETE", zone=timezone(timedelta(hours=8)))
    assert "-X" not in as_curl("/x", b"", app_id=APP_ID, zone=timezone(timedelta(hours=8)))
    assert "TZ=Asia/Shanghai" in as_curl("/x", b"", app_id=APP_ID, zone=Dialect().zone)
    for hours in (-3.5, 0, 5.75):
        zone = timezone(timedelta(hours=hours))
        line = as_curl("/x", b"", app_id=APP_ID, zone=zone).split("\n")[0].replace("date ", "date -d @1767225600 ")
        assert run(f"{line}; printf %s $stamp")[0].decode() == _stamp(zone)


def _stamp(zone):
    from datetime import datetime

    return datetime.fromtimestamp(1767225600, zone).strftime("%Y%m%d%H%M%S")


def test_the_fixed_credentials_of_the_tests_are_not_the_emulators_own():
    assert box().credentials == Credentials(app_id=APP_ID, app_token=TOKEN)


async def test_a_body_that_is_no_json_is_delivered_again_as_it_is(own):
    received = []

    async def receiver(_headers, body):
        received.append(body)
        return 200

    own.copy_to(receiver)
    own.copy_raw(b"\xff not JSON")
    await own.deliver()
    own.send_again(1)
    await own.deliver()
    assert received == [b"\xff not JSON"] * 2
    own.copy_to(None)
    own.send_again(1)  # nowhere
    await own.deliver()
    assert len(received) == 2
    with pytest.raises(LookupError, match="no delivery of a message 2"):
        own.send_again(2)


async def test_a_name_in_a_path_may_contain_everything(own):
    async with serve(own) as server:
        for name in ("a/b", "/", "up..", "50%2F", "甲/乙"):
            await ask(server, signed(own, "CreateGroup", name=name, type="1"))

        async def found(text):
            status, document = await told(server, f"groups/with/{text}")
            return status, [each["name"] for each in document.get("groups", [])]

        assert await found("a%2Fb") == (200, ["a/b"])
        assert await found("%2f") == (200, ["甲/乙", "/", "a/b"])
        assert await found("%E7%94%B2%2F%E4%B9%99") == (200, ["甲/乙"])
        assert await found("%252F") == (200, ["50%2F"])
        assert await found("..%20") == await found("..") == await found("%2E%2E") == (200, ["up.."])
        assert await found("a/b") == (404, [])
        assert await found("") == (404, [])
        status, document = await told(server, "groups/no%2Fgroup")
        assert (status, document["error"]) == (404, "there is no group no/group")
        assert (await told(server, "groups%2Fwith%2Fa"))[0] == 404


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        ({"raw_path": b"/_emulator/groups/with/a%2Fb"}, "a/b"),
        ({"raw_path": b"/_emulator/groups/with/a%2Fb?x=/"}, "a/b"),
        ({"raw_path": b"/in%20front/_emulator/groups/with/a%2Fb", "root_path": "/in front"}, "a/b"),
        ({"raw_path": b"/_emulator/groups/with/a%2Fb", "root_path": "/in front"}, "a/b"),
        ({"raw_path": b"/_emulator/groups/with/other"}, None),
        ({"raw_path": None}, None),
        ({}, None),
    ],
)
async def test_a_path_as_it_was_sent_is_used_if_a_server_gives_it(own, scope, text):
    async with client_of(own) as client:
        group = (await client.groups.create(name="a/b", type=GroupType.TEMPORARY)).group_id
    app, sent = Control(own, allowed_hosts=["localhost"]), []
    given = {
        "type": "http",
        "method": "GET",
        "path": f"{scope.get('root_path', '')}/_emulator/groups/with/a/b",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        **scope,
    }

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    await app(given, receive, send)
    document = json.loads(sent[1]["body"])
    if text is None:
        assert (sent[0]["status"], list(document)) == (404, ["error"])
    else:
        assert [each["group_id"] for each in document["groups"]] == [group]
