"""The client over a scripted transport on emulated time: deadlines, limits, closing, views, and many tasks at once."""

import json
import traceback
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio import CancelScope, create_task_group
from anyio.lowlevel import checkpoint
from hypothesis import given, settings, strategies as st

from helpers.stubs import (
    ALREADY_MEMBER,
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
from rbim import (
    AlreadyMember,
    ApiError,
    AppSigner,
    AuthenticationError,
    ClientClosed,
    CreateGroup,
    DeadlineExceeded,
    Dialect,
    GroupType,
    InvalidRequest,
    JoinGroup,
    Limits,
    NotSent,
    Outcome,
    ProtocolError,
    QueryGroupDetail,
    Rate,
    RbimError,
    Response,
    Retry,
    Success,
    Throttled,
    Unanswered,
)
from rbim.client.call import BACKSTOP
from rbim.emulator.clock import EmulatedClock
from rbim.transports.httpx import HttpxTransport


@asynccontextmanager
async def by_hand(*script, **options):
    """Yield a client whose time is moved on by hand, with its stub, its clock and a task group for calls beside the test."""
    stub = Stub(*script, clock=EmulatedClock())
    async with create_task_group() as tasks, client_over(stub, **options) as client:
        yield client, stub, stub.clock, tasks


# The client's addresses


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("https://host/2013-12-26", "https://host"),
        ("https://host:8883/2016-08-15/", "https://host:8883"),
        ("http://host/gate/way/2013-12-26", "http://host/gate/way"),
        ("https://host/2013-12-26/Application/abc/IM/Group", "https://host"),
        ("http://[::1]:8883/2013-12-26", "http://[::1]:8883"),
    ],
)
@pytest.mark.parametrize("name", ["base_url", "call_base_url"])
def test_an_address_with_a_version_is_refused_with_the_right_form(name, url, right):
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


async def test_methods_and_send_are_the_same():
    stub = Stub(answer(groupId="g9"))
    async with client_over(stub) as client:
        by_method = await client.groups.create(name="x", type=GroupType.VIP)
        by_value = await client.send(CreateGroup(name="x", type=GroupType.VIP))
    assert by_method == by_value
    assert stub.documents[0] == stub.documents[1]


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


async def test_what_breaks_a_rule_is_refused_before_anything_is_sent():
    stub = Stub()
    async with client_over(stub) as client:
        error = await failing(client.groups.invite(group_id="g", members=[f"u{number}" for number in range(51)]))
    assert isinstance(error, InvalidRequest)
    assert (error.operation, error.outcome, error.attempts) == ("InviteJoinGroup", Outcome.NOT_SENT, ())
    assert stub.requests == []


async def test_what_the_transport_raises_against_its_promise_comes_out_as_it_is_and_leaves_the_gate_free():
    stub = Stub(ZeroDivisionError, OK)
    async with client_over(stub, limits=Limits(concurrency=1)) as client:
        with pytest.raises(ZeroDivisionError):
            await client.send(READ)
        await client.send(READ)


async def test_a_signer_that_fails_sends_nothing_and_leaves_the_gate_free():
    class Locked:
        app_id = APP_ID

        def sign(self, _):
            reason = "the key store is locked"
            raise NotSent(reason)

    stub = Stub()
    async with client_over(stub, signer=Locked(), limits=Limits(concurrency=1)) as client:
        for _ in range(2):
            error = await failing(client.send(READ))
            assert (error.message, error.attempts) == ("the key store is locked", ())
    assert stub.requests == []


@pytest.mark.parametrize("option", ["timeout", "deadline"])
@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
async def test_seconds_that_make_no_sense_are_refused(option, seconds):
    with pytest.raises(InvalidRequest, match=option):
        client_over(Stub(), **{option: seconds})
    with pytest.raises(InvalidRequest, match=option):
        client_over(Stub()).tuned(**{option: seconds})


@pytest.mark.parametrize(
    ("option", "value"),
    [("timeout", "5"), ("deadline", True), ("retry", 3), ("user_name", 1001), ("user_name", "")],
)
async def test_settings_of_another_type_are_refused_by_name(option, value):
    with pytest.raises(InvalidRequest, match=f"^{option}: ") as caught:
        client_over(Stub(), **{option: value})
    assert caught.value.field == option


async def test_a_view_acts_as_no_number():
    with pytest.raises(InvalidRequest, match="user_name"):
        client_over(Stub()).acting_as(1001)


