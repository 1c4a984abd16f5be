"""What observers are told, and what is written to a log; never a secret."""

import json
import logging
import re
import traceback
from contextlib import suppress

import httpx
import pytest
from anyio import create_task_group
from anyio.lowlevel import checkpoint
from attrs import evolve

from helpers.stubs import (
    ALREADY_MEMBER,
    APP_ID,
    BASE_URL,
    CREDENTIALS,
    GARBAGE,
    HANGS,
    INVITE,
    NEVER,
    NO_PAUSES,
    OK,
    READ,
    REFUSED,
    TOKEN,
    Recorder,
    Stub,
    answer,
    client_over,
    echo,
    ending,
    waits,
)
from helpers.waiting import until
from rbim import (
    AsyncClient,
    AttemptEnded,
    AttemptStarted,
    CallEnded,
    ClientClosed,
    DeadlineExceeded,
    InvalidRequest,
    InviteJoinGroup,
    Limits,
    LoggingObserver,
    NotSent,
    Observer,
    Outcome,
    Rate,
    RbimError,
    Retry,
    Unanswered,
)
from rbim.client.observers import CallStarted
from rbim.client.shared import Load
from rbim.emulator.clock import EmulatedClock
from rbim.transports.httpx import HttpxTransport

PATH = f"/2013-12-26/Application/{APP_ID}/IM/Group"


async def watched(*script, op=READ, **options):
    """Make one call and return what an observer was told of it, and how it ended."""
    recorder = Recorder()
    async with client_over(Stub(*script), observers=[recorder], **options) as client:
        ended = await ending(client.send(op))
    return recorder, ended


def facts(recorder):
    """Return the events in short: name, attempt, error."""
    return [
        (type(event).__name__, event.number)
        if isinstance(event, AttemptStarted)
        else (type(event).__name__, event.attempt.number, event.attempt.error)
        if isinstance(event, AttemptEnded)
        else (type(event).__name__, len(event.attempts), type(event.error).__name__)
        for event in recorder.events
    ]


async def test_a_call_that_goes_well_is_told_in_three_events():
    recorder, _ = await watched(waits(2))
    started, attempt, call = recorder.events
    assert started == AttemptStarted(
        call=1,
        operation="QueryGroupDetail",
        path=f"{PATH}/QueryGroupDetail",
        number=1,
        waited=0,
        method="POST",
        origin=BASE_URL,
        template="/{api_version}/Application/{app_id}/IM/Group/QueryGroupDetail",
    )
    assert isinstance(attempt, AttemptEnded)
    assert (attempt.call, attempt.operation, attempt.path) == (1, started.operation, started.path)
    made = attempt.attempt
    assert (made.number, made.elapsed, made.status, made.code, made.outcome, made.error) == (1, 2, 200, "000000", None, None)
    assert call == CallEnded(
        call=1, operation=started.operation, path=started.path, attempts=(made,), elapsed=2, waited=0, error=None
    )


async def test_a_refusal_is_told_with_its_status_code_and_outcome():
    recorder, error = await watched(answer("900404", status=404))
    _, attempt, call = recorder.events
    assert (attempt.attempt.status, attempt.attempt.code, attempt.attempt.outcome) == (404, "900404", Outcome.REFUSED)
    assert attempt.attempt.error == "NotFound"
    assert call.error is error
    assert call.attempts == error.attempts == (attempt.attempt,)
    assert not call.cancelled


async def test_every_attempt_of_a_call_is_told_in_order():
    recorder, _ = await watched(NotSent, GARBAGE, OK)
    assert facts(recorder) == [
        ("AttemptStarted", 1),
        ("AttemptEnded", 1, "NotSent"),
        ("AttemptStarted", 2),
        ("AttemptEnded", 2, "ProtocolError"),
        ("AttemptStarted", 3),
        ("AttemptEnded", 3, None),
        ("CallEnded", 3, "NoneType"),
    ]
    assert [made.status for made in recorder.events[-1].attempts] == [None, 502, 200]


async def test_a_call_that_a_repeat_confirmed_is_told_as_such():
    recorder, _ = await watched(Unanswered, ALREADY_MEMBER, op=INVITE)
    assert facts(recorder)[-2:] == [("AttemptEnded", 2, "AlreadyMember"), ("CallEnded", 2, "NoneType")]
    assert recorder.events[-1].confirmed_by_repeat


