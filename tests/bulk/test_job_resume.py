"""Jobs that are ended early, resumed, retried, or begun a second time with the same journal."""

import sqlite3
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, strategies as st

from helpers.jobs import (
    DONE,
    FAILED,
    NO_PAUSES,
    REFUSED,
    SHORT,
    UNKNOWN,
    WAITING,
    Sending,
    accounts_of_requests,
    count,
    read,
    reasons,
    rows_of,
    script,
    states,
    whole,
    world,
)
from helpers.tables import each_row
from rbim import ApiError, InvalidRequest, Retry, Throttled, Unanswered
from rbim.bulk.input.file import BATCH
from rbim.bulk.job import InviteJob, RemoveJob, open_job
from rbim.emulator.faults import Code, Latency
from rbim.operations.fails import Fail
from rbim.operations.groups import Invited

# ----------------------------------------------------------------------- ended early, and resumed


async def test_stop_lets_what_is_in_flight_end(journal):
    sending = Sending(seconds=5.0)
    job = sending.job(journal, chunk=1, concurrency=4)
    phases = []
    async with job.run(rows_of(1, 10)) as progress:
        async for snapshot in progress:
            phases.append(snapshot.phase)
            if snapshot.done == 4:
                progress.stop()
    assert (progress.why, phases[-1]) == ("stopped", "ended")
    assert "draining" in phases
    assert count(journal) == {DONE: 8, WAITING: 2}
    assert read(journal, "SELECT count(*) FROM request WHERE outcome <> 1") == [(0,)]
    await job.resume()
    assert count(journal) == {DONE: 10}
    assert [why for (why,) in read(journal, "SELECT why FROM run ORDER BY id")] == ["stopped", "done"]


async def interrupt(progress, _):
    progress.interrupt()
    await checkpoint()


async def cancel(_, scope):
    scope.cancel()
    await checkpoint()


@pytest.mark.parametrize("ending", [interrupt, cancel])
@pytest.mark.parametrize("after", [2.0, 7.0])
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_interrupted_requests_stay_open_and_are_sent_again(journal, ending, after):
    sending = Sending(seconds=5.0)
    job = sending.job(journal, chunk=1, concurrency=4)
    with anyio.CancelScope() as scope:
        async with job.run(rows_of(1, 10)) as progress:
            await sending.clock.sleep(after)
            await ending(progress, scope)
    done = 4 if after > 5 else 0
    cut = len(sending.operations) - done
    assert progress.why == "interrupted"
    assert sending.in_flight == 0
    assert count(journal) == Counter({DONE: done, WAITING: 10 - done})
    assert read(journal, "SELECT count(*) FROM request WHERE outcome = 0") == [(cut,)]
    await job.run(rows_of(1, 10))
    assert count(journal) == {DONE: 10}
    assert len(sending.operations) == 10 + cut
    assert read(journal, "SELECT count(*) FROM request WHERE resent = 1") == [(cut,)]


@pytest.mark.parametrize("how", [interrupt, cancel])
async def test_whenever_it_is_interrupted_it_goes_on_afterwards(tmp_path, how):
    for turns in range(0, 45, 4):
        path = tmp_path / f"journal{turns}"
        sending = Sending()
        with anyio.CancelScope() as scope:
            async with sending.job(path, chunk=1, concurrency=2).run(rows_of(2, 4)) as progress:
                for _ in range(turns):
                    await checkpoint()
                await how(progress, scope)
        assert progress.why in {"interrupted", "done"}
        assert sending.in_flight == 0
        sending.operations.clear()
        await sending.job(path, chunk=1).run(rows_of(2, 4))
        assert count(path) == {DONE: 8}
        assert read(path, "SELECT count(*) FROM run WHERE ended IS NULL") == [(0,)]


async def copied(journal, at):
    """Copy the journal as somebody would find it whose process was killed now."""
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("VACUUM INTO ?", (str(at),))
    await checkpoint()


