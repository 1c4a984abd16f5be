"""What the tests of jobs share: a platform for them, a sender that is no client, and readings of the journal."""

import sqlite3
from collections import Counter, deque
from contextlib import asynccontextmanager, closing

from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, settings, strategies as st

from rbim import AsyncClient, Dialect, GroupType, InviteJoinGroup, Retry
from rbim.bulk.job import InviteJob
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults.requests import Fault
from rbim.operations.groups import Invited

NO_PAUSES = Retry(attempts=3, random=lambda: 0.0)
WAITING, DONE, REFUSED, FAILED, UNKNOWN, AGAIN = 0, 1, 2, 3, 4, 6


class World:
    """An emulator on emulated time, a client of it, and groups."""

    def __init__(self, *, dialect=None, seed=0, start=None, **options):
        self.clock = EmulatedClock(auto=True) if start is None else EmulatedClock(start, auto=True)
        self.emulator = Emulator(clock=self.clock, dialect=dialect, seed=seed)
        self.client = AsyncClient(
            base_url="https://im.example",
            credentials=self.emulator.credentials,
            transport=self.emulator,
            clock=self.clock,
            dialect=dialect or Dialect(),
            **options,
        )

    async def group(self):
        group = (await self.client.groups.create(name="g", type=GroupType.VIP)).group_id
        self.emulator.requests.clear()
        return group

    def members(self, group):
        found = self.emulator.state.groups.get(group)
        return set() if found is None else set(found.members) - {"admin"}

    def sent(self, kind=InviteJoinGroup):
        return [record for record in self.emulator.requests if isinstance(record.operation, kind)]

    def plan(self, *effects, **how):
        self.emulator.faults.add(*[Fault(effect=each, **{"operation": InviteJoinGroup} | how) for each in effects])


@asynccontextmanager
async def world(groups=1, **options):
    made = World(**options)
    async with made.client:
        made.groups = [await made.group() for _ in range(groups)]
        yield made


def read(path, statement, values=()):
    """Read the journal with a connection that is none of ours."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement, values).fetchall()


def states(path):
    """Read the state of each account."""
    rows = read(path, "SELECT party.name, account, state FROM account JOIN party ON party.id = party")
    assert len({row[:2] for row in rows}) == len(rows)
    return {row[:2]: row[2] for row in rows}


def count(path):
    return Counter(states(path).values())


def reasons(path):
    return dict(read(path, "SELECT account, reason FROM accounts"))


def begun(path):
    """Read every sending: group, who acts, accounts (of a job that sent each lane in one go), outcome."""
    sendings = {}
    for number, group, user, outcome, account in read(
        path,
        """SELECT request.id, party.name, lane.user_name, request.outcome, account.account
        FROM request JOIN lane ON lane.id = request.lane JOIN party ON party.id = lane.party
        JOIN account ON account.lane = request.lane AND account.seq BETWEEN request.first AND request.last
        WHERE request.begun IS NOT NULL ORDER BY request.id, account.seq""",
    ):
        sendings.setdefault((number, group, user or None, outcome), []).append(account)
    return [(group, user, tuple(accounts), outcome) for (_, group, user, outcome), accounts in sendings.items()]


def whole(report):
    """Check that the counts of a report add up, and return them."""
    a = report.accounts
    assert a.total == a.done + a.refused + a.failed + a.unknown + a.skipped + a.duplicate
    return a


class Sending:
    """A sender that is no client: does what ``act`` says of each operation, and keeps count."""

    def __init__(self, act=None, *, clock=None, seconds=0.0):
        self.clock = clock or EmulatedClock(auto=True)
        self.seconds = seconds
        self.act = act or (lambda _: None)
        self.operations = []
        self.times = []
        self.in_flight = self.most = 0

    async def send(self, op, /):
        self.operations.append(op)
        self.times.append(self.clock.elapsed)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await (self.clock.sleep(self.seconds) if self.seconds else checkpoint())
            answer = self.act(op)
            if hasattr(answer, "__await__"):
                answer = await answer
        finally:
            self.in_flight -= 1
        if isinstance(answer, BaseException):
            raise answer
        return Invited() if answer is None else answer

    def job(self, journal, **options):
        return InviteJob(self, **{"journal": journal, "clock": self.clock, "adaptive": False, "retry": NO_PAUSES} | options)

    @property
    def groups(self):
        return [op.group_id for op in self.operations]

    @property
    def members(self):
        return [op.members for op in self.operations]


def rows_of(groups, accounts):
    return [(f"g{group}", f"a{account}") for account in range(accounts) for group in range(groups)]


def script(*steps):
    """Return what does these steps in turn, and then nothing out of the ordinary."""
    left = deque(steps)
    return lambda _: left.popleft() if left else None


ACCOUNTS = st.integers(0, 11).map(lambda number: f"a{number}")
LONG = settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
SHORT = settings(LONG, max_examples=20)
