"""Message copy, how it goes out: modes, the time limit, order, how many at once, faults, the log. Nothing waits for real."""

import json
import threading
from collections import Counter, defaultdict
from datetime import UTC, datetime
from hashlib import md5
from random import Random

import anyio
import pytest
from hypothesis import given, strategies as st

from helpers.credentials import APP_ID, TOKEN
from helpers.emulators import box, client_of
from rbim import AsyncClient, Dialect, GroupType, InvalidRequest
from rbim.callbacks import parse
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.copies.queue import DeliveryQueues, QueuedDelivery
from rbim.emulator.faults.copies import (
    CopyFault,
    CopyFaults,
    Delay,
    Duplicate,
    Overtaken,
    Stale,
    Tamper,
    copy_faults_from,
    injection_of,
)
from rbim.emulator.platform.rules import DependsOnDialect

START = 1767323045000
AGES = 1e6  # seconds that nothing lasts


class Peer:
    """A receiver with a script: each delivery is answered by the next step, and then by the last again and again.

    A step is a status, an exception, a number of seconds that it takes before 200, or an async function.
    """

    def __init__(self, emulator, *script):
        self.clock = emulator.clock
        self.script = list(script or (200,))
        self.got = []  # when, which text, attempt as far as it shows
        self.headers = []
        self.bodies = []
        self.now = self.most = 0

    async def receive(self, headers, body):
        self.headers.append(headers)
        self.bodies.append(body)
        self.got.append((self.clock.elapsed, text_of(body)))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return Reply(await self.perform(step))
        finally:
            self.now -= 1

    async def perform(self, step):
        if isinstance(step, Exception):
            raise step
        if isinstance(step, float):
            await self.clock.sleep(step)
            return 200
        return await step() if callable(step) else step

    @property
    def texts(self):
        return [text for _, text in self.got]


class Reply:
    def __init__(self, status):
        self.status = status


def text_of(body):
    try:
        return json.loads(body)["body"]
    except (ValueError, TypeError, KeyError):
        return "?"


def log_of(emulator, *names):
    return [tuple(getattr(each, name) for name in names) for each in emulator.deliveries]


# Modes.


async def test_normal_copy_makes_one_attempt():
    emulator = box()
    peer = Peer(emulator, 503, 200)
    emulator.copy_to(peer)
    emulator.say("1001", "1002", "lost")
    await emulator.deliver()
    await emulator.advance(hours=25)
    emulator.say("1001", "1002", "next")
    await emulator.deliver()
    assert peer.got == [(0, "lost"), (90000, "next")]
    assert log_of(emulator, "attempt", "status", "reason", "ok") == [(1, 503, "status 503", False), (1, 200, "", True)]


async def test_high_guarantee_copy_resends_until_it_is_taken():
    emulator = box()
    peer = Peer(emulator, 500, ConnectionError("nobody there"), 200)
    emulator.copy_to(peer, "high-guarantee")
    emulator.say("1001", "1002", "x")
    await emulator.deliver()
    await emulator.advance(4.9)
    assert len(peer.got) == 1
    await emulator.advance(0.1)
    assert len(peer.got) == 2
    await emulator.advance(hours=25)
    assert peer.got == [(0, "x"), (5, "x"), (35, "x")]
    assert log_of(emulator, "at", "attempt", "status", "reason") == [
        (0, 1, 500, "status 500"),
        (5, 2, None, "ConnectionError: nobody there"),
        (35, 3, 200, ""),
    ]
    first, *rest = [json.loads(body) for body in peer.bodies]
    assert "resendFlag" not in first
    assert rest == [first | {"resendFlag": "1"}] * 2
    assert [int(headers["CurTime"]) - START for headers in peer.headers] == [0, 5000, 35000]


async def test_high_guarantee_copy_gives_up_in_the_end():
    emulator = box(dialect=Dialect(resend_after=(1.0, 2.0)))
    peer = Peer(emulator, 503, 503, 503, 200)
    emulator.copy_to(peer, "high-guarantee")
    emulator.say("1001", "1002", "x")
    await emulator.advance(hours=25)
    assert peer.got == [(0, "x"), (1, "x"), (3, "x")]
    emulator.say("1001", "1002", "y")
    await emulator.deliver()
    assert peer.texts == ["x", "x", "x", "y"]


async def test_the_defaults_make_four_attempts():
    emulator = box()
    peer = Peer(emulator, 503)
    emulator.copy_to(peer, "high-guarantee")
    emulator.say("1001", "1002", "x")
    await emulator.advance(hours=25)
    assert [at for at, _ in peer.got] == [0, 5, 35, 155]


