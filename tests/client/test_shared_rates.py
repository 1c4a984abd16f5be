"""Rates that several processes share, with a source of slots made by hand; tests/ci/postgres has a server."""

from types import SimpleNamespace

import anyio
import pytest

from helpers.stubs import BASE_URL, CREDENTIALS, READ, Stub, ending
from helpers.tables import each_row
from rbim import AsyncClient, InvalidRequest, Limits, NotSent, Rate
from rbim.bulk import InviteJob
from rbim.client.limits import SharedBucket
from rbim.postgres import shared_rate

ADDRESS = "postgresql://db/app#calls"


def bucket_of(rate, waiting):
    """Return a bucket for which that many calls wait, and the list of what it asks for."""
    bucket, asked = SharedBucket(rate), []
    bucket.ask, bucket.waiting = asked.append, ([1e9] * waiting, [])
    return bucket, asked


def test_slots_are_asked_for_when_half_of_them_are_used_and_by_one_request_at_a_time():
    bucket, asked = bucket_of(Rate(100, shared=ADDRESS), waiting=20)
    bucket.reserve(0.0)
    bucket.reserve(0.1)
    assert asked == [5]  # those of 50 ms
    bucket.told([0.1, 0.11, 0.12, 0.13, 0.14], "", 0.1)
    for have in (5, 4, 3):
        bucket.reserve(0.1)
        assert (len(bucket.slots), asked) == (have, [5])
        bucket.take(0.1)
    bucket.reserve(0.1)
    assert asked == [5, 5]
    bucket, asked = bucket_of(Rate(100, shared=ADDRESS), waiting=2)
    bucket.reserve(0.0)
    assert asked == [2]  # no more than calls need
    bucket.told([0.1, 0.2], "", 0.0)
    bucket.reserve(0.0)
    assert asked == [2]


def test_a_request_leaves_at_its_slot_or_a_little_later_and_a_slot_that_is_too_old_is_lost():
    bucket, _ = bucket_of(Rate(10, shared=ADDRESS), waiting=9)
    assert bucket.ready_at(0.0) > 0
    bucket.told([1.0, 1.1], "", 0.9)
    assert (bucket.ready_at(0.9), bucket.ready_at(0.9, ahead=1)) == (1.0, 1.1)
    assert bucket.ready_at(1.049) == float("-inf")
    assert bucket.ready_at(1.06) == 1.1
    bucket.take(1.1)
    assert bucket.ready_at(1.1) > 1.1
    bucket.give_back()
    assert bucket.ready_at(1.1) == float("-inf")


def test_behind_other_processes_a_call_expects_to_wait_as_long_as_their_slots_say():
    bucket, _ = bucket_of(Rate(10, shared=ADDRESS), waiting=9)
    bucket.told([3.0], "", 1.0)
    assert bucket.interval == 2.0
    assert (bucket.fits(3.0, now=1.0, need=0.0), bucket.fits(7.0, now=1.0, need=0.0)) == (1, 3)
    bucket.take(3.0)
    bucket.told([3.1], "", 3.1)
    assert bucket.interval == pytest.approx(0.1)


def test_after_an_error_it_asks_again_soon_and_silence_is_an_error():
    bucket, asked = bucket_of(Rate(10, shared=ADDRESS), waiting=1)
    bucket.reserve(0.0)
    bucket.told([], "refused", 0.0)
    bucket.reserve(0.4)
    assert (bucket.failure, asked) == ("refused", [1])
    bucket.reserve(0.5)
    assert asked == [1, 1]
    bucket.told([0.6], "", 0.6)
    assert bucket.failure == ""
    bucket.take(0.6)
    bucket.reserve(0.6)
    bucket.reserve(2.7)
    assert bucket.failure == "no answer for 2 s"


class Source:
    """A source of slots: ``answer`` makes the slots, or the error, of each request."""

    name, place = "calls", "db/app"

    def __init__(self, answer):
        self.answer, self.open = answer, None

    def __call__(self, address, *, spacing):
        assert (address, spacing) == (ADDRESS, pytest.approx(0.102))
        return self

    def start(self, tell):
        self.open, self._tell = True, tell

    def ask(self, number):
        slots = self.answer(number)
        self._tell(*(([], slots) if isinstance(slots, str) else (slots, "")))

    def close(self):
        self.open = False


