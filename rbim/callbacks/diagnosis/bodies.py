"""What may have been done to a body between the platform and whoever looks at it: a table of what undoes it.

The ``MD5`` header is the digest of the body as it was sent. Each variant makes, from the body as it came, what may have been
sent; the one whose digest fits tells what happened on the way.
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

from rbim._support import json as jsontext

__all__ = ["VARIANTS", "Variant", "told_length", "variant_of"]

AT_MOST = 4 * 1024 * 1024  # bytes: compressed nothings are not blown up
BOM = b"\xef\xbb\xbf"


@frozen
class Variant:
    """One thing that may have been sent instead: what the ``MD5`` header is the digest of, and what to do about it."""

    name: str
    text: str
    make: Callable[[bytes], Iterable[bytes]]


RAW = "Verify the raw bytes, as they came"
READ = "Something on the way, or the capture itself, changed the text"
PARSED = f"It was parsed and written again before it came here. {RAW}, before anything parses them"
CHARSET = f"It was decoded and encoded again in another character set. {RAW}, never a text made of them"

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
    document = jsontext.loads(body)
    text = json.dumps(document, ensure_ascii=ascii_only, sort_keys=sort, separators=separators)
    yield escape(text).encode()


def _indented(body: bytes) -> Iterable[bytes]:
    document = jsontext.loads(body)
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


CODECS = {"GBK": "gb18030"}  # which has all of GBK, as it is there, and more


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
            yield zlib.decompressobj(bits).decompress(body, AT_MOST)
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
    """Take a form apart that has all of the body as its first name or value."""
    plain = unquote_to_bytes(body.replace(b"+", b" "))
    yield plain
    yield plain.removesuffix(b"=")
    yield plain.partition(b"=")[2]


REWRITTEN = tuple(
    Variant(
        name=f"json {spaces}{', ASCII only' if ascii_only else ''}{', keys sorted' if sort else ''}{how}",
        text=(
            f"the body's JSON written {spaces}, {'with' if ascii_only else 'without'} \\u escapes"
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
        f"the body in {was}, which came here in {now}. {CHARSET}",
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
    Variant("empty", "an empty body. Whoever sent it made the digest before there was a body", lambda _: [b""]),
    Variant(
        "newline removed",
        f"the body with a newline at its end. {READ}: an editor or a shell takes it away",
        lambda body: [body + b"\n", body + b"\r\n"],
    ),
    Variant(
        "newline added",
        f"the body without the newline at its end. {READ}: an editor or a shell puts one there",
        lambda body: [body.removesuffix(b"\n"), body.removesuffix(b"\r\n")],
    ),
    Variant(
        "white space added",
        f"the body without the white space around it. {READ}",
        lambda body: [body.strip(), body.lstrip(), body.rstrip()],
    ),
    Variant(
        "CRLF to LF",
        f"the body with its lines ending in CRLF. {READ}: git, FTP and editors do",
        lambda body: [re.sub(rb"\r?\n", b"\r\n", body)],
    ),
    Variant(
        "LF to CRLF",
        f"the body with its lines ending in LF. {READ}: git, FTP and editors do",
        lambda body: [body.replace(b"\r\n", b"\n"), body.replace(b"\r", b"\n")],
    ),
    Variant("byte order mark removed", f"the body with a byte order mark before it. {READ}", lambda body: [BOM + body]),
    Variant(
        "byte order mark added",
        f"the body without the byte order mark before it. {READ}",
        lambda body: [body.removeprefix(BOM)],
    ),
    *REWRITTEN,
    Variant("json indented", f"the body's JSON written over several lines. {PARSED}", _indented),
    Variant("json in a json text", f"the text inside the JSON text that the body is. {PARSED}", _inner),
    Variant("json text taken out", f"the body written as one JSON text, in quotes. {PARSED}", _outer),
    *RECODED,
    Variant(
        "replaced by question marks",
        "the body with '?' in place of every character outside ASCII: whoever signed it encoded the text in a character set"
        " that does not have them. No receiver can put that right",
        partial(_recoded, was="ascii", now="utf-8", errors="replace"),
    ),
    Variant("percent-encoded", f"the body percent-decoded. {READ}: it was treated as a form", _formed),
    Variant("percent-decoded", f"the body percent-encoded. {READ}: it was treated as a form", _quoted),
    Variant(
        "html escaped",
        f"the body without HTML's escapes (&quot; and others). {READ}",
        lambda body: [html.unescape(body.decode()).encode()],
    ),
    Variant(
        "base64",
        "what the body is Base64 of: an API gateway hands it on so. Decode it first",
        lambda body: [b64decode(body, validate=True)],
    ),
    Variant(
        "python bytes", f"the bytes that the body shows as Python does, b'...': str() was called on them. {RAW}", _shown
    ),
    Variant("compressed", "the body decompressed: it was compressed after it was signed. Decompress it first", _inflated),
    Variant("chunked", "the body without the lengths of its chunks: the capture shows the transfer encoding", _unchunked),
    Variant("lower case", f"the body in lower case. {READ}", lambda body: [body.lower()]),
    Variant("upper case", f"the body in upper case. {READ}", lambda body: [body.upper()]),
    Variant(
        "NUL added",
        f"the body without the NUL bytes at its end. {READ}: a buffer was passed on whole",
        lambda body: [body.rstrip(b"\0")],
    ),
)
"""All that is tried, what happens most first."""


def variant_of(body: bytes, fits: Callable[[bytes], bool]) -> Variant | None:
    """Return the first variant of a body that fits, if there is one."""
    for variant in VARIANTS:
        try:
            if any(fits(made) for made in variant.make(body)):
                return variant
        except (ValueError, RecursionError):  # the body is nothing that this could be done to
            continue
    return None


def told_length(lengths: Iterable[bytes]) -> int | None:
    """Return what ``Content-Length`` says, if it says something."""
    told = next(iter(lengths), b"").strip()
    return int(told) if re.fullmatch(rb"[0-9]{1,12}", told) else None
