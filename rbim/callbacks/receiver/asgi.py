"""The receiver's HTTP door: an ASGI 3 application, served alone or mounted in any other."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from rbim._support.asgi import TooLarge, body_of, lifespan
from rbim.callbacks.receiver.replies import INCOMPLETE, NOT_POSTED, Reply
from rbim.callbacks.signature import Reason, Rejected

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.callbacks.receiver.intake import Intake

__all__ = ["ReceiverApp"]


class ReceiverApp:
    """Answers at whatever path it is mounted. Served alone, the server's lifespan events enter and leave the intake.

    An object and not a method, since servers tell ASGI 3 from its forerunner by looking at ``__call__``.
    """

    def __init__(self, intake: Intake, runs: AbstractAsyncContextManager[object]) -> None:
        self._intake = intake
        self._runs = runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one scope."""
        if scope["type"] == "lifespan":
            await lifespan(receive, send, self._runs)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            reply = await self._take(scope, receive) if scope["method"] == "POST" else NOT_POSTED
            if reply is not None:
                start, body = reply.asgi
                await send(start)
                await send(body)

    async def _take(self, scope: Scope, receive: Receive) -> Reply | None:
        """Read, judge and offer within one budget: what a slow body takes of it, the sink has not."""
        intake = self._intake
        limit = intake.policy.max_body
        began = intake.clock.monotonic()
        whole = False
        body: bytes | None = None
        with intake.reading():
            try:
                body = await body_of(receive, inf if limit is None else limit)
            except TooLarge as error:
                return intake.refuse(Rejected(reason=Reason.TOO_LARGE, detail=str(error)))
            whole = True
        if body is None:  # it did not come, or nobody is there to be answered
            return None if whole else INCOMPLETE
        judged = intake.judge(scope["headers"], body)
        return judged if isinstance(judged, Reply) else await intake.take(judged, began)
