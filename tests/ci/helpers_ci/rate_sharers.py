"""Processes that share a rate, and a platform that notes when each request came.

``python -m helpers_ci.rate_sharers URL SHARED LIMIT`` sends searches without end, twenty at once; it prints what fails.
"""

import asyncio
import os
import socket
import struct
import sys
from contextlib import asynccontextmanager, contextmanager

from helpers.paths import ROOT
from helpers.processes import PATIENCE, running
from rbim import AsyncClient, Credentials, Limits, Rate, RbimError

ANSWER = b'{"statusCode":"000000","statusMsg":"","groupList":[]}'
SO_TIMESTAMPNS = 35  # Linux; Python has no name for it
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)


class Platform:
    """It answers every request at once; ``times`` are those at which they reached this machine, in epoch seconds.

    The kernel notes them: a test that starts a process reads nothing meanwhile.
    """

    def __init__(self):
        self.times = []

    @asynccontextmanager
    async def serving(self):
        loop, connections = asyncio.get_running_loop(), []
        listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # its connections inherit it
        listener.settimeout(0)

        def accept():
            connection, _ = listener.accept()
            connection.settimeout(0)
            connections.append(connection)
            loop.add_reader(connection, answer, connection)

        def answer(connection):
            try:
                data, notes, *_ = connection.recvmsg(65536, 64)
                for _ in range(data.count(b" HTTP/1.1\r\n")):
                    seconds, nanoseconds = struct.unpack("qq", notes[0][2])
                    self.times.append(seconds + nanoseconds / 1e9)
                    connection.send(HEAD + ANSWER)
            except ConnectionError:  # the process was killed
                data = b""
            if not data:
                loop.remove_reader(connection)

        loop.add_reader(listener, accept)
        try:
            yield "http://{}:{}".format(*listener.getsockname())
        finally:
            for each in (listener, *connections):
                loop.remove_reader(each)
                each.close()

    def most(self, seconds):
        """Return the largest number of requests that came within so many seconds."""
        times, most, first = sorted(self.times), 0, 0
        for last, when in enumerate(times):
            while times[first] <= when - seconds:
                first += 1
            most = max(most, last - first + 1)
        return most


@contextmanager
def sharer(url, shared, limit):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests", ROOT / "tests" / "ci")))}
    command = [sys.executable, "-m", "helpers_ci.rate_sharers", url, shared, str(limit)]
    with running(*command, env=environment, stderr=None, patience=10 * PATIENCE) as process:
        yield process


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
