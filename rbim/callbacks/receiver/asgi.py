"""The receiver's ASGI 3 application, served alone or mounted in another one."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from rbim._support.asgi import TooLarge, body_of, lifespan
from rbim.callbacks.receiver.replies import INCOMPLETE, NOT_POST
from rbim.callbacks.signature import Reason, Rejected

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.callbacks.receiver.intake import Arrival, Intake
    from rbim.callbacks.receiver.replies import Reply

__all__ = ["ReceiverApp"]


class ReceiverApp:
    """The ASGI application of a receiver; it answers at every path.

    Served alone, it enters and leaves the receiver on the server's lifespan events. It is an object and not a method because
    servers look at ``__call__`` to tell ASGI 3 from ASGI 2.
    """

    def __init__(self, intake: Intake, receiver: AbstractAsyncContextManager[object]) -> None:
        self._intake = intake
        self._receiver = receiver

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
