"""Jobs over a carrier: keys, requests recalled by the next run, the latency of the platform, and waiting for workers."""

import sqlite3
from collections import Counter
from contextlib import closing

import anyio
import pytest

from helpers.jobs import DONE, UNKNOWN, WAITING, Sending, count, read, rows_of, states
from rbim import Attempt, Carried, Carrier, InvalidRequest, NotTaken, Outcome, Throttled, Unanswered
from rbim.bulk.job import InviteJob, open_job
from rbim.bulk.journal.facts import job_facts
from rbim.bulk.journal.schema import JOURNAL
from rbim.emulator import EmulatedClock
from rbim.operations.groups import Invited
from rbim.storage.sqlite import Database, FileKind

HOUR = 3600.0


class Queue:
    """A carrier whose workers are a function of the operation; it knows each key for an hour, as the engine would.

    ``hold``: keep what is asked for until the process is gone, which is an interrupted run.
    """

    def __init__(self, *, work=None, seconds=0.01, elapsed=0.01):
        self.clock = EmulatedClock(auto=True)
        self.seconds, self.elapsed = seconds, elapsed
        self.work = work or (lambda _: Invited())
        self.known, self.carried, self.recalled = {}, [], []
        self.address, self.trouble, self.keeps, self.hold = "nats://h1:4222/bulk", "", HOUR, False

    async def send(self, operation, /):
        raise AssertionError(operation)

    async def carry(self, operation, /, *, key):
        self.carried.append((key, operation))
        if self.hold:
            await anyio.sleep_forever()
        await self.clock.sleep(self.seconds)
        answer = self.work(operation)
        if isinstance(answer, Exception):
            raise answer
        return Carried(answer=answer, elapsed=self.elapsed)

    async def recall(self, operation, /, *, key):
        self.recalled.append((key, operation))
        await self.clock.sleep(self.seconds)
        known = self.known[key]
        if isinstance(known, Exception):
            raise known
        return Carried(answer=known, elapsed=self.elapsed)

    def job(self, journal, **options):
        return InviteJob(self, journal=journal, clock=self.clock, **{"chunk": 1, "concurrency": 10} | options)

    def times(self):
        return Counter(each for _, operation in self.carried for each in operation.members)


async def interrupted(queue, journal, rows, **options):
    """Begin a job whose process dies with all of its requests on their way."""
    queue.hold = True
    async with queue.job(journal, **options).run(rows) as run:
        while len(queue.carried) < options.get("concurrency", 10):
            await queue.clock.sleep(0.1)
        run.interrupt()
    queue.hold = False
    return dict(queue.carried)


def test_a_plain_sender_is_no_carrier():
    assert isinstance(Queue(), Carrier)
    assert not isinstance(object(), Carrier)


async def test_each_request_has_a_key_of_the_job_and_its_number(journal):
    queue = Queue()
    await queue.job(journal).run(rows_of(1, 30))
    job = job_facts(journal).id
    assert len(job) == 16
    numbers = [str(number) for (number,) in read(journal, "SELECT id FROM request")]
    assert sorted(key for key, _ in queue.carried) == sorted(f"{job}.{number}" for number in numbers)
    assert count(journal) == {DONE: 30}
    other = journal.with_name("other")
    await Queue().job(other).run(rows_of(1, 1))
    assert job_facts(other).id != job


async def test_what_the_engine_knows_of_a_killed_run_is_settled_and_not_sent_again(journal):
    queue = Queue()
    begun = await interrupted(queue, journal, rows_of(1, 30))
    assert len(begun) == 10
    first = {key: operation.members[0] for key, operation in begun.items()}
    kinds = [Invited(), NotTaken("withdrawn"), Throttled("slow", status=429, retry_after=1.0)]
    queue.known = {key: kinds[place % 3] for place, key in enumerate(first)}
    queue.carried.clear()
    report = await queue.job(journal).resume("report")
    assert (report.accounts.done, report.accounts.unknown) == (30, 0)
    assert {key for key, _ in queue.recalled} == set(first)
    answered = {first[key] for key, known in queue.known.items() if isinstance(known, Invited)}
    assert len(answered) == 4
    assert queue.times() == {account: 1 for (_, account) in states(journal) if account not in answered}
    assert not set(first) & {key for key, _ in queue.carried}, "a repetition has a key of its own"
    outcomes = dict(read(journal, "SELECT outcome, count(*) FROM request GROUP BY outcome"))
    assert outcomes == {1: 30, 2: 3, 3: 3}


