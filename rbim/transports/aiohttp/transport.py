"""aiohttp, one session whose pool has no limits of its own, since rbim's client decides how many requests are in flight.

What the library would do unasked is off: cookies, redirects, decompression, ``.netrc``, headers of its own, and the second
try of an idempotent request whose connection broke. Its pool is first-in-first-out, and would hand out a connection on which
something came while it was idle; here it is closed in that case.
"""

from __future__ import annotations

import asyncio
import math
from io import BytesIO
from typing import TYPE_CHECKING

from rbim._support.text import missing_extra, one_line
from rbim.errors import AnswerTooLarge, NotSent, TransportError, Unanswered
from rbim.http import Request, Response
from rbim.transports._shared.network import in_grains, proxy_for, tls_context
from rbim.transports._shared.redaction import LogRedactor, redacted, unframed, untraced

try:
    import aiohttp
    from yarl import URL
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(missing_extra("AiohttpTransport", missing.name, "aiohttp"), name=missing.name) from None

from rbim.transports.aiohttp.connections import (
    UNDER_WAY,
    BareRequest,
    ConnectionHandler,
    Connector,
    DeadlineTimer,
    NoCookies,
    RequestProgress,
)

if TYPE_CHECKING:
    import ssl
    from types import TracebackType
    from typing import Self

__all__ = ["AiohttpTransport"]

ANSWER_LIMIT = 8 * 1024 * 1024
KEEPALIVE = 5.0
LEAST = 0.001  # seconds in which a request can be sent at all
LARGE = 64 * 1024  # bytes of a body from which on it is sent in pieces
SAID = 300  # characters of what aiohttp says
KEPT = 64  # addresses kept: a signature, which is a part of them, holds for a second

Raw = tuple[tuple[bytes, bytes], ...]

# What aiohttp raises, and what it means once there was a connection for the request; the first that fits counts. Before
# that, everything is NotSent. ClientConnectorError comprises those of DNS, TLS, certificates and proxies.
ERRORS: tuple[tuple[type[Exception], type[TransportError]], ...] = (
    (aiohttp.ClientConnectorError, NotSent),
    (aiohttp.ConnectionTimeoutError, NotSent),
    (aiohttp.ClientHttpProxyError, NotSent),
    (aiohttp.InvalidURL, NotSent),
    (aiohttp.ServerDisconnectedError, Unanswered),
    (aiohttp.ServerTimeoutError, Unanswered),
    (aiohttp.ClientOSError, Unanswered),  # of writing and of reading
    (aiohttp.ClientPayloadError, Unanswered),
    (aiohttp.ClientResponseError, Unanswered),  # an answer that is no HTTP
    (Exception, Unanswered),
)


