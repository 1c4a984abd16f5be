"""The receiver's ASGI 3 application, served alone or mounted in another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from attrs import evolve

from rbim._support.asgi import lifespan
from rbim.callbacks.receiver.replies import NOT_POST, reply_of

if TYPE_CHECKING:
    from types import TracebackType

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.callbacks.receiver.intake import Intake
    from rbim.callbacks.receiver.replies import Health, Reply

__all__ = ["ReceiverApp"]


class _Receiver(Protocol):
    async def health(self) -> Health: ...

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


def _path(scope: Scope) -> str:
    """Return the path below the one at which the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


class ReceiverApp:
    """The ASGI application of a receiver; it takes deliveries at every path, and a GET at the path ``health``.

    Served alone, it enters and leaves the receiver on the server's lifespan events. It is an object and not a method because
    servers look at ``__call__`` to tell ASGI 3 from ASGI 2.
    """

    def __init__(self, intake: Intake, receiver: _Receiver, health: str | None) -> None:
        self._intake = intake
        self._receiver = receiver
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http":
            if scope["method"] == "POST":
                reply = await self._intake.take(scope["headers"], b"", receive)
            else:
                reply = await self._other(scope)
            if reply is not None:
                start, body = reply.asgi
                await send(start)
                await send(body)
        elif scope["type"] == "lifespan":
            await lifespan(receive, send, self._receiver)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise ValueError(f"an ASGI scope of the unknown type {scope['type']!r}")

    async def _other(self, scope: Scope) -> Reply:
        if self._health is None or scope["method"] not in ("GET", "HEAD") or _path(scope) != self._health:
            return NOT_POST
        reply = reply_of(await self._receiver.health())
        return evolve(reply, body=b"") if scope["method"] == "HEAD" else reply
