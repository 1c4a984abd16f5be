"""NATS servers that fail, and connections to them: a stand-in for nats-py's ``Client``; all above it is nats-py's own code.

Three servers have one log (``broker``): a majority of them, and a leader for each stream, is needed to change it. What a
client publishes on one connection arrives in order. Everything else may happen to it:

=======================  ==============================================================================================
``broker-request-lost``  a request has no effect and no answer
``broker-ack-lost``      a request has its effect, and its answer is lost
``broker-request-late``  a connection stalls: what was sent arrives seconds later, also after its sender gave up or died
``broker-leader``        a stream has no leader for a while, then another one
``broker-node``          a server dies, with consumers that are only there, and is back after a while
``broker-outage``        two of three servers are away: nothing can be changed
``broker-power``         all servers lose power; they have synced what they acknowledged (``syncs``)
``broker-disconnect``    a connection breaks; its ends notice that later, and the server sends to nobody until then
``broker-closed``        nats-py closes a client for good
``broker-stale``         a read that any server answers comes from one that is behind
``broker-slow``          a subscription is too slow, and nats-py drops a message
``broker-clocks``        the clocks of the servers differ, and with another leader time jumps
=======================  ==============================================================================================
"""

from __future__ import annotations

import asyncio
import itertools
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from attrs import define, field
from nats.aio.msg import Msg
from nats.errors import (
    ConnectionClosedError,
    Error,
    MaxPayloadError,
    NoRespondersError,
    NoServersError,
    SlowConsumerError,
    TimeoutError as NatsTimeoutError,
)
from nats.js import JetStreamContext

from .broker import Broker, Reply, matches
from .process import current_process
from .virtual_time import EPOCH, TIME

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .process import Process
    from .world import World

__all__ = ["TROUBLES", "Client", "Servers", "install"]

TROUBLES = (
    "broker-request-lost",
    "broker-ack-lost",
    "broker-request-late",
    "broker-leader",
    "broker-node",
    "broker-outage",
    "broker-power",
    "broker-disconnect",
    "broker-closed",
    "broker-stale",
    "broker-slow",
    "broker-clocks",
)

MAX_PAYLOAD = 1 << 20
COMMIT = 0.001
"""Seconds, on average, until a majority has synced a message."""

BUFFER = 2 << 20
"""Bytes that a client keeps while it has no connection."""

IN_PROCESS = {"code": 409, "err_code": 10158, "description": "duplicate message id is in process"}

UNSYNCED = 5.0
"""Seconds whose messages are lost with the power of all servers that do not sync before they acknowledge."""

_servers: Servers | None = None


@define(eq=False)
class Node:
    """A server. ``offset`` is how much its clock is fast."""

    number: int
    offset: float = 0.0
    alive: bool = True


@define(eq=False)
class Connection:
    """A connection of a client to a server. ``heard`` is whether the server still believes that the client listens."""

    client: Client
    node: Node
    process: Process | None
    up: bool = True
    heard: bool = True
    sent: float = 0.0  # when the last message of the client arrives
    received: float = 0.0  # when the last message to the client arrives
    subjects: dict[int, str] = field(factory=dict[int, str])


