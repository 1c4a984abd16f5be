"""Spans of a receiver and its handlers: what handlers do is below them, and they say how it ended without what was said."""

import json

import anyio
import pytest

from helpers.credentials import APP_ID, CREDENTIALS
from helpers.receiving import body, post
from helpers.stubs import READ, Stub, client_over
from helpers.waiting import until
from rbim.callbacks import Backoff, DeadLettered, DeliveryEnded, Handled, MemorySink, Receiver, SqliteInbox

SECRET = "the text of a message"


def receiver_of(*telemetries, sink=None, **options):
    observers = [each.observer for each in telemetries]
    seen = []
    receiver = Receiver(credentials=CREDENTIALS, sink=sink or MemorySink(), observers=[*observers, seen.append], **options)
    return receiver, lambda kind: [each for each in seen if isinstance(each, kind)]


def spans(telemetry, kind):
    return [span for span in telemetry.ended if span.kind.name == kind]


def below(telemetry, parent):
    return [span.name for span in telemetry.ended if span.parent and span.parent.span_id == parent.context.span_id]


async def test_the_calls_of_a_handler_are_below_its_span(telemetry):
    async with client_over(Stub(), observers=[telemetry.observer]) as client:
        receiver, seen = receiver_of(telemetry)

        @receiver.fallback
        async def answer(_event):
            await client.send(READ)

        async with receiver:
            await post(receiver, body())
            await until(lambda: seen(Handled))
    (handling,) = spans(telemetry, "CONSUMER")
    assert below(telemetry, handling) == ["rbim QueryGroupDetail"]
    (call,) = [span for span in telemetry.ended if span.name == "rbim QueryGroupDetail"]
    assert len(below(telemetry, call)) == 1
    assert call.context.trace_id == handling.context.trace_id


@pytest.mark.parametrize("plain", [False, True])
async def test_a_handlers_span_is_current_wherever_it_runs(telemetry, tmp_path, plain):
    receiver, seen = receiver_of(telemetry, sink=SqliteInbox(tmp_path / "events.db"), name="eu")

    def work(_event):
        with telemetry.tracer.start_as_current_span("work"):
            pass

    async def work_async(event):
        await anyio.lowlevel.checkpoint()
        work(event)

    receiver.fallback(work if plain else work_async)
    async with receiver:
        await post(receiver, body())
        await until(lambda: seen(Handled))
    (handling,) = spans(telemetry, "CONSUMER")
    (handled,) = seen(Handled)
    assert handling.name == "process Text"
    assert dict(handling.attributes) == {
        "messaging.system": "rbim",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "rbim.receiver": "eu",
        "rbim.key": handled.key,
        "rbim.attempt": 1,
        "rbim.event": "Text",
        "rbim.handler": (work if plain else work_async).__qualname__,
    }
    assert handling.status.status_code.name == "UNSET"
    assert below(telemetry, handling) == ["work"]


async def test_a_handler_begins_its_own_trace_whatever_span_the_receiver_was_entered_in(telemetry):
    receiver, seen = receiver_of(telemetry)

    @receiver.fallback
    async def handle(_event):
        pass

    with telemetry.tracer.start_as_current_span("start of the application"):
        async with receiver:
            with telemetry.tracer.start_as_current_span("POST /copies"):
                await post(receiver, body())
            await until(lambda: seen(Handled))
    (handling,) = spans(telemetry, "CONSUMER")
    assert handling.parent is None
    (request,) = [span for span in telemetry.ended if span.name == "POST /copies"]
    assert below(telemetry, request) == ["rbim delivery"]
    (delivery,) = [span for span in telemetry.ended if span.name == "rbim delivery"]
    assert delivery.attributes["rbim.key"] == handling.attributes["rbim.key"] == seen(Handled)[0].key


async def test_a_delivery_says_how_it_was_answered(telemetry):
    class Full(MemorySink):
        async def accept(self, delivery, /):
            if b"full" in delivery.body:
                raise OSError
            return await super().accept(delivery)

    receiver, _ = receiver_of(telemetry, sink=Full(), mode="high-guarantee", name="eu")
    async with receiver:
        statuses = [
            (await post(receiver, body(msgId="m1"))).status,
            (await post(receiver, body(msgId="m1"))).status,
            (await post(receiver, body(msgId="m2"), MD5="0" * 32)).status,
            (await post(receiver, body(msgId="m3", body="full"))).status,
        ]
    deliveries = [span for span in telemetry.ended if span.name == "rbim delivery"]
    told = [
        [span.attributes.get(name) for name in ("http.response.status_code", "rbim.result", "rbim.reason", "error.type")]
        for span in deliveries
    ]
    assert told == [
        [statuses[0], "accepted", None, None],
        [statuses[1], "known", None, None],
        [statuses[2], "refused", "checksum_mismatch", None],
        [statuses[3], "unavailable", None, str(statuses[3])],
    ]
    assert statuses == [200, 200, 401, 503]
    assert [span.status.status_code.name for span in deliveries] == ["UNSET", "UNSET", "UNSET", "ERROR"]
    assert {span.attributes["rbim.receiver"] for span in deliveries} == {"eu"}
    assert {span.kind.name for span in deliveries} == {"INTERNAL"}


