"""The control interface: each command, what it refuses, and that it is off unless asked for."""

import json
import re
from datetime import date, timedelta

import pytest

from helpers.emulators import client_of
from helpers.paths import DOCS
from helpers.rawclient import ask, http
from rbim import GroupType, Permission
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults.requests import Fault, Latency, Refuse, Status
from rbim.emulator.server import control
from rbim.emulator.server.commands import ABOUT, COMMANDS, PREFIX
from rbim.emulator.server.control import Control
from rbim.emulator.server.server import serve
from rbim.testing.conformance.server import RawServer, reply


async def asgi(app, method, path, body=b""):
    """Ask an ASGI app and return the two events that it answers with."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event):
        sent.append(event)

    await app({"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}, receive, send)
    return sent


@pytest.fixture
def control_of():
    """A function that gives a function which carries out commands of an emulator and returns status and document."""

    def control_of(emulator, **options):
        app = Control(emulator, **options)

        async def call(method, path, document=None, *, raw=None):
            body = raw if raw is not None else b"" if document is None else json.dumps(document).encode()
            start, sent = await asgi(app, method, f"/_emulator/{path}", body)
            call.headers = {name.decode(): value.decode() for name, value in start["headers"]}
            assert call.headers["content-type"] == "application/json;charset=utf-8"
            return start["status"], json.loads(sent["body"])

        return call

    return control_of


@pytest.fixture
def call(emulator, control_of):
    return control_of(emulator)


async def a_group(emulator, **facts):
    async with client_of(emulator) as client:
        return (await client.groups.create(**{"name": "产品公告", "type": GroupType.TEMPORARY} | facts)).group_id


async def test_the_index_tells_what_this_is_and_every_command(call):
    status, document = await call("GET", "")
    assert (status, document["about"]) == (200, ABOUT)
    assert list(document["commands"]) == [f"{each.method} {each.path}" for each in COMMANDS]
    assert all(text.endswith(".") for text in document["commands"].values())


def rows_of(text, pattern):
    return [(method, path, does.strip()) for method, path, does in re.findall(pattern, text, re.MULTILINE)]


def in_tables():
    return [(each.method, each.path, each.help[0].lower() + each.help[1:].rstrip(".")) for each in COMMANDS]


def test_the_docs_have_the_very_commands_that_there_are():
    assert rows_of(control.__doc__, r"^([A-Z]+) +(/_emulator/\S*) +(.*)$") == in_tables()
    page = (DOCS / "emulator.md").read_text(encoding="utf-8")
    assert rows_of(page, r"^\| `([A-Z]+) (/_emulator/\S*)` \| (.*) \|$") == in_tables()


async def test_state_is_told_and_taken_back(emulator, call, control_of):
    group_id = await a_group(emulator)
    status, document = await call("GET", "state")
    assert (status, [group["group_id"] for group in document["groups"]]) == (200, [group_id])
    other = Emulator(clock=EmulatedClock())
    assert await control_of(other)("PUT", "state", document) == (200, {"groups": 1, "tasks": 0})
    assert other.snapshot() == emulator.snapshot()


@pytest.mark.parametrize("document", [[], {}, {"version": 99}, {"version": 1, "groups": [{}]}, {"version": 1, "what": 1}])
async def test_a_wrong_state_changes_nothing(emulator, call, document):
    await a_group(emulator)
    before = emulator.snapshot()
    status, told = await call("PUT", "state", document)
    assert (status, bool(told["error"])) == (400, True)
    assert emulator.snapshot() == before


async def test_a_reset_goes_back_to_the_beginning(control_of):
    emulator = Emulator(clock=EmulatedClock(auto=True))
    group_id = await a_group(emulator)
    emulator.faults.add(Fault(effect=Status(503), nth=(2,)))
    emulator.copy_to(_taken)
    call = control_of(emulator)
    first = emulator.say("1001", "1002", "x")
    await a_group(emulator)
    await call("PUT", "faults", [])
    await call("PUT", "copy-faults", [{"effect": {"kind": "duplicate"}}])
    await call("DELETE", "copy")
    async with client_of(emulator) as client:
        await client.groups.delete(group_id=group_id)
    assert await call("POST", "reset") == (200, {"groups": 1, "tasks": 0})
    assert list(emulator.state.groups) == [group_id]
    assert [fault.effect for fault in emulator.faults] == [Status(503)]
    assert (list(emulator.copy_faults), len(emulator.requests), len(emulator.deliveries)) == ([], 0, 0)
    assert (await call("GET", "copy"))[1] == {"url": None, "mode": "normal"}
    assert emulator.say("1001", "1002", "x") == first
    async with client_of(emulator) as client:  # and the plan counts from its beginning
        await client.groups.search()
        await client.groups.search()
    assert [record.trouble for record in emulator.requests][:2] == [(), ("status",)]


async def _taken(_headers, _body):
    return 200


async def test_the_fault_plan_is_told_replaced_and_emptied(emulator, call):
    plan = [
        {"effect": {"kind": "latency", "seconds": 0.5, "sigma": 0.25}, "operation": "CreateGroup", "every": 3},
        {"effect": {"kind": "refuse"}, "match": {"group_id": "g1"}, "times": 2},
    ]
    assert (await call("PUT", "faults", plan))[0] == 200
    assert list(emulator.faults) == [
        Fault(effect=Latency(0.5, 0.25), operation="CreateGroup", every=3),
        Fault(effect=Refuse(), match={"group_id": "g1"}, times=2),
    ]
    status, told = await call("GET", "faults")
    assert (status, told) == (200, plan)
    for wrong in ({}, [{}], [{"effect": {"kind": "explode"}}]):
        status, why = await call("PUT", "faults", wrong)
        assert (status, bool(why["error"])) == (400, True)
    assert await call("GET", "faults") == (200, plan)
    assert await call("DELETE", "faults") == (200, [])
    assert list(emulator.faults) == []
    emulator.faults.add(Fault(effect=Refuse(), match=lambda op: op.name == "x"))
    assert await call("GET", "faults") == (200, [{"effect": {"kind": "refuse"}, "match": "a function"}])


async def test_requests_are_told_and_forgotten(emulator, call):
    group_id = await a_group(emulator)
    status, (record,) = await call("GET", "requests")
    assert (status, record["code"], record["effect"]) == (200, "000000", True)
    assert (record["operation"], record["values"]["name"]) == ("CreateGroup", "产品公告")
    assert record["path"] == f"/2013-12-26/Application/{emulator.credentials.app_id}/IM/Group/CreateGroup"
    assert await call("DELETE", "requests") == (200, [])
    assert len(emulator.requests) == 0
    assert group_id in emulator.state.groups


async def test_an_emulated_clock_is_told_and_advanced(call):
    assert await call("GET", "clock") == (200, {"now": "2026-01-02T03:04:05+00:00", "monotonic": 0.0, "emulated": True})
    later = {"now": "2026-01-03T04:04:15+00:00", "monotonic": 90010.0, "emulated": True}
    assert await call("POST", "clock/advance", {"hours": 25, "seconds": 10}) == (200, later)
    for wrong in ({"seconds": -1}, {"seconds": "1"}, {"hours": True}, {"hours": 1e9}, {"minutes": 1}, [], None, 1):
        status, why = await call("POST", "clock/advance", wrong)
        assert (status, bool(why["error"])) == (400, True)
    assert (await call("GET", "clock"))[1] == later


async def test_the_machines_clock_is_told_and_not_advanced(control_of):
    call = control_of(Emulator())
    assert (await call("GET", "clock"))[1]["emulated"] is False
    status, why = await call("POST", "clock/advance", {"seconds": 1})
    assert (status, why["error"]) == (
        409,
        "the emulator uses the system clock, which cannot be advanced: start it with rbim emulator --emulated-clock",
    )


async def test_tasks_are_told_and_whether_they_may_call(emulator, call):
    async with client_of(emulator) as client:
        task = await client.calls.create_task(
            bot_id=7,
            task_name="回访",
            start_date=date(2026, 1, 2),
            end_date=date(2026, 1, 2),
            max_concurrent=5,
            min_concurrent=1,
            isrecord=True,
            caller="02187654321",
        )
    status, (told,) = await call("GET", "tasks")
    assert (status, told["task_id"], told["request"]["task_name"]) == (200, task.task_id, "回访")
    path = f"tasks/{task.task_id}/may-call"
    now = "2026-01-02T03:04:05+00:00"  # 11:04:05 in China
    assert await call("GET", path) == (200, {"task_id": task.task_id, "at": now, "may_call": True})
    await call("POST", "clock/advance", {"hours": 24})
    assert (await call("GET", path))[1]["may_call"] is False
    assert (await call("GET", "tasks/nope/may-call"))[0] == 404


async def test_what_the_interface_cannot_express(emulator, call):
    emulator.never_logged_in("1009")
    group_id = await a_group(emulator, permission=Permission.VERIFIED)
    async with client_of(emulator) as client:
        await client.groups.invite(group_id=group_id, members=["1001", "1002"], needs_confirmation=True)
        for account in ("1003", "1004"):
            await client.acting_as(account).groups.join(group_id=group_id)
    settled = {
        "invitations/confirm": "1001",
        "invitations/decline": "1002",
        "applications/approve": "1003",
        "applications/reject": "1004",
    }
    for path, account in settled.items():
        waiting = {"group_id": group_id, "account": account}
        assert await call("POST", path, waiting) == (200, waiting)
        status, why = await call("POST", path, waiting)  # it waits no more
        assert (status, account in why["error"]) == (404, True)
    group = emulator.state.groups[group_id]
    assert (list(group.members), list(group.invited), list(group.applied)) == (["admin", "1001", "1003"], [], [])
    assert await call("POST", "logins", {"account": "1009"}) == (200, {"account": "1009"})
    assert emulator.state.has_logged_in("1009")
    assert (await call("POST", "logins", {"account": "1009"}))[0] == 404
    for path in settled:
        assert f"POST {PREFIX}{path}" in (await call("GET", ""))[1]["commands"]


async def test_a_full_group_takes_nobody(emulator, call):
    group_id = await a_group(emulator)
    async with client_of(emulator) as client:
        await client.groups.invite(group_id=group_id, members=["late"], needs_confirmation=True)
        for at in range(0, 99, 33):
            await client.groups.invite(group_id=group_id, members=[f"m{n}" for n in range(at, at + 33)])
    status, why = await call("POST", "invitations/confirm", {"group_id": group_id, "account": "late"})
    assert (status, why) == (409, {"error": f"{group_id} is full"})


async def test_what_is_said_is_copied_and_told(emulator, call):
    got = []

    async def receive(headers, body):
        got.append((headers, body))
        return 200

    group_id = await a_group(emulator)
    emulator.copy_to(receive)
    said = [
        await call("POST", "say", {"sender": "1001", "to": "1002", "text": "你好", "at_user": ["1003"], "antispam": True}),
        await call("POST", "say", {"sender": "admin", "to": group_id, "text": ""}),
        await call("POST", "push", {"to": ["1001", "1002"], "text": "通知", "save": False}),
        await call("POST", "push", {"to": group_id, "text": "通知", "sender": "1001"}),
        await call("POST", "notify", {"group_id": group_id, "notice": "TEAM_UPDATE", "members": ["1001"]}),
    ]
    assert [status for status, _ in said] == [200] * 5
    await emulator.deliver()
    kinds = ["PERSON", "TEAM", "CUSTOM_PERSON", "CUSTOM_TEAM", "NOTIFY_TEAM"]
    assert sorted(json.loads(body)["convType"] for _, body in got) == sorted(kinds)
    status, told = await call("GET", "deliveries")
    assert (status, [each["message_id"] for each in told]) == (200, [document["message_id"] for _, document in said])
    assert [(each["status"], each["reason"], each["attempt"]) for each in told] == [(200, "", 1)] * 5
    assert await call("DELETE", "deliveries") == (200, [])
    assert len(emulator.deliveries) == 0


@pytest.mark.parametrize(
    ("path", "document", "status"),
    [
        ("say", {"sender": "1001"}, 400),
        ("say", {"sender": "1001", "to": "1002", "text": 5}, 400),
        ("say", {"sender": "1001", "to": "1002", "at_user": "1003"}, 400),
        ("say", {"sender": "1001", "to": "1002", "msg_type": "SMELL"}, 400),
        ("say", {"sender": "1001", "to": "1002", "colour": "red"}, 400),
        ("say", {"sender": "", "to": "1002"}, 400),
        ("say", {"sender": "1001", "to": "g80000000000000"}, 404),
        ("push", {"to": 5}, 400),
        ("push", {"to": []}, 400),
        ("notify", {"group_id": "g1", "notice": "NOTHING"}, 400),
    ],
)
async def test_what_cannot_be_said(emulator, call, path, document, status):
    got, why = await call("POST", path, document)
    assert (got, bool(why["error"])) == (status, True)
    assert len(emulator.deliveries) == 0


async def test_the_copy_target_is_told_set_and_dropped(call):
    assert await call("GET", "copy") == (200, None)
    target = {"url": "http://127.0.0.1:9/copy", "mode": "high-guarantee"}
    assert await call("PUT", "copy", target) == (200, target)
    assert await call("GET", "copy") == (200, target)
    assert await call("PUT", "copy", {"url": target["url"]}) == (200, target | {"mode": "normal"})
    for wrong in ({"url": "nowhere"}, {"url": target["url"], "mode": "never"}, {"url": target["url"], "mode": 1}, {}):
        assert (await call("PUT", "copy", wrong))[0] == 400
    assert await call("DELETE", "copy") == (200, None)
    assert await call("GET", "copy") == (200, None)


async def test_the_fault_plan_of_copies_is_told_replaced_and_emptied(emulator, call):
    plan = [{"effect": {"kind": "delay", "seconds": 2.0}, "match": {"convType": "TEAM"}, "nth": [1, 2]}]
    status, told = await call("PUT", "copy-faults", plan)
    assert (status, told[0]["match"], told[0]["nth"]) == (200, {"convType": "TEAM"}, [1, 2])
    assert told[0]["effect"].items() >= {"kind": "delay", "seconds": 2.0}.items()
    assert (await call("PUT", "copy-faults", told)) == (200, told)
    assert (await call("PUT", "copy-faults", {}))[0] == 400
    assert len(list(emulator.copy_faults)) == 1
    assert await call("DELETE", "copy-faults") == (200, [])
    assert list(emulator.copy_faults) == []


@pytest.mark.parametrize(
    ("method", "path", "raw", "status"),
    [
        ("GET", "nothing", b"", 404),
        ("GET", "state/", b"", 404),
        ("GET", "tasks//may-call", b"", 404),
        ("POST", "", b"", 405),
        ("DELETE", "state", b"", 405),
        ("PUT", "state", b"", 400),
        ("PUT", "state", b"{", 400),
        ("PUT", "faults", b"\xff", 400),
        ("PUT", "faults", b"NaN", 400),
        ("PUT", "faults", b"[" * 100_000, 400),
        ("POST", "logins", b'{"account": "\\ud800"}', 400),
        ("POST", "logins", b'{"account": 1}', 400),
        ("POST", "logins", b"{}", 400),
        ("POST", "logins", b'"account"', 400),
        ("POST", "outage", b'{"seconds": "long"}', 400),
    ],
)
async def test_junk_is_a_json_error(emulator, call, method, path, raw, status):
    before = emulator.snapshot()
    got, document = await call(method, path, raw=raw)
    assert (got, list(document)) == (status, ["error"])
    assert document["error"]
    if status == 405:
        allowed = {"": "GET", "state": "GET, PUT"}
        assert call.headers["allow"] == allowed[path]
    assert (emulator.snapshot(), len(emulator.requests)) == (before, 0)


async def test_too_long_a_body_is_a_json_error(call, monkeypatch):
    monkeypatch.setattr(control, "BODY_LIMIT", 10)
    assert await call("PUT", "faults", ["0123456789"]) == (413, {"error": "the body is too large (at most 10 bytes)"})


async def test_an_outage_needs_a_server_that_can(call):
    status, why = await call("POST", "outage", {"seconds": 1})
    assert (status, why["error"]) == (
        409,
        "this server cannot refuse connections: serve the emulator with rbim emulator",
    )


async def test_no_answer_holds_the_token(emulator, call):
    await a_group(emulator)
    emulator.copy_to(_taken)
    emulator.say("1001", "1002", "a")
    await emulator.deliver()
    token = emulator.credentials.app_token.reveal()
    for each in COMMANDS:
        if each.method == "GET":
            assert token not in json.dumps(await call("GET", each.path.removeprefix(PREFIX)))


async def test_it_is_off_unless_asked_for(emulator):
    _, answer = await asgi(emulator.asgi, "POST", "/_emulator/reset")
    assert json.loads(answer["body"])["statusCode"] != "000000"
    assert len(emulator.requests) == 1


async def test_a_command_that_does_not_come_whole_is_not_carried_out(emulator):
    await a_group(emulator)

    async def leave():
        return {"type": "http.disconnect"}

    before = emulator.snapshot()
    await Control(emulator)({"type": "http", "method": "POST", "path": "/_emulator/reset"}, leave, None)
    assert (emulator.snapshot(), len(emulator.requests)) == (before, 1)


async def test_what_is_not_its_own_is_the_emulators(emulator):
    for path in ("/_emulator", "/", "/2013-12-26/Application/a/IM/Group/CreateGroup"):
        _, answer = await asgi(Control(emulator), "POST", path)
        assert "statusCode" in json.loads(answer["body"])
    assert len(emulator.requests) == 3


class TestOverSockets:
    @pytest.fixture
    def anyio_backend(self):
        return "asyncio"

    async def test_an_outage_is_told_and_then_is(self, emulator):
        async with serve(emulator) as server:
            answer = await ask(server, http("POST", "/_emulator/outage", b'{"seconds": 30}'))
            assert (answer.status, answer.document) == (200, {"seconds": 30.0})
            with pytest.raises(ConnectionRefusedError):
                await ask(server, http("GET", "/_emulator/"))
            await emulator.clock.advance(30)
            assert (await ask(server, http("GET", "/_emulator/"))).document["about"] == ABOUT

    async def test_it_can_be_left_out(self, emulator):
        async with serve(emulator, control=False) as server:
            assert "statusCode" in (await ask(server, http("GET", "/_emulator/"))).document

    async def test_copies_are_delivered_as_they_come_and_resent_in_time(self, emulator):
        with RawServer(reply(b"", "503 Busy"), reply(b"")) as receiver:
            async with serve(emulator) as server:

                async def call(method, path, document=None):
                    body = b"" if document is None else json.dumps(document).encode()
                    return (await ask(server, http(method, f"/_emulator/{path}", body))).document

                await call("PUT", "copy", {"url": receiver.url() + "/copy", "mode": "high-guarantee"})
                said = await call("POST", "say", {"sender": "1001", "to": "1002", "text": "你好"})
                for _ in range(1000):
                    if emulator.deliveries:
                        break
                    await call("GET", "clock")
                hours = timedelta(seconds=sum(emulator.dialect.resend_after)) / timedelta(hours=1)
                await call("POST", "clock/advance", {"hours": hours})
                told = await call("GET", "deliveries")
        assert [(each["message_id"], each["status"]) for each in told] == [
            (said["message_id"], 503),
            (said["message_id"], 200),
        ]
        assert [json.loads(request.body).get("resendFlag") for request in receiver.requests] == [None, "1"]
