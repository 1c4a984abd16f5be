"""Run the scenarios over a transport: three calls each, of an operation that is safe, idempotent, and never repeated."""

import subprocess
import sys
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache, partial
from typing import Any

import anyio
from anyio import to_thread
from attrs import asdict, define, evolve, field, frozen

from helpers.transports import TRANSPORTS, class_of
from rbim import AsyncClient, AttemptEnded, Credentials, RbimError, Retry
from rbim.operations import GroupOperation, Repeat, Success, operation
from rbim.testing.conformance.case import environment
from rbim.testing.conformance.server import Authority, RawServer, authority, full_port, refusing_port
from rbim.testing.conformance.suite import Conformance

from .names import new_name, resolver
from .rule import ALL, Told, told
from .scenarios import LIMIT, OK, SCENARIOS, Scenario

TESTED = ("asyncio", "httpx", "httpx2", "aiohttp")
TIME = 0.4
"""Seconds: the time-out, or the deadline, of calls that end by one. A scenario that is too slow is run again with more."""
ENOUGH = 20.0
BIG = 8_000_000  # bytes of a body that no buffers take whole
AT_ONCE, BIG_AT_ONCE = 48, 4

A_MOMENT = 0.05  # seconds in which the end of a connection has certainly come

APP = Credentials(app_id="app", app_token="token")


@operation("Look", repeat=Repeat.SAFE)
@frozen(kw_only=True)
class Look(GroupOperation[Success]):
    """A request that only reads."""

    text: str = ""


@operation("Put", repeat=Repeat.IDEMPOTENT)
@frozen(kw_only=True)
class Put(GroupOperation[Success]):
    """A request that may be sent twice."""

    text: str = ""


@operation("Add", repeat=Repeat.NEVER)
@frozen(kw_only=True)
class Add(GroupOperation[Success]):
    """A request that must not be sent twice."""

    text: str = ""


KINDS = dict(zip(ALL, (Look, Put, Add), strict=True))


@define
class Stage:
    """What a server did for one call, and what its steps wait for."""

    acted: int = 0
    warm: threading.Event = field(factory=threading.Event)
    rested: threading.Event = field(factory=threading.Event)
    reached: threading.Event = field(factory=threading.Event)
    over: threading.Event = field(factory=threading.Event)


@frozen(kw_only=True)
class Cell:
    """The result of a scenario over a transport: what its calls were told, and why it is dishonest, if it is."""

    scenario: Scenario
    told: Told
    broken: tuple[str, ...] = ()


@frozen(kw_only=True)
class _Ended:
    """The end of one call. ``acted``: how often the platform did what it was asked for."""

    error: str
    outcome: str
    attempts: tuple[Any, ...]
    whole: str
    acted: int
    paused: float


class _Seen:
    """An observer that keeps the attempts, also of a call that was cancelled."""

    def __init__(self):
        self.attempts = []

    def __call__(self, observation, /):
        if isinstance(observation, AttemptEnded):
            self.attempts.append(observation.attempt)


# ----------------------------------------------------------------------------------------------- servers

PROGRAM = """
import os, socket, sys

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
dies, ok = sys.argv[1], sys.argv[2].encode()
peer, _ = listener.accept()

def read(whole=True):
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        data += peer.recv(65536)
    head, _, body = data.partition(b"\\r\\n\\r\\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\\r\\n") if line.startswith(b"content-length:")]
    while whole and len(body) < int(lengths[0]):
        body += peer.recv(65536)

if dies in ("kept", "idle"):
    read()
    peer.sendall(ok)
if dies != "idle":
    read(dies != "body")
if dies in ("acted", "answer", "kept"):
    print("acted", flush=True)
if dies == "answer":
    peer.sendall(ok[:-3])
os.kill(os.getpid(), 9)
"""
"""A server in a process of its own, which is killed with SIGKILL at a moment."""


@cache
def _another_authority():
    return Authority()


@cache
def _context(certificate):
    if certificate == "unknown":
        return _another_authority().of_a_server()
    name = "elsewhere.example" if certificate == "elsewhere" else "127.0.0.1"
    return authority().of_a_server(name, expired=certificate == "expired")


