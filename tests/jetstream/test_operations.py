"""Operations over a real server: each is sent at most once, and its outcome comes back, whoever is gone meanwhile.

The platform is an emulator; what it has seen is the other road for every expectation.
"""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from itertools import pairwise

import nats as nats_py
import pytest
import trio

from helpers.credentials import CREDENTIALS, TOKEN
from helpers.sockets import free_port
from rbim import (
    AnswerTooLarge,
    ApiError,
    AsyncClient,
    Carrier,
    ClientClosed,
    CreateGroup,
    GroupType,
    InvalidRequest,
    InviteJoinGroup,
    NotFound,
    NotTaken,
    ProtocolError,
    QueryGroupDetail,
    Rate,
    Throttled,
    Unanswered,
)
from rbim.bulk import InviteJob
from rbim.emulator import Emulator
from rbim.emulator.faults.requests import Fault, Latency, Status
from rbim.jetstream import RemoteSender, serve
from rbim.jetstream.requests import Names

PATIENCE = 30.0


class Machines:
    """A platform, and workers and coordinators of one queue, all in this process."""

    def __init__(self, urls, name):
        self.urls, self.name = urls, name
        self.emulator = Emulator(credentials=CREDENTIALS)
        self.workers = []

    def client(self, **options):
        return AsyncClient(base_url="http://e", credentials=CREDENTIALS, transport=self.emulator, **options)

    def sender(self, **options):
        return RemoteSender(self.urls, name=self.name, **options)

    @asynccontextmanager
    async def working(self, *, client=None, **options):
        """Run a worker inside the block; yield its task. It stops in good order at the end."""
        stop = asyncio.Event()
        async with client or self.client() as entered:
            task = asyncio.create_task(serve(entered, self.urls, name=self.name, stop=stop, **{"takeover": 1.0} | options))
            try:
                yield task
            finally:
                stop.set()
                async with asyncio.timeout(PATIENCE):
                    await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and task.exception() is not None and not isinstance(task.exception(), ClientClosed):
            raise task.exception()

    async def group(self):
        async with self.client() as client:
            group = (await client.groups.create(name="g", type=GroupType.VIP)).group_id
        self.emulator.requests.clear()
        return group

    def times(self):
        """Return how often each account was sent."""
        return Counter(each for operation in self.emulator.requests.of(InviteJoinGroup) for each in operation.members)


@pytest.fixture
async def machines(nats, name):
    return Machines(nats.urls, name)


def invitation(group, *members, **options):
    return InviteJoinGroup(group_id=group, members=members, **options)


# ------------------------------------------------------------------------------ outcomes


async def test_an_answer_comes_back_with_the_time_that_the_platform_took(machines):
    group = await machines.group()
    machines.emulator.faults.add(Fault(effect=Latency(0.3)))
    async with machines.sender() as sender, machines.working():
        assert isinstance(sender, Carrier)
        carried = await sender.carry(invitation(group, "a", "b"), key="job.1")
        assert carried.answer.invited == ("a", "b")
        assert 0.3 <= carried.elapsed < 5
        detail = await sender.send(QueryGroupDetail(group_id=group))
        assert (detail.name, detail.count) == ("g", 3)
        assert detail.date_created is not None
    assert machines.times() == {"a": 1, "b": 1}


async def test_an_error_comes_back_with_its_outcome_and_its_one_attempt(machines):
    machines.emulator.faults.add(Fault(effect=Status(503), operation=InviteJoinGroup, nth=(1,)))
    machines.emulator.faults.add(Fault(effect=Status(429, retry_after=2), operation=InviteJoinGroup, nth=(2,)))
    group = await machines.group()
    async with machines.sender() as sender, machines.working():
        with pytest.raises(NotFound) as missing:
            await sender.send(QueryGroupDetail(group_id="none"))
        assert (str(missing.value.outcome), missing.value.operation) == ("refused", "QueryGroupDetail")
        assert [each.error for each in missing.value.attempts] == ["NotFound"]
        with pytest.raises(ProtocolError) as trouble:
            await sender.send(invitation(group, "a"))
        assert str(trouble.value.outcome) == "unknown"
        assert len(trouble.value.attempts) == 1
        with pytest.raises(Throttled) as throttled:
            await sender.send(invitation(group, "b"))
        assert throttled.value.retry_after == 2
        with pytest.raises(InvalidRequest, match="members: at most 50"):
            await sender.send(invitation(group, *map(str, range(51))))
    assert machines.times() == {"a": 1, "b": 1}, "the client in a worker repeats nothing"


