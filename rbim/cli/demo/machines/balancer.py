"""A load balancer for the demo: it keeps to one receiver as long as that one takes connections, then to the next."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["Balancer"]

PIECE = 65_536  # bytes


@define(eq=False)
class Balancer:
    """Connects what arrives at ``port`` with ``receivers``, by the order of their ports; ``current`` is the one in use."""

    receivers: list[int]
    current: int = 0
    port: int = field(init=False, default=0)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Listen on a free port while the block runs."""
        tasks: set[asyncio.Task[None]] = set()

        def arrived(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._connect(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(arrived, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            receiver = await self._receiver()
            if receiver is None:
                return  # closed without an answer, as by a process that died
            its_reader, its_writer = receiver
            try:
                there = asyncio.create_task(_copy(reader, its_writer))
                back = asyncio.create_task(_copy(its_reader, writer))
                try:
                    await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    there.cancel()
                    back.cancel()
                    await asyncio.gather(there, back, return_exceptions=True)
            finally:
                await _close(its_writer)
        finally:
            await _close(writer)

    async def _receiver(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return a connection to the current receiver, or to the next one that takes it."""
        for _ in self.receivers:
            tried = self.current
            try:
                return await asyncio.open_connection("127.0.0.1", self.receivers[tried])
            except OSError:
                if tried == self.current:  # else another connection has found out before
                    self.current = (tried + 1) % len(self.receivers)
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
