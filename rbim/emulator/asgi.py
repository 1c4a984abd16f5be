"""The emulator's HTTP door: an ASGI 3 application around a function from request to response."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl

from rbim._support import json as jsontext
from rbim._support.asgi import TooLarge, body_of, lifespan
from rbim.emulator.platform.rules import MALFORMED
from rbim.http import Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.clock import Clock
    from rbim.emulator.platform.service import Platform, ServedAnswer

__all__ = ["BODILESS", "CONNECTION", "EmulatorApp", "RequestConnection", "failure", "write"]

CONNECTION = "rbim.connection"
"""The ASGI extension by which the emulator's own server hands out its connections."""

BODY_LIMIT = 1024 * 1024
BODILESS = (204, 304)
"""The statuses whose answers end with their head."""

SIG = re.compile(rb"sig=([0-9A-Fa-f]+)")


class RequestConnection(Protocol):
    """A hand on the connection that a request came over."""

    def reset(self) -> None:
        """Reset it: what the peer reads next is an error."""

    def cut(self, response: Response, keep: float) -> None:
        """Write the head and the share ``keep`` of the body, never all of it, and close."""

    async def answer(self, response: Response) -> None:
        """Write a whole answer at once."""


def failure(status: int, why: str, code: str = MALFORMED) -> Response:
    """Return a platform's refusal for what never becomes an operation."""
    document = {"statusCode": code, "statusMsg": why}
    return Response(status, {"content-type": "application/json;charset=utf-8"}, jsontext.dumps(document))


# Its success would not be an answer: HTTP makes a tunnel of it.
NO_TUNNEL = failure(405, "CONNECT is not described: operations are posted")


class EmulatorApp:
    """An ASGI 3 application: lifespan events are acknowledged, requests handed to the platform.

    An object and not a method, since servers tell ASGI 3 from its forerunner by looking at ``__call__``.
    """

    def __init__(self, platform: Platform, clock: Clock) -> None:
        self._platform = platform
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one scope."""
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the emulator speaks HTTP only, not {scope['type']}")
        if scope["method"] == "CONNECT":
            await write(send, NO_TUNNEL)
            return
        try:
            body = await body_of(receive, BODY_LIMIT)
        except TooLarge as error:
            await write(send, failure(413, str(error)))
            return
        if body is None:
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = _query(scope["query_string"])
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        served = self._platform.serve(scope["method"], path, query, headers, body)
        await self._deliver(served, scope, send)

    async def _deliver(self, served: ServedAnswer, scope: Scope, send: Send) -> None:
        """Answer as the verdict wants it; what needs a hand on the connection asks the server for one.

        A server cannot refuse the connection that a request came over: a refusal resets it.
        """
        verdict, clock = served.verdict, self._clock
        connection: RequestConnection | None = scope.get("extensions", {}).get(CONNECTION)
        if verdict.delay:
            await clock.sleep(verdict.delay)
        if verdict.refuse or verdict.reset_before or verdict.reset_after or verdict.keep is not None:
            if connection is None:
                raise RuntimeError(
                    f"this server gives no hand on its connections: {', '.join(verdict.names)} cannot be carried out"
                )
            if verdict.keep is not None:
                connection.cut(served.response, verdict.keep)
            else:
                connection.reset()
        elif verdict.body_time:
            await write(send, served.response, lambda: clock.sleep(verdict.body_time))
        elif connection is not None:
            await connection.answer(served.response)
        else:
            await write(send, served.response)


def _query(text: bytes) -> dict[str, str]:
    alone = SIG.fullmatch(text)  # which is nearly always all there is
    if alone is not None:
        return {"sig": alone[1].decode()}
    return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True))


async def write(send: Send, response: Response, pause: Callable[[], Awaitable[None]] | None = None) -> None:
    """Send an answer; with a ``pause``, that much time passes after its head and its first byte."""
    headers = [(name.encode(), value.encode()) for name, value in response.headers.items()]
    body = b"" if response.status in BODILESS else response.body
    if response.status not in BODILESS:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    if pause is not None:
        await send({"type": "http.response.body", "body": body[:1], "more_body": True})
        await pause()
        body = body[1:]
    await send({"type": "http.response.body", "body": body})
