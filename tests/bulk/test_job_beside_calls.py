"""A job on a client with limits, beside other calls: what it writes down before it may send, and who waits for whom."""

import os
import signal
import subprocess
import sys
from collections import Counter

import anyio
import pytest
from attrs import field, frozen

from helpers.credentials import APP_ID, TOKEN
from helpers.jobs import DONE, UNKNOWN, WAITING, read, states, world
from helpers.stubs import Stub
from rbim import (
    AsyncClient,
    Credentials,
    GroupType,
    InvalidRequest,
    InviteJoinGroup,
    JoinGroup,
    Limits,
    QueryGroupDetail,
    Rate,
    Retry,
    fan_out,
)
from rbim.bulk.job import InviteJob, Job, open_job
from rbim.emulator import Emulator
from rbim.emulator.faults import Latency
from rbim.emulator.server.server import serve
from rbim.operations.base import Repeat, operation
from rbim.operations.groups import GroupOperation, Invited
from rbim.storage.group_commit import GroupCommit

LIMITS = [Limits(rates=[Rate(2, each_group=True)]), Limits(concurrency=1, rates=[Rate(50)])]


def open_requests(journal):
    ((number,),) = read(journal, "SELECT count(*) FROM request WHERE outcome = 0")
    return number


async def run_for(run, seconds, clock, how):
    """Run a job for some emulated seconds, then end it."""
    if how == "wait_for":
        with clock.scope(seconds):
            await run
        return
    async with run:
        await clock.sleep(seconds)
        getattr(run, how)()


@pytest.mark.parametrize(
    ("limits", "how"), [(LIMITS[0], "wait_for"), (LIMITS[0], "interrupt"), (LIMITS[0], "stop"), (LIMITS[1], "interrupt")]
)
async def test_an_end_leaves_unknown_only_what_was_in_flight(journal, limits, how):
    async with world(2, limits=limits) as it:
        it.plan(Latency(0.3))
        rows = [(it.groups[n % 2], f"a{n}") for n in range(300)]
        job = InviteJob(it.client, journal=journal, chunk=20, needs_confirmation=True, adaptive=False)
        await run_for(job.run(rows), 1.0, it.clock, how)
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
    if how == "stop":
        assert not unknown
    assert Counter(found.values()) == {DONE: 300 - len(unknown)} | ({UNKNOWN: len(unknown)} if unknown else {})


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
async def test_a_call_waits_one_more_interval_at_most_for_a_job_on_the_same_rate(journal, kind):
    per_second = 10
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
        rows = [(it.groups[0], f"a{n}") for n in range(300)]
        run = InviteJob(it.client, journal=journal, chunk=1, adaptive=False).run(rows)
        async with run:
            await it.clock.sleep(2.05)
            found = await latencies(it, 10, 0.9)
            run.interrupt()
        assert max(found) <= 0.4 + 1e-6


async def test_a_job_is_not_starved_by_calls_that_use_up_the_rate(journal):
    async with world(1, limits=Limits(rates=[Rate(10)])) as it:
        run = InviteJob(it.client, journal=journal, chunk=1, adaptive=False).run(
            [(it.groups[0], f"a{n}") for n in range(300)]
        )

        async def caller():
            while True:
                await it.client.send(QueryGroupDetail(group_id=it.groups[0]))

        async with run, anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(caller)
            await it.clock.sleep(10)
            before = Counter(type(record.operation) for record in it.emulator.requests)
            await it.clock.sleep(30)
            share = Counter(type(record.operation) for record in it.emulator.requests) - before
            tasks.cancel_scope.cancel()
            run.interrupt()
        assert 0.1 * 300 <= share[InviteJoinGroup] <= 0.15 * 300
        assert share[QueryGroupDetail] >= 0.8 * 300


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


@pytest.mark.ci
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


async def test_while_commits_take_time_few_intents_wait_and_the_rate_is_used(journal, monkeypatch):
    per_second, seconds = 19, 0.05
    async with world(1, limits=Limits(rates=[Rate(per_second, burst=1)])) as it:
        rows = [(it.groups[0], f"a{n}") for n in range(per_second * 20)]
        begin = GroupCommit.begin

        def slow(self, command):
            durable = begin(self, command)

            async def later():
                await it.clock.sleep(seconds)
                return await durable()

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
