"""The emulator's state as a value: snapshots, and documents that survive JSON."""

import copy
import json
from datetime import UTC, date, datetime, time, timedelta, timezone

import pytest
from hypothesis import given, settings, strategies as st

from helpers.emulators import client_of
from rbim import CreateCallTask, GroupType, InvalidRequest, Permission, Role, Target, Weekday
from rbim.emulator import EmulatedClock, Emulator, Group, State, Task
from rbim.emulator.platform.snapshot import VERSION, export_state, load_state
from rbim.operations.call_tasks import CallPolicy, Hours, NoCallPolicy, default_no_call_policies

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


def test_a_snapshot_is_not_touched_by_what_comes_later():
    emulator = Emulator()
    load_state(emulator.state, export_state(a_state()))
    before = emulator.snapshot()
    emulator.restore(before)
    emulator.state.groups["g1"].members["new"] = Role.MEMBER
    emulator.state.groups["g1"].invited.clear()
    emulator.state.tasks.clear()
    emulator.state.known.add("new")
    emulator.restore(before)
    assert emulator.state == a_state()
    assert in_order(emulator.state) == in_order(a_state())


def test_a_snapshot_fits_other_emulators_and_says_little():
    first, second = Emulator(), Emulator(accounts=["1"])
    first.load(export_state(a_state()))
    second.restore(first.snapshot())
    assert second.state == first.state
    assert second.state.groups["g1"] is not first.state.groups["g1"]
    assert repr(first.snapshot()) == "<Snapshot of 2 groups and 2 tasks>"


def test_a_document_survives_json():
    document = json.loads(json.dumps(export_state(a_state())))
    state = State()
    load_state(state, document)
    assert state == a_state()
    assert in_order(state) == in_order(a_state())
    assert export_state(state) == document
    assert document["version"] == VERSION == 1


def test_a_document_is_made_of_nothing_but_json():
    def kinds(value):
        if type(value) is dict:
            return {type(key) for key in value} | {kind for each in value.values() for kind in kinds(each)}
        return {kind for each in value for kind in kinds(each)} if type(value) is list else {type(value)}

    assert kinds(export_state(a_state())) == {str, int, bool, type(None)}


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


def test_a_document_of_ones_own_may_leave_out_what_has_a_default():
    state = a_state()
    load_state(state, {"version": 1})
    assert state == State()
    group = export_state(a_state())["groups"][0]
    del group["invited"], group["applied"]
    load_state(state, {"version": 1, "groups": [group], "known": ["1"]})
    assert (state.groups["g1"].invited, state.known, state.never_logged_in) == ({}, {"1"}, set())


def edited(edit):
    document = json.loads(json.dumps(export_state(a_state())))
    edit(document)
    return document


