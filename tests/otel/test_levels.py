"""Metrics of jobs, inboxes and receivers: what OpenTelemetry is told is what they themselves say."""

import sqlite3
import threading
import time
from datetime import timedelta

import anyio
import pytest

from helpers.credentials import APP_ID, CREDENTIALS
from helpers.deliveries import delivery, unreadable
from helpers.jobs import Sending, World
from helpers.receiving import OLD, body, post
from helpers.waiting import until
from rbim import AlreadyMember, Throttled
from rbim.bulk.job import InviteJob
from rbim.callbacks import (
    Accepted,
    Backoff,
    DeadLettered,
    Event,
    Handled,
    HandlingFailed,
    HungHandler,
    LoopBlocked,
    MemorySink,
    NotEntered,
    PartEnded,
    PartRestarted,
    Quarantined,
    Reason,
    Receiver,
    Refused,
    Skewed,
    Spooled,
    SqliteInbox,
    SuspectedOfCrash,
)
from rbim.emulator.clock import START
from rbim.otel.levels import LEVELS


def test_every_level_has_a_name_of_its_own_and_a_unit():
    assert len({level.name for level in LEVELS}) == len(LEVELS)
    assert all(level.name.startswith(f"rbim.{level.source}.") and level.unit and level.description for level in LEVELS)


# ------------------------------------------------------------------------------------------- jobs


def rows(telemetry):
    return {about["rbim.state"]: value for about, value in telemetry.points("rbim.job.rows")}


async def test_how_far_a_job_is_while_it_runs_and_when_it_has_ended(telemetry, tmp_path):
    world = World()
    async with world.client:
        group = await world.group()
        job = InviteJob(world.client, journal=tmp_path / "journal", chunk=10, rates=[])
        given = [(group, f"u{number}") for number in range(200)] + [(group, "u0"), (group, "")]
        seen = []
        async with job.run(given) as progress:
            with telemetry.observer.observe_job(progress, "customers"):
                async for snapshot in progress:
                    read = rows(telemetry)
                    assert sum(read.values()) == snapshot.total
                    seen.append(read)
                assert telemetry.points("rbim.job.eta") == [({"rbim.job": "customers"}, 0)]
                requests = telemetry.points("rbim.job.requests")
            assert telemetry.points("rbim.job.requests") == []
    assert seen[-1] == {
        "waiting": 0,
        "done": 200,
        "refused": 0,
        "failed": 0,
        "unknown": 0,
        "skipped": 1,
        "duplicate": 1,
    }
    assert requests == [({"rbim.job": "customers"}, 20)]


async def test_a_jobs_pace_and_its_throttled_requests(telemetry, tmp_path):
    refusals = [Throttled(), Throttled(), AlreadyMember()]
    sending = Sending(lambda _: refusals.pop() if refusals else None, seconds=1.0)
    job = sending.job(tmp_path / "journal", chunk=1, concurrency=4)
    most = {"in_flight": 0.0, "rate": 0.0, "request_rate": 0.0, "concurrency": 0.0, "eta": 0.0}
    async with job.run([("g", f"u{number}") for number in range(20)]) as progress:
        telemetry.observer.observe_job(progress)
        async for _ in progress:
            for name, value in most.items():
                points = telemetry.points(f"rbim.job.{name}")
                most[name] = max([value, *(point for about, point in points if about == {"rbim.job": "job"})])
        assert telemetry.points("rbim.job.throttled") == [({"rbim.job": "job"}, 2)]
        assert rows(telemetry)["failed"] + rows(telemetry)["refused"] == 1
    assert (most["in_flight"], most["concurrency"]) == (4, 4)
    assert 0 < most["rate"] <= 4.5
    assert 0 < most["request_rate"] <= 4.5
    assert most["eta"] > 0


