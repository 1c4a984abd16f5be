"""The receiver: what it answers to what, what it keeps, and what it does when the sink is slow, failing or full."""

import hashlib
import logging
import re
import sqlite3
from contextlib import closing
from datetime import timedelta
from math import inf

import anyio
import pytest

from helpers.credentials import APP_ID, CREDENTIALS, TOKEN
from helpers.receiving import OLD, body, post, results_for
from helpers.waiting import until
from helpers.workers import Panic
from rbim import Credentials, Dialect, InvalidRequest
from rbim.callbacks import (
    Accepted,
    Event,
    Policy,
    Quarantined,
    Reason,
    Receiver,
    Refused,
    Skewed,
    Spooled,
    SqliteInbox,
    Text,
    sign,
)
from rbim.emulator import EmulatedClock, Emulator


class Sink:
    """A sink that does what a test wants."""

    durable = False
    retention = 0.0

    def __init__(self, accept=None):
        self.deliveries = []
        self.entered = 0
        self._accept = accept

    async def __aenter__(self):
        self.entered += 1
        return self

    async def __aexit__(self, *_):
        self.entered -= 1

    async def accept(self, delivery):
        if self._accept is not None:
            await self._accept(delivery)
        self.deliveries.append(delivery)
        return True


@pytest.fixture
def make(clock, facts):
    def make(sink=None, **options):
        settings = {
            "credentials": CREDENTIALS,
            "sink": sink or Sink(),
            "clock": clock,
            "observers": [results_for(facts.append)],
        }
        return Receiver(**settings | options)

    return make


# ------------------------------------------------------------------------------------ answers


async def test_what_is_authentic_is_kept_and_answered_200(make, facts, clock):
    async with make() as receiver:
        reply = await post(receiver, body())
        (kept,) = receiver.sink.deliveries
    assert (reply.status, reply.body) == (200, b"")
    assert isinstance(kept.event, Text)
    assert (kept.app_id, kept.body, kept.received, kept.problem) == (APP_ID, body(), clock.now(), None)
    assert [type(fact) for fact in facts] == [Accepted]
    assert facts[0].key == kept.key
    assert facts[0].new


