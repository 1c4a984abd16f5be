"""After a warm-up, a first request imports no module and makes no TLS context; the warm-up itself connects to nothing."""

import json
import ssl
import subprocess
import sys

import pytest

from helpers.exchanges import ENOUGH, request
from helpers.transports import ASYNCIO, LOOPS, TRANSPORTS, TRIO
from rbim import NotSent
from rbim.testing.conformance.server import RawServer, reply
from rbim.testing.conformance.suite import Conformance
from rbim.testing.conformance.tls import authority
from rbim.transports.asyncio.transport import AsyncioTransport
from rbim.transports.auto import transport_named

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

ON = [
    (name, loop) for name, (_, _, loops) in TRANSPORTS.items() for loop in loops if loop in LOOPS and loop in (ASYNCIO, TRIO)
]
EACH = pytest.mark.parametrize(("name", "anyio_backend"), [pytest.param(*each, id=" on ".join(each)) for each in ON])

FIRST = """
import json, ssl, sys
import anyio
from rbim.http import Request
from rbim.transports.auto import transport_named

async def main():
    warm, named = {warm!r}, transport_named({name!r})
    transport = type(named)(verify={bundle!r})
    async with transport:
        if warm:
            await transport.warm_up(*{origins!r})
        before, contexts, create = set(sys.modules), [], ssl.create_default_context
        ssl.create_default_context = lambda *args, **given: contexts.append(1) or create(*args, **given)
        for origin in {to!r}:
            sent = Request(origin=origin, path="/x", query={{"sig": "A"}}, headers={{"A": "b"}}, body=b"{{}}")
            assert (await transport.send(sent, timeout=10)).body == b"{{}}"
        print(json.dumps([sorted(set(sys.modules) - before), len(contexts)]))

anyio.run(main, backend={backend!r})
"""


def first(**given):
    """Return the modules that first requests import in a process of their own, and the number of TLS contexts made."""
    command = [sys.executable, "-W", "error", "-c", FIRST.format(**given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def servers():
    context = authority().of_a_server("localhost")
    with RawServer(reply(b"{}")) as plain, RawServer(reply(b"{}"), greet=lambda peer: peer.start_tls(context)) as secure:
        yield [
            server.url(scheme).replace("127.0.0.1", "localhost") for server, scheme in ((plain, "http"), (secure, "https"))
        ]


@EACH
def test_a_first_request_imports_nothing_after_a_warm_up(name, anyio_backend, servers):
    bundle = authority().trusted_by(Conformance(AsyncioTransport, bundle=True))["verify"]
    given = {"name": name, "backend": anyio_backend, "bundle": bundle, "to": servers}
    for origins in ([], servers):
        assert first(warm=True, origins=origins, **given) == [[], 0]


@pytest.mark.slow
@EACH
def test_a_first_request_imports_modules_without_a_warm_up(name, anyio_backend, servers):
    """What the test above compares with."""
    bundle = authority().trusted_by(Conformance(AsyncioTransport, bundle=True))["verify"]
    imported, contexts = first(warm=False, origins=[], name=name, backend=anyio_backend, bundle=bundle, to=servers)
    assert (contexts, bool(imported)) == (1, True)


@EACH
async def test_a_warm_up_connects_to_nothing_and_may_be_repeated(name):
    with RawServer(reply(b"{}")) as server:
        transport = transport_named(name)
        async with transport:
            for _ in range(2):
                await transport.warm_up(server.url())
            assert server.accepted == 0
            await transport.send(request(server.url()), timeout=ENOUGH)
        assert server.accepted == 1


@EACH
async def test_a_warm_up_needs_an_open_transport(name):
    transport = transport_named(name)
    with pytest.raises(RuntimeError, match="not open: use it inside 'async with'"):
        await transport.warm_up()
    async with transport:
        pass
    with pytest.raises(RuntimeError, match="not open"):
        await transport.warm_up()


@EACH
async def test_no_tls_is_prepared_for_origins_without_it(name, monkeypatch):
    def refused(*_, **__):
        raise AssertionError

    async with transport_named(name) as transport:
        monkeypatch.setattr(ssl, "create_default_context", refused)
        await transport.warm_up("http://127.0.0.1:9")


@EACH
async def test_a_warm_up_says_that_certificates_are_missing(name, tmp_path):
    async with type(transport_named(name))(verify=str(tmp_path / "missing.pem")) as transport:
        with pytest.raises(NotSent, match=r"No such file|missing\.pem"):
            await transport.warm_up()