async def test_a_call_that_is_refused_before_sending_is_told_without_attempts():
    recorder, error = await watched(op=InviteJoinGroup(group_id="g", members=[f"u{n}" for n in range(51)]))
    (call,) = recorder.events
    assert isinstance(error, InvalidRequest)
    assert (call.error, call.operation, call.path, call.attempts) == (error, "InviteJoinGroup", "", ())


async def test_a_client_that_is_not_open_tells_it_too():
    recorder = Recorder()
    error = await ending(client_over(Stub(), observers=[recorder]).send(READ))
    assert isinstance(error, ClientClosed)
    assert [event.error for event in recorder.events] == [error]


async def test_a_deadline_that_passes_in_the_transport_ends_the_attempt_and_the_call():
    recorder, error = await watched(HANGS, deadline=5)
    assert isinstance(error, DeadlineExceeded)
    assert facts(recorder)[1:] == [("AttemptEnded", 1, "DeadlineExceeded"), ("CallEnded", 1, "DeadlineExceeded")]
    assert recorder.events[1].attempt.outcome is Outcome.UNKNOWN
    assert recorder.events[1].attempt.status is None


async def test_a_cancelled_call_is_told_with_the_attempt_that_may_have_acted():
    recorder = Recorder()
    stub = Stub(GARBAGE, waits(9))
    async with client_over(stub, observers=[recorder]) as client:
        with stub.clock.scope(4):
            await client.send(READ)
    assert recorder.kinds == ["AttemptStarted", "AttemptEnded", "AttemptStarted", "AttemptEnded", "CallEnded"]
    _, _, _, attempt, call = recorder.events
    assert (attempt.attempt.status, attempt.attempt.outcome) == (None, Outcome.UNKNOWN)
    assert attempt.attempt.error in {"Cancelled", "CancelledError"}
    assert (call.cancelled, call.error, len(call.attempts), call.elapsed) == (True, None, 2, 4)


async def test_a_call_cancelled_before_it_was_sent_is_told_without_attempts():
    recorder = Recorder()
    stub = Stub()
    async with client_over(stub, observers=[recorder], limits=Limits(rates=[Rate(1, per=20)])) as client:
        await client.send(READ)
        recorder.events.clear()
        with stub.clock.scope(4):
            await client.send(READ)
    (call,) = recorder.events
    assert (call.cancelled, call.attempts, call.waited, call.elapsed) == (True, (), 4, 4)


async def test_what_a_transport_raises_against_its_promise_is_told_as_an_error_of_unknown_outcome():
    recorder = Recorder()
    async with client_over(Stub(ZeroDivisionError), observers=[recorder]) as client:
        with pytest.raises(ZeroDivisionError) as caught:
            await client.send(READ)
    _, attempt, call = recorder.events
    assert (attempt.attempt.error, attempt.attempt.outcome) == ("ZeroDivisionError", Outcome.UNKNOWN)
    assert call.error is caught.value
    assert not call.cancelled


async def test_every_attempt_that_started_has_ended_however_the_call_ends():
    for script in ((OK,), (NotSent,), (REFUSED,), (HANGS,), (ZeroDivisionError,), (GARBAGE, HANGS)):
        recorder = Recorder()
        stub = Stub(*script)
        async with client_over(stub, observers=[recorder], deadline=3) as client:
            with stub.clock.scope(2), suppress(RbimError, ZeroDivisionError):
                await client.send(READ)
        assert recorder.kinds.count("AttemptStarted") == recorder.kinds.count("AttemptEnded") > 0
        assert recorder.kinds.count("CallEnded") == 1


async def test_waiting_for_limits_is_told_apart_from_the_rest():
    recorder = Recorder()
    stub = Stub(OK, NotSent, waits(1))
    async with client_over(stub, observers=[recorder], limits=Limits(rates=[Rate(1, per=3)])) as client:
        await client.send(READ)
        recorder.events.clear()
        await client.send(READ)
    assert [event.waited for event in recorder.events if isinstance(event, AttemptStarted)] == pytest.approx([3, 5.8])
    assert (recorder.events[-1].waited, recorder.events[-1].elapsed) == pytest.approx((5.8, 7))


async def test_calls_are_numbered_so_that_their_events_can_be_told_apart():
    recorder = Recorder()
    async with client_over(Stub(), observers=[recorder]) as client:
        for view in (client, client.acting_as("boss"), client):
            await view.send(READ)
    assert [event.call for event in recorder.events] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


