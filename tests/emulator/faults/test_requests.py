"""Faults of the emulator's plan: what the client reports of each, whether the operation took effect, and how it goes on."""

import hashlib
import json
import math
import os
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from statistics import median, stdev

import anyio
import pytest

from helpers.paths import TESTS
from helpers.stubs import CREDENTIALS, NO_PAUSES, ONCE
from rbim import (
    ApiError,
    AsyncClient,
    AuthenticationError,
    CreateGroup,
    GroupType,
    InvalidRequest,
    InviteJoinGroup,
    JoinGroup,
    LogoutGroup,
    NotFound,
    NotSent,
    Outcome,
    Permission,
    ProtocolError,
    QueryGroupDetail,
    RbimError,
    Retry,
    Role,
    SearchPublicGroups,
    ServerTrouble,
    SetMemberRole,
    Throttled,
    TimestampExpired,
    Unanswered,
)
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults.requests import (
    Code,
    CutShort,
    DuplicateFields,
    Fault,
    Faults,
    Injection,
    InvalidJson,
    Latency,
    Refuse,
    ResetAfter,
    ResetBefore,
    SlowBody,
    Status,
    Throttle,
    faults_from,
)

ID = "g80000049837291"
CREATE = CreateGroup(name="公告", type=GroupType.TEMPORARY)
INVITE = InviteJoinGroup(group_id=ID, members=["1001"])


@asynccontextmanager
async def platform(*faults, seed=0, group=True, **options):
    """An emulator, with one group in it, whose plan begins now, and a client of it; time passes while they wait."""
    dialect = options.pop("dialect", None)
    emulator = Emulator(credentials=CREDENTIALS, clock=EmulatedClock(auto=True), seed=seed, dialect=dialect)
    options = {"retry": NO_PAUSES} | options
    async with AsyncClient(
        base_url="http://emulator", transport=emulator, credentials=CREDENTIALS, clock=emulator.clock, **options
    ) as client:
        if group:
            await client.send(CREATE)
        emulator.requests.clear()
        emulator.faults.add(*faults)
        yield emulator, client


def members(emulator):
    return list(emulator.state.groups[ID].members)


def codes(emulator):
    return [record.code for record in emulator.requests]


# ------------------------------------------------------------------------------------ one effect, one attempt

FAILURES = [
    # the effect, the error, what is known of the outcome, whether the group was made, the code that the platform gave
    (Refuse(), NotSent, "connection refused", Outcome.NOT_SENT, False, None),
    (ResetBefore(), Unanswered, "connection reset", Outcome.UNKNOWN, False, None),
    (ResetAfter(), Unanswered, "connection reset", Outcome.UNKNOWN, True, "000000"),
    (CutShort(), Unanswered, "the response was cut short", Outcome.UNKNOWN, True, "000000"),
    (CutShort(keep=0.99), Unanswered, "the response was cut short", Outcome.UNKNOWN, True, "000000"),
    (Latency(11), Unanswered, "no complete response within 10 s", Outcome.UNKNOWN, True, "000000"),
    (SlowBody(11), Unanswered, "no complete response within 10 s", Outcome.UNKNOWN, True, "000000"),
    (InvalidJson(), ProtocolError, "not JSON", Outcome.UNKNOWN, True, "000000"),
    (Status(500), ProtocolError, "HTTP 500", Outcome.UNKNOWN, False, None),
    (Status(302), ProtocolError, "HTTP 302", Outcome.UNKNOWN, False, None),
    (Status(200), ProtocolError, "HTTP 200", Outcome.UNKNOWN, False, None),
    (Status(429), Throttled, "HTTP 429", Outcome.REFUSED, False, None),
    (Status(404), NotFound, "HTTP 404", Outcome.REFUSED, False, None),
    (Status(401), AuthenticationError, "HTTP 401", Outcome.REFUSED, False, None),
    (Status(418), ApiError, "HTTP 418", Outcome.REFUSED, False, None),
    (Throttle(0), Throttled, "HTTP 429", Outcome.REFUSED, False, None),
    (Throttle(0, code="160016"), Throttled, "code 160016: too many requests", Outcome.REFUSED, False, "160016"),
    (Code("160001", "忙"), Throttled, "code 160001: 忙", Outcome.REFUSED, False, "160001"),
    (Code("111109"), AuthenticationError, "code 111109", Outcome.REFUSED, False, "111109"),
    (Code("161106"), TimestampExpired, "code 161106", Outcome.REFUSED, False, "161106"),
    (Code("529999"), ServerTrouble, "code 529999", Outcome.UNKNOWN, False, "529999"),
    (Code("999999"), ApiError, "code 999999: a fault of the emulator's plan", Outcome.REFUSED, False, "999999"),
]


