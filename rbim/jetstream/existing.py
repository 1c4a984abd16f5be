"""Opens an inbox as it is on the servers: with its own partitions, retention and replicas."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rbim.errors import InvalidRequest
from rbim.jetstream.connection import Connection, EngineAway
from rbim.jetstream.inbox import JetStreamInbox
from rbim.jetstream.nats_py import NotFoundError
from rbim.jetstream.settings import NatsSettings, addresses, checked_name
from rbim.jetstream.streams import PARTITIONS_KEY, require_inbox

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rbim.jetstream.nats_py import JetStreamContext

__all__ = ["existing_inbox"]

PATIENCE = 5.0  # seconds in which a server must answer


async def existing_inbox(
    servers: str | Iterable[str], *, name: str = "copies", settings: NatsSettings | None = None
) -> JetStreamInbox | None:
    """Return the inbox of this name, not entered; None if there is none on the servers.

    ``settings``: how to log in (default: no credentials). Raises ConnectionError if no server answers within 5 seconds, and
    InvalidRequest if what has this name is no inbox, or one of another version.
    """
    listed, settings = addresses(servers), settings or NatsSettings()
    stream = checked_name(name)
    connection = Connection(listed, settings, name="rbim", prepare=_nothing)
    async with connection:
        try:
            async with asyncio.timeout(PATIENCE):
                found = (await (await connection.jetstream()).stream_info(stream)).config
        except NotFoundError:
            return None
        except TimeoutError:
            cause = connection.failure or f"no answer within {PATIENCE:g} s"
            raise EngineAway(f"{cause}: is NATS running there, with JetStream?") from None
    require_inbox(found)
    partitions, retention = (found.metadata or {}).get(PARTITIONS_KEY, ""), found.duplicate_window
    if not partitions.isdecimal() or not retention:
        raise InvalidRequest(f"name: the stream {name} is not an inbox of rbim: use another name", field="name")
    return JetStreamInbox(
        listed,
        name=name,
        partitions=int(partitions),
        replicas=found.num_replicas or 1,
        retention=retention,
        settings=settings,
    )


async def _nothing(_: JetStreamContext) -> None:
    pass
