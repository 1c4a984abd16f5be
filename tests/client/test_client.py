"""The client over a scripted transport on emulated time: deadlines, limits, closing, views, and many tasks at once."""

import copy
import json
import pickle
import sys
from contextlib import asynccontextmanager

import pytest
from anyio import CancelScope, create_task_group
from anyio.lowlevel import checkpoint
from hypothesis import given, settings, strategies as st

import rbim
from helpers.shown import frames_of_rbim
from helpers.stubs import (
    APP_ID,
    BUSY,
    CREDENTIALS,
    GARBAGE,
    HANGS,
    NEVER,
    NO_PAUSES,
    OK,
    ONCE,
    READ,
    REFUSED,
    TOKEN,
    Background,
    Stub,
    answer,
    client_over,
    ending,
    failing,
    waits,
)
from helpers.tables import each_row
from rbim import (
    ApiError,
    AppSigner,
    ClientClosed,
    DeadlineExceeded,
    Dialect,
    IntermediaryError,
    InvalidRequest,
    Limits,
    NotSent,
    Outcome,
    QueryGroupDetail,
    Rate,
    Response,
    Retry,
    Throttled,
    Unanswered,
)
from rbim.client.shared import BACKSTOP
from rbim.emulator.clock import EmulatedClock


@pytest.fixture(params=["asyncio", "trio"], scope="module")
def anyio_backend(request):
    return request.param


@asynccontextmanager
async def by_hand(*script, **options):
    """Yield a client whose time is moved on by hand, with its stub, its clock and a task group for calls beside the test."""
    stub = Stub(*script, clock=EmulatedClock())
    async with create_task_group() as tasks, client_over(stub, **options) as client:
        yield client, stub, stub.clock, tasks


# The client's addresses


def test_an_address_with_a_version_is_refused_with_the_right_form():
    for url, right in [
        ("https://host/2013-12-26", "https://host"),
        ("https://host:8883/2016-08-15/", "https://host:8883"),
        ("http://host/gate/way/2013-12-26", "http://host/gate/way"),
        ("https://host/2013-12-26/Application/abc/IM/Group", "https://host"),
        ("http://[::1]:8883/2013-12-26", "http://[::1]:8883"),
    ]:
        for name in ["base_url", "call_base_url"]:
            with pytest.raises(InvalidRequest, match="rbim adds the version") as caught:
                client_over(Stub(), **{name: url})
            assert str(caught.value).startswith(f"{name}: use {right} without /")
            assert caught.value.field == name
            client_over(Stub(), **{name: right})


def test_an_address_that_ends_in_the_version_of_the_dialect_is_refused_too():
    with pytest.raises(InvalidRequest, match="use https://host without /v7: "):
        client_over(Stub(), base_url="https://host/v7", dialect=Dialect(api_version="v7"))
    client_over(Stub(), base_url="https://host/v7/gateway", dialect=Dialect(api_version="v7"))
    client_over(Stub(), base_url="https://2013-12-26.example")


# One call


async def test_a_call_sends_one_signed_request_and_returns_its_answer():
    stub = Stub(answer(name="n1", count="7"))
    async with client_over(stub, user_name="boss") as client:
        detail = await client.send(READ)
    assert (detail.name, detail.count) == ("n1", 7)
    (request,) = stub.requests
    assert request.path == f"/2013-12-26/Application/{APP_ID}/IM/Group/QueryGroupDetail"
    assert set(request.query) == {"sig"}
    assert json.loads(request.body) == {"userName": "boss", "groupId": "g1"}
    assert stub.clock.elapsed == 0


async def test_an_exchange_tells_what_led_to_the_answer():
    stub = Stub(waits(1.5, answer(name="n1")))
    async with client_over(stub) as client:
        exchange = await client.exchange(READ)
    assert exchange.operation is READ
    assert exchange.answer.name == "n1"
    assert exchange.response == answer(name="n1")
    assert (exchange.elapsed, exchange.waited, exchange.confirmed_by_repeat) == (1.5, 0, False)
    (made,) = exchange.attempts
    assert (made.number, made.elapsed, made.status, made.code, made.outcome, made.error) == (
        1,
        1.5,
        200,
        "000000",
        None,
        None,
    )


async def test_what_the_transport_raises_against_its_promise_comes_out_as_it_is_and_leaves_the_gate_free():
    stub = Stub(ZeroDivisionError, OK)
    async with client_over(stub, limits=Limits(concurrency=1)) as client:
        with pytest.raises(ZeroDivisionError):
            await client.send(READ)
        await client.send(READ)


