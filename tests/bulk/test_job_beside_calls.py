"""A job on a client with limits, beside other calls: what it writes down before it may send, and who waits for whom."""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from attrs import field, frozen
from hypothesis import given, strategies as st

from helpers.credentials import APP_ID, TOKEN
from helpers.jobs import DONE, SHORT, UNKNOWN, WAITING, read, states, world
from helpers.stubs import Stub
from rbim import (
    AsyncClient,
    ClientClosed,
    Credentials,
    GroupType,
    InvalidRequest,
    InviteJoinGroup,
    JoinGroup,
    Limits,
    QueryGroupDetail,
    Rate,
    RbimError,
    Retry,
    fan_out,
)
from rbim.bulk.job import InviteJob, Job, open_job
from rbim.bulk.journal.marks import RunKey, read_marks
from rbim.bulk.work import Work
from rbim.emulator import Emulator
from rbim.emulator.faults.requests import Latency, ResetAfter, Status, Throttle
from rbim.emulator.server.server import serve
from rbim.operations.base import Repeat, operation
from rbim.operations.groups import GroupOperation, Invited, Role, SetMemberRole
from rbim.storage.group_commit import GroupCommit

LIMITS = [
    Limits(rates=[Rate(5)]),
    Limits(rates=[Rate(2, each_group=True)]),
    Limits(concurrency=2),
    Limits(concurrency=1, rates=[Rate(50)]),
]


def open_requests(journal):
    ((number,),) = read(journal, "SELECT count(*) FROM request WHERE begun IS NOT NULL AND ended IS NULL")
    run = read(journal, "SELECT id, began FROM run WHERE ended IS NULL")
    planned = {number for (number,) in read(journal, "SELECT id FROM request WHERE outcome = 5")}
    marks = (read_marks(journal, RunKey(*run[0])) or {}) if run else {}
    left = {each for each, mark in marks.items() if mark.done_after is None}
    return number + len(planned & left)


async def run_for(run, seconds, clock, how):
    """Run a job for some emulated seconds, then end it."""
    if how == "wait_for":
        with clock.scope(seconds):
            await run
        return
    async with run:
        await clock.sleep(seconds)
        getattr(run, how)()


@pytest.mark.parametrize("how", ["wait_for", "interrupt", "stop"])
@pytest.mark.parametrize("limits", LIMITS, ids=repr)
async def test_an_end_leaves_unknown_only_what_was_in_flight(journal, limits, how):
    async with world(2, limits=limits) as it:
        it.plan(Latency(0.3))
        rows = [(it.groups[n % 2], f"a{n}") for n in range(1000)]
        job = InviteJob(it.client, journal=journal, chunk=50, needs_confirmation=True, adaptive=False)
        await run_for(job.run(rows), 1.0, it.clock, how)
        arrived = {(record.operation.group_id, each) for record in it.sent() for each in record.operation.members}
        in_flight = {
            (record.operation.group_id, each)
            for record in it.sent()
            if record.at > it.clock.elapsed - 0.3 - 1e-9
            for each in record.operation.members
        }
        await job.resume(on_unknown="report")
    found = states(journal)
    unknown = {row for row, state in found.items() if state == UNKNOWN}
    assert unknown <= in_flight
    assert len(arrived) < 500
    if how == "stop":
        assert not unknown
    assert Counter(found.values()) == {DONE: 1000 - len(unknown)} | ({UNKNOWN: len(unknown)} if unknown else {})


@pytest.mark.parametrize("limits", LIMITS, ids=repr)
async def test_a_request_is_marked_only_when_it_has_its_place(journal, limits):
    async with world(2, limits=limits) as it:
        it.plan(Latency(0.3))
        rows = [(it.groups[n % 2], f"a{n}") for n in range(300)]
        run = InviteJob(it.client, journal=journal, adaptive=False, chunk=1).run(rows)
        most = 0
        async with run:
            for _ in range(40):
                await it.clock.sleep(0.05)
                most = max(most, open_requests(journal))
                assert open_requests(journal) <= it.client.load.in_flight
            run.interrupt()
        assert 1 <= most <= 6  # at 5/s and 0.3 s each, at most 3 are in flight; at 2/s for each of two groups, 2


