"""What connections send to ``rbim callback serve``: raw bytes on its protocol."""

import logging
import re
from queue import SimpleQueue

import uvicorn.server

from rbim import Credentials
from rbim.callbacks.receiver.receiver import Receiver
from rbim.callbacks.signature import Policy
from rbim.cli.callback.log import LineHandler
from rbim.cli.callback.options import ServeOptions
from rbim.cli.callback.serve import _at_path, _config, _Http
from tests.ci.fuzz import by_hand
from tests.ci.fuzz.broken import require
from tests.ci.fuzz.connections import LOOP, Errors, answers, pieces, talk

WHAT = "the HTTP of `rbim callback serve`, raw bytes on a connection"
ORACLE = "statuses as documented, by a request parser and signatures by hand; nothing is stored without a genuine signature"
INSTRUMENT = ["rbim", "h11", "uvicorn"]
MOST = 1500
WORDS = [
    *(b"POST /copies HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\n", b"HEAD ", b"HTTP/1.0", b"host: x\r\n", b"$LEN", b"$MD5"),
    *(b"$SUM", b"$OLD", b"$NOW", b"md5: $MD5\r\n", b"checksum: $SUM\r\n", b"curtime: $NOW\r\n"),
    *(b"content-length: $LEN\r\n", b"\r\n\r\n", b"transfer-encoding: chunked\r\n", b"0\r\n\r\n"),
    *(b"content-encoding: gzip\r\n", b"identity", b"expect: 100-continue\r\n", b"connection: close\r\n"),
    *(b"connection: upgrade\r\nupgrade: h2c\r\n", b"http://h/copies", b"%2f", b"%ff", b"//", b"?a=b", b"*"),
    *(b"connection: upgrade\r\nupgrade: websocket\r\n", b'{"msgId":"1"}', b"{}", b"OPTIONS", b"CONNECT"),
]
LIMIT = 600  # bytes of a body
PATH, HEALTH = "/copies", "/health"
STATUSES = {200, 400, 401, 404, 405, 413, 415}
GENUINE = b"host: x\r\nMD5: $MD5\r\nCurTime: $NOW\r\nCheckSum: $SUM\r\ncontent-length: $LEN\r\n"
BODY = b'{"eventType":"1","convType":"TEAM","to":"g1","fromAccount":"1001","msgType":"TEXT","msgId":"7","body":"hi"}'


def seeds():
    """Return requests of each kind; the first byte is the size of the pieces."""
    post = b"POST /copies HTTP/1.1\r\n"
    chunked_body = b'{"msgId":"1"}'
    chunked = by_hand.filled(GENUINE.replace(b"content-length: $LEN", b"transfer-encoding: chunked"), chunked_body)
    return [
        b"\x00" + post + GENUINE + b"\r\n" + BODY,
        b"\x40" + post + GENUINE.replace(b"$SUM", b"$OLD") + b"\r\n" + BODY + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x00" + post + GENUINE + b"\r\n{}",
        b"\x07" + post + b"host: x\r\ncontent-length: 3\r\n\r\nabc",
        b"\x00" + post + chunked + b'\r\n5\r\n{"msg\r\n8\r\nId":"1"}\r\n0\r\n\r\n',
        b"\x00"
        + b"".join(each + b" HTTP/1.1\r\nhost: x\r\n\r\n" for each in (b"GET /health", b"HEAD /health", b"PUT /copies")),
        b"\x00POST http://h/copies?a=b HTTP/1.1\r\n" + GENUINE + b"content-encoding: gzip\r\n\r\n" + BODY,
        b"\x00POST /copies HTTP/1.0\r\nconnection: close\r\n" + GENUINE + b"\r\n" + BODY,
        b"\x00" + post + b"host: x\r\ncontent-length: 700\r\nexpect: 100-continue\r\n\r\n" + b"x" * 650,
        b"\x80" + post + b"host: x\r\ncontent-length: 700\r\n\r\n" + b"x" * 700,
        b"\x00GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"\x00PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]


class Stored:
    """A sink that keeps the bodies it accepts."""

    durable = False
    retention = 0.0

    def __init__(self):
        self.bodies = []

    async def accept(self, delivery):
        self.bodies.append(delivery.body)
        return True

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass


