"""What goes wrong, and in which phase of a call: scripts of a server on plain sockets, and what a client can know.

A scenario happens to the first attempt. If there is a second one, the server answers it well, unless the fault lasts: a name
that does not resolve, a port that refuses, a process that was killed.
"""

import gzip
import json
import socket
import time
from functools import partial
from http import HTTPStatus

from attrs import frozen

from rbim.testing.conformance.server import WAIT_TIMEOUT, head, reply

from .rule import Known

LIMIT = 300_000  # bytes of an answer
SUCCESS = {"statusCode": "000000"}


def body(**fields):
    return json.dumps(fields, ensure_ascii=False).encode()


OK = reply(body(**SUCCESS))


@frozen(kw_only=True)
class Scenario:
    """A fault in a phase.

    ``steps`` are what the server does when it has read the request, or its head if ``head_only``; ``greeting`` what it does
    with a new connection before it reads. ``place`` is where the request goes: "server", "refusing", "full", "nowhere" or
    "process". ``kept``: the request goes over a connection that has served one, whose last steps are ``idle``. ``timed``: it
    ends by its time-out. ``done``: nothing is wrong in the end, and the call succeeds with its first attempt. ``resolves``:
    the server has a name, which resolves "late", "not now" or "never".
    """

    phase: str
    fault: str
    known: Known
    steps: tuple = ()
    greeting: tuple = ()
    place: str = "server"
    scheme: str = "http"
    certificate: str = "good"
    tunnel: bool = False
    head_only: bool = False
    kept: bool = False
    idle: tuple = ()
    timed: bool = False
    done: bool = False
    dies: str = ""
    resolves: str = ""

    @property
    def name(self):
        return f"{self.phase}: {self.fault}"


# ------------------------------------------------------------------------------------------------- steps


def acts(stage, _):
    stage.acted += 1


def is_reached(stage, _):
    stage.reached.set()


def sends(data):
    return lambda _, peer: peer.send(data)


def waits(_, peer):
    peer.wait_closed()


def stays_deaf(stage, peer):
    stage.over.wait(WAIT_TIMEOUT)
    peer.wait_closed()


def resets(_, peer):
    time.sleep(0.01)  # a reset discards what was not read yet
    peer.reset()


def ends(stage, peer):
    """Send an end of stream, and wait for the client's."""
    peer.sock.shutdown(socket.SHUT_WR)
    stage.rested.set()
    peer.wait_closed()


def sees_a_byte(_, peer):
    peer.sock.recv(1, socket.MSG_PEEK)


def drips(each):
    """Send slowly, but often enough that a time-out between two reads never ends."""

    def step(_, peer):
        until = time.monotonic() + WAIT_TIMEOUT
        while time.monotonic() < until:
            time.sleep(0.02)
            peer.send(each)

    return step


def dribbles(_, peer):
    while peer.sock.recv(16384):
        time.sleep(0.02)


def lets_pass(seconds):
    return lambda *_: time.sleep(seconds)


# ----------------------------------------------------------------------------------------- the scenarios

NOT_LEFT = Known(left=False)
NO_ANSWER = Known()
GOOD = Known(status=200, document=True, code="000000")
HALF = head("200 OK", "Content-Length: 23")


def ended(how, *, left=True):
    return Known(left=left, ended_by=how)


def _no_connection():
    resolving, connecting = partial(Scenario, phase="resolving the name"), partial(Scenario, phase="connecting")
    full = partial(connecting, place="full")
    never = partial(resolving, resolves="never")
    return [
        resolving(fault="the name does not exist", known=NOT_LEFT, place="nowhere"),
        resolving(fault="the resolver fails for now", known=NOT_LEFT, resolves="not now"),
        resolving(fault="a late answer", known=GOOD, resolves="late", done=True),
        never(fault="silence", known=NOT_LEFT, timed=True),
        never(fault="deadline", known=ended("deadline", left=False)),
        never(fault="cancellation", known=ended("cancellation", left=False)),
        connecting(fault="refused", known=NOT_LEFT, place="refusing"),
        full(fault="silence", known=NOT_LEFT, timed=True),
        full(fault="deadline", known=ended("deadline", left=False)),
        full(fault="cancellation", known=ended("cancellation", left=False)),
    ]


def _tunnel():
    made = partial(Scenario, phase="tunnel of a proxy", known=NOT_LEFT, tunnel=True, scheme="https")
    return [
        made(fault="HTTP 407", steps=(sends(reply(b"", "407 Proxy Authentication Required")),)),
        made(fault="HTTP 502", steps=(sends(reply(b"", "502 Bad Gateway")),)),
        made(fault="reset", steps=(resets,)),
        made(fault="end of stream", steps=(ends,)),
        made(fault="garbage", steps=(sends(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), ends)),
        made(fault="silence", steps=(waits,), timed=True),
    ]


