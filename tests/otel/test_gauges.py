"""Gauges of clients, jobs, receivers and inboxes: OpenTelemetry gets the numbers that they themselves give."""

import gc
import os
import sqlite3
import subprocess
import sys
from datetime import timedelta

import anyio
import pytest

from helpers.credentials import CREDENTIALS
from helpers.deliveries import delivery, unreadable
from helpers.jobs import World
from helpers.receiving import body, post
from helpers.stubs import NO_PAUSES, READ, Stub, client_over, ending, waits
from helpers.waiting import until
from rbim import Limits
from rbim.bulk.job import InviteJob
from rbim.callbacks import MemorySink, Receiver, SqliteInbox
from rbim.emulator.clock import START, EmulatedClock
from rbim.otel.gauges import GAUGES

# ------------------------------------------------------------------------------------------- clients


async def test_the_load_of_a_client_is_read_whenever_metrics_are_collected(telemetry):
    clock = EmulatedClock()
    stub = Stub(waits(5), clock=clock)
    async with (
        client_over(stub, limits=Limits(concurrency=2), retry=NO_PAUSES) as client,
        anyio.create_task_group() as tasks,
    ):
        watched = telemetry.observer.observe_client(client, "front")
        for _ in range(5):
            tasks.start_soon(client.send, READ)
        await until(lambda: stub.in_flight == 2 and client.load.waiting == 3)
        await clock.advance(3)
        about = {"rbim.client": "front"}
        read = {name: telemetry.points(f"rbim.client.{name}") for name in ("places", "oldest", "retries_left")}
        assert read == {
            name: [(about, value)] for name, value in {"places": 2, "oldest": client.load.oldest, "retries_left": 50}.items()
        }
        assert client.load.oldest >= 3
        states = [({**about, "rbim.state": "waiting"}, 3), ({**about, "rbim.state": "in_flight"}, 2)]
        assert telemetry.points("rbim.client.calls") == states
        await until(lambda: not client.load.calls, clock)
        assert [value for _, value in telemetry.points("rbim.client.calls")] == [0, 0]
        watched.close()
        watched.close()
        assert telemetry.points("rbim.client.calls") == []


async def test_a_client_that_is_deleted_is_no_longer_reported(telemetry):
    clients = [client_over(Stub()) for _ in range(2)]
    telemetry.observer.observe_client(clients[0], "a")
    with telemetry.observer.observe_client(clients[1], "b"):
        assert [about["rbim.client"] for about, _ in telemetry.points("rbim.client.places")] == ["a", "b"]
        del clients[0]
        gc.collect()
        assert [about["rbim.client"] for about, _ in telemetry.points("rbim.client.places")] == ["b"]
    assert telemetry.points("rbim.client.places") == []


async def test_every_observer_of_a_provider_reports_its_objects(telemetry):
    clients = [client_over(Stub(), name=f"tenant{number}") for number in range(3)]
    for observer, client in zip([telemetry.observer, telemetry.another(), telemetry.another()], clients, strict=True):
        observer.observe_client(client)
    for gauge in (gauge for gauge in GAUGES if gauge.source == "client"):
        named = {about["rbim.client"] for about, _ in telemetry.points(gauge.name)}
        assert named == {"tenant0", "tenant1", "tenant2"}, gauge.name


async def test_numbers_of_one_name_are_added_the_longest_time_counts_and_an_object_counts_once(telemetry):
    clock = EmulatedClock()
    stub = Stub(*[waits(50)] * 2, clock=clock)
    clients = [client_over(stub, limits=Limits(concurrency=1), retry=NO_PAUSES, name="same") for _ in range(2)]
    async with clients[0], clients[1], anyio.create_task_group() as tasks:
        for client in clients:
            telemetry.observer.observe_client(client)
            telemetry.another().observe_client(client)
            for _ in range(2):
                tasks.start_soon(ending, client.send(READ))
            await until(lambda client=client: client.load.waiting == 1)
            await clock.advance(3)
        about = {"rbim.client": "same"}
        assert telemetry.points("rbim.client.places") == [(about, 2)]
        assert [client.load.oldest for client in clients] == [6, 3]
        assert telemetry.points("rbim.client.oldest") == [(about, 6)]
        tasks.cancel_scope.cancel()