async def test_whether_a_resend_is_signed_anew_is_the_dialects():
    emulator = box(dialect=Dialect(resend_signed_anew=False))
    peer = Peer(emulator, 503, 503, 200)
    emulator.copy_to(peer, "high-guarantee")
    emulator.say("1001", "1002", "x")
    await emulator.clock.advance(2)
    await emulator.advance(hours=1)
    assert [at for at, _ in peer.got] == [2, 7, 37]
    assert [headers["CurTime"] for headers in peer.headers] == [str(START + 2000)] * 3
    assert len({headers["MD5"] for headers in peer.headers}) == 2  # resendFlag is signed
    (gap,) = [gap for gap in Dialect.gaps() if gap.name == "resend_signed_anew"]
    assert (gap.default, gap.grade) == (True, "G")


async def test_what_is_copied_as_it_stands_is_resent_as_it_stands():
    emulator = box()
    peer = Peer(emulator, 503, 503, 200)
    emulator.copy_to(peer, "high-guarantee")
    emulator.copy_raw(b"\xff")
    await emulator.advance(60)
    assert peer.bodies == [b"\xff"] * 3


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (204, 204, "status 204"),
        (302, 302, "status 302"),
        (None, None, "the receiver returned NoneType instead of a status"),
        ("200", None, "the receiver returned str instead of a status"),
        (ValueError("oops"), None, "ValueError: oops"),
    ],
)
async def test_nothing_but_200_counts_as_received(answer, status, reason):
    emulator = box()
    emulator.copy_to(Peer(emulator, answer))
    emulator.say("1001", "1002", "x")
    await emulator.deliver()
    assert log_of(emulator, "status", "reason", "ok") == [(status, reason, False)]


@pytest.mark.parametrize("status", [201, 202, 203, 204, 206])
async def test_a_success_other_than_200_is_resent_in_high_guarantee_mode(status):
    emulator = box(dialect=Dialect(resend_after=(5.0,)))
    peer = Peer(emulator, status)
    emulator.copy_to(peer, "high-guarantee")
    emulator.say("1001", "1002", "x")
    await emulator.advance(60)
    assert peer.got == [(0, "x"), (5, "x")]
    assert log_of(emulator, "attempt", "status", "ok") == [(1, status, False), (2, status, False)]


async def test_a_plain_function_is_a_receiver_too():
    emulator, got = box(), []

    async def receive(headers, body):
        got.append((headers["CurTime"], body))
        return 200

    emulator.copy_to(receive)
    emulator.say("1001", "1002", "x")
    await emulator.deliver()
    assert [(time, text_of(body)) for time, body in got] == [(str(START), "x")]


# The time limit.


async def test_an_answer_within_five_seconds_counts_and_one_that_takes_longer_does_not():
    emulator = box()
    emulator.copy_to(Peer(emulator, 4.9, 5.1))
    emulator.say("1001", "1002", "x")
    emulator.say("1001", "1003", "y")
    await emulator.deliver()
    assert log_of(emulator, "at", "took", "status", "reason") == [
        (0, 4.9, 200, ""),
        (0, 5, None, "timed out: no answer within 5 s"),
    ]
    assert emulator.clock.elapsed == 5


async def test_an_answer_at_the_end_of_the_fifth_second_is_too_late():
    emulator = box()
    emulator.copy_to(Peer(emulator, 5.0))
    emulator.say("1001", "1002", "x")
    await emulator.deliver()
    assert log_of(emulator, "ok") == [(False,)]


async def test_a_receiver_that_hangs_is_left_and_the_resends_come_at_their_time():
    emulator = box()
    peer = Peer(emulator, AGES)
    emulator.copy_to(peer, "high-guarantee")
    emulator.say("1001", "1002", "x")
    await emulator.advance(3)
    assert log_of(emulator, "at", "took") == [(0, 5)]  # once begun, it is carried to its end
    assert emulator.clock.elapsed == 5
    await emulator.advance(hours=1)
    assert log_of(emulator, "at", "took", "attempt", "status") == [
        (0, 5, 1, None),
        (10, 5, 2, None),
        (45, 5, 3, None),
        (170, 5, 4, None),
    ]
    assert (peer.now, emulator.clock.elapsed) == (0, 3605)


async def test_a_receiver_that_waits_for_nothing_of_the_emulators_gets_so_much_real_time():
    emulator = box()
    emulator.copy_to(Peer(emulator, anyio.sleep_forever), patience=0.0)
    emulator.say("1001", "1002", "x")
    await emulator.deliver()
    assert log_of(emulator, "took", "reason") == [(5, "timed out: no answer within 5 s")]


async def test_a_receiver_may_work_for_real_before_it_waits_for_the_emulators_clock():
    emulator = box()

    async def work():
        await anyio.to_thread.run_sync(lambda: sum(range(1000)))
        await emulator.clock.sleep(3)
        return 200

    emulator.copy_to(Peer(emulator, work), patience=AGES)
    emulator.say("1001", "1002", "x")
    await emulator.advance(10)
    assert log_of(emulator, "at", "took", "status") == [(0, 3, 200)]
    assert emulator.clock.elapsed == 10