async def test_another_thread_may_collect_whenever_it_likes(telemetry, tmp_path, caplog):
    sending = Sending(seconds=0.3)
    over = threading.Event()
    collected = []

    def collect():
        while not over.is_set():
            collected.append(len(telemetry.points("rbim.job.rows")))
            time.sleep(0.001)

    thread = threading.Thread(target=collect)
    async with sending.job(tmp_path / "journal", chunk=1, concurrency=10).run([("g", f"u{n}") for n in range(100)]) as run:
        with telemetry.observer.observe_job(run):
            thread.start()
            try:
                async for _ in run:
                    pass
                await until(lambda: collected)
            finally:
                over.set()
                thread.join(timeout=20)
    assert set(collected) == {7}
    assert not caplog.records


# ----------------------------------------------------------------------------------------- inboxes


def events(telemetry):
    return {about["rbim.state"]: value for about, value in telemetry.points("rbim.inbox.events")}


async def test_an_inbox_is_counted_again_and_again_and_its_lag_is_the_age_of_what_waits_longest(telemetry, tmp_path, clock):
    async with SqliteInbox(tmp_path / "events.db", clock=clock) as inbox:
        await inbox.accept(unreadable(at=START - timedelta(seconds=500)))
        async with telemetry.observer.observe_inbox(inbox, every=10):
            assert events(telemetry) == {"waiting": 0, "done": 0, "dead": 0, "quarantined": 1}
            assert telemetry.points("rbim.inbox.lag") == [({"rbim.inbox": "events.db"}, 0)]
            await inbox.accept(delivery(1, at=START - timedelta(seconds=90)))
            await inbox.accept(delivery(2, "c", at=START - timedelta(seconds=20)))
            assert events(telemetry)["waiting"] == 0
            await clock.advance(10)
            await until(lambda: events(telemetry)["waiting"] == 2)
            ((_, lag),) = telemetry.points("rbim.inbox.lag")
            assert lag == pytest.approx(100)
            async with inbox.backlog() as backlog:
                (claim,) = await backlog.claim(1)
                assert claim.received == START - timedelta(seconds=90)
                await backlog.done([claim], more=0)
            await clock.advance(10)
            await until(lambda: events(telemetry)["done"] == 1)
            ((_, lag),) = telemetry.points("rbim.inbox.lag")
            assert lag == pytest.approx(40)
        assert events(telemetry) == {}


async def test_an_inbox_that_cannot_be_counted_has_no_numbers_rather_than_old_ones(telemetry, tmp_path, clock, caplog):
    class Failing(SqliteInbox):
        fails = False

        async def counts(self):
            if Failing.fails:
                reason = "disk I/O error"
                raise sqlite3.OperationalError(reason)
            return await super().counts()

    async with Failing(tmp_path / "events.db", clock=clock) as inbox:
        async with telemetry.observer.observe_inbox(inbox, "mine", every=10):
            assert events(telemetry)["waiting"] == 0
            Failing.fails = True
            await clock.advance(10)
            await until(lambda: not events(telemetry))
            Failing.fails = False
            await clock.advance(10)
            await until(lambda: events(telemetry))
            assert telemetry.points("rbim.inbox.lag") == [({"rbim.inbox": "mine"}, 0)]
        (record,) = [record for record in caplog.records if record.name == "rbim"]
        assert record.levelname == "WARNING"
        assert "events.db could not be counted" in record.getMessage()


async def test_an_inbox_that_was_not_entered_is_refused(telemetry, tmp_path):
    with pytest.raises(RuntimeError, match="async with inbox"):
        async with telemetry.observer.observe_inbox(SqliteInbox(tmp_path / "events.db")):
            pass


async def test_what_the_block_raises_comes_out_as_it_is(telemetry, tmp_path, clock):
    async with SqliteInbox(tmp_path / "events.db", clock=clock) as inbox:
        with pytest.raises(KeyError):
            async with telemetry.observer.observe_inbox(inbox):
                raise KeyError
        assert events(telemetry) == {}


async def test_the_lag_of_an_inbox_goes_by_its_own_clock_and_is_never_negative(tmp_path, clock):
    async with SqliteInbox(tmp_path / "events.db", clock=clock) as inbox:
        assert await inbox.lag() == 0
        await inbox.accept(delivery(1, at=START + timedelta(seconds=50)))
        assert await inbox.lag() == 0
        await clock.advance(60)
        assert await inbox.lag() == pytest.approx(10)


