"""Places of events for the conformance suite of inboxes: memory, a file, a database, a stream."""

import asyncio
import tempfile
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex

from helpers.inbox_conformance import InboxConformance
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.emulator.clock import EmulatedClock


class MemoryPlace:
    """One sink: it has no processes that could die."""

    def __init__(self, wrapped=lambda inbox: inbox):
        self.clock = EmulatedClock()
        self._inbox = wrapped(MemorySink(clock=self.clock))

    def inbox(self):
        return self._inbox

    async def pass_time(self, seconds):
        await self.clock.advance(seconds)


class FilePlace:
    """A file, and for each process an inbox of its own."""

    def __init__(self, folder, wrapped=lambda inbox: inbox):
        self.clock = EmulatedClock()
        self._path = Path(folder) / "inbox.db"
        self._wrapped = wrapped

    def inbox(self):
        return self._wrapped(SqliteInbox(self._path, clock=self.clock, poll=0.01))

    async def pass_time(self, seconds):
        await self.clock.advance(seconds)

    async def kill(self, _backlog):
        """Nothing is given back on leaving: only the lease has to end."""
        await self.clock.advance(31)


class DatabasePlace(FilePlace):
    """A schema in a database, and for each process an inbox of its own."""

    def __init__(self, address):
        self.clock = EmulatedClock()
        self.address = address
        self.name = f"t{token_hex(6)}"

    def inbox(self):
        from rbim.postgres import PostgresInbox

        return PostgresInbox(self.address, name=self.name, clock=self.clock)


class StreamPlace:
    """Streams on the servers, and a short real time until partitions are taken over."""

    TAKEOVER = 0.6

    def __init__(self, urls, wrapped=lambda inbox: inbox, **options):
        self.clock = EmulatedClock()
        self._wrapped = wrapped
        self._options = {"name": f"t{token_hex(6)}", "partitions": 4, "replicas": 1, "takeover": self.TAKEOVER, **options}
        self._urls = urls

    def inbox(self):
        from rbim.jetstream import JetStreamInbox

        return self._wrapped(JetStreamInbox(self._urls, clock=self.clock, **self._options))

    async def pass_time(self, seconds):
        await self.clock.advance(seconds)
        if seconds > self.TAKEOVER:
            await asyncio.sleep(1.5 * self.TAKEOVER)

    async def kill(self, backlog):
        """Cut its connection, so that it can give nothing back."""
        await backlog._streams.connection.close()
        await asyncio.sleep(1.5 * self.TAKEOVER)


@asynccontextmanager
async def memory_place(wrapped=lambda inbox: inbox):
    yield MemoryPlace(wrapped)


@asynccontextmanager
async def file_place(wrapped=lambda inbox: inbox):
    with tempfile.TemporaryDirectory() as folder:
        yield FilePlace(folder, wrapped)


@asynccontextmanager
async def database_place(address):
    yield DatabasePlace(address)


@asynccontextmanager
async def stream_place(urls, wrapped=lambda inbox: inbox, **options):
    yield StreamPlace(urls, wrapped, **options)


def memory(wrapped=lambda inbox: inbox):
    return InboxConformance(partial(memory_place, wrapped), durable=False, deaths=False, expires=False)


def file(wrapped=lambda inbox: inbox):
    return InboxConformance(partial(file_place, wrapped))


def database(address):
    return InboxConformance(partial(database_place, address))


def stream(urls, wrapped=lambda inbox: inbox, *, delay=0.1, **options):
    return InboxConformance(partial(stream_place, urls, wrapped, **options), expires=False, delay=delay)
