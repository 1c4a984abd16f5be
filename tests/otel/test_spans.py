"""Spans and metrics by OpenTelemetry, kept in memory and compared word for word; never a secret."""

import gc
import json
import subprocess
import sys
from contextlib import suppress
from contextvars import copy_context

import httpx
import pytest
from anyio import create_task_group
from anyio.lowlevel import checkpoint
from opentelemetry import context, trace

from helpers.strategies import LEAST
from helpers.stubs import (
    AGES,
    ALREADY_MEMBER,
    BASE_URL,
    BUSY,
    CREDENTIALS,
    GARBAGE,
    HANGS,
    INVITE,
    NEVER,
    NO_PAUSES,
    OK,
    READ,
    TOKEN,
    Background,
    Stub,
    answer,
    client_over,
    echo,
    ending,
    waits,
)
from helpers.telemetry import Telemetry
from helpers.waiting import until
from rbim import (
    AsyncClient,
    ClientClosed,
    CreateCallTask,
    DeadlineExceeded,
    InvalidRequest,
    InviteJoinGroup,
    Limits,
    NotSent,
    Observer,
    QueryGroupDetail,
    Rate,
    Response,
    Retry,
    Unanswered,
)
from rbim.emulator.clock import EmulatedClock
from rbim.otel import OtelObserver
from rbim.transports.httpx import HttpxTransport

TEMPLATE = "/{api_version}/Application/{app_id}/IM/Group/QueryGroupDetail"


def request_of(template=TEMPLATE, **changed):
    """What the conventions ask of every span and every point of a request to the stubs' platform."""
    return {
        "http.request.method": "POST",
        "server.address": "im.example",
        "server.port": 8883,
        "url.scheme": "https",
        "url.template": template,
    } | changed


def call_span(status="UNSET", *, number=1, attempts=1, waited=0.0, operation="QueryGroupDetail", **facts):
    told = {"rbim.operation": operation, "rbim.call": number, "rbim.attempts": attempts, "rbim.waited": waited}
    return {"": f"INTERNAL rbim {operation} {status}", **told} | {
        name.replace("_", "."): fact for name, fact in facts.items()
    }


def attempt_span(status="UNSET", *, number=1, operation="QueryGroupDetail", **facts):
    template = TEMPLATE.replace("QueryGroupDetail", operation)
    resent = {"http.request.resend_count": number - 1} if number > 1 else {}
    told = {"rbim.operation": operation, "rbim.attempt": number, **resent, **request_of(template)}
    return {"": f"CLIENT POST {template} {status}", **told} | facts


def ends(status=None, code=None, error=None, outcome=None):
    """What is known of an attempt or a call once it has ended."""
    facts = {"http.response.status_code": status, "rbim.code": code, "error.type": error, "rbim.outcome": outcome}
    return {name: value for name, value in facts.items() if value is not None}


async def traced(telemetry, *script, op=READ, **options):
    """Make one call and return how it ended."""
    async with client_over(Stub(*script), observers=[telemetry.observer], **options) as client:
        return await ending(client.send(op))


# ------------------------------------------------------------------------------------------ spans


async def test_a_call_that_goes_well_is_a_span_with_one_below_it(telemetry):
    await traced(telemetry)
    assert telemetry.tree() == [
        (call_span(rbim_code="000000"), [(attempt_span(**ends(200, "000000")), [])]),
    ]


async def test_each_attempt_is_a_span_and_says_how_often_the_request_was_sent_before(telemetry):
    await traced(telemetry, NotSent, GARBAGE, OK)
    assert telemetry.tree() == [
        (
            call_span(attempts=3, rbim_code="000000"),
            [
                (attempt_span("ERROR", **ends(error="NotSent", outcome="not sent")), []),
                (attempt_span("ERROR", number=2, **ends(502, error="502", outcome="unknown")), []),
                (attempt_span(number=3, **ends(200, "000000")), []),
            ],
        )
    ]


async def test_a_call_that_may_have_acted_says_so(telemetry):
    error = await traced(telemetry, Unanswered, NotSent, retry=Retry(attempts=2, random=lambda: 0.0))
    assert isinstance(error, NotSent)
    assert telemetry.tree() == [
        (
            call_span("ERROR", attempts=2, **ends(error="NotSent", outcome="unknown")),
            [
                (attempt_span("ERROR", **ends(error="Unanswered", outcome="unknown")), []),
                (attempt_span("ERROR", number=2, **ends(error="NotSent", outcome="not sent")), []),
            ],
        )
    ]