# --------------------------------------------------------------------------------------- receivers


class Away(MemorySink):
    """A sink that fails until it is back."""

    accept_now = None
    back = False

    async def accept(self, delivery, /):
        if not self.back:
            raise OSError
        return await super().accept(delivery)


async def test_the_overflow_file_is_counted_until_the_sink_has_taken_what_is_in_it(telemetry, tmp_path, clock):
    sink = Away(clock=clock)
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, spool=tmp_path / "spool", name="eu", clock=clock)
    assert await receiver.overflow() is None
    async with receiver, telemetry.observer.observe_receiver(receiver, every=10):
        assert telemetry.points("rbim.receiver.overflow") == [({"rbim.receiver": "eu"}, 0)]
        for number in range(3):
            assert (await post(receiver, body(msgId=f"m{number}", to=f"g{number}"))).status == 200
        await clock.advance(10)
        await until(lambda: telemetry.points("rbim.receiver.overflow") == [({"rbim.receiver": "eu"}, 3)])
        sink.back = True
        await until(lambda: len(sink.events) == 3, clock)
        await until(lambda: telemetry.points("rbim.receiver.overflow") == [({"rbim.receiver": "eu"}, 0)], clock)
    assert telemetry.points("rbim.receiver.overflow") == []
    assert await receiver.overflow() is None


async def test_a_receiver_without_an_overflow_file_has_no_number_of_what_is_in_it(telemetry):
    async with Receiver(credentials=CREDENTIALS, sink=MemorySink()) as receiver:
        assert await receiver.overflow() is None
        async with telemetry.observer.observe_receiver(receiver):
            assert telemetry.points("rbim.receiver.overflow") == []


async def test_the_overflow_file_beside_an_inbox_in_a_file_is_counted(telemetry, tmp_path):
    receiver = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "events.db"))
    async with receiver, telemetry.observer.observe_receiver(receiver, "mine"):
        assert telemetry.points("rbim.receiver.overflow") == [({"rbim.receiver": "mine"}, 0)]


async def test_what_a_receiver_answered_and_what_was_left_of_its_time(telemetry, clock):
    class Slow(MemorySink):
        accept_now = None

        async def accept(self, delivery, /):
            await clock.sleep(0.5)
            return await super().accept(delivery)

    sink = Slow(clock=clock)
    receiver = Receiver(
        credentials=[CREDENTIALS, OLD],
        sink=sink,
        clock=clock,
        mode="high-guarantee",
        observers=[telemetry.observer.on_callback],
    )
    content = body()
    statuses = []

    async def deliver(content, **how):
        statuses.append((await post(receiver, content, **how)).status)

    async with receiver:
        for each, how in (
            (content, {}),
            (content, {}),
            (body(msgId="m2"), {"credentials": OLD}),
            (b"no JSON", {}),
        ):
            async with anyio.create_task_group() as tasks:
                before = len(statuses)
                tasks.start_soon(lambda each=each, how=how: deliver(each, **how))
                await until(lambda before=before: len(statuses) > before, clock)
        await deliver(body(msgId="m3"), MD5="0" * 32)
        await deliver(body(msgId="m4"), at=clock.now() - timedelta(hours=1))
    assert statuses == [200, 200, 200, 200, 401, 401]
    counted = {tuple(about.values()): number for about, number in telemetry.points("rbim.receiver.deliveries")}
    assert counted == {("accepted",): 3, ("known",): 1, ("refused", "checksum_mismatch"): 1, ("refused", "stale"): 1}
    ((_, (count, total)),) = telemetry.points("rbim.receiver.headroom")
    assert count == 4
    assert 4 * 4.2 < total <= 4 * 4.5
    assert telemetry.points("rbim.receiver.quarantined") == [({"rbim.reason": "unreadable"}, 1)]
    assert telemetry.points("rbim.receiver.old_tokens") == [({}, 1)]
    exported = telemetry.text()
    for secret in (CREDENTIALS.app_token.reveal(), "你好", "m1", APP_ID):
        assert secret not in exported


