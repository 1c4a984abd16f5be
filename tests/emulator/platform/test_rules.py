"""What the emulator does on request only (strict dialect, roles, known accounts), what it makes of junk, and its journal."""

import base64
import hashlib
import json
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given, settings, strategies as st

from helpers.emulators import RULES
from helpers.stubs import CREDENTIALS
from helpers.tables import each_row
from rbim import (
    ApiError,
    AsyncClient,
    CreateGroup,
    DeleteGroup,
    DeleteGroupMember,
    Dialect,
    GroupType,
    InvalidRequest,
    InviteJoinGroup,
    JoinGroup,
    LogoutGroup,
    ModifyGroup,
    Permission,
    QueryGroupDetail,
    Role,
    SearchPublicGroups,
    SetMemberRole,
)
from rbim.emulator import EmulatedClock, Emulator, Rules
from rbim.emulator.faults import Fault, ResetAfter, ResetBefore, Status
from rbim.emulator.platform.rules import DependsOnDialect
from rbim.operations import catalogue

ID = "g80000049837291"
CREATE = CreateGroup(name="公告", type=GroupType.TEMPORARY)


@asynccontextmanager
async def platform(**options):
    """An emulator and a client of it."""
    emulator = Emulator(credentials=CREDENTIALS, clock=EmulatedClock(auto=True), **options)
    async with AsyncClient(
        base_url="http://emulator",
        transport=emulator,
        credentials=CREDENTIALS,
        clock=emulator.clock,
        dialect=emulator.dialect,
    ) as client:
        yield emulator, client


def invite(*members, **more):
    return InviteJoinGroup(group_id=ID, members=members, **more)


def join(who=None):
    return JoinGroup(group_id=ID, user_name=who)


def leave(who=None):
    return LogoutGroup(group_id=ID, user_name=who)


def remove(*members, **more):
    return DeleteGroupMember(group_id=ID, members=members, **more)


def role(member, role, **more):
    return SetMemberRole(group_id=ID, member=member, role=role, **more)


def modify(permission, **more):
    return ModifyGroup(group_id=ID, name="新", permission=permission, **more)


# -------------------------------------------------------------------------------------------------------- strict dialect

CROWD = [f"m{n}" for n in range(150)]
FULL = [invite(*CROWD[:50]), invite(*CROWD[50:99])]
SEVEN_FREE = [invite(*CROWD[:50]), invite(*CROWD[50:92])]
ANNOUNCED = modify(Permission.OPEN, declared="x")
ADMINISTERS = role("1001", Role.ADMINISTRATOR)
GUESSES = {
    "modify_resets_permission": [
        (Permission.PRIVATE, [], modify(None)),
        (Permission.VERIFIED, [], modify(None, declared="x")),
    ],
    "invited_member_fails": [
        (Permission.OPEN, [], invite("admin")),
        (Permission.OPEN, [invite("1001")], invite("1002", "1001")),
        (Permission.OPEN, [join("1001")], invite("1001", needs_confirmation=True)),
    ],
    "private_join_refused": [(Permission.PRIVATE, [], join("1001"))],
    "empty_search_finds_all": [(Permission.OPEN, [], SearchPublicGroups())],
    "administrators_inherit": [
        (Permission.OPEN, [invite("1001")], leave()),
        (Permission.OPEN, [invite("1001", "1002")], remove("1001", "admin")),
    ],
    "overflow_fails": [(Permission.OPEN, SEVEN_FREE, invite(*CROWD[92:101]))],
    "owner_counts": [
        (Permission.OPEN, FULL, invite("1001")),
        (Permission.OPEN, FULL, join("1001")),
        (Permission.OPEN, SEVEN_FREE, invite(*CROWD[92:100])),
    ],
    "modify_clears_texts": [
        (Permission.OPEN, [ANNOUNCED], modify(Permission.OPEN)),
        (Permission.OPEN, [modify(Permission.OPEN, group_domain="x")], modify(Permission.OPEN, declared="y")),
    ],
    "empty_text_clears": [(Permission.OPEN, [ANNOUNCED], modify(Permission.OPEN, declared=""))],
    "second_join_refused": [(Permission.OPEN, [], join())],
    "letters_are_ascii": [(Permission.OPEN, [modify(Permission.OPEN)], SearchPublicGroups(name="新"))],
    "search_ignores_case": [(Permission.OPEN, [], SearchPublicGroups(name="A"))],
    "removal_refused_if_absent": [
        (Permission.OPEN, [invite("1001")], remove("1001", "1009")),
        (Permission.OPEN, [], remove("1009")),
    ],
    "empty_group_deleted": [(Permission.OPEN, [], leave()), (Permission.OPEN, [], remove("admin"))],
    "nearest_member": [(Permission.OPEN, [invite("1001", "1002", "1003"), ADMINISTERS], leave("1001"))],
    "former_creator_administers": [(Permission.OPEN, [invite("1001")], role("1001", Role.CREATOR))],
    "creator_demotion_refused": [(Permission.OPEN, [invite("1001")], role("admin", Role.MEMBER))],
}