@frozen
class _Scripts:
    """What a server does for a scenario: its fault once, and then good answers."""

    scenario: Scenario
    stage: Stage

    def _follow(self, steps, peer):
        for step in steps:
            step(self.stage, peer)

    def greet(self, peer):
        """Receive a connection: the first one as the scenario says."""
        if peer.number == 0:
            self._follow(self.scenario.greeting, peer)
        if self.scenario.scheme == "https" and not self.scenario.tunnel and not peer.closed:
            peer.start_tls(_context(self.scenario.certificate))

    def _warm(self, peer, _):
        peer.send(OK)
        self.stage.warm.wait(ENOUGH)  # a reset would discard an answer that was not read yet
        self._follow(self.scenario.idle, peer)
        self.stage.rested.set()

    def _first(self, peer, _):
        if self.scenario.steps:
            self._follow(self.scenario.steps, peer)
        else:
            peer.send(OK)

    def _good(self, peer, received):
        if self.scenario.head_only:
            peer.read_body(received.head)
        if not self.scenario.done:
            self.stage.acted += 1
        peer.send(OK)

    def all(self):
        """Return the scripts, one for each request; the last one goes on."""
        first = [self._first] if self.scenario.steps or not self.scenario.kept else []
        before = [self._warm] if self.scenario.kept else []
        return [*before, *first] if self.scenario.tunnel else [*before, *first, self._good]


@contextmanager
def _server(scenario, stage):
    scripts, room = _Scripts(scenario, stage), 65536 if scenario.head_only else None
    with RawServer(*scripts.all(), greet=scripts.greet, head_only=scenario.head_only, receive_buffer=room) as server:
        try:
            yield server.url(scenario.scheme)
        finally:
            stage.over.set()
            stage.warm.set()


@contextmanager
def _process(scenario, stage):
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, scenario.dies, OK.decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process
        finally:
            process.kill()
            stage.acted += process.stdout.read().split().count("acted")


@contextmanager
def _place(scenario, stage):
    if scenario.place == "nowhere":
        yield f"{scenario.scheme}://name.invalid", None
    elif scenario.place == "server":
        with _server(scenario, stage) as origin:
            yield origin, None
    else:
        with refusing_port() if scenario.place == "refusing" else full_port() as port:
            stage.reached.set()
            yield f"{scenario.scheme}://127.0.0.1:{port}", None


@asynccontextmanager
async def _in_thread(place):
    """Enter and leave in another thread: a server waits for its own threads."""
    entered = await to_thread.run_sync(place.__enter__)
    try:
        yield entered
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(place.__exit__, None, None, None)


# ------------------------------------------------------------------------------------------------- calls


