"""Conformance cases about responses: framings, statuses, headers, invalid responses, sizes."""

from __future__ import annotations

import gzip
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from rbim.errors import AnswerTooLarge, Unanswered
from rbim.testing.conformance.case import (
    WHOLE,
    Cases,
    Conformance,
    check,
    check_closed,
    check_used,
    expect_error,
    expect_response,
    request,
    served,
)
from rbim.testing.conformance.server import CHUNKS, byte_by_byte, chunked, closing, ending, head, reply

if TYPE_CHECKING:
    from rbim.testing.conformance.server import Peer, Received, Script

__all__ = ["CASES", "ODD"]

CASES = Cases()

IN_CHUNKS = chunked(WHOLE)[len(CHUNKS) :]

# Equivalent responses.
FRAMINGS: dict[str, Script] = {
    "a length": reply(WHOLE),
    "one chunk": chunked(WHOLE),
    "a chunk for each byte": chunked(*(WHOLE[i : i + 1] for i in range(len(WHOLE)))),
    "chunks with extensions": CHUNKS + b'17;a;b="c;d"\r\n%b\r\n0;last\r\n\r\n' % WHOLE,
    "chunks with trailers": CHUNKS + b"17\r\n%b\r\n0\r\nX-Sum: 1\r\nX-More: 999\r\n\r\n" % WHOLE,
    "chunk sizes in upper case with zeros": CHUNKS + b"0000A\r\n%b\r\n00D\r\n%b\r\n000\r\n\r\n" % (WHOLE[:10], WHOLE[10:]),
    "byte by byte": byte_by_byte(reply(WHOLE)),
    "chunks byte by byte": byte_by_byte(chunked(WHOLE[:9], WHOLE[9:])),
    "100 first": head("100 Continue") + reply(WHOLE),
    "102 and 103 first": head("102 Processing") + head("103 Early Hints", "Link: </x>") * 3 + chunked(WHOLE),
    "100 first, byte by byte": byte_by_byte(head("100 Continue") + reply(WHOLE)),
    "no reason phrase": b"HTTP/1.1 200 \r\nContent-Length: 23\r\n\r\n" + WHOLE,
}
LAST_ONES: dict[str, Script] = {  # whose connection is not used again
    "until the connection is closed": closing(head("200 OK") + WHOLE),
    "a length, Connection: close": closing(reply(WHOLE, "200 OK", "Connection: close")),
    "chunks, Connection: close": closing(head("200 OK", "Transfer-Encoding: chunked", "Connection: Close") + IN_CHUNKS),
    "Connection: close from a server that does not": reply(WHOLE, "200 OK", "Connection: close"),
    "HTTP/1.0, until closed": closing(b"HTTP/1.0 200 OK\r\n\r\n" + WHOLE),
    "HTTP/1.0, a length": b"HTTP/1.0 200 OK\r\nContent-Length: 23\r\n\r\n" + WHOLE,
}


async def _framing(subject: Conformance, script: Script, *, kept: bool) -> None:
    async with served(subject, script) as (server, transport):
        await expect_response(transport, request(server.url()), times=3)
    check_used(server, [0, 0, 0] if kept else [0, 1, 2])


for _name, _script in (FRAMINGS | LAST_ONES).items():
    CASES.add(f"framing: {_name}")(partial(_framing, script=_script, kept=_name in FRAMINGS))


EMPTY: dict[str, tuple[int, bytes]] = {
    "204": (204, head("204 No Content")),
    "304": (304, head("304 Not Modified", 'ETag: "x"')),
    "304 with the length of what it stands for": (304, head("304 Not Modified", "Content-Length: 1000")),
    "a length of 0": (200, reply(b"")),
    "no chunk but the last": (200, chunked()),
}


async def _empty(subject: Conformance, script: bytes, status: int) -> None:
    async with served(subject, script, script, reply(WHOLE)) as (server, transport):
        await expect_response(transport, request(server.url()), b"", status=status, times=2)
        await expect_response(transport, request(server.url()))
    check_used(server, [0, 0, 0])


for _name, (_status, _bytes) in EMPTY.items():
    CASES.add(f"empty: {_name}")(partial(_empty, script=_bytes, status=_status))


STATUSES = [
    (300, "300 Multiple Choices", "Location: /elsewhere"),
    (301, "301 Moved Permanently", "Location: /elsewhere"),
    (302, "302 Found", "Location: http://127.0.0.1:9/"),
    (303, "303 See Other", "Location: /elsewhere"),
    (307, "307 Temporary Redirect", "Location: /elsewhere"),
    (308, "308 Permanent Redirect", "Location: /elsewhere"),
    (400, "400 Bad Request", "X-A: b"),
    (401, "401 Unauthorized", 'WWW-Authenticate: Basic realm="x"'),
    (404, "404 Not Found", "X-A: b"),
    (408, "408 Request Timeout", "X-A: b"),
    (421, "421 Misdirected Request", "X-A: b"),
    (425, "425 Too Early", "Retry-After: 0"),
    (429, "429 Too Many Requests", "Retry-After: 0"),
    (500, "500 Internal Server Error", "X-A: b"),
    (503, "503 Service Unavailable", "Retry-After: 0"),
    (599, "599 Whatever", "X-A: b"),
]