async def test_a_role_passes_to_somebody_who_stays():
    async with platform() as (emulator, client):
        await client.send(CREATE)
        await client.send(invite("1001", "1002"))
        emulator.world.listeners.append((changes := []).append)
        await client.send(remove("admin", "1001"))
        assert emulator.state.groups[ID].members == {"1002": Role.CREATOR}
        passed_on = [each for each in changes if each.cause == "hand_over"]
        assert [(each.actor, each.members) for each in passed_on] == [("admin", ("1002",))]


async def test_each_choice_does_what_it_says():
    rules = Rules(private_join_refused=False, empty_search_finds_all=False, administrators_inherit=False)
    async with platform(rules=rules) as (emulator, client):
        group_id = (await client.groups.create(name="a", type=GroupType.VIP, permission=Permission.PRIVATE)).group_id
        await client.acting_as("1001").groups.join(group_id=group_id)
        group = emulator.state.groups[group_id]
        assert (list(group.applied), list(group.members)) == (["1001"], ["admin"])
        assert (await client.groups.detail(group_id=group_id)).permission is Permission.VERIFIED
        await client.groups.create(name="b", type=GroupType.VIP)
        assert len(await client.groups.search()) == 0
        assert len(await client.groups.search(name="b")) == 1
        await client.groups.invite(group_id=group_id, members=["1002", "1003"])
        await client.groups.set_role(group_id=group_id, member="1003", role=Role.ADMINISTRATOR)
        await client.groups.leave(group_id=group_id)
        assert group.members == {"1002": Role.CREATOR, "1003": Role.ADMINISTRATOR}


BACKWARDS = '{"policy_type": 0, "policy_name": "a", "policy_date": "10:00:00,09:00:00"}'
SHAPES = {"members": lambda group: {account: role.name for account, role in group.members.items()}}


