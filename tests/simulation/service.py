"""A service: many callers share one client, and more of them come than the platform can serve.

The calls come steadily and in bursts; callers give up by a deadline, by ``asyncio.timeout`` or because they are cancelled,
and some never do. Most runs meet a storm, after which the network is fair again while the load stays; some meet one special
situation, in which all else is well. ``service_checks`` has what must hold.
"""

import asyncio
import contextvars
import math
from collections import deque
from pathlib import Path
from types import MappingProxyType

from attrs import define, field

from rbim import AsyncClient, CreateGroup, GroupType, InviteJoinGroup, JoinGroup, Limits, QueryGroupDetail, Rate
from rbim.bulk import InviteJob, open_job
from rbim.emulator import Emulator
from rbim.emulator.faults import Fault, Throttle
from rbim.errors import RbimError

from . import service_checks as checks
from .disk import real_connect
from .network import ALL_TROUBLES, Network, Sending, Weather
from .scenarios import CREDENTIALS, Scenario
from .virtual_time import TIME

SITUATIONS = ("steady-overload", "cancelled-callers", "slow-rate", "hot-group", "full-places", "blocked-loop", "job-beside")
"""Situations of their own: more is asked than can be done, by callers with a deadline; the same by callers that are
cancelled; a burst of calls of a slow rate, or to one group, among calls of others; a platform that stalls while few requests
may be in flight; an event loop that is blocked; a job that runs on the same client, and is interrupted.
"""

INSTEAD = MappingProxyType(
    {"cancelled-callers": "impatient-callers", "hot-group": "throttled-group", "blocked-loop": "throttled-client"}
)
"""Situations that take the place of others in every other run: all callers give up after about the same time, long before
their deadline; the platform throttles one group, to which a burst of calls goes, and no other; it throttles everything for
some seconds, and then takes twice what comes.
"""

PATIENT = 600.0
"""Seconds of the deadline of a caller who never gives up."""

BEGIN = 0.1
"""Seconds after which the first call may come."""

BURST = 2.0
"""Seconds after which a burst comes in a special situation."""

IN_DOUBT = """SELECT account FROM result WHERE state = 4
    OR (sender_group, chunk) IN (SELECT sender_group, chunk FROM request WHERE outcome = 0)"""
"""What a job that was interrupted does not know: the accounts that are unknown, and those of open requests."""

current_call = contextvars.ContextVar("current_call", default=None)


@define(kw_only=True, eq=False)
class Call:
    """One call: who asks for what and how long they wait; then what left for it, and how it ended.

    A ``way`` to give up is ``deadline`` (of a view), ``client`` (the client's deadline), ``timeout`` (``asyncio.timeout``),
    ``cancel``, ``aimed`` (cancelled when the next request of anybody ends, or when patience does) or ``never``.
    """

    number: int
    at: float
    kind: str  # create, invite, confirm (an invitation that the invitee has to confirm), join or detail
    group: str | None
    way: str
    patience: float
    caller: int
    exchanges: bool
    began: float = math.inf
    latest: float = math.inf
    """The time of the deadline that rbim was given."""
    ended: float = math.inf
    end: str = "running"  # then answered, gave up, cancelled, or the name of an error
    error: RbimError | None = None
    attempts: int | None = None  # as an exchange tells
    handed: int = 0
    """Requests that the transport was given, those among them for which there was no connection."""
    sendings: list[Sending] = field(factory=list)

    @property
    def gives_up(self):
        """The time after which an answer is of no use."""
        return min(self.latest, self.began + self.patience)

    @property
    def name(self):
        """The account or the group that the call is about."""
        return f"x{self.number}"

    def __str__(self):
        sent = "; ".join(map(str, self.sendings)) or "nothing left"
        outcome = f", {self.error.outcome}" if self.error is not None else ""
        return (
            f"{self.name} ({self.kind}, {self.way} {self.patience:.3f} s) began at {self.began:.3f} s, ended at"
            f" {self.ended:.3f} s: {self.end}{outcome}; {sent}"
        )


@define(kw_only=True)
class ServiceSizes:
    """Numbers and choices of one run."""

    situation: str  # "storm", or one of SITUATIONS
    callers: int
    calls: int
    groups: int
    concurrency: int
    rates: tuple[Rate, ...]
    overload: float  # what is asked in a second, in parts of what can be done
    bursts: int  # calls that come at once; 0: each comes for itself
    hot: float  # share of the calls that are for one group
    giving_up: float  # share of the callers who time out or are cancelled
    deadline: float
    timeout: float
    observed: bool
    leaving: bool
    throttle: int | None  # requests per second that the platform takes
    retry_after: int | None
    span: float = 0.0  # seconds in which calls come
    fair_from: float = 0.0


