"""What the client can ask, computed from the namespaces that exist, those of one's own included."""

import gc
import importlib
import json
import sys
from datetime import timedelta, timezone

import pytest

from helpers.stubs import APP_ID, Stub, answer, client_over
from helpers.tables import each_row
from rbim import Dialect
from rbim.operations import catalogue
from rbim.operations.call_tasks import CreateCallTask
from rbim.operations.groups import (
    CreateGroup,
    DeleteGroup,
    DeleteGroupMember,
    Groups,
    InviteJoinGroup,
    JoinGroup,
    LogoutGroup,
    ModifyGroup,
    QueryGroupDetail,
    SearchPublicGroups,
    SetMemberRole,
)
from rbim.operations.namespace import Method

ELEVEN = [
    ("groups", "create", CreateGroup),
    ("groups", "modify", ModifyGroup),
    ("groups", "delete", DeleteGroup),
    ("groups", "search", SearchPublicGroups),
    ("groups", "detail", QueryGroupDetail),
    ("groups", "join", JoinGroup),
    ("groups", "invite", InviteJoinGroup),
    ("groups", "remove", DeleteGroupMember),
    ("groups", "leave", LogoutGroup),
    ("groups", "set_role", SetMemberRole),
    ("calls", "create_task", CreateCallTask),
]


def listed():
    return [(entry.namespace, entry.method, entry.operation) for entry in catalogue.entries()]


def test_the_catalogue_lists_the_eleven_operations_in_order():
    own = [row for row in listed() if row[2].__module__.startswith("rbim.")]
    assert own == ELEVEN
    assert list(catalogue.namespaces())[:2] == ["groups", "calls"]


GROUP_NAMES = [kind.__name__ for namespace, _, kind in ELEVEN if namespace == "groups"]


@each_row("version", ["2013-12-26", "2014-06-30", "2015-01-01", "v2"])
@each_row("name", GROUP_NAMES)
def test_a_group_path_is_found_whatever_its_version(version, name):
    assert catalogue.find(f"/{version}/Application/aaf98f89/IM/Group/{name}").__name__ == name


@each_row(
    "path, kind",
    [
        ("/2013-12-26/Application/a/IM/Group/SearchPublicGroup", SearchPublicGroups),
        ("/2013-12-26/Application/a%2Fb/IM/Group/SearchPublicGroups", SearchPublicGroups),
        ("/api/application/a/aicall/task/save", CreateCallTask),
        ("/api/application/a/aicall/task", CreateCallTask),
    ],
)
def test_every_spelling_of_a_path_is_found(path, kind):
    assert catalogue.find(path) is kind


JUNK = """
    / junk /{group}/ /{group}/DeleteGroups /{group}/deletegroup /{group}/DeleteGroup/ /{group}/DeleteGroup?sig=x
    /2013-12-26/Application//IM/Group/DeleteGroup /2013-12-26/Application/a/b/IM/Group/DeleteGroup
    //Application/a/IM/Group/DeleteGroup /Application/a/IM/Group/DeleteGroup /prefix/{group}/DeleteGroup
    /api/application/a/aicall/task/ /api/application/a/aicall/task/start /api/Application/a/aicall/task
"""


def test_junk_is_no_operation():
    paths = ["", *JUNK.format(group="2013-12-26/Application/a/IM/Group").split()]
    assert {path: kind for path in paths if (kind := catalogue.find(path))} == {}


# ------------------------------------------------------------------------- an operation of one's own

TWELFTH = '''
from attrs import field, frozen

from rbim.operations.groups import GroupOperation
from rbim.operations import Answer, Method, Namespace, Repeat, operation, text


@frozen(kw_only=True)
class Muted(Answer):
    until_when: int | None = None


def _muting(op: "MuteGroup") -> Repeat:
    return Repeat.IDEMPOTENT


@operation("MuteGroup", repeat=_muting)
@frozen(kw_only=True)
class MuteGroup(GroupOperation[Muted]):
    """Silence a group."""

    group_id: str = field(validator=text())
    for_minutes: int = 5


class Moderation(Namespace):
    """What moderators do."""

    mute = Method(MuteGroup)
'''


@pytest.fixture
def twelfth(tmp_path, monkeypatch):
    """A user's module with an operation and a namespace of its own; the list lets go of it."""
    (tmp_path / "moderating.py").write_text(TWELFTH, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield [importlib.import_module("moderating")]
    sys.modules.pop("moderating", None)
    gc.collect()


ZONE = timezone(timedelta(hours=-3, minutes=-17))  # no other test's: clients of equal dialects share what they compiled


def client(stub):
    return client_over(stub, dialect=Dialect(zone=ZONE), user_name="admin")


async def test_an_operation_of_ones_own_is_listed_found_and_callable_from_its_declaration_on(twelfth):
    [module] = twelfth
    assert ("moderation", "mute", module.MuteGroup) in listed()
    assert listed()[:11] == ELEVEN
    assert catalogue.find("/2013-12-26/Application/app/IM/Group/MuteGroup") is module.MuteGroup
    platform = Stub(answer(untilWhen="7"))
    async with client(platform) as made:
        answers = [
            await made.moderation.mute(group_id="g1"),
            await made.send(module.MuteGroup(group_id="g1")),
            await module.Moderation(made).mute(group_id="g1"),
            await made.acting_as("admin").moderation.mute(group_id="g1"),
        ]
        assert made.moderation.mute.__doc__ == "Silence a group."
    assert answers == [module.Muted(until_when=7)] * 4
    assert len({(request.path, request.body) for request in platform.requests}) == 1
    [request, *_] = platform.requests
    assert request.path == f"/2013-12-26/Application/{APP_ID}/IM/Group/MuteGroup"
    assert json.loads(request.body) == {"userName": "admin", "groupId": "g1", "forMinutes": 5}


def test_a_subclass_of_a_namespace_adds_methods_and_replaces_them():
    class More(Groups):
        create = Method(DeleteGroup)
        dissolve = Method(DeleteGroup)

    methods = [(name, method.operation) for name, method in More.methods()]
    assert methods[0] == ("create", DeleteGroup)
    assert methods[-1] == ("dissolve", DeleteGroup)
    assert len(methods) == 11
    assert catalogue.namespaces()["more"] is More
    del More, methods
    gc.collect()
    assert "more" not in catalogue.namespaces()
