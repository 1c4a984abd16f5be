"""The OpenAPI document: it is one, it has every command, and every answer is as it says, without a field more or less."""

import json
import re
from datetime import date, timedelta

import httpx
import pytest
from attrs import fields
from jsonschema import ValidationError
from openapi_spec_validator import validate

from helpers.emulators import client_of
from helpers.openapi import document, judge, schema_of, seen, valid
from helpers.paths import DOCS
from rbim import GroupType, InvalidRequest, Permission
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults.copies import COPY_KINDS
from rbim.emulator.faults.requests import KINDS, faults_from
from rbim.emulator.server.commands import UNKNOWN
from rbim.emulator.server.copy_commands import COMMANDS
from rbim.emulator.server.openapi import openapi
from rbim.emulator.server.server import serve
from rbim.operations.call_tasks import CallPolicy, default_no_call_policies
from rbim.operations.groups import Role

SAMPLES = {"seconds": 0.5, "sigma": 0.1, "status": 503, "retry_after": 2, "code": "111111", "message": "no", "per_second": 5}
SAMPLES |= {"keep": 0.5, "by": 2, "patience": 1.5, "extra": 2}
SELECTION = {"nth": [1, 3], "every": 2, "probability": 0.5, "times": 4}


def test_it_is_a_document_of_openapi_and_the_page_has_it():
    validate(document())
    assert json.loads((DOCS / "emulator.openapi.json").read_text(encoding="utf-8")) == document()


def test_it_has_every_command():
    for command in COMMANDS:
        how = f"{command.method} {command.path}: declare the type of its answer: @command(..., answer=TYPE)"
        assert command.answer is not UNKNOWN, how
    described = [(method.upper(), path) for path, operations in document()["paths"].items() for method in operations]
    assert sorted(described) == sorted((each.method, each.path) for each in COMMANDS)
    names = [operation["operationId"] for operations in document()["paths"].values() for operation in operations.values()]
    assert len(set(names)) == len(names)


def test_no_component_allows_a_field_that_it_does_not_list_and_each_field_of_ours_is_described():
    own = {entry: schema for entry, schema in document()["components"]["schemas"].items() if not entry.endswith("Values")}
    for name, schema in own.items():
        assert schema["additionalProperties"] is False, name
        undescribed = [key for key, field in schema["properties"].items() if not field.get("description")]
        assert (name, undescribed) == (name, []) or name in {"CallPolicy", "CreateCallTask"}


async def test_an_emulator_returns_it(control_of):
    status, answer = await control_of(Emulator())("GET", "openapi.json")
    assert (status, answer) == (200, openapi(COMMANDS, "/"))
    assert answer["servers"] == [{"url": "/"}]


def fault(kind, effects):
    values = {each.name: SAMPLES[each.name] for each in fields(effects[kind]) if each.init}
    return {"effect": {"kind": kind} | values} | SELECTION


async def every_operation(emulator):
    """Make a request of each operation, and one that cannot be read."""
    async with client_of(emulator) as client:
        group = await client.groups.create(name="News", type=GroupType.VIP, permission=Permission.VERIFIED, group_domain="x")
        other = await client.groups.create(name="Talk", type=GroupType.VIP)
        one, two = group.group_id, other.group_id
        await client.groups.modify(group_id=one, name="News", permission=Permission.VERIFIED, declared="welcome")
        await client.groups.invite(group_id=one, members=["1001", "1002"])
        await client.groups.invite(group_id=one, members=["1003", "1004"], needs_confirmation=True)
        await client.acting_as("1005").groups.join(group_id=one, declared="please")
        await client.acting_as("1006").groups.join(group_id=one, declared="please")
        await client.groups.set_role(group_id=one, member="1001", role=Role.ADMINISTRATOR)
        await client.groups.remove(group_id=one, members=["1001"])
        await client.acting_as("1002").groups.leave(group_id=one)
        await client.groups.detail(group_id=one)
        await client.groups.search(name="News")
        await client.groups.delete(group_id=two)
        today = date(2026, 1, 2)
        for policies in (default_no_call_policies(), [CallPolicy([each]) for each in default_no_call_policies()], None):
            await client.calls.create_task(
                bot_id=7,
                task_name="Reminder",
                task_desc="calls",
                start_date=today,
                end_date=today + timedelta(days=9),
                max_concurrent=5,
                min_concurrent=1,
                disnumber="1",
                caller="2",
                call_policy=policies,
            )
        emulator.platform.serve("GET", "/", {}, {}, b"")
    return one


EXTRAS = {
    "text": "hello",
    "msg_type": "LINK",
    "attach": "http://a",
    "ext": "e",
    "at_user": ["1001"],
    "nick": "n",
    "client_type": "IPAD",
    "device_id": "d",
    "link_info": "l",
    "antispam": True,
}
PUSH = {"save": True, "apns": False, "apns_text": "t", "sender": "1001"}


@pytest.fixture
def anyio_backend():
    return "asyncio"


NAMED = {
    r"/requests/\d+$": "/requests/{number}",
    r"faults/\d+$": "faults/{number}",
    r"/groups/g\d+$": "/groups/{group_id}",
    r"/groups/with/.+$": "/groups/with/{text}",
}