async def test_real_work_takes_no_emulated_time():
    emulator, go = box(), threading.Event()

    async def work():
        await anyio.to_thread.run_sync(go.wait, 30)
        return 503 if emulator.clock.elapsed < 5 else 200

    emulator.copy_to(Peer(emulator, work), "high-guarantee")
    for number in range(5):
        emulator.say("1001", f"2{number}", "x")
    timer = threading.Timer(0.05, go.set)
    timer.start()
    await emulator.advance(60)
    timer.join()
    assert log_of(emulator, "at", "took", "status") == [(0, 0, 503)] * 5 + [(5, 0, 200)] * 5


# Order.


async def test_a_conversation_keeps_its_order_while_others_go_on():
    emulator = box()
    peer = Peer(emulator, 3.0, 200)
    emulator.copy_to(peer)
    for sender, to, text in (("1", "2", "a1"), ("2", "1", "a2"), ("1", "3", "b1"), ("1", "2", "a3"), ("3", "1", "b2")):
        emulator.say(sender, to, text)
    await emulator.deliver()
    assert peer.got == [(0, "a1"), (0, "b1"), (0, "b2"), (3, "a2"), (3, "a3")]
    assert log_of(emulator, "key", "number") == [("1|2", 1), ("1|3", 3), ("1|3", 5), ("1|2", 2), ("1|2", 4)]


async def test_what_is_to_be_resent_holds_up_its_conversation_alone():
    emulator = box()
    peer = Peer(emulator, 503, 200)
    emulator.copy_to(peer, "high-guarantee")
    emulator.say("1", "2", "a1")
    emulator.say("1", "2", "a2")
    emulator.say("1", "3", "b1")
    await emulator.deliver()
    assert peer.texts == ["a1", "b1"]
    await emulator.advance(5)
    assert peer.texts == ["a1", "b1", "a1", "a2"]


async def test_what_is_to_be_resent_is_overtaken_where_the_dialect_says_so():
    emulator = box(dialect=Dialect(resend_holds_conversation=False, resend_after=(5.0, 30.0)))
    peer = Peer(emulator, 503, 503, 200, 503, 200)
    emulator.copy_to(peer, "high-guarantee")
    for text in ("a1", "a2", "a3"):
        emulator.say("1", "2", text)
    await emulator.deliver()
    assert peer.texts == ["a1", "a2", "a3"]
    await emulator.advance(5)
    assert peer.texts[3:] == ["a1", "a2"]
    emulator.say("1", "2", "a4")
    await emulator.deliver()
    assert peer.texts[5:] == ["a4"]
    await emulator.advance(30)
    assert peer.texts[6:] == ["a1"]
    await emulator.advance(hours=1)
    assert len(emulator.copier.dispatch.queues) == 0
    assert [(number, attempt) for number, attempt, ok in log_of(emulator, "number", "attempt", "ok") if ok] == [
        (3, 1),
        (2, 2),
        (4, 1),
        (1, 3),
    ]


@pytest.mark.parametrize(("lists", "members"), [(False, ["2", "3"]), (True, ["1", "2", "3"])])
async def test_the_members_of_a_message_to_a_group_are_without_the_sender_or_with_it(lists, members):
    emulator = box(dialect=Dialect(team_members_list_sender=lists))
    async with client_of(emulator) as client:
        group = await client.acting_as("1").groups.create(name="a", type=GroupType.TEMPORARY)
        await client.acting_as("1").groups.invite(group_id=group.group_id, members=["2", "3"])
    peer = Peer(emulator)
    emulator.copy_to(peer)
    emulator.say("1", group.group_id, "x")
    await emulator.deliver()
    listed = [account.partition("#")[2] for account in json.loads(peer.bodies[0])["tMembers"]]
    assert listed == members


async def test_who_is_listed_in_a_message_to_a_group_is_a_guess_where_it_is_copied():
    emulator = box(strict_dialect=True)
    async with client_of(emulator) as client:
        group = await client.acting_as("1").groups.create(name="a", type=GroupType.TEMPORARY)
    emulator.say("1", group.group_id, "x")
    emulator.copy_to(Peer(emulator))
    with pytest.raises(DependsOnDialect, match="team_members_list_sender"):
        emulator.say("1", group.group_id, "x")