@pytest.mark.parametrize(
    ("edit", "wrong"),
    [
        (lambda d: d.pop("version"), "version: must be 1 .*, not None"),
        (lambda d: d.update(version=2), "version: must be 1 .*, not 2"),
        (lambda d: d.update(version=True), "not True"),
        (lambda d: d.update(version="1"), "not '1'"),
        (lambda d: d.update(grops=[]), r"unknown: grops @ \$"),
        (lambda d: d.update(made="3"), r"must be int, not '3' @ \$.made"),
        (lambda d: d.update(made=True), r"must be int, not True @ \$.made"),
        (lambda d: d.update(made=-1), r"made: must be 0 to 1,000,000,000,000, not -1 @ \$"),
        (lambda d: d.update(made=10**12 + 1), "made: must be 0 to 1,000,000,000,000, not 1000000000001"),
        (lambda d: d.update(known="abc"), r"must be a list, not str @ \$.known"),
        (lambda d: d.update(never_logged_in=[1]), r"must be str, not 1 @ \$.never_logged_in\[0\]"),
        (lambda d: d.update(groups={}), r"must be a list, not dict @ \$.groups"),
        (lambda d: d.update(groups=[7]), r"must be an object @ \$.groups\[0\]"),
        (lambda d: d.update(groups=["group"]), r"must be an object @ \$.groups\[0\]"),
        (lambda d: d.update(tasks=[None]), r"must be an object @ \$.tasks\[0\]"),
        (lambda d: d["groups"].append(d["groups"][0]), r"two entries have the same identifier @ \$.groups"),
        (lambda d: d["groups"][0].pop("name"), r"required field missing @ \$.groups\[0\].name"),
        (lambda d: d["groups"][0].update(x=1, y=2), r"unknown: x, y @ \$.groups\[0\]"),
        (lambda d: d["groups"][0].update(type="9"), r"'9' is not a valid GroupType @ \$.groups\[0\].type"),
        (lambda d: d["groups"][0].update(type=4), r"4 is not a valid GroupType @ \$.groups\[0\].type"),
        (lambda d: d["groups"][0].update(name=5), r"must be str, not 5 @ \$.groups\[0\].name"),
        (lambda d: d["groups"][0].update(invited="abc"), r"must be a list, not str @ \$.groups\[0\].invited"),
        (lambda d: d["groups"][0].update(members=["1"]), r"must be an object @ \$.groups\[0\].members"),
        (lambda d: d["groups"][0].update(members={"1": "2"}), r"exactly one creator, not 0 @ \$.groups\[0\]"),
        (lambda d: d["groups"][0].update(members={"1": "0", "2": "0"}), "exactly one creator, not 2"),
        (lambda d: d["groups"][0].update(applied=["x", "9", "1"]), r"these do: 1, 9 @ \$.groups\[0\]"),
        (lambda d: d["groups"][1].update(members={"1": "0"} | {f"m{n}": "2" for n in range(100)}), "100 members, not 101"),
        (lambda d: d["groups"][0].update(type="3"), r"discussion group has a type of at most 2, not 3 @ \$.groups\[0\]"),
        (lambda d: d["groups"][0].update(type="4"), r"discussion group has a type of at most 2, not 4 @ \$.groups\[0\]"),
        (lambda d: d["groups"][0].update(created="2026-01-02T03:04:05"), "no UTC offset"),
        (lambda d: d["groups"][0].update(created="yesterday"), r"'yesterday' @ \$.groups\[0\].created"),
        (lambda d: d["groups"][0].update(created=5), r"\$.groups\[0\].created"),
        (lambda d: d["tasks"][0].update(request=[]), r"must be an object|required field missing"),
        (lambda d: d["tasks"][0]["request"].update(start_date="1-2-3"), r"'1-2-3' @ \$.tasks\[0\].request.start_date"),
        (lambda d: d["tasks"][0]["request"].update(isrecord="no"), r"must be bool, not 'no' @ \$.tasks\[0\].request"),
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


@pytest.mark.parametrize(("kind", "loads"), [("0", True), ("1", True), ("2", True), ("3", False), ("4", False)])
def test_a_discussion_group_of_a_higher_type_is_not_loaded(kind, loads):
    document = edited(lambda d: d["groups"][0].update(target="0", type=kind))
    if loads:
        load_state(state := State(), document)
        assert state.groups["g1"].type == kind
    else:
        with pytest.raises(InvalidRequest, match=r"a discussion group has a type of at most 2, not [34] @ \$\.groups\[0\]"):
            load_state(State(), document)


@pytest.mark.parametrize("document", [None, [], "", 1, [("version", 1)]])
def test_a_document_is_an_object(document):
    with pytest.raises(InvalidRequest, match="must be an object, not"):
        load_state(State(), document)


def test_loading_leaves_the_document_alone():
    document = export_state(a_state())
    kept = copy.deepcopy(document)
    state = State()
    load_state(state, document)
    state.groups["g1"].members["x"] = Role.MEMBER
    state.groups["g1"].invited.clear()
    assert document == kept


async def test_identifiers_have_their_form_after_the_most_that_a_document_can_count():
    load_state(state := State(), {"version": VERSION, "made": 10**12})
    assert [state.new_group_id(), state.new_task_id()] == ["g81000049837291", "1000000001002"]


async def test_an_identifier_that_is_taken_is_not_made_again():
    emulator = Emulator(clock=EmulatedClock())
    load_state(emulator.state, export_state(State(groups={"g": a_group("g80000049837291")}, tasks={"t": a_task("1002")})))
    async with client_of(emulator) as client:
        made = await client.groups.create(name="b", type=GroupType.TEMPORARY)
        assert made.group_id == "g80000049837292"
    assert emulator.state.new_task_id() == "1003"
    assert emulator.state.new_task_id() == "1004"


accounts = st.text(min_size=1, max_size=5)
hours = st.tuples(st.times().map(lambda t: t.replace(microsecond=0)), st.times().map(lambda t: t.replace(microsecond=0)))
days = st.tuples(st.dates(), st.dates())
periods = (
    hours.map(sorted).map(lambda pair: Hours(*pair))
    | days.map(sorted).map(lambda pair: NoCallPolicy.dates("d", *pair).period)
    | st.sets(st.sampled_from(Weekday), min_size=1).map(lambda chosen: NoCallPolicy.weekdays("w", chosen).period)
)
offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
policies = st.lists(
    st.builds(NoCallPolicy, st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), periods),
    max_size=3,
    unique_by=lambda policy: policy.name,
)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_every_state_survives_json(data):
    def waiting(members):
        return st.lists(accounts, max_size=3).map(lambda names: {name: None for name in names if name not in members})

    groups, tasks = {}, {}
    for group_id in data.draw(st.lists(st.text(max_size=5), max_size=2, unique=True)):
        names = data.draw(st.lists(accounts, min_size=1, max_size=4, unique=True))
        members = {name: data.draw(st.sampled_from([Role.MEMBER, Role.ADMINISTRATOR])) for name in names}
        members[data.draw(st.sampled_from(names))] = Role.CREATOR
        groups[group_id] = a_group(
            group_id,
            name=data.draw(st.text()),
            type=data.draw(st.sampled_from(GroupType)),
            permission=data.draw(st.sampled_from(Permission)),
            group_domain=data.draw(st.none() | st.text()),
            created=data.draw(st.datetimes(timezones=offsets)),
            members=members,
            invited=data.draw(waiting(members)),
            applied=data.draw(waiting(members)),
        )
    for task_id in data.draw(st.lists(st.text(max_size=5), max_size=2, unique=True)):
        tasks[task_id] = a_task(
            task_id,
            bot_id=data.draw(st.integers()),
            task_desc=data.draw(st.none() | st.text(max_size=64)),
            end_date=data.draw(st.dates()),
            isrecord=data.draw(st.booleans()),
            call_policy=data.draw(policies),
            rand=data.draw(st.none() | st.text("0123456789", min_size=1)),
        )
    known = st.none() | st.sets(accounts, max_size=3)
    state = State(
        groups, tasks, data.draw(st.sets(accounts, max_size=3)), data.draw(known), data.draw(st.integers(0, 10**12))
    )
    document = json.loads(json.dumps(export_state(state)))
    loaded = State()
    load_state(loaded, document)
    assert loaded == state
    assert in_order(loaded) == in_order(state)
    assert export_state(loaded) == document


@pytest.mark.parametrize(
    "call_policy", [None, (), (CallPolicy(()),), tuple(CallPolicy([policy]) for policy in default_no_call_policies())]
)
def test_no_policies_no_word_on_policies_and_several_objects_survive(call_policy):
    state, loaded = State(tasks={"1": a_task("1", call_policy=call_policy)}), State()
    load_state(loaded, json.loads(json.dumps(export_state(state))))
    assert loaded.tasks["1"].request.call_policy == call_policy


def test_midnight_policies_survive():
    policy = NoCallPolicy.hours("a", time(0), time(23, 59, 59))
    state, loaded = State(tasks={"1": a_task("1", call_policy=[policy])}), State()
    load_state(loaded, export_state(state))
    assert loaded.tasks["1"].request.call_policy == (policy,)