@pytest.mark.parametrize(("effect", "kind", "says", "outcome", "made", "code"), FAILURES, ids=repr)
async def test_what_one_attempt_reports_and_whether_it_took_effect(effect, kind, says, outcome, made, code):
    async with platform(Fault(effect=effect), group=False, retry=ONCE) as (emulator, client):
        with pytest.raises(RbimError) as caught:
            await client.send(CREATE)
        error = caught.value
        assert type(error) is kind
        assert says in str(error)
        assert (error.outcome, error.operation) == (outcome, "CreateGroup")
        assert [attempt.error for attempt in error.attempts] == [kind.__name__]
        assert len(emulator.state.groups) == made
        (record,) = emulator.requests
        assert (record.operation, record.effect, record.code) == (CREATE, made, code)
        assert record.trouble


async def test_what_a_client_has_no_trouble_with():
    harmless = Latency(2), SlowBody(3), DuplicateFields()
    async with platform(*(Fault(effect=effect, nth=[n]) for n, effect in enumerate(harmless, 1))) as (emulator, client):
        answers = [await client.send(QueryGroupDetail(group_id=ID)) for _ in harmless]
        assert answers[0] == answers[1] == answers[2]
        assert [record.trouble for record in emulator.requests] == [("delay",), ("body_time",), ("duplicate_fields",)]
        assert emulator.clock.elapsed == 5


async def test_duplicate_fields_are_there_twice_and_invalid_json_is_none():
    for effect, twice in ((DuplicateFields(), 2), (InvalidJson(), 1)):
        async with platform(Fault(effect=effect), retry=ONCE) as (_, client):
            try:
                body = (await client.exchange(SearchPublicGroups())).response.body
            except ProtocolError as error:
                body = error.body
            assert body.count(b'"statusCode":"000000"') == twice


@pytest.mark.parametrize(
    ("seconds", "header"), [(None, None), (0, "0"), (1, "1"), (0.2, "1"), (2.5, "3"), (3600, "3600"), (1_000_000, "1000000")]
)
def test_retry_after_is_sent_in_whole_seconds(seconds, header):
    for effect in (Status(503, seconds), Throttle(0, seconds), Throttle(0, seconds, code="160016")):
        emulator = Emulator(credentials=CREDENTIALS, clock=EmulatedClock())
        emulator.faults.add(Fault(effect=effect))
        served = emulator.platform.serve("POST", "/2013-12-26/Application/a/IM/Group/CreateGroup", {}, {}, b"{}")
        assert served.response.headers.get("retry-after") == header


# --------------------------------------------------------------------------------------- and how the client goes on

# What is tried again: an operation that must never be repeated, and one that may.
AGAIN = [
    (Refuse(), True, True),
    (Status(429), True, True),
    (Code("160016"), False, True),
    (Code("161106"), True, True),
    (Code("999999"), False, False),
    (Status(404), False, False),
    (ResetBefore(), False, True),
    (ResetAfter(), False, True),
    (CutShort(), False, True),
    (InvalidJson(), False, True),
    (Latency(11), False, True),
    (Status(500), False, True),
    (Code("529999"), False, True),
]


@pytest.mark.parametrize(("effect", "create_again", "invite_again"), AGAIN, ids=repr)
async def test_an_operation_that_must_not_be_repeated_is_sent_again_only_where_it_cannot_have_acted(
    effect, create_again, invite_again
):
    for op, again in ((CREATE, create_again), (INVITE, invite_again)):
        async with platform(Fault(effect=effect, nth=[1])) as (emulator, client):
            if again:
                await client.send(op)
            else:
                with pytest.raises(RbimError):
                    await client.send(op)
            assert len(emulator.requests) == 1 + again
            assert len(emulator.state.groups) <= 2  # never one too many


