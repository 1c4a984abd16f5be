"""What holds a job back and what ends it: rates, concurrency, the fuse, patience, and accounts that poison a request."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, strategies as st

from helpers.jobs import (
    ACCOUNTS,
    DONE,
    FAILED,
    SHORT,
    UNKNOWN,
    WAITING,
    Sending,
    count,
    read,
    rows_of,
    script,
    states,
    whole,
    world,
)
from helpers.tables import each_row
from rbim import ApiError, AuthenticationError, Limits, NotSent, Rate, Retry, TimestampExpired
from rbim.bulk.job import InviteJob
from rbim.emulator.faults import Code, Latency

# ----------------------------------------------------------------------------------------- limits


async def test_rates_hold(journal):
    async with world(3) as it:
        rows = [(group, f"a{n}") for n in range(20) for group in it.groups]
        rates = [Rate(10), Rate(120, 60.0, burst=5)]
        await InviteJob(it.client, journal=journal, chunk=2, rates=rates, adaptive=False).run(rows)
        times = [record.at for record in it.sent()]
        assert len(times) == 30
        assert min(later - earlier for earlier, later in pairwise(times)) >= 0.1 - 1e-6
        for n in range(5, 30):  # 2 a second, after five at once
            assert times[n] - times[0] >= (n - 4) / 2 - 1e-6
        assert times[-1] - times[0] <= 12.6


async def test_a_client_that_is_slower_than_its_job_makes_no_account_unknown(journal):
    async with world(1, limits=Limits(rates=[Rate(2)]), deadline=10.0) as it:
        it.plan(Latency(0.8))
        rows = [(it.groups[0], f"a{n}") for n in range(60)]
        job = InviteJob(it.client, journal=journal, chunk=2, needs_confirmation=True, adaptive=False)
        report = await job.run(rows)
        assert (report.accounts.done, report.accounts.unknown) == (60, 0)
        assert len(it.sent()) == 30
        times = [record.at for record in it.sent()]
        assert min(later - earlier for earlier, later in pairwise(times)) >= 0.5 - 1e-6


@SHORT
@given(
    rows=st.lists(st.tuples(st.sampled_from(["g0", "g1", "g2"]), ACCOUNTS), max_size=40),
    each_group=st.sampled_from([0.3, 0.7, 3.0]),
    ends=st.lists(st.integers(1, 6), max_size=4),
    hard=st.booleans(),
)
async def test_wherever_a_run_is_ended_nobody_is_forgotten(rows, each_group, ends, hard):
    """A group's own rate puts requests off."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        sending = Sending(seconds=0.1)
        settings = {"chunk": 2, "concurrency": 3, "rates": [Rate(10), Rate(each_group, each_group=True)]}
        for end in [*ends, None]:
            run = sending.job(path, **settings).run(rows)
            left = iter(range(end or 10**6, 0, -1))
            sending.act = lambda _, run=run, left=left: (
                None if next(left, 2) > 1 else run.interrupt() if hard else run.stop()
            )
            await run
        assert states(path) == dict.fromkeys(rows, DONE)
        if not hard:
            assert Counter((op.group_id, each) for op in sending.operations for each in op.members) == Counter(set(rows))


@each_row("concurrency, adaptive", [(1, False), (7, False), (7, True)])
async def test_no_more_requests_are_in_flight_than_allowed(tmp_path, concurrency, adaptive):
    sending = Sending(seconds=1.0)
    await sending.job(tmp_path / f"{concurrency}, {adaptive}", chunk=1, concurrency=concurrency, adaptive=adaptive).run(
        rows_of(3, 20)
    )
    assert sending.most == concurrency
    assert len(sending.operations) == 60


# ------------------------------------------------------------------------------- what ends a job


async def test_the_fuse_counts(journal):
    async with world() as it:
        it.plan(Code("999123"))
        rows = [(it.groups[0], f"a{n}") for n in range(50)]
        job = InviteJob(it.client, journal=journal, chunk=1, concurrency=1, max_failures=7)
        async with job.run(rows) as progress:
            pass
        assert progress.why == "fuse"
        assert len(it.sent()) == 8  # more than 7
        assert count(journal) == {FAILED: 8, WAITING: 42}
        assert (whole(await job.report()).skipped, read(journal, "SELECT why FROM run")) == (42, [("fuse",)])


