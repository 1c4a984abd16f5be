"""Bodies that something on the way has compressed, although nobody asked for it."""

import gzip
import zlib

import pytest

from helpers.tables import each_row
from rbim import AnswerTooLarge, ProtocolError, Response
from rbim.wire.intermediaries import decompressed

BODY = b'{"statusCode":"000000"}'
LIMIT = 1000


def raw_deflate(body):
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(body) + stream.flush()


def decoded(body, encoding, status=200):
    return decompressed(Response(status, {"content-encoding": encoding, "x": "y", "content-length": "1"}, body), LIMIT)


@each_row(
    "body, encoding",
    [
        (gzip.compress(BODY), "gzip"),
        (gzip.compress(BODY), "X-GZIP"),
        (gzip.compress(BODY[:5]) + gzip.compress(BODY[5:]), "gzip"),
        (gzip.compress(BODY) + b"\0\0", "gzip"),
        (zlib.compress(BODY), "deflate"),
        (raw_deflate(BODY), "deflate"),
        (gzip.compress(zlib.compress(BODY)), "deflate, gzip"),
        (BODY, "identity"),
        (BODY, ""),
        (BODY, "gzip"),  # a gateway that has decompressed it and left the header
        (b" " * (LIMIT - 1) + b"{", "gzip"),
        (gzip.compress(b" " * (LIMIT - 1) + b"{"), "gzip"),
    ],
)
def test_a_compressed_body_is_read(body, encoding):
    response = decoded(body, encoding)
    assert response.body in {BODY, b" " * (LIMIT - 1) + b"{"}
    assert (response.status, response.headers) == (200, {"x": "y"})


def test_an_empty_body_stays_empty():
    assert decoded(b"", "gzip", status=502).body == b""


@each_row(
    "body", [gzip.compress(b" " * 10**7), gzip.compress(b" " * 600) * 2, gzip.compress(b"") * 3 + gzip.compress(b" " * 1001)]
)
def test_a_body_that_grows_beyond_the_limit_is_not_read(body):
    with pytest.raises(AnswerTooLarge, match="longer than 1000 bytes, decompressed") as caught:
        decoded(body, "gzip")
    assert caught.value.limit == LIMIT


@each_row(
    "body, encoding, reason",
    [
        (gzip.compress(BODY)[:-1], "gzip", "it is not gzip, as its Content-Encoding says"),
        (gzip.compress(BODY)[:12], "gzip", "it is not gzip"),
        (b"\x1f\x8b!", "gzip", "it is not gzip"),
        (b"junk", "deflate", "it is not deflate"),
        (gzip.compress(b"") * 257, "gzip", "it is not gzip"),
        (
            gzip.compress(gzip.compress(BODY)),
            "gzip,gzip,,,",
            "Content-Encoding 'gzip,gzip,,,' was not asked for and is unknown",
        ),
        (b"\x0b\x02\x80{}\x03", "br", "Content-Encoding 'br' was not asked for and is unknown"),
        (b"?", "zstd\x1b[31m", "Content-Encoding 'zstd"),
    ],
)
def test_a_body_that_cannot_be_decompressed_is_refused_in_words(body, encoding, reason):
    with pytest.raises(ProtocolError) as caught:
        decoded(body, encoding)
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()


def test_the_status_of_an_error_counts_whatever_its_encoding():
    assert decoded(b"?", "br", status=503) == Response(
        503, {"content-encoding": "br", "x": "y", "content-length": "1"}, b"?"
    )
