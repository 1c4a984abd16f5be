"""Operations over workers on other machines: the sender for ``--via``, and the state of its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rbim.cli.extras import require
from rbim.cli.telemetry import telemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.config.config import Config
    from rbim.jetstream.sender import QueueState, RemoteSender
    from rbim.jetstream.settings import NatsSettings

__all__ = ["nats_settings", "queue_of", "queue_state", "remote_sender"]

T = TypeVar("T")


def nats_settings(config: Config) -> NatsSettings:
    """Return how to log in to NATS servers. Raises InvalidRequest, and MissingExtra without the extra."""
    require("nats", "nats")
    from rbim.jetstream.settings import NatsSettings

    return NatsSettings(
        credentials_file=config["nats_creds_file"],
        ca_file=config["nats_ca_file"],
        cert_file=config["nats_cert_file"],
        key_file=config["nats_key_file"],
    )


def queue_of(via: str) -> tuple[tuple[str, ...], str]:
    """Return the servers and the name of a queue. Raises InvalidRequest, and MissingExtra without the extra."""
    require("nats", "nats")
    from rbim.jetstream.settings import location

    return _named(lambda: location(via))


def remote_sender(via: str, config: Config) -> RemoteSender:
    """Return the sender for the workers of a queue. Raises InvalidRequest, and MissingExtra without the extra."""
    servers, name = queue_of(via)
    from rbim.jetstream.sender import RemoteSender

    otel = telemetry()
    return RemoteSender(
        servers, name=name, settings=nats_settings(config), observers=() if otel is None else [otel.on_operation]
    )


def _named(call: Callable[[], T]) -> T:
    """Return the result of a call; its InvalidRequest names the flag."""
    from rbim.errors import InvalidRequest

    try:
        return call()
    except InvalidRequest as error:
        raise InvalidRequest(f"--via: {error.message}", field="--via") from None


async def queue_state(via: str, config: Config) -> QueueState:
    """Return the workers of a queue and what waits in it. Raises ConnectionError if no server answers."""
    async with remote_sender(via, config) as sender:
        return await sender.state()
