"""Answers in time: whatever handlers and sinks do, whoever cancels what, each delivery is answered once and soon."""

import asyncio
import hashlib
import http.client
import json
import socket
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from contextlib import closing, contextmanager, suppress
from functools import partial

import anyio
import pytest
import uvicorn
from anyio.lowlevel import checkpoint

from helpers.credentials import APP_ID, CREDENTIALS, TOKEN
from rbim.callbacks import Backoff, Event, HandlerContext, MemorySink, Receiver, Router, SqliteInbox, Worker, sign
from rbim.callbacks.receiver.intake import SPOOL_BUDGET
from rbim.callbacks.worker.runner import WorkerThread
from rbim.emulator import EmulatedClock

GIVES_UP = 5.0  # seconds in which the platform wants its answer
SOON = 0.03  # a budget, in seconds of real time
LITTLE = 1.0  # what may come on top of it on a machine that is busy

UVLOOP = pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop", marks=pytest.mark.slow)
ASYNCIO = pytest.param(("asyncio", {}), id="asyncio")
TRIO = pytest.param(("trio", {}), id="trio")
everywhere = pytest.mark.parametrize("anyio_backend", [ASYNCIO, UVLOOP, TRIO])
on_asyncio = pytest.mark.parametrize("anyio_backend", [ASYNCIO, UVLOOP])


def content(number, group="g1"):
    document = {"eventType": "1", "convType": "TEAM", "to": group, "fromAccount": f"{APP_ID}#1001", "msgType": "TEXT"}
    return json.dumps(document | {"body": str(number), "msgId": f"{group}-{number}"}).encode()


