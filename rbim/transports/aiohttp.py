"""The aiohttp transport: a public ``ClientSession`` of aiohttp, rbim's own or the user's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult
from weakref import WeakKeyDictionary

from rbim._support.text import missing_extra, one_line
from rbim.errors import AnswerTooLarge, InvalidRequest, NotSent, TransportError, Unanswered
from rbim.http import Request, Response, answered
from rbim.transports._shared.base import BaseTransport, Options
from rbim.transports._shared.connecting import no_answer, no_connection, too_late
from rbim.transports._shared.heads import HeaderNames, fault_of
from rbim.transports._shared.link import Deadline
from rbim.transports._shared.network import readable
from rbim.transports._shared.proxies import login_headers
from rbim.transports._shared.redaction import redacted, sanitized

try:
    import aiohttp
    from yarl import URL
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(missing_extra("AiohttpTransport", missing.name, "aiohttp"), name=missing.name) from None

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

__all__ = ["AiohttpTransport"]

NO_TIMEOUT = aiohttp.ClientTimeout()
NO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")  # aiohttp adds them if they are missing


class _Payload(aiohttp.Payload):
    """A request body that knows how far its request came: aiohttp keeps the head until it writes the body."""

    sent = stale = kept = False  # stale: a kept connection was of no use, and nothing was written
    protocol: Any = None
    transport: Any = None

    def __init__(self, body: bytes, polls: WeakKeyDictionary[Any, Callable[[], object]]) -> None:
        super().__init__(body)
        self._size = len(body)
        self._polls = polls

    @property
    def consumed(self) -> bool:  # aiohttp asks before it sends an idempotent request once more
        return self.sent

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value, encoding, errors)

    async def write(self, writer: Any) -> None:
        """Write head and body, but not to a connection that was closed, or is kept and has data."""
        self.protocol, self.transport = writer.protocol, writer.transport
        self.kept = self.protocol in self._polls
        pending = self.kept and (self.protocol.should_close or self._polls[self.protocol]())
        if self.transport is None or self.transport.is_closing() or pending:
            self.stale = self.kept
            raise aiohttp.ClientConnectionError("the connection was closed before the request was sent")
        if not self.kept:
            self._polls[self.protocol] = readable(self.transport.get_extra_info("socket").fileno())
        self.sent = True
        await writer.write(self._value)

    def unread(self) -> bool:
        """Whether the connection of a request that was sent has data that was not read."""
        return self.sent and not self.transport.is_closing() and bool(self._polls[self.protocol]())


class AiohttpTransport(BaseTransport):
    """A transport that uses aiohttp: HTTP/1.1, on asyncio. On trio, use HttpxTransport.

    ``session`` is your ``aiohttp.ClientSession``, which stays open: its connector, cookies, headers and tracing apply.
    Default: a session without cookies, whose connector has no limit; a connection that was idle for ``keepalive_expiry``
    seconds (default: 5) is not used again, and is closed after up to twice as long. Other options are those of all
    transports, without ``uds``; a proxy may be http or https.

    Part of an answer, or an interim answer, that comes while a connection is idle does not end the connection. Importing
    this module raises ModuleNotFoundError if aiohttp is not installed.
    """

    library_version = f"aiohttp/{aiohttp.__version__}"
    loggers = "aiohttp.client", "aiohttp.internal"
    keeps_timeouts = True

    def __init__(self, *, session: aiohttp.ClientSession | None = None, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if self._uds is not None:
            raise InvalidRequest("uds: AiohttpTransport has no UNIX sockets: use HttpxTransport", field="uds")
        self._given = session
        self._session: Any = None
        self._polls: WeakKeyDictionary[Any, Callable[[], object]] = WeakKeyDictionary()  # by connection: is there data?
        self._names = HeaderNames()

    async def _open(self) -> None:
        self._asyncio_loop()
        expiry = min(self.keepalive_expiry, self.max_idle, 1e9)
        reuse: dict[str, Any] = {"keepalive_timeout": expiry} if expiry > 0 else {"force_close": True}
        self._session = self._given or aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, **reuse), cookie_jar=aiohttp.DummyCookieJar()
        )

    async def _close(self) -> None:
        if self._session is not self._given:
            await self._session.close()

    async def _send(self, request: Request, seconds: float) -> Response:
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            attempt = _Payload(request.body, self._polls)
            late = Deadline(deadline, attempt.unread)
            try:
                async with late.scope:
                    return await self._exchange(request, attempt)
            except Exception as raised:  # outside of this block, it does not become the context of the error to raise
                error = raised
            finally:
                late.stop()
                if attempt.transport is not None and attempt.transport.is_closing():  # aiohttp gives it up
                    attempt.transport.abort()
            if not attempt.stale:
                error = self._failure(error, request, attempt, seconds if late.scope.expired() else None)
                raise error

    async def _exchange(self, request: Request, attempt: _Payload) -> Response:
        proxy, login, context = self._routes.get(request.origin) or self._route_for(request)
        tunnel = request.origin.startswith("https:")
        answer = await self._session.request(
            request.method,
            _signed_url(request),
            data=attempt,
            headers=request.headers if tunnel or not login else {**request.headers, **login},
            skip_auto_headers=NO_HEADERS,
            allow_redirects=False,
            auto_decompress=False,
            raise_for_status=False,
            proxy=proxy,
            proxy_headers=login if tunnel else None,
            ssl=context,
            timeout=NO_TIMEOUT,
        )
        body, limit = bytearray(), self.answer_limit
        try:
            attempt.stale = not attempt.sent  # the answer came while the connection was idle
            if attempt.stale or answer.status < 200:  # noqa: PLR2004  # 101, which changes the protocol
                raise Unanswered(f"unexpected status {answer.status}: the client asked for no change of protocol")
            async for part in answer.content.iter_any():
                body += part
                if len(body) > limit:
                    raise AnswerTooLarge(f"the response body is longer than {limit} bytes", limit=limit)
        finally:
            answer.close()
        headers = self._names.joined(answer.raw_headers)
        if fault := fault_of(f"{answer.version.major}.{answer.version.minor}" if answer.version else "", headers):
            raise Unanswered(fault)
        framed = "content-length" in headers or "transfer-encoding" in headers
        if not framed and isinstance(attempt.protocol.exception(), aiohttp.ClientOSError):  # for aiohttp, that is an end
            raise Unanswered("the connection broke in the middle of the response")
        return answered(answer.status, headers, bytes(body))

    def _failure(self, error: Exception, request: Request, attempt: _Payload, seconds: float | None) -> TransportError:
        """Return the error to raise, without secrets of the request; ``seconds``: the time-out, if it has passed."""
        if isinstance(error, TransportError):
            return error.with_traceback(None)
        proxy = self._proxy_address(request.origin)
        if seconds is not None:
            late = f"no complete response within {seconds:g} s"
            return Unanswered(late) if attempt.sent else NotSent(too_late(request, seconds, proxy=proxy))
        text = redacted(one_line(str(getattr(error, "message", error)), 300), request.secrets)
        failure: TransportError = NotSent(no_connection(request, error, shown=text, proxy=proxy))
        if attempt.sent:
            failure = Unanswered(no_answer(request, f"{type(error).__name__}: {text}", new=not attempt.kept))
        below = getattr(error, "os_error", None)  # aiohttp's own errors keep the request
        failure.__cause__ = aiohttp.ClientError(text) if below is None else sanitized(below, request.secrets)
        return failure

    def _new_route(self, origin: str) -> Any:
        """Return the proxy, the headers of its login, and the TLS context for an origin (True: that of the session)."""
        address = self._proxy_address(origin)
        kind = "" if address is None else address.partition(":")[0]
        if kind not in {"", "http", "https"}:
            raise ValueError("proxy: AiohttpTransport supports http:// and https:// proxies only: use HttpxTransport")
        own = "https" in {kind, origin.partition(":")[0]} and (self._verify is not True or self._cert is not None)
        login = login_headers(address or "")  # aiohttp would write it in Latin-1
        proxy = None if address is None else URL(address).with_user(None)
        self._routes[origin] = route = proxy, login, self._secure_context() if own else True
        return route


def _signed_url(request: Request) -> URL:
    """Return the address of a request as if from a pickle: yarl's caches would keep the signature."""
    url = URL(request.origin + request.path, encoded=True)
    signed = object.__new__(URL)
    signed.__setstate__((SplitResult(url.scheme, url.raw_authority, url.raw_path, request.target.partition("?")[2], ""),))
    return signed
