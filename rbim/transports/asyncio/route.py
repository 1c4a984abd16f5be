"""How to get to an origin: its address, a proxy or UNIX socket on the way, the opening of connections, heads of requests."""

from __future__ import annotations

import asyncio
import base64
import re
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from rbim.errors import InvalidRequest
from rbim.transports._shared.head_cache import HeadCache
from rbim.transports.asyncio.connection import Broken, Connection, Idle

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from rbim.http import Request

__all__ = ["Proxy", "RequestHead", "Route"]

PORTS = {"http": 80, "https": 443}
HEAD_START = 0.25  # seconds for one address before the next is tried at the same time, as RFC 8305 recommends
OWN_FRAMING = frozenset({"content-length", "transfer-encoding"})  # the transport says these itself
SUCCESS = range(200, 300)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FIELD = re.compile(r"[\t\x20-\x7e]*")
PATH = re.compile(r"[\x21-\x7e]+")


def _address(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port. Raises ValueError, without the address in it."""
    parts = urlsplit(url)
    host = parts.hostname
    if parts.scheme not in PORTS or not host:
        raise ValueError("an address is http://host:port or https://host:port")
    if not host.isascii():
        host = host.encode("idna").decode()
    return parts.scheme, host, PORTS[parts.scheme] if parts.port is None else parts.port


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Proxy:
    """An HTTP proxy: ``http://user:password@host:port``, of which all but the host may be left out.

    Raises InvalidRequest for what is no such address.
    """

    def __init__(self, address: str) -> None:
        url = address if "://" in address else f"http://{address}"
        try:
            scheme, self.host, self.port = _address(url)
            fits = scheme == "http" and PATH.fullmatch(self.host) is not None
        except ValueError:
            fits = False
        if not fits:
            raise InvalidRequest(
                "proxy: AsyncioTransport speaks to proxies over http:// only; HttpxTransport knows others", field="proxy"
            ) from None
        parts = urlsplit(url)
        said = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
        self._authorization = "" if parts.username is None else f"Basic {base64.b64encode(said).decode()}"

    @property
    def headers(self) -> dict[str, str]:
        """What the proxy wants to be told."""
        return {"Proxy-Authorization": self._authorization} if self._authorization else {}


class RequestHead:
    """The prepared bytes of requests that differ in nothing but their body; it shows nothing of them."""

    __slots__ = ("_begin",)

    def __init__(self, request: Request, prefix: str, fixed: dict[str, str]) -> None:
        given = {name.lower() for name in request.headers}
        own = {name: value for name, value in fixed.items() if name.lower() not in given}
        lines = "".join(
            f"{name}: {value}\r\n" for name, value in {**own, **request.headers}.items() if name.lower() not in OWN_FRAMING
        )
        self._begin = f"{request.method} {prefix}{request.target} HTTP/1.1\r\n{lines}Content-Length: ".encode("ascii")

    def message(self, body: bytes) -> bytes:
        """Return the bytes of a request: head and body."""
        return b"%b%d\r\n\r\n%b" % (self._begin, len(body), body)


class Route:
    """The way to one origin, with the connections that are idle there.

    Raises ValueError for what is no origin.
    """

    def __init__(self, origin: str, proxy: Proxy | None, uds: str | None) -> None:
        parts = urlsplit(origin)
        scheme, self.host, self.port = _address(origin)
        self.secure = scheme == "https"
        self.idle: Idle = {}
        self._proxy = proxy
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
            raise ValueError("an origin has neither user, query nor fragment, and only ASCII without white space")
        self._heads: HeadCache[RequestHead] = HeadCache()

    def head(self, request: Request) -> RequestHead:
        """Return the prepared head. Raises ValueError, without any value in it, for what cannot be sent."""
        return self._heads.get(request) or self._new_head(request)

    def _new_head(self, request: Request) -> RequestHead:
        if not (request.path.startswith("/") and PATH.fullmatch(request.path) and TOKEN.fullmatch(request.method)):
            raise ValueError("the method or path is not ASCII without white space")
        if not all(TOKEN.fullmatch(name) and FIELD.fullmatch(value) for name, value in request.headers.items()):
            raise ValueError("a header is not printable ASCII")
        return self._heads.keep(request, RequestHead(request, self._prefix, self._fixed))

    def idle_connection(self, oldest: float) -> Connection | None:
        """Take the connection that was used last, if it was so after ``oldest`` and is still as it was left."""
        while self.idle:
            connection, _ = self.idle.popitem()
            if connection.stale:
                connection.abort()
            elif connection.idle_since > oldest:
                return connection
            else:
                connection.close()
                break  # the others have been idle for longer still
        return None

    async def open(self, connection: Connection, deadline: float, context: Callable[[], ssl.SSLContext]) -> None:
        """Open a connection, all the way to the origin. It is closed where this fails or is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            secure = context() if self.secure else None
            if self._uds is not None:
                await loop.create_unix_connection(lambda: connection, self._uds)
            else:
                host, port = (self._proxy.host, self._proxy.port) if self._proxy else (self.host, self.port)
                await loop.create_connection(lambda: connection, host, port, **_several_addresses(loop, host))
            if secure is not None:
                if self._proxy is not None:
                    await self._tunnel(connection, self._proxy, deadline)
                await connection.start_tls(secure, self.host)
        except BaseException:
            connection.abort()
            raise

    async def _tunnel(self, connection: Connection, proxy: Proxy, deadline: float) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": self._authority, **proxy.headers}.items())
        waiter = connection.expect(deadline, tunnel=True)
        connection.write(f"CONNECT {self._authority} HTTP/1.1\r\n{lines}\r\n".encode("ascii"))
        outcome = await waiter
        if isinstance(outcome, Broken):
            raise ConnectionError(f"the proxy opened no tunnel: {outcome.reason or 'no answer in time'}") from outcome.error
        if outcome.status not in SUCCESS or connection.closing:
            raise ConnectionError(f"the proxy opened no tunnel: HTTP {outcome.status}")


def _several_addresses(loop: asyncio.AbstractEventLoop, host: str) -> dict[str, Any]:
    """Return how to go about a name of several addresses: asyncio can try them side by side, uvloop one by one only."""
    with suppress(ValueError):
        ip_address(host)
        return {}
    return {"happy_eyeballs_delay": HEAD_START} if isinstance(loop, asyncio.BaseEventLoop) else {}
