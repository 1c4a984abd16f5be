"""What transports prepare of one request for the next: only the very same is taken for it."""

from types import SimpleNamespace

import pytest

from helpers.exchanges import ENOUGH
from rbim.http import Request
from rbim.testing.conformance.server import RawServer, reply
from rbim.transports._shared.heads import MAX_HEADS, HeadCache
from rbim.transports.aiohttp import AiohttpTransport
from rbim.transports.asyncio.transport import AsyncioTransport
from rbim.transports.httpx import HttpxTransport
from rbim.transports.httpx2 import Httpx2Transport

EACH = pytest.mark.parametrize("make", [AsyncioTransport, HttpxTransport, Httpx2Transport, AiohttpTransport])


@pytest.fixture
def anyio_backend():
    """Most transports run on asyncio only."""
    return "asyncio"


def made(**differently):
    told = {"origin": "http://a", "path": "/p", "query": {"sig": "S"}, "headers": {"A": "B"}} | differently
    return Request(**told)


def test_only_so_many_are_kept():
    kept = HeadCache()
    requests = [made(path=f"/{number}") for number in range(MAX_HEADS * 3)]
    for request in requests:
        kept.keep(request, request.path)
        assert kept.get(request) == request.path
    assert 0 < sum(kept.get(request) is not None for request in requests) <= MAX_HEADS


def test_a_head_of_an_earlier_second_is_removed_when_a_later_one_is_kept(monkeypatch):
    """The platform accepts its signature for a day."""
    now = 100.0
    monkeypatch.setattr("rbim.transports._shared.heads.time", SimpleNamespace(monotonic=lambda: now))
    kept = HeadCache()
    kept.keep(made(path="/old"), "old")
    now = 100.9
    kept.keep(made(path="/later"), "later")
    assert kept.get(made(path="/old")) == "old"
    now = 101.1
    kept.keep(made(path="/new"), "new")
    assert [kept.get(made(path=path)) for path in ("/old", "/later", "/new")] == [None, "later", "new"]
    now = 1000.0
    kept.keep(made(path="/last"), "last")
    assert [each.value for each in kept._kept.values()] == ["last"]


@EACH
async def test_what_is_kept_of_one_request_or_answer_is_not_taken_for_another(make):
    """Some more than are kept, and each one twice, after others."""
    paths = [(f"/p{number}", {"sig": "S1"}, {"X-Mark": "M1"}, b"{}") for number in range(70)]
    signed = ("A", "C"), ("A", "D"), ("B", "D"), ("B", "C")
    alike = [("/p", {"sig": sig}, {"X-Mark": mark}, body) for sig, mark in signed for body in (b"", b"x", b"yy")]
    told = [*alike, *paths, *alike]
    answers = [reply(b"", "200 OK", f"X-Turn: {turn // 2}", "X-Two: a", "X-Two: b") for turn in range(len(told))]
    with RawServer(*answers) as server:
        async with make() as transport:
            for turn, (path, query, headers, body) in enumerate(told):
                sent = Request(origin=server.url(), path=path, query=query, headers=headers, body=body)
                got = (await transport.send(sent, timeout=ENOUGH)).headers
                assert (got.pop("x-turn"), got.pop("x-two")) == (str(turn // 2), "a, b")
    assert told == [
        (
            seen.line.split("?")[0][5:],
            {"sig": seen.line.split("sig=")[1].split()[0]},
            {"X-Mark": seen.header("X-Mark")},
            seen.body,
        )
        for seen in server.requests
    ]


@pytest.mark.parametrize("make", [HttpxTransport, Httpx2Transport])
async def test_no_length_of_another_body_is_told_beside_the_callers_own_framing(make):
    bodies = (b"abc", b"longer body", b"a")
    on_the_wire = [b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) for body in bodies]

    def answer(peer, seen):
        assert peer.read_body(b"content-length: %d" % len(on_the_wire[seen.number])) == on_the_wire[seen.number]
        peer.send(reply())

    with RawServer(answer, head_only=True) as server:
        async with make() as transport:
            for body in bodies:
                sent = Request(origin=server.url(), path="/p", headers={"Transfer-Encoding": "chunked"}, body=body)
                await transport.send(sent, timeout=ENOUGH)
    told = [one.header("Content-Length") for one in server.requests]
    assert all(length in {"", str(len(body))} for length, body in zip(told, bodies, strict=True))
    assert server.accepted == 1