@pytest.mark.parametrize("adaptive", [False, True])
async def test_patience_ends(journal, adaptive):
    sending = Sending(lambda _: NotSent("connection refused") if len(sending.operations) > 1 else None)
    job = sending.job(journal, adaptive=adaptive, patience=40.0, max_failures=None, concurrency=1)
    async with job.run(rows_of(3, 200)) as progress:
        pass
    assert progress.why == "no answer"
    assert 40 < sending.clock.elapsed < 50
    assert count(journal) == {DONE: 50, WAITING: 550}
    assert whole(await job.report()).skipped == 550


async def test_refused_credentials_end_it_at_once_and_it_goes_on_when_they_are_right(journal):
    async with world(2) as it:
        rows = [(group, f"a{n}") for n in range(20) for group in it.groups]
        it.plan(Code("111109"), nth=[7])
        job = InviteJob(it.client, journal=journal, chunk=1, concurrency=1)
        with pytest.raises(AuthenticationError) as caught:
            async with job.run(rows) as progress:
                await anyio.sleep_forever()
        assert caught.value.code == "111109"
        assert progress.why == "authentication"
        assert len(it.sent()) == 7
        assert count(journal) == {DONE: 6, WAITING: 34}
        assert read(journal, "SELECT why FROM run") == [("authentication",)]
        await job.resume()
        assert count(journal) == {DONE: 40}
        assert len(it.sent()) == 7 + 34


async def test_an_old_timestamp_is_made_anew_once(journal):
    old = TimestampExpired("old", code="161106")
    again = set()

    def act(op):
        """Refuse the first account once, the fourth twice."""
        (member,) = op.members
        if member == "a3" and member in again:
            return TimestampExpired("old again", code="161106")
        return again.add(member) or old if member in {"a0", "a3"} - again else None

    sending = Sending(act)
    job = sending.job(journal, chunk=1, concurrency=1, max_failures=0, retry=Retry(attempts=1))
    with pytest.raises(TimestampExpired, match="old again"):
        await job.run(rows_of(1, 8))
    asked = Counter(member for (member,) in sending.members)
    assert len(asked) < 8
    assert sum(asked.values()) == len(asked) + 2
    assert max(asked.values()) == 2
    assert count(journal) == {DONE: len(asked) - 1, WAITING: 9 - len(asked)}


@pytest.mark.parametrize("error", [ExceptionGroup("two", [ValueError("a"), ValueError("b")])])
async def test_an_error_that_is_not_ours_is_raised_as_it_is_and_the_request_stays_open(journal, error):
    sending = Sending(script(None, error))
    job = sending.job(journal, chunk=1, concurrency=1)
    with pytest.raises(type(error)) as caught:
        await job.run(rows_of(1, 4))
    assert caught.value is error
    assert read(journal, "SELECT outcome, retry FROM request ORDER BY id") == [(1, 0), (0, 0)]
    counts = whole(await job.report())
    assert (counts.done, counts.unknown, counts.skipped) == (1, 1, 2)
    await job.resume("report")
    assert count(journal) == {DONE: 3, UNKNOWN: 1}


# -------------------------------------------------------------------------------------- isolation


def poisoned(*poison, code="999123"):
    return lambda op: ApiError("poison", code=code) if set(op.members) & set(poison) else None


@each_row("poison", [["a0"], ["a31"], ["a3", "a17"]])
async def test_exactly_the_poisonous_accounts_fail(tmp_path, poison):
    journal = tmp_path / poison[0]
    sending = Sending(poisoned(*poison))
    job = sending.job(journal, chunk=32, isolate=40, max_failures=None)
    await job.run(rows_of(1, 32))
    assert {account for (_, account), state in states(journal).items() if state == FAILED} == set(poison)
    assert count(journal)[DONE] == 32 - len(poison)
    assert len(sending.operations) - 1 <= 2 * 5 * len(poison)  # two halves a level
    assert max(Counter(sending.members).values()) == 1
