"""The parts of an ASGI 3 application that the emulator's door and the message copy receiver share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

__all__ = ["Receive", "Scope", "Send", "TooLarge", "body_of", "lifespan"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class TooLarge(Exception):
    """A request's body is past the limit; the text says so."""


async def body_of(receive: Receive, limit: float) -> bytes | None:
    """Read the whole body; None where the peer leaves before its end. Raises TooLarge past ``limit`` bytes."""
    message = await receive()
    body: bytes | bytearray = message.get("body", b"")
    while message.get("more_body", False) and len(body) <= limit:
        if isinstance(body, bytes):
            body = bytearray(body)
        message = await receive()
        body += message.get("body", b"")
    if message["type"] == "http.disconnect":
        return None
    if len(body) > limit:
        raise TooLarge(f"a body has at most {limit} bytes")
    return bytes(body)


async def lifespan(receive: Receive, send: Send, runs: AbstractAsyncContextManager[object] | None = None) -> None:
    """Answer a server's lifespan events; ``runs`` is entered when it starts and left when it stops.

    What goes wrong is raised, after the server was told of it.
    """
    async with AsyncExitStack() as stack:
        while True:
            message = await receive()
            event: str = message["type"]
            try:
                if event == "lifespan.shutdown":
                    await stack.aclose()
                elif runs is not None:
                    await stack.enter_async_context(runs)
            except Exception as error:
                await send({"type": f"{event}.failed", "message": str(error)})
                raise
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return