WRONG = [
    *({option: seconds} for option in ("timeout", "deadline") for seconds in (0, -1, float("nan"))),
    {"timeout": "5"},
    {"deadline": True},
    {"retry": 3},
    {"user_name": 1001},
    {"user_name": ""},
]


def test_settings_that_make_no_sense_are_refused_by_name():
    for options in WRONG:
        (option,) = options
        with pytest.raises(InvalidRequest, match=f"^{option}: ") as caught:
            client_over(Stub(), **options)
        assert caught.value.field == option
        with pytest.raises(InvalidRequest, match=option):
            client_over(Stub()).acting_as(1001) if option == "user_name" else client_over(Stub()).tuned(**options)
    for options in (
        {"signer": AppSigner(CREDENTIALS), "credentials": CREDENTIALS},
        {"credentials": ("a", "b")},
        {"credentials": None},
    ):
        with pytest.raises(InvalidRequest, match="credentials"):
            client_over(Stub(), **options)


# The deadline


async def test_the_transport_gets_the_timeout_or_what_is_left_of_the_deadline():
    stub = Stub(waits(3))
    async with client_over(stub, timeout=2, deadline=3, retry=NO_PAUSES) as client:
        error = await failing(client.send(READ))
    assert stub.timeouts == [2, 1]
    assert isinstance(error, DeadlineExceeded)
    assert isinstance(error, TimeoutError)
    assert isinstance(error.__cause__, Unanswered)
    assert error.outcome is Outcome.UNKNOWN
    assert stub.clock.elapsed == 3


async def test_the_deadline_is_over_attempts_and_pauses_together():
    stub = Stub(waits(1, NotSent))
    async with client_over(
        stub, timeout=2, deadline=4, retry=Retry(attempts=99, base=1, cap=1, random=lambda: 1.0)
    ) as client:
        error = await failing(client.send(READ))
    assert isinstance(error, NotSent)  # the next pause would have ended at the deadline: not begun
    assert stub.times == [0, 2]
    assert stub.clock.elapsed == 3


async def test_a_late_not_sent_is_a_deadline_exceeded_that_was_not_sent():
    stub = Stub(waits(4, NotSent, ignores=True))
    async with client_over(stub, deadline=4) as client:
        error = await failing(client.send(NEVER))
    assert isinstance(error, DeadlineExceeded)
    assert error.outcome is Outcome.NOT_SENT


async def test_a_transport_that_ignores_its_timeout_is_cut_off_soon_after_the_deadline():
    stub = Stub(HANGS)
    async with client_over(stub, timeout=2, deadline=7) as client:
        error = await failing(client.send(READ))
        assert stub.in_flight == 0
    assert isinstance(error, DeadlineExceeded)
    assert error.outcome is Outcome.UNKNOWN
    assert [made.error for made in error.attempts] == ["DeadlineExceeded"]
    assert stub.clock.elapsed == pytest.approx(7 + BACKSTOP)


async def test_the_deadline_counts_the_time_spent_on_rates_and_at_the_gate():
    limits = Limits(concurrency=1, rates=[Rate(1, per=4)])
    async with by_hand(waits(6), HANGS, limits=limits, timeout=15, deadline=20) as (client, stub, clock, tasks):
        Background(tasks, client.send(READ))
        await clock.advance()
        second = Background(tasks, client.send(READ))  # waits 4 s for the rate and 2 s for the place: 14 s are left
        await clock.advance(6)
        assert stub.timeouts == [15, 14]
        await clock.advance(14 + BACKSTOP)
        assert isinstance(second.ended, DeadlineExceeded)
        assert second.ended.outcome is Outcome.UNKNOWN


async def test_a_request_leaves_only_if_an_attempt_can_end_before_the_deadline():
    limits = Limits(concurrency=1)
    async with by_hand(waits(6), limits=limits, timeout=10, deadline=9) as (client, stub, clock, tasks):
        Background(tasks, client.send(READ))
        await clock.advance()
        second = Background(tasks, client.send(READ))  # the place is free after 6 s: 3 s are left, and an attempt takes 6
        await clock.advance(6)
        assert isinstance(second.ended, DeadlineExceeded)
        assert second.ended.outcome is Outcome.NOT_SENT
        assert stub.timeouts == [9]
        third = Background(tasks, client.send(READ))  # a call that need not wait is always sent
        await clock.advance(6)
        assert third.ended is not None
        assert not isinstance(third.ended, Exception)