async def test_an_answer_with_http_200_that_cannot_be_read_is_an_error_of_the_attempt_too(telemetry):
    await traced(telemetry, Response(200, {}, b"<html>"), op=NEVER)
    operation = "JoinGroup"
    lost = {"error": "ProtocolError", "outcome": "unknown"}
    assert telemetry.tree() == [
        (
            call_span("ERROR", operation=operation, **ends(**lost)),
            [(attempt_span("ERROR", operation=operation, **ends(200, **lost)), [])],
        )
    ]


@pytest.mark.parametrize(
    ("status", "span", "error"), [(200, "UNSET", None), (302, "UNSET", None), (404, "ERROR", "404"), (500, "ERROR", "500")]
)
async def test_the_platforms_no_is_an_error_of_the_call_and_http_says_whether_of_the_attempt(telemetry, status, span, error):
    raised = await traced(telemetry, answer("999123", status=status), op=NEVER)
    operation, outcome = "JoinGroup", str(raised.outcome)
    assert telemetry.tree() == [
        (
            call_span("ERROR", operation=operation, **ends(code="999123", error=type(raised).__name__, outcome=outcome)),
            [(attempt_span(span, operation=operation, **ends(status, "999123", error, outcome)), [])],
        )
    ]


async def test_a_throttled_attempt_is_known_by_its_code(telemetry):
    await traced(telemetry, BUSY, OK)
    (_, (first, second)) = telemetry.tree()[0]
    assert first[0] == attempt_span(**ends(200, "160016", outcome="refused"))
    assert second[0] == attempt_span(number=2, **ends(200, "000000"))


async def test_a_call_that_a_repeat_confirmed_went_well(telemetry):
    await traced(telemetry, Unanswered, ALREADY_MEMBER, op=INVITE)
    operation = "InviteJoinGroup"
    (call, (_, second)) = telemetry.tree()[0]
    confirmed = {"rbim.confirmed_by_repeat": True, "rbim.code": "590017"}
    assert call == call_span(attempts=2, operation=operation) | confirmed
    assert second[0] == attempt_span(number=2, operation=operation, **ends(200, "590017", outcome="refused"))


async def test_a_deadline_that_passes_ends_both_spans(telemetry):
    assert isinstance(await traced(telemetry, HANGS, deadline=5), DeadlineExceeded)
    late = ends(error="DeadlineExceeded", outcome="unknown")
    assert telemetry.tree() == [(call_span("ERROR", **late), [(attempt_span("ERROR", **late), [])])]


async def test_a_cancelled_call_is_an_error_of_its_own_kind_on_asyncio_and_on_trio(telemetry):
    stub = Stub(GARBAGE, waits(9))
    async with client_over(stub, observers=[telemetry.observer]) as client:
        with stub.clock.scope(4):
            await client.send(READ)
    cancelled = ends(error="cancelled", outcome="unknown")
    (call, (_, second)) = telemetry.tree()[0]
    assert call == call_span("ERROR", attempts=2, **cancelled)
    assert second[0] == attempt_span("ERROR", number=2, **cancelled)


async def test_a_call_that_is_cancelled_while_it_waits_was_not_sent(telemetry):
    stub = Stub()
    async with client_over(stub, observers=[telemetry.observer], limits=Limits(rates=[Rate(1, per=20)])) as client:
        await client.send(READ)
        with stub.clock.scope(4):
            await client.send(READ)
    assert telemetry.tree()[1] == (
        call_span("ERROR", number=2, attempts=0, waited=4.0, **ends(error="cancelled", outcome="not sent")),
        [],
    )


async def test_a_client_that_is_closed_ends_the_spans_of_its_calls(telemetry):
    async with create_task_group() as tasks:
        async with client_over(Stub(waits(AGES), clock=EmulatedClock()), observers=[telemetry.observer]) as client:
            call = Background(tasks, client.send(READ))
            await until(lambda: client.load.in_flight)
        await until(lambda: call.ended)
    assert isinstance(call.ended, ClientClosed)
    closed = ends(error="ClientClosed", outcome="unknown")
    assert telemetry.tree() == [(call_span("ERROR", **closed), [(attempt_span("ERROR", **closed), [])])]