@CASES.add("status: every one is an answer, read whole, followed nowhere and not repeated")
async def _statuses(subject: Conformance) -> None:
    page = b"<p>" * 1000
    scripts = [reply(page, line, header) for _, line, header in STATUSES]
    async with served(subject, *scripts, reply(WHOLE)) as (server, transport):
        for status, line, header in STATUSES:
            response = await expect_response(transport, request(server.url()), page, status=status)
            name, _, value = header.partition(": ")
            check(
                response.headers.get(name.lower()) == value,
                f"{line}: header {name} is {response.headers.get(name.lower())!r}; required: {value!r}",
            )
        await expect_response(transport, request(server.url()))
    check_used(server, [0] * (len(STATUSES) + 1))


@CASES.add("headers: repeated ones are joined, names are lowered, values are kept")
async def _headers(subject: Conformance) -> None:
    many = [f"X-{n}: {'v' * n}" for n in range(60)]
    answer = reply(WHOLE, "200 OK", *many, "X-Two: a", "x-two:   b  ", "X-TWO: c", "X-Empty:", "X-Colon: a:b: c")
    async with served(subject, answer) as (server, transport):
        headers = (await expect_response(transport, request(server.url()))).headers
    wanted = {f"x-{n}": "v" * n for n in range(60)} | {"x-two": "a, b, c", "x-empty": "", "x-colon": "a:b: c"}
    wrong = {name: headers.get(name) for name, value in wanted.items() if headers.get(name) != value}
    check(not wrong, f"got the headers {wrong}; required: { ({name: wanted[name] for name in wrong}) }")


@CASES.add("headers: a folded one is refused or one value, never two headers")
async def _folded(subject: Conformance) -> None:
    answer = head("200 OK", "X-Folded: a", " X-Other: b", "\tContent-Length: 2", "Content-Length: 23") + WHOLE
    async with served(subject, closing(answer)) as (server, transport):
        try:
            response = await expect_response(transport, request(server.url()))
        except Unanswered:
            return
        value = " ".join(response.headers.get("x-folded", "").split())
        whole = "a X-Other: b Content-Length: 2"
        check(value == whole, f"a folded header was read as {value!r}; required: {whole!r} or Unanswered")
        check(
            "x-other" not in response.headers,
            "a folded line was read as a separate header; required: one header or Unanswered",
        )


@CASES.add("body: compressed although nobody asked is given as it came")
async def _compressed(subject: Conformance) -> None:
    body = gzip.compress(WHOLE, mtime=0)
    async with served(subject, reply(body, "200 OK", "Content-Encoding: gzip")) as (server, transport):
        no_headers: dict[str, str] = {}
        for headers in (None, no_headers):
            response = await expect_response(transport, request(server.url(), headers=headers), body)
            check(
                response.headers.get("content-encoding") == "gzip",
                "the header Content-Encoding is missing; required: 'gzip', as sent",
            )
    for seen in server.requests:
        asked = seen.header("Accept-Encoding")
        check(asked in {"", "identity"}, f"Accept-Encoding: {asked} was sent; required: identity or no such header")


