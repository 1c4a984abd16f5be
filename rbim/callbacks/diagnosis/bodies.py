"""Changes that a body may suffer between the platform and the receiver: a table of functions that undo them.

The ``MD5`` header is the digest of the body as sent. Each variant reconstructs, from the body as received, a body that may
have been sent; the variant whose digest matches shows the change.
"""

from __future__ import annotations

import html
import json
import re
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterable  # noqa: TC003  # attrs resolves them
from functools import partial
from itertools import product
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from attrs import frozen

from rbim._support import json as rbim_json

__all__ = ["VARIANTS", "Variant", "content_length", "variant_of"]

MOST_INFLATED = 4 * 1024 * 1024  # bytes: a limit against decompression bombs
BOM = b"\xef\xbb\xbf"


@frozen
class Variant:
    """A body that may have been sent. ``text`` completes "MD5 is the digest of ..." and says what to do."""

    name: str
    text: str
    make: Callable[[bytes], Iterable[bytes]]


RAW = "Verify the raw bytes as received"
CHANGED = "Something on the way, or the capture itself, changed the body: use the raw bytes"
PARSED = f"It was parsed and serialized again on the way. {RAW}, before anything parses them"
CHARSET = f"It was decoded and encoded again in another character set. {RAW}, never decoded text"

SEPARATORS = {
    "compact": (",", ":"),
    "with spaces after commas and colons": (", ", ": "),
    "with spaces after colons": (",", ": "),
}
HTML_SAFE = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&='"})


def _upper(text: str) -> str:
    return re.sub(r"\\u[0-9a-f]{4}", lambda escape: "\\u" + escape.group()[2:].upper(), text)


ESCAPES: dict[str, Callable[[str], str]] = {
    "": str,
    ", '/' escaped (PHP)": lambda text: text.replace("/", "\\/"),
    ", escapes in upper case (Java)": _upper,
    ", '<', '>', '&', '=' and ''' escaped (Gson)": lambda text: text.translate(HTML_SAFE),
}


def _written(
    body: bytes, *, ascii_only: bool, sort: bool, separators: tuple[str, str], escape: Callable[[str], str]
) -> Iterable[bytes]:
    document = rbim_json.loads(body)
    text = json.dumps(document, ensure_ascii=ascii_only, sort_keys=sort, separators=separators)
    yield escape(text).encode()


def _indented(body: bytes) -> Iterable[bytes]:
    document = rbim_json.loads(body)
    indents: tuple[int | str, ...] = (2, 4, "\t", 1, 3)
    for indent, ascii_only in product(indents, (False, True)):
        text = json.dumps(document, ensure_ascii=ascii_only, indent=indent)
        yield text.encode()
        yield text.replace("\n", "\r\n").encode()


def _inner(body: bytes) -> Iterable[bytes]:
    text: Any = json.loads(body)
    yield text.encode() if isinstance(text, str) else body


def _outer(body: bytes) -> Iterable[bytes]:
    text = body.decode()
    yield json.dumps(text).encode()
    yield json.dumps(text, ensure_ascii=False).encode()


CODECS = {"GBK": "gb18030"}  # a superset of GBK


def _recoded(body: bytes, *, was: str, now: str, errors: str = "strict") -> Iterable[bytes]:
    yield body.decode(CODECS.get(now, now)).encode(CODECS.get(was, was), errors)


_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|[\\tnr'\"])")
_PLAIN = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def _shown(body: bytes) -> Iterable[bytes]:
    if re.fullmatch(rb"b(['\"]).*\1", body, re.DOTALL):
        yield _ESCAPE.sub(lambda escape: _PLAIN.get(escape[1]) or _byte(escape[1]), body[2:-1])


def _byte(escaped: bytes) -> bytes:
    return bytes.fromhex(escaped[1:].decode()) if len(escaped) > 1 else escaped


def _inflated(body: bytes) -> Iterable[bytes]:
    for bits in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
        try:
            yield zlib.decompressobj(bits).decompress(body, MOST_INFLATED)
        except zlib.error:
            continue


_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})(;[^\r\n]*)?\r\n")


def _unchunked(body: bytes) -> Iterable[bytes]:
    parts: list[bytes] = []
    chunk = _CHUNK.match(body)
    while chunk is not None:
        end = chunk.end() + int(chunk[1], 16)
        parts.append(body[chunk.end() : end])
        chunk = _CHUNK.match(body, end + 2)
    yield b"".join(parts)


def _quoted(body: bytes) -> Iterable[bytes]:
    for safe in ("/", ""):
        text = quote_from_bytes(body, safe)
        yield text.encode()
        yield text.replace("%20", "+").encode()


def _formed(body: bytes) -> Iterable[bytes]:
    """Decode a form whose first name or first value is the whole body."""
    plain = unquote_to_bytes(body.replace(b"+", b" "))
    yield plain
    yield plain.removesuffix(b"=")
    yield plain.partition(b"=")[2]


