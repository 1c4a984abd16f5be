"""Jobs that end in time: total failures, groups that are gone or full, endless throttling, no connection, a sleep."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from helpers.jobs import (
    DONE,
    FAILED,
    NO_PAUSES,
    REFUSED,
    UNKNOWN,
    WAITING,
    Sending,
    count,
    read,
    reasons,
    rows_of,
    script,
    states,
    whole,
    world,
)
from rbim import ApiError, Dialect, GroupType, Limits, NotFound, NotSent, Rate, Retry, Throttled, Unanswered
from rbim.bulk.dispatcher import FIRST_BATCH
from rbim.bulk.job import InviteJob, open_job
from rbim.bulk.report.text import report_text
from rbim.emulator import EmulatedClock
from rbim.emulator.faults.requests import Status


async def watched(run):
    """Run a job to its end and return its last snapshot; every one adds up."""
    async with run:
        async for snapshot in run:
            seen = [getattr(snapshot, name) for name in ("waiting", "done", "refused", "failed", "unknown", "skipped")]
            assert sum(seen) + snapshot.duplicate == snapshot.total or snapshot.phase == "loading"
            assert min(seen) >= 0
    return snapshot


@pytest.mark.parametrize("groups", [1, 40])
async def test_a_total_failure_after_the_middle_ends_a_job(journal, groups):
    asked = iter(range(10**9))
    sending = Sending(lambda _: ApiError("no", code="999123") if next(asked) >= 1000 else None)
    job = sending.job(journal, chunk=10, concurrency=20)
    run = job.run(rows_of(groups, 20_000 // groups))
    await watched(run)
    assert run.why == "fuse"
    assert len(sending.operations) <= 1000 + 200
    assert count(journal)[WAITING] > 8_000


@pytest.mark.parametrize(("chunk", "concurrency", "isolate"), [(1, 1, 0), (10, 4, 0), (10, 30, 0), (10, 4, 500)])
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


@pytest.mark.parametrize("listed", [True, False])
async def test_a_full_group_ends_by_itself(journal, listed):
    """20,000 rows for a group of 300 places."""
    async with world(dialect=Dialect(overflow_fails=listed)) as it:
        group = (await it.client.groups.create(name="g", type=GroupType.PAID_300)).group_id
        it.emulator.requests.clear()
        rows = [(group, f"a{n}") for n in range(20_000)] + [(it.groups[0], f"b{n}") for n in range(100)]
        job = InviteJob(it.client, journal=journal, concurrency=5)
        run = job.run(rows)
        await watched(run)
        assert run.why == "done"
        filled = len(it.members(group))
        assert filled == (299 if listed else 250)
        assert len(it.sent()) <= 2 + -(-filled // 50) + 1 + 5 + 3
        found = count(journal)
        assert found[DONE] == filled + 100
        assert found[FAILED] > 19_000
        assert found[FAILED] + found[REFUSED] == 20_000 - filled
        texts = Counter(text for text in reasons(journal).values() if text)
        assert any(text.startswith("not sent: the group was closed") for text in texts)


async def test_requests_that_wait_for_the_clients_limits_are_dropped_with_their_group(journal):
    async with world(2, limits=Limits(rates=[Rate(10, each_group=True)])) as it:
        gone, other = it.groups
        it.emulator.state.groups.pop(gone)
        rows = [(group, f"a{n}") for n in range(100) for group in (gone, other)]
        run = InviteJob(it.client, journal=journal, chunk=2, concurrency=8, adaptive=False).run(rows)
        await watched(run)
        assert run.why == "done"
        assert sum(record.operation.group_id == gone for record in it.sent()) <= 8 + 3
        assert Counter(state for (group, _), state in states(journal).items() if group == other) == {DONE: 100}
        assert Counter(state for (group, _), state in states(journal).items() if group == gone) == {FAILED: 100}


async def test_what_an_earlier_request_may_have_reached_is_unknown_in_a_closed_group(journal):
    """Unknown accounts are sent again, and the group is gone by now: of those that are not sent, nothing new is known."""
    sending = Sending(lambda _: Unanswered("reset"))
    await sending.job(journal, chunk=2, concurrency=1, max_failures=None, retry=Retry(attempts=1), patience=1e9).run(
        rows_of(1, 40)
    )
    assert count(journal) == {UNKNOWN: 40}
    sending.act = lambda _: NotFound("there is no group g0", code="900404")
    run = open_job(sending, journal, clock=sending.clock).retry()
    snapshot = await watched(run)
    assert (run.why, count(journal), snapshot.unknown) == ("done", {UNKNOWN: 40}, 40)
    assert len(sending.operations) - 20 <= 1 + 3
    assert whole(await open_job(sending, journal).report()).unknown == 40


async def test_what_was_throttled_before_its_group_was_closed_is_sent_to_its_end(journal):
    throttled = set()

    def act(op):
        if op.members[0] in {"a0", "a2", "a4"} and op.members not in throttled:
            throttled.add(op.members)
            return Throttled("slower", code="160016", retry_after=5)
        return NotFound("there is no group", code="900404")

    sending = Sending(act)
    run = sending.job(journal, chunk=2, concurrency=2).run(rows_of(1, 60))
    await watched(run)
    assert (run.why, count(journal)) == ("done", {FAILED: 60})
    assert len(throttled) == 3
    assert read(journal, "SELECT count(*) FROM request WHERE outcome = 0 OR todo = 1") == [(0,)]


@pytest.mark.parametrize(("retry_after", "adaptive"), [(None, False), (None, True), (20, True)])
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


async def test_a_pause_of_five_minutes_that_the_platform_asks_for_is_waited_for(journal):
    sending = Sending(script(None, None, Throttled("later", code="160016", retry_after=300)))
    run = sending.job(journal, chunk=1, concurrency=2).run(rows_of(1, 20))
    await watched(run)
    assert (run.why, count(journal)) == ("done", {DONE: 20})
    assert 300 <= sending.clock.elapsed < 310


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


async def test_a_halted_job_says_why(journal):
    sending = Sending(lambda _: NotSent("cannot connect to h:1 (refused)") if sending.clock.elapsed < 5 else None)
    causes = {}
    async with sending.job(journal, chunk=1, concurrency=10, adaptive=True).run(rows_of(1, 50)) as run:
        async for snapshot in run:
            causes.setdefault(snapshot.phase, set()).add(snapshot.cause)
    assert causes["halted"] == {"cannot connect to h:1 (refused)"}
    assert causes["ended"] == {""}


async def test_a_process_that_was_stopped_for_an_hour_goes_on(journal):
    """The clock jumps while requests are in flight, which are lost by that."""
    sending = Sending(seconds=1.0)

    def act(_):
        if len(sending.operations) in range(10, 15):
            if len(sending.operations) == 10:
                sending.clock.elapsed += 3600.0
            return Unanswered("closed meanwhile")
        return None

    sending.act = act
    run = sending.job(journal, chunk=1, concurrency=5, patience=20.0, retry=NO_PAUSES).run(rows_of(1, 60))
    await watched(run)
    assert (run.why, count(journal)) == ("done", {DONE: 60})
    assert sending.clock.elapsed > 3600


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
    assert 5 <= len(sending.operations) <= 5 + FIRST_BATCH


class JumpingClock(EmulatedClock):
    """An emulated clock whose time of day is set forward or back while the job runs."""

    def now(self):
        return super().now() + timedelta(hours=self.jump if self.elapsed > 3 else 0)


@pytest.mark.parametrize("hours", [24, -24])
async def test_a_clock_on_the_wall_that_jumps_is_not_seen_in_durations(journal, hours):
    clock = JumpingClock(auto=True)
    clock.jump = hours
    sending = Sending(clock=clock, seconds=1.0)
    report = await sending.job(journal, chunk=1, concurrency=1).run(rows_of(1, 9))
    assert report.seconds == pytest.approx(9, abs=0.1) == sum(run.seconds for run in report.runs)
    assert report.requests.per_second == pytest.approx(1, abs=0.1)
    assert sum(each.seconds for each in report.over_time) == pytest.approx(9, abs=0.1)
    assert "24:00" not in report_text(report)


SLEEPER = """
import sys, time
import anyio
from helpers.jobs import rows_of
from rbim import Unanswered
from rbim.bulk import InviteJob
from rbim.operations.groups import Invited

