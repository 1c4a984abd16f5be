"""Traces and metrics over several machines, on a real server: each machine has providers of its own, as a process has.

So a context can come from one to the other by a message only.
"""

import asyncio
from contextlib import asynccontextmanager
from contextvars import Context

import nats as nats_py
import pytest
from opentelemetry import baggage, context, propagate, trace

from helpers.credentials import CREDENTIALS, TOKEN
from helpers.deliveries import delivery
from helpers.receiving import body, post
from helpers.telemetry import Telemetry
from helpers.waiting import until
from rbim import AsyncClient, GroupType, InviteJoinGroup, NotFound, NotTaken, QueryGroupDetail, Unanswered
from rbim.bulk import InviteJob
from rbim.callbacks import Receiver, Router, Worker
from rbim.callbacks.observers import Observers
from rbim.emulator import Emulator
from rbim.jetstream import JetStreamInbox, RemoteSender, serve
from rbim.jetstream.observers import carried
from rbim.jetstream.requests import Names
from rbim.otel import OtelObserver
from rbim.otel.levels import InboxReading

PATIENCE = 30.0


class Platform:
    """An emulator that keeps what it was sent: headers, signature, and the span that was current."""

    def __init__(self):
        self.emulator = Emulator(credentials=CREDENTIALS)
        self.sent = []

    def __getattr__(self, name):
        return getattr(self.emulator, name)

    async def send(self, request, /, *, timeout):
        self.sent.append((dict(request.headers), request.query["sig"], trace.get_current_span().get_span_context()))
        return await self.emulator.send(request, timeout=timeout)


@pytest.fixture
def platform():
    return Platform()


@pytest.fixture
def near():
    """The telemetry of the machine with the list."""
    return Telemetry()


@pytest.fixture
def far():
    """The telemetry of the machine that sends."""
    return Telemetry()


def client(platform, *observers):
    return AsyncClient(base_url="http://e", credentials=CREDENTIALS, transport=platform, observers=observers)


async def group_of(platform):
    async with client(platform) as entered:
        group = (await entered.groups.create(name="g", type=GroupType.VIP)).group_id
    platform.sent.clear()
    return group


@asynccontextmanager
async def working(nats, name, platform, telemetry):
    stop = asyncio.Event()
    observer = telemetry.observer
    async with client(platform, observer) as entered:
        running = serve(entered, nats.urls, name=name, stop=stop, takeover=1.0, observers=[observer.on_operation])
        task = asyncio.create_task(running, context=Context())  # as in another process
        try:
            yield
        finally:
            stop.set()
            async with asyncio.timeout(PATIENCE):
                await task


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


def headers_of_requests(passed, name):
    """Return the headers of each request; one that goes on to a worker passes twice."""
    found = {headers["Nats-Msg-Id"]: headers for subject, headers, _ in passed if subject == Names.of(name).subject}
    return [*found.values()]


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


