"""The emulator as a server: clients, control commands, message copies to a receiver that fails, outages and bad connections.

The server ends and begins again in the same process, at the same port. The account: a group has exactly the members that
were invited, and each message that was said comes to the receiver of copies.
"""

import asyncio
import json
import random
from contextlib import aclosing, suppress
from itertools import count, repeat
from time import monotonic
from typing import Any

from attrs import define, field

from rbim import AsyncClient, Credentials, GroupType, Outcome, Permission, RbimError, Role
from rbim.emulator import Emulator
from rbim.emulator.server import serve

from .driver import Account, after, started
from .raw import closed, exchange

BOUNDS = {}
KEPT = 200  # requests and deliveries in the logs; `rbim emulator` keeps 100,000
INVITE = "InviteJoinGroup"  # what loses answers is for this one: a lost answer to CreateGroup leaves a group that stays
JSON = {"Content-Type": "application/json"}
PLANS = (
    [],
    [
        {"effect": {"kind": "latency", "seconds": 0.01, "sigma": 0.7}},
        {"effect": {"kind": "latency", "seconds": 20.0}, "operation": INVITE, "probability": 0.007},
        {"effect": {"kind": "slow_body", "seconds": 0.3}, "probability": 0.01},
        {"effect": {"kind": "status", "status": 503}, "probability": 0.01},
        {"effect": {"kind": "reset_before"}, "probability": 0.01},
        {"effect": {"kind": "reset_after"}, "operation": INVITE, "probability": 0.015},
        {"effect": {"kind": "cut_short"}, "operation": INVITE, "probability": 0.015},
        {"effect": {"kind": "duplicate_fields"}, "operation": INVITE, "probability": 0.01},
    ],
    [
        {"effect": {"kind": "throttle", "per_second": 200}},
        {"effect": {"kind": "invalid_json"}, "operation": INVITE, "probability": 0.015},
    ],
)
MEMBERS = 12  # of a group
COPIES = 0.2  # messages for each request
DRAINED = 30.0  # seconds for the last messages


class _Counted:
    """The emulator's application, which counts what it answers."""

    def __init__(self, app, probe):
        self._app, self._probe = app, probe

    def __getattr__(self, name):
        return getattr(self._app, name)

    async def __call__(self, scope, receive, send):
        self._probe.work()
        await self._app(scope, receive, send)


async def subject(probe):
    """Serve until the end; a server lives for ``life`` seconds."""
    emulator = Emulator(seed=4)
    emulator.requests.limit = emulator.deliveries.limit = KEPT
    emulator.asgi = _Counted(emulator.asgi, probe)
    port = control = 0
    async with probe.running(), aclosing(probe.lives(repeat(None))) as lives:
        async for _ in lives:
            async with serve(emulator, port=port, control_port=control) as server:
                if not port:
                    port, control = server.port, int((server.control_url or "").split(":")[2].split("/")[0])
                    credentials = emulator.credentials
                    probe.say(begun=[port, control, credentials.app_id, credentials.app_token.reveal()])
                with suppress(TimeoutError):
                    await asyncio.wait_for(probe.stopping.wait(), probe.plan.life)


@define
class _Copies:
    """A receiver of copies, by hand: it fails in every way, and remembers the messages that came."""

    account: Account
    came: set[str | None] = field(factory=set)
    draw: random.Random = field(factory=lambda: random.Random(5))

    async def take(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                self.came.add(json.loads(await reader.readexactly(length)).get("body"))
                kind = self.draw.choices(["200", "500", "reset", "stall", "half"], weights=[90, 4, 3, 1, 2])[0]
                self.account.counts[f"copies ({kind})"] += 1
                if kind == "stall":
                    await asyncio.sleep(6.0)
                if kind in {"reset", "stall"}:
                    writer.transport.abort()
                    return
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n" % (500 if kind == "500" else 200))
                if kind == "half":
                    return
                writer.write(b"\r\n")
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):  # cancelled: the end of the run
            pass
        finally:
            writer.close()


