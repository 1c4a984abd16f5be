"""A job whose requests are sent by workers on other machines, over a queue on NATS servers.

The operator is that of the scenario ``job``: the process with the list is killed, and the job is resumed. Up to three
workers, each a process, are killed, frozen and replaced by deploys. The servers are a model (``broker``), on a network that
fails (``broker_network``). ``jetstream_job_checks`` has what must hold.
"""

from __future__ import annotations

import asyncio
import json
import math
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import asdict, define

from rbim import AsyncClient, Rate
from rbim.jetstream import RemoteSender, serve

from . import broker_network, jetstream_job_checks as checks, job_checks
from .inbox import Role
from .jetstream_checks import check_disconnected
from .job import JobScenario, JobSizes
from .network import ALL_TROUBLES, Weather
from .process import Killed
from .scenarios import CREDENTIALS
from .virtual_time import TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .broker import Stored, Stream
    from .network import Sending
    from .process import Process
    from .world import World

__all__ = ["JetStreamJobScenario"]

SERVERS = "nats://h1,nats://h2,nats://h3"
BUCKET = "KV_rbim-requests-bulk"
LONGEST_FREEZE = 40.0

LATE_SLOTS = "late-slots"
"""A situation of its own: a high rate, whose slots are taken while the records have no leader, again and again."""

SPECIAL = 0.15
"""The share of the runs that meet it."""


@define(kw_only=True)
class QueueSizes(JobSizes):
    """The sizes of the scenario ``job``, whose rates are kept by the workers together; and those of the workers."""

    workers: int
    places: int  # operations at a time in one worker
    takeover: float
    patience: float
    shared: Rate | None  # of all workers
    worker_kills: int
    freezes: int
    deploys: int
    odds: float  # of troubles of single requests to the servers
    most: int  # troubles of the servers, of each kind
    leaderless: int = 0  # times that the records have no leader


