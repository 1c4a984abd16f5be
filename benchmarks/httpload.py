"""What the benchmarks of servers share: servers in processes of their own, and a client that knows nothing but bytes."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator

__all__ = [
    "ROOT",
    "Client",
    "Measured",
    "Served",
    "constant",
    "keep_to_core",
    "load",
    "on_cores",
    "process",
    "serve_app",
    "tell_time",
]

ROOT = Path(__file__).resolve().parent.parent
"""The repository's folder: the working directory of every child process."""

IDLE = 75  # seconds after which a connection without requests is closed
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []  # before any of it is given up


class Client:
    """One connection that asks the next thing as soon as it is answered."""

    def __init__(self, port: int, requests: Iterator[bytes]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests = requests
        self.waits: list[float] = []
        self.sample = b""
        self._buffer = b""

    def ask(self) -> bool:
        """Send the next request, if there is one."""
        request = next(self.requests, None)
        if request is None:
            return False
        self._asked = time.perf_counter()
        self.socket.sendall(request)
        return True

    def answered(self) -> bool:
        """Read what there is, and tell whether the answer is whole."""
        data = self.socket.recv(65536)
        assert data, "the server hung up"
        self._buffer += data
        head, blank, body = self._buffer.partition(b"\r\n\r\n")
        if not blank or len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return False
        assert head.startswith(b"HTTP/1.1 200"), head
        self.waits.append(time.perf_counter() - self._asked)
        self.sample, self._buffer = body, b""
        return True


class Measured:
    """What came of one turn: ``count`` answers in ``seconds``, ``waits`` for each in order of size, the last ``sample``."""

    def __init__(self, clients: list[Client], seconds: float) -> None:
        self.seconds = seconds
        self.waits = sorted(wait for client in clients for wait in client.waits)
        self.count = len(self.waits)
        self.rate = self.count / seconds
        self.sample = clients[0].sample
        self.cpu = 0.0

    def wait(self, share: float) -> float:
        """Return the wait that so great a share of the answers did not exceed, in seconds."""
        return self.waits[min(self.count - 1, int(self.count * share))]


def load(port: int, requests: Iterator[bytes], seconds: float, connections: int) -> Measured:
    """Ask for so many seconds over so many connections, with as little work as can be: the server is to be the slow one."""
    clients = [Client(port, requests) for _ in range(connections)]
    began = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.ask()
        open_ones = connections
        while open_ones:
            for key, _ in selector.select():
                client = key.data
                if client.answered() and (time.perf_counter() - began > seconds or not client.ask()):
                    selector.unregister(client.socket)
                    client.socket.close()
                    open_ones -= 1
    return Measured(clients, time.perf_counter() - began)


def tell_time() -> None:
    """Answer each line on standard input with the CPU time of this process so far, in a thread of its own."""

    def answer() -> None:
        for _ in sys.stdin:
            print(time.process_time(), flush=True)

    threading.Thread(target=answer, daemon=True).start()


def constant(length: int) -> Callable[..., Awaitable[None]]:
    """Return an ASGI application that reads a request and answers so many bytes."""
    start = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", b"application/json;charset=utf-8"), (b"content-length", str(length).encode())],
    }
    body = {"type": "http.response.body", "body": b" " * length}

    async def app(_scope: object, _receive: object, send: Callable[..., Awaitable[None]]) -> None:
        await send(start)
        await send(body)

    return app


async def serve_app(app: Any, *, http: Literal["h11", "httptools"] = "h11", lifespan: Literal["on", "off"] = "off") -> None:
    """Serve an ASGI application on a free port, which is printed, until killed."""
    from uvicorn import Config, Server

    config = Config(
        app,
        http=http,
        interface="asgi3",
        lifespan=lifespan,
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=IDLE,
    )
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen(1024)
        print(bound.getsockname()[1], flush=True)
        await Server(config).serve(sockets=[bound])


def keep_to_core(number: int) -> None:
    """Run this process on one core only, where the system can do that."""
    if CORES:
        os.sched_setaffinity(0, {CORES[number % len(CORES)]})


@contextmanager
def on_cores(*numbers: int) -> Generator[None]:
    """Run a block on some cores only, where the system can do that; without numbers, on all that this process began with."""
    if not CORES:
        yield
        return
    kept = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CORES[number % len(CORES)] for number in numbers} or CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, kept)


class Served:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._told, self._asked = cast(IO[str], process.stdout), cast(IO[str], process.stdin)
        port = self._told.readline()
        if not port:
            raise RuntimeError("a server did not start; it has said why on standard error")
        self.port = int(port)

    def ask(self, line: str = "") -> str:
        """Write a line to the process, and return the one that it answers."""
        self._asked.write(f"{line}\n")
        self._asked.flush()
        return self._told.readline().strip()

    @property
    def cpu(self) -> float:
        """Its CPU time so far, in seconds."""
        return float(self.ask())

    def turn(self, requests: Iterator[bytes], seconds: float, connections: int) -> Measured:
        """Load it, and tell also the CPU seconds of the server for each answer."""
        before = self.cpu
        measured = load(self.port, requests, seconds, connections)
        measured.cpu = (self.cpu - before) / measured.count
        return measured


@contextmanager
def process(module: str, *arguments: str) -> Generator[Served]:
    """Give a server that ends with the block: a module of the benchmarks, on any core, whatever this process keeps to."""
    command = [sys.executable, "-m", module, *arguments]
    with on_cores():  # a child inherits it
        started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with started:
        try:
            yield Served(started)
        finally:
            started.kill()