@each_row(
    "choices, before, op, left",
    [
        ({}, [ANNOUNCED], modify(Permission.OPEN), {"declared": "x"}),
        ({"modify_clears_texts": True}, [ANNOUNCED], modify(Permission.OPEN), {"declared": ""}),
        ({}, [ANNOUNCED], modify(Permission.OPEN, declared=""), {"declared": ""}),
        ({}, [modify(Permission.OPEN, group_domain="d")], modify(Permission.OPEN, group_domain=""), {"group_domain": None}),
        ({}, [modify(Permission.OPEN, group_domain="d")], modify(Permission.OPEN), {"group_domain": "d"}),
        ({}, [modify(Permission.OPEN, group_domain="d")], modify(Permission.OPEN, group_domain="e"), {"group_domain": "e"}),
        ({}, [invite("1")], role("1", Role.CREATOR), {"members": {"admin": "MEMBER", "1": "CREATOR"}}),
        (
            {"creator_demotion_refused": False},
            [invite("1", "2"), role("2", Role.ADMINISTRATOR)],
            role("admin", Role.ADMINISTRATOR),
            {"members": {"admin": "ADMINISTRATOR", "1": "MEMBER", "2": "CREATOR"}},
        ),
        ({"removal_refused_if_absent": "never"}, [invite("1")], remove("9", "1"), {"members": {"admin": "CREATOR"}}),
        ({"removal_refused_if_absent": "never"}, [], remove("9"), {"members": {"admin": "CREATOR"}}),
        ({"empty_group_deleted": False}, [], leave(), {"members": {}, "owner": ""}),
        ({"second_join_refused": False}, [invite("1")], join("1"), {"members": {"admin": "CREATOR", "1": "MEMBER"}}),
        *(
            (
                {"nearest_member": which},
                [invite("1", "2", "3", "4"), role("2", Role.ADMINISTRATOR), role("4", Role.ADMINISTRATOR)],
                remove("2"),
                {"members": {"admin": "CREATOR", "1": "MEMBER", "3": "MEMBER", "4": "ADMINISTRATOR", heir: "ADMINISTRATOR"}},
            )
            for which, heir in {"first": "1", "next": "3", "last": "3"}.items()
        ),
        *(
            (
                {"nearest_member": which, "administrators_inherit": False},
                [invite("1", "2", "3"), role("2", Role.CREATOR)],
                leave("2"),
                {"members": dict.fromkeys(("admin", "1", "3"), "MEMBER") | {heir: "CREATOR"}},
            )
            for which, heir in {"first": "admin", "next": "3", "last": "3"}.items()
        ),
        (
            {"nearest_member": "next", "administrators_inherit": False},
            [invite("1", "2"), role("2", Role.CREATOR)],
            leave("2"),
            {"members": {"admin": "CREATOR", "1": "MEMBER"}},
        ),
    ],
)
async def test_each_choice_has_its_effect_on_the_group(choices, before, op, left):
    async with platform(rules=Rules(**choices)) as (emulator, client):
        await client.send(CREATE)
        for each in [*before, op]:
            await client.send(each)
        group = emulator.state.groups[ID]
        assert {name: SHAPES[name](group) if name in SHAPES else getattr(group, name) for name in left} == left


THAI = "\N{THAI DIGIT ONE}\N{THAI DIGIT TWO}"  # digits, though not of ASCII
NAMES = ["产品公告", "产品", "产品 1", THAI, "Abc", "abc", "abc 1", "12", "123", "ab12", "公1x"]


@each_row(
    "choices, text, found",
    [
        ({}, "产品", ["产品公告", "产品", "产品 1"]),
        ({}, THAI[0], [THAI]),
        ({}, "abc", ["abc"]),
        ({"search_ignores_case": True}, "abc", ["Abc", "abc"]),
        ({"search_ignores_case": True}, "C 1", ["abc 1"]),
        ({}, "C 1", []),
        ({}, "12", ["12"]),
        ({}, "b1", ["ab12"]),  # letters and digits mixed
        ({}, "公1", ["公1x"]),
        ({}, "", NAMES),
    ],
)
async def test_a_search_by_name_finds_by_the_rules(choices, text, found):
    async with platform(rules=Rules(**choices)) as (_, client):
        for name in NAMES:
            await client.groups.create(name=name, type=GroupType.TEMPORARY)
        assert [group.name for group in await client.groups.search(name=text)] == found


async def test_the_owner_takes_a_place():
    async with platform() as (emulator, client):
        await client.send(CREATE)
        for at in (0, 50):
            await client.send(invite(*CROWD[at : at + 50]))
        await client.send(invite(*CROWD[100:]))
        members = emulator.state.groups[ID].members
        assert list(members) == ["admin", *CROWD[:99]]
        with pytest.raises(ApiError, match="is full"):
            await client.send(join("late"))
        document = emulator.export()
        emulator.load(document)
        document["groups"][0]["members"]["late"] = "2"
        with pytest.raises(InvalidRequest, match="at most 100 members, not 101"):
            Emulator().load(document)