@pytest.mark.parametrize("before", [True, False], ids=["before it arrives", "after it took effect"])
@pytest.mark.parametrize("point", [1, 9])
async def test_a_killed_run_is_resumed_from_the_journal_alone(tmp_path, point, before):
    async with world(3) as it:
        it.plan(Code("999123"), match=lambda op: "a7" in op.members)
        it.plan(Latency(0.2))
        rows = [(group, f"a{n}") for n in range(12) for group in it.groups]
        sent = 0
        left = {}

        async def send(op):
            nonlocal sent
            sent += 1
            mine = sent == point
            if mine and before:
                await copied(tmp_path / "journal", tmp_path / "copy")
                left["state"] = it.emulator.snapshot()
            try:
                return await it.client.tuned(retry=Retry(attempts=1)).send(op)
            finally:
                if mine and not before:
                    await copied(tmp_path / "journal", tmp_path / "copy")
                    left["state"] = it.emulator.snapshot()

        sending = Sending(send, clock=it.clock)
        settings = {"chunk": 5, "isolate": 50, "concurrency": 3, "max_failures": None}
        await sending.job(tmp_path / "journal", **settings).run(rows)
        expected = states(tmp_path / "journal")
        assert Counter(expected.values()) == {DONE: 33, FAILED: 3}

        it.emulator.restore(left["state"])
        it.emulator.requests.clear()
        assert read(tmp_path / "copy", "SELECT count(*) > 0 FROM request WHERE outcome = 0") == [(1,)]
        job = open_job(it.client, tmp_path / "copy")
        assert job.settings.isolate == 50
        await job.resume()
        assert states(tmp_path / "copy") == {
            key: UNKNOWN if state == FAILED and was_open(tmp_path / "copy", key) else state
            for key, state in expected.items()
        }
        assert all(it.members(group) == {f"a{n}" for n in range(12)} - {"a7"} for group in it.groups)
        settled = Counter(
            (record.operation.group_id, account)
            for record in it.sent()
            if record.code == "000000"
            for account in record.operation.members
        )
        assert max(settled.values()) == 1
        whole(await job.report())


def was_open(path, key):
    """Tell whether an account was in a request that was open when the run was killed: then nobody knows."""
    resent = {number for (number,) in read(path, "SELECT id FROM request WHERE resent = 1")}
    inside = accounts_of_requests(path)
    return any(each[:2] == key for number in resent for each in inside[number])


async def lose_three(journal, kind=InviteJob, *, age=0.0, act=None, **options):
    """Interrupt a run of which three requests of two accounts are in flight, two have not been sent; return the sender."""
    sending = Sending(seconds=5.0)
    job = kind(sending, journal=journal, clock=sending.clock, adaptive=False, chunk=2, concurrency=3, **options)
    async with job.run(rows_of(1, 10)) as run:
        await sending.clock.sleep(1.0)
        run.interrupt()
    assert len(sending.operations) == 3
    sending.clock.start += timedelta(seconds=age)
    sending.operations.clear()
    sending.seconds = 0.0
    sending.act = act or sending.act
    return sending


NO, ALL = 0, 3


@each_row(
    "kind, options, age, on_unknown, resent",
    [
        (InviteJob, {}, 10.0, "auto", ALL),
        (InviteJob, {}, 3500.0, "auto", ALL),
        (InviteJob, {}, 3610.0, "auto", NO),
        (InviteJob, {}, 36100.0, "resend", ALL),
        (InviteJob, {}, 0.0, "report", NO),
        (InviteJob, {}, -7200.0, "auto", NO),
        (InviteJob, {"needs_confirmation": True}, 0.0, "auto", NO),
        (InviteJob, {"needs_confirmation": True}, -60.0, "auto", NO),
        (InviteJob, {"needs_confirmation": True}, 0.0, "resend", ALL),
        (InviteJob, {"resend_within": 60.0}, 50.0, "auto", ALL),
        (InviteJob, {"resend_within": 60.0}, 70.0, "auto", NO),
        (RemoveJob, {}, 0.0, "auto", NO),
        (RemoveJob, {}, -5.0, "auto", NO),
        (RemoveJob, {}, 0.0, "resend", ALL),
    ],
)
async def test_what_an_ended_run_left_open(tmp_path, kind, options, age, on_unknown, resent):
    """The age is that of the request by the clock on the wall, which may have been set back meanwhile."""
    journal = tmp_path / f"{kind.__name__} {options} {age} {on_unknown}"
    sending = await lose_three(journal, kind, age=age, **options)
    job = open_job(sending, journal, clock=sending.clock)
    await job.resume(on_unknown)
    assert len(sending.operations) == 2 + resent
    assert count(journal) == Counter({DONE: 4 + 2 * resent, UNKNOWN: 6 - 2 * resent})
    assert read(journal, "SELECT count(*) FROM request WHERE resent = 1") == [(resent,)]
    assert read(journal, "SELECT count(*) FROM request WHERE outcome = 0 OR retry = 1") == [(0,)]
    if not resent:
        assert {reason for reason in reasons(journal).values() if reason} == {"the run ended before an answer came"}