async def test_an_observer_that_fails_disturbs_nothing_and_is_logged(caplog):
    class Failing(Observer):
        def attempt_started(self, event, /):
            raise KeyError(event.operation)

        attempt_ended = call_ended = attempt_started

    recorder = Recorder()
    async with client_over(Stub(NotSent, OK), observers=[Failing(), recorder]) as client:
        await client.send(READ)
    assert recorder.kinds == ["AttemptStarted", "AttemptEnded", "AttemptStarted", "AttemptEnded", "CallEnded"]
    records = [record for record in caplog.records if record.name == "rbim"]
    assert [record.getMessage() for record in records] == ["an observer failed"] * 5
    assert all(record.exc_info[0] is KeyError for record in records)


async def test_a_call_is_told_when_it_begins_whatever_becomes_of_it():
    class Beginning(Recorder):
        def call_started(self, event, /):
            self.events.append(event)

    recorder = Beginning()
    async with client_over(Stub(), observers=[recorder]) as client:
        await client.send(READ)
        await ending(client.send(InviteJoinGroup(group_id="g", members=[f"u{n}" for n in range(51)])))
    assert recorder.events[0] == CallStarted(call=1, operation="QueryGroupDetail")
    assert recorder.events[-2] == CallStarted(call=2, operation="InviteJoinGroup")
    assert recorder.kinds == ["CallStarted", "AttemptStarted", "AttemptEnded", "CallEnded", "CallStarted", "CallEnded"]


async def test_who_is_told_first_that_something_begins_is_told_last_that_it_has_ended():
    told = []

    class Named(Observer):
        def __init__(self, name):
            self.name = name

        def call_started(self, event, /):
            told.append((self.name, type(event).__name__))

        attempt_started = attempt_ended = call_ended = call_started

    async with client_over(Stub(), observers=[Named("a"), Named("b")]) as client:
        await client.send(READ)
    assert [name for name, kind in told if kind.endswith("Started")] == ["a", "b", "a", "b"]
    assert [name for name, kind in told if kind.endswith("Ended")] == ["b", "a", "b", "a"]


async def test_an_observer_need_not_be_derived_from_the_protocol():
    class Duck:
        def __init__(self):
            self.ended = []

        def call_ended(self, event):
            self.ended.append(event.operation)

    duck = Duck()
    async with client_over(Stub(), observers=[duck]) as client:
        await client.send(READ)
    assert duck.ended == ["QueryGroupDetail"]


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ((OK,), None),
        ((REFUSED,), Outcome.REFUSED),
        ((NotSent,), Outcome.NOT_SENT),
        ((Unanswered, NotSent), Outcome.UNKNOWN),
        ((ZeroDivisionError,), Outcome.UNKNOWN),
        ((waits(9),), Outcome.UNKNOWN),  # cancelled
    ],
    ids=str,
)
async def test_what_is_known_of_a_calls_effect_is_told_however_it_ends(script, outcome):
    recorder = Recorder()
    stub = Stub(*script)
    async with client_over(stub, observers=[recorder], retry=Retry(attempts=2)) as client:
        with stub.clock.scope(3), suppress(RbimError, ZeroDivisionError):
            await client.send(READ)
    assert recorder.events[-1].outcome is outcome


async def test_what_a_client_is_busy_with():
    stub = Stub(waits(5), clock=EmulatedClock())
    async with client_over(stub, limits=Limits(concurrency=2)) as client, create_task_group() as tasks:
        idle = Load(
            places=2, in_flight=0, waiting=0, oldest=0, calls=0, refused=0, attempt_time=0, retries_left=50, halted=0
        )
        assert client.load == idle
        for view in (client, client.acting_as("a"), client.tuned(timeout=9)):
            tasks.start_soon(view.send, READ)
        await until(lambda: stub.in_flight == 2)
        busy = evolve(idle, in_flight=2, waiting=1, oldest=stub.clock.elapsed, calls=3)
        assert client.load == client.acting_as("b").load == busy
        tasks.cancel_scope.cancel()
    assert client.load.calls == 0


async def test_an_observer_may_override_as_little_as_it_likes():
    class Counting(Observer):
        calls = 0

        def call_ended(self, _, /):
            self.calls += 1

    counting = Counting()
    async with client_over(Stub(NotSent, OK), observers=iter([counting])) as client:
        await client.send(READ)
    assert counting.calls == 1


# The log


def lines(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "rbim"]