async def test_a_group_without_members_is_exported_and_loaded_where_it_may_remain():
    async with platform(rules=Rules(empty_group_deleted=False)) as (emulator, client):
        await client.send(CREATE)
        await client.send(leave())
        emulator.load(emulator.export())
        assert (await client.groups.detail(group_id=ID)).count == 0
        await client.send(join("1"))
        await client.send(role("1", Role.CREATOR))
        assert emulator.state.groups[ID].members == {"1": Role.CREATOR}
        with pytest.raises(InvalidRequest, match="exactly one creator, not 0"):
            Emulator().load({"version": 1, "groups": [emulator.export()["groups"][0] | {"members": {}}]})


async def test_an_empty_announcement_is_in_the_answer():
    async with platform() as (_, client):
        await client.send(CREATE)
        exchange = await client.exchange(QueryGroupDetail(group_id=ID))
        assert json.loads(exchange.response.body)["declared"] == ""


@each_row("kind, answer", [(0, "000000"), ("0", "000000"), (1, "900400"), (None, "900400"), ("x", "900400")])
def test_a_call_policy_of_another_type_is_refused(kind, answer):
    document = TASK | {"call_policy": [{"type": kind, "policy": [] if answer == "000000" else ["garbage"]}]}
    assert post(box(), "CreateCallTask", json.dumps(document).encode())[0] == answer


@each_row(
    "changes, field",
    [
        ({"max_concurrent": 1, "min_concurrent": 2}, "max_below_min_refused"),
        ({"call_policy": [{"type": 0, "policy": [BACKWARDS]}]}, "reversed_periods_refused"),
    ],
)
def test_a_strict_emulator_depends_on_checks_as_well(changes, field):
    for choice in (True, False):
        emulator = box(dialect=Dialect(**{field: choice}), strict_dialect=True)
        with pytest.raises(DependsOnDialect) as caught:
            post(emulator, "CreateCallTask", json.dumps(TASK | changes).encode())
        assert caught.value.field == field
        assert (emulator.state.tasks, len(emulator.requests)) == ({}, 1)
        code, _ = post(box(dialect=Dialect(**{field: choice})), "CreateCallTask", json.dumps(TASK | changes).encode())
        assert code == ("900400" if choice else "000000")


@each_row("dialect, code", [(Dialect(), "000000"), (Dialect(character="utf16_unit"), "900400")])
def test_a_character_is_what_the_dialect_says(dialect, code):
    body = {"name": "\N{GRINNING FACE}" * 26, "type": "1"}
    assert post(box(dialect=dialect), "CreateGroup", json.dumps(body).encode())[0] == code
    strict = box(dialect=dialect, strict_dialect=True)
    with pytest.raises(DependsOnDialect) as caught:
        post(strict, "CreateGroup", json.dumps(body).encode())
    assert (caught.value.field, strict.state.groups) == ("character", {})
    body["name"] = "\N{GRINNING FACE}" * 25
    assert post(strict, "CreateGroup", json.dumps(body).encode())[0] == "000000"


@each_row(
    "at, field, permission, before, op",
    [(at, field, *case) for field, cases in GUESSES.items() for case in cases for at in (0, -1)],
)
async def test_a_strict_emulator_fails_the_test_that_depends_on_a_guess_and_does_nothing(at, field, permission, before, op):
    kind = type(getattr(Rules(), field, True))
    rules = Rules(**{field: ([True, False] if kind is bool else list(kind))[at]} if field in RULES else {})
    says = rf"it depends on Rules\.{field}" if field in RULES else rf"the emulator assumes it \({field}\)"
    create = CreateGroup(name="a", type=GroupType.TEMPORARY, permission=permission)
    async with platform(strict_dialect=True, rules=rules) as (emulator, client):
        for each in [create, *before]:
            await client.send(each)
        state = emulator.snapshot()
        with pytest.raises(DependsOnDialect, match=rf"not described: {says}$") as caught:
            await client.send(op)
        assert caught.value.field == field
        assert isinstance(caught.value, AssertionError)
        assert emulator.snapshot() == state
        last = list(emulator.requests)[-1]
        assert (last.operation, last.effect, last.code) == (op, False, None)
    async with platform(rules=rules) as (emulator, client):  # and no other does
        with suppress(ApiError):  # an overflow, by the other choice
            for each in [create, *before, op]:
                await client.send(each)
        assert emulator.requests.of(type(op))[-1] == op


