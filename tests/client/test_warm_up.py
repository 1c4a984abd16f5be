"""After a warm-up the first call of an operation imports nothing and compiles nothing, over each transport."""

import json
import os
import subprocess
import sys

import pytest

from helpers.serving import served
from helpers.stubs import Stub, client_over
from helpers.transports import ASYNCIO, TRIO, each_transport
from rbim import ClientClosed
from rbim.emulator import Emulator
from rbim.operations import catalogue

FIRST = """
import asyncio, json, sys
from rbim import AsyncClient, GroupType

async def main():
    async with AsyncClient.from_env(transport=sys.argv[1]) as client:
        if sys.argv[3] == "warm":
            await client.warm_up()
        before, compiled = set(sys.modules), len(client._shared.codec._plans)
        group = await client.groups.create(name="g", type=GroupType.VIP)
        await client.groups.invite(group_id=group.group_id, members=["1001"])
        assert (await client.groups.detail(group_id=group.group_id)).count == 2
        await client.groups.search(name="g")
        print(json.dumps([sorted(set(sys.modules) - before), len(client._shared.codec._plans) - compiled]))

if sys.argv[2] == "trio":
    import trio
    trio.run(main)
else:
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def environment():
    emulator = Emulator()
    with served(emulator.asgi) as url:
        clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        credentials = emulator.credentials
        yield clean | {
            "RBIM_BASE_URL": url,
            "RBIM_APP_ID": credentials.app_id,
            "RBIM_APP_TOKEN": credentials.app_token.reveal(),
        }


def first(environment, name, backend, kind):
    """Return what the first calls import and compile, in a process of their own."""
    command = [sys.executable, "-W", "error", "-c", FIRST, name, backend, kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.ci
@each_transport(among=(ASYNCIO, TRIO))
def test_first_calls_import_and_compile_nothing(environment, name, anyio_backend):
    assert first(environment, name, anyio_backend, "warm") == [[], 0]


@pytest.mark.ci
def test_without_it_first_calls_import_and_compile(environment):
    """What the test above compares with."""
    imported, compiled = first(environment, "httpx", "asyncio", "cold")
    assert len(imported) > 10
    assert compiled == 4


async def test_every_operation_is_prepared_without_a_request():
    stub = Stub()
    async with client_over(stub) as client:
        await client.warm_up()
        await client.warm_up()
        assert set(client._shared.codec._plans) >= {entry.operation for entry in catalogue.entries()}
    assert stub.requests == []


async def test_only_an_open_client_is_warmed_up():
    client = client_over(Stub())
    with pytest.raises(ClientClosed, match="not open"):
        await client.warm_up()