async def test_a_wait_for_a_rate_past_the_deadline_raises_at_once_and_takes_no_place():
    stub = Stub()
    async with client_over(stub, limits=Limits(rates=[Rate(1, per=20)])) as client:
        await client.send(READ)
        for deadline in (5, 20):
            error = await failing(client.tuned(deadline=deadline).send(READ))
            assert isinstance(error, DeadlineExceeded)
            assert error.outcome is Outcome.NOT_SENT
        assert stub.clock.elapsed == 0
        await client.send(READ)
    assert stub.times == [0, 20]


async def test_a_call_may_have_no_deadline_at_all():
    stub = Stub(*[waits(1000, NotSent, ignores=True)] * 3, OK)
    async with client_over(
        stub, deadline=float("inf"), retry=Retry(attempts=9, cap=1e4, base=1e4, random=lambda: 1.0)
    ) as client:
        await client.send(READ)
    assert stub.timeouts == [10] * 4
    assert stub.times == [0, 11000, 22000, 33000]


# The concurrency limiter and the rates


async def test_never_more_requests_are_in_flight_than_said():
    for concurrency in [1, 7]:
        stub = Stub(waits(1))
        async with client_over(stub, limits=Limits(concurrency=concurrency)) as client, create_task_group() as tasks:
            for _ in range(21):
                tasks.start_soon(client.send, READ)
        assert stub.most == concurrency
        assert stub.clock.elapsed == 21 / concurrency


async def test_while_a_call_pauses_another_has_its_place():
    limits = Limits(concurrency=1)
    async with by_hand(NotSent, waits(0.1), OK, limits=limits) as (client, stub, clock, tasks):
        first = Background(tasks, client.send(QueryGroupDetail(group_id="first")))
        await clock.advance(0.05)
        second = Background(tasks, client.send(QueryGroupDetail(group_id="second")))
        await clock.advance(0.1)
        assert second.ended is not None
        assert first.ended is None
        await clock.advance(0.1)
        assert first.ended is not None
        assert [document["groupId"] for document in stub.documents] == ["first", "second", "first"]


async def test_rates_hold_for_all_requests_retries_included():
    stub = Stub(NotSent, NotSent, OK)
    async with client_over(stub, limits=Limits(rates=[Rate(1, per=2)]), retry=NO_PAUSES) as client:
        exchange = await client.exchange(READ)
        await client.send(READ)
    assert stub.times == [0, 2, 4, 6]
    assert exchange.waited == 4


async def test_a_retry_after_of_one_call_is_no_gate_for_the_others():
    stub = Stub(answer("160016", status=429, retry_after="8"), OK)
    async with client_over(stub) as client:
        error = await failing(client.tuned(retry=ONCE).send(READ))
        assert isinstance(error, Throttled)
        await client.send(READ)
        await client.send(READ)
    assert stub.times == [0, 0, 0]


MOMENTS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from(("asleep", "begin", "cancel"))), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(moments=MOMENTS, places=st.integers(1, 3))
async def test_calls_cancelled_in_whatever_moment_leave_no_place_taken(moments, places):
    clock = EmulatedClock()
    stub = Stub(waits(1), NotSent, waits(2), BUSY, waits(1), clock=clock)
    stub.script *= 20
    scopes = []

    async def call(client, scope):
        with scope:
            await ending(client.send(READ))

    async with client_over(stub, limits=Limits(concurrency=places, rates=[Rate(2)])) as client:
        async with create_task_group() as tasks:
            for number, moment in moments:
                if moment == "begin":
                    scopes.append(CancelScope())
                    tasks.start_soon(call, client, scopes[-1])
                elif moment == "cancel" and scopes:
                    scopes[number % len(scopes)].cancel()
                else:
                    await clock.advance(number / 4) if number else await checkpoint()
            tasks.cancel_scope.cancel()
        limiter = client._shared.admission
        assert (limiter.free, limiter.waiting) == (places, 0)
        assert client._shared.running == 0
    assert stub.most <= places


# On the machine's own clock, with nothing that waits for it


