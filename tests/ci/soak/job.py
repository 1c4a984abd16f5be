"""A long job, and beside it short ones that are stopped, interrupted or killed, and resumed, each with its own journal.

The account: the report of a job adds up to its rows, and each account that it calls invited is a member, each that it calls
refused is none. Of the long job every account is compared, by its report as CSV.
"""

import asyncio
import csv
import signal
import sys
from contextlib import aclosing, suppress
from itertools import count, cycle

from rbim import AsyncClient, GroupType, InvalidRequest, Rate, RbimError
from rbim.bulk import InviteJob, open_job
from rbim.emulator import Emulator
from rbim.emulator.faults import CutShort, Fault, InvalidJson, Latency, ResetAfter, ResetBefore, Status, Throttle
from rbim.emulator.server import serve

from .driver import ROOT, after, platform_of, started
from .verdict import LOG, Bound

BOUNDS = {
    "journal": Bound("KiB", 256, per_thousand=600),  # 0.6 KiB of a request: its intent, its result, the account's
    "wal": LOG,
}
GROUP = 1900  # accounts of a group
SHORT = 120  # rows of a short job
CHUNK = 5  # accounts of its requests
KEPT = 2_000  # records of the emulator
KILL_AFTER = 1.0  # seconds from the first request
REFUSED = "no-login-"  # accounts that the platform refuses


def faults(rate):
    return [
        Fault(effect=Latency(0.01, 0.7)),
        Fault(effect=Latency(40.0), operation="InviteJoinGroup", probability=0.0005),  # longer than a request waits
        Fault(effect=Status(503, 1.0), operation="InviteJoinGroup", probability=0.005),
        Fault(effect=Throttle(int(1.3 * rate) + 1, 1.0), operation="InviteJoinGroup"),
        Fault(effect=ResetBefore(), operation="InviteJoinGroup", probability=0.01),
        Fault(effect=ResetAfter(), operation="InviteJoinGroup", probability=0.01),
        Fault(effect=CutShort(), operation="InviteJoinGroup", probability=0.005),
        Fault(effect=InvalidJson(), operation="InviteJoinGroup", probability=0.005),
    ]


class _Counted:
    """A client that counts what the job sends through it."""

    def __init__(self, client, probe):
        self._client, self._probe = client, probe

    def __getattr__(self, name):
        return getattr(self._client, name)

    async def send(self, operation):
        self._probe.work()
        return await self._client.send(operation)


def _account(number):
    return f"{REFUSED if number % 50 == 7 else 'u'}{number}"