REFUSED: dict[str, bytes] = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a request": b"POST / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a bare body": WHOLE + b"\r\n\r\n",
    "TLS": bytes.fromhex("150301000202280d0a0d0a"),
    "zeros": bytes(1000),
    "a status of letters": b"HTTP/1.1 abc OK\r\n\r\n",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
    "101 that nobody asked for": head("101 Switching Protocols", "Upgrade: x", "Connection: upgrade") + b"junk",
    "a header without colon": b"HTTP/1.1 200 OK\r\nContent-Length 2\r\n\r\n{}",
    "a header with a zero byte": b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
    "a length of letters": b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "no length": head("200 OK", "Content-Length:") + WHOLE,
    "a length with a sign": head("200 OK", "Content-Length: +23") + WHOLE,
    "a hexadecimal length": head("200 OK", "Content-Length: 0x17") + WHOLE,
    "a length and chunks": head("200 OK", "Transfer-Encoding: chunked", "Content-Length: 5") + IN_CHUNKS,
    "chunks and their length": head("200 OK", "Content-Length: 33", "Transfer-Encoding: chunked") + IN_CHUNKS,
    "an unknown transfer coding": head("200 OK", "Transfer-Encoding: x") + WHOLE,
    "an empty transfer coding": head("200 OK", "Transfer-Encoding:", "Content-Length: 23") + WHOLE,
    "a transfer coding that is none": head("200 OK", "Transfer-Encoding: identity", "Content-Length: 23") + WHOLE,
    "chunks of gzip": head("200 OK", "Transfer-Encoding: gzip, chunked") + IN_CHUNKS,
    "chunks of chunks": head("200 OK", *["Transfer-Encoding: chunked"] * 2) + IN_CHUNKS,
    "chunks with a parameter": head("200 OK", "Transfer-Encoding: chunked;q=1") + IN_CHUNKS,
    "chunks in HTTP/1.0": chunked(WHOLE).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/2.0": reply(WHOLE).replace(b"HTTP/1.1", b"HTTP/2.0"),
    "HTTP/1.2": reply(WHOLE).replace(b"HTTP/1.1", b"HTTP/1.2"),
    "a status below 100": head("099 What", "Content-Length: 23") + WHOLE,
    "a space before the status line": b" " + reply(WHOLE),
    "a header without a name": head("200 OK", ": x", "Content-Length: 23") + WHOLE,
    "lines that end in a carriage return": reply(WHOLE).replace(b"\r\n", b"\r"),
    "a chunk size with 0x": CHUNKS + b"0x17\r\n%b\r\n0\r\n\r\n" % WHOLE,
    "a chunk size with a sign": CHUNKS + b"+17\r\n%b\r\n0\r\n\r\n" % WHOLE,
    "a chunk of 2^68 bytes": CHUNKS + b"f" * 17 + b"\r\n%b\r\n0\r\n\r\n" % WHOLE,
    "a length of 5,000 digits": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n{}",
    "a chunk size of letters": CHUNKS + b"zz\r\n{}\r\n0\r\n\r\n",
    "a negative chunk size": CHUNKS + b"-2\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than its size": CHUNKS + b"1\r\n{}\r\n0\r\n\r\n",
    "a chunk cut short": CHUNKS + b"5\r\n{}",
    "no last chunk": CHUNKS + b"2\r\n{}\r\n",
    "chunks without the last empty line": CHUNKS + b"2\r\n{}\r\n0\r\n",
    "half a status line": b"HTTP/1.1 20",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "a length cut short": head("200 OK", "Content-Length: 3") + b"{}",
    "only an interim answer": head("100 Continue"),
    "nothing": b"",
}


async def _refused(subject: Conformance, junk: bytes) -> None:
    async with served(subject, ending(junk), reply(WHOLE)) as (server, transport):
        await expect_error(transport, request(server.url(), repeatable=True), Unanswered)
        await check_closed(server, 0)
        await expect_response(transport, request(server.url()))
    check_used(server, [0, 1])


for _name, _bytes in REFUSED.items():
    CASES.add(f"no answer: {_name}")(partial(_refused, junk=_bytes))


ODD: dict[str, tuple[int, bytes]] = {
    "a length that is stated twice": (200, head("200 OK", *["Content-Length: 23"] * 2) + WHOLE),
    "a space before the colon": (200, head("200 OK", "Content-Length : 23") + WHOLE),
    "a control character in a header": (200, reply(WHOLE, "200 OK", "X: a\x01b")),
    "a zero byte in the reason phrase": (200, reply(WHOLE, "200 O\x00K")),
    "an empty line before the status line": (200, b"\r\n" + reply(WHOLE)),
    "lines that end in a line feed": (200, b"HTTP/1.1 200 OK\nContent-Length: 23\n\n" + WHOLE),
    "204 with a body": (204, head("204 No Content", "Content-Length: 23") + WHOLE),
    "204 with chunks": (204, head("204 No Content", "Transfer-Encoding: chunked") + IN_CHUNKS),
    "304 with a body": (304, head("304 Not Modified", "Content-Length: 23") + WHOLE),
    "a space behind a chunk size": (200, CHUNKS + b"17 \r\n%b\r\n0\r\n\r\n" % WHOLE),
    "a length in the trailers": (200, CHUNKS + b"17\r\n%b\r\n0\r\nContent-Length: 5\r\n\r\n" % WHOLE),
    "a chunk extension of 100,000 bytes": (200, CHUNKS + b"17;%b\r\n%b\r\n0\r\n\r\n" % (b"a" * 100_000, WHOLE)),
    "a header of 9,000 bytes": (200, reply(WHOLE, "200 OK", f"X: {'a' * 9_000}")),
    "a header of 80,000 bytes": (200, reply(WHOLE, "200 OK", f"X: {'a' * 80_000}")),
    "150 headers": (200, reply(WHOLE, "200 OK", *[f"X-{number}: a" for number in range(150)])),
    "10,000 interim answers": (200, head("103 Early Hints") * 10_000 + reply(WHOLE)),
}
"""Answers that some parsers accept and others refuse, with their status."""


