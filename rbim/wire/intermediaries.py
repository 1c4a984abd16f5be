"""Answers that proxies, firewalls and gateways have changed or made: compressed bodies, redirects, pages of their own."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from rbim._support.text import excerpt, one_line
from rbim.errors import AnswerTooLarge, IntermediaryError, Outcome, ProtocolError
from rbim.http import answered

if TYPE_CHECKING:
    from rbim.http import Response

__all__ = ["ANSWER_LIMIT", "decompressed", "page_of"]

ANSWER_LIMIT = 8 * 1024 * 1024
"""Bytes of a decompressed body at most, if the transport has no ``answer_limit``."""

OK = 200
ENCODINGS = {  # the window bits of zlib, in the order in which they are tried
    "gzip": (zlib.MAX_WBITS | 16,),
    "x-gzip": (zlib.MAX_WBITS | 16,),
    "deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS),  # as RFC 9110 defines it, and as many servers write it
    "identity": (),
    "": (),
}
PLAIN = (b"{", b"[", b"<")
CODINGS, STREAMS = 4, 256
"""Codings of a body, and compressed streams in each, at most: more would block the event loop for minutes."""


def decompressed(response: Response, limit: int) -> Response:
    """Return a response with a ``Content-Encoding`` that was not asked for without it.

    A body that was not compressed at all is left as it is. Raises AnswerTooLarge if the plain body is longer than ``limit``
    bytes, ProtocolError if it is damaged, or if the answer has HTTP 200 and an unknown encoding.
    """
    headers = {name: value for name, value in response.headers.items() if name not in {"content-encoding", "content-length"}}
    body, status, coding = response.body, response.status, response.headers["content-encoding"].lower()
    names = [each.strip() for each in coding.split(",")]
    for name in reversed(names) if len(names) <= CODINGS else [coding]:
        if name not in ENCODINGS:
            if status != OK:  # the status says enough
                return response
            reason = f"Content-Encoding {one_line(name, 40)!r} was not asked for and is unknown (gzip and deflate are read)"
            raise ProtocolError(reason, status=status)
        if not ENCODINGS[name] or not body or body.lstrip()[:1] in PLAIN:
            continue
        found = next(filter(None, (_inflated(body, bits, limit) for bits in ENCODINGS[name])), None)
        if found is None:
            raise ProtocolError(f"the body is damaged: it is not {name}, as its Content-Encoding says", status=status)
        if len(found) > limit:
            raise AnswerTooLarge(f"the response body is longer than {limit} bytes, decompressed", limit=limit)
        body = found
    return answered(status, headers, body)


def _inflated(body: bytes, bits: int, limit: int) -> bytes | None:
    """Return the plain body, or more than ``limit`` bytes of it; None if it is damaged, cut or empty, or in many streams."""
    parts: list[bytes] = []
    size = 0
    while body and size <= limit:
        if len(parts) == STREAMS:
            return None
        stream = zlib.decompressobj(bits)
        try:
            parts.append(stream.decompress(body, limit + 1 - size))
        except zlib.error:
            return b"".join(parts) or None  # junk behind a whole stream
        size += len(parts[-1])
        if not stream.eof and size <= limit:
            return None
        body = stream.unused_data
    return b"".join(parts)


REFUSED = range(300, 500)
FILTERED = frozenset({403, 408, 451})  # filters also send these in place of an answer, when the platform has acted
REDIRECTS = frozenset({301, 302, 303, 307, 308})
PROXY_LOGIN = 407
LOGIN = "check user and password in the address of the proxy"
PAGE = 4096  # bytes of a page that are searched for words
TAGS = rb"(?is)<(script|style)\b.*?</\1\s*>|<[^>]*>"


def page_of(response: Response, setting: str, address: str, path: str, *, retry_after: float | None) -> IntermediaryError:
    """Return the error for an answer that is not one of the platform.

    ``setting`` (``base_url`` or ``call_base_url``) has the address without ``path``. No message shows the query of a
    redirect's target.
    """
    status, server = response.status, one_line(response.headers.get("server", ""), 60)
    outcome = Outcome.REFUSED if status in REFUSED and status not in FILTERED else Outcome.UNKNOWN
    target = _target(response, address) if status in REDIRECTS else ""
    words = _words(response.body)
    if target:
        moved = target.removesuffix(path)
        named = f"set {setting} to {moved}" if moved != target else f"if the platform is there, set {setting} to its address"
        reason = f"redirects to {target}, which is not followed: {named}"
    else:
        where = f"{_kind(response)} from {urlsplit(address).netloc}{f' (Server: {server})' if server else ''}"
        step = f": {LOGIN}" if status == PROXY_LOGIN else ""
        reason = f"{where}: something between you and the platform answered{f': {words}' if words else ''}{step}"
    return IntermediaryError(
        reason, status=status, body=response.body, server=server, retry_after=retry_after, outcome=outcome
    )


def _target(response: Response, asked: str) -> str:
    """Return where a redirect leads, without user, query and fragment; empty if it cannot be read."""
    try:
        parts = urlsplit(urljoin(asked, response.headers.get("location", "")))
        if not response.headers.get("location") or parts.scheme not in {"http", "https"} or not parts.hostname:
            return ""
    except ValueError:
        return ""
    return one_line(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", 200)


def _words(body: bytes) -> str:
    """Return the first words of a page, in quotes; of HTML without its tags."""
    begin = body[:PAGE]
    text = re.sub(TAGS, b" ", begin) if begin.lstrip()[:1] == b"<" else begin
    return excerpt(text.strip()) if text.strip() else ""


def _kind(response: Response) -> str:
    begin = response.body[:PAGE].lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    if not begin:
        return "without a body"
    if begin[:1] in {b"{", b"["}:
        return "with JSON"
    kind = response.headers.get("content-type", "").lower()
    if begin.startswith(b"<?xml") or "xml" in kind.partition("+")[0]:
        return "with XML"
    return "with HTML" if begin[:1] == b"<" or "html" in kind else "with text"