class ServiceScenario(Scenario):
    """See the module."""

    TROUBLES = (
        "task-order",
        "overload",
        "bursts",
        "giving-up",
        "several-rates",
        "leaving",
        "throttling",
        *ALL_TROUBLES,
        *SITUATIONS,
        *INSTEAD.values(),
    )
    SHRINKS = MappingProxyType({"callers": 1, "calls": 1, "groups": 1, "concurrency": 1})

    def __init__(self, world, settings):
        self.weather = Weather()
        super().__init__(world, settings)
        self.emulator = Emulator(credentials=CREDENTIALS, seed=world.seed)
        self.network = Network(world, self.emulator, self.weather, leaves=self._leaves, answers=self._answers)
        self.calls = []
        self.probes = []
        self.tasks = []
        self.process = world.process("service")
        self.observer = checks.Counting()
        self.groups = []
        self.left_at = math.inf
        self.blocked = 0.0
        self.report = None
        self.unknown = set()  # accounts of the job, as its journal says
        self._aimed = deque()
        self._leave = world.loop.create_future()

    # What is drawn.

    def draw(self):
        world = self.world
        draw = world.stream("sizes")
        situation = draw.choice(SITUATIONS) if draw.random() < 0.4 else "storm"
        if situation in INSTEAD and world.stream("instead").random() < 0.5:
            situation = INSTEAD[situation]
        several = draw.choice([0, 0, 1])
        rates = (Rate(draw.choice([20, 100]), burst=draw.choice([1, 10])),) if draw.random() < 0.7 else ()
        more = (
            Rate(draw.choice([2, 5]), operations=(CreateGroup,)),
            Rate(draw.choice([2, 10]), burst=draw.choice([1, 3]), each_group=True),
        )
        sizes = ServiceSizes(
            situation=situation,
            callers=draw.choice([50, 150, 500]),
            calls=draw.choice([300, 1000, 3000]),
            groups=draw.choice([3, 20]),
            concurrency=draw.choice([2, 5, 20, 100]),
            rates=rates,
            overload=draw.choice([0.3, 0.6, 0.6, 0.8, 2.0, 10.0]),
            bursts=draw.choice([0, 0, 10, 40]),
            hot=draw.choice([0.0, 0.0, 0.5]),
            giving_up=draw.choice([0.0, 0.0, 0.2, 0.7]),
            deadline=draw.choice([2.0, 5.0, 10.0]),
            timeout=draw.choice([1.0, 5.0]),
            observed=draw.random() < 0.5,
            leaving=draw.random() < 0.25,
            throttle=draw.choice([None, None, 5, 30]),
            retry_after=draw.choice([None, 1, 2]),
        )
        if situation != "storm" and world.is_on(situation):
            world.happened[situation] += 1
            self._draw_situation(sizes, draw)
            return sizes
        sizes.situation = "storm"
        if several and self._on("several-rates"):
            sizes.rates += more
        if sizes.overload > 1 and not self._on("overload"):
            sizes.overload = 0.8
        if sizes.bursts and not self._on("bursts"):
            sizes.bursts = 0
        if sizes.giving_up and not self._on("giving-up"):
            sizes.giving_up = 0.0
        sizes.leaving = sizes.leaving and self._on("leaving")
        if sizes.throttle is not None and not self._on("throttling"):
            sizes.throttle = None
        # the length of a run follows from what can be done; it must leave time for trouble, and for what comes after it
        self.weather = Weather.drawn(world, 1.0, longest=0.2)
        if sizes.overload > 1 and self._capacity(sizes) > 20:
            sizes.rates = (Rate(20, burst=sizes.concurrency), *sizes.rates[1:])
        sizes.span = min(200.0, max(40.0, sizes.calls / (self._capacity(sizes) * sizes.overload)))
        sizes.calls = int(sizes.span * self._capacity(sizes) * sizes.overload) + 1
        sizes.fair_from = sizes.span * 0.5
        self._stretch(sizes.fair_from)
        return sizes

    def _on(self, trouble):
        """Let trouble happen that a size makes, unless it is switched off."""
        on = self.world.is_on(trouble)
        if on:
            self.world.happened[trouble] += 1
        return on

    def _stretch(self, fair_from):
        """Let trouble be as late as the sizes say; weather is drawn for one second."""
        weather = self.weather
        weather.fair_from, weather.late_by = fair_from, 5.0
        weather.partitions = [(begin * fair_from, end * fair_from, what) for begin, end, what in weather.partitions]
        weather.stalls = [(begin * fair_from, min(fair_from, begin * fair_from + 8.0)) for begin, _ in weather.stalls]

    def _capacity(self, sizes):
        """Return the requests per second that rates, concurrency and latency allow."""
        seconds = self.weather.latency * math.exp(self.weather.spread**2 / 2)
        common = [rate.limit for rate in sizes.rates if not rate.each_group and not rate.operations]
        return min([*common, sizes.concurrency / seconds, 60.0])

    def _draw_situation(self, sizes, draw):
        """Let all be well but for the situation."""
        self.weather = Weather(latency=draw.choice([0.02, 0.1]), spread=draw.choice([0.0, 0.2]))
        sizes.throttle, sizes.leaving, sizes.bursts, sizes.giving_up, sizes.hot = None, False, 0, 0.0, 0.0
        sizes.fair_from, sizes.timeout, sizes.concurrency = 0.0, 10.0, 100
        sizes.span, sizes.overload = 30.0, 0.5
        if sizes.situation == "steady-overload":
            sizes.rates, sizes.concurrency = draw.choice([((Rate(20),), 100), ((), 2), ((Rate(20),), 4)])
            sizes.overload, self.weather.latency = draw.choice([1.5, 3.0, 10.0]), 0.1
        elif sizes.situation in {"cancelled-callers", "impatient-callers"}:
            sizes.rates, sizes.overload, sizes.giving_up, sizes.deadline = (Rate(10),), 1.6, 1.0, 30.0
            if sizes.situation == "impatient-callers":  # who has waited for as long as all do has no time left for an answer
                self.weather.latency = 0.3
        elif sizes.situation == "slow-rate":
            sizes.rates, sizes.deadline = (Rate(50), Rate(draw.choice([2, 10]), operations=(CreateGroup,))), 5.0
        elif sizes.situation == "hot-group":
            sizes.rates, sizes.deadline, sizes.groups = (Rate(50), Rate(1, each_group=True)), 12.0, 60
        elif sizes.situation == "throttled-group":
            sizes.rates, sizes.deadline, sizes.groups, sizes.throttle, sizes.retry_after = (Rate(50),), 12.0, 60, 1, 2
        elif sizes.situation == "throttled-client":
            sizes.rates, sizes.deadline, sizes.throttle, sizes.retry_after = (), 5.0, 0, draw.choice([None, 1, 2])
            sizes.overload = 20 / self._capacity(sizes)
        elif sizes.situation == "full-places":
            sizes.rates, sizes.concurrency, sizes.overload, sizes.deadline = (Rate(50),), 10, 0.8, 10.0
            begin = 3 + draw.random() * 20
            self.weather.stalls.append((begin, begin + 4))
        elif sizes.situation == "blocked-loop":
            sizes.rates, sizes.overload, sizes.deadline = (Rate(50),), 0.8, 10.0
        else:
            sizes.rates, sizes.overload, sizes.deadline = (Rate(10),), 0.2, 10.0
        sizes.calls = int(sizes.span * self._capacity(sizes) * sizes.overload)

    @property
    def served(self):
        return len(self.network.sendings)

    # The calls.

    def _draw_calls(self):
        sizes, draw = self.sizes, self.world.stream("calls")
        while len(self.calls) < sizes.calls:
            at = BEGIN + draw.random() * sizes.span
            for _ in range(1 + draw.randrange(sizes.bursts + 1)):
                self._add_call(draw, at)
        if sizes.situation == "slow-rate":
            self._mix_in(draw, "create", count=100, waits=sizes.span)
        elif sizes.situation in {"hot-group", "throttled-group"}:
            self._mix_in(draw, "detail", count=draw.choice([10, 30]), waits=sizes.span)
        elif sizes.situation == "blocked-loop":
            self._mix_in(draw, "detail", count=150, waits=sizes.span)
        if sizes.situation in {"slow-rate", "hot-group", "throttled-group"}:  # neighbours come evenly, each to another group
            for number, call in enumerate(each for each in self.calls if each.way != "never"):
                call.kind, call.at, call.way, call.patience = "detail", BEGIN + number * 0.1, "deadline", sizes.deadline
                call.group = self.groups[1 + number % (len(self.groups) - 1)]
            self.calls = [each for each in self.calls if each.at < sizes.span]

    def _add_call(self, draw, at):
        sizes = self.sizes
        kind = draw.choice(["create", "invite", "invite", "confirm", "join", "detail", "detail"])
        hot = draw.random() < sizes.hot
        group = self.groups[0] if hot else draw.choice(self.groups)
        gives_up, way, patience = draw.random() < sizes.giving_up, draw.choice(["timeout", "cancel", "aimed"]), draw.random()
        if not gives_up:
            way = draw.choice(["deadline"] * 5 + ["client", "client", "never"])
        if sizes.situation == "cancelled-callers":  # all alike, each would be served just before it gives up
            patience = 0.5 + 3.5 * patience
        elif sizes.situation == "impatient-callers":
            patience = 2.0 + 0.1 * patience
        elif gives_up:
            patience *= sizes.deadline
        elif way == "never":
            patience = PATIENT if sizes.situation == "storm" else sizes.deadline
        else:
            patience = sizes.deadline * (1 if way == "client" else 0.5 + patience / 2)
        if sizes.situation != "storm" and way == "never":
            way = "client"
        call = Call(
            number=len(self.calls) + 1,
            at=at,
            kind=kind,
            group=None if kind == "create" else group,
            way=way,
            patience=patience,
            caller=draw.randrange(sizes.callers),
            exchanges=draw.random() < 0.3,
        )
        self.calls.append(call)

    def _mix_in(self, draw, kind, *, count, waits):
        """Add a burst of calls that wait long, among which the others must not."""
        for _ in range(count):
            self._add_call(draw, BURST)
            call = self.calls[-1]
            call.kind, call.group, call.way, call.patience = kind, self.groups[0], "never", waits
            if kind == "create":
                call.group = None

    def _begin(self, call):
        task = self.process.spawn(self._ask(call))
        self.tasks.append(task)
        if call.way in {"cancel", "aimed"}:
            self.world.at(TIME.now + call.patience, self._cancel, call, task)
        if call.way == "aimed":
            self.world.at(TIME.now + call.patience / 2, self._aimed.append, (call, task))

    def _cancel(self, call, task):
        if not task.done() and not task.cancelling():
            call.patience = TIME.now - call.began
            task.cancel()

    def request_ended(self):
        """Cancel one of those who are to be cancelled now, a moment before its place becomes free or just after."""
        while self._aimed:
            call, task = self._aimed.popleft()
            if not task.done():
                if self.world.stream("aimed").random() < 0.5:
                    self._cancel(call, task)
                else:
                    self.world.at(TIME.now, self._cancel, call, task)
                return

    async def _ask(self, call):
        """Make one call as its caller, and write down how it ended."""
        world, sizes = self.world, self.sizes
        current_call.set(call)
        view = self.client.acting_as(f"user{call.caller}")
        if call.way in {"deadline", "never"}:
            view = view.tuned(deadline=call.patience)
        call.began = TIME.now
        call.latest = TIME.now + (call.patience if call.way in {"deadline", "never"} else sizes.deadline)
        try:
            async with asyncio.timeout(call.patience if call.way == "timeout" else None):
                if call.exchanges:
                    call.attempts = len((await view.exchange(self._operation(call))).attempts)
                else:
                    await view.send(self._operation(call))
            call.end = "answered"
        except RbimError as error:
            call.end, call.error = type(error).__name__, error
        except TimeoutError:
            call.end = "gave up"
        except asyncio.CancelledError:
            call.end = "cancelled"
        except Exception as error:
            call.end = type(error).__name__
            world.fail("only rbim's errors come out of a call", f"{call.name}: {error!r}")
        call.ended = TIME.now
        world.note("caller", f"{call.name} ({call.kind}) ends: {call.end}")
        checks.check_end(self, call)

    @staticmethod
    def _operation(call):
        if call.kind == "create":
            return CreateGroup(name=call.name, type=GroupType.VIP)
        assert call.group is not None
        if call.kind == "detail":
            return QueryGroupDetail(group_id=call.group)
        if call.kind == "join":
            return JoinGroup(group_id=call.group, user_name=call.name)
        confirm = call.kind == "confirm"
        return InviteJoinGroup(group_id=call.group, members=(call.name,), needs_confirmation=confirm)

    # What leaves, and what comes back.

    def transport(self):
        return Transport(self)

    def _leaves(self, sending):
        call = current_call.get()
        sending.facts["call"] = call
        if call is not None:
            call.sendings.append(sending)
        checks.check_concurrency(self, sending)

    def _answers(self, sending, response):
        asked = {name.lower(): value for name, value in response.headers.items()}.get("retry-after")
        if asked is not None:
            sending.facts["retry after"] = float(asked)
        return response

    # The service.

    async def main(self):
        sizes, world = self.sizes, self.world
        setup = Network(world, self.emulator, Weather())
        transport = setup.transport()
        async with AsyncClient(base_url="http://emulator", credentials=CREDENTIALS, transport=transport) as client:
            created = [await client.groups.create(name="g", type=GroupType.VIP) for _ in range(sizes.groups)]
        self.groups = [each.group_id for each in created]
        if sizes.throttle is not None:
            effect = Throttle(sizes.throttle, retry_after=sizes.retry_after)
            if sizes.situation == "throttled-client":
                self.emulator.faults.add(Fault(effect=effect))
                world.at(checks.STORM, self._take_more)
            elif sizes.situation == "throttled-group":
                self.emulator.faults.add(Fault(effect=effect, match={"group_id": self.groups[0]}))
            else:
                self.emulator.faults.add(Fault(effect=effect))
                world.at(sizes.fair_from, self.emulator.faults.clear)
        self._draw_calls()
        if sizes.situation == "blocked-loop":
            self.blocked = 2.0
            world.at(BURST + 0.5, TIME.sleep, self.blocked)
        if sizes.leaving:
            world.at(BEGIN + sizes.span * (0.2 + 0.7 * world.stream("leaving").random()), self._leave.set_result, None)
        await self.process.spawn(self._serve())
        await asyncio.sleep(sizes.span - TIME.now + BEGIN if sizes.leaving else 0)
        await asyncio.wait(self.tasks)
        checks.check_left(self)
        await asyncio.sleep(sizes.timeout + self.weather.late_by + 1)  # what is late arrives
        checks.check_all(self)

    def _take_more(self):
        self.emulator.faults.clear()
        self.emulator.faults.add(Fault(effect=Throttle(40, retry_after=self.sizes.retry_after)))

    async def _serve(self):
        sizes, world = self.sizes, self.world
        observers = [self.observer] if sizes.observed else []
        self.client = AsyncClient(
            base_url="http://emulator",
            credentials=CREDENTIALS,
            transport=self.transport(),
            timeout=sizes.timeout,
            deadline=sizes.deadline,
            limits=Limits(concurrency=sizes.concurrency, rates=sizes.rates),
            observers=observers,
        )
        async with self.client:
            for call in self.calls:
                world.at(call.at, self._begin, call)
            if sizes.situation == "job-beside":
                await self._run_job()
            if sizes.leaving:
                await self._leave
                world.note("service", "leaves its client")
            else:
                await asyncio.sleep(sizes.span - TIME.now + 2 * BEGIN)
                await asyncio.wait(self.tasks)
                await self._probe()
            self.left_at = TIME.now
        checks.check_leaving(self)

    async def _probe(self):
        """Call when nothing else goes on any more: with all places at once where there is no rate."""
        await asyncio.sleep(5)
        count = 1 if self.sizes.rates or self.sizes.situation == "throttled-client" else self.sizes.concurrency
        for number in range(count):
            probe = Call(
                number=10_000 + number,
                at=TIME.now,
                kind="detail",
                group=self.groups[-1],
                way="deadline",
                patience=30.0,
                caller=0,
                exchanges=False,
            )
            self.probes.append(probe)
            self._begin(probe)
        await asyncio.wait(self.tasks[-count:])

    async def _run_job(self):
        """Run a job on the client of the callers, and interrupt it."""
        path = Path(self.world.folder, "job")
        group = self.groups[0]
        rows = [(group, f"u{number}") for number in range(1000)]
        job = InviteJob(self.client, chunk=5, needs_confirmation=True, journal=path, concurrency=20)
        async with job.run(rows, "auto") as run:
            await asyncio.sleep(10)
            run.interrupt()
        self.report = await open_job(self.client, path).report()
        journal = real_connect(path)
        self.unknown = {account for (account,) in journal.execute(IN_DOUBT)}
        journal.close()


class Transport:
    """The network's transport, which counts what a call hands over."""

    def __init__(self, service):
        self._service = service
        self._inner = service.network.transport()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    async def send(self, request, /, *, timeout):
        call = current_call.get()
        if call is not None:
            call.handed += 1
        self._service.world.check("an attempt is given time", timeout > 0, lambda: f"{timeout} s: {call}")
        try:
            return await self._inner.send(request, timeout=timeout)
        finally:
            self._service.request_ended()
