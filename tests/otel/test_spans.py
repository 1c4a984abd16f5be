"""Spans and metrics by OpenTelemetry, kept in memory and compared word for word; never a secret."""

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
    CallEnded,
    CallStarted,
    InviteJoinGroup,
    Limits,
    NotSent,
    QueryGroupDetail,
    Rate,
    Response,
    Retry,
    Unanswered,
)
from rbim.emulator.clock import EmulatedClock
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


JOIN, INVITATION = {"operation": "JoinGroup"}, {"operation": "InviteJoinGroup"}
LATE = ends(error="DeadlineExceeded", outcome="unknown")
BROKEN = ends(error="ZeroDivisionError", outcome="unknown")
LOST = {"error": "IntermediaryError", "outcome": "unknown"}
CONFIRMED = {"rbim.confirmed_by_repeat": True, "rbim.code": "590017"}
TREES = {  # what the transport does, what is sent and how; the span of the call and those of its attempts
    "goes well": ((OK,), {}, call_span(rbim_code="000000"), [attempt_span(**ends(200, "000000"))]),
    "is repeated": (
        (NotSent, GARBAGE, OK),
        {},
        call_span(attempts=3, rbim_code="000000"),
        [
            attempt_span("ERROR", **ends(error="NotSent", outcome="not sent")),
            attempt_span("ERROR", number=2, **ends(502, error="502", outcome="unknown")),
            attempt_span(number=3, **ends(200, "000000")),
        ],
    ),
    "may have acted": (
        (Unanswered, NotSent),
        {"retry": Retry(attempts=2, random=lambda: 0.0)},
        call_span("ERROR", attempts=2, **ends(error="NotSent", outcome="unknown")),
        [
            attempt_span("ERROR", **ends(error="Unanswered", outcome="unknown")),
            attempt_span("ERROR", number=2, **ends(error="NotSent", outcome="not sent")),
        ],
    ),
    "cannot be read, with HTTP 200": (
        (Response(200, {}, b"<html>"),),
        {"op": NEVER},
        call_span("ERROR", **JOIN, **ends(**LOST)),
        [attempt_span("ERROR", **JOIN, **ends(200, **LOST))],
    ),
    "is throttled": (
        (BUSY, OK),
        {},
        call_span(attempts=2, rbim_code="000000"),
        [attempt_span(**ends(200, "160016", outcome="refused")), attempt_span(number=2, **ends(200, "000000"))],
    ),
    "is confirmed by a repeat": (
        (Unanswered, ALREADY_MEMBER),
        {"op": INVITE},
        call_span(attempts=2, **INVITATION) | CONFIRMED,
        [
            attempt_span("ERROR", **INVITATION, **ends(error="Unanswered", outcome="unknown")),
            attempt_span(number=2, **INVITATION, **ends(200, "590017", outcome="refused")),
        ],
    ),
    "is too late": ((HANGS,), {"deadline": 5}, call_span("ERROR", **LATE), [attempt_span("ERROR", **LATE)]),
    "is refused before it is sent": (
        (OK,),
        {"op": InviteJoinGroup(group_id="g", members=[f"u{n}" for n in range(51)])},
        call_span("ERROR", attempts=0, **INVITATION, **ends(error="InvalidRequest", outcome="not sent")),
        [],
    ),
    "is no operation": (
        (OK,),
        {"op": "QueryGroupDetail"},
        call_span("ERROR", operation="str", attempts=0, **ends(error="TypeError", outcome="not sent")),
        [],
    ),
    "breaks a promise": ((ZeroDivisionError,), {}, call_span("ERROR", **BROKEN), [attempt_span("ERROR", **BROKEN)]),
    **{
        f"is refused with HTTP {status}": (
            (answer("999123", status=status),),
            {"op": NEVER},
            call_span("ERROR", **JOIN, **ends(code="999123", error=error, outcome=outcome)),
            [attempt_span(span, **JOIN, **ends(status, "999123", of_the_attempt, outcome))],
        )
        for status, span, of_the_attempt, error, outcome in (
            (200, "UNSET", None, "ApiError", "refused"),
            (302, "UNSET", None, "ApiError", "refused"),
            (404, "ERROR", "404", "NotFound", "refused"),
            (500, "ERROR", "500", "ApiError", "unknown"),
        )
    },
}