PROGRAM = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from rbim import AsyncClient, Credentials
from rbim.otel import OtelObserver

def client(name):
    credentials = Credentials(app_id="0" * 32, app_token="1" * 32)
    return AsyncClient(base_url="http://127.0.0.1:9", credentials=credentials, name=name)

def points(reader):
    data = reader.get_metrics_data()
    return sorted(
        (metric.name, point.attributes.get("rbim.client") or point.attributes["rbim.state"], point.value)
        for resource in (data.resource_metrics if data else ())
        for metric in resource.scope_metrics[0].metrics
        if metric.name in {"rbim.client.places", "rbim.job.rows"}
        for point in metric.data.data_points
    )

reader = InMemoryMetricReader()
provider = MeterProvider([reader])
clients = [client(name) for name in "abc"]
"""


def run(program):
    command = [sys.executable, "-W", "error", "-c", PROGRAM + program]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=True).stdout


@pytest.mark.ci
def test_observers_made_before_and_after_the_global_provider_was_set_all_report():
    early = "OtelObserver().observe_client(clients[0])"
    late = "metrics.set_meter_provider(provider)\nOtelObserver().observe_client(clients[1])"
    given = "OtelObserver(None, provider).observe_client(clients[2])"
    for steps in ((early, late, given), (given, early, late)):
        assert run("\n".join((*steps, "print([name for _, name, _ in points(reader)])"))) == "['a', 'b', 'c']\n"


FORK = """
import os
from types import SimpleNamespace

class Run:
    snapshot = SimpleNamespace(waiting=1, done=1, refused=1, failed=1, unknown=1, skipped=1, duplicate=1)

run = Run()
otel = OtelObserver(None, provider)
otel.observe_client(clients[0])
otel.observe_job(run)
child = os.fork()
if child:
    os.waitpid(child, 0)
print(len(points(reader)), flush=True)
if not child:
    os._exit(0)
