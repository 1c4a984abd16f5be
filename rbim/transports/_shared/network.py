"""What transports take from the machine they run on: its proxies, its certificates, and how exactly it keeps time."""

from __future__ import annotations

import math
import ssl
from urllib.parse import urlsplit

__all__ = ["in_grains", "proxy_for", "proxy_from_env", "tls_context"]

GRAINS = 100  # of a second


def in_grains(seconds: float) -> float:
    """Return a time-out rounded up to 1/100 s.

    For what has to be made anew for another time-out: what is left of a call's time differs each time.
    """
    return math.ceil(seconds * GRAINS) / GRAINS if seconds < math.inf else seconds


def proxy_for(origin: str, told: str | None, *, trust_env: bool) -> str | None:
    """Return the address of an origin's proxy, always with a scheme: the one told, else the environment's, else None."""
    proxy = proxy_from_env(origin) if told is None and trust_env else told
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


def proxy_from_env(origin: str) -> str | None:
    """Return the proxy that the environment names for an origin, by the standard library's reading of it."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(origin)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return None if not proxy or proxy_bypass(parts.netloc) else proxy


def tls_context(verify: ssl.SSLContext | str | bool, cert: str | tuple[str, str] | None) -> ssl.SSLContext:  # noqa: FBT001  # as the transports take it
    """Return what verifies servers and shows the client's certificate.

    ``verify`` is a context to use, the path of a CA bundle, True for the machine's certificates or False for none; ``cert``
    the path of a certificate with its key, or a pair of paths. Raises OSError where there is no such file.
    """
    if isinstance(verify, ssl.SSLContext):
        context = verify
    elif verify is False:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if cert is not None:
        context.load_cert_chain(*((cert,) if isinstance(cert, str) else cert))
    return context