async def test_a_call_that_is_refused_before_sending_is_a_span_alone(telemetry):
    error = await traced(telemetry, op=InviteJoinGroup(group_id="g", members=[f"u{n}" for n in range(51)]))
    assert isinstance(error, InvalidRequest)
    refused = ends(error="InvalidRequest", outcome="not sent")
    assert telemetry.tree() == [(call_span("ERROR", operation="InviteJoinGroup", attempts=0, **refused), [])]


async def test_what_breaks_a_promise_is_named(telemetry):
    with pytest.raises(ZeroDivisionError):
        await traced(telemetry, ZeroDivisionError)
    broken = ends(error="ZeroDivisionError", outcome="unknown")
    assert telemetry.tree() == [(call_span("ERROR", **broken), [(attempt_span("ERROR", **broken), [])])]


async def test_what_is_no_operation_is_refused_by_its_own_error(telemetry):
    with pytest.raises(TypeError, match="an operation is needed"):
        await traced(telemetry, op="QueryGroupDetail")
    assert telemetry.tree() == [
        (call_span("ERROR", operation="str", attempts=0, **ends(error="TypeError", outcome="not sent")), [])
    ]


@pytest.mark.parametrize(
    ("base_url", "address"),
    [
        ("https://im.example", {"server.port": 443}),
        ("http://im.example", {"server.port": 80, "url.scheme": "http"}),
        ("http://[::1]:8881/im/", {"server.address": "::1", "server.port": 8881, "url.scheme": "http"}),
    ],
)
async def test_the_address_is_told_in_parts_and_without_what_signs_it(telemetry, base_url, address):
    await traced(telemetry, base_url=base_url)
    (call, attempt) = telemetry.ended
    prefix = "/im" if "/im/" in base_url else ""
    assert dict(attempt.attributes).items() >= request_of(prefix + TEMPLATE, **address).items()
    assert attempt.name == f"POST {prefix}{TEMPLATE}"
    assert not any(
        name.startswith(("url.full", "url.query", "url.path")) for name in {*attempt.attributes, *call.attributes}
    )


async def test_each_family_of_operations_has_its_own_address(telemetry):
    task = CreateCallTask(**LEAST)
    await traced(telemetry, OK, op=task, call_base_url="http://calls.example:8080")
    (_, attempt) = telemetry.ended
    told = (attempt.attributes["server.address"], attempt.attributes["server.port"], attempt.attributes["url.template"])
    assert told == ("calls.example", 8080, "/api/application/{app_id}/aicall/task/save")


# ------------------------------------------------------------------------------- parents and contexts

SCRIPTS = [(OK,), (NotSent,), (GARBAGE, OK), (HANGS,), (ZeroDivisionError,), (answer("999123"),)]


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
async def test_a_call_is_below_its_callers_span_and_leaves_it_as_it_was(telemetry, script):
    stub = Stub(*script)
    async with client_over(stub, observers=[telemetry.observer], deadline=3) as client:
        with telemetry.tracer.start_as_current_span("caller") as caller:
            before = context.get_current()
            with suppress(ZeroDivisionError), stub.clock.scope(2):
                await ending(client.send(READ))
            assert context.get_current() is before
            assert trace.get_current_span() is caller
    ((said, (call,)),) = telemetry.tree()
    assert said[""] == "INTERNAL caller UNSET"
    assert call[0]["rbim.call"] == 1
    assert len({span.context.trace_id for span in telemetry.ended}) == 1


async def test_a_hundred_calls_in_flight_have_each_its_own_parent(telemetry):
    clock = EmulatedClock()
    stub = Stub(*[waits(1, GARBAGE)] * 40, waits(1), clock=clock)
    ended = []

    async def caller(client, number):
        with telemetry.tracer.start_as_current_span(f"caller {number}"):
            await client.send(QueryGroupDetail(group_id=f"g{number}"))
        ended.append(number)

    async with (
        client_over(stub, observers=[telemetry.observer], retry=NO_PAUSES) as client,
        create_task_group() as tasks,
    ):
        for number in range(100):
            tasks.start_soon(caller, client, number)
        await until(lambda: stub.in_flight == 100)
        await until(lambda: len(ended) == 100, clock)
    assert stub.most == 100
    tree = telemetry.tree()
    assert {said[""] for said, _ in tree} == {f"INTERNAL caller {number} UNSET" for number in range(100)}
    for said, below in tree:
        ((call, attempts),) = below
        assert [attempt["rbim.attempt"] for attempt, _ in attempts] == list(range(1, call["rbim.attempts"] + 1)), said
    assert sum(call["rbim.attempts"] for _, ((call, _),) in tree) == 140
    assert {call["rbim.call"] for _, ((call, _),) in tree} == set(range(1, 101))
    assert len({span.context.trace_id for span in telemetry.ended}) == 100


