"""Answers in time: whatever handlers and sinks do, whoever cancels what, each delivery is answered once and soon."""

import asyncio
import http.client
import itertools
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from contextlib import closing, suppress
from functools import partial
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.lowlevel import checkpoint

from helpers.credentials import CREDENTIALS
from helpers.receiving import body as body_of
from helpers.receiving_asgi import Sink as Keeping, signed
from helpers.serving import served
from rbim.callbacks import Backoff, Event, MemorySink, Receiver, SqliteInbox, sign
from rbim.callbacks.receiver.intake import SPOOL_BUDGET
from rbim.emulator import EmulatedClock

GIVES_UP = 5.0  # seconds in which the platform wants its answer
SOON = 0.03  # a budget, in seconds of real time
LITTLE = 1.0  # what may come on top of it on a machine that is busy

UVLOOP = pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop", marks=pytest.mark.ci)
ASYNCIO = pytest.param(("asyncio", {}), id="asyncio")
TRIO = pytest.param(("trio", {}), id="trio")
everywhere = pytest.mark.parametrize("anyio_backend", [ASYNCIO, UVLOOP, TRIO])
on_asyncio = pytest.mark.parametrize("anyio_backend", [ASYNCIO, UVLOOP])


def content(number, group="g1"):
    return body_of(to=group, body=str(number), msgId=f"{group}-{number}")


async def post(receiver, body):
    return (await receiver.receive(signed(body), body)).status


class Sink(Keeping):
    """A sink that does what a test wants."""

    def __init__(self, accept):
        super().__init__()
        self.began = Counter()
        self._accept = accept

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
    return getattr(receiver._intake._scope.__self__, "scopes", {})


def cancels():
    """How many cancellations the task still owes."""
    try:
        return asyncio.current_task().cancelling()
    except RuntimeError:  # trio has no such thing
        return 0


# -------------------------------------------------------------------------------- handlers that misbehave


def send_many(url, bodies):
    """Post one after the other on one connection; return each status and the seconds that it took."""
    answers = []
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)) as connection:
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
        self.begun = threading.Event()
        self.ended = 0

    def block_in_a_thread(self, _):
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
            self.begun.set()
            do(event)
            self.ended += 1

        async def waiting(event: Event) -> None:
            self.begun.set()
            await do(event)
            self.ended += 1

        return blocking if what == "block_in_a_thread" else waiting


# who spins has Python's one lock as often as all others: under coverage, which traces each line, that takes seconds
@pytest.mark.parametrize("what", ["block_in_a_thread", "hang", "fail", pytest.param("spin", marks=pytest.mark.ci)])
def test_a_handler_that_misbehaves_never_delays_an_answer(tmp_path, what):
    misbehaving = Misbehaving()
    receiver = Receiver(
        credentials=CREDENTIALS,
        sink=SqliteInbox(tmp_path / "events.db"),
        concurrency=4,
        drain=0.05,
        backoff=Backoff(attempts=3, first=0.001, most=0.01),
    )
    receiver.fallback(misbehaving.fallback(what))
    with served(receiver.asgi, lifespan="on") as url:
        (first,) = send_many(url, [content(0)])
        assert misbehaving.begun.wait(10)
        answers = [first]
        threads = [threading.Thread(target=lambda n=n: answers.extend(send_many(url, bodies(n)))) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert misbehaving.ended == 0
        misbehaving.over.set()
    assert Counter(status for status, _ in answers) == {200: 201}
    assert max(seconds for _, seconds in answers) < GIVES_UP


def bodies(sender):
    return [content(number, f"g{sender}-{number % 5}") for number in range(50)]


# -------------------------------------------------------------------- many events, and a handler that takes its time


def handled_once_and_in_order(log, conversations, each):
    """What the handlers wrote down: every event once, and each conversation in order."""
    orders = defaultdict(list)
    for group, number in log:
        orders[group].append(number)
    assert orders == {f"g{name}": list(range(each)) for name in range(conversations)}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_the_emulated_time_that_passes_is_what_the_concurrency_implies(tmp_path, kind):
    conversations, each, places = 60, 10, 30
    count = conversations * each
    clock = EmulatedClock()
    options = {"clock": clock, "poll": 0.01, "lease": float("inf")}
    inbox = MemorySink(capacity=count, clock=clock) if kind == "memory" else SqliteInbox(tmp_path / "events.db", **options)
    receiver = Receiver(credentials=CREDENTIALS, sink=inbox, clock=clock, concurrency=places, drain=0)
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
        assert spool.execute("SELECT count(*) FROM delivery").fetchall() == [(100,)]


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


@everywhere
async def test_requests_that_their_server_cancels_leave_nothing_behind():
    """As servers do whose client hangs up: while the body is read, and while the sink has it."""
    async with impatient(Sink(never)) as receiver:
        for delay in (0, SOON / 2, SOON * 0.99, SOON, SOON * 1.01):
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(partial(ask_at_the_door, receiver, content(number), whole=bool(number % 2)))
                await anyio.sleep(delay)
                tasks.cancel_scope.cancel()
            assert left_over(receiver) == {}
        receiver.sink._accept = at_once
        assert await ask_at_the_door(receiver, content(1), whole=True) == 200


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


# ------------------------------------- sinks with scopes of their own, and tasks that are cancelled from outside


async def has_tasks(_):
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(anyio.sleep_forever)


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


OF_ANYIO = [gives_back_what_hangs_too, tries_again_after_a_cancellation, has_tasks]


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


@pytest.mark.ci
@everywhere
async def test_a_sink_with_scopes_of_its_own_is_left_in_time():
    for accept in OF_ANYIO:
        await answered_in_time(accept)


@pytest.mark.ci
@on_asyncio
async def test_a_task_that_is_cancelled_is_cancelled_also_at_the_moment_of_its_time_out():
    loop, outcomes = asyncio.get_running_loop(), Counter()
    async with impatient(Sink(never)) as receiver:
        for number, at in enumerate((SOON / 5, SOON - 0.0005, SOON + 0.0005) * 3):
            until = loop.time() + SOON
            task = asyncio.create_task(post(receiver, content(number)))
            handle = loop.call_at(until - SOON + at, task.cancel)
            if at > SOON / 2:
                loop.call_at(until - 0.02, time.sleep, 0.03)  # both fall due in one turn of the loop
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            outcomes[type(ended)] += 1
            handle.cancel()
            assert left_over(receiver) == {}
    assert set(outcomes) == {asyncio.CancelledError}, "a cancellation was swallowed"


LOOPS = ["asyncio", "trio"]


def run(name, function, *args):
    return anyio.run(function, *args, backend=name)


async def a_slow_and_a_quick_one(receiver):
    async with receiver:
        with anyio.fail_after(5):
            receiver.sink._accept = never
            slow = await post(receiver, content("slow"))
            receiver.sink._accept = at_once
            return slow, await post(receiver, content("quick"))


@pytest.mark.ci
def test_a_receiver_may_be_entered_in_one_loop_after_the_other(tmp_path):
    for first, then in itertools.product(LOOPS, LOOPS):
        receiver = impatient(Sink(at_once))
        for name in (first, then):
            assert run(name, a_slow_and_a_quick_one, receiver) == (503, 200)

    durable = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "events.db"))

    async def one(number):
        async with durable:
            return await post(durable, content(number)), (await durable.sink.counts()).waiting

    found = [run(name, one, number) for number, name in enumerate(["asyncio", "asyncio", "trio"])]
    assert found == [(200, 1), (200, 2), (200, 3)]
