"""One transport under many clients: opened by the first one, closed by the last one, and each client has its own limits."""

import gc
import ssl
import threading

import anyio
import pytest
from anyio import create_task_group, to_thread

from helpers.exchanges import ENOUGH, became, failure, is_left, request
from helpers.transports import ASYNCIO, TRIO, class_of, each_transport
from rbim import AsyncClient, ClientClosed, Credentials, Limits, NotSent, Outcome, Retry
from rbim.operations.groups import QueryGroupDetail
from rbim.testing.conformance.server import RawServer, authority, reply
from rbim.transports._shared.base import BaseTransport
from rbim.transports.auto import transport_named

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

READ = QueryGroupDetail(group_id="g1")
ANSWER = reply(b'{"statusCode":"000000","data":{"groupId":"g1","name":"n"}}')
EACH = each_transport(among=(ASYNCIO, TRIO))


def client(transport, server, **options):
    return AsyncClient(
        base_url=server.url(),
        credentials=Credentials(app_id="a", app_token="t"),
        transport=transport,
        retry=Retry(attempts=1),
        **options,
    )


class Held:
    """A server's script that answers when it may, and counts the requests it has."""

    def __init__(self):
        self.may_answer = threading.Event()

    def __call__(self, peer, _):
        self.may_answer.wait(ENOUGH)
        peer.send(ANSWER)


@EACH
@pytest.mark.parametrize("leaves", [0, pytest.param(1, marks=pytest.mark.ci)], ids=["the first one", "the second one"])
async def test_a_client_that_leaves_ends_its_own_calls_and_no_others(name, leaves):
    outcomes, held = {}, Held()

    async def call(each, which):
        try:
            outcomes[which] = (await each.exchange(READ)).response.status
        except ClientClosed as error:
            outcomes[which] = error.outcome

    transport = transport_named(name)
    with RawServer(held) as server:
        clients = [client(transport, server) for _ in range(2)]
        for each in clients:
            await each.__aenter__()
        async with create_task_group() as tasks:
            for which, each in enumerate(clients):
                tasks.start_soon(call, each, which)
            assert await became(server, lambda server: len(server.requests) == 2)
            with anyio.fail_after(ENOUGH / 2):
                await clients[leaves].__aexit__(None, None, None)
            await anyio.sleep(0)
            assert outcomes == {leaves: Outcome.UNKNOWN}
            held.may_answer.set()
        assert outcomes == {leaves: Outcome.UNKNOWN, 1 - leaves: 200}
        assert (await clients[1 - leaves].exchange(READ)).response.status == 200
        await clients[1 - leaves].__aexit__(None, None, None)
        assert await is_left(server)
        assert await failure(transport, request(server.url())) is NotSent
    gc.collect()  # an open session or socket warns


@EACH
async def test_each_client_keeps_its_own_limits(name):
    held, transport = Held(), transport_named(name)
    with RawServer(held) as server:
        async with (
            client(transport, server, limits=Limits(concurrency=1)) as one,
            client(transport, server, limits=Limits(concurrency=2)) as two,
            create_task_group() as tasks,
        ):
            for each in (one, one, two, two, two):
                tasks.start_soon(each.send, READ)
            assert await became(server, lambda server: len(server.requests) == 3)
            await anyio.sleep(0.02)
            assert [(each.load.in_flight, each.load.waiting) for each in (one, two)] == [(1, 1), (2, 1)]
            assert len(server.requests) == 3
            held.may_answer.set()