async def test_one_observer_serves_several_clients_even_one_inside_the_other(telemetry):
    inner = client_over(Stub(), observers=[telemetry.observer])

    class Asking(Stub):
        async def respond(self, request, timeout):
            await inner.send(NEVER)
            return await super().respond(request, timeout)

    async with inner, client_over(Asking(), observers=[telemetry.observer]) as outer:
        await outer.send(READ)
    ((call, ((attempt, ((inner_call, inner_attempts),)),)),) = telemetry.tree()
    assert (call["rbim.call"], inner_call["rbim.call"]) == (1, 1)
    assert (call["rbim.operation"], attempt["rbim.operation"]) == ("QueryGroupDetail", "QueryGroupDetail")
    assert (inner_call["rbim.operation"], len(inner_attempts)) == ("JoinGroup", 1)


async def test_two_observers_of_one_client_leave_the_context_as_it_was(telemetry):
    other = Telemetry()
    before = context.get_current()
    async with client_over(Stub(GARBAGE, OK), observers=[telemetry.observer, other.observer]) as client:
        await client.send(READ)
    assert context.get_current() is before
    assert [len(each.ended) for each in (telemetry, other)] == [3, 3]
    (call, *_) = other.ended
    assert call.parent.span_id == telemetry.ended[0].context.span_id


async def test_a_transport_that_leaves_its_own_context_behind_does_not_leave_ours(telemetry):
    class Careless(Stub):
        async def respond(self, request, timeout):
            context.attach(context.set_value("mine", 1))
            return await super().respond(request, timeout)

    before = context.get_current()
    async with client_over(Careless(NotSent, OK), observers=[telemetry.observer]) as client:
        await client.send(READ)
    assert context.get_current() is before
    assert len(telemetry.ended) == 3


async def test_what_runs_meanwhile_finds_the_span_it_runs_in(telemetry, caplog):
    seen = {}

    class Looking(Observer):
        def call_started(self, _, /):
            seen["started"] = trace.get_current_span()

        def call_ended(self, _, /):
            seen["ended"] = trace.get_current_span()

    class Inside(Stub):
        async def respond(self, request, timeout):
            seen["attempt"] = trace.get_current_span()
            return await super().respond(request, timeout)

    async with client_over(Inside(), observers=[telemetry.observer, Looking()]) as client:
        await client.send(READ)
    call, attempt = telemetry.ended
    spans = {name: span.get_span_context().span_id for name, span in seen.items()}
    assert spans == {"started": call.context.span_id, "ended": call.context.span_id, "attempt": attempt.context.span_id}
    assert not caplog.records


async def test_instrumentations_of_http_libraries_are_told_to_leave_the_signed_request_alone(telemetry):
    seen = []

    class Inside(Stub):
        async def respond(self, request, timeout):
            seen.append([name for name, value in context.get_current().items() if value is True])
            return await super().respond(request, timeout)

    async with client_over(Inside(), observers=[telemetry.observer]) as client:
        await client.send(READ)
    ((first, second),) = seen
    assert {first.rsplit("-", 5)[0], second.rsplit("-", 5)[0]} == {
        "suppress_instrumentation",
        "suppress_http_instrumentation",
    }


async def test_the_platform_is_sent_no_trace_headers(telemetry):
    stub = Stub()
    async with client_over(stub, observers=[telemetry.observer]) as client:
        with telemetry.tracer.start_as_current_span("caller"):
            await client.send(READ)
    (request,) = stub.requests
    assert not {name.lower() for name in request.headers} & {"traceparent", "tracestate", "baggage", "b3"}


async def test_a_coroutine_that_is_dropped_disturbs_neither_the_context_it_ends_in_nor_the_log(telemetry, caplog):
    stub = Stub(waits(AGES), clock=EmulatedClock())
    async with client_over(stub, observers=[telemetry.observer]) as client:
        coroutine, elsewhere = client.send(READ), copy_context()  # which a task would hold
        try:
            elsewhere.run(coroutine.send, None)
            before, during = context.get_current(), telemetry.points("http.client.active_requests")
        finally:
            coroutine.close()  # or leaving the client would wait for it
        behind = context.get_current()
        del coroutine, elsewhere
        gc.collect()
        after = telemetry.points("http.client.active_requests")
    assert (during, after) == ([(request_of(), 1)], [(request_of(), 0)])
    assert behind is before
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


