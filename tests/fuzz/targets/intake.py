"""Deliveries as frameworks pass them on: the ASGI and WSGI applications of a receiver, and its plain function."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from rbim import Credentials
from rbim.callbacks.receiver.receiver import Receiver
from rbim.callbacks.signature import Policy
from tests.fuzz import by_hand
from tests.fuzz.broken import require
from tests.fuzz.connections import LOOP, Errors, pieces
from tests.fuzz.headers import parsed
from tests.fuzz.targets.http_receiver import Stored

WHAT = "ASGI and WSGI requests to a receiver, and `receive()`: any method, path, headers, pieces of the body, disconnects"
ORACLE = (
    "the documented status by signatures by hand; stored exactly if it is genuine; no more of a body is read than allowed"
)
INSTRUMENT = ["rbim"]
MOST = 600
LIMIT = 200  # bytes of a body
STATUSES = {200, 400, 401, 405, 413, 415}
BY_DEFECT = {"too_large": 413, "unsupported_encoding": 415}
METHODS = ["POST", "POST", "POST", "GET", "HEAD", "PUT", "", "post"]
PATHS = ["/", "/health", "/a/health", "", "\udcff"]
LENGTHS = [None, "", "-1", "-9999", "0", "5", " 7 ", "1_0", "+3", "\u0665", "99999999999999999999", "x", "1e3"]
GENUINE = b"MD5: $MD5\nCurTime: $NOW\nCheckSum: $SUM\n"
WORDS = [
    *(
        b"MD5: $MD5\n",
        b"CheckSum: $SUM\n",
        b"checksum: $OLD\n",
        b"CurTime: $NOW\n",
        b"content-encoding: gzip\n",
        b"identity",
    ),
    *(
        b"\n\n",
        b"{}",
        b'{"msgId":"1"}',
        b"content-length: 3\n",
        b"transfer-encoding: chunked\n",
        b"host: x\n",
        b"\xef\xbb\xbf{}",
    ),
]


def seeds() -> list[bytes]:
    """Return requests of each kind; the first bytes are method and path, piece, end, and length of WSGI."""
    body = b'{"convType":"TEAM","to":"g1","msgType":"TEXT","msgId":"7"}'
    return [
        b"\x00\x00\x00\x00" + GENUINE + b"\n" + body,
        b"\x00\x03\x00\x05" + GENUINE.replace(b"$SUM", b"$OLD") + b"content-encoding: identity\n\n" + body,
        b"\x00\x07\x01\x00" + GENUINE + b"\n" + body,
        b"\x00\x00\x00\x02" + GENUINE + b"\n{}",
        b"\x00\x00\x00\x03" + GENUINE + b"\n" + b"x" * 201,
        b"\x00\x00\x00\x00" + GENUINE + b"md5: $MD5\n\n" + body,
        b"\x0b\x00\x00\x00\n",
        b"\x0c\x00\x00\x00\n",
        b"\x03\x00\x00\x00a: b\n\n",
        b"\x00\x10\x02\x0a" + GENUINE + b"content-encoding: gzip\n\n" + body,
    ]


class _Setup:
    def __init__(self) -> None:
        tokens = [Credentials(app_id=by_hand.APP_ID, app_token=token) for token in (by_hand.TOKEN, by_hand.OLD_TOKEN)]
        self.sink = Stored()
        policy = Policy(back=None, ahead=None, max_body=LIMIT)
        self.receiver = Receiver(credentials=tokens, sink=self.sink, policy=policy, mode="high-guarantee", health="/health")
        LOOP.run_until_complete(self.receiver.__aenter__())
        wsgi: Any = self.receiver.wsgi
        wsgi._call = lambda function, *args: LOOP.run_until_complete(function(*args))  # without a thread
        self.errors = Errors("asyncio", "rbim")


_made: list[_Setup] = []


class Input:
    """``wsgi.input``: it counts what is asked for, and fails at the end if the client has gone."""

    def __init__(self, body: bytes, *, gone: bool) -> None:
        self.body = body
        self.gone = gone
        self.asked = 0.0

    def read(self, size: int = -1) -> bytes:
        self.asked += size if size >= 0 else inf
        if self.gone:
            raise OSError("gone")
        part, self.body = self.body[:size], self.body[size:]
        return part


def check(data: bytes) -> None:
    """Pass one request to each application."""
    if len(data) < 4:
        return
    if not _made:
        _made.append(_Setup())
    setup = _made[0]
    method, path = METHODS[data[0] & 7], PATHS[(data[0] >> 3) % len(PATHS)]
    parts, end = max(data[1] & 31, 0), data[2] & 3
    headers, body = parsed(data[4:])
    headers = [(name.lower(), value) for name, value in headers]
    wrong = by_hand.defects(headers, body, most=LIMIT)
    statuses = {BY_DEFECT.get(each, 401) for each in wrong} or {200}
    if method != "POST":
        statuses = {200} if path == "/health" and method in ("GET", "HEAD") else {405}
    stored = [body] if method == "POST" and not wrong and not by_hand.is_probe(body) else []

    status = _asgi(setup, (method, path), headers, pieces(body, parts), gone=end == 1)
    if end != 1 or method != "POST":
        _compare(setup, "ASGI", status, statuses, stored)
    else:
        require(status in {None, 413}, "an answer for a client that has gone", status)
        require(not setup.sink.bodies, "a delivery that is not whole is stored", setup.sink.bodies)
    setup.sink.bodies.clear()
    length = LENGTHS[data[3] % len(LENGTHS)]
    status = _wsgi(setup, (method, path), headers, body, length=length, gone=end == 2)
    require(status in STATUSES, f"the status {status} of WSGI", status)
    for each in setup.sink.bodies:
        require(
            by_hand.genuine(each, by_hand.filled(data[4:], body)), "WSGI stores a delivery without a genuine signature", each
        )
    if length is None and method == "POST" and end != 2:
        whole = len({name.replace(b"_", b"-") for name, _ in headers}) == len(headers)
        if whole and all(name.isascii() and value.isascii() for name, value in headers):
            _compare(setup, "WSGI", status, statuses, stored)
    setup.sink.bodies.clear()
    if method == "POST":
        reply = LOOP.run_until_complete(setup.receiver.receive(headers, body))
        _compare(setup, "receive()", reply.status, statuses, stored)
        setup.sink.bodies.clear()
    setup.errors.check()


def _compare(setup: _Setup, way: str, status: int | None, statuses: set[int], stored: list[bytes]) -> None:
    require(status in statuses, f"{way}: another status", status, statuses)
    require(setup.sink.bodies == stored, f"{way}: other deliveries are stored", setup.sink.bodies, stored)


def _asgi(
    setup: _Setup, line: tuple[str, str], headers: list[tuple[bytes, bytes]], parts: list[bytes], *, gone: bool
) -> int | None:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.disconnect"} if gone else {"type": "http.request"})
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(0)
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": line[0], "path": line[1], "headers": headers}
    LOOP.run_until_complete(setup.receiver.asgi(scope, receive, send))
    if not sent:
        return None
    require([each["type"] for each in sent] == ["http.response.start", "http.response.body"], "other messages of ASGI", sent)
    status: int = sent[0]["status"]
    require(status in STATUSES, f"the status {status}", sent)
    require(
        line[0] == "HEAD" or dict(sent[0]["headers"])[b"content-length"] == str(len(sent[1]["body"])).encode(),
        "a length",
        sent,
    )
    return status


def _wsgi(
    setup: _Setup, line: tuple[str, str], headers: list[tuple[bytes, bytes]], body: bytes, *, length: str | None, gone: bool
) -> int:
    begun: list[tuple[str, list[tuple[str, str]]]] = []
    source = Input(body, gone=gone)
    environ: dict[str, Any] = {"REQUEST_METHOD": line[0], "PATH_INFO": line[1], "wsgi.input": source}
    for name, value in headers:  # as servers do
        key = f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}"
        text = value.decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key in environ else text
    environ |= {"CONTENT_LENGTH": str(len(body)) if length is None else length, "CONTENT_TYPE": "application/json"}
    written = setup.receiver.wsgi(environ, lambda status, given: begun.append((status, given)))  # type: ignore[arg-type, func-returns-value]
    require(source.asked <= LIMIT + 1, "more of a body is read than the limit", source.asked)
    ((status, given),) = begun
    require(dict(given)["content-length"] == str(len(b"".join(written))), "another length", given)
    require("connection" not in dict(given) and "content-type" in dict(given), "headers against PEP 3333", given)
    return int(status[:3])
