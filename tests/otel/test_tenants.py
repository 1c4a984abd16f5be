"""Two hundred tenants over one transport, twenty thousand calls (in short: 4,000): one has a wrong token, one is slow.

What the others notice: nothing. What the metrics say: who.
"""

import base64
import hashlib
import json
import time
from collections import defaultdict

import anyio
import pytest

from helpers.serving import served
from helpers.stubs import INVITE, READ, Stub, answer, ending
from helpers.telemetry import Telemetry
from rbim import AsyncClient, AuthenticationError, Credentials, DeadlineExceeded, Limits, Retry
from rbim.emulator import EmulatedClock
from rbim.transports.asyncio.transport import AsyncioTransport

TENANTS = 200
WRONG, SLOW = "tenant-007", "tenant-123"
NAMES = [f"tenant-{number:03}" for number in range(TENANTS)]
SECONDS = {SLOW: 4.0}  # for an answer; of the others 0.05


def token_of(name):
    return f"token-of-{name}"


def is_signed(app_id, token, query, authorization):
    stamp = base64.b64decode(authorization).decode().rpartition(":")[2]
    return query == hashlib.md5(f"{app_id}{token}{stamp}".encode()).hexdigest().upper()


class Platform(Stub):
    """Every tenant's application, told apart by the path, with a token each."""

    async def respond(self, request, timeout):
        (name,) = (part for part in request.path.split("/") if part.startswith("tenant-"))
        if not is_signed(name, token_of(name), request.query["sig"], request.headers["Authorization"]):
            return answer("111109")
        await self.clock.sleep(min(timeout, SECONDS.get(name, 0.05)))
        return answer()


def clients(transport, telemetry, url, **options):
    for name in NAMES:
        token = "another-tenants" if name == WRONG else token_of(name)
        yield AsyncClient(
            name=name,
            base_url=url,
            credentials=Credentials(app_id=name, app_token=token),
            transport=transport,
            limits=Limits(concurrency=5),
            observers=[telemetry.observer],
            retry=Retry(attempts=1),
            **options,
        )


async def calls_of(client, calls, seconds, elapsed, gap):
    """Make a tenant's calls, a burst of five every ``gap`` seconds, and keep how long each took and how it ended."""

    async def one(op):
        began = elapsed()
        ended = await ending(client.send(op))
        seconds[client.name].append((elapsed() - began, type(ended)))

    async with anyio.create_task_group() as tasks:
        for number in range(calls // 5):
            for each in range(5):
                tasks.start_soon(one, READ if (number + each) % 2 else INVITE)
            await client.clock.sleep(gap)


def by_tenant(telemetry, metric):
    """Return the count, the sum of seconds and the errors of each tenant, as the metric says."""
    found = defaultdict(lambda: [0, 0.0, set()])
    for about, (count, total) in telemetry.points(metric):
        entry = found[about["rbim.client"]]
        entry[0] += count
        entry[1] += total
        entry[2] |= {about["error.type"]} if "error.type" in about else set()
    return found


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("calls", [20, pytest.param(100, marks=pytest.mark.slow)])
async def test_of_two_hundred_tenants_the_others_notice_nothing_of_two_in_trouble(telemetry, calls):
    clock = EmulatedClock(auto=True)
    platform, seconds = Platform(clock=clock), defaultdict(list)
    async with anyio.create_task_group() as tasks:
        for client in clients(platform, telemetry, "https://im.example", clock=clock, deadline=10.0):
            await client.open()
            tasks.start_soon(calls_of, client, calls, seconds, lambda: clock.elapsed, 0.2)
    assert sum(map(len, seconds.values())) == TENANTS * calls

    others = [each for name in NAMES if name not in {WRONG, SLOW} for each in seconds[name]]
    assert {round(took, 9) for took, _ in others} == {0.05}
    assert AuthenticationError not in {kind for _, kind in others}
    assert {kind for _, kind in seconds[WRONG]} == {AuthenticationError}
    assert max(took for took, _ in seconds[SLOW]) >= 4
    assert DeadlineExceeded in {kind for _, kind in seconds[SLOW]}  # at 5 in flight, 4 s each, its calls cannot all leave

    said = by_tenant(telemetry, "rbim.client.call.duration")
    assert {name: entry[0] for name, entry in said.items()} == dict.fromkeys(NAMES, calls)
    assert {name for name, entry in said.items() if entry[2]} == {WRONG, SLOW}
    assert said[WRONG][2] == {"AuthenticationError"}
    assert said[SLOW][2] == {"DeadlineExceeded"}
    assert max(said, key=lambda name: said[name][1]) == SLOW
    waited = by_tenant(telemetry, "rbim.client.wait.duration")
    assert set(waited) == {SLOW}  # it alone waits for a place


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_over_real_sockets_too():
    """The same over HTTP, one shared transport; the latencies of the others are compared with a run without trouble."""

    async def app(scope, receive, send):
        name = next(part for part in scope["path"].split("/") if part.startswith("tenant-"))
        while (await receive()).get("more_body"):
            pass
        authorization = dict(scope["headers"])[b"authorization"].decode()
        query = scope["query_string"].decode().partition("sig=")[2]
        good = is_signed(name, token_of(name), query, authorization)
        if good and trouble and name == SLOW:
            await anyio.sleep(SECONDS[SLOW])
        body = json.dumps({"statusCode": "000000" if good else "111109"}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    longest = {}
    with served(app) as url:
        for trouble in (False, True, False, True):
            telemetry, seconds, transport = Telemetry(), defaultdict(list), AsyncioTransport()
            opened = [await client.open() for client in clients(transport, telemetry, url, deadline=6.0)]
            async with anyio.create_task_group() as tasks:
                for client in opened:
                    tasks.start_soon(calls_of, client, 40, seconds, time.monotonic, 2.0)
            for client in opened:
                await client.aclose()
            others = sorted(took for name in NAMES if name not in {WRONG, SLOW} for took, _ in seconds[name])
            assert all(
                not issubclass(kind, Exception) for name in NAMES if name not in {WRONG, SLOW} for _, kind in seconds[name]
            )
            longest.setdefault(trouble, []).append(others[int(0.99 * len(others))])
            said = by_tenant(telemetry, "rbim.client.call.duration")
            assert {name for name, entry in said.items() if entry[2]} == ({WRONG, SLOW} if trouble else {WRONG})
    assert min(longest[True]) <= 2 * max(longest[False]) + 0.1, longest