# --------------------------------------------------------------------------------------- metrics


async def test_requests_are_timed_by_the_conventions_in_seconds(telemetry):
    await traced(telemetry, waits(0.5, GARBAGE), waits(2), waits(0.25))
    assert telemetry.points("http.client.request.duration") == [
        (request_of() | {"http.response.status_code": 502, "error.type": "502"}, (1, 0.5)),
        (request_of() | {"http.response.status_code": 200}, (1, 2)),
    ]
    metric = telemetry.collect()["http.client.request.duration"]
    assert metric.unit == "s"
    bounds = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
    assert all(list(point.explicit_bounds) == bounds for point in metric.data.data_points)


async def test_calls_are_timed_with_their_waits_and_how_they_ended(telemetry):
    stub = Stub(OK, NotSent, waits(1), Unanswered)
    limits = Limits(rates=[Rate(1, per=3)])
    async with client_over(stub, observers=[telemetry.observer], limits=limits) as client:
        await client.send(READ)
        await client.send(READ)  # waits for 3 s, is not sent, pauses for 0.2 s, waits for 2.8 s, takes 1 s
        await ending(client.send(NEVER))  # waits for 2 s
    named = [{"rbim.operation": name} for name in ("QueryGroupDetail", "JoinGroup")]
    assert telemetry.points("rbim.client.call.duration") == [
        (named[0], (2, 7)),
        (named[1] | {"error.type": "Unanswered", "rbim.outcome": "unknown"}, (1, 2)),
    ]
    assert telemetry.points("rbim.client.wait.duration") == [(named[0], (1, 5.8)), (named[1], (1, 2))]
    assert telemetry.points("rbim.client.retries") == [(named[0], 1)]


async def test_a_cancelled_call_is_timed_too(telemetry):
    stub = Stub(waits(9))
    async with client_over(stub, observers=[telemetry.observer]) as client:
        with stub.clock.scope(4):
            await client.send(READ)
    cancelled = {"error.type": "cancelled"}
    assert telemetry.points("http.client.request.duration") == [(request_of() | cancelled, (1, 4))]
    ((about, _),) = telemetry.points("rbim.client.call.duration")
    assert about == {"rbim.operation": "QueryGroupDetail", "rbim.outcome": "unknown"} | cancelled
    assert telemetry.points("http.client.active_requests") == [(request_of(), 0)]


async def test_what_a_client_is_busy_with_is_read_when_it_is_asked_for(telemetry):
    clock = EmulatedClock()
    stub = Stub(NotSent, OK, waits(5), clock=clock)
    options = {"observers": [telemetry.observer], "limits": Limits(concurrency=2), "retry": NO_PAUSES}
    async with client_over(stub, **options) as client, create_task_group() as tasks:
        watched = telemetry.observer.observe_client(client, "front")
        await client.send(READ)
        for _ in range(5):
            tasks.start_soon(client.send, READ)
        await until(lambda: stub.in_flight == 2 and client.load.waiting == 3)
        levels = ("places", "in_flight", "waiting", "calls", "retries_left", "halted")
        read = {level: telemetry.points(f"rbim.client.{level}") for level in levels}
        assert read == {
            level: [({"rbim.client": "front"}, value)] for level, value in zip(levels, (2, 2, 3, 5, 50, 0), strict=True)
        }
        assert telemetry.points("http.client.active_requests") == [(request_of(), 2)]
        await until(lambda: not client.load.calls, clock)
        assert telemetry.points("rbim.client.calls") == [({"rbim.client": "front"}, 0)]
        assert telemetry.points("http.client.active_requests") == [(request_of(), 0)]
        watched.close()
        watched.close()
        assert telemetry.points("rbim.client.calls") == []


async def test_retries_that_were_spent_and_a_halt_show(telemetry):
    clock = EmulatedClock()
    stub = Stub(*[NotSent] * 2, answer("160016", retry_after="60"), clock=clock)
    async with client_over(stub, retry=NO_PAUSES) as client, create_task_group() as tasks:
        telemetry.observer.observe_client(client)
        call = Background(tasks, client.tuned(retry=Retry(attempts=3, random=lambda: 0.0)).send(READ))
        await until(lambda: call.ended, clock)
        ((about, left),) = telemetry.points("rbim.client.retries_left")
        assert (about, left) == ({}, 48)
        ((_, halted),) = telemetry.points("rbim.client.halted")
        assert halted == pytest.approx(60 - (clock.elapsed - stub.times[-1]))
        await clock.advance(90)
        assert telemetry.points("rbim.client.halted") == [({}, 0)]


