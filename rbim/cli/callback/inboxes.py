"""The inbox that a command names: the path of a file, or a location on NATS servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from rbim.cli.context import configuration
from rbim.cli.extras import require
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from rbim.callbacks.inbox.sqlite import SqliteInbox
    from rbim.config.config import Config
    from rbim.jetstream.inbox import JetStreamInbox
    from rbim.jetstream.settings import NatsSettings

__all__ = ["existing_on_servers", "inbox_of", "is_on_servers", "nats_settings"]

MANY_SERVERS, COPIES = 3, 3


def is_on_servers(inbox: str) -> bool:
    """Return whether a text is a location such as ``nats://h1,h2,h3/copies``, and not the path of a file."""
    return inbox.startswith(("nats://", "tls://"))


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


async def existing_on_servers(inbox: str) -> JetStreamInbox | None:
    """Return the inbox at a location, as it is there and not entered; None if there is none.

    Raises InvalidRequest, MissingExtra without the extra, and ConnectionError if no server answers.
    """
    settings = nats_settings(configuration())
    from rbim.jetstream.existing import existing_inbox

    servers, name = _location(inbox)
    return await existing_inbox(servers, name=name, settings=settings)


def inbox_of(inbox: str, *, takeover: float | None = None) -> SqliteInbox | JetStreamInbox:
    """Return the inbox of a command that creates it if it is missing.

    One on servers is as it is there. If there is none, or no server answers now, it gets the defaults, and three copies of
    each event if there are three servers. ``takeover`` is for those on servers (None: the default). Raises InvalidRequest,
    and MissingExtra without the extra.
    """
    if not is_on_servers(inbox):
        if takeover is not None:
            raise InvalidRequest(
                "--takeover: only for an inbox on servers, such as nats://h1,h2,h3/copies", field="--takeover"
            )
        from rbim.callbacks.inbox.sqlite import SqliteInbox

        return SqliteInbox(Path(inbox))
    import anyio

    try:
        found = anyio.run(existing_on_servers, inbox)
    except ConnectionError:
        found = None
    if found is None:
        found = _new(inbox)
    return found if takeover is None else evolve(found, takeover=takeover)


def _new(inbox: str) -> JetStreamInbox:
    from rbim.jetstream.inbox import JetStreamInbox

    servers, name = _location(inbox)
    copies = COPIES if len(servers) >= MANY_SERVERS else 1
    return JetStreamInbox(servers, name=name, replicas=copies, settings=nats_settings(configuration()))


def _location(inbox: str) -> tuple[tuple[str, ...], str]:
    from rbim.jetstream.settings import location

    try:
        return location(inbox)
    except InvalidRequest as error:
        raise InvalidRequest(f"--inbox: {error.message}", field="--inbox") from None