class AiohttpTransport:
    """Carries requests with aiohttp over HTTP/1.1, on asyncio; on trio, use HttpxTransport.

    TLS is verified against the machine's certificates; ``verify`` takes an ``ssl.SSLContext``, the path of a CA bundle, or
    False; ``cert`` the path of a client certificate with its key, or a pair of paths. ``proxy`` is the address of an HTTP
    proxy; without one, ``trust_env`` takes it from ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``. A
    connection idle for more than ``keepalive_expiry`` seconds is not used for a request that must not be repeated, since
    the server may be closing it. An answer of more than ``answer_limit`` bytes is AnswerTooLarge.

    Importing this module raises ModuleNotFoundError where aiohttp is not installed, entering the transport RuntimeError on
    another event loop than asyncio's.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        verify: ssl.SSLContext | str | bool = True,
        cert: str | tuple[str, str] | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
        keepalive_expiry: float = KEEPALIVE,
        answer_limit: int = ANSWER_LIMIT,
    ) -> None:
        self.keepalive_expiry = keepalive_expiry
        self.answer_limit = answer_limit
        self._verify = verify
        self._cert = cert
        self._proxy = proxy
        self._trust_env = trust_env
        self._context: ssl.SSLContext | None = None
        self._ways: dict[str, tuple[URL | None, ssl.SSLContext | bool]] = {}
        self._urls: dict[str, URL] = {}
        self._raw: Raw = ()
        self._read: dict[str, str] = {}
        self._session: aiohttp.ClientSession | None = None
        self._watch: DeadlineTimer | None = None
        self._limit = aiohttp.ClientTimeout()
        self._log = LogRedactor("aiohttp.client", "aiohttp.internal")

    async def __aenter__(self) -> Self:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("AiohttpTransport runs on asyncio only: on trio, use HttpxTransport") from None
        self._watch = DeadlineTimer(loop)
        self._session = aiohttp.ClientSession(
            connector=Connector(self.keepalive_expiry),
            request_class=BareRequest,
            cookie_jar=NoCookies(),
            auto_decompress=False,
        )
        self._log.attach()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        session, self._session = self._session, None
        self._log.detach()
        if self._watch is not None:
            self._watch.close()
        if session is not None:
            await session.close()

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # kept here
        """Carry one request. Raises NotSent, Unanswered or AnswerTooLarge."""
        try:
            return await self._exchange(request, timeout)
        except Exception:
            raise
        except BaseException as interruption:
            unframed(interruption)
            raise

    async def _exchange(self, request: Request, seconds: float) -> Response:
        session, watch = self._session, self._watch
        if session is None or watch is None:
            raise NotSent("the transport is not open")
        if seconds < LEAST:
            raise NotSent(f"no connection within {seconds:g} s")
        self._log.mind(request)
        connecting = in_grains(seconds)
        if connecting != self._limit.connect:  # aiohttp's timer for new connections, which rounds up further where it may
            self._limit = aiohttp.ClientTimeout(connect=connecting, ceil_threshold=math.inf)
        progress = RequestProgress(request, watch.loop.time() + seconds)
        token = UNDER_WAY.set(progress)
        watch.begin(progress)
        answered: Response | TransportError = Unanswered()
        cause: Exception | None = None
        try:
            answered = await self._carry(request, session, progress)
        except TransportError:
            raise
        except Exception as error:
            cause = _harmless(error, request)
            answered = _translated(error, cause, sent=progress.sent)
        finally:
            watch.end(progress)
            UNDER_WAY.reset(token)
            progress.finish(whole=isinstance(answered, Response))
        if progress.late:
            cause, answered = None, Unanswered(f"no whole answer within {seconds:g} s")
        if isinstance(answered, Response):
            return answered
        raise answered from cause  # out here, where its context is not aiohttp's exception

    async def _carry(
        self, request: Request, session: aiohttp.ClientSession, progress: RequestProgress
    ) -> Response | TransportError:
        # Nothing is raised where a local shows the signed address.
        proxy, context = self._way_to(request.origin)
        answer = await session.request(
            request.method,
            self._url(request.origin + request.target),
            data=request.body if len(request.body) < LARGE else BytesIO(request.body),
            allow_redirects=False,
            proxy=proxy,
            ssl=context,
            timeout=self._limit,
        )
        body = None
        try:
            if answer.status < 200:  # noqa: PLR2004  # 101, which changes the protocol
                return Unanswered(f"status {answer.status} that nobody asked for")
            body = await self._body(answer.content)
        finally:
            if body is None:
                answer.close()
        if body is None:
            return AnswerTooLarge(f"the answer is longer than {self.answer_limit} bytes", limit=self.answer_limit)
        if _broken(progress.protocol) and _until_close(answer):
            return Unanswered("the connection broke in the middle of the answer")
        return Response(answer.status, self._headers(answer.raw_headers), body)

    async def _body(self, content: aiohttp.StreamReader) -> bytes | None:
        """Return the whole body, or None where it is too long."""
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

    def _url(self, address: str) -> URL:
        """Return an address as aiohttp wants it, the one of an earlier request where it is the same."""
        url = self._urls.get(address)
        if url is None:
            if len(self._urls) >= KEPT:
                self._urls.clear()
            url = self._urls[address] = URL(address, encoded=True)
        return url

    def _headers(self, raw: Raw) -> dict[str, str]:
        """Return the headers of an answer, read once where answers repeat them: most do, until their Date changes."""
        if raw != self._raw:
            self._raw, self._read = raw, _joined(raw)
        return self._read.copy()

    def _way_to(self, origin: str) -> tuple[URL | None, ssl.SSLContext | bool]:
        """Return the proxy and the TLS for an origin. Raises NotSent for options that cannot be used."""
        if origin not in self._ways:
            try:
                proxy = proxy_for(origin, self._proxy, trust_env=self._trust_env)
                url = None if proxy is None else _proxy_url(proxy)
                private = origin.startswith("https:") or (url is not None and url.scheme == "https")
                self._ways[origin] = url, self._secure_context() if private else True
            except (OSError, ValueError) as error:  # a CA bundle that is not there, a proxy that is no address
                raise NotSent(f"no connection can be made: {error}") from untraced(error)
        return self._ways[origin]

    def _secure_context(self) -> ssl.SSLContext | bool:
        if self._verify is True and self._cert is None:
            return True
        if self._context is None:
            self._context = tls_context(self._verify, self._cert)
        return self._context


def _proxy_url(address: str) -> URL:
    url = URL(address)
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError("a proxy is http://host:port or https://host:port")
    return url


def _broken(protocol: ConnectionHandler | None) -> bool:
    return protocol is not None and isinstance(protocol.exception(), aiohttp.ClientOSError)


def _until_close(answer: aiohttp.ClientResponse) -> bool:
    """Whether the end of the connection is what ends the body; aiohttp takes a broken one for that, too."""
    return not answer.headers.keys() & {"Content-Length", "Transfer-Encoding"}


def _joined(raw: Raw) -> dict[str, str]:
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


def _translated(error: Exception, cause: Exception, *, sent: bool) -> TransportError:
    meant = next(meaning for raised, meaning in ERRORS if isinstance(error, raised))
    kind = meant if sent else NotSent
    said = str(cause)
    return kind(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def _harmless(error: Exception, request: Request) -> Exception:
    """Return what led to a failure, without what aiohttp's exceptions hold: addresses, headers, half an answer."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and not isinstance(cause, aiohttp.ClientError):
        return untraced(cause, request.secrets)
    if isinstance(cause, aiohttp.InvalidURL):
        said = f"the address of {request.origin} cannot be used"
    elif isinstance(cause, aiohttp.ClientResponseError):
        said = f"status {cause.status}: {cause.message}"
    elif isinstance(cause, aiohttp.ServerDisconnectedError):
        said = "the server ended the connection"
    else:
        said = str(cause)
    return aiohttp.ClientError(redacted(one_line(said, SAID), request.secrets))
