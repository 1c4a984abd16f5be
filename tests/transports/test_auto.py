"""The transport that chooses: asyncio's where it can serve, httpx's otherwise."""

import ssl
import subprocess
import sys

import anyio
import certifi
import pytest

from helpers.exchanges import ENOUGH, request
from helpers.transports import ASYNCIO, TRIO, UVLOOP
from rbim import AsyncClient, Credentials, InvalidRequest, NotSent
from rbim.testing.conformance.server import RawServer, reply
from rbim.transports._shared.network import tls_context
from rbim.transports.auto import AutoTransport

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")
NO_UVLOOP = pytest.mark.skipif(sys.platform == "win32", reason="no uvloop")
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", [ASYNCIO])


async def choice(**options):
    async with AutoTransport(**options) as transport:
        return type(transport.chosen).__name__


@pytest.mark.parametrize(
    ("anyio_backend", "name"),
    [
        (ASYNCIO, "AsyncioTransport"),
        pytest.param(UVLOOP, "AsyncioTransport", marks=[pytest.mark.ci, NO_UVLOOP]),
        (TRIO, "HttpxTransport"),
    ],
)
async def test_the_event_loop_decides(name):
    assert await choice() == name


CHOICES = [
    ({"proxy": "http://127.0.0.1:1"}, {}, "AsyncioTransport"),
    ({"proxy": "127.0.0.1:1"}, {}, "AsyncioTransport"),
    ({"proxy": "https://127.0.0.1:1"}, {}, "HttpxTransport"),
    ({"proxy": "socks5://127.0.0.1:1"}, {}, "HttpxTransport"),
    ({}, {"HTTPS_PROXY": "http://127.0.0.1:1"}, "AsyncioTransport"),
    ({}, {"HTTPS_PROXY": "https://127.0.0.1:1"}, "HttpxTransport"),
    ({}, {"ALL_PROXY": "socks5://127.0.0.1:1"}, "HttpxTransport"),
    ({}, {"FTP_PROXY": "socks5://127.0.0.1:1"}, "AsyncioTransport"),
    ({"trust_env": False}, {"ALL_PROXY": "socks5://127.0.0.1:1"}, "AsyncioTransport"),
    ({"proxy": "http://127.0.0.1:1"}, {"ALL_PROXY": "socks5://127.0.0.1:1"}, "AsyncioTransport"),
]


@ON_ASYNCIO
async def test_the_proxy_decides(monkeypatch):
    for options, environment, name in CHOICES:
        with monkeypatch.context() as patched:
            for variable, address in environment.items():
                patched.setenv(variable, address)
            assert await choice(**options) == name, (options, environment)


@pytest.mark.skipif(sys.platform == "win32", reason="no UNIX sockets")
@ON_ASYNCIO
async def test_behind_a_unix_socket_no_proxy_decides(monkeypatch, tmp_path):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    assert await choice(uds=str(tmp_path / "s")) == "AsyncioTransport"


@pytest.mark.ci
def test_without_a_parser_it_is_httpx():
    program = """
import sys
sys.modules["httptools"] = sys.modules["rbim.transports.asyncio.h11_parser"] = None
import asyncio
from rbim.transports.auto import AutoTransport

async def main():
    async with AutoTransport() as transport:
        print(type(transport.chosen).__name__)

asyncio.run(main())
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (told.stdout, told.stderr) == ("HttpxTransport\n", "")


async def test_it_serves_a_client_and_nobody_before_it_is_entered():
    with RawServer(reply(b'{"statusCode":"000000","groupId":"g1"}')) as server:
        transport = AutoTransport()
        with pytest.raises(NotSent, match="not open"):
            await transport.send(request(server.url()), timeout=ENOUGH)
        async with (
            AsyncClient(
                base_url=server.url(), credentials=Credentials(app_id="a1", app_token="t1"), transport=transport
            ) as client,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(3):
                tasks.start_soon(lambda: client.groups.leave(group_id="g1"))
    assert len(server.requests) == 3


def test_a_client_takes_the_name_of_a_transport_and_has_httpxs_by_default():
    def transport_of(**options):
        client = AsyncClient(base_url="http://x", credentials=Credentials(app_id="a1", app_token="t1"), **options)
        return type(client._shared.transport).__name__

    assert transport_of() == "HttpxTransport"
    assert transport_of(transport="auto") == "AutoTransport"
    assert transport_of(transport="asyncio") == "AsyncioTransport"
    with pytest.raises(InvalidRequest, match="'htpx' is not a transport; known are auto, httpx") as raised:
        transport_of(transport="htpx")
    assert raised.value.field == "transport"


def test_a_machine_without_certificates_uses_those_of_certifi(monkeypatch, tmp_path):
    nothing = ssl.DefaultVerifyPaths(None, str(tmp_path), "", "", "", "")
    wanted = ssl.create_default_context(cafile=certifi.where()).cert_store_stats()["x509_ca"]
    with monkeypatch.context() as patch:
        patch.setattr(ssl, "get_default_verify_paths", lambda: nothing)
        patch.setattr(sys, "platform", "linux")
        assert tls_context(verify=True, cert=None).cert_store_stats()["x509_ca"] == wanted > 10
        patch.setitem(sys.modules, "certifi", None)
        tls_context(verify=True, cert=None)
