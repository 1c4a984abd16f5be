"""pyreqwest, Python's door to Rust's reqwest: one client, whose pool has no limits of its own.

What the library would do unasked is off: redirects, cookies, decompression, HTTP/2. What it does differently:

- Its exceptions do not tell whether a request was sent: a connection that ends before the answer is a ``ConnectError`` as
  well. Only what names the connecting itself as its cause is NotSent; everything else that fails is Unanswered.
- A request that is cancelled is not taken back: the caller is free at once, but the request runs on unseen until it is
  answered or its time-out is over, even past the transport's end, and its answer is nobody's.
- It has a time-out for the whole attempt, which cannot tell in which phase it ended, hence ``connect_timeout``.
- It takes no ``ssl.SSLContext``; a CA bundle adds to the authorities that it knows.
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
from rbim.transports._shared.head_cache import HeadCache
from rbim.transports._shared.network import in_grains
from rbim.transports._shared.redaction import LogRedactor, redacted

try:
    from pyreqwest.client import ClientBuilder
    from pyreqwest.exceptions import DetailedPyreqwestError, PyreqwestError
    from pyreqwest.proxy import ProxyBuilder
    from pyreqwest.request import RequestBody
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        missing_extra("PyreqwestTransport", missing.name, "pyreqwest"),
        name=missing.name,
    ) from None

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Iterable
    from typing import Any, Self

    from pyreqwest.client import Client
    from pyreqwest.request import StreamRequest
    from pyreqwest.response import Response as Answer

__all__ = ["PyreqwestTransport"]

R = TypeVar("R")

ANSWER_LIMIT = 8 * 1024 * 1024
KEEPALIVE = 5.0
CONNECTING = 5.0
LEAST = 0.001  # seconds in which a request can be sent at all
AHEAD = 64 * 1024  # bytes of an answer that are read before it is asked for
SAID = 300  # characters of what pyreqwest says

# What an error's causes say, and what it means; the first that fits counts.
ERRORS: tuple[tuple[str, type[TransportError]], ...] = (
    ("client error (Connect)", NotSent),  # DNS, TCP, TLS, a proxy's tunnel
    ("URL scheme is not allowed", NotSent),
    ("", Unanswered),
)
CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\s*", re.DOTALL)
BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class PyreqwestTransport:
    """Carries requests with pyreqwest over HTTP/1.1, on asyncio; on trio, use HttpxTransport.

    TLS is verified against the authorities that reqwest knows; ``verify`` takes the path of a CA bundle that adds to them,
    or False; ``cert`` the path of a client certificate with its key, or a pair of paths. ``proxy`` is the address of an
    HTTP proxy; without one, ``trust_env`` lets reqwest take it from ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and
    ``NO_PROXY`` when the transport is entered. A connection idle for ``keepalive_expiry`` seconds is closed. A connection
    that takes longer than ``connect_timeout`` seconds to come about is NotSent; where the attempt's own time is over first,
    the request counts as Unanswered. An answer of more than ``answer_limit`` bytes is AnswerTooLarge.

    Raises InvalidRequest for an option that cannot be used, among them ``verify`` as an ``ssl.SSLContext``. Importing this
    module raises ModuleNotFoundError where pyreqwest is not installed, entering the transport RuntimeError on another event
    loop than asyncio's.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        verify: str | bool = True,
        cert: str | tuple[str, str] | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
        keepalive_expiry: float = KEEPALIVE,
        connect_timeout: float = CONNECTING,
        answer_limit: int = ANSWER_LIMIT,
    ) -> None:
        self.keepalive_expiry = keepalive_expiry
        self.connect_timeout = connect_timeout
        self.answer_limit = answer_limit
        self._verify: bool = verify is not False
        self._authorities = _authorities(verify)
        self._identity = _identity(cert)
        self._proxy = None if proxy is None else _proxy(proxy)
        self._trust_env = trust_env
        self._client: Client | None = None
        self._messages: HeadCache[StreamRequest] = HeadCache()
        self._log = LogRedactor("reqwest.connect", "reqwest.async_impl.client", "hyper_util.client.legacy.client")

    async def __aenter__(self) -> Self:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("PyreqwestTransport runs on asyncio only: on trio, use HttpxTransport") from None
        self._client = self._made_client()
        self._log.attach()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None, /
    ) -> None:
        client, self._client = self._client, None
        self._messages.clear()  # which hold the client's connections open
        self._log.detach()
        if client is not None:
            await client.close()

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # kept here
        """Carry one request. Raises NotSent, Unanswered or AnswerTooLarge."""
        if self._client is None:
            raise NotSent("the transport is not open")
        if timeout < LEAST:
            raise NotSent(f"no connection within {timeout:g} s")
        self._log.mind(request)
        sent = False
        cause: Exception | None = None
        try:
            carrying = self._carry(self._prepared(self._client, request, timeout))
            sent = True
            answered = await _cancellable(carrying)
        except Exception as error:
            said = redacted(_said(error), request.secrets)
            cause = PyreqwestError(said)
            kind = next(meaning for words, meaning in ERRORS if words in said) if sent else NotSent
            answered = kind(f"{type(error).__name__}: {said}")
        if isinstance(answered, Response):
            return answered
        raise answered from cause  # out here, where its context is not pyreqwest's exception

    async def _carry(self, message: StreamRequest) -> Response | TransportError:
        async with message as answer:
            body = await self._body(answer)
            if body is None:
                return AnswerTooLarge(f"the answer is longer than {self.answer_limit} bytes", limit=self.answer_limit)
            if answer.status < 200:  # noqa: PLR2004  # 101, which changes the protocol
                return Unanswered(f"status {answer.status} that nobody asked for")
            fields = answer.headers.items()
            headers = dict(fields)
            return Response(answer.status, headers if len(headers) == len(fields) else _joined(fields), body)

    async def _body(self, answer: Answer) -> bytes | None:
        """Return the whole body, or None where it is too long."""
        announced = answer.get_header("content-length")
        if announced is not None:  # which reqwest holds the answer to
            return bytes(await answer.bytes()) if int(announced) <= self.answer_limit else None
        parts: list[bytes] = []
        size = 0
        while (part := await answer.body_reader.read_chunk()) is not None:
            parts.append(bytes(part))
            size += len(part)
            if size > self.answer_limit:
                return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _prepared(self, client: Client, request: Request, timeout: float) -> StreamRequest:
        """Return what can be sent: a copy of an earlier one with another body, where only that differs."""
        body, timeout = request.body, in_grains(timeout)
        kept = self._messages.get(request, timeout, not body)
        if kept is None:
            kept = self._messages.keep(request, self._built(client, request, timeout), timeout, not body)
        message = kept.copy()
        if body:
            message.body = RequestBody.from_bytes(body)
        return message

    def _built(self, client: Client, request: Request, timeout: float) -> StreamRequest:
        builder = client.request(request.method, request.origin + request.target).headers(request.headers)
        if not request.body and request.method not in BODILESS:
            builder = builder.header("content-length", "0")
        ahead = min(AHEAD, self.answer_limit)
        return builder.timeout(timedelta(seconds=timeout)).streamed_read_buffer_limit(ahead).build_streamed()

    def _made_client(self) -> Client:
        try:
            return self._builder().build()
        except ValueError as error:
            reason = f"pyreqwest cannot be set up: {_said(error)}"
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
            .connect_timeout(timedelta(seconds=self.connect_timeout))
            .pool_idle_timeout(timedelta(seconds=self.keepalive_expiry))
            .danger_accept_invalid_certs(enable=not self._verify)
        )
        for authority in self._authorities:
            builder = builder.add_root_certificate_pem(authority)
        if self._identity is not None:
            builder = builder.identity_pem(self._identity)
        if self._proxy is not None:
            return builder.proxy(ProxyBuilder.all(self._proxy))
        return builder if self._trust_env else builder.no_proxy()


