"""NATS servers: whether each answers, with JetStream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rbim.cli.context import nats_settings
from rbim.cli.doctor.check import Check, State
from rbim.cli.extras import MissingExtra
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from rbim.cli.doctor.check import Report
    from rbim.config.config import Config

__all__ = ["nats_servers"]

ADVICE = "Check the address, that NATS runs there with JetStream (nats-server -js), and RBIM_NATS_CREDS_FILE"


async def nats_servers(via: str, config: Config, report: Report, *, seconds: float) -> None:
    """Report each server of a location such as nats://h1,h2/copies. Nothing is created on them."""
    try:
        settings = nats_settings(config)
        from rbim.jetstream.connection import Connection
        from rbim.jetstream.settings import location

        servers, _ = location(via)

        connections = {
            server: Connection((server,), settings, name="rbim doctor", prepare=lambda jetstream: jetstream.account_info())
            for server in servers
        }
    except (InvalidRequest, MissingExtra) as error:
        report(Check("nats servers", State.FAIL, getattr(error, "message", str(error)), "Correct --via, or the setting"))
        return
    for server, connection in connections.items():
        async with connection:
            try:
                async with asyncio.timeout(seconds):
                    await connection.jetstream()
            except TimeoutError:
                cause = connection.failure or f"no answer within {seconds:g} s"
                report(Check("nats servers", State.FAIL, f"{server}: {cause}", ADVICE))
            else:
                report(Check("nats servers", State.OK, f"{server} answers, with JetStream"))
