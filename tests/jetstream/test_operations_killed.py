"""Processes and servers that die or freeze in the middle of a job: nothing is sent twice, nothing goes unreported.

The commands of rbim in processes of their own, and an emulator that counts what it saw: the expectation comes from there. An
operation that must not be repeated shows most: its accounts are seen at most once, whoever dies.
"""

import asyncio
import csv
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from crash.test_bulk import APP_ID, DONE, TOKEN, UNKNOWN, control, emulating
from jetstream.test_operations import Machines, most_in_a_second

from helpers import jobs as tables
from rbim import InviteJoinGroup, Rate
from rbim.bulk import InviteJob
from rbim.emulator.faults.requests import Fault, Latency

GROUP = "g80000000000001"
PATIENCE = 120.0
TAKEOVER = 1.0
LOG = logging.getLogger("tests.deaths")
PROGRAM = "from rbim.cli.entry_point import main; main()"


class Site:
    """One platform, one queue, any number of processes."""

    def __init__(self, folder, url, emulator, via):
        self.url, self.emulator, self.via = url, emulator, via
        self.file, self.journal = folder / "rows.csv", folder / "rows.csv.invite.journal"
        self.log = (folder / "log").open("ab")
        bare = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")} | {"no_proxy": "*"}
        self.without_token = bare
        self.with_token = bare | {"RBIM_BASE_URL": url, "RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN}
        self.processes = []

    def start(self, *words, env):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, words)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        self.processes.append(process)
        return process

    def worker(self, *flags):
        return self.start("worker", "--via", self.via, "--takeover", TAKEOVER, *flags, env=self.with_token)

    def job(self, *flags):
        """Begin the job, or go on with it. This machine has no token."""
        if self.journal.exists() and tables.read(self.journal, "SELECT count(*) FROM run") != [(0,)]:
            return self.start("job", "resume", self.journal, env=self.without_token)
        words = ("--chunk", 1, "--concurrency", 20, "--confirm", "--journal", self.journal)
        return self.start("invite", self.file, "--via", self.via, *words, *flags, env=self.without_token)

    def times(self):
        return Counter(each for operation in self.emulator.requests.of(InviteJoinGroup) for each in operation.members)

    def until(self, seen, process):
        """Wait until the platform has seen so many requests, or the process has ended."""
        end = time.monotonic() + PATIENCE
        while len(self.emulator.requests) < seen and process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.005)

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.log.close()


@contextmanager
def site(folder, servers, name, rows, *, seconds):
    with emulating(1) as (url, emulator):
        told = {"name": "n", "type": "4", "permission": "0", "target": "1", "declared": "", "group_domain": None}
        group = {"group_id": GROUP, **told, "created": "2026-01-02T03:04:05+00:00", "members": {"admin": "0"}}
        control(url, "PUT", "state", {"version": 1, "groups": [group], "never_logged_in": []})
        control(url, "PUT", "faults", [{"effect": {"kind": "latency", "seconds": seconds}}])
        hosts = ",".join(each.removeprefix("nats://") for each in servers.urls)
        made = Site(folder, url, emulator, f"nats://{hosts}/{name}")
        with made.file.open("w", newline="") as file:
            csv.writer(file).writerows([("group", "account"), *((GROUP, f"a{number}") for number in range(rows))])
        try:
            yield made
        finally:
            made.close()


def check_reported(made, rows):
    """What the platform saw, it saw once; and each account is what the platform made of it, or unknown."""
    times, states = made.times(), {account: state for (_, account), state in tables.states(made.journal).items()}
    assert set(states) == {f"a{number}" for number in range(rows)}
    assert set(states.values()) <= {DONE, UNKNOWN}
    assert max(times.values()) == 1
    done = {account for account, state in states.items() if state == DONE}
    assert done <= set(times)
    return set(states) - done