@pytest.mark.parametrize(
    ("on_unknown", "confirm", "again"), [("report", False, 0), ("auto", False, 1), ("resend", True, 1), ("auto", True, 0)]
)
async def test_what_nobody_knows_any_more_is_decided_as_without_a_carrier(journal, on_unknown, confirm, again):
    queue = Queue()
    begun = await interrupted(queue, journal, rows_of(1, 10), needs_confirmation=confirm)
    queue.known = dict.fromkeys(begun, Unanswered("its worker died"))
    queue.carried.clear()
    await queue.job(journal, needs_confirmation=confirm).resume(on_unknown)
    assert count(journal) == {DONE if again else UNKNOWN: 10}
    assert sum(queue.times().values()) == 10 * again
    resent = {bool(each) for (each,) in read(journal, "SELECT resent FROM request WHERE outcome = 1")}
    assert resent == ({True} if again else set())


async def test_what_is_older_than_the_engine_remembers_is_not_asked_for(journal):
    queue = Queue()
    await interrupted(queue, journal, rows_of(1, 10), needs_confirmation=True)
    await queue.clock.advance(HOUR)
    await queue.job(journal, needs_confirmation=True).resume()
    assert queue.recalled == []
    assert count(journal) == {UNKNOWN: 10}


@pytest.mark.parametrize("plain", [True, False])
async def test_what_was_begun_over_other_workers_or_none_is_not_asked_for(journal, plain):
    """These do not know it, and would say that nobody has taken it."""
    queue = Queue()
    if plain:
        sending = Sending(seconds=1e6)
        async with sending.job(journal, chunk=1, concurrency=10, needs_confirmation=True).run(rows_of(1, 10)) as run:
            while len(sending.operations) < 10:
                await sending.clock.sleep(0.1)
            run.interrupt()
    else:
        await interrupted(queue, journal, rows_of(1, 10), needs_confirmation=True)
    queue.address = "nats://h2:4222/bulk"
    queue.carried.clear()
    await queue.job(journal, needs_confirmation=True).resume()
    assert (queue.recalled, queue.carried) == ([], [])
    assert count(journal) == {UNKNOWN: 10}


async def test_a_recalled_group_that_is_closed_meanwhile_is_settled_by_its_own_outcome(journal):
    queue = Queue(work=lambda _: InvalidRequest("never"))
    begun = await interrupted(queue, journal, rows_of(1, 12), concurrency=2)
    queue.known = dict.fromkeys(begun, Invited())
    await queue.job(journal, max_failures=None).resume()
    assert Counter(states(journal).values())[DONE] == 2


async def test_two_kills_in_a_row_leave_the_recalled_ones_open(journal):
    queue = Queue()
    begun = await interrupted(queue, journal, rows_of(1, 10))
    queue.seconds = 100.0
    async with queue.job(journal).resume() as run:
        while len(queue.recalled) < 10:
            await queue.clock.sleep(1.0)
        run.interrupt()
    assert read(journal, "SELECT count(*) FROM request WHERE outcome = 0") == [(10,)]
    queue.known = dict.fromkeys(begun, Invited())
    await queue.job(journal).resume()
    assert count(journal) == {DONE: 10}
    assert len(queue.carried) == 10


async def test_a_job_waits_for_workers_longer_than_its_patience_and_counts_nothing_against_the_platform(journal):
    queue = Queue(seconds=30.0)
    until = queue.clock.monotonic() + 300.0

    def work(_):
        return NotTaken("no worker took it") if queue.clock.monotonic() < until else Invited()

    queue.work = work
    seen = set()
    async with queue.job(journal, max_failures=0, patience=120.0).run(rows_of(1, 20)) as run:
        async for snapshot in run:
            seen.add((snapshot.phase, snapshot.cause))
    assert run.why == "done"
    assert ("halted", "no worker took it") in seen
    assert count(journal) == {DONE: 20}


