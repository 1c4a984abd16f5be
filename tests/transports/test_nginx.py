"""A real nginx that reloads its configuration under load: no outcome is false. Skipped without nginx, but not in CI."""

import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import anyio
import pytest
from anyio import create_task_group

from helpers.transports import LOOPS, TRANSPORTS
from rbim import NotSent, Unanswered
from rbim.http import Request

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
RELOADS, WORKERS = 5, 10

CONFIGURATION = """
daemon off;
worker_processes 2;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    log_format number '$http_x_number';
    access_log {folder}/access.log number;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000;
    server {{
        listen 127.0.0.1:{port};
        location / {{ return 200 $http_x_number; }}
    }}
}}
"""

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="nginx reloads on a signal"),
    pytest.mark.skipif(NGINX is None and not os.environ.get("CI"), reason="nginx is not installed"),
    pytest.mark.usefixtures("no_proxy_of_this_machine"),
]


@pytest.fixture
def nginx(tmp_path):
    """A running nginx: its process, its origin, and a function that returns the numbers of the requests it has answered."""
    assert NGINX, "CI must install nginx"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "nginx.conf").write_text(CONFIGURATION.format(folder=tmp_path, port=port))
    with subprocess.Popen(
        [NGINX, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "error.log")]
    ) as process:
        try:
            until = time.monotonic() + 10
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert time.monotonic() < until, "nginx does not listen"
            yield process, f"http://127.0.0.1:{port}", lambda: (tmp_path / "access.log").read_text().split()
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("module", "anyio_backend"),
    [(module, loops[0]) for module, (_, _, loops) in TRANSPORTS.items() if loops[0] in LOOPS],
)
async def test_nginx_reloads_under_load(module, nginx):
    process, origin, logged = nginx
    transport = getattr(importlib.import_module(f"rbim.transports.{module}"), TRANSPORTS[module][0])()
    answered, unanswered, unsent = set(), set(), set()
    over = anyio.Event()

    async def calls(worker):
        number = 0
        while not over.is_set():
            number += 1
            name = f"{worker}-{number}"
            sent = Request(origin=origin, path="/", headers={"X-Number": name}, body=b"{}", repeatable=False)
            try:
                assert (await transport.send(sent, timeout=10)).body == name.encode()
            except Unanswered:
                unanswered.add(name)
            except NotSent:
                unsent.add(name)
            else:
                answered.add(name)
            await anyio.sleep(0.001)

    async with transport, create_task_group() as tasks:
        for worker in range(WORKERS):
            tasks.start_soon(calls, worker)
        for _ in range(RELOADS):
            before = len(answered)
            process.send_signal(signal.SIGHUP)
            while len(answered) < before + 20 * WORKERS:
                await anyio.sleep(0.01)
        over.set()
    process.terminate()
    process.wait(10)
    read = logged()
    assert len(read) == len(set(read)), "a request was sent twice"
    assert answered <= set(read)
    assert not unsent
    assert len(unanswered) <= RELOADS * WORKERS  # at most the connections that were closed
