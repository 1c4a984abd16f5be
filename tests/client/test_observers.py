"""What observers are told, and what is written to a log; never a secret."""

import json
import logging
import re
from contextlib import suppress

import pytest
from anyio import create_task_group
from attrs import evolve

from helpers.paths import ROOT
from helpers.stubs import (
    ALREADY_MEMBER,
    APP_ID,
    BASE_URL,
    GARBAGE,
    HANGS,
    INVITE,
    OK,
    READ,
    REFUSED,
    Recorder,
    Stub,
    client_over,
    ending,
    waits,
)
from helpers.waiting import until
from rbim import (
    AttemptEnded,
    AttemptStarted,
    CallEnded,
    InviteJoinGroup,
    Limits,
    LoggingObserver,
    NotSent,
    Outcome,
    Rate,
    RbimError,
    Retry,
    Unanswered,
)
from rbim.client.observers import CallStarted
from rbim.client.shared import Load
from rbim.emulator.clock import EmulatedClock

PATH = f"/2013-12-26/Application/{APP_ID}/IM/Group"


async def watched(*script, op=READ, **options):
    """Make one call and return what an observer was told of it, and how it ended."""
    recorder, stub = Recorder(), Stub(*script)
    stub.clock.elapsed += 100.0
    async with client_over(stub, observers=[recorder], **options) as client:
        ended = await ending(client.send(op))
    return recorder, ended


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


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
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


async def test_an_observer_that_fails_disturbs_nothing_and_is_logged(caplog):
    def fail(observation):
        raise KeyError(observation.operation)

    recorder = Recorder()
    async with client_over(Stub(NotSent, OK), observers=[fail, recorder]) as client:
        await client.send(READ)
    assert recorder.kinds == ["AttemptStarted", "AttemptEnded", "AttemptStarted", "AttemptEnded", "CallEnded"]
    records = [record for record in caplog.records if record.name == "rbim"]
    assert [record.getMessage() for record in records] == ["an observer failed"] * 6
    assert all(record.exc_info[0] is KeyError for record in records)


async def test_a_call_is_told_when_it_begins_whatever_becomes_of_it():
    seen = []
    async with client_over(Stub(), observers=[seen.append]) as client:
        await client.send(READ)
        await ending(client.send(InviteJoinGroup(group_id="g", members=[f"u{n}" for n in range(51)])))
    assert seen[0] == CallStarted(call=1, operation="QueryGroupDetail")
    assert seen[-2] == CallStarted(call=2, operation="InviteJoinGroup")
    kinds = [type(each).__name__ for each in seen]
    assert kinds == ["CallStarted", "AttemptStarted", "AttemptEnded", "CallEnded", "CallStarted", "CallEnded"]


async def test_who_is_told_first_that_something_begins_is_told_last_that_it_has_ended():
    told = []

    def named(name):
        return lambda observation: told.append((name, type(observation).__name__))

    async with client_over(Stub(), observers=[named("a"), named("b")]) as client:
        await client.send(READ)
    assert [name for name, kind in told if kind.endswith("Started")] == ["a", "b", "a", "b"]
    assert [name for name, kind in told if kind.endswith("Ended")] == ["b", "a", "b", "a"]


async def test_an_observer_may_say_which_observations_it_wants_and_is_asked_once_for_each_class():
    asked, seen = [], []

    class Ends:
        def observes(self, kind):
            asked.append(kind)
            return kind is CallEnded

        def __call__(self, observation):
            seen.append(type(observation))

    async with client_over(Stub(), observers=[Ends()]) as client:
        await client.send(READ)
        await client.send(READ)
    assert seen == [CallEnded] * 2
    assert asked == [CallStarted, AttemptStarted, AttemptEnded, CallEnded]


