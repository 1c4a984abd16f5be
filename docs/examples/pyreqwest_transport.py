# ruff: noqa: ASYNC109, ASYNC240, D102, INP001, PLR2004, PYI034  # an example, as short as it can be
"""A transport over pyreqwest, which is Python bindings of Rust's reqwest (0.11.7 or newer).

In doubt, an outcome is ``Unanswered``. With ``looks=False``, ``cancels=False`` and ``bundle=True`` declared, it passes the
conformance suite but for these cases, because the time-out of its library does not say whether a connection was open:

- `time-out: no connection comes about`
- `TLS: a handshake that takes too long is not sent, and its connection is closed`
- `proxy: a tunnel that hangs ... is not sent`, in most of its forms
"""

import asyncio
from datetime import timedelta
from pathlib import Path

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.proxy import ProxyBuilder

from rbim import AnswerTooLarge, NotSent, Request, Response, TransportError, Unanswered

MAX_TIMEOUT = 1e9  # seconds; pyreqwest cannot take a longer one, such as an infinite one


class PyreqwestTransport:
    """Sends requests with pyreqwest, which runs Rust's reqwest in threads of its own. It serves one client, on asyncio."""

    def __init__(self, *, verify: str | bool = True, proxy: str | None = None, answer_limit: int = 8 * 1024 * 1024) -> None:
        self.verify = verify
        self.proxy = proxy
        self.answer_limit = answer_limit
        self.client: Client | None = None

    async def __aenter__(self) -> "PyreqwestTransport":
        if self.client is not None:
            raise RuntimeError("the transport is open: use one for each client")
        builder = (
            ClientBuilder()
            .http1_only()
            .http1_lower_case_headers()
            .user_agent("rbim")
            .follow_redirects(enable=False)
            .referer(enable=False)
            .gzip(enable=False)
            .brotli(enable=False)
            .zstd(enable=False)
            .deflate(enable=False)
            .connect_timeout(timedelta(seconds=5))
            .pool_idle_timeout(timedelta(seconds=5))
            .danger_accept_invalid_certs(enable=not self.verify)
        )
        if isinstance(self.verify, str):
            builder = builder.add_root_certificate_pem(Path(self.verify).read_bytes())
        if self.proxy is not None:
            builder = builder.proxy(ProxyBuilder.all(self.proxy))
        self.client = builder.build()
        return self

    async def __aexit__(self, *error: object) -> None:
        client, self.client = self.client, None
        if client is not None:
            await client.close()

    async def send(self, request: Request, /, *, timeout: float) -> Response:
        if self.client is None or timeout < 0.001:
            raise NotSent(f"cannot connect to {request.origin}: the transport is not open, or no time is left")
        sending = asyncio.ensure_future(self.exchange(self.client, request, timeout))
        try:
            await asyncio.wait([sending])  # raises the caller's own CancelledError; pyreqwest would raise another
        finally:
            sending.cancel()
        result = sending.result()
        if isinstance(result, TransportError):
            raise result
        return result

    async def exchange(self, client: Client, request: Request, timeout: float) -> Response | TransportError:
        try:
            builder = client.request(request.method, request.origin + request.target).headers(request.headers)
            if request.body or request.method != "GET":
                builder = builder.body_bytes(request.body).header("content-length", str(len(request.body)))
            if timeout < MAX_TIMEOUT:
                builder = builder.timeout(timedelta(seconds=timeout))
            message = builder.streamed_read_buffer_limit(min(65536, self.answer_limit)).build_streamed()
        except ValueError:
            return NotSent(f"cannot connect to {request.origin}: pyreqwest refuses the request")
        try:
            async with message as answer:
                if answer.status < 200:  # 101 changes the protocol
                    return Unanswered(f"unexpected status {answer.status}")
                body = bytearray()
                while (part := await answer.body_reader.read_chunk()) is not None:
                    body += bytes(part)
                    if len(body) > self.answer_limit:
                        return AnswerTooLarge(f"more than {self.answer_limit} bytes", limit=self.answer_limit)
                headers: dict[str, str] = {}
                for name, value in answer.headers.items():
                    headers[name] = f"{headers[name]}, {value}" if name in headers else value
                coding = headers.get("transfer-encoding", "chunked")
                if coding.lower() != "chunked" or {"transfer-encoding", "content-length"} <= headers.keys():
                    return Unanswered(f"an answer from {request.origin} whose end is unclear")
                return Response(answer.status, headers, bytes(body))
        except Exception as error:  # its message may show the signature, so only its type is shown
            causes = "".join(cause["message"] for cause in getattr(error, "details", {}).get("causes") or ())
            kind = NotSent if "client error (Connect)" in causes else Unanswered
            return kind(f"no answer from {request.origin} ({type(error).__name__})")
