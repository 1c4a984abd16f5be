"""The emulated platform: its rules through the client, its door through curl and md5sum."""

import json
import subprocess
from contextlib import asynccontextmanager
from datetime import date, timedelta

import pytest

from helpers.credentials import APP_ID, TOKEN
from helpers.emulators import choosing
from helpers.tables import each_row
from rbim import (
    AlreadyMember,
    ApiError,
    AsyncClient,
    AuthenticationError,
    Credentials,
    Dialect,
    GroupType,
    MembersShape,
    NotFound,
    NotMember,
    Permission,
    Role,
    Target,
    TimestampExpired,
)
from rbim.emulator import DependsOnDialect, EmulatedClock, Emulator
from rbim.operations.call_tasks import NoCallPolicy, Weekday, default_no_call_policies


def box(**options):
    return Emulator(credentials=Credentials(app_id=APP_ID, app_token=TOKEN), clock=EmulatedClock(), **options)


@asynccontextmanager
async def client_of(emulator, **options):
    options = {"credentials": emulator.credentials, "clock": emulator.clock, "dialect": emulator.dialect} | options
    async with AsyncClient(base_url="http://emulator", transport=emulator, **options) as client:
        yield client


async def test_a_group_lives_from_creation_to_dissolution():
    emulator = box()
    async with client_of(emulator) as client:
        made = await client.groups.create(
            name="产品公告", type=GroupType.PAID_300, declared="欢迎", permission=Permission.VERIFIED, group_domain="x=1"
        )
        detail = await client.groups.detail(group_id=made.group_id)
        assert (detail.name, detail.owner, detail.declared, detail.count) == ("产品公告", "admin", "欢迎", 1)
        assert (detail.type, detail.permission, detail.target) == (GroupType.PAID_300, Permission.VERIFIED, Target.GROUP)
        assert detail.group_domain == "x=1"
        assert detail.date_created_text == "2026-1-2 11:4:5"  # 03:04:05 UTC, unpadded, in UTC+8
        assert detail.date_created == emulator.clock.start
        await client.groups.modify(group_id=made.group_id, name="公告", permission=Permission.OPEN, declared="再见")
        detail = await client.groups.detail(group_id=made.group_id)
        assert (detail.name, detail.permission, detail.declared) == ("公告", Permission.OPEN, "再见")
        await client.groups.delete(group_id=made.group_id)
        with pytest.raises(NotFound, match="there is no group"):
            await client.groups.detail(group_id=made.group_id)


async def test_members_come_and_go():
    emulator = box()
    emulator.never_logged_in("1009")
    async with client_of(emulator) as client:
        group_id = (await client.groups.create(name="a", type=GroupType.TEMPORARY)).group_id
        answer = await client.groups.invite(group_id=group_id, members=["1001", "1009", "1002", "1001"])
        assert [(fail.member, fail.reason) for fail in answer.fails] == [("1009", "the account has never logged in")]
        await client.acting_as("1003").groups.join(group_id=group_id)
        members = emulator.state.groups[group_id].members
        assert list(members) == ["admin", "1001", "1002", "1003"]
        await client.groups.remove(group_id=group_id, members=["1001", "nobody"])
        await client.acting_as("1003").groups.leave(group_id=group_id)
        assert list(members) == ["admin", "1002"]
        with pytest.raises(NotMember):
            await client.groups.remove(group_id=group_id, members=["1001"])
        with pytest.raises(NotMember):
            await client.acting_as("1003").groups.leave(group_id=group_id)
        with pytest.raises(AlreadyMember):
            await client.acting_as("1002").groups.join(group_id=group_id)