async def test_one_key_is_sent_once_and_has_one_outcome(machines):
    group = await machines.group()
    async with machines.sender() as first, machines.sender() as second, machines.working(), machines.working():
        answers = [await each.carry(invitation(group, "a"), key="job.7") for each in (first, second)]
        assert answers[0] == answers[1]
        assert (await second.recall(invitation(group, "a"), key="job.7")) == answers[0]
        with pytest.raises(InvalidRequest, match="use WORD"):
            await first.carry(invitation(group, "a"), key="job>7")
    assert machines.times() == {"a": 1}


async def test_no_worker_it_is_withdrawn_for_certain_and_never_sent(machines):
    group = await machines.group()
    async with machines.sender(patience=0.5) as sender:
        with pytest.raises(NotTaken, match="no worker took it") as untaken:
            await sender.carry(invitation(group, "late"), key="job.1")
        assert str(untaken.value.outcome) == "not sent"
        async with machines.working():
            await sender.carry(invitation(group, "on time"), key="job.2")
            assert machines.times() == {"on time": 1}, "the withdrawn one was before it in the queue"


async def test_withdrawing_and_claiming_at_once_has_one_winner(machines):
    """Each ends as its outcome says: answered and seen once, or not taken and never seen."""
    group = await machines.group()
    machines.emulator.faults.add(Fault(effect=Latency(0.05)))
    async with machines.sender(patience=0.001) as sender:
        calls = [asyncio.create_task(sender.carry(invitation(group, f"a{n}"), key=f"job.{n}")) for n in range(60)]
        await asyncio.sleep(1.95)  # each is looked up, and withdrawn, after two seconds
        async with machines.working(concurrency=3):
            results = await asyncio.gather(*calls, return_exceptions=True)
    sent = {f"a{n}" for n, result in enumerate(results) if not isinstance(result, Exception)}
    assert {type(each) for each in results if isinstance(each, Exception)} <= {NotTaken}
    assert machines.times() == dict.fromkeys(sent, 1)


async def test_a_recalled_request_has_its_outcome_or_can_never_be_sent(machines, monkeypatch):
    monkeypatch.setattr("rbim.jetstream.sender.RECALL_PATIENCE", 0.5)
    group = await machines.group()
    machines.emulator.faults.add(Fault(effect=Latency(1.5), operation=InviteJoinGroup))
    async with machines.working():
        async with machines.sender() as dying:
            call = asyncio.create_task(dying.carry(invitation(group, "a"), key="job.1"))
            while not machines.emulator.requests:
                await asyncio.sleep(0.01)
            call.cancel()
        async with machines.sender() as sender:
            assert (await sender.recall(invitation(group, "a"), key="job.1")).answer.invited == ("a",)
            with pytest.raises(NotTaken):
                await sender.recall(invitation(group, "b"), key="job.2")
            with pytest.raises(NotTaken):
                await sender.carry(invitation(group, "b"), key="job.2")
    assert machines.times() == {"a": 1}


async def test_what_does_not_fit_into_a_message(machines):
    machines.emulator.faults.add(Fault(effect=Latency(0)))

    class Long(Emulator):
        async def send(self, request, /, *, timeout):
            response = await machines.emulator.send(request, timeout=timeout)
            body = {**json.loads(response.body), "more": "x" * 2_000_000}
            return type(response)(status=200, headers=response.headers, body=json.dumps(body).encode())

    client = AsyncClient(base_url="http://e", credentials=CREDENTIALS, transport=Long(credentials=CREDENTIALS))
    async with machines.sender() as sender, machines.working(client=client):
        with pytest.raises(AnswerTooLarge) as large:
            await sender.send(CreateGroup(name="g", type=GroupType.VIP))
        assert str(large.value.outcome) == "unknown"
        with pytest.raises(InvalidRequest, match="max_payload"):
            await sender.send(CreateGroup(name="g", type=GroupType.VIP, group_domain="x" * 2_000_000))


async def test_an_operation_that_a_worker_does_not_know_is_left_to_others(machines, monkeypatch, caplog):
    group = await machines.group()
    async with machines.sender(patience=1.0) as sender:
        monkeypatch.setattr("rbim.jetstream.sender.operation_to_json", lambda _: {"rbim": 2, "operation": "X"})
        async with machines.working():
            with pytest.raises(NotTaken):
                await sender.send(invitation(group, "a"))
    assert "left to other workers" in caplog.text
    assert machines.times() == {}


