"""The cost of a client for each tenant: each client with a transport of its own, or all with one.

Run: python -m benchmarks tenants

Each row is a process of its own, with clients of the default transport. A server in another process speaks TLS, and the
clients trust certifi's certificates and its own, as a service that calls a public host does. Memory is what the process has
grown by after each client has sent one call, ten clients at a time, while all are open. Linux only.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.certificates import certificates
from benchmarks.httpload import ROOT, process
from benchmarks.results import Goal, Options, Result, Table
from benchmarks.target import Target

__all__ = ["run"]

MODULE = "benchmarks.tenants"
CLIENTS = (1, 50, 200, 1000)
QUICK = (1, 5)
AT_ONCE = 10
KIB = 1024


async def serve(certificate: str) -> None:
    """Serve TLS on a free port until killed; print the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Target, "127.0.0.1", 0, backlog=4096, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def resident() -> float:
    """Return the resident memory of this process, in KiB."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / KIB


def enough_files(number: int) -> None:
    """Raise the limit of open files for ``number`` connections, if allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted if hard < 0 else min(wanted, hard)), hard))


def sockets() -> int:
    """Return the number of open sockets of this process."""
    links = (path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum(str(link).startswith("socket:") for link in links)


def contexts() -> int:
    """Return the number of TLS contexts of this process."""
    return sum(isinstance(each, ssl.SSLContext) for each in gc.get_objects())


async def figures(number: int, port: int, bundle: str, *, shared: bool) -> dict[str, float]:
    """Return the figures of this process with so many clients."""
    from rbim import AsyncClient, Credentials, QueryGroupDetail
    from rbim.transports.httpx import HttpxTransport

    op = QueryGroupDetail(group_id="g80000049837291")
    enough_files(number)
    async with HttpxTransport() as warm:
        await warm.warm_up("http://127.0.0.1")
    of_all = HttpxTransport(verify=bundle, trust_env=False)
    size, opened, made = resident(), sockets(), contexts()
    began = time.perf_counter()
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                AsyncClient(
                    base_url=f"https://127.0.0.1:{port}",
                    credentials=Credentials(app_id=f"app-{each}", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"),
                    transport=of_all if shared else HttpxTransport(verify=bundle, trust_env=False),
                )
            )
            for each in range(number)
        ]
        ready = time.perf_counter()
        for first in range(0, number, AT_ONCE):
            async with asyncio.TaskGroup() as tasks:
                for client in clients[first : first + AT_ONCE]:
                    tasks.create_task(client.send(op))
        called = time.perf_counter()
        return {
            "memory": (resident() - size) / KIB,
            "sockets": sockets() - opened,
            "contexts": contexts() - made,
            "ready": ready - began,
            "called": called - ready,
        }


def child(number: int, port: int, bundle: str, *, shared: bool) -> dict[str, float]:
    """Return the figures of a new process with so many clients."""
    command = [sys.executable, "-m", MODULE, str(number), str(port), bundle, "shared" if shared else "own"]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
    return found


def measured(numbers: tuple[int, ...]) -> Result:
    """Measure these numbers of clients, with transports of their own and with one transport."""
    import certifi

    rows: list[tuple[str | float | None, ...]] = []
    with certificates() as made, tempfile.NamedTemporaryFile("w", suffix=".pem", encoding="ascii") as bundle:
        bundle.write(Path(certifi.where()).read_text(encoding="utf-8").encode("ascii", "ignore").decode())
        bundle.write(Path(made.ca).read_text(encoding="ascii"))
        bundle.flush()
        with process(MODULE, made.server) as server:
            for shared in (False, True):
                for number in numbers:
                    found = child(number, server.port, bundle.name, shared=shared)
                    how = "one transport" if shared else "a transport each"
                    rows.append((f"{number:,} {'client' if number == 1 else 'clients'}, {how}", *found.values()))
    most, least = rows[len(numbers) - 1], rows[-1]
    return Result(
        part="tenants",
        tables=(
            Table(
                title="Tenants: what clients over TLS add to a process",
                columns=("", "MiB", "sockets", "TLS contexts", "s to make and enter", "s for a call of each"),
                rows=tuple(rows),
                digits=2,
            ),
        ),
        goals=(
            Goal(name="memory, one transport / a transport each", value=_ratio(least[1], most[1]), at_most=0.5),
            Goal(name="TLS contexts of all clients over one transport", value=float(least[3] or 0), at_most=1),
        ),
    )


def _ratio(ours: str | float | None, theirs: str | float | None) -> float:
    return float(ours or 0) / max(float(theirs or 0), 0.01)


def run(options: Options) -> Result:
    """Measure tenants, as one part of the benchmarks."""
    return measured(QUICK if options.quick else CLIENTS)


if __name__ == "__main__":
    if len(sys.argv) == 2:  # noqa: PLR2004  # a certificate
        asyncio.run(serve(sys.argv[1]))
    else:
        _, number, port, bundle, how = sys.argv
        print(json.dumps(asyncio.run(figures(int(number), int(port), bundle, shared=how == "shared"))))
