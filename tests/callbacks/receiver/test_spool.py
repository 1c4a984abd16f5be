"""The spool is emptied: many deliveries in a transaction, in order, whatever fails or dies on the way."""

import json
import random
import sqlite3
from collections import defaultdict
from contextlib import closing
from itertools import pairwise

import anyio
import pytest

from helpers.credentials import APP_ID, CREDENTIALS
from helpers.receiving import body, post
from helpers.waiting import until
from rbim import InvalidRequest
from rbim.callbacks import MemorySink, Quarantined, Receiver, SqliteInbox
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.receiver.spool import BATCH, Spool
from rbim.emulator import EmulatedClock


def numbered(number, group="g1"):
    return body(msgId=f"{group}-{number}", to=group, body=str(number))


def number_of(text):
    return int(json.loads(text)["body"])


def rows(path, statement):
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()


def bodies(path):
    """The numbers of the deliveries in an inbox, in the order of acceptance, by group."""
    found = {}
    for (text,) in rows(path, "SELECT body FROM event ORDER BY number"):
        found.setdefault(json.loads(text)["to"], []).append(number_of(text))
    return found


def waiting(path):
    return rows(path, "SELECT count(*) FROM delivery WHERE refused IS NULL")[0][0]


async def fill(path, clock, many, groups=("g1",)):
    """Put so many deliveries into a spool's file, one group after the other."""
    async with Spool(path, MemorySink(), clock=clock, budget=1.0) as spool:
        for number in range(many):
            text = numbered(number, groups[number % len(groups)])
            stored = spool.put(delivery_of(text, app_id=APP_ID, received=clock.now()))
        await stored()


class OneByOne:
    """A durable sink without chains, which a test lets fail."""

    durable, retention = True, 600.0

    def __init__(self, before=lambda _: None):
        self.numbers = []
        self.of = defaultdict(list)  # by group
        self.group = ""
        self.calls = 0
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
            self.calls += 1
            number, group = number_of(delivery.body), json.loads(delivery.body)["to"]
            self.group = group
            result = self._before(number)
            if result is not None:
                await result
            await anyio.sleep(0)
            if number in self.of[group]:
                return False
            self.of[group].append(number)
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


def receiver_of(sink, spool, clock, **options):
    return Receiver(sink=sink, spool=spool, clock=clock, credentials=CREDENTIALS, **options)


@pytest.mark.parametrize("groups", [1, 600])
async def test_few_deliveries_are_in_memory_however_many_wait(clock, spool, groups):
    await fill(spool, clock, 600, [f"g{number}" for number in range(groups)])
    gate = anyio.Event()
    sink = Chained(lambda _: gate.wait())
    async with receiver_of(sink, spool, clock):
        await until(lambda: sink.called == BATCH)
        await anyio.sleep(0.05)
        gate.set()
        await until(lambda: not waiting(spool), clock)
    assert sink.most <= BATCH
    assert sorted(sink.numbers) == list(range(600))


@pytest.mark.parametrize("what", ["transactions", "deliveries"])
async def test_order_is_kept_whatever_fails_in_an_inbox(clock, spool, tmp_path, what):
    chance = random.Random(1)
    await fill(spool, clock, 150, ["g1", "g2"])
    inbox = SqliteInbox(tmp_path / "events.db", clock=clock)
    commit, accept = inbox._database.commit, inbox._store.accept

    def failing(call, share):
        def run(*arguments, **options):
            if chance.random() < share:
                raise sqlite3.OperationalError
            return call(*arguments, **options)

        return run

    if what == "transactions":
        inbox._database.commit = failing(commit, 0.3)
    else:
        inbox._store.accept = failing(accept, 0.05)
    async with receiver_of(inbox, spool, clock):
        await until(lambda: not waiting(spool), clock)
    assert bodies(tmp_path / "events.db") == {"g1": list(range(0, 150, 2)), "g2": list(range(1, 150, 2))}


@pytest.mark.parametrize("kind", [OneByOne, Chained])
async def test_a_failing_conversation_holds_up_no_other_and_pauses_longer_each_time(clock, spool, caplog, kind):
    """Not even if more of it wait in front than are read at once."""
    await fill(spool, clock, BATCH + 10)
    await fill(spool, clock, 50, ["g2", "g3"])
    failures = []

    def fail(number):
        if number == 3 and sink.group == "g1" and len(failures) < 5:
            failures.append(clock.elapsed)
            reason = "no space left"
            raise OSError(reason)

    sink = kind(fail)
    async with receiver_of(sink, spool, clock):
        await until(lambda: len(sink.of["g2"]) + len(sink.of["g3"]) == 50)  # no time passes
        assert sink.of["g1"] == [0, 1, 2]
        await until(lambda: not waiting(spool), clock)
    assert sink.of == {"g1": list(range(BATCH + 10)), "g2": list(range(0, 50, 2)), "g3": list(range(1, 50, 2))}
    pauses = [after - before for before, after in pairwise(failures)]
    assert [pause >= least for pause, least in zip(pauses, (0.25, 0.5, 1, 2), strict=True)] == [True] * 4
    assert sum(pauses) < 20
    assert "no space left" in caplog.text


