"""Traces and metrics over several machines, on a real server: each machine has providers of its own, as a process has.

So a context can come from one to the other by a message only.
"""

import asyncio
from contextlib import asynccontextmanager
from contextvars import Context

import nats as nats_py
import pytest
from opentelemetry import baggage, context, propagate

from helpers.credentials import CREDENTIALS, TOKEN
from helpers.deliveries import delivery
from helpers.receiving import body, post
from helpers.telemetry import Telemetry
from helpers.waiting import until
from rbim.callbacks import Receiver, Router, Worker
from rbim.callbacks.observers import Observers
from rbim.jetstream import JetStreamInbox
from rbim.otel import OtelObserver
from rbim.otel.levels import InboxReading

PATIENCE = 30.0


@pytest.fixture
def near():
    """The telemetry of the machine that receives."""
    return Telemetry()


@pytest.fixture
def far():
    """The telemetry of the machine that handles."""
    return Telemetry()


@asynccontextmanager
async def everything_on(servers):
    """Yield the list of all messages that pass the servers, each with its subject, its headers and its content."""
    seen = []

    async def keep(message):
        seen.append((message.subject, dict(message.headers or {}), message.data))

    listener = await nats_py.connect(servers.urls)
    await listener.subscribe(">", cb=keep)
    await listener.flush()
    try:
        yield seen
    finally:
        await listener.drain()


async def kept_on(servers, *streams):
    """Return what streams keep, with headers, as one text."""
    listener, found = await nats_py.connect(servers.urls), []
    jetstream = listener.jetstream()
    for stream in streams:
        state = (await jetstream.stream_info(stream)).state
        for number in range(state.first_seq, state.last_seq + 1):
            try:
                message = await jetstream.get_msg(stream, number)
            except nats_py.js.errors.NotFoundError:
                continue
            found.append(f"{message.subject} {message.headers} {message.data}")
    await listener.close()
    return "\n".join(found)


def inbox(nats, name, **options):
    return JetStreamInbox(nats.urls, name=name, partitions=8, replicas=1, **{"takeover": 0.6, "retention": 3600.0} | options)


async def test_an_inbox_on_a_server_is_counted_and_its_partitions_are(nats, name, near, far):
    observed, worker = inbox(nats, name), inbox(nats, name)
    async with observed, near.observer.observe_inbox(observed, every=0.05):
        await observed.accept(delivery(1))
        await until(lambda: dict_of(near).get("waiting") == 1)
        assert near.points("rbim.inbox.lag")[0][0] == {"rbim.inbox": name}
        assert near.points("rbim.inbox.lag")[0][1] > 0
        async with far.observer.observe_inbox(worker, "copies", every=None):
            assert far.points("rbim.inbox.partitions") == [({"rbim.inbox": "copies"}, 0)]
            async with worker.backlog() as backlog:
                await until(lambda: far.points("rbim.inbox.partitions") == [({"rbim.inbox": "copies"}, 8)])
                await backlog.wait()
                (claim,) = await backlog.claim(1)
                await backlog.done([claim], more=0)
            assert far.points("rbim.inbox.partitions") == [({"rbim.inbox": "copies"}, 0)]
            assert far.points("rbim.inbox.takeovers") == [({"rbim.inbox": "copies"}, 0)]
            assert far.points("rbim.inbox.events") == far.points("rbim.inbox.lag") == []
        await until(lambda: dict_of(near).get("done") == 1)
        assert near.points("rbim.inbox.lag") == [({"rbim.inbox": name}, 0)]
        assert near.points("rbim.inbox.partitions") == [({"rbim.inbox": name}, 0)]


def dict_of(telemetry):
    return {about["rbim.state"]: value for about, value in telemetry.points("rbim.inbox.events")}


async def test_partitions_of_a_silent_worker_are_counted_as_taken_over(nats, name):
    silent, other = inbox(nats, name), inbox(nats, name)
    async with silent.backlog() as first:
        await until(lambda: silent.owned == 8)
        first._rounds.cancel()
        async with asyncio.timeout(PATIENCE):
            while silent.owned:  # before Python 3.12, wait_for() may lose a cancellation
                for task in [*first._ownership._tasks.values()]:
                    task.cancel()  # as if its process had stopped: nothing is given back
                await asyncio.sleep(0.02)
        async with other.backlog():
            async with asyncio.timeout(PATIENCE):
                while other.owned < 8:
                    await asyncio.sleep(0.02)
            assert other.takeovers == 8
    assert silent.takeovers == 0


