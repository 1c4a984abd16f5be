"""The spool is emptied: many deliveries in a transaction, in order, whatever fails or dies on the way."""

import json
import random
import sqlite3
from contextlib import closing
from itertools import pairwise

import anyio
import pytest

from helpers.credentials import APP_ID, CREDENTIALS
from helpers.receiving import body, post
from helpers.waiting import until
from rbim.callbacks import Quarantined, Receiver, SqliteInbox
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.receiver.spool import AT_HAND, TOGETHER, _SpoolInbox
from rbim.emulator import EmulatedClock

LEASE = 30.0


def numbered(number, group="g1"):
    return body(msgId=f"{group}-{number}", to=group, body=str(number))


def number_of(text):
    return int(json.loads(text)["body"])


def rows(path, statement):
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()


def bodies(path, condition="1"):
    """The numbers of the deliveries in a file, in the order of acceptance, by group."""
    found = {}
    for (text,) in rows(path, f"SELECT body FROM event WHERE {condition} ORDER BY number"):
        found.setdefault(json.loads(text)["to"], []).append(number_of(text))
    return found


def waiting(path):
    return rows(path, "SELECT count(*) FROM event WHERE state = 0")[0][0]


async def fill(path, clock, many, groups=("g1",)):
    """Put so many deliveries into a spool's file, one group after the other."""
    async with _SpoolInbox(path, clock=clock) as inbox, anyio.create_task_group() as tasks:
        for number in range(many):
            text = numbered(number, groups[number % len(groups)])
            tasks.start_soon(inbox.accept, delivery_of(text, app_id=APP_ID, received=clock.now()))
            await anyio.sleep(0)  # trio starts tasks in any order


class OneByOne:
    """A durable sink without chains, which a test lets fail."""

    durable, retention = True, 600.0

    def __init__(self, before=lambda _: None):
        self.numbers = []
        self.offered = 0
        self.most = 0
        self._before = before

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    async def accept(self, delivery, /):
        self.offered += 1
        self.most = max(self.most, self.offered)
        try:
            number = number_of(delivery.body)
            result = self._before(number)
            if result is not None:
                await result
            await anyio.sleep(0)
            if number in self.numbers:
                return False
            self.numbers.append(number)
            return True
        finally:
            self.offered -= 1


class Chained(OneByOne):
    """The same with chains: it stores in the order of the calls."""

    def __init__(self, before=lambda _: None):
        super().__init__(before)
        self.called = 0
        self._turn = anyio.Lock()

    async def accept(self, delivery, /, *, chain):
        self.called += 1
        try:
            async with self._turn:
                _require_whole(chain)
                return await super().accept(delivery)
        except BaseException as error:
            chain.fail(error)
            raise
        finally:
            self.called -= 1
            self.most = max(self.most, self.called)


def _require_whole(chain):
    if chain.broken is not None:
        raise chain.broken


@pytest.fixture
def clock():
    return EmulatedClock()


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "spool.db"


@pytest.fixture
def transactions(monkeypatch):
    """How many commands each transaction of a file has, by the file's name."""
    from rbim.callbacks.inbox.statements import InboxStore

    sizes, commit = {}, InboxStore.commit

    def counted(self, commands, **options):
        if len(commands):
            sizes.setdefault(self._database.path.name, []).append(len(commands))
        return commit(self, commands, **options)

    monkeypatch.setattr(InboxStore, "commit", counted)
    return sizes


def receiver_of(sink, spool, clock, **options):
    return Receiver(sink=sink, spool=spool, clock=clock, credentials=CREDENTIALS, **options)


async def test_a_hot_conversation_shares_the_transactions_of_both_files(clock, spool, tmp_path, transactions):
    await fill(spool, clock, 300)
    transactions.clear()
    async with receiver_of(SqliteInbox(tmp_path / "events.db", clock=clock), spool, clock):
        await until(lambda: not waiting(spool), clock)
    assert bodies(tmp_path / "events.db") == {"g1": list(range(300))}
    turns = 300 // TOGETHER + 1  # each: one transaction of the inbox, or two
    assert sum(transactions["events.db"]) == 300
    assert len(transactions["events.db"]) <= 3 * turns
    assert len(transactions["spool.db"]) <= 5 * turns


