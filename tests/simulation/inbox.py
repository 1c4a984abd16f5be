"""A developer's server for message copy: receivers and workers in processes of their own, which share one inbox.

The platform posts messages, a supervisor starts each process again when it has ended, and handlers fail, hang and kill their
process. Most runs meet a storm of everything at once, after which all is well; some meet one special situation, in which all
else is well. ``inbox_checks`` has what must hold.
"""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
from collections import Counter
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from attrs import define, field

from rbim.callbacks import Backoff, Policy, Receiver, Router, SqliteInbox, Worker
from rbim.callbacks.events import ConvType
from rbim.emulator import Emulator
from rbim.emulator.copies.messages import CopiedMessage
from rbim.emulator.copies.targets import signed
from rbim.errors import InvalidRequest, RbimError

from . import inbox_checks as checks
from .deliveries import ANSWER_IN, Deliveries, Message
from .disk import real_connect
from .network import ALL_TROUBLES, Weather
from .process import Killed
from .scenarios import CREDENTIALS, Scenario
from .virtual_time import EPOCH, TIME
from .world import PROGRESS

if TYPE_CHECKING:
    from .process import Process

SITUATIONS = (
    "killing-message",
    "killed-by-deploys",
    "ended-worker",
    "hot-conversation",
    "same-key",
    "lost-inbox",
    "short-retention",
    "failed-renewals",
    "frozen-handler",
)
"""Situations of their own: one message kills the process that handles it, each time; the process of a slow handler is
asked to leave and killed before it has left, again and again; what handlers share (``around``) fails; many connections post
messages of one conversation; messages have one ``msgId`` and different contents; the inbox is deleted while the receiver
runs; an inbox remembers for a short time only, and a policy might accept older deliveries; the disk is full when the lease
of a slow handler is to be renewed; the process of a slow handler is frozen for longer than the lease.
"""

HANDLERS = MappingProxyType(
    {
        "fails once": "handler-fails",
        "fails twice": "handler-fails",
        "poison": "poison",
        "slow": "handler-slow",
        "hangs once": "handler-hangs",
        "exits once": "handler-exits",
        "cancels once": "handler-cancels",
        "kills once": "handler-kills",
    }
)
"""The trouble that each kind of handler is, but for those that are well."""

MOST_KILLS = 30
"""How often a message may kill the process that handles it, at most, also after it was buried and replayed."""

FIRST_PAUSE = 0.5
"""Seconds of the pause after the first failure of a handler, at most."""

LATEST = 4 * 3600.0
"""Seconds after trouble by which everything must be handled or buried."""

RETENTION = 600.0
"""Seconds for which an inbox remembers what was handled, where that is short."""

CONNECTIONS = 20
"""Connections that post at the same time to one receiver or to many conversations."""


@define(eq=False)
class Role:
    """One process of the installation, which is started again when it has ended."""

    name: str
    receives: bool
    handles: bool
    starts: int = 0
    process: Process | None = None
    leave: asyncio.Event = field(factory=asyncio.Event)


@define(kw_only=True)
class InboxSizes:
    """Numbers and choices of one run."""

    situation: str  # "storm", or one of SITUATIONS
    mode: str
    messages: int
    talkers: int  # conversations
    span: float  # seconds in which the messages are sent
    fair_from: float
    receivers: int
    workers: int
    handles_too: bool  # whether receivers handle as well
    places: int  # conversations that one process handles at once
    timeout: float
    attempts: int
    longest_pause: float
    poll: float
    lease: float
    kills: int
    freezes: int
    deploys: int
    replayed: bool
    full: int  # times that the disk is full for a while


