"""What the interface has no operation for: answers to invitations and requests, first logins, calling hours."""

from datetime import UTC, date, datetime, time, timedelta, timezone

import pytest

from helpers.emulators import choosing, client_of
from helpers.tables import each_row
from rbim import Dialect, GroupType, Permission, Role, Weekday
from rbim.codes import FULL
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.platform.rules import DependsOnDialect, GroupChange, Refusal
from rbim.operations.call_tasks import NoCallPolicy, default_no_call_policies

CHINA = timezone(timedelta(hours=8))


def box(start=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), **options):
    return Emulator(clock=EmulatedClock(start), **options)


async def a_group(client, emulator, *, members=(), invited=(), applied=(), type=GroupType.TEMPORARY):  # noqa: A002
    """Make a group that takes people after verification, and return it."""
    made = await client.groups.create(name="a", type=type, permission=Permission.VERIFIED, user_name="1000")
    for account in applied:
        await client.acting_as(account).groups.join(group_id=made.group_id)
    if invited:
        await client.groups.invite(group_id=made.group_id, members=invited, needs_confirmation=True)
    for at in range(0, len(members), 50):
        await client.groups.invite(group_id=made.group_id, members=members[at : at + 50])
    return emulator.state.groups[made.group_id]


@each_row(
    "answer, waits, actor, admits",
    [
        ("confirm", "invited", "1001", True),
        ("decline", "invited", "1001", False),
        ("approve", "applied", "1000", True),
        ("reject", "applied", "1000", False),
    ],
)
async def test_an_answer_settles_what_waits_and_tells_the_group(answer, waits, actor, admits):
    emulator = box()
    async with client_of(emulator) as client:
        group = await a_group(client, emulator, **{waits: ["1001", "1002"]})
    emulator.world.listeners.append((changes := []).append)
    getattr(emulator, answer)(group.group_id, "1001")
    assert group.members == {"1000": Role.CREATOR} | ({"1001": Role.MEMBER} if admits else {})
    assert list(getattr(group, waits)) == ["1002"]
    assert changes == [GroupChange(cause=answer, group_id=group.group_id, actor=actor, members=("1001",))]
    assert answer in emulator.rules.notifications
    with pytest.raises(LookupError, match=rf"no (invitation|request to join) of 1001 waits in {group.group_id}"):
        getattr(emulator, answer)(group.group_id, "1001")
    assert len(changes) == 1


@each_row("answer, waits", [("confirm", "invited"), ("approve", "applied")])
async def test_a_full_group_takes_nobody_and_lets_them_wait(answer, waits):
    emulator = box()
    async with client_of(emulator) as client:
        group = await a_group(client, emulator, **{waits: ["late", "later"]}, members=[f"m{n}" for n in range(98)])
        getattr(emulator, answer)(group.group_id, "late")
        assert len(group.members) == group.type.member_limit == 100
        before = emulator.snapshot()
        with pytest.raises(Refusal, match=f"{group.group_id} is full") as refused:
            getattr(emulator, answer)(group.group_id, "later")
        assert refused.value.code == FULL
        assert emulator.snapshot() == before
        await client.acting_as("m3").groups.leave(group_id=group.group_id)
        getattr(emulator, answer)(group.group_id, "later")
    assert list(group.members)[-2:] == ["late", "later"]


@each_row("accounts", [None, ["1000"]])
async def test_a_first_login_lets_an_account_be_invited(accounts):
    emulator = box(accounts=accounts)
    emulator.never_logged_in("1001")
    async with client_of(emulator) as client:
        group = await a_group(client, emulator)
        answer = await client.groups.invite(group_id=group.group_id, members=["1001"])
        assert [fail.member for fail in answer.fails] == ["1001"]
        emulator.log_in("1001")
        assert (await client.groups.invite(group_id=group.group_id, members=["1001"])).fails == ()
    for account in ("1001", "1000"):
        with pytest.raises(LookupError, match=f"{account} has logged in before"):
            emulator.log_in(account)


async def a_task(emulator, *policies, start=date(2026, 1, 5), end=date(2026, 1, 7), said=True):
    """Make a task and return what tells whether it may call at a time of the platform's zone."""
    async with client_of(emulator) as client:
        task = await client.calls.create_task(
            bot_id=1,
            task_name="a",
            start_date=start,
            end_date=end,
            max_concurrent=1,
            min_concurrent=1,
            caller="1",
            call_policy=policies if said else None,
        )

    def may_call(moment):
        emulator.clock.elapsed = (moment.astimezone(UTC) - emulator.clock.start).total_seconds()
        return emulator.may_call(task.task_id)

    return may_call


def at(day, *clock, zone=CHINA):
    return datetime(2026, 1, day, *clock, tzinfo=zone)


@each_row(
    "moment, allowed",
    [
        (at(5, 0, 0, 0), False),
        (at(5, 8, 59, 59), False),
        (at(5, 9, 0, 0), False),  # by the dialect
        (at(5, 9, 0, 1), True),
        (at(5, 20, 59, 59), True),
        (at(5, 21, 0, 0), False),
        (at(5, 23, 59, 59), False),
        (at(6, 0, 0, 0), False),
    ],
)
@each_row("said", [True, False])
async def test_the_default_policies_forbid_mornings_and_nights_said_or_not(moment, allowed, said):
    may_call = await a_task(box(), *default_no_call_policies(), said=said)
    assert may_call(moment) is allowed