async def test_a_log_line_tells_operation_path_status_code_attempt_and_milliseconds(caplog):
    caplog.set_level(logging.DEBUG, "rbim")
    async with client_over(Stub(waits(0.5, GARBAGE), waits(0.25)), observers=[LoggingObserver()]) as client:
        await client.send(READ)
    where = f"QueryGroupDetail {PATH}/QueryGroupDetail"
    assert lines(caplog) == [
        ("DEBUG", f"{where} status=502 code=- attempt=1 500.0 ms ProtocolError"),
        ("DEBUG", f"{where} status=200 code=000000 attempt=2 250.0 ms ok"),
        ("INFO", f"{where} status=200 code=000000 attempt=2 950.0 ms ok"),
    ]
    facts = caplog.records[-1]
    assert (facts.rbim_operation, facts.rbim_path) == ("QueryGroupDetail", f"{PATH}/QueryGroupDetail")
    assert (facts.rbim_status, facts.rbim_code, facts.rbim_attempt, facts.rbim_elapsed_ms) == (200, "000000", 2, 950.0)


def extras(caplog):
    """Return what each record of ours has beyond what every record has."""
    usual = vars(logging.makeLogRecord({}))
    given = [record for record in caplog.records if record.name == "rbim"]
    return [{key: value for key, value in vars(record).items() if key not in {*usual, "message"}} for record in given]


async def test_each_line_carries_its_facts_under_the_same_keys(caplog):
    caplog.set_level(logging.DEBUG, "rbim")
    stub = Stub(OK, waits(0.5, Unanswered), waits(1, ALREADY_MEMBER))
    async with client_over(stub, observers=[LoggingObserver()], limits=Limits(rates=[Rate(1, per=3)])) as client:
        await client.send(READ)
        caplog.clear()
        await client.send(INVITE)
    alike = {"rbim_client": "", "rbim_call": 2, "rbim_operation": "InviteJoinGroup", "rbim_path": f"{PATH}/InviteJoinGroup"}
    ended = {"rbim_confirmed_by_repeat": False, "rbim_cancelled": False, "rbim_waited_ms": None}
    assert extras(caplog) == [
        {
            "rbim_event": "attempt",
            **alike,
            "rbim_attempt": 1,
            "rbim_status": None,
            "rbim_code": None,
            "rbim_elapsed_ms": 500.0,
            "rbim_outcome": "unknown",
            "rbim_error": "Unanswered",
            **ended,
        },
        {
            "rbim_event": "attempt",
            **alike,
            "rbim_attempt": 2,
            "rbim_status": 200,
            "rbim_code": "590017",
            "rbim_elapsed_ms": 1000.0,
            "rbim_outcome": "refused",
            "rbim_error": "AlreadyMember",
            **ended,
        },
        {
            "rbim_event": "call",
            **alike,
            "rbim_attempt": 2,
            "rbim_status": 200,
            "rbim_code": "590017",
            "rbim_elapsed_ms": 7000.0,
            "rbim_outcome": None,
            "rbim_error": None,
            "rbim_confirmed_by_repeat": True,
            "rbim_cancelled": False,
            "rbim_waited_ms": 5300.0,
        },
    ]


@pytest.mark.parametrize(
    "script", [(OK,), (GARBAGE, OK), (NotSent,), (REFUSED,), (waits(9),), (ZeroDivisionError,)], ids=str
)
async def test_every_value_is_fit_for_json_and_no_key_is_the_records_own(caplog, script):
    caplog.set_level(logging.DEBUG, "rbim")
    stub = Stub(*script)
    async with client_over(stub, observers=[LoggingObserver()]) as client:
        with stub.clock.scope(4), suppress(RbimError, ZeroDivisionError):
            await client.send(READ)
    given = extras(caplog)
    documented = set(re.findall(r"``(rbim_\w+)``", LoggingObserver.__doc__))
    for facts in given:
        assert facts.keys() == documented
        assert json.loads(json.dumps(facts)) == facts
        assert {type(value) for value in facts.values()} <= {str, int, float, bool, type(None)}
    assert given[-1]["rbim_event"] == "call"
    assert given[-1]["rbim_cancelled"] is given[-2]["rbim_cancelled"] is isinstance(script[0], waits)


async def test_structlog_has_the_facts_as_keys(caplog):
    structlog = pytest.importorskip("structlog")
    caplog.set_level(logging.INFO, "rbim")
    async with client_over(Stub(), observers=[LoggingObserver()]) as client:
        await client.send(READ)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
    )
    (record,) = [record for record in caplog.records if record.name == "rbim"]
    document = json.loads(formatter.format(record))
    assert document.items() >= extras(caplog)[0].items()
    assert document["level"] == "info"


