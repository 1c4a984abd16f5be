"""The aiohttp transport: one session whose pool has no limit, because rbim's client limits the requests in flight.

The library's automatic features are off: cookies, redirects, decompression, ``.netrc``, extra headers, and the second try
of an idempotent request whose connection broke. The library's pool is first-in-first-out and would reuse a connection that
received data while idle; here such a connection is closed.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from rbim._support.text import missing_extra, one_line
from rbim.errors import AnswerTooLarge, NotSent, TransportError, Unanswered
from rbim.http import Request, Response
from rbim.transports._shared.base import BaseTransport
from rbim.transports._shared.connecting import no_answer, no_connection, too_late
from rbim.transports._shared.head_cache import HeadCache
from rbim.transports._shared.network import proxy_for, rounded_up, tls_context
from rbim.transports._shared.redaction import LogRedactor, redacted, sanitized, strip_frames

try:
    import aiohttp
    from yarl import URL
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(missing_extra("AiohttpTransport", missing.name, "aiohttp"), name=missing.name) from None

from rbim.transports.aiohttp.connections import (
    CURRENT_REQUEST,
    BareRequest,
    ConnectionHandler,
    Connector,
    DeadlineTimer,
    NoCookies,
    RequestBody,
    RequestProgress,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

__all__ = ["AiohttpTransport"]

ANSWER_LIMIT = 8 * 1024 * 1024
KEEPALIVE = 5.0
MAX_IDLE = 60.0
MIN_TIMEOUT = 0.001  # seconds; with less time no request is sent
MAX_ERROR_TEXT = 300  # characters of an aiohttp message

Raw = tuple[tuple[bytes, bytes], ...]

# Exceptions of aiohttp and their meaning once the request had a connection; the first match counts. Before that, every
# exception means NotSent. ClientConnectorError includes errors of DNS, TLS, certificates and proxies.
ERRORS: tuple[tuple[type[Exception], type[TransportError]], ...] = (
    (aiohttp.ClientConnectorError, NotSent),
    (aiohttp.ConnectionTimeoutError, NotSent),
    (aiohttp.ClientHttpProxyError, NotSent),
    (aiohttp.InvalidURL, NotSent),
    (aiohttp.ServerDisconnectedError, Unanswered),
    (aiohttp.ServerTimeoutError, Unanswered),
    (aiohttp.ClientOSError, Unanswered),  # writing or reading
    (aiohttp.ClientPayloadError, Unanswered),
    (aiohttp.ClientResponseError, Unanswered),  # a response that is not HTTP
    (Exception, Unanswered),
)


class AiohttpTransport(BaseTransport):
    """A transport that uses aiohttp: HTTP/1.1, on asyncio. On trio, use HttpxTransport.

    - ``verify``: an ``ssl.SSLContext``, the path of a CA bundle, or False for no verification. Default: verify against the
      machine's certificates.
    - ``cert``: the path of a client certificate with its key, or a pair of paths.
    - ``proxy``: the address of an HTTP proxy. Without it, ``trust_env`` (default: True) reads ``HTTP_PROXY``,
      ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``.
    - ``keepalive_expiry``: seconds (default: 5). A connection that was idle for longer is not used for a request that must
      not be repeated, because the server may be closing it.
    - ``max_idle``: seconds (default: 60) after which an idle connection is closed; aiohttp may take up to twice as long.
    - ``answer_limit``: bytes (default: 8 MiB). A longer response body raises AnswerTooLarge.

    Importing this module raises ModuleNotFoundError if aiohttp is not installed. Entering the transport raises RuntimeError
    on an event loop other than asyncio's.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        verify: ssl.SSLContext | str | bool = True,
        cert: str | tuple[str, str] | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
        keepalive_expiry: float = KEEPALIVE,
        max_idle: float = MAX_IDLE,
        answer_limit: int = ANSWER_LIMIT,
    ) -> None:
        self.keepalive_expiry = keepalive_expiry
        self.max_idle = max_idle
        self.answer_limit = answer_limit
        self._verify = verify
        self._cert = cert
        self._proxy = proxy
        self._trust_env = trust_env
        self._context: ssl.SSLContext | None = None
        self._routes: dict[str, tuple[URL | None, ssl.SSLContext | bool]] = {}
        self._urls: HeadCache[URL] = HeadCache()
        self._last_raw: Raw = ()
        self._last_headers: dict[str, str] = {}
        self._session: aiohttp.ClientSession | None = None
        self._deadlines: DeadlineTimer | None = None
        self._client_timeout = aiohttp.ClientTimeout()
        self._log = LogRedactor("aiohttp.client", "aiohttp.internal")

    async def _open(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("AiohttpTransport runs on asyncio only: on trio, use HttpxTransport") from None
        self._deadlines = DeadlineTimer(loop)
        self._session = aiohttp.ClientSession(
            connector=Connector(self.keepalive_expiry, self.max_idle),
            request_class=BareRequest,
            cookie_jar=NoCookies(),
            auto_decompress=False,
        )
        self._log.attach()

    async def _close(self) -> None:
        session, self._session = self._session, None
        self._urls.clear()
        self._log.detach()
        if self._deadlines is not None:
            self._deadlines.close()
        if session is not None:
            await session.close()

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # enforced here
        """Send one request and return its response; ``timeout`` is in seconds.

        Raises NotSent, Unanswered or AnswerTooLarge.
        """
        try:
            return await self._exchange(request, timeout)
        except Exception:
            raise
        except BaseException as interruption:
            strip_frames(interruption)
            raise

    async def _exchange(self, request: Request, seconds: float) -> Response:
        session, deadlines = self._session, self._deadlines
        if session is None or deadlines is None:
            raise NotSent("the transport is not open: use it inside 'async with'")
        if seconds < MIN_TIMEOUT:
            raise NotSent(too_late(request, seconds))
        self._log.remember(request)
        connecting = rounded_up(seconds)
        if connecting != self._client_timeout.connect:
            # aiohttp's own timer for new connections; without the threshold it would round up to whole seconds
            self._client_timeout = aiohttp.ClientTimeout(connect=connecting, ceil_threshold=math.inf)
        deadline = deadlines.loop.time() + seconds
        while True:
            progress = RequestProgress(request, deadline)
            token = CURRENT_REQUEST.set(progress)
            deadlines.begin(progress)
            answered: Response | TransportError = Unanswered()
            cause: Exception | None = None
            try:
                answered = await self._carry(request, session, progress)
            except TransportError:
                raise
            except Exception as error:
                cause, answered = self._failure(error, request, progress, seconds)
            finally:
                deadlines.end(progress)
                CURRENT_REQUEST.reset(token)
                progress.finish(whole=isinstance(answered, Response))
                progress.headers = {}  # timers and the connection, made for this request, hold its context for longer
            if not progress.stale:
                break
        if progress.timed_out:
            cause, answered = None, Unanswered(f"no complete response within {seconds:g} s")
        if isinstance(answered, Response):
            return answered
        raise answered from cause  # outside the except block: aiohttp's exception must not become its context

    async def _carry(
        self, request: Request, session: aiohttp.ClientSession, progress: RequestProgress
    ) -> Response | TransportError:
        # Errors are returned, not raised: locals of this frame show the signed address.
        proxy, context = self._route_to(request.origin)
        answer = await session.request(
            request.method,
            self._urls.get(request) or self._urls.keep(request, _signed_url(request)),
            data=RequestBody(request.body, progress) if request.body else b"",
            allow_redirects=False,
            proxy=proxy,
            ssl=context,
            timeout=self._client_timeout,
        )
        body = None
        try:
            if answer.status < 200:  # noqa: PLR2004  # 101, which changes the protocol
                return Unanswered(f"unexpected status {answer.status}: the client asked for no change of protocol")
            body = await self._body(answer.content)
        finally:
            if body is None:
                answer.close()
        if body is None:
            return AnswerTooLarge(f"the response body is longer than {self.answer_limit} bytes", limit=self.answer_limit)
        if _broken(progress.protocol) and _ends_with_connection(answer):
            return Unanswered("the connection broke in the middle of the response")
        return Response(answer.status, self._headers(answer.raw_headers), body)

    async def _body(self, content: aiohttp.StreamReader) -> bytes | None:
        """Return the whole body, or None if it is too long."""
        if content.is_eof():
            body = content.read_nowait()
            return body if len(body) <= self.answer_limit else None
        parts: list[bytes] = []
        size = 0
        while not content.at_eof():
            part = await content.readany()
            parts.append(part)
            size += len(part)
            if size > self.answer_limit:
                return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _failure(
        self, error: Exception, request: Request, progress: RequestProgress, seconds: float
    ) -> tuple[Exception, TransportError]:
        """Return the cause of a failure and the error to raise, both without secrets of the request."""
        kind = next(meaning for raised, meaning in ERRORS if isinstance(error, raised)) if progress.sent else NotSent
        cause = _sanitized_cause(error, request)
        text = str(cause)
        if kind is not NotSent:
            reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
            return cause, kind(no_answer(request, reason, new=not progress.kept))
        try:
            proxy = proxy_for(request.origin, self._proxy, trust_env=self._trust_env)
        except ValueError:  # an invalid origin
            proxy = None
        if isinstance(error, TimeoutError):
            return cause, NotSent(too_late(request, seconds, proxy=proxy))
        return cause, NotSent(no_connection(request, error, shown=text, proxy=proxy))

    def _headers(self, raw: Raw) -> dict[str, str]:
        """Return the headers of a response; they are parsed again only if they changed (mostly with the Date)."""
        if raw != self._last_raw:
            self._last_raw, self._last_headers = raw, _joined_headers(raw)
        return self._last_headers.copy()

    def _route_to(self, origin: str) -> tuple[URL | None, ssl.SSLContext | bool]:
        """Return the proxy and the TLS context for an origin. Raises NotSent if an option cannot be used."""
        if origin not in self._routes:
            try:
                proxy = proxy_for(origin, self._proxy, trust_env=self._trust_env)
                url = None if proxy is None else _proxy_url(proxy)
                needs_tls = origin.startswith("https:") or (url is not None and url.scheme == "https")
                self._routes[origin] = url, self._secure_context() if needs_tls else True
            except (OSError, ValueError) as error:  # a missing CA bundle, an invalid proxy address
                raise NotSent(f"cannot connect: {error}") from sanitized(error)
        return self._routes[origin]

    def _prepare(self, origins: Iterable[str], *, secure: bool) -> None:
        for origin in origins:
            self._route_to(origin)
        if secure:
            self._secure_context()

    def _secure_context(self) -> ssl.SSLContext | bool:
        if self._verify is True and self._cert is None:
            return True
        if self._context is None:
            self._context = tls_context(self._verify, self._cert)
        return self._context


def _signed_url(request: Request) -> URL:
    """Return the address of a request, without leaving its signature in the caches of yarl.

    ``URL(address)`` and ``URL.build`` keep the last 128 addresses for the life of the process, and ``urlsplit`` keeps as
    many. This is the way in which yarl reads a pickled URL; only the unsigned part comes from its cache.
    """
    url = URL(request.origin + request.path, encoded=True)
    query = request.target[len(request.path) + 1 :]
    signed = object.__new__(URL)
    signed.__setstate__((SplitResult(url.scheme, url.raw_authority, url.raw_path, query, url.raw_fragment),))
    return signed


def _proxy_url(address: str) -> URL:
    url = URL(address)
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError("invalid proxy address: use http://host:port or https://host:port")
    return url


def _broken(protocol: ConnectionHandler | None) -> bool:
    return protocol is not None and isinstance(protocol.exception(), aiohttp.ClientOSError)


def _ends_with_connection(answer: aiohttp.ClientResponse) -> bool:
    """Whether the body ends with the connection; aiohttp also accepts a broken connection as the end."""
    return not answer.headers.keys() & {"Content-Length", "Transfer-Encoding"}


def _joined_headers(raw: Raw) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.lower().decode("latin-1"), _text(value)
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _sanitized_cause(error: Exception, request: Request) -> Exception:
    """Return the cause of a failure, without the addresses, headers and partial responses in aiohttp's exceptions."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and not isinstance(cause, aiohttp.ClientError):
        return sanitized(cause, request.secrets)
    if isinstance(cause, aiohttp.InvalidURL):
        text = f"invalid address: {request.origin}"
    elif isinstance(cause, aiohttp.ClientResponseError):
        text = f"status {cause.status}: {cause.message}"
    elif isinstance(cause, aiohttp.ConnectionTimeoutError):
        text = "no connection in time"
    elif isinstance(cause, aiohttp.ServerDisconnectedError):
        text = "the server closed the connection"
    else:
        text = str(cause)
    return aiohttp.ClientError(redacted(one_line(text, MAX_ERROR_TEXT), request.secrets))
