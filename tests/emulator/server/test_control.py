"""The control interface: each command, what it refuses, and that it is off unless asked for."""

import json
import re
from datetime import date
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from helpers.asgi_calls import asgi
from helpers.credentials import CREDENTIALS
from helpers.emulators import client_of
from helpers.paths import DOCS
from helpers.rawclient import JSON, ask, connected, http, signed
from helpers.tables import each_row
from rbim import GroupType, InvalidRequest, Permission
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults import Fault, Latency, Refuse, Status
from rbim.emulator.server.control import ABOUT, COMMANDS, PREFIX, Control
from rbim.emulator.server.server import serve


@pytest.fixture
def call(emulator, control_of):
    return control_of(emulator)


def at(url):
    """Return the address of a URL, as ``helpers.rawclient`` takes it."""
    parts = urlsplit(url)
    return SimpleNamespace(host=parts.hostname, port=parts.port)


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
    page = (DOCS / "emulator.md").read_text(encoding="utf-8")
    told = rows_of(page, r"^\| `([A-Z]+) (/_emulator/\S*)` \| (.*) \|$")
    of_copies = [
        (method, path.replace("/faults", "/copy-faults"), re.sub(r"\b(plan|each fault|one fault)", r"\1 of copies", does))
        for method, path, does in told
        if "/faults" in path
    ]
    at = told.index(next(row for row in told if row[1] == "/_emulator/requests"))
    assert [*told[:at], *of_copies, *told[at:]] == in_tables()


async def test_state_is_told_and_taken_back(emulator, call, control_of):
    group_id = await a_group(emulator)
    status, document = await call("GET", "state")
    assert (status, [group["group_id"] for group in document["groups"]]) == (200, [group_id])
    other = Emulator(clock=EmulatedClock())
    assert await control_of(other)("PUT", "state", document) == (200, {"groups": 1, "tasks": 0})
    assert other.snapshot() == emulator.snapshot()


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
    assert await call("DELETE", "faults") == (200, None)
    assert list(emulator.faults) == []
    emulator.faults.add(Fault(effect=Refuse(), match=lambda op: op.name == "x"))
    assert await call("GET", "faults") == (200, [{"effect": {"kind": "refuse"}, "match": "a function"}])


async def test_requests_are_told_and_forgotten(emulator, call):
    group_id = await a_group(emulator)
    status, (record,) = await call("GET", "requests")
    assert (status, record["code"], record["effect"]) == (200, "000000", True)
    assert (record["operation"], record["values"]["name"]) == ("CreateGroup", "产品公告")
    assert record["path"] == f"/2013-12-26/Application/{emulator.credentials.app_id}/IM/Group/CreateGroup"
    assert await call("DELETE", "requests") == (200, None)
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
    status, told = await call("GET", "tasks")
    (shown,) = told["tasks"]
    assert (status, told["total"], shown["task_id"], shown["name"]) == (200, 1, task.task_id, "回访")
    assert (shown["first_day"], shown["policies"], shown["may_call"]) == ("2026-01-02", [], True)
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
    assert await call("DELETE", "deliveries") == (200, None)
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
    assert await call("DELETE", "copy-faults") == (200, None)
    assert list(emulator.copy_faults) == []


