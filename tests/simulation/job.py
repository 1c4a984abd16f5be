"""A job of bulk operations: killed, resumed, throttled, cut off, retried, looked for by a second operator.

An operator starts the job, and starts it again when its process was killed or its run ended early, until it is done. Most
runs meet a storm of everything at once; some meet one special situation, in which all else is well. ``job_checks`` has what
must hold.
"""

import asyncio
import json
import math
import sqlite3
from collections import defaultdict
from pathlib import Path
from types import MappingProxyType

from attrs import define

from rbim import AsyncClient, GroupType, JoinGroup, Limits, Rate, Role, SetMemberRole
from rbim.bulk import InviteJob, Job, RemoveJob, open_job
from rbim.emulator import Emulator, Rules
from rbim.emulator.faults import Code, Fault, Status, Throttle
from rbim.errors import InvalidRequest, RbimError
from rbim.http import Response

from . import job_checks as checks
from .network import ALL_TROUBLES, Network, Weather
from .process import Killed
from .scenarios import CREDENTIALS, Scenario
from .virtual_time import TIME, Stuck
from .world import PROGRESS

SITUATIONS = (
    "random-throttling",
    "slow-group",
    "all-refused",
    "endless-throttling",
    "odd-fails",
    "other-words",
    "client-limits",
    "lost-journal",
)
"""Situations of their own: a share of answers is HTTP 429 by chance; one group alone is throttled; the platform refuses or
throttles everything from some request on; ``fails`` is written in a way that rbim does not know; the platform's own words
for members who are in already; the client has a rate of its own; the journal is deleted while the job runs.
"""

REFUSAL = "112031"
"""A code that rbim does not know, for accounts that the platform will not have."""

PATIENCE = 1800.0
"""Seconds of a situation without end, after which a job should have ended by itself."""

MOST_RUNS = 60


@define(kw_only=True)
class JobSizes:
    """Numbers and choices of one run."""

    operation: str  # invite, confirm (an invitation that the invitee has to confirm), remove, join or role
    situation: str  # "storm", or one of SITUATIONS
    rows: int
    groups: int
    chunk: int
    concurrency: int
    adaptive: bool
    rates: tuple[Rate, ...]
    max_failures: float | None
    isolate: int
    kills: int
    retries: int
    poisoned: int
    missing: int  # rows for a group that does not exist
    intruders: int  # times that a second operator tries to run the job
    throttle: int | None  # requests per second that the platform takes
    retry_after: int | None
    fair_from: float