async def test_one_trace_leads_from_the_job_over_a_worker_to_the_request_and_no_secret_with_it(
    nats, name, platform, near, far, tmp_path
):
    group = await group_of(platform)
    sender = RemoteSender(nats.urls, name=name, observers=[near.observer.on_operation])
    async with everything_on(nats) as passed, working(nats, name, platform, far), sender:
        with near.tracer.start_as_current_span("nightly"):
            context.attach(baggage.set_baggage("customer", "planted-baggage"))
            rows = [(group, f"u{number}") for number in range(4)]
            report = await InviteJob(sender, journal=tmp_path / "journal", chunk=2).run(rows)
    assert report.accounts.done == 4
    (root,) = [span for span in near.ended if span.name == "nightly"]
    handed = [span for span in near.ended if span.name == f"send {name}"]
    assert {span.parent.span_id for span in handed} == {root.context.span_id}
    processed = [span for span in far.ended if span.name == f"process {name}"]
    assert len(handed) == len(processed) == len(platform.sent) == 2
    by_id = {span.context.span_id: span for span in far.ended}
    for headers, _, current in platform.sent:
        attempt = by_id[current.span_id]
        assert attempt.kind is trace.SpanKind.CLIENT
        call = by_id[attempt.parent.span_id]
        assert call.name == "rbim InviteJoinGroup"
        process = by_id[call.parent.span_id]
        (send,) = [span for span in handed if span.context.span_id == process.parent.span_id]
        assert (send.kind, process.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
        assert [link.context.span_id for link in process.links] == [send.context.span_id]
        assert {span.context.trace_id for span in (attempt, call, process, send)} == {root.context.trace_id}
        assert send.attributes["messaging.message.id"] == process.attributes["messaging.message.id"]
        assert not {each.lower() for each in headers} & {"traceparent", "tracestate", "baggage"}

    assert [headers.keys() for headers in headers_of_requests(passed, name)] == [{"Nats-Msg-Id", "traceparent"}] * 2
    names = Names.of(name)
    exported = f"{passed}\n{await kept_on(nats, names.stream, f'KV_{names.bucket}')}\n{near.text()}\n{far.text()}".lower()
    assert "invitejoingroup" in exported
    for headers, sig, _ in platform.sent:
        for secret in (TOKEN, sig, headers["Authorization"], "planted-baggage"):
            assert secret.lower() not in exported


async def test_without_an_observer_nothing_travels_and_a_worker_begins_a_trace_of_its_own(nats, name, platform, near, far):
    sender = RemoteSender(nats.urls, name=name)
    async with everything_on(nats) as passed, working(nats, name, platform, far), sender:
        with near.tracer.start_as_current_span("mine"), pytest.raises(NotFound):
            await sender.send(QueryGroupDetail(group_id="none"))
    assert [headers.keys() for headers in headers_of_requests(passed, name)] == [{"Nats-Msg-Id"}]
    ((process, below),) = far.tree()
    assert process == {
        "": f"CONSUMER process {name} ERROR",
        "messaging.system": "nats",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": name,
        "messaging.message.id": process["messaging.message.id"],
        "rbim.operation": "QueryGroupDetail",
        "error.type": "NotFound",
    }
    ((call, _),) = below
    assert call[""] == "INTERNAL rbim QueryGroupDetail ERROR"


async def test_a_propagator_of_the_process_travels_if_it_is_asked_for(nats, name, platform, near, far):
    observer = OtelObserver(near.tracer_provider, near.meter_provider, propagator=propagate.get_global_textmap())
    sender = RemoteSender(nats.urls, name=name, observers=[observer.on_operation])
    async with everything_on(nats) as passed, working(nats, name, platform, far), sender:
        token = context.attach(baggage.set_baggage("customer", "7"))
        with pytest.raises(NotFound):
            await sender.send(QueryGroupDetail(group_id="none"))
        context.detach(token)
    (headers,) = headers_of_requests(passed, name)
    assert headers["baggage"] == "customer=7"
    (process,) = [span for span in far.ended if span.name == f"process {name}"]
    (send,) = near.ended
    assert process.parent.span_id == send.context.span_id


async def test_headers_of_an_observer_cannot_break_or_replace_those_of_the_message(nats, name, platform):
    def rude(observation):
        headers = getattr(observation, "headers", None)
        if isinstance(headers, dict):
            headers |= {
                "Nats-Msg-Id": "mine",
                "line": "a\r\nb: c",
                "long": "x" * 70_000,
                "no:name": "x",
                "": "x",
                "fine": "1",
            }
        raise RuntimeError

    stop = asyncio.Event()
    async with everything_on(nats) as passed, client(platform) as entered:
        task = asyncio.create_task(serve(entered, nats.urls, name=name, stop=stop, observers=[rude]))
        async with RemoteSender(nats.urls, name=name, observers=[rude]) as sender:
            with pytest.raises(NotFound):
                await sender.carry(QueryGroupDetail(group_id="none"), key="job.1")
        stop.set()
        await task
    assert headers_of_requests(passed, name) == [{"Nats-Msg-Id": "job.1", "fine": "1"}]
    assert len(carried({f"h{number}": "x" for number in range(20)})) == 8


async def test_claims_withdrawals_and_claims_given_up_are_counted_and_so_is_what_waits(
    nats, name, platform, near, far, monkeypatch
):
    monkeypatch.setattr("rbim.jetstream.sender.ANSWER_PATIENCE", 0.5)
    monkeypatch.setattr("rbim.jetstream.sender.HEARING", 0.2)
    monkeypatch.setattr("rbim.jetstream.sender.FIRST_LOOK", 0.2)
    monkeypatch.setattr("rbim.jetstream.sender.LONGEST_LOOK", 0.4)
    group = await group_of(platform)
    observers = [near.observer.on_operation]
    async with RemoteSender(nats.urls, name=name, patience=0.5, observers=observers) as sender:
        with pytest.raises(NotTaken):
            await sender.carry(InviteJoinGroup(group_id=group, members=("late",)), key="job.1")
        async with working(nats, name, platform, far):
            await sender.carry(InviteJoinGroup(group_id=group, members=("a",)), key="job.2")
            async with near.observer.observe_queue(sender, every=0.1):
                await until(lambda: near.points("rbim.queue.workers"))
                assert near.points("rbim.queue.workers") == [({"rbim.queue": name}, 1)]
                assert near.points("rbim.queue.waiting") == [({"rbim.queue": name}, 0)]
                assert near.points("rbim.queue.taken") == [({"rbim.queue": name}, 0)]
            assert near.points("rbim.queue.workers") == []
        await sender._requests.create("job.3", {"state": "claimed", "boot": "gone"})
        with pytest.raises(Unanswered):
            await sender.carry(InviteJoinGroup(group_id=group, members=("b",)), key="job.3")
        async with near.observer.observe_queue(sender, every=0.1):
            await until(lambda: near.points("rbim.queue.waiting") == [({"rbim.queue": name}, 1)])
    about = {"rbim.queue": name, "rbim.operation": "InviteJoinGroup"}
    assert near.points("rbim.queue.withdrawn") == [(about, 1)]
    assert near.points("rbim.queue.given_up") == [(about, 1)]
    assert near.points("rbim.queue.claims") == []
    assert far.points("rbim.queue.claims") == [(about, 1)]
    assert far.points("rbim.queue.withdrawn") == far.points("rbim.queue.given_up") == []


async def test_a_worker_counts_the_claims_of_others_that_it_gives_up(nats, name, platform, near, far):
    async with RemoteSender(nats.urls, name=name, observers=[near.observer.on_operation]) as sender:
        await sender._connection.jetstream()
        await sender._requests.create("job.1", {"state": "claimed", "boot": "gone"})
        async with working(nats, name, platform, far):
            with pytest.raises(Unanswered, match="not heard of again"):
                await sender.carry(QueryGroupDetail(group_id="g"), key="job.1")
    assert far.points("rbim.queue.given_up") == [({"rbim.queue": name, "rbim.operation": "QueryGroupDetail"}, 1)]
    assert far.points("rbim.queue.claims") == near.points("rbim.queue.given_up") == []
    assert not platform.sent


# -------------------------------------------------------------------------------- inboxes


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
            RemoteSender(own_nats.urls, name=name) as sender,
            near.observer.observe_inbox(copies, every=0.05),
            near.observer.observe_queue(sender, every=0.05),
        ):
            await asyncio.sleep(0.2)
            assert near.points("rbim.inbox.events") == near.points("rbim.queue.workers") == []
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


async def test_an_event_is_accepted_if_its_headers_cannot_be_made(nats, name):
    def rude(headers):
        headers |= {"Nats-Msg-Id": "mine", "Rbim-Packed": "1", "fine": "1"}
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
    assert [claim.headers for claim in sorted(found, key=lambda claim: claim.number)] == [{"fine": "1"}] * 2