async def test_a_repetition_that_was_stopped_in_between_is_unknown_when_it_is_old(journal):
    """Lost, sent again and throttled, and then stopped: what the first one did is as unknown as ever."""
    sending = Sending(seconds=1.0)
    job = RemoveJob(sending, journal=journal, clock=sending.clock, adaptive=False, chunk=5, concurrency=1, retry=NO_PAUSES)
    run = job.run(rows_of(1, 5))
    steps = script(lambda: Unanswered("lost"), lambda: run.stop() or Throttled("slower", code="160016"))
    sending.act = lambda op: step() if (step := steps(op)) is not None else None
    await run
    assert len(sending.operations) == 2
    assert whole(await job.report()).unknown == 5
    sending.clock.elapsed += 86400.0
    await job.resume()
    assert len(sending.operations) == 2
    assert count(journal) == {UNKNOWN: 5}
    assert read(journal, "SELECT outcome, retry FROM request") == [(4, 0), (2, 0)]


@pytest.mark.parametrize(("options", "divide"), [({}, {"limit": 1}), ({"isolate": 2}, {})], ids=["limit", "isolate"])
async def test_a_part_of_a_lost_request_is_as_old_as_the_whole(journal, options, divide):
    sending = await lose_three(journal)
    run = open_job(sending, journal, clock=sending.clock, concurrency=1, max_failures=None, **options).resume(**divide)
    sending.act = lambda _: None if divide else (run.stop(), ApiError("no", code="999123"))[1]
    await run
    assert len(sending.operations) == 1
    sending.clock.start += timedelta(hours=1, seconds=10)
    sending.operations.clear()
    sending.act = lambda _: None
    await open_job(sending, journal, clock=sending.clock).resume()
    assert len(sending.operations) == 2  # the two requests that never left
    assert count(journal)[UNKNOWN] == 6 - bool(divide)
    assert read(journal, "SELECT count(*) FROM request WHERE outcome = 0 OR retry = 1") == [(0,)]


async def test_retrying_nothing_is_refused(journal):
    with pytest.raises(InvalidRequest, match="neither failed nor unknown"):
        Sending().job(journal).retry(failed=False, unknown=False)


async def test_a_retry_is_refused_while_others_wait(journal):
    sending = Sending(script(ApiError("no", code="999123")))
    job = sending.job(journal, chunk=1, concurrency=1, max_failures=0)
    async with job.run(rows_of(1, 5)) as progress:
        pass
    assert (progress.why, count(journal)[FAILED]) == ("fuse", 1)
    assert 3 <= count(journal)[WAITING] <= 4
    with pytest.raises(InvalidRequest, match=r"[34] accounts were not sent yet: resume the job first"):
        await job.retry()
    await job.resume()
    await job.retry()
    assert count(journal) == {DONE: 5}


