"""A receiver with its handlers on trio: killed at a step of its tasks, and started again.

One process at a time lives, each in a process of its own that is forked, so that a kill is a kill: nothing of it runs any
more. trio's scheduling is deterministic, drawn from the seed; its clock is the simulated machine's, and jumps when no task
can run. What threads do happens at one instant, after a drawn delay. Handlers fail, hang and are slow.
"""

import asyncio
import json
import math
import os
import random
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

import trio
from anyio._backends import _trio as anyio_trio
from attrs import define, field

from rbim.callbacks import Backoff, Receiver, Router, SqliteInbox
from rbim.callbacks.events import ConvType
from rbim.emulator.copies.messages import CopiedMessage
from rbim.emulator.copies.targets import signed
from rbim.storage import group_commit

from . import planted_faults
from .disk import AFTER, BEFORE, real_connect
from .scenarios import CREDENTIALS, Scenario
from .virtual_time import EPOCH, TIME
from .world import PROGRESS

HANDLERS = MappingProxyType({"fails once": "handler-fails", "poison": "poison", "hangs once": "handler-hangs"})
MOST_LIVES = 40
LATEST = 3600.0
"""Seconds after which a life without trouble must have ended."""

DEAD = 2
KILLED = 9
TIMEOUT = 5.0


@define(kw_only=True)
class TrioSizes:
    """Numbers and choices of one run."""

    mode: str
    messages: int
    talkers: int
    span: float
    kills: int
    places: int
    attempts: int


@define(eq=False)
class Message:
    """A message: its place, when it is posted, its conversation, and how its handler behaves."""

    number: int
    at: float
    sender: str
    handler: str
    seconds: float
    posted: float = math.inf
    accepted: float = math.inf
    begun: list[tuple[float, int]] = field(factory=list)  # time and life
    ended: list[tuple[float, int]] = field(factory=list)

    @property
    def text(self):
        return f"m{self.number:04d}"


class MachineClock(trio.abc.Clock):
    """The time of the simulated machine: it jumps to the next deadline when no task can run."""

    def start_clock(self):
        """Begin: the machine's time goes on where it was."""

    def current_time(self):
        return TIME.now

    def deadline_to_sleep_time(self, deadline):
        if math.isfinite(deadline):
            TIME.now = max(TIME.now, deadline)
            return 0.0
        return 999.0  # nothing will ever happen


class Steps(trio.abc.Instrument):
    """Counts steps of tasks, lets time pass with them, and ends the process at one of them."""

    def __init__(self, dies_at):
        self._left = dies_at

    def before_task_step(self, task):
        del task
        TIME.now += 2e-6
        self._left -= 1
        if not self._left:
            os._exit(KILLED)