async def test_what_is_gone_is_watched_no_more_and_names_keep_several_apart(telemetry):
    clients = [client_over(Stub()) for _ in range(2)]
    telemetry.observer.observe_client(clients[0], "a")
    with telemetry.observer.observe_client(clients[1], "b"):
        assert [about["rbim.client"] for about, _ in telemetry.points("rbim.client.calls")] == ["a", "b"]
        del clients[0]
        gc.collect()
        assert [about["rbim.client"] for about, _ in telemetry.points("rbim.client.calls")] == ["b"]
    assert telemetry.points("rbim.client.calls") == []


# --------------------------------------------------------------------------------------- secrets


def lost(request: httpx.Request) -> httpx.Response:
    reason = f"cannot reach {request.url}"
    raise httpx.ConnectError(reason)


@pytest.mark.parametrize(
    "platform",
    [echo, lost, lambda _: httpx.Response(502, text="<html>"), lambda _: httpx.Response(200, json={"statusCode": "000000"})],
    ids=["echo", "lost", "garbage", "good"],
)
async def test_nothing_that_is_exported_holds_a_secret(telemetry, platform):
    signed = []

    async def handle(request: httpx.Request) -> httpx.Response:
        await checkpoint()
        signed.append((request.url.params["sig"], request.headers["Authorization"], str(request.url)))
        return platform(request)

    async with AsyncClient(
        base_url=BASE_URL,
        credentials=CREDENTIALS,
        transport=HttpxTransport(carrier=httpx.MockTransport(handle)),
        clock=EmulatedClock(auto=True),
        retry=NO_PAUSES,
        observers=[telemetry.observer],
    ) as client:
        telemetry.observer.observe_client(client)
        for op in (READ, NEVER, INVITE):
            await ending(client.send(op))
    assert len(signed) >= 3
    exported = telemetry.text()
    assert "http.client.request.duration" in exported
    assert len(telemetry.ended) == len(signed) + 3
    for secret in {TOKEN, *(part for all_of_it in signed for part in all_of_it)}:
        assert secret not in exported
    for name in ("sig=", "url.full", "url.query", "Authorization", "u1", "g1"):
        assert name not in exported


# ----------------------------------------------------------------------- what is installed, and what is not

CALL = """
import sys, anyio
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r} or name.startswith({missing!r} + "."):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from rbim import AsyncClient, Credentials, GroupType
from rbim.emulator import Emulator
from rbim.otel import OtelObserver
async def main():
    platform, otel = Emulator(), OtelObserver()
    async with AsyncClient(
        base_url="https://im.example", credentials=platform.credentials, transport=platform, observers=[otel]
    ) as client:
        with otel.observe_client(client):
            print((await client.groups.create(name="g", type=GroupType.VIP)).group_id in platform.state.groups)
anyio.run(main)
print(sorted(name for name in sys.modules if name.startswith("opentelemetry.sdk")))
"""


def run(missing):
    command = [sys.executable, "-W", "error", "-c", CALL.format(missing=missing)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)


def test_without_an_sdk_calls_are_made_and_nothing_is_recorded():
    done = run("opentelemetry.sdk")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True\n[]\n")


def test_without_the_extra_an_import_says_what_to_install():
    done = run("opentelemetry")
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        'ModuleNotFoundError: rbim.otel needs opentelemetry; install it with: python -m pip install "rbim[otel]"'
    )
    assert "During handling" not in done.stderr


async def test_the_processes_own_providers_are_used_unless_others_are_given(monkeypatch):
    telemetry = Telemetry()
    monkeypatch.setattr(trace, "get_tracer", lambda *about: about)
    assert OtelObserver()._tracer[2] is None
    assert OtelObserver(telemetry.tracer_provider)._tracer[2] is telemetry.tracer_provider
    assert OtelObserver()._tracer[0] == "rbim"


async def test_what_is_exported_says_who_made_it(telemetry):
    await traced(telemetry)
    scopes = {(span.instrumentation_scope.name, bool(span.instrumentation_scope.version)) for span in telemetry.ended}
    assert scopes == {("rbim", True)}
    assert json.loads(telemetry.ended[0].to_json())["name"] == "rbim QueryGroupDetail"