async def test_a_queue_of_another_version_is_refused(nats, machines):
    async with machines.sender():
        pass
    client = await nats_py.connect(nats.urls)
    jetstream = client.jetstream()
    names = Names.of(machines.name)
    config = (await jetstream.stream_info(names.stream)).config
    await jetstream.update_stream(config.evolve(metadata={"rbim": "operations", "rbim-version": "9"}))
    await client.close()
    with pytest.raises(InvalidRequest, match="has version '9', this rbim needs 1"):
        async with machines.sender():
            pass
    async with machines.client() as client:
        with pytest.raises(InvalidRequest, match="has version '9'"):
            await serve(client, machines.urls, name=machines.name)


async def test_no_secret_is_on_the_servers(nats, machines):
    """An answer that repeats the request's signature, and everything else that a worker writes."""
    seen = []

    class Echo(Emulator):
        async def send(self, request, /, *, timeout):
            seen.append((request.query["sig"], request.headers["Authorization"]))
            body = {"statusCode": "999999", "statusMsg": f"{request.query} {dict(request.headers)}"}
            return type(await machines.emulator.send(request, timeout=timeout))(
                status=400, headers={}, body=json.dumps(body).encode()
            )

    client = AsyncClient(base_url="http://e", credentials=CREDENTIALS, transport=Echo(credentials=CREDENTIALS))
    async with machines.sender() as sender, machines.working(client=client, rates=["100/s"]):
        with pytest.raises(ApiError, match="999999"):
            await sender.send(invitation("g", "a"))
        await sender.state()
    names = Names.of(machines.name)
    client = await nats_py.connect(nats.urls)
    jetstream = client.jetstream()
    kept = b""
    for stream in (names.stream, f"KV_{names.bucket}"):
        state = (await jetstream.stream_info(stream)).state
        for number in range(state.first_seq, state.last_seq + 1):
            try:
                kept += (await jetstream.get_msg(stream, number)).data or b""
            except nats_py.js.errors.NotFoundError:
                continue
    await client.close()
    assert b"InviteJoinGroup" in kept
    (sig, authorization), *_ = seen
    for secret in (TOKEN, sig, authorization):
        assert secret.encode().lower() not in kept.lower()


# ------------------------------------------------------------------------------ workers that end


async def test_a_worker_that_stops_ends_what_it_began_and_gives_back_the_rest(machines):
    group = await machines.group()
    machines.emulator.faults.add(Fault(effect=Latency(0.2)))
    async with machines.sender() as sender:
        stop = asyncio.Event()
        async with machines.client() as client:
            first = asyncio.create_task(
                serve(client, machines.urls, name=machines.name, concurrency=20, rates=["10/s"], stop=stop, takeover=30.0)
            )
            calls = [asyncio.create_task(sender.carry(invitation(group, f"a{n}"), key=f"job.{n}")) for n in range(20)]
            while len(machines.emulator.requests) < 3:
                await asyncio.sleep(0.01)
            stop.set()
            await first
            began = len(machines.emulator.requests)
        async with machines.working(), asyncio.timeout(PATIENCE):
            await asyncio.gather(*calls)
    assert began < 20
    assert machines.times() == {f"a{n}": 1 for n in range(20)}


async def test_a_cancelled_worker_tells_what_it_does_not_know(machines):
    group = await machines.group()
    machines.emulator.faults.add(Fault(effect=Latency(60.0)))
    async with machines.sender() as sender, machines.working() as task:
        call = asyncio.create_task(sender.carry(invitation(group, "a"), key="job.1"))
        while not machines.emulator.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(Unanswered, match="its worker was stopped"):
            await call


async def test_a_closed_client_ends_its_worker_and_not_the_job(machines):
    group = await machines.group()
    async with machines.sender() as sender:
        client = machines.client()
        async with machines.working(client=client) as task:
            await client.__aexit__(None, None, None)
            with pytest.raises(NotTaken):
                await sender.carry(invitation(group, "a"), key="job.1")
            with pytest.raises(ClientClosed):
                await task


