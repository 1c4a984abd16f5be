"""What is answered of a platform that throttles, by rbim and by a loop by hand, on emulated time and over real HTTP.

Run: python -m benchmarks congestion

The platform has a token bucket. Calls come at random, each with ten seconds for its answer; the client has no rates. *used*
is the share of what the platform could have answered from second 5 on, *after* the share of calls that are answered from 5 s
after the end of an overload of three times the limit for three seconds, when 0.8 of the limit is asked for. By hand, each
call waits for its own ``Retry-After``, or for a second, and is sent again until its time is over.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.results import Goal, Result, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.results import Options

__all__ = ["run"]

LIMITS, BURSTS, ASKED, OFFERED = (20, 50, 200), (1, 5, 0), (None, "1", "2", "5", "date"), (0.8, 1.1, 2.0, 5.0)
QUICK = ((50,), (5,), ("2",))
SECONDS, FROM = 20.0, 5.0
USED, AFTER = 0.8, 0.95
DEADLINE = 10.0
OVERLOAD = 3.0
THROTTLED = 429


async def by_hand(calls: Any, platform: Any) -> None:
    """Send each call as a loop by hand does."""
    from rbim import Request

    request = Request(method="POST", origin="http://emulator", path="/CreateGroup", body=b"{}")
    loop = asyncio.get_running_loop()
    platform.start = start = loop.time()

    async def one(call: Any) -> None:
        while loop.time() - start < call.until:
            response = await platform.send(request, timeout=DEADLINE)
            if response.status != THROTTLED:
                call.ended = loop.time() - start
                return
            await asyncio.sleep(float(response.headers.get("retry-after", 1)))

    async with asyncio.TaskGroup() as tasks:
        for call in calls:
            await asyncio.sleep(max(0.0, start + call.at - loop.time()))
            tasks.create_task(one(call))


def emulated(limit: int, burst: int, asked: str | None, offered: Any, *, hand: bool) -> tuple[Any, Any]:
    """Return the calls and the platform, after all have ended."""
    from rbim import Limits
    from tests.helpers import loads, throttling

    calls, platform = throttling.drawn(offered, SECONDS), throttling.throttling(limit, burst, asked)
    if hand:
        loads.run_emulated("asyncio", lambda: by_hand(calls, platform))
    else:
        loads.run(calls, platform, Limits())
    return calls, platform


def figures(limit: int, burst: int, asked: str | None, *, hand: bool) -> tuple[list[float], float]:
    """Return what is used at each load, and what is answered after an overload."""
    used = [
        emulated(limit, burst, asked, lambda _, times=times: times * limit, hand=hand)[1].rate(FROM, SECONDS)
        / (limit * min(1.0, times))
        for times in OFFERED
    ]
    calls, _ = emulated(limit, burst, asked, lambda at: (3 if at < OVERLOAD else 0.8) * limit, hand=hand)
    late = [call for call in calls if call.at >= OVERLOAD + FROM]
    return used, sum(call.in_time for call in late) / len(late)


@contextmanager
def served(limit: float, burst: float, asked: str) -> Iterator[tuple[str, list[float]]]:
    """Serve a platform that throttles, in a thread; yield its URL and the times of what passed."""
    passed: list[float] = []
    tokens, at = burst, time.monotonic()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tokens, at
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
            await reader.readexactly(int(length.split(b":")[1]))
            now = time.monotonic()
            tokens, at = min(burst, tokens + (now - at) * limit), now
            passes = tokens >= 1
            tokens -= passes
            if passes:
                passed.append(now)
            code = "000000" if passes else "112310"
            body = json.dumps({"statusCode": code, "statusMsg": "", "groupId": "g"}).encode()
            status = b"200 OK" if passes else b"429 Too Many Requests\r\nRetry-After: " + asked.encode()
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await connection(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(guarded, "127.0.0.1", 0) as server:
            port.append(server.sockets[0].getsockname()[1])
            started.set()
            await closing.wait()

    port, started, loop, closing = list[int](), threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    started.wait()
    try:
        yield f"http://127.0.0.1:{port[0]}", passed
    finally:
        loop.call_soon_threadsafe(closing.set)
        thread.join()
        loop.close()


async def over_http(url: str, calls: Any, *, hand: bool) -> None:
    """Send the calls at their times, by rbim or by hand over httpx."""
    import httpx

    from rbim import AsyncClient, RbimError
    from tests.helpers.stubs import CREDENTIALS

    start, client = time.monotonic(), AsyncClient(base_url=url, credentials=CREDENTIALS, deadline=DEADLINE)
    plain = httpx.AsyncClient(timeout=DEADLINE)

    async def one(call: Any) -> None:
        if not hand:
            try:
                await client.send(call.operation)
            except RbimError:
                return
            call.ended = time.monotonic() - start
        while hand and time.monotonic() - start < call.until and call.ended is None:
            try:
                response = await plain.post(url, json={})
            except httpx.TimeoutException:  # it has a place in the pool too late, or no answer
                continue
            if response.status_code == THROTTLED:
                await asyncio.sleep(float(response.headers["retry-after"]))
            else:
                call.ended = time.monotonic() - start

    async with client, plain, asyncio.TaskGroup() as tasks:
        for call in calls:
            await asyncio.sleep(max(0.0, start + call.at - time.monotonic()))
            tasks.create_task(one(call))


def real(limit: int, times: float, seconds: float, *, hand: bool) -> tuple[float, float]:
    """Return what is used over HTTP at 0.8 of the limit after three seconds of overload, and what is answered."""
    from tests.helpers import throttling

    calls = throttling.drawn(lambda at: (times if at < OVERLOAD else 0.8) * limit, seconds)
    with served(limit, 5, "2") as (url, passed):
        began = time.monotonic()
        asyncio.run(over_http(url, calls, hand=hand))
    late = [call for call in calls if call.at >= OVERLOAD + FROM]
    rate = sum(began + FROM <= at < began + seconds for at in passed) / (seconds - FROM) / (0.8 * limit)
    return rate, sum(call.in_time for call in late) / len(late)


def run(options: Options | None = None) -> Result:
    """Return what is used of platforms that throttle, as one part of the benchmarks."""
    quick = options is not None and options.quick
    rows: list[tuple[str | float | None, ...]] = []
    least, recovered = 1.0, 1.0
    for limit in QUICK[0] if quick else LIMITS:
        for burst in QUICK[1] if quick else BURSTS:
            asked = QUICK[2] if quick else ASKED
            found = [figures(limit, burst or limit, each, hand=False) for each in asked]
            by_hand = [figures(limit, burst or limit, each, hand=True)[0] for each in asked if each != "date"]
            used = [min(each) for each in zip(*(used for used, _ in found), strict=True)]
            after = min(after for _, after in found)
            least, recovered = min(least, *used), min(recovered, after)
            rows.append(
                (f"{limit}/s, burst {burst or limit}", *(100 * each for each in (*used, after, min(map(min, by_hand)))))
            )
    goals = [
        Goal(name="least share used, emulated", value=least, at_least=USED),
        Goal(name="least share answered after an overload, emulated", value=recovered, at_least=AFTER),
    ]
    http: list[tuple[str | float | None, ...]] = []
    seconds = 9.0 if quick else 16.0
    for limit, times in ((50, 3.0),) if quick else ((20, 3.0), (50, 3.0), (50, 5.0), (200, 3.0)):
        used, after = real(limit, times, seconds, hand=False)
        hand_used, hand_after = real(limit, times, seconds, hand=True)
        http.append((f"{limit}/s, {times:g} times for 3 s", *(100 * each for each in (used, after, hand_used, hand_after))))
        goals.append(Goal(name=f"{limit}/s after {times:g} times over HTTP: answered", value=after, at_least=AFTER))
    columns = ("", *(f"used at {each:g}" for each in OFFERED), "after", "by hand, least used")
    title = "Throttled calls on emulated time, % of what is possible, the least of all Retry-After"
    table = Table(title=title, columns=columns, rows=tuple(rows))
    columns = ("", "used", "answered", "by hand: used", "by hand: answered")
    over = Table(title="Three seconds of overload, over HTTP, %", columns=columns, rows=tuple(http))
    return Result(part="congestion", tables=(table, over), goals=tuple(goals))
