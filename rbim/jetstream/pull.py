"""Messages of a consumer as they come, no more at a time than there are places for them."""

# Theory of operation
#
# The server sends as many messages as were asked for (``asked``), and ends a request that was not fulfilled in EXPIRES
# seconds with a status that says how many are left. So ``asked`` plus the messages in hand is never more than the places.
# Places that became free are asked for together, when a quarter of all is free, or nothing is asked for: a request for each
# would double the traffic.
#
# A request that was lost with a server is forgotten after EXPIRES + PATIENCE seconds without a word, or at the next connect.
# If it was only late, more comes than there are places for: that is given back to other workers.

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING

from rbim.jetstream.nats_py import NatsError, subscribe

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.jetstream.nats_py import Client, Msg, Subscription

__all__ = ["Pull"]

EXPIRES = 5.0
PATIENCE = 2.0
SHARE = 4  # a quarter of the places


class Pull:
    """Asks for messages of a consumer and gives each to ``take``, which returns at once."""

    def __init__(self, stream: str, consumer: str, places: int, take: Callable[[Msg], object]) -> None:
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._places = places
        self._take = take
        self._in_hand = 0
        self._asked = 0
        self._heard = 0.0
        self._client: Client | None = None
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._changed = asyncio.Event()
        self.stopped = False
        """Whether nothing more is taken."""

    async def connected(self, client: Client) -> None:
        """Begin anew on a client: what was asked for before is lost. Call it after each connect."""
        self._client = None  # nothing is asked for meanwhile: it would come, and be forgotten below
        if self._subscription is not None:
            with suppress(NatsError):
                await self._subscription.unsubscribe()
        self._inbox = f"_INBOX.{token_hex(11)}"  # what still comes to the old one is delivered again
        self._subscription = await subscribe(client, self._inbox, self._on_message)
        self._client, self._asked = client, 0
        self._changed.set()

    async def stop(self) -> None:
        """Take no more messages; what was asked for goes to others, also what is given back from now on."""
        self.stopped = True
        if self._subscription is not None:
            with suppress(NatsError):
                await self._subscription.unsubscribe()

    def free(self) -> None:
        """Give back the place of a message that was taken."""
        self._in_hand -= 1
        self._changed.set()

    async def run(self) -> None:
        """Ask for messages until it is cancelled. Raises NatsError if the connection is lost meanwhile."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            client, free = self._client, self._places - self._in_hand - self._asked
            if self._asked and loop.time() - self._heard > EXPIRES + PATIENCE:
                free, self._asked = free + self._asked, 0
            if client is not None and not self.stopped and free > 0 and (SHARE * free >= self._places or not self._asked):
                self._asked += free
                self._heard = loop.time()
                request = {"batch": free, "expires": int(EXPIRES * 1e9)}
                await client.publish(self._subject, json.dumps(request).encode(), reply=self._inbox)
            with suppress(TimeoutError):
                async with asyncio.timeout(EXPIRES):  # before Python 3.12, wait_for() may lose a cancellation
                    await self._changed.wait()

    async def _on_message(self, message: Msg) -> None:
        self._heard = asyncio.get_running_loop().time()
        headers = message.headers or {}
        if "Status" in headers and not message.data:
            left = int(headers.get("Nats-Pending-Messages", "0"))
            self._asked = max(0, self._asked - left)
            self._changed.set()
            return
        self._asked = max(0, self._asked - 1)
        if self._in_hand >= self._places:  # an earlier request was not lost: it was late
            with suppress(NatsError):
                await message.nak()
            return
        self._in_hand += 1
        self._take(message)
