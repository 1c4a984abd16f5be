"""The clock that workers with a common rate share: what an answer of the servers says of it, and what it does not."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from rbim.jetstream import rate
from rbim.jetstream.rate import LATE, TRIES, EngineClock

EPOCH = 1_800_000_000.0


class Servers:
    """Servers whose clock is ``ahead`` of EPOCH + local; a question takes ``there`` seconds, an answer ``back``."""

    def __init__(self):
        self.local, self.ahead, self.there, self.back = 1000.0, 0.0, 0.001, 0.001

    async def time(self):
        self.local += self.there
        found = datetime.fromtimestamp(self.now, UTC)
        self.local += self.back
        return found

    @property
    def now(self):
        return EPOCH + self.local + self.ahead


@pytest.fixture
def servers(monkeypatch):
    servers = Servers()
    loop = SimpleNamespace(time=lambda: servers.local)
    monkeypatch.setattr(rate, "asyncio", SimpleNamespace(get_running_loop=lambda: loop, Event=asyncio.Event))
    return servers


@pytest.mark.parametrize(("there", "back"), [(0.0, 2.0), (2.0, 0.0), (1.9, 0.1)])
async def test_a_slow_answer_does_not_move_a_clock_that_it_does_not_contradict(servers, there, back):
    clock = EngineClock(servers)
    assert await clock.sync()
    assert clock.known.is_set()
    servers.there, servers.back = there, back
    for _ in range(3):
        assert not await clock.sync()
        assert clock.now() == pytest.approx(servers.now, abs=0.002)


@pytest.mark.parametrize("jump", [-30.0, -0.5, 0.5, 30.0])
async def test_a_clock_follows_a_server_with_another_one(servers, jump):
    clock = EngineClock(servers)
    await clock.sync()
    servers.ahead = jump
    assert await clock.sync()
    assert clock.now() == pytest.approx(servers.now, abs=servers.there + servers.back + 1e-5)
    servers.ahead, servers.back = 0.0, 0.2
    assert not await clock.sync()
    assert clock.now() == pytest.approx(servers.now, abs=servers.there + servers.back + 1e-5)


async def test_the_first_answers_that_are_slow_are_not_trusted_at_once(servers):
    clock = EngineClock(servers)
    servers.back = 2.0
    assert not await clock.sync()
    assert not clock.known.is_set()
    servers.back = LATE / 2
    assert await clock.sync()
    assert clock.known.is_set()
    assert clock.now() == pytest.approx(servers.now, abs=LATE)


async def test_servers_that_are_always_slow_are_believed_in_the_end(servers):
    clock = EngineClock(servers)
    servers.there = servers.back = 0.3
    for count in range(TRIES):
        assert not clock.known.is_set(), count
        assert not await clock.sync()
    assert clock.known.is_set()
    assert clock.now() == pytest.approx(servers.now, abs=1e-5)