@pytest.mark.parametrize(("unit", "stamp"), [("milliseconds", START), ("seconds", START // 1000)])
async def test_the_unit_of_the_time_of_a_message_is_the_same_for_emulator_and_parser(unit, stamp):
    dialect = Dialect(message_time_unit=unit)
    emulator = box(dialect=dialect)
    peer = Peer(emulator)
    emulator.copy_to(peer)
    emulator.say("1", "2", "x")
    await emulator.deliver()
    assert json.loads(peer.bodies[0])["msgTimestamp"] == str(stamp)
    assert peer.headers[0]["CurTime"] == str(START)
    event = parse(peer.bodies[0], dialect=dialect)
    assert (event.sent_at, event.msg_timestamp_text) == (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), str(stamp))


async def test_a_group_is_one_conversation_with_its_notifications():
    emulator = box()
    async with AsyncClient(
        base_url="http://emulator", credentials=emulator.credentials, clock=emulator.clock, transport=emulator
    ) as client:
        group_id = (await client.groups.create(name="a", type=GroupType.TEMPORARY)).group_id
        peer = Peer(emulator, 1.0)
        emulator.copy_to(peer)
        await client.groups.invite(group_id=group_id, members=["1001"])
        emulator.say("1001", group_id, "hello")
        emulator.push(group_id, "welcome")
        await client.groups.delete(group_id=group_id)
    await emulator.deliver()
    assert log_of(emulator, "at", "key") == [(n, group_id) for n in range(4)]
    assert [each.document["msgType"] for each in emulator.deliveries] == ["TEAM_JOIN", "TEXT", "TEXT", "TEAM_DISMISS"]


@pytest.mark.parametrize("concurrency", [1, 3, 50])
async def test_so_many_are_under_way_at_once_and_no_more(concurrency):
    emulator = box()
    peer = Peer(emulator, 1.0)
    emulator.copy_to(peer, concurrency=concurrency)
    for number in range(20):
        emulator.say("1", f"2{number:02}", "x")
    await emulator.deliver()
    assert peer.most == min(concurrency, 20)
    assert emulator.clock.elapsed == -(-20 // concurrency)
    assert len(emulator.deliveries.of(ok=True)) == 20


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    st.lists(st.sampled_from([200, 503, 1.0, 7.0]), max_size=20),
    st.integers(1, 4),
    st.sampled_from(["asyncio", "trio"]),
)
def test_whatever_fails_every_conversation_keeps_its_order(senders, answers, concurrency, backend):
    async def run():
        emulator = box()
        peer = Peer(emulator, *answers, 200)
        emulator.copy_to(peer, "high-guarantee", concurrency=concurrency)
        for number, sender in enumerate(senders):
            emulator.say(sender, "z", str(number))
        await emulator.advance(hours=10)
        assert len(emulator.copier.dispatch.queues) == 0
        assert peer.most <= concurrency
        tries = defaultdict(list)
        for each in emulator.deliveries:
            tries[each.key].append((each.number, each.attempt))
        for key, made in tries.items():
            assert made == sorted(made)
            assert {number for number, _ in made} == {n for n, sender in enumerate(senders, 1) if key == f"{sender}|z"}
        for number, most in Counter(each.number for each in emulator.deliveries).items():
            (last,) = [each for each in emulator.deliveries if (each.number, each.attempt) == (number, most)]
            assert last.ok or most == 4

    anyio.run(run, backend=backend)


def test_nothing_is_taken_from_empty_lanes():
    queues = DeliveryQueues()
    with pytest.raises(LookupError, match="no delivery"):
        queues.take()
    queues.put(QueuedDelivery(number=1, message_id="m", key="k", content=b"", document=None), 0.0)
    queues.clear()
    assert (queues.next_due(), len(queues)) == (None, 0)


# When.


async def test_nothing_happens_until_it_is_asked_for():
    emulator = box()
    peer = Peer(emulator)
    emulator.copy_to(peer)
    emulator.say("1", "2", "x")
    await emulator.clock.advance(hours=1)
    assert peer.got == []
    await emulator.deliver()
    await emulator.deliver()
    assert peer.got == [(3600, "x")]


async def test_what_others_say_while_time_passes_is_delivered_at_its_own_time():
    emulator = box()
    peer = Peer(emulator)
    emulator.copy_to(peer)

    async def chat():
        for text in ("a", "b", "c"):
            await emulator.clock.sleep(10)
            emulator.say("1", "2", text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(chat)
        await emulator.advance(60)
    assert peer.got == [(10, "a"), (20, "b"), (30, "c")]
    assert emulator.clock.elapsed == 60


async def test_what_a_receiver_says_is_delivered_as_well():
    emulator = box()

    async def echo(_, body):
        if text_of(body) == "ping":
            emulator.say("2", "1", "pong")
        return 200

    emulator.copy_to(echo)
    emulator.say("1", "2", "ping")
    await emulator.deliver()
    assert [each.document["body"] for each in emulator.deliveries] == ["ping", "pong"]


async def test_two_who_deliver_at_once_share_the_work():
    emulator = box()
    peer = Peer(emulator, 1.0)
    emulator.copy_to(peer, concurrency=2)
    for number in range(6):
        emulator.say("1", f"2{number}", str(number))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(emulator.deliver)
        tasks.start_soon(emulator.deliver)
    assert sorted(peer.texts) == list("012345")
    assert peer.most == 2


async def test_on_the_machines_clock_copies_go_out_as_things_happen():
    emulator = Emulator()
    arrived = anyio.Event()
    seen = []

    async def receive(_, body):
        seen.append(text_of(body))
        arrived.set()
        return 503 if len(seen) == 1 else 200

    emulator.copy_to(receive)
    async with emulator.copying():
        emulator.say("1", "2", "x")
        with anyio.fail_after(10):
            await arrived.wait()
        emulator.say("1", "2", "y")  # what is due when the block ends is delivered
    assert seen == ["x", "y"]
    emulator.say("1", "2", "z")
    await emulator.deliver()
    assert log_of(emulator, "status") == [(503,), (200,), (200,)]
    with pytest.raises(TypeError, match="EmulatedClock"):
        await emulator.advance(1)


async def test_on_the_machines_clock_a_resend_comes_by_itself():
    emulator = Emulator(dialect=Dialect(resend_after=(0.01,)))
    done = anyio.Event()

    async def receive(_, body):
        if "resendFlag" not in json.loads(body):
            return 503
        done.set()
        return 200

    emulator.copy_to(receive, "high-guarantee")
    emulator.say("1", "2", "x")
    async with emulator.copying():
        with anyio.fail_after(10):
            await done.wait()
    assert log_of(emulator, "attempt", "status") == [(1, 503), (2, 200)]


async def test_a_log_with_a_limit_keeps_the_latest_deliveries():
    emulator = box()
    emulator.deliveries.limit = 10
    for number in range(25):
        emulator.say("1001", "1002", str(number))
        await emulator.deliver()
        assert len(emulator.deliveries) <= 10
    assert [each.document["body"] for each in emulator.deliveries] == [
        str(n) for n in range(25 - len(emulator.deliveries), 25)
    ]


async def test_time_does_not_run_backwards():
    with pytest.raises(ValueError, match="backwards"):
        await box().advance(-1)


async def test_what_is_cut_off_waits_for_the_next_time():
    emulator = box()
    peer = Peer(emulator, anyio.sleep_forever, 200)
    emulator.copy_to(peer)
    emulator.say("1", "2", "a")
    emulator.say("1", "2", "b")

    async def block():
        async with emulator.copying():
            while not peer.got:
                await anyio.lowlevel.checkpoint()
            raise KeyError("key")  # the block's own

    with pytest.raises(KeyError, match="key"):
        await block()
    assert log_of(emulator, "attempt", "status", "reason") == [(1, None, "interrupted")]
    await emulator.deliver()
    assert peer.texts == ["a", "a", "b"]
    assert len(emulator.copier.dispatch.queues) == 0


async def test_who_is_cancelled_while_delivering_leaves_nothing_behind():
    emulator = box()
    peer = Peer(emulator, anyio.sleep_forever, 200)
    emulator.copy_to(peer, concurrency=1)
    emulator.say("1", "2", "a")
    emulator.say("1", "3", "b")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(emulator.deliver)
        while not peer.got:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    await emulator.deliver()
    assert peer.texts == ["a", "a", "b"]


async def test_a_change_of_address_holds_for_what_waits():
    emulator = box()
    one, two = Peer(emulator, 503), Peer(emulator)
    emulator.copy_to(one, "high-guarantee")
    emulator.say("1", "2", "a")
    emulator.say("1", "3", "b")
    await emulator.deliver()
    emulator.copy_to(two)
    await emulator.advance(5)
    assert (one.texts, two.texts) == (["a", "b"], ["a", "b"])
    emulator.say("1", "2", "c")
    emulator.copy_to(one, "high-guarantee")
    await emulator.deliver()
    emulator.copy_to(None)
    await emulator.advance(hours=1)
    assert one.texts == ["a", "b", "c"]


async def test_the_address_may_go_while_a_delivery_is_under_way():
    emulator = box()

    async def gone():
        emulator.copy_to(None)
        return 503

    peer = Peer(emulator, gone)
    emulator.copy_to(peer, "high-guarantee")
    emulator.say("1", "2", "a")
    emulator.say("1", "2", "b")
    await emulator.advance(hours=1)
    emulator.copy_to(Peer(emulator))
    await emulator.advance(hours=1)
    assert peer.texts == ["a"]
    assert len(emulator.deliveries) == 1


async def test_what_is_cut_off_when_the_address_is_gone_is_dropped():
    emulator = box()
    peer = Peer(emulator, anyio.sleep_forever)
    emulator.copy_to(peer)
    emulator.say("1", "2", "a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(emulator.deliver)
        while not peer.got:
            await anyio.lowlevel.checkpoint()
        emulator.copy_to(None)
        tasks.cancel_scope.cancel()
    other = Peer(emulator)
    emulator.copy_to(other)
    emulator.say("1", "2", "b")
    await emulator.deliver()
    assert other.texts == ["b"]


async def test_on_a_clock_that_goes_on_by_itself_a_receiver_is_waited_for_no_longer():
    emulator = box(clock=EmulatedClock(auto=True))
    emulator.copy_to(Peer(emulator, 3.0, AGES), "high-guarantee")
    emulator.say("1", "2", "a")
    emulator.say("1", "3", "b")
    await emulator.deliver()
    assert log_of(emulator, "at", "took", "status") == [(0, 3, 200), (0, 5, None)]


class Abort(BaseException):
    """Neither an answer nor an error: what a test framework raises to fail a test."""


async def test_what_is_no_exception_of_a_receiver_comes_out_bare():
    emulator = box()

    async def abort():
        raise Abort

    emulator.copy_to(Peer(emulator, abort))
    emulator.say("1", "2", "a")
    with pytest.raises(Abort):
        await emulator.deliver()


# Faults.


async def test_a_duplicate_is_the_same_to_the_byte_and_its_answer_changes_nothing():
    emulator = box()
    peer = Peer(emulator, 200, 200, 503, 503, 200)
    emulator.copy_to(peer, "high-guarantee")
    emulator.copy_faults.add(CopyFault(effect=Duplicate(extra=2), nth=(2,)))
    for text in "abc":
        emulator.say("1", "2", text)
    await emulator.deliver()
    assert peer.texts == ["a", "b", "b", "b", "c"]
    assert log_of(emulator, "number", "attempt", "duplicate", "status", "trouble") == [
        (1, 1, 0, 200, ()),
        (2, 1, 0, 200, ("duplicates",)),
        (2, 1, 1, 503, ("duplicates",)),
        (2, 1, 2, 503, ("duplicates",)),
        (3, 1, 0, 200, ()),
    ]
    sent = list(zip(peer.headers, peer.bodies, strict=True))
    assert sent[1] == sent[2] == sent[3]
    await emulator.advance(hours=1)
    assert len(peer.got) == 5


async def test_one_that_is_overtaken_comes_after_the_next_or_when_its_patience_is_over():
    emulator = box()
    peer = Peer(emulator)
    emulator.copy_to(peer)
    emulator.copy_faults.add(CopyFault(effect=Overtaken(by=2, patience=30), match={"body": "late"}))
    for text in ("a", "late", "b", "c", "d"):
        emulator.say("1", "2", text)
    emulator.say("1", "3", "elsewhere")
    await emulator.deliver()
    assert peer.texts == ["a", "b", "c", "late", "d", "elsewhere"]
    emulator.say("1", "2", "late")
    emulator.say("1", "2", "e")
    await emulator.deliver()
    assert peer.texts[6:] == ["e"]
    await emulator.advance(60)
    assert peer.got[7:] == [(30, "late")]


async def test_one_whose_patience_is_over_is_resent_at_its_time_whoever_comes_after():
    emulator = box()
    peer = Peer(emulator, 503, 200)
    emulator.copy_to(peer, "high-guarantee")
    emulator.copy_faults.add(CopyFault(effect=Overtaken(by=2, patience=30), match={"body": "late"}))
    emulator.say("1", "2", "late")
    await emulator.advance(31)
    for text in "abc":
        emulator.say("1", "2", text)
    await emulator.advance(hours=1)
    assert peer.got == [(30, "late"), (35, "late"), (35, "a"), (35, "b"), (35, "c")]


async def test_when_every_message_is_to_be_overtaken_none_is_lost():
    emulator = box()
    peer = Peer(emulator)
    emulator.copy_to(peer)
    emulator.copy_faults.add(CopyFault(effect=Overtaken()))
    for text in "abcdef":
        emulator.say("1", "2", text)
    await emulator.advance(60)
    assert sorted(peer.texts) == list("abcdef")


async def test_a_delay_holds_up_its_conversation_alone():
    emulator = box()
    peer = Peer(emulator, 503, 200)
    emulator.copy_to(peer, "high-guarantee")
    emulator.copy_faults.add(CopyFault(effect=Delay(2), nth=(1,), attempts=()))
    for to, text in (("2", "a1"), ("2", "a2"), ("3", "b1")):
        emulator.say("1", to, text)
    peer.script = [200, 503, 200]
    await emulator.advance(60)
    assert peer.got == [(0, "b1"), (2, "a1"), (9, "a1"), (9, "a2")]  # 2, then 5 + 2
    assert log_of(emulator, "number", "attempt", "trouble") == [
        (3, 1, ()),
        (1, 1, ("delay",)),
        (1, 2, ("delay",)),
        (2, 1, ()),
    ]


async def test_a_delay_with_a_spread_is_drawn_anew_for_each_message():
    emulator = box()
    peer = Peer(emulator)
    emulator.copy_to(peer)
    emulator.copy_faults.add(CopyFault(effect=Delay(1, sigma=0.5)))
    for number in range(50):
        emulator.say("1", f"2{number}", "x")
    await emulator.advance(hours=1)
    times = [at for at, _ in peer.got]
    assert times == sorted(times)
    assert len(set(times)) == 50
    assert 0.7 < times[25] < 1.4


async def test_a_tampered_body_differs_in_one_byte_from_what_was_signed():
    emulator = box()
    peer = Peer(emulator)
    emulator.copy_to(peer, "high-guarantee")
    emulator.say("1", "2", "x")
    emulator.say("1", "2", "x")
    emulator.copy_raw(b"")
    await emulator.deliver()
    genuine = peer.bodies[0]
    emulator.copy_faults.add(CopyFault(effect=Tamper()))
    peer.script = [401]
    for _ in range(3):
        emulator.say("1", "3", "x")
    emulator.copy_raw(b"")
    await emulator.advance(hours=1)
    for each in emulator.deliveries.of(attempt=1)[3:]:
        signed_body = each.body[:0] if not each.key else genuine
        assert each.trouble == ("tampered",)
        assert each.headers["MD5"] != md5(each.body).hexdigest().upper()
        if each.key:
            signed_body = json.dumps(genuine_document(each), ensure_ascii=False, separators=(",", ":")).encode()
            assert len(each.body) == len(signed_body)
            assert sum(a != b for a, b in zip(each.body, signed_body, strict=True)) == 1
        assert each.headers["MD5"] == md5(signed_body).hexdigest().upper()
    for each in emulator.deliveries.of(attempt=2):  # a resend is another try
        assert each.headers["MD5"] == md5(each.body).hexdigest().upper()


def genuine_document(delivery):
    return {
        "eventType": "1",
        "convType": "PERSON",
        "to": "3",
        "fromAccount": f"{APP_ID}#1",
        "msgTimestamp": str(START),
        "msgType": "TEXT",
        "body": "x",
        "msgId": delivery.message_id,
    }


@pytest.mark.parametrize(("age", "shift"), [(3600.0, -3_600_000), (-90.5, 90_500)])
async def test_a_stale_time_is_old_and_correctly_signed(age, shift):
    emulator = box()
    peer = Peer(emulator)
    emulator.copy_to(peer)
    emulator.copy_faults.add(CopyFault(effect=Stale(age)))
    emulator.say("1", "2", "x")
    await emulator.deliver()
    ((headers, body),) = zip(peer.headers, peer.bodies, strict=True)
    moment = str(START + shift)
    digest = md5(body).hexdigest().upper()
    assert headers["CurTime"] == moment
    assert headers["MD5"] == digest
    assert headers["CheckSum"] == md5(f"{APP_ID}{TOKEN}{digest}{moment}".encode()).hexdigest().upper()
    assert json.loads(body)["msgTimestamp"] == str(START)
    assert log_of(emulator, "trouble") == [(("stale",),)]


def met(plan, count=12, **fields):
    """Return the numbers of those of so many equal messages that the plan meets."""
    return [number for number in range(1, count + 1) if injection_of(plan.pick(fields), 1).names]


@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        ({"nth": [2, 5]}, [2, 5]),
        ({"every": 4}, [4, 8, 12]),
        ({"every": 4, "times": 2}, [4, 8]),
        ({"probability": 0.0}, []),
        ({"match": {"convType": "TEAM"}}, []),
        ({"match": {"convType": "PERSON"}, "times": 1}, [1]),
        ({"match": lambda body: body["convType"] != "TEAM", "nth": (3,)}, [3]),
        ({"attempts": (2, 3)}, []),
        ({"attempts": ()}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    ],
)
def test_a_fault_meets_those_that_it_selects(selection, numbers):
    plan = CopyFaults()
    plan.add(CopyFault(effect=Stale(), **selection))
    assert met(plan, convType="PERSON") == numbers


def test_a_share_by_chance_depends_on_the_seed_alone():
    def numbers(seed, *before):
        plan = CopyFaults(seed)
        plan.add(*before, CopyFault(effect=Stale(), probability=0.3))
        return met(plan, 200)

    assert numbers(1) == numbers(1) != numbers(2)
    assert 35 < len(numbers(1)) < 85
    assert numbers(1) != numbers(1, CopyFault(effect=Stale(), nth=(500,)))  # the second rule has a stream of its own


def test_a_plan_can_be_looked_at_and_emptied():
    plan, fault = CopyFaults(), CopyFault(effect=Duplicate())
    plan.add(fault, fault)
    assert list(plan) == [fault, fault]
    plan.clear()
    assert (list(plan), plan.pick({})) == ([], ())


def test_a_plan_is_read_from_json():
    document = [
        {"effect": {"kind": "delay", "seconds": 2, "sigma": 0.5}, "match": {"convType": "TEAM"}, "every": 3},
        {"effect": {"kind": "overtaken", "by": 2}, "probability": 0.1, "times": 4},
        {"effect": {"kind": "duplicate"}, "nth": [1, 2]},
        {"effect": {"kind": "tamper"}, "attempts": []},
        {"effect": {"kind": "stale", "seconds": -60}},
    ]
    assert copy_faults_from(json.loads(json.dumps(document))) == (
        CopyFault(effect=Delay(2, sigma=0.5), match={"convType": "TEAM"}, every=3),
        CopyFault(effect=Overtaken(by=2), probability=0.1, times=4),
        CopyFault(effect=Duplicate(), nth=(1, 2)),
        CopyFault(effect=Tamper(), attempts=()),
        CopyFault(effect=Stale(-60)),
    )


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "must be a list"),
        ([{"effect": {"kind": "explode"}}], "kind: 'explode' is not one of delay, overtaken, duplicate, tamper, stale"),
        ([{"effect": {"kind": "delay", "seconds": -1}}], "seconds: must be 0 to 1,000,000,000, not -1"),
        ([{"effect": {"kind": "delay", "seconds": 1, "sigma": 1e308}}], "sigma: must be 0 to 10, not"),
        ([{"effect": {"kind": "overtaken", "patience": 1e308}}], "patience: must be 0 to 1,000,000,000, not"),
        ([{"effect": {"kind": "stale", "seconds": 1e308}}], "seconds: must be -1,000,000,000 to 1,000,000,000, not"),
        ([{"effect": {"kind": "duplicate", "extra": 1001}}], "extra: must be 1 to 1,000, not 1001"),
        ([{"effect": {"kind": "duplicate", "extra": 1.5}}], "must be a whole number, not 1.5"),
        ([{"effect": {"kind": "tamper"}, "attempts": "123"}], "must be a list, not str"),
        ([{"effect": {"kind": "stale"}, "attempts": [0]}], "attempts: must be at least 1"),
        ([{"effect": {"kind": "stale"}, "colour": "red"}], "colour"),
        ([{"effect": {"kind": "stale"}, "match": 7}], "must be an object"),
    ],
)
def test_what_is_wrong_with_a_plan_is_said(document, said):
    with pytest.raises(InvalidRequest, match=said) as wrong:
        copy_faults_from(document)
    assert wrong.value.field == "copy_faults"