class TrioInboxScenario(Scenario):
    """See the module."""

    TROUBLES = ("kill", *HANDLERS.values())
    SHRINKS = MappingProxyType({"messages": 1, "talkers": 1, "kills": 0})

    def __init__(self, world, settings):
        super().__init__(world, settings)
        self.path, self.log = Path(world.folder, "inbox"), Path(world.folder, "log")
        self.messages = {}
        self.lives = 0

    def draw(self):
        draw = self.world.stream("sizes")
        return TrioSizes(
            mode=draw.choice(["normal", "high-guarantee"]),
            messages=draw.choice([10, 30, 80]),
            talkers=draw.choice([1, 3, 10]),
            span=draw.choice([2.0, 20.0]),
            kills=draw.choice([0, 2, 5]),
            places=draw.choice([1, 4, 16]),
            attempts=draw.choice([2, 4]),
        )

    @property
    def served(self):
        return len(self.messages)

    def _draw_messages(self):
        world, draw = self.world, self.world.stream("messages")
        for number in range(self.sizes.messages):
            handler = draw.choice(["well"] * 12 + list(HANDLERS))
            seconds = draw.choice([0.0, 0.01, 0.5, 3.0])
            if handler in HANDLERS and not world.is_on(HANDLERS[handler]):
                handler = "well"
            if handler in HANDLERS:
                world.happened[HANDLERS[handler]] += 1
            at, sender = draw.random() * self.sizes.span, f"u{draw.randrange(self.sizes.talkers)}"
            message = Message(number, at, sender, handler, seconds)
            self.messages[message.text] = message

    async def main(self):
        """Let one process after the other live, and judge what they wrote down."""
        self._draw_messages()
        draw = self.world.stream("kill")
        while True:
            self.lives += 1
            dies = self.lives <= self.sizes.kills and self.world.is_on("kill")
            status = self._live(int(math.exp(draw.uniform(3, 8))) if dies else 0)
            self._read()
            if not status:
                break
            self.world.happened["kill"] += status == KILLED
            if status != KILLED or self.lives > MOST_LIVES:
                self.world.fail(PROGRESS, f"life {self.lives} ends with {status}")
                return
            TIME.now += draw.choice([0.05, 5.0, 40.0])
        self._check()

    def _live(self, dies_at):
        """Run one process to its end, and return its exit code."""
        child = os.fork()
        if not child:
            code = 1
            try:
                asyncio._set_running_loop(None)
                _Life(self, dies_at).run()
                code = 0
            except BaseException as error:
                self.log.open("a").write(json.dumps([TIME.now, "fails", repr(error), 0]) + "\n")
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _read(self):
        """Take over what a process wrote down."""
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            at, what, text, detail = json.loads(line)
            TIME.now = max(TIME.now, at)
            if what == "uses":
                planted_faults.reached(detail)
                continue
            self.world.note(f"life{self.lives}", f"{at:.6f} {what} {text} {detail}")
            message = self.messages.get(text)
            if message is None:
                continue
            if what == "posts":
                message.posted = min(message.posted, at)
            elif what == "answers" and detail == 200:
                message.accepted = min(message.accepted, at)
            elif what == "begins":
                message.begun.append((at, self.lives))
            elif what == "ends":
                message.ended.append((at, self.lives))
        self.log.unlink(missing_ok=True)

    def _check(self):
        check = self.world.check
        connection = real_connect(self.path)
        rows = connection.execute("SELECT body, state FROM event").fetchall()
        connection.close()
        states = Counter(json.loads(body)["body"] for body, _ in rows)
        dead = {json.loads(body)["body"] for body, state in rows if state == DEAD}
        check("an event is stored once", max(states.values(), default=1) == 1, f"{states.most_common(1)}")
        for message in self.messages.values():
            told = f"{message}"
            check("what is acknowledged is kept", message.text in states or message.accepted == math.inf, told)
            check("what is acknowledged is handled", message.ended or message.text in dead, told)
            deaths = {life for _, life in message.begun} - {life for _, life in message.ended}
            guilty = message.handler == "poison" or len(deaths) >= self.sizes.attempts
            check("innocents are never buried", message.text not in dead or guilty, told)
            check("what always fails is buried", message.handler != "poison" or message.text in dead, told)
            lives = [life for _, life in message.ended]
            check("an event is handled again only after a death", len(lives) == len(set(lives)), told)
        self._check_order()

    def _check_order(self):
        ordered = sorted((each for each in self.messages.values() if each.begun), key=lambda each: each.posted)
        for number, later in enumerate(ordered):
            for earlier in ordered[:number]:
                if earlier.sender == later.sender and earlier.accepted < later.posted:
                    in_order = earlier.begun[0] < later.begun[0]
                    self.world.check("a conversation is handled in order", in_order, f"{earlier}\n  and then {later}")


