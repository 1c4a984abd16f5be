"""Type tests, read by mypy and pyright and never run: every mount of docs/callbacks.md that a checker can accept."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import assert_type

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Route

from rbim.callbacks import Receiver, SqliteInbox

receiver = Receiver.from_env(sink=SqliteInbox("events.db"))


@asynccontextmanager
async def lifespan(_: object) -> AsyncGenerator[None, None]:
    async with receiver as entered:
        assert_type(entered, Receiver)
        yield


def with_fastapi() -> FastAPI:
    app = FastAPI(lifespan=lifespan)
    app.router.routes.append(Route("/copies", receiver.asgi, methods=["POST"]))
    app.mount("/copies", receiver.asgi)
    return app


def with_starlette() -> Starlette:
    app = Starlette(routes=[Route("/copies", receiver.asgi, methods=["POST"])], lifespan=lifespan)
    app.routes.append(Route("/more", receiver.asgi, methods=["POST"]))
    return app