async def test_a_reset_after_an_invitation_is_tried_again_and_the_member_is_there_once():
    async with platform(Fault(effect=ResetAfter(), operation=InviteJoinGroup, nth=[1])) as (emulator, client):
        exchange = await client.exchange(INVITE)
        assert exchange.answer.fails == ()
        assert [(made.error, made.outcome) for made in exchange.attempts] == [("Unanswered", "unknown"), (None, None)]
        assert not exchange.confirmed_by_repeat  # the second answer says success, and no more
        assert members(emulator) == ["admin", "1001"]
        assert [(record.attempt, record.effect, record.trouble) for record in emulator.requests] == [
            (1, True, ("reset_after",)),
            (2, True, ()),
        ]


@pytest.mark.parametrize(
    ("call", "left"),
    [
        (lambda client: client.groups.delete(group_id=ID), None),
        (lambda client: client.groups.remove(group_id=ID, members=["1001"]), ["admin"]),
        (lambda client: client.acting_as("1001").groups.leave(group_id=ID), ["admin"]),
    ],
    ids=["delete", "remove", "leave"],
)
async def test_a_reset_after_the_effect_is_confirmed_by_the_answer_that_it_is_so_already(call, left):
    ended = []

    class Watcher:
        attempt_started = attempt_ended = staticmethod(lambda _: None)
        call_ended = staticmethod(ended.append)

    async with platform(observers=[Watcher()]) as (emulator, client):
        await client.send(INVITE)
        emulator.faults.add(Fault(effect=ResetAfter(), nth=[1]))
        await call(client)
        assert ended[-1].confirmed_by_repeat
        assert (ended[-1].error, ended[-1].attempts[0].error) == (None, "Unanswered")
        assert [record.effect for record in emulator.requests][-2:] == [True, False]
        assert (members(emulator) if emulator.state.groups else None) == left


async def test_a_reset_after_a_creation_leaves_one_group_and_an_error_of_unknown_outcome():
    async with platform(Fault(effect=ResetAfter(), operation="CreateGroup", nth=[1]), group=False) as (emulator, client):
        with pytest.raises(Unanswered) as caught:
            await client.send(CREATE)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert len(caught.value.attempts) == len(emulator.requests) == len(emulator.state.groups) == 1
        # what comes of repeating every failed request, as an HTTP library's own retries do
        await client.send(CREATE)
        assert [group.name for group in emulator.state.groups.values()] == ["公告", "公告"]


@pytest.mark.parametrize(
    "op",
    [
        InviteJoinGroup(group_id=ID, members=["1002"], needs_confirmation=True),
        JoinGroup(group_id=ID, user_name="1002"),
        SetMemberRole(group_id=ID, member="1001", role=Role.CREATOR),
    ],
    ids=lambda op: type(op).__name__,
)
async def test_what_must_not_be_repeated_acts_once_and_is_reported_as_unknown(op):
    async with platform() as (emulator, client):
        await client.send(INVITE)
        emulator.faults.add(Fault(effect=ResetAfter()))
        with pytest.raises(Unanswered) as caught:
            await client.send(op)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert len(emulator.requests.of(type(op))) == 1 + isinstance(op, InviteJoinGroup)


async def test_a_connection_that_is_refused_until_the_attempts_are_used_up_was_never_sent():
    async with platform(Fault(effect=Refuse()), group=False) as (emulator, client):
        with pytest.raises(NotSent) as caught:
            await client.send(CREATE)
        assert (caught.value.outcome, len(caught.value.attempts)) == (Outcome.NOT_SENT, 3)
        assert emulator.state.groups == {}


# ------------------------------------------------------------------------------------------------ throttling and time


async def test_a_client_that_is_told_when_to_come_back_recovers_at_that_very_moment():
    async with platform(Fault(effect=Throttle(per_second=5, retry_after=1))) as (emulator, client):
        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(client.send, QueryGroupDetail(group_id=ID))
        answered = [record.at for record in emulator.requests if record.effect]
        assert answered == [0] * 5 + [1] * 5 + [2] * 2
        assert {record.trouble for record in emulator.requests} == {(), ("status", "retry_after")}


