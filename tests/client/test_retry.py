"""Whether, when and how often failed attempts are repeated: first the decisions alone, then the client that follows them."""

from itertools import pairwise

import pytest
from anyio import create_task_group
from attrs import evolve
from hypothesis import given, strategies as st

from helpers.stubs import (
    ALREADY_MEMBER,
    BUSY,
    CONVERGING,
    EXPIRED,
    FULL_PAUSES,
    GARBAGE,
    INVITE,
    NEVER,
    NO_PAUSES,
    OK,
    READ,
    REFUSED,
    Stub,
    answer,
    client_over,
    failing,
    waits,
)
from rbim import (
    AlreadyMember,
    AnswerTooLarge,
    ApiError,
    Attempt,
    AuthenticationError,
    CallbackRejected,
    ClientClosed,
    Code,
    CreateGroup,
    DeadlineExceeded,
    DeleteGroup,
    Dialect,
    Grade,
    GroupType,
    InvalidRequest,
    InviteJoinGroup,
    Limits,
    LogoutGroup,
    NotFound,
    NotMember,
    NotSent,
    Outcome,
    ProtocolError,
    QueryGroupDetail,
    Rate,
    RbimError,
    Repeat,
    Retry,
    Role,
    SearchPublicGroups,
    ServerTrouble,
    SetMemberRole,
    Success,
    Throttled,
    TimestampExpired,
    TransportError,
    Unanswered,
)
from rbim.client.retry import RetryBudget

OPERATIONS = {Repeat.SAFE: READ, Repeat.IDEMPOTENT: CONVERGING, Repeat.NEVER: NEVER}
BEFORE = {
    "160016": Code(error=Throttled, grade=Grade.GUESS, note="said to come before anything is done", before_effect=True)
}

AGAIN, NO = True, False
TABLE = [  # what an attempt ended with; and whether it is repeated by who reads freely, converges, must never be repeated
    (NotSent("dns"), AGAIN, AGAIN, AGAIN),
    (Unanswered("reset"), AGAIN, AGAIN, NO),
    (AnswerTooLarge("too large"), AGAIN, AGAIN, NO),
    (TransportError("lost"), AGAIN, AGAIN, NO),
    (ProtocolError("not JSON", status=200), AGAIN, AGAIN, NO),
    (ProtocolError("not JSON", status=502), AGAIN, AGAIN, NO),
    (ServerTrouble(code="529999"), AGAIN, AGAIN, NO),
    (ApiError(code="999123", status=503, outcome=Outcome.UNKNOWN), AGAIN, AGAIN, NO),
    (Throttled(code="160016"), AGAIN, AGAIN, NO),
    (Throttled(code="160016", status=429), AGAIN, AGAIN, AGAIN),
    (Throttled(status=429), AGAIN, AGAIN, AGAIN),
    (Throttled(code="160016", status=503, outcome=Outcome.UNKNOWN), AGAIN, AGAIN, NO),
    (TimestampExpired(code="161106"), AGAIN, AGAIN, AGAIN),
    (AuthenticationError(code="111109"), NO, NO, NO),
    (AuthenticationError(status=401), NO, NO, NO),
    (NotFound(status=404), NO, NO, NO),
    (AlreadyMember(code="590017"), NO, NO, NO),
    (NotMember(code="560072"), NO, NO, NO),
    (ApiError(code="999123"), NO, NO, NO),
    (InvalidRequest("too long"), NO, NO, NO),
    (DeadlineExceeded("late", outcome=Outcome.NOT_SENT), NO, NO, NO),
    (DeadlineExceeded("late", outcome=Outcome.UNKNOWN), NO, NO, NO),
    (ClientClosed("closed", outcome=Outcome.UNKNOWN), NO, NO, NO),
    (CallbackRejected("not authentic"), NO, NO, NO),
]
CELLS = [
    pytest.param(error, repeat, row[place], id=f"{error!r}-{repeat}")
    for error, *row in TABLE
    for place, repeat in enumerate((Repeat.SAFE, Repeat.IDEMPOTENT, Repeat.NEVER))
]