@define
class _Load:
    """What clients, people and others do to the emulator."""

    port: int
    control: int
    credentials: Credentials
    account: Account
    said: list[str] = field(factory=list)
    numbers: Any = field(factory=count)
    tasks: set[asyncio.Task[None]] = field(factory=set)
    draw: random.Random = field(factory=lambda: random.Random(6))
    stopping: bool = False

    async def command(self, method, path, document=None):
        """Send a command to the control port, which stays open in an outage."""
        body = b"" if document is None else json.dumps(document).encode()
        status = await exchange(self.control, JSON, body, method=method, path=f"/_emulator/{path}")
        self.account.counts[f"commands ({status or 'no answer'})"] += 1
        return status

    async def say(self):
        text = f"m{next(self.numbers)}"
        if await self.command("POST", "say", {"sender": "1001", "to": f"2{self.draw.randrange(20)}", "text": text}) == 200:
            self.said.append(text)

    async def plan(self):
        """Replace the faults, clear or read a log, begin an outage or end it."""
        await self.command("PUT", "faults", self.draw.choice(PLANS))
        await self.command("GET", self.draw.choice(["state", "requests", "deliveries", "clock"]))
        await self.command("DELETE", self.draw.choice(["requests", "deliveries", "outage"]))
        if self.draw.random() < 0.3:
            await self.command("POST", "outage", {"seconds": 0.5})

    async def attack(self):
        kind = self.draw.choice(["half", "reset", "junk", "idle", "host", "large", "unsigned"])
        if kind in {"half", "reset", "junk", "idle"}:
            await closed(self.port, kind, JSON, bytes(2000), path="/2013-12-26/Application/x/IM/Group/CreateGroup")
            return
        headers = {"Origin": "http://elsewhere.example"} if kind == "host" else {}
        body = bytes(3_000_000) if kind == "large" else b"{}"
        path = "/2013-12-26/Application/x/IM/Group/CreateGroup" if kind == "unsigned" else "/_emulator/state"
        status = await exchange(self.port, {**JSON, **headers}, body, method="POST" if kind != "host" else "PUT", path=path)
        self.account.counts[f"bad requests ({status or 'no answer'})"] += 1

    async def group(self, client):
        """Make a group, invite, look, and delete it; compare its members with what was answered."""
        invited, maybe, groups = {"admin"}, set[str](), client.groups
        group = (await groups.create(name="soak", type=GroupType.VIP)).group_id
        try:
            for _ in range(MEMBERS):
                account = f"u{next(self.numbers)}"
                try:
                    await groups.invite(group_id=group, members=[account])
                    invited.add(account)
                except RbimError as error:
                    if error.outcome is Outcome.UNKNOWN:
                        maybe.add(account)
            found = await groups.detail(group_id=group)
            self.account.counts["groups checked"] += 1
            number = int(found.count or 0)
            told = f"{len(invited)} to {len(invited) + len(maybe)}"
            self.account.require(len(invited) <= number <= len(invited) + len(maybe), f"{number} members, not {told}")
            await groups.set_role(group_id=group, member=next(iter(invited - {"admin"})), role=Role.ADMINISTRATOR)
            await groups.search(name="soak")
            await groups.modify(group_id=group, name="soaked", permission=Permission.OPEN)
        finally:
            for _ in range(20):
                try:
                    await groups.delete(group_id=group)
                    break
                except RbimError as error:
                    if error.outcome is Outcome.REFUSED:  # an earlier attempt deleted it
                        break
                    await asyncio.sleep(0.3)

    async def client(self, rate):
        """Work on one group after the other, at a steady rate of requests."""
        requests = MEMBERS + 6
        options = {"timeout": 1.5, "deadline": 4.0, "user_name": "admin"}
        while not self.stopping:
            async with AsyncClient(
                base_url=f"http://127.0.0.1:{self.port}", credentials=self.credentials, **options
            ) as client:
                for _ in range(10):
                    began = monotonic()
                    try:
                        await self.group(client)
                    except RbimError as error:
                        self.account.counts[f"{type(error).__name__} ({error.outcome.name.lower()})"] += 1
                    if self.stopping:
                        return
                    await asyncio.sleep(max(0.0, requests / rate - (monotonic() - began)))


async def drive(plan, seconds, account):
    begun = asyncio.get_running_loop().create_future()
    copies = _Copies(account)
    async with started("emulator", plan, {"begun": begun.set_result}, {}) as subject:
        port, control, app_id, token = await asyncio.wait_for(begun, 30)
        load = _Load(port, control, Credentials(app_id=app_id, app_token=token), account)
        async with await asyncio.start_server(copies.take, "127.0.0.1", 0) as receiver:
            address = f"http://127.0.0.1:{receiver.sockets[0].getsockname()[1]}/"
            account.require(await load.command("PUT", "copy", {"url": address}) == 200, "no target of copies was set")
            clients = [asyncio.create_task(load.client(plan.rate / 8)) for _ in range(8)]
            beside = [
                asyncio.create_task(after(1 / (plan.rate * COPIES), load.say)),
                asyncio.create_task(after(plan.life / 3, load.plan)),
                asyncio.create_task(after(5 / plan.rate, load.attack)),
            ]
            try:
                await subject.at_work(seconds)
            finally:
                load.stopping = True
                for each in beside:
                    each.cancel()
                await asyncio.gather(*clients, *beside, return_exceptions=True)
            await load.command("DELETE", "faults")
            for _ in range(int(DRAINED / 0.1)):
                if not set(load.said) - copies.came:
                    break
                await asyncio.sleep(0.1)
            for each in clients:
                if each.done() and not each.cancelled() and (error := each.exception()) is not None:
                    account.losses.append(f"a client ended with {error!r}")
            await subject.stop()
    account.counts["messages"] = len(load.said)
    account.require(account.counts["groups checked"], "no group was checked")
    account.require(load.said, "no message was said")
    for each in sorted(set(load.said) - copies.came):
        account.lose(f"{each} was said, and not copied")
    return subject