class _Life:
    """One process, from its start to its end."""

    def __init__(self, scenario, dies_at):
        self._scenario, self._dies_at = scenario, dies_at
        seed = f"{scenario.world.seed}:life {scenario.lives}"
        self._delays, self._order = random.Random(f"{seed}:threads"), random.Random(f"{seed}:order")
        random.seed(f"{seed}:jitter")
        self._log = os.open(scenario.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._begun = Counter({each.text: len(each.begun) for each in scenario.messages.values()})

    def run(self):
        """Run it on trio."""
        from trio._core import _run

        _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r = True, self._order
        group_commit.ExecutorThread = partial(_Executor, self.delays)
        anyio_trio.TrioBackend.run_sync_in_worker_thread = classmethod(partial(_in_thread, self.delays))
        trio.run(self._main, clock=MachineClock(), instruments=[Steps(self._dies_at)])
        self._say("uses", "", planted_faults.used())

    def delays(self):
        """Draw the seconds until a thread does its work, and from then until that is known."""
        return self._delays.expovariate(1 / BEFORE), self._delays.expovariate(1 / AFTER)

    def _say(self, what, text, detail=0):
        os.write(self._log, (json.dumps([TIME.now, what, text, detail]) + "\n").encode())

    async def _main(self):
        scenario, sizes = self._scenario, self._scenario.sizes
        backoff = Backoff(attempts=sizes.attempts, first=0.5, most=5.0, random=self._order.random)
        router = Router()
        router.fallback(self._handle)
        receiver = Receiver(
            credentials=CREDENTIALS,
            sink=SqliteInbox(scenario.path),
            mode=sizes.mode,
            router=router,
            concurrency=sizes.places,
            timeout=TIMEOUT,
            backoff=backoff,
        )
        end = TIME.now + LATEST
        async with receiver:
            async with trio.open_nursery() as nursery:
                for message in scenario.messages.values():
                    if message.accepted == math.inf:
                        nursery.start_soon(self._post, receiver, message)
            while self._waits():
                await trio.sleep(1.0)
                if TIME.now > end:
                    raise TimeoutError(f"{self._waits()} events wait")

    def _waits(self):
        connection = real_connect(self._scenario.path)
        try:
            count = connection.execute("SELECT count(*) FROM event WHERE state = 0").fetchone()[0]
        finally:
            connection.close()
        return count

    async def _post(self, receiver, message):
        """Post a message as the platform does, until it is accepted."""
        await trio.sleep(max(0.0, message.at - TIME.now))
        sent = datetime.fromtimestamp(EPOCH + message.at, UTC)
        copied = CopiedMessage(conv_type=ConvType.TEAM, to=message.sender, sender=message.sender, text=message.text)
        body = json.dumps(copied.body(app_id=CREDENTIALS.app_id, msg_id=f"x{message.number}", sent=sent)).encode()
        while True:
            self._say("posts", message.text)
            answer = await receiver.receive(signed(body, CREDENTIALS, int((EPOCH + TIME.now) * 1000)), body)
            self._say("answers", message.text, answer.status)
            if answer.status == 200:
                return
            await trio.sleep(1.0)

    async def _handle(self, event):
        message = self._scenario.messages[event.body]
        self._begun[message.text] += 1
        self._say("begins", message.text, self._begun[message.text])
        await trio.sleep(message.seconds)
        first = self._begun[message.text] == 1
        if message.handler == "poison" or (message.handler == "fails once" and first):
            raise ValueError(message.handler)
        if message.handler == "hangs once" and first:
            await trio.sleep(1e6)
        self._say("ends", message.text)


class _Executor:
    """Takes the place of the threads of a file: one piece of work after the other, each at one instant."""

    def __init__(self, delays, _, __):
        self._delays = delays
        self._queue = []
        self._busy = False

    def submit(self, work, done, *, last=False):
        del last
        self._queue.append((work, done))
        if not self._busy:
            self._busy = True
            trio.lowlevel.spawn_system_task(self._run)

    async def _run(self):
        while self._queue:
            work, done = self._queue.pop(0)
            before, after = self._delays()
            await trio.sleep(before)
            result = failure = None
            try:
                result = work()
            except BaseException as error:
                failure = error
            await trio.sleep(after)
            done(result, failure)
        self._busy = False


async def _in_thread(
    delays,
    cls,
    work,
    args,
    abandon_on_cancel=False,  # noqa: FBT002  # anyio's
    limiter=None,
):
    """Take the place of anyio's worker threads."""
    await cls.checkpoint()
    async with limiter or cls.current_default_thread_limiter():
        with trio.CancelScope(shield=not abandon_on_cancel):
            before, after = delays()
            await trio.sleep(before)
            try:
                return work(*args)
            finally:
                await trio.sleep(after)
