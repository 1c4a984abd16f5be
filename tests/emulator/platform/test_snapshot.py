"""The emulator's state as a value: snapshots, and documents that survive JSON."""

import json
from datetime import UTC, date, datetime

import pytest

from helpers.emulators import client_of
from helpers.tables import each_row
from rbim import CreateCallTask, GroupType, InvalidRequest, Permission, Role, Target, Weekday
from rbim.emulator import EmulatedClock, Emulator, Group, State, Task
from rbim.emulator.platform.state import export_state, load_state
from rbim.operations.call_tasks import CallPolicy, NoCallPolicy, default_no_call_policies

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


def a_group(group_id="g1", **facts):
    told = {
        "name": "a",
        "type": GroupType.TEMPORARY,
        "permission": Permission.OPEN,
        "target": Target.GROUP,
        "declared": "",
        "group_domain": None,
        "created": NOW,
        "members": {"1000": Role.CREATOR},
    }
    return Group(group_id=group_id, **told | facts)


def a_task(task_id="1001", **facts):
    told = {
        "bot_id": 1,
        "task_name": "a",
        "start_date": date(2026, 1, 2),
        "end_date": date(2026, 1, 3),
        "max_concurrent": 2,
        "min_concurrent": 1,
        "caller": "1",
    }
    return Task(task_id=task_id, request=CreateCallTask(**told | facts), created=NOW)


def a_state():
    """A state in which nothing is left at its default."""
    group = a_group(
        name="产品公告",
        type=GroupType.PAID_500,
        permission=Permission.PRIVATE,
        target=Target.DISCUSSION,
        declared="欢迎 \N{GRINNING FACE}\n\0",
        group_domain="",
        members={"9": Role.MEMBER, "1": Role.CREATOR, "5": Role.ADMINISTRATOR},
        invited={"8": None, "2": None},
        applied={"7": None, "3": None},
    )
    policies = (
        *default_no_call_policies(),
        NoCallPolicy.weekdays("周末", {Weekday.SATURDAY, Weekday.SUNDAY}),
        NoCallPolicy.dates("新年", date(2026, 2, 16), date(2026, 2, 22)),
    )
    task = a_task(task_desc="第一批", isrecord=True, disnumber="010", call_policy=policies, rand="012")
    return State(
        groups={"g1": group, "g0": a_group("g0")},
        tasks={"1001": task, "1": a_task("1")},
        never_logged_in={"4", "1009"},
        known={"1", "5"},
        made=7,
    )


def in_order(state):
    """Every order that equality of mappings does not see."""
    return [
        (group_id, list(group.members), list(group.invited), list(group.applied)) for group_id, group in state.groups.items()
    ] + list(state.tasks)


async def test_a_snapshot_is_restored_in_place_as_often_as_one_likes():
    emulator = Emulator(clock=EmulatedClock(), accounts=["1001", "1002"])
    state = emulator.state
    async with client_of(emulator) as client:
        group_id = (await client.groups.create(name="a", type=GroupType.TEMPORARY)).group_id
        await client.groups.invite(group_id=group_id, members=["1001"], needs_confirmation=True)
        before, document = emulator.snapshot(), emulator.export()
        for _ in range(2):
            emulator.confirm(group_id, "1001")
            await client.groups.modify(group_id=group_id, name="b", permission=Permission.PRIVATE)
            emulator.never_logged_in("1002")
            emulator.log_in("1003")
            second = await client.groups.create(name="c", type=GroupType.TEMPORARY)
            assert second.group_id == "g80000049837292"  # counters are restored as well
            assert emulator.snapshot() != before
            emulator.restore(before)
            assert emulator.state is emulator.world.state is state
            assert emulator.snapshot() == before
            assert emulator.export() == document
            assert (await client.groups.detail(group_id=group_id)).name == "a"
    assert len(emulator.requests) == 8  # the journal goes on


def test_what_a_document_looks_like():
    assert export_state(State()) == {
        "version": 1,
        "groups": [],
        "tasks": [],
        "never_logged_in": [],
        "known": None,
        "made": 0,
    }
    group, _ = export_state(a_state())["groups"]
    assert group | {"declared": ""} == {
        "group_id": "g1",
        "name": "产品公告",
        "type": "2",
        "permission": "2",
        "target": "0",
        "declared": "",
        "group_domain": "",
        "created": "2026-01-02T03:04:05.000678+00:00",
        "members": {"9": "2", "1": "0", "5": "1"},
        "invited": ["8", "2"],
        "applied": ["7", "3"],
    }
    task, _ = export_state(a_state())["tasks"]
    assert task["request"]["start_date"] == "2026-01-02"
    assert json.loads(task["request"]["call_policy"][2])["policy_date"] == "周六,周日"
    assert export_state(a_state())["never_logged_in"] == ["1009", "4"]


