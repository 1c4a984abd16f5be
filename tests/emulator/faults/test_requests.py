"""Faults of the emulator's plan: what the client reports of each, whether the operation took effect, and how it goes on."""

from contextlib import asynccontextmanager

import pytest

from helpers.stubs import CREDENTIALS, NO_PAUSES, ONCE
from helpers.tables import each_row
from rbim import (
    ApiError,
    AsyncClient,
    AuthenticationError,
    CreateGroup,
    GroupType,
    IntermediaryError,
    InvalidRequest,
    InviteJoinGroup,
    NotSent,
    Outcome,
    ProtocolError,
    QueryGroupDetail,
    RbimError,
    SearchPublicGroups,
    ServerTrouble,
    Throttled,
    TimestampExpired,
    Unanswered,
)
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults import (
    Code,
    CutShort,
    DuplicateFields,
    Fault,
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
    (DuplicateFields(), ProtocolError, "the key 'statusCode' twice", Outcome.UNKNOWN, True, "000000"),
    (InvalidJson(), ProtocolError, "not JSON", Outcome.UNKNOWN, True, "000000"),
    (Status(500), IntermediaryError, "HTTP 500", Outcome.UNKNOWN, False, None),
    (Status(302), IntermediaryError, "HTTP 302", Outcome.REFUSED, False, None),
    (Status(200), IntermediaryError, "HTTP 200", Outcome.UNKNOWN, False, None),
    (Status(429), Throttled, "HTTP 429", Outcome.REFUSED, False, None),
    (Status(404), IntermediaryError, "HTTP 404", Outcome.REFUSED, False, None),
    (Status(401), IntermediaryError, "HTTP 401", Outcome.REFUSED, False, None),
    (Status(418), IntermediaryError, "HTTP 418", Outcome.REFUSED, False, None),
    (Throttle(0), Throttled, "HTTP 429", Outcome.REFUSED, False, None),
    (Throttle(0, code="160016"), Throttled, "code 160016: too many requests", Outcome.REFUSED, False, "160016"),
    (Code("160001", "忙"), Throttled, "code 160001: 忙", Outcome.REFUSED, False, "160001"),
    (Code("111109"), AuthenticationError, "code 111109", Outcome.REFUSED, False, "111109"),
    (Code("161106"), TimestampExpired, "code 161106", Outcome.REFUSED, False, "161106"),
    (Code("529999"), ServerTrouble, "code 529999", Outcome.UNKNOWN, False, "529999"),
    (Code("999999"), ApiError, "code 999999: a fault of the emulator's plan", Outcome.REFUSED, False, "999999"),
]


@each_row("effect, kind, says, outcome, made, code", FAILURES)
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
    harmless = Latency(2), SlowBody(3)
    async with platform(*(Fault(effect=effect, nth=[n]) for n, effect in enumerate(harmless, 1))) as (emulator, client):
        answers = [await client.send(QueryGroupDetail(group_id=ID)) for _ in harmless]
        assert answers[0] == answers[1]
        assert [record.trouble for record in emulator.requests] == [("delay",), ("body_time",)]
        assert emulator.clock.elapsed == 5


# ------------------------------------------------------------------------------------------------ throttling and time


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


# ----------------------------------------------------------------------------------------- which requests meet a fault


async def troubled(client, emulator, op, times=12):
    """Send the operation so often and return the numbers (from 1) of the requests that met trouble."""
    for _ in range(times):
        await client.send(op)
    return [record.number for record in emulator.requests if record.trouble]


@each_row(
    "choice, numbers",
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


@each_row(
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


@each_row("choice, met", [({}, True), ({"operation": CreateGroup}, False), ({"match": lambda _: True}, False)])
def test_a_request_that_cannot_be_read_meets_only_faults_that_do_not_ask_what_it_is(choice, met):
    emulator = Emulator(clock=EmulatedClock())
    emulator.faults.add(Fault(effect=Status(503), **choice))
    served = emulator.platform.serve("POST", "/2013-12-26/Application/a/IM/Group/CreateGroup", {}, {}, b"")
    assert served.response.status == (503 if met else 200)
    (record,) = emulator.requests
    assert (record.operation, record.code, record.effect) == (None, None if met else "111109", False)


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


@each_row(
    "document, says",
    [
        (None, "must be a list, not NoneType @ $"),
        ([OK, 1], "must be an object, not int @ $[1]"),
        ([{"effect": {"kind": "late"}}], "kind: 'late' is not one of latency, slow_body, status, "),
        ([{"effect": {"kind": "latency"}}], "required field missing @ $[0].effect.seconds"),
        ([{"effect": {"kind": "latency", "seconds": "soon"}}], "must be a number, not 'soon' @ $[0].effect.seconds"),
        (
            [{"effect": {"kind": "latency", "seconds": 10**400}}],
            "must be a number that a float can hold @ $[0].effect.seconds",
        ),
        (
            [{"effect": {"kind": "latency", "seconds": 1, "sigma": 1e308}}],
            "sigma: must be 0 to 10, not 1e+308 @ $[0].effect",
        ),
        ([{"effect": {"kind": "status", "status": "503"}}], "must be a whole number, not '503' @ $[0].effect.status"),
        ([{"effect": {"kind": "latency", "seconds": -1}}], "seconds: must be 0 to 1,000,000,000, not -1.0 @ $[0].effect"),
        ([{"effect": {"kind": "throttle", "per_second": 1, "recent": []}}], "extra fields found (recent) @ $[0].effect"),
        ([{"effect": {"kind": "cut_short", "keep": 1.5}}], "keep: must be 0 to 1, not 1.5 @ $[0].effect"),
        ([{"effect": {"kind": "refuse", "keep": 1}}], "extra fields found (keep) @ $[0].effect"),
        ([OK | {"operator": "CreateGroup"}], "extra fields found (operator) @ $[0]"),
        ([OK | {"operation": "MakeGroup"}], "operation: 'MakeGroup' is not one of CreateGroup, ModifyGroup, "),
        ([OK | {"nth": 2}], "must be a list, not int @ $[0].nth"),
        ([OK | {"nth": [1, 0]}], "nth: must be at least 1, not 0 @ $[0]"),
        ([OK | {"every": 0}], "every: must be at least 1, not 0 @ $[0]"),
        ([OK | {"probability": 2}], "probability: must be 0 to 1, not 2.0 @ $[0]"),
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