async def test_on_the_machines_own_clock_calls_are_carried_out_and_ended_the_same_way():
    stub = Stub(OK, HANGS, clock=EmulatedClock())
    async with create_task_group() as tasks:
        async with client_over(stub, clock=None, limits=Limits(rates=[Rate(1, per=3600, burst=2)])) as client:
            exchange = await client.exchange(READ)
            assert 0 <= exchange.elapsed < 10
            in_flight = Background(tasks, client.send(READ))
            for _ in range(5):
                await checkpoint()
            too_slow = await failing(client.send(READ))
            too_short = await failing(client.tuned(deadline=1e-9).send(READ))
        assert stub.left == 1
    assert isinstance(in_flight.ended, ClientClosed)
    assert in_flight.ended.outcome is Outcome.UNKNOWN
    assert isinstance(too_slow, DeadlineExceeded)
    assert isinstance(too_short, DeadlineExceeded)
    assert len(stub.requests) == 2


# Secrets


@each_row(
    "library, own, ends",
    [("", "", ""), ("httpx/1.2", "", " httpx/1.2"), ("httpx/1.2", "shop/1.2 (a)", " httpx/1.2 shop/1.2 (a)")],
)
async def test_a_request_says_who_calls(library, own, ends):
    stub = Stub(OK)
    stub.library_version = library
    async with client_over(stub, user_agent=own) as client:
        await client.send(READ)
    python = f"python/{sys.version_info[0]}.{sys.version_info[1]}"
    assert stub.requests[0].headers["User-Agent"] == f"rbim/{rbim.__version__} {python}{ends}"


@each_row("own", ["a\r\nX: y", "é", "a\x7f"])
def test_a_user_agent_cannot_write_another_header(own):
    with pytest.raises(InvalidRequest, match="user_agent: a text of printable ASCII"):
        client_over(Stub(), user_agent=own)


@pytest.mark.parametrize("use", [pickle.dumps, copy.deepcopy])
def test_a_client_cannot_be_pickled_and_says_so(use):
    with pytest.raises(TypeError, match=r"a client cannot be pickled; make one in the other process"):
        use(client_over(Stub()))


class Echo(Stub):
    """A platform that repeats in its refusal what signed the request."""

    status = 400

    async def respond(self, request, _):
        said = f"bad request {request.target} with {request.headers['Authorization']}"
        return Response(self.status, {}, json.dumps({"statusCode": "999123", "statusMsg": said}).encode())


class Garble(Echo):
    async def respond(self, request, _):
        return Response(502, {}, f"<p>{request.target} {request.headers['Authorization']}".encode())


class Murmur(Echo):
    async def respond(self, request, _):
        return Response(502, {}, f"<p>{request.target} {request.headers['Authorization']}".lower().encode())


async def test_an_answer_that_repeats_the_signature_is_blotted_out():
    for stub, error in ((Echo(), ApiError), (Garble(), IntermediaryError), (Murmur(), IntermediaryError)):
        async with client_over(stub, retry=ONCE) as client:
            raised = await failing(client.send(READ))
        assert type(raised) is error
        secrets = stub.requests[0].secrets
        assert len(secrets) == 2
        shown = f"{raised} {raised!r} {raised.body!r} {vars(raised)}"
        assert not [secret for secret in secrets if secret.lower() in shown.lower()]
        assert "***" in shown


async def test_a_traceback_with_the_locals_of_our_frames_shows_no_secret():
    for stub in (Echo(), Stub(GARBAGE), Stub(REFUSED), Stub(Unanswered), Stub(HANGS)):
        async with client_over(stub, retry=ONCE, deadline=5) as client:
            error = await failing(client.send(READ))
        frames = list(frames_of_rbim(error))
        assert len(frames) >= 2
        shown = " ".join(f"{value!r}" for frame in frames for value in frame.f_locals.values())
        assert TOKEN not in shown
        assert not [secret for secret in stub.requests[0].secrets if secret in shown]


# Many tasks


async def test_a_thousand_calls_at_once_get_each_its_own_answer():
    class Numbered(Stub):
        async def respond(self, request, _):
            group = json.loads(request.body)["groupId"]
            await self.clock.sleep(int(group) * 7919 % 13 / 100)
            return answer(name=f"name of {group}")

    stub, answers = Numbered(), {}

    async def ask(view, number):
        answers[number] = (await view.groups.detail(group_id=str(number))).name

    async with client_over(stub) as client:
        async with create_task_group() as tasks:
            for number in range(1000):
                tasks.start_soon(ask, client.acting_as("boss") if number % 2 else client, number)
        assert client._shared.admission.free == 100
        assert client._shared.running == 0
    assert answers == {number: f"name of {number}" for number in range(1000)}
    assert stub.most == 100
