"""The metric of waits: it counts the calls that waited, and no others."""

import anyio

from helpers.stubs import NEVER, READ, Stub, client_over, ending
from helpers.waiting import until
from rbim import DeadlineExceeded, JoinGroup, Limits, Rate
from rbim.clock import SystemClock

WAITS = "rbim.client.wait.duration"
SLOW_JOINS = Limits(rates=[Rate(1, per=0.1, operations=(JoinGroup,))])


async def test_calls_that_pass_a_queue_at_once_have_not_waited(telemetry):
    async with (
        client_over(Stub(), observers=[telemetry.observer], clock=SystemClock(), limits=SLOW_JOINS) as client,
        anyio.create_task_group() as tasks,
    ):
        await client.send(NEVER)
        tasks.start_soon(client.send, NEVER)
        await until(lambda: client.load.waiting)
        exchanges = [await client.exchange(READ) for _ in range(3)]
        assert client.load.waiting  # the others went past it
    assert [exchange.waited for exchange in exchanges] == [0, 0, 0]
    ((about, (count, total)),) = telemetry.points(WAITS)
    assert (about, count) == ({"rbim.operation": "JoinGroup"}, 1)
    assert total > 0.01


async def test_a_call_that_is_refused_at_once_has_not_waited(telemetry):
    stub = Stub()
    limits = Limits(rates=[Rate(1, per=100)])
    async with client_over(stub, observers=[telemetry.observer], clock=SystemClock(), limits=limits) as client:
        await client.send(READ)
        assert isinstance(await ending(client.send(READ)), DeadlineExceeded)
    assert len(stub.requests) == 1
    assert telemetry.points(WAITS) == []


async def test_a_call_that_is_cancelled_while_it_waits_has_waited(telemetry):
    stub = Stub()
    async with client_over(stub, observers=[telemetry.observer], limits=Limits(rates=[Rate(1, per=20)])) as client:
        await client.send(READ)
        with stub.clock.scope(4):
            await client.send(READ)
    assert telemetry.points(WAITS) == [({"rbim.operation": "QueryGroupDetail"}, (1, 4))]