def check_kills_of_coordinators(folder, servers, name, *, rows, kills):
    chance = random.Random(kills)
    with site(folder, servers, name, rows, seconds=0.05) as made:
        workers = [made.worker("--rate", "100/s") for _ in range(2)]
        for _ in range(kills):
            process = made.job()
            made.until(len(made.emulator.requests) + chance.randrange(1, rows // kills), process)
            time.sleep(chance.random() * 0.05)
            process.kill()
            process.wait()
        assert made.job().wait(PATIENCE) == 0
        assert check_reported(made, rows) == set(), "no outcome is unknown"
        assert made.times() == {f"a{number}": 1 for number in range(rows)}
        runs = tables.read(made.journal, "SELECT count(*) FROM run WHERE ended IS NULL")
        assert runs[0][0] >= 1, "a run was killed"
        LOG.warning("%d kills of the coordinator: none of %d unknown, none sent twice", kills, rows)
        assert all(worker.poll() is None for worker in workers)


def test_a_killed_coordinator_goes_on_and_knows_everything(tmp_path, nats, name):
    check_kills_of_coordinators(tmp_path, nats, name, rows=40, kills=2)


@pytest.mark.slow
def test_a_coordinator_that_is_killed_twenty_times_knows_everything(tmp_path, nats, name):
    check_kills_of_coordinators(tmp_path, nats, name, rows=800, kills=20)


def check_deaths_of_workers(folder, servers, name, *, rows, deaths):
    """Workers are killed or frozen past the takeover while they send; others start. Some of what they had is unknown."""
    chance = random.Random(deaths)
    with site(folder, servers, name, rows, seconds=0.3) as made:
        workers = [made.worker("--concurrency", "5") for _ in range(2)]
        process, frozen = made.job("--max-failures", "none"), []
        for number in range(deaths):
            made.until(len(made.emulator.requests) + rows // (2 * deaths), process)
            victim = workers.pop(chance.randrange(len(workers)))
            if number % 2:
                victim.send_signal(signal.SIGSTOP)
                frozen.append(victim)
            else:
                victim.kill()
                victim.wait()
            workers.append(made.worker("--concurrency", "5"))
            if len(frozen) > 1:
                frozen.pop(0).send_signal(signal.SIGCONT)
        code = process.wait(PATIENCE)
        for each in frozen:
            each.send_signal(signal.SIGCONT)
        time.sleep(TAKEOVER)  # what they still send, they send now
        unknown = check_reported(made, rows)
        LOG.warning("%d deaths of workers: %d of %d unknown, none sent twice", deaths, len(unknown), rows)
        assert len(unknown) <= 5 * deaths
        assert code == (5 if unknown else 0)


def test_workers_that_die_or_freeze_send_nothing_twice(tmp_path, nats, name):
    check_deaths_of_workers(tmp_path, nats, name, rows=40, deaths=2)


@pytest.mark.slow
def test_many_workers_that_die_or_freeze_send_nothing_twice(tmp_path, nats, name):
    check_deaths_of_workers(tmp_path, nats, name, rows=400, deaths=12)


@pytest.mark.slow
def test_a_worker_stops_in_good_order_at_a_signal(tmp_path, nats, name):
    with site(tmp_path, nats, name, 40, seconds=0.2) as made:
        first = made.worker("--concurrency", "5")
        process = made.job()
        made.until(len(made.emulator.requests) + 10, process)
        made.worker("--concurrency", "5")
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE) == 0
        assert process.wait(PATIENCE) == 0
        assert check_reported(made, 40) == set()


# ------------------------------------------------------------------------------ servers


async def check_deaths_of_nodes(machines, servers, journal, *, rows, deaths):
    group = await machines.group()
    machines.emulator.faults.add(Fault(effect=Latency(0.02)))
    chance, rates = random.Random(deaths), [Rate(50)]

    async def kill_nodes():
        for _ in range(deaths):
            await asyncio.sleep(1.5)
            node = chance.randrange(3)
            await asyncio.to_thread(servers.kill, node)
            await asyncio.sleep(1.0)
            await asyncio.to_thread(servers.start, node)
            await asyncio.to_thread(servers.wait_until_ready)

    async with (
        machines.sender() as sender,
        machines.working(rates=rates, takeover=3.0),
        machines.working(rates=rates, takeover=3.0),
        asyncio.TaskGroup() as tasks,
    ):
        killing = tasks.create_task(kill_nodes())
        job = InviteJob(sender, journal=journal, chunk=1, concurrency=40, needs_confirmation=True)
        report = await job.run([(group, f"a{number}") for number in range(rows)])
        killing.cancel()
    times = [request.at for request in machines.emulator.requests]
    assert max(machines.times().values()) == 1
    assert report.accounts.done + report.accounts.unknown == rows
    assert report.accounts.unknown <= deaths
    summary = "%d deaths of servers: %d of %d unknown, none sent twice, %d in a second at most"
    LOG.warning(summary, deaths, report.accounts.unknown, rows, most_in_a_second(times))
    assert most_in_a_second(times) <= 55


@pytest.mark.cluster
async def test_nodes_die_and_the_rate_of_all_workers_holds(own_cluster, name, tmp_path):
    await check_deaths_of_nodes(Machines(own_cluster.urls, name), own_cluster, tmp_path / "journal", rows=250, deaths=1)


@pytest.mark.slow
@pytest.mark.cluster
async def test_many_nodes_die_and_the_rate_of_all_workers_holds(own_cluster, name, tmp_path):
    await check_deaths_of_nodes(Machines(own_cluster.urls, name), own_cluster, tmp_path / "journal", rows=1500, deaths=8)


async def test_a_job_waits_for_workers_and_nothing_is_sent_twice(nats, name, tmp_path):
    machines = Machines(nats.urls, name)
    group = await machines.group()
    async with machines.sender(patience=0.5) as sender:
        job = InviteJob(sender, journal=tmp_path / "journal", chunk=1, concurrency=5, needs_confirmation=True)
        async with job.run([(group, f"a{number}") for number in range(20)]) as run:
            async for snapshot in run:
                if (snapshot.phase, snapshot.cause) == ("halted", "no worker took it"):
                    break
            async with machines.working():
                async for _ in run:
                    pass
    assert run.why == "done"
    assert machines.times() == {f"a{number}": 1 for number in range(20)}
    assert (await job.report()).accounts.unknown == 0