class Matrix:
    """The transport under test, which the calls of all scenarios share, and its options."""

    def __init__(self, module, stack, patience):
        self._make = partial(class_of(module), trust_env=False)
        self.subject = Conformance(self._make, **TRANSPORTS[module][1])
        self._stack = stack
        self._patience = patience
        self._open = {}

    async def transport(self, proxy):
        """Return an open transport: one for all, and one for each proxy."""
        options = authority().trusted(bundle=self.subject.bundle) | {"answer_limit": LIMIT}
        if proxy is not None:
            options["proxy"] = proxy
        if proxy not in self._open:
            self._open[proxy] = made = self._make(**options)
            await self._stack.enter_async_context(made)
        return self._open[proxy]

    async def call(self, scenario, kind):
        stage = Stage()
        async with AsyncExitStack() as stack:
            place = _process(scenario, stage) if scenario.place == "process" else _place(scenario, stage)
            origin, process = await stack.enter_async_context(_in_thread(place))
            if scenario.resolves:
                origin = origin.replace("127.0.0.1", new_name(scenario.resolves, stage))
            proxy = origin.replace("https", "http") if scenario.tunnel else None
            transport = await self.transport(proxy)
            ended = await self._call(scenario, kind, origin, transport, stage, process)
            stage.over.set()
        return evolve(ended, acted=stage.acted)

    async def _call(self, scenario, kind, origin, transport, stage, process):
        seen, by = _Seen(), scenario.known.ended_by
        op = KINDS[kind](text="x" * (BIG if scenario.head_only else 1))
        async with AsyncClient(
            base_url=origin,
            credentials=APP,
            transport=transport,
            timeout=self._patience if scenario.timed else ENOUGH,
            deadline=self._patience if by == "deadline" else 3 * ENOUGH,
            retry=Retry(attempts=2, base=0.001, cap=0.001),
            observers=[seen],
        ) as client:
            if scenario.kept:
                await client.tuned(timeout=ENOUGH, deadline=ENOUGH).send(KINDS[kind](text="the first"))
                seen.attempts.clear()
                stage.warm.set()
                if process is not None and scenario.dies == "idle":
                    await to_thread.run_sync(process.wait)
                if scenario.done:
                    await to_thread.run_sync(stage.rested.wait, ENOUGH)
                await anyio.sleep(A_MOMENT)
            raised = None
            began = time.monotonic()
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    if by == "cancellation":
                        tasks.start_soon(self._cancels, scope, stage)
                    try:
                        await client.send(op)
                    except RbimError as error:
                        raised = error
                    tasks.cancel_scope.cancel()
            took = time.monotonic() - began
        attempts = tuple(seen.attempts)
        first = attempts[0]
        error, outcome = first.error or "", str(first.outcome or "")
        whole = str(getattr(raised, "outcome", "") or "")
        if by == "deadline" and raised is not None:
            error, outcome = type(raised).__name__, whole
        if by == "cancellation" and scope.cancelled_caught:
            error, whole = "the cancellation", outcome
        return _Ended(
            error=error,
            outcome=outcome,
            attempts=attempts,
            whole=whole,
            acted=0,
            paused=took - sum(attempt.elapsed for attempt in attempts),
        )

    async def _cancels(self, scope, stage):
        while not stage.reached.is_set():
            await anyio.sleep(0.002)
        await anyio.sleep(A_MOMENT)
        scope.cancel()

    async def cell(self, scenario):
        ended = {}

        async def one(kind):
            ended[kind] = await self.call(scenario, kind)

        async with anyio.create_task_group() as tasks:
            for kind in ALL:
                tasks.start_soon(one, kind)
        first = ended[ALL[0]]
        again = tuple(kind for kind in ALL if len(ended[kind].attempts) > 1)
        broken = [f"{kind}: {why}" for kind in ALL for why in _dishonest(scenario, kind, ended[kind])]
        broken += [
            f"{kind}: {(each.error, each.outcome)}, {ALL[0]}: {(first.error, first.outcome)}"
            for kind, each in ended.items()
            if (each.error, each.outcome) != (first.error, first.outcome)
        ]
        return Cell(
            scenario=scenario, told=Told(error=first.error, outcome=first.outcome, again=again), broken=tuple(broken)
        )


def _dishonest(scenario, kind, ended):
    """Yield what is false in an outcome, by what the platform did."""
    if ended.acted and ended.whole in {"not sent", "refused"}:
        yield f"the platform acted {ended.acted} times, and the call says {ended.whole}"
    if kind == "never" and ended.acted > 1:
        yield f"the platform acted {ended.acted} times"
    pause = scenario.known.retry_after
    if pause is not None and len(ended.attempts) > 1 and ended.paused < pause:
        yield f"sent again after {ended.paused:.2f} s, and Retry-After was {pause}"


async def run(module, scenarios=None, *, patience=TIME):
    """Return the cells of a transport. What differs from the rule is run again, alone, with more time."""
    scenarios = SCENARIOS if scenarios is None else scenarios
    cells = {}
    some, few, one_by_one = map(anyio.CapacityLimiter, (AT_ONCE, BIG_AT_ONCE, 1))

    async def one(matrix, scenario):
        # a loop has few threads to resolve names in
        async with one_by_one if scenario.resolves else few if scenario.head_only else some:
            cells[scenario.name] = await matrix.cell(scenario)

    with environment({}), resolver():
        async with AsyncExitStack() as stack:
            matrix = Matrix(module, stack, patience)
            async with anyio.create_task_group() as tasks:
                for scenario in scenarios:
                    tasks.start_soon(one, matrix, scenario)
        for times in (5, 25):
            for scenario in scenarios:
                if wrong(cells[scenario.name]):
                    async with AsyncExitStack() as stack:
                        cells[scenario.name] = await Matrix(module, stack, times * patience).cell(scenario)
    return [cells[scenario.name] for scenario in scenarios]


def wrong(cell):
    """Return in words what of a cell breaks the documented rule; empty if nothing does."""
    promised = told(cell.scenario.known)
    if cell.told == promised and not cell.broken:
        return ""
    return f"{cell.scenario.name}: promised {promised}, got {cell.told} {'; '.join(cell.broken)}"


def recorded_rows():
    return [{"phase": each.phase, "fault": each.fault, **asdict(told(each.known))} for each in SCENARIOS]