@each_row(
    "permission, ops",
    [
        (Permission.OPEN, [modify(None), modify(Permission.PRIVATE), modify(Permission.OPEN), modify(None)]),
        (Permission.PRIVATE, [modify(Permission.VERIFIED), invite("1001"), remove("1001")]),
        (Permission.OPEN, [invite("1001", "1001"), invite("1002", needs_confirmation=True), invite("1002")]),
        (Permission.VERIFIED, [join("1"), invite("1"), SearchPublicGroups(name="a")]),
        (
            Permission.OPEN,
            [
                invite("1", "2", "3"),
                role("1", Role.ADMINISTRATOR),
                remove("2"),
                leave("1"),  # only one member is left, who is the nearest
                modify(Permission.OPEN, declared="x"),
                modify(Permission.OPEN, declared="y"),
                SearchPublicGroups(name="not to be found"),
                QueryGroupDetail(group_id=ID),
                DeleteGroup(group_id=ID),
            ],
        ),
    ],
)
async def test_a_strict_emulator_lets_everything_else_pass(permission, ops):
    async with platform(strict_dialect=True) as (emulator, client):
        await client.send(CreateGroup(name="a", type=GroupType.TEMPORARY, permission=permission))
        for op in ops:
            await client.send(op)
        assert all(record.effect for record in emulator.requests)


# ------------------------------------------------------------------------------------------------------------- roles


async def crowd_with_roles(client):
    for op in (CreateGroup(name="a", type=GroupType.VIP, user_name="1000"), invite("1001", "1002", user_name="1000")):
        await client.send(op)
    await client.send(role("1001", Role.ADMINISTRATOR, user_name="1000"))


async def test_the_rules_have_the_roles_that_may_call_an_operation():
    rules = Rules(allowed_roles={"ModifyGroup": {"member"}, "QueryGroupDetail": {"creator", "member"}})
    async with platform(check_roles=True, rules=rules) as (_, client):
        await crowd_with_roles(client)
        for who, may_modify, may_query in [("1000", 0, 1), ("1001", 0, 0), ("1002", 1, 1), ("1009", 0, 0)]:
            ops = {
                modify(Permission.OPEN, user_name=who): may_modify,
                QueryGroupDetail(group_id=ID, user_name=who): may_query,
            }
            for op, may in ops.items():
                if may:
                    await client.send(op)
                else:
                    with pytest.raises(ApiError, match=f"{who} may not do this") as refused:
                        await client.send(op)
                    assert refused.value.code == "900403"
        await client.send(DeleteGroup(group_id=ID, user_name="1009"))  # not listed: everyone may


@each_row(
    "op, depends",
    [
        (modify(Permission.OPEN, user_name="1000"), False),
        (modify(Permission.OPEN, user_name="1001"), True),
        (modify(Permission.OPEN, user_name="1009"), True),
        (invite("1003", user_name="1001"), False),  # "by an administrator"
        (invite("1003", user_name="1002"), True),
        (remove("1002", user_name="1001"), False),
        (QueryGroupDetail(group_id=ID, user_name="1009"), False),
    ],
)
async def test_with_roles_a_strict_emulator_depends_on_who_acts(op, depends):
    async with platform(check_roles=True, strict_dialect=True) as (_, client):
        await crowd_with_roles(client)
        if depends:
            with pytest.raises(DependsOnDialect, match="allowed_roles"):
                await client.send(op)
        else:
            await client.send(op)


