"""Read one partition's messages in order, without a gap."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from rbim.jetstream.nats_py import add_consumer, api, subscribe

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rbim.jetstream.nats_py import Client, JetStreamContext, Msg, Subscription

__all__ = ["Gap", "Reader", "reader_name"]

# Why not nats-py's own pull subscription: it asks the servers again every few seconds, without heartbeats. A consumer that
# needs no acknowledgements may lose messages, for example while the connection is lost: nothing would be read until the
# next message, and the ones before it never. Here each message must have the consumer's next number, and heartbeats say the
# last one while nothing comes.

BATCH = 256
EXPIRES = 30.0  # seconds for which the servers keep a request
HEARTBEAT = 5.0  # seconds
PATIENCE = 2.5 * HEARTBEAT
UNUSED = 30.0  # seconds after which the servers delete a consumer that is not used
LAST_WAIT = 1.0  # seconds
ASK_AGAIN, REFUSALS = 0.05, 40  # seconds, and how often


class Gap(Exception):
    """Messages were missed, or the consumer is gone: begin again after the last message that was read."""


def reader_name() -> str:
    """Return a name for a consumer that no other one has."""
    return f"r{token_hex(8)}"


class Reader:
    """Reads a stream's messages with a subject (it may have wildcards) from a sequence on; an async context manager.

    ``name`` is that of its consumer (default: a new one). If entering had no answer, another reader of the same sequence
    should get the same name: the consumer may be there by then, and busy servers are not asked for one after the other.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # what it reads, and with what
        self, client: Client, jetstream: JetStreamContext, stream: str, subject: str, start: int, name: str | None = None
    ) -> None:
        self._client = client
        self._jetstream = jetstream
        self._stream = stream
        self._subject = subject
        self._start = start
        self._name = name or reader_name()
        self._inbox = client.new_inbox()
        self._arrived: deque[Msg] = deque()
        self._news = asyncio.Event()
        self._next = 1
        self._asked = 0
        self._refused = 0
        self._subscription: Subscription | None = None
        self.pending = 0
        """The number of messages that there were on entering."""

    async def __aenter__(self) -> Self:
        consumer = await add_consumer(
            self._jetstream,
            self._stream,
            api.ConsumerConfig(
                name=self._name,
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._start,
                ack_policy=api.AckPolicy.NONE,
                filter_subject=self._subject,
                inactive_threshold=UNUSED,
                mem_storage=True,
                num_replicas=1,
            ),
        )
        self.pending = consumer.num_pending or 0
        self._subscription = await subscribe(self._client, self._inbox, self._arrive)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        with suppress(Exception):
            async with asyncio.timeout(LAST_WAIT):
                if self._subscription is not None:
                    await self._subscription.unsubscribe()
                await self._jetstream.delete_consumer(self._stream, self._name)

    async def _arrive(self, message: Msg) -> None:
        self._arrived.append(message)
        self._news.set()

    async def read(self) -> list[tuple[int, Msg]]:
        """Wait for messages, and return them with their sequences. Raises Gap, or any error of the connection."""
        found: list[tuple[int, Msg]] = []
        while not found:
            if not self._asked:
                await self._ask()
            if not self._arrived:
                self._news.clear()
                try:
                    async with asyncio.timeout(PATIENCE):
                        await self._news.wait()
                except TimeoutError:
                    raise Gap("no heartbeat came") from None
            while self._arrived:
                message = self._arrived.popleft()
                if self._is_event(message):
                    found.append((self._sequence(message), message))
            if self._refused:  # on another server the consumer may not have begun yet
                await asyncio.sleep(ASK_AGAIN)
        return found

    async def _ask(self) -> None:
        self._asked = BATCH
        request = {"batch": BATCH, "expires": int(EXPIRES * 1e9), "idle_heartbeat": int(HEARTBEAT * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        await self._client.publish(subject, json.dumps(request).encode(), reply=self._inbox)

    def _sequence(self, message: Msg) -> int:
        place = message.metadata.sequence
        if place.consumer != self._next:
            raise Gap(f"message {place.consumer} of the consumer came instead of {self._next}")
        self._next += 1
        self._asked -= 1
        return place.stream

    def _is_event(self, message: Msg) -> bool:
        """Return whether a message has content, or only a status. Raises Gap for one that ends the consumer."""
        headers: dict[Any, Any] = message.headers or {}
        status: str | None = headers.get("Status")
        if status is None or message.data:
            self._refused = 0
            return True
        if status == "100":
            last = headers.get("Nats-Last-Consumer")
            if last is not None and int(last) >= self._next:
                raise Gap(f"message {last} of the consumer went to nobody")
        elif status in {"404", "408"}:
            self._asked = 0
        elif status == "503" and self._refused < REFUSALS:
            self._refused += 1
            self._asked = 0
        else:
            raise Gap(f"status {status}: {headers.get('Description', '')}")
        return False
