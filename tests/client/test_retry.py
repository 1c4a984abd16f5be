"""Whether, when and how often failed attempts are repeated: first the decisions alone, then the client that follows them."""

import pytest
from anyio import create_task_group
from attrs import evolve
from hypothesis import given, strategies as st

from helpers.stubs import (
    ALREADY_MEMBER,
    BUSY,
    CONVERGING,
    EXPIRED,
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
    ending,
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
    DeadlineExceeded,
    Dialect,
    Grade,
    IntermediaryError,
    InvalidRequest,
    NotFound,
    NotMember,
    NotSent,
    Outcome,
    ProtocolError,
    RbimError,
    Repeat,
    Retry,
    ServerTrouble,
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
    (IntermediaryError("a page", status=502), AGAIN, AGAIN, NO),
    (IntermediaryError("redirects", status=301, outcome=Outcome.REFUSED), NO, NO, NO),
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
REPEATS = (Repeat.SAFE, Repeat.IDEMPOTENT, Repeat.NEVER)


def with_history(error: RbimError, *codes: str) -> RbimError:
    """Give an error the attempts that ended with these codes."""
    error.attempts = tuple(Attempt(number=number, elapsed=0.1, code=code or None) for number, code in enumerate(codes, 1))
    return error


def test_what_decides_is_the_outcome_and_how_the_operation_may_be_repeated():
    assert [OPERATIONS[repeat].repeat for repeat in REPEATS] == list(REPEATS)
    wrong = {
        (repr(error), str(repeat)): expected
        for error, *row in TABLE
        for repeat, expected in zip(REPEATS, row, strict=True)
        if (Retry().pause(OPERATIONS[repeat], error, 1) is not None) is not expected
    }
    assert wrong == {}


def test_there_are_no_more_attempts_than_said():
    for attempts in [1, 2, 5]:
        retry = Retry(attempts=attempts)
        assert [retry.pause(READ, NotSent("dns"), number) is not None for number in range(1, 8)] == [
            number < attempts for number in range(1, 8)
        ]


def test_an_expired_timestamp_is_signed_again_at_once_and_only_once():
    for op in OPERATIONS.values():
        retry = Retry(attempts=9, random=lambda: 1.0)
        assert retry.pause(op, with_history(TimestampExpired(code="161106"), "161106"), 1) == 0
        assert retry.pause(op, with_history(TimestampExpired(code="161106"), "161106", "161106"), 2) is None
        assert retry.pause(op, with_history(TimestampExpired(code="161106"), "161106", "", "161106"), 3) is None
        assert retry.pause(op, with_history(TimestampExpired(code="161106"), "", "161106"), 2) == 0


def test_a_code_with_a_server_error_does_not_let_what_must_not_be_repeated_go_again():
    for kind in [TimestampExpired, Throttled]:
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


def test_what_the_platform_asks_to_wait_is_waited_in_full_and_jitter_on_top():
    for error in [
        Throttled(code="160016", retry_after=7.0),
        IntermediaryError("down", status=503, retry_after=7.0),
        ServerTrouble(code="529999", retry_after=7.0),
    ]:
        assert Retry(random=lambda: 0.0).pause(READ, error, 1) == 7.0
        assert Retry(random=lambda: 1.0).pause(READ, error, 1) == pytest.approx(7.2)


def test_settings_that_make_no_sense_are_refused():
    for options in [{"attempts": 0}, {"base": 0}, {"cap": -1}, {"base": float("nan")}, {"cap": float("nan")}]:
        with pytest.raises(InvalidRequest, match=next(iter(options))):
            Retry(**options)


@given(moves=st.lists(st.booleans(), max_size=400), share=st.floats(0, 1), reserve=st.integers(0, 20))
def test_a_budget_pays_for_no_more_than_its_reserve_and_what_was_earned(moves, share, reserve):
    budget = RetryBudget(share=share, reserve=reserve)
    spent = earned = 0
    for earn in moves:
        if earn:
            budget.calls += 1
            earned += 1
        else:
            spent += budget.spend()
        assert spent <= reserve + share * earned + 1e-6


def test_a_budget_saves_up_no_more_than_its_reserve():
    budget = RetryBudget(share=0.5, reserve=3)
    budget.calls += 1000
    assert [budget.spend() for _ in range(5)] == [True, True, True, False, False]
    budget.calls += 2
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


async def test_as_many_requests_leave_as_the_table_says():
    wrong = {}
    for step, *row in WIRE:
        for repeat, requests in zip(REPEATS, row, strict=True):
            stub = Stub(step)
            async with client_over(stub) as client:
                error = await failing(client.send(OPERATIONS[repeat]))
            told = [made.number for made in error.attempts]
            if (len(stub.requests), told) != (requests, list(range(1, requests + 1))):
                wrong[str(step), str(repeat)] = (len(stub.requests), told)
    assert wrong == {}


async def test_a_code_known_to_come_before_any_effect_lets_even_a_join_be_repeated():
    stub = Stub(BUSY, OK)
    async with client_over(stub, dialect=Dialect(codes=BEFORE)) as client:
        assert await client.send(NEVER) == Success()
    assert len(stub.requests) == 2


async def test_the_client_pauses_between_attempts_for_as_long_as_was_drawn():
    for share, times in [(0.0, [0, 0, 0, 0]), (0.5, [0, 0.1, 0.3, 0.7]), (1.0, [0, 0.2, 0.6, 1.4])]:
        stub = Stub(NotSent, Unanswered, GARBAGE, OK)
        async with client_over(stub, retry=Retry(attempts=4, random=lambda share=share: share)) as client:
            await client.send(READ)
        assert stub.times == pytest.approx(times)


async def test_a_retry_after_in_seconds_or_as_a_date_is_waited_for():
    for asked in ["3", "Fri, 02 Jan 2026 03:04:08 GMT"]:
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


async def test_nor_is_one_that_leaves_less_time_than_an_attempt_needs():
    for retry_after, ends in (("20", 0.0), ("10", pytest.approx(11.5, abs=1.5))):
        stub = Stub(answer("160016", retry_after=retry_after), OK)
        async with client_over(stub, deadline=30) as client:
            client._shared.admission.times.add(10.0, now=0.0, answered=True)  # it needs 11 s
            await ending(client.send(READ))
        assert stub.clock.elapsed == ends


async def test_after_an_expired_timestamp_the_request_is_signed_afresh():
    stub = Stub(waits(2, EXPIRED), OK)
    async with client_over(stub) as client:
        await client.send(NEVER)
    first, second = stub.requests
    assert first.query["sig"] != second.query["sig"]
    assert first.headers["Authorization"] != second.headers["Authorization"]
    assert first.body == second.body


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


CALLS = [
    ((NotSent,), NotSent, Outcome.NOT_SENT),
    ((NotSent, REFUSED), ApiError, Outcome.REFUSED),
    ((Unanswered, REFUSED), ApiError, Outcome.UNKNOWN),
    ((GARBAGE, NotSent, REFUSED), ApiError, Outcome.UNKNOWN),
    ((Unanswered, NotSent), NotSent, Outcome.UNKNOWN),
    ((BUSY, NotSent), NotSent, Outcome.REFUSED),
    ((NotSent, NotSent, Unanswered), Unanswered, Outcome.UNKNOWN),
    ((answer("999123", status=500), answer("111109")), AuthenticationError, Outcome.UNKNOWN),
]


async def test_the_calls_outcome_is_the_least_certain_of_its_attempts():
    wrong = {}
    for script, kind, outcome in CALLS:
        async with client_over(Stub(*script)) as client:
            error = await failing(client.send(CONVERGING))
        if (type(error), error.outcome, error.operation) != (kind, outcome, "DeleteGroup"):
            wrong[script] = (type(error), error.outcome)
    assert wrong == {}


async def test_an_error_tells_the_history_of_its_call():
    stub = Stub(NotSent, waits(1.5, GARBAGE), waits(0.25, answer("900404", status=404)))
    async with client_over(stub) as client:
        with pytest.raises(NotFound) as caught:
            await client.send(READ)
    assert [evolve(made, elapsed=0) for made in caught.value.attempts] == [
        Attempt(number=1, elapsed=0, outcome=Outcome.NOT_SENT, error="NotSent"),
        Attempt(number=2, elapsed=0, status=502, outcome=Outcome.UNKNOWN, error="IntermediaryError"),
        Attempt(number=3, elapsed=0, status=404, code="900404", outcome=Outcome.REFUSED, error="NotFound"),
    ]
    assert [made.elapsed for made in caught.value.attempts] == pytest.approx([0, 1.5, 0.25])
    assert str(caught.value).endswith("(3 attempts, outcome unknown)")


async def test_after_an_attempt_of_unknown_outcome_already_so_means_done():
    for first in [Unanswered, GARBAGE, answer("529999"), waits(10)]:
        stub = Stub(first, ALREADY_MEMBER)
        async with client_over(stub) as client:
            exchange = await client.exchange(INVITE)
        assert exchange.confirmed_by_repeat
        assert exchange.answer.fails == ()
        assert [made.outcome for made in exchange.attempts] == [Outcome.UNKNOWN, Outcome.REFUSED]
        assert exchange.response == ALREADY_MEMBER


async def test_without_one_already_so_is_a_refusal():
    for script in [(ALREADY_MEMBER,), (NotSent, ALREADY_MEMBER), (BUSY, ALREADY_MEMBER)]:
        async with client_over(Stub(*script)) as client:
            with pytest.raises(AlreadyMember) as caught:
                await client.send(INVITE)
        assert caught.value.outcome is Outcome.REFUSED


async def test_an_unknown_outcome_is_not_forgotten_over_later_attempts():
    for between in [NotSent, BUSY]:
        async with client_over(Stub(Unanswered, between, ALREADY_MEMBER)) as client:
            assert (await client.exchange(INVITE)).confirmed_by_repeat


async def test_the_already_so_code_of_another_operation_confirms_nothing():
    async with client_over(Stub(Unanswered, ALREADY_MEMBER)) as client:
        with pytest.raises(AlreadyMember) as caught:
            await client.send(CONVERGING)
    assert caught.value.outcome is Outcome.UNKNOWN
