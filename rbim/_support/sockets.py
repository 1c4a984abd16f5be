"""Sockets for servers, bound before anything listens on them."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

__all__ = ["bound", "bound_to"]


async def bound_to(host: str, port: int) -> socket.socket:
    """Return a socket bound to the first of the host's addresses that can be had. Raises OSError where there is none."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, *_, address in found[:-1]:
        try:
            return bound(family, address)
        except OSError:
            continue
    family, *_, address = found[-1]
    return bound(family, address)


def bound(family: int, address: Any) -> socket.socket:  # an address as its family has it
    """Return a socket bound to an address. Raises OSError where it is taken, or not this machine's."""
    # asyncio sends without delay only on sockets that say they speak TCP: otherwise an answer may wait 40 ms for an ACK
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would share the port with whoever else asks for it
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made
