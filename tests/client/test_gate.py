"""The gate: first come, first served, never more than its places, and no place is ever lost."""

import asyncio

import pytest
from anyio import CancelScope, Event, create_task_group
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from rbim.gate import Gate


async def settle() -> None:
    for _ in range(10):
        await checkpoint()


class Visitor:
    """One who enters, stays until told to go, and leaves; it may be sent away at any moment."""

    def __init__(self, gate: Gate, entered: list["Visitor"]) -> None:
        self.scope = CancelScope()
        self.may_go = Event()
        self.inside = False
        self._gate = gate
        self._entered = entered

    async def visit(self) -> None:
        with self.scope:
            await self._gate.enter()
            self._entered.append(self)
            self.inside = True
            try:
                await self.may_go.wait()
            finally:
                self.inside = False
                self._gate.leave()


async def test_while_a_place_is_free_nobody_waits():
    gate = Gate(2)
    steps = gate.enter()
    with pytest.raises(StopIteration):  # done without giving way once
        steps.send(None)
    assert (gate.free, gate.waiting) == (1, 0)


@pytest.mark.parametrize("places", [1, 3])
async def test_first_come_first_served_and_never_more_than_its_places(places):
    gate, entered, most = Gate(places), [], 0
    visitors = [Visitor(gate, entered) for _ in range(20)]
    async with create_task_group() as tasks:
        for visitor in visitors:
            tasks.start_soon(visitor.visit)
            await settle()
        assert gate.waiting == 20 - places
        for visitor in visitors:
            most = max(most, sum(each.inside for each in visitors))
            visitor.may_go.set()
            await settle()
    assert entered == visitors
    assert most == places
    assert (gate.free, gate.waiting) == (places, 0)


async def test_who_comes_while_others_wait_does_not_overtake_them():
    gate, entered = Gate(1), []
    first, second, third = (Visitor(gate, entered) for _ in range(3))
    async with create_task_group() as tasks:
        tasks.start_soon(first.visit)
        await settle()
        tasks.start_soon(second.visit)
        await settle()
        first.may_go.set()
        tasks.start_soon(third.visit)  # comes in the moment in which the place is handed over
        for visitor in (second, third):
            await settle()
            visitor.may_go.set()
    assert entered == [first, second, third]


async def test_a_place_handed_to_one_who_is_cancelled_in_that_moment_goes_to_the_next():
    gate, entered = Gate(1), []
    second, third = Visitor(gate, entered), Visitor(gate, entered)
    await gate.enter()
    async with create_task_group() as tasks:
        for visitor in (second, third):
            tasks.start_soon(visitor.visit)
            await settle()
        gate.leave()
        second.scope.cancel()
        await settle()
        assert not second.inside
        assert third.inside
        third.may_go.set()
    assert (gate.free, gate.waiting) == (1, 0)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("turns", range(4))
async def test_asyncios_own_cancel_loses_no_place_in_any_turn_of_the_loop(turns):
    gate = Gate(1)
    await gate.enter()
    task = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    gate.leave()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        assert gate.free == 1
    else:
        gate.leave()
    assert (gate.free, gate.waiting) == (1, 0)


async def test_ten_thousand_cancelled_waiters_leave_nothing_behind():
    gate = Gate(1)
    await gate.enter()
    async with create_task_group() as tasks:
        for _ in range(10_000):
            tasks.start_soon(gate.enter)
        await settle()
        assert gate.waiting == 10_000
        tasks.cancel_scope.cancel()
    assert (gate.free, gate.waiting) == (0, 0)
    gate.leave()
    assert gate.free == 1


COME, GO, AWAY, PAUSE = "come", "go", "away", "pause"
MOVES = st.lists(st.tuples(st.sampled_from((COME, COME, GO, AWAY, PAUSE)), st.integers(0, 9)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(places=st.integers(1, 3), moves=MOVES)
async def test_whatever_happens_in_whatever_moment_no_place_is_lost(places, moves):
    gate, visitors, entered = Gate(places), [], []
    async with create_task_group() as tasks:
        for move, which in moves:
            chosen = visitors[which % len(visitors)] if visitors else None
            if move == COME:
                visitors.append(Visitor(gate, entered))
                tasks.start_soon(visitors[-1].visit)
            elif chosen is not None and move == GO:
                chosen.may_go.set()
            elif chosen is not None and move == AWAY:
                chosen.scope.cancel()
            elif move == PAUSE:
                await checkpoint()  # one turn of the loop, not more: the next move falls into the middle of things
            assert sum(visitor.inside for visitor in visitors) <= places
        for visitor in visitors:
            visitor.may_go.set()
    assert (gate.free, gate.waiting) == (places, 0)


@settings(max_examples=60, deadline=None)
@given(places=st.integers(1, 3), moves=MOVES)
async def test_with_time_to_settle_the_gate_does_what_a_plain_queue_would(places, moves):
    gate, visitors, entered = Gate(places), [], []
    inside, queue, order = [], [], []  # the model

    def admit() -> None:
        while queue and len(inside) < places:
            inside.append(queue.pop(0))
            order.append(inside[-1])
        for each in [each for each in inside if each.may_go.is_set()]:
            inside.remove(each)
            admit()

    async with create_task_group() as tasks:
        for move, which in moves:
            present = [*inside, *queue]
            chosen = present[which % len(present)] if present else None
            if move == COME:
                visitor = Visitor(gate, entered)
                visitors.append(visitor)
                queue.append(visitor)
                tasks.start_soon(visitor.visit)
            elif chosen is not None and move == GO:
                chosen.may_go.set()
            elif chosen is not None and move == AWAY:
                (inside if chosen in inside else queue).remove(chosen)
                chosen.scope.cancel()
            admit()
            for _ in range(4 + 3 * len(visitors)):
                await checkpoint()
            assert entered == order
            assert gate.waiting == len(queue)
            assert gate.free == places - len(inside)
        tasks.cancel_scope.cancel()
