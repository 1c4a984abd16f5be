"""Message copy, how it goes out: modes, the time limit, order, faults. Nothing waits for real."""

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime
from hashlib import md5
from random import Random

import anyio
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from helpers.credentials import APP_ID, TOKEN
from helpers.emulators import box
from helpers.tables import each_row
from rbim import Dialect, InvalidRequest
from rbim.callbacks import parse
from rbim.emulator import Emulator, Rules
from rbim.emulator.faults import (
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
    assert len({headers["MD5"] for headers in peer.headers}) == 2  # resendFlag is signed


async def test_high_guarantee_copy_gives_up_in_the_end():
    emulator = box(rules=Rules(resend_after=(1.0, 2.0)))
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


@each_row(
    "answer, status, reason",
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


@each_row("status", [201, 202, 203, 204, 206])
async def test_a_success_other_than_200_is_resent_in_high_guarantee_mode(status):
    emulator = box(rules=Rules(resend_after=(5.0,)))
    peer = Peer(emulator, status)
    emulator.copy_to(peer, "high-guarantee")
    emulator.say("1001", "1002", "x")
    await emulator.advance(60)
    assert peer.got == [(0, "x"), (5, "x")]
    assert log_of(emulator, "attempt", "status", "ok") == [(1, status, False), (2, status, False)]


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


# Order.


@each_row("unit, stamp", [("milliseconds", START), ("seconds", START // 1000)])
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # whatever the machine is busy with
@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    st.lists(st.sampled_from([200, 503, 1.0, 7.0]), max_size=20),
    st.integers(1, 4),
)
def test_whatever_fails_every_conversation_keeps_its_order(senders, answers, concurrency):
    async def run():
        emulator = box()
        peer = Peer(emulator, *answers, 200)
        emulator.copy_to(peer, "high-guarantee", concurrency=concurrency)
        for number, sender in enumerate(senders):
            emulator.say(sender, "z", str(number))
        await emulator.advance(hours=10)
        assert len(emulator.copier.queue) == 0
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

    anyio.run(run)


# When.


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
    assert len(emulator.copier.queue) == 0


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
    assert [text for text in peer.texts if text != "elsewhere"] == ["a", "b", "c", "late", "d"]
    emulator.say("1", "2", "late")
    emulator.say("1", "2", "e")
    await emulator.deliver()
    assert peer.texts[6:] == ["e"]
    await emulator.advance(60)
    assert peer.got[7:] == [(30, "late")]


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


@each_row("age, shift", [(3600.0, -3_600_000), (-90.5, 90_500)])
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


@each_row(
    "selection, numbers",
    [
        ({"every": 4, "times": 2}, [4, 8]),
        ({"match": {"convType": "TEAM"}}, []),
        ({"match": lambda body: body["convType"] != "TEAM", "nth": (3,)}, [3]),
        ({"attempts": (2, 3)}, []),
        ({"attempts": (), "times": 1}, [1]),
    ],
)
def test_a_fault_meets_those_that_it_selects(selection, numbers):
    plan = CopyFaults()
    plan.add(CopyFault(effect=Stale(), **selection))
    met = [number for number in range(1, 13) if injection_of(plan.pick({"convType": "PERSON"}), 1).names]
    assert met == numbers


async def test_a_tampered_body_differs_in_one_byte_from_what_was_signed():
    emulator = box()
    peer = Peer(emulator, 401)
    emulator.copy_to(peer, "high-guarantee")
    emulator.copy_faults.add(CopyFault(effect=Tamper()))
    emulator.say("1", "2", "x")
    await emulator.advance(hours=1)
    first, second = (each for each in emulator.deliveries if each.attempt <= 2)
    resent = b',"resendFlag":"1"'
    assert (first.trouble, second.trouble) == (("tampered",), ())
    genuine = second.body.replace(resent, b"")  # a resend is another try
    assert second.headers["MD5"] == md5(second.body).hexdigest().upper()
    assert first.headers["MD5"] == md5(genuine).hexdigest().upper()
    assert sum(a != b for a, b in zip(first.body, genuine, strict=True)) == 1


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


@each_row(
    "document, said",
    [
        ([{"effect": {"kind": "explode"}}], "kind: 'explode' is not one of delay, overtaken, duplicate, tamper, stale"),
        ([{"effect": {"kind": "delay", "seconds": 1, "sigma": 1e308}}], "sigma: must be 0 to 10, not"),
        ([{"effect": {"kind": "stale", "seconds": 1e308}}], "seconds: must be -1,000,000,000 to 1,000,000,000, not"),
        ([{"effect": {"kind": "duplicate", "extra": 1001}}], "extra: must be 1 to 1,000, not 1001"),
        ([{"effect": {"kind": "tamper"}, "attempts": "123"}], "must be a list, not str"),
        ([{"effect": {"kind": "stale"}, "attempts": [0]}], "attempts: must be at least 1"),
        ([{"effect": {"kind": "stale"}, "colour": "red"}], "colour"),
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
    for number in range(60):
        emulator.say(chance.choice("1234"), chance.choice("5678"), str(number))
        await emulator.advance(chance.expovariate(1))
    await emulator.advance(hours=25)
    return emulator.deliveries


def test_the_same_seed_gives_the_same_log_to_the_byte():
    one, same = anyio.run(a_day, 7), anyio.run(a_day, 7)
    assert one.trace() == same.trace()
    assert one.trace() != anyio.run(a_day, 8).trace()
    assert {name for each in one for name in each.trouble} == {"duplicates", "overtaken_by", "delay", "tampered", "stale"}
    assert {each.reason for each in one} == {"", "status 401", "status 500", "timed out: no answer within 5 s"}
    assert len({each.message_id for each in one}) == 60
