"""The emulator's HTTP door: an ASGI 3 application around a function from request to response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from rbim import jsontext
from rbim.emulator.rules import MALFORMED
from rbim.message import Response

__all__ = ["App"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Handle = Callable[[str, str, Mapping[str, str], Mapping[str, str], bytes], Response]

BODY_LIMIT = 1024 * 1024
TOO_LARGE = Response(
    413,
    {"content-type": "application/json;charset=utf-8"},
    jsontext.dumps({"statusCode": MALFORMED, "statusMsg": f"a body has at most {BODY_LIMIT} bytes"}),
)


class App:
    """An ASGI 3 application: lifespan events are acknowledged, requests handed to a function that answers them.

    An object and not a method, since servers tell ASGI 3 from its forerunner by looking at ``__call__``.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one scope."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            reason = f"the emulator speaks HTTP only, not {scope['type']}"
            raise RuntimeError(reason)
        body = await _body(receive)
        response = TOO_LARGE if body is None else self._respond(scope, body)
        wire = [(name.encode(), value.encode()) for name, value in response.headers.items()]
        wire.append((b"content-length", str(len(response.body)).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": wire})
        await send({"type": "http.response.body", "body": response.body})

    def _respond(self, scope: Scope, body: bytes) -> Response:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return self._handle(scope["method"], path, query, headers, body)


async def _body(receive: Receive) -> bytes | None:
    """Read the whole body; None where it is too large."""
    body: bytes = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_LIMIT:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return body


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