PLAN = (
    CopyFault(effect=Duplicate(), probability=0.2),
    CopyFault(effect=Overtaken(by=2, patience=7), probability=0.2),
    CopyFault(effect=Delay(0.5, sigma=1.0), probability=0.3, attempts=()),
    CopyFault(effect=Tamper(), probability=0.2),
    CopyFault(effect=Stale(900), every=5),
)


async def a_day(seed):
    emulator = box(seed=seed)
    emulator.copy_faults.add(*PLAN)
    chance = Random("what is said")

    async def receive(headers, body):
        if md5(body).hexdigest().upper() != headers["MD5"]:
            return 401
        mood = Random(headers["CheckSum"])
        await emulator.clock.sleep(mood.choice([0.0, 0.0, 0.3, 6.0]))
        return mood.choice([200, 200, 200, 500])

    emulator.copy_to(receive, "high-guarantee")
    for number in range(100):
        emulator.say(chance.choice("1234"), chance.choice("5678"), str(number))
        await emulator.advance(chance.expovariate(1))
    await emulator.advance(hours=25)
    return emulator.deliveries


def test_the_same_seed_gives_the_same_log_to_the_byte():
    one, same = anyio.run(a_day, 7), anyio.run(a_day, 7)
    assert one.trace() == same.trace()
    assert one.trace() == anyio.run(a_day, 7, backend="trio").trace()
    assert one.trace() != anyio.run(a_day, 8).trace()
    assert {name for each in one for name in each.trouble} == {"duplicates", "overtaken_by", "delay", "tampered", "stale"}
    assert {each.reason for each in one} == {"", "status 401", "status 500", "timed out: no answer within 5 s"}
    assert len({each.message_id for each in one}) == 100