async def test_roles_keep_exactly_one_creator():
    emulator = box()
    async with client_of(emulator) as client:
        group_id = (await client.groups.create(name="a", type=GroupType.TEMPORARY, user_name="1000")).group_id
        await client.groups.invite(group_id=group_id, members=["1001", "1002", "1003"])
        members = emulator.state.groups[group_id].members
        await client.groups.set_role(group_id=group_id, member="1002", role=Role.ADMINISTRATOR)
        assert members == {"1000": "0", "1001": "2", "1002": "1", "1003": "2"}
        await client.groups.set_role(group_id=group_id, member="1003", role=Role.CREATOR)
        assert members == {"1000": "2", "1001": "2", "1002": "1", "1003": "0"}
        with pytest.raises(ApiError, match="hand that role to another member first"):
            await client.groups.set_role(group_id=group_id, member="1003", role=Role.MEMBER)
        with pytest.raises(NotMember):
            await client.groups.set_role(group_id=group_id, member="1009", role=Role.MEMBER)
        await client.groups.remove(group_id=group_id, members=["1002"])  # an administrator: the nearest member follows
        assert members == {"1000": "1", "1001": "2", "1003": "0"}
        await client.acting_as("1003").groups.leave(group_id=group_id)  # the creator: the oldest member follows
        assert members == {"1000": "0", "1001": "2"}
        await client.groups.remove(group_id=group_id, members=["1000", "1001"])
        assert emulator.state.groups == {}


async def test_permissions_on_joining_and_confirmation_on_inviting():
    emulator = box()
    async with client_of(emulator) as client:
        ids = [
            (await client.groups.create(name="a", type=GroupType.TEMPORARY, permission=permission)).group_id
            for permission in Permission
        ]
        guest = client.acting_as("1001")
        for group_id in ids[:2]:
            await guest.groups.join(group_id=group_id, declared="让我进")
        with pytest.raises(ApiError, match="private") as refused:
            await guest.groups.join(group_id=ids[2])
        assert refused.value.code == "900403"
        await client.groups.invite(group_id=ids[2], members=["1001"], needs_confirmation=True)
        groups = [emulator.state.groups[group_id] for group_id in ids]
        assert [list(group.members) for group in groups] == [["admin", "1001"], ["admin"], ["admin"]]
        assert [list(group.applied) for group in groups] == [[], ["1001"], []]
        assert [list(group.invited) for group in groups] == [[], [], ["1001"]]
        assert (await client.groups.detail(group_id=ids[2])).permission is Permission.VERIFIED  # 2 is never shown
        await client.groups.invite(group_id=ids[2], members=["1001"])
        assert (list(groups[2].members), list(groups[2].invited)) == (["admin", "1001"], [])


async def test_capacity_and_the_discussion_clamp():
    emulator = box()
    async with client_of(emulator) as client:
        group_id = (await client.groups.create(name="a", type=GroupType.VIP, target=Target.DISCUSSION)).group_id
        assert emulator.state.groups[group_id].type is GroupType.PAID_500
        group_id = (await client.groups.create(name="a", type=GroupType.TEMPORARY)).group_id
        for at in range(0, 100, 50):
            answer = await client.groups.invite(group_id=group_id, members=[f"m{n}" for n in range(at, at + 50)])
        assert [(fail.member, fail.reason) for fail in answer.fails] == [("m99", "the group is full")]
        assert (await client.groups.detail(group_id=group_id)).count == 100
        with pytest.raises(ApiError, match="full"):
            await client.acting_as("late").groups.join(group_id=group_id)


async def test_search_finds_public_groups_by_id_before_name_and_whole_words():
    emulator = box()
    async with client_of(emulator) as client:
        ids = {}
        for name in ("产品公告", "公告 2", "abc", "abcd", "123", "1234"):
            ids[name] = (await client.groups.create(name=name, type=GroupType.TEMPORARY)).group_id
        await client.groups.create(name="私人公告", type=GroupType.TEMPORARY, permission=Permission.PRIVATE)

        async def names(**query):
            return [group.name for group in await client.groups.search(**query)]

        assert await names(name="公告") == ["产品公告", "公告 2"]
        assert await names(name="abc") == ["abc"]
        assert await names(name="123") == ["123"]
        assert await names(name="bc") == []
        assert await names(name=" ") == ["公告 2"]
        assert await names(name="公告", group_id=ids["abc"]) == ["abc"]
        assert await names() == list(ids)
        (found,) = await client.groups.search(name="abc")
        assert (found.count, found.type, found.permission) == (1, GroupType.TEMPORARY, Permission.OPEN)