@pytest.mark.parametrize(
    "options", [{"signer": AppSigner(CREDENTIALS), "credentials": CREDENTIALS}, {"credentials": ("a", "b")}], ids=repr
)
async def test_a_client_takes_credentials_or_a_signer(options):
    with pytest.raises(InvalidRequest, match="credentials"):
        client_over(Stub(), **options)


async def test_a_client_without_credentials_is_refused():
    with pytest.raises(InvalidRequest, match="credentials"):
        client_over(Stub(), credentials=None)


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


async def test_waiting_at_a_full_gate_past_the_deadline_sends_nothing():
    async with by_hand(HANGS, limits=Limits(concurrency=1)) as (client, stub, clock, tasks):
        first = Background(tasks, client.tuned(deadline=100).send(READ))
        await clock.advance()
        second = Background(tasks, client.tuned(deadline=5).send(READ))
        await clock.advance(5 + BACKSTOP)
        assert isinstance(second.ended, DeadlineExceeded)
        assert (second.ended.outcome, second.ended.attempts) == (Outcome.NOT_SENT, ())
        assert first.ended is None
        assert len(stub.requests) == 1


async def test_a_place_at_the_gate_that_comes_when_the_deadline_has_passed_is_not_used():
    async with by_hand(waits(5, ignores=True), limits=Limits(concurrency=1)) as (client, stub, clock, tasks):
        Background(tasks, client.send(READ))
        await clock.advance()
        late = Background(tasks, client.tuned(deadline=5).send(READ))
        await clock.advance(5)
        assert isinstance(late.ended, DeadlineExceeded)
        assert late.ended.outcome is Outcome.NOT_SENT
        assert len(stub.requests) == 1
        assert client.load.refused == 1
        third = Background(tasks, client.send(READ))
        await clock.advance(5)
        assert third.ended.name == ""


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


async def test_a_transport_never_gets_less_than_some_time():
    limits = Limits(concurrency=2, rates=[Rate(1, per=0.5)])
    stub = Stub(waits(0.9))
    async with client_over(stub, limits=limits, timeout=1, deadline=2) as client, create_task_group() as tasks:
        for _ in range(8):
            Background(tasks, client.send(READ))
    assert all(timeout > 0 for timeout in stub.timeouts)


async def test_a_call_may_have_no_deadline_at_all():
    stub = Stub(*[waits(1000, NotSent, ignores=True)] * 3, OK)
    async with client_over(
        stub, deadline=float("inf"), retry=Retry(attempts=9, cap=1e4, base=1e4, random=lambda: 1.0)
    ) as client:
        await client.send(READ)
    assert stub.timeouts == [10] * 4
    assert stub.times == [0, 11000, 22000, 33000]


# The concurrency limiter and the rates


@pytest.mark.parametrize("concurrency", [1, 7])
async def test_never_more_requests_are_in_flight_than_said(concurrency):
    stub = Stub(waits(1))
    async with client_over(stub, limits=Limits(concurrency=concurrency)) as client, create_task_group() as tasks:
        for _ in range(21):
            tasks.start_soon(client.send, READ)
    assert stub.most == concurrency
    assert stub.clock.elapsed == 21 / concurrency


async def test_calls_are_sent_in_the_order_in_which_they_came():
    stub = Stub(waits(1))
    async with client_over(stub, limits=Limits(concurrency=2)) as client, create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(client.send, QueryGroupDetail(group_id=f"g{number}"))
            await checkpoint()
            await checkpoint()
    assert [document["groupId"] for document in stub.documents] == [f"g{number}" for number in range(12)]


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


async def test_while_a_call_waits_for_a_rate_another_has_its_place():
    limits = Limits(concurrency=1, rates=[Rate(1, per=10, operations=(JoinGroup,))])
    async with client_over(Stub(), limits=limits) as client, create_task_group() as tasks:
        await client.send(NEVER)
        Background(tasks, client.send(NEVER))
        await checkpoint()
        with client._shared.clock.scope(5):
            await client.send(READ)
        assert client._shared.clock.elapsed == 0


async def test_rates_hold_for_all_requests_retries_included():
    stub = Stub(NotSent, NotSent, OK)
    async with client_over(stub, limits=Limits(rates=[Rate(1, per=2)]), retry=NO_PAUSES) as client:
        exchange = await client.exchange(READ)
        await client.send(READ)
    assert stub.times == [0, 2, 4, 6]
    assert exchange.waited == 4


async def test_a_rate_for_each_group_lets_other_groups_go():
    stub = Stub()
    async with (
        client_over(stub, limits=Limits(rates=[Rate(1, per=5, each_group=True)])) as client,
        create_task_group() as tasks,
    ):
        for group in ("a", "b", "a", "b", "c"):
            tasks.start_soon(client.send, QueryGroupDetail(group_id=group))
    sent = sorted((when, document["groupId"]) for when, document in zip(stub.times, stub.documents, strict=True))
    assert sent == [(0, "a"), (0, "b"), (0, "c"), (5, "a"), (5, "b")]