@each_row(
    "method, path, raw, status",
    [
        ("GET", "nothing", b"", 404),
        ("GET", "tasks//may-call", b"", 404),
        ("POST", "", b"", 405),
        ("DELETE", "state", b"", 405),
        ("PUT", "state", b"{", 400),
        ("PUT", "faults", b"\xff", 400),
        ("PUT", "faults", b"NaN", 400),
        ("PUT", "faults", b"[" * 100_000 + b"]" * 100_000, 400),
        ("POST", "logins", b'{"account": "\\ud800"}', 400),
        ("POST", "logins", b'{"account": 1}', 400),
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


async def test_an_outage_needs_a_server_that_can(call):
    reason = {"error": "this server cannot refuse connections: serve the emulator with rbim emulator"}
    assert await call("POST", "outage", {"seconds": 1}) == (409, reason)
    assert await call("DELETE", "outage") == (409, reason)
    assert (await call("GET", ""))[1]["control"] is None


@each_row("types", [[], [b"text/plain"], [b"application/x-www-form-urlencoded"], [b"application/json"] * 2])
async def test_a_command_that_changes_something_must_be_json(types):
    emulator = Emulator(clock=EmulatedClock())
    await a_group(emulator)
    emulator.faults.add(Fault(effect=Refuse()))
    emulator.copy_to(_taken)
    app, before = Control(emulator), (emulator.snapshot(), len(emulator.requests), list(emulator.faults))
    destination = emulator.copier.destination
    headers = [(b"host", b"localhost"), *((b"content-type", each) for each in types)]
    body = b'{"sender": "1001", "to": "1002", "url": "http://127.0.0.1:9/", "seconds": 1}'
    for command in COMMANDS:
        if command.method != "GET":
            start, answer = await asgi(app, command.method, command.path, body, headers)
            assert start["status"] == 415, command.path
            assert "needs the header Content-Type: application/json" in json.loads(answer["body"])["error"]
    assert (emulator.snapshot(), len(emulator.requests), list(emulator.faults)) == before
    assert emulator.copier.destination is destination
    await emulator.deliver()
    assert (len(emulator.deliveries), emulator.clock.monotonic()) == (0, 0.0)


@each_row(
    "headers, named",
    [
        ([(b"host", b"evil.test")], "Host: 'evil.test'"),
        ([], "Host: (none)"),
        ([(b"host", b"localhost"), (b"origin", b"http://evil.test")], "Origin: 'http://evil.test'"),
        ([(b"host", b"localhost"), (b"sec-fetch-site", b"same-site")], "Sec-Fetch-Site: 'same-site'"),
    ],
)
async def test_under_another_server_pages_of_other_servers_are_refused_too(headers, named):
    emulator = Emulator(clock=EmulatedClock())
    await a_group(emulator)
    before = emulator.snapshot()
    paths = (
        "/_emulator/reset",
        "/_emulator/nothing",
        f"/2013-12-26/Application/{emulator.credentials.app_id}/IM/Group/CreateGroup",
    )
    for path in paths:
        start, answer = await asgi(
            Control(emulator), "POST", path, b"{}", [*headers, (b"content-type", b"application/json")]
        )
        document = json.loads(answer["body"])
        assert start["status"] == 403
        assert document["error"].startswith(named)
        assert document["statusMsg"] == document["error"]  # where a client of the platform looks
    assert (emulator.snapshot(), len(emulator.requests)) == (before, 1)


async def test_a_name_can_be_allowed(emulator):
    headers = [(b"host", b"emulator:8883")]
    start, _ = await asgi(Control(emulator, allowed_hosts=["emulator"]), "GET", "/_emulator/", b"", headers)
    assert start["status"] == 200
    for make in (Control, serve):
        with pytest.raises(InvalidRequest, match="allowed_hosts: invalid host 'http://emulator'") as caught:
            make(emulator, allowed_hosts=["http://emulator"])
        assert caught.value.field == "allowed_hosts"


COPY = {"url": "http://127.0.0.1:9/copy"}


async def test_copies_to_another_machine_are_signed_with_given_credentials_only_if_that_was_asked_for(control_of):
    given = Emulator(credentials=CREDENTIALS)
    elsewhere = {"url": "http://192.0.2.7/copy"}
    status, why = await control_of(given, remote_copies=True)("PUT", "copy", elsewhere)
    assert (status, given.copier.destination) == (409, None)
    assert "start rbim emulator with --sign-copies" in why["error"]
    assert (await control_of(given, remote_copies=True, sign_copies=True)("PUT", "copy", elsewhere))[0] == 200
    assert (await control_of(given)("PUT", "copy", COPY))[0] == 200  # of this machine
    given.copy_to(_taken)  # a program may do what it likes
    given.say("1001", "1002", "a")
    await given.deliver()
    assert len(given.deliveries) == 1


@each_row("url", ["http://192.0.2.7/copy", "https://copies.test/", "http://127.0.0.1@copies.test/", "http://127.1/"])
async def test_a_target_on_another_machine_must_be_asked_for(control_of, url):
    emulator = Emulator(clock=EmulatedClock())
    status, why = await control_of(emulator)("PUT", "copy", {"url": url})
    assert (status, emulator.copier.destination) == (409, None)
    assert "start rbim emulator with --remote-copies" in why["error"]
    assert (await control_of(emulator, remote_copies=True)("PUT", "copy", {"url": url}))[0] == 200


async def test_it_is_off_unless_asked_for(emulator):
    _, answer = await asgi(emulator.asgi, "POST", "/_emulator/reset")
    assert json.loads(answer["body"])["statusCode"] != "000000"
    assert len(emulator.requests) == 1


class TestOverSockets:
    async def test_an_outage_of_an_emulated_clock_ends_by_its_control_port(self, emulator):
        async with serve(emulator) as server:
            await ask(server, http("POST", "/_emulator/outage", b'{"seconds": 30}', JSON))
            async with connected(at(server.control_url)) as control:
                await control.ask(http("POST", "/_emulator/clock/advance", b'{"seconds": 29}', JSON))
                with pytest.raises(ConnectionRefusedError):
                    await ask(server, signed(emulator, "SearchPublicGroups"))
                await control.ask(http("POST", "/_emulator/clock/advance", b'{"seconds": 1}', JSON))
                assert (await ask(server, signed(emulator, "SearchPublicGroups"))).document["statusCode"] == "000000"
                for seconds in (30, 60):  # which the control port begins, too, without an end of its connections
                    body = json.dumps({"seconds": seconds}).encode()
                    assert (await control.ask(http("POST", "/_emulator/outage", body, JSON))).status == 200
                    assert not server.listening

    async def test_an_outage_can_be_ended_at_once(self, emulator):
        async with serve(emulator) as server:
            control = at(server.control_url)
            for _ in range(2):
                await ask(server, http("POST", "/_emulator/outage", b'{"seconds": 30}', JSON))
                for _ in range(2):  # without an outage it does nothing
                    ended = await ask(control, http("DELETE", "/_emulator/outage", b"", JSON))
                    assert (ended.status, ended.document) == (200, None)
                    assert (await ask(server, http("GET", "/_emulator/"))).document["control"] == server.control_url
            await server.refuse(30)
            await server.accept()
            assert (await ask(server, http("GET", "/_emulator/"))).status == 200
            await emulator.clock.advance(60)
            assert server.listening

    async def test_the_control_port_has_the_control_interface_alone(self, emulator):
        async with serve(emulator) as server:
            control = at(server.control_url)
            assert control.port not in {0, server.port}
            for request in (
                signed(emulator, "CreateGroup", name="a", type="1"),
                http("GET", "/"),
                http("GET", "/_emulator"),
            ):
                answer = await ask(control, request)
                assert (answer.status, list(answer.document)) == (404, ["error"])
            assert (await ask(control, http("GET", "/_emulator/state"))).document["groups"] == []
            assert len(emulator.requests) == 0
        with pytest.raises(ConnectionRefusedError):
            await ask(control, http("GET", "/_emulator/"))