async def test_a_call_that_fails_is_a_warning_with_its_outcome(caplog):
    caplog.set_level(logging.INFO, "rbim")
    async with client_over(Stub(Unanswered, NotSent), observers=[LoggingObserver()], retry=Retry(attempts=2)) as client:
        await ending(client.send(READ))
    ((level, line),) = lines(caplog)
    assert level == "WARNING"
    assert " status=- code=- attempt=2 " in line
    assert line.endswith(" ms NotSent, outcome unknown")
    assert caplog.records[-1].rbim_status is None


@pytest.mark.parametrize(
    ("script", "end"), [((waits(9),), "cancelled"), ((ZeroDivisionError,), "ZeroDivisionError"), ((OK,), "ok")], ids=str
)
async def test_every_end_of_a_call_has_a_word(caplog, script, end):
    caplog.set_level(logging.INFO, "rbim")
    stub = Stub(*script)
    async with client_over(stub, observers=[LoggingObserver()]) as client:
        with stub.clock.scope(1), suppress(ZeroDivisionError):
            await client.send(READ)
    ((_, line),) = lines(caplog)
    assert line.endswith(f" ms {end}")


async def test_a_call_that_is_refused_before_sending_is_logged_without_a_path(caplog):
    caplog.set_level(logging.INFO, "rbim")
    async with client_over(Stub(), observers=[LoggingObserver()]) as client:
        await ending(client.send(InviteJoinGroup(group_id="g", members=[f"u{n}" for n in range(51)])))
    ((level, line),) = lines(caplog)
    assert level == "WARNING"
    assert line.startswith("InviteJoinGroup ")
    assert line.endswith(" status=- code=- attempt=0 0.0 ms InvalidRequest, outcome not sent")


async def test_the_log_may_go_to_a_logger_of_ones_own_and_is_silent_below_its_level(caplog):
    caplog.set_level(logging.INFO)
    logger = logging.getLogger("mine")
    async with client_over(Stub(), observers=[LoggingObserver(logger)]) as client:
        await client.send(READ)
        logger.setLevel(logging.ERROR)
        try:
            await client.send(READ)
        finally:
            logger.setLevel(logging.NOTSET)
    assert [(record.name, record.levelname) for record in caplog.records if record.name in {"mine", "rbim"}] == [
        ("mine", "INFO")
    ]


def everything(caplog) -> str:
    """Return all that any logger was given: texts, arguments, extra fields, tracebacks."""
    shown = [caplog.text]
    for record in caplog.records:
        shown.append(repr(vars(record)))
        if record.exc_info:
            shown.extend(traceback.format_exception(record.exc_info[1]))
    return "\n".join(shown)


def lost(request: httpx.Request) -> httpx.Response:
    reason = f"cannot reach {request.url.host}"
    raise httpx.ConnectError(reason)


@pytest.mark.parametrize(
    "platform", [echo, lost, lambda _: httpx.Response(502, text="<html>")], ids=["echo", "lost", "garbage"]
)
async def test_with_everything_logged_no_log_and_no_error_holds_a_secret(caplog, platform):
    caplog.set_level(logging.DEBUG)
    signed, errors = [], []

    async def handle(request: httpx.Request) -> httpx.Response:
        await checkpoint()
        signed.append((request.url.params["sig"], request.headers["Authorization"]))
        return platform(request)

    class Failing(Observer):
        def call_ended(self, event, /):
            raise event.error

    async with AsyncClient(
        base_url=BASE_URL,
        credentials=CREDENTIALS,
        transport=HttpxTransport(carrier=httpx.MockTransport(handle)),
        clock=EmulatedClock(auto=True),
        retry=NO_PAUSES,
        observers=[LoggingObserver(), Failing()],
    ) as client:
        for op in (READ, NEVER, INVITE):
            errors.append(await ending(client.send(op)))
            logging.getLogger("anybody").debug("%s %r %s", client, errors[-1], vars(errors[-1]))
    assert all(isinstance(error, RbimError) for error in errors)
    assert len(signed) >= 3
    shown = everything(caplog) + "".join(f"{error} {error!r} {traceback.format_exception(error)}" for error in errors)
    assert "QueryGroupDetail" in shown
    for secret in {TOKEN, *(part for both in signed for part in both)}:
        assert secret not in shown
