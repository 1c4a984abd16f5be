"""The ten group operations as the interface description declares them: fields, limits, defaults, and what the wire reads."""

import json

import attrs
import pytest
from hypothesis import given, settings, strategies as st

from helpers.fixed_clock import FixedClock
from helpers.strategies import operations
from helpers.tables import each_row
from rbim import CHINA, Character, Dialect, InvalidRequest, MembersShape, Outcome, Repeat
from rbim.operations.base import operation
from rbim.operations.groups import (
    CreateGroup,
    DeleteGroup,
    DeleteGroupMember,
    GroupOperation,
    GroupType,
    InviteJoinGroup,
    JoinGroup,
    LogoutGroup,
    ModifyGroup,
    Permission,
    QueryGroupDetail,
    Role,
    SearchPublicGroups,
    SetMemberRole,
    Success,
    Target,
)
from rbim.wire.codec import Codec
from rbim.wire.converter import make_converter

ID = "g80000049837291"


def codec(**choices):
    return Codec(app_id="app", base_url="https://host:8883", dialect=Dialect(**choices), clock=FixedClock())


def wire(op, user_name=None, **choices):
    """Return what the platform's JSON parser makes of the request's body."""
    return json.loads(codec(**choices).encode(op, user_name).body)


# Every operation with as little as it takes, and its body as somebody would write it by hand.
LEAST = [
    (CreateGroup(name="研发", type=GroupType.TEMPORARY), {"name": "研发", "type": "0", "permission": "0", "target": "1"}),
    (ModifyGroup(group_id=ID, name="研发", permission=None), {"groupId": ID, "name": "研发"}),
    (DeleteGroup(group_id=ID), {"groupId": ID}),
    (SearchPublicGroups(), {}),
    (QueryGroupDetail(group_id=ID), {"groupId": ID}),
    (JoinGroup(group_id=ID), {"groupId": ID}),
    (InviteJoinGroup(group_id=ID, members=["1001"]), {"groupId": ID, "members": ["1001"], "confirm": "1"}),
    (DeleteGroupMember(group_id=ID, members=["1001"]), {"groupId": ID, "members": ["1001"]}),
    (LogoutGroup(group_id=ID), {"groupId": ID}),
    (SetMemberRole(group_id=ID, member="1001", role=Role.CREATOR), {"groupId": ID, "member": "1001", "role": "0"}),
]
EVERY = [
    CreateGroup(
        user_name="admin",
        name="研发",
        type=GroupType.VIP,
        permission=Permission.PRIVATE,
        declared="公告 🎉",
        target=Target.DISCUSSION,
        group_domain='{"a": 1}',
    ),
    ModifyGroup(
        user_name="admin", group_id=ID, name="研发", permission=Permission.VERIFIED, declared="公告", group_domain="x"
    ),
    DeleteGroup(user_name="admin", group_id=ID),
    SearchPublicGroups(user_name="admin", group_id=ID, name="研"),
    QueryGroupDetail(user_name="admin", group_id=ID),
    JoinGroup(user_name="1001", group_id=ID, declared="你好"),
    InviteJoinGroup(user_name="admin", group_id=ID, members=("1001", "1002"), needs_confirmation=True, declared="来吧"),
    DeleteGroupMember(user_name="admin", group_id=ID, members=("1001", "1002")),
    LogoutGroup(user_name="1001", group_id=ID),
    SetMemberRole(user_name="admin", group_id=ID, member="1001", role=Role.ADMINISTRATOR),
]
"""Every operation with as much as it takes."""


@each_row("op, body", LEAST)
def test_an_operation_with_as_little_as_it_takes_writes_its_defaults_and_nothing_else(op, body):
    assert wire(op) == body


# The tables of the interface description: required fields, then optional ones; `userName` is optional everywhere.
TABLES = {
    CreateGroup: ({"name", "type"}, {"permission", "declared", "target", "group_domain"}),
    ModifyGroup: ({"group_id", "name", "permission"}, {"declared", "group_domain"}),
    DeleteGroup: ({"group_id"}, set()),
    SearchPublicGroups: (set(), {"group_id", "name"}),
    QueryGroupDetail: ({"group_id"}, set()),
    JoinGroup: ({"group_id"}, {"declared"}),
    InviteJoinGroup: ({"group_id", "members"}, {"needs_confirmation", "declared"}),
    DeleteGroupMember: ({"group_id", "members"}, set()),
    LogoutGroup: ({"group_id"}, set()),
    SetMemberRole: ({"group_id", "member", "role"}, set()),
}


