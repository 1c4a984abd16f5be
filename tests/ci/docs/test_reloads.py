"""The settings of docs/machines.md lose nothing: servers reload under a load of copies, and a job is stopped."""

import http.client
import importlib.util
import json
import re
import signal
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from helpers.credentials import APP_ID, CREDENTIALS, TOKEN
from helpers.job_commands import made_group
from helpers.pages import blocks_of
from helpers.processes import CLEAN, running, wait_until
from helpers.sockets import free_port, listens
from helpers_ci.proxies import HAPROXY, NGINX
from rbim import AsyncClient
from rbim.bulk import InviteJob
from rbim.callbacks import sign

GUNICORN = importlib.util.find_spec("gunicorn") and importlib.util.find_spec("uvicorn_worker")
BLOCKS = {(block.title, block.language): block.text for block in blocks_of("docs/machines.md")}
SERVICE = r"""
from contextlib import asynccontextmanager

from rbim.callbacks import Event, Receiver, SqliteInbox
from starlette.applications import Starlette
from starlette.routing import Route

receiver = Receiver.from_env(sink=SqliteInbox("events.db"))

@receiver.fallback
async def handled(event: Event) -> None:
    with open("handled.txt", "a", encoding="utf-8") as log:
        log.write(f"{event.msg_id}\n")

@asynccontextmanager
async def lifespan(app):
    async with receiver:
        yield

app = Starlette(routes=[Route("/copies", receiver.asgi, methods=["POST"])], lifespan=lifespan)
"""
ENOUGH = 20.0
SENDERS = 6
AROUND_NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000;
    {block}
}}
"""


@contextmanager
def started(*command, port, cwd, **environment):
    """Run a server until the block ends; then it has to end by itself."""
    with (cwd / "output.txt").open("a") as output:
        options = {"cwd": cwd, "env": CLEAN | environment, "stdout": output, "stderr": output, "patience": 20 * ENOUGH}
        with running(*command, **options) as process:
            wait_until(lambda: listens(port), ENOUGH)
            yield process
            process.terminate()
            process.wait(ENOUGH)


@contextmanager
def nginx(folder, *upstreams):
    assert NGINX, "CI must install nginx"
    port, block = free_port(), BLOCKS["nginx", "nginx"]
    lines = re.findall(r"    server 127\.0\.0\.1:8001.*\n", block)
    assert len(lines) == 3
    for line, upstream in zip(lines, [*upstreams, *upstreams, *upstreams], strict=False):
        block = block.replace(line, line.replace("8001", str(upstream)), 1)
    block = block.replace("listen 127.0.0.1:8000", f"listen 127.0.0.1:{port}")
    (folder / "nginx.conf").write_text(AROUND_NGINX.format(folder=folder, block=block))
    command = [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with started(*command, port=port, cwd=folder):
        yield port


@contextmanager
def haproxy(folder, upstream):
    assert HAPROXY, "CI must install haproxy"
    port = free_port()
    block = BLOCKS["HAProxy", "text"].replace("127.0.0.1:8001", f"127.0.0.1:{upstream}")
    (folder / "haproxy.cfg").write_text(block.replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
    with started(HAPROXY, "-db", "-f", str(folder / "haproxy.cfg"), port=port, cwd=folder):
        yield port


class Load:
    """Senders that post copies as the platform does in normal mode: each one once, over connections that they keep."""

    def __init__(self, port):
        self._port = port
        self._over = threading.Event()
        self.acknowledged, self.lost = [], []
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(SENDERS)]

    def _send(self, sender):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ENOUGH)
        number = 0
        while not self._over.is_set():
            number += 1
            name = f"{sender}-{number}"
            document = {"eventType": "1", "convType": "TEAM", "to": "g1", "fromAccount": f"{APP_ID}#1", "msgType": "TEXT"}
            body = json.dumps(document | {"body": "你好", "msgId": name}).encode()
            try:
                connection.request("POST", "/copies", body, sign(body, credentials=CREDENTIALS, now=datetime.now(UTC)))
                answer = connection.getresponse()
                answer.read()
            except OSError as error:
                self.lost.append((name, repr(error)))
                connection.close()
            else:
                if answer.status == 200:
                    self.acknowledged.append(name)
                else:
                    self.lost.append((name, answer.status))
            time.sleep(0.002)
        connection.close()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join(ENOUGH)

    def goes_on(self, copies):
        wanted = len(self.acknowledged) + len(self.lost) + copies
        wait_until(lambda: len(self.acknowledged) + len(self.lost) >= wanted, ENOUGH)


def handled(folder):
    path = folder / "handled.txt"
    return path.read_text().split() if path.exists() else []


def all_handled(folder, load):
    wait_until(lambda: set(load.acknowledged) <= set(handled(folder)), ENOUGH)
    assert len(handled(folder)) == len(set(handled(folder)))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "service.py").write_text(SERVICE, encoding="utf-8")
    return tmp_path


KNOWN = {"RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN}


@contextmanager
def gunicorn(folder, port):
    settings = BLOCKS["gunicorn", "python"].replace("127.0.0.1:8001", f"127.0.0.1:{port}")
    (folder / "gunicorn.conf.py").write_text(settings)
    command = BLOCKS["gunicorn", "console"].splitlines()[0].split()[2:]
    with started(sys.executable, "-m", "gunicorn", *command, port=port, cwd=folder, **KNOWN) as process:
        yield process


@contextmanager
def uvicorn(folder, port, **environment):
    command = BLOCKS["uvicorn", "console"].split()[2:]
    command[command.index("8001")] = str(port)
    with started(sys.executable, "-m", "uvicorn", *command, port=port, cwd=folder, **KNOWN | environment) as process:
        yield process


def stopped(process):
    process.terminate()
    process.wait(ENOUGH)


def workers_of(process):
    return set(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split())


def reload(process):
    before = workers_of(process)
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: not workers_of(process) & before, ENOUGH)


@pytest.mark.skipif(sys.platform != "linux", reason="the workers are read from /proc")
@pytest.mark.skipif(not (NGINX and HAPROXY), reason="nginx or haproxy is not installed")
@pytest.mark.skipif(not GUNICORN, reason="gunicorn is not installed")
@pytest.mark.parametrize("proxy", [nginx, haproxy])
def test_gunicorn_reloads_under_load_and_no_copy_is_lost(folder, proxy):
    backend = free_port()
    with gunicorn(folder, backend) as process, proxy(folder, backend) as port:
        with Load(port) as load:
            load.goes_on(50)
            for _ in range(3):
                reload(process)
                load.goes_on(50)
        assert load.lost == []
        all_handled(folder, load)


@pytest.mark.skipif(sys.platform == "win32", reason="the servers stop on signals")
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_instances_of_uvicorn_are_replaced_one_by_one_under_load_and_no_copy_is_lost(folder):
    ports = free_port(), free_port()
    with ExitStack() as stack:
        one, two = (stack.enter_context(uvicorn(folder, port)) for port in ports)
        port = stack.enter_context(nginx(folder, *ports))
        with Load(port) as load:
            load.goes_on(50)
            stopped(one)
            load.goes_on(50)
            stack.enter_context(uvicorn(folder, ports[0]))
            stopped(two)
            load.goes_on(50)
        assert load.lost == []
        all_handled(folder, load)


@pytest.mark.skipif(sys.platform == "win32", reason="the servers stop on signals")
def test_a_job_of_a_service_that_is_stopped_goes_on_with_the_next_one(platform, emulator, tmp_path):
    (tmp_path / "service.py").write_text(BLOCKS["A job in a service", "python"], encoding="utf-8")

    async def report():
        async with AsyncClient(base_url=platform["RBIM_BASE_URL"], credentials=emulator.credentials) as client:
            return (await InviteJob(client, journal=tmp_path / "invite.journal", chunk=1).report()).accounts

    given = {**platform, "GROUP": made_group(emulator)}
    port = free_port()
    with uvicorn(tmp_path, port, **given) as process:
        time.sleep(0.4)
        stopped(process)
    accounts = anyio.run(report)
    assert 0 < accounts.done < 150
    assert accounts.unknown == 0
    with uvicorn(tmp_path, port, **given):
        wait_until(lambda: anyio.run(report).done >= 150, ENOUGH, 0.1)
    accounts = anyio.run(report)
    assert (accounts.done, accounts.refused, accounts.unknown) == (150, 0, 0)