@SHORT
@given(
    accounts=st.integers(1, 30),
    chunk=st.integers(1, 6),
    failed=st.sets(st.integers(0, 29)),
    lost=st.sets(st.integers(0, 29)),
    which=st.sampled_from([{"failed": False}, {"unknown": False}, {}]),
)
async def test_a_retry_sends_exactly_those_once(accounts, chunk, failed, lost, which):
    """Some fail and some get lost, one by one; the retry takes them in as few requests as they need."""
    failed, lost = ({f"a{n}" for n in numbers if n < accounts} for numbers in (failed, lost - failed))
    bad = {account: ApiError("no", code="999123") for account in failed} | {account: Unanswered("lost") for account in lost}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        sending = Sending(lambda op: next((bad[each] for each in op.members if each in bad), None))
        settings = {"max_failures": None, "retry": Retry(attempts=1), "chunk": chunk, "isolate": 10**6}
        await sending.job(path, **settings).run(rows_of(1, accounts))
        wanted = {
            account
            for (_, account), state in states(path).items()
            if (state == FAILED and which.get("failed", True)) or (state == UNKNOWN and which.get("unknown", True))
        }
        # those that may be in already are not sent together with others
        doubtful = {account for (_, account), state in states(path).items() if state == UNKNOWN}
        sending.operations.clear()
        sending.act = lambda _: None
        await open_job(sending, path, clock=sending.clock).retry(**which)
        again = [account for members in sending.members for account in members]
        assert sorted(again) == sorted(wanted)
        assert len(sending.operations) == -(-len(wanted & doubtful) // chunk) + -(-len(wanted - doubtful) // chunk)
        assert all(state == DONE for (_, account), state in states(path).items() if account in wanted)


# ------------------------------------------------------------------------------------ one journal


@each_row(
    "change, rows, message",
    [
        ({"chunk": 10}, None, "chunk is 50 in the journal and 10 here"),
        ({"declared": "why not"}, None, "declared is 'why' in the journal and 'why not' here"),
        ({"needs_confirmation": True}, None, "needs_confirmation is False in the journal and True here"),
        ({"user_name": "boss"}, None, "user_name is None in the journal and 'boss' here"),
        ({}, rows_of(2, 4), "its input had 6 rows, this input has 8"),
        ({}, [*rows_of(2, 3)[:-1], ("g1", "other")], "its input had different rows"),
    ],
)
async def test_another_job_is_refused_with_the_difference(tmp_path, change, rows, message):
    journal = tmp_path / message
    sending = Sending()
    await sending.job(journal, declared="why").run(rows_of(2, 3))
    before = journal.read_bytes()
    with pytest.raises(InvalidRequest) as caught:
        await sending.job(journal, **{"declared": "why"} | change).run(rows or rows_of(2, 3))
    assert str(caught.value) == f"{journal} holds another job: {message}"
    assert caught.value.field == "job"
    assert journal.read_bytes() == before
    assert len(sending.operations) == 2


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_error_of_a_run_comes_before_what_its_cancellation_causes(journal):
    async def fail():
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("cancelled")

    async def resume():
        async with Sending().job(journal).resume(), anyio.create_task_group() as tasks:
            tasks.start_soon(fail)
            await anyio.sleep_forever()

    with pytest.raises(InvalidRequest, match="there is no journal") as caught:
        await resume()
    assert "at the same time: ExceptionGroup" in caught.value.__notes__[0]


async def test_two_at_a_time_are_refused(journal):
    sending = Sending(seconds=1.0)
    job = sending.job(journal)
    async with job.run(rows_of(1, 3)):
        await sending.clock.sleep(0.5)
        for run in (job.run(rows_of(1, 3)), job.resume()):
            with pytest.raises(InvalidRequest, match="another process runs this job"):
                await run
    assert count(journal) == {DONE: 3}


async def test_an_input_that_was_not_read_to_its_end_is_read_anew(journal):
    sending = Sending()

    def rows(broken):
        yield from rows_of(2, BATCH)
        if broken:
            reason = "the file ends here"
            raise OSError(reason)

    with pytest.raises(OSError, match="the file ends here"):
        await sending.job(journal).run(rows(broken=True))
    assert sending.operations == []
    report = await sending.job(journal).report()
    assert report.state == "loading"
    for run in (sending.job(journal).resume(), open_job(sending, journal, clock=sending.clock).retry()):
        with pytest.raises(InvalidRequest, match="the input was not read completely and nothing was sent"):
            await run
    await sending.job(journal, chunk=2).run(rows_of(2, 2))
    assert states(journal) == dict.fromkeys(rows_of(2, 2), DONE)


async def test_files_that_hold_no_job(tmp_path):
    sending, empty, inbox = Sending(), tmp_path / "empty", tmp_path / "inbox"
    empty.touch()
    with closing(sqlite3.connect(inbox)) as connection:
        connection.execute(f"PRAGMA application_id = {int.from_bytes(b'rbim', 'big')}")
    for run in (sending.job(inbox).run(rows_of(1, 1)), sending.job(inbox).resume()):
        with pytest.raises(InvalidRequest, match=f"{inbox} cannot be a job's journal: it is an inbox"):
            await run
    with pytest.raises(InvalidRequest, match="the journal holds no job"):
        open_job(sending, empty)
    for missing in (tmp_path / "nowhere", tmp_path / "no" / "folder"):
        with pytest.raises(InvalidRequest, match="there is no journal"):
            open_job(sending, missing)
        with pytest.raises(InvalidRequest, match="there is no journal"):
            await sending.job(missing).resume()
    with pytest.raises(InvalidRequest, match="there is no directory"):
        await sending.job(tmp_path / "no" / "folder").run(rows_of(1, 1))
    assert not (tmp_path / "nowhere").exists()


async def test_a_full_disk_ends_the_run_and_it_goes_on_when_there_is_room(journal):
    sending = Sending()

    def fill(op):
        if len(sending.operations) == 10:
            database = run._dispatcher._journal.database
            ((pages,),) = database.execute("PRAGMA page_count")
            database.execute(f"PRAGMA max_page_count = {pages}")
        return Invited(fails=tuple(Fail(member=member, reason=f"{member} {'x' * 400}") for member in op.members))

    sending.act = fill
    job = sending.job(journal, chunk=1, concurrency=2)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        async with job.run(rows_of(1, 300)) as run:
            await anyio.sleep_forever()
    sent = len(sending.operations)
    assert 10 <= sent < 300
    assert sending.in_flight == 0
    counted = whole(await job.report())
    assert counted.unknown <= 2 + 2  # in flight, and answered but not recorded
    sending.act = lambda _: None
    await job.resume()
    assert Counter(states(journal).values()).keys() <= {DONE, REFUSED}
    assert len(sending.operations) == 300 + counted.unknown
