"""What transports prepare of one request for the next: only the very same is taken for it."""

import pytest

from helpers.exchanges import ENOUGH
from rbim.http import Request
from rbim.testing.conformance.server import RawServer, reply
from rbim.transports._shared.head_cache import MAX_HEADS, HeadCache
from rbim.transports.aiohttp.transport import AiohttpTransport
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


DIFFERENT = {
    "origin": made(origin="http://b"),
    "path": made(path="/q"),
    "method": made(method="GET"),
    "query": made(query={"sig": "T"}),
    "no query": made(query={}),
    "header": made(headers={"A": "C"}),
    "one more header": made(headers={"A": "B", "C": "D"}),
    "name of a header": made(headers={"a": "B"}),
}


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=[*DIFFERENT])
def test_a_request_with_another_head_gets_nothing(other):
    kept = HeadCache()
    assert kept.keep(made(), "first") == "first"
    assert kept.get(made(body=b"other", repeatable=True)) == "first"
    assert kept.get(other) is None
    kept.keep(other, "other")
    assert kept.get(other) == "other"
    assert kept.get(made()) in {"first", None}


def test_what_else_it_depends_on_is_a_part_of_it():
    kept = HeadCache()
    kept.keep(made(), "first", 1, "x")
    assert [kept.get(made()), kept.get(made(), 1, "x"), kept.get(made(), 1, "y")] == [None, "first", None]


def test_what_a_caller_changes_afterwards_changes_nothing_here():
    kept, headers = HeadCache(), {"A": "B"}
    kept.keep(made(headers=headers), "first")
    headers["A"] = "C"
    assert kept.get(made(headers=headers)) is None
    assert kept.get(made()) == "first"


def test_only_so_many_are_kept_and_none_after_clearing():
    kept = HeadCache()
    requests = [made(path=f"/{number}") for number in range(MAX_HEADS * 3)]
    for request in requests:
        kept.keep(request, request.path)
        assert kept.get(request) == request.path
    assert 0 < sum(kept.get(request) is not None for request in requests) <= MAX_HEADS
    kept.clear()
    assert not any(kept.get(request) for request in requests)


def test_a_head_of_an_earlier_second_is_removed_when_a_later_one_is_kept():
    """The platform accepts its signature for a day."""
    now = 100.0
    kept = HeadCache(clock=lambda: now)
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


def test_it_shows_nothing_of_what_it_keeps():
    kept = HeadCache()
    kept.keep(made(query={"sig": "SECRET"}), "first")
    assert "SECRET" not in f"{kept!r} {vars(kept)!r}"


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


@pytest.mark.parametrize("make", [HttpxTransport, Httpx2Transport])
async def test_nothing_is_kept_by_a_transport_that_was_left(make):
    with RawServer() as server:
        async with make() as transport:
            sent = Request(origin=server.url(), path="/p", query={"sig": "S"}, headers={"A": "B"})
            await transport.send(sent, timeout=ENOUGH)
            assert transport._routes[server.url()]._heads.get(sent, True)
    assert not transport._routes


@EACH
async def test_each_body_is_counted_anew(make):
    """Between bodies of other lengths and none, and other methods."""
    kinds = [("POST", {}), ("PUT", {}), ("POST", {"X-Mark": "1"})]
    bodies = [b"", b"a", b"bb", b"x" * 1000, b"", b"c" * 10]
    told = [(method, headers, body) for body in bodies for method, headers in kinds]
    with RawServer() as server:
        async with make() as transport:
            for method, headers, body in told:
                sent = Request(method=method, origin=server.url(), path="/p", headers=headers, body=body)
                await transport.send(sent, timeout=ENOUGH)
    seen = [(one.line.split()[0], one.header("Content-Length"), one.body) for one in server.requests]
    assert seen == [(method, str(len(body)), body) for method, _, body in told]
    assert all(one.header("Host") == f"127.0.0.1:{server.port}" for one in server.requests)