@pytest.mark.parametrize("kind", [OneByOne, Chained])
async def test_what_the_sink_refuses_for_good_is_kept_and_the_rest_goes_on(clock, spool, kind):
    await fill(spool, clock, 20, ["g1", "g2"])
    too_large, facts = True, []

    def refuse(number):
        if number in {4, 5, 8} and too_large:
            reason = "the body is too large"
            raise InvalidRequest(reason)

    sink = kind(refuse)
    async with receiver_of(sink, spool, clock, observers=[facts.append]) as receiver:
        await until(lambda: not waiting(spool))
        await until(lambda: not receiver._spool.holds)
        assert await receiver.overflow() == 0
    assert sorted(sink.numbers) == [number for number in range(20) if number not in {4, 5, 8}]
    assert sink.of["g1"] == [0, 2, 6, 10, 12, 14, 16, 18]
    problems = [fact.problem for fact in facts if isinstance(fact, Quarantined)]
    assert len(problems) == 3
    assert f"the body is too large; it stays in {spool}" in problems[0]
    assert rows(spool, "SELECT DISTINCT refused FROM delivery") == [("the body is too large",)]
    too_large = False
    async with receiver_of(sink, spool, clock):
        await until(lambda: sorted(sink.numbers) == list(range(20)))
        await until(lambda: not rows(spool, "SELECT 1 FROM delivery"))


async def test_a_sink_that_is_down_is_asked_less_and_less(clock, spool):
    await fill(spool, clock, 5 * BATCH, [f"g{number}" for number in range(5 * BATCH)])
    down = True

    def fail(_):
        if down:
            raise OSError

    sink = Chained(fail)
    async with receiver_of(sink, spool, clock):
        await until(lambda: clock.elapsed >= 120, clock, step=1.0)
        assert sink.calls < 4 * BATCH + 120 / 2.5 * BATCH
        down = False
        await until(lambda: not waiting(spool), clock)
    assert sorted(sink.numbers) == list(range(5 * BATCH))


async def test_what_a_killed_process_had_forwarded_is_recognised(clock, spool, tmp_path):
    """It had given some to the inbox, and forgotten none."""
    await fill(spool, clock, 100, ["g1", "g2"])
    inbox = SqliteInbox(tmp_path / "events.db", clock=clock)
    async with inbox:
        for (text,) in rows(spool, "SELECT body FROM delivery ORDER BY number LIMIT 25"):
            assert await inbox.accept(delivery_of(text, app_id=APP_ID, received=clock.now()))
    async with receiver_of(inbox, spool, clock):
        await until(lambda: not waiting(spool), clock)
    assert bodies(tmp_path / "events.db") == {"g1": list(range(0, 100, 2)), "g2": list(range(1, 100, 2))}


async def test_what_another_process_puts_into_the_file_is_forwarded_too(clock, spool):
    sink = OneByOne()
    async with receiver_of(sink, spool, clock):
        await fill(spool, clock, 10)
        await until(lambda: sink.numbers == list(range(10)))


async def test_a_delivery_does_not_overtake_what_another_process_has_put_into_the_file(clock, spool, tmp_path):
    inbox = SqliteInbox(tmp_path / "events.db", clock=clock)
    async with receiver_of(inbox, spool, clock) as receiver:
        for number in range(0, 6, 2):
            async with Spool(spool, MemorySink(), clock=clock, budget=1.0) as other:
                await other.put(delivery_of(numbered(number), app_id=APP_ID, received=clock.now()))()
                assert (await post(receiver, numbered(number + 1), at=clock.now())).status == 200
            await until(lambda: not receiver._spool.holds, clock)
    assert bodies(tmp_path / "events.db") == {"g1": list(range(6))}


async def test_other_content_that_an_inbox_puts_apart_is_reported(clock, spool, tmp_path):
    facts = []
    async with SqliteInbox(tmp_path / "events.db", clock=clock) as inbox:
        await inbox.accept(delivery_of(body(body="one"), app_id=APP_ID, received=clock.now()))
    async with Spool(spool, inbox, clock=clock, budget=1.0) as file:
        await file.put(delivery_of(body(body="two"), app_id=APP_ID, received=clock.now()))()
    async with receiver_of(inbox, spool, clock, observers=[facts.append]):
        await until(lambda: not waiting(spool), clock)
        (letter,) = await inbox.quarantined()
    (told,) = [fact for fact in facts if isinstance(fact, Quarantined)]
    assert (told.key, told.problem, told.other_content) == (letter.key, letter.error, True)
