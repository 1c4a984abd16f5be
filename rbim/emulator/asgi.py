"""The emulator over HTTP: an ASGI 3 application that passes requests to the platform, and keeps the latest exchanges."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl

from attrs import define

from rbim._support import json
from rbim._support.asgi import TooLarge, body_of, lifespan
from rbim.codes import MALFORMED
from rbim.emulator.platform.rules import DependsOnDialect
from rbim.http import Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.clock import Clock
    from rbim.emulator.logs import RecordedRequest
    from rbim.emulator.platform.service import Platform, ServedAnswer

__all__ = [
    "CONNECTION",
    "EMULATED",
    "KEPT",
    "MAX_BODY",
    "OUTCOME",
    "PRODUCT",
    "RECORD",
    "EmulatorApp",
    "KeptExchange",
    "RequestConnection",
    "failure",
    "write",
]

CONNECTION = "rbim.connection"
"""The ASGI extension through which the emulator's own server gives control over connections."""

RECORD = "rbim.record"
"""The key of a scope under which the application notes the record of its request, for what is in front of it."""

OUTCOME = "rbim.outcome"
"""The key of a scope for the status and the reason of a refusal, or of a command, for what is in front of it."""

PRODUCT = "rbim-emulator"
EMULATED = f"{PRODUCT} (emulated clock)"
"""The ``Server`` header of an emulator whose clock is emulated, so that ``Date`` is not taken for the time of a machine."""

KEPT = 256
"""The latest exchanges that are kept, by reference: few, because what stays in memory is out of the processor's cache."""

MAX_BODY = 16 * 1024
"""Bytes of a body that are kept. In all at most 8 MB, because a request and its answer have one each."""

BODY_LIMIT = 1024 * 1024
BODILESS = (204, 304)
"""The statuses of responses without a body."""

SIG = re.compile(rb"sig=([0-9A-Fa-f]+)")


class RequestConnection(Protocol):
    """Control over the connection of a request."""

    def reset(self) -> None:
        """Reset the connection: the peer's next read fails."""

    def close(self) -> None:
        """Close the connection, also in the middle of an answer."""


def failure(status: int, message: str, code: str = MALFORMED) -> Response:
    """Return a refusal of the platform for a request that is not a readable operation."""
    document = {"statusCode": code, "statusMsg": message}
    return Response(status, {"content-type": "application/json;charset=utf-8"}, json.dumps(document))


# In HTTP, a successful CONNECT opens a tunnel instead of returning an answer.
NO_TUNNEL = failure(405, "CONNECT is not described: operations are posted")


@define(eq=False)
class KeptExchange:
    """One request as it arrived, and its answer. ``took`` is in seconds of the emulator's clock, None before the answer.

    ``response`` is None if the emulator failed to answer. Both bodies are without the end of long ones; ``size`` and
    ``answer_size`` are the lengths of the whole.
    """

    record: RecordedRequest
    method: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    size: int
    response: Response | None
    answer_size: int
    took: float | None = None


class EmulatorApp:
    """An ASGI 3 application: it acknowledges lifespan events and passes HTTP requests to the platform.

    It is an object and not a method because servers detect ASGI 3 by its ``__call__``.
    """

    def __init__(self, platform: Platform, clock: Clock) -> None:
        self._exchanges: list[KeptExchange | None] = [None] * KEPT  # by the numbers of their requests
        self._platform = platform
        self._clock = clock

    def exchange_of(self, record: RecordedRequest) -> KeptExchange | None:
        """Return the exchange of a request, or None if it is not kept."""
        kept = self._exchanges[record.number % KEPT]
        return kept if kept is not None and kept.record is record else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one scope."""
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the emulator serves HTTP only, not {scope['type']}")
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
        sent = scope["query_string"]
        only = SIG.fullmatch(sent)  # nearly always the whole query
        query = {"sig": only[1].decode()} if only else dict(parse_qsl(sent.decode("latin-1"), keep_blank_values=True))
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        try:
            answer = self._platform.serve(scope["method"], path, query, headers, body)
        except DependsOnDialect:
            self._keep(scope, body, None)
            raise
        exchange = self._keep(scope, body, answer.response)
        scope[RECORD] = exchange.record
        try:
            await self._respond(answer, scope.get("extensions", {}).get(CONNECTION), send)
        finally:
            exchange.took = self._clock.monotonic() - exchange.record.at

    def _keep(self, scope: Scope, body: bytes, response: Response | None) -> KeptExchange:
        """Keep the exchange of the latest request in the place of an old one; the caller notes ``took`` at its end."""
        record = self._platform.requests.records[-1]
        size, answer_size = len(body), 0 if response is None else len(response.body)
        if response is not None and answer_size > MAX_BODY:
            response = Response(response.status, response.headers, response.body[:MAX_BODY])
        method, query, headers = scope["method"], scope["query_string"], scope["headers"]
        kept = KeptExchange(record, method, query, headers, body[:MAX_BODY], size, response, answer_size)
        self._exchanges[record.number % KEPT] = kept
        return kept

    async def _respond(self, answer: ServedAnswer, connection: RequestConnection | None, send: Send) -> None:
        """Send the answer with the injected faults; some of them need control over the connection, from the server.

        A server cannot refuse a connection that it has accepted: a refusal resets the connection.
        """
        injection, clock = answer.injection, self._clock
        if injection.delay:
            await clock.sleep(injection.delay)
        if injection.refuse or injection.reset_before or injection.reset_after or injection.keep is not None:
            if connection is None:
                needs = ", ".join(injection.names)
                raise RuntimeError(f"this server gives no control over its connections, needed for {needs}")
            if injection.keep is None:
                connection.reset()
            else:
                await write(send, answer.response, keep=injection.keep)
                connection.close()
        else:
            pause = (lambda: clock.sleep(injection.body_time)) if injection.body_time else None
            await write(send, answer.response, pause)


async def write(
    send: Send, response: Response, pause: Callable[[], Awaitable[None]] | None = None, *, keep: float | None = None
) -> None:
    """Send a response; with ``pause``, wait for it after the head and the first byte of the body.

    With ``keep`` send that share of the body only, and never all of it; the caller closes the connection.
    """
    headers = [(name.encode(), value.encode()) for name, value in response.headers.items()]
    body = b"" if response.status in BODILESS else response.body
    if response.status not in BODILESS:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    if keep is not None:
        body = body[: max(0, min(int(len(body) * keep), len(body) - 1))]
    elif pause is not None:
        await send({"type": "http.response.body", "body": body[:1], "more_body": True})
        await pause()
        body = body[1:]
    await send({"type": "http.response.body", "body": body, "more_body": keep is not None})
