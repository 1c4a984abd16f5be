"""Several observers, several objects of one name: everything is reported, and adds up."""

import gc
import os
import subprocess
import sys
from datetime import timedelta

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from helpers.deliveries import delivery
from helpers.jobs import Sending
from helpers.stubs import NO_PAUSES, READ, Stub, client_over, ending, waits
from helpers.telemetry import Telemetry
from helpers.waiting import until
from rbim import Limits, Rate
from rbim.callbacks import SqliteInbox
from rbim.emulator.clock import START, EmulatedClock
from rbim.otel import OtelObserver
from rbim.otel.levels import LEVELS


def busy(stub, **options):
    return client_over(stub, limits=Limits(concurrency=1), retry=NO_PAUSES, **options)


async def test_every_observer_of_a_provider_reports_its_levels(telemetry):
    observers = [telemetry.observer, telemetry.another(), telemetry.another()]
    clients = [client_over(Stub(), name=f"tenant{number}") for number in range(3)]
    for observer, client in zip(observers, clients, strict=True):
        observer.observe_client(client)
    for level in (level for level in LEVELS if level.source == "client"):
        assert [about for about, _ in telemetry.points(level.name)] == [
            {"rbim.client": f"tenant{number}"} for number in range(3)
        ], level.name


async def test_loads_of_one_name_are_added_and_the_longest_wait_counts(telemetry):
    clock = EmulatedClock()
    stub = Stub(*[waits(50)] * 2, clock=clock)
    async with busy(stub, name="same") as one, busy(stub, name="same") as two, anyio.create_task_group() as tasks:
        for client in (one, two):
            telemetry.another().observe_client(client)
            for _ in range(2):
                tasks.start_soon(ending, client.send(READ))
            await until(lambda client=client: client.load.waiting == 1)
            await clock.advance(3)
        loads = [one.load, two.load]
        assert [load.oldest for load in loads] == [6, 3]
        read = {
            name: telemetry.points(f"rbim.client.{name}") for name in ("places", "in_flight", "waiting", "calls", "oldest")
        }
        expected = {name: sum(getattr(load, name) for load in loads) for name in ("places", "in_flight", "waiting", "calls")}
        assert read == {name: [({"rbim.client": "same"}, value)] for name, value in {**expected, "oldest": 6}.items()}
        assert telemetry.points("rbim.client.retries_left") == [
            ({"rbim.client": "same"}, sum(load.retries_left for load in loads))
        ]
        tasks.cancel_scope.cancel()


async def test_what_two_observers_report_is_counted_once(telemetry, tmp_path, clock):
    client = client_over(Stub(), name="a")
    for observer in (telemetry.observer, telemetry.another()):
        observer.observe_client(client)
    assert telemetry.points("rbim.client.places") == [({"rbim.client": "a"}, client.load.places)]
    async with SqliteInbox(tmp_path / "events.db", clock=clock) as inbox:
        await inbox.accept(delivery(1))
        async with telemetry.observer.observe_inbox(inbox), telemetry.another().observe_inbox(inbox):
            counted = {about["rbim.state"]: value for about, value in telemetry.points("rbim.inbox.events")}
    assert counted == {"waiting": 1, "done": 0, "dead": 0, "quarantined": 0}


async def test_inboxes_of_one_name_are_added_and_the_longer_lag_counts(telemetry, tmp_path, clock):
    async with (
        SqliteInbox(tmp_path / "one.db", clock=clock) as one,
        SqliteInbox(tmp_path / "two.db", clock=clock) as two,
    ):
        for inbox, age in ((one, 30), (two, 70)):
            await inbox.accept(delivery(age, at=START - timedelta(seconds=age)))
        lags = [await one.lag(), await two.lag()]
        async with telemetry.observer.observe_inbox(one, "in"), telemetry.another().observe_inbox(two, "in"):
            assert telemetry.points("rbim.inbox.lag") == [({"rbim.inbox": "in"}, max(lags))]
            assert ({"rbim.inbox": "in", "rbim.state": "waiting"}, 2) in telemetry.points("rbim.inbox.events")


async def test_jobs_of_one_name_are_added(telemetry, tmp_path):
    runs = []
    for number in range(2):
        async with Sending().job(tmp_path / str(number), chunk=5).run([("g", f"u{each}") for each in range(20)]) as run:
            telemetry.another().observe_job(run, "nightly")
            async for _ in run:
                pass
        runs.append(run)
    done = {about["rbim.state"]: value for about, value in telemetry.points("rbim.job.rows")}["done"]
    assert done == sum(run.snapshot.done for run in runs) == 40
    assert telemetry.points("rbim.job.requests") == [({"rbim.job": "nightly"}, sum(run.snapshot.requests for run in runs))]


async def refused(client, times):
    for _ in range(times + 1):
        await ending(client.send(READ))


