"""The receiver's ASGI 3 application, served alone or mounted in another one."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from attrs import evolve

from rbim._support.asgi import TooLarge, body_of, lifespan
from rbim.callbacks.receiver.health import reply_of
from rbim.callbacks.receiver.replies import INCOMPLETE, NOT_POST
from rbim.callbacks.signature import Reason, Rejected

if TYPE_CHECKING:
    from types import TracebackType

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.callbacks.receiver.health import Health
    from rbim.callbacks.receiver.intake import Arrival, Intake
    from rbim.callbacks.receiver.replies import Reply

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
        if scope["type"] == "lifespan":
            await lifespan(receive, send, self._receiver)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            reply: Reply | None = NOT_POST
            if scope["method"] == "POST":
                with self._intake.arriving() as arrival:
                    reply = await self._post(scope, receive, arrival)
                    arrival.status = None if reply is None else reply.status
            elif self._health is not None and scope["method"] in ("GET", "HEAD") and _path(scope) == self._health:
                reply = reply_of(await self._receiver.health())
                if scope["method"] == "HEAD":
                    reply = evolve(reply, body=b"")
            if reply is not None:
                start, body = reply.asgi
                await send(start)
                await send(body)

    async def _post(self, scope: Scope, receive: Receive, arrival: Arrival) -> Reply | None:
        """Read, check and store one delivery; body and sink share one budget. Return None if the client has disconnected."""
        intake = self._intake
        limit = intake.policy.max_body
        whole = False
        body: bytes | None = None
        with intake.reading():
            try:
                body = await body_of(receive, inf if limit is None else limit)
            except TooLarge as error:
                return intake.refuse(Rejected(reason=Reason.TOO_LARGE, detail=str(error)))
            whole = True
        if body is None:  # it did not arrive in time, or the client has disconnected
            return None if whole else INCOMPLETE
        return await intake.answer(scope["headers"], body, arrival)
