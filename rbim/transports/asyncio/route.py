"""The route to an origin: its address, proxy or UNIX socket; opening connections; the heads of requests."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from rbim.errors import InvalidRequest
from rbim.transports._shared.head_cache import HeadCache
from rbim.transports.asyncio.connection import Broken

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from rbim.http import Request
    from rbim.transports.asyncio.connection import Connection, Idle

__all__ = ["Proxy", "RequestHead", "Route"]

PORTS = {"http": 80, "https": 443}
OWN_FRAMING = frozenset({"content-length", "transfer-encoding"})  # the transport sets these itself
SUCCESS = range(200, 300)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FIELD = re.compile(r"[\t\x20-\x7e]*")
PATH = re.compile(r"[\x21-\x7e]+")


def _address(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port. Raises ValueError; its message does not show the address."""
    parts = urlsplit(url)
    host = parts.hostname
    if parts.scheme not in PORTS or not host:
        raise ValueError("invalid address: use http://host:port or https://host:port")
    if not host.isascii():
        host = host.encode("idna").decode()
    return parts.scheme, host, PORTS[parts.scheme] if parts.port is None else parts.port


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Proxy:
    """An HTTP proxy: ``http://user:password@host:port``; only the host is required.

    Raises InvalidRequest for any other address.
    """

    def __init__(self, address: str) -> None:
        url = address if "://" in address else f"http://{address}"
        try:
            scheme, self.host, self.port = _address(url)
            valid = scheme == "http" and PATH.fullmatch(self.host) is not None
        except ValueError:
            valid = False
        if not valid:
            raise InvalidRequest(
                "proxy: AsyncioTransport supports http:// proxies only: use HttpxTransport for other kinds",
                field="proxy",
            ) from None
        self.url = f"http://{_authority(self.host, self.port)}"
        """The address without user and password."""
        parts = urlsplit(url)
        user_info = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
        self._authorization = "" if parts.username is None else f"Basic {base64.b64encode(user_info).decode()}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers for the proxy: ``Proxy-Authorization``, if the address has a user."""
        return {"Proxy-Authorization": self._authorization} if self._authorization else {}


class RequestHead:
    """The prepared bytes of requests that differ only in their body. The repr shows no value (they are signed)."""

    __slots__ = ("_begin",)

    def __init__(self, request: Request, prefix: str, fixed: dict[str, str]) -> None:
        given = {name.lower() for name in request.headers}
        own = {name: value for name, value in fixed.items() if name.lower() not in given}
        lines = "".join(
            f"{name}: {value}\r\n" for name, value in {**own, **request.headers}.items() if name.lower() not in OWN_FRAMING
        )
        self._begin = f"{request.method} {prefix}{request.target} HTTP/1.1\r\n{lines}Content-Length: ".encode("ascii")

    def message(self, body: bytes) -> bytes:
        """Return the bytes of a request: head and ``body``."""
        return b"%b%d\r\n\r\n%b" % (self._begin, len(body), body)


class Route:
    """The route to one origin, with its idle connections.

    Raises ValueError for an invalid origin.
    """

    def __init__(self, origin: str, proxy: Proxy | None, uds: str | None) -> None:
        parts = urlsplit(origin)
        scheme, self.host, self.port = _address(origin)
        self.secure = scheme == "https"
        self.idle: Idle = {}
        self.proxy = proxy
        self._uds = uds
        authority = _authority(self.host, self.port)
        host = authority.removesuffix(f":{PORTS[scheme]}") if self.port == PORTS[scheme] else authority
        self._authority = authority
        self._fixed = {"Host": host}
        self._prefix = parts.path.rstrip("/")
        if proxy is not None and not self.secure:
            self._prefix = f"http://{host}{self._prefix}"
            self._fixed |= proxy.headers
        if "@" in parts.netloc or parts.query or parts.fragment or not PATH.fullmatch(f"{host}{self._prefix}"):
            raise ValueError("invalid origin: it must be ASCII without white space, user, query and fragment")
        self._heads: HeadCache[RequestHead] = HeadCache()

    def head(self, request: Request) -> RequestHead:
        """Return the prepared head. Raises ValueError if it cannot be sent; the message shows no value."""
        return self._heads.get(request) or self._new_head(request)

    def _new_head(self, request: Request) -> RequestHead:
        if not (request.path.startswith("/") and PATH.fullmatch(request.path) and TOKEN.fullmatch(request.method)):
            raise ValueError("the method or path must be ASCII without white space")
        if not all(TOKEN.fullmatch(name) and FIELD.fullmatch(value) for name, value in request.headers.items()):
            raise ValueError("header names and values must be printable ASCII")
        return self._heads.keep(request, RequestHead(request, self._prefix, self._fixed))

    async def open(self, connection: Connection, deadline: float, context: Callable[[], ssl.SSLContext]) -> None:
        """Open a connection up to the origin. If this fails or is cancelled, the connection is closed."""
        secure = context() if self.secure else None
        proxy = self.proxy
        await connection.connect(*((proxy.host, proxy.port) if proxy else (self.host, self.port)), self._uds)
        if secure is not None:
            try:
                if proxy is not None:
                    await self._tunnel(connection, proxy, deadline)
            except BaseException:
                connection.abort()
                raise
            await connection.secure(secure, self.host)

    async def _tunnel(self, connection: Connection, proxy: Proxy, deadline: float) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": self._authority, **proxy.headers}.items())
        message = f"CONNECT {self._authority} HTTP/1.1\r\n{lines}\r\n".encode("ascii")
        outcome = await connection.ask(message, deadline, tunnel=True)
        if isinstance(outcome, Broken):
            raise ConnectionError(
                f"the proxy opened no tunnel: {outcome.reason or 'no response in time'}"
            ) from outcome.error
        if outcome.status not in SUCCESS or connection.closing:
            raise ConnectionError(f"the proxy opened no tunnel: HTTP {outcome.status}")
