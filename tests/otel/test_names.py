"""Names of clients and constants of one's own: on every span and every metric, and bounded."""

import math

import pytest

from helpers.jobs import World
from helpers.stubs import BUSY, GARBAGE, NEVER, NO_PAUSES, READ, Stub, client_over, ending
from rbim import InvalidRequest, Limits, Rate
from rbim.bulk.job import InviteJob
from rbim.emulator.clock import EmulatedClock
from rbim.otel import OtelObserver

OWN = {"deployment.environment.name": "test", "shard": 3, "canary": True, "weight": 0.5}


async def calls(telemetry, observer, name):
    """Make calls that reach every span and metric of a client: retries, waits and errors."""
    limits = Limits(rates=[Rate(1, per=2)])
    stub = Stub(GARBAGE, BUSY, clock=EmulatedClock(auto=True))
    async with client_over(stub, observers=[observer], name=name, limits=limits, retry=NO_PAUSES) as client:
        with observer.observe_client(client):
            for op in (READ, NEVER, READ):
                await ending(client.send(op))
            return {metric: telemetry.points(metric) for metric in telemetry.collect()}


OF_CALLS = {
    "http.client.request.duration",
    "http.client.active_requests",
    "rbim.client.call.duration",
    "rbim.client.wait.duration",
    "rbim.client.retries",
}


async def test_every_span_and_metric_of_a_call_names_the_client(telemetry):
    points = await calls(telemetry, telemetry.observer, "tenant1")
    assert points.keys() >= OF_CALLS
    assert {about.get("rbim.client") for of_one in points.values() for about, _ in of_one} == {"tenant1"}
    assert {span.kind.name for span in telemetry.ended} == {"INTERNAL", "CLIENT"}
    assert {span.attributes.get("rbim.client") for span in telemetry.ended} == {"tenant1"}
    assert not any("tenant1" in span.name for span in telemetry.ended)


async def test_a_client_without_a_name_adds_no_attribute(telemetry):
    points = await calls(telemetry, telemetry.observer, "")
    keys = {key for of_one in points.values() for about, _ in of_one for key in about}
    assert "rbim.operation" in keys
    assert "rbim.client" not in keys | {key for span in telemetry.ended for key in span.attributes}


async def test_clients_of_one_observer_are_told_apart(telemetry):
    for name, times in (("a", 1), ("b", 2)):
        async with client_over(Stub(), observers=[telemetry.observer], name=name) as client:
            for _ in range(times):
                await client.send(READ)
    counted = {about["rbim.client"]: count for about, (count, _) in telemetry.points("rbim.client.call.duration")}
    assert counted == {"a": 1, "b": 2}
    counted = {about["rbim.client"]: count for about, (count, _) in telemetry.points("http.client.request.duration")}
    assert counted == {"a": 1, "b": 2}


async def test_names_can_be_left_to_spans_and_levels(telemetry):
    observer = OtelObserver(telemetry.tracer_provider, telemetry.meter_provider, names_in_metrics=False)
    points = await calls(telemetry, observer, "tenant1")
    of_calls = {name for name, of_one in points.items() if all("rbim.client" not in about for about, _ in of_one)}
    assert of_calls == OF_CALLS
    assert all(about == {"rbim.client": "tenant1"} for name in points.keys() - OF_CALLS for about, _ in points[name])
    assert {span.attributes["rbim.client"] for span in telemetry.ended} == {"tenant1"}


async def test_constants_are_on_every_span_and_every_metric(telemetry):
    observer = OtelObserver(telemetry.tracer_provider, telemetry.meter_provider, attributes=OWN)
    points = await calls(telemetry, observer, "a")
    assert points.keys() > OF_CALLS
    for about in [about for of_one in points.values() for about, _ in of_one]:
        assert about.items() >= OWN.items()
    assert all(span.attributes.items() >= OWN.items() for span in telemetry.ended)


async def test_constants_cannot_be_changed_later(telemetry):
    own = {"shard": 1}
    observer = OtelObserver(telemetry.tracer_provider, telemetry.meter_provider, attributes=own)
    own["shard"] = 2
    await calls(telemetry, observer, "a")
    assert {span.attributes["shard"] for span in telemetry.ended} == {1}


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({f"k{number}": 1 for number in range(9)}, "at most 8 attributes, not 9"),
        ({"": 1}, "a key is letters"),
        ({"1a": 1}, "a key is letters"),
        ({"a b": 1}, "a key is letters"),
        ({"客户": 1}, "a key is letters"),
        ({3: 1}, "a key is letters"),
        ({"a" * 201: 1}, "a key is letters"),
        ({"rbim.client": "x"}, "'rbim.client' is reserved"),
        ({"rbim_client": "x"}, "'rbim_client' is reserved"),
        ({"error.type": "x"}, "'error.type' is reserved"),
        ({"url.template": "x"}, "'url.template' is reserved"),
        ({"le": 1}, "'le' is reserved"),
        ({"a.b": 1, "a_b": 2}, "'a.b' and 'a_b' are the same label"),
        ({"tenant": None}, "tenant: a text, a number or a boolean is needed, not NoneType"),
        ({"tenant": ["a"]}, "tenant: a text, a number or a boolean is needed, not list"),
        ({"tenant": b"a"}, "tenant: a text, a number or a boolean is needed, not bytes"),
        ({"weight": math.nan}, "weight: a finite number is needed"),
        ({"tenant": "x" * 201}, "tenant: at most 200 characters, not 201"),
        ("tenant", "a mapping such as"),
    ],
    ids=repr,
)
def test_wrong_constants_are_refused_with_the_reason(attributes, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        OtelObserver(attributes=attributes)
    assert caught.value.field == "attributes"


@pytest.mark.parametrize(
    "attributes", [None, {}, {"tenant": "x" * 200}, {"a-b": 1}, {f"k{number}": 1 for number in range(8)}]
)
def test_attributes_within_the_bounds_are_accepted(attributes):
    OtelObserver(attributes=attributes)


async def test_spans_of_a_job_are_below_the_callers_span_and_have_the_clients_name(telemetry, tmp_path):
    world = World(observers=[telemetry.observer], name="nightly")
    async with world.client:
        group = await world.group()
        before = len(telemetry.ended)
        with telemetry.tracer.start_as_current_span("caller") as caller:
            job = InviteJob(world.client, journal=tmp_path / "journal", chunk=5, rates=[])
            await job.run([(group, f"u{number}") for number in range(20)])
    spans = [span for span in telemetry.ended[before:] if span.name != "caller"]
    calls = [span for span in spans if span.kind.name == "INTERNAL"]
    assert len(calls) == 4
    assert {span.parent.span_id for span in calls} == {caller.get_span_context().span_id}
    assert {span.context.trace_id for span in spans} == {caller.get_span_context().trace_id}
    assert {span.name for span in calls} == {"rbim InviteJoinGroup"}
    assert {span.attributes["rbim.client"] for span in spans} == {"nightly"}