class _Setup:
    """The server's parts, made once, as the command makes them."""

    def __init__(self):
        tokens = [Credentials(app_id=by_hand.APP_ID, app_token=token) for token in (by_hand.TOKEN, by_hand.OLD_TOKEN)]
        self.sink = Stored()
        policy = Policy(back=None, ahead=None, max_body=LIMIT)
        receiver = Receiver(credentials=tokens, sink=self.sink, policy=policy, mode="high-guarantee", health=HEALTH)
        LOOP.run_until_complete(receiver.__aenter__())
        options = ServeOptions(
            inbox="",
            host="",
            port=0,
            path=PATH,
            mode="high-guarantee",
            printing=False,
            certfile=None,
            keyfile=None,
            health=HEALTH,
        )
        self.lines = SimpleQueue()
        self.handler = LineHandler(self.lines)
        logging.getLogger("uvicorn").addHandler(self.handler)
        logging.getLogger("rbim").addHandler(self.handler)
        self.errors = Errors("uvicorn.error", "asyncio", "rbim")
        self.app = _at_path(options, receiver.asgi, None, self.handler)
        self.methods = []
        self.config = _config(options, self)
        self.state = uvicorn.server.ServerState()

    async def __call__(self, scope, receive, send):
        self.methods.append(scope["method"])
        await self.app(scope, receive, send)


_made = []


def _setup():
    if not _made:
        _made.append(_Setup())
    return _made[0]


def check(data):
    if not data:
        return
    setup = _setup()
    head, blank, body = data[1:].partition(b"\r\n\r\n")
    message = by_hand.filled(head, body) + blank + body
    size, half_close = (data[0] & 0x7F) * 2, bool(data[0] & 0x80)
    setup.sink.bodies.clear()
    setup.methods.clear()
    setup.errors.clear()
    wire = LOOP.run_until_complete(_one(setup, message, size, half_close=half_close))
    setup.errors.check()
    _check_log(setup)
    found = answers(wire.written, setup.methods)
    for answer in found:
        require(answer.status in STATUSES, f"the status {answer.status}", answer)
    require(len(found) <= len(setup.methods) + 1, "more answers than requests", found, setup.methods)
    require(not setup.state.connections, "a closed connection is still counted")
    for stored in setup.sink.bodies:
        require(by_hand.genuine(stored, message), "a delivery without a genuine signature is stored", stored)
    accepted = sum(answer.status == 200 and method == "POST" for answer, method in zip(found, setup.methods, strict=False))
    require(len(setup.sink.bodies) >= accepted - message.count(b"{"), "200 for a delivery that is not stored", found)
    if (expected := by_grammar(message)) is not None:
        statuses, stored = expected
        require(found and found[0].status in statuses, f"not one of the statuses {sorted(statuses)}", found, message)
        if stored is not None:
            require(setup.sink.bodies[:1] == [stored], "a genuine delivery is not stored", setup.sink.bodies)


async def _one(setup, message, size, *, half_close):
    protocol = _Http(setup.config, setup.state, {})
    return await talk(protocol, setup.state.tasks, pieces(message, size), half_close=half_close)


def _check_log(setup):
    while not setup.lines.empty():
        text = setup.lines.get().text
        require(by_hand.TOKEN not in text and by_hand.OLD_TOKEN not in text, "the log shows a token", text)
        require(text.endswith("\n") and text[:-1].isprintable(), "a line of the log is not printable", text)


# ------------------------------------------------------------------ by the grammar of RFC 9112

REQUEST_LINE = re.compile(rb"([A-Z]{1,10}) (/[a-z/]*)(?:\?[a-z=&]*)? HTTP/1\.1")
FIELD = re.compile(rb"([a-zA-Z0-9-]+):[ \t]*([\x21-\x7e]+(?:[ \t]+[\x21-\x7e]+)*)?[ \t]*")
OTHERS = {b"transfer-encoding", b"expect", b"upgrade", b"connection"}
BY_DEFECT = {"too_large": 413, "unsupported_encoding": 415}


def by_grammar(message):
    """Return the statuses that the first request may get, and the body that must be stored; None if it is not plain."""
    head, blank, rest = message.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    line, fields = REQUEST_LINE.fullmatch(first), [FIELD.fullmatch(each) for each in lines]
    if not blank or line is None or any(each is None for each in fields):
        return None
    headers = [(each[1].lower(), each[2] or b"") for each in fields if each is not None]
    names = [name for name, _ in headers]
    lengths = [value for name, value in headers if name == b"content-length"]
    if names.count(b"host") != 1 or OTHERS & set(names) or len(lengths) > 1 or line[1] == b"CONNECT":
        return None
    if lengths and not re.fullmatch(rb"[0-9]{1,6}", lengths[0]):
        return None
    length = int(lengths[0]) if lengths else 0
    if len(rest) < length:
        return None
    method, path, body = line[1].decode(), line[2].decode(), rest[:length]
    if path != PATH and (path != HEALTH or method not in ("GET", "HEAD")):
        return {404}, None
    if method != "POST":
        return {200 if path == HEALTH else 405}, None
    wrong = by_hand.defects(headers, body, most=LIMIT)
    if wrong:
        return {BY_DEFECT.get(each, 401) for each in wrong}, None
    return {200}, None if by_hand.is_probe(body) else body