async def _odd(subject: Conformance, status: int, odd: bytes) -> None:
    async with served(subject, ending(odd), reply(b"2")) as (server, transport):
        with suppress(Unanswered):
            body = WHOLE if status == 200 else b""  # noqa: PLR2004  # others have none
            await expect_response(transport, request(server.url()), body, status=status)
        await check_closed(server, 0)
        await expect_response(transport, request(server.url()), b"2")


for _name, (_status, _bytes) in ODD.items():
    CASES.add(f"odd: {_name} is this answer or none")(partial(_odd, status=_status, odd=_bytes))


ENDLESS = {
    "a header without end": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 4096),
    "headers without end": (b"HTTP/1.1 200 OK\r\n", b"".join(b"X-%d: y\r\n" % n for n in range(400))),
    "a status line without end": (b"HTTP/1.1 200 ", b"x" * 4096),
    "interim answers with headers without end": (b"HTTP/1.1 103 Early Hints\r\n", b"X: y\r\n" * 600),
    "trailers without end": (CHUNKS + b"17\r\n%b\r\n0\r\n" % WHOLE, b"X: y\r\n" * 600),
}
MOST = 32 * 1024 * 1024
"""Bytes that the server may send, mostly into system buffers, before the transport gives up an endless head."""


async def _endless(subject: Conformance, beginning: bytes, more: bytes) -> None:
    sent = 0

    def script(peer: Peer, _: Received) -> None:
        nonlocal sent
        peer.send(beginning)
        while sent < MOST:
            peer.send(more)
            sent += len(more)
        peer.close()

    async with served(subject, script, reply(WHOLE)) as (server, transport):
        await expect_error(transport, request(server.url()), Unanswered)
        await expect_response(transport, request(server.url()))
    check(sent < MOST, f"the transport read {sent} bytes of an endless head; required: less than {MOST}")


for _name, (_beginning, _more) in ENDLESS.items():
    CASES.add(f"no answer: {_name}")(partial(_endless, beginning=_beginning, more=_more))


LIMIT = 100_000
LONG: dict[str, tuple[Script, Script]] = {
    "a length": (reply(b"x" * LIMIT), reply(b"x" * (LIMIT + 1))),
    "chunks": (chunked(*[b"x" * 1000] * 100), chunked(*[b"x" * 1000] * 100, b"x")),
    "until closed": (closing(head("200 OK") + b"x" * LIMIT), closing(head("200 OK") + b"x" * (LIMIT + 1))),
}


async def _limit(subject: Conformance, longest: Script, too_long: Script) -> None:
    options = {"answer_limit": LIMIT}
    async with served(subject, longest, too_long, reply(WHOLE), options=options) as (server, transport):
        await expect_response(transport, request(server.url()), b"x" * LIMIT)
        error = await expect_error(transport, request(server.url()), AnswerTooLarge)
        limit = getattr(error, "limit", None)
        check(limit == LIMIT, f"AnswerTooLarge has limit {limit}; required: {LIMIT}")
        await expect_response(transport, request(server.url()))


for _name, (_longest, _too_long) in LONG.items():
    CASES.add(f"size: {_name}, at the limit and past it")(partial(_limit, longest=_longest, too_long=_too_long))


def _endless_body(peer: Peer, _: Received) -> None:
    peer.send(head("200 OK"))
    for _part in range(MOST // 65536 * 2):
        peer.send(b"x" * 65536)


@CASES.add("size: a body without end, and its connection is closed at once")
async def _endless_answer(subject: Conformance) -> None:
    async with served(subject, _endless_body, reply(WHOLE), options={"answer_limit": 10 * LIMIT}) as (server, transport):
        await expect_error(transport, request(server.url()), AnswerTooLarge)
        await expect_response(transport, request(server.url()))


@CASES.add("size: there is a limit below 64 MiB although none was given")
async def _some_limit(subject: Conformance) -> None:
    async with served(subject, _endless_body) as (server, transport):
        await expect_error(transport, request(server.url()), AnswerTooLarge)


def _early(peer: Peer, received: Received) -> None:
    peer.send(reply(b"too large", "413 Content Too Large", "Connection: close"))
    peer.read_body(received.head)
    peer.close()


@CASES.add("early: an answer that comes before the whole request is read is this answer or none")
async def _before_the_end(subject: Conformance) -> None:
    async with served(subject, _early, head_only=True) as (server, transport):
        sent = request(server.url(), body=b" " * 3_000_000)
        with suppress(Unanswered):
            await expect_response(transport, sent, b"too large", status=413)
        check_used(server, [0])