class InboxScenario(Scenario):
    """See the module."""

    TROUBLES = (
        "task-order",
        "kill",
        "power-loss",
        "freeze",
        "deploy",
        "deploy-killed",
        "replay",
        "disk-stall",
        "disk-error",
        "disk-full",
        "posted-twice",
        "forged",
        "recorded",
        *dict.fromkeys(HANDLERS.values()),
        *ALL_TROUBLES,
        *SITUATIONS,
    )
    SHRINKS = MappingProxyType(
        {"messages": 1, "talkers": 1, "receivers": 1, "workers": 0, "kills": 0, "freezes": 0, "deploys": 0, "full": 0}
    )

    def __init__(self, world, settings):
        super().__init__(world, settings)
        self.path = Path(world.folder, "inbox")
        self.weather = self._weather()
        self.emulator = Emulator(credentials=CREDENTIALS, seed=world.seed)
        self.messages = {}
        self.posted = {}  # by the body; of those that arrive together
        self.deliveries = Deliveries(self, self.weather)
        self.finished = Counter()  # attempts of handlers that came to an end, by message
        self.handling = {}  # by conversation
        self.frozen = {}  # when last
        self.ended = set()  # processes that left of themselves
        self.observed = Counter()
        self.lost_at = math.inf
        self.last_end = 0.0  # of any process
        self.finishing = False
        self.roles = []
        self._kills_left = self.sizes.kills
        self._power_lost = False
        self._chance = world.stream("operator")

    # What is drawn.

    def draw(self):
        world = self.world
        draw = world.stream("sizes")
        situation = draw.choice(SITUATIONS) if draw.random() < 0.35 else "storm"
        span = draw.choice([10.0, 60.0, 300.0])
        workers = draw.choice([0, 1, 1, 2, 3])
        sizes = InboxSizes(
            situation=situation,
            mode=draw.choice(["normal", "high-guarantee"]),
            messages=draw.choice([30, 100, 200]),
            talkers=draw.choice([1, 3, 20]),
            span=span,
            fair_from=span * 0.7,
            receivers=1 if workers == 3 else draw.choice([1, 1, 2]),
            workers=workers,
            handles_too=not workers or draw.random() < 0.25,
            places=draw.choice([1, 4, 16]),
            timeout=draw.choice([5.0, 60.0]),
            attempts=draw.choice([3, 8]),
            longest_pause=draw.choice([5.0, 20.0]),
            poll=draw.choice([0.25, 1.0]),
            lease=30.0,
            kills=draw.choice([0, 2, 6, 15]),
            freezes=draw.choice([0, 0, 1, 3]),
            deploys=draw.choice([0, 1, 4]),
            replayed=draw.random() < 0.25,
            full=draw.choice([0, 0, 0, 2]),
        )
        if situation != "storm" and world.is_on(situation):
            world.happened[situation] += 1
            self._draw_situation(sizes)
        else:
            sizes.situation = "storm"
        return sizes

    @staticmethod
    def _draw_situation(sizes):
        """Let all be well but for the situation."""
        sizes.kills = sizes.freezes = sizes.deploys = sizes.full = 0
        sizes.replayed, sizes.handles_too, sizes.fair_from = False, False, 0.0
        sizes.receivers, sizes.workers, sizes.places, sizes.timeout, sizes.attempts = 1, 1, 16, 60.0, 8
        sizes.messages, sizes.talkers, sizes.span = 50, 13, 5.0
        if sizes.situation == "killing-message":
            sizes.lease = 1.0
        elif sizes.situation == "killed-by-deploys":
            sizes.messages, sizes.talkers, sizes.span, sizes.lease = 1, 1, 1.0, 1.0
        elif sizes.situation == "ended-worker":
            sizes.workers, sizes.handles_too = 0, True
        elif sizes.situation == "hot-conversation":
            sizes.mode, sizes.messages = "normal", 0
        elif sizes.situation == "same-key":
            sizes.messages = 3
        elif sizes.situation == "lost-inbox":
            sizes.span = 30.0
        elif sizes.situation == "short-retention":
            sizes.mode, sizes.messages, sizes.poll = "high-guarantee", 3, 30.0
        elif sizes.situation == "failed-renewals":
            sizes.workers, sizes.messages, sizes.talkers, sizes.span, sizes.timeout = 2, 1, 1, 1.0, 300.0
        elif sizes.situation == "frozen-handler":
            sizes.workers, sizes.messages, sizes.talkers, sizes.span = 2, 3, 1, 1.0

    def _weather(self):
        sizes, disk = self.sizes, self.world.disk
        if sizes.situation != "storm":
            return Weather(latency=0.02, spread=0.3)
        draw = self.world.stream("disk")
        stall, errors = draw.choice([0, 0, 0, 1.5, 4.0]), draw.choice([0, 0, 0, 0.01, 0.1])
        disk.stall, disk.stalls, disk.errors = stall, 0.02 if stall else 0.0, errors
        for _ in range(sizes.full):
            begin = draw.random() * sizes.fair_from
            disk.full.append((begin, min(sizes.fair_from, begin + draw.choice([1.0, 8.0]))))
        weather = Weather.drawn(self.world, sizes.fair_from, worst=0.05, longest=30.0)
        weather.late_by = 20.0
        return weather

    def _draw_messages(self):
        sizes, world = self.sizes, self.world
        draw = world.stream("messages")
        for number in range(1, sizes.messages + 1):
            at, sender = draw.random() * sizes.span, f"u{draw.randrange(sizes.talkers)}"
            seconds = draw.choice([0.0, 0.001, 0.05, 1.0])
            handler = draw.choice(["well"] * 16 + list(HANDLERS))
            if sizes.situation != "storm" or not world.is_on(HANDLERS.get(handler, "")):
                handler = "well"
            if handler in HANDLERS:
                world.happened[HANDLERS[handler]] += 1
            message = Message(number, at, sender, handler, 3.0 if handler == "slow" else seconds)
            self.messages[message.text] = message
        chosen = self.messages.get("m0001")
        if sizes.situation == "killing-message":
            for message in self.messages.values():
                message.seconds = 0.5
            assert chosen is not None
            chosen.handler, chosen.sender, chosen.at, chosen.seconds = "kills", "killer", 0.5, 0.2
        elif sizes.situation in {"killed-by-deploys", "failed-renewals"}:
            assert chosen is not None
            chosen.seconds = 20.0 if sizes.situation == "killed-by-deploys" else 120.0
        elif sizes.situation == "frozen-handler":
            for message in self.messages.values():
                message.seconds = 25.0

    @property
    def served(self):
        return self.deliveries.count

    @property
    def trouble(self):
        """Count the troubles so far after which an event may be handled again."""
        happened = self.world.happened
        return sum(happened[name] for name in ("kill", "power-loss", "freeze", "disk-stall", "disk-error", "disk-full"))

    # The processes.

    async def main(self):
        sizes, world = self.sizes, self.world
        self._draw_messages()
        self.roles = [Role(f"receiver{n + 1}", receives=True, handles=sizes.handles_too) for n in range(sizes.receivers)]
        self.roles += [Role(f"worker{n + 1}", receives=False, handles=True) for n in range(sizes.workers)]
        for role in self.roles:
            world.at(self._chance.random() * 0.5, self._start, role)
        self._plan_troubles()
        self.emulator.copy_to(self.deliveries.carry, sizes.mode)
        async with self.emulator.copying():
            if sizes.situation in {"hot-conversation", "same-key"}:
                await self._post_specially()
            else:
                for message in sorted(self.messages.values(), key=lambda each: each.at):
                    await asyncio.sleep(max(0.0, 1.0 + message.at - TIME.now))
                    self.emulator.say(message.sender, "boss", message.text)
            await asyncio.sleep(max(0.0, sizes.fair_from - TIME.now))
            while len(self.emulator.copier.queue):  # what is to be resent, and what waits behind it
                await asyncio.sleep(5.0)
        await asyncio.sleep(ANSWER_IN + self.weather.late_by)  # what is late arrives
        await self._settle()
        if sizes.replayed and world.is_on("replay"):
            await self._replay()
        if sizes.situation == "short-retention":
            await self._post_recorded()
        elif sizes.situation == "same-key":
            await self._requeue()
        checks.check_accepted(self)
        await self._stop()
        checks.check_all(self)
        self.close_auditor()

    def _plan_troubles(self):
        sizes, world, draw = self.sizes, self.world, self.world.stream("plan")
        for trouble, count, do in (("freeze", sizes.freezes, self._freeze), ("deploy", sizes.deploys, self._deploy)):
            for _ in range(count):
                at, role = draw.random() * sizes.fair_from, draw.choice(self.roles)
                if world.is_on(trouble):
                    world.at(at, do, role)
        world.at(sizes.fair_from, self._end_disk_trouble)
        if sizes.situation == "killed-by-deploys":
            worker = self.roles[-1]
            for number in range(10):
                world.at(8.0 + 8.0 * number, self._deploy, worker)
                world.at(9.0 + 8.0 * number, self._kill, worker)
        elif sizes.situation == "lost-inbox":
            world.at(10.0, self._lose_inbox)
            for role in self.roles:
                world.at(20.0, self._deploy, role)
        elif sizes.situation == "failed-renewals":
            world.disk.full.append((20.0 + draw.random(), 36.0 + draw.random()))
        elif sizes.situation == "frozen-handler":
            world.at(5.0 + draw.random(), self._freeze_handler)

    def _end_disk_trouble(self):
        disk = self.world.disk
        disk.errors = disk.stall = disk.stalls = 0.0

    def _kill(self, role):
        if role.process is not None:
            role.process.kill("by the clock")

    def _freeze_handler(self):
        ((process, _),) = self.handling.values()
        self._freeze_for(process, 45.0)

    def _freeze(self, role):
        if role.process is not None:
            self._freeze_for(role.process, self._chance.choice([2.0, 20.0, checks.LONGEST_FREEZE]))

    def _freeze_for(self, process, seconds):
        if process.alive:
            self.world.happened["freeze"] += 1
            process.frozen_until = TIME.now + seconds
            self.frozen[process] = max(self.frozen.get(process, 0.0), process.frozen_until)  # some tasks still wait for that
            self.world.note(process.name, f"is frozen for {seconds:g} s")

    def _deploy(self, role):
        if role.process is not None and role.process.alive:
            self.world.happened["deploy"] += 1
            self.world.note(role.process.name, "is asked to leave")
            role.leave.set()
            if self.sizes.situation == "storm" and self.world.happens("deploy-killed", 0.3):
                self.world.at(
                    TIME.now + self.world.stream("deploy-killed").uniform(0.5, 5.0), role.process.kill, "by a deploy"
                )

    def _lose_inbox(self):
        self.lost_at = TIME.now
        self.delete_file("inbox")

    def _start(self, role):
        world, draw = self.world, self.world.stream("kill")
        if self.finishing or (role.process is not None and role.process.alive):
            return
        role.starts += 1
        role.leave = asyncio.Event()
        process = role.process = world.process(f"{role.name}.{role.starts}", partial(self._died, role))
        if self._kills_left and TIME.now < self.sizes.fair_from:
            self._kills_left -= 1
            how, log_step, log_statement = draw.random(), draw.uniform(3, 8.5), draw.uniform(1.6, 7.6)
            moment = TIME.now + draw.random() * self.sizes.fair_from
            self.plan_death(process, how, step=log_step, statement=log_statement, moment=moment)
        if TIME.now >= self.sizes.fair_from:
            process.dies_at_step = process.dies_at_statement = 0
        process.spawn(self._run(role, process))

    def _died(self, role, process):
        """Let the connections of a process break, and let its supervisor start it again."""
        left = process in self.ended
        self.last_end = TIME.now
        if not left:
            self.world.happened["kill"] += 1
        self.deliveries.break_connections(process)
        handled = [message for its, message in self.handling.values() if its is process]
        if len(handled) == 1 and not role.leave.is_set():
            handled[0].deaths += 1
        self.handling = {name: each for name, each in self.handling.items() if each[0] is not process}
        if not left and not self._power_lost and self.world.happens("power-loss", 0.15) and self.sizes.situation == "storm":
            self._power_lost = True
            for other in self.roles:
                if other.process is not None:
                    other.process.kill("with the machine")
            self.world.at(TIME.now + 0.001, self._lose_power)
        pauses = [0.05, 1.0, 20.0] if self.sizes.situation == "storm" else [1.0]
        self.world.at(TIME.now + 0.01 + self._chance.choice(pauses), self._start, role)

    def _lose_power(self):
        self.close_auditor()
        self.world.disk.lose_power()
        self.world.note("disk", "power is lost")
        self._power_lost = False

    async def _run(self, role, process):
        """Run one process until it leaves or fails."""
        world = self.world
        try:
            if role.receives:
                await self._receive_deliveries(role, process)
            else:
                await self._handle_events(role, process)
            world.note(process.name, "leaves")
            checks.check_left(self, process)
        except Killed:
            return
        except BaseException as error:
            known = isinstance(error, (RbimError, sqlite3.Error, BaseExceptionGroup, ConnectionError))  # of the pool
            world.note(process.name, f"fails: {type(error).__name__}: {str(error)[:120]}")
            world.check("a process ends only by an error of its files or handlers", known, repr(error))
        self.ended.add(process)
        process.kill("because it has ended")

    def _inbox(self):
        retention = {"retention": RETENTION} if self.sizes.situation == "short-retention" else {}
        return SqliteInbox(self.path, lease=self.sizes.lease, poll=self.sizes.poll, **retention)

    def _policy(self):
        """Return a policy that accepts deliveries for as long as the inbox remembers them, or None for the default."""
        if self.sizes.situation != "short-retention":
            return None
        older = Policy(back=86_400.0)
        with suppress(InvalidRequest):
            Receiver(credentials=CREDENTIALS, sink=self._inbox(), policy=older)
            self.world.fail("a policy fits what the inbox remembers", "it accepts deliveries that are older")
            return older
        return Policy(back=RETENTION - 60.0, ahead=60.0)

    async def _receive_deliveries(self, role, process):
        sizes = self.sizes
        receiver = Receiver(
            credentials=CREDENTIALS,
            sink=self._inbox(),
            mode=sizes.mode,
            policy=self._policy(),
            router=self._router(process) if role.handles else None,
            around=self._failing_pool if sizes.situation == "ended-worker" and role.starts == 1 else None,
            concurrency=sizes.places,
            timeout=sizes.timeout,
            backoff=self._backoff(),
            observers=[self._observe],
        )
        async with receiver:
            self.deliveries.doors[process] = receiver
            await role.leave.wait()
            if self._chance.random() < 0.5:  # taken out of the load balancer before it leaves
                del self.deliveries.doors[process]
                await asyncio.sleep(1.0)
        self.deliveries.doors.pop(process, None)

    @staticmethod
    @asynccontextmanager
    async def _failing_pool():
        """Stand for a pool of connections whose background task fails after a while."""

        async def fail():
            await asyncio.sleep(3.0)
            raise ConnectionError("the pool is gone")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            yield

    async def _handle_events(self, role, process):
        worker = Worker(
            self._inbox(),
            self._router(process),
            concurrency=self.sizes.places,
            timeout=self.sizes.timeout,
            backoff=self._backoff(),
        )
        stopping = asyncio.create_task(self._stop_worker(role, worker))
        await worker.run()
        stopping.cancel()

    @staticmethod
    async def _stop_worker(role, worker):
        await role.leave.wait()
        worker.stop()

    def _backoff(self):
        draw = self.world.stream("backoff")
        return Backoff(attempts=self.sizes.attempts, first=FIRST_PAUSE, most=self.sizes.longest_pause, random=draw.random)

    def _observe(self, observation):
        self.observed[type(observation).__name__] += 1

    # Handlers.

    def _router(self, process):
        router = Router()

        @router.fallback
        async def handle(event, handling):
            await self._handle(process, event, handling)

        return router

    async def _handle(self, process, event, handling):
        message = self.messages[event.body]
        self.world.note(process.name, f"handles {message.text}, attempt {handling.attempt}")
        conversation = checks.check_begin(self, process, message, handling)
        self.handling[conversation] = (process, message)
        message.begun.append((began := TIME.now, process, handling.attempt))
        try:
            await asyncio.sleep(message.seconds)
            await self._misbehave(process, message)
            was_frozen = self.frozen.get(process, 0.0) > began  # another worker may have its lease, and handle it, too
            message.ended.append((TIME.now, math.nan if was_frozen else self.trouble))
            self.finished[message.text] += 1
        except ValueError:
            self.finished[message.text] += 1
            raise
        finally:
            if self.handling.get(conversation) == (process, message):
                del self.handling[conversation]

    async def _misbehave(self, process, message):
        handler, time = message.handler, len(message.begun)
        if handler == "poison" or (handler == "fails once" and time == 1) or (handler == "fails twice" and time <= 2):
            raise ValueError(handler)
        if handler == "exits once" and time == 1:
            raise SystemExit(3)
        if handler == "cancels once" and time == 1:
            raise asyncio.CancelledError
        if handler == "hangs once" and time == 1:
            await asyncio.sleep(1e6)
        if handler == "kills" and time > MOST_KILLS:
            message.handler = "well"  # so that the run ends
            self.world.fail("a message that kills its process is buried", f"it has killed {MOST_KILLS} processes")
        elif handler == "kills" or (handler == "kills once" and time == 1):
            process.kill("by a handler")
            await asyncio.sleep(1.0)

    # The end.

    def look(self, sql, values=(), *, at=None):
        """Return what a file says, read by nobody's connection."""
        if at is not None:
            connection = real_connect(at, isolation_level=None)
            try:
                return connection.execute(sql, values).fetchall()
            finally:
                connection.close()
        return self.auditor().execute(sql, values).fetchall()

    def waits(self):
        """Return the number of events that wait in the inbox and in the spool."""
        spool = Path(f"{self.path}-spool")
        count = self.look("SELECT count(*) FROM event WHERE state = 0")[0][0]
        if spool.exists():
            count += self.look("SELECT count(*) FROM delivery", at=spool)[0][0]
        return count

    async def _settle(self):
        """Wait until nothing waits any more."""
        latest = TIME.now + (300.0 if self.sizes.situation == "ended-worker" else LATEST)
        while TIME.now < latest:
            frozen = any(process.alive and process.frozen_until > TIME.now for process in self.frozen)
            if self.deliveries.doors and not (
                self._power_lost or frozen or self.deliveries.waiting or self.waits() or self.handling
            ):
                return
            await asyncio.sleep(2.0)
        if self.sizes.situation != "ended-worker":  # of which each message is judged
            running = [role.process.name for role in self.roles if role.process is not None and role.process.alive]
            self.world.fail(PROGRESS, f"{self.waits()} events wait; running: {running}")

    async def _replay(self):
        """Let an operator replay everything; each event is handled once more."""
        self.world.happened["replay"] += 1
        process = self.world.process("operator")
        settled = [each for each in self.messages.values() if each.accepted_at < math.inf]

        async def replay():
            async with self._inbox() as inbox:
                count = await inbox.replay()
            self.world.note(process.name, f"replays {count} events")
            stored = self.look("SELECT count(*) FROM event")[0][0]
            self.world.check("a replay replays everything", count == stored >= len(settled), f"{count} of {stored}")

        counts = {each.text: len(each.begun) for each in settled}
        for message in self.messages.values():
            message.replays += 1
        await process.spawn(replay())
        await self._settle()
        idle = [each for each in settled if len(each.begun) == counts[each.text]]
        self.world.check("a replay replays everything", not idle, lambda: f"not handled again: {idle[0]}")

    async def _requeue(self):
        """Let an operator handle what is kept apart: other contents under a msgId that is known."""
        apart = {number for (number,) in self.look("SELECT number FROM event WHERE state = 3")}
        told = f"{len(apart)} of {len(self.messages)}"
        self.world.check("other content under a known msgId is kept apart", len(apart) == len(self.messages) - 1, told)

        async def requeue():
            async with self._inbox() as inbox:
                replayed = await inbox.replay()
                self.world.check("a replay leaves what is kept apart", replayed == 1, f"{replayed} events")
                await inbox.requeue(sorted(apart))

        for message in self.messages.values():
            message.replays += bool(message.begun)
        await self.world.process("operator").spawn(requeue())
        await self._settle()

    async def _stop(self):
        """Let every process leave."""
        self.finishing = True
        for role in self.roles:
            role.leave.set()
        for _ in range(40):
            if not any(role.process is not None and role.process.alive for role in self.roles):
                return
            await asyncio.sleep(1.0)
        alive = [role.process.name for role in self.roles if role.process is not None and role.process.alive]
        self.world.fail("who is asked to leave does", f"{alive} still run")

    # Special deliveries.

    async def _post_specially(self):
        await asyncio.sleep(2.0)
        if self.sizes.situation == "same-key":
            for message in self.messages.values():
                self.emulator.copy_raw(self._document(message, to="g1", message_id="m1"), key="g1")
        else:
            many, many_took = await self._post_for(0.5, hot=False)
            hot, hot_took = await self._post_for(0.5, hot=True)
            told = f"{hot} deliveries in 0.5 s in one conversation, {many} in {CONNECTIONS}"
            self.world.check("a hot conversation is accepted as fast as many", hot >= many / 2, told)
            told = f"{hot} events in {hot_took:.3f} s in one conversation, {many} in {many_took:.3f} s in {CONNECTIONS}"
            # only commits take time here, and 16 conversations share them; another process may look only after ``poll``
            hot_took = max(0.5, hot_took - (0.0 if self.sizes.handles_too else self.sizes.poll))
            fast = hot / hot_took >= many / many_took / 4
            self.world.check("a hot conversation is handled about as fast as many", fast, told)
            before = len(self.messages)
            self.world.disk.errors = 0.1
            await self._post_for(2.0, hot=True, apart=0.02)
            self.world.disk.errors = 0.0
            checks.check_arrivals(self, list(self.messages.values())[before:])

    def _document(self, message, *, to, message_id):
        sent = datetime.fromtimestamp(EPOCH + TIME.now, UTC)
        copied = CopiedMessage(conv_type=ConvType.TEAM, to=to, sender=message.sender, text=message.text)
        return copied.body(app_id=CREDENTIALS.app_id, msg_id=message_id, sent=sent)

    async def _post_for(self, seconds, *, hot, apart=0.0):
        """Post as fast as a receiver answers over some connections.

        Between two posts a connection pauses for up to ``apart`` seconds. Return the number that it accepted, and the
        seconds until all of them were handled.
        """
        began, accepted, draw = TIME.now, 0, self.world.stream("connections")
        until = began + seconds

        async def connection(number):
            nonlocal accepted
            while TIME.now < until:
                if apart:
                    await asyncio.sleep(draw.random() * apart)
                message = Message(len(self.messages) + 1, TIME.now, f"u{number}")
                self.messages[message.text] = message
                document = self._document(message, to="hot" if hot else f"g{number}", message_id=f"x{message.number}")
                body = json.dumps(document).encode()
                self.posted[body] = message
                replied = self.world.loop.create_future()
                self.deliveries.count += 1
                self.deliveries.deliver(signed(body, CREDENTIALS, int((EPOCH + TIME.now) * 1000)), body, replied)
                if await replied == 200:
                    message.accepted_at = TIME.now
                    accepted += 1

        await asyncio.gather(*map(connection, range(CONNECTIONS)))
        while self.waits() and TIME.now < began + LATEST:
            await asyncio.sleep(0.01)
        return accepted, TIME.now - began

    async def _post_recorded(self):
        """Post a delivery again and again: as long as a policy accepts it, and hours later, when old keys are deleted."""
        message = self.messages["m0001"]
        document = self._document(message, to="boss", message_id="m1")
        body = json.dumps(document).encode()
        headers = signed(body, CREDENTIALS, int((EPOCH + TIME.now) * 1000))
        for pause in (0.0, 300.0, 3 * 3600.0, 120.0, 120.0):
            await asyncio.sleep(pause)
            replied = self.world.loop.create_future()
            self.deliveries.deliver(headers, body, replied)
            await replied
            await asyncio.sleep(60.0)
        times = len(message.begun) - 1  # the first delivery of the message has another msgId
        self.world.check("a recorded delivery is handled once", times == 1, lambda: f"{times} times: {message}")