@pytest.mark.parametrize("code", [None, "160016"])
async def test_a_client_that_is_not_told_backs_off_until_it_may(code):
    backing_off = Retry(attempts=4, base=0.3, random=lambda: 1.0)  # after 0.3, 0.6 and 1.2 s
    async with platform(Fault(effect=Throttle(per_second=2, code=code)), retry=backing_off) as (emulator, client):
        attempts = [len((await client.exchange(SearchPublicGroups())).attempts) for _ in range(4)]
        assert attempts == [1, 1, 4, 1]
        assert [round(record.at, 1) for record in emulator.requests] == [0, 0, 0, 0.3, 0.9, 2.1, 2.1]


async def test_a_throttle_counts_a_sliding_second_and_only_what_it_let_through():
    async with platform(Fault(effect=Throttle(per_second=2)), retry=ONCE) as (emulator, client):
        passed = []
        for pause in (0, 0.5, 0, 0.25, 0.25, 0, 0.5):
            await emulator.clock.sleep(pause)
            try:
                await client.send(SearchPublicGroups())
            except Throttled:
                passed.append(False)
            else:
                passed.append(True)
        assert passed == [True, True, False, False, True, False, True]  # at 0, 0.5, 0.5, 0.75, 1, 1, 1.5 s


async def test_a_fixed_latency_is_that_long_each_time():
    async with platform(Fault(effect=Latency(0.25))) as (emulator, client):
        exchange = await client.exchange(SearchPublicGroups())
        assert exchange.elapsed == 0.25
        await client.send(SearchPublicGroups())
        assert emulator.clock.elapsed == 0.5


@pytest.mark.parametrize(("seconds", "sigma"), [(0.08, 0.5), (2.0, 1.0)])
def test_a_spread_latency_is_log_normal_around_its_median(seconds, sigma):
    faults = Faults(EmulatedClock(), seed=7)
    faults.add(Fault(effect=Latency(seconds, sigma)))
    delays = [faults.next_injection(None).delay for _ in range(4001)]
    assert median(delays) == pytest.approx(seconds, rel=0.1)
    assert stdev(map(math.log, delays)) == pytest.approx(sigma, rel=0.1)


async def test_an_answer_that_comes_too_late_has_taken_effect_all_the_same():
    async with platform(Fault(effect=Latency(12)), timeout=2, retry=ONCE) as (emulator, client):
        with pytest.raises(Unanswered, match="within 2 s"):
            await client.send(INVITE)
        assert emulator.clock.elapsed == 2
        assert members(emulator) == ["admin", "1001"]


# ----------------------------------------------------------------------------------------- which requests meet a fault


async def troubled(client, emulator, op, times=12):
    """Send the operation so often and return the numbers (from 1) of the requests that met trouble."""
    for _ in range(times):
        await client.send(op)
    return [record.number for record in emulator.requests if record.trouble]


@pytest.mark.parametrize(
    ("choice", "numbers"),
    [
        ({}, [*range(1, 13)]),
        ({"nth": [2, 5]}, [2, 5]),
        ({"every": 5}, [5, 10]),
        ({"times": 3}, [1, 2, 3]),
        ({"every": 2, "times": 2}, [2, 4]),
        ({"times": 0}, []),
        ({"probability": 0.0}, []),
        ({"operation": SearchPublicGroups, "nth": [12]}, [12]),
        ({"operation": "SearchPublicGroups", "nth": [1]}, [1]),
        ({"operation": "CreateGroup"}, []),
        ({"operation": "NoSuchOperation"}, []),
    ],
)
async def test_faults_pick_requests_by_number_count_and_operation(choice, numbers):
    async with platform(Fault(effect=Latency(0.1), **choice)) as (emulator, client):
        assert await troubled(client, emulator, SearchPublicGroups()) == numbers


async def test_a_probability_is_a_share_of_the_requests():
    async with platform(Fault(effect=Latency(0.1), probability=0.3)) as (emulator, client):
        assert len(await troubled(client, emulator, SearchPublicGroups(), 500)) == pytest.approx(150, abs=40)