NIGHT, NOON = at(5, 3), at(5, 12)


@each_row(
    "choices, said, at_night",
    [
        ({}, False, False),
        ({"default_policies_apply": False}, False, True),
        ({}, True, True),  # an empty list says that there are none
    ],
)
async def test_a_task_without_policies_calls_at_night_only_if_it_says_so(choices, said, at_night):
    may_call = await a_task(box(**choosing(**choices)), said=said)
    assert (may_call(NIGHT), may_call(NOON)) == (at_night, True)


async def test_the_last_second_of_hours_is_forbidden():
    moments = [at(5, 11, 59, 59), at(5, 12, 30), at(5, 13, 0, 0), at(5, 13, 0, 1)]
    may_call = await a_task(box(), NoCallPolicy.hours("a", time(12), time(13)))
    assert [may_call(moment) for moment in moments] == [True, False, False, True]
    mornings = await a_task(box(), said=False)
    assert [mornings(at(5, 9, 0, 0)), mornings(at(5, 9, 0, 1))] == [False, True]


async def test_the_current_day_is_every_day():
    policy = NoCallPolicy.hours("a", time(12), time(13))
    emulator = box()  # it is the 2nd
    may_call = await a_task(emulator, policy, start=date(2026, 1, 2), end=date(2026, 1, 4))
    assert [day for day in (2, 3, 4) if not may_call(at(day, 12, 30))] == [2, 3, 4]


async def test_hours_that_end_before_they_start_run_past_midnight_if_they_are_accepted():
    emulator = box(dialect=Dialect(reversed_periods_refused=False))
    nights = NoCallPolicy.hours("夜", time(22), time(6))
    never = NoCallPolicy.dates("无", date(2026, 1, 6), date(2026, 1, 5))
    may_call = await a_task(emulator, nights, never)
    assert [hour for hour in range(24) if may_call(at(5, hour, 30))] == list(range(6, 22))


@each_row(
    "policies, said, moment, field",
    [
        ((), False, NIGHT, "default_policies_apply"),
        ((), False, NOON, None),
        ((), True, NIGHT, "empty_policy_is_none"),
        ((), True, NOON, None),
        ((), False, at(5, 9), "hours_include_end"),
        ((), False, at(8, 3), None),  # after the end date
        ((NoCallPolicy.hours("a", time(12), time(13)),), True, at(5, 12, 30), "day_policy_repeats"),
        ((NoCallPolicy.hours("a", time(12), time(13)),), True, at(5, 14), None),
        (
            (NoCallPolicy.hours("a", time(12), time(13)), NoCallPolicy.weekdays("b", [Weekday.MONDAY])),
            True,
            at(5, 12, 30),  # a Monday: the hours do not matter
            None,
        ),
    ],
)
async def test_a_strict_emulator_says_when_a_call_depends_on_a_guess(policies, said, moment, field):
    may_call = await a_task(box(strict_dialect=True), *policies, said=said)
    if field is None:
        may_call(moment)
    else:
        with pytest.raises(DependsOnDialect, match=rf"(Rules\.{field}|\({field}\))$"):
            may_call(moment)


@each_row(
    "moment, allowed",
    [
        (at(4, 23, 59, 59), False),
        (at(5, 0, 0, 0), True),
        (at(7, 23, 59, 59), True),
        (at(7, 23, 59, 59, 999_999), True),
        (at(8, 0, 0, 0), False),
        (at(5, 0, 0, 0, zone=UTC), True),
        (at(4, 16, 0, 0, zone=UTC), True),  # midnight in UTC+8
        (at(4, 15, 59, 59, zone=UTC), False),
        (at(7, 16, 0, 0, zone=UTC), False),
    ],
)
async def test_a_task_calls_from_its_start_date_to_its_end_date(moment, allowed):
    may_call = await a_task(box())
    assert may_call(moment) is allowed


async def test_weekdays_and_dates_are_forbidden_as_a_whole():
    policies = (
        NoCallPolicy.weekdays("周末", {Weekday.SATURDAY, Weekday.SUNDAY}),
        NoCallPolicy.dates("假期", date(2026, 1, 13), date(2026, 1, 14)),
        NoCallPolicy.hours("午休", time(12, 0, 0), time(12, 59, 59)),
    )
    may_call = await a_task(box(), *policies, start=date(2026, 1, 9), end=date(2026, 1, 16))
    allowed = [day for day in range(9, 17) if may_call(at(day, 0, 0, 0)) and may_call(at(day, 23, 59, 59))]
    assert allowed == [9, 12, 15, 16]  # the 10th is a Saturday
    refused = [day for day in range(9, 17) if not may_call(at(day, 0, 0, 0)) and not may_call(at(day, 23, 59, 59))]
    assert refused == [10, 11, 13, 14]
    assert [may_call(at(12, *clock)) for clock in [(11, 59, 59), (12, 0, 0), (12, 59, 59), (13, 0, 0)]] == [1, 0, 0, 1]
