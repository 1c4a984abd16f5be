"""A sink on a network that says that it cannot be reached: the overflow file takes deliveries at once."""

import anyio
import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving import results_for
from rbim import InvalidRequest
from rbim.callbacks import MemorySink, Receiver, Spooled, sign


class NetworkSink(MemorySink):
    """It hangs while it is not ready, as one does whose servers do not answer."""

    accept_now = None

    def __init__(self, **options):
        super().__init__(**options)
        self.ready = True
        self.tries = 0

    async def accept(self, delivery):
        self.tries += 1
        if not self.ready:
            await anyio.sleep_forever()
        return await super().accept(delivery)


def body(number, group):
    return (
        f'{{"eventType": "1", "convType": "TEAM", "to": "{group}", "fromAccount": "{CREDENTIALS.app_id}#1", '
        f'"msgType": "TEXT", "msgId": "{number}"}}'
    ).encode()


async def post(receiver, clock, number, group):
    content = body(number, group)
    return (await receiver.receive(sign(content, credentials=CREDENTIALS, now=clock.now()), content)).status


@pytest.fixture
def sink(clock):
    return NetworkSink(clock=clock)


async def test_while_the_sink_is_not_ready_no_delivery_waits_for_it(sink, clock, tmp_path, facts):
    """Time stands still: whoever waited for the budget would wait for ever."""
    async with Receiver(
        credentials=CREDENTIALS, sink=sink, spool=tmp_path / "spool", clock=clock, observers=[results_for(facts.append)]
    ) as receiver:
        assert await post(receiver, clock, 0, "g0") == 200
        sink.ready = False
        tried = sink.tries
        with anyio.fail_after(5):
            for number in range(1, 7):
                assert await post(receiver, clock, number, f"g{number % 3}") == 200
        assert sink.tries - tried <= 3  # those of the spool's own worker
        spooled = [fact for fact in facts if isinstance(fact, Spooled)]
        assert [fact.kept for fact in spooled] == [True] * 6
        assert {fact.why for fact in spooled} <= {
            "the sink is not ready",
            "an earlier delivery of the conversation is in the spool",
        }
        sink.ready = True
        with anyio.fail_after(20):
            while len(sink.events) < 7:
                await clock.advance(3)
                await anyio.sleep(0.01)
        for group in range(3):
            found = [int(event.msg_id) for event in sink.events if event.to == f"g{group}"]
            assert found == sorted(found)


async def test_in_high_guarantee_mode_it_is_asked_all_the_same(sink, clock):
    async with Receiver(credentials=CREDENTIALS, sink=sink, mode="high-guarantee", clock=clock) as receiver:
        sink.ready = False
        statuses = []

        async def send():
            statuses.append(await post(receiver, clock, 1, "g1"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await clock.advance(1.9)
            assert statuses == []
            await clock.advance(0.2)
        assert statuses == [503]
        assert sink.tries == 1


def test_in_normal_mode_a_sink_on_a_network_needs_an_overflow_file(sink, tmp_path):
    with pytest.raises(InvalidRequest, match=r"NetworkSink is reached over a network.* spool="):
        Receiver(credentials=CREDENTIALS, sink=sink)
    Receiver(credentials=CREDENTIALS, sink=sink, spool=tmp_path / "spool")
    Receiver(credentials=CREDENTIALS, sink=sink, mode="high-guarantee")