# The log.


async def test_the_log_can_be_asked_and_written_as_json():
    emulator = box()
    emulator.copy_to(Peer(emulator, 503, 200), "high-guarantee")
    first = emulator.say("1", "2", "一", msg_type="PICTURE")
    emulator.push(["3", "4"], "b")
    emulator.copy_raw(b"\xff[")
    emulator.copy_raw(b"[]")
    await emulator.advance(60)
    log = emulator.deliveries
    assert [each.status for each in log.of(message_id=first)] == [503, 200]
    assert [each.message_id for each in log.of(ok=False)] == [first]
    assert [each.at for each in log.of(key="1|2", attempt=2)] == [5]
    assert [each.key for each in log.of(conv_type="CUSTOM_PERSON")] == ["REST|admin"]
    assert log.of(msg_type="PICTURE") == log.of(key="1|2")
    assert log.of(conv_type="TEAM") == []
    lines = log.trace().splitlines()
    read = [json.loads(line) for line in lines]
    assert json.loads(json.dumps([each.as_dict() for each in log])) == read
    assert read[0] == {
        "at": 0.0,
        "took": 0.0,
        "key": "1|2",
        "number": 1,
        "message_id": first,
        "attempt": 1,
        "duplicate": 0,
        "status": 503,
        "reason": "status 503",
        "trouble": [],
        "headers": dict(log.records[0].headers),
        "body": log.records[0].body.decode(),
    }
    assert read[2]["body"] == "\\xff["
    assert [each.document for each in list(log)[2:4]] == [{}, {}]
    log.clear()
    assert (list(log), len(log), log.trace()) == ([], 0, b"")