async def test_what_a_worker_came_to(telemetry):
    backoff = Backoff(first=0.001, attempts=2)
    sink = MemorySink()
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, backoff=backoff, observers=[telemetry.observer.on_callback])

    @receiver.fallback
    async def handle(event: Event) -> None:
        if event.body == "fails":
            raise KeyError

    async with receiver:
        await post(receiver, body(msgId="m1"))
        await post(receiver, body(msgId="m2", body="fails"))
        await until(lambda: sink.dead and telemetry.points("rbim.worker.handling.duration"))
        await until(lambda: telemetry.points("rbim.worker.dead_letters"))
    about = {"rbim.handler": handle.__qualname__}
    assert telemetry.points("rbim.worker.failures") == [(about, 2)]
    assert telemetry.points("rbim.worker.dead_letters") == [({**about, "rbim.reason": "failure"}, 1)]
    ((_, (handled, _)),) = telemetry.points("rbim.worker.handling.duration")
    assert handled == 1


def test_each_fact_counts_once(telemetry):
    for fact in (
        Accepted(key="k", new=True, elapsed=6.0),
        Spooled(key="k", why="slow", kept=True),
        Spooled(key="k", why="slow", kept=False),
        Refused(reason=Reason.STALE, detail="d"),
        Skewed(skew=301.0, accepted=False),
        Skewed(skew=-61.0, accepted=True),
        Quarantined(key="k", problem="p"),
        Quarantined(key="k", problem="p", other_content=True),
        Handled(key="k", attempt=1, elapsed=0.25),
        HandlingFailed(key="k", attempt=1, error="e", pause=1.0),
        DeadLettered(key="k", attempt=2, error="e"),
        DeadLettered(key="k", attempt=1, error="e", crashes=4),
        SuspectedOfCrash(key="k", crashes=1, alone=True, app_id="a"),
        HungHandler(key="k", attempt=1, seconds=60.0, event="Text", handler="f", app_id="a"),
        LoopBlocked(handler="f", seconds=20.0, stack="s"),
        PartEnded(part="worker", error="e", pause=1.0),
        PartEnded(part="receiver", error="e", pause=1.0),
        PartRestarted(part="worker", restarts=1),
        NotEntered(),
    ):
        telemetry.observer.on_callback(fact)
    told = {name: telemetry.points(name) for name in telemetry.collect()}
    assert told == {
        "rbim.receiver.deliveries": [
            ({"rbim.result": "accepted"}, 1),
            ({"rbim.result": "unavailable"}, 1),
            ({"rbim.result": "refused", "error.type": "stale"}, 1),
        ],
        "rbim.receiver.headroom": [({}, (1, 0))],
        "rbim.receiver.spooled": [({}, 1)],
        "rbim.receiver.quarantined": [({"rbim.reason": "unreadable"}, 1), ({"rbim.reason": "other content"}, 1)],
        "rbim.receiver.ends": [({"rbim.part": "worker"}, 1), ({"rbim.part": "receiver"}, 1)],
        "rbim.receiver.restarts": [({"rbim.part": "worker"}, 1)],
        "rbim.receiver.not_entered": [({}, 1)],
        "rbim.worker.crashes": [({}, 1)],
        "rbim.worker.hung": [({"rbim.handler": "f"}, 1)],
        "rbim.worker.blocked": [({"rbim.handler": "f"}, 1)],
        "rbim.receiver.skewed": [({"rbim.result": "refused"}, 1), ({"rbim.result": "accepted"}, 1)],
        "rbim.worker.handling.duration": [({}, (1, 0.25))],
        "rbim.worker.failures": [({}, 2)],
        "rbim.worker.dead_letters": [({"rbim.reason": "failure"}, 1), ({"rbim.reason": "crash"}, 1)],
    }