def _tls():
    made = partial(Scenario, phase="TLS handshake", scheme="https", known=NOT_LEFT)
    seen = (is_reached, sees_a_byte)
    return [
        made(fault="reset", greeting=(*seen, resets)),
        made(fault="end of stream", greeting=(*seen, ends)),
        made(fault="garbage: an HTTP answer", greeting=(*seen, sends(reply(b"", "400 Bad Request")), ends)),
        made(fault="slow bytes", greeting=(*seen, sends(b"\x16\x03\x03\x40\x00\x02"), drips(b"\x00")), timed=True),
        made(fault="silence", greeting=(*seen, waits), timed=True),
        made(fault="certificate of another host", certificate="elsewhere"),
        made(fault="certificate expired", certificate="expired"),
        made(fault="certificate of an unknown authority", certificate="unknown"),
        made(fault="deadline", greeting=(*seen, waits), known=ended("deadline", left=False)),
        made(fault="cancellation", greeting=(*seen, waits), known=ended("cancellation", left=False)),
    ]


def _request():
    heads = partial(Scenario, phase="request headers", known=NO_ANSWER)
    bodies = partial(Scenario, phase="request body", known=NO_ANSWER, head_only=True)
    return [
        heads(fault="reset", greeting=(sees_a_byte, resets)),
        heads(fault="end of stream", greeting=(sees_a_byte, ends)),
        heads(fault="silence", greeting=(sees_a_byte, stays_deaf), timed=True),
        bodies(fault="reset", steps=(resets,)),
        bodies(fault="end of stream", steps=(lambda _, peer: peer.close(),)),
        bodies(fault="silence", steps=(stays_deaf,), timed=True),
        bodies(fault="slow bytes", steps=(dribbles,), timed=True),
        bodies(fault="process killed", place="process", dies="body"),
        bodies(fault="deadline", steps=(stays_deaf,), known=ended("deadline")),
        bodies(fault="cancellation", steps=(is_reached, stays_deaf), known=ended("cancellation")),
    ]


def _effect():
    made = []
    for phase, before in (("before the effect", ()), ("after the effect", (acts,))):
        each = partial(Scenario, phase=phase, known=NO_ANSWER)
        made += [
            each(fault="reset", steps=(*before, resets)),
            each(fault="end of stream", steps=(*before, ends)),
            each(fault="silence", steps=(*before, waits), timed=True),
            each(fault="process killed", place="process", dies="acted" if before else "read"),
            each(fault="deadline", steps=(*before, waits), known=ended("deadline")),
            each(fault="cancellation", steps=(*before, is_reached, waits), known=ended("cancellation")),
        ]
    return made


def _answer_heads():
    phase = partial(Scenario, phase="answer headers", known=NO_ANSWER)
    part = sends(b"HTTP/1.1 200 OK\r\nContent-Le")
    made = [
        phase(fault="reset", steps=(acts, part, resets)),
        phase(fault="end of stream", steps=(acts, part, ends)),
        phase(fault="silence", steps=(acts, part, waits), timed=True),
        phase(fault="slow bytes", steps=(acts, sends(b"HTTP/1.1 200 OK\r\nX: "), drips(b"x")), timed=True),
        phase(fault="garbage: no HTTP", steps=(acts, sends(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), ends)),
        phase(
            fault="garbage: no number as length", steps=(acts, sends(head("200 OK", "Content-Length: two") + b"{}"), ends)
        ),
        phase(fault="only an interim answer", steps=(acts, sends(head("100 Continue")), ends)),
    ]
    page = b"<html><p>of a proxy</p></html>"
    statuses = (302, 400, 401, 403, 404, 408, 413, 429, 500, 502, 503, 504)
    lines = {status: f"{status} {HTTPStatus(status).phrase}" for status in statuses}
    made += [
        phase(fault=f"HTTP {status}, a page", steps=(sends(reply(page, line)),), known=Known(status=status))
        for status, line in lines.items()
    ]
    made += [
        phase(
            fault=f"HTTP {status}, Retry-After: 1",
            steps=(sends(reply(page, lines[status], "Retry-After: 1")),),
            known=Known(status=status, retry_after=1),
        )
        for status in (429, 503)
    ]
    moved = reply(b"", "301 Moved Permanently", "Location: https://other.example/")
    made.append(phase(fault="HTTP 301, a redirect", steps=(sends(moved),), known=Known(status=301)))
    return made