async def test_every_failure_of_authentication_has_the_same_answer(make, facts):
    content = body()
    moment = make().clock.now()
    good = sign(content, credentials=CREDENTIALS, now=moment)
    millis = int(good["CurTime"])

    def dated(milliseconds):
        checksum = hashlib.md5(f"{APP_ID}{TOKEN}{good['MD5']}{milliseconds}".encode()).hexdigest()
        return good | {"CurTime": str(milliseconds), "CheckSum": checksum}

    cases = {
        Reason.MISSING_HEADER: ({}, content),
        Reason.DUPLICATE_HEADER: ([*good.items(), ("md5", good["MD5"])], content),
        Reason.BAD_FORMAT: (good | {"MD5": "x"}, content),
        Reason.BODY_MISMATCH: (good, content + b" "),
        Reason.CHECKSUM_MISMATCH: (good | {"CheckSum": "0" * 32}, content),
        Reason.STALE: (dated(millis - 300_001), content),
        Reason.FUTURE: (dated(millis + 60_001), content),
        Reason.SECONDS_NOT_MILLISECONDS: (dated(millis // 1000), content),
    }
    async with make() as receiver:
        replies = {reason: await receiver.receive(*case) for reason, case in cases.items()}
        assert receiver.sink.deliveries == []
    assert {(reply.status, reply.body, *reply.headers.items()) for reply in replies.values()} == {
        (401, b"refused\n", ("content-type", "text/plain; charset=utf-8"))
    }
    assert [fact.reason for fact in facts if isinstance(fact, Refused)] == list(cases)
    skews = [(fact.skew, fact.accepted) for fact in facts if isinstance(fact, Skewed)]
    assert skews == [(300.001, False), (-60.001, False)]


async def test_what_can_never_be_read_has_an_answer_of_its_own(make, facts):
    async with make() as receiver:
        encoded = await post(receiver, body(), **{"Content-Encoding": "gzip"})
        large = await post(receiver, b"x" * (1024 * 1024 + 1))
    assert [(reply.status, reply.body) for reply in (encoded, large)] == [(415, b"refused\n"), (413, b"refused\n")]
    assert [fact.reason for fact in facts] == [Reason.UNSUPPORTED_ENCODING, Reason.TOO_LARGE]


async def test_a_signed_empty_object_is_a_probe(make):
    async with make() as receiver:
        for content in (b"{}", b" {}\n", b"{ }", b"\xef\xbb\xbf{}", "{}".encode("utf-16")):
            assert (await post(receiver, content)).status == 200
            assert (await post(receiver, content, MD5="0" * 32)).status == 401
        assert receiver.sink.deliveries == []


async def test_what_is_authentic_and_cannot_be_read_goes_to_quarantine_and_is_answered_200(make, facts):
    async with make() as receiver:
        for content in (b"", b"no json", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"a": 1e999}', b"{} {}"):
            assert (await post(receiver, content)).status == 200
            kept = receiver.sink.deliveries.pop()
            assert (kept.event, kept.body) == (None, content)
            assert kept.problem.startswith("the body cannot be read: ")
    assert [type(fact) for fact in facts] == [Quarantined, Accepted] * 8


async def test_another_applications_sender_goes_to_quarantine_as_well(make, facts):
    other = Credentials(app_id="b" * 32, app_token="c" * 32)
    async with make(credentials=[CREDENTIALS, other]) as receiver:
        assert (await post(receiver, body(fromAccount=f"{other.app_id}#1001"))).status == 200
        assert (await post(receiver, body(fromAccount=f"{other.app_id}#1001"), credentials=other)).status == 200
        assert (await post(receiver, body(fromAccount="1001"))).status == 200
        foreign, own, bare = receiver.sink.deliveries
    assert foreign.problem == f"app_mismatch: signed by application {APP_ID}, sent by an account of {other.app_id}"
    assert (own.problem, own.app_id, bare.problem) == (None, other.app_id, None)
    assert [fact.problem for fact in facts if isinstance(fact, Quarantined)] == [foreign.problem]


async def test_no_token_is_in_anything_that_is_told_or_shown(make, facts, caplog):
    caplog.set_level(logging.DEBUG)
    async with make(credentials=[CREDENTIALS, OLD]) as receiver:
        await post(receiver, body(), credentials=OLD)
        await post(receiver, body(), MD5="0" * 32)
        shown = f"{receiver!r} {vars(receiver)} {facts} {caplog.text}"
    assert TOKEN not in shown
    assert "0" * 32 not in shown.replace(repr("0" * 32), "")


async def test_it_is_entered_once_at_a_time(make):
    async with make() as receiver:
        with pytest.raises(RuntimeError, match="entered already"):
            async with receiver:
                pass
        assert (await post(receiver, body())).status == 200


# ------------------------------------------------------------------- outside the policy's limits


@pytest.fixture
def inbox(tmp_path, clock):
    return SqliteInbox(tmp_path / "events.db", clock=clock)


HOUR = 3600
DAY = 24 * HOUR


async def skewed(receiver, clock, content, seconds):
    """Post a delivery whose CurTime is so many seconds before this machine's clock; return the status."""
    return (await post(receiver, content, at=clock.now() - timedelta(seconds=seconds))).status


HALF = 3.5 * DAY  # of the inbox's retention
SKEWS = [
    # seconds, whether it is a resend, the status in normal and in high-guarantee mode
    (300, "0", 200, 200),
    (-60, "0", 200, 200),
    (300.001, "0", 200, 401),
    (300.001, "1", 200, 200),
    (-60.001, "0", 200, 401),
    (-60.001, "1", 200, 200),
    (8 * HOUR, "0", 200, 401),
    (-8 * HOUR, "0", 200, 401),
    (HALF, "0", 200, 401),
    (HALF, "1", 200, 200),
    (-HALF, "1", 200, 200),
    (HALF + 0.001, "0", 401, 401),
    (HALF + 0.001, "1", 401, 401),
    (-HALF - 0.001, "0", 401, 401),
    (-HALF - 0.001, "1", 401, 401),
]


async def test_what_is_outside_the_limits_is_accepted_by_mode_and_reported(make, clock, inbox, facts):
    wrong = []
    for mode, place in (("normal", 2), ("high-guarantee", 3)):
        async with make(inbox, mode=mode) as receiver:
            for number, row in enumerate(SKEWS):
                seconds, flag, status = row[0], row[1], row[place]
                facts.clear()
                found = await skewed(receiver, clock, body(resendFlag=flag, msgId=f"{mode} {number}"), seconds)
                reported = [(fact.skew, fact.accepted) for fact in facts if isinstance(fact, Skewed)][:1]
                if (found, reported) != (status, [] if -60 <= seconds <= 300 else [(seconds, status == 200)]):
                    wrong.append((mode, row, found, reported))
    assert wrong == []


@pytest.mark.parametrize("mode", ["normal", "high-guarantee"])
async def test_the_dialect_decides_what_is_accepted_outside_the_limits(make, clock, tmp_path, mode):
    for accepts, statuses in (("refused", [401, 401]), ("resends", [401, 200]), ("accepted", [200, 200])):
        chosen = {f"{mode.replace('-', '_')}_out_of_time": accepts}
        dialect = Dialect(**chosen, delivery_max_age=10, delivery_max_ahead=None)
        inbox = SqliteInbox(tmp_path / accepts, clock=clock)
        async with make(inbox, mode=mode, dialect=dialect) as receiver:
            assert [await skewed(receiver, clock, body(resendFlag=flag), 10.001) for flag in "01"] == statuses
            assert await skewed(receiver, clock, body(msgId="in time"), 10) == 200
            assert await skewed(receiver, clock, body(msgId="ahead"), -1000 * DAY) == 200


@pytest.mark.parametrize("first", [-HALF, 0, HALF - 1])
async def test_no_replay_is_handled_again_however_wrong_the_clock_is(make, clock, tmp_path, first):
    handled = []
    receiver = make(SqliteInbox(tmp_path / "events.db", clock=clock, lease=600))

    @receiver.fallback
    async def anything(event: Event) -> None:
        handled.append(event.msg_id)

    signed_at = clock.now() - timedelta(seconds=first)
    async with receiver:
        assert (await post(receiver, body(), at=signed_at)).status == 200
        await until(lambda: handled, clock)
        answers = []
        for _ in range(16):
            await clock.advance(DAY / 2)
            await skewed(receiver, clock, body(msgId=f"later {clock.now()}"), 0)  # the inbox forgets old keys meanwhile
            answers.append((await post(receiver, body(), at=signed_at)).status)
    assert answers == sorted(answers)  # at some time it is refused, and from then on
    assert answers[-1] == 401
    assert handled.count("m1") == 1


async def test_a_replay_after_a_restart_is_recognised(make, clock, tmp_path, facts):
    signed_at = clock.now()
    for _ in range(2):
        async with make(SqliteInbox(tmp_path / "events.db", clock=clock)) as receiver:
            assert (await post(receiver, body(), at=signed_at)).status == 200
        await clock.advance(DAY)
    assert [fact.new for fact in facts if isinstance(fact, Accepted)] == [True, False]


async def test_a_retention_without_end_leaves_the_limits_finite_and_a_short_one_does_not_narrow_them(make, clock, tmp_path):
    async with make(SqliteInbox(tmp_path / "endless.db", clock=clock, retention=inf)) as receiver:
        assert await skewed(receiver, clock, body(), 1000 * DAY) == 200
        assert await skewed(receiver, clock, body(), 5 * 366 * DAY) == 401
    async with make(SqliteInbox(tmp_path / "short.db", clock=clock, retention=10)) as receiver:
        assert [await skewed(receiver, clock, body(), seconds) for seconds in (300, -60, 300.001)] == [200, 200, 401]


async def test_both_limits_together_are_not_wider_than_the_retention(make, clock, inbox):
    table = [
        (Policy(back=5 * DAY), 5 * DAY, -2 * DAY),
        (Policy(ahead=6 * DAY), DAY, -6 * DAY),
        (Policy(back=7 * DAY - 60), 7 * DAY - 60, -60),
    ]
    for policy, oldest, earliest in table:
        async with make(inbox, policy=policy) as receiver:
            for inside, outside in ((oldest, oldest + 0.001), (earliest, earliest - 0.001)):
                assert [await skewed(receiver, clock, body(), seconds) for seconds in (inside, outside)] == [200, 401]
    for policy in (Policy(back=30 * DAY), Policy(back=7 * DAY), Policy(ahead=8 * DAY, back=None)):
        with pytest.raises(InvalidRequest, match="recognises deliveries for 604800 s only") as raised:
            make(inbox, policy=policy)
        assert raised.value.field == "policy"
        assert make(Sink(), policy=policy)  # not durable: only the limits protect against replays


# --------------------------------------------------------------------------- slow and failing sinks


async def never(_):
    await anyio.sleep_forever()


async def fail(_):
    raise OSError(28, "no space left")


async def within(clock, seconds, call):
    """Let a call take its emulated time and return what it gave."""
    results = []

    async def run():
        results.append(await call)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await clock.advance(seconds)
    return results[0]


def spooled(path):
    """Return how many deliveries a spool holds."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        return file.execute("SELECT count(*) FROM delivery").fetchone()[0]


SLOW_AND_FAILING = [(never, 2, "the sink took longer than 2 s"), (fail, 0, r"OSError: \[Errno 28\] no space left")]


@pytest.mark.parametrize(("accept", "seconds", "why"), SLOW_AND_FAILING)
async def test_in_normal_mode_the_spool_takes_what_the_sink_does_not(make, clock, facts, tmp_path, accept, seconds, why):
    async with make(Sink(accept), spool=tmp_path / "spool.db") as receiver:
        reply = await within(clock, seconds, post(receiver, body()))
    assert reply.status == 200
    told, accepted = facts
    assert isinstance(told, Spooled)
    assert re.search(why, told.why)
    assert told.kept
    assert isinstance(accepted, Accepted)
    assert spooled(tmp_path / "spool.db") == 1


@pytest.mark.parametrize("accept", [never, fail])
async def test_in_high_guarantee_mode_the_answer_is_503(make, clock, facts, tmp_path, accept):
    async with make(Sink(accept), mode="high-guarantee", spool=tmp_path / "spool.db") as receiver:
        reply = await within(clock, 2, post(receiver, body()))
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert [fact.kept for fact in facts if isinstance(fact, Spooled)] == [False]
    assert not (tmp_path / "spool.db").exists()


async def test_the_spool_hands_over_in_order_as_soon_as_the_sink_takes_it(make, clock, tmp_path):
    broken, refused = True, 0

    async def accept(_):
        nonlocal refused
        if broken:
            refused += 1
            raise OSError

    sink = Sink(accept)
    async with make(sink, spool=tmp_path / "spool.db") as receiver:
        assert (await post(receiver, body(msgId="0"))).status == 200
        await until(lambda: refused == 2)  # by the spool, too: it pauses now, by the emulated clock
        for number in range(1, 5):
            assert (await post(receiver, body(msgId=str(number)))).status == 200
        broken = False
        # what follows goes behind it, though the sink would take it
        assert (await post(receiver, body(msgId="5"))).status == 200
        assert (await post(receiver, body(msgId="other", to="g2"))).status == 200
        await until(lambda: len(sink.deliveries) == 7, clock)
        assert (await post(receiver, body(msgId="6"))).status == 200
        await until(lambda: len(sink.deliveries) == 8, clock)
    assert [delivery.event.msg_id for delivery in sink.deliveries if delivery.event.to == "g1"] == list("0123456")


async def test_what_is_left_in_the_spool_is_handed_over_by_the_next_run_in_either_mode(make, clock, tmp_path):
    async with make(Sink(fail), spool=tmp_path / "spool.db") as receiver:
        assert (await post(receiver, body())).status == 200
        assert (await post(receiver, b"no json")).status == 200
    sink = Sink()
    async with make(sink, spool=tmp_path / "spool.db", mode="high-guarantee"):
        await until(lambda: len(sink.deliveries) == 2, clock)
    assert {delivery.problem is None for delivery in sink.deliveries} == {True, False}
    assert {delivery.body for delivery in sink.deliveries} == {body(), b"no json"}


async def stray_cancellation(_):
    raise anyio.get_cancelled_exc_class()


async def panic(_):
    raise Panic


async def several(_):
    raise BaseExceptionGroup(str(), [Panic(), OSError()])  # noqa: UP018


async def test_whatever_a_sink_raises_the_spool_takes_it(make, tmp_path):
    """Also a cancellation that nobody asked for."""
    for accept in (panic, several, stray_cancellation):
        path = tmp_path / accept.__name__
        async with make(Sink(accept), spool=path) as receiver:
            assert (await post(receiver, body())).status == 200
        assert spooled(path) == 1


async def test_the_inbox_is_no_spool_and_a_spool_no_inbox(make, inbox, tmp_path):
    with pytest.raises(InvalidRequest, match="is the inbox itself"):
        make(inbox, spool=tmp_path / "." / "events.db")
    async with make(inbox):
        pass
    with pytest.raises(InvalidRequest, match="cannot be a spool: it is an inbox"):
        await make(Sink(), spool=tmp_path / "events.db").__aenter__()
    with pytest.raises(InvalidRequest, match="cannot be an inbox: it is a spool"):
        await SqliteInbox(tmp_path / "events.db-spool").__aenter__()


async def test_what_follows_one_that_the_sink_does_not_take_waits_for_it_and_goes_behind_it(make, clock, tmp_path):
    async def first_never(delivery):
        if delivery.body == body(msgId="1"):
            await anyio.sleep_forever()

    sink = Sink(first_never)
    async with make(sink, spool=tmp_path / "spool.db") as receiver:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, receiver, body(msgId="1"))
            await anyio.wait_all_tasks_blocked()
            await clock.advance(1)
            tasks.start_soon(post, receiver, body(msgId="2"))
            tasks.start_soon(post, receiver, body(msgId="else", to="g2"))
            await anyio.wait_all_tasks_blocked()
            assert [delivery.event.msg_id for delivery in sink.deliveries] == ["else"]
            await clock.advance(1)
        assert [delivery.event.msg_id for delivery in sink.deliveries] == ["else"]
        sink._accept = None
        await until(lambda: len(sink.deliveries) == 3, clock)
    assert [delivery.event.msg_id for delivery in sink.deliveries] == ["else", "1", "2"]
    assert receiver._intake._lines == {}


# ------------------------------------------------------------------------------------ handling


def test_its_credentials_can_come_from_the_environment(monkeypatch):
    monkeypatch.delenv("RBIM_CALLBACK_CREDENTIALS_FILE", raising=False)
    monkeypatch.delenv("RBIM_APP_ID", raising=False)
    with pytest.raises(InvalidRequest, match="RBIM_APP_ID"):
        Receiver.from_env(sink=Sink())
    monkeypatch.setenv("RBIM_APP_ID", APP_ID)
    monkeypatch.setenv("RBIM_APP_TOKEN", TOKEN)
    assert isinstance(Receiver.from_env(sink=Sink(), mode="high-guarantee"), Receiver)


# ----------------------------------------------------------------- with the emulator at the other end


async def test_what_the_emulator_copies_arrives_resends_and_duplicates_once(tmp_path):
    clock = EmulatedClock(auto=False)
    emulator = Emulator(credentials=CREDENTIALS, clock=clock)
    inbox = SqliteInbox(tmp_path / "events.db", clock=clock)
    async with Receiver(credentials=CREDENTIALS, sink=inbox, clock=clock, mode="high-guarantee") as receiver:
        emulator.copy_to(receiver, mode="high-guarantee")
        for number in range(20):
            emulator.say("1001", "1002", f"text {number}")
        await emulator.deliver()
        assert [delivery.status for delivery in emulator.deliveries] == [200] * 20
        assert (await inbox.counts()).waiting == 20