async def test_a_call_is_a_span_with_one_for_each_attempt_below_it_and_they_say_how_it_ended():
    wrong = {}
    for name, (script, options, call, attempts) in TREES.items():
        telemetry = Telemetry()
        with suppress(TypeError, ZeroDivisionError):
            await traced(telemetry, *script, **options)
        got = telemetry.tree()
        if got != [(call, [(attempt, []) for attempt in attempts])]:
            wrong[name] = got
    assert wrong == {}


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_cancelled_call_is_an_error_of_its_own_kind_on_asyncio_and_on_trio(telemetry):
    stub = Stub(GARBAGE, waits(9))
    async with client_over(stub, observers=[telemetry.observer]) as client:
        with stub.clock.scope(4):
            await client.send(READ)
    cancelled = ends(error="cancelled", outcome="unknown")
    (call, (_, second)) = telemetry.tree()[0]
    assert call == call_span("ERROR", attempts=2, **cancelled)
    assert second[0] == attempt_span("ERROR", number=2, **cancelled)


async def test_the_address_is_told_in_parts_and_without_what_signs_it():
    for base_url, address in [
        ("https://im.example", {"server.port": 443}),
        ("http://im.example", {"server.port": 80, "url.scheme": "http"}),
        ("http://[::1]:8881/im/", {"server.address": "::1", "server.port": 8881, "url.scheme": "http"}),
    ]:
        telemetry = Telemetry()
        await traced(telemetry, base_url=base_url)
        (call, attempt) = telemetry.ended
        prefix = "/im" if "/im/" in base_url else ""
        assert dict(attempt.attributes).items() >= request_of(prefix + TEMPLATE, **address).items()
        assert attempt.name == f"POST {prefix}{TEMPLATE}"
        assert not any(
            name.startswith(("url.full", "url.query", "url.path")) for name in {*attempt.attributes, *call.attributes}
        )


# ------------------------------------------------------------------------------- parents and contexts


async def test_a_call_is_below_its_callers_span_and_leaves_it_as_it_was():
    for script in [(OK,), (NotSent,), (GARBAGE, OK), (HANGS,), (ZeroDivisionError,), (answer("999123"),)]:
        telemetry, stub = Telemetry(), Stub(*script)
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

    def look(observation):
        if isinstance(observation, (CallStarted, CallEnded)):
            seen[type(observation).__name__] = trace.get_current_span()

    class Inside(Stub):
        async def respond(self, request, timeout):
            seen["attempt"] = trace.get_current_span()
            return await super().respond(request, timeout)

    async with client_over(Inside(), observers=[telemetry.observer, look]) as client:
        await client.send(READ)
    call, attempt = telemetry.ended
    spans = {name: span.get_span_context().span_id for name, span in seen.items()}
    of_call = call.context.span_id
    assert spans == {"CallStarted": of_call, "CallEnded": of_call, "attempt": attempt.context.span_id}
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
            before = context.get_current()
        finally:
            coroutine.close()  # or leaving the client would wait for it
        assert context.get_current() is before
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


async def test_an_attempt_that_was_throttled_by_status_or_by_code_says_so(telemetry):
    await traced(telemetry, BUSY, Response(429, {}, b""), OK)
    marked = [
        (about["http.response.status_code"], about.get("rbim.throttled"))
        for about, _ in telemetry.points("http.client.request.duration")
    ]
    assert marked == [(200, True), (429, True), (200, None)]


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


@pytest.mark.ci
def test_without_an_sdk_calls_are_made_and_nothing_is_recorded():
    done = run("opentelemetry.sdk")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True\n[]\n")


@pytest.mark.ci
def test_without_the_extra_an_import_says_what_to_install():
    done = run("opentelemetry")
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        'ModuleNotFoundError: rbim.otel needs opentelemetry; install it with: python -m pip install "rbim[otel]"'
    )
    assert "During handling" not in done.stderr


async def test_what_is_exported_says_who_made_it(telemetry):
    await traced(telemetry)
    scopes = {(span.instrumentation_scope.name, bool(span.instrumentation_scope.version)) for span in telemetry.ended}
    assert scopes == {("rbim", True)}
    assert json.loads(telemetry.ended[0].to_json())["name"] == "rbim QueryGroupDetail"