async def test_the_pace_sees_the_latency_of_the_platform_and_not_the_queue(journal):
    async def limit(elapsed):
        queue = Queue(elapsed=elapsed)
        path = journal.with_name(f"journal-{elapsed}")
        sent = 0
        highest = 0

        def work(_):  # the queue grows all the time
            nonlocal sent
            sent += 1
            queue.seconds = 0.01 + 0.01 * sent
            if elapsed is None or elapsed < 0:
                queue.elapsed = queue.seconds
            return Invited()

        queue.work = work
        async with queue.job(path, concurrency=100).run(rows_of(1, 600)) as run:
            async for snapshot in run:
                highest = max(highest, snapshot.concurrency)
        return highest

    assert await limit(0.01) == 100
    assert await limit(-1.0) < 100


async def test_the_latency_of_a_failed_request_is_that_of_its_attempts(journal):
    """What a request waited for a worker is no silence of the platform."""
    queue = Queue(seconds=130.0)

    def work(_):
        error = Unanswered("lost")
        error.attempts = (Attempt(number=1, elapsed=1.0, outcome=Outcome.UNKNOWN, error="Unanswered"),)
        return error if len(queue.carried) < 2 else Invited()

    queue.work = work
    async with queue.job(journal, patience=120.0, concurrency=1).run(rows_of(1, 2)) as run:
        pass
    assert run.why == "done"
    assert count(journal) == {DONE: 2}


async def test_patience_begins_anew_after_trouble_of_the_engine(journal):
    queue = Queue(seconds=1.0)

    def work(_):
        if len(queue.carried) == 1:  # this one is lost, and then the engine is away
            queue.seconds, queue.trouble = 1000.0, "h1:4222: no server has answered"
        if len(queue.carried) == 2:
            queue.seconds, queue.trouble = 1.0, ""
        return Unanswered("lost") if len(queue.carried) < 3 else Invited()

    queue.work = work
    async with queue.job(journal, patience=120.0, concurrency=1).run(rows_of(1, 5)) as run:
        pass
    assert run.why == "done"
    assert count(journal) == {DONE: 5}


async def test_trouble_of_the_engine_shows_as_halted(journal):
    queue = Queue(seconds=5.0)
    seen = set()
    async with queue.job(journal).run(rows_of(1, 20)) as run:
        async for snapshot in run:
            queue.trouble = "h1:4222: no server has answered" if snapshot.done == 0 else ""
            seen.add((snapshot.phase, snapshot.cause))
    assert ("halted", "h1:4222: no server has answered") in seen
    assert ("running", "") in seen


async def test_the_journal_keeps_the_address_of_the_workers(journal):
    queue = Queue()
    await queue.job(journal).run(rows_of(1, 1), limit=1)
    assert job_facts(journal).settings["via"] == "nats://h1:4222/bulk"
    job = open_job(queue, journal, clock=queue.clock)
    await job.resume()


async def test_a_journal_of_version_3_gets_an_id_when_it_is_opened_to_send(journal):
    queue = Queue()
    await queue.job(journal).run(rows_of(1, 4), limit=2)
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("ALTER TABLE job DROP COLUMN id")
        connection.execute("DROP INDEX request_open")
        connection.execute("CREATE INDEX request_open ON request (id) WHERE outcome = 0")
        connection.execute("PRAGMA user_version = 3")
    assert job_facts(journal).id == ""
    await queue.job(journal).resume()
    found = job_facts(journal).id
    assert len(found) == 16
    assert {key.partition(".")[0] for key, _ in queue.carried[2:]} == {found}
    assert count(journal) == {DONE: 4}
    old = FileKind(name=JOURNAL.name, mark=JOURNAL.mark, schema=JOURNAL.schema[:3], oldest=3)
    made, migrated = journal.with_name("old"), journal.with_name("new")
    for kind, path in ((old, made), (JOURNAL, made), (JOURNAL, migrated)):
        database = Database(path, kind, clock=float)
        database.open()
        database.close()
    tables = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    assert read(made, tables) == read(migrated, tables)


async def test_accounts_that_are_recalled_wait_and_are_not_retried(journal):
    queue = Queue()
    await interrupted(queue, journal, rows_of(1, 10))
    with pytest.raises(InvalidRequest, match="were not sent yet: resume the job first"):
        await queue.job(journal).retry()
    assert count(journal) == {WAITING: 10}