def with_history(error: RbimError, *codes: str) -> RbimError:
    """Give an error the attempts that ended with these codes."""
    error.attempts = tuple(Attempt(number=number, elapsed=0.1, code=code or None) for number, code in enumerate(codes, 1))
    return error


@pytest.mark.parametrize(("error", "repeat", "again"), CELLS)
def test_what_decides_is_the_outcome_and_how_the_operation_may_be_repeated(error, repeat, again):
    op = OPERATIONS[repeat]
    assert op.repeat is repeat
    assert (Retry().pause(op, error, 1) is not None) is again


@pytest.mark.parametrize(
    ("op", "again"),
    [
        (SearchPublicGroups(name="x"), AGAIN),
        (QueryGroupDetail(group_id="g"), AGAIN),
        (DeleteGroup(group_id="g"), AGAIN),
        (LogoutGroup(group_id="g"), AGAIN),
        (InviteJoinGroup(group_id="g", members=["u"]), AGAIN),
        (InviteJoinGroup(group_id="g", members=["u"], needs_confirmation=True), NO),
        (SetMemberRole(group_id="g", member="u", role=Role.MEMBER), AGAIN),
        (SetMemberRole(group_id="g", member="u", role=Role.CREATOR), NO),
        (CreateGroup(name="x", type=GroupType.TEMPORARY), NO),
    ],
)
def test_values_of_an_operation_decide_too(op, again):
    assert (Retry().pause(op, Unanswered("reset"), 1) is not None) is again


def test_throttling_before_any_effect_is_repeated_whatever_the_operation():
    throttled = Throttled(code="160016")
    assert Retry().pause(NEVER, throttled, 1, BEFORE) is not None
    assert Retry().pause(NEVER, Throttled(code="160001"), 1, BEFORE) is None


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_there_are_no_more_attempts_than_said(attempts):
    retry = Retry(attempts=attempts)
    assert [retry.pause(READ, NotSent("dns"), number) is not None for number in range(1, 8)] == [
        number < attempts for number in range(1, 8)
    ]


@pytest.mark.parametrize("op", OPERATIONS.values(), ids=OPERATIONS)
def test_an_expired_timestamp_is_signed_again_at_once_and_only_once(op):
    retry = Retry(attempts=9, random=lambda: 1.0)
    assert retry.pause(op, with_history(TimestampExpired(code="161106"), "161106"), 1) == 0
    assert retry.pause(op, with_history(TimestampExpired(code="161106"), "161106", "161106"), 2) is None
    assert retry.pause(op, with_history(TimestampExpired(code="161106"), "161106", "", "161106"), 3) is None
    assert retry.pause(op, with_history(TimestampExpired(code="161106"), "", "161106"), 2) == 0


@pytest.mark.parametrize("kind", [TimestampExpired, Throttled])
def test_a_code_with_a_server_error_does_not_let_what_must_not_be_repeated_go_again(kind):
    uncertain = with_history(kind(code="160016", status=500, outcome=Outcome.UNKNOWN), "160016")
    assert Retry().pause(NEVER, uncertain, 1, BEFORE) is None
    assert Retry().pause(READ, uncertain, 1, BEFORE) is not None


def test_pauses_double_up_to_the_cap_and_are_drawn_from_nothing_to_all_of_it():
    ceilings = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    for share in (0.0, 0.25, 1.0):
        retry = Retry(attempts=99, random=lambda share=share: share)
        pauses = [retry.pause(READ, NotSent("dns"), number) for number in range(1, 8)]
        assert pauses == pytest.approx([share * ceiling for ceiling in ceilings])


@given(base=st.floats(0.001, 10), cap=st.floats(0.001, 60), attempt=st.integers(1, 5000), share=st.floats(0, 1))
def test_no_pause_is_negative_or_longer_than_the_cap_however_many_attempts(base, cap, attempt, share):
    retry = Retry(attempts=10_000, base=base, cap=cap, random=lambda: share)
    assert 0 <= retry.pause(READ, NotSent("dns"), attempt) <= cap


def test_pauses_are_random_unless_told_otherwise():
    assert len({Retry().pause(READ, NotSent("dns"), 1) for _ in range(20)}) > 15


