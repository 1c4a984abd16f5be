"""Parts of the benchmarks of jobs: a transport with a constant answer, and a journal that writes nothing."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from anyio.lowlevel import checkpoint

from rbim import AsyncClient, Credentials
from rbim.bulk import InviteJob, Row
from rbim.bulk.input.rows import Columns
from rbim.bulk.journal.facts import DIALECT
from rbim.bulk.journal.journal import Journal
from rbim.bulk.journal.loading import InputDigest, Loader
from rbim.bulk.work import Chunk
from rbim.clock import SystemClock
from rbim.http import Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from typing import Self

    from rbim.bulk.settings import JobSettings
    from rbim.http import Request

    Sending = tuple[str, tuple[str, ...]]

__all__ = ["AtOnce", "Unwritten", "chunk_of", "client_of", "loaded_journal", "requests"]

T = TypeVar("T")

CREDENTIALS = Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8")
ANSWER = b'{"statusCode":"000000"}'
HEADERS = {"content-type": "application/json;charset=utf-8"}


def client_of(port: int | None, transport: str = "HttpxTransport") -> AsyncClient:
    """Return a client of the server on a port, over a transport; for None, a client of the stub transport."""
    if port is None:
        return AsyncClient(base_url="http://stub", transport=Stub(), credentials=CREDENTIALS)
    made = getattr(import_module(f"rbim.transports.{transport.removesuffix('Transport').lower()}"), transport)()
    return AsyncClient(base_url=f"http://127.0.0.1:{port}", credentials=CREDENTIALS, transport=made)


class Stub:
    """A transport with a constant answer."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def send(self, _request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # a transport keeps it
        """Answer."""
        del timeout
        await checkpoint()
        return Response(200, HEADERS, ANSWER)


class Unwritten:
    """A journal in memory that writes nothing, with the methods that a dispatcher calls."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self._chunks = chunks
        self._numbers = count(1)

    def next_chunks(self, most: int) -> list[Chunk]:
        """Return the next chunks."""
        found, self._chunks = self._chunks[:most], self._chunks[most:]
        return found

    def record(self, _ended: object, intents: list[Chunk], _closed: object) -> dict[object, int]:
        """Number the requests, and keep nothing."""
        for chunk in intents:
            chunk.number = next(self._numbers)
        return {}

    def sample(self, *_: object) -> None:
        """Keep nothing."""


class AtOnce:
    """A group commit that runs each command at once."""

    def begin(self, command: Callable[[], T]) -> Callable[[], Awaitable[T]]:
        """Run a command at once."""
        result = command()

        async def settled() -> T:
            return result

        return settled

    async def run(self, command: Callable[[], T]) -> T:
        """Run a command at once."""
        return command()

    read = run


def requests(number: int, chunk: int) -> list[Sending]:
    """Return the group and the accounts of each of ``number`` requests."""
    return [(f"g8{each // 10:013d}", tuple(f"user-{each:06d}-{one:02d}" for one in range(chunk))) for each in range(number)]


def chunk_of(number: int, group: str, inside: tuple[str, ...]) -> Chunk:
    """Return a chunk as the journal plans it."""
    return Chunk(id=number, group=group, user_name=None, accounts=inside)


def loaded_journal(path: Path, sendings: list[Sending], settings: JobSettings) -> None:
    """Make a journal with a loaded input, of which nothing is sent."""
    chunk = len(sendings[0][1])
    parts = InviteJob(client_of(None), journal=path, chunk=chunk)._parts  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    journal = Journal(path, clock=SystemClock())
    journal.open()
    given = {**settings.as_json(), DIALECT: {}}
    (loader,) = journal.commit([partial(Loader, journal.database, parts.work, given, InputDigest())])
    rows = [Row(group, each) for group, inside in sendings for each in inside]
    journal.commit([partial(loader.add, Columns.of(rows, range(1, len(rows) + 1)))])
    journal.commit([partial(loader.end, {})])
    journal.close()