async def test_a_delivery_that_is_cancelled_ends_its_span_and_restores_the_context(telemetry):
    class Slow(MemorySink):
        async def accept(self, _delivery, /):
            began.set()
            await anyio.sleep_forever()

    began = anyio.Event()
    receiver, seen = receiver_of(telemetry, sink=Slow(), mode="high-guarantee")
    async with receiver, anyio.create_task_group() as tasks:
        tasks.start_soon(post, receiver, body())
        await began.wait()
        tasks.cancel_scope.cancel()
    (ended,) = seen(DeliveryEnded)
    assert ended.status is None
    (span,) = telemetry.ended
    assert (span.attributes["error.type"], span.status.status_code.name) == ("cancelled", "ERROR")


async def test_a_failed_attempt_is_an_error_with_its_frames_and_without_its_words(telemetry):
    receiver, seen = receiver_of(telemetry, backoff=Backoff(first=0.001, attempts=2), name="eu")

    @receiver.fallback
    async def handle(_event):
        try:
            {}[SECRET]
        except KeyError as error:
            raise LookupError(SECRET) from error

    async with receiver:
        await post(receiver, body())
        await until(lambda: seen(DeadLettered))
    attempts = spans(telemetry, "CONSUMER")
    assert [span.attributes["rbim.attempt"] for span in attempts] == [1, 2]
    for span in attempts:
        assert (span.attributes["error.type"], span.status.status_code.name) == ("LookupError", "ERROR")
        (event,) = span.events
        assert event.name == "exception"
        assert event.attributes["exception.type"] == "LookupError"
        stack = event.attributes["exception.stacktrace"]
        first, second = stack.index("KeyError\n"), stack.rindex("LookupError")
        assert first < second
        assert stack.count(", in handle\n") == 2
        assert __file__ in stack
    exported = telemetry.text()
    for secret in (SECRET, "你好", CREDENTIALS.app_token.reveal(), APP_ID):
        assert secret not in exported
        assert json.dumps(secret)[1:-1] not in exported
    failed = {"rbim.receiver": "eu", "rbim.handler": handle.__qualname__}
    ((about, (count, _)),) = telemetry.points("rbim.worker.handling.duration")
    assert (about, count) == ({**failed, "error.type": "LookupError"}, 2)
    dead = {**failed, "rbim.observation": "DeadLettered", "rbim.reason": "failure"}
    assert telemetry.points("rbim.receiver.incidents") == [(dead, 1)]


async def test_the_recorded_frames_and_causes_are_bounded(telemetry):
    receiver, seen = receiver_of(telemetry, backoff=Backoff(first=0.001, attempts=1))

    def deep(depth):
        if depth:
            deep(depth - 1)
        error = None
        for number in range(100):
            following = ValueError(number)
            following.__cause__ = error
            error = following
        raise error

    @receiver.fallback
    async def handle(_event):
        deep(500)

    async with receiver:
        await post(receiver, body())
        await until(lambda: seen(DeadLettered))
    ((event,),) = [span.events for span in spans(telemetry, "CONSUMER")]
    stack = event.attributes["exception.stacktrace"]
    assert stack.count("ValueError") <= 10
    assert len(stack) < 20_000


async def test_a_handler_that_the_end_of_the_receiver_cancels_says_so(telemetry):
    receiver, seen = receiver_of(telemetry)
    began = anyio.Event()

    @receiver.fallback
    async def handle(_event):
        began.set()
        await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        async with receiver:
            await post(receiver, body())
            await began.wait()
            scope.cancel()
            await anyio.sleep_forever()
    assert not seen(Handled)
    (span,) = spans(telemetry, "CONSUMER")
    assert (span.attributes["error.type"], span.status.status_code.name) == ("cancelled", "ERROR")
    assert not span.events


async def test_every_metric_of_a_receiver_names_it(telemetry):
    receiver, seen = receiver_of(telemetry, name="eu")

    @receiver.fallback
    async def handle(_event):
        pass

    async with receiver:
        await post(receiver, body())
        await post(receiver, b"no JSON")
        await post(receiver, body(msgId="m2"), MD5="0" * 32)
        await until(lambda: seen(Handled))
    points = {name: telemetry.points(name) for name in telemetry.collect()}
    assert {"rbim.receiver.deliveries", "rbim.receiver.headroom", "rbim.worker.handling.duration"} < points.keys()
    assert {about.get("rbim.receiver") for of_one in points.values() for about, _ in of_one} == {"eu"}