class Platform:
    async def send(self, op, /):
        print("sent", flush=True)
        began = time.monotonic()
        await anyio.sleep(0.3)
        if time.monotonic() - began > 1:
            raise Unanswered("time-out")
        return Invited()

async def main():
    job = InviteJob(Platform(), journal=sys.argv[1], chunk=1, concurrency=8, patience=1.0, rates=["25/s"])
    async with job.run(rows_of(1, 60)) as run:
        pass
    print(run.why, run.snapshot.done, flush=True)

anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
def test_a_process_that_is_stopped_longer_than_its_patience_goes_on(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(tmp_path / "journal")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    ) as process:
        try:
            for _ in range(10):
                assert process.stdout.readline() == "sent\n"
            process.send_signal(signal.SIGSTOP)
            time.sleep(8)
            process.send_signal(signal.SIGCONT)
            rest = process.communicate(timeout=60)[0].splitlines()
        finally:
            process.kill()
    assert rest[-1] == "done 60"


@pytest.mark.parametrize("late", [0.5, 0.2, 0.15, 0.1])
async def test_a_request_that_is_split_while_its_group_is_closed_leaves_nothing_waiting(journal, late):
    """One request is refused for an account, late; the others say meanwhile that the group does not exist."""

    async def act(op):
        if "a0" in op.members:
            await sending.clock.sleep(late)
            return ApiError("bad account", code="999123")
        await sending.clock.sleep(0.05)
        return NotFound("no such group", code="900404")

    sending = Sending(act)
    job = sending.job(journal, chunk=10, isolate=20, concurrency=3)
    run = job.run(rows_of(1, 60))
    await watched(run)
    assert run.why == "done"
    found = count(journal)
    assert set(found) <= {FAILED, UNKNOWN, DONE}
    assert run.snapshot.waiting == 0
    assert (await job.report()).state == "complete"
