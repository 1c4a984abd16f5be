"""Processes that share a rate, and a platform that notes when each request came.

``python -m helpers_ci.rate_sharers URL SHARED LIMIT`` sends searches without end, twenty at once; it prints what fails.
"""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager

from helpers.paths import ROOT
from rbim import AsyncClient, Credentials, Limits, Rate, RbimError

ANSWER = b'{"statusCode":"000000","statusMsg":"","groupList":[]}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)


class Platform:
    """It answers every request at once; ``times`` are those at which they came, in seconds."""

    def __init__(self):
        self.times = []

    @asynccontextmanager
    async def serving(self):
        """Give the address at which it listens until the block ends."""
        connections = []

        def connected():
            connections.append(_Connection(self.times))
            return connections[-1]

        async with await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            yield f"http://{host}:{port}"
            for connection in connections:
                connection.transport.abort()

    def most(self, seconds):
        """Return the largest number of requests that came within so many seconds."""
        most = first = 0
        for last, when in enumerate(self.times):
            while self.times[first] <= when - seconds:
                first += 1
            most = max(most, last - first + 1)
        return most


class _Connection(asyncio.Protocol):
    def __init__(self, times):
        self._times = times

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        for _ in range(data.count(b" HTTP/1.1\r\n")):
            self._times.append(time.monotonic())
            self.transport.write(HEAD + ANSWER)


@contextmanager
def sharer(url, shared, limit):
    """Give a process that sends at the rate, until the block ends."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests", ROOT / "tests" / "ci")))}
    command = [sys.executable, "-m", "helpers_ci.rate_sharers", url, shared, str(limit)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            yield process
        finally:
            process.kill()


async def _main(url, shared, limit):
    limits = Limits(rates=[Rate(float(limit), shared=shared)])
    credentials = Credentials(app_id="app", app_token="token")
    async with AsyncClient(base_url=url, credentials=credentials, transport="asyncio", limits=limits, deadline=10) as client:
        await client.warm_up()  # else the first calls wait for imports, after their slots

        async def send():
            while True:
                try:
                    await client.groups.search(group_id="g1")
                except RbimError as error:
                    print(type(error).__name__, error, flush=True)  # noqa: T201  # the test reads it

        await asyncio.gather(*(send() for _ in range(20)))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