@each_row("kind, table", TABLES.items())
def test_an_operation_has_the_fields_of_its_table_by_keyword_only(kind, table):
    required, optional = table
    fields = {a.name: a for a in attrs.fields(kind)}
    assert {name for name, a in fields.items() if a.default is attrs.NOTHING} == required
    assert {name for name, a in fields.items() if a.default is not attrs.NOTHING} == optional | {"user_name"}
    with pytest.raises(TypeError, match="positional"):
        kind("positional")


def test_a_modification_that_leaves_the_permission_out_must_say_so():
    with pytest.raises(TypeError, match="permission"):
        ModifyGroup(group_id=ID, name="研发")
    assert "permission" not in wire(ModifyGroup(group_id=ID, name="研发", permission=None))
    assert wire(ModifyGroup(group_id=ID, name="研发", permission=Permission.OPEN))["permission"] == "0"


# ---------------------------------------------------------------------------------- limits

TEXTS = {  # "Limits": characters
    ("CreateGroup", "name"): (lambda text: CreateGroup(name=text, type=GroupType.VIP), 50),
    ("CreateGroup", "declared"): (lambda text: CreateGroup(name="a", type=GroupType.VIP, declared=text), 200),
    ("ModifyGroup", "name"): (lambda text: ModifyGroup(group_id=ID, name=text, permission=None), 50),
    ("ModifyGroup", "declared"): (lambda text: ModifyGroup(group_id=ID, name="a", permission=None, declared=text), 200),
    ("JoinGroup", "declared"): (lambda text: JoinGroup(group_id=ID, declared=text), 50),
    ("InviteJoinGroup", "declared"): (lambda text: InviteJoinGroup(group_id=ID, members=["1"], declared=text), 50),
}


@each_row("character", ["a", "群", "🎉"])
@each_row("operation, name", TEXTS)
def test_a_text_of_exactly_the_limit_passes_and_of_one_character_more_is_refused(operation, name, character):
    make, limit = TEXTS[operation, name]
    assert wire(make(character * limit))[name] == character * limit
    with pytest.raises(InvalidRequest, match=f"{name}: at most {limit} characters, not {limit + 1}") as caught:
        make(character * (limit + 1))
    error = caught.value
    assert (error.field, error.limit, error.length) == (name, limit, limit + 1)
    assert isinstance(error, ValueError)
    assert error.outcome is Outcome.NOT_SENT


