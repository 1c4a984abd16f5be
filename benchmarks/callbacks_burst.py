"""A burst: 2,000 connections open at once to a receiver, each with one delivery, as behind a load balancer.

The receivers: ``rbim callback serve``, and the ASGI application in uvicorn. Every delivery must be answered 200; a
connection that is closed before its answer counts as dropped.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.deliveries import APP_ID, TOKEN, message, receiver
from benchmarks.httpload import ROOT, process, serve_app, tell_time
from benchmarks.results import Goal, Part, Table
from rbim.callbacks import SqliteInbox

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from benchmarks.results import Options

__all__ = ["burst"]

MODULE = "benchmarks.callbacks_burst"
COMMAND, MOUNTED = "rbim callback serve", "uvicorn"
CONNECTIONS = 2000
PATIENCE = 20.0  # seconds until what has no answer counts as dropped


def burst(options: Options) -> Part:
    """Measure each receiver once; return the figures."""
    connections = 100 if options.quick else _allowed(CONNECTIONS)
    numbers = count()
    rows: list[tuple[str, float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        with _command(Path(folder, "command.db")) as port:
            rows.append((COMMAND, *_together(port, numbers, connections)))
        with process(MODULE, str(Path(folder, "mounted.db"))) as server:
            rows.append((MOUNTED, *_together(server.port, numbers, connections)))
    table = Table(
        title=f"A burst of {connections} connections, each with one delivery",
        columns=("", "answered", "dropped", "last answer ms"),
        rows=tuple(rows),
        digits=0,
    )
    goals = (Goal(name=f"burst, dropped by {name}", value=dropped, at_most=0) for name, _, dropped, _ in rows)
    return Part(table, tuple(goals))


def _allowed(wanted: int) -> int:
    """Raise the limit of open files, of which children take over theirs; return how many connections that allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(soft, wanted + 200 if hard < 0 else min(wanted + 200, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return min(wanted, limit - 200)


@contextmanager
def _command(inbox: Path) -> Generator[int]:
    """Yield the port of ``rbim callback serve``."""
    command = [sys.executable, "-c", "from rbim.cli import main; main()", "callback", "serve", "--port", "0"]
    environment = {**os.environ, "RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN}
    with subprocess.Popen(
        [*command, "--path", "/", "--inbox", str(inbox)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environment,
    ) as started:
        assert started.stdout is not None
        try:
            yield urlsplit(started.stdout.readline()).port or 0
        finally:
            started.kill()


def _together(port: int, numbers: Iterator[int], connections: int) -> tuple[float, float, float]:
    """Open all connections, each with a request; return the answered and the dropped ones, and the last answer's time."""
    requests = [message(next(numbers), groups=1000) for _ in range(connections)]
    began, last, answered = time.perf_counter(), 0.0, 0
    with selectors.DefaultSelector() as selector:
        for request in requests:
            with suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
                connection.sendall(request)
                selector.register(connection, selectors.EVENT_READ)
        while selector.get_map() and time.perf_counter() - began < PATIENCE:
            for key, _ in selector.select(1.0):
                with suppress(OSError):
                    if key.fileobj.recv(65536).startswith(b"HTTP/1.1 200"):  # type: ignore[union-attr]
                        answered, last = answered + 1, time.perf_counter() - began
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
    return answered, connections - answered, 1000 * last


if __name__ == "__main__":
    tell_time()
    asyncio.run(serve_app(receiver(SqliteInbox(Path(sys.argv[1]))), http="httptools", lifespan="on"))
