"""A client that calls at a steady rate through each transport in turn, and is closed and made anew with calls in flight.

The account: an invitation that was answered has its effect, and one that was refused, or was not sent, has none.
"""

import asyncio
import random
from contextlib import aclosing, suppress
from itertools import count, cycle
from typing import Any

from attrs import define, field

from rbim import AsyncClient, GroupType, Outcome, RbimError
from rbim.emulator import Emulator
from rbim.emulator.faults import CutShort, Fault, InvalidJson, Latency, ResetAfter, ResetBefore, SlowBody, Status, Throttle
from rbim.emulator.server import serve
from rbim.transports.auto import transport_named

from .driver import after, platform_of, started

BOUNDS = {}
TRANSPORTS = ("auto", "asyncio", "httpx", "httpx2", "aiohttp")
INVITED = 30  # calls of a group that invite
TIMEOUT, DEADLINE = 1.5, 4.0
KEPT = 2_000  # records of the emulator


def faults(rate):
    return [
        Fault(effect=Latency(0.01, 0.7)),
        Fault(effect=Latency(20.0), probability=0.004),  # stalls
        Fault(effect=SlowBody(0.3), probability=0.01),
        Fault(effect=Status(503, 1.0), probability=0.01),
        Fault(effect=Throttle(int(2 * rate), 1.0)),
        Fault(effect=ResetBefore(), probability=0.01),
        Fault(effect=ResetAfter(), probability=0.01),
        Fault(effect=CutShort(), probability=0.01),
        Fault(effect=InvalidJson(), probability=0.01),
    ]


@define
class _Group:
    """A group and what became of the accounts that were invited to it; ``open`` counts calls that have not ended."""

    group_id: str
    fates: dict[str, str] = field(factory=dict)
    open: int = 0
    full: bool = False


@define
class _Caller:
    """Makes the calls of one client."""

    client: AsyncClient
    probe: object
    old: list[str]
    numbers: Any
    group: _Group | None = None
    making: bool = False

    async def call(self):
        self.probe.work()
        counts = self.probe.counts
        try:
            await self._next()
        except RbimError as error:
            counts[f"{type(error).__name__} ({error.outcome.name.lower()})"] += 1
        except asyncio.CancelledError:
            counts["cancelled"] += 1
        else:
            counts["answers"] += 1

    async def _next(self):
        groups, group = self.client.groups, self.group
        if group is None:
            if self.making:
                await groups.search(name="soak")
            else:
                await self._make()
        elif len(group.fates) < INVITED:
            await self._invite(group)
        else:
            self.group, group.full = None, True
            self._close(group)
            await groups.detail(group_id=group.group_id)
            if len(self.old) > 5:
                await groups.delete(group_id=self.old.pop(0))

    async def _make(self):
        self.making = True
        try:
            made = await self.client.groups.create(name="soak", type=GroupType.VIP)
        finally:
            self.making = False
        self.group = _Group(made.group_id)

    async def _invite(self, group):
        account = f"u{next(self.numbers)}"
        group.fates[account] = "maybe"
        group.open += 1
        try:
            answer = await self.client.groups.invite(group_id=group.group_id, members=[account])
        except RbimError as error:
            group.fates[account] = "maybe" if error.outcome is Outcome.UNKNOWN else "never"
            raise
        else:
            group.fates[account] = "done" if account in answer.invited else "never" if account in answer.refused else "maybe"
        finally:
            group.open -= 1
            self._close(group)

    def _close(self, group):
        """Report a group of which no call is open; the client deletes it much later."""
        if group.full and not group.open:
            self.old.append(group.group_id)
            self.probe.say(group=[group.group_id, group.fates])


async def subject(probe):
    """Call until the end; a client lives for ``life`` seconds, and is closed with calls in flight."""
    old = []
    numbers, draw = count(), random.Random(1)
    calls = set()
    probe.in_flight = lambda: len(calls)
    for name in TRANSPORTS:  # their libraries are not what grows
        async with AsyncClient.from_env(transport=transport_named(name)) as client:
            await client.warm_up()
            with suppress(RbimError):
                await client.groups.search(name="soak")
    async with probe.running(), aclosing(probe.lives(cycle(TRANSPORTS))) as lives:
        async for name in lives:
            client = AsyncClient.from_env(transport=transport_named(name), timeout=TIMEOUT, deadline=DEADLINE)
            async with client:
                caller = _Caller(client, probe, old, numbers)
                async with aclosing(probe.ticks(probe.plan.life)) as ticks:
                    async for _ in ticks:
                        task = asyncio.create_task(caller.call())
                        calls.add(task)
                        task.add_done_callback(calls.discard)
                        if draw.random() < 0.02:
                            asyncio.get_running_loop().call_later(draw.random() * 0.05, task.cancel)
            if calls:
                await asyncio.wait(calls)
            if caller.group is not None:
                caller.group.full = True
                caller._close(caller.group)


async def drive(plan, seconds, account):
    emulator = Emulator(seed=1)
    emulator.requests.limit = KEPT
    emulator.faults.add(*faults(plan.rate))

    def checked(group):
        name, fates = group
        members = emulator.state.groups[name].members
        account.counts["invitations checked"] += len(fates)
        for each, fate in fates.items():
            account.require(fate != "done" or each in members, f"{each} was invited, and is no member")
            account.require(fate != "never" or each not in members, f"{each} was refused or not sent, and is a member")
        account.require(len(members) <= len(fates) + 1, f"{name} has more members than were invited")

    async with (
        serve(emulator) as server,
        started("client", plan, {"group": checked}, platform_of(emulator, server)) as subject,
    ):
        outages = asyncio.create_task(after(plan.life * 1.3, lambda: server.refuse(0.5)))
        try:
            await subject.at_work(seconds)
        finally:
            outages.cancel()
        await subject.stop()
    counts = subject.end or {}
    ends = sum(number for name, number in counts.items() if name not in {"requests", "reloads"})
    account.require(counts.get("answers"), "no call was answered")
    account.require(counts.get("requests") == ends, f"{counts.get('requests')} calls were made, and {ends} ended")
    account.require(account.counts["invitations checked"], "no invitation was checked")
    return subject
