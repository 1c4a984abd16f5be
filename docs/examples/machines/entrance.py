"""A sink that stores deliveries in NATS JetStream, and the forwarder that takes them into an inbox (pip install nats-py).

Receivers use ``Receiver.from_env(sink=Entrance(["nats://h1", "nats://h2"]), spool="/var/lib/rbim/copies.spool")``.
A server syncs each message before it acknowledges only with `sync_interval: always` in its `jetstream` block. If the
forwarder dies between the inbox and the acknowledgement, it takes a delivery twice; the inbox knows its key.
"""  # noqa: INP001  # a folder of examples

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import nats
from nats.js.api import ConsumerConfig, RetentionPolicy

from rbim.callbacks import Delivery, delivery_of

if TYPE_CHECKING:
    from typing import Self


class Entrance:
    """Stores deliveries in a stream; :func:`forward` takes them into the inbox."""

    durable = True
    retention = 0.0  # it recognises no keys: the inbox does
    client: Any = None

    def __init__(self, servers: list[str], replicas: int = 3) -> None:
        self.servers, self.replicas = servers, replicas

    @property
    def ready(self) -> bool:
        """Whether the servers can be reached."""
        return self.client is not None and self.client.is_connected

    async def __aenter__(self) -> Self:
        self.client = await nats.connect(self.servers, max_reconnect_attempts=-1)
        self.stream = self.client.jetstream(timeout=2)
        keep = RetentionPolicy.WORK_QUEUE  # until it is acknowledged
        await self.stream.add_stream(name="copies", subjects=["copies"], num_replicas=self.replicas, retention=keep)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.close()

    async def accept(self, delivery: Delivery, /) -> bool:
        """Store a delivery."""
        headers = {"app": delivery.app_id, "received": delivery.received.isoformat()}
        await self.stream.publish("copies", delivery.body, headers=headers)
        return True


async def forward(servers: list[str], inbox: Any) -> None:
    """Take deliveries into the inbox one by one, so that they stay in order. Run only one of these."""
    async with await nats.connect(servers, max_reconnect_attempts=-1) as client:
        one = ConsumerConfig(max_ack_pending=1)
        waiting = await client.jetstream().pull_subscribe("copies", "forwarder", config=one)
        while True:
            try:
                (message,) = await waiting.fetch(1, timeout=30)
            except nats.errors.TimeoutError:
                continue
            app_id, received = message.headers["app"], datetime.fromisoformat(message.headers["received"])
            await inbox.accept(delivery_of(message.data, app_id=app_id, received=received))
            await message.ack_sync()
