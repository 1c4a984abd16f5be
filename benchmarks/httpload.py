"""Shared parts of the server benchmarks: servers in their own processes, and a client that handles only bytes."""

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
    from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping

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
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []  # before any limit


class Client:
    """One connection that sends the next request when its answer is complete."""

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
        """Read the available bytes, and return whether the answer is complete."""
        data = self.socket.recv(65536)
        assert data, "the server closed the connection"
        self._buffer += data
        head, blank, body = self._buffer.partition(b"\r\n\r\n")
        if not blank or len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return False
        assert head.startswith(b"HTTP/1.1 200"), head
        self.waits.append(time.perf_counter() - self._asked)
        self.sample, self._buffer = body, b""
        return True


class Measured:
    """The result of one turn: ``count`` answers in ``seconds``, the sorted ``waits``, and the last body as ``sample``."""

    def __init__(self, clients: list[Client], seconds: float) -> None:
        self.seconds = seconds
        self.waits = sorted(wait for client in clients for wait in client.waits)
        self.count = len(self.waits)
        self.rate = self.count / seconds
        self.sample = clients[0].sample
        self.cpu = 0.0

    def wait(self, share: float) -> float:
        """Return the quantile ``share`` of the waits, in seconds."""
        return self.waits[min(self.count - 1, int(self.count * share))]


def load(port: int, requests: Iterator[bytes], seconds: float, connections: int) -> Measured:
    """Send requests for ``seconds`` over ``connections``, with little work: the server must be the bottleneck."""
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
    """Answer each line on standard input with the CPU seconds of this process so far, in a separate thread."""

    def answer() -> None:
        for _ in sys.stdin:
            print(time.process_time(), flush=True)

    threading.Thread(target=answer, daemon=True).start()


def constant(length: int) -> Callable[..., Awaitable[None]]:
    """Return an ASGI application that answers each request with ``length`` bytes."""
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
    """Serve an ASGI application on a free port until killed; print the port."""
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
    """Run this process on only one core, if the system can do that."""
    if CORES:
        os.sched_setaffinity(0, {CORES[number % len(CORES)]})


@contextmanager
def on_cores(*numbers: int) -> Generator[None]:
    """Run a block on some cores only, if the system can do that; without numbers, on all cores that the process had."""
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
    """A server in its own process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._answers, self._questions = cast(IO[str], process.stdout), cast(IO[str], process.stdin)
        port = self._answers.readline()
        if not port:
            raise RuntimeError("a server did not start: see its message on standard error")
        self.port = int(port)

    def ask(self, line: str = "") -> str:
        """Write a line to the process, and return the line that it answers."""
        self._questions.write(f"{line}\n")
        self._questions.flush()
        return self._answers.readline().strip()

    @property
    def cpu(self) -> float:
        """The CPU time of the server so far, in seconds."""
        return float(self.ask())

    def turn(self, requests: Iterator[bytes], seconds: float, connections: int) -> Measured:
        """Load the server; the result also has the CPU seconds of the server per answer."""
        before = self.cpu
        measured = load(self.port, requests, seconds, connections)
        measured.cpu = (self.cpu - before) / measured.count
        return measured


@contextmanager
def process(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Generator[Served]:
    """Yield a server, a module of the benchmarks, that ends with the block. It may use all cores.

    ``environment`` has variables besides those of this process.
    """
    command = [sys.executable, "-m", module, *arguments]
    with on_cores():  # a child inherits it
        started = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
    with started:
        try:
            yield Served(started)
        finally:
            started.kill()