async def test_a_claim_of_a_worker_that_lives_is_left_alone_and_one_of_a_dead_is_given_up(machines, nats):
    group = await machines.group()
    machines.emulator.faults.add(Fault(effect=Latency(3.0), nth=(1,)))
    async with machines.sender() as sender, machines.working(concurrency=1, takeover=0.5):
        call = asyncio.create_task(sender.carry(invitation(group, "a"), key="job.1"))
        while not machines.emulator.requests:
            await asyncio.sleep(0.01)
        client = await nats_py.connect(nats.urls)
        jetstream = client.jetstream()
        body = await jetstream.get_msg(Names.of(machines.name).stream, 1)
        async with machines.working(concurrency=1, takeover=0.5):
            await jetstream.publish(Names.of(machines.name).subject, body.data)  # the same again, as a redelivery would be
            assert (await call).answer.invited == ("a",)
            bucket = await jetstream.key_value(Names.of(machines.name).bucket)
            await bucket.create("job.2", json.dumps({"state": "claimed", "boot": "0" * 16, "by": "x"}).encode())
            with pytest.raises(Unanswered, match="worker 0000000000000000 took it and was not heard of again"):
                await sender.carry(invitation(group, "b"), key="job.2")
        await client.close()
    assert machines.times() == {"a": 1}


async def test_a_message_that_comes_twice_to_one_worker_is_sent_once_and_stays_its_own(machines, nats, monkeypatch):
    """The second delivery leaves the claim of the first alone, also when others ask for it."""
    monkeypatch.setattr("rbim.jetstream.sender.ANSWER_PATIENCE", 0.5)
    monkeypatch.setattr("rbim.jetstream.sender.FIRST_LOOK", 0.2)
    monkeypatch.setattr("rbim.jetstream.sender.LONGEST_LOOK", 0.2)
    group = await machines.group()
    machines.emulator.faults.add(Fault(effect=Latency(2.5)))
    async with machines.sender() as sender, machines.working(takeover=0.3):
        call = asyncio.create_task(sender.carry(invitation(group, "a"), key="job.1"))
        while not machines.emulator.requests:
            await asyncio.sleep(0.01)
        client = await nats_py.connect(nats.urls)
        names = Names.of(machines.name)
        body = await client.jetstream().get_msg(names.stream, 1)
        await client.jetstream().publish(names.subject, body.data)
        async with machines.working(takeover=0.3):
            await client.jetstream().publish(names.subject, body.data)
            assert (await call).answer.invited == ("a",), "the worker said that it works on it, for longer than the patience"
        await client.close()
    assert machines.times() == {"a": 1}


async def test_requests_that_are_slow_now_and_then_hold_up_no_conclusion(machines, monkeypatch):
    """Each makes the connection not ready for a moment: patience goes on afterwards, it does not begin anew."""
    monkeypatch.setattr("rbim.jetstream.sender.ANSWER_PATIENCE", 0.5)
    monkeypatch.setattr("rbim.jetstream.sender.FIRST_LOOK", 0.05)
    monkeypatch.setattr("rbim.jetstream.sender.LONGEST_LOOK", 0.05)
    group = await machines.group()

    async def suspecting(connection):
        while True:
            await asyncio.sleep(0.2)
            connection.suspect("a request had no answer")

    async with machines.sender(patience=0.5) as sender:
        slow = asyncio.create_task(suspecting(sender._connection))
        async with asyncio.timeout(20):
            with pytest.raises(NotTaken):
                await sender.carry(invitation(group, "a"), key="job.1")
            jetstream = await sender._connection.jetstream()
            bucket = await jetstream.key_value(Names.of(machines.name).bucket)
            await bucket.create("job.2", json.dumps({"state": "claimed", "boot": "0" * 16, "by": "x"}).encode())
            with pytest.raises(Unanswered, match="no answer came"):
                await sender.carry(invitation(group, "b"), key="job.2")
        slow.cancel()
    assert machines.times() == {}


def test_nothing_runs_on_trio():
    async def worker():
        async with AsyncClient(base_url="http://e", credentials=CREDENTIALS, transport=Emulator()) as client:
            await serve(client, "nats://127.0.0.1:1", name="n")

    async def sender():
        async with RemoteSender("nats://127.0.0.1:1", name="n"):
            pass

    for each in (worker, sender):
        with pytest.raises(InvalidRequest, match="asyncio only"):
            trio.run(each)


async def test_the_state_of_a_queue(machines):
    group = await machines.group()
    machines.emulator.faults.add(Fault(effect=Latency(2.5)))
    async with machines.sender() as sender:
        assert (await sender.state()).workers == ()
        async with machines.working(concurrency=2):
            calls = [asyncio.create_task(sender.send(invitation(group, f"a{n}"))) for n in range(5)]
            while len(machines.emulator.requests) < 2:
                await asyncio.sleep(0.01)
            state = await sender.state()
            assert [(each.concurrency, each.working) for each in state.workers] == [(2, 2)]
            assert (state.waiting, state.taken) == (3, 2)
            for each in calls:
                each.cancel()


