"""Sockets for servers, bound before they listen, and the settings of uvicorn."""

from __future__ import annotations

import asyncio
import os
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn import Config

    from rbim._support.asgi import App

__all__ = ["bound", "bound_to", "reserve", "url_at", "uvicorn_config"]


async def bound_to(host: str, port: int) -> socket.socket:
    """Return a socket bound to the first free address of the host. Raises OSError if none is free."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, *_, address in found[:-1]:
        try:
            return bound(family, address)
        except OSError:
            continue
    family, *_, address = found[-1]
    return bound(family, address)


def bound(family: int, address: Any) -> socket.socket:  # an address in the form of its family
    """Return a socket bound to an address. Raises OSError if it is taken or does not belong to this machine."""
    # asyncio sets TCP_NODELAY only if the protocol is IPPROTO_TCP: otherwise a response may wait 40 ms for an ACK
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # on Windows the option lets other processes bind the same port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


def url_at(host: str, port: int, scheme: str = "http") -> str:
    """Return the URL of a server, with the loopback address if it listens on all addresses of this machine."""
    if ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def reserve(kept: socket.socket, *, alone: bool) -> None:
    """Let no other process bind the address of a bound socket that does not listen; ``alone=False`` takes that back.

    Linux lets two sockets with SO_REUSEADDR share an address until one of them listens.
    """
    if os.name == "posix":
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(not alone))


def uvicorn_config(app: App, **settings: Any) -> Config:
    """Return the settings of uvicorn for an application that is HTTP alone: no log, no lifespan, no headers of its own."""
    from uvicorn import Config

    return Config(
        app,
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,  # the process configures logging
        access_log=False,  # it would log the signature
        proxy_headers=False,
        server_header=False,
        **settings,
    )
