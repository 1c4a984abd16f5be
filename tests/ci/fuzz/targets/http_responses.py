"""Responses of HTTP/1.1, as rbim's asyncio transport reads them, in any pieces."""

import re

from attrs import evolve, frozen

from rbim.transports.asyncio.answer import AnswerReader, KnownHeads
from rbim.transports.asyncio.h11_parser import H11Parser
from rbim.transports.httpx_slots.slot import end_of_response
from tests.ci.fuzz.broken import require

try:
    import httptools
except ImportError:
    httptools = None

WHAT = "responses of HTTP/1.1, in any pieces, with h11 and with llhttp"
ORACLE = "a reader by the grammar of RFC 9112; h11 and llhttp agree; pieces and cached heads change nothing"
INSTRUMENT = ["rbim", "h11"]
MOST = 700
WORDS = [
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 ", b"HTTP/1.1 ", b"100 Continue", b"101", b"204", b"304", b"503 "),
    *(b"\r\n\r\n", b"\r\n", b"content-length: ", b"transfer-encoding: chunked\r\n", b"connection: close\r\n"),
    *(b"connection: keep-alive\r\n", b"upgrade: h2c\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b";a=b", b"x: y\r\n", b"gzip"),
    *(b"Content-Length: 5, 5", b"trailer: x\r\n", b"\n\n", b"\x00", b"\t", b" ,", b"0x5", b"1_0", b"+5", b"\xc2\xb2"),
]
LIMIT = 300  # bytes of a body


def seeds():
    ok = b"HTTP/1.1 200 OK\r\n"
    responses = [
        ok + b"Content-Length: 5\r\n\r\nhello",
        ok + b"content-length: 0\r\nConnection: close\r\n\r\n",
        ok + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;a=b\r\nxyz\r\n0\r\nx: y\r\n\r\n",
        ok + b"x: 1\r\nX: 2\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\n",
        ok + b"\r\nuntil the end",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nx: y\r\n\r\n" + ok + b"content-length: 2\r\n\r\n{}",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\ndate: x\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 503 \r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ok + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ok + b"content-length: 301\r\n\r\n",
    ]
    places = [b"\x00\x00\x00", b"\x00\x14\x00", b"\x01\x20\x01", b"\x07\x00\x02"]
    return [places[number % 4] + response for number, response in enumerate(responses)]


@frozen
class Read:
    """What was read: ``kind`` is whole, more (bytes are needed), refused, or large (the body is)."""

    kind: str
    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    reusable: bool = False


def check(data):
    if len(data) < 3:
        return
    place = (data[0] << 8 | data[1]) % (len(data) - 2)
    step, closed, tunnel = 1 + data[1] % 16, bool(data[2] & 1), data[2] & 6 == 6
    message = data[3:]
    ways = {
        "at once": [message],
        "in two": [message[:place], message[place:]],
        "in steps": [message[begin : begin + step] for begin in range(0, len(message), step)],
    }
    results = {}
    for name in ("llhttp", "h11") if httptools is not None else ("h11",):
        reads = {way: read(_reader(name), pieces, closed=closed, tunnel=tunnel) for way, pieces in ways.items()}
        results[name] = first = reads["at once"]
        ending = message.endswith((b"\r", b"\n"))  # llhttp ignores line breaks between responses
        compared = {evolve(each, reusable=each.reusable and not (tunnel or ending)) for each in reads.values()}
        require(len(compared) == 1, f"pieces change what {name} reads", reads)
        if first.kind == "whole" and not tunnel:
            _check_cache(name, message, first, closed=closed)
    strict = None if tunnel else by_grammar(message, closed=closed)
    for name, found in results.items():
        if strict is not None:
            expected, end = strict
            # it need not be used again; llhttp ignores line breaks behind a response
            reusable = found.reusable <= (expected.reusable or not message[end:].strip(b"\r\n"))
            require(
                evolve(found, reusable=False) == evolve(expected, reusable=False) and reusable,
                f"{name} reads a response by the grammar otherwise: {expected.kind}",
                found,
                expected,
            )
            if found.kind == "whole" and end is not None:
                require(
                    end_of_response(message, len(found.body), chunked="transfer-encoding" in dict(found.headers))
                    in (end, -1),
                    "the end of a response is elsewhere",
                    end,
                    found,
                )
    if len(results) == 2 and all(each.kind == "whole" for each in results.values()):
        both = [evolve(each, reusable=False) for each in results.values()]
        require(both[0] == both[1], "h11 and llhttp read different responses", results)


def _reader(name, known=None):
    reader = AnswerReader(KnownHeads(LIMIT) if known is None else known)
    if name == "h11":
        reader._parser = H11Parser(reader)
    return reader


def read(reader, pieces, *, closed, tunnel=False):
    """Feed the pieces as a connection does; bytes behind a response end the connection."""
    reader.begin(tunnel=tunnel)
    pieces = [each for each in pieces if each]
    for number, piece in enumerate(pieces):
        if reader.feed(piece):
            behind = number + 1 < len(pieces)
            break
    else:
        behind = False
        if closed:
            reader.end()
    if reader.whole:
        response = reader.response()
        return Read(
            "whole",
            response.status,
            _sorted(response.headers),
            bytes(response.body),
            reusable=reader.reusable and not behind,
        )
    require(not (reader.fault and reader.reusable), "a refused response leaves its connection in use", reader.fault)
    if reader.too_large:
        return Read("large")
    return Read("refused" if reader.fault else "more")


def _sorted(headers):
    """Return headers in order; h11 returns the one coding in lower case."""
    coding = "transfer-encoding"
    return tuple(sorted((name, value.lower() if name == coding else value) for name, value in headers.items()))


def _check_cache(name, message, first, *, closed):
    """Read the same again, and another body under the same head, with the cache of heads."""
    known = KnownHeads(LIMIT)
    for _ in range(2):
        again = read(_reader(name, known), [message], closed=closed)
        require(again == first, f"a known head changes what {name} reads", first, again)
    head, blank, body = message.partition(b"\r\n\r\n")
    for other in (body[::-1], body + b"x", body[1:]):
        changed = head + blank + other
        fresh = read(_reader(name), [changed], closed=closed)
        cached = read(_reader(name, known), [changed], closed=closed)
        require(fresh == cached, f"a known head changes what {name} reads", fresh, cached, changed)


# ------------------------------------------------------------------ by the grammar of RFC 9112

STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9]) [\t\x20-\x7e\x80-\xff]*")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x1f\x7f]*?|[^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[a-z]+=[a-z]+)?")
UNCLEAR = {"transfer-encoding", "content-length", "upgrade", "connection", "proxy-connection"}


