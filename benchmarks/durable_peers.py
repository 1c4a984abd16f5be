"""Endpoints for deliveries that store each one in SQLite before they answer, as a careful team would write them.

Both are FastAPI: with a transaction in a thread for each delivery; and with a group commit, in which deliveries that arrive
during a transaction share the next one. The file is in WAL mode with ``synchronous = FULL``, as that of a ``SqliteInbox``.
``benchmarks/callbacks.py`` compares the receiver with them.
"""

from __future__ import annotations

import asyncio
import sqlite3
from threading import Lock
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response

from benchmarks.fastapi_peer import checked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.fastapi_peer import Event

    Row = tuple[str, bytes]

__all__ = ["GroupCommit", "Store", "fastapi", "fastapi_group"]


class Store:
    """The table of deliveries; for one thread at a time."""

    def __init__(self, path: str) -> None:
        self._lock = Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE IF NOT EXISTS delivery (key TEXT PRIMARY KEY, body BLOB) WITHOUT ROWID")

    def add(self, rows: list[Row]) -> None:
        """Store deliveries in one transaction; a key that is there already changes nothing."""
        with self._lock, self._connection:
            self._connection.executemany("INSERT OR IGNORE INTO delivery VALUES (?, ?)", rows)


class GroupCommit:
    """A store whose transactions are shared by the deliveries that arrive while another one runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[Row, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, row: Row) -> None:
        """Return when the delivery is on the disk."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        if self._task is None:
            self._task = asyncio.create_task(self._commit())
        await done

    async def _commit(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._store.add, [row for row, _ in batch])
            except sqlite3.Error as error:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(error)
            else:
                for _, done in batch:
                    if not done.done():
                        done.set_result(None)
        self._task = None


def _key(event: Event) -> str:
    return f"{event.msg_id}\0{event.conv_type}\0{event.msg_type}\0{event.to}"


def _application(add: Callable[[Row], Awaitable[None]]) -> FastAPI:
    app = FastAPI()

    @app.post("/")
    async def copied(request: Request) -> Response:
        """Answer one delivery when it is stored."""
        body = await request.body()
        event = checked(request, body)
        if event is None:
            return Response(b"refused", 401)
        await add((_key(event), body))
        return Response(b"", 200)

    return app


def fastapi(path: str) -> FastAPI:
    """Return the endpoint with a transaction in a thread for each delivery."""
    store = Store(path)
    return _application(lambda row: asyncio.to_thread(store.add, [row]))


def fastapi_group(path: str) -> FastAPI:
    """Return the endpoint with a group commit."""
    return _application(GroupCommit(Store(path)).add)
