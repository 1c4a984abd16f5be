"""A receiver inside the applications of other frameworks."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime

import anyio
import pytest
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount, Route

from helpers.credentials import CREDENTIALS
from helpers.receiving_asgi import SOON, TINY, Server, Sink, call, content, scope_of, signed
from rbim import Credentials
from rbim.callbacks import Receiver, SqliteInbox, sign

# ---------------------------------------------------------------------------------------- in frameworks


async def plainly(request, call_next):
    return await call_next(request)


def lifespan_of(*receivers):
    @asynccontextmanager
    async def lifespan(_):
        async with anyio.create_task_group():
            for receiver in receivers:
                await receiver.__aenter__()
            yield
            for receiver in reversed(receivers):
                await receiver.__aexit__(None, None, None)

    return lifespan


def starlette_route(receiver, *middleware):
    routes = [Route("/copies", receiver.asgi, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan_of(receiver), middleware=middleware), "/copies"


def starlette_mount(receiver, *middleware):
    routes = [Mount("/copies", receiver.asgi)]
    return Starlette(routes=routes, lifespan=lifespan_of(receiver), middleware=middleware), "/copies/x"


def starlette_base(receiver):
    return starlette_route(receiver, Middleware(BaseHTTPMiddleware, dispatch=plainly))


def starlette_base_twice(receiver):
    twice = [Middleware(BaseHTTPMiddleware, dispatch=plainly)] * 2
    return starlette_mount(receiver, *twice)


def starlette_gzip(receiver):
    return starlette_route(receiver, Middleware(GZipMiddleware))


WAYS = [
    starlette_route,
    starlette_mount,
    starlette_base,
    starlette_base_twice,
    starlette_gzip,
]


@pytest.mark.parametrize("way", WAYS)
async def test_it_answers_the_same_wherever_it_is_mounted(sink, way):
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, budget=0.5)
    app, path = way(receiver)
    body = content()
    async with Server.of(app) as server:
        assert (await server.say("startup"))["type"] == "lifespan.startup.complete"
        assert sink.entered == 1

        async def status_and_body(*parts, **options):
            with anyio.fail_after(5):
                answer = (await call(app, *parts, path=path, **options)).answer
            return None if answer is None else (answer[0], answer[2])

        assert await status_and_body(body) == (200, b"")
        assert await status_and_body(*(body[at : at + 40] for at in range(0, len(body), 40))) == (200, b"")
        assert await status_and_body(body, headers=signed(body) | {"accept-encoding": "gzip"}) == (200, b"")
        assert (await status_and_body(body, headers={}))[0] == 401
        assert await status_and_body(body, headers=[*signed(body).items(), *signed(body).items()]) == (401, TINY)
        assert await status_and_body(*[b"x" * 65536] * 40) == (413, TINY)
        assert await status_and_body(body, headers=signed(body) | {"content-encoding": "gzip"}) == (415, TINY)
        assert await status_and_body(body[:9], headers=signed(body), then="hang", whole=False) == (400, TINY)
        assert (await status_and_body(body, method="GET"))[0] == 405
        assert await status_and_body(body) == (200, b"")
        assert (await server.say("shutdown"))["type"] == "lifespan.shutdown.complete"
    assert sink.entered == 0
    assert sink.bodies == [body] * 4


@pytest.mark.parametrize("way", [starlette_base, starlette_base_twice])
async def test_a_body_that_drips_through_middleware_ends_with_the_budget(sink, way):
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, budget=SOON)
    app, path = way(receiver)

    async def drip():
        await checkpoint()
        return {"type": "http.request", "body": b"", "more_body": True}

    async def one():
        sent = []

        async def send(message):
            sent.append(message)

        await app(scope_of(path=path), drip, send)
        statuses.append(sent[0]["status"])

    statuses = []
    async with Server.of(app) as server:
        await server.say("startup")
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(one)
        await server.say("shutdown")
    assert statuses == [400] * 20


async def test_several_receivers_live_in_one_app(tmp_path):
    other = Credentials(app_id="b" * 32, app_token="c" * 32)
    first = Receiver(credentials=CREDENTIALS, sink=Sink())
    second = Receiver(credentials=other, sink=Sink(), mode="high-guarantee")
    third = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "events.db"))
    routes = [Route("/1", first.asgi, methods=["POST"]), Mount("/2", second.asgi), Mount("/3", third.asgi)]
    app = Starlette(routes=routes, lifespan=lifespan_of(first, second, third))
    body = content()
    async with Server.of(app) as server:
        await server.say("startup")
        statuses = [(await call(app, body, path=path)).answer[0] for path in ("/1", "/2/", "/3/")]
        alien = sign(b"[]", credentials=other, now=datetime.now(UTC))
        statuses += [(await call(app, b"[]", path=path, headers=alien)).answer[0] for path in ("/1", "/2/", "/3/")]
        counts = await third.sink.counts()
        await server.say("shutdown")
    assert statuses == [200, 401, 200, 401, 200, 401]
    assert (first.sink.bodies, second.sink.bodies, counts.waiting) == ([body], [b"[]"], 1)