def test_each_fault_of_a_plan_has_a_chance_of_its_own_and_a_seed_decides_them_all():
    def drawn(seed):
        faults = Faults(EmulatedClock(), seed)
        faults.add(Fault(effect=ResetBefore(), probability=0.5), Fault(effect=ResetAfter(), probability=0.5))
        return [faults.next_injection(None).names for _ in range(200)]

    assert len(set(drawn(1))) == 4  # none, the one, the other, both
    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize(
    "match",
    [
        {"group_id": ID, "members": ("1001",)},
        {"members": ["1001"]},  # as JSON writes it
        {"needs_confirmation": False, "user_name": None, "members": ["1001"]},
        lambda op: op.members == ("1001",),
    ],
)
async def test_faults_pick_requests_by_what_they_say(match):
    async with platform(Fault(effect=Latency(0.1), operation=InviteJoinGroup, match=match)) as (emulator, client):
        for op in (INVITE, InviteJoinGroup(group_id=ID, members=["1002"]), SearchPublicGroups(), INVITE):
            await client.send(op)
        assert [bool(record.trouble) for record in emulator.requests] == [True, False, False, True]


async def test_a_field_that_an_operation_does_not_have_matches_nothing_not_even_none():
    async with platform(Fault(effect=Latency(0.1), match={"declared": None})) as (emulator, client):
        for op in (SearchPublicGroups(), JoinGroup(group_id=ID, user_name="1")):
            await client.send(op)
        assert [bool(record.trouble) for record in emulator.requests] == [False, True]


@pytest.mark.parametrize(
    ("choice", "met"), [({}, True), ({"operation": CreateGroup}, False), ({"match": lambda _: True}, False)]
)
def test_a_request_that_cannot_be_read_meets_only_faults_that_do_not_ask_what_it_is(choice, met):
    emulator = Emulator(clock=EmulatedClock())
    emulator.faults.add(Fault(effect=Status(503), **choice))
    served = emulator.platform.serve("POST", "/2013-12-26/Application/a/IM/Group/CreateGroup", {}, {}, b"")
    assert served.response.status == (503 if met else 200)
    (record,) = emulator.requests
    assert (record.operation, record.code, record.effect) == (None, None if met else "111109", False)


# ----------------------------------------------------------------------------------------------------- several at once


def verdict_of(*effects):
    faults = Faults(EmulatedClock())
    faults.add(*(Fault(effect=effect) for effect in effects))
    return faults.next_injection(None)


def test_faults_add_up_in_the_order_of_the_plan():
    slow = verdict_of(Latency(1), Latency(2), SlowBody(3), SlowBody(0.5))
    assert (slow.delay, slow.body_time, slow.names) == (3, 3.5, ("delay", "body_time"))
    assert verdict_of(Status(500, retry_after=3), Status(503)) == Injection(status=503)
    both = verdict_of(ResetAfter(), Code("160016", "忙"), Latency(1))
    assert both == Injection(delay=1, reset_after=True, code="160016", message="忙")
    assert both.names == ("delay", "reset_after", "code")


@pytest.mark.parametrize(
    ("effect", "names", "spares", "silent"),
    [
        (Latency(0), (), False, False),
        (Latency(1), ("delay",), False, False),
        (Latency(1, 0.5), ("delay",), False, False),
        (SlowBody(1), ("body_time",), False, False),
        (Status(503), ("status",), True, True),
        (Status(503, 2), ("status", "retry_after"), True, True),
        (Code("160016"), ("code",), True, False),
        (Throttle(0), ("status",), True, True),
        (Throttle(0, 1, "160016"), ("code", "retry_after"), True, False),
        (Throttle(1), (), False, False),
        (Refuse(), ("refuse",), True, True),
        (ResetBefore(), ("reset_before",), True, True),
        (ResetAfter(), ("reset_after",), False, False),
        (CutShort(0), ("keep",), False, False),
        (InvalidJson(), ("invalid_json",), False, False),
        (DuplicateFields(), ("duplicate_fields",), False, False),
    ],
    ids=repr,
)
def test_a_verdict_names_what_is_out_of_the_ordinary_and_says_what_it_spares(effect, names, spares, silent):
    verdict = verdict_of(effect)
    assert (verdict.names, verdict.prevents_effect, verdict.prevents_code) == (names, spares, silent)


async def test_delay_and_reset_together_reset_late_and_act_at_once():
    async with platform(Fault(effect=Latency(1)), Fault(effect=ResetAfter()), retry=ONCE) as (emulator, client):
        with pytest.raises(Unanswered, match="reset"):
            await client.send(INVITE)
        assert emulator.clock.elapsed == 1
        assert members(emulator) == ["admin", "1001"]
        assert [record.at for record in emulator.requests] == [0]


