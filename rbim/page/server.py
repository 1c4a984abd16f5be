"""The page of a file on this machine: its static files, which are the same for everyone, and answers behind a token.

Three things stand between the page and others:

- The guard of local servers (:mod:`rbim._support.local_server`): a page of another server gets 403, whatever it sends.
- The token: it stands behind the ``#`` of the address, which a browser sends to no server, and so it is in no log and no
  Referer. The page's script takes it from there, cleans the address, and sends it as ``Authorization: Bearer`` with each of
  its requests. A request without it, and a path that does not exist, get the same 404.
- A command (POST) must be ``application/json``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl

import anyio
import uvicorn
from attrs import field, frozen

from rbim._support import json
from rbim._support.asgi import TooLarge, body_of
from rbim._support.local_server import LocalServerGuard, is_json
from rbim._support.sockets import bound_to, uvicorn_config
from rbim.errors import InvalidRequest
from rbim.page.assets import Page, send_answer

if TYPE_CHECKING:
    from rbim._support.asgi import Receive, Scope, Send

__all__ = ["FilePage", "Handler", "PageRequest", "PageResponse", "RestingAnswer", "serve_page"]

LOOPBACK = "127.0.0.1"
MOST_OF_BODY = 64 * 1024  # bytes
CLOSE_TIMEOUT = 1  # seconds that an answer may take after Ctrl-C
CONNECTIONS = 64
SHARE = 20  # an answer that rests is made in at most one part in so many of the time
SHORTEST_PAUSE = 0.9  # seconds
JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


@frozen(kw_only=True)
class PageRequest:
    """A request that has passed the checks: its query (the first value of each name), and the JSON of its body."""

    query: Mapping[str, str] = field(factory=dict[str, str])
    document: Mapping[str, Any] = field(factory=dict[str, Any])

    def number(self, name: str, default: int = 0) -> int:
        """Return a number of 0 or more of the query. Raises InvalidRequest."""
        text = self.query.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= 18):  # noqa: PLR2004  # digits of 64 bits
            raise InvalidRequest(f"{name}: use a whole number", field=name)
        return int(text)


@frozen(kw_only=True)
class PageResponse:
    """The answer to a request. ``body`` is bytes, or parts that are sent as they come."""

    status: int = 200
    content_type: str = JSON
    body: bytes | AsyncIterable[bytes] = b""
    headers: Mapping[str, str] = field(factory=dict[str, str])

    @classmethod
    def of(cls, document: Any, status: int = 200) -> PageResponse:  # JSON
        """Return an answer with a JSON document."""
        return cls(status=status, body=json.dumps(document))


Handler = Callable[[PageRequest], Awaitable[PageResponse]]


class RestingAnswer:
    """One answer for all who ask: ``make`` takes at most a twentieth of the time, and waits 0.9 seconds at least."""

    def __init__(self, make: Callable[[], Awaitable[PageResponse]]) -> None:
        self.rest_until = 0.0
        self._make = make
        self._making = anyio.Lock()
        self._answer: PageResponse | None = None

    async def __call__(self, _: PageRequest) -> PageResponse:
        """Return the last answer, or a new one when it is time."""
        async with self._making:
            if self._answer is None or time.monotonic() >= self.rest_until:
                began = time.monotonic()
                self._answer = await self._make()
                ended = time.monotonic()
                self.rest_until = ended + max(SHORTEST_PAUSE, (SHARE - 1) * (ended - began))
            return self._answer


NOT_FOUND = PageResponse(status=404, content_type=TEXT, body=b"not found\n")


class FilePage:
    """The ASGI application of the page ``name``; see the module. ``routes`` are its answers, by method and path."""

    def __init__(self, name: str, routes: Mapping[tuple[str, str], Handler]) -> None:
        self.token = secrets.token_urlsafe(32)
        self._files = Page(name)
        self._routes = routes
        self._guard = LocalServerGuard(advice="open the address that the command printed")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if (why := self._guard.refusal(scope)) is not None:
            await _send(send, PageResponse(status=403, content_type=TEXT, body=f"{why}\n".encode()))
        elif self._files.serves(scope["path"]):
            await self._files(scope, receive, send)
        elif (answer := await self._answer(scope, receive)) is not None:
            await _send(send, answer)

    async def _answer(self, scope: Scope, receive: Receive) -> PageResponse | None:
        """Return the answer, or None if the client has left before it sent its whole body."""
        handler = self._routes.get((scope["method"], scope["path"]))
        given: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
        if handler is None or len(given) != 1 or not compare_digest(given[0], f"Bearer {self.token}".encode()):
            return NOT_FOUND
        document: Any = {}
        if scope["method"] == "POST":
            if not is_json(scope):
                return PageResponse.of({"error": "send application/json"}, 415)
            try:
                body = await body_of(receive, MOST_OF_BODY)
                document = json.loads(body or b"{}")
            except (TooLarge, json.NotJson) as error:
                return PageResponse.of({"error": str(error)}, 400)
            if body is None:
                return None
            if not isinstance(document, dict):
                return PageResponse.of({"error": "the body is not a JSON object"}, 400)
        query = dict(reversed(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)))
        try:
            return await handler(PageRequest(query=query, document=cast("dict[str, Any]", document)))
        except InvalidRequest as error:
            return PageResponse.of({"error": error.message}, 400)


async def _send(send: Send, answer: PageResponse) -> None:
    headers = {"content-type": answer.content_type, "cache-control": "no-store", **answer.headers}
    await send_answer(send, answer.status, headers, answer.body)


async def serve_page(page: FilePage, port: int, begun: Callable[[str], object]) -> None:
    """Serve a page on the loopback until SIGINT or SIGTERM, which is raised again; ``begun`` gets its address.

    ``port`` 0 is a free one. Raises OSError if it is taken.
    """
    with await bound_to(LOOPBACK, port) as listening:
        listening.listen()
        begun(f"http://{LOOPBACK}:{listening.getsockname()[1]}/#{page.token}")
        settings = {"limit_concurrency": CONNECTIONS, "timeout_graceful_shutdown": CLOSE_TIMEOUT}
        config = uvicorn_config(page, http="h11", **settings)
        await uvicorn.Server(config).serve(sockets=[listening])
