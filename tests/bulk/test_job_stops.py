"""Jobs that end in time: total failures, groups that are gone or full, endless throttling, no connection, a sleep."""

import sys
from collections import Counter

import pytest

from helpers.jobs import DONE, FAILED, WAITING, Sending, count, read, rows_of, states, whole, world
from rbim import IntermediaryError, NotFound, NotSent
from rbim.bulk.job import InviteJob, open_job
from rbim.emulator.faults import Status


async def watched(run):
    """Run a job to its end and return its last snapshot; every one adds up."""
    async with run:
        async for snapshot in run:
            seen = [getattr(snapshot, name) for name in ("waiting", "done", "refused", "failed", "unknown", "skipped")]
            assert sum(seen) + snapshot.duplicate == snapshot.total or snapshot.phase == "loading"
            assert min(seen) >= 0
    return snapshot


@pytest.mark.parametrize(("chunk", "concurrency", "isolate"), [(1, 1, 0), (10, 30, 0), (10, 4, 500)])
async def test_a_group_that_was_deleted_gets_a_few_requests_more(journal, chunk, concurrency, isolate):
    """It is deleted when a tenth of it is done; the others are done, and it can be retried when it is there again."""

    def act(op):
        if op.group_id == "g0" and [each for each in sending.operations if each.group_id == "g0"].index(op) >= 20:
            return NotFound("there is no group g0", code="900404")
        return None

    sending = Sending(act, seconds=0.1)
    job = sending.job(journal, chunk=chunk, concurrency=concurrency, isolate=isolate)
    run = job.run(rows_of(4, 100 * chunk))
    snapshot = await watched(run)
    assert run.why == "done"
    further = sending.groups.count("g0") - 21
    assert further <= concurrency + 3
    found = states(journal)
    assert all(state == DONE for (group, _), state in found.items() if group != "g0")
    failed = [account for (group, account), state in found.items() if group == "g0" and state == FAILED]
    assert len(failed) == 80 * chunk == snapshot.failed
    texts = Counter(text for (text,) in read(journal, "SELECT reason FROM accounts WHERE state = 'failed'"))
    assert texts == {
        "code 900404: there is no group g0": (further + 1) * chunk,
        "not sent: the group was closed after 3 refusals in a row: code 900404: there is no group g0": (79 - further)
        * chunk,
    }
    assert whole(await job.report()).failed == len(failed)

    sending.act = lambda _: None
    before = len(sending.operations)
    again = open_job(sending, journal, clock=sending.clock).retry()
    await again
    assert (again.why, count(journal)) == ("done", {DONE: 400 * chunk})
    assert len(sending.operations) == before + 80


@pytest.mark.parametrize("limit", [None, 5])
async def test_a_group_that_is_closed_at_the_end_is_counted(journal, limit):
    sending = Sending(lambda _: NotFound("there is no group g0", code="900404"))
    run = sending.job(journal, chunk=1, concurrency=1).run(rows_of(1, 20), limit=limit)
    snapshot = await watched(run)
    assert (run.why, snapshot.failed, snapshot.waiting) == ("done", 20, 0)
    assert count(journal) == {FAILED: 20}


@pytest.mark.parametrize(("retry_after", "adaptive"), [(None, False), (20, True)])
async def test_a_used_up_quota_ends_a_job(journal, retry_after, adaptive):
    async with world() as it:
        it.plan(Status(429, retry_after=retry_after), match=lambda _: len(it.sent()) > 20)
        job = InviteJob(it.client, journal=journal, chunk=1, concurrency=5, adaptive=adaptive, patience=30.0)
        run = job.run([(it.groups[0], f"a{n}") for n in range(100)])
        began = it.clock.monotonic()
        await run
        assert run.why == "no progress"
        assert 30 < it.clock.monotonic() - began < (60 if retry_after is None else 360)
        assert "429" in run.snapshot.cause
        assert (await job.report()).accounts.failed == 0
        it.emulator.faults.clear()
        await job.resume()
        assert count(journal) == {DONE: 100}


@pytest.mark.parametrize("status", [401, 404, 407])
async def test_a_job_waits_while_something_in_between_answers(journal, status):
    """A page says nothing of the credentials, the group or the accounts: the job ends as in an outage."""
    async with world() as it:
        it.plan(Status(status), match=lambda _: len(it.sent()) > 20)
        job = InviteJob(it.client, journal=journal, chunk=1, concurrency=5, patience=30.0)
        run = job.run([(it.groups[0], f"a{n}") for n in range(100)])
        await run
        assert run.why == "no answer"
        assert f"HTTP {status} with HTML from im.example: something between you and the platform" in run.snapshot.cause
        assert set(count(journal)) == {DONE, WAITING}
        it.emulator.faults.clear()
        await job.resume()
        assert count(journal) == {DONE: 100}


async def test_a_redirect_ends_a_job_at_once(journal):
    async with world() as it:
        it.plan(Status(301), match=lambda _: len(it.sent()) > 20)
        job = InviteJob(it.client, journal=journal, chunk=1, concurrency=5)
        run = job.run([(it.groups[0], f"a{n}") for n in range(100)])
        with pytest.raises(IntermediaryError, match="HTTP 301"):
            await run
        assert run.why == "error"
        assert len(it.sent()) <= 20 + 5 + 1
        assert set(count(journal)) == {DONE, WAITING}
        it.emulator.faults.clear()
        await job.resume()
        assert count(journal) == {DONE: 100}


@pytest.mark.parametrize("seconds", [0.0, 10.0])
async def test_a_job_that_never_had_a_connection_ends_within_half_a_minute(journal, seconds):
    """Connections are refused at once, or the attempt takes all of its ten seconds."""
    sending = Sending(lambda _: NotSent("cannot connect to 127.0.0.1:9 (refused)"), seconds=seconds)
    job = sending.job(journal, chunk=1, adaptive=True)
    run = job.run(rows_of(3, 200))
    snapshot = await watched(run)
    assert run.why == "not connected"
    assert 15 < sending.clock.elapsed <= 30
    assert snapshot.cause == "cannot connect to 127.0.0.1:9 (refused)"
    assert count(journal) == {WAITING: 600}
    report = await job.report()
    assert [(each.state, each.text, each.error) for each in report.reasons] == [
        ("waiting", "cannot connect to 127.0.0.1:9 (refused)", "NotSent")
    ]
    assert read(journal, "SELECT why FROM run") == [("not connected",)]


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be deleted")
@pytest.mark.parametrize("harm", ["deleted", "replaced"])
async def test_a_job_whose_journal_is_not_in_its_place_ends_at_the_next_commit(journal, harm):
    """At the fifth request, in the first second of the run; only requests whose intents were committed before leave."""

    def act(_):
        if len(sending.operations) == 5:
            journal.rename(journal.with_name("elsewhere"))
            if harm == "replaced":
                journal.write_bytes(journal.with_name("elsewhere").read_bytes())

    sending = Sending(act)
    with pytest.raises(FileNotFoundError, match="deleted, replaced or cut"):
        await sending.job(journal, chunk=1, concurrency=1).run(rows_of(1, 1000))
    assert len(sending.operations) == 5
