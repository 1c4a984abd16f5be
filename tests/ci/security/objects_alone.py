"""No object of the process keeps a signature longer than the transport, and no object but the transport keeps it at all."""

import asyncio
import gc
from collections import deque
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import count
from types import FrameType, ModuleType

import pytest

from helpers.credentials import CREDENTIALS
from helpers.fixed_clock import FixedClock
from rbim.http import Request
from rbim.transports.aiohttp import AiohttpTransport
from rbim.transports.asyncio.transport import AsyncioTransport
from rbim.transports.auto import AutoTransport
from rbim.transports.httpx import HttpxTransport
from rbim.transports.httpx2 import Httpx2Transport
from rbim.wire.signing import AppSigner

TRANSPORTS = [AutoTransport, AsyncioTransport, HttpxTransport, Httpx2Transport, AiohttpTransport]
DAYS = count()


CHUNK = 4096


def _hidden(text, needles, asterisks):
    for needle in needles:
        text = text.replace(needle, asterisks)
    return text


def texts_with(*reversed_needles):
    """Return the texts and bytes, reachable from any object, that contain one of the needles, here replaced by asterisks.

    The needles are spelled backwards, so that the search does not find those of its caller.
    """
    gc.unfreeze()  # what pytest collected counts, too
    gc.collect()
    needles = [needle[::-1] for needle in reversed_needles]
    wanted = [(needle, needle.encode()) for needle in needles]
    waiting, seen, found = deque(gc.get_objects()), set(), []
    own = {id(waiting), id(seen), id(found), id(needles), id(wanted), *map(id, wanted), *map(id, needles)}
    own |= {id(one) for pair in wanted for one in pair}
    while waiting:
        batch = []
        while waiting and len(batch) < CHUNK:
            each = waiting.popleft()
            kind = type(each)  # isinstance would run code of objects that stand for others
            if id(each) in seen or id(each) in own or issubclass(kind, FrameType):
                continue
            seen.add(id(each))
            if issubclass(kind, str):
                if any(text in each for text, _ in wanted):
                    found.append(_hidden(each, [text for text, _ in wanted], "***"))
            elif issubclass(kind, (bytes, bytearray)):
                if any(raw in each for _, raw in wanted):
                    found.append(_hidden(bytes(each), [raw for _, raw in wanted], b"***"))
            elif not issubclass(kind, (int, float, ModuleType)):
                batch.append(each)
        for each in batch:
            waiting.extend(gc.get_referents(each))
    return found


class Answering(asyncio.Protocol):
    """A server that keeps nothing of a request; at /broken it closes the connection."""

    def __init__(self, connections):
        self.connections = connections

    def connection_made(self, transport):
        self.transport = transport
        self.connections.append(transport)

    def data_received(self, data):
        if b"/broken" in data:
            self.transport.abort()
        elif b"HTTP/1.1\r\n" in data:
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


@asynccontextmanager
async def answering():
    connections = []
    async with await asyncio.get_running_loop().create_server(lambda: Answering(connections), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for connection in connections:
            connection.abort()
    await asyncio.sleep(0)


def new_day():
    """Return a time that no other test uses, so that one test does not find the signatures of another."""
    return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) + timedelta(days=next(DAYS))


def sign(path, *, at, origin="http://unused"):
    return AppSigner(CREDENTIALS, clock=FixedClock(at)).sign(Request(origin=origin, path=path, body=b"{}"))


def secrets_backwards(at):
    return tuple(secret[::-1] for secret in sign("/p", at=at).secrets)


async def send(transport, path, *, port, at):
    try:
        await transport.send(sign(path, origin=f"http://127.0.0.1:{port}", at=at), timeout=5.0)
    except Exception:
        return False
    return True


@pytest.mark.usefixtures("no_proxy_of_this_machine")
@pytest.mark.parametrize("make", TRANSPORTS)
async def test_no_signature_outlives_the_transport(make):
    now = new_day()
    secrets = secrets_backwards(now)
    transport = make()
    async with answering() as port, transport:
        answers = [await send(transport, path, port=port, at=now) for path in ("/a", "/b", "/b", "/broken", "/c")]
        assert answers == [True, True, True, False, True]
        kept = texts_with(*secrets) or make is AiohttpTransport  # which keeps nothing
        assert kept, "the search finds what the transport keeps for its next request"
    assert texts_with(*secrets) == []


@pytest.mark.usefixtures("no_proxy_of_this_machine")
@pytest.mark.parametrize("make", TRANSPORTS)
async def test_an_open_transport_keeps_no_signature_but_the_last_ones(make, monkeypatch):
    """Neither on connections that earlier requests opened, nor by any key of a dictionary, whose repr would show it."""
    monkeypatch.setattr("rbim.transports._shared.heads.MAX_AGE", -1.0)  # the next second begins at once
    now = new_day()
    later = now + timedelta(seconds=1)
    async with answering() as port, make() as transport:
        first = await asyncio.gather(*(send(transport, f"/{number}", port=port, at=now) for number in range(3)))
        assert [*first, await send(transport, "/later", port=port, at=later)] == [True] * 4
        assert texts_with(*secrets_backwards(now)) == []
        secrets = [secret[::-1] for secret in secrets_backwards(later)]
        keys = [key for each in gc.get_objects() if type(each) is dict for key in each if isinstance(key, str)]
        assert not [key for key in keys if any(secret in key for secret in secrets)]


def planted(number):
    """Return a text that is no constant of a code object."""
    return f"PLANTED-{number}"


def test_the_search_finds_what_is_planted_anywhere():
    """In a cache of functools, a slot, a tuple of a deque, a closure, bytes of a default."""

    @lru_cache
    def cached(text):
        return len(text)

    class Slotted:
        __slots__ = ("value",)

    def closed_over(text):
        return lambda: text

    cached(planted(1))
    slotted = Slotted()
    slotted.value = b"x" + planted(2).encode()
    line = deque([(planted(3), 1)])
    closure = closed_over(planted(4))
    default = partial(print, end=bytearray(planted(5).encode()))
    assert [bool(texts_with(planted(number)[::-1])) for number in range(1, 7)] == [True] * 5 + [False]
    del slotted, line, closure, default
    cached.cache_clear()
    assert texts_with(*(planted(number)[::-1] for number in range(1, 6))) == []