async def test_a_retry_after_of_one_call_halts_the_others():
    stub = Stub(answer("160016", status=429, retry_after="8"), OK)
    async with client_over(stub) as client:
        error = await failing(client.tuned(retry=ONCE).send(READ))
        assert isinstance(error, Throttled)
        await client.send(READ)
        assert stub.times == [0, 8]
        await client.send(READ)
    assert stub.times == [0, 8, 8]


async def test_an_absurd_retry_after_does_not_halt_the_client_for_good():
    stub = Stub(answer("160016", status=429, retry_after="999999999"), OK)
    async with client_over(stub, retry=ONCE) as client:
        await failing(client.send(READ))
        await client.tuned(deadline=301).send(READ)
    assert stub.times == [0, 300]


async def test_a_halt_past_the_deadline_raises_at_once():
    stub = Stub(answer("160016", status=429, retry_after="60"), OK)
    async with client_over(stub, retry=ONCE) as client:
        await failing(client.send(READ))
        error = await failing(client.send(READ))
        assert isinstance(error, DeadlineExceeded)
        assert error.outcome is Outcome.NOT_SENT
        assert stub.clock.elapsed == 0


async def test_a_halt_stops_those_who_wait_at_the_gate_already():
    throttled = waits(1, answer("160016", status=429, retry_after="5"))
    stub = Stub(throttled, OK)
    async with client_over(stub, limits=Limits(concurrency=1)) as client, create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(client.send, READ)
    assert stub.times == pytest.approx([0, 6, 6, 6.2])


async def test_after_a_halt_those_who_waited_for_a_rate_do_not_come_all_at_once():
    stub = Stub(waits(0.5, answer("160016", status=429, retry_after="5")), OK)
    async with client_over(stub, limits=Limits(rates=[Rate(1)]), retry=ONCE) as client, create_task_group() as tasks:
        calls = [Background(tasks, client.send(READ)) for _ in range(4)]
    assert sorted(type(call.ended).__name__ for call in calls) == ["GroupDetail"] * 3 + ["Throttled"]
    assert stub.times == pytest.approx([0, 5.5, 6.5, 7.5])


async def test_a_halt_that_ended_while_a_call_stood_at_the_gate_costs_it_nothing():
    limits = Limits(concurrency=2)
    script = (waits(1, answer("160016", status=429, retry_after="2")), waits(9), OK)
    async with by_hand(*script, limits=limits, retry=ONCE) as (client, stub, clock, tasks):
        Background(tasks, client.send(READ))
        Background(tasks, client.send(READ))
        await clock.advance(2)
        third = Background(tasks, client.send(READ))
        await clock.advance(1)
        assert third.ended is not None
        assert stub.times == [0, 0, 3]


async def test_a_call_that_never_got_through_tells_how_long_it_waited():
    seen = []

    class Watch:
        def attempt_started(self, event):
            pass

        attempt_ended = attempt_started

        def call_ended(self, event):
            seen.append(event.waited)

    async with by_hand(HANGS, limits=Limits(concurrency=1), observers=[Watch()]) as (client, _, clock, tasks):
        Background(tasks, client.tuned(deadline=100).send(READ))
        await clock.advance()
        Background(tasks, client.tuned(deadline=5).send(READ))
        await clock.advance(6)
    assert seen[0] == pytest.approx(5)


@settings(max_examples=30, deadline=None)
@given(
    gaps=st.lists(st.floats(0, 2), min_size=1, max_size=25),
    rates=st.lists(st.builds(Rate, st.floats(0.5, 10), st.just(2.0), burst=st.integers(1, 3)), min_size=1, max_size=2),
    script=st.lists(st.sampled_from((OK, NotSent, BUSY, answer("160016", status=429, retry_after="2"))), min_size=1),
)
async def test_what_leaves_the_client_keeps_every_rate_whatever_is_answered(gaps, rates, script):
    stub = Stub(*script)
    async with client_over(stub, limits=Limits(rates=rates), retry=NO_PAUSES) as client, create_task_group() as tasks:
        for gap in gaps:
            await stub.clock.sleep(gap)
            Background(tasks, client.send(READ))
    for rate in rates:
        for first, begin in enumerate(stub.times):
            for number, end in enumerate(stub.times[first:], 1):
                assert number <= rate.burst + rate.limit * (end - begin) / rate.per + 1e-6


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