async def test_entering_does_not_wait_for_servers_and_there_are_no_values_without_them(near, own_nats, name, caplog):
    own_nats.stop()
    async with asyncio.timeout(5):
        async with (
            inbox(own_nats, name) as copies,
            near.observer.observe_inbox(copies, every=0.05),
        ):
            await asyncio.sleep(0.2)
            assert near.points("rbim.inbox.events") == []
            assert near.points("rbim.inbox.partitions") == [({"rbim.inbox": name}, 0)]
    assert not [record for record in caplog.records if record.name == "rbim"]


async def test_counting_an_inbox_asks_little(nats, name):
    """At most six requests for each partition with events, and three more."""
    async with inbox(nats, name) as copies, everything_on(nats) as passed:
        for number in range(20):
            await copies.accept(delivery(number, f"c{number}"))
        del passed[:]
        reading = await InboxReading.of(copies)
        asked = [subject for subject, _, _ in passed if subject.startswith("$JS.API")]
    assert reading.counts.waiting == 20
    assert 8 < len(asked) <= 6 * 8 + 3, asked


async def test_counting_an_inbox_with_nothing_asks_next_to_nothing(nats, name):
    async with inbox(nats, name) as copies, everything_on(nats) as passed:
        await copies.counts()
        del passed[:]
        assert (await InboxReading.of(copies)).lag == 0
        asked = [subject for subject, _, _ in passed if subject.startswith("$JS.API")]
    assert len(asked) == 2, asked


async def test_a_handler_on_another_machine_is_linked_to_the_delivery_of_its_event(nats, name, near, far, tmp_path):
    router, said = Router(), []

    @router.fallback
    async def handle(event):
        said.append(event)

    copies = inbox(nats, name, inject=near.observer.inject)
    worker = Worker(inbox(nats, name), router, observers=Observers([far.observer.on_callback]))
    receiver = Receiver(
        credentials=CREDENTIALS, sink=copies, spool=tmp_path / "spool", observers=[near.observer.on_callback]
    )
    async with everything_on(nats) as passed, receiver:
        assert (await post(receiver, body())).status == 200
        running = asyncio.create_task(worker.run(), context=Context())
        await until(lambda: said or running.done(), most=4)
        worker.stop()
        await running
    (delivered,) = near.ended
    (linked,) = far.ended
    assert [link.context.span_id for link in linked.links] == [delivered.context.span_id]
    assert [link.context.trace_id for link in linked.links] == [delivered.context.trace_id]
    assert linked.parent is None
    assert linked.attributes["rbim.key"] == delivered.attributes["rbim.key"]
    assert TOKEN not in f"{passed} {await kept_on(nats, name)} {near.text()} {far.text()}"


def test_only_the_context_of_the_trace_travels_unless_another_propagator_is_given(near):
    more = OtelObserver(near.tracer_provider, near.meter_provider, propagator=propagate.get_global_textmap())
    token = context.attach(baggage.set_baggage("customer", "7"))
    usual, all_of_it = {}, {}
    with near.tracer.start_as_current_span("mine"):
        near.observer.inject(usual)
        more.inject(all_of_it)
    context.detach(token)
    assert usual.keys() == {"traceparent"}
    assert all_of_it == {**usual, "baggage": "customer=7"}


async def test_an_event_is_accepted_if_its_headers_cannot_be_made(nats, name):
    def rude(headers):
        headers |= {
            "Nats-Msg-Id": "mine",
            "Rbim-Packed": "1",
            "line": "a\r\nb: c",
            "long": "x" * 70_000,
            "no:name": "x",
            "": "x",
            "fine": "1",
            **{f"h{number}": "x" for number in range(20)},
        }
        if not refused:
            refused.append(1)
            raise RuntimeError

    refused = []
    async with inbox(nats, name, inject=rude) as copies:
        assert await copies.accept(delivery(1)) is True
        assert await copies.accept(delivery(2)) is True
        assert await copies.accept(delivery(2)) is False
        async with copies.backlog() as backlog:
            found = []
            while len(found) < 2:
                await backlog.wait()
                found += await backlog.claim(10)
    assert [claim.headers for claim in sorted(found, key=lambda claim: claim.number)] == [
        {"fine": "1", **{f"h{number}": "x" for number in range(5)}}
    ] * 2
