"""The names of nats-py that this folder uses: no other module of rbim imports the library."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from rbim._support.text import missing_extra

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.errors import Error as NatsError
    from nats.js import JetStreamContext, api
    from nats.js.errors import (
        APIError,
        BadRequestError,
        KeyWrongLastSequenceError,
        NoStreamResponseError,
        NotFoundError,
    )
    from nats.js.kv import KeyValue
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(missing_extra("rbim.jetstream", missing.name, "nats"), name=missing.name) from None

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = [
    "APIError",
    "BadRequestError",
    "Client",
    "JetStreamContext",
    "KeyValue",
    "KeyWrongLastSequenceError",
    "Msg",
    "NatsError",
    "NoStreamResponseError",
    "NotFoundError",
    "Subscription",
    "add_bucket",
    "add_consumer",
    "add_stream",
    "api",
    "api_error",
    "close",
    "connect",
    "jetstream_of",
    "parts",
    "subscribe",
]


# Functions of the library whose types are incomplete.


def _is_of_use(record: logging.LogRecord) -> bool:
    """Return False for the warning of asyncio with which a connection of nats-py over TLS ends: it has no consequence."""
    return not record.getMessage().startswith("returning true from eof_received() has no effect")


def connect(client: Client, servers: list[str], **options: Any) -> Awaitable[None]:  # of Client.connect
    """Connect a client; the types of the library allow no fractions of seconds."""
    logging.getLogger("asyncio").addFilter(_is_of_use)  # once: a logger knows its filters
    connecting: Awaitable[None] = cast("Any", client).connect(servers, **options)
    return connecting


async def close(client: Client) -> None:
    """Close a client, also one that was interrupted while it closed by itself: it would leave its socket open."""
    try:
        await client.close()
    finally:
        transport = getattr(client, "_transport", None)
        if transport is not None:
            transport.close()


def jetstream_of(client: Client, *, timeout: float) -> JetStreamContext:
    """Return the JetStream context of a client; its requests wait for ``timeout`` seconds."""
    context: JetStreamContext = cast("Any", client).jetstream(timeout=timeout)
    return context


def api_error(fields: dict[str, Any]) -> APIError:
    """Return, or raise, the error in an answer of the servers."""
    error: APIError = cast("Any", APIError).from_error(fields)
    return error


def subscribe(client: Client, subject: str, call: Callable[[Msg], Awaitable[None]]) -> Awaitable[Subscription]:
    """Subscribe to a subject; ``call`` gets each message."""
    subscribing: Awaitable[Subscription] = cast("Any", client).subscribe(subject, cb=call)
    return subscribing


def add_stream(jetstream: JetStreamContext, config: api.StreamConfig) -> Awaitable[api.StreamInfo]:
    """Create a stream."""
    adding: Awaitable[api.StreamInfo] = cast("Any", jetstream).add_stream(config)
    return adding


def add_bucket(jetstream: JetStreamContext, config: api.KeyValueConfig) -> Awaitable[KeyValue]:
    """Create a bucket of keys and values."""
    adding: Awaitable[KeyValue] = cast("Any", jetstream).create_key_value(config)
    return adding


def add_consumer(jetstream: JetStreamContext, stream: str, config: api.ConsumerConfig) -> Awaitable[api.ConsumerInfo]:
    """Create a consumer of a stream."""
    adding: Awaitable[api.ConsumerInfo] = cast("Any", jetstream).add_consumer(stream, config=config)
    return adding


def parts(message: api.RawStreamMsg) -> tuple[int, dict[str, str], bytes]:
    """Return the sequence, the headers and the content of a stored message."""
    headers: dict[str, str] = cast("Any", message).headers or {}
    return message.seq or 0, headers, message.data or b""
