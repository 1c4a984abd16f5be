"""Servers that are busy, behind or without a leader: what fails holds up nothing else, and takes nothing back."""

import asyncio
import json
from contextlib import asynccontextmanager

import anyio
import pytest

from helpers.deliveries import delivery
from rbim.jetstream import JetStreamInbox
from rbim.jetstream.connection import outcomes, together
from rbim.jetstream.nats_py import KeyValue
from rbim.jetstream.ownership import Ownership
from rbim.jetstream.partition import Partition, Reader, key_of
from rbim.jetstream.publisher import Publisher
from rbim.jetstream.record import Owner, Record, owner_of

PARTITIONS = 4
TAKEOVER = 0.4
KEYS = [key_of(number) for number in range(PARTITIONS)]
PATIENCE = 20.0


@pytest.fixture
def copies(nats, name):
    return JetStreamInbox(nats.urls, name=name, partitions=PARTITIONS, replicas=1, takeover=TAKEOVER, retention=3600.0)


@pytest.fixture
async def of_the_dead(copies):
    """An inbox whose partitions all belong to a worker that is gone."""
    async with copies:
        bucket = await copies._open.bucket()
        for key in KEYS:
            await bucket.create(key, Record().value(Owner(boot="dead", writes=7, takeover=TAKEOVER)))
        yield copies