class Servers:
    """Three servers in a world. ``odds`` are the probabilities of the troubles of single requests."""

    def __init__(self, world: World, *, latency: float = 0.0005, nodes: int = 3, syncs: bool = True) -> None:
        global _servers  # noqa: PLW0603  # one network to an interpreter
        self.world, self.latency, self.syncs = world, latency, syncs
        self.nodes = [Node(number) for number in range(nodes)]
        self.odds: dict[str, float] = {}
        self.fair_from = float("inf")
        self.connections: list[Connection] = []
        self.broker = Broker(self._send, self._hears, self._clock, world.at)
        self.broker.step_down = lambda stream: self.unseat(stream, 0.3)
        self._leaders: dict[str, Node | None] = {}
        self._last_leader: dict[str, Node] = {}
        self._places: dict[str, Node] = {}
        self._in_process: set[str] = set()
        self._answers = True  # whether what is being done now is answered
        self._draw = world.stream("broker")
        _servers = self

    # What happens.

    def plan(self, fair_from: float, *, worst: float = 0.01, most: int = 3) -> None:
        """Draw the troubles of a run, all before ``fair_from``."""
        world, draw = self.world, self.world.stream("broker-weather")
        self.fair_from = fair_from
        self.odds = {name: draw.choice([0.0, worst]) for name in TROUBLES[:3]}
        self.odds["broker-stale"] = draw.choice([0.0, 0.2])
        self.odds["broker-slow"] = draw.choice([0.0, 0.0, worst])
        clocks = draw.choice([0.0, 0.5, 30.0])
        if clocks and world.is_on("broker-clocks"):
            world.happened["broker-clocks"] += 1
            for node in self.nodes:
                node.offset = draw.uniform(-clocks, clocks)
        for trouble, do in (
            ("broker-leader", self._move_leader),
            ("broker-node", self.kill_node),
            ("broker-outage", self._outage),
            ("broker-power", self._lose_power),
            ("broker-disconnect", self._disconnect),
        ):
            rare = trouble in {"broker-outage", "broker-power"}
            for _ in range(draw.choice([0, 0, 0, 1] if rare else [0, 0, 1, most])):
                when, seconds = draw.random() * fair_from, draw.choice([0.3, 2.0, 8.0, 25.0])
                if world.is_on(trouble):
                    world.at(when, self._happen, trouble, do, min(seconds, max(0.1, fair_from - when)))

    def _happen(self, trouble: str, do: Callable[[float], object], seconds: float) -> None:
        self.world.happened[trouble] += 1
        self.world.note("broker", f"{trouble} for {seconds:.1f} s")
        do(seconds)

    @property
    def has_majority(self) -> bool:
        """Whether enough servers live to agree."""
        return sum(node.alive for node in self.nodes) > len(self.nodes) // 2

    def leader(self, stream: str) -> Node | None:
        """Return the server that leads a stream now."""
        if not self.has_majority:
            return None
        if stream not in self._leaders:
            self._leaders[stream] = self._draw.choice([node for node in self.nodes if node.alive])
            self._last_leader[stream] = self._leaders[stream]
        return self._leaders[stream]

    def _clock(self, stream: str) -> float:
        node = self._leaders.get(stream) or self._last_leader.get(stream) or self.nodes[0]
        return EPOCH + TIME.now + node.offset

    def _move_leader(self, seconds: float) -> None:
        if self._leaders:
            self.unseat(self._draw.choice(list(self._leaders)), min(seconds, 8.0))

    def unseat(self, stream: str, seconds: float) -> None:
        """Let a stream have no leader for a while."""
        self._leaders[stream] = None
        self.world.at(TIME.now + seconds, self._seat, stream)

    def _seat(self, stream: str) -> None:
        alive = [node for node in self.nodes if node.alive]
        if not self.has_majority:
            self.world.at(TIME.now + 0.5, self._seat, stream)
            return
        if self._leaders.get(stream) is None:
            self._leaders[stream] = self._last_leader[stream] = self._draw.choice(alive)
            self.world.note("broker", f"{stream} has another leader")

    def kill_node(self, seconds: float, *nodes: Node) -> None:
        """Let servers die, one of them if none is named, and be back after a while."""
        for node in nodes or (self._draw.choice(self.nodes),):
            node.alive = False
            for stream in [name for name, leader in self._leaders.items() if leader is node]:
                self.unseat(stream, self._draw.choice([0.2, 1.0, 5.0]))
            for stream_ in self.broker.streams.values():
                for consumer in tuple(stream_.consumers.values()):
                    if self._places.setdefault(consumer.name, self._draw.choice(self.nodes)) is node:
                        consumer.gone = True
                        del stream_.consumers[consumer.name]
            for connection in [each for each in self.connections if each.node is node]:
                self.cut(connection, heard_for=0.0)
            self.world.at(TIME.now + seconds, self._revive, node)

    def _revive(self, node: Node) -> None:
        node.alive = True
        for stream, leader in self._leaders.items():
            if leader is None:
                self.world.at(TIME.now + 0.2, self._seat, stream)

    def _outage(self, seconds: float) -> None:
        self.kill_node(seconds, *self._draw.sample(self.nodes, len(self.nodes) // 2 + 1))

    def _lose_power(self, seconds: float) -> None:
        if not self.syncs:
            self.broker.lose_unsynced(TIME.now - UNSYNCED)
        self.kill_node(seconds, *self.nodes)

    def _disconnect(self, _: float) -> None:
        up = [each for each in self.connections if each.up]
        if up:
            connection = self._draw.choice(up)
            if self.world.happens("broker-closed", 0.1):
                connection.client.end()
            else:
                heard_for, noticed_in = self._draw.choice([0.0, 0.5, 12.0]), self._draw.choice([0.0, 0.5, 12.0])
                self.cut(connection, heard_for=heard_for, noticed_in=noticed_in)

    def cut(self, connection: Connection, *, heard_for: float, noticed_in: float = 0.0) -> None:
        """Break a connection; the server and the client notice it later, by the pings that are not answered."""
        if connection.up:
            connection.up = False
            self.world.at(TIME.now + heard_for, self._notice, connection)
            self.world.at(TIME.now + noticed_in, connection.client.lost, connection)

    def _notice(self, connection: Connection) -> None:
        connection.heard = False
        if connection in self.connections:
            self.connections.remove(connection)

    def forget(self, process: Process) -> None:
        """End the connections of a process that has ended."""
        for connection in [each for each in self.connections if each.process is process]:
            connection.up = False
            self._notice(connection)

    # Connections.

    def connect(self, client: Client, number: int) -> Connection | None:
        """Return a connection to a server, or None if it is dead."""
        node = self.nodes[number % len(self.nodes)]
        if not node.alive:
            return None
        connection = Connection(client, node, current_process.get())
        self.connections.append(connection)
        return connection

    def close(self, connection: Connection) -> None:
        """Close a connection from the client's side."""
        connection.up = False
        self._notice(connection)

    def carry(self, connection: Connection, subject: str, data: bytes, reply: str, headers: dict[str, str]) -> None:
        """Carry what a client publishes to its server."""
        if not connection.up or self._hits("broker-request-lost"):
            return
        delay = self._draw.expovariate(1 / self.latency)
        if self._hits("broker-request-late"):
            delay += self.world.stream("broker-request-late seconds").uniform(0.5, 8.0)
        connection.sent = max(connection.sent, TIME.now + delay)
        self.world.at(connection.sent, self._arrive, connection, subject, data, reply, headers)

    def _hits(self, trouble: str) -> bool:
        odds = self.odds.get(trouble, 0.0)
        return bool(odds) and TIME.now < self.fair_from and self.world.happens(trouble, odds)

    def _arrive(self, connection: Connection, subject: str, data: bytes, reply: str, headers: dict[str, str]) -> None:
        """Let a message reach a server, which passes it on to the leader of its stream."""
        if not connection.node.alive:
            return
        if not subject.startswith("$JS.") and (listening := self._listening(subject)):
            for other, number in listening:
                self._deliver(other, number, Reply(subject, data, headers, reply), subject)
            return
        stream = self.broker.stream_of(subject)
        if stream is None:
            self._no_responders(subject, reply)
            return
        if subject.startswith("$JS.API.DIRECT."):
            behind = self._draw.random() * 0.5 if self._hits("broker-stale") else 0.0
            if not self.broker.handle(subject, headers, data, reply, seen_at=TIME.now - behind if behind else None):
                self._no_responders(subject, reply)
            return
        if self.leader(stream) is None:
            if self._draw.random() < 0.5:
                self._no_responders(subject, reply)
            return
        self._propose(stream, subject, data, reply, headers)

    def _propose(self, stream: str, subject: str, data: bytes, reply: str, headers: dict[str, str]) -> None:
        """Let the leader have the others agree on a message; not on two with one id at a time."""
        identity = headers.get("Nats-Msg-Id")
        if identity in self._in_process:
            self._send(Reply(reply, json.dumps({"error": IN_PROCESS, "stream": stream, "seq": 0}).encode()), reply)
            return
        if identity is not None:
            self._in_process.add(identity)
        self.world.at(TIME.now + self._draw.expovariate(1 / COMMIT), self._commit, stream, subject, data, reply, headers)

    def _commit(self, stream: str, subject: str, data: bytes, reply: str, headers: dict[str, str]) -> None:
        """Let the servers agree on a message, unless their leader is gone meanwhile."""
        self._in_process.discard(headers.get("Nats-Msg-Id", ""))
        if self.leader(stream) is None:
            return
        lost = "" if not self._hits("broker-ack-lost") else reply
        if not self.broker.handle(subject, headers, data, f"{reply}?" if lost else reply):
            self._no_responders(subject, reply)

    def _no_responders(self, subject: str, reply: str) -> None:
        if reply:
            self._send(Reply(reply, b"", {"Status": "503", "Nats-Subject": subject}), reply)

    def _listening(self, subject: str) -> list[tuple[Connection, int]]:
        return [
            (connection, number)
            for connection in self.connections
            for number, pattern in connection.subjects.items()
            if matches(pattern, subject)
        ]

    def _hears(self, subject: str) -> bool:
        return bool(self._listening(subject))

    def _send(self, message: Reply, subject: str) -> None:
        for connection, number in self._listening(message.subject):
            self._deliver(connection, number, message, subject)

    def _deliver(self, connection: Connection, number: int, message: Reply, subject: str) -> None:
        connection.received = max(connection.received, TIME.now + self._draw.expovariate(1 / self.latency))
        self.world.at(connection.received, self._hand_over, connection, number, message, subject)

    def _hand_over(self, connection: Connection, number: int, message: Reply, subject: str) -> None:
        if connection.up and connection.client.connection is connection:
            connection.client.receive(number, message, subject, slow=number and self._hits("broker-slow"))


class Subscription:
    """A subscription of a client; its callback runs in a task of its own, message by message."""

    def __init__(self, client: Client, number: int, call: Callable[[Msg], Awaitable[None]]) -> None:
        self._client, self._number, self._call = client, number, call
        self.queue: asyncio.Queue[Msg] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            message = await self.queue.get()
            try:
                await self._call(message)
            except Exception as error:
                await self._client.told("error_cb", error)

    async def unsubscribe(self) -> None:
        """Get no more messages."""
        if self._client.is_closed:
            raise ConnectionClosedError
        self._client.unsubscribed(self._number)
        self.stop()

    def stop(self) -> None:
        """End its task."""
        self._task.cancel()


class Client:
    """A stand-in for ``nats.aio.client.Client``."""

    numbers = itertools.count(1)

    def __init__(self) -> None:
        assert _servers is not None
        self._servers = _servers
        self._name = f"c{next(Client.numbers)}"
        self._process = current_process.get()
        self.connection: Connection | None = None
        self.is_closed = False
        self.max_payload = MAX_PAYLOAD
        self.connected_server_version = SimpleNamespace(major=2, minor=12)
        self._options: dict[str, Any] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._patterns: dict[int, str] = {0: f"_INBOX.{self._name}.*"}
        self._answers: dict[str, asyncio.Future[Msg]] = {}
        self._count = itertools.count(1)
        self._buffer: list[tuple[str, bytes, str, dict[str, str]]] = []
        self._reconnecting: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        return self.connection is not None

    async def connect(self, servers: list[str], **options: Any) -> None:
        """Connect to one of the servers, trying again and again if there is no limit to it."""
        self._options = options
        await self._find_server(len(servers))

    async def _find_server(self, count: int) -> None:
        for number in itertools.count(self._servers.world.stream("broker").randrange(count)):
            await asyncio.sleep(4 * self._servers.latency)
            self.connection = self._servers.connect(self, number)
            if self.connection is not None:
                self.connection.subjects.update(self._patterns)
                return
            await self.told("error_cb", NoServersError())
            await asyncio.sleep(self._options["reconnect_time_wait"])

    async def told(self, callback: str, *given: Any) -> None:
        """Call a callback."""
        call = self._options.get(callback)
        if call is not None:
            await call(*given)

    def lost(self, connection: Connection) -> None:
        """Note that a connection broke: another one is made."""
        if self.connection is not connection:
            return
        self.connection = None
        if self._process is None or self._process.alive:
            spawn = asyncio.get_running_loop().create_task if self._process is None else self._process.spawn
            self._reconnecting = spawn(self._reconnect())

    async def _reconnect(self) -> None:
        await self.told("disconnected_cb")
        if not self.is_closed and self.connection is None:
            await self._find_server(len(self._servers.nodes))
            buffered, self._buffer = self._buffer, []
            for each in buffered:
                self._servers.carry(self.connection, *each)
            await self.told("reconnected_cb")

    def end(self) -> None:
        """Close it for good, as nats-py does after some errors of a server."""
        if self._process is None or self._process.alive:
            spawn = asyncio.get_running_loop().create_task if self._process is None else self._process.spawn
            spawn(self._end())

    async def _end(self) -> None:
        await self.close()

    async def close(self) -> None:
        """Close it."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        if self.connection is not None:
            self._servers.close(self.connection)
            self.connection = None
        for each in self._subscriptions.values():
            each.stop()
        await asyncio.sleep(self._servers.latency)
        await self.told("closed_cb")

    async def publish(self, subject: str, payload: bytes = b"", reply: str = "", headers: Any = None) -> None:
        """Publish a message; without a connection it is kept, and sent with the next one."""
        if self.is_closed:
            raise ConnectionClosedError
        if len(payload) > self.max_payload:
            raise MaxPayloadError
        size = len(payload) + sum(len(name) + len(value) for name, value in (headers or {}).items())
        if size > self.max_payload:  # the headers count, too: the server ends the connection
            await self.close()
            raise Error("nats: maximum payload violation")
        message = (subject, payload, reply, dict(headers or {}))
        if self.connection is not None:
            self._servers.carry(self.connection, *message)
        elif sum(len(each[1]) for each in self._buffer) + size <= BUFFER:
            self._buffer.append(message)
        await asyncio.sleep(0)

    async def subscribe(self, subject: str, cb: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Subscribe to a subject."""
        if self.is_closed:
            raise ConnectionClosedError
        number = next(self._count)
        self._patterns[number] = subject
        if self.connection is not None:
            self.connection.subjects[number] = subject
        subscription = self._subscriptions[number] = Subscription(self, number, cb)
        await asyncio.sleep(0)
        return subscription

    def unsubscribed(self, number: int) -> None:
        """Forget a subscription."""
        self._subscriptions.pop(number, None)
        self._patterns.pop(number, None)
        if self.connection is not None:
            self.connection.subjects.pop(number, None)

    async def request(self, subject: str, payload: bytes = b"", timeout: float = 0.5, headers: Any = None) -> Msg:
        """Publish a message and wait for the answer."""
        token = str(next(self._count))
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._answers[token] = answer
        try:
            await self.publish(subject, payload, f"_INBOX.{self._name}.{token}", headers)
            message = await asyncio.wait_for(answer, timeout)
        except TimeoutError:
            raise NatsTimeoutError from None
        finally:
            self._answers.pop(token, None)
        if (message.headers or {}).get("Status") == "503":
            raise NoRespondersError
        return message

    def receive(self, number: int, message: Reply, subject: str, *, slow: bool) -> None:
        """Take a message from the connection."""
        found = Msg(
            _client=self, subject=subject, reply=message.reply, data=message.data, headers=dict(message.headers) or None
        )
        if not number:
            answer = self._answers.get(message.subject.rpartition(".")[2])
            if answer is not None and not answer.done():
                answer.set_result(found)
            return
        subscription = self._subscriptions.get(number)
        if subscription is None:
            return
        if slow:
            error = SlowConsumerError(subject=subject, reply=message.reply, sid=number, sub=None)
            spawn = asyncio.get_running_loop().create_task if self._process is None else self._process.spawn
            spawn(self.told("error_cb", error))
            return
        subscription.queue.put_nowait(found)

    def new_inbox(self) -> str:
        return f"_INBOX.n{self._name}x{next(self._count)}"

    def jetstream(self, **options: Any) -> JetStreamContext:
        return JetStreamContext(self, **options)


def install(world: World) -> None:
    """Let rbim use the stand-in, and draw its random names from a stream of the world."""
    from rbim.jetstream import archive, backlog, connection, partition

    Client.numbers = itertools.count(1)
    connection.Client = Client  # type: ignore[misc,assignment]
    draw = world.stream("names")
    for module in (archive, backlog, partition):
        module.token_hex = lambda count: draw.randbytes(count).hex()  # type: ignore[attr-defined]