CREATOR, ADMINISTRATOR, MEMBER, STRANGER = "1000", "1001", "1002", "1009"
TASKS = [
    # the operation, who of the four may
    (lambda who: ModifyGroup(group_id=ID, name="b", permission=None, user_name=who), [CREATOR, ADMINISTRATOR]),
    (lambda who: DeleteGroup(group_id=ID, user_name=who), [CREATOR]),
    (lambda who: SearchPublicGroups(user_name=who), [CREATOR, ADMINISTRATOR, MEMBER, STRANGER]),
    (lambda who: QueryGroupDetail(group_id=ID, user_name=who), [CREATOR, ADMINISTRATOR, MEMBER, STRANGER]),
    (lambda who: invite("1003", user_name=who), [CREATOR, ADMINISTRATOR]),
    (lambda who: remove("1004", user_name=who), [CREATOR, ADMINISTRATOR]),
    (lambda who: role("1004", Role.ADMINISTRATOR, user_name=who), [CREATOR]),
    (lambda who: role("1004", Role.CREATOR, user_name=who), [CREATOR]),
]


@each_row(
    "checked, task, allowed, who",
    [
        (checked, *task, who)
        for checked in (True, False)
        for task in TASKS
        for who in (CREATOR, ADMINISTRATOR, MEMBER, STRANGER, None)
    ],
)
async def test_roles_are_checked_where_that_is_asked_for_and_nowhere_else(checked, task, allowed, who):
    async with platform(check_roles=checked) as (emulator, client):
        await client.send(CreateGroup(name="a", type=GroupType.TEMPORARY, user_name=CREATOR))
        await client.send(invite(ADMINISTRATOR, MEMBER, "1004", user_name=CREATOR))
        await client.send(role(ADMINISTRATOR, Role.ADMINISTRATOR, user_name=CREATOR))
        state = emulator.snapshot()
        if not checked or who in allowed or len(allowed) == 4:
            await client.send(task(who))
        else:  # the platform's administrator, too, who acts where nobody is named: he is not in the group
            with pytest.raises(ApiError, match=f"{who or 'admin'} may not do this to {ID}") as refused:
                await client.send(task(who))
            assert refused.value.code == "900403"
            assert emulator.snapshot() == state


async def test_the_administrator_acts_where_no_account_is_named():
    async with platform(administrator="chief") as (emulator, client):
        await client.send(CREATE)
        await client.send(join("1001"))
        assert emulator.state.groups[ID].members == {"chief": Role.CREATOR, "1001": Role.MEMBER}
        await client.send(leave())
        assert emulator.state.groups[ID].owner == "1001"


# ------------------------------------------------------------------------------------------------------------- groups


@each_row("kind, most", [("0", 100), ("1", 300), ("2", 500), ("3", 1000), ("4", 2000)])
async def test_a_group_of_each_type_holds_so_many_members_and_no_more(kind, most):
    async with platform() as (emulator, client):
        await client.send(CreateGroup(name="a", type=GroupType(kind)))
        emulator.state.groups[ID].members |= {f"m{n}": Role.MEMBER for n in range(most - 2)}  # and the creator
        await client.send(join("last"))
        assert (await client.send(QueryGroupDetail(group_id=ID))).count == most
        with pytest.raises(ApiError, match="full"):
            await client.send(join("late"))
        assert [fail.member for fail in (await client.send(invite("late"))).fails] == ["late"]
        assert (await client.send(QueryGroupDetail(group_id=ID))).count == most


async def test_a_private_group_is_not_found_by_its_id_either():
    async with platform() as (_, client):
        for permission, found in [(Permission.PRIVATE, 0), (Permission.VERIFIED, 1), (Permission.OPEN, 1)]:
            made = await client.send(CreateGroup(name="a", type=GroupType.VIP, permission=permission))
            assert len(await client.send(SearchPublicGroups(group_id=made.group_id))) == found


# ------------------------------------------------------------------------------------------------------------- journal