async def subject(probe, rows):
    journal = probe.plan.folder / "long.journal"
    probe.files |= {"journal": journal, "wal": journal.with_name("long.journal-wal")}
    async with probe.running(), AsyncClient.from_env(timeout=5.0) as client:
        sender = _Counted(client, probe)
        names = [await _group(client, "l") for _ in range(int(rows) // GROUP + 1)]
        lines = ((names[number % len(names)], _account(number)) for number in range(int(rows)))
        rates = [Rate(probe.plan.rate)]
        job = InviteJob(sender, journal=journal, chunk=1, rates=rates, concurrency=30, max_failures=None)
        async with job.run(lines) as progress:
            shorts = asyncio.create_task(_short_jobs(probe, client))
            await probe.stopping.wait()
            progress.stop()
            await shorts
        report = await job.report()
        counts = {name: getattr(report.accounts, name) for name in ("total", "done", "refused", "failed", "unknown")}
        probe.say(long={**counts, "adds up": report.accounts.adds_up, "why": report.runs[-1].why})


async def _short_jobs(probe, client):
    numbers = count()
    async with aclosing(probe.lives(cycle((_stopped, _interrupted, _killed)))) as lives:
        async for ended in lives:
            path = probe.plan.folder / f"short-{next(numbers)}.journal"
            group = await _group(client, "s")
            rows = [(group, _account(number)) for number in range(SHORT)]
            await ended(client, path, rows)
            probe.counts[f"short jobs{ended.__name__.replace('_', ' ')}"] += 1
            await _resumed(client, path, rows)
            report = await open_job(client, path).report()
            counts = report.accounts
            probe.say(short=[group, counts.adds_up, counts.total, counts.done, counts.refused, counts.unknown])
            for each in probe.plan.folder.glob(f"{path.name}*"):
                each.unlink()
            with suppress(TimeoutError):
                await asyncio.wait_for(probe.stopping.wait(), probe.plan.life / 3)


async def _resumed(client, path, rows):
    try:
        await open_job(client, path, rates=[Rate(40)]).resume()
    except InvalidRequest:  # it was killed before all rows were in the journal: then the same command begins again
        await InviteJob(client, journal=path, chunk=CHUNK, rates=[Rate(40)]).run(rows)


async def _group(client, name):
    """Return a new group, also during an outage."""
    while True:
        try:
            return (await client.groups.create(name=name, type=GroupType.VIP)).group_id
        except RbimError:
            await asyncio.sleep(0.2)


async def _stopped(client, path, rows):
    async with InviteJob(client, journal=path, chunk=CHUNK, rates=[Rate(20)]).run(rows) as progress:
        await asyncio.sleep(KILL_AFTER)
        progress.stop()


async def _interrupted(client, path, rows):
    async with InviteJob(client, journal=path, chunk=CHUNK, rates=[Rate(20)]).run(rows) as progress:
        await asyncio.sleep(KILL_AFTER)
        progress.interrupt()


async def _killed(_, path, rows):
    source = path.with_suffix(".csv")
    source.write_text("group,account\n" + "".join(f"{group},{account}\n" for group, account in rows), encoding="utf-8")
    command = [sys.executable, str(ROOT / "tests" / "ci" / "helpers_ci" / "bulkjob.py"), "begin", str(path), str(source)]
    process = await asyncio.create_subprocess_exec(*command, "--chunk", str(CHUNK), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    await asyncio.sleep(0.3)
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    await process.communicate()
    source.unlink()


async def drive(plan, seconds, account):
    emulator = Emulator(seed=2)
    emulator.requests.limit = KEPT
    emulator.faults.add(*faults(plan.rate + 60))
    rows = int(plan.rate * (seconds + 30) * 1.2)
    emulator.never_logged_in(*(name for name in map(_account, range(rows)) if name.startswith(REFUSED)))
    long = {}

    def checked(job):
        group, adds_up, total, done, refused, unknown = job
        members = len(emulator.state.groups.pop(group).members) - 1
        account.counts["short jobs checked"] += 1
        account.require(adds_up and total == SHORT, f"a short job has {total} rows, not {SHORT}")
        account.require(done + refused + unknown == total, f"a short job is not complete: {job}")
        account.require(done <= members <= done + unknown, f"{members} members, and the report says {job}")

    async with serve(emulator) as server:
        said = {"short": checked, "long": long.update}
        async with started("job", plan, said, platform_of(emulator, server), str(rows)) as subject:
            outages = asyncio.create_task(after(plan.life * 1.3, lambda: server.refuse(0.5)))
            try:
                await subject.at_work(seconds)
            finally:
                outages.cancel()
            await subject.stop()
    account.require(account.counts["short jobs checked"], "no short job was checked")
    account.require(long.get("adds up") and long["total"] == rows, f"the long job has other rows than {rows}: {long}")
    account.counts.update({f"accounts {name}": long[name] for name in ("done", "refused", "unknown") if name in long})
    for group, each, state in await _accounts(plan.folder / "long.journal", account):
        member = each in emulator.state.groups[group].members
        account.counts["accounts checked"] += 1
        account.require(state != "invited" or member, f"{each} was invited, and is no member")
        account.require(state not in {"refused", "skipped"} or not member, f"{each} is {state}, and a member")
    account.require(account.counts["accounts checked"] == rows, "the report does not list every account")
    return subject


async def _accounts(journal, account):
    command = [sys.executable, "-c", "from rbim.cli import main; main()", "job", "report", str(journal), "--csv", "-"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, error = await process.communicate()
    if not out:
        account.lose(f"rbim job report: {error.decode()}")
    return [(row["group"], row["account"], row["state"]) for row in csv.DictReader(out.decode().splitlines())]