class Commands:
    """Sends commands over HTTP, judges each answer, and collects the fields of answers and of bodies."""

    def __init__(self, http):
        self.http = http
        self.answers, self.bodies, self.done = set(), set(), set()

    async def __call__(self, method, path, body=None, status=200, **headers):
        template = re.sub(r"\d+/may-call", "{id}/may-call", f"/_emulator/{path}")
        for pattern, name in NAMED.items():
            template = re.sub(pattern, name, template)
        if body is not None:
            schema = document()["paths"][template][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
            valid(schema).validate(body)
            seen(schema, body, self.bodies)
        content = None if body is None else json.dumps(body).encode()
        headers |= {"Content-Type": "application/json"}
        answer = await self.http.request(method, f"/_emulator/{path}", content=content, headers=headers)
        assert answer.status_code == status, answer.text
        judge(method, f"/_emulator/{path}", status, answer.json())
        seen(schema_of(method, f"/_emulator/{path}", status), answer.json(), self.answers)
        self.done.add((method, template))
        return answer.json()


async def ask_and_answer(call, group):
    """Send the commands about the platform."""
    await call("GET", "")
    state = await call("GET", "state")
    await call("GET", "tasks")
    await call("GET", "tasks/9999/may-call", status=404)
    await call("GET", f"tasks/{state['tasks'][0]['task_id']}/may-call")
    await call("GET", "requests")
    for body in (b"{}", b"\xff", b"x" * 100_000):
        await call.http.post("/2013-12-26/Application/a/IM/Group/CreateGroup?sig=0", content=body)
    for each in range(len(await call("GET", "requests"))):
        await call("GET", f"requests/{each + 1}")
    await call("DELETE", "requests")
    await call("GET", "groups")
    await call("GET", f"groups/{group}")
    await call("GET", "groups/with/new")
    await call("GET", "accounts")
    await call("GET", "tasks/newest")
    for verb, account in (("confirm", "1003"), ("decline", "1004")):
        await call("POST", f"invitations/{verb}", {"group_id": group, "account": account})
    for verb, account in (("approve", "1005"), ("reject", "1006")):
        await call("POST", f"applications/{verb}", {"group_id": group, "account": account})
    await call("POST", "logins", {"account": "1009"})
    for path, kinds, more in (
        ("faults", KINDS, {"operation": "CreateGroup", "match": {"name": "News"}}),
        ("copy-faults", COPY_KINDS, {"match": {"convType": "TEAM"}, "attempts": [1, 2]}),
    ):
        plan = [fault(kind, kinds) | more for kind in kinds]
        assert await call("PUT", path, plan) == await call("GET", path)
        assert len(await call("POST", path, plan[0])) == len(plan) + 1
        assert len(await call("GET", f"{path}/counts")) == len(plan) + 1
        assert len(await call("DELETE", f"{path}/1")) == len(plan)
        await call("DELETE", path)


async def talk(call, group):
    """Send the commands about messages."""
    await call("POST", "say", {"sender": "admin", "to": group} | EXTRAS)
    await call("POST", "push", {"to": ["1001", "1003"]} | EXTRAS | PUSH)
    await call("POST", "push", {"to": group, "text": "hello"})
    notice = {"group_id": group, "notice": "TEAM_UPDATE", "members": ["1001"], "actor": "admin", "text": "t"}
    await call("POST", "notify", notice)
    await call("POST", "clock/advance", {"seconds": 1, "hours": 1})
    await call("GET", "clock")
    assert await call("GET", "deliveries")
    (first, *_) = (await call("GET", "messages"))["messages"]
    await call("POST", "deliveries/again", {"number": first["number"]})
    await call("DELETE", "deliveries")


async def test_every_answer_and_every_body_is_as_it_says_and_has_all_of_its_fields():
    emulator = Emulator(clock=EmulatedClock())
    emulator.never_logged_in("1009")
    async with serve(emulator) as server, httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
        call = Commands(http)
        group = await every_operation(emulator)
        await ask_and_answer(call, group)
        await call("GET", "copy")
        await call("PUT", "copy", {"url": "http://127.0.0.1:9/", "mode": "high-guarantee"})
        await call("GET", "copy")
        emulator.copy_to(refuse)
        await talk(call, group)
        await call("DELETE", "copy")
        await call("PUT", "state", await call("GET", "state"))
        await call("GET", "openapi.json")
        await call("POST", "outage", {"seconds": 0})
        await call("DELETE", "outage")
        await call("POST", "reset")
        await call("GET", "clock", status=403, Origin="http://a.test")

    listed = {(name, key) for name, each in document()["components"]["schemas"].items() for key in each["properties"]}
    assert {(each.method, each.path) for each in COMMANDS} - call.done == set()
    assert listed - call.answers - call.bodies == set()


async def refuse(_headers, _body):
    """Answer as a receiver that has an error."""
    return 500


def test_a_field_that_is_not_listed_fails():
    clock = {"now": "2026-01-02T03:04:05+00:00", "monotonic": 0.0, "emulated": True}
    judge("GET", "/_emulator/clock", 200, clock)
    for wrong in (clock | {"zone": "UTC"}, {key: clock[key] for key in clock if key != "now"}, clock | {"emulated": 1}):
        with pytest.raises(ValidationError):
            judge("GET", "/_emulator/clock", 200, wrong)


def test_what_the_schema_refuses_a_plan_refuses_too():
    """Bounds, kinds and required fields: the schema and the reader agree on what is none."""
    good = {"effect": {"kind": "status", "status": 503}}
    (of_faults, _) = (valid({"$ref": "#/components/schemas/Fault"}), faults_from([good]))
    of_faults.validate(good)
    for wrong in (
        {},
        {"effect": {"kind": "stat", "status": 503}},
        {"effect": {"kind": "status"}},
        {"effect": {"kind": "status", "status": 600}},
        {"effect": {"kind": "cut_short", "keep": 2}},
        good | {"nth": [0]},
        good | {"probability": 1.5},
        good | {"operation": "NoSuchOperation"},
        good | {"colour": "red"},
        good | {"match": ["1001"]},
    ):
        assert not of_faults.is_valid(wrong), wrong
        with pytest.raises(InvalidRequest):
            faults_from([wrong])