async def test_without_a_transport_of_ones_own_it_is_httpxs():
    async with client_over(None, clock=None) as client:
        assert isinstance(client._shared.transport, HttpxTransport)


# Secrets


async def test_no_repr_shows_a_secret():
    stub = Stub()
    async with client_over(stub, user_name="boss") as client:
        await client.send(READ)
        shown = [
            repr(each) for each in (client, client.acting_as("x"), client._shared, client._shared.signer, stub.requests[0])
        ]
    signed = stub.requests[0]
    for text in shown:
        assert TOKEN not in text
        assert signed.query["sig"] not in text
        assert signed.headers["Authorization"] not in text
    assert APP_ID in shown[0]
    assert "boss" in shown[0]
    assert "open" in shown[0]


class Echo(Stub):
    """A platform that repeats in its refusal what signed the request."""

    status = 400

    async def respond(self, request, _):
        said = f"bad request {request.target} with {request.headers['Authorization']}"
        return Response(self.status, {}, json.dumps({"statusCode": "999123", "statusMsg": said}).encode())


class Garble(Echo):
    async def respond(self, request, _):
        return Response(502, {}, f"<p>{request.target} {request.headers['Authorization']}".encode())


class Murmur(Stub):
    async def respond(self, request, _):
        return Response(502, {}, f"<p>{request.target} {request.headers['Authorization']}".lower().encode())


@pytest.mark.parametrize(("kind", "error"), [(Echo, ApiError), (Garble, ProtocolError), (Murmur, ProtocolError)])
async def test_an_answer_that_repeats_the_signature_is_blotted_out(kind, error):
    stub = kind()
    async with client_over(stub, retry=ONCE) as client:
        with pytest.raises(error) as caught:
            await client.send(READ)
    secrets = stub.requests[0].secrets
    assert len(secrets) == 2
    shown = f"{caught.value} {caught.value!r} {caught.value.body!r} {vars(caught.value)}"
    assert not [secret for secret in secrets if secret.lower() in shown.lower()]
    assert "***" in shown


@pytest.mark.parametrize("script", [None, (GARBAGE,), (REFUSED,), (Unanswered,), (HANGS,)], ids=str)
async def test_a_traceback_with_the_locals_of_our_frames_shows_no_secret(script):
    stub = Echo() if script is None else Stub(*script)
    async with client_over(stub, retry=ONCE, deadline=5) as client:
        error = await failing(client.send(READ))
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if "/rbim/" in frame.f_code.co_filename]
    assert len(frames) >= 2
    shown = " ".join(f"{value!r}" for frame in frames for value in frame.f_locals.values())
    assert TOKEN not in shown
    assert not [secret for secret in stub.requests[0].secrets if secret in shown]


# Many tasks


async def test_five_thousand_calls_at_once_get_each_its_own_answer():
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
            for number in range(5000):
                tasks.start_soon(ask, client.acting_as("boss") if number % 2 else client, number)
        assert client._shared.admission.free == 100
        assert client._shared.running == 0
    assert answers == {number: f"name of {number}" for number in range(5000)}
    assert stub.most == 100


async def test_a_thousand_calls_with_faults_and_cancellations_end_each_in_its_own_way():
    class Faulty(Stub):
        async def respond(self, request, timeout):
            number = int(json.loads(request.body)["groupId"])
            steps = (waits(0.3), NotSent, waits(0.1, GARBAGE), HANGS, ALREADY_MEMBER, waits(0.2, answer("111109")))
            return await self.perform(steps[number % 6], timeout)

    ends = {0: Success, 1: NotSent, 2: ProtocolError, 3: DeadlineExceeded, 4: AlreadyMember, 5: AuthenticationError}
    stub, ended = Faulty(), {}

    async def call(client, number):
        try:
            ended[number] = type(await client.send(JoinGroup(group_id=str(number))))
        except RbimError as error:
            ended[number] = type(error)

    limits = Limits(concurrency=1000)
    async with client_over(stub, limits=limits, deadline=4, retry=ONCE) as client, create_task_group() as tasks:
        for number in range(1000):
            tasks.start_soon(call, client, number)
    assert ended == {number: ends[number % 6] for number in range(1000)}
    assert (client._shared.admission.free, stub.in_flight) == (1000, 0)


def test_one_client_after_another_each_in_a_loop_of_its_own():
    for backend in ("asyncio", "trio", "asyncio"):

        async def main():
            async with client_over(Stub()) as client:
                return await client.send(NEVER)

        assert anyio.run(main, backend=backend) == Success()