def edited(edit):
    document = json.loads(json.dumps(export_state(a_state())))
    edit(document)
    return document


@each_row(
    "edit, wrong",
    [
        (lambda d: d.pop("version"), "version: must be 1 .*, not None"),
        (lambda d: d.update(version=2), "version: must be 1 .*, not 2"),
        (lambda d: d.update(grops=[]), r"extra fields found \(grops\) @ \$"),
        (lambda d: d.update(made="3"), r"must be a whole number, not '3' @ \$.made"),
        (lambda d: d.update(made=-1), r"made: must be 0 to 1,000,000,000,000, not -1 @ \$"),
        (lambda d: d.update(never_logged_in=[1]), r"must be a text, not 1 @ \$.never_logged_in\[0\]"),
        (lambda d: d.update(groups={}), r"must be a list, not dict @ \$.groups"),
        (lambda d: d.update(groups=[7]), r"must be an object @ \$.groups\[0\]"),
        (lambda d: d["groups"].append(d["groups"][0]), r"two entries have the same identifier @ \$.groups"),
        (lambda d: d["groups"][0].pop("name"), r"required field missing @ \$.groups\[0\].name"),
        (lambda d: d["groups"][0].update(x=1, y=2), r"extra fields found \(x, y\) @ \$.groups\[0\]"),
        (lambda d: d["groups"][0].update(type="9"), r"'9' is not one of 0, 1, 2, 3, 4 @ \$.groups\[0\].type"),
        (lambda d: d["groups"][0].update(name=5), r"must be a text, not 5 @ \$.groups\[0\].name"),
        (lambda d: d["groups"][0].update(members=["1"]), r"must be an object @ \$.groups\[0\].members"),
        (lambda d: d["groups"][0].update(members={"1": "2"}), r"exactly one creator, not 0 @ \$.groups\[0\]"),
        (lambda d: d["groups"][0].update(applied=["x", "9", "1"]), r"these do: 1, 9 @ \$.groups\[0\]"),
        (lambda d: d["groups"][1].update(members={"1": "0"} | {f"m{n}": "2" for n in range(100)}), "100 members, not 101"),
        (lambda d: d["groups"][0].update(created="2026-01-02T03:04:05"), "no UTC offset"),
        (lambda d: d["groups"][0].update(created="yesterday"), r"'yesterday' @ \$.groups\[0\].created"),
        (lambda d: d["tasks"][0]["request"].update(start_date="1-2-3"), r"'1-2-3' @ \$.tasks\[0\].request.start_date"),
        (
            lambda d: d["tasks"][0]["request"].update(isrecord="no"),
            r"must be true or false, not 'no' @ \$.tasks\[0\].request",
        ),
        (lambda d: d["tasks"][0]["request"].update(min_concurrent=0), r"min_concurrent: at least 1, not 0 @ \$.tasks\[0\]"),
        (lambda d: d["tasks"][0]["request"].update(call_policy=["{}"]), r"an entry must be a text.*call_policy\[0\]"),
        (lambda d: d["tasks"][0]["request"]["call_policy"].append(d["tasks"][0]["request"]["call_policy"][0]), "unique"),
        (
            lambda d: d["groups"][0].update(dict.fromkeys(("name", "declared", "group_id", "type", "target", "members"))),
            r"groups\[0\]\.name.*; and 1 more$",
        ),
    ],
)
def test_a_wrong_document_is_refused_and_changes_nothing(edit, wrong):
    state = a_state()
    with pytest.raises(InvalidRequest, match=wrong):
        load_state(state, edited(edit))
    assert state == a_state()


@each_row("kind, loads", [("0", True), ("1", True), ("2", True), ("3", False), ("4", False)])
def test_a_discussion_group_of_a_higher_type_is_not_loaded(kind, loads):
    document = edited(lambda d: d["groups"][0].update(target="0", type=kind))
    if loads:
        load_state(state := State(), document)
        assert state.groups["g1"].type == kind
    else:
        with pytest.raises(InvalidRequest, match=r"a discussion group has a type of at most 2, not [34] @ \$\.groups\[0\]"):
            load_state(State(), document)


def test_every_state_survives_json():
    document = json.loads(json.dumps(export_state(a_state())))
    load_state(state := State(), document)
    assert state == a_state()
    assert in_order(state) == in_order(a_state())
    assert export_state(state) == document
    for call_policy in (None, (), (CallPolicy(()),), tuple(CallPolicy([each]) for each in default_no_call_policies())):
        state, loaded = State(tasks={"1": a_task("1", call_policy=call_policy)}), State()
        load_state(loaded, json.loads(json.dumps(export_state(state))))
        assert loaded.tasks["1"].request.call_policy == call_policy