async def test_the_journal_holds_every_request_decoded_with_attempt_answer_effect_and_trouble():
    async with platform() as (emulator, client):
        emulator.faults.add(
            Fault(effect=ResetAfter(), operation=InviteJoinGroup, nth=[1]),
            Fault(effect=ResetBefore(), operation=InviteJoinGroup, nth=[2]),
            Fault(effect=Status(503), operation=DeleteGroup),
        )
        await client.send(CREATE)
        await client.send(invite("1001"))
        with pytest.raises(ApiError):
            await client.send(QueryGroupDetail(group_id="nowhere"))
        await client.acting_as("1002").send(invite("1001"))
        facts = [
            (type(each.operation).__name__, each.attempt, each.code, each.effect, each.trouble) for each in emulator.requests
        ]
        assert facts == [
            ("CreateGroup", 1, "000000", True, ()),
            ("InviteJoinGroup", 1, "000000", True, ("reset_after",)),
            ("InviteJoinGroup", 2, None, False, ("reset_before",)),
            ("InviteJoinGroup", 3, "000000", True, ()),
            ("QueryGroupDetail", 1, "900404", False, ()),
            ("InviteJoinGroup", 1, "000000", True, ()),
        ]
        assert [record.number for record in emulator.requests] == [1, 2, 3, 4, 5, 6]
        assert len(emulator.requests) == 6
        assert emulator.requests.of(InviteJoinGroup) == [*[invite("1001")] * 3, invite("1001", user_name="1002")]
        assert emulator.requests.of(QueryGroupDetail) == [QueryGroupDetail(group_id="nowhere")]
        assert emulator.requests.of(LogoutGroup) == []
        emulator.requests.clear()
        assert list(emulator.requests) == []
        await client.send(invite("1001"))
        assert [record.attempt for record in emulator.requests] == [1]


# --------------------------------------------------------------------------------------------------------------- junk


def post(emulator, name, body):
    """Post bytes to an operation, signed without the client's code."""
    app_id, token = emulator.credentials.app_id, emulator.credentials.app_token.reveal()
    sig = hashlib.md5(f"{app_id}{token}20260102110405".encode()).hexdigest()
    authorization = base64.b64encode(f"{app_id}:20260102110405".encode()).decode()
    path = next(entry.operation for entry in catalogue.entries() if entry.operation.spec.name == name).spec.paths[0]
    path = path.format(api_version="2013-12-26", app_id=app_id, name=name)
    served = emulator.platform.serve("POST", path, {"sig": sig}, {"Authorization": authorization}, body)
    assert served.response.status == 200
    answer = json.loads(served.response.body)
    return answer.get("statusCode") or answer["code"], answer.get("statusMsg") or answer.get("msg")


def box(**options):
    return Emulator(credentials=CREDENTIALS, clock=EmulatedClock(), **options)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["name", "type", "permission", "groupId", "members", "member", "role", "confirm", "declared", "target", "userName"]
TASK = {
    "bot_id": 1,
    "task_name": "a",
    "start_date": "2026-01-02",
    "end_date": "2026-01-02",
    "max_concurrent": 2,
    "min_concurrent": 1,
    "isrecord": 0,
    "caller": "1",
}
BODIES = {
    **dict.fromkeys(
        [entry.operation.spec.name for entry in catalogue.entries()], st.dictionaries(st.sampled_from(KEYS), JSON)
    ),
    "CreateCallTask": st.dictionaries(
        st.sampled_from([*TASK, "call_policy", "task_desc", "disnumber"]), JSON, max_size=2
    ).map(lambda changes: TASK | changes),
}


@settings(deadline=None, max_examples=100)
@given(request=st.sampled_from([*BODIES]).flatmap(lambda name: st.tuples(st.just(name), BODIES[name])))
def test_whatever_json_comes_is_answered_with_a_code_and_what_was_taken_can_be_told(request):
    emulator = box()
    name, body = request
    post(emulator, "CreateGroup", b'{"name": "a", "type": "0"}')
    usual = {"groupId": ID, "name": "b", "type": "0", "members": ["1"], "member": "admin", "role": "0"}
    post(emulator, name, json.dumps(usual | body).encode())
    code, _ = post(emulator, "SearchPublicGroups", b"{}")
    assert code == "000000"
    assert len(emulator.requests.trace().splitlines()) == 3
