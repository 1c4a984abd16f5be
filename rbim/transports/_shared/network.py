"""Proxies, TLS certificates, sockets and timer resolution of the machine."""

from __future__ import annotations

import math
import os
import select
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["proxies_from_env", "proxy_for", "proxy_from_env", "readable", "rounded_up", "tls_context"]

STEPS_PER_SECOND = 100


def rounded_up(seconds: float) -> float:
    """Return a time-out in seconds, rounded up to 1/100 s.

    For objects that must be rebuilt for each new time-out: the remaining time of a call is different for every attempt.
    """
    return math.ceil(seconds * STEPS_PER_SECOND) / STEPS_PER_SECOND if seconds < math.inf else seconds


def proxy_for(origin: str, given: str | None, *, trust_env: bool) -> str | None:
    """Return the proxy address for an origin, with a scheme: the given one, else the environment's, else None."""
    proxy = proxy_from_env(origin) if given is None and trust_env else given
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


def proxy_from_env(origin: str) -> str | None:
    """Return the proxy for an origin from the environment, as the standard library reads it, or None."""
    proxies = _proxies()
    if not proxies:
        return None
    from urllib.request import proxy_bypass

    parts = urlsplit(origin)
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return None if not proxy or proxy_bypass(parts.netloc) else proxy


def proxies_from_env() -> list[str]:
    """Return the addresses of all proxies of the environment, for any origin."""
    return [address for scheme, address in _proxies().items() if scheme in {"http", "https", "all"} and address]


def _proxies() -> dict[str, str]:
    """Return the proxies by scheme. The standard library is asked only if there can be one: its import takes 13 ms."""
    if sys.platform not in {"darwin", "win32"} and not any(name.lower().endswith("_proxy") for name in os.environ):
        return {}
    from urllib.request import getproxies

    return getproxies()


def tls_context(verify: ssl.SSLContext | str | bool, cert: str | tuple[str, str] | None) -> ssl.SSLContext:  # noqa: FBT001  # as the transports take it
    """Return a TLS context that verifies servers and has the client's certificate.

    ``verify`` is a context to use, the path of a CA bundle, True for the machine's certificates, or False for no
    verification. A machine without certificates uses those of certifi, which httpx brings. ``cert`` is the path of a client
    certificate with its key, or a pair of paths. Raises OSError if a file is missing.
    """
    if isinstance(verify, ssl.SSLContext):
        context = verify
    elif verify is False:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else _certificates())
    if cert is not None:
        context.load_cert_chain(*((cert,) if isinstance(cert, str) else cert))
    return context


def _certificates() -> str | None:
    """Return the path of certifi's bundle if this machine's OpenSSL finds no certificates, else None."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or (paths.capath and any(Path(paths.capath).iterdir())) or sys.platform == "win32":
        return None
    try:
        import certifi
    except ImportError:
        return None
    return certifi.where()


def readable(descriptor: int) -> Callable[[], bool]:
    """Return a function that tells whether a socket has data to read or has ended, even if no event loop has seen it."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return lambda: bool(poll.poll(0))
    return lambda: bool(select.select([descriptor], [], [], 0)[0])  # Windows
