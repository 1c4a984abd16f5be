"""A sink on a network that says that it cannot be reached: the overflow file takes deliveries at once."""

import anyio
import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving import body, post, results_for
from helpers.waiting import until
from rbim import InvalidRequest
from rbim.callbacks import Event, MemorySink, PartEnded, Receiver, Spooled


class NetworkSink(MemorySink):
    """It hangs while it is not ready, as one does whose servers do not answer."""

    def __init__(self, **options):
        super().__init__(**options)
        self.ready = True
        self.tries = 0

    async def accept(self, delivery):
        self.tries += 1
        if not self.ready:
            await anyio.sleep_forever()
        return await super().accept(delivery)


async def send(receiver, clock, number, group):
    return (await post(receiver, body(to=group, msgId=str(number)), at=clock.now())).status


@pytest.fixture
def sink(clock):
    return NetworkSink(clock=clock)


async def test_while_the_sink_is_not_ready_no_delivery_waits_for_it(sink, clock, tmp_path, facts):
    """Time stands still: whoever waited for the budget would wait for ever."""
    async with Receiver(
        credentials=CREDENTIALS, sink=sink, spool=tmp_path / "spool", clock=clock, observers=[results_for(facts.append)]
    ) as receiver:
        assert await send(receiver, clock, 0, "g0") == 200
        sink.ready = False
        tried = sink.tries
        with anyio.fail_after(5):
            for number in range(1, 7):
                assert await send(receiver, clock, number, f"g{number % 3}") == 200
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


class Refusing(NetworkSink):
    """One whose server answers with an error until it is ready."""

    refuses = True

    async def __aenter__(self):
        if self.refuses:
            reason = "no leader yet"
            raise LookupError(reason)
        return await super().__aenter__()


async def test_a_sink_that_is_not_ready_at_the_start_is_away(clock, tmp_path, facts):
    sink, handled = Refusing(clock=clock), []
    receiver = Receiver(
        credentials=CREDENTIALS, sink=sink, spool=tmp_path / "spool", clock=clock, observers=[results_for(facts.append)]
    )

    @receiver.fallback
    async def handle(event: Event) -> None:
        handled.append(int(event.msg_id))

    async with receiver:
        for number in range(3):
            assert await send(receiver, clock, number, "g0") == 200
        health = await receiver.health()
        assert (health.accepting, health.handling, health.error) == (True, False, "LookupError: no leader yet")
        (ended,) = [fact for fact in facts if isinstance(fact, PartEnded)]
        assert (ended.part, ended.error) == ("sink", "LookupError: no leader yet")
        assert "overflow file" in str(ended)
        sink.refuses = False
        await until(lambda: handled == [0, 1, 2], clock)
        assert await send(receiver, clock, 3, "g0") == 200
        await until(lambda: handled == [0, 1, 2, 3], clock)
        assert (await receiver.health()).ok


async def test_without_an_overflow_file_the_receiver_does_not_start(clock):
    with pytest.raises(LookupError, match="no leader yet"):
        await Receiver(credentials=CREDENTIALS, sink=Refusing(clock=clock), mode="high-guarantee").__aenter__()


def test_in_normal_mode_a_sink_on_a_network_needs_an_overflow_file(sink, tmp_path):
    with pytest.raises(InvalidRequest, match=r"NetworkSink is reached over a network.* spool="):
        Receiver(credentials=CREDENTIALS, sink=sink)
    Receiver(credentials=CREDENTIALS, sink=sink, spool=tmp_path / "spool")
    Receiver(credentials=CREDENTIALS, sink=sink, mode="high-guarantee")