async def test_a_sink_without_chains_gets_one_after_the_other_and_the_file_learns_of_many_at_once(
    clock, spool, transactions
):
    await fill(spool, clock, 200)
    transactions.clear()
    sink = OneByOne()
    async with receiver_of(sink, spool, clock):
        await until(lambda: not waiting(spool), clock)
    assert sink.numbers == list(range(200))
    assert sink.most == 1
    assert len(transactions["spool.db"]) <= 5 * (200 // TOGETHER + 1)


@pytest.mark.parametrize("groups", [1, 1000])
async def test_few_deliveries_are_in_memory_however_many_wait(clock, spool, groups):
    await fill(spool, clock, 1000, [f"g{number}" for number in range(groups)])
    gate = anyio.Event()
    sink = Chained(lambda _: gate.wait())
    async with receiver_of(sink, spool, clock):
        await until(lambda: sink.called >= TOGETHER, clock)
        await anyio.sleep(0.05)
        assert sink.called <= AT_HAND
        gate.set()
        await until(lambda: not waiting(spool), clock)
    assert sink.most <= AT_HAND
    assert sorted(sink.numbers) == list(range(1000))


@pytest.mark.parametrize("kind", [OneByOne, Chained])
@pytest.mark.parametrize("seed", range(2))
async def test_order_is_kept_whatever_a_sink_does(clock, spool, seed, kind):
    """It fails, or does not answer in time, before or after it has stored a delivery."""
    chance = random.Random(seed)
    await fill(spool, clock, 70)

    def before(number):
        what = chance.random()
        if what < 0.1:
            raise OSError
        if what < 0.15:
            sink.numbers += [] if number in sink.numbers else [number]  # it has it, and fails
            raise OSError
        return anyio.sleep_forever() if what < 0.2 else None

    sink = kind(before)
    async with receiver_of(sink, spool, clock):
        await until(lambda: not waiting(spool), clock)
    assert sink.numbers == list(range(70))


@pytest.mark.parametrize("what", ["transactions", "deliveries"])
@pytest.mark.parametrize("seed", range(2))
async def test_order_is_kept_whatever_fails_in_an_inbox(clock, spool, tmp_path, seed, what):
    chance = random.Random(seed)
    await fill(spool, clock, 150, ["g1", "g2"])
    inbox = SqliteInbox(tmp_path / "events.db", clock=clock)
    commit, accept = inbox._store.commit, inbox._store.accept

    def failing(call, share):
        def run(*arguments, **options):
            if chance.random() < share:
                raise sqlite3.OperationalError
            return call(*arguments, **options)

        return run

    if what == "transactions":
        inbox._store.commit = failing(commit, 0.3)
    else:
        inbox._store.accept = failing(accept, 0.05)
    async with receiver_of(inbox, spool, clock):
        await until(lambda: not waiting(spool), clock)
    assert bodies(tmp_path / "events.db") == {"g1": list(range(0, 150, 2)), "g2": list(range(1, 150, 2))}


async def test_an_error_beside_an_inbox_breaks_its_chain(clock, spool, tmp_path):
    failures = iter(range(3))

    class Guarded(SqliteInbox):
        async def accept(self, delivery, /, *, chain=None):
            if number_of(delivery.body) == 3 and next(failures, None) is not None:
                raise ConnectionError
            return await super().accept(delivery, chain=chain)

    await fill(spool, clock, 20)
    async with receiver_of(Guarded(tmp_path / "events.db", clock=clock), spool, clock):
        await until(lambda: not waiting(spool), clock)
    assert bodies(tmp_path / "events.db") == {"g1": list(range(20))}


async def test_results_that_cannot_be_recorded_are_recorded_later(clock, spool, caplog, monkeypatch):
    await fill(spool, clock, 100)
    sink, failures = Chained(), iter(range(2))
    async with receiver_of(sink, spool, clock) as receiver:
        store = receiver._spool._inbox._store
        done = store.done

        def failing(claims, *, more):
            if next(failures, None) is not None:
                raise sqlite3.OperationalError
            return done(claims, more=more)

        monkeypatch.setattr(store, "done", failing)
        await until(lambda: not waiting(spool), clock)
    assert sink.numbers == list(range(100))
    assert "could not be recorded in the spool" in caplog.text


async def test_one_conversation_that_hangs_holds_up_no_other(clock, spool):
    await fill(spool, clock, 60, ["g1", "g2"])
    sink = OneByOne(lambda number: anyio.sleep_forever() if number == 0 else None)
    async with receiver_of(sink, spool, clock):
        await until(lambda: len([number for number in sink.numbers if number % 2]) == 30)


async def test_a_failure_pauses_its_conversation_longer_each_time_and_the_first_one_goes_alone(clock, spool, caplog):
    await fill(spool, clock, 20)
    offered = []

    def fail(number):
        offered.append((number, clock.elapsed, sink.called))
        if number == 3 and len(offered) < 9:
            reason = "no space left"
            raise OSError(reason)

    sink = Chained(fail)
    async with receiver_of(sink, spool, clock):
        await until(lambda: not waiting(spool), clock)
    assert sink.numbers == list(range(20))
    assert [number for number, *_ in offered] == [0, 1, 2, 3, 3, 3, 3, 3, 3, *range(4, 20)]
    times = [when for number, when, _ in offered if number == 3]
    pauses = [after - before for before, after in pairwise(times)]
    assert [pause >= least for pause, least in zip(pauses, (0.25, 0.5, 1, 2, 2.5), strict=True)] == [True] * 5
    assert sum(pauses[:3]) < 30  # the next one is not late
    assert {together for number, _, together in offered[4:9]} == {1}
    assert "no space left" in caplog.text


@pytest.mark.parametrize("boot", ["", "of an earlier version"])
async def test_what_a_killed_process_had_claimed_is_forwarded_once_more(clock, spool, tmp_path, boot):
    """It had given some to the inbox, and recorded none."""
    await fill(spool, clock, 100, ["g1", "g2"])
    dead = _SpoolInbox(spool, clock=clock)
    inbox = SqliteInbox(tmp_path / "events.db", clock=clock)
    async with inbox, dead.backlog() as backlog:
        for claim in (await backlog.claim(60))[:25]:
            assert await inbox.accept(delivery_of(claim.body, app_id=claim.app_id, received=claim.received))
    assert rows(spool, "SELECT count(*) FROM conversation WHERE fence > 0") == [(2,)]
    with closing(sqlite3.connect(spool)) as file, file:
        file.execute("UPDATE conversation SET boot = ?", (boot,))
    offered = []
    accept_all = inbox._store.accept_all

    def offer(deliveries):
        offered.extend(number_of(each.body) for each in deliveries)
        return accept_all(deliveries)

    object.__setattr__(inbox, "_accept_all", offer)
    async with receiver_of(inbox, spool, clock):
        clock.elapsed += LEASE + 1
        await until(lambda: not waiting(spool), clock)
    assert sorted(set(offered)) == list(range(100))
    assert bodies(tmp_path / "events.db") == {"g1": list(range(0, 100, 2)), "g2": list(range(1, 100, 2))}
    assert rows(spool, "SELECT count(*) FROM event WHERE state = 2") == [(0,)]


async def test_leaving_gives_back_what_is_offered(clock, spool):
    await fill(spool, clock, 10, ["g1", "g2"])
    sink = Chained(lambda _: anyio.sleep_forever())
    async with receiver_of(sink, spool, clock):
        await until(lambda: sink.called == 10)
    assert rows(spool, "SELECT count(*) FROM conversation WHERE fence > 0") == [(0,)]
    sink._before = lambda _: None
    async with receiver_of(sink, spool, clock):
        await until(lambda: not waiting(spool))
    assert [number for number in sink.numbers if number % 2] == list(range(1, 10, 2))


async def test_other_content_that_an_inbox_puts_apart_is_reported(clock, spool, tmp_path):
    facts = []
    async with SqliteInbox(tmp_path / "events.db", clock=clock) as inbox:
        await inbox.accept(delivery_of(body(body="one"), app_id=APP_ID, received=clock.now()))
    async with _SpoolInbox(spool, clock=clock) as file:
        await file.accept(delivery_of(body(body="two"), app_id=APP_ID, received=clock.now()))
    async with receiver_of(inbox, spool, clock, observers=[facts.append]):
        await until(lambda: not waiting(spool), clock)
        (letter,) = await inbox.quarantined()
    (told,) = [fact for fact in facts if isinstance(fact, Quarantined)]
    assert (told.key, told.problem, told.other_content) == (letter.key, letter.error, True)


@pytest.mark.parametrize("sink", [OneByOne, Chained])
async def test_deliveries_of_which_the_time_is_over_at_once_are_spooled_in_order(clock, spool, sink):
    answers = {}

    async def send(receiver, number):
        answers[number] = (await post(receiver, numbered(number))).status

    async with receiver_of(sink(lambda _: anyio.sleep_forever()), spool, clock) as receiver:
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(send, receiver, number)
                await anyio.sleep(0)  # trio starts tasks in any order
            await anyio.wait_all_tasks_blocked()
            until_then = clock.after(2)
            while (due := clock.next_due()) is not None and due <= until_then:
                clock._fire_next()  # all in one tick of the loop, as after a moment in which the loop was blocked
        assert receiver._spool._entering == {}
    assert set(answers.values()) == {200}
    assert bodies(spool) == {"g1": list(range(40))}