ENDS = [  # what the transport does; what is known of the effect; the last word of the line in the log
    ((OK,), None, "ok"),
    ((REFUSED,), Outcome.REFUSED, "ApiError, outcome refused"),
    ((NotSent,), Outcome.NOT_SENT, "NotSent, outcome not sent"),
    ((Unanswered, NotSent), Outcome.UNKNOWN, "NotSent, outcome unknown"),
    ((ZeroDivisionError,), Outcome.UNKNOWN, "ZeroDivisionError"),
    ((waits(9),), Outcome.UNKNOWN, "cancelled"),
    ((GARBAGE, OK), None, "ok"),
]


async def test_every_end_of_a_call_is_told_and_logged_with_what_is_known_of_its_effect(caplog):
    """And each value in the log is fit for JSON, under a key that is none of the record's own."""
    caplog.set_level(logging.DEBUG, "rbim")
    listed = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(rbim_\w+)` \|", listed, flags=re.MULTILINE))
    for script, outcome, word in ENDS:
        caplog.clear()
        recorder, stub = Recorder(), Stub(*script)
        observers = [recorder, LoggingObserver()]
        async with client_over(stub, observers=observers, retry=Retry(attempts=2, random=lambda: 1.0)) as client:
            with stub.clock.scope(3), suppress(RbimError, ZeroDivisionError):
                await client.send(READ)
        assert recorder.events[-1].outcome is outcome
        level, line = lines(caplog)[-1]
        assert line.endswith(f" ms {word}")
        assert (level == "INFO") == (word in {"ok", "cancelled"}), line
        given = extras(caplog)
        for facts in given:
            assert facts.keys() == documented
            assert json.loads(json.dumps(facts)) == facts
            assert {type(value) for value in facts.values()} <= {str, int, float, bool, type(None)}
        assert given[-1]["rbim_observation"] == "CallEnded"
        assert given[-1]["rbim_cancelled"] is given[-2]["rbim_cancelled"] is (word == "cancelled")


async def test_what_a_client_is_busy_with():
    stub = Stub(waits(5), clock=EmulatedClock())
    async with client_over(stub, limits=Limits(concurrency=2)) as client, create_task_group() as tasks:
        idle = Load(places=2, in_flight=0, waiting=0, oldest=0, calls=0, refused=0, attempt_time=0, retries_left=50)
        assert client.load == idle
        for view in (client, client.acting_as("a"), client.tuned(timeout=9)):
            tasks.start_soon(view.send, READ)
        await until(lambda: stub.in_flight == 2)
        busy = evolve(idle, in_flight=2, waiting=1, oldest=stub.clock.elapsed, calls=3)
        assert client.load == client.acting_as("b").load == busy
        tasks.cancel_scope.cancel()
    assert client.load.calls == 0


# The log


def lines(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "rbim"]


async def test_a_log_line_tells_operation_path_status_code_attempt_and_milliseconds(caplog):
    caplog.set_level(logging.DEBUG, "rbim")
    async with client_over(Stub(waits(0.5, GARBAGE), waits(0.25)), observers=[LoggingObserver()]) as client:
        await client.send(READ)
    where = f"QueryGroupDetail {PATH}/QueryGroupDetail"
    assert lines(caplog) == [
        ("DEBUG", f"{where} status=502 code=- attempt=1 500.0 ms IntermediaryError"),
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
    keys = ("observation", "attempt", "status", "code", "elapsed_ms", "outcome", "error")
    told = [
        ("AttemptEnded", 1, None, None, 500.0, "unknown", "Unanswered"),
        ("AttemptEnded", 2, 200, "590017", 1000.0, "refused", "AlreadyMember"),
        ("CallEnded", 2, 200, "590017", 7000.0, None, None),
    ]
    expected = [alike | ended | {f"rbim_{key}": fact for key, fact in zip(keys, facts, strict=True)} for facts in told]
    expected[-1] |= {"rbim_confirmed_by_repeat": True, "rbim_waited_ms": 5300.0}
    assert extras(caplog) == expected


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