async def test_a_code_that_is_lost_on_the_way_is_what_the_platform_answered_and_the_client_never_heard():
    async with platform(Fault(effect=Code("160016")), Fault(effect=ResetAfter()), retry=ONCE) as (emulator, client):
        with pytest.raises(Unanswered):
            await client.send(INVITE)
        assert codes(emulator) == ["160016"]
        assert members(emulator) == ["admin"]


# ------------------------------------------------------------------------------------------------------------ the plan


async def test_a_plan_is_listed_extended_and_cleared_while_it_runs():
    first, second = Fault(effect=Latency(1), times=1), Fault(effect=Status(503), operation=CreateGroup)
    async with platform(first, retry=ONCE) as (emulator, client):
        emulator.faults.add(second)
        assert list(emulator.faults) == [first, second]
        with pytest.raises(ProtocolError):
            await client.send(CREATE)
        emulator.faults.clear()
        assert list(emulator.faults) == []
        await client.send(CREATE)
        assert emulator.clock.elapsed == 1


async def test_faults_are_values_that_many_emulators_can_share():
    plan = Fault(effect=Throttle(per_second=1), times=2), Fault(effect=Latency(0.01, 1.0), probability=0.5)
    results = []
    for _ in range(2):
        async with platform(*plan, retry=ONCE) as (emulator, client):
            for _ in range(5):
                with suppress(Throttled):
                    await client.send(SearchPublicGroups())
            results.append(emulator.requests.trace())
            assert ["status" in record.trouble for record in emulator.requests] == [False, True, True, False, False]
    assert results[0] == results[1]
    assert plan[0] == Fault(effect=Throttle(per_second=1), times=2)


# --------------------------------------------------------------------------------------- same seed, same trace

ROUGH = (
    Fault(effect=Latency(0.05, 0.8)),
    Fault(effect=ResetBefore(), probability=0.05),
    Fault(effect=ResetAfter(), probability=0.05),
    Fault(effect=Refuse(), probability=0.05),
    Fault(effect=CutShort(), probability=0.03),
    Fault(effect=InvalidJson(), probability=0.03),
    Fault(effect=Status(503, retry_after=1), probability=0.03),
    Fault(effect=Code("160016"), probability=0.03),
    Fault(effect=Throttle(per_second=15, retry_after=1)),
    Fault(effect=Latency(15), operation=InviteJoinGroup, probability=0.03),
)


def some_operation(chance):
    group_id = f"g8000004983729{chance.randint(1, 6)}"
    account = f"100{chance.randint(0, 9)}"
    return chance.choice(
        [
            CreateGroup(name=f"群{account}", type=GroupType.TEMPORARY, permission=chance.choice(list(Permission))),
            InviteJoinGroup(group_id=group_id, members=[account, "张三"], needs_confirmation=chance.random() < 0.2),
            JoinGroup(group_id=group_id, user_name=account),
            LogoutGroup(group_id=group_id, user_name=account),
            QueryGroupDetail(group_id=group_id),
            SearchPublicGroups(name="群"),
        ]
    )


async def rough_ride(seed, requests=150):
    """Send random operations through rough weather; return the platform's trace and all that the client learned."""
    chance, learned = Random("the same work each time"), []
    jitter = Retry(random=Random("the same pauses each time").random)
    async with platform(*ROUGH, seed=seed, group=False, retry=jitter) as (emulator, client):
        for _ in range(requests):
            try:
                exchange = await client.exchange(some_operation(chance))
            except RbimError as error:
                learned.append((type(error), str(error), error.outcome, error.attempts))
            else:
                learned.append((exchange.answer, exchange.response, exchange.attempts, exchange.elapsed))
        return emulator.requests.trace(), learned


async def test_the_same_seed_gives_the_same_trace_to_the_byte_and_the_same_history_to_the_client():
    first, second, other = [await rough_ride(seed) for seed in (1, 1, 2)]
    assert first == second
    assert other[0] != first[0]
    assert other[1] != first[1]
    met = {name for line in first[0].splitlines() for name in json.loads(line)["trouble"]}
    assert met >= {"delay", "refuse", "reset_before", "reset_after", "status", "code", "keep", "invalid_json"}
    assert any("outcome unknown" in str(fact) for history in first[1] for fact in history)