@pytest.mark.parametrize(
    "error",
    [
        Throttled(code="160016", retry_after=7.0),
        ProtocolError("down", status=503, retry_after=7.0),
        ServerTrouble(code="529999", retry_after=7.0),
    ],
    ids=repr,
)
def test_what_the_platform_asks_to_wait_is_waited_in_full_and_jitter_on_top(error):
    assert Retry(random=lambda: 0.0).pause(READ, error, 1) == 7.0
    assert Retry(random=lambda: 1.0).pause(READ, error, 1) == pytest.approx(7.2)


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"base": 0}, {"cap": -1}, {"base": float("nan")}, {"cap": float("nan")}]
)
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        Retry(**options)


@given(moves=st.lists(st.booleans(), max_size=400), share=st.floats(0, 1), reserve=st.integers(0, 20))
def test_a_budget_pays_for_no_more_than_its_reserve_and_what_was_earned(moves, share, reserve):
    budget = RetryBudget(share=share, reserve=reserve)
    spent = earned = 0
    for earn in moves:
        if earn:
            budget.earn()
            earned += 1
        else:
            spent += budget.spend()
        assert spent <= reserve + share * earned + 1e-6


def test_a_budget_saves_up_no_more_than_its_reserve():
    budget = RetryBudget(share=0.5, reserve=3)
    for _ in range(1000):
        budget.earn()
    assert [budget.spend() for _ in range(5)] == [True, True, True, False, False]
    budget.earn()
    budget.earn()
    assert [budget.spend() for _ in range(2)] == [True, False]


# The client does as decided.

WIRE = [  # what the transport answers; and how many requests leave for who reads, converges, must never be repeated
    (NotSent, 3, 3, 3),
    (Unanswered, 3, 3, 1),
    (AnswerTooLarge, 3, 3, 1),
    (GARBAGE, 3, 3, 1),
    (answer("529999"), 3, 3, 1),
    (answer("999123", status=500), 3, 3, 1),
    (BUSY, 3, 3, 1),
    (answer("160016", status=429), 3, 3, 3),
    (answer("", status=429), 3, 3, 3),
    (answer("529999", status=429), 3, 3, 1),
    (answer("", status=408), 3, 3, 1),
    (answer("999123", status=408), 3, 3, 1),
    (EXPIRED, 2, 2, 2),
    (answer("111109"), 1, 1, 1),
    (answer("900404"), 1, 1, 1),
    (REFUSED, 1, 1, 1),
    (answer("", status=400), 1, 1, 1),
]


@pytest.mark.parametrize(
    ("step", "repeat", "requests"),
    [
        pytest.param(step, repeat, row[place], id=f"{getattr(step, '__name__', step)}-{repeat}")
        for step, *row in WIRE
        for place, repeat in enumerate((Repeat.SAFE, Repeat.IDEMPOTENT, Repeat.NEVER))
    ],
)
async def test_as_many_requests_leave_as_the_table_says(step, repeat, requests):
    stub = Stub(step)
    async with client_over(stub) as client:
        with pytest.raises(RbimError) as caught:
            await client.send(OPERATIONS[repeat])
    assert len(stub.requests) == requests
    assert [made.number for made in caught.value.attempts] == list(range(1, requests + 1))


async def test_a_code_known_to_come_before_any_effect_lets_even_a_join_be_repeated():
    stub = Stub(BUSY, OK)
    async with client_over(stub, dialect=Dialect(codes=BEFORE)) as client:
        assert await client.send(NEVER) == Success()
    assert len(stub.requests) == 2


@pytest.mark.parametrize(
    ("share", "times"), [(0.0, [0, 0, 0, 0]), (0.5, [0, 0.1, 0.3, 0.7]), (1.0, [0, 0.2, 0.6, 1.4])], ids=str
)
async def test_the_client_pauses_between_attempts_for_as_long_as_was_drawn(share, times):
    stub = Stub(NotSent, Unanswered, GARBAGE, OK)
    async with client_over(stub, retry=Retry(attempts=4, random=lambda: share)) as client:
        await client.send(READ)
    assert stub.times == pytest.approx(times)