async def test_the_clients_rate_holds_and_is_used_while_intents_are_written(journal):
    async with world(1, limits=Limits(rates=[Rate(5)])) as it:
        rows = [(it.groups[0], f"a{n}") for n in range(50)]
        await InviteJob(it.client, journal=journal, chunk=1, adaptive=False).run(rows)
        times = [record.at for record in it.sent()]
    assert len(times) == 50
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.2 - 1e-6
    assert times[-1] - times[0] <= 49 * 0.2 * 1.02


@SHORT
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 11)), max_size=40),
    limits=st.sampled_from(LIMITS),
    ends=st.lists(st.tuples(st.floats(0.01, 4), st.sampled_from(["wait_for", "interrupt", "stop"])), max_size=4),
    throttled=st.booleans(),
)
async def test_wherever_it_is_ended_nothing_is_forgotten(rows, limits, ends, throttled):
    async with world(3, limits=limits) as it:
        it.plan(Latency(0.1))
        if throttled:
            it.plan(Throttle(per_second=3, retry_after=2))
        rows = [(it.groups[group], f"a{account}") for group, account in rows]
        with TemporaryDirectory() as folder:
            path = Path(folder) / "journal"
            job = InviteJob(it.client, journal=path, chunk=2, concurrency=3, adaptive=False)
            for number, (seconds, how) in enumerate(ends):
                await run_for(job.resume() if number else job.run(rows), seconds, it.clock, how)
            await (job.resume(on_unknown="resend") if ends else job.run(rows))
            assert states(path) == dict.fromkeys(rows, DONE)
        for group in it.groups:
            assert it.members(group) == {account for at, account in rows if at == group}


# ----------------------------------------------------------------------------------------- who waits for whom


async def latencies(it, calls, gap):
    """Make calls one after another, ``gap`` seconds apart, and return how long each took."""
    found = []
    for _ in range(calls):
        began = it.clock.elapsed
        await it.client.send(QueryGroupDetail(group_id=it.groups[0]))
        found.append(it.clock.elapsed - began)
        await it.clock.sleep(gap)
    return found


@pytest.mark.parametrize("kind", ["job", "fan_out"])
@pytest.mark.parametrize("per_second", [5, 50])
async def test_a_call_waits_one_more_interval_at_most_for_a_job_on_the_same_rate(journal, kind, per_second):
    async with world(1, limits=Limits(rates=[Rate(per_second, burst=1)])) as it:
        rows = [(it.groups[0], f"a{n}") for n in range(18 * per_second)]  # 18 seconds of work
        async with anyio.create_task_group() as tasks:
            if kind == "job":
                run = InviteJob(it.client, journal=journal, chunk=1, adaptive=False).run(rows)

                async def background():
                    await run
            else:

                async def background():
                    calls = (JoinGroup(group_id=group, user_name=account) for group, account in rows)
                    async with fan_out(it.client.tuned(deadline=20), calls) as outcomes:
                        async for _ in outcomes:
                            pass

            tasks.start_soon(background)
            await it.clock.sleep(2)
            before = len(it.emulator.requests)
            began = it.clock.elapsed
            found = await latencies(it, 8, 1.7)
            sent = len(it.emulator.requests) - before
            assert max(found) <= 2 / per_second + 1e-6  # its own interval, and one of the job
            assert sent >= 0.95 * per_second * (it.clock.elapsed - began)  # the job has all the rest
            tasks.cancel_scope.cancel()


async def test_a_call_gets_the_next_free_place_before_a_job(journal):
    async with world(1, limits=Limits(concurrency=4)) as it:
        it.plan(Latency(0.4))
        rows = [(it.groups[0], f"a{n}") for n in range(1000)]
        run = InviteJob(it.client, journal=journal, chunk=1, adaptive=False).run(rows)
        async with run:
            await it.clock.sleep(2.05)
            found = await latencies(it, 10, 0.9)
            run.interrupt()
        assert max(found) <= 0.4 + 1e-6


async def test_a_job_is_not_starved_by_calls_that_use_up_the_rate(journal):
    async with world(1, limits=Limits(rates=[Rate(10)])) as it:
        run = InviteJob(it.client, journal=journal, chunk=1, adaptive=False).run(
            [(it.groups[0], f"a{n}") for n in range(500)]
        )

        async def caller():
            while True:
                await it.client.send(QueryGroupDetail(group_id=it.groups[0]))

        async with run, anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(caller)
            await it.clock.sleep(10)
            before = Counter(type(record.operation) for record in it.emulator.requests)
            await it.clock.sleep(60)
            share = Counter(type(record.operation) for record in it.emulator.requests) - before
            tasks.cancel_scope.cancel()
            run.interrupt()
        assert 0.1 * 600 <= share[InviteJoinGroup] <= 0.15 * 600
        assert share[QueryGroupDetail] >= 0.8 * 600