async def test_what_the_description_leaves_open_is_the_dialects():
    keeping = box(**choosing(invited_member_fails=True, invite_limit=3))
    async with client_of(keeping) as client:
        group_id = (await client.groups.create(name="a", type=GroupType.TEMPORARY)).group_id
        await client.groups.invite(group_id=group_id, members=["1"])
        answer = await client.groups.invite(group_id=group_id, members=["1"])
        assert [fail.reason for fail in answer.fails] == ["the account is in the group already"]
    async with client_of(keeping, dialect=Dialect()) as client:
        with pytest.raises(ApiError, match="at most 3 in one request"):
            await client.groups.invite(group_id=group_id, members=["1", "2", "3", "4"])
    resetting = box(dialect=Dialect(members_shape=MembersShape.NESTED, singular_search=True, bare_task_path=True))
    async with client_of(resetting) as client:
        group_id = (await client.groups.create(name="a", type=GroupType.TEMPORARY, permission=Permission.PRIVATE)).group_id
        await client.groups.modify(group_id=group_id, name="b", permission=None)
        assert resetting.state.groups[group_id].permission is Permission.OPEN
        await client.groups.invite(group_id=group_id, members=["1", "2"])
        assert [group.count for group in await client.groups.search()] == [3]


async def test_a_task_is_kept_as_it_was_asked_for():
    emulator = box()
    policies = (
        *default_no_call_policies(),
        NoCallPolicy.weekdays("周末", {Weekday.SATURDAY, Weekday.SUNDAY}),
        NoCallPolicy.dates("新年", date(2026, 2, 16), date(2026, 2, 22)),
    )
    facts = {
        "bot_id": 7,
        "task_name": "回访",
        "task_desc": "第一批",
        "start_date": date(2026, 1, 2),
        "end_date": date(2026, 1, 31),
        "max_concurrent": 5,
        "min_concurrent": 1,
        "isrecord": True,
        "disnumber": "01012345678",
        "caller": "02187654321",
        "call_policy": policies,
    }
    async with client_of(emulator) as client:
        task_id = (await client.calls.create_task(**facts)).task_id
        request = emulator.state.tasks[task_id].request
        assert {name: getattr(request, name) for name in facts} == facts
        emulator.clock.elapsed += 24 * 3600
        with pytest.raises(ValueError, match="before today"):
            await client.calls.create_task(**facts)


async def test_a_wrong_token_another_application_and_an_old_timestamp_are_refused():
    emulator = box()
    wrong = Credentials(app_id=APP_ID, app_token="0" * 32)
    other = Credentials(app_id="b" * 32, app_token=TOKEN)
    for credentials in (wrong, other):
        async with client_of(emulator, credentials=credentials) as client:
            with pytest.raises(AuthenticationError, match="not that of this application"):
                await client.groups.search()
    slow = EmulatedClock(emulator.clock.start - timedelta(hours=25))
    async with client_of(emulator, clock=slow) as client:
        with pytest.raises(TimestampExpired) as expired:
            await client.groups.search()
    assert [made.code for made in expired.value.attempts] == ["161106", "161106"]


@each_row("late, taken", [(86_400, True), (86_401, False), (-86_401, False)])
async def test_a_signature_is_valid_for_a_day(late, taken):
    emulator = box()
    async with client_of(emulator, clock=EmulatedClock(emulator.clock.start - timedelta(seconds=late))) as client:
        if taken:
            assert len(await client.groups.search()) == 0
        else:
            with pytest.raises(TimestampExpired, match="is more than 24 hours off"):
                await client.groups.search()