"""


@pytest.mark.ci
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_reports_clients_and_not_the_jobs_of_its_parent():
    assert run(FORK).splitlines() == ["1", "8"]


# ------------------------------------------------------------------------------------------- jobs


def rows(telemetry):
    return {about["rbim.state"]: value for about, value in telemetry.points("rbim.job.rows")}


async def test_the_rows_of_a_job_while_it_runs_and_when_it_has_ended(telemetry, tmp_path):
    world = World()
    async with world.client:
        group = await world.group()
        job = InviteJob(world.client, journal=tmp_path / "journal", chunk=10, rates=[])
        given = [(group, f"u{number}") for number in range(200)] + [(group, "u0"), (group, "")]
        seen = []
        async with job.run(given) as progress:
            with telemetry.observer.observe_job(progress, "customers"):
                async for snapshot in progress:
                    read = rows(telemetry)
                    assert sum(read.values()) == snapshot.total
                    seen.append(read)
                assert {about["rbim.job"] for about, _ in telemetry.points("rbim.job.rows")} == {"customers"}
            assert telemetry.points("rbim.job.rows") == []
    none = dict.fromkeys(("waiting", "refused", "failed", "unknown"), 0)
    assert seen[-1] == {**none, "done": 200, "skipped": 1, "duplicate": 1}


# ------------------------------------------------------------------------------ inboxes and overflow files


def events(telemetry):
    return {about["rbim.state"]: value for about, value in telemetry.points("rbim.inbox.events")}


async def test_each_collection_reports_the_last_reading_of_an_inbox_and_begins_the_next_one(telemetry, tmp_path, clock):
    async with SqliteInbox(tmp_path / "events.db", clock=clock) as inbox:
        await inbox.accept(unreadable(at=START - timedelta(seconds=500)))
        async with telemetry.observer.observe_inbox(inbox):
            await until(lambda: events(telemetry) == {"waiting": 0, "done": 0, "dead": 0, "quarantined": 1})
            assert telemetry.points("rbim.inbox.lag") == [({"rbim.inbox": "events.db"}, 0)]
            await inbox.accept(delivery(1, at=START - timedelta(seconds=90)))
            await inbox.accept(delivery(2, "c", at=START - timedelta(seconds=20)))
            await until(lambda: events(telemetry)["waiting"] == 2)
            ((_, lag),) = telemetry.points("rbim.inbox.lag")
            assert lag == pytest.approx(90)
            async with inbox.backlog() as backlog:
                (claim,) = await backlog.claim(1)
                await backlog.done([claim], more=0)
            await until(lambda: events(telemetry)["done"] == 1)
            ((_, lag),) = telemetry.points("rbim.inbox.lag")
            assert lag == pytest.approx(20)
        assert events(telemetry) == {}


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_collection_in_another_thread_has_numbers_too(telemetry, tmp_path):
    async with SqliteInbox(tmp_path / "events.db") as inbox, telemetry.observer.observe_inbox(inbox):
        with anyio.fail_after(20):
            while not await anyio.to_thread.run_sync(events, telemetry):
                await anyio.sleep(0.01)


async def test_an_inbox_that_cannot_be_counted_has_no_numbers_rather_than_old_ones(telemetry, tmp_path, clock, caplog):
    class Failing(SqliteInbox):
        fails = False

        async def counts(self):
            if Failing.fails:
                reason = "disk I/O error"
                raise sqlite3.OperationalError(reason)
            return await super().counts()

    async with Failing(tmp_path / "events.db", clock=clock) as inbox, telemetry.observer.observe_inbox(inbox, "mine"):
        await until(lambda: events(telemetry))
        Failing.fails = True
        await until(lambda: not events(telemetry))
        assert telemetry.points("rbim.inbox.lag") == []
        Failing.fails = False
        await until(lambda: events(telemetry))
        assert telemetry.points("rbim.inbox.lag") == [({"rbim.inbox": "mine"}, 0)]
    records = [record for record in caplog.records if record.name == "rbim"]
    assert records
    assert all("events.db could not be counted" in record.getMessage() for record in records)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_leaving_ends_the_reading_at_work(telemetry, caplog):
    class Stuck(MemorySink):
        async def counts(self):
            began.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()

    began, ended = anyio.Event(), anyio.Event()
    with anyio.fail_after(5):
        async with Stuck() as inbox:
            async with telemetry.observer.observe_inbox(inbox, "mine"):
                await began.wait()
            assert ended.is_set()
            async with telemetry.observer.observe_inbox(inbox, "mine"):
                pass  # before the first reading has begun
    assert not caplog.records


class Away(MemorySink):
    """A sink that fails until it is back."""

    back = False

    async def accept(self, delivery, /):
        if not self.back:
            raise OSError
        return await super().accept(delivery)


async def test_the_overflow_file_is_counted_until_the_sink_has_taken_its_deliveries(telemetry, tmp_path, clock):
    sink = Away(clock=clock)
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, spool=tmp_path / "spool", name="eu", clock=clock)
    assert await receiver.overflow() is None
    async with receiver, telemetry.observer.observe_receiver(receiver):
        for number in range(3):
            assert (await post(receiver, body(msgId=f"m{number}", to=f"g{number}"))).status == 200
        await until(lambda: telemetry.points("rbim.receiver.overflow") == [({"rbim.receiver": "eu"}, 3)])
        sink.back = True
        await until(lambda: len(sink.events) == 3, clock)
        await until(lambda: telemetry.points("rbim.receiver.overflow") == [({"rbim.receiver": "eu"}, 0)], clock)
    assert telemetry.points("rbim.receiver.overflow") == []
    assert await receiver.overflow() is None
