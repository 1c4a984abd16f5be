"""A developer's server for message copy on several machines: receivers and workers share an inbox on NATS servers.

Each process is a machine with a disk of its own, and receivers have a spool there. The servers are a model (``broker``), on
a network that fails (``broker_network``). The rest is the scenario ``inbox``, but for the special situations.
``jetstream_checks`` has what must hold.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import defaultdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import asdict, define

from rbim.callbacks import Backoff
from rbim.jetstream import JetStreamInbox

from . import broker_network as network, jetstream_checks as checks
from .inbox import FIRST_PAUSE, HANDLERS, InboxScenario, InboxSizes, Role
from .inbox_checks import LONE_DEATHS
from .network import ALL_TROUBLES
from .virtual_time import TIME
from .world import PROGRESS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rbim.callbacks import Receiver

    from .broker import Stored
    from .deliveries import Message
    from .process import Process
    from .world import World

__all__ = ["SERVERS", "JetStreamInboxScenario"]

SERVERS = "nats://h1,nats://h2,nats://h3"
NAME = "copies"

SITUATIONS = ("killing-message", "last-message", "lost-acknowledgements")
"""Situations of their own: one message kills the process that handles it, each time; the connections of workers break just
before the last message comes, and are there again soon, so that servers have sent it to no one; of a lone worker's writes
many are made, and their acknowledgements are lost.
"""

SPECIAL = 0.25
"""The share of the runs that meet one of them."""

LOST = 0.2
"""The share of acknowledgements that are lost."""

SOON = 0.05
"""Seconds before the last message at which connections break."""

LATEST = 1200.0
"""Seconds after trouble by which everything must be handled or buried, unless handlers and pauses alone take that long."""

FAILURES = MappingProxyType({"well": 0, "slow": 0, "fails twice": 2})
"""How often handlers fail that do not always fail, where it is not once."""

BESIDE = 300.0
"""Seconds that there are for takeovers and the like beside the time of handlers, pauses and restarts."""

RESTARTS = (0.05, 1.0, 20.0)
"""Seconds after which a supervisor starts a process again."""


@define(kw_only=True)
class MachineSizes(InboxSizes):
    """The sizes of the scenario ``inbox``, of which ``lease`` is the time of a take-over; and those of the servers."""

    partitions: int
    retention: float
    odds: float  # of troubles of single requests
    most: int  # troubles of each kind


class JetStreamInboxScenario(InboxScenario):
    """See the module."""

    TROUBLES: ClassVar[tuple[str, ...]] = (
        "task-order",
        "kill",
        "freeze",
        "deploy",
        "deploy-killed",
        "disk-stall",
        "disk-error",
        "disk-full",
        "posted-twice",
        "forged",
        "recorded",
        *dict.fromkeys(HANDLERS.values()),
        *ALL_TROUBLES,
        *network.TROUBLES,
        *SITUATIONS,
    )
    SPECIAL: ClassVar[bool] = False
    SHRINKS: ClassVar[Mapping[str, int]] = MappingProxyType({**InboxScenario.SHRINKS, "partitions": 1, "most": 0})
    sizes: MachineSizes

    def __init__(self, world: World, settings: Mapping[str, Any]) -> None:
        super().__init__(world, settings)
        network.install(world)
        self.servers = network.Servers(world)
        if self.sizes.situation == "storm":
            self.servers.plan(self.sizes.fair_from, worst=self.sizes.odds, most=self.sizes.most)
        elif self.sizes.situation == "lost-acknowledgements":
            self.servers.odds["broker-ack-lost"] = LOST
            self.servers.fair_from = self.sizes.span
        self.starts: dict[Process, float] = {}

    def draw(self) -> MachineSizes:
        """Draw as the scenario ``inbox`` does, but for the special situations."""
        draw = self.world.stream("machines")
        sizes = super().draw()
        workers = draw.choice([0, 1, 2, 3])
        drawn = {
            **asdict(sizes),
            "receivers": draw.choice([1, 1, 2]),
            "workers": workers,
            "handles_too": not workers or draw.random() < 0.25,
            "lease": draw.choice([3.0, 6.0, 15.0]),
            "fair_from": sizes.span * draw.choice([0.7, 1.0]),  # the last messages meet trouble, too
            "replayed": False,
        }
        sizes = MachineSizes(
            **drawn,
            partitions=draw.choice([1, 4, 8]),
            retention=draw.choice([1200.0, 6 * 3600.0]),
            odds=draw.choice([0.0, 0.005, 0.03]),
            most=draw.choice([0, 1, 4]),
        )
        situation = draw.choice(SITUATIONS)
        if draw.random() < SPECIAL and self.world.is_on(situation):
            self.world.happened[situation] += 1
            sizes.situation = situation
            self._draw_situation(sizes)
            sizes.receivers, sizes.workers, sizes.lease = 1, draw.choice([1, 2]), 3.0
            if situation == "lost-acknowledgements":
                sizes.workers, sizes.span, sizes.messages = 1, 60.0, 100
        return sizes

    def _plan_troubles(self) -> None:
        super()._plan_troubles()
        if self.sizes.situation == "last-message":
            last = max(each.at for each in self.messages.values())
            self.world.at(1.0 + last - SOON, self._break_connections)

    def _break_connections(self) -> None:
        """Break the connections of all workers; the servers believe for longer that they are there than they need."""
        workers = [role.process for role in self.roles if role.handles]
        for connection in [each for each in self.servers.connections if each.process in workers]:
            self.servers.cut(connection, heard_for=12.0, noticed_in=self._chance.choice([0.5, 2.0]))

    @property
    def trouble(self) -> int:
        """Count the troubles so far after which an event may be handled again."""
        if self.sizes.situation == "lost-acknowledgements":  # no worker may take over
            return super().trouble
        happened = self.world.happened
        return super().trouble + sum(happened[name] for name in network.TROUBLES)

    # The processes.

    def _inbox(self) -> JetStreamInbox:
        sizes = self.sizes
        return JetStreamInbox(
            SERVERS, name=NAME, partitions=sizes.partitions, retention=sizes.retention, takeover=sizes.lease
        )

    def _spool(self, role: Role) -> dict[str, Any]:
        return {"spool": self._spool_path(role)}

    def _spool_path(self, role: Role) -> Path:
        return Path(self.world.folder, f"{role.name}-spool")

    def _died(self, role: Role, process: Process) -> None:
        """Let the connections of a process break, and let its supervisor start it again."""
        left = process in self.ended
        self.last_end = TIME.now
        self.world.happened["kill"] += not left
        self.servers.forget(process)
        self.deliveries.break_connections(process)
        handled = [message for its, message in self.handling.values() if its is process]
        if len(handled) == 1 and not role.leave.is_set():
            handled[0].deaths += 1
        self.handling = {name: each for name, each in self.handling.items() if each[0] is not process}
        self.world.at(TIME.now + 0.01 + self._chance.choice(RESTARTS), self._start, role)

    async def _handle(self, process: Process, event: Any, handling: Any) -> None:
        """Handle an event; note the trouble that there was when it began.

        A worker that was frozen ends its handler before it knows that its partition is another's, who begins later.
        """
        trouble = self.trouble
        await super()._handle(process, event, handling)
        self.messages[event.body].ended[-1] = (TIME.now, trouble)

    # What is on the servers.

    def stored(self, stream: str = NAME) -> Iterator[tuple[Stored, Message | None]]:
        """Yield the messages of a stream that were accepted, each with what it is about."""
        found = self.servers.broker.streams.get(stream)
        for each in found.messages.values() if found is not None else ():
            body = zlib.decompress(each.data) if "Rbim-Packed" in each.headers else each.data
            yield each, self.messages.get(json.loads(body).get("body", ""))

    def buried(self) -> set[str]:
        """Return the texts of the dead letters."""
        return {message.text for _, message in self.stored(f"{NAME}-dead") if message is not None}

    def waits(self) -> int:
        """Return the number of messages that are stored, or in a spool, and neither handled nor buried."""
        over = self.buried() | {each.text for each in self.messages.values() if each.ended}
        texts = {message.text for _, message in self.stored() if message is not None}
        count = len(texts - over)
        for role in self.roles:
            if (path := self._spool_path(role)).exists():
                count += self.look("SELECT count(*) FROM event WHERE state = 0", at=path)[0][0]
        return count

    def _needed(self) -> float:
        """Return the seconds that what waits now takes at most: all handlers one by one, and pauses.

        One conversation may have many messages that always fail, each of which pauses it until it is buried.
        """
        sizes, pauses, busy = self.sizes, defaultdict[str, float](float), 0.0
        backoff = Backoff(attempts=sizes.attempts, first=FIRST_PAUSE, most=sizes.longest_pause, random=lambda: 1.0)
        over = self.buried() | {each.text for each in self.messages.values() if each.ended}
        for message in self.messages.values():
            handler = message.handler
            if message.text in over:
                continue
            failures = {"poison": sizes.attempts, "kills": LONE_DEATHS + 1}.get(handler, FAILURES.get(handler, 1))
            busy += (failures + 1) * message.seconds
            if handler in {"kills", "kills once"}:  # every other handler of that process begins again, too
                busy += failures * (max(RESTARTS) + 2 * sizes.lease)
                continue
            busy += failures * sizes.timeout if handler == "hangs once" else 0.0
            pauses[message.sender] += sum(backoff.pause(attempt) or 0.0 for attempt in range(1, failures + 1))
        return busy + max(pauses.values(), default=0.0)

    async def _settle(self) -> None:
        latest = max(TIME.now, self.sizes.fair_from) + max(LATEST, self._needed() + BESIDE)
        quiet = 0
        while TIME.now < latest:
            frozen = any(process.alive and process.frozen_until > TIME.now for process in self.frozen)
            busy = frozen or self.deliveries.waiting or self.waits() or self.handling or not self.deliveries.doors
            quiet = 0 if busy else quiet + 1
            if quiet > 2:
                return
            await asyncio.sleep(2.0)
        running = [role.process.name for role in self.roles if role.process is not None and role.process.alive]
        self.world.fail(PROGRESS, f"{self.waits()} events wait; running: {running}")

    # What must hold.

    def check_begin(self, process: Process, message: Message, handling: Any) -> str:
        del handling
        return checks.check_begin(self, process, message)

    def check_answer(self, process: Process, receiver: Receiver, status: int, began: float) -> None:
        checks.check_answer(self, process, receiver, status, began)

    def check_left(self, process: Process) -> None:
        super().check_left(process)
        checks.check_disconnected(self.servers, process)

    def check_all(self) -> None:
        checks.check_inbox(self)
