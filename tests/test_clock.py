"""Emulated time, by hand and by itself."""

from datetime import UTC, datetime

import pytest
from anyio import CancelScope, Event, create_task_group
from anyio.lowlevel import checkpoint

from helpers.tables import each_row
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


@each_row("hours", [1e9, float("inf"), float("nan")])
async def test_time_does_not_run_past_the_last_date(hours):
    clock = EmulatedClock()
    with pytest.raises(ValueError, match="time ends on 9999-12-30"):
        await clock.advance(hours=hours)
    assert (clock.monotonic(), clock.now()) == (0.0, clock.start)
    await clock.advance((datetime(9999, 12, 30, tzinfo=UTC) - clock.start).total_seconds())
    assert clock.now() == datetime(9999, 12, 30, tzinfo=UTC)


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