@EACH
async def test_sockets_and_tls_are_made_once_for_all_clients(name, monkeypatch):
    contexts, handshakes = [], []
    create = ssl.create_default_context

    def counted(*args, **given):
        contexts.append(1)
        return create(*args, **given)

    monkeypatch.setattr(ssl, "create_default_context", counted)
    context = authority().of_a_server()

    def greet(peer):
        peer.start_tls(context)
        handshakes.append(peer)

    kind = class_of(name)
    transport = kind(**authority().trusted(bundle=True))
    with RawServer(ANSWER, greet=greet) as server:
        clients = [
            AsyncClient(
                base_url=server.url("https"), credentials=Credentials(app_id=f"a{n}", app_token="t"), transport=transport
            )
            for n in range(20)
        ]
        for each in clients:
            await each.__aenter__()
        for each in clients:
            await each.send(READ)
        for each in clients:
            await each.__aexit__(None, None, None)
        assert await is_left(server)
    assert (server.accepted, len(handshakes), len(server.requests)) == (1, 1, 20)
    assert len(contexts) == 1


@EACH
async def test_an_event_loop_of_another_thread_is_refused_until_all_have_left(name, anyio_backend):
    transport = transport_named(name)

    async def enters():
        async with transport:
            return True

    def elsewhere():
        return anyio.run(enters, backend=anyio_backend)

    async with transport:
        with pytest.raises(RuntimeError, match="open in another event loop: use one transport per event loop"):
            await to_thread.run_sync(elsewhere)
        async with transport:
            pass
    assert await to_thread.run_sync(elsewhere)


# Entering and leaving at the same moment, failing, cancelled.


class Counted(BaseTransport):
    """Opens and closes in steps; counts how often, and how often it was open."""

    def __init__(self, *opens, steps=3):
        super().__init__()
        self.opens = [*opens]
        self.steps = steps
        self.opened = self.closed = self.began = 0
        self.is_open = False

    async def _open(self):
        assert not self.is_open
        self.began += 1
        for _ in range(self.steps):
            await anyio.lowlevel.checkpoint()
        if self.opens and (error := self.opens.pop(0)):
            raise error
        self.opened += 1
        self.is_open = True

    async def _close(self, *_):
        assert self.is_open
        self.is_open = False
        for _ in range(self.steps):
            await anyio.lowlevel.checkpoint()
        self.closed += 1


async def test_of_many_that_enter_at_the_same_moment_one_opens():
    transport, inside = Counted(), []

    async def use():
        async with transport:
            inside.append(transport.is_open)
            await anyio.sleep(0.01)
            inside.append(transport.is_open)

    async with create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(use)
    assert inside == [True] * 20
    assert (transport.began, transport.opened, transport.closed) == (1, 1, 1)


async def test_where_opening_fails_the_next_one_tries():
    transport, ends = Counted(OSError("no file")), []

    async def use():
        try:
            async with transport:
                ends.append(transport.is_open)
                await anyio.sleep(0.01)
        except OSError as error:
            ends.append(str(error))

    async with create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(use)
    assert sorted(ends, key=str) == [True, True, "no file"]
    assert (transport.began, transport.opened, transport.closed) == (2, 1, 1)


@pytest.mark.parametrize("cancelled", ["who opens", "who waits"])
async def test_a_cancellation_in_entering_hurts_no_other_one(cancelled):
    transport, inside, scopes = Counted(), [], []

    async def use():
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            async with transport:
                inside.append(transport.is_open)

    async with create_task_group() as tasks:
        tasks.start_soon(use)
        tasks.start_soon(use)
        while not (transport.began and len(scopes) == 2):
            await anyio.lowlevel.checkpoint()
        scopes[0 if transport.began == 1 and cancelled == "who opens" else 1].cancel()
    assert inside == [True]
    assert transport.opened == transport.closed == 1


async def test_who_enters_while_the_last_one_leaves_opens_it_anew():
    transport, inside = Counted(steps=5), []

    async def use():
        async with transport:
            inside.append(transport.is_open)

    async with create_task_group() as tasks:
        async with transport:
            pass  # the transport closes in steps
        tasks.start_soon(use)
        await transport.__aenter__()
        tasks.start_soon(transport.__aexit__, None, None, None)
    assert inside == [True]
    assert not transport.is_open
    assert transport.opened == transport.closed