async def until(condition):
    with anyio.fail_after(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def instead_of(monkeypatch, method, call):
    """Have ``call(original, bucket, key, ...)`` stand for a method of a bucket, or of the publisher that writes to it."""
    if method == "update":
        instead_of_put(monkeypatch, call)
    original = getattr(KeyValue, method)

    async def stand_in(bucket, key, *args, **options):
        return await call(original, bucket, key, *args, **options)

    monkeypatch.setattr(KeyValue, method, stand_in)


def instead_of_put(monkeypatch, call):
    original = Publisher.put

    async def stand_in(publisher, subject, value, last):
        bucket, key = subject.split(".", 2)[:2], subject.split(".", 2)[2]

        async def update(_, key, value, last):
            return await original(publisher, ".".join([*bucket, key]), value, last)

        return await call(update, publisher, key, value, last)

    monkeypatch.setattr(Publisher, "put", stand_in)


# ------------------------------------------------------------------------------------ a takeover


def one_look_of_each_round(monkeypatch):
    looks = 0

    async def get(original, bucket, key, *args, **options):
        nonlocal looks
        looks += 1
        if looks % PARTITIONS == 0:
            raise TimeoutError
        return await original(bucket, key, *args, **options)

    instead_of(monkeypatch, "get", get)


def every_second_look(monkeypatch):
    looks = dict.fromkeys(KEYS, 0)

    async def get(original, bucket, key, *args, **options):
        looks[key] += 1
        if looks[key] % 2 == 0:
            raise TimeoutError
        return await original(bucket, key, *args, **options)

    instead_of(monkeypatch, "get", get)


def every_second_round(monkeypatch):
    rounds = 0

    async def put(original, bucket, key, *args, **options):
        nonlocal rounds
        rounds += 1
        if rounds % 2 == 0:
            raise TimeoutError
        return await original(bucket, key, *args, **options)

    every_second_look(monkeypatch)
    instead_of(monkeypatch, "put", put)


def a_round_that_is_cancelled_by_what_it_awaits(monkeypatch):
    rounds = 0

    async def put(original, bucket, key, *args, **options):
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            await _cancelled()
        return await original(bucket, key, *args, **options)

    instead_of(monkeypatch, "put", put)


def a_server_that_is_behind(monkeypatch):
    """Every second answer is from a server that has not got the last write."""
    looks = dict.fromkeys(KEYS, 0)

    async def get(original, bucket, key, *args, **options):
        found = await original(bucket, key, *args, **options)
        looks[key] += 1
        if looks[key] % 2 == 0:
            found.revision -= 1
        return found

    instead_of(monkeypatch, "get", get)


def old_events_that_take_long_to_delete(monkeypatch):
    async def delete_old(_):
        await asyncio.sleep(1000)

    monkeypatch.setattr(Partition, "delete_old", delete_old)
    monkeypatch.setattr("rbim.jetstream.ownership.PURGE_EVERY", 0.0)


@pytest.mark.parametrize(
    "trouble",
    [
        one_look_of_each_round,
        every_second_look,
        every_second_round,
        a_round_that_is_cancelled_by_what_it_awaits,
        a_server_that_is_behind,
        old_events_that_take_long_to_delete,
    ],
)
async def test_a_takeover_goes_on_while_some_requests_succeed(of_the_dead, trouble, monkeypatch):
    bucket = await of_the_dead._open.bucket()
    await bucket.delete(KEYS[0])
    await bucket.purge(KEYS[0])  # one partition is free: it is owned at once
    trouble(monkeypatch)
    async with of_the_dead.backlog():
        await until(lambda: of_the_dead.owned == PARTITIONS)
    assert of_the_dead.takeovers == PARTITIONS - 1


async def test_while_servers_answer_but_take_no_writes_a_worker_that_lives_keeps_its_partitions(copies, monkeypatch):
    """As without a leader: any server answers reads. Old records say nothing then, nor right after it."""
    tried = []
    away = False

    async def update(original, bucket, key, value, *args, **options):
        if away:
            tried.append((key, owner_of(value).boot))
            raise TimeoutError
        return await original(bucket, key, value, *args, **options)

    async def put(original, *args, **options):
        if away:
            raise TimeoutError
        return await original(*args, **options)

    say = Ownership._say

    async def said(ownership, word):
        if not away:  # nor does a worker hear the others
            await say(ownership, word)

    instead_of(monkeypatch, "update", update)
    instead_of(monkeypatch, "put", put)
    monkeypatch.setattr(Ownership, "_say", said)
    async with copies, copies.backlog() as one, copies.backlog() as other:
        await until(lambda: all(len(each._ownership.partitions) == PARTITIONS // 2 for each in (one, other)))
        owned = {key_of(n): backlog._ownership._boot for backlog in (one, other) for n in backlog._ownership.partitions}
        assert owned.keys() == set(KEYS)
        away = True
        await asyncio.sleep(3 * TAKEOVER)
        away = False
        with anyio.fail_after(PATIENCE):
            for backlog in (one, other):
                for partition in [*backlog._ownership.partitions.values()]:
                    await partition.commit()
        assert tried
        assert {(key, boot) for key, boot in tried if owned[key] != boot} == set()
        assert copies.takeovers == 0


async def test_a_partition_is_taken_once_though_another_take_fails(of_the_dead, monkeypatch):
    """A take that lasts longer than its round would be begun once more: two owners with one boot id."""
    taking, most, failed = dict.fromkeys(KEYS, 0), 0, False

    async def update(original, bucket, key, value, *args, **options):
        nonlocal most, failed
        if owner_of(value).writes > 1:
            return await original(bucket, key, value, *args, **options)
        taking[key] += 1
        most = max(most, taking[key])
        try:
            if key == KEYS[0] and not failed:
                failed = True
                raise TimeoutError
            revision = await original(bucket, key, value, *args, **options)
            await asyncio.sleep(TAKEOVER)  # the answer comes late
            return revision
        finally:
            taking[key] -= 1

    instead_of(monkeypatch, "update", update)
    async with of_the_dead.backlog():
        await until(lambda: of_the_dead.owned == PARTITIONS)
    assert failed
    assert most == 1


# ------------------------------------------------------------------------------------ calls that take longer than patience


@asynccontextmanager
async def slow_writes(copies, monkeypatch, seconds, keys=KEYS):
    """A backlog that owns all partitions, and whose writes take so long from now on."""

    async def update(original, bucket, key, *args, **options):
        if key in keys:
            await asyncio.sleep(seconds)
        return await original(bucket, key, *args, **options)

    async with copies, copies.backlog() as backlog:
        await until(lambda: copies.owned == PARTITIONS)
        instead_of(monkeypatch, "update", update)
        yield backlog
        monkeypatch.undo()


async def with_patience(call, seconds=0.1, tries=40):
    """Call until it returns within so many seconds, as a worker does."""
    for _ in range(tries):
        with anyio.move_on_after(seconds):
            return await call()
    raise AssertionError(f"{tries} calls did not end within {seconds} s")


async def claimed(backlog):
    while not (claims := await backlog.claim(1)):
        await backlog.wait()
    return claims


async def test_writes_that_take_longer_than_a_caller_waits_are_waited_for_by_its_next_call(copies, monkeypatch):
    copies = JetStreamInbox(
        copies.servers, name=copies.name, partitions=PARTITIONS, replicas=1, takeover=15.0, retention=3600.0
    )
    async with slow_writes(copies, monkeypatch, 0.2) as backlog:
        for number in range(4):
            await copies.accept(delivery(number))
        (claim,) = await with_patience(lambda: claimed(backlog))
        assert claim.attempt == 1
        await with_patience(lambda: backlog.retry(claim, error="", pause=0.0))
        (claim,) = await with_patience(lambda: claimed(backlog))
        assert claim.attempt == 2, "the failure counts once"
        (claim,) = await with_patience(lambda: backlog.done((claim,), more=1))
        assert await with_patience(lambda: backlog.done((claim,), more=0)) == []
        (claim,) = await with_patience(lambda: claimed(backlog))
        await with_patience(lambda: backlog.release(claim))
    assert (claim.number, claim.attempt) == (3, 1)
    async with copies:
        assert (await copies.counts()).waiting == 2


async def test_claims_that_no_one_fetched_are_given_back_on_leaving(copies, monkeypatch):
    async with slow_writes(copies, monkeypatch, 0.2) as backlog:
        await copies.accept(delivery(1))
        await backlog.wait()
        with anyio.move_on_after(0.05):
            await backlog.claim(1)
        await until(backlog._claiming.done)
        monkeypatch.undo()
    async with copies, copies.backlog() as other:
        with anyio.fail_after(TAKEOVER):
            (claim,) = await claimed(other)
    assert (claim.attempt, claim.crashes) == (1, 0)


async def test_claims_of_long_ago_are_not_handed_out(copies, monkeypatch):
    """Their worker was frozen, perhaps: another one may have begun them."""
    async with copies, copies.backlog() as backlog:
        await copies.accept(delivery(1))
        await backlog.wait()
        with anyio.move_on_after(0.0):
            await backlog.claim(1)
        with anyio.fail_after(PATIENCE):
            await asyncio.wait((backlog._claiming,))
        monkeypatch.setattr(Partition, "is_fresh", False)
        assert await backlog.claim(1) == []
        monkeypatch.undo()
        (claim,) = await claimed(backlog)
        assert claim.number == 1


async def test_a_claim_is_as_old_as_the_write_that_was_made_and_not_as_its_discovery(copies, monkeypatch):
    """Its answer was lost: meanwhile the record stood still, and others count that."""
    clock, made, lost = asyncio.get_running_loop().time, dict[str, float](), []

    async def update(original, publisher, key, value, last):
        revision = await original(publisher, key, value, last)
        made[key] = clock()
        if not lost and json.loads(value)["leases"]:
            lost.append(key)
            await asyncio.sleep(0.7 * TAKEOVER)
            raise TimeoutError
        return revision

    async with copies, copies.backlog() as backlog:
        await copies.accept(delivery(1))
        await backlog.wait()
        instead_of_put(monkeypatch, update)
        with anyio.fail_after(PATIENCE):
            while not (claims := await backlog.claim(1)):
                await asyncio.sleep(0)
        assert claims[0].number == 1
        assert clock() - made[lost[0]] < 2 / 3 * TAKEOVER, "others may take it over before a third of that time is left"
        monkeypatch.undo()


async def test_fewer_claims_than_were_made_may_be_fetched(copies):
    async with copies, copies.backlog() as backlog:
        for number in range(3):
            await copies.accept(delivery(number, team=f"t{number}"))
        await until(lambda: len(backlog._lanes._ready) == 3)
        with anyio.move_on_after(0.0):
            await backlog.claim(3)
        (first,) = await backlog.claim(1)
        rest = [await claimed(backlog) for _ in range(2)]
        assert {claim.number for (claim,) in [[first], *rest]} == {1, 2, 3}


async def test_a_partition_whose_writes_hang_ends_no_caller(copies, monkeypatch):
    """``asyncio.gather`` would end with a cancellation that the caller's scope does not know."""
    async with copies, copies.backlog() as backlog:
        await until(lambda: copies.owned == PARTITIONS)
        teams = {copies._subjects.partition(f"{delivery(0, team=f't{n}').conversation}"): f"t{n}" for n in range(40)}
        for team in teams.values():
            await copies.accept(delivery(0, team=team))
        await until(lambda: len(backlog._lanes._ready) == PARTITIONS)
        gate = asyncio.Event()
        first = next(iter(backlog._ownership.partitions))

        async def update(original, bucket, key, *args, **options):
            if key == key_of(first):
                await gate.wait()
            return await original(bucket, key, *args, **options)

        instead_of(monkeypatch, "update", update)
        with anyio.move_on_after(0.2) as scope:
            await backlog.claim(PARTITIONS)
        assert scope.cancelled_caught
        gate.set()
        assert len(await backlog.claim(PARTITIONS)) == PARTITIONS
        gate.clear()
        with anyio.move_on_after(0.2) as scope:
            await backlog._commit(backlog._lanes._lanes.values())
        assert scope.cancelled_caught
        gate.set()


async def test_consumers_that_are_made_late_are_used(copies, monkeypatch):
    """Busy servers are not asked for one consumer after the other, each of which they make too late."""
    unanswered = []
    original = Reader.__aenter__

    async def late(reader):
        entered = await original(reader)
        if unanswered.count(reader._subject) < 3:
            unanswered.append(reader._subject)
            raise TimeoutError
        return entered

    monkeypatch.setattr(Reader, "__aenter__", late)
    async with copies, copies.backlog() as backlog:
        await copies.accept(delivery(1))
        with anyio.fail_after(PATIENCE):
            await backlog.wait()
        await until(lambda: len(unanswered) == 3 * PARTITIONS)
        jetstream = await copies._open.jetstream()
        assert len(await jetstream.consumers_info(copies.name)) == PARTITIONS


async def test_reading_goes_on_after_a_cancellation_of_what_it_awaits(copies, monkeypatch):
    original, cancelled = Reader.read, []

    async def read(reader):
        if reader._subject not in cancelled:
            cancelled.append(reader._subject)
            await _cancelled()
        return await original(reader)

    monkeypatch.setattr(Reader, "read", read)
    async with copies, copies.backlog() as backlog:
        await until(lambda: len(cancelled) == PARTITIONS)
        await copies.accept(delivery(1))
        with anyio.fail_after(PATIENCE):
            await backlog.wait()


@pytest.mark.parametrize("method", ["put", "update"])
async def test_leaving_ends_also_if_requests_lose_the_cancellation(copies, method, monkeypatch):
    """As ``asyncio.wait_for`` of Python 3.11 does if the answer comes at the same moment."""
    lost = []

    async def deaf(original, *args, **options):
        try:
            await asyncio.sleep(0.05)
            await asyncio.sleep(1000 if leaving.is_set() and len(lost) < PARTITIONS else 0)
        except asyncio.CancelledError:
            if len(lost) >= PARTITIONS:
                raise
            lost.append(1)
        return await original(*args, **options)

    leaving = asyncio.Event()
    instead_of(monkeypatch, method, deaf)
    monkeypatch.setattr("rbim.jetstream.ownership.LAST_WAIT", 0.2)
    with anyio.fail_after(PATIENCE):
        async with copies, copies.backlog():
            await until(lambda: copies.owned == PARTITIONS)
            leaving.set()
            await asyncio.sleep(TAKEOVER / 2)  # rounds and writes are under way
    assert lost


# ------------------------------------------------------------------------------------ several calls at once


async def value(of, seconds=0.0):
    await asyncio.sleep(seconds)
    return of


async def failing(seconds=0.0):
    await asyncio.sleep(seconds)
    raise ValueError(seconds)


async def test_calls_at_once():
    assert await together([]) == []
    assert await together([value(1, 0.02), value(2)]) == [1, 2]
    ended = []

    async def last():
        await asyncio.sleep(0.02)
        ended.append(1)

    with pytest.raises(ValueError, match=r"^0\.0$"):
        await together([failing(), last(), failing(0.01)])
    assert ended, "all have ended when the error is raised"
    one, error, cancelled = await outcomes([value(1), failing(), asyncio.wait_for(_cancelled(), 1)])
    assert (one, type(error), type(cancelled)) == (1, ValueError, RuntimeError)


async def _cancelled():
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def test_a_scope_ends_calls_of_which_the_last_has_ended():
    begun, ended = [], []

    async def long():
        begun.append(1)
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(1)

    with anyio.move_on_after(0.02) as scope:
        await outcomes([long(), value(1)])
    assert scope.cancelled_caught
    assert begun == ended == [1]