class JetStreamJobScenario(JobScenario):
    """See the module."""

    TROUBLES: ClassVar[tuple[str, ...]] = (
        "task-order",
        "kill",
        "worker-kill",
        "freeze",
        "deploy",
        "power-loss",
        "interruption",
        "disk-stall",
        "disk-error",
        "throttling",
        "poison",
        *ALL_TROUBLES,
        *broker_network.TROUBLES,
        LATE_SLOTS,
    )
    SPECIAL: ClassVar[bool] = False
    SHRINKS: ClassVar[Mapping[str, int]] = MappingProxyType(
        {**JobScenario.SHRINKS, "workers": 1, "places": 1, "worker_kills": 0, "freezes": 0, "deploys": 0, "most": 0}
    )
    sizes: QueueSizes

    def __init__(self, world: World, settings: Mapping[str, Any]) -> None:
        super().__init__(world, settings)
        broker_network.install(world)
        self.servers = broker_network.Servers(world)
        self.servers.plan(self.sizes.fair_from, worst=self.sizes.odds, most=self.sizes.most)
        self.roles = [Role(f"worker{n + 1}", receives=False, handles=True) for n in range(self.sizes.workers)]
        self.frozen: dict[Process, float] = {}  # when last
        self._worker_kills_left = self.sizes.worker_kills
        self._over: set[str] = set()  # the subjects of requests whose outcome is recorded
        self.servers.broker.stored = self._stored

    def draw(self) -> QueueSizes:
        sizes, draw = super().draw(), self.world.stream("queue")
        few = draw.choice([20, 60, 200])
        drawn = {
            **asdict(sizes, recurse=False),
            "rows": few if sizes.chunk == 1 else 2 * few,
            "rates": (),
            "intruders": 0,
            "fair_from": draw.choice([30.0, 60.0, 200.0]),
            "concurrency": draw.choice([4, 20, 100]),
        }
        sizes = QueueSizes(
            **drawn,
            workers=draw.choice([1, 2, 3]),
            places=draw.choice([2, 10, 50]),
            takeover=draw.choice([3.0, 10.0]),
            patience=draw.choice([5.0, 30.0]),
            shared=draw.choice([None, None, Rate(5, burst=1), Rate(20, burst=1)]),
            worker_kills=draw.choice([0, 2, 6]),
            freezes=draw.choice([0, 0, 2]),
            deploys=draw.choice([0, 0, 2]),
            odds=draw.choice([0.0, 0.005, 0.03]),
            most=draw.choice([0, 1, 4]),
        )
        if draw.random() < SPECIAL and self.world.is_on(LATE_SLOTS):
            self.world.happened[LATE_SLOTS] += 1
            self._draw_late_slots(sizes)
        return sizes

    @staticmethod
    def _draw_late_slots(sizes: QueueSizes) -> None:
        """Let all be well but for the leader of the records."""
        sizes.operation, sizes.rows, sizes.groups, sizes.chunk, sizes.max_failures = "invite", 500, 5, 1, None
        sizes.kills = sizes.retries = sizes.poisoned = sizes.missing = sizes.isolate = 0
        sizes.throttle, sizes.adaptive, sizes.concurrency, sizes.patience = None, False, 100, 30.0
        sizes.workers, sizes.places, sizes.shared = 3, 50, Rate(100, burst=1)
        sizes.worker_kills = sizes.freezes = sizes.deploys = sizes.most = 0
        sizes.odds, sizes.fair_from, sizes.leaderless = 0.0, 30.0, 8

    def _weather(self) -> Weather:
        return Weather(latency=0.02, spread=0.3) if self.sizes.leaderless else super()._weather()

    # The workers.

    async def _until_done(self) -> None:
        draw, sizes = self.world.stream("workers"), self.sizes
        for role in self.roles:
            self.world.at(TIME.now + draw.random(), self._start_worker, role)
        for trouble, count, do in (
            ("freeze", self.sizes.freezes, self._freeze),
            ("deploy", self.sizes.deploys, self._deploy),
        ):
            for _ in range(count):
                at, role = draw.random() * sizes.fair_from, draw.choice(self.roles)
                if self.world.is_on(trouble):
                    self.world.at(at, do, role)
        for number in range(sizes.leaderless):
            self.world.at(TIME.now + 1.0 + 3.0 * number + draw.random(), self.servers.unseat, BUCKET, 1.0)
        await super()._until_done()

    def _start_worker(self, role: Role) -> None:
        world, draw = self.world, self.world.stream("worker-kill")
        if self._ended.done():
            return
        role.starts += 1
        role.leave = asyncio.Event()
        process = role.process = world.process(f"{role.name}.{role.starts}", partial(self._worker_died, role))
        if self._worker_kills_left and TIME.now < self.sizes.fair_from:
            self._worker_kills_left -= 1
            by_step, log_step, moment = draw.random() < 0.7, draw.uniform(4, 8.5), draw.random() * self.sizes.fair_from
            if world.is_on("worker-kill") and by_step:
                process.dies_at_step = int(math.exp(log_step))
            elif world.is_on("worker-kill"):
                world.at(max(TIME.now, moment), process.kill, "by the clock")
        process.spawn(self._work(role, process))

    async def _work(self, role: Role, process: Process) -> None:
        sizes = self.sizes
        client = AsyncClient(
            base_url="http://emulator",
            credentials=CREDENTIALS,
            transport=self.network.transport(),
            timeout=5.0,
            deadline=10.0,
        )
        try:
            async with client:
                await serve(
                    client,
                    SERVERS,
                    concurrency=sizes.places,
                    rates=[] if sizes.shared is None else [sizes.shared],
                    takeover=sizes.takeover,
                    stop=role.leave,
                )
            self.world.note(process.name, "leaves")
            check_disconnected(self.servers, process)
        except Killed:
            return
        except BaseException as error:
            self.world.fail("a worker ends only when it is told to", f"{process.name}: {error!r}")
        role.leave.set()
        process.kill("because it has ended")

    def _worker_died(self, role: Role, process: Process) -> None:
        self.servers.forget(process)
        if not role.leave.is_set():
            self.world.happened["worker-kill"] += 1
            self.ends_badly.add(process)
        self.world.at(TIME.now + self.world.stream("worker-pauses").choice([0.05, 1.0, 20.0]), self._start_worker, role)

    def _freeze(self, role: Role) -> None:
        process = role.process
        if process is not None and process.alive:
            self.world.happened["freeze"] += 1
            seconds = self.world.stream("freezes").choice([2.0, 12.0, LONGEST_FREEZE])
            process.frozen_until = self.frozen[process] = TIME.now + seconds
            self.world.note(process.name, f"is frozen for {seconds:g} s")

    def _deploy(self, role: Role) -> None:
        if role.process is not None and role.process.alive:
            self.world.happened["deploy"] += 1
            self.world.note(role.process.name, "is asked to leave")
            role.leave.set()

    def _stored(self, stream: Stream, message: Stored) -> None:
        """Check that an outcome which is recorded stays: whoever asks later gets the same one."""
        if stream.name == BUCKET and not message.subject.endswith(".pace"):
            again = message.subject in self._over
            self.world.check("an outcome that is recorded stays", not again, lambda: f"{message.subject}: {message.data!r}")
            if json.loads(message.data)["state"] == "over":
                self._over.add(message.subject)

    # The operator.

    def _client(self) -> RemoteSender:
        return RemoteSender(SERVERS, name="bulk", patience=self.sizes.patience)

    def _died(self, process: Process) -> None:
        self.servers.forget(process)
        super()._died(process)

    def _leaves(self, sending: Sending) -> None:
        if sending.process is None:  # the one that makes the groups
            return
        sending.facts["pairs"] = pairs = job_checks.pairs_of(sending)
        for pair in pairs:
            self.sent_for[pair].append(sending)
        checks.check_worker(self, sending)

    def _check_left(self, client: Any, process: Process) -> None:
        files = [each.path for each in process.connections]
        self.world.check("nothing is left open", not files, lambda: f"{process.name}: {files}")
        check_disconnected(self.servers, process)
        del client

    def _check_all(self) -> None:
        checks.check_all(self)
