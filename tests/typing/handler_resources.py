"""Type tests, read by mypy and pyright and never run: what `around=` gives is what handlers get."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, assert_type

from rbim import Credentials
from rbim.callbacks import Event, HandlerContext, MemorySink, Receiver, Router, Text

CREDENTIALS = Credentials(app_id="a", app_token="b")


class Pool:
    async def execute(self, sql: str) -> None: ...


@asynccontextmanager
async def pool() -> AsyncGenerator[Pool, None]:
    yield Pool()


@asynccontextmanager
async def text() -> AsyncGenerator[str, None]:
    yield ""


async def right(event: Text, handling: HandlerContext[Pool]) -> None:
    await handling.resource.execute(event.body)


async def bare(event: Event, handling: HandlerContext) -> None:
    assert_type((event, handling.resource), tuple[Event, Any])


async def wrong(event: Text, handling: HandlerContext[str]) -> None:
    assert_type((event.body, handling.resource), tuple[str, str])


def with_a_resource() -> None:
    receiver = Receiver(credentials=CREDENTIALS, sink=MemorySink(), around=pool)
    assert_type(receiver, Receiver[Pool])
    receiver.on(Text)(right)
    receiver.fallback(bare)
    receiver.on(Text)(wrong)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


def with_a_router() -> None:
    router = Router[Pool]()
    router.on(Text)(right)
    router.on(Text)(wrong)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    Receiver(credentials=CREDENTIALS, sink=MemorySink(), router=router, around=pool)
    Receiver(credentials=CREDENTIALS, sink=MemorySink(), router=Router(), around=text)
    Receiver(credentials=CREDENTIALS, sink=MemorySink(), router=router, around=text)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def from_env() -> None:
    receiver: Receiver[Pool] = Receiver.from_env(sink=MemorySink(), around=pool)
    receiver.on(Text)(right)
    receiver.on(Text)(wrong)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


def without_arguments(receiver: Receiver, router: Router) -> Receiver:
    """No type argument is needed anywhere."""
    receiver.fallback(bare)
    return Receiver(credentials=CREDENTIALS, sink=MemorySink(), router=router)
