"""The pyreqwest transport (Python bindings of Rust's reqwest): one client whose pool has no limit.

The library's automatic features are off: redirects, cookies, decompression, HTTP/2. Differences from other transports:

- Its exceptions do not show whether a request was sent: a connection that closes before the response is a ``ConnectError``
  too. Only errors whose cause is the connecting itself are NotSent; all others are Unanswered.
- A cancelled request continues in the background: the caller returns at once, but the request runs until its response or its
  time-out comes, even after the transport was closed. Its response is discarded.
- Its time-out is for the whole attempt and does not show the phase in which it ended; therefore ``connect_timeout``.
- It learns in a thread of its own that a server has closed an idle connection: a request may be written meanwhile, and is
  Unanswered then. The other transports look immediately before they write.
- It accepts no ``ssl.SSLContext``; a CA bundle is added to the authorities that it knows.
- It sends a ``User-Agent``.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import types
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rbim._support.text import missing_extra, one_line
from rbim.errors import AnswerTooLarge, InvalidRequest, NotSent, TransportError, Unanswered
from rbim.http import Request, Response
from rbim.transports._shared.base import BaseTransport
from rbim.transports._shared.connecting import no_answer, no_connection, too_late
from rbim.transports._shared.head_cache import HeadCache
from rbim.transports._shared.network import proxy_for, rounded_up
from rbim.transports._shared.redaction import LogRedactor, redacted

try:
    from pyreqwest.client import ClientBuilder
    from pyreqwest.exceptions import ConnectTimeoutError, DetailedPyreqwestError, PyreqwestError
    from pyreqwest.proxy import ProxyBuilder
    from pyreqwest.request import RequestBody
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        missing_extra("PyreqwestTransport", missing.name, "pyreqwest"),
        name=missing.name,
    ) from None

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Iterable
    from typing import Any

    from pyreqwest.client import Client
    from pyreqwest.request import StreamRequest
    from pyreqwest.response import Response as Answer

__all__ = ["PyreqwestTransport"]

R = TypeVar("R")

ANSWER_LIMIT = 8 * 1024 * 1024
KEEPALIVE = 5.0
MAX_IDLE = 60.0
CONNECT_TIMEOUT = 5.0
MIN_TIMEOUT = 0.001  # seconds; with less time no request is sent
MAX_TIMEOUT = 1e9  # seconds; a longer time-out, such as an infinite one, is none: pyreqwest cannot take it
READ_AHEAD = 64 * 1024  # bytes of a response that are read in advance
MAX_ERROR_TEXT = 300  # characters of a pyreqwest message

# Texts in an error's causes, and their meaning; the first match counts.
ERRORS: tuple[tuple[str, type[TransportError]], ...] = (
    ("client error (Connect)", NotSent),  # DNS, TCP, TLS, a proxy's tunnel
    ("URL scheme is not allowed", NotSent),
    ("", Unanswered),
)
CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\s*", re.DOTALL)
BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class PyreqwestTransport(BaseTransport):
    """A transport that uses pyreqwest: HTTP/1.1, on asyncio. On trio, use HttpxTransport.

    - ``verify``: the path of a CA bundle, added to the authorities that reqwest knows, or False for no verification.
      Default: verify against these authorities.
    - ``cert``: the path of a client certificate with its key, or a pair of paths.
    - ``proxy``: the address of an HTTP proxy. Without it, ``trust_env`` (default: True) lets reqwest read ``HTTP_PROXY``,
      ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` when the transport is entered.
    - ``keepalive_expiry``: seconds (default: 5) after which an idle connection is closed, if that is less than ``max_idle``
      (default: 60).
    - ``connect_timeout``: seconds (default: 5). If connecting takes longer, the request is NotSent; if the time-out of the
      attempt ends first, it is Unanswered.
    - ``answer_limit``: bytes (default: 8 MiB). A longer response body raises AnswerTooLarge.

    Raises InvalidRequest for an option that cannot be used, such as an ``ssl.SSLContext`` as ``verify``. Importing this
    module raises ModuleNotFoundError if pyreqwest is not installed. Entering the transport raises RuntimeError on an event
    loop other than asyncio's.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        verify: str | bool = True,
        cert: str | tuple[str, str] | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
        keepalive_expiry: float = KEEPALIVE,
        max_idle: float = MAX_IDLE,
        connect_timeout: float = CONNECT_TIMEOUT,
        answer_limit: int = ANSWER_LIMIT,
    ) -> None:
        self.keepalive_expiry = keepalive_expiry
        self.max_idle = max_idle
        self.connect_timeout = connect_timeout
        self.answer_limit = answer_limit
        self._verify: bool = verify is not False
        self._authorities = _authorities(verify)
        self._identity = _identity(cert)
        self._proxy = None if proxy is None else _proxy(proxy)
        self._trust_env = trust_env
        self._client: Client | None = None
        self._library_requests: HeadCache[StreamRequest] = HeadCache()
        self._log = LogRedactor("reqwest.connect", "reqwest.async_impl.client", "hyper_util.client.legacy.client")

    async def _open(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("PyreqwestTransport runs on asyncio only: on trio, use HttpxTransport") from None
        self._client = self._new_client()
        self._log.attach()

    async def _close(self) -> None:
        client, self._client = self._client, None
        self._library_requests.clear()  # they keep the client's connections open
        self._log.detach()
        if client is not None:
            await client.close()

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # enforced here
        """Send one request and return its response; ``timeout`` is in seconds.

        Raises NotSent, Unanswered or AnswerTooLarge.
        """
        if self._client is None:
            raise NotSent("the transport is not open: use it inside 'async with'")
        if timeout < MIN_TIMEOUT:
            raise NotSent(too_late(request, min(timeout, 0.0)))
        self._log.remember(request)
        sent = False
        cause: Exception | None = None
        try:
            carrying = self._carry(self._library_request(self._client, request, timeout))
            sent = True
            answered = await _cancellable(carrying)
        except Exception as error:
            text = redacted(_error_text(error), request.secrets)
            cause = PyreqwestError(text)
            kind = next(meaning for words, meaning in ERRORS if words in text) if sent else NotSent
            answered = kind(self._message(request, cause, error, timeout, sent=kind is not NotSent))
        if isinstance(answered, Response):
            return answered
        raise answered from cause  # outside the except block: pyreqwest's exception must not become its context

    def _message(self, request: Request, cause: Exception, error: Exception, timeout: float, *, sent: bool) -> str:
        text = str(cause)
        try:
            proxy = proxy_for(request.origin, self._proxy, trust_env=self._trust_env)
        except ValueError:  # an invalid origin
            proxy = None
        if isinstance(error, ConnectTimeoutError):
            if sent:
                return no_answer(request, f"no connection, or no response, within {timeout:g} s", new=True)
            return too_late(request, self.connect_timeout, proxy=proxy)
        if not sent:
            return no_connection(request, cause, proxy=proxy)
        return no_answer(request, f"{type(error).__name__}: {text}", new=True)

    async def _carry(self, message: StreamRequest) -> Response | TransportError:
        async with message as answer:
            body = await self._body(answer)
            if body is None:
                return AnswerTooLarge(f"the response body is longer than {self.answer_limit} bytes", limit=self.answer_limit)
            if answer.status < 200:  # noqa: PLR2004  # 101, which changes the protocol
                return Unanswered(f"unexpected status {answer.status}: the client asked for no change of protocol")
            fields = answer.headers.items()
            headers = dict(fields)
            return Response(answer.status, headers if len(headers) == len(fields) else _joined_headers(fields), body)

    async def _body(self, answer: Answer) -> bytes | None:
        """Return the whole body, or None if it is too long."""
        announced = answer.get_header("content-length")
        if announced is not None:  # reqwest checks the body against it
            return bytes(await answer.bytes()) if int(announced) <= self.answer_limit else None
        parts: list[bytes] = []
        size = 0
        while (part := await answer.body_reader.read_chunk()) is not None:
            parts.append(bytes(part))
            size += len(part)
            if size > self.answer_limit:
                return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _library_request(self, client: Client, request: Request, timeout: float) -> StreamRequest:
        """Return a request to send: a copy of a similar earlier one with this body, or a new one."""
        body, timeout = request.body, rounded_up(timeout)
        cached = self._library_requests.get(request, timeout, not body)
        if cached is None:
            cached = self._library_requests.keep(
                request, self._new_library_request(client, request, timeout), timeout, not body
            )
        message = cached.copy()
        if body:
            message.body = RequestBody.from_bytes(body)
        return message

    def _new_library_request(self, client: Client, request: Request, timeout: float) -> StreamRequest:
        builder = client.request(request.method, request.origin + request.target).headers(request.headers)
        if not request.body and request.method not in BODILESS:
            builder = builder.header("content-length", "0")
        ahead = min(READ_AHEAD, self.answer_limit)
        if timeout < MAX_TIMEOUT:
            builder = builder.timeout(timedelta(seconds=timeout))
        return builder.streamed_read_buffer_limit(ahead).build_streamed()

    def _new_client(self) -> Client:
        try:
            return self._builder().build()
        except ValueError as error:
            reason = f"pyreqwest cannot be set up with these options: {_error_text(error)}"
        raise InvalidRequest(reason)

    def _builder(self) -> ClientBuilder:
        builder = (
            ClientBuilder()
            .http1_only()
            .http1_lower_case_headers()
            .follow_redirects(enable=False)
            .referer(enable=False)
            .gzip(enable=False)
            .brotli(enable=False)
            .zstd(enable=False)
            .deflate(enable=False)
            .user_agent("rbim")
            .pool_idle_timeout(timedelta(seconds=min(self.keepalive_expiry, self.max_idle, MAX_TIMEOUT)))
            .danger_accept_invalid_certs(enable=not self._verify)
        )
        if self.connect_timeout < MAX_TIMEOUT:
            builder = builder.connect_timeout(timedelta(seconds=self.connect_timeout))
        for authority in self._authorities:
            builder = builder.add_root_certificate_pem(authority)
        if self._identity is not None:
            builder = builder.identity_pem(self._identity)
        if self._proxy is not None:
            return builder.proxy(ProxyBuilder.all(self._proxy))
        return builder if self._trust_env else builder.no_proxy()


def _joined_headers(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in fields:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


@types.coroutine
def _cancellable(carrying: Coroutine[Any, Any, R]) -> Generator[Any, Any, R]:
    """Run a coroutine; if it is cancelled, raise the same CancelledError object that was thrown into it.

    pyreqwest raises a new one instead, and a cancel scope would not recognise it as its own.
    """
    cancelled: asyncio.CancelledError | None = None
    to_throw: asyncio.CancelledError | None = None
    while True:
        try:
            waiting = carrying.send(None) if to_throw is None else carrying.throw(to_throw)
        except StopIteration as done:
            if cancelled is None:
                answered: R = done.value
                return answered
            break
        except BaseException:
            if cancelled is None:
                raise
            break
        to_throw = None
        try:
            yield waiting
        except asyncio.CancelledError as error:
            cancelled = to_throw = error
        except GeneratorExit:
            carrying.close()
            raise
    raise cancelled


def _error_text(error: Exception) -> str:
    """Return the messages of an error and its causes, without the address."""
    texts = [str(error)]
    if isinstance(error, DetailedPyreqwestError):
        texts = [error.message, *(cause["message"] for cause in error.details.get("causes") or ())]
    return one_line(": ".join(text.partition(" for url (")[0] for text in texts), MAX_ERROR_TEXT)


def _authorities(verify: object) -> list[bytes]:
    """Return the certificates of a CA bundle as a list."""
    if isinstance(verify, bool):
        return []
    if isinstance(verify, ssl.SSLContext):
        raise InvalidRequest(
            "verify: PyreqwestTransport accepts no ssl.SSLContext: give the path of a CA bundle, or use HttpxTransport",
            field="verify",
        )
    found = CERTIFICATE.findall(_read(str(verify), "verify"))
    if not found:
        raise InvalidRequest(f"verify: no certificates in {verify}", field="verify")
    return found


def _identity(cert: str | tuple[str, str] | None) -> bytes | None:
    if cert is None:
        return None
    return b"\n".join(_read(path, "cert") for path in ((cert,) if isinstance(cert, str) else reversed(cert)))


def _read(path: str, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = f"{option}: {error}"
    raise InvalidRequest(reason, field=option)


def _proxy(address: str) -> str:
    url = address if "://" in address else f"http://{address}"
    try:
        valid = url.startswith(("http://", "https://"))
        ProxyBuilder.all(url)
    except ValueError:
        valid = False
    if not valid:
        raise InvalidRequest("proxy: invalid proxy address: use http://host:port or https://host:port", field="proxy")
    return url