@each_row("operation, name", TEXTS)
def test_a_character_is_what_the_dialect_says(operation, name):
    make, limit = TEXTS[operation, name]
    for each in ("a" * limit, "群" * limit, "🎉" * (limit // 2), "🎉" + "群" * (limit - 2)):
        assert wire(make(each), character="utf16_unit")[name] == each
    for each in ("🎉" * (limit // 2) + "a", "🎉" * limit, "🎉" + "群" * (limit - 1)):
        units = len(each) + each.count("🎉")
        assert wire(make(each))[name] == each
        with pytest.raises(InvalidRequest, match=f"^{name}: at most {limit} UTF-16 units, not {units}") as caught:
            wire(make(each), character=Character.UTF16_UNIT)
        assert (caught.value.field, caught.value.limit, caught.value.length) == (name, limit, units)


def test_texts_without_a_written_limit_may_be_long():
    long = "群" * 1000
    assert wire(CreateGroup(name="a", type=GroupType.VIP, group_domain=long))["groupDomain"] == long
    assert wire(SearchPublicGroups(name=long))["name"] == long


@each_row("kind, table", TABLES.items())
def test_a_required_text_is_neither_empty_nor_something_else(kind, table):
    good = attrs.asdict(next(op for op in EVERY if type(op) is kind), recurse=False)
    for name in table[0] & {"group_id", "name", "member"}:
        for bad in ("", None, 12345, b"g1"):
            with pytest.raises(InvalidRequest) as caught:
                kind(**(good | {name: bad}))
            assert caught.value.field == name


@each_row("op", EVERY)
def test_an_optional_text_is_a_text_or_none(op):
    good = attrs.asdict(op, recurse=False)
    for name in (TABLES[type(op)][1] | {"user_name"}) & {"user_name", "declared", "group_domain"}:
        with pytest.raises(InvalidRequest, match=f"{name}: a text is needed, not int"):
            type(op)(**(good | {name: 7}))


def test_the_enums_hold_the_values_of_the_tables():
    assert [(each.value, each.member_limit) for each in GroupType] == [
        ("0", 100),
        ("1", 300),
        ("2", 500),
        ("3", 1000),
        ("4", 2000),
    ]
    assert [each.value for each in Permission] == ["0", "1", "2"]
    assert [(each.name, each.value) for each in Role] == [("CREATOR", "0"), ("ADMINISTRATOR", "1"), ("MEMBER", "2")]
    assert (Target.DISCUSSION.value, Target.GROUP.value) == ("0", "1")


def test_a_discussion_group_gets_at_most_type_two():
    assert [each.for_discussion.value for each in GroupType] == ["0", "1", "2", "2", "2"]
    assert all(isinstance(each.for_discussion, GroupType) for each in GroupType)


@each_row(
    "kind, name, wrong",
    [
        (CreateGroup, "type", "1"),
        (CreateGroup, "type", Role.MEMBER),
        (CreateGroup, "permission", None),
        (ModifyGroup, "permission", "2"),
        (CreateGroup, "target", 1),
        (SetMemberRole, "role", "2"),
        (InviteJoinGroup, "needs_confirmation", "0"),
        (InviteJoinGroup, "needs_confirmation", 1),
    ],
)
def test_a_choice_is_a_member_of_its_own_enum(kind, name, wrong):
    good = next(op for op in EVERY if type(op) is kind)
    with pytest.raises(InvalidRequest, match=f"{name}: .* is needed, not ") as caught:
        attrs.evolve(good, **{name: wrong})
    assert caught.value.field == name


# --------------------------------------------------------------------------------- members

WITH_MEMBERS = [InviteJoinGroup, DeleteGroupMember]


@each_row("kind", WITH_MEMBERS)
@each_row("bare", ["1001", ""])
def test_a_bare_string_for_members_is_refused_with_what_to_write(kind, bare):
    with pytest.raises(InvalidRequest) as caught:
        kind(group_id=ID, members=bare)
    assert caught.value.field == "members"
    assert f"write [{bare!r}]" in str(caught.value)


@each_row("kind", WITH_MEMBERS)
@each_row("members", [[], (), set(), iter(())])
def test_empty_members_are_refused(kind, members):
    with pytest.raises(InvalidRequest, match="members: at least one account") as caught:
        kind(group_id=ID, members=members)
    assert (caught.value.field, caught.value.length) == ("members", 0)


@each_row("kind", WITH_MEMBERS)
@each_row("wrong", ["", None, 1001, b"1001"])
def test_each_account_is_a_text_that_is_not_empty(kind, wrong):
    with pytest.raises(InvalidRequest, match="members: each account"):
        kind(group_id=ID, members=["1001", wrong])


def test_members_are_written_in_the_shape_of_the_dialect():
    nested = {"members": {"member": ["1001", "1002"]}}
    for op in (op for op in EVERY if type(op) in WITH_MEMBERS):
        assert wire(op)["members"] == ["1001", "1002"]
        assert wire(op, members_shape=MembersShape.NESTED).items() >= nested.items()


@each_row("limit", [1, 5, 50])
def test_an_invitation_takes_as_many_members_as_the_dialect_says_and_no_more(limit):
    members = [str(n) for n in range(limit + 1)]
    assert wire(InviteJoinGroup(group_id=ID, members=members[1:]), invite_limit=limit)["members"] == members[1:]
    op = InviteJoinGroup(group_id=ID, members=members)  # a value that may be queued
    with pytest.raises(InvalidRequest, match=r"use groups\.invite_all, or rbim\.bulk") as caught:
        wire(op, invite_limit=limit)
    error = caught.value
    assert (error.field, error.limit, error.length) == ("members", limit, limit + 1)


# ------------------------------------------------------------------------------- user_name


@each_row(
    "make",
    [lambda name: DeleteGroup(group_id=ID, user_name=name), lambda name: QueryGroupDetail(group_id=ID, user_name=name)],
)
def test_an_empty_acting_account_is_refused_and_never_replaces_that_of_the_view(make):
    with pytest.raises(InvalidRequest, match=r"^user_name: must not be empty") as caught:
        make("")
    assert (caught.value.field, caught.value.length) == ("user_name", 0)
    assert wire(make(None), "admin")["userName"] == "admin"


def test_an_account_that_is_listed_twice_is_sent_once():
    for kind in (InviteJoinGroup, DeleteGroupMember):
        op = kind(group_id=ID, members=["1002", "1001", "1002", "1003", "1001"])
        assert op.members == ("1002", "1001", "1003")
        assert wire(op)["members"] == ["1002", "1001", "1003"]
        assert kind(group_id=ID, members=[" 1", "1", "a", "A"]).members == (" 1", "1", "a", "A")
        with pytest.raises(InvalidRequest, match=r"^members: each account is a text"):
            kind(group_id=ID, members=[["1"], ["1"]])
    assert wire(InviteJoinGroup(group_id=ID, members=["1"] * 51))["members"] == ["1"]  # 50 different ones in a request


@each_row("op, body", LEAST)
def test_the_acting_account_is_filled_in_where_the_operation_names_none(op, body):
    assert wire(op, "clerk") == {**body, "userName": "clerk"}
    assert wire(attrs.evolve(op, user_name="1001"), "clerk")["userName"] == "1001"


@each_row("account", ["张三 #1@example.com", "8001234500000012"])
def test_an_account_of_either_kind_is_sent_as_it_is(account):
    assert wire(DeleteGroup(user_name=account, group_id=ID))["userName"] == account
    assert wire(DeleteGroup(group_id=ID), account)["userName"] == account


# ----------------------------------------------------------------------------------- repeating

INVITE = InviteJoinGroup(group_id=ID, members=["1"])
ROLE = SetMemberRole(group_id=ID, member="1", role=Role.MEMBER)


@each_row(
    "op, repeat",
    [
        (CreateGroup(name="a", type=GroupType.VIP), Repeat.NEVER),
        (ModifyGroup(group_id=ID, name="a", permission=None), Repeat.IDEMPOTENT),
        (DeleteGroup(group_id=ID), Repeat.IDEMPOTENT),
        (SearchPublicGroups(), Repeat.SAFE),
        (QueryGroupDetail(group_id=ID), Repeat.SAFE),
        (JoinGroup(group_id=ID), Repeat.NEVER),
        (INVITE, Repeat.IDEMPOTENT),
        (attrs.evolve(INVITE, needs_confirmation=True), Repeat.NEVER),
        (DeleteGroupMember(group_id=ID, members=["1"]), Repeat.IDEMPOTENT),
        (LogoutGroup(group_id=ID), Repeat.IDEMPOTENT),
        (ROLE, Repeat.IDEMPOTENT),
        (attrs.evolve(ROLE, role=Role.ADMINISTRATOR), Repeat.IDEMPOTENT),
        (attrs.evolve(ROLE, role=Role.CREATOR), Repeat.NEVER),
    ],
)
def test_how_each_operation_may_be_repeated_and_what_its_request_says(op, repeat):
    assert op.repeat is repeat
    assert codec().encode(op).repeatable is (repeat is not Repeat.NEVER)


# ------------------------------------------------------------------------- there and back again


@settings(deadline=None)
@given(op=st.one_of(*map(operations, TABLES)), shape=st.sampled_from(MembersShape))
def test_whatever_is_written_reads_back_as_the_same_operation(op, shape):
    document = wire(op, members_shape=shape)
    assert make_converter(CHINA, shape).structure(document, type(op)) == op


# ------------------------------------------------------------------ what a server reads, as clients write it


def read(kind, document):
    return make_converter(CHINA, MembersShape.PLAIN).structure(document, kind)


@each_row("members", [["1001"], {"member": ["1001"]}, {"member": "1001"}, "1001", [1001]])
def test_members_are_read_in_every_shape(members):
    for kind in WITH_MEMBERS:
        assert read(kind, {"groupId": ID, "members": members}).members == ("1001",)


@each_row(
    "kind, document",
    [
        (DeleteGroup, {}),
        (DeleteGroup, {"groupId": None}),
        (DeleteGroup, {"groupId": ""}),
        (DeleteGroup, []),
        (DeleteGroup, "g1"),
        (CreateGroup, {"name": "a", "type": "5"}),
        (CreateGroup, {"name": "x" * 51, "type": "1"}),
        (SetMemberRole, {"groupId": ID, "member": "1", "role": "3"}),
        (InviteJoinGroup, {"groupId": ID, "members": []}),
        (InviteJoinGroup, {"groupId": ID, "members": {}}),
        (InviteJoinGroup, {"groupId": ID, "members": ["1"], "confirm": "2"}),
    ],
)
def test_a_request_that_breaks_a_rule_is_not_read(kind, document):
    with pytest.raises((ValueError, KeyError, TypeError)):
        read(kind, document)


# ----------------------------------------------------------------------------------- declaring one


def test_an_operation_is_never_repeated_unless_it_says_so():
    @operation("Dangerous")
    @attrs.frozen(kw_only=True)
    class Dangerous(GroupOperation[Success]):
        pass

    assert Dangerous().repeat is Repeat.NEVER
    assert Dangerous.spec.answer is Success
    assert Dangerous.spec.paths == ("/{api_version}/Application/{app_id}/IM/Group/Dangerous",)