async def test_a_counter_does_not_fall_when_one_of_several_clients_is_gone(telemetry):
    limits = Limits(rates=[Rate(1, per=1000)])
    clients = [client_over(Stub(), name="same", limits=limits) for _ in range(2)]
    for client, times in zip(clients, (3, 4), strict=True):
        telemetry.observer.observe_client(client)
        async with client:
            await refused(client, times)
    assert [client.load.refused for client in clients] == [3, 4]
    assert telemetry.points("rbim.client.refused") == [({"rbim.client": "same"}, 7)]
    del clients[1], client
    gc.collect()
    assert telemetry.points("rbim.client.refused") == [({"rbim.client": "same"}, 7)]
    assert telemetry.points("rbim.client.places") == [({"rbim.client": "same"}, clients[0].load.places)]


async def test_requests_in_flight_of_several_observers_are_added(telemetry):
    stub = Stub(*[waits(9)] * 5, clock=EmulatedClock())
    observers = [telemetry.observer, telemetry.another()]
    async with (
        client_over(stub, observers=[observers[0]]) as one,
        client_over(stub, observers=[observers[1]]) as two,
        anyio.create_task_group() as tasks,
    ):
        for client, calls in ((one, 3), (two, 2)):
            for _ in range(calls):
                tasks.start_soon(ending, client.send(READ))
        await until(lambda: stub.in_flight == 5)
        ((_, active),) = telemetry.points("http.client.active_requests")
        tasks.cancel_scope.cancel()
    assert active == 5
    ((_, active),) = telemetry.points("http.client.active_requests")
    assert active == 0


async def test_providers_are_kept_apart(telemetry):
    other = Telemetry()
    clients = [client_over(Stub(), name=name) for name in ("a", "b")]
    telemetry.observer.observe_client(clients[0])
    other.observer.observe_client(clients[1])
    read = [[about["rbim.client"] for about, _ in each.points("rbim.client.calls")] for each in (telemetry, other)]
    assert read == [["a"], ["b"]]


async def test_a_provider_that_only_its_reader_keeps_alive_is_reported_to():
    reader = InMemoryMetricReader()
    observer = OtelObserver(None, MeterProvider([reader], shutdown_on_exit=False))
    client = client_over(Stub())
    observer.observe_client(client)
    gc.collect()
    (resource,) = reader.get_metrics_data().resource_metrics
    assert "rbim.client.places" in {metric.name for metric in resource.scope_metrics[0].metrics}


PROGRAM = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from rbim import AsyncClient, Credentials
from rbim.otel import OtelObserver

def client(name):
    credentials = Credentials(app_id="0" * 32, app_token="1" * 32)
    return AsyncClient(base_url="http://127.0.0.1:9", credentials=credentials, name=name)

def names(reader):
    data = reader.get_metrics_data()
    return sorted(
        point.attributes["rbim.client"]
        for resource in (data.resource_metrics if data else ())
        for metric in resource.scope_metrics[0].metrics
        if metric.name == "rbim.client.calls"
        for point in metric.data.data_points
    )

reader = InMemoryMetricReader()
provider = MeterProvider([reader])
clients = [client(name) for name in "abc"]
"""


def run(program):
    command = [sys.executable, "-W", "error", "-c", PROGRAM + program]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=True).stdout


@pytest.mark.parametrize("order", ["early, late, given", "given, early, late"])
def test_observers_made_before_and_after_the_global_provider_was_set_all_report(order):
    steps = {
        "early": "OtelObserver().observe_client(clients[0])",
        "late": "metrics.set_meter_provider(provider)\nOtelObserver().observe_client(clients[1])",
        "given": "OtelObserver(None, provider).observe_client(clients[2])",
    }
    program = "\n".join(steps[step] for step in order.split(", "))
    assert run(f"{program}\nprint(names(reader))") == "['a', 'b', 'c']\n"


FORK = """
import os
from types import SimpleNamespace
from rbim.otel import metrics as calls

class Run:
    snapshot = SimpleNamespace(requests=1, throttled=0, in_flight=3, concurrency=9, rate=1, request_rate=1, eta=None,
        waiting=1, done=1, refused=1, failed=1, unknown=1, skipped=1, duplicate=1)

run = Run()
otel = OtelObserver(None, provider)
otel.observe_client(clients[0])
otel.observe_job(run)
request = calls.RequestInFlight({"x": "y"})
otel._metrics.attempt_started(request, SimpleNamespace(number=1))
child = os.fork()
points = {
    metric.name: [point.value for point in metric.data.data_points]
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
}
if child:
    os.waitpid(child, 0)
print(names(reader), points.get("rbim.job.in_flight"), points["http.client.active_requests"], flush=True)
if not child:
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_reports_neither_the_jobs_nor_the_requests_of_its_parent():
    assert sorted(run(FORK).splitlines()) == ["['a'] None [0]", "['a'] [3] [1]"]