class JobScenario(Scenario):
    """See the module."""

    TROUBLES = (
        "task-order",
        "kill",
        "power-loss",
        "interruption",
        "intruder",
        "disk-stall",
        "disk-error",
        "throttling",
        "poison",
        *ALL_TROUBLES,
        *SITUATIONS,
    )
    SHRINKS = MappingProxyType(
        {"rows": 1, "groups": 1, "concurrency": 1, "kills": 0, "retries": 0, "poisoned": 0, "missing": 0, "isolate": 0}
    )

    def __init__(self, world, settings):
        super().__init__(world, settings)
        self.path = Path(world.folder, "job")
        told = self.sizes.situation == "other-words" or world.stream("dialect").random() < 0.5
        self.emulator = Emulator(credentials=CREDENTIALS, seed=world.seed, rules=Rules(invited_member_fails=told))
        self.emulator.world.listeners.append(self._changed)
        self.weather = self._weather()
        self.network = Network(world, self.emulator, self.weather, leaves=self._leaves, answers=self._answers)
        self.sent_for = defaultdict(list)
        self.refused = set()  # accounts that the platform will not have: strangers and those who never logged in
        self.poison = set()
        self.rows = []
        self.pairs = []
        self.report = None
        self.process = None
        self.ends_badly = set()  # processes with runs whose open requests nobody could settle
        self.runs = 0
        self.last_start = 0.0
        self.vanished_at = math.inf
        self.retrying = False
        self._changes = []
        self._intruders = []
        self._kills_left = self.sizes.kills
        self._retries_left = self.sizes.retries
        self._began = self._resuming = False
        self._chance = world.stream("operator")
        self._ended = world.loop.create_future()

    # What is drawn.

    def draw(self):
        world = self.world
        draw = world.stream("sizes")
        operation = draw.choice(["invite"] * 6 + ["confirm"] * 2 + ["remove", "join", "role"])
        situation = draw.choice(SITUATIONS) if draw.random() < 0.25 else "storm"
        rates = ()
        if draw.random() < 0.5:
            rates = (Rate(draw.choice([2, 10, 50]), burst=draw.choice([1, 1, 5])),)
            if draw.random() < 0.4:
                rates += (Rate(draw.choice([1, 5]), each_group=True),)
        chunk = draw.choice([1, 5, 10, 20, 50])
        rows = draw.choice([300, 500, 1000, 2000])
        sizes = JobSizes(
            operation=operation,
            situation=situation,
            rows=rows,
            groups=draw.choice([1, 2, 5, 10]),
            chunk=chunk,
            concurrency=draw.choice([1, 4, 20, 100]),
            adaptive=draw.random() < 0.7,
            rates=rates,
            max_failures=draw.choice([None, None, 0.5]),
            isolate=draw.choice([0, 10, 500]),
            kills=draw.choice([0, 2, 5, 12]),
            retries=draw.choice([0, 0, 1, 2]),
            poisoned=draw.choice([0, 0, 3, 10]),
            missing=draw.choice([0, 0, 7]),
            intruders=draw.choice([0, 0, 1, 3]),
            throttle=draw.choice([None, None, 5, 30]),
            retry_after=draw.choice([None, 2]),
            fair_from=draw.choice([60.0, 300.0, 1200.0]),
        )
        if situation != "storm" and world.is_on(situation):
            world.happened[situation] += 1
            self._draw_situation(sizes)
        else:
            sizes.situation = "storm"
        if sizes.operation in {"join", "role"} or sizes.chunk == 1:
            sizes.rows = min(sizes.rows, 500)
            sizes.chunk = 1
        return sizes

    @staticmethod
    def _draw_situation(sizes):
        """Let all be well but for the situation."""
        sizes.operation, sizes.rates = "invite", ()
        sizes.kills = sizes.retries = sizes.poisoned = sizes.missing = sizes.intruders = 0
        sizes.throttle, sizes.fair_from, sizes.max_failures = None, 0.0, None
        if sizes.situation in {"random-throttling", "slow-group"}:
            sizes.rows, sizes.groups, sizes.chunk, sizes.concurrency, sizes.adaptive = 2000, 10, 2, 20, True
        elif sizes.situation == "all-refused":
            sizes.rows, sizes.chunk, sizes.max_failures, sizes.isolate, sizes.concurrency = 2000, 2, 0.5, 0, 20
        elif sizes.situation == "client-limits":
            sizes.operation, sizes.rows, sizes.chunk, sizes.adaptive = "confirm", 300, 5, False
            sizes.concurrency = 100
        elif sizes.situation == "lost-journal":
            sizes.rows, sizes.chunk, sizes.rates = 1000, 2, (Rate(10),)

    def _weather(self):
        sizes, disk = self.sizes, self.world.disk
        if sizes.situation == "storm":
            draw = self.world.stream("disk")
            stall, errors = draw.choice([0, 0, 0, 0, 0.5, 5.0]), draw.choice([0, 0, 0, 0.002])
            disk.stall, disk.stalls, disk.errors = stall, 0.02 if stall else 0.0, errors
            return Weather.drawn(self.world, sizes.fair_from)
        weather = Weather(latency=0.05, spread=0.3)
        if sizes.situation == "other-words":
            weather.odds, weather.fair_from = {"reset-after": 0.2}, math.inf
        return weather

    @property
    def never(self):
        """Whether the operation must not be repeated."""
        return self.sizes.operation in {"confirm", "join"}

    @property
    def served(self):
        return len(self.network.sendings)

    # The platform.

    def _changed(self, change):
        self._changes += change.members

    def _answers(self, sending, response):
        sending.facts["changed"] = frozenset(self._changes)
        sending.facts["status"] = response.status
        self._changes.clear()
        situation = self.sizes.situation
        if situation == "lost-journal" and self.vanished_at == math.inf and len(self.network.sendings) > 100:
            self.world.at(TIME.now, self._lose_journal)
        if situation not in {"odd-fails", "other-words"} or b'"fails"' not in response.body:
            return response
        document = json.loads(response.body)
        fails = document.get("fails") or []
        if situation == "other-words":
            document["fails"] = [
                {**each, "reason": "用户已在群组中"} if "already" in each["reason"] else each for each in fails
            ]
        elif fails:
            sending.facts["odd"] = True
            document["fails"] = checks.odd_fails(fails, self.world.stream("odd-fails"))
        return Response(response.status, response.headers, json.dumps(document, ensure_ascii=False).encode())

    def _prepare(self):
        """Make groups, rows and the platform's troubles."""
        sizes, world, state = self.sizes, self.world, self.emulator.state
        draw = world.stream("rows")
        groups = self.groups
        self.pairs = [(groups[number % len(groups)], f"u{number}") for number in range(sizes.rows)]
        names = [account for _, account in self.pairs]
        self.refused = set(draw.sample(names, len(names) // 40))
        self.poison = set(draw.sample(names, min(sizes.poisoned, len(names)))) if world.is_on("poison") else set()
        if sizes.operation in {"remove", "role"}:
            for group, account in self.pairs:
                if account not in self.refused:
                    state.groups[group].admit(account)
        elif sizes.operation != "join":
            self.emulator.never_logged_in(*self.refused)
        else:
            self.refused = set()
        self.pairs += [("g80000000000404", f"lost{number}") for number in range(sizes.missing)]
        actors = [None, "clerk"] if sizes.operation != "join" and draw.random() < 0.5 else [None]
        rows = [(group, account, draw.choice(actors)) for group, account in self.pairs]
        draw.shuffle(rows)
        again = [(group, account, None) for group, account, _ in draw.sample(rows, min(5, len(rows)))]
        self.rows = rows + again + [(groups[0], "", None)] * 3
        self.duplicates = len(again)
        faults = self.emulator.faults
        if sizes.throttle is not None and world.is_on("throttling"):
            world.happened["throttling"] += 1
            faults.add(Fault(effect=Throttle(sizes.throttle, retry_after=sizes.retry_after)))
            world.at(sizes.fair_from, self._end_throttling)
        self._add_poison()
        if sizes.situation == "random-throttling":
            faults.add(Fault(effect=Status(429), probability=0.02))
        elif sizes.situation == "slow-group":
            faults.add(Fault(effect=Throttle(2), match={"group_id": groups[0]}))
        elif sizes.situation in {"all-refused", "endless-throttling"}:
            effect = Code(REFUSAL) if sizes.situation == "all-refused" else Status(429)
            most = len(self.pairs) // sizes.chunk // 2
            faults.add(Fault(effect=effect, match=lambda _: len(self.network.sendings) > most))

    def _add_poison(self):
        if self.poison:
            self.world.happened["poison"] += 1
            self.emulator.faults.add(
                Fault(effect=Code(REFUSAL), match=lambda op: bool(self.poison & checks.accounts_of(op)))
            )

    def _end_throttling(self):
        self.emulator.faults.clear()
        self._add_poison()

    # What leaves.

    def _leaves(self, sending):
        if sending.process is None:  # the one that makes the groups
            return
        sending.facts["run"] = self.runs
        sending.facts["pairs"] = pairs = checks.pairs_of(sending)
        if self.vanished_at < math.inf:
            return
        for pair in pairs:
            self.sent_for[pair].append(sending)
        checks.check_intent(self, sending)
        checks.check_alone(self, sending)

    # The operator.

    async def main(self):
        setup = Network(self.world, self.emulator, Weather())
        transport = setup.transport()
        async with AsyncClient(base_url="http://emulator", credentials=CREDENTIALS, transport=transport) as client:
            created = [await client.groups.create(name="g", type=GroupType.VIP) for _ in range(self.sizes.groups)]
        self.groups = [each.group_id for each in created]
        self._changes.clear()
        self._prepare()
        self._start()
        for _ in range(self.sizes.intruders):
            self.world.at(TIME.now + self._chance.random() * min(self.sizes.fair_from, 120.0), self._intrude)
        if self.sizes.situation == "storm":
            await self._until_done()
        else:
            await asyncio.wait([self._ended], timeout=PATIENCE)
            checks.check_situation(self, ended=self._ended.done())
        self.close_auditor()

    async def _until_done(self):
        while not self._ended.done():
            await asyncio.wait([self._ended], timeout=300)
            latest = checks.latest_end(self)
            if latest < TIME.now and self.process is not None and self.process.alive:
                self.world.fail(PROGRESS, f"the job is not done at {TIME.now:.0f} s; {latest:.0f} s at most are right")
                return
        await self._ended
        checks.check_all(self)

    def _start(self):
        world, draw = self.world, self.world.stream("kill")
        self.runs += 1
        self.last_start = TIME.now
        if self.runs > MOST_RUNS:
            self._end(Stuck(f"not done after {MOST_RUNS} runs"))
            return
        process = self.process = world.process(f"job{self.runs}", self._died)
        if self._kills_left and TIME.now < self.sizes.fair_from:
            self._kills_left -= 1
            how, log_step, log_statement = draw.random(), draw.uniform(3, 8.7), draw.uniform(0.7, 8)
            moment = TIME.now + draw.random() * 60
            self.plan_death(process, how, step=log_step, statement=log_statement, moment=moment)
        process.spawn(self._operate(process))

    def _died(self, process):
        self.world.happened["kill"] += 1
        self.ends_badly.add(process)
        if process is not self.process:
            return
        if self.world.happens("power-loss", 0.3) and not any(each.connections for each in self._intruders):
            self.close_auditor()
            self.world.disk.lose_power()
            self.world.note("disk", "power is lost")
        self.world.at(TIME.now + self._chance.choice([0.1, 0.1, 1, 5, 5, 30, 30, 4000]), self._start)

    def _end(self, error=None):
        if not self._ended.done():
            self._ended.set_exception(error) if error is not None else self._ended.set_result(None)

    def _client(self):
        limits = Limits(rates=(Rate(2),)) if self.sizes.situation == "client-limits" else None
        transport = self.network.transport()
        return AsyncClient(
            base_url="http://emulator",
            credentials=CREDENTIALS,
            transport=transport,
            timeout=5.0,
            deadline=10.0,
            limits=limits,
        )

    def _job(self, client):
        sizes = self.sizes
        settings = {
            "journal": self.path,
            "rates": sizes.rates,
            "concurrency": sizes.concurrency,
            "adaptive": sizes.adaptive,
            "max_failures": sizes.max_failures,
            "isolate": sizes.isolate,
        }
        if sizes.operation == "join":
            return Job(client, JoinGroup, **settings)
        if sizes.operation == "role":
            return Job(client, SetMemberRole, options={"role": Role.ADMINISTRATOR}, **settings)
        if sizes.operation == "remove":
            return RemoveJob(client, chunk=sizes.chunk, **settings)
        return InviteJob(client, chunk=sizes.chunk, needs_confirmation=sizes.operation == "confirm", **settings)

    def _run_of(self, client):
        """Return the run that the operator would begin now."""
        draw = self._chance
        on_unknown = draw.choice(["auto", "auto", "resend", "report"])
        if self.never:
            on_unknown = "auto"
        from_journal = draw.random() < 0.5
        if self.retrying:
            job = open_job(client, self.path)
            return job.resume(on_unknown) if self._resuming else job.retry()
        if from_journal and self._began:
            return open_job(client, self.path).resume(on_unknown)
        return self._job(client).run(self.rows, on_unknown)

    async def _operate(self, process):
        world, draw = self.world, self._chance
        try:
            try:
                why = await self._run(process)
            except (RbimError, sqlite3.Error) as error:
                why = type(error).__name__
                self.ends_badly.add(process)
                world.note(process.name, f"run fails: {why}: {str(error)[:120]}")
            if why == "done":
                return
            if self.sizes.situation != "storm":
                self._end()
                return
            await asyncio.sleep(draw.choice([1, 30]))
            process.dies_at_step = 0
            world.at(TIME.now, self._start)
        except Killed:
            return
        except BaseException as error:
            self._end(error)

    async def _run(self, process):
        world, draw = self.world, self._chance
        async with self._client() as client:
            run = self._run_of(client)
            async with run:
                self._resuming = True
                if world.happens("interruption", 0.1) and self.sizes.situation == "storm":
                    await asyncio.sleep(draw.random() * 5)
                    graceful = draw.random() < 0.5
                    world.note(process.name, "is asked to stop" if graceful else "is interrupted")
                    if graceful:
                        run.stop()
                    else:
                        self.ends_badly.add(process)
                        run.interrupt()
            why = run.why
            world.note(process.name, f"run ends: {why}")
            self._began = self._began or run.began
            if why == "done" and self._retries_left and TIME.now > self.sizes.fair_from and not self.never:
                self._retries_left -= 1
                self.retrying, self._resuming = True, False
                why = "retried"
            if why == "done":
                self.report = await open_job(client, self.path).report()
        checks.check_left(self, client, process)
        if why == "done":
            self._end()
        return why

    def _intrude(self):
        """Let a second operator try to run the same job: it is refused, unless nobody runs the job."""
        if not self.world.is_on("intruder") or self._ended.done() or self.retrying:
            return
        self.world.happened["intruder"] += 1
        process = self.world.process("intruder", self.ends_badly.add)
        self._intruders.append(process)
        process.spawn(self._operate_second(process))

    async def _operate_second(self, process):
        client = self._client()
        try:
            async with client:
                async with self._job(client).run(self.rows, "auto") as run:
                    pass
                self.world.note(process.name, f"run ends: {run.why}")
                self._began = self._began or run.began
        except InvalidRequest as error:
            self.world.note(process.name, f"is refused: {str(error)[:120]}")
        except (RbimError, sqlite3.Error) as error:
            self.ends_badly.add(process)
            self.world.note(process.name, f"run fails: {error}")

    def _lose_journal(self):
        if self.vanished_at == math.inf:
            self.vanished_at = TIME.now
            self.delete_file("journal")