@pytest.mark.parametrize("asked", ["3", "Fri, 02 Jan 2026 03:04:08 GMT"])
async def test_a_retry_after_in_seconds_or_as_a_date_is_waited_for(asked):
    stub = Stub(answer("160016", status=429, retry_after=asked), OK)
    async with client_over(stub) as client:
        await client.send(NEVER)
    assert stub.times == pytest.approx([0, 3.2])


async def test_a_pause_that_the_deadline_does_not_allow_is_not_begun():
    stub = Stub(Unanswered, answer("160016", retry_after="60"), OK)
    async with client_over(stub, deadline=30) as client:
        with pytest.raises(Throttled) as caught:
            await client.send(READ)
    assert stub.clock.elapsed == pytest.approx(0.2)
    assert [made.error for made in caught.value.attempts] == ["Unanswered", "Throttled"]
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_after_an_expired_timestamp_the_request_is_signed_afresh():
    stub = Stub(waits(2, EXPIRED), OK)
    async with client_over(stub) as client:
        await client.send(NEVER)
    first, second = stub.requests
    assert first.query["sig"] != second.query["sig"]
    assert first.headers["Authorization"] != second.headers["Authorization"]
    assert first.body == second.body


@pytest.mark.parametrize(
    ("script", "requests"),
    [((EXPIRED, EXPIRED, OK), 2), ((EXPIRED, NotSent, EXPIRED, OK), 3), ((NotSent, EXPIRED, OK), 3)],
)
async def test_a_timestamp_that_expires_twice_is_not_signed_a_third_time(script, requests):
    stub = Stub(*script)
    async with client_over(stub, retry=Retry(attempts=9)) as client:
        if script[requests - 1] is OK:
            await client.send(READ)
        else:
            with pytest.raises(TimestampExpired):
                await client.send(READ)
    assert len(stub.requests) == requests


async def test_a_storm_of_failures_does_not_become_a_storm_of_retries():
    stub = Stub(NotSent)
    errors = []

    async def call(client):
        with pytest.raises(NotSent) as caught:
            await client.send(READ)
        errors.append(caught.value)

    async with client_over(stub, retry=NO_PAUSES) as client, create_task_group() as tasks:
        for _ in range(1000):
            tasks.start_soon(call, client)
    retries = len(stub.requests) - 1000
    assert retries <= 50 + 0.2 * 1000
    assert retries >= 50
    short = [error for error in errors if len(error.attempts) < 3]
    assert short
    assert all("retry budget is spent" in error.__notes__[0] for error in short)
    assert not any(hasattr(error, "__notes__") for error in errors if len(error.attempts) == 3)


async def test_calls_that_go_well_earn_the_budget_back():
    stub = Stub(NotSent)
    async with client_over(stub, retry=NO_PAUSES) as client:
        for _ in range(60):
            with pytest.raises(NotSent):
                await client.send(READ)
        poor = len(stub.requests)
        with pytest.raises(NotSent):
            await client.send(READ)
        assert len(stub.requests) - poor < 3
        stub.then(OK)
        for _ in range(20):
            await client.send(READ)
        stub.then(NotSent, NotSent, OK)
        assert len((await client.exchange(READ)).attempts) == 3


# What is known of a call is what is known of its least certain attempt.


@pytest.mark.parametrize(
    ("script", "kind", "outcome"),
    [
        ((NotSent,), NotSent, Outcome.NOT_SENT),
        ((NotSent, REFUSED), ApiError, Outcome.REFUSED),
        ((Unanswered, REFUSED), ApiError, Outcome.UNKNOWN),
        ((GARBAGE, NotSent, REFUSED), ApiError, Outcome.UNKNOWN),
        ((Unanswered, NotSent), NotSent, Outcome.UNKNOWN),
        ((BUSY, NotSent), NotSent, Outcome.REFUSED),
        ((NotSent, NotSent, Unanswered), Unanswered, Outcome.UNKNOWN),
        ((answer("999123", status=500), answer("111109")), AuthenticationError, Outcome.UNKNOWN),
    ],
)
async def test_the_calls_outcome_is_the_least_certain_of_its_attempts(script, kind, outcome):
    async with client_over(Stub(*script)) as client:
        with pytest.raises(kind) as caught:
            await client.send(CONVERGING)
    assert caught.value.outcome is outcome
    assert caught.value.operation == "DeleteGroup"