def _answer_bodies():
    phase = partial(Scenario, phase="answer body", known=NO_ANSWER)
    part = sends(HALF + b'{"statusC')
    unreadable = Known(status=200)

    def read(fault, data, known, line="200 OK", *headers, done=False):
        return phase(fault=fault, steps=(acts, sends(reply(data, line, *headers))), known=known, done=done)

    def coded(code, meaning, status=200, line="200 OK"):
        known = Known(status=status, document=True, code=code)
        fault = f"code {code} ({meaning})" if status == 200 else f"HTTP {status}, code {code} ({meaning})"
        return phase(fault=fault, steps=(sends(reply(body(statusCode=code, statusMsg="x"), line)),), known=known)

    packed = gzip.compress(body(**SUCCESS), mtime=0)
    many = b'{"statusCode": "000000", "x": [' + b"0," * 120_000 + b"0]}"
    return [
        phase(fault="reset", steps=(acts, part, resets)),
        phase(fault="end of stream", steps=(acts, part, ends)),
        phase(fault="silence", steps=(acts, part, waits), timed=True),
        phase(fault="slow bytes", steps=(acts, sends(head("200 OK", "Content-Length: 9999")), drips(b" ")), timed=True),
        phase(
            fault="garbage: no number as size of a chunk",
            steps=(acts, sends(head("200 OK", "Transfer-Encoding: chunked") + b"zz\r\n{}\r\n"), ends),
        ),
        phase(fault="process killed", place="process", dies="answer"),
        phase(fault="deadline", steps=(acts, part, waits), known=ended("deadline")),
        phase(fault="cancellation", steps=(acts, part, is_reached, waits), known=ended("cancellation")),
        phase(fault="over the limit", steps=(acts, sends(reply(b" " * (LIMIT + 1)))), known=Known(too_large=True)),
        read("nothing", b"", unreadable),
        read("HTML", b"<html>sign in</html>", Known(status=200, page=True)),
        read("JSON of a gateway", b'{"statusCode":404,"message":"no Route matched"}', Known(status=200, page=True)),
        read("JSON cut short", b'{"statusCode": "0000', unreadable),
        read("JSON of another form", b'["000000"]', unreadable),
        read("JSON without a code", body(statusMsg="ok"), unreadable),
        read("gzip, although not asked for", packed, GOOD, "200 OK", "Content-Encoding: gzip", done=True),
        read("br, although not asked for", b"\x0b\x02\x80{}\x03", unreadable, "200 OK", "Content-Encoding: br"),
        read("no text of any encoding", b"\xff\xfe\x00\x81" * 8, Known(status=200, page=True)),
        read("success in GBK", body(**SUCCESS, statusMsg="成功").decode().encode("gbk"), GOOD, done=True),
        read("more than 120,000 values", many, unreadable),
        coded("160016", "too fast"),
        coded("160016", "too fast", 429, "429 Too Many Requests"),
        coded("160016", "too fast", 503, "503 Service Unavailable"),
        coded("161106", "timestamp expired"),
        coded("161106", "timestamp expired", 503, "503 Service Unavailable"),
        coded("111109", "wrong signature"),
        coded("529999", "server trouble"),
        coded("529999", "server trouble", 429, "429 Too Many Requests"),
        coded("560072", "not a member"),
        coded("999999", "not in the table"),
        coded("999999", "not in the table", 500, "500 Internal Server Error"),
        coded("000000", "success", 500, "500 Internal Server Error"),
        phase(
            fault="code 000000 (success) and code 160016 (too fast)",
            steps=(acts, sends(reply(body(**SUCCESS, code="160016")))),
            known=Known(status=200, document=True, code="000000", other_code="160016"),
        ),
    ]


def _kept():
    phase = partial(Scenario, phase="kept connection", kept=True, known=NO_ANSWER)
    stray = reply(body(statusCode="999999"))
    return [
        phase(fault="reset while idle", idle=(resets,), known=GOOD, done=True),
        phase(fault="end of stream while idle", idle=(ends,), known=GOOD, done=True),
        phase(fault="another answer while idle", idle=(lets_pass(0.01), sends(stray)), known=GOOD, done=True),
        phase(fault="process killed while idle", place="process", dies="idle", known=NOT_LEFT),
        phase(fault="reset when the request arrives", idle=(sees_a_byte, resets)),
        phase(fault="end of stream when the request arrives", idle=(sees_a_byte, ends)),
        phase(fault="reset after the request", steps=(acts, resets)),
        phase(fault="end of stream after the request", steps=(acts, ends)),
        phase(fault="garbage", steps=(acts, sends(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), ends)),
        phase(fault="silence", steps=(acts, waits), timed=True),
        phase(fault="process killed", place="process", dies="kept"),
        phase(fault="deadline", steps=(acts, waits), known=ended("deadline")),
        phase(fault="cancellation", steps=(acts, is_reached, waits), known=ended("cancellation")),
    ]


SCENARIOS = [*_no_connection(), *_tunnel(), *_tls(), *_request(), *_effect(), *_answer_heads(), *_answer_bodies(), *_kept()]
