"""Addresses of proxies, from an option or the environment, and the hosts that need none (``NO_PROXY``).

All transports and ``rbim doctor`` read them here. No message shows any part of an address: it may have a password.
"""

from __future__ import annotations

import os
import re
import sys
from base64 import b64encode
from ipaddress import IPv4Address, IPv6Address, ip_network
from urllib.parse import quote, unquote_to_bytes, urlsplit

from rbim.errors import InvalidRequest
from rbim.transports._shared.network import ip_of

__all__ = ["given_proxy", "login_headers", "proxies_from_env", "proxy_address", "proxy_for"]

PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
SYSTEM_HAS_SOME: bool = sys.platform in {"darwin", "win32"}
SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9._-]+)(?::([0-9]{1,5}))?/?")
HOW = (
    "not the address of a proxy: use http://user:password@host:port (or https, socks5, socks5h); only the host is required;"
    " in user and password, %XX stands for any character"
)


def proxy_address(address: str, name: str = "proxy") -> str:
    """Return the address of a proxy with scheme and port, and with everything escaped in user and password.

    User and password end at the last ``@``, and the user at the first ``:``: they may have any characters, escaped or not.
    The default port is 80 (http), 443 (https) or 1080 (socks5, socks5h). Raises ValueError, which shows the ``name`` only.
    """
    scheme = SCHEME.match(address)
    kind = scheme[1].lower() if scheme else "http"
    login, at, target = (address[scheme.end() :] if scheme else address).rpartition("@")
    try:
        host = HOST.fullmatch(target if target.isascii() else target.encode("idna").decode())
    except UnicodeError:
        host = None
    if host is None or kind not in PORTS or not 0 < int(host[2] or PORTS[kind]) < 2**16:
        raise ValueError(f"{name}: {HOW}")
    if host[1].startswith("[") and not isinstance(ip_of(host[1][1:-1]), IPv6Address):
        raise ValueError(f"{name}: {HOW}")
    user, colon, password = (quote(unquote_to_bytes(each), safe="") for each in login.partition(":"))
    shown = f"{user}{':' if colon else ''}{password}@" if at and login else ""
    return f"{kind}://{shown}{host[1].lower()}:{host[2] or PORTS[kind]}"


def given_proxy(address: str | None) -> str | None:
    """Return the address in the option ``proxy`` as :func:`proxy_address` does. Raises InvalidRequest."""
    try:
        return None if address is None else proxy_address(address)
    except ValueError as error:
        message = str(error)
    raise InvalidRequest(message, field="proxy")  # outside of the except block: no traceback shows the address


def proxy_for(origin: str, given: str | None, *, trust_env: bool) -> str | None:
    """Return the address of the proxy for an origin: the given one, else the environment's, else None. Raises ValueError."""
    if given is not None:
        return proxy_address(given)
    setting = _from_env(origin) if trust_env else None
    return None if setting is None else proxy_address(*setting)


def login_headers(address: str) -> dict[str, str]:
    """Return the header ``Proxy-Authorization`` for an address of :func:`proxy_address`; none if it has no user."""
    login, at, _ = address.partition("://")[2].rpartition("@")
    user, _, password = (unquote_to_bytes(each) for each in login.partition(":"))
    return {"Proxy-Authorization": f"Basic {b64encode(user + b':' + password).decode()}"} if at else {}


def _from_env(origin: str) -> tuple[str, str] | None:
    proxies, parts = proxies_from_env(), urlsplit(origin)
    setting = proxies.get(parts.scheme) or proxies.get("all")
    if setting is None or _needs_none(origin, _variable("no_proxy")[0]):
        return None
    if not setting[1].lower().endswith("_proxy"):  # of the operating system, with exceptions of its own
        from urllib.request import proxy_bypass

        return None if proxy_bypass(parts.netloc) else setting
    return setting


def proxies_from_env() -> dict[str, tuple[str, str]]:
    """Return address and variable of the proxies by scheme; if there are none on macOS and Windows, the system's."""
    found = {kind: _variable(f"{kind}_proxy") for kind in ("http", "https", "all")}
    proxies = {kind: setting for kind, setting in found.items() if setting[0]}
    if proxies or not SYSTEM_HAS_SOME:
        return proxies
    from urllib.request import getproxies  # takes 13 ms to import

    return {kind: (address, "the system's proxy") for kind, address in getproxies().items() if kind in found}


def _variable(name: str) -> tuple[str, str]:
    """Return value and name of a variable: the one in lower case if it is set, even if it is empty, else in upper case.

    A CGI program gets the header ``Proxy`` of its caller as ``HTTP_PROXY``: the variable is not read there.
    """
    if name in os.environ:
        return os.environ[name].strip(), name
    upper = name.upper()
    forged = upper == "HTTP_PROXY" and "REQUEST_METHOD" in os.environ
    return "" if forged else os.environ.get(upper, "").strip(), upper


def _needs_none(origin: str, listed: str) -> bool:
    """Return whether an origin is among the entries of ``NO_PROXY``, which commas or white space separate.

    An entry is ``*``, a host with all hosts below it (``example.com``, ``.example.com``, ``*.example.com``), an address, or
    a network (``10.0.0.0/8``, ``fd00::/8``); each but a network may end with a port, then with IPv6 in brackets. Names are
    not looked up.
    """
    parts = urlsplit(origin)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or PORTS.get(parts.scheme)
    address = ip_of(host)
    for entry in re.split(r"[,\s]+", listed.lower()):
        name, _, wanted = entry[1:].partition("]") if entry.startswith("[") else (entry, "", "")
        if not wanted and name.count(":") == 1:
            name, _, wanted = name.partition(":")
        if wanted.startswith("/"):  # [fd00::]/8
            name, wanted = f"{name}{wanted}", ""
        name, wanted = name.rstrip("."), wanted.removeprefix(":")
        if name == "*" or ((not wanted or wanted == str(port)) and _covers(name, host, address)):
            return True
    return False


def _covers(name: str, host: str, address: IPv4Address | IPv6Address | None) -> bool:
    if address is None:
        name = name.removeprefix("*").removeprefix(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
    if "/" not in name:
        return address == ip_of(name)
    try:
        return address in ip_network(name, strict=False)
    except ValueError:
        return False