async def test_an_error_tells_the_history_of_its_call():
    stub = Stub(NotSent, waits(1.5, GARBAGE), waits(0.25, answer("900404", status=404)))
    async with client_over(stub) as client:
        with pytest.raises(NotFound) as caught:
            await client.send(READ)
    assert [evolve(made, elapsed=0) for made in caught.value.attempts] == [
        Attempt(number=1, elapsed=0, outcome=Outcome.NOT_SENT, error="NotSent"),
        Attempt(number=2, elapsed=0, status=502, outcome=Outcome.UNKNOWN, error="ProtocolError"),
        Attempt(number=3, elapsed=0, status=404, code="900404", outcome=Outcome.REFUSED, error="NotFound"),
    ]
    assert [made.elapsed for made in caught.value.attempts] == pytest.approx([0, 1.5, 0.25])
    assert str(caught.value).endswith("(3 attempts, outcome unknown)")


@pytest.mark.parametrize("first", [Unanswered, GARBAGE, answer("529999"), waits(10)])
async def test_after_an_attempt_of_unknown_outcome_already_so_means_done(first):
    stub = Stub(first, ALREADY_MEMBER)
    async with client_over(stub) as client:
        exchange = await client.exchange(INVITE)
    assert exchange.confirmed_by_repeat
    assert exchange.answer.fails == ()
    assert [made.outcome for made in exchange.attempts] == [Outcome.UNKNOWN, Outcome.REFUSED]
    assert exchange.response == ALREADY_MEMBER


@pytest.mark.parametrize("script", [(ALREADY_MEMBER,), (NotSent, ALREADY_MEMBER), (BUSY, ALREADY_MEMBER)])
async def test_without_one_already_so_is_a_refusal(script):
    async with client_over(Stub(*script)) as client:
        with pytest.raises(AlreadyMember) as caught:
            await client.send(INVITE)
    assert caught.value.outcome is Outcome.REFUSED


@pytest.mark.parametrize("between", [NotSent, BUSY])
async def test_an_unknown_outcome_is_not_forgotten_over_later_attempts(between):
    async with client_over(Stub(Unanswered, between, ALREADY_MEMBER)) as client:
        assert (await client.exchange(INVITE)).confirmed_by_repeat


async def test_the_already_so_code_of_another_operation_confirms_nothing():
    async with client_over(Stub(Unanswered, ALREADY_MEMBER)) as client:
        with pytest.raises(AlreadyMember) as caught:
            await client.send(CONVERGING)
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_an_answer_after_retries_is_not_called_confirmed():
    async with client_over(Stub(Unanswered, OK)) as client:
        exchange = await client.exchange(INVITE)
    assert not exchange.confirmed_by_repeat
    assert [made.error for made in exchange.attempts] == ["Unanswered", None]
    assert exchange.attempts[-1].code == "000000"


async def test_the_time_between_attempts_is_spent_outside_the_transport():
    stub = Stub(waits(1, NotSent), waits(1, NotSent), waits(1, OK))
    async with client_over(stub, retry=FULL_PAUSES) as client:
        exchange = await client.exchange(READ)
    assert [later - earlier for earlier, later in pairwise(stub.times)] == pytest.approx([1.2, 1.4])
    assert exchange.elapsed == pytest.approx(3.6)
    assert exchange.waited == 0


@pytest.mark.parametrize("limits", [Limits(), Limits(rates=[Rate(100)])], ids=["places alone", "a rate"])
async def test_each_attempt_is_timed_from_its_own_beginning(limits):
    stub = Stub(waits(1, BUSY), waits(2, BUSY), waits(4, BUSY))
    async with client_over(stub, limits=limits) as client:
        error = await failing(client.send(READ))
    assert [attempt.elapsed for attempt in error.attempts] == pytest.approx([1, 2, 4])