async def sent(monkeypatch, answer, calls, **options):
    """Return when the calls of a client at 10/s were sent, and the errors of the others."""
    source, stub, errors = Source(answer), Stub(), []
    monkeypatch.setattr(shared_rate, "SlotSource", source)
    limits = Limits(rates=[Rate(10, shared=ADDRESS, **options)])
    async with AsyncClient(
        base_url=BASE_URL, credentials=CREDENTIALS, transport=stub, clock=stub.clock, limits=limits, deadline=3
    ) as client:

        async def call():
            result = await ending(client.send(READ))
            if isinstance(result, Exception):
                errors.append(result)

        async with anyio.create_task_group() as tasks:
            for _ in range(calls):
                tasks.start_soon(call)
        assert source.open
    assert not source.open
    return SimpleNamespace(times=stub.times, errors=errors, at=stub.clock.elapsed)


async def test_calls_are_sent_at_their_slots(monkeypatch):
    slots = iter([0.0, 0.5, 0.7, 1.6])
    done = await sent(monkeypatch, lambda number: [next(slots) for _ in range(number)], 4)
    assert done.times == pytest.approx([0.0, 0.5, 0.7, 1.6], abs=0.02)


async def test_without_the_server_calls_wait_and_raise_not_sent_with_its_name(monkeypatch):
    done = await sent(monkeypatch, lambda _: "OperationalError: connection refused", 2)
    assert done.times == []
    assert [type(error) for error in done.errors] == [NotSent, NotSent]
    assert "the shared rate 'calls' of db/app cannot be asked: OperationalError: connection refused" in str(done.errors[0])
    assert done.at == pytest.approx(3, abs=0.1)


async def test_without_the_server_a_process_goes_on_at_its_fallback(monkeypatch):
    done = await sent(monkeypatch, lambda _: "refused", 4, fallback=2)
    assert done.times == pytest.approx([0.0, 0.5, 1.0, 1.5], abs=0.05)
    assert done.errors == []


def test_texts_and_their_passwords():
    assert Rate.parse("50/s@postgresql://db/app#calls") == Rate(50, shared=ADDRESS)
    assert Rate.parse("600/min @ postgres://me@db") == Rate(600, 60, shared="postgres://me@db")
    assert "secret" not in repr(Rate(50, shared="postgresql://me:secret@db/app"))
    for text in ("50/s@postgresql://me:secret@db/app", "50/s@postgresql://db?password=secret"):
        with pytest.raises(InvalidRequest, match="no password") as caught:
            Rate.parse(text)
        assert "secret" not in str(caught.value)


WRONG = [
    ({"shared": "mysql://db"}, "postgresql://HOST"),
    ({"shared": 5}, "postgresql://HOST"),
    ({"shared": ADDRESS, "each_group": True}, "each group"),
    ({"fallback": 5}, "only for a rate with shared="),
    ({"shared": ADDRESS, "fallback": 0}, "above 0"),
]


@each_row("options, words", WRONG)
def test_wrong_settings_are_refused(options, words):
    with pytest.raises(InvalidRequest, match=words):
        Rate(50, **options)


def test_an_address_that_libpq_does_not_understand_is_refused_and_not_repeated():
    for address in ("postgresql://db/app?secret=1", "postgresql://[secret"):
        with pytest.raises(InvalidRequest, match="shared: not the address of a PostgreSQL database") as caught:
            shared_rate.SlotSource(address, spacing=1)
        assert "secret" not in str(caught.value)


def test_a_job_takes_its_shared_rate_from_its_client(tmp_path):
    client = AsyncClient(base_url=BASE_URL, credentials=CREDENTIALS)
    with pytest.raises(InvalidRequest, match="limits of the client"):
        InviteJob(client, journal=tmp_path / "journal", rates=["50/s", Rate(50, shared=ADDRESS)])
