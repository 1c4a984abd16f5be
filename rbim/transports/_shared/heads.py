"""Heads: caches of those of requests and of header names; which ones of responses are refused.

A signer uses a signature for a second; during it, requests to one path differ only in their bodies. The platform accepts it
for much longer, so older heads are removed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Generic, TypeVar

from attrs import define

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rbim.http import Request

__all__ = ["HeadCache", "HeaderNames", "fault_of"]

T = TypeVar("T")

MAX_HEADS = 64  # entries, mostly one per path: one client's operations have fewer
MAX_NAMES = 256  # cached header names
MAX_NAME = 64  # bytes
MAX_AGE = 1.0  # seconds; an older head has the signature of an earlier second


@define(repr=False)
class _Entry(Generic[T]):
    """A cached value with the signed headers and query of the request it was made from."""

    headers: dict[str, str]
    query: dict[str, str]
    made: float
    value: T


class HeadCache(Generic[T]):
    """A cache of values made from requests to one origin, for later ones that differ only in their body.

    Values older than a second are removed when a later one is kept.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], _Entry[T]] = {}
        self._swept = time.monotonic()

    def get(self, request: Request) -> T | None:
        """Return the value for a request like this, or None."""
        kept = self._kept.get((request.path, request.method))
        if kept is None or request.headers != kept.headers or request.query != kept.query:
            return None
        return kept.value

    def keep(self, request: Request, value: T) -> T:
        """Store the value for requests like this, and return it."""
        now = time.monotonic()
        if now - self._swept > MAX_AGE:
            self._swept = now
            self._kept = {key: kept for key, kept in self._kept.items() if now - kept.made <= MAX_AGE}
        if len(self._kept) >= MAX_HEADS:
            self._kept.clear()
        self._kept[request.path, request.method] = _Entry({**request.headers}, {**request.query}, now, value)
        return value


class HeaderNames(dict[bytes, str]):
    """Header names in lower case; short ones are kept."""

    def __missing__(self, raw: bytes) -> str:
        name = raw.decode("latin-1").lower()
        if len(raw) <= MAX_NAME and len(self) < MAX_NAMES:
            self[raw] = name
        return name

    def joined(self, raw_headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
        """Return headers by name; repeated ones are joined by a comma."""
        headers: dict[str, str] = {}
        for raw_name, raw_value in raw_headers:
            name, value = self[raw_name], raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return headers


def fault_of(version: str, headers: Mapping[str, str]) -> str:
    """Return why the head of a response is refused, or an empty text: another server may see its end elsewhere."""
    if version not in {"1.0", "1.1"}:
        return f"the response is HTTP/{version}, not HTTP/1.1 or HTTP/1.0"
    coding = headers.get("transfer-encoding")
    if coding is None:
        return ""
    if coding.lower() != "chunked" or version == "1.0":
        return "the response has a Transfer-Encoding other than chunked, or is HTTP/1.0 with a Transfer-Encoding"
    return "the response has both a Transfer-Encoding and a Content-Length" if "content-length" in headers else ""
