"""The guard of local servers: it refuses requests that come from web pages of other servers.

A local server has no password, because only programs of this machine can reach it. A browser is such a program: each page in
it can send requests to 127.0.0.1. Three headers, which a page cannot set, show whether a page of the server itself sends:

- ``Host`` is the address that the page uses. DNS rebinding (a name of the attacker that resolves to 127.0.0.1) shows here.
  Accepted are ``localhost``, a literal loopback address, the literal address at which the connection arrived, and allowed
  names. The port does not matter, because a tunnel (``ssh -L``) changes it. Exactly one ``Host`` is needed. A subdomain of
  ``localhost``, a final dot, user information, an IPv6 zone, and another notation of an address (``127.1``) are refused.
- ``Origin`` is the page that sends. It may be absent (programs; GET requests of the server's own pages), or it has the host
  and the port of ``Host``. ``null`` (a sandboxed page) is refused.
- ``Sec-Fetch-Site`` is the browser's own answer, also where ``Origin`` is absent. It may be absent, ``same-origin``, or
  ``none`` (the address bar). ``same-site`` is refused: it is another port of this machine, and thus another application.

Besides, a server must answer without a CORS header, so that pages of other servers can read nothing, and should accept a
command only with ``Content-Type: application/json``: a browser sends that to another server only with its permission.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rbim._support.asgi import Scope

__all__ = ["LocalServerGuard", "is_json", "is_loopback_url"]

SITES = (b"same-origin", b"none")
PORTS = {"http": 80, "https": 443}
MAX_CACHED = 261  # characters of a name, a colon and a port; longer texts are not cached
ALLOW = "use localhost or the address of the server, or start the server with --allowed-host NAME (in Python: allowed_hosts)"
SHOWN = 100  # characters of a header's value in a message

AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::([0-9]{1,5}))?", re.ASCII | re.IGNORECASE)
ORIGIN = re.compile(r"(https?)://([^/?#]*)", re.ASCII | re.IGNORECASE)
URL = re.compile(ORIGIN.pattern + r"(?:[/?#].*)?", re.ASCII | re.IGNORECASE | re.DOTALL)


@frozen
class _HostAndPort:
    """The host of a Host header or a URL, in lower case, its port if it has one, and whether the host is the loopback."""

    host: str | IPv4Address | IPv6Address
    port: int | None
    loopback: bool


class LocalServerGuard:
    """Refuses requests to a local server that come from web pages of other servers; see the module.

    ``allowed_hosts`` are further names or addresses under which the server is reached. ``bound`` is the host to which it is
    bound; it counts if it is a name. ``advice`` tells the sender of another Host what to do. Raises ValueError if an allowed
    host is not a name or an address.
    """

    def __init__(self, allowed_hosts: Iterable[str] = (), *, bound: str = "localhost", advice: str = ALLOW) -> None:
        self._advice = advice
        self._allowed = frozenset([bound.lower(), *map(_host_name, allowed_hosts)])

    def refusal(self, scope: Scope) -> str | None:
        """Return why the request of an ASGI scope is refused (answer with status 403), or None if it is not."""
        hosts: list[bytes] = []
        origins: list[bytes] = []
        sites: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
            elif name == b"sec-fetch-site":
                sites.append(value)
        host = _authority(hosts[0]) if len(hosts) == 1 and len(hosts[0]) <= MAX_CACHED else None
        if host is None or not self._serves(host, scope.get("server")):
            return f"Host: {_shown(hosts)} is not a name of this server: {self._advice}"
        if origins and not (len(origins) == 1 and _is_page_of(origins[0], host)):
            return (
                f"Origin: {_shown(origins)} is not a page of this server: send the request from a program, such as curl, "
                "without Origin; if a proxy in front of this server changes Host, let it keep Host"
            )
        if any(site not in SITES for site in sites):
            return (
                f"Sec-Fetch-Site: {_shown(sites)} says that a page of another server caused this request: copy the address "
                "into the address bar of a new tab, or send the request from a program, such as curl"
            )
        return None

    def _serves(self, host: _HostAndPort, server: tuple[str, int | None] | None) -> bool:
        """Return whether the host is this server, whose connection arrived at the address ``server``."""
        return host.loopback or host.host in self._allowed or (server is not None and host.host == _literal(server[0]))


def is_loopback_url(url: str) -> bool:
    """Return whether the host of an http or https URL is ``localhost`` or a literal loopback address. No name is resolved.

    It is False for each URL that libraries may read differently: with user information, a backslash, an IPv6 zone.
    """
    found = URL.fullmatch(url)
    authority = None if found is None else _parsed(found[2])
    return authority is not None and authority.loopback


def is_json(scope: Scope) -> bool:
    """Return whether a request has exactly one Content-Type, application/json with any parameters."""
    types: list[bytes] = [value for name, value in scope["headers"] if name == b"content-type"]
    return len(types) == 1 and types[0].partition(b";")[0].strip(b" \t").lower() == b"application/json"


def _host_name(text: str) -> str | IPv4Address | IPv6Address:
    """Return the form in which an allowed host is compared. Raises ValueError if it is not a name or an address."""
    found = _parsed(f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text)
    if found is None or found.port is not None:
        raise ValueError(
            f"invalid host {text[:SHOWN]!r}: give a name or an address, without scheme and port, such as emulator.test"
        )
    return found.host


def _is_page_of(origin: bytes, host: _HostAndPort) -> bool:
    found = ORIGIN.fullmatch(origin.decode("latin-1"))
    page = None if found is None else _parsed(found[2])
    if found is None or page is None:
        return False
    default = PORTS[found[1].lower()]  # Host and Origin leave the scheme's own port out
    return page.host == host.host and (page.port or default) == (host.port or default)


@lru_cache(256)
def _authority(value: bytes) -> _HostAndPort | None:
    return _parsed(value.decode("latin-1"))


def _parsed(text: str) -> _HostAndPort | None:
    """Return host and port, or None if the text is anything else."""
    found = AUTHORITY.fullmatch(text)
    if found is None:
        return None
    bracketed, plain, port = found.groups()
    literal = _literal(plain if bracketed is None else bracketed)
    if bracketed is not None and literal is None:
        return None
    host = plain.lower() if literal is None else literal
    loopback = host == "localhost" if isinstance(host, str) else host.is_loopback
    return _HostAndPort(host, None if port is None else int(port), loopback)


@lru_cache(256)
def _literal(text: str) -> IPv4Address | IPv6Address | None:
    """Return a literal address, or None for a name. An IPv4 address inside an IPv6 one is that IPv4 address."""
    try:
        found = ip_address(text.partition("%")[0])  # the address of a connection may have a zone
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _shown(values: list[bytes]) -> str:
    return ", ".join(repr(value.decode("latin-1")[:SHOWN]) for value in values) if values else "(none)"