class Odd(Exception):
    """The bytes leave the grammar, or a corner of it that parsers read in several ways."""


def by_grammar(message, *, closed):
    """Return what a response is and where it ends, or None where the grammar does not say."""
    try:
        return _final(message, closed=closed)
    except Odd:
        return None


def _open(*, closed):
    return Read("refused" if closed else "more"), None


def _final(message, *, closed):  # noqa: C901, PLR0912  # the grammar in one place
    place = 0
    while True:
        blank = message.find(b"\r\n\r\n", place)
        if blank < 0:
            _check_prefix(message[place:])
            return _open(closed=closed)
        minor, status, fields = _head(message[place:blank])
        place = blank + 4
        if status == 101:
            return Read("refused"), None
        if status >= 200:
            break
        if minor == 0 or UNCLEAR & {name for name, _ in fields}:
            raise Odd
    headers = {}
    for name, value in fields:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    counts = {name: sum(each == name for each, _ in fields) for name in UNCLEAR}
    if counts["upgrade"] or counts["proxy-connection"]:
        raise Odd
    options = {each.strip().lower() for each in headers.get("connection", "").split(",")}
    if options - {"", "close", "keep-alive"} or len(options) > 1:
        raise Odd
    keep = "close" not in options if minor == 1 else "keep-alive" in options
    whole = Read("whole", status, _sorted(headers))
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if length is not None and (counts["content-length"] > 1 or re.fullmatch("[0-9]{1,9}", length) is None):
        raise Odd
    if coding is not None:
        if counts["transfer-encoding"] > 1 or not re.fullmatch("[a-z]+", coding, re.IGNORECASE) or status in (204, 304):
            raise Odd
        if coding.lower() != "chunked" or minor == 0 or length is not None:
            return Read("refused"), None
        return _chunks(message, place, whole, keep=keep, closed=closed)
    if status in (204, 304):
        return evolve(whole, reusable=keep and place == len(message)), place
    if length is None:
        body = message[place:]
        if len(body) > LIMIT:
            return Read("large"), None
        return (evolve(whole, body=body), None) if closed else (Read("more"), None)
    size = int(length)
    if size > LIMIT:
        return Read("large"), None
    if len(message) < place + size:
        return _open(closed=closed)
    end = place + size
    return evolve(whole, body=message[place:end], reusable=keep and end == len(message)), end


def _head(head):
    first, *lines = head.split(b"\r\n")
    if (found := STATUS_LINE.fullmatch(first)) is None:
        raise Odd
    fields = []
    for line in lines:
        field = FIELD.fullmatch(line)
        if field is None:
            raise Odd
        fields.append((field[1].decode("ascii").lower(), field[2].decode("latin-1")))
    return int(found[1]), int(found[2]), fields


def _check_prefix(part):
    """Raise Odd unless the bytes may be the begin of a head."""
    *lines, last = part.split(b"\r\n")
    if not lines:
        if not b"HTTP/1.1 ".startswith(part[:9]) or not re.fullmatch(rb"([1-5][0-9]{0,2})?", part[9:]):
            raise Odd
        return
    if UNCLEAR & {name for name, _ in _head(b"\r\n".join(lines))[2]}:
        raise Odd  # a parser may refuse it before the head ends
    if last and not re.fullmatch(rb"[a-z]+", last):
        raise Odd


def _chunks(  # noqa: C901, PLR0912  # the grammar in one place
    message, place, whole, *, keep, closed
):
    body = b""
    while True:
        line, end, _ = message[place:].partition(b"\r\n")
        if not end:
            if line and not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", line):
                raise Odd
            return _open(closed=closed)
        if (found := CHUNK.fullmatch(line)) is None:
            raise Odd
        place += len(line) + 2
        size = int(found[1], 16)
        if not size:
            break
        part = message[place : place + size]
        body += part
        if len(body) > LIMIT:
            return Read("large"), None
        if len(part) < size:
            return _open(closed=closed)
        ending = message[place + size : place + size + 2]
        if ending != b"\r\n":
            if b"\r\n".startswith(ending):
                return _open(closed=closed)
            raise Odd
        place += size + 2
    if message.startswith(b"\r\n", place):
        end_at = place + 2
    else:
        blank = message.find(b"\r\n\r\n", place)
        if blank < 0:
            raise Odd  # trailers that are not whole yet
        _, _, fields = _head(b"HTTP/1.1 200 OK\r\n" + message[place:blank])
        if UNCLEAR & {name for name, _ in fields}:
            raise Odd
        end_at = blank + 4
    return evolve(whole, body=body, reusable=keep and end_at == len(message)), end_at
