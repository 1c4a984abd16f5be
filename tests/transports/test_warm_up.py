"""After a warm-up, a first request makes no TLS context; the warm-up itself connects to nothing."""

import ssl

import pytest

from helpers.exchanges import ENOUGH, request
from helpers.transports import ASYNCIO, TRIO, class_of, each_transport
from rbim import NotSent
from rbim.testing.conformance.server import RawServer, authority, reply
from rbim.transports.auto import transport_named

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

EACH = each_transport(among=(ASYNCIO, TRIO))


@EACH
async def test_a_warm_up_connects_to_nothing_and_may_be_repeated(name):
    transport = transport_named(name)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not open: use it inside 'async with'"):
            await transport.warm_up()
        with RawServer(reply(b"{}")) as server:
            async with transport:
                for _ in range(2):
                    await transport.warm_up(server.url())
                assert server.accepted == 0
                await transport.send(request(server.url()), timeout=ENOUGH)
            assert server.accepted == 1


@EACH
async def test_a_warm_up_says_that_certificates_are_missing(name, tmp_path):
    async with type(transport_named(name))(verify=str(tmp_path / "missing.pem")) as transport:
        with pytest.raises(NotSent, match=r"No such file|missing\.pem"):
            await transport.warm_up()


@EACH
async def test_after_a_warm_up_no_request_makes_a_tls_context_and_none_is_made_for_origins_without_tls(name, monkeypatch):
    def refused(*_, **__):
        raise AssertionError

    context, kind = authority().of_a_server(), class_of(name)
    bundle = authority().trusted(bundle=True)
    with RawServer(reply(b"{}"), greet=lambda peer: peer.start_tls(context)) as secure:
        async with kind(**bundle) as transport, transport_named(name) as plain:
            await transport.warm_up(secure.url("https"))
            monkeypatch.setattr(ssl, "create_default_context", refused)
            await plain.warm_up("http://127.0.0.1:9")
            assert (await transport.send(request(secure.url("https")), timeout=ENOUGH)).body == b"{}"
