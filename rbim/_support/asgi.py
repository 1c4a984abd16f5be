"""ASGI 3 helpers shared by the emulator and the callback receiver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

__all__ = ["App", "Receive", "Scope", "Send", "TooLarge", "body_of", "lifespan"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class TooLarge(Exception):
    """A request body is longer than the limit; the message names the limit."""


async def body_of(receive: Receive, limit: float, message: MutableMapping[str, Any] | None = None) -> bytes | None:
    """Return the request body, or None if the peer disconnects first.

    ``message`` is the first one if it was received already. Raises TooLarge above ``limit`` bytes.
    """
    if message is None:
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
        raise TooLarge(f"the body is too large (at most {limit} bytes)")
    return bytes(body)


async def lifespan(receive: Receive, send: Send, runs: AbstractAsyncContextManager[object] | None = None) -> None:
    """Answer a server's lifespan events; enter ``runs`` at startup and leave it at shutdown.

    An exception of ``runs`` is reported to the server as ``failed`` and then raised.
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
