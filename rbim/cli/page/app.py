"""The ASGI application of a command's page: files that are the same for everyone, and everything else behind a token.

Three things stand between the page and others:

- The guard of local servers (:mod:`rbim._support.local_server`): a page of another server gets 403, whatever it sends.
- The token: it stands behind the ``#`` of the address, which a browser sends to no server, and so it is in no log and no
  Referer. The page's script takes it from there, cleans the address, and sends it as ``Authorization: Bearer`` with each of
  its requests. A request without it, and a path that does not exist, get the same 404.
- A command (POST) must be ``application/json``.

A download is a link that a browser follows by itself, without the token: the page asks for a *ticket*, a random path that
serves once and for a minute.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl

from attrs import field, frozen

from rbim._support import json
from rbim._support.asgi import TooLarge, body_of
from rbim._support.local_server import LocalServerGuard, is_json
from rbim.errors import InvalidRequest
from rbim.page.assets import SECURITY_HEADERS

if TYPE_CHECKING:
    from rbim._support.asgi import Receive, Scope, Send
    from rbim.page.assets import Page

__all__ = ["Answer", "Call", "Handler", "LocalPageApp", "Tickets", "new_token"]

MOST_OF_BODY = 64 * 1024  # bytes
TICKET_LASTS = 60.0  # seconds
MOST_TICKETS = 16
ROOT, FILES, EVENTS, TICKETS = "/", "/static/", "/events", "/download/"
BEARER = b"Bearer "
JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


def new_token() -> str:
    """Return a random text of 256 bits, made of letters, digits, ``-`` and ``_``."""
    return secrets.token_urlsafe(32)


@frozen(kw_only=True)
class Call:
    """A request that has passed the checks: its query (the first value of each name), and the JSON of its body."""

    query: Mapping[str, str] = field(factory=dict[str, str])
    document: Mapping[str, Any] = field(factory=dict[str, Any])

    def whole_number(self, name: str, default: int = 0) -> int:
        """Return a number of 0 or more of the query. Raises InvalidRequest."""
        text = self.query.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= 18):  # noqa: PLR2004  # digits of 64 bits
            raise InvalidRequest(f"{name}: use a whole number", field=name)
        return int(text)


@frozen(kw_only=True)
class Answer:
    """The answer to a request. ``body`` is bytes, or parts that are sent as they come."""

    status: int = 200
    content_type: str = JSON
    body: bytes | AsyncIterable[bytes] = b""
    headers: Mapping[str, str] = field(factory=dict[str, str])

    @classmethod
    def of(cls, document: Any, status: int = 200) -> Answer:  # JSON
        """Return an answer with a JSON document."""
        return cls(status=status, body=json.dumps(document))


Handler = Callable[[Call], Awaitable[Answer]]

NOT_FOUND = Answer(status=404, content_type=TEXT, body=b"not found\n")
ONLY_GET = Answer(
    status=405, content_type=TEXT, body=b"a download has no head of its own: use GET\n", headers={"allow": "GET"}
)
"""The answer to HEAD for a download, which it must neither write nor use up."""


class Tickets:
    """Paths that serve one download each, once and for a minute; at most 16, the oldest give way."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kept: dict[str, tuple[float, Handler]] = {}

    def path(self, handler: Handler) -> str:
        """Return a new path at which the handler answers."""
        while len(self._kept) >= MOST_TICKETS:
            del self._kept[next(iter(self._kept))]
        name = new_token()
        self._kept[name] = self._monotonic() + TICKET_LASTS, handler
        return f"{TICKETS}{name}"

    def take(self, path: str) -> Handler | None:
        """Return the handler of a path, which serves it no more; None if there is none."""
        expires, handler = self._kept.pop(path.removeprefix(TICKETS), (0.0, None))
        return handler if self._monotonic() < expires else None


class LocalPageApp:
    """Answers the requests of a page; see the module.

    ``page`` serves the files, which need no token, and the events. ``routes`` are the other answers, by method and path.
    """

    def __init__(
        self, page: Page, token: str, *, routes: Mapping[tuple[str, str], Handler], tickets: Tickets | None = None
    ) -> None:
        self._page = page
        self._token = token.encode()
        self._routes = routes
        self._tickets = tickets
        self._guard = LocalServerGuard(advice="open the address that the command printed")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if (why := self._guard.refusal(scope)) is not None:
            await _send(send, Answer(status=403, content_type=TEXT, body=f"{why}\n".encode()))
        elif self._is_file(scope["path"]) or (scope["path"] == EVENTS and self._is_allowed(scope)):
            await self._page(scope, receive, send)
        elif (answer := await self._answer(scope, receive)) is not None:
            await _send(send, answer, head=scope["method"] == "HEAD")

    async def _answer(self, scope: Scope, receive: Receive) -> Answer | None:
        """Return the answer, or None if the client has left before it sent its whole body."""
        method, path = "GET" if scope["method"] == "HEAD" else scope["method"], scope["path"]
        if self._tickets is not None and method == "GET" and path.startswith(TICKETS):
            if scope["method"] == "HEAD":
                return ONLY_GET
            handler = self._tickets.take(path)
        else:
            handler = self._routes.get((method, path)) if self._is_allowed(scope) else None
        if handler is None:
            return NOT_FOUND
        document: Any = {}
        if method == "POST":
            if not is_json(scope):
                return Answer.of({"error": "send application/json"}, 415)
            try:
                body = await body_of(receive, MOST_OF_BODY)
                document = json.loads(body or b"{}")
            except (TooLarge, json.NotJson) as error:
                return Answer.of({"error": str(error)}, 400)
            if body is None:
                return None
            if not isinstance(document, dict):
                return Answer.of({"error": "the body is not a JSON object"}, 400)
        query = dict(reversed(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)))
        try:
            return await handler(Call(query=query, document=cast("dict[str, Any]", document)))
        except InvalidRequest as error:
            return Answer.of({"error": error.message}, 400)

    @staticmethod
    def _is_file(path: str) -> bool:
        """Return whether a path is one of the files, which are the same for everyone."""
        return path == ROOT or path.startswith(FILES)

    def _is_allowed(self, scope: Scope) -> bool:
        """Return whether a request has the token; the comparison takes the same time for each wrong one."""
        given: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and compare_digest(given[0], BEARER + self._token)


async def _send(send: Send, answer: Answer, *, head: bool = False) -> None:
    headers = {"content-type": answer.content_type, "cache-control": "no-store", **SECURITY_HEADERS, **answer.headers}
    whole = answer.body if isinstance(answer.body, bytes) else None
    if whole is not None:
        headers["content-length"] = str(len(whole))
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
    if whole is None and not head:
        async for part in cast("AsyncIterable[bytes]", answer.body):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"" if head or whole is None else whole})