def signed(body):
    """Sign with the standard library."""
    digest, moment = hashlib.md5(body).hexdigest(), str(time.time_ns() // 1_000_000)
    checksum = hashlib.md5(f"{APP_ID}{TOKEN}{digest}{moment}".encode()).hexdigest()
    return {"MD5": digest, "CurTime": moment, "CheckSum": checksum}


async def post(receiver, body):
    return (await receiver.receive(signed(body), body)).status


class Sink:
    """A sink that does what a test wants."""

    durable = False
    retention = 0.0

    def __init__(self, accept):
        self.began = Counter()
        self._accept = accept

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def accept(self, delivery):
        self.began[delivery.key] += 1
        await self._accept(delivery)
        return True


async def never(_):
    await anyio.sleep(10 * GIVES_UP)  # so that a test fails where nobody ends it


async def at_once(_):
    pass


def impatient(sink, **options):
    return Receiver(credentials=CREDENTIALS, sink=sink, budget=SOON, **options)


def left_over(receiver):
    """What is in the table of the timer that deliveries share on asyncio."""
    shared = receiver._intake._deadlines
    return {} if shared is None else shared.scopes


def per_mille(latencies, share):
    return sorted(latencies)[min(len(latencies) - 1, len(latencies) * share // 1000)] * 1000


# -------------------------------------------------------------------------------- handlers that misbehave


@contextmanager
def serving(receiver):
    """Serve a receiver in a thread by uvicorn, its lifespan included."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        config = uvicorn.Config(receiver.asgi, lifespan="on", log_config=None, access_log=False, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(timeout=30)
    assert not thread.is_alive()


def send_many(port, bodies):
    """Post one after the other on one connection; return each status and the seconds that it took."""
    answers = []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.connect()
        for body in bodies:
            began = time.perf_counter()
            connection.request("POST", "/", body, signed(body))
            response = connection.getresponse()
            response.read()
            answers.append((response.status, time.perf_counter() - began))
    return answers


class Misbehaving:
    """Handlers that do what a test wants, until it ends."""

    def __init__(self):
        self.over = threading.Event()
        self.began = 0
        self.ended = 0

    def block_in_a_thread(self, _):
        self.over.wait(60)

    async def block_the_loop(self, _):
        self.over.wait(60)

    async def hang(self, _):
        await anyio.sleep_forever()

    async def fail(self, _):
        reason = "a handler's own"
        raise ValueError(reason)

    async def spin(self, _):
        while not self.over.is_set():
            await checkpoint()

    def fallback(self, what):
        do = getattr(self, what)

        def blocking(event: Event) -> None:
            self.began += 1
            do(event)
            self.ended += 1

        async def waiting(event: Event) -> None:
            self.began += 1
            await do(event)
            self.ended += 1

        return blocking if what == "block_in_a_thread" else waiting


# who spins has Python's one lock as often as all others: under coverage, which traces each line, that takes seconds
@pytest.mark.parametrize(
    "what", ["block_in_a_thread", "block_the_loop", "hang", "fail", pytest.param("spin", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", [pytest.param("memory", marks=pytest.mark.slow), "sqlite"])
def test_a_handler_that_misbehaves_never_delays_an_answer(tmp_path, kind, what, capsys):
    misbehaving = Misbehaving()
    sink = MemorySink() if kind == "memory" else SqliteInbox(tmp_path / "events.db")
    receiver = Receiver(
        credentials=CREDENTIALS,
        sink=sink,
        concurrency=4,
        drain=0.05,
        backoff=Backoff(attempts=3, first=0.001, most=0.01),
        own_thread=what == "block_the_loop",
    )
    receiver.fallback(misbehaving.fallback(what))
    with serving(receiver) as port:
        (first,) = send_many(port, [content(0)])
        until = time.monotonic() + 10
        while not misbehaving.began:
            assert time.monotonic() < until, "no handler began"
            time.sleep(0.002)
        answers = [first]
        threads = [threading.Thread(target=lambda n=n: answers.extend(send_many(port, bodies(n)))) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert misbehaving.began > 0
        assert misbehaving.ended == 0
        misbehaving.over.set()
    latencies = [seconds for _, seconds in answers]
    with capsys.disabled():
        print(f"\n  {what}, {kind}: p50 {per_mille(latencies, 500):.1f} ms, worst {max(latencies) * 1000:.1f} ms")  # noqa: T201
    assert Counter(status for status, _ in answers) == {200: 201}
    assert max(latencies) < LITTLE


def bodies(sender):
    return [content(number, f"g{sender}-{number % 5}") for number in range(50)]


# -------------------------------------------------------------------- many events, and a handler that takes its time


def handled_once_and_in_order(log, conversations, each):
    """What the handlers wrote down: every event once, and each conversation in order."""
    orders = defaultdict(list)
    for group, number in log:
        orders[group].append(number)
    assert orders == {f"g{name}": list(range(each)) for name in range(conversations)}


@pytest.mark.parametrize("anyio_backend", [ASYNCIO])
async def test_ten_thousand_events_with_a_handler_of_5_seconds_are_answered_in_time_and_handled(tmp_path, capsys):
    conversations, each, places = 200, 50, 100
    count = conversations * each
    clock = EmulatedClock(auto=True)
    inbox = SqliteInbox(tmp_path / "events.db", clock=clock, lease=float("inf"), poll=0.02)
    receiver = Receiver(credentials=CREDENTIALS, sink=inbox)
    log, took, latencies, statuses = [], Counter(), [], Counter()
    running, peak = 0, 0
    router = Router()

    @router.fallback
    async def slow(event: Event, handling: HandlerContext) -> None:
        nonlocal running, peak
        began = clock.elapsed
        running += 1
        peak = max(peak, running)
        await clock.sleep(5)
        running -= 1
        took[clock.elapsed - began] += 1
        log.append((event.to, int(event.body)))
        assert handling.attempt == 1

    async def send(group):
        for number in range(each):
            body = content(number, group)
            headers = signed(body)
            began = time.perf_counter()
            reply = await receiver.receive(headers, body)
            latencies.append(time.perf_counter() - began)
            statuses[reply.status, reply.body] += 1

    before = time.perf_counter()
    async with receiver, WorkerThread(Worker(inbox, router, clock=clock, concurrency=places)):
        async with anyio.create_task_group() as tasks:
            for number in range(conversations):
                tasks.start_soon(send, f"g{number}")
        accepted = time.perf_counter() - before
        handled = len(log)
        with anyio.fail_after(60):
            while len(log) < count or (await inbox.counts()).done < count:
                await anyio.sleep(0.02)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n  {count} events accepted in {accepted:.1f} s of real time (p50 {per_mille(latencies, 500):.1f} ms,"
            f" p99 {per_mille(latencies, 990):.1f} ms, worst {max(latencies) * 1000:.1f} ms), {handled} handled by then,"
            f" all after {time.perf_counter() - before:.1f} s and {clock.elapsed:.0f} s of emulated time"
        )
    assert statuses == {(200, b""): count}
    assert max(latencies) < GIVES_UP
    handled_once_and_in_order(log, conversations, each)
    assert {round(seconds, 6) for seconds in took} == {5}
    assert peak <= places
    assert count * 5 / places <= clock.elapsed <= count * 5
    with closing(sqlite3.connect(tmp_path / "events.db")) as file:
        assert file.execute("SELECT state, attempts, count(*) FROM event GROUP BY 1, 2").fetchall() == [(1, 1, count)]


@pytest.mark.parametrize("anyio_backend", [ASYNCIO, TRIO])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_the_emulated_time_that_passes_is_what_the_concurrency_implies(tmp_path, kind):
    conversations, each, places = 60, 20, 30
    count = conversations * each
    clock = EmulatedClock()
    options = {"clock": clock, "poll": 0.01, "lease": float("inf")}
    inbox = MemorySink(capacity=count, clock=clock) if kind == "memory" else SqliteInbox(tmp_path / "events.db", **options)
    receiver = Receiver(credentials=CREDENTIALS, sink=inbox, clock=clock, own_thread=False, concurrency=places, drain=0)
    log, asleep = [], 0

    @receiver.fallback
    async def slow(event: Event) -> None:
        nonlocal asleep
        asleep += 1
        await clock.sleep(5)
        asleep -= 1
        log.append((event.to, int(event.body)))

    statuses = Counter()

    async def send(group):
        for number in range(each):
            body = content(number, group)
            statuses[(await receiver.receive(sign(body, credentials=CREDENTIALS, now=clock.now()), body)).status] += 1

    with anyio.fail_after(30):
        async with receiver:
            async with anyio.create_task_group() as tasks:
                for number in range(conversations):
                    tasks.start_soon(send, f"g{number}")
            assert statuses == {200: count}
            assert log == []  # all were answered while no time passed at all
            while len(log) < count:
                while asleep < min(places, count - len(log)):
                    await anyio.sleep(0.001)
                await clock.advance(5)
    assert clock.elapsed == count / places * 5
    handled_once_and_in_order(log, conversations, each)


# -------------------------------------------------------------------------------- sinks that do not answer


@everywhere
async def test_many_deliveries_to_a_sink_that_never_answers_are_each_answered_once_when_the_budget_is_over():
    receiver, took, statuses = impatient(Sink(never)), [], Counter()

    async def one(number):
        await anyio.sleep(number % 50 / 1000)
        began = time.perf_counter()
        statuses[await post(receiver, content(number))] += 1
        took.append(time.perf_counter() - began)

    async with receiver:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for number in range(500):
                    tasks.start_soon(one, number)
        assert left_over(receiver) == {}
    assert statuses == {503: 500}
    assert set(receiver.sink.began.values()) == {1}
    assert len(receiver.sink.began) == 500
    assert min(took) >= SOON - 0.002
    assert max(took) < SOON + LITTLE


@everywhere
async def test_each_delivery_has_its_own_budget_and_no_more():
    receiver, ends = impatient(Sink(never)), []

    async def one(number):
        began = time.perf_counter()
        await post(receiver, content(number))
        ends.append(time.perf_counter() - began)

    async with receiver, anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(one, number)
            await anyio.sleep(0.004)
    assert len(ends) == 30
    assert min(ends) >= SOON - 0.002
    assert max(ends) < SOON + LITTLE


@everywhere
async def test_deliveries_that_are_quick_slow_and_lost_do_not_disturb_each_other():
    async def accept(delivery):
        number = int(delivery.event.body)
        if number % 3 == 1:
            await anyio.sleep(0.002 * (number % 5))
        elif number % 3 == 2:
            await anyio.sleep_forever()

    receiver, statuses = Receiver(credentials=CREDENTIALS, sink=Sink(accept), budget=1), {}

    async def one(number):
        for again in range(2):
            statuses[number, again] = await post(receiver, content(number, f"{again}"))

    async with receiver:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for number in range(90):
                    tasks.start_soon(one, number)
        assert left_over(receiver) == {}
        assert await post(receiver, content(0)) == 200
    assert statuses == {(n, again): 503 if n % 3 == 2 else 200 for n in range(90) for again in range(2)}


@everywhere
async def test_what_the_sink_does_not_take_in_time_goes_into_the_spool_in_time(tmp_path):
    receiver, took = impatient(Sink(never), spool=tmp_path / "spool"), []

    async def one(number):
        began = time.perf_counter()
        assert await post(receiver, content(number, f"g{number}")) == 200
        took.append(time.perf_counter() - began)

    async with receiver:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    tasks.start_soon(one, number)
        assert left_over(receiver) == {}
    assert max(took) < SOON + LITTLE
    with closing(sqlite3.connect(tmp_path / "spool")) as spool:
        assert spool.execute("SELECT count(*) FROM event WHERE state = 0").fetchall() == [(100,)]


@everywhere
async def test_after_the_time_was_over_the_next_deliveries_are_taken_in_the_same_task():
    async def accept(delivery):
        if int(delivery.event.body) % 2:
            await anyio.sleep_forever()

    async with impatient(Sink(accept)) as receiver:
        for number in range(6):
            assert await post(receiver, content(number)) == (503 if number % 2 else 200)
            await checkpoint()
            await anyio.sleep(SOON * 1.2 if number == 3 else 0)  # the timer rests, and starts anew
            assert cancels() == 0
        assert left_over(receiver) == {}


def cancels():
    """How many cancellations the task still owes."""
    try:
        return asyncio.current_task().cancelling()
    except RuntimeError:  # trio has no such thing
        return 0


# ----------------------------------------------------------------- sinks with scopes and tasks of their own


async def ends_itself_sooner(_):
    with anyio.move_on_after(SOON / 5):
        await anyio.sleep_forever()
    await anyio.sleep_forever()


async def ends_itself_at_the_same_moment(_):
    with anyio.move_on_after(SOON):
        time.sleep(SOON * 1.2)  # so that both ends are due in one turn of the loop
        await anyio.sleep_forever()
    await anyio.sleep_forever()


async def ends_itself_again_and_again(_):
    while True:
        with anyio.move_on_after(0.001):
            await anyio.sleep_forever()


async def would_end_itself_later(_):
    with anyio.fail_after(60):
        await anyio.sleep_forever()


async def has_a_shield_for_a_while(_):
    with anyio.CancelScope(shield=True):
        await anyio.sleep(SOON / 5)
    await anyio.sleep_forever()


async def has_tasks(_):
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(anyio.sleep_forever)


async def has_tasks_in_tasks(_):
    async with anyio.create_task_group() as outer:
        outer.start_soon(has_tasks, None)
        async with anyio.create_task_group() as inner:
            inner.start_soon(has_tasks, None)
            await anyio.sleep_forever()


async def stops_its_tasks_at_the_same_moment(_):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep_forever)
        tasks.cancel_scope.deadline = anyio.current_time() + SOON
        time.sleep(SOON * 1.2)
        await anyio.sleep_forever()
    await anyio.sleep_forever()


async def waits_for_a_thread_that_it_abandons(_):
    over = threading.Event()
    try:
        await anyio.to_thread.run_sync(over.wait, 20, abandon_on_cancel=True)
    finally:
        over.set()


async def cleans_up_for_a_moment(_):
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.002)


async def says_what_went_wrong_instead(_):
    try:
        await anyio.sleep_forever()
    finally:
        reason = "the connection is lost"
        raise OSError(reason)


OF_ANYIO = [
    ends_itself_sooner,
    ends_itself_at_the_same_moment,
    ends_itself_again_and_again,
    would_end_itself_later,
    has_a_shield_for_a_while,
    has_tasks,
    has_tasks_in_tasks,
    stops_its_tasks_at_the_same_moment,
    waits_for_a_thread_that_it_abandons,
    cleans_up_for_a_moment,
    says_what_went_wrong_instead,
]


async def answered_in_time(accept):
    """Deliver to such a sink, twice alone and five times at once; each is answered in time, and nothing is left behind."""
    receiver, statuses = impatient(Sink(accept)), []

    async def one(number):
        began = time.perf_counter()
        statuses.append(await post(receiver, content(number)))
        assert time.perf_counter() - began < 7 * SOON + LITTLE
        await checkpoint()
        assert cancels() == 0

    async with receiver:
        with anyio.fail_after(2):
            await one(0)
            await one(1)
            async with anyio.create_task_group() as tasks:
                for number in range(2, 7):
                    tasks.start_soon(one, number)
        assert left_over(receiver) == {}
    assert statuses == [503] * 7


@everywhere
@pytest.mark.parametrize("accept", OF_ANYIO, ids=lambda each: each.__name__)
async def test_a_sink_with_scopes_of_its_own_is_left_in_time(accept):
    await answered_in_time(accept)


async def times_out_by_asyncio_sooner(_):
    with suppress(TimeoutError):
        async with asyncio.timeout(SOON / 5):
            await asyncio.sleep(60)
    await asyncio.sleep(60)


async def times_out_by_asyncio_at_the_same_moment(_):
    with suppress(TimeoutError):
        async with asyncio.timeout(SOON):
            time.sleep(SOON * 1.2)
            await asyncio.sleep(60)
    await asyncio.sleep(60)


async def waits_for(_):
    await asyncio.wait_for(asyncio.Event().wait(), 60)


async def has_asyncio_tasks(_):
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(60))
        tasks.create_task(has_tasks(None))


async def gathers(_):
    await asyncio.gather(*(asyncio.sleep(60) for _ in range(3)))


async def shields(_):
    waiting = asyncio.ensure_future(asyncio.sleep(60))
    try:
        await asyncio.shield(waiting)
    finally:
        waiting.cancel()


OF_ASYNCIO = [
    times_out_by_asyncio_sooner,
    times_out_by_asyncio_at_the_same_moment,
    waits_for,
    has_asyncio_tasks,
    gathers,
    shields,
]


@on_asyncio
@pytest.mark.parametrize("accept", OF_ASYNCIO, ids=lambda each: each.__name__)
async def test_a_sink_with_asyncios_own_means_is_left_in_time(accept):
    await answered_in_time(accept)


async def gives_back_what_hangs_too(_):
    """As a pool does whose database is gone: giving back the connection asks it once more."""
    try:
        await anyio.sleep_forever()
    finally:
        await anyio.sleep(20)


async def tries_again_after_a_cancellation(_):
    """As what takes every cancellation for the end of a time-out of its own."""
    with suppress(BaseException):
        await anyio.sleep_forever()
    await anyio.sleep(20)


async def a_task_of_it_fails_while_it_is_cancelled(_):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(says_what_went_wrong_instead, None)
        await anyio.sleep_forever()


@everywhere
async def test_what_a_sink_shields_is_not_interrupted(anyio_backend_name):
    written = []

    async def accept(delivery):
        with anyio.CancelScope(shield=True):
            await anyio.sleep(SOON * 1.5)
            written.append(delivery.body)

    async with impatient(Sink(accept)) as receiver:
        assert await post(receiver, content(1)) in {200, 503}
        assert cancels() == 0
        assert left_over(receiver) == {}
    assert written == [content(1)], f"a shield does not hold on {anyio_backend_name}"


@everywhere
@pytest.mark.parametrize("accept", [gives_back_what_hangs_too, tries_again_after_a_cancellation], ids=lambda e: e.__name__)
async def test_a_sink_that_hangs_again_when_it_is_cancelled_is_left_in_time_too(accept):
    await answered_in_time(accept)


@everywhere
async def test_a_sink_of_which_a_task_fails_while_it_is_cancelled_is_left_in_time():
    await answered_in_time(a_task_of_it_fails_while_it_is_cancelled)


# --------------------------------------------------------------------------- cancellations from outside


@everywhere
async def test_a_scope_around_it_that_ends_sooner_ends_it():
    async with impatient(Sink(never)) as receiver:
        with anyio.move_on_after(SOON / 5) as scope:
            await post(receiver, content(1))
        assert scope.cancelled_caught
        assert left_over(receiver) == {}
        await anyio.sleep(SOON * 1.2)  # its own end comes and finds nothing
        assert cancels() == 0


@everywhere
@pytest.mark.parametrize("difference", [-0.001, 0.0, 0.001])
async def test_a_scope_that_ends_at_the_same_moment_ends_once(difference):
    async with impatient(Sink(never)) as receiver:
        for number in range(3):
            reply = None
            with anyio.move_on_after(SOON + difference) as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(block_past_the_end)
                    reply = await post(receiver, content(number))
                    await checkpoint()
            assert scope.cancel_called
            assert scope.cancelled_caught
            assert reply in {None, 503}
            assert cancels() == 0
            await checkpoint()
            assert left_over(receiver) == {}


async def block_past_the_end():
    await anyio.sleep(SOON / 2)
    time.sleep(SOON)


@on_asyncio
@pytest.mark.parametrize("when", ["sooner", "just before", "just after"])
async def test_a_task_that_is_cancelled_is_cancelled_also_at_the_moment_of_its_time_out(when):
    loop = asyncio.get_running_loop()
    at = {"sooner": SOON / 5, "just before": SOON - 0.0005, "just after": SOON + 0.0005}[when]
    outcomes = Counter()
    async with impatient(Sink(never)) as receiver:
        for number in range(5):
            until = loop.time() + SOON
            task = asyncio.create_task(post(receiver, content(number)))
            handle = loop.call_at(until - SOON + at, task.cancel)
            if when != "sooner":
                loop.call_at(until - 0.02, time.sleep, 0.03)  # both fall due in one turn of the loop
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            outcomes[type(ended)] += 1
            handle.cancel()
            assert left_over(receiver) == {}
    assert set(outcomes) == {asyncio.CancelledError}, "a cancellation was swallowed"


@on_asyncio
@pytest.mark.parametrize("difference", [-0.0005, 0.0005])
async def test_a_time_out_of_asyncio_around_it_at_the_same_moment_counts_once(difference):
    loop = asyncio.get_running_loop()
    async with impatient(Sink(never)) as receiver:
        for number in range(5):
            loop.call_later(SOON - 0.02, time.sleep, 0.03)
            try:
                async with asyncio.timeout(SOON + difference):
                    status = await post(receiver, content(number))
                    assert status == 503
                    await asyncio.sleep(SOON)
            except TimeoutError:
                pass
            else:
                pytest.fail("the time-out was swallowed")
            assert cancels() == 0
            assert left_over(receiver) == {}


@on_asyncio
async def test_a_cancellation_while_the_sink_cleans_up_after_its_time_out_is_not_swallowed():
    cleaning = asyncio.Event()

    async def accept(_):
        try:
            await asyncio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                cleaning.set()
                await asyncio.shield(asyncio.sleep(0.02))

    async with impatient(Sink(accept)) as receiver:
        task = asyncio.create_task(post(receiver, content(1)))
        await cleaning.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert left_over(receiver) == {}


@everywhere
async def test_a_cancelled_task_group_of_deliveries_leaves_nothing_behind():
    async with impatient(Sink(never)) as receiver:
        for delay in (0, SOON / 2, SOON * 0.99, SOON, SOON * 1.01):
            async with anyio.create_task_group() as tasks:
                for number in range(50):
                    tasks.start_soon(post, receiver, content(number))
                await anyio.sleep(delay)
                tasks.cancel_scope.cancel()
            assert left_over(receiver) == {}
        receiver.sink._accept = at_once
        assert await post(receiver, content(1)) == 200


@everywhere
@pytest.mark.parametrize("whole", [True, False])
async def test_requests_that_their_server_cancels_leave_nothing_behind(whole):
    """As servers do whose client hangs up: while the body is read, and while the sink has it."""
    async with impatient(Sink(never)) as receiver:
        for delay in (0, SOON / 2, SOON * 0.99, SOON, SOON * 1.01):
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(partial(ask_at_the_door, receiver, content(number), whole=whole))
                await anyio.sleep(delay)
                tasks.cancel_scope.cancel()
            assert left_over(receiver) == {}
        receiver.sink._accept = at_once
        assert await ask_at_the_door(receiver, content(1), whole=True) == 200


@everywhere
async def test_what_the_sink_has_at_the_very_moment_is_answered_once():
    """The sink is done in the same turn of the loop in which the time is over: either answer will do, one of them comes."""

    async def accept(_):
        done = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(finish, done)
            await done.wait()

    async def finish(done):
        await anyio.sleep(SOON / 2)
        time.sleep(SOON)
        done.set()

    async with impatient(Sink(accept)) as receiver:
        for number in range(3):
            with anyio.fail_after(5):
                assert await post(receiver, content(number)) in {200, 503}
            await checkpoint()
            assert cancels() == 0
            assert left_over(receiver) == {}


# -------------------------------------------------------------------------- one receiver in several loops

LOOPS = {"asyncio": ("asyncio", {}), "uvloop": ("asyncio", {"use_uvloop": True}), "trio": ("trio", {})}


def run(name, function, *args):
    backend, options = LOOPS[name]
    return anyio.run(function, *args, backend=backend, backend_options=options)


async def a_slow_and_a_quick_one(receiver):
    async with receiver:
        with anyio.fail_after(5):
            receiver.sink._accept = never
            slow = await post(receiver, content("slow"))
            receiver.sink._accept = at_once
            return slow, await post(receiver, content("quick"))


@pytest.mark.parametrize("then", LOOPS)
@pytest.mark.parametrize("first", LOOPS)
def test_a_receiver_may_be_entered_in_one_loop_after_the_other(first, then):
    receiver = impatient(Sink(at_once))
    for name in (first, then):
        assert run(name, a_slow_and_a_quick_one, receiver) == (503, 200)


def test_a_receiver_with_an_inbox_may_be_entered_in_one_loop_after_the_other(tmp_path):
    receiver = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "events.db"))

    async def one(number):
        async with receiver:
            return await post(receiver, content(number)), (await receiver.sink.counts()).waiting

    assert [run(name, one, number) for number, name in enumerate(["asyncio", "uvloop", "asyncio", "trio"])] == [
        (200, 1),
        (200, 2),
        (200, 3),
        (200, 4),
    ]


async def ask_at_the_door(receiver, body, *, whole):
    """Ask the receiver's door, with a body that never ends unless it is whole; return the status."""
    sent, parts = [], [{"type": "http.request", "body": body, "more_body": not whole}]
    headers = [(name.lower().encode(), value.encode()) for name, value in signed(body).items()]

    async def receive():
        if not parts:
            await anyio.sleep_forever()
        return parts.pop()

    async def send(message):
        sent.append(message)

    with anyio.fail_after(2):
        await receiver.asgi({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
    return sent[0]["status"]


@pytest.mark.parametrize("then", LOOPS)
@pytest.mark.parametrize("first", LOOPS)
def test_the_door_of_a_receiver_that_was_left_answers_in_another_loop(first, then):
    async def enter_and_leave(receiver, rest):
        async with receiver:
            assert await post(receiver, content("quick")) == 200
            await anyio.sleep(rest)

    async def ask(receiver, whole):
        return await ask_at_the_door(receiver, content(1), whole=whole), await post(receiver, content(2))

    for rest in (0, SOON * 1.2):  # the timer of the first loop waits for something, or for nothing
        for whole in (True, False):
            receiver = impatient(Sink(at_once))
            run(first, enter_and_leave, receiver, rest)
            assert run(then, ask, receiver, whole) == (503 if whole else 400, 503)


# ---------------------------------------------------------------------------------- with an emulated clock


@everywhere
async def test_by_an_emulated_clock_the_budget_ends_to_the_moment():
    clock = EmulatedClock()
    receiver = Receiver(credentials=CREDENTIALS, sink=Sink(never), clock=clock)
    ends = []

    async def one(number):
        body = content(number)
        reply = await receiver.receive(sign(body, credentials=CREDENTIALS, now=clock.now()), body)
        ends.append((number, reply.status, clock.elapsed))

    async with receiver, anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(one, number)
            await clock.advance(0.25)
        await clock.advance(2)
    assert ends == [(number, 503, number / 4 + 2) for number in range(20)]
    assert clock.next_due() is None


def test_the_times_here_are_the_platforms():
    assert Receiver(credentials=CREDENTIALS, sink=Sink(never))._intake.budget + SPOOL_BUDGET < GIVES_UP
