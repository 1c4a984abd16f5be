"""Send requests through a transport of the library (a *carrier*), and read responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from rbim.errors import AnswerTooLarge, NotSent, TransportError, Unanswered
from rbim.http import Response
from rbim.transports._shared.connecting import no_answer, no_connection
from rbim.transports._shared.redaction import redacted, sanitized

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import ModuleType

    from rbim.http import Request

__all__ = ["Body", "Carriage", "failure", "read_body", "too_large"]

READ_AHEAD = 256 * 1024  # bytes past the limit that may be read before the connection is closed; httpcore reads 64 KiB

# Exceptions of the library that mean NotSent: from a carrier, nothing else shows it.
NOT_SENT = (
    "ConnectTimeout",
    "ConnectError",
    "PoolTimeout",
    "ProxyError",
    "UnsupportedProtocol",
    "LocalProtocolError",
    "InvalidURL",
)


class Body:
    """A request body; a mix-in for the library's AsyncByteStream.

    It is not a generator, unlike the library's own: trio warns about generators that a failure leaves unfinished.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._done = not body

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._done = not self._body
        return self

    async def __anext__(self) -> bytes:
        if self._done:
            raise StopAsyncIteration
        self._done = True
        return self._body


async def read_body(answer: Any, limit: int) -> bytes | None:
    """Return the whole body of a response of the library or of httpcore, or None if it is longer than ``limit`` bytes.

    If it is too long, the connection is closed, but the bytes already read are consumed to their end: trio would warn about
    unfinished generators of httpcore.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async for part in answer.stream:
            before, size = size, size + len(part)
            if size <= limit:
                parts.append(part)
            elif before <= limit:
                parts.clear()
                await answer.aclose()
            elif size > limit + READ_AHEAD:
                break
    except Exception:
        if size <= limit:
            raise
    finally:
        await answer.aclose()
    if size > limit:
        return None  # no error is raised here: its traceback would show a part of the response
    return parts[0] if len(parts) == 1 else b"".join(parts)


def too_large(limit: int) -> AnswerTooLarge:
    """Return the error for a response body that is too long."""
    return AnswerTooLarge(f"the response body is longer than {limit} bytes", limit=limit)


def failure(  # noqa: PLR0913  # the facts of a message, by keyword
    error: Exception,
    request: Request,
    *,
    sent: bool,
    new: bool = False,
    failed: Exception | None = None,
    proxy: str | None = None,
    uds: str | None = None,
) -> TransportError:
    """Return the error to raise for an error of the library, without secrets of the request.

    ``new``: the connection was just opened. ``failed``: what prevented it. ``proxy`` and ``uds`` are the way that it took.
    """
    if not sent:
        return NotSent(no_connection(request, failed or error, proxy=proxy, uds=uds))
    text = redacted(str(error), request.secrets)
    name = type(error).__name__
    return Unanswered(no_answer(request, f"{name}: {text}" if text else name, new=new))


class Carriage:
    """Sends requests through carriers: they are those of a user, or made for one request each.

    ``library`` is httpx or httpx2, ``body`` its request body, ``answer_limit`` the longest response body in bytes.
    """

    def __init__(self, library: ModuleType, body: type[Body], answer_limit: int) -> None:
        self._library = library
        self._body = body
        self._answer_limit = answer_limit
        self._not_sent = tuple(getattr(library, name) for name in NOT_SENT)

    def message(self, request: Request) -> Any:
        """Return the request of the library. Raises the library's InvalidURL."""
        message = self._library.Request(
            request.method, request.origin + request.target, headers=[*request.headers.items()], content=request.body
        )
        message.stream = self._body(request.body)
        return message

    async def exchange(self, carrier: Any, request: Request, seconds: float) -> Response:
        """Send one request and return its response. Raises NotSent, Unanswered or AnswerTooLarge."""
        try:
            with anyio.move_on_after(seconds):
                return await self._carried(carrier, request)
        except TransportError:
            raise
        except Exception as error:
            made = failure(error, request, sent=not isinstance(error, self._not_sent))
            raise made from sanitized(error, request.secrets)
        raise Unanswered(f"no complete response within {seconds:g} s")

    async def _carried(self, carrier: Any, request: Request) -> Response:
        # No local holds the signed address: a traceback with locals must not show it.
        answer = await carrier.handle_async_request(self.message(request))
        body = await read_body(answer, self._answer_limit)
        if body is None:
            raise too_large(self._answer_limit)
        headers: dict[str, str] = {}
        for name, value in answer.headers.multi_items():
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return Response(answer.status_code, headers, body)
