"""A receiver inside the applications of other frameworks, and the headers that these give."""

from contextlib import asynccontextmanager

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount, Route

from helpers.credentials import CREDENTIALS
from helpers.receiving_asgi import TINY, Server, Sink, call, content, signed
from rbim.callbacks import Receiver


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


WAYS = [starlette_route, starlette_mount, starlette_base, starlette_base_twice, starlette_gzip]


@pytest.mark.parametrize("way", WAYS)
async def test_it_answers_the_same_wherever_it_is_mounted(way):
    sink = Sink()
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