async def test_a_view_with_a_priority_keeps_it_in_a_fan_out(journal):
    """Given the priority of calls, the operations of a fan-out wait in one line with them."""
    async with world(1, limits=Limits(rates=[Rate(10, burst=1)])) as it:
        calls = [JoinGroup(group_id=it.groups[0], user_name=f"a{n}") for n in range(100)]
        async with fan_out(it.client.tuned(deadline=100, priority="normal"), calls):
            await it.clock.sleep(0.05)
            (waited,) = await latencies(it, 1, 0)
        assert waited <= 30  # its deadline is nearer
        del journal


@pytest.mark.parametrize("priority", ["high", "", 1, True, b"low"])
def test_an_unknown_priority_is_refused(priority):
    client = AsyncClient(base_url="https://im.example", credentials=Credentials(app_id=APP_ID, app_token=TOKEN))
    with pytest.raises(InvalidRequest, match="priority: use 'normal' or 'low'"):
        client.tuned(priority=priority)


# ----------------------------------------------------------------------------------------- kill -9


PROGRAM = """
import anyio, sys
from rbim import AsyncClient, Limits, Rate
from rbim.bulk import InviteJob

async def main():
    rows = [(sys.argv[2], f"a{n}") for n in range(1000)]
    async with AsyncClient.from_env(limits=Limits(rates=[Rate(5)])) as client:
        await InviteJob(client, journal=sys.argv[1], chunk=50, needs_confirmation=True).run(rows)

anyio.run(main)
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_after_kill_9_nothing_is_unknown_that_did_not_arrive(journal):
    emulator = Emulator(credentials=Credentials(app_id=APP_ID, app_token=TOKEN))
    async with serve(emulator) as server:
        environment = os.environ | {"RBIM_BASE_URL": server.url, "RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN}
        async with AsyncClient(base_url=server.url, credentials=emulator.credentials) as client:
            group = (await client.groups.create(name="g", type=GroupType.VIP)).group_id
            process = await anyio.to_thread.run_sync(
                lambda: subprocess.Popen([sys.executable, "-c", PROGRAM, str(journal), group], env=environment)
            )
            try:
                with anyio.fail_after(30):
                    while sum(isinstance(each.operation, InviteJoinGroup) for each in emulator.requests) < 4:
                        await anyio.sleep(0.02)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
            arrived = {
                each
                for record in emulator.requests
                if isinstance(record.operation, InviteJoinGroup)
                for each in record.operation.members
            }
            run = open_job(client, journal).resume(on_unknown="report")
            async with run:
                await anyio.sleep(0.1)
                run.interrupt()
    unknown = {account for (_, account), state in states(journal).items() if state == UNKNOWN}
    assert len(unknown - arrived) <= 50  # the one request whose turn was about to come


# ----------------------------------------------------------------------------------------- what hurts most


async def test_values_that_cannot_be_sent_do_not_overtake_what_waits(journal):
    """A row whose values are refused here must not hide rows of its group that wait."""
    async with world(1, limits=Limits(rates=[Rate(1)])) as it:
        (group,) = it.groups
        rows = [(group, f"a{n}") for n in range(5)] + [(group, "x" * 10_000)] + [(group, f"b{n}") for n in range(5)]

        @operation("LimitedInvite", repeat=Repeat.IDEMPOTENT)
        @frozen(kw_only=True)
        class LimitedInvite(GroupOperation[Invited]):
            """Invite short names only."""

            group_id: str
            members: tuple[str, ...] = field(converter=tuple, validator=short)

            @classmethod
            def path(cls, dialect):
                return InviteJoinGroup.path(dialect)

        job = Job(it.client, LimitedInvite, journal=journal, chunk=1, adaptive=False, retry=Retry(attempts=1))
        await run_for(job.run(rows), 2.5, it.clock, "interrupt")
        report = await job.resume()
    assert report.accounts.not_sent == 0
    assert WAITING not in states(journal).values()


def short(_, attribute, value):
    if any(len(each) > 1000 for each in value):
        raise InvalidRequest(f"{attribute.name}: too long", field=attribute.name)


async def test_callers_that_give_up_cost_a_job_with_their_priority_nothing(journal):
    async with world(1, limits=Limits(rates=[Rate(20)])) as it:
        rows = [(it.groups[0], f"a{n}") for n in range(200)]

        async def impatient():
            while True:
                with it.clock.scope(0.3):
                    await it.client.send(QueryGroupDetail(group_id=it.groups[0]))

        job = InviteJob(it.client.tuned(priority="normal"), journal=journal, chunk=1, adaptive=False)
        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(impatient)
            await run_for(job.run(rows), 6, it.clock, "interrupt")
            tasks.cancel_scope.cancel()
        assert len(it.sent()) > 10
        await job.resume(on_unknown="resend")
    assert states(journal) == dict.fromkeys(rows, DONE)


@pytest.mark.parametrize("beside", ["halt", "rate"])
async def test_one_group_that_must_wait_holds_up_no_other(journal, beside):
    """One of four groups is halted for two minutes, or its own rate is used up by calls; the others go on."""
    rates = [Rate(20)] if beside == "halt" else [Rate(2, each_group=True)]
    async with world(4, limits=Limits(rates=rates), retry=Retry(attempts=1)) as it:
        slow = it.groups[0]
        if beside == "halt":
            it.plan(Status(429, retry_after=120), operation=QueryGroupDetail)
            for _ in range(4):
                with suppress(RbimError):
                    await it.client.groups.detail(group_id=slow)
            it.client._shared.admission.throttled(InviteJoinGroup(group_id=slow, members=["a"]), 120.0, calls=1)

        async def caller():
            while True:
                with suppress(RbimError):
                    await it.client.send(SetMemberRole(group_id=slow, member="admin", role=Role.ADMINISTRATOR))

        rows = [(group, f"a{n}") for n in range(300) for group in it.groups]
        run = InviteJob(it.client, journal=journal, chunk=1, concurrency=20, adaptive=False).run(rows)
        async with run, anyio.create_task_group() as tasks:
            if beside == "rate":
                tasks.start_soon(caller)
            await it.clock.sleep(30)
            sent = Counter(record.operation.group_id for record in it.sent())
            tasks.cancel_scope.cancel()
            run.interrupt()
        others = [sent[group] for group in it.groups[1:]]
        assert sum(others) >= 0.95 * 30 * (20 if beside == "halt" else 6)


async def test_a_journal_that_cannot_be_written_holds_up_no_call(journal, monkeypatch):
    async with world(1, limits=Limits(concurrency=4)) as it:
        rows = [(it.groups[0], f"a{n}") for n in range(200)]

        async def never():
            await it.clock.sleep(50)

        begin = GroupCommit.begin

        def slow(self, command):
            begin(self, command)
            return never

        async with InviteJob(it.client, journal=journal, chunk=1, adaptive=False).run(rows) as run:
            await it.clock.sleep(0.05)
            monkeypatch.setattr(GroupCommit, "begin", slow)
            await it.clock.sleep(2)
            assert max(await latencies(it, 5, 0.1)) <= 0.05
            run.interrupt()


async def test_a_journal_that_cannot_be_written_holds_up_no_other_job(tmp_path, monkeypatch):
    async with world(2, limits=Limits(concurrency=4)) as it:
        it.plan(Latency(0.1))
        begin, stalled = GroupCommit.begin, []

        def slow(self, command):
            durable = begin(self, command)
            stalled.append(self)  # the first job's
            return (lambda: it.clock.sleep(500)) if self is stalled[0] else durable

        jobs = [InviteJob(it.client, journal=tmp_path / name, chunk=1, adaptive=False) for name in "ab"]
        rows = [[(group, f"a{n}") for n in range(300)] for group in it.groups]
        async with jobs[0].run(rows[0]) as first:
            await it.clock.sleep(0.05)
            monkeypatch.setattr(GroupCommit, "begin", slow)
            await it.clock.sleep(2)
            before = len(it.sent())
            async with jobs[1].run(rows[1]) as second:
                await it.clock.sleep(5)
                assert len(it.sent()) - before >= 0.9 * 4 * 5 / 0.1
                second.interrupt()
            first.interrupt()


@pytest.mark.parametrize("seconds", [0.004, 0.05])
@pytest.mark.parametrize("per_second", [5, 19])
async def test_while_commits_take_time_few_intents_wait_and_the_rate_is_used(journal, monkeypatch, per_second, seconds):
    async with world(1, limits=Limits(rates=[Rate(per_second, burst=1)])) as it:
        rows = [(it.groups[0], f"a{n}") for n in range(per_second * 20)]
        begin = GroupCommit.begin

        def slow(self, command):
            durable = begin(self, command)

            async def later():
                await it.clock.sleep(seconds)
                await durable()

            return later

        async with InviteJob(it.client, journal=journal, chunk=1, adaptive=False).run(rows) as run:
            await it.clock.sleep(0.01)
            monkeypatch.setattr(GroupCommit, "begin", slow)
            most = 0
            for _ in range(200):
                await it.clock.sleep(0.05)
                most = max(most, open_requests(journal))
            sent = len(it.sent())
            run.interrupt()
        assert most <= 4
        assert sent >= 0.95 * 10 * per_second


async def test_silence_begins_when_a_request_leaves_not_when_it_is_reserved(journal):
    """At twenty requests an hour, one lost request is no reason to end a job for want of an answer."""
    async with world(1, limits=Limits(rates=[Rate(20, per=3600)])) as it:
        it.plan(ResetAfter(), times=1)
        rows = [(it.groups[0], f"a{n}") for n in range(6)]
        run = InviteJob(it.client, journal=journal, chunk=1).run(rows)
        await run
    assert run.why == "done"
    assert states(journal) == dict.fromkeys(rows, DONE)


@pytest.mark.parametrize("kind", ["signer", "future"])
async def test_an_error_before_anything_left_makes_nothing_unknown(journal, kind, anyio_backend_name):
    class Signer:
        app_id = "an-application"
        calls = 0

        def sign(self, request):
            self.calls += 1
            if self.calls > 3 and kind == "signer":
                raise OSError("no key")
            return request

    class Cancels(Stub):
        async def respond(self, request, timeout):
            if len(self.requests) > 3 and kind == "future":
                raise anyio.get_cancelled_exc_class() if anyio_backend_name == "asyncio" else OSError("no socket")
            return await super().respond(request, timeout)

    stub = Cancels()
    async with AsyncClient(base_url="https://im.example", signer=Signer(), transport=stub, clock=stub.clock) as client:
        job = InviteJob(client, journal=journal, chunk=1, adaptive=False, concurrency=1)
        run = job.run([("g", f"a{n}") for n in range(20)])
        with pytest.raises((OSError, RuntimeError)):
            await run
        assert run.why == "error"
    found = Counter(state for (state,) in read(journal, "SELECT outcome FROM request"))
    assert found[1] == 3
    if kind == "signer":
        assert found[0] == 0  # no request is left open


async def test_an_error_behind_an_answer_is_not_taken_for_a_request_that_was_not_sent(journal, monkeypatch):
    """The platform has acted: what goes wrong while the answer is read into accounts must not let it be sent again."""

    def fails(*_):
        raise OSError("no more memory")

    async with world(1) as it:
        monkeypatch.setattr(Work, "answered", fails)
        job = InviteJob(it.client, journal=journal, chunk=1, adaptive=False, needs_confirmation=True)
        with pytest.raises(OSError, match="no more memory"):
            await job.run([(it.groups[0], "a")])
        monkeypatch.undo()
        await job.resume(on_unknown="report")
        assert len(it.sent()) == 1
    assert set(states(journal).values()) == {UNKNOWN}


async def test_a_job_that_stops_waits_for_no_turn(journal):
    async with world(1, limits=Limits(rates=[Rate(1, per=600)])) as it:
        run = InviteJob(it.client, journal=journal, chunk=1, adaptive=False).run(
            [(it.groups[0], f"a{n}") for n in range(50)]
        )
        began = it.clock.elapsed
        async with run:
            await it.clock.sleep(1)
            run.stop()
        assert it.clock.elapsed - began <= 1.5


async def test_a_job_on_a_closed_client_says_so_at_once(journal):
    async with world(1, limits=Limits(rates=[Rate(1, per=600)])) as it:
        pass  # its group has used up the rate
    began = it.clock.elapsed
    with pytest.raises(ClientClosed):
        await InviteJob(it.client, journal=journal, chunk=1).run([(it.groups[0], "a")])
    assert it.clock.elapsed - began <= 1