@each_row(
    "path, body, code",
    [
        ("IM/Group/CreateGroup", b"{", "900400"),
        ("IM/Group/CreateGroup", b"[]", "900400"),
        ("IM/Group/CreateGroup", b"\xff", "900400"),
        ("IM/Group/CreateGroup", b'{"name": "a"}', "900400"),
        ("IM/Group/CreateGroup", b'{"name": "a", "type": "9"}', "900400"),
        ("IM/Group/CreateGroup", b'{"name": "' + b"a" * 51 + b'", "type": "1"}', "900400"),
        ("IM/Group/InviteJoinGroup", b'{"groupId": "g", "members": []}', "900400"),
        ("IM/Group/DeleteGroup", b'{"groupId": "g"}', "900404"),
        ("IM/Group/Explode", b"{}", "900501"),
        ("nowhere", b"{}", "900501"),
    ],
)
def test_junk_gets_a_json_error_with_a_code(path, body, code):
    emulator = box()
    answer = emulator.platform.serve("POST", f"/2013-12-26/Application/{APP_ID}/{path}", *signed(emulator), body).response
    document = json.loads(answer.body)
    assert (answer.status, document["statusCode"]) == (200, code)
    assert document["statusMsg"]


def test_an_unposted_and_an_unsigned_request_get_a_code_too():
    emulator = box()
    path = f"/2013-12-26/Application/{APP_ID}/IM/Group/SearchPublicGroups"
    query, headers = signed(emulator)
    assert json.loads(emulator.platform.serve("GET", path, query, headers, b"").response.body)["statusCode"] == "900400"
    junk = ["", "?", "YWJj", "Og==", headers["Authorization"] + "x"]
    no_time = subprocess.run(["base64", "-w0"], input=f"{APP_ID}:20269999999999".encode(), capture_output=True, check=True)
    for authorization in [*junk, no_time.stdout.decode()]:
        answer = emulator.platform.serve("POST", path, query, {"Authorization": authorization}, b"{}").response
        assert json.loads(answer.body)["statusCode"] == "111109"


def signed(emulator, *, lower=False):
    """Sign with md5sum and base64, as a shell would."""
    stamp = (emulator.clock.now() + timedelta(hours=8)).strftime("%Y%m%d%H%M%S")
    digest = subprocess.run(["md5sum"], input=f"{APP_ID}{TOKEN}{stamp}".encode(), capture_output=True, check=True)
    encoded = subprocess.run(["base64", "-w0"], input=f"{APP_ID}:{stamp}".encode(), capture_output=True, check=True)
    sig = digest.stdout.decode().split()[0]
    return {"sig": sig if lower else sig.upper()}, {"Authorization": encoded.stdout.decode()}


@each_row("ascii_only", [True, False])
def test_foreign_clients_are_understood(ascii_only):
    emulator = box()
    query, headers = signed(emulator, lower=True)
    headers = {"authorization": headers["Authorization"] + ";", "ACCEPT": "application/json;"}
    path = f"/2016-01-01/Application/{APP_ID}/IM/Group/CreateGroup"
    document = {
        "type": 1,
        "name": "a",
        "userName": "1000",
        "permission": 0,
        "target": None,
        "declared": "公告",
        "more": [{}],
    }
    body = json.dumps(document, ensure_ascii=ascii_only).encode()
    answer = emulator.platform.serve("POST", path, query, headers, body).response
    (group,) = emulator.state.groups.values()
    assert json.loads(answer.body) == {"statusCode": "000000", "groupId": group.group_id}
    assert (group.declared, group.owner) == ("公告", "1000")


INVITE = {"groupId": "g80000049837291", "members": ["1001"]}
GROUPS = f"Application/{APP_ID}/IM/Group"
SEARCH = "/{api_version}/Application/{app_id}/IM/Group/SearchPublicGroups"
TASK = f"/api/application/{APP_ID}/aicall/task"


V1, V2 = f"/2013-12-26/{GROUPS}", f"/v2/{GROUPS}"
NESTED = {"other_forms_refused": True, "members_shape": "nested"}
OTHER_VERSION = "the path has the version v2, this platform takes 2013-12-26 and every date YYYY-MM-DD"
OTHER_SAVE = "the path ends in task, this platform has /api/application/{app_id}/aicall/task/save"
LATER = f"/2016-08-15/{GROUPS}/InviteJoinGroup"