def test_the_same_seed_gives_the_same_trace_in_other_processes_with_other_hashes():
    command = [sys.executable, "-c", "import test_requests; print(test_requests.digest())"]
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(TESTS)}
        done = subprocess.run(
            command, env=environment, cwd=Path(__file__).parent, capture_output=True, timeout=60, text=True, check=False
        )
        assert (done.stdout, done.stderr) == (digest() + "\n", "")


def digest():
    trace, _ = anyio.run(partial(rough_ride, 1, requests=60))
    return hashlib.sha256(trace).hexdigest()


# --------------------------------------------------------------------------------------------------------- documents


def test_a_document_names_effects_operations_and_values():
    document = [
        {"effect": {"kind": "latency", "seconds": 0.1, "sigma": 0.5}},
        {"effect": {"kind": "slow_body", "seconds": 2}, "every": 3},
        {"effect": {"kind": "status", "status": 503, "retry_after": 2}, "probability": 0.5},
        {"effect": {"kind": "code", "code": "160016"}, "operation": "CreateGroup", "nth": [2, 4]},
        {"effect": {"kind": "throttle", "per_second": 5, "retry_after": 1, "code": "160016"}},
        {"effect": {"kind": "refuse"}, "times": 1},
        {"effect": {"kind": "reset_before"}, "operation": None},
        {"effect": {"kind": "reset_after"}, "operation": "InviteJoinGroup", "match": {"members": ["1001"], "group_id": ID}},
        {"effect": {"kind": "cut_short", "keep": 0.25}},
        {"effect": {"kind": "cut_short"}},
        {"effect": {"kind": "invalid_json"}},
        {"effect": {"kind": "duplicate_fields"}},
    ]
    assert faults_from(document) == (
        Fault(effect=Latency(0.1, 0.5)),
        Fault(effect=SlowBody(2), every=3),
        Fault(effect=Status(503, 2), probability=0.5),
        Fault(effect=Code("160016"), operation=CreateGroup, nth=(2, 4)),
        Fault(effect=Throttle(5, 1, "160016")),
        Fault(effect=Refuse(), times=1),
        Fault(effect=ResetBefore()),
        Fault(effect=ResetAfter(), operation=InviteJoinGroup, match={"members": ("1001",), "group_id": ID}),
        Fault(effect=CutShort(0.25)),
        Fault(effect=CutShort(0.5)),
        Fault(effect=InvalidJson()),
        Fault(effect=DuplicateFields()),
    )
    assert faults_from([]) == ()


