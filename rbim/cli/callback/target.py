"""Addresses that deliveries are sent to."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from rbim.errors import InvalidRequest
from rbim.http import Request

__all__ = ["target_of", "without_user"]


def target_of(url: str, flag: str) -> Request:
    """Return a request to a URL. Raises InvalidRequest, which names the flag, unless it is an HTTP URL."""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            return Request(origin=f"{parts.scheme}://{parts.netloc}", path=parts.path or "/", query=query)
    except ValueError:  # an invalid port or IPv6 address
        pass
    raise InvalidRequest(f"{flag}: invalid URL {without_user(url)!r}: use an http or https URL", field=flag)


def without_user(url: str) -> str:
    """Return a URL, which may be invalid, without its user and password."""
    scheme, slashes, rest = url.partition("//") if "//" in url else ("", "", url)
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"
