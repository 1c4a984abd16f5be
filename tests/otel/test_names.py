"""Names of clients and constants of one's own: on every span and every metric, and bounded."""

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


OF_CALLS = {"http.client.request.duration", "rbim.client.call.duration"}


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


async def test_names_can_be_left_to_spans_and_levels(telemetry):
    observer = OtelObserver(telemetry.tracer_provider, telemetry.meter_provider, names_in_metrics=False)
    points = await calls(telemetry, observer, "tenant1")
    of_calls = {name for name, of_one in points.items() if all("rbim.client" not in about for about, _ in of_one)}
    assert of_calls == OF_CALLS
    assert all(about["rbim.client"] == "tenant1" for name in points.keys() - OF_CALLS for about, _ in points[name])
    assert {span.attributes["rbim.client"] for span in telemetry.ended} == {"tenant1"}


async def test_constants_are_on_every_span_and_every_metric(telemetry):
    observer = OtelObserver(telemetry.tracer_provider, telemetry.meter_provider, attributes=OWN)
    points = await calls(telemetry, observer, "a")
    assert points.keys() > OF_CALLS
    for about in [about for of_one in points.values() for about, _ in of_one]:
        assert about.items() >= OWN.items()
    assert all(span.attributes.items() >= OWN.items() for span in telemetry.ended)


def test_wrong_constants_are_refused_with_the_reason():
    for attributes in ({3: 1}, {"": 1}, {"tenant": None}, {"tenant": ["a"]}, {"tenant": b"a"}):
        with pytest.raises(InvalidRequest, match="attributes: a name with a text, number or boolean is needed") as caught:
            OtelObserver(attributes=attributes)
        assert caught.value.field == "attributes"
    with pytest.raises(InvalidRequest, match="a mapping such as"):
        OtelObserver(attributes="tenant")


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