# ------------------------------------------------------------------------------ the pace of all workers


def most_in_a_second(times):
    times = sorted(times)
    return max(sum(1 for other in times if at <= other < at + 1.0) for at in times)


async def test_workers_share_a_rate(machines):
    group = await machines.group()
    rates = [Rate(50)]
    async with (
        machines.sender() as sender,
        machines.working(rates=rates),
        machines.working(rates=rates),
        machines.working(rates=["50/s"]),
    ):
        await asyncio.gather(*(sender.send(invitation(group, f"a{n}")) for n in range(130)))
    times = [request.at for request in machines.emulator.requests]
    assert most_in_a_second(times) <= 55
    assert max(times) - min(times) < 5, "and they use it"


async def test_a_rate_of_some_operations_does_not_hold_the_others(machines):
    group = await machines.group()
    rates = [Rate(2, operations=(InviteJoinGroup,)), Rate(1000)]
    async with machines.sender() as sender, machines.working(rates=rates):
        invitations = [asyncio.create_task(sender.send(invitation(group, f"a{n}"))) for n in range(6)]
        async with asyncio.timeout(1.5):
            await asyncio.gather(*(sender.send(QueryGroupDetail(group_id=group)) for _ in range(50)))
        await asyncio.gather(*invitations)
    times = [each.at for each in machines.emulator.requests if isinstance(each.operation, InviteJoinGroup)]
    assert max(times) - min(times) >= 2.4


async def test_a_worker_stops_also_if_a_cancellation_is_lost(machines, monkeypatch):
    """Before Python 3.12 a request of nats-py loses one that comes together with its answer."""
    waiting, lost = asyncio.Event(), []

    async def deaf(*_):
        waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.append(1)

    monkeypatch.setattr("rbim.jetstream.rate.REQUEST_TIMEOUT", 1000)
    monkeypatch.setattr("rbim.jetstream.rate.SharedPace._read", deaf)
    async with machines.working():
        await waiting.wait()
    assert lost


def test_a_rate_for_each_group_belongs_to_the_job():
    with pytest.raises(InvalidRequest, match="belongs to the job"):
        asyncio.run(serve(Machines(["h"], "n").client(), "h", rates=[Rate(1, each_group=True)]))


async def test_workers_share_the_halts_of_the_platform(machines):
    group = await machines.group()
    machines.emulator.faults.add(Fault(effect=Status(429, retry_after=2), operation=InviteJoinGroup, nth=(1, 2, 3)))
    async with machines.sender() as sender, machines.working(concurrency=1), machines.working(concurrency=1):
        results = await asyncio.gather(*(sender.send(invitation(group, f"a{n}")) for n in range(8)), return_exceptions=True)
    assert sum(isinstance(each, Throttled) for each in results) <= 3
    times = sorted(request.at for request in machines.emulator.requests)
    assert max(later - earlier for earlier, later in pairwise(times)) >= 1.5


# ------------------------------------------------------------------------------ servers that are gone


async def test_while_no_server_answers_nothing_is_concluded(own_nats, name, tmp_path):
    machines = Machines(own_nats.urls, name)
    group = await machines.group()
    machines.emulator.faults.add(Fault(effect=Latency(0.05)))
    async with machines.sender(patience=2.0) as sender, machines.working(concurrency=4):
        job = InviteJob(sender, journal=tmp_path / "journal", chunk=1, concurrency=20)
        phases = set()
        async with job.run([(group, f"a{n}") for n in range(150)]) as run:
            async for snapshot in run:
                phases.add(snapshot.phase)
                if snapshot.done and own_nats.is_running() and "halted" not in phases:
                    own_nats.kill()
                    asyncio.get_running_loop().call_later(4.0, own_nats.start, 0)
        assert run.why == "done"
    assert "halted" in phases
    assert (await job.report()).accounts.done == 150
    assert machines.times() == {f"a{n}": 1 for n in range(150)}


async def test_entering_needs_no_server(name):
    free_address = f"nats://127.0.0.1:{free_port()}"
    async with RemoteSender(free_address, name=name) as sender:
        assert free_address.removeprefix("nats://") in sender.trouble
        with pytest.raises(ConnectionError):
            await sender.state()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await sender.send(QueryGroupDetail(group_id="g"))
    with pytest.raises(ClientClosed, match="is not open"):
        await sender.send(QueryGroupDetail(group_id="g"))
