"""Emulated time, by hand and by itself, and the machine's own clock."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from anyio import CancelScope, Event, create_task_group, sleep_forever
from anyio.lowlevel import checkpoint

from rbim import SystemClock
from rbim.emulator.clock import EmulatedClock


async def test_time_stands_still_until_it_is_told_to_go_on():
    clock = EmulatedClock(datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC))
    for _ in range(100):
        await checkpoint()
    assert (clock.now(), clock.monotonic()) == (datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC), 0.0)
    await clock.advance(1.5, hours=2)
    assert (clock.now(), clock.monotonic()) == (datetime(2026, 5, 6, 9, 8, 10, 500000, tzinfo=UTC), 7201.5)


async def test_advance_wakes_sleepers_in_order_each_at_its_own_time():
    clock, woken = EmulatedClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))

    async with create_task_group() as tasks:
        for seconds in (3, 1, 2, 9):
            tasks.start_soon(sleeper, seconds)
        await clock.advance(4)
        assert woken == [(1, 1.0), (2, 2.0), (3, 3.0)]
        await clock.advance(5)
        assert woken[3:] == [(9, 9.0)]


async def test_one_advance_carries_a_sleeper_through_several_sleeps():
    clock, ticks = EmulatedClock(), []

    async def tick() -> None:
        while True:
            await clock.sleep(1)
            ticks.append(clock.monotonic())

    async with create_task_group() as tasks:
        tasks.start_soon(tick)
        await clock.advance(3.5)
        assert ticks == [1.0, 2.0, 3.0]
        assert clock.monotonic() == 3.5
        tasks.cancel_scope.cancel()


async def test_time_does_not_run_backwards():
    clock = EmulatedClock()
    await clock.advance(5)
    with pytest.raises(ValueError, match="backwards"):
        await clock.advance(-1)
    assert clock.monotonic() == 5


@pytest.mark.parametrize("hours", [1e9, float("inf"), float("nan")])
async def test_time_does_not_run_past_the_last_date(hours):
    clock = EmulatedClock()
    with pytest.raises(ValueError, match="time ends on 9999-12-30"):
        await clock.advance(hours=hours)
    assert (clock.monotonic(), clock.now()) == (0.0, clock.start)
    await clock.advance((datetime(9999, 12, 30, tzinfo=UTC) - clock.start).total_seconds())
    assert clock.now() == datetime(9999, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize("seconds", [0, -1])
async def test_sleeping_for_no_time_needs_no_advance(seconds):
    await EmulatedClock().sleep(seconds)
    await EmulatedClock(auto=True).sleep(seconds)


async def test_a_scope_ends_what_runs_in_it_when_its_time_is_over():
    clock, ended = EmulatedClock(), []

    async def limited() -> None:
        with clock.scope(2) as scope:
            await sleep_forever()
        ended.append((scope.cancelled_caught, clock.monotonic()))

    async with create_task_group() as tasks:
        tasks.start_soon(limited)
        await clock.advance(1.9)
        assert ended == []
        await clock.advance(5)
    assert ended == [(True, 2.0)]


async def test_of_nested_scopes_the_shorter_one_ends_first():
    clock, ended = EmulatedClock(auto=True), []
    with clock.scope(5) as outer:
        with clock.scope(2) as inner:
            await clock.sleep(9)
        ended.append(clock.monotonic())
        await clock.sleep(9)
    assert (inner.cancelled_caught, outer.cancelled_caught, [*ended, clock.monotonic()]) == (True, True, [2.0, 5.0])


async def test_a_scope_that_was_left_touches_nobody_later():
    clock = EmulatedClock(auto=True)
    with clock.scope(1) as scope:
        pass
    await clock.sleep(3)
    assert not scope.cancelled_caught
    assert clock.monotonic() == 3


async def test_a_scope_can_be_cancelled_by_hand():
    with EmulatedClock().scope(10) as scope:
        scope.cancel()
        await sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.parametrize("seconds", [0, -3])
@pytest.mark.parametrize("clock", [EmulatedClock(), SystemClock()], ids=["emulated", "system"])
async def test_a_scope_without_any_time_is_over_at_once(clock, seconds):
    with clock.scope(seconds) as scope:
        await sleep_forever()
    assert scope.cancelled_caught


async def test_with_auto_time_jumps_to_whatever_is_waited_for_next():
    clock, woken = EmulatedClock(auto=True), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))
        await clock.sleep(10)
        woken.append((seconds, clock.monotonic()))

    async with create_task_group() as tasks:
        for seconds in (3, 1, 2):
            tasks.start_soon(sleeper, seconds)
    assert woken == [(1, 1.0), (2, 2.0), (3, 3.0), (1, 11.0), (2, 12.0), (3, 13.0)]


async def test_with_auto_a_sleeper_that_is_cancelled_leaves_time_to_the_others():
    clock = EmulatedClock(auto=True)
    first = CancelScope()

    async def given_up() -> None:
        with first:
            await clock.sleep(7)

    async with create_task_group() as tasks:
        tasks.start_soon(given_up)
        for _ in range(3):
            await checkpoint()
        tasks.start_soon(clock.sleep, 9)
        await checkpoint()
        first.cancel()
    assert clock.monotonic() == 9


async def test_with_auto_time_stands_still_while_somebody_works_with_the_clock():
    clock, seen = EmulatedClock(auto=True), []
    baton = [Event() for _ in range(300)]

    async def runner(number: int) -> None:
        await baton[number].wait()
        seen.append(clock.monotonic())
        if number + 1 < len(baton):
            baton[number + 1].set()

    async with create_task_group() as tasks:
        for number in range(len(baton)):
            tasks.start_soon(runner, number)
        tasks.start_soon(clock.sleep, 60)
        baton[0].set()
    assert seen == [0.0] * 300
    assert clock.monotonic() == 60


async def test_with_auto_thousands_may_sleep_at_once():
    clock, woken = EmulatedClock(auto=True), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(clock.monotonic())

    async with create_task_group() as tasks:
        for number in range(3000):
            tasks.start_soon(sleeper, 1 + number * 7919 % 3000)
    assert woken == [float(second) for second in range(1, 3001)]


def test_the_system_clock_tells_the_machines_time():
    clock = SystemClock()
    early, now, late = datetime.now(UTC), clock.now(), datetime.now(UTC)
    assert early <= now <= late
    assert now.utcoffset() == timedelta(0)
    early, now, late = time.monotonic(), clock.monotonic(), time.monotonic()
    assert early <= now <= late


async def test_the_system_clocks_scope_leaves_alone_what_is_quick():
    with SystemClock().scope(3600) as scope:
        await SystemClock().sleep(0)
    assert not scope.cancelled_caught