OK = {"effect": {"kind": "refuse"}}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (None, "must be a list, not NoneType @ $"),
        ({}, "must be a list, not dict @ $"),
        ("refuse", "must be a list, not str @ $"),
        ([OK, 1], "must be an object, not int @ $[1]"),
        ([{}], "required field missing @ $[0].effect"),
        ([{"effect": "refuse"}], "must be an object, not str @ $[0].effect"),
        ([{"effect": {}}], "kind: '' is not one of latency, slow_body, status, "),
        ([{"effect": {"kind": "late"}}], "kind: 'late' is not one of latency, slow_body, status, "),
        ([{"effect": {"kind": ["refuse"]}}], "kind: \"['refuse']\" is not one of "),
        ([{"effect": {"kind": "latency"}}], "required field missing @ $[0].effect.seconds"),
        ([{"effect": {"kind": "latency", "seconds": "soon"}}], "must be a number, not 'soon' @ $[0].effect.seconds"),
        ([{"effect": {"kind": "latency", "seconds": "2"}}], "must be a number, not '2' @ $[0].effect.seconds"),
        ([{"effect": {"kind": "latency", "seconds": True}}], "must be a number, not True @ $[0].effect.seconds"),
        (
            [{"effect": {"kind": "latency", "seconds": 10**400}}],
            "must be a number that a float can hold @ $[0].effect.seconds",
        ),
        (
            [{"effect": {"kind": "latency", "seconds": 1e308}}],
            "seconds: must be 0 to 1,000,000,000, not 1e+308 @ $[0].effect",
        ),
        (
            [{"effect": {"kind": "latency", "seconds": 1, "sigma": 1e308}}],
            "sigma: must be 0 to 10, not 1e+308 @ $[0].effect",
        ),
        ([{"effect": {"kind": "status", "status": "503"}}], "must be a whole number, not '503' @ $[0].effect.status"),
        ([{"effect": {"kind": "status", "status": 503.9}}], "must be a whole number, not 503.9 @ $[0].effect.status"),
        ([{"effect": {"kind": "code", "code": None}}], "must be a text, not None @ $[0].effect.code"),
        ([{"effect": {"kind": "code", "code": 900404}}], "must be a text, not 900404 @ $[0].effect.code"),
        ([{"effect": {"kind": "latency", "seconds": -1}}], "seconds: must be 0 to 1,000,000,000, not -1.0 @ $[0].effect"),
        (
            [{"effect": {"kind": "latency", "seconds": float("nan")}}],
            "seconds: must be 0 to 1,000,000,000, not nan @ $[0].effect",
        ),
        ([{"effect": {"kind": "slow_body", "seconds": -1}}], "seconds: must be 0 to 1,000,000,000, not -1.0 @ $[0].effect"),
        ([{"effect": {"kind": "status", "status": 99}}], "status: must be 200 to 599, not 99 @ $[0].effect"),
        (
            [{"effect": {"kind": "status", "status": 503, "retry_after": -1}}],
            "retry_after: must be 0 to 1,000,000,000, not -1",
        ),
        ([{"effect": {"kind": "throttle", "per_second": -1}}], "per_second: must be at least 0, not -1 @ $[0].effect"),
        ([{"effect": {"kind": "throttle", "per_second": 1, "recent": []}}], "extra fields found (recent) @ $[0].effect"),
        ([{"effect": {"kind": "cut_short", "keep": 1.5}}], "keep: must be 0 to 1, not 1.5 @ $[0].effect"),
        ([{"effect": {"kind": "refuse", "keep": 1}}], "extra fields found (keep) @ $[0].effect"),
        ([OK | {"operator": "CreateGroup"}], "extra fields found (operator) @ $[0]"),
        ([OK | {"operation": "MakeGroup"}], "operation: 'MakeGroup' is not one of CreateGroup, ModifyGroup, "),
        ([OK | {"nth": 2}], "must be a list, not int @ $[0].nth"),
        ([OK | {"nth": "12"}], "must be a list, not str @ $[0].nth"),
        ([OK | {"nth": [1.5]}], "must be a whole number, not 1.5 @ $[0].nth"),
        ([OK | {"times": True}], "must be a whole number, not True @ $[0].times"),
        ([OK | {"every": 2.7}], "must be a whole number, not 2.7 @ $[0].every"),
        ([OK | {"nth": ["x"]}], "must be a whole number, not 'x' @ $[0].nth"),
        ([OK | {"nth": [1, 0]}], "nth: must be at least 1, not 0 @ $[0]"),
        ([OK | {"every": 0}], "every: must be at least 1, not 0 @ $[0]"),
        ([OK | {"probability": 2}], "probability: must be 0 to 1, not 2.0 @ $[0]"),
        ([OK | {"times": -1}], "times: must be at least 0, not -1 @ $[0]"),
        ([OK | {"match": "1001"}], "must be an object, not str @ $[0].match"),
        ([OK | {"match": {"groupId": ID}}], "match: 'groupId' is not one of user_name, name, "),
        (
            [OK | {"operation": "DeleteGroup", "match": {"members": []}}],
            "match: 'members' is not one of user_name, group_id @ $[0]",
        ),
        ([OK | {"every": 0}, {}], "every: must be at least 1, not 0 @ $[0]; required field missing @ $[1].effect"),
    ],
)
def test_a_document_that_makes_no_sense_is_refused_with_what_and_where(document, says):
    with pytest.raises(InvalidRequest) as caught:
        faults_from(document)
    assert says in caught.value.message
    assert caught.value.field == "faults"


def test_a_fault_written_in_python_is_checked_as_well():
    for wrong in (lambda: Latency(-1), lambda: Status(0), lambda: CutShort(2), lambda: Throttle(-1), lambda: SlowBody(-0.1)):
        with pytest.raises(InvalidRequest, match="not"):
            wrong()
    with pytest.raises(InvalidRequest, match="nth: must be at least 1"):
        Fault(effect=Refuse(), nth=[0])