REWRITTEN = tuple(
    Variant(
        name=f"json {spaces}{', ASCII only' if ascii_only else ''}{', keys sorted' if sort else ''}{how}",
        text=(
            f"the body's JSON serialized {spaces}, {'with' if ascii_only else 'without'} \\u escapes"
            f"{', keys in alphabetical order' if sort else ''}{how}. {PARSED}"
        ),
        make=partial(_written, ascii_only=ascii_only, sort=sort, separators=separators, escape=escape),
    )
    for (spaces, separators), ascii_only, sort, (how, escape) in product(
        SEPARATORS.items(), (False, True), (False, True), ESCAPES.items()
    )
    if ascii_only or escape is not _upper
)

RECODED = tuple(
    Variant(
        f"{was} read as {now}",
        f"the body in {was}, but it arrived in {now}. {CHARSET}",
        partial(_recoded, was=was, now=now),
    )
    for was, now in [
        ("GBK", "UTF-8"),
        ("UTF-8", "GBK"),
        ("Big5", "UTF-8"),
        ("UTF-16", "UTF-8"),
        ("UTF-16-LE", "UTF-8"),
        ("UTF-16-BE", "UTF-8"),
        ("UTF-8", "UTF-16"),
        ("UTF-8", "UTF-16-BE"),
        ("Latin-1", "UTF-8"),
        ("Windows-1252", "UTF-8"),
        ("UTF-8", "Latin-1"),
    ]
)

VARIANTS = (
    Variant(
        "empty", "an empty body: the sender computed the digest before it had the body. Correct the sender", lambda _: [b""]
    ),
    Variant(
        "newline removed",
        f"the body with a newline at its end. {CHANGED} (editors and shells remove a newline)",
        lambda body: [body + b"\n", body + b"\r\n"],
    ),
    Variant(
        "newline added",
        f"the body without the newline at its end. {CHANGED} (editors and shells append one)",
        lambda body: [body.removesuffix(b"\n"), body.removesuffix(b"\r\n")],
    ),
    Variant(
        "white space added",
        f"the body without the white space around it. {CHANGED}",
        lambda body: [body.strip(), body.lstrip(), body.rstrip()],
    ),
    Variant(
        "CRLF to LF",
        f"the body with CRLF at its line ends. {CHANGED} (git, FTP and editors convert line ends)",
        lambda body: [re.sub(rb"\r?\n", b"\r\n", body)],
    ),
    Variant(
        "LF to CRLF",
        f"the body with LF at its line ends. {CHANGED} (git, FTP and editors convert line ends)",
        lambda body: [body.replace(b"\r\n", b"\n"), body.replace(b"\r", b"\n")],
    ),
    Variant("byte order mark removed", f"the body with a byte order mark before it. {CHANGED}", lambda body: [BOM + body]),
    Variant(
        "byte order mark added",
        f"the body without the byte order mark before it. {CHANGED}",
        lambda body: [body.removeprefix(BOM)],
    ),
    *REWRITTEN,
    Variant("json indented", f"the body's JSON serialized over several lines. {PARSED}", _indented),
    Variant("json in a json text", f"the text inside the body, which is one JSON string. {PARSED}", _inner),
    Variant("json text taken out", f"the body written as one JSON string, in quotes. {PARSED}", _outer),
    *RECODED,
    Variant(
        "replaced by question marks",
        "the body with '?' instead of every non-ASCII character: the sender signed it in a character set without them. No"
        " receiver can repair that; correct the sender",
        partial(_recoded, was="ascii", now="utf-8", errors="replace"),
    ),
    Variant("percent-encoded", f"the percent-decoded body. {CHANGED} (it was treated as a form)", _formed),
    Variant("percent-decoded", f"the percent-encoded body. {CHANGED} (it was treated as a form)", _quoted),
    Variant(
        "html escaped",
        f"the body without HTML escapes (&quot; and others). {CHANGED}",
        lambda body: [html.unescape(body.decode()).encode()],
    ),
    Variant(
        "base64",
        "the Base64-decoded body: an API gateway encoded it. Decode it before you verify",
        lambda body: [b64decode(body, validate=True)],
    ),
    Variant(
        "python bytes", f"the bytes in the Python literal b'...' that arrived: str() was called on bytes. {RAW}", _shown
    ),
    Variant("compressed", "the decompressed body: it was compressed after signing. Decompress it first", _inflated),
    Variant("chunked", "the body without its chunk lengths: remove the transfer encoding from the capture", _unchunked),
    Variant("lower case", f"the body in lower case. {CHANGED}", lambda body: [body.lower()]),
    Variant("upper case", f"the body in upper case. {CHANGED}", lambda body: [body.upper()]),
    Variant(
        "NUL added",
        f"the body without the NUL bytes at its end. {CHANGED} (a whole buffer was passed on)",
        lambda body: [body.rstrip(b"\0")],
    ),
)
"""All variants that are tried, the most common first."""


def variant_of(body: bytes, fits: Callable[[bytes], bool]) -> Variant | None:
    """Return the first variant of a body that ``fits`` accepts, or None."""
    for variant in VARIANTS:
        try:
            if any(fits(made) for made in variant.make(body)):
                return variant
        except (ValueError, RecursionError):  # the change cannot have happened to this body
            continue
    return None


def content_length(lengths: Iterable[bytes]) -> int | None:
    """Return the first of the values of ``Content-Length`` as a number, or None if there is no number."""
    first = next(iter(lengths), b"").strip()
    return int(first) if re.fullmatch(rb"[0-9]{1,12}", first) else None
