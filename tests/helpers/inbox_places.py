"""Places of events for the conformance suite of inboxes: memory, a file, a database."""

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


def memory(wrapped=lambda inbox: inbox):
    return InboxConformance(partial(memory_place, wrapped), durable=False)


def file(wrapped=lambda inbox: inbox):
    return InboxConformance(partial(file_place, wrapped))


def database(address):
    return InboxConformance(partial(database_place, address))