@each_row(
    "choices, path, members, reason",
    [
        ({}, f"{V1}/InviteJoinGroup", ["1001"], None),
        ({}, f"{V2}/InviteJoinGroup", ["1001"], OTHER_VERSION),
        ({}, LATER, ["1001"], None),
        ({"api_version": "v2"}, f"{V2}/InviteJoinGroup", ["1001"], None),
        ({}, f"{V1}/InviteJoinGroup", {"member": ["1001"]}, None),
        (NESTED, f"{V1}/InviteJoinGroup", ["1001"], "members: this platform takes the nested shape"),
        (NESTED, f"{V1}/InviteJoinGroup", {"member": ["1001"]}, None),
        (NESTED, f"{V1}/DeleteGroup", None, None),
        (
            {"other_forms_refused": True},
            f"{V1}/InviteJoinGroup",
            {"member": ["1001"]},
            "members: this platform takes the plain shape",
        ),
        ({}, f"{V1}/SearchPublicGroup", None, None),
        (
            {"other_forms_refused": True},
            f"{V1}/SearchPublicGroup",
            None,
            f"the path ends in SearchPublicGroup, this platform has {SEARCH}",
        ),
        ({"other_forms_refused": True, "singular_search": True}, f"{V1}/SearchPublicGroup", None, None),
        ({"other_forms_refused": True, "api_version": "v2"}, TASK, None, OTHER_SAVE),
    ],
)
def test_another_form_than_the_dialects_is_refused_where_the_dialect_says_so(choices, path, members, reason):
    emulator = box(**choosing(**choices))
    document = INVITE if members is None else INVITE | {"members": members}
    if path == TASK:
        document = {}

    answer = json.loads(
        emulator.platform.serve("POST", path, *signed(emulator), json.dumps(document).encode()).response.body
    )

    code, text = (answer.get(name) for name in (("code", "msg") if path == TASK else ("statusCode", "statusMsg")))
    if reason is None:
        assert code in {"000000", "900404"}  # there is no such group, or none is found
    else:
        assert (code, text) == ("900400", reason)
    assert not emulator.state.groups


REFUSED_OR_NOT = [{"other_forms_refused": True}, {"other_forms_refused": False}]


@each_row(
    "path, document, field, choices",
    [
        (f"/2016-08-15/{GROUPS}/CreateGroup", {"name": "a", "type": 1}, "api_versions", [{}]),
        (f"/2013-12-26/{GROUPS}/SearchPublicGroup", {}, "other_forms_refused", REFUSED_OR_NOT),
        (TASK, {}, "other_forms_refused", REFUSED_OR_NOT),
        (
            f"/2013-12-26/{GROUPS}/InviteJoinGroup",
            INVITE | {"members": {"member": ["1001"]}},
            "other_forms_refused",
            REFUSED_OR_NOT,
        ),
    ],
)
def test_a_strict_emulator_depends_on_another_form_than_the_dialects(path, document, field, choices):
    for choice in choices:
        depends_on(field, box(**choosing(**choice), strict_dialect=True), path, document)


def depends_on(field, emulator, path, document):
    with pytest.raises(DependsOnDialect) as caught:
        emulator.platform.serve("POST", path, *signed(emulator), json.dumps(document).encode())
    assert caught.value.field == field
    assert not emulator.state.groups


async def asgi_events(emulator, scope, *events):
    """Run the app over one scope and return what it sent."""
    sent, waiting = [], list(events)

    async def receive():
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    await emulator.asgi(scope, receive, send)
    return sent


async def test_the_asgi_app_bounds_bodies_and_speaks_lifespan():
    emulator = box()
    half = {"type": "http.request", "body": b"x" * (600 * 1024), "more_body": True}
    start, body = await asgi_events(emulator, {"type": "http", "method": "POST"}, half, half)
    assert (start["status"], json.loads(body["body"])["statusCode"]) == (413, "900400")
    told = await asgi_events(emulator, {"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    assert [message["type"] for message in told] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(RuntimeError, match="websocket"):
        await asgi_events(emulator, {"type": "websocket"})