def _joined(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in fields:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


@types.coroutine
def _cancellable(carrying: Coroutine[Any, Any, R]) -> Generator[Any, Any, R]:
    """Run a coroutine; where it is cancelled, raise the very error that did so.

    pyreqwest raises one of its own in its place, by which a cancel scope does not know itself.
    """
    cancelled: asyncio.CancelledError | None = None
    news: asyncio.CancelledError | None = None
    while True:
        try:
            waiting = carrying.send(None) if news is None else carrying.throw(news)
        except StopIteration as done:
            if cancelled is None:
                answered: R = done.value
                return answered
            break
        except BaseException:
            if cancelled is None:
                raise
            break
        news = None
        try:
            yield waiting
        except asyncio.CancelledError as error:
            cancelled = news = error
        except GeneratorExit:
            carrying.close()
            raise
    raise cancelled


def _said(error: Exception) -> str:
    """Return what an error and its causes say, without the address."""
    texts = [str(error)]
    if isinstance(error, DetailedPyreqwestError):
        texts = [error.message, *(cause["message"] for cause in error.details.get("causes") or ())]
    return one_line(": ".join(text.partition(" for url (")[0] for text in texts), SAID)


def _authorities(verify: object) -> list[bytes]:
    """Return the certificates of a CA bundle, one by one."""
    if isinstance(verify, bool):
        return []
    if isinstance(verify, ssl.SSLContext):
        raise InvalidRequest(
            "verify: PyreqwestTransport takes no ssl.SSLContext, but the path of a CA bundle; HttpxTransport takes both",
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
        fits = url.startswith(("http://", "https://"))
        ProxyBuilder.all(url)
    except ValueError:
        fits = False
    if not fits:
        raise InvalidRequest("proxy: a proxy is http://host:port or https://host:port", field="proxy")
    return url
